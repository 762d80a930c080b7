//! Folders that hold state and locks, and in which nobody but this user and root can make, replace or
//! remove anything: not by writing in them, not by putting another in their place.
//!
//! The rule, checked whenever one is opened:
//!
//! 1. The folder is no symbolic link, belongs to this user or to root, and nobody else may write in it.
//! 2. So it is with each folder on the way to it. One that others may write in is allowed if it is
//!    sticky and what comes next in it, a folder or a link, belongs to this user or to root: then
//!    others can neither rename nor replace that (`/tmp/mine/run` may be given by `--run-dir`).
//! 3. A place that nobody chose, the default, has no folder on its way that everybody may write in,
//!    sticky or not.
//!
//! Group bits count as others', which also covers access lists: their mask stands there. Everything in
//! a folder is then opened relative to its descriptor, never through a symbolic link.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, StatxFlags};
use rustix::io::Errno;

use crate::error::{Failure, Outcome};

/// A path with more symbolic links in it is taken for a circle, as the kernel does.
const LINKS_MAX: u32 = 40;
/// Others, the group among them, may write.
const OTHERS_WRITE: u32 = 0o022;
/// Only its owner may rename or remove what is in the folder.
const STICKY: u32 = 0o1000;
/// Permissions of the folders made on the way, and of the folder.
const FOLDER_MODE: u32 = 0o755;
/// What is wrong with what is in a folder, and what to do.
const LINK: &str = "it is a symbolic link, and none is followed here; remove it";
const NOT_PLAIN: &str = "it is not a plain file; remove it";
const OTHERS_MAY_WRITE: &str = "others may write it; remove it";
/// Whom the kernel shows as the owner of what belongs to nobody in this user namespace.
const OVERFLOW_UID: u32 = 65534;

/// A folder that has passed the check. Clones share its descriptor.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
    fd: Arc<OwnedFd>,
}

/// What may be done on the way to a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// What is missing is made.
    pub make: bool,
    /// Nobody chose the place: see rule 3 of the [module](self).
    pub by_default: bool,
}

impl Folder {
    /// Opens a folder; `None` if it, or one on the way, is missing and not to be made.
    ///
    /// # Errors
    /// What breaks the rule, by its path, with what to do about it.
    pub fn open(path: &Path, way: Way) -> Outcome<Option<Self>> {
        let whole = std::path::absolute(path)
            .map_err(|e| Failure::failed(format!("`{}`: {e}", path.display())))?;
        let found = walk(&whole, way)?;
        Ok(found.map(|fd| Folder { path: whole, fd: Arc::new(fd) }))
    }

    /// A folder in this one, made (for this user alone) if it is missing.
    pub fn sub(&self, name: &str) -> Outcome<Folder> {
        let path = self.path.join(name);
        let wrong =
            |e: Errno| Failure::failed(format!("{}: {}", path.display(), io::Error::from(e)));
        match rustix::fs::mkdirat(&self.fd, name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(e) => return Err(wrong(e)),
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.fd, name, flags, Mode::empty()).map_err(wrong)?;
        let stat = rustix::fs::fstat(&fd).map_err(wrong)?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink {
            return Err(Failure::failed(format!("{}: {LINK}", path.display())));
        }
        check_folder(&stat, &path)?;
        Ok(Folder { path, fd: Arc::new(fd) })
    }

    /// The folder, absolute.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its descriptor, which only names it (O_PATH).
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Opens a file in it. A symbolic link, and a file of somebody else, are errors.
    pub fn file(&self, name: &str, flags: OFlags, mode: u32) -> io::Result<File> {
        // Should it be a pipe: nobody is waited for.
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let opened = rustix::fs::openat(&self.fd, name, flags, Mode::from_raw_mode(mode));
        let file = opened.map_err(|e| match e {
            Errno::LOOP => io::Error::other(LINK),
            // A socket, or a pipe to write to.
            Errno::NXIO => io::Error::other(NOT_PLAIN),
            e => e.into(),
        })?;
        let stat = rustix::fs::fstat(&file)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(io::Error::other(NOT_PLAIN));
        }
        check_owner(stat.st_uid)?;
        Ok(file.into())
    }

    /// Opens a file that nobody else may have written.
    pub fn private(&self, name: &str, flags: OFlags, mode: u32) -> io::Result<File> {
        let file = self.file(name, flags, mode)?;
        match rustix::fs::fstat(&file)?.st_mode & OTHERS_WRITE {
            0 => Ok(file),
            _ => Err(io::Error::other(OTHERS_MAY_WRITE)),
        }
    }

    /// What a text file holds that nobody else may have written.
    pub fn read(&self, name: &str) -> io::Result<String> {
        let mut text = String::new();
        self.private(name, OFlags::RDONLY, 0)?.read_to_string(&mut text)?;
        Ok(text)
    }

    /// A descriptor that names a socket in it (O_PATH): what was checked is what is connected to by way of it.
    pub fn socket(&self, name: &str) -> io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let socket = rustix::fs::openat(&self.fd, name, flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&socket)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Socket => {}
            FileType::Symlink => return Err(io::Error::other(LINK)),
            _ => return Err(io::Error::other("it is not a socket; remove it")),
        }
        check_owner(stat.st_uid)?;
        Ok(socket)
    }

    /// Writes a file by way of `new`, another name: readers see the old content or the new.
    pub fn write_atomically(&self, name: &str, new: &str, bytes: &[u8]) -> io::Result<()> {
        self.remove(new)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let mut file = self.file(new, flags, 0o644)?;
        file.write_all(bytes)?;
        rustix::fs::renameat(&self.fd, new, &self.fd, name)?;
        Ok(())
    }

    /// Removes a file; none there is fine.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        match rustix::fs::unlinkat(&self.fd, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Whether `name` is the very file that is open.
    pub fn is(&self, name: &str, file: &File) -> io::Result<bool> {
        let ours = rustix::fs::fstat(file)?;
        match rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(there) => Ok((there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)),
            Err(Errno::NOENT) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    /// Why something in it, which may be missing, is not to be used as what it should be: a symbolic link,
    /// something of another kind, somebody else's, or, if it is a file, what others may write. Asks no file
    /// system that a process serves.
    pub fn oddity(&self, name: &str, should_be: FileType) -> Option<String> {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
        let wanted = StatxFlags::TYPE | StatxFlags::MODE | StatxFlags::UID;
        let found = rustix::fs::statx(&self.fd, name, flags, wanted).ok()?;
        let mode = u32::from(found.stx_mode);
        let kind = FileType::from_raw_mode(mode);
        let is_file = kind == FileType::RegularFile;
        match () {
            () if kind == FileType::Symlink => Some(LINK.to_owned()),
            () if kind != should_be => Some(match should_be {
                FileType::RegularFile => NOT_PLAIN.to_owned(),
                FileType::Directory => "it is not a folder; remove it".to_owned(),
                _ => "it is not a socket; remove it".to_owned(),
            }),
            () if is_file && mode & OTHERS_WRITE != 0 => Some(OTHERS_MAY_WRITE.to_owned()),
            () => check_owner(found.stx_uid).err().map(|e| e.to_string()),
        }
    }

    /// The names of all that is in it and whose name is text, in no order.
    pub fn names(&self) -> io::Result<Vec<String>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let listed = rustix::fs::openat(&self.fd, ".", flags, Mode::empty())?;
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::new(listed)? {
            match entry?.file_name().to_str() {
                Ok("." | "..") | Err(_) => {}
                Ok(name) => names.push(name.to_owned()),
            }
        }
        Ok(names)
    }
}

/// Whether what belongs to this user is as good as ours: our own, and root's, who may do anything.
pub fn is_ours(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}

fn check_owner(uid: u32) -> io::Result<()> {
    match is_ours(uid) {
        true => Ok(()),
        false => Err(io::Error::other(format!("it belongs to another user (id {uid}); remove it"))),
    }
}

fn others_may_write(stat: &Stat) -> bool {
    stat.st_mode & OTHERS_WRITE != 0
}

/// The steps of a path, the first last.
fn steps(path: &Path) -> Vec<OsString> {
    let step = |component: Component<'_>| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    };
    let mut steps: Vec<_> = path.components().filter_map(step).collect();
    steps.reverse();
    steps
}

/// Goes to `path` step by step, so that what is checked is what is opened. Absolute.
fn walk(path: &Path, way: Way) -> Outcome<Option<OwnedFd>> {
    let folder = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let step = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let none = Mode::empty();
    let mut at = PathBuf::from("/");
    let wrong = |at: &Path, e: Errno| {
        Failure::failed(format!(
            "cannot {} the run directory {}: {}: {}; set XDG_RUNTIME_DIR, give --run-dir, or run as \
             root",
            if way.make { "make" } else { "open" },
            path.display(),
            at.display(),
            io::Error::from(e)
        ))
    };
    let mut here = rustix::fs::open("/", folder, none).map_err(|e| wrong(&at, e))?;
    let mut left = steps(path);
    let mut links = 0;
    while let Some(name) = left.pop() {
        let stat = rustix::fs::fstat(&here).map_err(|e| wrong(&at, e))?;
        check_ancestor(&stat, &at, path, way)?;
        if name == ".." {
            here = rustix::fs::openat(&here, "..", folder, none).map_err(|e| wrong(&at, e))?;
            at.pop();
            continue;
        }
        let parent = at.clone();
        at.push(&name);
        let mut opened = rustix::fs::openat(&here, &name, step, none);
        if opened.as_ref().err() == Some(&Errno::NOENT) && way.make {
            match rustix::fs::mkdirat(&here, &name, Mode::from_raw_mode(FOLDER_MODE)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(e) => return Err(wrong(&at, e)),
            }
            opened = rustix::fs::openat(&here, &name, step, none);
        }
        let next = match opened {
            Ok(next) => next,
            Err(Errno::NOENT) if !way.make => return Ok(None),
            Err(e) => return Err(wrong(&at, e)),
        };
        let found = rustix::fs::fstat(&next).map_err(|e| wrong(&at, e))?;
        if others_may_write(&stat) && !is_ours(found.st_uid) {
            return Err(Failure::failed(format!(
                "the run directory {} cannot be trusted: {} lies where others may write, and belongs \
                 to another user (id {}); give another place with --run-dir",
                path.display(),
                at.display(),
                found.st_uid
            )));
        }
        match FileType::from_raw_mode(found.st_mode) {
            FileType::Directory => here = next,
            FileType::Symlink if left.is_empty() => {
                return Err(Failure::failed(format!(
                    "the run directory {} is a symbolic link; give the folder itself with --run-dir",
                    at.display()
                )));
            }
            FileType::Symlink => {
                links += 1;
                if links > LINKS_MAX {
                    return Err(wrong(&at, Errno::LOOP));
                }
                let to =
                    rustix::fs::readlinkat(&next, "", Vec::new()).map_err(|e| wrong(&at, e))?;
                let to = PathBuf::from(OsString::from_vec(to.into_bytes()));
                at = parent;
                if to.is_absolute() {
                    here = rustix::fs::open("/", folder, none).map_err(|e| wrong(&at, e))?;
                    at = PathBuf::from("/");
                }
                left.extend(steps(&to));
            }
            _ => return Err(wrong(&at, Errno::NOTDIR)),
        }
    }
    check_folder(&rustix::fs::fstat(&here).map_err(|e| wrong(&at, e))?, path)?;
    Ok(Some(here))
}

/// Rules 2 and 3 of the [module](self), but for what comes next in the folder.
fn check_ancestor(stat: &Stat, at: &Path, path: &Path, way: Way) -> Outcome {
    let refused = |why: String| {
        Err(Failure::failed(format!(
            "the run directory {} cannot be trusted: {} {why}; give another place with --run-dir",
            path.display(),
            at.display()
        )))
    };
    let sticky = stat.st_mode & STICKY != 0;
    if others_may_write(stat) && (!sticky || way.by_default) {
        return refused("may be written by others".to_owned());
    }
    // Where owners from outside this namespace all look alike, one that nobody else may write in has
    // to do: it is the system's.
    let is_system_s = || stat.st_uid == OVERFLOW_UID && has_strangers_outside();
    if !is_ours(stat.st_uid) && !is_system_s() {
        return refused(format!("belongs to another user (id {})", stat.st_uid));
    }
    Ok(())
}

/// Rule 1 of the [module](self); that it is no link was seen on the way.
fn check_folder(stat: &Stat, path: &Path) -> Outcome {
    let path = path.display();
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        return Err(Failure::failed(format!("{path} is not a folder; remove it")));
    }
    if !is_ours(stat.st_uid) {
        return Err(Failure::failed(format!(
            "the run directory {path} belongs to another user (id {}); give another with --run-dir, or \
             run as that user",
            stat.st_uid
        )));
    }
    if others_may_write(stat) {
        return Err(Failure::failed(format!(
            "others may write in the run directory {path}; take that away (chmod go-w {path}) or give \
             another with --run-dir"
        )));
    }
    Ok(())
}

/// Whether there are users that have no id in this process's user namespace.
fn has_strangers_outside() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let count = |line: &str| line.split_whitespace().nth(2)?.parse::<u64>().ok();
    map.lines().filter_map(count).sum::<u64>() < u64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempDir;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    use std::os::unix::net::UnixListener;

    const MAKE: Way = Way { make: true, by_default: false };
    const STRANGER: u32 = 65534;

    fn refusal(path: &Path, way: Way) -> String {
        Folder::open(path, way).unwrap_err().message
    }

    fn set_mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn what_is_missing_is_made_or_told() {
        let temp = TempDir::new("folder");
        let deep = temp.path().join("a/b");
        assert!(Folder::open(&deep, Way { make: false, by_default: false }).unwrap().is_none());
        let folder = Folder::open(&deep, MAKE).unwrap().unwrap();
        folder.write_atomically("x", "x.new", b"text").unwrap();
        assert_eq!(
            (folder.read("x").unwrap().as_str(), folder.names().unwrap()),
            ("text", vec!["x".into()])
        );
        assert!(Folder::open(&temp.path().join("a/../a/b"), MAKE).unwrap().is_some());
    }

    #[test]
    fn what_others_may_write_in_is_refused() {
        let temp = TempDir::new("folder-open");
        let run = temp.path().join("run");
        Folder::open(&run, MAKE).unwrap();
        for mode in [0o777, 0o1777, 0o775, 0o757] {
            set_mode(&run, mode);
            assert!(refusal(&run, MAKE).contains("others may write"), "{mode:o}");
        }
        // On the way it must be sticky, and what comes next ours.
        set_mode(&run, 0o777);
        assert!(refusal(&run.join("x"), MAKE).contains("may be written by others"));
        assert!(!run.join("x").exists());
        set_mode(&run, 0o1777);
        Folder::open(&run.join("x"), MAKE).unwrap().unwrap();
        let unchosen = Way { make: true, by_default: true };
        assert!(refusal(&run.join("y"), unchosen).contains("may be written by others"));
        assert!(!run.join("y").exists());
    }

    #[test]
    fn links_are_followed_on_the_way_only() {
        let temp = TempDir::new("folder-links");
        let at = |name: &str| temp.path().join(name);
        std::fs::create_dir(at("real")).unwrap();
        symlink("real", at("link")).unwrap();
        symlink(at("real"), at("far")).unwrap();
        symlink("circle", at("circle")).unwrap();
        assert!(refusal(&at("link"), MAKE).contains("symbolic link"));
        Folder::open(&at("link/run"), MAKE).unwrap().unwrap();
        Folder::open(&at("far/../real/run"), MAKE).unwrap().unwrap();
        assert!(at("real/run").is_dir());
        assert!(refusal(&at("circle/run"), MAKE).contains("symbolic links"));
        let folder = Folder::open(&at("real"), MAKE).unwrap().unwrap();
        symlink("/etc/passwd", at("real/x")).unwrap();
        let tried = [
            folder.read("x").unwrap_err(),
            folder.file("x", OFlags::WRONLY | OFlags::CREATE, 0o600).unwrap_err(),
            folder.socket("x").unwrap_err(),
        ];
        for error in tried {
            assert!(error.to_string().contains("symbolic link"), "{error}");
        }
        assert!(folder.sub("x").unwrap_err().message.contains("real/x: it is a symbolic link"));
        let odd = folder.oddity("x", FileType::RegularFile).unwrap();
        assert!(odd.contains("symbolic link"), "{odd}");
        // Replaced, not written through.
        folder.write_atomically("y", "x", b"text").unwrap();
        assert_eq!(folder.read("y").unwrap(), "text");
    }

    #[test]
    fn what_a_stranger_made_is_refused() {
        // Only root can give things away.
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let temp = TempDir::new("folder-stranger");
        let at = |name: &str| temp.path().join(name);
        std::fs::create_dir_all(at("theirs/run")).unwrap();
        chown(at("theirs"), Some(STRANGER), None).unwrap();
        assert!(refusal(&at("theirs"), MAKE).contains("another user (id 65534)"));
        assert!(refusal(&at("theirs/run"), MAKE).contains("another user (id 65534)"));
        // A link of theirs in a sticky folder could lead anywhere.
        set_mode(temp.path(), 0o1777);
        std::fs::create_dir(at("ours")).unwrap();
        symlink("ours", at("link")).unwrap();
        Folder::open(&at("link/run"), MAKE).unwrap().unwrap();
        std::os::unix::fs::lchown(at("link"), Some(STRANGER), None).unwrap();
        assert!(refusal(&at("link/run"), MAKE).contains("another user (id 65534)"));
        let folder = Folder::open(&at("ours"), MAKE).unwrap().unwrap();
        std::fs::write(at("ours/x"), "text").unwrap();
        chown(at("ours/x"), Some(STRANGER), None).unwrap();
        assert!(folder.read("x").unwrap_err().to_string().contains("another user"));
        let odd = folder.oddity("x", FileType::RegularFile).unwrap();
        assert!(odd.contains("another user (id 65534)"), "{odd}");
        let _theirs = UnixListener::bind(at("ours/s")).unwrap();
        folder.socket("s").unwrap();
        chown(at("ours/s"), Some(STRANGER), None).unwrap();
        assert!(folder.socket("s").unwrap_err().to_string().contains("another user"));
    }

    #[test]
    fn what_is_not_what_it_should_be_is_named() {
        let temp = TempDir::new("folder-odd");
        let at = |name: &str| temp.path().join(name);
        let folder = Folder::open(temp.path(), MAKE).unwrap().unwrap();
        std::fs::write(at("file"), "text").unwrap();
        set_mode(&at("file"), 0o644);
        std::fs::create_dir(at("folder")).unwrap();
        let _listener = UnixListener::bind(at("socket")).unwrap();
        let kinds = [
            ("file", FileType::RegularFile, "plain file"),
            ("folder", FileType::Directory, "folder"),
            ("socket", FileType::Socket, "socket"),
        ];
        for (name, kind, _) in kinds {
            for (_, should_be, word) in kinds {
                let odd = folder.oddity(name, should_be);
                match kind == should_be {
                    true => assert_eq!(odd, None, "{name}"),
                    false => assert!(odd.unwrap().contains(word), "{name} for a {word}"),
                }
            }
            // Nobody waits for whoever has the other end of a pipe, or for a socket.
            if name != "file" {
                folder.file(name, OFlags::RDONLY, 0).unwrap_err();
            }
        }
        assert_eq!(folder.oddity("missing", FileType::Socket), None);
        set_mode(&at("file"), 0o646);
        assert!(folder.oddity("file", FileType::RegularFile).unwrap().contains("others may write"));
        assert!(folder.read("file").unwrap_err().to_string().contains("others may write"));
        // A lock is judged by whoever takes it.
        folder.file("file", OFlags::RDONLY, 0).unwrap();
        assert!(folder.socket("file").unwrap_err().to_string().contains("not a socket"));
    }
}
