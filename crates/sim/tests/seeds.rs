//! Seeds repeat exactly, and broken builds are found out.

mod known;

use std::panic::{AssertUnwindSafe, catch_unwind};

use thinwire_modules::CacheCanary;
use thinwire_sim::narrow::OutletCanary;
use thinwire_sim::run::SimSide;
use thinwire_sim::{
    Canary, Story, enumerate, has_absences, has_cache, has_damage, has_keys, has_lending_links,
    has_narrow_links, has_spread, has_tree, has_wrapped_links, run_seed, run_story,
};
use {
    thinwire_initiator as initiator, thinwire_node as node, thinwire_proto as proto,
    thinwire_target as target,
};

#[test]
fn a_seed_repeats_exactly() {
    for seed in 0..40 {
        let first =
            run_seed(seed, Canary::None, false).unwrap_or_else(|v| panic!("{seed}: {}", v.0));
        let second = run_seed(seed, Canary::None, false).unwrap();
        assert_eq!(first, second, "seed {seed}");
    }
}

/// All of this runs with assertions in `make test`, and nothing of `volumes.rs` does.
#[test]
fn composed_worlds_keep_what_is_asserted() {
    for seed in 0..16 {
        run_story(seed, Story::Volumes, Canary::None, false)
            .unwrap_or_else(|v| panic!("{seed}: {}", v.0));
    }
    for seed in [1, 2, 3, 7, 9] {
        enumerate(seed, Canary::None).unwrap_or_else(|v| panic!("{seed}: {}", v.0));
    }
}

/// Below its client three levels of modules owe a flush each when all heals, and two more are owed by the disk and the
/// attachment of one leaf.
#[test]
fn a_tree_may_tell_of_a_loss_once_more_for_each_of_its_levels() {
    run_seed(9_602_480, Canary::None, false).unwrap_or_else(|v| panic!("{}", v.0));
}

/// A seed below `most` by which a checker finds a broken build; none if it does not.
fn seeds_until_found(canary: Canary, most: u64, wanted: impl Fn(u64) -> bool) -> Option<u64> {
    let caught = |seed: u64| {
        // An assertion of the system itself counts as well.
        let result = catch_unwind(AssertUnwindSafe(|| run_seed(seed, canary, false)));
        !matches!(result, Ok(Ok(_)))
    };
    known::first("seeds", canary, 0..most, |seed| wanted(seed) && caught(seed))
}

/// Each planted fault is found within so many seeds.
#[track_caller]
fn found(canary: Canary, most: u64) {
    found_among(canary, most, |_| true);
}

/// As [`found`]; only worlds with a tree can see it.
#[track_caller]
fn found_in_trees(canary: Canary, most: u64) {
    found_among(canary, most, has_tree);
}

/// As [`found`]; only worlds with caches can see it.
#[track_caller]
fn found_in_caches(canary: CacheCanary, most: u64) {
    found_among(Canary::Cache(canary), most, has_cache);
}

/// As [`found`]; only worlds with exports on several shards can see it.
#[track_caller]
fn found_over_shards(canary: Canary, most: u64) {
    found_among(canary, most, has_spread);
}

/// Within the first 2,000 seeds; only worlds in which data is altered can see it.
#[track_caller]
fn found_in_damage(canary: Canary) {
    found_among(canary, 2000, has_damage);
}

#[test]
fn canary_that_lets_go_of_a_busy_volume_is_found() {
    found_among(Canary::Door(target::DoorCanary::LeavesAtOnce), 2000, has_absences);
}

/// A gateway that could have known better fences its writer.
#[test]
fn canary_that_tells_of_no_idle_generation_is_found() {
    found_in_trees(Canary::Door(target::DoorCanary::IdleUntold), 3000);
}

#[test]
fn canary_that_writes_what_does_not_fit_its_sums_is_found() {
    found_in_damage(Canary::Target(target::TargetCanary::SumsUnchecked));
}

#[test]
fn canary_that_makes_sums_anew_is_found() {
    found_in_damage(Canary::Initiator(initiator::InitiatorCanary::SumsAnew));
}

#[test]
fn canary_that_believes_what_was_read_is_found() {
    found_in_damage(Canary::Initiator(initiator::InitiatorCanary::ReadsUnchecked));
}

#[test]
fn canary_whose_sums_leave_out_the_place_is_found() {
    found_in_damage(Canary::SumsPlaceless);
}

/// As [`found`]; only worlds with keys can see it.
#[track_caller]
fn found_with_keys(canary: Canary, most: u64) {
    found_among(canary, most, has_keys);
}

#[track_caller]
fn found_among(canary: Canary, most: u64, wanted: impl Fn(u64) -> bool) {
    let seed = seeds_until_found(canary, most, wanted);
    assert!(seed.is_some(), "{canary:?} survives {most} seeds");
    println!("{canary:?} is found by seed {seed:?}");
}

#[test]
fn canary_without_duplicate_detection_is_found() {
    found(Canary::Target(target::TargetCanary::NoDuplicateDetection), 300);
}

#[test]
fn canary_without_replay_is_found() {
    found(Canary::Initiator(initiator::InitiatorCanary::NoReplay), 100);
}

#[test]
fn canary_that_completes_early_is_found() {
    found(Canary::Target(target::TargetCanary::EarlyCompletion), 100);
}

#[test]
fn canary_that_keeps_its_verifier_is_found() {
    found(Canary::Door(target::DoorCanary::SameVerifier), 300);
}

#[test]
fn canary_that_believes_any_flush_is_found() {
    found(Canary::Initiator(initiator::InitiatorCanary::AnyFlush), 500);
}

#[test]
fn canary_that_calls_fua_durable_beside_a_failed_flush_is_found() {
    found(Canary::Door(target::DoorCanary::FuaBesideFailedFlush), 1000);
}

#[test]
fn canary_that_grants_a_late_attach_is_found() {
    found(Canary::Door(target::DoorCanary::StaleAttach), 300);
}

#[test]
fn canary_that_grants_over_requests_is_found() {
    found(Canary::Door(target::DoorCanary::GrantOverRequests), 1000);
}

#[test]
fn canary_that_overlooks_the_failures_of_others_is_found() {
    found(Canary::Door(target::DoorCanary::LossesUnnoticed), 1000);
}

#[test]
fn canary_that_leaves_a_failed_record_is_found() {
    found(Canary::Door(target::DoorCanary::RecordInOneStep), 1000);
}

#[test]
fn canary_that_records_nobody_is_found() {
    found(Canary::Door(target::DoorCanary::RecordLost), 100);
}

#[test]
fn canary_that_fences_before_it_grants_is_found() {
    found(Canary::Door(target::DoorCanary::FencedByWaiting), 2000);
}

/// Only a session with several exports can see it.
#[test]
fn canary_that_fences_a_whole_session_is_found() {
    found(Canary::Door(target::DoorCanary::FencedTogether), 300);
}

#[test]
fn canary_that_tells_nobody_of_growth_is_found() {
    found(Canary::Door(target::DoorCanary::GrowthUntold), 300);
}

/// It is looked for there, too.
#[test]
fn canary_that_tells_nobody_of_growth_over_wrapped_links_is_found() {
    let canary = Canary::Door(target::DoorCanary::GrowthUntold);
    found_among(canary, 300, |seed| has_wrapped_links(seed) && !has_tree(seed));
}

/// Growth climbs from the last leaf of a tree to whoever stands on that.
#[test]
fn canary_that_tells_nobody_of_the_growth_of_a_leaf_is_found() {
    found_in_trees(Canary::Door(target::DoorCanary::GrowthUntold), 300);
}

/// Of the worlds with caches those whose disks fail writes can see it.
#[test]
fn canary_of_a_cache_that_publishes_early_is_found() {
    found_in_caches(CacheCanary::PublishedEarly, 300);
}

/// Somebody must write what is being read ahead, and read it from there.
/// One in fifty worlds with caches sees it: a write beside the read, and a reader before the next write.
#[test]
fn canary_of_a_cache_that_reads_ahead_unchecked_is_found() {
    found_in_caches(CacheCanary::AheadUnchecked, 1500);
}

#[test]
fn canary_that_forgets_cuts_is_found() {
    found(Canary::CutsForgotten, 1000);
}

/// Nothing but I/O behind the end of all failures can see it.
#[test]
fn canary_that_goes_on_failing_is_found() {
    found(Canary::FailureKept, 100);
}

/// Behind trees, too, whose levels tell of it one after the other.
#[test]
fn canary_that_goes_on_failing_below_a_tree_is_found() {
    found_in_trees(Canary::FailureKept, 1000);
}

#[test]
fn canary_that_skips_the_door_is_found() {
    found(Canary::Door(target::DoorCanary::DoorSkipped), 300);
}

#[test]
fn canary_that_does_not_believe_its_other_shards_is_found() {
    found(Canary::Target(target::TargetCanary::HandOverUnproved), 100);
}

#[test]
fn canary_of_a_branch_that_syncs_by_itself_is_found() {
    found_over_shards(Canary::Door(target::DoorCanary::SyncsTogether), 1000);
}

#[test]
fn canary_that_fences_one_ring_of_several_is_found() {
    found_over_shards(Canary::Door(target::DoorCanary::FenceOfOneRing), 3000);
}

#[test]
fn canary_that_fences_the_first_member_alone_is_found() {
    found_over_shards(Canary::Door(target::DoorCanary::FenceOfFirstMember), 3000);
}

#[test]
fn canary_of_a_member_that_closes_the_others_passes_is_found() {
    found_over_shards(Canary::Door(target::DoorCanary::MemberFencesAll), 3000);
}

/// Nobody but who asks behind another's answer can see it.
#[test]
fn canary_that_tells_a_verifier_before_all_shards_know_it_is_found() {
    found_over_shards(Canary::Door(target::DoorCanary::VerifierUntold), 10_000);
}

#[test]
fn canary_of_letters_out_of_order_is_found() {
    found_over_shards(Canary::LettersSwapped, 1000);
}

#[test]
fn canary_that_forgets_a_ring_in_a_crash_is_found() {
    found_over_shards(Canary::RingsForgotten, 10_000);
}

#[test]
fn canary_that_patches_edges_without_locks_is_found() {
    found(Canary::EdgesUnlocked, 300);
}

#[test]
fn canary_patched_as_read_is_found() {
    found(Canary::Initiator(initiator::InitiatorCanary::PatchedAsRead), 1000);
}

#[test]
fn canary_that_ignores_the_lock_is_found() {
    found(Canary::LockIgnored, 1000);
}

#[test]
fn canary_of_a_node_that_forgets_a_completion_is_found() {
    found(Canary::Node(node::NodeCanary::Forgets), 300);
}

#[test]
fn canary_of_a_node_that_completes_twice_is_found() {
    found(Canary::Node(node::NodeCanary::Stutters), 300);
}

#[test]
fn canary_of_a_node_that_tells_a_loss_late_is_found() {
    found_in_trees(Canary::Node(node::NodeCanary::LateLost), 10_000);
}

#[test]
fn canary_of_a_module_that_drops_a_flush_is_found() {
    found_in_trees(Canary::FlushDropped, 1000);
}

#[test]
fn canary_of_a_gateway_that_asks_nobody_who_wrote_its_leaves_is_found() {
    found_in_trees(Canary::LeafWritersUnasked, 1000);
}

#[test]
fn canary_of_a_gateway_that_writes_down_no_grants_is_found() {
    found_in_trees(Canary::GrantsUnnoted, 1000);
}

#[test]
fn canary_of_a_gateway_that_believes_a_note_to_be_gone_is_found() {
    found_in_trees(Canary::NotesUnsynced, 3000);
}

/// Somebody takes a leaf away while clients are with the gateway.
#[test]
fn canary_of_a_fenced_gateway_that_tells_of_errors_is_found() {
    found_in_trees(Canary::Door(target::DoorCanary::FencedTold), 2000);
}

#[test]
fn canary_that_looks_at_losses_behind_its_answers_is_found() {
    found_in_trees(Canary::Door(target::DoorCanary::VerifierAfterAnswer), 25_000);
}

#[test]
fn canary_of_an_outlet_that_forgets_what_waits_is_found() {
    found_among(Canary::Outlet(OutletCanary::Forgets), 100, has_narrow_links);
}

#[test]
fn canary_of_an_outlet_that_repeats_what_waits_is_found() {
    found_among(Canary::Outlet(OutletCanary::Repeats), 100, has_narrow_links);
}

/// Who holds what it has read sees it change.
#[test]
fn canary_of_a_link_that_reuses_what_a_client_holds_is_found() {
    found_among(Canary::LentReused(SimSide::Clients), 200, has_lending_links);
}

/// What a disk writes is another frame's by then.
#[test]
fn canary_of_a_link_that_reuses_what_a_target_writes_is_found() {
    found_among(Canary::LentReused(SimSide::Servers), 100, has_lending_links);
}

/// Such a link runs out of it.
#[test]
fn canary_of_a_client_that_never_lets_go_of_what_was_lent_is_found() {
    found_among(Canary::LentKept, 100, has_lending_links);
}

/// Links refuse frames, and what waits for them is sealed twice.
#[test]
fn canary_that_stamps_anew_what_was_sealed_is_found() {
    let canary = Canary::Session(proto::SessionCanary::StampedAnew);
    found_among(canary, 100, |seed| has_keys(seed) && has_narrow_links(seed));
}

#[test]
fn canary_that_takes_replays_is_found() {
    found_with_keys(Canary::Session(proto::SessionCanary::ReplaysTaken), 100);
}

#[test]
fn canary_that_hears_before_it_opens_is_found() {
    found_with_keys(Canary::Session(proto::SessionCanary::HeardUnopened), 100);
}

#[test]
fn canary_that_keeps_sessions_of_a_key_that_is_gone_is_found() {
    found_with_keys(Canary::Target(target::TargetCanary::KeysKept), 100);
}

#[test]
fn canary_that_believes_refusals_of_nobody_is_found() {
    found_with_keys(Canary::Initiator(initiator::InitiatorCanary::BelievesRefusals), 300);
}
