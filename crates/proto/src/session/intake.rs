//! What an arriving frame of the session brings: packet number, acknowledgements, credits, and what
//! they say about what was lost (`docs/protocol.md`, "Acknowledgement and loss").

use std::time::Duration;

use thinwire_buffer::{Pool, Room};
use thinwire_wire::{AckRanges, Feedback, FrameError, Kind, Message, flags};

use super::{Notice, PATHS_MAX, Role, Session};
use crate::keys::late;
use crate::path::PathState;
use crate::received::Arrival;
use crate::recovery::AckOutcome;
use crate::{Content, DropReason, Sealed, Time, Unsealed};

/// Losses of large frames in a row, while small ones pass, that make a black hole (rule 11). One
/// burst that overflows a buffer is one loss, however many frames it takes.
const BLACK_HOLE_LOSSES: u32 = 4;
/// And they spread over at least this long.
const BLACK_HOLE_TIME: Duration = Duration::from_millis(30);

impl Session {
    /// Its frames are sealed with keys: they go through [`Session::open`]. Others go through
    /// [`Sealed::unseal`], by themselves, since what passes a value on costs as much as it is large.
    #[inline]
    pub fn has_keys(&self) -> bool {
        self.keys.is_some()
    }

    /// The third stage of the gate, and the fourth, for a frame that names this session, which has keys. A
    /// number that came before is not opened again, and nothing changes by a frame that is not what the peer
    /// sealed. Received frames that must be copied go to buffers of `pool`, counted in `copied_bytes`.
    #[inline(never)]
    pub fn open<'a>(
        &mut self,
        now: Time,
        link: usize,
        sealed: Sealed<'a>,
        pool: &Pool,
        copied_bytes: &mut u64,
    ) -> Result<Unsealed<'a>, DropReason> {
        let Some(keys) = &mut self.keys else {
            return Err(DropReason::Frame(FrameError::Suite));
        };
        keys.on_time(now);
        let keys = self.keys.as_ref().expect("just looked");
        let header = sealed.header();
        // A target learns of a new path by its first probe, which is opened to be told from a forgery.
        let may_open = self.config.role == Role::Target && self.paths.len() < PATHS_MAX;
        let is_known =
            header.kind != Kind::Probe || !may_open || self.path_at(header.path).is_some();
        if is_known || header.epoch != self.config.epoch {
            let at = self.path_of(header, link, sealed.from())?;
            if let Err(why) = self.paths[at].received.look(header.packet_number) {
                self.config.canary.of_refused(why)?;
            }
        }
        let path = header.path;
        let (frame, which) = match sealed.unseal_with(keys, pool, copied_bytes) {
            Ok(opened) => opened,
            Err(why) => {
                self.refused_unopened(now, path);
                return Err(DropReason::Frame(why));
            }
        };
        let paths = &self.paths;
        let keys = self.keys.as_mut().expect("just looked");
        keys.on_opened(now, which, || late(paths));
        Ok(frame)
    }

    /// Takes in the header of a SESSION frame of this session: epoch, path, packet number,
    /// acknowledgements, credits. On `Ok` the caller acts on all messages of the frame, in order; on
    /// `Err` on none of them.
    pub fn accept(
        &mut self,
        now: Time,
        link: usize,
        frame: &Unsealed<'_>,
        content: &mut dyn Content,
    ) -> Result<(), DropReason> {
        let (header, feedback) = (frame.header(), frame.feedback());
        let at = self.path_of(header, link, frame.from())?;
        self.look_at_own_time(now);
        self.take_number(now, at, frame, frame.is_eliciting())?;
        let path = &mut self.paths[at];
        path.last_heard = now;
        if path.state != PathState::Active {
            self.heard_on_idle(now, at, header);
        }
        self.last_heard = now;
        self.stats.frames_received += 1;
        if feedback.flags & flags::CREDIT != 0 {
            self.take_grant(feedback);
        }
        if feedback.flags & flags::ACK != 0 {
            // How long the frame had lain in this machine's queues: congestion control counts the
            // network's time only (Swift's fabric delay).
            let waited = frame.rx().waited;
            let at = self.on_header_ack(now, waited, feedback, content);
            // What the header has no room for may be in the long form behind it: nothing is lost
            // before that has been read.
            if let Some(at) = at.filter(|_| !frame.has_ack_ranges()) {
                self.detect_loss(now, at);
            }
        }
        Ok(())
    }

    /// Takes note of the packet number of an unsealed frame on path `at`: a number that came before is
    /// refused, whatever kind of frame has it.
    #[inline]
    pub(super) fn take_number(
        &mut self,
        now: Time,
        at: usize,
        frame: &Unsealed<'_>,
        eliciting: bool,
    ) -> Result<(), DropReason> {
        let path = &mut self.paths[at];
        let (number, arrived) = (frame.header().packet_number, now - frame.rx().waited);
        let verdict = path.received.insert(number);
        if verdict == Arrival::Duplicate {
            // Its acknowledgement may have been lost.
            path.ack.on_received(now, arrived, number, Arrival::OutOfOrder, eliciting);
        }
        let canary = self.config.canary;
        let news = verdict.news().or_else(|why| canary.of_refused(why))?;
        path.ack.on_received(now, arrived, number, news, eliciting);
        Ok(())
    }

    fn take_grant(&mut self, told: &Feedback) {
        let (slots, bytes) = &mut self.peer_granted;
        if (told.credit_slots.wrapping_sub(*slots) as i32) > 0 {
            *slots = told.credit_slots;
        }
        *bytes = (*bytes).max(told.credit_bytes);
    }

    /// Acts on the messages that concern the session itself; false for all others.
    #[inline]
    pub fn on_message(
        &mut self,
        now: Time,
        message: &Message<'_>,
        content: &mut dyn Content,
    ) -> bool {
        match message {
            Message::AckRanges(ranges) => self.on_ack_ranges(now, ranges, content),
            Message::Credit(credit) => {
                if let Some(at) = self.path_at(credit.path) {
                    self.paths[at].peer_room =
                        Room { frames: credit.frames.max(1), bytes: credit.bytes.max(2048) };
                }
            }
            Message::Ping(_) => {}
            _ => return false,
        }
        true
    }

    fn on_header_ack(
        &mut self,
        now: Time,
        waited: Duration,
        told: &Feedback,
        content: &mut dyn Content,
    ) -> Option<usize> {
        let at = self.path_at(told.ack_path)?;
        let mut outcome = AckOutcome::default();
        let sent = &mut self.paths[at].sent;
        let mut acked = |item| content.acked(item);
        let largest = told.ack_largest;
        let mut known = sent.on_ack_range(now, largest, largest, &mut outcome, &mut acked);
        // Runs of ones in the bitmap are ranges below the largest, if anything is in flight there.
        let mut bits = if sent.reaches(largest) { told.ack_bitmap } else { 0 };
        let mut below = largest;
        while bits != 0 && known.is_some() {
            let gap = u64::from(bits.trailing_zeros());
            bits = if gap == 64 { 0 } else { bits >> gap };
            let run = u64::from(bits.trailing_ones());
            bits = if run == 64 { 0 } else { bits >> run };
            let Some(last) = below.checked_sub(gap + 1) else { break };
            let first = last.saturating_sub(run - 1).max(1);
            if last == 0 {
                break;
            }
            known = sent.on_ack_range(now, first, last, &mut outcome, &mut acked);
            below = first;
        }
        self.after_ack(now, waited, at, outcome, told.ack_delay);
        Some(at)
    }

    fn on_ack_ranges(&mut self, now: Time, ranges: &AckRanges<'_>, content: &mut dyn Content) {
        let Some(at) = self.path_at(ranges.path) else { return };
        let mut outcome = AckOutcome::default();
        for (first, last) in ranges.ranges.iter() {
            let sent = &mut self.paths[at].sent;
            let acked = |item| content.acked(item);
            if sent.on_ack_range(now, first, last, &mut outcome, acked).is_none() {
                break;
            }
        }
        self.after_ack(now, Duration::ZERO, at, outcome, ranges.delay);
        self.detect_loss(now, at);
    }

    fn after_ack(
        &mut self,
        now: Time,
        waited: Duration,
        at: usize,
        outcome: AckOutcome,
        delay_units: u16,
    ) {
        let path = &mut self.paths[at];
        if outcome.frames > 0 {
            if let Some(keys) = &mut self.keys
                && path.sent.largest_acked() >= path.phase_from
            {
                keys.confirm();
            }
            path.pto_count = 0;
            path.pto_frames = 0;
            if outcome.frame_bytes_largest as usize > path.sizes.base {
                path.large_lost = 0;
            }
            // Timers need the whole time, with what both ends took; the window only the network's.
            // But a time in which this machine stood still tells nothing of the next one.
            if let Some(rtt) = outcome.rtt {
                self.answered = self.answered.max(now - rtt);
            }
            if let Some(rtt) = outcome.rtt.filter(|&rtt| now - rtt >= self.resumed_at) {
                path.rtt.sample(now, rtt);
            }
            let ends = waited + Duration::from_micros(u64::from(delay_units) * 4);
            let fabric = outcome.rtt.map(|rtt| rtt.saturating_sub(ends));
            if let Some(fabric) = fabric {
                path.network_ns = (path.network_ns * 7 + fabric.as_nanos() as u64) / 8;
            }
            path.window.on_acked(now, outcome.frames, fabric, path.rtt.smoothed, path.sizes.used);
        }
    }

    pub(super) fn detect_loss(&mut self, now: Time, at: usize) {
        let path = &mut self.paths[at];
        if !path.sent.is_overtaken() {
            return;
        }
        let threshold = path.rtt.time_threshold();
        let base = path.sizes.base;
        let queue = &mut self.queue;
        let lost = |item| queue.push_lost(item);
        let outcome = path.sent.detect_loss(now, threshold, base, lost);
        if outcome.frames > 0 {
            path.window.on_lost(outcome.frames);
            path.frames_lost += u64::from(outcome.frames);
            if outcome.large > 0 {
                path.lose_large(now);
            }
            self.stats.frames_lost += u64::from(outcome.frames);
            self.check_black_hole(now, at);
        }
    }

    pub(super) fn check_black_hole(&mut self, now: Time, at: usize) {
        let path = &mut self.paths[at];
        let recently = path.rtt.probe_timeout() * 8;
        if path.large_lost < BLACK_HOLE_LOSSES
            || now.since(path.large_lost_since) < BLACK_HOLE_TIME
            || path.sizes.used == path.sizes.base
            || now.since(path.last_heard) > recently.max(Duration::from_millis(200))
            // Else nothing passes: the peer stands still, or the path is gone.
            || path.last_heard <= path.large_lost_since
        {
            return;
        }
        path.sizes.used = path.sizes.base;
        path.large_lost = 0;
        path.prober.search_size_later(now);
        let (id, used, limit) = (path.id, path.sizes.used, path.sizes.limit);
        path.sent.lose_all(|item| self.queue.push_lost(item));
        self.notice(Notice::FrameSize { path: id, used, limit });
    }
}
