//! One export behind the doors of several shards (`docs/design.md`, "One export, several shards").

use thinwire_exports::DoorCanary;

#[path = "spread/fenced.rs"]
mod fenced;
#[path = "spread/members.rs"]
mod members;
#[path = "spread/pair.rs"]
mod pair;
#[path = "spread/quiet.rs"]
mod quiet;
#[path = "spread/rings.rs"]
mod rings;
#[path = "spread/told.rs"]
mod told;
#[path = "spread/world.rs"]
mod world;

use world::{Figures, Plan, World};

const SEEDS: u64 = 400;
const STEPS: usize = 1500;

/// One world from its beginning to its end.
fn run(plan: Plan) -> (Figures, Result<(), String>) {
    let mut world = World::new(plan);
    let ended = (0..STEPS).try_for_each(|_| world.step()).and_then(|()| world.come_to_rest());
    (world.figures, ended)
}

/// In whatever order shards, their disks and letters take their turns: what was flushed is durable, nobody
/// fenced writes behind the grant, nobody is told an older verifier again, and nobody waits for ever.
#[test]
fn doors_of_several_shards_are_as_one() {
    let mut all = Figures::default();
    for seed in 0..SEEDS {
        let (figures, ended) = run(Plan { seed, ..Plan::default() });
        assert_eq!(ended, Ok(()), "seed {seed}");
        all.grants += figures.grants;
        all.fenced += figures.fenced;
        all.syncs += figures.syncs;
        all.losses += figures.losses;
        all.answers += figures.answers;
        all.letters += figures.letters;
        all.refused += figures.refused;
        all.joined += figures.joined;
        all.idle += figures.idle;
    }
    // What never happens is not tested.
    let Figures { grants, fenced, syncs, losses, answers, letters, refused, joined, idle } = all;
    for (count, least) in
        [grants, fenced, syncs, losses, answers, letters, refused, 8 * joined, idle]
            .into_iter()
            .zip([4, 4, 10, 2, 100, 80, 2, 1, 1])
    {
        assert!(count >= least * SEEDS, "{all:?}");
    }
}

/// Each fault that may be planted there shows.
#[test]
fn worlds_of_several_shards_find_their_faults() {
    for (canary, sign) in [
        (DoorCanary::SyncsTogether, "vouched"),
        (DoorCanary::FenceOfOneRing, "landed behind the grant"),
        (DoorCanary::VerifierUntold, "verifier"),
        (DoorCanary::FenceOfFirstMember, "landed behind the grant"),
        (DoorCanary::MemberFencesAll, "by nobody"),
        (DoorCanary::WrittenUnnoticed, "was written under"),
        (DoorCanary::WrittenElsewhere, "was written under"),
        (DoorCanary::IdleUntold, "and is since"),
    ] {
        let found = |seed| run(Plan { seed, canary }).1.err().is_some_and(|e| e.contains(sign));
        assert!((0..SEEDS).any(found), "{canary:?} was not found");
    }
}
