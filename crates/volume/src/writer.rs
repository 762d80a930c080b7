//! The writer record: who may write an export, kept durably beside its content
//! (`docs/protocol.md`, "Writer generations"; rule 3). What it says, and how it is changed so that a
//! failure or a crash at any step leaves one that the old writer still satisfies.

use std::fmt;
use std::time::Duration;

use thinwire_buffer::{Pool, SegList};

use crate::{Completion, ErrorKind, Io, IoError, KeptWriter, LeafGrant, Op, Token, Volume};

/// Bytes of the longest holder's name.
const NAME_BYTES_MAX: usize = 64;

/// What a person calls a holder: at most 64 bytes of UTF-8, kept in place.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HolderName {
    len: u8,
    bytes: [u8; NAME_BYTES_MAX],
}

impl HolderName {
    /// Nobody's.
    pub const NONE: HolderName = HolderName { len: 0, bytes: [0; NAME_BYTES_MAX] };

    /// The name, or as much of it as fits.
    pub fn new(name: &str) -> Self {
        let mut len = name.len().min(NAME_BYTES_MAX);
        while !name.is_char_boundary(len) {
            len -= 1;
        }
        let mut bytes = [0; NAME_BYTES_MAX];
        bytes[..len].copy_from_slice(&name.as_bytes()[..len]);
        HolderName { len: len as u8, bytes }
    }

    /// It as text.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..usize::from(self.len)]).unwrap_or_default()
    }
}

impl Default for HolderName {
    fn default() -> Self {
        HolderName::NONE
    }
}

impl fmt::Debug for HolderName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

/// Who may write an export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriterRecord {
    /// Raised by every new writer; 0 before the first.
    pub generation: u64,
    /// The initiator that holds the volume, or zeroes when the last one detached in order.
    pub holder: [u8; 16],
    /// What a person calls the holder; only told to others, never compared.
    pub name: HolderName,
    /// Under so many generations, one after the other, nothing was written, at least: of a record that is held the last of
    /// them is the one before its own, else its own.
    pub idle: u32,
}

impl WriterRecord {
    /// The record that says that a holder writes under a generation, and nothing of those before.
    pub fn new(generation: u64, holder: [u8; 16], name: &str) -> Self {
        WriterRecord { generation, holder, name: HolderName::new(name), idle: 0 }
    }

    /// The same, if `written` is the last generation under which something may have been written: of one that is held, before its own.
    pub fn with_written(self, written: u64) -> Self {
        let last = self.generation.saturating_sub(u64::from(self.is_held()));
        let idle = u32::try_from(last.saturating_sub(written)).unwrap_or(u32::MAX);
        WriterRecord { idle, ..self }
    }

    /// The last generation under which something may have been written: of one that is held, its own.
    pub fn last_written(&self) -> u64 {
        let idle = if self.is_held() { 0 } else { u64::from(self.idle) };
        self.generation.saturating_sub(idle)
    }

    /// What `holder` has under this generation, if it is the next one and `written` the last one under which something may have been written, or the same and the
    /// holder comes back.
    pub fn granted(&self, generation: u64, holder: [u8; 16], name: &str, written: u64) -> Self {
        let next = WriterRecord::new(generation, holder, name);
        match generation == self.generation {
            true => {
                WriterRecord { idle: self.idle.saturating_sub(u32::from(!self.is_held())), ..next }
            }
            false => next.with_written(written),
        }
    }

    /// Of one that is held: what its holder was granted.
    pub fn grant(&self) -> LeafGrant {
        let since = self.generation.saturating_sub(u64::from(self.idle));
        LeafGrant { since, generation: self.generation }
    }

    /// Somebody is on record.
    pub fn is_held(&self) -> bool {
        self.holder != [0; 16]
    }

    /// Bytes of a record as it travels in an [`Io`] or a [`Completion`].
    pub const BYTES: usize = 96;

    /// The I/O that stores it.
    pub fn to_io(&self, token: Token, pool: &Pool) -> Io {
        Io { data: self.to_data(pool), ..Io::new(token, Op::StoreWriter, 0, 0) }
    }

    /// It as it travels: generation, holder, length of the name, name, three bytes of nothing, idle generations.
    pub fn to_data(&self, pool: &Pool) -> SegList {
        let mut buf = pool.get_small(Self::BYTES);
        buf.fill(0);
        buf[..8].copy_from_slice(&self.generation.to_be_bytes());
        buf[8..24].copy_from_slice(&self.holder);
        buf[24] = self.name.len;
        buf[25..25 + NAME_BYTES_MAX].copy_from_slice(&self.name.bytes);
        buf[Self::BYTES - 4..].copy_from_slice(&self.idle.to_be_bytes());
        SegList::of(buf.freeze())
    }

    /// The record that travelled, alone or with [what is kept beside it](crate::KeptWriter); `None` if it is none.
    pub fn from_data(data: &SegList) -> Option<Self> {
        if data.bytes() == Self::BYTES {
            let mut bytes = [0; Self::BYTES];
            data.copy_to(&mut bytes);
            return Self::from_bytes(&bytes);
        }
        KeptWriter::from_data(data).map(|kept| kept.record)
    }

    /// The record that these bytes are; `None` if they are none.
    pub(crate) fn from_bytes(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let (generation, rest) = bytes.split_first_chunk()?;
        let (holder, rest) = rest.split_first_chunk()?;
        let (len, rest) = rest.split_first()?;
        let (name, idle) = (rest.get(..NAME_BYTES_MAX)?, rest.last_chunk()?);
        let name = std::str::from_utf8(name.get(..usize::from(*len))?).ok()?;
        let record = WriterRecord::new(u64::from_be_bytes(*generation), *holder, name);
        Some(WriterRecord { idle: u32::from_be_bytes(*idle), ..record })
    }

    /// The same, held by nobody any more. Under its generation something was written.
    pub fn released(&self) -> Self {
        WriterRecord::new(self.generation, [0; 16], "")
    }
}

/// How a change of the record failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeError {
    /// The old record stands, durably, or it was never touched: whoever asked may be told no.
    Refused(IoError),
    /// Either record may be found after a crash. Nobody may write, be fenced or be told no until the
    /// old one has been stored.
    Unresolved(IoError),
}

/// A change of the record from `old`, which is the one stored, to `new`, step by step.
///
/// First `old` itself is stored anew: where that fails, nothing was changed that its writer could
/// notice, and most failures show there, since it takes the same steps. Then `new`; if *that* fails, it
/// may be there all the same, and `old` is put back before anybody is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordChange {
    old: WriterRecord,
    new: WriterRecord,
    step: ChangeStep,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChangeStep {
    Old,
    New,
    /// The new one could not be stored.
    Back(IoError),
}

impl RecordChange {
    /// It has not begun.
    pub fn new(old: WriterRecord, new: WriterRecord) -> Self {
        RecordChange { old, new, step: ChangeStep::Old }
    }

    /// What it leads to.
    pub fn target(&self) -> WriterRecord {
        self.new
    }

    /// The record to store next.
    pub fn next(&self) -> WriterRecord {
        match self.step {
            ChangeStep::Old | ChangeStep::Back(_) => self.old,
            ChangeStep::New => self.new,
        }
    }

    /// That was stored, or could not be: how the change has ended, or `None` if it goes on with
    /// [`RecordChange::next`].
    pub fn on_stored(&mut self, stored: Result<(), IoError>) -> Option<Result<(), ChangeError>> {
        match (self.step, stored) {
            (ChangeStep::Old, Ok(())) => self.step = ChangeStep::New,
            (ChangeStep::Old, Err(error)) => return Some(Err(ChangeError::Refused(error))),
            (ChangeStep::New, Ok(())) => return Some(Ok(())),
            (ChangeStep::New, Err(error)) => self.step = ChangeStep::Back(error),
            (ChangeStep::Back(error), Ok(())) => return Some(Err(ChangeError::Refused(error))),
            (ChangeStep::Back(error), Err(_)) => return Some(Err(ChangeError::Unresolved(error))),
        }
        None
    }
}

/// No user of a volume has this token.
const ALONE: Token = Token::MAX;

/// How long the first of the looks at a volume that is waited for are apart, and the later ones.
const GLANCES: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(1));

/// Reads the record of a volume that nobody else uses any more, or yet, and waits for it: for commands that
/// open one.
///
/// # Errors
/// See [`Op::LoadWriter`].
pub fn load_writer(volume: &mut dyn Volume) -> Result<WriterRecord, IoError> {
    let io = Io::new(ALONE, Op::LoadWriter, 0, 0);
    let error = io.error(ErrorKind::Io, "writer record");
    let completion = complete_alone(volume, io);
    completion.result?;
    WriterRecord::from_data(&completion.data).ok_or(error)
}

/// Stores the record of such a volume, and waits for it.
///
/// # Errors
/// See [`Op::StoreWriter`].
pub fn store_writer(volume: &mut dyn Volume, record: WriterRecord) -> Result<(), IoError> {
    complete_alone(volume, record.to_io(ALONE, &Pool::new(0))).result
}

/// Does a whole [`RecordChange`] on such a volume.
///
/// # Errors
/// See [`ChangeError`].
pub fn change_writer(
    volume: &mut dyn Volume,
    old: WriterRecord,
    new: WriterRecord,
) -> Result<(), ChangeError> {
    let mut change = RecordChange::new(old, new);
    loop {
        let stored = store_writer(volume, change.next());
        if let Some(ended) = change.on_stored(stored) {
            return ended;
        }
    }
}

fn complete_alone(volume: &mut dyn Volume, io: Io) -> Completion {
    volume.submit(io);
    let mut done = Vec::new();
    let mut glance = GLANCES.0;
    loop {
        volume.poll(&mut done);
        // Others are of somebody who has gone and left them behind.
        if let Some(at) = done.iter().position(|completion| completion.token == ALONE) {
            return done.swap_remove(at);
        }
        done.clear();
        std::thread::sleep(glance);
        glance = (2 * glance).min(GLANCES.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::FileStore;
    use crate::testing::MemDisk;
    use thinwire_buffer::Pool;

    #[test]
    fn a_name_is_cut_between_characters() {
        assert_eq!(HolderName::new("node1").as_str(), "node1");
        assert_eq!(HolderName::new(&"a".repeat(70)).as_str(), "a".repeat(64));
        assert_eq!(HolderName::new(&format!("{}ä", "a".repeat(63))).as_str(), "a".repeat(63));
    }

    #[test]
    fn a_record_travels_as_it_is() {
        let pool = Pool::new(0);
        for name in ["", "node1", &"a".repeat(64)] {
            let record = WriterRecord::new(u64::MAX - 7, [9; 16], name);
            let record = WriterRecord { idle: 0x0102_0304, ..record };
            assert_eq!(WriterRecord::from_data(&record.to_io(1, &pool).data), Some(record));
        }
        let mut long = pool.get_small(WriterRecord::BYTES);
        long.fill(255);
        assert_eq!(WriterRecord::from_data(&SegList::of(long.freeze())), None);
        assert_eq!(WriterRecord::from_data(&SegList::new()), None);
    }

    /// Each is granted the next generation, or comes back, and some end without having written.
    #[test]
    fn a_record_says_since_when_nobody_has_written() {
        let since = |record: &WriterRecord| record.grant().since;
        let held = |record: &WriterRecord, generation, written| {
            record.granted(generation, [1; 16], "node1", written)
        };
        let first = held(&WriterRecord::default(), 1, 0);
        assert_eq!((since(&first), first.last_written()), (1, 1), "it may have");
        // It has not, and ends, and so does the next one.
        let ended = first.released().with_written(0);
        assert_eq!((ended.idle, ended.last_written()), (1, 0));
        let second = held(&ended, 2, ended.last_written());
        assert_eq!((since(&second), second.last_written()), (1, 2));
        // Who comes back, also after it has ended, is told the same.
        assert_eq!(held(&second, 2, 2), second);
        let ended = second.released().with_written(0);
        assert_eq!(held(&ended, 2, 0), second);
        // Another is behind one that has written, or that nobody knows of.
        assert_eq!(since(&held(&second, 3, 2)), 3);
        assert_eq!(since(&held(&second.released(), 3, second.released().last_written())), 3);
        // What it cannot count it does not claim.
        let far = WriterRecord::new(u64::MAX, [1; 16], "").with_written(0);
        assert_eq!((far.idle, since(&far)), (u32::MAX, u64::MAX - u64::from(u32::MAX)));
    }

    /// Every step may fail: what is found then is the old record, or the change is not resolved.
    #[test]
    fn a_change_that_fails_at_any_step_leaves_the_old_record_or_is_unresolved() {
        let (old, new) = (WriterRecord::new(1, [1; 16], "a"), WriterRecord::new(2, [2; 16], "b"));
        // Which of the three steps (old, new, old again) fail.
        for failing in 0..8_u32 {
            let mut store =
                FileStore::new(MemDisk::new(1 << 20, 512, 1), 512, &Pool::new(0)).unwrap();
            store_writer(&mut store, old).unwrap();
            store.disk_mut().fail_records((0..3).map(|step| failing >> step & 1 == 1));
            let result = change_writer(&mut store, old, new);
            let found = load_writer(&mut store).unwrap();
            match result {
                Ok(()) => assert_eq!((failing & 3, found), (0, new)),
                Err(ChangeError::Refused(_)) => assert_eq!(found, old, "{failing}"),
                Err(ChangeError::Unresolved(_)) => {}
            }
            let is_unresolved = matches!(result, Err(ChangeError::Unresolved(_)));
            assert_eq!(is_unresolved, failing == 6, "{failing}");
            assert_eq!(store.events() > 0, result.is_err(), "a failed sync puts all in doubt");
        }
    }
}
