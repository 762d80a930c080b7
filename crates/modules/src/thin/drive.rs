//! What drives a pool: completions and events of its parts, and the steps that follow.

use thinwire_buffer::Time;
use thinwire_volume::{Completion, ErrorKind, Volume, VolumeEvent};

use super::opening::Phase;
use super::reads::OneBlock;
use super::{Core, POOL_LABEL_TOKEN, PoolCanary, ROUNDS_MAX, tell_all};

/// In the place of the number of a piece: there is only one.
pub(super) const ALONE: u32 = u32::MAX;
/// What is around a write: this before it, the next number behind it.
pub(super) const AROUND: u32 = u32::MAX - 2;

/// Errors after which the part is not there: what was told to it may still arrive, so that no block may change hands.
pub(super) fn is_final(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::Away
            | ErrorKind::OutcomeUnknown
            | ErrorKind::ShuttingDown
            | ErrorKind::Fenced
            | ErrorKind::ContentChanged
    )
}

/// Steps of the trees between two polls.
const STEPS_MAX: usize = 64;

/// What an I/O of the data is for.
pub(super) enum Sub {
    Job {
        job: u32,
        piece: u32,
        /// What an offset there lacks to be one of the volume, modulo 2^64.
        shift: u64,
    },
    /// A read that is no job.
    Read(OneBlock),
    Flush {
        job: u32,
    },
    Discard {
        first: u64,
        count: u64,
    },
    /// A planted fault.
    Nothing,
}

impl Core {
    /// Polls both parts, and does what can be done.
    pub(super) fn drive(&mut self) {
        let mut inbox = std::mem::take(&mut self.inbox);
        self.begin_round();
        for _ in 0..ROUNDS_MAX {
            self.has_sent = false;
            self.data.poll(&mut inbox);
            self.look_at_events();
            if !inbox.is_empty() {
                inbox.drain(..).for_each(|completion| self.on_data(completion));
            }
            self.metadata.poll(&mut inbox);
            self.look_at_events();
            self.is_calm &= inbox.is_empty();
            for completion in inbox.drain(..) {
                if self.trees.is_mine(&completion) {
                    self.trees.on_completion(completion, &mut *self.metadata);
                    self.has_sent = true;
                } else if completion.token == POOL_LABEL_TOKEN {
                    self.growth.on_completion(1, completion);
                }
            }
            if !self.has_only_read() {
                self.settle();
            }
            if !self.has_sent {
                break;
            }
        }
        self.inbox = inbox;
    }

    /// There is nothing to do that is not done: see [`Core::is_calm`].
    fn has_only_read(&self) -> bool {
        self.is_calm
            && self.ripe.is_empty()
            && self.waiting.is_empty()
            && !self.commits.is_wanted
            && self.now < self.next_commit()
            && !self.winds_up
            && self.trees.is_turned()
            && self.ops.is_idle()
            && self.growth.is_idle()
    }

    /// Does all that can be done without a poll.
    pub(super) fn settle(&mut self) {
        for _ in 0..STEPS_MAX {
            self.settle_jobs();
            self.step_ops();
            self.step_discards();
            self.step_wind_up();
            self.step_growth();
            self.step_commit();
            let before = self.data.outstanding() + self.metadata.outstanding();
            let news = self.trees.turn(&mut *self.metadata, &mut *self.data);
            self.has_sent |= self.data.outstanding() + self.metadata.outstanding() != before;
            if let Some(committed) = news.committed {
                self.on_committed(committed);
            }
            if news.came {
                self.ripe.extend(self.waiting.drain(..));
                self.ops.wake();
            }
            if news.opened {
                // Whoever lacks more than room in a transaction is stopped again.
                self.ripe.extend(self.stalled.drain(..));
            }
            self.look_at_stalled();
            self.look_at_levels();
            if !news.came && self.ripe.is_empty() && !self.ops.is_awake() {
                self.is_calm = self.phase == Phase::Serving
                    && self.trees.is_idle()
                    && !self.commits.waits()
                    && self.stalled.is_empty()
                    && self.syncing.is_empty();
                return;
            }
        }
        (self.has_sent, self.is_calm) = (true, false);
    }

    /// Who waits for room waits for something that ends.
    fn look_at_stalled(&mut self) {
        if self.stalled.is_empty() || self.commits.is_under_way() || self.commits.is_wanted {
            return;
        }
        match self.wants_commit() && !self.commits.is_stopped() {
            true => self.commits.is_wanted = true,
            false if self.may_come() => {}
            false => self.wake_stalled(),
        }
    }

    fn on_data(&mut self, mut completion: Completion) {
        let was_calm = std::mem::take(&mut self.is_calm);
        if self.trees.is_mine_of_data(&completion) {
            // At once: what comes behind it may have seen what was lost.
            if let Err(error) = completion.result {
                let why = format!("data could not be made durable: {error}");
                self.stop_at_data_loss(error.kind, why);
            }
            return self.trees.on_data_completion(completion);
        }
        match self.subs.remove(completion.token) {
            Some(Sub::Read(read)) => {
                self.is_calm = was_calm && completion.result.is_ok();
                self.end_read(completion.token as u32, &read, completion);
            }
            Some(Sub::Job { job, piece, shift }) => {
                let of = self.jobs.get_mut(job);
                of.pending -= 1;
                match &mut completion.result {
                    Err(error) => {
                        error.offset = error.offset.wrapping_add(shift);
                        _ = of.error.get_or_insert(*error);
                        if is_final(error.kind) {
                            let why = format!("the data part is not there any more: {error}");
                            self.stop(error.kind, why);
                        }
                    }
                    Ok(()) if piece == ALONE => of.data = completion.data,
                    Ok(()) if piece >= AROUND => {
                        of.around[(piece - AROUND) as usize] = completion.data;
                    }
                    Ok(()) => of.pieces.fill(piece as usize, &mut completion),
                }
                if self.jobs.get_mut(job).pending == 0 {
                    self.ripe.push_back(job);
                }
            }
            Some(Sub::Flush { job }) => {
                let of = self.jobs.get_mut(job);
                of.pending -= 1;
                if let Err(error) = completion.result {
                    of.error.get_or_insert(error);
                    let why = format!("data could not be made durable: {error}");
                    self.stop_at_data_loss(ErrorKind::Io, why);
                }
                self.ripe.push_back(job);
            }
            Some(Sub::Discard { first, count }) => self.on_discarded(first, count),
            None if completion.token == POOL_LABEL_TOKEN => {
                self.growth.on_completion(0, completion);
            }
            Some(Sub::Nothing) | None => {}
        }
    }

    /// Events of the parts that nobody has looked at yet.
    pub(super) fn untold_events(&self) -> u64 {
        let of = |volume: &dyn Volume, seen: u64| volume.events().wrapping_sub(seen);
        of(&*self.data, self.events_seen[0]).wrapping_add(of(&*self.metadata, self.events_seen[1]))
    }

    /// Takes what has happened to the parts, before what they have completed.
    pub(super) fn look_at_events(&mut self) {
        if self.untold_events() == 0 {
            return;
        }
        self.is_calm = false;
        let (mut data, mut metadata) = (Vec::new(), Vec::new());
        self.data.poll_events(&mut data);
        self.metadata.poll_events(&mut metadata);
        // Who has counted them finds them in the count of the handle from now on.
        let untold = self.untold_events();
        self.events_seen = [self.data.events(), self.metadata.events()];
        for (_, slot) in self.slots.iter_mut() {
            slot.news_count = slot.news_count.wrapping_add(untold);
        }
        for event in data {
            match event {
                // What has no mapping yet may have lost its data, and nobody could tell which.
                VolumeEvent::Lost if self.is_changing() || self.commits.is_stopped() => {
                    let why = "the data part has lost what was not durable";
                    self.stop_at_data_loss(ErrorKind::Io, why.into());
                }
                VolumeEvent::Fenced { .. } => self.on_fenced(event),
                VolumeEvent::Lost
                | VolumeEvent::Leg { .. }
                | VolumeEvent::BadBlock { .. }
                | VolumeEvent::Unverified { .. } => {
                    tell_all(&mut self.slots, event);
                }
                // More room is taken up by who opens it again, if the labels say so; less fails what is there no more.
                _ => {}
            }
        }
        for event in metadata {
            match event {
                VolumeEvent::Lost if self.commits.is_under_way() => {
                    let why = "the metadata part has lost what was not durable";
                    self.stop(ErrorKind::Io, why.into());
                }
                VolumeEvent::Fenced { .. } => self.on_fenced(event),
                VolumeEvent::Leg { .. }
                | VolumeEvent::BadBlock { .. }
                | VolumeEvent::Unverified { .. } => {
                    tell_all(&mut self.slots, event);
                }
                // All else there is durable.
                _ => {}
            }
        }
    }

    /// Who has one part has both, or is about to: nothing is written any more (rule 18).
    #[cold]
    fn on_fenced(&mut self, event: VolumeEvent) {
        self.stop(ErrorKind::Fenced, "another writer has been granted a part of it".into());
        tell_all(&mut self.slots, event);
    }

    /// Something is mapped, or about to be, that is not durable.
    fn is_changing(&self) -> bool {
        self.trees.has_changes() || self.commits.is_under_way() || self.commits.provisioning > 0
    }

    pub(super) fn turn(&mut self, now: Time) -> Time {
        self.now = self.now.max(now);
        let next = self.data.turn(now).min(self.metadata.turn(now));
        if self.ops.look_at_time(self.now) {
            self.trees.try_all_doomed();
        }
        if self.phase == Phase::Serving {
            self.step_trim();
            if !self.has_only_read() {
                self.settle();
            }
        }
        let soon = match self.has_sent || self.ops.is_awake() || self.ops.wants_background() {
            true => now,
            false => Time::NEVER,
        };
        next.min(soon).min(self.next_commit()).min(self.ops.next_release()).min(self.next_trim())
    }

    /// Brings all in order for its end: what is changed is committed, what is deleted stays so, and then the parts end.
    pub(super) fn wind_up(&mut self) {
        self.winds_up = true;
        self.ops.stop_reaping();
        self.step_wind_up();
        self.settle();
    }

    fn step_wind_up(&mut self) {
        if !self.winds_up
            || self.is_winding_parts
            || self.commits.is_stopped()
            || !self.growth.is_idle()
        {
            return;
        }
        if self.trees.has_changes() {
            self.commits.is_wanted |= !self.commits.is_under_way();
        } else if !self.commits.is_under_way()
            && !self.commits.is_discarding()
            && self.subs_are_none()
        {
            let is_marked = self.ends_left == u8::from(self.canary == PoolCanary::EndsOnce);
            if !self.config.read_only && !is_marked {
                // Whichever copy of the label is damaged later, the other says the same.
                (self.marks_end, self.commits.is_wanted) = (true, true);
                return;
            }
            self.is_winding_parts = true;
            self.data.wind_up();
            self.metadata.wind_up();
            self.has_sent = true;
        }
    }

    /// Nothing of that is left to do; or nothing can be done any more.
    pub(super) fn is_wound_up(&self) -> bool {
        let are_parts = self.data.is_wound_up() && self.metadata.is_wound_up();
        self.commits.is_stopped() || self.is_winding_parts && are_parts
    }

    pub(super) fn is_idle(&self) -> bool {
        self.phase == Phase::Serving
            && self.subs_are_none()
            && self.trees.is_idle()
            && (!self.wants_commit() || self.config.read_only)
            && !self.commits.is_under_way()
            && !self.commits.is_discarding()
            && self.growth.is_idle()
            && self.ops.is_idle()
    }

    fn subs_are_none(&self) -> bool {
        self.data.outstanding() == 0
            && self.metadata.outstanding() == 0
            && self.ripe.is_empty()
            && self.waiting.is_empty()
            && self.stalled.is_empty()
            && self.syncing.is_empty()
    }
}
