//! What a mirror is told of snapshots that are some of several, cut as one ([`Op::Cut`]): all of its legs are, or it says that they are not.
//!
//! Whoever tells it holds all writes, and what was written is flushed. So legs in sync have the same data, however far apart in time they make their
//! snapshots, and of bits and labels what a crash of one after the other leaves.

use thinwire_volume::{Completion, CutAct, CutOrder, ErrorKind, Io, Op};

use super::serve::lowest;
use super::state::LegState;
use super::{Mirror, MirrorCanary, NAME, Task, bits};

impl Mirror {
    /// Hands an order to all legs. One that is not in sync would not have what it is about, or not hear of it, and who has not heard
    /// keeps half a cut for good: so while there is one, nothing is done.
    pub(super) fn begin_cut(&mut self, io: Io) {
        let tells = CutOrder::of(&io).is_some_and(|order| order.act == CutAct::Next);
        if !tells && !self.has_all_in_sync() {
            let error = io.error(ErrorKind::Away, NAME);
            return self.ready.push(Completion::new(io.token, Err(error)));
        }
        // What one has all have.
        let to = if tells { lowest(self.in_sync) } else { self.in_sync };
        let (data, len) = (io.data.clone(), io.len);
        let id = self.new_job(Task::User, io);
        for leg in bits(to) {
            self.send(leg, id, Io { data: data.clone(), ..Io::new(0, Op::Cut, 0, len) });
        }
    }

    /// All legs have ended it. One that was dropped meanwhile is said by the others to be behind, in snapshots, too, that were made since.
    pub(super) fn finish_cut(&mut self, id: u32) {
        let Some(job) = self.jobs.remove(id.into()) else { return };
        let result = match job.error {
            Some(error) => Err(error),
            None if CutOrder::of(&job.io).is_some_and(|order| order.act == CutAct::Next) => Ok(()),
            None if self.has_all_in_sync() => Ok(()),
            None => Err(job.io.error(ErrorKind::Away, NAME)),
        };
        let mut completion = Completion::new(job.io.token, result);
        if result.is_ok() {
            completion.data = job.data;
        }
        self.tell(&job.io, completion);
    }

    /// Every leg has all data, but for those that were removed.
    fn has_all_in_sync(&self) -> bool {
        let is_one = |(_, state): &(usize, &LegState)| !matches!(state, LegState::Removed { .. });
        let legs = self.state.legs.iter().enumerate().filter(is_one);
        let all = legs.fold(0_u8, |all, (leg, _)| all | 1 << leg);
        self.in_sync & all == all || self.canary == MirrorCanary::CutsWhatIsThere
    }
}
