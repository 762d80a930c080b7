//! [`SharedVolume`]: one volume for several who stand on it, each on bytes of its own.

#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

use thinwire_buffer::Time;

use crate::{
    CacheReport, Completion, ErrorKind, Features, Geometry, Identity, Io, IoError, MirrorReport,
    Op, Scrub, Slab, Token, Volume, VolumeEvent, Work,
};

/// The name under which its errors appear.
const MODULE: &str = "shared";

/// A fault planted in it, which its test must find. No flag sets one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum SharedCanary {
    /// None: as it is.
    #[default]
    None,
    /// Of a sync that fails hears whoever asked for it, and nobody else.
    FailureToldOne,
    /// The last 512 bytes of what somebody has are anybody's.
    LastBlockOpen,
    /// Who has something to take in is not called for it.
    OthersAsleep,
}

/// Bytes of a volume that somebody stands on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteClaim {
    /// The first.
    pub start: u64,
    /// Behind the last; [`u64::MAX`] for all that follow, also what the volume grows by.
    pub end: u64,
    /// They are read, and never written.
    pub is_read: bool,
}

impl ByteClaim {
    /// Both cannot be granted: they have a byte in common, which one of them may write.
    pub fn is_against(&self, other: &ByteClaim) -> bool {
        self.start < other.end && other.start < self.end && !(self.is_read && other.is_read)
    }

    /// All of this I/O is within it.
    fn has(&self, io: &Io) -> bool {
        let end = io.offset.checked_add(io.len);
        self.start <= io.offset && end.is_some_and(|end| end <= self.end)
    }
}

impl fmt::Display for ByteClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.end {
            u64::MAX => write!(f, "bytes {} to the end", self.start),
            end => write!(f, "bytes {} to {}", self.start, end.saturating_sub(1)),
        }
    }
}

/// A volume that was opened once, for several who stand on it: what it loses, how it grows and that it was fenced is told to each
/// of them; and of a flush, or of a durable write, that fails, whoever has written what no flush of its own has covered hears as of
/// a loss ([`VolumeEvent::Lost`]), since what another's sync has lost no later one brings back (rule 15).
///
/// A handle, which gives out shares ([`SharedVolume::share`]). All belong to one thread. Whoever polls a share takes in what has
/// completed for all; who has something to take in then asks to be told the time at once ([`Volume::turn`]), and so is polled.
#[derive(Clone)]
pub struct SharedVolume(Rc<RefCell<Core>>);

/// The volume, for one who stands on it: all of it by its geometry, of which it may use what it has claimed. Other I/Os fail with
/// [`ErrorKind::Invalid`], and never reach the volume. Keeps no writer record. What is outstanding when it is dropped ends, and nobody
/// hears of it; until then its bytes stay claimed.
pub struct VolumeShare {
    core: Rc<RefCell<Core>>,
    user: u32,
}

struct Core {
    below: Box<dyn Volume>,
    /// What is with the volume below, where its index is its token.
    flights: Slab<Flight>,
    users: Slab<User>,
    /// Room for what a poll brings.
    arrived: Vec<Completion>,
    /// What the volume below counted when its events were last taken.
    seen: u64,
    /// What was told that the volume below has not counted.
    own_events: u64,
    /// What has happened to the volume and stays so: whoever comes hears of it, too.
    lasting: Vec<VolumeEvent>,
    canary: SharedCanary,
}

#[derive(Clone, Copy)]
struct Flight {
    token: Token,
    user: u32,
    kind: Kind,
}

#[derive(Clone, Copy)]
enum Kind {
    /// Changes nothing.
    Harmless,
    /// Durable with a flush only.
    Write,
    /// Durable by itself, by a sync of all.
    Durable,
    /// So many of its user's writes it covers, if it may cover all of them.
    Flush { covers: Option<u64> },
}

impl Kind {
    fn is_write(self) -> bool {
        matches!(self, Kind::Write | Kind::Durable)
    }

    /// Others may lose something with one that fails.
    fn syncs(self) -> bool {
        matches!(self, Kind::Durable | Kind::Flush { .. })
    }
}

struct User {
    claim: ByteClaim,
    /// To be polled.
    done: Vec<Completion>,
    /// To be told, at most one of each kind.
    news: Vec<VolumeEvent>,
    /// Some of that is from before it came, and counted when it is polled first: whoever takes it in counts from what it finds.
    is_behind: bool,
    /// Submitted and not polled.
    outstanding: usize,
    /// With the volume below.
    flying: usize,
    /// So many writes were submitted, so many of them are below, and so many of the first are covered by a flush.
    writes: u64,
    writes_flying: usize,
    flushed: u64,
    winds_up: bool,
    /// The share is gone.
    is_closed: bool,
}

impl SharedVolume {
    /// Of a volume that nobody else uses.
    pub fn new(below: Box<dyn Volume>) -> Self {
        Self::with_canary(below, SharedCanary::None)
    }

    /// With a planted fault, for the test of its test.
    pub fn with_canary(below: Box<dyn Volume>, canary: SharedCanary) -> Self {
        let seen = below.events();
        SharedVolume(Rc::new(RefCell::new(Core {
            below,
            flights: Slab::new(),
            users: Slab::new(),
            arrived: Vec::new(),
            seen,
            own_events: 0,
            lasting: Vec::new(),
            canary,
        })))
    }

    /// A share of it, for whoever stands on these bytes.
    ///
    /// # Errors
    /// What somebody else has, or had and has something outstanding there, against which that is.
    pub fn share(&self, claim: ByteClaim) -> Result<VolumeShare, ByteClaim> {
        let core = &mut *self.0.borrow_mut();
        let is_deaf = core.canary == SharedCanary::LastBlockOpen;
        let of = |user: &User| ByteClaim {
            end: user.claim.end - if is_deaf { 512 } else { 0 },
            ..user.claim
        };
        let against =
            core.users.iter_mut().map(|(_, user)| of(user)).find(|of| of.is_against(&claim));
        if let Some(other) = against {
            return Err(other);
        }
        let user = core.users.insert(User {
            claim,
            done: Vec::new(),
            is_behind: !core.lasting.is_empty(),
            news: core.lasting.clone(),
            outstanding: 0,
            flying: 0,
            writes: 0,
            writes_flying: 0,
            flushed: 0,
            winds_up: false,
            is_closed: false,
        });
        Ok(VolumeShare { core: self.0.clone(), user })
    }
}

impl Core {
    fn submit(&mut self, user: u32, mut io: Io) {
        let of = self.users.get_mut(user);
        of.outstanding += 1;
        let refused = match io.op {
            Op::Flush => None,
            Op::LoadWriter | Op::StoreWriter | Op::Cut => Some(ErrorKind::Unsupported),
            _ if !of.claim.has(&io) => Some(ErrorKind::Invalid),
            op if op.is_write() && of.claim.is_read => Some(ErrorKind::ReadOnly),
            _ => None,
        };
        if let Some(kind) = refused {
            let error = io.error(kind, MODULE);
            return of.done.push(Completion::new(io.token, Err(error)));
        }
        let kind = match io.op {
            Op::Flush => Kind::Flush { covers: (of.writes_flying == 0).then_some(of.writes) },
            op if op.is_write() && io.flags.fua => Kind::Durable,
            op if op.is_write() => Kind::Write,
            _ => Kind::Harmless,
        };
        of.flying += 1;
        of.writes += u64::from(kind.is_write());
        of.writes_flying += usize::from(kind.is_write());
        let flight = Flight { token: io.token, user, kind };
        io.token = Token::from(self.flights.insert(flight));
        self.below.submit(io);
    }

    /// Takes in what has completed, for whomever.
    fn gather(&mut self) {
        let mut arrived = std::mem::take(&mut self.arrived);
        self.below.poll(&mut arrived);
        // A loss is in front of what came with it.
        let all_know = self.look_below();
        for mut one in arrived.drain(..) {
            let flight =
                self.flights.remove(one.token).expect("the volume below returns each token once");
            let Flight { token, user, kind } = flight;
            one.token = token;
            match one.result {
                Err(error) if kind.syncs() && !all_know && has_synced(&error) => {
                    self.tell_others(user);
                }
                _ => {}
            }
            self.land(user, kind, one);
        }
        self.arrived = arrived;
    }

    fn land(&mut self, user: u32, kind: Kind, one: Completion) {
        let of = self.users.get_mut(user);
        of.flying -= 1;
        of.writes_flying -= usize::from(kind.is_write());
        if let (Kind::Flush { covers: Some(covers) }, Ok(())) = (kind, &one.result) {
            of.flushed = of.flushed.max(covers);
        }
        match of.is_closed {
            false => of.done.push(one),
            true => self.forget_if_gone(user),
        }
    }

    /// A sync of this user has failed, of which the volume below has said nothing to all.
    #[cold]
    fn tell_others(&mut self, user: u32) {
        if self.canary == SharedCanary::FailureToldOne {
            return;
        }
        for of in self.others(user).filter(|of| of.flushed < of.writes) {
            VolumeEvent::Lost.remember(&mut of.news);
        }
        self.own_events += 1;
    }

    /// Hears of what has happened below. True if that was a loss.
    fn look_below(&mut self) -> bool {
        let events = self.below.events();
        std::mem::replace(&mut self.seen, events) != events && self.take_news()
    }

    /// Tells it to all.
    #[cold]
    fn take_news(&mut self) -> bool {
        let mut news = Vec::new();
        self.below.poll_events(&mut news);
        for (_, of) in self.users.iter_mut().filter(|(_, of)| !of.is_closed) {
            news.iter().for_each(|event| event.clone().remember(&mut of.news));
        }
        for event in &news {
            if matches!(event, VolumeEvent::Shrunk | VolumeEvent::Fenced { .. }) {
                event.clone().remember(&mut self.lasting);
            }
        }
        news.contains(&VolumeEvent::Lost)
    }

    /// A share that is gone, and has nothing outstanding, has claimed nothing any more.
    fn forget_if_gone(&mut self, user: u32) {
        let of = self.users.get_mut(user);
        if of.is_closed && of.flying == 0 {
            self.users.remove(user.into());
        }
    }

    /// All of them that are there, but for this one.
    fn others(&mut self, user: u32) -> impl Iterator<Item = &mut User> {
        let users = self.users.iter_mut();
        users.filter(move |(other, of)| *other != user && !of.is_closed).map(|(_, of)| of)
    }
}

/// It has failed behind the gate of the volume: what it was to make durable may be lost, whoever has written that.
fn has_synced(error: &IoError) -> bool {
    !matches!(error.kind, ErrorKind::Invalid | ErrorKind::Unsupported | ErrorKind::ReadOnly)
}

impl VolumeShare {
    fn with<R>(&self, look: impl FnOnce(&mut User) -> R) -> R {
        look(self.core.borrow_mut().users.get_mut(self.user))
    }
}

impl Drop for VolumeShare {
    fn drop(&mut self) {
        let core = &mut *self.core.borrow_mut();
        let of = core.users.get_mut(self.user);
        of.is_closed = true;
        of.done.clear();
        core.forget_if_gone(self.user);
    }
}

impl Volume for VolumeShare {
    fn geometry(&self) -> Geometry {
        let core = &mut *self.core.borrow_mut();
        let is_read = core.users.get_mut(self.user).claim.is_read;
        let geometry = core.below.geometry();
        let read_only = geometry.features.read_only || is_read;
        Geometry { features: Features { read_only, ..geometry.features }, ..geometry }
    }

    fn identity(&self) -> Identity {
        self.core.borrow().below.identity()
    }

    #[inline]
    fn submit(&mut self, io: Io) {
        self.core.borrow_mut().submit(self.user, io);
    }

    #[inline]
    fn poll(&mut self, done: &mut Vec<Completion>) {
        let core = &mut *self.core.borrow_mut();
        core.gather();
        let of = core.users.get_mut(self.user);
        core.own_events += u64::from(std::mem::take(&mut of.is_behind));
        of.outstanding -= of.done.len();
        done.append(&mut of.done);
    }

    fn outstanding(&self) -> usize {
        self.with(|of| of.outstanding)
    }

    fn copied_bytes(&self) -> u64 {
        self.core.borrow().below.copied_bytes()
    }

    /// One count for all: who polls learns that somebody has something to hear of.
    fn events(&self) -> u64 {
        let core = self.core.borrow();
        core.below.events().wrapping_add(core.own_events)
    }

    fn poll_events(&mut self, events: &mut Vec<VolumeEvent>) {
        let core = &mut *self.core.borrow_mut();
        core.look_below();
        events.append(&mut core.users.get_mut(self.user).news);
    }

    /// What is at rest below is the business of those who stay, if any do.
    fn is_at_rest(&self) -> bool {
        let core = &mut *self.core.borrow_mut();
        core.users.get_mut(self.user).outstanding == 0
            && (core.others(self.user).next().is_some() || core.below.is_at_rest())
    }

    fn refresh(&mut self) -> bool {
        self.core.borrow_mut().below.refresh()
    }

    /// The volume ends with the last of its shares; until then others go on.
    fn wind_up(&mut self) {
        let core = &mut *self.core.borrow_mut();
        core.users.get_mut(self.user).winds_up = true;
        if core.others(self.user).all(|of| of.winds_up) {
            core.below.wind_up();
        }
    }

    fn is_wound_up(&self) -> bool {
        let core = &mut *self.core.borrow_mut();
        !core.others(self.user).all(|of| of.winds_up) || core.below.is_wound_up()
    }

    fn mirrors(&self, found: &mut Vec<MirrorReport>) {
        self.core.borrow().below.mirrors(found);
    }

    fn caches(&self, found: &mut Vec<CacheReport>) {
        self.core.borrow().below.caches(found);
    }

    fn scrubs(&mut self, visit: &mut dyn FnMut(&mut dyn Scrub)) {
        self.core.borrow_mut().below.scrubs(visit);
    }

    fn works(&mut self, visit: &mut dyn FnMut(&mut dyn Work)) {
        self.core.borrow_mut().below.works(visit);
    }

    /// It waits for others to be polled.
    fn is_timed(&self) -> bool {
        true
    }

    fn turn(&mut self, now: Time) -> Time {
        let core = &mut *self.core.borrow_mut();
        let next = if core.below.is_timed() { core.below.turn(now) } else { Time::NEVER };
        let is_awaited = !core.users.get_mut(self.user).done.is_empty();
        match is_awaited && core.canary != SharedCanary::OthersAsleep {
            true => now,
            false => next,
        }
    }
}
