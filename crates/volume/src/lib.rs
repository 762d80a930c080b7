//! Everything with blocks: the [`Volume`] interface, and the stores at the bottom. Knows no network.
#![forbid(unsafe_code)]

mod cache_report;
mod cut;
mod disk;
mod error;
mod event;
mod grant;
mod io;
mod kept_writer;
mod layer;
mod leaves;
mod locks;
mod mirror_report;
mod owing;
mod part;
mod port;
mod recorded;
mod scrub;
mod shared;
mod slab;
pub mod stores;
mod sync;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod unaligned;
mod work;
mod writer;

pub use cache_report::CacheReport;
pub use cut::{CUT_BYTES, CUT_NAME_BYTES_MAX, CutAct, CutOrder};
pub use disk::{Disk, DiskDone, DiskInfo, DiskOp, DiskOpKind, REFUSED};
pub use error::{ErrorKind, IoError};
pub use event::VolumeEvent;
pub use grant::{Grant, GrantError};
pub use io::{Completion, Extent, Features, Geometry, Identity, Io, IoFlags, Op, Token, Volume};
pub use kept_writer::KeptWriter;
pub use layer::Layer;
pub use leaves::{HeldGrant, LeafGeneration, LeafGrant, granted_to_others, to_remember};
pub use locks::RangeLocks;
pub use mirror_report::{LegAbsence, LegReport, LegStanding, MirrorReport};
pub use owing::{Owing, OwingCanary};
pub use part::{Closing, Effect, Expects, Gravity, Letter, Parcel, Part, PartEvent};
pub use port::{Bell, Edge, Port};
pub use recorded::{HeldLeaves, KeptBy, RecordPlace, Recorded};
pub use scrub::{BAD_BLOCKS_MAX, Scrub, ScrubReport};
pub use shared::{ByteClaim, SharedCanary, SharedVolume, VolumeShare};
pub use slab::Slab;
pub use sync::{SyncDomain, SyncMark, SyncScope};
pub use unaligned::Unaligned;
pub use work::{WORK_PERCENT_MAX, Work, WorkPace};
pub use writer::{
    ChangeError, HolderName, RecordChange, WriterRecord, change_writer, load_writer, store_writer,
};
