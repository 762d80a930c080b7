//! What an opening writes, in which order, and what failures and crashes leave of a whole.

mod crashes;
mod growing;
mod parts;
mod restating;

use thinwire_buffer::Pool;
use thinwire_volume::{ErrorKind, Op};

use self::parts::{Content, SimPart, found};
use super::*;
use crate::meta::{
    AssemblyError, LABEL_OFFSETS, NewPart, NewWhole, SeenPart, assemble, label_parts,
};
use crate::{Module, Options};

/// So many parts that were just made into a whole, as they lie on their disks, the last part in the first place.
fn made(count: usize) -> Vec<Content> {
    made_of(count, SimPart::BYTES)
}

/// The same, the last of which had so many bytes then.
fn made_of(count: usize, last_bytes: u64) -> Vec<Content> {
    let part = |role: usize| NewPart {
        uuid: [0x20 + role as u8; 16],
        content: SimPart::identity_of(role),
        bytes: if role + 1 == count { last_bytes } else { SimPart::BYTES },
    };
    let parts: Vec<_> = (0..count).map(part).collect();
    let (module, options) = (Module::find("linear").unwrap(), Options::default());
    let bytes = parts.iter().map(|part| part.data_bytes(module)).sum();
    let whole = NewWhole { name: "home", uuid: [1; 16], module, options: &options, bytes };
    let labels = label_parts(&whole, &parts).unwrap();
    // As `volume create` leaves them.
    let image = |label: &Label, generation| Label { generation, ..label.clone() }.encode().unwrap();
    labels.iter().rev().map(|label| [2, 3].map(|generation| image(label, generation))).collect()
}

fn seen(contents: &[Content]) -> Vec<SeenPart> {
    let seen = |content: &Content| {
        let found = found(content);
        let content = SimPart::identity_in(content);
        SeenPart { found, content }
    };
    contents.iter().map(seen).collect()
}

fn assembled(contents: &[Content]) -> Result<Assembly, AssemblyError> {
    assemble(&seen(contents))
}

/// Parts and the opening of their whole that has begun on them.
struct World {
    parts: Vec<SimPart>,
    opening: WholeOpening,
    ended: Option<Result<(), OpeningError>>,
}

impl World {
    /// Of parts that make a whole.
    fn new(contents: &[Content], id: u8, canary: OpeningCanary) -> Result<Self, AssemblyError> {
        World::with(contents, id, canary, |_| ())
    }

    /// The same, with something done to it before.
    fn with(
        contents: &[Content],
        id: u8,
        canary: OpeningCanary,
        prepare: impl FnOnce(&mut WholeOpening),
    ) -> Result<Self, AssemblyError> {
        let whole = assembled(contents)?;
        let mut parts: Vec<_> = contents.iter().cloned().map(SimPart::new).collect();
        let read = |part: &mut SimPart| {
            let mut labels = Labels::new(5, &Pool::new(0));
            labels.read(part).unwrap();
            let outcome = std::iter::repeat_with(|| labels.turn(part)).take(3).flatten().next();
            match outcome {
                Some(LabelOutcome::Read(Ok(crate::meta::Finding::Label(found)))) => {
                    (labels, found.label)
                }
                other => panic!("{other:?}"),
            }
        };
        let labels = parts.iter_mut().map(read).collect();
        let mut opening = WholeOpening { canary, ..WholeOpening::new(&whole, [id; 16], labels) };
        prepare(&mut opening);
        opening.begin(&mut parts);
        Ok(World { parts, opening, ended: None })
    }

    /// What is under way on that part ends well; false if nothing is.
    fn complete(&mut self, part: usize) -> bool {
        let completes = self.parts[part].complete(None);
        self.turn();
        completes
    }

    fn turn(&mut self) {
        if self.ended.is_none() {
            self.ended = self.opening.turn(&mut self.parts);
        }
    }

    /// All ends well, part by part.
    fn run(&mut self) {
        while self.ended.is_none() {
            let busy = (0..self.parts.len()).find(|&part| self.parts[part].is_busy());
            self.complete(busy.expect("it ends"));
        }
    }

    fn contents(&self) -> Vec<Content> {
        self.parts.iter().map(|part| part.durable.clone()).collect()
    }
}

fn opened(contents: &[Content], id: u8) -> Vec<Content> {
    let mut world = World::new(contents, id, OpeningCanary::None).unwrap();
    world.run();
    assert_eq!(world.ended, Some(Ok(())));
    world.contents()
}

/// Opening, next one and number.
fn says(content: &Content) -> ([u8; 16], [u8; 16], u64) {
    match found(content) {
        Ok(crate::meta::Finding::Label(found)) => {
            let Label { opening, next_opening, openings, .. } = found.label;
            (opening, next_opening, openings)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn all_parts_announce_an_opening_before_any_has_it() {
    let mut world = World::new(&made(3), 7, OpeningCanary::None).unwrap();
    let parts = |world: &World| world.contents().iter().map(says).collect::<Vec<_>>();
    let (none, announced, has) =
        (([0; 16], [0; 16], 0), ([0; 16], [7; 16], 0), ([7; 16], [0; 16], 1));
    assert_eq!(parts(&world), [none; 3]);
    for part in [2, 0] {
        while world.complete(part) {}
    }
    assert_eq!(parts(&world), [announced, none, announced], "the second phase waits for the first");
    // Its last write: then all begin to say that it has come.
    (0..3).for_each(|_| assert!(world.complete(1)));
    assert_eq!(parts(&world), [announced; 3]);
    while world.complete(0) {}
    assert_eq!((parts(&world), world.ended.clone()), (vec![has, announced, announced], None));
    world.run();
    assert_eq!((parts(&world), world.ended), (vec![has; 3], Some(Ok(()))));
}

#[test]
fn each_opening_is_another_and_counted() {
    let mut contents = made(2);
    for id in 1..4 {
        contents = opened(&contents, id);
        assert_eq!(says(&contents[1]), ([id; 16], [0; 16], id.into()));
    }
    let whole = assembled(&contents).unwrap();
    assert_eq!((whole.opening, whole.openings), ([3; 16], 3));
}

/// Whichever step fails on whichever part: the others end what they have begun, the part is named, and the whole can be opened.
#[test]
fn what_fails_on_a_part_fails_the_opening() {
    for (failing, step) in (0..3).flat_map(|part| (0..5).map(move |step| (part, step))) {
        for is_seen in [false, true] {
            let before = made(3);
            let mut world = World::new(&before, 7, OpeningCanary::None).unwrap();
            let mut steps = [0; 3];
            while let Some(part) = (0..3).find(|&part| world.parts[part].is_busy()) {
                let fails = (part, steps[part]) == (failing, step);
                world.parts[part].complete(fails.then_some(is_seen));
                steps[part] += 1;
                world.turn();
            }
            let Some(Err(OpeningError { part, error })) = world.ended.clone() else {
                panic!(
                    "part {failing} failed at {step}, and the opening ended with {:?}",
                    world.ended
                )
            };
            assert_eq!(part, failing);
            let is_right = match step {
                0 => matches!(error, LabelError::Unsettled(_)),
                1 | 3 => matches!(error, LabelError::Unflushed(_)),
                _ => matches!(error, LabelError::Unwritten { .. }),
            };
            assert!(is_right, "at {step}: {error}");
            let after = opened(&world.contents(), 8);
            assert_eq!(says(&after[failing]).0, [8; 16]);
        }
    }
}

#[test]
fn a_part_that_may_not_be_written_fails_it_at_once() {
    let mut world = World::new(&made(2), 7, OpeningCanary::None).unwrap();
    let contents = world.contents();
    let whole = assembled(&contents).unwrap();
    let labels = contents.iter().map(|content| match found(content) {
        Ok(crate::meta::Finding::Label(found)) => (Labels::new(5, &Pool::new(0)), found.label),
        other => panic!("{other:?}"),
    });
    // Nothing was read by these.
    let mut opening = WholeOpening::new(&whole, [7; 16], labels.collect());
    opening.begin(&mut world.parts);
    let error = opening.turn(&mut world.parts).unwrap().unwrap_err();
    assert_eq!((error.part, &error.error), (0, &LabelError::Unknown));
    assert!(error.to_string().starts_with("part 0, counted from 0, gets no label"), "{error}");
}

/// Rule 25, in words.
#[test]
fn old_copies_are_named_with_what_to_do() {
    let before = made(3);
    let after = opened(&opened(&before, 1), 2);
    let describe = |contents: &[Content]| {
        assembled(contents).unwrap_err().describe(&|place| format!("<{place}>"))
    };
    let mut mixed = after.clone();
    mixed[0] = before[0].clone();
    assert_eq!(
        describe(&mixed),
        "<0> (part 2, counted from 0, 2 openings behind) is an old copy: \"home\" was opened for writing since, as <2> knows; \
         put the part that was there last back, or copies of all parts that were made at one time, while it was not open"
    );
    mixed[2] = opened(&before, 1)[2].clone();
    let told = describe(&mixed);
    let two = "<0> (part 2, counted from 0, 2 openings behind), <2> (part 0, counted from 0, 1 opening behind) are old copies: ";
    assert!(
        told.starts_with(two) && told.contains("as <1> knows; put the parts that were"),
        "{told}"
    );
    // Opened without each other: which is the old one cannot be told.
    let fork = [opened(&before, 1)[0].clone(), opened(&before, 3)[1].clone(), before[2].clone()];
    let told = describe(&fork);
    assert!(told.contains("differ in the last opening for writing"), "{told}");
}
