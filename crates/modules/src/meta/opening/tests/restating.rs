//! Openings with which modules keep something else in their labels: at each crash a part says what it said before, or what it says behind, and in the end nothing
//! says what it said before.

use std::collections::BTreeSet;

use super::crashes::{SOME, each_crash};
use super::*;
use crate::meta::Finding;

/// What is kept before, and behind; as long as the state of an encrypted volume.
const BEFORE: [u8; 112] = [0xb; 112];
const BEHIND: [u8; 112] = [0xe; 112];

fn kept(content: &Content) -> Vec<u8> {
    match found(content) {
        Ok(Finding::Label(found)) => found.label.state,
        other => panic!("{other:?}"),
    }
}

/// Both copies.
fn copies(content: &Content) -> [Vec<u8>; 2] {
    [0, 1].map(|copy: usize| Label::decode(&content[copy]).expect("it is whole").state)
}

/// Parts that keep something, and were opened with it.
fn keeping(parts: usize) -> Vec<Content> {
    let new = made(parts);
    let set = |opening: &mut WholeOpening| opening.restate(vec![BEFORE.to_vec(); parts]);
    let mut world = World::with(&new, 1, OpeningCanary::None, set).unwrap();
    world.run();
    world.contents()
}

/// All moments at which an opening can be cut off, with all that a crash leaves then: how many, or what is wrong.
fn explore(parts: usize, canary: OpeningCanary) -> Result<usize, String> {
    let before = keeping(parts);
    let set = |opening: &mut WholeOpening| opening.restate(vec![BEHIND.to_vec(); parts]);
    let (mut count, mut met, mut later) = (0, BTreeSet::new(), BTreeSet::new());
    // Part by part, in each of two orders.
    for from_last in [false, true] {
        let mut world = World::with(&before, 2, canary, set).unwrap();
        loop {
            each_crash(&world, &SOME, &mut |contents| {
                count += 1;
                assembled(&contents).map_err(|error| format!("it cannot be opened: {error}"))?;
                for content in &contents {
                    let kept = kept(content);
                    if kept != BEFORE && kept != BEHIND {
                        return Err(format!("a part says neither: {kept:x?}"));
                    }
                    met.insert(kept == BEHIND);
                }
                later.insert(contents);
                Ok(())
            })?;
            let mut busy = (0..parts).filter(|&part| world.parts[part].is_busy());
            let next = if from_last { busy.next_back() } else { busy.next() };
            let Some(part) = next.filter(|_| world.ended.is_none()) else { break };
            world.complete(part);
        }
        assert_eq!(world.ended, Some(Ok(())));
        for content in world.contents() {
            if copies(&content).iter().any(|copy| *copy != BEHIND) {
                return Err("a copy of a label says what was there before".into());
            }
        }
    }
    assert_eq!(met.len(), 2, "before and behind");
    // Whatever a crash left, the next opening keeps on each part, and in one way.
    for contents in later {
        let after = opened(&contents, 3);
        for (content, before) in after.iter().zip(&contents) {
            let kept = kept(before);
            if copies(content) != [kept.clone(), kept] {
                return Err("the next opening leaves a label of before".into());
            }
        }
    }
    Ok(count)
}

#[test]
fn a_crash_leaves_what_was_kept_or_what_is_and_the_end_only_that() {
    let count = explore(1, OpeningCanary::None).unwrap() + explore(2, OpeningCanary::None).unwrap();
    assert!(count > 150, "only {count} crashes");
}

#[test]
fn a_copy_that_keeps_what_was_there_is_found() {
    let why = explore(1, OpeningCanary::RestatesLate).expect_err("it was not found");
    assert!(why.contains("what was there before"), "{why}");
}

#[test]
fn a_state_that_comes_by_halves_is_found() {
    let why = explore(1, OpeningCanary::RestatesByHalves).expect_err("it was not found");
    assert!(why.contains("says neither"), "{why}");
}
