//! Asking the shards of a target how they are, and giving them other keys, limits and exports, from a thread that is none of them:
//! each answers between two of its turns, with plain figures. What is made of those, and who waits for it, is no
//! shard's work. What concerns volumes that its exports are made of goes to their [`Clerk`], and may take a while.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use thinwire_buffer::{Addr, Pool};
use thinwire_initiator::InitiatorReport;
use thinwire_link::LinkStats;
use thinwire_proto::Time;
use thinwire_target::{ExportReport, Limits, SessionReport, TargetKeys, TargetStats};
use thinwire_volume::Work;

use crate::serve::OpenedExport;
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
    /// What exports are made of, by name, as the clerk says it: see [`Clerk::describe`].
    pub trees: Vec<(String, String)>,
    /// Exports that were taken away, and have something under way.
    pub leaving: Vec<String>,
    /// Exports of which somebody else has what they are made of: nobody is served any more.
    pub fenced: Vec<String>,
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
    /// Exports that come and go, if any do: all shards have prepared that ([`Inquiry::prepare`]).
    pub exports: Option<ExportChange>,
}

/// Exports that come and go. Those that come were prepared by their shards.
#[derive(Clone, Debug, Default)]
pub struct ExportChange {
    /// Names of those that go; one of the same name may come.
    pub removed: Vec<String>,
    /// Names of those that come, on whatever shard.
    pub added: Vec<String>,
    /// Weights, by name.
    pub weights: Vec<(String, u16)>,
    /// See [`Target::set_all_exports`](thinwire_target::Target::set_all_exports).
    pub all: Vec<(String, u8)>,
}

/// Opens what a shard is to offer, reading into memory of this pool, on the thread of the shard: all or none.
pub type OpenExports = Box<dyn FnOnce(&Pool) -> Result<Vec<OpenedExport>, String> + Send>;

/// Does what is asked of volumes that exports of a shard are made of, on the thread of the shard, between its turns. What that is, and what is
/// answered, is known to whoever opened them.
pub trait Clerk {
    /// Begins with something, whose end is told under this number. `served` are the exports of the shard.
    fn begin(&mut self, number: u64, words: &str, served: &mut dyn ServedVolumes);

    /// Goes on with all that has begun, after each turn: appends what has ended, and the answers.
    fn tend(&mut self, ended: &mut Vec<(u64, String)>, served: &mut dyn ServedVolumes);

    /// How all stands that exports are made of, by their names, for whoever asks how the shard is: in words as those that it is asked in. It takes a turn, and so
    /// must not take long. Default: nothing.
    fn describe(&self, served: &mut dyn ServedVolumes) -> Vec<(String, String)> {
        let _ = served;
        Vec::new()
    }
}

/// The volumes of a shard, which are with its target, for its [`Clerk`].
pub trait ServedVolumes {
    /// Shows everything in the volume of an export that works for itself; false if there is no such export any more.
    fn works(&mut self, export: &str, visit: &mut dyn FnMut(&mut dyn Work)) -> bool;
}

/// Something for a [`Clerk`], and where the answer goes.
pub(crate) type Errand = (String, Sender<String>);

/// What is asked of a shard, between two of its turns.
pub(crate) trait Asked {
    /// Has its clerk begin with that. Who has none lets go of it.
    fn begin(&mut self, errand: Errand);

    /// Tells how the shard is.
    fn report(&mut self) -> ShardReport;

    /// Opens what it may be told to offer, and keeps that.
    fn prepare(&mut self, open: OpenExports) -> Result<(), String>;

    /// That does not come.
    fn abandon(&mut self);

    /// Takes what has changed, and offers what it has prepared: how many sessions that has ended.
    fn take(&mut self, change: TargetChange) -> usize;
}

/// The way from the one who asks to each shard. There is one at a time who does.
pub struct Inquiry {
    /// By shard.
    desks: Vec<Desk>,
}

struct Desk {
    /// Readable while the shard is asked.
    bell: OwnedFd,
    wanted: Mutex<Wanted>,
}

/// What is wanted of a shard.
#[derive(Default)]
struct Wanted {
    /// How it is: where the answer goes.
    asker: Option<Sender<(u8, ShardReport)>>,
    /// That it takes these, the oldest first.
    changes: VecDeque<GivenChange>,
    /// That it forgets what it has prepared.
    abandon: bool,
    /// Then, that it prepares this.
    prepare: Option<Prepare>,
    /// That its clerk does these, the oldest first.
    errands: VecDeque<Errand>,
}

/// What a shard is to open, and where it says how that went.
type Prepare = (OpenExports, Sender<(u8, Result<(), String>)>);

/// A change for a shard, and where it says to how many sessions that puts an end.
type GivenChange = (Box<TargetChange>, Sender<(u8, usize)>);

impl fmt::Debug for Inquiry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inquiry").field("shards", &self.desks.len()).finish_non_exhaustive()
    }
}

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

    /// How many shards there are.
    pub fn shards(&self) -> u8 {
        self.desks.len() as u8
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
        self.put(|wanted| {
            // One that no shard has taken means nothing any more, unless exports come and go by it.
            if wanted.changes.back().is_some_and(|(before, _)| before.exports.is_none()) {
                wanted.changes.pop_back();
            }
            wanted.changes.push_back((Box::new(change.clone()), tell.clone()));
        });
        drop(tell);
        self.gather(patience, &told)
    }

    /// Has each shard open what it may be told to offer by the next [`Inquiry::change`], and waits for `patience` at
    /// most until all have. `opens` has something for every shard, in order.
    ///
    /// # Errors
    /// Why not, by shard: then no shard keeps anything.
    pub fn prepare(&self, opens: Vec<OpenExports>, patience: Duration) -> Result<(), Vec<String>> {
        assert_eq!(opens.len(), self.desks.len(), "one for each shard");
        let (tell, told) = channel();
        for (desk, open) in self.desks.iter().zip(opens) {
            desk.wanted().prepare = Some((open, tell.clone()));
            ring(&desk.bell);
        }
        drop(tell);
        let silent = |shard| format!("shard {shard} is busy");
        let all = (0..).zip(self.gather(patience, &told));
        let why = all.filter_map(|(shard, said)| said.unwrap_or(Err(silent(shard))).err());
        let why: Vec<String> = why.collect();
        if why.is_empty() {
            return Ok(());
        }
        self.put(|wanted| (wanted.prepare, wanted.abandon) = (None, true));
        Err(why)
    }

    /// Has the clerk of a shard do something. What comes out is the answer; it ends without one if the shard does, or has no clerk.
    pub fn errand(&self, shard: u8, words: String) -> Receiver<String> {
        let (tell, told) = channel();
        let desk = &self.desks[usize::from(shard)];
        desk.wanted().errands.push_back((words, tell));
        ring(&desk.bell);
        told
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

    /// The shard does what it is asked for.
    pub(crate) fn answer(&self, shard: u8, asked: &mut impl Asked) {
        let desk = &self.desks[usize::from(shard)];
        let _ = rustix::io::read(&desk.bell, &mut [0u8; 8]);
        let wanted = std::mem::take(&mut *desk.wanted());
        let Wanted { asker, changes, abandon, prepare, errands } = wanted;
        // Who asked may have given up.
        for (change, giver) in changes {
            let _ = giver.send((shard, asked.take(*change)));
        }
        if abandon {
            asked.abandon();
        }
        if let Some((open, asker)) = prepare {
            let _ = asker.send((shard, asked.prepare(open)));
        }
        errands.into_iter().for_each(|errand| asked.begin(errand));
        if let Some(asker) = asker {
            let _ = asker.send((shard, asked.report()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::TryRecvError;

    use super::*;

    fn keys(announces: bool) -> TargetChange {
        let keys = TargetKeys { announces, ..TargetKeys::new(Vec::new(), [1; 32]) };
        TargetChange { keys: Some(keys), limits: Limits::default(), exports: None }
    }

    /// A shard that only says what it was asked for.
    #[derive(Default)]
    struct Hand {
        taken: Vec<bool>,
        prepared: usize,
        abandoned: usize,
        errands: Vec<Errand>,
    }

    impl Asked for Hand {
        fn begin(&mut self, errand: Errand) {
            self.errands.push(errand);
        }

        fn report(&mut self) -> ShardReport {
            unreachable!("nobody asks")
        }

        fn prepare(&mut self, open: OpenExports) -> Result<(), String> {
            self.prepared += open(&Pool::new(0))?.len() + 1;
            Ok(())
        }

        fn abandon(&mut self) {
            self.abandoned += 1;
        }

        fn take(&mut self, change: TargetChange) -> usize {
            self.taken.extend(change.keys.map(|keys| keys.announces));
            7
        }
    }

    /// What a shard takes that is asked now.
    fn taken(inquiry: &Inquiry, shard: u8) -> Vec<bool> {
        let mut hand = Hand::default();
        inquiry.answer(shard, &mut hand);
        hand.taken
    }

    #[test]
    fn keys_wait_for_a_shard_that_is_busy_and_the_last_ones_hold() {
        let inquiry = Inquiry::new(2).unwrap();
        let given = |announces| inquiry.change(&keys(announces), Duration::ZERO);
        assert_eq!(given(false), [None, None]);
        assert_eq!(taken(&inquiry, 0), [false]);
        assert!(taken(&inquiry, 0).is_empty(), "once");
        assert_eq!(given(true), [None, None]);
        assert_eq!(taken(&inquiry, 1), [true], "those before were never taken");
        assert_eq!(taken(&inquiry, 0), [true]);
        std::thread::scope(|scope| {
            let giver = scope.spawn(|| inquiry.change(&keys(true), Duration::from_secs(60)));
            for shard in [1, 0] {
                while taken(&inquiry, shard).is_empty() {
                    std::thread::yield_now();
                }
            }
            assert_eq!(giver.join().unwrap(), [Some(7), Some(7)]);
        });
    }

    #[test]
    fn an_errand_is_one_shards_and_ends_with_it() {
        let inquiry = Inquiry::new(2).unwrap();
        let [first, second] = ["a", "b"].map(|words| inquiry.errand(1, words.into()));
        let mut hands = [Hand::default(), Hand::default()];
        for (shard, hand) in (0..).zip(&mut hands) {
            inquiry.answer(shard, hand);
        }
        assert_eq!(hands[0].errands.len(), 0);
        let (words, tell) = hands[1].errands.remove(0);
        tell.send(words + "!").unwrap();
        assert_eq!((first.recv(), second.try_recv()), (Ok("a!".into()), Err(TryRecvError::Empty)));
        drop(hands);
        assert!(second.recv().is_err(), "nobody does it any more");
    }

    /// While a shard is busy nothing that exports come and go by is left out, and what was given up is not kept.
    #[test]
    fn what_is_prepared_is_kept_by_all_shards_or_by_none() {
        let inquiry = Inquiry::new(2).unwrap();
        let opens = |why: Option<&'static str>| -> Vec<OpenExports> {
            let open = |why: Option<&'static str>| -> OpenExports {
                Box::new(move |_| why.map_or(Ok(Vec::new()), |why| Err(why.to_owned())))
            };
            vec![open(None), open(why)]
        };
        let mut hands = [Hand::default(), Hand::default()];
        // One is busy.
        assert_eq!(
            inquiry.prepare(opens(None), Duration::ZERO),
            Err(vec!["shard 0 is busy".to_owned(), "shard 1 is busy".to_owned()])
        );
        for (shard, hand) in (0..).zip(&mut hands) {
            inquiry.answer(shard, hand);
            assert_eq!((hand.prepared, hand.abandoned), (0, 1));
        }
        let prepare = |hands: &mut [Hand; 2], why| {
            std::thread::scope(|scope| {
                let inquiry = &inquiry;
                let asker =
                    scope.spawn(move || inquiry.prepare(opens(why), Duration::from_secs(60)));
                while !asker.is_finished() {
                    for (shard, hand) in (0..).zip(hands.iter_mut()) {
                        inquiry.answer(shard, hand);
                    }
                    std::thread::yield_now();
                }
                asker.join().unwrap()
            })
        };
        assert_eq!(prepare(&mut hands, Some("no such file")), Err(vec!["no such file".to_owned()]));
        for (shard, hand) in (0..).zip(&mut hands) {
            inquiry.answer(shard, hand);
            assert!(hand.abandoned >= 2, "shard {shard} keeps what it has prepared");
        }
        assert_eq!(prepare(&mut hands, None), Ok(()));
        let mut change = keys(true);
        change.exports = Some(ExportChange::default());
        assert_eq!(inquiry.change(&change, Duration::ZERO), [None, None]);
        assert_eq!(inquiry.change(&keys(false), Duration::ZERO), [None, None]);
        assert_eq!(inquiry.change(&keys(true), Duration::ZERO), [None, None]);
        inquiry.answer(0, &mut hands[0]);
        assert_eq!(hands[0].taken, [true, true], "the first, and the last");
    }
}
