//! What is open, and for whom (`docs/protocol.md`, "Attachments"; rule 7).

use std::collections::BTreeSet;
use std::ops::{Index, IndexMut};

use thinwire_buffer::Time;

use crate::exports::{DoorCanary, Exports};
use crate::holder::Grant;
use crate::record::Closing;
use crate::spread::Untold;
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
    /// A writer's.
    pub grant: Grant,
    /// When its session had been heard last, as the owner on another shard was told last.
    pub told_heard: Option<Time>,
    /// I/Os in the volume.
    pub outstanding: usize,
}

/// All passes, by place, and those that live by whose and for what they are: hundreds of sessions with
/// hundreds of exports are looked at for one of either.
#[derive(Default)]
pub(crate) struct Passes {
    places: Vec<PassState>,
    /// Neither live nor with an I/O in a volume: to be used again, the last one first.
    free: Vec<usize>,
    /// Of a session, the places of its live passes.
    by_session: BTreeSet<(u64, usize)>,
    /// Of an export, the places of its live passes.
    by_export: BTreeSet<(usize, usize)>,
}

impl Passes {
    /// Memory of one, in bytes: a leaf of a tree is at least half full, and the nodes above take less than
    /// it does.
    pub const PASS_BYTES: usize = size_of::<PassState>() + size_of::<usize>() + 2 * 4 * 16;

    /// Takes a pass in; it has the place returned until it has ended and its last I/O has, too.
    fn add(&mut self, pass: PassState) -> usize {
        let (session, export) = (pass.session, pass.export);
        let at = match self.free.pop() {
            Some(at) => {
                self.places[at] = pass;
                at
            }
            None => {
                self.places.push(pass);
                self.places.len() - 1
            }
        };
        self.by_session.insert((session, at));
        self.by_export.insert((export, at));
        at
    }

    /// A live pass ends.
    pub fn end(&mut self, at: usize) {
        let pass = &mut self.places[at];
        pass.live = false;
        self.by_session.remove(&(pass.session, at));
        self.by_export.remove(&(pass.export, at));
        if pass.outstanding == 0 {
            self.free.push(at);
        }
    }

    /// All live passes of a session end.
    fn end_session(&mut self, session: u64) {
        while let Some(&(_, at)) =
            self.by_session.range((session, 0)..=(session, usize::MAX)).next()
        {
            self.end(at);
        }
    }

    /// An I/O under a pass has left the volume.
    #[inline]
    pub fn on_left(&mut self, at: usize) -> &PassState {
        let pass = &mut self.places[at];
        pass.outstanding -= 1;
        if !pass.live && pass.outstanding == 0 {
            self.free.push(at);
        }
        pass
    }

    fn get(&self, at: usize) -> Option<&PassState> {
        self.places.get(at)
    }

    /// Places of the live passes of a session, lowest first.
    pub fn of_session(&self, session: u64) -> impl Iterator<Item = usize> + '_ {
        self.by_session.range((session, 0)..=(session, usize::MAX)).map(|&(_, at)| at)
    }

    /// Places of the live passes for an export, lowest first.
    pub fn of_export(&self, export: usize) -> impl Iterator<Item = usize> + '_ {
        self.by_export.range((export, 0)..=(export, usize::MAX)).map(|&(_, at)| at)
    }
}

impl Index<usize> for Passes {
    type Output = PassState;

    #[inline]
    fn index(&self, at: usize) -> &PassState {
        &self.places[at]
    }
}

impl IndexMut<usize> for Passes {
    #[inline]
    fn index_mut(&mut self, at: usize) -> &mut PassState {
        &mut self.places[at]
    }
}

impl Exports {
    /// Opens an export for reading, as a session's transaction asks. `None` if that must wait:
    /// [`Users::on_granted`] tells, and until then [`Exports::is_waiting`] says so.
    pub fn attach_read(
        &mut self,
        session: u64,
        transaction: u32,
        export: usize,
    ) -> Option<Granted> {
        let granted = self.open_read(session, export);
        if self.mute.contains(export) {
            // Others may have been told a later verifier.
            self.untold.push(Untold { session, transaction, export, granted });
            return None;
        }
        Some(granted)
    }

    /// Opens an export for reading. It is never fenced. At a branch of one that several shards have the verifier
    /// may be older than what sessions of others were told: [`Exports::attach_read`] waits for that.
    pub fn open_read(&mut self, session: u64, export: usize) -> Granted {
        self.open(session, export, self.exports[export].writer.generation, None)
    }

    /// With a grant to write, else to read.
    pub(crate) fn open(
        &mut self,
        session: u64,
        export: usize,
        writer_generation: u64,
        grant: Option<Grant>,
    ) -> Granted {
        self.check_events(export);
        self.pass_generation = self.pass_generation.wrapping_add(1);
        let (generation, read_only) = (self.pass_generation, grant.is_none());
        let pass = PassState {
            export,
            session,
            generation,
            read_only,
            fenced: false,
            live: true,
            grant: grant.unwrap_or_default(),
            told_heard: None,
            outstanding: 0,
        };
        let at = self.passes.add(pass);
        let e = &self.exports[export];
        let mut geometry = e.volume.geometry();
        geometry.features.read_only |= read_only || e.read_only;
        Granted {
            pass: Pass { number: at as u32 + 1, generation },
            geometry,
            identity: e.volume.identity(),
            writer_generation,
            idle_generations: e.writer.idle,
            is_held: read_only && e.writer_name().is_some(),
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

    /// An orderly end: the export is free for everybody, once the last member of its run has ended so. True if
    /// that is said at once; else [`Users::on_closed`] tells `transaction` when that is on record.
    pub fn close(&mut self, session: u64, pass: Pass, transaction: u32) -> bool {
        let Some(at) = self.find_pass(session, pass) else {
            // It may ask twice.
            return !self.closings.iter().any(|c| c.session == session && c.pass == pass);
        };
        self.passes.end(at);
        let state = &self.passes[at];
        if state.read_only || state.fenced {
            return true;
        }
        let (export, grant) = (state.export, state.grant.number);
        self.close_at_owner(export, session, transaction, grant);
        let (shard, is_storing) = (None, false);
        let closing = Closing { session, shard, pass, transaction, export, grant, is_storing };
        self.closings.push(closing);
        // It is begun in this turn.
        self.started = true;
        false
    }

    /// A session is over; what it had open is not used any more, but its writer keeps the export
    /// until its lease ends.
    pub fn end_session(&mut self, session: u64, last_heard: Time) {
        self.tell_owners_of_end(session, last_heard);
        self.untold.retain(|opened| opened.session != session);
        self.passes.end_session(session);
        self.heard(session, last_heard);
        self.withdraw_claims(session);
    }

    pub(crate) fn withdraw_claims(&mut self, session: u64) {
        let before = self.claims.len();
        // What is being recorded is granted all the same, to one that has gone since.
        self.claims.retain(|claim| {
            let stays = claim.user.session != session || claim.is_recording;
            self.exports[claim.export].claims -= usize::from(!stays);
            stays
        });
        self.release |= self.claims.len() < before;
    }

    /// Keeps the leases of a living session fresh.
    pub fn heard(&mut self, session: u64, last_heard: Time) {
        for &(_, export) in self.held.range((session, 0)..=(session, usize::MAX)) {
            let holder = self.exports[export].holder.as_mut().expect("it is held");
            let its = holder.members.iter_mut().filter(|member| member.session == session);
            its.for_each(|member| member.last_heard = last_heard);
        }
        self.tell_owners_of_life(session, last_heard);
    }

    /// All writers of an export are fenced, or one member's passes: they mean nothing any more.
    pub(crate) fn fence_writers(&mut self, export: usize, member: Option<u8>) {
        let first = self.config.canary == DoorCanary::FenceOfFirstMember;
        let member = if first { member.or(Some(0)) } else { member };
        let together = self.config.canary == DoorCanary::FencedTogether;
        let Passes { places, by_session, by_export, .. } = &mut self.passes;
        for &(_, at) in by_export.range((export, 0)..=(export, usize::MAX)) {
            let pass = &mut places[at];
            let is_meant = member.is_none_or(|member| member == pass.grant.member);
            if pass.read_only || pass.fenced || !is_meant {
                continue;
            }
            pass.fenced = true;
            self.stats.fenced += 1;
            if together {
                let session = pass.session;
                let all = by_session.range((session, 0)..=(session, usize::MAX));
                all.for_each(|&(_, at)| places[at].fenced = true);
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
        for at in self.passes.of_export(export) {
            let state = &self.passes[at];
            if state.fenced {
                let pass = Pass { number: at as u32 + 1, generation: state.generation };
                users.on_fenced(state.session, pass, by, writer_generation);
            }
        }
    }

    /// Passes and claims of a session.
    pub fn open_count(&self, session: u64) -> usize {
        self.passes.of_session(session).count()
            + self.claims.iter().filter(|claim| claim.user.session == session).count()
            + self.asked.iter().filter(|claim| claim.session == session).count()
    }

    /// Names of the exports that a session has open.
    pub fn names_of(&self, session: u64) -> impl Iterator<Item = &str> {
        let open = self.passes.of_session(session);
        open.map(|at| self.exports[self.passes[at].export].name.as_str())
    }

    /// Names of the exports that a session has open, or waits for.
    pub fn names_wanted(&self, session: u64) -> impl Iterator<Item = &str> {
        let claims = self.claims.iter().map(|claim| (claim.user.session, claim.export));
        let asked = self.asked.iter().map(|claim| (claim.session, claim.export));
        let waits = claims.chain(asked).filter(move |&(of, _)| of == session);
        let names = waits.map(|(_, export)| self.exports[export].name.as_str());
        self.names_of(session).chain(names)
    }

    /// Sessions that have an export open, or wait for one; some of them several times.
    pub fn sessions(&self) -> impl Iterator<Item = u64> {
        let open = self.passes.by_session.iter().map(|&(session, _)| session);
        let claims = self.claims.iter().map(|claim| claim.user.session);
        open.chain(claims).chain(self.asked.iter().map(|claim| claim.session))
    }
}
