//! [`Failing`]: a volume some of whose I/Os fail.

use thinwire_volume::{Completion, ErrorKind, Io, Layer, Op, Volume};

use super::{Draw, FROM, SEED, one_in, over_one, plain};
use crate::{Child, Composite, Module, ModuleError, ModuleOption, Options};

const READS: ModuleOption = one_in("reads", "one read in so many fails (none)");
const WRITES: ModuleOption = one_in("writes", "one write in so many fails (none)");
const FLUSHES: ModuleOption = one_in("flushes", "one flush in so many fails (none)");

pub(super) const MODULE: Module = Module {
    name: NAME,
    help: "for tests: a volume some of whose I/Os fail",
    children: 1..=1,
    options: &[READS, WRITES, FLUSHES, FROM, SEED],
    ios_each_max: 1,
    keeps: None,
    build: |children, options| Ok(Box::new(Failing::new(children, options)?)),
};

const NAME: &str = "error";

plain!(Whole, "error");

/// A volume of whose reads, writes and flushes one in so many fails, without effect.
pub struct Failing {
    below: Composite<Whole>,
    draw: Draw,
    from: u64,
    /// Of reads, of writes, of flushes; 0 for none.
    one_in: [u64; 3],
    failed: Vec<Completion>,
}

impl Failing {
    fn new(children: Vec<Child>, options: &Options) -> Result<Self, ModuleError> {
        Ok(Failing {
            below: over_one(Whole(()), children)?,
            draw: Draw(options.get(&SEED).unwrap_or(0)),
            from: options.get(&FROM).unwrap_or(0),
            one_in: [&READS, &WRITES, &FLUSHES].map(|of| options.get(of).unwrap_or(0)),
            failed: Vec::new(),
        })
    }
}

impl Layer for Failing {
    type Below = Composite<Whole>;

    fn below(&self) -> &Self::Below {
        &self.below
    }

    fn below_mut(&mut self) -> &mut Self::Below {
        &mut self.below
    }

    fn take(&mut self, io: Io) {
        let one_in = match io.op {
            Op::Read | Op::BlockStatus => self.one_in[0],
            Op::Write | Op::WriteZeroes | Op::Discard => self.one_in[1],
            Op::Flush => self.one_in[2],
            Op::Cut | Op::LoadWriter | Op::StoreWriter => 0,
        };
        let is_meant = io.op == Op::Flush || io.offset >= self.from;
        if !is_meant || !self.draw.one_in(one_in) {
            return self.below.submit(io);
        }
        self.failed.push(Completion::new(io.token, Err(io.error(ErrorKind::Io, NAME))));
    }

    fn bring(&mut self, done: &mut Vec<Completion>) {
        let start = done.len();
        self.below.poll(done);
        // A flush that has failed comes before what saw the loss.
        done.splice(start..start, self.failed.drain(..));
    }

    fn taken(&self) -> usize {
        self.below.outstanding() + self.failed.len()
    }
}

#[cfg(test)]
mod tests {
    use thinwire_volume::testing::Puppet;

    use super::*;

    #[test]
    fn one_in_so_many_fails() {
        let puppet = Puppet::new(1, Puppet::GEOMETRY);
        let mut options = Options::default();
        assert!(options.set(&READS, 4) && options.set(&FROM, 1024) && options.set(&FLUSHES, 1));
        let children = Child::all(vec![Box::new(puppet.clone())]);
        let mut failing = Failing::new(children, &options).unwrap();
        let mut done = Vec::new();
        for token in 0..400 {
            failing.submit(Io::new(token, Op::Read, token % 8 * 512, 512));
            failing.submit(Io::new(1000 + token, Op::WriteZeroes, 4096, 512));
        }
        failing.poll(&mut done);
        let all = puppet.take();
        assert_eq!(all.len() + done.len(), 800);
        assert!((50..100).contains(&done.len()), "{}", done.len());
        let is_meant = |one: &Completion| one.token < 400 && one.token % 8 >= 2;
        assert!(done.iter().all(|one| is_meant(one) && one.result.is_err()));
        failing.submit(Io::new(9999, Op::Flush, 0, 0));
        assert_eq!(failing.outstanding(), all.len() + 1);
        done.clear();
        failing.poll(&mut done);
        assert_eq!(done[0].result.unwrap_err().op, Op::Flush);
    }
}
