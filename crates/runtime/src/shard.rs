//! A shard: the one loop. It drives a node on this thread with real links, descriptors and the clock,
//! and sleeps when nothing is to be done (`docs/design.md`, "One node for everything that needs
//! driving").

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::rc::Rc;
use std::time::Duration;

use thinwire_buffer::{LinkInfo, Pool, RxFrame};
use thinwire_link::Link;
use thinwire_node::{Lane, Node, PartId};
use thinwire_proto::Time;
use thinwire_volume::{Effect, Expects, Gravity, Part, PartEvent};

use crate::clock::Clock;
use crate::disk::ring;
use crate::links::Links;
use crate::shards::Mail;
use crate::slow::{Steps, is_timed};
use crate::turn;
use crate::wait::{Next, Spin, WaitStats, WaitToken, Waiter};

/// Tokens of links start here; below are the others.
const LINKS: WaitToken = 1 << 32;
const MAIL: WaitToken = 1 << 31;
/// Of the ring of this thread's disks.
const RING: WaitToken = MAIL + 1;
/// Tokens of volumes' descriptors start here; below are those of whoever watches.
const VOLUMES: WaitToken = 1 << 30;
/// No timer is that far away: until something happens.
const FOR_EVER: Duration = Duration::from_secs(3600);

/// A shard that several have in hand: whoever opens volumes on it, and whoever drives it.
pub type SharedShard = Rc<RefCell<Shard>>;

/// A node, its links and its loop. Belongs to one thread. Nothing blocks but [`Shard::turn`].
pub struct Shard {
    node: Node,
    links: Links,
    waiter: Waiter,
    clock: Clock,
    pool: Pool,
    /// By token: the part that a volume with a descriptor is in, if it is in one.
    volumes: Vec<Option<PartId>>,
    /// The parts that have disks in this thread's ring, and perhaps some that had.
    with_disks: Vec<PartId>,
    watched: Vec<RawFd>,
    /// The way to other shards, and whose it is.
    mail: Option<(PartId, Mail)>,
}

impl Shard {
    /// A shard without parts on these links. Received frames live in `pool`.
    pub fn new(links: Vec<Box<dyn Link>>, pool: Pool) -> io::Result<Self> {
        let links = Links::new(links, pool.clone());
        let mut waiter = Waiter::new()?;
        links.register(&mut waiter, LINKS)?;
        Ok(Shard {
            node: Node::new(links.params()),
            links,
            waiter,
            clock: Clock::new(),
            pool,
            volumes: Vec::new(),
            with_disks: Vec::new(),
            watched: Vec::new(),
            mail: None,
        })
    }

    /// Another link; its number.
    pub fn add_link(&mut self, link: Box<dyn Link>) -> io::Result<usize> {
        let at = self.node.add_link(link.info());
        self.links.add(link, &mut self.waiter, LINKS)?;
        Ok(at)
    }

    /// The parts and their edges, to look at and, between turns, to work with.
    pub fn node(&mut self) -> &mut Node {
        &mut self.node
    }

    /// A part, to look at.
    ///
    /// # Panics
    /// If it has been removed.
    pub fn get<P: Part>(&self, id: PartId<P>) -> &P {
        self.node.get(id).expect("the part is there")
    }

    /// A part, if it has not been removed.
    pub fn find<P: Part>(&self, id: PartId<P>) -> Option<&P> {
        self.node.get(id)
    }

    /// A part, to do something with between two turns.
    ///
    /// # Panics
    /// If it has been removed.
    pub fn get_mut<P: Part>(&mut self, id: PartId<P>) -> &mut P {
        self.node.get_mut(id).expect("the part is there")
    }

    /// What the protocol needs to know of these links, by number.
    pub fn infos(&self, links: &[usize]) -> Vec<LinkInfo> {
        let all: Vec<LinkInfo> = self.node.links().collect();
        links.iter().map(|&link| all[link]).collect()
    }

    /// Adds a part on these links, by number.
    pub fn add<P: Part>(&mut self, part: P, links: Vec<usize>, lane: &Lane) -> PartId<P> {
        self.node.add(part, links, lane)
    }

    /// Joins other shards: letters of that part go to and fro.
    pub(crate) fn join<P: Part>(&mut self, part: PartId<P>, mail: Mail) -> io::Result<()> {
        self.waiter.add(mail.bell(), MAIL)?;
        self.mail = Some((part.any(), mail));
        Ok(())
    }

    /// `fd` is readable when a volume inside that part, or outside of all, has completions, or when the
    /// part itself has something to do. It belongs to the volume or the part. Added again, it is for that
    /// part from then on; that of this thread's ring is for all that it was added for.
    pub fn add_volume<P: Part>(&mut self, fd: RawFd, inside: Option<PartId<P>>) -> io::Result<()> {
        if ring::fd() == Some(fd) {
            self.waiter.add_disk(fd, RING)?;
            let new = inside.map(PartId::any).filter(|part| !self.with_disks.contains(part));
            self.with_disks.extend(new);
            return Ok(());
        }
        self.waiter.add_disk(fd, VOLUMES + self.volumes.len() as WaitToken)?;
        self.volumes.push(inside.map(PartId::any));
        Ok(())
    }

    /// Ends a wait while `fd` is readable. `token` is below 2^30.
    pub fn watch(&mut self, fd: BorrowedFd<'_>, token: WaitToken) -> io::Result<()> {
        assert!(token < VOLUMES);
        self.waiter.add(fd, token)?;
        self.watched.push(fd.as_raw_fd());
        Ok(())
    }

    /// Ends that.
    pub fn unwatch(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.watched.retain(|&watched| watched != fd.as_raw_fd());
        self.waiter.remove(fd)
    }

    /// Ends that for all that are watched: nobody listens any more, and they would end every wait.
    pub fn unwatch_all(&mut self) {
        for fd in self.watched.drain(..) {
            self.waiter.remove_raw(fd);
        }
    }

    /// The watched descriptors that the last turn found readable.
    pub fn ready(&self) -> impl Iterator<Item = WaitToken> + '_ {
        self.waiter.ready().iter().copied().filter(|&token| token < VOLUMES)
    }

    /// Where buffers come from.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The clock that the parts' times are of.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// The time now.
    pub fn now(&self) -> Time {
        self.clock.now()
    }

    /// The links, for their names and counters.
    pub fn links(&self) -> &Links {
        &self.links
    }

    /// The clock that the parts' times are of: that of other shards, whose times are compared with theirs. Before
    /// anything has happened here.
    pub(crate) fn set_clock(&mut self, clock: Clock) {
        self.clock = clock;
    }

    /// When waiting spins. Default: [`Spin::On`].
    pub fn set_spin(&mut self, spin: Spin) {
        self.waiter.set_spin(spin);
    }

    /// Counters of the waiting.
    pub fn wait_stats(&self) -> WaitStats {
        self.waiter.stats()
    }

    /// One turn, from where somebody outside has submitted to where there is something to be taken:
    /// parts settle and are closed, frames are sent; then it waits until something comes, a part has
    /// something to do, or `timeout` is over (for ever if none; not at all if zero); then the parts
    /// take in what has come. True if a frame has.
    pub fn turn(&mut self, timeout: Option<Duration>) -> io::Result<bool> {
        let now = self.clock.now();
        self.settle(now);
        self.close(now);
        self.submit_to_disks(now);
        self.carry_out();
        if self.node.out().iter().any(|batch| !batch.is_empty()) {
            self.waiter.sent();
        }
        self.links.flush(self.node.out())?;
        self.links.unregister_fallen(&mut self.waiter);
        self.wait(now, timeout)?;
        self.receive()
    }

    #[inline]
    fn settle(&mut self, now: Time) {
        if !is_timed() {
            return self.node.settle(now);
        }
        let mut steps = Steps::begin(self.clock);
        while self.node.settle_step(now) {
            steps.end("settled");
        }
    }

    #[inline]
    fn close(&mut self, now: Time) {
        if !is_timed() {
            return self.node.close(now);
        }
        let mut steps = Steps::begin(self.clock);
        while self.node.close_step(now) {
            steps.end("was closed");
        }
    }

    /// Gives the kernel what was asked of disks in this turn, before frames are sent: the disks work
    /// meanwhile. What has ended by then is answered by the same flush.
    fn submit_to_disks(&mut self, now: Time) {
        if ring::submit() {
            self.tell_of_disks(now);
            self.settle(now);
            self.close(now);
        }
    }

    fn tell_of_disks(&mut self, now: Time) {
        for &part in &self.with_disks {
            self.node.post(now, part, PartEvent::Readable);
        }
    }

    /// What was to be sent has been handed to the kernel.
    pub fn has_sent(&self) -> bool {
        self.links.again_within().is_none()
    }

    fn wait(&mut self, now: Time, timeout: Option<Duration>) -> io::Result<()> {
        let own = self.node.deadline().since(now);
        let of_links = self.links.again_within().into_iter().chain(self.links.due_in()).min();
        let own = of_links.map_or(own, |of_links| own.min(of_links));
        let timeout = timeout.map_or(own, |t| t.min(own));
        let bounded = (timeout < FOR_EVER).then_some(timeout);
        let Self { node, links, waiter, volumes, .. } = self;
        let network_time = || match node.expects() {
            Expects::Answer(time) => Some(time),
            Expects::Work | Expects::Rest | Expects::Request | Expects::Nothing => None,
        };
        if ring::has_work() {
            waiter.pass(|| links.probe())?;
        } else {
            // Only those who have a descriptor here expect anything of one.
            let is_asked = !volumes.is_empty() && node.expects() == Expects::Request;
            let next = match node.expects() {
                _ if is_asked => Next::Descriptor,
                Expects::Rest => Next::Rest,
                _ => Next::Frame,
            };
            let probe = || Ok(ring::has_work() || !is_asked && links.probe()?);
            waiter.wait_probing(bounded, next, network_time, probe)?;
        }
        turn::begin();
        Ok(())
    }

    fn receive(&mut self) -> io::Result<bool> {
        let Self { node, links, waiter, clock, pool, volumes, mail, .. } = self;
        let now = clock.now();
        let clock = *clock;
        let mut frames =
            links.receive_probed(|link, frame| on_frame(node, clock, now, link, frame));
        frames += links.receive_due(|link, frame| on_frame(node, clock, now, link, frame))?;
        for &token in waiter.ready() {
            if token >= LINKS {
                let at = (token - LINKS) as usize;
                frames +=
                    links.receive(at, |link, frame| on_frame(node, clock, now, link, frame))?;
            } else if let (MAIL, Some((part, mail))) = (token, mail.as_ref()) {
                mail.hear();
                for content in mail.unpack() {
                    node.post(now, *part, PartEvent::Parcel(content));
                }
                mail.receive(pool, |link, frame| {
                    node.post(now, *part, PartEvent::Letter { link, frame });
                });
            } else if token >= VOLUMES
                && token != RING
                && let Some(part) = volumes[(token - VOLUMES) as usize]
            {
                node.post(now, part, PartEvent::Readable);
            }
        }
        if let Some(waited) = links.take_waited() {
            waiter.arrived(waited);
        }
        if ring::take_in() {
            self.tell_of_disks(now);
        }
        self.settle(now);
        Ok(frames > 0)
    }

    /// Does what parts want done outside.
    fn carry_out(&mut self) {
        while let Some((_, effect)) = self.node.take_effect() {
            match (effect, &self.mail) {
                (Effect::Note(Gravity::News, text), _) => tracing::info!("{text}"),
                (Effect::Note(Gravity::Warning, text), _) => tracing::warn!("{text}"),
                (Effect::Note(Gravity::Failure, text), _) => tracing::error!("{text}"),
                (Effect::Letter(letter), Some((_, mail))) => mail.send(letter),
                (Effect::Parcel(parcel), Some((_, mail))) => mail.send_parcel(parcel),
                (Effect::Letter(_) | Effect::Parcel(_), None) => {}
            }
        }
    }
}

impl Drop for Shard {
    fn drop(&mut self) {
        ring::release();
        turn::end();
    }
}

#[inline]
fn on_frame(node: &mut Node, clock: Clock, now: Time, link: usize, frame: &mut RxFrame) {
    if !is_timed() {
        return node.on_frame(now, link, frame);
    }
    let mut steps = Steps::begin(clock);
    node.on_frame(now, link, frame);
    steps.end("took a frame in");
}

#[cfg(test)]
#[path = "shard_tests.rs"]
mod tests;
