//! What users have asked for: I/Os that wait, that have a slot, that are done
//! (`docs/protocol.md`, "Credits"; rules 5 and 9).

use std::collections::VecDeque;

use thinwire_buffer::SegList;
use thinwire_volume::{Completion, ErrorKind, Extent, IoError, Op};

use crate::slots::{Answer, Mark, Owner, Pending, Place, Slots, charge};

/// How many waiting I/Os are looked at for one that may start before those ahead of it.
const LOOK_AHEAD: usize = 64;
const EXTENT_BYTES: usize = 16;
/// The name this module gives itself in errors.
pub(crate) const MODULE: &str = "remote";

/// The I/Os of one attachment. What may become of one:
///
#[doc = include_str!("requests.md")]
pub(crate) struct Requests {
    slots: Slots,
    /// Of the peer's grant in this session.
    used_slots: u32,
    used_bytes: u64,
    waiting: VecDeque<Pending>,
    done: Vec<Completion>,
    /// Submitted and not polled.
    outstanding: usize,
    /// Kept for its storage.
    orphans: Vec<Pending>,
    /// Requests started so far.
    started: u64,
}

impl Requests {
    pub fn new() -> Self {
        Requests {
            slots: Slots::new(),
            used_slots: 0,
            used_bytes: 0,
            waiting: VecDeque::with_capacity(1024),
            done: Vec::with_capacity(256),
            outstanding: 0,
            orphans: Vec::new(),
            started: 0,
        }
    }

    /// See [`Slots::is_amid_answer`].
    pub fn is_amid_answer(&self) -> bool {
        self.slots.is_amid_answer()
    }

    pub fn slots(&mut self) -> &mut Slots {
        &mut self.slots
    }

    pub fn started(&self) -> u64 {
        self.started
    }

    /// Bytes copied in user space.
    pub fn copied_bytes(&self) -> u64 {
        self.slots.copied_bytes
    }

    /// Its name in the table.
    pub fn state(&self) -> &'static str {
        match (self.waiting.is_empty(), self.slots.is_idle(), self.done.is_empty()) {
            (true, true, true) => "Idle",
            (false, _, _) => "Waiting",
            (true, false, true) => "Outstanding",
            (true, false, false) => "GivenUp",
            (true, true, false) => "Done",
        }
    }

    /// Submitted and not polled.
    pub fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Completions wait to be polled.
    pub fn has_completions(&self) -> bool {
        !self.done.is_empty()
    }

    /// Appends the completions to `done`.
    pub fn poll(&mut self, done: &mut Vec<Completion>) {
        self.outstanding -= self.done.len();
        done.append(&mut self.done);
    }

    /// The user submits an I/O; it waits.
    pub fn submit(&mut self, io: Pending) {
        self.outstanding += 1;
        self.waiting.push_back(io);
    }

    /// The user submits an I/O that is refused.
    pub fn refuse(&mut self, completion: Completion) {
        self.outstanding += 1;
        self.done.push(completion);
    }

    /// No I/O waits or is outstanding. While the target is away: but for what nobody waits for any more, which it will
    /// never confirm if it does not come back.
    #[inline]
    pub fn is_quiet(&self, is_away: bool) -> bool {
        self.waiting.is_empty() && (self.slots.is_idle() || is_away && self.slots.are_given_up())
    }

    /// The peer's grant has room for it.
    #[inline]
    pub fn can_start(&self, io: &Pending, grant: (u32, u64)) -> bool {
        self.has_room(charge(io), grant)
    }

    /// The peer's grant, slots and bytes, has room for a request of so many bytes of data.
    #[inline]
    pub fn has_room(&self, data: u64, (slots, bytes): (u32, u64)) -> bool {
        self.slots.has_free()
            && (slots.wrapping_sub(self.used_slots) as i32) > 0
            && self.used_bytes + data <= bytes
    }

    /// It touches what an outstanding one touches.
    pub fn conflicts(&self, io: &Pending) -> bool {
        self.slots.conflicts(io)
    }

    /// The next waiting I/O that may start under this grant, looking on from place `at`.
    /// `holds_writes`: those wait for a flush.
    #[inline]
    pub fn next(
        &mut self,
        at: &mut usize,
        grant: (u32, u64),
        holds_writes: bool,
    ) -> Option<Pending> {
        while *at < self.waiting.len().min(LOOK_AHEAD) {
            let io = &self.waiting[*at];
            if !self.can_start(io, grant) {
                // Credit is given in order, so that a large request is not starved.
                return None;
            }
            let held = io.op.is_write() && holds_writes;
            let behind =
                *at > 0 && self.waiting.iter().take(*at).any(|earlier| earlier.conflicts(io));
            if held || behind || self.slots.conflicts(io) {
                *at += 1;
                continue;
            }
            return match *at {
                0 => self.waiting.pop_front(),
                at => self.waiting.remove(at),
            };
        }
        None
    }

    /// It gets a slot; the data of its answer goes to `place`. Returns the slot and its sequence.
    #[inline]
    pub fn start(&mut self, io: Pending, place: Place, mark: Mark) -> (u16, u32) {
        self.used_slots = self.used_slots.wrapping_add(1);
        self.used_bytes += charge(&io);
        self.started += 1;
        self.slots.start(io, place, mark)
    }

    /// It has to be made again.
    pub fn put_back(&mut self, mut io: Pending) {
        io.forget_answer();
        self.waiting.push_front(io);
    }

    /// A new session begins with so many slots, whose sequences begin behind `sequence`: what was
    /// outstanding for users is issued again; who replays or flushes knows better.
    pub fn on_session(&mut self, slots: u16, sequence: u32) {
        (self.used_slots, self.used_bytes) = (0, 0);
        let mut orphans = std::mem::take(&mut self.orphans);
        self.slots.restart(slots, sequence, &mut orphans);
        for io in orphans.drain(..) {
            match io.owner {
                Owner::User(_) => self.put_back(io),
                Owner::Flush | Owner::Replay(_) => {}
            }
        }
        self.orphans = orphans;
    }

    /// An I/O of the user is done, or has failed.
    #[inline]
    pub fn complete(&mut self, io: &Pending, result: Result<(), ErrorKind>) {
        self.done.push(completion(io, result));
    }

    /// A read or a block status of the user is done. What is no answer to it is an error. `block` is
    /// what extents have to be multiples of, in bytes.
    pub fn complete_read(&mut self, io: &Pending, data: Option<Answer>, block: u64) {
        let mut done = completion(io, Ok(()));
        let is_whole = match (io.op, data) {
            (Op::BlockStatus, Some(Answer::Whole(buf))) => {
                done.extents = decode_extents(&buf, io.len, block);
                !done.extents.is_empty()
            }
            (_, Some(Answer::Whole(buf))) => {
                done.data = SegList::of(buf.freeze());
                done.data.bytes() as u64 == io.len
            }
            (_, Some(Answer::Lent(data))) => {
                done.data = data;
                done.data.bytes() as u64 == io.len
            }
            (_, None) => false,
        };
        self.done.push(if is_whole { done } else { completion(io, Err(ErrorKind::Io)) });
    }

    /// A cut of the user is done, or has failed; what was asked for comes as data.
    pub fn complete_cut(
        &mut self,
        io: &Pending,
        data: Option<Answer>,
        result: Result<(), ErrorKind>,
    ) {
        let mut done = completion(io, result);
        if let (Some(Answer::Whole(buf)), Ok(())) = (data, result) {
            done.data = SegList::of(buf.freeze());
        }
        self.done.push(done);
    }

    /// All flushes of the user, sent or not, have nothing to make durable.
    pub fn complete_flushes(&mut self) {
        let Requests { slots, waiting, done, .. } = self;
        slots.give_up(|io| io.op == Op::Flush, |io| done.push(completion(io, Ok(()))));
        waiting.retain(|io| {
            let is_flush = io.op == Op::Flush && matches!(io.owner, Owner::User(_));
            if is_flush {
                done.push(completion(io, Ok(())));
            }
            !is_flush
        });
    }

    /// Fails all writes that wait: the flush that they wait for has failed.
    pub fn fail_writes(&mut self, kind: ErrorKind) {
        for _ in 0..self.waiting.len() {
            let io = self.waiting.pop_front().expect("counted");
            if io.op.is_write() {
                self.complete(&io, Err(kind));
            } else {
                self.waiting.push_back(io);
            }
        }
    }

    /// Fails everything of the user that waits or is outstanding; the slots keep their ranges.
    pub fn fail_all(&mut self, kind: ErrorKind) {
        let done = &mut self.done;
        self.slots.give_up(|_| true, |io| done.push(completion(io, Err(kind))));
        while let Some(io) = self.waiting.pop_front() {
            if matches!(io.owner, Owner::User(_)) {
                self.complete(&io, Err(kind));
            }
        }
    }
}

/// # Panics
/// If the I/O is not a user's.
fn completion(io: &Pending, result: Result<(), ErrorKind>) -> Completion {
    let Owner::User(token) = io.owner else { unreachable!("only users get completions") };
    let (op, offset, len) = (io.op, io.offset, io.len);
    let result = result.map_err(|kind| IoError { kind, op, offset, len, module: MODULE });
    Completion::new(token, result)
}

/// Extents from the wire, clipped to what was asked; a peer's nonsense yields an empty list.
fn decode_extents(bytes: &[u8], asked: u64, block: u64) -> Vec<Extent> {
    let mut left = asked;
    let mut extents = Vec::with_capacity(bytes.len() / EXTENT_BYTES);
    for entry in bytes.chunks_exact(EXTENT_BYTES) {
        let len = u64::from_be_bytes(entry[..8].try_into().expect("eight bytes")).min(left);
        let flags = entry[11];
        if len == 0 || len % block != 0 {
            break;
        }
        extents.push(Extent { len, hole: flags & 1 != 0, zero: flags & 2 != 0 });
        left -= len;
    }
    extents
}

#[cfg(test)]
mod tests {
    use thinwire_buffer::Pool;
    use thinwire_proto::DropReason;
    use thinwire_wire::{Complete, Sums};

    use super::*;
    use crate::snapshot::{Make, check};

    const GRANT: (u32, u64) = (8, 1 << 20);
    const STATES: [Make<Requests>; 5] = [
        ("Idle", || {
            let mut r = Requests::new();
            r.on_session(2, 0);
            r
        }),
        ("Waiting", waiting),
        ("Outstanding", outstanding),
        ("GivenUp", || {
            let mut r = outstanding();
            r.fail_all(ErrorKind::Away);
            r
        }),
        ("Done", || {
            let mut r = waiting();
            r.fail_all(ErrorKind::Away);
            r
        }),
    ];

    fn read() -> Pending {
        Pending { len: 512, ..Pending::new(Owner::User(1), Op::Read) }
    }

    fn waiting() -> Requests {
        let mut r = Requests::new();
        r.on_session(2, 0);
        r.submit(read());
        r
    }

    fn outstanding() -> Requests {
        let mut r = waiting();
        let io = r.next(&mut 0, GRANT, false).unwrap();
        r.start(io, Place::Whole(Pool::new(0).get(512)), Mark::default());
        r
    }

    /// What another session reads has sums of its own: those that came in the one before are of other bytes, perhaps.
    #[test]
    fn a_read_that_another_session_takes_over_forgets_its_sums() {
        let mut r = Requests::new();
        r.slots.are_checked = true;
        r.on_session(2, 0);
        r.submit(read());
        for sequence in [1, 8] {
            assert_eq!(start(&mut r, GRANT), "");
            let sums = Sums { slot: 0, sequence, sums: &[sequence as u8; 4] };
            assert_eq!(
                r.slots.on_sums(&sums, &Pool::new(0)),
                Ok(false),
                "they are taken in each time"
            );
            // With the old one still there.
            r.on_session(2, 7);
        }
    }

    /// Starts what may start.
    fn start(r: &mut Requests, grant: (u32, u64)) -> String {
        let Some(io) = r.next(&mut 0, grant, false) else { return String::new() };
        r.start(io, Place::Whole(Pool::new(0).get(512)), Mark::default());
        String::new()
    }

    #[test]
    fn it_is_as_documented() {
        check(
            include_str!("requests.md"),
            &STATES,
            &[
                ("there is credit", |r| start(r, GRANT)),
                ("there is no credit", |r| start(r, (0, 0))),
                ("COMPLETE with an error", |r| {
                    let complete = Complete { status: 1, ..complete() };
                    match finished(r, &complete) {
                        Ok(Some(io)) => {
                            r.complete(&io, Err(ErrorKind::Io));
                            String::new()
                        }
                        Ok(None) => "kept to itself".to_owned(),
                        Err(_) => "dropped".to_owned(),
                    }
                }),
                ("it has to be made again", |r| match finished(r, &complete()) {
                    Ok(Some(io)) => {
                        r.put_back(io);
                        String::new()
                    }
                    _ => "-".to_owned(),
                }),
                ("RESET_DONE", |r| match r.slots.on_reset_done(0, 1) {
                    Ok(()) => String::new(),
                    Err(_) => "dropped".to_owned(),
                }),
                ("another session", |r| {
                    r.on_session(2, 0);
                    String::new()
                }),
                ("all I/O fails", |r| {
                    r.fail_all(ErrorKind::Away);
                    String::new()
                }),
                ("the user polls", |r| {
                    let mut done = Vec::new();
                    r.poll(&mut done);
                    if done.is_empty() { String::new() } else { "completed".to_owned() }
                }),
            ],
            Requests::state,
        );
    }

    /// What meets an earlier one waits for it, be that outstanding or itself waiting; others go before (rule 5).
    #[test]
    fn what_meets_an_earlier_one_waits_for_it() {
        let mut r = Requests::new();
        r.on_session(4, 0);
        for (offset, len) in [(0, 1024), (512, 1024), (1024, 512), (4096, 512)] {
            r.submit(Pending { op: Op::Write, offset, len, ..read() });
        }
        let next = |r: &mut Requests| {
            let io = r.next(&mut 0, GRANT, false)?;
            let offset = io.offset;
            r.start(io, Place::Nowhere, Mark::default());
            Some(offset)
        };
        assert_eq!([next(&mut r), next(&mut r), next(&mut r)], [Some(0), Some(4096), None]);
        finished(&mut r, &complete()).unwrap().expect("the first");
        assert_eq!([next(&mut r), next(&mut r)], [Some(512), None]);
    }

    #[test]
    fn another_session_has_credit_of_its_own() {
        let mut r = Requests::new();
        for _ in 0..3 {
            r.on_session(2, 0);
            r.submit(read());
            r.submit(read());
            assert_eq!(start(&mut r, (1, 512)), "");
            assert!(!r.slots.is_idle() && !r.has_room(0, (1, 512)));
            r.fail_all(ErrorKind::Away);
        }
    }

    fn finished(r: &mut Requests, complete: &Complete) -> Result<Option<Pending>, DropReason> {
        let is_finished = r.slots.on_complete(complete)?;
        let finished = is_finished.then(|| r.slots.take_finished(complete.slot)).flatten();
        Ok(finished.map(|finished| finished.io))
    }

    /// Of the first request in a session.
    fn complete() -> Complete {
        let (slot, sequence, status) = (0, 1, 0);
        Complete { slot, sequence, status, length: 0, verifier: 1 }
    }
}
