//! What status says of caches.

use serde::{Deserialize, Serialize};
use thinwire_volume::CacheReport;

use crate::size::show_size;

/// The caches of a volume, together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheStatus {
    /// The memory that it may take.
    pub bytes: u64,
    /// Content that it could answer from now.
    pub used: u64,
    /// Content that was written, and is not on what it stands on yet, in bytes; 0 from a process of an earlier version.
    #[serde(default)]
    pub dirty: u64,
    /// Reads answered from it.
    pub hits: u64,
    /// Reads that went to what it stands on.
    pub misses: u64,
    /// Bytes read ahead of streams; 0 from a process of an earlier version.
    #[serde(default)]
    pub ahead: u64,
}

impl CacheStatus {
    /// What a volume says of its own, if it has any.
    pub fn of(report: Option<CacheReport>) -> Option<Self> {
        report.map(|report| {
            let CacheReport { bytes, used, dirty, hits, misses, ahead } = report;
            CacheStatus { bytes, used, dirty, hits, misses, ahead }
        })
    }

    /// In words.
    pub fn describe(&self) -> String {
        let mut text = format!("cache of {}, {} used", show_size(self.bytes), show_size(self.used));
        if self.dirty > 0 {
            text += &format!(", {} not written yet", show_size(self.dirty));
        }
        let reads = self.hits + self.misses;
        if reads > 0 {
            let percent = (self.hits as f64 * 100.0 / reads as f64).floor();
            text += &format!(", answered {percent} % of {reads} reads");
        }
        text
    }
}
