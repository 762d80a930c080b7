//! The door seen by two dialects at once, neither of which is the native protocol.

use std::time::Duration;

use thinwire_buffer::{Pool, SegList, Time};
use thinwire_exports::{
    Denial, Denied, DoorCanary, ExportConfig, ExportOpening, Exports, ExportsConfig, Granted,
    InitiatorRun, IoTicket, NoEntry, Pass, RecordReport, User, Users, WriteClaim,
};
use thinwire_volume::stores::FileStore;
use thinwire_volume::testing::{MemDisk, Puppet};
use thinwire_volume::{
    Completion, ErrorKind, Io, Op, Recorded, VolumeEvent, WriterRecord, store_writer,
};

#[path = "door/crowd.rs"]
mod crowd;
#[path = "door/fenced.rs"]
mod fenced;
#[path = "door/growth.rs"]
mod growth;
#[path = "door/leaving.rs"]
mod leaving;
#[path = "door/records.rs"]
mod records;
#[path = "door/reports.rs"]
mod reports;
#[path = "door/shares.rs"]
mod shares;
#[path = "door/timed.rs"]
mod timed;
#[path = "door/turns.rs"]
mod turns;

const BYTES: u64 = 1 << 20;
const AT: Time = Time(1_000_000_000);

/// A dialect's sessions: a log of what the door told them.
#[derive(Default)]
struct Dialect {
    granted: Vec<(u64, Granted)>,
    denied: Vec<(u64, Denied)>,
    fenced: Vec<(u64, Pass)>,
    closed: Vec<u64>,
    gone: Vec<u64>,
    resized: Vec<(u64, Pass, u64)>,
}

impl Users for Dialect {
    fn is_there(&mut self, session: u64) -> bool {
        !self.gone.contains(&session)
    }

    fn ask(&mut self, _: Time, _: InitiatorRun) -> bool {
        false
    }

    fn has_answered(&mut self, _: InitiatorRun, _: Time) -> bool {
        false
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

    fn on_fenced(&mut self, session: u64, pass: Pass, _: InitiatorRun, _: u64) {
        self.fenced.push((session, pass));
    }

    fn on_resized(&mut self, session: u64, pass: Pass, bytes: u64) {
        self.resized.push((session, pass, bytes));
    }
}

fn door(disk: MemDisk) -> (Exports, Pool) {
    let pool = Pool::new(0);
    let mut exports = Exports::new(ExportsConfig::default(), 7, &pool);
    let volume = Box::new(FileStore::new(disk, 512, &pool).unwrap());
    exports.add(ExportConfig { name: "disk".into(), volume, read_only: false });
    (exports, pool)
}

/// What the first claim stores succeeds; the next change of the record fails at its first step.
fn door_that_records_once() -> (Exports, Pool) {
    let mut disk = MemDisk::new(BYTES, 512, 1);
    disk.fail_records([false, false, true]);
    door(disk)
}

/// A door to so many puppets, whose records have been read.
fn puppets(count: usize) -> (Exports, Vec<Puppet>) {
    puppets_behind(ExportsConfig::default(), count)
}

fn puppets_behind(config: ExportsConfig, count: usize) -> (Exports, Vec<Puppet>) {
    let mut exports = Exports::new(config, 7, &Pool::new(0));
    let puppets: Vec<_> = (0..count).map(|_| Puppet::new(1, Puppet::GEOMETRY)).collect();
    for (at, puppet) in puppets.iter().enumerate() {
        puppet.may_grow();
        add_puppet(&mut exports, at, puppet);
    }
    settle(&mut exports, &mut Dialect::default());
    exports.take_started();
    (exports, puppets)
}

fn add_puppet(exports: &mut Exports, number: usize, puppet: &Puppet) {
    let volume = Recorded::new(Box::new(puppet.clone()), MemDisk::new(512, 512, 1), Vec::new());
    let (name, volume) = (format!("p{number}"), Box::new(volume));
    exports.add(ExportConfig { name, volume, read_only: false });
}

/// The user whose session, number and identity are all `who`.
fn user(who: u8) -> User {
    let run = InitiatorRun { initiator: [who; 16], instance: 1 };
    let (session, name) = (who.into(), format!("user {who}"));
    User { session, number: session, run, member: 0, is_leased: true, name }
}

fn claim(exports: &mut Exports, who: u8, takes_over: bool) -> Result<(), Denied> {
    let user = user(who);
    let claim = WriteClaim { user: &user, transaction: 1, export: 0, resumes: None, takes_over };
    exports.claim(AT, claim)
}

/// Polls and settles until the disk has nothing more to say.
fn settle(exports: &mut Exports, users: &mut Dialect) {
    for _ in 0..100 {
        exports.settle(AT, users);
        exports.poll(|_, _, _, _| panic!("no I/O of a user"));
    }
}

fn grant(exports: &mut Exports, users: &mut Dialect, who: u8, takes_over: bool) -> Granted {
    claim(exports, who, takes_over).unwrap();
    settle(exports, users);
    let (session, granted) = *users.granted.last().unwrap();
    assert_eq!(session, u64::from(who));
    granted
}

/// Submits with the session itself as the number of the ticket.
fn submit(exports: &mut Exports, who: u8, pass: Pass, io: Io) -> Result<(), ErrorKind> {
    let session = u64::from(who);
    let permit = exports.admit(session, pass).expect("a good pass");
    exports.submit(permit, io, IoTicket { session, place: 0, number: session }, |_| {})
}

fn write(pool: &Pool, byte: u8) -> Io {
    let mut buf = pool.get(512);
    buf.fill(byte);
    let mut io = Io::new(0, Op::Write, 0, 512);
    io.data = SegList::of(buf.freeze());
    io
}

/// What has ended: whose, its verifier and how.
fn poll(exports: &mut Exports) -> Vec<(u64, u64, Completion)> {
    let mut ended = Vec::new();
    for _ in 0..100 {
        exports.poll(|ticket, _, verifier, completion| {
            let ended_as = std::mem::replace(completion, Completion::new(0, Ok(())));
            ended.push((ticket.number, verifier, ended_as));
        });
    }
    ended
}

#[test]
fn a_writer_of_one_dialect_is_a_writer_to_the_other() {
    let (mut exports, pool) = door(MemDisk::new(BYTES, 512, 1));
    let (mut one, mut other) = (Dialect::default(), Dialect::default());
    let first = grant(&mut exports, &mut one, 1, false);
    let denied = claim(&mut exports, 2, false).unwrap_err();
    assert_eq!(denied.why, Denial::Busy);
    assert!(denied.text.contains("user 1"), "{}", denied.text);

    // A request of the first is in the store: the second waits for it, and new ones of the first wait.
    submit(&mut exports, 1, first.pass, write(&pool, 1)).unwrap();
    claim(&mut exports, 2, true).unwrap();
    exports.settle(AT, &mut other);
    assert!(other.granted.is_empty() && exports.is_waiting(2, 1));
    assert_eq!(exports.admit(1, first.pass).unwrap_err(), NoEntry::Waits);
    assert_eq!(poll(&mut exports).len(), 1);
    settle(&mut exports, &mut other);
    assert!(exports.take_release(), "what waited is to be tried again");
    assert_eq!(other.fenced, [(1, first.pass)]);
    assert_eq!(exports.admit(1, first.pass).unwrap_err(), NoEntry::Fenced);

    let second = other.granted[0].1;
    assert!(second.writer_generation > first.writer_generation);
    submit(&mut exports, 2, second.pass, write(&pool, 2)).unwrap();
    assert_eq!(poll(&mut exports)[0].0, 2);
    let reader = exports.open_read(1, 0);
    submit(&mut exports, 1, reader.pass, Io::new(0, Op::Read, 0, 512)).unwrap();
    let refused = submit(&mut exports, 1, reader.pass, write(&pool, 3));
    assert_eq!(refused, Err(ErrorKind::ReadOnly));
    let ended = poll(&mut exports);
    let read = ended.iter().find(|(who, ..)| *who == 1).unwrap();
    let bytes: Vec<u8> = read.2.data.iter().flat_map(|segment| segment.to_vec()).collect();
    assert_eq!(bytes, [2; 512]);
}

#[test]
fn a_pass_is_its_users_and_no_one_elses() {
    let (mut exports, _) = door(MemDisk::new(BYTES, 512, 1));
    let mut users = Dialect::default();
    let pass = grant(&mut exports, &mut users, 1, false).pass;
    let later = Pass { generation: pass.generation.wrapping_add(1), ..pass };
    for (session, pass) in [
        (2, pass),
        (1, later),
        (1, Pass { number: 0, ..pass }),
        (1, Pass { number: u32::MAX, ..pass }),
    ] {
        assert_eq!(exports.admit(session, pass).unwrap_err(), NoEntry::NoPass);
    }
    assert!(!exports.close(1, pass, 5) && !exports.close(1, pass, 5), "not before it is on record");
    assert_eq!(exports.admit(1, pass).unwrap_err(), NoEntry::NoPass);
    settle(&mut exports, &mut users);
    assert_eq!(users.closed, [1]);
    assert!(exports.close(1, pass, 5), "it has been told");
    // It was closed in order: nobody need take over.
    grant(&mut exports, &mut users, 2, false);
}

/// A sync that fails for one puts in doubt what all have written.
#[test]
fn a_loss_is_told_to_all() {
    let (mut exports, pool) = door_that_records_once();
    let mut users = Dialect::default();
    let writer = grant(&mut exports, &mut users, 1, false);
    let reader = exports.open_read(2, 0);
    assert_eq!(writer.verifier, reader.verifier);
    submit(&mut exports, 1, writer.pass, write(&pool, 1)).unwrap();
    assert!(poll(&mut exports).iter().all(|(_, verifier, _)| *verifier == writer.verifier));
    // The record's sync fails, on the same disk.
    claim(&mut exports, 3, true).unwrap();
    settle(&mut exports, &mut users);
    submit(&mut exports, 2, reader.pass, Io::new(0, Op::Read, 0, 512)).unwrap();
    assert_ne!(poll(&mut exports)[0].1, reader.verifier);
    assert_ne!(exports.open_read(2, 0).verifier, reader.verifier);
}

/// What has ended in the same poll as the loss was heard in, whichever of the volumes came first, may have
/// missed what was lost: a flush that is answered under the verifier from before would vouch for it. The
/// fault that tells the loss behind the answers must show here.
#[test]
fn what_ends_with_a_loss_is_answered_under_the_verifier_behind_it() {
    for canary in [DoorCanary::None, DoorCanary::VerifierAfterAnswer] {
        let (mut exports, puppets) =
            puppets_behind(ExportsConfig { canary, ..ExportsConfig::default() }, 2);
        let readers = [0, 1].map(|at| exports.open_read(at as u64 + 1, at));
        for (who, reader) in (1..).zip(&readers) {
            submit(&mut exports, who, reader.pass, Io::new(0, Op::Flush, 0, 0)).unwrap();
        }
        for puppet in &puppets {
            puppet.tell(VolumeEvent::Lost);
            puppet.succeed(&puppet.take_one());
        }
        let ended = poll(&mut exports);
        assert_eq!(ended.len(), 2);
        for ((_, verifier, _), reader) in ended.iter().zip(&readers) {
            assert_eq!(*verifier == reader.verifier, canary != DoorCanary::None, "{canary:?}");
        }
        for (at, reader) in readers.iter().enumerate() {
            assert_ne!(exports.open_read(3, at).verifier, reader.verifier, "from then on");
        }
    }
}

/// FUA means nothing to a read: who may only read puts nobody's writes in doubt by one that fails.
#[test]
fn a_read_that_fails_is_no_sync_that_has_failed() {
    let (mut exports, puppets) = puppets(1);
    let reader = exports.open_read(1, 0);
    for op in [Op::Read, Op::BlockStatus] {
        let mut io = Io::new(0, op, 0, 512);
        io.flags.fua = true;
        submit(&mut exports, 1, reader.pass, io).unwrap();
        let io = puppets[0].take_one();
        assert!(!io.flags.fua, "nor does the volume hear of it");
        puppets[0].fail(&io);
        let ended = poll(&mut exports);
        assert!(ended[0].1 == reader.verifier && ended[0].2.result.is_err());
        assert_eq!(exports.open_read(2, 0).verifier, reader.verifier);
    }
}

/// Those that came while one ran are served by the next together, and each hears how that has ended.
#[test]
fn flushes_that_go_together_fail_together() {
    let (mut exports, puppets) = puppets(1);
    let reader = exports.open_read(1, 0);
    for _ in 0..4 {
        submit(&mut exports, 1, reader.pass, Io::new(0, Op::Flush, 0, 0)).unwrap();
    }
    puppets[0].succeed(&puppets[0].take_one());
    assert_eq!(poll(&mut exports).len(), 1, "it began before the others had come");
    puppets[0].fail(&puppets[0].take_one());
    let ended = poll(&mut exports);
    assert_eq!(ended.len(), 3);
    assert!(ended.iter().all(|(_, at, end)| end.result.is_err() && *at != reader.verifier));
}

/// Its passes go with a session; its I/Os leave the volume all the same, and flushes go together.
#[test]
fn a_session_that_ends_leaves_nothing_open() {
    let (mut exports, _) = door(MemDisk::new(BYTES, 512, 1));
    let reader = exports.open_read(2, 0);
    for _ in 0..3 {
        submit(&mut exports, 2, reader.pass, Io::new(0, Op::Flush, 0, 0)).unwrap();
    }
    exports.end_session(2, AT);
    assert_eq!(exports.admit(2, reader.pass).unwrap_err(), NoEntry::NoPass);
    assert_eq!((poll(&mut exports).len(), exports.is_at_work()), (3, false));
    assert_eq!((exports.open_count(2), exports.sessions().count()), (0, 0));
}

#[test]
fn a_claim_that_cannot_be_recorded_is_denied_and_fences_nobody() {
    let (mut exports, _) = door_that_records_once();
    let mut users = Dialect::default();
    let first = grant(&mut exports, &mut users, 1, false);
    claim(&mut exports, 2, true).unwrap();
    settle(&mut exports, &mut users);
    assert_eq!(users.denied.len(), 1, "{:?}", users.denied);
    assert_eq!((users.denied[0].0, users.denied[0].1.why), (2, Denial::Record));
    assert!(users.fenced.is_empty());
    assert!(exports.admit(1, first.pass).is_ok());
}

/// A member that ends while nobody knows who is on record has ended all the same: the last one frees the export.
#[test]
fn a_member_that_leaves_while_the_record_is_in_doubt_leaves() {
    let mut disk = MemDisk::new(BYTES, 512, 1);
    // What the first claim stores, and half of a change; then its other half and what was to undo it.
    disk.fail_records([false, false, false, true, true]);
    let (mut exports, _) = door(disk);
    let mut users = Dialect::default();
    let first = grant(&mut exports, &mut users, 1, false);
    let member = User { session: 11, number: 11, member: 1, ..user(1) };
    let resumes = Some(first.writer_generation);
    let joins = WriteClaim { user: &member, transaction: 1, export: 0, resumes, takes_over: false };
    exports.claim(AT, joins).unwrap();
    settle(&mut exports, &mut users);
    let (session, second) = *users.granted.last().unwrap();
    assert_eq!((session, second.writer_generation), (11, first.writer_generation));
    claim(&mut exports, 2, true).unwrap();
    settle(&mut exports, &mut users);
    assert_eq!(exports.admit(1, first.pass).unwrap_err(), NoEntry::Waits, "it is in doubt");
    exports.close(1, first.pass, 5);
    settle(&mut exports, &mut users);
    assert_eq!(users.closed, [1]);
    // It is tried again, and the other goes.
    for second in 1..4 {
        exports.settle(AT + Duration::from_secs(second), &mut users);
        settle(&mut exports, &mut users);
    }
    assert!(exports.admit(11, second.pass).is_ok(), "no more");
    exports.close(11, second.pass, 6);
    settle(&mut exports, &mut users);
    assert_eq!(users.closed, [1, 11]);
    grant(&mut exports, &mut users, 3, false);
}

/// Until the record has been read nobody knows who has it, and nobody is told no.
#[test]
fn claims_that_come_before_the_record_wait_for_it_in_their_order() {
    let pool = Pool::new(0);
    let mut store = FileStore::new(MemDisk::new(BYTES, 512, 1), 512, &pool).unwrap();
    store_writer(&mut store, WriterRecord::new(5, [1; 16], "user 1")).unwrap();
    let mut exports = Exports::new(ExportsConfig::default(), 7, &pool);
    exports.add(ExportConfig { name: "disk".into(), volume: Box::new(store), read_only: false });
    let mut users = Dialect::default();
    for (who, takes_over) in [(2, false), (3, true), (1, false)] {
        claim(&mut exports, who, takes_over).unwrap();
    }
    exports.settle(AT, &mut users);
    assert!(users.granted.is_empty() && users.denied.is_empty());
    settle(&mut exports, &mut users);
    let generations: Vec<(u64, u64)> =
        users.granted.iter().map(|(who, granted)| (*who, granted.writer_generation)).collect();
    assert_eq!(generations, [(3, 6)], "the second takes over from who is on record");
    let denied: Vec<_> = users.denied.iter().map(|(who, denied)| (*who, denied.why)).collect();
    assert_eq!(denied, [(2, Denial::Busy), (1, Denial::Busy)]);
}

/// A take-over by user 2 of what user 1 has, as far as its first step: that is on its way to the disk.
fn half_taken_over(users: &mut Dialect) -> (Exports, Granted) {
    let (mut exports, _) = door(MemDisk::new(BYTES, 512, 1));
    let first = grant(&mut exports, users, 1, false);
    claim(&mut exports, 2, true).unwrap();
    exports.settle(AT, users);
    assert_eq!(exports.admit(1, first.pass).unwrap_err(), NoEntry::Waits);
    let report = exports.reports().remove(0);
    assert_eq!((report.record, report.generation), (RecordReport::Changing, 1));
    (exports, first)
}

/// It is on record, so its predecessor is fenced, as if it had died behind its grant.
#[test]
fn who_goes_while_it_is_recorded_has_fenced_all_the_same() {
    let mut users = Dialect::default();
    let (mut exports, first) = half_taken_over(&mut users);
    exports.end_session(2, AT);
    users.gone.push(2);
    settle(&mut exports, &mut users);
    assert_eq!((users.granted.len(), &users.fenced[..]), (1, &[(1, first.pass)][..]));
    assert_eq!(exports.admit(1, first.pass).unwrap_err(), NoEntry::Fenced);
    let report = exports.reports().remove(0);
    assert_eq!(report.generation, first.writer_generation + 1);
    let denied = claim(&mut exports, 1, false).unwrap_err();
    assert!(denied.text.contains("user 2"), "{}", denied.text);
    assert_eq!(exports.open_count(2), 0, "nothing of it is left");
}

/// A writer that ends while another takes over is told so, and not recorded over the other.
#[test]
fn who_detaches_during_a_take_over_is_told_and_takes_nothing_back() {
    let mut users = Dialect::default();
    let (mut exports, first) = half_taken_over(&mut users);
    assert!(!exports.close(1, first.pass, 9));
    settle(&mut exports, &mut users);
    assert_eq!((&users.closed[..], users.granted.len()), (&[1][..], 2));
    let report = exports.reports().remove(0);
    assert_eq!(report.writer.map(|writer| writer.name).as_deref(), Some("user 2"));
    assert!(!exports.is_at_work());
}

/// What a session asks under a pass that it is about to replace waits, too: it must not end behind the
/// grant (rule 2).
#[test]
fn who_claims_again_in_one_session_waits_for_itself() {
    let (mut exports, _) = door(MemDisk::new(BYTES, 512, 1));
    let mut users = Dialect::default();
    let first = grant(&mut exports, &mut users, 1, false);
    claim(&mut exports, 1, false).unwrap();
    assert!(exports.admit(1, first.pass).is_ok(), "nothing is on its way yet");
    exports.settle(AT, &mut users);
    assert_eq!(exports.admit(1, first.pass).unwrap_err(), NoEntry::Waits);
    settle(&mut exports, &mut users);
    assert_eq!(exports.admit(1, first.pass).unwrap_err(), NoEntry::Fenced);
    assert!(exports.admit(1, users.granted[1].1.pass).is_ok());
}

/// Its end and its return come in one turn: it is on record when it is back.
#[test]
fn who_comes_back_while_it_detaches_is_on_record_again() {
    let (mut exports, _) = door(MemDisk::new(BYTES, 512, 1));
    let mut users = Dialect::default();
    let first = grant(&mut exports, &mut users, 1, false);
    assert!(!exports.close(1, first.pass, 9));
    let again = User { session: 41, number: 41, ..user(1) };
    let resumes = Some(first.writer_generation);
    let claim_again =
        WriteClaim { user: &again, transaction: 2, export: 0, resumes, takes_over: false };
    exports.claim(AT, claim_again).unwrap();
    settle(&mut exports, &mut users);
    assert_eq!(users.closed, [1]);
    let (session, granted) = *users.granted.last().unwrap();
    assert_eq!((session, granted.writer_generation), (41, first.writer_generation));
    assert!(exports.admit(41, granted.pass).is_ok());
    let denied = claim(&mut exports, 2, false).unwrap_err();
    assert_eq!(denied.why, Denial::Busy, "nobody else gets it without taking over");
}

/// Those of other exports that are answered between them change nothing.
#[test]
fn claims_that_wait_keep_their_order() {
    let (mut exports, puppets) = puppets(2);
    let mut users = Dialect::default();
    let writer = grant(&mut exports, &mut users, 1, false);
    submit(&mut exports, 1, writer.pass, write(&Pool::new(0), 1)).unwrap();
    for (who, export) in [(2, 0), (3, 1), (4, 0), (5, 0), (6, 1), (7, 0)] {
        let user = user(who);
        let claim =
            WriteClaim { user: &user, transaction: 1, export, resumes: None, takes_over: true };
        exports.claim(AT, claim).unwrap();
    }
    let granted =
        |users: &Dialect| -> Vec<_> { users.granted.iter().map(|(who, _)| *who).collect() };
    settle(&mut exports, &mut users);
    assert_eq!(granted(&users), [1, 3, 6]);
    puppets[0].succeed(&puppets[0].take_one());
    assert_eq!(poll(&mut exports).len(), 1);
    settle(&mut exports, &mut users);
    assert_eq!(granted(&users), [1, 3, 6, 2, 4, 5, 7]);
    assert_eq!(exports.reports()[0].generation, writer.writer_generation + 4);
}

/// Of three that wait the first goes and the second cannot be recorded: whoever is granted it has the generation
/// behind the one on record, as if the others had never asked.
#[test]
fn a_claim_that_comes_to_nothing_leaves_no_gap() {
    let (mut exports, pool) = door_that_records_once();
    let mut users = Dialect::default();
    let first = grant(&mut exports, &mut users, 1, false);
    submit(&mut exports, 1, first.pass, write(&pool, 1)).unwrap();
    for who in [2, 3, 4] {
        claim(&mut exports, who, true).unwrap();
    }
    exports.end_session(2, AT);
    users.gone.push(2);
    assert_eq!(poll(&mut exports).len(), 1);
    settle(&mut exports, &mut users);
    assert_eq!(users.denied.iter().map(|(who, _)| *who).collect::<Vec<_>>(), [3]);
    let (who, granted) = *users.granted.last().unwrap();
    assert_eq!((who, granted.writer_generation), (4, first.writer_generation + 1));
    assert_eq!(exports.reports()[0].generation, first.writer_generation + 1);
}
