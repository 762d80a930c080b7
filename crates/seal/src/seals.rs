//! The two directions of a session: one seals, one opens, each with keys that change by phases.
//!
//! Phases are those of RFC 9001, section 6: whoever seals goes to the next when it likes, and names
//! the phase in the frame, in the open; whoever opens follows when a frame of the next has come that
//! is no forgery, and keeps the keys of the phase before for frames that were under way.

use std::cell::{Cell, OnceCell};
use std::fmt;

use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::keys::{Chain, Keys, Scratch};
use crate::{Forged, Suite, TAG_BYTES};

/// The two secrets that a handshake ends with. Overwritten when dropped.
#[derive(Zeroize, ZeroizeOnDrop)]
pub struct Secrets {
    to_target: [u8; 32],
    to_initiator: [u8; 32],
}

impl Secrets {
    /// Of what the initiator seals, and of what the target does.
    pub fn new(to_target: [u8; 32], to_initiator: [u8; 32]) -> Self {
        Self { to_target, to_initiator }
    }

    /// The initiator's side.
    pub fn initiator(&self, suite: Suite) -> Seals {
        Seals::new(suite, &self.to_target, &self.to_initiator)
    }

    /// The target's side.
    pub fn target(&self, suite: Suite) -> Seals {
        Seals::new(suite, &self.to_initiator, &self.to_target)
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secrets(..)")
    }
}

/// One end's halves of both directions.
#[derive(Debug)]
pub struct Seals {
    /// Of what this end sends.
    pub sealer: Sealer,
    /// Of what it receives.
    pub opener: Opener,
}

impl Seals {
    fn new(suite: Suite, out: &[u8; 32], back: &[u8; 32]) -> Self {
        Self {
            sealer: Sealer::new(Chain::new(suite, out)),
            opener: Opener::new(Chain::new(suite, back)),
        }
    }

    /// The suite of both.
    pub fn suite(&self) -> Suite {
        self.sealer.suite()
    }
}

/// Seals what one end sends. All its secrets are overwritten when it is dropped, or goes on.
pub struct Sealer {
    chain: Chain,
    keys: Keys,
    frames: Cell<u64>,
    bytes: Cell<u64>,
    scratch: Scratch,
}

impl Sealer {
    fn new(chain: Chain) -> Self {
        let keys = chain.keys();
        Self { chain, keys, frames: Cell::new(0), bytes: Cell::new(0), scratch: Scratch::default() }
    }

    /// Seals `bytes` in place (`docs/protocol.md`, "Frame header") and returns their tag, which
    /// covers `open`, too: what everybody may read and nobody change, of the same length in all
    /// frames. A suite that does not hide leaves `bytes` as they are.
    ///
    /// No two calls in one phase may have the same `path` and `number`: the caller never uses a
    /// packet number twice. Allocates nothing once it has seen the longest frame.
    pub fn seal(&self, path: u8, number: u64, open: &[u8], bytes: &mut [u8]) -> [u8; TAG_BYTES] {
        self.frames.set(self.frames.get() + 1);
        self.bytes.set(self.bytes.get() + (open.len() + bytes.len()) as u64);
        self.keys.seal((path, number), open, bytes, &self.scratch)
    }

    /// The tag that [`Sealer::seal`] would give, of bytes that lie in parts and are left as they are. The
    /// same bounds hold.
    ///
    /// # Panics
    /// If the suite hides: then there is more to be done than to make a tag.
    pub fn tag<'a>(
        &self,
        path: u8,
        number: u64,
        open: &[u8],
        parts: impl Iterator<Item = &'a [u8]>,
    ) -> [u8; TAG_BYTES] {
        let mut bytes = open.len();
        let parts = parts.inspect(|part| bytes += part.len());
        let tag = self.keys.tag((path, number), open, parts, &self.scratch);
        self.frames.set(self.frames.get() + 1);
        self.bytes.set(self.bytes.get() + bytes as u64);
        tag
    }

    /// Frames that were sealed in this phase, and their bytes, open ones included. Callers bound both
    /// and go to the next phase before (RFC 9001, section 6.6).
    pub fn spent(&self) -> (u64, u64) {
        (self.frames.get(), self.bytes.get())
    }

    /// The phase, as frames name it: its low byte.
    pub fn phase(&self) -> u8 {
        self.chain.phase()
    }

    /// Goes to the next phase, for good: nothing that is kept leads back to the keys of this one.
    pub fn advance(&mut self) {
        self.chain = self.chain.next();
        self.keys = self.chain.keys();
        self.frames.set(0);
        self.bytes.set(0);
    }

    /// The suite.
    pub fn suite(&self) -> Suite {
        self.chain.suite()
    }
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (frames, bytes) = self.spent();
        f.debug_struct("Sealer")
            .field("suite", &self.suite())
            .field("phase", &self.phase())
            .field("frames", &frames)
            .field("bytes", &bytes)
            .finish_non_exhaustive()
    }
}

/// Which of its keys an [`Opener`] has opened a frame with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhichPhase {
    /// Those of the phase it is in.
    Current,
    /// Those of the one behind: the peer has gone on, and now it is time for [`Opener::advance`].
    Next,
    /// Those of the one before, which are kept until [`Opener::forget_previous`].
    Previous,
}

/// Opens what one end receives. A forged frame changes nothing but the count of failures, whatever
/// it says. All its secrets are overwritten when it is dropped.
pub struct Opener {
    chain: Chain,
    current: Keys,
    /// Made when the first frame comes that names it, be it forged, and once only.
    next: OnceCell<(Chain, Keys)>,
    previous: Option<Keys>,
    failures: Cell<u64>,
    scratch: Scratch,
}

impl Opener {
    fn new(chain: Chain) -> Self {
        let current = chain.keys();
        Self {
            chain,
            current,
            next: OnceCell::new(),
            previous: None,
            failures: Cell::new(0),
            scratch: Scratch::default(),
        }
    }

    /// Opens in place `bytes` that were sealed with this `path`, `number` and `open`, in the phase
    /// that the frame names, and tells which that is.
    ///
    /// # Errors
    /// [`Forged`] if the tag does not fit, or no keys of that phase are kept. Then `bytes` are zeroes
    /// in the first case and as they were in the second.
    pub fn open_in_place(
        &self,
        phase: u8,
        path: u8,
        number: u64,
        open: &[u8],
        tag: &[u8; TAG_BYTES],
        bytes: &mut [u8],
    ) -> Result<WhichPhase, Forged> {
        let (which, keys) = self.keys_of(phase)?;
        let opened = keys.open_in_place((path, number), open, tag, bytes, &self.scratch);
        self.counted(opened).map(|()| which)
    }

    /// The same from `cipher` to `out`; `cipher` stays as it is.
    ///
    /// # Errors
    /// [`Forged`] as there, and if the two differ in length. Then `out` is zeroes or as it was: it never
    /// holds what was not shown to be true.
    pub fn open(
        &self,
        phase: u8,
        path: u8,
        number: u64,
        open: &[u8],
        tag: &[u8; TAG_BYTES],
        cipher: &[u8],
        out: &mut [u8],
    ) -> Result<WhichPhase, Forged> {
        if cipher.len() != out.len() {
            return Err(Forged);
        }
        let (which, keys) = self.keys_of(phase)?;
        let opened = keys.open((path, number), open, tag, cipher, out, &self.scratch);
        self.counted(opened).map(|()| which)
    }

    /// Whether the tag fits bytes that lie in parts and were left as they are.
    ///
    /// # Errors
    /// [`Forged`] as with [`Opener::open_in_place`].
    ///
    /// # Panics
    /// If the suite hides.
    pub fn check<'a>(
        &self,
        phase: u8,
        path: u8,
        number: u64,
        open: &[u8],
        tag: &[u8; TAG_BYTES],
        parts: impl Iterator<Item = &'a [u8]>,
    ) -> Result<WhichPhase, Forged> {
        let (which, keys) = self.keys_of(phase)?;
        let checked = keys.check((path, number), open, tag, parts, &self.scratch);
        self.counted(checked).map(|()| which)
    }

    fn keys_of(&self, phase: u8) -> Result<(WhichPhase, &Keys), Forged> {
        match phase.wrapping_sub(self.phase()) {
            0 => Ok((WhichPhase::Current, &self.current)),
            1 => {
                let (_, keys) = self.next.get_or_init(|| {
                    let chain = self.chain.next();
                    let keys = chain.keys();
                    (chain, keys)
                });
                Ok((WhichPhase::Next, keys))
            }
            u8::MAX => {
                let keys = self.previous.as_ref().ok_or(Forged)?;
                Ok((WhichPhase::Previous, keys))
            }
            _ => Err(Forged),
        }
    }

    fn counted(&self, opened: Result<(), Forged>) -> Result<(), Forged> {
        if opened.is_err() {
            self.failures.set(self.failures.get() + 1);
        }
        opened
    }

    /// How many tags did not fit, in all phases together. Callers bound it (RFC 9001, section 6.6).
    pub fn failures(&self) -> u64 {
        self.failures.get()
    }

    /// The phase it is in, as frames name it: its low byte.
    pub fn phase(&self) -> u8 {
        self.chain.phase()
    }

    /// Goes to the next phase. The keys of this one still open frames that were under way; those of
    /// the one before do no more.
    pub fn advance(&mut self) {
        let (chain, keys) = self.next.take().unwrap_or_else(|| {
            let chain = self.chain.next();
            let keys = chain.keys();
            (chain, keys)
        });
        self.chain = chain;
        self.previous = Some(std::mem::replace(&mut self.current, keys));
    }

    /// Lets go of the keys of the phase before: what is still under way is lost.
    pub fn forget_previous(&mut self) {
        self.previous = None;
    }

    /// Whether the keys of the phase before are kept.
    pub fn has_previous(&self) -> bool {
        self.previous.is_some()
    }

    /// The suite.
    pub fn suite(&self) -> Suite {
        self.chain.suite()
    }
}

impl fmt::Debug for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opener")
            .field("suite", &self.suite())
            .field("phase", &self.phase())
            .field("previous", &self.has_previous())
            .field("failures", &self.failures())
            .finish_non_exhaustive()
    }
}
