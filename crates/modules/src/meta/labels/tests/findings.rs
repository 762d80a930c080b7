//! What two copies say together, with the words in which it is told.

use super::*;
use crate::meta::label::tests::with;

#[track_caller]
fn found(copies: [&LabelImage; 2]) -> FoundLabel {
    match Stage::read(copies).1 {
        Ok(Finding::Label(found)) => *found,
        other => panic!("{other:?}"),
    }
}

/// Refused so, and nothing is written.
#[track_caller]
fn refused(copies: [&LabelImage; 2], says: &str) -> LabelError {
    let (mut stage, found) = Stage::read(copies);
    let error = found.unwrap_err();
    assert_eq!(error.to_string(), says, "{error:?}");
    let refused = stage.labels.write(&sample("linear", 2), &mut stage.part);
    assert_eq!(refused, Err(error.clone()));
    assert!(stage.part.take().is_empty());
    error
}

fn damaged(generation: u64) -> LabelImage {
    let mut image = image(generation);
    image[2000] ^= 1;
    image
}

/// As a torn first write leaves it.
fn headless() -> LabelImage {
    let mut image = *Label { generation: 2, ..sample("linear", 150) }.encode().unwrap();
    image[..512].fill(0);
    image
}

const FOREIGN: LabelImage = [0x5a; LABEL_BYTES];

#[test]
fn the_newest_label_wins() {
    for ([a, b], newest) in [([6, 5], 6), ([6, 7], 7), ([2, 9], 9)] {
        assert_eq!(found([&image(a), &image(b)]).label.generation, newest);
    }
    assert_eq!(found([&ZERO, &image(1)]).passed_over, None);
}

#[test]
fn what_a_torn_write_leaves_is_passed_over_and_told() {
    let over = found([&image(4), &damaged(5)]);
    assert_eq!(over.label.generation, 4);
    assert!(matches!(over.passed_over, Some(LabelFault::Checksum { .. })));
    // The second label, over zeroes.
    let over = found([&headless(), &image(1)]);
    assert_eq!(over.passed_over, Some(LabelFault::Foreign { begins: [0; 8] }));
}

/// Rule 8: with no valid copy a part is not blank.
#[test]
fn what_is_not_zero_is_not_blank() {
    let mut one = ZERO;
    one[LABEL_BYTES - 1] = 1;
    let end = "look whose it is before anything is written there";
    for (copies, a, b) in [
        ([&ZERO, &FOREIGN], "is all zero", "begins with 5a 5a 5a 5a 5a 5a 5a 5a, as no label does"),
        ([&one, &ZERO], "begins with 00 00 00 00 00 00 00 00, as no label does", "is all zero"),
        (
            [&headless(), &FOREIGN],
            "begins with 00 00 00 00 00 00 00 00, as no label does",
            "begins with 5a 5a 5a 5a 5a 5a 5a 5a, as no label does",
        ),
    ] {
        let says = format!(
            "has no label, and is not blank: the copy at 24576 {a}; the copy at 548864 {b}: {end}"
        );
        assert!(matches!(refused(copies, &says), LabelError::Foreign(_)));
    }
}

#[test]
fn what_was_a_label_is_damaged() {
    for copies in [[&damaged(4), &damaged(5)], [&damaged(4), &ZERO], [&FOREIGN, &damaged(1)]] {
        let faults = copies.map(|image| Label::decode(image).unwrap_err());
        let says = format!(
            "has no intact label: the copy at 24576 {}; the copy at 548864 {}: do without this part, or put \
             it back from a copy",
            faults[0], faults[1]
        );
        assert!(matches!(refused(copies, &says), LabelError::Damaged(_)));
    }
}

/// Whatever the other copy says: it is older.
#[test]
fn what_newer_programs_wrote_is_not_passed_over() {
    let newer = with(&image(5), 12, &[2]);
    let says = "has a label at 548864 that is of version 2 of the format, and this program knows 1: \
                use the thinwire that wrote it, or a newer one";
    for other in [&image(4), &ZERO, &FOREIGN, &damaged(4)] {
        assert!(matches!(
            refused([other, &newer], says),
            LabelError::Newer { offset: 548_864, .. }
        ));
    }
    let newer = with(&image(4), 16, &[8]);
    let says = "has a label at 24576 that has incompatible features that this program does not know (bits 0x8): \
                use the thinwire that wrote it, or a newer one";
    refused([&newer, &image(3)], says);
    let newer = with(&image(4), 48, b"unheard");
    let fault = Label::decode(&newer).unwrap_err();
    assert!(matches!(fault, LabelFault::Module { .. }));
    refused([&newer, &ZERO], &format!("has a label at 24576 that {fault}"));
}

#[test]
fn what_no_correct_writer_wrote_is_not_passed_over() {
    let malformed = with(&image(4), 200, &[9]);
    let says = "has an intact label at 24576 that says what no label can: its field `role` is 9, counted from 0, \
                of 2 parts: do without this part";
    refused([&malformed, &image(5)], says);
    let end = "it was copied or written to the wrong place; do without this part";
    // The same generation twice is that, too.
    for copies in [[&image(4), &image(4)], [&FOREIGN, &image(4)], [&image(2), &image(4)]] {
        let says =
            format!("has a label of generation 4 at 548864, where only odd ones belong: {end}");
        refused(copies, &says);
    }
    let says = format!("has a label of generation 5 at 24576, where only even ones belong: {end}");
    refused([&image(5), &image(5)], &says);
    let mut label = Label { generation: 5, ..sample("linear", 2) };
    label.role = 0;
    let says = "has two labels that contradict each other: at 24576 of part 11111111111111111111111111111111 of \
                5555494420 6f6620612077686f6c6521, at 548864 of part 10101010101010101010101010101010 of \
                5555494420 6f6620612077686f6c6521: do without this part";
    refused([&image(4), &label.encode().unwrap()], &says.replace("20 6f", "206f"));
}

/// From the second label on both places hold labels, or what is left of one.
#[test]
fn a_label_beside_something_else_is_not_believed() {
    let end = "something else has written to this part; do without it, or put it back from a copy";
    for (copies, at, offset, what) in [
        ([&image(4), &ZERO], 24576, 548_864, "is all zero"),
        ([&ZERO, &image(3)], 548_864, 24576, "is all zero"),
        (
            [&FOREIGN, &image(3)],
            548_864,
            24576,
            "begins with 5a 5a 5a 5a 5a 5a 5a 5a, as no label does",
        ),
    ] {
        let says =
            format!("has a label of \"home\" at {at}, but the copy at {offset} {what}: {end}");
        assert!(matches!(refused(copies, &says), LabelError::Overwritten { .. }));
    }
}

#[test]
fn a_label_of_more_than_the_part_has_is_refused() {
    let label = Label { generation: 4, data_start: 8 * MIB + 4096, ..sample("linear", 2) };
    let says = "has 16777216 bytes, and its label says that data ends at 16781312: make it as large as it was (what was cut off is lost)";
    refused([&label.encode().unwrap(), &image(3)], says);
    // That which does not count may say so.
    assert!(matches!(Stage::read([&label.encode().unwrap(), &image(5)]).1, Ok(Finding::Label(_))));
}

#[test]
fn what_failed_is_told_with_what_to_do() {
    let error = failure(Op::Write, 24576, 4096);
    for (error, says) in [
        (
            LabelError::Unread(error),
            "has labels that cannot be read: {}: try again, or do without this part",
        ),
        (
            LabelError::Unflushed(error),
            "got no new label, since what that refers to may not be durable: {}",
        ),
        (
            LabelError::Unsettled(error),
            "got no new label, since the one that it has could not be made sure of: {}",
        ),
        (
            LabelError::Unwritten { generation: 9, error },
            "has a label of generation 9, or the one before, whichever is found: {}: write the next before \
             anything relies on either",
        ),
        (
            LabelError::Unerased(error),
            "may have some of its labels still: {}: read them again before anything is written",
        ),
        (
            LabelError::Unknown,
            "gets no label, since it is not known what it has: its labels have to be read first",
        ),
        (
            LabelError::Exhausted,
            "has had the last generation of labels: copy its data to a new part",
        ),
        (
            LabelError::ReadOnly { unknown: 5 },
            "has a label with features that allow only reading to this program (bits 0x5): open it to be read, \
             or, to write, use the thinwire that wrote it, or a newer one",
        ),
    ] {
        let cause = "write of 4096 bytes at 24576: no space left on the store (reported by puppet)";
        let shown = error.to_string();
        assert_eq!(shown, says.replace("{}", cause), "{error:?}");
    }
}
