//! Who may write: writer generations, fencing, leases
//! (`docs/protocol.md`, "Attachments" and "Writer generations"; rules 2, 3 and 7).

use thinwire_proto::{Item, Time};
use thinwire_volume::{ChangeError, WriterRecord};
use thinwire_wire::{Attach, Attached, Detach, Event, Status, attach_flags, event_code, feature};

use crate::TargetCanary;
use crate::answers::Answer;
use crate::house::{Attachment, Holder, House, PendingAttach, RecordState};
use crate::peer::Peer;
use crate::slots::REQUEST_BYTES_MAX;
use crate::twin::{Pulse, Twin};

/// The writer is gone and nothing counts down until another may have the volume.
const NEVER: u32 = u32::MAX;
/// Exports that one session may have open.
pub(crate) const ATTACHMENTS_MAX: usize = 64;

impl House {
    pub fn on_attach(&mut self, now: Time, peer: &mut Peer, index: usize, attach: &Attach<'_>) {
        let transaction = attach.transaction;
        if peer.slots.answers.get(transaction).is_some() {
            return peer.session.send(Item::AttachAnswer(transaction));
        }
        let session = peer.session.local_id();
        if self.pending.iter().any(|p| p.session == session && p.transaction == transaction) {
            return;
        }
        if peer.slots.answers.is_forgotten(transaction) {
            // It may have been granted and detached since: to grant it again would fence what the
            // session has now.
            let text = format!("attach {transaction} of this session comes too late: ask anew");
            return refuse(peer, transaction, Status::Busy, 1, text);
        }
        let open = self.attachments.iter().filter(|a| a.session == session && a.live).count()
            + self.pending.iter().filter(|p| p.session == session).count();
        if open >= ATTACHMENTS_MAX {
            let text = "this session has too many attachments".to_string();
            return refuse(peer, transaction, Status::TooMany, 0, text);
        }
        let Some(export) = self.exports.iter().position(|e| e.name == attach.export) else {
            if let Some(shard) = self.other_shard(attach.export) {
                let text = format!(
                    "export {} is served by shard {shard} of node {}: a session for it begins with \
                     a greeting that names it",
                    attach.export, self.config.node
                );
                return refuse(peer, transaction, Status::WrongShard, 0, text);
            }
            let text = format!("node {} has no export {}", self.config.node, attach.export);
            return refuse(peer, transaction, Status::NotFound, 0, text);
        };
        let read_only = attach.flags & attach_flags::READ_ONLY != 0;
        let e = &self.exports[export];
        if read_only {
            let generation = e.writer.generation;
            return self.grant(peer, transaction, export, generation, true);
        }
        if e.read_only || e.volume.geometry().features.read_only {
            let text = format!("export {} is read-only: attach it read-only", e.name);
            return refuse(peer, transaction, Status::ReadOnly, 0, text);
        }
        if let Some(is_granted) = self.is_stale(peer, export) {
            // Whoever asked here has gone on to another session and was granted it there, or has
            // died: granting it again would fence its present self.
            let resumes = attach.flags & attach_flags::RESUME != 0;
            let status = if resumes && is_granted { Status::Fenced } else { Status::Busy };
            let text = format!("a later session of the same initiator has export {}", e.name);
            return refuse(peer, transaction, status, 0, text);
        }
        if let Some((status, text)) = self.record_refusal(now, export) {
            return refuse(peer, transaction, status, 1, text);
        }
        match self.decide(now, peer, export, attach) {
            Ok(generation) => {
                // Who resumes is known to be the holder, and who says so may take over from anybody.
                let asks = attach.flags & (attach_flags::RESUME | attach_flags::TAKE_OVER) == 0;
                let twin = if asks { Twin::Unasked } else { Twin::Cleared };
                // Nobody is fenced before the grant: it may come to nothing.
                self.pending.push(PendingAttach {
                    peer: index,
                    session,
                    transaction,
                    export,
                    generation,
                    initiator: peer.initiator,
                    instance: peer.instance,
                    session_number: peer.number,
                    name: peer.name.clone(),
                    twin,
                    failed: None,
                });
            }
            Err((status, seconds_left, text)) => {
                refuse(peer, transaction, status, seconds_left, text);
            }
        }
    }

    /// An attach that comes late, in a session that its initiator has left behind: whether a later
    /// one was granted the export, or is still waiting for it.
    fn is_stale(&self, peer: &Peer, export: usize) -> Option<bool> {
        if self.config.canary == TargetCanary::StaleAttach {
            return None;
        }
        let later = |initiator, number| initiator == peer.initiator && number > peer.number;
        if self.exports[export].granted.iter().any(|&(who, number)| later(who, number)) {
            return Some(true);
        }
        let mut waiting = self.pending.iter().filter(|p| p.export == export);
        waiting.any(|p| later(p.initiator, p.session_number)).then_some(false)
    }

    /// While it waited, a later session of the same initiator was granted the export: granting it now
    /// would fence its present self.
    fn was_overtaken(&self, p: &PendingAttach) -> bool {
        let later =
            |&(who, number): &([u8; 16], u64)| who == p.initiator && number > p.session_number;
        let stale_is_granted = self.config.canary == TargetCanary::StaleAttach;
        !stale_is_granted && self.exports[p.export].granted.iter().any(later)
    }

    /// The generation under which this initiator may write, or why not.
    fn decide(
        &self,
        now: Time,
        peer: &Peer,
        export: usize,
        attach: &Attach<'_>,
    ) -> Result<u64, (Status, u32, String)> {
        let e = &self.exports[export];
        let waiting = self.pending.iter().rev().find(|p| p.export == export);
        if attach.flags & attach_flags::RESUME != 0 {
            return self.decide_resume(peer, export, attach, waiting);
        }
        // A grant that waits for the store counts as given.
        let (generation, holder) = match waiting {
            Some(p) => (p.generation, p.initiator),
            None => (e.writer.generation, e.writer.holder),
        };
        let is_twin = |h: &Holder| h.initiator == holder && h.twins.contains(&peer.instance);
        let same = holder == peer.initiator && !e.holder.as_ref().is_some_and(is_twin);
        let next = || generation.checked_add(1).ok_or_else(|| exhausted(&e.name));
        if same || holder == [0; 16] || attach.flags & attach_flags::TAKE_OVER != 0 {
            return next();
        }
        let (name, seconds_left) = match (waiting, &e.holder) {
            // Whoever is about to be granted it is not silent.
            (Some(p), _) => (p.name.as_str(), self.lease().as_secs() as u32 + 1),
            (None, Some(h)) if h.initiator == holder => {
                let left = self.lease().saturating_sub(now.since(h.last_heard));
                if left.is_zero() {
                    return next();
                }
                (h.name.as_str(), left.as_secs() as u32 + 1)
            }
            _ => (e.writer_name().unwrap_or_default(), NEVER),
        };
        let name = if name.is_empty() { "an initiator without a name" } else { name };
        let wait = if seconds_left == NEVER {
            "it attached before this target started, and keeps the export until it comes back"
                .to_string()
        } else {
            format!("its lease has {seconds_left} s left if it stays silent")
        };
        let text = format!("export {} is held by {name}; {wait}", e.name);
        Err((Status::Busy, seconds_left, text))
    }

    /// Whether somebody who was granted the export may go on. Only a durable grant to another fences
    /// it: one that waits may come to nothing, and holds it back until then.
    fn decide_resume(
        &self,
        peer: &Peer,
        export: usize,
        attach: &Attach<'_>,
        waiting: Option<&PendingAttach>,
    ) -> Result<u64, (Status, u32, String)> {
        let e = &self.exports[export];
        let WriterRecord { generation, holder, .. } = e.writer;
        if generation < attach.writer_generation {
            let text = format!("export {} began anew and holds other content", e.name);
            return Err((Status::OtherContent, 0, text));
        }
        // The last writer may come back, also if it had detached and was not told so.
        let same = holder == peer.initiator || holder == [0; 16];
        if generation > attach.writer_generation || !same {
            let text = format!("another initiator took export {} over", e.name);
            return Err((Status::Fenced, 0, text));
        }
        match waiting {
            Some(p) if p.initiator != peer.initiator || p.generation != generation => {
                let text = format!("export {} is about to be granted to {}", e.name, p.name);
                let fences = self.config.canary == TargetCanary::FencedByWaiting;
                Err((if fences { Status::Fenced } else { Status::Busy }, 1, text))
            }
            _ => Ok(generation),
        }
    }

    /// All writers of an export are fenced: their handles mean nothing any more.
    fn fence_writers(&mut self, export: usize) {
        let together = self.config.canary == TargetCanary::FencedTogether;
        for at in 0..self.attachments.len() {
            let attachment = &mut self.attachments[at];
            let is_writer = attachment.export == export && !attachment.read_only;
            if is_writer && attachment.live && !attachment.fenced {
                attachment.fenced = true;
                self.stats.fenced += 1;
                if together {
                    let session = attachment.session;
                    let all = self.attachments.iter_mut().filter(|a| a.session == session);
                    all.for_each(|a| a.fenced = true);
                }
            }
        }
    }

    /// Grants the attaches whose predecessors' requests have all left the store. Returns true if
    /// one was granted or refused.
    pub fn settle_pending(&mut self, now: Time, peers: &mut [Option<Box<Peer>>]) -> bool {
        let mut progress = false;
        let mut at = 0;
        while at < self.pending.len() {
            let export = self.pending[at].export;
            // In the order in which they were asked for: each got the generation after the one before.
            let is_next = self.pending[..at].iter().all(|before| before.export != export);
            let at_once = self.config.canary == TargetCanary::GrantOverRequests;
            let pulse = if is_next { self.look_for_twin(now, at, peers) } else { Pulse::Unknown };
            let is_refused = pulse == Pulse::Alive;
            let waits = pulse == Pulse::Unknown
                || (self.writer_outstanding(export) > 0 && !at_once)
                || !self.settle_record(now, export);
            if waits && !is_refused {
                at += 1;
                continue;
            }
            let mut p = self.pending.remove(at);
            progress = true;
            // Whatever becomes of it: what was held back for it goes on, or is refused.
            self.release = true;
            let Some(peer) = peers.get_mut(p.peer).and_then(|s| s.as_deref_mut()) else { continue };
            if peer.session.local_id() != p.session {
                continue;
            }
            if is_refused {
                self.stats.twins += 1;
                let text = self.twin_refusal(&p);
                let name = &self.exports[export].name;
                self.note(format!(
                    "export {name}: refused a second process with the identity of {}, which holds it and \
                     is alive: two containers or copies of a machine that present one identity?",
                    p.name
                ));
                refuse(peer, p.transaction, Status::Busy, 0, text);
                continue;
            }
            if self.was_overtaken(&p) {
                let text = format!(
                    "a later session of the same initiator has export {}",
                    self.exports[export].name
                );
                refuse(peer, p.transaction, Status::Busy, 0, text);
                continue;
            }
            // The record was put back meanwhile.
            let mut failed = p.failed.take();
            if failed.is_none() {
                let record = WriterRecord::new(p.generation, p.initiator, &p.name);
                match self.change_writer(now, export, record) {
                    Ok(()) => {}
                    Err(ChangeError::Refused(error)) => failed = Some(error),
                    Err(ChangeError::Unresolved(error)) => {
                        // It may be on record after a crash, so it cannot be told no.
                        let name = &self.exports[export].name;
                        self.note(format!(
                            "export {name}: who may write could not be made durable ({error}), nor \
                             put back: nobody writes until it is; it is tried again every second"
                        ));
                        p.failed = Some(error);
                        self.pending.insert(at, p);
                        at += 1;
                        continue;
                    }
                }
            }
            if let Some(error) = failed {
                let text = self.change_refusal(export, error);
                refuse(peer, p.transaction, Status::Io, 0, text);
                continue;
            }
            let e = &mut self.exports[export];
            e.note_grant(p.initiator, p.session_number);
            e.holder = Some(Holder {
                initiator: p.initiator,
                instance: p.instance,
                twins: Vec::new(),
                name: p.name.clone(),
                session: p.session,
                last_heard: now,
            });
            self.fence_writers(p.export);
            self.grant(peer, p.transaction, p.export, p.generation, false);
            self.tell_fenced(&p, peers);
        }
        progress
    }

    /// Fenced attachments of others learn of it; those of the same run know already.
    fn tell_fenced(&mut self, p: &PendingAttach, peers: &mut [Option<Box<Peer>>]) {
        for (at, attachment) in self.attachments.iter_mut().enumerate() {
            let concerned = attachment.export == p.export && attachment.live && attachment.fenced;
            if !concerned {
                continue;
            }
            let peer = peers
                .iter_mut()
                .flatten()
                .find(|peer| peer.session.local_id() == attachment.session);
            if let Some(peer) = peer
                && (peer.initiator, peer.instance) != (p.initiator, p.instance)
            {
                peer.session.send(Item::Event(Event {
                    code: event_code::FENCED,
                    reserved: Default::default(),
                    attachment: at as u32 + 1,
                    generation: attachment.generation,
                    value: p.generation,
                }));
            }
        }
    }

    fn grant(
        &mut self,
        peer: &mut Peer,
        transaction: u32,
        export: usize,
        writer_generation: u64,
        read_only: bool,
    ) {
        self.check_losses(export);
        self.room_changed |= !std::mem::replace(&mut peer.was_attached, true);
        self.next_generation = self.next_generation.wrapping_add(1);
        let attachment = Attachment {
            export,
            session: peer.session.local_id(),
            generation: self.next_generation,
            read_only,
            fenced: false,
            live: true,
            outstanding: 0,
        };
        let free = self.attachments.iter().position(|a| !a.live && a.outstanding == 0);
        let at = match free {
            Some(at) => {
                self.attachments[at] = attachment;
                at
            }
            None => {
                self.attachments.push(attachment);
                self.attachments.len() - 1
            }
        };
        let e = &self.exports[export];
        let geometry = e.volume.geometry();
        let identity = e.identity();
        let mut features = 0;
        let f = geometry.features;
        if read_only || e.read_only || f.read_only {
            features |= feature::READ_ONLY;
        }
        if f.discard {
            features |= feature::DISCARD;
        }
        if f.write_zeroes {
            features |= feature::WRITE_ZEROES;
        }
        if f.block_status {
            features |= feature::BLOCK_STATUS;
        }
        peer.slots.answers.add(Answer::Granted(Attached {
            transaction,
            attachment: at as u32 + 1,
            generation: self.next_generation,
            block_bytes: geometry.block_bytes,
            preferred_bytes: geometry.preferred_bytes,
            io_bytes_max: geometry.io_bytes_max.min(REQUEST_BYTES_MAX as u32),
            bytes: geometry.bytes,
            identity: identity.identity,
            incarnation: identity.incarnation,
            writer_generation,
            verifier: e.verifier,
            features,
        }));
        peer.session.send(Item::AttachAnswer(transaction));
    }

    /// An orderly end: the export is free for everybody.
    pub fn detach(&mut self, peer: &Peer, detach: &Detach) {
        let at = (detach.attachment as usize).wrapping_sub(1);
        let Some(attachment) = self.attachments.get_mut(at) else { return };
        let ours = attachment.session == peer.session.local_id()
            && attachment.generation == detach.generation
            && attachment.live;
        if !ours {
            return;
        }
        attachment.live = false;
        if attachment.read_only || attachment.fenced {
            return;
        }
        let e = &mut self.exports[attachment.export];
        let record = e.writer.released();
        // If this cannot be stored the export stays with its last writer, who may come back or be
        // taken over: safe, if inconvenient.
        // Whichever of the two is found after a crash lets it come back.
        if e.record == RecordState::Settled && e.volume.store_writer(record).is_ok() {
            e.writer = record;
            e.holder = None;
        }
    }

    /// A session is over; what it had open is not used any more, but its writer keeps the export
    /// until its lease ends.
    pub fn end_session(&mut self, peer: &Peer) {
        let session = peer.session.local_id();
        for attachment in self.attachments.iter_mut().filter(|a| a.session == session) {
            attachment.live = false;
        }
        for export in &mut self.exports {
            if let Some(holder) = export.holder.as_mut().filter(|h| h.session == session) {
                holder.last_heard = peer.session.last_heard();
            }
        }
        let before = self.pending.len();
        self.pending.retain(|p| p.session != session);
        self.release |= self.pending.len() < before;
    }

    /// Keeps the leases of living sessions fresh.
    pub fn heard(&mut self, peer: &Peer) {
        let session = peer.session.local_id();
        for export in &mut self.exports {
            if let Some(holder) = export.holder.as_mut().filter(|h| h.session == session) {
                holder.last_heard = peer.session.last_heard();
            }
        }
    }
}

/// Generations are never used twice.
fn exhausted(export: &str) -> (Status, u32, String) {
    let text = format!(
        "the writer generations of export {export} are at their end: copy its content to a new image, \
         whose record begins anew"
    );
    (Status::Io, 0, text)
}

fn refuse(peer: &mut Peer, transaction: u32, status: Status, seconds_left: u32, text: String) {
    peer.slots.answers.add(Answer::Refused {
        transaction,
        status: status as u16,
        seconds_left,
        text,
    });
    peer.session.send(Item::AttachAnswer(transaction));
}
