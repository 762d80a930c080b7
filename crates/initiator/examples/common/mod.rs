//! A target in this process, on loopback, so that the examples run by themselves.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::thread::JoinHandle;

use thinwire_buffer::{Addr, Pool};
use thinwire_initiator::{InitiatorConfig, TargetName};
use thinwire_link::Link;
use thinwire_link::udp::{UdpConfig, UdpLink};
use thinwire_runtime::serve::{OpenedExport, TargetShard};
use thinwire_target::{ExportConfig, TargetConfig};
use thinwire_volume::Identity;
use thinwire_volume::stores::MemoryStore;

/// A running target; stops when dropped.
pub struct Served {
    stop: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    pub address: SocketAddr,
}

/// Serves 64 MiB of memory as `scratch`.
pub fn serve() -> Served {
    let (stop_read, stop) = rustix::pipe::pipe().expect("a pipe");
    let (tell, told) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        let pool = Pool::new(64 << 20);
        let link = udp();
        let Addr::Udp(address) = link.info().addr else { unreachable!("a UDP link") };
        let config =
            TargetConfig { node: "example".into(), insecure: true, ..TargetConfig::default() };
        let mut shard = TargetShard::new(config, vec![link], 0, pool.clone()).expect("a shard");
        let identity = Identity { identity: *b"thinwire-example", incarnation: 1 };
        let volume = Box::new(MemoryStore::new(64 << 20, 512, identity, &pool));
        let export = ExportConfig { name: "scratch".into(), volume, read_only: false };
        shard.add_export(OpenedExport::new(export, None)).expect("an export");
        tell.send(address).expect("somebody waits");
        shard.run(stop_read.as_fd()).expect("serving");
    });
    let address = told.recv().expect("the target came up");
    Served { stop: Some(stop), thread: Some(thread), address }
}

impl Drop for Served {
    fn drop(&mut self) {
        // The reading end becomes readable when the writing end is closed.
        drop(self.stop.take());
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// A UDP link on loopback.
pub fn udp() -> Box<dyn Link> {
    let config = UdpConfig::new("127.0.0.1:0".parse().expect("an address"));
    Box::new(UdpLink::open(&config).expect("loopback is there"))
}

/// How to attach `scratch`.
pub fn config(served: &Served) -> InitiatorConfig {
    let mut config =
        InitiatorConfig::new(TargetName::Address(Addr::Udp(served.address)), "scratch");
    config.insecure = true;
    config.name = "an example".into();
    config.initiator = *b"example-attacher";
    config
}
