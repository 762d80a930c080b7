//! Devices of AoE servers as users name them (`docs/aoe.md`).

use thinwire_wire::aoe::ShelfSlot;

/// A device as a user names it: `SHELF.SLOT`, of which the highest numbers mean all.
pub(crate) fn parse_shelf_slot(text: &str) -> Result<ShelfSlot, String> {
    let parsed = text.split_once('.').and_then(|(shelf, slot)| {
        Some(ShelfSlot { shelf: shelf.parse().ok()?, slot: slot.parse().ok()? })
    });
    parsed.filter(|device| device.is_one()).ok_or_else(|| {
        format!("`{text}` is no device: give SHELF.SLOT, from 0 to 65534 and from 0 to 254")
    })
}
