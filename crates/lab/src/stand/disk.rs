//! Images on a real disk, and a disk with limits: a loop device whose I/O the kernel holds to a rate for
//! the processes of one control group.

use std::os::linux::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::{Laboratory, sweep};
use crate::error::{LabError, Outcome, failed};

/// An image of random bytes, [`super::VOLUME_MIB`] long. Removed when it is dropped.
pub struct Image {
    path: PathBuf,
}

impl Image {
    /// Makes one in the laboratory's folder on the disk; its bytes are on the disk when this returns.
    pub fn new(lab: &Laboratory) -> Outcome<Self> {
        let image = Image { path: lab.fresh_disk_path("image")? };
        let copy = || -> std::io::Result<()> {
            let mut file = std::fs::File::create(&image.path)?;
            std::io::copy(&mut std::fs::File::open(lab.blob().map_err(other)?)?, &mut file)?;
            file.sync_all()
        };
        copy().map_err(failed(format!("cannot make the image {}", image.path.display())))?;
        Ok(image)
    }

    /// One of so many MiB of which nothing is there yet.
    pub fn sparse(lab: &Laboratory, mib: u32) -> Outcome<Self> {
        let image = Image { path: lab.fresh_disk_path("image")? };
        std::fs::File::create(&image.path)
            .and_then(|file| file.set_len(u64::from(mib) << 20))
            .map_err(failed(format!("cannot make the image {}", image.path.display())))?;
        Ok(image)
    }

    /// Where it is.
    pub fn path(&self) -> &str {
        self.path.to_str().expect("checked when the laboratory was opened")
    }
}

fn other(error: LabError) -> std::io::Error {
    std::io::Error::other(error.to_string())
}

impl Drop for Image {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// I/Os a second of a limited disk, each way.
pub const LIMIT_IOPS: u32 = 20_000;
/// MiB a second of a limited disk, each way.
pub const LIMIT_MIB: u32 = 200;

/// A loop device, and a control group whose processes it is slow for. Ends what is in the group and
/// removes both when it is dropped.
pub struct LimitedDisk {
    device: Loop,
    group: PathBuf,
    _image: Image,
}

impl LimitedDisk {
    /// Makes one. Fails where the kernel has no such limits, and says so.
    pub fn new(lab: &Laboratory) -> Outcome<Self> {
        let image = Image::new(lab)?;
        let (root, version) = controller()?;
        let device = Loop::over(lab, image.path())?;
        let disk = LimitedDisk { device, group: root.join(lab.fresh_tag()), _image: image };
        let made = std::fs::create_dir(&disk.group);
        made.map_err(failed(format!("cannot make {}", disk.group.display())))?;
        let number = std::fs::metadata(disk.device())
            .map_err(failed(format!("cannot look at {}", disk.device())))?
            .st_rdev();
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        for (file, text) in limits(version, major, minor) {
            let file = disk.group.join(file);
            let said = std::fs::write(&file, text);
            said.map_err(failed(format!("cannot limit a disk by {}", file.display())))?;
        }
        Ok(disk)
    }

    /// The device.
    pub fn device(&self) -> &str {
        self.device.device()
    }

    /// The words that put a command into the group, to be set before it.
    pub fn prefix(&self) -> [String; 4] {
        let script = "echo $$ > \"$0\" && exec \"$@\"";
        let members = self.group.join("cgroup.procs");
        ["sh".into(), "-c".into(), script.into(), members.display().to_string()]
    }
}

impl Drop for LimitedDisk {
    fn drop(&mut self) {
        sweep::remove_group(&self.group);
    }
}

/// A loop device over a file, past the page cache of who has the file. Detached when it is dropped.
pub struct Loop {
    device: String,
}

impl Loop {
    /// Makes one.
    pub fn over(lab: &Laboratory, file: &str) -> Outcome<Self> {
        let argv = ["losetup", "--direct-io=on", "--find", "--show", file];
        Ok(Loop { device: lab.run(None, &argv, "")?.trim().to_owned() })
    }

    /// The device.
    pub fn device(&self) -> &str {
        &self.device
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        sweep::release_loop(&self.device);
    }
}

/// Which of the kernel's two interfaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// Folders in which control groups that can hold I/O back may be.
pub const GROUP_ROOTS: [&str; 3] =
    ["/sys/fs/cgroup/blkio", "/sys/fs/cgroup", "/sys/fs/cgroup/unified"];

/// Where control groups that can hold I/O back are made.
fn controller() -> Outcome<(PathBuf, Version)> {
    for root in GROUP_ROOTS.map(Path::new) {
        if root.join("blkio.throttle.read_iops_device").exists() {
            return Ok((root.to_owned(), Version::One));
        }
        let offered = std::fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
        if offered.split_whitespace().any(|word| word == "io") {
            let _ = std::fs::write(root.join("cgroup.subtree_control"), "+io");
            return Ok((root.to_owned(), Version::Two));
        }
    }
    Err(LabError::Failed(
        "this kernel offers no control group that limits I/O (io, or blkio of version 1)".into(),
    ))
}

/// Files of a group, and what limits a device there.
fn limits(version: Version, major: u32, minor: u32) -> Vec<(&'static str, String)> {
    let (iops, bytes) = (LIMIT_IOPS, u64::from(LIMIT_MIB) << 20);
    match version {
        Version::One => [
            ("blkio.throttle.read_iops_device", u64::from(iops)),
            ("blkio.throttle.write_iops_device", u64::from(iops)),
            ("blkio.throttle.read_bps_device", bytes),
            ("blkio.throttle.write_bps_device", bytes),
        ]
        .map(|(file, value)| (file, format!("{major}:{minor} {value}")))
        .into(),
        Version::Two => {
            let text =
                format!("{major}:{minor} riops={iops} wiops={iops} rbps={bytes} wbps={bytes}");
            vec![("io.max", text)]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_interfaces_are_told_the_same() {
        let one = limits(Version::One, 7, 3);
        assert_eq!(one.len(), 4);
        assert_eq!(one[0], ("blkio.throttle.read_iops_device", "7:3 20000".to_owned()));
        assert_eq!(one[3].1, "7:3 209715200");
        let two = limits(Version::Two, 7, 3);
        let all = "7:3 riops=20000 wiops=20000 rbps=209715200 wbps=209715200";
        assert_eq!(two, [("io.max", all.to_owned())]);
    }
}
