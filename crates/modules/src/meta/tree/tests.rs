//! Trees against maps in memory, on disks that crash, lie, and fail.

mod crashes;
mod damage;
mod disk;
mod failures;
mod fuzz;
mod golden;
mod model;
mod room;
mod world;

use super::*;
