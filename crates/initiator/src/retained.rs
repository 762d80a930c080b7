//! Completed writes that no flush has covered yet (`docs/protocol.md`, "Restart and replay";
//! rule 4).
//!
//! A log in the order of completion. Writes that overlap are never outstanding together (rule 5), so
//! replaying the log in order, overlaps one after the other, leaves every block with its newest
//! effect; a flush covers a prefix of it. Compared with a map from ranges to effects it allocates
//! nothing and costs O(1) a write; what it costs is memory for blocks written more than once
//! between two flushes, which the bound limits.

use std::collections::VecDeque;

use thinwire_buffer::SegList;
use thinwire_volume::{IoFlags, Op};

/// Entries at most, whatever their size: the log's own memory is made once.
pub(crate) const ENTRIES_MAX: usize = 16_384;

/// One completed effect.
#[derive(Debug)]
pub(crate) struct Effect {
    pub op: Op,
    pub flags: IoFlags,
    pub offset: u64,
    pub len: u64,
    /// Shared with the application's buffer, which nobody writes any more.
    pub data: SegList,
    /// The target's verifier under which it took effect.
    pub verifier: u64,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Retained {
    log: VecDeque<Effect>,
    /// Number of the first entry since the beginning.
    first: u64,
    bytes: usize,
}

impl Retained {
    pub fn new() -> Self {
        Retained { log: VecDeque::with_capacity(ENTRIES_MAX + 1024), first: 0, bytes: 0 }
    }

    pub fn is_empty(&self) -> bool {
        self.log.is_empty()
    }

    pub fn len(&self) -> usize {
        self.log.len()
    }

    /// Bytes of memory that it keeps alive.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The number that the next entry will have: a flush issued now covers all below it.
    pub fn mark(&self) -> u64 {
        self.first + self.log.len() as u64
    }

    fn weight(effect: &Effect) -> usize {
        effect.data.iter().map(|s| s.len().max(4096)).sum()
    }

    pub fn push(&mut self, effect: Effect) {
        self.bytes += Self::weight(&effect);
        self.log.push_back(effect);
    }

    /// True if every entry below `mark` has this verifier.
    pub fn all_under(&self, mark: u64, verifier: u64) -> bool {
        let count = (mark.saturating_sub(self.first) as usize).min(self.log.len());
        self.log.iter().take(count).all(|e| e.verifier == verifier)
    }

    /// A flush covered everything below `mark`.
    pub fn flushed(&mut self, mark: u64) {
        while self.first < mark {
            let Some(effect) = self.log.pop_front() else { break };
            self.first += 1;
            self.bytes -= Self::weight(&effect);
        }
    }

    pub fn get_mut(&mut self, number: u64) -> Option<&mut Effect> {
        self.log.get_mut(number.checked_sub(self.first)? as usize)
    }

    /// Number of the oldest entry.
    pub fn first(&self) -> u64 {
        self.first
    }

    pub fn clear(&mut self) {
        let mark = self.mark();
        self.flushed(mark);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn effect(offset: u64, verifier: u64) -> Effect {
        let (op, flags) = (Op::Discard, IoFlags::default());
        Effect { op, flags, offset, len: 512, data: SegList::new(), verifier }
    }

    #[test]
    fn a_flush_covers_what_completed_before_it() {
        let mut r = Retained::new();
        r.push(effect(0, 1));
        let mark = r.mark();
        r.push(effect(512, 2));
        assert!(r.all_under(mark, 1) && !r.all_under(r.mark(), 1));
        r.flushed(mark);
        assert_eq!((r.len(), r.first()), (1, 1));
        assert_eq!(r.get_mut(1).unwrap().offset, 512);
        assert!(r.get_mut(0).is_none());
        r.flushed(mark);
        assert_eq!(r.len(), 1);
    }
}
