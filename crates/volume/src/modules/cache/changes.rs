//! Which parts of a volume are being changed, and were a moment ago: what was read beside a change is not
//! kept.

/// Changes that are remembered, at most. What has seen more of them begin is not kept.
const REMEMBERED: usize = 256;

/// A range of bytes.
#[derive(Clone, Copy, Default)]
struct Span {
    start: u64,
    end: u64,
}

impl Span {
    #[inline]
    fn overlaps(&self, start: u64, end: u64) -> bool {
        self.start < end && start < self.end
    }
}

/// Changes by number, in the order in which they began.
pub(super) struct Changes {
    /// The last ones, each at its number modulo their count.
    last: Box<[Span]>,
    /// The number of the next.
    next: u64,
    /// What began before this saw something that may have changed anything.
    trusted_from: u64,
    running: Vec<(u64, Span)>,
}

impl Changes {
    pub fn new() -> Self {
        let last = vec![Span::default(); REMEMBERED].into();
        Changes { last, next: 0, trusted_from: 0, running: Vec::new() }
    }

    /// A change of this range begins: its number.
    pub fn begin(&mut self, start: u64, end: u64) -> u64 {
        let number = self.next;
        let span = Span { start, end };
        self.last[number as usize % REMEMBERED] = span;
        self.next += 1;
        self.running.push((number, span));
        number
    }

    /// It has ended, however.
    pub fn end(&mut self, number: u64) {
        if let Some(at) = self.running.iter().position(|&(other, _)| other == number) {
            self.running.swap_remove(at);
        }
    }

    /// A change that is not complete touches the range.
    #[inline]
    pub fn is_busy(&self, start: u64, end: u64) -> bool {
        self.running.iter().any(|(_, span)| span.overlaps(start, end))
    }

    /// This moment.
    pub fn now(&self) -> u64 {
        self.next
    }

    /// Since that moment something may have touched the range.
    pub fn has_touched(&self, since: u64, start: u64, end: u64) -> bool {
        since < self.trusted_from
            || self.next - since > REMEMBERED as u64
            || (since..self.next)
                .any(|number| self.last[number as usize % REMEMBERED].overlaps(start, end))
    }

    /// Something may have changed anything.
    pub fn distrust(&mut self) {
        self.last[self.next as usize % REMEMBERED] = Span::default();
        self.next += 1;
        self.trusted_from = self.next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_touched_a_range_is_known_for_a_while() {
        let mut changes = Changes::new();
        let begun = changes.now();
        let first = changes.begin(10, 20);
        assert!(changes.is_busy(19, 21) && !changes.is_busy(20, 30) && !changes.is_busy(5, 10));
        changes.end(first);
        assert!(!changes.is_busy(0, 100), "it is complete");
        assert!(changes.has_touched(begun, 0, 11) && !changes.has_touched(begun, 20, 30));
        assert!(!changes.has_touched(changes.now(), 0, 100), "before that moment");
        // As many as are remembered, and one more.
        for _ in 1..REMEMBERED {
            changes.begin(50, 60);
        }
        assert!(!changes.has_touched(begun, 20, 30));
        changes.begin(50, 60);
        assert!(changes.has_touched(begun, 20, 30), "nobody knows any more");
        let begun = changes.now();
        changes.distrust();
        assert!(changes.has_touched(begun, 1000, 1001));
        assert!(!changes.has_touched(changes.now(), 1000, 1001));
    }
}
