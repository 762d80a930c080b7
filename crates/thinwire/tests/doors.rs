//! Who can reach what an attachment shows, and how it is asked: sockets, their permissions, addresses. Over a
//! memory volume, which needs neither a network nor privileges.

mod common;

use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;

use common::{Folder, Ran, thinwire};

/// A run directory with one attachment at a time; what a test leaves is detached by force.
struct House {
    folder: Folder,
}

impl House {
    fn new(name: &str) -> Self {
        House { folder: Folder::new(&format!("doors-{name}")) }
    }

    fn run(&self, words: &[&str]) -> Ran {
        let run_dir = self.folder.at("run");
        thinwire(&[words, &["--run-dir", &run_dir]].concat())
    }

    fn attach(&self, more: &[&str]) -> Ran {
        self.run(&[&["attach", "memory:1M", "--as", "disk0"], more].concat())
    }

    fn detach(&self) {
        let ran = self.run(&["detach", "disk0"]);
        assert_eq!(ran.code, 0, "{}", ran.err);
    }

    fn mode(&self, name: &str) -> u32 {
        std::fs::symlink_metadata(self.folder.at(name)).unwrap().mode() & 0o7777
    }
}

impl Drop for House {
    fn drop(&mut self) {
        self.run(&["detach", "disk0", "--force"]);
    }
}

#[test]
fn an_nbd_socket_is_its_owner_s_unless_a_mode_says_otherwise() {
    let house = House::new("mode");
    let address = format!("unix:{}", house.folder.at("s.nbd"));
    for (more, mode) in [(&[][..], 0o600), (&["--socket-mode", "0666"], 0o666)] {
        let ran = house.attach(&[&["--nbd", &address], more].concat());
        assert_eq!(ran.code, 0, "{}", ran.err);
        assert_eq!(house.mode("s.nbd"), mode, "{more:?}");
        UnixStream::connect(house.folder.at("s.nbd")).unwrap();
        house.detach();
    }
}

#[test]
fn an_nbd_port_is_this_machine_s_unless_it_is_said_that_there_is_no_tls() {
    let house = House::new("port");
    // An address of this machine that others may reach; nothing is sent there.
    let elsewhere = ["--nbd", "tcp:0.0.0.0:0"];
    let refused = |more: &[&str], says: &[&str]| {
        let ran = house.attach(more);
        assert_eq!((ran.code, ran.out.as_str()), (1, ""), "{more:?}: {}", ran.err);
        says.iter().for_each(|word| assert!(ran.err.contains(word), "{word}: {}", ran.err));
    };
    refused(&elsewhere, &["0.0.0.0", "other machines reach", "TLS", "--tls off", "unix:PATH"]);
    let none = &["TLS for NBD", "there is none here", "unix:PATH"];
    for tls in [
        &["--tls", "on"][..],
        &["--tls=require"],
        &["--tls-psk", "/k"],
        &["--tls=off", "--tls-certificates=/c"],
        &["--tls-verify-peer"],
    ] {
        refused(&[&elsewhere[..], tls].concat(), none);
        refused(&[&["--nbd", "tcp:0"][..], tls].concat(), none);
    }
    for (more, host) in [
        (&["--nbd", "tcp:0"][..], "127.0.0.1"),
        (&["--nbd", "tcp:0.0.0.0:0", "--tls=off"], "0.0.0.0"),
    ] {
        let ran = house.attach(more);
        assert_eq!(ran.code, 0, "{}", ran.err);
        let address = ran.out.trim();
        assert!(address.starts_with(&format!("{host}:")), "{address}");
        TcpStream::connect(address).unwrap();
        house.detach();
    }
}
