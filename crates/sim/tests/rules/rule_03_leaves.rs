//! Rule 3 where volumes stand on volumes: whom a gateway fences since somebody else had one of its leaves, and
//! whom it does not.

use thinwire_link::rng::Rng;
use thinwire_sim::client::End;
use thinwire_sim::medium::RecordFate;
use thinwire_sim::notes::{NoteFate, NoteReach};
use thinwire_sim::server::Crash;
use thinwire_volume::ErrorKind;

use crate::grove::{ALL, GATEWAY, Grove, LEAF};
use crate::scene::{at, ms};

/// Of a gateway that cannot have all its leaves, or is killed before it has, some have been granted to it in
/// vain: its client is who it was.
#[test]
fn rule_03_a_gateway_that_begins_in_vain_fences_nobody() {
    let mut g = Grove::new();
    g.s.write(ALL);
    for below in [0, 1, 1, 0] {
        g.s.world.crash_server(below, Crash::Power);
        for _ in 0..2 {
            g.restart(GATEWAY, Crash::Kill);
            g.s.pass(ms(2000));
            let open = g.s.world.servers[GATEWAY].leaves().filter(|l| l.initiator.is_open());
            assert_eq!(open.count(), 2, "those of the other server");
        }
        g.s.world.start_server(below);
        g.s.read(ALL);
    }
    g.end_having_raised(0);
}

/// Of two attaches of the gateway that wait at a leaf, the first, of a life that was killed, cannot be recorded: that
/// leaves no gap before the second.
#[test]
fn rule_03_an_attach_that_comes_to_nothing_at_a_leaf_fences_nobody() {
    let mut g = Grove::new();
    g.s.world.exports.iter_mut().for_each(|export| export.may_fail = true);
    g.s.write(ALL);
    let write = g.s.slow_write_to(&g.media[1].clone(), at(LEAF, 8), ms(4000));
    for _ in 0..2 {
        g.restart(GATEWAY, Crash::Kill);
        g.s.pass(ms(1000));
    }
    g.media[1].script_records([RecordFate::Failed(false)]);
    assert_eq!(g.s.outcome(0, write).result, Ok(()));
    assert_eq!(g.media[1].stats().record_failures, 1);
    g.s.read(ALL);
    g.end_having_raised(0);
}

/// A gateway writes down that it has not used a leaf, begins in vain, and begins again. Whose note is there fences
/// nobody, however that came about; whose note is not fences its client, and does no harm.
#[test]
fn rule_03_a_note_that_is_lost_fences_and_one_that_is_there_does_not() {
    use NoteFate::{Dies, Failed};
    let all = [NoteReach::Nothing, NoteReach::There, NoteReach::Durable];
    let fates = all.iter().flat_map(|&reach| [Failed(reach), Dies(reach)]);
    for (fate, how) in fates.flat_map(|fate| [(fate, Crash::Kill), (fate, Crash::Power)]) {
        let mut g = Grove::new();
        g.s.write(ALL);
        g.s.world.crash_server(0, Crash::Power);
        g.s.world.crash_server(GATEWAY, Crash::Kill);
        g.script_notes([NoteFate::Done, fate]);
        g.s.world.start_server(GATEWAY);
        g.s.pass(ms(2000));
        assert_eq!(g.s.world.died.contains(&GATEWAY), matches!(fate, Dies(_)), "{fate:?}");
        g.start_gateway();
        g.s.world.crash_server(GATEWAY, how);
        g.s.world.start_server(0);
        g.start_gateway();
        let is_there = match fate {
            Failed(NoteReach::There) if how == Crash::Power => g.raised() == 0,
            Failed(reach) | Dies(reach) => reach != NoteReach::Nothing,
            NoteFate::Done => true,
        };
        assert_eq!(g.raised(), u64::from(!is_there), "{fate:?} {how:?}");
        if !is_there {
            assert_eq!(g.s.until_ended(0), End::Failed(ErrorKind::Fenced), "{fate:?}");
            g.s.attach(0);
            g.s.write(ALL);
        }
        g.s.read(ALL);
        assert_eq!(g.s.flush(), Ok(()));
        g.end();
    }
}

/// Nobody is let in before the notes of what is used from then on are gone, and a gateway may die or lose its power
/// over any of them.
#[test]
fn rule_03_a_gateway_may_fail_to_forget_its_notes_at_any_step() {
    use NoteFate::{Dies, Done, Failed};
    for step in [0, 1, 4, 7] {
        for reach in [NoteReach::Nothing, NoteReach::There, NoteReach::Durable] {
            for (fate, how) in [(Failed(reach), Crash::Kill), (Dies(reach), Crash::Power)] {
                let mut g = Grove::new();
                g.may_fail();
                g.s.write(ALL);
                g.s.world.crash_server(GATEWAY, how);
                // It writes down eight.
                g.script_notes([Done].repeat(8 + step).into_iter().chain([fate]));
                g.start_gateway();
                let stats = g.notes();
                assert_eq!(stats.failures + stats.crashes, 1, "{fate:?}");
                g.restart(GATEWAY, how);
                g.s.read(ALL);
                g.flush_at_last();
                assert_eq!(g.raised(), 0, "{fate:?} at step {step}");
                g.end();
            }
        }
    }
}

/// A note may be gone from its folder, and no power failure know of that yet: nobody is let in before one does.
#[test]
fn rule_03_what_a_gateway_has_forgotten_does_not_come_back() {
    use NoteFate::{Done, Failed};
    for step in 0..8 {
        let mut g = Grove::new();
        g.may_fail();
        g.s.write(ALL);
        g.s.world.crash_server(GATEWAY, Crash::Power);
        g.script_notes([Done].repeat(8 + step).into_iter().chain([Failed(NoteReach::There)]));
        g.start_gateway();
        g.s.read(ALL);
        assert_eq!(g.notes().failures, 1, "at step {step}");
        g.restart(GATEWAY, Crash::Power);
        assert_eq!(g.notes().losses, 0, "at step {step}");
        g.s.read(ALL);
        g.end_having_raised(0);
    }
}

/// A gateway that is refused a leaf puts its own back as they were, and nobody is fenced for that; but if somebody
/// else has been granted the same generation of one since, its client is.
#[test]
fn rule_03_what_a_gateway_has_taken_back_is_somebody_elses_to_have() {
    for seed in 0..8 {
        let mut g = Grove::new();
        g.s.world.servers[GATEWAY].leaf_settings.config.wait = false;
        g.s.write(ALL);
        g.s.world.crash_server(GATEWAY, Crash::Power);
        // When it has heard that it has the others.
        g.media[5].script_records([RecordFate::Failed(false)]);
        g.media[5].set_latency(20_000_000, 20_000_000);
        g.s.world.start_server(GATEWAY);
        g.s.until("it is refused", |w| w.died.contains(&GATEWAY));
        g.s.world.died.clear();
        let own = |g: &Grove| [0, 2, 4, 6].map(|leaf| g.media[leaf].commits().pop().unwrap());
        assert_eq!(own(&g).map(|record| record.generation), [1; 4], "put back");
        if seed > 0 {
            g.s.world.write_leaf(&mut Rng::new(seed));
            assert_eq!(own(&g).map(|record| record.generation).iter().sum::<u64>(), 5);
        }
        g.s.world.start_server(GATEWAY);
        if seed > 0 {
            assert_eq!(g.s.until_ended(0), End::Failed(ErrorKind::Fenced), "seed {seed}");
            g.s.attach(0);
            g.s.write(ALL);
        }
        g.s.read(ALL);
        assert_eq!(g.s.flush(), Ok(()));
        assert_eq!(g.raised(), u64::from(seed > 0));
        g.end();
    }
}

/// Somebody writes a leaf where it lies, and has it made durable, while the gateway is down: who comes back to
/// the gateway with unflushed writes is fenced. Once: its successor is not.
#[test]
fn rule_03_who_wrote_a_leaf_while_its_gateway_was_down_fences_its_writer() {
    for seed in 0..16 {
        let mut g = Grove::new();
        g.s.write(ALL);
        let down = [vec![GATEWAY], vec![GATEWAY, 0], vec![GATEWAY, 0, 1]];
        let down = &down[seed as usize % 3];
        down.iter().for_each(|&server| g.s.world.crash_server(server, Crash::Power));
        g.s.world.write_leaf(&mut Rng::new(seed));
        assert_eq!(g.s.world.coverage.leaves_written, 1);
        down.iter().for_each(|&server| g.s.world.start_server(server));
        assert_eq!(g.s.until_ended(0), End::Failed(ErrorKind::Fenced), "seed {seed}");
        assert_eq!(g.raised(), 1);
        g.s.attach(0);
        g.s.read(ALL);
        g.s.write(ALL);
        g.restart(GATEWAY, Crash::Power);
        g.s.read(ALL);
        g.end_having_raised(1);
    }
}
