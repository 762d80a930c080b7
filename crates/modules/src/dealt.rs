//! [`Dealt`]: one volume that is reached through several others, to which its I/Os are dealt by address: the members
//! of an attachment (`docs/design.md`, "One export, several shards").

#[cfg(test)]
mod tests;

use thinwire_buffer::Time;

use thinwire_volume::{
    Completion, Geometry, Identity, Io, IoFlags, Op, Token, Volume, VolumeEvent,
};

use crate::{Below, Child, Composite, IdentityHash, Layout, ModuleError, Stretch, common_geometry};

/// Bytes that lie together at one member. The longest I/O of an attachment goes to five of them at most.
const CHUNK_BYTES: u64 = 256 << 10;
/// Of a longer discard so much is under way at a time, and a block status tells of no more.
const STEP_BYTES: u64 = 64 * CHUNK_BYTES;

/// One volume over several *members* that all have its content. Chunk `i` of it is member `i` modulo their
/// number's, so whatever overlaps meets at one member: what that promises of order, of what it keeps until a flush, and of what it
/// reads over that, needs no word to the others.
///
/// It is the volume that each member is, with its identity, as large as the smallest says. It keeps the
/// rules of [modules](super), but is no row of the table: its volumes are not what a user names.
pub struct Dealt {
    chunks: Composite<Chunks>,
    identity: Identity,
    /// Longer than a step, and not through.
    long: Vec<Long>,
}

/// What is left of an I/O of several steps.
struct Long {
    token: Token,
    op: Op,
    flags: IoFlags,
    at: u64,
    end: u64,
}

impl Dealt {
    /// Over these, in their order: another order, or number, deals in another way, and may only follow when all is
    /// flushed.
    ///
    /// # Errors
    /// There are none, they have no blocks in common, or are not one volume.
    pub fn new(members: Vec<Box<dyn Volume>>) -> Result<Self, ModuleError> {
        let members = Child::all(members);
        let geometry = common_geometry(Chunks::NAME, &members)?;
        let identity = members[0].identity();
        if let Some(other) = members.iter().position(|member| member.identity() != identity) {
            let why = "has other content than the first: it was replaced meanwhile; open it again";
            return Err(ModuleError::of_child(Chunks::NAME, other, why));
        }
        let sizes: Vec<u64> = members.iter().map(|member| member.geometry().bytes).collect();
        let chunks = Chunks { members: members.len() as u64, sizes };
        let geometry = Geometry { bytes: chunks.bytes(&geometry), ..geometry };
        let hash = IdentityHash::new(Chunks::NAME);
        Ok(Dealt {
            chunks: Composite::new(chunks, geometry, hash, members),
            identity,
            long: Vec::new(),
        })
    }

    /// Hands down the next step of an I/O, under its own token.
    fn step(&mut self, long: Long) {
        let Long { token, op, flags, at, end } = long;
        let step = end.min((at / STEP_BYTES + 1) * STEP_BYTES);
        if step < end {
            self.long.push(Long { token, op, flags, at: step, end });
        }
        self.chunks.submit(Io { flags, ..Io::new(token, op, at, step - at) });
    }
}

impl Volume for Dealt {
    fn geometry(&self) -> Geometry {
        self.chunks.geometry()
    }

    fn identity(&self) -> Identity {
        self.identity
    }

    #[inline]
    fn submit(&mut self, io: Io) {
        match io.op {
            Op::Discard | Op::WriteZeroes if io.len > STEP_BYTES => {
                let Io { token, op, flags, offset: at, len, .. } = io;
                self.step(Long { token, op, flags, at, end: at + len });
            }
            Op::BlockStatus => {
                let len = io.len.min(STEP_BYTES);
                self.chunks.submit(Io { len, ..io });
            }
            _ => self.chunks.submit(io),
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        let first = done.len();
        self.chunks.poll(done);
        if self.long.is_empty() {
            return;
        }
        let mut at = first;
        while let Some(completion) = done.get(at) {
            let is_of = |long: &Long| long.token == completion.token;
            let Some(found) = self.long.iter().position(is_of) else {
                at += 1;
                continue;
            };
            let long = self.long.swap_remove(found);
            match completion.result {
                // What is behind the part that failed is as it was.
                Err(_) => at += 1,
                Ok(()) => {
                    done.remove(at);
                    self.step(long);
                }
            }
        }
    }

    fn outstanding(&self) -> usize {
        self.chunks.outstanding()
    }

    fn is_at_rest(&self) -> bool {
        self.chunks.is_at_rest()
    }

    fn copied_bytes(&self) -> u64 {
        self.chunks.copied_bytes()
    }

    fn events(&self) -> u64 {
        self.chunks.events()
    }

    fn poll_events(&mut self, events: &mut Vec<VolumeEvent>) {
        self.chunks.poll_events(events);
    }

    fn is_timed(&self) -> bool {
        self.chunks.is_timed()
    }

    fn turn(&mut self, now: Time) -> Time {
        self.chunks.turn(now)
    }

    fn refresh(&mut self) -> bool {
        self.chunks.refresh()
    }
}

/// Where each chunk goes.
struct Chunks {
    members: u64,
    /// What each says that the volume has.
    sizes: Vec<u64>,
}

impl Chunks {
    /// What all of them have.
    fn bytes(&self, whole: &Geometry) -> u64 {
        let block = u64::from(whole.block_bytes);
        self.sizes.iter().min().map_or(0, |bytes| bytes / block * block)
    }
}

impl Layout for Chunks {
    const NAME: &'static str = "members";

    #[inline]
    fn submit(&mut self, io: Io, below: &mut Below) {
        let (chunk, end) = (io.offset / CHUNK_BYTES, io.offset + io.len);
        if end <= (chunk + 1) * CHUNK_BYTES {
            let offset = io.offset;
            return below.pass_on((chunk % self.members) as usize, offset, io);
        }
        let members = self.members;
        let stretches = (chunk..end.div_ceil(CHUNK_BYTES)).map(|chunk| {
            let offset = io.offset.max(chunk * CHUNK_BYTES);
            let len = end.min((chunk + 1) * CHUNK_BYTES) - offset;
            Stretch { child: (chunk % members) as usize, offset, len }
        });
        below.cut(&io, stretches);
    }

    /// Growth is there once all have heard of it.
    fn grow(&mut self, child: usize, bytes: u64, whole: &Geometry) -> Option<u64> {
        self.sizes[child] = bytes;
        Some(self.bytes(whole))
    }
}
