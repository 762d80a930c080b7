//! What a connection still has to say: replies in order, sent by reference in as few calls as the
//! socket allows.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::AsFd;

use rustix::net::{SendAncillaryBuffer, SendFlags};
use thinwire_buffer::{Pool, SegList};

use super::proto::ReplyHead;
use crate::effort::Effort;

/// Most pieces of memory handed to the kernel in one call (its own limit is 1024).
const SLICES_MAX: usize = 256;

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

    fn bytes(&self) -> usize {
        self.head.as_bytes().len() + self.data.bytes()
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

/// A queue of replies.
#[derive(Default)]
pub(super) struct Output {
    queue: VecDeque<Reply>,
    /// Bytes of the first reply that are out already.
    sent: usize,
}

impl Output {
    pub(super) fn push(&mut self, reply: Reply) {
        self.queue.push_back(reply);
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
        self.queue.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Sends what the socket takes, as far as there is `effort` for it. What is left waits for the socket to
    /// be writable.
    pub(super) fn send(&mut self, socket: impl AsFd, effort: &mut Effort) -> io::Result<Sent> {
        let mut total = Sent::default();
        while !self.queue.is_empty() && !effort.is_spent() {
            let (offered, result) = self.send_once(&socket, effort.left());
            let sent = match result {
                Ok(sent) => sent,
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => break,
                Err(error) => return Err(error.into()),
            };
            effort.copy(sent);
            self.advance(sent, &mut total);
            if sent < offered {
                break;
            }
        }
        Ok(total)
    }

    /// Sends once, at most so many bytes. Says how many it has offered to the socket, and what became of them.
    fn send_once(&self, socket: impl AsFd, bytes_max: usize) -> (usize, rustix::io::Result<usize>) {
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let mut count = 0;
        let mut offered = 0;
        let mut skip = self.sent;
        'all: for reply in &self.queue {
            let head = std::iter::once(reply.head.as_bytes());
            for part in head.chain(reply.data.iter().map(|segment| &segment[..])) {
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

    /// Lets go of the first `sent` unsent bytes.
    fn advance(&mut self, sent: usize, total: &mut Sent) {
        self.sent += sent;
        while let Some(first) = self.queue.front() {
            let bytes = first.bytes();
            if self.sent < bytes {
                return;
            }
            self.sent -= bytes;
            let reply = self.queue.pop_front().expect("a first one");
            total.replies += 1;
            total.requests += u32::from(reply.ends_request);
            total.held_bytes += reply.held_bytes;
        }
        debug_assert_eq!(self.sent, 0);
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
        }
        assert!(got == expected);
        assert!(output.is_empty());
        assert_eq!(total, Sent { replies: 700, requests: 700, held_bytes: 7000 });
        assert_eq!(pool.stats().live_bytes, 0);
    }
}
