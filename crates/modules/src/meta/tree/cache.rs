//! [`Cache`]: the nodes in memory, those that a commit has yet to write among them.

use std::cell::Cell;
use std::collections::BTreeMap;

use super::NodeFault;
use super::node::Node;

/// So many are looked at for the one that goes.
const SAMPLE: usize = 8;
const SPARE_MAX: usize = 64;

/// How a node in memory stands to what is on the part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It is there.
    Clean,
    /// It belongs to the open transaction, and can be changed.
    Open,
    /// It belongs to the commit that is being written.
    Written,
}

pub(super) struct Slot {
    pub node: Box<Node>,
    pub standing: Standing,
    /// The last change that keeps what it was before.
    pub saved: u64,
    /// The round in which it was looked at last.
    touched: Cell<u64>,
}

impl Slot {
    pub fn new(node: Box<Node>, standing: Standing, saved: u64) -> Self {
        Slot { node, standing, saved, touched: Cell::new(0) }
    }
}

struct Unfit {
    fault: NodeFault,
    /// The round in which it was read.
    read: u64,
    is_told: Cell<bool>,
}

/// Nodes by their addresses. Clean ones go when there are too many, but for those that were looked at in this round or the one
/// before: who waits for a node, and tries again once in each round, finds all that it had found before, and so comes on.
pub(super) struct Cache {
    slots: BTreeMap<u64, Slot>,
    /// What was read and is no node, until that was told: then it is read again, for whoever asks again.
    faults: BTreeMap<u64, Unfit>,
    spare: Vec<Box<Node>>,
    clean_max: usize,
    counts: [usize; 3],
    round: u64,
    hand: u64,
}

impl Cache {
    pub fn new(clean_max: usize) -> Self {
        Cache {
            slots: BTreeMap::new(),
            faults: BTreeMap::new(),
            spare: Vec::new(),
            clean_max,
            counts: [0; 3],
            round: 2,
            hand: 0,
        }
    }

    /// So many stand like that.
    pub fn count(&self, standing: Standing) -> usize {
        self.counts[standing as usize]
    }

    #[inline]
    pub fn get(&self, address: u64) -> Option<&Slot> {
        let slot = self.slots.get(&address)?;
        slot.touched.set(self.round);
        Some(slot)
    }

    pub fn get_mut(&mut self, address: u64) -> Option<&mut Slot> {
        self.slots.get_mut(&address)
    }

    /// Puts it there; what was there before.
    pub fn put(&mut self, address: u64, slot: Slot) -> Option<Slot> {
        slot.touched.set(self.round);
        self.counts[slot.standing as usize] += 1;
        let before = self.slots.insert(address, slot);
        self.uncount(before)
    }

    pub fn take(&mut self, address: u64) -> Option<Slot> {
        let before = self.slots.remove(&address);
        self.uncount(before)
    }

    fn uncount(&mut self, before: Option<Slot>) -> Option<Slot> {
        if let Some(before) = &before {
            self.counts[before.standing as usize] -= 1;
        }
        before
    }

    /// It stands otherwise from now on.
    pub fn stand(&mut self, address: u64, standing: Standing) {
        if let Some(slot) = self.slots.get_mut(&address) {
            self.counts[slot.standing as usize] -= 1;
            slot.standing = standing;
            self.counts[standing as usize] += 1;
        }
    }

    /// All that stand like this stand like that; their addresses, from the highest on.
    pub fn restand(&mut self, from: Standing, to: Standing) -> Vec<u64> {
        let all = self.slots.iter_mut().rev().filter(|(_, slot)| slot.standing == from);
        let moved: Vec<_> = all
            .map(|(&address, slot)| {
                slot.standing = to;
                address
            })
            .collect();
        self.counts[from as usize] -= moved.len();
        self.counts[to as usize] += moved.len();
        moved
    }

    /// Forgets all that are on the part, too.
    #[cfg(test)]
    pub fn forget_clean(&mut self) {
        let clean = self.slots.iter().filter(|(_, slot)| slot.standing == Standing::Clean);
        for address in clean.map(|(&address, _)| address).collect::<Vec<_>>() {
            self.take(address);
        }
    }

    /// Memory for a node, with anything in it.
    pub fn memory(&mut self) -> Box<Node> {
        self.spare.pop().unwrap_or_else(Node::unchecked)
    }

    pub fn give_back(&mut self, node: Box<Node>) {
        if self.spare.len() < SPARE_MAX {
            self.spare.push(node);
        }
    }

    /// What is wrong with a node that was read, once.
    pub fn fault(&self, address: u64) -> Option<&NodeFault> {
        let unfit = self.faults.get(&address)?;
        (!unfit.is_told.replace(true)).then_some(&unfit.fault)
    }

    pub fn put_fault(&mut self, address: u64, fault: NodeFault) {
        let unfit = Unfit { fault, read: self.round, is_told: Cell::new(false) };
        self.faults.insert(address, unfit);
    }

    /// Who waits tries again from now on.
    pub fn begin_round(&mut self) {
        self.round += 1;
        let round = self.round;
        self.faults.retain(|_, unfit| unfit.read + 2 > round && !unfit.is_told.get());
        while self.count(Standing::Clean) > self.clean_max && self.evict() {}
    }

    /// One of a few clean nodes goes: the one that was looked at longest ago.
    fn evict(&mut self) -> bool {
        let (hand, round) = (self.hand, self.round);
        let around = self.slots.range(hand..).chain(self.slots.range(..hand));
        let may_go = around
            .filter(|(_, slot)| slot.standing == Standing::Clean && slot.touched.get() + 1 < round);
        let sample = may_go.take(SAMPLE).map(|(&address, slot)| (slot.touched.get(), address));
        let Some((_, address)) = sample.min() else { return false };
        self.hand = address + 1;
        if let Some(slot) = self.take(address) {
            self.give_back(slot.node);
        }
        true
    }
}
