//! The edges of a node: I/Os go down them, completions come up.

use std::rc::Rc;

use thinwire_buffer::Time;
use thinwire_volume::{Completion, Edge, ErrorKind, Io, Part, PartEvent, Port};

use super::{Node, PartId};
use crate::flights::Flight;
use crate::parts::Place;

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
    /// A loss is told behind the completions of what has seen it.
    LateLost,
}

/// Completions of which a planted fault takes one.
const CANARY_EVERY: u64 = 500;

/// An edge, and who stands at its upper end.
pub(super) struct Way {
    edge: Rc<Edge>,
    /// The part below.
    child: usize,
    /// The part above; `None` if its port is with somebody outside.
    parent: Option<usize>,
}

impl Node {
    /// A port to the volume that a part is, for whoever stands outside of all parts, or, with
    /// [`Node::give_port`], for another part. Its shape must be known by now.
    ///
    /// # Panics
    /// If the part was removed, or is no volume.
    pub fn port<P: Part>(&mut self, id: PartId<P>) -> Port {
        assert!(self.find(id).is_some(), "the part was removed");
        let number = self.ways_free.pop().unwrap_or(self.ways.len());
        let place = self.places[id.at].as_mut().expect("found");
        place.edges.push(number);
        let volume = place.part.volume().expect("others stand on volumes only");
        let edge = Edge::new(number, volume.geometry(), volume.identity(), self.bell.clone());
        let port = edge.port();
        let way = Some(Way { edge, child: id.at, parent: None });
        match self.ways.get_mut(number) {
            Some(place) => *place = way,
            None => self.ways.push(way),
        }
        port
    }

    /// The port of this number is inside that part from now on: it is told when completions come.
    pub fn give_port<P: Part>(&mut self, number: usize, parent: PartId<P>) {
        let way = self.ways[number].as_mut().expect("the port is there");
        way.parent = Some(parent.at);
    }

    /// Gives the I/Os that wait at an edge to the part below.
    #[inline]
    pub(super) fn carry_down(&mut self, number: usize) {
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
                    let flight = Flight { edge: number as u32, op: io.op, token: io.token };
                    io.token = place.flights.begin(flight);
                    volume.submit(io);
                }
                self.stir(child);
            }
            _ => {
                for io in ios.drain(..) {
                    self.refuse(number, &io);
                }
            }
        }
        self.ios = ios;
    }

    /// Completes an I/O for a part that is gone.
    pub(super) fn refuse(&mut self, number: usize, io: &Io) {
        let Some(Some(way)) = self.ways.get(number) else { return };
        let error = io.error(ErrorKind::ShuttingDown, "node");
        way.edge.complete(Completion::new(io.token, Err(error)));
        if let Some(parent) = way.parent {
            self.stir(parent);
        }
    }

    /// The port of an edge is gone. Its number is another's from now on, to whom nothing of what is still
    /// with the part may come.
    fn cut(&mut self, number: usize) {
        let Some(way) = self.ways[number].take() else { return };
        if let Some(place) = &mut self.places[way.child] {
            place.edges.retain(|&edge| edge != number);
            place.flights.forget_edge(number as u32);
        }
        self.ways_free.push(number);
    }

    /// Tells those who stand on a part what has happened to it, if anything has. Nobody has looked at the
    /// completions of the last poll yet.
    fn carry_events(&mut self, now: Time, at: usize, events: u64) {
        let Self { places, ways, news, .. } = self;
        let place = places[at].as_mut().expect("it has just acted");
        place.events = events;
        place.part.volume().expect("others stand on it").poll_events(news);
        let mut parents = Vec::new();
        for &number in place.edges.iter().filter(|_| !news.is_empty()) {
            let way = ways[number].as_ref().expect("an edge of a part");
            news.iter().for_each(|event| way.edge.tell(event.clone()));
            parents.extend(way.parent);
        }
        news.clear();
        for parent in parents {
            self.stir(parent);
            if let Some(place) = &mut self.places[parent] {
                place.part.on_event(now, PartEvent::Below);
            }
        }
    }

    /// Takes the completions of a part to those who stand on it.
    pub(super) fn carry_up(&mut self, now: Time, at: usize) {
        if self.canary == NodeCanary::None
            && let Some(Place { edges, .. }) = &self.places[at]
            && let [only] = edges[..]
        {
            return self.carry_up_to(now, at, only);
        }
        let mut done = std::mem::take(&mut self.done);
        let place = self.places[at].as_mut().expect("it has just acted");
        let volume = place.part.volume().expect("others stand on it");
        volume.poll(&mut done);
        let (mut events, copied_bytes) = (volume.events(), volume.copied_bytes());
        if self.canary == NodeCanary::LateLost {
            let late = if done.is_empty() { place.events_late } else { events };
            events = std::mem::replace(&mut place.events_late, late);
        }
        for &number in &place.edges {
            let way = self.ways[number].as_ref().expect("an edge of a part");
            way.edge.set_copied_bytes(copied_bytes);
        }
        // Before any completion, which may be of what has seen the loss.
        if events != place.events && !place.edges.is_empty() {
            self.carry_events(now, at, events);
        }
        for mut completion in done.drain(..) {
            let place = self.places[at].as_mut().expect("as before");
            let Some(flight) = place.flights.end(completion.token) else {
                self.strays += 1;
                debug_assert!(false, "a part has completed an I/O twice");
                continue;
            };
            completion.token = flight.token;
            let Some(Some(way)) = self.ways.get(flight.edge as usize) else { continue };
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
    fn carry_up_to(&mut self, now: Time, at: usize, number: usize) {
        let Self { places, ways, strays, .. } = self;
        let Place { part, flights, events, .. } = places[at].as_mut().expect("it has just acted");
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
                if flight.edge as usize == number {
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
        way.edge.set_copied_bytes(volume.copied_bytes());
        let (counted, parent) = (volume.events(), way.parent);
        if counted != *events {
            self.carry_events(now, at, counted);
        }
        if let (true, Some(parent)) = (has_come, parent) {
            self.stir(parent);
        }
    }
}
