//! What is lost where nobody writes it again: a user of a local store hears of it from a flush.

use super::{Model, State};

impl Model {
    /// The store may have lost something now, though nobody has heard of it yet: what is not durable may be
    /// there or not. A flush that succeeds over it says that it is, unless it was
    /// [given up](Model::give_up_unflushed) before.
    pub fn doubt(&mut self, run: u32) {
        if run != self.run {
            return;
        }
        for sector in &mut self.sectors {
            sector.observed = None;
            let durable = sector.durable;
            for entry in sector.history.iter_mut().filter(|entry| entry.version > durable) {
                match entry.state {
                    State::Done => entry.state = State::Unknown,
                    State::Open => entry.state = State::Doubtful,
                    State::Doubtful | State::Unknown => {}
                }
            }
        }
    }

    /// The run was told of a loss by a flush that failed: no later one says that what was acknowledged until
    /// now is durable.
    pub fn give_up_unflushed(&mut self, run: u32) {
        if run == self.run {
            self.unflushed_base += self.unflushed.len() as u64;
            self.unflushed.clear();
        }
    }
}
