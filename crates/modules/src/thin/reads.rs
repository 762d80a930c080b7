//! Reads of one block that is mapped, as most are: nothing is kept of them but what is outstanding below. All others are [jobs](super::jobs::Job).

use thinwire_volume::{Completion, Io, IoFlags, Op, Token};

use super::drive::{Sub, is_final};
use super::{Core, PoolCanary};

/// A read as it came, whose block is where it was found as long as data was lost no more often than then.
pub(super) struct OneBlock {
    pub slot: u32,
    token: Token,
    flags: IoFlags,
    user: u8,
    offset: u64,
    len: u64,
    /// Where it goes.
    data: u64,
    losses: u32,
}

/// Who has a lock: a job, or a read that is none. Those of both are told apart, and only jobs ever wait.
pub(super) fn owner_of_job(id: u32) -> u32 {
    id << 1
}

/// The job that has waited for this one.
pub(super) fn job_of(owner: u32) -> u32 {
    owner >> 1
}

fn owner_of_read(sub: u32) -> u32 {
    sub << 1 | 1
}

impl Core {
    /// Sends a read down, if it is of one block of which is known where it is, and that nobody is about to change. False if there is more to it.
    #[inline]
    pub(super) fn read_at_once(&mut self, slot: u32, io: &Io) -> bool {
        let &Io { token, flags, user, offset, len, .. } = io;
        let shift = self.head.block_shift;
        let block = offset >> shift;
        let to = self.slots.get_mut(slot);
        let is_one = (offset + len - 1) >> shift == block;
        if !is_one
            || !to.locks.is_free(block, block + 1)
            || self.canary == PoolCanary::ReadsUnlocked
        {
            return false;
        }
        let volume = to.volume;
        let row = self.row_of(volume);
        let Ok(Some(mapping)) = self.trees.lookup(row.blocks(), block) else { return false };
        let data = self.place_of(&mapping, offset);
        let losses = self.commits.losses;
        let read = OneBlock { slot, token, flags, user, offset, len, data, losses };
        let sub = self.subs.insert(Sub::Read(read));
        let to = self.slots.get_mut(slot);
        let is_held = to.locks.acquire(owner_of_read(sub), block, block + 1, false);
        debug_assert!(is_held, "it was free");
        to.jobs += 1;
        self.users_ios += 1;
        self.has_sent = true;
        self.data.submit(Io { flags, ..Io::new(sub.into(), Op::Read, data, len) });
        true
    }

    /// It has ended, which had this number.
    #[inline]
    pub(super) fn end_read(&mut self, sub: u32, read: &OneBlock, mut completion: Completion) {
        let slot = read.slot;
        let to = self.slots.get_mut(slot);
        to.locks.release(owner_of_read(sub), &mut self.granted);
        self.ripe.extend(self.granted.drain(..).map(job_of));
        to.jobs -= 1;
        self.users_ios -= 1;
        if let Err(error) = &mut completion.result {
            error.offset = error.offset.wrapping_add(read.offset.wrapping_sub(read.data));
            if is_final(error.kind) {
                let (kind, why) =
                    (error.kind, format!("the data part is not there any more: {error}"));
                self.stop(kind, why);
            }
        } else if read.losses != self.commits.losses && !to.is_closed {
            return self.read_again(read);
        }
        completion.token = read.token;
        let to = self.slots.get_mut(slot);
        self.woken.extend(to.wakes());
        to.put_ready(completion);
        self.close_if_gone(slot);
    }

    /// What was read may be of a block that is not the volume's any more, since data was lost meanwhile.
    #[cold]
    fn read_again(&mut self, read: &OneBlock) {
        let &OneBlock { slot, token, flags, user, offset, len, .. } = read;
        self.begin(slot, Io { flags, user, ..Io::new(token, Op::Read, offset, len) });
    }
}
