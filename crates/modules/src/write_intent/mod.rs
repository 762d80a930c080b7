//! Write-intent bitmaps: which regions of the data were being written, on record before they are, and cleared late. Of mirrors, and of
//! what keeps sums.

pub(crate) mod bitmap;
pub(crate) mod regions;
