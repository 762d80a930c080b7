//! What a node promises its parts, with parts that only keep a diary.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use thinwire_buffer::{Addr, FrameSizes, LinkInfo, Pool, Room, RxFrame, SegList, Time, TxBatch};
use thinwire_node::{Lane, Node, PartId, SESSION_OFFSET};
use thinwire_volume::{
    Closing, Completion, Effect, ErrorKind, Features, Geometry, Gravity, Identity, Io, Op, Part,
    PartEvent, Port, Volume, VolumeEvent,
};

const NOW: Time = Time(1_000_000_000);

/// What happened, in order.
type Diary = Rc<RefCell<Vec<String>>>;

fn told(diary: &Diary) -> Vec<String> {
    diary.borrow_mut().drain(..).collect()
}

/// A volume that completes what it is told to, and tells the news that it is given.
struct Store {
    name: &'static str,
    diary: Diary,
    queue: Vec<Io>,
    /// Completes everything when it is polled.
    is_eager: bool,
    news: Vec<VolumeEvent>,
    told: u64,
    again_at: Time,
    /// Completes each I/O twice.
    stutters: bool,
}

fn store(name: &'static str, diary: &Diary) -> Store {
    let (queue, diary) = (Vec::new(), diary.clone());
    let again_at = Time::NEVER;
    Store { name, diary, queue, is_eager: true, news: vec![], told: 0, again_at, stutters: false }
}

impl Volume for Store {
    fn geometry(&self) -> Geometry {
        let features =
            Features { read_only: false, discard: true, write_zeroes: true, block_status: true };
        let (bytes, block_bytes) = (1 << 20, 512);
        Geometry { bytes, block_bytes, preferred_bytes: 4096, io_bytes_max: 1 << 20, features }
    }
    fn identity(&self) -> Identity {
        Identity { identity: [7; 16], incarnation: 1 }
    }
    fn submit(&mut self, io: Io) {
        self.diary.borrow_mut().push(format!("{} gets {} at {}", self.name, io.op, io.offset));
        self.queue.push(io);
    }
    fn poll(&mut self, done: &mut Vec<Completion>) {
        if self.is_eager {
            for io in self.queue.drain(..) {
                let count = 1 + usize::from(self.stutters);
                done.extend((0..count).map(|_| Completion::new(io.token, Ok(()))));
            }
        }
    }
    fn outstanding(&self) -> usize {
        self.queue.len()
    }
    fn events(&self) -> u64 {
        self.news.len() as u64 + self.told
    }
    fn poll_events(&mut self, events: &mut Vec<VolumeEvent>) {
        self.told += self.news.len() as u64;
        events.append(&mut self.news);
    }
}

impl Part for Store {
    fn volume(&mut self) -> Option<&mut dyn Volume> {
        Some(self)
    }
    fn on_frame(&mut self, _: Time, link: usize, frame: &mut RxFrame) {
        let last = frame.bytes[frame.bytes.len() - 1];
        self.diary.borrow_mut().push(format!("{} hears {last} on {link}", self.name));
    }
    fn on_event(&mut self, _: Time, event: PartEvent<'_>) {
        self.diary.borrow_mut().push(format!("{}: {event:?}", self.name));
    }
    fn on_room(&mut self, link: usize, room: Room) {
        self.diary.borrow_mut().push(format!("{} has {} on {link}", self.name, room.frames));
    }
    fn close(&mut self, turn: &mut Closing<'_>) -> Time {
        self.diary.borrow_mut().push(format!("{} closes", self.name));
        for (at, batch) in turn.out.iter_mut().enumerate() {
            batch.push(Addr::Sim(1)).head.push(at as u8);
        }
        turn.effects.push(Effect::Note(Gravity::News, self.name.into()));
        self.again_at
    }
}

/// A part that stands on ports, and notes what comes up at each.
struct Upper {
    name: &'static str,
    diary: Diary,
    below: Vec<Port>,
    /// Submits another I/O for each that has come back.
    is_endless: bool,
    done: Vec<Completion>,
}

impl Part for Upper {
    fn on_event(&mut self, _: Time, event: PartEvent<'_>) {
        self.diary.borrow_mut().push(format!("{}: {event:?}", self.name));
    }
    fn settle(&mut self, _: Time) {
        for (at, port) in self.below.iter_mut().enumerate() {
            port.poll(&mut self.done);
            let losses = port.events();
            for completion in self.done.drain(..) {
                let kind = completion.result.map_err(|e| (e.kind, e.op));
                let token = completion.token;
                let text = format!("{} has {token} of {at}: {kind:?}, {losses} lost", self.name);
                self.diary.borrow_mut().push(text);
                if self.is_endless {
                    port.submit(Io::new(token + 1, Op::Read, 0, 512));
                }
            }
        }
    }
    fn close(&mut self, _: &mut Closing<'_>) -> Time {
        self.diary.borrow_mut().push(format!("{} closes", self.name));
        Time::NEVER
    }
}

fn info(number: u32) -> LinkInfo {
    let frame_bytes = FrameSizes { base: 1500, max: 9000 };
    LinkInfo { addr: Addr::Sim(number), frame_bytes, room: Room { frames: 64, bytes: 1 << 20 } }
}

fn lane(first: u32, last: u32, outside: bool) -> Lane {
    Lane { sessions: first..=last, outside }
}

fn frame(lane: u32, content: u8) -> RxFrame {
    let mut bytes = vec![0; SESSION_OFFSET];
    bytes.extend(lane.to_be_bytes());
    bytes.push(content);
    RxFrame {
        from: Addr::Sim(9),
        bytes: Pool::new(0).copy_of(&bytes).freeze(),
        rest: SegList::new(),
        waited: Duration::ZERO,
        queued: Duration::ZERO,
    }
}

/// A node with a part over each of the ports to these stores.
fn over<const N: usize>(
    node: &mut Node,
    name: &'static str,
    diary: &Diary,
    stores: [PartId<Store>; N],
) -> PartId<Upper> {
    let below = stores.map(|id| node.port(id));
    let numbers = below.each_ref().map(Port::number);
    let (below, diary) = (below.into(), diary.clone());
    let upper = Upper { name, diary, below, is_endless: false, done: Vec::new() };
    let id = node.add(upper, vec![], &Lane::ALL);
    numbers.into_iter().for_each(|number| node.give_port(number, id));
    id
}

fn turn(node: &mut Node, now: Time) {
    node.settle(now);
    node.close(now);
    node.out().iter_mut().for_each(TxBatch::clear);
    while node.take_effect().is_some() {}
}

fn submit(node: &mut Node, id: PartId<Upper>, at: usize, token: u64) {
    let upper = node.get_mut(id).unwrap();
    upper.below[at].submit(Io::new(token, Op::Read, 512 * token, 512));
}

#[test]
fn two_parts_share_one_and_each_has_its_own_back() {
    let (mut node, diary) = (Node::new(vec![]), Diary::default());
    let below = node.add(store("disk", &diary), vec![], &Lane::ALL);
    let a = over(&mut node, "a", &diary, [below]);
    let b = over(&mut node, "b", &diary, [below]);
    turn(&mut node, NOW);
    told(&diary);
    submit(&mut node, a, 0, 1);
    submit(&mut node, b, 0, 1);
    submit(&mut node, a, 0, 2);
    node.settle(NOW);
    let said = told(&diary);
    let gets = ["disk gets read at 512", "disk gets read at 1024", "disk gets read at 512"];
    assert_eq!(said[..3], gets);
    let mut back = said[3..].to_vec();
    back.sort_unstable();
    let ok = |who, token| format!("{who} has {token} of 0: Ok(()), 0 lost");
    assert_eq!(back, [ok("a", 1), ok("a", 2), ok("b", 1)]);
    assert_eq!(node.outstanding(below), 0);
}

#[test]
fn a_loss_is_known_before_what_was_completed_behind_it() {
    let (mut node, diary) = (Node::new(vec![]), Diary::default());
    let below = node.add(store("disk", &diary), vec![], &Lane::ALL);
    let a = over(&mut node, "a", &diary, [below]);
    let b = over(&mut node, "b", &diary, [below]);
    submit(&mut node, a, 0, 1);
    node.get_mut(below).unwrap().news = vec![VolumeEvent::Lost];
    node.settle(NOW);
    assert!(told(&diary).contains(&"a has 1 of 0: Ok(()), 1 lost".to_string()));
    // Who had nothing there knows it, too.
    assert_eq!(node.get(b).unwrap().below[0].events(), 1);
}

#[test]
fn what_happens_to_a_part_is_told_to_all_who_stand_on_it_each_once() {
    for shares in [false, true] {
        let (mut node, diary) = (Node::new(vec![]), Diary::default());
        let below = node.add(store("disk", &diary), vec![], &Lane::ALL);
        let a = over(&mut node, "a", &diary, [below]);
        let b = shares.then(|| over(&mut node, "b", &diary, [below]));
        let resized = |bytes| VolumeEvent::Resized { bytes };
        for news in [vec![resized(2 << 20), VolumeEvent::Lost], vec![resized(3 << 20)]] {
            node.get_mut(below).unwrap().news = news;
            node.post(NOW, below, PartEvent::Readable);
            told(&diary);
            node.settle(NOW);
            let parents = if shares { 2 } else { 1 };
            assert_eq!(told(&diary), ["a: Below", "b: Below"][..parents]);
        }
        for part in [Some(a), b].into_iter().flatten() {
            let port = &mut node.get_mut(part).unwrap().below[0];
            assert_eq!((port.geometry().bytes, port.events()), (3 << 20, 3));
            let mut events = vec![];
            port.poll_events(&mut events);
            // Two of a kind have become the last; a loss comes first.
            assert_eq!(events, [VolumeEvent::Lost, resized(3 << 20)]);
            port.poll_events(&mut events);
            assert_eq!(events.len(), 2);
        }
        let late = node.port(below);
        assert_eq!((late.geometry().bytes, late.events()), (1 << 20, 0), "as it is");
    }
}

#[test]
fn what_never_ends_is_left_for_another_turn_without_sleep() {
    let (mut node, diary) = (Node::new(vec![]), Diary::default());
    let below = node.add(store("disk", &diary), vec![], &Lane::ALL);
    let a = over(&mut node, "a", &diary, [below]);
    node.get_mut(a).unwrap().is_endless = true;
    submit(&mut node, a, 0, 1);
    node.settle(NOW);
    let rounds = told(&diary).iter().filter(|said| said.starts_with("a has")).count();
    assert!((1..=4).contains(&rounds), "{rounds}");
    assert_eq!(node.deadline(), Time::ZERO);
    node.close(NOW);
    assert_eq!(node.deadline(), Time::ZERO);
    told(&diary);
    // What was left over has a turn like any other: it is closed, and its timer stands.
    node.get_mut(a).unwrap().is_endless = false;
    node.get_mut(below).unwrap().again_at = NOW + Duration::from_secs(7);
    turn(&mut node, NOW);
    let said = told(&diary);
    assert!(said.contains(&"a closes".to_string()), "{said:?}");
    assert_eq!(node.deadline(), NOW + Duration::from_secs(7));
}

/// A part whose timer ends while it is left over loses neither.
#[test]
fn a_timer_that_ends_with_something_left_over_is_fired() {
    let (mut node, diary) = (Node::new(vec![]), Diary::default());
    let below = node.add(store("disk", &diary), vec![], &Lane::ALL);
    let a = over(&mut node, "a", &diary, [below]);
    turn(&mut node, NOW);
    for rounds in 1..9 {
        let now = NOW + Duration::from_secs(rounds);
        node.get_mut(below).unwrap().again_at = now;
        node.get_mut(a).unwrap().is_endless = true;
        submit(&mut node, a, 0, 1);
        node.settle(now);
        node.close(now);
        node.get_mut(a).unwrap().is_endless = false;
        node.get_mut(below).unwrap().again_at = now + Duration::from_secs(100);
        told(&diary);
        for _ in 0..3 {
            turn(&mut node, now);
        }
        assert!(told(&diary).contains(&"disk closes".to_string()));
        assert_eq!(node.deadline(), now + Duration::from_secs(100));
    }
}

#[test]
fn who_has_nothing_to_do_is_not_called() {
    let (mut node, diary) = (Node::new(vec![info(1)]), Diary::default());
    let names = ["a", "b", "c"];
    let [a, b, _] = names.map(|name| node.add(store(name, &diary), vec![], &Lane::ALL));
    turn(&mut node, NOW);
    told(&diary);
    turn(&mut node, NOW);
    assert_eq!(told(&diary), [""; 0]);
    node.post(NOW, b, PartEvent::Readable);
    node.get_mut(a).unwrap().again_at = NOW + Duration::from_secs(1);
    turn(&mut node, NOW);
    assert_eq!(told(&diary), ["b: Readable", "a closes", "b closes"]);
    assert_eq!(node.deadline(), NOW + Duration::from_secs(1));
    turn(&mut node, NOW + Duration::from_millis(999));
    assert_eq!(told(&diary), [""; 0]);
    turn(&mut node, NOW + Duration::from_secs(1));
    assert_eq!(told(&diary), ["a closes"]);
}

/// A deadline that is past does not hold up the turn that it is told in.
#[test]
fn a_part_that_is_always_due_is_closed_once_a_turn() {
    let (mut node, diary) = (Node::new(vec![]), Diary::default());
    let a = node.add(store("a", &diary), vec![], &Lane::ALL);
    node.get_mut(a).unwrap().again_at = Time(5);
    turn(&mut node, NOW);
    turn(&mut node, NOW);
    assert_eq!(told(&diary), ["a closes", "a closes"]);
}

#[test]
fn what_a_part_had_when_it_went_fails_and_so_does_what_comes_later() {
    let (mut node, diary) = (Node::new(vec![]), Diary::default());
    let below = node.add(store("disk", &diary), vec![], &Lane::ALL);
    node.get_mut(below).unwrap().is_eager = false;
    let a = over(&mut node, "a", &diary, [below]);
    submit(&mut node, a, 0, 1);
    turn(&mut node, NOW);
    assert_eq!(node.outstanding(below), 1);
    assert!(node.remove(below).is_some() && node.get(below).is_none());
    submit(&mut node, a, 0, 2);
    told(&diary);
    turn(&mut node, NOW);
    let failed = |token| {
        let told = (ErrorKind::ShuttingDown, Op::Read);
        format!("a has {token} of 0: Err({told:?}), 0 lost")
    };
    let mut said = told(&diary);
    said.retain(|said| said != "a closes");
    assert_eq!(said, [failed(1), failed(2)]);
    // Its place is another's, which does not get them.
    let other = node.add(store("other", &diary), vec![], &Lane::ALL);
    submit(&mut node, a, 0, 3);
    turn(&mut node, NOW);
    assert!(!told(&diary).iter().any(|said| said.contains("other gets")));
    assert_eq!(node.outstanding(other), 0);
    assert!(node.remove(below).is_none(), "once");
}

#[test]
fn a_port_that_is_gone_takes_nothing_with_it() {
    let (mut node, diary) = (Node::new(vec![]), Diary::default());
    let below = node.add(store("disk", &diary), vec![], &Lane::ALL);
    node.get_mut(below).unwrap().is_eager = false;
    let (mut first, mut second) = (node.port(below), node.port(below));
    first.submit(Io::new(1, Op::Read, 0, 512));
    second.submit(Io::new(1, Op::Read, 512, 512));
    turn(&mut node, NOW);
    drop(first);
    node.get_mut(below).unwrap().is_eager = true;
    turn(&mut node, NOW);
    let mut done = Vec::new();
    second.poll(&mut done);
    assert_eq!((done.len(), second.outstanding(), node.outstanding(below)), (1, 0, 0));
}

/// Ports come and go as long as a node lives. What one had submitted may end when another has its number.
#[test]
fn the_number_of_a_port_is_used_again_and_what_the_port_had_is_nobodys() {
    for is_shared in [false, true] {
        let (mut node, diary) = (Node::new(vec![]), Diary::default());
        let below = node.add(store("disk", &diary), vec![], &Lane::ALL);
        let other = is_shared.then(|| node.port(below));
        let read = || Io::new(7, Op::Read, 0, 512);
        let mut done = Vec::new();
        for _ in 0..50_000 {
            node.get_mut(below).unwrap().is_eager = false;
            let mut gone = node.port(below);
            assert!(gone.number() < 3, "{}", gone.number());
            gone.submit(read());
            turn(&mut node, NOW);
            let number = gone.number();
            drop(gone);
            turn(&mut node, NOW);
            let mut port = node.port(below);
            assert_eq!(port.number(), number);
            port.submit(read());
            turn(&mut node, NOW);
            assert_eq!(node.outstanding(below), 2);
            node.get_mut(below).unwrap().is_eager = true;
            turn(&mut node, NOW);
            port.poll(&mut done);
            assert_eq!((done.drain(..).count(), port.outstanding()), (1, 0));
            drop(port);
            // Parts, too.
            let part = node.add(store("late", &diary), vec![], &Lane::ALL);
            let mut orphan = node.port(part);
            orphan.submit(read());
            node.remove(part);
            turn(&mut node, NOW);
            orphan.poll(&mut done);
            assert!(done.pop().is_some_and(|completion| completion.result.is_err()));
            drop(orphan);
            turn(&mut node, NOW);
            told(&diary);
        }
        drop(other);
    }
}

/// Or a part that asks for another turn as long as completions wait has it for ever.
#[test]
fn what_is_completed_when_the_last_port_is_gone_is_taken_from_the_part() {
    let (mut node, diary) = (Node::new(vec![]), Diary::default());
    let below = node.add(store("disk", &diary), vec![], &Lane::ALL);
    let mut port = node.port(below);
    port.submit(Io::new(1, Op::Read, 0, 512));
    node.get_mut(below).unwrap().is_eager = false;
    turn(&mut node, NOW);
    assert_eq!(node.outstanding(below), 1);
    drop(port);
    turn(&mut node, NOW);
    node.get_mut(below).unwrap().is_eager = true;
    turn(&mut node, NOW);
    assert_eq!((node.outstanding(below), node.get(below).unwrap().outstanding()), (0, 0));
    assert_eq!((node.strays(), node.deadline()), (0, Time::NEVER));
}

#[test]
#[should_panic(expected = "twice")]
fn a_part_that_completes_twice_is_found_out() {
    let (mut node, diary) = (Node::new(vec![]), Diary::default());
    let below = node.add(store("disk", &diary), vec![], &Lane::ALL);
    node.get_mut(below).unwrap().stutters = true;
    node.port(below).submit(Io::new(1, Op::Read, 0, 512));
    let mut port = node.port(below);
    port.submit(Io::new(1, Op::Read, 0, 512));
    node.settle(NOW);
}

#[test]
fn frames_of_a_shared_link_go_to_whose_they_are() {
    let (mut node, diary) = (Node::new(vec![info(1), info(2)]), Diary::default());
    node.add(store("a", &diary), vec![1], &lane(0x8000_0001, 0x8000_0001, true));
    node.add(store("t", &diary), vec![0, 1], &lane(0x0100_0000, 0x01ff_ffff, true));
    node.add(store("quiet", &diary), vec![1], &lane(0x8000_0002, 0x8000_0002, false));
    turn(&mut node, NOW);
    told(&diary);
    let frames = [(0x8000_0001, 1), (0x0100_4711, 2), (0x8000_0002, 3), (0, 4), (0x9000_0000, 5)];
    for (lane, content) in frames {
        node.on_frame(NOW, 1, &mut frame(lane, content));
    }
    let said = told(&diary);
    let heard = ["a hears 1 on 0", "t hears 2 on 1", "quiet hears 3 on 0", "a hears 4 on 0"];
    assert_eq!(said[..4], heard);
    // Outside of sessions: all who want that. Nobody's: the first, which counts it.
    assert_eq!(said[4..], ["t hears 4 on 1", "a hears 5 on 0"]);
    node.on_frame(NOW, 0, &mut frame(0x9000_0000, 6));
    assert_eq!(told(&diary), ["t hears 6 on 0"], "alone on its link it gets everything");
    // But who wants nothing outside of sessions.
    let mut alone = Node::new(vec![info(1)]);
    alone.add(store("quiet", &diary), vec![0], &lane(1, 1, false));
    alone.on_frame(NOW, 0, &mut frame(0, 7));
    alone.on_frame(NOW, 0, &mut frame(1, 8));
    assert_eq!(told(&diary), ["quiet hears 8 on 0"]);
}

#[test]
fn each_part_fills_the_batches_of_its_links_and_shares_their_room() {
    let infos = [1, 2, 3].map(info);
    let (mut node, diary) = (Node::new(infos.into()), Diary::default());
    node.add(store("a", &diary), vec![0, 1], &lane(1, 1, true));
    assert_eq!(node.links().map(|l| l.room.frames).collect::<Vec<_>>(), [32, 32, 64]);
    let b = node.add(store("b", &diary), vec![2, 1], &lane(2, 2, true));
    assert_eq!(told(&diary), ["a has 32 on 1", "b has 32 on 1"]);
    node.settle(NOW);
    node.close(NOW);
    let heads = |node: &mut Node, at: usize| -> Vec<u8> {
        node.out()[at].frames().iter().map(|frame| frame.head[0]).collect()
    };
    assert_eq!(heads(&mut node, 0), [0]);
    let mut shared = heads(&mut node, 1);
    shared.sort_unstable();
    assert_eq!(shared, [1, 1]);
    assert_eq!(heads(&mut node, 2), [0]);
    let notes: Vec<_> = std::iter::from_fn(|| node.take_effect()).map(|(_, what)| what).collect();
    assert_eq!(notes.len(), 2);
    told(&diary);
    node.remove(b);
    assert_eq!(told(&diary), ["a has 64 on 1"]);
}

#[test]
fn effects_are_taken_in_the_order_in_which_they_were_left() {
    let (mut node, diary) = (Node::new([info(1)].into()), Diary::default());
    for n in 0..200 {
        node.add(store(format!("{n}").leak(), &diary), vec![], &Lane::ALL);
    }
    let mut taken = Vec::new();
    let mut take = |node: &mut Node, count| {
        for (_, effect) in std::iter::from_fn(|| node.take_effect()).take(count) {
            let Effect::Note(_, name) = effect else { panic!("{effect:?}") };
            taken.push(format!("{name} closes"));
        }
    };
    for count in [70, usize::MAX] {
        node.settle(NOW);
        node.close(NOW);
        take(&mut node, count);
    }
    let closed = told(&diary).into_iter().filter(|line| line.ends_with("closes"));
    assert_eq!(taken, closed.collect::<Vec<_>>());
    assert!(taken.len() >= 200);
}
