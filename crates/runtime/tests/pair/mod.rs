//! A target and an initiator in one thread, over real links.
#![allow(dead_code)]

use std::os::fd::RawFd;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::thread::{UnshareFlags, unshare_unsafe};
use thinwire_buffer::Pool;
use thinwire_initiator::{InitiatorConfig, TargetName};
use thinwire_link::Link;
use thinwire_runtime::remote::Remote;
use thinwire_runtime::serve::{OpenedExport, TargetShard};
use thinwire_target::{ExportConfig, TargetConfig};
use thinwire_volume::{Completion, Volume};

/// That nothing happens for so long is a failure, however slow the machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Both sides, turned by hand.
pub struct Pair {
    pub target: TargetShard,
    pub target_pool: Pool,
    pub remote: Remote,
    pub initiator_pool: Pool,
}

impl Pair {
    /// Attaches `volume`, and `fd`, which is readable when it has completions, if it needs that.
    /// `target_pool` is the one that the volume uses, if it uses one.
    pub fn new(
        (volume, fd): (Box<dyn Volume>, Option<RawFd>),
        target_pool: Pool,
        target_link: Box<dyn Link>,
        initiator_link: Box<dyn Link>,
    ) -> Self {
        let mut config = InitiatorConfig::new(TargetName::Address(target_link.info().addr), "disk");
        config.initiator = [1; 16];
        config.instance = 1;
        config.insecure = true;
        let target_config =
            TargetConfig { node: "node".into(), insecure: true, ..TargetConfig::default() };
        let links = vec![target_link];
        let mut target = TargetShard::new(target_config, links, 0, target_pool.clone()).unwrap();
        let export = ExportConfig { name: "disk".into(), volume, read_only: false };
        target.add_export(OpenedExport::new(export, fd)).unwrap();
        let initiator_pool = Pool::new(256 << 20);
        let remote = Remote::new(config, vec![initiator_link], initiator_pool.clone()).unwrap();
        let mut pair = Pair { target, target_pool, remote, initiator_pool };
        let start = Instant::now();
        while !pair.remote.initiator().is_open() {
            assert_eq!(pair.remote.initiator().first_error(), None);
            assert!(start.elapsed() < PATIENCE, "no attachment");
            pair.turn();
        }
        pair
    }

    /// One turn of each side.
    pub fn turn(&mut self) {
        self.remote.turn().unwrap();
        self.target.run_turns(1, Duration::ZERO).unwrap();
    }

    /// Turns until the volume has completions.
    pub fn wait(&mut self, done: &mut Vec<Completion>) {
        let start = Instant::now();
        while !self.remote.initiator().has_completions() {
            self.turn();
            assert!(start.elapsed() < PATIENCE, "an I/O does not complete");
        }
        self.remote.volume().poll(done);
    }

    /// Lets both sides idle for a while: frame sizes are probed, late acknowledgements arrive.
    pub fn rest(&mut self, time: Duration) {
        let start = Instant::now();
        while start.elapsed() < time {
            self.turn();
        }
    }
}

/// Puts this thread into a network namespace of its own with the cable `left` - `right` in it, whose
/// ends are two stations, and its loopback up. False, with a word, unless we are root. It goes away
/// with the thread.
pub fn enter_cable(mtu: usize) -> bool {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: namespaces need root");
        return false;
    }
    // SAFETY: only the network namespace of this thread changes; no descriptor table is unshared.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.expect("make a namespace");
    ip("link set lo up");
    ip(&format!("link add left mtu {mtu} type veth peer name right mtu {mtu}"));
    ip("link set left up");
    ip("link set right up");
    true
}

/// Runs `ip` in the namespace of this thread.
pub fn ip(args: &str) {
    let done = Command::new("ip").args(args.split_whitespace()).output().expect("iproute2");
    let complaint = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success(), "ip {args}: {complaint}");
}
