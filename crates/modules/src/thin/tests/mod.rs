//! Tests of pools: against a model, on disks that crash, lie about what is discarded, and fail.

mod basics;
mod conforms;
mod content;
mod crashes;
mod cuts;
mod damage;
pub(crate) mod disk;
mod fenced;
mod fuzz;
mod golden;
mod growth;
mod kept;
pub(crate) mod made;
mod many;
mod model;
mod random;
mod reaping;
mod repairs;
mod room;
mod scenes;
mod several;
mod trims;
mod world;
mod writers;
