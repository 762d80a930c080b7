//! Volumes made of volumes.

mod linear;
mod slab;

pub use linear::{Linear, LinearError};
