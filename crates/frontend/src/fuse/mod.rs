//! A volume as a file, through FUSE (`attach URI --file /mnt/disk0`).
//!
//! The mount's root *is* the file: it is mounted over an empty regular file, so the path that the
//! user named is the disk, and there is no directory around it. `fuser` and libfuse own their
//! loop and would cost a thread and a hand-off for each I/O; one file needs so little of the
//! protocol that it is spoken here, on the shard's own thread, with the payload of a write going
//! from the kernel into the buffer that the volume gets.
//!
//! * [`abi`](self) — `abi.rs`: the kernel's messages
//! * `channel.rs`: requests in, replies out; `replies.rs`: those of a turn in one call
//! * `server.rs`: what each request means for the volume; `opens.rs`: who asks
//! * `mount.rs`: getting there and away, and what a killed attachment leaves
//!
//! The file behaves like a disk, not like a file: its size is fixed, `O_TRUNC` is ignored, there
//! is no page cache (all I/O is direct), writing beyond the end gives ENOSPC.

mod abi;
mod channel;
mod error;
pub(crate) mod mount;
pub(crate) mod mountinfo;
mod opens;
mod replies;
mod server;
#[cfg(test)]
mod server_fuzz;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::task::Poll;

use rustix::event::epoll;
use thinwire_buffer::{PAGE_BYTES, Pool};
use thinwire_volume::{Geometry, Volume};

pub use error::{FuseError, errno};
pub use mount::clean_stale;

use crate::Face;
use channel::Channel;
use mount::{MountOptions, Mounted};
use server::{FuseServer, Shape};

/// The longest read or write that the kernel sends: its own limit with default settings.
const TRANSFER_BYTES_MAX: usize = 1 << 20;

/// What to mount and where.
#[derive(Clone, Debug)]
pub struct FuseConfig {
    /// The file that the disk shall be. Must not exist, or be an empty regular file (which is
    /// covered, and there again afterwards).
    pub path: PathBuf,
    /// Shown by `mount` and `findmnt` as the source, for example the volume's URI.
    pub source: String,
    /// The volume's shape. The size may grow later; the rest is fixed.
    pub geometry: Geometry,
    /// No writes, whatever the volume could do.
    pub read_only: bool,
    /// Lets other users than the one who attached open the file: mode 0666 and FUSE's
    /// `allow_other`. Default: mode 0600, only the user who attached.
    pub allow_other: bool,
}

/// A volume as a file. Lives on the shard's thread; everything happens in [`Face::turn`].
///
/// Dropping it takes the file away by force.
pub struct FuseFace {
    mounted: Mounted,
    poll: OwnedFd,
    /// `None` once closed: dropping the descriptor aborts the connection.
    server: Option<FuseServer>,
    /// The device is in the poll set.
    armed: bool,
}

impl FuseFace {
    /// Whether a file could be mounted there now, as far as that can be told without doing so. To be asked
    /// before anything is done that cannot be undone.
    ///
    /// # Errors
    /// As [`FuseFace::mount`].
    pub fn check(path: &Path) -> Result<(), FuseError> {
        mount::open_device()?;
        mount::check_place(path)
    }

    /// Mounts the file. It can be opened at once; who does so waits until the first turn.
    ///
    /// # Errors
    /// See [`FuseError`]; nothing is left behind then.
    pub fn mount(config: FuseConfig, pool: Pool) -> Result<Self, FuseError> {
        let transfer = transfer_bytes_max(&config.geometry)?;
        let device = mount::open_device()?;
        let read_only = config.read_only || config.geometry.features.read_only;
        let permissions = match (config.allow_other, read_only) {
            (false, false) => 0o600,
            (false, true) => 0o400,
            (true, false) => 0o666,
            (true, true) => 0o444,
        };
        let shape = Shape {
            mode: libc::S_IFREG | permissions,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            read_only,
            transfer_bytes_max: transfer as u32,
        };
        let options = MountOptions {
            mode: shape.mode,
            uid: shape.uid,
            gid: shape.gid,
            source: &config.source,
            read_only,
            allow_other: config.allow_other,
        };
        let mounted = mount::mount(&device, &config.path, &options)?;
        let channel = Channel::new(device, pool, transfer);
        let server = FuseServer::new(channel, shape, config.geometry);
        // Not earlier: a device that is not mounted yet has no queue to be watched.
        let watched = epoll::create(epoll::CreateFlags::CLOEXEC)
            .and_then(|poll| watch(&poll, &server).map(|()| poll));
        match watched {
            Ok(poll) => Ok(FuseFace { mounted, poll, server: Some(server), armed: true }),
            Err(e) => {
                drop(server);
                let _ = mounted.unmount(true);
                Err(FuseError::system("cannot watch", "/dev/fuse")(e.into()))
            }
        }
    }

    /// How often the file is open.
    pub fn opens(&self) -> usize {
        self.server.as_ref().map_or(0, FuseServer::opens)
    }

    /// Stops listening while too much is outstanding, else the poll descriptor would stay readable
    /// without anything to be done.
    fn arm(&mut self) -> io::Result<()> {
        let Some(server) = &self.server else { return Ok(()) };
        let wanted = !server.is_full();
        if wanted != self.armed {
            if wanted {
                watch(&self.poll, server)?;
            } else {
                epoll::delete(&self.poll, server.device())?;
            }
            self.armed = wanted;
        }
        Ok(())
    }
}

impl Face for FuseFace {
    fn path(&self) -> String {
        self.mounted.path().display().to_string()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.poll.as_fd()
    }

    fn turn(&mut self, volume: &mut dyn Volume) -> io::Result<bool> {
        let Some(server) = &mut self.server else { return Ok(false) };
        let Some(progress) = server.turn(volume)? else {
            return Err(io::Error::new(
                io::ErrorKind::NotConnected,
                format!("{} was unmounted by somebody else", self.path()),
            ));
        };
        self.arm()?;
        Ok(progress)
    }

    fn busy(&mut self) -> Poll<Option<String>> {
        Poll::Ready(match self.opens() {
            0 => None,
            1 => Some(format!("{} is open", self.path())),
            n => Some(format!("{} is open {n} times", self.path())),
        })
    }

    /// With `force`, dropping the device's only descriptor aborts the connection: whoever waits for
    /// an answer gets ECONNABORTED or ENOTCONN at once. Nothing here waits for the volume.
    fn close(&mut self, force: bool) -> io::Result<()> {
        if self.server.is_none() {
            return Ok(());
        }
        if force {
            self.server = None;
        }
        self.mounted.unmount(force)?;
        self.server = None;
        Ok(())
    }
}

impl Drop for FuseFace {
    fn drop(&mut self) {
        if let Err(e) = self.close(true) {
            tracing::warn!("cannot unmount {}: {e}", self.path());
        }
    }
}

fn watch(poll: &OwnedFd, server: &FuseServer) -> rustix::io::Result<()> {
    let data = epoll::EventData::new_u64(0);
    epoll::add(poll, server.device(), data, epoll::EventFlags::IN)
}

/// The longest transfer that fits into one I/O of the volume and one request of the kernel, so
/// that neither has to be split.
fn transfer_bytes_max(geometry: &Geometry) -> Result<usize, FuseError> {
    let limit = (geometry.io_bytes_max as usize).min(TRANSFER_BYTES_MAX);
    if limit < PAGE_BYTES {
        return Err(FuseError::SmallIo { io_bytes_max: geometry.io_bytes_max });
    }
    Ok(1 << limit.ilog2())
}
