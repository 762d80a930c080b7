//! A volume behind its face, as a part of a host: what the loop of an attachment looks at between turns.

use std::os::fd::{AsRawFd, RawFd};

use thinwire_frontend::{Face, FacePart};
use thinwire_node::{Lane, PartId};
use thinwire_volume::Volume;

use crate::error::{Failure, Outcome};
use crate::host::Host;
use crate::open::Wait;

/// See the [module](self). Belongs to one thread.
pub struct Shown {
    host: Host,
    part: PartId<FacePart>,
}

impl Shown {
    /// Puts both on the host. The volume takes any byte range; `fds` tell of completions inside it,
    /// `ports`, by number, lead from it to other parts.
    pub fn new(
        host: &Host,
        face: Box<dyn Face>,
        volume: Box<dyn Volume>,
        fds: &[RawFd],
        ports: &[usize],
    ) -> Outcome<Self> {
        let own = face.fd().as_raw_fd();
        let mut shard = host.shard_mut();
        let part = shard.add(FacePart::new(face, volume), Vec::new(), &Lane::ALL);
        for &fd in fds.iter().chain([&own]) {
            let added = shard.add_volume(fd, Some(part));
            added.map_err(|e| Failure::failed(format!("cannot use epoll: {e}")))?;
        }
        for &port in ports {
            shard.node().give_port(port, part);
        }
        drop(shard);
        Ok(Shown { host: host.clone(), part })
    }

    /// The part.
    pub fn part(&self) -> PartId<FacePart> {
        self.part
    }

    /// Looks at the part.
    pub fn look<R>(&self, look: impl FnOnce(&FacePart) -> R) -> R {
        look(self.host.shard().get(self.part))
    }

    /// Does something with the part, which has a turn then.
    pub fn with<R>(&self, act: impl FnOnce(&mut FacePart) -> R) -> R {
        act(self.host.shard_mut().get_mut(self.part))
    }

    /// One turn of everything on the host, which waits as `wait` allows.
    pub fn turn(&self, wait: Wait) -> Outcome {
        self.host.turn(wait)
    }

    /// The last turn found something readable that is watched.
    pub fn is_called(&self) -> bool {
        self.host.is_called()
    }

    /// Takes the part away, and with it the volume.
    pub fn remove(self) {
        let part = self.host.shard_mut().node().remove(self.part);
        drop(part);
    }
}
