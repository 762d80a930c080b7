//! An owner and one branch, step by step: each story tells one thing that a letter is for.

use std::collections::VecDeque;
use std::time::Duration;

use thinwire_buffer::{Pool, SegList, Time};
use thinwire_exports::{
    Denial, Denied, DoorCanary, DoorLetter, ExportConfig, Exports, ExportsConfig, Granted,
    InitiatorRun, IoTicket, NoEntry, Pass, RecordReport, SpreadConfig, User, Users, WriteClaim,
};
use thinwire_volume::testing::{MemDisk, Puppet};
use thinwire_volume::{Io, Op, Recorded, VolumeEvent, WriterRecord, store_writer};

pub(super) const OWNER: usize = 0;
pub(super) const BRANCH: usize = 1;
pub(super) const AT: Time = Time(1_000_000_000);

/// A log of what one door told its sessions.
#[derive(Default)]
pub(super) struct Told {
    pub granted: Vec<(u64, Granted)>,
    pub denied: Vec<(u64, Denied)>,
    pub fenced: Vec<u64>,
    pub closed: Vec<u64>,
    pub resized: Vec<(u64, u64)>,
    /// Runs that have sessions here, and whether they answer.
    pub runs: Vec<(InitiatorRun, bool)>,
}

impl Users for Told {
    fn is_there(&mut self, _: u64) -> bool {
        true
    }

    fn ask(&mut self, _: Time, run: InitiatorRun) -> bool {
        self.runs.iter().any(|(known, _)| *known == run)
    }

    fn has_answered(&mut self, run: InitiatorRun, _: Time) -> bool {
        self.runs.contains(&(run, true))
    }

    fn on_granted(&mut self, session: u64, _: u32, granted: &Granted) {
        self.granted.push((session, *granted));
    }

    fn on_denied(&mut self, session: u64, _: u32, denied: Denied) {
        self.denied.push((session, denied));
    }

    fn on_closed(&mut self, session: u64, _: u32) {
        self.closed.push(session);
    }

    fn on_fenced(&mut self, session: u64, _: Pass, _: InitiatorRun, _: u64) {
        self.fenced.push(session);
    }

    fn on_resized(&mut self, session: u64, _: Pass, bytes: u64) {
        self.resized.push((session, bytes));
    }
}

/// Two doors, the volume behind each, and the letters from each.
pub(super) struct Pair {
    pub doors: Vec<Exports>,
    pub puppets: Vec<Puppet>,
    pub told: Vec<Told>,
    pub mail: [VecDeque<DoorLetter>; 2],
    pub answers: Vec<(u64, u64, bool)>,
    pub now: Time,
}

impl Pair {
    pub fn new() -> Self {
        Pair::with(MemDisk::new(512, 512, 1), DoorCanary::None)
    }

    pub fn planted(canary: DoorCanary) -> Self {
        Pair::with(MemDisk::new(512, 512, 1), canary)
    }

    /// With the writer record on that disk.
    fn with(disk: MemDisk, canary: DoorCanary) -> Self {
        let mut disk = Some(disk);
        let config = ExportsConfig { canary, ..ExportsConfig::default() };
        let puppets: Vec<_> = (0..2).map(|_| Puppet::new(1, Puppet::GEOMETRY)).collect();
        let mut doors = Vec::new();
        for (shard, puppet) in (0..).zip(&puppets) {
            puppet.may_grow();
            let mut door = Exports::new(config.clone(), 70 + u64::from(shard), &Pool::new(0));
            let disk = disk.take().unwrap_or_else(|| MemDisk::new(512, 512, 1));
            let mut recorded = Recorded::new(Box::new(puppet.clone()), disk, Vec::new());
            if shard == 0 {
                store_writer(&mut recorded, WriterRecord::new(7, [0; 16], "")).unwrap();
            }
            let config =
                ExportConfig { name: "disk".into(), volume: Box::new(recorded), read_only: false };
            let spread = SpreadConfig { number: 3, shard, shards: 2, owner: 0, verifier: 5 };
            door.add_spread(config, spread);
            doors.push(door);
        }
        let told = vec![Told::default(), Told::default()];
        let mail = [VecDeque::new(), VecDeque::new()];
        let mut pair = Pair { doors, puppets, told, mail, answers: Vec::new(), now: AT };
        pair.settle();
        pair
    }

    pub fn turn(&mut self, shard: usize) {
        for _ in 0..20 {
            let answers = &mut self.answers;
            self.doors[shard].poll(|ticket, _, verifier, completion| {
                answers.push((ticket.number, verifier, completion.result.is_ok()));
            });
            self.doors[shard].settle(self.now, &mut self.told[shard]);
        }
        self.mail[shard].extend(std::iter::from_fn(|| self.doors[shard].next_letter()));
    }

    /// All letters of a shard arrive.
    pub fn deliver(&mut self, from: usize) {
        let to = 1 - from;
        while let Some(letter) = self.mail[from].pop_front() {
            self.doors[to].on_letter(self.now, letter, &mut self.told[to]);
        }
        self.turn(to);
    }

    pub fn settle(&mut self) {
        for _ in 0..10 {
            for shard in [OWNER, BRANCH] {
                self.turn(shard);
                self.deliver(shard);
            }
        }
    }

    pub fn claim(
        &mut self,
        shard: usize,
        who: u8,
        instance: u64,
        takes_over: bool,
    ) -> Result<(), Denied> {
        let run = InitiatorRun { initiator: [who; 16], instance };
        let session = session(shard, who, instance);
        let user = User {
            session,
            number: instance << 8 | u64::from(who),
            run,
            member: 0,
            is_leased: true,
            name: format!("user {who}"),
        };
        let claim =
            WriteClaim { user: &user, transaction: 1, export: 0, resumes: None, takes_over };
        self.doors[shard].claim(self.now, claim)
    }

    pub fn grant(&mut self, shard: usize, who: u8) -> Granted {
        self.claim(shard, who, 1, true).unwrap();
        self.settle();
        let (to, granted) = *self.told[shard].granted.last().unwrap();
        assert_eq!(to, session(shard, who, 1));
        granted
    }

    /// The number of the I/O is its session.
    pub fn submit(&mut self, shard: usize, who: u8, pass: Pass, io: Io) {
        let session = session(shard, who, 1);
        let permit = self.doors[shard].admit(session, pass).expect("a good pass");
        let ticket = IoTicket { session, place: 0, number: session };
        self.doors[shard].submit(permit, io, ticket, |_| {}).unwrap();
    }

    /// The only I/O in the volume of a shard ends.
    pub fn end(&mut self, shard: usize, is_ok: bool) -> Io {
        let io = self.puppets[shard].take_one();
        match is_ok {
            true => self.puppets[shard].succeed(&io),
            false => self.puppets[shard].fail(&io),
        }
        self.turn(shard);
        io
    }
}

pub(super) fn session(shard: usize, who: u8, instance: u64) -> u64 {
    (shard as u64) << 56 | instance << 8 | u64::from(who)
}

pub(super) fn write(fua: bool) -> Io {
    let mut io = Io::new(0, Op::Write, 0, 512);
    io.data = SegList::of(Pool::new(0).get(512).freeze());
    io.flags.fua = fua;
    io
}

/// A writer of a branch has what one of the owner has: its pass, the fence, an end on record.
#[test]
fn a_writer_at_a_branch_is_one_like_others() {
    let mut pair = Pair::new();
    let first = pair.grant(BRANCH, 1);
    let report = pair.doors[OWNER].reports().remove(0);
    let writer = report.writer.expect("the owner knows");
    assert_eq!((writer.name.as_str(), writer.attached, report.branch_of), ("user 1", true, None));
    assert_eq!(pair.doors[BRANCH].reports()[0].branch_of, Some(0));
    // Without taking over another is told who has it, at whatever shard it asks.
    assert_eq!(pair.claim(OWNER, 2, 1, false).unwrap_err().why, Denial::Busy);
    pair.claim(BRANCH, 2, 1, false).unwrap();
    assert!(pair.doors[BRANCH].is_waiting(session(BRANCH, 2, 1), 1));
    pair.settle();
    assert!(!pair.doors[BRANCH].is_waiting(session(BRANCH, 2, 1), 1));
    let (_, denied) = &pair.told[BRANCH].denied[0];
    assert!(denied.text.contains("user 1"), "{}", denied.text);

    let second = pair.grant(OWNER, 2);
    assert_eq!(second.writer_generation, first.writer_generation + 1);
    assert_eq!(pair.told[BRANCH].fenced, [session(BRANCH, 1, 1)]);
    let refused = pair.doors[BRANCH].admit(session(BRANCH, 1, 1), first.pass);
    assert_eq!(refused.unwrap_err(), NoEntry::Fenced);

    let third = pair.grant(BRANCH, 3);
    assert_eq!(pair.told[OWNER].fenced, [session(OWNER, 2, 1)]);
    let session = session(BRANCH, 3, 1);
    assert!(!pair.doors[BRANCH].close(session, third.pass, 9), "not before it is on record");
    assert!(
        !pair.doors[BRANCH].close(session, third.pass, 9) && pair.told[BRANCH].closed.is_empty()
    );
    pair.settle();
    assert_eq!(pair.told[BRANCH].closed, [session]);
    assert!(pair.doors[OWNER].reports()[0].writer.is_none());
    pair.claim(OWNER, 4, 1, false).unwrap();
    pair.settle();
    assert_eq!(pair.told[OWNER].granted.last().unwrap().1.writer_generation, 11);
}

/// A record that can be neither changed nor put back: nobody writes, on any shard, though who asked has gone.
#[test]
fn writers_are_held_back_everywhere_while_the_record_is_in_doubt() {
    let mut disk = MemDisk::new(512, 512, 1);
    // The first record, the first grant and half of a change; then its other half and what was to undo it.
    disk.fail_records([false, false, false, false, true, true]);
    let mut pair = Pair::with(disk, DoorCanary::None);
    assert_eq!(
        pair.doors[BRANCH].open_read(9, 0).writer_generation,
        7,
        "it is told what is on record"
    );
    let first = pair.grant(BRANCH, 1);
    pair.claim(OWNER, 2, 1, true).unwrap();
    pair.settle();
    assert_eq!(pair.doors[OWNER].reports()[0].record, RecordReport::Unsettled);
    pair.doors[OWNER].end_session(session(OWNER, 2, 1), AT);
    pair.settle();
    let entry = |pair: &Pair| pair.doors[BRANCH].admit(session(BRANCH, 1, 1), first.pass).err();
    assert_eq!(entry(&pair), Some(NoEntry::Waits));
    for seconds in [0, 2] {
        pair.now = AT + Duration::from_secs(seconds);
        pair.settle();
    }
    assert_eq!(pair.doors[OWNER].reports()[0].record, RecordReport::Settled);
    assert!(entry(&pair).is_none() && pair.told[OWNER].granted.is_empty());
}

/// The grant waits for the I/O that is in the branch's volume, and nothing new is let in meanwhile; what is
/// told of an earlier hold does not count.
#[test]
fn a_grant_waits_for_the_volumes_of_all_shards() {
    let mut pair = Pair::new();
    let first = pair.grant(BRANCH, 1);
    pair.submit(BRANCH, 1, first.pass, write(false));
    pair.claim(OWNER, 2, 1, true).unwrap();
    pair.settle();
    assert!(pair.told[OWNER].granted.is_empty());
    let waits = |pair: &Pair| {
        pair.doors[BRANCH].admit(session(BRANCH, 1, 1), first.pass).err() == Some(NoEntry::Waits)
    };
    assert!(waits(&pair));
    // Who asked is gone, so the first goes on; then another asks.
    pair.doors[OWNER].end_session(session(OWNER, 2, 1), AT);
    pair.turn(OWNER);
    pair.end(BRANCH, true);
    let late: Vec<_> = pair.mail[BRANCH].drain(..).collect();
    assert_eq!(late.len(), 1, "it is drained, under a hold that is over");
    pair.deliver(OWNER);
    assert!(pair.doors[BRANCH].take_release() && !waits(&pair));
    pair.submit(BRANCH, 1, first.pass, write(false));
    pair.claim(OWNER, 3, 1, true).unwrap();
    pair.turn(OWNER);
    pair.mail[BRANCH].extend(late);
    pair.settle();
    assert!(pair.told[OWNER].granted.is_empty() && waits(&pair));
    pair.end(BRANCH, true);
    pair.settle();
    assert_eq!(pair.told[OWNER].granted[0].0, session(OWNER, 3, 1));
}

/// A flush of a branch, and what is to be durable there, is synced by the owner, one sync at a time.
#[test]
fn the_owner_syncs_for_all() {
    let mut pair = Pair::new();
    let [reader, writer] =
        [pair.doors[OWNER].open_read(session(OWNER, 1, 1), 0).pass, pair.grant(BRANCH, 2).pass];
    pair.submit(OWNER, 1, reader, Io::new(0, Op::Flush, 0, 0));
    pair.turn(OWNER);
    pair.submit(BRANCH, 2, writer, write(true));
    pair.turn(BRANCH);
    let io = pair.end(BRANCH, true);
    assert!(!io.flags.fua && pair.answers.is_empty() && pair.doors[BRANCH].is_at_work());
    pair.submit(BRANCH, 2, writer, Io::new(0, Op::Flush, 0, 0));
    pair.turn(BRANCH);
    pair.deliver(BRANCH);
    assert!(pair.puppets[BRANCH].take().is_empty());
    // One runs, the next serves both of the branch.
    for answered in [1, 3] {
        assert_eq!(pair.end(OWNER, true).op, Op::Flush);
        pair.deliver(OWNER);
        assert_eq!(pair.answers.len(), answered);
    }
    assert!(pair.answers.iter().all(|&(_, verifier, is_ok)| verifier == 5 && is_ok));
    assert!(pair.puppets[OWNER].take().is_empty() && !pair.doors[BRANCH].is_at_work());
}

/// A sync fails at the owner: nobody, the owner included, is answered before both tell the same.
#[test]
fn a_verifier_is_told_when_all_have_heard_of_it() {
    let mut pair = Pair::new();
    let here = pair.doors[OWNER].open_read(session(OWNER, 1, 1), 0).pass;
    let there = pair.doors[BRANCH].open_read(session(BRANCH, 2, 1), 0).pass;
    pair.submit(OWNER, 1, here, Io::new(0, Op::Flush, 0, 0));
    pair.turn(OWNER);
    pair.end(OWNER, false);
    pair.submit(OWNER, 1, here, Io::new(0, Op::Read, 0, 512));
    pair.end(OWNER, true);
    assert!(pair.answers.is_empty() && pair.doors[OWNER].is_at_work());
    // The branch has not heard, and tells the one from before.
    pair.submit(BRANCH, 2, there, Io::new(0, Op::Read, 0, 512));
    pair.end(BRANCH, true);
    assert_eq!(std::mem::take(&mut pair.answers), [(session(BRANCH, 2, 1), 5, true)]);
    pair.deliver(OWNER);
    pair.submit(BRANCH, 2, there, Io::new(0, Op::Read, 0, 512));
    pair.end(BRANCH, true);
    let opened = pair.doors[BRANCH].attach_read(session(BRANCH, 3, 1), 1, 0);
    assert!(opened.is_none() && pair.answers.is_empty());
    assert!(pair.doors[BRANCH].is_waiting(session(BRANCH, 3, 1), 1));
    pair.deliver(BRANCH);
    assert_eq!(pair.answers.len(), 2, "the owner's");
    pair.deliver(OWNER);
    let verifier = pair.answers[0].1;
    assert_ne!(verifier, 5);
    let mut oks: Vec<_> =
        pair.answers.iter().map(|(_, verifier, is_ok)| (*verifier, *is_ok)).collect();
    oks.sort_unstable();
    assert_eq!(oks, [(verifier, false), (verifier, true), (verifier, true)]);
    assert_eq!(pair.told[BRANCH].granted[0].1.verifier, verifier);
    assert!(pair.doors.iter().all(|door| !door.is_at_work()));
}

/// What comes out of the volume behind a sync that has failed may have missed what that lost.
#[test]
fn what_ends_behind_a_failed_sync_is_answered_under_the_next_verifier() {
    let mut pair = Pair::new();
    let here = pair.doors[OWNER].open_read(session(OWNER, 1, 1), 0).pass;
    pair.submit(OWNER, 1, here, Io::new(0, Op::Flush, 0, 0));
    pair.submit(OWNER, 1, here, Io::new(0, Op::Read, 0, 512));
    let [flush, read] = &pair.puppets[OWNER].take()[..] else { panic!("two") };
    pair.puppets[OWNER].fail(flush);
    pair.puppets[OWNER].succeed(read);
    pair.settle();
    assert_eq!(pair.answers.len(), 2);
    assert!(pair.answers.iter().all(|&(_, verifier, _)| verifier != 5), "{:?}", pair.answers);
}

/// What only a branch has heard of changes the verifier everywhere; what both have heard of, once, whichever
/// is the first.
#[test]
fn a_loss_that_a_branch_hears_of_is_told_everywhere() {
    for (both, first) in [(false, BRANCH), (true, BRANCH), (true, OWNER)] {
        let mut pair = Pair::new();
        let there = pair.doors[BRANCH].open_read(session(BRANCH, 2, 1), 0).pass;
        pair.puppets[BRANCH].tell(VolumeEvent::Lost);
        if both {
            pair.puppets[OWNER].tell(VolumeEvent::Lost);
        }
        if first == OWNER {
            pair.doors[OWNER].disk_ready();
            pair.turn(OWNER);
            pair.deliver(OWNER);
        }
        pair.submit(BRANCH, 2, there, Io::new(0, Op::Read, 0, 512));
        pair.end(BRANCH, true);
        assert!(pair.answers.is_empty());
        pair.settle();
        let [(_, verifier, true)] = pair.answers[..] else { panic!("{:?}", pair.answers) };
        assert_ne!(verifier, 5);
        let mut other = Exports::new(ExportsConfig::default(), 70, &Pool::new(0));
        let config = ExportConfig {
            name: "other".into(),
            volume: Box::new(Puppet::new(1, Puppet::GEOMETRY)),
            read_only: true,
        };
        other.add(config);
        assert_eq!(verifier, other.open_read(1, 0).verifier, "the first that the owner makes");
        assert_eq!(pair.doors[OWNER].open_read(9, 0).verifier, verifier);
    }
}

/// I/Os of writers that come to a branch which answers nobody wait, and those of the owner that are to be durable
/// begin behind it: what was lost before puts them in no doubt.
#[test]
fn what_is_to_be_durable_is_in_no_doubt_for_what_was_lost_before() {
    let mut pair = Pair::new();
    let here = pair.grant(OWNER, 1).pass;
    pair.puppets[OWNER].tell(VolumeEvent::Lost);
    pair.submit(OWNER, 1, here, write(true));
    pair.turn(OWNER);
    assert!(pair.puppets[OWNER].take().is_empty());
    pair.deliver(OWNER);
    pair.deliver(BRANCH);
    assert_eq!(pair.end(OWNER, true).op, Op::Write);
    assert_eq!(pair.end(OWNER, true).op, Op::Flush);
    let [(_, verifier, true)] = pair.answers[..] else { panic!("{:?}", pair.answers) };
    assert_ne!(verifier, 5);
}

/// Growth is looked for by the owner, and told at branches once their volumes have it.
#[test]
fn growth_reaches_branches() {
    let mut pair = Pair::new();
    pair.doors[BRANCH].open_read(session(BRANCH, 2, 1), 0);
    pair.doors.iter_mut().for_each(|door| door.refresh(AT + Duration::from_secs(5)));
    let asked = [0, 1].map(|shard: usize| pair.puppets[shard].refreshes());
    assert_eq!(asked, [1, 0], "a branch does not look by itself");
    pair.puppets[OWNER].tell(VolumeEvent::Resized { bytes: 1 << 20 });
    pair.turn(OWNER);
    pair.deliver(OWNER);
    assert_eq!((pair.puppets[BRANCH].refreshes(), &pair.told[BRANCH].resized[..]), (1, &[][..]));
    pair.puppets[BRANCH].tell(VolumeEvent::Resized { bytes: 1 << 20 });
    pair.doors[BRANCH].disk_ready();
    pair.turn(BRANCH);
    assert_eq!(pair.told[BRANCH].resized, [(session(BRANCH, 2, 1), 1 << 20)]);
}

/// A second process with the identity of a holder whose session is at a branch, where it is asked.
#[test]
fn a_twin_of_a_holder_at_a_branch_is_found_out() {
    for lives in [true, false] {
        let mut pair = Pair::new();
        pair.grant(BRANCH, 1);
        let run = InitiatorRun { initiator: [1; 16], instance: 1 };
        pair.told[BRANCH].runs.push((run, lives));
        pair.claim(OWNER, 1, 2, false).unwrap();
        pair.settle();
        pair.now = AT + Duration::from_millis(501);
        pair.settle();
        assert_eq!(pair.told[OWNER].denied.len(), usize::from(lives));
        assert_eq!(pair.told[OWNER].granted.len(), usize::from(!lives));
    }
}

/// A holder that is heard at a branch keeps the export; one that falls silent keeps it as long as its lease.
#[test]
fn a_lease_counts_what_a_branch_has_heard() {
    let mut pair = Pair::new();
    pair.grant(BRANCH, 1);
    let lease = ExportsConfig::default().lease;
    for second in 1..=40 {
        pair.now = AT + Duration::from_secs(second);
        pair.doors[BRANCH].heard(session(BRANCH, 1, 1), pair.now);
        pair.settle();
    }
    assert_eq!(pair.claim(OWNER, 2, 1, false).unwrap_err().why, Denial::Busy);
    pair.doors[BRANCH].end_session(session(BRANCH, 1, 1), pair.now);
    pair.settle();
    let writer = pair.doors[OWNER].reports().remove(0).writer.unwrap();
    assert!(!writer.attached && writer.lease_end == Some(pair.now + lease));
    pair.now = pair.now + lease;
    pair.claim(OWNER, 2, 1, false).unwrap();
    pair.settle();
    assert_eq!(pair.told[OWNER].granted.len(), 1);
}

/// Who has gone by the time that its claim is granted has nothing open, and its predecessor is fenced.
#[test]
fn a_claim_of_a_session_that_has_gone_leaves_nothing_open() {
    let mut pair = Pair::new();
    let first = pair.grant(OWNER, 1);
    pair.claim(BRANCH, 2, 1, true).unwrap();
    pair.turn(BRANCH);
    pair.deliver(BRANCH);
    pair.doors[BRANCH].end_session(session(BRANCH, 2, 1), AT);
    // Drained comes behind its end, and is nobody's any more.
    pair.settle();
    assert_eq!(pair.doors[BRANCH].sessions().count(), 0);
    assert!(pair.told[BRANCH].granted.is_empty());
    assert!(pair.doors[OWNER].admit(session(OWNER, 1, 1), first.pass).is_ok(), "withdrawn in time");

    // Another goes when it is on record: nothing of it is open, but it has fenced.
    pair.claim(BRANCH, 3, 1, true).unwrap();
    pair.turn(BRANCH);
    pair.deliver(BRANCH);
    pair.deliver(OWNER);
    pair.deliver(BRANCH);
    pair.doors[BRANCH].end_session(session(BRANCH, 3, 1), AT);
    pair.settle();
    assert_eq!(pair.doors[BRANCH].sessions().count(), 0);
    assert_eq!(pair.told[OWNER].fenced, [session(OWNER, 1, 1)]);
    let writer = pair.doors[OWNER].reports().remove(0).writer.unwrap();
    assert_eq!((writer.name.as_str(), writer.attached), ("user 3", false));
}
