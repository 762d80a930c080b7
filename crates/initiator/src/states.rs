//! The tables of the parts that have states.

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
