//! Who reads a volume from front to back, and what is worth reading before it is asked for.

use std::ops::Range;

/// As many readers are told apart.
pub(super) const STREAMS: usize = 8;

/// So many reads, each behind the one before, are a stream.
const READS_MIN: u32 = 3;

/// A stream keeps its place beside so many reads that are none.
const PATIENCE: u64 = 1024;

#[derive(Clone, Copy, Default)]
struct Stream {
    /// Where its next read begins, in bytes.
    next: u64,
    /// Up to where has been read for it.
    ahead: u64,
    reads: u32,
    /// When it last read, counted in reads of all.
    at: u64,
}

pub(super) struct Streams {
    streams: [Stream; STREAMS],
    /// How far ahead of a stream is read, in bytes.
    window: u64,
    reads: u64,
}

impl Streams {
    /// Reads up to `window` bytes ahead of each: none, nothing.
    pub fn new(window: u64) -> Self {
        Streams { streams: [Stream::default(); STREAMS], window, reads: 0 }
    }

    /// Somebody reads this range, and `lacks` it, or had it only because it was read ahead: what is to be read ahead
    /// of it, in bytes, which may be beyond the end of the volume.
    #[inline]
    pub fn on_read(&mut self, start: u64, end: u64, lacks: bool) -> Option<Range<u64>> {
        self.reads += 1;
        let at = self.reads;
        if let Some(stream) = self.streams.iter_mut().find(|s| s.next == start && s.reads > 0) {
            let Stream { ahead, reads, .. } = *stream;
            let reads = reads.saturating_add(1);
            *stream = Stream { next: end, ahead, reads, at };
            // By half windows, so that reads are long.
            if !lacks || reads < READS_MIN || ahead >= end.saturating_add(self.window / 2) {
                return None;
            }
            stream.ahead = end.saturating_add(self.window);
            return (self.window > 0).then_some(ahead.max(end)..stream.ahead);
        }
        let is_running = |s: &Stream| s.reads >= READS_MIN && at - s.at <= PATIENCE;
        let worst = self.streams.iter_mut().min_by_key(|s| (is_running(s), s.at));
        *worst.expect("there are some") = Stream { next: end, ahead: 0, reads: 1, at };
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_in_order_is_read_ahead_by_half_windows() {
        let mut streams = Streams::new(64);
        let mut read = |start| streams.on_read(start, start + 8, true);
        assert_eq!([read(0), read(8)], [None, None]);
        assert_eq!(read(16), Some(24..88));
        assert_eq!([read(24), read(32), read(40), read(48)], [const { None }; 4]);
        assert_eq!(read(56), Some(88..128));
        // Who jumps, or reads one place again and again, is none.
        for start in [500, 600, 700, 500, 500, 500] {
            assert_eq!(read(start), None);
        }
        let mut streams = Streams::new(0);
        assert!((0..100).all(|at| streams.on_read(at, at + 1, true).is_none()));
    }

    #[test]
    fn what_is_all_here_is_not_read_ahead_until_something_lacks() {
        let mut streams = Streams::new(64);
        assert!((0..100).all(|at| streams.on_read(at, at + 1, false).is_none()));
        assert_eq!(streams.on_read(100, 101, true), Some(101..165));
        // Nor beyond what an offset can be.
        let end = u64::MAX - 10;
        (0..2).for_each(|nth| _ = streams.on_read(end - 3 + nth, end - 2 + nth, true));
        assert_eq!(streams.on_read(end - 1, end, true), Some(end..u64::MAX));
    }

    #[test]
    fn a_stream_keeps_its_place_beside_others_for_a_while() {
        for (others, is_kept) in [(7, true), (PATIENCE, true), (PATIENCE + 8, false)] {
            let mut streams = Streams::new(64);
            (0..3).for_each(|nth| _ = streams.on_read(nth, nth + 1, true));
            for other in 0..others {
                assert_eq!(streams.on_read(1000 + 2 * other, 1001 + 2 * other, true), None);
            }
            let found = streams.on_read(3, 60, true);
            assert_eq!(found, is_kept.then_some(67..124), "{others}");
        }
    }
}
