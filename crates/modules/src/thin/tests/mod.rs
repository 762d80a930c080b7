//! Tests of pools.

mod basics;
mod disk;
mod made;
mod model;
mod random;
mod world;
