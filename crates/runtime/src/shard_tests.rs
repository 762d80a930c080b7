//! What a shard asks while it spins.

use std::cell::Cell;
use std::os::fd::AsRawFd;

use rustix::event::{EventfdFlags, eventfd};
use thinwire_buffer::{Addr, FrameSizes, Room, RxBatch, TxBatch};
use thinwire_link::{LinkStats, Outgoing, Sources};
use thinwire_volume::Closing;

use super::*;

/// On which nothing ever comes; it counts how often it is asked.
struct Silent(Rc<Cell<u64>>);

impl Link for Silent {
    fn name(&self) -> &str {
        "silent"
    }
    fn info(&self) -> LinkInfo {
        let frame_bytes = FrameSizes { base: 1280, max: 1500 };
        LinkInfo { addr: Addr::Sim(1), frame_bytes, room: Room { frames: 64, bytes: 1 << 20 } }
    }
    fn send(&mut self, batch: &mut TxBatch) -> io::Result<Outgoing> {
        batch.clear();
        Ok(Outgoing::default())
    }
    fn recv(&mut self, _: &Pool, _: usize, _: &mut RxBatch) -> io::Result<usize> {
        self.0.set(self.0.get() + 1);
        Ok(0)
    }
    fn sources(&self) -> Sources<'_> {
        [None; 3]
    }
    fn due_in(&mut self) -> Option<Duration> {
        None
    }
    fn stats(&self) -> LinkStats {
        LinkStats::default()
    }
}

/// Expects that.
struct Expecting(Expects);

impl Part for Expecting {
    fn close(&mut self, _: &mut Closing<'_>) -> Time {
        Time::NEVER
    }
    fn expects(&self) -> Expects {
        self.0
    }
}

#[test]
fn who_expects_a_client_asks_descriptors_and_not_links() {
    for (expects, asks_links) in [(Expects::Request, false), (Expects::Nothing, true)] {
        let asked = Rc::default();
        let mut shard =
            Shard::new(vec![Box::new(Silent(Rc::clone(&asked)))], Pool::new(0)).unwrap();
        // It ends when the wait is over, however busy the machine is.
        shard.set_spin(Spin::Always);
        let part = shard.add(Expecting(expects), vec![0], &Lane::ALL);
        let client = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        shard.add_volume(client.as_raw_fd(), Some(part)).unwrap();
        let now = shard.now();
        shard.node().post(now, part, PartEvent::Readable);
        shard.turn(Some(Duration::from_millis(2))).unwrap();
        assert_eq!(asked.get() > 0, asks_links, "{expects:?}");
    }
}
