//! What is being read before anybody has asked for it, and who has asked for it meanwhile.

use std::collections::VecDeque;
use std::ops::Range;

use super::PAGE;
use super::streams::{STREAMS, Streams};
use thinwire_volume::Io;

/// How far ahead of a stream is read, in bytes, at most, and in reads of which length.
const WINDOW_MAX: u64 = 1 << 20;
pub(super) const READ_BYTES_MAX: u64 = 128 << 10;
/// Such reads that are under way together, at most: 4 MiB.
const READS_MAX: usize = 32;

/// Numbers are those of the cache's `Changes`.
pub(super) struct Ahead {
    pub streams: Streams,
    /// By number, which bytes.
    running: Vec<(u64, Range<u64>)>,
    /// Reads of what is being read ahead: each waits for what of that was under way when it came, that is, has a
    /// smaller number than this.
    late: VecDeque<(Io, u64)>,
}

fn overlap(one: &Range<u64>, start: u64, end: u64) -> bool {
    one.start < end && start < one.end
}

impl Ahead {
    /// For a cache of which so many bytes may not have been read again: what is read ahead of all streams is no more
    /// than that, or it would push itself out.
    pub fn new(small_bytes: u64) -> Self {
        let window = WINDOW_MAX.min(small_bytes / STREAMS as u64) / PAGE * PAGE;
        let running = Vec::with_capacity(READS_MAX);
        Ahead { streams: Streams::new(window), running, late: VecDeque::new() }
    }

    /// There may be no more of them.
    pub fn is_full(&self) -> bool {
        self.running.len() >= READS_MAX
    }

    pub fn begin(&mut self, number: u64, range: Range<u64>) {
        self.running.push((number, range));
    }

    pub fn end(&mut self, number: u64) {
        self.running.retain(|&(other, _)| other != number);
    }

    /// Something of these bytes is being read ahead, under a number smaller than `before`.
    #[inline]
    pub fn is_coming(&self, start: u64, end: u64, before: u64) -> bool {
        let waits =
            |(number, range): &(u64, Range<u64>)| *number < before && overlap(range, start, end);
        self.running.iter().any(waits)
    }

    /// A read waits for what is under way, whose numbers are smaller than `before`.
    pub fn wait(&mut self, read: Io, before: u64) {
        self.late.push_back((read, before));
    }

    /// Somebody waits.
    pub fn is_awaited(&self) -> bool {
        !self.late.is_empty()
    }

    /// How many wait.
    pub fn late(&self) -> usize {
        self.late.len()
    }

    /// The next that has nothing to wait for any more, in the order in which they came. `left` are those that have
    /// not been looked at, all of them at first: each is looked at once, and who asks goes on until there are none.
    pub fn next_late(&mut self, left: &mut usize) -> Option<Io> {
        while *left > 0 {
            *left -= 1;
            let (io, before) = self.late.pop_front()?;
            if !self.is_coming(io.offset, io.offset + io.len, before) {
                return Some(io);
            }
            self.late.push_back((io, before));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thinwire_volume::Op;

    #[test]
    fn who_waits_waits_for_nothing_that_came_later() {
        let mut ahead = Ahead::new(1 << 20);
        let read = |token, offset| Io::new(token, Op::Read, offset, 20);
        let under_way = [(0, 0..10), (1, 10..20), (3, 15..20)];
        under_way.into_iter().for_each(|(number, range)| ahead.begin(number, range));
        assert!(ahead.is_coming(19, 21, 2) && !ahead.is_coming(20, 30, 9));
        ahead.wait(read(7, 0), 2);
        ahead.wait(read(8, 10), 2);
        let pass = |ahead: &mut Ahead| {
            let mut left = ahead.late();
            let due = std::iter::from_fn(|| ahead.next_late(&mut left));
            due.map(|read| read.token).collect::<Vec<_>>()
        };
        ahead.end(0);
        assert_eq!(pass(&mut ahead), []);
        ahead.end(1);
        // What has number 3 could go on and on.
        assert_eq!(pass(&mut ahead), [7, 8]);
        assert!(!ahead.is_awaited());
        // Between others that go on waiting, who keep their order.
        [(4, 40..50), (5, 60..70)]
            .into_iter()
            .for_each(|(number, range)| ahead.begin(number, range));
        let late = [(1, 40), (2, 60), (3, 45), (4, 65), (5, 41)];
        late.into_iter().for_each(|(token, offset)| ahead.wait(read(token, offset), 6));
        ahead.end(5);
        assert_eq!((pass(&mut ahead), ahead.late()), (vec![2, 4], 3));
        ahead.end(4);
        assert_eq!(pass(&mut ahead), [1, 3, 5]);
    }
}
