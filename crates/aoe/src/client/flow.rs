//! What is sent when: order, answers, and what is sent again, under another tag each time.

use std::time::Duration;

use thinwire_buffer::{RxFrame, SegList, Time};
use thinwire_volume::{ErrorKind, Gravity, Op};
use thinwire_wire::aoe::{
    AoeCommand, AtaCommand, AtaRegisters, Body, DATA_OFFSET, ErrorCode, Frame, Header,
    SECTOR_BYTES, ata_error,
};

use super::AoeClient;
use super::finding::SECTORS_OF_OLD;
use super::request::{Piece, Refusal, Request};
use crate::AoeCanary;

/// Requests on their way together, at most.
const REQUESTS_MAX: usize = 128;
/// A server that has said nothing for so long, though it was asked several times, is away.
const SILENCE: Duration = Duration::from_secs(2);
const TRIES: u32 = 3;
/// A frame that is not answered so often, though its server answers others, is too long for the way.
const IGNORED_MAX: u32 = 3;
/// Frames of one piece whose answers are waited for.
const FRAMES_MAX: usize = 64;
/// How long an orderly end waits for a server that is away.
const END_PATIENCE: Duration = Duration::from_secs(5);

/// When the first piece is due to be sent again, as far as is known without looking at all: never later than it is. What is sent lowers
/// it, what is answered leaves it, and once it has come all are looked at.
#[derive(Clone, Copy, Debug)]
pub(super) struct FirstDue {
    at: Time,
    /// The timeout by which it was found: under a shorter one pieces may be due before.
    timeout: Duration,
}

impl FirstDue {
    pub const NONE: FirstDue = FirstDue { at: Time::NEVER, timeout: Duration::ZERO };
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
        // 0 is that of announcements.
        self.last_tag = self.last_tag.wrapping_add(1).max(1);
        self.last_tag
    }

    /// Does what is to be done now.
    pub(super) fn go_on(&mut self) {
        if self.failure.is_some() || self.is_closed {
            self.is_closed |= self.is_ending;
            return;
        }
        self.find();
        self.is_open |= self.is_known && self.now >= self.quiet_until;
        if self.finding.is_over() {
            self.send_again_what_is_late();
        }
        // Who ends waits once for what is not done, and not for each of them.
        let patience = self.config.fail_after.map_or(END_PATIENCE, |limit| limit.min(END_PATIENCE));
        let is_left = self.ends_since.is_some_and(|begins| {
            let unserved = self.unserved_since().map(|since| self.now.since(since.max(begins)));
            unserved.is_some_and(|time| time >= patience)
        });
        if let Some(limit) = self.config.fail_after {
            if self.gone_since().is_some_and(|since| self.now.since(since) >= limit) {
                self.fail_all(ErrorKind::Away);
            }
            if !self.held.is_empty() {
                self.fail_refused(limit);
            }
        }
        if self.finding.is_over() && self.is_open {
            self.pump();
        }
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
            at = at.min(self.first_due.at.max(self.again_after));
            if !self.waiting.is_empty() {
                at = at.min(self.strays.until(self.now));
            }
        }
        if let (Some(limit), Some(since)) = (self.config.fail_after, self.unserved_since())
            && self.outstanding_of_user()
        {
            at = at.min(since + limit);
        }
        if self.is_known && !self.is_open {
            at = at.min(self.quiet_until);
        }
        if self.is_ending { at.min(self.now + SILENCE) } else { at }
    }

    /// Since when its server does nothing for it, or not all: it is silent, or refuses something that it is asked.
    fn unserved_since(&self) -> Option<Time> {
        let requests = self.requests.values().take_while(|_| !self.held.is_empty());
        let refused = requests.filter_map(|request| self.refused_since(request));
        self.gone_since().into_iter().chain(refused).min()
    }

    /// Since when its server is away, or does not say what its drive is.
    pub(super) fn gone_since(&self) -> Option<Time> {
        let looks =
            self.finding.since().filter(|&since| self.is_known && self.now.since(since) >= SILENCE);
        self.away_since.into_iter().chain(looks).min()
    }

    /// Why something that it asks now was refused last.
    pub(super) fn refused(&self) -> Option<ErrorCode> {
        if !self.finding.is_over() && self.finding.refusal.is_some() {
            return self.finding.refusal;
        }
        let requests = self.requests.values().take_while(|_| !self.held.is_empty());
        let refused = requests.flat_map(Request::in_flight).filter_map(|piece| piece.refused);
        refused.max_by_key(|refusal| refusal.last).and_then(|refusal| refusal.code)
    }

    /// Since when some of it is refused, or waits because others are.
    fn refused_since(&self, request: &Request) -> Option<Time> {
        let is_behind = self.held.like(request.pending.op) >= self.window.frames();
        let behind = request.pieces.get(request.unsent).filter(|_| is_behind);
        request.refused_since().into_iter().chain(behind.map(|piece| piece.first)).min()
    }

    /// When a piece is sent again.
    fn due(&self, piece: &Piece) -> Time {
        let due = piece.sent + self.trips.timeout(piece.tries);
        if piece.is_held() { due.max(self.held.again_after) } else { due }
    }

    fn send_again_what_is_late(&mut self) {
        let timeout = self.trips.timeout(0);
        if self.now < self.first_due.at && timeout >= self.first_due.timeout {
            let mut in_flight = self.requests.values().flat_map(Request::in_flight);
            debug_assert!(in_flight.all(|piece| self.due(piece) > self.now));
            return;
        }
        let (mut late, mut held) = (Vec::new(), Vec::new());
        self.first_due = FirstDue { at: Time::NEVER, timeout };
        for (&number, request) in &self.requests {
            for (at, piece) in request.pieces[..request.unsent].iter().enumerate() {
                if piece.is_done {
                    continue;
                }
                let due = self.due(piece);
                if piece.is_held() && self.now >= due {
                    held.push((piece.sent, number, at));
                    continue;
                }
                self.first_due.at = self.first_due.at.min(due);
                if self.now >= due {
                    late.push((number, at, piece.tries, piece.first));
                }
            }
        }
        // The one that has waited longest. All of them, again and again, would leave no room on the way for anybody else.
        if let Some(&(_, number, at)) = held.iter().min() {
            self.held.on_sent(self.now, timeout);
            self.first_due.at = self.first_due.at.min(self.held.again_after);
            self.send_anew(number, at);
        }
        if late.is_empty() || self.now < self.again_after {
            return;
        }
        self.window.on_loss();
        // All of them together would be lost together, again and again.
        let (all, most) = (late.len(), self.window.frames() as usize);
        late.truncate(most);
        self.again_after = if all > most { self.now + self.trips.timeout(0) } else { self.now };
        if let Some(&(number, at, ..)) = late.iter().find(|late| self.is_ignored(late.0, late.1)) {
            let sectors = self.requests[&number].pieces[at].sectors;
            return self.fall_back(sectors);
        }
        for (number, at, tries, first) in late {
            let is_silent = self.now.since(self.heard_at.max(first)) > SILENCE;
            if tries >= TRIES && is_silent && self.away_since.is_none() {
                self.away_since = Some(self.now);
                self.note(Gravity::Warning, "the server does not answer".to_owned());
                // Another station may have the device by now.
                self.finding.begin_anew(self.now);
            }
            self.send_anew(number, at);
        }
    }

    fn send_anew(&mut self, number: u64, at: usize) {
        let request = self.requests.get_mut(&number).expect("it is on its way");
        let op = request.pending.op;
        let piece = &mut request.pieces[at];
        piece.tries += 1;
        if piece.refused.is_some() && !piece.is_held() {
            // It is not refused any more: it is not answered at all.
            piece.refused = None;
            self.held.take(op);
            self.in_flight += 1;
        }
        self.report.repeated += 1;
        self.send(number, at);
    }

    /// A piece is not answered, again and again, though its server answers others, none of them as long: its frame may be longer
    /// than something on the way carries.
    fn is_ignored(&mut self, number: u64, at: usize) -> bool {
        let heard_at = self.heard_at;
        let request = self.requests.get_mut(&number).expect("it is on its way");
        let carried = &self.carried[usize::from(request.pending.op == Op::Write)];
        let piece = &mut request.pieces[at];
        let sectors = usize::from(piece.sectors);
        let (count, since) = &mut piece.ignored;
        if carried[sectors..].iter().any(|at| at >= since) {
            (*count, *since) = (0, piece.sent);
        }
        let was_refused = piece.refused.is_some_and(|refusal| refusal.last > piece.sent);
        *count += u32::from(heard_at > piece.sent && !was_refused);
        piece.sectors > SECTORS_OF_OLD && *count >= IGNORED_MAX
    }

    /// Frames carry no more than those of the smallest links from now on, as Linux's do then.
    fn fall_back(&mut self, sectors: u8) {
        let bytes = DATA_OFFSET + usize::from(sectors) * SECTOR_BYTES;
        let text = format!(
            "requests of {sectors} sectors are not answered, while shorter ones are: something on the way carries none of \
             {bytes} bytes; requests have {SECTORS_OF_OLD} sectors from now on"
        );
        self.note(Gravity::Warning, text);
        (self.link_sectors, self.frame_sectors) = (SECTORS_OF_OLD, SECTORS_OF_OLD);
        self.recut();
    }

    /// What has not been answered is asked for in pieces of as many sectors as a frame has now.
    pub(super) fn recut(&mut self) {
        let (now, sectors) = (self.now, self.frame_sectors);
        for request in self.requests.values_mut() {
            let is_long = |piece: &Piece| !piece.is_done && piece.sectors > sectors;
            let was_sent = request.unsent;
            let (mut sent, mut unsent) = (Vec::new(), Vec::new());
            for (at, mut piece) in std::mem::take(&mut request.pieces).into_iter().enumerate() {
                let (start, end) = (piece.sector, piece.sector + u64::from(piece.sectors));
                let frames = std::mem::take(&mut piece.frames);
                if is_long(&piece) {
                    if at < was_sent && piece.refused.is_some() {
                        self.held.take(request.pending.op);
                    } else {
                        self.in_flight -= u32::from(at < was_sent);
                    }
                    frames.iter().for_each(|(tag, _)| _ = self.tags.remove(tag));
                    if request.pending.op == Op::Write {
                        self.strays.add(now, start, end, frames);
                    }
                    Piece::cut((start, end), sectors, now, &mut self.spare, &mut unsent);
                } else {
                    piece.frames = frames;
                    if at < was_sent { sent.push(piece) } else { unsent.push(piece) }
                }
            }
            request.unsent = sent.len();
            request.pieces = sent;
            request.pieces.append(&mut unsent);
        }
        // They are found by where they are.
        for (&number, request) in &self.requests {
            for (at, piece) in request.pieces.iter().enumerate() {
                piece.frames.iter().for_each(|&(tag, _)| _ = self.tags.insert(tag, (number, at)));
            }
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
        // However late an answer comes, it is one; but nobody waits for those of the first of so many.
        if piece.frames.len() == FRAMES_MAX {
            let (oldest, _) = piece.frames.remove(0);
            self.tags.remove(&oldest);
        }
        piece.frames.push((tag, now));
        piece.sent = now;
        self.first_due.at = self.first_due.at.min(now + self.trips.timeout(piece.tries));
        self.first_due.timeout = self.first_due.timeout.max(self.trips.timeout(0));
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
        if self.in_flight < self.window.frames() {
            let unsent = |r: &Request| r.unsent < r.pieces.len();
            let open = self.requests.iter().filter(|(_, r)| unsent(r)).map(|(&number, _)| number);
            let open: Vec<u64> = open.collect();
            open.into_iter().for_each(|number| self.send_more(number));
        }
        while self.in_flight < self.window.frames() && self.requests.len() < REQUESTS_MAX {
            let Some(pending) = self.waiting.front() else { return };
            let (start, end, op) = (pending.start, pending.end, pending.op);
            // Reads beside reads do not.
            let may_conflict = op == Op::Write || self.writes > 0;
            let conflicts =
                may_conflict && self.requests.values().any(|r| r.pending.conflicts(pending));
            let is_careless = self.config.canary == AoeCanary::NoQuarantine;
            let may_land = op == Op::Write && !self.strays.allow(self.now, start, end);
            if conflicts || may_land && !is_careless {
                return;
            }
            let pending = self.waiting.pop_front().expect("just seen");
            let number = self.next_request;
            self.next_request += 1;
            self.writes += usize::from(op == Op::Write);
            let (sectors, now) = (self.frame_sectors, self.now);
            let request = Request::new(pending, sectors, now, &mut self.spare);
            self.requests.insert(number, request);
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
            if self.held.like(request.pending.op) >= self.window.frames() {
                // It would be refused, too.
                return;
            }
            piece.first = now;
            request.unsent += 1;
            self.in_flight += 1;
            self.send(number, at);
        }
    }

    /// A server has said something of the device.
    pub(super) fn on_answer(&mut self, frame: &Frame<'_>, rx: &RxFrame) {
        if let Body::Query(query) = &frame.body {
            return self.on_config(rx.from, frame.header.tag, query);
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
                let piece = self.tags.get(&frame.header.tag).copied();
                if piece.is_none() && !self.finding.asks(frame.header.tag) {
                    // What it refuses was done meanwhile, under another tag, or is not asked any more.
                    return self.report.late += 1;
                }
                // As Linux does: it is asked again.
                self.report.refused += 1;
                let code = frame.header.code();
                let Some((number, at)) = piece else { return self.finding.refusal = code };
                let request = self.requests.get_mut(&number).expect("its tags are known");
                let refused = &mut request.pieces[at].refused;
                if refused.is_none() {
                    self.held.add(request.pending.op);
                    self.in_flight -= 1;
                }
                let since = refused.map_or(self.now, |refusal| refusal.since);
                *refused = Some(Refusal { since, last: self.now, code });
                if code == Some(ErrorCode::BadArgument) && self.finding.is_over() {
                    // It may take less than it did.
                    self.finding.begin_anew(self.now);
                }
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
        if registers.is_done() {
            let is_write = request.pending.op == Op::Write;
            self.carried[usize::from(is_write)][usize::from(piece.sectors)] = self.now;
        }
        if piece.tries == 0 {
            self.trips.on_answer(self.now.since(piece.first));
        }
        piece.is_done = true;
        if !registers.is_done() {
            request.error = Some(kind_of(registers.error_feature));
        }
        self.window.on_answer();
        self.again_after = self.now;
        if piece.refused.is_some() {
            self.held.take(request.pending.op);
            self.held.on_done(self.now);
            self.first_due.at = self.now;
        } else {
            self.in_flight -= 1;
        }
        let (start, end) = (piece.sector, piece.sector + u64::from(piece.sectors));
        let mut others = std::mem::take(&mut piece.frames);
        others.iter().for_each(|(tag, _)| _ = self.tags.remove(tag));
        others.retain(|&(other, _)| other != tag);
        match request.pending.op == Op::Write && !others.is_empty() {
            true => self.strays.add(self.now, start, end, others),
            false => self.spare.put_frames(others),
        }
        if request.pieces.iter().all(|piece| piece.is_done) {
            let mut request = self.take_off(number).expect("just seen");
            let mut data = SegList::new();
            match request.error {
                Some(kind) => self.complete(&request.pending, Err(kind), data),
                None => {
                    request.pieces.sort_unstable_by_key(|piece| piece.sector);
                    request.pieces.drain(..).for_each(|piece| data.append(piece.data));
                    self.spare.pieces.push(request.pieces);
                    match request.pending.flush_behind() {
                        Some(flush) => self.waiting.push_back(flush),
                        None => self.complete(&request.pending, Ok(()), data),
                    }
                }
            }
        }
    }

    /// Everything of the user fails. What was sent may still land.
    pub(super) fn fail_all(&mut self, kind: ErrorKind) {
        while let Some((&number, _)) = self.requests.first_key_value() {
            self.fail_request(number, kind);
        }
        for pending in std::mem::take(&mut self.waiting) {
            self.complete(&pending, Err(kind), SegList::new());
        }
    }

    /// What the server has refused for so long fails: nothing else ends it, as long as the server answers.
    fn fail_refused(&mut self, limit: Duration) {
        let is_over =
            |r: &Request| self.refused_since(r).is_some_and(|since| self.now.since(since) >= limit);
        let over = self.requests.iter().filter(|(_, r)| is_over(r)).map(|(&number, _)| number);
        let over: Vec<u64> = over.collect();
        for number in &over {
            let refused = self.requests[number].in_flight().filter_map(|piece| piece.refused);
            if let Some(code) = refused.filter_map(|refusal| refusal.code).last() {
                let why = code.name();
                let text = format!("the server refuses, and goes on refusing ({why}): given up");
                self.note(Gravity::Warning, text);
            }
        }
        over.into_iter().for_each(|number| self.fail_request(number, ErrorKind::Away));
    }

    /// A request is not on its way any more.
    fn take_off(&mut self, number: u64) -> Option<Request> {
        let request = self.requests.remove(&number)?;
        self.writes -= usize::from(request.pending.op == Op::Write);
        Some(request)
    }

    fn fail_request(&mut self, number: u64, kind: ErrorKind) {
        let Some(mut request) = self.take_off(number) else { return };
        for piece in request.in_flight() {
            match piece.refused {
                Some(_) => self.held.take(request.pending.op),
                None => self.in_flight -= 1,
            }
        }
        for piece in &mut request.pieces {
            let end = piece.sector + u64::from(piece.sectors);
            let frames = std::mem::take(&mut piece.frames);
            frames.iter().for_each(|(tag, _)| _ = self.tags.remove(tag));
            if request.pending.op == Op::Write {
                self.strays.add(self.now, piece.sector, end, frames);
            }
        }
        self.complete(&request.pending, Err(kind), SegList::new());
    }
}
