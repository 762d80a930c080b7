//! Whose requests go to the stores while several sessions of the shard have some (`docs/protocol.md`, rule 13;
//! `docs/design.md`, "Shares").
//!
//! A session that is alone passes by: its requests go to their stores as they come. From the first request of
//! another one on all of them stand in *line* before their export ([`Line`]), until nobody but one has come for a
//! while. Two things bound what may go: what a turn of the loop takes, so that nobody waits long for the next one,
//! and what each store has ([`crate::depth::Depth`]), so that nobody waits long behind what was begun. What
//! stands in line is bounded by the slots of the sessions. Nothing here allocates once each of them has waited.

use std::collections::VecDeque;
use std::time::Duration;

use thinwire_proto::Time;
use thinwire_volume::Op;
use thinwire_wire::{OpCode, Request};

use crate::depth::{Begun, STALL};
use crate::line::{Front, Line, Link};
use crate::slots::REQUEST_BYTES_MAX;

/// What a request costs besides its bytes, in bytes: as much as a page.
pub(crate) const REQUEST_COST: u32 = 4096;
/// What one costs that moves no bytes but may take a file system a while: a discard, zeroes, a block status.
const LONG_COST: u32 = 64 << 10;
/// What is begun in one turn of the loop, in cost, if two sessions wait: 16 requests of a page, some 60 us of
/// memory, checksums and frames. One request is begun in any case.
const TURN_COST: u32 = 128 << 10;
/// And so much more for each further session: a turn costs something for each of them.
const TURN_COST_EACH: u32 = 32 << 10;
/// So long after two sessions came one after the other the shard counts as shared.
const SHARED: Duration = Duration::from_secs(1);
/// So long after it turns are short: whoever comes that rarely hardly gains by it what the others lose.
const SHORT_TURNS: Duration = Duration::from_millis(20);

/// What a request costs its session, and what of that its store is bounded by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cost {
    pub session: u32,
    pub store: u32,
}

impl Cost {
    pub const NONE: Cost = Cost { session: 0, store: 0 };

    pub fn of(request: &Request) -> Self {
        match OpCode::from_number(request.op) {
            Some(OpCode::Read | OpCode::Write) => Cost::of_bytes(u64::from(request.length)),
            Some(OpCode::Flush) => Cost::OF_FLUSH,
            _ => Cost::OF_LONG,
        }
    }

    /// The same of an I/O.
    pub fn of_io(op: Op, bytes: u64) -> Self {
        match op {
            Op::Read | Op::Write => Cost::of_bytes(bytes),
            Op::Flush => Cost::OF_FLUSH,
            _ => Cost::OF_LONG,
        }
    }

    /// The door lets one go at a time, and others need not wait for it.
    const OF_FLUSH: Cost = Cost { session: REQUEST_COST, store: 0 };
    const OF_LONG: Cost = Cost { session: LONG_COST, store: LONG_COST };

    fn of_bytes(bytes: u64) -> Self {
        let cost = REQUEST_COST + bytes.min(REQUEST_BYTES_MAX as u64) as u32;
        Cost { session: cost, store: cost }
    }
}

/// What comes back with a completion: the place of its session, and what was noted of the request here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark(pub u32);

impl Mark {
    /// There are 1024 places.
    const PLACE_BITS: u32 = 10;

    /// Of a request that has passed by.
    #[inline]
    pub fn unshared(place: usize) -> Self {
        Mark(place as u32)
    }

    fn noted(place: usize, note: u32) -> Self {
        Mark(place as u32 | (note + 1) << Mark::PLACE_BITS)
    }

    /// The place of its session.
    #[inline]
    pub fn place(self) -> usize {
        (self.0 & ((1 << Mark::PLACE_BITS) - 1)) as usize
    }

    /// It has not passed by.
    #[inline]
    pub fn is_noted(self) -> bool {
        self.0 >> Mark::PLACE_BITS != 0
    }

    fn note(self) -> u32 {
        (self.0 >> Mark::PLACE_BITS) - 1
    }
}

/// All lines of a target.
#[derive(Debug, Default)]
pub(crate) struct Fair {
    /// By export.
    lines: Vec<Line>,
    /// Slots of a session.
    slots: u16,
    links: Vec<Vec<Link>>,
    /// Requests that wait, in all lines.
    waiting: usize,
    /// Lines that may go on. Those that stand in `urgent`, too, have somebody who is fresh.
    urgent: VecDeque<u16>,
    ready: VecDeque<u16>,
    /// Whose request came last: a place and one, or 0 for nobody's.
    last: usize,
    /// Until when the shard counts as shared, and its turns are short.
    shared_until: Time,
    short_until: Time,
    /// Cost of what may be begun in this turn and of what was, and when the last one was over.
    turn_cost: u32,
    spent: u32,
    over_at: Time,
    /// When to look for lines in which nothing happens.
    stall_at: Time,
    /// By their marks, requests that the stores have.
    notes: Vec<Option<Begun>>,
    notes_free: Vec<u32>,
    /// Tests only: whoever comes first is served first.
    is_first_come: bool,
}

impl Fair {
    /// Memory that a slot takes here, in bytes: while its request waits, and while its store has it.
    pub const SLOT_BYTES: usize =
        size_of::<Link>() + 2 * (size_of::<Option<Begun>>() + size_of::<u32>());

    /// Without exports, for sessions with so many slots. `is_first_come` is a planted fault.
    pub fn new(slots: u16, is_first_come: bool) -> Self {
        Fair { slots, is_first_come, ..Fair::default() }
    }

    /// Another export, of this index: the next one, or that of one which is gone, and for which nobody waits.
    pub fn add_line(&mut self, export: usize) {
        match self.lines.get_mut(export) {
            // How much suits its store it has to learn.
            Some(line) => (line.weight, line.depth) = (1, Line::new().depth),
            None => self.lines.push(Line::new()),
        }
    }

    /// How much more than those of others the sessions of an export may have in a turn.
    pub fn set_weight(&mut self, export: usize, weight: u16) {
        self.lines[export].weight = weight.max(1);
    }

    /// The session at this place has a whole request: whether it is to stand in line.
    #[inline]
    pub fn is_shared(&mut self, now: Time, place: usize) -> bool {
        if place + 1 != self.last {
            self.come(now, place);
        }
        self.is_shared_at(now)
    }

    /// Several have had requests lately.
    #[inline]
    pub fn is_shared_at(&self, now: Time) -> bool {
        now < self.shared_until
    }

    #[cold]
    fn come(&mut self, now: Time, place: usize) {
        if self.last != 0 && !self.is_first_come {
            (self.shared_until, self.short_until) = (now + SHARED, now + SHORT_TURNS);
        }
        self.last = place + 1;
    }

    /// The request of a slot stands in line already.
    pub fn waits(&self, place: usize, slot: u16) -> bool {
        self.links
            .get(place)
            .is_some_and(|links| links.get(usize::from(slot)).is_some_and(Link::waits))
    }

    /// A request stands in line for this export.
    pub fn wait(&mut self, export: usize, place: usize, slot: u16, request: &Request) {
        self.wait_at(export, place, slot, Cost::of(request));
    }

    /// The same, of one that costs so much.
    pub fn wait_at(&mut self, export: usize, place: usize, slot: u16, cost: Cost) {
        if place >= self.links.len() {
            self.links.resize_with(place + 1, Vec::new);
        }
        if self.links[place].is_empty() {
            self.links[place].resize(usize::from(self.slots), Link::NONE);
        }
        let number = export as u16;
        self.lines[export].push(number, place as u16, slot, cost, &mut self.links);
        self.waiting += 1;
        self.let_on(export);
    }

    fn let_on(&mut self, at: usize) {
        let line = &mut self.lines[at];
        if line.has_fresh() && !std::mem::replace(&mut line.is_urgent, true) {
            self.urgent.push_back(at as u16);
        }
        if !std::mem::replace(&mut line.is_ready, true) {
            line.begin_turns();
            self.ready.push_back(at as u16);
        }
    }

    /// Requests wait.
    #[inline]
    pub fn is_waited_in(&self) -> bool {
        self.waiting > 0
    }

    /// Whose request goes to its store now: the place of the session, and the slot. It waits no more.
    pub fn next(&mut self, now: Time) -> Option<(usize, u16)> {
        if now > self.over_at || self.turn_cost == 0 {
            self.begin_turn();
        }
        if now >= self.stall_at {
            self.look_for_stalls(now);
        }
        let is_shared = self.is_shared_at(now);
        let turn_cost = if now < self.short_until { self.turn_cost } else { u32::MAX };
        while self.spent < turn_cost {
            let only_fresh = !self.urgent.is_empty();
            let rows = if only_fresh { &mut self.urgent } else { &mut self.ready };
            let &at = rows.front()?;
            let line = &mut self.lines[usize::from(at)];
            match line.front(only_fresh, &self.links) {
                Front::Request(_, _, cost) if is_shared && !line.depth.has_room(cost.store) => {
                    // It goes on when its store has let go of something.
                    self.stall_at = self.stall_at.min(line.depth.changed_at() + STALL);
                    self.drop_front(only_fresh);
                }
                Front::Request(place, slot, cost) => {
                    line.take(place, &mut self.links);
                    self.waiting -= 1;
                    self.spent = self.spent.saturating_add(cost.session);
                    return Some((usize::from(place), slot));
                }
                Front::Over => rows.rotate_left(1),
                Front::Nobody => self.drop_front(only_fresh),
            }
        }
        None
    }

    fn begin_turn(&mut self) {
        let listed: u32 = self.lines.iter().map(Line::listed).sum();
        self.turn_cost = TURN_COST + TURN_COST_EACH * listed.saturating_sub(2);
        self.spent = 0;
        self.over_at = Time(u64::MAX);
    }

    fn drop_front(&mut self, of_urgent: bool) {
        let rows = if of_urgent { &mut self.urgent } else { &mut self.ready };
        let at = rows.pop_front().expect("just seen");
        let line = &mut self.lines[usize::from(at)];
        *(if of_urgent { &mut line.is_urgent } else { &mut line.is_ready }) = false;
    }

    #[cold]
    fn look_for_stalls(&mut self, now: Time) {
        self.stall_at = Time(u64::MAX);
        for at in 0..self.lines.len() {
            let line = &mut self.lines[at];
            if !line.is_waited_in() || line.is_ready {
                continue;
            }
            let stall_at = line.depth.changed_at() + STALL;
            if now < stall_at {
                self.stall_at = self.stall_at.min(stall_at);
            } else {
                line.depth.on_stall(now);
                self.let_on(at);
            }
        }
    }

    /// A store gets a request that has waited, of the session at this place.
    pub fn begin(&mut self, now: Time, export: usize, place: usize, request: &Request) -> Mark {
        self.begin_at(now, export, place, Cost::of(request))
    }

    /// The same, of one that costs so much.
    pub fn begin_at(&mut self, now: Time, export: usize, place: usize, cost: Cost) -> Mark {
        let depth = &mut self.lines[export].depth;
        let begun = Some(depth.begin(now, export as u16, cost.store));
        let note = match self.notes_free.pop() {
            Some(note) => {
                self.notes[note as usize] = begun;
                note
            }
            None => {
                self.notes.push(begun);
                self.notes.len() as u32 - 1
            }
        };
        Mark::noted(place, note)
    }

    /// It has let go of one, or did not take it.
    #[inline]
    pub fn end(&mut self, now: Time, mark: Mark, was_taken: bool) {
        if mark.is_noted() {
            self.end_noted(now, mark.note(), was_taken);
        }
    }

    fn end_noted(&mut self, now: Time, note: u32, was_taken: bool) {
        let begun = self.notes[note as usize].take().expect("a store lets go once");
        self.notes_free.push(note);
        let at = usize::from(begun.line);
        self.lines[at].depth.end(now, begun, was_taken);
        if self.lines[at].is_waited_in() {
            self.let_on(at);
        }
    }

    /// A request is given up. Nothing happens unless it waits.
    pub fn remove(&mut self, place: usize, slot: u16) {
        if self.waits(place, slot) {
            let line = usize::from(self.links[place][usize::from(slot)].line);
            self.lines[line].remove(place as u16, slot, &mut self.links);
            self.waiting -= 1;
        }
    }

    /// A session ends, and gives up all that waits.
    pub fn forget(&mut self, place: usize) {
        if self.last == place + 1 {
            self.last = 0;
        }
        let Some(links) = self.links.get_mut(place).filter(|links| !links.is_empty()) else {
            return;
        };
        for line in &mut self.lines {
            self.waiting -= line.forget(place, links);
        }
    }

    /// A turn of the loop is over. What is asked at that time once more belongs to it, too.
    #[inline]
    pub fn end_turn(&mut self, now: Time) {
        self.over_at = now;
    }

    /// When it has something to do next by itself.
    #[inline]
    pub fn deadline(&self, now: Time) -> Time {
        match (self.waiting, self.ready.is_empty()) {
            (0, _) => Time(u64::MAX),
            (_, false) => now,
            (_, true) => self.stall_at,
        }
    }
}

#[cfg(test)]
#[path = "fair_tests.rs"]
mod tests;
