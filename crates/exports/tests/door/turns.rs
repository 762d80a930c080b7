//! What a turn asks of the volumes: of many, those that have something to say, and of each no more than that.

use super::*;

/// A disk that has more to do asks for the next turn itself.
#[test]
fn a_volume_is_polled_again_in_a_turn_only_for_what_its_completions_have_begun() {
    let (mut exports, puppets) = puppets(1);
    let reader = exports.open_read(1, 0);
    let ask = |exports: &mut Exports, op| {
        submit(exports, 1, reader.pass, Io::new(0, op, 0, if op == Op::Flush { 0 } else { 512 }))
            .unwrap();
    };
    let turn = |exports: &mut Exports| {
        let (before, mut ended) = (puppets[0].polls(), 0);
        exports.poll(|_, _, _, _| ended += 1);
        (puppets[0].polls() - before, ended)
    };
    ask(&mut exports, Op::Read);
    puppets[0].take_one();
    ask(&mut exports, Op::Read);
    puppets[0].fail(&puppets[0].take_one());
    assert_eq!(turn(&mut exports), (1, 1));
    ask(&mut exports, Op::Flush);
    ask(&mut exports, Op::Flush);
    puppets[0].succeed(&puppets[0].take_one());
    assert_eq!(turn(&mut exports), (2, 1), "the flush that waited has begun");
    puppets[0].succeed(&puppets[0].take_one());
    assert_eq!(turn(&mut exports), (1, 1));
}

/// Polls of one turn are bounded. What the last of them has begun would reach no disk, and wake nobody, until
/// somebody else has something to do.
#[test]
fn a_flush_that_the_last_poll_of_a_turn_begins_is_polled_for_at_once() {
    let (mut exports, puppets) = puppets(4);
    let mut running = Vec::new();
    for (export, puppet) in puppets.iter().enumerate() {
        let reader = exports.open_read(1, export);
        for _ in 0..2 {
            submit(&mut exports, 1, reader.pass, Io::new(0, Op::Flush, 0, 0)).unwrap();
        }
        running.push(puppet.take_one());
    }
    // Each volume's flush ends when the one before it is told, and begins the one that waits behind it.
    puppets[0].succeed(&running[0]);
    let mut told = 0;
    exports.poll(|_, _, _, _| {
        told += 1;
        if let Some(puppet) = puppets.get(told) {
            puppet.succeed(&running[told]);
        }
    });
    assert_eq!(told, puppets.len());
    let (last, polls) = (puppets[3].take_one(), puppets[3].polls());
    assert!(exports.take_started(), "the turn goes on");
    puppets[3].succeed(&last);
    exports.poll(|_, _, _, _| told += 1);
    assert_eq!((told, puppets[3].polls() - polls), (puppets.len() + 1, 1));
    assert!(!exports.take_started());
}

/// A look at a file is a system call: a thousand of them in one turn would keep everybody else waiting.
#[test]
fn many_volumes_look_a_few_in_each_turn_and_each_once_a_second() {
    const COUNT: usize = 1000;
    let (mut exports, mut puppets) = puppets(COUNT);
    let looks = |puppets: &[Puppet]| puppets.iter().map(Puppet::refreshes).sum::<usize>();
    let polls = |puppets: &[Puppet]| puppets.iter().map(Puppet::polls).sum::<usize>();
    let second = std::time::Duration::from_secs(1);
    let mut now = AT;
    for round in 1..=3 {
        let end = AT + second * round;
        while now < end {
            let before = (looks(&puppets), polls(&puppets));
            for _ in 0..3 {
                exports.refresh(now);
                assert!(poll(&mut exports).is_empty());
            }
            let looked = looks(&puppets) - before.0;
            assert!((1..=64).contains(&looked), "{looked} in one turn");
            assert_eq!(polls(&puppets) - before.1, looked, "who has looked is polled, nobody else");
            let next = exports.deadline(now);
            assert!(next > now, "others have their turn");
            now = next;
        }
        let each = puppets.iter().map(Puppet::refreshes);
        assert!(
            each.clone().all(|looks| looks == round as usize),
            "{:?}",
            each.collect::<Vec<_>>()
        );
    }
    // One that comes meanwhile is looked at, too.
    exports.refresh(now);
    puppets.push(Puppet::new(1, Puppet::GEOMETRY));
    add_puppet(&mut exports, COUNT, &puppets[COUNT]);
    settle(&mut exports, &mut Dialect::default());
    exports.take_started();
    let end = now + second / 2;
    while now < end {
        exports.refresh(now);
        assert!(poll(&mut exports).is_empty());
        now = exports.deadline(now);
    }
    assert_eq!(looks(&puppets), 4 * COUNT + 1);
}

/// Of a thousand exports one is used, and the others are not even asked whether they have something to do, unless
/// that one has lost or found something: that may be theirs, too.
#[test]
fn whose_exports_rest_are_not_asked_whatever_another_one_does() {
    const BUSY: usize = 700;
    let (mut exports, puppets) = puppets(1000);
    let mut users = Dialect::default();
    for (export, session) in (0..puppets.len()).zip(1000..) {
        exports.open_read(session, export);
    }
    let asked = || {
        let others = puppets.iter().enumerate().filter(|(export, _)| *export != BUSY);
        others.map(|(_, puppet)| puppet.questions() + puppet.polls()).sum::<usize>()
    };
    let before = asked();
    let claim_as = |exports: &mut Exports, users: &mut Dialect, who| {
        let user = user(who);
        let claim = WriteClaim {
            user: &user,
            transaction: 1,
            export: BUSY,
            resumes: None,
            takes_over: true,
        };
        exports.claim(AT, claim).unwrap();
        settle(exports, users);
    };
    claim_as(&mut exports, &mut users, 1);
    let first = users.granted[0].1;
    submit(&mut exports, 1, first.pass, write(&Pool::new(0), 1)).unwrap();
    submit(&mut exports, 1, first.pass, Io::new(0, Op::Flush, 0, 0)).unwrap();
    submit(&mut exports, 1, first.pass, Io::new(0, Op::Flush, 0, 0)).unwrap();
    assert!(poll(&mut exports).is_empty() && exports.is_at_work());
    puppets[BUSY].take().iter().for_each(|io| puppets[BUSY].succeed(io));
    assert_eq!(poll(&mut exports).len(), 2);
    assert!(exports.is_at_work(), "the flush that waited has begun");
    puppets[BUSY].succeed(&puppets[BUSY].take_one());
    assert_eq!((poll(&mut exports).len(), exports.is_at_work()), (1, false));
    claim_as(&mut exports, &mut users, 2);
    assert_eq!(users.fenced, [(1, first.pass)]);
    exports.deadline(AT);
    exports.end_session(2, AT);
    assert_eq!(asked() - before, 0, "nobody else was asked anything");

    // What it has lost others may have lost, too: they are asked before it is answered, and not again.
    let verifier = exports.open_read(3, 0).verifier;
    let reader = exports.open_read(3, BUSY);
    submit(&mut exports, 3, reader.pass, Io::new(0, Op::Read, 0, 512)).unwrap();
    puppets[BUSY].fail(&puppets[BUSY].take_one());
    puppets.iter().for_each(|puppet| puppet.tell(VolumeEvent::Lost));
    assert_ne!(poll(&mut exports)[0].1, verifier);
    let losses: u64 = exports.reports().iter().map(|report| report.losses).sum();
    assert_eq!(losses, 1000, "all have been asked");
    // What was told is taken in.
    poll(&mut exports);
    let before = asked();
    settle(&mut exports, &mut users);
    poll(&mut exports);
    assert_eq!((asked() - before, exports.is_at_work()), (0, false));
}
