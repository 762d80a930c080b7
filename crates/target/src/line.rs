//! Those who wait for one export, and whose turn it is: deficit round robin (M. Shreedhar, G. Varghese, SIGCOMM
//! 1995), in which those who have not used up their turn go before the others (RFC 8290, FQ-CoDel). Knows
//! sessions and slots by their numbers only.

use crate::depth::Depth;
use crate::fair::Cost;

/// What a session of weight 1 may have in a turn, in cost: eight requests of a page, so that frames and wake-ups
/// are shared by some. What it has too much is taken off its next turns.
pub(crate) const QUANTUM: i32 = 64 << 10;

/// No slot, or no session.
const NONE: u16 = u16::MAX;

/// A slot whose request waits, or none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    /// The line that it waits in.
    pub line: u16,
    /// The slot behind it there.
    next: u16,
    /// What its request costs; nothing if none waits.
    cost: Cost,
}

impl Link {
    pub const NONE: Link = Link { line: 0, next: NONE, cost: Cost::NONE };

    /// Its request waits.
    pub fn waits(&self) -> bool {
        self.cost.session > 0
    }
}

/// By the sessions' places, their slots.
pub(crate) type Links = [Vec<Link>];

/// Sessions in a row, linked by [`Share::next`] and [`Share::before`].
#[derive(Debug)]
struct Row {
    first: u16,
    last: u16,
}

impl Row {
    const EMPTY: Row = Row { first: NONE, last: NONE };

    fn push(&mut self, place: u16, shares: &mut [Share]) {
        let share = &mut shares[usize::from(place)];
        (share.before, share.next) = (self.last, NONE);
        match self.last {
            NONE => self.first = place,
            last => shares[usize::from(last)].next = place,
        }
        self.last = place;
    }

    fn remove(&mut self, place: u16, shares: &mut [Share]) {
        let Share { before, next, .. } = shares[usize::from(place)];
        match before {
            NONE => self.first = next,
            before => shares[usize::from(before)].next = next,
        }
        match next {
            NONE => self.last = before,
            next => shares[usize::from(next)].before = before,
        }
    }
}

/// What one session has in a line.
#[derive(Clone, Copy, Debug)]
struct Share {
    /// Its slots whose requests wait, linked by [`Link::next`].
    first: u16,
    last: u16,
    /// The sessions beside it in its row.
    before: u16,
    next: u16,
    /// It is in a row if this is the line's number of now: in that of the fresh, or that of the others.
    listed: u32,
    is_fresh: bool,
    /// What it may still have in this turn.
    deficit: i32,
}

impl Share {
    const NONE: Share = Share {
        first: NONE,
        last: NONE,
        before: NONE,
        next: NONE,
        listed: 0,
        is_fresh: false,
        deficit: 0,
    };
}

/// What stands at the front of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Front {
    /// A request of the session at this place, in this slot, which costs so much.
    Request(u16, u16, Cost),
    /// All sessions of it had their turns: it is that of another line.
    Over,
    /// Nobody.
    Nobody,
}

/// Those who wait for one export.
#[derive(Debug)]
pub(crate) struct Line {
    /// By the sessions' places.
    shares: Vec<Share>,
    /// Those who have something left of their turn and came while others waited, and these.
    fresh: Row,
    old: Row,
    /// Sessions in both.
    listed: u32,
    /// Requests that wait.
    waiting: u32,
    /// Counts how often nobody waited any more: then nobody owes anything.
    number: u32,
    /// Sessions that have their turns before another line is served.
    turns: u32,
    /// Its sessions have this many quanta in a turn.
    pub weight: u16,
    /// It is among the lines that may go on: with those who are fresh, and at all.
    pub is_urgent: bool,
    pub is_ready: bool,
    /// What its store has.
    pub depth: Depth,
}

impl Line {
    /// Memory that a session takes in it, in bytes.
    pub const SHARE_BYTES: usize = 2 * size_of::<Share>();

    pub fn new() -> Self {
        Line {
            shares: Vec::new(),
            fresh: Row::EMPTY,
            old: Row::EMPTY,
            listed: 0,
            waiting: 0,
            number: 1,
            turns: 0,
            weight: 1,
            is_urgent: false,
            is_ready: false,
            depth: Depth::new(),
        }
    }

    /// Sessions that wait, or have lately.
    pub fn listed(&self) -> u32 {
        self.listed
    }

    /// Requests wait.
    pub fn is_waited_in(&self) -> bool {
        self.waiting > 0
    }

    /// Somebody fresh waits, or has lately.
    pub fn has_fresh(&self) -> bool {
        self.fresh.first != NONE
    }

    /// It is its turn among the lines.
    pub fn begin_turns(&mut self) {
        self.turns = self.listed;
    }

    /// A request of this cost comes, which goes behind those of its session.
    pub fn push(&mut self, number: u16, place: u16, slot: u16, cost: Cost, links: &mut Links) {
        let at = usize::from(place);
        if at >= self.shares.len() {
            self.shares.resize(at + 1, Share::NONE);
        }
        let links = &mut links[at];
        links[usize::from(slot)] = Link { line: number, next: NONE, cost };
        let share = &mut self.shares[at];
        let had_none = share.first == NONE;
        match had_none {
            true => share.first = slot,
            false => links[usize::from(share.last)].next = slot,
        }
        share.last = slot;
        self.waiting += 1;
        let is_new = share.listed != self.number;
        if is_new {
            share.listed = self.number;
            share.deficit = QUANTUM * i32::from(self.weight);
            self.listed += 1;
        } else if had_none && !share.is_fresh && share.deficit > 0 {
            // What is left of its turn it has before those who wait for their next one.
            self.old.remove(place, &mut self.shares);
        } else {
            return;
        }
        self.shares[at].is_fresh = true;
        self.fresh.push(place, &mut self.shares);
    }

    /// Whose turn it is; with `only_fresh` no other's.
    pub fn front(&mut self, only_fresh: bool, links: &Links) -> Front {
        loop {
            let is_fresh = self.has_fresh();
            if self.waiting == 0 || (only_fresh && !is_fresh) {
                return Front::Nobody;
            }
            let place = if is_fresh { self.fresh.first } else { self.old.first };
            let at = usize::from(place);
            let share = &mut self.shares[at];
            if share.deficit > 0 && share.first != NONE {
                let cost = links[at][usize::from(share.first)].cost;
                return Front::Request(place, share.first, cost);
            }
            // Its turn is over. Who has something left stays until the others had theirs, and who owes
            // something until it is paid.
            let leaves = share.deficit > 0 && !is_fresh;
            if share.deficit <= 0 {
                share.deficit += QUANTUM * i32::from(self.weight);
            }
            share.is_fresh = false;
            let row = if is_fresh { &mut self.fresh } else { &mut self.old };
            row.remove(place, &mut self.shares);
            if leaves {
                self.shares[at].listed = 0;
                self.listed -= 1;
            } else {
                self.old.push(place, &mut self.shares);
            }
            if !is_fresh {
                self.turns = self.turns.saturating_sub(1);
                if self.turns == 0 {
                    self.turns = self.listed;
                    return Front::Over;
                }
            }
        }
    }

    /// Takes out the request that stands at the front.
    pub fn take(&mut self, place: u16, links: &mut Links) {
        let share = &mut self.shares[usize::from(place)];
        let link = &mut links[usize::from(place)][usize::from(share.first)];
        share.first = link.next;
        share.deficit -= link.cost.session as i32;
        *link = Link::NONE;
        self.on_gone(1);
    }

    fn on_gone(&mut self, requests: u32) {
        self.waiting -= requests;
        if self.waiting == 0 {
            (self.fresh, self.old, self.listed) = (Row::EMPTY, Row::EMPTY, 0);
            // 0 stands for no number.
            self.number = self.number.wrapping_add(1).max(1);
        }
    }

    /// A request that waits is given up. As many steps as its session has before it.
    pub fn remove(&mut self, place: u16, slot: u16, links: &mut Links) {
        let links = &mut links[usize::from(place)];
        let share = &mut self.shares[usize::from(place)];
        let (mut before, mut at) = (NONE, share.first);
        while at != slot {
            (before, at) = (at, links[usize::from(at)].next);
        }
        let next = links[usize::from(slot)].next;
        match before {
            NONE => share.first = next,
            before => links[usize::from(before)].next = next,
        }
        if next == NONE {
            share.last = before;
        }
        links[usize::from(slot)] = Link::NONE;
        self.on_gone(1);
    }

    /// All that a session waits for is given up; how many requests that is.
    pub fn forget(&mut self, place: usize, links: &mut [Link]) -> usize {
        let Some(share) = self.shares.get_mut(place) else { return 0 };
        let (mut at, mut requests) = (share.first, 0);
        while at != NONE {
            let link = std::mem::replace(&mut links[usize::from(at)], Link::NONE);
            (at, requests) = (link.next, requests + 1);
        }
        share.first = NONE;
        if requests > 0 {
            self.on_gone(requests);
        }
        requests as usize
    }
}

#[cfg(test)]
#[path = "line_tests.rs"]
mod tests;
