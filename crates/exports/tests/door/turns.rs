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
