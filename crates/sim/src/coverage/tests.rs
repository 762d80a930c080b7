//! What is asked of many runs, and what is not.

use super::*;

/// All names that are asked for by then, if nothing was exercised.
fn asked(runs: u64) -> Vec<String> {
    Coverage::default().missing(runs)
}

#[test]
fn what_is_not_exercised_is_missed_in_time() {
    assert!(asked(SEEDS_FOR_COUNTERS - 1).is_empty());
    let counters = asked(SEEDS_FOR_COUNTERS);
    assert!(counters.iter().any(|name| name == "requests"));
    assert!(!counters.iter().any(|name| name.starts_with("drop ") || name.contains('>')));
    let changes = asked(SEEDS_FOR_CHANGES);
    assert!(changes.iter().any(|name| name == "drop payload"));
    assert!(changes.iter().any(|name| name == "closing: Told > Closed"));
    assert!(changes.iter().any(|name| name == "crash at closing: Told > Closed"));
    assert!(changes.iter().any(|name| name == "closing: Draining > Closed"));
    assert!(!changes.iter().any(|name| name == "crash at closing: Draining > Closed"));
    let all = asked(SEEDS_FOR_SELDOM);
    let seldom = SELDOM.iter().filter(|name| name.contains(" > ")).count();
    assert_eq!(all.len(), changes.len() + SELDOM.len() + seldom + SELDOM_HIT.len());
}

#[test]
fn an_excuse_that_is_untrue_is_found() {
    let mut coverage = Coverage::default();
    assert!(coverage.excused_in_vain(SEEDS_FOR_CHANGES).is_empty());
    coverage.drops.count(thinwire_proto::DropReason::Overrun);
    assert_eq!(coverage.excused_in_vain(SEEDS_FOR_CHANGES), ["drop overrun"]);
}

#[test]
fn worlds_with_volumes_are_asked_for_what_only_they_have() {
    let none = Coverage::default();
    assert!(none.missing_of_volumes(SEEDS_FOR_VOLUMES - 1).is_empty());
    assert_eq!(none.missing_of_volumes(SEEDS_FOR_VOLUMES).len(), OF_VOLUMES.len());
    assert!(!asked(SEEDS_FOR_SELDOM).iter().any(|name| name == "cuts_taken"));
}

/// A name that nothing has any more excuses nothing.
#[test]
fn whatever_is_excused_exists() {
    let coverage = Coverage::default();
    let mut names: Vec<String> = coverage.iter().map(|(name, _)| name.to_owned()).collect();
    names.extend(coverage.drops.all().map(|(name, _)| format!("drop {name}")));
    names.extend(coverage.transitions.iter().map(|(name, _)| name));
    for excused in ELSEWHERE.iter().map(|&(name, _)| name).chain(SELDOM).chain(SELDOM_HIT) {
        assert!(names.iter().any(|name| name == excused), "{excused}");
    }
}
