//! Tests of cuts: volumes of pools on disks that crash, fail and hang, below one whole.

mod crashes;
mod faults;
mod world;
