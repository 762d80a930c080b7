//! The members of an attachment: sessions side by side, each a part of its own (`docs/design.md`, "One export,
//! several shards"). Usually there is one.

use std::cell::{Cell, OnceCell};
use std::time::{Duration, Instant};

use thinwire_buffer::Time;
use thinwire_initiator::{AttachError, Initiator, InitiatorConfig, InitiatorReport, Phase};
use thinwire_node::PartId;
use thinwire_runtime::remote::begin_attach;
use thinwire_volume::{ErrorKind, Port};

use crate::host::Host;

/// How long a target that has granted the first member may take with the others, while it answers that. One that
/// knows of no members does not answer them.
pub(super) const JOIN_PATIENCE: Duration = Duration::from_secs(10);

/// All of one attachment: the first, and the others once that has been granted the export.
pub(super) struct Members {
    host: Host,
    first: PartId<Initiator>,
    /// The others, once the first has been granted what they join, and since when the target may answer them.
    others: OnceCell<(Vec<PartId<Initiator>>, Cell<Instant>)>,
    count: u8,
    /// Of the first.
    config: InitiatorConfig,
    links: Vec<usize>,
}

impl Members {
    /// Begins to attach the first of `count`; `config` has an identity and an instance.
    pub fn begin(host: &Host, config: InitiatorConfig, links: Vec<usize>, count: u8) -> Self {
        let config = one_of(config, count);
        let first = begin_attach(&mut host.shard_mut(), config.clone(), links.clone());
        Members { host: host.clone(), first, others: OnceCell::new(), count, config, links }
    }

    /// Begins to attach the others, once the first is there.
    pub fn go_on(&self) {
        if self.others.get().is_some() || !self.is_begun() {
            return;
        }
        let member_generation = self.first_report().writer_generation;
        let join = |member: u8| {
            let label = format!("member {member} of {}", self.config.label);
            let lane = self.host.next_lane();
            let config = self.config.clone();
            let config = InitiatorConfig { member, member_generation, label, lane, ..config };
            begin_attach(&mut self.host.shard_mut(), config, self.links.clone())
        };
        let others = (1..self.count).map(join).collect();
        let begun = self.others.set((others, Cell::new(Instant::now())));
        assert!(begun.is_ok(), "they are begun once");
    }

    /// Those that have begun.
    pub fn all(&self) -> impl DoubleEndedIterator<Item = PartId<Initiator>> + '_ {
        let others = self.others.get().into_iter().flat_map(|(others, _)| others);
        std::iter::once(self.first).chain(others.copied())
    }

    /// The first has been granted.
    pub fn is_begun(&self) -> bool {
        self.host.shard().get(self.first).is_open()
    }

    /// All have been.
    pub fn is_open(&self) -> bool {
        let shard = self.host.shard();
        self.others.get().is_some() && self.all().all(|member| shard.get(member).is_open())
    }

    /// Why one that has not been granted will not be, and which.
    pub fn first_error(&self) -> Option<(usize, AttachError)> {
        let shard = self.host.shard();
        let error = |(at, member): (usize, PartId<Initiator>)| {
            Some((at, shard.get(member).first_error()?.clone()))
        };
        self.all().enumerate().find_map(error)
    }

    /// See [`Initiator::hint`].
    pub fn hint(&self) -> Option<String> {
        let shard = self.host.shard();
        self.all().find_map(|member| shard.get(member).hint().map(str::to_owned))
    }

    /// The target answers the first, and one of the others not. To be asked from time to time: what it may take
    /// begins anew while it is away.
    pub fn is_left_alone(&self) -> bool {
        let Some((_, since)) = self.others.get() else { return false };
        if self.is_away_first() {
            since.set(Instant::now());
        }
        since.get().elapsed() >= JOIN_PATIENCE && !self.is_open()
    }

    fn is_away_first(&self) -> bool {
        self.host.shard().get(self.first).phase() == Phase::Away
    }

    /// Any of them is away.
    pub fn is_away(&self) -> bool {
        let shard = self.host.shard();
        self.all().any(|member| shard.get(member).phase() == Phase::Away)
    }

    /// The shard of the target that each is on, once all are attached.
    pub fn shards(&self) -> Vec<u8> {
        self.reports(Time::ZERO).iter().map(|report| (report.target_session >> 56) as u8).collect()
    }

    /// Figures of each.
    pub fn reports(&self, now: Time) -> Vec<InitiatorReport> {
        let shard = self.host.shard();
        self.all().map(|member| shard.get(member).report(now)).collect()
    }

    fn first_report(&self) -> InitiatorReport {
        self.host.shard().get(self.first).report(Time::ZERO)
    }

    /// The first, to ask it what all have in common.
    pub fn first(&self) -> PartId<Initiator> {
        self.first
    }

    /// Any of them ended while the target was away, which has not heard of it.
    pub fn is_unheard(&self) -> bool {
        let shard = self.host.shard();
        self.all().any(|member| shard.get(member).is_unheard())
    }

    /// Their ends.
    pub fn ports(&self) -> Vec<Port> {
        let mut shard = self.host.shard_mut();
        self.all().map(|member| shard.node().port(member)).collect()
    }

    /// Begins to let go: in order, or at once with `force`. What the first retains is flushed beside the others,
    /// but it holds the export until they have let go. One that may be about to be granted it waits for the answer.
    pub fn begin_close(&self, force: bool) {
        let mut shard = self.host.shard_mut();
        let alone = self.all().nth(1).is_none();
        for member in self.all() {
            let initiator = shard.get_mut(member);
            let is_first = member == self.first;
            let holds = initiator.is_open() || initiator.may_be_granted();
            match force || (!is_first && !holds) {
                true => initiator.abort(),
                false if is_first && !alone => initiator.begin_close(),
                false => initiator.close(),
            }
        }
    }

    /// Whether all have let go, after each turn; lets go of the first when it is its turn. The first thing that
    /// could not be made durable.
    pub fn closed(&self) -> Option<Result<(), ErrorKind>> {
        let mut shard = self.host.shard_mut();
        let mut left = self.all().filter(|&member| !shard.get(member).is_closed());
        match (left.next(), left.next()) {
            (None, _) => {
                let error = self.all().find_map(|member| shard.get(member).close_error());
                return Some(error.map_or(Ok(()), Err));
            }
            (Some(member), None) if member == self.first => {}
            _ => return None,
        }
        // Again, it is told nothing new.
        shard.get_mut(self.first).close();
        None
    }
}

/// Less than that is not worth flushing for: a member flushes at half of it, beyond some of the pieces that are dealt.
const MEMBER_RETAINED_MIN: usize = 2 << 20;

/// What each of so many members may keep: together no more unflushed writes than one alone, which is
/// what a process that carries a disk has taken memory for (`attachment/faces.rs`).
fn one_of(config: InitiatorConfig, count: u8) -> InitiatorConfig {
    let count = usize::from(count);
    InitiatorConfig {
        retained_bytes_max: (config.retained_bytes_max / count).max(MEMBER_RETAINED_MIN),
        retained_entries_max: config.retained_entries_max / count,
        ..config
    }
}

#[cfg(test)]
mod tests {
    use thinwire_buffer::Addr;
    use thinwire_initiator::{MEMBERS_MAX, TargetName};

    use super::*;

    #[test]
    fn members_keep_as_much_together_as_one_alone() {
        let alone = InitiatorConfig::new(TargetName::Address(Addr::Sim(0)), "disk");
        for count in 1..=MEMBERS_MAX {
            let one = one_of(alone.clone(), count);
            let (all, bytes_max) = (usize::from(count), alone.retained_bytes_max);
            let entries_max = alone.retained_entries_max;
            assert!(one.retained_bytes_max * all <= bytes_max, "{count}");
            assert!(one.retained_entries_max * all <= entries_max, "{count}");
            // None for want of it, and at half of it a member flushes: beyond some chunks.
            assert!(one.retained_bytes_max * (all + 1) > bytes_max, "{count}");
            assert!(one.retained_entries_max * (all + 1) > entries_max, "{count}");
            assert!(one.retained_bytes_max / 2 >= 4 * (256 << 10), "{count}");
            assert!(one.retained_entries_max / 2 >= 512, "{count}");
        }
    }
}
