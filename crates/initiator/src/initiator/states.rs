//! Which states the parts of an initiator are in, for a test that has to know that it has met all of them.

use super::Initiator;
use crate::STATE_TABLES;

impl Initiator {
    /// The states of its parts, in the order and with the names of [`STATE_TABLES`].
    pub fn states(&self) -> [&'static str; STATE_TABLES.len()] {
        [
            self.association.state(),
            self.attachment.state(),
            self.requests.state(),
            self.durability.state(),
            self.absence.state(),
            self.closing.state(),
        ]
    }
}
