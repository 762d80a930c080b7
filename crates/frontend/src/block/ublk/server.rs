//! What requests of the kernel mean for the volume, and the volume's completions for the kernel.

use std::io;

use thinwire_buffer::{Pool, SegList};
use thinwire_volume::{Completion, Io, Op, Volume};

use super::abi::{Descriptor, flag, op};
use crate::effort::Effort;
use crate::fuse::errno;

/// Requests of a kernel, each under a tag, which is its until it is answered.
pub trait Requests {
    /// The next one, if there is one.
    fn take(&mut self) -> Option<(u16, Descriptor)>;

    /// Copies what a write has, all of `data`.
    ///
    /// # Errors
    /// It cannot be had: the device is being taken away.
    fn bring(&mut self, tag: u16, data: &mut [u8]) -> io::Result<()>;

    /// Copies what was read, from the request's first byte on.
    ///
    /// # Errors
    /// As [`Requests::bring`].
    fn give(&mut self, tag: u16, data: &SegList) -> io::Result<()>;

    /// Answers, when [`Requests::send`] is called: bytes, or a negative errno.
    fn answer(&mut self, tag: u16, result: i32);

    /// Sends answers. Never waits. False if it is to be called again soon.
    fn send(&mut self) -> bool;
}

/// A request that the volume works on, by its tag.
#[derive(Clone, Copy, Debug)]
struct Pending {
    op: Op,
    bytes: u32,
}

/// Answers the requests of one device, of which no more are outstanding, nor of more bytes, than its queue was made for. A
/// state machine on the shard's thread, which allocates nothing once warm.
pub struct UblkServer {
    pool: Pool,
    read_only: bool,
    pending: Vec<Option<Pending>>,
    /// What the volume has done and is not answered yet, the first one last. More is asked for when it is empty.
    done: Vec<Completion>,
    has_begun: bool,
}

impl UblkServer {
    /// A server of so many tags that has answered nothing yet.
    pub fn new(depth: u16, read_only: bool, pool: Pool) -> Self {
        let pending = vec![None; depth.into()];
        UblkServer { pool, read_only, pending, done: Vec::new(), has_begun: false }
    }

    /// Answers what the volume has finished, and takes requests in, as far as a turn goes. True if something was done, or
    /// there may be more of which neither the queue nor a completion tells.
    pub fn turn(&mut self, volume: &mut dyn Volume, requests: &mut impl Requests) -> bool {
        if !std::mem::replace(&mut self.has_begun, true) {
            // Its first request may be a flush, for what others write meanwhile.
            volume.begin_user(0);
        }
        // Answers go first: requests wait well where they are, and without new ones there is an end to answers.
        let mut effort = Effort::of_a_turn();
        let mut any = self.complete(volume, requests, &mut effort);
        // Whoever waits for them goes on while requests are taken in.
        requests.send();
        while !effort.is_spent()
            && let Some((tag, descriptor)) = requests.take()
        {
            any = true;
            effort.item();
            if let Err(errno) = self.begin(tag, descriptor, volume, requests, &mut effort) {
                requests.answer(tag, -errno);
            }
        }
        // What a prompt volume has done already.
        any |= self.complete(volume, requests, &mut effort);
        let are_sent = requests.send();
        any || effort.is_spent() || !are_sent
    }

    /// Submits the I/O that a request wants.
    ///
    /// # Errors
    /// The errno to answer it with.
    fn begin(
        &mut self,
        tag: u16,
        descriptor: Descriptor,
        volume: &mut dyn Volume,
        requests: &mut impl Requests,
        effort: &mut Effort,
    ) -> Result<(), i32> {
        let Descriptor { op_flags, sectors, first_sector, .. } = descriptor;
        let op = match op_flags as u8 {
            op::READ => Op::Read,
            op::WRITE => Op::Write,
            op::FLUSH => Op::Flush,
            op::DISCARD => Op::Discard,
            op::WRITE_ZEROES => Op::WriteZeroes,
            _ => return Err(libc::EOPNOTSUPP),
        };
        if op.is_write() && self.read_only {
            return Err(libc::EROFS);
        }
        let (offset, len) = match op {
            // Of a flush they say nothing.
            Op::Flush => (0, 0),
            _ => (first_sector.checked_mul(512).ok_or(libc::EINVAL)?, u64::from(sectors) * 512),
        };
        let mut io = Io::new(tag.into(), op, offset, len);
        io.flags.fua = op.is_write() && op_flags & flag::FUA != 0;
        io.flags.no_hole = op == Op::WriteZeroes && op_flags & flag::NO_UNMAP != 0;
        let bytes = u32::try_from(io.len).map_err(|_| libc::EINVAL)?;
        match op {
            Op::Write => {
                let mut data = self.pool.get(bytes as usize);
                requests.bring(tag, &mut data).map_err(|_| libc::EIO)?;
                effort.copy(bytes as usize);
                io.data = SegList::of(data.freeze());
            }
            Op::Read => effort.read(bytes as usize),
            _ => {}
        }
        // The gate to the volume: checked here, asserted behind.
        volume.geometry().check(&io).map_err(errno)?;
        self.pending[usize::from(tag)] = Some(Pending { op, bytes });
        volume.submit(io);
        Ok(())
    }

    /// Answers what the volume has finished, as far as there is `effort` for it. True if it had.
    fn complete(
        &mut self,
        volume: &mut dyn Volume,
        requests: &mut impl Requests,
        effort: &mut Effort,
    ) -> bool {
        if self.done.is_empty() {
            volume.poll(&mut self.done);
            // They are taken from its end, so that those that are left need not be moved.
            self.done.reverse();
        }
        let any = !self.done.is_empty();
        while !effort.is_spent()
            && let Some(completion) = self.done.pop()
        {
            effort.item();
            effort.copy(completion.data.bytes());
            self.finish(completion, requests);
        }
        any
    }

    fn finish(&mut self, completion: Completion, requests: &mut impl Requests) {
        let tag = completion.token as u16;
        let Some(pending) = self.pending[usize::from(tag)].take() else {
            debug_assert!(false, "a completion nobody waits for");
            return;
        };
        let result = match completion.result {
            Err(e) => -errno(e.kind),
            Ok(()) if pending.op == Op::Read => {
                debug_assert_eq!(completion.data.bytes(), pending.bytes as usize);
                match requests.give(tag, &completion.data) {
                    Ok(()) => completion.data.bytes() as i32,
                    Err(_) => -libc::EIO,
                }
            }
            Ok(()) if pending.op == Op::Write => pending.bytes as i32,
            // Of all others nothing is counted, and they may be longer than a positive number says.
            Ok(()) => 0,
        };
        requests.answer(tag, result);
    }

    /// Fails what the volume works on, whose completions nobody looks at any more, and whatever comes: the device is to go,
    /// and that waits for each of them.
    pub fn refuse_all(&mut self, requests: &mut impl Requests) {
        self.done.clear();
        for (tag, pending) in (0..).zip(&mut self.pending) {
            if pending.take().is_some() {
                requests.answer(tag, -libc::EIO);
            }
        }
        requests.send();
        while let Some((tag, _)) = requests.take() {
            requests.answer(tag, -libc::EIO);
        }
        requests.send();
    }
}

#[cfg(test)]
mod tests;
