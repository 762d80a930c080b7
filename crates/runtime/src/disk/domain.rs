//! What one failed sync puts in doubt: which file system and which devices a file or device lies on.
//!
//! A failed sync counts for every volume of this process that lies on one of the same
//! ([`SyncScope`]), whichever thread serves it. What lies on what is asked of `/proc/self/mountinfo`
//! and sysfs when a volume is opened: partitions, device mapper, md, loop devices and the devices of a
//! btrfs are looked through. Where these do not tell (a network file system, a file system in user
//! space), the file system alone counts.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};

use rustix::fs::{AtFlags, StatxFlags, major, minor, statx};
use thinwire_volume::{SyncDomain, SyncScope};

use super::LettingGo;

/// A file system or device, by the number of its device.
type Number = (u32, u32);

/// Images on file systems on images: deeper than this is a mistake, or a circle.
const DEPTH_MAX: u32 = 8;

static DOMAINS: Mutex<BTreeMap<Number, Weak<SyncDomain>>> = Mutex::new(BTreeMap::new());

/// The scope of an open file, device or folder.
pub(super) fn scope_of(file: &File) -> SyncScope {
    let mut numbers = BTreeSet::new();
    let machine = Machine::real();
    match file.metadata() {
        Ok(meta) if meta.file_type().is_block_device() => {
            machine.add_device((major(meta.rdev()), minor(meta.rdev())), 0, &mut numbers);
        }
        Ok(_) => machine.add_file(file, 0, &mut numbers),
        // Then it shares its fate with nobody that is known.
        Err(_) => return SyncScope::alone(),
    }
    let mut known = DOMAINS.lock().expect("nobody panics with it");
    known.retain(|_, domain| domain.strong_count() > 0);
    let mut domain = |number| {
        let found = known.get(&number).and_then(Weak::upgrade);
        found.unwrap_or_else(|| {
            let new = SyncDomain::new();
            known.insert(number, Arc::downgrade(&new));
            new
        })
    };
    SyncScope::new(numbers.into_iter().map(&mut domain))
}

/// Syncs a file or folder. Its failure counts for all that lies there.
pub(super) fn sync_all(file: &File) -> io::Result<()> {
    let scope = scope_of(file);
    let mark = scope.begin();
    let result = file.sync_all();
    scope.end(mark, result.is_err());
    result
}

/// Syncs a file or device that is to be opened for writing, so that opening it, which syncs it, too, takes no time.
/// What cannot be looked at is left to whoever opens it.
///
/// # Errors
/// The sync has failed; that counts for all that lies there.
pub fn sync_before(path: &Path) -> io::Result<()> {
    let is_one = |found: fs::Metadata| found.is_file() || found.file_type().is_block_device();
    if !fs::metadata(path).is_ok_and(is_one) {
        return Ok(());
    }
    let Ok(file) = File::open(path) else { return Ok(()) };
    let _told = LettingGo::of(path);
    sync_all(&file)
}

/// Where the kernel tells what lies on what.
struct Machine {
    dev_block: PathBuf,
    btrfs: PathBuf,
    mountinfo: PathBuf,
}

impl Machine {
    fn real() -> Self {
        Machine {
            dev_block: "/sys/dev/block".into(),
            btrfs: "/sys/fs/btrfs".into(),
            mountinfo: "/proc/self/mountinfo".into(),
        }
    }

    /// The file system of a file, and what that lies on.
    fn add_file(&self, file: &File, depth: u32, numbers: &mut BTreeSet<Number>) {
        let flags = StatxFlags::BASIC_STATS | StatxFlags::MNT_ID;
        let Ok(stat) = statx(file, "", AtFlags::EMPTY_PATH, flags) else { return };
        // A subvolume of a btrfs has a number of its own; that of its mount is the file system's.
        let mounts = fs::read_to_string(&self.mountinfo).unwrap_or_default();
        match find_mount(&mounts, stat.stx_mnt_id) {
            Some((number, source)) => self.add_file_system(number, source, depth, numbers),
            None => {
                let number = (stat.stx_dev_major, stat.stx_dev_minor);
                self.add_file_system(number, "", depth, numbers);
            }
        }
    }

    fn add_file_system(
        &self,
        number: Number,
        source: &str,
        depth: u32,
        numbers: &mut BTreeSet<Number>,
    ) {
        if number.0 != 0 {
            return self.add_device(number, depth, numbers);
        }
        numbers.insert(number);
        let Ok(meta) = fs::metadata(source) else { return };
        if !meta.file_type().is_block_device() {
            return;
        }
        let device = (major(meta.rdev()), minor(meta.rdev()));
        self.add_device(device, depth, numbers);
        // One of several devices of a btrfs is named by its mount; the others are below its folder.
        for folder in entries(&self.btrfs) {
            let of_it: Vec<Number> = entries(&folder.join("devices"))
                .into_iter()
                .filter_map(|path| number_in(&path.join("dev")))
                .collect();
            if of_it.contains(&device) {
                of_it.iter().for_each(|&other| self.add_device(other, depth, numbers));
            }
        }
    }

    /// A device, and what it lies on.
    fn add_device(&self, number: Number, depth: u32, numbers: &mut BTreeSet<Number>) {
        if depth > DEPTH_MAX || !numbers.insert(number) {
            return;
        }
        let own = self.dev_block.join(format!("{}:{}", number.0, number.1));
        let own = own.canonicalize().unwrap_or(own);
        if own.join("partition").exists()
            && let Some(disk) = own.parent().and_then(|disk| number_in(&disk.join("dev")))
        {
            self.add_device(disk, depth + 1, numbers);
        }
        for below in entries(&own.join("slaves")) {
            if let Some(number) = number_in(&below.join("dev")) {
                self.add_device(number, depth + 1, numbers);
            }
        }
        if let Ok(path) = fs::read_to_string(own.join("loop/backing_file")) {
            self.add_path(Path::new(path.trim_end()), depth + 1, numbers);
        }
    }

    /// What a loop device reads from.
    fn add_path(&self, path: &Path, depth: u32, numbers: &mut BTreeSet<Number>) {
        // Only looked at: opening it could wait for whoever serves it.
        let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC;
        let opened = rustix::fs::open(path, flags, rustix::fs::Mode::empty());
        let Ok(file) = opened.map(File::from) else { return };
        match file.metadata() {
            Ok(meta) if meta.file_type().is_block_device() => {
                self.add_device((major(meta.rdev()), minor(meta.rdev())), depth, numbers);
            }
            Ok(_) => self.add_file(&file, depth, numbers),
            Err(_) => {}
        }
    }
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

/// `8:1` in a file of sysfs.
fn number_in(path: &Path) -> Option<Number> {
    parse_number(fs::read_to_string(path).ok()?.trim())
}

fn parse_number(text: &str) -> Option<Number> {
    let (major, minor) = text.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// The device number and source of a mount. A line of mountinfo:
/// `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`.
fn find_mount(mounts: &str, id: u64) -> Option<(Number, &str)> {
    mounts.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let mut words = before.split(' ');
        (words.next()?.parse::<u64>().ok()? == id).then_some(())?;
        let number = parse_number(words.nth(1)?)?;
        Some((number, after.split(' ').nth(1).unwrap_or("")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_found_by_their_id() {
        let mounts = "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw\n\
                      40 35 0:52 / /srv rw shared:3 - btrfs /dev/sda rw\nnonsense\n";
        assert_eq!(find_mount(mounts, 36), Some(((98, 0), "/dev/root")));
        assert_eq!(find_mount(mounts, 40), Some(((0, 52), "/dev/sda")));
        assert_eq!(find_mount(mounts, 35), None);
    }

    #[test]
    fn devices_lie_on_those_below_them() {
        let dir = std::env::temp_dir().join(format!("thinwire-domain-{}", std::process::id()));
        let put = |path: &str, text: &str| {
            let path = dir.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("devices/sda/dev", "8:0\n");
        put("devices/sda/sda1/dev", "8:1\n");
        put("devices/sda/sda1/partition", "1\n");
        put("devices/sda/sda2/dev", "8:2\n");
        put("devices/sda/sda2/partition", "2\n");
        put("devices/dm-0/dev", "253:0\n");
        put("devices/dm-0/slaves/sda2/dev", "8:2\n");
        fs::create_dir_all(dir.join("block")).unwrap();
        for (number, place) in
            [("8:0", "sda"), ("8:1", "sda/sda1"), ("8:2", "sda/sda2"), ("253:0", "dm-0")]
        {
            let to = dir.join("devices").join(place);
            let _ = std::os::unix::fs::symlink(to, dir.join("block").join(number));
        }
        let machine = Machine {
            dev_block: dir.join("block"),
            btrfs: dir.join("none"),
            mountinfo: dir.join("none"),
        };
        let below = |number| {
            let mut numbers = BTreeSet::new();
            machine.add_device(number, 0, &mut numbers);
            numbers.into_iter().collect::<Vec<_>>()
        };
        assert_eq!(below((8, 1)), [(8, 0), (8, 1)]);
        assert_eq!(below((253, 0)), [(8, 0), (8, 2), (253, 0)]);
        assert_eq!(below((7, 7)), [(7, 7)], "unknown to sysfs");
        // A loop device lies on the file system of its file, and on what that lies on.
        put("image", "");
        put("devices/loop0/dev", "7:0\n");
        put("devices/loop0/loop/backing_file", &format!("{}\n", dir.join("image").display()));
        let to = dir.join("devices/loop0");
        let _ = std::os::unix::fs::symlink(to, dir.join("block/7:0"));
        let flags = StatxFlags::MNT_ID;
        let file = File::open(dir.join("image")).unwrap();
        let id = statx(&file, "", AtFlags::EMPTY_PATH, flags).unwrap().stx_mnt_id;
        put("mountinfo", &format!("{id} 1 8:1 / / rw - ext4 /dev/sda1 rw\n"));
        let machine = Machine { mountinfo: dir.join("mountinfo"), ..machine };
        let mut numbers = BTreeSet::new();
        machine.add_device((7, 0), 0, &mut numbers);
        assert_eq!(numbers.into_iter().collect::<Vec<_>>(), [(7, 0), (8, 0), (8, 1)]);
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn two_files_of_one_folder_share_a_domain() {
        let dir = std::env::temp_dir().join(format!("thinwire-scope-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let file = |name: &str| File::create(dir.join(name)).unwrap();
        let [a, b] = ["a", "b"].map(|name| scope_of(&file(name)));
        let mark = a.begin();
        assert!(!b.is_settled(thinwire_volume::SyncMark::now()));
        a.end(mark, true);
        assert!(b.losses() > 0 && b.losses() == a.losses());
        let elsewhere = scope_of(&File::open("/proc/self/stat").unwrap());
        assert_eq!(elsewhere.losses(), 0);
        fs::remove_dir_all(&dir).unwrap();
    }
}
