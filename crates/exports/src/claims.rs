//! Who may write next: writer generations, leases, fencing
//! (`docs/protocol.md`, "Attachments" and "Writer generations"; rules 2 and 3).

use thinwire_buffer::Time;
use thinwire_volume::{ChangeError, IoError, WriterRecord};

use crate::exports::{DoorCanary, Export, Exports};
use crate::holder::{Grant, Holder, Member};
use crate::record::{RecordState, RecordedWriter};
use crate::spread::{Asked, Fence, Untold};
use crate::twin::{Pulse, Twin};
use crate::users::{Denial, Denied, InitiatorRun, User, Users};

/// A wish to write an export.
#[derive(Clone, Copy, Debug)]
pub struct WriteClaim<'a> {
    /// Who asks.
    pub user: &'a User,
    /// Chosen by the user, to know the answer by; unique among what its session asks at one time.
    pub transaction: u32,
    /// Index of the export: [`Exports::find`].
    pub export: usize,
    /// It was granted the export under this generation, and wants to go on. A member but the first joins
    /// who writes under it.
    pub resumes: Option<u64>,
    /// Whoever else has it is to lose it.
    pub takes_over: bool,
}

/// A claim that waits until an earlier writer's requests have left the volume (rule 2).
#[derive(Clone, Debug)]
pub(crate) struct PendingClaim {
    pub user: User,
    /// Where its session is, if not on this shard.
    pub shard: Option<u8>,
    pub transaction: u32,
    pub export: usize,
    /// Under which it is to be granted if all before it are; `None` until it is known who has it now. A claim that
    /// does not resume may be granted under a lower one: it gets the next of the record when it is recorded.
    pub generation: Option<u64>,
    /// As it was asked: see [`WriteClaim`].
    pub resumes: Option<u64>,
    pub takes_over: bool,
    /// It is being recorded: whatever happens, what comes of that is acted on.
    pub is_recording: bool,
    /// Whether another run of the same initiator may hold the export.
    pub twin: Twin,
    /// The record could not be changed, and may have been all the same: see
    /// [`RecordState::Unresolved`].
    pub failed: Option<IoError>,
}

impl PendingClaim {
    /// What stands in the place of one that was answered, until all have been looked at: it is for no export.
    fn over() -> Self {
        let run = InitiatorRun { initiator: [0; 16], instance: 0 };
        PendingClaim {
            user: User {
                session: 0,
                number: 0,
                run,
                member: 0,
                is_leased: true,
                name: String::new(),
            },
            shard: None,
            transaction: 0,
            export: usize::MAX,
            generation: None,
            resumes: None,
            takes_over: false,
            is_recording: false,
            twin: Twin::Cleared,
            failed: None,
        }
    }
}

/// What has become of a claim.
enum Decided {
    /// Its turn has not come.
    Waits,
    /// It is on record.
    Granted,
    Denied(Denied),
}

impl Exports {
    /// Asks for an export to write. Nobody is fenced before [`Exports::settle`] grants it: it may
    /// come to nothing.
    ///
    /// # Errors
    /// It is denied at once.
    pub fn claim(&mut self, now: Time, claim: WriteClaim<'_>) -> Result<(), Denied> {
        self.claim_from(now, claim, None)
    }

    /// The same, of a session of another shard.
    pub(crate) fn claim_from(
        &mut self,
        now: Time,
        claim: WriteClaim<'_>,
        shard: Option<u8>,
    ) -> Result<(), Denied> {
        let WriteClaim { user, transaction, export, resumes, takes_over } = claim;
        let e = &self.exports[export];
        if e.read_only || e.volume.geometry().features.read_only {
            let text = format!("export {} is read-only", e.name);
            return Err(Denied::new(Denial::ReadOnly, 0, text));
        }
        if e.role.is_branch() {
            self.ask_owner(claim);
            return Ok(());
        }
        let is_first = user.member == 0;
        // Others than the first write under its generation or not at all.
        let resumes = if is_first { resumes } else { resumes.or(Some(0)) };
        let takes_over = takes_over && is_first;
        if let Some(is_granted) = self.is_stale(user, export) {
            // Whoever asked here has gone on to another session and was granted it there, or has
            // died: granting it again would fence its present self.
            let is_final = resumes.is_some() && is_granted;
            let why = if is_final { Denial::Fenced } else { Denial::Busy };
            return Err(self.overtaken(why, export));
        }
        if let RecordState::Unread(_) = e.record {
            // The disk may have been mended since.
            self.read_record(export);
        }
        if let Some(denied) = self.record_denial(export) {
            return Err(denied);
        }
        let is_undecided = |p: &PendingClaim| p.export == export && p.generation.is_none();
        let waits =
            self.exports[export].record.is_on_its_way() || self.claims.iter().any(is_undecided);
        let generation = match waits {
            true => None,
            false => Some(self.decide(now, user, export, resumes, takes_over)?),
        };
        // Who resumes is known to be the holder, and who says so may take over from anybody.
        let asks = resumes.is_none() && !takes_over;
        let twin = if asks || waits { Twin::Unasked } else { Twin::Cleared };
        self.exports[export].claims += 1;
        self.claims.push(PendingClaim {
            user: user.clone(),
            shard,
            transaction,
            export,
            generation,
            resumes,
            takes_over,
            is_recording: false,
            twin,
            failed: None,
        });
        // Nothing else may come that would have it settled.
        self.started = true;
        Ok(())
    }

    /// Whether it is known who the writer on record is, so that what [`Granted`](crate::Granted) says of generations
    /// means something. If that could not be read, it is read again: the disk may have been mended since.
    pub fn is_writer_known(&mut self, export: usize) -> bool {
        let record = self.exports[export].record;
        if let RecordState::Unread(_) = record {
            self.read_record(export);
        }
        !matches!(record, RecordState::Reading | RecordState::Unread(_))
    }

    /// Who is on record as the writer, whoever waits for it. Reads nothing anew: see [`Exports::is_writer_known`].
    pub fn writer_on_record(&self, export: usize) -> RecordedWriter {
        let e = &self.exports[export];
        match e.record {
            RecordState::Unread(_) => RecordedWriter::Unread,
            RecordState::Settled if e.changed.is_none() => {
                RecordedWriter::Writer(e.writer.is_held().then_some(e.writer.holder))
            }
            _ => RecordedWriter::Undecided,
        }
    }

    /// Under which generation it is written, or was last, as far as is known: see [`Exports::writer_on_record`].
    pub fn generation_on_record(&self, export: usize) -> u64 {
        self.exports[export].writer.generation
    }

    /// Whether somebody waits to be granted an export.
    pub fn is_claimed(&self, export: usize) -> bool {
        self.exports[export].claims > 0
    }

    /// Whether nobody may write it.
    pub fn is_read_only(&self, export: usize) -> bool {
        let e = &self.exports[export];
        e.read_only || e.volume.geometry().features.read_only
    }

    /// A claim of this session and transaction waits.
    pub fn is_waiting(&self, session: u64, transaction: u32) -> bool {
        let is = |p: &PendingClaim| p.user.session == session && p.transaction == transaction;
        let asked = |p: &Asked| p.session == session && p.transaction == transaction;
        let untold = |p: &Untold| p.session == session && p.transaction == transaction;
        self.claims.iter().any(is) || self.asked.iter().any(asked) || self.untold.iter().any(untold)
    }

    /// A claim that comes late, in a session that its initiator has left behind: whether a later one
    /// was granted the export, or is still waiting for it.
    fn is_stale(&self, user: &User, export: usize) -> Option<bool> {
        if self.config.canary == DoorCanary::StaleAttach {
            return None;
        }
        if self.has_left(user, export) {
            return Some(true);
        }
        let is_later = |other: &User| {
            let same = other.run.initiator == user.run.initiator && other.member == user.member;
            same && other.number > user.number
        };
        let mut waiting = self.claims.iter().filter(|p| p.export == export);
        waiting.any(|p| is_later(&p.user)).then_some(false)
    }

    /// Whether a later session of the same initiator's member was granted the export.
    fn has_left(&self, user: &User, export: usize) -> bool {
        let e = &self.exports[export];
        if user.member == 0 {
            let later = |&(who, number)| who == user.run.initiator && number > user.number;
            return e.granted.iter().any(later);
        }
        let holder = e.holder.as_ref().filter(|holder| holder.run == user.run);
        let later = |m: &Member| m.grant.member == user.member && m.session_number > user.number;
        holder.is_some_and(|holder| holder.members.iter().any(later))
    }

    fn overtaken(&self, why: Denial, export: usize) -> Denied {
        let name = &self.exports[export].name;
        let text = format!("a later session of the same initiator has export {name}");
        Denied::new(why, 0, text)
    }

    /// The generation under which this initiator may write, or why not.
    fn decide(
        &self,
        now: Time,
        user: &User,
        export: usize,
        resumes: Option<u64>,
        takes_over: bool,
    ) -> Result<u64, Denied> {
        if let Some(generation) = resumes {
            let generation = self.decide_resume(user, export, generation)?;
            return match self.is_joined(user, export, generation) {
                true => Ok(generation),
                false => Err(self.too_early(export)),
            };
        }
        let e = &self.exports[export];
        let InitiatorRun { initiator, instance } = user.run;
        // A grant that waits for the volume counts as given.
        let waiting = self.last_decided(export);
        let (generation, holder) = match waiting {
            Some((p, generation)) => (generation, p.user.run.initiator),
            None => (e.writer.generation, e.writer.holder),
        };
        let is_twin = |h: &Holder| h.run.initiator == holder && h.twins.contains(&instance);
        let same = holder == initiator && !e.holder.as_ref().is_some_and(is_twin);
        let next = || generation.checked_add(1).ok_or_else(|| exhausted(&e.name));
        if same || holder == [0; 16] || takes_over {
            return next();
        }
        let lease = self.config.lease;
        let (name, seconds_left) = match (waiting, &e.holder) {
            // Whoever is about to be granted it is not silent.
            (Some((p, _)), _) => (p.user.name.as_str(), lease.as_secs() as u32 + 1),
            (None, Some(h)) if h.run.initiator == holder && !h.is_leased => {
                (h.name.as_str(), Denied::NEVER)
            }
            (None, Some(h)) if h.run.initiator == holder => {
                let left = lease.saturating_sub(now.since(h.last_heard()));
                if left.is_zero() {
                    return next();
                }
                (h.name.as_str(), left.as_secs() as u32 + 1)
            }
            _ => (e.writer_name().unwrap_or_default(), Denied::NEVER),
        };
        let name = if name.is_empty() { "an initiator without a name" } else { name };
        let is_here = e.holder.as_ref().is_some_and(|h| h.run.initiator == holder);
        let wait = if seconds_left == Denied::NEVER && is_here {
            "its protocol has no lease, and it keeps the export until it ends".to_string()
        } else if seconds_left == Denied::NEVER {
            "it attached before this target started, and keeps the export until it comes back"
                .to_string()
        } else {
            format!("its lease has {seconds_left} s left if it stays silent")
        };
        let text = format!("export {} is held by {name}; {wait}", e.name);
        Err(Denied::new(Denial::Busy, seconds_left, text))
    }

    /// The claim that is granted last of those whose turn is known, and under which generation.
    fn last_decided(&self, export: usize) -> Option<(&PendingClaim, u64)> {
        let of_it = self.claims.iter().rev().filter(|p| p.export == export);
        of_it.filter_map(|p| Some((p, p.generation?))).next()
    }

    /// Whether somebody who was granted the export may go on. Only a durable grant to another fences
    /// it: one that waits may come to nothing, and holds it back until then.
    fn decide_resume(&self, user: &User, export: usize, resumed: u64) -> Result<u64, Denied> {
        let e = &self.exports[export];
        let WriterRecord { generation, holder, .. } = e.writer;
        if generation < resumed {
            let text = format!("export {} began anew and holds other content", e.name);
            return Err(Denied::new(Denial::OtherContent, 0, text));
        }
        // The last writer may come back, also if it had detached and was not told so.
        let initiator = user.run.initiator;
        let same = holder == initiator || holder == [0; 16];
        if generation > resumed || !same {
            let text = format!("another initiator took export {} over", e.name);
            return Err(Denied::new(Denial::Fenced, 0, text));
        }
        match self.last_decided(export) {
            Some((p, next)) if p.user.run.initiator != initiator || next != generation => {
                let text = format!("export {} is about to be granted to {}", e.name, p.user.name);
                let fences = self.config.canary == DoorCanary::FencedByWaiting;
                let why = if fences { Denial::Fenced } else { Denial::Busy };
                Err(Denied::new(why, 1, text))
            }
            _ => Ok(generation),
        }
    }

    /// Whoever joins the first member of its run finds that in possession, or about to be.
    fn is_joined(&self, user: &User, export: usize, generation: u64) -> bool {
        let about_to = self.last_decided(export).is_some_and(|(p, _)| p.user.run == user.run);
        user.member == 0 || about_to || self.holds(user.run, export, generation)
    }

    /// The last generation under which something may have been written, once no writer's I/O is outstanding.
    pub(crate) fn written(&self, export: usize) -> u64 {
        let Export { writer, written, .. } = &self.exports[export];
        match self.config.canary {
            DoorCanary::WrittenUnnoticed => (*written).min(writer.generation.saturating_sub(1)),
            DoorCanary::IdleUntold => writer.generation,
            _ => *written,
        }
    }

    /// This run has it under this generation, with any of its members.
    fn holds(&self, run: InitiatorRun, export: usize, generation: u64) -> bool {
        let is = |holder: &Holder| holder.run == run && holder.generation == generation;
        self.exports[export].holder.as_ref().is_some_and(is)
    }

    fn too_early(&self, export: usize) -> Denied {
        let name = &self.exports[export].name;
        let text = format!("the first member of this attachment does not have export {name}");
        Denied::new(Denial::Busy, 1, text)
    }

    /// Grants the claims whose predecessors' I/Os have all left the volume, and goes on with records.
    /// Called every turn, after [`Exports::poll`], and again while [`Exports::take_started`] says so.
    #[inline]
    pub fn settle(&mut self, now: Time, users: &mut dyn Users) {
        if !self.unresolved.is_empty() {
            self.retry_records(now);
        }
        // First, or a writer that ends in one session and comes back in another would be recorded as ended
        // behind its return.
        if !self.closings.is_empty() {
            self.settle_closings(users);
        }
        if !self.claims.is_empty() {
            self.settle_claims(now, users);
        }
        if !self.to_tell.is_empty() {
            self.tell(now, users);
        }
        if self.leaving > 0 {
            self.settle_leaving();
        }
    }

    fn settle_claims(&mut self, now: Time, users: &mut dyn Users) {
        // A thousand may wait: each is looked at once, and moved at most once.
        self.waited_for.clear();
        let mut kept = 0;
        for at in 0..self.claims.len() {
            let export = self.claims[at].export;
            // In the order in which they were asked for: each was decided as if the one before were granted.
            let is_next = !self.waited_for.contains(export);
            let decided = if is_next { self.settle_claim(now, at, users) } else { Decided::Waits };
            let denied = match decided {
                Decided::Waits => {
                    self.waited_for.insert(export);
                    self.claims.swap(kept, at);
                    kept += 1;
                    continue;
                }
                Decided::Granted => None,
                Decided::Denied(denied) => Some(denied),
            };
            let claim = std::mem::replace(&mut self.claims[at], PendingClaim::over());
            self.exports[export].claims -= 1;
            // Whatever becomes of it: what was held back for it goes on, or is refused.
            self.release = true;
            let (session, transaction) = (claim.user.session, claim.transaction);
            match denied {
                Some(denied) if claim.shard.is_some() => {
                    let shard = claim.shard.expect("just seen");
                    self.deny_elsewhere(export, shard, session, transaction, denied);
                }
                Some(denied) if users.is_there(session) => {
                    users.on_denied(session, transaction, denied);
                }
                Some(_) => {}
                None => self.grant(now, claim, users),
            }
        }
        self.claims.truncate(kept);
    }

    /// Goes on with the claim at a place, the first of its export.
    fn settle_claim(&mut self, now: Time, at: usize, users: &mut dyn Users) -> Decided {
        let PendingClaim { export, is_recording, .. } = self.claims[at];
        if is_recording {
            return self.settle_recording(at);
        }
        if self.claims[at].generation.is_none() {
            if self.exports[export].record.is_on_its_way() {
                return Decided::Waits;
            }
            if let Some(denied) = self.record_denial(export) {
                return Decided::Denied(denied);
            }
            let PendingClaim { user, resumes, takes_over, .. } = &self.claims[at];
            match self.decide(now, user, export, *resumes, *takes_over) {
                Ok(generation) => {
                    let claim = &mut self.claims[at];
                    claim.generation = Some(generation);
                    if claim.resumes.is_some() || claim.takes_over {
                        claim.twin = Twin::Cleared;
                    }
                }
                Err(denied) => return Decided::Denied(denied),
            }
        }
        match self.look_for_twin(now, at, users) {
            Pulse::Unknown => return Decided::Waits,
            Pulse::Alive => return Decided::Denied(self.twin(at)),
            Pulse::None => {}
        }
        let at_once = self.config.canary == DoorCanary::GrantOverRequests;
        let is_dry = self.hold_branches(export) && self.exports[export].writers_outstanding == 0;
        if (!is_dry && !at_once) || self.exports[export].record != RecordState::Settled {
            return Decided::Waits;
        }
        let claim = &mut self.claims[at];
        // The record was put back meanwhile.
        if let Some(error) = claim.failed.take() {
            return Decided::Denied(self.unrecorded(export, error));
        }
        let claim = &self.claims[at];
        // Of one of another shard that is told, which has the claim withdrawn.
        let is_there = claim.shard.is_some() || users.is_there(claim.user.session);
        // Those of one export are granted in their order, and none has come in behind one of a later session.
        debug_assert!(
            self.config.canary == DoorCanary::StaleAttach
                || !self.has_left(&claim.user, claim.export),
            "an earlier session would fence a later one"
        );
        if !is_there {
            let text = format!("whoever asked for export {} is gone", self.exports[export].name);
            return Decided::Denied(Denied::new(Denial::Busy, 0, text));
        }
        if let (1.., Some(generation)) = (claim.user.member, claim.resumes)
            && !self.holds(claim.user.run, export, generation)
        {
            return Decided::Denied(self.too_early(export));
        }
        // Of those that waited before it some may have come to nothing: that leaves no gap, which whoever
        // serves the export as a leaf would take for a writer it has not heard of.
        let generation = match claim.resumes {
            Some(_) => claim.generation.expect("decided above"),
            None => self.exports[export].writer.generation + 1,
        };
        let User { run, name, .. } = &claim.user;
        let (writer, written) = (self.exports[export].writer, self.written(export));
        let record = writer.granted(generation, run.initiator, name, written);
        let claim = &mut self.claims[at];
        (claim.generation, claim.is_recording) = (Some(generation), true);
        self.change_record(export, record);
        self.settle_recording(at)
    }

    /// Looks what has become of the record of the claim at a place.
    fn settle_recording(&mut self, at: usize) -> Decided {
        let export = self.claims[at].export;
        match self.exports[export].changed.take() {
            None => Decided::Waits,
            Some(Ok(())) => Decided::Granted,
            Some(Err(ChangeError::Refused(error))) => {
                Decided::Denied(self.unrecorded(export, error))
            }
            Some(Err(ChangeError::Unresolved(error))) => {
                // It may be on record after a crash, so it cannot be told no.
                self.note(format!(
                    "export {}: who may write could not be made durable ({error}), nor \
                     put back: nobody writes until it is; it is tried again every second",
                    self.exports[export].name
                ));
                let claim = &mut self.claims[at];
                (claim.failed, claim.is_recording) = (Some(error), false);
                Decided::Waits
            }
        }
    }

    fn twin(&mut self, at: usize) -> Denied {
        self.stats.twins += 1;
        let claim = &self.claims[at];
        let denied = Denied::new(Denial::Busy, 0, self.twin_text(claim));
        self.note(format!(
            "export {}: refused a second process with the identity of {}, which holds it and \
             is alive: two containers or copies of a machine that present one identity?",
            self.exports[claim.export].name, claim.user.name
        ));
        denied
    }

    /// It is on record: its predecessors are fenced, though it may itself be gone by now.
    fn grant(&mut self, now: Time, claim: PendingClaim, users: &mut dyn Users) {
        let PendingClaim { user, shard, transaction, export, generation, resumes, .. } = claim;
        let User { session, number: session_number, run, member, is_leased, name } = user;
        let generation = generation.expect("what is recorded was decided");
        // The others of its run go on: it takes the place of its own former self alone.
        let goes_on = self.holds(run, export, generation);
        let e = &mut self.exports[export];
        e.grants += 1;
        let grant = Grant { member, number: e.grants };
        let since = match resumes {
            // Who has ended in order here holds it anew.
            Some(_) if e.holder.is_none() && e.granted_generation != Some(generation) => None,
            _ => Some(now),
        };
        if member == 0 {
            e.note_grant(run.initiator, session_number, generation);
        }
        let mut holder = match e.holder.take() {
            Some(holder) if goes_on => holder,
            before => {
                let left = before.into_iter().flat_map(|before| before.members);
                left.for_each(|member| _ = self.held.remove(&(member.session, export)));
                let (twins, members) = (Vec::new(), Vec::new());
                Holder { run, twins, is_leased, name, members, generation, since }
            }
        };
        for former in holder.members.extract_if(.., |other| other.grant.member == member) {
            self.held.remove(&(former.session, export));
        }
        let (last_heard, is_elsewhere) = (now, shard.is_some());
        holder.members.push(Member { grant, session, session_number, last_heard, is_elsewhere });
        e.holder = Some(holder);
        self.held.insert((session, export));
        let alone = goes_on && self.config.canary != DoorCanary::MemberFencesAll;
        let idle = self.exports[export].writer.idle;
        let fence = Fence { by: run, generation, idle, member: alone.then_some(member) };
        self.fence_writers(export, fence.member);
        self.fence_branches(export, fence);
        if let Some(shard) = shard {
            self.grant_elsewhere(export, shard, session, transaction, generation, grant);
        } else if users.is_there(session) {
            let granted = self.open(session, export, generation, Some(grant));
            users.on_granted(session, transaction, &granted);
        }
        self.tell_fenced(export, run, generation, users);
    }

    /// The denial after a change that failed.
    fn unrecorded(&self, export: usize, error: IoError) -> Denied {
        let name = &self.exports[export].name;
        let text = format!("the writer of {name} could not be recorded: {error}");
        Denied::new(Denial::Record, 0, text)
    }
}

/// Generations are never used twice.
fn exhausted(export: &str) -> Denied {
    let text = format!(
        "the writer generations of export {export} are at their end: copy its content to a new image, \
         whose record begins anew"
    );
    Denied::new(Denial::Record, 0, text)
}
