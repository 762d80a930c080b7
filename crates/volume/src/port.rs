//! A port: the end of an edge of the graph at which a part, or a user outside of all parts, submits
//! I/Os to a volume that another part is. To its owner it is a volume like any other.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::{Completion, Geometry, Identity, Io, Volume, VolumeEvent};

/// The upper end of an [`Edge`].
///
/// What is submitted waits there until the node carries it to the volume below, what that completes
/// until it is polled; both in order. What has happened to the volume waits there, too, and counts as of
/// the completions that can be polled: a loss comes before any completion behind it.
pub struct Port(Rc<Edge>);

/// The edge itself, which the node shares with the port. Belongs to one thread.
pub struct Edge {
    /// Which one it is, to the node.
    number: usize,
    geometry: Cell<Geometry>,
    identity: Identity,
    ios: RefCell<Vec<Io>>,
    done: RefCell<Vec<Completion>>,
    outstanding: Cell<usize>,
    events: Cell<u64>,
    /// What has happened to the volume below and was not polled, at most one of each kind.
    news: RefCell<Vec<VolumeEvent>>,
    copied_bytes: Cell<u64>,
    bell: Rc<Bell>,
    /// The port is gone.
    is_cut: Cell<bool>,
}

/// Edges at which I/Os wait. Shared by all edges of a node.
#[derive(Debug, Default)]
pub struct Bell(RefCell<Vec<usize>>);

impl Bell {
    /// Moves the numbers of the edges that have rung to `out`, each once, in the order of their ringing.
    #[inline]
    pub fn take(&self, out: &mut Vec<usize>) {
        out.append(&mut self.0.borrow_mut());
    }

    /// No edge has rung.
    #[inline]
    pub fn is_silent(&self) -> bool {
        self.0.borrow().is_empty()
    }
}

impl Edge {
    /// A new edge to a volume of this shape and content.
    pub fn new(number: usize, geometry: Geometry, identity: Identity, bell: Rc<Bell>) -> Rc<Edge> {
        Rc::new(Edge {
            number,
            geometry: Cell::new(geometry),
            identity,
            ios: RefCell::default(),
            done: RefCell::default(),
            outstanding: Cell::new(0),
            events: Cell::new(0),
            news: RefCell::default(),
            copied_bytes: Cell::new(0),
            bell,
            is_cut: Cell::new(false),
        })
    }

    /// Its upper end. To be taken once.
    pub fn port(self: &Rc<Self>) -> Port {
        Port(self.clone())
    }

    /// Moves the I/Os that wait to `out`, which is empty.
    #[inline]
    pub fn take_ios(&self, out: &mut Vec<Io>) {
        debug_assert!(out.is_empty());
        std::mem::swap(&mut *self.ios.borrow_mut(), out);
    }

    /// Something has happened to the volume below: to be told before anybody looks at the completions
    /// of the poll that it was found out with.
    pub fn tell(&self, event: VolumeEvent) {
        if let VolumeEvent::Resized { bytes } = event {
            self.geometry.set(Geometry { bytes, ..self.geometry.get() });
        }
        event.remember(&mut self.news.borrow_mut());
        self.events.set(self.events.get() + 1);
    }

    /// What the volume below says it has copied.
    pub fn set_copied_bytes(&self, bytes: u64) {
        self.copied_bytes.set(bytes);
    }

    /// Completes an I/O, under the token of whoever submitted it.
    #[inline]
    pub fn complete(&self, completion: Completion) {
        if !self.is_cut.get() {
            self.done.borrow_mut().push(completion);
        }
    }

    /// Lets `fill` add completions behind those that wait.
    #[inline]
    pub fn fill<R>(&self, fill: impl FnOnce(&mut Vec<Completion>) -> R) -> R {
        let mut done = self.done.borrow_mut();
        let filled = fill(&mut done);
        if self.is_cut.get() {
            done.clear();
        }
        filled
    }

    /// I/Os that were submitted and have not been polled.
    pub fn outstanding(&self) -> usize {
        self.outstanding.get()
    }

    /// The port is gone: nobody submits any more, or waits for completions.
    pub fn is_cut(&self) -> bool {
        self.is_cut.get()
    }
}

impl Port {
    /// Completions wait to be polled.
    pub fn has_completions(&self) -> bool {
        !self.0.done.borrow().is_empty()
    }

    /// Whose end it is, to the node.
    pub fn number(&self) -> usize {
        self.0.number
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.0.is_cut.set(true);
        self.0.done.borrow_mut().clear();
        self.0.bell.0.borrow_mut().push(self.0.number);
    }
}

impl Volume for Port {
    fn geometry(&self) -> Geometry {
        self.0.geometry.get()
    }

    fn identity(&self) -> Identity {
        self.0.identity
    }

    #[inline]
    fn submit(&mut self, io: Io) {
        let edge = &*self.0;
        edge.outstanding.set(edge.outstanding.get() + 1);
        let mut ios = edge.ios.borrow_mut();
        if ios.is_empty() {
            edge.bell.0.borrow_mut().push(edge.number);
        }
        ios.push(io);
    }

    #[inline]
    fn poll(&mut self, done: &mut Vec<Completion>) {
        let edge = &*self.0;
        let mut ended = edge.done.borrow_mut();
        edge.outstanding.set(edge.outstanding.get() - ended.len());
        done.append(&mut ended);
    }

    fn outstanding(&self) -> usize {
        self.0.outstanding.get()
    }

    fn copied_bytes(&self) -> u64 {
        self.0.copied_bytes.get()
    }

    fn events(&self) -> u64 {
        self.0.events.get()
    }

    fn poll_events(&mut self, events: &mut Vec<VolumeEvent>) {
        events.append(&mut self.0.news.borrow_mut());
    }
}
