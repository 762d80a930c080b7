//! How long what is expected takes to come, for each kind of it.

use std::time::Duration;

use super::quantile::Quantile;

/// What ends an idle time, as far as that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// A frame, or a disk's completion: a look at the link, or at memory, finds it.
    Frame,
    /// A frame of an answer that has begun, and is not the last of it: no wake-up shows.
    Rest,
    /// Something that only a descriptor tells of, such as the next request of a client of this machine that has all
    /// its answers.
    Descriptor,
}

/// Times from going idle to the arrival of what came next: what half of them stay below, and nine in ten.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gaps {
    frame: [Quantile; 2],
    rest: [Quantile; 2],
    descriptor: [Quantile; 2],
}

impl Gaps {
    /// Begins with these for each kind.
    pub fn new(median: Duration, long: Duration) -> Self {
        let both = [Quantile::median(median), Quantile::nine_tenths(long)];
        Gaps { frame: both, rest: both, descriptor: both }
    }

    /// What half of the gaps stay below.
    pub fn median(&self, next: Next) -> Duration {
        self.of(next)[0].get()
    }

    /// What nine in ten of the gaps stay below.
    pub fn long(&self, next: Next) -> Duration {
        self.of(next)[1].get()
    }

    /// A gap is over in which `next` was expected. `most` as [`Quantile::see`].
    pub fn see(&mut self, next: Next, gap: Duration, most: Duration) {
        let quantiles = match next {
            Next::Frame => &mut self.frame,
            Next::Rest => &mut self.rest,
            Next::Descriptor => &mut self.descriptor,
        };
        quantiles.iter_mut().for_each(|quantile| quantile.see(gap, most));
    }

    fn of(&self, next: Next) -> &[Quantile; 2] {
        match next {
            Next::Frame => &self.frame,
            Next::Rest => &self.rest,
            Next::Descriptor => &self.descriptor,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_learnt_apart() {
        let [first, long] = [100, 200].map(Duration::from_micros);
        let mut gaps = Gaps::new(first, long);
        let most = Duration::from_millis(1);
        for _ in 0..100 {
            gaps.see(Next::Frame, Duration::from_micros(10), most);
            gaps.see(Next::Descriptor, Duration::from_millis(5), most);
        }
        assert!(gaps.median(Next::Frame) < Duration::from_micros(15));
        assert!(gaps.long(Next::Frame) < Duration::from_micros(30));
        let slow = [gaps.median(Next::Descriptor), gaps.long(Next::Descriptor)];
        assert!(slow.iter().all(|&gap| gap > most / 2 && gap <= most), "{slow:?}");
    }
}
