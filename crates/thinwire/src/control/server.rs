//! The answering side of the control socket, turned by an attachment's shard like a face, or by the
//! thread beside those of a target: nothing here waits, and all connections hide behind one epoll
//! descriptor.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use thinwire_runtime::peer::user_of_peer;

use super::{ControlCounters, ControlRequest, LINE_BYTES_MAX, Response};
use crate::folder::is_ours;
use crate::pool::PoolAsk;
use crate::reload::Reloaded;
use crate::work::WorkAsk;

/// More than this many connections at once are not served.
const CONNECTIONS_MAX: usize = 16;

/// Most connections taken in in one turn: whoever makes more holds up nobody else on the shard.
const ACCEPTS_MAX: usize = 16;

/// The listener's key; connections have the key of their place.
const LISTENER: u64 = u64::MAX;

/// What the process does when asked.
pub trait Controlled {
    /// State, paths and counters, as an answer to be sent.
    fn status(&self) -> Response;

    /// Reads the configuration again and acts on it, or says why not and goes on as before.
    fn reload(&mut self) -> Result<Reloaded, String> {
        Err("it is an attachment, and has no configuration that could be read again".into())
    }

    /// Begins to do something to the pool, or says how that has ended at once.
    fn change_pool(&mut self, ask: &PoolAsk) -> PoolProgress {
        let _ = ask;
        PoolProgress::Ended(Response::Refused { why: "it has no pool".into() })
    }

    /// The same, to a volume that works for itself.
    fn work(&mut self, ask: &WorkAsk) -> PoolProgress {
        let why = format!("it has no volume {} open", ask.volume.name);
        PoolProgress::Ended(Response::Refused { why })
    }

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

/// How far what was asked of a pool has come.
#[derive(Clone, Debug, PartialEq)]
pub enum PoolProgress {
    /// It has this number; [`ControlServer::finish_change`] tells who asked.
    Started(u64),
    /// That is the answer.
    Ended(Response),
}

struct Connection {
    stream: UnixStream,
    line: Vec<u8>,
    wants_end: bool,
    /// It is told how that change of a pool has ended.
    waits_for: Option<u64>,
    /// What is left of an answer that the socket did not take at once. Nothing follows it.
    rest: Vec<u8>,
}

/// See the [module](super).
pub struct ControlServer {
    epoll: OwnedFd,
    listener: UnixListener,
    connections: Vec<Option<Connection>>,
    counters: ControlCounters,
    /// Kept so that a connection can be turned away when there are no descriptors left: else it would wake us
    /// for ever.
    reserve: Option<File>,
}

impl ControlServer {
    /// Serves on a listening socket (see [`crate::rundir::RunDir::listen`]).
    pub fn new(listener: UnixListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
        let connections = (0..CONNECTIONS_MAX).map(|_| None).collect();
        let (counters, reserve) = (ControlCounters::default(), reserve());
        Ok(ControlServer { epoll, listener, connections, counters, reserve })
    }

    /// What was refused so far.
    pub fn counters(&self) -> ControlCounters {
        self.counters
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

    /// Tells who asked for that change of a pool how it has ended.
    pub fn finish_change(&mut self, number: u64, response: Response) {
        let is_its = |place: &Option<Connection>| {
            place.as_ref().is_some_and(|connection| connection.waits_for == Some(number))
        };
        let Some(at) = self.connections.iter().position(is_its) else { return };
        if let Some(connection) = &mut self.connections[at] {
            connection.answer(response);
            connection.waits_for = None;
        }
        self.close(at);
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
        for _ in 0..ACCEPTS_MAX {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(e) if is_out_of_descriptors(&e) => {
                    self.reserve = None;
                    if self.listener.accept().is_ok() {
                        self.counters.crowded += 1;
                    }
                    self.reserve = reserve();
                    continue;
                }
                Err(e) if e.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(_) => return,
            };
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            match user_of_peer(stream.as_fd()) {
                Ok(user) if is_ours(user) => self.let_in(stream),
                Ok(user) => self.send_away(&stream, &format!("user {user}")),
                Err(_) => self.send_away(&stream, "somebody of whom that is not known"),
            }
        }
    }

    fn let_in(&mut self, stream: UnixStream) {
        // Beyond the bound one that only holds its place gives way: asking always works.
        let free = self.connections.iter().position(Option::is_none);
        let is_idle = |c: &Connection| !c.wants_end && c.waits_for.is_none();
        let idle = || self.connections.iter().position(|c| c.as_ref().is_some_and(is_idle));
        let at = free.or_else(idle);
        self.counters.crowded += u64::from(free.is_none());
        let Some(at) = at else { return };
        let key = EventData::new_u64(at as u64);
        if epoll::add(&self.epoll, &stream, key, EventFlags::IN).is_ok() {
            let line = Vec::with_capacity(LINE_BYTES_MAX);
            let rest = Vec::new();
            let (wants_end, waits_for) = (false, None);
            self.connections[at] = Some(Connection { stream, line, wants_end, waits_for, rest });
        }
    }

    /// Tells a stranger so, whatever it wants. It never has a place.
    fn send_away(&mut self, stream: &UnixStream, who: &str) {
        let owner = rustix::process::geteuid().as_raw();
        let owner = if owner == 0 { "root".to_owned() } else { format!("user {owner} and root") };
        let why = format!("only {owner} may ask here, and this is {who}");
        if self.counters.strangers == 0 {
            tracing::warn!("refused on the control socket: {why}; what follows is counted only");
        }
        self.counters.strangers += 1;
        let _ = answer(stream, &Response::Forbidden { why });
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
            Ok(count) => match connection.take_in(&bytes[..count]) {
                None => true,
                Some(Ok(ControlRequest::Pool { pool, request })) => {
                    connection.wait_for(controlled.change_pool(&PoolAsk { pool, request }))
                }
                Some(Ok(ControlRequest::Volume { volume, request })) => {
                    connection.wait_for(controlled.work(&WorkAsk { volume, request }))
                }
                Some(Ok(request)) => {
                    connection.answer(perform(request, controlled).with_counters(self.counters))
                }
                Some(Err(why)) => {
                    self.counters.garbled += 1;
                    connection.answer(Response::Refused { why })
                }
            },
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
    /// The request, or why there is none, once a whole line is here.
    fn take_in(&mut self, bytes: &[u8]) -> Option<Result<ControlRequest, String>> {
        self.line.extend_from_slice(bytes);
        let end = self.line.iter().position(|byte| *byte == b'\n');
        if end.unwrap_or(self.line.len()) > LINE_BYTES_MAX {
            return Some(Err(format!("the request is longer than {LINE_BYTES_MAX} bytes")));
        }
        let request = serde_json::from_slice(&self.line[..end?]);
        self.line.clear();
        Some(request.map_err(|e| format!("not a request: {e}")))
    }

    /// The same, of what may take a while.
    fn wait_for(&mut self, progress: PoolProgress) -> bool {
        match progress {
            PoolProgress::Started(number) => {
                self.waits_for = Some(number);
                true
            }
            PoolProgress::Ended(response) => self.answer(response),
        }
    }

    /// True if the connection stays open: another answer follows.
    fn answer(&mut self, response: Response) -> bool {
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

fn perform(request: ControlRequest, controlled: &mut dyn Controlled) -> Response {
    match request {
        ControlRequest::Status => controlled.status(),
        ControlRequest::Reload => match controlled.reload() {
            Ok(reloaded) => Response::Reloaded(reloaded),
            Err(why) => Response::Refused { why },
        },
        ControlRequest::Pool { .. } | ControlRequest::Volume { .. } => {
            unreachable!("it may take a while")
        }
        ControlRequest::Detach { force } => match controlled.detach(force) {
            Ok(DetachProgress::Started) => Response::Detaching,
            Err(why) => Response::Refused { why },
        },
    }
}

fn reserve() -> Option<File> {
    File::open("/dev/null").ok()
}

fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
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
