//! How mirrors stand, as `status --json` tells it (`docs/status.md`).

use serde::{Deserialize, Serialize};
use thinwire_volume::{LegAbsence, LegReport, MirrorReport};

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
    /// Of one that is not back: in how many seconds that is tried again; null if not, or if it is being tried.
    #[serde(default)]
    pub retry_s: Option<u64>,
    /// Why it is not back, as that was told last; null if there is nothing to tell.
    #[serde(default)]
    pub why: Option<String>,
}

impl MirrorStatus {
    /// Of each of these.
    pub fn of(reports: &[MirrorReport]) -> Vec<Self> {
        let leg = |leg: &LegReport| MirrorLegStatus {
            standing: leg.standing.name().to_owned(),
            lacks: leg.lacks,
            retry_s: retry_s(&leg.absence),
            why: why(&leg.absence),
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
            let absence = describe_absence(leg.retry_s, leg.why.as_deref());
            format!("leg {nth} {}{lacks}{absence}", leg.standing)
        };
        let legs: Vec<_> = self.legs.iter().enumerate().map(leg).collect();
        format!("mirror: {}", legs.join(", "))
    }
}

/// In how many seconds a leg is tried again, if it is waited for that.
pub(crate) fn retry_s(absence: &LegAbsence) -> Option<u64> {
    absence.retry_in.map(|left| left.as_millis().div_ceil(1000) as u64)
}

/// Why it is not back, if that was told.
pub(crate) fn why(absence: &LegAbsence) -> Option<String> {
    (!absence.why.is_empty()).then(|| absence.why.clone())
}

/// The same for people, behind how the leg stands.
fn describe_absence(retry_s: Option<u64>, why: Option<&str>) -> String {
    let retry = retry_s.map(|left| format!(", tried again in {left} s"));
    let why = why.map(|why| format!(", {why}"));
    retry.unwrap_or_default() + &why.unwrap_or_default()
}
