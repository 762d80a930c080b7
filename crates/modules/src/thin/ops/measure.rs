//! [`Measure`]: how much of a volume is its own, leaf by leaf, in the background.

use super::{OpNumber, PoolDone, PoolError};
use crate::meta::tree::TreeStop;
use crate::thin::Core;
use crate::thin::rows::Mapping;

/// A walk over the blocks of a volume.
pub(super) struct Measure {
    number: OpNumber,
    volume: u64,
    /// The next block to look at.
    from: u64,
    own: u64,
}

impl Measure {
    pub fn new(number: OpNumber, volume: u64) -> Self {
        Measure { number, volume, from: 0, own: 0 }
    }
}

impl Core {
    /// Goes on with a walk by one leaf.
    pub(super) fn step_measure(&mut self) {
        let Some(mut measure) = self.ops.measures.pop_front() else { return };
        let Some(entry) = self.entries.get(&measure.volume) else {
            let error = PoolError::NoVolume { volume: measure.volume };
            return self.end_op(measure.number, Err(error));
        };
        let row = entry.row;
        let mut found = Vec::<(u64, Mapping)>::new();
        let looked = self.trees.own_rows(row.blocks(), measure.from..=u64::MAX, &mut found);
        let looked = looked.and_then(|next| {
            let mut own = 0;
            for (_, mapping) in found {
                own += u64::from(self.trees.block_count(mapping.block)? == 1);
            }
            Ok((next, own))
        });
        match looked {
            Ok((next, own)) => {
                measure.own += own;
                match next {
                    Some(next) => {
                        measure.from = next;
                        self.ops.measures.push_back(measure);
                    }
                    None => {
                        let shift = self.head.block_shift;
                        let done = PoolDone::Measured {
                            own_bytes: measure.own << shift,
                            shared_bytes: row.mapped.saturating_sub(measure.own) << shift,
                        };
                        self.end_op(measure.number, Ok(done));
                    }
                }
            }
            Err(TreeStop::Fault(fault)) => {
                self.end_op(measure.number, Err(fault.into()));
            }
            Err(_) => {
                self.ops.measures.push_front(measure);
                self.ops.reap_sleeps = true;
            }
        }
    }
}
