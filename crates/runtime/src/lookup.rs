//! Discovery with real links.

use std::io;
use std::time::Duration;

use thinwire_buffer::Pool;
use thinwire_initiator::{DiscoveredTarget, Discovery, InitiatorKey};
use thinwire_link::Link;
use thinwire_node::Lane;

use crate::clock::{entropy, entropy_bytes};
use crate::shard::Shard;
use crate::wait::Spin;

/// How often `stop` is asked.
const STOP_LOOK: Duration = Duration::from_millis(50);

/// Asks on all links for targets of one node name (or, if it is empty, for all), for about
/// `duration`, and returns who answered; with a key, what they say under it. Blocks. `stop` ends it early.
pub fn discover(
    links: Vec<Box<dyn Link>>,
    node: &str,
    duration: Duration,
    key: Option<InitiatorKey>,
    mut stop: impl FnMut() -> bool,
) -> io::Result<Vec<DiscoveredTarget>> {
    let all = (0..links.len()).collect();
    let mut shard = Shard::new(links, Pool::new(8 << 20))?;
    shard.set_spin(Spin::Off);
    let mut search = Discovery::new(shard.now(), node, duration, entropy());
    if let Some(mut key) = key {
        key.entropy = entropy_bytes();
        search = search.with_key(key);
    }
    let end = shard.now() + search.duration();
    let search = shard.add(search, all, &Lane::ALL);
    loop {
        let left = end.since(shard.now());
        shard.turn(Some(left.min(STOP_LOOK)))?;
        if left.is_zero() || stop() {
            return Ok(shard.get(search).found().to_vec());
        }
    }
}
