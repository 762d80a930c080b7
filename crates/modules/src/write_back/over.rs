//! Reads and block status: what is here over what is below.

use thinwire_buffer::{SegList, Segment};
use thinwire_volume::stores::push_extent;
use thinwire_volume::{Completion, Extent, Io, Op, Token};

use super::{Request, WriteBack, WriteBackCanary};

/// A longer block status tells of no more.
const STATUS_BYTES_MAX: u64 = 16 << 20;

/// A read or block status that is below.
pub(super) struct Ask {
    token: Token,
    op: Op,
    start: u64,
    end: u64,
    one_extent: bool,
    over: Over,
}

/// What was here of a range.
struct Over {
    /// Where it begins and ends, in order.
    runs: Vec<(u64, u64)>,
    /// The bytes of all of these, one behind the other; none for a block status.
    data: Segment,
}

impl WriteBack {
    /// Answers from here what is all here, if nothing has happened below; else asks the volume below, and lays what is here now over what that says, whatever becomes
    /// of it meanwhile: the volume below may be asked before it goes down, and answer when it is there.
    pub(super) fn ask(&mut self, mut io: Io) {
        let Io { token, op, offset: start, .. } = io;
        if op == Op::BlockStatus && !self.blocks.is_empty() {
            io.len = io.len.min(STATUS_BYTES_MAX);
        }
        let end = start + io.len;
        let is_late = self.canary == WriteBackCanary::LateOverlay && op == Op::Read;
        let over = self.look(op, start, if is_late { start } else { end });
        let covered: u64 = over.runs.iter().map(|(from, to)| to - from).sum();
        if covered == io.len && op == Op::Read && !self.is_in_doubt() {
            let completion = Completion::new(token, Ok(()));
            self.ready.push(Completion { data: SegList::of(over.data.clone()), ..completion });
            return self.recycle(over);
        }
        if over.runs.is_empty() && !is_late {
            self.recycle(over);
            return self.hand_down(io, Request::Plain { token });
        }
        let one_extent = io.flags.one_extent;
        self.hand_down(io, Request::Ask(Ask { token, op, start, end, one_extent, over }));
    }

    /// What is here of a range now.
    fn look(&mut self, op: Op, start: u64, end: u64) -> Over {
        let mut runs = self.spare.pop().unwrap_or_default();
        let mut bytes = 0;
        self.blocks.stretches(start, end, |at, here| {
            let len = here.len() as u64;
            bytes += here.len();
            match runs.last_mut() {
                Some((_, end)) if *end == at => *end += len,
                _ => runs.push((at, at + len)),
            }
        });
        if bytes == 0 || op != Op::Read {
            return Over { runs, data: Segment::NOTHING };
        }
        let mut copy = self.copies.get(bytes);
        let mut filled = 0;
        self.blocks.stretches(start, end, |_, here| {
            copy[filled..filled + here.len()].copy_from_slice(here);
            filled += here.len();
        });
        self.copied_bytes += bytes as u64;
        Over { runs, data: copy.freeze() }
    }

    fn recycle(&mut self, over: Over) {
        let mut runs = over.runs;
        runs.clear();
        self.spare.push(runs);
    }

    pub(super) fn answer(&mut self, ask: Ask, mut completion: Completion) {
        let Ask { token, op, start, end, one_extent, mut over } = ask;
        if self.canary == WriteBackCanary::LateOverlay && op == Op::Read {
            over = self.look(op, start, end);
        }
        completion.token = token;
        match (completion.result, op) {
            (Ok(()), Op::Read) => completion.data = over.lay_over(&completion.data, start, end),
            (Ok(()), _) => {
                completion.extents = over.lay_over_status(&completion.extents, start);
                if one_extent {
                    completion.extents.truncate(1);
                }
            }
            (Err(_), _) => {}
        }
        self.ready.push(completion);
        self.recycle(over);
    }
}

impl Over {
    /// Its bytes where it has any, else those below.
    fn lay_over(&self, below: &SegList, start: u64, end: u64) -> SegList {
        let mut out = SegList::new();
        let (mut at, mut used) = (start, 0);
        for &(from, to) in &self.runs {
            below.slice_into((at - start) as usize, (from - at) as usize, &mut out);
            let len = (to - from) as usize;
            out.push(self.data.slice(used, len));
            used += len;
            at = to;
        }
        below.slice_into((at - start) as usize, (end - at) as usize, &mut out);
        out
    }

    /// What is here is data; as far as the volume below has answered.
    fn lay_over_status(&self, below: &[Extent], start: u64) -> Vec<Extent> {
        let mut extents = Vec::new();
        let mut at = start;
        for extent in below {
            let (begin, end) = (at, at + extent.len);
            for &(from, to) in self.runs.iter().filter(|(from, to)| *from < end && begin < *to) {
                let from = from.max(at);
                push_extent(&mut extents, Extent { len: from - at, ..*extent });
                let to = to.min(end);
                push_extent(&mut extents, Extent { len: to - from, hole: false, zero: false });
                at = to;
            }
            push_extent(&mut extents, Extent { len: end - at, ..*extent });
            at = end;
        }
        extents
    }
}
