//! [`PatternVolume`]: a volume whose bytes say where they are.

use thinwire_buffer::{Pool, SegList};
use thinwire_volume::{Completion, Extent, Features, Geometry, Io, Op, Volume};

use super::{over_one, plain};
use crate::{Child, Composite, Module, ModuleError};

pub(super) const MODULE: Module = Module {
    name: "pattern",
    help: "for tests: bytes that say where they are, to be read",
    children: 1..=1,
    options: &[],
    ios_each_max: 1,
    keeps: None,
    build: |children, _| Ok(Box::new(PatternVolume::new(children)?)),
};

plain!(Whole, "pattern");

/// As large as the volume that it stands on, which it leaves alone: each 8 bytes are the number of the first of them, the highest byte
/// first. It can only be read.
pub struct PatternVolume {
    below: Composite<Whole>,
    pool: Pool,
    ready: Vec<Completion>,
}

impl PatternVolume {
    /// Over the only one of `children`.
    ///
    /// # Errors
    /// It is not the only one, or takes less in an I/O than one of its blocks.
    pub fn new(children: Vec<Child>) -> Result<Self, ModuleError> {
        let below = over_one(Whole(()), children)?;
        Ok(PatternVolume { below, pool: Pool::new(1 << 20), ready: Vec::new() })
    }
}

impl Volume for PatternVolume {
    fn geometry(&self) -> Geometry {
        let geometry = self.below.geometry();
        let features =
            Features { read_only: true, discard: false, write_zeroes: false, block_status: true };
        let io_bytes_max = geometry.io_bytes_max.min(Pool::BUF_BYTES_MAX as u32);
        Geometry { features, io_bytes_max, ..geometry }
    }

    fn identity(&self) -> thinwire_volume::Identity {
        self.below.identity()
    }

    fn submit(&mut self, io: Io) {
        debug_assert!(io.op.is_record() || self.geometry().check(&io) == Ok(()), "{io:?}");
        let mut completion = Completion::new(io.token, Ok(()));
        match io.op {
            Op::Read => {
                let mut buf = self.pool.get(io.len as usize);
                for (nth, place) in (0..).zip(buf.chunks_exact_mut(8)) {
                    place.copy_from_slice(&(io.offset + nth * 8).to_be_bytes());
                }
                completion.data = SegList::of(buf.freeze());
            }
            Op::BlockStatus => {
                completion.extents.push(Extent { len: io.len, hole: false, zero: false });
            }
            _ => return self.below.submit(io),
        }
        self.ready.push(completion);
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.below.poll(done);
        done.append(&mut self.ready);
    }

    fn outstanding(&self) -> usize {
        self.below.outstanding() + self.ready.len()
    }
}

#[cfg(test)]
mod tests {
    use thinwire_volume::testing::{Puppet, finish};

    use super::*;

    #[test]
    fn each_byte_says_where_it_is() {
        let children = Child::all(vec![Box::new(Puppet::new(1, Puppet::GEOMETRY))]);
        let mut pattern = PatternVolume::new(children).unwrap();
        assert!(pattern.geometry().features.read_only && pattern.geometry().bytes == 8192);
        let read = finish(&mut pattern, &mut || {}, Io::new(1, Op::Read, 512, 1024)).data.to_vec();
        assert_eq!(
            (&read[..8], &read[1016..]),
            (&512_u64.to_be_bytes()[..], &1528_u64.to_be_bytes()[..])
        );
        assert!(
            finish(&mut pattern, &mut || {}, Io::new(1, Op::BlockStatus, 0, 512)).result.is_ok()
        );
    }
}
