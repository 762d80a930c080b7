//! The server: devices in front of the door of a target, on one link or several (`docs/aoe.md`, "The server").
//!
//! * `port.rs`: one of its links, a guest of the target
//! * `parties.rs`: who is there, and what each has outstanding
//! * `requests.rs`: ATA commands
//! * `order.rs`: writes of one export that overlap, in the order in which they came
//! * `queries.rs`: config strings, masks, announcements, and other servers of the same device
//! * `writers.rs`: who may write
//! * `reserving.rs`: for whom a device is reserved; `releasing.rs`: the end of a writer

mod order;
mod parties;
mod port;
mod queries;
mod releasing;
mod requests;
mod reserving;
mod writers;

pub use self::parties::mac_of;
pub use self::port::AoePort;
pub use self::writers::{reserved_writer, station_writer};

use std::collections::VecDeque;

use thinwire_buffer::{Addr, LinkInfo, RxFrame, SegList, Time, TxBatch};
use thinwire_exports::DialectDesk;
use thinwire_wire::aoe::{
    AoeCommand, AtaRefused, AtaRegisters, Body, DATA_OFFSET, ErrorCode, FrameRefused, HEADER_BYTES,
    Header, RefusedBy, SECTOR_BYTES, ShelfSlot, VERSION,
};

use self::order::Order;
use self::parties::{Parties, Sender};
use self::queries::Gauge;
use self::reserving::Reserving;
use crate::AoeCanary;

/// What clients have set of a device, and a server has to find again when it begins anew.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AoeKept {
    /// The config string: any octets, at most 1024.
    pub config: Vec<u8>,
    /// Stations that are listened to (MAC Mask List), at most 255; all if there are none.
    pub masks: Vec<[u8; 6]>,
    /// Stations that the device is reserved for (Reserve/Release), at most 255, in order; none if it is not.
    pub reserved: Vec<[u8; 6]>,
    /// Those for whom it is about to be. The record of who writes says which of the two lists is in force, if one is.
    pub reserving: Vec<[u8; 6]>,
}

/// Keeps what clients have set. Called on the server's thread: it must not wait.
pub trait AoeKeeper {
    /// It has changed.
    fn keep(&mut self, device: ShelfSlot, kept: &AoeKept);

    /// What was given last is durable; or cannot be made so, and a person has been told.
    fn is_kept(&self, device: ShelfSlot) -> bool;
}

/// A device that a server offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AoeOffer {
    /// Its number: of one shelf and one slot.
    pub device: ShelfSlot,
    /// The export.
    pub export: String,
    /// Stations that may use it, as one writer; everybody, each for itself, if there are none. A mask, no protection.
    pub stations: Vec<Addr>,
    /// A write is answered once the store has it, not once it is on the medium: what was answered and not flushed may be lost.
    pub cached: bool,
    /// As it was kept last.
    pub kept: AoeKept,
}

/// What a server does.
#[derive(Clone, Debug)]
pub struct AoeServerConfig {
    /// Its devices: no two of the same number.
    pub offers: Vec<AoeOffer>,
    /// Tells this life of it from others: the tags of its own questions begin behind it.
    pub seed: u64,
    /// A fault that the simulator has to find.
    pub canary: AoeCanary,
}

/// What a server has counted. Each reason why a frame was dropped or refused has one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AoeServerStats {
    /// Requests given to the door.
    pub requests: u64,
    /// Queries that were answered.
    pub queries: u64,
    /// Frames that are none, by reason: see [`AoeServerStats::frames`].
    pub frames_refused: [u64; FrameRefused::ALL.len()],
    /// Commands that were refused, by reason: see [`AoeServerStats::commands`].
    pub commands_refused: [u64; AtaRefused::ALL.len()],
    /// Answers, of which a server waits for none.
    pub answers: u64,
    /// Requests to a shelf or slot that is not here.
    pub absent: u64,
    /// Requests to all shelves or slots that would change something.
    pub to_all: u64,
    /// Frames of stations that are not listened to.
    pub masked: u64,
    /// Commands of stations that the device is reserved against, or that may not write since another does.
    pub reserved: u64,
    /// Requests that came while the one before them was being decided.
    pub undecided: u64,
    /// Requests beyond the buffer count, and stations for which there is no room.
    pub beyond_room: u64,
    /// Writes that were received before one that they overlap, and had been taken in.
    pub stale: u64,
    /// Queries that were not answered, since there are so many.
    pub storm: u64,
    /// Frames by which another station says that it is a device that is here.
    pub rivals: u64,
    /// Commands that a volume has failed.
    pub failed: u64,
    /// Flushes that failed since what they should cover may be lost.
    pub lost: u64,
    /// Bytes of answers in the memory that they were read into, and of writes in that they came in.
    pub bytes: u64,
}

impl AoeServerStats {
    /// How many frames were refused for this reason.
    pub fn frames(&self, why: FrameRefused) -> u64 {
        self.frames_refused[why as usize]
    }

    /// How many commands were refused for this reason.
    pub fn commands(&self, why: AtaRefused) -> u64 {
        self.commands_refused[why as usize]
    }
}

/// A device, and what is decided about it.
struct Device {
    offer: AoeOffer,
    /// Which of the server's: devices of one export share it.
    order: usize,
    /// On which links it is.
    ports: Vec<usize>,
    /// A change of whom it is reserved for, which is being decided.
    reserving: Option<Reserving>,
    /// It is known which of the lists that were kept is in force.
    is_settled: bool,
    /// When a record that could not be read is read again, at the soonest.
    reads_again_at: Time,
}

/// A link of a server.
struct Link {
    info: LinkInfo,
    /// Frames that go out with this turn.
    out: TxBatch,
    has_announced: bool,
}

/// The devices of a target, and the parties that use them, whichever link they come by. On the target's thread; its links are
/// [`AoePort`]s.
pub struct AoeServer {
    devices: Vec<Device>,
    ports: Vec<Link>,
    parties: Parties,
    orders: Vec<Order>,
    keeper: Option<Box<dyn AoeKeeper>>,
    /// Parties of which something is to be done at the end of the turn.
    due: VecDeque<usize>,
    gauge: Gauge,
    /// Stations that are a device that is here, too, as far as people have been told.
    rivals: Vec<(Addr, ShelfSlot)>,
    heard_at: Time,
    tag: u32,
    transactions: u32,
    numbers: u64,
    is_stopping: bool,
    canary: AoeCanary,
    stats: AoeServerStats,
}

impl AoeServer {
    /// A server without a link: [`AoePort::new`] gives it one.
    ///
    /// # Panics
    /// If the number of a device means several: the caller has checked.
    pub fn new(config: AoeServerConfig) -> Self {
        let AoeServerConfig { offers, seed, canary } = config;
        let mut names: Vec<String> = Vec::new();
        let mut devices = Vec::with_capacity(offers.len());
        for mut offer in offers {
            for list in [&mut offer.kept.reserved, &mut offer.kept.reserving] {
                list.sort_unstable();
                list.dedup();
            }
            let is_settled = offer.kept.reserved.is_empty() && offer.kept.reserving.is_empty();
            assert!(offer.device.is_one(), "{} is not one device", offer.device);
            let order = names.iter().position(|name| *name == offer.export).unwrap_or(names.len());
            if order == names.len() {
                names.push(offer.export.clone());
            }
            let (ports, reads_again_at) = (Vec::new(), Time::ZERO);
            devices.push(Device {
                offer,
                order,
                ports,
                reserving: None,
                is_settled,
                reads_again_at,
            });
        }
        AoeServer {
            devices,
            ports: Vec::new(),
            parties: Parties::default(),
            orders: names.iter().map(|_| Order::new()).collect(),
            keeper: None,
            due: VecDeque::new(),
            gauge: Gauge::default(),
            rivals: Vec::new(),
            heard_at: Time::ZERO,
            tag: seed as u32,
            transactions: 0,
            numbers: 0,
            is_stopping: false,
            canary,
            stats: AoeServerStats::default(),
        }
    }

    /// The same, which has what clients set kept.
    pub fn kept_by(self, keeper: Box<dyn AoeKeeper>) -> Self {
        AoeServer { keeper: Some(keeper), ..self }
    }

    /// What it has counted.
    pub fn stats(&self) -> AoeServerStats {
        self.stats
    }

    /// How many parties it knows.
    pub fn party_count(&self) -> usize {
        self.parties.iter().count()
    }

    /// What clients have set of a device, as it is now.
    pub fn kept(&self, device: ShelfSlot) -> Option<&AoeKept> {
        let found = self.devices.iter().find(|known| known.offer.device == device)?;
        Some(&found.offer.kept)
    }

    /// The most sectors of a request: what a frame holds behind the registers.
    fn request_sectors_max(&self, port: usize) -> u8 {
        let room = self.ports[port].info.frame_bytes.max.saturating_sub(DATA_OFFSET);
        (room / SECTOR_BYTES).min(usize::from(u8::MAX)) as u8
    }

    /// Sends a header, and what is behind it.
    fn say(&mut self, to: Sender, header: &Header, put: impl FnOnce(&mut Vec<u8>)) {
        let out = self.ports[to.port].out.push(to.addr);
        out.head.extend_from_slice(&header.to_bytes());
        put(&mut out.head);
    }

    /// Answers an ATA command.
    fn say_registers(
        &mut self,
        to: Sender,
        header: &Header,
        registers: AtaRegisters,
        data: SegList,
    ) {
        let out = self.ports[to.port].out.push(to.addr);
        out.head.extend_from_slice(&header.to_bytes());
        out.head.extend_from_slice(&registers.to_bytes());
        out.data = data;
    }

    /// The server refuses a request, for one of its devices.
    fn refuse(&mut self, to: Sender, header: &Header, at: usize, code: ErrorCode) {
        let header = header.refuse(self.devices[at].offer.device, code);
        self.say(to, &header, |_| {});
    }

    /// A command is refused.
    fn refuse_command(&mut self, asked: &parties::Asked, at: usize, by: RefusedBy) {
        let parties::Asked { from, header, registers, .. } = *asked;
        match by {
            RefusedBy::Server(code) => self.refuse(from, &header, at, code),
            RefusedBy::Drive(error) => {
                let header = header.answer(self.devices[at].offer.device);
                self.say_registers(from, &header, registers.failed(error), SegList::new());
            }
        }
    }

    /// Whether frames of a station mean anything to a device.
    fn hears(&self, at: usize, from: Sender) -> bool {
        let offer = &self.devices[at].offer;
        let (stations, masks) = (&offer.stations, &offer.kept.masks);
        (stations.is_empty() || stations.contains(&from.addr))
            && (masks.is_empty() || masks.contains(&from.mac()))
    }

    fn take(&mut self, now: Time, port: usize, rx: &RxFrame, desk: &mut dyn DialectDesk) {
        if self.ports.iter().any(|port| port.info.addr == rx.from) {
            return;
        }
        let from = Sender { port, addr: rx.from };
        let mut head = [0; DATA_OFFSET];
        let seen = rx.len().min(head.len());
        rx.copy_to(0, &mut head[..seen]);
        let header = match Header::parse(&head[..seen]) {
            Ok(header) => header,
            Err(why) => return self.stats.frames_refused[why as usize] += 1,
        };
        if header.is_response {
            return self.on_answer(from, &header, desk);
        }
        let mut is_here = false;
        for at in 0..self.devices.len() {
            let device = &self.devices[at];
            if !header.device.covers(device.offer.device) || !device.ports.contains(&port) {
                continue;
            }
            is_here = true;
            match self.hears(at, from) {
                true => {
                    self.take_for(now, at, &header, &head[HEADER_BYTES..seen], (from, rx), desk)
                }
                false => self.stats.masked += 1,
            }
        }
        self.stats.absent += u64::from(!is_here);
    }

    /// A request concerns a device.
    fn take_for(
        &mut self,
        now: Time,
        at: usize,
        header: &Header,
        behind: &[u8],
        (from, rx): (Sender, &RxFrame),
        desk: &mut dyn DialectDesk,
    ) {
        let is_ata = header.version == VERSION && header.command == AoeCommand::IssueAta as u8;
        let is_reserve = header.version == VERSION && header.command == AoeCommand::Reserve as u8;
        if (is_ata || is_reserve) && !self.settle_for(now, at, from, header, desk) {
            return;
        }
        if is_ata {
            return match AtaRegisters::parse(behind) {
                Ok(registers) => self.on_ata(now, at, header, registers, (from, rx), desk),
                Err(why) => self.refuse_frame(now, from, header, at, why),
            };
        }
        // Others are short, and rare.
        let mut whole = vec![0; rx.len()];
        rx.copy_to(0, &mut whole);
        match Body::parse(header, &whole[HEADER_BYTES..]) {
            Ok(Body::Query(query)) => self.on_query(now, at, from, header, &query, desk),
            Ok(Body::Mask(list)) => self.on_mask(now, at, from, header, &list),
            Ok(Body::Reserve(asked)) => self.on_reserve(now, at, from, header, &asked, desk),
            // Of an ATA command the registers are read above, and no request is an answer.
            Ok(Body::Ata(_) | Body::Refused) => {}
            Err(why) => self.refuse_frame(now, from, header, at, why),
        }
    }

    fn refuse_frame(
        &mut self,
        now: Time,
        from: Sender,
        header: &Header,
        at: usize,
        why: FrameRefused,
    ) {
        self.stats.frames_refused[why as usize] += 1;
        if let Some(code) = why.code()
            && self.may_answer(now)
        {
            self.refuse(from, header, at, code);
        }
    }

    /// Forgets a party: it is taken in anew when it wants something.
    fn forget(&mut self, now: Time, at: usize, desk: &mut dyn DialectDesk) {
        self.drop_waiting(at, desk);
        let Some(party) = self.parties.remove(at) else { return };
        let device = &mut self.devices[party.offer];
        device.reserving.take_if(|reserving| reserving.is_of(at));
        self.orders[device.order].forget(at);
        desk.leave(party.session, now);
    }
}
