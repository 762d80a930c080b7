//! The blocking library where a link fails for a moment.

use std::cell::Cell;
use std::io;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::mpsc;
use std::time::Duration;

use thinwire_buffer::{LinkInfo, Pool, RxBatch, TxBatch};
use thinwire_initiator::{InitiatorConfig, TargetName};
use thinwire_link::{Link, LinkOptions, LinkSpec, LinkStats, Outgoing, Sources};
use thinwire_runtime::blocking::Blocking;
use thinwire_runtime::serve::{OpenedExport, TargetShard};
use thinwire_target::{ExportConfig, TargetConfig};
use thinwire_volume::stores::MemoryStore;
use thinwire_volume::{ErrorKind, Identity};

const PATIENCE: Duration = Duration::from_secs(30);

/// Fails once when it is to receive, whenever it was told to.
struct Flaky {
    link: Box<dyn Link>,
    fails: Rc<Cell<bool>>,
}

impl Link for Flaky {
    fn name(&self) -> &str {
        self.link.name()
    }
    fn info(&self) -> LinkInfo {
        self.link.info()
    }
    fn send(&mut self, batch: &mut TxBatch) -> io::Result<Outgoing> {
        self.link.send(batch)
    }
    fn recv(&mut self, pool: &Pool, max: usize, out: &mut RxBatch) -> io::Result<usize> {
        if self.fails.take() {
            return Err(io::Error::other("for a moment"));
        }
        self.link.recv(pool, max, out)
    }
    fn sources(&self) -> Sources<'_> {
        self.link.sources()
    }
    fn due_in(&mut self) -> Option<Duration> {
        self.link.due_in()
    }
    fn stats(&self) -> LinkStats {
        self.link.stats()
    }
}

fn udp() -> Box<dyn Link> {
    let spec: LinkSpec = "udp:127.0.0.1:0".parse().unwrap();
    spec.open_with(&LinkOptions::default()).unwrap()
}

#[test]
fn an_answer_that_comes_late_is_not_taken_for_that_of_the_next_io() {
    let (stopped, stop) = rustix::pipe::pipe().unwrap();
    let (tell, told) = mpsc::channel();
    let target = std::thread::spawn(move || {
        let (link, pool) = (udp(), Pool::new(8 << 20));
        tell.send(link.info().addr).unwrap();
        let identity = Identity { identity: [1; 16], incarnation: 1 };
        let volume = Box::new(MemoryStore::new(1 << 20, 512, identity, &pool));
        let export = ExportConfig { name: "disk".into(), volume, read_only: false };
        let config = TargetConfig { node: "node".into(), insecure: true, ..Default::default() };
        let mut target = TargetShard::new(config, vec![link], 0, pool).unwrap();
        target.add_export(OpenedExport::new(export, None)).unwrap();
        target.run(stopped.as_fd()).unwrap();
    });
    let address = told.recv_timeout(PATIENCE).unwrap();
    let mut config = InitiatorConfig::new(TargetName::Address(address), "disk");
    config.insecure = true;
    let fails = Rc::new(Cell::new(false));
    let link = Box::new(Flaky { link: udp(), fails: fails.clone() });
    let mut volume = Blocking::open(config, vec![link], Pool::new(8 << 20), PATIENCE).unwrap();
    for block in 0..2u8 {
        let mut buf = volume.buffer(512);
        buf.fill(1 + block);
        volume.write(u64::from(block) * 512, buf).unwrap();
    }
    for _ in 0..8 {
        fails.set(true);
        let error = volume.read(0, 512).unwrap_err();
        assert_eq!((error.kind, error.module), (ErrorKind::Io, "link"));
        assert_eq!(volume.read(512, 512).unwrap().to_vec(), [2; 512], "the block before");
    }
    volume.close(PATIENCE).unwrap();
    drop(stop);
    target.join().unwrap();
}
