//! The formats of the NBD protocol: pure functions between bytes and values.
//!
//! After <https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md>. Everything is in
//! network byte order. Nothing here knows sockets or volumes, and nothing panics on what a client
//! sent.

use thinwire_volume::{ErrorKind, Extent};

/// First eight bytes of every server greeting, `NBDMAGIC`.
pub const MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Second eight bytes of a newstyle greeting, and the magic of every option, `IHAVEOPT`.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Magic of every reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Magic of every request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Magic of a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Magic of a chunk of a structured reply.
pub const CHUNK_MAGIC: u32 = 0x668e_33ef;

/// Bytes of an option's header: magic, option, length.
pub const OPTION_HEADER_BYTES: usize = 16;
/// Bytes of a request: magic, flags, command, cookie, offset, length.
pub const REQUEST_BYTES: usize = 28;
/// Bytes of a simple reply: magic, error, cookie.
pub const SIMPLE_REPLY_BYTES: usize = 16;
/// Bytes of a chunk's header: magic, flags, type, cookie, length.
pub const CHUNK_HEADER_BYTES: usize = 20;
/// Longest string the protocol allows, for example an export's name.
pub const STRING_BYTES_MAX: usize = 4096;

/// Handshake flags, in both directions.
pub mod handshake_flag {
    /// Errors in option haggling are answered, not punished.
    pub const FIXED_NEWSTYLE: u16 = 1 << 0;
    /// The reply to `EXPORT_NAME` ends without 124 zero bytes.
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// Transmission flags: what the export can do.
pub mod export_flag {
    /// Always set.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// Writes are refused.
    pub const READ_ONLY: u16 = 1 << 1;
    /// `FLUSH` works.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// The FUA command flag works.
    pub const SEND_FUA: u16 = 1 << 3;
    /// `TRIM` works.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// `WRITE_ZEROES` works.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// The DF command flag works.
    pub const SEND_DF: u16 = 1 << 7;
    /// A flush on one connection covers the writes of all.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
}

/// Options of the handshake.
pub mod option {
    /// Choose an export and start, the old way: no error reply is possible.
    pub const EXPORT_NAME: u32 = 1;
    /// Give up.
    pub const ABORT: u32 = 2;
    /// Name the exports.
    pub const LIST: u32 = 3;
    /// Use TLS: refused.
    pub const STARTTLS: u32 = 5;
    /// Describe an export.
    pub const INFO: u32 = 6;
    /// Describe an export and start.
    pub const GO: u32 = 7;
    /// Answer in chunks from now on.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// Name the metadata contexts.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Choose metadata contexts.
    pub const SET_META_CONTEXT: u32 = 10;
    /// 64-bit lengths: refused.
    pub const EXTENDED_HEADERS: u32 = 11;
}

/// Types of a reply to an option. Errors have the top bit.
pub mod option_reply {
    /// Done.
    pub const ACK: u32 = 1;
    /// One export.
    pub const SERVER: u32 = 2;
    /// One piece of information.
    pub const INFO: u32 = 3;
    /// One metadata context.
    pub const META_CONTEXT: u32 = 4;
    /// Option unknown.
    pub const ERR_UNSUP: u32 = 1 << 31 | 1;
    /// Option refused by configuration.
    pub const ERR_POLICY: u32 = 1 << 31 | 2;
    /// Option malformed, or not in its place.
    pub const ERR_INVALID: u32 = 1 << 31 | 3;
    /// No such export.
    pub const ERR_UNKNOWN: u32 = 1 << 31 | 6;
    /// Option too long.
    pub const ERR_TOO_BIG: u32 = 1 << 31 | 9;
}

/// Kinds of information about an export.
pub mod info {
    /// Size and transmission flags.
    pub const EXPORT: u16 = 0;
    /// Canonical name.
    pub const NAME: u16 = 1;
    /// Text for people.
    pub const DESCRIPTION: u16 = 2;
    /// Minimum, preferred and maximum block size.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Commands.
pub mod command {
    /// Read.
    pub const READ: u16 = 0;
    /// Write; the payload follows.
    pub const WRITE: u16 = 1;
    /// Disconnect; no reply.
    pub const DISC: u16 = 2;
    /// Make completed writes durable.
    pub const FLUSH: u16 = 3;
    /// Discard.
    pub const TRIM: u16 = 4;
    /// Prefetch: not offered.
    pub const CACHE: u16 = 5;
    /// Write zeroes.
    pub const WRITE_ZEROES: u16 = 6;
    /// Ask for extents.
    pub const BLOCK_STATUS: u16 = 7;
}

/// Flags of a command.
pub mod command_flag {
    /// Durable before the reply.
    pub const FUA: u16 = 1 << 0;
    /// Write zeroes without making a hole.
    pub const NO_HOLE: u16 = 1 << 1;
    /// A read's data in one chunk.
    pub const DF: u16 = 1 << 2;
    /// One extent is enough.
    pub const REQ_ONE: u16 = 1 << 3;
}

/// Types of a chunk. Errors have the top bit.
pub mod chunk {
    /// Flag: the last chunk of its reply.
    pub const DONE: u16 = 1 << 0;
    /// Nothing more to say.
    pub const NONE: u16 = 0;
    /// Offset and bytes.
    pub const OFFSET_DATA: u16 = 1;
    /// Context and extents.
    pub const BLOCK_STATUS: u16 = 5;
    /// Error and a text for people.
    pub const ERROR: u16 = 1 << 15 | 1;
}

/// The one metadata context there is.
pub const CONTEXT_NAME: &[u8] = b"base:allocation";
/// The number that stands for it in replies.
pub const CONTEXT_ID: u32 = 1;

/// Error numbers of the protocol (Linux's, by definition).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Errno {
    /// Not permitted: the export is read-only.
    Perm = 1,
    /// The medium failed.
    Io = 5,
    /// The request makes no sense.
    Inval = 22,
    /// Beyond the end, or no space left.
    NoSpc = 28,
    /// Not offered.
    NotSup = 95,
    /// The server is going away.
    Shutdown = 108,
}

impl From<ErrorKind> for Errno {
    fn from(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::Invalid => Errno::Inval,
            ErrorKind::NoSpace => Errno::NoSpc,
            ErrorKind::ReadOnly => Errno::Perm,
            ErrorKind::Unsupported => Errno::NotSup,
            ErrorKind::ShuttingDown => Errno::Shutdown,
            ErrorKind::Io
            | ErrorKind::Fenced
            | ErrorKind::Away
            | ErrorKind::ContentChanged
            | ErrorKind::OutcomeUnknown
            | ErrorKind::Altered
            | ErrorKind::BadSum => Errno::Io,
        }
    }
}

/// Takes fields off the front of bytes that a client sent. `None` at the end.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (field, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(field)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N).map(|field| field.try_into().expect("N bytes"))
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// A 32-bit length and as many bytes, at most [`STRING_BYTES_MAX`].
    fn string(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()? as usize;
        if len > STRING_BYTES_MAX { None } else { self.bytes(len) }
    }
}

/// Header of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionHeader {
    /// Which option; any value.
    pub option: u32,
    /// Bytes that follow; any value.
    pub len: u32,
}

impl OptionHeader {
    /// `None` if the magic is wrong: the stream is out of step.
    pub fn parse(bytes: &[u8; OPTION_HEADER_BYTES]) -> Option<Self> {
        let mut fields = Fields(bytes);
        let magic = fields.u64()?;
        let header = OptionHeader { option: fields.u32()?, len: fields.u32()? };
        (magic == OPTION_MAGIC).then_some(header)
    }
}

/// Data of `INFO` and `GO`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InfoOption<'a> {
    /// The export asked for.
    pub name: &'a [u8],
    /// Wants [`info::NAME`].
    pub wants_name: bool,
    /// Wants [`info::DESCRIPTION`].
    pub wants_description: bool,
    /// Wants [`info::BLOCK_SIZE`].
    pub wants_block_size: bool,
}

impl<'a> InfoOption<'a> {
    /// `None` if lengths and counts do not add up to the bytes there are.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let mut fields = Fields(bytes);
        let name = fields.string()?;
        let mut option = InfoOption {
            name,
            wants_name: false,
            wants_description: false,
            wants_block_size: false,
        };
        for _ in 0..fields.u16()? {
            match fields.u16()? {
                info::NAME => option.wants_name = true,
                info::DESCRIPTION => option.wants_description = true,
                info::BLOCK_SIZE => option.wants_block_size = true,
                _ => {}
            }
        }
        fields.0.is_empty().then_some(option)
    }
}

/// Data of `LIST_META_CONTEXT` and `SET_META_CONTEXT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextOption<'a> {
    /// The export asked about.
    pub name: &'a [u8],
    /// There were no queries at all: a listing then names every context.
    pub is_unspecific: bool,
    /// A query names [`CONTEXT_NAME`].
    pub wants_allocation: bool,
    /// A query asks for everything in the `base:` namespace; only a listing may.
    pub wants_base: bool,
}

impl<'a> ContextOption<'a> {
    /// `None` if lengths and counts do not add up to the bytes there are.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let mut fields = Fields(bytes);
        let name = fields.string()?;
        let count = fields.u32()?;
        let mut option = ContextOption {
            name,
            is_unspecific: count == 0,
            wants_allocation: false,
            wants_base: false,
        };
        for _ in 0..count {
            // Ends soon however large the count: every query takes four bytes at least.
            match fields.string()? {
                CONTEXT_NAME => option.wants_allocation = true,
                b"base:" => option.wants_base = true,
                _ => {}
            }
        }
        fields.0.is_empty().then_some(option)
    }
}

/// A request's header, as sent: nothing but its magic is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NbdRequest {
    /// Command flags.
    pub flags: u16,
    /// The command.
    pub command: u16,
    /// Comes back in the reply.
    pub cookie: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
}

impl NbdRequest {
    /// `None` if the magic is wrong: the stream is out of step.
    pub fn parse(bytes: &[u8; REQUEST_BYTES]) -> Option<Self> {
        let mut fields = Fields(bytes);
        let magic = fields.u32()?;
        let request = NbdRequest {
            flags: fields.u16()?,
            command: fields.u16()?,
            cookie: fields.u64()?,
            offset: fields.u64()?,
            len: fields.u32()?,
        };
        (magic == REQUEST_MAGIC).then_some(request)
    }
}

/// The head of a reply, short enough to live beside its data: written once, sent by reference.
#[derive(Clone, Copy, Debug)]
pub struct ReplyHead {
    bytes: [u8; ReplyHead::BYTES_MAX],
    len: u8,
}

impl ReplyHead {
    /// The longest head: an option reply with the fields of a block-size information.
    pub const BYTES_MAX: usize = 40;

    /// An empty head.
    pub const fn new() -> Self {
        ReplyHead { bytes: [0; ReplyHead::BYTES_MAX], len: 0 }
    }

    fn put(mut self, bytes: &[u8]) -> Self {
        let at = self.len as usize;
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len() as u8;
        self
    }

    fn u16(self, value: u16) -> Self {
        self.put(&value.to_be_bytes())
    }

    fn u32(self, value: u32) -> Self {
        self.put(&value.to_be_bytes())
    }

    fn u64(self, value: u64) -> Self {
        self.put(&value.to_be_bytes())
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len as usize]
    }

    /// The server's greeting.
    pub fn greeting() -> Self {
        let flags = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;
        ReplyHead::new().u64(MAGIC).u64(OPTION_MAGIC).u16(flags)
    }

    /// A reply to an option; `len` bytes follow.
    pub fn option_reply(option: u32, kind: u32, len: usize) -> Self {
        ReplyHead::new().u64(OPTION_REPLY_MAGIC).u32(option).u32(kind).u32(len as u32)
    }

    /// [`option_reply::INFO`] with size and flags.
    pub fn info_export(option: u32, bytes: u64, flags: u16) -> Self {
        let head = ReplyHead::option_reply(option, option_reply::INFO, 12);
        head.u16(info::EXPORT).u64(bytes).u16(flags)
    }

    /// [`option_reply::INFO`] with block sizes.
    pub fn info_block_size(option: u32, min: u32, preferred: u32, max: u32) -> Self {
        let head = ReplyHead::option_reply(option, option_reply::INFO, 14);
        head.u16(info::BLOCK_SIZE).u32(min).u32(preferred).u32(max)
    }

    /// [`option_reply::INFO`] with a text of `len` bytes, which follows.
    pub fn info_text(option: u32, kind: u16, len: usize) -> Self {
        ReplyHead::option_reply(option, option_reply::INFO, 2 + len).u16(kind)
    }

    /// [`option_reply::SERVER`] with a name of `name_len` bytes and a text, which follow.
    pub fn server(name_len: usize, text_len: usize) -> Self {
        ReplyHead::option_reply(option::LIST, option_reply::SERVER, 4 + name_len + text_len)
            .u32(name_len as u32)
    }

    /// [`option_reply::META_CONTEXT`] for [`CONTEXT_NAME`], which follows.
    pub fn meta_context(option: u32) -> Self {
        ReplyHead::option_reply(option, option_reply::META_CONTEXT, 4 + CONTEXT_NAME.len())
            .u32(CONTEXT_ID)
    }

    /// The answer to `EXPORT_NAME`, without the zeroes that may have to follow.
    pub fn export(bytes: u64, flags: u16) -> Self {
        ReplyHead::new().u64(bytes).u16(flags)
    }

    /// A simple reply; a successful read's data follow.
    pub fn simple(cookie: u64, error: Option<Errno>) -> Self {
        let error = error.map_or(0, |errno| errno as u32);
        ReplyHead::new().u32(SIMPLE_REPLY_MAGIC).u32(error).u64(cookie)
    }

    fn chunk(cookie: u64, kind: u16, len: usize) -> Self {
        ReplyHead::new().u32(CHUNK_MAGIC).u16(chunk::DONE).u16(kind).u64(cookie).u32(len as u32)
    }

    /// The only chunk of a reply to a read; `len` bytes of data follow.
    pub fn data_chunk(cookie: u64, offset: u64, len: usize) -> Self {
        ReplyHead::chunk(cookie, chunk::OFFSET_DATA, 8 + len).u64(offset)
    }

    /// The only chunk of a reply to a block status; `extents` descriptors follow.
    pub fn status_chunk(cookie: u64, extents: usize) -> Self {
        let len = 4 + extents * EXTENT_BYTES;
        ReplyHead::chunk(cookie, chunk::BLOCK_STATUS, len).u32(CONTEXT_ID)
    }

    /// The only chunk of a failed reply; a text of `text_len` bytes (at most
    /// [`STRING_BYTES_MAX`]) follows.
    pub fn error_chunk(cookie: u64, errno: Errno, text_len: usize) -> Self {
        ReplyHead::chunk(cookie, chunk::ERROR, 6 + text_len).u32(errno as u32).u16(text_len as u16)
    }
}

impl Default for ReplyHead {
    fn default() -> Self {
        ReplyHead::new()
    }
}

/// Bytes of one extent descriptor: length, flags.
pub const EXTENT_BYTES: usize = 8;

/// Writes descriptors for `extents` to `out`, as many as fit, joining equal neighbours, for at
/// most `len` bytes of the volume. Returns how many it wrote.
pub fn put_extents(extents: &[Extent], mut len: u32, one: bool, out: &mut [u8]) -> usize {
    const HOLE: u32 = 1 << 0;
    const ZERO: u32 = 1 << 1;
    let mut count = 0;
    let mut last: Option<(u32, u32)> = None;
    for extent in extents {
        let part = extent.len.min(u64::from(len)) as u32;
        if part == 0 {
            continue;
        }
        let flags = if extent.hole { HOLE } else { 0 } | if extent.zero { ZERO } else { 0 };
        let joined = match last {
            Some((before, same)) if same == flags => before + part,
            _ if (count == 1 && one) || (count + 1) * EXTENT_BYTES > out.len() => break,
            _ => {
                count += 1;
                part
            }
        };
        len -= part;
        last = Some((joined, flags));
        let at = (count - 1) * EXTENT_BYTES;
        out[at..at + 4].copy_from_slice(&joined.to_be_bytes());
        out[at + 4..at + 8].copy_from_slice(&flags.to_be_bytes());
    }
    count
}

#[cfg(test)]
#[path = "proto_tests.rs"]
mod tests;
