//! `thinwire copy`: one volume onto another, several requests in flight, holes and zeroes kept
//! sparse; and the comparison afterwards.

mod compare;
mod engine;
mod map;
mod pair;

pub use compare::compare;
pub use engine::{Copied, copy};
pub use pair::{CopyPair, Watch};
