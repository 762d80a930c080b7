//! A server that the test can look into, and stores that it can do something to.

use std::cell::{Cell, Ref, RefCell};
use std::rc::Rc;

use thinwire_aoe::AoeServer;
use thinwire_buffer::{RxFrame, Time, TxBatch};
use thinwire_exports::{
    Denied, Dialect, DialectDesk, Done, Granted, InitiatorRun, Pass, Refused, Users, Wish,
};
use thinwire_volume::{Completion, Geometry, Identity, Io, Volume, VolumeEvent};

/// A server that its target and the test have.
#[derive(Clone)]
pub struct SharedServer(Rc<RefCell<AoeServer>>);

impl SharedServer {
    pub fn new(server: AoeServer) -> Self {
        SharedServer(Rc::new(RefCell::new(server)))
    }

    pub fn get(&self) -> Ref<'_, AoeServer> {
        self.0.borrow()
    }
}

impl Users for SharedServer {
    fn is_there(&mut self, session: u64) -> bool {
        self.0.borrow_mut().is_there(session)
    }
    fn ask(&mut self, now: Time, run: InitiatorRun) -> bool {
        self.0.borrow_mut().ask(now, run)
    }
    fn has_answered(&mut self, run: InitiatorRun, since: Time) -> bool {
        self.0.borrow_mut().has_answered(run, since)
    }
    fn on_granted(&mut self, session: u64, transaction: u32, granted: &Granted) {
        self.0.borrow_mut().on_granted(session, transaction, granted);
    }
    fn on_denied(&mut self, session: u64, transaction: u32, denied: Denied) {
        self.0.borrow_mut().on_denied(session, transaction, denied);
    }
    fn on_closed(&mut self, session: u64, transaction: u32) {
        self.0.borrow_mut().on_closed(session, transaction);
    }
    fn on_fenced(&mut self, session: u64, pass: Pass, by: InitiatorRun, generation: u64) {
        self.0.borrow_mut().on_fenced(session, pass, by, generation);
    }
    fn on_resized(&mut self, session: u64, pass: Pass, bytes: u64) {
        self.0.borrow_mut().on_resized(session, pass, bytes);
    }
}

impl Dialect for SharedServer {
    fn on_frame(&mut self, now: Time, frame: &mut RxFrame, desk: &mut dyn DialectDesk) {
        self.0.borrow_mut().on_frame(now, frame, desk);
    }
    fn take_from_line(&mut self, session: u64, slot: u16) -> Option<Wish> {
        self.0.borrow_mut().take_from_line(session, slot)
    }
    fn on_refused(&mut self, now: Time, wish: Wish, why: Refused) {
        self.0.borrow_mut().on_refused(now, wish, why);
    }
    fn on_completion(&mut self, now: Time, done: Done<'_>) {
        self.0.borrow_mut().on_completion(now, done);
    }
    fn on_release(&mut self, now: Time, desk: &mut dyn DialectDesk) {
        self.0.borrow_mut().on_release(now, desk);
    }
    fn on_removed(&mut self, now: Time, export: usize, desk: &mut dyn DialectDesk) {
        self.0.borrow_mut().on_removed(now, export, desk);
    }
    fn end_turn(&mut self, now: Time, desk: &mut dyn DialectDesk) {
        self.0.borrow_mut().end_turn(now, desk);
    }
    fn transmit(&mut self, now: Time, out: &mut TxBatch) {
        self.0.borrow_mut().transmit(now, out);
    }
    fn deadline(&self, now: Time) -> Time {
        self.0.borrow().deadline(now)
    }
    fn shut_down(&mut self) {
        self.0.borrow_mut().shut_down();
    }
    fn is_idle(&self) -> bool {
        self.0.borrow().is_idle()
    }
}

/// A store that outlives the target that serves it: the medium.
#[derive(Clone)]
pub struct SharedStore(Rc<RefCell<Box<dyn Volume>>>);

impl SharedStore {
    pub fn new(store: Box<dyn Volume>) -> Self {
        SharedStore(Rc::new(RefCell::new(store)))
    }

    /// What was under way ends, and nobody hears of it.
    pub fn settle(&mut self) {
        self.0.borrow_mut().poll(&mut Vec::new());
    }
}

impl Volume for SharedStore {
    fn geometry(&self) -> Geometry {
        self.0.borrow().geometry()
    }
    fn identity(&self) -> Identity {
        self.0.borrow().identity()
    }
    fn submit(&mut self, io: Io) {
        self.0.borrow_mut().submit(io);
    }
    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.0.borrow_mut().poll(done);
    }
    fn outstanding(&self) -> usize {
        self.0.borrow().outstanding()
    }
}

/// A volume that keeps writes while its gate is shut, and says that it has lost something when it is told to.
pub struct Slow {
    inner: Box<dyn Volume>,
    gate: Rc<Cell<bool>>,
    losses: Rc<Cell<u64>>,
    kept: Vec<Io>,
    told: u64,
}

impl Slow {
    pub fn new(inner: Box<dyn Volume>, gate: Rc<Cell<bool>>, losses: Rc<Cell<u64>>) -> Self {
        let told = losses.get();
        Slow { inner, gate, losses, kept: Vec::new(), told }
    }
}

impl Volume for Slow {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }
    fn identity(&self) -> Identity {
        self.inner.identity()
    }
    fn submit(&mut self, io: Io) {
        match self.gate.get() || !io.op.is_write() {
            true => self.inner.submit(io),
            false => self.kept.push(io),
        }
    }
    fn poll(&mut self, done: &mut Vec<Completion>) {
        if self.gate.get() {
            // The last first: a volume may do so.
            while let Some(io) = self.kept.pop() {
                self.inner.submit(io);
            }
        }
        self.inner.poll(done);
    }
    fn outstanding(&self) -> usize {
        self.kept.len() + self.inner.outstanding()
    }
    fn events(&self) -> u64 {
        self.losses.get()
    }
    fn poll_events(&mut self, events: &mut Vec<VolumeEvent>) {
        let lost = self.losses.get() > self.told;
        events.extend(lost.then_some(VolumeEvent::Lost));
        self.told = self.losses.get();
    }
}
