//! One client: its handshake, then its requests.
//!
//! Memory is bounded by what a client may have outstanding ([`NbdLimits`](super::NbdLimits)): a
//! request keeps its place, and its bytes (those of a read or write, or what else its answer takes),
//! until the reply has left. When the next request does not fit, it stays where it is and the socket
//! is not read any more, so that a client that stops reading stops only itself.

use std::io::{self, Write};
use std::os::fd::OwnedFd;

use rustix::event::epoll::EventFlags;
use thinwire_buffer::SegList;
use thinwire_volume::{Completion, Io, Op, Volume};

use super::hall::{Hall, Pending, user};
use super::handshake::{Export, Handshake, Step, Terms};
use super::input::{DIRECT_BYTES_MIN, Heard, Input, Payload};
use super::output::{Output, Reply};
use super::proto::{
    self, EXTENT_BYTES, Errno, NbdRequest, REQUEST_BYTES, ReplyHead, command, command_flag,
};
use crate::effort::Effort;

/// Most calls that take from the socket at a time, however little they bring; level-triggered epoll
/// brings the rest back.
const FILLS_MAX: usize = 16;
/// Replies of a handshake that may wait for the client to read them.
const HANDSHAKE_REPLIES_MAX: usize = 64;
/// Most extents in one answer; a client that wants more asks again from where they end.
const EXTENTS_MAX: usize = 4096;
/// Longest text of an error.
const ERROR_TEXT_BYTES_MAX: usize = 512;

/// How far a client is.
enum ConnectionPhase {
    Handshake(Box<Handshake>),
    Transmission,
    /// Nothing more is taken in; what is outstanding is answered, then the connection ends.
    Draining,
}

/// A write whose payload is arriving.
struct Incoming {
    request: NbdRequest,
    io: Io,
    payload: Payload,
}

/// Why a connection ended.
#[derive(Debug)]
pub(super) enum End {
    /// In order: told us so, or closed its end.
    Orderly,
    /// Broke the protocol beyond what can be answered.
    Broken(&'static str),
    /// The socket failed.
    Socket(io::Error),
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        End::Socket(error)
    }
}

/// A request that is refused.
struct Refusal(Errno, &'static str);

/// One client.
pub(super) struct Connection {
    pub(super) socket: OwnedFd,
    /// Its slot in the face, and which use of that slot.
    pub(super) slot: u32,
    pub(super) generation: u32,
    /// What epoll watches for.
    pub(super) interest: EventFlags,
    /// On the face's list of connections to look after.
    pub(super) touched: bool,
    /// On the face's list of those who wait for room.
    pub(super) listed: bool,
    /// Order of arrival.
    pub(super) arrival: u64,
    /// epoll says that there is something to read.
    readable: bool,
    was_heard: bool,
    phase: ConnectionPhase,
    terms: Terms,
    input: Input,
    output: Output,
    incoming: Option<Incoming>,
    /// Bytes of a refused write's payload still to be skipped.
    skip: u64,
    /// The next request waits for room.
    paused: bool,
    /// What was taken in was more than there was effort for, of which epoll says nothing.
    left_over: bool,
    /// Requests taken in whose reply has not left.
    requests: u32,
    /// Memory this client answers for, in bytes.
    held_bytes: u64,
    /// What of it is with the volume.
    below_bytes: u64,
    /// Links' memory that its replies keep alive while they wait, as the hall counts it.
    lent_bytes: usize,
    /// Some of that is to be given back, for which there was not effort enough.
    owes_copies: bool,
}

impl Connection {
    pub(super) fn new(socket: OwnedFd, slot: u32, generation: u32, arrival: u64) -> Self {
        let mut output = Output::default();
        Handshake::greet(&mut output);
        Connection {
            socket,
            slot,
            generation,
            interest: EventFlags::IN,
            touched: false,
            listed: false,
            arrival,
            readable: false,
            was_heard: false,
            phase: ConnectionPhase::Handshake(Box::default()),
            terms: Terms::default(),
            input: Input::default(),
            output,
            incoming: None,
            skip: 0,
            paused: false,
            left_over: false,
            requests: 0,
            held_bytes: 0,
            below_bytes: 0,
            lent_bytes: 0,
            owes_copies: false,
        }
    }

    /// Has chosen the export, and uses it.
    pub(super) fn is_client(&self) -> bool {
        !self.is_in_handshake()
    }

    /// Has not chosen an export yet.
    pub(super) fn is_in_handshake(&self) -> bool {
        matches!(self.phase, ConnectionPhase::Handshake(_))
    }

    /// The next request waits for room.
    pub(super) fn is_paused(&self) -> bool {
        self.paused
    }

    /// What it answers for that is not with the volume: free when the connection is gone.
    pub(super) fn own_bytes(&self) -> u64 {
        self.held_bytes - self.below_bytes
    }

    /// What epoll should watch for now.
    pub(super) fn wanted(&self) -> EventFlags {
        let reads = !self.paused && !matches!(self.phase, ConnectionPhase::Draining);
        let mut wanted = EventFlags::empty();
        wanted.set(EventFlags::IN, reads);
        wanted.set(EventFlags::OUT, self.output.is_blocked());
        wanted
    }

    /// Takes in what the client sent, and submits it to the volume, as far as there is `effort` for it.
    pub(super) fn pump(
        &mut self,
        hall: &mut Hall,
        volume: &mut dyn Volume,
        export: &Export<'_>,
        effort: &mut Effort,
    ) -> Result<(), End> {
        let was_paused = std::mem::take(&mut self.paused);
        self.digest(hall, volume, export, effort)?;
        for _ in 0..FILLS_MAX {
            let is_over = self.paused || matches!(self.phase, ConnectionPhase::Draining);
            if !self.readable || is_over || effort.is_spent() {
                break;
            }
            let payload = self.incoming.as_mut().map(|incoming| &mut incoming.payload);
            let heard = self.input.fill(&self.socket, payload, &hall.pool, effort)?;
            let was_any = heard != Heard::Nothing;
            match heard {
                Heard::Much => self.was_heard = true,
                Heard::Little => (self.readable, self.was_heard) = (false, true),
                Heard::Nothing => self.readable = false,
                Heard::End => self.drain(),
            }
            self.digest(hall, volume, export, effort)?;
            // The client is giving the rest to its socket, very likely: asking epoll costs more than a call in vain.
            self.readable |= was_any && self.incoming.is_some();
        }
        hall.stats.pauses += u64::from(self.paused && !was_paused);
        // If there is more, epoll says so again.
        self.readable = false;
        Ok(())
    }

    /// There was not effort enough for what was taken in, what the socket takes, or what is to be given back: the next
    /// turn goes on with it, and epoll says nothing of it.
    pub(super) fn is_left_over(&self) -> bool {
        self.left_over || self.owes_copies || !(self.output.is_empty() || self.output.is_blocked())
    }

    /// It is likely that there is something to read when anything has happened to its socket.
    pub(super) fn may_be_heard(&self) -> bool {
        let is_talking = matches!(self.phase, ConnectionPhase::Transmission) && !self.paused;
        is_talking && self.interest == EventFlags::IN
    }

    /// There may be something to read, though epoll was not asked.
    pub(super) fn guess(&mut self) {
        (self.readable, self.was_heard) = (true, false);
    }

    /// Something was read since the guess that there is.
    pub(super) fn was_heard(&self) -> bool {
        self.was_heard
    }

    /// What epoll says of its socket.
    pub(super) fn heard(&mut self, flags: EventFlags) {
        let gone = flags.intersects(EventFlags::HUP | EventFlags::ERR);
        self.readable |= gone || flags.contains(EventFlags::IN);
        if gone || flags.contains(EventFlags::OUT) {
            self.output.unblock();
        }
    }

    /// Sends what the socket takes, as far as there is `effort` for it. Returns whether that made room for
    /// more requests.
    pub(super) fn flush(&mut self, hall: &mut Hall, effort: &mut Effort) -> Result<bool, End> {
        let sent = self.output.send(&self.socket, effort);
        self.bound_lent(hall, effort);
        let sent = sent?;
        self.requests -= sent.requests;
        self.release(sent.held_bytes, hall);
        let is_over = matches!(self.phase, ConnectionPhase::Draining)
            && self.requests == 0
            && self.output.is_empty();
        if is_over { Err(End::Orderly) } else { Ok(sent.replies > 0) }
    }

    /// Sees to it that replies which wait for the client keep no more of the links' memory than its share, as far as
    /// there is `effort` for it.
    fn bound_lent(&mut self, hall: &mut Hall, effort: &mut Effort) {
        self.owes_copies = false;
        if self.output.is_blocked() {
            let others = hall.lent_bytes - self.lent_bytes;
            let left = hall.limits.lent_bytes_max.saturating_sub(others);
            let share = hall.limits.connection_lent_bytes_max.min(left);
            self.output.count_lent();
            let (copied, owes) = self.output.give_back(share, &hall.pool, effort);
            hall.stats.given_back_bytes += copied;
            self.owes_copies = owes;
        }
        self.note_lent(hall);
    }

    /// Replies that have waited since the call before may not keep links' memory any more: true if there are such,
    /// which the next [`Connection::flush`] copies if it cannot send them.
    pub(super) fn lose_patience(&mut self) -> bool {
        self.output.age()
    }

    fn note_lent(&mut self, hall: &mut Hall) {
        let lent_bytes = self.output.lent_bytes();
        hall.lent_bytes = hall.lent_bytes - self.lent_bytes + lent_bytes;
        self.lent_bytes = lent_bytes;
    }

    /// Links' memory that it keeps alive: free when the connection is gone.
    pub(super) fn lent_bytes(&self) -> usize {
        self.lent_bytes
    }

    /// Takes nothing more in.
    fn drain(&mut self) {
        self.phase = ConnectionPhase::Draining;
        self.incoming = None;
        let len = self.input.bytes().len();
        self.input.consume(len);
    }

    fn hold(&mut self, bytes: u64, hall: &mut Hall) {
        self.held_bytes += bytes;
        hall.held_bytes += bytes;
    }

    fn release(&mut self, bytes: u64, hall: &mut Hall) {
        self.held_bytes -= bytes;
        hall.held_bytes -= bytes;
    }

    /// Acts on what is understood of what came, until more is needed, there is no room, or the effort is
    /// spent.
    fn digest(
        &mut self,
        hall: &mut Hall,
        volume: &mut dyn Volume,
        export: &Export<'_>,
        effort: &mut Effort,
    ) -> Result<(), End> {
        self.left_over = false;
        loop {
            // A write that is whole need not wait for the next turn.
            let is_whole = self.incoming.as_ref().is_some_and(|write| write.payload.is_whole());
            if effort.is_spent() && !is_whole {
                // Or nothing, as it turns out then.
                self.left_over = true;
                return Ok(());
            }
            match &mut self.phase {
                ConnectionPhase::Draining => return Ok(()),
                ConnectionPhase::Handshake(handshake) => {
                    if self.output.len() >= HANDSHAKE_REPLIES_MAX {
                        self.paused = true;
                        return Ok(());
                    }
                    let input = self.input.bytes();
                    match handshake.step(input, export, &mut self.output, &hall.pool) {
                        Step::Wait => return Ok(()),
                        Step::Took(len) => {
                            effort.item();
                            self.input.consume(len);
                        }
                        Step::Start(len, terms) => {
                            self.input.consume(len);
                            self.terms = terms;
                            self.phase = ConnectionPhase::Transmission;
                            // Its first request may be a flush, for what others write meanwhile.
                            volume.begin_user(user(self.slot));
                        }
                        Step::Farewell => self.drain(),
                        Step::Broken(how) => return Err(End::Broken(how)),
                    }
                }
                ConnectionPhase::Transmission => {
                    if !self.transmit(hall, volume, export, effort)? {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Takes in the next thing of the transmission. False if more bytes or more room are needed.
    fn transmit(
        &mut self,
        hall: &mut Hall,
        volume: &mut dyn Volume,
        export: &Export<'_>,
        effort: &mut Effort,
    ) -> Result<bool, End> {
        if let Some(incoming) = &mut self.incoming {
            let taken = incoming.payload.take(self.input.bytes(), &hall.pool);
            hall.stats.copied_bytes += taken as u64;
            self.input.consume(taken);
            if !incoming.payload.is_whole() {
                return Ok(false);
            }
            let Incoming { request, mut io, payload } = self.incoming.take().expect("one");
            io.data = payload.finish();
            self.submit(request, io, u64::from(request.len), hall, volume);
            return Ok(true);
        }
        if self.skip > 0 {
            let len = self.skip.min(self.input.bytes().len() as u64);
            self.skip -= len;
            self.input.consume(len as usize);
            return Ok(len > 0);
        }
        let Some(header) = self.input.peek::<REQUEST_BYTES>() else {
            return Ok(false);
        };
        let Some(request) = NbdRequest::parse(&header) else {
            return Err(End::Broken("a request without its magic"));
        };
        if request.command == command::DISC {
            self.drain();
            return Ok(true);
        }
        let valid = check(&request, self.terms, export);
        // What it may need until its answer has left.
        let bytes = match request.command {
            _ if valid.is_err() => self.error_bytes(),
            command::READ | command::WRITE => u64::from(request.len),
            command::BLOCK_STATUS => (EXTENTS_MAX * EXTENT_BYTES) as u64,
            _ => 0,
        };
        if !self.has_room(bytes, hall) {
            self.paused = true;
            return Ok(false);
        }
        effort.item();
        self.input.consume(REQUEST_BYTES);
        self.requests += 1;
        hall.stats.requests += 1;
        let is_write = request.command == command::WRITE;
        self.input.understood(is_write && valid.is_ok() && request.len >= DIRECT_BYTES_MIN);
        match valid {
            Ok(io) => {
                self.hold(bytes, hall);
                if is_write {
                    let payload = Payload::new(request.len as usize);
                    self.incoming = Some(Incoming { request, io, payload });
                } else {
                    if request.command == command::READ {
                        effort.read(bytes as usize);
                    }
                    self.submit(request, io, bytes, hall, volume);
                }
            }
            Err(Refusal(errno, text)) => {
                if is_write {
                    self.skip = u64::from(request.len);
                }
                hall.stats.requests_refused += 1;
                self.refuse(&request, errno, format_args!("{text}"), hall);
            }
        }
        Ok(true)
    }

    /// One request of any size always fits, so that nobody waits for ever.
    fn has_room(&self, bytes: u64, hall: &Hall) -> bool {
        let limits = &hall.limits;
        let bytes_fit = bytes == 0
            || self.held_bytes == 0
            || (self.held_bytes + bytes <= limits.connection_bytes_max
                && hall.held_bytes + bytes <= limits.bytes_max);
        // Requests of clients that are gone count: one that comes and goes must not pile them up.
        let requests_fit = self.requests < limits.connection_requests_max
            && hall.pending.len() < limits.requests_max;
        requests_fit && bytes_fit
    }

    fn submit(
        &mut self,
        request: NbdRequest,
        mut io: Io,
        held_bytes: u64,
        hall: &mut Hall,
        volume: &mut dyn Volume,
    ) {
        self.below_bytes += held_bytes;
        let (slot, generation) = (self.slot, self.generation);
        io.token = hall.pending.insert(Pending { slot, generation, request, held_bytes });
        io.user = user(slot);
        volume.submit(io);
    }

    /// Answers a request that the volume has done.
    pub(super) fn complete(&mut self, pending: Pending, completion: Completion, hall: &mut Hall) {
        let Pending { request, held_bytes, .. } = pending;
        self.below_bytes -= held_bytes;
        if let Err(error) = completion.result {
            self.release(held_bytes, hall);
            hall.stats.requests_failed += 1;
            return self.refuse(&request, error.kind.into(), format_args!("{error}"), hall);
        }
        let cookie = request.cookie;
        match request.command {
            command::READ => {
                let len = request.len as usize;
                assert_eq!(completion.data.bytes(), len, "a read of another length");
                let head = if self.terms.structured {
                    ReplyHead::data_chunk(cookie, request.offset, len)
                } else {
                    ReplyHead::simple(cookie, None)
                };
                let data = completion.data;
                self.output.push(Reply { head, data, ends_request: true, held_bytes });
            }
            command::BLOCK_STATUS => {
                let one = request.flags & command_flag::REQ_ONE != 0;
                let room = completion.extents.len().clamp(1, EXTENTS_MAX) * EXTENT_BYTES;
                let mut buf = hall.pool.get_small(room);
                let answer_bytes = buf.capacity() as u64;
                self.release(held_bytes - answer_bytes, hall);
                let count = proto::put_extents(&completion.extents, request.len, one, &mut buf);
                assert!(count > 0, "a block status without extents");
                buf.set_len(count * EXTENT_BYTES);
                let (head, data) =
                    (ReplyHead::status_chunk(cookie, count), SegList::of(buf.freeze()));
                self.answer(head, data, answer_bytes);
            }
            _ => {
                self.release(held_bytes, hall);
                self.answer(ReplyHead::simple(cookie, None), SegList::new(), 0);
            }
        }
    }

    /// `held_bytes` are those of `data`, held already.
    fn answer(&mut self, head: ReplyHead, data: SegList, held_bytes: u64) {
        self.output.push(Reply { head, data, ends_request: true, held_bytes });
    }

    /// Memory that the answer with an error takes.
    fn error_bytes(&self) -> u64 {
        if self.terms.structured { ERROR_TEXT_BYTES_MAX as u64 } else { 0 }
    }

    /// Answers with an error, and with a text where the client understands one.
    fn refuse(
        &mut self,
        request: &NbdRequest,
        errno: Errno,
        text: std::fmt::Arguments<'_>,
        hall: &mut Hall,
    ) {
        let held_bytes = self.error_bytes();
        if held_bytes == 0 {
            let head = ReplyHead::simple(request.cookie, Some(errno));
            return self.answer(head, SegList::new(), 0);
        }
        self.hold(held_bytes, hall);
        let mut buf = hall.pool.get_small(ERROR_TEXT_BYTES_MAX);
        let mut rest = &mut buf[..];
        // What does not fit is cut off.
        let _ = rest.write_fmt(text);
        let len = ERROR_TEXT_BYTES_MAX - rest.len();
        buf.set_len(len);
        let head = ReplyHead::error_chunk(request.cookie, errno, len);
        self.answer(head, SegList::of(buf.freeze()), held_bytes);
    }
}

/// The gate: what a valid request means to the volume, or what the client is told.
fn check(request: &NbdRequest, terms: Terms, export: &Export<'_>) -> Result<Io, Refusal> {
    let features = export.geometry.features;
    let (op, more_flags, able) = match request.command {
        command::READ if terms.structured => (Op::Read, command_flag::DF, true),
        command::READ => (Op::Read, 0, true),
        command::WRITE => (Op::Write, 0, true),
        command::FLUSH => (Op::Flush, 0, true),
        command::TRIM => (Op::Discard, 0, features.discard),
        command::WRITE_ZEROES => (Op::WriteZeroes, command_flag::NO_HOLE, features.write_zeroes),
        command::BLOCK_STATUS => (Op::BlockStatus, command_flag::REQ_ONE, terms.allocation),
        _ => return Err(Refusal(Errno::Inval, "this server does not know this command")),
    };
    if request.flags & !(command_flag::FUA | more_flags) != 0 {
        return Err(Refusal(Errno::Inval, "this command does not take these flags"));
    }
    if op.is_write() && features.read_only {
        return Err(Refusal(Errno::Perm, "the export is read-only"));
    }
    if op == Op::BlockStatus && !able {
        return Err(Refusal(Errno::Inval, "no metadata context was negotiated"));
    }
    if !able {
        return Err(Refusal(Errno::NotSup, "the export cannot do this"));
    }
    let (offset, len) = (request.offset, u64::from(request.len));
    let mut io = Io::new(0, op, offset, len);
    io.flags.fua = op.is_write() && request.flags & command_flag::FUA != 0;
    io.flags.no_hole = request.flags & command_flag::NO_HOLE != 0 && op == Op::WriteZeroes;
    io.flags.one_extent = request.flags & command_flag::REQ_ONE != 0 && op == Op::BlockStatus;
    if op == Op::Flush {
        let plain = offset == 0 && len == 0;
        return if plain { Ok(io) } else { Err(Refusal(Errno::Inval, "a flush has no range")) };
    }
    if len == 0 {
        return Err(Refusal(Errno::Inval, "a request of no bytes"));
    }
    if offset.checked_add(len).is_none_or(|end| end > export.geometry.bytes) {
        let grows = matches!(op, Op::Write | Op::WriteZeroes);
        let errno = if grows { Errno::NoSpc } else { Errno::Inval };
        return Err(Refusal(errno, "the range ends beyond the export"));
    }
    if matches!(op, Op::Read | Op::Write) && request.len > export.io_bytes_max() {
        return Err(Refusal(Errno::Inval, "longer than the maximum block size"));
    }
    let block = u64::from(export.geometry.block_bytes);
    if !offset.is_multiple_of(block) || !len.is_multiple_of(block) {
        return Err(Refusal(Errno::Inval, "not a multiple of the minimum block size"));
    }
    Ok(io)
}
