//! The thread that keeps the loop device.
//!
//! Setting up, syncing and closing a loop device waits for I/O that the shard has to serve, so the
//! shard's thread must not do it. Worse: a thread that waits for a file which its own process
//! serves cannot be killed as long as the process has `/dev/fuse` open, and the process keeps that
//! open until its last thread is gone. So this thread leaves the process's table of descriptors
//! as its first act and keeps one of its own: when the shard dies, by whatever cause, its
//! `/dev/fuse` closes, the waiting ends with an error, and the loop device goes with this thread.
//!
//! Hence its rule: *nothing here may log, or use any descriptor made before it started* (their
//! numbers mean other files here, possibly the disk). Orders and answers go through channels, which
//! need no descriptor; the shard looks for answers by a timer.

use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use super::super::error::BlockError;
use super::super::post::Post;
use super::super::usage::{claim_to_close, usage, who_claims, who_opened};
use super::device::{LoopDevice, bind, dev_of, is_still_bound, node_of};

/// How long an orderly close waits for short-lived openers to let go of the device.
const RELEASE_WAIT: Duration = Duration::from_secs(5);

/// How long a forced close watches the device go.
const FORCED_WAIT: Duration = Duration::from_millis(500);

/// What the keeper is told.
pub enum Order {
    /// Who uses the device? The number comes back in the answer.
    Usage(u64),
    /// Take over the file's new size.
    Resize,
    /// Write back, flush, and let go, unless it is in use.
    Close,
    /// Let go, whoever uses it.
    Force,
}

/// What the keeper says.
pub enum Answer {
    /// The device is there, with this number; or why not. Always the first.
    Ready(Result<u32, BlockError>),
    /// Who uses it, in answer to the question of this number.
    Usage(u64, Option<String>),
    /// The new size was taken over, or not.
    Resized(Result<(), BlockError>),
    /// It is gone, or why it stays.
    Closed(Result<(), BlockError>),
    /// We let go of it. If it is still bound, the users that keep it.
    Forced(Option<String>),
}

/// What to set up.
pub struct Setup {
    /// The file, mounted and served.
    pub backing: PathBuf,
    /// Logical block.
    pub block_bytes: u32,
    pub is_carrying: bool,
    /// No writes.
    pub read_only: bool,
}

/// The shard's end. Dropping it makes the keeper let go of the device.
pub type Keeper = Post<Order, Answer>;

/// Starts the thread, which begins by setting up the device.
pub fn start(setup: Setup) -> std::io::Result<Keeper> {
    Post::start("loop keeper", move |inbox, outbox| keep(&setup, inbox, outbox))
}

/// The thread's main function.
fn keep(setup: &Setup, inbox: &Receiver<Order>, outbox: &Sender<Answer>) {
    let bound = leave_descriptors()
        .map_err(|e| match e.raw_os_error() {
            Some(libc::ENOSYS) => BlockError::OldKernel,
            _ => BlockError::system("cannot make a table of descriptors")(e),
        })
        .and_then(|()| bind(&setup.backing, setup.block_bytes, setup.read_only))
        .and_then(|mut device| match setup.is_carrying {
            true => device.carry().map(|()| device),
            false => Ok(device),
        });
    let mut device = match bound {
        Ok(device) => device,
        Err(e) => {
            let _ = outbox.send(Answer::Ready(Err(e)));
            return;
        }
    };
    let number = device.number();
    let _ = outbox.send(Answer::Ready(Ok(number)));
    // Ends when the shard's end is dropped; the device goes with it.
    while let Ok(order) = inbox.recv() {
        let answer = match order {
            Order::Usage(number) => {
                Answer::Usage(number, usage(&device.node(), &dev_of(device.number())))
            }
            Order::Resize => Answer::Resized(
                device.take_size().map_err(BlockError::system("cannot resize the loop device")),
            ),
            Order::Close => match close(device, &setup.backing) {
                Ok(()) => {
                    let _ = outbox.send(Answer::Closed(Ok(())));
                    return;
                }
                Err((kept, e)) => {
                    device = kept;
                    Answer::Closed(Err(e))
                }
            },
            Order::Force => {
                device.release();
                let _ = outbox.send(Answer::Forced(still_bound(number, &setup.backing)));
                return;
            }
        };
        if outbox.send(answer).is_err() {
            return;
        }
    }
}

/// Writes everything back, then lets go, or gives the device back with the reason why not.
fn close(device: LoopDevice, backing: &Path) -> Result<(), (LoopDevice, BlockError)> {
    let number = device.number();
    let claim = match claim_to_close(&device.node(), &dev_of(number)) {
        Ok(claim) => claim,
        Err(e) => return Err((device, e)),
    };
    if let Err(e) = device.sync() {
        let what = format!("cannot write back what is cached of {}", device.node());
        return Err((device, BlockError::system(what)(e)));
    }
    device.release();
    drop(claim);
    // A program that looks at the device for a moment keeps it; after that it goes by itself.
    let deadline = Instant::now() + RELEASE_WAIT;
    while is_still_bound(number, backing) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// After a forced close: the users that keep the device, if it is still ours.
fn still_bound(number: u32, backing: &Path) -> Option<String> {
    let deadline = Instant::now() + FORCED_WAIT;
    while Instant::now() < deadline {
        if !is_still_bound(number, backing) {
            return None;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let node = node_of(number);
    Some(who_opened(&node).unwrap_or_else(|| who_claims(&node, &dev_of(number))))
}

/// Gives this thread a table of descriptors of its own, with nothing but the standard ones in it.
fn leave_descriptors() -> std::io::Result<()> {
    const FIRST: RawFd = 3;
    // SAFETY: no memory is passed. The call first gives this thread a private copy of the
    // descriptor table, then closes the copies; the owners of the descriptors in the other threads
    // are not touched, and this thread owns none of them (`keep` is its whole life).
    let result =
        unsafe { libc::syscall(libc::SYS_close_range, FIRST, u32::MAX, libc::CLOSE_RANGE_UNSHARE) };
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}
