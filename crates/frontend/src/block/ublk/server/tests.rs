//! Requests as the driver tells them, over a volume in memory and over one that does as it is told.

use std::collections::{BTreeMap, VecDeque};

use thinwire_volume::stores::MemoryStore;
use thinwire_volume::testing::Puppet;
use thinwire_volume::{Geometry, Identity};

use super::*;

/// The driver's end: what is asked, and what was answered.
#[derive(Default)]
struct Kernel {
    asked: VecDeque<(u16, Descriptor)>,
    /// The pages of each request.
    pages: BTreeMap<u16, Vec<u8>>,
    answers: BTreeMap<u16, i32>,
    is_gone: bool,
}

impl Kernel {
    fn ask(&mut self, tag: u16, op: u8, flags: u32, first_sector: u64, sectors: u32) {
        let op_flags = u32::from(op) | flags;
        self.asked.push_back((tag, Descriptor { op_flags, sectors, first_sector, address: 0 }));
        self.pages.entry(tag).or_insert_with(|| vec![0xee; sectors as usize * 512]);
    }
}

impl Requests for Kernel {
    fn take(&mut self) -> Option<(u16, Descriptor)> {
        self.asked.pop_front()
    }

    fn bring(&mut self, tag: u16, data: &mut [u8]) -> io::Result<()> {
        if self.is_gone {
            return Err(io::ErrorKind::NotConnected.into());
        }
        data.copy_from_slice(&self.pages[&tag]);
        Ok(())
    }

    fn give(&mut self, tag: u16, data: &SegList) -> io::Result<()> {
        if self.is_gone {
            return Err(io::ErrorKind::NotConnected.into());
        }
        self.pages.insert(tag, data.to_vec());
        Ok(())
    }

    fn answer(&mut self, tag: u16, result: i32) {
        assert_eq!(self.answers.insert(tag, result), None, "tag {tag} is answered twice");
    }

    fn send(&mut self) -> bool {
        true
    }
}

fn memory(pool: &Pool) -> MemoryStore {
    MemoryStore::new(1 << 20, 512, Identity::default(), pool)
}

fn settle(server: &mut UblkServer, volume: &mut dyn Volume, kernel: &mut Kernel) {
    while server.turn(volume, kernel) {}
}

/// What one request was answered, and the pages behind it.
fn one(
    server: &mut UblkServer,
    volume: &mut dyn Volume,
    (op, flags): (u8, u32),
    (first, sectors): (u64, u32),
    pages: Option<Vec<u8>>,
) -> (i32, Vec<u8>) {
    let mut kernel = Kernel::default();
    kernel.ask(5, op, flags, first, sectors);
    kernel.pages.extend(pages.map(|pages| (5, pages)));
    settle(server, volume, &mut kernel);
    (kernel.answers[&5], kernel.pages.remove(&5).unwrap())
}

#[test]
fn what_was_written_is_read_and_nothing_is_allocated_for_it() {
    let pool = Pool::new(16 << 20);
    let (mut server, mut volume) = (UblkServer::new(8, false, pool.clone()), memory(&pool));
    let mut made = 0;
    for round in 1..20u8 {
        let written =
            one(&mut server, &mut volume, (op::WRITE, 0), (8, 3), Some(vec![round; 1536]));
        assert_eq!(written.0, 1536);
        let (result, pages) = one(&mut server, &mut volume, (op::READ, 0), (7, 5), None);
        assert_eq!(result, 2560);
        assert_eq!(pages, [[0; 512].as_slice(), &[round; 1536], &[0; 512]].concat());
        if round > 3 {
            assert_eq!(pool.stats().allocations, made);
        }
        made = pool.stats().allocations;
    }
    assert_eq!(one(&mut server, &mut volume, (op::FLUSH, 0), (0, 0), None).0, 0);
    let zeroed = one(&mut server, &mut volume, (op::WRITE_ZEROES, flag::NO_UNMAP), (8, 1), None);
    assert_eq!(zeroed.0, 0);
    let (_, pages) = one(&mut server, &mut volume, (op::READ, 0), (8, 2), None);
    assert_eq!(pages, [[0; 512], [19; 512]].concat());
}

#[test]
fn what_cannot_be_is_refused_and_touches_nothing() {
    let pool = Pool::new(16 << 20);
    let mut volume = memory(&pool);
    let end = (1 << 20) / 512;
    for (read_only, op, first, sectors, errno) in [
        (false, op::READ, end, 1, libc::EINVAL),
        (false, op::WRITE, end - 1, 2, libc::EINVAL),
        (false, op::READ, u64::MAX / 512, 8, libc::EINVAL),
        (false, op::READ, u64::MAX, 8, libc::EINVAL),
        (false, op::READ, 0, 0, libc::EINVAL),
        (false, 4, 0, 1, libc::EOPNOTSUPP),
        (false, 99, 0, 1, libc::EOPNOTSUPP),
        (true, op::WRITE, 0, 1, libc::EROFS),
        (true, op::DISCARD, 0, 1, libc::EROFS),
    ] {
        let mut server = UblkServer::new(8, read_only, pool.clone());
        let (result, _) = one(&mut server, &mut volume, (op, 0), (first, sectors), None);
        assert_eq!(result, -errno, "{op} {first}+{sectors}");
        assert_eq!(volume.outstanding(), 0);
    }
}

#[test]
fn a_device_that_is_being_taken_away_fails_and_forgets_no_tag() {
    let pool = Pool::new(16 << 20);
    let (mut server, mut volume) = (UblkServer::new(8, false, pool.clone()), memory(&pool));
    let mut kernel = Kernel { is_gone: true, ..Kernel::default() };
    kernel.ask(0, op::WRITE, 0, 0, 1);
    kernel.ask(1, op::READ, 0, 0, 1);
    settle(&mut server, &mut volume, &mut kernel);
    assert_eq!(kernel.answers, BTreeMap::from([(0, -libc::EIO), (1, -libc::EIO)]));
    let (result, pages) = one(&mut server, &mut volume, (op::READ, 0), (0, 1), None);
    assert_eq!((result, pages), (512, vec![0; 512]), "the write has touched nothing");
}

#[test]
fn requests_go_down_as_they_are_and_errors_come_back() {
    let pool = Pool::new(16 << 20);
    let geometry = Geometry { bytes: 1 << 30, ..Puppet::GEOMETRY };
    let (mut server, mut puppet) = (UblkServer::new(8, false, pool), Puppet::new(1, geometry));
    let mut kernel = Kernel::default();
    kernel.ask(3, op::WRITE, flag::FUA, 16, 2);
    kernel.ask(4, op::WRITE_ZEROES, flag::FUA, 8, 8);
    kernel.ask(6, op::FLUSH, 0, u64::MAX, 0);
    kernel.ask(7, op::READ, flag::FUA, 0, 8);
    settle(&mut server, &mut puppet, &mut kernel);
    let told = puppet.take();
    let shown = told.iter().map(|io| (io.op, io.offset, io.len, io.flags.fua, io.flags.no_hole));
    assert_eq!(
        shown.collect::<Vec<_>>(),
        [
            (Op::Write, 8192, 1024, true, false),
            (Op::WriteZeroes, 4096, 4096, true, false),
            (Op::Flush, 0, 0, false, false),
            (Op::Read, 0, 4096, false, false),
        ]
    );
    assert!(kernel.answers.is_empty());
    puppet.succeed(&told[2]);
    puppet.fail(&told[0]);
    puppet.fail(&told[3]);
    settle(&mut server, &mut puppet, &mut kernel);
    let none = -libc::ENOSPC;
    assert_eq!(kernel.answers, BTreeMap::from([(6, 0), (3, none), (7, none)]));
    // Its tag may come again, while another is still out.
    kernel.answers.clear();
    kernel.ask(6, op::FLUSH, 0, 0, 0);
    puppet.succeed(&told[1]);
    settle(&mut server, &mut puppet, &mut kernel);
    assert_eq!(kernel.answers, BTreeMap::from([(4, 0)]));
    puppet.succeed(&puppet.take_one());
    settle(&mut server, &mut puppet, &mut kernel);
    assert_eq!(kernel.answers.len(), 2);
}

/// A turn has an end, however much is asked.
#[test]
fn a_turn_is_bounded() {
    let pool = Pool::new(16 << 20);
    let (mut server, mut volume) = (UblkServer::new(128, false, pool.clone()), memory(&pool));
    let mut kernel = Kernel::default();
    (0..128).for_each(|tag| kernel.ask(tag, op::WRITE, 0, 0, 64));
    assert!(server.turn(&mut volume, &mut kernel), "there is more");
    assert!(kernel.answers.len() < 32, "{}", kernel.answers.len());
    settle(&mut server, &mut volume, &mut kernel);
    assert_eq!(kernel.answers.len(), 128);
}

/// The number that answers a request has a sign.
#[test]
fn what_is_longer_than_an_answer_can_say_succeeds() {
    let geometry = Geometry { bytes: 1 << 40, ..Puppet::GEOMETRY };
    let pool = Pool::new(16 << 20);
    let (mut server, mut puppet) = (UblkServer::new(8, false, pool), Puppet::new(1, geometry));
    let mut kernel = Kernel::default();
    for (tag, op) in [(0, op::DISCARD), (1, op::WRITE_ZEROES)] {
        let descriptor = Descriptor {
            op_flags: op.into(),
            sectors: u32::MAX / 512 - 7,
            ..Descriptor::default()
        };
        kernel.asked.push_back((tag, descriptor));
    }
    settle(&mut server, &mut puppet, &mut kernel);
    puppet.take().iter().for_each(|io| puppet.succeed(io));
    settle(&mut server, &mut puppet, &mut kernel);
    assert_eq!(kernel.answers, BTreeMap::from([(0, 0), (1, 0)]));
}

/// A device that is taken away by force waits for the answer to each request, and for those that come then.
#[test]
fn what_is_refused_is_answered_once() {
    let geometry = Geometry { bytes: 1 << 30, ..Puppet::GEOMETRY };
    let pool = Pool::new(16 << 20);
    let (mut server, mut puppet) = (UblkServer::new(2, false, pool), Puppet::new(1, geometry));
    let mut kernel = Kernel::default();
    kernel.ask(0, op::READ, 0, 0, 8);
    kernel.ask(1, op::READ, 0, 8, 8);
    settle(&mut server, &mut puppet, &mut kernel);
    let told = puppet.take();
    puppet.succeed(&told[0]);
    server.refuse_all(&mut kernel);
    let all = BTreeMap::from([(0, -libc::EIO), (1, -libc::EIO)]);
    assert_eq!(kernel.answers, all);
    kernel.answers.clear();
    kernel.ask(1, op::WRITE, 0, 8, 8);
    server.refuse_all(&mut kernel);
    assert_eq!(kernel.answers, BTreeMap::from([(1, -libc::EIO)]));
    assert!(puppet.take().is_empty(), "nothing goes down any more");
}
