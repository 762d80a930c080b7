//! What was written comes back, or nothing does: over stores, over disks that do as they are told, and over disks that crash.

mod conforms;
mod crashes;
mod finds;
mod golden;
mod grows;
mod growth;
mod opens;
mod scrubs;
mod works;
mod world;
