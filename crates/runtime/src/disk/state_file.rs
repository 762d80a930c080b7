//! Small files of the state directory, each replaced as a whole.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::domain::sync_all;

/// What is kept of something with this identity, by `whose`.
pub(super) fn path(whose: &str, identity: &[u8; 16], state_dir: &Path) -> PathBuf {
    let name: String = identity.iter().map(|byte| format!("{byte:02x}")).collect();
    state_dir.join(format!("{whose}-{name}"))
}

/// Replaces it in one step, durably: a crash leaves the old or the new one. Makes its folder, if there is none. Blocks.
///
/// # Errors
/// The file system's: the old one is there, or the new one, and may not be durable.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    fs::create_dir_all(folder(path))?;
    let new = path.with_extension("new");
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.open(&new)?;
    file.write_all(bytes)?;
    sync_all(&file)?;
    fs::rename(&new, path)?;
    sync_folder(path)
}

/// Removes it, if it is there, durably. If it is not, whoever removed it may have failed to make that durable. Blocks.
///
/// # Errors
/// The file system's: it may be there, or may be again after a crash.
pub fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Ok(()) => sync_folder(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => sync_absence(path),
        Err(error) => Err(error),
    }
}

/// What it holds, if it is there. Blocks.
///
/// # Errors
/// It is there, and cannot be read.
pub fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Makes what is there durable, or that nothing is: a process may have ended before it could.
pub(super) fn sync(path: &Path) -> io::Result<()> {
    match File::open(path) {
        Ok(file) => sync_all(&file)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return sync_absence(path),
        Err(error) => return Err(error),
    }
    sync_folder(path)
}

/// It is not there. Nobody removes the folder: if that is not there, either, nothing ever was.
fn sync_absence(path: &Path) -> io::Result<()> {
    match sync_folder(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

fn sync_folder(path: &Path) -> io::Result<()> {
    sync_all(&File::open(folder(path))?)
}

fn folder(path: &Path) -> &Path {
    path.parent().expect("a file in a directory")
}
