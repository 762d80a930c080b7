//! The queue of a device: requests come and go by commands of an io_uring, their data by reads and writes of `/dev/ublkcN`.
//!
//! Each tag has one command on its way, or a request that is to be answered. The driver takes the thread that sends the
//! first of them for its server, and no other from then on.

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::NonNull;

use io_uring::{IoUring, opcode, types};
use rustix::mm::{MapFlags, ProtFlags};
use thinwire_buffer::SegList;
use zerocopy::IntoBytes;

use super::abi::{Descriptor, QueueCommand, data_offset, queue};
use super::server::Requests;

/// How often one call goes back to a kernel that did not take everything. What is left goes with the next.
const TRIES: usize = 8;
/// Pieces of data that one system call takes.
const PIECES_MAX: usize = 64;

/// See the [module](self). Belongs to one thread.
pub struct Queue {
    // First: commands end before what they are about does.
    ring: IoUring,
    file: File,
    descriptors: Descriptors,
    /// The driver has given a tag back without a request: why, as errno.
    stopped: Option<i32>,
}

impl Queue {
    /// Opens that of a device, and asks for its first requests: the calling thread serves it from then on.
    pub fn open(device: u32, depth: u16) -> io::Result<Queue> {
        let file = File::options().read(true).write(true).open(node_of(device))?;
        let descriptors = Descriptors::map(&file, depth)?;
        let ring = IoUring::builder().build(depth.into())?;
        let mut queue = Queue { ring, file, descriptors, stopped: None };
        (0..depth).for_each(|tag| queue.push(queue::FETCH, tag, 0));
        match queue.send() {
            true => Ok(queue),
            false => Err(io::ErrorKind::OutOfMemory.into()),
        }
    }

    /// Nothing more comes: the device is stopped, or was never served.
    pub fn stopped(&self) -> Option<io::Error> {
        self.stopped.map(io::Error::from_raw_os_error)
    }

    fn push(&mut self, number: u32, tag: u16, result: i32) {
        let mut bytes = [0; size_of::<QueueCommand>()];
        let command = QueueCommand { queue: 0, tag, result, address: 0 };
        bytes.copy_from_slice(command.as_bytes());
        let file = types::Fd(self.file.as_raw_fd());
        let entry = opcode::UringCmd16::new(file, number).cmd(bytes).build().user_data(tag.into());
        // SAFETY: the entry has the command in itself, which names no memory.
        unsafe { self.ring.submission().push(&entry) }.expect("it has an entry for each tag");
    }
}

impl Requests for Queue {
    fn take(&mut self) -> Option<(u16, Descriptor)> {
        loop {
            let ended = self.ring.completion().next()?;
            let tag = ended.user_data() as u16;
            if ended.result() == 0 {
                return Some((tag, self.descriptors.read(tag)));
            }
            self.stopped = Some(-ended.result());
        }
    }

    fn bring(&mut self, tag: u16, data: &mut [u8]) -> io::Result<()> {
        let (mut at, mut done) = (data_offset(tag), 0);
        while done < data.len() {
            match rustix::io::pread(&self.file, &mut data[done..], at) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(some) => (done, at) = (done + some, at + some as u64),
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    fn give(&mut self, tag: u16, data: &SegList) -> io::Result<()> {
        let mut at = data_offset(tag);
        for segments in data.as_slice().chunks(PIECES_MAX) {
            let mut pieces = [IoSlice::new(&[]); PIECES_MAX];
            for (piece, segment) in pieces.iter_mut().zip(segments) {
                *piece = IoSlice::new(segment);
            }
            let mut left = &mut pieces[..segments.len()];
            let mut bytes: usize = segments.iter().map(|segment| segment.len()).sum();
            while bytes > 0 {
                match rustix::io::pwritev(&self.file, left, at) {
                    Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                    Ok(some) => {
                        (at, bytes) = (at + some as u64, bytes - some);
                        IoSlice::advance_slices(&mut left, some);
                    }
                    Err(rustix::io::Errno::INTR) => {}
                    Err(e) => return Err(e.into()),
                }
            }
        }
        Ok(())
    }

    fn answer(&mut self, tag: u16, result: i32) {
        self.push(queue::COMMIT_AND_FETCH, tag, result);
    }

    fn send(&mut self) -> bool {
        for _ in 0..TRIES {
            if self.ring.submission().is_empty() {
                return true;
            }
            match self.ring.submit().map_err(|e| e.raw_os_error()) {
                Ok(_) => {}
                // Interrupted, or short of memory for requests: nothing is lost.
                Err(Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => std::thread::yield_now(),
                Err(e) => panic!("io_uring_enter on a ring of our own: errno {e:?}"),
            }
        }
        self.ring.submission().is_empty()
    }
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring keeps its descriptor open as long as it is there, and this borrows it.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }
}

/// The memory in which the driver tells requests: it writes that of a tag while that tag has a command on its way.
struct Descriptors {
    at: NonNull<Descriptor>,
    bytes: usize,
    depth: u16,
}

impl Descriptors {
    fn map(file: &File, depth: u16) -> io::Result<Descriptors> {
        let page = rustix::param::page_size();
        let bytes = (usize::from(depth) * size_of::<Descriptor>()).next_multiple_of(page);
        // SAFETY: a new mapping, at a place of the kernel's choice.
        let at = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ,
                MapFlags::SHARED | MapFlags::POPULATE,
                file,
                0,
            )?
        };
        let at = NonNull::new(at.cast()).expect("no mapping is at zero");
        Ok(Descriptors { at, bytes, depth })
    }

    fn read(&self, tag: u16) -> Descriptor {
        assert!(tag < self.depth);
        // SAFETY: there are `depth` of them, in a mapping that is there as long as this. The driver has written it before it
        // ended the command of this tag, which whoever calls has seen, and writes it again after the next only.
        unsafe { self.at.add(tag.into()).read_volatile() }
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // SAFETY: it is a mapping of this size, of which no reference is left: `read` copies.
        let _ = unsafe { rustix::mm::munmap(self.at.as_ptr().cast(), self.bytes) };
    }
}

/// Where a device is served.
fn node_of(device: u32) -> String {
    format!("/dev/ublkc{device}")
}
