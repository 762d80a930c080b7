//! Labels as crashes, absences and mistakes leave them, and what is made of them.

use super::*;
use crate::mirror::state::LeftAt;
use LegState::{Behind, Failed, InSync, Resyncing};

fn id(number: u8) -> Generation {
    [number; 16]
}

fn state(generation: u8, history: &[u8], legs: &[LegState]) -> Option<MirrorState> {
    Some(MirrorState {
        generation: id(generation),
        next: NO_GENERATION,
        incarnation: id(77),
        drawn_at: 0,
        history: history.iter().map(|&number| id(number)).collect(),
        region_shift: 20,
        block_shift: 12,
        legs: legs.into(),
    })
}

/// One that announces that generation.
fn next(number: u8, says: Option<MirrorState>) -> Option<MirrorState> {
    says.map(|state| MirrorState { next: id(number), ..state })
}

/// As it is decided by labels alone.
fn decide(seen: &[Option<MirrorState>], degraded: bool) -> Result<OpeningPlan, OpeningRefusal> {
    super::decide(seen, OpeningWish { degraded, from: None, change: None })
}

fn plan(seen: &[Option<MirrorState>], degraded: bool) -> OpeningPlan {
    decide(seen, degraded).unwrap_or_else(|refusal| panic!("{refusal}"))
}

const BOTH: [LegState; 2] = [InSync, InSync];

#[test]
fn legs_that_say_the_same_are_all_current() {
    let both = state(5, &[4], &BOTH);
    let plan = plan(&[both.clone(), both.clone()], false);
    assert_eq!((plan.current, plan.forgets, plan.resync), (0b11, false, vec![]));
    assert_eq!(Some(plan.state), both);
}

/// Rule 3: one that names the other as current is not served alone, unless somebody says so.
#[test]
fn a_leg_that_names_others_as_current_is_not_served_alone() {
    let alone = [None, state(5, &[4], &BOTH)];
    assert_eq!(decide(&alone, false), Err(OpeningRefusal::Missing { legs: 0b01 }));
    let degraded = plan(&alone, true);
    assert_eq!((degraded.current, degraded.forgets), (0b10, true));
    assert_eq!(degraded.state.legs, [Behind { at: id(5).into() }, InSync]);
    // Who has it on record that the other is behind needs nobody.
    let known = plan(&[None, state(6, &[5], &[Behind { at: id(5).into() }, InSync])], false);
    assert_eq!((known.current, known.forgets), (0b10, false));
    let three = [state(5, &[], &[InSync; 3]), state(5, &[], &[InSync; 3]), None];
    assert_eq!(decide(&three, false), Err(OpeningRefusal::Missing { legs: 0b100 }));
}

#[test]
fn a_leg_that_was_dropped_gets_what_its_bitmap_says() {
    let ahead = state(6, &[5, 4], &[InSync, Behind { at: id(5).into() }]);
    let back = plan(&[ahead.clone(), state(5, &[4], &BOTH)], false);
    assert_eq!((back.current, back.forgets), (0b01, false));
    assert_eq!(back.resync, [(1, ResyncExtent::Bitmap)]);
    assert_eq!(Some(back.state), ahead);
    // Rule 25: an older copy of it, and one that nobody has seen.
    for old in [state(4, &[3], &BOTH), state(0, &[], &[InSync, Resyncing { at: id(0).into() }])] {
        let back = plan(&[ahead.clone(), old], false);
        assert_eq!(back.resync, [(1, ResyncExtent::Full)]);
    }
}

/// Rule 25: while one leg was away the history has overflowed.
#[test]
fn where_a_leg_was_left_is_known_however_long_it_is_away() {
    let away = Behind { at: id(1).into() };
    let ahead = state(20, &[19, 18, 17, 16, 15, 14, 13, 12], &[InSync, InSync, away]);
    let back = plan(&[ahead.clone(), ahead.clone(), state(1, &[], &[InSync; 3])], false);
    assert_eq!((back.current, back.resync), (0b011, vec![(2, ResyncExtent::Bitmap)]));
    let other = [ahead.clone(), ahead, state(2, &[], &[InSync; 3])];
    let refusal = decide(&other, true).unwrap_err();
    assert!(matches!(refusal, OpeningRefusal::SplitBrain { legs: [0, 2], .. }), "{refusal}");
}

/// Rule 7: both are named, and neither is written.
#[test]
fn legs_that_were_served_apart_are_refused() {
    served_apart(DecideCanary::None);
}

/// What was written to the other one since would be copied over.
#[test]
#[should_panic(expected = "two truths, and one is taken")]
fn a_split_brain_of_which_one_is_taken_is_found() {
    served_apart(DecideCanary::FirstOfTwo);
}

fn served_apart(canary: DecideCanary) {
    let decide = |seen: &[_], degraded| {
        decide_with(seen, OpeningWish { degraded, from: None, change: None }, canary)
    };
    let apart = [
        state(7, &[5, 4], &[InSync, Behind { at: id(5).into() }]),
        state(8, &[5, 4], &[Behind { at: id(5).into() }, InSync]),
    ];
    for degraded in [false, true] {
        let refusal = decide(&apart, degraded).expect_err("two truths, and one is taken");
        let generations = [id(7), id(8)];
        let drawn_at = [0, 0];
        assert_eq!(refusal, OpeningRefusal::SplitBrain { legs: [0, 1], generations, drawn_at });
        let says = refusal.to_string();
        assert!(says.contains(&"07".repeat(16)) && says.contains(&"08".repeat(16)), "{says}");
    }
    // Also if they claim each other, or one generation means two things.
    let circle = [state(7, &[8], &BOTH), state(8, &[7], &BOTH)];
    assert!(matches!(decide(&circle, true), Err(OpeningRefusal::SplitBrain { .. })));
    let two = [state(7, &[5], &[InSync, Behind { at: id(5).into() }]), state(7, &[5], &BOTH)];
    assert!(matches!(decide(&two, true), Err(OpeningRefusal::SplitBrain { .. })));
}

/// Rule 6: what was being copied to says so, and is not whole before its label has the generation.
#[test]
fn half_a_replacement_is_not_served() {
    let half = state(5, &[4], &[InSync, Resyncing { at: id(5).into() }]);
    let source = state(9, &[8, 5], &[InSync, Resyncing { at: id(5).into() }]);
    for degraded in [false, true] {
        let refused = decide(&[None, half.clone()], degraded);
        assert_eq!(refused, Err(OpeningRefusal::NoneInSync));
    }
    let on = plan(&[source.clone(), half.clone()], false);
    assert_eq!((on.current, on.resync), (0b01, vec![(1, ResyncExtent::Bitmap)]), "it goes on");
    // A copy of it from before that: it was copied to since, under another name.
    let before = plan(&[source, state(8, &[], &BOTH)], false);
    assert_eq!(before.resync, [(1, ResyncExtent::Full)]);
    // The crash came when the source had on record that it begins, and the other had not.
    let named = LegState::Resyncing { at: LeftAt { last: id(4), or: id(5) } };
    let begun = state(6, &[4], &[InSync, named]);
    for other in [state(4, &[], &BOTH), half.clone()] {
        assert_eq!(plan(&[begun.clone(), other], false).resync, [(1, ResyncExtent::Bitmap)]);
    }
    // And after the source has it on record as in sync, before it says so itself: it knows that it is about to.
    let ended = plan(&[state(10, &[9, 8], &BOTH), next(10, half.clone())], false);
    assert_eq!((ended.current, ended.resync), (0b01, vec![(1, ResyncExtent::Bitmap)]));
    assert_eq!(ended.state.legs, [InSync, Behind { at: id(5).into() }]);
    let other = plan(&[state(10, &[9, 8], &BOTH), half], false);
    assert_eq!(other.resync, [(1, ResyncExtent::Full)]);
}

/// The only leg that has all data is an old copy: the one that was copied to knows the one that was in its place.
#[test]
fn an_old_source_is_not_copied_from() {
    let half = state(5, &[9, 8], &[InSync, Resyncing { at: id(5).into() }]);
    let old = state(8, &[7], &[InSync, Behind { at: id(4).into() }]);
    for degraded in [false, true] {
        let refused = decide(&[old.clone(), half.clone()], degraded).unwrap_err();
        assert_eq!(refused, OpeningRefusal::Old { leg: 0, by: 1 });
    }
    let right = state(10, &[9, 8], &[InSync, Resyncing { at: id(5).into() }]);
    assert_eq!(plan(&[right, half], false).resync, [(1, ResyncExtent::Bitmap)]);
}

/// Rule 25: a crash between the labels of two legs drops nobody, since both had all that was completed; what does not know what
/// was being drawn is an old copy.
#[test]
fn what_knows_nothing_of_the_last_opening_is_an_old_copy() {
    let legs = [InSync, InSync, Behind { at: id(4).into() }];
    let ahead = state(5, &[4, 3], &legs);
    let cut = [ahead.clone(), next(5, state(4, &[3], &[InSync; 3])), None];
    let on = plan(&cut, false);
    assert_eq!((on.current, on.resync), (0b011, vec![]));
    assert_eq!((Some(on.recorded), on.state.legs), (ahead.clone(), legs.to_vec()));
    // Also where more was announced, and not drawn, on some of them.
    let half = [ahead.clone(), next(6, ahead.clone()), None];
    assert_eq!(plan(&half, false).current, 0b011);
    // The dropped one alone does not know, and needs somebody's word.
    let dropped = [None, None, state(4, &[3], &[InSync; 3])];
    assert_eq!(decide(&dropped, false), Err(OpeningRefusal::Missing { legs: 0b011 }));
    let old = [state(4, &[3], &[InSync; 3]), next(4, state(3, &[], &[InSync; 3]))];
    for old in old {
        let old = plan(&[ahead.clone(), old, None], false);
        assert_eq!((old.current, old.resync), (0b001, vec![(1, ResyncExtent::Full)]));
        assert_eq!(old.state.legs[1], Behind { at: id(5).into() });
    }
}

/// A leg that was dropped while its label was being written has either.
#[test]
fn what_a_dropped_leg_may_have_been_given_is_known() {
    let at = LeftAt { last: id(4), or: id(5) };
    let ahead = state(6, &[3], &[InSync, Behind { at }]);
    for other in [state(4, &[], &BOTH), state(5, &[4], &BOTH)] {
        let back = plan(&[ahead.clone(), other], false);
        assert_eq!(back.resync, [(1, ResyncExtent::Bitmap)]);
    }
    // One that is missing at an opening, too, if that was being drawn.
    let alone = plan(&[next(5, state(4, &[], &BOTH)), None], true);
    assert_eq!(alone.state.legs[1], Behind { at });
}

/// Rule 16: other content is left alone.
#[test]
fn a_failed_leg_is_not_written() {
    let failed = state(6, &[5], &[InSync, Failed { at: id(5).into() }]);
    let on = plan(&[failed, state(5, &[4], &BOTH)], false);
    assert_eq!((on.current, on.resync), (0b01, vec![]));
}

#[test]
fn legs_of_different_mirrors_are_refused() {
    let two = state(5, &[], &BOTH);
    let three = state(5, &[], &[InSync; 3]);
    assert_eq!(decide(&[two.clone(), three], true), Err(OpeningRefusal::Differ { legs: [0, 1] }));
    let mut coarse = two.clone();
    coarse.as_mut().unwrap().region_shift = 21;
    assert_eq!(decide(&[two, coarse], true), Err(OpeningRefusal::Differ { legs: [0, 1] }));
    assert_eq!(decide(&[None, None], true), Err(OpeningRefusal::NoneInSync));
}

/// Rule 7: somebody decides, and whatever the others have is older from then on, and copied whole.
#[test]
fn one_of_two_truths_is_taken_if_somebody_says_so() {
    let mut apart = [
        state(7, &[5, 4], &[InSync, Behind { at: id(5).into() }]),
        state(8, &[5, 4], &[Behind { at: id(5).into() }, InSync]),
    ];
    let from = |seen: &[Option<MirrorState>], leg| {
        super::decide(seen, OpeningWish { degraded: false, from: Some(leg), change: None })
    };
    apart[1].as_mut().unwrap().drawn_at = 1_795_854_813;
    let says = decide(&apart, false).unwrap_err().to_string();
    assert!(says.contains("drawn on 2026-11-28 at 08:33 UTC; neither"), "{says}");
    assert!(says.contains("drawn at a time that is not known, and leg 1"), "{says}");
    let taken = from(&apart, 1).unwrap();
    assert_eq!((taken.current, taken.forgets), (0b10, true));
    assert_eq!(taken.resync, [(0, ResyncExtent::Full)]);
    // A crash later it is known, also if nothing was copied yet; and more than what is copied is not.
    let mut later = taken.state;
    later.advance(id(9));
    let on = plan(&[apart[0].clone(), Some(later.clone())], false);
    assert_eq!((on.current, on.forgets), (0b10, false));
    assert_eq!(on.resync, [(0, ResyncExtent::Full)]);
    // None has all: what was half copied, or its old source.
    let half = state(5, &[9, 8], &[InSync, Resyncing { at: id(5).into() }]);
    let needs = from(&[None, half.clone()], 1);
    assert_eq!(needs, Err(OpeningRefusal::Missing { legs: 0b01 }), "it may have more");
    let told = OpeningWish { degraded: true, from: Some(1), change: None };
    let alone = super::decide(&[None, half.clone()], told).unwrap();
    assert_eq!((alone.current, alone.forgets, alone.resync), (0b10, true, vec![]));
    assert_eq!(alone.state.legs, [Behind { at: id(5).into() }, InSync]);
    let old = state(8, &[7], &[InSync, Behind { at: id(4).into() }]);
    let taken = from(&[old, half], 0).unwrap();
    assert_eq!((taken.current, taken.resync), (0b01, vec![(1, ResyncExtent::Full)]));
    // Not where nobody doubts it, nor one that is not there, nor what has other content.
    let both = state(5, &[4], &BOTH);
    assert_eq!(
        from(&[both.clone(), both.clone()], 1),
        Err(OpeningRefusal::Undisputed { current: 0b11 })
    );
    assert_eq!(from(&[None, None], 0), Err(OpeningRefusal::Absent { leg: 0 }));
    assert_eq!(from(&[None, both], 1), Err(OpeningRefusal::Missing { legs: 0b01 }));
    let failed = state(8, &[5, 4], &[Failed { at: id(5).into() }, InSync]);
    assert_eq!(from(&[apart[0].clone(), failed], 1).unwrap().resync, []);
}

/// Of those that were served together, and apart from another, one was not whole yet: the one that it was copied from is.
#[test]
fn what_was_being_copied_to_is_no_truth_beside_its_source() {
    let (gone, half) = (Behind { at: id(5).into() }, Resyncing { at: id(5).into() });
    let together = state(7, &[5, 4], &[InSync, half, gone]);
    let apart = [together.clone(), together, state(8, &[5, 4], &[gone, gone, InSync])];
    let from = |seen: &[Option<MirrorState>], leg| {
        super::decide(seen, OpeningWish { degraded: true, from: Some(leg), change: None })
    };
    assert!(matches!(decide(&apart, false), Err(OpeningRefusal::SplitBrain { .. })));
    assert_eq!(from(&apart, 1), Err(OpeningRefusal::HalfCopied { leg: 1, whole: 0 }));
    for leg in [0, 2] {
        assert_eq!(from(&apart, leg).unwrap().current, 1 << leg);
    }
    // Without that it may be all that is left.
    let [_, half, _] = apart;
    assert_eq!(from(&[None, half, None], 1).unwrap().current, 0b010);
}

/// A leg is given up, whatever it is: what comes in its place is copied whole, and so is the old one if it comes back.
#[test]
fn a_leg_is_given_up_for_another() {
    let without = |seen: &[Option<MirrorState>], leg, degraded| {
        super::decide(
            seen,
            OpeningWish { degraded, from: None, change: Some(LegChange::GiveUp(leg)) },
        )
    };
    let gone = Behind { at: NO_GENERATION.into() };
    let old = state(5, &[4], &BOTH);
    // There and sound: nothing is lost with it. Missing: it may have more.
    let plan_of_both = without(&[old.clone(), old.clone()], 1, false).unwrap();
    assert_eq!((plan_of_both.current, plan_of_both.forgets), (0b01, false));
    assert_eq!(plan_of_both.state.legs, [InSync, gone]);
    assert_eq!(
        without(&[old.clone(), None], 1, false),
        Err(OpeningRefusal::Missing { legs: 0b10 })
    );
    let told = without(&[old.clone(), None], 1, true).unwrap();
    assert_eq!((told.current, told.forgets, &told.state.legs[1]), (0b01, true, &gone));
    // Known as behind, or as something else than it was.
    for known in [Behind { at: id(4).into() }, Failed { at: id(4).into() }] {
        let seen = [state(6, &[5], &[InSync, known]), None];
        let plan = without(&seen, 1, false).unwrap();
        assert_eq!((plan.current, plan.forgets, &plan.state.legs[1]), (0b01, false, &gone));
    }
    let behind = [state(6, &[5], &[InSync, Behind { at: id(5).into() }]), state(5, &[4], &BOTH)];
    assert_eq!(without(&behind, 1, false).unwrap().resync, []);
    assert_eq!(without(&behind, 0, true), Err(OpeningRefusal::NoneInSync));
    assert_eq!(without(&behind, 2, true), Err(OpeningRefusal::Absent { leg: 2 }));

    let mut source = plan_of_both.state;
    source.advance(id(6));
    let new = Some(source.of_replacement(1, id(0xc0)));
    let source = Some(source);
    let on = plan(&[source.clone(), new.clone()], false);
    assert_eq!((on.current, &on.resync[..]), (0b01, &[(1, ResyncExtent::Full)][..]));
    assert_eq!(on.state.legs[1], gone, "as it is on record until it is announced");
    // The old one, before the new one is there and after that.
    let back = plan(&[source, old.clone()], false);
    assert_eq!(back.resync, [(1, ResyncExtent::Full)]);
    let later = state(9, &[8, 6, 5], &BOTH);
    assert_eq!(plan(&[later, old], false).resync, [(1, ResyncExtent::Full)]);
    // And it is none to begin with.
    assert_eq!(decide(&[None, new], true), Err(OpeningRefusal::NoneInSync));
}

#[test]
fn moments_are_told_as_people_do() {
    for (seconds, says) in [
        (86399, "on 1970-01-01 at 23:59 UTC"),
        (951_782_400, "on 2000-02-29 at 00:00 UTC"),
        (4_107_542_400, "on 2100-03-01 at 00:00 UTC"),
        (1_704_067_199, "on 2023-12-31 at 23:59 UTC"),
    ] {
        assert_eq!(when(seconds), says);
    }
    assert!(when(u64::MAX).contains("UTC"));
}
