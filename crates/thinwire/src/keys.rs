//! Key files, and how a command protects its frames (`docs/security.md`).
//!
//! A key file is text: one key a line (`thinwire-key-1 HEX`), empty lines and lines that begin with `#` between
//! them. Its name is that of who has the keys, to a target. A target takes all keys of a file; who shows one
//! shows the last, the newest. Nobody but its owner may read it.

use std::fmt;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use thinwire_initiator::InitiatorKey;
use thinwire_runtime::clock::entropy_bytes;
use thinwire_seal::{Key, KeyId, Suites};
use zeroize::Zeroizing;

use crate::error::{Failure, Outcome, ParseError, why_unreadable};
use crate::size::check_name;

/// Where keys lie that are given by their names.
pub const KEY_DIR: &str = "/etc/thinwire/keys";

/// A key file longer than this is none.
const FILE_BYTES_MAX: u64 = 64 << 10;
/// Others, the group among them, may read, write or run.
const OTHERS: u32 = 0o077;

/// The keys in a file, and whose they are.
#[derive(Clone)]
pub struct KeyFile {
    /// Who has them: the name of the file.
    pub name: String,
    /// Where it was read.
    pub path: PathBuf,
    /// One at least, in the order of the file.
    pub keys: Vec<Key>,
}

impl PartialEq for KeyFile {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && self.ids().eq(other.ids())
    }
}

impl fmt::Debug for KeyFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyFile").field("name", &self.name).field("keys", &self.keys).finish()
    }
}

/// Where the key lies that a user has given: a path has a slash in it, all else is a name.
pub fn path_of(given: &str) -> PathBuf {
    match given.contains('/') {
        true => PathBuf::from(given),
        false => Path::new(KEY_DIR).join(given),
    }
}

impl KeyFile {
    /// Reads the file that a user has given, by a path or by a name in [`KEY_DIR`].
    ///
    /// # Errors
    /// It cannot be read, is no plain file, may be read by others, or has no key or something else in it.
    pub fn read(given: &str) -> Outcome<Self> {
        let path = path_of(given);
        let wrong = |why: &dyn fmt::Display| {
            Failure::failed(format!("cannot use key {}: {why}", path.display()))
        };
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        check_name("name of a key", name).map_err(|e| wrong(&e))?;
        let name = name.to_owned();
        // Should it be a pipe: nobody is waited for.
        let mut options = File::options();
        let file = options.read(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC).open(&path);
        let mut file = file.map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => wrong(&format_args!(
                "no such file; `thinwire key new {name}` makes one, and it must be the same on both sides"
            )),
            _ => wrong(&why_unreadable(&e)),
        })?;
        let meta = file.metadata().map_err(|e| wrong(&e))?;
        if !meta.is_file() {
            return Err(wrong(&"it is no plain file"));
        }
        if meta.mode() & OTHERS != 0 {
            let mode = meta.mode() & 0o777;
            let what = format_args!(
                "others may read it (mode {mode:o}): take that away with `chmod 600 {}`, and make another key \
                 if somebody may have read it",
                path.display()
            );
            return Err(wrong(&what));
        }
        let (owner, us) = (meta.uid(), rustix::process::geteuid().as_raw());
        if owner != 0 && owner != us {
            return Err(wrong(&format_args!(
                "it belongs to user {owner}, who therefore knows it and may replace it: it must be yours or root's"
            )));
        }
        if meta.len() > FILE_BYTES_MAX {
            return Err(wrong(&format_args!("{} bytes are too many for keys", meta.len())));
        }
        let mut text = Zeroizing::new(String::with_capacity(meta.len() as usize + 1));
        file.read_to_string(&mut text).map_err(|e| wrong(&e))?;
        let keys = parse(&text).map_err(|e| wrong(&e))?;
        Ok(KeyFile { name, path, keys })
    }

    /// The key to show: the last in the file.
    pub fn newest(&self) -> &Key {
        self.keys.last().expect("one at least")
    }

    /// The ids of all its keys.
    pub fn ids(&self) -> impl Iterator<Item = KeyId> + '_ {
        self.keys.iter().map(Key::id)
    }
}

/// All keys of a text.
fn parse(text: &str) -> Result<Vec<Key>, String> {
    let mut keys = Vec::<Key>::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let key = Key::parse(line).map_err(|why| format!("line {number}: {why}"))?;
        if keys.iter().any(|other| other.id() == key.id()) {
            return Err(format!("line {number}: key {} stands there twice", key.id()));
        }
        keys.push(key);
    }
    if keys.is_empty() {
        return Err("there is no key in it".to_owned());
    }
    Ok(keys)
}

/// Makes a key, and a file for it: `dir`/`name`, of mode 0600, in a folder that is made if it is missing. With
/// `adds` the key comes behind those that the file has. The file is there whole or not at all.
pub fn make(name: &str, dir: &Path, adds: bool) -> Outcome<KeyFile> {
    check_name("name of a key", name).map_err(Failure::from)?;
    let path = dir.join(name);
    let wrong =
        |e: std::io::Error| Failure::failed(format!("cannot make key {}: {e}", path.display()));
    // With all the room it needs: a string that grows leaves its old memory as it is.
    let mut text = Zeroizing::new(String::with_capacity(FILE_BYTES_MAX as usize));
    if adds {
        let given = std::path::absolute(&path).map_err(wrong)?;
        let known = KeyFile::read(&given.to_string_lossy())?;
        known.keys.iter().for_each(|key| text.push_str(&key.to_text()));
    } else if path.symlink_metadata().is_ok() {
        return Err(Failure::failed(format!(
            "{} exists already, and who has that key would be locked out: `--add` puts another key behind it, \
             to change from one to the other; or remove it first",
            path.display()
        )));
    }
    let key = Key::from_bytes(*Zeroizing::new(entropy_bytes()))
        .map_err(|e| Failure::failed(format!("cannot make a key: {e}")))?;
    text.push_str(&key.to_text());
    let mut folders = std::fs::DirBuilder::new();
    std::os::unix::fs::DirBuilderExt::mode(folders.recursive(true), 0o700);
    folders.create(dir).map_err(wrong)?;
    let new = dir.join(format!(".{name}.{}", std::process::id()));
    let mut options = File::options();
    let file = options.write(true).create_new(true).mode(0o600).open(&new);
    let written = file.and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        // Not over one that has come meanwhile.
        match adds {
            true => std::fs::rename(&new, &path),
            false => std::fs::hard_link(&new, &path).and_then(|()| std::fs::remove_file(&new)),
        }?;
        // Something may be encrypted with it next.
        sync_folders(&path)
    });
    if let Err(e) = written {
        let _ = std::fs::remove_file(&new);
        return Err(wrong(e));
    }
    let given = std::path::absolute(&path).map_err(wrong)?;
    KeyFile::read(&given.to_string_lossy())
}

/// A key file that lies there whatever happens from now on.
///
/// # Errors
/// It could not be synced.
pub fn settle(path: &Path) -> Outcome {
    let synced = File::open(path).and_then(|file| file.sync_all());
    synced.and_then(|()| sync_folders(path)).map_err(|e| {
        Failure::failed(format!("cannot use key {}: it cannot be synced: {e}", path.display()))
    })
}

/// The folder of a file, and the one that this is in, which may have been made for it.
fn sync_folders(path: &Path) -> std::io::Result<()> {
    let path = std::path::absolute(path)?;
    for (up, folder) in path.ancestors().skip(1).take(2).enumerate() {
        match File::open(folder) {
            // Nobody has made a folder there.
            Err(e) if up > 0 && e.kind() == std::io::ErrorKind::PermissionDenied => {}
            opened => opened?.sync_all()?,
        }
    }
    Ok(())
}

/// Names of keys, as in `alice+bob`.
pub fn parse_names(text: &str) -> Result<Vec<String>, ParseError> {
    let names: Vec<String> = text.split('+').map(str::to_owned).collect();
    check_names(&names)?;
    Ok(names)
}

/// Whether these are names of keys, each once.
pub fn check_names(names: &[String]) -> Result<(), ParseError> {
    for (at, name) in names.iter().enumerate() {
        check_name("name of a key", name)?;
        if names[..at].contains(name) {
            return Err(ParseError::new(name, "this key is named twice"));
        }
    }
    Ok(())
}

/// How a command protects what it sends to targets, unless a volume says otherwise.
#[derive(Clone, Debug, Default)]
pub struct Security {
    /// The key that it shows, and demands.
    pub key: Option<KeyFile>,
    /// Frames are authenticated, and not encrypted.
    pub authenticate_only: bool,
    /// Without a key: its user accepts frames that are neither authenticated nor encrypted.
    pub insecure: bool,
}

impl Security {
    /// Without a key, which its user must have accepted.
    pub fn without_keys(insecure: bool) -> Self {
        Security { insecure, ..Security::default() }
    }

    /// For an attachment with this key.
    pub fn initiator_key(&self, file: &KeyFile) -> InitiatorKey {
        let suites = Suites::here(self.authenticate_only);
        // Whoever attaches draws its entropy.
        InitiatorKey { suites, ..InitiatorKey::new(file.newest().clone(), [0; 32]) }
    }

    /// Refuses to do `what` without a key, if that was not accepted.
    pub fn require(&self, what: &str) -> Outcome {
        require(self.key.is_some() || self.insecure, what)
    }
}

/// Refuses to do `what` unless it `is_protected`, or its user has accepted that it is not.
pub fn require(is_protected: bool, what: &str) -> Outcome {
    if is_protected {
        return Ok(());
    }
    Err(Failure::failed(format!(
        "refusing: {what} without a key. Frames would be neither authenticated nor encrypted, and everybody on \
         the same network could read and change the data. `thinwire key new NAME` makes a key: have the file on \
         both sides, and give it with --key NAME (in TOML: key = [\"NAME\"]). If all machines there are trusted, \
         say --insecure (in TOML: insecure = true) on both sides"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempDir;
    use std::os::unix::fs::PermissionsExt;

    fn text(path: &Path) -> String {
        std::fs::read_to_string(path).unwrap()
    }

    #[test]
    fn a_key_is_made_once_and_another_is_added() {
        let temp = TempDir::new("keys-new");
        let dir = temp.path().join("etc/keys");
        let made = make("alice", &dir, false).unwrap();
        let path = dir.join("alice");
        assert_eq!((&made.path, made.name.as_str(), made.keys.len()), (&path, "alice", 1));
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        assert_eq!(dir.metadata().unwrap().mode() & 0o777, 0o700);
        let before = text(&path);
        let why = make("alice", &dir, false).unwrap_err();
        assert!(why.message.contains("--add"), "{why}");
        assert_eq!(text(&path), before);
        let both = make("alice", &dir, true).unwrap();
        assert!(text(&path).starts_with(&before));
        assert_eq!((both.keys.len(), both.keys[0].id()), (2, made.keys[0].id()));
        assert_eq!(both.newest().id(), both.keys[1].id());
        assert_ne!(both.keys[0].id(), both.keys[1].id());
        let files: Vec<_> = std::fs::read_dir(&dir).unwrap().collect();
        assert_eq!(files.len(), 1, "nothing is left over");
        assert!(make("bob", &dir, true).unwrap_err().message.contains("no such file"));
        for name in ["", "..", "a/b", "a+b", ".a"] {
            make(name, &dir, false).unwrap_err();
        }
    }

    #[test]
    fn what_is_no_key_file_is_named() {
        let temp = TempDir::new("keys-bad");
        let good = make("good", temp.path(), false).unwrap();
        let line = text(&good.path);
        let read = |name: &str| KeyFile::read(temp.path().join(name).to_str().unwrap());
        let write = |name: &str, text: &str, mode: u32| {
            let path = temp.path().join(name);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        std::fs::create_dir(temp.path().join("folder")).unwrap();
        write("empty", "", 0o600);
        write("comments", "# nothing\n\n", 0o600);
        write("group", &line, 0o640);
        write("others", &line, 0o604);
        write("twice", &format!("{line}{line}"), 0o600);
        write("words", &format!("{line}hello\n"), 0o600);
        write("short", "thinwire-key-1 00ff\n", 0o600);
        write("zero", &format!("thinwire-key-1 {}\n", "0".repeat(64)), 0o600);
        write("huge", &"#\n".repeat(40_000), 0o600);
        for (name, why) in [
            ("none", "thinwire key new none"),
            ("folder", "no plain file"),
            ("empty", "no key in it"),
            ("comments", "no key in it"),
            ("group", "chmod 600"),
            ("others", "mode 604"),
            ("twice", "line 2: key"),
            ("words", "line 2: "),
            ("short", "line 1: "),
            ("zero", "line 1: "),
            ("huge", "too many"),
        ] {
            let failure = read(name).unwrap_err();
            assert!(failure.message.contains(why), "{name}: {failure}");
            assert!(failure.message.contains(name), "{failure}");
            let digits = line.split(' ').nth(1).unwrap().trim();
            assert!(!failure.message.contains(&digits[..8]), "{name} tells a key");
        }
        write("mixed", &format!("# old\n{line}\n\n  # end"), 0o400);
        assert_eq!(read("mixed").unwrap().keys[0].id(), good.keys[0].id());
    }

    #[test]
    fn names_and_paths() {
        assert_eq!(path_of("alice"), Path::new("/etc/thinwire/keys/alice"));
        assert_eq!(path_of("./alice"), Path::new("./alice"));
        assert_eq!(parse_names("alice+bob").unwrap(), ["alice", "bob"]);
        for bad in ["", "alice+", "alice+alice", "a b", "a/b"] {
            parse_names(bad).unwrap_err();
        }
    }
}
