//! The node and its turn.

use std::any::Any;
use std::marker::PhantomData;
use std::rc::Rc;

use thinwire_buffer::{LinkInfo, RxFrame, Time, TxBatch};
use thinwire_volume::{
    Bell, Completion, Edge, Effect, ErrorKind, Expects, Io, Op, Part, PartEvent, Port, Volume,
};

use crate::flights::Flight;
use crate::lanes::{Lane, lane_of};
use crate::parts::Place;
use crate::timers::Timers;

/// I/Os go down and completions come up so often in one turn. What is left then has another turn,
/// without sleep between: a benchmark on memory completes and submits for ever, and links wait.
const ROUNDS: u32 = 4;

/// Faults to plant, for whoever must find them. Never in a shipped driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NodeCanary {
    /// Nothing is wrong.
    #[default]
    None,
    /// One in so many completions is not carried up.
    Forgets,
    /// One in so many is carried up twice.
    Stutters,
}

/// Completions of which a planted fault takes one.
const CANARY_EVERY: u64 = 500;

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

impl<P: Part> PartId<P> {
    /// The same, whatever it is.
    pub fn any(self) -> PartId {
        PartId { at: self.at, generation: self.generation, kind: PhantomData }
    }
}

/// A part that uses a link.
#[derive(Clone, Debug)]
struct User {
    part: usize,
    /// The part's number of the link.
    link: usize,
    lane: Lane,
}

/// A link, and who uses it.
#[derive(Debug)]
struct Shared {
    info: LinkInfo,
    users: Vec<User>,
    /// So many shares of its room there are: users, rounded up to a power of two, so that who comes and
    /// goes does not make all others tell their peers each time.
    shares: usize,
}

/// An edge, and who stands at its upper end.
struct Way {
    edge: Rc<Edge>,
    /// The part below.
    child: usize,
    /// The part above; `None` if its port is with somebody outside.
    parent: Option<usize>,
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
    bell: Rc<Bell>,
    timers: Timers,
    /// Parts for which something has come: to be settled in the next round.
    stirred: Vec<usize>,
    /// Parts for which anything has come in this turn: to be closed.
    touched: Vec<usize>,
    /// Those that were closed last.
    closed: Vec<usize>,
    effects: Vec<Effect>,
    left: Vec<(PartId, Effect)>,
    stage: Stage,
    round: u32,
    /// Of the round.
    rung: Vec<usize>,
    acting: Vec<usize>,
    /// Recycled.
    ios: Vec<Io>,
    done: Vec<Completion>,
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
            bell: Rc::default(),
            timers: Timers::default(),
            stirred: Vec::new(),
            touched: Vec::new(),
            closed: Vec::new(),
            effects: Vec::new(),
            left: Vec::new(),
            stage: Stage::Rest,
            round: 0,
            rung: Vec::new(),
            acting: Vec::new(),
            ios: Vec::new(),
            done: Vec::new(),
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
        self.links.push(Shared { info, users: Vec::new(), shares: 1 });
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
            let user = User { part: at, link: own, lane: lane.clone() };
            self.links[link].users.push(user);
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

    /// Takes a part out. I/Os that are with it fail, and so do those that come for it later.
    pub fn remove<P: Part>(&mut self, id: PartId<P>) -> Option<Box<dyn Part>> {
        self.find(id)?;
        let mut place = self.places[id.at].take()?;
        self.timers.set(id.at, Time::NEVER);
        self.links.iter_mut().for_each(|link| link.users.retain(|user| user.part != id.at));
        (0..self.links.len()).for_each(|link| self.share_room(link));
        for Flight { edge, token } in place.flights.drain() {
            self.refuse(edge, token);
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

    /// A port to the volume that a part is, for whoever stands outside of all parts, or, with
    /// [`Node::give_port`], for another part. Its shape must be known by now.
    ///
    /// # Panics
    /// If the part was removed, or is no volume.
    pub fn port<P: Part>(&mut self, id: PartId<P>) -> Port {
        assert!(self.find(id).is_some(), "the part was removed");
        let number = self.ways.len();
        let place = self.places[id.at].as_mut().expect("found");
        place.edges.push(number);
        let volume = place.part.volume().expect("others stand on volumes only");
        let edge = Edge::new(number, volume.geometry(), volume.identity(), self.bell.clone());
        edge.set_losses(volume.losses());
        let port = edge.port();
        self.ways.push(Some(Way { edge, child: id.at, parent: None }));
        port
    }

    /// The port of this number is inside that part from now on: it is told when completions come.
    pub fn give_port<P: Part>(&mut self, number: usize, parent: PartId<P>) {
        let way = self.ways[number].as_mut().expect("the port is there");
        way.parent = Some(parent.at);
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

    /// A frame has arrived on a link.
    #[inline]
    pub fn on_frame(&mut self, now: Time, link: usize, frame: &RxFrame) {
        if let [user] = &self.links[link].users[..]
            && (user.lane.outside || lane_of(frame) != 0)
        {
            let (part, link) = (user.part, user.link);
            self.hand_over(now, part, link, frame);
        } else {
            self.find_user(now, link, frame);
        }
    }

    #[inline]
    fn hand_over(&mut self, now: Time, part: usize, link: usize, frame: &RxFrame) {
        self.stir(part);
        if let Some(place) = &mut self.places[part] {
            place.part.on_frame(now, link, frame);
        }
    }

    /// Several share the link. One that is nobody's goes to the first, which counts why it is dropped.
    fn find_user(&mut self, now: Time, link: usize, frame: &RxFrame) {
        let lane = lane_of(frame);
        let mut is_found = false;
        for at in 0..self.links[link].users.len() {
            let user = &self.links[link].users[at];
            if user.lane.has(lane) {
                let (part, link) = (user.part, user.link);
                self.hand_over(now, part, link, frame);
                is_found = true;
            }
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
                    self.bell.take(&mut self.rung);
                    self.rung.reverse();
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
                        self.bell.take(&mut self.rung);
                        self.rung.reverse();
                    }
                },
            }
        }
    }

    /// Lets I/Os go down and completions come up, a bounded number of rounds.
    #[inline]
    pub fn settle(&mut self, now: Time) {
        while self.settle_step(now) {}
    }

    /// Gives the I/Os that wait at an edge to the part below.
    fn carry_down(&mut self, number: usize) {
        let Some(way) = &self.ways[number] else { return };
        let (edge, child) = (way.edge.clone(), way.child);
        if edge.is_cut() {
            return self.cut(number);
        }
        let mut ios = std::mem::take(&mut self.ios);
        edge.take_ios(&mut ios);
        match &mut self.places[child] {
            Some(place) if place.edges.contains(&number) => {
                let volume = place.part.volume().expect("others stand on it");
                for mut io in ios.drain(..) {
                    let flight = Flight { edge: number, token: io.token };
                    io.token = place.flights.begin(flight);
                    volume.submit(io);
                }
                self.stir(child);
            }
            _ => {
                for io in ios.drain(..) {
                    self.refuse(number, io.token);
                }
            }
        }
        self.ios = ios;
    }

    /// Completes an I/O for a part that is gone.
    fn refuse(&mut self, number: usize, token: u64) {
        let Some(way) = &self.ways[number] else { return };
        let error = Io::new(token, Op::Flush, 0, 0).error(ErrorKind::ShuttingDown, "node");
        way.edge.complete(Completion::new(token, Err(error)));
        if let Some(parent) = way.parent {
            self.stir(parent);
        }
    }

    /// The port of an edge is gone.
    fn cut(&mut self, number: usize) {
        if let Some(way) = self.ways[number].take()
            && let Some(place) = &mut self.places[way.child]
        {
            place.edges.retain(|&edge| edge != number);
        }
    }

    /// Takes the completions of a part to those who stand on it, and lets it act on what has come.
    #[inline]
    fn act(&mut self, now: Time, at: usize) {
        self.touch(at);
        let Some(place) = &mut self.places[at] else { return };
        place.is_stirred = false;
        place.part.settle(now);
        if !place.edges.is_empty() {
            self.carry_up(at);
        }
    }

    fn carry_up(&mut self, at: usize) {
        if self.canary == NodeCanary::None
            && let Some(Place { edges, .. }) = &self.places[at]
            && let [only] = edges[..]
        {
            return self.carry_up_to(at, only);
        }
        let mut done = std::mem::take(&mut self.done);
        let place = self.places[at].as_mut().expect("it has just acted");
        let volume = place.part.volume().expect("others stand on it");
        volume.poll(&mut done);
        // Before any completion, which may be of what has seen the loss.
        let (losses, copied_bytes) = (volume.losses(), volume.copied_bytes());
        for number in 0..place.edges.len() {
            let number = self.places[at].as_ref().expect("as before").edges[number];
            let way = self.ways[number].as_ref().expect("an edge of a part");
            way.edge.set_copied_bytes(copied_bytes);
            if way.edge.set_losses(losses)
                && let Some(parent) = way.parent
            {
                self.stir(parent);
            }
        }
        for mut completion in done.drain(..) {
            let place = self.places[at].as_mut().expect("as before");
            let Some(flight) = place.flights.end(completion.token) else {
                self.strays += 1;
                debug_assert!(false, "a part has completed an I/O twice");
                continue;
            };
            completion.token = flight.token;
            let Some(way) = &self.ways[flight.edge] else { continue };
            if self.canary != NodeCanary::None {
                self.passed += 1;
                match (self.canary, self.passed % CANARY_EVERY) {
                    (NodeCanary::Forgets, 0) => continue,
                    (NodeCanary::Stutters, 0) => {
                        way.edge.complete(Completion::new(completion.token, completion.result));
                    }
                    _ => {}
                }
            }
            way.edge.complete(completion);
            if let Some(parent) = way.parent {
                self.stir(parent);
            }
        }
        self.done = done;
    }

    /// As [`Node::carry_up`], of a part with one edge: its completions go there as they come.
    #[inline]
    fn carry_up_to(&mut self, at: usize, number: usize) {
        let Self { places, ways, strays, .. } = self;
        let Place { part, flights, .. } = places[at].as_mut().expect("it has just acted");
        let volume = part.volume().expect("others stand on it");
        let way = ways[number].as_ref().expect("an edge of a part");
        let has_come = way.edge.fill(|done| {
            let before = done.len();
            volume.poll(done);
            let mut kept = before;
            for at in before..done.len() {
                let Some(flight) = flights.end(done[at].token) else {
                    *strays += 1;
                    debug_assert!(false, "a part has completed an I/O twice");
                    continue;
                };
                // Others are of a port that is gone.
                if flight.edge == number {
                    done[at].token = flight.token;
                    if kept != at {
                        done.swap(kept, at);
                    }
                    kept += 1;
                }
            }
            done.truncate(kept);
            kept > before
        });
        // Nobody has looked at the completions yet.
        way.edge.set_copied_bytes(volume.copied_bytes());
        let has_lost = way.edge.set_losses(volume.losses());
        if let (true, Some(parent)) = (has_come || has_lost, way.parent) {
            self.stir(parent);
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
        if self.left.is_empty() { None } else { Some(self.left.remove(0)) }
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
