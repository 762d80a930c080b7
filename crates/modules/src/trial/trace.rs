//! [`Traced`]: a volume that remembers what it was asked.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use thinwire_volume::{Completion, Io, IoFlags, Layer, Op, Volume};

use super::{over_one, plain};
use crate::{Child, Composite, Module, ModuleError};

/// So many I/Os are remembered.
const LAST_MAX: usize = 256;

pub(super) const MODULE: Module = Module {
    name: Traced::NAME,
    help: "for tests: a volume that remembers what it was asked",
    children: 1..=1,
    options: &[],
    ios_each_max: 1,
    keeps: None,
    build: |children, _| Ok(Box::new(Traced::new(children)?.0)),
};

plain!(Whole, "trace");

/// The last of what a volume was asked, the oldest first: what, with which flags, where and how long.
pub type TraceLog = Rc<RefCell<VecDeque<(Op, IoFlags, u64, u64)>>>;

/// A volume that remembers the last 256 I/Os that it was asked for, and does them as they are.
pub struct Traced {
    below: Composite<Whole>,
    log: TraceLog,
}

impl Traced {
    /// What users call it.
    pub const NAME: &str = "trace";

    /// Over the only one of `children`, and what it remembers.
    ///
    /// # Errors
    /// It is not the only one, or takes less in an I/O than one of its blocks.
    pub fn new(children: Vec<Child>) -> Result<(Self, TraceLog), ModuleError> {
        let (below, log) = (over_one(Whole(()), children)?, TraceLog::default());
        log.borrow_mut().reserve(LAST_MAX);
        Ok((Traced { below, log: log.clone() }, log))
    }
}

impl Layer for Traced {
    type Below = Composite<Whole>;

    fn below(&self) -> &Self::Below {
        &self.below
    }

    fn below_mut(&mut self) -> &mut Self::Below {
        &mut self.below
    }

    fn take(&mut self, io: Io) {
        let log = &mut *self.log.borrow_mut();
        if log.len() == LAST_MAX {
            log.pop_front();
        }
        log.push_back((io.op, io.flags, io.offset, io.len));
        self.below.submit(io);
    }

    fn bring(&mut self, done: &mut Vec<Completion>) {
        self.below.poll(done);
    }

    fn taken(&self) -> usize {
        self.below.outstanding()
    }
}

#[cfg(test)]
mod tests {
    use thinwire_volume::testing::Puppet;

    use super::*;

    #[test]
    fn the_last_are_remembered() {
        let children = Child::all(vec![Box::new(Puppet::new(1, Puppet::GEOMETRY))]);
        let (mut trace, log) = Traced::new(children).unwrap();
        (0..300).for_each(|nth| trace.submit(Io::new(nth, Op::Read, nth % 16 * 512, 512)));
        let log = log.borrow();
        assert_eq!(log.len(), LAST_MAX);
        assert_eq!(log[0], (Op::Read, IoFlags::default(), 44 % 16 * 512, 512));
    }
}
