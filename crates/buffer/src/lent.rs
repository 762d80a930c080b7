//! Memory that is not a pool's: lent by whoever owns it, for example a link whose kernel interface
//! receives into a region of its own, and given back when nobody refers to it any more.

use std::rc::Rc;

use crate::Buf;

/// One piece of lent memory: always the same bytes, as long as the value lives. A [`Buf`] made of it
/// ([`Buf::lent`]) works as one of a pool does, and so do its segments.
pub trait Lent {
    /// The bytes, all of them.
    fn bytes(&self) -> &[u8];

    /// The bytes, for their one owner.
    fn bytes_mut(&mut self) -> &mut [u8];

    /// Who takes the memory back; `None` if it is to be dropped instead, because the lender is gone.
    fn lender(&self) -> Option<Rc<dyn Lender>>;
}

/// Whoever gets lent memory back.
pub trait Lender {
    /// Nobody refers to this memory any more. Called where the last reference is dropped, so
    /// anywhere in the work of the thread: keep it short, and drop no other lent memory in it.
    fn take_back(&self, buf: Buf);
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Weak;

    use super::*;

    /// Keeps what came back.
    #[derive(Default)]
    struct Shelf(RefCell<Vec<Buf>>);

    impl Lender for Shelf {
        fn take_back(&self, buf: Buf) {
            self.0.borrow_mut().push(buf);
        }
    }

    struct Piece(Vec<u8>, Weak<Shelf>);

    impl Lent for Piece {
        fn bytes(&self) -> &[u8] {
            &self.0
        }
        fn bytes_mut(&mut self) -> &mut [u8] {
            &mut self.0
        }
        fn lender(&self) -> Option<Rc<dyn Lender>> {
            Some(self.1.upgrade()?)
        }
    }

    #[test]
    fn lent_memory_returns_with_its_last_segment_and_works_again() {
        let shelf = Rc::new(Shelf::default());
        let mut buf = Buf::lent(Box::new(Piece(vec![0; 10], Rc::downgrade(&shelf))));
        for round in 0..3 {
            buf[2..4].fill(round);
            let part = buf.freeze().slice(2, 2);
            let other = part.clone();
            drop(part);
            assert!(shelf.0.borrow().is_empty());
            assert_eq!(other[..], [round, round]);
            drop(other);
            buf = shelf.0.borrow_mut().pop().expect("came back");
            assert_eq!((buf.len(), buf.capacity()), (10, 10));
        }
        // Without its lender it is dropped.
        drop(shelf);
        drop(buf.freeze());
    }
}
