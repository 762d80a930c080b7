//! Discovery with real links.

use std::io;
use std::time::Duration;

use thinwire_buffer::Pool;
use thinwire_initiator::{DiscoveredTarget, Discovery};
use thinwire_link::Link;

use crate::clock::{Clock, entropy};
use crate::links::Links;
use crate::wait::Waiter;

/// Asks on all links for targets of one node name (or, if it is empty, for all), for about
/// `duration`, and returns who answered. Blocks. `stop` ends it early.
pub fn discover(
    links: Vec<Box<dyn Link>>,
    node: &str,
    duration: Duration,
    mut stop: impl FnMut() -> bool,
) -> io::Result<Vec<DiscoveredTarget>> {
    let pool = Pool::new(8 << 20);
    let mut links = Links::new(links, pool);
    let mut waiter = Waiter::new()?;
    waiter.set_spin(false);
    links.register(&mut waiter, 0)?;
    let clock = Clock::new();
    let start = clock.now();
    let mut discovery = Discovery::new(start, node, duration, entropy());
    let end = start + discovery.duration();
    loop {
        let now = clock.now();
        links.receive_all(|link, frame| discovery.on_frame(link, frame))?;
        discovery.turn(now, &mut links.out);
        links.flush()?;
        if now >= end || stop() {
            return Ok(discovery.found().to_vec());
        }
        let next = discovery.deadline().min(end).since(now);
        waiter.wait(Some(next.clamp(Duration::from_millis(1), Duration::from_millis(50))))?;
    }
}
