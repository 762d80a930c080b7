//! An initiator that has several exports in one session, which the shipped one never has: it reads and
//! writes them interleaved, detaches one and attaches it again, and goes on with the others when it is
//! fenced on one. Every answer is checked against the model of its export.
//!
//! It replays nothing: when its session is lost, or an export's verifier has changed, its runs there
//! end as if the process had died, and it starts them anew.
//!
//! Here is its life. What it has asked for is in `desk.rs`, its attachments are in `seat.rs`, its I/O
//! and how that is judged in `io.rs`; `stage.rs` is its part of the world.

mod desk;
mod io;
mod seat;
mod stage;

use std::cell::Cell;
use std::rc::Rc;

use thinwire_buffer::{Addr, Pool};
use thinwire_link::fault::FaultConfig;
use thinwire_link::rng::Rng;
use thinwire_link::sim::SimNet;
use thinwire_proto::{Item, Time};
use thinwire_wire::{Bye, Message, Status};

use self::desk::{Desk, Heard};
use self::seat::{Seat, Stands};
use crate::client::Workload;
use crate::coverage::Coverage;
use crate::export::Export;
use crate::hand::{Caller, Hand};
use crate::keys::{Holder, entropy, known_as};
use crate::model::Violation;
use crate::swarm::pick;
use crate::world::{MS, SECOND};

/// What a turn works with: time, what is shared with others, and where to tell of it.
pub struct Around<'a> {
    /// Now, in ns.
    pub now: u64,
    /// All exports of the world.
    pub exports: &'a mut [Export],
    /// What has been exercised.
    pub coverage: &'a mut Coverage,
    /// The last number that was given to a run.
    pub runs: &'a mut u32,
    /// Takes note of something.
    pub note: &'a mut dyn FnMut(&str, u64),
}

/// An initiator with several exports in one session.
pub struct Juggler {
    /// What it is called in traces.
    pub name: String,
    /// Its links and its session.
    pub hand: Hand,
    /// Which key is its own, in a world with keys.
    pub holder: Option<Holder>,
    /// Which server it talks to.
    pub server: usize,
    /// Faults of its links, if they are wrapped.
    pub faults: Option<FaultConfig>,
    /// What it does. Discards, zeroes and statuses are not among it.
    pub workload: Workload,
    /// Share of I/Os with which it detaches one of its exports, to attach it again.
    pub leaves: f64,
    /// It takes nothing over any more.
    pub is_calm: bool,
    is_running: bool,
    is_closing: bool,
    seats: Vec<Seat>,
    desk: Desk,
    rng: Rng,
    pool: Pool,
    submitted: u64,
    pause_until: u64,
    /// When it greets again, without a session.
    greet_at: u64,
    /// It had a session when it was last looked at.
    in_session: bool,
    /// Where it was fenced last in this session.
    fenced_on: Option<usize>,
    /// More than one of its exports were open in this session.
    had_several: bool,
}

impl Juggler {
    /// A machine on which nothing runs yet. It opens each of `exports`, some for reading only.
    pub fn new(
        index: usize,
        stations: Vec<u32>,
        (server, node, targets): (usize, &str, &[u32]),
        exports: &[(usize, bool)],
        workload: Workload,
        rng: Rng,
    ) -> Self {
        let name = format!("juggler{index}");
        let greeting = Caller {
            initiator: [index as u8 + 0x60; 16],
            instance: 0,
            node: node.into(),
            export: format!("disk{}", exports[0].0),
            name: name.clone(),
        };
        let targets = targets.iter().map(|&station| Addr::Sim(station)).collect();
        let pool = Pool::new(4 << 20);
        Juggler {
            name,
            hand: Hand::on(stations, targets, greeting, pool.clone()),
            holder: None,
            server,
            faults: None,
            workload,
            leaves: 0.0,
            is_calm: false,
            is_running: false,
            is_closing: false,
            seats: exports.iter().map(|&(at, read_only)| Seat::new(at, read_only)).collect(),
            desk: Desk::default(),
            rng,
            pool,
            submitted: 0,
            pause_until: 0,
            greet_at: 0,
            in_session: false,
            fenced_on: None,
            had_several: false,
        }
    }

    /// Who it is to its target.
    pub fn known_as(&self) -> [u8; 16] {
        known_as(self.holder, self.hand.greeting.initiator)
    }

    /// Its process is there.
    pub fn is_running(&self) -> bool {
        self.is_running
    }

    /// Starts a run of it.
    pub fn start(&mut self, now: u64, seed: u64, net: &SimNet, clock: &Rc<Cell<u64>>) {
        assert!(!self.is_running);
        self.is_running = true;
        self.is_closing = false;
        if let Some(key) = &mut self.hand.key {
            key.entropy = entropy(seed);
        }
        self.hand.open(net, self.faults.as_ref(), clock);
        self.hand.machine.frozen_until = 0;
        self.hand.greeting.instance = seed;
        self.hand.greet(Time(now));
    }

    /// The process is gone at once.
    pub fn crash(&mut self, exports: &mut [Export]) {
        self.lose(exports, 0);
        self.hand.leave();
        self.is_running = false;
        self.hand.machine.deadline = u64::MAX;
    }

    /// Begins an orderly end.
    pub fn close(&mut self) {
        self.is_closing = self.is_running;
        self.hand.machine.dirty = self.is_running;
    }

    /// When it attaches next it takes over.
    pub fn take_over(&mut self) {
        self.seats.iter_mut().for_each(|seat| seat.take_over = true);
    }

    /// Requests that are not answered.
    pub fn outstanding(&self) -> usize {
        self.desk.outstanding().count()
    }

    /// It will not submit anything by itself any more.
    pub fn is_finished(&self) -> bool {
        self.submitted >= self.workload.budget || !self.seats.iter().any(Seat::is_open)
    }

    /// Lets it submit so many more.
    pub fn add_budget(&mut self, count: u64) {
        self.workload.budget = self.submitted + count;
        self.hand.machine.dirty = true;
    }

    /// Lets it flush each of its exports once, those that are not open when they are.
    pub fn flush_all(&mut self) {
        self.seats.iter_mut().for_each(|seat| seat.owes_flush = true);
        self.hand.machine.dirty = true;
    }

    /// This export is one of its own.
    pub fn uses(&self, export: usize) -> bool {
        self.seats.iter().any(|s| s.export == export)
    }

    /// This export is one that it writes, if it may.
    pub fn writes(&self, export: usize) -> bool {
        self.seats.iter().any(|s| s.export == export && !s.read_only)
    }

    /// It writes this export, and may.
    pub fn serves(&self, export: usize) -> bool {
        self.seats.iter().any(|s| s.export == export && !s.read_only && s.is_open())
    }

    /// Nothing is left to be done: each of its exports is open and quiet, or a writer's turn has not
    /// come while `served`, another, has it.
    pub fn is_settled(&self, served: impl Fn(usize) -> bool) -> bool {
        let is_fine = |s: &Seat| match s.is_open() {
            true => !s.owes_flush,
            false => s.is_out() && !s.read_only && served(s.export),
        };
        let is_quiet = self.outstanding() == 0 && self.is_finished();
        self.is_running && self.in_session && is_quiet && self.seats.iter().all(is_fine)
    }

    /// One turn of its loop. True if it has ended in order.
    pub fn turn(&mut self, around: &mut Around<'_>) -> Result<bool, Violation> {
        let now = Time(around.now);
        self.hand.receive(now, &mut self.desk);
        self.look(around)?;
        if self.in_session {
            self.act(around)?;
        } else if self.greet_at <= around.now && !self.hand.is_greeting() {
            (around.note)("greets", 0);
            self.hand.greet(now);
        }
        let ends = self.is_closing && self.is_empty();
        if ends && let Some(session) = &mut self.hand.session {
            let bye = Bye { status: Status::Ok as u16 };
            session.send(Item::said(Message::Bye(bye)));
        }
        let sent = self.hand.send(now, &mut self.desk);
        (around.note)("sent", sent);
        if ends {
            self.crash(around.exports);
            return Ok(true);
        }
        self.hand.machine.deadline = self.deadline(around.now);
        Ok(false)
    }

    /// Nothing of it is left at the target but, perhaps, a session.
    fn is_empty(&self) -> bool {
        !self.in_session || self.seats.iter().all(Seat::is_out)
    }

    fn deadline(&self, now: u64) -> u64 {
        let mut at = self.hand.deadline(Time(now)).0;
        if !self.in_session {
            return if self.hand.is_greeting() { at } else { at.min(self.greet_at) };
        }
        if !self.is_closing {
            at = self.seats.iter().filter_map(Seat::asks_at).fold(at, u64::min);
        }
        if self.wants_more(now.max(self.pause_until)) {
            at = at.min(self.pause_until);
        }
        at
    }

    /// Sees what has changed.
    fn look(&mut self, around: &mut Around<'_>) -> Result<(), Violation> {
        for heard in std::mem::take(&mut self.desk.heard) {
            match heard {
                Heard::Attached(a) => self.on_attached(&a, around)?,
                Heard::Refused { transaction, status, text } => {
                    self.on_refused(transaction, status, &text, around)?;
                }
                Heard::Detached(transaction) => self.on_detached(transaction, around)?,
                Heard::Fenced(handle) => {
                    let is_it = |s: &Seat| s.is_at_table() && s.handle == handle;
                    if let Some(at) = self.seats.iter().position(is_it) {
                        self.on_fenced(at, around)?;
                    }
                }
                Heard::Finished(one, complete) => self.on_finished(*one, &complete, around)?,
            }
        }
        if let Some((status, text)) = self.hand.refused.take() {
            return Err(self.violation(format!("it was refused a session: {status:?}, {text}")));
        }
        let (was, is) = (self.in_session, self.hand.session.is_some());
        if was && !is {
            (around.note)("loses its session", 0);
            let later = self.a_while();
            self.lose(around.exports, around.now + later);
        }
        if !was && is {
            let welcome = self.hand.welcome.expect("there is a session");
            (around.note)("is welcomed", u64::from(welcome.epoch));
            self.desk.restart(welcome.slots, self.hand.counters_high);
            self.in_session = true;
        }
        Ok(())
    }

    /// The session is over, and with it all its runs.
    fn lose(&mut self, exports: &mut [Export], greet_at: u64) {
        for seat in &mut self.seats {
            seat.end_run(exports);
            seat.stands = Stands::Out { until: 0 };
            (seat.outstanding, seat.was_left) = (0, false);
        }
        self.desk.restart(0, false);
        (self.in_session, self.fenced_on, self.had_several) = (false, None, false);
        self.greet_at = greet_at;
    }

    fn a_while(&mut self) -> u64 {
        let scale = pick(&mut self.rng, &[MS, 100 * MS, SECOND]);
        self.rng.between(scale / 4, scale)
    }

    fn violation(&self, text: String) -> Violation {
        Violation(format!("{}: {text}", self.name))
    }

    /// Where it stands, for a person.
    pub fn describe(&self, now: u64) -> String {
        let seats: Vec<_> = self.seats.iter().map(Seat::describe).collect();
        let oldest = self.desk.outstanding().map(|one| one.since).min();
        format!(
            "{} ({}, {} of {} I/Os, {} outstanding, the oldest since {} ms): {}",
            self.name,
            if !self.is_running {
                "down"
            } else if self.in_session {
                "in session"
            } else {
                "without a session"
            },
            self.submitted,
            self.workload.budget,
            self.outstanding(),
            (now - oldest.unwrap_or(now)) / MS,
            seats.join(", ")
        )
    }
}
