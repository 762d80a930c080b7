//! What two copies say together, in which order labels are written, and what failures and crashes leave.

mod crash_disk;
mod crashes;
mod findings;

use thinwire_volume::testing::Puppet;
use thinwire_volume::{ErrorKind, Features, Geometry, IoError};

use super::*;
use crate::meta::label::tests::sample;
use crate::meta::{FoundLabel, LABEL_AREA_BYTES, LabelFault};

const MIB: u64 = 1 << 20;
const PART: Geometry = Geometry { bytes: 16 * MIB, ..Puppet::GEOMETRY };
const TOKEN: Token = 77;

/// The labels of a part that does as it is told.
struct Stage {
    labels: Labels,
    part: Puppet,
}

impl Stage {
    fn new() -> Self {
        Stage { labels: Labels::new(TOKEN, &Pool::new(0)), part: Puppet::new(1, PART) }
    }

    /// That has read these.
    fn read(copies: [&LabelImage; 2]) -> (Self, Result<Finding, LabelError>) {
        let mut stage = Stage::new();
        stage.labels.read(&mut stage.part).unwrap();
        let mut outcome = None;
        for (image, offset) in copies.into_iter().zip(LABEL_OFFSETS) {
            assert_eq!(outcome, None);
            let io = stage.part.take_one();
            assert_eq!((io.token, io.op, io.offset, io.len), (TOKEN, Op::Read, offset, 4096));
            assert!(io.flags.uncached, "what another has written meanwhile counts");
            let mut completion = Completion::new(io.token, Ok(()));
            completion.data = stage.labels.data(image);
            stage.part.complete(completion);
            outcome = stage.labels.turn(&mut stage.part);
        }
        match outcome {
            Some(LabelOutcome::Read(found)) => (stage, found),
            other => panic!("{other:?}"),
        }
    }

    /// The next I/O is a flush, or a durable write of a copy, whose bytes it gives, and ends so.
    fn step(&mut self, copy: Option<usize>, succeeds: bool) -> (Vec<u8>, Option<LabelOutcome>) {
        let io = self.part.take_one();
        match copy {
            None => assert_eq!(io.op, Op::Flush),
            Some(copy) => {
                assert_eq!((io.op, io.offset, io.len), (Op::Write, LABEL_OFFSETS[copy], 4096));
                assert!(io.flags.fua && io.flags.meta, "durably, and where room is kept for it");
            }
        }
        assert_eq!(self.labels.turn(&mut self.part), None, "nothing has completed");
        let bytes = io.data.to_vec();
        if succeeds {
            self.part.succeed(&io);
        } else {
            self.part.fail(&io);
        }
        (bytes, self.labels.turn(&mut self.part))
    }

    /// Flushes, and writes this generation.
    fn writes(&mut self, generation: u64) {
        self.labels.write(&sample("linear", 2), &mut self.part).unwrap();
        assert_eq!(self.step(None, true).1, None);
        let (bytes, outcome) = self.step(Some(copy_of(generation)), true);
        assert_eq!(outcome, Some(LabelOutcome::Written(Ok(generation))));
        assert_eq!(bytes, image(generation));
        assert!(self.labels.is_idle() && self.part.take().is_empty());
    }
}

fn image(generation: u64) -> LabelImage {
    *Label { generation, ..sample("linear", 2) }.encode().unwrap()
}

const ZERO: LabelImage = [0; LABEL_BYTES];

fn failure(op: Op, offset: u64, len: u64) -> IoError {
    IoError { kind: ErrorKind::NoSpace, op, offset, len, module: "puppet" }
}

/// Never both copies between two flushes, and the one that stands is sure before the other goes.
#[test]
fn labels_are_written_alternately_behind_a_flush() {
    let (mut stage, found) = Stage::read([&ZERO, &ZERO]);
    assert_eq!(found, Ok(Finding::Blank));
    stage.labels.write(&sample("linear", 2), &mut stage.part).unwrap();
    assert_eq!(stage.step(Some(0), true), (ZERO.to_vec(), None));
    assert_eq!(stage.step(None, true).1, None);
    let (bytes, outcome) = stage.step(Some(1), true);
    assert_eq!((bytes, outcome), (image(1).to_vec(), Some(LabelOutcome::Written(Ok(1)))));
    (2..6).for_each(|generation| stage.writes(generation));

    let (mut stage, found) = Stage::read([&image(6), &image(5)]);
    let label = Label { generation: 6, ..sample("linear", 2) };
    let found_label = FoundLabel { label: label.clone(), passed_over: None };
    assert_eq!(found, Ok(Finding::Label(Box::new(found_label))));
    stage.labels.write(&label, &mut stage.part).unwrap();
    assert_eq!(stage.step(Some(0), true), (image(6).to_vec(), None));
    assert_eq!(stage.step(None, true).1, None);
    assert_eq!(stage.step(Some(1), true).1, Some(LabelOutcome::Written(Ok(7))));
    stage.writes(8);
}

#[test]
fn after_a_failed_write_the_next_goes_to_the_same_copy() {
    let (mut stage, _) = Stage::read([&image(6), &image(5)]);
    let label = sample("linear", 2);
    stage.labels.write(&label, &mut stage.part).unwrap();
    let error = failure(Op::Write, LABEL_OFFSETS[0], 4096);
    let unsettled = LabelOutcome::Written(Err(LabelError::Unsettled(error)));
    assert_eq!(stage.step(Some(0), false).1, Some(unsettled));
    stage.labels.write(&label, &mut stage.part).unwrap();
    assert_eq!(stage.step(Some(0), true).1, None, "it is still to be made sure of");
    let unflushed = LabelOutcome::Written(Err(LabelError::Unflushed(failure(Op::Flush, 0, 0))));
    assert_eq!(stage.step(None, false).1, Some(unflushed));
    for generation in [7, 7] {
        stage.labels.write(&label, &mut stage.part).unwrap();
        assert_eq!(stage.step(None, true).1, None);
        let (bytes, outcome) = stage.step(Some(1), false);
        assert_eq!(bytes, image(generation));
        let error = failure(Op::Write, LABEL_OFFSETS[1], 4096);
        let unwritten = LabelError::Unwritten { generation, error };
        assert_eq!(outcome, Some(LabelOutcome::Written(Err(unwritten))));
    }
    stage.writes(7);
    stage.writes(8);
}

#[test]
fn the_newest_label_is_erased_last() {
    let cases = [([6, 5], 0), ([6, 7], 1), ([2, 1], 0)];
    for ([a, b], newest) in cases {
        let (mut stage, _) = Stage::read([&image(a), &image(b)]);
        stage.labels.erase(&mut stage.part).unwrap();
        assert_eq!(stage.step(None, true).1, None);
        assert_eq!(stage.step(Some(1 - newest), true), (ZERO.to_vec(), None));
        assert_eq!(stage.step(None, true).1, None);
        let erased = Some(LabelOutcome::Erased(Ok(())));
        assert_eq!(stage.step(Some(newest), true), (ZERO.to_vec(), erased));
        stage.writes(1);
    }
    // Also what may be written by others only.
    let newer = crate::meta::label::tests::with(&image(2), 24, &[2]);
    let (mut stage, found) = Stage::read([&newer, &image(1)]);
    assert!(matches!(found, Ok(Finding::Label(_))), "it may be read: {found:?}");
    let refused = stage.labels.write(&sample("linear", 2), &mut stage.part);
    assert_eq!(refused, Err(LabelError::ReadOnly { unknown: 2 }));
    stage.labels.erase(&mut stage.part).unwrap();
    stage.step(None, true);
    stage.step(Some(1), true);
    let error = failure(Op::Flush, 0, 0);
    let unerased = LabelOutcome::Erased(Err(LabelError::Unerased(error)));
    assert_eq!(stage.step(None, false).1, Some(unerased));
    let refused = stage.labels.write(&sample("linear", 2), &mut stage.part);
    assert_eq!(refused, Err(LabelError::Unknown));
}

#[test]
fn what_was_not_read_is_not_written() {
    let mut stage = Stage::new();
    let label = sample("linear", 2);
    assert_eq!(stage.labels.write(&label, &mut stage.part), Err(LabelError::Unknown));
    assert_eq!(stage.labels.erase(&mut stage.part), Err(LabelError::Unknown));
    for reads in [1, 2] {
        stage.labels.read(&mut stage.part).unwrap();
        for _ in 1..reads {
            let io = stage.part.take_one();
            let mut completion = Completion::new(io.token, Ok(()));
            completion.data = stage.labels.data(&ZERO);
            stage.part.complete(completion);
            assert_eq!(stage.labels.turn(&mut stage.part), None);
        }
        stage.part.fail(&stage.part.take_one());
        let error = failure(Op::Read, LABEL_OFFSETS[reads - 1], 4096);
        let unread = LabelOutcome::Read(Err(LabelError::Unread(error)));
        assert_eq!(stage.labels.turn(&mut stage.part), Some(unread));
        assert_eq!(stage.labels.write(&label, &mut stage.part), Err(LabelError::Unknown));
    }
}

#[test]
fn what_is_no_label_is_not_written() {
    let (mut stage, _) = Stage::read([&ZERO, &ZERO]);
    let label = sample("linear", 2);
    let nameless = Label { name: String::new(), ..label.clone() };
    let refused = stage.labels.write(&nameless, &mut stage.part).unwrap_err();
    let says = "gets no label, since that says what no label can: its field `name` has 0 bytes, not 1 to 64";
    assert_eq!(refused.to_string(), says);
    let far = Label { data_start: 8 * MIB + 4096, ..label.clone() };
    let refused = stage.labels.write(&far, &mut stage.part).unwrap_err();
    let short = LabelError::Short { needs: 16 * MIB + 4096, has: 16 * MIB };
    assert_eq!(refused, short);
    let (mut stage, _) = Stage::read([&image(u64::MAX - 1), &ZERO]);
    // Beside a blank copy it is not believed.
    assert!(stage.labels.write(&label, &mut stage.part).is_err());
    let (mut stage, _) = Stage::read([&image(u64::MAX - 1), &image(3)]);
    stage.labels.write(&label, &mut stage.part).unwrap();
    stage.step(Some(0), true);
    stage.step(None, true);
    assert_eq!(stage.step(Some(1), true).1, Some(LabelOutcome::Written(Ok(u64::MAX))));
    assert_eq!(stage.labels.write(&label, &mut stage.part), Err(LabelError::Exhausted));
    let (mut stage, _) = Stage::read([&image(2), &image(u64::MAX)]);
    assert_eq!(stage.labels.write(&label, &mut stage.part), Err(LabelError::Exhausted));
    assert!(stage.part.take().is_empty());
}

#[test]
fn a_part_has_to_be_fit_for_labels() {
    let read_only = Features { read_only: true, ..Puppet::FEATURES };
    for (geometry, reads, says) in [
        (
            Geometry { bytes: MIB, ..PART },
            false,
            "has 1048576 bytes, and labels take the first 1048576: use a larger one",
        ),
        (
            Geometry { io_bytes_max: 2048, ..PART },
            false,
            "takes at most 2048 bytes in one I/O, and a label has 4096: use another one",
        ),
        (
            Geometry { block_bytes: 8192, ..PART },
            false,
            "has blocks of 8192 bytes, and a label has 4096: use another one",
        ),
        (Geometry { features: read_only, ..PART }, true, "is read-only: open it for writing"),
        (Geometry { bytes: MIB + 512, ..PART }, true, ""),
        (Geometry { block_bytes: 4096, ..PART }, true, ""),
    ] {
        let mut part = Puppet::new(1, geometry);
        let mut labels = Labels::new(TOKEN, &Pool::new(0));
        let refused = |result: Result<(), LabelError>| match result.unwrap_err() {
            error @ LabelError::Unfit { .. } => error.to_string(),
            error => format!("{error:?}"),
        };
        let says = match says {
            "" => "Unknown".into(),
            says => format!("cannot have labels: the part {says}"),
        };
        assert_eq!(refused(labels.write(&sample("linear", 2), &mut part)), says);
        assert_eq!(refused(labels.erase(&mut part)), says);
        assert_eq!(labels.read(&mut part).is_ok(), reads);
        assert_eq!(part.take().len(), usize::from(reads));
    }
}

/// Who shares the volume with others hands on what is its own.
#[test]
fn completions_of_others_are_not_taken() {
    let mut stage = Stage::new();
    let other = Completion::new(TOKEN + 1, Ok(()));
    let own = Completion::new(TOKEN, Ok(()));
    assert!(!stage.labels.is_mine(&own), "nothing is under way");
    stage.labels.read(&mut stage.part).unwrap();
    assert!(stage.labels.is_mine(&own) && !stage.labels.is_mine(&other));
    stage.part.complete(other);
    assert_eq!(stage.labels.turn(&mut stage.part), None);
    assert!(!stage.labels.is_idle());
}

#[test]
fn copies_lie_apart_within_the_area() {
    let [first, second] = LABEL_OFFSETS;
    let bytes = LABEL_BYTES as u64;
    assert!(first > 0 && first + bytes <= second && second + bytes <= LABEL_AREA_BYTES);
    assert!(LABEL_OFFSETS.iter().all(|offset| offset.is_multiple_of(bytes)));
    assert_eq!((1..5).map(copy_of).collect::<Vec<_>>(), [1, 0, 1, 0]);
}
