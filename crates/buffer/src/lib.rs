//! Pooled, owned buffers and the frames made of them: the types that cross every border of the
//! house (link, protocol, volume, front-end).
//!
//! * [`Pool`] hands out page-aligned memory in power-of-two size classes and takes it back when
//!   the last holder lets go. Nothing allocates once the pool is warm.
//! * [`Buf`] is memory with one owner, who may write it: a pool's, or [`Lent`] by somebody.
//! * [`Segment`] is a shared, read-only window into a buffer. Whoever holds one keeps the memory
//!   alive and unchanged.
//! * [`SegList`] is a payload: segments in order.
//! * [`RxFrame`], [`TxFrame`] and their batches are what links move; [`LinkInfo`] is what a link says
//!   about itself.
//!
//! Ownership rule of the house: *buffers change hands; bytes do not move*. Everything here belongs
//! to one shard (one thread); none of it is `Send` but [`Memory`] on its way between two pools.
#![forbid(unsafe_code)]

mod addr;
mod frame;
mod lent;
mod link_info;
mod pool;
mod seg_list;
mod segment;
mod time;

pub use addr::Addr;
pub use frame::{RxBatch, RxFrame, TX_HEAD_BYTES, TxBatch, TxFrame};
pub use lent::{Lender, Lent};
pub use link_info::{FrameSizes, LinkInfo, Room};
pub use pool::{Buf, Memory, PAGE_BYTES, Pool, PoolStats};
pub use seg_list::SegList;
pub use segment::Segment;
pub use time::Time;
