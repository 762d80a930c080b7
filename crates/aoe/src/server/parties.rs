//! Who is there: the parties of a device, each a writer of its own, and what each has outstanding.

use std::collections::BTreeMap;

use thinwire_buffer::{Addr, Time};
use thinwire_exports::{Pass, Wish};
use thinwire_volume::{Identity, Io};
use thinwire_wire::aoe::{AtaIo, AtaRegisters, Header};

/// The address of a station, as it stands in lists.
pub(super) type Mac = [u8; 6];

/// Who sent a frame, and on which of the server's links it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sender {
    pub port: usize,
    pub addr: Addr,
}

impl Sender {
    /// Everybody on a link.
    pub fn all(port: usize) -> Self {
        Sender { port, addr: Addr::Group }
    }

    pub fn mac(self) -> Mac {
        mac_of(self.addr)
    }
}

/// Whose I/O of a device is one writer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Who {
    /// A station's.
    One(Mac),
    /// That of all stations that may use the device, if that is told ([`AoeOffer::stations`](super::AoeOffer)).
    Stations,
    /// That of all for whom it is reserved.
    Reserved,
}

/// Whether a party may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Writing {
    /// It has not asked for that.
    No,
    /// It has, under this transaction.
    Asked(u32),
    /// It may.
    Granted(Pass),
    /// It could, until another was granted the export.
    Fenced,
}

/// Where a request is.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub(super) enum Stage {
    /// Nowhere: the slot is free.
    Free,
    /// Before the door: for leave to write, or for a write before it.
    Waits,
    /// It may go to the door, which has not been asked.
    Ready,
    /// In line before a volume.
    InLine,
    /// The door holds it back.
    Held,
    /// A volume has it.
    InVolume,
}

/// What is asked for, and by whom.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub from: Sender,
    pub header: Header,
    pub registers: AtaRegisters,
    pub ata: AtaIo,
}

impl Asked {
    pub fn is_write(&self) -> bool {
        matches!(self.ata, AtaIo::Write { .. })
    }
}

/// A place for a request.
#[derive(Debug)]
pub(super) struct Slot {
    pub stage: Stage,
    /// Which use of the slot.
    pub number: u32,
    pub asked: Asked,
    /// Until a volume has it.
    pub io: Option<Io>,
    /// A write that overlaps another has not its turn.
    pub waits_for_order: bool,
    /// How many writes of the party had been answered, and not made durable, when a volume got it.
    pub written: u64,
}

/// A party.
pub(super) struct Party {
    pub offer: usize,
    pub who: Who,
    pub export: usize,
    pub session: u64,
    pub reading: Pass,
    pub writing: Writing,
    /// A pass that was fenced, and is to be closed.
    pub former: Option<Pass>,
    /// When it was heard last.
    pub heard: Time,
    /// Of the drive.
    pub sectors: u64,
    pub identity: Identity,
    /// Under which verifier writes were answered that no flush has covered.
    pub unflushed: Option<u64>,
    /// How many those were.
    pub written: u64,
    pub slots: Vec<Slot>,
    free: Vec<u16>,
    /// Others have taken its place; what a volume has of it has not ended.
    pub is_gone: bool,
    /// That it has ended is being recorded.
    pub is_ending: bool,
}

impl Party {
    pub fn new(offer: usize, who: Who, export: usize, session: u64, reading: Pass) -> Self {
        Party {
            offer,
            who,
            export,
            session,
            reading,
            writing: Writing::No,
            former: None,
            heard: Time::ZERO,
            sectors: 0,
            identity: Identity::default(),
            unflushed: None,
            written: 0,
            slots: Vec::new(),
            free: Vec::new(),
            is_gone: false,
            is_ending: false,
        }
    }

    /// It has been granted the export, and nobody else since.
    pub fn may_write(&self) -> bool {
        matches!(self.writing, Writing::Granted(_))
    }

    /// Another was granted the export: `pass` means nothing any more. One that was granted since does.
    pub fn on_fenced(&mut self, pass: Pass) {
        if self.writing == Writing::Granted(pass) {
            self.writing = Writing::Fenced;
        }
        self.former = Some(pass);
    }

    /// No volume has anything of it, and nothing waits.
    pub fn is_idle(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    /// A slot for a request, below `most`; `None` if all are taken.
    pub fn take_slot(&mut self, asked: Asked, io: Io, most: u16) -> Option<u16> {
        if self.free.is_empty() && self.slots.len() < usize::from(most) {
            self.free.push(self.slots.len() as u16);
            self.slots.push(Slot {
                stage: Stage::Free,
                number: 0,
                asked,
                io: None,
                waits_for_order: false,
                written: 0,
            });
        }
        let at = self.free.pop()?;
        let slot = &mut self.slots[usize::from(at)];
        slot.number = slot.number.wrapping_add(1);
        (slot.asked, slot.io, slot.stage) = (asked, Some(io), Stage::Waits);
        slot.waits_for_order = false;
        Some(at)
    }

    /// A slot is free again.
    pub fn free_slot(&mut self, at: u16) {
        let slot = &mut self.slots[usize::from(at)];
        debug_assert_ne!(slot.stage, Stage::Free);
        (slot.stage, slot.io) = (Stage::Free, None);
        self.free.push(at);
    }

    /// The wish of a slot, which waits no more; `None` of a write that it may not do any more, unless nobody `is_unasked`.
    pub fn wish(&mut self, at: u16, is_unasked: bool) -> Option<Wish> {
        let (session, reading) = (self.session, self.reading);
        let slot = &mut self.slots[usize::from(at)];
        let pass = match (slot.asked.ata, self.writing) {
            // Whoever is granted the export meanwhile, reads go on.
            (AtaIo::Read { .. }, _) => reading,
            (_, Writing::Granted(pass)) => pass,
            (AtaIo::Write { .. }, _) if !is_unasked => return None,
            _ => reading,
        };
        let io = slot.io.take()?;
        slot.stage = Stage::InVolume;
        Some(Wish { session, pass, slot: at, number: slot.number, io })
    }

    pub fn take_from_line(&mut self, at: u16) -> Option<Wish> {
        let is_in_line = self.slots.get(usize::from(at))?.stage == Stage::InLine;
        if is_in_line { self.wish(at, false) } else { None }
    }
}

/// All parties, by place.
#[derive(Default)]
pub(super) struct Parties {
    places: Vec<Option<Party>>,
    /// Those that are not gone, by device.
    by_who: BTreeMap<(usize, Who), usize>,
    by_session: BTreeMap<u64, usize>,
}

impl Parties {
    pub fn iter(&self) -> impl Iterator<Item = &Party> {
        self.places.iter().flatten()
    }

    pub fn places(&self) -> std::ops::Range<usize> {
        0..self.places.len()
    }

    pub fn is_at(&self, at: usize) -> bool {
        self.places.get(at).is_some_and(Option::is_some)
    }

    pub fn get(&self, at: usize) -> &Party {
        self.places[at].as_ref().expect("a party is there")
    }

    pub fn get_mut(&mut self, at: usize) -> &mut Party {
        self.places[at].as_mut().expect("a party is there")
    }

    pub fn find(&self, offer: usize, who: Who) -> Option<usize> {
        self.by_who.get(&(offer, who)).copied()
    }

    pub fn of_session(&self, session: u64) -> Option<usize> {
        self.by_session.get(&session).copied()
    }

    /// The one of a device that may write, or is about to be told.
    pub fn writer(&self, offer: usize) -> Option<usize> {
        let writes =
            |party: &Party| matches!(party.writing, Writing::Granted(_) | Writing::Asked(_));
        self.places.iter().position(|place| {
            place
                .as_ref()
                .is_some_and(|party| party.offer == offer && !party.is_gone && writes(party))
        })
    }

    /// A party comes; it is not found by who it is before [`Parties::show`].
    pub fn add(&mut self, party: Party) -> usize {
        let free = self.places.iter().position(Option::is_none);
        let at = free.unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        });
        self.by_session.insert(party.session, at);
        self.places[at] = Some(party);
        at
    }

    /// It is found by who it is from now on.
    pub fn show(&mut self, at: usize) {
        let key = (self.get(at).offer, self.get(at).who);
        self.by_who.insert(key, at);
    }

    /// It is not found by who it is any more.
    pub fn hide(&mut self, at: usize) {
        self.get_mut(at).is_gone = true;
        let key = (self.get(at).offer, self.get(at).who);
        if self.by_who.get(&key) == Some(&at) {
            self.by_who.remove(&key);
        }
    }

    pub fn remove(&mut self, at: usize) -> Option<Party> {
        if self.is_at(at) {
            self.hide(at);
        }
        let party = self.places.get_mut(at)?.take()?;
        self.by_session.remove(&party.session);
        Some(party)
    }
}

/// The address of a station, as it stands in lists; links without such addresses have some made of theirs.
pub fn mac_of(addr: Addr) -> [u8; 6] {
    match addr {
        Addr::Mac(mac) => mac,
        Addr::Sim(n) => {
            let [a, b, c, d] = n.to_be_bytes();
            [2, 0, a, b, c, d]
        }
        Addr::Group | Addr::Udp(_) => [0; 6],
    }
}

#[cfg(test)]
mod tests {
    use thinwire_volume::Op;
    use thinwire_wire::aoe::{AoeCommand, ShelfSlot};

    use super::*;

    #[test]
    fn a_read_goes_on_whoever_is_granted_the_export_meanwhile() {
        let pass = |number| Pass { number, generation: 1 };
        let mut party = Party::new(0, Who::Stations, 0, 7, pass(1));
        party.writing = Writing::Granted(pass(2));
        let from = Sender { port: 0, addr: Addr::Sim(1) };
        let place = |party: &mut Party, ata, op| {
            let header = Header::request(ShelfSlot { shelf: 7, slot: 1 }, AoeCommand::IssueAta, 1);
            let asked = Asked { from, header, registers: AtaRegisters::default(), ata };
            party.take_slot(asked, Io::new(0, op, 0, 512), 8).expect("there is room")
        };
        let read = AtaIo::Read { sector: 0, sectors: 1 };
        let write = AtaIo::Write { sector: 0, sectors: 1 };
        let passes = |party: &mut Party| {
            let slots = [(read, Op::Read), (write, Op::Write), (AtaIo::Flush, Op::Flush)]
                .map(|(ata, op)| place(party, ata, op));
            slots.map(|at| party.wish(at, false).map(|wish| wish.pass))
        };
        assert_eq!(passes(&mut party), [Some(pass(1)), Some(pass(2)), Some(pass(2))]);
        party.on_fenced(pass(2));
        assert_eq!(passes(&mut party), [Some(pass(1)), None, Some(pass(1))]);
    }
}
