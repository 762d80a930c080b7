//! The one loop, and what it needs of the machine: real links, disks, clocks. A frame is carried by one
//! thread all the way: there is no hand-off, no lock and no allocation between a link and a store.
//!
//! * [`shard`]: the loop, which drives a node on one thread
//! * [`serve`]: a target on a shard; [`shards`]: several of them, one a thread; [`inquiry`]: what they tell of
//!   themselves
//! * [`remote`]: an attachment as something to submit to and poll; [`blocking`]: the same for code
//!   that would rather wait
//! * [`lookup`] finds targets; [`steering`] keeps frames of others away; [`peer`] tells whose process asks
//! * [`wait`]: sleeping on everything at once, or spinning instead; when, `spin.rs` decides
//! * [`xts`]: the cipher of encrypted volumes
//! * [`confine`]: what a process gives up once it serves
//! * [`disk`]: the disks under file stores; [`spread_memory`]: a volume in memory that several threads have
pub mod blocking;
pub mod clock;
pub mod confine;
pub mod disk;
pub mod inquiry;
pub mod links;
pub mod lookup;
pub mod peer;
pub mod remote;
pub mod serve;
pub mod shard;
pub mod shards;
mod slow;
mod spin;
pub mod spread_memory;
pub mod stages;
pub mod steering;
pub mod switched;
mod turn;
pub mod wait;
pub mod xts;
