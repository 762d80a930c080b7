//! What a connection still has to say: replies, sent by reference in as few calls as the socket allows.
//!
//! A client may have megabytes of answers to long reads waiting here; who asked for little beside them is not made
//! to wait for all of these. So short replies go before long ones that have not begun, which go on at least every
//! other call. NBD allows any order; within either kind, and so in a handshake, it stays.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::AsFd;

use rustix::net::{SendAncillaryBuffer, SendFlags};
use thinwire_buffer::{Pool, SegList};

use super::proto::ReplyHead;
use crate::effort::Effort;

/// Most pieces of memory handed to the kernel in one call (its own limit is 1024).
const SLICES_MAX: usize = 256;

/// Replies with so much data wait for short ones.
const LONG_BYTES_MIN: usize = 32 << 10;

/// Replies are given copies of their data in pieces of at most this size, and no less is counted for one.
const COPY_BYTES_MAX: usize = 256 << 10;
const COPY_BYTES_MIN: usize = 512;

/// One reply, or one part of the handshake.
pub(super) struct Reply {
    /// The formatted head.
    pub(super) head: ReplyHead,
    /// What follows it.
    pub(super) data: SegList,
    /// True if a request's place is free again once this is sent.
    pub(super) ends_request: bool,
    /// Bytes of memory the connection answers for until this is sent.
    pub(super) held_bytes: u64,
}

impl Reply {
    /// A part of the handshake, or anything else that is charged to nothing.
    pub(super) fn free(head: ReplyHead, data: SegList) -> Self {
        Reply { head, data, ends_request: false, held_bytes: 0 }
    }
}

/// What sending has set free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sent {
    /// Replies that are out.
    pub(super) replies: u32,
    /// Requests whose reply is out.
    pub(super) requests: u32,
    /// Bytes no longer held for them.
    pub(super) held_bytes: u64,
}

/// A reply that is not out.
struct Waiting {
    reply: Reply,
    /// The end of its data that is copied already, in pieces, the last one first.
    copies: SegList,
    /// Of its head and its data.
    bytes: usize,
    /// Links' memory that its data keeps alive, once that was counted.
    lent_bytes: Option<usize>,
    age: Age,
}

/// How long a reply has waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Age {
    Young,
    /// Since before [`Output::age`] was last called.
    Old,
    /// Since before the call before that: it may not keep links' memory.
    Overdue,
}

impl Waiting {
    /// Its bytes in order.
    fn parts(&self) -> impl Iterator<Item = &[u8]> {
        let data = self.reply.data.iter().chain(self.copies.iter().rev());
        std::iter::once(self.reply.head.as_bytes()).chain(data.map(|segment| &segment[..]))
    }

    /// Keeps some of the links' memory.
    fn is_lent(&self) -> bool {
        self.lent_bytes.is_some_and(|lent_bytes| lent_bytes > 0)
    }

    /// Gives the last of its data that is in links' memory a copy, as far as there is `effort` for it. Returns how much
    /// of that memory it no longer keeps, and how many bytes were copied.
    fn give_back(&mut self, pool: &Pool, effort: &mut Effort) -> (usize, usize) {
        let Some(before @ 1..) = self.lent_bytes else { return (0, 0) };
        let data = &mut self.reply.data;
        while data.as_slice().last().is_some_and(|last| !last.is_received()) {
            data.pop().into_iter().for_each(|own| self.copies.push(own));
        }
        let bytes_max = effort.room_for(COPY_BYTES_MAX);
        let mut len = 0;
        for segment in data.iter().rev().take_while(|segment| segment.is_received()) {
            if len > 0 && len + segment.len() > bytes_max {
                break;
            }
            len += segment.len();
        }
        effort.copy(len.max(COPY_BYTES_MIN));
        let (mut copy, mut at, mut lent_bytes) = (pool.get(len), len, before);
        while at > 0 {
            let segment = data.pop().expect("so many were counted");
            at -= segment.len();
            copy[at..at + segment.len()].copy_from_slice(&segment);
            // As `received_bytes` counts them.
            let next = data.iter().rev().find(|segment| segment.is_received());
            if next.is_none_or(|next| !next.shares_memory(&segment)) {
                lent_bytes -= segment.pinned_bytes();
            }
        }
        self.copies.push(copy.freeze());
        self.lent_bytes = Some(lent_bytes);
        (before - lent_bytes, len)
    }
}

/// Two queues of replies.
#[derive(Default)]
pub(super) struct Output {
    short: VecDeque<Waiting>,
    long: VecDeque<Waiting>,
    /// The first short reply goes before all others: a part of it is out.
    short_begun: bool,
    /// The first long reply goes before all short ones that have not begun: a part of it is out, or it is due.
    long_due: bool,
    /// Bytes of the reply that goes first that are out already.
    sent: usize,
    /// The socket has taken less than it was offered.
    is_blocked: bool,
    /// Links' memory that replies keep alive, as far as it was counted.
    lent_bytes: usize,
}

impl Output {
    pub(super) fn push(&mut self, reply: Reply) {
        let data_bytes = reply.data.bytes();
        let bytes = reply.head.as_bytes().len() + data_bytes;
        let copies = SegList::new();
        let waiting = Waiting { bytes, reply, copies, lent_bytes: None, age: Age::Young };
        match data_bytes >= LONG_BYTES_MIN {
            true => self.long.push_back(waiting),
            false => self.short.push_back(waiting),
        }
    }

    /// A handshake reply with a text or the like after its head.
    pub(super) fn push_with(&mut self, head: ReplyHead, parts: &[&[u8]], pool: &Pool) {
        let mut buf = pool.get(parts.iter().map(|part| part.len()).sum());
        let mut at = 0;
        for part in parts {
            buf[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        self.push(Reply::free(head, SegList::of(buf.freeze())));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.short.is_empty() && self.long.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.short.len() + self.long.len()
    }

    /// What is left waits for the socket to be writable.
    pub(super) fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    /// The socket is writable.
    pub(super) fn unblock(&mut self) {
        self.is_blocked = false;
    }

    /// Sends what the socket takes, as far as there is `effort` for it; nothing while it is blocked.
    pub(super) fn send(&mut self, socket: impl AsFd, effort: &mut Effort) -> io::Result<Sent> {
        let mut total = Sent::default();
        while !self.is_blocked && !self.is_empty() && !effort.is_spent() {
            let (offered, result) = self.send_once(&socket, effort);
            let sent = match result {
                Ok(sent) => sent,
                Err(rustix::io::Errno::INTR) => continue,
                Err(rustix::io::Errno::AGAIN) => 0,
                Err(error) => return Err(error.into()),
            };
            effort.copy(sent);
            self.advance(sent, &mut total);
            self.is_blocked = sent < offered;
        }
        Ok(total)
    }

    /// Sends once, as far as there is `effort` for it: whole replies, but for those that are longer than a turn.
    /// Says how many bytes it has offered to the socket, and what became of them.
    fn send_once(&self, socket: impl AsFd, effort: &Effort) -> (usize, rustix::io::Result<usize>) {
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let mut count = 0;
        let mut offered = 0;
        let mut skip = self.sent;
        let mut effort = effort.clone();
        'all: for waiting in self.in_order() {
            let room = effort.room_for(waiting.bytes - skip);
            effort.copy(room);
            let bytes_max = offered + room;
            for part in waiting.parts() {
                if skip >= part.len() {
                    skip -= part.len();
                    continue;
                }
                if count == SLICES_MAX || offered == bytes_max {
                    break 'all;
                }
                let part = &part[skip..];
                let part = &part[..part.len().min(bytes_max - offered)];
                slices[count] = IoSlice::new(part);
                offered += part.len();
                skip = 0;
                count += 1;
            }
        }
        let mut control = SendAncillaryBuffer::default();
        let flags = SendFlags::NOSIGNAL;
        (offered, rustix::net::sendmsg(socket, &slices[..count], &mut control, flags))
    }

    /// Links' memory that replies which wait keep alive, at its true size, as last counted.
    pub(super) fn lent_bytes(&self) -> usize {
        self.lent_bytes
    }

    /// Counts that of the replies which have come since.
    pub(super) fn count_lent(&mut self) {
        for queue in [&mut self.short, &mut self.long] {
            for waiting in queue.iter_mut().rev().take_while(|waiting| waiting.lent_bytes.is_none())
            {
                let lent_bytes = waiting.reply.data.received_bytes();
                waiting.lent_bytes = Some(lent_bytes);
                self.lent_bytes += lent_bytes;
            }
        }
    }

    /// Gives replies copies until no more than `lent_bytes_max` of the links' memory is kept, those first that go out
    /// last, and all that are overdue, as far as there is `effort` for it. Returns how many bytes were copied, and
    /// whether more are to be.
    pub(super) fn give_back(
        &mut self,
        lent_bytes_max: usize,
        pool: &Pool,
        effort: &mut Effort,
    ) -> (u64, bool) {
        let mut copied = 0;
        for waiting in self.short.iter_mut().chain(&mut self.long).rev() {
            let is_overdue = waiting.age == Age::Overdue;
            while waiting.is_lent() && (is_overdue || self.lent_bytes > lent_bytes_max) {
                if effort.is_spent() {
                    return (copied, true);
                }
                let (lent_bytes, bytes) = waiting.give_back(pool, effort);
                self.lent_bytes -= lent_bytes;
                copied += bytes as u64;
            }
        }
        (copied, false)
    }

    /// Those replies that wait since the last call are overdue. Returns whether such keep some of the links' memory.
    pub(super) fn age(&mut self) -> bool {
        let mut any = false;
        for waiting in self.short.iter_mut().chain(&mut self.long) {
            waiting.age = match waiting.age {
                Age::Young => Age::Old,
                Age::Old | Age::Overdue => Age::Overdue,
            };
            any |= waiting.age == Age::Overdue && waiting.is_lent();
        }
        any
    }

    /// All replies, as they go out.
    fn in_order(&self) -> impl Iterator<Item = &Waiting> {
        let (begun, due) = (usize::from(self.short_begun), usize::from(self.long_due));
        let first = self.short.iter().take(begun).chain(self.long.iter().take(due));
        first.chain(self.short.iter().skip(begun)).chain(self.long.iter().skip(due))
    }

    /// Lets go of the first `sent` unsent bytes.
    fn advance(&mut self, sent: usize, total: &mut Sent) {
        self.sent += sent;
        let mut no_long_one = true;
        loop {
            let is_long = !self.short_begun && (self.long_due || self.short.is_empty());
            let queue = if is_long { &mut self.long } else { &mut self.short };
            let Some(first) = queue.front() else { break };
            if self.sent < first.bytes {
                *(if is_long { &mut self.long_due } else { &mut self.short_begun }) = self.sent > 0;
                break;
            }
            let Waiting { reply, bytes, lent_bytes, .. } = queue.pop_front().expect("a first one");
            self.sent -= bytes;
            self.lent_bytes -= lent_bytes.unwrap_or(0);
            *(if is_long { &mut self.long_due } else { &mut self.short_begun }) = false;
            no_long_one &= !is_long;
            total.replies += 1;
            total.requests += u32::from(reply.ends_request);
            total.held_bytes += reply.held_bytes;
        }
        self.long_due |= no_long_one && !self.long.is_empty();
        debug_assert!(self.sent == 0 || self.short_begun || self.long_due);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;

    /// More slices and more bytes than one call takes arrive whole and in order, and are released
    /// exactly once, however small the reader's sips.
    #[test]
    fn partial_sends_lose_nothing() {
        let pool = Pool::new(16 << 20);
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        theirs.set_nonblocking(true).unwrap();
        let mut output = Output::default();
        let mut expected = Vec::new();
        for cookie in 0..700u64 {
            let head = ReplyHead::simple(cookie, None);
            expected.extend_from_slice(head.as_bytes());
            let mut data = SegList::new();
            for n in 0..cookie % 3 {
                let part = vec![cookie as u8; 1 + (cookie * 37 % 5000 + n) as usize];
                expected.extend_from_slice(&part);
                data.push(pool.copy_of(&part).freeze());
            }
            output.push(Reply { head, data, ends_request: true, held_bytes: 10 });
        }
        let mut total = Sent::default();
        let mut got = Vec::new();
        let mut sip = [0; 7777];
        while got.len() < expected.len() {
            let sent = output.send(&ours, &mut Effort::of_a_turn()).unwrap();
            total.replies += sent.replies;
            total.requests += sent.requests;
            total.held_bytes += sent.held_bytes;
            if let Ok(n) = theirs.read(&mut sip) {
                got.extend_from_slice(&sip[..n]);
            }
            output.unblock();
        }
        assert!(got == expected);
        assert!(output.is_empty());
        assert_eq!(total, Sent { replies: 700, requests: 700, held_bytes: 7000 });
        assert_eq!(pool.stats().live_bytes, 0);
    }

    fn reply(pool: &Pool, cookie: u64, bytes: usize) -> Reply {
        let data = SegList::of(pool.copy_of(&vec![cookie as u8; bytes]).freeze());
        let head = ReplyHead::simple(cookie, None);
        Reply { head, data, ends_request: true, held_bytes: 0 }
    }

    /// The cookies of the replies in a stream of whole ones, all of one length by cookie.
    fn cookies(mut stream: &[u8], bytes_of: impl Fn(u64) -> usize) -> Vec<u64> {
        let mut cookies = Vec::new();
        while let Some((head, rest)) = stream.split_at_checked(16) {
            let cookie = u64::from_be_bytes(head[8..].try_into().unwrap());
            let (data, rest) = rest.split_at(bytes_of(cookie));
            assert!(data.iter().all(|&byte| byte == cookie as u8), "a reply in pieces");
            cookies.push(cookie);
            stream = rest;
        }
        cookies
    }

    fn socket_pair() -> (UnixStream, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        theirs.set_nonblocking(true).unwrap();
        (ours, theirs)
    }

    /// Replies of this length are long.
    const LONG: usize = 1 << 20;

    fn bytes_of(cookie: u64) -> usize {
        if cookie < 100 { LONG } else { 64 }
    }

    /// All there is to be read.
    fn hear(theirs: &mut UnixStream, got: &mut Vec<u8>) {
        let mut sip = vec![0; 1 << 16];
        while let Ok(n @ 1..) = theirs.read(&mut sip) {
            got.extend_from_slice(&sip[..n]);
        }
    }

    #[test]
    fn short_replies_wait_for_no_long_one_that_has_not_begun() {
        let pool = Pool::new(16 << 20);
        let (ours, mut theirs) = socket_pair();
        let mut output = Output::default();
        (0..4).for_each(|cookie| output.push(reply(&pool, cookie, LONG)));
        output.send(&ours, &mut Effort::of_a_turn()).unwrap();
        (100..103).for_each(|cookie| output.push(reply(&pool, cookie, 64)));
        let mut got = Vec::new();
        while !output.is_empty() {
            output.send(&ours, &mut Effort::of_a_turn()).unwrap();
            hear(&mut theirs, &mut got);
            output.unblock();
        }
        hear(&mut theirs, &mut got);
        assert_eq!(cookies(&got, bytes_of), [0, 100, 101, 102, 1, 2, 3]);
    }

    /// However many short ones come, and though one of them is begun each time.
    #[test]
    fn long_replies_go_on_at_least_every_other_call() {
        let pool = Pool::new(16 << 20);
        let (ours, mut theirs) = socket_pair();
        let mut output = Output::default();
        (0..3).for_each(|cookie| output.push(reply(&pool, cookie, LONG)));
        let (mut got, mut cookie, mut calls) = (Vec::new(), 100, 0);
        while !output.long.is_empty() {
            while output.short.len() < 100 {
                output.push(reply(&pool, cookie, 64));
                cookie += 1;
            }
            let mut effort = Effort::of_a_turn();
            effort.copy(effort.room_for(usize::MAX) - 1000);
            let (offered, sent) = output.send_once(&ours, &effort);
            assert_eq!(sent, Ok(offered));
            output.advance(offered, &mut Sent::default());
            hear(&mut theirs, &mut got);
            calls += 1;
            assert!(calls <= 2 * 3 * (LONG / 1000 + 2), "nothing gets on");
        }
        let begun = output.sent;
        assert!(cookies(&got[..got.len() - begun], bytes_of).len() > 3 + 12);
    }

    /// Pieces of links' memory, some of them in one buffer, and others between them.
    #[test]
    fn what_is_given_back_step_by_step_stays_the_same_and_is_counted() {
        let pool = Pool::new(16 << 20);
        let links = pool.for_received();
        let mut data = SegList::new();
        for number in 0..90usize {
            let bytes: Vec<u8> = (0..7000).map(|at| (at / 100 * 7 + number) as u8).collect();
            let home = if number % 7 == 3 { &pool } else { &links };
            let frame = home.copy_of(&bytes).freeze();
            (0..=number % 3).for_each(|part| data.push(frame.slice(part * 2000, 1900)));
        }
        let (expected, all) = (data.to_vec(), data.received_bytes());
        let mut output = Output::default();
        output.push(Reply::free(ReplyHead::simple(1, None), data));
        output.count_lent();
        assert_eq!((output.lent_bytes(), pool.stats().received_bytes), (all, all));
        let mut steps = 0;
        while output.lent_bytes() > 0 {
            let mut effort = Effort::of_a_turn();
            effort.copy(effort.room_for(usize::MAX) - 1000);
            let (copied, owes) = output.give_back(0, &pool, &mut effort);
            assert!((1..=1900).contains(&copied));
            assert_eq!(owes, output.lent_bytes() > 0);
            assert_eq!(output.lent_bytes(), pool.stats().received_bytes);
            let parts: Vec<u8> = output.long[0].parts().flatten().copied().collect();
            assert!(parts[16..] == expected, "after {steps} steps");
            steps += 1;
        }
        assert!(steps > 100);
    }
}
