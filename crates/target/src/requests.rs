//! From a whole request to its completion.

use thinwire_buffer::{Pool, SegList, Segment};
use thinwire_exports::{IoTicket, NoEntry, Pass};
use thinwire_proto::{Item, Stage, SumCanary, Time};
use thinwire_volume::{Completion, ErrorKind, Extent, Io, IoFlags, Op};
use thinwire_wire::{Complete, OpCode, Request, Status, op_flags};

use crate::TargetCanary;
use crate::checked::{is_as_sent, sums_of_read};
use crate::fair::Mark;
use crate::guests::tell_done;
use crate::house::{House, cross};
use crate::peer::Peer;
use crate::slots::{REQUEST_BYTES_MAX, State};

/// A list of extents must fit the smallest frame.
const EXTENTS_MAX: usize = 64;
/// Length, then flags, then nothing: `docs/protocol.md`, "Messages", block status.
const EXTENT_BYTES: usize = 16;

pub(crate) fn status_of(kind: ErrorKind) -> Status {
    match kind {
        ErrorKind::Invalid => Status::Invalid,
        ErrorKind::NoSpace => Status::NoSpace,
        ErrorKind::ReadOnly => Status::ReadOnly,
        ErrorKind::Unsupported => Status::Unsupported,
        ErrorKind::Fenced => Status::Fenced,
        ErrorKind::ShuttingDown => Status::ShuttingDown,
        // Of ALTERED it may send again what it keeps: below a gateway that was done already.
        ErrorKind::Io
        | ErrorKind::Away
        | ErrorKind::ContentChanged
        | ErrorKind::OutcomeUnknown
        | ErrorKind::Altered
        | ErrorKind::BadSum => Status::Io,
    }
}

/// What a volume says of itself. That a target below is stopping is no word to our initiators: they are the writers on
/// record here, and would end for good. Nor is that it has fenced this one, of which nothing is said at all.
fn status_of_volume(kind: ErrorKind) -> Status {
    match status_of(kind) {
        Status::Fenced | Status::ShuttingDown => Status::Io,
        status => status,
    }
}

impl House {
    /// Executes the request of a slot if it and its data are there, and nobody else is to go before.
    pub fn try_execute(&mut self, peer: &mut Peer, index: usize, slot: u16) {
        let s = peer.slots.get(slot);
        if s.state != State::Receiving {
            return;
        }
        let Some(request) = s.request else { return };
        let takes_data = brings_data(request.op) && request.length as usize <= REQUEST_BYTES_MAX;
        if takes_data && !s.is_whole(request.length) && peer.was_attached {
            return;
        }
        if takes_data && peer.checked.has(&request) && s.sums.is_empty() && request.length > 0 {
            return;
        }
        if self.fair.is_shared(self.now, index) {
            return self.stand_in_line(peer, index, slot);
        }
        self.execute::<false>(peer, index, slot);
    }

    /// It goes when it is its session's turn ([`House::serve`]), or at once if it goes to no store.
    #[cold]
    fn stand_in_line(&mut self, peer: &mut Peer, index: usize, slot: u16) {
        if self.fair.waits(index, slot) {
            return;
        }
        let Some(request) = &peer.slots.get(slot).request else { return };
        match self.exports.admit(peer.session.local_id(), pass_of(request)) {
            Ok(permit) => self.fair.wait(permit.export(), index, slot, request),
            Err(_) => self.execute::<true>(peer, index, slot),
        }
    }

    /// Takes the sums that came, so that the answer goes without them. True if the data of a write does not fit them.
    #[inline(never)]
    fn is_altered(
        &mut self,
        peer: &mut Peer,
        slot: u16,
        request: &Request,
        data: &SegList,
        is_fit: bool,
    ) -> bool {
        let sums = std::mem::replace(&mut peer.slots.get(slot).sums, Segment::NOTHING);
        let is_checked = is_fit
            && peer.checked.has(request)
            && self.config.canary != TargetCanary::SumsUnchecked;
        let is_altered = is_checked && !is_as_sent(&sums, request, data, self.config.sums);
        self.stats.altered += u64::from(is_altered);
        is_altered
    }

    /// Gives the stores what they may have of what stands in line. True if that is anything.
    fn serve(&mut self, peers: &mut [Option<Box<Peer>>]) -> bool {
        let mut any = false;
        while let Some((index, slot)) = self.fair.next(self.now) {
            match peers[index].as_deref_mut() {
                Some(peer) => self.execute::<true>(peer, index, slot),
                // A session that ends waits for nothing.
                None => self.serve_guest(index, slot),
            }
            any = true;
        }
        any
    }

    /// Executes a whole request, which `HAS_WAITED` or passes those by that do.
    #[inline(always)]
    fn execute<const HAS_WAITED: bool>(&mut self, peer: &mut Peer, index: usize, slot: u16) {
        let Some(request) = peer.slots.get(slot).request else { return };
        let takes_data = brings_data(request.op) && request.length as usize <= REQUEST_BYTES_MAX;
        let now = self.now;
        let refuse = |peer: &mut Peer, status| {
            finish(now, peer, &request, status, 0, SegList::new());
        };
        let session = peer.session.local_id();
        let permit = match self.exports.admit(session, pass_of(&request)) {
            Ok(permit) => permit,
            Err(NoEntry::NoPass) => return refuse(peer, Status::NoAttachment),
            Err(NoEntry::Fenced) => return refuse(peer, Status::Fenced),
            Err(NoEntry::Waits) => return,
        };
        let op = match to_op(&request) {
            Ok(op) => op,
            Err(status) => return refuse(peer, status),
        };
        let s = peer.slots.get(slot);
        // Data that does not fit the request stays out: the door finds it missing, once it has looked at the rights.
        let is_fit = takes_data && !s.has_excess(request.length);
        let io = to_io(&request, op, if is_fit { s.take_data() } else { SegList::new() });
        if peer.checked.any() && self.is_altered(peer, slot, &request, &io.data, is_fit) {
            return refuse(peer, Status::Altered);
        }
        let early = self.config.canary == TargetCanary::EarlyCompletion && op.is_write();
        let number = u64::from(slot) << 32 | u64::from(request.sequence);
        let line = permit.export();
        let mark = match HAS_WAITED {
            false => Mark::unshared(index),
            true => self.fair.begin(now, line, index, &request),
        };
        let ticket = IoTicket { session, place: mark.0, number };
        let (in_store, observer) = (&mut self.in_store[index], &self.observer);
        let submitted = self.exports.submit(permit, io, ticket, |verifier| {
            peer.slots.get(slot).state = State::Executing;
            *in_store += 1;
            if early {
                finish(now, peer, &request, Status::Ok, verifier, SegList::new());
            }
            cross(observer, Stage::Submitted, op);
        });
        if let Err(kind) = submitted {
            self.fair.end(now, mark, false);
            refuse(peer, status_of(kind));
        }
    }

    /// The last poll of a turn has been.
    pub fn end_turn(&mut self) {
        self.exports.tell_time(self.now);
        self.fair.end_turn(self.now);
    }

    /// Gives the volumes what waits for them, as far as it may go, and answers what they have completed.
    pub fn poll(&mut self, peers: &mut [Option<Box<Peer>>]) {
        self.exports.tell_time(self.now);
        match self.fair.is_waited_in() {
            true => self.poll_in_turns(peers),
            false => self.poll_volumes(peers),
        }
    }

    #[cold]
    fn poll_in_turns(&mut self, peers: &mut [Option<Box<Peer>>]) {
        self.serve(peers);
        self.poll_volumes(peers);
        // What has ended has made room.
        while self.serve(peers) {
            self.poll_volumes(peers);
        }
    }

    /// Answers what the volumes have completed.
    #[inline]
    fn poll_volumes(&mut self, peers: &mut [Option<Box<Peer>>]) {
        let House { exports, in_store, observer, pool, now, fair, config, guests, .. } = self;
        exports.poll(|ticket, op, verifier, completion| {
            cross(observer, Stage::Stored, op);
            let mark = Mark(ticket.place);
            let place = mark.place();
            in_store[place] -= 1;
            fair.end(*now, mark, true);
            let Some(peer) = peers.get_mut(place).and_then(|p| p.as_deref_mut()) else {
                return tell_done(guests, *now, ticket, op, verifier, completion);
            };
            if peer.session.local_id() == ticket.session {
                answer(*now, (&*pool, config.sums), peer, ticket, verifier, completion);
            }
        });
    }
}

/// Data comes with a request of that operation.
#[inline]
pub(crate) fn brings_data(op: u8) -> bool {
    op == OpCode::Write as u8 || op == OpCode::Cut as u8
}

/// The pass that a request shows.
fn pass_of(request: &Request) -> Pass {
    Pass { number: request.attachment, generation: request.generation }
}

/// Answers a request whose I/O has ended, unless its slot is used for another.
fn answer(
    now: Time,
    (pool, sums): (&Pool, SumCanary),
    peer: &mut Peer,
    ticket: IoTicket,
    verifier: u64,
    completion: &mut Completion,
) {
    let (number, sequence) = ((ticket.number >> 32) as u16, ticket.number as u32);
    let slot = peer.slots.get(number);
    if slot.sequence != sequence || slot.state != State::Executing {
        return;
    }
    let reset = slot.reset;
    let request = slot.request.expect("an executing slot has its request");
    match completion.result {
        Ok(()) => {
            let data = if request.op == OpCode::BlockStatus as u8 {
                SegList::of(encode_extents(pool, &completion.extents))
            } else {
                std::mem::take(&mut completion.data)
            };
            debug_assert!(
                request.op != OpCode::Read as u8 || data.bytes() == request.length as usize
            );
            if request.op == OpCode::Read as u8 && peer.checked.has(&request) {
                peer.slots.get(number).sums = sums_of_read(pool, &request, &data, sums);
            }
            finish(now, peer, &request, Status::Ok, verifier, data);
        }
        // Nobody hears of it: the session ends, in this turn.
        Err(error) if error.kind == ErrorKind::Fenced => return,
        Err(error) => {
            let status = status_of_volume(error.kind);
            finish(now, peer, &request, status, verifier, SegList::new());
        }
    }
    if reset {
        peer.session.send(Item::ResetDone { slot: number, sequence });
    }
}

/// Completes a request towards its initiator.
fn finish(
    now: Time,
    peer: &mut Peer,
    request: &Request,
    status: Status,
    verifier: u64,
    data: SegList,
) {
    let length = data.bytes() as u32;
    let (slot, sequence) = (request.slot, request.sequence);
    let complete = Complete { slot, status: status as u16, sequence, verifier, length };
    peer.slots.complete(complete, data);
    let data = (length > 0).then_some(Item::Data { slot, sequence, offset: 0, length });
    let answer = [data, Some(Item::Complete { slot, sequence })];
    let session = &mut peer.session;
    match (&mut peer.together, peer.slots.get(slot).group.take()) {
        (Some(together), Some(group)) => {
            together.leave(group, Some(answer), |items| session.send_batched(now, items, 0));
        }
        _ => session.send_batched(now, answer, u64::from(length)),
    }
}

fn encode_extents(pool: &Pool, extents: &[Extent]) -> Segment {
    let extents = &extents[..extents.len().min(EXTENTS_MAX)];
    let mut buf = pool.get(extents.len() * EXTENT_BYTES);
    for (extent, out) in extents.iter().zip(buf.chunks_exact_mut(EXTENT_BYTES)) {
        out[..8].copy_from_slice(&extent.len.to_be_bytes());
        let flags = u32::from(extent.hole) | u32::from(extent.zero) << 1;
        out[8..12].copy_from_slice(&flags.to_be_bytes());
        out[12..].fill(0);
    }
    buf.freeze()
}

/// What a request asks for, or what it completes as: this version does not know the operation, or
/// it is a flush of a part, which a volume would not tell from one of all.
fn to_op(request: &Request) -> Result<Op, Status> {
    Ok(match OpCode::from_number(request.op).ok_or(Status::Unsupported)? {
        OpCode::Flush if (request.address, request.length) != (0, 0) => {
            return Err(Status::Invalid);
        }
        OpCode::Read => Op::Read,
        OpCode::Write => Op::Write,
        OpCode::Flush => Op::Flush,
        OpCode::Discard => Op::Discard,
        OpCode::WriteZeroes => Op::WriteZeroes,
        OpCode::BlockStatus => Op::BlockStatus,
        OpCode::Cut => Op::Cut,
    })
}

/// The I/O of a request for `op`.
fn to_io(request: &Request, op: Op, data: SegList) -> Io {
    let flags = IoFlags {
        fua: request.op_flags & op_flags::FUA != 0,
        no_hole: request.op_flags & op_flags::NO_HOLE != 0,
        one_extent: request.op_flags & op_flags::ONE_EXTENT != 0,
        meta: request.op_flags & op_flags::META != 0,
        ..IoFlags::default()
    };
    let (offset, len) = (request.address, u64::from(request.length));
    Io { token: 0, op, flags, offset, len, data, user: 0 }
}
