//! Asking the shards of a target how they are, from a thread that is none of them: each answers between
//! two of its turns, with plain figures. What is made of those, and who waits for it, is no shard's work.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use thinwire_buffer::Addr;
use thinwire_initiator::InitiatorReport;
use thinwire_link::LinkStats;
use thinwire_proto::Time;
use thinwire_target::{ExportReport, SessionReport, TargetStats};

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
    /// Where its answer goes.
    asker: Mutex<Option<Sender<ShardReport>>>,
}

impl Desk {
    fn asker(&self) -> MutexGuard<'_, Option<Sender<ShardReport>>> {
        // It is whole whoever panicked meanwhile.
        self.asker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inquiry {
    /// For so many shards.
    pub fn new(shards: u8) -> io::Result<Self> {
        let desk = |_| Ok(Desk { bell: new_bell()?, asker: Mutex::new(None) });
        Ok(Inquiry { desks: (0..shards).map(desk).collect::<io::Result<_>>()? })
    }

    /// Asks all shards, and waits for `patience` at most. By shard; `None` of those that did not answer.
    pub fn ask(&self, patience: Duration) -> Vec<Option<ShardReport>> {
        let end = Instant::now() + patience;
        let (tell, told) = channel();
        for desk in &self.desks {
            *desk.asker() = Some(tell.clone());
            ring(&desk.bell);
        }
        drop(tell);
        let mut all: Vec<Option<ShardReport>> = self.desks.iter().map(|_| None).collect();
        while all.iter().any(Option::is_none) {
            let left = end.saturating_duration_since(Instant::now());
            let Ok(report) = told.recv_timeout(left) else { break };
            let place = usize::from(report.index);
            all[place] = Some(report);
        }
        all
    }

    /// Readable while the shard is asked.
    pub(crate) fn bell(&self, shard: u8) -> BorrowedFd<'_> {
        self.desks[usize::from(shard)].bell.as_fd()
    }

    /// The shard's answer, if it is still asked.
    pub(crate) fn answer(&self, shard: u8, make: impl FnOnce() -> ShardReport) {
        let desk = &self.desks[usize::from(shard)];
        let _ = rustix::io::read(&desk.bell, &mut [0u8; 8]);
        let asker = desk.asker().take();
        if let Some(asker) = asker {
            // Who asked may have given up.
            let _ = asker.send(make());
        }
    }
}
