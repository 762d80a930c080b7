//! `uuid:UUID`: a part of a labelled whole by what its label says, whatever it is called now. It is looked for
//! in the places that a file lists (`places = [...]`), or among the block devices of this machine.

mod looking;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use thinwire_modules::meta::{LABEL_BYTES, LABEL_OFFSETS, Label, LabelFault};

use crate::error::why_unreadable;

/// Where the kernel names all block devices.
const BLOCK_DEVICES: &str = "/sys/class/block";
/// Devices that a process stands behind, perhaps this one, and whose reading may never end; those of memory; and those that wait for a medium. Who has a part
/// there names it in `places`.
const OTHERS: [&str; 7] = ["ublk", "nbd", "loop", "ram", "zram", "fd", "sr"];
/// So long all of them together are waited for, and once more all that is in folders: a disk that sleeps wakes up in less, and one that hangs never answers.
const PATIENCE: Duration = Duration::from_secs(10);
/// Of what could not be read, and where it was looked, no more are named.
const NAMED_MAX: usize = 4;

type Uuid = [u8; 16];

// Each volume that is named is parsed by itself: all see the parts where they were when they were looked for first.
thread_local! {
    static SCANS: RefCell<BTreeMap<Vec<PathBuf>, Rc<Scan>>> = const { RefCell::new(BTreeMap::new()) };
}
/// Where parts have been found, by whatever thread: who has given up its rights since cannot look again.
static FOUND: Mutex<BTreeMap<Uuid, PathBuf>> = Mutex::new(BTreeMap::new());

/// What is looked for from now on is looked for anew.
pub(crate) fn forget() {
    SCANS.with_borrow_mut(BTreeMap::clear);
}

/// Parts by their labels, as they were found in some places.
#[derive(Default)]
struct Scan {
    parts: Vec<(PathBuf, Label)>,
    /// What has something of a label, and none that is whole.
    broken: Vec<PathBuf>,
    /// What labels were looked for in.
    seen: usize,
    unreadable: Vec<(PathBuf, io::Error)>,
}

/// The path of the part with this UUID: in hex, with dashes or without. `places` are files, devices, and folders of such; if there
/// are none, all block devices. Reads the labels of all, and blocks for at most twice [`PATIENCE`] while some do not answer.
///
/// # Errors
/// It is no UUID, no such part is there, several are (twins: neither is used), or it is that of a
/// whole.
pub(super) fn find(text: &str, places: &[PathBuf]) -> Result<PathBuf, String> {
    let uuid = parse(text).ok_or("a UUID has 32 hex digits, and dashes as you like")?;
    let known = SCANS.with_borrow(|scans| scans.get(places).cloned());
    let scan = match known {
        Some(scan) => scan,
        None => {
            let scan = Rc::new(Scan::of(places, PATIENCE, look));
            SCANS.with_borrow_mut(|scans| scans.insert(places.to_vec(), scan.clone()));
            scan
        }
    };
    let found = scan.find(&uuid).or_else(|why| {
        let before = FOUND.lock().unwrap_or_else(PoisonError::into_inner).get(&uuid).cloned();
        before.filter(|path| !scan.has(&uuid) && scan.is_denied(path)).ok_or(why)
    });
    let path = found.map_err(|why| match places.is_empty() {
        true => format!("{why}; a file lists other places to look in as places = [\"/srv\"]"),
        false => why,
    })?;
    FOUND.lock().unwrap_or_else(PoisonError::into_inner).insert(uuid, path.clone());
    Ok(path)
}

/// What may be parts in some folders.
pub(crate) struct InFolders {
    /// What has a label, or something of one, each once.
    pub parts: Vec<PathBuf>,
    /// How many files and devices were looked at.
    pub seen: usize,
    /// What could not be read, and why, in a sentence; none if all could.
    pub unreadable: Option<String>,
}

/// Looks for parts in folders, as [`find`] does, but for what is one of `known` under another name.
pub(crate) fn in_folders(folders: &[PathBuf], known: &[&Path]) -> InFolders {
    let id = |path: &Path| path.metadata().ok().as_ref().and_then(id_of);
    let known: Vec<_> = known.iter().filter_map(|path| id(path)).collect();
    let scan = Scan::of(folders, PATIENCE, look);
    let unreadable = scan.unread();
    let labelled = scan.parts.into_iter().map(|(path, _)| path);
    let mut parts: Vec<_> = labelled.chain(scan.broken).collect();
    parts.retain(|path| id(path).is_none_or(|id| !known.contains(&id)));
    parts.sort();
    InFolders { parts, seen: scan.seen, unreadable }
}

fn parse(text: &str) -> Option<Uuid> {
    let digits: String = text.chars().filter(|&c| c != '-').collect();
    let is_hex = digits.len() == 32 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hex.then(|| u128::from_str_radix(&digits, 16).ok())?.map(u128::to_be_bytes)
}

fn hex(uuid: &Uuid) -> String {
    format!("{:032x}", u128::from_be_bytes(*uuid))
}

impl Scan {
    fn of(places: &[PathBuf], patience: Duration, look: Look) -> Scan {
        let mut scan = Scan::default();
        let all = match places {
            [] => devices(),
            _ => places.to_vec(),
        };
        let met = looking::at_all(all, patience, look);
        let in_folder = |(_, met): &(PathBuf, io::Result<Met>)| match met {
            Ok(Met::Folder(paths)) => paths.clone(),
            _ => Vec::new(),
        };
        let in_folders = met.iter().flat_map(in_folder).collect();
        // What hangs beside a folder has used up its own patience, not that of what is in there.
        let mut below = looking::at_all(in_folders, patience, look).into_iter();
        let mut parts = Vec::new();
        for (place, met) in met {
            match met {
                Ok(Met::Folder(paths)) => parts.extend(below.by_ref().take(paths.len())),
                other => parts.push((place, other)),
            }
        }
        let mut known = Vec::new();
        for (path, met) in parts {
            let (id, said) = match met {
                Ok(Met::Part(id, said)) => (id, said),
                // What is in a folder below is not looked for.
                Ok(Met::Folder(_) | Met::Other) => continue,
                Err(e) => {
                    scan.unreadable.push((path, e));
                    continue;
                }
            };
            // Once, however many names it has.
            if known.contains(&id) {
                continue;
            }
            known.push(id);
            scan.seen += 1;
            match said {
                Ok(Said::Label(label)) => scan.parts.push((path, *label)),
                Ok(Said::Broken) => scan.broken.push(path),
                Ok(Said::Nothing) => {}
                Err(e) => scan.unreadable.push((path, e)),
            }
        }
        scan
    }

    fn find(&self, uuid: &Uuid) -> Result<PathBuf, String> {
        let has_it = |(_, label): &&(PathBuf, Label)| label.part().uuid == *uuid;
        let mut parts = self.parts.iter().filter(has_it).map(|(path, _)| path);
        match (parts.next(), parts.next()) {
            (Some(one), None) => return Ok(one.clone()),
            (Some(one), Some(other)) => {
                return Err(format!(
                    "{} and {} are both the part with this UUID, so one is a copy, and neither is used: name the \
                     right one by its path, or move the copy away",
                    one.display(),
                    other.display()
                ));
            }
            _ => {}
        }
        if let Some((_, label)) = self.parts.iter().find(|(_, label)| label.whole == *uuid) {
            let of: Vec<_> =
                label.parts.iter().map(|part| format!("uuid:{}", hex(&part.uuid))).collect();
            let (kind, name) = (label.module.name, &label.name);
            return Err(format!(
                "that is the UUID of the {kind} `{name}` as a whole: name its parts, {}",
                of.join(", ")
            ));
        }
        let mut why = format!("none of {} files and devices is the part with this UUID", self.seen);
        if let Some(unread) = self.unread() {
            why += &format!("; {unread}");
        }
        Err(why)
    }

    /// How many could not be read, and the first of them; none if all could.
    fn unread(&self) -> Option<String> {
        let named = self.unreadable.iter().take(NAMED_MAX);
        let named = named.map(|(path, e)| format!("{}: {}", path.display(), why_unreadable(e)));
        let named = named.collect::<Vec<_>>().join(", ");
        let count = self.unreadable.len();
        (count > 0).then(|| format!("{count} could not be read ({named})"))
    }

    /// Something is that part, or says so.
    fn has(&self, uuid: &Uuid) -> bool {
        self.parts.iter().any(|(_, label)| label.part().uuid == *uuid)
    }

    /// It may not be looked at by who looks now. What hangs, or has failed, is no part that is to be used.
    fn is_denied(&self, path: &Path) -> bool {
        let is_above = |(at, e): &(PathBuf, io::Error)| {
            path.starts_with(at) && e.kind() == io::ErrorKind::PermissionDenied
        };
        self.unreadable.iter().any(is_above)
    }
}

/// What lies at a path.
enum Met {
    /// A folder, and the paths in it.
    Folder(Vec<PathBuf>),
    /// What may have labels: what is the same under all of its names, and what stands there.
    Part((u64, u64), io::Result<Said>),
    Other,
}

/// What stands in the places of labels.
enum Said {
    Nothing,
    /// Something of a label, and none that is whole.
    Broken,
    /// The newest that is whole.
    Label(Box<Label>),
}

/// Finds that out. Blocks as long as what lies there does.
type Look = fn(&Path) -> io::Result<Met>;

fn look(path: &Path) -> io::Result<Met> {
    let meta = path.metadata()?;
    if meta.is_dir() {
        let mut paths: Vec<_> = path.read_dir()?.flatten().map(|entry| entry.path()).collect();
        paths.sort();
        return Ok(Met::Folder(paths));
    }
    Ok(match id_of(&meta) {
        Some(id) => Met::Part(id, said_by(path)),
        None => Met::Other,
    })
}

/// The block devices of this machine, as they are called in `/dev`.
fn devices() -> Vec<PathBuf> {
    let Ok(entries) = Path::new(BLOCK_DEVICES).read_dir() else { return Vec::new() };
    let dev = Path::new("/dev");
    // The kernel writes `!` for a slash.
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut all: Vec<_> = names
        .filter(|name| is_searched(name))
        .map(|name| dev.join(name.replace('!', "/")))
        .filter(|path| path.exists())
        .collect();
    all.sort();
    all
}

/// Whether a block device of this name is looked at, though nobody named it.
fn is_searched(name: &str) -> bool {
    !OTHERS.iter().any(|other| {
        let number = name.strip_prefix(other);
        number.is_some_and(|number| number.starts_with(|c: char| c.is_ascii_digit() || c == 'b'))
    })
}

/// What is the same under all of its names; none of what has no labels.
fn id_of(meta: &Metadata) -> Option<(u64, u64)> {
    match meta.file_type() {
        kind if kind.is_block_device() => Some((u64::MAX, meta.rdev())),
        kind if kind.is_file() => Some((meta.dev(), meta.ino())),
        _ => None,
    }
}

/// What the newer of two copies says, or what is left of them.
fn said_by(path: &Path) -> io::Result<Said> {
    // What became a pipe meanwhile is not waited for.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let (mut newest, mut is_ours) = (None::<Label>, false);
    for offset in LABEL_OFFSETS {
        match read_copy(&file, offset)? {
            Ok(label)
                if newest.as_ref().is_none_or(|other| other.generation < label.generation) =>
            {
                newest = Some(label);
            }
            Ok(_) | Err(LabelFault::Zero | LabelFault::Foreign { .. }) => {}
            Err(_) => is_ours = true,
        }
    }
    Ok(match newest {
        Some(label) => Said::Label(Box::new(label)),
        None if is_ours => Said::Broken,
        None => Said::Nothing,
    })
}

fn read_copy(file: &File, offset: u64) -> io::Result<Result<Label, LabelFault>> {
    let mut image = [0; LABEL_BYTES];
    match file.read_exact_at(&mut image, offset) {
        Ok(()) => Ok(Label::decode(&image)),
        // It is too short for labels.
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(Err(LabelFault::Zero)),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests;
