//! The writer record (DESIGN section 4, rule 3): who may write, durable beside the content.
//!
//! It lives in the file's extended attribute `user.thinwire.writer`; for block devices, and where
//! the attribute is refused, in a file of the state directory that is named by the identity.
//!
//! ```text
//!  0       4         8            16         32         40
//!  | TWW1  | zeroes  | generation | holder   | checksum |     big endian
//! ```

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{XattrFlags, fgetxattr, fremovexattr, fsetxattr, fsync};
use rustix::io::Errno;
use thinwire_volume::WriterRecord;

use super::OpenError;
use super::identity::Hash;

const ATTRIBUTE: &str = "user.thinwire.writer";
const MAGIC: [u8; 8] = *b"TWW1\0\0\0\0";
const BYTES: usize = 40;

/// Where one volume's record lives.
#[derive(Debug)]
pub(super) struct WriterStore {
    /// Block devices have no attributes of their own.
    attribute: bool,
    state_file: PathBuf,
    record: WriterRecord,
}

impl WriterStore {
    /// Reads the record. Of two, the one with the higher generation counts; the state file's if
    /// they are equal, since it was written when the attribute could not be.
    pub fn open(
        file: &File,
        path: &Path,
        device: bool,
        identity: &[u8; 16],
        state_dir: &Path,
    ) -> Result<Self, OpenError> {
        let name: String = identity.iter().map(|byte| format!("{byte:02x}")).collect();
        let state_file = state_dir.join(format!("writer-{name}"));
        let damaged =
            |remedy| OpenError::Damaged { path: path.to_owned(), what: "writer record", remedy };
        let mut record = WriterRecord::default();
        if !device {
            let mut bytes = [0; BYTES + 1];
            match fgetxattr(file, ATTRIBUTE, &mut bytes) {
                Ok(len) => {
                    record = decode(&bytes[..len]).ok_or_else(|| {
                        damaged(format!("setfattr -x {ATTRIBUTE} {}", path.display()))
                    })?;
                }
                Err(Errno::RANGE) => {
                    return Err(damaged(format!("setfattr -x {ATTRIBUTE} {}", path.display())));
                }
                Err(_) => {}
            }
        }
        match fs::read(&state_file) {
            Ok(bytes) => {
                let stored = decode(&bytes)
                    .ok_or_else(|| damaged(format!("rm {}", state_file.display())))?;
                if stored.generation >= record.generation {
                    record = stored;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => {
                let what = "read its writer record in the state directory";
                return Err(OpenError::Os { path: state_file, what, source });
            }
        }
        Ok(WriterStore { attribute: !device, state_file, record })
    }

    pub fn load(&self) -> WriterRecord {
        self.record
    }

    /// Stores the record durably; errors are errnos.
    pub fn store(&mut self, file: &File, record: WriterRecord) -> Result<(), i32> {
        let bytes = encode(record);
        if self.attribute && fsetxattr(file, ATTRIBUTE, &bytes, XattrFlags::empty()).is_ok() {
            fsync(file).map_err(Errno::raw_os_error)?;
            // An older record, from a time when the attribute was refused.
            let _ = fs::remove_file(&self.state_file);
        } else {
            self.store_file(&bytes)
                .map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))
                .inspect_err(|errno| {
                    tracing::error!(
                        path = %self.state_file.display(),
                        error = %io::Error::from_raw_os_error(*errno),
                        "cannot store who may write"
                    );
                })?;
            if self.attribute {
                let _ = fremovexattr(file, ATTRIBUTE);
            }
        }
        self.record = record;
        Ok(())
    }

    /// Replaces the state file in one step: a crash leaves the old or the new one.
    fn store_file(&self, bytes: &[u8]) -> io::Result<()> {
        let dir = self.state_file.parent().expect("a file in a directory");
        fs::create_dir_all(dir)?;
        let new = self.state_file.with_extension("new");
        let mut options = fs::OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(&new)?;
        io::Write::write_all(&mut file, bytes)?;
        file.sync_all()?;
        fs::rename(&new, &self.state_file)?;
        File::open(dir)?.sync_all()
    }
}

fn encode(record: WriterRecord) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..16].copy_from_slice(&record.generation.to_be_bytes());
    bytes[16..32].copy_from_slice(&record.holder);
    let sum = Hash::of(&bytes[..32]).value();
    bytes[32..].copy_from_slice(&sum[..8]);
    bytes
}

fn decode(bytes: &[u8]) -> Option<WriterRecord> {
    let bytes: &[u8; BYTES] = bytes.try_into().ok()?;
    let record = WriterRecord {
        generation: u64::from_be_bytes(bytes[8..16].try_into().ok()?),
        holder: bytes[16..32].try_into().ok()?,
    };
    (encode(record) == *bytes).then_some(record)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_record_is_noticed() {
        let record = WriterRecord { generation: 0x0102_0304, holder: [7; 16] };
        let bytes = encode(record);
        assert_eq!(decode(&bytes), Some(record));
        assert_eq!(decode(&bytes[..39]), None);
        for at in 0..BYTES {
            let mut other = bytes;
            other[at] ^= 1;
            assert_eq!(decode(&other), None, "byte {at}");
        }
    }

    #[test]
    fn the_state_file_serves_what_has_no_attributes() {
        let dir = std::env::temp_dir().join(format!("thinwire-writer-{}", std::process::id()));
        let null = File::open("/dev/null").unwrap();
        let open = || WriterStore::open(&null, Path::new("/dev/null"), true, &[0xab; 16], &dir);
        let mut store = open().unwrap();
        assert_eq!(store.load(), WriterRecord::default());
        for generation in [1, 2] {
            let record = WriterRecord { generation, holder: [3; 16] };
            store.store(&null, record).unwrap();
            assert_eq!(open().unwrap().load(), record);
        }
        let file = dir.join(format!("writer-{}", "ab".repeat(16)));
        fs::write(&file, b"nonsense").unwrap();
        assert!(open().unwrap_err().to_string().contains("rm "));
        fs::remove_dir_all(&dir).unwrap();
    }
}
