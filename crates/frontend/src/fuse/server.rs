//! What the kernel's requests mean for the volume, and the volume's completions for the kernel.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{SystemTime, UNIX_EPOCH};

use thinwire_buffer::SegList;
use thinwire_volume::{Completion, Extent, Geometry, Io, Op, Volume};
use zerocopy::{FromBytes, IntoBytes};

use super::abi::{self, opcode, set};
use super::channel::{Channel, ChannelEvent, FuseRequest};
use super::error::errno;
use super::opens::Opens;
use crate::effort::Effort;

/// Requests that may be outstanding at the volume.
const REQUESTS_MAX: usize = 1024;

/// Bytes of reads and writes that may be outstanding at the volume: what writes pin and reads
/// will fill.
const PAYLOAD_BYTES_MAX: u64 = 64 << 20;

/// Asynchronous requests that the kernel sends before it holds back (its own default is 12).
const BACKGROUND_MAX: u16 = 256;

/// How far one question for holes looks.
const STATUS_BYTES_MAX: u64 = 1 << 30;

/// The block that statfs reports; the loop driver takes it as the granularity of discards.
const STATFS_BLOCK_BYTES: u64 = 4096;

/// How the file looks.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Type and permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Writes are refused.
    pub read_only: bool,
    /// The longest read or write; a power of two.
    pub transfer_bytes_max: u32,
}

/// A request that the volume works on.
#[derive(Clone, Copy, Debug)]
struct Pending {
    unique: u64,
    what: What,
    user: u8,
    /// Counted against [`PAYLOAD_BYTES_MAX`].
    payload: u64,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Read {
        len: u64,
    },
    Write {
        len: u64,
    },
    Zero,
    Flush,
    /// Looking from `at` on for the first hole, or the first data.
    Seek {
        hole: bool,
        at: u64,
    },
}

/// Answers the requests of one mount. A state machine on the shard's thread.
pub struct FuseServer {
    channel: Channel,
    shape: Shape,
    /// The volume's size when last asked.
    bytes: u64,
    preferred_bytes: u32,
    mounted_at: SystemTime,
    opens: Opens,
    /// By token. Slots are reused, so nothing is allocated once warm.
    pending: Vec<Option<Pending>>,
    free: Vec<usize>,
    payload: u64,
    writes_outstanding: usize,
    flushes_outstanding: usize,
    /// What the volume has done and is not answered yet, the first one last. More is asked for when it is empty.
    done: Vec<Completion>,
}

impl FuseServer {
    /// A server that has answered nothing yet.
    pub fn new(channel: Channel, shape: Shape, geometry: Geometry) -> Self {
        FuseServer {
            channel,
            shape,
            bytes: geometry.bytes,
            preferred_bytes: geometry.preferred_bytes,
            mounted_at: SystemTime::now(),
            opens: Opens::new(),
            pending: Vec::new(),
            free: Vec::new(),
            payload: 0,
            writes_outstanding: 0,
            flushes_outstanding: 0,
            done: Vec::new(),
        }
    }

    /// How often the file is open.
    pub fn opens(&self) -> usize {
        self.opens.count()
    }

    /// Too much is outstanding to take in more.
    pub fn is_full(&self) -> bool {
        self.pending.len() - self.free.len() >= REQUESTS_MAX || self.payload >= PAYLOAD_BYTES_MAX
    }

    /// The FUSE device.
    pub fn device(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    /// Answers what the volume has finished, and takes requests in, as far as a turn goes. True if there may be
    /// more of which neither the device nor a completion tells. `None` if the connection has ended.
    ///
    /// # Errors
    /// If the device fails, or the kernel speaks a protocol that is too old to go on.
    pub fn turn(&mut self, volume: &mut dyn Volume) -> io::Result<Option<bool>> {
        // Answers go first: requests wait well where they are, and without new ones there is an end to answers.
        let mut effort = Effort::of_a_turn();
        self.complete(volume, &mut effort);
        // Whoever waits for them goes on while requests are taken in.
        self.channel.send();
        while !effort.is_spent() && !self.is_full() {
            match self.channel.receive()? {
                ChannelEvent::Request(request) => self.handle(request, volume, &mut effort)?,
                ChannelEvent::Empty => break,
                ChannelEvent::Gone => return Ok(None),
            }
        }
        // What a prompt volume has done already; looking for a hole may have asked it for more.
        let any = self.complete(volume, &mut effort);
        let are_sent = self.channel.send();
        Ok(Some(any || effort.is_spent() || !are_sent))
    }

    /// Acts on one request: answers it, or submits an I/O whose completion will.
    ///
    /// # Errors
    /// Only if the kernel speaks a protocol that is too old to go on.
    fn handle(
        &mut self,
        request: FuseRequest,
        volume: &mut dyn Volume,
        effort: &mut Effort,
    ) -> io::Result<()> {
        effort.item();
        effort.copy(request.data.bytes());
        let unique = request.header.unique;
        let outcome = match request.header.opcode {
            opcode::INIT => return self.init(&request),
            opcode::FORGET | opcode::BATCH_FORGET => return Ok(()),
            opcode::DESTROY => self.answer(unique, &[]),
            opcode::STATFS => self.statfs(unique),
            opcode::IOCTL => Err(libc::ENOTTY),
            opcode::LOOKUP => Err(libc::ENOTDIR),
            _ if request.header.nodeid != abi::ROOT_NODE => Err(libc::ENOSYS),
            opcode::GETATTR => self.getattr(unique, volume),
            opcode::SETATTR => self.setattr(&request, volume),
            opcode::OPEN => self.open(unique, volume),
            opcode::RELEASE => self.release(&request, volume),
            opcode::READ => self.read(&request, volume, effort),
            opcode::WRITE => self.write(request, volume),
            opcode::FLUSH => self.flush(&request, false, volume),
            opcode::FSYNC => self.flush(&request, true, volume),
            opcode::FALLOCATE => self.fallocate(&request, volume),
            opcode::LSEEK => self.lseek(&request, volume),
            // The kernel remembers ENOSYS and does not ask again: it does locks, extended
            // attributes, polling and the like by itself, or without.
            _ => Err(libc::ENOSYS),
        };
        if let Err(errno) = outcome {
            self.channel.reply_error(unique, errno);
        }
        Ok(())
    }

    /// Answers what the volume has finished, as far as there is `effort` for it. True if it had.
    fn complete(&mut self, volume: &mut dyn Volume, effort: &mut Effort) -> bool {
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
            self.finish(completion, volume);
        }
        any
    }

    fn answer(&mut self, unique: u64, body: &[u8]) -> Result<(), i32> {
        self.channel.reply(unique, body);
        Ok(())
    }

    fn init(&mut self, request: &FuseRequest) -> io::Result<()> {
        let unique = request.header.unique;
        let offer: abi::InitIn = match args(request) {
            Ok(offer) => offer,
            Err(errno) => {
                self.channel.reply_error(unique, errno);
                return Ok(());
            }
        };
        if (offer.major, offer.minor) < (abi::MAJOR, abi::MINOR_MIN) {
            self.channel.reply_error(unique, libc::EPROTO);
            // There is no end of this turn.
            self.channel.send();
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!(
                    "the kernel speaks FUSE {}.{}, at least {}.{} is needed (Linux 3.15); \
                     use --nbd there",
                    offer.major,
                    offer.minor,
                    abi::MAJOR,
                    abi::MINOR_MIN
                ),
            ));
        }
        let wanted =
            abi::INIT_ASYNC_READ | abi::INIT_BIG_WRITES | abi::INIT_ASYNC_DIO | abi::INIT_MAX_PAGES;
        let reply = abi::InitOut {
            major: abi::MAJOR,
            minor: abi::MINOR,
            max_readahead: offer.max_readahead,
            flags: offer.flags & wanted,
            max_background: BACKGROUND_MAX,
            congestion_threshold: BACKGROUND_MAX / 4 * 3,
            max_write: self.shape.transfer_bytes_max,
            time_gran: 1,
            max_pages: (self.shape.transfer_bytes_max / 4096) as u16,
            map_alignment: 0,
            flags2: 0,
            unused: [0; 7],
        };
        self.channel.reply(unique, reply.as_bytes());
        Ok(())
    }

    fn attributes(&mut self, volume: &dyn Volume) -> abi::AttrOut {
        self.bytes = volume.geometry().bytes;
        let since = self.mounted_at.duration_since(UNIX_EPOCH).unwrap_or_default();
        let (time, nsec) = (since.as_secs(), since.subsec_nanos());
        abi::AttrOut {
            // Never cached: the volume may grow.
            attr_valid: 0,
            attr_valid_nsec: 0,
            dummy: 0,
            attr: abi::Attr {
                ino: abi::ROOT_NODE,
                size: self.bytes,
                blocks: self.bytes / 512,
                atime: time,
                mtime: time,
                ctime: time,
                atimensec: nsec,
                mtimensec: nsec,
                ctimensec: nsec,
                mode: self.shape.mode,
                nlink: 1,
                uid: self.shape.uid,
                gid: self.shape.gid,
                rdev: 0,
                blksize: self.preferred_bytes.clamp(4096, self.shape.transfer_bytes_max),
                flags: 0,
            },
        }
    }

    fn getattr(&mut self, unique: u64, volume: &dyn Volume) -> Result<(), i32> {
        let attributes = self.attributes(volume);
        self.answer(unique, attributes.as_bytes())
    }

    /// Owner and mode may be changed as on a device node, for as long as it is mounted. Times are
    /// accepted and forgotten. The size stays: opening with O_TRUNC (a size of zero, without a file
    /// handle) is ignored as on a block device, any other change is refused.
    fn setattr(&mut self, request: &FuseRequest, volume: &dyn Volume) -> Result<(), i32> {
        let wish: abi::SetattrIn = args(request)?;
        self.bytes = volume.geometry().bytes;
        if wish.valid & set::SIZE != 0 {
            let truncating_open = wish.size == 0 && wish.valid & set::FH == 0;
            if wish.size != self.bytes && !truncating_open {
                return Err(libc::EINVAL);
            }
        }
        if wish.valid & set::MODE != 0 {
            self.shape.mode = libc::S_IFREG | (wish.mode & 0o7777);
        }
        if wish.valid & set::UID != 0 {
            self.shape.uid = wish.uid;
        }
        if wish.valid & set::GID != 0 {
            self.shape.gid = wish.gid;
        }
        self.getattr(request.header.unique, volume)
    }

    fn open(&mut self, unique: u64, volume: &mut dyn Volume) -> Result<(), i32> {
        let fh = self.opens.add();
        // Its first request may be a sync, for what others write meanwhile.
        volume.begin_user(self.opens.user(fh));
        let flags = abi::OPEN_DIRECT_IO | abi::OPEN_PARALLEL_DIRECT_WRITES;
        let reply = abi::OpenOut { fh, open_flags: flags, backing_id: 0 };
        self.answer(unique, reply.as_bytes())
    }

    fn release(&mut self, request: &FuseRequest, volume: &mut dyn Volume) -> Result<(), i32> {
        // Its handle comes first, as with all that have one.
        let ended = self.opens.remove(args(request)?);
        ended.into_iter().for_each(|user| volume.end_user(user));
        self.answer(request.header.unique, &[])
    }

    fn statfs(&mut self, unique: u64) -> Result<(), i32> {
        let reply = abi::StatfsOut {
            blocks: self.bytes / STATFS_BLOCK_BYTES,
            bfree: 0,
            bavail: 0,
            files: 1,
            ffree: 0,
            bsize: STATFS_BLOCK_BYTES as u32,
            namelen: 255,
            frsize: STATFS_BLOCK_BYTES as u32,
            padding: 0,
            spare: [0; 6],
        };
        self.answer(unique, reply.as_bytes())
    }

    fn read(
        &mut self,
        request: &FuseRequest,
        volume: &mut dyn Volume,
        effort: &mut Effort,
    ) -> Result<(), i32> {
        let wish: abi::TransferIn = args(request)?;
        self.bytes = volume.geometry().bytes;
        let len = u64::from(wish.size).min(self.bytes.saturating_sub(wish.offset));
        if len == 0 {
            return self.answer(request.header.unique, &[]);
        }
        let mut io = Io::new(0, Op::Read, wish.offset, len);
        io.user = self.opens.user(wish.fh);
        effort.read(len as usize);
        self.submit(request.header.unique, What::Read { len }, io, volume)
    }

    fn write(&mut self, request: FuseRequest, volume: &mut dyn Volume) -> Result<(), i32> {
        let wish: abi::TransferIn = args(&request)?;
        self.writable()?;
        if request.data.bytes() as u64 != u64::from(wish.size) {
            return Err(libc::EIO);
        }
        if wish.size == 0 {
            let reply = abi::WriteOut { size: 0, padding: 0 };
            return self.answer(request.header.unique, reply.as_bytes());
        }
        self.bytes = volume.geometry().bytes;
        let len = u64::from(wish.size).min(self.bytes.saturating_sub(wish.offset));
        if len == 0 {
            return Err(libc::ENOSPC);
        }
        let mut io = Io::new(0, Op::Write, wish.offset, len);
        io.user = self.opens.user(wish.fh);
        io.flags.fua = wish.flags as i32 & libc::O_DSYNC != 0;
        if len == u64::from(wish.size) {
            io.data = request.data;
        } else {
            request.data.slice_into(0, len as usize, &mut io.data);
        }
        self.submit(request.header.unique, What::Write { len }, io, volume)
    }

    /// `always` for fsync; close(2) only has to flush if something was written, so that a reader's
    /// close never waits for the target.
    fn flush(
        &mut self,
        request: &FuseRequest,
        always: bool,
        volume: &mut dyn Volume,
    ) -> Result<(), i32> {
        let (unique, user) = (request.header.unique, self.opens.user(args(request)?));
        let is_idle = self.writes_outstanding == 0 && self.flushes_outstanding == 0;
        let has_nothing = is_idle && !self.opens.is_unflushed(user);
        if self.shape.read_only || (has_nothing && !always) {
            return self.answer(unique, &[]);
        }
        let mut io = Io::new(0, Op::Flush, 0, 0);
        io.user = user;
        self.submit(unique, What::Flush, io, volume)
    }

    /// Punching a hole must leave zeroes, which a discard does not promise: both of the modes that
    /// we know are write-zeroes, with and without leave to free the space.
    fn fallocate(&mut self, request: &FuseRequest, volume: &mut dyn Volume) -> Result<(), i32> {
        let wish: abi::FallocateIn = args(request)?;
        self.writable()?;
        let mode = wish.mode as i32;
        let no_hole = if mode == libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE {
            false
        } else if mode & !libc::FALLOC_FL_KEEP_SIZE == libc::FALLOC_FL_ZERO_RANGE {
            true
        } else {
            return Err(libc::EOPNOTSUPP);
        };
        self.bytes = volume.geometry().bytes;
        let room = self.bytes.saturating_sub(wish.offset);
        if wish.length > room && mode & libc::FALLOC_FL_KEEP_SIZE == 0 {
            return Err(libc::ENOSPC);
        }
        let len = wish.length.min(room);
        if len == 0 {
            return self.answer(request.header.unique, &[]);
        }
        let mut io = Io::new(0, Op::WriteZeroes, wish.offset, len);
        io.flags.no_hole = no_hole;
        io.user = self.opens.user(wish.fh);
        self.submit(request.header.unique, What::Zero, io, volume)
    }

    fn lseek(&mut self, request: &FuseRequest, volume: &mut dyn Volume) -> Result<(), i32> {
        let wish: abi::LseekIn = args(request)?;
        let hole = match wish.whence as i32 {
            libc::SEEK_HOLE => true,
            libc::SEEK_DATA => false,
            _ => return Err(libc::EINVAL),
        };
        if !volume.geometry().features.block_status {
            return Err(libc::ENOSYS);
        }
        self.bytes = volume.geometry().bytes;
        let user = self.opens.user(wish.fh);
        self.seek_from((request.header.unique, user), hole, wish.offset, volume)
    }

    fn seek_from(
        &mut self,
        (unique, user): (u64, u8),
        hole: bool,
        at: u64,
        volume: &mut dyn Volume,
    ) -> Result<(), i32> {
        if at >= self.bytes {
            return Err(libc::ENXIO);
        }
        let len = (self.bytes - at).min(STATUS_BYTES_MAX);
        let mut io = Io::new(0, Op::BlockStatus, at, len);
        io.user = user;
        self.submit(unique, What::Seek { hole, at }, io, volume)
    }

    fn writable(&self) -> Result<(), i32> {
        if self.shape.read_only { Err(libc::EROFS) } else { Ok(()) }
    }

    /// The gate to the volume: checked here, asserted behind.
    fn submit(
        &mut self,
        unique: u64,
        what: What,
        mut io: Io,
        volume: &mut dyn Volume,
    ) -> Result<(), i32> {
        volume.geometry().check(&io).map_err(errno)?;
        match what {
            What::Write { .. } | What::Zero => self.writes_outstanding += 1,
            What::Flush => {
                self.flushes_outstanding += 1;
                self.opens.set_unflushed(io.user, false);
            }
            What::Read { .. } | What::Seek { .. } => {}
        }
        let payload = match what {
            What::Read { len } | What::Write { len } => len,
            _ => 0,
        };
        self.payload += payload;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.pending.push(None);
            self.pending.len() - 1
        });
        self.pending[slot] = Some(Pending { unique, what, user: io.user, payload });
        io.token = slot as u64;
        volume.submit(io);
        Ok(())
    }

    fn finish(&mut self, completion: Completion, volume: &mut dyn Volume) {
        let slot = completion.token as usize;
        let Some(Pending { unique, what, user, payload }) =
            self.pending.get_mut(slot).and_then(Option::take)
        else {
            debug_assert!(false, "a completion nobody waits for");
            return;
        };
        self.free.push(slot);
        self.payload -= payload;
        let result = completion.result.map_err(|e| errno(e.kind));
        let outcome = match what {
            What::Read { len } => {
                result.and_then(|()| self.read_done(unique, len, completion.data))
            }
            What::Write { len } => {
                self.writes_outstanding -= 1;
                self.opens.set_unflushed(user, true);
                result.and_then(|()| {
                    let reply = abi::WriteOut { size: len as u32, padding: 0 };
                    self.answer(unique, reply.as_bytes())
                })
            }
            What::Zero => {
                self.writes_outstanding -= 1;
                self.opens.set_unflushed(user, true);
                result.and_then(|()| self.answer(unique, &[]))
            }
            What::Flush => {
                self.flushes_outstanding -= 1;
                if result.is_err() {
                    self.opens.set_unflushed(user, true);
                }
                result.and_then(|()| self.answer(unique, &[]))
            }
            What::Seek { hole, at } => {
                let whose = (unique, user);
                result.and_then(|()| self.seek_done(whose, hole, at, &completion.extents, volume))
            }
        };
        if let Err(errno) = outcome {
            self.channel.reply_error(unique, errno);
        }
    }

    fn read_done(&mut self, unique: u64, len: u64, data: SegList) -> Result<(), i32> {
        if data.bytes() as u64 != len {
            debug_assert!(false, "a read of {len} bytes brought {}", data.bytes());
            return Err(libc::EIO);
        }
        self.channel.reply_data(unique, data);
        Ok(())
    }

    fn seek_done(
        &mut self,
        (unique, user): (u64, u8),
        hole: bool,
        at: u64,
        extents: &[Extent],
        volume: &mut dyn Volume,
    ) -> Result<(), i32> {
        let (found, at) = first_of_kind(hole, at, extents);
        if found || (hole && at >= self.bytes) {
            // There is a hole behind the end of every file.
            let reply = abi::LseekOut { offset: at.min(self.bytes) };
            return self.answer(unique, reply.as_bytes());
        }
        self.seek_from((unique, user), hole, at, volume)
    }
}

/// Where the first hole (or data) begins, or else where the extents end. What reads as zeroes is a
/// hole to lseek, allocated or not; a hole of unspecified content is not.
fn first_of_kind(hole: bool, mut at: u64, extents: &[Extent]) -> (bool, u64) {
    for extent in extents {
        if extent.zero == hole {
            return (true, at);
        }
        at += extent.len;
    }
    (false, at)
}

fn args<T: FromBytes>(request: &FuseRequest) -> Result<T, i32> {
    request.args().ok_or(libc::EIO)
}

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;
