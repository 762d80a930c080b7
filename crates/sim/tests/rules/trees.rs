//! Rules 2 to 4 where volumes stand on volumes: a gateway, whose tree of eight leaves lies on its own
//! disks and on those of two servers below it, and a client that stands on such a tree itself.

use std::time::Duration;

use thinwire_initiator::InitiatorStats;
use thinwire_link::rng::Rng;
use thinwire_link::sim::{StationConfig, WireConfig};
use thinwire_proto::Time;
use thinwire_sim::client::{End, Workload};
use thinwire_sim::export::Store;
use thinwire_sim::medium::{MediumConfig, MediumHandle, RecordFate};
use thinwire_sim::model::Range;
use thinwire_sim::notes::{NoteFate, NoteReach};
use thinwire_sim::server::Crash;
use thinwire_sim::tree::{Branch, TreeLeaf};
use thinwire_sim::world::{NOBODY, World};
use thinwire_target::TargetConfig;
use thinwire_volume::{ErrorKind, Op};

use crate::scene::{Scene, at, ms};

/// Sectors of each leaf.
const LEAF: usize = 64;
/// The server of the tree; those below are 0 and 1.
const GATEWAY: usize = 2;
/// All of the tree.
const ALL: Range = Range { first: 0, count: 8 * LEAF };

/// A tree: leaves 0, 2, 4 and 6 are the gateway's own, the others lie in turn on the servers below.
struct Grove {
    s: Scene,
    tree: usize,
    /// Of each leaf.
    media: Vec<MediumHandle>,
}

impl Grove {
    fn new() -> Self {
        Grove::of(Branch::even(), true)
    }

    fn of(shape: Branch, by_gateway: bool) -> Self {
        let mut world = World::new(7, WireConfig::default(), std::env::var("TRACE").is_ok());
        for node in ["below0", "below1", "gateway"] {
            let config =
                TargetConfig { node: node.into(), insecure: true, ..TargetConfig::default() };
            world.add_server(1, StationConfig::default(), config, None);
        }
        world.servers[GATEWAY].leaf_settings.config.wait = true;
        let (mut leaves, mut media) = (Vec::new(), Vec::new());
        for leaf in 0..8 {
            let config = MediumConfig { bytes: (LEAF * 512) as u64, ..MediumConfig::default() };
            let medium = MediumHandle::new(leaf as u64 + 1, [leaf as u8 + 1; 16], config);
            media.push(medium.clone());
            if by_gateway && leaf % 2 == 0 {
                leaves.push(TreeLeaf::File(medium));
                continue;
            }
            let export =
                world.add_export(leaf / 2 % 2, (LEAF * 512) as u64, 512, Store::File(medium));
            leaves.push(world.remote_leaf(export));
        }
        let tree = world.add_tree(if by_gateway { GATEWAY } else { NOBODY }, shape, leaves);
        (0..3).for_each(|server| world.start_server(server));
        let client = world.add_client(1, StationConfig::default(), tree, Workload::NONE);
        world.clients[client].keeps_log = true;
        world.exports[tree].writers = 1;
        let mut s = Scene { world, medium: media[1].clone(), links: 1 };
        s.attach(client);
        Grove { s, tree, media }
    }

    /// The sectors of a leaf.
    fn leaf(number: usize) -> Range {
        at(number * LEAF, LEAF)
    }

    fn may_fail(&mut self) {
        self.s.world.exports[self.tree].may_fail = true;
    }

    fn restart(&mut self, server: usize, how: Crash) {
        self.s.world.crash_server(server, how);
        self.s.world.start_server(server);
    }

    fn restart_all(&mut self, how: Crash) {
        (0..3).for_each(|server| self.restart(server, how));
    }

    /// How often the gateway has fenced whoever was the writer, for somebody who had a leaf.
    fn raised(&self) -> u64 {
        let tree = self.s.world.exports[self.tree].tree().expect("it is one");
        tree.memory.borrow().raised()
    }

    /// What becomes of the next changes of the gateway's notes; those that are not named succeed.
    fn script_notes(&self, fates: impl IntoIterator<Item = NoteFate>) {
        let tree = self.s.world.exports[self.tree].tree().expect("it is one");
        tree.memory.borrow_mut().notes.script(fates);
    }

    /// The gateway is started as often as it dies of itself.
    fn start_gateway(&mut self) {
        for _ in 0..4 {
            self.s.world.start_server(GATEWAY);
            self.s.pass(ms(2500));
            if !self.s.world.died.contains(&GATEWAY) {
                return;
            }
            self.s.world.died.clear();
        }
        panic!("it dies again and again");
    }

    /// Figures of the gateway's attachment to a leaf.
    fn stats(world: &World, leaf: usize) -> InitiatorStats {
        let found = world.servers[GATEWAY].leaves().find(|l| l.leaf == leaf);
        found.map(|l| l.initiator.report(Time(world.now)).stats).unwrap_or_default()
    }

    fn flush_at_last(&mut self) {
        assert!((0..5).any(|_| self.s.flush().is_ok()), "no flush succeeds");
    }

    /// One in which the server of a leaf has lost what was written there, and could not take it again.
    fn that_lost(leaf: usize) -> Self {
        let mut g = Grove::new();
        g.may_fail();
        g.s.write(Grove::leaf(leaf));
        g.media[leaf].configure(|c| c.write_failure = 1.0);
        g.restart(leaf / 2 % 2, Crash::Power);
        g.s.until("it fails", move |w| Grove::stats(w, leaf).replay_failures > 0);
        g.media[leaf].configure(|c| c.write_failure = 0.0);
        g
    }

    /// A flush succeeds, the gateway has fenced its writer so often, and as [`Grove::end`].
    fn end_having_raised(mut self, times: u64) {
        assert_eq!(self.s.flush(), Ok(()));
        assert_eq!(self.raised(), times);
        self.end();
    }

    /// What was flushed is there, whatever loses its power.
    fn end(mut self) {
        self.restart_all(Crash::Power);
        self.s.read(ALL);
        let client = &mut self.s.world.clients[0];
        client.close();
        self.s.until("detached", |w| w.clients[0].initiator.is_none());
        (0..3).for_each(|server| self.s.world.crash_server(server, Crash::Power));
        let model = &self.s.world.exports[self.tree].models[0];
        for (leaf, medium) in self.media.iter().enumerate() {
            let checked = model.check_part(leaf * LEAF, &medium.durable());
            checked.unwrap_or_else(|v| panic!("{}", v.0));
        }
    }
}

#[test]
fn rule_04_restarts_below_a_gateway_and_of_it_are_invisible() {
    for shape in [Branch::even(), Branch::uneven()] {
        let mut g = Grove::of(shape, true);
        g.s.write(ALL);
        assert_eq!(g.s.flush(), Ok(()));
        g.s.write(at(LEAF / 2, 7 * LEAF));
        // What the gateway's own attachments kept is sent again by them.
        for server in [0, 1] {
            g.restart(server, Crash::Power);
            g.s.read(ALL);
        }
        assert!([1, 3, 5, 7].map(|leaf| Grove::stats(&g.s.world, leaf).replayed) == [1; 4]);
        assert_eq!(g.s.stats(0).replayed, 0);
        // What died with the gateway is sent again by its client.
        g.restart_all(Crash::Power);
        g.s.read(ALL);
        assert_eq!(g.s.stats(0).replayed, 1);
        g.end_having_raised(0);
    }
}

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
    assert_eq!(g.s.flush(), Ok(()));
    assert_eq!(g.raised(), 0);
    g.end();
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
                let tree = g.s.world.exports[g.tree].tree().expect("it is one");
                let stats = tree.memory.borrow().notes.stats();
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

/// The gateway's export may have lost something: its client sends it, before it believes what it reads.
#[test]
fn rule_04_a_gateway_tells_that_a_leaf_could_not_be_written_again() {
    for leaf in [1, 3, 5, 7] {
        let mut g = Grove::that_lost(leaf);
        g.s.read(Grove::leaf(leaf));
        assert_eq!(g.s.stats(0).replayed, 1, "leaf {leaf}");
        assert_eq!(g.s.flush(), Ok(()), "its client has made good for it");
        g.end();
    }
}

/// As before, and the client flushes first: what it flushes had been lost.
#[test]
fn rule_04_a_flush_through_a_gateway_covers_nothing_that_a_leaf_has_lost() {
    let mut g = Grove::that_lost(3);
    assert_eq!(g.s.flush(), Ok(()));
    assert_eq!(g.s.stats(0).replayed, 1);
    g.end();
}

/// What a leaf has lost puts nothing in doubt that came later.
#[test]
fn rule_04_a_durable_write_behind_a_loss_is_durable() {
    let mut g = Grove::that_lost(3);
    g.s.write_fua(at(LEAF - 4, 8));
    g.s.read(ALL);
    assert_eq!(g.s.stats(0).replayed, 1);
    assert_eq!(g.s.flush(), Ok(()));
    g.end();
}

/// A flush that fails in one leaf, wherever that is, has failed; what may have been lost is sent again.
#[test]
fn rule_04_a_flush_that_fails_in_one_leaf_has_failed() {
    for leaf in 0..8 {
        let mut g = Grove::new();
        g.may_fail();
        g.s.write(ALL);
        g.media[leaf].set_flush_failure(1.0);
        assert_eq!(g.s.flush(), Err(ErrorKind::Io), "leaf {leaf}");
        g.media[leaf].set_flush_failure(0.0);
        g.s.read(ALL);
        assert_eq!(g.s.flush(), Ok(()));
        assert!(g.s.stats(0).replayed > 0, "leaf {leaf}");
        g.end();
    }
}

/// The last leaf grows, told by the server that has it: whoever stands on the tree, through a gateway or by
/// itself, knows it in the end, uses it and keeps it. The leaves before it are where they were.
#[test]
fn what_the_last_leaf_grows_by_is_told_used_and_kept() {
    for (shape, by_gateway) in
        [(Branch::even(), true), (Branch::uneven(), true), (Branch::even(), false)]
    {
        let mut g = Grove::of(shape, by_gateway);
        g.s.write(ALL);
        for leaf in [2 * LEAF, 5 * LEAF] {
            g.s.world.grow_tree(g.tree, (leaf * 512) as u64);
            let bytes = ((7 * LEAF + leaf) * 512) as u64;
            g.s.until("its client knows", move |w| {
                w.clients[0].initiator.as_ref().is_some_and(|i| i.known_bytes() == bytes)
            });
            g.s.write(at(8 * LEAF - 4, 8));
            g.s.write(at(7 * LEAF + leaf - 8, 8));
            // Unflushed, it is sent again; the tree is the volume that it was.
            g.restart_all(Crash::Power);
            g.s.read(at(0, 7 * LEAF + leaf));
        }
        assert_eq!(g.s.flush(), Ok(()));
        g.end();
    }
}

/// What another leaf grows by has no place: nothing moves as long as the tree is served, also behind restarts of
/// the servers below. When it is opened again, the leaves behind begin elsewhere: nobody takes it for what it was.
#[test]
fn a_tree_over_another_leaf_that_has_grown_is_another_volume() {
    for (leaf, how) in [(1, Crash::Kill), (2, Crash::Kill), (3, Crash::Power), (6, Crash::Power)] {
        let mut g = Grove::new();
        g.s.write(ALL);
        assert_eq!(g.s.flush(), Ok(()));
        g.s.write(at(LEAF / 2, 7 * LEAF));
        g.media[leaf].grow((2 * LEAF * 512) as u64);
        g.s.pass(ms(3000));
        for below in [0, 1] {
            g.restart(below, how);
            g.s.read(ALL);
            g.s.write(at(LEAF / 2, 7 * LEAF));
        }
        assert_eq!(g.s.flush(), Ok(()));
        let told = g.s.world.clients[0].initiator.as_ref().unwrap().known_bytes();
        assert_eq!(told, (8 * LEAF * 512) as u64, "leaf {leaf}");
        g.restart(GATEWAY, how);
        assert_eq!(g.s.until_ended(0), End::Failed(ErrorKind::ContentChanged), "leaf {leaf}");
    }
}

/// Nobody is told of a size that the server below could lose.
#[test]
fn what_a_leaf_grows_by_is_told_when_it_is_durable_there() {
    for by_gateway in [true, false] {
        let mut g = Grove::of(Branch::even(), by_gateway);
        g.may_fail();
        g.media[7].set_record_failure(1.0);
        g.s.world.grow_tree(g.tree, (3 * LEAF * 512) as u64);
        g.s.pass(ms(3000));
        let known = |g: &Grove| g.s.world.clients[0].initiator.as_ref().unwrap().known_bytes();
        assert_eq!(known(&g), (8 * LEAF * 512) as u64);
        g.media[7].set_record_failure(0.0);
        g.s.world.grow_tree(g.tree, (4 * LEAF * 512) as u64);
        g.s.pass(ms(3000));
        assert_eq!(known(&g), (11 * LEAF * 512) as u64);
        g.s.write(at(10 * LEAF, LEAF));
        g.flush_at_last();
        g.end();
    }
}

/// The gateway dies between any two calls of its node, with writes and a flush on their way through it.
#[test]
fn rule_04_a_gateway_may_die_at_any_step() {
    let mut died = 0;
    for steps in 0..48 {
        let mut g = Grove::new();
        g.s.write(at(LEAF / 2, 4 * LEAF));
        let write = g.s.submit(0, Op::Write, at(3 * LEAF - 4, 2 * LEAF));
        let flush = g.s.submit(0, Op::Flush, at(0, 0));
        // Sooner or later after they have come.
        g.s.pass(Duration::from_micros(20 * (steps % 12)));
        g.s.world.kill_in_turn(GATEWAY, steps as u32 % 16);
        g.s.pass(ms(1));
        died += u32::from(!g.s.world.servers[GATEWAY].runs());
        g.restart(GATEWAY, if steps % 2 == 0 { Crash::Power } else { Crash::Kill });
        assert_eq!(g.s.outcome(0, write).result, Ok(()), "step {steps}");
        assert_eq!(g.s.outcome(0, flush).result, Ok(()), "step {steps}");
        g.s.read(ALL);
        g.s.write(at(3 * LEAF - 2, 4));
        assert_eq!(g.s.flush(), Ok(()));
        g.end();
    }
    assert!(died > 24, "it died in a turn {died} times only");
}

/// The gateway dies over its record, at each step of storing it: the first attach is granted in the end,
/// and the one on record is the writer.
#[test]
fn rule_03_a_gateway_may_die_over_its_record() {
    use RecordFate::{Dies, Failed, Stored};
    for fates in [
        vec![Dies(false)],
        vec![Dies(true)],
        vec![Stored, Dies(false)],
        vec![Stored, Dies(true)],
        vec![Stored, Failed(true), Dies(true)],
        vec![Stored, Failed(false), Failed(false), Dies(false)],
    ] {
        let mut g = Grove::new();
        g.may_fail();
        g.s.write(ALL);
        g.s.world.crash_client(0);
        let tree = g.s.world.exports[g.tree].tree().expect("it is one");
        tree.record.script_records(fates.clone());
        g.s.world.clients[0].config.wait = true;
        g.s.world.start_client(0);
        g.s.until("it dies", |w| w.died.contains(&GATEWAY));
        g.s.world.start_server(GATEWAY);
        g.s.until("attached", |w| w.clients[0].is_open);
        g.s.write(at(0, 3 * LEAF));
        g.flush_at_last();
        g.end();
    }
}

/// Somebody takes a leaf over and writes it: the gateway's client meets errors there, and reads nothing of
/// the other's; nothing of its own lands there any more. The others of its leaves stay with it.
#[test]
fn rule_03_who_takes_a_leaf_over_fences_the_gateway_there() {
    let mut g = Grove::new();
    g.may_fail();
    g.s.write(ALL);
    assert_eq!(g.s.flush(), Ok(()));
    g.s.write(Grove::leaf(5));
    let waiting = g.s.slow_write_to(&g.media[5].clone(), at(5 * LEAF, 8), ms(20));
    let below =
        g.s.world.exports.iter().position(|e| e.medium().is_some_and(|m| m.is_same(&g.media[5])));
    let below = below.expect("it is served");
    g.s.world.exports[below].writers = 2;
    let thief = g.s.world.add_client(1, StationConfig::default(), below, Workload::NONE);
    g.s.world.clients[thief].keeps_log = true;
    g.s.world.clients[thief].config.take_over = true;
    g.s.attach(thief);
    let stolen = g.s.submit(thief, Op::Write, at(0, LEAF));
    assert_eq!(g.s.outcome(thief, stolen).result, Ok(()));
    let _ = g.s.outcome(0, waiting);
    for (op, range) in
        [(Op::Read, at(5 * LEAF, 1)), (Op::Write, at(5 * LEAF, 8)), (Op::Flush, at(0, 0))]
    {
        assert_eq!(g.s.run(op, range), Err(ErrorKind::Io), "{op}");
    }
    g.s.read(at(0, 5 * LEAF));
    g.s.write(at(0, 5 * LEAF));
    g.s.read(at(6 * LEAF, 2 * LEAF));
    g.s.world.clients[thief].close();
    assert_eq!(g.s.until_ended(thief), End::Closed);
    let model = &g.s.world.exports[below].models[0];
    model.check_image(&g.media[5].current()).unwrap_or_else(|v| panic!("{}", v.0));
}

/// A server below is away for longer than anybody would wait: what goes there waits, the rest goes on.
#[test]
fn rule_08_io_for_a_leaf_that_is_away_waits() {
    let mut g = Grove::new();
    g.s.write(ALL);
    g.s.world.crash_server(0, Crash::Power);
    let write = g.s.submit(0, Op::Write, at(LEAF, LEAF));
    g.s.read(at(2 * LEAF, 3 * LEAF));
    g.s.pass(Duration::from_secs(300));
    g.s.write(at(3 * LEAF, LEAF));
    assert_eq!(g.s.world.clients[0].outstanding(), 1);
    g.s.world.start_server(0);
    assert_eq!(g.s.outcome(0, write).result, Ok(()));
    assert_eq!(g.s.flush(), Ok(()));
    g.end();
}

/// A gateway that is told to stop lets go of its leaves in order: its successor need not wait for anybody,
/// and nothing is sent again but by its client.
#[test]
fn rule_07_a_gateway_that_stops_lets_its_leaves_go() {
    let mut g = Grove::new();
    g.s.write(ALL);
    g.s.world.shut_down_server(GATEWAY, 3_000_000_000);
    g.s.until("it has stopped", |w| !w.servers[GATEWAY].runs());
    for export in &g.s.world.exports {
        let commits = export.medium().map(|medium| medium.commits());
        let last = commits.as_ref().and_then(|commits| commits.last());
        assert!(last.is_none_or(|record| !record.is_held()), "{last:?}");
    }
    g.s.world.start_server(GATEWAY);
    g.s.read(ALL);
    assert_eq!(g.s.stats(0).replayed, 1);
    assert_eq!(g.s.flush(), Ok(()));
    g.end();
}

/// Without a gateway it is the client that hears of it.
#[test]
fn rule_04_a_client_on_a_tree_is_told_what_a_leaf_has_lost() {
    let mut g = Grove::of(Branch::uneven(), false);
    g.may_fail();
    g.s.write(ALL);
    g.restart(0, Crash::Power);
    g.s.read(ALL);
    assert_eq!(g.s.flush(), Ok(()));
    g.s.write(Grove::leaf(2));
    g.media[2].configure(|c| c.write_failure = 1.0);
    g.restart(1, Crash::Power);
    g.s.until("it fails", |w| {
        w.clients[0].initiator.as_ref().expect("it runs").report(Time(w.now)).stats.replay_failures
            > 0
    });
    g.media[2].configure(|c| c.write_failure = 0.0);
    g.s.read(at(3 * LEAF, LEAF));
    assert_eq!(g.s.flush(), Err(ErrorKind::Io), "something was lost");
    g.s.write(Grove::leaf(2));
    assert_eq!(g.s.flush(), Ok(()));
    g.end();
}
