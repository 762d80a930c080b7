//! A disk that hangs at one of several rings.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use thinwire_volume::{Disk, DiskOp, DiskOpKind, Io, Op, testing};

use super::super::engine::Engine;
use super::super::open;
use super::super::real::RealDisk;
use super::super::slots::SystemCall;
use super::*;

/// Ends nothing before it is let.
struct Hanging {
    goes_on: Arc<AtomicBool>,
    started: Vec<(u32, i32)>,
}

impl Engine for Hanging {
    unsafe fn start(&mut self, slot: u32, request: SystemCall) {
        let SystemCall::Read { len, .. } = request else { panic!("{request:?}") };
        self.started.push((slot, len as i32));
    }

    fn enter(&mut self) {}

    fn reap(&mut self, ended: &mut Vec<(u32, i32)>) {
        if self.goes_on.load(Ordering::SeqCst) {
            ended.append(&mut self.started);
        }
    }

    fn wait(&mut self) {
        while !self.goes_on.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
    }

    fn fd(&self) -> RawFd {
        panic!("nobody waits for it");
    }
}

#[test]
fn a_disk_that_hangs_at_one_ring_keeps_the_lock_and_nothing_else() {
    let dir = std::env::temp_dir().join(format!("thinwire-hanging-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join("image");
    std::fs::write(&path, vec![5; 1 << 20]).unwrap();
    let wait_lock = Duration::ZERO;
    let options = DiskOptions { wait_lock, state_dir: dir.clone(), ..DiskOptions::default() };
    let is_busy = || {
        let opened = open(&path, &options, &mut |_| {});
        matches!(opened, Err(DiskOpenError::Busy { .. }))
    };
    let (goes_on, pool) = (Arc::new(AtomicBool::new(false)), Pool::new(1 << 20));
    let spread = SpreadDisk::open(&path, &options, &mut |_| {}).unwrap();
    let mut owner = spread.owner(&pool, &mut |_| {}).unwrap().volume;
    let engine = Hanging { goes_on: goes_on.clone(), started: Vec::new() };
    let mut hanging = RealDisk::new(spread.common.clone(), Role::Branch, engine).unwrap();
    drop(spread);
    let mut done = Vec::new();
    for token in 0..3 {
        let kind = DiskOpKind::Read(pool.get(4096));
        hanging.submit(DiskOp { token, offset: 8192 * token, len: 4096, kind });
        hanging.poll(&mut done);
    }
    let ended = [(Op::Read, 4096), (Op::Flush, 0)].map(|(op, len)| {
        testing::finish(&mut *owner, &mut std::thread::yield_now, Io::new(1, op, 0, len)).result
    });
    drop(owner);
    let was_busy = is_busy();
    // Before anything can fail: dropping it waits for that.
    goes_on.store(true, Ordering::SeqCst);
    drop(hanging);
    assert!(done.is_empty());
    assert_eq!(ended, [Ok(()), Ok(())]);
    assert!(was_busy, "what it has in the kernel may write yet");
    assert!(!is_busy());
    std::fs::remove_dir_all(&dir).unwrap();
}

/// What is offered goes up behind the size: whoever looks at the one, then at the other, sees no cut.
#[test]
fn a_growth_that_is_offered_during_a_look_is_no_cut() {
    let path = std::env::temp_dir().join(format!("thinwire-looks-{}", std::process::id()));
    std::fs::write(&path, [0; 512]).unwrap();
    let options = DiskOptions { state_dir: std::env::temp_dir(), ..DiskOptions::default() };
    let spread = SpreadDisk::open(&path, &options, &mut |_| {}).unwrap();
    let (common, has_grown) = (&spread.common, AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for blocks in 2..=20_000 {
                common.file.set_len(512 * blocks).unwrap();
                common.offer(512 * blocks);
            }
            has_grown.store(true, Ordering::SeqCst);
        });
        while !has_grown.load(Ordering::SeqCst) {
            assert!(!common.look().is_cut_news);
        }
    });
    assert!(common.look().bytes == Some(512 * 20_000) && !common.has_shrunk());
    std::fs::remove_file(&path).unwrap();
}
