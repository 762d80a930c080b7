//! Reads that one leg answers, as nearly all do: nothing is kept of them but what is outstanding there. What else becomes of one needs a [`Job`].

use thinwire_buffer::Time;
use thinwire_volume::{Completion, Io, IoFlags, Op, Token};

use super::jobs::{Job, Sub, Whose};
use super::lateness::Kind;
use super::legs::quickest;
use super::regions::Beside;
use super::{Mirror, MirrorCanary, Task, bits};

/// A user's read, or block status, as it came: nothing has held it up, and no leg has failed it.
#[derive(Clone, Copy)]
pub(super) struct AskedOnce {
    token: Token,
    op: Op,
    flags: IoFlags,
    user: u8,
    pub offset: u64,
    pub len: u64,
}

impl AskedOnce {
    fn of(io: &Io) -> Self {
        let &Io { token, op, flags, user, offset, len, .. } = io;
        AskedOnce { token, op, flags, user, offset, len }
    }

    /// What it needs when it is no such read any more: one leg has it.
    pub fn into_job(self) -> Job {
        let AskedOnce { token, op, flags, user, offset, len } = self;
        let io = Io { flags, user, ..Io::new(token, op, offset, len) };
        Job { pending: 1, ..Job::new(Task::User, io) }
    }
}

impl Mirror {
    /// Legs that have what counts of a range.
    #[inline]
    pub(super) fn readable(&self, offset: u64, len: u64) -> u8 {
        match self.canary {
            MirrorCanary::TwoTruths => self.active,
            _ if self.config.read_only => {
                // What was open at a crash one leg has, and no record says which.
                let touched = self.regions.of(offset, len);
                let stale = touched.fold(0, |legs, region| legs | self.regions.stale(region));
                self.in_sync & !stale
            }
            _ => self.in_sync,
        }
    }

    /// How a leg is asked for what a user reads: another one may have better than bytes that fit no sum, as long as there is one,
    /// also if that is being copied to.
    #[inline]
    pub(super) fn flags_of_read(&self, op: Op, flags: IoFlags) -> IoFlags {
        let is_one_of_several =
            !self.active.is_power_of_two() && self.canary != MirrorCanary::UnverifiedSource;
        IoFlags { verified: flags.verified || op == Op::Read && is_one_of_several, ..flags }
    }

    /// Sends a read to the leg that is expected to answer first, if nobody writes there. False if there is more to it.
    #[inline]
    pub(super) fn ask_once(&mut self, io: &Io) -> bool {
        let among = self.readable(io.offset, io.len);
        let beside = self.regions.reader(self.regions.of(io.offset, io.len), among);
        let is_planted =
            matches!(self.canary, MirrorCanary::TwoTruths | MirrorCanary::ReadsBesideWrites);
        if !matches!(beside, Beside::Nobody) || is_planted {
            return false;
        }
        let Some(leg) = quickest(&self.legs, among, self.reads + 1) else { return false };
        let flags = self.flags_of_read(io.op, io.flags);
        let Some(to) = &mut self.legs[leg] else { return false };
        self.reads += 1;
        let sub = self.subs.insert(Sub {
            leg: leg as u8,
            whose: Whose::Read(AskedOnce::of(io)),
            kind: Kind::Read,
            since: Time::NEVER,
            is_orphan: false,
            is_telling: true,
            leaves: None,
        });
        self.watch.add(sub);
        to.outstanding += 1;
        let offset = io.offset + to.label.data_start;
        to.volume.submit(Io { flags, ..Io::new(sub.into(), io.op, offset, io.len) });
        self.has_sent = true;
        true
    }

    /// What a leg has said is the answer.
    #[inline]
    pub(super) fn end_read(&mut self, read: AskedOnce, mut completion: Completion) {
        self.on_shown(read.offset, read.len);
        completion.token = read.token;
        self.put_ready(completion);
    }

    /// What these legs are being asked for once is as any other I/O from now on.
    pub(super) fn keep_reads(&mut self, legs: u8) {
        for (_, sub) in self.subs.iter_mut() {
            if let Whose::Read(read) = sub.whose
                && legs >> sub.leg & 1 == 1
            {
                sub.whose = Whose::Job(self.jobs.insert(read.into_job()));
            }
        }
    }

    /// Legs of which one may be read beside a write that begins there. What is being read there by now may see it: so none is, if
    /// that comes from several.
    pub(super) fn readers(&mut self, region: u32) -> u8 {
        let mut asked = 0_u8;
        for (_, sub) in self.subs.iter_mut().filter(|(_, sub)| !sub.is_orphan) {
            let read = match sub.whose {
                Whose::Read(AskedOnce { offset, len, .. }) => Some((offset, len)),
                Whose::Job(job) => {
                    let Job { task, io, .. } = self.jobs.get_mut(job);
                    let reads = matches!(io.op, Op::Read | Op::BlockStatus);
                    (matches!(task, Task::User) && reads).then_some((io.offset, io.len))
                }
            };
            if read.is_some_and(|(offset, len)| self.regions.of(offset, len).contains(&region)) {
                asked |= 1 << sub.leg;
            }
        }
        match asked.count_ones() {
            0 => self.in_sync,
            1 => self.in_sync & asked,
            _ => 0,
        }
    }

    /// As [`Mirror::ask_once`], of what is a job by now: of those that have not failed it. False if there is none.
    pub(super) fn ask(&mut self, id: u32) -> bool {
        self.reads += 1;
        let Io { offset, len, .. } = self.jobs.get_mut(id).io;
        let among = self.readable(offset, len);
        let job = self.jobs.get_mut(id);
        let can_be_asked = among & !job.failed;
        let beside = match self.canary {
            MirrorCanary::ReadsBesideWrites => Beside::Nobody,
            _ if job.is_locked => Beside::Nobody,
            _ => self.regions.reader(self.regions.of(offset, len), can_be_asked),
        };
        match beside {
            Beside::Nobody => {}
            _ if can_be_asked == 0 => return false,
            Beside::Leg(leg) => {
                self.send_read(id, usize::from(leg));
                return true;
            }
            Beside::Wait => {
                job.is_locked = true;
                // Else it is asked when it has its range.
                return !self.locks.acquire(id, offset, offset + len, false) || self.ask(id);
            }
        }
        let leg = match self.canary {
            // At another one each time, and not always the same of a whole pass over all blocks.
            MirrorCanary::TwoTruths => {
                let nth = self.reads ^ self.reads >> 3 ^ self.reads >> 6;
                bits(can_be_asked).nth(nth as usize % among.count_ones() as usize)
            }
            _ => quickest(&self.legs, can_be_asked, self.reads),
        };
        let Some(leg) = leg else { return false };
        self.send_read(id, leg);
        true
    }

    fn send_read(&mut self, id: u32, leg: usize) {
        let Io { op, flags, offset, len, .. } = self.jobs.get_mut(id).io;
        let flags = self.flags_of_read(op, flags);
        self.send_data(leg, id, Io { flags, ..Io::new(0, op, offset, len) });
    }
}
