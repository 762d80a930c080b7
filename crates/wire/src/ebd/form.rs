//! The two forms, their operations, and the codes of these.

/// Which of the two protocols of the document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EbdForm {
    /// As section 2.2 wants it: 10 octets, an 8-bit identifier, credit in 8 bits, one timeout.
    Ideal,
    /// As section 2.3 says it was built: 18 octets, client minor and server index, credit in 16 bits, WACK.
    Implemented,
}

/// What a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Operation {
    /// Client and server agree on sizes and credit.
    Handshake = 1,
    /// Sectors are asked for; each answer carries one block of them.
    Read = 2,
    /// One block, or less, to be written.
    Write = 3,
    /// The same, answered once it is on the medium.
    SyncWrite = 4,
    /// All that was written is to be on the medium.
    Flush = 5,
    /// The client ends. Not answered.
    End = 6,
    /// The server ends. Not asked for.
    Shutdown = 7,
    /// The server changes the credit, unasked: of one client, or of all.
    Congestion = 8,
    /// A request has failed, or is refused: only as an answer.
    Nak = 9,
    /// A request is here: only as an answer, and in the implemented form.
    Wack = 10,
}

/// Added to the code of an operation in the implemented form: so that a peer of the other form can be told so.
const IMPLEMENTED: u8 = 0x20;
/// Set in an answer, and in what a server says unasked.
const ANSWER: u8 = 0x40;
/// Set in a request of the implemented form that wants a WACK.
const WACK_WANTED: u8 = 0x80;

impl Operation {
    /// All, by code.
    pub const ALL: [Operation; 10] = [
        Operation::Handshake,
        Operation::Read,
        Operation::Write,
        Operation::SyncWrite,
        Operation::Flush,
        Operation::End,
        Operation::Shutdown,
        Operation::Congestion,
        Operation::Nak,
        Operation::Wack,
    ];

    /// Whether a client may say this, as a request.
    pub fn is_request(self) -> bool {
        use Operation::*;
        matches!(self, Handshake | Read | Write | SyncWrite | Flush | End)
    }

    /// Whether a server may say this.
    pub fn is_answer(self) -> bool {
        self != Operation::End
    }

    /// A write, of either kind.
    pub fn is_write(self) -> bool {
        matches!(self, Operation::Write | Operation::SyncWrite)
    }
}

/// The type octet, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Type {
    pub form: EbdForm,
    pub operation: Operation,
    pub is_answer: bool,
    pub wants_wack: bool,
}

impl Type {
    /// `None` if it is none of either form.
    pub fn from_octet(octet: u8) -> Option<Self> {
        let form = if octet & IMPLEMENTED != 0 { EbdForm::Implemented } else { EbdForm::Ideal };
        let (is_answer, wants_wack) = (octet & ANSWER != 0, octet & WACK_WANTED != 0);
        let code = octet & (IMPLEMENTED - 1);
        let operation = *Operation::ALL.get(usize::from(code).checked_sub(1)?)?;
        let is_fit = if is_answer { operation.is_answer() } else { operation.is_request() };
        let may_want = form == EbdForm::Implemented && !is_answer;
        let exists = form == EbdForm::Implemented || operation != Operation::Wack;
        let found = Type { form, operation, is_answer, wants_wack };
        (is_fit && exists && (may_want || !wants_wack)).then_some(found)
    }

    pub fn to_octet(self) -> u8 {
        let form = if self.form == EbdForm::Implemented { IMPLEMENTED } else { 0 };
        let answer = if self.is_answer { ANSWER } else { 0 };
        let wack = if self.wants_wack { WACK_WANTED } else { 0 };
        self.operation as u8 | form | answer | wack
    }
}

impl EbdForm {
    /// Octets of a header: where a payload begins.
    pub const fn header_bytes(self) -> usize {
        match self {
            EbdForm::Ideal => 10,
            EbdForm::Implemented => 18,
        }
    }

    /// The most credit that can be said, in sectors.
    pub const fn credit_max(self) -> u16 {
        match self {
            EbdForm::Ideal => u8::MAX as u16,
            EbdForm::Implemented => u16::MAX,
        }
    }

    /// The most sectors that one request may ask for: twice that must fit the credit (section 3.1.6), and a length is
    /// one octet.
    pub const fn request_sectors_max(self) -> u8 {
        match self {
            EbdForm::Ideal => 127,
            EbdForm::Implemented => 255,
        }
    }

    /// What people call it, and the command line.
    pub const fn name(self) -> &'static str {
        match self {
            EbdForm::Ideal => "ideal",
            EbdForm::Implemented => "implemented",
        }
    }
}

/// Why a request was refused, or failed: the length field of a NAK.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum NakReason {
    /// It goes beyond the end of the device, or its length is none.
    Range = 1,
    /// The medium has failed.
    Media = 2,
    /// This server knows no such client: it has to shake hands, and to send again what was not answered or flushed.
    Unknown = 3,
    /// Another writer has the device: for good.
    Fenced = 4,
    /// The device can only be read.
    ReadOnly = 5,
    /// Another writer has the device, or is about to.
    Busy = 6,
    /// There is no such device.
    NoDevice = 7,
    /// The server speaks the other form.
    Form = 8,
    /// No space is left on the medium.
    NoSpace = 9,
    /// The server has as many clients as it takes.
    TooMany = 10,
    /// The device holds other content than when this client shook hands.
    Changed = 11,
    /// The block size does not fit the server's link.
    BlockSize = 12,
}

impl NakReason {
    /// All, by number.
    pub const ALL: [NakReason; 12] = [
        NakReason::Range,
        NakReason::Media,
        NakReason::Unknown,
        NakReason::Fenced,
        NakReason::ReadOnly,
        NakReason::Busy,
        NakReason::NoDevice,
        NakReason::Form,
        NakReason::NoSpace,
        NakReason::TooMany,
        NakReason::Changed,
        NakReason::BlockSize,
    ];

    /// The reason of this number; `None` if there is none.
    pub fn from_number(number: u8) -> Option<Self> {
        NakReason::ALL.get(usize::from(number).checked_sub(1)?).copied()
    }

    /// In words, for people.
    pub fn describe(self) -> &'static str {
        match self {
            NakReason::Range => "beyond the end of the device",
            NakReason::Media => "the server's disk failed",
            NakReason::Unknown => "the server does not know this client",
            NakReason::Fenced => "another writer has taken the device over",
            NakReason::ReadOnly => "the device can only be read",
            NakReason::Busy => "another writer has the device",
            NakReason::NoDevice => "the server offers no such device",
            NakReason::Form => "the server speaks the other form",
            NakReason::NoSpace => "no space is left on the server's disk",
            NakReason::TooMany => "the server has as many clients as it takes",
            NakReason::Changed => "the device holds other content",
            NakReason::BlockSize => "the block size does not fit the server's link",
        }
    }
}
