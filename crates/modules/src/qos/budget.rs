//! [`QosBudget`]: what is taken in a second, of one volume or of several that share it, and what waits for that.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use thinwire_buffer::Time;
use thinwire_volume::{Io, Op, Slab};

use super::{QosLimit, QosLimits};

const READS: usize = 0;
const WRITES: usize = 1;
/// The clock of what both take from.
const ALL: usize = 2;

/// A fault planted in it, which its tests must find. No flag sets one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QosCanary {
    /// None: as it is.
    #[default]
    None,
    /// Only what the first volume takes is counted.
    CountsOne,
    /// The first volume that waits goes first.
    FirstComes,
    /// Who comes late gets all, until it has had what others had before.
    SavesUp,
    /// What was let go and not sent yet is overtaken.
    Overtakes,
    /// What was had of reads counts for writes, too, and the other way round.
    OneClock,
    /// What is owed stays as long as it was under the old limits.
    KeepsDebt,
    /// Other limits come with a full bucket.
    FillsUp,
    /// What waits is lost when there is no limit any more.
    Forgets,
}

/// A budget: a handle, of which each volume that draws on it has one, and whoever changes its limits. Belongs to one thread.
///
/// Among volumes that wait, the one goes next that has had least of what is scarce, since it waits; so each gets the same, whatever the others want, and none starves. What a
/// volume has not wanted is not saved up for it, but for all. Limits of reads, of writes and of both are three things that may be scarce, and what was had of each is counted by itself: what
/// one reads holds up neither its own writes nor those of others, but by what limits both.
#[derive(Clone)]
pub struct QosBudget(Rc<RefCell<Inner>>);

impl PartialEq for QosBudget {
    /// It is the same, and not only alike.
    fn eq(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for QosBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("QosBudget").field(&self.limits()).finish()
    }
}

struct Inner {
    limits: QosLimits,
    /// None of them is one: nothing is charged.
    is_unlimited: bool,
    all: Buckets,
    ways: [Buckets; 2],
    /// The last that was told; none before the first time, when all buckets are full.
    now: Option<Time>,
    /// Counts I/Os that had to wait.
    waited: u64,
    /// How many do, in each direction.
    waiting: [usize; 2],
    /// How much the one had had that went last before it did, in ns of reads, of writes, and of both: virtual clocks, which never go back.
    served: [u64; 3],
    members: Slab<Member>,
    count: usize,
    canary: QosCanary,
}

/// A volume that draws on it.
#[derive(Default)]
struct Member {
    /// With their numbers among all that had to wait.
    waiting: [VecDeque<(u64, Io)>; 2],
    /// They may go, and are sent when that volume is told the time next.
    granted: VecDeque<Io>,
    /// In ns, by the clocks of `served`.
    had: [u64; 3],
}

impl Member {
    fn is_idle(&self) -> bool {
        self.waiting.iter().all(VecDeque::is_empty)
    }
}

/// Where a volume that has had so much stands by one of the clocks: what it did not take while others did is not saved up.
fn start_of(had: &[u64; 3], served: &[u64; 3], clock: usize, canary: QosCanary) -> u64 {
    match canary {
        QosCanary::SavesUp | QosCanary::OneClock => had[clock],
        _ => had[clock].max(served[clock]),
    }
}

fn way_of(op: Op) -> usize {
    match op {
        Op::Read | Op::BlockStatus => READS,
        _ => WRITES,
    }
}

impl QosBudget {
    /// Of these limits, full.
    pub fn new(limits: QosLimits) -> Self {
        QosBudget(Rc::new(RefCell::new(Inner {
            limits,
            is_unlimited: limits.is_unlimited(),
            all: Buckets::new(limits.all),
            ways: [Buckets::new(limits.reads), Buckets::new(limits.writes)],
            now: None,
            waited: 0,
            waiting: [0; 2],
            served: [0; 3],
            members: Slab::new(),
            count: 0,
            canary: QosCanary::None,
        })))
    }

    /// What holds.
    pub fn limits(&self) -> QosLimits {
        self.0.borrow().limits
    }

    /// How many volumes draw on it.
    pub fn volumes(&self) -> usize {
        self.0.borrow().count
    }

    /// Others than this handle are of it.
    pub fn is_used(&self) -> bool {
        Rc::strong_count(&self.0) > 1
    }

    /// How many I/Os wait, of all of them.
    pub fn waiting(&self) -> usize {
        self.0.borrow().waiting.iter().sum()
    }

    /// Others hold from now on: what is owed is owed by these, and what was saved up is gone. What waits goes as these let it, from the next time on that its
    /// volume is told the time; nothing is lost or overtaken.
    pub fn set_limits(&self, limits: QosLimits) {
        self.0.borrow_mut().set_limits(limits);
    }

    /// Plants a fault, which tests must find.
    pub fn set_canary(&self, canary: QosCanary) {
        self.0.borrow_mut().canary = canary;
    }

    /// One more volume draws on it, under that number.
    pub(super) fn join(&self) -> u32 {
        let inner = &mut *self.0.borrow_mut();
        inner.count += 1;
        let had = inner.served;
        inner.members.insert(Member { had, ..Member::default() })
    }

    /// It does not any more, and what waits of it is gone.
    pub(super) fn leave(&self, member: u32) {
        let inner = &mut *self.0.borrow_mut();
        if let Some(gone) = inner.members.remove(member.into()) {
            inner.count -= 1;
            for (way, waiting) in gone.waiting.iter().enumerate() {
                inner.waiting[way] -= waiting.len();
            }
        }
    }

    /// It goes at once, and comes back, or waits.
    #[inline]
    pub(super) fn take(&self, member: u32, io: Io) -> Option<Io> {
        self.0.borrow_mut().take(member, io)
    }

    /// By now it is so late: what may go of all volumes is let go.
    pub(super) fn turn(&self, now: Time) {
        self.0.borrow_mut().turn(now);
    }

    /// The next of that volume that was let go.
    pub(super) fn next_granted(&self, member: u32) -> Option<Io> {
        self.0.borrow_mut().members.get_mut(member).granted.pop_front()
    }

    /// When the first of that volume that waits can go at the earliest; never, if none does.
    pub(super) fn ready_at(&self, member: u32) -> Time {
        let inner = &mut *self.0.borrow_mut();
        let waits = inner.members.get_mut(member).waiting.each_ref().map(|way| !way.is_empty());
        let ways = [READS, WRITES].into_iter().filter(|way| waits[*way]);
        ways.map(|way| inner.ready_at(way)).min().unwrap_or(Time::NEVER)
    }

    /// So many of that volume are here.
    pub(super) fn held(&self, member: u32) -> usize {
        let inner = &mut *self.0.borrow_mut();
        let member = inner.members.get_mut(member);
        member.granted.len() + member.waiting.iter().map(VecDeque::len).sum::<usize>()
    }
}

impl Inner {
    fn now(&self) -> Time {
        self.now.unwrap_or(Time::ZERO + self.limits.burst)
    }

    /// When the first of those that wait in one direction can go, as it looks now.
    fn ready_at(&self, way: usize) -> Time {
        self.all.ready_at().max(self.ways[way].ready_at())
    }

    #[inline]
    fn take(&mut self, member: u32, io: Io) -> Option<Io> {
        if self.is_unlimited {
            let at = self.members.get_mut(member);
            if at.granted.is_empty() && at.is_idle() {
                return Some(io);
            }
        }
        self.take_as_it_may(member, io)
    }

    fn take_as_it_may(&mut self, member: u32, io: Io) -> Option<Io> {
        let way = way_of(io.op);
        let is_free = self.waiting[way] == 0 && self.ready_at(way) <= self.now();
        let at = self.members.get_mut(member);
        if self.canary == QosCanary::OneClock && at.is_idle() {
            at.had[ALL] = at.had[ALL].max(self.served[ALL]);
        }
        if is_free && (at.granted.is_empty() || self.canary == QosCanary::Overtakes) {
            self.charge(member, way, &io);
            return Some(io);
        }
        at.waiting[way].push_back((self.waited, io));
        self.waiting[way] += 1;
        self.waited += 1;
        None
    }

    fn charge(&mut self, member: u32, way: usize, io: &Io) {
        if self.canary == QosCanary::CountsOne && member > 0 {
            return;
        }
        let bytes = if matches!(io.op, Op::Read | Op::Write) { io.len } else { 0 };
        let (mut all, mut own) = (self.all.charge(bytes), self.ways[way].charge(bytes));
        if self.canary == QosCanary::OneClock {
            (all, own) = (all.max(own), 0);
        }
        let had = &mut self.members.get_mut(member).had;
        for (clock, cost) in [(ALL, all), (way, own)] {
            let start = start_of(had, &self.served, clock, self.canary);
            self.served[clock] = self.served[clock].max(start);
            had[clock] = start.saturating_add(cost);
        }
    }

    fn turn(&mut self, now: Time) {
        if self.now.is_none() {
            // What went before anybody knew the time counts from here.
            let start = Time::ZERO + self.limits.burst;
            self.buckets().for_each(|bucket| bucket.move_by(now.since(start), start.since(now)));
        }
        let now = self.now.map_or(now, |before| before.max(now));
        self.now = Some(now);
        let full = now - self.limits.burst;
        self.buckets().for_each(|bucket| bucket.fill(full));
        while let Some((member, way)) = self.next(now) {
            let at = self.members.get_mut(member);
            let Some((_, io)) = at.waiting[way].pop_front() else { break };
            self.waiting[way] -= 1;
            self.charge(member, way, &io);
            self.members.get_mut(member).granted.push_back(io);
        }
    }

    /// Whose first goes next, if one can, and in which direction: of the volume that has had least of what both directions take from, since nothing else is scarce for both, and
    /// there the older one.
    fn next(&mut self, now: Time) -> Option<(u32, usize)> {
        let firsts =
            [READS, WRITES].map(|way| match self.waiting[way] > 0 && self.ready_at(way) <= now {
                true => self.first_of(way),
                false => None,
            });
        firsts.into_iter().flatten().min().map(|(_, _, member, way)| (member, way))
    }

    /// Whose goes first among those that wait in one direction: of the volume that has had least of what is scarcer there, and then the older one. With what that has had of what both directions
    /// take from, and how old it is.
    fn first_of(&mut self, way: usize) -> Option<(u64, u64, u32, usize)> {
        // The bucket is emptier that was paid until later.
        let clocks = match self.all.ready_at() >= self.ways[way].ready_at() {
            true => [ALL, way],
            false => [way, ALL],
        };
        let Inner { members, served, canary, .. } = self;
        let first = members.iter_mut().filter_map(|(number, member)| {
            let (at, _) = member.waiting[way].front()?;
            let start = |clock| start_of(&member.had, served, clock, *canary);
            Some(match canary {
                QosCanary::FirstComes => ([0; 2], u64::from(number), 0, number),
                QosCanary::OneClock => ([start(ALL), 0], *at, start(ALL), number),
                _ => (clocks.map(start), *at, start(ALL), number),
            })
        });
        first.min().map(|(_, at, all, number)| (all, at, number, way))
    }

    fn set_limits(&mut self, limits: QosLimits) {
        let before = self.now();
        (self.limits, self.is_unlimited) = (limits, limits.is_unlimited());
        let now = self.now();
        if self.canary == QosCanary::Forgets && limits.is_unlimited() {
            let all = self.members.iter_mut().flat_map(|(_, at)| &mut at.waiting);
            all.for_each(VecDeque::clear);
            self.waiting = [0; 2];
        }
        let canary = self.canary;
        let full = now - limits.burst;
        let rates = [limits.all, limits.reads, limits.writes];
        let rates = rates.into_iter().flat_map(|limit| [limit.iops, limit.bandwidth]);
        for (bucket, rate) in self.buckets().zip(rates) {
            let owed = bucket.paid_until.since(before);
            bucket.change(rate, owed, now);
            match canary {
                QosCanary::KeepsDebt => bucket.paid_until = now + owed,
                QosCanary::FillsUp => bucket.paid_until = full,
                _ => {}
            }
        }
    }

    fn buckets(&mut self) -> impl Iterator<Item = &mut Bucket> {
        let Inner { all, ways: [reads, writes], .. } = self;
        let all = [all, reads, writes];
        all.into_iter().flat_map(|buckets| [&mut buckets.ios, &mut buckets.bytes])
    }
}

/// Those of a limit.
struct Buckets {
    ios: Bucket,
    bytes: Bucket,
}

impl Buckets {
    fn new(limit: QosLimit) -> Self {
        Buckets { ios: Bucket::new(limit.iops), bytes: Bucket::new(limit.bandwidth) }
    }

    fn ready_at(&self) -> Time {
        self.ios.paid_until.max(self.bytes.paid_until)
    }

    /// In ns, what that takes of the scarcer.
    fn charge(&mut self, bytes: u64) -> u64 {
        self.ios.charge(1).max(self.bytes.charge(bytes))
    }
}

/// A token bucket, kept as the time until which what was taken pays for: before that it is empty, and the further that lies back, the more
/// is in it.
struct Bucket {
    /// A second; 0 is as much as anybody wants.
    rate: u64,
    paid_until: Time,
    /// What of a nanosecond is paid besides, as a part of `rate`.
    rest: u64,
}

impl Bucket {
    fn new(rate: u64) -> Self {
        Bucket { rate, paid_until: Time::ZERO, rest: 0 }
    }

    fn charge(&mut self, count: u64) -> u64 {
        if self.rate == 0 {
            return 0;
        }
        let (whole, rate) =
            (u128::from(count) * 1_000_000_000 + u128::from(self.rest), u128::from(self.rate));
        self.rest = (whole % rate) as u64;
        let nanos = u64::try_from(whole / rate).unwrap_or(u64::MAX);
        self.paid_until = self.paid_until + Duration::from_nanos(nanos);
        nanos
    }

    /// It is not fuller than when it was paid until then.
    fn fill(&mut self, full: Time) {
        if self.paid_until < full {
            (self.paid_until, self.rest) = (full, 0);
        }
    }

    fn move_by(&mut self, later: Duration, earlier: Duration) {
        if self.rate > 0 {
            self.paid_until = self.paid_until + later - earlier;
        }
    }

    /// It fills at another rate from now on, empty, with what is owed.
    fn change(&mut self, rate: u64, owed: Duration, now: Time) {
        let owed = match rate {
            0 => 0,
            _ => owed.as_nanos() * u128::from(self.rate) / u128::from(rate),
        };
        let owed = Duration::from_nanos(u64::try_from(owed).unwrap_or(u64::MAX));
        // Where there was no limit, nothing was owed.
        (self.rate, self.rest) = (rate, 0);
        self.paid_until = match rate {
            0 => Time::ZERO,
            _ => now + owed,
        };
    }
}
