//! A writer with several sessions, its members, at an owner and its branch.

use std::time::Duration;

use thinwire_exports::{
    Denial, DoorCanary, ExportsConfig, Granted, InitiatorRun, NoEntry, User, WriteClaim,
};

use super::pair::{AT, BRANCH, OWNER, Pair, session, write};

/// A member of the run 1 of user 1, in its session of that number at a shard.
fn member(shard: usize, member: u8, number: u64) -> User {
    let run = InitiatorRun { initiator: [1; 16], instance: 1 };
    let session = (shard as u64) << 56 | number << 16 | u64::from(member);
    User { session, number, run, member, is_leased: true, name: "user 1".into() }
}

fn ask(pair: &mut Pair, shard: usize, user: &User, resumes: Option<u64>) -> Result<(), Denial> {
    let claim = WriteClaim { user, transaction: 1, export: 0, resumes, takes_over: false };
    let asked = pair.doors[shard].claim(pair.now, claim).map_err(|denied| denied.why);
    pair.settle();
    asked
}

fn join(pair: &mut Pair, shard: usize, user: &User, resumes: Option<u64>) -> Granted {
    ask(pair, shard, user, resumes).unwrap();
    let (to, granted) = *pair.told[shard].granted.last().expect("granted");
    assert_eq!(to, user.session);
    granted
}

/// Member 0 at the owner and member 1 at the branch, and their passes.
fn two(canary: DoorCanary) -> (Pair, [(User, Granted); 2]) {
    let mut pair = Pair::planted(canary);
    let [first, second] = [member(OWNER, 0, 10), member(BRANCH, 1, 11)];
    let granted = join(&mut pair, OWNER, &first, None);
    let joined = join(&mut pair, BRANCH, &second, Some(granted.writer_generation));
    (pair, [(first, granted), (second, joined)])
}

fn entry(pair: &Pair, shard: usize, user: &User, granted: &Granted) -> Option<NoEntry> {
    pair.doors[shard].admit(user.session, granted.pass).err()
}

/// They write under one generation, and who comes back takes the place of its own former self alone, behind
/// what that has in the volume. The fault that closes the passes of the others must show here.
#[test]
fn members_write_side_by_side() {
    for canary in [DoorCanary::None, DoorCanary::MemberFencesAll] {
        let is_good = canary == DoorCanary::None;
        let (mut pair, [(first, granted), (second, joined)]) = two(canary);
        assert_eq!(joined.writer_generation, granted.writer_generation);
        assert_eq!(entry(&pair, OWNER, &first, &granted).is_none(), is_good);
        if !is_good {
            continue;
        }
        assert!(entry(&pair, BRANCH, &second, &joined).is_none());

        let permit = pair.doors[BRANCH].admit(second.session, joined.pass).unwrap();
        let ticket = thinwire_exports::IoTicket { session: second.session, place: 0, number: 1 };
        pair.doors[BRANCH].submit(permit, write(false), ticket, |_| {}).unwrap();
        let again = member(BRANCH, 1, 12);
        pair.doors[BRANCH].end_session(second.session, AT);
        ask(&mut pair, BRANCH, &again, Some(granted.writer_generation)).unwrap();
        assert_eq!(pair.told[BRANCH].granted.len(), 1, "its former I/O is in the volume");
        pair.end(BRANCH, true);
        pair.settle();
        let (to, back) = *pair.told[BRANCH].granted.last().unwrap();
        assert_eq!((to, back.writer_generation), (again.session, granted.writer_generation));
        assert!(entry(&pair, OWNER, &first, &granted).is_none());
        assert!(entry(&pair, BRANCH, &again, &back).is_none());

        // So does the first: its present session, if it comes back in another, and no other's.
        let back_too =
            join(&mut pair, OWNER, &member(OWNER, 0, 13), Some(granted.writer_generation));
        assert!(entry(&pair, BRANCH, &again, &back).is_none());
        assert_eq!(entry(&pair, OWNER, &first, &granted), Some(NoEntry::Fenced));
        assert_eq!(back_too.writer_generation, granted.writer_generation);
        // What comes late of a session that a member has left does not take the place of its present one.
        ask(&mut pair, BRANCH, &second, Some(granted.writer_generation)).unwrap();
        let (to, denied) = pair.told[BRANCH].denied.last().unwrap();
        assert_eq!((*to, denied.why), (second.session, Denial::Fenced));
        assert!(entry(&pair, BRANCH, &again, &back).is_none());
    }
}

/// It raises no generation, takes nothing over, and is nobody without the first.
#[test]
fn who_joins_finds_its_run_in_possession() {
    let mut pair = Pair::new();
    let joins = |number| member(OWNER, 1, number);
    assert_eq!(ask(&mut pair, OWNER, &joins(1), Some(7)), Err(Denial::Busy), "nobody has it");
    assert_eq!(ask(&mut pair, OWNER, &joins(1), Some(8)), Err(Denial::OtherContent));
    assert_eq!(ask(&mut pair, OWNER, &joins(1), None), Err(Denial::Fenced));
    let generation = join(&mut pair, OWNER, &member(OWNER, 0, 2), None).writer_generation;
    let run = InitiatorRun { initiator: [1; 16], instance: 2 };
    let stranger = User { run, ..joins(3) };
    assert_eq!(ask(&mut pair, OWNER, &stranger, Some(generation)), Err(Denial::Busy));
    let run = InitiatorRun { initiator: [2; 16], instance: 1 };
    let stranger = User { run, ..joins(3) };
    assert_eq!(ask(&mut pair, OWNER, &stranger, Some(generation)), Err(Denial::Fenced));
    assert_eq!(pair.doors[OWNER].reports()[0].generation, generation);
    pair.grant(BRANCH, 2);
    assert_eq!(ask(&mut pair, OWNER, &joins(4), Some(generation)), Err(Denial::Fenced));
    let user = joins(5);
    let claim =
        WriteClaim { user: &user, transaction: 1, export: 0, resumes: None, takes_over: true };
    assert_eq!(pair.doors[OWNER].claim(AT, claim).unwrap_err().why, Denial::Fenced);
    assert_eq!(pair.doors[OWNER].reports()[0].generation, generation + 1);
}

/// Whoever takes over does so from all members, on whatever shard they are. The fault that fences the first
/// alone must show here.
#[test]
fn all_members_are_fenced() {
    for canary in [DoorCanary::None, DoorCanary::FenceOfFirstMember] {
        let (mut pair, [(first, granted), (second, joined)]) = two(canary);
        let user =
            User { run: InitiatorRun { initiator: [2; 16], instance: 1 }, ..member(OWNER, 0, 20) };
        let claim =
            WriteClaim { user: &user, transaction: 1, export: 0, resumes: None, takes_over: true };
        pair.doors[OWNER].claim(AT, claim).unwrap();
        pair.settle();
        assert_eq!(entry(&pair, OWNER, &first, &granted), Some(NoEntry::Fenced));
        let is_fenced = entry(&pair, BRANCH, &second, &joined) == Some(NoEntry::Fenced);
        assert_eq!(is_fenced, canary == DoorCanary::None);
        if is_fenced {
            assert_eq!(pair.told[OWNER].fenced, [first.session]);
            assert_eq!(pair.told[BRANCH].fenced, [second.session]);
        }
    }
}

/// The export is free when the last member has ended in order, whichever that is.
#[test]
fn the_last_member_to_detach_sets_the_export_free() {
    for first_goes_last in [true, false] {
        let (mut pair, [(first, granted), (second, joined)]) = two(DoorCanary::None);
        let mut order = [(BRANCH, second.session, joined), (OWNER, first.session, granted)];
        if !first_goes_last {
            order.reverse();
        }
        for (at, (shard, session, granted)) in order.into_iter().enumerate() {
            let is_held = pair.doors[OWNER].reports()[0].writer.is_some();
            assert!(is_held && !pair.doors[shard].close(session, granted.pass, 9));
            pair.settle();
            assert_eq!(pair.told[shard].closed, [session]);
            let writer = pair.doors[OWNER].reports().remove(0).writer;
            assert_eq!(writer.map(|writer| writer.attached), (at == 0).then_some(true));
        }
        let late = member(BRANCH, 1, 30);
        ask(&mut pair, BRANCH, &late, Some(granted.writer_generation)).unwrap();
        assert_eq!(pair.told[BRANCH].denied.last().unwrap().1.why, Denial::Busy);
        pair.claim(OWNER, 2, 1, false).unwrap();
        pair.settle();
        assert_eq!(pair.told[OWNER].granted.last().unwrap().0, session(OWNER, 2, 1));
    }
}

/// One that has gone without a word keeps the export until the lease ends, though the others have detached.
#[test]
fn a_writer_lives_as_long_as_one_of_its_members() {
    let (mut pair, [(first, granted), (second, _)]) = two(DoorCanary::None);
    let lease = ExportsConfig::default().lease;
    pair.doors[OWNER].end_session(first.session, AT);
    for second_of in 1..=40 {
        pair.now = AT + Duration::from_secs(second_of);
        pair.doors[BRANCH].heard(second.session, pair.now);
        pair.settle();
    }
    assert_eq!(pair.claim(OWNER, 2, 1, false).unwrap_err().why, Denial::Busy);
    // The first comes back and ends in order; the other has ended without a word.
    let back = member(OWNER, 0, 40);
    let granted = join(&mut pair, OWNER, &back, Some(granted.writer_generation));
    pair.doors[BRANCH].end_session(second.session, pair.now);
    pair.doors[OWNER].close(back.session, granted.pass, 9);
    pair.settle();
    assert_eq!(pair.told[OWNER].closed, [back.session]);
    let writer = pair.doors[OWNER].reports().remove(0).writer.unwrap();
    assert!(!writer.attached && writer.lease_end == Some(pair.now + lease));
    assert_eq!(pair.claim(OWNER, 2, 1, false).unwrap_err().why, Denial::Busy);
    pair.now = pair.now + lease;
    pair.claim(OWNER, 2, 1, false).unwrap();
    pair.settle();
    assert_eq!(pair.told[OWNER].granted.last().unwrap().0, session(OWNER, 2, 1));
}

/// A branch closes a pass that its session has replaced by the time that this is heard.
#[test]
fn what_a_session_closed_is_not_what_it_has_resumed() {
    let mut pair = Pair::new();
    let first = pair.grant(BRANCH, 1);
    let who = session(BRANCH, 1, 1);
    let run = InitiatorRun { initiator: [1; 16], instance: 1 };
    let (number, name) = (1 << 8 | 1, "user 1".into());
    let user = User { session: who, number, run, member: 0, is_leased: true, name };
    let resumes = Some(first.writer_generation);
    let claim = WriteClaim { user: &user, transaction: 2, export: 0, resumes, takes_over: false };
    pair.doors[BRANCH].claim(AT, claim).unwrap();
    pair.turn(BRANCH);
    pair.deliver(BRANCH);
    pair.deliver(OWNER);
    // The branch is drained, and the grant on its way when the pass is closed.
    pair.deliver(BRANCH);
    assert!(!pair.doors[BRANCH].close(who, first.pass, 9));
    pair.settle();
    assert_eq!(pair.told[BRANCH].closed, [who]);
    let (_, back) = *pair.told[BRANCH].granted.last().unwrap();
    assert!(pair.doors[BRANCH].admit(who, back.pass).is_ok());
    let writer = pair.doors[OWNER].reports().remove(0).writer.expect("it is back");
    assert!(writer.attached);
    assert_eq!(pair.claim(OWNER, 2, 1, false).unwrap_err().why, Denial::Busy);
}

/// A holder that was granted the export at the owner has its session elsewhere by now.
#[test]
fn a_twin_of_a_holder_is_found_out_wherever_that_is() {
    for lives in [true, false] {
        let mut pair = Pair::new();
        pair.grant(OWNER, 1);
        let run = InitiatorRun { initiator: [1; 16], instance: 1 };
        pair.told[BRANCH].runs.push((run, lives));
        pair.claim(OWNER, 1, 2, false).unwrap();
        pair.settle();
        pair.now = AT + Duration::from_millis(501);
        pair.settle();
        assert_eq!(pair.told[OWNER].denied.len(), usize::from(lives));
        assert_eq!(pair.told[OWNER].granted.len(), 1 + usize::from(!lives));
    }
}
