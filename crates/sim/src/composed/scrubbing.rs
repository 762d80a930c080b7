//! Scrubs of the mirrors of a composed volume: beside its users, where they find only what a crash has left, and of a leg that has rotted at rest.
//! What fits no sum is found and repaired; where legs have no sums it is told, and nothing is written (rule 20).

use thinwire_link::rng::Rng;
use thinwire_modules::meta::{LABEL_AREA_BYTES, NewPart};
use thinwire_modules::mirror::MIRROR_DATA_START;
use thinwire_modules::{Integrity, Module, SumLayout};
use thinwire_volume::ScrubReport;

use super::host::HostScene;
use super::{ComposedVolume, VolumeHost, VolumeShape};
use crate::medium::MediumHandle;
use crate::model::{ContentLife, Violation};
use crate::stamp::SECTOR_BYTES;

/// Of what one block is judged, in bytes.
const BLOCK: u64 = 4096;
/// Mirrors are not smaller, in such blocks.
const BLOCKS: u64 = 4;
/// What may stand on a mirror of which a block reads as something else, where nobody reads it.
const PASSING: [&str; 3] = ["cache", "qos", "slice"];

/// A scrub of a host that runs.
#[derive(Default)]
pub struct HostScrub {
    /// It was begun, and has not ended.
    pub is_running: bool,
    /// Nothing has rotted: what it finds it ought not to.
    pub is_clean: bool,
    /// What had gone wrong when it was begun.
    begun: Option<Troubles>,
    /// What it said last, of each mirror.
    pub reports: Vec<ScrubReport>,
}

/// How often power failed, somebody was killed, or a disk lost something, as far as that matters for a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Troubles(u64);

/// What is known of the mirrors of a volume by the scrubs that have ended.
#[derive(Default)]
pub struct Scrubbed {
    /// What had gone wrong before anybody used it.
    made: Option<Troubles>,
    /// Of each mirror: what had gone wrong when the last scrub began that has read all and found nothing.
    clean: Vec<Option<Troubles>>,
}

impl ComposedVolume {
    /// What has gone wrong by now; none while a disk has lost something and has told nobody yet.
    pub fn troubles(&self, life: ContentLife) -> Option<Troubles> {
        let count = life.upheavals + life.losses + self.crashes;
        (!life.in_doubt).then_some(Troubles(count))
    }

    /// It is used from now on.
    pub fn note_made(&mut self, life: ContentLife) {
        if self.scrubbed.made.is_none() {
            self.scrubbed.made = self.troubles(life);
        }
    }

    /// The disks that each of its mirrors has, or had, in the order in which these are visited.
    fn mirrors(&self) -> Vec<Vec<usize>> {
        let mut mirrors = Vec::new();
        self.shape.walk(&mut |shape| {
            if shape.top().is_some_and(|top| top.is_mirror()) {
                mirrors.push(shape.disks());
            }
        });
        if let Some(changes) = &self.changes {
            mirrors[changes.mirror].extend(&changes.ground);
        }
        mirrors
    }

    /// What a scrub beside users has found of a mirror is what it may find, as things stand.
    fn may_find(&self, mirror: usize, report: &ScrubReport, now: Option<Troubles>) -> bool {
        let disks = self.mirrors();
        let fails = disks[mirror].iter().any(|disk| self.failing.contains(disk));
        let clean = self.scrubbed.clean.get(mirror).copied().flatten().or(self.scrubbed.made);
        let is_calm = now.is_some() && now == clean;
        if fails {
            // It may have lost something, and told nobody yet; and it may not be read.
            return !is_calm || report.differing == 0;
        }
        // What a crash has left unverified on one leg is mended from another.
        let is_mended = report.repaired > 0 || report.unverified > 0;
        report.differing == 0 && report.bad == 0 && !(is_calm && is_mended)
    }

    /// All of a mirror was read, and nothing was found since `begun`.
    fn note_clean(&mut self, mirror: usize, begun: Option<Troubles>) {
        let clean = &mut self.scrubbed.clean;
        clean.resize(clean.len().max(mirror + 1), None);
        clean[mirror] = begun;
    }
}

impl VolumeHost {
    /// Begins to read everything of all mirrors, if it has the volume.
    pub fn begin_scrub(&mut self, is_clean: bool, begun: Option<Troubles>) {
        let Some(volume) = self.volume_mut() else { return };
        volume.scrubs(&mut |scrub| {
            if scrub.scrub_report().module == "mirror" {
                scrub.begin_scrub(0);
            }
        });
        self.scrub = HostScrub { is_running: true, is_clean, begun, reports: Vec::new() };
        self.machine.dirty = true;
    }

    /// Hears how what was begun stands.
    ///
    /// # Errors
    /// It has found what is not there.
    pub(super) fn look_at_scrub(&mut self, scene: &mut HostScene<'_>) -> Result<(), Violation> {
        if !self.scrub.is_running {
            return Ok(());
        }
        let Some(volume) = self.volume_mut() else { return Ok(()) };
        let mut reports = Vec::new();
        volume.scrubs(&mut |scrub| {
            let report = scrub.scrub_report();
            if report.module == "mirror" {
                reports.push(report);
            }
        });
        if reports.iter().any(|report| report.is_running) {
            return Ok(());
        }
        self.scrub.is_running = false;
        scene.coverage.scrubs_ended += u64::from(!reports.is_empty());
        let (now, begun) = (scene.volume.troubles(scene.life), self.scrub.begun);
        for (mirror, report) in reports.iter().enumerate() {
            if self.scrub.is_clean && !scene.volume.may_find(mirror, report, now) {
                return Err(Violation(format!(
                    "{} (run {}): nothing has rotted, and a scrub says {report:?}, {now:?}",
                    self.name, self.run
                )));
            }
            let is_all = report.from == 0 && report.unread_legs == 0;
            if is_all && report.is_clean() && begun.is_some() {
                scene.volume.note_clean(mirror, begun);
            }
        }
        self.scrub.reports = reports;
        Ok(())
    }
}

/// A block of a leg that is not what was written there any more.
pub struct Rot {
    medium: MediumHandle,
    /// Where it stands, in sectors, and what stood there.
    sector: usize,
    was: Vec<u8>,
    rotten: Vec<u8>,
    /// The leg has sums; and some leg has.
    has_sums: bool,
    any_sums: bool,
}

/// A leg of a mirror that may rot.
#[derive(Clone, Copy)]
struct Leg {
    disk: usize,
    /// Where the data of the mirror begins there.
    start: u64,
    has_sums: bool,
}

/// The legs of all mirrors.
fn legs(shape: &VolumeShape, volume: &ComposedVolume, found: &mut Vec<Leg>) {
    let is_mirror = shape.top().is_some_and(|top| top.is_mirror());
    for part in shape.parts() {
        match part {
            VolumeShape::Disk(disk) if is_mirror => {
                let (disk, start, has_sums) = (*disk, MIRROR_DATA_START, false);
                found.push(Leg { disk, start, has_sums });
            }
            VolumeShape::Over(over) if is_mirror && over.has_sums() => {
                let [VolumeShape::Disk(disk)] = over.parts[..] else { continue };
                let medium = &volume.disks[disk].medium;
                let (uuid, content) = ([1; 16], medium.identity());
                let bytes = medium.durable().len() as u64;
                let module = Module::find(Integrity::NAME).expect("there is one");
                let part = NewPart { uuid, content, bytes };
                let layout = SumLayout::of(part.data_bytes(module));
                let start = LABEL_AREA_BYTES + layout.data_offset + MIRROR_DATA_START;
                found.push(Leg { disk, start, has_sums: true });
            }
            _ => {}
        }
        legs(part, volume, found);
    }
}

/// A block that reads as something else would be read by what stands there, but for these.
fn is_read_by_users_alone(shape: &VolumeShape) -> bool {
    let mut shape = shape;
    while let (Some(top), [part]) = (shape.top(), shape.parts()) {
        if !PASSING.contains(&top.name) {
            return false;
        }
        shape = part;
    }
    shape.top().is_some_and(|top| top.is_mirror())
}

impl Rot {
    /// What a seed has rot while nobody has the volume, if it can be told what comes of that.
    pub fn plant(volume: &ComposedVolume, rng: &mut Rng) -> Option<Rot> {
        let mut found = Vec::new();
        legs(&volume.shape, volume, &mut found);
        let is_plain_told = is_read_by_users_alone(&volume.shape);
        found.retain(|leg| leg.has_sums || is_plain_told);
        // Those with sums are few.
        if found.iter().any(|leg| leg.has_sums) && rng.chance(0.8) {
            found.retain(|leg| leg.has_sums);
        }
        if found.is_empty() {
            return None;
        }
        let leg = found[rng.below(found.len() as u64) as usize];
        Some(Rot::flip(volume, leg, rng))
    }

    /// A planted fault: a block of the first leg with sums rots, if there is one, which nobody who judges knows of.
    pub fn plant_untold(volume: &ComposedVolume, rng: &mut Rng) {
        let mut found = Vec::new();
        legs(&volume.shape, volume, &mut found);
        if let Some(&leg) = found.iter().find(|leg| leg.has_sums) {
            Rot::flip(volume, leg, rng);
        }
    }

    /// A bit of one of the first blocks is another.
    fn flip(volume: &ComposedVolume, leg: Leg, rng: &mut Rng) -> Rot {
        let Leg { disk, start, has_sums } = leg;
        // Reports are of all mirrors.
        let any_sums = volume.shape.has(Integrity::NAME);
        let medium = volume.disks[disk].medium.clone();
        let at = start + rng.below(BLOCKS) * BLOCK + rng.below(BLOCK);
        let sector = at as usize / SECTOR_BYTES;
        let place = sector * SECTOR_BYTES..(sector + 1) * SECTOR_BYTES;
        let was = medium.durable()[place].to_vec();
        let mut rotten = was.clone();
        rotten[at as usize % SECTOR_BYTES] ^= 1 << rng.below(8);
        medium.write_durably(sector, rotten.clone());
        Rot { medium, sector, was, rotten, has_sums, any_sums }
    }

    /// A scrub has told what is to be told.
    ///
    /// # Errors
    /// It has not.
    pub fn judge(&self, reports: &[ScrubReport]) -> Result<(), Violation> {
        let of = |count: fn(&ScrubReport) -> u64| reports.iter().map(count).sum::<u64>();
        let said = (of(|r| r.repaired), of(|r| r.differing), of(|r| r.bad));
        let is_told = match self.has_sums {
            // Whoever opened the volume may have read it, which repairs it, too; and a power failure before leaves blocks that are mended.
            true => matches!(said, (_, 0, 0)),
            // Of another leg the same.
            false => matches!(said, (repaired, 1, 0) if repaired == 0 || self.any_sums),
        };
        if !is_told || reports.iter().any(|report| report.has_failed) {
            let sums = if self.has_sums { "with" } else { "without" };
            let text = format!("sector {} of a leg {sums} sums has rotted", self.sector);
            return Err(Violation(format!("{text}, and a scrub says {reports:?}")));
        }
        Ok(())
    }

    /// What stands there now is what is to.
    ///
    /// # Errors
    /// It is not.
    pub fn check(&self) -> Result<(), Violation> {
        let place = self.sector * SECTOR_BYTES..(self.sector + 1) * SECTOR_BYTES;
        let stands = self.medium.durable()[place].to_vec();
        let due = if self.has_sums { &self.was } else { &self.rotten };
        if stands != *due {
            let what = if self.has_sums { "was not repaired" } else { "was written over by guess" };
            return Err(Violation(format!("what has rotted in sector {} {what}", self.sector)));
        }
        Ok(())
    }
}
