//! Several shards of one target (`docs/design.md`, "Shards and steering"; rule 10): threads with links,
//! exports and sessions of their own, which share nothing but a name, an instance number and the mail.
//!
//! Those of an export that is spread over the shards have a disk of their own each on the same open file, and
//! their doors write to one another through the mail, too (`Parcel`).
//!
//! A frame of a session carries its shard in the first byte of the session id, and the kernel gives
//! it to that shard's socket. Frames outside sessions carry none and come to shard 0. It answers
//! discovery for all, and hands a greeting for another shard's export to that shard, which answers
//! from its own link on the same interface or address: of frames, only greetings ever cross threads.

use std::any::Any;
use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use thinwire_buffer::{LinkInfo, Pool, RxFrame, SegList};
use thinwire_link::{Link, ShardSteering};
use thinwire_target::{Dialect, SpreadConfig, TargetConfig};
use thinwire_volume::{Letter, Parcel};

use crate::clock::{Clock, entropy};
use crate::inquiry::Inquiry;
use crate::serve::{OpenedExport, Orders, TargetShard};
use crate::shard::{Shard, SharedShard};
use crate::steering::link_shard;
use crate::wait::{Spin, Waiter};

/// Letters that wait for one shard, at most. A greeting that finds no room is lost, as on a wire.
const LETTERS_MAX: usize = 64;

/// The end of the mail that a shard has.
pub(crate) struct Mail {
    inbox: Receiver<Letter>,
    parcels: Receiver<Box<dyn Any + Send>>,
    bell: Arc<OwnedFd>,
    /// By shard; our own, too.
    others: Vec<Post>,
}

/// The way to one shard.
#[derive(Clone)]
struct Post {
    letters: SyncSender<Letter>,
    /// Without a bound of its own: whoever sends them bounds how many there are.
    parcels: Sender<Box<dyn Any + Send>>,
    bell: Arc<OwnedFd>,
}

impl Mail {
    /// One for each of `count` shards.
    fn between(count: u8) -> io::Result<Vec<Mail>> {
        let mut posts = Vec::new();
        let mut inboxes = Vec::new();
        for _ in 0..count {
            let (letters, inbox) = sync_channel(LETTERS_MAX);
            let (parcels, delivered) = channel();
            posts.push(Post { letters, parcels, bell: Arc::new(new_bell()?) });
            inboxes.push((inbox, delivered));
        }
        let mail = |((inbox, parcels), post): (_, &Post)| Mail {
            inbox,
            parcels,
            bell: post.bell.clone(),
            others: posts.clone(),
        };
        Ok(inboxes.into_iter().zip(&posts).map(mail).collect())
    }

    /// Readable when letters or parcels wait.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Hands a frame to its shard.
    pub fn send(&self, letter: Letter) {
        let post = &self.others[usize::from(letter.shard)];
        if post.letters.try_send(letter).is_ok() {
            ring(&post.bell);
        }
    }

    /// Hands a parcel to its shard. To one that has ended it says nothing any more.
    pub fn send_parcel(&self, parcel: Parcel) {
        let post = &self.others[usize::from(parcel.shard)];
        if post.parcels.send(parcel.content).is_ok() {
            ring(&post.bell);
        }
    }

    /// Silences the bell: what comes from here on rings it again. Before anything is taken in.
    pub fn hear(&self) {
        let _ = rustix::io::read(&self.bell, &mut [0u8; 8]);
    }

    /// Takes in the parcels that have come, in the order in which each shard has sent them.
    pub fn unpack(&self) -> impl Iterator<Item = Box<dyn Any + Send>> + '_ {
        self.parcels.try_iter()
    }

    /// Takes in the letters that have come, at most what fits the box at once.
    pub fn receive(&self, pool: &Pool, mut take: impl FnMut(usize, &mut RxFrame)) {
        for letter in self.inbox.try_iter().take(LETTERS_MAX) {
            let bytes = pool.copy_of(&letter.frame).freeze();
            let waited = Duration::ZERO;
            let queued = Duration::ZERO;
            let rest = SegList::new();
            take(letter.link, &mut RxFrame { from: letter.from, bytes, rest, waited, queued });
        }
    }
}

pub(crate) fn new_bell() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?)
}

pub(crate) fn ring(bell: &OwnedFd) {
    // It fails only when it has been rung 2^64 times and nobody listens.
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}

/// What serving needs from whoever knows what the user asked for. The functions run on the thread
/// of the shard, whose number they get; what they open never leaves it.
pub trait Provider: Sync {
    /// Why serving failed.
    type Error: Send;

    /// What failed was not to open something, but to serve.
    fn failed(&self, error: io::Error) -> Self::Error;

    /// Opens the links, in the same order on every shard. Shards do this one after the other, in
    /// order of their numbers. `shard` goes into the options of each.
    fn links(&self, shard: &ShardSteering) -> Result<Vec<Box<dyn Link>>, Self::Error>;

    /// Opens the exports of the shard of this index, by their numbers in the list given to [`serve`], in
    /// that order; all or none. One that is spread is asked of every shard: each has a volume of its own on the
    /// same content, and that of its place ([`Service::places`]) the one that syncs and keeps the writer record. What they stand on may be parts of the shard, which has no target yet; its
    /// links are open, in order.
    fn exports(
        &self,
        numbers: &[usize],
        index: u8,
        shard: &SharedShard,
    ) -> Result<Vec<OpenedExport>, Self::Error>;

    /// What else stands in front of the exports of the shard of this index: other protocols, each with a link of its
    /// own. Asked for once the exports are there.
    fn guests(&self, index: u8) -> Result<Vec<Guest>, Self::Error> {
        let _ = index;
        Ok(Vec::new())
    }

    /// The shard has ended: for figures.
    fn ended(&self, index: u8, shard: &TargetShard) {
        let _ = (index, shard);
    }
}

/// Another protocol in front of a shard's exports.
pub struct Guest {
    /// All frames of it are the guest's.
    pub link: Box<dyn Link>,
    /// Makes its server, of what is known of the link.
    pub make: Box<dyn FnOnce(LinkInfo) -> Box<dyn Dialect>>,
}

/// What is served, and how.
pub struct Service<'a> {
    /// Settings of all shards.
    pub config: TargetConfig,
    /// Threads, this one included. Those that would have no export are left out.
    pub shards: u8,
    /// The exports, by number; [`Service::places`] says where each is.
    pub exports: &'a [Offered],
    /// Memory that each shard's pool keeps for reuse, in bytes.
    pub pool_free_bytes_max: usize,
    /// When an idle shard spins.
    pub spin: Spin,
    /// Readable when even an orderly end is to be given up.
    pub hurry: Option<BorrowedFd<'a>>,
    /// Exports may be added while they serve: what that takes is kept.
    pub may_grow: bool,
    /// Who asks the shards how they are, if somebody does; for [`Service::shard_count`] of them.
    pub inquiry: Option<&'a Inquiry>,
}

/// An export, as all shards know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offered {
    /// Its name, unique among those of the target.
    pub name: String,
    /// All shards serve it together, if there are several; else one does.
    pub spread: bool,
    /// The number of an earlier one with which it shares something: so it is on the shard of that.
    pub beside: Option<usize>,
}

impl Service<'_> {
    /// How many shards there will be: an export lives on one, unless it is spread over all.
    pub fn shard_count(&self) -> u8 {
        let shards = self.shards.max(1);
        let alone = self.exports.iter().filter(|export| export.beside.is_none()).count();
        match self.exports.iter().any(|export| export.spread) {
            true => shards,
            false => shards.min(alone.clamp(1, 255) as u8),
        }
    }

    /// The shard of each export, or its owner: by turns, but that what shares something is together.
    pub fn places(&self) -> Vec<u8> {
        let mut turns = (0..self.shard_count()).cycle();
        let mut places: Vec<u8> = Vec::new();
        for export in self.exports {
            let next = || turns.next().expect("there is a shard");
            places.push(export.beside.map_or_else(next, |earlier| places[earlier]));
        }
        places
    }
}

/// What a shard tells the first.
enum Told<E> {
    Linked,
    Serving,
    Failed(E),
    Ended,
}

/// A shard's way to tell. When it goes, however its thread ends, the shard has ended, and so must
/// all.
struct Teller<'a, E> {
    tell: Sender<Told<E>>,
    end: &'a OwnedFd,
}

impl<E> Teller<'_, E> {
    fn tell(&self, what: Told<E>) {
        // Nobody listens any more if another shard could not begin.
        let _ = self.tell.send(what);
    }
}

impl<E> Drop for Teller<'_, E> {
    fn drop(&mut self) {
        self.tell(Told::Ended);
        ring(self.end);
    }
}

/// The first shard's view of the others while they begin.
struct Others<E> {
    told: Receiver<Told<E>>,
    serving: usize,
    /// Opened: they may serve. Closed: they may let go of their links.
    gates: Vec<Sender<()>>,
}

impl<E> Others<E> {
    /// Waits until one shard has opened its links, or, with `serving`, all have opened everything.
    fn wait(&mut self, serving: bool) -> Result<(), Option<E>> {
        while !serving || self.serving < self.gates.len() {
            match self.told.recv() {
                Ok(Told::Linked) => return Ok(()),
                Ok(Told::Serving) => self.serving += 1,
                Ok(Told::Failed(error)) => return Err(Some(error)),
                // A thread that ends without a word has panicked.
                Ok(Told::Ended) | Err(_) => return Err(None),
            }
        }
        Ok(())
    }

    /// Waits until all have ended; the first error that one of them told.
    fn wait_end(&mut self) -> Option<E> {
        let (mut ended, mut first) = (0, None);
        while ended < self.gates.len() {
            match self.told.recv() {
                Ok(Told::Ended) => ended += 1,
                Ok(Told::Failed(error)) => first = first.or(Some(error)),
                Ok(Told::Linked | Told::Serving) => {}
                Err(_) => break,
            }
        }
        first
    }
}

/// Serves on this thread and `shards - 1` others until `stop` is readable, then ends all in order.
/// `ready` is called once, when every shard serves.
///
/// # Errors
/// The first error of any shard; all have ended then, or not begun.
///
/// # Panics
/// If a shard does.
pub fn serve<O: Provider>(
    service: &Service<'_>,
    provider: &O,
    stop: BorrowedFd<'_>,
    ready: &mut dyn FnMut() -> Result<(), O::Error>,
) -> Result<(), O::Error> {
    let count = service.shard_count();
    let named = service.exports.iter().map(|export| export.name.clone());
    let all: Vec<(String, u8)> = named.zip(service.places()).collect();
    let end = new_bell().map_err(|e| provider.failed(e))?;
    let mut mail = Mail::between(count).map_err(|e| provider.failed(e))?.into_iter();
    let own_mail = mail.next().expect("at least one shard");
    let commons = Commons {
        service,
        provider,
        all: &all,
        verifiers: all.iter().map(|_| entropy()).collect(),
        clock: Clock::new(),
        idle: Idle { is_idle: (0..count).map(|_| AtomicBool::new(false)).collect() },
        count,
        instance: entropy(),
        stop,
        end: &end,
    };
    let panicked = || provider.failed(io::Error::other("a shard ended by itself"));
    thread::scope(|scope| {
        let (tell, told) = channel();
        let mut others = Others { told, serving: 0, gates: Vec::new() };
        // However this ends, the others end, too.
        let teller = Teller { tell, end: &end };
        let links = commons.links(0)?;
        for (index, mail) in (1..count).zip(mail) {
            let (gate, opens) = channel();
            others.gates.push(gate);
            let teller = Teller { tell: teller.tell.clone(), end: &end };
            let commons = &commons;
            let life = move || commons.live(index, mail, teller, &opens);
            let thread = thread::Builder::new().name(format!("shard-{index}"));
            thread.spawn_scoped(scope, life).map_err(|e| provider.failed(e))?;
            // Links are opened in the order of the shards.
            others.wait(false).map_err(|error| error.unwrap_or_else(panicked))?;
        }
        let mut shard = commons.open(0, links, own_mail)?;
        others.wait(true).map_err(|error| error.unwrap_or_else(panicked))?;
        ready()?;
        for gate in &others.gates {
            let _ = gate.send(());
        }
        let served = commons.run(&mut shard, 0);
        ring(&end);
        let other = others.wait_end();
        served.and(other.map_or(Ok(()), Err))
    })
}

/// Which shards of a target that ends have nothing under way any more for which others may be asked: an owner syncs
/// for the last sessions of branches, so all end together.
#[derive(Debug)]
pub struct Idle {
    /// By shard.
    is_idle: Vec<AtomicBool>,
}

impl Idle {
    /// Whether a shard has nothing under way; of one that has failed that is so.
    pub(crate) fn note(&self, shard: u8, is_idle: bool) {
        self.is_idle[usize::from(shard)].store(is_idle, Ordering::Release);
    }

    /// That is so of all.
    pub(crate) fn of_all(&self) -> bool {
        self.is_idle.iter().all(|idle| idle.load(Ordering::Acquire))
    }
}

/// What all shards' threads look at.
struct Commons<'a, O> {
    service: &'a Service<'a>,
    provider: &'a O,
    all: &'a [(String, u8)],
    /// The first of each export, if that is spread.
    verifiers: Vec<u64>,
    /// What happens on several shards is told apart by its time.
    clock: Clock,
    idle: Idle,
    count: u8,
    instance: u64,
    /// Readable when the user wants the end, or when a shard has ended.
    stop: BorrowedFd<'a>,
    end: &'a OwnedFd,
}

impl<O: Provider> Commons<'_, O> {
    fn links(&self, index: u8) -> Result<Vec<Box<dyn Link>>, O::Error> {
        self.provider.links(&link_shard(&self.service.config.node, index, self.count))
    }

    /// Opens the exports of a shard.
    fn open(
        &self,
        index: u8,
        links: Vec<Box<dyn Link>>,
        mail: Mail,
    ) -> Result<TargetShard, O::Error> {
        let failed = |e| self.provider.failed(e);
        let pool = Pool::new(self.service.pool_free_bytes_max);
        let config = self.service.config.clone();
        let own: Vec<usize> = (0..links.len()).collect();
        let shared = Shard::new(links, pool).map_err(failed)?;
        let shared = Rc::new(RefCell::new(shared));
        shared.borrow_mut().set_spin(self.service.spin);
        shared.borrow_mut().set_clock(self.clock);
        // Before there is a target: nobody is told that an export is not there while it is opened.
        let numbered = self.all.iter().enumerate();
        let is_own = |number: usize, at: u8| at == index || self.is_spread(number);
        let own_exports: Vec<usize> =
            numbered.filter(|(n, (_, at))| is_own(*n, *at)).map(|(number, _)| number).collect();
        let exports = self.provider.exports(&own_exports, index, &shared)?;
        let mut shard = TargetShard::on(shared, config, own, index);
        if self.service.may_grow {
            shard.hold_ring();
        }
        shard.with_target(|target| target.set_instance(self.instance));
        let mut exports = exports.into_iter().zip(&own_exports);
        while let Some((export, &number)) = exports.next() {
            if let Err(error) = shard.offer(export, self.spread(number, index)) {
                exports.for_each(|(export, _)| export.discard());
                return Err(failed(error));
            }
        }
        shard.with_target(|target| target.set_all_exports(self.all));
        for guest in self.provider.guests(index)? {
            shard.add_guest(guest).map_err(failed)?;
        }
        if self.count > 1 {
            shard.join(mail).map_err(failed)?;
        }
        Ok(shard)
    }

    /// All shards have the export of this number.
    fn is_spread(&self, number: usize) -> bool {
        self.count > 1 && self.service.exports[number].spread
    }

    /// How the export of this number is spread, as this shard sees it, if it is.
    fn spread(&self, number: usize, shard: u8) -> Option<SpreadConfig> {
        self.is_spread(number).then(|| SpreadConfig {
            number: number as u32,
            shard,
            shards: self.count,
            owner: self.all[number].1,
            verifier: self.verifiers[number],
        })
    }

    /// The life of a shard other than the first.
    fn live(&self, index: u8, mail: Mail, teller: Teller<'_, O::Error>, opens: &Receiver<()>) {
        let opened = self.links(index).and_then(|links| {
            teller.tell(Told::Linked);
            self.open(index, links, mail)
        });
        let mut shard = match opened {
            Ok(shard) => shard,
            Err(error) => return teller.tell(Told::Failed(error)),
        };
        teller.tell(Told::Serving);
        // Closed instead of opened: another shard could not begin.
        if opens.recv().is_err() {
            return;
        }
        if let Err(error) = self.run(&mut shard, index) {
            teller.tell(Told::Failed(error));
        }
        drop(teller);
        // Sockets that share an address are told apart by their order: all go together.
        let _ = opens.recv();
    }

    fn run(&self, shard: &mut TargetShard, index: u8) -> Result<(), O::Error> {
        let mut serve = || {
            let mut either = Waiter::new()?;
            either.add(self.stop, 0)?;
            either.add(self.end.as_fd(), 1)?;
            let Service { hurry, inquiry, .. } = *self.service;
            let is_tied = (0..self.all.len()).any(|number| self.is_spread(number));
            let idle = is_tied.then_some(&self.idle);
            shard.run_under(&Orders { stop: either.fd(), hurry, inquiry, idle })
        };
        let ran = serve();
        if ran.is_err() {
            // The others wait for nothing of it any more.
            self.idle.note(index, true);
        }
        // What was heard last counts, too: whether anybody is served still is asked next.
        shard.let_go_of_fenced();
        shard.say_last_notes();
        self.provider.ended(index, shard);
        shard.let_go();
        ran.map_err(|e| self.provider.failed(e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(shards: u8, exports: &[(bool, Option<usize>)]) -> Vec<u8> {
        let offered = |(nth, &(spread, beside)): (usize, &(bool, Option<usize>))| Offered {
            name: format!("e{nth}"),
            spread,
            beside,
        };
        let exports: Vec<_> = exports.iter().enumerate().map(offered).collect();
        let service = Service {
            config: TargetConfig::default(),
            shards,
            exports: &exports,
            pool_free_bytes_max: 0,
            spin: Spin::On,
            hurry: None,
            may_grow: false,
            inquiry: None,
        };
        service.places()
    }

    #[test]
    fn exports_take_turns_and_those_that_share_something_are_together() {
        let alone = (false, None);
        assert_eq!(places(2, &[alone; 5]), [0, 1, 0, 1, 0]);
        assert_eq!(places(8, &[alone; 3]), [0, 1, 2]);
        assert_eq!(places(0, &[]), []);
        let beside = |earlier| (false, Some(earlier));
        assert_eq!(places(2, &[alone, beside(0), alone, beside(2), beside(1)]), [0, 0, 1, 1, 0]);
        // No shard is made that would have none.
        assert_eq!(places(4, &[alone, beside(0), beside(0)]), [0; 3]);
        assert_eq!(places(3, &[(true, None), alone, beside(1), alone]), [0, 1, 1, 2]);
    }
}
