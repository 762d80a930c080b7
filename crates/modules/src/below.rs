//! [`Below`]: the volumes that a module stands on, and what is outstanding there.

use thinwire_buffer::SegList;

use thinwire_volume::{
    CacheReport, Completion, CutAct, CutOrder, Io, IoError, MirrorReport, Op, Slab, Token,
};

use crate::child::Child;
use crate::effects::{Effect, Effects};
use crate::pieces::Pieces;

/// A part of an I/O: where it goes, in bytes of that volume, or of what is the module's of it ([`Child`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// Which volume, counted from 0.
    pub child: usize,
    /// First byte there.
    pub offset: u64,
    /// Bytes. None: nothing goes there.
    pub len: u64,
}

/// The volumes below a module, in the order in which they were named. A module hands I/Os down by
/// it; what comes back up is made one completion for each by [`Composite`](super::Composite). Nothing
/// allocates once warm, but the answer to a block status that was cut.
pub struct Below {
    children: Vec<Child>,
    /// Of each, in that order.
    effects: Vec<Effects>,
    parts: Slab<Part>,
    splits: Slab<Split>,
    spare_pieces: Vec<Pieces>,
    /// What each share of a write is given, while it is dealt.
    payloads: Vec<SegList>,
    outstanding: usize,
    /// Flushes that had nothing to do.
    flushed: Vec<Token>,
    /// A part of a flush failed after that had been told of another: the next flush that succeeds tells
    /// of it.
    owed: Option<IoError>,
}

/// An I/O below.
struct Part {
    child: usize,
    effect: Effect,
    /// What an offset there lacks to be one here, modulo 2^64.
    shift: u64,
    of: Whole,
}

/// What an I/O below is a part of.
#[derive(Clone, Copy)]
enum Whole {
    /// It is all of the I/O with this token.
    Itself(Token),
    /// One of several.
    Split { split: u32, piece: usize },
}

/// An I/O that has become several.
struct Split {
    token: Token,
    op: Op,
    /// Parts that are not complete.
    pending: usize,
    /// The first thing that went wrong.
    error: Option<IoError>,
    /// It is completed already: a flush that failed.
    is_told: bool,
    /// Its range, if it is told of any part that fails: of one whose bytes lie apart in it.
    range: Option<(u64, u64)>,
    /// What the parts have answered, in the order of their ranges; empty if they answer nothing.
    pieces: Pieces,
}

impl Below {
    pub(super) fn new(children: Vec<Child>) -> Self {
        Below {
            effects: children.iter().map(|_| Effects::new()).collect(),
            children,
            parts: Slab::new(),
            splits: Slab::new(),
            spare_pieces: Vec::new(),
            payloads: Vec::new(),
            outstanding: 0,
            flushed: Vec::new(),
            owed: None,
        }
    }

    /// How many volumes there are.
    pub fn count(&self) -> usize {
        self.children.len()
    }

    /// Hands all of an I/O to one volume, as it is but for its offset there.
    #[inline]
    pub fn pass_on(&mut self, child: usize, offset: u64, io: Io) {
        let of = Whole::Itself(io.token);
        self.outstanding += 1;
        self.hand_down(child, offset, io, of);
    }

    /// Hands an I/O to several volumes, each its stretch: in the order of the I/O's bytes, and all of
    /// them together. Payload goes by reference. It is completed once, when all have completed their
    /// part: with the first error, or with their answers in this order. Of a block status that may stop
    /// after one extent only the first stretch is asked.
    ///
    /// # Panics
    /// If the stretches are not as long as the I/O.
    pub fn cut(&mut self, io: &Io, stretches: impl Iterator<Item = Stretch>) {
        let mut stretches = stretches.filter(|stretch| stretch.len > 0);
        if io.op == Op::BlockStatus && io.flags.one_extent {
            let first = stretches.next().expect("an I/O has a first byte");
            let io = Io { flags: io.flags, ..Io::new(io.token, io.op, io.offset, first.len) };
            return self.pass_on(first.child, first.offset, io);
        }
        let split = self.begin_split(io);
        let mut at = 0;
        for Stretch { child, offset, len } in stretches {
            let mut part = Io { flags: io.flags, ..Io::new(0, io.op, io.offset + at, len) };
            if io.op == Op::Write {
                io.data.slice_into(at as usize, len as usize, &mut part.data);
            }
            self.hand_piece(child, offset, part, split);
            at += len;
        }
        assert_eq!(at, io.len, "an I/O was cut into stretches of another length");
    }

    /// Hands an I/O to several volumes, each its share. The I/O's bytes are dealt out in lengths of `pieces`, the first
    /// to the first share and so on, round and round; what a share has of them lies together there. Payload goes by
    /// reference. It is completed once, when all have completed their share: with the first error, which is told of
    /// the whole range, or with their answers in the order of its bytes. For what has neither payload nor answer
    /// `pieces` is not walked: it takes the same time, however long it is.
    ///
    /// # Panics
    /// If the shares, or the pieces that were walked, are not as long as the I/O.
    pub fn deal(
        &mut self,
        io: &Io,
        shares: impl Iterator<Item = Stretch> + Clone,
        pieces: impl Iterator<Item = u64>,
    ) {
        let split = self.begin_split(io);
        let mut payloads = std::mem::take(&mut self.payloads);
        payloads.resize_with(shares.clone().count(), SegList::new);
        let whole = self.splits.get_mut(split);
        whole.range = Some((io.offset, io.len));
        match io.op {
            Op::Read | Op::BlockStatus => whole.pieces.deal(pieces),
            Op::Write => {
                let (mut at, turns) = (0, (0..payloads.len()).cycle());
                for (len, turn) in pieces.zip(turns) {
                    io.data.slice_into(at as usize, len as usize, &mut payloads[turn]);
                    at += len;
                }
                assert_eq!(at, io.len, "an I/O was dealt out in pieces of another length");
            }
            _ => {}
        }
        let mut dealt = 0;
        for (Stretch { child, offset, len }, data) in shares.zip(payloads.drain(..)) {
            let part = Io { flags: io.flags, data, ..Io::new(0, io.op, offset, len) };
            self.hand_piece(child, offset, part, split);
            dealt += len;
        }
        assert_eq!(dealt, io.len, "an I/O was dealt out in shares of another length");
        self.payloads = payloads;
    }

    /// Hands all of an I/O that changes something to every volume, at the same offset. It is completed
    /// once, when all have completed it: with the first error.
    pub fn pass_to_all(&mut self, io: &Io) {
        assert!(io.op.is_write(), "the answers of several to one {} are not one", io.op);
        self.fan_out(io);
    }

    /// Hands a flush to every volume that has something to make durable: with one that was not written meanwhile nobody waits for
    /// it, which may be away. It fails as soon as one of them has failed it. Where there is only one, that knows best.
    pub(super) fn flush(&mut self, io: Io) {
        if self.children.len() == 1 {
            return self.pass_on(0, io.offset, io);
        }
        if !self.effects.iter().any(Effects::needs_flush) {
            self.outstanding += 1;
            return self.flushed.push(io.token);
        }
        let split = self.begin_split(&io);
        for child in 0..self.children.len() {
            if self.effects[child].needs_flush() {
                let part = Io { flags: io.flags, ..Io::new(0, io.op, io.offset, io.len) };
                self.hand_piece(child, io.offset, part, split);
            }
        }
    }

    /// Hands an order that is about all of every volume to each. It fails if one of them does, once all have ended.
    pub(super) fn cut_all(&mut self, io: Io) {
        let tells = CutOrder::of(&io).is_some_and(|order| order.act == CutAct::Next);
        // What one has all have.
        match self.children.len() == 1 || tells {
            true => self.pass_on(0, io.offset, io),
            false => self.fan_out(&io),
        }
    }

    fn fan_out(&mut self, io: &Io) {
        let split = self.begin_split(io);
        for child in 0..self.children.len() {
            let data = io.data.clone();
            let part = Io { flags: io.flags, data, ..Io::new(0, io.op, io.offset, io.len) };
            self.hand_piece(child, io.offset, part, split);
        }
    }

    /// Hands an I/O down. Its range is in the module's bytes.
    #[inline]
    fn hand_down(&mut self, child: usize, offset: u64, mut io: Io, of: Whole) {
        let Child { volume, start, .. } = &mut self.children[child];
        // These have no range.
        let has_range = !matches!(io.op, Op::Flush | Op::Cut) && !io.op.is_record();
        let offset = if has_range { offset + *start } else { offset };
        let shift = io.offset.wrapping_sub(offset);
        io.offset = offset;
        let effect = Effect::of(&io);
        self.effects[child].on_submission(effect);
        io.token = self.parts.insert(Part { child, effect, shift, of }).into();
        volume.submit(io);
    }

    /// Hands down one part of several.
    fn hand_piece(&mut self, child: usize, offset: u64, io: Io, split: u32) {
        let whole = self.splits.get_mut(split);
        let piece = whole.pending;
        whole.pending += 1;
        if matches!(io.op, Op::Read | Op::BlockStatus) {
            whole.pieces.push(io.len);
        }
        self.hand_down(child, offset, io, Whole::Split { split, piece });
    }

    fn begin_split(&mut self, io: &Io) -> u32 {
        let pieces = self.spare_pieces.pop().unwrap_or_default();
        let (token, op) = (io.token, io.op);
        self.outstanding += 1;
        self.splits.insert(Split {
            token,
            op,
            pending: 0,
            error: None,
            is_told: false,
            range: None,
            pieces,
        })
    }

    /// Polls them all, outstanding or not: a descriptor of one may have become readable.
    pub(super) fn poll(&mut self, done: &mut Vec<Completion>) {
        let start = done.len();
        let mut kept = start;
        for child in 0..self.children.len() {
            let first = kept;
            self.children[child].volume.poll(done);
            for at in first..done.len() {
                if !self.take_in(child, &mut done[at]) {
                    continue;
                }
                if kept != at {
                    done.swap(kept, at);
                }
                if matches!(done[kept].result, Err(error) if error.op == Op::Flush) {
                    // What the others have completed may have seen the loss.
                    done[start..=kept].rotate_right(1);
                }
                kept += 1;
            }
            done.truncate(kept);
        }
        done.extend(self.flushed.drain(..).map(|token| Completion::new(token, Ok(()))));
        self.outstanding -= done.len() - start;
    }

    /// Takes in what `child` has completed, and makes it the completion of what it was a part of.
    /// False if there is nothing to tell, or not yet.
    #[inline]
    fn take_in(&mut self, child: usize, completion: &mut Completion) -> bool {
        let part = self.parts.remove(completion.token);
        debug_assert!(
            part.as_ref().is_some_and(|part| part.child == child),
            "volume {child} completes {}, which is not outstanding there",
            completion.token
        );
        let Some(part) = part else { return false };
        self.effects[child].on_completion(part.effect, completion.result.is_ok());
        if let Err(error) = &mut completion.result {
            error.offset = error.offset.wrapping_add(part.shift);
        }
        match part.of {
            Whole::Itself(token) => {
                completion.token = token;
                true
            }
            Whole::Split { split, piece } => self.join(split, piece, completion),
        }
    }

    /// As [`Below::take_in`], of one part of several.
    fn join(&mut self, index: u32, piece: usize, completion: &mut Completion) -> bool {
        let split = self.splits.get_mut(index);
        split.pending -= 1;
        if let Err(mut error) = completion.result {
            if let Some((offset, len)) = split.range {
                (error.offset, error.len) = (offset, len);
            }
            match split.is_told {
                true => self.owed = Some(error),
                false => _ = split.error.get_or_insert(error),
            }
        }
        split.pieces.fill(piece, completion);
        let is_whole = split.pending == 0;
        if is_whole && split.op == Op::Flush && !split.is_told && split.error.is_none() {
            split.error = self.owed.take();
        }
        let is_lost = split.op == Op::Flush && split.error.is_some();
        let tells = !split.is_told && (is_whole || is_lost);
        if tells {
            split.is_told = true;
            *completion = Completion::new(split.token, split.error.map_or(Ok(()), Err));
            match split.op {
                _ if split.error.is_some() => {}
                Op::Read => completion.data = split.pieces.join_data(),
                Op::BlockStatus => completion.extents = split.pieces.join_extents(),
                _ => {}
            }
        }
        if is_whole && let Some(Split { mut pieces, .. }) = self.splits.remove(index.into()) {
            pieces.clear();
            self.spare_pieces.push(pieces);
        }
        tells
    }

    pub(super) fn outstanding(&self) -> usize {
        self.outstanding
    }

    pub(super) fn are_at_rest(&self) -> bool {
        self.children.iter().all(|child| child.volume.is_at_rest())
    }

    pub(super) fn copied_bytes(&self) -> u64 {
        self.children.iter().map(|child| child.volume.copied_bytes()).sum()
    }

    pub(super) fn are_wound_up(&self) -> bool {
        self.children.iter().all(|child| child.volume.is_wound_up())
    }

    pub(super) fn mirrors(&self, found: &mut Vec<MirrorReport>) {
        self.children.iter().for_each(|child| child.volume.mirrors(found));
    }

    pub(super) fn caches(&self, found: &mut Vec<CacheReport>) {
        self.children.iter().for_each(|child| child.volume.caches(found));
    }

    pub(super) fn is_timed(&self) -> bool {
        self.children.iter().any(|child| child.volume.is_timed())
    }

    pub(super) fn events(&self) -> u64 {
        self.children.iter().map(Child::events).fold(0, u64::wrapping_add)
    }

    /// To ask the volumes something: not to submit I/O.
    pub(super) fn children(&mut self) -> &mut [Child] {
        &mut self.children
    }
}
