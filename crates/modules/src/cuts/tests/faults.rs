//! What becomes of a cut where a part refuses it, or cannot be told.

use thinwire_buffer::{Pool as Memory, Time};
use thinwire_volume::testing::Puppet;
use thinwire_volume::{Completion, ErrorKind, Io, Op, Volume};

use super::super::volume::{Hold, Step};
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
