//! From parts to a whole: labels for those that are to be one ([`label_parts`]), and whether those that were found
//! make one, and in which order ([`assemble`]). Pure: whoever calls has read the labels, and opens the module.

#[cfg(test)]
mod tests;

use std::fmt;

use thinwire_volume::{Identity, KeptWriter};

use super::label::hex;
use super::{Finding, Label, LabelError, LabelFault, LabelPart};
use crate::{Module, Options};

/// Data ends at a multiple of this, in bytes, on parts of any size: at a block of any size that volumes have.
const DATA_ALIGN_BYTES: u64 = 4096;

/// A volume that is to be a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewPart {
    /// What it will be called: drawn by whoever calls, not zero.
    pub uuid: [u8; 16],
    /// What it is now.
    pub content: Identity,
    /// Its bytes.
    pub bytes: u64,
}

impl NewPart {
    /// How much of it is for the data of that module, in bytes; 0 if what stands before that leaves nothing.
    pub fn data_bytes(&self, module: &Module) -> u64 {
        let rest = self.bytes.saturating_sub(module.data_start());
        rest / DATA_ALIGN_BYTES * DATA_ALIGN_BYTES
    }
}

/// What a whole is to be.
#[derive(Clone, Copy, Debug)]
pub struct NewWhole<'a> {
    /// What people call it.
    pub name: &'a str,
    /// What programs do: drawn by whoever calls, not zero.
    pub uuid: [u8; 16],
    /// The module that it is.
    pub module: &'static Module,
    /// What that is told.
    pub options: &'a Options,
    /// What the module makes of the data of all parts.
    pub bytes: u64,
}

/// The labels of parts that are to be a whole, in their order. [`Labels::write`](super::Labels::write) sets the generation; what a module keeps
/// there ([`Label::state`]) is for whoever calls to add.
///
/// # Errors
/// One of them would say what cannot be: a name that is too long, more parts than there is room for, one without data.
pub fn label_parts(whole: &NewWhole<'_>, parts: &[NewPart]) -> Result<Vec<Label>, LabelFault> {
    if let Err(error) = whole.module.check_count(parts.len()) {
        return Err(LabelFault::malformed("parts", format!("is {}, and {error}", parts.len())));
    }
    let rows: Vec<_> = parts
        .iter()
        .map(|part| LabelPart { uuid: part.uuid, bytes: part.data_bytes(whole.module) })
        .collect();
    let label = |(role, part): (usize, &NewPart)| {
        let label = Label {
            generation: 1,
            features: Default::default(),
            module: whole.module,
            options: whole.options.clone(),
            whole: whole.uuid,
            name: whole.name.to_owned(),
            whole_bytes: whole.bytes,
            parts: rows.clone(),
            role: role as u16,
            data_start: whole.module.data_start(),
            opening: [0; 16],
            next_opening: [0; 16],
            cut: 0,
            cut_begun: 0,
            made_bytes: None,
            work: None,
            openings: 0,
            content: part.content,
            writer: None,
            state: Vec::new(),
        };
        label.encode().map(|_| label)
    };
    parts.iter().enumerate().map(label).collect()
}

/// What was found in a place where a part may be.
#[derive(Clone, Debug)]
pub struct SeenPart {
    /// What its labels say.
    pub found: Result<Finding, LabelError>,
    /// What it is now.
    pub content: Identity,
}

/// A whole that all parts were found of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assembly {
    /// The module that it is.
    pub module: &'static Module,
    /// What that is told.
    pub options: Options,
    /// What people call it.
    pub name: String,
    /// What programs do.
    pub uuid: [u8; 16],
    /// Its bytes, as it was told last.
    pub bytes: u64,
    /// The last opening for writing that all parts know of, which may be half drawn; zero if there was none.
    pub opening: [u8; 16],
    /// How often it was opened for writing.
    pub openings: u64,
    /// Its parts, in the order in which the module takes them.
    pub parts: Vec<FoundPart>,
    /// Who may write it, as the first of them says.
    pub writer: Option<KeptWriter>,
}

impl Assembly {
    /// Where each of its parts stands among those that were given.
    pub fn places(&self) -> Vec<usize> {
        self.parts.iter().map(|part| part.place).collect()
    }

    /// Its sizes, as it was told last.
    pub fn sizes(&self) -> WholeSizes {
        let parts = self.parts.iter().map(|part| part.data_bytes).collect();
        WholeSizes { whole_bytes: self.bytes, part_bytes: parts }
    }

    /// As large as it can be with what its parts have room for by now; `volumes` are how many bytes those have, and in blocks of how many, in the order of the
    /// parts. None if that is no larger than it is.
    pub fn with_room(&self, volumes: &[(u64, u32)]) -> Option<WholeSizes> {
        let mut sizes = self.sizes();
        for role in self.module.growing_parts(self.parts.len()) {
            let room = volumes[role].0.saturating_sub(self.parts[role].data_start);
            let bytes = &mut sizes.part_bytes[role];
            *bytes = (*bytes).max(room / DATA_ALIGN_BYTES * DATA_ALIGN_BYTES);
        }
        let blocks = volumes.iter().map(|(_, block_bytes)| *block_bytes);
        let parts: Vec<_> = sizes.part_bytes.iter().copied().zip(blocks).collect();
        sizes.whole_bytes = self.module.bytes_of(&self.options, &parts).ok()?;
        // A pool has a part that makes none of its bytes.
        let grows =
            sizes.whole_bytes > self.bytes || self.module.has_volumes() && sizes != self.sizes();
        grows.then_some(sizes)
    }

    /// It has these from now on.
    pub fn set_sizes(&mut self, sizes: &WholeSizes) {
        self.bytes = sizes.whole_bytes;
        for (part, bytes) in self.parts.iter_mut().zip(&sizes.part_bytes) {
            part.data_bytes = *bytes;
        }
    }
}

/// What the labels of a whole say of sizes, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WholeSizes {
    /// Of the whole.
    pub whole_bytes: u64,
    /// Of the data of its parts, in their order.
    pub part_bytes: Vec<u64>,
}

/// Where a part is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundPart {
    /// In which of the places that were looked at, counted from 0.
    pub place: usize,
    /// Where its data starts there, in bytes.
    pub data_start: u64,
    /// Bytes of data.
    pub data_bytes: u64,
    /// With how many it was made: by these the whole is known.
    pub made_bytes: u64,
}

/// Why places make no whole. Places are counted from 0, in the order in which they were given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AssemblyError {
    /// There is no place to look at.
    Nothing,
    /// One has no label that can be gone by.
    Label {
        /// The place that has none.
        place: usize,
        /// Why.
        error: LabelError,
    },
    /// One was never labelled, while others were or were not.
    Blank {
        /// The place that was not.
        place: usize,
        /// Another that was.
        labelled: Option<(usize, String)>,
    },
    /// Two are parts of different wholes.
    OtherWhole {
        /// Which two.
        places: [usize; 2],
        /// What their wholes are called.
        names: [String; 2],
    },
    /// Two say that they are the same part: one was copied. Neither is used (rule 17).
    Twins {
        /// Which two.
        places: [usize; 2],
        /// The part that both say they are.
        uuid: [u8; 16],
    },
    /// Two parts of one whole say different things of it: one was away while that changed, or is an old copy.
    Differ {
        /// Which two.
        places: [usize; 2],
        /// In what.
        field: &'static str,
    },
    /// Some were not there when the whole was last opened for writing, while others were: old copies (rule 25).
    Stale {
        /// Of this whole.
        name: String,
        /// Which they are.
        parts: Vec<StalePart>,
        /// A place whose part was there.
        newest: usize,
    },
    /// One holds another content than when it was labelled (rule 16).
    OtherContent {
        /// The place that holds it.
        place: usize,
    },
    /// Parts were not found.
    Missing {
        /// Of this whole.
        name: String,
        /// Which of them, and how many there are.
        roles: Vec<usize>,
        /// How many there are.
        count: usize,
    },
}

/// A part that is an old copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StalePart {
    /// In which place it is, counted from 0.
    pub place: usize,
    /// Which part it is, counted from 0.
    pub role: u16,
    /// How many openings for writing it knows nothing of.
    pub missed: u64,
}

/// Puts parts in order, whatever their places are called: all of one whole, none twice, none missing.
///
/// # Errors
/// The first thing that is wrong, of those that say most: labels that cannot be read before parts that are missing.
pub fn assemble(seen: &[SeenPart]) -> Result<Assembly, AssemblyError> {
    assemble_with(seen, AssemblyCanary::None)
}

/// A fault planted in it, which tests must find.
#[cfg_attr(not(test), allow(dead_code, reason = "tests plant them"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AssemblyCanary {
    None,
    /// Of two that say that they are the same part the first is taken.
    TakesFirstTwin,
}

fn assemble_with(seen: &[SeenPart], canary: AssemblyCanary) -> Result<Assembly, AssemblyError> {
    let mut labels: Vec<(usize, &Label)> = Vec::new();
    let mut blank = None;
    for (place, part) in seen.iter().enumerate() {
        match &part.found {
            Ok(Finding::Label(found)) => labels.push((place, &found.label)),
            Ok(Finding::Blank) => blank = blank.or(Some(place)),
            Err(error) => return Err(AssemblyError::Label { place, error: error.clone() }),
        }
    }
    let first = labels.first().map(|&(place, label)| (place, label.name.clone()));
    if let Some(place) = blank {
        return Err(AssemblyError::Blank { place, labelled: first });
    }
    let Some(&(_, one)) = labels.first() else { return Err(AssemblyError::Nothing) };
    match check_one_whole(&labels) {
        Err(AssemblyError::Twins { .. }) if canary == AssemblyCanary::TakesFirstTwin => {}
        checked => checked?,
    }
    let newest = newest_opening(&labels)?;
    check_sizes(&labels, newest)?;
    for &(place, label) in &labels {
        if label.content != seen[place].content {
            return Err(AssemblyError::OtherContent { place });
        }
    }
    let of_role = |role: usize| labels.iter().find(|(_, label)| usize::from(label.role) == role);
    let count = one.parts.len();
    let missing: Vec<_> = (0..count).filter(|&role| of_role(role).is_none()).collect();
    if !missing.is_empty() {
        return Err(AssemblyError::Missing { name: one.name.clone(), roles: missing, count });
    }
    let part = |&(place, label): &(usize, &Label)| FoundPart {
        place,
        data_start: label.data_start,
        data_bytes: newest.parts[usize::from(label.role)].bytes,
        made_bytes: label.made_with(),
    };
    Ok(Assembly {
        module: one.module,
        options: one.options.clone(),
        name: one.name.clone(),
        uuid: one.whole,
        bytes: newest.whole_bytes,
        opening: newest.opening,
        openings: newest.openings,
        // All are parts of one list, and none twice: so there is one for each.
        parts: (0..count).filter_map(of_role).map(part).collect(),
        writer: of_role(0).and_then(|(_, label)| label.writer.clone()),
    })
}

/// All of these, with their places, are parts of one whole, of which they say the same, and none is there twice.
pub(crate) fn check_one_whole(labels: &[(usize, &Label)]) -> Result<(), AssemblyError> {
    let Some(&(at, one)) = labels.first() else { return Ok(()) };
    for (nth, &(place, label)) in labels.iter().enumerate().skip(1) {
        let places = [at, place];
        if label.whole != one.whole {
            let names = [one.name.clone(), label.name.clone()];
            return Err(AssemblyError::OtherWhole { places, names });
        }
        let uuid = label.part().uuid;
        if let Some(&(twin, _)) = labels[..nth].iter().find(|(_, l)| l.part().uuid == uuid) {
            return Err(AssemblyError::Twins { places: [twin, place], uuid });
        }
        if let Some(field) = difference(one, label) {
            return Err(AssemblyError::Differ { places, field });
        }
    }
    Ok(())
}

/// In what two parts of one whole contradict each other. Of sizes nothing is said here: it may have grown, which not all know yet.
fn difference(one: &Label, other: &Label) -> Option<&'static str> {
    let differs = [
        ("the module", one.module != other.module),
        ("the options", one.options != other.options),
        ("the name", one.name != other.name),
        ("the list of parts", !are_parts_alike(one, other)),
    ];
    differs.into_iter().find(|(_, differs)| *differs).map(|(field, _)| field)
}

/// Of a mirror its size is a part's own matter: one may be replaced by one of another size. And some may know of more parts than others: one that was added
/// while they were away.
fn are_parts_alike(one: &Label, other: &Label) -> bool {
    let uuids = |label: &Label| label.parts.iter().map(|part| part.uuid).collect::<Vec<_>>();
    match one.module.is_mirror() {
        true => {
            let (one, other) = (uuids(one), uuids(other));
            one.starts_with(&other) || other.starts_with(&one)
        }
        false => uuids(one) == uuids(other),
    }
}

/// All say the same sizes, unless a crash has cut off the opening with which they have grown: what announces that one has those of before, which were no larger.
fn check_sizes(labels: &[(usize, &Label)], newest: &Label) -> Result<(), AssemblyError> {
    let is_within = |label: &Label| {
        let mut parts = label.parts.iter().zip(&newest.parts);
        label.whole_bytes <= newest.whole_bytes
            && parts.all(|(one, other)| one.bytes <= other.bytes)
    };
    for &(place, label) in labels {
        let are_same = label.whole_bytes == newest.whole_bytes && label.parts == newest.parts;
        let is_before = label.opening != newest.opening && is_within(label);
        if !are_same && !is_before {
            let of_newest = labels.iter().find(|(_, other)| other.role == newest.role);
            let other = of_newest.map_or(place, |(place, _)| *place);
            let places = [place.min(other), place.max(other)];
            return Err(AssemblyError::Differ { places, field: "the sizes" });
        }
    }
    Ok(())
}

/// A part that knows the last opening for writing. Each other part does, too, or was about to when a crash came: then it has that as
/// its next one, and nothing was written under it yet ([`WholeOpening`](super::WholeOpening)).
fn newest_opening<'a>(labels: &[(usize, &'a Label)]) -> Result<&'a Label, AssemblyError> {
    let newest = labels.iter().max_by_key(|(_, label)| label.openings);
    let &(at, newest) = newest.ok_or(AssemblyError::Nothing)?;
    let mut parts = Vec::new();
    for &(place, label) in labels {
        if [label.opening, label.next_opening].contains(&newest.opening) {
            continue;
        }
        if label.openings == newest.openings {
            // Each was opened without the other.
            let field = "the last opening for writing";
            return Err(AssemblyError::Differ { places: [at.min(place), at.max(place)], field });
        }
        let missed = newest.openings - label.openings;
        parts.push(StalePart { place, role: label.role, missed });
    }
    match parts.is_empty() {
        true => Ok(newest),
        false => Err(AssemblyError::Stale { name: newest.name.clone(), parts, newest: at }),
    }
}

impl AssemblyError {
    /// What is wrong, and what to do, of places that are called like this.
    pub fn describe(&self, called: &dyn Fn(usize) -> String) -> String {
        match self {
            AssemblyError::Nothing => "there is no part to look at".to_owned(),
            AssemblyError::Label { place, error } => format!("{} {error}", called(*place)),
            AssemblyError::Blank { place, labelled: None } => {
                format!("{} has no label", called(*place))
            }
            AssemblyError::Blank { place, labelled: Some((other, name)) } => format!(
                "{} has no label, while {} is a part of {name:?}: it is another volume, or making that was cut off",
                called(*place),
                called(*other)
            ),
            AssemblyError::OtherWhole { places: [a, b], names: [one, other] } => format!(
                "{} is a part of {one:?}, and {} of {other:?}, or of another of that name: give the parts of one",
                called(*a),
                called(*b)
            ),
            AssemblyError::Twins { places: [a, b], uuid } => format!(
                "{} and {} both say that they are part {}: one is a copy; take it away, neither is used before",
                called(*a),
                called(*b),
                hex(uuid)
            ),
            AssemblyError::Differ { places: [a, b], field } => format!(
                "{} and {} are parts of one volume, and differ in {field}: one of them is an old copy, or was not there \
                 when that was changed; put the right one in its place",
                called(*a),
                called(*b)
            ),
            AssemblyError::Stale { name, parts, newest } => {
                let stale = |part: &StalePart| {
                    let StalePart { place, role, missed } = *part;
                    let openings = if missed == 1 { "opening" } else { "openings" };
                    let called = called(place);
                    format!("{called} (part {role}, counted from 0, {missed} {openings} behind)")
                };
                let stale: Vec<_> = parts.iter().map(stale).collect();
                let (are, right) = match parts.len() {
                    1 => ("is an old copy", "the part that was there last"),
                    _ => ("are old copies", "the parts that were there last"),
                };
                format!(
                    "{} {are}: {name:?} was opened for writing since, as {} knows; put {right} back, or copies of all parts \
                     that were made at one time, while it was not open",
                    stale.join(", "),
                    called(*newest)
                )
            }
            AssemblyError::OtherContent { place } => format!(
                "{} has the label of a part, and is another volume than the one that got it: a copy without its \
                 identity (its extended attributes), something put in its place, or what was rolled back or decided on below it; put the part back, or, \
                 if it is that part all the same, `thinwire volume adopt` puts on record what it is now",
                called(*place)
            ),
            AssemblyError::Missing { name, roles, count } => {
                let roles: Vec<_> = roles.iter().map(usize::to_string).collect();
                let (parts, are, them) = match roles.len() {
                    1 => ("part", "is", "it"),
                    _ => ("parts", "are", "them"),
                };
                format!(
                    "{name:?} has {count} parts, and {parts} {} (counted from 0) {are} not among these: give {them}, too",
                    roles.join(", ")
                )
            }
        }
    }
}

impl fmt::Display for AssemblyError {
    /// With numbers for places.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.describe(&|place| format!("volume {place}, counted from 0,")))
    }
}

impl std::error::Error for AssemblyError {}
