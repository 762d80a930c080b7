//! The NBD face: serves a volume to NBD clients on this machine or beyond, over a unix socket or
//! TCP, as fixed newstyle servers do.
//!
//! * [`proto`]: the formats, pure functions.
//! * `handshake`: option haggling.
//! * `connection`: one client; `input` and `output`, its two directions.
//! * `hall`: what connections share.
//! * `config`: how it is opened, and its bounds.
//! * `listener`: the socket that they come through.
//!
//! Everything runs in the shard's thread and nothing waits. All sockets hang on one epoll
//! descriptor, level-triggered, which the shard watches, and which is asked only when that was found readable; if there
//! is but one client, mostly not even then. A turn takes in what clients sent, hands
//! it to the volume, and sends each client's replies in one call. What it takes in, reaps and sends is
//! bounded; the next turn goes on with the client at which it stopped. Nothing allocates once warm.

mod config;
mod connection;
mod hall;
mod handshake;
mod input;
mod listener;
mod output;
pub mod proto;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::task::Poll;
use std::time::Duration;

use rustix::event::{Timespec, epoll};
use thinwire_buffer::{Pool, Time};
use thinwire_volume::{Completion, Volume};

use self::config::check_texts;
pub use self::config::{NbdConfig, NbdLimits};
use self::connection::{Connection, End};
use self::hall::{CONNECTIONS_MAX, Hall, PendingTable, user};
use self::handshake::Export;
use self::listener::Listener;
pub use self::listener::{Listen, NbdError};
use crate::Face;
use crate::effort::Effort;

/// What epoll says of the listening socket; connections are told apart by slot and generation.
const LISTENER: u64 = u64::MAX;
/// Most events taken in one turn; the rest stays for the next.
const EVENTS_MAX: usize = 64;
/// Most turns in a row in which the only client is heard without asking epoll.
const GUESSES_MAX: u32 = 16;
/// So often is looked for replies that wait in links' memory: a client that does not read keeps it for one to two
/// times as long.
const PATIENCE: Duration = Duration::from_millis(500);
/// Most clients let in in one turn.
const ACCEPTS_MAX: usize = 16;

/// Counters since the face was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NbdStats {
    /// Clients let in.
    pub connections: u64,
    /// Clients turned away for lack of a place or a descriptor.
    pub connections_refused: u64,
    /// Clients without an export that gave their place to another.
    pub connections_displaced: u64,
    /// Connections ended because the client broke the protocol.
    pub connections_broken: u64,
    /// Requests taken in.
    pub requests: u64,
    /// Requests answered with an error at the gate.
    pub requests_refused: u64,
    /// Requests that the volume failed.
    pub requests_failed: u64,
    /// Completions whose client was gone.
    pub completions_dropped: u64,
    /// Times a client had to wait for room.
    pub pauses: u64,
    /// Payload bytes copied in user space, because they came in one call with what was before.
    pub copied_bytes: u64,
    /// Bytes of replies copied so that who is slow to read them does not keep a link's memory.
    pub given_back_bytes: u64,
}

/// What a turn may do.
struct Efforts {
    taken: Effort,
    reaped: Effort,
    sent: Effort,
}

impl Default for Efforts {
    fn default() -> Self {
        let [taken, reaped, sent] = [(); 3].map(|()| Effort::of_a_turn());
        Efforts { taken, reaped, sent }
    }
}

/// A place for a connection.
#[derive(Default)]
struct Place {
    generation: u32,
    connection: Option<Connection>,
}

/// A volume's NBD face. See [`Face`] for how it is driven.
pub struct NbdFace {
    config: NbdConfig,
    epoll: OwnedFd,
    path: String,
    /// `None` once closed.
    listener: Option<Listener>,
    slots: Vec<Place>,
    free: Vec<u32>,
    hall: Hall,
    /// Connections to look after, in order; those for which there is no effort left stay for the next turn.
    touched: VecDeque<u32>,
    /// Connections that wait for room, perhaps with some that no longer do.
    paused: Vec<u32>,
    /// Something was set free since those were last asked.
    made_room: bool,
    /// Turns since epoll was asked.
    guesses: u32,
    /// When replies that wait in links' memory are looked at next; never if there are none.
    look_at: Time,
    events: Vec<epoll::Event>,
    /// What the volume has done and nobody was told of yet, the first one last. More is asked for when it is empty.
    completions: Vec<Completion>,
}

impl NbdFace {
    /// Whether the face could be opened now, as far as that can be told without doing so; a socket that nobody
    /// serves any more is taken out of its way. To be asked before anything is done that cannot be undone.
    ///
    /// # Errors
    /// As [`NbdFace::bind`].
    pub fn check(config: &NbdConfig) -> Result<(), NbdError> {
        check_texts(config)?;
        Listener::check(config)
    }

    /// Opens the face: clients can connect from now on, and are served by [`Face::turn`].
    /// Payloads live in memory of `pool`.
    ///
    /// # Errors
    /// [`NbdError`]: the path is in use or is no socket, the address cannot be listened at or is one that
    /// other machines reach, or the name or description is too long.
    pub fn bind(config: NbdConfig, pool: Pool) -> Result<Self, NbdError> {
        check_texts(&config)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|error| NbdError::System("create an epoll descriptor", error.into()))?;
        let listener = Listener::bind(&config)?;
        epoll::add(
            &epoll,
            listener.fd(),
            epoll::EventData::new_u64(LISTENER),
            epoll::EventFlags::IN,
        )
        .map_err(|error| NbdError::System("watch the listening socket", error.into()))?;
        Ok(NbdFace {
            path: listener.path.clone(),
            epoll,
            listener: Some(listener),
            slots: Vec::new(),
            free: Vec::new(),
            hall: Hall {
                limits: config.limits,
                pool,
                pending: PendingTable::default(),
                held_bytes: 0,
                lent_bytes: 0,
                left: Vec::new(),
                stats: NbdStats::default(),
            },
            touched: VecDeque::new(),
            paused: Vec::new(),
            made_room: false,
            guesses: 0,
            look_at: Time::NEVER,
            events: Vec::with_capacity(EVENTS_MAX),
            completions: Vec::new(),
            config,
        })
    }

    /// Counters since the face was opened.
    pub fn stats(&self) -> NbdStats {
        self.hall.stats
    }

    /// Requests that are with the volume.
    pub fn outstanding(&self) -> usize {
        self.hall.pending.len()
    }

    /// Memory held for requests, in bytes.
    pub fn held_bytes(&self) -> u64 {
        self.hall.held_bytes
    }

    /// Connections at this moment, those still in their handshake included.
    pub fn connections(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    fn touch(touched: &mut VecDeque<u32>, connection: &mut Connection) {
        if !connection.touched {
            connection.touched = true;
            touched.push_back(connection.slot);
        }
    }

    /// Takes in what epoll has to say.
    fn listen(&mut self) -> io::Result<()> {
        self.events.clear();
        let spare = rustix::buffer::spare_capacity(&mut self.events);
        match epoll::wait(&self.epoll, spare, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for at in 0..self.events.len() {
            let epoll::Event { flags, data } = self.events[at];
            let data = data.u64();
            if data == LISTENER {
                self.accept()?;
                continue;
            }
            let (slot, generation) = (data as u32, (data >> 32) as u32);
            let place = &mut self.slots[slot as usize];
            let Some(connection) = place.connection.as_mut() else { continue };
            if place.generation != generation {
                continue;
            }
            let gone = flags.intersects(epoll::EventFlags::HUP | epoll::EventFlags::ERR);
            if gone && !connection.wanted().contains(epoll::EventFlags::IN) {
                // Nobody is there to read the replies, and nothing more is taken in.
                self.end(slot, End::Orderly);
                continue;
            }
            connection.heard(flags);
            Self::touch(&mut self.touched, connection);
        }
        Ok(())
    }

    fn accept(&mut self) -> io::Result<()> {
        for _ in 0..ACCEPTS_MAX {
            let Some(listener) = &mut self.listener else { return Ok(()) };
            let Some(client) = listener.accept()? else { return Ok(()) };
            let Some(socket) = client.filter(|_| self.make_place()) else {
                self.hall.stats.connections_refused += 1;
                continue;
            };
            let slot = self.free.pop().unwrap_or_else(|| {
                self.slots.push(Place::default());
                self.slots.len() as u32 - 1
            });
            let place = &mut self.slots[slot as usize];
            let data = u64::from(place.generation) << 32 | u64::from(slot);
            let mut connection =
                Connection::new(socket, slot, place.generation, self.hall.stats.connections);
            let data = epoll::EventData::new_u64(data);
            if epoll::add(&self.epoll, &connection.socket, data, connection.interest).is_err() {
                self.free.push(slot);
                self.hall.stats.connections_refused += 1;
                continue;
            }
            self.hall.stats.connections += 1;
            Self::touch(&mut self.touched, &mut connection);
            place.connection = Some(connection);
        }
        Ok(())
    }

    /// True if there is a place for one more.
    fn make_place(&mut self) -> bool {
        if self.connections() < self.config.limits.connections_max.min(CONNECTIONS_MAX) {
            return true;
        }
        let all = self.slots.iter().filter_map(|place| place.connection.as_ref());
        let idle = all.filter(|connection| connection.is_in_handshake());
        match idle.min_by_key(|connection| connection.arrival).map(|oldest| oldest.slot) {
            Some(oldest) => {
                self.hall.stats.connections_displaced += 1;
                self.end(oldest, End::Orderly);
                true
            }
            None => false,
        }
    }

    /// Hands the volume's completions to those who wait for them.
    fn reap(&mut self, volume: &mut dyn Volume, effort: &mut Effort) {
        if self.completions.is_empty() {
            volume.poll(&mut self.completions);
            // They are taken from its end, so that those that are left need not be moved.
            self.completions.reverse();
        }
        while !effort.is_spent()
            && let Some(completion) = self.completions.pop()
        {
            self.made_room = true;
            effort.item();
            let pending = self.hall.pending.remove(completion.token);
            let place = &mut self.slots[pending.slot as usize];
            match &mut place.connection {
                Some(connection) if place.generation == pending.generation => {
                    connection.complete(pending, completion, &mut self.hall);
                    Self::touch(&mut self.touched, connection);
                }
                _ => {
                    self.hall.held_bytes -= pending.held_bytes;
                    self.hall.stats.completions_dropped += 1;
                }
            }
        }
    }

    /// Lets touched connections take in what they can. Returns how many have had their chance.
    fn pump(&mut self, volume: &mut dyn Volume, effort: &mut Effort) -> usize {
        // Before the next one in its place submits anything.
        self.hall.left.drain(..).for_each(|user| volume.end_user(user));
        let mut geometry = volume.geometry();
        geometry.features.read_only |= self.config.read_only;
        for at in 0..self.touched.len() {
            if effort.is_spent() {
                return at;
            }
            let slot = self.touched[at];
            let Some(connection) = &mut self.slots[slot as usize].connection else { continue };
            let NbdConfig { name, alias, description, .. } = &self.config;
            let export = Export { name, alias, description, geometry };
            match connection.pump(&mut self.hall, volume, &export, effort) {
                Ok(()) if connection.is_paused() && !connection.listed => {
                    connection.listed = true;
                    self.paused.push(slot);
                }
                Ok(()) => {}
                Err(end) => self.end(slot, end),
            }
        }
        self.touched.len()
    }

    /// Sends the replies of the first `count` touched connections. Who has more to do goes behind all others.
    fn flush(&mut self, count: usize, effort: &mut Effort) {
        for _ in 0..count {
            if effort.is_spent() {
                return;
            }
            let slot = self.touched.pop_front().expect("so many were touched");
            let Some(connection) = &mut self.slots[slot as usize].connection else { continue };
            connection.touched = false;
            match connection.flush(&mut self.hall, effort) {
                Ok(made_room) => self.made_room |= made_room,
                Err(end) => {
                    self.end(slot, end);
                    continue;
                }
            }
            if connection.is_left_over() {
                Self::touch(&mut self.touched, connection);
            }
            let wanted = connection.wanted();
            if wanted != connection.interest {
                connection.interest = wanted;
                let data = u64::from(connection.generation) << 32 | u64::from(slot);
                let data = epoll::EventData::new_u64(data);
                if let Err(error) = epoll::modify(&self.epoll, &connection.socket, data, wanted) {
                    self.end(slot, End::Socket(error.into()));
                }
            }
        }
    }

    /// Whom epoll would name, most likely: the only client, which sends requests, is heard and takes what it is sent.
    /// Now and then epoll is asked nevertheless, since somebody else may have come.
    fn lone(&self) -> Option<usize> {
        if self.connections() != 1 || self.guesses == GUESSES_MAX {
            return None;
        }
        let there = |place: &Place| place.connection.as_ref().is_some_and(Connection::may_be_heard);
        self.slots.iter().position(there)
    }

    /// Takes in what was heard and what the volume has done, and answers. True if that ends for lack of effort.
    fn act(&mut self, volume: &mut dyn Volume, efforts: &mut Efforts) -> bool {
        let Efforts { taken, reaped, sent } = efforts;
        self.reap(volume, reaped);
        loop {
            let count = self.pump(volume, taken);
            // What a prompt volume has done already leaves in the same call.
            self.reap(volume, reaped);
            self.flush(count, sent);
            if std::mem::take(&mut self.made_room) {
                self.resume();
            }
            let is_spent = [&*taken, &*reaped, &*sent].iter().any(|effort| effort.is_spent());
            if is_spent || (self.touched.is_empty() && self.completions.is_empty()) {
                // Of what else is to be done epoll tells, or a completion.
                return is_spent;
            }
        }
    }

    /// Touches those who waited for room.
    fn resume(&mut self) {
        for slot in self.paused.drain(..) {
            let Some(connection) = &mut self.slots[slot as usize].connection else { continue };
            connection.listed = false;
            if connection.is_paused() {
                Self::touch(&mut self.touched, connection);
            }
        }
    }

    /// Who is there, if anybody is.
    fn clients(&self) -> Option<String> {
        let connections = self.slots.iter().filter_map(|place| place.connection.as_ref());
        match connections.filter(|connection| connection.is_client()).count() {
            0 => None,
            1 => Some("1 NBD client is connected".into()),
            count => Some(format!("{count} NBD clients are connected")),
        }
    }

    /// Ends a connection. What it has with the volume is dropped when it completes.
    fn end(&mut self, slot: u32, end: End) {
        let place = &mut self.slots[slot as usize];
        let Some(connection) = place.connection.take() else { return };
        place.generation = place.generation.wrapping_add(1);
        self.free.push(slot);
        self.hall.left.push(user(slot));
        self.made_room = true;
        self.hall.held_bytes -= connection.own_bytes();
        self.hall.lent_bytes -= connection.lent_bytes();
        match end {
            End::Orderly => {}
            End::Broken(how) => {
                self.hall.stats.connections_broken += 1;
                tracing::debug!("{}: an NBD client broke the protocol: {how}", self.path);
            }
            End::Socket(error) => {
                tracing::debug!("{}: an NBD client is gone: {error}", self.path);
            }
        }
    }
}

impl Face for NbdFace {
    /// The socket's path, or `HOST:PORT` with the port that is really in use.
    fn path(&self) -> String {
        self.path.clone()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn turn(&mut self, volume: &mut dyn Volume) -> io::Result<bool> {
        let mut efforts = Efforts::default();
        if let Some(slot) = self.lone() {
            let connection = self.slots[slot].connection.as_mut().expect("there is one");
            connection.guess();
            Self::touch(&mut self.touched, connection);
            let is_spent = self.act(volume, &mut efforts);
            let connection = self.slots[slot].connection.as_mut();
            if connection.is_some_and(|connection| connection.was_heard()) {
                self.guesses += 1;
                return Ok(is_spent);
            }
        }
        self.guesses = 0;
        self.listen()?;
        Ok(self.act(volume, &mut efforts))
    }

    fn go_on(&mut self, volume: &mut dyn Volume) -> io::Result<bool> {
        Ok(self.act(volume, &mut Efforts::default()))
    }

    fn end_turn(&mut self, now: Time) -> Time {
        let is_due = now >= self.look_at;
        let mut any = false;
        if is_due {
            for connection in self.slots.iter_mut().filter_map(|place| place.connection.as_mut()) {
                if connection.lose_patience() {
                    Self::touch(&mut self.touched, connection);
                    any = true;
                }
            }
        }
        if self.hall.lent_bytes == 0 {
            self.look_at = Time::NEVER;
        } else if is_due || self.look_at == Time::NEVER {
            self.look_at = now + PATIENCE;
        }
        if any { now } else { self.look_at }
    }

    fn busy(&mut self) -> Poll<Option<String>> {
        Poll::Ready(self.clients())
    }

    fn close(&mut self, force: bool) -> io::Result<()> {
        if !force && let Some(busy) = self.clients() {
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, busy));
        }
        self.listener = None;
        for slot in 0..self.slots.len() as u32 {
            self.end(slot, End::Orderly);
        }
        Ok(())
    }
}
