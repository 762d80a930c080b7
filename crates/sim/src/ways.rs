//! What becomes of frames between stations besides what the wire does to all of them: ways that are
//! closed, attaches that arrive late, probes that are played back, somebody who sees them and sends others,
//! and what a scripted test decides.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use thinwire_link::sim::{SimNet, Verdict};
use thinwire_wire::{Frame, Header, Kind, Message, SUITE_CRC32C};

use crate::forger::Forger;

/// What a scripted test wants to happen to a frame: sender, receiver and bytes in, its fate out.
pub type Judge = Box<dyn FnMut(u32, u32, &[u8]) -> Verdict>;

#[derive(Default)]
struct Rules {
    /// Pairs of stations between which frames vanish, in this direction.
    closed: BTreeSet<(u32, u32)>,
    judge: Option<Judge>,
    late: LateAttaches,
    playback: Playback,
    forger: Option<Forger>,
}

/// All ways of a network.
#[derive(Clone)]
pub struct Ways {
    rules: Rc<RefCell<Rules>>,
}

impl Ways {
    /// Judges all frames of this network from now on; `clock` is its time.
    pub fn of(net: &SimNet, clock: Rc<Cell<u64>>) -> Self {
        let rules: Rc<RefCell<Rules>> = Rc::default();
        let ways = Ways { rules: rules.clone() };
        net.set_judge(move |from, to, bytes| {
            let rules = &mut *rules.borrow_mut();
            if rules.closed.contains(&(from, to)) {
                return Verdict::Drop;
            }
            if let Some(forger) = &mut rules.forger {
                forger.see(clock.get(), from, to, bytes);
            }
            if let Some(judge) = &mut rules.judge {
                return judge(from, to, bytes);
            }
            match rules.playback.judge(clock.get(), bytes) {
                Verdict::Pass => rules.late.judge(clock.get(), from, bytes),
                repeated => repeated,
            }
        });
        ways
    }

    /// Closes or opens the ways from each of these stations to each of those.
    pub fn set_open(&self, from: &[u32], to: &[u32], is_open: bool) {
        let closed = &mut self.rules.borrow_mut().closed;
        for pair in from.iter().flat_map(|&a| to.iter().map(move |&b| (a, b))) {
            if is_open {
                closed.remove(&pair);
            } else {
                closed.insert(pair);
            }
        }
    }

    /// Opens all.
    pub fn open_all(&self) {
        self.rules.borrow_mut().closed.clear();
    }

    /// Lets a scripted test decide about single frames, or ends that.
    pub fn set_judge(&self, judge: Option<Judge>) {
        self.rules.borrow_mut().judge = judge;
    }

    /// Somebody is on all of them from now on.
    pub fn set_forger(&self, forger: Forger) {
        self.rules.borrow_mut().forger = Some(forger);
    }

    /// Has it do something.
    pub fn with_forger<R>(&self, act: impl FnOnce(&mut Forger) -> R) -> Option<R> {
        self.rules.borrow_mut().forger.as_mut().map(act)
    }

    /// Attaches that these stations send before `until` arrive `late_ns` later.
    pub fn delay_attaches(&self, stations: Vec<u32>, until: u64, late_ns: u64) {
        let late = &mut self.rules.borrow_mut().late;
        *late = LateAttaches { stations, until, late_ns, count: late.count, last: late.last };
    }

    /// Probes and their answers that are sent before `until` arrive once more, `late_ns` later.
    pub fn play_back_probes(&self, until: u64, late_ns: u64) {
        let playback = &mut self.rules.borrow_mut().playback;
        (playback.until, playback.late_ns) = (until, late_ns);
    }

    /// How many were so far.
    pub fn probes_played_back(&self) -> u64 {
        self.rules.borrow().playback.count
    }

    /// How many attaches were late so far.
    pub fn late_attaches(&self) -> u64 {
        self.rules.borrow().late.count
    }

    /// When the last of the frames that are late by these rules leaves, so far; 0 if none was.
    pub fn late_until(&self) -> u64 {
        let rules = self.rules.borrow();
        rules.late.last.max(rules.playback.last)
    }
}

/// Probes and their answers arrive once more so much later, as long as time is before `until`: somebody
/// plays them back, perhaps in another epoch.
#[derive(Default)]
struct Playback {
    until: u64,
    late_ns: u64,
    count: u64,
    /// When the last of them leaves.
    last: u64,
}

impl Playback {
    fn judge(&mut self, now: u64, bytes: &[u8]) -> Verdict {
        let concerned = now < self.until
            && Header::parse(bytes, bytes.len())
                .is_ok_and(|h| matches!(h.kind, Kind::Probe | Kind::ProbeReply));
        if !concerned {
            return Verdict::Pass;
        }
        self.count += 1;
        self.last = self.last.max(now + self.late_ns);
        Verdict::Repeat(self.late_ns)
    }
}

/// A frame has an ATTACH in it. Of one that is sealed nobody knows: all of a session may be late.
fn may_attach(bytes: &[u8]) -> bool {
    match Header::parse(bytes, bytes.len()) {
        Ok(header) if header.suite != SUITE_CRC32C => header.kind == Kind::Session,
        Ok(_) => Frame::parse(bytes).is_ok_and(|frame| {
            frame.messages().any(|message| matches!(message, Message::Attach(_)))
        }),
        Err(_) => false,
    }
}

/// Frames with an ATTACH of these stations arrive so much later, as long as time is before `until`.
#[derive(Default)]
struct LateAttaches {
    stations: Vec<u32>,
    until: u64,
    late_ns: u64,
    count: u64,
    /// When the last of them leaves.
    last: u64,
}

impl LateAttaches {
    fn judge(&mut self, now: u64, from: u32, bytes: &[u8]) -> Verdict {
        let concerned = now < self.until && self.stations.contains(&from);
        if !concerned || !may_attach(bytes) {
            return Verdict::Pass;
        }
        self.count += 1;
        self.last = self.last.max(now + self.late_ns);
        Verdict::Delay(self.late_ns)
    }
}
