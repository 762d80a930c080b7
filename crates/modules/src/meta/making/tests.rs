//! What making a whole writes, in which order, and what failures and crashes leave.

mod crashes;
mod disk;

use thinwire_volume::ErrorKind;

use self::disk::{Content, MakingDisk, blocks, found};
use super::*;
use crate::meta::{
    Assembly, AssemblyError, LABEL_BYTES, LABEL_OFFSETS, NewPart, NewWhole, SeenPart, assemble,
    label_parts,
};
use crate::{Module, Options};

/// Nothing.
fn blank() -> Content {
    Content::new()
}

/// Somebody's, also where labels are.
fn junk() -> Content {
    let places = [0, LABEL_OFFSETS[0], 300 << 10, LABEL_OFFSETS[1], LABEL_AREA_BYTES - 4096];
    places.into_iter().map(|at| (at, Box::new([0x5a; LABEL_BYTES]))).collect()
}

/// Labels of a whole of that many parts; the first number tells it from others.
fn labels(whole: u8, count: usize) -> Vec<Label> {
    let part = |nth: usize| NewPart {
        uuid: [whole + 1 + nth as u8; 16],
        content: MakingDisk::identity_of(nth),
        bytes: MakingDisk::BYTES,
    };
    let parts: Vec<_> = (0..count).map(part).collect();
    let (module, options) = (Module::find("stripe").unwrap(), Options::default());
    let bytes = parts.iter().map(|part| part.data_bytes(module)).sum();
    let new = NewWhole { name: "home", uuid: [whole; 16], module, options: &options, bytes };
    label_parts(&new, &parts).unwrap()
}

fn assembled(contents: &[Content]) -> Result<Assembly, AssemblyError> {
    let seen = |(nth, content): (usize, &Content)| SeenPart {
        found: found(content),
        content: MakingDisk::identity_of(nth),
    };
    assemble(&contents.iter().enumerate().map(seen).collect::<Vec<_>>())
}

/// Disks that hold that, and what makes a whole of them, as `volume create --force` does.
fn world(contents: &[Content], whole: u8, canary: MakingCanary) -> (Vec<MakingDisk>, WholeMaking) {
    let pool = Pool::new(0);
    let mut disks: Vec<_> = contents.iter().cloned().map(MakingDisk::new).collect();
    let part = |(disk, label): (&mut MakingDisk, Label)| {
        let mut labels = Labels::new(3, &pool);
        labels.read(disk).unwrap();
        let outcome = std::iter::repeat_with(|| labels.turn(disk)).take(3).flatten().next();
        let Some(LabelOutcome::Read(found)) = outcome else { panic!("{outcome:?}") };
        let marks = marks_on(&found, MakingDisk::BYTES, &disk.last_bytes());
        let is_occupied = occupant(&found, &disk.first_bytes(), &marks).is_some();
        assert_eq!(is_occupied, !disk.durable.is_empty(), "what is not zero is named");
        MadePart { labels, label, is_occupied, marks }
    };
    let labels = labels(whole, contents.len());
    let parts = disks.iter_mut().zip(labels).map(part).collect();
    (disks, WholeMaking::with(3, &pool, parts, canary))
}

/// To its end, with a look at all disks whenever something was submitted to one.
fn make(
    disks: &mut [MakingDisk],
    making: &mut WholeMaking,
    look: &mut dyn FnMut(&[MakingDisk]) -> Result<(), String>,
) -> Result<(), String> {
    while let Some(part) = making.part() {
        loop {
            let ended = making.turn(&mut disks[part]);
            look(disks)?;
            match ended {
                Some(Ok(())) => break,
                Some(Err(error)) => return Err(format!("part {part} {error}")),
                None => disks[part].complete(),
            }
        }
    }
    Ok(())
}

fn contents(disks: &[MakingDisk]) -> Vec<Content> {
    disks.iter().map(|disk| disk.durable.clone()).collect()
}

/// What is written to three parts, of which the second holds something.
#[test]
fn what_is_there_goes_before_the_first_label_is_written() {
    let (mut disks, mut making) = world(&[blank(), junk(), blank()], 1, MakingCanary::None);
    make(&mut disks, &mut making, &mut |_| Ok(())).unwrap();
    let all = |disk: &MakingDisk| disk.seen.clone();
    let [a, b] = LABEL_OFFSETS.map(|at| Some((at, LABEL_BYTES as u64)));
    let rounds = [[None, b], [None, a], [None, b]].concat();
    // The copy that stays is settled as it is: zeroes.
    let fresh = [&[a][..], &rounds].concat();
    assert_eq!(all(&disks[0]), fresh);
    let clears = [0, 512 << 10].map(|at| Some((at, 512 << 10)));
    // Nothing tells which of the two is newer.
    let erased = [None, a, None, b];
    assert_eq!(all(&disks[1]), [&erased[..], &clears, &rounds].concat());
    assert_eq!(all(&disks[2]), fresh);
    let whole = assembled(&contents(&disks)).unwrap();
    assert_eq!((whole.uuid, whole.parts.len()), ([1; 16], 3));
}

/// A leg of a RAID-1 of md, whose superblock stands at its end.
fn mirrored() -> Content {
    let mut block = Box::new([0x33; LABEL_BYTES]);
    block[..4].copy_from_slice(b"\xfc\x4e\x2b\xa9");
    [(MakingDisk::BYTES - 8192, block)].into()
}

/// What is beside that stays: it may be data, of whoever makes the same whole again.
#[test]
fn whose_mark_is_at_the_end_goes_before_the_first_label_is_written() {
    let beside = (MakingDisk::BYTES - 4096, Box::new([0x44; LABEL_BYTES]));
    let mut content = mirrored();
    content.extend([beside.clone()]);
    let (mut disks, mut making) = world(&[content], 1, MakingCanary::None);
    make(&mut disks, &mut making, &mut |_| Ok(())).unwrap();
    let cleared = Some((MakingDisk::BYTES - 8192, 4096));
    let nth = |what| disks[0].seen.iter().position(|seen| *seen == what);
    let first = disks[0].seen.iter().rposition(|seen| *seen == Some((512 << 10, 512 << 10)));
    assert_eq!(nth(cleared), first.map(|nth| nth + 1), "behind the first MiB");
    assert_eq!(marks_on(&found(&blank()), MakingDisk::BYTES, &disks[0].last_bytes()), []);
    assert_eq!(disks[0].durable.get(&beside.0), Some(&beside.1));
    assert_eq!(assembled(&contents(&disks)).unwrap().uuid, [1; 16]);
    // What fails there is told.
    let (mut disks, mut making) = world(&[mirrored()], 1, MakingCanary::None);
    disks[0].fails_at = first.map(|nth| nth + 1);
    let why = make(&mut disks, &mut making, &mut |_| Ok(())).unwrap_err();
    assert!(why.contains("has an end that cannot be cleared: write of 4096 bytes"), "{why}");
}

/// One of each format: neither is found, by whom it is of, when the whole is made.
#[test]
fn each_mark_at_the_end_is_named_and_goes() {
    let mut content = mirrored();
    let mut older = Box::new([0x55; LABEL_BYTES]);
    older[..4].copy_from_slice(b"\xfc\x4e\x2b\xa9");
    content.insert(MakingDisk::BYTES - (64 << 10), older);
    let marks = |content: &Content| {
        marks_on(
            &found(&blank()),
            MakingDisk::BYTES,
            &MakingDisk::new(content.clone()).last_bytes(),
        )
    };
    let told = "holds Linux software RAID (0.9) and Linux software RAID (1.0), at its end";
    let begins = vec![0; LABEL_AREA_BYTES as usize];
    assert_eq!(occupant(&found(&blank()), &begins, &marks(&content)).as_deref(), Some(told));
    let (mut disks, mut making) = world(&[content], 1, MakingCanary::None);
    make(&mut disks, &mut making, &mut |_| Ok(())).unwrap();
    assert_eq!(marks(&disks[0].durable), []);
}

#[test]
fn what_fails_on_a_part_ends_it_and_it_can_be_made_again() {
    let before = [junk(), junk()];
    let (mut disks, mut making) = world(&before, 1, MakingCanary::None);
    make(&mut disks, &mut making, &mut |_| Ok(())).unwrap();
    let steps = [0, 1].map(|part: usize| disks[part].seen.len());
    for (part, step) in [0, 1].into_iter().flat_map(|part| (0..steps[part]).map(move |s| (part, s)))
    {
        let (mut disks, mut making) = world(&before, 1, MakingCanary::None);
        disks[part].fails_at = Some(step);
        let why = make(&mut disks, &mut making, &mut |_| Ok(())).unwrap_err();
        assert!(why.starts_with(&format!("part {part} ")), "{step}: {why}");
        let is_clear = (4..6).contains(&step);
        assert_eq!(
            why.contains("has a first MiB that cannot be cleared: write of 524288 bytes"),
            is_clear,
            "{why}"
        );
        let (mut disks, mut making) = world(&contents(&disks), 9, MakingCanary::None);
        make(&mut disks, &mut making, &mut |_| Ok(())).unwrap();
        assert_eq!(assembled(&contents(&disks)).unwrap().uuid, [9; 16]);
    }
}

/// What a part says, whose labels were judged.
#[test]
fn who_is_on_a_part_is_told() {
    let mut begins = vec![0; LABEL_AREA_BYTES as usize];
    assert_eq!(occupant(&found(&blank()), &begins, &[]), None);
    begins[99_999] = 1;
    let unknown = Some("holds something that is not known here".to_owned());
    assert_eq!(occupant(&found(&blank()), &begins, &[]), unknown);
    let marks =
        marks_on(&found(&blank()), MakingDisk::BYTES, &MakingDisk::new(mirrored()).last_bytes());
    let raid = Some("holds Linux software RAID (1.0), at its end".to_owned());
    assert_eq!(occupant(&found(&blank()), &begins, &marks), raid, "more than unknown bytes say");
    begins[99_999] = 0;
    assert_eq!(occupant(&found(&blank()), &begins, &marks), raid);
    begins[..4].copy_from_slice(b"XFSB");
    let both = "holds xfs, and Linux software RAID (1.0) at its end".to_owned();
    assert_eq!(occupant(&found(&blank()), &begins, &marks), Some(both));
    let (mut disks, mut making) = world(&[blank(), blank()], 1, MakingCanary::None);
    make(&mut disks, &mut making, &mut |_| Ok(())).unwrap();
    let mut part = disks[1].durable.clone();
    let says = |part: &Content| {
        let mut disk = MakingDisk::new(part.clone());
        disk.durable.extend(mirrored());
        // Behind a label of ours is data.
        let marks = marks_on(&found(part), MakingDisk::BYTES, &disk.last_bytes());
        assert_eq!(marks, []);
        occupant(&found(part), &blocks(part), &marks).unwrap()
    };
    assert_eq!(says(&part), "is part 1 (counted from 0) of \"home\"");
    part.remove(&LABEL_OFFSETS[0]);
    assert!(says(&part).contains("something else has written to this part"), "{}", says(&part));
    part.get_mut(&LABEL_OFFSETS[1]).unwrap()[100] ^= 1;
    assert!(says(&part).starts_with("has no intact label"), "{}", says(&part));
}
