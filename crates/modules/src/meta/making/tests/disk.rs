//! [`MakingDisk`]: a disk that holds blocks of 4 KiB, and knows what a crash could leave of them.

use std::collections::BTreeMap;

use thinwire_volume::testing::Puppet;
use thinwire_volume::{Completion, Geometry, Identity};

use super::*;
use crate::meta::LabelFault;
use crate::meta::finding::judge;

type Block = Box<[u8; LABEL_BYTES]>;
/// Blocks by their offsets; the others are zero.
pub type Content = BTreeMap<u64, Block>;

/// Of a block: pieces of 64 bytes, and all behind the seventh with the last, a bit each.
const TORN_BYTES: usize = 64;
/// What a crash leaves of a label: nothing, all, and some ways to tear it.
const TORN: [u8; 6] = [0, 0xff, 0x01, 0xfe, 0x0f, 0xaa];
/// What it leaves of longer writes: so of each block in turn.
const LOST: [[u8; 2]; 5] = [[0, 0], [0xff, 0xff], [0xff, 0], [0, 0xff], [0x0f, 0x0f]];

/// Does what is under way when it is told so, in the order in which it came.
pub struct MakingDisk {
    pub durable: Content,
    /// Writes that have completed, but are not durable.
    unflushed: Vec<Io>,
    under_way: Option<Io>,
    ready: Vec<Completion>,
    /// Range of each write that came; none of a flush.
    pub seen: Vec<Option<(u64, u64)>>,
    /// Which of these fails, without any effect.
    pub fails_at: Option<usize>,
}

impl MakingDisk {
    pub const BYTES: u64 = 2 << 20;

    pub fn new(durable: Content) -> Self {
        let (seen, fails_at) = (Vec::new(), None);
        let (unflushed, under_way, ready) = (Vec::new(), None, Vec::new());
        MakingDisk { durable, unflushed, under_way, ready, seen, fails_at }
    }

    pub fn identity_of(nth: usize) -> Identity {
        Identity { identity: [0x40 + nth as u8; 16], incarnation: nth as u64 }
    }

    /// Its label area.
    pub fn first_bytes(&self) -> Vec<u8> {
        blocks(&self.durable)
    }

    /// Its last MiB.
    pub fn last_bytes(&self) -> Vec<u8> {
        let first = Self::BYTES - (1 << 20);
        let mut bytes = vec![0; 1 << 20];
        for (&at, block) in self.durable.range(first..) {
            bytes[(at - first) as usize..][..LABEL_BYTES].copy_from_slice(&block[..]);
        }
        bytes
    }

    /// What is under way ends, if anything is.
    pub fn complete(&mut self) {
        let Some(io) = self.under_way.take() else { return };
        let (token, mut result) = (io.token, Ok(()));
        if self.fails_at.is_some_and(|at| at + 1 == self.seen.len()) {
            result = Err(io.error(ErrorKind::Io, "disk"));
        } else if io.op == Op::Flush {
            for io in self.unflushed.drain(..) {
                write(&mut self.durable, &io, [0xff; 2]);
            }
        } else if io.flags.fua {
            write(&mut self.durable, &io, [0xff; 2]);
        } else {
            self.unflushed.push(io);
        }
        self.ready.push(Completion::new(token, result));
    }

    /// Everything that a crash now could leave.
    pub fn crashes(&self) -> Vec<Content> {
        let under_way = self.under_way.iter().filter(|io| io.op == Op::Write);
        let mut contents = vec![self.durable.clone()];
        for io in self.unflushed.iter().chain(under_way) {
            let ways = match io.len == LABEL_BYTES as u64 {
                true => TORN.map(|pieces| [pieces; 2]).to_vec(),
                false => LOST.to_vec(),
            };
            let each = |content: &Content| {
                let with = |&way: &[u8; 2]| {
                    let mut content = content.clone();
                    write(&mut content, io, way);
                    content
                };
                ways.iter().map(with).collect::<Vec<_>>()
            };
            contents = contents.iter().flat_map(each).collect();
        }
        contents
    }
}

/// All of the label area.
pub fn blocks(content: &Content) -> Vec<u8> {
    let mut bytes = vec![0; LABEL_AREA_BYTES as usize];
    for (&at, block) in content.range(..LABEL_AREA_BYTES) {
        bytes[at as usize..][..LABEL_BYTES].copy_from_slice(&block[..]);
    }
    bytes
}

/// These pieces of the write, of even and odd blocks.
fn write(content: &mut Content, io: &Io, ways: [u8; 2]) {
    let data = io.data.to_vec();
    for (nth, from) in data.chunks(LABEL_BYTES).enumerate() {
        let at = io.offset + (nth * LABEL_BYTES) as u64;
        let mut block = content.remove(&at).unwrap_or_else(|| Box::new([0; LABEL_BYTES]));
        for piece in (0..8).filter(|piece| ways[nth % 2] >> piece & 1 == 1) {
            let end = if piece == 7 { LABEL_BYTES } else { (piece + 1) * TORN_BYTES };
            let range = piece * TORN_BYTES..end;
            block[range.clone()].copy_from_slice(&from[range]);
        }
        if block.iter().any(|&byte| byte != 0) {
            content.insert(at, block);
        }
    }
}

/// What the labels say there.
pub fn found(content: &Content) -> Result<Finding, LabelError> {
    let copy = |at| content.get(&at).map_or(Err(LabelFault::Zero), |image| Label::decode(image));
    judge(LABEL_OFFSETS.map(copy), MakingDisk::BYTES)
}

impl Volume for MakingDisk {
    fn geometry(&self) -> Geometry {
        Geometry { bytes: Self::BYTES, io_bytes_max: 512 << 10, ..Puppet::GEOMETRY }
    }

    fn identity(&self) -> Identity {
        unreachable!("who makes a whole has asked before")
    }

    fn submit(&mut self, io: Io) {
        if io.op == Op::Read {
            let block = self.durable.get(&io.offset).map_or([0; LABEL_BYTES], |block| **block);
            let mut completion = Completion::new(io.token, Ok(()));
            completion.data = SegList::of(Pool::new(0).copy_of(&block).freeze());
            return self.ready.push(completion);
        }
        self.seen.push((io.op == Op::Write).then_some((io.offset, io.len)));
        assert!(self.under_way.replace(io).is_none(), "one at a time");
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        done.append(&mut self.ready);
    }

    fn outstanding(&self) -> usize {
        self.ready.len() + usize::from(self.under_way.is_some())
    }
}
