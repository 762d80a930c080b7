//! The folder in which a target keeps who may write what has no place for that beside its content: whether
//! something can be written there, found out before the first writer comes.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use thinwire_runtime::confine::{Account, as_starter};

use crate::config::TargetSettings;
use crate::export::ExportSpec;
use crate::privileges::needs_state_dir;

/// What keeps writers of a gateway's exports from being recorded, and what to do. `None` if nothing does,
/// or there are none: files and devices are asked when they are opened.
pub fn problem(config: &TargetSettings) -> Option<String> {
    // With --user it is known beforehand of files and devices, too.
    let becomes_user = config.privileges.user.is_some();
    let needs = |export: &&ExportSpec| {
        let has_none = !export.volume.is_store();
        !export.read_only && (has_none || becomes_user && needs_state_dir(&export.volume))
    };
    let names: Vec<_> =
        config.exports.iter().filter(needs).map(|export| export.name.as_str()).collect();
    if names.is_empty() {
        return None;
    }
    // Before there is one, it is whoever starts the target who will make it.
    let will_be_made = becomes_user && matches!(config.state_dir.try_exists(), Ok(false));
    let tried = || try_out(&config.state_dir);
    let error = if will_be_made { as_starter(tried) } else { tried() }.err()?;
    let folder = config.state_dir.display();
    Some(format!(
        "nobody can be let in to write {}: who may is recorded in {folder}, where nothing can be written \
         ({error}); make that folder writable, or name another with --state-dir",
        names.join(", ")
    ))
}

/// Makes the folder, if there is none, for the user that a target will be.
///
/// # Errors
/// It cannot be made, or given to that user.
pub fn make_for(folder: &Path, account: &Account) -> io::Result<()> {
    let mut made = Vec::new();
    make(folder, &mut made)?;
    match made.last() {
        Some(folder) => std::os::unix::fs::chown(folder, Some(account.uid), Some(account.gid)),
        None => Ok(()),
    }
}

/// Makes the folder, and a file in it, as a record would be; takes away what it has made.
///
/// # Errors
/// Nothing can be written there.
pub fn try_out(folder: &Path) -> io::Result<()> {
    let mut made: Vec<PathBuf> = Vec::new();
    let tried = make(folder, &mut made).and_then(|()| {
        let probe = folder.join(format!(".probe-{}", std::process::id()));
        // One that a killed process has left, where each has the same number.
        let _ = fs::remove_file(&probe);
        OpenOptions::new().write(true).create_new(true).open(&probe)?;
        fs::remove_file(probe)
    });
    for folder in made.iter().rev() {
        // Somebody may have put something there meanwhile.
        let _ = fs::remove_dir(folder);
    }
    tried
}

/// Makes a folder and those above it that are missing; `made`: which.
fn make(folder: &Path, made: &mut Vec<PathBuf>) -> io::Result<()> {
    let missing = folder
        .ancestors()
        .take_while(|path| !path.as_os_str().is_empty() && matches!(path.try_exists(), Ok(false)));
    let missing: Vec<_> = missing.map(Path::to_owned).collect();
    for path in missing.into_iter().rev() {
        fs::create_dir(&path)?;
        made.push(path);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempDir;

    #[test]
    fn a_folder_is_tried_out_and_left_as_it_was() {
        let temp = TempDir::new("state-dir");
        let folder = temp.path().join("a/b");
        try_out(&folder).unwrap();
        assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 0);
        fs::create_dir_all(&folder).unwrap();
        try_out(&folder).unwrap();
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
        fs::write(folder.join(format!(".probe-{}", std::process::id())), "").unwrap();
        try_out(&folder).unwrap();
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0, "a killed one of the same number");
        let file = temp.path().join("file");
        fs::write(&file, "").unwrap();
        for bad in [Path::new("/proc/nonexistent/x"), &file, &file.join("below")] {
            assert!(try_out(bad).is_err(), "{}", bad.display());
        }
    }
}
