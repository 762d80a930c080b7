//! Disks that become legs of a mirror in use: attached, looked at, and given their label once the mirror has said what that is; from then
//! on they are as any leg that comes back.

use thinwire_modules::meta::{
    Finding, Label, LabelOutcome, LabelPart, Labels, MadePart, WholeMaking,
};
use thinwire_modules::mirror::{LEG_LABEL_TOKEN, MIRROR_DATA_START};
use thinwire_volume::Volume;

use super::super::disks::HostDisks;
use super::{Comer, RETRY_NS, Returning, Way};

/// How far somebody is who brings a disk.
pub enum Coming<'a> {
    /// Nobody brings it.
    Nowhere,
    /// Something has to happen first.
    OnItsWay,
    /// It waits for its label.
    Offered(&'a dyn Volume),
    /// It has that, and has not been brought yet.
    Made,
    /// The mirror has it.
    Used,
}

impl Returning {
    /// How far a disk is.
    pub fn coming(&self, disk: usize) -> Coming<'_> {
        let comer = self.comers.iter().find(|comer| comer.disk == disk);
        match comer.map(|comer| &comer.way) {
            None | Some(Way::Out) => Coming::Nowhere,
            Some(Way::Used) => Coming::Used,
            Some(Way::Offered(volume, ..)) => Coming::Offered(&**volume),
            Some(Way::Made(_)) => Coming::Made,
            Some(_) => Coming::OnItsWay,
        }
    }

    /// Begins to bring a disk that nobody brings to the mirror whose legs are changed: to get a label, or one that has it.
    pub fn bring(&mut self, disk: usize, is_new: bool) {
        let Some(passage) = self.changed.clone() else { return };
        passage.borrow_mut().is_awaited = true;
        self.comers.retain(|comer| comer.disk != disk);
        self.comers.push(Comer { disk, passage, way: Way::Waiting(0), leg: None, is_new });
    }

    /// Gives a disk that waits for it this label, but for what only the disk knows.
    pub fn make(&mut self, disk: usize, label: &Label, disks: &HostDisks) {
        let Some(comer) = self.comer(disk) else { return };
        let way = std::mem::replace(&mut comer.way, Way::Out);
        let Way::Offered(volume, labels, is_occupied) = way else { unreachable!("it is offered") };
        let (geometry, mut label) = (volume.geometry(), label.clone());
        let (leg, block) = (usize::from(label.role), u64::from(geometry.block_bytes));
        let bytes = geometry.bytes.saturating_sub(MIRROR_DATA_START) / block * block;
        label.parts[leg] = LabelPart { bytes, ..label.parts[leg] };
        (label.content, label.data_start) = (volume.identity(), MIRROR_DATA_START);
        let made = MadePart { labels, label, is_occupied, marks: Vec::new() };
        let making = WholeMaking::new(0, disks.pool(), vec![made]);
        comer.way = Way::Making(volume, Box::new(making));
    }

    /// One that has its label is brought from now on, as any other.
    pub fn go_on(&mut self, disk: usize, disks: &HostDisks) {
        let Some(comer) = self.comer(disk) else { return };
        let way = std::mem::replace(&mut comer.way, Way::Out);
        let Way::Made(mut volume) = way else { unreachable!("it is made") };
        let mut labels = Labels::new(LEG_LABEL_TOKEN, disks.pool());
        labels.read(&mut *volume).expect("it has labels");
        (comer.way, comer.is_new) = (Way::Reading(volume, labels), false);
    }

    /// Disks that were to get a label are let go of: nobody wants that any more.
    pub fn forget_new(&mut self, disks: &mut HostDisks) {
        for comer in self.comers.iter_mut().filter(|comer| comer.is_new) {
            match comer.way {
                Way::Out => {}
                Way::Waiting(_) => comer.way = Way::Out,
                _ => comer.abort(disks, None),
            }
        }
    }

    fn comer(&mut self, disk: usize) -> Option<&mut Comer> {
        self.comers.iter_mut().find(|comer| comer.disk == disk)
    }
}

impl Comer {
    /// Takes the next step of what is looked at, or gets its label.
    pub(super) fn step_new(&mut self, now: u64, disks: &mut HostDisks) -> bool {
        match std::mem::replace(&mut self.way, Way::Out) {
            Way::Looking(mut volume, mut labels) => match labels.turn(&mut *volume) {
                Some(LabelOutcome::Read(found)) => {
                    let is_occupied = !matches!(found, Ok(Finding::Blank));
                    self.way = Way::Offered(volume, labels, is_occupied);
                    true
                }
                _ => {
                    self.way = Way::Looking(volume, labels);
                    false
                }
            },
            Way::Making(mut volume, mut making) => {
                while making.part().is_some() {
                    match making.turn(&mut *volume) {
                        Some(Ok(())) => {}
                        None => {
                            self.way = Way::Making(volume, making);
                            return false;
                        }
                        Some(Err(_)) => {
                            drop(volume);
                            self.abort(disks, Some(now + RETRY_NS));
                            return true;
                        }
                    }
                }
                self.way = Way::Made(volume);
                true
            }
            way => {
                self.way = way;
                false
            }
        }
    }
}
