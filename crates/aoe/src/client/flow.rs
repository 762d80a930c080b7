//! What is sent when: order, answers, and what is sent again, under another tag each time.

use std::time::Duration;

use thinwire_buffer::{RxFrame, SegList, Time};
use thinwire_volume::{ErrorKind, Gravity, Op};
use thinwire_wire::aoe::{
    AoeCommand, AtaCommand, AtaRegisters, Body, DATA_OFFSET, Frame, Header, SECTOR_BYTES, ata_error,
};

use super::{AoeClient, Pending};

/// Requests on their way together, at most.
const REQUESTS_MAX: usize = 128;
/// A server that has said nothing for so long, though it was asked several times, is away.
const SILENCE: Duration = Duration::from_secs(2);
const TRIES: u32 = 3;
/// How long an orderly end waits for a server that is away.
const END_PATIENCE: Duration = Duration::from_secs(5);

/// What one frame asks for.
#[derive(Debug)]
pub(super) struct Piece {
    sector: u64,
    sectors: u8,
    /// Under which it went out, each time another.
    tags: Vec<u32>,
    first: Time,
    sent: Time,
    tries: u32,
    is_done: bool,
    /// Of a read.
    data: SegList,
}

/// One I/O that is on its way, in pieces.
#[derive(Debug)]
pub(super) struct Request {
    pending: Pending,
    pieces: Vec<Piece>,
    /// Those from here on have not been sent.
    unsent: usize,
    error: Option<ErrorKind>,
}

impl Request {
    fn new(pending: Pending, frame_sectors: u8, now: Time) -> Self {
        let piece = |sector, sectors| Piece {
            sector,
            sectors,
            tags: Vec::new(),
            first: now,
            sent: now,
            tries: 0,
            is_done: false,
            data: SegList::new(),
        };
        let mut pieces = Vec::new();
        let mut from = pending.start;
        while from < pending.end {
            let sectors = (pending.end - from).min(u64::from(frame_sectors)) as u8;
            pieces.push(piece(from, sectors));
            from += u64::from(sectors);
        }
        if pieces.is_empty() {
            // A flush.
            pieces.push(piece(0, 0));
        }
        Request { pending, pieces, unsent: 0, error: None }
    }

    /// Those that are on their way.
    fn in_flight(&self) -> impl Iterator<Item = &Piece> {
        self.pieces[..self.unsent].iter().filter(|piece| !piece.is_done)
    }
}

/// Why a request failed, as the error register of its answer says.
fn kind_of(error: u8) -> ErrorKind {
    match error {
        ata_error::IDNF => ErrorKind::Invalid,
        ata_error::ABRT => ErrorKind::Unsupported,
        _ => ErrorKind::Io,
    }
}

impl AoeClient {
    pub(super) fn next_tag(&mut self) -> u32 {
        self.last_tag = self.last_tag.wrapping_add(1);
        self.last_tag
    }

    /// Does what is to be done now.
    pub(super) fn go_on(&mut self) {
        if self.failure.is_some() || self.is_closed {
            self.is_closed |= self.is_ending;
            return;
        }
        self.find();
        if self.finding.is_over() {
            self.send_again_what_is_late();
        }
        if let (Some(limit), Some(since)) = (self.config.fail_after, self.away_since)
            && self.now.since(since) >= limit
        {
            self.fail_all(ErrorKind::Away);
        }
        if self.finding.is_over() {
            self.pump();
        }
        let is_left = self.away_since.is_some_and(|since| self.now.since(since) > END_PATIENCE);
        if self.is_ending && (!self.is_open || is_left || !self.outstanding_of_user()) {
            self.fail_all(ErrorKind::ShuttingDown);
            self.is_closed = true;
        }
    }

    /// When something is to be done though nothing comes.
    pub(super) fn deadline(&self) -> Time {
        if self.is_closed || self.failure.is_some() {
            return Time::NEVER;
        }
        let mut at = self.finding.next();
        if self.finding.is_over() {
            let sent = self.requests.values().flat_map(Request::in_flight);
            at = sent.map(|piece| self.due(piece)).fold(at, Time::min);
            if !self.waiting.is_empty() {
                at = at.min(self.strays.until(self.now));
            }
        }
        if let (Some(limit), Some(since)) = (self.config.fail_after, self.away_since)
            && self.outstanding_of_user()
        {
            at = at.min(since + limit);
        }
        if self.is_ending { at.min(self.now + SILENCE) } else { at }
    }

    /// When a piece is sent again.
    fn due(&self, piece: &Piece) -> Time {
        piece.sent + self.trips.timeout(piece.tries)
    }

    fn send_again_what_is_late(&mut self) {
        let mut late = Vec::new();
        for (&number, request) in &self.requests {
            for (at, piece) in request.pieces[..request.unsent].iter().enumerate() {
                if !piece.is_done && self.now >= self.due(piece) {
                    late.push((number, at, piece.tries, piece.first));
                }
            }
        }
        if !late.is_empty() {
            self.window.on_loss();
        }
        for (number, at, tries, first) in late {
            let is_silent = self.now.since(self.heard_at.max(first)) > SILENCE;
            if tries >= TRIES && is_silent && self.away_since.is_none() {
                self.away_since = Some(self.now);
                self.note(Gravity::Warning, "the server does not answer".to_owned());
                // Another station may have the device by now.
                self.finding.begin_anew(self.now);
            }
            let request = self.requests.get_mut(&number).expect("it is on its way");
            request.pieces[at].tries += 1;
            self.report.repeated += 1;
            self.send(number, at);
        }
    }

    /// Sends a piece, under a new tag.
    fn send(&mut self, number: u64, at: usize) {
        let tag = self.next_tag();
        self.tags.insert(tag, (number, at));
        let (Some(server), now) = (self.server, self.now) else { return };
        let request = self.requests.get_mut(&number).expect("it is on its way");
        let (op, start) = (request.pending.op, request.pending.start);
        let piece = &mut request.pieces[at];
        piece.tags.push(tag);
        piece.sent = now;
        let command = match op {
            Op::Read => AtaCommand::ReadSectorsExt,
            Op::Write => AtaCommand::WriteSectorsExt,
            _ => AtaCommand::FlushCacheExt,
        };
        let registers = AtaRegisters::request(command, piece.sector, piece.sectors);
        let registers = registers.expect("the drive has no sector that is not reached");
        let (from, len) = (piece.sector - start.min(piece.sector), usize::from(piece.sectors));
        let out = self.out.push(server);
        Header::request(self.config.device, AoeCommand::IssueAta, tag).put(&mut out.head);
        registers.put(&mut out.head);
        if op == Op::Write {
            let data = &request.pending.data;
            data.slice_into(from as usize * SECTOR_BYTES, len * SECTOR_BYTES, &mut out.data);
        }
        self.report.frames += 1;
    }

    /// Sends what may be sent.
    fn pump(&mut self) {
        let unsent = |r: &Request| r.unsent < r.pieces.len();
        let open: Vec<u64> =
            self.requests.iter().filter(|(_, r)| unsent(r)).map(|(&number, _)| number).collect();
        open.into_iter().for_each(|number| self.send_more(number));
        while self.in_flight < self.window.frames() && self.requests.len() < REQUESTS_MAX {
            let Some(pending) = self.waiting.front() else { return };
            let (start, end, op) = (pending.start, pending.end, pending.op);
            let conflicts = self.requests.values().any(|r| r.pending.conflicts(pending));
            if conflicts || op == Op::Write && !self.strays.allow(self.now, start, end) {
                return;
            }
            let pending = self.waiting.pop_front().expect("just seen");
            let number = self.next_request;
            self.next_request += 1;
            self.requests.insert(number, Request::new(pending, self.frame_sectors, self.now));
            self.send_more(number);
        }
    }

    /// Sends pieces of a request that have not been, as many as may be on their way.
    fn send_more(&mut self, number: u64) {
        while self.in_flight < self.window.frames() {
            let now = self.now;
            let request = self.requests.get_mut(&number).expect("it is on its way");
            let at = request.unsent;
            let Some(piece) = request.pieces.get_mut(at) else { return };
            piece.first = now;
            request.unsent += 1;
            self.in_flight += 1;
            self.send(number, at);
        }
    }

    /// A server has said something of the device.
    pub(super) fn on_answer(&mut self, frame: &Frame<'_>, rx: &RxFrame) {
        if let Body::Query(query) = &frame.body {
            return self.on_config(rx.from, query);
        }
        if Some(rx.from) != self.server {
            return self.report.dropped += 1;
        }
        self.heard();
        match &frame.body {
            Body::Ata(registers) => {
                let tag = frame.header.tag;
                if !self.on_identity(tag, registers, rx) {
                    self.on_done(tag, registers, rx);
                }
            }
            Body::Refused => {
                // As Linux does: it is asked again.
                self.report.refused += 1;
                self.refusal = frame.header.code();
            }
            _ => self.report.dropped += 1,
        }
    }

    /// The server has said something.
    pub(super) fn heard(&mut self) {
        self.heard_at = self.now;
        if let Some(since) = self.away_since.take() {
            let seconds = self.now.since(since).as_secs();
            self.note(Gravity::News, format!("the server is back after {seconds} s"));
        }
    }

    /// A piece has been answered.
    fn on_done(&mut self, tag: u32, registers: &AtaRegisters, rx: &RxFrame) {
        let Some(&(number, at)) = self.tags.get(&tag) else {
            self.strays.on_answer(tag);
            return self.report.late += 1;
        };
        let request = self.requests.get_mut(&number).expect("its tags are known");
        let piece = &mut request.pieces[at];
        let bytes = usize::from(piece.sectors) * SECTOR_BYTES;
        if registers.is_done() && request.pending.op == Op::Read {
            if rx.len() < DATA_OFFSET + bytes {
                return self.report.dropped += 1;
            }
            let data = &mut piece.data;
            rx.slice(DATA_OFFSET, bytes, |segment| data.push(segment));
        }
        if piece.tries == 0 {
            self.trips.on_answer(self.now.since(piece.first));
        }
        (piece.is_done, self.refusal) = (true, None);
        if !registers.is_done() {
            request.error = Some(kind_of(registers.error_feature));
        }
        self.window.on_answer();
        self.in_flight -= 1;
        let (sent, start) = (piece.sent, piece.sector);
        let end = start + u64::from(piece.sectors);
        let mut others = std::mem::take(&mut piece.tags);
        others.iter().for_each(|tag| _ = self.tags.remove(tag));
        others.retain(|&other| other != tag);
        if request.pending.op == Op::Write {
            self.strays.add(sent, start, end, others);
        }
        if request.pieces.iter().all(|piece| piece.is_done) {
            let mut request = self.requests.remove(&number).expect("just seen");
            let mut data = SegList::new();
            match request.error {
                Some(kind) => self.complete(&request.pending, Err(kind), data),
                None => {
                    request.pieces.drain(..).for_each(|piece| data.append(piece.data));
                    self.complete(&request.pending, Ok(()), data);
                }
            }
        }
    }

    /// Everything of the user fails. What was sent may still land.
    pub(super) fn fail_all(&mut self, kind: ErrorKind) {
        for (_, mut request) in std::mem::take(&mut self.requests) {
            for piece in &mut request.pieces {
                let end = piece.sector + u64::from(piece.sectors);
                if request.pending.op == Op::Write {
                    let tags = std::mem::take(&mut piece.tags);
                    self.strays.add(piece.sent, piece.sector, end, tags);
                }
            }
            self.complete(&request.pending, Err(kind), SegList::new());
        }
        for pending in std::mem::take(&mut self.waiting) {
            self.complete(&pending, Err(kind), SegList::new());
        }
        self.tags.clear();
        self.in_flight = 0;
    }
}
