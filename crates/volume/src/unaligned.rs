//! [`Unaligned`]: any byte range over a volume of blocks.
//!
//! Local clients (NBD, a FUSE file) speak bytes; volumes speak blocks. This module stands between:
//!
//! * What is aligned and not too long passes straight through, neither copied nor split.
//! * An unaligned read reads the blocks that cover it and hands out the middle by reference.
//! * An unaligned write or write-zeroes reads the one or two blocks at its edges
//!   ([`crate::IoFlags::for_patch`]), patches them and writes them (read-modify-write). It holds its
//!   blocks exclusively meanwhile: whatever overlaps them waits, first come first served, so that two
//!   writers of one block never undo each other and nothing overtakes what it overlaps.
//! * An unaligned discard shrinks to the whole blocks inside it; what is left of a block stays.
//! * A block status widens to whole blocks, and its answer is clipped.
//! * I/O longer than the volume takes is split here, and completed once, with the first error.
//!
//! A flush passes through at once: it covers the writes that completed before it, and a write
//! completes here only after all its parts have.

mod request;
#[cfg(test)]
mod tests;

use thinwire_buffer::{Pool, SegList, Time};

use self::request::{AnyRangeRequest, Phase, Place, gather};
use crate::{
    CacheReport, Completion, Extent, Geometry, Identity, Io, MirrorReport, Op, RangeLocks, Scrub,
    Token, Volume, VolumeEvent, Work,
};

/// The longest read or write this module accepts, however little the volume below takes: what NBD
/// clients take for granted.
const IO_BYTES_MAX: u32 = 32 << 20;

/// Discards and write-zeroes go down in pieces of at most this many bytes, so that every length
/// below fits 32 bits. A multiple of every block size.
const RANGE_BYTES_MAX: u64 = 1 << 30;

/// A volume that takes any byte range (`block_bytes` is 1), over one that takes blocks.
///
/// All I/O must come through here while any is outstanding: the locks do not see what reaches
/// [`Unaligned::inner_mut`] directly. Nothing allocates once warm.
pub struct Unaligned<V> {
    inner: V,
    pool: Pool,
    requests: Vec<Place>,
    free: Vec<u32>,
    locks: RangeLocks,
    /// Completions of requests that needed nothing from below.
    ready: Vec<Completion>,
    /// Set when something was submitted below while completions were being handled.
    submitted: bool,
    inbox: Vec<Completion>,
    granted: Vec<u32>,
    spare_pieces: Vec<Vec<SegList>>,
    copied_bytes: u64,
}

impl<V: Volume> Unaligned<V> {
    /// Takes any byte range over `inner`. Edge blocks are patched in memory from `pool`.
    pub fn new(inner: V, pool: Pool) -> Self {
        Unaligned {
            inner,
            pool,
            requests: Vec::new(),
            free: Vec::new(),
            locks: RangeLocks::default(),
            ready: Vec::new(),
            submitted: false,
            inbox: Vec::new(),
            granted: Vec::new(),
            spare_pieces: Vec::new(),
            copied_bytes: 0,
        }
    }

    /// Tests only: blocks are not locked while their edges are patched, to show that it would be
    /// noticed.
    pub fn without_locks(mut self) -> Self {
        self.locks.broken = true;
        self
    }

    /// The volume below.
    pub fn inner(&self) -> &V {
        &self.inner
    }

    /// The volume below: to drive it, not to submit I/O.
    pub fn inner_mut(&mut self) -> &mut V {
        &mut self.inner
    }

    /// Gives the volume below back, forgetting what is outstanding here.
    pub fn into_inner(self) -> V {
        self.inner
    }

    /// A place for a request.
    fn reserve(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.requests.push(Place::Free);
            self.requests.len() as u32 - 1
        })
    }

    /// Passes on what is complete below, but for what a request of that kind has no use for.
    fn finish_straight(
        &mut self,
        index: u32,
        mut completion: Completion,
        done: &mut Vec<Completion>,
    ) {
        let place = std::mem::replace(&mut self.requests[index as usize], Place::Free);
        let Place::Straight { token, op, len } = place else { unreachable!("asked before") };
        self.free.push(index);
        completion.token = token;
        let has_data = matches!(op, Op::Read | Op::LoadWriter) && completion.result.is_ok();
        if !has_data {
            completion.data = SegList::new();
        } else if op == Op::Read {
            assert_eq!(completion.data.bytes() as u64, len, "a read of another length");
        }
        done.push(completion);
        if !has_no_range(op) {
            self.unlock(index);
        }
    }

    /// Lets in who waited for a request.
    fn unlock(&mut self, index: u32) {
        let mut granted = std::mem::take(&mut self.granted);
        self.locks.release(index, &mut granted);
        for next in granted.drain(..) {
            self.begin(next);
        }
        self.granted = granted;
    }

    /// Starts a request that holds its blocks.
    fn begin(&mut self, index: u32) {
        self.submitted = true;
        let block = u64::from(self.inner.geometry().block_bytes);
        let request = self.requests[index as usize].request().expect("live request");
        if !request.modifies_edges() {
            return self.main(index);
        }
        request.phase = Phase::Edges;
        for (edge, at) in request.edge_blocks(block).into_iter().enumerate() {
            if let Some(at) = at {
                request.pending += 1;
                let mut read = Io::new(inner_token(index, edge), Op::Read, at, block);
                read.flags.for_patch = true;
                self.inner.submit(read);
            }
        }
    }

    /// The operation itself, once its edge blocks are known.
    fn main(&mut self, index: u32) {
        self.submitted = true;
        let geometry = self.inner.geometry();
        let block = u64::from(geometry.block_bytes);
        let step = step_bytes(&geometry);
        let request = self.requests[index as usize].request().expect("live request");
        request.phase = Phase::Main;
        let edges = request.edge_blocks(block);
        let flags = request.flags;
        let mut pieces = 0;
        let mut send = |op, offset, len, data| {
            let token = inner_token(index, pieces);
            self.inner.submit(Io { flags, data, ..Io::new(token, op, offset, len) });
            pieces += 1;
        };
        match request.op {
            Op::Flush => send(Op::Flush, request.offset, request.len, SegList::new()),
            Op::LoadWriter | Op::StoreWriter | Op::Cut => {
                let data = std::mem::take(&mut request.data);
                send(request.op, request.offset, request.len, data);
            }
            Op::BlockStatus => {
                let len = (request.end - request.start).min(RANGE_BYTES_MAX);
                send(Op::BlockStatus, request.start, len, SegList::new());
            }
            Op::Read => {
                let count = (request.end - request.start).div_ceil(step) as usize;
                if count > 1 {
                    request.pieces = self.spare_pieces.pop().unwrap_or_default();
                    request.pieces.resize_with(count, SegList::new);
                }
                split(request.start, request.end, step, |at, len| {
                    send(Op::Read, at, len, SegList::new());
                });
            }
            Op::Write => {
                let mut data = std::mem::take(&mut request.data);
                if request.modifies_edges() {
                    // The payload stays where it is, between the two patched blocks.
                    request.data = data;
                    data = SegList::new();
                    let [front, back] = edges;
                    let mut from = request.offset;
                    let mut to = request.stop();
                    if let Some(at) = front {
                        data.push(request.patched(0, at, block, &self.pool).freeze());
                        from = at + block;
                    }
                    if let Some(at) = back {
                        to = at;
                    }
                    if from < to {
                        let skip = (from - request.offset) as usize;
                        request.data.slice_into(skip, (to - from) as usize, &mut data);
                    }
                    if let Some(at) = back {
                        data.push(request.patched(1, at, block, &self.pool).freeze());
                    }
                    request.data = SegList::new();
                }
                if request.end - request.start <= step {
                    send(Op::Write, request.start, request.end - request.start, data);
                } else {
                    split(request.start, request.end, step, |at, len| {
                        let mut part = SegList::new();
                        data.slice_into((at - request.start) as usize, len as usize, &mut part);
                        send(Op::Write, at, len, part);
                    });
                }
            }
            Op::Discard | Op::WriteZeroes => {
                let (mut start, mut end) = (request.start, request.end);
                if request.modifies_edges() {
                    for (edge, at) in edges.into_iter().enumerate() {
                        let Some(at) = at else { continue };
                        let data = request.patched(edge, at, block, &self.pool).freeze();
                        send(Op::Write, at, block, SegList::of(data));
                        if edge == 0 {
                            start = at + block;
                        } else {
                            end = at;
                        }
                    }
                }
                split(start, end, RANGE_BYTES_MAX, |at, len| {
                    send(request.op, at, len, SegList::new());
                });
            }
        }
        let edge_count = edges.iter().flatten().count() as u64;
        self.copied_bytes += edge_count * block;
        request.edges = Default::default();
        request.pending = pieces as u32;
    }

    /// Takes in one completion from below.
    fn take_in(&mut self, completion: Completion, done: &mut Vec<Completion>) {
        let (index, piece) = outer_token(completion.token);
        if matches!(self.requests[index as usize], Place::Straight { .. }) {
            return self.finish_straight(index, completion, done);
        }
        let request = self.requests[index as usize].request().expect("a completion for a request");
        request.pending -= 1;
        match completion.result {
            Err(error) => _ = request.error.get_or_insert(error),
            Ok(()) if request.phase == Phase::Edges => request.edges[piece] = completion.data,
            Ok(()) if request.pieces.is_empty() => {
                request.data = completion.data;
                request.extents = completion.extents;
            }
            Ok(()) => request.pieces[piece] = completion.data,
        }
        if request.pending > 0 {
            return;
        }
        if request.phase == Phase::Edges && request.error.is_none() {
            self.main(index);
        } else {
            self.finish(index, done);
        }
    }

    /// Completes a request and lets in who waited for it.
    fn finish(&mut self, index: u32, done: &mut Vec<Completion>) {
        let place = std::mem::replace(&mut self.requests[index as usize], Place::Free);
        let Place::Any(mut request) = place else { unreachable!("a live request") };
        self.free.push(index);
        let result = match request.error {
            Some(error) => Err(error),
            None => Ok(()),
        };
        let mut completion = Completion::new(request.token, result);
        if result.is_ok() {
            match request.op {
                Op::Read => completion.data = gather(&mut request),
                Op::LoadWriter => completion.data = std::mem::take(&mut request.data),
                Op::BlockStatus => {
                    let skip = request.offset - request.start;
                    completion.extents = clip(request.extents, skip, request.len);
                }
                _ => {}
            }
        }
        if request.pieces.capacity() > 0 {
            request.pieces.clear();
            self.spare_pieces.push(request.pieces);
        }
        done.push(completion);
        if !has_no_range(request.op) {
            self.unlock(index);
        }
    }
}

impl<V: Volume> Volume for Unaligned<V> {
    fn geometry(&self) -> Geometry {
        let inner = self.inner.geometry();
        Geometry { block_bytes: 1, io_bytes_max: inner.io_bytes_max.max(IO_BYTES_MAX), ..inner }
    }

    fn identity(&self) -> Identity {
        self.inner.identity()
    }

    fn submit(&mut self, mut io: Io) {
        debug_assert!(io.op.is_record() || self.geometry().check(&io) == Ok(()), "{io:?}");
        let geometry = self.inner.geometry();
        let block = u64::from(geometry.block_bytes);
        let (start, end) = match io.op {
            op if has_no_range(op) => (io.offset, io.offset),
            Op::Discard => {
                (io.offset.next_multiple_of(block), (io.offset + io.len) / block * block)
            }
            _ => (io.offset / block * block, (io.offset + io.len).next_multiple_of(block)),
        };
        if io.op == Op::Discard && start >= end {
            return self.ready.push(Completion::new(io.token, Ok(())));
        }
        let is_free = has_no_range(io.op);
        let is_whole = start == io.offset && end == io.offset + io.len;
        let exclusive = matches!(io.op, Op::Write | Op::WriteZeroes) && !is_whole;
        let index = self.reserve();
        let is_granted = is_free || self.locks.acquire(index, start, end, exclusive);
        let is_straight = match io.op {
            Op::Read | Op::Write => is_whole && io.len <= step_bytes(&geometry),
            Op::Discard | Op::WriteZeroes => is_whole && io.len <= RANGE_BYTES_MAX,
            Op::BlockStatus => false,
            Op::Flush | Op::LoadWriter | Op::StoreWriter | Op::Cut => true,
        };
        if is_granted && is_straight {
            let Io { token, op, len, .. } = io;
            self.requests[index as usize] = Place::Straight { token, op, len };
            self.submitted = true;
            io.token = inner_token(index, 0);
            return self.inner.submit(io);
        }
        let request = AnyRangeRequest {
            token: io.token,
            op: io.op,
            flags: io.flags,
            offset: io.offset,
            len: io.len,
            data: io.data,
            start,
            end,
            phase: Phase::Waiting,
            pending: 0,
            error: None,
            edges: Default::default(),
            pieces: Vec::new(),
            extents: Vec::new(),
        };
        debug_assert_eq!(exclusive, request.modifies_edges());
        self.requests[index as usize] = Place::Any(request);
        if is_granted {
            self.begin(index);
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        done.append(&mut self.ready);
        loop {
            self.submitted = false;
            let mut inbox = std::mem::take(&mut self.inbox);
            self.inner.poll(&mut inbox);
            for completion in inbox.drain(..) {
                self.take_in(completion, done);
            }
            self.inbox = inbox;
            // What was submitted just now may be complete already, and nobody would tell.
            if !self.submitted {
                return;
            }
        }
    }

    fn outstanding(&self) -> usize {
        self.requests.len() - self.free.len() + self.ready.len()
    }

    fn copied_bytes(&self) -> u64 {
        self.copied_bytes + self.inner.copied_bytes()
    }

    fn events(&self) -> u64 {
        self.inner.events()
    }

    fn poll_events(&mut self, events: &mut Vec<VolumeEvent>) {
        self.inner.poll_events(events);
    }

    fn wind_up(&mut self) {
        self.inner.wind_up();
    }

    fn is_wound_up(&self) -> bool {
        self.inner.is_wound_up()
    }

    fn mirrors(&self, found: &mut Vec<MirrorReport>) {
        self.inner.mirrors(found);
    }

    fn caches(&self, found: &mut Vec<CacheReport>) {
        self.inner.caches(found);
    }

    fn scrubs(&mut self, visit: &mut dyn FnMut(&mut dyn Scrub)) {
        self.inner.scrubs(visit);
    }

    fn works(&mut self, visit: &mut dyn FnMut(&mut dyn Work)) {
        self.inner.works(visit);
    }

    fn is_timed(&self) -> bool {
        self.inner.is_timed()
    }

    fn turn(&mut self, now: Time) -> Time {
        self.inner.turn(now)
    }

    fn refresh(&mut self) -> bool {
        self.inner.refresh()
    }
}

/// The longest read or write that the volume below takes: whole blocks, one at least.
fn step_bytes(geometry: &Geometry) -> u64 {
    let block = u64::from(geometry.block_bytes);
    (u64::from(geometry.io_bytes_max) / block).max(1) * block
}

/// Locks do not matter to it.
fn has_no_range(op: Op) -> bool {
    matches!(op, Op::Flush | Op::Cut) || op.is_record()
}

/// The token of a request's `piece`th I/O below. Pieces are fewer than 2^32: the longest request
/// has 2^32 bytes, or goes down in gibibytes.
fn inner_token(index: u32, piece: usize) -> Token {
    u64::from(index) << 32 | piece as u64
}

fn outer_token(token: Token) -> (u32, usize) {
    ((token >> 32) as u32, (token & 0xffff_ffff) as usize)
}

/// Calls `each` with the offset and length of every `step` bytes of `[start, end)`.
fn split(start: u64, end: u64, step: u64, mut each: impl FnMut(u64, u64)) {
    let mut at = start;
    while at < end {
        let len = step.min(end - at);
        each(at, len);
        at += len;
    }
}

/// Extents without their first `skip` bytes and without what lies `len` bytes beyond that.
fn clip(mut extents: Vec<Extent>, mut skip: u64, mut len: u64) -> Vec<Extent> {
    extents.retain_mut(|extent| {
        let drop = skip.min(extent.len);
        skip -= drop;
        extent.len = (extent.len - drop).min(len);
        len -= extent.len;
        extent.len > 0
    });
    extents
}
