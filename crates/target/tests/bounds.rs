//! What a peer that takes nothing in can make a target keep (`docs/protocol.md`, "Bounds").

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use thinwire_buffer::{Addr, FrameSizes, LinkInfo, Pool, Room, RxFrame, SegList, TxBatch, TxFrame};
use thinwire_proto::{StageObserver, StageSums, Time, outside_frame, seal};
use thinwire_target::{ExportConfig, SESSION_NUMBER, Target, TargetConfig};
use thinwire_volume::stores::NullStore;
use thinwire_volume::{Completion, Geometry, Identity, Io, Volume};
use thinwire_wire::{
    AskClocks, Attach, Bye, DATA_OFFSET, DataHeader, Detach, Feedback, Frame, Header, Hello, Kind,
    Message, OpCode, Ping, Probe, ProbeReply, Request, Reset, attach_flags, flags,
};

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(0) };
}

/// The system's allocator, adding up by thread what is in use.
struct Counting;

fn count(bytes: isize) {
    let live = LIVE.with(|live| live.get() + bytes);
    LIVE.with(|cell| cell.set(live));
    MOST.with(|most| most.set(most.get().max(live)));
}

// SAFETY: everything is passed to the system's allocator unchanged; counting touches thread-locals
// without destructors.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize - layout.size() as isize);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const ROOM: Room = Room { frames: 1 << 20, bytes: 1 << 30 };
const HAND: u64 = 1234;
const FRAME_BYTES: usize = 8968;

/// A store that completes nothing until it is let go.
struct Stuck(NullStore, Rc<Cell<bool>>);

impl Volume for Stuck {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }
    fn identity(&self) -> Identity {
        self.0.identity()
    }
    fn submit(&mut self, io: Io) {
        self.0.submit(io);
    }
    fn poll(&mut self, done: &mut Vec<Completion>) {
        if !self.1.get() {
            self.0.poll(done);
        }
    }
    fn outstanding(&self) -> usize {
        self.0.outstanding()
    }
}

struct NoClocks;

impl StageObserver for NoClocks {
    fn cross(&self, _: thinwire_proto::Stage) {}
    fn ask(&self, _: u8) -> StageSums {
        StageSums::default()
    }
}

fn config() -> TargetConfig {
    let mut config =
        TargetConfig { node: "node".into(), insecure: true, ..TargetConfig::default() };
    // It opens them one after the other as fast as it can.
    for limit in ["greetings", "greetings-per-address"] {
        config.limits.set(limit, 1_000_000).unwrap();
    }
    config
}

/// A target, and a peer of it made by hand: it acknowledges nothing, and answers probes.
struct Pair {
    target: Target,
    now: Time,
    out: [TxBatch; 1],
    pool: Pool,
    session: u64,
    epoch: u32,
    /// What the target wants to be greeted with.
    cookie: u64,
    next_number: u64,
    /// What the target held before the peer came.
    before: isize,
    /// Sessions that were opened, one after the other.
    sessions: usize,
    /// What the last attach was answered with.
    handle: Option<(u32, u32)>,
    /// The store completes nothing.
    stuck: Rc<Cell<bool>>,
    /// It acknowledges after all: the largest number that it has heard in the session.
    heard: Option<u64>,
}

impl Pair {
    fn new() -> Self {
        let (addr, room) = (Addr::Sim(1), ROOM);
        let frame_bytes = FrameSizes { base: 1280, max: FRAME_BYTES };
        let link = LinkInfo { addr, frame_bytes, room };
        // As in the shipped target, frames arrive in memory of the pool that it is given.
        let pool = Pool::new(1 << 20);
        let mut target = Target::new(config(), vec![link], 0, pool.clone(), 1);
        let stuck = Rc::new(Cell::new(false));
        let volume = Box::new(Stuck(NullStore::new(1 << 30, 512), stuck.clone()));
        target.add_export(ExportConfig { name: "disk".into(), volume, read_only: false });
        target.set_observer(Rc::new(NoClocks));
        let before = LIVE.with(Cell::get);
        let mut pair = Pair {
            target,
            now: Time(1_000_000_000),
            out: [TxBatch::new()],
            pool,
            session: 0,
            epoch: 0,
            next_number: 1,
            before,
            sessions: 0,
            cookie: 0,
            handle: None,
            stuck,
            heard: None,
        };
        pair.greet();
        pair
    }

    /// Asks for a session, and waits for it.
    fn greet(&mut self) {
        self.sessions += 1;
        (self.session, self.next_number) = (0, 1);
        let hello = Hello {
            nonce: self.sessions as u64,
            session: HAND,
            initiator: [9; 16],
            instance: self.sessions as u64,
            frame_bytes_max: FRAME_BYTES as u16,
            security: 1,
            member: 0,
            room_frames: ROOM.frames,
            room_bytes: ROOM.bytes,
            cookie: self.cookie,
            node: "node",
            export: "disk",
            name: "hand",
        };
        let mut batch = TxBatch::new();
        outside_frame(&mut batch, Addr::Sim(1), Header::new(Kind::Hello), 0, |o| hello.emit(o));
        self.give(&batch.frames()[0]);
        let cookie = self.cookie;
        self.turn();
        if self.session == 0 && self.cookie != cookie {
            self.sessions -= 1;
            return self.greet();
        }
        assert_ne!(self.session, 0, "not welcomed");
    }

    fn give(&mut self, frame: &TxFrame) {
        let mut buf = self.pool.get(frame.bytes());
        let (head, data) = buf.split_at_mut(frame.head.len());
        head.copy_from_slice(&frame.head);
        data.copy_from_slice(&frame.data.to_vec());
        let mut rx = RxFrame {
            from: Addr::Sim(2),
            bytes: buf.freeze(),
            rest: SegList::new(),
            waited: Duration::ZERO,
            queued: Duration::ZERO,
        };
        self.target.on_frame(self.now, 0, &mut rx);
    }

    /// A frame of the session with these messages, `gap` numbers behind the last.
    fn say(&mut self, gap: u64, payload: usize, messages: impl FnOnce(&mut Vec<u8>)) {
        self.next_number += gap;
        let mut head = Vec::new();
        Header::reserve(&mut head);
        messages(&mut head);
        let mut header = Header::new(Kind::Session);
        (header.session, header.epoch) = (self.session, self.epoch);
        header.packet_number = self.next_number;
        header.messages_end = head.len() as u16;
        if payload > 0 {
            head.resize(DATA_OFFSET, 0);
        }
        header.data_offset = head.len() as u16;
        head.resize(head.len() + payload, 7);
        header.length = head.len() as u16;
        header.write(&mut head);
        let mut feedback = Feedback::default();
        if let Some(largest) = self.heard.filter(|&largest| largest > 0) {
            (feedback.flags, feedback.ack_largest) = (flags::ACK, largest);
            feedback.ack_bitmap = if largest < 64 { (1 << largest) - 1 } else { u64::MAX };
        }
        feedback.write(&mut head);
        let mut frame = TxFrame::new(Addr::Sim(1), head);
        seal(&mut frame);
        self.next_number += 1;
        self.give(&frame);
    }

    /// A millisecond passes. Probes are answered, a new session is opened when the old one is gone.
    fn turn(&mut self) {
        self.now = self.now + Duration::from_millis(1);
        self.target.turn(self.now, &mut self.out);
        let mut replies = TxBatch::new();
        let mut gone = false;
        for sent in self.out[0].frames() {
            let bytes = [&sent.head[..], &sent.data.to_vec()].concat();
            let frame = Frame::parse(&bytes).expect("a good frame");
            match frame.messages().next() {
                Some(Message::Welcome(w)) => (self.session, self.epoch) = (w.session, w.epoch),
                Some(Message::Retry(retry)) => self.cookie = retry.cookie,
                Some(Message::Probe(Probe { token, .. })) => {
                    let mut header = Header::new(Kind::ProbeReply);
                    (header.session, header.epoch) = (self.session, self.epoch);
                    header.path = frame.header().path;
                    header.packet_number = self.next_number;
                    self.next_number += 1;
                    let (room_frames, room_bytes) = (ROOM.frames, ROOM.bytes);
                    let reply = ProbeReply { token, room_frames, room_bytes };
                    outside_frame(&mut replies, Addr::Sim(1), header, 0, |o| reply.emit(o));
                }
                Some(Message::UnknownSession(_)) => gone = true,
                _ => {}
            }
            if frame.header().kind == Kind::Session
                && let Some(heard) = &mut self.heard
            {
                *heard = frame.header().packet_number.max(*heard);
            }
            for message in frame.messages() {
                if let Message::Attached(a) = message {
                    self.handle = Some((a.attachment, a.generation));
                }
            }
        }
        self.out[0].clear();
        for frame in replies.frames() {
            self.give(frame);
        }
        if gone {
            self.greet();
        }
    }

    /// Runs `each` so many times, with a turn after every 8, and returns the most memory that the
    /// target has held meanwhile.
    fn flood(&mut self, count: u32, mut each: impl FnMut(&mut Pair, u32)) -> usize {
        MOST.with(|most| most.set(LIVE.with(Cell::get)));
        for n in 0..count {
            each(self, n);
            if n % 8 == 7 {
                self.turn();
            }
        }
        let most = MOST.with(Cell::get) - self.before;
        println!("{most} bytes at most, {} sessions one after the other", self.sessions);
        most as usize
    }
}

fn ask(n: u32) -> AskClocks {
    AskClocks { transaction: n, kind: 1 }
}

fn attach(transaction: u32, export: &str) -> Attach<'_> {
    Attach { transaction, flags: attach_flags::READ_ONLY, writer_generation: 0, export }
}

/// What the peer and the batches of this test hold themselves.
const OWN: usize = 2 << 20;

#[track_caller]
fn check(most: usize) {
    let bound = config().session_state_bytes_max() + OWN;
    assert!(most <= bound, "{most} bytes, and the bound is {bound}");
}

/// The peer of issue reports: it has something open, which it never acknowledges, and elicits one
/// acknowledgement after the other.
#[test]
fn acknowledgements_behind_an_open_frame_cost_nothing() {
    let mut p = Pair::new();
    p.say(0, 0, |o| ask(1).emit(o));
    p.turn();
    let most = p.flood(100_000, |p, n| {
        p.say(u64::from(n % 2), 0, |o| Ping {}.emit(o));
        p.turn();
    });
    check(most);
    // Far below a session's bound, and below what one record for each frame would come to.
    assert!(most < 1 << 20, "{most} bytes");
    assert_eq!(p.sessions, 1, "it is a nuisance, but nothing has piled up");
}

/// Everything that is answered, as often as it likes: the session ends, and no answer is left out in
/// one that goes on.
#[test]
fn answers_that_nobody_takes_in_end_the_session() {
    type Each = fn(&mut Pair, u32);
    let ways: [(&str, Each); 6] = [
        ("clocks", |p, n| p.say(0, 0, |o| (0..100).for_each(|i| ask(n * 100 + i).emit(o)))),
        ("attaches that are refused", |p, n| {
            p.say(0, 0, |o| (0..40).for_each(|i| attach(n * 40 + i, "none").emit(o)));
        }),
        ("attaches", |p, n| {
            p.say(0, 0, |o| (0..40).for_each(|i| attach(n * 40 + i, "disk").emit(o)));
        }),
        ("detaches", |p, n| {
            let detach = Detach { transaction: n, attachment: 1, generation: 1 };
            p.say(0, 0, |o| (0..100).for_each(|_| detach.emit(o)));
        }),
        ("requests", |p, _| {
            let request = Request {
                slot: 0,
                op: OpCode::Read as u8,
                op_flags: 0,
                sequence: 1,
                attachment: 1,
                generation: 1,
                address: 0,
                length: 512,
            };
            p.say(0, 0, |o| (0..100).for_each(|_| request.emit(o)));
        }),
        ("resets", |p, _| {
            let reset = Reset { slot: 0, sequence: 1, length: 0 };
            p.say(0, 0, |o| (0..100).for_each(|_| reset.emit(o)));
        }),
    ];
    for (what, each) in ways {
        let mut p = Pair::new();
        print!("{what}: ");
        check(p.flood(20_000, each));
        assert!(p.sessions > 1, "{what}: nothing ends the session");
        let drops = p.target.stats().drops;
        assert!(drops.get(thinwire_proto::DropReason::Overrun) > 0, "{drops:?}");
        assert_eq!(drops.get(thinwire_proto::DropReason::Overload), 0, "{drops:?}");
    }
}

/// Data without a request, in the smallest pieces, as much as the credit allows, in one slot after the
/// other; and data far beyond what its request asks for.
#[test]
fn data_is_bounded_by_the_credit() {
    let mut p = Pair::new();
    // Before an attach nothing is kept that the credit could bound.
    p.say(0, 0, |o| attach(1, "disk").emit(o));
    p.turn();
    assert!(p.handle.is_some(), "attached");
    let data = |slot: u16, sequence: u32, unit: u32| DataHeader {
        slot,
        sequence,
        offset: unit * 512,
        length: 512,
    };
    let most = p.flood(200_000, |p, n| {
        let slot = (n / 2048 % 128) as u16;
        p.say(0, 512, |o| data(slot, 1, n % 2048).emit(o));
    });
    let payload = config().session_payload_bytes_max();
    let bound = config().session_bytes_max() + TargetConfig::SHARED_BYTES_MAX + OWN;
    println!("of {payload} for payload, {bound} in all");
    assert!(most <= bound, "{most} bytes, and the bound is {bound}");
}

/// Sessions come, have requests in a store that hangs, and go: none takes the place of one whose requests
/// are still there, so that those are as many as all places may have.
#[test]
fn requests_of_ended_sessions_keep_their_places() {
    let mut p = Pair::new();
    let place = |p: &Pair| (p.session >> 32) as u32 & SESSION_NUMBER;
    let mut places = Vec::new();
    for round in 0..20 {
        p.stuck.set(true);
        p.say(0, 0, |o| attach(1, "disk").emit(o));
        p.turn();
        let (attachment, generation) = p.handle.take().expect("attached");
        let request = Request {
            slot: 0,
            op: OpCode::Read as u8,
            op_flags: 0,
            sequence: 1,
            attachment,
            generation,
            address: 0,
            length: 512,
        };
        p.say(0, 0, |o| request.emit(o));
        p.turn();
        places.push(place(&p));
        p.say(0, 0, |o| Bye { status: 0 }.emit(o));
        p.greet();
        assert!(!places.contains(&place(&p)), "round {round}: a place is taken twice");
    }
    p.stuck.set(false);
    p.turn();
    p.say(0, 0, |o| Bye { status: 0 }.emit(o));
    p.greet();
    assert!(places.contains(&place(&p)), "they are free again");
}

/// Who never attached has no request for which data could come: it is not kept, however many sessions
/// send it.
#[test]
fn who_never_attached_makes_nothing_grow() {
    let mut p = Pair::new();
    let length = 8192;
    for _ in 0..16 {
        p.greet();
        for slot in 0..128 {
            for piece in 0..8 {
                let offset = piece * length;
                let data = DataHeader { slot, sequence: 1, offset, length };
                p.say(0, length as usize, |o| data.emit(o));
            }
            p.turn();
        }
    }
    let held = LIVE.with(Cell::get) - p.before;
    assert!(held < 16 << 20, "{} sessions hold {held} bytes", p.target.sessions().len());
}

/// What each of them has made is gone with it, also the number that it had.
#[test]
fn who_attaches_and_detaches_a_million_times_makes_nothing_grow() {
    let mut p = Pair::new();
    p.heard = Some(0);
    let (mut before, mut granted, mut highest) = (0, 0, 0);
    for n in 0..1_000_000 {
        let last = p.handle.take();
        p.say(0, 0, |o| {
            if let Some((attachment, generation)) = last {
                Detach { transaction: 2 * n, attachment, generation }.emit(o);
            }
            attach(2 * n + 1, "disk").emit(o);
        });
        p.turn();
        granted += u32::from(p.handle.is_some());
        highest = highest.max(p.handle.map_or(0, |(attachment, _)| attachment));
        if n == 1_000 {
            before = LIVE.with(Cell::get);
        }
    }
    assert_eq!((granted, p.sessions), (1_000_000, 1));
    assert!(highest <= 8, "attachment {highest}");
    let grown = LIVE.with(Cell::get) - before;
    assert!(grown < 16 << 10, "{grown} bytes more than after a thousand");
    assert_eq!(p.target.sessions()[0].exports, ["disk"]);
}
