//! What clients of AoE have set of a target's devices, from one life of the target to the next: a file of each device in the
//! state directory (`docs/aoe.md`, "The server").

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use thinwire_aoe::{AoeKeeper, AoeKept};
use thinwire_buffer::Addr;
use thinwire_runtime::disk::state_file;
use thinwire_wire::aoe::ShelfSlot;

use crate::config::TargetSettings;
use crate::size::parse_mac;

/// How long the end of a target waits for a file that is being written.
const END_PATIENCE: Duration = Duration::from_secs(5);
/// The most stations of a list (AoEr11, sections 3.3 and 3.4).
const STATIONS_MAX: usize = 255;
/// The version of the files.
const FORMAT: u32 = 1;

/// What is in a file.
#[derive(Debug, Serialize, Deserialize)]
struct KeptFile {
    format: u32,
    /// What the device was: if it is another export by now, nothing else counts.
    export: String,
    /// Two digits an octet.
    config: String,
    masks: Vec<String>,
    reserved: Vec<String>,
    reserving: Vec<String>,
}

impl KeptFile {
    fn of(export: &str, kept: &AoeKept) -> Self {
        let list = |macs: &[[u8; 6]]| macs.iter().map(|&mac| Addr::Mac(mac).to_string()).collect();
        KeptFile {
            format: FORMAT,
            export: export.to_owned(),
            config: kept.config.iter().map(|octet| format!("{octet:02x}")).collect(),
            masks: list(&kept.masks),
            reserved: list(&kept.reserved),
            reserving: list(&kept.reserving),
        }
    }

    /// `None` if it is none of ours.
    fn kept(&self) -> Option<AoeKept> {
        let list = |macs: &[String]| {
            let macs = macs.iter().take(STATIONS_MAX);
            macs.map(|mac| parse_mac(mac)).collect::<Option<_>>()
        };
        let octet = |digits: &[u8]| {
            let digits = std::str::from_utf8(digits).ok().filter(|digits| digits.len() == 2)?;
            u8::from_str_radix(digits, 16).ok()
        };
        let config = self.config.as_bytes().chunks(2).map(octet).collect::<Option<_>>()?;
        (self.format == FORMAT).then_some(())?;
        let (reserved, reserving) = (list(&self.reserved)?, list(&self.reserving)?);
        Some(AoeKept { config, masks: list(&self.masks)?, reserved, reserving })
    }
}

/// Where a target keeps it.
#[derive(Clone, Debug)]
pub struct KeptPlace {
    folder: PathBuf,
    /// Targets of one machine may share the folder, and number their devices alike: no two should have one name on one
    /// interface.
    node: String,
}

/// A device, and what is kept of it under its name.
#[derive(Clone, Debug)]
pub struct KeptDevice {
    /// Its number.
    pub device: ShelfSlot,
    /// The interface on which it is offered, the first by name if there are several.
    pub ifname: String,
    /// The export.
    pub export: String,
}

impl KeptPlace {
    /// That of this target.
    pub fn new(config: &TargetSettings) -> Self {
        KeptPlace { folder: config.state_dir.clone(), node: config.node.clone() }
    }

    fn path(&self, of: &KeptDevice) -> PathBuf {
        self.folder.join(format!("aoe-{}-{}-{}.json", self.node, of.ifname, of.device))
    }

    /// What clients had set of a device. Whoever cannot be told what it was is warned, and begins with
    /// nothing: there is no other way to serve at all. Blocks.
    pub fn read(&self, of: &KeptDevice) -> AoeKept {
        let (path, device) = (self.path(of), of.device);
        let why = match state_file::read(&path) {
            Ok(None) => {
                self.warn_of_others(of);
                return AoeKept::default();
            }
            Ok(Some(bytes)) => match serde_json::from_slice::<KeptFile>(&bytes) {
                Ok(file) if file.export != of.export => return AoeKept::default(),
                Ok(file) => match file.kept() {
                    Some(kept) => return kept,
                    None => "it is not one of ours".to_owned(),
                },
                Err(error) => error.to_string(),
            },
            Err(error) => error.to_string(),
        };
        tracing::warn!(
            "offer aoe {device}: what clients have set of it (config string, masks, reservation) cannot be read from {}: {why}; \
             it begins with none of that",
            path.display()
        );
        AoeKept::default()
    }

    /// Of a device that nothing is kept of: what is kept of one with its number on another interface was perhaps its own.
    fn warn_of_others(&self, of: &KeptDevice) {
        let (begin, end) = (format!("aoe-{}-", self.node), format!("-{}.json", of.device));
        let entries = std::fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        for name in names.filter(|name| name.starts_with(&begin) && name.ends_with(&end)) {
            tracing::warn!(
                "offer aoe {}: nothing is kept of it on {}, but {} is in {}: if that was this device, on an interface with \
                 another name, call the file {}",
                of.device,
                of.ifname,
                name,
                self.folder.display(),
                self.path(of).display()
            );
        }
    }

    fn write(&self, of: &KeptDevice, kept: &AoeKept) -> io::Result<()> {
        let path = self.path(of);
        if *kept == AoeKept::default() {
            return state_file::remove(&path);
        }
        let bytes = serde_json::to_vec_pretty(&KeptFile::of(&of.export, kept))?;
        state_file::replace(&path, &bytes)
    }
}

/// What is to be written.
#[derive(Default)]
struct Due {
    changes: Mutex<Changes>,
    is_over: AtomicBool,
}

#[derive(Default)]
struct Changes {
    /// Of each device the newest.
    devices: BTreeMap<ShelfSlot, AoeKept>,
    /// Devices whose changes before are being written.
    being_written: Vec<ShelfSlot>,
}

impl Due {
    fn changes(&self) -> MutexGuard<'_, Changes> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps it, on a thread of its own: the server's never waits. The end waits until what has been set is written, for 5 s.
pub struct FileKeeper {
    due: Arc<Due>,
    writer: Option<JoinHandle<()>>,
}

impl FileKeeper {
    /// For these devices.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub fn new(place: KeptPlace, devices: Vec<KeptDevice>) -> io::Result<Self> {
        let due = Arc::new(Due::default());
        let of_writer = due.clone();
        let write = move || write_all(&of_writer, &place, &devices);
        let writer = thread::Builder::new().name("aoe-kept".into()).spawn(write)?;
        Ok(FileKeeper { due, writer: Some(writer) })
    }
}

impl AoeKeeper for FileKeeper {
    fn keep(&mut self, device: ShelfSlot, kept: &AoeKept) {
        self.due.changes().devices.insert(device, kept.clone());
        self.writer.as_ref().expect("it is there until the end").thread().unpark();
    }

    fn is_kept(&self, device: ShelfSlot) -> bool {
        let changes = self.due.changes();
        !changes.being_written.contains(&device) && !changes.devices.contains_key(&device)
    }
}

impl Drop for FileKeeper {
    fn drop(&mut self) {
        self.due.is_over.store(true, Ordering::Release);
        let Some(writer) = self.writer.take() else { return };
        writer.thread().unpark();
        let patience = Instant::now() + END_PATIENCE;
        while !writer.is_finished() && Instant::now() < patience {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

fn write_all(due: &Due, place: &KeptPlace, devices: &[KeptDevice]) {
    loop {
        // Before the look at what is due: nothing is set once it is over.
        let is_over = due.is_over.load(Ordering::Acquire);
        let now = {
            let mut changes = due.changes();
            let now = std::mem::take(&mut changes.devices);
            changes.being_written = now.keys().copied().collect();
            now
        };
        if now.is_empty() {
            if is_over {
                return;
            }
            thread::park();
        }
        for (device, kept) in now {
            let of = devices.iter().find(|known| known.device == device);
            if let Err(error) = of.map_or(Ok(()), |of| place.write(of, &kept)) {
                tracing::warn!(
                    "offer aoe {device}: what clients have set of it cannot be kept in {}: {error}; when this target begins anew \
                     its config string, masks and reservation are those of before: make the folder writable, or name another \
                     with --state-dir",
                    place.folder.display()
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempDir;

    const DEVICE: ShelfSlot = ShelfSlot { shelf: 7, slot: 1 };

    fn place(temp: &TempDir, node: &str) -> KeptPlace {
        KeptPlace { folder: temp.path().join("state"), node: node.to_owned() }
    }

    fn of(export: &str) -> KeptDevice {
        KeptDevice { device: DEVICE, ifname: "eth1".into(), export: export.into() }
    }

    fn set() -> AoeKept {
        AoeKept {
            config: vec![0, b'a', 255],
            masks: vec![[2; 6]],
            reserved: vec![[2, 0, 0, 0, 0, 1]],
            reserving: vec![[4; 6]],
        }
    }

    #[test]
    fn what_was_set_last_is_there_in_the_next_life() {
        let temp = TempDir::new("aoe-kept");
        let (place, devices) = (place(&temp, "a"), vec![of("disk0")]);
        assert_eq!(place.read(&of("disk0")), AoeKept::default());
        let mut keeper = FileKeeper::new(place.clone(), devices.clone()).unwrap();
        for n in 0..100 {
            keeper.keep(DEVICE, &AoeKept { config: vec![n], ..set() });
        }
        keeper.keep(DEVICE, &set());
        while !keeper.is_kept(DEVICE) {
            thread::yield_now();
        }
        assert_eq!(place.read(&of("disk0")), set(), "it says that it is kept");
        keeper.keep(DEVICE, &AoeKept::default());
        keeper.keep(DEVICE, &set());
        drop(keeper);
        assert_eq!(place.read(&of("disk0")), set());
        assert_eq!(place.read(&of("disk1")), AoeKept::default(), "another export by now");
        let of_another = KeptPlace { node: "b".into(), ..place.clone() };
        assert_eq!(of_another.read(&of("disk0")), AoeKept::default(), "another target's");
        let elsewhere = KeptDevice { ifname: "eth2".into(), ..of("disk0") };
        assert_eq!(place.read(&elsewhere), AoeKept::default(), "another interface's");
        let mut keeper = FileKeeper::new(place.clone(), devices).unwrap();
        keeper.keep(DEVICE, &AoeKept::default());
        drop(keeper);
        assert_eq!(std::fs::read_dir(&place.folder).unwrap().count(), 0, "nothing is set any more");
    }

    #[test]
    fn what_is_no_such_file_is_nothing() {
        let temp = TempDir::new("aoe-kept-bad");
        let place = place(&temp, "a");
        place.write(&of("disk0"), &set()).unwrap();
        let path = place.path(&of("disk0"));
        let good = std::fs::read_to_string(&path).unwrap();
        let bad = [
            String::new(),
            good[..good.len() / 2].to_owned(),
            good.replace("\"format\": 1", "\"format\": 2"),
            good.replace("0061ff", "0061f"),
            good.replace("0061ff", "0061\u{e9}"),
            good.replace("02-02-02-02-02-02", "02-02-02-02-02"),
        ];
        for text in bad {
            assert_ne!(text, good, "nothing was changed");
            std::fs::write(&path, &text).unwrap();
            assert_eq!(place.read(&of("disk0")), AoeKept::default(), "{text}");
        }
        std::fs::write(&path, good).unwrap();
        assert_eq!(place.read(&of("disk0")), set());
    }
}
