//! Crashes at every moment of writing labels: rule 8, torn label, and rule 9, as far as it is about labels. What is found
//! is the label of before or the new one, and never before the data that it refers to. Planted faults are found by the same.

use std::cell::RefCell;

use super::crash_disk::{Content, CrashDisk, Moment, Promise};
use super::*;
use crate::meta::LABEL_ROWS_MAX;

/// What somebody does with a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    /// Writes data, and a label that refers to it.
    Label,
    /// Ends without a crash, and begins again by reading.
    Restart,
    /// Erases the labels.
    Erase,
}

use Act::{Erase, Label as Write, Restart};

/// Where the data is that labels refer to.
const DATA: u64 = LABEL_AREA_BYTES;

/// Each sector of it is another in each.
fn label(stamp: u8) -> Label {
    let mut label = Label { opening: [stamp; 16], ..sample("linear", LABEL_ROWS_MAX as u8) };
    label.parts.iter_mut().for_each(|part| part.bytes = 512 * (1 + u64::from(stamp)));
    Label { whole_bytes: 512, ..label }
}

/// What the part has, read by whoever comes after a crash, or a restart.
fn read(disk: &mut CrashDisk, canary: LabelsCanary) -> (Labels, Result<Finding, LabelError>) {
    let mut labels = Labels { canary, ..Labels::new(TOKEN, &Pool::new(0)) };
    labels.read(disk).unwrap();
    match outcome(&mut labels, disk) {
        LabelOutcome::Read(found) => (labels, found),
        other => panic!("{other:?}"),
    }
}

fn outcome(labels: &mut Labels, disk: &mut CrashDisk) -> LabelOutcome {
    std::iter::repeat_with(|| labels.turn(disk)).take(9).flatten().next().expect("it ends")
}

/// Does all that on a disk with what is known of it; the moments are on the disk then.
fn play(disk: &mut CrashDisk, acts: &[Act], mut stamp: u8, canary: LabelsCanary) {
    let (mut labels, _) = read(disk, canary);
    for act in acts {
        match act {
            Restart => (labels, _) = read(disk, canary),
            Erase => {
                disk.promise.erasing = true;
                labels.erase(disk).unwrap();
                assert_eq!(outcome(&mut labels, disk), LabelOutcome::Erased(Ok(())));
                // The last of it may be durable only with the next flush.
                let before = disk.promise.durable;
                let durable = if disk.honours_fua { [None; 2] } else { before };
                disk.promise = Promise { durable, erasing: true, ..Promise::default() };
            }
            Write => {
                stamp += 1;
                let mut io = Io::new(TOKEN + 1, Op::Write, DATA, LABEL_BYTES as u64);
                io.data = labels.data(&[stamp; LABEL_BYTES]);
                disk.submit(io);
                disk.poll(&mut Vec::new());
                disk.promise.begun.push(stamp);
                if labels.write(&label(stamp), disk).is_err() {
                    continue;
                }
                if let LabelOutcome::Written(Ok(_)) = outcome(&mut labels, disk) {
                    // Its flush has made sure of what was erased.
                    let [last, _] = disk.promise.durable;
                    let last = last.filter(|_| !disk.promise.erasing);
                    disk.promise = Promise { durable: [Some(stamp), last], ..Promise::default() };
                }
            }
        }
    }
    disk.note();
}

thread_local! {
    /// Intact copies that were read before: most crashes leave one of those alone.
    static INTACT: RefCell<Vec<(Box<LabelImage>, Label)>> = const { RefCell::new(Vec::new()) };
}

fn decode(image: &LabelImage) -> Result<Label, LabelFault> {
    INTACT.with_borrow_mut(|intact| {
        if let Some((_, label)) = intact.iter().find(|(known, _)| **known == *image) {
            return Ok(label.clone());
        }
        let label = Label::decode(image)?;
        intact.push((Box::new(*image), label.clone()));
        Ok(label)
    })
}

/// What the labels say there.
fn find(content: &Content) -> Result<Finding, LabelError> {
    let copy = |offset| content.get(offset).map_or(Err(LabelFault::Zero), |image| decode(image));
    judge(LABEL_OFFSETS.each_ref().map(copy), PART.bytes)
}

/// What is found after a crash is as promised; else what is wrong.
fn check(promise: &Promise, content: Content, honours_fua: bool) -> Result<(), String> {
    let data = content.get(&DATA).map_or([0; LABEL_BYTES], |block| **block);
    let found = find(&content);
    let stamp = match &found {
        Ok(Finding::Label(found)) => Some(found.label.opening[0]),
        Ok(Finding::Blank) | Err(LabelError::Foreign(_) | LabelError::Damaged(_)) => None,
        Err(LabelError::Overwritten { .. }) if promise.erasing => None,
        Err(other) => return Err(format!("found no label: it {other}")),
    };
    // Where a durable write is not, only the label before is sure.
    let counts = if honours_fua { 1 } else { 2 };
    let mut may = promise.durable[..counts].to_vec();
    may.extend(promise.begun.iter().map(|&stamp| Some(stamp)));
    if promise.erasing {
        may.push(None);
    }
    if !may.contains(&stamp) {
        let what = stamp.map_or("no label".into(), |stamp| format!("label {stamp}"));
        return Err(format!("found {what}, of {may:?}"));
    }
    let (Ok(Finding::Label(found)), Some(stamp)) = (found, stamp) else { return Ok(()) };
    let generation = found.label.generation;
    assert_eq!(found.label, Label { generation, ..label(stamp) }, "a mixture");
    // Where durable writes are not, this is not told from labels that are lost.
    match !honours_fua || data.iter().all(|&byte| byte >= stamp) {
        true => Ok(()),
        false => Err(format!("label {stamp} is there, and not the data that it refers to")),
    }
}

/// Ways to go on after a first crash: with what it leaves of the write that it cut off.
const CUTS: [usize; 4] = [0, 1, 0x55, 0xff];

/// All crashes of these acts, and with `again` all crashes of somebody who goes on after some of them: how many, or the first
/// thing that is wrong.
fn explore(
    acts: &[Act],
    failing: &[Option<bool>],
    honours_fua: bool,
    again: bool,
    canary: LabelsCanary,
) -> Result<usize, String> {
    let mut disk = CrashDisk::new(Content::new(), honours_fua);
    disk.failing = failing.iter().copied().collect();
    play(&mut disk, acts, 0, canary);
    let mut count = 0;
    for moment in &disk.moments {
        let mut contents = Vec::new();
        moment.each_crash(&mut |content: Content| {
            count += 1;
            if again && CUTS.contains(&(count % 256)) {
                contents.push(content.clone());
            }
            check(&moment.promise, content, honours_fua)
        })?;
        for content in contents {
            count += go_on(moment, content, honours_fua, canary)?;
        }
    }
    Ok(count)
}

/// Somebody comes after a crash, and writes two labels: all crashes of that.
fn go_on(
    moment: &Moment,
    content: Content,
    honours_fua: bool,
    canary: LabelsCanary,
) -> Result<usize, String> {
    let stamp = match find(&content) {
        Ok(Finding::Label(found)) => Some(found.label.opening[0]),
        Ok(Finding::Blank) => None,
        // It is not written to, so there is no way to go on.
        Err(_) => return Ok(0),
    };
    let mut disk = CrashDisk::new(content, honours_fua);
    let newest = moment.promise.begun.iter().copied().max().max(moment.promise.durable[0]);
    // What was found is on the disk, and nothing else counts.
    disk.promise.durable = [stamp; 2];
    play(&mut disk, &[Write, Write], newest.unwrap_or(0), canary);
    let mut count = 0;
    for moment in &disk.moments {
        moment.each_crash(&mut |content| {
            count += 1;
            check(&moment.promise, content, honours_fua)
        })?;
    }
    Ok(count)
}

/// Labels without failures, with restarts, and erased in between.
fn plain(canary: LabelsCanary) -> Result<usize, String> {
    let mut count = 0;
    for honours_fua in [true, false] {
        for (acts, again) in [
            (&[Write; 5][..], true),
            (&[Write, Restart, Write, Restart, Write, Write], true),
            (&[Write, Write, Write, Erase, Write, Write], false),
            (&[Write, Erase, Write, Write], false),
            (&[Write, Write, Restart, Erase, Restart, Write, Write], false),
        ] {
            count += explore(acts, &[], honours_fua, again, canary)?;
        }
    }
    Ok(count)
}

/// One write of a label, or two in a row, fail, and are seen by later reads or not.
fn failures(canary: LabelsCanary) -> Result<usize, String> {
    let mut count = 0;
    let acts = [&[Write; 6][..], &[Write, Write, Restart, Write, Restart, Write, Restart, Write]];
    for acts in acts {
        for at in 0..6 {
            for is_seen in [false, true] {
                for run in [1, 2] {
                    let mut failing = vec![None; at];
                    failing.extend(vec![Some(is_seen); run]);
                    let told = |why| format!("{acts:?} {failing:?}: {why}");
                    count += explore(acts, &failing, true, false, canary).map_err(told)?;
                }
            }
        }
    }
    Ok(count)
}

#[test]
fn a_crash_at_any_moment_leaves_the_label_of_before_or_the_new_one() {
    let count = plain(LabelsCanary::None).unwrap();
    assert!(count > 10_000, "only {count} crashes");
}

#[test]
fn a_write_that_failed_takes_no_label_away() {
    let count = failures(LabelsCanary::None).unwrap();
    assert!(count > 10_000, "only {count} crashes");
}

#[track_caller]
fn is_found(found: Result<usize, String>, says: &str) {
    let why = found.expect_err("it was not found");
    assert!(why.contains(says), "{why}");
}

#[test]
fn labels_without_a_flush_are_found() {
    is_found(plain(LabelsCanary::NoFlush), "not the data that it refers to");
    // And two labels that are both under way, where durable writes are not.
    let found = explore(&[Write; 3], &[], false, false, LabelsCanary::NoFlush);
    is_found(found, "found no label");
}

#[test]
fn labels_that_go_to_one_copy_are_found() {
    is_found(plain(LabelsCanary::SameCopy), "found no label");
}

#[test]
fn one_that_takes_the_other_copy_after_a_failure_is_found() {
    is_found(failures(LabelsCanary::OtherAfterFailure), "found no label");
}

#[test]
fn one_that_takes_for_durable_what_it_read_is_found() {
    is_found(failures(LabelsCanary::ReadIsDurable), "found no label");
}

#[test]
fn one_that_erases_the_newest_label_first_is_found() {
    is_found(plain(LabelsCanary::NewestErasedFirst), "found label 2, of [Some(3)");
}
