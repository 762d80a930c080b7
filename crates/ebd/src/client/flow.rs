//! What is sent when: credit, order, answers, and what is sent again.

use std::time::Duration;

use thinwire_buffer::{RxFrame, SegList, Time};
use thinwire_volume::{ErrorKind, Gravity, Op};
use thinwire_wire::ebd::{EbdForm, Frame, NakReason, Operation, Tag};

use super::request::{Owner, Pending, Request};
use super::timing::TRIES_MAX;
use super::{EbdCanary, EbdClient, REQUESTS_MAX};

/// How often a client that has no credit, and nothing on its way, asks for some.
const CREDIT_PROBE: Duration = Duration::from_millis(100);
/// A server that has said nothing for so long, though it was asked several times, is away.
const SILENCE: Duration = Duration::from_secs(2);
/// A flush of the client's own that has failed is tried again after this.
const FLUSH_PAUSE: Duration = Duration::from_secs(1);
/// How long an orderly end waits for a server that is away.
const END_PATIENCE: Duration = Duration::from_secs(5);

fn kind_of(why: NakReason) -> ErrorKind {
    match why {
        NakReason::Range => ErrorKind::Invalid,
        NakReason::ReadOnly => ErrorKind::ReadOnly,
        NakReason::NoSpace => ErrorKind::NoSpace,
        NakReason::Fenced => ErrorKind::Fenced,
        NakReason::Changed => ErrorKind::ContentChanged,
        _ => ErrorKind::Io,
    }
}

impl EbdClient {
    /// Does what is to be done now.
    pub(super) fn go_on(&mut self) {
        if self.failure.is_some() || self.is_closed {
            self.is_closed |= self.is_ending;
            return;
        }
        self.shake();
        let is_patient = |limit: Duration, since: Time| self.now.since(since) < limit;
        let is_given_up = match (self.config.fail_after, self.away_since) {
            (Some(limit), Some(since)) => !is_patient(limit, since),
            _ => false,
        };
        if is_given_up && self.outstanding_of_user() {
            self.fail_all(ErrorKind::Away);
        }
        if self.shaking.is_over() {
            self.send_again_what_is_late();
            self.pump();
        }
        self.end_in_order();
    }

    fn outstanding_of_user(&self) -> bool {
        !self.waiting.is_empty() || !self.requests.is_empty()
    }

    /// When something is to be done though nothing comes.
    pub(super) fn deadline(&self) -> Time {
        if self.is_closed || self.failure.is_some() {
            return Time::NEVER;
        }
        let mut at = self.shaking.next();
        if self.shaking.is_over() {
            let sent = self.requests.iter().filter(|request| !request.to_send_again);
            at = sent.map(|request| self.due(request)).fold(at, Time::min);
            let has_more = self.waiting.front().is_some_and(|p| !self.may_go(p.end - p.start));
            if has_more && self.requests.is_empty() {
                at = at.min(self.probed_at + CREDIT_PROBE);
            }
            let waits = !self.waiting.is_empty() || !self.replays.is_empty();
            if waits || self.requests.iter().any(|request| request.to_send_again) {
                at = at.min(self.quarantine.until(self.now)).min(self.pairs.until(self.now));
            }
        }
        if let (Some(limit), Some(since)) = (self.config.fail_after, self.away_since)
            && self.outstanding_of_user()
        {
            at = at.min(since + limit);
        }
        if self.is_ending { at.min(self.now + CREDIT_PROBE) } else { at }
    }

    /// When a request is sent again.
    fn due(&self, request: &Request) -> Time {
        let is_weak = self.config.form == EbdForm::Implemented && !request.is_acknowledged;
        let timeout = if is_weak { self.wack_timeout } else { self.timeout };
        request.sent + timeout.after(request.tries, self.credit, self.first_credit)
    }

    fn send_again_what_is_late(&mut self) {
        for at in 0..self.requests.len() {
            let request = &self.requests[at];
            if request.to_send_again || self.now < self.due(request) {
                continue;
            }
            let is_silent = self.now.since(self.heard_at.max(request.first_sent)) > SILENCE;
            let (sent, answered) = (request.sent, request.answered);
            match request.tries >= TRIES_MAX {
                true if is_silent => return self.go_away(),
                // It takes long, as a flush may: the server says that it is there whenever it is asked again.
                true => {}
                false => self.requests[at].tries += 1,
            }
            if answered > sent {
                // Some of what was sent together was answered, some lost: where there is little room all requests are sent
                // again, and nothing else tells how long an answer takes.
                self.timeout.on_answer(answered.since(sent));
            }
            self.requests[at].is_repeated = true;
            self.report.repeated += 1;
            self.send(at);
        }
    }

    /// Sends what is missing of a request.
    fn send(&mut self, at: usize) {
        let wants_wack = self.config.form == EbdForm::Implemented;
        let EbdClient { requests, out, report, now, config, request_sectors, .. } = self;
        let request = &mut requests[at];
        request.sent = *now;
        // Once is enough: where there is little room the answers need it.
        let wants_wack = wants_wack && !request.is_acknowledged;
        request.ask(wants_wack, *request_sectors, |frame, data| {
            let (header, len) = frame.header();
            let out = out.push(config.server);
            out.head.extend_from_slice(&header[..len]);
            out.data = data;
            report.frames += 1;
        });
    }

    /// Sectors that have been asked for.
    fn asked(&self) -> u32 {
        let sent = self.requests.iter().filter(|request| !request.to_send_again);
        sent.map(Request::sectors).sum()
    }

    /// Sends what may be sent.
    fn pump(&mut self) {
        if self.config.read_only || self.replays.is_empty() && self.replaying == 0 {
            self.resume();
        } else {
            self.replay();
        }
        self.keep_bound();
        loop {
            let is_flushing = self.requests.iter().any(|request| request.pending.op == Op::Flush);
            let is_resuming = self.requests.iter().any(|request| request.to_send_again);
            let is_replaying = !self.replays.is_empty() || self.replaying > 0;
            if is_flushing || is_resuming || is_replaying || self.requests.len() >= REQUESTS_MAX {
                return;
            }
            let Some(pending) = self.waiting.front() else { return };
            if !self.may_go(pending.end - pending.start) {
                return self.ask_for_credit();
            }
            let (start, end, op) = (pending.start, pending.end, pending.op);
            let conflicts = self.requests.iter().any(|r| r.pending.conflicts(pending));
            if conflicts || op == Op::Write && !self.quarantine.allows(self.now, start, end) {
                return;
            }
            let Some(tag) = self.next_tag(start, end.max(start + 1)) else { return };
            let pending = self.waiting.pop_front().expect("just seen");
            self.start(pending, tag);
        }
    }

    /// Whether so many sectors may be asked for now.
    fn may_go(&self, sectors: u32) -> bool {
        let (asked, credit) = (self.asked(), u32::from(self.credit));
        credit >= 2 * self.request_sectors && asked + sectors <= credit
    }

    /// Nothing may be asked for, and nothing is on its way: it is asked for a sector.
    fn ask_for_credit(&mut self) {
        if !self.requests.is_empty() || self.now < self.probed_at + CREDIT_PROBE {
            return;
        }
        self.probed_at = self.now;
        let Some(tag) = self.next_tag(0, 1) else { return };
        let data = SegList::new();
        let pending =
            Pending { owner: Owner::Own, op: Op::Read, is_durable: false, start: 0, end: 1, data };
        self.start(pending, tag);
    }

    fn start(&mut self, pending: Pending, tag: Tag) {
        let (block, now, number) = (self.block, self.now, self.handles);
        let mark = self.retained.mark();
        self.requests.push(Request::new(pending, tag, number, block, now, mark));
        self.send(self.requests.len() - 1);
    }

    /// A tag that no answer on its way fits.
    fn next_tag(&mut self, start: u32, end: u32) -> Option<Tag> {
        self.handles = self.handles.wrapping_add(1);
        if self.config.form == EbdForm::Implemented {
            return Some(self.tag(0, self.handles));
        }
        let requests = &self.requests;
        let is_taken = |identifier: u8| {
            let own = |request: &&Request| matches!(request.tag, Tag::Ideal { identifier: other, .. } if other == identifier);
            // A flush has a number of its own where others have a sector.
            requests.iter().filter(own).any(|request| {
                let pending = &request.pending;
                pending.op == Op::Flush || pending.start < end && start < pending.end
            })
        };
        let identifier = self.pairs.give(self.now, (start, end), is_taken)?;
        Some(self.tag(identifier, 0))
    }

    /// Sends again what was answered and not flushed.
    fn replay(&mut self) {
        while let Some(&(start, end)) = self.replays.front() {
            let data = self.retained.part(start, end);
            let (owner, op, is_durable) = (Owner::Replay, Op::Write, false);
            let pending = Pending { owner, op, is_durable, start, end, data };
            let fits = self.may_go(end - start) || self.replaying == 0;
            if !fits || !self.quarantine.allows(self.now, start, end) {
                return;
            }
            let Some(tag) = self.next_tag(start, end) else { return };
            self.replays.pop_front();
            self.replaying += 1;
            self.start(pending, tag);
        }
    }

    /// Sends what had been sent before the server forgot this client, or was away.
    fn resume(&mut self) {
        for at in 0..self.requests.len() {
            if !self.requests[at].to_send_again {
                continue;
            }
            let Pending { start, end, op, .. } = self.requests[at].pending;
            // What was sent again before may still land.
            if op == Op::Write && !self.quarantine.allows(self.now, start, end) {
                continue;
            }
            let Some(tag) = self.next_tag(start, end.max(start + 1)) else { return };
            let request = &self.requests[at];
            if let (Tag::Ideal { identifier, .. }, true) = (request.tag, op != Op::Flush) {
                self.pairs.end(request.sent, identifier, start, end);
            }
            let (block, now) = (self.block, self.now);
            let request = &mut self.requests[at];
            request.reset(tag, block);
            request.first_sent = now;
            self.report.repeated += 1;
            self.send(at);
        }
    }

    /// Too much is kept: it is flushed.
    fn keep_bound(&mut self) {
        let is_flush = |pending: &Pending| pending.op == Op::Flush;
        let is_under_way = self.waiting.iter().any(is_flush)
            || self.requests.iter().any(|request| is_flush(&request.pending));
        let is_time = self.now >= self.flush_failed_at.map_or(Time::ZERO, |at| at + FLUSH_PAUSE);
        if self.retained.bytes() > self.config.retained_bytes_max && !is_under_way && is_time {
            self.waiting.push_front(own_flush());
        }
    }

    fn end_in_order(&mut self) {
        if !self.is_ending {
            return;
        }
        let is_left = self.away_since.is_some_and(|since| self.now.since(since) > END_PATIENCE);
        if !self.is_open || is_left {
            if self.report.handshakes > 0 {
                // It may have been granted leave to write.
                self.say_end();
            }
            return self.end(ErrorKind::ShuttingDown);
        }
        if !self.shaking.is_over() || self.outstanding_of_user() || !self.replays.is_empty() {
            return;
        }
        if !self.retained.is_empty() {
            return match self.flush_failed_at {
                // What was answered may be lost.
                Some(at) if self.now >= at && self.ends_with_flush => self.end(ErrorKind::Io),
                _ => {
                    self.ends_with_flush = true;
                    self.flush_failed_at = None;
                    self.waiting.push_front(own_flush());
                }
            };
        }
        self.say_end();
        self.is_closed = true;
    }

    fn say_end(&mut self) {
        let frame = Frame {
            operation: Operation::End,
            is_answer: false,
            wants_wack: false,
            tag: self.tag(0, 0),
            credit: 0,
            length: 0,
            sector: 0,
        };
        self.say(&frame, SegList::new());
    }

    /// The server has said something.
    pub(super) fn on_answer(&mut self, now: Time, frame: &Frame, rx: &RxFrame) {
        self.heard_at = now;
        if !self.shaking.is_over() && self.on_shaking(frame, rx) {
            return;
        }
        if !matches!(frame.operation, Operation::Handshake | Operation::Shutdown) {
            self.credit = frame.credit;
        }
        match frame.operation {
            Operation::Handshake => self.on_late_handshake(frame),
            Operation::Congestion => {}
            Operation::Shutdown => {
                if self.shaking.is_over() {
                    self.go_away();
                }
            }
            Operation::Wack => self.on_wack(now, frame),
            Operation::Nak => self.on_nak(frame),
            _ => self.on_done(now, frame, rx),
        }
    }

    /// An answer to a handshake comes when hands have been shaken. In the idealised form nothing else tells that the
    /// server has taken a former question, which came late, for one that begins anew: it may have lost what it had.
    fn on_late_handshake(&mut self, frame: &Frame) {
        self.report.late += 1;
        if let Tag::Ideal { identifier, .. } = frame.tag
            && !self.shaking.was_asked(identifier)
        {
            self.shake_anew();
        }
    }

    fn on_wack(&mut self, now: Time, frame: &Frame) {
        let is = |request: &&mut Request| request.tag == frame.tag && !request.to_send_again;
        let Some(request) = self.requests.iter_mut().find(is) else {
            return self.report.late += 1;
        };
        if !request.is_acknowledged && !request.is_repeated {
            self.wack_timeout.on_answer(now.since(request.first_sent));
        }
        request.is_acknowledged = true;
    }

    fn on_nak(&mut self, frame: &Frame) {
        let Some(why) = NakReason::from_number(frame.length) else {
            return self.report.dropped += 1;
        };
        let is_about = |request: &Request| {
            let pending = &request.pending;
            let range = match pending.op {
                Op::Flush => request.number..request.number + 1,
                _ => pending.start..pending.end,
            };
            !request.to_send_again && request.tag == frame.tag && range.contains(&frame.sector)
        };
        // A late one would have it shake hands, or fail, for nothing.
        let Some(at) = self.requests.iter().position(is_about) else {
            return self.report.late += 1;
        };
        match why {
            NakReason::Unknown => self.shake_anew(),
            NakReason::Fenced | NakReason::Changed => {
                self.note(Gravity::Failure, why.describe().to_owned());
                self.fail(kind_of(why));
            }
            _ => {
                let request = self.requests.swap_remove(at);
                self.forget(&request);
                if request.is_replay() {
                    return self.on_replay_failed(request.pending.start, why);
                }
                if request.pending.op == Op::Flush {
                    self.flush_failed_at = Some(self.now);
                }
                self.complete(&request.pending, Err(kind_of(why)), SegList::new());
            }
        }
    }

    /// What was answered before cannot be written any more: nothing that follows may be believed.
    fn on_replay_failed(&mut self, sector: u32, why: NakReason) {
        let text = format!(
            "what was written at sector {sector} was answered, lost, and cannot be written again: {}",
            why.describe()
        );
        self.note(Gravity::Failure, text);
        self.fail(kind_of(why));
    }

    /// A request has been answered, or a block of it.
    fn on_done(&mut self, now: Time, frame: &Frame, rx: &RxFrame) {
        let mut data = SegList::new();
        if frame.operation == Operation::Read {
            let (header, bytes) =
                (self.config.form.header_bytes(), usize::from(frame.length) * 512);
            if rx.len() < header + bytes {
                return self.report.dropped += 1;
            }
            rx.slice(header, bytes, |piece| data.push(piece));
        }
        let mut requests = self.requests.iter_mut().enumerate();
        let found = requests.find_map(|(at, request)| {
            let is_its = !request.to_send_again && request.tag == frame.tag;
            let answered = if is_its { request.on_answer(now, frame, data.clone()) } else { None };
            answered.map(|is_new| (at, is_new))
        });
        let Some((at, is_new)) = found else {
            self.report.late += 1;
            return self.timeout.on_needless();
        };
        if !is_new {
            self.timeout.on_needless();
        }
        if !self.requests[at].is_done() {
            // Whatever else is missing: it has been heard of.
            self.requests[at].is_acknowledged = true;
            return;
        }
        let mut request = self.requests.swap_remove(at);
        if !request.is_repeated {
            let latency = now.since(request.first_sent);
            self.timeout.on_answer(latency);
            if !request.is_acknowledged {
                // It came in place of the WACK.
                self.wack_timeout.on_answer(latency);
            }
        }
        self.forget(&request);
        match (request.pending.op, request.pending.owner) {
            (Op::Flush, _) => self.retained.flushed(request.mark),
            (Op::Write, Owner::Replay) => self.replaying -= 1,
            (Op::Write, _) => {
                let Pending { start, end, is_durable, ref data, .. } = request.pending;
                match is_durable {
                    true => self.retained.supersede(start, end),
                    false => self.retained.add(start, end, data.clone()),
                }
            }
            _ => {}
        }
        let data =
            if request.pending.op == Op::Read { request.take_data() } else { SegList::new() };
        self.complete(&request.pending, Ok(()), data);
    }

    /// A request is over: what may still come of it is remembered.
    pub(super) fn forget(&mut self, request: &Request) {
        let Pending { start, end, op, .. } = request.pending;
        // A flush has a number of its own.
        if let (Tag::Ideal { identifier, .. }, true) = (request.tag, op != Op::Flush) {
            self.pairs.end(request.sent, identifier, start, end);
        }
        let is_careful = self.config.canary != EbdCanary::NoQuarantine;
        if op == Op::Write && request.unanswered > 0 && is_careful {
            self.quarantine.add(request.sent, start, end);
        }
        if request.is_replay() && !request.is_done() {
            self.replaying = self.replaying.saturating_sub(1);
        }
    }
}

fn own_flush() -> Pending {
    let (owner, op, data) = (Owner::Own, Op::Flush, SegList::new());
    Pending { owner, op, is_durable: false, start: 0, end: 0, data }
}
