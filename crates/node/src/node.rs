//! The node and its turn. What passes between parts is in `edges.rs`.

mod edges;

use std::any::Any;
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::rc::Rc;

use thinwire_buffer::{LinkInfo, RxFrame, Time, TxBatch};
use thinwire_volume::{
    Bell, Completion, Effect, Expects, Io, Part, PartEvent, Volume, VolumeEvent,
};

pub use self::edges::NodeCanary;
use self::edges::Way;
use crate::flights::Flight;
use crate::lanes::{Lane, Lanes, lane_of};
use crate::parts::Place;
use crate::timers::Timers;

/// I/Os go down and completions come up so often in one turn. What is left then has another turn,
/// without sleep between: a benchmark on memory completes and submits for ever, and links wait.
const ROUNDS: u32 = 4;

/// A part of type `P` on its node.
pub struct PartId<P: ?Sized = dyn Part> {
    at: usize,
    generation: u32,
    kind: PhantomData<fn() -> Box<P>>,
}

impl<P: ?Sized> Clone for PartId<P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: ?Sized> Copy for PartId<P> {}

impl<P: ?Sized> PartialEq for PartId<P> {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.generation) == (other.at, other.generation)
    }
}

impl<P: Part> PartId<P> {
    /// The same, whatever it is.
    pub fn any(self) -> PartId {
        PartId { at: self.at, generation: self.generation, kind: PhantomData }
    }
}

/// A part that uses a link.
#[derive(Clone, Copy, Debug)]
struct User {
    part: usize,
    /// The part's number of the link.
    link: usize,
    /// It wants frames that name nobody.
    outside: bool,
}

/// A link, and who uses it.
#[derive(Debug)]
struct Shared {
    info: LinkInfo,
    users: Vec<User>,
    lanes: Lanes,
    /// Who has all of it, whatever its frames are: then there are no users.
    foreign: Option<User>,
    /// So many shares of its room there are: users, rounded up to a power of two, so that who comes and
    /// goes does not make all others tell their peers each time.
    shares: usize,
}

/// What the next step of settling is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Settling has not begun.
    Rest,
    /// I/Os go down.
    Down,
    /// Completions come up, and parts act.
    Act,
    /// Parts are closed.
    Close,
}

/// See the [crate].
pub struct Node {
    places: Vec<Option<Place>>,
    generations: u32,
    links: Vec<Shared>,
    out: Vec<TxBatch>,
    lent: Vec<TxBatch>,
    ways: Vec<Option<Way>>,
    /// Numbers of those that are gone, to be used again.
    ways_free: Vec<usize>,
    bell: Rc<Bell>,
    timers: Timers,
    /// Parts for which something has come: to be settled in the next round.
    stirred: Vec<usize>,
    /// Parts for which anything has come in this turn: to be closed.
    touched: Vec<usize>,
    /// Those that were closed last.
    closed: Vec<usize>,
    effects: Vec<Effect>,
    left: VecDeque<(PartId, Effect)>,
    stage: Stage,
    round: u32,
    /// Of the round.
    rung: Vec<usize>,
    acting: Vec<usize>,
    /// Recycled.
    ios: Vec<Io>,
    done: Vec<Completion>,
    news: Vec<VolumeEvent>,
    strays: u64,
    canary: NodeCanary,
    /// Completions that a planted fault has let pass.
    passed: u64,
}

impl Node {
    /// A node without parts, on links of which it knows this much.
    pub fn new(links: Vec<LinkInfo>) -> Self {
        let mut node = Node {
            places: Vec::new(),
            generations: 0,
            links: Vec::new(),
            out: Vec::new(),
            lent: Vec::new(),
            ways: Vec::new(),
            ways_free: Vec::new(),
            bell: Rc::default(),
            timers: Timers::default(),
            stirred: Vec::new(),
            touched: Vec::new(),
            closed: Vec::new(),
            effects: Vec::new(),
            left: VecDeque::new(),
            stage: Stage::Rest,
            round: 0,
            rung: Vec::new(),
            acting: Vec::new(),
            ios: Vec::new(),
            done: Vec::new(),
            news: Vec::new(),
            strays: 0,
            canary: NodeCanary::None,
            passed: 0,
        };
        for info in links {
            node.add_link(info);
        }
        node
    }

    /// Another link; its number.
    pub fn add_link(&mut self, info: LinkInfo) -> usize {
        let (users, lanes) = (Vec::new(), Lanes::default());
        self.links.push(Shared { info, users, lanes, foreign: None, shares: 1 });
        self.out.push(TxBatch::new());
        self.links.len() - 1
    }

    /// What is known of the links, by number, with the room that a part has there which is added next.
    pub fn links(&self) -> impl ExactSizeIterator<Item = LinkInfo> + '_ {
        self.links.iter().map(|link| match (link.users.len() + 1).next_power_of_two() {
            1 => link.info,
            shares => LinkInfo { room: link.info.room.shared_by(shares), ..link.info },
        })
    }

    /// Tells the users of a link how much of its room each has, if that has changed.
    fn share_room(&mut self, number: usize) {
        let link = &mut self.links[number];
        let shares = link.users.len().next_power_of_two();
        if shares == link.shares {
            return;
        }
        link.shares = shares;
        let room = if shares == 1 { link.info.room } else { link.info.room.shared_by(shares) };
        for at in 0..link.users.len() {
            let User { part, link, .. } = self.links[number].users[at];
            self.stir(part);
            if let Some(place) = &mut self.places[part] {
                place.part.on_room(link, room);
            }
        }
    }

    /// Adds a part that uses these links, by number; frames of `lane` are its. It is closed in the next
    /// turn.
    pub fn add<P: Part>(&mut self, part: P, links: Vec<usize>, lane: &Lane) -> PartId<P> {
        let at = self.places.iter().position(Option::is_none).unwrap_or(self.places.len());
        for (own, &link) in links.iter().enumerate() {
            let user = User { part: at, link: own, outside: lane.outside };
            self.links[link].users.push(user);
            self.links[link].lanes.add(lane, (at, own));
        }
        self.generations += 1;
        let used = links.clone();
        let place = Place::new(Box::new(part), self.generations, links);
        if at == self.places.len() {
            self.places.push(None);
            self.timers.grow(self.places.len());
        }
        self.places[at] = Some(place);
        self.stir(at);
        used.into_iter().for_each(|link| self.share_room(link));
        PartId { at, generation: self.generations, kind: PhantomData }
    }

    /// Gives a part another link, on which another protocol is spoken: all of its frames are its
    /// ([`Part::on_foreign_frame`]). The part's number of it is returned.
    ///
    /// # Panics
    /// If the part is gone, or somebody has the link.
    pub fn give_foreign_link<P: Part>(&mut self, id: PartId<P>, link: usize) -> usize {
        assert!(self.find(id).is_some(), "the part is there");
        let shared = &mut self.links[link];
        assert!(shared.users.is_empty() && shared.foreign.is_none(), "somebody has the link");
        let own = self.places[id.at].as_mut().expect("found").add_link(link);
        shared.foreign = Some(User { part: id.at, link: own, outside: false });
        own
    }

    /// Takes a part out. I/Os that are with it fail, and so do those that come for it later.
    pub fn remove<P: Part>(&mut self, id: PartId<P>) -> Option<Box<dyn Part>> {
        self.find(id)?;
        let mut place = self.places[id.at].take()?;
        self.timers.set(id.at, Time::NEVER);
        for link in &mut self.links {
            link.users.retain(|user| user.part != id.at);
            link.lanes.remove(id.at);
            link.foreign.take_if(|user| user.part == id.at);
        }
        (0..self.links.len()).for_each(|link| self.share_room(link));
        for Flight { edge, op, token } in place.flights.drain() {
            self.refuse(edge as usize, &Io::new(token, op, 0, 0));
        }
        Some(place.part)
    }

    /// A part, to look at.
    pub fn get<P: Part>(&self, id: PartId<P>) -> Option<&P> {
        let any: &dyn Any = &*self.find(id)?.part;
        any.downcast_ref()
    }

    /// A part, to do something with between two turns. It counts as touched. `None` if it has been
    /// removed.
    pub fn get_mut<P: Part>(&mut self, id: PartId<P>) -> Option<&mut P> {
        self.find(id)?;
        self.stir(id.at);
        let any: &mut dyn Any = &mut *self.places[id.at].as_mut()?.part;
        any.downcast_mut()
    }

    /// The volume that a part is, for one who stands outside of all parts and alone on it: submits and
    /// polls itself, without an edge. The part counts as touched.
    ///
    /// # Panics
    /// If it has been removed, or is no volume.
    #[inline]
    pub fn volume<P: ?Sized>(&mut self, id: PartId<P>) -> &mut dyn Volume {
        self.stir(id.at);
        let place = self.places[id.at].as_mut().filter(|place| place.generation == id.generation);
        let place = place.expect("the part is there");
        debug_assert!(place.edges.is_empty(), "others stand on it, too");
        place.part.volume().expect("it is a volume")
    }

    fn find<P: ?Sized>(&self, id: PartId<P>) -> Option<&Place> {
        self.places.get(id.at)?.as_ref().filter(|place| place.generation == id.generation)
    }

    /// Something has come for a part.
    #[inline]
    fn stir(&mut self, at: usize) {
        if let Some(place) = &mut self.places[at]
            && !std::mem::replace(&mut place.is_stirred, true)
        {
            self.stirred.push(at);
        }
        // One that was left over from the turn before is to be closed in this, too.
        self.touch(at);
    }

    #[inline]
    fn touch(&mut self, at: usize) {
        if let Some(place) = &mut self.places[at]
            && !std::mem::replace(&mut place.is_touched, true)
        {
            self.touched.push(at);
        }
    }

    /// A frame has arrived on a link. The part that it is for may change it.
    #[inline]
    pub fn on_frame(&mut self, now: Time, link: usize, frame: &mut RxFrame) {
        if let [user] = &self.links[link].users[..]
            && (user.outside || lane_of(frame) != 0)
        {
            let (part, link) = (user.part, user.link);
            self.hand_over(now, part, link, frame);
        } else {
            self.find_user(now, link, frame);
        }
    }

    #[inline]
    fn hand_over(&mut self, now: Time, part: usize, link: usize, frame: &mut RxFrame) {
        self.stir(part);
        if let Some(place) = &mut self.places[part] {
            place.part.on_frame(now, link, frame);
        }
    }

    /// Several share the link. One that is nobody's goes to the first, which counts why it is dropped.
    fn find_user(&mut self, now: Time, link: usize, frame: &mut RxFrame) {
        if let Some(User { part, link, .. }) = self.links[link].foreign {
            self.stir(part);
            if let Some(place) = &mut self.places[part] {
                place.part.on_foreign_frame(now, link, frame);
            }
            return;
        }
        let lane = lane_of(frame);
        let mut at = self.links[link].lanes.end(lane);
        let mut is_found = false;
        while let Some((next, (part, link))) = self.links[link].lanes.next(lane, at) {
            self.hand_over(now, part, link, frame);
            (at, is_found) = (next, true);
        }
        let first = self.links[link].users.first().filter(|_| !is_found && lane != 0);
        if let Some(first) = first {
            let (part, link) = (first.part, first.link);
            self.hand_over(now, part, link, frame);
        }
    }

    /// Something else has happened to a part. Nothing if it was removed.
    pub fn post<P: ?Sized>(&mut self, now: Time, id: PartId<P>, event: PartEvent<'_>) {
        if self.find(id).is_some() {
            self.stir(id.at);
            self.places[id.at].as_mut().expect("found").part.on_event(now, event);
        }
    }

    /// One call of settling, or none if there is nothing to settle.
    pub fn settle_step(&mut self, now: Time) -> bool {
        self.step(now)
    }

    #[inline(always)]
    fn step(&mut self, now: Time) -> bool {
        loop {
            match self.stage {
                Stage::Rest | Stage::Close => {
                    while let Some(at) = self.timers.take_due(now) {
                        self.stir(at);
                    }
                    if self.stirred.is_empty() && self.bell.is_silent() {
                        return false;
                    }
                    (self.stage, self.round) = (Stage::Down, 0);
                    self.take_rung();
                }
                Stage::Down => match self.rung.pop() {
                    Some(way) => {
                        self.carry_down(way);
                        return true;
                    }
                    None => {
                        self.stage = Stage::Act;
                        std::mem::swap(&mut self.stirred, &mut self.acting);
                        self.acting.reverse();
                    }
                },
                Stage::Act => match self.acting.pop() {
                    Some(at) => {
                        self.act(now, at);
                        return true;
                    }
                    None => {
                        self.round += 1;
                        let is_over = self.stirred.is_empty() && self.bell.is_silent();
                        if is_over || self.round == ROUNDS {
                            self.stage = Stage::Rest;
                            return false;
                        }
                        self.stage = Stage::Down;
                        self.take_rung();
                    }
                },
            }
        }
    }

    #[inline]
    fn take_rung(&mut self) {
        if !self.bell.is_silent() {
            self.bell.take(&mut self.rung);
            self.rung.reverse();
        }
    }

    /// Lets I/Os go down and completions come up, a bounded number of rounds.
    #[inline]
    pub fn settle(&mut self, now: Time) {
        // Half of the calls find nothing to do.
        let is_idle = self.stirred.is_empty() && self.bell.is_silent();
        if is_idle && !self.is_settling() && self.timers.first() > now {
            return;
        }
        while self.step(now) {}
    }

    fn is_settling(&self) -> bool {
        matches!(self.stage, Stage::Down | Stage::Act)
    }

    /// Takes the completions of a part to those who stand on it, and lets it act on what has come.
    #[inline]
    fn act(&mut self, now: Time, at: usize) {
        self.touch(at);
        let Some(place) = &mut self.places[at] else { return };
        place.is_stirred = false;
        place.part.settle(now);
        // What is still with it for a port that is gone is taken, too: nobody else would.
        if !place.edges.is_empty() || place.flights.len() > 0 {
            self.carry_up(now, at);
        }
    }

    /// Closes one part that was touched in this turn, or none if there is no more.
    pub fn close_step(&mut self, now: Time) -> bool {
        if self.stage != Stage::Close {
            self.stage = Stage::Close;
            self.closed.clear();
            while let Some(at) = self.timers.take_due(now) {
                self.touch(at);
            }
        }
        let Some(at) = self.touched.pop() else {
            self.stage = Stage::Rest;
            return false;
        };
        let Some(place) = &mut self.places[at] else { return true };
        place.is_touched = false;
        let deadline = place.close(now, &mut self.out, &mut self.lent, &mut self.effects);
        self.timers.set(at, deadline);
        self.closed.push(at);
        if !self.effects.is_empty() {
            let id = PartId { at, generation: place.generation, kind: PhantomData };
            self.left.extend(self.effects.drain(..).map(|effect| (id, effect)));
        }
        true
    }

    /// Ends a turn: closes each part that was touched in it, or is due.
    #[inline]
    pub fn close(&mut self, now: Time) {
        while self.close_step(now) {}
    }

    /// Frames to send, one batch for each link.
    #[inline]
    pub fn out(&mut self) -> &mut [TxBatch] {
        &mut self.out
    }

    /// The next thing to be done outside.
    pub fn take_effect(&mut self) -> Option<(PartId, Effect)> {
        self.left.pop_front()
    }

    /// When the next turn must be, at the latest: [`Time::ZERO`] if something has been left over.
    pub fn deadline(&self) -> Time {
        if self.stirred.is_empty() && self.bell.is_silent() {
            self.timers.first()
        } else {
            Time::ZERO
        }
    }

    /// I/Os wait at an edge.
    pub fn has_ios(&self) -> bool {
        !self.bell.is_silent()
    }

    /// How soon something may come for one of the parts that had the last turn.
    pub fn expects(&self) -> Expects {
        let of = |&at: &usize| self.places[at].as_ref().map(|place| place.part.expects());
        self.closed.iter().filter_map(of).min().unwrap_or(Expects::Nothing)
    }

    /// I/Os that are with a part, on behalf of others.
    pub fn outstanding<P: Part>(&self, id: PartId<P>) -> usize {
        self.find(id).map_or(0, |place| place.flights.len())
    }

    /// Plants a fault.
    pub fn set_canary(&mut self, canary: NodeCanary) {
        self.canary = canary;
    }

    /// Completions of I/Os that had been completed, or never submitted.
    pub fn strays(&self) -> u64 {
        self.strays
    }
}
