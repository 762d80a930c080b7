//! When each part must be closed next: a heap in which a part's time can be changed in place, so that
//! it never holds more than one for each.

use thinwire_buffer::Time;

/// Parts that have no time.
const NOWHERE: usize = usize::MAX;

/// Times of parts, by number.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    /// Numbers of parts, the one that is due first at the root.
    heap: Vec<usize>,
    /// By part: its time, and where it stands in the heap.
    times: Vec<(Time, usize)>,
}

impl Timers {
    /// Makes room for parts up to this number.
    pub fn grow(&mut self, parts: usize) {
        if self.times.len() < parts {
            self.times.resize(parts, (Time::NEVER, NOWHERE));
            self.heap.reserve(parts - self.heap.len());
        }
    }

    /// A part is due then.
    #[inline]
    pub fn set(&mut self, part: usize, time: Time) {
        let (before, at) = self.times[part];
        if time == before {
            return;
        }
        self.times[part].0 = time;
        match at {
            NOWHERE => {
                let end = self.heap.len();
                self.heap.push(part);
                self.times[part].1 = end;
                self.rise(end);
            }
            _ if time == Time::NEVER => self.take_out(at),
            _ if time < before => self.rise(at),
            _ => self.sink(at),
        }
    }

    /// When the first is due.
    #[inline]
    pub fn first(&self) -> Time {
        self.heap.first().map_or(Time::NEVER, |&part| self.times[part].0)
    }

    /// Takes out a part that is due by now.
    #[inline]
    pub fn take_due(&mut self, now: Time) -> Option<usize> {
        let part = *self.heap.first().filter(|&&part| self.times[part].0 <= now)?;
        self.times[part].0 = Time::NEVER;
        self.take_out(0);
        Some(part)
    }

    fn take_out(&mut self, at: usize) {
        self.times[self.heap[at]].1 = NOWHERE;
        let last = self.heap.pop().expect("it stands there");
        if at < self.heap.len() {
            self.heap[at] = last;
            self.times[last].1 = at;
            self.rise(at);
            self.sink(self.times[last].1);
        }
    }

    fn time_at(&self, at: usize) -> Time {
        self.times[self.heap[at]].0
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.times[self.heap[a]].1 = a;
        self.times[self.heap[b]].1 = b;
    }

    fn rise(&mut self, mut at: usize) {
        while at > 0 && self.time_at(at) < self.time_at((at - 1) / 2) {
            self.swap(at, (at - 1) / 2);
            at = (at - 1) / 2;
        }
    }

    fn sink(&mut self, mut at: usize) {
        loop {
            let below = [2 * at + 1, 2 * at + 2];
            let below = below.into_iter().filter(|&b| b < self.heap.len());
            let Some(least) = below.min_by_key(|&b| self.time_at(b)) else { return };
            if self.time_at(at) <= self.time_at(least) {
                return;
            }
            self.swap(at, least);
            at = least;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_due_in_the_order_of_their_last_times() {
        let mut timers = Timers::default();
        timers.grow(40);
        let mut model = vec![Time::NEVER; 40];
        let mut state = 1u64;
        let mut draw = |below: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % below
        };
        for now in 0..20_000u64 {
            let (part, kind) = (draw(40) as usize, draw(8));
            let time = if kind == 0 { Time::NEVER } else { Time(now + draw(300)) };
            timers.set(part, time);
            model[part] = time;
            let now = Time(now);
            while let Some(part) = timers.take_due(now) {
                assert!(model[part] <= now);
                assert!(model.iter().all(|&t| t >= model[part]), "not the first");
                model[part] = Time::NEVER;
            }
            assert_eq!(timers.first(), *model.iter().min().unwrap());
            assert!(timers.heap.len() <= 40);
        }
    }
}
