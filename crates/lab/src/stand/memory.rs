//! Memory that a server has no more of: a control group whose processes share it with what their kernel keeps of files
//! for them.

use std::path::{Path, PathBuf};

use super::{Image, Laboratory, VOLUME_MIB, sweep};
use crate::error::{LabError, Outcome, failed};
use crate::offered::Medium;

/// Folders in which control groups that hold memory may be, besides those of disks.
pub const GROUP_ROOTS: [&str; 1] = ["/sys/fs/cgroup/memory"];

/// Memory of a server that has more than its image, in MiB: for itself.
const BESIDE_MIB: u32 = 64;

/// A control group with so much memory. Ends what is in it and removes it when it is dropped.
pub struct HeldMemory {
    group: PathBuf,
}

impl HeldMemory {
    /// One with so many MiB. Fails where the kernel has no such groups, and says so.
    pub fn new(lab: &Laboratory, mib: u32) -> Outcome<Self> {
        let (root, file) = controller()?;
        let held = HeldMemory { group: root.join(lab.fresh_tag()) };
        std::fs::create_dir(&held.group)
            .map_err(failed(format!("cannot make {}", held.group.display())))?;
        let limit = held.group.join(file);
        std::fs::write(&limit, (u64::from(mib) << 20).to_string())
            .map_err(failed(format!("cannot limit memory by {}", limit.display())))?;
        Ok(held)
    }

    /// One for a server of this image, of which nothing is in memory from now on.
    pub fn for_image(lab: &Laboratory, image: &Image, medium: Medium) -> Outcome<Self> {
        let file = std::fs::File::open(image.path()).map_err(failed("cannot open the image"))?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)
            .map_err(|e| LabError::Failed(format!("cannot have the image forgotten: {e}")))?;
        HeldMemory::new(lab, mib_for(medium))
    }

    /// The words that put a command into the group, to be set before it.
    pub fn prefix(&self) -> [String; 4] {
        let script = "echo $$ > \"$0\" && exec \"$@\"";
        let members = self.group.join("cgroup.procs");
        ["sh".into(), "-c".into(), script.into(), members.display().to_string()]
    }
}

impl Drop for HeldMemory {
    fn drop(&mut self) {
        sweep::remove_group(&self.group);
    }
}

/// What a server of an image has.
fn mib_for(medium: Medium) -> u32 {
    match medium {
        Medium::Exceeds => VOLUME_MIB * 2 / 3,
        _ => VOLUME_MIB + BESIDE_MIB,
    }
}

/// Where such groups are made, and the file that says how much.
fn controller() -> Outcome<(PathBuf, &'static str)> {
    for root in GROUP_ROOTS.map(Path::new) {
        if root.join("memory.limit_in_bytes").exists() {
            return Ok((root.to_owned(), "memory.limit_in_bytes"));
        }
    }
    for root in super::disk::GROUP_ROOTS.map(Path::new) {
        let offered = std::fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
        if offered.split_whitespace().any(|word| word == "memory") {
            let _ = std::fs::write(root.join("cgroup.subtree_control"), "+memory");
            return Ok((root.to_owned(), "memory.max"));
        }
    }
    Err(LabError::Failed("this kernel offers no control group that limits memory".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_exceeds_is_half_as_large_again_and_what_fits_leaves_room() {
        let exceeds = f64::from(VOLUME_MIB) / f64::from(mib_for(Medium::Exceeds));
        assert!((exceeds - 1.5).abs() < 0.02, "{exceeds}");
        assert!(mib_for(Medium::Fits) > VOLUME_MIB);
    }
}
