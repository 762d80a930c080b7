//! Which paths are there, and what they carry: probes, their answers, and the timers that fire when
//! nothing is heard (`docs/protocol.md`, "Paths and probing").

use std::time::Duration;

use thinwire_buffer::{FrameSizes, Room};
use thinwire_wire::{Header, Probe, ProbeReply};

use super::{Notice, PATHS_MAX, REPLIES_MAX, Reply, Role, Session};
use crate::path::PathState;
use crate::probe::{JUST, JUST_FIRST, ProbeEvent};
use crate::{DropReason, Item, Received, Time, Unsealed};

/// Who is called so much later than it was asked for has stood still: no scheduler of a machine that
/// has time for us takes so long.
const STALL: Duration = Duration::from_millis(20);
/// After that the timers rest for so long: enough to take in whatever sockets can hold.
pub(super) const CATCH_UP: Duration = Duration::from_millis(2);

impl Session {
    /// `frame` is a PROBE of this session; the answer goes out with the next transmit. A target
    /// learns of a new path by it, which carries nothing before it has answered a probe, too. `sizes`
    /// are the link's.
    pub fn on_probe(
        &mut self,
        now: Time,
        link: usize,
        frame: &Unsealed<'_>,
        probe: &Probe,
        sizes: FrameSizes,
    ) -> Result<(), DropReason> {
        let (header, from) = (frame.header(), frame.from());
        if header.epoch != self.config.epoch {
            return Err(DropReason::Epoch);
        }
        let room = Room { frames: probe.room_frames.max(1), bytes: probe.room_bytes.max(2048) };
        let at = match self.path_at(header.path) {
            Some(at) => at,
            None if self.config.role == Role::Target && self.paths.len() < PATHS_MAX => {
                // What could not be taken on any path opens none.
                Received::default().insert(header.packet_number).news()?;
                let state = PathState::Candidate;
                self.insert_path(now, header.path, link, from, state, room, sizes);
                self.paths.len() - 1
            }
            None => return Err(DropReason::Path),
        };
        if self.paths[at].link != link || self.paths[at].addr != from {
            return Err(DropReason::Path);
        }
        self.take_number(now, at, frame, false)?;
        let path = &mut self.paths[at];
        path.last_heard = now;
        path.peer_room = room;
        self.last_heard = now;
        if path.state != PathState::Active {
            self.heard_on_idle(now, at, header);
        }
        if self.replies.len() >= REPLIES_MAX {
            return Err(DropReason::Overload);
        }
        self.replies.push(Reply { at, token: probe.token });
        Ok(())
    }

    /// A frame came over a path that carries none. Who sent it may well hear us (again): find out. But
    /// a path that was never proved may be a forger's.
    #[cold]
    pub(super) fn heard_on_idle(&mut self, now: Time, at: usize, header: &Header) {
        if self.config.role == Role::Target {
            let path = &mut self.paths[at];
            path.earn(header.length);
            let first = path.state == PathState::Candidate;
            path.prober.ask_again(now, if first { JUST_FIRST } else { JUST });
        }
    }

    /// `frame` is a PROBE_REPLY, to one of our probes.
    pub fn on_probe_reply(
        &mut self,
        now: Time,
        link: usize,
        frame: &Unsealed<'_>,
        reply: &ProbeReply,
    ) -> Result<(), DropReason> {
        let at = self.path_of(frame.header(), link, frame.from())?;
        self.take_number(now, at, frame, false)?;
        let path = &mut self.paths[at];
        let (size, rtt) =
            path.prober.on_reply(now, reply.token, path.sizes.limit).ok_or(DropReason::Unasked)?;
        path.last_heard = now;
        path.peer_room =
            Room { frames: reply.room_frames.max(1), bytes: reply.room_bytes.max(2048) };
        if size > path.sizes.used {
            path.sizes.used = size;
            path.window.restart(size);
        }
        self.answered = self.answered.max(now - rtt);
        let id = path.id;
        let limit = path.sizes.limit;
        let used = path.sizes.used;
        let settled_low = size > 0 && path.prober.size_settled() && used < limit;
        if path.state != PathState::Active {
            path.state = PathState::Active;
            path.pto_count = 0;
            path.rtt.restart(now, rtt);
            path.window.restart(path.sizes.used);
            self.notice(Notice::PathUp(id));
        }
        self.last_heard = now;
        if settled_low {
            self.notice(Notice::FrameSize { path: id, used, limit });
        }
        Ok(())
    }

    /// Asks on every path whether the peer is there and still knows the session: for an owner that has
    /// reason to doubt it. [`Session::last_heard`] tells of the answer.
    pub fn ask(&mut self, now: Time) {
        for path in &mut self.paths {
            path.prober.ask_again(now, JUST);
        }
    }

    /// Whether the peer has answered or acknowledged something that was sent at `then` or later: a sign
    /// of life that no frame from before can be.
    pub fn answered_since(&self, then: Time) -> bool {
        self.answered >= then && self.answered > Time::ZERO
    }

    /// Lets time pass: timers that are due fire.
    pub fn on_time(&mut self, now: Time) {
        self.look_at_own_time(now);
        if let Some(keys) = &mut self.keys {
            keys.on_time(now);
        }
        if self.timers_rest(now) {
            return;
        }
        self.timers_owed = false;
        for at in 0..self.paths.len() {
            self.path_on_time(now, at);
        }
    }

    /// Notices that this machine has stood still: what the peer has answered meanwhile lies in its
    /// queues, and comes before the timers that have expired.
    #[inline]
    pub(super) fn look_at_own_time(&mut self, now: Time) {
        if now.since(self.planned.get()) > STALL {
            self.planned.set(now);
            // Whoever is always late must get to its timers all the same.
            if !std::mem::replace(&mut self.timers_owed, true) {
                self.resumed_at = now;
            }
        }
    }

    fn timers_rest(&self, now: Time) -> bool {
        now < self.resumed_at + CATCH_UP && self.resumed_at > Time::ZERO
    }

    fn path_on_time(&mut self, now: Time, at: usize) {
        let path = &mut self.paths[at];
        let keep_alive = self.config.role == Role::Initiator;
        match path.prober.on_time(now, path.state, path.rtt.smoothed, keep_alive, path.sizes) {
            ProbeEvent::None => {}
            ProbeEvent::Silent => {
                self.path_dead(now, at);
                return;
            }
            ProbeEvent::SizeSettled => {
                let (path, used, limit) = (path.id, path.sizes.used, path.sizes.limit);
                self.notice(Notice::FrameSize { path, used, limit });
            }
        }
        let path = &mut self.paths[at];
        if path.sent.loss_at.is_some_and(|due| due <= now) {
            self.detect_loss(now, at);
        } else if path.pto_at().is_some_and(|due| due <= now) {
            self.on_probe_timeout(now, at);
        }
    }

    fn on_probe_timeout(&mut self, now: Time, at: usize) {
        self.stats.probe_timeouts += 1;
        let others = self
            .paths
            .iter()
            .enumerate()
            .any(|(other, p)| other != at && p.state == PathState::Active && p.pto_count < 2);
        let path = &mut self.paths[at];
        path.pto_count += 1;
        path.pto_frames = 2;
        // The timer runs from here, also if nothing is wanted any more of what is in flight.
        path.sent.last_eliciting = now;
        // Of a path that keeps as much as it may the oldest frames make room for the two.
        let outcome = path.make_room(2, |item| self.queue.push_lost(item));
        self.stats.frames_lost += u64::from(outcome.frames);
        if outcome.frames == 0 {
            path.sent.oldest(2, |item| self.queue.push_lost(item));
        }
        self.queue.push_front(Item::Ping);
        if path.sent.only_large_in_flight(path.sizes.base) {
            path.lose_large(now);
        }
        let silence = if others { 30 } else { 300 };
        if path.pto_count >= 3 && now.since(path.last_heard) > Duration::from_millis(silence) {
            self.path_dead(now, at);
        } else {
            if path.pto_count == 2 {
                path.prober.ask_now(now);
            }
            self.check_black_hole(now, at);
        }
    }

    fn path_dead(&mut self, now: Time, at: usize) {
        let path = &mut self.paths[at];
        path.state = PathState::Dead;
        path.pto_count = 0;
        path.pto_frames = 0;
        path.prober.ask_now(now);
        let outcome = path.sent.lose_all(|item| self.queue.push_lost(item));
        path.frames_lost += u64::from(outcome.frames);
        self.stats.frames_lost += u64::from(outcome.frames);
        let id = path.id;
        self.notice(Notice::PathDown(id));
    }
}
