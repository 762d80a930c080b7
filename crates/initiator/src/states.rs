//! Which states the parts of an initiator are in, for a test that has to know that it has met all of them.

use crate::Initiator;

/// The parts that have states: their names, and what becomes of each state, as a table in Markdown. Its columns are
/// the states, its rows events; a cell begins with the state afterwards, or with a point if that is the same.
pub const STATE_TABLES: [(&str, &str); 6] = [
    ("association", include_str!("association.md")),
    ("attachment", include_str!("attachment.md")),
    ("requests", include_str!("requests.md")),
    ("durability", include_str!("durability.md")),
    ("absence", include_str!("absence.md")),
    ("closing", include_str!("closing.md")),
];

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
