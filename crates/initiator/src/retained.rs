//! Completed writes that no flush has covered yet (`docs/protocol.md`, "Restart and replay";
//! rule 4).
//!
//! A log in the order of completion. Writes that overlap are never outstanding together (rule 5), so
//! replaying the log in order, overlaps one after the other, leaves every block with its newest
//! effect; a flush covers a prefix of it. Compared with a map from ranges to effects it allocates
//! nothing and costs O(1) a write; what it costs is memory for blocks written more than once
//! between two flushes, which the bound limits.
//!
//! An effect with FUA is durable and needs no replay, but what it overlaps must not be replayed
//! either: not even for the moment until it is written again, since the initiator may die in it. So
//! it stays in the log as a *cover*, without its data, and older effects are replayed around it.

use std::collections::VecDeque;

use thinwire_buffer::{Pool, SegList, Segment};
use thinwire_proto::{SumCanary, sums_of_part};
use thinwire_volume::{IoFlags, Op};

use crate::covers::Covers;

/// Entries at most, whatever their size: the log's own memory is made once.
pub(crate) const ENTRIES_MAX: usize = 16_384;

/// Entries and covers that a replay looks at in one turn, and the ranges of them.
pub(crate) const LOOKS_PER_TURN: usize = 1024;

/// Entries that are let go of in one turn: each gives memory back, and a flush may cover all of them.
const FREED_PER_TURN: usize = 256;

/// One completed effect.
#[derive(Debug)]
pub(crate) struct Effect {
    pub op: Op,
    pub flags: IoFlags,
    pub offset: u64,
    pub len: u64,
    /// Shared with the application's buffer, which nobody writes any more.
    pub data: SegList,
    /// Its sums, if it has some: those that were made when it was taken in.
    pub sums: Segment,
    /// It has been sent again once, since it had been altered on its way.
    pub is_second: bool,
    /// The target's verifier under which it took effect.
    pub verifier: u64,
    pub standing: Standing,
}

/// An effect in the log.
#[derive(Debug)]
struct Entry {
    effect: Effect,
    /// Bytes of memory that it keeps alive.
    weight: usize,
}

/// What a replay has to know of an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It took effect under its verifier.
    Done,
    /// It is being sent again; no part of it has been answered.
    Asked,
    /// Parts of it took effect under different verifiers: none vouches for it.
    Mixed,
    /// Durable from the start: a cover.
    Durable,
}

impl Effect {
    fn end(&self) -> u64 {
        self.offset + self.len
    }

    /// The bytes of a write from `from` on.
    fn copy_to(&self, from: u64, out: &mut [u8]) {
        let mut part = SegList::new();
        self.data.slice_into((from - self.offset) as usize, out.len(), &mut part);
        part.copy_to(out);
    }

    /// The sums of a part of it, if it has some; never better than those of all.
    pub fn sums_of_part(&self, from: u64, len: u64, pool: &Pool, canary: SumCanary) -> Segment {
        if self.sums.is_empty() || (from, len) == (self.offset, self.len) {
            return self.sums.clone();
        }
        let (all, part) = ((self.offset, self.len), (from, from + len));
        let read = |from: u64, out: &mut [u8]| self.copy_to(from, out);
        sums_of_part(pool, &self.sums, all, part, canary, read)
    }

    /// A part of it that was sent again took effect.
    pub fn replayed(&mut self, verifier: u64) {
        match self.standing {
            Standing::Asked => (self.verifier, self.standing) = (verifier, Standing::Done),
            Standing::Done if self.verifier != verifier => self.standing = Standing::Mixed,
            Standing::Done | Standing::Mixed | Standing::Durable => {}
        }
    }

    fn is_under(&self, verifier: u64) -> bool {
        match self.standing {
            Standing::Durable => true,
            Standing::Mixed => false,
            Standing::Asked | Standing::Done => self.verifier == verifier,
        }
    }
}

/// The log of completed writes that no flush has covered, in the order of completion.
#[derive(Debug)]
pub(crate) struct Retained {
    log: VecDeque<Entry>,
    /// Number since the beginning of the first in `log`.
    first: u64,
    /// Those below are done with, and are let go of a few at a time ([`Retained::free`]).
    done: u64,
    /// What the others keep alive.
    bytes: usize,
    /// Numbers of the covers.
    covers: VecDeque<u64>,
    /// Where those below `laid` are: for a replay, and empty without one.
    laid_covers: Covers,
    laid: u64,
    /// Parts of a read that no entry has decided yet; kept for its storage.
    open: Vec<(u64, u64)>,
}

impl Retained {
    /// Room for so many, and what is outstanding when there are.
    pub fn new(entries_max: usize) -> Self {
        let log = VecDeque::with_capacity(entries_max.min(ENTRIES_MAX) + 1024);
        let (covers, laid_covers) = (VecDeque::new(), Covers::default());
        Retained {
            log,
            first: 0,
            done: 0,
            bytes: 0,
            covers,
            laid_covers,
            laid: 0,
            open: Vec::new(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn len(&self) -> usize {
        self.log.len() - self.freeable()
    }

    /// How many at the front are done with.
    fn freeable(&self) -> usize {
        (self.done - self.first) as usize
    }

    /// The entry of this number, if it is not done with.
    fn get(&self, number: u64) -> Option<&Effect> {
        let at = number.checked_sub(self.first)? as usize;
        self.log.get(at).filter(|_| number >= self.done).map(|entry| &entry.effect)
    }

    /// The entries below `mark` that are not done with.
    fn below(&self, mark: u64) -> impl Iterator<Item = &Effect> {
        let end = (mark.saturating_sub(self.first) as usize).min(self.log.len());
        self.log.range(self.freeable().min(end)..end).map(|entry| &entry.effect)
    }

    /// Bytes of memory that it keeps alive, without what is done with and about to be let go of.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The number that the next entry will have: a flush issued now covers all below it.
    pub fn mark(&self) -> u64 {
        self.first + self.log.len() as u64
    }

    fn weight(effect: &Effect) -> usize {
        // A segment keeps a page, sums a buffer of 512 bytes or more.
        let data: usize = effect.data.iter().map(|s| s.len().max(4096)).sum();
        data + if effect.sums.is_empty() { 0 } else { effect.sums.len().next_multiple_of(512) }
    }

    pub fn push(&mut self, effect: Effect) {
        // However many come in a turn, the log does not outgrow its storage.
        self.free_some(2);
        let weight = Self::weight(&effect);
        self.bytes += weight;
        if effect.standing == Standing::Durable {
            self.covers.push_back(self.mark());
        }
        self.log.push_back(Entry { effect, weight });
    }

    /// Notes where the covers are, for [`Retained::uncovered`]: all of them if `looks` suffices, which says
    /// how much may be looked at.
    pub fn lay_covers(&mut self, looks: &mut usize) {
        let mut next = self.covers.partition_point(|&cover| cover < self.laid);
        while let Some(&number) = self.covers.get(next)
            && *looks > 0
        {
            let effect = &self.log[(number - self.first) as usize].effect;
            let seen = self.laid_covers.lay(effect.offset, effect.end(), number);
            *looks = looks.saturating_sub(seen);
            self.laid = number + 1;
            next += 1;
        }
    }

    /// A replay begins, or has ended: what was noted of the covers is not needed any more.
    pub fn forget_covers(&mut self) {
        self.laid_covers.clear();
        self.laid = 0;
    }

    /// The first part of an entry, from `from` on, that no later cover covers: its offset and
    /// length. Covers have none. All covers are laid.
    pub fn uncovered(&self, number: u64, from: u64, looks: &mut usize) -> Option<(u64, u64)> {
        let effect = self.get(number)?;
        if effect.standing == Standing::Durable {
            return None;
        }
        let start = effect.offset.max(from);
        let (gap, seen) = self.laid_covers.gap(number, start, effect.end());
        *looks = looks.saturating_sub(seen);
        gap
    }

    /// Puts what the entries left over what was read from `offset` on: the medium may have lost them,
    /// and whoever writes these bytes once more would make that final. What is durable stays. Linear
    /// in the number of entries.
    pub fn lay_over(&mut self, offset: u64, out: &mut [u8]) {
        let done = self.freeable();
        let Retained { log, open, .. } = self;
        open.clear();
        open.push((offset, offset + out.len() as u64));
        // The newest decides.
        for Entry { effect, .. } in log.range(done..).rev() {
            let mut at = 0;
            while let Some(&(start, end)) = open.get(at) {
                let (from, to) = (start.max(effect.offset), end.min(effect.end()));
                if from >= to {
                    at += 1;
                    continue;
                }
                let part = &mut out[(from - offset) as usize..(to - offset) as usize];
                match (effect.standing, effect.op) {
                    (Standing::Durable, _) | (_, Op::Discard) => {}
                    (_, Op::Write) => effect.copy_to(from, part),
                    _ => part.fill(0),
                }
                open.swap_remove(at);
                open.extend([(start, from), (to, end)].into_iter().filter(|(a, b)| a < b));
            }
            if open.is_empty() {
                return;
            }
        }
    }

    /// All of an entry lies under later covers: it needs no replay, and nobody to vouch for it.
    pub fn superseded(&mut self, number: u64) {
        let Some(entry) = self.entry_mut(number) else { return };
        entry.effect.standing = Standing::Durable;
        (entry.effect.data, entry.effect.sums) = (SegList::new(), Segment::NOTHING);
        self.bytes -= std::mem::take(&mut entry.weight);
    }

    /// True if every entry below `mark` has this verifier.
    pub fn all_under(&self, mark: u64, verifier: u64) -> bool {
        self.below(mark).all(|e| e.is_under(verifier))
    }

    /// True if every entry below `next` whose replay has completed has this verifier.
    pub fn replayed_under(&self, next: u64, verifier: u64) -> bool {
        let mut replayed = self.below(next).filter(|e| e.standing != Standing::Asked);
        replayed.all(|e| e.is_under(verifier))
    }

    /// A flush covered everything below `mark`.
    pub fn flushed(&mut self, mark: u64) {
        let before = self.freeable();
        self.done = self.done.max(mark.min(self.mark()));
        let gone = self.log.range(before..self.freeable());
        self.bytes -= gone.map(|entry| entry.weight).sum::<usize>();
        while self.covers.front().is_some_and(|&cover| cover < self.done) {
            self.covers.pop_front();
        }
    }

    /// Lets go of some of what is done with. To be called once in a turn.
    #[inline]
    pub fn free(&mut self) {
        self.free_some(FREED_PER_TURN);
    }

    #[inline]
    fn free_some(&mut self, most: usize) {
        let count = self.freeable().min(most);
        if count > 0 {
            self.first += count as u64;
            drop(self.log.drain(..count));
        }
    }

    /// More is to be let go of: another turn is wanted for it.
    #[inline]
    pub fn is_freeing(&self) -> bool {
        self.done > self.first
    }

    pub fn get_mut(&mut self, number: u64) -> Option<&mut Effect> {
        self.entry_mut(number).map(|entry| &mut entry.effect)
    }

    fn entry_mut(&mut self, number: u64) -> Option<&mut Entry> {
        let at = number.checked_sub(self.first)? as usize;
        self.log.get_mut(at).filter(|_| number >= self.done)
    }

    /// Number of the oldest entry.
    pub fn oldest(&self) -> u64 {
        self.done
    }

    pub fn clear(&mut self) {
        let mark = self.mark();
        self.flushed(mark);
        self.forget_covers();
    }
}

#[cfg(test)]
mod tests {
    use thinwire_buffer::Pool;

    use super::*;

    fn effect(offset: u64, verifier: u64) -> Effect {
        let (op, flags) = (Op::Discard, IoFlags::default());
        let (len, data, standing) = (512, SegList::new(), Standing::Done);
        let (sums, is_second) = (Segment::NOTHING, false);
        Effect { op, flags, offset, len, data, sums, is_second, verifier, standing }
    }

    /// That of one of many members is a part of it, too: pages of a process that carries a disk are locked.
    #[test]
    fn the_memory_of_the_log_itself_is_for_what_it_may_keep() {
        let room = |entries_max| Retained::new(entries_max).log.capacity();
        let (alone, one) = (room(ENTRIES_MAX), room(ENTRIES_MAX / 16));
        assert!(alone >= ENTRIES_MAX + 1024 && one >= ENTRIES_MAX / 16 + 1024);
        assert!(one * 8 <= alone, "{one} of {alone}");
    }

    #[test]
    fn older_effects_are_replayed_around_covers() {
        let mut r = Retained::new(ENTRIES_MAX);
        r.push(Effect { len: 4096, ..effect(1024, 1) });
        let cover = Standing::Durable;
        r.push(Effect { standing: cover, ..effect(2048, 1) });
        r.push(Effect { standing: cover, ..effect(2560, 1) });
        r.push(Effect { standing: cover, ..effect(512, 1) });
        r.push(Effect { len: 1024, ..effect(2048, 1) });
        let pieces = |r: &mut Retained, number| {
            let (mut pieces, mut from, mut looks) = (vec![], 0, 1000);
            r.lay_covers(&mut looks);
            while let Some((offset, len)) = r.uncovered(number, from, &mut looks) {
                pieces.push((offset, len));
                from = offset + len;
            }
            pieces
        };
        assert_eq!(pieces(&mut r, 0), [(1024, 1024), (3072, 2048)]);
        assert_eq!((pieces(&mut r, 1), pieces(&mut r, 3)), (vec![], vec![]));
        assert_eq!(pieces(&mut r, 4), [(2048, 1024)], "the newest of all");
        r.push(Effect { standing: cover, ..effect(2048, 1) });
        r.push(Effect { standing: cover, ..effect(2560, 1) });
        assert_eq!(pieces(&mut r, 4), []);
        r.superseded(4);
        assert!(r.all_under(5, 1) && !r.all_under(5, 2), "of the first alone");
        r.flushed(2);
        assert!(pieces(&mut r, 0).is_empty() && r.all_under(7, 2), "the rest is durable");
    }

    /// What was read is as it should be, but for what the log knows better.
    #[test]
    fn entries_lie_over_what_was_read() {
        let written = |offset, len: usize, byte| {
            let data = SegList::of(Pool::new(0).copy_of(&vec![byte; len]).freeze());
            Effect { op: Op::Write, len: len as u64, data, ..effect(offset, 1) }
        };
        let mut r = Retained::new(ENTRIES_MAX);
        r.push(Effect { standing: Standing::Mixed, ..written(512, 2048, 8) });
        r.push(written(512, 2048, 1));
        r.push(written(3584, 2048, 2));
        r.push(Effect { op: Op::WriteZeroes, ..effect(1024, 1) });
        r.push(Effect { standing: Standing::Durable, ..effect(1536, 1) });
        r.push(effect(2048, 1));
        r.push(written(8192, 512, 3));
        r.push(Effect { standing: Standing::Mixed, ..written(2560, 512, 5) });
        r.push(written(3072, 512, 6));
        r.superseded(r.mark() - 1);
        let mut out = vec![9; 4096];
        r.lay_over(0, &mut out);
        let sectors: Vec<u8> = out.chunks(512).map(|sector| sector[0]).collect();
        assert_eq!(sectors, [9, 1, 0, 9, 9, 5, 9, 2]);
        assert!(out.chunks(512).all(|sector| sector.iter().all(|&byte| byte == sector[0])));
        r.push(written(0, 4096, 4));
        r.lay_over(0, &mut out);
        assert_eq!(out, vec![4; 4096]);
    }

    #[test]
    fn parts_under_different_verifiers_vouch_for_nothing() {
        let mut r = Retained::new(ENTRIES_MAX);
        r.push(Effect { standing: Standing::Asked, ..effect(0, 1) });
        let e = r.get_mut(0).unwrap();
        e.replayed(2);
        assert!(e.is_under(2) && !e.is_under(1));
        e.replayed(3);
        assert!(!e.is_under(2) && !e.is_under(3));
    }

    #[test]
    fn a_flush_covers_what_completed_before_it() {
        let mut r = Retained::new(ENTRIES_MAX);
        r.push(effect(0, 1));
        let mark = r.mark();
        r.push(effect(512, 2));
        assert!(r.all_under(mark, 1) && !r.all_under(r.mark(), 1));
        r.flushed(mark);
        assert_eq!((r.len(), r.oldest()), (1, 1));
        assert_eq!(r.get_mut(1).unwrap().offset, 512);
        assert!(r.get_mut(0).is_none());
        r.flushed(mark);
        assert_eq!(r.len(), 1);
    }

    /// A flush may cover thousands of writes, each of which gives memory back: not in one turn.
    #[test]
    fn what_a_flush_covers_is_let_go_of_a_little_at_a_time() {
        let pool = Pool::new(0);
        let mut r = Retained::new(ENTRIES_MAX);
        let count = 3 * FREED_PER_TURN as u64 + 5;
        let written = |at: u64| {
            let data = SegList::of(pool.get(4096).freeze());
            Effect { op: Op::Write, data, ..effect(at * 4096, 1) }
        };
        (0..count).for_each(|at| r.push(written(at)));
        r.superseded(7);
        r.flushed(count - 1);
        r.push(written(count));
        assert_eq!((r.len(), r.bytes(), r.oldest()), (2, 2 * 4096, count - 1));
        assert!(r.get_mut(count - 2).is_none() && r.get_mut(count - 1).is_some());
        assert!(r.all_under(count, 1) && !r.all_under(count, 2) && r.all_under(count - 1, 2));
        let held = |pool: &Pool| pool.stats().live_bytes / 4096;
        assert_eq!(held(&pool) as u64, count - 2, "the superseded one, and two by the push");
        let mut turns = 0;
        while r.is_freeing() {
            let before = held(&pool);
            r.free();
            assert!(before - held(&pool) <= FREED_PER_TURN);
            turns += 1;
        }
        assert_eq!((turns, held(&pool), r.len(), r.oldest()), (4, 2, 2, count - 1));
        r.clear();
        assert!(r.is_empty() && r.bytes() == 0 && r.is_freeing());
    }
}
