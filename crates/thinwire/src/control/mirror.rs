//! How mirrors stand, as `status --json` tells it (`docs/status.md`).

use serde::{Deserialize, Serialize};
use thinwire_volume::{LegReport, MirrorReport};

use crate::size::show_size;

/// How a mirror stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MirrorStatus {
    /// Of each leg, in the order of their labels.
    pub legs: Vec<MirrorLegStatus>,
}

/// How a leg of a mirror stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MirrorLegStatus {
    /// `in sync`, `resyncing`, `behind` or `failed`.
    pub standing: String,
    /// How much it lacks at most, in bytes.
    pub lacks: u64,
}

impl MirrorStatus {
    /// Of each of these.
    pub fn of(reports: &[MirrorReport]) -> Vec<Self> {
        let leg = |leg: &LegReport| MirrorLegStatus {
            standing: leg.standing.name().to_owned(),
            lacks: leg.lacks,
        };
        let mirror =
            |mirror: &MirrorReport| MirrorStatus { legs: mirror.legs.iter().map(leg).collect() };
        reports.iter().map(mirror).collect()
    }

    /// For people.
    pub fn describe(&self) -> String {
        let leg = |(nth, leg): (usize, &MirrorLegStatus)| {
            let lacks = match leg.lacks {
                0 => String::new(),
                lacks => format!(" ({} to copy at most)", show_size(lacks)),
            };
            format!("leg {nth} {}{lacks}", leg.standing)
        };
        let legs: Vec<_> = self.legs.iter().enumerate().map(leg).collect();
        format!("mirror: {}", legs.join(", "))
    }
}
