//! [`Lie`]: a volume that says of each write that it has done it, and has not of some.

use thinwire_buffer::{Pool, SegList};
use thinwire_volume::{Geometry, Io, Op};

use super::{Draw, FROM, SEED, TO, one_in, over_one};
use crate::{Below, Child, Composite, Layout, Module, ModuleError, ModuleOption, Options};

const LOST: ModuleOption = one_in("lost", "one write in so many is not done (none)");
const MISDIRECTED: ModuleOption = one_in("misdirected", "one in so many is done elsewhere (none)");
const FLIPPED: ModuleOption = one_in("flipped", "of one in so many a bit is changed (none)");

pub(super) const MODULE: Module = Module {
    name: Lie::NAME,
    help: "for tests: a volume that lies about some of its writes",
    children: 1..=1,
    options: &[LOST, MISDIRECTED, FLIPPED, FROM, TO, SEED],
    ios_each_max: 1,
    keeps: None,
    build: |children, options| Ok(Box::new(Lie::over(children, options)?)),
};

/// A volume that lies about some of its writes, of those that begin where it is told to: it loses them, does them elsewhere,
/// or changes a bit. Which ones depends on the seed, and on how many there were before. All else is true, write-zeroes and discards included.
pub struct Lie {
    draw: Draw,
    from: u64,
    lost: u64,
    misdirected: u64,
    flipped: u64,
    /// Nothing that begins there or behind is lied about.
    to: u64,
    block: u64,
}

impl Lie {
    fn over(children: Vec<Child>, options: &Options) -> Result<Composite<Self>, ModuleError> {
        let of = |option| options.get(option).unwrap_or(0);
        let shape = children.first().map(Child::geometry);
        let (bytes, block) = shape.map_or((0, 1), |it| (it.bytes, u64::from(it.block_bytes)));
        let lie = Lie {
            draw: Draw(of(&SEED)),
            from: of(&FROM),
            lost: of(&LOST),
            misdirected: of(&MISDIRECTED),
            flipped: of(&FLIPPED),
            to: options.get(&TO).unwrap_or(u64::MAX).min(bytes) / block * block,
            block,
        };
        over_one(lie, children)
    }

    /// Where else it could be done, where it lies.
    fn elsewhere(&mut self, io: &Io) -> u64 {
        let from = self.from.next_multiple_of(self.block);
        let places = (self.to.saturating_sub(io.len + from)) / self.block;
        match places {
            0 => io.offset,
            _ => from + (self.draw.next() % (places + 1)) * self.block,
        }
    }

    fn flip(&mut self, data: &SegList) -> SegList {
        let mut bytes = data.to_vec();
        let bit = self.draw.next() % (8 * bytes.len() as u64);
        bytes[bit as usize / 8] ^= 1 << (bit % 8);
        SegList::of(Pool::new(0).copy_of(&bytes).freeze())
    }
}

impl Layout for Lie {
    const NAME: &'static str = "lie";

    fn submit(&mut self, mut io: Io, below: &mut Below) {
        let mut offset = io.offset;
        if io.op == Op::Write && (self.from..self.to).contains(&offset) {
            if self.draw.one_in(self.lost) {
                // As long as if it were done.
                io = Io::new(io.token, Op::Flush, 0, 0);
            } else if self.draw.one_in(self.misdirected) {
                offset = self.elsewhere(&io);
            } else if self.draw.one_in(self.flipped) {
                io.data = self.flip(&io.data);
            }
        }
        below.pass_on(0, offset, io);
    }

    fn grow(&mut self, _: usize, bytes: u64, whole: &Geometry) -> Option<u64> {
        let block = u64::from(whole.block_bytes);
        Some(bytes / block * block)
    }
}

#[cfg(test)]
mod tests {
    use thinwire_volume::Volume;
    use thinwire_volume::testing::Puppet;

    use super::*;

    #[test]
    fn it_lies_as_often_as_it_is_told_to_and_the_same_each_time() {
        let run = |seed: u64| {
            let puppet = Puppet::new(1, Puppet::GEOMETRY);
            let mut options = Options::default();
            for option in [&LOST, &MISDIRECTED, &FLIPPED] {
                assert!(options.set(option, 8));
            }
            assert!(options.set(&FROM, 2048) && options.set(&SEED, seed));
            let children = Child::all(vec![Box::new(puppet.clone())]);
            let mut lie = Lie::over(children, &options).unwrap();
            let mut told = Vec::new();
            for nth in 0..400 {
                let mut io = Io::new(nth, Op::Write, nth % 16 * 512, 512);
                io.data = SegList::of(Pool::new(0).copy_of(&[7; 512]).freeze());
                lie.submit(io);
                let below = puppet.take_one();
                let bits = below.data.to_vec().iter().map(|byte| (byte ^ 7).count_ones()).sum();
                told.push(match (below.op, bits) {
                    (Op::Flush, 0) => 'l',
                    (Op::Write, 1) if below.offset == nth % 16 * 512 => 'f',
                    (Op::Write, 0) if below.offset == nth % 16 * 512 => '.',
                    (Op::Write, 0) if below.offset >= 2048 => 'm',
                    other => panic!("{other:?}"),
                });
                puppet.succeed(&below);
                let mut done = Vec::new();
                lie.poll(&mut done);
                assert_eq!((done[0].token, done[0].result), (nth, Ok(())), "it says it is done");
            }
            told.into_iter().collect::<String>()
        };
        let told = run(5);
        assert!(told == run(5) && told != run(6));
        for kind in ['l', 'm', 'f'] {
            let count = told.matches(kind).count();
            assert!((15..70).contains(&count), "{kind}: {count}");
        }
        let is_early = |(nth, _): &(usize, char)| nth % 16 < 4;
        assert!(told.chars().enumerate().filter(is_early).all(|(_, kind)| kind == '.'));
    }
}
