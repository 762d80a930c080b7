//! What a connection has heard and not yet understood.

use std::io::{self, IoSliceMut};
use std::os::fd::AsFd;

use thinwire_buffer::{Buf, Pool, SegList};

use super::proto::REQUEST_BYTES;
use crate::effort::Effort;

/// Most bytes taken ahead in one call: several hundred requests without payload.
const INPUT_BYTES: usize = 64 << 10;
/// What is taken ahead at first where a long payload has begun, since another one may follow: it would land here and
/// be copied. So it is kept short; it still holds 18 requests.
const INPUT_BYTES_SHORT: usize = 512;
/// So many times as much is taken ahead next when all that was asked for has come.
const GROWTH: usize = 4;
/// Payloads from here on go straight to where they belong; shorter ones cost more in system calls
/// than in copying.
pub(super) const DIRECT_BYTES_MIN: u32 = 16 << 10;
/// A payload is kept in pieces of at most this size, allocated as it arrives, so that a client
/// holds no memory it has not filled.
const PIECE_BYTES: usize = 1 << 20;

/// How a call to the socket went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// Something came, and more may be waiting.
    Much,
    /// Something came; the socket is empty now.
    Little,
    /// The socket was empty.
    Nothing,
    /// The client sends no more.
    End,
}

/// Bytes taken ahead. Holds memory only while it holds bytes.
pub(super) struct Input {
    buf: Option<Buf>,
    start: usize,
    end: usize,
    /// How much to take ahead: as much as the client sends without long payloads.
    window: usize,
    /// The last request has a long payload.
    after_long: bool,
}

impl Default for Input {
    fn default() -> Self {
        Input { buf: None, start: 0, end: 0, window: INPUT_BYTES, after_long: false }
    }
}

impl Input {
    /// The next request was understood. After two with long payloads a third is expected: only its head is taken
    /// ahead, and its payload goes all where it belongs.
    pub(super) fn understood(&mut self, has_long_payload: bool) {
        if has_long_payload {
            self.window = if self.after_long { REQUEST_BYTES } else { INPUT_BYTES_SHORT };
        }
        self.after_long = has_long_payload;
    }

    /// The bytes there are.
    pub(super) fn bytes(&self) -> &[u8] {
        self.buf.as_ref().map_or(&[], |buf| &buf[self.start..self.end])
    }

    /// The first `N` bytes, if there are so many.
    pub(super) fn peek<const N: usize>(&self) -> Option<[u8; N]> {
        self.bytes().first_chunk().copied()
    }

    /// Lets go of the first `len` bytes.
    pub(super) fn consume(&mut self, len: usize) {
        self.start += len;
        debug_assert!(self.start <= self.end);
        if self.start == self.end {
            (self.buf, self.start, self.end) = (None, 0, 0);
        }
    }

    /// Takes more from the socket, as far as there is `effort` for it: first into `payload`, the rest here.
    pub(super) fn fill(
        &mut self,
        socket: impl AsFd,
        payload: Option<&mut Payload>,
        pool: &Pool,
        effort: &mut Effort,
    ) -> io::Result<Heard> {
        let buf = self.buf.get_or_insert_with(|| pool.get(INPUT_BYTES));
        if self.start > 0 {
            buf.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        let window = self.window.max(self.end + 1).min(INPUT_BYTES);
        let ahead = &mut buf[self.end..window];
        let mut hole: &mut [u8] = &mut [];
        let mut is_last = true;
        let mut payload = payload;
        if let Some(payload) = payload.as_deref_mut() {
            debug_assert_eq!(self.end, 0, "what was taken ahead goes first");
            (hole, is_last) = payload.hole(pool);
            let room = effort.room_for(hole.len());
            if hole.len() > room {
                (hole, is_last) = (&mut hole[..room], false);
            }
        }
        let hole_len = hole.len();
        let offered = hole_len + if is_last { ahead.len() } else { 0 };
        let mut slices = [IoSliceMut::new(hole), IoSliceMut::new(ahead)];
        let slices = match (hole_len > 0, is_last) {
            (true, true) => &mut slices[..],
            (true, false) => &mut slices[..1],
            (false, _) => &mut slices[1..],
        };
        let result = rustix::io::readv(socket, slices);
        let heard = match result {
            Ok(0) => Ok(Heard::End),
            Ok(len) => {
                effort.copy(len);
                if let Some(payload) = payload {
                    payload.advance(len.min(hole_len));
                }
                self.end += len.saturating_sub(hole_len);
                if self.end == window {
                    self.window = (window * GROWTH).min(INPUT_BYTES);
                }
                Ok(if len == offered { Heard::Much } else { Heard::Little })
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(Heard::Nothing),
            Err(error) => Err(error.into()),
        };
        if self.end == 0 {
            self.buf = None;
        }
        heard
    }
}

/// A write's payload while it arrives, in page-aligned pieces.
pub(super) struct Payload {
    done: SegList,
    piece: Option<Buf>,
    filled: usize,
    /// Bytes that are not here yet.
    left: usize,
}

impl Payload {
    /// A payload of `len` bytes, none of them here.
    pub(super) fn new(len: usize) -> Self {
        Payload { done: SegList::new(), piece: None, filled: 0, left: len }
    }

    pub(super) fn is_whole(&self) -> bool {
        self.left == 0
    }

    /// Where the next bytes go, and whether the payload is whole once this is filled.
    fn hole(&mut self, pool: &Pool) -> (&mut [u8], bool) {
        let left = self.left;
        let piece = self.piece.get_or_insert_with(|| pool.get(left.min(PIECE_BYTES)));
        let hole = &mut piece[self.filled..];
        let is_last = hole.len() == left;
        (hole, is_last)
    }

    fn advance(&mut self, len: usize) {
        self.filled += len;
        self.left -= len;
        if self.piece.as_ref().is_some_and(|piece| piece.len() == self.filled) {
            self.done.push(self.piece.take().expect("a piece").freeze());
            self.filled = 0;
        }
    }

    /// Copies what there is of it in `bytes`; returns how many that were.
    pub(super) fn take(&mut self, bytes: &[u8], pool: &Pool) -> usize {
        let mut taken = 0;
        while taken < bytes.len() && self.left > 0 {
            let (hole, _) = self.hole(pool);
            let len = hole.len().min(bytes.len() - taken);
            hole[..len].copy_from_slice(&bytes[taken..taken + len]);
            self.advance(len);
            taken += len;
        }
        taken
    }

    /// The whole payload.
    pub(super) fn finish(self) -> SegList {
        debug_assert!(self.is_whole());
        self.done
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn turn() -> Effort {
        Effort::of_a_turn()
    }

    #[test]
    fn a_payload_goes_where_it_belongs_and_the_rest_stays_here() {
        let pool = Pool::new(16 << 20);
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let mut input = Input::default();
        assert_eq!(input.fill(&ours, None, &pool, &mut turn()).unwrap(), Heard::Nothing);
        assert_eq!(pool.stats().live_bytes, 0, "an idle connection holds nothing");
        let stream: Vec<u8> = (0..3_000_000u32).map(|n| (n % 253) as u8).collect();
        let len = 2_900_001;
        let mut payload = Payload::new(len);
        let mut at = 0;
        while !payload.is_whole() {
            let next = (at + 100_000).min(stream.len());
            theirs.write_all(&stream[at..next]).unwrap();
            at = next;
            while input.bytes().is_empty()
                && input.fill(&ours, Some(&mut payload), &pool, &mut turn()).unwrap() == Heard::Much
                && !payload.is_whole()
            {}
        }
        let payload = payload.finish();
        assert_eq!(payload.iter().count(), 3);
        assert!(payload.to_vec() == stream[..len]);
        let ahead = input.bytes().to_vec();
        assert!(ahead == stream[len..len + ahead.len()]);
        input.consume(ahead.len());
        drop(theirs);
        while input.fill(&ours, None, &pool, &mut turn()).unwrap() != Heard::End {
            let len = input.bytes().len();
            input.consume(len);
        }
    }

    /// How many bytes each call takes of a stream without payloads.
    fn sips(input: &mut Input, bytes: usize) -> Vec<usize> {
        let pool = Pool::new(16 << 20);
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        theirs.write_all(&vec![0; bytes]).unwrap();
        let mut sips = Vec::new();
        while sips.iter().sum::<usize>() < bytes {
            input.fill(&ours, None, &pool, &mut turn()).unwrap();
            sips.push(input.bytes().len());
            input.consume(input.bytes().len());
        }
        sips
    }

    /// Little where it would be copied, much where it saves calls; and one long write is soon forgotten.
    #[test]
    fn what_is_taken_ahead_follows_what_the_client_sends() {
        let mut input = Input::default();
        assert_eq!(sips(&mut input, 100_000), [65_536, 34_464]);
        input.understood(true);
        assert_eq!(sips(&mut input, 28), [28]);
        input.understood(false);
        assert_eq!(sips(&mut input, 100_000), [512, 2048, 8192, 32_768, 56_480]);
        assert_eq!(sips(&mut input, 65_536), [65_536]);
        input.understood(true);
        input.understood(true);
        assert_eq!(sips(&mut input, 28 + 4), [28, 4]);
        input.understood(true);
        assert_eq!(sips(&mut input, 600), [28, 112, 448, 12]);
    }
}
