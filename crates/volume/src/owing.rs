//! A volume whose users rely on flushes alone: what it loses, a flush tells each of them.

use thinwire_buffer::Time;

use crate::{
    CacheReport, Completion, ErrorKind, Geometry, Identity, Io, IoError, MirrorReport, Op, Scrub,
    Slab, Token, Volume, VolumeEvent, Work,
};

/// The name under which its errors appear.
const MODULE: &str = "loss";

/// What a flush tells.
const LOSS: IoError =
    IoError { kind: ErrorKind::Io, op: Op::Flush, offset: 0, len: 0, module: MODULE };

/// So many there can be.
const USERS: usize = u8::MAX as usize + 1;

/// A fault planted in it, which its test must find. No flag sets one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum OwingCanary {
    /// None: as it is.
    #[default]
    None,
    /// What was lost is forgotten.
    DebtForgotten,
    /// A flush that failed by itself counts as having told its user.
    PaidByFailure,
    /// Of flushes that run while a loss is heard of, only the first of each user is told.
    OneOfMany,
    /// Who is told is told for all.
    OneUser,
    /// What a user was not told goes with it.
    NoHeirs,
    /// A durable write vouches for itself, also beside a loss.
    DurableVouches,
    /// A write that ran beside a loss is like those behind it.
    WriteBeside,
    /// What was asked for by a user that has gone tells the next one of that number.
    GoneIsTold,
    /// Who has submitted nothing yet is nobody.
    IdleIsNobody,
}

/// A set of users.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
struct Users([u64; USERS / 64]);

impl Users {
    const ALL: Self = Users([u64::MAX; USERS / 64]);

    #[inline]
    fn one(user: u8) -> Self {
        let mut one = Users::default();
        one.0[usize::from(user / 64)] = 1 << (user % 64);
        one
    }

    #[inline]
    fn has(self, other: Users) -> bool {
        self.0.iter().zip(other.0).any(|(own, other)| own & other != 0)
    }

    #[inline]
    fn add(&mut self, other: Users) {
        self.0.iter_mut().zip(other.0).for_each(|(own, other)| *own |= other);
    }

    /// True if they were among them.
    fn remove(&mut self, other: Users) -> bool {
        let had = self.has(other);
        self.0.iter_mut().zip(other.0).for_each(|(own, other)| *own &= !other);
        had
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Changes nothing.
    Harmless,
    /// Durable with a flush only.
    Write,
    /// Durable by itself; the rest is for its error.
    Durable { op: Op, offset: u64, len: u64 },
    /// What was written when it began, if it may cover all of that.
    Flush { covers: Option<u64> },
}

/// What is with the volume below, where its index is its token.
#[derive(Clone, Copy, Debug)]
struct Watched {
    token: Token,
    user: u8,
    /// How many of that number had ended: it may be another by now.
    visit: u32,
    kind: Kind,
    /// The losses heard of when it began; of what is not durable by itself, only those that are owed. If there are
    /// more at its end, a flush cannot have covered what is gone, a write that is acknowledged may be gone, and nobody
    /// knows in which of two syncs a durable one was.
    losses: u64,
}

/// A volume, and what it owes: a loss ([`VolumeEvent::Lost`]) that nobody above writes again has to be told
/// by a flush, or one would be acknowledged although what it should cover is gone (rule 4). So each
/// flush fails that was outstanding when a loss was heard of, or else the next one of each user that would
/// succeed; and one more if a write that was outstanding then is acknowledged behind that.
///
/// A user ([`Io::user`]) is whoever tells nobody else of an error. All of them are owed a loss, whoever has
/// written, and whether or not they have asked for anything yet ([`Volume::begin_user`]): they may be one client, which
/// flushes with one of its connections what it wrote with all. Who comes later is owed it as long as somebody was not
/// told whose own writes are in doubt; if such a user ends ([`Volume::end_user`]), the next one to come is told in its
/// place.
///
/// A flush that fails by itself tells whoever asked for it, and pays nothing: what else was lost
/// was not told. FUA writes vouch for themselves only, pay nothing either, and fail if a loss is heard of while they
/// are outstanding: the sync that failed may have taken what theirs then did not find. Where nothing was
/// written that is not durable, or losses are heard of otherwise ([`Owing::new`]), nothing is owed.
///
/// Over a volume of several leaves it knows more than one over each of them: there a part of a write may have been
/// lost, and told, before the write is acknowledged.
///
/// Events go up as they come, a loss before the completions behind it.
pub struct Owing<V> {
    below: V,
    /// Whoever needs to know of losses takes them from the events.
    is_heard: bool,
    watched: Slab<Watched>,
    /// Heard of, and those of them before which something had been written: the others took nothing that a flush
    /// would have to answer for.
    losses: u64,
    debts: u64,
    /// Of those that have begun, or submitted anything, and have not ended.
    users: Users,
    /// By user, how many of that number have ended.
    visits: [u32; USERS],
    /// They are owed a loss.
    owed: Users,
    /// Of those, whose own writes are in doubt, or who were the next to come when somebody's were.
    in_doubt: Users,
    /// Somebody has ended whose writes were in doubt.
    has_heirs: bool,
    /// Something was to be written that is durable with a flush only: of all, and by whom it was since a flush
    /// covered everything.
    writes: u64,
    writes_outstanding: usize,
    have_written: Users,
    /// Somebody of those has ended.
    has_left: bool,
    /// What the volume below counted when its events were last taken.
    seen: u64,
    /// Taken from it, and not yet told.
    news: Vec<VolumeEvent>,
    canary: OwingCanary,
}

impl<V: Volume> Owing<V> {
    /// Over a volume that nobody else uses. `is_heard`: who stands on it looks at its events for losses, and
    /// writes again what is lost, or owes it; its flushes are left alone.
    pub fn new(below: V, is_heard: bool) -> Self {
        Owing {
            seen: below.events(),
            below,
            is_heard,
            watched: Slab::new(),
            losses: 0,
            debts: 0,
            users: Users::default(),
            visits: [0; USERS],
            owed: Users::default(),
            in_doubt: Users::default(),
            has_heirs: false,
            writes: 0,
            writes_outstanding: 0,
            have_written: Users::default(),
            has_left: false,
            news: Vec::new(),
            canary: OwingCanary::None,
        }
    }

    /// With a planted fault, for the test of its test.
    pub fn with_canary(self, canary: OwingCanary) -> Self {
        Owing { canary, ..self }
    }

    /// The volume below.
    pub fn below_mut(&mut self) -> &mut V {
        &mut self.below
    }

    /// There is somebody who was not told of a loss that its own writes may be part of.
    pub fn owes(&self) -> bool {
        self.has_heirs || self.in_doubt != Users::default()
    }

    #[inline]
    fn look_below(&mut self) {
        let events = self.below.events();
        if std::mem::replace(&mut self.seen, events) != events {
            self.take_news();
        }
    }

    /// Hears of what has happened below.
    #[cold]
    fn take_news(&mut self) {
        let mut news = Vec::new();
        self.below.poll_events(&mut news);
        let has_lost = news.contains(&VolumeEvent::Lost);
        news.into_iter().for_each(|event| event.remember(&mut self.news));
        if !has_lost || self.canary == OwingCanary::DebtForgotten {
            return;
        }
        self.losses += 1;
        if self.writes > 0 {
            self.debts += 1;
            self.owed.add(self.users);
            self.in_doubt.add(self.have_written);
            self.has_heirs |= self.has_left;
        }
    }

    /// A user that was not there.
    #[cold]
    fn admit(&mut self, user: Users) {
        self.users.add(user);
        if self.owes() {
            self.owed.add(user);
        }
        if std::mem::take(&mut self.has_heirs) {
            self.in_doubt.add(user);
        }
    }

    /// What an I/O of this kind compares at its end: see [`Watched::losses`].
    #[inline]
    fn losses_for(&self, kind: Kind) -> u64 {
        match kind {
            Kind::Durable { .. } => self.losses,
            _ => self.debts,
        }
    }

    /// What becomes of an I/O that has ended below.
    fn end(&mut self, watched: Watched, result: &mut Result<(), IoError>) {
        let Watched { user, visit, kind, losses, .. } = watched;
        // Nobody, if whoever has asked does not hear of it.
        let is_there = self.visits[usize::from(user)] == visit;
        let user = match is_there || self.canary == OwingCanary::GoneIsTold {
            true => Users::one(user),
            false => Users::default(),
        };
        let is_beside_loss = losses != self.losses_for(kind);
        match kind {
            Kind::Harmless => {}
            Kind::Write => {
                self.writes_outstanding -= 1;
                let is_in_doubt = is_beside_loss && self.canary != OwingCanary::WriteBeside;
                if is_in_doubt && result.is_ok() {
                    self.owed.add(self.users);
                    match self.users.has(user) {
                        true => self.in_doubt.add(user),
                        false => self.has_heirs = true,
                    }
                }
            }
            Kind::Durable { op, offset, len } => {
                if is_beside_loss && result.is_ok() && self.canary != OwingCanary::DurableVouches {
                    *result = Err(IoError { op, offset, len, ..LOSS });
                }
            }
            Kind::Flush { covers } => self.end_flush(user, covers, is_beside_loss, result),
        }
    }

    fn end_flush(
        &mut self,
        user: Users,
        covers: Option<u64>,
        is_beside_loss: bool,
        result: &mut Result<(), IoError>,
    ) {
        if result.is_err() {
            if self.canary == OwingCanary::PaidByFailure {
                self.owed.remove(user);
            }
            return;
        }
        let told = match self.canary {
            OwingCanary::OneUser => Users::ALL,
            _ => user,
        };
        let is_doomed = is_beside_loss && self.canary != OwingCanary::OneOfMany;
        let is_owed = self.owed.has(user);
        if is_owed | is_doomed {
            self.owed.remove(told);
            self.in_doubt.remove(told);
            *result = Err(LOSS);
        } else if covers == Some(self.writes) {
            (self.have_written, self.has_left) = (Users::default(), false);
        }
    }
}

impl<V: Volume> Volume for Owing<V> {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn identity(&self) -> Identity {
        self.below.identity()
    }

    fn submit(&mut self, mut io: Io) {
        if self.is_heard {
            return self.below.submit(io);
        }
        let number = io.user;
        let user = Users::one(number);
        if !self.users.has(user) {
            self.admit(user);
        }
        let kind = match io.op {
            Op::Flush => {
                let covers = (self.writes_outstanding == 0).then_some(self.writes);
                Kind::Flush { covers }
            }
            op if op.is_write() && io.flags.fua => {
                // What was lost before it began is no concern of it.
                self.look_below();
                Kind::Durable { op, offset: io.offset, len: io.len }
            }
            op if op.is_write() => {
                self.writes += 1;
                self.writes_outstanding += 1;
                self.have_written.add(user);
                Kind::Write
            }
            _ => Kind::Harmless,
        };
        let watched = Watched {
            token: io.token,
            user: number,
            visit: self.visits[usize::from(number)],
            kind,
            losses: self.losses_for(kind),
        };
        io.token = Token::from(self.watched.insert(watched));
        self.below.submit(io);
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        if self.is_heard {
            return self.below.poll(done);
        }
        let first = done.len();
        self.below.poll(done);
        // A loss is in front of what came with it.
        self.look_below();
        for one in &mut done[first..] {
            let watched =
                self.watched.remove(one.token).expect("the volume below returns each token once");
            one.token = watched.token;
            self.end(watched, &mut one.result);
        }
    }

    fn outstanding(&self) -> usize {
        self.below.outstanding()
    }

    fn copied_bytes(&self) -> u64 {
        self.below.copied_bytes()
    }

    fn events(&self) -> u64 {
        self.below.events()
    }

    fn poll_events(&mut self, events: &mut Vec<VolumeEvent>) {
        if self.is_heard {
            return self.below.poll_events(events);
        }
        self.seen = self.below.events();
        self.take_news();
        events.append(&mut self.news);
    }

    fn refresh(&mut self) -> bool {
        self.below.refresh()
    }

    fn wind_up(&mut self) {
        self.below.wind_up();
    }

    fn is_wound_up(&self) -> bool {
        self.below.is_wound_up()
    }

    fn mirrors(&self, found: &mut Vec<MirrorReport>) {
        self.below.mirrors(found);
    }

    fn scrubs(&mut self, visit: &mut dyn FnMut(&mut dyn Scrub)) {
        self.below.scrubs(visit);
    }

    fn works(&mut self, visit: &mut dyn FnMut(&mut dyn Work)) {
        self.below.works(visit);
    }

    fn is_timed(&self) -> bool {
        self.below.is_timed()
    }

    fn turn(&mut self, now: Time) -> Time {
        self.below.turn(now)
    }

    fn caches(&self, found: &mut Vec<CacheReport>) {
        self.below.caches(found);
    }

    fn begin_user(&mut self, user: u8) {
        let user = Users::one(user);
        let is_nobody = self.is_heard || self.canary == OwingCanary::IdleIsNobody;
        if !is_nobody && !self.users.has(user) {
            self.admit(user);
        }
    }

    fn end_user(&mut self, user: u8) {
        let number = user;
        let user = Users::one(number);
        if self.users.remove(user) {
            let visit = &mut self.visits[usize::from(number)];
            *visit = visit.wrapping_add(1);
            self.owed.remove(user);
            self.has_heirs |= self.in_doubt.remove(user) && self.canary != OwingCanary::NoHeirs;
            self.has_left |= self.have_written.remove(user);
        }
    }
}

#[cfg(test)]
mod tests;
