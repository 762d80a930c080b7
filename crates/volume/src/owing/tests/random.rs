//! A disk that fails syncs and loses at each what was not durable, as a kernel and a device do; users of one
//! file store on it; and a checker that knows what was lost, and what of that was told.

use std::cell::RefCell;
use std::rc::Rc;

use thinwire_buffer::{Pool, SegList};

use super::super::{MODULE, Owing, OwingCanary};
use crate::stores::FileStore;
use crate::testing::SplitMix64;
use crate::{
    Disk, DiskDone, DiskInfo, DiskOp, DiskOpKind, Identity, Io, IoFlags, Op, SyncScope, Token,
    Volume,
};

const BLOCK: u64 = 512;
const BLOCKS: usize = 12;
/// Each writes blocks of its own, one I/O at a time.
const USERS: usize = 3;
const EIO: i32 = 5;

/// By block, the number of the write that it holds: each is larger than those before.
#[derive(Default)]
struct Platter {
    cached: [u64; BLOCKS],
    durable: [u64; BLOCKS],
    /// What was lost of each last, and when.
    lost: [(u64, u64); BLOCKS],
    moment: u64,
}

impl Platter {
    /// A sync has failed: some of what is not durable is gone.
    fn lose(&mut self, rng: &mut SplitMix64) {
        self.moment += 1;
        for block in 0..BLOCKS {
            if self.cached[block] != self.durable[block] && rng.one_in(2) {
                self.lost[block] = (self.cached[block], self.moment);
                self.cached[block] = self.durable[block];
            }
        }
    }
}

struct Fickle {
    platter: Rc<RefCell<Platter>>,
    queue: Vec<DiskOp>,
    scope: SyncScope,
    rng: SplitMix64,
}

impl Fickle {
    fn run(&mut self, op: &DiskOp) -> Result<(), i32> {
        let platter = &mut *self.platter.borrow_mut();
        let block = (op.offset / BLOCK) as usize;
        let is_sync = matches!(op.kind, DiskOpKind::Flush | DiskOpKind::Write { fua: true, .. });
        if let DiskOpKind::Write { data, .. } = &op.kind {
            let bytes = data.to_vec();
            platter.cached[block] = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        }
        if is_sync && self.rng.one_in(6) {
            platter.lose(&mut self.rng);
            return Err(EIO);
        }
        match op.kind {
            DiskOpKind::Flush => platter.durable = platter.cached,
            _ if is_sync => platter.durable[block] = platter.cached[block],
            _ => {}
        }
        Ok(())
    }
}

impl Disk for Fickle {
    fn info(&self) -> DiskInfo {
        DiskInfo {
            bytes: BLOCKS as u64 * BLOCK,
            align_bytes: 1,
            identity: Identity::default(),
            read_only: false,
            punch_hole: false,
            zero_range: false,
        }
    }

    fn submit(&mut self, op: DiskOp) {
        self.queue.push(op);
    }

    fn poll(&mut self, done: &mut Vec<DiskDone>) {
        for _ in 0..self.rng.below(self.queue.len() as u64 + 1) {
            let at = self.rng.below(self.queue.len() as u64) as usize;
            let op = self.queue.swap_remove(at);
            let result = self.run(&op);
            done.push(DiskDone { token: op.token, result, kind: op.kind });
        }
    }

    fn refresh(&mut self, _: u32) -> u64 {
        self.info().bytes
    }

    fn wake_soon(&mut self) {}

    fn sync_scope(&self) -> SyncScope {
        self.scope.clone()
    }
}

/// What a user waits for.
enum Asked {
    /// This block, with this number.
    Write(usize, u64),
    /// When, and what it has to cover.
    Flush(u64, [u64; BLOCKS]),
}

/// Whether a flush was acknowledged although what it should cover is gone, and nobody was told.
fn finds_a_lie(seed: u64, canary: OwingCanary) -> bool {
    let platter = Rc::new(RefCell::new(Platter::default()));
    let mut rng = SplitMix64::new(seed);
    let (queue, scope) = (Vec::new(), SyncScope::alone());
    let disk_rng = SplitMix64::new(rng.next());
    let disk = Fickle { platter: platter.clone(), queue, scope: scope.clone(), rng: disk_rng };
    let pool = Pool::new(1 << 20);
    let store = FileStore::new(disk, BLOCK as u32, &pool).unwrap();
    let mut owing = Owing::new(store, false).with_canary(canary);
    let mut users: [Option<Asked>; USERS] = [const { None }; USERS];
    let mut acknowledged = [0; BLOCKS];
    // What somebody was told of, by block.
    let mut told = [0; BLOCKS];
    let (mut number, mut done) = (0, Vec::new());
    for _ in 0..400 {
        let user = rng.below(USERS as u64) as usize;
        if users[user].is_none() {
            let token = user as Token;
            if rng.one_in(3) {
                users[user] = Some(Asked::Flush(platter.borrow().moment, acknowledged));
                owing.submit(Io::new(token, Op::Flush, 0, 0));
            } else {
                number += 1;
                let block = user + USERS * rng.below((BLOCKS / USERS) as u64) as usize;
                users[user] = Some(Asked::Write(block, number));
                let flags = IoFlags { fua: rng.one_in(6), ..IoFlags::default() };
                let mut bytes = [0; BLOCK as usize];
                bytes[..8].copy_from_slice(&number.to_le_bytes());
                let data = SegList::of(pool.copy_of(&bytes).freeze());
                let io = Io::new(token, Op::Write, block as u64 * BLOCK, BLOCK);
                owing.submit(Io { data, flags, ..io });
            }
        }
        if rng.one_in(40) {
            // Of another volume on the same device.
            let mark = scope.begin();
            platter.borrow_mut().lose(&mut rng);
            scope.end(mark, true);
        }
        owing.poll(&mut done);
        for one in done.drain(..) {
            match users[one.token as usize].take().expect("it waits") {
                Asked::Write(block, number) if one.result.is_ok() => acknowledged[block] = number,
                Asked::Write(..) => {}
                Asked::Flush(begun, covers) => {
                    let platter = platter.borrow();
                    if let Err(error) = one.result {
                        if error.module == MODULE {
                            told = platter.lost.map(|(number, _)| number);
                        }
                        continue;
                    }
                    let is_lie = |block: usize| {
                        let (lost, when) = platter.lost[block];
                        // Lost while the flush ran it is no excuse that another was told.
                        let is_excused = covers[block] <= told[block] && when <= begun;
                        platter.durable[block] < covers[block]
                            && lost >= covers[block]
                            && !is_excused
                    };
                    if (0..BLOCKS).any(is_lie) {
                        return true;
                    }
                }
            }
        }
    }
    false
}

const SEEDS: u64 = 500;

#[test]
fn no_flush_is_acknowledged_over_a_loss_that_nobody_was_told_of() {
    for seed in 0..SEEDS {
        assert!(!finds_a_lie(seed, OwingCanary::None), "seed {seed}");
    }
}

#[test]
fn each_planted_fault_is_found() {
    for canary in [OwingCanary::DebtForgotten, OwingCanary::PaidByFailure, OwingCanary::OneOfMany] {
        let found = (0..SEEDS).find(|&seed| finds_a_lie(seed, canary));
        assert!(found.is_some_and(|seed| seed < 100), "{canary:?}: {found:?}");
    }
}
