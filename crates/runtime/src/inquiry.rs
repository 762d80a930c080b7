//! Asking the shards of a target how they are, and giving them other keys and limits, from a thread that is none of them:
//! each answers between two of its turns, with plain figures. What is made of those, and who waits for it, is no
//! shard's work.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use thinwire_buffer::Addr;
use thinwire_initiator::InitiatorReport;
use thinwire_link::LinkStats;
use thinwire_proto::Time;
use thinwire_target::{ExportReport, Limits, SessionReport, TargetKeys, TargetStats};

use crate::shards::{new_bell, ring};

/// Sessions that one shard tells of, at most: a turn that collects them must not take long.
pub const SESSIONS_TOLD_MAX: usize = 256;

/// What one shard tells of itself.
#[derive(Clone, Debug)]
pub struct ShardReport {
    /// Its number.
    pub index: u8,
    /// Its time, which the times in the others are of.
    pub now: Time,
    /// Its exports.
    pub exports: Vec<ExportReport>,
    /// What they stand on at other targets.
    pub leaves: Vec<LeafReport>,
    /// Those with files or devices of this machine, by name, and whether all I/O on these is direct.
    pub direct: Vec<(String, bool)>,
    /// Sessions in use, at most [`SESSIONS_TOLD_MAX`].
    pub sessions: Vec<SessionReport>,
    /// How many there are.
    pub session_count: usize,
    /// Its links; paths name them by their place here.
    pub links: Vec<LinkReport>,
    /// Counters.
    pub stats: TargetStats,
}

/// One link of a shard.
#[derive(Clone, Debug)]
pub struct LinkReport {
    /// As the user named it.
    pub name: String,
    /// This end's address.
    pub addr: Addr,
    /// Counters.
    pub stats: LinkStats,
}

/// An attachment that an export stands on.
#[derive(Clone, Debug)]
pub struct LeafReport {
    /// The name of that export.
    pub export: String,
    /// What is attached.
    pub uri: String,
    /// Which of its members this is, if it has several.
    pub member: Option<u8>,
    /// Names of its links; its paths name them by their place here.
    pub links: Vec<String>,
    /// Its state, paths and counters.
    pub report: InitiatorReport,
}

/// What a reload gives to every shard: all of it, whether it is new or not.
#[derive(Clone, Debug)]
pub struct TargetChange {
    /// See [`Target::set_keys`](thinwire_target::Target::set_keys); `None` of a target without keys.
    pub keys: Option<TargetKeys>,
    /// See [`Target::set_limits`](thinwire_target::Target::set_limits).
    pub limits: Limits,
}

/// The way from the one who asks to each shard. There is one at a time who does.
#[derive(Debug)]
pub struct Inquiry {
    /// By shard.
    desks: Vec<Desk>,
}

#[derive(Debug)]
struct Desk {
    /// Readable while the shard is asked.
    bell: OwnedFd,
    wanted: Mutex<Wanted>,
}

/// What is wanted of a shard.
#[derive(Debug, Default)]
struct Wanted {
    /// How it is: where the answer goes.
    asker: Option<Sender<(u8, ShardReport)>>,
    /// That it takes this, the last that was given.
    change: Option<GivenChange>,
}

/// A change for a shard, and where it says to how many sessions that puts an end.
type GivenChange = (Box<TargetChange>, Sender<(u8, usize)>);

impl Desk {
    fn wanted(&self) -> MutexGuard<'_, Wanted> {
        // It is whole whoever panicked meanwhile.
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inquiry {
    /// For so many shards.
    pub fn new(shards: u8) -> io::Result<Self> {
        let desk = |_| Ok(Desk { bell: new_bell()?, wanted: Mutex::default() });
        Ok(Inquiry { desks: (0..shards).map(desk).collect::<io::Result<_>>()? })
    }

    /// Asks all shards, and waits for `patience` at most. By shard; `None` of those that did not answer.
    pub fn ask(&self, patience: Duration) -> Vec<Option<ShardReport>> {
        let (tell, told) = channel();
        self.put(|wanted| wanted.asker = Some(tell.clone()));
        drop(tell);
        self.gather(patience, &told)
    }

    /// Gives all shards this, and waits for `patience` at most until they have taken it. By shard: how many
    /// sessions that ended; `None` of those that have not said so, which take it once their present turn has ended,
    /// or once they serve, and before they do anything else that is asked here.
    pub fn change(&self, change: &TargetChange, patience: Duration) -> Vec<Option<usize>> {
        let (tell, told) = channel();
        self.put(|wanted| wanted.change = Some((Box::new(change.clone()), tell.clone())));
        drop(tell);
        self.gather(patience, &told)
    }

    /// Puts something on each desk.
    fn put(&self, put: impl Fn(&mut Wanted)) {
        for desk in &self.desks {
            put(&mut desk.wanted());
            ring(&desk.bell);
        }
    }

    /// By shard what it says, as far as it does so in time.
    fn gather<T>(&self, patience: Duration, told: &Receiver<(u8, T)>) -> Vec<Option<T>> {
        let end = Instant::now() + patience;
        let mut all: Vec<Option<T>> = self.desks.iter().map(|_| None).collect();
        while all.iter().any(Option::is_none) {
            let left = end.saturating_duration_since(Instant::now());
            let Ok((shard, said)) = told.recv_timeout(left) else { break };
            all[usize::from(shard)] = Some(said);
        }
        all
    }

    /// Readable while the shard is asked.
    pub(crate) fn bell(&self, shard: u8) -> BorrowedFd<'_> {
        self.desks[usize::from(shard)].bell.as_fd()
    }

    /// What the shard does that is asked: takes a change, with which it ends so many sessions, and tells how it is.
    pub(crate) fn answer(
        &self,
        shard: u8,
        take: impl FnOnce(TargetChange) -> usize,
        report: impl FnOnce() -> ShardReport,
    ) {
        let desk = &self.desks[usize::from(shard)];
        let _ = rustix::io::read(&desk.bell, &mut [0u8; 8]);
        let Wanted { asker, change } = std::mem::take(&mut *desk.wanted());
        // Who asked may have given up.
        if let Some((change, giver)) = change {
            let _ = giver.send((shard, take(*change)));
        }
        if let Some(asker) = asker {
            let _ = asker.send((shard, report()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(announces: bool) -> TargetChange {
        let keys = TargetKeys { announces, ..TargetKeys::new(Vec::new(), [1; 32]) };
        TargetChange { keys: Some(keys), limits: Limits::default() }
    }

    /// What a shard takes that is asked now.
    fn taken(inquiry: &Inquiry, shard: u8) -> Option<bool> {
        let mut taken = None;
        let take = |change: TargetChange| {
            taken = change.keys.map(|keys| keys.announces);
            7
        };
        inquiry.answer(shard, take, || unreachable!("nobody asks"));
        taken
    }

    #[test]
    fn keys_wait_for_a_shard_that_is_busy_and_the_last_ones_hold() {
        let inquiry = Inquiry::new(2).unwrap();
        let given = |announces| inquiry.change(&keys(announces), Duration::ZERO);
        assert_eq!(given(false), [None, None]);
        assert_eq!(taken(&inquiry, 0), Some(false));
        assert_eq!(taken(&inquiry, 0), None, "once");
        assert_eq!(given(true), [None, None]);
        assert_eq!(taken(&inquiry, 1), Some(true), "those before were never taken");
        assert_eq!(taken(&inquiry, 0), Some(true));
        std::thread::scope(|scope| {
            let giver = scope.spawn(|| inquiry.change(&keys(true), Duration::from_secs(60)));
            for shard in [1, 0] {
                while taken(&inquiry, shard).is_none() {
                    std::thread::yield_now();
                }
            }
            assert_eq!(giver.join().unwrap(), [Some(7), Some(7)]);
        });
    }
}
