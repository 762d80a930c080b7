//! What is sealed opens at the other end, once its place and its bytes are the same, and nowhere else.

use thinwire_seal::{Forged, Opener, Sealer, Seals, Secrets, Suite, TAG_BYTES, WhichPhase};

const OPEN: [u8; 32] = [0x0f; 32];

fn ends(suite: Suite) -> (Seals, Seals) {
    let secrets = Secrets::new([1; 32], [2; 32]);
    (secrets.initiator(suite), secrets.target(suite))
}

fn text(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + 1) as u8).collect()
}

/// A sealed frame, and all that it was sealed with.
#[derive(Clone)]
struct Frame {
    phase: u8,
    path: u8,
    number: u64,
    open: Vec<u8>,
    tag: [u8; TAG_BYTES],
    bytes: Vec<u8>,
}

impl Frame {
    fn seal(sealer: &Sealer, path: u8, number: u64, text: &[u8]) -> Self {
        let mut bytes = text.to_vec();
        let tag = sealer.seal(path, number, &OPEN, &mut bytes);
        Self { phase: sealer.phase(), path, number, open: OPEN.to_vec(), tag, bytes }
    }

    /// Opens it both ways, which must agree.
    fn open(&self, opener: &Opener) -> Result<(WhichPhase, Vec<u8>), Forged> {
        let Self { phase, path, number, ref open, ref tag, ref bytes } = *self;
        let mut in_place = bytes.clone();
        let first = opener.open_in_place(phase, path, number, open, tag, &mut in_place);
        let mut out = vec![0xaa; bytes.len()];
        let second = opener.open(phase, path, number, open, tag, bytes, &mut out);
        assert_eq!(first, second);
        if first.is_ok() {
            assert_eq!(in_place, out);
        }
        first.map(|which| (which, out))
    }
}

#[test]
fn all_suites_carry_all_lengths_in_both_directions() {
    for suite in Suite::ALL {
        let (initiator, target) = ends(suite);
        assert_eq!((initiator.suite(), target.suite()), (suite, suite));
        for length in [0, 1, 15, 16, 17, 255, 4096, 8192, 65535 - 48] {
            for (from, to) in [(&initiator, &target), (&target, &initiator)] {
                let frame = Frame::seal(&from.sealer, 1, length as u64 + 1, &text(length));
                let opened = frame.open(&to.opener);
                assert_eq!(opened, Ok((WhichPhase::Current, text(length))), "{suite} {length}");
                // A few bytes may be the same by chance; so many are not.
                let same = length < 16 || frame.bytes == text(length);
                assert!(length < 16 || same != suite.hides(), "{suite} {length}");
            }
        }
        assert_eq!(initiator.opener.failures() + target.opener.failures(), 0);
    }
}

#[test]
fn a_direction_does_not_open_its_own_frames_nor_one_suite_those_of_another() {
    for suite in Suite::ALL {
        let (initiator, target) = ends(suite);
        let frame = Frame::seal(&initiator.sealer, 0, 1, &text(64));
        assert_eq!(frame.open(&initiator.opener), Err(Forged), "{suite}");
        let frame = Frame::seal(&target.sealer, 0, 1, &text(64));
        assert_eq!(frame.open(&target.opener), Err(Forged), "{suite}");
        for other in Suite::ALL.into_iter().filter(|other| *other != suite) {
            assert_eq!(frame.open(&ends(other).0.opener), Err(Forged), "{suite} {other}");
        }
    }
}

#[test]
fn what_was_changed_anywhere_is_forged() {
    for suite in Suite::ALL {
        let (Seals { sealer, .. }, Seals { opener, .. }) = ends(suite);
        let frame = Frame::seal(&sealer, 3, 0x0102_0304, &text(40));
        let mut changed = Vec::new();
        let mut change = |what: &dyn Fn(&mut Frame)| {
            let mut other = frame.clone();
            what(&mut other);
            changed.push(other);
        };
        for bit in 0..8 {
            change(&|frame| frame.path ^= 1 << bit);
            (0..TAG_BYTES).for_each(|at| change(&|frame| frame.tag[at] ^= 1 << bit));
            (0..OPEN.len()).for_each(|at| change(&|frame| frame.open[at] ^= 1 << bit));
            (0..frame.bytes.len()).for_each(|at| change(&|frame| frame.bytes[at] ^= 1 << bit));
        }
        (0..64).for_each(|bit| change(&|frame| frame.number ^= 1 << bit));
        change(&|frame| frame.bytes.truncate(39));
        change(&|frame| frame.bytes.push(0));
        change(&|frame| frame.bytes.clear());
        change(&|frame| frame.open.truncate(31));
        change(&|frame| frame.tag = [0; TAG_BYTES]);
        for other in &changed {
            assert_eq!(other.open(&opener), Err(Forged), "{suite}");
        }
        // Each was tried twice.
        assert_eq!(opener.failures(), 2 * changed.len() as u64, "{suite}");
        assert_eq!(frame.open(&opener), Ok((WhichPhase::Current, text(40))), "{suite}");
    }
}

#[test]
fn nothing_of_a_forged_frame_is_left_to_use() {
    for suite in Suite::ALL {
        let (Seals { sealer, .. }, Seals { opener, .. }) = ends(suite);
        let mut frame = Frame::seal(&sealer, 0, 1, &text(8192));
        frame.tag[0] ^= 1;
        let mut out = vec![0xaa; 8192];
        let tag = &frame.tag;
        assert_eq!(opener.open(0, 0, 1, &OPEN, tag, &frame.bytes, &mut out), Err(Forged));
        assert!(out.iter().all(|byte| *byte == 0), "{suite}");
        assert_eq!(opener.open_in_place(0, 0, 1, &OPEN, tag, &mut frame.bytes), Err(Forged));
        assert!(frame.bytes.iter().all(|byte| *byte == 0), "{suite}");
    }
}

#[test]
fn lengths_that_differ_are_refused_and_not_counted() {
    for suite in Suite::ALL {
        let (Seals { sealer, .. }, Seals { opener, .. }) = ends(suite);
        let frame = Frame::seal(&sealer, 0, 1, &text(64));
        for length in [0, 63, 65] {
            let mut out = vec![0xaa; length];
            let opened = opener.open(0, 0, 1, &OPEN, &frame.tag, &frame.bytes, &mut out);
            assert_eq!(opened, Err(Forged), "{suite}");
            assert!(out.iter().all(|byte| *byte == 0xaa), "{suite}");
        }
        assert_eq!(opener.failures(), 0, "no tag was looked at");
    }
}

#[test]
fn what_was_spent_is_counted_for_each_phase() {
    for suite in Suite::ALL {
        let (Seals { mut sealer, .. }, _) = ends(suite);
        assert_eq!(sealer.spent(), (0, 0));
        Frame::seal(&sealer, 0, 1, &text(100));
        Frame::seal(&sealer, 0, 2, &[]);
        assert_eq!(sealer.spent(), (2, 100 + 2 * 32), "{suite}");
        sealer.advance();
        assert_eq!(sealer.spent(), (0, 0), "{suite}");
    }
}

#[test]
fn the_next_phase_opens_before_the_opener_goes_there_and_the_previous_until_it_is_forgotten() {
    for suite in Suite::ALL {
        let (Seals { mut sealer, .. }, Seals { mut opener, .. }) = ends(suite);
        let old = Frame::seal(&sealer, 0, 1, &text(64));
        sealer.advance();
        // The same path and number: only the phase tells the two apart.
        let new = Frame::seal(&sealer, 0, 1, &text(64));
        assert_ne!((&old.bytes, old.tag), (&new.bytes, new.tag), "{suite}");

        let which = |frame: &Frame, opener: &Opener| frame.open(opener).map(|(which, _)| which);
        assert_eq!(which(&old, &opener), Ok(WhichPhase::Current));
        assert_eq!(which(&new, &opener), Ok(WhichPhase::Next));
        assert_eq!(which(&old, &opener), Ok(WhichPhase::Current), "looking ahead changes nothing");
        assert_eq!((opener.phase(), opener.has_previous()), (0, false));

        opener.advance();
        assert_eq!((opener.phase(), opener.has_previous()), (1, true));
        assert_eq!(which(&new, &opener), Ok(WhichPhase::Current));
        assert_eq!(which(&old, &opener), Ok(WhichPhase::Previous));
        opener.forget_previous();
        assert_eq!(which(&new, &opener), Ok(WhichPhase::Current));
        assert_eq!(which(&old, &opener), Err(Forged));
        assert_eq!(opener.failures(), 0, "no tag was looked at");
    }
}

#[test]
fn phases_go_round_their_byte_and_stay_different() {
    let (Seals { mut sealer, .. }, Seals { mut opener, .. }) = ends(Suite::Aes128Gcm);
    let first = Frame::seal(&sealer, 0, 1, &text(64));
    for turn in 1..=600u32 {
        sealer.advance();
        assert_eq!(sealer.phase(), turn as u8);
        let frame = Frame::seal(&sealer, 0, 1, &text(64));
        assert_eq!(frame.open(&opener).unwrap().0, WhichPhase::Next);
        opener.advance();
        assert_eq!(frame.open(&opener).unwrap().0, WhichPhase::Current);
        assert_eq!(first.open(&opener).is_ok(), turn == 1, "{turn}");
    }
}

#[test]
fn a_phase_that_nobody_is_near_is_forged() {
    let (Seals { mut sealer, .. }, Seals { mut opener, .. }) = ends(Suite::Aes128Gcm);
    for _ in 0..2 {
        sealer.advance();
    }
    assert_eq!(Frame::seal(&sealer, 0, 1, &text(8)).open(&opener), Err(Forged), "two ahead");
    for _ in 0..3 {
        opener.advance();
    }
    let frame = Frame::seal(&sealer, 0, 1, &text(8));
    assert_eq!(frame.open(&opener).unwrap().0, WhichPhase::Previous);
    opener.advance();
    assert_eq!(frame.open(&opener), Err(Forged), "two behind");
    assert_eq!(opener.failures(), 0, "no tag was looked at");
}

#[test]
fn a_forged_frame_that_names_a_phase_changes_nothing_but_the_count() {
    for suite in Suite::ALL {
        let (Seals { sealer, .. }, Seals { mut opener, .. }) = ends(suite);
        let frame = Frame::seal(&sealer, 0, 1, &text(64));
        for phase in (1..=255).chain(1..=255) {
            let mut forged = frame.clone();
            forged.phase = phase;
            assert_eq!(forged.open(&opener), Err(Forged), "{suite} {phase}");
            assert_eq!((opener.phase(), opener.has_previous()), (0, false), "{suite} {phase}");
            assert_eq!(frame.open(&opener).unwrap().0, WhichPhase::Current, "{suite} {phase}");
        }
        // Of all those phases only the next has keys, against which the tag was held.
        assert_eq!(opener.failures(), 4, "{suite}");
        opener.advance();
        assert_eq!(frame.open(&opener).unwrap().0, WhichPhase::Previous, "{suite}");
    }
}

#[test]
fn nothing_that_is_printed_tells_a_secret() {
    let secrets = Secrets::new([1; 32], [2; 32]);
    assert_eq!(format!("{secrets:?}"), "Secrets(..)");
    let printed = format!("{:?}", secrets.initiator(Suite::Aes128Gcm));
    let expected = "Seals { sealer: Sealer { suite: Aes128Gcm, phase: 0, frames: 0, bytes: 0, .. }, \
                    opener: Opener { suite: Aes128Gcm, phase: 0, previous: false, failures: 0, .. } }";
    assert_eq!(printed, expected);
}

/// Neither half needs the other, nor what both came of.
#[test]
fn the_halves_live_on_by_themselves_in_any_order() {
    let secrets = Secrets::new([1; 32], [2; 32]);
    let Seals { sealer, opener } = secrets.initiator(Suite::ChaCha20Poly1305);
    drop(opener);
    let Seals { sealer: other, opener } = secrets.target(Suite::ChaCha20Poly1305);
    drop((secrets, other));
    assert!(Frame::seal(&sealer, 0, 1, &text(64)).open(&opener).is_ok());
}
