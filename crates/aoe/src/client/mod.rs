//! The client: a disk that a server of AoE has, as a volume. It does what Linux's driver does, so that tests see what that
//! would (`docs/aoe.md`, "The client").
//!
//! * `finding.rs`: which station has the device, and how large that is
//! * `flow.rs`: what is sent when: order, answers, retransmission; `request.rs`: what is on its way
//! * `held.rs`: what the server refuses
//! * `late.rs`: writes that may still land; `timing.rs`: how long an answer is waited for

mod finding;
mod flow;
mod held;
mod late;
mod request;
mod timing;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use thinwire_buffer::{Addr, LinkInfo, RxFrame, SegList, Time, TxBatch};
use thinwire_volume::{
    Closing, Completion, Effect, ErrorKind, Expects, Features, Geometry, Gravity, Identity, Io,
    IoError, Op, Part, Token, Volume, VolumeEvent,
};
use thinwire_wire::aoe::{DATA_OFFSET, ErrorCode, Frame, SECTOR_BYTES, ShelfSlot};

use self::finding::Finding;
use self::flow::FirstDue;
use self::held::Held;
use self::late::{LIFETIME, Strays};
use self::request::{Request, Spare};
use self::timing::{RoundTrips, Window};
use crate::AoeCanary;

/// The name of this module in errors.
const MODULE: &str = "aoe";

/// What a client is to do.
#[derive(Clone, Debug)]
pub struct AoeClientConfig {
    /// The device: of one shelf and one slot.
    pub device: ShelfSlot,
    /// The station that has it; whichever says so if `None`.
    pub server: Option<Addr>,
    /// It will not write.
    pub read_only: bool,
    /// A flush is asked of the server. Linux's client never does that: it takes what is answered for durable.
    pub flushes: bool,
    /// How long the server may be away before I/O fails; `None` to wait.
    pub fail_after: Option<Duration>,
    /// Tags begin behind it: answers to whoever was at this station before do not fit those of this client.
    pub seed: u64,
    /// What people call it in messages.
    pub label: String,
    /// A fault that the simulator has to find.
    pub canary: AoeCanary,
}

/// Where a client stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AoeClientState {
    /// It looks for its server, or asks it how large the device is.
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
pub struct AoeClientReport {
    /// Where it stands.
    pub state: AoeClientState,
    /// The station that has the device, once that is known.
    pub server: Option<Addr>,
    /// Sectors of a frame.
    pub frame_sectors: u8,
    /// Requests that may be on their way.
    pub window: u32,
    /// Frames sent.
    pub frames: u64,
    /// Those of them that said something again.
    pub repeated: u64,
    /// Answers that nobody waited for.
    pub late: u64,
    /// Answers by which a server refused a request, which is asked again.
    pub refused: u64,
    /// Frames that are none, or of another.
    pub dropped: u64,
    /// Other stations that say that they are the device.
    pub rivals: u64,
}

/// What is to be asked.
#[derive(Debug)]
struct Pending {
    token: Token,
    op: Op,
    /// In sectors; none for a flush.
    start: u64,
    end: u64,
    data: SegList,
    /// A write that is durable when it ends, by a flush that follows it.
    then_flush: bool,
    /// It is the flush behind a write of these sectors.
    behind: Option<(u64, u64)>,
}

impl Pending {
    /// The flush that it takes before this write, which has succeeded, has ended.
    fn flush_behind(&self) -> Option<Pending> {
        let behind = self.then_flush.then_some((self.start, self.end))?;
        let (start, end, data) = (0, 0, SegList::new());
        let (op, then_flush, behind) = (Op::Flush, false, Some(behind));
        Some(Pending { token: self.token, op, start, end, data, then_flush, behind })
    }

    /// Two that must not be on their way together.
    fn conflicts(&self, other: &Pending) -> bool {
        let overlap = self.start < other.end && other.start < self.end;
        overlap && (self.op == Op::Write || other.op == Op::Write)
    }
}

/// A disk that a server of AoE has. Belongs to one thread; nothing in it waits.
pub struct AoeClient {
    config: AoeClientConfig,
    now: Time,
    finding: Finding,
    failure: Option<ErrorKind>,
    /// The drive has said what it is.
    is_known: bool,
    is_open: bool,
    /// Before that it writes nothing: what a former one of this station has sent may still land.
    quiet_until: Time,
    is_ending: bool,
    /// Since when.
    ends_since: Option<Time>,
    is_closed: bool,
    geometry: Geometry,
    serial: [u8; 20],
    server: Option<Addr>,
    /// Of a frame: what its link carries, and no more than the server takes.
    link_sectors: u8,
    frame_sectors: u8,
    waiting: VecDeque<Pending>,
    /// On their way, by number: oldest first.
    requests: BTreeMap<u64, Request>,
    /// How many of them write.
    writes: usize,
    /// What of them is refused.
    held: Held,
    next_request: u64,
    /// Of frames that have not been answered: which piece of which request each is.
    tags: BTreeMap<u32, (u64, usize)>,
    last_tag: u32,
    /// Pieces that were sent, but for those that are done or held.
    in_flight: u32,
    /// When a request of so many sectors was done last: reads, and writes.
    carried: Box<[[Time; 1 + u8::MAX as usize]; 2]>,
    window: Window,
    /// What is late is not sent again before, unless something is answered: more is late than may be on its way.
    again_after: Time,
    first_due: FirstDue,
    spare: Spare,
    trips: RoundTrips,
    strays: Strays,
    /// When the server was heard last, and since when it is away.
    heard_at: Time,
    /// When its drive was looked at last.
    looked_at: Time,
    away_since: Option<Time>,
    done: Vec<Completion>,
    out: TxBatch,
    notes: Vec<(Gravity, String)>,
    report: AoeClientReport,
}

impl AoeClient {
    /// A client that looks for its device from now on, on a link of which it knows this much.
    pub fn new(now: Time, config: AoeClientConfig, info: LinkInfo) -> Self {
        let features = Features {
            read_only: config.read_only,
            discard: false,
            write_zeroes: false,
            block_status: false,
        };
        let geometry = Geometry {
            bytes: 0,
            block_bytes: SECTOR_BYTES as u32,
            preferred_bytes: 4096,
            io_bytes_max: 4096,
            features,
        };
        let room = info.frame_bytes.max.saturating_sub(DATA_OFFSET) / SECTOR_BYTES;
        let (server, last_tag) = (config.server, config.seed as u32);
        let is_noisy = config.read_only || config.canary == AoeCanary::NotQuiet;
        let quiet_until = if is_noisy { now } else { now + LIFETIME };
        AoeClient {
            config,
            now,
            finding: Finding::new(now),
            failure: None,
            is_known: false,
            is_open: false,
            quiet_until,
            is_ending: false,
            ends_since: None,
            is_closed: false,
            geometry,
            serial: [0; 20],
            server,
            link_sectors: room.clamp(1, usize::from(u8::MAX)) as u8,
            frame_sectors: 1,
            waiting: VecDeque::new(),
            requests: BTreeMap::new(),
            writes: 0,
            held: Held::NONE,
            next_request: 0,
            tags: BTreeMap::new(),
            last_tag,
            in_flight: 0,
            carried: Box::new([[Time::ZERO; 1 + u8::MAX as usize]; 2]),
            window: Window::new(1),
            again_after: now,
            first_due: FirstDue::NONE,
            spare: Spare::default(),
            trips: RoundTrips::default(),
            strays: Strays::default(),
            heard_at: now,
            looked_at: now,
            away_since: None,
            done: Vec::new(),
            out: TxBatch::new(),
            notes: Vec::new(),
            report: AoeClientReport {
                state: AoeClientState::Connecting,
                server,
                frame_sectors: 0,
                window: 0,
                frames: 0,
                repeated: 0,
                late: 0,
                refused: 0,
                dropped: 0,
                rivals: 0,
            },
        }
    }

    /// It knows its device, so that [`Volume::geometry`] means something, and may use it: who writes waits for the 2 s in which
    /// frames of a former one at this station may still land.
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// Why it has failed for good, if it has.
    pub fn failure(&self) -> Option<ErrorKind> {
        self.failure
    }

    /// Why the server refuses something that it asks, if it does.
    pub fn refusal(&self) -> Option<ErrorCode> {
        self.refused()
    }

    /// How it does.
    pub fn report(&self) -> AoeClientReport {
        let state = match (self.failure, self.is_closed, self.is_open) {
            (Some(kind), ..) => AoeClientState::Failed(kind),
            (None, true, _) => AoeClientState::Closed,
            (None, false, _) if self.is_ending => AoeClientState::Ending,
            (None, false, false) => AoeClientState::Connecting,
            (None, false, true) if self.gone_since().is_some() => AoeClientState::Away,
            (None, false, true) => AoeClientState::Open,
        };
        AoeClientReport {
            state,
            server: self.server,
            frame_sectors: self.frame_sectors,
            window: self.window.frames(),
            ..self.report
        }
    }

    /// Begins to end: what is outstanding is waited for.
    pub fn close(&mut self) {
        self.is_ending = true;
        self.ends_since.get_or_insert(self.now);
    }

    /// Ends at once: what is outstanding may have been done, or not.
    pub fn abort(&mut self) {
        self.fail_all(ErrorKind::ShuttingDown);
        self.is_closed = true;
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
        let (op, (start, end)) = match pending.behind {
            Some(range) => (Op::Write, range),
            None => (pending.op, (pending.start, pending.end)),
        };
        let sector = SECTOR_BYTES as u64;
        let (offset, len) = (start * sector, (end - start) * sector);
        let result = result.map_err(|kind| IoError { kind, op, offset, len, module: MODULE });
        self.done.push(Completion { data, ..Completion::new(pending.token, result) });
    }

    fn outstanding_of_user(&self) -> bool {
        !self.waiting.is_empty() || !self.requests.is_empty()
    }

    /// It fails for good.
    fn fail(&mut self, kind: ErrorKind) {
        self.failure.get_or_insert(kind);
        self.fail_all(kind);
    }

    /// A frame has arrived.
    fn take(&mut self, now: Time, rx: &RxFrame) {
        self.now = now;
        // Of answers to queries the string matters to nobody here.
        let mut head = [0; 64];
        let seen = rx.len().min(head.len());
        rx.copy_to(0, &mut head[..seen]);
        let config;
        let frame = match Frame::parse(&head[..seen]) {
            Ok(frame) => frame,
            Err(_) if seen < rx.len() => {
                let mut whole = vec![0; rx.len()];
                rx.copy_to(0, &mut whole);
                config = whole;
                match Frame::parse(&config) {
                    Ok(frame) => frame,
                    Err(_) => return self.report.dropped += 1,
                }
            }
            Err(_) => return self.report.dropped += 1,
        };
        if !frame.header.is_response || frame.header.device != self.config.device {
            return self.report.dropped += 1;
        }
        self.on_answer(&frame, rx);
    }
}

impl Volume for AoeClient {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Of the serial number that the drive tells.
    fn identity(&self) -> Identity {
        let mut identity = [0; 16];
        identity.copy_from_slice(&self.serial[..16]);
        Identity { identity, incarnation: 0 }
    }

    fn submit(&mut self, io: Io) {
        let is_over = self.is_ending || self.is_closed;
        let refusal = self.failure.or(is_over.then_some(ErrorKind::ShuttingDown));
        let sector = |bytes: u64| bytes / SECTOR_BYTES as u64;
        let (start, end) = match io.op {
            Op::Flush => (0, 0),
            _ => (sector(io.offset), sector(io.offset + io.len)),
        };
        // The protocol has nothing else for it.
        let then_flush = io.flags.fua && io.op == Op::Write && self.config.flushes;
        let (token, op, data, behind) = (io.token, io.op, io.data, None);
        let pending = Pending { token, op, start, end, data, then_flush, behind };
        let unable = !matches!(io.op, Op::Read | Op::Write | Op::Flush);
        match (unable, refusal) {
            (true, _) => self.complete(&pending, Err(ErrorKind::Unsupported), SegList::new()),
            (_, Some(kind)) => self.complete(&pending, Err(kind), SegList::new()),
            _ if io.op == Op::Flush && !self.config.flushes => {
                self.complete(&pending, Ok(()), SegList::new());
            }
            _ => self.waiting.push_back(pending),
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        done.append(&mut self.done);
    }

    fn outstanding(&self) -> usize {
        self.waiting.len() + self.requests.len() + self.done.len()
    }

    /// It tells of none: Linux's does not look whether a device grows while it is in use.
    fn events(&self) -> u64 {
        0
    }

    fn poll_events(&mut self, _: &mut Vec<VolumeEvent>) {}
}

impl Part for AoeClient {
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
