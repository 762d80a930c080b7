//! [`MirrorState`]: what the label of each leg says of all legs, and how that stands there (`docs/format.md`, "The mirror").

use std::fmt;

use super::LEGS_MAX;
use super::bitmap::{REGION_SHIFT_MAX, REGION_SHIFT_MIN};

/// Names the data as one set of legs has it: random, zero for none.
pub type Generation = [u8; 16];

/// So many generations before the present one are remembered.
const HISTORY_MAX: usize = 8;
const VERSION: u8 = 1;
const HEAD_BYTES: usize = 24 + HISTORY_MAX * 16;
const ROW_BYTES: usize = 24;

const _: () = assert!(HEAD_BYTES == 152);
const _: () = assert!(HEAD_BYTES + LEGS_MAX * ROW_BYTES <= crate::meta::LABEL_STATE_BYTES_MAX);

/// How a leg stands. A leg that is not in sync is known by the generation that its own label had last: what is there under
/// another one is something else, and is copied whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LegState {
    /// It has all data.
    InSync,
    /// It was dropped, and lacks what was written since.
    Behind {
        /// Of its label.
        at: Generation,
    },
    /// It gets what is written, and lacks what its bitmap says.
    Resyncing {
        /// Of its label.
        at: Generation,
    },
    /// It has other content than it had: nothing is written there any more.
    Failed {
        /// Of its label.
        at: Generation,
    },
}

impl LegState {
    fn parts(self) -> (u8, Generation) {
        match self {
            LegState::InSync => (1, [0; 16]),
            LegState::Behind { at } => (2, at),
            LegState::Resyncing { at } => (3, at),
            LegState::Failed { at } => (4, at),
        }
    }

    fn of(number: u8, at: Generation) -> Option<Self> {
        match number {
            1 if at == [0; 16] => Some(LegState::InSync),
            2 => Some(LegState::Behind { at }),
            3 => Some(LegState::Resyncing { at }),
            4 => Some(LegState::Failed { at }),
            _ => None,
        }
    }
}

/// What a label says of a mirror. Legs in sync say the same; what another one says of others is what it knew last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorState {
    /// Of the data on this leg.
    pub generation: Generation,
    /// Those before it, the newest first; eight at most, none is zero.
    pub history: Vec<Generation>,
    /// Regions have 2 to the power of this bytes.
    pub region_shift: u8,
    /// Of each leg, 2 to 8 of them.
    pub legs: Vec<LegState>,
}

impl MirrorState {
    /// The next generation of the data: the present one becomes history.
    pub fn advance(&mut self, next: Generation) {
        if self.generation != [0; 16] {
            self.history.insert(0, self.generation);
            self.history.truncate(HISTORY_MAX);
        }
        self.generation = next;
    }

    /// It as bytes for a label.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION, self.legs.len() as u8, self.region_shift];
        out.resize(8, 0);
        out.extend(self.generation);
        self.history.iter().take(HISTORY_MAX).for_each(|generation| out.extend(generation));
        out.resize(HEAD_BYTES, 0);
        for leg in &self.legs {
            let (number, at) = leg.parts();
            out.extend([number, 0, 0, 0, 0, 0, 0, 0]);
            out.extend(at);
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
        let id = |from: &[u8]| -> Generation { from.try_into().expect("16 bytes") };
        let history: Vec<_> = head[24..].chunks(16).map(id).collect();
        let legs: Option<Vec<_>> =
            rows.chunks(ROW_BYTES).map(|row| LegState::of(row[0], id(&row[8..]))).collect();
        let Some(legs) = legs else { return fault("has a leg in a state that there is not") };
        let history = history.into_iter().take_while(|id| *id != [0; 16]).collect();
        let state =
            MirrorState { generation: id(&head[8..24]), history, region_shift: head[2], legs };
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
        let at = [9; 16];
        let legs = vec![
            LegState::InSync,
            LegState::Behind { at },
            LegState::Resyncing { at: [0; 16] },
            LegState::Failed { at },
        ];
        let history = vec![[2; 16], [3; 16]];
        MirrorState { generation: [1; 16], history, region_shift: 21, legs }
    }

    #[test]
    fn what_is_written_is_read_as_it_was() {
        let mut state = sample();
        for count in 2..=LEGS_MAX {
            state.legs.resize(count, LegState::InSync);
            assert_eq!(MirrorState::decode(&state.encode()), Ok(state.clone()));
        }
        for next in 20..40 {
            let before = state.clone();
            state.advance([next; 16]);
            assert_eq!(state.history[0], before.generation);
            assert_eq!(state.history[1..], before.history[..state.history.len() - 1]);
            assert_eq!(MirrorState::decode(&state.encode()), Ok(state.clone()));
        }
        assert_eq!(state.history.len(), 8);
    }

    #[test]
    fn the_bytes_are_those_of_the_document() {
        let bytes = sample().encode();
        assert_eq!(bytes.len(), 152 + 4 * 24);
        assert_eq!(bytes[..8], [1, 4, 21, 0, 0, 0, 0, 0]);
        assert_eq!((&bytes[8..24], &bytes[24..40]), (&[1; 16][..], &[2; 16][..]));
        assert_eq!((&bytes[40..56], &bytes[56..152]), (&[3; 16][..], &[0; 96][..]));
        for (leg, number) in [(0, 1), (1, 2), (2, 3), (3, 4)] {
            assert_eq!(bytes[152 + leg * 24..][..8], [number, 0, 0, 0, 0, 0, 0, 0]);
        }
        assert_eq!(bytes[152 + 24 + 8..][..16], [9; 16]);
    }

    /// There is one way to write it, and nothing else is read.
    #[test]
    fn what_cannot_be_is_refused() {
        let good = sample().encode();
        for at in 0..good.len() {
            for value in [0, 1, 5, 19, 45, 0x80, 0xff] {
                let mut bytes = good.clone();
                bytes[at] = value;
                match MirrorState::decode(&bytes) {
                    Ok(state) => assert_eq!(state.encode(), bytes, "byte {at}"),
                    Err(fault) => assert!(fault.to_string().contains(": it "), "{fault}"),
                }
            }
            assert!(MirrorState::decode(&good[..at]).is_err());
        }
        for (at, value) in [(0, 2), (1, 3), (1, 9), (2, 19), (3, 1), (75, 1), (152, 0), (153, 1)] {
            let mut bytes = good.clone();
            bytes[at] = value;
            assert!(MirrorState::decode(&bytes).is_err(), "{value} at {at}");
        }
        let mut bytes = good.clone();
        bytes[160] = 1;
        assert!(MirrorState::decode(&bytes).is_err(), "a leg in sync is at no other generation");
    }
}
