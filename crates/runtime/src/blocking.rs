//! The blocking convenience: for code that would rather wait.

use std::fmt;
use std::io;
use std::time::Duration;

use thinwire_buffer::{Buf, Pool, SegList};
use thinwire_initiator::{AttachError, Initiator, InitiatorConfig};
use thinwire_link::Link;
use thinwire_volume::{Completion, ErrorKind, Geometry, Io, IoError, Op};

use crate::remote::Remote;

/// Why opening failed.
#[derive(Debug)]
pub enum RemoteOpenError {
    /// The target, or nobody, answered.
    Attach(AttachError),
    /// Nobody answered in time.
    NoAnswer(Duration),
    /// A link failed.
    Link(io::Error),
}

impl fmt::Display for RemoteOpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RemoteOpenError::Attach(error) => error.fmt(f),
            RemoteOpenError::NoAnswer(patience) => {
                write!(f, "no target answered within {} s", patience.as_secs_f32())
            }
            RemoteOpenError::Link(error) => write!(f, "a link failed: {error}"),
        }
    }
}

impl std::error::Error for RemoteOpenError {}

/// A remote volume for code that waits: one I/O at a time.
pub struct Blocking {
    remote: Remote,
    done: Vec<Completion>,
    next: u64,
}

impl Blocking {
    /// Attaches, waiting for `patience` at most.
    pub fn open(
        config: InitiatorConfig,
        links: Vec<Box<dyn Link>>,
        pool: Pool,
        patience: Duration,
    ) -> Result<Self, RemoteOpenError> {
        let mut remote = Remote::new(config, links, pool).map_err(RemoteOpenError::Link)?;
        let end = remote.now() + patience;
        while !remote.initiator().is_open() {
            remote.turn().map_err(RemoteOpenError::Link)?;
            if let Some(error) = remote.initiator().first_error() {
                return Err(RemoteOpenError::Attach(error.clone()));
            }
            let left = end.since(remote.now());
            if left.is_zero() {
                return Err(RemoteOpenError::NoAnswer(patience));
            }
            if !remote.initiator().is_open() {
                remote.wait(Some(left)).map_err(RemoteOpenError::Link)?;
            }
        }
        Ok(Blocking { remote, done: Vec::new(), next: 0 })
    }

    /// Shape and abilities.
    pub fn geometry(&mut self) -> Geometry {
        self.remote.volume().geometry()
    }

    /// A page-aligned buffer for [`Blocking::write`].
    pub fn buffer(&self, len: usize) -> Buf {
        self.remote.pool().get(len)
    }

    /// Does one I/O and waits for it. The token is chosen here.
    ///
    /// # Errors
    /// Whatever the volume says; [`ErrorKind::Io`] of `link` if one failed: then it is still under way, and may
    /// take effect beside what is asked for next.
    pub fn run(&mut self, mut io: Io) -> Result<Completion, IoError> {
        self.next += 1;
        let token = self.next;
        io.token = token;
        if let Err(kind) = self.geometry().check(&io) {
            return Err(io.error(kind, "remote"));
        }
        let failed = io.error(ErrorKind::Io, "link");
        self.remote.volume().submit(io);
        loop {
            self.remote.volume().poll(&mut self.done);
            // Others are of I/Os that were not waited for.
            let own = self.done.drain(..).find(|one| one.token == token);
            if let Some(completion) = own {
                return completion.result.map(|()| completion);
            }
            self.remote.wait(None).map_err(|_| failed)?;
        }
    }

    /// Reads `len` bytes at `offset`, both multiples of the block.
    pub fn read(&mut self, offset: u64, len: u32) -> Result<SegList, IoError> {
        self.run(Io::new(0, Op::Read, offset, u64::from(len))).map(|c| c.data)
    }

    /// Writes a buffer at `offset`, both multiples of the block.
    pub fn write(&mut self, offset: u64, data: Buf) -> Result<(), IoError> {
        let mut io = Io::new(0, Op::Write, offset, data.len() as u64);
        io.data = SegList::of(data.freeze());
        self.run(io).map(|_| ())
    }

    /// Makes all completed writes durable.
    pub fn flush(&mut self) -> Result<(), IoError> {
        self.run(Io::new(0, Op::Flush, 0, 0)).map(|_| ())
    }

    /// Detaches in order.
    ///
    /// # Errors
    /// If unflushed writes could not be made durable, or the target stays away for `patience`.
    pub fn close(mut self, patience: Duration) -> Result<(), IoError> {
        let error = |kind| Io::new(0, Op::Flush, 0, 0).error(kind, "remote");
        let end = self.remote.now() + patience;
        self.remote.with_initiator(Initiator::close);
        loop {
            self.remote.turn().map_err(|_| error(ErrorKind::Io))?;
            if self.remote.initiator().is_closed() {
                // The goodbye has been queued by the turn that saw the end: let it go out.
                self.remote.turn().map_err(|_| error(ErrorKind::Io))?;
                return match self.remote.initiator().close_error() {
                    Some(kind) => Err(error(kind)),
                    None => Ok(()),
                };
            }
            let left = end.since(self.remote.now());
            if left.is_zero() {
                self.remote.with_initiator(Initiator::abort);
                let _ = self.remote.turn();
                return Err(error(ErrorKind::Away));
            }
            self.remote.wait(Some(left)).map_err(|_| error(ErrorKind::Io))?;
        }
    }
}
