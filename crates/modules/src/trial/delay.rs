//! [`Delay`]: a volume that takes its time.

use std::collections::VecDeque;
use std::time::Duration;

use thinwire_buffer::Time;
use thinwire_volume::{Completion, Io, Layer, Op, Volume};

use super::{over_one, plain};
use crate::{Child, Composite, Module, ModuleError, ModuleOption, OptionUnit};

const fn ms(name: &'static str, help: &'static str) -> ModuleOption {
    ModuleOption { name, help, bounds: 0..=600_000, multiple_of: 1, unit: OptionUnit::Milliseconds }
}

const READ: ModuleOption = ms("read_ms", "how long reads wait first (0)");
const WRITE: ModuleOption = ms("write_ms", "how long writes wait first (0)");

pub(super) const MODULE: Module = Module {
    name: "delay",
    help: "for tests: a volume that takes its time",
    children: 1..=1,
    options: &[READ, WRITE],
    ios_each_max: 1,
    keeps: None,
    build: |children, options| {
        let wait = |option| Duration::from_millis(options.get(option).unwrap_or(0));
        let (read, write) = (wait(&READ), wait(&WRITE));
        Ok(match (read + write).is_zero() {
            // Nobody is to be told the time for that.
            true => Box::new(over_one(Whole(()), children)?),
            false => Box::new(Delay::new(children, read, write)?),
        })
    },
};

plain!(Whole, "delay");

/// A volume whose reads, and whose writes, discards and write-zeroes, wait so long before they go down. Flushes do not.
pub struct Delay {
    below: Composite<Whole>,
    waits: [Duration; 2],
    waiting: [VecDeque<(Time, Io)>; 2],
    now: Time,
}

impl Delay {
    /// Over the only one of `children`.
    ///
    /// # Errors
    /// It is not the only one, or takes less in an I/O than one of its blocks.
    pub fn new(children: Vec<Child>, read: Duration, write: Duration) -> Result<Self, ModuleError> {
        let below = over_one(Whole(()), children)?;
        Ok(Delay { below, waits: [read, write], waiting: Default::default(), now: Time::ZERO })
    }
}

impl Layer for Delay {
    type Below = Composite<Whole>;

    fn below(&self) -> &Self::Below {
        &self.below
    }

    fn below_mut(&mut self) -> &mut Self::Below {
        &mut self.below
    }

    fn take(&mut self, io: Io) {
        let way = usize::from(io.op.is_write());
        match io.op {
            Op::Flush | Op::Cut | Op::LoadWriter | Op::StoreWriter => self.below.submit(io),
            _ if self.waits[way].is_zero() => self.below.submit(io),
            _ => self.waiting[way].push_back((self.now + self.waits[way], io)),
        }
    }

    fn bring(&mut self, done: &mut Vec<Completion>) {
        self.below.poll(done);
    }

    fn taken(&self) -> usize {
        self.below.outstanding() + self.waiting.iter().map(VecDeque::len).sum::<usize>()
    }

    fn own_is_timed(&self) -> bool {
        true
    }

    fn own_turn(&mut self, now: Time) -> Time {
        self.now = now;
        let (mut next, mut has_sent) = (Time::NEVER, false);
        for waiting in &mut self.waiting {
            while waiting.front().is_some_and(|(until, _)| *until <= now) {
                let Some((_, io)) = waiting.pop_front() else { break };
                self.below.submit(io);
                has_sent = true;
            }
            next = waiting.front().map_or(next, |(until, _)| next.min(*until));
        }
        if has_sent { now } else { next }
    }
}

#[cfg(test)]
mod tests {
    use thinwire_volume::testing::Puppet;

    use super::*;

    #[test]
    fn each_way_waits_by_itself() {
        let puppet = Puppet::new(1, Puppet::GEOMETRY);
        let ms = Duration::from_millis;
        let children = Child::all(vec![Box::new(puppet.clone())]);
        let mut delay = Delay::new(children, ms(2), ms(5)).unwrap();
        let start = Time(1 << 40);
        delay.turn(start);
        for (token, op) in (1..).zip([Op::WriteZeroes, Op::Read, Op::Flush]) {
            let len = if op == Op::Flush { 0 } else { 512 };
            delay.submit(Io::new(token, op, 0, len));
        }
        assert_eq!(puppet.take_one().op, Op::Flush);
        assert_eq!((delay.outstanding(), delay.turn(start)), (3, start + ms(2)));
        assert_eq!(delay.turn(start + ms(2)), start + ms(2), "it has to be polled");
        assert_eq!(puppet.take_one().op, Op::Read);
        assert_eq!(delay.turn(start + ms(4)), start + ms(5));
        delay.turn(start + ms(5));
        assert_eq!(puppet.take_one().op, Op::WriteZeroes);
    }
}
