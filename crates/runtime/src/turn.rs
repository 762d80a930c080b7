//! Which turn of its shard this thread is in, for those who may do only so much in one.

use std::cell::Cell;

thread_local! {
    static NUMBER: Cell<u64> = const { Cell::new(0) };
}

/// A turn begins: there has been a look at everything that may have come.
#[inline]
pub(crate) fn begin() {
    NUMBER.set(NUMBER.get() + 1);
}

/// The number of this one; nothing on a thread whose turns nobody counts.
#[inline]
pub(crate) fn number() -> Option<u64> {
    Some(NUMBER.get()).filter(|&number| number > 0)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use thinwire_buffer::Pool;

    use super::number;
    use crate::shard::Shard;

    #[test]
    fn a_shard_counts_its_turns() {
        let mut shard = Shard::new(Vec::new(), Pool::new(0)).unwrap();
        assert_eq!(number(), None);
        for turn in 1..=3 {
            shard.turn(Some(Duration::ZERO)).unwrap();
            assert_eq!(number(), Some(turn));
        }
    }
}
