//! What is opened once for several who stand on it: pools, for their volumes, and files and devices of this machine, for slices of them.

use thinwire_volume::ByteClaim;

use super::VolumeSpec;
use super::ground::Cutout;

/// What a volume has of something that others may stand on as well.
#[derive(Clone, Copy, Debug)]
pub struct CommonUse<'a> {
    /// Of a pool the volume that is meant; else the file or device.
    pub volume: &'a VolumeSpec,
    /// Something above it has nothing changed.
    pub is_read: bool,
    /// Something above it may do without: a mirror.
    pub may_lack: bool,
    /// Where a file names it, if one does.
    pub place: Option<&'a str>,
}

impl<'a> CommonUse<'a> {
    /// Finds those in `volume`, which is used so.
    fn gather(self, above: Option<Cutout<'a>>, found: &mut Vec<CommonUse<'a>>) {
        let CommonUse { volume, is_read, may_lack, place } = self;
        if above.is_some() && volume.can_be_shared() || volume.inner().is_some() {
            return found.push(self);
        }
        let VolumeSpec::Over { children, places, module, labels, .. } = volume else { return };
        let is_read = is_read || volume.only_reads();
        let may_lack = may_lack || *labels && module.is_mirror();
        let cutout = Cutout::below(volume, above);
        for (at, volume) in children.iter().enumerate() {
            let place = places.get(at).map(String::as_str).or(place);
            CommonUse { volume, is_read, may_lack, place }.gather(cutout, found);
        }
    }
}

impl VolumeSpec {
    /// Both are one thing that is opened once: they are volumes of one pool, or that pool itself, or one file or device. Control path: looks at
    /// files.
    pub fn is_common_with(&self, other: &VolumeSpec) -> bool {
        self.is_of_pool_of(other) || self.is_same_disk(other)
    }

    /// It stands on something that the other one does, too, and that is opened once for both.
    pub fn shares_common_with(&self, other: &VolumeSpec) -> bool {
        other.all_commons().into_iter().any(|of| self.has_common(of))
    }

    /// The same of a file or device, but for those that a pool stands on of which both have volumes: that is opened once, as its first volume says.
    pub fn shares_disk_with(&self, other: &VolumeSpec) -> bool {
        let (mut own, mut others) = (Vec::new(), Vec::new());
        self.gather_disks(None, &mut own);
        other.gather_disks(None, &mut others);
        own.iter().any(|(disk, of)| {
            others.iter().any(|(other, of_other)| {
                let is_pools = of.as_ref().zip(of_other.as_ref());
                other.is_same_disk(disk) && !is_pools.is_some_and(|(of, by)| of.is_common_with(by))
            })
        })
    }

    /// The files and devices of which it has slices, and the volume of the pool, if one is, that stands on each.
    fn gather_disks(
        &self,
        of_pool: Option<&VolumeSpec>,
        found: &mut Vec<(VolumeSpec, Option<VolumeSpec>)>,
    ) {
        for CommonUse { volume, .. } in self.common_uses() {
            match volume.pool() {
                None => found.push((volume.clone(), of_pool.cloned())),
                Some((pool, _)) => pool.gather_disks(Some(volume), found),
            }
        }
    }

    /// It stands on this, which is a volume of a pool, or a file or device, as on something that is opened once.
    pub fn has_common(&self, of: &VolumeSpec) -> bool {
        self.all_commons().into_iter().any(|own| own.is_common_with(of))
    }

    /// All such things that it stands on, those below pools included: of pools the volumes.
    pub fn all_commons(&self) -> Vec<&VolumeSpec> {
        let mut found = Vec::new();
        self.gather_all_commons(None, &mut found);
        found
    }

    fn gather_all_commons<'a>(
        &'a self,
        above: Option<Cutout<'a>>,
        found: &mut Vec<&'a VolumeSpec>,
    ) {
        let VolumeSpec::Over { children, .. } = self else {
            return found.extend(above.filter(|_| self.can_be_shared()).map(|_| self));
        };
        if self.inner().is_some() {
            found.push(self);
        }
        let cutout = Cutout::below(self, above);
        children.iter().for_each(|child| child.gather_all_commons(cutout, found));
    }

    /// The volumes of pools in it, in order, but for those that pools in it stand on.
    pub fn pool_uses(&self) -> Vec<CommonUse<'_>> {
        let mut uses = self.common_uses();
        uses.retain(|of| of.volume.inner().is_some());
        uses
    }

    /// The same, and the files and devices of which it has slices, for each slice.
    pub fn common_uses(&self) -> Vec<CommonUse<'_>> {
        let mut found = Vec::new();
        let top = CommonUse { volume: self, is_read: false, may_lack: false, place: None };
        top.gather(None, &mut found);
        found
    }

    /// The same, each once: it is only read if nothing of it is written, and may lack if all of it may.
    pub fn merged_uses(&self) -> Vec<CommonUse<'_>> {
        let mut merged: Vec<CommonUse<'_>> = Vec::new();
        for of in self.common_uses() {
            match merged.iter_mut().find(|other| other.volume.is_common_with(of.volume)) {
                Some(other) => {
                    other.is_read &= of.is_read;
                    other.may_lack &= of.may_lack;
                }
                None => merged.push(of),
            }
        }
        merged
    }

    /// The same volume, but for what its volumes of pools stand on, and for what it has slices of: as it is opened when those are.
    pub fn over_commons(&self) -> VolumeSpec {
        self.over_commons_below(None)
    }

    /// The bytes that it has of a file or device by its slices, whoever only reads them or not.
    pub fn claims_on(&self, disk: &VolumeSpec) -> Vec<ByteClaim> {
        let mut found = Vec::new();
        self.over_commons().gather_claims(disk, &mut found);
        found
    }

    fn gather_claims(&self, disk: &VolumeSpec, found: &mut Vec<ByteClaim>) {
        match self {
            VolumeSpec::Share { of, claim } if of.is_same_disk(disk) => found.push(*claim),
            VolumeSpec::Over { children, .. } => {
                children.iter().for_each(|child| child.gather_claims(disk, found));
            }
            _ => {}
        }
    }

    /// What it is made of, whatever a file calls that: what has another one is another volume.
    pub fn structure(&self) -> String {
        let mut bare = self.clone();
        bare.forget_names();
        bare.to_string()
    }

    fn forget_names(&mut self) {
        // By which the volumes of a pool are told apart.
        if self.inner().is_some() {
            return;
        }
        if let VolumeSpec::Over { node, children, .. } = self {
            *node = None;
            children.iter_mut().for_each(VolumeSpec::forget_names);
        }
    }

    fn over_commons_below(&self, above: Option<Cutout<'_>>) -> VolumeSpec {
        if let Some(Cutout { claim, .. }) = above
            && self.can_be_shared()
        {
            return VolumeSpec::Share { of: Box::new(self.clone()), claim };
        }
        let (is_of_pool, cutout) = (self.inner().is_some(), Cutout::below(self, above));
        let mut over = self.clone();
        if let VolumeSpec::Over { children, .. } = &mut over {
            match is_of_pool {
                true => children.clear(),
                false => {
                    children.iter_mut().for_each(|child| *child = child.over_commons_below(cutout))
                }
            }
        }
        over
    }
}
