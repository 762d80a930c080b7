//! Two network namespaces joined by a virtual cable, for one test. Needs root. Nothing is left
//! behind: the namespaces have no names and go away with the last descriptor.
#![allow(dead_code)]

use std::fs::File;
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};
use rustix::time::Timespec;
use thinwire_buffer::{Addr, Pool, RxBatch, RxFrame, TxBatch};
use thinwire_link::Link;

/// The cable's ends are called `left` and `right`, have the addresses 10.77.0.1/24 and 10.77.0.2/24 and
/// sit in namespaces of their own; both have a loopback that is up.
pub struct Cable {
    here: [File; 2],
}

/// Runs `test` in a thread of its own with a new cable, unless we are not root.
pub fn with_cable(mtu: usize, test: impl FnOnce(&Cable) + Send + 'static) {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: namespaces need root");
        return;
    }
    let thread = std::thread::spawn(move || {
        let (b, mut holder) = new_namespace();
        let (a, mut unneeded) = new_namespace();
        kill(&mut unneeded);
        // We are in namespace a now; b is known to `ip` by the process that sits in it.
        let pid = holder.id();
        ip(&format!("link add left mtu {mtu} type veth peer name right mtu {mtu}"));
        ip(&format!("link set right netns {pid}"));
        let cable = Cable { here: [a, b] };
        for (end, name, ip_addr) in [(0, "left", "10.77.0.1"), (1, "right", "10.77.0.2")] {
            cable.enter(end);
            ip("link set lo up");
            ip(&format!("addr add {ip_addr}/24 dev {name}"));
            ip(&format!("link set {name} up"));
        }
        kill(&mut holder);
        cable.enter(0);
        test(&cable);
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

impl Cable {
    /// Makes `end` (0 or 1) the namespace of this thread. What was opened stays where it was.
    pub fn enter(&self, end: usize) {
        move_into_link_name_space(self.here[end].as_fd(), Some(LinkNameSpaceType::Network))
            .expect("enter a namespace");
    }
}

fn new_namespace() -> (File, Child) {
    // SAFETY: only the network namespace of this thread changes; no descriptor table is unshared.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.expect("make a namespace");
    let here = File::open("/proc/thread-self/ns/net").expect("proc");
    let holder = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().expect("sleep");
    (here, holder)
}

fn kill(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

/// Runs `ip` in the namespace of this thread.
pub fn ip(args: &str) {
    let done = Command::new("ip").args(args.split_whitespace()).output().expect("iproute2");
    let complaint = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success(), "ip {args}: {complaint}");
}

/// Runs `nft` in the namespace of this thread.
pub fn nft(command: &str) {
    let done = Command::new("nft").arg(command).output().expect("nftables");
    let complaint = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success(), "nft {command}: {complaint}");
}

/// Receives until `count` frames are there or nothing came for a second.
pub fn receive(link: &mut dyn Link, pool: &Pool, count: usize) -> Vec<RxFrame> {
    let mut batch = RxBatch::new();
    let mut quiet = 0;
    while batch.len() < count && quiet < 100 {
        if link.recv(pool, 64, &mut batch).expect("receive") > 0 {
            quiet = 0;
        } else {
            quiet += 1;
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
    batch.into()
}

/// True if `link` has something to do within `limit`: what a shard sleeps on says so.
pub fn is_woken(link: &dyn Link, limit: Duration) -> bool {
    let sources = link.sources().into_iter().flatten();
    let mut fds: Vec<_> = sources.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    let limit = Timespec::try_from(limit).expect("short");
    poll(&mut fds, Some(&limit)).expect("poll") > 0
}

/// Receives as an idle shard does, which looks only when it is woken, until nothing wakes it for
/// a moment.
pub fn receive_when_woken(link: &mut dyn Link, pool: &Pool) -> Vec<RxFrame> {
    let mut batch = RxBatch::new();
    let mut turns = 0;
    while is_woken(link, Duration::from_millis(100)) {
        link.recv(pool, 64, &mut batch).expect("receive");
        turns += 1;
        assert!(turns < 1000, "woken for nothing, again and again");
    }
    batch.into()
}

/// What is there after a moment for stragglers.
pub fn drain(link: &mut dyn Link, pool: &Pool) -> Vec<RxFrame> {
    std::thread::sleep(std::time::Duration::from_millis(50));
    let mut batch = RxBatch::new();
    // What names no session is not looked for in each call.
    let mut in_vain = 0;
    while in_vain < 8 {
        let found = link.recv(pool, 64, &mut batch).expect("receive") > 0;
        in_vain = if found { 0 } else { in_vain + 1 };
        std::thread::sleep(std::time::Duration::from_micros(if found { 0 } else { 200 }));
    }
    batch.into()
}

/// Sends one frame of `head`.
pub fn send(link: &mut dyn Link, to: Addr, head: &[u8]) {
    let mut batch = TxBatch::new();
    batch.push(to).head.extend_from_slice(head);
    link.send(&mut batch).expect("send");
    assert!(batch.is_empty());
}

/// `len` bytes that differ from place to place and from seed to seed.
pub fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 256 + seed * 31) as u8).collect()
}

/// Sends small frames until one arrives and the rest are drained: a fresh cable takes a moment to
/// pass internet traffic (carrier, neighbours).
pub fn warm_up(from: &mut dyn Link, to: Addr, receiver: &mut dyn Link, pool: &Pool) {
    for _ in 0..200 {
        send(from, to, b"is the cable up?");
        std::thread::sleep(std::time::Duration::from_millis(20));
        if !drain(receiver, pool).is_empty() {
            drain(receiver, pool);
            return;
        }
    }
    panic!("nothing crosses the cable");
}

/// Receives of a link that thousands of frames of zeroes have come to, and behind them 100 of ones, which are its
/// own: those at once, of the flood little in a moment, some hundred in the end, and the rest never.
pub fn check_flooded(link: &mut dyn Link, pool: &Pool) {
    let mut got = RxBatch::new();
    while link.recv(pool, 64, &mut got).unwrap() > 0 {}
    let own = got.iter().filter(|frame| frame.bytes[8] == 1).count();
    assert_eq!(own, 100);
    let let_in = got.len() - own;
    assert!(let_in <= 100, "{let_in} in a moment");
    assert!(link.due_in().is_some() || let_in == 0, "or the rest would wait for ever");
    let begin = Instant::now();
    while link.stats().rx_frames < 300 {
        link.recv(pool, 64, &mut got).unwrap();
        assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", link.stats());
    }
    assert!(link.stats().rx_dropped > 1000, "{:?}", link.stats());
}
