//! A port: the end of an edge of the graph at which a part, or a user outside of all parts, submits
//! I/Os to a volume that another part is. To its owner it is a volume like any other.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::{Completion, Geometry, Identity, Io, Volume};

/// The upper end of an [`Edge`].
///
/// What is submitted waits there until the node carries it to the volume below, what that completes
/// until it is polled; both in order. The port counts what its volume has lost as of the completions
/// that can be polled: a loss comes before any completion behind it.
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
    losses: Cell<u64>,
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
            losses: Cell::new(0),
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

    /// What the volume below counted when it was polled. Before the completions of that poll. True if
    /// that is new.
    #[inline]
    pub fn set_losses(&self, losses: u64) -> bool {
        self.losses.replace(losses) != losses
    }

    /// What the volume below says it has copied.
    pub fn set_copied_bytes(&self, bytes: u64) {
        self.copied_bytes.set(bytes);
    }

    /// The volume below has grown.
    pub fn set_geometry(&self, geometry: Geometry) {
        self.geometry.set(geometry);
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

    fn losses(&self) -> u64 {
        self.0.losses.get()
    }
}
