//! What the parts do together, beside what the simulator shows.

use thinwire_buffer::{Addr, FrameSizes, Room, SegList, Segment};
use thinwire_proto::{Batching, Role, SessionConfig};
use thinwire_volume::{Effect, ErrorKind, Gravity, Io, IoFlags, Op, Volume, VolumeEvent};
use thinwire_wire::{AttachRefused, Attached, Event, Message, event_code};

use super::*;

use crate::TargetName;
use crate::attachment::tests::answer;
use crate::slots::{Mark, Owner, Pending, Place};

/// With a session, though nobody is there.
fn connected() -> Initiator {
    connected_as(InitiatorConfig::new(TargetName::Node("node1".into()), "disk"))
}

fn connected_as(config: InitiatorConfig) -> Initiator {
    let (now, pool) = (Time(1), Pool::new(1 << 20));
    let room = Room { frames: 8, bytes: 1 << 16 };
    let frame_bytes = FrameSizes { base: 1500, max: 1500 };
    let link = LinkInfo { addr: Addr::Sim(1), frame_bytes, room };
    let mut initiator = Initiator::new(now, config, vec![link], pool, 1);
    let config = SessionConfig {
        role: Role::Initiator,
        local_id: 1,
        remote_id: 2,
        epoch: 1,
        seed: 1,
        batching: Batching::default(),
        canary: Default::default(),
    };
    initiator.association.enter(Session::new(now, config, room));
    initiator
}

#[test]
fn only_the_clocks_that_were_asked_for_are_taken_in() {
    let mut initiator = connected();
    let bytes = initiator.pool.copy_of(&[0]).freeze();
    let (waited, queued) = (Duration::ZERO, Duration::ZERO);
    let frame = RxFrame { from: Addr::Sim(2), bytes, rest: SegList::new(), waited, queued };
    let tell = |initiator: &mut Initiator, transaction, requests| {
        let clocks = Clocks { transaction, requests, ..NONE };
        initiator.on_message(Time(2), &Message::Clocks(clocks), &frame)
    };
    assert_eq!(tell(&mut initiator, 0, 1), Err(DropReason::Unasked));
    let earlier = initiator.ask_clocks(1).unwrap();
    let asked = initiator.ask_clocks(1).unwrap();
    assert_eq!(tell(&mut initiator, earlier, 2), Err(DropReason::Unasked));
    assert!(initiator.clocks().is_none());
    // The answer may come again, when the question did.
    for requests in [3, 4] {
        assert_eq!(tell(&mut initiator, asked, requests), Ok(()));
        assert_eq!(initiator.clocks().unwrap().requests, requests);
    }
}

/// Whatever the target says afterwards: nobody asks it again, so nothing is due.
#[test]
fn a_first_attach_that_failed_leaves_no_timer() {
    let mut initiator = connected();
    assert!(initiator.first_error().is_some(), "it was not told --insecure");
    initiator.on_bye(Time(2));
    assert!(initiator.association.is_seeking());
    let later = Time(2) + Duration::from_secs(10);
    initiator.turn(later, &mut [TxBatch::new()]);
    assert_eq!(initiator.deadline(later), Time(u64::MAX));
}

/// Nobody writes again what a fenced writer had retained: who stands on the volume hears of it.
#[test]
fn who_ends_with_unflushed_writes_has_lost_them() {
    for writes in [0, 1] {
        let mut initiator = connected();
        for _ in 0..writes {
            let io = Pending { len: 512, ..Pending::new(Owner::User(1), Op::Write) };
            initiator.durability.on_effect(io, 0);
        }
        let (before, mut told) = (initiator.events(), Vec::new());
        for _ in 0..2 {
            initiator.die(ErrorKind::Fenced);
            initiator.poll_events(&mut told);
        }
        let lost = (writes > 0).then_some(VolumeEvent::Lost);
        // Whoever keeps what was read hears of it, too, each time; and whoever serves it, once, what has happened.
        let fenced = VolumeEvent::Fenced { of: None };
        let told_besides = [VolumeEvent::Stale, fenced, VolumeEvent::Stale];
        let expected: Vec<_> = lost.into_iter().chain(told_besides).collect();
        assert_eq!((initiator.events() - before, told), (expected.len() as u64, expected));
    }
}

/// What was read before may be old: of a writer that resumes nothing is, since nobody else could write.
#[test]
fn a_reader_that_comes_back_has_missed_what_others_have_written() {
    for (read_only, generation, is_stale) in [(false, 2, false), (false, 3, true), (true, 2, true)]
    {
        let (mut initiator, frame) = attached(InitiatorConfig { read_only, ..disk() });
        let before = initiator.events();
        initiator.attachment.part();
        let again = answer(initiator.attachment.ask(), 1);
        let again = Attached { writer_generation: generation, ..again };
        initiator.on_message(Time(4), &Message::Attached(again), &frame).unwrap();
        let mut told = Vec::new();
        initiator.poll_events(&mut told);
        let expected = if is_stale { vec![VolumeEvent::Stale] } else { vec![] };
        assert_eq!(initiator.events() - before, expected.len() as u64, "{read_only}, {generation}");
        assert_eq!(told, expected, "{read_only}, {generation}");
    }
}

/// Attached, as 3 of generation 4 and under verifier 5; and the frame that said so.
fn attached(config: InitiatorConfig) -> (Initiator, RxFrame) {
    let mut initiator = connected_as(InitiatorConfig { insecure: true, ..config });
    let granted = answer(initiator.attachment.ask(), 1);
    let bytes = initiator.pool.copy_of(&[0]).freeze();
    let (waited, queued) = (Duration::ZERO, Duration::ZERO);
    let frame = RxFrame { from: Addr::Sim(2), bytes, rest: SegList::new(), waited, queued };
    initiator.on_message(Time(2), &Message::Attached(granted), &frame).unwrap();
    (initiator, frame)
}

fn disk() -> InitiatorConfig {
    InitiatorConfig::new(TargetName::Node("node1".into()), "disk")
}

/// An event may come late, about what an attachment had before it was granted anew.
#[test]
fn a_fence_of_an_earlier_grant_ends_nothing() {
    let (mut initiator, frame) = attached(disk());
    for (attachment, generation, fenced) in [(3, 3, false), (2, 4, false), (3, 4, true)] {
        let code = event_code::FENCED;
        let event = Message::Event(Event { code, attachment, generation, value: 9 });
        initiator.on_message(Time(3), &event, &frame).unwrap();
        let expected = fenced.then_some(ErrorKind::Fenced);
        assert_eq!(initiator.failure(), expected, "{attachment}, {generation}");
    }
}

/// Attached, and then left by its target.
fn away(config: InitiatorConfig) -> Initiator {
    let (mut initiator, _) = attached(config);
    initiator.on_bye(Time(3));
    initiator
}

/// How a flush ends in a turn of one whose target is away, if it does.
fn flush(initiator: &mut Initiator) -> Option<Result<(), ErrorKind>> {
    initiator.submit(Io::new(1, Op::Flush, 0, 0));
    initiator.turn(Time(4), &mut [TxBatch::new()]);
    let mut done = Vec::new();
    initiator.poll(&mut done);
    done.pop().map(|done| done.result.map_err(|error| error.kind))
}

#[test]
fn a_flush_without_a_target_waits_only_for_what_a_restart_may_lose() {
    assert_eq!(flush(&mut away(disk())), Some(Ok(())));
    let write = |flags| Pending {
        owner: Owner::User(7),
        op: Op::Write,
        flags,
        offset: 0,
        len: 512,
        data: SegList::of(Pool::new(1 << 20).copy_of(&[1; 512]).freeze()),
        sums: Segment::NOTHING,
        is_second: false,
    };
    let mut retaining = away(disk());
    retaining.durability.on_effect(write(IoFlags::default()), 5);
    assert_eq!(flush(&mut retaining), None);
    // What has failed to be written again is told by a flush of the target's.
    let mut owing = away(disk());
    owing.durability.on_replayed(0, owing.durability.mark(), 5, false);
    assert_eq!(flush(&mut owing), None);
    let mut durable = away(disk());
    durable.durability.on_effect(write(IoFlags { fua: true, ..IoFlags::default() }), 5);
    assert_eq!(flush(&mut durable), Some(Ok(())));
    // Nobody has granted it anything yet.
    assert_eq!(flush(&mut connected_as(InitiatorConfig { insecure: true, ..disk() })), None);
}

/// What was given up waits for the target to confirm that nothing comes of it: one that never comes back holds up no
/// detach.
#[test]
fn an_end_without_a_target_waits_for_nothing_that_was_given_up() {
    let (mut initiator, _) = attached(disk());
    let mut io = Io::new(1, Op::Write, 0, 512);
    io.data = SegList::of(initiator.pool.copy_of(&[1; 512]).freeze());
    initiator.requests.on_session(1, 0);
    initiator.submit(io);
    let io = initiator.requests.next(&mut 0, (1, 512), false).expect("there is a slot");
    initiator.requests.start(io, Place::Nowhere, Mark::default());
    let turn = |initiator: &mut Initiator, at| initiator.turn(at, &mut [TxBatch::new()]);
    initiator.on_bye(Time(3));
    initiator.close();
    let later = |seconds| Time(3) + Duration::from_secs(seconds);
    turn(&mut initiator, later(60));
    assert!(!initiator.is_closed(), "its user has been told nothing");
    initiator.requests.fail_all(ErrorKind::Away);
    turn(&mut initiator, later(61));
    turn(&mut initiator, later(67));
    assert!(initiator.is_closed());
}

/// What an initiator with this policy says of a target that has left it.
fn told(when_away: WhenAway) -> Vec<String> {
    let mut initiator = away(InitiatorConfig { label: "disk0".into(), when_away, ..disk() });
    initiator.turn(Time(4), &mut [TxBatch::new()]);
    let mut effects = Vec::new();
    initiator.tell(Time(4), &mut effects);
    let texts = effects.into_iter().filter_map(|effect| match effect {
        Effect::Note(Gravity::Warning, text) => Some(text),
        _ => None,
    });
    texts.collect()
}

#[test]
fn a_target_that_is_away_is_told_of_with_what_becomes_of_io() {
    assert_eq!(told(WhenAway::Wait), ["disk0: the target does not answer; I/O waits"]);
    let fails = told(WhenAway::FailAfter(Duration::from_secs(30)));
    assert_eq!(fails, ["disk0: the target does not answer; I/O fails in 30 s"]);
}

/// As after a goodbye: what is outstanding is asked for again in another session.
#[test]
fn a_session_that_too_much_waits_in_is_left() {
    let mut initiator = connected();
    let fill = |initiator: &mut Initiator, count| {
        let session = initiator.association.session_mut().unwrap();
        (0..count).for_each(|n| session.send(Item::Attach(n)));
        initiator.turn(Time(2), &mut [TxBatch::new()]);
    };
    fill(&mut initiator, 20_000);
    assert!(initiator.association.session().is_some());
    fill(&mut initiator, 5_000);
    assert!(initiator.association.session().is_none() && initiator.association.is_seeking());
    assert_eq!(initiator.drops.get(DropReason::Overrun), 1);
}

const NONE: Clocks = Clocks {
    transaction: 0,
    clock: 0,
    requests: 0,
    arrived: 0,
    received: 0,
    taken: 0,
    submitted: 0,
    stored: 0,
    sent: 0,
    handed_over: 0,
};

/// What it asks for first, as it stands on the wire: flags and generation.
fn first_attach(member: u8, read_only: bool) -> (u8, u64) {
    let mut config = InitiatorConfig::new(TargetName::Node("node1".into()), "disk");
    (config.insecure, config.take_over, config.read_only) = (true, true, read_only);
    (config.member, config.member_generation) = (member, 7);
    let frame_bytes = FrameSizes { base: 1500, max: 1500 };
    let room = Room { frames: 8, bytes: 1 << 16 };
    let link = LinkInfo { addr: Addr::Sim(1), frame_bytes, room };
    let mut initiator = Initiator::new(Time(1), config, vec![link], Pool::new(1 << 20), 1);
    let transaction = initiator.attachment.ask();
    let mut out = Vec::new();
    assert!(initiator.attachment.emit(transaction, &mut out));
    (out[8], u64::from_be_bytes(out[12..20].try_into().unwrap()))
}

/// It takes nothing over, and says under which generation the first writes, if it writes.
#[test]
fn a_member_but_the_first_joins() {
    use thinwire_wire::attach_flags::{READ_ONLY, RESUME, TAKE_OVER};
    assert_eq!(first_attach(0, false), (TAKE_OVER, 0));
    assert_eq!(first_attach(1, false), (RESUME, 7));
    assert_eq!(first_attach(1, true), (READ_ONLY, 0));
}

/// One that has asked to join, or to read, in its first session.
fn asked(read_only: bool) -> Initiator {
    let config = InitiatorConfig::new(TargetName::Node("node1".into()), "disk");
    let config = InitiatorConfig { insecure: true, member: 1, read_only, ..config };
    let mut initiator = connected_as(config);
    initiator.ask_attach();
    initiator
}

/// It asks once more, in a session behind that in which it was given up, and must not fence who came back meanwhile.
#[test]
fn a_take_over_that_is_given_up_takes_nothing_over() {
    use thinwire_wire::attach_flags::TAKE_OVER;
    let config = InitiatorConfig::new(TargetName::Node("node1".into()), "disk");
    let mut initiator = connected_as(InitiatorConfig { insecure: true, take_over: true, ..config });
    let flags = |initiator: &mut Initiator| {
        let transaction = initiator.attachment.ask();
        let mut out = Vec::new();
        assert!(initiator.attachment.emit(transaction, &mut out));
        out[8]
    };
    assert_eq!(flags(&mut initiator), TAKE_OVER);
    initiator.close();
    assert_eq!(flags(&mut initiator), 0);
}

/// It may have been granted: only the answer tells, or time.
#[test]
fn an_attach_that_is_given_up_waits_for_its_answer() {
    let turn = |initiator: &mut Initiator, now| {
        initiator.turn(now, &mut [TxBatch::new()]);
        (initiator.is_closed(), initiator.is_unheard())
    };
    let mut initiator = asked(false);
    initiator.close();
    assert_eq!(turn(&mut initiator, Time(2)), (false, false));
    let text = "the first member of this attachment does not have export disk";
    let refused =
        AttachRefused { transaction: 1, status: Status::Busy as u16, seconds_left: 1, text };
    let bytes = initiator.pool.copy_of(&[0]).freeze();
    let (waited, queued) = (Duration::ZERO, Duration::ZERO);
    let frame = RxFrame { from: Addr::Sim(2), bytes, rest: SegList::new(), waited, queued };
    initiator.on_message(Time(3), &Message::AttachRefused(refused), &frame).unwrap();
    assert_eq!(turn(&mut initiator, Time(3)), (true, false), "{text}");

    let mut initiator = asked(false);
    initiator.close();
    for (seconds, expected) in [(1, (false, false)), (4, (false, false)), (6, (true, true))] {
        assert_eq!(turn(&mut initiator, Time(1) + Duration::from_secs(seconds)), expected);
    }
    // Who reads keeps nobody from writing.
    let mut initiator = asked(true);
    initiator.close();
    assert!(initiator.is_closed());
}
