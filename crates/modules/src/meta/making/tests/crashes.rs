//! Crashes at every moment of making a whole: what is found is no whole, for a reason that names a part, or all of it; or, before
//! anything has happened, the one that was there. Whatever is found, it can be made again. Planted faults are found by the same.

use super::*;

const OLD: u8 = 0x60;
const NEW: u8 = 1;
const NEXT: u8 = 0x20;

/// Parts of a whole that is there already.
fn old(count: usize) -> Vec<Content> {
    let (mut disks, mut making) = world(&vec![blank(); count], OLD, MakingCanary::None);
    make(&mut disks, &mut making, &mut |_| Ok(())).unwrap();
    contents(&disks)
}

/// What is found is as it has to be; else what is wrong.
fn check(before: &[Content], after: &[Content]) -> Result<(), String> {
    let rest = |content: &Content| content.keys().any(|at| !LABEL_OFFSETS.contains(at));
    let newest = |content: &Content| {
        let mut content = content.clone();
        content.remove(&LABEL_OFFSETS[0]);
        content
    };
    match assembled(after) {
        Ok(whole) if whole.uuid == [NEW; 16] && after.iter().any(rest) => {
            Err("a whole is made, and something else stands beside its labels".into())
        }
        Ok(whole) if whole.uuid == [NEW; 16] => Ok(()),
        Ok(whole) if whole.uuid != [OLD; 16] => Err(format!("{whole:?}")),
        // Its older labels may have begun to go.
        Ok(_) => match before.iter().map(newest).eq(after.iter().map(newest)) {
            true => Ok(()),
            false => Err("the whole of before is found, and is not what it was".into()),
        },
        Err(AssemblyError::Label { .. } | AssemblyError::Blank { .. }) => Ok(()),
        Err(other) => Err(format!("the reason is another: {other}")),
    }
}

/// Calls `check` with all that a crash could leave now.
fn each_crash(
    disks: &[MakingDisk],
    check: &mut dyn FnMut(Vec<Content>) -> Result<(), String>,
) -> Result<(), String> {
    let mut all = vec![Vec::new()];
    for disk in disks {
        let crashes = disk.crashes();
        let with = |before: Vec<Content>| {
            crashes.iter().map(move |content| [&before[..], std::slice::from_ref(content)].concat())
        };
        all = all.into_iter().flat_map(with).collect();
    }
    all.into_iter().try_for_each(check)
}

/// All crashes of making a whole of these, and making it again after some: how many, or the first thing that is wrong.
fn explore(before: &[Content], canary: MakingCanary) -> Result<usize, String> {
    let (mut disks, mut making) = world(before, NEW, canary);
    let mut count = 0;
    make(&mut disks, &mut making, &mut |disks| {
        each_crash(disks, &mut |after| {
            count += 1;
            check(before, &after)?;
            if count % 499 == 0 {
                let (mut disks, mut making) = world(&after, NEXT, MakingCanary::None);
                make(&mut disks, &mut making, &mut |_| Ok(()))?;
                let whole = assembled(&contents(&disks)).map_err(|e| e.to_string())?;
                assert_eq!(whole.uuid, [NEXT; 16]);
            }
            Ok(())
        })
    })?;
    let after = contents(&disks);
    for part in &after {
        let generations = LABEL_OFFSETS.map(|at| {
            let image = part.get(&at);
            image.and_then(|image| Label::decode(image).ok()).map(|label| label.generation)
        });
        if generations.into_iter().flatten().count() < 2 {
            return Err(format!("a part has labels {generations:?} only"));
        }
    }
    check(before, &after).map(|()| count)
}

fn all(canary: MakingCanary) -> Result<usize, String> {
    let mut count = 0;
    let mut mixed = old(3);
    (mixed[1], mixed[2]) = (junk(), blank());
    let mut lost = old(3);
    lost[1].remove(&LABEL_OFFSETS[0]);
    for before in [vec![blank(); 3], vec![junk(); 3], old(3), old(1), mixed, lost] {
        count += explore(&before, canary)?;
    }
    Ok(count)
}

#[test]
fn a_crash_at_any_moment_leaves_no_whole_or_all_of_it() {
    let count = all(MakingCanary::None).unwrap();
    assert!(count > 10_000, "only {count} crashes");
}

#[track_caller]
fn is_found(canary: MakingCanary, says: &str) {
    let why = all(canary).expect_err("it was not found");
    assert!(why.contains(says), "{why}");
}

#[test]
fn one_that_leaves_what_was_beside_labels_is_found() {
    is_found(MakingCanary::KeepsRest, "something else stands beside its labels");
}

#[test]
fn one_that_clears_without_erasing_labels_first_is_found() {
    let why = explore(&old(3), MakingCanary::KeepsLabels).expect_err("it was not found");
    assert!(why.contains("is not what it was"), "{why}");
}

#[test]
fn one_that_writes_each_label_once_is_found() {
    is_found(MakingCanary::OneRound, "a part has labels [None, Some(1)] only");
}
