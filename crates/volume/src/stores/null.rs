//! A store without a medium: takes everything, gives zeroes. For measuring what lies above it.

use thinwire_buffer::{Pool, SegList, Segment};

use super::IO_BYTES_MAX;
use crate::{
    Completion, ErrorKind, Extent, Features, Geometry, Identity, Io, Op, Volume, WriterRecord,
};

/// Completes every I/O at once. Reads share one zero buffer; nothing is stored.
pub struct NullStore {
    geometry: Geometry,
    zeroes: Segment,
    ready: Vec<Completion>,
}

impl NullStore {
    /// A null volume of `bytes` bytes, a multiple of `block_bytes`.
    ///
    /// # Panics
    /// If it is not: the caller checks what users give.
    pub fn new(bytes: u64, block_bytes: u32) -> Self {
        assert!(bytes > 0 && bytes.is_multiple_of(u64::from(block_bytes)));
        NullStore {
            geometry: Geometry {
                bytes,
                block_bytes,
                preferred_bytes: 4096,
                io_bytes_max: IO_BYTES_MAX,
                features: Features {
                    read_only: false,
                    discard: true,
                    write_zeroes: true,
                    block_status: true,
                },
            },
            zeroes: Pool::new(0).get_zeroed(IO_BYTES_MAX as usize).freeze(),
            ready: Vec::new(),
        }
    }
}

impl Volume for NullStore {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Every null volume of one size has the same content in all its lives, and so they all are one: two
    /// volumes made of nothing but such also are, if they are made alike, and share what is kept by identity.
    fn identity(&self) -> Identity {
        let mut identity = *b"null\0\0\0\0\0\0\0\0\0\0\0\0";
        identity[8..].copy_from_slice(&self.geometry.bytes.to_be_bytes());
        Identity { identity, incarnation: 0 }
    }

    fn submit(&mut self, io: Io) {
        let mut completion = Completion::new(io.token, Ok(()));
        match io.op {
            Op::Read => completion.data = SegList::of(self.zeroes.slice(0, io.len as usize)),
            Op::BlockStatus => {
                completion.extents.push(Extent { len: io.len, hole: true, zero: true });
            }
            // Nothing is kept, and so nobody on record: whoever asks may write.
            Op::LoadWriter => completion.data = WriterRecord::default().to_data(&Pool::new(0)),
            Op::Write | Op::Flush | Op::Discard | Op::WriteZeroes | Op::StoreWriter => {}
            Op::Cut => completion.result = Err(io.error(ErrorKind::Unsupported, "null")),
        }
        self.ready.push(completion);
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        done.append(&mut self.ready);
    }

    fn outstanding(&self) -> usize {
        self.ready.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_are_zeroes_of_the_asked_length_and_share_one_buffer() {
        let mut store = NullStore::new(1 << 40, 512);
        let mut write = Io::new(1, Op::Write, 0, 512);
        write.data = SegList::of(Pool::new(0).copy_of(&[7; 512]).freeze());
        store.submit(write);
        store.submit(Io::new(2, Op::Read, 0, 512));
        store.submit(Io::new(3, Op::Read, (1 << 40) - (1 << 20), 1 << 20));
        assert_eq!(store.outstanding(), 3);
        let mut done = Vec::new();
        store.poll(&mut done);
        assert_eq!(store.outstanding(), 0);
        assert_eq!(done[1].data.to_vec(), vec![0; 512]);
        assert_eq!(done[2].data.bytes(), 1 << 20);
        assert_eq!(done[1].data.as_slice()[0].as_ptr(), done[2].data.as_slice()[0].as_ptr());
    }
}
