//! A whole that grows while it is used: users go on, and are offered more only when all labels say so, durably.

use thinwire_volume::testing::Puppet;
use thinwire_volume::{Completion, Geometry, Io, VolumeEvent};

use super::*;
use crate::Child;
use crate::cuts::{CUT_LABEL_TOKEN, Recorder};
use crate::meta::{
    BESIDE_TOKEN, GrowthCanary, GrowthError, LABEL_AREA_BYTES, LabelledPart, PartFence, WholeGrowth,
};

/// By so many bytes its last part has grown, in the first place.
const MORE: u64 = 64 << 10;

/// A whole of two parts over volumes that do as they are told, the last of which has grown.
struct InUse {
    puppets: Vec<Puppet>,
    volume: Box<dyn Volume>,
    growth: WholeGrowth,
    /// What stands on each, by the labels that were written.
    labels: Vec<Option<Label>>,
}

impl InUse {
    fn new(canary: GrowthCanary) -> Self {
        InUse::of(2, canary)
    }

    /// The same of another number of parts.
    fn of(count: usize, canary: GrowthCanary) -> Self {
        InUse::with(count, canary, false)
    }

    /// Of one part, whose label somebody else writes, too.
    fn recorded() -> Self {
        InUse::with(1, GrowthCanary::None, true)
    }

    fn with(count: usize, canary: GrowthCanary, is_recorded: bool) -> Self {
        let contents = opened(&made_of(count, SimPart::BYTES - MORE), 1);
        let whole = assembled(&contents).unwrap();
        let read = |part: &crate::meta::FoundPart| {
            let mut disk = SimPart::new(contents[part.place].clone());
            let token = if is_recorded { CUT_LABEL_TOKEN } else { BESIDE_TOKEN };
            let mut labels = Labels::new(token, &Pool::new(0));
            labels.read(&mut disk).unwrap();
            match std::iter::repeat_with(|| labels.turn(&mut disk)).take(3).flatten().next() {
                Some(LabelOutcome::Read(Ok(crate::meta::Finding::Label(found)))) => {
                    (labels, found.label)
                }
                other => panic!("{other:?}"),
            }
        };
        let mut labels: Vec<_> = whole.parts.iter().map(read).collect();
        let geometry =
            Geometry { bytes: SimPart::BYTES, io_bytes_max: 1 << 20, ..Puppet::GEOMETRY };
        let puppets: Vec<_> =
            (1..=count as u8).map(|number| Puppet::new(number, geometry)).collect();
        let (mut doors, mut children) = (Vec::new(), Vec::new());
        for (part, puppet) in whole.parts.iter().zip(&puppets) {
            let (volume, door) = LabelledPart::new(Box::new(puppet.clone()), PartFence::default());
            let child = Child::within(Box::new(volume), part.data_start, part.data_bytes).unwrap();
            children.push(child.made_with(part.made_bytes).beside(door.clone()));
            doors.push(door);
        }
        let volume = whole.module.open_over(children, &whole.options).unwrap();
        let record = is_recorded.then(|| {
            let (labels, label) = labels.remove(0);
            Recorder::new(Box::new(puppets[0].clone()), labels, label).1
        });
        let mut growth = WholeGrowth::new(whole, doors, labels, record);
        growth.set_canary(canary);
        InUse { puppets, volume, growth, labels: vec![None; count] }
    }

    /// All that was submitted to a part ends well.
    fn complete(&mut self, part: usize) {
        for io in self.puppets[part].take() {
            if io.token == BESIDE_TOKEN && io.op == Op::Write {
                assert!(io.flags.fua);
                let mut image = [0; crate::meta::LABEL_BYTES];
                io.data.copy_to(&mut image);
                self.labels[part] = Some(Label::decode(&image).unwrap());
            }
            self.puppets[part].succeed(&io);
        }
    }

    fn poll(&mut self) -> Vec<Completion> {
        let mut done = Vec::new();
        self.volume.poll(&mut done);
        self.volume.poll_events(&mut Vec::new());
        done
    }

    fn bytes(&self) -> u64 {
        self.volume.geometry().bytes
    }
}

/// Until it has ended, part by part: what is offered meanwhile all labels say.
fn grow(canary: GrowthCanary) -> Result<(), String> {
    let mut used = InUse::new(canary);
    let (before, identity) = (used.bytes(), used.volume.identity());
    used.growth.begin([7; 16]).unwrap();
    assert_eq!(used.growth.begin([9; 16]), Err(GrowthError::Busy), "one at a time");
    let (mut ended, mut reads) = (None, Vec::new());
    for step in 0..200 {
        // Users read what there is.
        let io = Io::new(step, Op::Read, 0, 4096);
        used.volume.submit(io);
        used.poll();
        let is_said = |label: &Option<Label>| {
            label
                .as_ref()
                .is_some_and(|label| label.whole_bytes > before && label.opening == [7; 16])
        };
        if used.bytes() > before && !used.labels.iter().all(is_said) {
            return Err("it offers what not all labels say".into());
        }
        used.complete(usize::from(step % 3 == 0));
        let done = used.poll();
        assert!(done.iter().all(|done| done.result.is_ok()));
        reads.extend(done.iter().map(|done| done.token));
        if step % 3 > 0 {
            // Its part has answered all, whatever the labels of both wait for.
            assert!(reads.iter().copied().eq(0..=step), "by step {step}: {reads:?}");
        }
        if let Some(how) = used.growth.turn() {
            ended = Some(how);
            break;
        }
    }
    used.poll();
    assert_eq!(ended, Some(Ok(before + MORE)));
    assert_eq!((used.bytes(), used.volume.identity()), (before + MORE, identity));
    let label = used.labels[1].as_ref().unwrap();
    let last = SimPart::BYTES - LABEL_AREA_BYTES;
    assert_eq!((label.part().bytes, label.made_bytes), (last, Some(last - MORE)));
    assert_eq!((label.openings, label.next_opening), (2, [0; 16]));
    // There is no more, until there is.
    assert_eq!(used.growth.begin([8; 16]), Err(GrowthError::NoRoom));
    used.puppets[1].tell(VolumeEvent::Resized { bytes: SimPart::BYTES + MORE });
    used.poll();
    assert_eq!(used.bytes(), before + MORE, "what a part grows by is not offered by itself");
    used.growth.begin([8; 16]).unwrap();
    let ended = (0..200).find_map(|_| {
        used.poll();
        (0..2).for_each(|part| used.complete(part));
        used.poll();
        used.growth.turn()
    });
    used.poll();
    assert_eq!((ended, used.bytes()), (Some(Ok(before + 2 * MORE)), before + 2 * MORE));
    assert_eq!(used.labels[1].as_ref().unwrap().made_bytes, Some(last - MORE));
    assert!(!used.growth.is_over());
    drop(used.volume);
    assert!(used.growth.is_over());
    Ok(())
}

#[test]
fn users_go_on_and_are_offered_what_all_labels_say() {
    grow(GrowthCanary::None).unwrap();
}

#[test]
fn a_whole_that_is_larger_before_its_labels_say_so_is_found() {
    assert_eq!(grow(GrowthCanary::OffersEarly), Err("it offers what not all labels say".into()));
}

/// What fails leaves it as it is, and in doubt until it is opened again.
#[test]
fn labels_that_cannot_be_written_end_it() {
    let mut used = InUse::new(GrowthCanary::None);
    let before = used.bytes();
    used.growth.begin([7; 16]).unwrap();
    let ended = (0..20).find_map(|_| {
        used.poll();
        for io in used.puppets[0].take() {
            used.puppets[0].fail(&io);
        }
        used.complete(1);
        used.poll();
        used.growth.turn()
    });
    assert!(matches!(ended, Some(Err(GrowthError::Labels(_)))), "{ended:?}");
    assert_eq!((used.bytes(), used.growth.begin([8; 16])), (before, Err(GrowthError::Failed)));
}

/// What a label says that was not written is nothing to go by, whoever else writes it.
#[test]
fn nothing_is_said_of_a_label_that_could_not_be_written() {
    for mut used in [InUse::of(1, GrowthCanary::None), InUse::recorded()] {
        let from = used.growth.label().unwrap().state;
        used.growth.begin_restate([7; 16], &from, vec![7; 112]).unwrap();
        let ended = (0..20).find_map(|_| {
            used.poll();
            for io in used.puppets[0].take() {
                used.puppets[0].fail(&io);
            }
            used.poll();
            used.growth.turn()
        });
        assert!(matches!(ended, Some(Err(GrowthError::Labels(_)))), "{ended:?}");
        assert_eq!(used.growth.label(), Err(GrowthError::Failed));
        let again = used.growth.begin_restate([8; 16], &[7; 112], vec![8; 112]);
        assert_eq!(again, Err(GrowthError::Failed));
    }
}

/// What a whole does beside its users is said by all of its labels, and by those of a growth behind that.
#[test]
fn what_it_was_told_stands_in_all_labels() {
    let mut used = InUse::new(GrowthCanary::None);
    let run = |used: &mut InUse| {
        (0..200).find_map(|_| {
            used.poll();
            (0..2).for_each(|part| used.complete(part));
            used.poll();
            used.growth.turn()
        })
    };
    let before = used.bytes();
    let pace = thinwire_volume::WorkPace { is_paused: true, percent: 20 };
    let work = Some(crate::meta::LabelWork { pace, scrubbed_to: None });
    used.growth.begin_work([7; 16], work).unwrap();
    assert_eq!(used.growth.begin_work([9; 16], None), Err(GrowthError::Busy), "one at a time");
    assert_eq!((run(&mut used), used.bytes()), (Some(Ok(before)), before));
    let said = |used: &InUse| -> Vec<_> {
        used.labels.iter().map(|label| label.as_ref().map(|label| label.work)).collect()
    };
    assert_eq!(said(&used), [Some(work); 2]);
    used.growth.begin([8; 16]).unwrap();
    assert_eq!((run(&mut used), said(&used)), (Some(Ok(before + MORE)), vec![Some(work); 2]));
    used.growth.begin_work([6; 16], None).unwrap();
    assert_eq!((run(&mut used), said(&used)), (Some(Ok(before + MORE)), vec![Some(None); 2]));
}

/// What its module keeps is changed beside its users, who are offered nothing new; a growth behind that keeps it.
#[test]
fn what_a_module_keeps_is_changed_while_it_is_used() {
    let mut used = InUse::of(1, GrowthCanary::None);
    let (before, to) = (used.bytes(), vec![7; 112]);
    let refused = used.growth.begin_restate([7; 16], &[1], to.clone());
    assert_eq!(refused, Err(GrowthError::Changed), "another than it is");
    let from = used.growth.label().unwrap().state;
    used.growth.begin_restate([7; 16], &from, to.clone()).unwrap();
    assert_eq!(used.growth.label(), Err(GrowthError::Busy));
    assert_eq!(used.growth.begin([9; 16]), Err(GrowthError::Busy), "one at a time");
    let run = |used: &mut InUse| {
        (0..200).find_map(|step| {
            used.volume.submit(Io::new(step, Op::Read, 0, 4096));
            used.poll();
            used.complete(0);
            assert!(used.poll().iter().all(|done| done.result.is_ok()));
            used.growth.turn()
        })
    };
    assert_eq!(run(&mut used), Some(Ok(before)));
    let label = used.labels[0].clone().unwrap();
    assert_eq!((&label.state, label.openings, used.bytes()), (&to, 2, before));
    assert_eq!(used.growth.label().unwrap().state, label.state);
    used.growth.begin([8; 16]).unwrap();
    assert_eq!(run(&mut used), Some(Ok(before + MORE)));
    assert_eq!(used.growth.label().unwrap().state, to);
}
