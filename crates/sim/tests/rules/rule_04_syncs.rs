//! Rule 4, below the target: what one failed sync puts in doubt.

use thinwire_modules::CacheCanary;
use thinwire_sim::client::{End, Top, Workload};
use thinwire_sim::export::Store;
use thinwire_sim::medium::{Device, MediumConfig, MediumHandle};
use thinwire_sim::server::Crash;
use thinwire_volume::Op;
use thinwire_wire::Status;

use crate::scene::{Scene, at, ms};

/// Flushes until that succeeds, then has the power fail: what was written must be there.
fn flush_and_look(mut s: Scene) {
    let flushed = (0..5).any(|_| s.flush().is_ok());
    assert!(flushed, "no flush succeeds");
    s.restart(Crash::Power);
    s.read(at(0, 32));
    s.end();
}

fn take_over_in_vain(s: &mut Scene) {
    let b = s.client();
    s.world.clients[b].config.take_over = true;
    s.world.start_client(b);
    assert_eq!(s.until_ended(b), End::Refused(Status::Io));
}

/// A's write is lost in the background. B's take-over syncs its record, which meets that error first,
/// and is refused; then A flushes.
#[test]
fn rule_04_a_refused_take_over_does_not_take_the_error_of_a_write_away() {
    let mut s = Scene::new().with_client();
    s.write(at(0, 32));
    s.medium.fail_writeback();
    take_over_in_vain(&mut s);
    flush_and_look(s);
}

/// The device could not flush its cache, and tells only whoever stored the record.
#[test]
fn rule_04_a_record_that_cannot_be_flushed_puts_the_content_in_doubt() {
    for seed in 0..20 {
        let mut s = Scene::seeded(seed).with_client();
        s.write(at(0, 32));
        s.medium.configure(|c| (c.record_failure, c.device_failure) = (1.0, 1.0));
        take_over_in_vain(&mut s);
        s.medium.configure(|c| c.record_failure = 0.0);
        flush_and_look(s);
    }
}

/// Two exports on one device: the flush of the second fails, and takes along what the first had
/// written, whose own flush succeeds.
#[test]
fn rule_04_a_flush_that_fails_puts_its_neighbours_in_doubt() {
    for seed in 0..20 {
        let (mut s, other, second) = with_neighbour(seed);
        s.write(at(0, 32));
        second.configure(|c| (c.flush_failure, c.device_failure) = (1.0, 1.0));
        let token = s.submit(other, Op::Flush, at(0, 0));
        assert!(s.outcome(other, token).result.is_err());
        second.configure(|c| c.flush_failure = 0.0);
        assert_eq!(s.flush(), Ok(()));
        assert_eq!(s.stats(0).replayed, 1, "what the device lost was sent again");
        s.restart(Crash::Power);
        s.read(at(0, 32));
        s.end();
    }
}

/// The neighbour's flush fails first and is heard of last: what ran beside it is not told before.
#[test]
fn rule_04_a_sync_beside_a_failing_one_is_told_behind_it() {
    for seed in 0..40 {
        let (mut s, other, second) = with_neighbour(seed);
        s.write(at(0, 32));
        second.configure(|c| (c.flush_failure, c.device_failure) = (1.0, 1.0));
        // It takes effect after 20 ms, and says so up to 20 ms later: A's flush comes in between.
        second.set_latency(20_000_000, 20_000_000);
        let token = s.submit(other, Op::Flush, at(0, 0));
        s.pass(ms(21));
        let flush = s.submit(0, Op::Flush, at(0, 0));
        let flushed = s.outcome(0, flush).result;
        assert!(s.outcome(other, token).result.is_err());
        second.configure(|c| c.flush_failure = 0.0);
        if flushed.is_ok() {
            s.restart(Crash::Power);
        }
        s.read(at(0, 32));
        s.end();
    }
}

/// The neighbour's flush fails, and takes along what the first export's writer had written, who is gone. Its target has
/// that in a cache; whether a reader is told it after that. `None` if nothing of it was lost.
fn reads_what_was_lost(seed: u64, canary: CacheCanary) -> Option<bool> {
    let (mut s, other, second) = with_neighbour(seed);
    s.world.exports[0].cache = Some(1 << 20);
    s.medium.configure(|c| c.is_cached = true);
    s.world.exports[0].cache_canary = canary;
    s.restart(Crash::Kill);
    let reader = s.client();
    s.world.clients[reader].config.read_only = true;
    s.attach(reader);
    s.write(at(0, 32));
    let read = |s: &mut Scene| {
        let token = s.submit(reader, Op::Read, at(0, 32));
        s.outcome(reader, token).data
    };
    let written = read(&mut s);
    assert_eq!(read(&mut s), written);
    s.world.crash_client(0);
    second.configure(|c| (c.flush_failure, c.device_failure) = (1.0, 1.0));
    let flush = s.submit(other, Op::Flush, at(0, 0));
    assert!(s.outcome(other, flush).result.is_err());
    s.pass(ms(1));
    let is_lost = s.medium.current()[..written.len()] != written[..];
    is_lost.then(|| read(&mut s) == written)
}

#[test]
fn rule_04_a_cache_hears_of_a_loss_next_door() {
    let mut lost = 0;
    for seed in 0..40 {
        let found = reads_what_was_lost(seed, CacheCanary::None);
        assert_ne!(found, Some(true), "seed {seed}");
        // It stays in one that does not hear of it.
        assert_eq!(reads_what_was_lost(seed, CacheCanary::LossesUnheard), found.map(|_| true));
        lost += u32::from(found.is_some());
    }
    assert!(lost >= 10, "only {lost} lost it");
}

/// Nothing fails, and nothing follows: whoever was woken for the end of the neighbour's flush rests.
#[test]
fn rule_04_a_sync_that_waited_for_another_leaves_nobody_awake() {
    for seed in 0..20 {
        let (mut s, other, second) = with_neighbour(seed);
        s.write(at(0, 32));
        s.world.lag_ns = 2_000;
        second.set_latency(20_000, 3_000_000);
        let slow = s.submit(other, Op::Flush, at(0, 0));
        assert_eq!(s.flush(), Ok(()));
        assert_eq!(s.outcome(other, slow).result, Ok(()));
        let turns = |s: &Scene| s.world.servers[0].turns();
        let before = turns(&s);
        s.pass(ms(1000));
        assert!(turns(&s) - before < 1000, "it turns without an end");
        s.end();
    }
}

/// The device has lost a sector, reads see it, and nobody has been told yet: its block is patched with
/// what was written to it, not with what is there.
#[test]
fn rule_04_a_block_is_not_patched_with_what_was_lost() {
    let mut patched_in_doubt = 0;
    for seed in 0..20 {
        let mut s = Scene::seeded(seed);
        s.world.exports[0].block_bytes = 4096;
        s.restart(Crash::Kill);
        let client = s.client();
        s.world.clients[client].top = Top::AnyRange;
        s.attach(client);
        s.write(at(0, 16));
        s.medium.configure(|c| (c.read_directly, c.flush_failure) = (true, 1.0));
        s.medium.configure(|c| c.failure_takes_ns = 100_000_000);
        let flush = s.submit(0, Op::Flush, at(0, 0));
        s.pass(ms(1));
        s.write(at(3, 1));
        s.run(Op::WriteZeroes, at(11, 2)).expect("zeroes");
        patched_in_doubt += u32::from(s.medium.losses().1 && s.medium.stats().sectors_lost > 0);
        s.medium.configure(|c| c.flush_failure = 0.0);
        // It is sent again by the initiator, if it fails at all.
        let _ = s.outcome(0, flush);
        assert!((0..5).any(|_| s.flush().is_ok()), "no flush succeeds");
        s.read(at(0, 16));
        s.end();
    }
    assert!(patched_in_doubt >= 10, "only {patched_in_doubt} were patched before anybody was told");
}

/// Client 0 on one export, and another on one that shares its device, whose medium is returned.
fn with_neighbour(seed: u64) -> (Scene, usize, MediumHandle) {
    let (device, config) = (Device::new(), MediumConfig::default());
    let [first, second] =
        [9, 10].map(|id| MediumHandle::on(device.clone(), seed + id, [id as u8; 16], config));
    let mut s = Scene::on(1, Store::File(first.clone()), first, |_| {});
    let neighbour = s.world.add_export(0, 1 << 20, 512, Store::File(second.clone()));
    s.world.exports[neighbour].may_fail = true;
    s.world.exports[neighbour].writers = 1;
    s.restart(Crash::Kill);
    let mut s = s.with_client();
    let links = s.links;
    let other = s.world.add_client(links, Default::default(), neighbour, Workload::NONE);
    s.world.clients[other].keeps_log = true;
    s.attach(other);
    (s, other, second)
}
