//! Writes of one export that overlap, in the order in which they came.
//!
//! A volume may carry out what is outstanding together in any order. A client of EBD that sends a write again, or a
//! second client, may have two outstanding on the same sectors: the later one waits.

/// A write that is outstanding or waits: of which client, in which of its slots, and where it is, in sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    client: usize,
    slot: u16,
    start: u64,
    end: u64,
    /// A volume may have it.
    has_begun: bool,
}

/// All of one export, oldest first.
#[derive(Debug, Default)]
pub(super) struct Order {
    entries: Vec<Entry>,
}

impl Order {
    /// Takes note of a write. True if it may begin now.
    pub fn add(&mut self, client: usize, slot: u16, start: u64, end: u64) -> bool {
        let has_begun = !self.entries.iter().any(|e| e.start < end && start < e.end);
        self.entries.push(Entry { client, slot, start, end, has_begun });
        has_begun
    }

    /// A write has ended, or is given up. Calls `begin` with each that may begin now.
    pub fn remove(&mut self, client: usize, slot: u16, mut begin: impl FnMut(usize, u16)) {
        let is = |e: &Entry| (e.client, e.slot) == (client, slot);
        let Some(at) = self.entries.iter().position(is) else { return };
        let gone = self.entries.remove(at);
        for at in 0..self.entries.len() {
            let e = self.entries[at];
            let waited_for_it = !e.has_begun && e.start < gone.end && gone.start < e.end;
            let is_free =
                |before: &[Entry]| !before.iter().any(|b| b.start < e.end && e.start < b.end);
            if waited_for_it && is_free(&self.entries[..at]) {
                self.entries[at].has_begun = true;
                begin(e.client, e.slot);
            }
        }
    }

    /// A client is gone: what a volume has of its stays until that has ended.
    pub fn forget(&mut self, client: usize) {
        self.entries.retain(|e| e.client != client);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_that_overlap_begin_one_after_the_other() {
        let mut order = Order::default();
        assert!(order.add(1, 0, 0, 8));
        assert!(!order.add(1, 1, 4, 12), "it overlaps the first");
        assert!(!order.add(2, 0, 8, 16), "and this one that which waits");
        assert!(order.add(2, 1, 16, 24));
        let mut begun = Vec::new();
        order.remove(1, 0, |client, slot| begun.push((client, slot)));
        assert_eq!(begun, [(1, 1)]);
        begun.clear();
        order.remove(1, 1, |client, slot| begun.push((client, slot)));
        assert_eq!(begun, [(2, 0)]);
        order.remove(2, 1, |_, _| panic!("nobody waits for it"));
    }
}
