//! Which socket gets which frame, on an interface that several share: shards of a target, and all
//! initiators of a machine (`docs/protocol.md`, "Frame header"; rule 10).
//!
//! A socket of a raw link sees every frame of our EtherType. Unless it refuses those of others in
//! the kernel, each attachment of a machine is woken by the traffic of all of them.

use thinwire_link::{ShardSteering, SteeringFilter};
use thinwire_target::{SESSION_NUMBER, session_lane};

use crate::clock::entropy;

/// Where the receiver's session id stands in a frame. Its first byte is a target's shard.
const SESSION_OFFSET: u16 = 8;
/// The upper half of an initiator's session ids begins with this bit; a target's with none.
const INITIATOR: u32 = 1 << 31;

/// Which shard of `count` of a node opens a link. It receives frames of its own sessions, and the
/// first those outside sessions, too.
pub fn link_shard(node: &str, index: u8, count: u8) -> ShardSteering {
    let lane = session_lane(index, node);
    let mut accepts = vec![SteeringFilter::word(SESSION_OFFSET, lane..=lane | SESSION_NUMBER)];
    if index == 0 {
        accepts.extend(outside_filters());
    }
    ShardSteering { index, count, offset: SESSION_OFFSET, accepts }
}

/// Initiators that a process can have under one [`Lanes`].
const LANES: u32 = 1 << 10;

/// The upper halves of the ids of all sessions of the initiators of one process: see
/// [`thinwire_initiator::InitiatorConfig::lane`].
#[derive(Clone, Copy, Debug)]
pub struct Lanes {
    first: u32,
    given: u32,
}

impl Lanes {
    /// A range of its own, drawn anew by each call. That of another process on the same interface is
    /// seldom the same; if it is, both are woken by the frames of both.
    pub fn draw() -> Self {
        Lanes { first: (entropy() as u32 | INITIATOR) & !(LANES - 1), given: 0 }
    }

    /// The next one.
    pub fn give(&mut self) -> u32 {
        self.given += 1;
        self.first | ((self.given - 1) % LANES)
    }

    /// What the raw links of these initiators receive: frames of their sessions and answers to their
    /// greetings, and those that name nobody.
    pub fn filters(&self) -> [SteeringFilter; 2] {
        let [outside] = outside_filters();
        [SteeringFilter::word(SESSION_OFFSET, self.first..=self.first | (LANES - 1)), outside]
    }
}

/// What a raw link receives of which only questions to whoever is there matter, and their answers.
/// Everybody on the interface wants those.
pub fn outside_filters() -> [SteeringFilter; 1] {
    [SteeringFilter::word(SESSION_OFFSET, 0..=0).shared()]
}
