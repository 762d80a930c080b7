//! The attachment as its table says, its growth, and who comes back.

use super::*;
use crate::TargetName;
use crate::snapshot::{Make, check, variant};

/// In a state, whose volume is known or not.
const STATES: [Make<Attachment>; 8] = [
    ("Apart", fresh),
    ("Asked", asked),
    ("Refused", || refused(asked())),
    ("Failed", || {
        let mut a = fresh();
        a.fail(AttachError::Insecure);
        a
    }),
    ("Granted", granted),
    ("Apart, open", || {
        let mut a = granted();
        a.part();
        a
    }),
    ("Asked, open", || {
        let mut a = granted();
        a.ask();
        a
    }),
    ("Refused, open", || {
        let mut a = granted();
        a.ask();
        refused(a)
    }),
];

fn fresh() -> Attachment {
    let mut config = InitiatorConfig::new(TargetName::Node("node1".into()), "disk");
    (config.insecure, config.wait) = (true, true);
    Attachment::new(&config)
}

fn asked() -> Attachment {
    let mut a = fresh();
    a.ask();
    a
}

fn granted() -> Attachment {
    let mut a = asked();
    assert_eq!(a.on_attached(&answer(1, 1)), Ok(Granted::First(5)));
    a
}

fn refused(mut a: Attachment) -> Attachment {
    let no = refusal(a.transaction, Status::Busy);
    assert_eq!(a.on_refused(Time(0), &no), Ok(Refusal::ForNow));
    a
}

/// A grant, under verifier 5.
pub(crate) fn answer(transaction: u32, incarnation: u64) -> Attached {
    Attached {
        transaction,
        attachment: 3,
        generation: 4,
        block_bytes: 512,
        preferred_bytes: 4096,
        io_bytes_max: 1 << 20,
        bytes: 1 << 20,
        identity: [9; 16],
        incarnation,
        writer_generation: 2,
        idle_generations: 0,
        verifier: 5,
        features: 0,
    }
}

fn refusal(transaction: u32, status: Status) -> AttachRefused<'static> {
    AttachRefused { transaction, status: status as u16, seconds_left: 7, text: "no" }
}

/// As the initiator has it: only the first attach ends by that.
fn refuse(a: &mut Attachment, status: Status) -> String {
    match a.is_open() {
        true => String::new(),
        false => variant(&a.on_refused_at_first(Time(0), status, "no", 7)),
    }
}

fn told<T: std::fmt::Debug>(told: Result<T, DropReason>) -> String {
    told.map_or_else(|_| "dropped".to_owned(), |told| variant(&told))
}

#[test]
fn it_is_as_documented() {
    check(
        include_str!("../attachment.md"),
        &STATES,
        &[
            ("a session is entered", |a| {
                if a.first_error().is_some() {
                    return "cannot be".to_owned();
                }
                a.ask();
                String::new()
            }),
            ("REFUSE of a session, BUSY", |a| refuse(a, Status::Busy)),
            ("REFUSE of a session, INVALID", |a| refuse(a, Status::Invalid)),
            ("ATTACHED", |a| told(a.on_attached(&answer(a.transaction, 1)))),
            ("ATTACHED, other content", |a| told(a.on_attached(&answer(a.transaction, 2)))),
            ("ATTACHED, of an earlier question", |a| {
                told(a.on_attached(&answer(a.transaction.wrapping_sub(1), 1)))
            }),
            ("ATTACH_REFUSED, BUSY", |a| {
                told(a.on_refused(Time(0), &refusal(a.transaction, Status::Busy)))
            }),
            ("ATTACH_REFUSED, BUSY, not `wait`", |a| {
                a.wait = false;
                told(a.on_refused(Time(0), &refusal(a.transaction, Status::Busy)))
            }),
            ("ATTACH_REFUSED, FENCED", |a| {
                told(a.on_refused(Time(0), &refusal(a.transaction, Status::Fenced)))
            }),
            ("ATTACH_REFUSED, OTHER_CONTENT", |a| {
                told(a.on_refused(Time(0), &refusal(a.transaction, Status::OtherContent)))
            }),
            ("ATTACH_REFUSED, WRONG_SHARD", |a| {
                told(a.on_refused(Time(0), &refusal(a.transaction, Status::WrongShard)))
            }),
            ("time", |a| {
                let due = a.due(Time(0) + ASK_AGAIN);
                assert_eq!(a.due(Time(1)), None);
                due.map_or(String::new(), |timer| format!("{timer:?}"))
            }),
            ("the session is left", |a| {
                a.part();
                String::new()
            }),
        ],
        Attachment::state,
    );
}

fn bytes_of(a: &Attachment) -> u64 {
    a.content().unwrap().geometry.bytes
}

#[test]
fn it_grows_by_what_it_is_told_in_any_order_and_never_shrinks() {
    let mut a = granted();
    assert_eq!((a.take_growth(), a.growths()), (None, 0));
    for (handle, bytes, has) in [
        ((3, 4), 3 << 20, 3 << 20),
        // Sent earlier.
        ((3, 4), 2 << 20, 3 << 20),
        // Of another attachment; not whole blocks.
        ((3, 5), 4 << 20, 3 << 20),
        ((3, 4), (4 << 20) + 1, 3 << 20),
    ] {
        a.on_resize(handle, bytes);
        assert_eq!(bytes_of(&a), has);
    }
    assert_eq!((a.take_growth(), a.take_growth(), a.growths()), (Some(3 << 20), None, 1));
    // In the next session: smaller is another volume, larger is the same.
    a.part();
    let transaction = a.ask();
    assert_eq!(a.on_attached(&answer(transaction, 1)), Ok(Granted::OtherContent));
    let transaction = a.ask();
    let larger = Attached { bytes: 5 << 20, ..answer(transaction, 1) };
    assert_eq!(a.on_attached(&larger), Ok(Granted::Again(5)));
    assert_eq!((bytes_of(&a), a.take_growth()), (5 << 20, Some(5 << 20)));
}

#[test]
fn a_growth_that_overtakes_the_answer_is_not_lost() {
    let mut a = asked();
    a.on_resize((3, 4), 3 << 20);
    a.on_resize((3, 4), 2 << 20);
    a.on_attached(&answer(1, 1)).unwrap();
    assert_eq!(bytes_of(&a), 3 << 20);
    // One that is about another answer is.
    let mut a = asked();
    a.on_resize((3, 3), 3 << 20);
    a.on_attached(&answer(1, 1)).unwrap();
    assert_eq!(bytes_of(&a), 1 << 20);
}

#[test]
fn who_has_been_the_writer_resumes_and_takes_over_once() {
    let mut a = fresh();
    a.take_over = true;
    for (resumes, flags) in [(false, attach_flags::TAKE_OVER), (true, attach_flags::RESUME)] {
        let transaction = a.ask();
        let mut bytes = Vec::new();
        assert!(!a.emit(transaction + 1, &mut bytes) && bytes.is_empty());
        assert!(a.emit(transaction, &mut bytes));
        let expected = Attach {
            transaction,
            flags,
            writer_generation: if resumes { 2 } else { 0 },
            export: "disk",
        };
        let mut same = Vec::new();
        expected.emit(&mut same);
        assert_eq!(bytes, same);
        a.on_attached(&answer(transaction, 1)).unwrap();
    }
}
