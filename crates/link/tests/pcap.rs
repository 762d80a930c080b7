//! Captures are read by programs we did not write. Skipped where they are missing.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::{receive, with_cable};
use thinwire_buffer::{Addr, Pool, TxBatch};
use thinwire_link::packet::{PacketConfig, PacketLink};
use thinwire_link::pcap::{PcapFile, PcapLink, PcapWire, wall_clock};
use thinwire_link::udp::{UdpConfig, UdpLink};
use thinwire_link::{Link, LinkSpec};

/// A file name of our own, removed in the end.
struct Capture(PathBuf);

impl Capture {
    fn new(name: &str) -> Self {
        let file = format!("thinwire-{}-{name}.pcap", std::process::id());
        Capture(std::env::temp_dir().join(file))
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// One line of the wanted fields per frame, `|` between them; `None` if tshark is not installed.
fn tshark(file: &Path, fields: &[&str]) -> Option<Vec<String>> {
    let mut command = Command::new("tshark");
    command.args(["-n", "-r"]).arg(file).args(["-T", "fields", "-E", "separator=|"]);
    command.args(["-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE"]);
    for field in fields {
        command.args(["-e", field]);
    }
    let Ok(done) = command.output() else {
        eprintln!("skipped: tshark is not installed");
        return None;
    };
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    Some(String::from_utf8(done.stdout).unwrap().lines().map(str::to_owned).collect())
}

#[test]
fn udp_frames_are_whole_datagrams_with_right_checksums() {
    for addr in ["127.0.0.1:0", "[::1]:0"] {
        let capture = Capture::new(if addr.starts_with('[') { "udp6" } else { "udp4" });
        let open = || UdpLink::open(&UdpConfig::new(addr.parse().unwrap())).unwrap();
        let file = PcapFile::create(&capture.0, wall_clock()).unwrap();
        let boxed: Box<dyn Link> = Box::new(open());
        let mut a = PcapLink::new(boxed, file.clone(), PcapWire::default());
        let mut b = open();
        let pool = Pool::new(8 << 20);
        let mut batch = TxBatch::new();
        for len in [1000, 1000, 333] {
            let frame = batch.push(b.info().addr);
            frame.head.extend_from_slice(&[7; 101]);
            frame.data.push(pool.copy_of(&vec![8; len - 101]).freeze());
        }
        batch.push(Addr::Group).head.extend_from_slice(b"who?");
        a.send(&mut batch).unwrap();
        batch.push(a.info().addr).head.extend_from_slice(&[9; 50]);
        b.send(&mut batch).unwrap();
        assert_eq!(receive(&mut a, &pool, 1).len(), 1);
        let (Addr::Udp(here), Addr::Udp(there)) = (a.info().addr, b.info().addr) else { panic!() };
        drop(a);
        assert_eq!(file.borrow().frames(), 5);

        let fields = [
            "udp.srcport",
            "udp.dstport",
            "udp.length",
            "ip.checksum.status",
            "udp.checksum.status",
        ];
        let Some(lines) = tshark(&capture.0, &fields) else { return };
        let (here, there) = (here.port(), there.port());
        // 1 is good, 3 is none.
        let status = if addr.starts_with('[') { "|1" } else { "1|3" };
        let line = |from, to, len: u16| format!("{from}|{to}|{len}|{status}");
        let expected = [
            line(here, there, 1008),
            line(here, there, 1008),
            line(here, there, 341),
            line(here, 34997, 12),
            line(there, here, 58),
        ];
        assert_eq!(lines, expected);
    }
}

#[test]
fn raw_frames_look_as_on_the_wire() {
    with_cable(9000, |cable| {
        let capture = Capture::new("packet");
        let spec: LinkSpec = "packet:left,vlan=7".parse().unwrap();
        let file = PcapFile::create(&capture.0, wall_clock()).unwrap();
        let mut a = PcapLink::new(spec.open(0).unwrap(), file, PcapWire::of(&spec));
        cable.enter(1);
        let there = PacketConfig { vlan: Some(7), ..PacketConfig::new("right") };
        let mut b = PacketLink::open(&there).unwrap();
        let pool = Pool::new(8 << 20);
        let mut batch = TxBatch::new();
        batch.push(b.info().addr).head.extend_from_slice(&[1; 9000]);
        batch.push(Addr::Group).head.extend_from_slice(&[2; 60]);
        a.send(&mut batch).unwrap();
        batch.push(a.info().addr).head.extend_from_slice(&[3; 70]);
        b.send(&mut batch).unwrap();
        assert_eq!(receive(&mut a, &pool, 1).len(), 1);
        let (here, there) = (a.info().addr, b.info().addr);
        drop(a);
        let fields = ["eth.src", "eth.dst", "vlan.id", "vlan.etype", "frame.len"];
        let Some(lines) = tshark(&capture.0, &fields) else { return };
        let line = |from: &str, to: &str, len: usize| format!("{from}|{to}|7|0x88b5|{len}");
        let [here, there] = [here, there].map(|addr| addr.to_string().replace('-', ":"));
        let expected = [
            line(&here, &there, 9018),
            line(&here, "03:54:57:00:00:01", 78),
            line(&there, &here, 88),
        ];
        assert_eq!(lines, expected);
        if let Ok(done) = Command::new("tcpdump").arg("-nr").arg(&capture.0).output() {
            assert!(done.status.success());
            // It knows nothing about our frames: a line each, and indented bytes.
            let text = String::from_utf8_lossy(&done.stdout).into_owned();
            assert_eq!(text.lines().filter(|l| !l.starts_with('\t')).count(), 3, "{text}");
        }
    });
}
