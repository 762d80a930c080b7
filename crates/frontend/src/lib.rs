//! Local faces of a volume: what applications on this machine see. A face parses one foreign
//! protocol (NBD, FUSE), turns it into [`Io`](thinwire_volume::Io)s and answers with the
//! completions. It never knows what kind of volume it serves.

pub mod block;
mod effort;
pub mod fuse;
pub mod nbd;
mod part;

use std::io;
use std::os::fd::BorrowedFd;
use std::task::Poll;
use std::time::Duration;

use thinwire_buffer::Time;
use thinwire_volume::Volume;

pub use part::FacePart;

/// How long a forced close may take. Whoever drives the face goes on without it then.
pub const FORCED_CLOSE_MAX: Duration = Duration::from_millis(1200);

/// A local face of one volume, driven by the shard that owns the volume.
///
/// The volume handed in accepts any byte range (`block_bytes == 1`): the caller has wrapped it in
/// the read-modify-write module. The face is its only submitter and drains its completions itself.
///
/// No call waits: others are on the same shard. What takes time is begun, and asked for again. Only
/// dropping a face that is not closed may wait, for [`FORCED_CLOSE_MAX`]: nobody turns it any more.
pub trait Face {
    /// What the user opens: a socket path, an address, a file, a device node.
    fn path(&self) -> String;

    /// Whether that can be opened: `None` not yet (go on turning), else its final name, or why it
    /// never will be. A block device takes a few turns, since the kernel asks for the volume's size
    /// while it is made; other faces are ready at once.
    fn ready(&mut self) -> Option<io::Result<String>> {
        Some(Ok(self.path()))
    }

    /// Readable when [`Face::turn`] has something to do that no completion of the volume announces.
    /// Faces with many descriptors hide them behind an epoll descriptor of their own.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Does what can be done without waiting: takes in requests, submits I/Os, polls the volume for
    /// completions, answers. Called when `fd` is readable or the volume made progress. Returns true if it
    /// may have left something for the next turn, since one is bounded, and wants that without anybody
    /// telling, or if whoever waits for an answer of this face should look again: a turn more costs a
    /// system call or two. An error means that the face is dead and must be closed.
    fn turn(&mut self, volume: &mut dyn Volume) -> io::Result<bool>;

    /// As [`Face::turn`], for a turn before which `fd` was not found readable: a face that asks other descriptors what
    /// it is about need not. Nothing is lost, since `fd` stays readable.
    fn go_on(&mut self, volume: &mut dyn Volume) -> io::Result<bool> {
        self.turn(volume)
    }

    /// The end of a turn, at `now`: looks after what has waited for long. Returns when it must be called again at
    /// the latest, though nothing comes; [`Time::NEVER`] if it need not.
    fn end_turn(&mut self, now: Time) -> Time {
        let _ = now;
        Time::NEVER
    }

    /// Why an orderly detach must be refused now (`2 NBD clients are connected`), or `None`.
    /// `Pending` if that takes a while to find out: the question is put, go on turning the face and
    /// call again after each turn. An answer is given once, to the next call it is found out anew.
    fn busy(&mut self) -> Poll<Option<String>>;

    /// Takes the face away: socket unlinked, mount and device gone. With `force` even though
    /// it is in use and without waiting for anything outstanding. Idempotent.
    ///
    /// Without `force` this may fail with [`io::ErrorKind::WouldBlock`]: closing has begun and needs
    /// I/O that this very face has to serve. Go on turning it, and call again after each turn
    /// until it says something else. With [`io::ErrorKind::ResourceBusy`] it is in use after all and
    /// serves on.
    ///
    /// With `force` it is final: from the first call on nobody is served, and the face is not turned
    /// any more. [`io::ErrorKind::WouldBlock`] says then that something of it is still going: call again
    /// while `fd` is readable. Nobody need wait for that longer than [`FORCED_CLOSE_MAX`], but whoever goes
    /// on turning other things calls on: nothing else ends that `fd` is readable.
    fn close(&mut self, force: bool) -> io::Result<()>;

    /// After a close with `force`: who still uses what is gone, and what becomes of that; a sentence for
    /// the user, told once.
    fn last_word(&mut self) -> Option<String> {
        None
    }
}
