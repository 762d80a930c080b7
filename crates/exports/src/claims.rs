//! Who may write next: writer generations, leases, fencing
//! (`docs/protocol.md`, "Attachments" and "Writer generations"; rules 2 and 3).

use thinwire_buffer::Time;
use thinwire_volume::{ChangeError, IoError, WriterRecord};

use crate::exports::{DoorCanary, Exports};
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
    /// It was granted the export under this generation, and wants to go on.
    pub resumes: Option<u64>,
    /// Whoever else has it is to lose it.
    pub takes_over: bool,
}

/// Who holds an export for writing, as far as this process knows.
#[derive(Clone, Debug)]
pub(crate) struct Holder {
    pub run: InitiatorRun,
    /// Runs with its identity that asked while it was alive: they are others.
    pub twins: Vec<u64>,
    pub name: String,
    /// The session of its pass, which may have ended.
    pub session: u64,
    /// When that session was last heard, once it has ended.
    pub last_heard: Time,
}

/// A claim that waits until an earlier writer's requests have left the volume (rule 2).
#[derive(Clone, Debug)]
pub(crate) struct PendingClaim {
    pub user: User,
    pub transaction: u32,
    pub export: usize,
    pub generation: u64,
    /// Whether another run of the same initiator may hold the export.
    pub twin: Twin,
    /// The record could not be changed, and may have been all the same: see
    /// [`RecordState::Unresolved`](crate::record::RecordState::Unresolved).
    pub failed: Option<IoError>,
}

impl Exports {
    /// Asks for an export to write. Nobody is fenced before [`Exports::settle`] grants it: it may
    /// come to nothing.
    ///
    /// # Errors
    /// It is denied at once.
    pub fn claim(&mut self, now: Time, claim: WriteClaim<'_>) -> Result<(), Denied> {
        let WriteClaim { user, transaction, export, resumes, takes_over } = claim;
        let e = &self.exports[export];
        if e.read_only || e.volume.geometry().features.read_only {
            let text = format!("export {} is read-only: attach it read-only", e.name);
            return Err(Denied::new(Denial::ReadOnly, 0, text));
        }
        if let Some(is_granted) = self.is_stale(user, export) {
            // Whoever asked here has gone on to another session and was granted it there, or has
            // died: granting it again would fence its present self.
            let is_final = resumes.is_some() && is_granted;
            let why = if is_final { Denial::Fenced } else { Denial::Busy };
            return Err(self.overtaken(why, export));
        }
        if let Some(denied) = self.record_denial(now, export) {
            return Err(denied);
        }
        let generation = match resumes {
            Some(generation) => self.decide_resume(user, export, generation)?,
            None => self.decide(now, user, export, takes_over)?,
        };
        // Who resumes is known to be the holder, and who says so may take over from anybody.
        let asks = resumes.is_none() && !takes_over;
        let twin = if asks { Twin::Unasked } else { Twin::Cleared };
        let user = user.clone();
        let failed = None;
        self.claims.push(PendingClaim { user, transaction, export, generation, twin, failed });
        Ok(())
    }

    /// A claim of this session and transaction waits.
    pub fn is_waiting(&self, session: u64, transaction: u32) -> bool {
        let is = |p: &PendingClaim| p.user.session == session && p.transaction == transaction;
        self.claims.iter().any(is)
    }

    /// A claim that comes late, in a session that its initiator has left behind: whether a later one
    /// was granted the export, or is still waiting for it.
    fn is_stale(&self, user: &User, export: usize) -> Option<bool> {
        if self.config.canary == DoorCanary::StaleAttach {
            return None;
        }
        let later = |who, number| who == user.run.initiator && number > user.number;
        if self.exports[export].granted.iter().any(|&(who, number)| later(who, number)) {
            return Some(true);
        }
        let mut waiting = self.claims.iter().filter(|p| p.export == export);
        waiting.any(|p| later(p.user.run.initiator, p.user.number)).then_some(false)
    }

    /// While it waited, a later session of the same initiator was granted the export: granting it now
    /// would fence its present self.
    fn was_overtaken(&self, claim: &PendingClaim) -> bool {
        let User { run, number, .. } = &claim.user;
        let later = |&(who, later): &([u8; 16], u64)| who == run.initiator && later > *number;
        let stale_is_granted = self.config.canary == DoorCanary::StaleAttach;
        !stale_is_granted && self.exports[claim.export].granted.iter().any(later)
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
        takes_over: bool,
    ) -> Result<u64, Denied> {
        let e = &self.exports[export];
        let InitiatorRun { initiator, instance } = user.run;
        // A grant that waits for the volume counts as given.
        let waiting = self.claims.iter().rev().find(|p| p.export == export);
        let (generation, holder) = match waiting {
            Some(p) => (p.generation, p.user.run.initiator),
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
            (Some(p), _) => (p.user.name.as_str(), lease.as_secs() as u32 + 1),
            (None, Some(h)) if h.run.initiator == holder => {
                let left = lease.saturating_sub(now.since(h.last_heard));
                if left.is_zero() {
                    return next();
                }
                (h.name.as_str(), left.as_secs() as u32 + 1)
            }
            _ => (e.writer_name().unwrap_or_default(), Denied::NEVER),
        };
        let name = if name.is_empty() { "an initiator without a name" } else { name };
        let wait = if seconds_left == Denied::NEVER {
            "it attached before this target started, and keeps the export until it comes back"
                .to_string()
        } else {
            format!("its lease has {seconds_left} s left if it stays silent")
        };
        let text = format!("export {} is held by {name}; {wait}", e.name);
        Err(Denied::new(Denial::Busy, seconds_left, text))
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
        let waiting = self.claims.iter().rev().find(|p| p.export == export);
        match waiting {
            Some(p) if p.user.run.initiator != initiator || p.generation != generation => {
                let text = format!("export {} is about to be granted to {}", e.name, p.user.name);
                let fences = self.config.canary == DoorCanary::FencedByWaiting;
                let why = if fences { Denial::Fenced } else { Denial::Busy };
                Err(Denied::new(why, 1, text))
            }
            _ => Ok(generation),
        }
    }

    /// Grants the claims whose predecessors' I/Os have all left the volume, and tries records again
    /// that could not be changed. Called every turn, after [`Exports::poll`]; blocks while a record is
    /// stored.
    #[inline]
    pub fn settle(&mut self, now: Time, users: &mut dyn Users) {
        self.retry_records(now);
        if !self.claims.is_empty() {
            self.settle_claims(now, users);
        }
    }

    fn settle_claims(&mut self, now: Time, users: &mut dyn Users) {
        let mut at = 0;
        while at < self.claims.len() {
            let export = self.claims[at].export;
            // In the order in which they were asked for: each got the generation after the one before.
            let is_next = self.claims[..at].iter().all(|before| before.export != export);
            let at_once = self.config.canary == DoorCanary::GrantOverRequests;
            let pulse = if is_next { self.look_for_twin(now, at, users) } else { Pulse::Unknown };
            let is_twin = pulse == Pulse::Alive;
            let waits = pulse == Pulse::Unknown
                || (self.writer_outstanding(export) > 0 && !at_once)
                || !self.settle_record(now, export);
            if waits && !is_twin {
                at += 1;
                continue;
            }
            let claim = self.claims.remove(at);
            // Whatever becomes of it: what was held back for it goes on, or is refused.
            self.release = true;
            if !users.is_there(claim.user.session) {
                continue;
            }
            let (session, transaction) = (claim.user.session, claim.transaction);
            let decided =
                if is_twin { Err(Some(self.twin(&claim))) } else { self.grant(now, claim, at) };
            match decided {
                Ok(claim) => {
                    self.fence_writers(export);
                    let granted = self.open(session, export, claim.generation, false);
                    users.on_granted(session, transaction, &granted);
                    self.tell_fenced(export, claim.user.run, claim.generation, users);
                }
                Err(Some(denied)) => users.on_denied(session, transaction, denied),
                // It waits again.
                Err(None) => at += 1,
            }
        }
    }

    fn twin(&mut self, claim: &PendingClaim) -> Denied {
        self.stats.twins += 1;
        self.note(format!(
            "export {}: refused a second process with the identity of {}, which holds it and \
             is alive: two containers or copies of a machine that present one identity?",
            self.exports[claim.export].name, claim.user.name
        ));
        Denied::new(Denial::Busy, 0, self.twin_text(claim))
    }

    /// Records the claim that stood at place `at`, durably. `None`: it could not be recorded, and may
    /// be on record all the same; it stands there again.
    fn grant(
        &mut self,
        now: Time,
        mut claim: PendingClaim,
        at: usize,
    ) -> Result<PendingClaim, Option<Denied>> {
        let export = claim.export;
        if self.was_overtaken(&claim) {
            return Err(Some(self.overtaken(Denial::Busy, export)));
        }
        // The record was put back meanwhile.
        if let Some(error) = claim.failed.take() {
            return Err(Some(self.unrecorded(export, error)));
        }
        let PendingClaim { user, generation, .. } = &claim;
        let record = WriterRecord::new(*generation, user.run.initiator, &user.name);
        match self.change_writer(now, export, record) {
            Ok(()) => {}
            Err(ChangeError::Refused(error)) => return Err(Some(self.unrecorded(export, error))),
            Err(ChangeError::Unresolved(error)) => {
                // It may be on record after a crash, so it cannot be told no.
                self.note(format!(
                    "export {}: who may write could not be made durable ({error}), nor \
                     put back: nobody writes until it is; it is tried again every second",
                    self.exports[export].name
                ));
                claim.failed = Some(error);
                self.claims.insert(at, claim);
                return Err(None);
            }
        }
        let e = &mut self.exports[export];
        e.note_grant(user.run.initiator, user.number);
        e.holder = Some(Holder {
            run: user.run,
            twins: Vec::new(),
            name: user.name.clone(),
            session: user.session,
            last_heard: now,
        });
        Ok(claim)
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
