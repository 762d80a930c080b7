//! Which turn of its shard this thread is in, for those who may do only so much in one.

use std::cell::Cell;

thread_local! {
    static NUMBER: Cell<u64> = const { Cell::new(0) };
    static IS_COUNTED: Cell<bool> = const { Cell::new(false) };
}

/// A turn begins: there has been a look at everything that may have come.
#[inline]
pub(crate) fn begin() {
    NUMBER.set(NUMBER.get() + 1);
    IS_COUNTED.set(true);
}

/// The shard is gone: there are no turns until another one begins one. Numbers are not given out again.
pub(crate) fn end() {
    // A shard may be dropped when the thread's own variables have gone.
    let _ = IS_COUNTED.try_with(|is_counted| is_counted.set(false));
}

/// The number of this one; nothing on a thread whose turns nobody counts.
#[inline]
pub(crate) fn number() -> Option<u64> {
    IS_COUNTED.get().then(|| NUMBER.get())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use thinwire_buffer::Pool;

    use super::number;
    use crate::shard::Shard;

    #[test]
    fn a_shard_counts_its_turns_while_it_is_there() {
        let mut expected = 0;
        for _ in 0..2 {
            let mut shard = Shard::new(Vec::new(), Pool::new(0)).unwrap();
            assert_eq!(number(), None);
            for _ in 0..3 {
                shard.turn(Some(Duration::ZERO)).unwrap();
                expected += 1;
                assert_eq!(number(), Some(expected));
            }
        }
        assert_eq!(number(), None);
    }
}
