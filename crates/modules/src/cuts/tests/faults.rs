//! What becomes of a cut where a part refuses it, or cannot be told.

use thinwire_buffer::{Pool as Memory, Time};
use thinwire_volume::testing::Puppet;
use thinwire_volume::{Completion, CutAct, CutOrder, ErrorKind, Io, Op, Volume};

use super::super::steps::{Hold, Step};
use super::super::*;
use super::world::*;
use crate::thin::PoolOp;

/// Asks, and says how it has ended.
fn run(world: &mut World, ask: CutAsk) -> CutResult {
    let number = world.up.cuts.ask(ask);
    let (mut done, mut ended) = (Vec::new(), Vec::new());
    for _ in 0..20_000 {
        world.up.top.turn(world.now);
        world.up.top.poll(&mut done);
        world.up.cuts.poll_ended(&mut ended);
        if let Some((of, result)) = ended.pop() {
            assert_eq!(of, number);
            return result;
        }
        world.pass(1);
        world.up.pools.iter().for_each(|pool| _ = pool.turn(world.now));
    }
    panic!("it does not end: {:?}", world.up.top.step);
}

fn take(id: u64, name: &str) -> CutAsk {
    CutAsk::Take { id, name: name.into(), at: id * 10 }
}

#[test]
fn cuts_are_made_listed_and_dropped() {
    let mut world = World::new(1, CutCanary::None);
    for (id, name) in [(7, "b"), (8, "a"), (9, "c")] {
        assert_eq!(run(&mut world, take(id, name)), Ok(Vec::new()));
    }
    let known = |names: &[(&str, u64)]| {
        let one =
            |(name, id): &(&str, u64)| KnownCut { id: *id, at: id * 10, name: (*name).into() };
        Ok(names.iter().map(one).collect::<Vec<_>>())
    };
    assert_eq!(run(&mut world, CutAsk::List), known(&[("a", 8), ("b", 7), ("c", 9)]));
    assert_eq!(run(&mut world, CutAsk::Drop { id: 7 }), Ok(Vec::new()));
    assert_eq!(run(&mut world, CutAsk::List), known(&[("a", 8), ("c", 9)]));
    for part in 0..2 {
        let names: Vec<_> =
            world.up.pools[part].report().volumes.into_iter().map(|of| of.name).collect();
        assert_eq!(names, ["v", "v.a", "v.c"]);
    }
}

/// What one part cannot do none has done, and the next one goes on.
#[test]
fn a_name_that_one_part_has_already_is_refused_by_all() {
    let mut world = World::new(2, CutCanary::None);
    let op = PoolOp::Create { name: "v.x".into(), bytes: 4096, incarnation: 5, at: 0 };
    world.up.pools[1].begin(op);
    let refused = run(&mut world, take(7, "x"));
    assert!(
        matches!(refused, Err(CutError::Part(error)) if error.kind == ErrorKind::Invalid),
        "{refused:?}"
    );
    assert!(world.up.cuts_of(0).is_empty() && world.up.cuts_of(1).is_empty());
    assert_eq!(run(&mut world, take(8, "y")), Ok(Vec::new()));
    assert_eq!(world.up.cuts_of(0).len(), 1);
}

/// Of a cut that somebody reads nothing goes, and is told so.
#[test]
fn what_is_in_use_in_one_part_stays_for_now() {
    let mut world = World::new(3, CutCanary::None);
    assert_eq!(run(&mut world, take(7, "x")), Ok(Vec::new()));
    let (snapshot, ..) = world.up.cuts_of(1)[0];
    let reader = world.up.pools[1].open_volume(snapshot).unwrap();
    let refused = run(&mut world, CutAsk::Drop { id: 7 });
    assert!(matches!(refused, Err(CutError::Undropped(_))), "{refused:?}");
    // Nobody goes on before that is decided.
    assert!(matches!(run(&mut world, take(8, "y")), Err(CutError::Unsettled(_))));
    drop(reader);
    assert_eq!(run(&mut world, take(9, "z")), Ok(Vec::new()));
    for part in 0..2 {
        let ids: Vec<_> = world.up.cuts_of(part).into_iter().map(|(_, id, _)| id).collect();
        assert_eq!(ids, [9], "the other one has gone before");
    }
}

/// A part without snapshots: nothing is begun, and nobody is held.
#[test]
fn what_knows_no_cuts_is_found_out_before() {
    let puppet = Puppet::new(1, Puppet::GEOMETRY);
    let memory = Memory::new(0);
    let (_, record) = {
        let labels = crate::meta::Labels::new(CUT_LABEL_TOKEN, &memory);
        Recorder::new(Box::new(puppet.clone()), labels, label())
    };
    let (mut top, cuts) = CutVolume::new(Box::new(puppet.clone()), record, &memory);
    top.turn(Time::ZERO);
    cuts.ask(take(7, "x"));
    let mut done = Vec::new();
    top.poll(&mut done);
    let asked = puppet.take_one();
    assert_eq!(asked.op, Op::Cut);
    top.submit(Io::new(5, Op::Flush, 0, 0));
    assert_eq!(puppet.take_one().op, Op::Flush, "nobody waits");
    let error = asked.error(ErrorKind::Unsupported, "puppet");
    puppet.complete(Completion::new(asked.token, Err(error)));
    top.poll(&mut done);
    let mut ended = Vec::new();
    cuts.poll_ended(&mut ended);
    let (_, Err(CutError::Part(error))) = &ended[0] else { panic!("{ended:?}") };
    assert_eq!(error.kind, ErrorKind::Unsupported);
    assert!(ended[0].1.as_ref().unwrap_err().to_string().contains("volume of a pool"));
}

/// A volume over a puppet, whose label is that of nobody.
fn over_puppet() -> (Puppet, CutVolume, Cutter) {
    let (puppet, memory) = (Puppet::new(1, Puppet::GEOMETRY), Memory::new(0));
    let labels = crate::meta::Labels::new(CUT_LABEL_TOKEN, &memory);
    let (_, record) = Recorder::new(Box::new(puppet.clone()), labels, label());
    let (top, cuts) = CutVolume::new(Box::new(puppet.clone()), record, &memory);
    (puppet, top, cuts)
}

fn poll(top: &mut CutVolume, millis: u64) -> Vec<Completion> {
    let (now, mut done) = (Time::ZERO + Duration::from_millis(millis), Vec::new());
    top.turn(now);
    top.poll(&mut done);
    done
}

/// Its own flush takes longer than anybody is held, and fails: who flushes beside it may be told that all is durable, by what knows nothing of that loss any
/// more. So those wait for it all the same; others do not.
fn nobody_flushes_beside_it(canary: CutCanary) -> Result<(), String> {
    let (puppet, mut top, _) = over_puppet();
    top.set_canary(canary);
    top.ask = Some((1, take(7, "x")));
    (top.step, top.hold) = (Step::Drain, Hold::All);
    top.hold_until(Time::ZERO + HOLD_MAX);
    poll(&mut top, 1);
    let own = puppet.take_one();
    let write = |token| Io { token, ..Io::new(0, Op::WriteZeroes, 0, 4096) };
    top.submit(Io::new(5, Op::Flush, 0, 0));
    top.submit(write(6));
    poll(&mut top, 2);
    assert!(puppet.take().is_empty(), "all are held");
    poll(&mut top, 1001);
    top.submit(Io::new(7, Op::Flush, 0, 0));
    top.submit(write(8));
    let passed: Vec<_> = puppet.take();
    let writes: Vec<_> = passed.iter().filter(|io| io.op.is_write()).collect();
    assert_eq!(writes.iter().map(|io| io.token).collect::<Vec<_>>(), [6, 8]);
    // One that knows nothing of the loss.
    passed.iter().for_each(|io| puppet.succeed(io));
    puppet.fail(&own);
    let done = poll(&mut top, 1002);
    let flushed = done.iter().find(|completion| [5, 7].contains(&completion.token));
    match flushed.ok_or("no flush has ended")?.result {
        Ok(()) => Err("a flush was done that missed what was lost".into()),
        Err(_) => Ok(()),
    }
}

#[test]
fn who_flushes_waits_for_a_flush_of_its_own() {
    nobody_flushes_beside_it(CutCanary::None).unwrap();
}

#[test]
fn a_flush_beside_a_flush_is_found() {
    let found = nobody_flushes_beside_it(CutCanary::FlushBesideFlush);
    println!("found: {}", found.expect_err("it was not found"));
}

/// Something above holds what its users take for written: no cut is a moment of that.
#[test]
fn what_is_below_memory_is_not_cut() {
    let (puppet, mut top, cuts) = over_puppet();
    top.set_buffered();
    cuts.ask(take(7, "x"));
    cuts.ask(CutAsk::List);
    poll(&mut top, 1);
    let mut ended = Vec::new();
    cuts.poll_ended(&mut ended);
    assert_eq!(ended, [(1, Err(CutError::Buffered))]);
    assert_eq!(puppet.take_one().op, Op::Cut, "which there are is told");
}

/// A cut is on record, and a part is away when it is told so: it is told again, without being asked.
#[test]
fn who_was_away_is_told_again() {
    let (puppet, mut top, cuts) = over_puppet();
    top.ask = Some((1, take(7, "x")));
    top.step = Step::Keep;
    top.owe(CutOrder::of_known(CutAct::Keep, 7));
    poll(&mut top, 1);
    let told = puppet.take_one();
    puppet.complete(Completion::new(told.token, Err(told.error(ErrorKind::Away, "part"))));
    poll(&mut top, 2);
    let mut ended = Vec::new();
    cuts.poll_ended(&mut ended);
    assert_eq!(ended, [(1, Ok(Vec::new()))], "it is on record");
    assert_eq!(
        top.turn(Time::ZERO + Duration::from_millis(3)),
        Time::ZERO + Duration::from_millis(5002)
    );
    poll(&mut top, 5001);
    assert!(puppet.take().is_empty());
    poll(&mut top, 5003);
    let again = puppet.take_one();
    assert_eq!(CutOrder::of(&again), Some(CutOrder::of_known(CutAct::Keep, 7)));
    puppet.succeed(&again);
    poll(&mut top, 5004);
    assert!(!top.is_busy());
    poll(&mut top, 20_000);
    assert!(puppet.take().is_empty(), "it has heard");
}

/// Somebody deletes the snapshot of one part before it counts: there is no such cut, and the other part has none, either.
#[test]
fn what_a_part_has_lost_before_the_record_is_no_cut() {
    let count = (0..20).filter(|seed| loses_a_part(*seed)).count();
    assert!(count > 2, "only {count}");
}

/// False if it was too late for that.
fn loses_a_part(seed: u64) -> bool {
    let mut world = World::new(seed, CutCanary::None);
    let number = world.up.cuts.ask(take(7, "x"));
    let (mut done, mut ended) = (Vec::new(), Vec::new());
    let mut is_lost = false;
    for _ in 0..20_000 {
        world.up.top.turn(world.now);
        world.up.top.poll(&mut done);
        world.up.cuts.poll_ended(&mut ended);
        if !ended.is_empty() {
            break;
        }
        if let (Step::Take, false, Some((snapshot, ..))) =
            (&world.up.top.step, is_lost, world.up.cuts_of(1).first().copied())
        {
            world.up.pools[1].begin(PoolOp::Delete { volume: snapshot });
            is_lost = true;
        }
        world.pass(1);
        world.up.pools.iter().for_each(|pool| _ = pool.turn(world.now));
    }
    if !is_lost {
        assert_eq!(ended, [(number, Ok(Vec::new()))]);
        return false;
    }
    let [(of, Err(CutError::Part(error)))] = &ended[..] else { panic!("{ended:?}") };
    assert_eq!((*of, error.kind), (number, ErrorKind::Invalid));
    assert!(world.up.cuts_of(0).is_empty() && world.up.cuts_of(1).is_empty());
    true
}

/// Its own flush fails: what users wrote before may be lost, so the next flush of one tells that.
#[test]
fn a_flush_that_fails_is_told_to_users() {
    let puppet = Puppet::new(1, Puppet::GEOMETRY);
    let memory = Memory::new(0);
    let labels = crate::meta::Labels::new(CUT_LABEL_TOKEN, &memory);
    let (_, record) = Recorder::new(Box::new(puppet.clone()), labels, label());
    let (mut top, _) = CutVolume::new(Box::new(puppet.clone()), record, &memory);
    top.ask = Some((1, take(7, "x")));
    (top.step, top.hold) = (Step::Drain, Hold::All);
    let mut done = Vec::new();
    top.poll(&mut done);
    let flush = puppet.take_one();
    assert_eq!(flush.op, Op::Flush);
    top.submit(Io::new(5, Op::Flush, 0, 0));
    puppet.fail(&flush);
    top.poll(&mut done);
    assert!(matches!(done[..], [ref own] if own.token == 5 && own.result.is_err()), "{done:?}");
    assert_eq!(top.outstanding(), 0);
    top.submit(Io::new(6, Op::Flush, 0, 0));
    assert_eq!(puppet.take_one().op, Op::Flush, "it was told");
}
