//! Building frames: a turn of the loop is the flush. Everything that the batching policy
//! ([`crate::batch`]) does not hold back goes into as few frames as it fits and as the policy
//! allows; acknowledgements and credits ride along.

use thinwire_buffer::{Room, TxBatch, TxFrame};
use thinwire_wire::{
    Credit, DATA_OFFSET, DataHeader, Feedback, Header, Kind, Ping, Probe, ProbeReply, UNIT_BYTES,
    flags,
};

use super::{Role, Session, SessionCanary};
use crate::keys::late;
use crate::outside::frame_of_one;
use crate::path::PathState;
use crate::probe::PROBE_BYTES;
use crate::recovery::ITEMS_MAX;
use crate::{Content, Item, Time, seal};

/// Frames that one session sends in one turn, at most, so that sessions share a turn (rule 13).
const FRAMES_PER_TURN: usize = 96;
/// Payload pieces are cut at multiples of this where a frame has room for one.
const CUT_BYTES: usize = 4096;

impl Session {
    /// Sends what waits, as far as windows allow: frames are added to `out`, which has one batch
    /// per link. Call once per turn, after all sources have been drained.
    pub fn transmit(&mut self, now: Time, content: &mut dyn Content, out: &mut [TxBatch]) {
        if self.keys.is_some() {
            self.look_at_keys(now, out);
        }
        self.send_replies(out);
        self.send_probes(now, out);
        for at in 0..self.paths.len() {
            // The long form takes room that payload frames do not have: it goes alone, and first.
            if self.paths[at].ack.needs_ranges(&self.paths[at].received) {
                self.send_ack(now, at, out);
            }
        }
        self.queue.release(now, &mut self.batcher);
        for _ in 0..FRAMES_PER_TURN {
            if self.queue.is_empty() {
                break;
            }
            let Some(at) = self.choose_path(now) else {
                for path in &mut self.paths {
                    path.window.on_limited();
                }
                break;
            };
            let ack_at = self.choose_ack(at);
            self.send_frame(now, at, ack_at, Some(content), out);
        }
        for at in 0..self.paths.len() {
            if self.paths[at].ack.is_due(now) {
                self.send_ack(now, at, out);
            }
        }
    }

    /// Answers the probes that came, and sends nothing else: instead of [`Session::transmit`] while the
    /// other end has not used the session.
    pub fn answer(&mut self, out: &mut [TxBatch]) {
        if !self.replies.is_empty() {
            self.send_replies(out);
        }
    }

    /// Probes wait for their answers.
    pub fn has_answers(&self) -> bool {
        !self.replies.is_empty()
    }

    /// A frame for nothing but the acknowledgement of path `at`, on a path that lives if any does.
    fn send_ack(&mut self, now: Time, at: usize, out: &mut [TxBatch]) {
        self.stats.ack_frames += 1;
        let living = |p: &usize| self.paths[*p].state == PathState::Active;
        let carrier = Some(at).filter(living).or((0..self.paths.len()).find(living));
        // The first path is always proved.
        let carrier = carrier.unwrap_or(if self.is_unproved(at) { 0 } else { at });
        self.send_frame(now, carrier, at, None, out);
    }

    fn choose_path(&self, now: Time) -> Option<usize> {
        if let [only] = &self.paths[..] {
            return only.can_send(now).then_some(0);
        }
        (0..self.paths.len())
            .filter(|&at| self.paths[at].can_send(now))
            .min_by_key(|&at| self.paths[at].expected_delay(now))
    }

    fn send_replies(&mut self, out: &mut [TxBatch]) {
        for at in 0..self.replies.len() {
            let reply = self.replies[at];
            if !self.may_probe(reply.at) {
                continue;
            }
            let message = ProbeReply {
                token: reply.token,
                room_frames: self.room.frames,
                room_bytes: self.room.bytes,
            };
            self.send_numbered(reply.at, Kind::ProbeReply, 0, out, |o| message.emit(o));
        }
        self.replies.clear();
    }

    fn send_probes(&mut self, now: Time, out: &mut [TxBatch]) {
        let keep_alive = self.config.role == Role::Initiator;
        for at in 0..self.paths.len() {
            if self.is_unproved(at) && self.paths[at].allowance < PROBE_BYTES {
                continue;
            }
            let path = &mut self.paths[at];
            let rng = &mut self.rng;
            let next =
                path.prober.next(now, path.state, path.last_heard, keep_alive, path.sizes, || {
                    rng.next_u64()
                });
            let Some((token, size)) = next else { continue };
            if !self.may_probe(at) {
                continue;
            }
            let Room { frames: room_frames, bytes: room_bytes } = self.room;
            let message = Probe { token, room_frames, room_bytes };
            self.send_numbered(at, Kind::Probe, size, out, |o| message.emit(o));
        }
    }

    /// Whether a PROBE of the smallest size, or a PROBE_REPLY, may go out on a path now: on one that
    /// was never proved, if it does not exceed what that allows.
    fn may_probe(&mut self, at: usize) -> bool {
        !self.is_unproved(at) || self.paths[at].pay(PROBE_BYTES)
    }

    /// A frame of one message, padded to so many bytes, which asks for no acknowledgement: of it only
    /// the number is kept, as used.
    fn send_numbered(
        &mut self,
        at: usize,
        kind: Kind,
        pad_to: usize,
        out: &mut [TxBatch],
        body: impl FnOnce(&mut Vec<u8>),
    ) {
        let header = self.header(at, kind);
        let path = &mut self.paths[at];
        path.sent.record_number();
        let (header, frame) = frame_of_one(&mut out[path.link], path.addr, header, pad_to, body);
        self.seal(&header, frame);
    }

    /// Seals a frame that is as it will be sent, with the key of the session if there is one.
    #[inline(always)]
    fn seal(&self, header: &Header, frame: &mut TxFrame) {
        match &self.keys {
            Some(keys) => keys.seal(header, frame),
            None => seal(frame),
        }
    }

    /// Goes to the next key if that is due. Nothing that waits in `out` is touched: its numbers are spent.
    #[inline(never)]
    fn look_at_keys(&mut self, now: Time, out: &mut [TxBatch]) {
        if self.config.canary == SessionCanary::StampedAnew {
            self.stamp_anew(now, out);
        }
        let Some(keys) = &mut self.keys else { return };
        if !keys.are_due(now, || late(&self.paths)) {
            return;
        }
        keys.advance(now);
        for path in &mut self.paths {
            path.phase_from = path.sent.next_number();
        }
    }

    /// For the next frame on path `at`.
    fn header(&self, at: usize, kind: Kind) -> Header {
        let mut header = Header::new(kind);
        header.session = self.config.remote_id;
        header.epoch = self.config.epoch;
        header.path = self.paths[at].id;
        header.packet_number = self.paths[at].sent.next_number();
        if let Some(keys) = &self.keys {
            keys.stamp(&mut header);
        }
        header
    }

    /// Builds one frame for path `at`: items of the queue if there is `content` to ask, and an
    /// acknowledgement of path `ack_at`. Adds nothing if all items turned out to be unwanted.
    fn send_frame(
        &mut self,
        now: Time,
        at: usize,
        ack_at: usize,
        mut content: Option<&mut dyn Content>,
        out: &mut [TxBatch],
    ) {
        let link = self.paths[at].link;
        let addr = self.paths[at].addr;
        let frame_bytes = self.paths[at].sizes.used;
        let mut items = std::mem::take(&mut self.items);
        items.clear();
        let frame = out[link].push(addr);
        Header::reserve(&mut frame.head);
        let acked = &self.paths[ack_at];
        if content.is_none() && acked.ack.needs_ranges(&acked.received) {
            acked.ack.emit_ranges(now, acked.id, &acked.received, &mut frame.head);
        }
        let (mut payload, mut requests) = (0, 0);
        let (requests_max, shares_data) = (self.batcher.frame_max(), self.batcher.shares_data());
        while let (Some(content), Some(&item)) = (content.as_deref_mut(), self.queue.front()) {
            if items.len() == ITEMS_MAX {
                break;
            }
            let start = frame.head.len();
            if let Item::Data { slot, sequence, offset, length } = item {
                let room = (frame_bytes - DATA_OFFSET).saturating_sub(payload);
                if start + DataHeader::BYTES > DATA_OFFSET || (payload > 0 && !shares_data) {
                    break;
                }
                let mut take = length as usize;
                if take > room {
                    // A piece that does not fit whole starts a frame of its own: so frames of one
                    // transfer have one size, which a GSO train needs.
                    if payload > 0 {
                        break;
                    }
                    let cut = if room >= CUT_BYTES { CUT_BYTES } else { UNIT_BYTES };
                    take = room - room % cut;
                }
                self.queue.pop_front();
                if !content.payload(slot, sequence, offset, take as u32, &mut frame.data) {
                    continue;
                }
                DataHeader { slot, sequence, offset, length: take as u32 }.emit(&mut frame.head);
                payload += take;
                items.push(Item::Data { slot, sequence, offset, length: take as u32 });
                let rest = length - take as u32;
                if rest > 0 {
                    let offset = offset + take as u32;
                    self.queue.push_front(Item::Data { slot, sequence, offset, length: rest });
                    break;
                }
                continue;
            }
            let limit = if payload > 0 { DATA_OFFSET } else { frame_bytes };
            let is_request = matches!(item, Item::Request { .. } | Item::Complete { .. });
            if is_request
                && (requests == requests_max || (payload > 0 && self.tears_batch(item, requests)))
            {
                break;
            }
            let wanted = match item {
                // Probe timeouts and paths that die make copies of what waits for an answer: once in a
                // frame is enough, or they multiply.
                Item::Attach(_) | Item::AttachAnswer(_) | Item::Said(_) | Item::Clocks(_)
                    if items.contains(&item) =>
                {
                    false
                }
                Item::Ping => {
                    Ping {}.emit(&mut frame.head);
                    true
                }
                Item::Credit(path) => {
                    let (frames, bytes) = (self.room.frames, self.room.bytes);
                    Credit { path, frames, bytes }.emit(&mut frame.head);
                    true
                }
                Item::Said(said) => {
                    frame.head.extend_from_slice(said.bytes());
                    true
                }
                _ => content.emit(item, &mut frame.head),
            };
            if wanted && frame.head.len() > limit {
                frame.head.truncate(start);
                break;
            }
            self.queue.pop_front();
            if wanted {
                items.push(item);
                requests += usize::from(is_request);
            }
        }
        if items.is_empty() && content.is_some() {
            out[link].pop();
            self.items = items;
            return;
        }
        let mut header = self.header(at, Kind::Session);
        let (credit_slots, credit_bytes) = self.granted;
        let mut feedback =
            Feedback { flags: flags::CREDIT, credit_slots, credit_bytes, ..Feedback::default() };
        let acked = &mut self.paths[ack_at];
        acked.ack.write(now, acked.id, &acked.received, &mut feedback);
        header.messages_end = frame.head.len() as u16;
        if payload > 0 {
            frame.head.resize(DATA_OFFSET, 0);
        }
        header.data_offset = frame.head.len() as u16;
        header.length = (frame.head.len() + payload) as u16;
        header.write(&mut frame.head);
        feedback.write(&mut frame.head);
        debug_assert_eq!(frame.data.bytes(), payload);
        match &self.keys {
            Some(keys) => keys.seal(&header, frame),
            None => seal(frame),
        }
        let bytes = frame.bytes();
        out[link].add_last_pieces(self.last_pieces(requests, payload));
        self.stats.frames_sent += 1;
        self.stats.items_sent += items.len() as u64;
        self.stats.requests_sent += requests as u64;
        self.stats.request_frames += u64::from(requests > 0);
        let path = &mut self.paths[at];
        if !items.is_empty() {
            path.frames_sent += 1;
            path.pto_frames = path.pto_frames.saturating_sub(1);
            let window = path.window.bytes();
            if window < bytes {
                // Below one frame the window is a rate.
                let wait = path.rtt.smoothed.mul_f64(bytes as f64 / window.max(1) as f64);
                path.paced_until = now + wait;
            }
        }
        path.sent.record(now, bytes, &items);
        self.items = items;
    }

    /// Whether a request of a batch would ride behind the payload of others.
    fn tears_batch(&self, item: Item, requests: usize) -> bool {
        requests == 0 && self.batcher.begins_frames() && matches!(item, Item::Request { .. })
    }

    /// How many requests (at a target: completions) end in a frame with so many of them and so much
    /// payload, which has just left the queue. A target's data goes before its completion, an
    /// initiator's behind its request, so what is left of that comes next in the queue. Exact for
    /// requests that are sent one by one, which is when somebody measures.
    fn last_pieces(&self, requests: usize, payload: usize) -> usize {
        if self.config.role == Role::Target {
            return requests;
        }
        let cut = matches!(self.queue.front(), Some(Item::Data { .. }));
        let begun_before = usize::from(requests == 0 && payload > 0);
        (requests + begun_before).saturating_sub(usize::from(cut))
    }

    /// The path whose acknowledgement the next frame on path `at` carries: its own if something
    /// waits there, else another's, else its own anyway.
    fn choose_ack(&self, at: usize) -> usize {
        if self.paths[at].ack.is_pending() {
            return at;
        }
        // A dead path's acknowledgement travels on a living one (rule 6).
        (0..self.paths.len()).find(|&p| self.paths[p].ack.is_pending()).unwrap_or(at)
    }

    /// How many paths carry frames.
    pub fn active_paths(&self) -> usize {
        self.paths.iter().filter(|p| p.state == PathState::Active).count()
    }
}
