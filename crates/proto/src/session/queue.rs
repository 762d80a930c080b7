//! What waits to be sent, in order. What time or other sessions ask for, not the peer or the owner,
//! stands in it once: it must not get longer while nothing can be sent (`docs/protocol.md`, "Bounds").

use std::collections::VecDeque;

use crate::Item;
use crate::batch::Batcher;
use crate::recovery::SENT_ITEMS_MAX;

/// Items that may wait before the session is to be ended: all that may be in flight on lost paths,
/// and eight for each of the most slots that a session can have.
pub(crate) const QUEUED_ITEMS_MAX: usize = 24 << 10;
const _: () = assert!(QUEUED_ITEMS_MAX == SENT_ITEMS_MAX + 8 * 1024);
/// The longest that the queue's storage gets: what was in flight on all paths may be added at once,
/// and storage is doubled.
pub(crate) const QUEUE_STORAGE: usize = (QUEUED_ITEMS_MAX + SENT_ITEMS_MAX).next_power_of_two();

/// Items in the order in which they are to be sent.
#[derive(Debug)]
pub(crate) struct Queue {
    items: VecDeque<Item>,
    /// Path ids whose [`Item::Credit`] is in here, one bit each.
    credits: [u64; 4],
    /// An [`Item::Ping`] is.
    ping: bool,
}

impl Queue {
    pub fn new() -> Self {
        Queue { items: VecDeque::with_capacity(256), credits: [0; 4], ping: false }
    }

    pub fn len(&self) -> usize {
        self.items.len()
    }

    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    pub fn front(&self) -> Option<&Item> {
        self.items.front()
    }

    /// Takes note of what stands in here once; false if it already does.
    #[inline]
    fn note(&mut self, item: Item) -> bool {
        match item {
            Item::Credit(path) => {
                let (word, bit) = (&mut self.credits[path as usize / 64], 1 << (path % 64));
                let is_new = *word & bit == 0;
                *word |= bit;
                is_new
            }
            Item::Ping => !std::mem::replace(&mut self.ping, true),
            _ => true,
        }
    }

    #[inline]
    pub fn push_back(&mut self, item: Item) {
        if self.note(item) {
            self.items.push_back(item);
        }
    }

    #[inline]
    pub fn push_front(&mut self, item: Item) {
        if self.note(item) {
            self.items.push_front(item);
        }
    }

    /// An item that was lost, or may be, goes before new ones. There is nothing in a ping to be lost.
    pub fn push_lost(&mut self, item: Item) {
        if item != Item::Ping {
            self.push_front(item);
        }
    }

    #[inline]
    pub fn pop_front(&mut self) {
        match self.items.pop_front() {
            Some(Item::Credit(path)) => self.credits[path as usize / 64] &= !(1 << (path % 64)),
            Some(Item::Ping) => self.ping = false,
            _ => {}
        }
    }

    /// Adds what the batching policy lets go: requests and their data only.
    pub fn release(&mut self, now: crate::Time, batcher: &mut Batcher) {
        batcher.release(now, &mut self.items);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credits_and_pings_stand_in_it_once() {
        let mut queue = Queue::new();
        for _ in 0..100_000 {
            (0..=255).for_each(|path| queue.push_back(Item::Credit(path)));
            queue.push_front(Item::Ping);
            queue.push_lost(Item::Credit(3));
            queue.push_lost(Item::Ping);
        }
        assert_eq!((queue.len(), queue.front()), (257, Some(&Item::Ping)));
        queue.pop_front();
        queue.push_lost(Item::Ping);
        assert_eq!(queue.front(), Some(&Item::Credit(0)));
        queue.pop_front();
        queue.push_back(Item::Credit(0));
        queue.push_back(Item::Ping);
        assert_eq!(queue.len(), 257);
        // Of all else there may be several: a completion that is lost while it is asked for again.
        let complete = Item::Complete { slot: 1, sequence: 1 };
        (0..3).for_each(|_| queue.push_back(complete));
        assert_eq!(queue.len(), 260);
    }
}
