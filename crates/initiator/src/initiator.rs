//! The state machine itself.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use thinwire_buffer::{LinkInfo, Pool, RxFrame, TxBatch};
use thinwire_proto::{
    DropReason, Item, Notice, Rng, Session, Stage, StageObserver, Time, open_frame,
};
use thinwire_volume::{Completion, ErrorKind, Geometry, Identity, Op};
use thinwire_wire::{AskClocks, Clocks, Detach, Kind, Message, Status, event_code};

use crate::connect::Attempt;
use crate::report::{AttachError, InitiatorReport, InitiatorStats, Phase, Timer};
use crate::requests::Replay;
use crate::retained::Retained;
use crate::slots::{Finished, Owner, Pending, Slots};
use crate::{InitiatorConfig, WhenAway};

/// What the volume is, once attached.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Content {
    pub geometry: Geometry,
    pub identity: Identity,
    pub writer_generation: u64,
}

/// One attachment of one export. See the crate.
pub struct Initiator {
    pub(crate) config: InitiatorConfig,
    pub(crate) links: Vec<LinkInfo>,
    pub(crate) pool: Pool,
    pub(crate) rng: Rng,
    pub(crate) session: Option<Session>,
    pub(crate) attempt: Option<Attempt>,
    pub(crate) slots: Slots,
    pub(crate) used_slots: u32,
    pub(crate) used_bytes: u64,
    pub(crate) waiting: VecDeque<Pending>,
    pub(crate) done: Vec<Completion>,
    pub(crate) user_outstanding: usize,
    pub(crate) retained: Retained,
    pub(crate) replay: Option<Replay>,
    /// Replays begun so far.
    pub(crate) replays: u64,
    pub(crate) replay_failed: bool,
    pub(crate) forced_flush: bool,
    /// One that failed is not repeated before this.
    pub(crate) forced_flush_after: Time,
    pub(crate) verifier: u64,
    pub(crate) attached: Option<Content>,
    /// This session has the attachment open.
    pub(crate) granted: bool,
    pub(crate) retry_attach_at: Option<Time>,
    pub(crate) first_error: Option<AttachError>,
    pub(crate) dead: Option<ErrorKind>,
    /// Which process of the target opened the session.
    pub(crate) target_instance: u64,
    /// Since when somebody says that the target does not know the session.
    pub(crate) doubt: Option<Time>,
    /// It is not looked into again before this: that costs a question on every path.
    pub(crate) doubt_after: Time,
    pub(crate) away_since: Option<Time>,
    pub(crate) gave_up: bool,
    pub(crate) closing: bool,
    /// Since when there is nothing left to do but to tell the target.
    pub(crate) closing_since: Option<Time>,
    /// In this session.
    pub(crate) detach_sent: bool,
    pub(crate) close_error: Option<ErrorKind>,
    pub(crate) closed: bool,
    pub(crate) outside: Vec<TxBatch>,
    pub(crate) orphans: Vec<Pending>,
    pub(crate) now: Time,
    pub(crate) stats: InitiatorStats,
    pub(crate) observer: Option<Rc<dyn StageObserver>>,
    /// What the target's stage clocks showed when it was last asked, with this transaction number.
    clocks: Option<Clocks>,
    clocks_asked: Option<u32>,
    notices: VecDeque<Notice>,
}

/// A detach that has nothing left to do is ended after this long without a target to be told of it.
/// Until then one that is just being restarted may come back, and learn that its export is free.
pub(crate) const CLOSE_PATIENCE: Duration = Duration::from_secs(5);

impl Initiator {
    /// An attachment that begins to look for its target with the first turn. `links` in the order
    /// of the indices that frames come and go with; `seed` must be unpredictable.
    pub fn new(
        now: Time,
        config: InitiatorConfig,
        links: Vec<LinkInfo>,
        pool: Pool,
        seed: u64,
    ) -> Self {
        let outside = links.iter().map(|_| TxBatch::new()).collect();
        let first_error = (!config.insecure).then_some(AttachError::Insecure);
        let mut rng = Rng::new(seed);
        let mut config = config;
        if config.lane == 0 {
            config.lane = rng.next_u64() as u32 | 1 << 31;
        }
        let mut initiator = Initiator {
            config,
            links,
            pool,
            rng,
            session: None,
            attempt: None,
            slots: Slots::new(),
            used_slots: 0,
            used_bytes: 0,
            waiting: VecDeque::with_capacity(1024),
            done: Vec::with_capacity(256),
            user_outstanding: 0,
            retained: Retained::new(),
            replay: None,
            replays: 0,
            replay_failed: false,
            forced_flush: false,
            forced_flush_after: Time::ZERO,
            verifier: 0,
            attached: None,
            granted: false,
            retry_attach_at: None,
            first_error,
            dead: None,
            target_instance: 0,
            doubt: None,
            doubt_after: Time::ZERO,
            away_since: Some(now),
            gave_up: false,
            closing: false,
            closing_since: None,
            detach_sent: false,
            close_error: None,
            closed: false,
            outside,
            orphans: Vec::new(),
            now,
            stats: InitiatorStats::default(),
            observer: None,
            clocks: None,
            clocks_asked: None,
            notices: VecDeque::new(),
        };
        if initiator.first_error.is_none() {
            initiator.begin_attempt(now);
        }
        initiator
    }

    /// True once the volume has been attached for the first time: its geometry is known.
    pub fn is_open(&self) -> bool {
        self.attached.is_some()
    }

    /// Tells `observer` from now on where requests stand.
    pub fn set_observer(&mut self, observer: Rc<dyn StageObserver>) {
        self.observer = Some(observer);
    }

    /// Asks the target to run its stage clocks, of a `thinwire_wire::clock_kind`, and what they
    /// show. [`Initiator::clocks`] has the answer, with the number returned here; if that is `None`
    /// there is no session now.
    pub fn ask_clocks(&mut self, kind: u8) -> Option<u32> {
        let transaction = self.rng.next_u64() as u32;
        let ask = AskClocks { transaction, kind, reserved: Default::default() };
        self.session.as_mut()?.send(Item::AskClocks(ask));
        self.clocks_asked = Some(transaction);
        self.clocks_asked
    }

    /// What the target's stage clocks showed when it was last asked.
    pub fn clocks(&self) -> Option<&Clocks> {
        self.clocks.as_ref()
    }

    /// Why the first attach failed, if it did.
    pub fn first_error(&self) -> Option<&AttachError> {
        self.first_error.as_ref()
    }

    /// The next thing a person may want to read.
    pub fn take_notice(&mut self) -> Option<Notice> {
        if let Some(notice) = self.session.as_mut().and_then(Session::take_notice) {
            return Some(notice);
        }
        self.notices.pop_front()
    }

    /// Requests may be sent: attached, and nobody has taken over.
    pub(crate) fn is_attached(&self) -> bool {
        self.granted && self.dead.is_none() && self.session.is_some()
    }

    /// Why new I/O is refused at once, if it is.
    pub(crate) fn refusal(&self) -> Option<ErrorKind> {
        if let Some(kind) = self.dead {
            return Some(kind);
        }
        if self.closing || self.closed {
            return Some(ErrorKind::ShuttingDown);
        }
        self.gave_up.then_some(ErrorKind::Away)
    }

    /// Ends for good: everything fails with this, now and later.
    pub(crate) fn die(&mut self, kind: ErrorKind) {
        if self.dead.is_none() {
            self.dead = Some(kind);
        }
        self.granted = false;
        self.attempt = None;
        self.fail_all(kind);
        self.retained.clear();
        self.replay = None;
    }

    /// A frame arrived on a link.
    pub fn on_frame(&mut self, now: Time, link: usize, frame: &RxFrame) {
        self.now = now;
        if let Err(reason) = self.take_frame(now, link, frame) {
            self.stats.drops.count(reason);
        }
    }

    fn take_frame(&mut self, now: Time, link: usize, rx: &RxFrame) -> Result<(), DropReason> {
        let mut joined = None;
        let opened = open_frame(rx, &self.pool, &mut joined, &mut self.slots.copied_bytes);
        let (rx, frame) = opened.map_err(DropReason::Frame)?;
        let header = frame.header();
        if header.kind == Kind::Session {
            let (session, slots) = self.session_for(header.session)?;
            session.accept(now, link, rx.from, rx.waited, &frame, slots)?;
            for message in frame.messages() {
                if let Err(reason) = self.on_message(now, &message, rx) {
                    self.stats.drops.count(reason);
                }
            }
            return Ok(());
        }
        let message = frame.messages().next().ok_or(DropReason::Direction)?;
        match message {
            Message::ProbeReply(reply) => {
                let session = self.session_for(header.session)?.0;
                session.on_probe_reply(now, link, rx.from, header, &reply)
            }
            Message::Probe(probe) => {
                let sizes = self.frame_bytes(link);
                let session = self.session_for(header.session)?.0;
                session.on_probe(now, link, rx.from, header, &probe, sizes)
            }
            Message::Offer(offer) => self.on_offer(now, link, rx.from, &offer),
            Message::Retry(retry) => self.on_retry(link, rx.from, &retry),
            Message::Welcome(welcome) => self.on_welcome(now, link, rx.from, &welcome),
            Message::Refuse(refuse) => self.on_refuse(now, &refuse),
            Message::UnknownSession(unknown) => self.on_unknown_session(now, unknown.session),
            _ => Err(DropReason::Direction),
        }
    }

    fn on_message(
        &mut self,
        now: Time,
        message: &Message<'_>,
        frame: &RxFrame,
    ) -> Result<(), DropReason> {
        // A message before this one may have ended the session.
        let session = self.session.as_mut().ok_or(DropReason::UnknownSession)?;
        if session.on_message(now, message, &mut self.slots) {
            return Ok(());
        }
        match message {
            Message::Data(data) => {
                if let Some(finished) = self.slots.on_data(data, frame)? {
                    self.finish(finished);
                }
            }
            Message::Complete(complete) => {
                if let Some(finished) = self.slots.on_complete(complete)? {
                    self.finish(finished);
                }
            }
            Message::ResetDone(done) => self.slots.on_reset_done(done.slot, done.sequence)?,
            Message::Attached(attached) => self.on_attached(now, attached)?,
            Message::AttachRefused(refused) => self.on_attach_refused(now, refused)?,
            Message::Event(event) => {
                let ours = event.attachment == self.slots.attachment
                    && event.generation == self.slots.generation;
                if event.code == event_code::FENCED && ours {
                    self.die(ErrorKind::Fenced);
                }
            }
            Message::Detached(_) if self.detach_sent => self.finish_closing(),
            Message::Bye(_) => self.on_bye(now),
            Message::Clocks(clocks) if self.clocks_asked == Some(clocks.transaction) => {
                self.clocks = Some(*clocks);
            }
            Message::Clocks(_) => return Err(DropReason::Unasked),
            _ => return Err(DropReason::Direction),
        }
        Ok(())
    }

    fn finish(&mut self, finished: Finished) {
        let (user, op) = (matches!(finished.io.owner, Owner::User(_)), finished.io.op);
        self.on_finished(finished);
        if user {
            self.cross(Stage::Finished, op);
        }
    }

    /// A user's request crosses a border. Only reads and writes are measured.
    #[inline]
    pub(crate) fn cross(&self, stage: Stage, op: Op) {
        if let (Some(observer), Op::Read | Op::Write) = (&self.observer, op) {
            observer.cross(stage);
        }
    }

    /// The end of a turn: fires timers, starts requests, adds the frames to send to `out`, one
    /// batch per link.
    pub fn turn(&mut self, now: Time, out: &mut [TxBatch]) {
        self.now = now;
        self.stats.copied_bytes = self.slots.copied_bytes;
        if let Some(session) = &mut self.session {
            session.on_time(now);
        }
        if self.dead.is_none() && !self.closed {
            self.watch_connection(now);
            self.pump();
            self.progress_closing();
        }
        for (batch, waiting) in out.iter_mut().zip(&mut self.outside) {
            for frame in waiting.frames_mut() {
                let to = batch.push(frame.to);
                std::mem::swap(&mut to.head, &mut frame.head);
            }
            waiting.clear();
        }
        if let Some(session) = &mut self.session {
            session.transmit(now, &mut self.slots, out);
            if session.is_overrun() {
                // Nothing an honest target does leads here. What is outstanding is asked for again.
                self.stats.drops.count(DropReason::Overrun);
                self.on_bye(now);
            }
        }
    }

    /// When to call [`Initiator::turn`] next, at the latest.
    pub fn deadline(&self, now: Time) -> Time {
        let mut at = Time(u64::MAX);
        if let Some(session) = &self.session {
            at = at.min(session.deadline(now));
        }
        if self.dead.is_none() && !self.closed {
            at = at.min(self.connection_deadline());
        }
        if self.outside.iter().any(|batch| !batch.is_empty()) { now } else { at }
    }

    /// See [`Session::network_time`](thinwire_proto::Session::network_time).
    pub fn network_time(&self) -> Option<Duration> {
        self.session.as_ref().and_then(|session| session.network_time())
    }

    /// Completions wait to be polled.
    pub fn has_completions(&self) -> bool {
        !self.done.is_empty()
    }

    /// Begins an orderly end: new I/O is refused, what is outstanding completes, unflushed writes
    /// are flushed, the export is set free. Done when [`Initiator::is_closed`].
    pub fn close(&mut self) {
        self.closing = true;
        if self.attached.is_none() || self.dead.is_some() {
            self.closed = true;
        }
    }

    fn progress_closing(&mut self) {
        let is_clean = self.is_quiet() && self.retained.is_empty() && self.replay.is_none();
        if !self.closing || !is_clean {
            return;
        }
        let since = *self.closing_since.get_or_insert(self.now);
        if self.away_since.is_some() && self.now >= since + CLOSE_PATIENCE {
            // Nothing is left to be done, and nobody is there to be told.
            self.tell_failed_replay();
            return self.finish_closing();
        }
        if self.detach_sent || !self.is_attached() {
            return;
        }
        self.detach_sent = true;
        self.tell_failed_replay();
        let (attachment, generation) = (self.slots.attachment, self.slots.generation);
        let detach = Detach { transaction: 0, attachment, generation };
        self.session.as_mut().expect("attached").send(thinwire_proto::Item::Detach(detach));
    }

    /// If no flush has told anybody yet, the detach does.
    fn tell_failed_replay(&mut self) {
        if std::mem::take(&mut self.replay_failed) {
            self.close_error = Some(ErrorKind::Io);
        }
    }

    fn finish_closing(&mut self) {
        self.say_bye();
        self.closed = true;
    }

    /// Ends at once: the target is told if it listens, nothing waits for it. All I/O fails.
    pub fn abort(&mut self) {
        self.say_bye();
        self.fail_all(ErrorKind::ShuttingDown);
        self.closed = true;
    }

    fn say_bye(&mut self) {
        if let Some(session) = &mut self.session {
            let status = Status::Ok as u16;
            let bye = thinwire_wire::Bye { status, reserved: Default::default() };
            session.send(Item::Bye(bye));
        }
    }

    /// The end has come, in order or not.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// What went wrong with an orderly end: unflushed writes that could not be made durable.
    pub fn close_error(&self) -> Option<ErrorKind> {
        self.close_error
    }

    /// Why the attachment is dead, if it is.
    pub fn failure(&self) -> Option<ErrorKind> {
        self.dead
    }

    /// Changes what happens while the target is away.
    pub fn set_when_away(&mut self, when_away: WhenAway) {
        self.config.when_away = when_away;
    }

    /// Where it stands.
    pub fn phase(&self) -> Phase {
        if self.closed {
            Phase::Closed
        } else if self.dead.is_some() || (self.first_error.is_some() && !self.is_open()) {
            Phase::Failed
        } else if self.attached.is_none() {
            Phase::Connecting
        } else if self.away_since.is_some() {
            Phase::Away
        } else if self.closing {
            Phase::Detaching
        } else if self.replay.is_some() {
            Phase::Replaying
        } else {
            Phase::Attached
        }
    }

    /// Figures for status.
    pub fn report(&self, now: Time) -> InitiatorReport {
        InitiatorReport {
            phase: self.phase(),
            failure: self.dead,
            paths: self.session.iter().flat_map(Session::path_reports).collect(),
            timer: self.timer(now),
            outstanding: self.user_outstanding,
            retained_bytes: self.retained.bytes(),
            retained_entries: self.retained.len(),
            writer_generation: self.attached.map_or(0, |a| a.writer_generation),
            stats: self.stats,
            session: self.session.as_ref().map(Session::stats).unwrap_or_default(),
            batch_level: self.session.as_ref().map_or(1, Session::batch_level),
        }
    }

    fn timer(&self, now: Time) -> Option<Timer> {
        let since = self.away_since.filter(|_| self.dead.is_none() && !self.closed)?;
        if let (WhenAway::FailAfter(limit), true) = (self.config.when_away, self.is_open()) {
            return Some(Timer::FailAfter((since + limit).since(now)));
        }
        Some(Timer::Reconnect(self.connection_deadline().since(now)))
    }
}

#[cfg(test)]
mod tests {
    use thinwire_buffer::{Addr, FrameSizes, Room, SegList};
    use thinwire_proto::{Batching, Role, SessionConfig};

    use super::*;
    use crate::TargetName;

    /// With a session, though nobody is there.
    fn connected() -> Initiator {
        let (now, pool) = (Time(1), Pool::new(1 << 20));
        let config = InitiatorConfig::new(TargetName::Node("node1".into()), "disk");
        let room = Room { frames: 8, bytes: 1 << 16 };
        let frame_bytes = FrameSizes { base: 1500, max: 1500 };
        let link = LinkInfo { addr: Addr::Sim(1), frame_bytes, room };
        let mut initiator = Initiator::new(now, config, vec![link], pool, 1);
        let config = SessionConfig {
            role: Role::Initiator,
            local_id: 1,
            remote_id: 2,
            epoch: 1,
            seed: 1,
            batching: Batching::default(),
        };
        initiator.session = Some(Session::new(now, config, room));
        initiator
    }

    #[test]
    fn only_the_clocks_that_were_asked_for_are_taken_in() {
        let mut initiator = connected();
        let bytes = initiator.pool.copy_of(&[0]).freeze();
        let (waited, queued) = (Duration::ZERO, Duration::ZERO);
        let frame = RxFrame { from: Addr::Sim(2), bytes, rest: SegList::new(), waited, queued };
        let tell = |initiator: &mut Initiator, transaction, requests| {
            let clocks = Clocks { transaction, requests, ..NONE };
            initiator.on_message(Time(2), &Message::Clocks(clocks), &frame)
        };
        assert_eq!(tell(&mut initiator, 0, 1), Err(DropReason::Unasked));
        let earlier = initiator.ask_clocks(1).unwrap();
        let asked = initiator.ask_clocks(1).unwrap();
        assert_eq!(tell(&mut initiator, earlier, 2), Err(DropReason::Unasked));
        assert!(initiator.clocks().is_none());
        // The answer may come again, when the question did.
        for requests in [3, 4] {
            assert_eq!(tell(&mut initiator, asked, requests), Ok(()));
            assert_eq!(initiator.clocks().unwrap().requests, requests);
        }
    }

    /// As after a goodbye: what is outstanding is asked for again in another session.
    #[test]
    fn a_session_that_too_much_waits_in_is_left() {
        let mut initiator = connected();
        let fill = |initiator: &mut Initiator, count| {
            let session = initiator.session.as_mut().unwrap();
            (0..count).for_each(|n| session.send(Item::Attach(n)));
            initiator.turn(Time(2), &mut [TxBatch::new()]);
        };
        fill(&mut initiator, 20_000);
        assert!(initiator.session.is_some());
        fill(&mut initiator, 5_000);
        assert!(initiator.session.is_none() && initiator.attempt.is_some());
        assert_eq!(initiator.stats.drops.get(DropReason::Overrun), 1);
    }

    const NONE: Clocks = Clocks {
        transaction: 0,
        clock: 0,
        requests: 0,
        arrived: 0,
        received: 0,
        taken: 0,
        submitted: 0,
        stored: 0,
        sent: 0,
        handed_over: 0,
    };
}
