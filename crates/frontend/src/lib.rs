//! Local faces of a volume: what applications on this machine see. A face parses one foreign
//! protocol (NBD, FUSE), turns it into [`Io`](thinwire_volume::Io)s and answers with the
//! completions. It never knows what kind of volume it serves.

pub mod block;
pub mod fuse;
pub mod nbd;
mod part;

use std::io;
use std::os::fd::BorrowedFd;

use thinwire_volume::Volume;

pub use part::FacePart;

/// A local face of one volume, driven by the shard that owns the volume.
///
/// The volume handed in accepts any byte range (`block_bytes == 1`): the caller has wrapped it in
/// the read-modify-write module. The face is its only submitter and drains its completions itself.
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

    /// Does all that can be done without waiting: takes in requests, submits I/Os, polls the volume
    /// for completions, answers. Called when `fd` is readable or the volume made progress. Returns
    /// true if anything happened. An error means that the face is dead and must be closed.
    fn turn(&mut self, volume: &mut dyn Volume) -> io::Result<bool>;

    /// Why an orderly detach must be refused now (`2 NBD clients are connected`), or `None`.
    fn busy(&self) -> Option<String>;

    /// Takes the face away: socket unlinked, mount and loop device gone. With `force` even though
    /// it is in use and without waiting for anything outstanding. Idempotent.
    ///
    /// Without `force` this may fail with [`io::ErrorKind::WouldBlock`]: closing has begun and needs
    /// I/O that this very face has to serve. Go on turning it, and call again after each turn
    /// until it says something else. With [`io::ErrorKind::ResourceBusy`] it is in use after all and
    /// serves on. With `force` it is final, and takes less than two seconds.
    fn close(&mut self, force: bool) -> io::Result<()>;
}
