//! What is open, and for whom (`docs/protocol.md`, "Attachments"; rule 7).

use thinwire_buffer::Time;

use crate::exports::{DoorCanary, Exports};
use crate::record::Closing;
use crate::users::{Granted, InitiatorRun, Pass, Users};

/// One export, opened by one user.
#[derive(Clone, Debug)]
pub(crate) struct PassState {
    pub export: usize,
    pub session: u64,
    pub generation: u32,
    pub read_only: bool,
    pub fenced: bool,
    pub live: bool,
    /// I/Os in the volume.
    pub outstanding: usize,
}

impl Exports {
    /// Opens an export for reading. It is never fenced.
    pub fn open_read(&mut self, session: u64, export: usize) -> Granted {
        self.open(session, export, self.exports[export].writer.generation, true)
    }

    pub(crate) fn open(
        &mut self,
        session: u64,
        export: usize,
        writer_generation: u64,
        read_only: bool,
    ) -> Granted {
        self.check_events(export);
        self.pass_generation = self.pass_generation.wrapping_add(1);
        let generation = self.pass_generation;
        let pass = PassState {
            export,
            session,
            generation,
            read_only,
            fenced: false,
            live: true,
            outstanding: 0,
        };
        let free = self.passes.iter().position(|p| !p.live && p.outstanding == 0);
        let at = free.unwrap_or(self.passes.len());
        match self.passes.get_mut(at) {
            Some(place) => *place = pass,
            None => self.passes.push(pass),
        }
        let e = &self.exports[export];
        let mut geometry = e.volume.geometry();
        geometry.features.read_only |= read_only || e.read_only;
        Granted {
            pass: Pass { number: at as u32 + 1, generation },
            geometry,
            identity: e.volume.identity(),
            writer_generation,
            verifier: e.verifier,
        }
    }

    /// The place of a live pass of this user.
    #[inline]
    pub(crate) fn find_pass(&self, session: u64, pass: Pass) -> Option<usize> {
        let at = (pass.number as usize).wrapping_sub(1);
        let state = self.passes.get(at)?;
        (state.session == session && state.generation == pass.generation && state.live)
            .then_some(at)
    }

    /// An orderly end: the export is free for everybody. True if it is now; else
    /// [`Users::on_closed`] tells `transaction` when that is on record.
    pub fn close(&mut self, session: u64, pass: Pass, transaction: u32) -> bool {
        let Some(at) = self.find_pass(session, pass) else {
            // It may ask twice.
            return !self.closings.iter().any(|c| c.session == session && c.pass == pass);
        };
        let state = &mut self.passes[at];
        state.live = false;
        if state.read_only || state.fenced {
            return true;
        }
        let export = state.export;
        let generation = self.exports[export].writer.generation;
        let is_storing = false;
        let closing = Closing { session, pass, transaction, export, generation, is_storing };
        self.closings.push(closing);
        // It is begun in this turn.
        self.started = true;
        false
    }

    /// A session is over; what it had open is not used any more, but its writer keeps the export
    /// until its lease ends.
    pub fn end_session(&mut self, session: u64, last_heard: Time) {
        for pass in self.passes.iter_mut().filter(|p| p.session == session) {
            pass.live = false;
        }
        self.heard(session, last_heard);
        let before = self.claims.len();
        // What is being recorded is granted all the same, to one that has gone since.
        self.claims.retain(|claim| claim.user.session != session || claim.is_recording);
        self.release |= self.claims.len() < before;
    }

    /// Keeps the leases of a living session fresh.
    pub fn heard(&mut self, session: u64, last_heard: Time) {
        for export in &mut self.exports {
            if let Some(holder) = export.holder.as_mut().filter(|h| h.session == session) {
                holder.last_heard = last_heard;
            }
        }
    }

    /// All writers of an export are fenced: their passes mean nothing any more.
    pub(crate) fn fence_writers(&mut self, export: usize) {
        let together = self.config.canary == DoorCanary::FencedTogether;
        for at in 0..self.passes.len() {
            let pass = &mut self.passes[at];
            let is_writer = pass.export == export && !pass.read_only;
            if is_writer && pass.live && !pass.fenced {
                pass.fenced = true;
                self.stats.fenced += 1;
                if together {
                    let session = pass.session;
                    let all = self.passes.iter_mut().filter(|p| p.session == session);
                    all.for_each(|p| p.fenced = true);
                }
            }
        }
    }

    /// Those who are fenced learn of it.
    pub(crate) fn tell_fenced(
        &self,
        export: usize,
        by: InitiatorRun,
        writer_generation: u64,
        users: &mut dyn Users,
    ) {
        for (at, state) in self.passes.iter().enumerate() {
            if state.export == export && state.live && state.fenced {
                let pass = Pass { number: at as u32 + 1, generation: state.generation };
                users.on_fenced(state.session, pass, by, writer_generation);
            }
        }
    }

    /// Passes and claims of a session.
    pub fn open_count(&self, session: u64) -> usize {
        self.passes.iter().filter(|p| p.session == session && p.live).count()
            + self.claims.iter().filter(|claim| claim.user.session == session).count()
    }

    /// Names of the exports that a session has open.
    pub fn names_of(&self, session: u64) -> impl Iterator<Item = &str> {
        let live = self.passes.iter().filter(move |p| p.live && p.session == session);
        live.map(|p| self.exports[p.export].name.as_str())
    }

    /// Sessions that have an export open, or wait for one; some of them several times.
    pub fn sessions(&self) -> impl Iterator<Item = u64> {
        let open = self.passes.iter().filter(|p| p.live).map(|p| p.session);
        open.chain(self.claims.iter().map(|claim| claim.user.session))
    }
}
