//! What a mirror and whoever brings back its legs know of each other.

use thinwire_modules::meta::LabelPart;

use super::*;

/// A mirror of three legs, described in the places 2, 0 and 1; those were found that are named here. Who brings them are 10 more.
fn opened(found: [bool; 3], used: [bool; 3]) -> Rc<RefCell<Passage>> {
    let by_place = vec![Some(10), Some(11), Some(12)];
    let leaves = vec![0..1, 1..3, 3..4];
    let passage = Passage::new(("t.toml#a/b".into(), "t.toml#b".into()), by_place, leaves);
    let place = [2, 0, 1];
    let when = |of: [bool; 3]| (0..3).map(|leg| of[leg].then_some(place[leg])).collect::<Vec<_>>();
    let whole = FoundMirror {
        options: thinwire_modules::Options::default(),
        name: "b".into(),
        uuid: [7; 16],
        bytes: 1 << 20,
        parts: (0..3).map(|leg| LabelPart { uuid: [leg; 16], bytes: 4 << 20 }).collect(),
        places: when(found),
        states: vec![None; 3],
        passed_over: Vec::new(),
    };
    let passage = Rc::new(RefCell::new(passage));
    let described: Vec<_> = (0..3).zip(place).collect();
    passage.borrow_mut().open(&whole, &when(used), &described);
    passage
}

fn stand(in_sync: u8, used: u8, out: u8) -> LegsInUse {
    LegsInUse { in_sync, used, out, removed: 0 }
}

/// Of what was not found it is known which leg it is only if it can be no other.
#[test]
fn which_leg_somebody_brings_is_known_or_is_not() {
    let of = |found| [10, 11, 12].map(|number| opened(found, found).borrow().leg_of(number));
    assert_eq!(of([true; 3]), [Some(1), Some(2), Some(0)]);
    assert_eq!(of([true, false, true]), [Some(1), Some(2), Some(0)]);
    assert_eq!(of([true, false, false]), [None, None, Some(0)]);
    let passage = opened([true, false, false], [true, false, false]);
    let mut keeper = LegReturn(passage.clone());
    passage.borrow_mut().taking = Some(11);
    keeper.taken(1, Ok(()));
    assert_eq!((passage.borrow().leg_of(11), keeper.keeps(1)), (Some(1), true), "it was that");
}

/// The leaves of a leg that was dropped do not count, whether it is brought back or not; before the mirror is open all do.
#[test]
fn a_mirror_goes_without_the_leaves_of_legs_that_it_does_not_use() {
    let passage = opened([true; 3], [true; 3]);
    let mut keeper = LegReturn(passage.clone());
    let without = || [0, 1, 2, 3, 4].map(|leaf| passage.borrow().goes_without(leaf));
    assert_eq!(without(), [false; 5]);
    keeper.look(stand(0b111, 0b111, 0));
    assert_eq!(without(), [false; 5]);
    // Leg 2 stands in place 1, of two leaves.
    keeper.look(stand(0b011, 0b011, 0));
    assert_eq!(without(), [false, true, true, false, false]);
}

/// Rule 16: the number alone makes no leg.
#[test]
fn a_label_of_something_else_is_of_no_leg() {
    let passage = opened([true; 3], [true; 3]);
    let state = thinwire_modules::mirror::MirrorState::of_new(
        3,
        (1 << 20, 512),
        0,
        &mut crate::mirrored::Entropy,
    );
    let new = |uuid: u8| thinwire_modules::meta::NewPart {
        uuid: [uuid; 16],
        content: thinwire_volume::Identity::default(),
        bytes: 4 << 20,
    };
    let label = |whole: u8, uuids: [u8; 3], role: usize| {
        let module = thinwire_modules::Module::find("mirror").unwrap();
        let options = &thinwire_modules::Options::default();
        let whole = thinwire_modules::meta::NewWhole {
            name: "b",
            uuid: [whole; 16],
            module,
            options,
            bytes: 1 << 20,
        };
        let parts = uuids.map(new);
        let mut label =
            thinwire_modules::meta::label_parts(&whole, &parts).unwrap().swap_remove(role);
        label.state = state[role].encode();
        label
    };
    let of = |number, label: Label| passage.borrow().leg_by(number, &label);
    // A UUID is not zero.
    passage.borrow_mut().parts[0] = [3; 16];
    let own = [3, 1, 2];
    assert_eq!(of(10, label(7, own, 1)), Ok(1));
    assert!(of(10, label(6, own, 1)).unwrap_err().contains("another volume"));
    assert!(of(10, label(7, [3, 9, 2], 1)).unwrap_err().contains("another part"));
    assert!(of(10, label(7, own, 2)).unwrap_err().contains("is leg 2"));
}

/// A leg that is removed while it is away does not come back, nor one that is failed.
#[test]
fn what_is_out_is_told_to_whoever_brings_it() {
    let passage = opened([true; 3], [true; 3]);
    let mut keeper = LegReturn(passage.clone());
    let out = || [10, 11, 12].map(|number| passage.borrow().is_out(number));
    assert_eq!(out(), [false; 3]);
    keeper.look(stand(0b101, 0b101, 0));
    assert_eq!(out(), [false; 3]);
    keeper.look(stand(0b101, 0b101, 0b010));
    assert_eq!(out(), [true, false, false]);
}

/// In sync is asked for once, and not before it came back.
#[test]
fn who_was_in_sync_since_it_came_back_is_known() {
    let passage = opened([true; 3], [true; 3]);
    let mut keeper = LegReturn(passage.clone());
    keeper.look(stand(0b111, 0b111, 0));
    keeper.look(stand(0b101, 0b101, 0));
    passage.borrow_mut().taking = Some(10);
    keeper.taken(1, Ok(()));
    keeper.look(stand(0b101, 0b111, 0));
    assert!(!passage.borrow_mut().take_in_sync(10), "that was before");
    keeper.look(stand(0b111, 0b111, 0));
    keeper.look(stand(0b101, 0b101, 0));
    assert!(passage.borrow_mut().take_in_sync(10));
    assert!(!passage.borrow_mut().take_in_sync(10));
}

#[test]
fn why_a_leg_is_not_back_is_told_by_leg() {
    let passage = opened([true; 3], [true; 3]);
    let keeper = LegReturn(passage.clone());
    assert_eq!(keeper.absence(1), LegAbsence::default());
    let until = Instant::now() + std::time::Duration::from_secs(1000);
    passage.borrow_mut().set_absence(10, Some(until), "it is full");
    let LegAbsence { retry_in, why } = keeper.absence(1);
    assert!(retry_in.is_some_and(|left| left.as_secs() > 500) && why == "it is full");
    assert_eq!(keeper.absence(0), LegAbsence::default());
    passage.borrow_mut().set_absence(10, None, "");
    assert_eq!(keeper.absence(1), LegAbsence::default());
}

/// A leg that is added is brought by whoever does that from then on, and nobody else is known for it; a disk of this machine stays with the mirror.
#[test]
fn a_leg_that_is_added_is_brought_by_one() {
    let passage = opened([true; 3], [true; 3]);
    let (mut keeper, door) = (LegReturn(passage.clone()), LegReturn(passage.clone()).door());
    assert!(
        door.bring(3, "stripe:[/srv/a,/srv/b]".parse().unwrap())
            .unwrap_err()
            .contains("while nobody uses")
    );
    door.bring(3, "tw://node1/d?link=eth1".parse().unwrap()).unwrap();
    assert_eq!(passage.borrow().wanted.len(), 1);
    assert_eq!(door.take_begun(3), None);
    passage.borrow_mut().begun.push((3, Err("busy".into())));
    assert_eq!((door.take_begun(2), door.take_begun(3)), (None, Some(Err("busy".into()))));
    for (number, leg) in [(13, 3), (14, 3), (15, 1)] {
        passage.borrow_mut().add(number, leg, 10 + number);
        passage.borrow_mut().taking = Some(number);
        keeper.taken(leg, Ok(()));
        assert!(keeper.keeps(leg) && passage.borrow().leg_of(number) == Some(leg));
    }
    let of = |number| passage.borrow().leg_of(number);
    assert_eq!([10, 11, 12, 13, 14, 15].map(of), [None, Some(2), Some(0), None, Some(3), Some(1)]);
    keeper.look(stand(0b0111, 0b0111, 0));
    assert!(passage.borrow().goes_without(24) && !passage.borrow().goes_without(25));
    passage.borrow_mut().stays(14);
    assert!(!keeper.keeps(3) && keeper.keeps(1));
}
