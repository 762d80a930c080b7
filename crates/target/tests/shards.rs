//! What a shard does with greetings and attaches for the exports of another shard.

use std::time::Duration;

use thinwire_buffer::{Addr, FrameSizes, LinkInfo, Pool, Room, RxFrame, SegList, TxBatch, TxFrame};
use thinwire_proto::{Batching, Content, Item, Role, Session, SessionConfig, Time, outside_frame};
use thinwire_target::{ExportConfig, Target, TargetConfig};
use thinwire_volume::Letter;
use thinwire_volume::stores::NullStore;
use thinwire_wire::{Attach, Discover, Frame, Header, Hello, Kind, Message, Status};

const NOW: Time = Time(1_000_000_000);
const INITIATOR: Addr = Addr::Sim(2);
const ROOM: Room = Room { frames: 64, bytes: 1 << 20 };

/// Shard `index` of two: `one` is on shard 0, `two` on shard 1.
fn shard(index: u8) -> Target {
    let frame_bytes = FrameSizes { base: 1400, max: 1400 };
    let link = LinkInfo { addr: Addr::Sim(1), frame_bytes, room: ROOM };
    let config = TargetConfig { node: "node".into(), insecure: true, ..TargetConfig::default() };
    let seed = u64::from(index) + 1;
    let mut target = Target::new(config, vec![link], index, Pool::new(1 << 20), seed);
    let name = ["one", "two"][usize::from(index)];
    let volume = Box::new(NullStore::new(1 << 20, 512));
    target.add_export(ExportConfig { name: name.into(), volume, read_only: false });
    target.set_all_exports(&[("one".into(), 0), ("two".into(), 1)]);
    target.set_instance(77);
    target
}

fn received(frame: &TxFrame) -> RxFrame {
    let bytes = [&frame.head[..], &frame.data.to_vec()].concat();
    rx(&bytes)
}

fn rx(bytes: &[u8]) -> RxFrame {
    let bytes = Pool::new(0).copy_of(bytes).freeze();
    RxFrame {
        from: INITIATOR,
        bytes,
        rest: SegList::new(),
        waited: Duration::ZERO,
        queued: Duration::ZERO,
    }
}

/// A HELLO that shows nothing, and the cookie that the target answers it with.
fn cookie(target: &mut Target, export: &str) -> u64 {
    target.on_frame(NOW, 0, &mut hello(export, 0));
    let frames = turn(target, NOW);
    assert_eq!(frames.len(), 1);
    match Frame::parse(&frames[0].bytes).unwrap().messages().next() {
        Some(Message::Retry(retry)) => retry.cookie,
        other => panic!("{other:?}"),
    }
}

fn hello(export: &str, cookie: u64) -> RxFrame {
    let hello = Hello {
        nonce: 5,
        session: 1234,
        initiator: [9; 16],
        instance: 1,
        frame_bytes_max: 1400,
        security: 1,
        room_frames: ROOM.frames,
        room_bytes: ROOM.bytes,
        cookie,
        node: "node",
        export,
        name: "test",
    };
    let mut out = TxBatch::new();
    outside_frame(&mut out, Addr::Sim(1), Header::new(Kind::Hello), 0, |out| hello.emit(out));
    received(&out.frames()[0])
}

/// A turn of the target: what it sends.
fn turn(target: &mut Target, now: Time) -> Vec<RxFrame> {
    let mut out = [TxBatch::new()];
    target.turn(now, &mut out);
    out[0].frames().iter().map(received).collect()
}

/// The session id and the instance in a WELCOME, if there is one among the frames.
fn welcomed(frames: &[RxFrame]) -> Option<(u64, u32, u64)> {
    frames.iter().find_map(|rx| match Frame::parse(&rx.bytes).unwrap().messages().next() {
        Some(Message::Welcome(welcome)) => Some((welcome.session, welcome.epoch, welcome.instance)),
        _ => None,
    })
}

#[test]
fn a_greeting_goes_to_the_shard_that_has_the_export() {
    let (mut first, mut second) = (shard(0), shard(1));
    let cookie = cookie(&mut first, "two");
    assert_eq!(first.next_forward(), None, "it hands on what nobody has answered for");
    let mut greeting = hello("two", cookie);
    first.on_frame(NOW, 0, &mut greeting);
    let Letter { shard, link, from, frame } = first.next_forward().expect("handed on");
    assert_eq!((shard, link, from, &frame[..]), (1, 0, INITIATOR, &greeting.bytes[..]));
    assert_eq!(first.next_forward(), None);
    assert!(turn(&mut first, NOW).is_empty(), "the wrong shard answers");
    second.on_forward(NOW, link, &mut rx(&frame));
    let (session, _, instance) = welcomed(&turn(&mut second, NOW)).expect("welcome");
    assert_eq!((session >> 56, instance), (1, 77));
    assert_eq!(second.next_forward(), None);

    first.on_frame(NOW, 0, &mut hello("one", cookie));
    let (session, _, instance) = welcomed(&turn(&mut first, NOW)).expect("welcome");
    assert_eq!((session >> 56, instance), (0, 77));
    // An export that nobody has: the first shard says so when it is attached.
    first.on_frame(NOW, 0, &mut hello("three", cookie));
    assert_eq!(first.next_forward(), None);
    assert!(welcomed(&turn(&mut first, NOW)).is_some());
}

#[test]
fn greetings_that_nobody_fetches_are_bounded() {
    let mut first = shard(0);
    let cookie = cookie(&mut first, "two");
    (0..1000).for_each(|_| first.on_frame(NOW, 0, &mut hello("two", cookie)));
    let waiting = std::iter::from_fn(|| first.next_forward()).count() as u64;
    let dropped: u64 = first.stats().drops.iter().map(|(_, count)| count).sum();
    assert!(waiting > 0 && dropped > 0);
    assert_eq!(waiting + dropped, 1000);
}

#[test]
fn discovery_tells_the_exports_of_all_shards() {
    let mut first = shard(0);
    let mut out = TxBatch::new();
    outside_frame(&mut out, Addr::Group, Header::new(Kind::Discover), 0, |out| {
        Discover { nonce: 3, session: 9, first: 0, spread_ms: 0, cookie: 0, node: "" }.emit(out);
    });
    first.on_frame(NOW, 0, &mut received(&out.frames()[0]));
    let frames = turn(&mut first, NOW);
    let frame = Frame::parse(&frames[0].bytes).unwrap();
    assert_eq!(frame.header().session, 9, "whoever asks is told where it wants to be told");
    let Some(Message::Offer(offer)) = frame.messages().next() else { panic!("no offer") };
    assert_eq!((offer.instance, offer.total), (77, 2));
    assert_eq!(offer.exports.iter().collect::<Vec<_>>(), ["one", "two"]);
}

/// An initiator that asks for one export within a session, whatever it was greeted for.
struct Asking(&'static str);

impl Content for Asking {
    fn emit(&mut self, item: Item, out: &mut Vec<u8>) -> bool {
        let Item::Attach(transaction) = item else { return false };
        Attach { transaction, flags: 0, writer_generation: 0, export: self.0 }.emit(out);
        true
    }

    fn payload(&mut self, _: u16, _: u32, _: u32, _: u32, _: &mut SegList) -> bool {
        false
    }

    fn acked(&mut self, _: Item) {}
}

#[test]
fn an_attach_in_a_session_of_another_shard_is_refused() {
    let mut first = shard(0);
    let cookie = cookie(&mut first, "one");
    first.on_frame(NOW, 0, &mut hello("one", cookie));
    let (remote_id, epoch, _) = welcomed(&turn(&mut first, NOW)).expect("welcome");
    let config = SessionConfig {
        role: Role::Initiator,
        local_id: 1234,
        remote_id,
        epoch,
        seed: 1,
        batching: Batching::default(),
    };
    let mut session = Session::new(NOW, config, ROOM);
    session.add_path(NOW, 0, Addr::Sim(1), Some(ROOM), FrameSizes { base: 1400, max: 1400 });
    session.send(Item::Attach(1));
    let mut out = [TxBatch::new()];
    session.transmit(NOW, &mut Asking("two"), &mut out);
    for frame in out[0].frames() {
        first.on_frame(NOW, 0, &mut received(frame));
    }
    let refused = turn(&mut first, NOW).iter().find_map(|rx| {
        Frame::parse(&rx.bytes).unwrap().messages().find_map(|message| match message {
            Message::AttachRefused(refused) => Some((refused.status, refused.text.to_string())),
            _ => None,
        })
    });
    let (status, text) = refused.expect("refused");
    assert_eq!(Status::from_number(status), Status::WrongShard);
    assert!(text.contains("two") && text.contains("shard 1"), "{text}");
}
