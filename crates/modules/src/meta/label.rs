//! [`Label`]: what a part says of itself and of the whole that it belongs to, and how that stands in 4 KiB
//! (`docs/format.md`, "The label"). Pure: [`Labels`](super::Labels) is what reads and writes them.

mod fields;
#[cfg(test)]
pub(super) mod tests;
mod writer;

use thinwire_volume::{Identity, KeptWriter, WORK_PERCENT_MAX, WorkPace};

use self::fields::*;
use self::writer::{IDLE, LEAVES, leaves_bytes, put_writer, writer};
use super::LabelFault;
use crate::{Module, Options};

/// A part keeps so many bytes for its labels, from its first on; data starts behind.
pub const LABEL_AREA_BYTES: u64 = 1 << 20;
/// Bytes of a label: one block of any size that volumes have.
pub const LABEL_BYTES: usize = 4096;
/// A label, as it stands on a part.
pub type LabelImage = [u8; LABEL_BYTES];
/// Most parts and options that a label has room for, together.
pub const LABEL_ROWS_MAX: usize = ROWS_MAX;
/// Bytes of a row: of a part, an option, or a leaf.
pub const LABEL_ROW_BYTES: usize = ROW_BYTES;
/// Most leaves that stand beside a writer: a label of a mirror has room for as many, whatever else it says.
pub const LABEL_LEAVES_MAX: usize = 64;
/// Most bytes of a module's state that a label has; each 24 of them take a row's place.
pub const LABEL_STATE_BYTES_MAX: usize = 1024;
/// Bytes of the longest name of a whole.
pub const LABEL_NAME_BYTES_MAX: usize = fields::NAME.len;

/// The version that is written, and the only one that is read.
pub(super) const LABEL_VERSION: u16 = 1;

const MAGIC_BYTES: [u8; 8] = *b"TWLABEL\0";
/// Data starts at a multiple of this, in bytes: at a block of any size that volumes have.
const DATA_ALIGN_BYTES: u64 = 4096;
/// Sizes are multiples of this, in bytes: the smallest block that volumes have.
const SIZE_ALIGN_BYTES: u64 = 512;

/// The part has grown: who does not know of [`Label::made_bytes`] would know the whole by another identity, and lose it for good with the next label. A
/// read-only compatible feature.
const GROWN: u64 = 1;
/// It says what it does beside its users. Who does not know that does it as is usual. A compatible feature.
const WORKS: u64 = 1;
/// Of [`Label::work`]: nothing is begun; a scrub goes on.
const WORK_PAUSED: u8 = 1;
const WORK_SCRUBS: u8 = 2;

/// What a reader has to know to use a part, and does not, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LabelFeatures {
    /// Who does not know one goes on, and drops it, with all that belongs to it, with the next label that it writes.
    pub compatible: u64,
    /// Who does not know one reads, and writes nothing to the part.
    pub read_only_compatible: u64,
    /// Who does not know one keeps away.
    pub incompatible: u64,
}

/// A part of a whole, as each of its parts knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LabelPart {
    /// Its name for programs: not zero, and no other part's.
    pub uuid: [u8; 16],
    /// Bytes of its data: what of it the module may use, behind [`Label::data_start`]. Not 0, a multiple of 512.
    pub bytes: u64,
}

/// What a whole does beside its users ([`Work`](thinwire_volume::Work)), as it was told, or has begun, and keeps whoever opens it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LabelWork {
    /// How fast; 1 to 100 percent.
    pub pace: WorkPace,
    /// A scrub goes on, which has read all before this, in bytes.
    pub scrubbed_to: Option<u64>,
}

/// What a part says. Fields are free to be set; [`Label::encode`] writes none that [`Label::decode`] would refuse.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// Raised by each label that is written to the part, from 1 on. [`Labels`](super::Labels) sets it.
    pub generation: u64,
    /// Those that it was read with, and that are not known. None is written.
    pub features: LabelFeatures,
    /// The module that the whole is.
    pub module: &'static Module,
    /// What that was told.
    pub options: Options,
    /// The name of the whole for programs: not zero, and none of the parts'.
    pub whole: [u8; 16],
    /// The name of the whole for people: 1 to [`LABEL_NAME_BYTES_MAX`] bytes without control characters.
    pub name: String,
    /// Bytes of the whole. Not 0, a multiple of 512, at most those of all parts together. Less than what they would
    /// make by now if the whole has not been told yet that they have grown.
    pub whole_bytes: u64,
    /// All parts, in the order in which the module takes them; with the options at most [`LABEL_ROWS_MAX`].
    pub parts: Vec<LabelPart>,
    /// Which of them this one is, counted from 0.
    pub role: u16,
    /// Where the data starts on this part, in bytes: at least [`LABEL_AREA_BYTES`], a multiple of 4096.
    pub data_start: u64,
    /// A random number that is drawn whenever the whole is opened for writing, the same on all parts; zero before the
    /// first time. A part that has another than the rest is an old copy, but for [`Label::next_opening`].
    pub opening: [u8; 16],
    /// The one that is being drawn, while not all parts have it yet ([`WholeOpening`](super::WholeOpening)); else zero.
    pub next_opening: [u8; 16],
    /// How often the whole was opened for writing, that of `opening` included: of two parts that differ, the one with less is
    /// the old copy.
    pub openings: u64,
    /// What the part was when this was written, as a volume; another content is not the whole's any more.
    pub content: Identity,
    /// Who may write the whole, of which an export was made: of a mirror on all legs in sync, else of the part with role 0.
    pub writer: Option<KeptWriter>,
    /// Of the part with role 0: the cut of the whole that was made last ([`Cutter`](crate::cuts::Cutter)); 0 for none.
    pub cut: u64,
    /// Likewise: the one that may be there in some parts only, or not be kept in all of them, if that is [`Label::cut`]; 0 for none.
    pub cut_begun: u64,
    /// Bytes of data with which the part was made, if it has grown since: less than it has. The whole is known by these, and so stays what it was
    /// to whatever stands on it ([`Child::made_with`](crate::Child::made_with)).
    pub made_bytes: Option<u64>,
    /// What the whole does beside its users, where that is not as usual; of a mirror, and of a volume with sums.
    pub work: Option<LabelWork>,
    /// What the module keeps here of its own: at most [`LABEL_STATE_BYTES_MAX`] bytes, in its own format, and no more than the
    /// rows leave room for. None of it is looked at here.
    pub state: Vec<u8>,
}

impl Label {
    /// The part that has this label.
    ///
    /// # Panics
    /// If [`Label::role`] is none of the parts, which one that was decoded is.
    pub fn part(&self) -> LabelPart {
        self.parts[usize::from(self.role)]
    }

    /// Where its data ends on this part, in bytes.
    ///
    /// # Panics
    /// As [`Label::part`].
    pub fn data_end(&self) -> u64 {
        self.data_start.saturating_add(self.part().bytes)
    }

    /// Bytes of data with which it was made.
    ///
    /// # Panics
    /// As [`Label::part`].
    pub fn made_with(&self) -> u64 {
        self.made_bytes.unwrap_or(self.part().bytes)
    }

    /// Its part, and the others, have so many bytes of data from now on, and none has less than before.
    ///
    /// # Panics
    /// As [`Label::part`].
    pub(super) fn grow(&mut self, part_bytes: &[u64]) {
        let before = self.part().bytes;
        for (row, bytes) in self.parts.iter_mut().zip(part_bytes) {
            row.bytes = *bytes;
        }
        if self.part().bytes > before {
            self.made_bytes.get_or_insert(before);
        }
    }

    /// Whether all is known that who writes to the part, or its label, has to know.
    pub fn may_write(&self) -> bool {
        self.features.read_only_compatible == 0
    }

    /// Whether it has room for so many leaves beside a writer, whatever its module keeps there.
    pub(super) fn has_room_of_leaves(&self, count: usize) -> bool {
        let state_rows = LABEL_STATE_BYTES_MAX.div_ceil(LABEL_ROW_BYTES);
        let rows = self.parts.len() + self.options.iter().count() + state_rows;
        count <= LABEL_LEAVES_MAX && rows + count <= LABEL_ROWS_MAX
    }

    /// It as 4 KiB. What is not said is zero; so are all features that are not known.
    ///
    /// # Errors
    /// [`LabelFault::Malformed`]: a field has a value that it cannot have.
    pub fn encode(&self) -> Result<Box<LabelImage>, LabelFault> {
        self.check()?;
        let mut image = Box::new([0; LABEL_BYTES]);
        let mut head = |field, bytes: &[u8]| put(&mut image, 0, field, bytes);
        let part = self.part();
        let used = row(self.parts.len() + self.options.iter().count());
        head(MAGIC, &MAGIC_BYTES);
        head(VERSION, &LABEL_VERSION.to_le_bytes());
        head(USED, &(used as u16).to_le_bytes());
        head(GENERATION, &self.generation.to_le_bytes());
        head(MODULE, self.module.name.as_bytes());
        head(PART, &part.uuid);
        head(WHOLE, &self.whole);
        head(NAME, self.name.as_bytes());
        head(OPENING, &self.opening);
        head(NEXT_OPENING, &self.next_opening);
        head(OPENINGS, &self.openings.to_le_bytes());
        if let Some(made) = self.made_bytes {
            head(READ_ONLY_COMPATIBLE, &GROWN.to_le_bytes());
            head(MADE_BYTES, &made.to_le_bytes());
        }
        if let Some(work) = self.work {
            let paused = if work.pace.is_paused { WORK_PAUSED } else { 0 };
            let scrubs = if work.scrubbed_to.is_some() { WORK_SCRUBS } else { 0 };
            head(WORK, &[paused | scrubs]);
            head(WORK_PERCENT, &[work.pace.percent]);
            head(SCRUBBED_TO, &work.scrubbed_to.unwrap_or(0).to_le_bytes());
        }
        head(CUT, &self.cut.to_le_bytes());
        head(CUT_BEGUN, &self.cut_begun.to_le_bytes());
        head(DATA_START, &self.data_start.to_le_bytes());
        head(DATA_BYTES, &part.bytes.to_le_bytes());
        head(WHOLE_BYTES, &self.whole_bytes.to_le_bytes());
        head(ROLE, &self.role.to_le_bytes());
        head(PARTS, &(self.parts.len() as u16).to_le_bytes());
        head(OPTIONS, &(self.options.iter().count() as u16).to_le_bytes());
        head(CONTENT, &self.content.identity);
        head(INCARNATION, &self.content.incarnation.to_le_bytes());
        let of_writer = self.writer.as_ref().map_or(0, |kept| put_writer(&mut image, kept));
        let works = if self.work.is_some() { WORKS } else { 0 };
        put(&mut image, 0, COMPATIBLE, &(works | of_writer).to_le_bytes());
        for (part, at) in self.parts.iter().zip((0..).map(row)) {
            put(&mut image, at, PART_UUID, &part.uuid);
            put(&mut image, at, PART_BYTES, &part.bytes.to_le_bytes());
        }
        for ((name, value), at) in self.options.iter().zip((self.parts.len()..).map(row)) {
            put(&mut image, at, OPTION_NAME, name.as_bytes());
            put(&mut image, at, OPTION_VALUE, &value.to_le_bytes());
        }
        put_state(&mut image, used, &self.state);
        seal(&mut image);
        Ok(image)
    }

    /// What 4 KiB say.
    ///
    /// # Errors
    /// See [`LabelFault`]. Whatever else they are, nothing of them was believed.
    pub fn decode(image: &LabelImage) -> Result<Self, LabelFault> {
        if image.iter().all(|&byte| byte == 0) {
            return Err(LabelFault::Zero);
        }
        let begins = bytes(image, 0, MAGIC);
        if begins != MAGIC_BYTES {
            return Err(LabelFault::Foreign { begins });
        }
        let (says, has) = (u32::from_le_bytes(bytes(image, 0, CHECKSUM)), checksum(image));
        if says != has {
            return Err(LabelFault::Checksum { says, has });
        }
        let version = u16_of(image, VERSION);
        if version != LABEL_VERSION {
            return Err(LabelFault::Version { version });
        }
        let read_only_compatible = u64_of(image, 0, READ_ONLY_COMPATIBLE);
        let has_grown = read_only_compatible & GROWN != 0;
        let compatible = u64_of(image, 0, COMPATIBLE);
        let features = LabelFeatures {
            compatible: compatible & !(WORKS | LEAVES | IDLE),
            read_only_compatible: read_only_compatible & !GROWN,
            incompatible: u64_of(image, 0, INCOMPATIBLE),
        };
        if features.incompatible != 0 {
            return Err(LabelFault::Features { unknown: features.incompatible });
        }
        let Some(module) = text(image, 0, MODULE).ok().and_then(Module::find) else {
            let name = String::from_utf8_lossy(&image[MODULE.range(0)]);
            let name = name.trim_end_matches('\0').to_owned();
            return Err(LabelFault::Module { name });
        };
        let (parts, options) = rows(image, module)?;
        let count = parts.len() + options.iter().count();
        let state = state(image, row(count))?;
        let label = Label {
            generation: u64_of(image, 0, GENERATION),
            features,
            module,
            options,
            whole: bytes(image, 0, WHOLE),
            name: text(image, 0, NAME)
                .map_err(|_| LabelFault::malformed("name", "is not UTF-8"))?
                .to_owned(),
            whole_bytes: u64_of(image, 0, WHOLE_BYTES),
            parts,
            role: u16_of(image, ROLE),
            data_start: u64_of(image, 0, DATA_START),
            opening: bytes(image, 0, OPENING),
            next_opening: bytes(image, 0, NEXT_OPENING),
            openings: u64_of(image, 0, OPENINGS),
            content: Identity {
                identity: bytes(image, 0, CONTENT),
                incarnation: u64_of(image, 0, INCARNATION),
            },
            writer: writer(image, compatible, row(count) + state.len())?,
            cut: u64_of(image, 0, CUT),
            cut_begun: u64_of(image, 0, CUT_BEGUN),
            made_bytes: has_grown.then(|| u64_of(image, 0, MADE_BYTES)),
            work: (compatible & WORKS != 0).then(|| work(image)),
            state,
        };
        label.check()?;
        label.check_said_twice(image)?;
        label.check_rest(image)?;
        Ok(label)
    }

    /// Whether each field has a value that it can have.
    fn check(&self) -> Result<(), LabelFault> {
        let wrong = |field, why| Err(LabelFault::Malformed { field, why });
        if self.generation == 0 {
            return wrong("generation", "is 0, and the first is 1".into());
        }
        let (count, name) = (self.parts.len(), &self.name);
        if let Err(error) = self.module.check_count(count) {
            return wrong("parts", format!("is {count}, and {error}"));
        }
        let rows = count + self.options.iter().count();
        if rows > LABEL_ROWS_MAX {
            return wrong(
                "parts",
                format!("makes {rows} rows with the options, and a label has {LABEL_ROWS_MAX}"),
            );
        }
        let (state, room) = (self.state.len(), LABEL_BYTES - row(rows));
        if state > LABEL_STATE_BYTES_MAX.min(room) {
            return wrong(
                "state length",
                format!(
                    "is {state}, of {LABEL_STATE_BYTES_MAX} at most, and the rows leave {room}"
                ),
            );
        }
        let (leaves, room) = (leaves_bytes(self.writer.as_ref()), room - state);
        if leaves > room {
            let (count, room) = (leaves / ROW_BYTES, room / ROW_BYTES);
            return wrong("writer leaves", format!("is {count}, and there is room for {room}"));
        }
        if usize::from(self.role) >= count {
            let role = self.role;
            return wrong("role", format!("is {role}, counted from 0, of {count} parts"));
        }
        if name.is_empty() || name.len() > LABEL_NAME_BYTES_MAX {
            let len = name.len();
            return wrong("name", format!("has {len} bytes, not 1 to {LABEL_NAME_BYTES_MAX}"));
        }
        if name.chars().any(char::is_control) {
            return wrong("name", format!("has control characters: {name:?}"));
        }
        for (name, value) in self.options.iter() {
            let known = self.module.option(name).map_err(|error| error.to_string());
            if let Err(why) = known.and_then(|option| option.check(value)) {
                return wrong("option", format!("`{name}` is refused: {why}"));
            }
        }
        if (self.openings == 0) != (self.opening == [0; 16]) {
            let (count, last) = (self.openings, hex(&self.opening));
            return wrong("openings", format!("is {count}, and the last of them {last}"));
        }
        if let Some(work) = self.work {
            let percent = work.pace.percent;
            if !(1..=WORK_PERCENT_MAX).contains(&percent) {
                return wrong("work percent", format!("is {percent}, not 1 to {WORK_PERCENT_MAX}"));
            }
        }
        self.check_uuids()?;
        self.check_sizes()
    }

    fn check_uuids(&self) -> Result<(), LabelFault> {
        let mut named: Vec<_> = self.parts.iter().map(|part| ("part", part.uuid)).collect();
        named.push(("whole", self.whole));
        named.sort_unstable_by_key(|(_, uuid)| *uuid);
        let (field, least) = named[0];
        if least == [0; 16] {
            return Err(LabelFault::malformed(field, "is all zero"));
        }
        match named.windows(2).find(|pair| pair[0].1 == pair[1].1) {
            Some(pair) => {
                let why = format!("{} names two things", hex(&pair[0].1));
                Err(LabelFault::malformed("part", why))
            }
            None => Ok(()),
        }
    }

    fn check_sizes(&self) -> Result<(), LabelFault> {
        let wrong = |field, why| Err(LabelFault::Malformed { field, why });
        let size = |field, bytes: u64| {
            if bytes == 0 || !bytes.is_multiple_of(SIZE_ALIGN_BYTES) {
                return wrong(
                    field,
                    format!("is {bytes}, no multiple of {SIZE_ALIGN_BYTES} above 0"),
                );
            }
            Ok(())
        };
        self.parts.iter().try_for_each(|part| size("data bytes", part.bytes))?;
        size("whole bytes", self.whole_bytes)?;
        if let Some(made) = self.made_bytes {
            size("made bytes", made)?;
            let has = self.part().bytes;
            if made >= has {
                return wrong(
                    "made bytes",
                    format!("is {made}, and the part has {has} after it has grown"),
                );
            }
        }
        let all: u128 = self.parts.iter().map(|part| u128::from(part.bytes)).sum();
        if u128::from(self.whole_bytes) > all {
            let whole = self.whole_bytes;
            return wrong("whole bytes", format!("is {whole}, and all parts together have {all}"));
        }
        let (start, bytes) = (self.data_start, self.part().bytes);
        if start < LABEL_AREA_BYTES || !start.is_multiple_of(DATA_ALIGN_BYTES) {
            return wrong(
                "data start",
                format!("is {start}, no multiple of {DATA_ALIGN_BYTES} from {LABEL_AREA_BYTES} on"),
            );
        }
        if start.checked_add(bytes).is_none() {
            return wrong(
                "data bytes",
                format!("is {bytes}, and no offset reaches so far from {start}"),
            );
        }
        Ok(())
    }

    /// What stands in the head is also in the row of this part.
    fn check_said_twice(&self, image: &LabelImage) -> Result<(), LabelFault> {
        let (part, row) = (bytes(image, 0, PART), self.part());
        if part != row.uuid {
            let why = format!("is {}, and in row {} {}", hex(&part), self.role, hex(&row.uuid));
            return Err(LabelFault::malformed("part", why));
        }
        let bytes = u64_of(image, 0, DATA_BYTES);
        if bytes != row.bytes {
            let why = format!("is {bytes}, and in row {} {}", self.role, row.bytes);
            return Err(LabelFault::malformed("data bytes", why));
        }
        Ok(())
    }

    /// Nothing stands where nothing has a meaning: there is one way to write a label. But what belongs to unknown
    /// features may be anywhere.
    fn check_rest(&self, image: &LabelImage) -> Result<(), LabelFault> {
        if self.features != LabelFeatures::default() {
            return Ok(());
        }
        let own = self.encode()?;
        let differs = |at: &usize| own[*at] != image[*at] && !CHECKSUM.range(0).contains(at);
        match (0..LABEL_BYTES).find(differs) {
            Some(at) => {
                let why = format!("has {:#04x} at byte {at}, where zero belongs", image[at]);
                Err(LabelFault::malformed("reserved", why))
            }
            None => Ok(()),
        }
    }
}

/// The parts, and what the module was told.
fn rows(image: &LabelImage, module: &Module) -> Result<(Vec<LabelPart>, Options), LabelFault> {
    let counts = [PARTS, OPTIONS].map(|field| usize::from(u16_of(image, field)));
    let (count, used) = (counts[0] + counts[1], usize::from(u16_of(image, USED)));
    if count > LABEL_ROWS_MAX {
        let [parts, options] = counts;
        let why = format!(
            "is {parts}, beside {options} options, and a label has {LABEL_ROWS_MAX} rows for both"
        );
        return Err(LabelFault::malformed("parts", why));
    }
    if used < row(count) || used > LABEL_BYTES {
        let least = row(count);
        let why = format!("is {used}, and the rows end at {least} of {LABEL_BYTES}");
        return Err(LabelFault::malformed("length", why));
    }
    let part =
        |at| LabelPart { uuid: bytes(image, at, PART_UUID), bytes: u64_of(image, at, PART_BYTES) };
    let parts = (0..counts[0]).map(row).map(part).collect();
    let (mut options, mut last) = (Options::default(), "");
    for at in (counts[0]..count).map(row) {
        let name = text(image, at, OPTION_NAME)
            .map_err(|_| LabelFault::malformed("option", "is not UTF-8"))?;
        if name <= last {
            let why = format!("`{name}` stands behind `{last}`: each stands once, in order");
            return Err(LabelFault::malformed("option", why));
        }
        last = name;
        let option = module
            .option(name)
            .map_err(|error| LabelFault::malformed("option", format!("is refused: {error}")))?;
        options.set(option, u64_of(image, at, OPTION_VALUE));
    }
    Ok((parts, options))
}

/// What the module keeps, behind the rows, which end at `from`.
fn state(image: &LabelImage, from: usize) -> Result<Vec<u8>, LabelFault> {
    let len = usize::from(u16_of(image, STATE_LENGTH));
    match image.get(from..from + len) {
        Some(state) if len <= LABEL_STATE_BYTES_MAX => Ok(state.to_vec()),
        _ => {
            let room = LABEL_BYTES - from;
            let why =
                format!("is {len}, of {LABEL_STATE_BYTES_MAX} at most, and the rows leave {room}");
            Err(LabelFault::malformed("state length", why))
        }
    }
}

fn put_state(image: &mut LabelImage, from: usize, state: &[u8]) {
    put(image, 0, STATE_LENGTH, &(state.len() as u16).to_le_bytes());
    image[from..from + state.len()].copy_from_slice(state);
}

/// What it does beside its users. Bits that have no meaning are met by [`Label::check_rest`].
fn work(image: &LabelImage) -> LabelWork {
    let [says]: [u8; 1] = bytes(image, 0, WORK);
    let [percent]: [u8; 1] = bytes(image, 0, WORK_PERCENT);
    let scrubbed_to = (says & WORK_SCRUBS != 0).then(|| u64_of(image, 0, SCRUBBED_TO));
    LabelWork { pace: WorkPace { is_paused: says & WORK_PAUSED != 0, percent }, scrubbed_to }
}

/// CRC32C of all but the checksum, which counts as zero.
fn checksum(image: &LabelImage) -> u32 {
    let before = crc32c::crc32c(&image[..CHECKSUM.at]);
    let zero = crc32c::crc32c_append(before, &[0; CHECKSUM.len]);
    crc32c::crc32c_append(zero, &image[CHECKSUM.end()..])
}

fn seal(image: &mut LabelImage) {
    let sum = checksum(image);
    put(image, 0, CHECKSUM, &sum.to_le_bytes());
}

/// An UUID as people compare it.
pub(super) fn hex(uuid: &[u8; 16]) -> String {
    uuid.iter().map(|byte| format!("{byte:02x}")).collect()
}
