//! Exports of which the volume says that somebody else has been granted what it is made of: another gateway has taken the
//! place of this node (`docs/design.md`, "The record of a tree"; rule 18 of volumes).
//!
//! From the moment on in which that is known nothing is given to the volume any more, nor is it polled or told the time:
//! what it keeps for itself stays as it is, since another may have written there. Nobody is answered, either: an error
//! would be believed, and who uses the export need only ask elsewhere. The host ends the sessions of those, and then takes
//! the volume out ([`Exports::take_fenced`]), to be let go of at once.

use thinwire_volume::stores::MemoryStore;
use thinwire_volume::{Completion, ErrorKind, Identity, IoError, Op, Volume};

use crate::exports::{DoorCanary, Export, Exports, Presence};
use crate::ios::{IoTicket, PendingIo};
use crate::opening::ExportOpening;
use crate::record::RecordState;
use crate::spread::{Role, Word};

impl Exports {
    /// Somebody else has been granted what an export is made of; `what` is that, for people.
    #[cold]
    pub(crate) fn on_fence(&mut self, export: usize, what: &str) {
        let e = &mut self.exports[export];
        if self.config.canary == DoorCanary::FencedTold {
            return;
        }
        if e.presence.is_leaving() {
            return self.oust(export, what);
        }
        if e.presence != Presence::There {
            return;
        }
        e.presence = Presence::Fenced;
        let name = &e.name;
        let text = format!(
            "export {name}: {what} was granted to another writer: another target has taken the place of this one. Nothing \
             of this export is written any more, and nobody who uses it is answered here, so that they look for that one. \
             It is served here again when this target is started anew, once the other one has ended"
        );
        match e.role {
            Role::Plain => {}
            Role::Owner(_) => self.tell_branches(export, || Word::Silent),
            Role::Branch(_) => self.tell_owner(export, Word::Silent),
        }
        self.note(text);
        self.stop(export);
    }

    /// One that is being taken away ends at once: it is not synced, nor brought in order.
    fn oust(&mut self, export: usize, what: &str) {
        self.leaving -= 1;
        let e = &mut self.exports[export];
        e.presence = Presence::Ousted;
        let name = &e.name;
        let text = format!(
            "export {name}: {what} was granted to another writer while this export was being taken away: nothing of it \
             is written any more"
        );
        self.note(text);
        self.stop(export);
    }

    fn stop(&mut self, export: usize) {
        self.to_poll.remove(export);
        self.timed.remove(export);
        self.fences.push_back(export);
        // Whatever waits for something of it waits no more.
        self.started = true;
    }

    /// The same, of one that an operation has failed with, whoever asked for that.
    #[cold]
    pub(crate) fn on_fenced_io(&mut self, export: usize, error: &IoError) {
        if error.kind == ErrorKind::Fenced {
            self.on_fence(export, &format!("what it is made of ({error})"));
        }
    }

    /// Nothing goes to its volume any more.
    #[inline]
    pub(crate) fn is_fenced(&self, export: usize) -> bool {
        matches!(self.exports[export].presence, Presence::Fenced | Presence::Ousted)
    }

    /// It is fenced, and was being taken away then ([`Exports::leave`]): nobody has it open any more, and another of its name may be there.
    pub fn is_ousted(&self, export: usize) -> bool {
        self.exports[export].presence == Presence::Ousted
    }

    /// [`Exports::next_fenced`] has one.
    #[inline]
    pub fn has_fenced(&self) -> bool {
        !self.fences.is_empty()
    }

    /// The next export of which somebody else has what it is made of, and its name. Whoever has it open, or waits for it, is
    /// to be told nothing more, and its session ended; then [`Exports::take_fenced`] has its volume.
    pub fn next_fenced(&self) -> Option<(usize, &str)> {
        self.fences.front().map(|&export| (export, self.exports[export].name.as_str()))
    }

    /// Takes the volume of that export out, with whatever is under way in it: what that was for is told to `deliver`, as
    /// [`Exports::poll`] does, and has failed with [`ErrorKind::Fenced`], of which nobody else is to be told.
    ///
    /// # Panics
    /// If there is no such export.
    pub fn take_fenced(
        &mut self,
        mut deliver: impl FnMut(IoTicket, Op, u64, &mut Completion),
    ) -> Box<dyn Volume> {
        let export = self.fences.pop_front().expect("one is fenced");
        self.give_up_ios(export, &mut deliver);
        let open: Vec<usize> = self.passes.of_export(export).collect();
        open.into_iter().for_each(|at| self.passes.end(at));
        self.claims.retain(|claim| claim.export != export);
        self.closings.retain(|closing| closing.export != export);
        self.asked.retain(|asked| asked.export != export);
        self.untold.retain(|opened| opened.export != export);
        for marks in [&mut self.unresolved, &mut self.to_tell, &mut self.mute] {
            marks.remove(export);
        }
        let e = &mut self.exports[export];
        (e.claims, e.changed, e.record) = (0, None, RecordState::Settled);
        e.flush_running = false;
        e.flush_waiting.clear();
        e.flush_riders.clear();
        self.release = true;
        let is_plain = self.exports[export].role.is_plain();
        let (_, volume) = self.vacate(export);
        if !is_plain {
            // Letters about it may be on their way, and name it by its number.
            self.exports[export].presence = Presence::Fenced;
        }
        volume
    }

    /// All I/Os of an export end, whatever their volume does.
    fn give_up_ios(
        &mut self,
        export: usize,
        deliver: &mut impl FnMut(IoTicket, Op, u64, &mut Completion),
    ) {
        self.ended.retain(|(of, _)| *of != export);
        let role = &mut self.exports[export].role;
        if let Some(ties) = role.ties_mut() {
            ties.give_up();
        }
        if let Some(branch) = role.branch() {
            self.syncs_elsewhere -= std::mem::take(&mut branch.syncs);
        }
        for at in 0..self.ios.len() {
            let is_its = |io: &PendingIo| self.passes[io.pass].export == export;
            if self.ios[at].as_ref().is_some_and(is_its) {
                let io = self.take_io(at as u64);
                let mut completion = Completion::new(at as u64, Err(io.fenced()));
                self.deliver(export, &io, &mut completion, deliver);
            }
        }
    }

    /// Takes the volume of an export out, and forgets all but its place. With it comes back which export of its name it was.
    pub(crate) fn vacate(&mut self, export: usize) -> (ExportOpening, Box<dyn Volume>) {
        let opening = self.opening_of(export);
        let nothing = MemoryStore::new(512, 512, Identity::default(), &self.pool);
        let e = &mut self.exports[export];
        e.presence = Presence::Gone;
        let volume = std::mem::replace(&mut e.volume, Box::new(nothing));
        e.events = e.volume.events();
        for member in e.holder.take().into_iter().flat_map(|holder| holder.members) {
            self.held.remove(&(member.session, export));
        }
        let Export { name, granted, .. } = &mut self.exports[export];
        let (name, granted) = (std::mem::take(name), std::mem::take(granted));
        self.keep_grants(&name, granted);
        for marks in [&mut self.to_poll, &mut self.unresolved, &mut self.to_tell] {
            marks.remove(export);
        }
        self.timed.remove(export);
        (opening, volume)
    }
}
