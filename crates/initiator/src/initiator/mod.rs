//! The state machine itself: six parts, and what passes between them. `intake.rs` is what arrives,
//! `flow.rs` which I/O may start and what its end means, `integrity.rs` what becomes of data that was altered, `volume.rs` the user's side.

mod flow;
mod intake;
mod integrity;
mod states;
#[cfg(test)]
mod tests;
mod volume;

use std::rc::Rc;
use std::time::Duration;

use thinwire_buffer::{Addr, LinkInfo, Pool, Room, RxFrame, TxBatch};
use thinwire_proto::{
    DropReason, Drops, Item, Notice, SEQUENCE_HIGH, Session, SessionKeys, SipRng, Stage,
    StageObserver, Time,
};
use thinwire_volume::{ErrorKind, Op};
use thinwire_wire::{AskClocks, Bye, Clocks, Detach, Message, Status};

use crate::absence::Absence;
use crate::association::Association;
use crate::attachment::{Attachment, Timer as AttachmentTimer};
use crate::closing::{Closing, Step};
use crate::durability::Durability;
use crate::report::{AlteredStats, AttachError, InitiatorReport, InitiatorStats, Phase, Timer};
use crate::requests::Requests;
use crate::slots::Outgoing;
use crate::{InitiatorCanary, InitiatorConfig, WhenAway};

/// That data did not fit its sums is told once in this time.
const ALTERED_EVERY: Duration = Duration::from_secs(10);

/// One attachment of one export. See the crate.
pub struct Initiator {
    config: InitiatorConfig,
    pool: Pool,
    association: Association,
    attachment: Attachment,
    requests: Requests,
    durability: Durability,
    absence: Absence,
    closing: Closing,
    now: Time,
    drops: Drops,
    observer: Option<Rc<dyn StageObserver>>,
    /// What the target's stage clocks showed when it was last asked, with this transaction number.
    clocks: Option<Clocks>,
    clocks_asked: Option<u32>,
    /// The phase that has been told of.
    told: Phase,
    /// Data that did not fit its sums.
    altered: AlteredStats,
    /// What of that has been told, and before when no more is.
    altered_told: (AlteredStats, Time),
    /// Losses, as far as whoever stands on it has been told.
    losses_told: u64,
    /// How often somebody else may have come to write what it is attached to; and of these those that were told.
    strangers: u64,
    strangers_told: u64,
    /// That another has it has been told to whoever stands on it.
    is_fence_told: bool,
}

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
        let mut config = config;
        let mut association = Association::new(links, SipRng::new(seed), config.key.as_mut());
        if config.member > 0 {
            // The first has the export already, and has to come back before the others do.
            (config.wait, config.take_over) = (true, false);
        }
        if config.lane == 0 {
            config.lane = association.draw() as u32 | 1 << 31;
        }
        let durability = Durability::new(&config, &pool);
        let mut initiator = Initiator {
            altered: AlteredStats::default(),
            altered_told: (AlteredStats::default(), now),
            pool,
            association,
            attachment: Attachment::new(&config),
            requests: Requests::new(),
            durability,
            absence: Absence::new(now, config.when_away),
            closing: Closing::new(),
            now,
            drops: Drops::default(),
            observer: None,
            clocks: None,
            clocks_asked: None,
            told: Phase::Attached,
            losses_told: 0,
            strangers: 0,
            strangers_told: 0,
            is_fence_told: false,
            config,
        };
        let slots = initiator.requests.slots();
        slots.are_checked = initiator.config.integrity;
        if initiator.config.canary == InitiatorCanary::SumsAnew {
            slots.sums_anew = Some(initiator.pool.clone());
        }
        if initiator.attachment.first_error().is_none() {
            initiator.association.seek(now, &initiator.config);
        }
        initiator
    }

    /// True once the volume has been attached for the first time: its geometry is known.
    pub fn is_open(&self) -> bool {
        self.attachment.is_open()
    }

    /// Tells `observer` from now on where requests stand.
    pub fn set_observer(&mut self, observer: Rc<dyn StageObserver>) {
        self.observer = Some(observer);
    }

    /// Asks the target to run its stage clocks, of a `thinwire_wire::clock_kind`, and what they
    /// show. [`Initiator::clocks`] has the answer, with the number returned here; if that is `None`
    /// there is no session now.
    pub fn ask_clocks(&mut self, kind: u8) -> Option<u32> {
        let transaction = self.association.draw() as u32;
        let ask = AskClocks { transaction, kind };
        self.association.session_mut()?.send(Item::said(Message::AskClocks(ask)));
        self.clocks_asked = Some(transaction);
        self.clocks_asked
    }

    /// What the target's stage clocks showed when it was last asked.
    pub fn clocks(&self) -> Option<&Clocks> {
        self.clocks.as_ref()
    }

    /// What was said to it last while it is not let in, be it by somebody in the target's place who did not show
    /// that it has our key: for a person who wonders why nothing happens. It may be a lie.
    pub fn hint(&self) -> Option<&str> {
        self.association.hint()
    }

    /// Why the first attach failed, if it did.
    pub fn first_error(&self) -> Option<&AttachError> {
        self.attachment.first_error()
    }

    /// The next thing a person may want to read.
    pub fn take_notice(&mut self) -> Option<Notice> {
        self.association.session_mut().and_then(Session::take_notice)
    }

    /// Where a path of the session leads.
    pub(crate) fn path_addr(&self, path: u8) -> Option<Addr> {
        let mut known = self.association.session()?.path_reports();
        known.find(|report| report.id == path).map(|report| report.addr)
    }

    /// It has asked to be attached as a writer for the first time, and nothing is known of the answer yet.
    pub fn may_be_granted(&self) -> bool {
        self.attachment.may_be_granted()
    }

    /// Requests may be sent: attached, and nobody has taken over.
    fn is_attached(&self) -> bool {
        self.attachment.is_granted()
            && self.closing.failure().is_none()
            && self.association.session().is_some()
    }

    /// Ends for good: everything fails with this, now and later. Whoever ends it in order hears of what no
    /// flush will cover any more.
    fn die(&mut self, kind: ErrorKind) {
        // Also what a replay has lost, and no flush has told of yet.
        if !self.durability.is_clean() || self.durability.take_debt() {
            self.closing.tell(kind);
        }
        // Before anybody is told of an I/O that fails for it.
        self.strangers += 1;
        self.closing.fail(kind);
        self.attachment.part();
        self.association.rest();
        self.requests.fail_all(kind);
        self.durability.clear();
    }

    /// A frame arrived on a link. It may be changed where it lies.
    pub fn on_frame(&mut self, now: Time, link: usize, frame: &mut RxFrame) {
        self.now = now;
        if let Err(reason) = self.take_frame(now, link, frame) {
            self.drops.count(reason);
        }
    }

    /// How much may be on the way to this end of a link.
    pub(crate) fn set_room(&mut self, link: usize, room: Room) {
        self.association.set_room(link, room);
    }

    /// A user's request crosses a border. Only reads and writes are measured.
    #[inline]
    fn cross(&self, stage: Stage, op: Op) {
        if let (Some(observer), Op::Read | Op::Write) = (&self.observer, op) {
            observer.cross(stage);
        }
    }

    /// The end of a turn: fires timers, starts requests, adds the frames to send to `out`, one
    /// batch per link.
    pub fn turn(&mut self, now: Time, out: &mut [TxBatch]) {
        self.now = now;
        self.durability.begin_turn();
        if let Some(session) = self.association.session_mut() {
            session.on_time(now);
        }
        if self.association.session().is_none() {
            self.requests.slots().forget_data();
        }
        if self.closing.lives() {
            self.watch_connection(now);
            self.pump();
            self.progress_closing();
        }
        self.association.take_frames(out);
        if let Some(session) = self.association.session_mut() {
            let slots = self.requests.slots();
            session.transmit(now, &mut Outgoing { slots, attachment: &self.attachment }, out);
            if session.is_overrun() || session.is_worn() {
                // Nothing an honest target does leads here, nor a forger before 2^36 forgeries. What is outstanding is asked for again.
                self.drops.count(DropReason::Overrun);
                self.on_bye(now);
            }
        }
    }

    /// Looks after the connection: called every turn.
    fn watch_connection(&mut self, now: Time) {
        if self.attachment.first_error().is_some() {
            return;
        }
        self.association.settle(now, &self.config, self.attachment.is_granted());
        if self.association.is_connected() && self.attachment.is_granted() {
            self.came_back();
        } else {
            self.absence.begin(now);
            self.flush_nothing();
        }
        if self.absence.on_time(now, self.attachment.is_open()).is_some() {
            self.requests.fail_all(ErrorKind::Away);
        }
        self.association.watch(now, &self.config);
        if self.attachment.due(now) == Some(AttachmentTimer::AskAgain) {
            self.ask_attach();
        }
        let is_open = self.attachment.is_open();
        if let Err(error) = self.association.drive(now, &self.config, is_open) {
            self.attachment.fail(error);
        }
    }

    fn came_back(&mut self) {
        if !self.absence.end() {
            return;
        }
        // What was given up meanwhile: have the target confirm that nothing more comes of it.
        let session = self.association.session_mut().expect("connected");
        for (slot, sequence) in self.requests.slots().given_up() {
            session.send(Item::Reset { slot, sequence });
        }
    }

    /// A new session: what was outstanding is issued again, once the attachment is open in it.
    fn enter_session(&mut self, slots: u16) {
        let sequence = if self.config.counters_high { SEQUENCE_HIGH } else { 0 };
        self.requests.on_session(slots, sequence);
        self.closing.on_session();
        self.durability.on_session();
        self.ask_attach();
    }

    fn ask_attach(&mut self) {
        let transaction = self.attachment.ask();
        if let Some(session) = self.association.session_mut() {
            session.send(Item::Attach(transaction));
        }
    }

    /// The target does not know the attachment any more: as if it had been restarted.
    fn reattach(&mut self) {
        self.attachment.part();
        self.association.leave(self.now, &self.config, false);
    }

    /// The target ends the session in order: it is about to stop, perhaps to start again.
    fn on_bye(&mut self, now: Time) {
        if self.closing.is_closed() {
            return;
        }
        // Keep the slots' I/O: it is issued again in the next session. The acknowledgement of the
        // goodbye is not worth keeping the session for.
        self.leave_session(now);
    }

    /// Another session is looked for, after a while.
    fn leave_session(&mut self, now: Time) {
        self.attachment.part();
        self.absence.begin(now);
        self.association.leave(now, &self.config, true);
    }

    /// When to call [`Initiator::turn`] next, at the latest.
    pub fn deadline(&self, now: Time) -> Time {
        let mut at = Time(u64::MAX);
        if let Some(session) = self.association.session() {
            at = at.min(session.deadline(now));
        }
        // Whoever could not be attached at first looks after nothing any more.
        if self.closing.lives() && self.attachment.first_error().is_none() {
            at = at.min(self.connection_deadline());
        }
        if self.association.has_frames() || self.durability.goes_on() { now } else { at }
    }

    /// The earliest of the parts' timers.
    fn connection_deadline(&self) -> Time {
        let mut at = self.association.deadline().unwrap_or(Time(u64::MAX));
        if let Some((_, retry)) = self.attachment.armed() {
            at = at.min(retry);
        }
        if let Some((_, give_up)) = self.absence.armed(self.attachment.is_open()) {
            at = at.min(give_up);
        }
        if let Some((_, patience)) = self.closing.armed(self.absence.since().is_some()) {
            at = at.min(patience);
        }
        // Without a slot for it, a completion is waited for, which needs no timer.
        if let Some((_, flush)) = self.durability.armed(self.is_last())
            && self.is_attached()
            && self.association.session().is_some_and(|s| self.requests.has_room(0, s.peer_grant()))
        {
            at = at.min(flush);
        }
        at
    }

    /// Of the answer whose data came last, more is missing than one frame brings.
    pub(crate) fn is_amid_answer(&self) -> bool {
        self.requests.is_amid_answer()
    }

    /// See [`Session::network_time`](thinwire_proto::Session::network_time).
    pub fn network_time(&self) -> Option<Duration> {
        self.association.session().and_then(Session::network_time)
    }

    /// Completions wait to be polled.
    pub fn has_completions(&self) -> bool {
        self.requests.has_completions()
    }

    /// Begins an orderly end: new I/O is refused, what is outstanding completes, unflushed writes
    /// are flushed, the export is set free. Done when [`Initiator::is_closed`]: of one that was not
    /// granted at once, but for an answer that is still to come, since it may be a grant.
    pub fn close(&mut self) {
        let may_hold = self.attachment.is_open() || self.attachment.may_be_granted();
        if !self.attachment.is_open() {
            self.attachment.take_over_no_more();
        }
        self.closing.begin(may_hold);
    }

    /// Begins the same but for its last step: the export stays held, also while the target is away, until
    /// [`Initiator::close`] is called. For the first member, which others may have to come back behind.
    pub fn begin_close(&mut self) {
        self.closing.begin_held(self.attachment.is_open());
    }

    fn progress_closing(&mut self) {
        let may_hold = self.attachment.is_open() || self.attachment.may_be_granted();
        if self.closing.is_under_way() && !may_hold {
            // It was refused meanwhile: there is nothing to set free.
            return self.finish_closing();
        }
        let is_away = self.absence.since().is_some();
        if !self.requests.is_quiet(is_away) || !self.durability.is_clean() {
            return;
        }
        match self.closing.on_clean(self.now, is_away, self.is_attached()) {
            Step::None => {}
            Step::Finish => {
                self.tell_failed_replay();
                self.finish_closing();
            }
            Step::Detach => {
                self.tell_failed_replay();
                let (attachment, generation) = self.attachment.handle();
                let detach = Detach { transaction: 0, attachment, generation };
                self.association
                    .session_mut()
                    .expect("attached")
                    .send(Item::said(Message::Detach(detach)));
            }
        }
    }

    /// If no flush has told anybody yet, the detach does.
    fn tell_failed_replay(&mut self) {
        if self.durability.take_debt() {
            self.closing.tell(ErrorKind::Io);
        }
    }

    fn finish_closing(&mut self) {
        self.say_bye();
        self.closing.finish();
    }

    /// Ends at once: the target is told if it listens, nothing waits for it. All I/O fails.
    pub fn abort(&mut self) {
        self.say_bye();
        self.requests.fail_all(ErrorKind::ShuttingDown);
        self.closing.finish();
    }

    fn say_bye(&mut self) {
        if let Some(session) = self.association.session_mut() {
            let status = Status::Ok as u16;
            session.send(Item::said(Message::Bye(Bye { status })));
        }
    }

    /// The end has come, in order or not.
    pub fn is_closed(&self) -> bool {
        self.closing.is_closed()
    }

    /// What went wrong with an orderly end: unflushed writes that could not be made durable.
    pub fn close_error(&self) -> Option<ErrorKind> {
        self.closing.error()
    }

    /// It ended in order, but its target was away and has not heard of that: the export is not free yet.
    pub fn is_unheard(&self) -> bool {
        self.closing.is_unheard()
    }

    /// Why the attachment is dead, if it is.
    pub fn failure(&self) -> Option<ErrorKind> {
        self.closing.failure()
    }

    /// Changes what happens while the target is away.
    pub fn set_when_away(&mut self, when_away: WhenAway) {
        self.absence.set_policy(when_away);
    }

    /// See [`InitiatorConfig::label`].
    pub(crate) fn label(&self) -> &str {
        &self.config.label
    }

    /// What did not fit its sums, if some of that is to be told now: once for all that follows within a while.
    pub(crate) fn altered_news(&mut self, now: Time) -> Option<AlteredStats> {
        let (told, from) = self.altered_told;
        if self.altered == told || now < from {
            return None;
        }
        self.altered_told = (self.altered, now + ALTERED_EVERY);
        Some(self.altered)
    }

    /// Whether a phase has not been told of; from now on it has.
    pub(crate) fn is_news(&mut self, phase: Phase) -> bool {
        std::mem::replace(&mut self.told, phase) != phase
    }

    /// Where it stands.
    pub fn phase(&self) -> Phase {
        if self.closing.is_closed() {
            Phase::Closed
        } else if self.closing.failure().is_some() || self.attachment.first_error().is_some() {
            Phase::Failed
        } else if !self.is_open() {
            Phase::Connecting
        } else if self.absence.since().is_some() {
            Phase::Away
        } else if self.closing.is_under_way() {
            Phase::Detaching
        } else if self.durability.is_replaying() {
            Phase::Replaying
        } else {
            Phase::Attached
        }
    }

    /// Figures for status.
    pub fn report(&self, now: Time) -> InitiatorReport {
        let session = self.association.session();
        let replayed = self.durability.stats();
        InitiatorReport {
            phase: self.phase(),
            failure: self.closing.failure(),
            paths: session.iter().flat_map(|session| session.path_reports()).collect(),
            timer: self.timer(now),
            outstanding: self.requests.outstanding(),
            retained_bytes: self.durability.retained_bytes(),
            retained_entries: self.durability.retained_entries(),
            is_held: self.attachment.content().is_some_and(|a| a.is_held),
            integrity: self.config.integrity,
            writer_generation: self.attachment.content().map_or(0, |a| a.writer_generation),
            idle_generations: self.attachment.content().map_or(0, |a| a.idle_generations),
            hint: self.hint().map(str::to_owned),
            suite: session.and_then(Session::keys).map(SessionKeys::suite),
            target_session: session.map_or(0, Session::remote_id),
            stats: InitiatorStats {
                drops: self.drops,
                requests: self.requests.started(),
                replayed: replayed.effects,
                replay_failures: replayed.failures,
                sessions: self.association.entered(),
                copied_bytes: self.requests.copied_bytes(),
                altered: self.altered,
            },
            session: session.map(Session::stats).unwrap_or_default(),
            batch_policy: self.config.batching.policy,
            batch_level: session.map_or(1, Session::batch_level),
        }
    }

    pub(crate) fn timer(&self, now: Time) -> Option<Timer> {
        let since = self.absence.since().filter(|_| self.closing.lives())?;
        if let (WhenAway::FailAfter(limit), true) = (self.absence.policy(), self.is_open()) {
            return Some(Timer::FailAfter((since + limit).since(now)));
        }
        Some(Timer::Reconnect(self.connection_deadline().since(now)))
    }
}
