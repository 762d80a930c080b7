//! One file for each command: flags in, work done by the other modules, text or JSON out.

pub mod attach;
pub mod bench;
mod breakdown;
pub mod copy;
pub mod detach;
pub mod discover;
pub mod key;
pub mod link;
pub mod papers;
pub mod reload;
pub mod status;
pub mod target;
pub mod volume;
