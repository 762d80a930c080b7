//! Who is there, and what each has outstanding.

use std::collections::{BTreeMap, VecDeque};

use thinwire_buffer::{Addr, Time};
use thinwire_exports::{Pass, Wish};
use thinwire_volume::{Identity, Io};
use thinwire_wire::ebd::{EbdForm, Frame, HandshakeAsk, Tag};

/// Which client: its station, and the device in the idealised form, its own minor in the implemented form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub from: Addr,
    pub device: (u8, u8),
}

/// Whether a client may write.
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

/// A place for a request.
#[derive(Debug)]
pub(super) struct Slot {
    pub stage: Stage,
    /// Which use of the slot.
    pub number: u32,
    pub request: Frame,
    /// Until a volume has it.
    pub io: Option<Io>,
    /// A write that overlaps another has not its turn.
    pub waits_for_order: bool,
}

/// A client.
pub(super) struct Client {
    pub key: Key,
    /// By which it names itself, in the implemented form.
    pub index: u8,
    pub offer: usize,
    pub export: usize,
    pub session: u64,
    pub reading: Pass,
    pub writing: Writing,
    /// A pass that was fenced, and is to be closed.
    pub former: Option<Pass>,
    /// When it was heard last.
    pub heard: Time,
    /// Generation of the grant that is in force, as far as is known.
    pub generation: u64,
    /// Under which verifier it shook hands.
    pub verifier: u64,
    pub content: u16,
    /// Of the device.
    pub sectors: u64,
    pub block_bytes: u32,
    /// The most credit that it was told.
    pub credit: u16,
    pub slots: Vec<Slot>,
    free: Vec<u16>,
    /// Requests that came while all slots were taken, in order. Within the credit, which says nothing of slots.
    pub backlog: VecDeque<(Frame, Io)>,
    /// Sectors that it has asked for, and not been answered.
    pub asked: u32,
    /// A handshake that has not been answered.
    pub asks: Option<(Frame, HandshakeAsk)>,
    /// What it was answered last, if it has asked for nothing since.
    pub shaken: Option<(Frame, HandshakeAsk)>,
    /// What it has not flushed may be lost: it is told that it is not known until it has shaken hands. What it was granted
    /// stays its.
    pub is_unknown: bool,
    /// It is not there any more; what a volume has of it has not ended.
    pub is_gone: bool,
    /// It has ended in order,
    pub is_ending: bool,
    /// and that is on record.
    pub is_over: bool,
}

/// Whether two frames ask for the same: whether they want a WACK is no part of that.
fn is_same(one: &Frame, other: &Frame) -> bool {
    Frame { wants_wack: other.wants_wack, ..*one } == *other
}

impl Client {
    pub fn new(key: Key, offer: usize, export: usize, session: u64, reading: Pass) -> Self {
        Client {
            key,
            index: 0,
            offer,
            export,
            session,
            reading,
            writing: Writing::No,
            former: None,
            heard: Time::ZERO,
            generation: 0,
            verifier: 0,
            content: 0,
            sectors: 0,
            block_bytes: 512,
            credit: 0,
            slots: Vec::new(),
            free: Vec::new(),
            backlog: VecDeque::new(),
            asked: 0,
            asks: None,
            shaken: None,
            is_unknown: false,
            is_gone: false,
            is_ending: false,
            is_over: false,
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
        self.free.len() == self.slots.len() && self.backlog.is_empty()
    }

    /// What it is called by in frames that it has not asked for.
    pub fn tag(&self, form: EbdForm) -> Tag {
        let (first, second) = self.key.device;
        match form {
            EbdForm::Ideal => Tag::Ideal { identifier: 0, major: first, minor: second },
            EbdForm::Implemented => {
                Tag::Implemented { client: first, index: self.index, handle: 0, reserved: 0 }
            }
        }
    }

    /// A slot for a request, below `most`; `None` if all are taken.
    pub fn take_slot(&mut self, request: Frame, most: u16) -> Option<u16> {
        if self.free.is_empty() && self.slots.len() < usize::from(most) {
            self.free.push(self.slots.len() as u16);
            self.slots.push(Slot {
                stage: Stage::Free,
                number: 0,
                request,
                io: None,
                waits_for_order: false,
            });
        }
        let at = self.free.pop()?;
        let slot = &mut self.slots[usize::from(at)];
        slot.number = slot.number.wrapping_add(1);
        (slot.request, slot.stage, slot.waits_for_order) = (request, Stage::Waits, false);
        self.asked += u32::from(request.length);
        Some(at)
    }

    /// A slot is free again.
    pub fn free_slot(&mut self, at: u16) {
        let slot = &mut self.slots[usize::from(at)];
        debug_assert_ne!(slot.stage, Stage::Free);
        (slot.stage, slot.io) = (Stage::Free, None);
        self.asked -= u32::from(slot.request.length);
        self.free.push(at);
    }

    /// The same request is at work.
    pub fn has(&self, request: &Frame) -> bool {
        let taken = self.slots.iter().filter(|slot| slot.stage != Stage::Free);
        taken.map(|slot| &slot.request).any(|other| is_same(other, request))
            || self.backlog.iter().any(|(waits, _)| is_same(waits, request))
    }

    /// A write comes again that waits for a slot, and none that overlaps it has come since: done once, with what it says
    /// now, it is what doing both would be. True if it was so.
    pub fn renew_waiting(&mut self, request: &Frame, io: &mut Io) -> bool {
        let end = |frame: &Frame| u64::from(frame.sector) + u64::from(frame.length);
        let overlaps = |other: &Frame| {
            u64::from(other.sector) < end(request) && u64::from(request.sector) < end(other)
        };
        let is_one = |other: &Frame| other.operation.is_write() && overlaps(other);
        let last = self.backlog.iter_mut().rfind(|(other, _)| is_one(other));
        match last {
            Some((waits, kept)) if is_same(waits, request) => {
                std::mem::swap(kept, io);
                true
            }
            _ => false,
        }
    }

    /// A request waits for a slot.
    pub fn wait_for_slot(&mut self, request: Frame, io: Io) {
        self.asked += u32::from(request.length);
        self.backlog.push_back((request, io));
    }

    /// The request that has waited for a slot for longest, if it may have one.
    pub fn next_of_backlog(&mut self, most: u16) -> Option<(Frame, Io)> {
        let has_slot = !self.free.is_empty() || self.slots.len() < usize::from(most);
        let (request, io) = if has_slot { self.backlog.pop_front() } else { None }?;
        self.asked -= u32::from(request.length);
        Some((request, io))
    }

    /// Nothing waits for a slot any more.
    pub fn drop_backlog(&mut self) {
        for (request, _) in self.backlog.drain(..) {
            self.asked -= u32::from(request.length);
        }
    }

    /// The wish of a slot, which waits no more.
    pub fn wish(&mut self, at: u16) -> Option<Wish> {
        let (session, reading) = (self.session, self.reading);
        let slot = &mut self.slots[usize::from(at)];
        let pass = match (slot.request.operation.is_write(), self.writing) {
            (false, Writing::Granted(pass)) | (true, Writing::Granted(pass)) => pass,
            (false, _) => reading,
            (true, _) => return None,
        };
        let io = slot.io.take()?;
        slot.stage = Stage::InVolume;
        Some(Wish { session, pass, slot: at, number: slot.number, io })
    }

    pub fn take_from_line(&mut self, at: u16) -> Option<Wish> {
        let is_in_line = self.slots.get(usize::from(at))?.stage == Stage::InLine;
        if is_in_line { self.wish(at) } else { None }
    }
}

/// All clients, by place.
pub(super) struct Clients {
    places: Vec<Option<Client>>,
    by_key: BTreeMap<Key, usize>,
    by_session: BTreeMap<u64, usize>,
    /// The index that was given last.
    index: u8,
}

impl Clients {
    pub fn new(seed: u64) -> Self {
        let (places, by_key, by_session) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        Clients { places, by_key, by_session, index: seed as u8 }
    }

    pub fn iter(&self) -> impl Iterator<Item = &Client> {
        self.places.iter().flatten()
    }

    pub fn places(&self) -> std::ops::Range<usize> {
        0..self.places.len()
    }

    pub fn is_at(&self, at: usize) -> bool {
        self.places.get(at).is_some_and(Option::is_some)
    }

    pub fn get(&self, at: usize) -> &Client {
        self.places[at].as_ref().expect("a client is there")
    }

    pub fn get_mut(&mut self, at: usize) -> &mut Client {
        self.places[at].as_mut().expect("a client is there")
    }

    pub fn find(&self, key: Key) -> Option<usize> {
        self.by_key.get(&key).copied()
    }

    pub fn of_session(&self, session: u64) -> Option<usize> {
        self.by_session.get(&session).copied()
    }

    pub fn add(&mut self, client: Client) -> usize {
        let free = self.places.iter().position(Option::is_none);
        let at = free.unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        });
        self.by_key.insert(client.key, at);
        self.by_session.insert(client.session, at);
        self.places[at] = Some(client);
        at
    }

    /// It is not found by who it is any more.
    pub fn hide(&mut self, at: usize) {
        let key = self.get(at).key;
        if self.by_key.get(&key) == Some(&at) {
            self.by_key.remove(&key);
        }
        self.get_mut(at).is_gone = true;
    }

    pub fn remove(&mut self, at: usize) -> Option<Client> {
        let client = self.places.get_mut(at)?.take()?;
        self.by_session.remove(&client.session);
        if self.by_key.get(&client.key) == Some(&at) {
            self.by_key.remove(&client.key);
        }
        Some(client)
    }

    /// An index that no client has; zero is none.
    pub fn next_index(&mut self) -> u8 {
        for _ in 0..=u8::MAX {
            self.index = self.index.wrapping_add(1);
            let index = self.index;
            if index != 0 && !self.iter().any(|client| client.index == index) {
                break;
            }
        }
        self.index
    }
}

/// 16 bits of which content it is, never zero.
pub fn content_of(identity: &Identity) -> u16 {
    let bytes = identity.identity.iter().copied().chain(identity.incarnation.to_le_bytes());
    let fold = bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    1 + ((fold ^ fold >> 32) % 65_535) as u16
}

/// 16 bits of which grant it is, zero for none.
pub fn writer_of(generation: u64) -> u16 {
    match generation {
        0 => 0,
        some => 1 + ((some - 1) % 65_535) as u16,
    }
}
