//! [`KeptWriter`]: the writer record of a volume that is made of others, as it keeps it itself, with what stands beside that.

use thinwire_buffer::{Pool, SegList};

use crate::{Io, LeafGeneration, Op, Token, WriterRecord};

/// A writer record, and under which generations the leaves were held of what it is the record of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeptWriter {
    /// The record.
    pub record: WriterRecord,
    /// The generations. None if whoever stored the record knew nothing of leaves: then somebody else than a gateway did.
    pub leaves: Option<Vec<LeafGeneration>>,
}

/// Behind a record, if leaves stand behind that.
const HAS_LEAVES: u8 = 1;

impl KeptWriter {
    /// Nothing was ever kept.
    pub fn is_none(&self) -> bool {
        *self == KeptWriter::default()
    }

    /// The I/O that stores it in a volume that keeps such.
    pub fn to_io(&self, token: Token, pool: &Pool) -> Io {
        Io { data: self.to_data(pool), ..Io::new(token, Op::StoreWriter, 0, 0) }
    }

    /// It as it travels in an [`Io`] or a [`Completion`](crate::Completion): the record; then, if there are leaves, a byte that is 1, and each of them, leaf and
    /// generation. Without leaves it is as the record alone is.
    pub fn to_data(&self, pool: &Pool) -> SegList {
        let mut data = self.record.to_data(pool);
        if let Some(leaves) = &self.leaves {
            let mut bytes = vec![HAS_LEAVES];
            for LeafGeneration { leaf, generation } in leaves {
                bytes.extend(leaf);
                bytes.extend(generation.to_be_bytes());
            }
            data.push(pool.copy_of(&bytes).freeze());
        }
        data
    }

    /// What travelled; `None` if it is none.
    pub fn from_data(data: &SegList) -> Option<Self> {
        let bytes = data.to_vec();
        let (record, rest) = bytes.split_at_checked(WriterRecord::BYTES)?;
        let record = WriterRecord::from_bytes(record.first_chunk()?)?;
        let leaves = match rest.split_first() {
            None => None,
            Some((&HAS_LEAVES, rest)) if rest.len().is_multiple_of(LeafGeneration::BYTES) => {
                let leaf = |bytes: &[u8]| {
                    let (leaf, generation) = bytes.split_first_chunk()?;
                    let generation = u64::from_be_bytes(generation.try_into().ok()?);
                    Some(LeafGeneration { leaf: *leaf, generation })
                };
                Some(rest.chunks(LeafGeneration::BYTES).map(leaf).collect::<Option<_>>()?)
            }
            Some(_) => return None,
        };
        Some(KeptWriter { record, leaves })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_travels_as_it_is_and_as_a_record_to_who_knows_no_leaves() {
        let pool = Pool::new(0);
        let record = WriterRecord::new(7, [9; 16], "node1");
        let leaf =
            |leaf: u8| LeafGeneration { leaf: [leaf; 16], generation: u64::from(leaf) << 40 };
        for leaves in [None, Some(vec![]), Some(vec![leaf(3), leaf(0), leaf(7)])] {
            let kept = KeptWriter { record, leaves };
            let data = kept.to_io(1, &pool).data;
            assert_eq!(KeptWriter::from_data(&data), Some(kept));
            assert_eq!(WriterRecord::from_data(&data), Some(record));
        }
        let data = KeptWriter { record, leaves: Some(vec![leaf(3)]) }.to_data(&pool).to_vec();
        let of = |bytes: &[u8]| KeptWriter::from_data(&SegList::of(pool.copy_of(bytes).freeze()));
        for len in (0..data.len()).filter(|&len| len != WriterRecord::BYTES && len != 97) {
            assert_eq!(of(&data[..len]), None, "{len} bytes");
        }
        let mut other = data.clone();
        other[96] = 2;
        assert_eq!(of(&other), None);
    }
}
