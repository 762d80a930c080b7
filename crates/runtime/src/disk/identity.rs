//! The name of the content of a file or device, which stays when it is moved or opened again.
//!
//! * A file carries 16 random bytes in the extended attribute `user.thinwire.id`, given when it is
//!   first opened for writing. `cp` and most copying programs leave it behind, so that a copy is
//!   another volume; `cp -a`, `cp --preserve=xattr`, `rsync -X` and file system snapshots take it
//!   along, and then two files are taken for one volume. Who wants to go on with such a copy as a
//!   volume of its own removes the attribute: `setfattr -x user.thinwire.id FILE`.
//! * Where the attribute is refused, or the file is only read, the identity is derived from the
//!   device number, inode and birth time: it is lost when the file moves to another file system,
//!   and may be when the machine numbers its devices anew.
//! * A block device's identity is derived from what sysfs tells of it (wwid, serial number, device
//!   mapper or md uuid) and the partition's start; else from its number and size, which another
//!   device may have after a reboot.

use std::fs::File;
use std::path::Path;

use rustix::fs::{AtFlags, StatxFlags, XattrFlags, fgetxattr, fsetxattr, statx};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

use super::DiskOpenError;
use super::domain::sync_all;

const ATTRIBUTE: &str = "user.thinwire.id";

/// The identity of a regular file; given to it now if it has none and may be written.
pub(super) fn of_file(
    file: &File,
    path: &Path,
    read_only: bool,
) -> Result<[u8; 16], DiskOpenError> {
    let os = |what, errno: Errno| DiskOpenError::Os {
        path: path.to_owned(),
        what,
        source: errno.into(),
    };
    let mut id = [0; 16];
    // Longer than an identity, so that a longer attribute is noticed.
    let mut stored = [0; 32];
    match fgetxattr(file, ATTRIBUTE, &mut stored) {
        Ok(16) => {
            id.copy_from_slice(&stored[..16]);
            return Ok(id);
        }
        Ok(_) | Err(Errno::RANGE) => {
            return Err(DiskOpenError::Damaged {
                path: path.to_owned(),
                what: "identity",
                remedy: format!("setfattr -x {ATTRIBUTE} {}", path.display()),
            });
        }
        Err(Errno::NODATA) if !read_only => {
            getrandom(&mut id, GetRandomFlags::empty())
                .map_err(|errno| os("draw an identity", errno))?;
            if fsetxattr(file, ATTRIBUTE, &id, XattrFlags::CREATE).is_ok() {
                sync_all(file).map_err(|source| DiskOpenError::Os {
                    path: path.to_owned(),
                    what: "make its identity durable",
                    source,
                })?;
                return Ok(id);
            }
        }
        Err(_) => {}
    }
    let flags = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let stat = statx(file, "", AtFlags::EMPTY_PATH, flags)
        .map_err(|errno| os("learn its inode", errno))?;
    let mut hash = Hash::of(b"thinwire file");
    hash.add(&u64::from(stat.stx_dev_major).to_be_bytes());
    hash.add(&u64::from(stat.stx_dev_minor).to_be_bytes());
    hash.add(&stat.stx_ino.to_be_bytes());
    hash.add(&stat.stx_btime.tv_sec.to_be_bytes());
    hash.add(&stat.stx_btime.tv_nsec.to_be_bytes());
    Ok(hash.value())
}

/// What sysfs may know of a disk, best first, below its directory.
const DEVICE_NAMES: [&str; 7] =
    ["wwid", "device/wwid", "dm/uuid", "md/uuid", "serial", "device/serial", "loop/backing_file"];

/// The identity of the block device with this number, and whether it is a name of the device: else it is
/// made of its number and size, and if it grew it would be another at the next start. `dev_block` is
/// `/sys/dev/block`.
pub(super) fn of_device(dev_block: &Path, major: u32, minor: u32, bytes: u64) -> ([u8; 16], bool) {
    let own = dev_block.join(format!("{major}:{minor}"));
    let own = own.canonicalize().unwrap_or(own);
    let read = |dir: &Path, name: &str| {
        let text = std::fs::read_to_string(dir.join(name)).ok()?;
        let text = text.trim().to_owned();
        (!text.is_empty()).then_some(text)
    };
    let mut hash = Hash::of(b"thinwire device");
    // A partition lies below its disk and is known by where it starts.
    let partition = read(&own, "partition").is_some();
    let disk = if partition { own.parent().unwrap_or(&own) } else { &own };
    let name = DEVICE_NAMES.iter().find_map(|name| Some((name, read(disk, name)?)));
    let is_named = name.is_some();
    match name {
        Some((name, value)) => {
            hash.add(name.as_bytes());
            hash.add(value.as_bytes());
            let offset = read(disk, "loop/offset").unwrap_or_default();
            hash.add(offset.as_bytes());
            if partition {
                hash.add(read(&own, "start").unwrap_or_default().as_bytes());
            }
        }
        None => {
            hash.add(&u64::from(major).to_be_bytes());
            hash.add(&u64::from(minor).to_be_bytes());
            hash.add(&bytes.to_be_bytes());
        }
    }
    (hash.value(), is_named)
}

/// FNV-1a of 128 bits, fed with length-prefixed fields: stable over versions and machines. It
/// names things; it protects against nobody.
pub(crate) struct Hash(u128);

impl Hash {
    pub fn of(field: &[u8]) -> Self {
        let mut hash = Hash(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d);
        hash.add(field);
        hash
    }

    pub fn add(&mut self, field: &[u8]) {
        for &byte in (field.len() as u64).to_be_bytes().iter().chain(field) {
            self.0 = (self.0 ^ u128::from(byte)).wrapping_mul((1 << 88) + 0x13b);
        }
    }

    pub fn value(&self) -> [u8; 16] {
        self.0.to_be_bytes()
    }

    /// What tells whether these bytes have changed.
    pub fn sum_of(bytes: &[u8]) -> [u8; 8] {
        let mut hash = Hash::of(bytes);
        // Of the last byte alone the upper half of the hash would hear in one of its bytes only.
        hash.add(b"");
        *hash.value().first_chunk().expect("it is longer")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_stable_and_separates_fields() {
        let mut hash = Hash::of(b"ab");
        hash.add(b"c");
        let mut other = Hash::of(b"a");
        other.add(b"bc");
        assert_ne!(hash.value(), other.value());
        // FNV-1a 128 of eight zero bytes: whoever changes it renames all derived volumes.
        let mut expected = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128;
        for _ in 0..8 {
            expected = expected.wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
        }
        assert_eq!(Hash::of(b"").value(), expected.to_be_bytes());
    }

    #[test]
    fn a_device_is_known_by_its_serial_number_and_a_partition_by_its_start() {
        let dir = std::env::temp_dir().join(format!("thinwire-sysfs-{}", std::process::id()));
        let put = |path: &str, text: &str| {
            let path = dir.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        put("devices/sda/device/serial", "S1\n");
        put("devices/sda/sda1/partition", "1\n");
        put("devices/sda/sda1/start", "2048\n");
        put("devices/sda/sda2/partition", "2\n");
        put("devices/sda/sda2/start", "4096\n");
        std::fs::create_dir_all(dir.join("block")).unwrap();
        for (number, place) in [("8:0", "sda"), ("8:1", "sda/sda1"), ("8:2", "sda/sda2")] {
            let to = dir.join("devices").join(place);
            let _ = std::os::unix::fs::symlink(to, dir.join("block").join(number));
        }
        let id = |minor, bytes| of_device(&dir.join("block"), 8, minor, bytes).0;
        assert_eq!(id(0, 1), id(0, 2));
        assert_ne!(id(0, 1), id(1, 1));
        assert_ne!(id(1, 1), id(2, 1));
        // Unknown to sysfs: number and size.
        assert_ne!(id(3, 1), id(3, 2));
        let before = id(1, 1);
        put("devices/sda/device/serial", "S2\n");
        assert_ne!(id(1, 1), before);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
