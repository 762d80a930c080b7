//! [`SimPart`]: a part that does what is told when it is told so, and knows what a crash could leave of it until then.

use thinwire_buffer::SegList;
use thinwire_volume::testing::Puppet;
use thinwire_volume::{Completion, Geometry, Identity, Io, IoError};

use super::*;
use crate::meta::finding::judge;
use crate::meta::label::LabelImage;
use crate::meta::{Finding, LABEL_BYTES};

/// The two copies of the label of a part.
pub type Content = [Box<LabelImage>; 2];

/// Pieces of this size reach the disk or do not, and all behind the eighth with that: finer than disks tear, whose smallest sector
/// holds all that changes from one label of a small whole to the next.
const TORN_BYTES: usize = 64;

/// Holds labels, and nothing else.
pub struct SimPart {
    pub durable: Content,
    /// Writes that have completed, but are not durable.
    unflushed: Vec<Io>,
    /// At most one at a time.
    under_way: Option<Io>,
    ready: Vec<Completion>,
    identity: Identity,
}

impl SimPart {
    pub const BYTES: u64 = 2 << 20;

    pub fn new(durable: Content) -> Self {
        let identity = Self::identity_in(&durable);
        SimPart { durable, unflushed: Vec::new(), under_way: None, ready: Vec::new(), identity }
    }

    /// What the part of that role is as a volume.
    pub fn identity_of(role: usize) -> Identity {
        Identity { identity: [0x40 + role as u8; 16], incarnation: role as u64 }
    }

    /// Copies keep it, as `cp -a` does.
    pub fn identity_in(content: &Content) -> Identity {
        let labels = content.iter().filter_map(|image| Label::decode(image).ok());
        labels.map(|label| label.content).next().expect("there is a label")
    }

    pub fn is_busy(&self) -> bool {
        self.under_way.is_some()
    }

    /// What is under way ends, or fails, and then is on the disk all the same or not. False if nothing is.
    pub fn complete(&mut self, fails: Option<bool>) -> bool {
        let Some(io) = self.under_way.take() else { return false };
        let (token, mut result) = (io.token, Ok(()));
        if let Some(is_seen) = fails {
            result = Err(io.error(ErrorKind::Io, "part"));
            if is_seen && io.op == Op::Write {
                write(&mut self.durable, &io, u8::MAX);
            }
        } else if io.op == Op::Flush {
            self.unflushed.drain(..).for_each(|io| write(&mut self.durable, &io, u8::MAX));
        } else if io.flags.fua {
            write(&mut self.durable, &io, u8::MAX);
        } else {
            self.unflushed.push(io);
        }
        self.ready.push(Completion::new(token, result));
        true
    }

    /// Everything that a crash now could leave: of each write that is not durable these of its pieces, a bit each.
    pub fn crashes(&self, torn: &[u8]) -> Vec<Content> {
        let doubts =
            self.unflushed.iter().chain(self.under_way.iter().filter(|io| io.op == Op::Write));
        let mut contents = vec![self.durable.clone()];
        for io in doubts {
            let each = |content: Content| {
                torn.iter().map(move |&pieces| {
                    let mut content = content.clone();
                    write(&mut content, io, pieces);
                    content
                })
            };
            contents = contents.into_iter().flat_map(each).collect();
        }
        contents
    }
}

fn write(content: &mut Content, io: &Io, pieces: u8) {
    let copy = LABEL_OFFSETS.iter().position(|&at| at == io.offset);
    let copy = copy.expect("only labels are written");
    let data = io.data.to_vec();
    for piece in (0..8).filter(|piece| pieces >> piece & 1 == 1) {
        let end = if piece == 7 { LABEL_BYTES } else { (piece + 1) * TORN_BYTES };
        let range = piece * TORN_BYTES..end;
        content[copy][range.clone()].copy_from_slice(&data[range]);
    }
}

/// What the labels say there.
pub fn found(content: &Content) -> Result<Finding, LabelError> {
    judge([0, 1].map(|copy: usize| Label::decode(&content[copy])), SimPart::BYTES)
}

impl Volume for SimPart {
    fn geometry(&self) -> Geometry {
        Geometry { bytes: Self::BYTES, ..Puppet::GEOMETRY }
    }

    fn identity(&self) -> Identity {
        self.identity
    }

    fn submit(&mut self, io: Io) {
        if io.op == Op::Read {
            let copy = LABEL_OFFSETS.iter().position(|&at| at == io.offset).unwrap();
            assert_eq!(io.len, LABEL_BYTES as u64);
            let mut completion: Completion = Completion::new(io.token, Ok::<(), IoError>(()));
            completion.data = SegList::of(Pool::new(0).copy_of(&self.durable[copy][..]).freeze());
            self.ready.push(completion);
        } else {
            assert!(self.under_way.replace(io).is_none(), "one at a time");
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        done.append(&mut self.ready);
    }

    fn outstanding(&self) -> usize {
        self.ready.len() + usize::from(self.under_way.is_some())
    }
}
