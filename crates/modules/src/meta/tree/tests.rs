//! Trees against maps in memory, on disks that crash, lie, and fail.

mod crashes;
mod disk;
mod model;
mod world;

use super::*;
