//! What the memory of a target is bounded by (`docs/protocol.md`, "Bounds").

use thinwire_buffer::{PAGE_BYTES, Pool, TX_HEAD_BYTES, TxFrame};
use thinwire_exports::Exports;
use thinwire_proto::Session;
use thinwire_wire::UNIT_BYTES;

use crate::TargetConfig;
use crate::attach::ATTACHMENTS_MAX;
use crate::fair::Fair;
use crate::greet::SESSIONS_MAX;
use crate::keyed::Keyed;
use crate::line::Line;
use crate::peer::Peer;
use crate::slots::{PINNED_BYTES_MAX, Slots};

/// Frames that a session may add to the batches of one turn: new ones, acknowledgements and answers to
/// probes. Their heads are kept for the next turn.
const TURN_FRAMES_MAX: usize = 256;

impl TargetConfig {
    /// Memory that one session may make a target hold, in bytes, whatever its initiator does: what
    /// is kept about it, and the payloads that its credit covers. Derived from `slots`,
    /// `credit_bytes` and constants.
    pub fn session_bytes_max(&self) -> usize {
        self.session_state_bytes_max() + self.session_payload_bytes_max()
    }

    /// The part of it that is no payload.
    pub fn session_state_bytes_max(&self) -> usize {
        let slots = self.slots as usize;
        let attachments = ATTACHMENTS_MAX * (Exports::CLAIM_BYTES + Exports::PASS_BYTES)
            + slots * Exports::PASS_BYTES;
        let operations = slots * Exports::IO_BYTES;
        size_of::<Peer>()
            + Keyed::BYTES_MAX
            + Session::BYTES_MAX
            + slots * Session::HELD_BYTES
            + Slots::bytes_max(self.slots, self.credit_bytes)
            + slots * Fair::SLOT_BYTES
            + ATTACHMENTS_MAX * Line::SHARE_BYTES
            + 2 * (attachments + operations)
            + TURN_FRAMES_MAX * (size_of::<TxFrame>() + TX_HEAD_BYTES)
    }

    /// Payloads: of writes until the store has them, in pieces of at least a unit, and once more if
    /// the store needs them in one piece; of reads until they are acknowledged. Memory for whole
    /// requests comes in powers of two, with a page beside it.
    pub fn session_payload_bytes_max(&self) -> usize {
        let credit = self.credit_bytes as usize;
        let pieces = credit / UNIT_BYTES * Pool::SMALL_UNIT_BYTES;
        // Sealed frames are copies, until they are sent.
        let sealed = if self.keys.is_some() { credit } else { 0 };
        pieces + 2 * credit + sealed + self.slots as usize * 2 * PAGE_BYTES
    }

    /// Memory that all sessions share, in bytes: received frames that small payloads keep alive.
    pub const SHARED_BYTES_MAX: usize = PINNED_BYTES_MAX;

    /// Sessions at once.
    pub const SESSIONS_MAX: usize = SESSIONS_MAX;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the documents tell: the parts of the bound, for the default settings.
    #[test]
    fn a_session_is_bounded_by_its_settings() {
        let config = TargetConfig::default();
        let (state, payload) =
            (config.session_state_bytes_max(), config.session_payload_bytes_max());
        println!("session {} + slots {}", Session::BYTES_MAX, Slots::bytes_max(128, 8 << 20));
        assert_eq!(config.session_bytes_max(), state + payload);
        assert!(state <= 10 << 20, "{state}");
        assert!(payload <= 6 * (8 << 20) + (2 << 20), "{payload}");
        let more = TargetConfig { slots: 256, credit_bytes: 16 << 20, ..config.clone() };
        assert!(more.session_bytes_max() < 2 * config.session_bytes_max());
    }
}
