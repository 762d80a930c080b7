//! The writer record (`docs/protocol.md`, "Writer generations"; rule 3): who may write, durable
//! beside the content.
//!
//! It lives in the file's extended attribute `user.thinwire.writer`; for block devices, and where
//! the file system has no attributes, in a file of the state directory that is named by the identity.
//! One place for as long as the disk is open: with two, a record that was put back would meet the one
//! that it is to undo.
//!
//! ```text
//!  0      8            16       32       33     97       104        112
//!  | TWW2 | generation | holder | length | name | zeroes | checksum |     big endian
//! ```
//!
//! Records of the former version (`TWW1`, without a name) are understood:
//!
//! ```text
//!  0      8            16       32         40
//!  | TWW1 | generation | holder | checksum |
//! ```

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{XattrFlags, fgetxattr, fremovexattr, fsetxattr, fsync};
use rustix::io::Errno;
use thinwire_volume::{SyncScope, WriterRecord};

use super::DiskOpenError;
use super::domain::sync_all;
use super::identity::Hash;

const ATTRIBUTE: &str = "user.thinwire.writer";
const MAGIC: [u8; 8] = *b"TWW2\0\0\0\0";
const BYTES: usize = 112;
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
}

/// What was found in one place.
enum Found {
    Record(WriterRecord),
    Nothing,
    /// The place does not exist here.
    Unable,
}

impl WriterStore {
    /// Looks where the record is.
    ///
    /// # Errors
    /// It is damaged. If it cannot be read, [`WriterStore::load`] says so: readers may be served.
    pub fn open(
        file: &File,
        path: &Path,
        device: bool,
        read_only: bool,
        identity: &[u8; 16],
        state_dir: &Path,
    ) -> Result<Self, DiskOpenError> {
        let state_file = state_file("writer", identity, state_dir);
        let damaged = |remedy| DiskOpenError::Damaged {
            path: path.to_owned(),
            what: "writer record",
            remedy,
        };
        let mut store = WriterStore { attribute: !device, state_file, read_only };
        match store.read_attribute(file) {
            Ok(Found::Unable) => store.attribute = false,
            Err(Failed::Damaged) => {
                return Err(damaged(format!("setfattr -x {ATTRIBUTE} {}", path.display())));
            }
            _ => {}
        }
        if let Err(Failed::Damaged) = store.read_state_file() {
            return Err(damaged(format!("rm {}", store.state_file.display())));
        }
        Ok(store)
    }

    fn read_attribute(&self, file: &File) -> Result<Found, Failed> {
        if !self.attribute {
            return Ok(Found::Unable);
        }
        let mut bytes = [0; BYTES + 1];
        match fgetxattr(file, ATTRIBUTE, &mut bytes) {
            Ok(len) => decode(&bytes[..len]).map(Found::Record).ok_or(Failed::Damaged),
            Err(Errno::RANGE) => Err(Failed::Damaged),
            Err(Errno::NODATA) => Ok(Found::Nothing),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(Found::Unable),
            Err(errno) => Err(Failed::Os(errno.raw_os_error())),
        }
    }

    fn read_state_file(&self) -> Result<Found, Failed> {
        match fs::read(&self.state_file) {
            Ok(bytes) => decode(&bytes).map(Found::Record).ok_or(Failed::Damaged),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Found::Nothing),
            Err(error) => Err(Failed::from(error)),
        }
    }

    /// The record, durable. Of two, the one with the higher generation counts, the state file's if
    /// they are equal: an earlier version wrote it when the attribute could not be.
    ///
    /// # Errors
    /// The errno of reading it or of making it durable.
    pub fn load(&mut self, file: &File, scope: &SyncScope) -> Result<WriterRecord, i32> {
        let mut record = None;
        if let Found::Record(stored) = self.read_attribute(file)? {
            record = Some(stored);
        }
        if let Found::Record(stored) = self.read_state_file()?
            && record.is_none_or(|record| stored.generation >= record.generation)
        {
            record = Some(stored);
            if !self.read_only {
                self.sync_state_file()?;
            }
        }
        if record.is_some() && self.attribute && !self.read_only {
            // It may have been written by a process that could not make it durable.
            sync_record(file, scope)?;
        }
        Ok(record.unwrap_or_default())
    }

    /// Stores the record durably; errors are errnos, and either record may be there then.
    pub fn store(
        &mut self,
        file: &File,
        scope: &SyncScope,
        record: WriterRecord,
    ) -> Result<(), i32> {
        let bytes = encode(record);
        if self.attribute {
            match fsetxattr(file, ATTRIBUTE, &bytes, XattrFlags::empty()) {
                Ok(()) => {
                    sync_record(file, scope)?;
                    return self.remove_state_file().inspect_err(|errno| self.complain(*errno));
                }
                // Some file systems tell only now that they have none: then there is none.
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                    let _ = fremovexattr(file, ATTRIBUTE);
                    self.attribute = false;
                }
                Err(errno) => return Err(errno.raw_os_error()),
            }
        }
        self.store_file(&bytes).map_err(os).inspect_err(|errno| self.complain(*errno))
    }

    fn complain(&self, errno: i32) {
        tracing::error!(
            path = %self.state_file.display(),
            error = %io::Error::from_raw_os_error(errno),
            "cannot store who may write"
        );
    }

    /// An older record, from a time when the attribute was refused.
    fn remove_state_file(&self) -> Result<(), i32> {
        match fs::remove_file(&self.state_file) {
            Ok(()) => self.sync_folder().map_err(os),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(os(error)),
        }
    }

    /// A record of a volume that is no disk: always in the state file.
    pub fn of_state(identity: &[u8; 16], state_dir: &Path) -> Self {
        // Another name than a disk's: a target of the same machine may serve what this stands on alone,
        // which has the same identity.
        let state_file = state_file("gateway", identity, state_dir);
        WriterStore { attribute: false, state_file, read_only: false }
    }

    /// [`WriterStore::load`] of one that is always in the state file.
    pub fn load_state(&self) -> Result<WriterRecord, i32> {
        match self.read_state_file()? {
            Found::Record(record) => self.sync_state_file().map(|()| record),
            Found::Nothing | Found::Unable => Ok(WriterRecord::default()),
        }
    }

    /// [`WriterStore::store`] of one that is always in the state file.
    pub fn store_state(&self, record: WriterRecord) -> Result<(), i32> {
        self.store_file(&encode(record)).map_err(os).inspect_err(|errno| self.complain(*errno))
    }

    /// Replaces the state file in one step: a crash leaves the old or the new one.
    fn store_file(&self, bytes: &[u8]) -> io::Result<()> {
        fs::create_dir_all(self.folder())?;
        let new = self.state_file.with_extension("new");
        let mut options = fs::OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(&new)?;
        io::Write::write_all(&mut file, bytes)?;
        sync_all(&file)?;
        fs::rename(&new, &self.state_file)?;
        self.sync_folder()
    }

    fn sync_state_file(&self) -> Result<(), i32> {
        let file = File::open(&self.state_file).map_err(os)?;
        sync_all(&file).and_then(|()| self.sync_folder()).map_err(os)
    }

    fn sync_folder(&self) -> io::Result<()> {
        sync_all(&File::open(self.folder())?)
    }

    fn folder(&self) -> &Path {
        self.state_file.parent().expect("a file in a directory")
    }
}

fn state_file(whose: &str, identity: &[u8; 16], state_dir: &Path) -> PathBuf {
    let name: String = identity.iter().map(|byte| format!("{byte:02x}")).collect();
    state_dir.join(format!("{whose}-{name}"))
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

fn os(error: io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

/// Makes an attribute durable, through an open file description of its own: the kernel tells each
/// description once that earlier writes were lost, and the content's must hear of it itself. Only a
/// failure of this puts the content in doubt, not one of what comes before it.
fn sync_record(file: &File, scope: &SyncScope) -> Result<(), i32> {
    let own = format!("/proc/self/fd/{}", file.as_raw_fd());
    let own = File::open(own).map_err(os)?;
    let mark = scope.begin();
    let result = fsync(&own);
    scope.end(mark, result.is_err());
    result.map_err(Errno::raw_os_error)
}

fn encode(record: WriterRecord) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    let name = record.name.as_str().as_bytes();
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..16].copy_from_slice(&record.generation.to_be_bytes());
    bytes[16..32].copy_from_slice(&record.holder);
    bytes[32] = name.len() as u8;
    bytes[33..33 + name.len()].copy_from_slice(name);
    let sum = Hash::of(&bytes[..104]).value();
    bytes[104..].copy_from_slice(&sum[..8]);
    bytes
}

fn decode(bytes: &[u8]) -> Option<WriterRecord> {
    let record = |name: &str| {
        let generation = u64::from_be_bytes(bytes.get(8..16)?.try_into().ok()?);
        Some(WriterRecord::new(generation, bytes.get(16..32)?.try_into().ok()?, name))
    };
    if bytes.len() == BYTES_1 {
        let sum = Hash::of(&bytes[..32]).value();
        return (bytes[..8] == MAGIC_1 && bytes[32..] == sum[..8]).then(|| record("")).flatten();
    }
    let name = bytes.get(33..33 + usize::from(*bytes.get(32)?))?;
    let record = record(std::str::from_utf8(name).ok()?)?;
    (encode(record) == *bytes).then_some(record)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_record_is_noticed() {
        let record = WriterRecord::new(0x0102_0304, [7; 16], "node1");
        let bytes = encode(record);
        assert_eq!(decode(&bytes), Some(record));
        for len in 0..BYTES {
            assert_eq!(decode(&bytes[..len]), None, "{len} bytes");
        }
        for at in 0..BYTES {
            let mut other = bytes;
            other[at] ^= 1;
            assert_eq!(decode(&other), None, "byte {at}");
        }
    }

    #[test]
    fn a_record_of_the_former_version_is_understood() {
        let mut bytes = [0; BYTES_1];
        bytes[..8].copy_from_slice(&MAGIC_1);
        bytes[15] = 3;
        bytes[16..32].fill(7);
        let sum = Hash::of(&bytes[..32]).value();
        bytes[32..].copy_from_slice(&sum[..8]);
        assert_eq!(decode(&bytes), Some(WriterRecord::new(3, [7; 16], "")));
        bytes[20] ^= 1;
        assert_eq!(decode(&bytes), None);
    }

    #[test]
    fn the_state_file_serves_what_has_no_attributes() {
        let dir = std::env::temp_dir().join(format!("thinwire-writer-{}", std::process::id()));
        let null = File::open("/dev/null").unwrap();
        let open =
            || WriterStore::open(&null, Path::new("/dev/null"), true, false, &[0xab; 16], &dir);
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
