//! How a host stands, for whoever waits for it.

use thinwire_volume::Volume;

use super::{HostProcess, Stage, VolumeHost};
use crate::composed::have_all_legs;

impl VolumeHost {
    /// It has the volume.
    pub fn is_serving(&self) -> bool {
        matches!(self.process, Some(HostProcess { stage: Stage::Serving(_), .. }))
    }

    /// That.
    pub(in crate::composed) fn volume_mut(&mut self) -> Option<&mut dyn Volume> {
        match &mut self.process.as_mut()?.stage {
            Stage::Serving(volume) => Some(&mut **volume),
            _ => None,
        }
    }

    /// It has the volume, and all legs of all mirrors have all data.
    pub fn has_all_legs(&self) -> bool {
        let Some(HostProcess { stage: Stage::Serving(volume), .. }) = &self.process else {
            return false;
        };
        have_all_legs(&**volume)
    }

    /// Nothing is left to do, besides: users wait for nothing, and no leg is on its way.
    pub fn is_well(&self) -> bool {
        let is_back = |process: &HostProcess| process.returning.are_all_used();
        self.user.is_done() && self.process.as_ref().is_some_and(is_back) && self.has_all_legs()
    }

    /// Ends in order if it has the volume, nobody waits, and only legs are missing that do not come back by themselves.
    pub fn reopen(&mut self) {
        let Some(process) = &self.process else { return };
        // What else is wanted of it, it is to do as it is.
        let lacks = !self.has_all_legs();
        if lacks && self.is_serving() && self.user.is_done() && process.returning.are_all_used() {
            self.close();
        }
    }

    /// How it stands.
    pub fn describe(&self) -> String {
        let Some(process) = &self.process else { return format!("{} does not run", self.name) };
        let stage = match &process.stage {
            Stage::Attaching(_) => "attaches".to_owned(),
            Stage::Growing(_) => "opens it".to_owned(),
            Stage::Serving(volume) => {
                let mut mirrors = Vec::new();
                volume.mirrors(&mut mirrors);
                format!("has it: {mirrors:?}")
            }
            Stage::WindingUp(..) => "winds it up".to_owned(),
            Stage::Detaching(_) => "detaches".to_owned(),
        };
        let disks = process.disks.remote().map(|disk| {
            let disks = &process.disks;
            let is_open = disks.is_open(disk);
            format!("{disk}: {is_open} {:?} {:?}", disks.failure(disk), disks.refusal(disk))
        });
        let disks: Vec<_> = disks.collect();
        let user = self.user.describe();
        let coming = process.returning.describe();
        format!("{} {stage}; {user}; {coming}; {}", self.name, disks.join(", "))
    }
}
