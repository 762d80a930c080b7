//! [`Stripe`]: volumes side by side, to which the bytes are dealt chunk by chunk (RAID-0: Flouris, "Extensible
//! Networked-storage Virtualization with Metadata Management at the Block Level", section 3.5). What an I/O has at
//! one volume lies together there, and so goes there as one, by reference; all volumes work at the same time.

#[cfg(test)]
mod tests;

use thinwire_volume::{Geometry, Io, Op, Volume};

use crate::{
    Below, Child, Composite, IdentityHash, Layout, Module, ModuleError, ModuleOption, OptionUnit,
    Stretch, common_geometry,
};

/// As there.
const CHUNK_BYTES: u64 = 64 << 10;
/// A block status tells of no more chunks: the asker goes on behind them.
const TOLD_CHUNKS_MAX: u64 = 1024;

const CHUNK: ModuleOption = ModuleOption {
    name: "chunk",
    help: "bytes that lie together (64K)",
    bounds: 4096..=64 << 20,
    multiple_of: 4096,
    unit: OptionUnit::Bytes,
};

pub(super) const MODULE: Module = Module {
    name: Stripe::NAME,
    help: "volumes side by side, dealt chunk by chunk (RAID-0)",
    children: 1..=usize::MAX,
    options: &[CHUNK],
    ios_each_max: 1,
    keeps: None,
    build: |children, options| {
        let chunk_bytes = options.get(&CHUNK).unwrap_or(CHUNK_BYTES);
        Ok(Box::new(Stripe::over(children, chunk_bytes)?))
    },
};

/// Chunk `i` is at volume `i` modulo their number's. Each gives as many whole chunks as the smallest has.
pub struct Stripe {
    chunk_bytes: u64,
    /// Of each volume, as large as it is by now.
    sizes: Vec<u64>,
}

impl Stripe {
    /// Deals chunks of `chunk_bytes`, a multiple of 4096, to `children`, in this order.
    ///
    /// # Errors
    /// They have no blocks in common, or one is smaller than a chunk.
    pub fn new(
        children: Vec<Box<dyn Volume>>,
        chunk_bytes: u64,
    ) -> Result<Composite<Self>, ModuleError> {
        Self::over(Child::all(children), chunk_bytes)
    }

    fn over(children: Vec<Child>, chunk_bytes: u64) -> Result<Composite<Self>, ModuleError> {
        let geometry = common_geometry(Self::NAME, &children)?;
        let sizes: Vec<u64> = children.iter().map(|child| child.geometry().bytes).collect();
        if let Some(child) = sizes.iter().position(|&bytes| bytes < chunk_bytes) {
            let why = format!(
                "has {} bytes, and a chunk has {chunk_bytes}: leave it out, or make chunks smaller",
                sizes[child]
            );
            return Err(ModuleError::of_child(Self::NAME, child, why));
        }
        let stripe = Stripe { chunk_bytes, sizes };
        let Some(bytes) = stripe.bytes() else {
            let why = format!(
                "would have more than {} bytes, which no offset can reach: leave volumes out",
                u64::MAX
            );
            return Err(ModuleError::new(Self::NAME, why));
        };
        let mut identity = IdentityHash::new(Self::NAME);
        identity.add(&chunk_bytes.to_be_bytes());
        Ok(Composite::new(stripe, Geometry { bytes, ..geometry }, identity, children))
    }

    /// How large the whole is; none if no offset reaches so far.
    fn bytes(&self) -> Option<u64> {
        let rows = self.sizes.iter().min()? / self.chunk_bytes;
        (rows * self.chunk_bytes).checked_mul(self.sizes.len() as u64)
    }

    /// Where a chunk lies.
    #[inline]
    fn place(&self, chunk: u64) -> (usize, u64) {
        let count = self.sizes.len() as u64;
        ((chunk % count) as usize, chunk / count * self.chunk_bytes)
    }

    /// The chunks from `first` to `last`, of which `start..end` is wanted: what each volume has of that, in the order of
    /// the first chunk that it has.
    fn shares(
        &self,
        first: u64,
        last: u64,
        (start, end): (u64, u64),
    ) -> impl Iterator<Item = Stretch> + Clone {
        let (chunk_bytes, count) = (self.chunk_bytes, self.sizes.len() as u64);
        (first..=last.min(first + count - 1)).map(move |from| {
            let to = last - (last - from) % count;
            let (child, offset) = self.place(from);
            let begin = if from == first { start % chunk_bytes } else { 0 };
            let rest = if to == last { last * chunk_bytes + chunk_bytes - end } else { 0 };
            let all = ((to - from) / count + 1) * chunk_bytes;
            Stretch { child, offset: offset + begin, len: all - begin - rest }
        })
    }
}

impl Layout for Stripe {
    const NAME: &'static str = "stripe";

    #[inline]
    fn submit(&mut self, mut io: Io, below: &mut Below) {
        let chunk_bytes = self.chunk_bytes;
        let first = io.offset / chunk_bytes;
        if io.op == Op::BlockStatus {
            let told = if io.flags.one_extent { 1 } else { TOLD_CHUNKS_MAX };
            io.len = io.len.min((first + told).saturating_mul(chunk_bytes) - io.offset);
        }
        let (start, end) = (io.offset, io.offset + io.len);
        let last = (end - 1) / chunk_bytes;
        if first == last || self.sizes.len() == 1 {
            let (child, offset) = self.place(first);
            return below.pass_on(child, offset + start % chunk_bytes, io);
        }
        let piece = |chunk: u64| {
            let at = chunk * chunk_bytes;
            (at + chunk_bytes).min(end) - at.max(start)
        };
        let shares = self.shares(first, last, (start, end));
        below.deal(&io, shares, (first..=last).map(piece));
    }

    /// By whole rows, as the smallest grows.
    fn grow(&mut self, child: usize, bytes: u64, whole: &Geometry) -> Option<u64> {
        self.sizes[child] = self.sizes[child].max(bytes);
        self.bytes().map(|bytes| bytes.max(whole.bytes))
    }
}
