//! The client: a disk that a server of EBD has, as a volume (`docs/ebd.md`).
//!
//! * `shaking.rs`: handshakes, how large a block may be, and servers that are away
//! * `flow.rs`: what is sent when: credit, order, answers, retransmission
//! * `request.rs`: one request; `retained.rs`: what is kept until it is flushed; `late.rs`: frames that come late; `timing.rs`: how long an answer is waited for

mod flow;
mod late;
mod request;
mod retained;
mod shaking;
mod timing;

use std::collections::VecDeque;
use std::time::Duration;

use thinwire_buffer::{Addr, LinkInfo, RxFrame, SegList, Time, TxBatch};
use thinwire_volume::{
    Closing, Completion, Effect, ErrorKind, Expects, Features, Geometry, Gravity, Identity, Io,
    IoError, Op, Part, Volume, VolumeEvent,
};
use thinwire_wire::ebd::{EbdForm, EbdState, Frame, NakReason, Operation, Tag};

use self::late::{Pairs, Quarantine};
use self::request::{Owner, Pending, Request};
use self::retained::Retained;
use self::shaking::Shaking;
use self::timing::Timeout;
use crate::{EbdCanary, LIFETIME};

/// The name of this module in errors.
const MODULE: &str = "ebd";
/// Requests on their way together, at most.
const REQUESTS_MAX: usize = 256;
/// So many sectors a length can say.
const BLOCK_BYTES_MAX: u32 = u8::MAX as u32 * 512;

/// What a client is to do.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Which form it speaks.
    pub form: EbdForm,
    /// The server's station.
    pub server: Addr,
    /// The device there.
    pub major: u8,
    /// The device there.
    pub minor: u8,
    /// Which of the devices of this machine it is to the server: in the implemented form, where no two of a machine may
    /// be the same.
    pub client: u8,
    /// The block that it asks for, in bytes: what its link carries at most.
    pub block_bytes: u32,
    /// It will not write.
    pub read_only: bool,
    /// Whoever else may write is to lose that.
    pub take_over: bool,
    /// It asks on if another writes at first, or there is no such device.
    pub waits: bool,
    /// How long the server may be away before I/O fails; `None` to wait.
    pub fail_after: Option<Duration>,
    /// Writes that were answered and not flushed are kept up to so many bytes: beyond that it asks for a flush.
    pub retained_bytes_max: usize,
    /// What people call it in messages.
    pub label: String,
    /// By which its numbers differ from those of an earlier client at this station: another for each.
    pub seed: u64,
    /// A fault of its own.
    pub canary: EbdCanary,
}

/// Where a client stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientState {
    /// It has not been answered yet.
    Connecting,
    /// In use.
    Open,
    /// Its server does not answer.
    Away,
    /// It ends in order.
    Ending,
    /// Over.
    Closed,
    /// It has failed for good.
    Failed(ErrorKind),
}

/// How a client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientReport {
    /// Where it stands.
    pub state: ClientState,
    /// The block that was agreed on, in bytes.
    pub block_bytes: u32,
    /// Sectors that it may have asked for at one time.
    pub credit: u16,
    /// Writes that are kept.
    pub retained_bytes: usize,
    /// Frames sent, and those of them that said something again.
    pub frames: u64,
    /// Those of them that said something again.
    pub repeated: u64,
    /// Answers that nobody waited for.
    pub late: u64,
    /// Frames that are none, of another, or contradict themselves.
    pub dropped: u64,
    /// Handshakes that were answered.
    pub handshakes: u64,
}

/// A disk that a server of EBD has. Belongs to one thread; nothing in it waits.
pub struct EbdClient {
    config: ClientConfig,
    now: Time,
    shaking: Shaking,
    failure: Option<ErrorKind>,
    is_open: bool,
    is_ending: bool,
    is_closed: bool,
    geometry: Geometry,
    /// As the server said last.
    told: EbdState,
    /// By which the server knows it, in the implemented form.
    index: u8,
    /// Sectors.
    block: u32,
    request_sectors: u32,
    credit: u16,
    first_credit: u16,
    waiting: VecDeque<Pending>,
    requests: Vec<Request>,
    pairs: Pairs,
    quarantine: Quarantine,
    handles: u32,
    retained: Retained,
    /// Ranges of what is retained that are still to be sent again, and how many are on their way.
    replays: VecDeque<(u32, u32)>,
    replaying: usize,
    wack_timeout: Timeout,
    timeout: Timeout,
    /// When the server was heard last, and since when it is away.
    heard_at: Time,
    away_since: Option<Time>,
    probed_at: Time,
    /// When a flush was refused last, and whether the one that comes before the end has been asked for.
    flush_failed_at: Option<Time>,
    ends_with_flush: bool,
    has_lost: bool,
    done: Vec<Completion>,
    /// How often it has grown since it was opened, and whether that is to be told.
    events: u64,
    grown: Option<VolumeEvent>,
    /// That another writer has it, until that is told.
    fenced: Option<VolumeEvent>,
    out: TxBatch,
    notes: Vec<(Gravity, String)>,
    report: ClientReport,
}

impl EbdClient {
    /// A client that shakes hands from now on, on a link of which it knows this much.
    pub fn new(now: Time, config: ClientConfig, info: LinkInfo) -> Self {
        let features = Features {
            read_only: config.read_only,
            discard: false,
            write_zeroes: false,
            block_status: false,
        };
        let geometry = Geometry {
            bytes: 0,
            block_bytes: 512,
            preferred_bytes: 4096,
            io_bytes_max: 4096,
            features,
        };
        let fits = info.frame_bytes.max.saturating_sub(config.form.header_bytes()) as u32;
        let block_bytes = config.block_bytes.min(fits / 512 * 512).min(BLOCK_BYTES_MAX);
        let mut shaking = Shaking::new(now, block_bytes, config.seed as u16);
        if config.form == EbdForm::Ideal {
            // Nothing tells it from an earlier client at this station, whose frames may still be on their way.
            shaking.begin_at(now + LIFETIME);
        }
        let handles = config.seed as u32;
        let none = Timeout::new(Duration::ZERO, Duration::ZERO);
        EbdClient {
            config,
            now,
            shaking,
            failure: None,
            is_open: false,
            is_ending: false,
            is_closed: false,
            geometry,
            told: EbdState::default(),
            index: 0,
            block: 8,
            request_sectors: 8,
            credit: 0,
            first_credit: 0,
            waiting: VecDeque::new(),
            requests: Vec::new(),
            pairs: Pairs::new(),
            quarantine: Quarantine::default(),
            handles,
            retained: Retained::default(),
            replays: VecDeque::new(),
            replaying: 0,
            wack_timeout: none,
            timeout: none,
            heard_at: now,
            away_since: None,
            probed_at: now,
            flush_failed_at: None,
            ends_with_flush: false,
            has_lost: false,
            done: Vec::new(),
            events: 0,
            fenced: None,
            grown: None,
            out: TxBatch::new(),
            notes: Vec::new(),
            report: ClientReport {
                state: ClientState::Connecting,
                block_bytes: 0,
                credit: 0,
                retained_bytes: 0,
                frames: 0,
                repeated: 0,
                late: 0,
                dropped: 0,
                handshakes: 0,
            },
        }
    }

    /// It has been let in: [`Volume::geometry`] means something.
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// Why it has failed for good, if it has.
    pub fn failure(&self) -> Option<ErrorKind> {
        self.failure
    }

    /// Why the server refused it last, if it did.
    pub fn refusal(&self) -> Option<NakReason> {
        self.shaking.refusal()
    }

    /// Which content the server has, and under which grant this client writes, as it was told last.
    pub fn state(&self) -> EbdState {
        self.told
    }

    /// How it does.
    pub fn report(&self) -> ClientReport {
        let state = match (self.failure, self.is_closed, self.is_open) {
            (Some(kind), ..) => ClientState::Failed(kind),
            (None, true, _) => ClientState::Closed,
            (None, false, _) if self.is_ending => ClientState::Ending,
            (None, false, false) => ClientState::Connecting,
            (None, false, true) if self.away_since.is_some() => ClientState::Away,
            (None, false, true) => ClientState::Open,
        };
        ClientReport {
            state,
            block_bytes: self.block * 512,
            credit: self.credit,
            retained_bytes: self.retained.bytes(),
            ..self.report
        }
    }

    /// Begins to end: what was written is flushed, and the server told.
    pub fn close(&mut self) {
        self.is_ending = true;
    }

    /// Ends at once. What was not flushed may be lost.
    pub fn abort(&mut self) {
        self.end(ErrorKind::ShuttingDown);
    }

    /// It has ended.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// The next thing that a person should know.
    pub fn take_note(&mut self) -> Option<(Gravity, String)> {
        (!self.notes.is_empty()).then(|| self.notes.remove(0))
    }

    fn note(&mut self, gravity: Gravity, text: String) {
        self.notes.push((gravity, format!("{}: {text}", self.config.label)));
    }

    fn complete(&mut self, pending: &Pending, result: Result<(), ErrorKind>, data: SegList) {
        let Owner::User(token) = pending.owner else { return };
        let (op, start) = (pending.op, u64::from(pending.start));
        let (offset, len) = (start * 512, (u64::from(pending.end) - start) * 512);
        let result = result.map_err(|kind| IoError { kind, op, offset, len, module: MODULE });
        self.done.push(Completion { data, ..Completion::new(token, result) });
    }

    /// Everything of the user fails.
    fn fail_all(&mut self, kind: ErrorKind) {
        for request in std::mem::take(&mut self.requests) {
            self.forget(&request);
            self.complete(&request.pending, Err(kind), SegList::new());
        }
        for pending in std::mem::take(&mut self.waiting) {
            self.complete(&pending, Err(kind), SegList::new());
        }
        (self.replaying, self.probed_at) = (0, self.now);
    }

    /// It has failed for good, or was ended, with something that was answered or asked and may not be on the medium.
    pub fn has_lost(&self) -> bool {
        self.has_lost || !self.retained.is_empty()
    }

    /// It fails for good.
    fn fail(&mut self, kind: ErrorKind) {
        if self.failure.replace(self.failure.unwrap_or(kind)).is_none() && kind == ErrorKind::Fenced
        {
            self.events += 1;
            self.fenced = Some(VolumeEvent::Fenced { of: None });
        }
        self.has_lost |= !self.retained.is_empty();
        self.has_lost |= self.requests.iter().any(|request| request.pending.op == Op::Write);
        self.fail_all(kind);
        self.retained.clear();
        self.replays.clear();
    }

    fn end(&mut self, kind: ErrorKind) {
        self.fail_all(kind);
        self.is_closed = true;
    }

    /// Whether a frame's tag is of this client.
    fn is_own(&self, tag: Tag) -> bool {
        match tag {
            Tag::Ideal { major, minor, .. } => {
                (major, minor) == (self.config.major, self.config.minor)
            }
            Tag::Implemented { client, .. } => client == self.config.client,
        }
    }

    fn say(&mut self, frame: &Frame, data: SegList) {
        let (header, len) = frame.header();
        let out = self.out.push(self.config.server);
        out.head.extend_from_slice(&header[..len]);
        out.data = data;
        self.report.frames += 1;
    }

    /// A frame has arrived.
    fn take(&mut self, now: Time, rx: &RxFrame) {
        self.now = now;
        let mut head = [0; 18];
        let seen = rx.len().min(head.len());
        rx.copy_to(0, &mut head[..seen]);
        let frame = match Frame::parse(&head[..seen]) {
            Ok(frame) if frame.is_answer && rx.from == self.config.server => frame,
            _ => return self.report.dropped += 1,
        };
        let is_for_all = frame.operation == Operation::Congestion
            && matches!(frame.tag, Tag::Implemented { client: u8::MAX, .. });
        if frame.form() != self.config.form || !(is_for_all || self.is_own(frame.tag)) {
            return self.report.dropped += 1;
        }
        self.on_answer(now, &frame, rx);
    }
}

impl Volume for EbdClient {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn identity(&self) -> Identity {
        let mut identity = [0; 16];
        identity[..3].copy_from_slice(b"ebd");
        if let Addr::Mac(mac) = self.config.server {
            identity[4..10].copy_from_slice(&mac);
        }
        (identity[10], identity[11]) = (self.config.major, self.config.minor);
        Identity { identity, incarnation: u64::from(self.told.content) }
    }

    fn submit(&mut self, io: Io) {
        let refusal = self.failure.or(self.is_ending.then_some(ErrorKind::ShuttingDown));
        let refusal = refusal.or((self.is_closed).then_some(ErrorKind::ShuttingDown));
        let sector = |bytes: u64| (bytes / 512) as u32;
        let pending = Pending {
            owner: Owner::User(io.token),
            op: io.op,
            is_durable: io.flags.fua,
            start: sector(io.offset),
            end: sector(io.offset + io.len),
            data: io.data,
        };
        let pending = match io.op {
            Op::Flush => Pending { start: 0, end: 0, ..pending },
            _ => pending,
        };
        let unable = !matches!(io.op, Op::Read | Op::Write | Op::Flush);
        match (unable, refusal) {
            (true, _) => self.complete(&pending, Err(ErrorKind::Unsupported), SegList::new()),
            (_, Some(kind)) => self.complete(&pending, Err(kind), SegList::new()),
            _ => self.waiting.push_back(pending),
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        done.append(&mut self.done);
    }

    fn outstanding(&self) -> usize {
        let is_users = |owner: Owner| matches!(owner, Owner::User(_));
        self.waiting.iter().filter(|pending| is_users(pending.owner)).count()
            + self.requests.iter().filter(|request| is_users(request.pending.owner)).count()
            + self.done.len()
    }

    fn events(&self) -> u64 {
        self.events
    }

    fn poll_events(&mut self, events: &mut Vec<VolumeEvent>) {
        events.extend(self.grown.take());
        events.extend(self.fenced.take());
    }
}

impl Part for EbdClient {
    fn volume(&mut self) -> Option<&mut dyn Volume> {
        Some(self)
    }

    fn on_frame(&mut self, now: Time, _: usize, frame: &mut RxFrame) {
        self.take(now, frame);
    }

    fn on_foreign_frame(&mut self, now: Time, _: usize, frame: &mut RxFrame) {
        self.take(now, frame);
    }

    fn settle(&mut self, now: Time) {
        self.now = now;
    }

    fn close(&mut self, turn: &mut Closing<'_>) -> Time {
        self.now = turn.now;
        self.go_on();
        turn.out[0].append(&mut self.out);
        while let Some((gravity, text)) = self.take_note() {
            turn.effects.push(Effect::Note(gravity, text));
        }
        match self.done.is_empty() {
            true => self.deadline(),
            false => self.now,
        }
    }

    fn expects(&self) -> Expects {
        match self.requests.is_empty() {
            true => Expects::Nothing,
            false => Expects::Answer(Duration::from_micros(100)),
        }
    }
}
