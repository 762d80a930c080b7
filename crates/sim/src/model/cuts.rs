//! Snapshots of an export that is written: what they have to hold.

use super::{Check, Model, ModelEffect, Range, Sector, State};
use crate::stamp::{SECTOR_BYTES, Seen, look};

/// Something that was acknowledged while a snapshot was being taken.
#[derive(Clone, Copy, Debug)]
pub struct Ack {
    range: Range,
    version: u64,
    /// The newest version that had been submitted by then.
    behind: u64,
}

impl Model {
    /// Of each sector the version that a snapshot has to hold that is taken from now on, at least: whatever was acknowledged, by now,
    /// to the run that writes.
    pub fn acknowledged(&self) -> Vec<u64> {
        let known = |sector: &Sector| {
            let mine = |e: &&super::Entry| {
                e.state == State::Done && e.run == self.run && e.effect != ModelEffect::Discard
            };
            let done = sector.history.iter().rev().find(mine).map_or(0, |e| e.version);
            done.max(sector.durable)
        };
        self.sectors.iter().map(known).collect()
    }

    /// What is acknowledged from now on is noted, until it is [taken](Model::take_acks).
    pub fn note_acks(&mut self) {
        self.acks = Some(Vec::new());
    }

    /// What was noted.
    pub fn take_acks(&mut self) -> Vec<Ack> {
        self.acks.take().unwrap_or_default()
    }

    /// Something was done that leaves more than was there.
    pub(super) fn note_ack(&mut self, range: Range, version: u64) {
        let behind = self.last_version;
        self.acks.iter_mut().for_each(|acks| acks.push(Ack { range, version, behind }));
    }

    /// A snapshot that holds these floors at least, and nothing newer than `ceiling`.
    pub fn check_cut(&self, image: &[u8], floors: &[u64], ceiling: u64) -> Check {
        for (at, bytes) in image.chunks_exact(SECTOR_BYTES).enumerate() {
            let (sector, seen) = (&self.sectors[at], look(bytes));
            if !self.allowed(sector, at, seen, floors[at], ceiling) {
                return self.fail(&format!(
                    "sector {at} holds {seen:?}, and version {} was acknowledged before; {:?}",
                    floors[at], sector.history
                ));
            }
        }
        Ok(())
    }

    /// The same of one moment, which is known by the newest version in it: whatever had been acknowledged when that was submitted is there.
    pub fn check_moment(&self, image: &[u8], floors: &[u64], ceiling: u64, acks: &[Ack]) -> Check {
        let version = |bytes: &[u8]| match look(bytes) {
            Seen::Stamp { version, .. } => version,
            _ => 0,
        };
        let newest = image.chunks_exact(SECTOR_BYTES).map(version).max().unwrap_or(0);
        let mut floors = floors.to_vec();
        for ack in acks.iter().filter(|ack| ack.behind < newest) {
            for floor in &mut floors[ack.range.iter()] {
                *floor = (*floor).max(ack.version);
            }
        }
        self.check_cut(image, &floors, ceiling)
    }
}
