//! Rule 2: dead processes still write.

use thinwire_sim::export::Store;
use thinwire_sim::medium::{MediumConfig, MediumHandle};
use thinwire_sim::server::Crash;
use thinwire_sim::world::SECOND;
use thinwire_volume::Op;

use crate::scene::{Scene, at};

fn killed_with_a_write_on_its_way(seed: u64, ignores_lock: bool) -> (Scene, u64) {
    let config = MediumConfig { lands_late_ns: 6 * SECOND, ..MediumConfig::default() };
    let medium = MediumHandle::new(seed, [9; 16], config);
    let mut s = Scene::on(1, Store::File(medium.clone()), medium, |_| {}).with_client();
    s.world.servers[0].ignores_lock = ignores_lock;
    let token = s.submit(0, Op::Write, at(0, 8));
    let medium = s.medium.clone();
    s.until("the disk has it", move |_| medium.in_flight() == 1);
    s.restart(Crash::Kill);
    (s, token)
}

#[test]
fn rule_02_a_starting_target_waits_for_the_lock() {
    for seed in 0..10 {
        let (mut s, token) = killed_with_a_write_on_its_way(seed, false);
        s.outcome(0, token).result.unwrap();
        s.write(at(0, 8));
        s.pass(std::time::Duration::from_secs(7));
        s.read(at(0, 8));
        assert_eq!(s.world.coverage.lock_waits, 1);
        s.end();
    }
}

/// Without the lock the dead one's write lands over its successor's: the reason for the rule.
#[test]
fn rule_02_without_the_lock_the_dead_write_over_the_living() {
    let mut broken = 0;
    for seed in 0..10 {
        let (mut s, token) = killed_with_a_write_on_its_way(seed, true);
        s.outcome(0, token).result.unwrap();
        s.write(at(0, 8));
        s.pass(std::time::Duration::from_secs(7));
        let token = s.submit(0, Op::Read, at(0, 8));
        let answered = s.world.run_until("a read", SECOND, |w| w.clients[0].outstanding() == 0);
        broken += u32::from(answered.is_err());
        let _ = token;
    }
    assert!(broken >= 3, "{broken} of 10");
}

/// A take-over waits until the fenced writer's request has left the store.
#[test]
fn rule_02_a_take_over_waits_for_the_store() {
    let mut s = Scene::new().with_client();
    let b = s.client();
    s.medium.set_latency(SECOND, SECOND);
    s.submit(0, Op::Write, at(0, 8));
    let medium = s.medium.clone();
    s.until("the disk has it", move |_| medium.in_flight() == 1);
    s.medium.set_latency(20_000, 20_000);
    let before = s.world.now;
    s.world.clients[b].config.take_over = true;
    s.attach(b);
    assert!(s.world.now - before > SECOND / 2 && s.medium.in_flight() == 0);
    let token = s.submit(b, Op::Write, at(0, 8));
    s.outcome(b, token).result.unwrap();
    let token = s.submit(b, Op::Read, at(0, 8));
    s.outcome(b, token).result.unwrap();
    s.end();
}
