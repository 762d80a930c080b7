//! Exports that are slices of one disk: what the door makes of what a share of it says.

use thinwire_volume::{
    ByteClaim, Geometry, Identity, SharedCanary, SharedVolume, Volume, VolumeShare,
};

use super::*;

const HALF: u64 = Puppet::GEOMETRY.bytes / 2;

/// Brings one completion a poll.
struct Slow {
    below: Puppet,
    ready: Vec<Completion>,
}

impl Volume for Slow {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn identity(&self) -> Identity {
        self.below.identity()
    }

    fn submit(&mut self, io: Io) {
        self.below.submit(io);
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.below.poll(&mut self.ready);
        if !self.ready.is_empty() {
            done.push(self.ready.remove(0));
        }
    }

    fn outstanding(&self) -> usize {
        self.below.outstanding() + self.ready.len()
    }

    fn events(&self) -> u64 {
        self.below.events()
    }

    fn poll_events(&mut self, events: &mut Vec<VolumeEvent>) {
        self.below.poll_events(events);
    }
}

/// A door to two exports of one disk, its halves.
fn halves(canary: SharedCanary) -> (Exports, Puppet) {
    let puppet = Puppet::new(1, Puppet::GEOMETRY);
    let slow = Slow { below: puppet.clone(), ready: Vec::new() };
    let shared = SharedVolume::with_canary(Box::new(slow), canary);
    let mut exports = Exports::new(ExportsConfig::default(), 7, &Pool::new(0));
    for (name, start, end) in [("left", 0, HALF), ("right", HALF, u64::MAX)] {
        let share: VolumeShare = shared.share(ByteClaim { start, end, is_read: false }).unwrap();
        let place = MemDisk::new(512, 512, 1);
        let volume = Box::new(Recorded::new(Box::new(share), place, Vec::new()));
        exports.add(ExportConfig { name: name.into(), volume, read_only: false });
    }
    settle(&mut exports, &mut Dialect::default());
    exports.take_started();
    (exports, puppet)
}

/// The writer of an export, whose session, number and identity are all `who`.
fn writer(exports: &mut Exports, who: u8, export: usize) -> Granted {
    let (user, mut users) = (user(who), Dialect::default());
    let (transaction, resumes, takes_over) = (1, None, false);
    let claim = WriteClaim { user: &user, transaction, export, resumes, takes_over };
    exports.claim(AT, claim).unwrap();
    settle(exports, &mut users);
    users.granted[0].1
}

/// A flush of the left one fails, in the same turn in which one of the right one succeeds, which has written: whether that is
/// answered under another verifier than the write was.
fn is_doubted(canary: SharedCanary) -> bool {
    let (mut exports, puppet) = halves(canary);
    let left = exports.open_read(1, 0);
    let right = writer(&mut exports, 2, 1);
    let mut wanted = write(&Pool::new(0), 7);
    wanted.offset = HALF;
    submit(&mut exports, 2, right.pass, wanted).unwrap();
    puppet.succeed(&puppet.take_one());
    assert_eq!(poll(&mut exports)[0].1, right.verifier);
    submit(&mut exports, 2, right.pass, Io::new(0, Op::Flush, 0, 0)).unwrap();
    submit(&mut exports, 1, left.pass, Io::new(0, Op::Flush, 0, 0)).unwrap();
    let [of_right, of_left] = <[Io; 2]>::try_from(puppet.take()).unwrap();
    puppet.fail(&of_left);
    puppet.succeed(&of_right);
    let ended = poll(&mut exports);
    let (_, verifier, end) = ended.iter().find(|(who, ..)| *who == 2).unwrap();
    assert!(end.result.is_ok());
    *verifier != right.verifier
}

#[test]
fn a_flush_that_fails_for_one_slice_leaves_none_of_another_to_vouch() {
    assert!(is_doubted(SharedCanary::None));
    assert!(!is_doubted(SharedCanary::FailureToldOne));
}

/// What the left one waits for comes while the right one is polled, behind it: nothing else would wake anybody.
fn is_called(canary: SharedCanary) -> bool {
    let (mut exports, puppet) = halves(canary);
    let readers = [0, 1].map(|at| exports.open_read(at as u64 + 1, at));
    submit(&mut exports, 2, readers[1].pass, Io::new(0, Op::Read, HALF, 512)).unwrap();
    submit(&mut exports, 1, readers[0].pass, Io::new(0, Op::Read, 0, 512)).unwrap();
    puppet.take().iter().for_each(|io| puppet.fail(io));
    exports.refresh(AT);
    exports.tell_time(AT);
    exports.take_started();
    let mut told = Vec::new();
    exports.poll(|ticket, _, _, _| told.push(ticket.number));
    assert_eq!(told, [2], "of each poll one");
    exports.tell_time(AT);
    let is_called = exports.deadline(AT) <= AT;
    exports.poll(|ticket, _, _, _| told.push(ticket.number));
    assert_eq!(told, [2, 1]);
    is_called
}

#[test]
fn who_has_something_to_take_in_is_polled_at_once() {
    assert!(is_called(SharedCanary::None));
    assert!(!is_called(SharedCanary::OthersAsleep));
}
