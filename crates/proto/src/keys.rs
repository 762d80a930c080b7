//! The keys of a session on its frames (`docs/protocol.md`, "Frame header", "Keys"): sealing what is sent,
//! opening what is received, and when to go to the next phase.
//!
//! Whose memory may be changed is said in `docs/design.md`, "Whose buffer a seal may change".

use std::fmt;
use std::time::Duration;

use thinwire_buffer::{Buf, PAGE_BYTES, Pool, RxFrame, SegList, TxFrame};
use thinwire_seal::{Opener, Sealer, Seals, Suite, WhichPhase};
use thinwire_wire::{FrameError, Header, PUBLIC_BYTES, TAG_AT, TAG_BYTES};

use crate::Time;
use crate::path::Path;

/// Openings that fail before the keys of a direction count as worn out: RFC 9001, section 6.6, allows
/// 2^36 with the weakest of the suites.
const FAILURES_MAX: u64 = 1 << 36;

/// The least probe timeout that frames under a former key are waited for, three times.
const LATE_MIN: Duration = Duration::from_millis(10);

/// How long one key seals, at most: whatever comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RekeyLimits {
    /// Frames over all paths. Default: 2^30.
    pub frames: u64,
    /// Bytes of these frames. Default: 512 GiB.
    pub bytes: u64,
    /// Default: a day.
    pub time: Duration,
}

impl Default for RekeyLimits {
    fn default() -> Self {
        RekeyLimits { frames: 1 << 30, bytes: 512 << 30, time: Duration::from_secs(24 * 60 * 60) }
    }
}

/// The keys of one end of a session.
pub struct SessionKeys {
    sealer: Sealer,
    opener: Opener,
    limits: RekeyLimits,
    /// Of what is encrypted.
    pool: Pool,
    /// Since when this end seals with the present key.
    phase_since: Time,
    /// Something that was sealed with it has been acknowledged: so the peer has it.
    is_confirmed: bool,
    /// When the peer's former key is forgotten.
    forget_at: Time,
    /// Phases that this end has begun, after the first.
    advances: u64,
}

impl fmt::Debug for SessionKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SessionKeys { sealer, opener, .. } = self;
        f.debug_struct("SessionKeys")
            .field("sealer", sealer)
            .field("opener", opener)
            .finish_non_exhaustive()
    }
}

impl SessionKeys {
    /// Those that a handshake has just given. What this end encrypts goes into buffers of `pool`.
    pub fn new(now: Time, seals: Seals, limits: RekeyLimits, pool: Pool) -> Self {
        let Seals { sealer, opener } = seals;
        SessionKeys {
            sealer,
            opener,
            limits,
            pool,
            phase_since: now,
            is_confirmed: false,
            forget_at: Time::NEVER,
            advances: 0,
        }
    }

    /// The suite that was agreed.
    pub fn suite(&self) -> Suite {
        self.sealer.suite()
    }

    /// Phases that this end has begun, after the first.
    pub fn advances(&self) -> u64 {
        self.advances
    }

    /// So many forgeries have been tried that one might succeed: the session must end.
    pub fn are_worn(&self) -> bool {
        self.opener.failures() >= FAILURES_MAX
    }

    /// Names suite and key in the header of a frame that is going to be sealed.
    #[inline]
    pub(crate) fn stamp(&self, header: &mut Header) {
        header.suite = self.suite().number();
        header.key_phase = self.sealer.phase();
    }

    /// Seals a frame whose header has been written, [stamped](SessionKeys::stamp) and with an empty tag.
    /// Its number is spent: the frame is sent as it is from now on, or not at all. What it has by
    /// reference is not changed: it is copied, once, if the suite hides.
    #[inline(never)]
    pub(crate) fn seal(&self, header: &Header, frame: &mut TxFrame) {
        let (path, number) = (header.path, header.packet_number);
        let TxFrame { head, data, .. } = frame;
        debug_assert_eq!(head[TAG_AT..][..TAG_BYTES], [0; TAG_BYTES]);
        let (public, body) = head.split_at_mut(PUBLIC_BYTES);
        let (open, place) = public.split_at_mut(TAG_AT);
        if !self.suite().hides() {
            let parts = std::iter::once(&*body).chain(data.iter().map(|segment| &segment[..]));
            place.copy_from_slice(&self.sealer.tag(path, number, open, parts));
            return;
        }
        if data.is_empty() {
            place.copy_from_slice(&self.sealer.seal(path, number, open, body));
            return;
        }
        let mut hidden = self.pool.get(body.len() + data.bytes());
        hidden[..body.len()].copy_from_slice(body);
        let mut at = body.len();
        for segment in data.iter() {
            hidden[at..at + segment.len()].copy_from_slice(segment);
            at += segment.len();
        }
        place.copy_from_slice(&self.sealer.seal(path, number, open, &mut hidden));
        head.truncate(PUBLIC_BYTES);
        *data = SegList::of(hidden.freeze());
    }

    /// Opens a received frame: in place if nobody else has its memory, else into a buffer of `pool`, in
    /// which its payload begins at a page border again; that copy is counted in `copied_bytes`.
    pub(crate) fn open(
        &self,
        header: &Header,
        rx: &mut RxFrame,
        pool: &Pool,
        copied_bytes: &mut u64,
    ) -> Result<WhichPhase, FrameError> {
        if header.suite != self.suite().number() {
            return Err(FrameError::Suite);
        }
        let (phase, path, number) = (header.key_phase, header.path, header.packet_number);
        let length = usize::from(header.length);
        let public: [u8; PUBLIC_BYTES] = *rx.bytes.first_chunk().ok_or(FrameError::Truncated)?;
        let open: &[u8] = &public[..TAG_AT];
        let tag: &[u8; TAG_BYTES] = public[TAG_AT..].first_chunk().expect("as many bytes");
        let opener = &self.opener;
        if !self.suite().hides() {
            let mut left = length;
            let parts = rx.pieces().map(|piece| {
                let here = left.min(piece.len());
                left -= here;
                &piece[..here]
            });
            // Of the first piece what is behind the tag.
            let parts = parts.enumerate().map(|(at, part)| match at {
                0 => &part[PUBLIC_BYTES.min(part.len())..],
                _ => part,
            });
            let checked = opener.check(phase, path, number, open, tag, parts);
            return checked.map_err(|_| FrameError::Forged);
        }
        if rx.bytes.len() >= length {
            if let Some(own) = rx.bytes.try_make_mut() {
                let body = &mut own[PUBLIC_BYTES..length];
                let opened = opener.open_in_place(phase, path, number, open, tag, body);
                return opened.map_err(|_| FrameError::Forged);
            }
            let (mut whole, at) = placed(pool, header);
            let body = &rx.bytes[PUBLIC_BYTES..length];
            let out = &mut whole[at + PUBLIC_BYTES..];
            let opened = opener.open(phase, path, number, open, tag, body, out);
            let which = opened.map_err(|_| FrameError::Forged)?;
            whole[at..at + PUBLIC_BYTES].copy_from_slice(&public);
            *copied_bytes += length as u64;
            rx.bytes = whole.freeze().slice(at, length);
            return Ok(which);
        }
        let (mut whole, at) = placed(pool, header);
        rx.copy_to(0, &mut whole[at..]);
        *copied_bytes += length as u64;
        let body = &mut whole[at + PUBLIC_BYTES..];
        let opened = opener.open_in_place(phase, path, number, open, tag, body);
        let which = opened.map_err(|_| FrameError::Forged)?;
        rx.bytes = whole.freeze().slice(at, length);
        rx.rest = SegList::new();
        Ok(which)
    }

    /// A frame was opened with the key of that phase. If it is the peer's next one, the former is kept
    /// for frames that are late, for as long as `late` says.
    #[inline]
    pub(crate) fn on_opened(
        &mut self,
        now: Time,
        which: WhichPhase,
        late: impl FnOnce() -> Duration,
    ) {
        if which == WhichPhase::Next {
            self.opener.advance();
            self.forget_at = now + late();
        }
    }

    /// Forgets the peer's former key when nothing can be on its way any more that was sealed with it.
    #[inline]
    pub(crate) fn on_time(&mut self, now: Time) {
        if now >= self.forget_at {
            self.opener.forget_previous();
            self.forget_at = Time::NEVER;
        }
    }

    /// Something that was sealed in this phase has been acknowledged.
    #[inline]
    pub(crate) fn confirm(&mut self) {
        self.is_confirmed = true;
    }

    /// Whether this end is to go to its next key before it seals another frame: the present one has been
    /// used long enough, the peer has it, and what was sealed with the one before is not on its way any
    /// more, as `late` tells: the peer has two at a time.
    #[inline]
    pub(crate) fn are_due(&self, now: Time, late: impl FnOnce() -> Duration) -> bool {
        let (frames, bytes) = self.sealer.spent();
        let RekeyLimits { frames: frames_max, bytes: bytes_max, time } = self.limits;
        self.is_confirmed
            && (frames >= frames_max || bytes >= bytes_max || now >= self.phase_since + time)
            && (self.advances == 0 || now >= self.phase_since + late())
    }

    /// Goes to the next key.
    pub(crate) fn advance(&mut self, now: Time) {
        self.sealer.advance();
        self.phase_since = now;
        self.is_confirmed = false;
        self.advances += 1;
    }
}

/// How late a frame may come that was sealed with a former key: three probe timeouts of the slowest path.
pub(crate) fn late(paths: &[Path]) -> Duration {
    let slowest = paths.iter().map(|path| path.rtt.probe_timeout()).max();
    slowest.unwrap_or(LATE_MIN).max(LATE_MIN) * 3
}

/// A buffer for a frame whose payload is to begin at a page border, and where in it the frame begins.
fn placed(pool: &Pool, header: &Header) -> (Buf, usize) {
    let at = (PAGE_BYTES - usize::from(header.data_offset) % PAGE_BYTES) % PAGE_BYTES;
    (pool.get(at + usize::from(header.length)), at)
}
