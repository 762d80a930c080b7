//! The handshake and sealed frames: messages that are changed, cut, exchanged, repeated and of other keys. What is
//! taken was made by who holds the key, for this place, and is as it was made.

use thinwire_fuzz::{Choices, Reached, fuzz};
use thinwire_seal::{
    Greeting, Key, NOISE_BYTES, Random, Seals, Suite, TAG_BYTES, WhichPhase, greeted,
};

/// Changes some bytes, or none. True if it did.
fn edit(bytes: &mut Vec<u8>, choices: &mut Choices<'_>) -> bool {
    let before = bytes.clone();
    for _ in 0..choices.below(3) {
        let at = choices.below(bytes.len().max(1));
        match choices.below(4) {
            0 if !bytes.is_empty() => bytes[at] ^= choices.byte(),
            1 => bytes.truncate(at),
            2 => bytes.extend_from_slice(choices.bytes(20)),
            3 if !bytes.is_empty() => drop(bytes.remove(at)),
            _ => {}
        }
    }
    *bytes != before
}

/// A greeting, by which key and under which prologue, and what it says.
struct Sent {
    key: usize,
    prologue: usize,
    text: Vec<u8>,
    greeting: Greeting,
    ours: Option<Seals>,
}

/// An answer to the greeting of that number.
struct Reply {
    to: usize,
    bytes: Vec<u8>,
    text: Vec<u8>,
    suite: Suite,
    theirs: Option<Seals>,
}

static HANDSHAKE: Reached = Reached::new();

fn play_handshake(choices: &mut Choices<'_>) {
    let keys: Vec<Key> =
        [[1; 32], [2; 32]].map(|bytes| Key::from_bytes(bytes).expect("not zeroes")).into();
    let prologues: [&[u8]; 2] = [b"one place", b"another"];
    let (mut ours, mut theirs) = (Random::new([3; 32]), Random::new([4; 32]));
    let (mut sent, mut replies) = (Vec::<Sent>::new(), Vec::<Reply>::new());
    while !choices.is_empty() {
        match choices.below(5) {
            0 if sent.len() < 4 => {
                let (key, prologue) = (choices.below(2), choices.below(2));
                let text = choices.text(30).into_bytes();
                let greeting = Greeting::new(&keys[key], prologues[prologue], &text, &mut ours);
                assert_eq!(greeting.bytes().len(), text.len() + NOISE_BYTES);
                sent.push(Sent { key, prologue, text, greeting, ours: None });
            }
            1 | 2 if !sent.is_empty() && replies.len() < 6 => {
                let to = choices.below(sent.len());
                let (key, prologue) = match choices.below(4) {
                    0 => (choices.below(2), choices.below(2)),
                    _ => (sent[to].key, sent[to].prologue),
                };
                let mut bytes = sent[to].greeting.bytes().to_vec();
                let is_true = !edit(&mut bytes, choices)
                    && (key, prologue) == (sent[to].key, sent[to].prologue);
                match greeted(&keys[key], prologues[prologue], &bytes, &mut theirs) {
                    Ok(greeted) => {
                        assert!(is_true, "a forged greeting is taken");
                        assert_eq!(greeted.text(), sent[to].text);
                        HANDSHAKE.count("greeted");
                        let text = choices.text(30).into_bytes();
                        let suite = *choices.of(&Suite::ALL);
                        let (bytes, seals) = greeted.answer(&text, suite);
                        replies.push(Reply { to, bytes, text, suite, theirs: Some(seals) });
                    }
                    Err(_) => {
                        assert!(!is_true, "a true greeting is refused");
                        HANDSHAKE.count("forged greeting");
                    }
                }
            }
            3 if !replies.is_empty() => {
                let (reply, at) = (choices.below(replies.len()), choices.below(sent.len()));
                let at = if choices.below(4) == 0 { at } else { replies[reply].to };
                let Reply { to, bytes, text, suite, .. } = &replies[reply];
                let mut bytes = bytes.clone();
                let is_true = !edit(&mut bytes, choices) && at == *to && sent[at].ours.is_none();
                match sent[at].greeting.answered(&bytes) {
                    Ok(answered) => {
                        assert!(is_true, "a forged answer is taken");
                        assert_eq!(&answered.text, text);
                        sent[at].ours = Some(answered.seals(*suite));
                        let theirs = replies[reply].theirs.take().expect("each opens one");
                        let at = &sent[at];
                        speak(at.ours.as_ref().expect("just there"), &theirs, choices);
                        HANDSHAKE.count("answered");
                    }
                    Err(_) => {
                        assert!(!is_true, "a true answer is refused");
                        HANDSHAKE.count("forged answer");
                    }
                }
            }
            _ => {}
        }
    }
}

/// One frame there, which opens, and only as it is.
fn speak(ours: &Seals, theirs: &Seals, choices: &mut Choices<'_>) {
    let text = choices.bytes(50).to_vec();
    let (path, number, open) = (choices.byte(), choices.number(), [7; 32]);
    let mut bytes = text.clone();
    let tag = ours.sealer.seal(path, number, &open, &mut bytes);
    let is_true = !edit(&mut bytes, choices);
    let (at, phase) = (number ^ u64::from(choices.flag()), ours.sealer.phase());
    let opened = theirs.opener.open_in_place(phase, path, at, &open, &tag, &mut bytes);
    assert_eq!(opened.is_ok(), is_true && at == number, "a frame of {} bytes", text.len());
    assert!(opened.is_err() || bytes == text, "a frame opens as another");
}

#[test]
fn fuzz_handshake() {
    fuzz!("handshake", 3_000, 160, play_handshake);
    HANDSHAKE.expect(&["greeted", "forged greeting", "answered", "forged answer"]);
}

/// What one end has sealed, where, and as what.
struct Frame {
    side: usize,
    phase: u8,
    real_phase: u64,
    path: u8,
    number: u64,
    tag: [u8; TAG_BYTES],
    bytes: Vec<u8>,
    text: Vec<u8>,
}

static PHASES: Reached = Reached::new();

/// Both ends go through phases while frames come late, or are changed.
fn play_phases(choices: &mut Choices<'_>) {
    let suite = *choices.of(&Suite::ALL);
    let secrets = thinwire_seal::Secrets::new([1; 32], [2; 32]);
    let mut ends = [secrets.initiator(suite), secrets.target(suite)];
    // As many as have begun: of what each seals, and of what each opens.
    let (mut sealing, mut opening, mut keeps) = ([0u64; 2], [0u64; 2], [false; 2]);
    let (mut frames, mut number) = (Vec::<Frame>::new(), 0);
    while !choices.is_empty() {
        let side = choices.below(2);
        match choices.below(6) {
            0 | 1 if frames.len() < 32 => {
                let text = choices.bytes(24).to_vec();
                number += 1;
                let (path, mut bytes) = (choices.byte() & 3, text.clone());
                let tag = ends[side].sealer.seal(path, number, &[7; 32], &mut bytes);
                let (phase, real_phase) = (ends[side].sealer.phase(), sealing[side]);
                frames.push(Frame { side, phase, real_phase, path, number, tag, bytes, text });
            }
            2 if sealing[side] < opening[1 - side] + 3 => {
                ends[side].sealer.advance();
                sealing[side] += 1;
            }
            3 if choices.flag() => {
                ends[side].opener.forget_previous();
                keeps[side] = false;
            }
            _ if !frames.is_empty() => {
                let frame = &frames[choices.below(frames.len())];
                let to = if choices.below(8) == 0 { frame.side } else { 1 - frame.side };
                let mut bytes = frame.bytes.clone();
                let is_true = !edit(&mut bytes, choices) && to != frame.side;
                let here = opening[to];
                let expected = match frame.real_phase {
                    _ if !is_true => None,
                    phase if phase == here => Some(WhichPhase::Current),
                    phase if phase == here + 1 => Some(WhichPhase::Next),
                    phase if phase + 1 == here && keeps[to] => Some(WhichPhase::Previous),
                    _ => None,
                };
                let opener = &mut ends[to].opener;
                let opened = opener.open_in_place(
                    frame.phase,
                    frame.path,
                    frame.number,
                    &[7; 32],
                    &frame.tag,
                    &mut bytes,
                );
                assert_eq!(opened.ok(), expected, "{suite}, phase {} at {here}", frame.real_phase);
                match expected {
                    Some(which) => {
                        assert_eq!(bytes, frame.text);
                        PHASES.count(match which {
                            WhichPhase::Current => "current",
                            WhichPhase::Next => "next",
                            WhichPhase::Previous => "previous",
                        });
                    }
                    None => PHASES.count("forged"),
                }
                if expected == Some(WhichPhase::Next) {
                    opener.advance();
                    opening[to] += 1;
                    keeps[to] = true;
                }
            }
            _ => {}
        }
    }
}

#[test]
fn fuzz_phases() {
    fuzz!("phases", 3_000, 200, play_phases);
    PHASES.expect(&["current", "next", "previous", "forged"]);
}
