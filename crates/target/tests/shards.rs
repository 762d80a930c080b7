//! What a shard does with greetings and attaches for the exports of another shard.

use std::time::Duration;

use thinwire_buffer::{Addr, FrameSizes, LinkInfo, Pool, Room, RxFrame, SegList, TxBatch, TxFrame};
use thinwire_proto::{Batching, Content, Item, Role, Session, SessionConfig, Time, outside_frame};
use thinwire_target::{ExportConfig, SpreadConfig, Target, TargetConfig};
use thinwire_volume::stores::NullStore;
use thinwire_volume::{Letter, Volume};
use thinwire_wire::{Attach, Discover, Frame, Header, Hello, Kind, Message, Status};

#[path = "shards/silent.rs"]
mod silent;

const NOW: Time = Time(1_000_000_000);
const INITIATOR: Addr = Addr::Sim(2);
const ROOM: Room = Room { frames: 64, bytes: 1 << 20 };

/// Shard `index` of two: `one` is on shard 0, `two` on shard 1, and `all`, which shard 1 owns, on both.
fn shard(index: u8) -> Target {
    let volume = Box::new(NullStore::new(1 << 20, 512));
    shard_with(index, volume)
}

/// The same, with this volume for the export that it has alone.
fn shard_with(index: u8, volume: Box<dyn Volume>) -> Target {
    let frame_bytes = FrameSizes { base: 1400, max: 1400 };
    let link = LinkInfo { addr: Addr::Sim(1), frame_bytes, room: ROOM };
    let config = TargetConfig { node: "node".into(), insecure: true, ..TargetConfig::default() };
    let seed = u64::from(index) + 1;
    let mut target = Target::new(config, vec![link], index, Pool::new(1 << 20), seed);
    let name = ["one", "two"][usize::from(index)];
    target.add_export(ExportConfig { name: name.into(), volume, read_only: false });
    let spread = SpreadConfig { number: 2, shard: index, shards: 2, owner: 1, verifier: 6 };
    let volume = Box::new(NullStore::new(1 << 20, 512));
    let config = ExportConfig { name: "all".into(), volume, read_only: false };
    target.add_spread_export(config, spread);
    target.set_all_exports(&[("one".into(), 0), ("two".into(), 1), ("all".into(), 1)]);
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
    hello_of(9, export, cookie)
}

/// A greeting of an initiator.
fn hello_of(who: u8, export: &str, cookie: u64) -> RxFrame {
    hello_of_member(who, 0, export, cookie)
}

fn hello_of_member(who: u8, member: u8, export: &str, cookie: u64) -> RxFrame {
    let hello = Hello {
        nonce: 5,
        session: 1234,
        initiator: [who; 16],
        instance: 1,
        frame_bytes_max: 1400,
        security: 1,
        member,
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

/// By who greets, and the same whoever looks: else they would hand it to and fro.
#[test]
fn greetings_for_an_export_of_all_shards_are_dealt() {
    let (mut first, mut second) = (shard(0), shard(1));
    let cookie = cookie(&mut first, "all");
    let mut dealt = [0; 2];
    for (who, member) in (1..=40).map(|who| (who, who % 3)) {
        let mut greeting = hello_of_member(who, member, "all", cookie);
        let shard = SpreadConfig::dealt(&[who; 16], member, 2);
        dealt[usize::from(shard)] += 1;
        first.on_frame(NOW, 0, &mut greeting);
        let (answer, handed_on) = match first.next_forward() {
            None => (turn(&mut first, NOW), 0),
            Some(letter) => {
                assert!(turn(&mut first, NOW).is_empty());
                second.on_forward(NOW, letter.link, &mut rx(&letter.frame));
                (turn(&mut second, NOW), letter.shard)
            }
        };
        let (session, ..) = welcomed(&answer).expect("welcome");
        assert_eq!((session >> 56, handed_on), (shard.into(), shard));
        assert_eq!(second.next_forward(), None);
    }
    assert!(dealt.iter().all(|count| *count >= 10), "{dealt:?}");
    // Who comes back to a target that was started anew finds its shard.
    let dealt = [1, 2, 3, 4, 5, 6, 7, 8].map(|who| SpreadConfig::dealt(&[who; 16], 0, 3));
    assert_eq!(dealt, [1, 2, 1, 0, 1, 2, 2, 0]);
    // The members of one are on as many shards as there are.
    let dealt = [0, 1, 2, 3, 4].map(|member| SpreadConfig::dealt(&[2; 16], member, 3));
    assert_eq!(dealt, [2, 0, 1, 2, 0]);
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

/// What a target answers who asks for all.
fn discovered(target: &mut Target) -> Vec<RxFrame> {
    let mut out = TxBatch::new();
    outside_frame(&mut out, Addr::Group, Header::new(Kind::Discover), 0, |out| {
        Discover { nonce: 3, session: 9, first: 0, spread_ms: 0, cookie: 0, node: "" }.emit(out);
    });
    target.on_frame(NOW, 0, &mut received(&out.frames()[0]));
    turn(target, NOW)
}

#[test]
fn discovery_tells_the_exports_of_all_shards() {
    let frames = discovered(&mut shard(0));
    let frame = Frame::parse(&frames[0].bytes).unwrap();
    assert_eq!(frame.header().session, 9, "whoever asks is told where it wants to be told");
    let Some(Message::Offer(offer)) = frame.messages().next() else { panic!("no offer") };
    assert_eq!((offer.instance, offer.total), (77, 3));
    assert_eq!(offer.exports.iter().collect::<Vec<_>>(), ["one", "two", "all"]);
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

/// A session with a target for `one`, and what asks in it for `export`.
fn asks(target: &mut Target, export: &'static str) {
    asks_in(target, "one", export);
}

/// The same, in a session for another.
fn asks_in(target: &mut Target, greeted: &str, export: &'static str) {
    let cookie = cookie(target, greeted);
    target.on_frame(NOW, 0, &mut hello(greeted, cookie));
    let (remote_id, epoch, _) = welcomed(&turn(target, NOW)).expect("welcome");
    let config = SessionConfig {
        role: Role::Initiator,
        local_id: 1234,
        remote_id,
        epoch,
        seed: 1,
        batching: Batching::default(),
        canary: Default::default(),
    };
    let mut session = Session::new(NOW, config, ROOM);
    session.add_path(NOW, 0, Addr::Sim(1), Some(ROOM), FrameSizes { base: 1400, max: 1400 });
    session.send(Item::Attach(1));
    let mut out = [TxBatch::new()];
    session.transmit(NOW, &mut Asking(export), &mut out);
    for frame in out[0].frames() {
        target.on_frame(NOW, 0, &mut received(frame));
    }
}

/// What is found among the messages of frames.
fn found<T>(frames: &[RxFrame], find: impl Fn(Message<'_>) -> Option<T>) -> Option<T> {
    let find = |rx: &RxFrame| Frame::parse(&rx.bytes).unwrap().messages().find_map(&find);
    frames.iter().find_map(find)
}

#[test]
fn an_attach_in_a_session_of_another_shard_is_refused() {
    let mut first = shard(0);
    asks(&mut first, "two");
    let refused = found(&turn(&mut first, NOW), |message| match message {
        Message::AttachRefused(refused) => Some((refused.status, refused.text.to_string())),
        _ => None,
    });
    let (status, text) = refused.expect("refused");
    assert_eq!(Status::from_number(status), Status::WrongShard);
    assert!(text.contains("two") && text.contains("shard 1"), "{text}");
}

/// It is granted where the session is, once the owner has decided.
#[test]
fn an_export_of_all_shards_is_attached_at_any() {
    let mut shards = [shard(0), shard(1)];
    shards.iter_mut().for_each(|shard| {
        turn(shard, NOW);
    });
    asks(&mut shards[0], "all");
    let attached = |frames: &[RxFrame]| {
        found(frames, |message| match message {
            Message::Attached(attached) => Some((attached.writer_generation, attached.verifier)),
            _ => None,
        })
    };
    assert_eq!(attached(&turn(&mut shards[0], NOW)), None);
    let mut granted = None;
    for _ in 0..10 {
        for at in 0..2 {
            while let Some(letter) = shards[at].next_door_letter() {
                shards[usize::from(letter.to)].on_door_letter(NOW, letter);
            }
            let frames = turn(&mut shards[1 - at], NOW);
            granted = granted.or(attached(&frames));
        }
    }
    assert_eq!(granted, Some((1, 6)));
}
