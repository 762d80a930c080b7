//! Crashes at every moment of an opening, with every order in which its parts come on: the whole can be opened again, and no part
//! that was copied before can be put back after a user has written. Planted faults are found by the same.

use std::collections::BTreeSet;

use super::*;
use crate::meta::StalePart;

/// What a crash leaves of a write: nothing, all, and some ways to tear it.
pub(super) const SOME: [u8; 6] = [0, 0xff, 0x01, 0xfe, 0x0f, 0xaa];

/// Parts that an opening begins on, and whatever was copied of each before that.
struct Case {
    contents: Vec<Content>,
    copies: Vec<Vec<Content>>,
    /// With it the whole grows, and so many bytes of its last part are data then.
    grown: Option<u64>,
    canary: OpeningCanary,
}

/// The parts after these have come on, in this order.
fn replay(case: &Case, id: u8, order: &[usize]) -> World {
    let grow = |opening: &mut WholeOpening| {
        if let Some(bytes) = case.grown {
            opening.grow(grown(&opening.sizes, bytes));
        }
    };
    let mut world = World::with(&case.contents, id, case.canary, grow).expect("it is a whole");
    order.iter().for_each(|&part| assert!(world.complete(part)));
    world
}

/// By what the whole is known.
fn made_with(whole: &Assembly) -> Vec<u64> {
    whole.parts.iter().map(|part| part.made_bytes).collect()
}

/// Calls `check` with the world at each state that it can come to: what a part does depends on how far each has come only.
fn each_state(
    case: &Case,
    id: u8,
    check: &mut dyn FnMut(&World) -> Result<(), String>,
) -> Result<(), String> {
    let mut known = BTreeSet::new();
    let mut orders = vec![Vec::new()];
    while let Some(order) = orders.pop() {
        let world = replay(case, id, &order);
        check(&world)?;
        for part in (0..world.parts.len()).filter(|&part| world.parts[part].is_busy()) {
            let order = [&order[..], &[part]].concat();
            let mut far = vec![0; world.parts.len()];
            order.iter().for_each(|&part| far[part] += 1);
            if known.insert(far) {
                orders.push(order);
            }
        }
    }
    Ok(())
}

/// Calls `check` with all that a crash could leave now.
pub(super) fn each_crash(
    world: &World,
    torn: &[u8],
    check: &mut dyn FnMut(Vec<Content>) -> Result<(), String>,
) -> Result<(), String> {
    let mut all = vec![Vec::new()];
    for part in &world.parts {
        let crashes = part.crashes(torn);
        let with = |before: Vec<Content>| {
            crashes.iter().map(move |content| [&before[..], std::slice::from_ref(content)].concat())
        };
        all = all.into_iter().flat_map(with).collect();
    }
    all.into_iter().try_for_each(check)
}

/// A user may write now: whatever was copied of a part before and is put back, before or after a crash, is told to be old.
fn check_copies(case: &Case, world: &World) -> Result<usize, String> {
    let mut count = 0;
    each_crash(world, &SOME, &mut |contents| {
        for (place, copies) in case.copies.iter().enumerate() {
            for copy in copies {
                let mut contents = contents.clone();
                contents[place] = copy.clone();
                count += 1;
                let stale = match assembled(&contents) {
                    Err(AssemblyError::Stale { parts, .. }) => parts,
                    other => {
                        return Err(format!("an old copy of part {place} is taken: {other:?}"));
                    }
                };
                let told: Vec<_> = stale.iter().map(|&StalePart { place, .. }| place).collect();
                if told != [place] {
                    return Err(format!("{told:?} are said to be old, not {place}"));
                }
            }
        }
        Ok(())
    })?;
    Ok(count)
}

/// All crashes of an opening, and of `again` more after each: how many, or the first thing that is wrong.
fn explore(case: &Case, id: u8, again: usize) -> Result<usize, String> {
    let (mut count, mut later) = (0, BTreeSet::new());
    let made = made_with(&assembled(&case.contents).expect("it is a whole"));
    each_state(case, id, &mut |world| {
        if world.ended.is_some() {
            count += check_copies(case, world)?;
        }
        each_crash(world, &SOME, &mut |contents| {
            count += 1;
            match assembled(&contents) {
                Ok(whole) if made_with(&whole) != made => {
                    return Err(format!("it is known by other sizes: {:?}", made_with(&whole)));
                }
                Ok(_) if again > 0 => _ = later.insert(contents),
                Ok(_) => {}
                Err(error) => return Err(format!("it cannot be opened: {error}")),
            }
            Ok(())
        })
    })?;
    for contents in later {
        let mut copies = case.copies.clone();
        copies.iter_mut().zip(&contents).for_each(|(copies, content)| copies.push(content.clone()));
        let next = Case { contents, copies, grown: None, canary: case.canary };
        count += explore(&next, id + 1, again - 1)?;
    }
    Ok(count)
}

/// Wholes of so many parts, never opened and opened before.
fn all(parts: usize, again: usize, canary: OpeningCanary) -> Result<usize, String> {
    let new = made(parts);
    let before = opened(&new, 1);
    let copies =
        |contents: &[Content]| contents.iter().map(|content| vec![content.clone()]).collect();
    let grown = None;
    let first = Case { copies: copies(&new), contents: new, grown, canary };
    let second = Case { copies: copies(&before), contents: before, grown, canary };
    Ok(explore(&first, 2, again)? + explore(&second, 2, again)?)
}

#[test]
fn a_crash_at_any_moment_leaves_a_whole_and_no_way_for_old_copies() {
    let count = all(3, 0, OpeningCanary::None).unwrap();
    assert!(count > 5_000, "only {count} crashes");
}

/// A crash in the opening after a crash in an opening.
#[test]
fn a_crash_after_a_crash_leaves_them_too() {
    let count = all(2, 1, OpeningCanary::None).unwrap();
    assert!(count > 10_000, "only {count} crashes");
}

/// Each write torn in every way.
#[test]
fn a_label_torn_in_any_way_leaves_a_whole() {
    let every: Vec<u8> = (0..=u8::MAX).collect();
    let contents = opened(&made(2), 1);
    let (copies, grown, canary) = (Vec::new(), None, OpeningCanary::None);
    let case = Case { contents, copies, grown, canary };
    let mut count = 0;
    each_state(&case, 2, &mut |world| {
        for torn in 0..world.parts.len() {
            for content in world.parts[torn].crashes(&every) {
                let mut contents = world.contents();
                contents[torn] = content;
                count += 1;
                assembled(&contents).map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    })
    .unwrap();
    assert!(count > 5_000, "only {count} crashes");
}

/// Sizes with a last part of so many bytes.
fn grown(sizes: &WholeSizes, bytes: u64) -> WholeSizes {
    let mut next = sizes.clone();
    let last = next.part_bytes.last_mut().expect("there are parts");
    next.whole_bytes += bytes.max(*last) - *last;
    *last = bytes.max(*last);
    next
}

/// Wholes that grow with an opening: at each crash they are as large as before, or as behind; they have grown when a user may write; and who was copied before is told to be old.
fn growing(parts: usize, again: usize, canary: OpeningCanary) -> Result<usize, String> {
    let before = opened(&made_of(parts, SimPart::BYTES - 8192), 1);
    let copies = before.iter().map(|content| vec![content.clone()]).collect();
    let small = assembled(&before).unwrap().sizes();
    let last = SimPart::BYTES - crate::meta::LABEL_AREA_BYTES;
    let large = grown(&small, last);
    assert_eq!(large.whole_bytes, small.whole_bytes + 8192);
    let case = Case { contents: before, copies, grown: Some(last), canary };
    let mut met = BTreeSet::new();
    each_state(&case, 2, &mut |world| {
        let has_ended = world.ended.is_some();
        each_crash(world, &SOME, &mut |contents| {
            let sizes =
                assembled(&contents).map_err(|e| format!("it cannot be opened: {e:?}"))?.sizes();
            met.insert(sizes == large);
            match (sizes == small, sizes == large) {
                (true, _) if has_ended => Err("it has not grown".into()),
                (true, _) | (_, true) => Ok(()),
                _ => Err(format!("{sizes:?}")),
            }
        })
    })?;
    assert_eq!(met.len(), 2, "before and behind");
    explore(&case, 2, again)
}

#[test]
fn a_whole_grows_at_once_or_not_at_all() {
    let count =
        growing(3, 0, OpeningCanary::None).unwrap() + growing(2, 1, OpeningCanary::None).unwrap();
    assert!(count > 5_000, "only {count} crashes");
}

#[test]
fn sizes_that_come_before_their_opening_are_found() {
    let why = growing(2, 0, OpeningCanary::GrowsInFirstPhase).expect_err("it was not found");
    assert!(why.contains("it cannot be opened") && why.contains("sizes"), "{why}");
}

#[test]
fn a_whole_that_is_another_when_it_has_grown_is_found() {
    let why = growing(2, 0, OpeningCanary::ForgetsMade).expect_err("it was not found");
    assert!(why.contains("known by other sizes"), "{why}");
}

/// It grows again and again, and is known by what it was made with.
#[test]
fn a_whole_that_grows_twice_is_known_by_what_it_was_made_with() {
    let mut contents = opened(&made_of(2, SimPart::BYTES - 16384), 1);
    let made = made_with(&assembled(&contents).unwrap());
    let last = SimPart::BYTES - crate::meta::LABEL_AREA_BYTES;
    for (id, bytes) in [(2, last - 8192), (3, last - 8192), (4, last)] {
        let grow = |opening: &mut WholeOpening| opening.grow(grown(&opening.sizes, bytes));
        let mut world = World::with(&contents, id, OpeningCanary::None, grow).unwrap();
        world.run();
        contents = world.contents();
        let whole = assembled(&contents).unwrap();
        assert_eq!((whole.parts[1].data_bytes, made_with(&whole)), (bytes, made.clone()));
    }
}

#[track_caller]
fn is_found(canary: OpeningCanary, again: usize, says: &str) {
    let why = all(2, again, canary).expect_err("it was not found");
    assert!(why.contains(says), "{why}");
}

#[test]
fn an_opening_that_announces_nothing_is_found() {
    is_found(OpeningCanary::SinglePhase, 0, "it cannot be opened");
}

#[test]
fn a_second_phase_that_does_not_wait_for_the_first_is_found() {
    is_found(OpeningCanary::EarlySecondPhase, 0, "it cannot be opened");
}

#[test]
fn users_that_write_before_its_end_are_found() {
    is_found(OpeningCanary::EarlyEnd, 0, "an old copy of part");
}

#[test]
fn an_opening_that_forgets_a_half_drawn_one_is_found() {
    is_found(OpeningCanary::ForgetsHalf, 1, "it cannot be opened");
}
