//! The answering side of the control socket, turned by an attachment's shard like a face, or by the
//! thread beside those of a target: nothing here waits, and all connections hide behind one epoll
//! descriptor.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

use super::{ControlRequest, LINE_BYTES_MAX, Response};

/// More than this many connections at once are not served.
const CONNECTIONS_MAX: usize = 16;

/// The listener's key; connections have the key of their place.
const LISTENER: u64 = u64::MAX;

/// What the process does when asked.
pub trait Controlled {
    /// State, paths and counters, as an answer to be sent.
    fn status(&self) -> Response;

    /// Starts to detach, or says why not. After `Ok` the owner ends the attachment and calls
    /// [`ControlServer::finish`]. Asked again, possibly with more force, while under way.
    fn detach(&mut self, force: bool) -> Result<DetachProgress, String>;
}

/// How far a detach has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DetachProgress {
    /// It will end soon; [`ControlServer::finish`] tells those who asked.
    Started,
}

struct Connection {
    stream: UnixStream,
    line: Vec<u8>,
    wants_end: bool,
    /// What is left of an answer that the socket did not take at once. Nothing follows it.
    rest: Vec<u8>,
}

/// See the [module](super).
pub struct ControlServer {
    epoll: OwnedFd,
    listener: UnixListener,
    connections: Vec<Option<Connection>>,
}

impl ControlServer {
    /// Serves on a listening socket (see [`crate::rundir::RunDir::listen`]).
    pub fn new(listener: UnixListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
        let connections = (0..CONNECTIONS_MAX).map(|_| None).collect();
        Ok(ControlServer { epoll, listener, connections })
    }

    /// Readable when [`ControlServer::turn`] has something to do.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Answers what has been asked. Cheap when nothing was. True if anything happened. Errors of
    /// one connection end that connection only.
    pub fn turn(&mut self, controlled: &mut dyn Controlled) -> bool {
        let mut events = [Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; 8];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let count = epoll::wait(&self.epoll, &mut events[..], Some(&now)).unwrap_or(0);
        for event in &events[..count] {
            match event.data.u64() {
                LISTENER => self.accept(),
                at => self.serve(at as usize, controlled),
            }
        }
        count > 0
    }

    /// Tells everybody who asked for the detach how it ended: [`Response::Detached`] or
    /// [`Response::Failed`]. Nobody else is answered any more.
    pub fn finish(&mut self, how: &Response) {
        self.tell(how);
        self.connections.fill_with(|| None);
    }

    /// Tells everybody who asked for the detach that it will not happen after all. Whoever wants something
    /// else is served on.
    pub fn refuse(&mut self, why: String) {
        self.tell(&Response::Refused { why });
    }

    /// The last that those who asked for the detach hear.
    fn tell(&mut self, response: &Response) {
        for connection in &mut self.connections {
            if let Some(asked) = connection.take_if(|connection| connection.wants_end) {
                let _ = answer(&asked.stream, response);
            }
        }
    }

    fn accept(&mut self) {
        while let Ok((stream, _)) = self.listener.accept() {
            // Beyond the bound one that only holds its place gives way: asking always works.
            let free = self.connections.iter().position(Option::is_none);
            let idle = || self.connections.iter().flatten().position(|c| !c.wants_end);
            let Some(at) = free.or_else(idle) else { continue };
            let key = EventData::new_u64(at as u64);
            if stream.set_nonblocking(true).is_ok()
                && epoll::add(&self.epoll, &stream, key, EventFlags::IN).is_ok()
            {
                let line = Vec::with_capacity(LINE_BYTES_MAX);
                let rest = Vec::new();
                self.connections[at] = Some(Connection { stream, line, wants_end: false, rest });
            }
        }
    }

    /// Takes in what one connection sent, or goes on with the answer to it; closes it when it is done or
    /// broken.
    fn serve(&mut self, at: usize, controlled: &mut dyn Controlled) {
        let Some(connection) = self.connections[at].as_mut() else { return };
        if !connection.rest.is_empty() {
            return self.write(at);
        }
        let mut bytes = [0; 512];
        let keep = match (&connection.stream).read(&mut bytes) {
            Ok(0) => false,
            Ok(count) => connection.take_in(&bytes[..count], controlled),
            Err(e) => e.kind() == io::ErrorKind::WouldBlock,
        };
        if !keep {
            self.close(at);
        }
    }

    /// Closes a connection, unless it has still to take in its answer: then once it has.
    fn close(&mut self, at: usize) {
        let waits = self.connections[at].as_ref().filter(|connection| !connection.rest.is_empty());
        let is_watched = waits.is_some_and(|connection| {
            let key = EventData::new_u64(at as u64);
            epoll::modify(&self.epoll, &connection.stream, key, EventFlags::OUT).is_ok()
        });
        if !is_watched {
            self.connections[at] = None;
        }
    }

    /// Writes more of an answer; closes the connection when that is all.
    fn write(&mut self, at: usize) {
        let Some(connection) = self.connections[at].as_mut() else { return };
        match (&connection.stream).write(&connection.rest) {
            Ok(count) => drop(connection.rest.drain(..count)),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => connection.rest.clear(),
        }
        if connection.rest.is_empty() {
            self.connections[at] = None;
        }
    }
}

impl Connection {
    /// True if the connection stays open.
    fn take_in(&mut self, bytes: &[u8], controlled: &mut dyn Controlled) -> bool {
        self.line.extend_from_slice(bytes);
        let Some(end) = self.line.iter().position(|byte| *byte == b'\n') else {
            if self.line.len() > LINE_BYTES_MAX {
                let why = format!("the request is longer than {LINE_BYTES_MAX} bytes");
                let _ = answer(&self.stream, &Response::Refused { why });
                return false;
            }
            return true;
        };
        let response = match serde_json::from_slice(&self.line[..end]) {
            Ok(ControlRequest::Status) => controlled.status(),
            Ok(ControlRequest::Detach { force }) => match controlled.detach(force) {
                Ok(DetachProgress::Started) => Response::Detaching,
                Err(why) => Response::Refused { why },
            },
            Err(e) => Response::Refused { why: format!("not a request: {e}") },
        };
        self.line.clear();
        self.wants_end = response == Response::Detaching;
        match answer(&self.stream, &response) {
            Ok(rest) => {
                self.rest = rest;
                self.wants_end
            }
            Err(_) => false,
        }
    }
}

/// Answers with one line; what of it the socket does not take at once: only a target with many sessions
/// says as much.
fn answer(mut stream: &UnixStream, response: &Response) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(response)?;
    line.push(b'\n');
    let taken = match stream.write(&line) {
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => 0,
        taken => taken?,
    };
    line.drain(..taken);
    Ok(line)
}
