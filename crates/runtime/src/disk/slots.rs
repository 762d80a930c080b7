//! Operations on their way through the kernel: who owns the memory, what is left to do.

use std::os::fd::RawFd;

use thinwire_volume::{DiskOp, DiskOpKind};

/// One call of the kernel writes at most this many pieces (IOV_MAX).
const PIECES_MAX: usize = 1024;

/// Reads that continue each other are joined up to so many bytes: it saves most of what a small one costs, and a
/// large one's first bytes should not wait for its last.
const JOINED_BYTES_MAX: u64 = 128 << 10;

fn is_read(op: &DiskOp) -> bool {
    matches!(op.kind, DiskOpKind::Read(_))
}

/// One system call, with pointers into memory that the slot owns until the call has ended.
#[derive(Clone, Copy, Debug)]
pub(super) enum SystemCall {
    /// pread.
    Read { at: *mut u8, len: u32, offset: u64 },
    /// preadv.
    ReadPieces { pieces: *const libc::iovec, count: u32, offset: u64 },
    /// pwritev2.
    Write { pieces: *const libc::iovec, count: u32, offset: u64, durable: bool },
    /// fdatasync.
    Sync,
    /// None: [`super::engine::PAUSE_TIME`] passes.
    Pause,
    /// None: it ends at once.
    Nothing,
    /// Waits until another descriptor is readable.
    Bell(RawFd),
    /// fallocate.
    Allocate { mode: i32, offset: u64, len: u64 },
}

/// What comes after a system call.
pub(super) enum Step {
    /// The operation has ended.
    Done(DiskOp, Result<(), i32>),
    /// Another call is needed for the rest.
    Again,
    /// Those that were joined in one call must have one each: it does not tell which of them failed.
    Apart,
}

/// One operation in flight. It owns the memory that the kernel reads or fills, and the list of
/// pieces that describes it; neither may be touched while a call runs.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    op: Option<DiskOp>,
    /// Bytes that earlier calls have moved.
    moved: u64,
    pieces: Vec<libc::iovec>,
    /// The slot of the read that is done by the same call, behind this one.
    pub next: Option<u32>,
    /// Bytes of those, all together; of the first.
    joined: u64,
}

impl InFlight {
    /// Takes an operation in.
    pub fn load(&mut self, op: DiskOp) {
        debug_assert!(self.op.is_none() && self.next.is_none());
        (self.moved, self.joined) = (0, 0);
        self.op = Some(op);
    }

    /// How many bytes the reads of this slot's call are, if `op` continues them, with it; nothing if it does
    /// not, or that would be more than one call should read.
    pub fn would_join(&self, op: &DiskOp) -> Option<u64> {
        let own = self.op.as_ref().filter(|own| is_read(own) && is_read(op))?;
        let so_far = self.joined.max(own.len);
        let joined = so_far + op.len;
        (own.offset + so_far == op.offset && joined <= JOINED_BYTES_MAX).then_some(joined)
    }

    /// So many bytes are read by this slot's call, with those that were joined to it.
    pub fn join(&mut self, joined: u64) {
        self.joined = joined;
    }

    /// It is done by a call of its own. The slot of the next one that was joined with it.
    pub fn part(&mut self) -> Option<u32> {
        (self.moved, self.joined) = (0, 0);
        self.next.take()
    }

    /// Its operation, which has ended with the call of another slot, and the next such.
    pub fn take(&mut self) -> (DiskOp, Option<u32>) {
        (self.op.take().expect("a loaded slot"), self.next.take())
    }

    /// Appends the memory of this read behind the first `skip` bytes, less which `skip` is then.
    pub fn push_piece(&mut self, skip: &mut usize, pieces: &mut Vec<libc::iovec>) {
        let Some(DiskOp { kind: DiskOpKind::Read(buf), .. }) = &mut self.op else {
            unreachable!("only reads are joined")
        };
        let done = (*skip).min(buf.len());
        *skip -= done;
        let rest = &mut buf[done..];
        if !rest.is_empty() {
            pieces.push(libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() });
        }
    }

    /// The call for those that are joined: [`InFlight::push_piece`] of each has filled the list.
    pub fn request_joined(&mut self, pieces: Vec<libc::iovec>) -> SystemCall {
        let op = self.op.as_ref().expect("a loaded slot");
        self.pieces = pieces;
        let count = self.pieces.len() as u32;
        let pieces = self.pieces.as_mut_ptr().cast_const();
        SystemCall::ReadPieces { pieces, count, offset: op.offset + self.moved }
    }

    /// For [`InFlight::request_joined`]: an empty list, and the bytes that need no piece any more.
    pub fn take_pieces(&mut self) -> (Vec<libc::iovec>, usize) {
        self.pieces.clear();
        (std::mem::take(&mut self.pieces), self.moved as usize)
    }

    /// The next system call for this operation. The pointers in it stay valid until
    /// [`InFlight::advance`] is called: the operation is not moved out or changed before.
    pub fn request(&mut self) -> SystemCall {
        let op = self.op.as_mut().expect("a loaded slot");
        let offset = op.offset + self.moved;
        match &mut op.kind {
            DiskOpKind::Read(buf) => {
                assert_eq!(buf.len() as u64, op.len, "a read fills its buffer");
                let rest = &mut buf[self.moved as usize..];
                SystemCall::Read { at: rest.as_mut_ptr(), len: rest.len() as u32, offset }
            }
            DiskOpKind::Write { data, fua } => {
                self.pieces.clear();
                let mut skip = self.moved as usize;
                for segment in data.iter() {
                    if skip >= segment.len() {
                        skip -= segment.len();
                        continue;
                    }
                    if self.pieces.len() == PIECES_MAX {
                        break;
                    }
                    let rest = &segment[skip..];
                    skip = 0;
                    self.pieces.push(libc::iovec {
                        iov_base: rest.as_ptr().cast_mut().cast(),
                        iov_len: rest.len(),
                    });
                }
                SystemCall::Write {
                    pieces: self.pieces.as_ptr(),
                    count: self.pieces.len() as u32,
                    offset,
                    durable: *fua,
                }
            }
            DiskOpKind::Flush => SystemCall::Sync,
            DiskOpKind::PunchHole => SystemCall::Allocate {
                mode: libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
                offset,
                len: op.len,
            },
            DiskOpKind::ZeroRange => SystemCall::Allocate {
                mode: libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE,
                offset,
                len: op.len,
            },
            DiskOpKind::BlockStatus(_)
            | DiskOpKind::LoadWriter(_)
            | DiskOpKind::StoreWriter(_)
            | DiskOpKind::KeepSize => unreachable!("a thread does this"),
        }
    }

    /// Takes in the result of a call: a count or a negative errno.
    pub fn advance(&mut self, result: i32) -> Step {
        let op = self.op.as_ref().expect("a loaded slot");
        let len = self.joined.max(op.len);
        let transfer = matches!(op.kind, DiskOpKind::Read(_) | DiskOpKind::Write { .. });
        if result == -libc::EINTR || result == -libc::EAGAIN {
            return Step::Again;
        }
        if self.next.is_some() && result <= 0 {
            return Step::Apart;
        }
        if result < 0 {
            // The rest of a file that was cut at an odd place cannot be asked for directly.
            let cut = result == -libc::EINVAL && self.moved > 0;
            return self.done(Err(if cut { libc::EIO } else { -result }));
        }
        if !transfer {
            return self.done(Ok(()));
        }
        if result == 0 && self.moved < len {
            return self.done(Err(libc::EIO));
        }
        self.moved += result as u64;
        debug_assert!(self.moved <= len);
        if self.moved < len { Step::Again } else { self.done(Ok(())) }
    }

    fn done(&mut self, result: Result<(), i32>) -> Step {
        Step::Done(self.op.take().expect("a loaded slot"), result)
    }
}

#[cfg(test)]
mod tests {
    use thinwire_buffer::{Pool, SegList};

    use super::*;

    fn pieces(request: SystemCall) -> (Vec<(usize, usize)>, u64) {
        let SystemCall::Write { pieces, count, offset, .. } = request else { panic!() };
        // SAFETY: the slot that made the request is alive and was not touched since.
        let pieces = unsafe { std::slice::from_raw_parts(pieces, count as usize) };
        (pieces.iter().map(|p| (p.iov_base as usize, p.iov_len)).collect(), offset)
    }

    fn write(parts: &[usize]) -> (DiskOp, Vec<usize>) {
        let pool = Pool::new(0);
        let mut data = SegList::new();
        for &len in parts {
            data.push(pool.get_zeroed(len).freeze());
        }
        let at = data.iter().map(|s| s.as_ptr() as usize).collect();
        let len = data.bytes() as u64;
        (DiskOp { token: 1, offset: 8192, len, kind: DiskOpKind::Write { data, fua: true } }, at)
    }

    #[test]
    fn a_short_write_goes_on_where_it_stopped() {
        let (op, at) = write(&[512, 1024, 512]);
        let mut slot = InFlight::default();
        slot.load(op);
        assert_eq!(pieces(slot.request()).0.len(), 3);
        assert!(matches!(slot.advance(1024), Step::Again));
        assert_eq!(pieces(slot.request()), (vec![(at[1] + 512, 512), (at[2], 512)], 8192 + 1024));
        assert!(matches!(slot.advance(-libc::EINTR), Step::Again));
        assert!(matches!(slot.advance(-libc::ENOSPC), Step::Done(_, Err(libc::ENOSPC))));
    }

    #[test]
    fn more_pieces_than_one_call_takes_are_written_by_several() {
        let (op, _) = write(&[512; 1500]);
        let mut slot = InFlight::default();
        slot.load(op);
        assert_eq!(pieces(slot.request()).0.len(), 1024);
        assert!(matches!(slot.advance(1024 * 512), Step::Again));
        assert_eq!(pieces(slot.request()).0.len(), 476);
        assert!(matches!(slot.advance(476 * 512), Step::Done(_, Ok(()))));
    }

    #[test]
    fn a_read_that_meets_the_end_of_a_shrunk_file_is_an_error() {
        for last in [0, -libc::EINVAL] {
            let kind = DiskOpKind::Read(Pool::new(0).get(4096));
            let mut slot = InFlight::default();
            slot.load(DiskOp { token: 1, offset: 0, len: 4096, kind });
            let SystemCall::Read { at, .. } = slot.request() else { panic!() };
            assert!(matches!(slot.advance(1000), Step::Again));
            let SystemCall::Read { at: rest, len, offset } = slot.request() else { panic!() };
            assert_eq!((rest as usize - at as usize, len, offset), (1000, 3096, 1000));
            assert!(matches!(slot.advance(last), Step::Done(_, Err(libc::EIO))));
        }
    }

    #[test]
    fn an_operation_without_bytes_ends_with_its_call() {
        let mut slot = InFlight::default();
        slot.load(DiskOp { token: 1, offset: 0, len: 1 << 40, kind: DiskOpKind::PunchHole });
        assert!(matches!(slot.request(), SystemCall::Allocate { len, .. } if len == 1 << 40));
        assert!(matches!(slot.advance(0), Step::Done(_, Ok(()))));
        slot.load(DiskOp { token: 1, offset: 0, len: 0, kind: DiskOpKind::Flush });
        assert!(matches!(slot.advance(-libc::EIO), Step::Done(_, Err(libc::EIO))));
    }
}
