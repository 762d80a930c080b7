//! The state machine itself: frames and time in, frames out.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use thinwire_buffer::{LinkInfo, Pool, Room, RxFrame, TxBatch};
use thinwire_exports::{ExportConfig, ExportOpening, Exports, ExportsConfig};
use thinwire_proto::{DropReason, Sealed, SipRng, StageObserver, Time, Unsealed};
use thinwire_seal::Random;
use thinwire_volume::Letter;
use thinwire_wire::{Header, Kind, Message, SUITE_CRC32C};
use zeroize::Zeroizing;

use crate::attach::Sessions;
use crate::cookie::Cookies;
use crate::fair::Fair;
use crate::greet::{PendingOffer, Promise, SESSION_NUMBER, UNCONFIRMED, session_lane};
use crate::house::{House, Owner};
use crate::limits::Greetings;
use crate::peer::Peer;
use crate::silent::FencedExport;
use crate::slots::REQUEST_BYTES_MAX;
use crate::{TargetCanary, TargetConfig, TargetStats};

/// How often what is decided about exports may make possible something else in one turn, at most. What is
/// left has the next turn at once.
const SETTLES_PER_TURN: usize = 8;
/// How often sessions are looked at for expiry.
const HOUSEKEEPING: Duration = Duration::from_millis(500);

/// Where the session that a frame names is to be found.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// Among the peers.
    Session(usize),
    /// Among those that nobody has used yet.
    Promise(usize),
    /// There is none, or it has no session.
    Nowhere,
}

/// A target: one shard's worth of exports and sessions.
pub struct Target {
    pub(crate) house: House,
    pub(crate) peers: Vec<Option<Box<Peer>>>,
    /// Sessions that nobody has used yet; as many places as `peers`, never both of one taken.
    pub(crate) promises: Vec<Option<Promise>>,
    pub(crate) shard: u8,
    pub(crate) cookies: Cookies,
    /// Of ephemeral keys.
    pub(crate) random: Random,
    pub(crate) greetings: Greetings,
    pub(crate) offers: Vec<PendingOffer>,
    pub(crate) offered_names: Vec<String>,
    pub(crate) forwards: VecDeque<Letter>,
    /// Frames outside sessions that go out with the next turn, per link.
    pub(crate) outside: Vec<TxBatch>,
    pub(crate) unknown_at: Time,
    /// Of those who send much while others do, too.
    pub(crate) first_to_send: usize,
    housekeeping_at: Time,
    pub(crate) stopping: bool,
    /// Exports that were fenced, until the driver has them.
    pub(crate) fenced: VecDeque<FencedExport>,
    /// Shards that are to be told of them.
    pub(crate) silences: VecDeque<(u8, ExportOpening)>,
}

impl Target {
    /// A target without exports. `links` are the links it is served on, in the order of the
    /// indices that frames come and go with; `shard` is the first byte of its session ids; `seed`
    /// must be unpredictable and different for every start.
    pub fn new(
        config: TargetConfig,
        links: Vec<LinkInfo>,
        shard: u8,
        pool: Pool,
        seed: u64,
    ) -> Self {
        let mut rng = SipRng::new(seed);
        let instance = rng.next_u64();
        let mut next_epoch = rng.next_u64() as u32 >> 1;
        let mut pass_generation = rng.next_u64() as u32 >> 1;
        if config.counters_high {
            (next_epoch, pass_generation) = (u32::MAX - 2, u32::MAX - 2);
        }
        let door = ExportsConfig { lease: config.lease, pass_generation, canary: config.door };
        let exports = Exports::new(door, rng.next_u64(), &pool);
        let cookies = Cookies::new(&mut rng);
        // Shards have the entropy in common, and seeds of their own.
        let mut config = config;
        // Whoever finds what it begins with could run it again: it is kept nowhere.
        let entropy = Zeroizing::new(config.keys.as_mut().map_or([0; 32], |keys| {
            assert_ne!(keys.entropy, [0; 32], "keys without entropy");
            std::mem::take(&mut keys.entropy)
        }));
        let label = [&[shard][..], &seed.to_le_bytes(), &instance.to_le_bytes()].concat();
        let random = Random::derived(&entropy, &label);
        let outside = links.iter().map(|_| TxBatch::new()).collect();
        let credit_bytes = config.credit_bytes.max(2 * REQUEST_BYTES_MAX as u64);
        let config = TargetConfig { credit_bytes, ..config };
        let slots = config.slots;
        let is_first_come = config.canary == TargetCanary::FirstComeFirstServed;
        Target {
            house: House {
                now: Time::ZERO,
                observer: None,
                config,
                links,
                pool,
                rng,
                instance,
                exports,
                fair: Fair::new(slots, is_first_come),
                elsewhere: Vec::new(),
                spread: Vec::new(),
                room_changed: false,
                in_store: Vec::new(),
                owners: Vec::new(),
                stats: TargetStats::default(),
                next_epoch,
                session_number: 0,
                guests: Vec::new(),
                silent: Vec::new(),
                came: Vec::new(),
                seats: Vec::new(),
            },
            peers: Vec::new(),
            promises: Vec::new(),
            shard,
            cookies,
            random,
            greetings: Greetings::new(),
            offers: Vec::new(),
            offered_names: Vec::new(),
            forwards: VecDeque::new(),
            outside,
            unknown_at: Time::ZERO,
            first_to_send: 0,
            housekeeping_at: Time::ZERO,
            stopping: false,
            fenced: VecDeque::new(),
            silences: VecDeque::new(),
        }
    }

    /// Offers a volume. Names are unique: the caller has checked. What it returns names it among those of its name.
    pub fn add_export(&mut self, config: ExportConfig) -> ExportOpening {
        self.offered_names.push(config.name.clone());
        let export = self.house.exports.add(config);
        self.house.fair.add_line(export);
        self.house.exports.opening_of(export)
    }

    /// While several sessions want something, those of an export have so many times what those of others
    /// have. Default: 1, and at least that.
    ///
    /// # Panics
    /// If there is no export of this name.
    pub fn set_weight(&mut self, export: &str, weight: u16) {
        let export = self.house.exports.find(export).expect("an export of this target");
        self.house.fair.set_weight(export, weight);
    }

    /// Tells `observer` from now on where requests stand.
    pub fn set_observer(&mut self, observer: Rc<dyn StageObserver>) {
        self.house.observer = Some(observer);
    }

    /// The number that tells this process from others of the same name.
    pub fn instance(&self) -> u64 {
        self.house.instance
    }

    /// A frame arrived on a link. It may be changed where it lies.
    pub fn on_frame(&mut self, now: Time, link: usize, frame: &mut RxFrame) {
        self.take(now, link, frame, false);
    }

    /// A frame that another shard handed on ([`Target::next_forward`]), which has seen that its sender
    /// receives.
    pub fn on_forward(&mut self, now: Time, link: usize, frame: &mut RxFrame) {
        let is_proved = self.house.config.canary != TargetCanary::HandOverUnproved;
        self.take(now, link, frame, is_proved);
    }

    fn take(&mut self, now: Time, link: usize, frame: &mut RxFrame, is_proved: bool) {
        self.house.now = now;
        if let Err(reason) = self.take_frame(now, link, frame, is_proved) {
            self.house.stats.drops.count(reason);
        }
    }

    /// The stages of the gate: header, session, unsealing, messages. Nothing changes before a frame is
    /// unsealed.
    fn take_frame(
        &mut self,
        now: Time,
        link: usize,
        rx: &mut RxFrame,
        is_proved: bool,
    ) -> Result<(), DropReason> {
        let sealed = Sealed::look(rx).map_err(DropReason::Frame)?;
        let (kind, id) = (sealed.header().kind, sealed.header().session);
        let mut place = if kind.is_numbered() { self.find(now, id)? } else { Place::Nowhere };
        if let (Place::Promise(index), TargetCanary::MadeUnsealed) =
            (place, self.house.config.canary)
        {
            self.fulfil(now, index);
            place = Place::Session(index);
        }
        let frame = if self.is_keyed(place, sealed.header()) {
            self.open(now, link, sealed, place)?
        } else {
            let house = &mut self.house;
            match sealed.unseal(&house.pool, &mut house.stats.copied_bytes) {
                Ok(frame) => frame,
                Err(error) => return Err(DropReason::Frame(error)),
            }
        };
        if !kind.is_numbered() {
            return self.greeted(now, link, &frame, is_proved);
        }
        let index = match place {
            Place::Session(index) => index,
            Place::Promise(index) => {
                self.fulfil(now, index);
                index
            }
            Place::Nowhere => {
                self.unknown_session(now, link, frame.from(), id);
                return Err(DropReason::UnknownSession);
            }
        };
        if kind != Kind::Session {
            return self.probed(now, link, &frame, index);
        }
        let peer = self.peers[index].as_deref_mut().expect("found");
        peer.session.accept(now, link, &frame, &mut peer.slots)?;
        if !peer.confirmed {
            self.confirm(index);
        }
        let peer = self.peers[index].as_deref_mut().ok_or(DropReason::UnknownSession)?;
        peer.on_messages(now, index, &frame, &mut self.house);
        if self.peers[index].as_ref().is_some_and(|p| p.ended) {
            self.end(index);
        }
        Ok(())
    }

    /// Only a key opens this frame, if anything does.
    #[inline]
    fn is_keyed(&self, place: Place, header: &Header) -> bool {
        match place {
            Place::Session(index) => {
                self.peers[index].as_deref().is_some_and(|peer| peer.session.has_keys())
            }
            Place::Promise(index) => {
                self.promises[index].as_ref().is_some_and(|promise| promise.keyed.is_some())
            }
            Place::Nowhere => header.suite != SUITE_CRC32C,
        }
    }

    /// The third stage of the gate for such a frame.
    #[inline(never)]
    fn open<'a>(
        &mut self,
        now: Time,
        link: usize,
        sealed: Sealed<'a>,
        place: Place,
    ) -> Result<Unsealed<'a>, DropReason> {
        let house = &mut self.house;
        let (pool, copied) = (&house.pool, &mut house.stats.copied_bytes);
        match place {
            Place::Session(index) => {
                let peer = self.peers[index].as_deref_mut().expect("found");
                peer.session.open(now, link, sealed, pool, copied)
            }
            Place::Promise(index) => {
                let promise = self.promises[index].as_ref().expect("found");
                let (_, keys) = promise.keyed.as_ref().expect("it is keyed");
                let opened = sealed.unseal_with(keys, pool, copied);
                opened.map(|(frame, _)| frame).map_err(DropReason::Frame)
            }
            // It cannot be looked into without its session: who sent it, honest or not, is told that there is
            // none.
            Place::Nowhere => {
                let (from, id) = (sealed.from(), sealed.header().session);
                self.unknown_session(now, link, from, id);
                Err(DropReason::UnknownSession)
            }
        }
    }

    /// A frame of no session: nothing is known of who sent it.
    fn greeted(
        &mut self,
        now: Time,
        link: usize,
        frame: &Unsealed<'_>,
        is_proved: bool,
    ) -> Result<(), DropReason> {
        match frame.messages().next() {
            Some(Message::Hello(hello)) if !self.stopping => {
                self.on_hello(now, link, frame.rx(), &hello, is_proved)
            }
            Some(Message::KeyedHello(hello)) if !self.stopping => {
                self.on_keyed_hello(now, link, frame.rx(), &hello, is_proved)
            }
            Some(Message::Discover(discover)) if !self.stopping => {
                self.on_discover(now, link, frame.from(), frame.header().length, &discover)
            }
            _ => Err(DropReason::Direction),
        }
    }

    /// A question on a path of a session, or the answer to one.
    fn probed(
        &mut self,
        now: Time,
        link: usize,
        frame: &Unsealed<'_>,
        index: usize,
    ) -> Result<(), DropReason> {
        let sizes = self.house.links[link].frame_bytes;
        let session = &mut self.peers[index].as_deref_mut().expect("found").session;
        match frame.messages().next() {
            Some(Message::Probe(probe)) => session.on_probe(now, link, frame, &probe, sizes),
            Some(Message::ProbeReply(reply)) => session.on_probe_reply(now, link, frame, &reply),
            _ => Err(DropReason::Direction),
        }
    }

    /// Where the session of this id is. Changes nothing: the frame that named it may be damaged or forged.
    #[inline]
    fn find(&self, now: Time, id: u64) -> Result<Place, DropReason> {
        let upper = (id >> 32) as u32;
        let index = (upper & SESSION_NUMBER) as usize;
        let peer = self.peers.get(index).and_then(Option::as_ref);
        if peer.is_some_and(|p| p.session.local_id() == id) {
            return Ok(Place::Session(index));
        }
        if self.has_promised(now, index, id) {
            return Ok(Place::Promise(index));
        }
        // Not one of this node's: another target, or an initiator, on the same interface.
        if upper & !SESSION_NUMBER != session_lane(self.shard, &self.house.config.node) {
            return Err(DropReason::OtherNode);
        }
        Ok(Place::Nowhere)
    }

    /// The initiator uses the session: whatever the same member of that run had before is over.
    fn confirm(&mut self, index: usize) {
        let peer = self.peers[index].as_deref_mut().expect("found");
        peer.confirmed = true;
        let (run, number) = ((peer.initiator, peer.instance, peer.member), peer.number);
        let principal = |owners: &[Option<Owner>], at: usize| owners[at].clone()?.principal;
        let own = principal(&self.house.owners, index);
        let mut comes_back = false;
        for other in 0..self.peers.len() {
            let same = self.peers[other].as_ref().filter(|p| {
                other != index && (p.initiator, p.instance, p.member) == run && p.confirmed
            });
            match same.map(|p| p.number) {
                Some(earlier) if earlier < number => {
                    let session = self.peers[other].as_ref().expect("found").session.local_id();
                    comes_back |= self.house.exports.open_count(session) > 0
                        && principal(&self.house.owners, other) == own;
                    self.end(other);
                }
                // This one is what was left behind, and a late frame of it has arrived.
                Some(_) => return self.end(index),
                None => {}
            }
        }
        self.peers[index].as_deref_mut().expect("it is there").comes_back = comes_back;
    }

    pub(crate) fn end(&mut self, index: usize) {
        if let Some(owner) = self.house.owners.get_mut(index) {
            *owner = None;
        }
        self.promises[index] = None;
        let Some(peer) = self.peers[index].take() else { return };
        self.house.fair.forget(index);
        self.house.exports.end_session(peer.session.local_id(), peer.session.last_heard());
        // Others may take more.
        self.house.room_changed |= peer.was_attached;
    }

    /// Sessions that the links' room is shared by: strangers that attach nothing take none from others.
    pub(crate) fn attached_sessions(&self) -> usize {
        self.peers.iter().flatten().filter(|p| p.was_attached).count()
    }

    /// How much may be on the way to this target on a link, for all its sessions together.
    pub(crate) fn set_room(&mut self, link: usize, room: Room) {
        self.house.links[link].room = room;
        self.house.room_changed = true;
    }

    fn share_room(&mut self) {
        let room = self.house.room(self.attached_sessions());
        for peer in self.peers.iter_mut().flatten() {
            peer.session.set_room(room);
        }
    }

    /// A descriptor of a volume is readable, or something has happened to one: the next turn polls all of
    /// them, also those that have nothing outstanding, since it stays readable until then.
    pub fn disk_ready(&mut self) {
        self.house.exports.disk_ready();
    }

    /// [`Target::poll`] and [`Target::end_turn`], for tests without a node.
    pub fn turn(&mut self, now: Time, out: &mut [TxBatch]) {
        self.poll(now);
        self.end_turn(now, out);
    }

    /// Takes what the volumes have completed, and answers it.
    pub(crate) fn poll(&mut self, now: Time) {
        self.house.now = now;
        self.house.exports.refresh(now);
        self.house.poll(&mut self.peers);
    }

    /// Fires timers, and adds the frames to send to `out`, one batch per link.
    pub(crate) fn end_turn(&mut self, now: Time, out: &mut [TxBatch]) {
        self.house.now = now;
        if self.house.fair.is_waited_in() {
            self.house.poll(&mut self.peers);
        }
        self.settle_exports(now);
        self.release_held();
        if self.house.exports.has_fenced() {
            self.fall_silent();
        }
        if std::mem::take(&mut self.house.room_changed) {
            self.share_room();
        }
        if now >= self.housekeeping_at {
            self.housekeeping_at = now + HOUSEKEEPING;
            self.expire(now);
        }
        for (batch, waiting) in out.iter_mut().zip(&mut self.outside) {
            if !waiting.is_empty() {
                batch.append(waiting);
            }
        }
        if !self.offers.is_empty() {
            self.send_offers(now, out);
        }
        if self.transmit(now, out) {
            self.end_overrun();
        }
        if !self.house.guests.is_empty() {
            self.end_guests_turn(now, out);
        }
        self.house.end_turn();
    }

    /// What completes at once is settled at once, and what goes on reaches its disk in this turn.
    fn settle_exports(&mut self, now: Time) {
        for _ in 0..SETTLES_PER_TURN {
            let House { room_changed, guests, exports, .. } = &mut self.house;
            let mut sessions = Sessions { peers: &mut self.peers, room_changed, guests };
            exports.settle(now, &mut sessions);
            if !self.house.exports.take_started() {
                break;
            }
            self.house.poll(&mut self.peers);
        }
    }

    /// Ends the sessions that more waits for than may be (`docs/protocol.md`, "Bounds"). Their
    /// initiators learn it when they send something.
    fn end_overrun(&mut self) {
        for index in 0..self.peers.len() {
            let is_over = |peer: &Peer| peer.session.is_overrun() || peer.session.is_worn();
            if self.peers[index].as_deref().is_some_and(is_over) {
                self.house.stats.drops.count(DropReason::Overrun);
                self.end(index);
            }
        }
    }

    /// Tries requests again that were held back while somebody else was to be granted their export.
    fn release_held(&mut self) {
        if !self.house.exports.take_release() {
            return;
        }
        for index in 0..self.peers.len() {
            let Some(peer) = self.peers[index].as_deref_mut() else { continue };
            for slot in 0..peer.slots.count() {
                self.house.try_execute(peer, index, slot);
            }
        }
        if !self.house.guests.is_empty() {
            self.release_guests(self.house.now);
        }
        self.house.poll(&mut self.peers);
    }

    fn expire(&mut self, now: Time) {
        for (index, promise) in self.promises.iter_mut().enumerate() {
            if promise.take_if(|p| now.since(p.created) > UNCONFIRMED).is_some() {
                self.house.owners[index] = None;
            }
        }
        for index in 0..self.peers.len() {
            let Some(peer) = self.peers[index].as_deref() else { continue };
            let silent = now.since(peer.session.last_heard());
            let over = if peer.confirmed {
                silent > self.house.config.session_timeout
            } else {
                now.since(peer.created) > UNCONFIRMED
            };
            if over {
                self.end(index);
            } else {
                self.house.exports.heard(peer.session.local_id(), peer.session.last_heard());
            }
        }
    }

    /// When to call [`Target::turn`] next, at the latest.
    pub fn deadline(&self, now: Time) -> Time {
        let mut at = Time(u64::MAX);
        for peer in self.peers.iter().flatten() {
            if peer.confirmed {
                at = at.min(peer.session.deadline(now));
            } else if peer.session.has_answers() {
                return now;
            }
            at = at.min(self.housekeeping_at);
        }
        if self.promises.iter().any(Option::is_some) {
            at = at.min(self.housekeeping_at);
        }
        for offer in &self.offers {
            at = at.min(offer.at);
        }
        for guest in &self.house.guests {
            at = at.min(guest.deadline(now));
        }
        at = at.min(self.house.exports.deadline(now)).min(self.house.fair.deadline(now));
        let is_due = self.house.room_changed || self.outside.iter().any(|batch| !batch.is_empty());
        if is_due { now } else { at }
    }

    /// A store is at work, for which somebody may wait who has nothing in flight.
    pub(crate) fn is_at_work(&self) -> bool {
        self.house.exports.is_at_work()
    }

    /// The least of [`Session::network_time`](thinwire_proto::Session::network_time).
    pub(crate) fn network_time(&self) -> Option<Duration> {
        self.peers.iter().flatten().filter_map(|peer| peer.session.network_time()).min()
    }

    /// Something is to be done outside: [`Target::next_forward`], [`Target::next_door_letter`],
    /// [`Target::take_note`].
    #[inline]
    pub(crate) fn has_effects(&self) -> bool {
        let exports = &self.house.exports;
        let has_letters = exports.has_letters() || !self.silences.is_empty();
        !self.forwards.is_empty() || exports.has_notes() || has_letters
    }

    /// The next thing that a person who looks after the target should know.
    pub fn take_note(&mut self) -> Option<String> {
        self.house.exports.take_note()
    }

    /// Counters.
    pub fn stats(&self) -> TargetStats {
        let door = self.house.exports.stats();
        TargetStats {
            requests: door.ios,
            fenced: door.fenced,
            twins: door.twins,
            ..self.house.stats
        }
    }
}
