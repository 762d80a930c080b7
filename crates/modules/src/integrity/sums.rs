//! [`Sums`]: blocks of sums in memory, as many as are let, and those that are in use.

use crate::write_intent::bitmap::{BLOCK_BYTES, BlockImage};

use super::layout::SUMS_EACH;

const NONE: u32 = u32::MAX;

/// The two sums of a block of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Of what was written last.
    pub now: u32,
    /// Of what was there before that.
    pub before: u32,
}

/// How a block of sums stands to the part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It is being read.
    Loading,
    /// It is here.
    Here,
    /// It could not be read: it goes when nobody needs it.
    Unread,
}

pub(super) struct Slot {
    pub number: u64,
    pub standing: Standing,
    image: Box<BlockImage>,
    /// It stays as long as somebody needs it.
    pins: u32,
    was_used: bool,
    next: u32,
    /// Jobs that wait until it is here.
    pub loaders: Vec<u32>,
    /// Jobs that wait for the write that is under way, and for the next one.
    pub storing: Vec<u32>,
    pub to_store: Vec<u32>,
    pub is_storing: bool,
    /// The next write is to be durable by itself.
    pub is_durable: bool,
}

impl Slot {
    pub fn image(&mut self) -> &mut BlockImage {
        &mut self.image
    }
}

/// Found by their numbers. One that nobody needs goes for another, once there are as many as are let: so there are at most as many as
/// that, and as are needed at once.
pub(super) struct Sums {
    slots: Vec<Slot>,
    /// The first slot of each chain; as many as a power of two.
    heads: Vec<u32>,
    slots_max: usize,
    hand: usize,
}

impl Sums {
    pub fn new(slots_max: usize) -> Self {
        let slots_max = slots_max.max(1);
        let heads = vec![NONE; (2 * slots_max).next_power_of_two()];
        Sums { slots: Vec::new(), heads, slots_max, hand: 0 }
    }

    fn head(&self, number: u64) -> usize {
        // Fibonacci hashing: neighbours are spread.
        let hash = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        hash as usize & (self.heads.len() - 1)
    }

    pub fn find(&self, number: u64) -> Option<u32> {
        let mut at = self.heads[self.head(number)];
        while at != NONE {
            let slot = &self.slots[at as usize];
            if slot.number == number {
                return Some(at);
            }
            at = slot.next;
        }
        None
    }

    /// The block of that number is needed from now on: where it is, and whether it is to be read first.
    pub fn pin(&mut self, number: u64) -> (u32, bool) {
        let found = self.find(number);
        let at = found.unwrap_or_else(|| self.insert(number));
        let slot = &mut self.slots[at as usize];
        slot.pins += 1;
        slot.was_used = true;
        let is_new = match slot.standing {
            // Another one may have more luck.
            Standing::Unread if slot.pins == 1 => {
                slot.standing = Standing::Loading;
                true
            }
            _ => found.is_none(),
        };
        (at, is_new)
    }

    /// Somebody does not need it any more.
    pub fn unpin(&mut self, number: u64) {
        if let Some(at) = self.find(number) {
            self.slots[at as usize].pins -= 1;
        }
    }

    pub fn slot(&mut self, at: u32) -> &mut Slot {
        &mut self.slots[at as usize]
    }

    fn insert(&mut self, number: u64) -> u32 {
        let at = match self.slots.len() < self.slots_max {
            true => self.new_slot(),
            false => self.give_away().unwrap_or_else(|| self.new_slot()),
        };
        let head = self.head(number);
        let slot = &mut self.slots[at as usize];
        (slot.number, slot.standing, slot.next) = (number, Standing::Loading, self.heads[head]);
        slot.is_durable = false;
        self.heads[head] = at;
        at
    }

    fn new_slot(&mut self) -> u32 {
        self.slots.push(Slot {
            number: 0,
            standing: Standing::Unread,
            image: Box::new([0; BLOCK_BYTES]),
            pins: 0,
            was_used: false,
            next: NONE,
            loaders: Vec::new(),
            storing: Vec::new(),
            to_store: Vec::new(),
            is_storing: false,
            is_durable: false,
        });
        self.slots.len() as u32 - 1
    }

    /// The place of one that nobody needs, and that was not used since the hand went by.
    fn give_away(&mut self) -> Option<u32> {
        for _ in 0..2 * self.slots.len() {
            let at = self.hand;
            self.hand = (self.hand + 1) % self.slots.len();
            let slot = &mut self.slots[at];
            let is_needed = slot.pins > 0 || slot.is_storing;
            if !is_needed && !std::mem::take(&mut slot.was_used) {
                let number = slot.number;
                self.unlink(at as u32, number);
                return Some(at as u32);
            }
        }
        None
    }

    fn unlink(&mut self, gone: u32, number: u64) {
        let head = self.head(number);
        let next = self.slots[gone as usize].next;
        let mut at = self.heads[head];
        if at == gone {
            self.heads[head] = next;
            return;
        }
        while at != NONE {
            let behind = self.slots[at as usize].next;
            if behind == gone {
                self.slots[at as usize].next = next;
                return;
            }
            at = behind;
        }
    }

    /// The sums of a block of data, whose block of sums is here, and pinned.
    pub fn entry(&self, block: u64) -> Entry {
        let at = self.find(block / SUMS_EACH).expect("it is pinned");
        let place = (block % SUMS_EACH) as usize * 8;
        let image = &self.slots[at as usize].image;
        let word = |at: usize| u32::from_le_bytes(image[at..at + 4].try_into().expect("4 bytes"));
        Entry { now: word(place), before: word(place + 4) }
    }

    pub fn set_entry(&mut self, block: u64, entry: Entry) {
        let at = self.find(block / SUMS_EACH).expect("it is pinned");
        let place = (block % SUMS_EACH) as usize * 8;
        let image = &mut self.slots[at as usize].image;
        image[place..place + 4].copy_from_slice(&entry.now.to_le_bytes());
        image[place + 4..place + 8].copy_from_slice(&entry.before.to_le_bytes());
    }

    /// How many are in memory.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.slots.len()
    }
}
