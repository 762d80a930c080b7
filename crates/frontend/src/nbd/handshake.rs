//! The fixed newstyle handshake: a client chooses an export, and what it wants to know of it.

use thinwire_buffer::{Pool, SegList};
use thinwire_volume::Geometry;

use super::output::{Output, Reply};
use super::proto::{
    CONTEXT_NAME, ContextOption, InfoOption, OPTION_HEADER_BYTES, OptionHeader, ReplyHead,
    export_flag, handshake_flag, info, option, option_reply,
};

/// The longest option taken in whole; all sensible ones are far shorter.
const OPTION_BYTES_MAX: u32 = 16 << 10;
/// The longest option that is skipped and answered; longer ones end the connection.
const OPTION_BYTES_SKIPPED_MAX: u32 = 1 << 20;
/// The longest read or write offered: what clients assume that do not ask.
const IO_BYTES_MAX: u32 = 32 << 20;

/// What clients are told of the volume.
#[derive(Clone, Copy, Debug)]
pub(super) struct Export<'a> {
    /// Its name. The empty name stands for it, too.
    pub(super) name: &'a str,
    /// Another one; may be empty.
    pub(super) alias: &'a str,
    /// A text for people; may be empty.
    pub(super) description: &'a str,
    /// Shape and abilities, with `read_only` set if the face is.
    pub(super) geometry: Geometry,
}

impl Export<'_> {
    fn is_called(&self, name: &[u8]) -> bool {
        name.is_empty() || name == self.name.as_bytes() || name == self.alias.as_bytes()
    }

    /// The longest read or write a client may ask for.
    pub(super) fn io_bytes_max(&self) -> u32 {
        self.geometry.io_bytes_max.min(IO_BYTES_MAX)
    }

    /// What the transmission flags say.
    fn flags(&self, structured: bool) -> u16 {
        let features = self.geometry.features;
        // All connections share one volume, and a flush covers whatever completed on it: so
        // several connections are sound (rule 13).
        let mut flags = export_flag::HAS_FLAGS
            | export_flag::SEND_FLUSH
            | export_flag::SEND_FUA
            | export_flag::CAN_MULTI_CONN;
        for (can, flag) in [
            (features.read_only, export_flag::READ_ONLY),
            (features.discard && !features.read_only, export_flag::SEND_TRIM),
            (features.write_zeroes && !features.read_only, export_flag::SEND_WRITE_ZEROES),
            (structured, export_flag::SEND_DF),
        ] {
            if can {
                flags |= flag;
            }
        }
        flags
    }

    /// Minimum, preferred and maximum block size, as the protocol wants them: powers of two where
    /// it says so, in order.
    fn block_sizes(&self) -> (u32, u32, u32) {
        let min = self.geometry.block_bytes;
        let max = self.io_bytes_max();
        let preferred = self.geometry.preferred_bytes.clamp(512.max(min), 1 << 20);
        (min, preferred.next_power_of_two().min(max), max)
    }
}

/// What the client negotiated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Terms {
    /// Replies in chunks.
    pub(super) structured: bool,
    /// Block status, in `base:allocation`.
    pub(super) allocation: bool,
}

/// What came of a step of the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing to be done before more bytes are here.
    Wait,
    /// So many bytes are understood; go on.
    Took(usize),
    /// So many bytes are understood; the next one belongs to the transmission.
    Start(usize, Terms),
    /// The client gave up in order: send what is to be sent, then close.
    Farewell,
    /// The client broke the protocol, and cannot be told; the text says how.
    Broken(&'static str),
}

/// One client's handshake.
#[derive(Default)]
pub(super) struct Handshake {
    /// The client's flags, once they came.
    flags: Option<u32>,
    terms: Terms,
    /// The name under which the contexts were chosen: they hold for this one only.
    context_name: Vec<u8>,
    /// Bytes of an oversized option still to be skipped.
    skip: usize,
}

impl Handshake {
    /// Greets the client: to be called once, first.
    pub(super) fn greet(output: &mut Output) {
        output.push(Reply::free(ReplyHead::greeting(), SegList::new()));
    }

    /// Does what `input` asks for first.
    pub(super) fn step(
        &mut self,
        input: &[u8],
        export: &Export<'_>,
        output: &mut Output,
        pool: &Pool,
    ) -> Step {
        if self.skip > 0 {
            let len = self.skip.min(input.len());
            self.skip -= len;
            return if len > 0 { Step::Took(len) } else { Step::Wait };
        }
        let Some(flags) = self.flags else {
            return match input.first_chunk() {
                Some(bytes) => self.take_flags(u32::from_be_bytes(*bytes)),
                None => Step::Wait,
            };
        };
        let Some(header) = input.first_chunk::<OPTION_HEADER_BYTES>() else {
            return Step::Wait;
        };
        let Some(header) = OptionHeader::parse(header) else {
            return Step::Broken("an option without its magic");
        };
        let is_fixed = flags & u32::from(handshake_flag::FIXED_NEWSTYLE) != 0;
        if !is_fixed && header.option != option::EXPORT_NAME {
            return Step::Broken("an option of the fixed handshake from a client without it");
        }
        let mut haggle = Haggle { option: header.option, export, output, pool };
        if header.len > OPTION_BYTES_MAX {
            if header.option == option::EXPORT_NAME || header.len > OPTION_BYTES_SKIPPED_MAX {
                return Step::Broken("an option of absurd length");
            }
            haggle.refuse(option_reply::ERR_TOO_BIG, "this option is too long");
            self.skip = header.len as usize;
            return Step::Took(OPTION_HEADER_BYTES);
        }
        let end = OPTION_HEADER_BYTES + header.len as usize;
        match input.get(OPTION_HEADER_BYTES..end) {
            Some(data) => self.take_option(data, end, &mut haggle, flags),
            None => Step::Wait,
        }
    }

    fn take_flags(&mut self, flags: u32) -> Step {
        let known = u32::from(handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES);
        if flags & !known != 0 {
            return Step::Broken("handshake flags nobody offered");
        }
        self.flags = Some(flags);
        Step::Took(4)
    }

    /// Does one option, which ends `end` bytes from the start of the input.
    fn take_option(
        &mut self,
        data: &[u8],
        end: usize,
        haggle: &mut Haggle<'_>,
        flags: u32,
    ) -> Step {
        match haggle.option {
            option::EXPORT_NAME => return self.export_name(data, end, haggle, flags),
            option::ABORT => {
                haggle.ack();
                return Step::Farewell;
            }
            option::INFO | option::GO => {
                if let Some(name) = haggle.describe(data, self.terms.structured)
                    && haggle.option == option::GO
                {
                    return Step::Start(end, self.final_terms(name));
                }
            }
            option::LIST if data.is_empty() => haggle.list(),
            option::STRUCTURED_REPLY if data.is_empty() => {
                self.terms.structured = true;
                haggle.ack();
            }
            option::LIST | option::STRUCTURED_REPLY => {
                haggle.refuse(option_reply::ERR_INVALID, "this option takes no data");
            }
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => self.contexts(data, haggle),
            option::STARTTLS => {
                haggle.refuse(option_reply::ERR_UNSUP, "there is no TLS here");
            }
            _ => haggle.refuse(option_reply::ERR_UNSUP, "this server does not know this option"),
        }
        Step::Took(end)
    }

    /// The terms that hold for the export when it is opened as `name`.
    fn final_terms(&self, name: &[u8]) -> Terms {
        let same = name == self.context_name;
        Terms { allocation: self.terms.allocation && same, ..self.terms }
    }

    fn export_name(&self, data: &[u8], end: usize, haggle: &mut Haggle<'_>, flags: u32) -> Step {
        if !haggle.export.is_called(data) {
            return Step::Broken("an export that does not exist, asked for the old way");
        }
        let flags_of_export = haggle.export.flags(self.terms.structured);
        let head = ReplyHead::export(haggle.export.geometry.bytes, flags_of_export);
        let zeroes: &[u8] =
            if flags & u32::from(handshake_flag::NO_ZEROES) != 0 { &[] } else { &[0; 124] };
        haggle.output.push_with(head, &[zeroes], haggle.pool);
        Step::Start(end, self.final_terms(data))
    }

    fn contexts(&mut self, data: &[u8], haggle: &mut Haggle<'_>) {
        let is_set = haggle.option == option::SET_META_CONTEXT;
        if is_set {
            self.terms.allocation = false;
        }
        let Some(query) = ContextOption::parse(data) else {
            return haggle.refuse(option_reply::ERR_INVALID, "the lengths in this option lie");
        };
        if !self.terms.structured {
            return haggle
                .refuse(option_reply::ERR_INVALID, "structured replies must be negotiated first");
        }
        if !haggle.export.is_called(query.name) {
            return haggle.refuse_name(query.name);
        }
        let listed = !is_set && (query.is_unspecific || query.wants_base);
        if haggle.export.geometry.features.block_status && (query.wants_allocation || listed) {
            let head = ReplyHead::meta_context(haggle.option);
            haggle.output.push_with(head, &[CONTEXT_NAME], haggle.pool);
            if is_set {
                self.terms.allocation = true;
                self.context_name.clear();
                self.context_name.extend_from_slice(query.name);
            }
        }
        haggle.ack();
    }
}

/// One option and the means to answer it.
struct Haggle<'a> {
    option: u32,
    export: &'a Export<'a>,
    output: &'a mut Output,
    pool: &'a Pool,
}

impl Haggle<'_> {
    fn ack(&mut self) {
        let head = ReplyHead::option_reply(self.option, option_reply::ACK, 0);
        self.output.push(Reply::free(head, SegList::new()));
    }

    fn refuse(&mut self, error: u32, text: &str) {
        let head = ReplyHead::option_reply(self.option, error, text.len());
        self.output.push_with(head, &[text.as_bytes()], self.pool);
    }

    fn refuse_name(&mut self, name: &[u8]) {
        let name = String::from_utf8_lossy(&name[..name.len().min(200)]);
        let text = format!("no export is called '{name}' here, only '{}'", self.export.name);
        self.refuse(option_reply::ERR_UNKNOWN, &text);
    }

    fn list(&mut self) {
        let (name, text) = (self.export.name.as_bytes(), self.export.description.as_bytes());
        self.output.push_with(ReplyHead::server(name.len(), text.len()), &[name, text], self.pool);
        self.ack();
    }

    /// Answers `INFO` or `GO`; the name under which the export was asked for if all was well.
    fn describe<'d>(&mut self, data: &'d [u8], structured: bool) -> Option<&'d [u8]> {
        let Some(query) = InfoOption::parse(data) else {
            self.refuse(option_reply::ERR_INVALID, "the lengths in this option lie");
            return None;
        };
        if !self.export.is_called(query.name) {
            self.refuse_name(query.name);
            return None;
        }
        let flags = self.export.flags(structured);
        let head = ReplyHead::info_export(self.option, self.export.geometry.bytes, flags);
        self.output.push(Reply::free(head, SegList::new()));
        for (wanted, kind, text) in [
            (query.wants_name, info::NAME, self.export.name),
            (query.wants_description, info::DESCRIPTION, self.export.description),
        ] {
            if wanted && !(kind == info::DESCRIPTION && text.is_empty()) {
                let head = ReplyHead::info_text(self.option, kind, text.len());
                self.output.push_with(head, &[text.as_bytes()], self.pool);
            }
        }
        if query.wants_block_size {
            let (min, preferred, max) = self.export.block_sizes();
            let head = ReplyHead::info_block_size(self.option, min, preferred, max);
            self.output.push(Reply::free(head, SegList::new()));
        }
        self.ack();
        Some(query.name)
    }
}
