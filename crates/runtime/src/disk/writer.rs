//! The writer record (`docs/protocol.md`, "Writer generations"; rule 3): who may write, durable
//! beside the content.
//!
//! It lives in the file's extended attribute `user.thinwire.writer`; for block devices, and where
//! the file system has no attributes, in a file of the state directory that is named by the identity.
//! One place for as long as the disk is open: with two, a record that was put back would meet the one
//! that it is to undo. A file that the process could not write by itself once it has become another user
//! (`confine/account.rs`) is like one that has none: what stands in its attribute is moved when it is opened.
//!
//! Beside it stands how large the content was when somebody may have been told so, and how often it was
//! found smaller since: its incarnation. A client that was away while the content was cut, and grew again,
//! would else take it for the one that it has written.
//!
//! ```text
//!  0      8            16       32       33     97       100    104    112           120        128
//!  | TWW4 | generation | holder | length | name | zeroes | idle | size | incarnation | checksum |  big endian
//! ```
//!
//! Idle generations are zero, which says nothing, in what versions have written that know none.
//!
//! Records of former versions are understood: `TWW3` with a checksum that takes some changes of two bytes for none
//! ([`Hash::sum_of`]), `TWW2` without size and incarnation, `TWW1` without a name, too:
//!
//! ```text
//!  0      8            16       32       33     97       104        112
//!  | TWW2 | generation | holder | length | name | zeroes | checksum |
//!  0      8            16       32         40
//!  | TWW1 | generation | holder | checksum |
//! ```

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use rustix::fs::{
    Access, AtFlags, CWD, XattrFlags, accessat, fgetxattr, fremovexattr, fsetxattr, fsync,
};
use rustix::io::Errno;
use thinwire_volume::{SyncScope, WriterRecord};

use super::DiskOpenError;
use super::identity::Hash;
use super::state_file;
use crate::confine::as_starter;

const ATTRIBUTE: &str = "user.thinwire.writer";
const MAGIC: [u8; 8] = *b"TWW4\0\0\0\0";
const BYTES: usize = 128;
const MAGIC_3: [u8; 8] = *b"TWW3\0\0\0\0";
const MAGIC_2: [u8; 8] = *b"TWW2\0\0\0\0";
const BYTES_2: usize = 112;
const MAGIC_1: [u8; 8] = *b"TWW1\0\0\0\0";
const BYTES_1: usize = 40;

/// Where one volume's record lives.
#[derive(Debug)]
pub(super) struct WriterStore {
    /// In the attribute: block devices, and some file systems, have none.
    attribute: bool,
    state_file: PathBuf,
    /// It is only read: nobody will write, and nothing is made durable.
    read_only: bool,
    /// Of the content as it is: stored with each record.
    kept: Kept,
    /// Another description of the content, if none can be had later.
    other: Option<File>,
}

/// What a record is of.
#[derive(Clone, Copy)]
pub(super) struct Content<'a> {
    pub file: &'a File,
    pub path: &'a Path,
    pub bytes: u64,
    pub device: bool,
    pub read_only: bool,
    pub identity: &'a [u8; 16],
    pub scope: &'a SyncScope,
}

/// What stands beside a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Kept {
    /// The size that somebody may have been told; 0 if that is not known.
    bytes: u64,
    /// How often it was found smaller.
    incarnation: u64,
}

impl Kept {
    /// Of a content that has this size now.
    fn found_with(self, bytes: u64) -> Self {
        Kept { bytes, incarnation: self.incarnation + u64::from(self.bytes > bytes) }
    }
}

/// What was found in one place.
enum Found {
    Record(WriterRecord, Kept),
    Nothing,
    /// The place does not exist here.
    Unable,
}

impl WriterStore {
    /// Looks where the record is, and has it remember the size of the content; where there is none it
    /// begins, held by nobody.
    ///
    /// # Errors
    /// It is damaged, or cannot remember that the content was cut. If it cannot be read, or remember another
    /// size, [`WriterStore::load`] says so: readers may be served.
    pub fn open(content: &Content<'_>, state_dir: &Path) -> Result<Self, DiskOpenError> {
        let Content { file, path, bytes, device, read_only, identity, scope } = *content;
        let state_file = state_file::path("writer", identity, state_dir);
        let damaged = |remedy| DiskOpenError::Damaged {
            path: path.to_owned(),
            what: "writer record",
            remedy,
        };
        let kept = Kept { bytes, incarnation: 0 };
        let other =
            described_anew(file).err().and_then(|_| as_starter(|| described_anew(file)).ok());
        let mut store = WriterStore { attribute: !device, state_file, read_only, kept, other };
        let in_attribute = match as_starter(|| store.read_attribute(file)) {
            Ok(Found::Unable) => {
                store.attribute = false;
                false
            }
            Err(Failed::Damaged) => {
                return Err(damaged(format!("setfattr -x {ATTRIBUTE} {}", path.display())));
            }
            found => matches!(found, Ok(Found::Record(..))),
        };
        if let Err(Failed::Damaged) = store.read_state_file() {
            return Err(damaged(format!("rm {}", store.state_file.display())));
        }
        let Ok(newest) = as_starter(|| store.newest(file)) else { return Ok(store) };
        let (record, kept) = newest.unwrap_or_default();
        store.kept = kept.found_with(bytes);
        let is_foreign = store.attribute && !may_use_attribute(file, read_only);
        let moves = is_foreign && in_attribute && !read_only;
        store.attribute &= !is_foreign;
        // It was cut once: whoever is let in must find that again, and [`WriterStore::load`] would be too late.
        // A process that could not make it durable may have remembered it before.
        let was_cut = store.kept.incarnation != 0;
        if (store.kept != kept || was_cut || moves) && !read_only {
            let stored = store.store(file, scope, record);
            if was_cut || moves {
                let what = match moves {
                    true => {
                        "move who may write it to the state directory (its own user may not set attributes of it)"
                    }
                    false => "remember beside the writer record that it is smaller",
                };
                stored.map_err(|errno| DiskOpenError::Os {
                    path: path.to_owned(),
                    what,
                    source: io::Error::from_raw_os_error(errno),
                })?;
            }
        }
        if moves {
            // Should it stay, it is as old as what has been moved, or older.
            let _ = as_starter(|| fremovexattr(file, ATTRIBUTE));
            let _ = store.sync_record(file, scope);
        }
        Ok(store)
    }

    /// Which life of the content it is.
    pub fn incarnation(&self) -> u64 {
        self.kept.incarnation
    }

    /// Of two, the one with the higher generation counts, the state file's if they are equal: an earlier
    /// version wrote it when the attribute could not be.
    fn newest(&self, file: &File) -> Result<Option<(WriterRecord, Kept)>, Failed> {
        let mut newest = None;
        for found in [self.read_attribute(file)?, self.read_state_file()?] {
            if let Found::Record(record, kept) = found
                && newest.is_none_or(|(other, _): (WriterRecord, _)| {
                    record.generation >= other.generation
                })
            {
                newest = Some((record, kept));
            }
        }
        Ok(newest)
    }

    fn read_attribute(&self, file: &File) -> Result<Found, Failed> {
        if !self.attribute {
            return Ok(Found::Unable);
        }
        let mut bytes = [0; BYTES + 1];
        match fgetxattr(file, ATTRIBUTE, &mut bytes) {
            Ok(len) => found(&bytes[..len]),
            Err(Errno::RANGE) => Err(Failed::Damaged),
            Err(Errno::NODATA) => Ok(Found::Nothing),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(Found::Unable),
            Err(errno) => Err(Failed::Os(errno.raw_os_error())),
        }
    }

    fn read_state_file(&self) -> Result<Found, Failed> {
        match fs::read(&self.state_file) {
            Ok(bytes) => found(&bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Found::Nothing),
            Err(error) => Err(Failed::from(error)),
        }
    }

    /// The record, durable.
    ///
    /// # Errors
    /// The errno of reading it or of making it durable; `ESTALE` if it could not be read when the content
    /// was opened, and that is another life of it than was thought.
    pub fn load(&mut self, file: &File, scope: &SyncScope) -> Result<WriterRecord, i32> {
        let Some((record, kept)) = self.newest(file)? else { return Ok(WriterRecord::default()) };
        if kept.found_with(self.kept.bytes).incarnation > self.kept.incarnation {
            tracing::error!(
                "who may write can be read again, and says that the content was smaller once: start again"
            );
            return Err(libc::ESTALE);
        }
        if kept != self.kept && !self.read_only {
            // As it should have been when the content was opened.
            self.store(file, scope, record)?;
        } else if !self.read_only {
            // It may have been written, or the older one removed, by a process that could not make it durable.
            state_file::sync(&self.state_file).map_err(os)?;
            if self.attribute {
                self.sync_record(file, scope)?;
            }
        }
        Ok(record)
    }

    /// Makes the size of the content durable, and remembers it; errors are errnos. The size comes first:
    /// a crash that took back what is remembered already would look like a cut.
    pub fn keep_size(&mut self, file: &File, scope: &SyncScope, bytes: u64) -> Result<(), i32> {
        self.sync_record(file, scope)?;
        if self.read_only {
            return Ok(());
        }
        let before = std::mem::replace(&mut self.kept.bytes, bytes);
        self.store_again(file, scope).inspect_err(|errno| {
            // Nobody is told of it, so later records need not say it.
            self.kept.bytes = before;
            tracing::error!(
                error = %io::Error::from_raw_os_error(*errno),
                "what the content has grown by is not offered before it grows again, or is opened again: \
                 its size could not be remembered beside the writer record"
            );
        })
    }

    /// Remembers that the content was cut while it was open: who opens it next has another life of it,
    /// however large it is by then.
    pub fn cut(&mut self, file: &File, scope: &SyncScope) -> Result<(), i32> {
        self.kept.incarnation += 1;
        if self.read_only {
            return Ok(());
        }
        self.store_again(file, scope).inspect_err(|errno| self.complain(*errno))
    }

    /// Stores the record as it is, if there is one, with what stands beside it now.
    fn store_again(&mut self, file: &File, scope: &SyncScope) -> Result<(), i32> {
        match self.newest(file)? {
            Some((record, _)) => self.store(file, scope, record),
            None => Ok(()),
        }
    }

    /// Stores the record durably; errors are errnos, and either record may be there then.
    pub fn store(
        &mut self,
        file: &File,
        scope: &SyncScope,
        record: WriterRecord,
    ) -> Result<(), i32> {
        let bytes = encode(record, self.kept);
        if self.attribute {
            match fsetxattr(file, ATTRIBUTE, &bytes, XattrFlags::empty()) {
                Ok(()) => {
                    self.sync_record(file, scope)?;
                    // An older record, from a time when the attribute was refused.
                    return state_file::remove(&self.state_file)
                        .map_err(os)
                        .inspect_err(|errno| self.complain(*errno));
                }
                // Some file systems tell only now that they have none: then there is none.
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                    let _ = fremovexattr(file, ATTRIBUTE);
                    self.attribute = false;
                }
                Err(errno) => return Err(errno.raw_os_error()),
            }
        }
        state_file::replace(&self.state_file, &bytes)
            .map_err(os)
            .inspect_err(|errno| self.complain(*errno))
    }

    /// Makes an attribute durable, through an open file description of its own: the kernel tells each
    /// description once that earlier writes were lost, and the content's must hear of it itself. Only a
    /// failure of this puts the content in doubt, not one of what comes before it. The one that was opened
    /// before may tell of a loss that the content's has told of already: then its writers write again in vain.
    fn sync_record(&self, file: &File, scope: &SyncScope) -> Result<(), i32> {
        let anew;
        let own = match &self.other {
            Some(other) => other,
            None => {
                anew = described_anew(file).map_err(os)?;
                &anew
            }
        };
        let mark = scope.begin();
        let result = fsync(own);
        scope.end(mark, result.is_err());
        result.map_err(Errno::raw_os_error)
    }

    fn complain(&self, errno: i32) {
        tracing::error!(
            path = %self.state_file.display(),
            error = %io::Error::from_raw_os_error(errno),
            "cannot store who may write"
        );
    }
}

/// Why a place could not be read.
enum Failed {
    Damaged,
    Os(i32),
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Failed::Os(os(error))
    }
}

impl From<Failed> for i32 {
    fn from(failed: Failed) -> i32 {
        match failed {
            // It was whole when the disk was opened, and nobody else may write it.
            Failed::Damaged => libc::EBADMSG,
            Failed::Os(errno) => errno,
        }
    }
}

pub(super) fn os(error: io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

/// An open file description of its own of what is open.
fn described_anew(file: &File) -> io::Result<File> {
    File::open(path_of(file))
}

/// A name of what is open, whatever has become of the path that it was opened by.
fn path_of(file: &File) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// Whether the attributes of this file can be read, and set, without the rights of whoever started this process.
/// A kernel that cannot tell (before 5.8) is believed that they can: then it shows when one is stored.
fn may_use_attribute(file: &File, read_only: bool) -> bool {
    let wanted = if read_only { Access::READ_OK } else { Access::READ_OK | Access::WRITE_OK };
    let tried = accessat(CWD, path_of(file), wanted, AtFlags::EACCESS);
    !matches!(tried, Err(Errno::ACCESS | Errno::PERM))
}

pub(super) fn encode(record: WriterRecord, kept: Kept) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    let name = record.name.as_str().as_bytes();
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..16].copy_from_slice(&record.generation.to_be_bytes());
    bytes[16..32].copy_from_slice(&record.holder);
    bytes[32] = name.len() as u8;
    bytes[33..33 + name.len()].copy_from_slice(name);
    bytes[100..104].copy_from_slice(&record.idle.to_be_bytes());
    bytes[104..112].copy_from_slice(&kept.bytes.to_be_bytes());
    bytes[112..120].copy_from_slice(&kept.incarnation.to_be_bytes());
    let sum = Hash::sum_of(&bytes[..120]);
    bytes[120..].copy_from_slice(&sum);
    bytes
}

fn found(bytes: &[u8]) -> Result<Found, Failed> {
    decode(bytes).map(|(record, kept)| Found::Record(record, kept)).ok_or(Failed::Damaged)
}

pub(super) fn decode(bytes: &[u8]) -> Option<(WriterRecord, Kept)> {
    let (fields, sum) = bytes.split_last_chunk::<8>()?;
    let is_known = match bytes.len() {
        BYTES => fields.starts_with(&MAGIC) || fields.starts_with(&MAGIC_3),
        BYTES_2 => fields.starts_with(&MAGIC_2),
        BYTES_1 => fields.starts_with(&MAGIC_1),
        _ => false,
    };
    let is_intact = match fields.starts_with(&MAGIC) {
        true => Hash::sum_of(fields) == *sum,
        false => Hash::of(fields).value()[..8] == *sum,
    };
    if !is_known || !is_intact {
        return None;
    }
    let number = |at: usize| Some(u64::from_be_bytes(*fields.get(at..)?.first_chunk()?));
    let kept = Kept {
        bytes: number(104).unwrap_or_default(),
        incarnation: number(112).unwrap_or_default(),
    };
    let name = match bytes.len() {
        BYTES_1 => "",
        _ => std::str::from_utf8(fields.get(33..97)?.get(..usize::from(fields[32]))?).ok()?,
    };
    let record = WriterRecord::new(number(8)?, *fields[16..].first_chunk()?, name);
    // Zero in what versions before this one have written.
    let idle = fields
        .get(100..104)
        .and_then(<[u8]>::first_chunk)
        .map_or(0, |idle| u32::from_be_bytes(*idle));
    Some((WriterRecord { idle, ..record }, kept))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEPT: Kept = Kept { bytes: 1 << 20, incarnation: 3 };

    /// A page that has no attributes.
    fn content<'a>(file: &'a File, scope: &'a SyncScope) -> Content<'a> {
        Content {
            file,
            path: Path::new("content"),
            bytes: 4096,
            device: true,
            read_only: false,
            identity: &[0xab; 16],
            scope,
        }
    }

    #[test]
    fn a_damaged_record_is_noticed() {
        let record = WriterRecord::new(0x0102_0304, [7; 16], "node1");
        let bytes = encode(record, KEPT);
        assert_eq!(decode(&bytes), Some((record, KEPT)));
        for len in 0..BYTES {
            assert_eq!(decode(&bytes[..len]), None, "{len} bytes");
        }
        for at in 0..BYTES {
            let mut other = bytes;
            other[at] ^= 1;
            assert_eq!(decode(&other), None, "byte {at}");
        }
    }

    /// Such a pair of bytes was taken for another record in version 3: one of the last field, and one of the checksum.
    #[test]
    fn a_record_is_not_read_with_two_other_bytes() {
        let bytes = encode(WriterRecord::new(1, [0; 16], "node1"), Kept::default());
        for (at, sum_at) in (112..120).flat_map(|at| (120..128).map(move |sum_at| (at, sum_at))) {
            for flips in 1..=u16::MAX {
                let [one, other] = flips.to_be_bytes();
                let mut changed = bytes;
                changed[at] ^= one;
                changed[sum_at] ^= other;
                assert_eq!(decode(&changed), None, "{at} ^ {one}, {sum_at} ^ {other}");
            }
        }
    }

    /// A record as an earlier version left it: the fields before its checksum.
    fn former(magic: &[u8; 8], len: usize, record: WriterRecord) -> Vec<u8> {
        let mut bytes = encode(record, KEPT)[..len - 8].to_vec();
        bytes[..8].copy_from_slice(magic);
        let sum = Hash::of(&bytes).value();
        bytes.extend_from_slice(&sum[..8]);
        bytes
    }

    #[test]
    fn records_of_former_versions_are_understood() {
        let (named, nameless) =
            (WriterRecord::new(3, [7; 16], "node1"), WriterRecord::new(3, [7; 16], ""));
        let (kept, none) = (KEPT, Kept::default());
        for (magic, len, known, kept) in [
            (&MAGIC_3, BYTES, named, kept),
            (&MAGIC_2, BYTES_2, named, none),
            (&MAGIC_1, BYTES_1, nameless, none),
        ] {
            let mut bytes = former(magic, len, named);
            assert_eq!(decode(&bytes), Some((known, kept)));
            bytes[20] ^= 1;
            assert_eq!(decode(&bytes), None);
        }
    }

    /// A folder for one test, and the file in it that is to have records.
    fn folder(of: &str) -> (PathBuf, File) {
        let dir = std::env::temp_dir().join(format!("thinwire-{of}-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let file = File::create(dir.join("content")).unwrap();
        (dir, file)
    }

    #[test]
    fn content_that_was_cut_is_another_life_of_it_although_it_grows_again() {
        let (dir, file) = folder("cut");
        let scope = SyncScope::alone();
        let open = |bytes, read_only| {
            let content = Content { bytes, read_only, ..content(&file, &scope) };
            WriterStore::open(&content, &dir).unwrap()
        };
        let record = WriterRecord::new(1, [3; 16], "node1");
        // A reader leaves nothing behind.
        assert_eq!(open(8192, true).incarnation(), 0);
        let mut store = open(4096, false);
        assert_eq!(
            (store.incarnation(), store.load(&file, &scope)),
            (0, Ok(WriterRecord::default()))
        );
        store.store(&file, &scope, record).unwrap();
        assert_eq!((open(4096, false).incarnation(), open(8192, false).incarnation()), (0, 0));
        // A reader cannot say so, but knows.
        assert_eq!((open(4096, true).incarnation(), open(4096, false).incarnation()), (1, 1));
        let mut store = open(8192, false);
        assert_eq!((store.incarnation(), store.load(&file, &scope)), (1, Ok(record)));
        // What it grows by while it is open is remembered, too.
        store.keep_size(&file, &scope, 12288).unwrap();
        assert_eq!(open(8192, false).incarnation(), 2);
        // A record that could not be read when the content was opened does not begin its lives anew.
        let mut blind = open(8192, false);
        blind.kept.incarnation = 0;
        assert_eq!(blind.load(&file, &scope), Err(libc::ESTALE));
        fs::remove_dir_all(&dir).unwrap();
    }

    /// Only a cut must be remembered before anybody is served.
    #[test]
    fn a_size_that_cannot_be_remembered_lets_no_writer_in() {
        let (dir, file) = folder("full");
        let scope = SyncScope::alone();
        let state = dir.join("state");
        let open = |bytes| WriterStore::open(&Content { bytes, ..content(&file, &scope) }, &state);
        let record = WriterRecord::new(1, [3; 16], "node1");
        open(4096).unwrap().store(&file, &scope, record).unwrap();
        // Nothing can be stored there: what is new would be a folder.
        let new = state.join(format!("writer-{}.new", "ab".repeat(16)));
        fs::create_dir(&new).unwrap();
        assert!(open(2048).unwrap_err().to_string().contains("smaller"));
        let mut larger = open(8192).unwrap();
        assert_eq!(larger.load(&file, &scope), Err(libc::EISDIR));
        assert_eq!(larger.keep_size(&file, &scope, 12288), Err(libc::EISDIR));
        fs::remove_dir(&new).unwrap();
        assert_eq!(larger.load(&file, &scope), Ok(record));
        drop(larger);
        assert_eq!(open(8192).unwrap().incarnation(), 0, "what was not offered is not missed");
        assert_eq!(open(4096).unwrap().incarnation(), 1, "8192 is remembered");
        // That it was cut is not believed to be durable because it is there.
        fs::create_dir(&new).unwrap();
        assert!(open(8192).unwrap_err().to_string().contains("smaller"));
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn the_state_file_serves_what_has_no_attributes() {
        let dir = std::env::temp_dir().join(format!("thinwire-writer-{}", std::process::id()));
        let null = File::open("/dev/null").unwrap();
        let scope = SyncScope::alone();
        let open = || WriterStore::open(&content(&null, &scope), &dir);
        let mut store = open().unwrap();
        assert_eq!(store.load(&null, &SyncScope::alone()), Ok(WriterRecord::default()));
        for generation in [1, 2] {
            let record = WriterRecord::new(generation, [3; 16], "node1");
            store.store(&null, &SyncScope::alone(), record).unwrap();
            assert_eq!(open().unwrap().load(&null, &SyncScope::alone()), Ok(record));
        }
        let file = dir.join(format!("writer-{}", "ab".repeat(16)));
        fs::write(&file, b"nonsense").unwrap();
        assert!(open().unwrap_err().to_string().contains("rm "));
        fs::remove_dir_all(&dir).unwrap();
    }
}
