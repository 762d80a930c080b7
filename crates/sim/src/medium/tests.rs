//! What is durable, lost, torn and late, one operation at a time.

use thinwire_buffer::{Pool, SegList};
use thinwire_volume::{Disk, DiskOp, DiskOpKind, WriterRecord};

use super::effects::EIO;
use super::*;

fn write(disk: &mut SimDisk, sector: u64, byte: u8, fua: bool) {
    let mut buf = Pool::new(0).get(2 * SECTOR_BYTES);
    buf.fill(byte);
    let data = SegList::of(buf.freeze());
    let (offset, len) = (sector * SECTOR_BYTES as u64, 2 * SECTOR_BYTES as u64);
    let kind = DiskOpKind::Write { data, fua };
    disk.submit(DiskOp { token: 1, offset, len, kind });
}

fn flush(disk: &mut SimDisk) {
    disk.submit(DiskOp { token: 2, offset: 0, len: 0, kind: DiskOpKind::Flush });
}

fn settle(medium: &MediumHandle) {
    while let Some(at) = medium.next_event() {
        medium.advance(at);
    }
}

fn run(medium: &MediumHandle, disk: &mut SimDisk, kind: DiskOpKind) -> Result<(), i32> {
    disk.submit(DiskOp { token: 3, offset: 0, len: 0, kind });
    settle(medium);
    let mut done = Vec::new();
    disk.poll(&mut done);
    done[0].result
}

fn firsts(image: &[u8]) -> Vec<u8> {
    image.chunks(SECTOR_BYTES).take(4).map(|s| s[0]).collect()
}

#[test]
fn only_flushed_effects_are_durable() {
    let medium = MediumHandle::new(1, [1; 16], MediumConfig::default());
    let mut disk = medium.open();
    write(&mut disk, 0, 1, false);
    settle(&medium);
    assert_eq!(
        (firsts(&medium.durable()), firsts(&medium.current())),
        (vec![0; 4], vec![1, 1, 0, 0])
    );
    flush(&mut disk);
    write(&mut disk, 1, 2, false);
    settle(&medium);
    // The write came after the flush was submitted.
    assert_eq!(firsts(&medium.durable()), [1, 1, 0, 0]);
    write(&mut disk, 2, 3, true);
    settle(&medium);
    assert_eq!(firsts(&medium.durable()), [1, 1, 3, 3]);
    flush(&mut disk);
    settle(&medium);
    assert_eq!(firsts(&medium.durable()), [1, 2, 3, 3], "an older effect under a FUA one");
}

#[test]
fn a_power_failure_keeps_loses_and_tears() {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..100 {
        let medium = MediumHandle::new(seed, [1; 16], MediumConfig::default());
        let mut disk = medium.open();
        write(&mut disk, 0, 1, false);
        settle(&medium);
        write(&mut disk, 0, 2, false);
        medium.power_failure();
        assert_eq!(medium.durable(), medium.current());
        seen.insert(firsts(&medium.durable())[..2].to_vec());
    }
    assert_eq!(seen.len(), 9, "{seen:?}");
}

#[test]
fn a_failed_flush_loses_what_it_was_to_save_and_the_next_succeeds() {
    let medium = MediumHandle::new(1, [1; 16], MediumConfig::default());
    let mut disk = medium.open();
    let mut lost = 0;
    for round in 1..=20 {
        write(&mut disk, 0, round, false);
        settle(&medium);
        medium.set_flush_failure(1.0);
        flush(&mut disk);
        settle(&medium);
        medium.set_flush_failure(0.0);
        flush(&mut disk);
        settle(&medium);
        lost += u32::from(firsts(&medium.durable())[0] != round);
        assert_eq!(medium.durable(), medium.current());
    }
    assert!(lost > 5, "{lost}");
    let mut done = vec![];
    disk.poll(&mut done);
    assert_eq!(done.iter().filter(|d| d.result == Err(EIO)).count(), done.len() / 3);
}

#[test]
fn a_killed_process_still_writes_and_holds_the_lock() {
    let config = MediumConfig { lands_late_ns: 1_000_000_000, ..MediumConfig::default() };
    let medium = MediumHandle::new(1, [1; 16], config);
    let mut disk = medium.open();
    write(&mut disk, 0, 1, false);
    medium.kill();
    let until = medium.locked_until();
    assert!(until > 0);
    medium.advance(until);
    assert_eq!((firsts(&medium.current())[0], medium.stats().landed_late), (1, 1));
    medium.open();
}

/// What a device has lost shows to the thread that can hear of it at once, and to another when the
/// first has heard; never to one that could answer reads without knowing.
#[test]
fn a_lost_cache_shows_to_a_thread_that_can_know_of_it() {
    for (thread, shown_at_once) in [(0, true), (1, false)] {
        let device = Device::new();
        let config = MediumConfig { device_failure: 1.0, ..MediumConfig::default() };
        let [first, second] = [1, 2].map(|n| MediumHandle::on(device.clone(), 6, [n; 16], config));
        second.set_thread(thread);
        let [mut a, mut b] = [&first, &second].map(MediumHandle::open);
        write(&mut b, 0, 7, false);
        settle(&second);
        first.set_flush_failure(1.0);
        flush(&mut a);
        settle(&first);
        let shown = |b: &mut SimDisk| {
            // Anything that happens there looks at the device first.
            flush(b);
            settle(&second);
            firsts(&second.current())[0] != 7
        };
        assert_eq!(shown(&mut b), shown_at_once, "thread {thread}");
        a.poll(&mut Vec::new());
        assert!(shown(&mut b), "thread {thread} knows of it");
    }
}

/// It fails once, is stored at last, and its holder is told no when it asks for the next: nobody was
/// told no for the one that is stored.
#[test]
fn a_record_that_is_stored_at_last_was_denied_to_nobody() {
    for stored_at_last in [false, true] {
        let medium = MediumHandle::new(1, [1; 16], MediumConfig::default());
        let mut disk = medium.open();
        let (old, new) = (WriterRecord::new(1, [1; 16], "a"), WriterRecord::new(2, [2; 16], "b"));
        let last = if stored_at_last { RecordFate::Stored } else { RecordFate::Failed(true) };
        medium.script_records([RecordFate::Failed(false), RecordFate::Stored, last]);
        for (record, is_stored) in [(new, false), (old, true), (new, stored_at_last)] {
            let stored = run(&medium, &mut disk, DiskOpKind::StoreWriter(Box::new(record)));
            assert_eq!(stored.is_ok(), is_stored);
        }
        medium.deny(&[2; 16]);
        run(&medium, &mut disk, DiskOpKind::LoadWriter(Box::default()))
            .expect("nothing fails any more");
        assert_eq!(medium.breach().is_none(), stored_at_last);
    }
}

/// A process is killed before it hears of a failed flush. The next begins without it: what it writes
/// shows, until something fails again.
#[test]
fn a_failure_that_a_dead_process_never_heard_of_is_over() {
    let device = Device::new();
    let config = MediumConfig { device_failure: 1.0, ..MediumConfig::default() };
    let [first, second] = [1, 2].map(|n| MediumHandle::on(device.clone(), 6, [n; 16], config));
    second.set_thread(1);
    let mut a = first.open();
    first.set_flush_failure(1.0);
    flush(&mut a);
    settle(&first);
    first.set_flush_failure(0.0);
    first.kill();
    second.kill();
    let [mut a, mut b] = [&first, &second].map(MediumHandle::open);
    write(&mut b, 0, 7, false);
    settle(&second);
    // Reads go on seeing it, though it will never be durable.
    second.fail_writeback();
    let before = second.upheavals();
    a.poll(&mut Vec::new());
    write(&mut b, 2, 8, false);
    settle(&second);
    assert_eq!((firsts(&second.current()), second.upheavals()), (vec![7, 7, 8, 8], before));
}

fn flush_of(disk: &mut SimDisk, token: u64) {
    disk.submit(DiskOp { token, offset: 0, len: 0, kind: DiskOpKind::Flush });
}

fn tokens(disk: &mut SimDisk) -> Vec<u64> {
    let mut done = Vec::new();
    disk.poll(&mut done);
    done.iter().map(|one| one.token).collect()
}

#[test]
fn rings_of_one_file_hear_of_their_own_only_and_die_together() {
    let medium = MediumHandle::new(1, [1; 16], MediumConfig::default());
    let mut rings = medium.open_rings(2, 0);
    write(&mut rings[1], 0, 1, false);
    settle(&medium);
    assert_eq!([0, 1].map(|ring| medium.is_ring_ready(ring)), [false, true]);
    assert_eq!(tokens(&mut rings[0]), [0; 0]);
    assert_eq!(tokens(&mut rings[1]), [1]);
    flush(&mut rings[0]);
    settle(&medium);
    assert_eq!(tokens(&mut rings[0]), [2]);
    assert_eq!(firsts(&medium.durable()), [1, 1, 0, 0], "a sync is one of the whole file");
    // What any of them has on its way is lost, or lands late.
    write(&mut rings[0], 0, 2, false);
    write(&mut rings[1], 2, 3, false);
    medium.kill();
    assert!(medium.locked_until() > 0 && medium.in_flight() == 2);
    settle(&medium);
    assert_eq!(firsts(&medium.current()), [2, 2, 3, 3]);
    assert_eq!(rings.iter_mut().map(tokens).collect::<Vec<_>>(), [[0; 0]; 2]);
    // The next process has as many as it likes.
    assert_eq!(medium.open_rings(3, 0).len(), 3);
    medium.power_failure();
    assert!(!medium.is_ready());
}

#[test]
fn a_failed_sync_of_one_ring_loses_what_another_wrote_and_shows_when_it_is_heard() {
    let config = MediumConfig { flush_failure: 1.0, ..MediumConfig::default() };
    for seed in 0..20 {
        let medium = MediumHandle::new(seed, [1; 16], config);
        let mut rings = medium.open_rings(2, 0);
        write(&mut rings[1], 0, 1, false);
        settle(&medium);
        flush(&mut rings[0]);
        settle(&medium);
        assert_eq!(tokens(&mut rings[1]), [1]);
        assert_eq!(firsts(&medium.current()), [1, 1, 0, 0], "nobody has heard of it");
        assert_eq!(tokens(&mut rings[0]), [2]);
        assert_eq!(medium.current(), medium.durable());
    }
}

#[test]
fn two_syncs_of_one_file_together_are_a_breach() {
    let medium = MediumHandle::new(1, [1; 16], MediumConfig::default());
    let mut rings = medium.open_rings(2, 0);
    flush_of(&mut rings[0], 1);
    settle(&medium);
    flush_of(&mut rings[1], 2);
    assert_eq!(medium.breach(), None, "one after the other");
    write(&mut rings[0], 0, 1, false);
    assert_eq!(medium.breach(), None, "a write beside it");
    write(&mut rings[0], 4, 1, true);
    assert!(medium.breach().is_some_and(|text| text.contains("another of the same open file")));
}
