//! Other protocols in front of the door of this target: each a guest with a link of its own, whose clients have places
//! among the sessions (`exports/src/dialect.rs`).

use thinwire_buffer::{Addr, RxFrame, Time, TxBatch};
use thinwire_exports::{
    Dialect, DialectDesk, Done, Exports, IoTicket, NoEntry, Refused, Submitted, Wish,
};
use thinwire_volume::{Completion, ErrorKind, Io, Op};

use crate::fair::{Cost, Mark};
use crate::greet::{SESSION_NUMBER, session_lane};
use crate::house::{House, Owner};
use crate::room::host;
use crate::target::Target;

/// Clients of other protocols, at most: nobody shows that it receives before it is one, and sessions have the other places.
const SEATS_MAX: usize = 256;

/// What they are told of.
pub(crate) type Guests = Vec<Box<dyn Dialect>>;

/// The place of a session.
fn place_of(session: u64) -> usize {
    ((session >> 32) as u32 & SESSION_NUMBER) as usize
}

/// Whose a session is, if it is a guest's.
pub(crate) fn guest_of(guests: &mut Guests, session: u64) -> Option<&mut Box<dyn Dialect>> {
    guests.iter_mut().find_map(|guest| guest.is_there(session).then_some(guest))
}

/// Tells a guest that an I/O has ended; nobody, if its client has gone.
#[cold]
pub(crate) fn tell_done(
    guests: &mut Guests,
    now: Time,
    ticket: IoTicket,
    op: Op,
    verifier: u64,
    completion: &mut Completion,
) {
    if matches!(completion.result, Err(error) if error.kind == ErrorKind::Fenced) {
        // Nobody hears of it: its client goes, in this turn.
        return;
    }
    let IoTicket { session, number, .. } = ticket;
    if let Some(guest) = guest_of(guests, session) {
        let (slot, number) = ((number >> 32) as u16, number as u32);
        guest.on_completion(now, Done { session, slot, number, op, verifier, completion });
    }
}

impl House {
    /// A guest's wish, which `HAS_WAITED` or passes those by that do.
    fn begin_guests<const HAS_WAITED: bool>(&mut self, wish: Wish) -> Submitted {
        let Wish { session, pass, slot, number, io } = wish;
        let permit = match self.exports.admit(session, pass) {
            Ok(permit) => permit,
            Err(NoEntry::Waits) => {
                return Submitted::Held(Wish { session, pass, slot, number, io });
            }
            Err(why) => return Submitted::Refused(Refused::Pass(why)),
        };
        let (place, line, cost) = (place_of(session), permit.export(), cost_of(&io));
        let mark = match HAS_WAITED {
            false => Mark::unshared(place),
            true => self.fair.begin_at(self.now, line, place, cost),
        };
        let ticket =
            IoTicket { session, place: mark.0, number: u64::from(slot) << 32 | u64::from(number) };
        let in_store = &mut self.in_store[place];
        match self.exports.submit(permit, io, ticket, |_| *in_store += 1) {
            Ok(()) => Submitted::Begun,
            Err(kind) => {
                self.fair.end(self.now, mark, false);
                Submitted::Refused(Refused::Io(kind))
            }
        }
    }

    /// It is the turn of a guest's session.
    #[cold]
    pub(crate) fn serve_guest(&mut self, place: usize, slot: u16) {
        let mut guests = std::mem::take(&mut self.guests);
        let session = self.seats.get(place).copied().flatten();
        if let Some(session) = session
            && let Some(guest) = guest_of(&mut guests, session)
            && let Some(wish) = guest.take_from_line(session, slot)
        {
            let (pass, number) = (wish.pass, wish.number);
            match self.begin_guests::<true>(wish) {
                Submitted::Begun => {}
                Submitted::InLine(wish) | Submitted::Held(wish) => {
                    // Whoever is to be granted the export next: it is asked for again behind that.
                    guest.on_refused(self.now, wish, Refused::Pass(NoEntry::Waits));
                }
                Submitted::Refused(why) => {
                    let io = Io::new(0, Op::Flush, 0, 0);
                    guest.on_refused(self.now, Wish { session, pass, slot, number, io }, why);
                }
            }
        }
        self.guests = guests;
    }
}

/// What an I/O costs its session and its store.
fn cost_of(io: &Io) -> Cost {
    Cost::of_io(io.op, io.len)
}

impl Target {
    /// Has another protocol in front of the door, whose frames come over a link of its own: the next behind those that the
    /// target has.
    pub fn add_guest(&mut self, guest: Box<dyn Dialect>) {
        self.house.guests.push(guest);
    }

    /// Does something with the guests, who are given the desk.
    fn with_guests<R>(&mut self, act: impl FnOnce(&mut Guests, &mut Target) -> R) -> R {
        let mut guests = std::mem::take(&mut self.house.guests);
        let done = act(&mut guests, self);
        self.house.guests = guests;
        done
    }

    /// A frame of a guest's has come.
    pub(crate) fn on_guests_frame(&mut self, now: Time, link: usize, frame: &mut RxFrame) {
        self.house.now = now;
        let own = self.house.links.len();
        self.with_guests(|guests, desk| guests[link - own].on_frame(now, frame, desk));
    }

    /// Wishes that were held back are tried again.
    pub(crate) fn release_guests(&mut self, now: Time) {
        self.with_guests(|guests, desk| {
            guests.iter_mut().for_each(|guest| guest.on_release(now, desk));
        });
    }

    /// An export is being taken away. Returns how many of their clients had it.
    pub(crate) fn remove_from_guests(&mut self, export: usize) -> usize {
        let now = self.house.now;
        let seated = |target: &Target| target.house.seats.iter().flatten().count();
        let before = seated(self);
        self.with_guests(|guests, desk| {
            guests.iter_mut().for_each(|guest| guest.on_removed(now, export, desk));
        });
        before - seated(self)
    }

    /// The end of a turn for the guests.
    #[cold]
    pub(crate) fn end_guests_turn(&mut self, now: Time, out: &mut [TxBatch]) {
        let own = self.house.links.len();
        self.with_guests(|guests, desk| {
            guests.iter_mut().for_each(|guest| guest.end_turn(now, desk));
        });
        self.house.poll(&mut self.peers);
        for (guest, out) in self.house.guests.iter_mut().zip(&mut out[own..]) {
            guest.transmit(now, out);
        }
    }
}

impl DialectDesk for Target {
    fn exports(&mut self) -> &mut Exports {
        &mut self.house.exports
    }

    fn seat(&mut self, now: Time, from: Addr) -> Result<u64, String> {
        let owner = Owner { principal: None, host: host(from) };
        if self.house.seats.iter().flatten().count() >= SEATS_MAX {
            return Err(format!(
                "{SEATS_MAX} clients of other protocols are there, and there is room for no more"
            ));
        }
        self.keep_limits_of_guest(&owner).map_err(|over| over.to_string())?;
        let place = self.make_room(now, from, false).ok_or("all places for sessions are taken")?;
        let house = &mut self.house;
        house.owners.resize(self.peers.len().max(house.owners.len()), None);
        house.owners[place] = Some(owner);
        let upper = session_lane(self.shard, &house.config.node) | place as u32;
        let session = u64::from(upper) << 32 | house.rng.next_u64() >> 32;
        house.seats.resize(self.peers.len().max(house.seats.len()), None);
        house.seats[place] = Some(session);
        house.stats.sessions += 1;
        Ok(session)
    }

    fn leave(&mut self, session: u64, last_heard: Time) {
        let place = place_of(session);
        if self.house.seats.get(place) != Some(&Some(session)) {
            return;
        }
        (self.house.seats[place], self.house.owners[place]) = (None, None);
        self.house.fair.forget(place);
        self.house.exports.end_session(session, last_heard);
    }

    fn slots(&self) -> u16 {
        self.house.config.slots
    }

    fn submit(&mut self, now: Time, wish: Wish) -> Submitted {
        let place = place_of(wish.session);
        let house = &mut self.house;
        if !house.fair.is_shared(now, place) {
            return house.begin_guests::<false>(wish);
        }
        match house.exports.admit(wish.session, wish.pass) {
            Ok(permit) => {
                house.fair.wait_at(permit.export(), place, wish.slot, cost_of(&wish.io));
                Submitted::InLine(wish)
            }
            Err(NoEntry::Waits) => Submitted::Held(wish),
            Err(why) => Submitted::Refused(Refused::Pass(why)),
        }
    }

    fn withdraw(&mut self, session: u64, slot: u16) {
        self.house.fair.remove(place_of(session), slot);
    }
}
