//! [`Finding`] and [`LabelError`]: what the two copies of a label say together (`docs/format.md`, "The two copies").

use std::fmt;

use thinwire_volume::IoError;

use super::fault::USE_NEWER;
use super::label::hex;
use super::{LABEL_AREA_BYTES, LABEL_OFFSETS, Label, LabelFault, copy_of};

/// What a part's labels say, if it is fit for use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// Both copies are zero. That is all that was looked at: the rest of the part may be somebody's.
    Blank,
    /// The newest label.
    Label(Box<FoundLabel>),
}

/// The newest label of a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundLabel {
    /// What it says.
    pub label: Label,
    /// Why the other copy is no label, unless nothing was ever written there: what a crash in the middle of the next
    /// write leaves, mostly. Worth to be told, since it may also have been a newer label that has rotted.
    pub passed_over: Option<LabelFault>,
}

/// Why there is no label to go by, or why none was written. Offsets are in bytes from the start of the part. Shown, each is a
/// sentence to stand behind the name of the part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LabelError {
    /// The volume cannot have labels.
    Unfit {
        /// A sentence whose subject is the part.
        why: String,
    },
    /// No copy is a label, and at least one of them is neither zero nor ours: never to be called blank.
    Foreign([LabelFault; 2]),
    /// No copy is intact, and at least one of them was ours.
    Damaged([LabelFault; 2]),
    /// A program that knows more has written one.
    Newer {
        /// Where.
        offset: u64,
        /// What is not known.
        fault: LabelFault,
    },
    /// One is intact and yet says what cannot be.
    Malformed {
        /// Where.
        offset: u64,
        /// What it says.
        fault: LabelFault,
    },
    /// An intact one stands where the other copy belongs.
    Misplaced {
        /// Where.
        offset: u64,
        /// Its generation.
        generation: u64,
    },
    /// Both are intact, and of different parts or wholes.
    Conflict {
        /// Part and whole of each.
        uuids: [[[u8; 16]; 2]; 2],
    },
    /// One is intact, and the other, which must be a label or the torn write of one, was overwritten by something else.
    Overwritten {
        /// Where something else stands.
        offset: u64,
        /// What.
        fault: LabelFault,
        /// The one that is intact.
        label: Box<Label>,
    },
    /// The label says more data than the part has room for.
    Short {
        /// Where data ends, in bytes.
        needs: u64,
        /// Bytes of the part.
        has: u64,
    },
    /// The label has read-only compatible features that are not known: nothing may be written.
    ReadOnly {
        /// Their bits.
        unknown: u64,
    },
    /// What was to be written is no label.
    Refused(LabelFault),
    /// Generations are never used twice, and the last one was.
    Exhausted,
    /// It is not known what the copies hold: they have not been read, or erasing them failed.
    Unknown,
    /// Reading failed. An intact copy beside one that cannot be read may be the older one, and does not count.
    Unread(IoError),
    /// What the new label refers to could not be made durable: it was not written, and the one before stands.
    Unflushed(IoError),
    /// The label that is to stand while the other copy is written could not be made sure of: the new one was not
    /// written.
    Unsettled(IoError),
    /// From now on either the new label or the one before may be found. The next label goes to the same copy, and
    /// settles that.
    Unwritten {
        /// Of the new one.
        generation: u64,
        /// What went wrong.
        error: IoError,
    },
    /// Some of the labels may be there still. Nothing more is written before they have been read again.
    Unerased(IoError),
}

impl LabelError {
    /// The copy that decided, if it was one.
    pub(super) fn decided_by(&self) -> Option<usize> {
        use LabelError::*;
        match self {
            Newer { offset, .. } | Malformed { offset, .. } | Misplaced { offset, .. } => {
                LABEL_OFFSETS.iter().position(|at| at == offset)
            }
            Overwritten { label, .. } => Some(copy_of(label.generation)),
            _ => None,
        }
    }
}

/// What two copies say together, on a part of so many bytes. What was not written by the rules is refused, rather than
/// passed over for an older label: that may refer to what is no longer there.
pub(super) fn judge(
    copies: [Result<Label, LabelFault>; 2],
    part_bytes: u64,
) -> Result<Finding, LabelError> {
    let faults =
        || copies.iter().zip(LABEL_OFFSETS).filter_map(|(c, at)| Some((c.as_ref().err()?, at)));
    if let Some((fault, offset)) = faults().find(|(fault, _)| fault.is_newer()) {
        return Err(LabelError::Newer { offset, fault: fault.clone() });
    }
    let is_malformed = |fault: &LabelFault| matches!(fault, LabelFault::Malformed { .. });
    if let Some((fault, offset)) = faults().find(|(fault, _)| is_malformed(fault)) {
        return Err(LabelError::Malformed { offset, fault: fault.clone() });
    }
    for (copy, label) in copies.iter().enumerate() {
        // So two that are intact have different generations.
        if let Ok(Label { generation, .. }) = *label
            && copy_of(generation) != copy
        {
            return Err(LabelError::Misplaced { offset: LABEL_OFFSETS[copy], generation });
        }
    }
    let found = match copies {
        [Err(LabelFault::Zero), Err(LabelFault::Zero)] => return Ok(Finding::Blank),
        [Err(a), Err(b)] => {
            let is_ours = |fault: &LabelFault| matches!(fault, LabelFault::Checksum { .. });
            let any = is_ours(&a) || is_ours(&b);
            let faults = [a, b];
            return Err(if any {
                LabelError::Damaged(faults)
            } else {
                LabelError::Foreign(faults)
            });
        }
        [Ok(a), Ok(b)] => {
            let uuids = [&a, &b].map(|label| [label.part().uuid, label.whole]);
            if uuids[0] != uuids[1] {
                return Err(LabelError::Conflict { uuids });
            }
            let label = if a.generation > b.generation { a } else { b };
            FoundLabel { label, passed_over: None }
        }
        [Ok(label), Err(fault)] | [Err(fault), Ok(label)] => alone(label, fault)?,
    };
    let needs = found.label.data_end();
    if needs > part_bytes {
        return Err(LabelError::Short { needs, has: part_bytes });
    }
    Ok(Finding::Label(Box::new(found)))
}

/// A label whose other copy is none.
fn alone(label: Label, fault: LabelFault) -> Result<FoundLabel, LabelError> {
    // The first is written beside zeroes, and so the second over them. From then on each is written over a label,
    // and what a torn write leaves begins as one.
    let is_other = matches!(fault, LabelFault::Zero | LabelFault::Foreign { .. });
    if is_other && label.generation > 1 {
        let offset = LABEL_OFFSETS[1 - copy_of(label.generation)];
        return Err(LabelError::Overwritten { offset, fault, label: Box::new(label) });
    }
    let passed_over = (fault != LabelFault::Zero).then_some(fault);
    Ok(FoundLabel { label, passed_over })
}

impl fmt::Display for LabelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, second] = LABEL_OFFSETS;
        let copies = |f: &mut fmt::Formatter<'_>, [a, b]: &[LabelFault; 2]| {
            write!(f, "the copy at {first} {a}; the copy at {second} {b}")
        };
        match self {
            LabelError::Unfit { why } => write!(f, "cannot have labels: the part {why}"),
            LabelError::Foreign(faults) => {
                f.write_str("has no label, and is not blank: ")?;
                copies(f, faults)?;
                f.write_str(": look whose it is before anything is written there")
            }
            LabelError::Damaged(faults) => {
                f.write_str("has no intact label: ")?;
                copies(f, faults)?;
                f.write_str(": do without this part, or put it back from a copy")
            }
            LabelError::Newer { offset, fault } => write!(f, "has a label at {offset} that {fault}"),
            LabelError::Malformed { offset, fault } => {
                write!(f, "has an intact label at {offset} that {fault}: do without this part")
            }
            LabelError::Misplaced { offset, generation } => write!(
                f,
                "has a label of generation {generation} at {offset}, where only {} ones belong: it was copied or \
                 written to the wrong place; do without this part",
                if *offset == first { "even" } else { "odd" }
            ),
            LabelError::Conflict { uuids: [a, b] } => write!(
                f,
                "has two labels that contradict each other: at {first} of part {} of {}, at {second} of part {} of \
                 {}: do without this part",
                hex(&a[0]),
                hex(&a[1]),
                hex(&b[0]),
                hex(&b[1])
            ),
            LabelError::Overwritten { offset, fault, label } => write!(
                f,
                "has a label of {:?} at {}, but the copy at {offset} {fault}: something else has written to this part; do \
                 without it, or put it back from a copy",
                label.name,
                LABEL_OFFSETS[copy_of(label.generation)]
            ),
            LabelError::Short { needs, has } => write!(
                f,
                "has {has} bytes, and its label says that data ends at {needs}: make it as large as it was (what was cut off is lost)"
            ),
            LabelError::ReadOnly { unknown } => write!(
                f,
                "has a label with features that allow only reading to this program (bits {unknown:#x}): open \
                 it to be read, or, to write, {USE_NEWER}"
            ),
            LabelError::Refused(fault) => write!(f, "gets no label, since that {fault}"),
            LabelError::Exhausted => {
                f.write_str("has had the last generation of labels: copy its data to a new part")
            }
            LabelError::Unknown => f.write_str(
                "gets no label, since it is not known what it has: its labels have to be read first",
            ),
            LabelError::Unread(error) => write!(
                f,
                "has labels that cannot be read: {error}: try again, or do without this part"
            ),
            LabelError::Unflushed(error) => write!(
                f,
                "got no new label, since what that refers to may not be durable: {error}"
            ),
            LabelError::Unsettled(error) => write!(
                f,
                "got no new label, since the one that it has could not be made sure of: {error}"
            ),
            LabelError::Unwritten { generation, error } => write!(
                f,
                "has a label of generation {generation}, or the one before, whichever is found: {error}: write the \
                 next before anything relies on either"
            ),
            LabelError::Unerased(error) => write!(
                f,
                "may have some of its labels still: {error}: read them again before anything is written"
            ),
        }
    }
}

impl std::error::Error for LabelError {}

/// The size below which a part has no room for labels and data.
pub(super) fn is_too_small(bytes: u64) -> Option<LabelError> {
    let why = format!(
        "has {bytes} bytes, and labels take the first {LABEL_AREA_BYTES}: use a larger one"
    );
    (bytes <= LABEL_AREA_BYTES).then_some(LabelError::Unfit { why })
}
