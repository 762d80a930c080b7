//! Volumes that wait for other things than their I/Os.

use super::*;

#[test]
fn volumes_that_are_timed_are_told_the_time() {
    let puppets: Vec<_> = (0..3).map(|_| Puppet::new(1, Puppet::GEOMETRY)).collect();
    puppets[1].want_turn(AT + std::time::Duration::from_secs(3));
    puppets[2].want_turn(AT + std::time::Duration::from_secs(2));
    let mut exports = Exports::new(ExportsConfig::default(), 7, &Pool::new(0));
    puppets.iter().enumerate().for_each(|(at, puppet)| add_puppet(&mut exports, at, puppet));
    settle(&mut exports, &mut Dialect::default());
    exports.take_started();
    exports.refresh(AT);
    assert!(exports.deadline(AT) <= AT, "nobody was told it yet");
    exports.tell_time(AT);
    let told: Vec<_> = puppets.iter().map(Puppet::turned).collect();
    assert_eq!(told, [None, Some(AT), Some(AT)]);
    assert_eq!(exports.deadline(AT), AT + std::time::Duration::from_secs(2), "the first wish");
    // What is told the time is polled: it may have begun something.
    let polls = [1, 2].map(|at: usize| puppets[at].polls());
    exports.tell_time(AT);
    assert!(poll(&mut exports).is_empty());
    assert_eq!([1, 2].map(|at: usize| puppets[at].polls()), polls.map(|polls| polls + 1));
}

#[test]
fn an_export_that_has_gone_is_told_no_time() {
    let (mut exports, _) = puppets(1);
    let puppet = Puppet::new(1, Puppet::GEOMETRY);
    puppet.want_turn(AT);
    add_puppet(&mut exports, 1, &puppet);
    settle(&mut exports, &mut Dialect::default());
    exports.tell_time(AT);
    exports.take_started();
    assert!(exports.deadline(AT) <= AT);
    exports.leave(1);
    let mut users = Dialect::default();
    for round in 0.. {
        settle(&mut exports, &mut users);
        puppet.take().iter().for_each(|io| puppet.succeed(io));
        if exports.take_gone().is_some() {
            break;
        }
        assert!(round < 10, "it does not go");
    }
    exports.take_release();
    exports.take_started();
    exports.refresh(AT);
    exports.tell_time(AT + std::time::Duration::from_secs(1));
    assert_eq!(puppet.turned(), Some(AT));
    assert!(exports.deadline(AT) > AT);
}
