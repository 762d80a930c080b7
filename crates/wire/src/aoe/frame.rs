//! A whole frame: the common header and what its command has behind it (`docs/aoe.md`, "Frames").

use alloc::vec::Vec;

use super::{
    ATA_BYTES, AoeCommand, AtaRegisters, ConfigQuery, FrameRefused, HEADER_BYTES, Header, MaskList,
    Reservation, VERSION,
};

/// Where the data of an ATA command begins: behind the common header and the registers.
pub const DATA_OFFSET: usize = HEADER_BYTES + ATA_BYTES;

const _: () = assert!(DATA_OFFSET == 22);

/// What stands behind the common header, and in front of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body<'a> {
    /// Issue ATA Command. Data, if the command has some, begins at [`DATA_OFFSET`].
    Ata(AtaRegisters),
    /// Query Config Information.
    Query(ConfigQuery<'a>),
    /// MAC Mask List.
    Mask(MaskList<'a>),
    /// Reserve/Release.
    Reserve(Reservation<'a>),
    /// Nothing: the header says that the request was refused.
    Refused,
}

/// An AoE frame without the data of an ATA command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// What all frames begin with.
    pub header: Header,
    /// What its command asks for; it fits [`Header::command`], or [`Header::is_error`].
    pub body: Body<'a>,
}

impl<'a> Frame<'a> {
    /// Checks and reads the frame that `bytes` begins with. Padding may follow, or data: of `bytes`, those from
    /// [`DATA_OFFSET`] on are the data of an ATA command, and how many of them count is in its registers.
    ///
    /// # Errors
    /// Each reason by its name; a request that is refused with [`FrameRefused::code`] still has a header that
    /// [`Header::parse`] reads, to answer it.
    pub fn parse(bytes: &'a [u8]) -> Result<Frame<'a>, FrameRefused> {
        let header = Header::parse(bytes)?;
        let body = Body::parse(&header, bytes.get(HEADER_BYTES..).unwrap_or_default())?;
        Ok(Frame { header, body })
    }

    /// Appends it to `out`. Data is to follow at [`DATA_OFFSET`] octets behind where it began.
    pub fn put(&self, out: &mut Vec<u8>) {
        self.header.put(out);
        match &self.body {
            Body::Ata(registers) => registers.put(out),
            Body::Query(query) => query.put(out),
            Body::Mask(mask) => mask.put(out),
            Body::Reserve(reservation) => reservation.put(out),
            Body::Refused => {}
        }
    }
}

impl<'a> Body<'a> {
    /// Checks and reads what stands in `bytes`, which begin behind this header.
    ///
    /// # Errors
    /// All of [`FrameRefused`] but `Truncated`.
    pub fn parse(header: &Header, bytes: &'a [u8]) -> Result<Body<'a>, FrameRefused> {
        if header.version != VERSION {
            return Err(FrameRefused::Version);
        }
        if header.is_response && header.is_error {
            return Ok(Body::Refused);
        }
        Ok(match AoeCommand::known(header.command).ok_or(FrameRefused::Command)? {
            AoeCommand::IssueAta => Body::Ata(AtaRegisters::parse(bytes)?),
            AoeCommand::QueryConfig => Body::Query(ConfigQuery::parse(bytes)?),
            AoeCommand::MaskList => Body::Mask(MaskList::parse(bytes, header.is_response)?),
            AoeCommand::Reserve => Body::Reserve(Reservation::parse(bytes)?),
        })
    }
}
