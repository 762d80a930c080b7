//! ATA over Ethernet: bytes to values and back, after the published specification AoEr11. `docs/aoe.md` says
//! field by field what that is here, and what we decided where the specification leaves it open.
//!
//! All frames here begin behind the Ethernet header: [`HEADER_BYTES`] of [`Header`], then what its command asks
//! for, a [`Body`]; of an ATA command its data follows at [`DATA_OFFSET`]. None of these types holds or copies
//! that data: a frame is [`Frame::put`], with the payload behind it from wherever it lies.
//!
//! The native protocol shares nothing with this but the crate. What both have is the rule of the house: no I/O,
//! no clock, no unsafe code, no panic on any input.

/// Declares an enum of numbers with names, as they stand in one octet.
macro_rules! numbered {
    (
        $(#[$meta:meta])*
        $name:ident { $( $(#[$vmeta:meta])* $variant:ident = $number:literal, $text:literal; )* }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum $name {
            $( $(#[$vmeta])* $variant = $number, )*
        }

        impl $name {
            /// All of them, in the order of the declaration.
            pub const ALL: &'static [$name] = &[$($name::$variant),*];

            /// The one with this number, if there is one.
            #[inline]
            pub fn known(number: u8) -> Option<$name> {
                match number {
                    $( $number => Some($name::$variant), )*
                    _ => None,
                }
            }

            /// Its name: of its counter, and in `docs/aoe.md`.
            pub fn name(self) -> &'static str {
                match self {
                    $( $name::$variant => $text, )*
                }
            }
        }
    };
}

mod ata;
mod frame;
mod header;
mod identify;
mod mask;
mod query;
mod refused;
mod reserve;

#[cfg(test)]
mod ata_tests;

pub use ata::{
    ATA_BYTES, AtaCommand, AtaIo, AtaRefused, AtaRegisters, Drive, LBA28_SECTORS_MAX,
    LBA48_SECTORS_MAX, RefusedBy, SECTOR_BYTES, ata_error, ata_flags, ata_status,
};
pub use frame::{Body, DATA_OFFSET, Frame};
pub use header::{
    ANY_SHELF, ANY_SLOT, AoeCommand, ETHER_TYPE, ErrorCode, HEADER_BYTES, Header, ShelfSlot,
    VERSION,
};
pub use identify::{DriveIdentity, IDENTIFY_BYTES, IdentifyView};
pub use mask::{
    DIRECTIVE_BYTES, Directive, DirectiveCommand, MASK_BYTES, MaskCommand, MaskError, MaskList,
};
pub use query::{CONFIG_BYTES_MAX, ConfigCommand, ConfigQuery, QUERY_BYTES};
pub use refused::FrameRefused;
pub use reserve::{MAC_BYTES, RESERVE_BYTES, Reservation, ReserveCommand};
