//! [`Crypt`]: a volume whose bytes stand encrypted on its part, by AES-256-XTS (IEEE 1619), block by block (`docs/format.md`, "An encrypted
//! volume"). Opened with labels only: the key of its blocks stands wrapped in the label ([`CryptState`]).
//!
//! Nothing here knows how to encrypt: who opens it hands in the [`XtsCipher`], which it made of the key that the label holds. So a wrong
//! key is found out before there is a volume.

mod state;
#[cfg(test)]
mod tests;

use thinwire_buffer::{Buf, Pool, SegList};
use thinwire_volume::{
    Completion, Extent, Features, Geometry, Io, IoError, Layer, Op, Slab, Token, Volume,
};

use crate::meta::LABEL_AREA_BYTES;
use crate::{
    Below, Child, Composite, IdentityHash, KeptOnParts, Layout, Module, ModuleError, ModuleOption,
    OptionUnit, Options, common_geometry,
};

pub use state::{CRYPT_SEALED_BYTES, CryptFault, CryptState};

/// Bytes that are encrypted as one, unless it is said.
const BLOCK_BYTES: u64 = 4096;
/// Zeroes are written in pieces of so many bytes.
const ZEROES_BYTES: u64 = 256 << 10;

const BLOCK: ModuleOption = ModuleOption {
    name: "block",
    help: "bytes encrypted as one: 512 or 4096 (4096)",
    bounds: 512..=4096,
    multiple_of: 512,
    unit: OptionUnit::Bytes,
};

/// Its row: it is opened by [`Crypt::open`], and by no list of volumes.
pub(super) const MODULE: Module = Module {
    name: Crypt::NAME,
    help: "a volume whose bytes stand encrypted on its part",
    children: 1..=1,
    options: &[BLOCK],
    ios_each_max: 1,
    keeps: Some(KeptOnParts {
        data_start: LABEL_AREA_BYTES,
        bytes: |parts| parts.iter().map(|part| part.0).sum(),
        may_lack: false,
    }),
    build: |_, _| {
        let why = "keeps its key on its part: describe it in a file, with `key = \"PATH\"`, and name it as FILE.toml#NAME";
        Err(ModuleError::new(Crypt::NAME, why))
    },
};

/// AES-256-XTS with one key, or what a test takes for it.
pub trait XtsCipher {
    /// Encrypts whole blocks of that many bytes where they stand, of which the first has this number. The number, as 16 bytes, the least first,
    /// is the tweak.
    fn encrypt(&mut self, block_bytes: usize, first: u64, bytes: &mut [u8]);

    /// The other way round.
    fn decrypt(&mut self, block_bytes: usize, first: u64, bytes: &mut [u8]);
}

/// A volume whose bytes stand encrypted on its part. What it reads is decrypted where it lies, if nobody else has that, or else
/// in memory of the pool; what it writes is encrypted in memory of the pool. Zeroes are written, encrypted, in pieces, one after the
/// other; a discard goes down, and what is there then is noise: nothing is said to read as zeroes, and all to be data.
///
/// Allocates nothing once the pool is warm, but the answer to a block status.
pub struct Crypt {
    below: Composite<Under>,
    cipher: Box<dyn XtsCipher>,
    block_bytes: u64,
    pool: Pool,
    flights: Slab<Flight>,
    /// Block statuses, which nobody below is asked.
    ready: Vec<Completion>,
    inbox: Vec<Completion>,
    outstanding: usize,
    copied_bytes: u64,
    canary: CryptCanary,
}

/// A fault planted in it, which its tests must find.
#[cfg_attr(not(test), allow(dead_code, reason = "tests plant them"))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum CryptCanary {
    #[default]
    None,
    /// What the part says to be zero is said to be so here.
    ClaimsZeroes,
}

/// An I/O below.
struct Flight {
    token: Token,
    kind: Kind,
}

enum Kind {
    /// It is complete when that is.
    Plain,
    Read {
        offset: u64,
    },
    /// A piece of these, of which the rest begins at `at`.
    Zeroes {
        whole: Io,
        at: u64,
    },
}

impl Crypt {
    /// What users call it.
    pub const NAME: &'static str = "crypt";

    /// Over the data of its part, which the cipher has the key of. `whole` is the UUID in its label: no other volume has this content.
    ///
    /// # Errors
    /// The volume takes less in an I/O than a block.
    pub fn open(
        part: Child,
        cipher: Box<dyn XtsCipher>,
        state: &CryptState,
        whole: [u8; 16],
        pool: &Pool,
    ) -> Result<Self, ModuleError> {
        let children = vec![part];
        let below = common_geometry(Self::NAME, &children)?;
        let block = state.block_bytes().max(below.block_bytes);
        // One buffer for each.
        let longest = below.io_bytes_max.min(Pool::BUF_BYTES_MAX as u32);
        if longest < block {
            let why =
                format!("takes at most {longest} bytes in one I/O, and blocks have {block} bytes");
            return Err(ModuleError::of_child(Self::NAME, 0, why));
        }
        let bytes = children[0].geometry().bytes;
        let Features { read_only, discard, .. } = below.features;
        let geometry = Geometry {
            bytes: bytes - bytes % u64::from(block),
            block_bytes: block,
            preferred_bytes: below.preferred_bytes.max(block),
            io_bytes_max: longest - longest % block,
            features: Features { read_only, discard, write_zeroes: !read_only, block_status: true },
        };
        let mut identity = IdentityHash::new(Self::NAME);
        identity.add(&whole);
        Ok(Crypt {
            below: Composite::new(Under, geometry, identity, children),
            cipher,
            block_bytes: state.block_bytes().into(),
            pool: pool.clone(),
            flights: Slab::new(),
            ready: Vec::new(),
            inbox: Vec::new(),
            outstanding: 0,
            copied_bytes: 0,
            canary: CryptCanary::None,
        })
    }

    /// How many bytes are encrypted as one, as the options of one that is made say.
    ///
    /// # Errors
    /// Neither 512 nor 4096.
    pub fn block_bytes(options: &Options) -> Result<u32, ModuleError> {
        match options.get(&BLOCK).unwrap_or(BLOCK_BYTES) {
            block @ (512 | 4096) => Ok(block as u32),
            other => Err(ModuleError::new(
                Self::NAME,
                format!("has blocks of 512 or 4096 bytes, not {other}"),
            )),
        }
    }

    fn hand_down(&mut self, mut io: Io, token: Token, kind: Kind) {
        io.token = self.flights.insert(Flight { token, kind }).into();
        self.below.submit(io);
    }

    /// In memory that nobody else has.
    fn copy_of(&mut self, data: &SegList) -> Buf {
        let mut buf = self.pool.get(data.bytes());
        data.copy_to(&mut buf);
        self.copied_bytes += data.bytes() as u64;
        buf
    }

    fn write(&mut self, mut io: Io) {
        // Whoever wrote it may have it still, to send it again.
        let mut buf = self.copy_of(&io.data);
        self.cipher.encrypt(self.block_bytes as usize, io.offset / self.block_bytes, &mut buf);
        io.data = SegList::of(buf.freeze());
        let token = io.token;
        self.hand_down(io, token, Kind::Plain);
    }

    /// Writes the next zeroes of these.
    fn write_zeroes(&mut self, whole: Io, at: u64) {
        let longest = ZEROES_BYTES.min(self.below.geometry().io_bytes_max.into());
        let len = (whole.offset + whole.len - at).min(longest);
        let mut buf = self.pool.get_zeroed(len as usize);
        self.cipher.encrypt(self.block_bytes as usize, at / self.block_bytes, &mut buf);
        let mut io = Io { flags: whole.flags, ..Io::new(0, Op::Write, at, len) };
        io.flags.no_hole = false;
        io.data = SegList::of(buf.freeze());
        let token = whole.token;
        self.hand_down(io, token, Kind::Zeroes { whole, at: at + len });
    }

    fn decrypt(&mut self, offset: u64, mut data: SegList) -> SegList {
        let (block, first) = (self.block_bytes as usize, offset / self.block_bytes);
        if data.single().is_some()
            && let Some(mut segment) = data.pop()
        {
            if let Some(bytes) = segment.try_make_mut() {
                self.cipher.decrypt(block, first, bytes);
                return SegList::of(segment);
            }
            data.push(segment);
        }
        let mut buf = self.copy_of(&data);
        self.cipher.decrypt(block, first, &mut buf);
        SegList::of(buf.freeze())
    }

    /// Takes in how an I/O ended below. True if something else of it goes on there.
    fn on_completion(&mut self, mut completion: Completion, done: &mut Vec<Completion>) -> bool {
        let flight = self.flights.remove(completion.token);
        debug_assert!(flight.is_some(), "{} is not outstanding below", completion.token);
        let Some(Flight { token, kind }) = flight else { return false };
        completion.token = token;
        match kind {
            Kind::Plain => {}
            Kind::Read { offset } if completion.result.is_ok() => {
                completion.data = self.decrypt(offset, std::mem::take(&mut completion.data));
            }
            Kind::Read { .. } => {}
            Kind::Zeroes { whole, at } => match &mut completion.result {
                Ok(()) if at < whole.offset + whole.len => {
                    self.write_zeroes(whole, at);
                    return true;
                }
                Ok(()) => {}
                Err(error) => {
                    let IoError { kind, module, .. } = *error;
                    *error = IoError { module, ..whole.error(kind, module) };
                }
            },
        }
        self.outstanding -= 1;
        done.push(completion);
        false
    }
}

impl Layer for Crypt {
    type Below = Composite<Under>;

    fn below(&self) -> &Self::Below {
        &self.below
    }

    fn below_mut(&mut self) -> &mut Self::Below {
        &mut self.below
    }

    fn take(&mut self, io: Io) {
        self.outstanding += 1;
        let (token, offset, len) = (io.token, io.offset, io.len);
        match io.op {
            Op::Write => self.write(io),
            Op::Read => self.hand_down(io, token, Kind::Read { offset }),
            Op::WriteZeroes => self.write_zeroes(io, offset),
            Op::BlockStatus if self.canary == CryptCanary::ClaimsZeroes => {
                self.hand_down(io, token, Kind::Plain);
            }
            Op::BlockStatus => {
                let mut answer = Completion::new(token, Ok(()));
                answer.extents.push(Extent { len, hole: false, zero: false });
                self.ready.push(answer);
            }
            Op::Flush | Op::Discard | Op::Cut | Op::LoadWriter | Op::StoreWriter => {
                self.hand_down(io, token, Kind::Plain);
            }
        }
    }

    fn bring(&mut self, done: &mut Vec<Completion>) {
        let mut inbox = std::mem::take(&mut self.inbox);
        // What goes on must be on its way in this poll: nobody would wake us.
        let mut goes_on = true;
        while std::mem::take(&mut goes_on) {
            self.below.poll(&mut inbox);
            for completion in inbox.drain(..) {
                goes_on |= self.on_completion(completion, done);
            }
        }
        self.inbox = inbox;
        self.outstanding -= self.ready.len();
        done.append(&mut self.ready);
    }

    fn taken(&self) -> usize {
        self.outstanding
    }

    fn own_copied_bytes(&self) -> u64 {
        self.copied_bytes
    }
}

/// The part, as it is.
pub struct Under;

impl Layout for Under {
    const NAME: &'static str = Crypt::NAME;

    #[inline]
    fn submit(&mut self, io: Io, below: &mut Below) {
        below.pass_on(0, io.offset, io);
    }

    fn grow(&mut self, _: usize, bytes: u64, whole: &Geometry) -> Option<u64> {
        let block = u64::from(whole.block_bytes);
        Some(bytes / block * block)
    }
}
