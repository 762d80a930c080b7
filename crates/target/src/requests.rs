//! From a whole request to its completion.

use thinwire_buffer::{SegList, Segment};
use thinwire_proto::{Item, Stage};
use thinwire_volume::{Completion, ErrorKind, Extent, Io, IoError, IoFlags, Op};
use thinwire_wire::{Complete, OpCode, Request, Status, op_flags};

use crate::TargetCanary;
use crate::house::{House, Operation};
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
        ErrorKind::Io | ErrorKind::Away | ErrorKind::ContentChanged | ErrorKind::OutcomeUnknown => {
            Status::Io
        }
    }
}

/// What a volume says of itself. That another target has fenced this one, or is stopping, is no word to
/// our initiators: they are the writers on record here, and would end for good.
fn status_of_volume(kind: ErrorKind) -> Status {
    match status_of(kind) {
        Status::Fenced | Status::ShuttingDown => Status::Io,
        status => status,
    }
}

impl House {
    /// Executes the request of a slot if it and its data are there.
    pub fn try_execute(&mut self, peer: &mut Peer, index: usize, slot: u16) {
        let s = peer.slots.get(slot);
        if s.state != State::Receiving {
            return;
        }
        let Some(request) = s.request else { return };
        let is_write = request.op == OpCode::Write as u8;
        let takes_data = is_write && request.length as usize <= REQUEST_BYTES_MAX;
        if takes_data && !s.is_whole(request.length) && peer.was_attached {
            return;
        }
        let (export, attachment) = match self.check_attachment(peer, &request) {
            Ok(found) => found,
            Err(status) => return self.finish(peer, &request, status, 0, SegList::new()),
        };
        let waits = !self.attachments[attachment].read_only
            && self.is_held_back(export, peer.session.local_id());
        if waits {
            return;
        }
        let s = peer.slots.get(slot);
        let Some(mut io) = to_io(&request) else {
            return self.finish(peer, &request, Status::Unsupported, 0, SegList::new());
        };
        if is_write {
            if s.has_excess(request.length) || request.length as usize > REQUEST_BYTES_MAX {
                return self.finish(peer, &request, Status::Invalid, 0, SegList::new());
            }
            io.data = s.take_data();
        }
        if io.op.is_write() && self.attachments[attachment].read_only {
            return self.finish(peer, &request, Status::ReadOnly, 0, SegList::new());
        }
        if let Err(kind) = self.exports[export].volume.geometry().check(&io) {
            return self.finish(peer, &request, status_of(kind), 0, SegList::new());
        }
        peer.slots.get(slot).state = State::Executing;
        self.attachments[attachment].outstanding += 1;
        self.stats.requests += 1;
        let verifier = self.exports[export].verifier;
        let told = self.config.canary == TargetCanary::EarlyCompletion && io.op.is_write();
        let token = self.add_operation(Operation {
            peer: index,
            session: peer.session.local_id(),
            slot,
            sequence: request.sequence,
            attachment,
            op: request.op,
            fua: io.flags.fua,
            verifier,
            length: request.length,
            told,
        });
        io.token = token;
        if told {
            self.finish(peer, &request, Status::Ok, verifier, SegList::new());
        }
        self.cross(Stage::Submitted, io.op);
        let export = &mut self.exports[export];
        if io.op != Op::Flush {
            export.volume.submit(io);
        } else if export.flush_running {
            export.flush_waiting.push(token);
        } else {
            export.flush_running = true;
            export.volume.submit(io);
        }
    }

    fn check_attachment(&self, peer: &Peer, request: &Request) -> Result<(usize, usize), Status> {
        let at = (request.attachment as usize).wrapping_sub(1);
        let attachment = self.attachments.get(at).ok_or(Status::NoAttachment)?;
        let ours = attachment.session == peer.session.local_id()
            && attachment.generation == request.generation;
        if !ours || !attachment.live {
            return Err(Status::NoAttachment);
        }
        if attachment.fenced {
            return Err(Status::Fenced);
        }
        Ok((attachment.export, at))
    }

    /// Completes a request towards its initiator.
    fn finish(
        &mut self,
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
        let (now, session) = (self.now, &mut peer.session);
        match (&mut peer.together, peer.slots.get(slot).group.take()) {
            (Some(together), Some(group)) => {
                together.leave(group, Some(answer), |items| session.send_batched(now, items, 0));
            }
            _ => session.send_batched(now, answer, u64::from(length)),
        }
    }

    /// A volume completed an operation.
    pub fn on_completion(
        &mut self,
        export: usize,
        completion: Completion,
        peers: &mut [Option<Box<Peer>>],
    ) {
        let operation = self.take_operation(completion.token);
        let is_flush = operation.op == OpCode::Flush as u8;
        let same = self.config.canary == TargetCanary::SameVerifier;
        if completion.result.is_err() && (is_flush || operation.fua) && !same {
            // fdatasync fails once and then succeeds with the data gone (rule 4). Stores flush for
            // FUA, too, and lose what others have written with it.
            self.exports[export].verifier = self.rng.next_u64();
        }
        if !is_flush {
            return self.deliver(export, operation, completion, peers);
        }
        let mut riders = std::mem::take(&mut self.exports[export].flush_riders);
        for token in riders.drain(..) {
            let operation = self.take_operation(token);
            self.deliver(export, operation, Completion::new(token, completion.result), peers);
        }
        self.deliver(export, operation, completion, peers);
        self.start_waiting_flush(export, riders);
    }

    /// Flushes that came while one was running are served by one new flush together.
    fn start_waiting_flush(&mut self, export: usize, mut riders: Vec<u64>) {
        let e = &mut self.exports[export];
        std::mem::swap(&mut e.flush_waiting, &mut riders);
        e.flush_running = !riders.is_empty();
        if let Some(first) = riders.pop() {
            e.volume.submit(Io::new(first, Op::Flush, 0, 0));
        }
        e.flush_riders = riders;
    }

    fn deliver(
        &mut self,
        export: usize,
        operation: Operation,
        mut completion: Completion,
        peers: &mut [Option<Box<Peer>>],
    ) {
        let op = OpCode::from_number(operation.op).expect("only known operations reach a store");
        match op {
            OpCode::Read => self.cross(Stage::Stored, Op::Read),
            OpCode::Write => self.cross(Stage::Stored, Op::Write),
            _ => {}
        }
        self.attachments[operation.attachment].outstanding -= 1;
        if operation.told {
            return;
        }
        let Some(peer) = peers.get_mut(operation.peer).and_then(|p| p.as_deref_mut()) else {
            return;
        };
        if peer.session.local_id() != operation.session {
            return;
        }
        let slot = peer.slots.get(operation.slot);
        if slot.sequence != operation.sequence || slot.state != State::Executing {
            return;
        }
        let reset = slot.reset;
        let request = slot.request.expect("an executing slot has its request");
        // A write reports the verifier under which it was started, a flush the one under which it
        // ended: so neither can vouch for data that a failed flush in between has lost. A read that
        // may have missed such data says so, too.
        let verifier = match op {
            OpCode::Flush | OpCode::Read | OpCode::BlockStatus => self.exports[export].verifier,
            OpCode::Write | OpCode::Discard | OpCode::WriteZeroes => operation.verifier,
        };
        // A failed flush that ran beside a FUA operation may have lost its data before its own flush
        // came, which then succeeds: it cannot be called durable.
        let is_doubtful = operation.verifier != self.exports[export].verifier
            && self.config.canary != TargetCanary::FuaBesideFailedFlush;
        if operation.fua && is_doubtful && completion.result.is_ok() {
            completion.result = Err(IoError {
                kind: ErrorKind::Io,
                op: Op::Write,
                offset: request.address,
                len: u64::from(request.length),
                module: "target",
            });
        }
        match completion.result {
            Ok(()) => {
                let data = if operation.op == OpCode::BlockStatus as u8 {
                    SegList::of(self.encode_extents(&completion.extents))
                } else {
                    completion.data
                };
                debug_assert!(
                    operation.op != OpCode::Read as u8 || data.bytes() == operation.length as usize
                );
                self.finish(peer, &request, Status::Ok, verifier, data);
            }
            Err(error) => {
                let status = status_of_volume(error.kind);
                self.finish(peer, &request, status, verifier, SegList::new());
            }
        }
        if reset {
            let (slot, sequence) = (operation.slot, operation.sequence);
            peer.session.send(Item::ResetDone { slot, sequence });
        }
    }

    fn encode_extents(&self, extents: &[Extent]) -> Segment {
        let extents = &extents[..extents.len().min(EXTENTS_MAX)];
        let mut buf = self.pool.get(extents.len() * EXTENT_BYTES);
        for (extent, out) in extents.iter().zip(buf.chunks_exact_mut(EXTENT_BYTES)) {
            out[..8].copy_from_slice(&extent.len.to_be_bytes());
            let flags = u32::from(extent.hole) | u32::from(extent.zero) << 1;
            out[8..12].copy_from_slice(&flags.to_be_bytes());
            out[12..].fill(0);
        }
        buf.freeze()
    }
}

/// The I/O that a request asks for; `None` if this version does not know the operation.
fn to_io(request: &Request) -> Option<Io> {
    let op = match OpCode::from_number(request.op)? {
        OpCode::Read => Op::Read,
        OpCode::Write => Op::Write,
        OpCode::Flush => Op::Flush,
        OpCode::Discard => Op::Discard,
        OpCode::WriteZeroes => Op::WriteZeroes,
        OpCode::BlockStatus => Op::BlockStatus,
    };
    let mut io = Io::new(0, op, request.address, u64::from(request.length));
    io.flags = IoFlags {
        fua: request.op_flags & op_flags::FUA != 0,
        no_hole: request.op_flags & op_flags::NO_HOLE != 0,
        one_extent: request.op_flags & op_flags::ONE_EXTENT != 0,
        ..IoFlags::default()
    };
    Some(io)
}
