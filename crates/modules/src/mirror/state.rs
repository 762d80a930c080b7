//! [`MirrorState`]: what the label of each leg says of all legs, and how that stands there (`docs/format.md`, "The mirror").

use std::fmt;

use super::bitmap::{REGION_SHIFT_MAX, REGION_SHIFT_MIN, region_shift};
use super::{DrawGeneration, LEGS_MAX};

/// Names the data as one set of legs has it: random, zero for none.
pub type Generation = [u8; 16];

/// None: what is zero names nothing.
pub const NO_GENERATION: Generation = [0; 16];

/// So many generations before the present one are remembered: each opening draws one, and what has seen fewer of them is known
/// to be old.
pub(super) const HISTORY_MAX: usize = 32;
const VERSION: u8 = 1;
/// Blocks of legs, as powers of two: those of bitmaps are the largest.
const BLOCK_SHIFTS: std::ops::RangeInclusive<u8> = 9..=12;
const HISTORY_AT: usize = 64;
const HEAD_BYTES: usize = HISTORY_AT + HISTORY_MAX * 16;
const ROW_BYTES: usize = 40;

const _: () = assert!(HEAD_BYTES == 576);
const _: () = assert!(HEAD_BYTES + LEGS_MAX * ROW_BYTES <= crate::meta::LABEL_STATE_BYTES_MAX);

/// What the label of a leg said last. A leg that was dropped while that was being written may have either.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeftAt {
    /// The generation that was there for sure.
    pub last: Generation,
    /// The one that was being written; [`NO_GENERATION`] if none was.
    pub or: Generation,
}

impl LeftAt {
    /// Whether a label that says this is the one.
    pub fn is(&self, generation: Generation) -> bool {
        generation == self.last || (generation == self.or && generation != NO_GENERATION)
    }
}

impl From<Generation> for LeftAt {
    fn from(last: Generation) -> Self {
        LeftAt { last, or: NO_GENERATION }
    }
}

/// How a leg stands. A leg that is not in sync is known by the generation that its own label had last: what is there under
/// another one is something else, and is copied whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LegState {
    /// It has all data.
    InSync,
    /// It was dropped, and lacks what was written since.
    Behind {
        /// Of its label.
        at: LeftAt,
    },
    /// It gets what is written, and lacks what its bitmap says.
    Resyncing {
        /// Of its label.
        at: LeftAt,
    },
    /// It has other content than it had: nothing is written there any more.
    Failed {
        /// Of its label.
        at: LeftAt,
    },
    /// It is no leg any more, for good: nothing there counts, and its place may be another's.
    Removed {
        /// Of its label.
        at: LeftAt,
    },
}

impl LegState {
    /// What its label said last, if it is not in sync.
    pub fn left_at(self) -> Option<LeftAt> {
        match self {
            LegState::InSync => None,
            LegState::Behind { at }
            | LegState::Resyncing { at }
            | LegState::Failed { at }
            | LegState::Removed { at } => Some(at),
        }
    }

    fn number(self) -> u8 {
        match self {
            LegState::InSync => 1,
            LegState::Behind { .. } => 2,
            LegState::Resyncing { .. } => 3,
            LegState::Failed { .. } => 4,
            LegState::Removed { .. } => 5,
        }
    }

    fn of(number: u8, at: LeftAt) -> Option<Self> {
        match number {
            1 if at == NO_GENERATION.into() => Some(LegState::InSync),
            2 => Some(LegState::Behind { at }),
            3 => Some(LegState::Resyncing { at }),
            4 => Some(LegState::Failed { at }),
            5 => Some(LegState::Removed { at }),
            _ => None,
        }
    }
}

/// What a label says of a mirror. Legs in sync say the same; what another one says of others is what it knew last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorState {
    /// Of the data on this leg.
    pub generation: Generation,
    /// The one that is being drawn, while not all legs in sync know of it; else [`NO_GENERATION`].
    pub next: Generation,
    /// Which life of the data this is, for whoever remembers some of it: drawn anew when that may have become other data than it was.
    pub incarnation: [u8; 16],
    /// When the generation was drawn, in seconds since 1970, by the clock of who drew it; 0 if that had none.
    pub drawn_at: u64,
    /// Generations before it, the newest first; 32 at most, none is zero.
    pub history: Vec<Generation>,
    /// Regions have 2 to the power of this bytes.
    pub region_shift: u8,
    /// Its blocks have two to the power of so many bytes, whichever legs are there; 0 where that is not told: as the legs have it
    /// that are.
    pub block_shift: u8,
    /// Of each leg, 2 to 8 of them.
    pub legs: Vec<LegState>,
}

impl MirrorState {
    /// What the labels of the legs of a new mirror say, in their order: the first one is in sync, whatever it holds, and all of the others
    /// is copied from it. `legs` is 2 to 8, `data_bytes` the size of the whole, `block_bytes` the largest block of a leg, `drawn_at` now in
    /// seconds since 1970, or 0.
    pub fn of_new(
        legs: usize,
        (data_bytes, block_bytes): (u64, u32),
        drawn_at: u64,
        generations: &mut dyn DrawGeneration,
    ) -> Vec<Self> {
        let incarnation = generations.draw();
        let mut rows = vec![LegState::Resyncing { at: NO_GENERATION.into() }; legs];
        rows[0] = LegState::InSync;
        let state = |_| MirrorState {
            // Of each another one, so that no two new legs are taken for one.
            generation: generations.draw(),
            next: NO_GENERATION,
            incarnation,
            drawn_at,
            history: Vec::new(),
            region_shift: region_shift(data_bytes),
            block_shift: block_bytes.ilog2() as u8,
            legs: rows.clone(),
        };
        (0..legs).map(state).collect()
    }

    /// What the label of a part says that comes in the place of this leg, by what a leg in sync says now that has given up that one
    /// ([`OpeningWish::without`](super::OpeningWish::without)): it has nothing yet, and is known by nothing.
    pub fn of_replacement(&self, leg: usize, generation: Generation) -> Self {
        let mut legs = self.legs.clone();
        legs[leg] = LegState::Resyncing { at: NO_GENERATION.into() };
        // Whose history names what the others have shows that one of those is an old copy.
        let (next, history) = (NO_GENERATION, Vec::new());
        MirrorState { generation, next, history, legs, ..self.clone() }
    }

    /// The next generation of the data: the present one becomes history.
    pub fn advance(&mut self, next: Generation) {
        self.remember(self.generation);
        (self.generation, self.next) = (next, NO_GENERATION);
    }

    /// What has this generation is older.
    pub fn remember(&mut self, generation: Generation) {
        if generation != NO_GENERATION {
            self.history.insert(0, generation);
            self.history.truncate(HISTORY_MAX);
        }
    }

    /// It, of so many legs: those that it does not know are known by nothing.
    pub fn of_legs(mut self, count: usize) -> Self {
        self.legs.resize(count, LegState::Behind { at: NO_GENERATION.into() });
        self
    }

    /// Whether legs that say so of one generation say the same, whatever is about to come.
    pub fn says_as(&self, other: &MirrorState) -> bool {
        *self == MirrorState { next: self.next, ..other.clone() }
    }

    /// It as bytes for a label.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION, self.legs.len() as u8, self.region_shift, self.block_shift];
        out.resize(8, 0);
        out.extend(self.generation);
        out.extend(self.next);
        out.extend(self.incarnation);
        out.extend(self.drawn_at.to_le_bytes());
        self.history.iter().take(HISTORY_MAX).for_each(|generation| out.extend(generation));
        out.resize(HEAD_BYTES, 0);
        for leg in &self.legs {
            let LeftAt { last, or } = leg.left_at().unwrap_or(NO_GENERATION.into());
            out.extend([leg.number(), 0, 0, 0, 0, 0, 0, 0]);
            out.extend(last);
            out.extend(or);
        }
        out
    }

    /// What these bytes say.
    ///
    /// # Errors
    /// They say what cannot be, or are of another version: nothing of them was believed.
    pub fn decode(bytes: &[u8]) -> Result<Self, StateFault> {
        let fault = |why| Err(StateFault { why });
        let Some((head, rows)) = bytes.split_at_checked(HEAD_BYTES) else {
            return fault("is too short");
        };
        let count = usize::from(head[1]);
        if head[0] != VERSION {
            return fault("is of another version: use the program that wrote it");
        }
        if !(2..=LEGS_MAX).contains(&count) || rows.len() != count * ROW_BYTES {
            return fault("has no row for each of 2 to 8 legs");
        }
        if !(REGION_SHIFT_MIN..=REGION_SHIFT_MAX).contains(&head[2]) {
            return fault("has regions of a size that there is not");
        }
        if head[3] != 0 && !BLOCK_SHIFTS.contains(&head[3]) {
            return fault("has blocks of a size that there is not");
        }
        let id = |from: &[u8]| -> Generation { from.try_into().expect("16 bytes") };
        let history: Vec<_> = head[HISTORY_AT..].chunks(16).map(id).collect();
        let leg =
            |row: &[u8]| LegState::of(row[0], LeftAt { last: id(&row[8..24]), or: id(&row[24..]) });
        let legs: Option<Vec<_>> = rows.chunks(ROW_BYTES).map(leg).collect();
        let Some(legs) = legs else { return fault("has a leg in a state that there is not") };
        let state = MirrorState {
            generation: id(&head[8..24]),
            next: id(&head[24..40]),
            incarnation: id(&head[40..56]),
            drawn_at: u64::from_le_bytes(head[56..HISTORY_AT].try_into().expect("8 bytes")),
            history: history.into_iter().take_while(|id| *id != NO_GENERATION).collect(),
            region_shift: head[2],
            block_shift: head[3],
            legs,
        };
        match state.encode() == bytes {
            true => Ok(state),
            false => fault("has bytes where zeroes belong"),
        }
    }
}

/// Why bytes are no state of a mirror. Shown, it is a sentence whose subject is the label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateFault {
    why: &'static str,
}

impl fmt::Display for StateFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "has a state of a mirror that cannot be gone by: it {}", self.why)
    }
}

impl std::error::Error for StateFault {}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> MirrorState {
        let at = LeftAt { last: [9; 16], or: [8; 16] };
        let legs = vec![
            LegState::InSync,
            LegState::Behind { at },
            LegState::Resyncing { at: [0; 16].into() },
            LegState::Failed { at },
            LegState::Removed { at },
        ];
        let history = vec![[2; 16], [3; 16]];
        let (generation, next, incarnation) = ([1; 16], [4; 16], [5; 16]);
        let drawn_at = 0x0706;
        let (region_shift, block_shift) = (21, 9);
        MirrorState {
            generation,
            next,
            incarnation,
            drawn_at,
            history,
            region_shift,
            block_shift,
            legs,
        }
    }

    #[test]
    fn what_is_written_is_read_as_it_was() {
        let mut state = sample();
        for count in 2..=LEGS_MAX {
            state.legs.resize(count, LegState::InSync);
            assert_eq!(MirrorState::decode(&state.encode()), Ok(state.clone()));
        }
        for next in 20..60 {
            let before = state.clone();
            state.advance([next; 16]);
            assert_eq!(state.history[0], before.generation);
            assert_eq!(state.history[1..], before.history[..state.history.len() - 1]);
            assert_eq!(MirrorState::decode(&state.encode()), Ok(state.clone()));
        }
        assert_eq!((state.history.len(), state.next), (32, NO_GENERATION));
    }

    #[test]
    fn the_bytes_are_those_of_the_document() {
        let bytes = sample().encode();
        assert_eq!(bytes.len(), 576 + 5 * 40);
        assert_eq!(bytes[..8], [1, 5, 21, 9, 0, 0, 0, 0]);
        assert_eq!((&bytes[8..24], &bytes[24..40]), (&[1; 16][..], &[4; 16][..]));
        assert_eq!((&bytes[40..56], &bytes[56..64]), (&[5; 16][..], &[6, 7, 0, 0, 0, 0, 0, 0][..]));
        assert_eq!((&bytes[64..80], &bytes[80..96]), (&[2; 16][..], &[3; 16][..]));
        assert_eq!(bytes[96..576], [0; 480]);
        for (leg, number) in [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)] {
            assert_eq!(bytes[576 + leg * 40..][..8], [number, 0, 0, 0, 0, 0, 0, 0]);
        }
        assert_eq!(
            (&bytes[576 + 40 + 8..][..16], &bytes[576 + 40 + 24..][..16]),
            (&[9; 16][..], &[8; 16][..])
        );
    }

    /// There is one way to write it, and nothing else is read.
    #[test]
    fn what_cannot_be_is_refused() {
        let good = sample().encode();
        for at in 0..good.len() {
            for value in [0, 1, 5, 12, 19, 45, 0x80, 0xff] {
                let mut bytes = good.clone();
                bytes[at] = value;
                match MirrorState::decode(&bytes) {
                    Ok(state) => assert_eq!(state.encode(), bytes, "byte {at}"),
                    Err(fault) => assert!(fault.to_string().contains(": it "), "{fault}"),
                }
            }
            assert!(MirrorState::decode(&good[..at]).is_err());
        }
        for (at, value) in
            [(0, 2), (1, 3), (1, 9), (2, 19), (3, 8), (3, 13), (4, 1), (115, 1), (576, 0), (577, 1)]
        {
            let mut bytes = good.clone();
            bytes[at] = value;
            assert!(MirrorState::decode(&bytes).is_err(), "{value} at {at}");
        }
        for at in [584, 600] {
            let mut bytes = good.clone();
            bytes[at] = 1;
            let says = MirrorState::decode(&bytes);
            assert!(says.is_err(), "a leg in sync is at no other generation");
        }
    }
}
