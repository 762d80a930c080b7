//! A target and an initiator in one thread, over real links.
#![allow(dead_code)]

use std::process::Command;
use std::time::{Duration, Instant};

use rustix::thread::{UnshareFlags, unshare_unsafe};
use thinwire_buffer::Pool;
use thinwire_initiator::{Initiator, InitiatorConfig, TargetName};
use thinwire_link::Link;
use thinwire_proto::Time;
use thinwire_runtime::clock::Clock;
use thinwire_runtime::links::Links;
use thinwire_target::{ExportConfig, Target, TargetConfig};
use thinwire_volume::{Completion, Volume};

/// That nothing happens for so long is a failure, however slow the machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Both sides, turned by hand.
pub struct Pair {
    pub target: Target,
    pub target_links: Links,
    pub target_pool: Pool,
    pub initiator: Initiator,
    pub initiator_links: Links,
    pub initiator_pool: Pool,
    clock: Clock,
}

impl Pair {
    /// Attaches `volume`. `target_pool` is the one that the volume uses, if it uses one.
    pub fn new(
        volume: Box<dyn Volume>,
        target_pool: Pool,
        target_link: Box<dyn Link>,
        initiator_link: Box<dyn Link>,
    ) -> Self {
        let clock = Clock::new();
        let mut config = InitiatorConfig::new(TargetName::Address(target_link.info().addr), "disk");
        config.initiator = [1; 16];
        config.instance = 1;
        config.insecure = true;
        let target_links = Links::new(vec![target_link], target_pool.clone());
        let target_config =
            TargetConfig { node: "node".into(), insecure: true, ..TargetConfig::default() };
        let params = target_links.params();
        let mut target = Target::new(target_config, params, 0, target_pool.clone(), 1);
        target.add_export(ExportConfig { name: "disk".into(), volume, read_only: false });
        let initiator_pool = Pool::new(256 << 20);
        let initiator_links = Links::new(vec![initiator_link], initiator_pool.clone());
        let params = initiator_links.params();
        let initiator = Initiator::new(clock.now(), config, params, initiator_pool.clone(), 2);
        let mut pair = Pair {
            target,
            target_links,
            target_pool,
            initiator,
            initiator_links,
            initiator_pool,
            clock,
        };
        let start = Instant::now();
        while !pair.initiator.is_open() {
            assert_eq!(pair.initiator.first_error(), None);
            assert!(start.elapsed() < PATIENCE, "no attachment");
            pair.turn();
        }
        pair
    }

    /// The time on the clock of both.
    pub fn now(&self) -> Time {
        self.clock.now()
    }

    /// One turn of each side.
    pub fn turn(&mut self) {
        let Pair { target, target_links, initiator, initiator_links, clock, .. } = self;
        initiator.turn(clock.now(), &mut initiator_links.out);
        initiator_links.flush().unwrap();
        let now = clock.now();
        target_links.receive_all(|link, frame| target.on_frame(now, link, frame)).unwrap();
        target.turn(now, &mut target_links.out);
        target_links.flush().unwrap();
        let now = clock.now();
        initiator_links.receive_all(|link, frame| initiator.on_frame(now, link, frame)).unwrap();
    }

    /// Turns until the volume has completions.
    pub fn wait(&mut self, done: &mut Vec<Completion>) {
        let start = Instant::now();
        while !self.initiator.has_completions() {
            self.turn();
            assert!(start.elapsed() < PATIENCE, "an I/O does not complete");
        }
        self.initiator.poll(done);
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
