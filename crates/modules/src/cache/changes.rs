//! Which parts of a volume are being changed, and which I/Os have met a change since they began: what was read
//! beside one is not kept.

/// An I/O below that is not complete.
struct Running {
    number: u64,
    start: u64,
    end: u64,
    /// Something else may have changed its range since it began.
    is_touched: bool,
    /// A change was under way over its range when it began: which of them is done last nobody knows.
    is_beside: bool,
}

impl Running {
    #[inline]
    fn overlaps(&self, start: u64, end: u64) -> bool {
        self.start < end && start < self.end
    }
}

/// I/Os by number, in no order: as many as the users of a volume have outstanding, and what is read ahead for them.
/// Ranges are in bytes.
pub(super) struct Changes {
    changes: Vec<Running>,
    /// Apart, so that whoever asks for changes, as each I/O does, looks at none of them.
    reads: Vec<Running>,
    next: u64,
}

impl Changes {
    pub fn new() -> Self {
        Changes { changes: Vec::new(), reads: Vec::new(), next: 0 }
    }

    /// A change of this range begins: its number. Whatever is under way there has met it.
    pub fn begin(&mut self, start: u64, end: u64) -> u64 {
        let is_beside = self.is_busy(start, end);
        let met = self.changes.iter_mut().chain(&mut self.reads);
        met.filter(|other| other.overlaps(start, end)).for_each(|other| other.is_touched = true);
        let number = self.take_number();
        self.changes.push(Running { number, start, end, is_touched: false, is_beside });
        number
    }

    /// A read of this range begins that may be kept: its number.
    pub fn begin_read(&mut self, start: u64, end: u64) -> u64 {
        let number = self.take_number();
        self.reads.push(Running { number, start, end, is_touched: false, is_beside: false });
        number
    }

    /// What begins next has this number; numbers rise.
    pub fn next_number(&self) -> u64 {
        self.next
    }

    fn take_number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// No change was under way over the range of this one when it began.
    pub fn is_first(&self, number: u64) -> bool {
        self.changes.iter().any(|change| change.number == number && !change.is_beside)
    }

    /// A change has ended, however. True if nothing has met it that began later: of two that overlap the first is
    /// told.
    pub fn end(&mut self, number: u64) -> bool {
        take_out(&mut self.changes, number)
    }

    /// A read has ended, however. True if no change has met it.
    pub fn end_read(&mut self, number: u64) -> bool {
        take_out(&mut self.reads, number)
    }

    /// A change that is not complete touches the range.
    #[inline]
    pub fn is_busy(&self, start: u64, end: u64) -> bool {
        self.changes.iter().any(|change| change.overlaps(start, end))
    }

    /// Something may have changed anything.
    pub fn distrust(&mut self) {
        self.changes.iter_mut().chain(&mut self.reads).for_each(|other| other.is_touched = true);
    }
}

/// Whether it was there, and untouched.
fn take_out(running: &mut Vec<Running>, number: u64) -> bool {
    let at = running.iter().position(|other| other.number == number);
    at.is_some_and(|at| !running.swap_remove(at).is_touched)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_meets_a_change_is_told_when_it_ends() {
        let mut changes = Changes::new();
        let reads = [(0, 11), (19, 30), (20, 30), (5, 10)].map(|(start, end)| {
            assert!(!changes.is_busy(start, end), "a read is none");
            changes.begin_read(start, end)
        });
        let first = changes.begin(10, 20);
        assert!(changes.is_busy(19, 21) && !changes.is_busy(20, 30) && !changes.is_busy(5, 10));
        // Many more, over none of them.
        let others: Vec<_> = (0..1000).map(|at| changes.begin(100 + at, 101 + at)).collect();
        assert!(others.into_iter().all(|other| changes.end(other)));
        assert!(changes.end(first), "no later one has met it");
        assert!(!changes.is_busy(0, 100), "it is complete");
        assert_eq!(reads.map(|read| changes.end_read(read)), [false, false, true, true]);
        // Of two the first is told, whichever ends first.
        for is_first in [true, false] {
            let both = [changes.begin(0, 10), changes.begin(9, 20)];
            assert_eq!(both.map(|number| changes.is_first(number)), [true, false]);
            let (one, other) = if is_first { (both[0], both[1]) } else { (both[1], both[0]) };
            assert_eq!([changes.end(one), changes.end(other)], [!is_first, is_first]);
        }
        let (read, change) = (changes.begin_read(0, 1), changes.begin(5, 6));
        changes.distrust();
        let later = changes.begin_read(0, 1);
        assert_eq!((changes.end_read(read), changes.end(change)), (false, false));
        assert!(changes.end_read(later));
        assert!(changes.changes.is_empty() && changes.reads.is_empty());
    }
}
