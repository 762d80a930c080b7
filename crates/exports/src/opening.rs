//! [`ExportOpening`]: which of the exports that have one name, one after the other.

use crate::exports::Exports;

/// An export as it was offered once. A name may come again, as another volume, while what is left of the one before is still here, and while what
/// other shards of the node have to say of that is on its way: so whatever is said of an export that goes is said of its opening.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportOpening {
    /// Its name.
    pub name: String,
    /// By which exchange of exports it came, counted from 1 ([`Exports::begin_exchange`]); 0 of those with which the node began.
    /// In each exchange a name comes once at most, so this and the name are one opening's on all shards of a node.
    pub exchange: u64,
}

impl Exports {
    /// Exports that are added from now on are those of the next exchange, whose number this returns. Shards of one node count alike: each has
    /// all of them, in the same order.
    pub fn begin_exchange(&mut self) -> u64 {
        self.exchange += 1;
        self.exchange
    }

    /// How many exchanges there were.
    pub fn exchange(&self) -> u64 {
        self.exchange
    }

    /// Which opening of its name an export is.
    pub fn opening_of(&self, export: usize) -> ExportOpening {
        let e = &self.exports[export];
        ExportOpening { name: e.name.clone(), exchange: e.exchange }
    }
}
