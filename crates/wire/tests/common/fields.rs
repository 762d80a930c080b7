//! Messages taken apart by name, for tests that compare them with what others make of them.

use super::samples;
use thinwire_wire::*;

/// Names of the fields of a message in the order of the wire, and their bytes; of texts and lists none,
/// since others show them otherwise. Reserved bytes are left out.
pub fn of(message: &Message<'_>) -> Vec<(&'static str, Option<Vec<u8>>)> {
    let mut all = Vec::new();
    message.each_field(&mut |name, bytes| {
        let is_shown_otherwise = matches!(
            name,
            "export"
                | "node"
                | "name"
                | "text"
                | "addresses"
                | "exports"
                | "further ranges"
                | "sums"
        );
        // Lists carry their length.
        match name {
            "reserved" => return,
            "addresses" => all.push(("address_count", Some(bytes[..1].to_vec()))),
            "exports" => all.push(("count", None)),
            _ => {}
        }
        all.push((name, (!is_shown_otherwise).then(|| bytes.to_vec())));
    });
    all
}

/// The sample messages with their rows of the table.
pub fn with_each_message(mut see: impl FnMut(&MessageRow, &Message<'_>, &[u8])) {
    for (_, message) in samples::messages() {
        let mut bytes = Vec::new();
        message.emit(&mut bytes);
        let row = MESSAGES.iter().find(|row| row.number == message.number());
        see(row.expect("it is in the table"), &message, &bytes);
    }
}
