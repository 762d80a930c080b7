//! What a volume that is a cache says of itself.

/// What a cache holds and did, for status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheReport {
    /// The memory that it may take, in bytes.
    pub bytes: u64,
    /// Content that it could answer from now, in bytes.
    pub used: u64,
    /// Content that was written, and is not on the volume below yet, in bytes.
    pub dirty: u64,
    /// Reads answered from it.
    pub hits: u64,
    /// Reads that had to go to the volume below.
    pub misses: u64,
    /// What was read ahead of streams, in bytes, wanted or not.
    pub ahead: u64,
}

impl CacheReport {
    /// Both together.
    pub fn and(self, other: Self) -> Self {
        CacheReport {
            bytes: self.bytes + other.bytes,
            used: self.used + other.used,
            dirty: self.dirty + other.dirty,
            hits: self.hits + other.hits,
            misses: self.misses + other.misses,
            ahead: self.ahead + other.ahead,
        }
    }
}
