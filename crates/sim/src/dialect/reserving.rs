//! Reserve/Release of AoE: a person at a station reserves a device, by a program of its own beside the client, for its
//! station or another. What a server keeps of that may be what was before, if its process dies.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use thinwire_aoe::{AoeKeeper, AoeKept, mac_of, reserved_writer, station_writer};
use thinwire_buffer::Addr;
use thinwire_link::rng::Rng;
use thinwire_wire::aoe::{AoeCommand, Header, Reservation, ReserveCommand, ShelfSlot};

use super::DialectUser;
use crate::coverage::Coverage;

/// How likely a process that begins finds what was set before changes that are not durable yet.
const STALE: f64 = 0.5;
/// A station that is in lists, and nowhere else.
const NOWHERE: [u8; 6] = [2, 0xff, 0, 0, 0, 1];

/// For whom a device is to be reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum For {
    /// The station that asks.
    Itself,
    /// That, and one that nobody has.
    ItselfAndNobody,
    /// Another that writes the same, if there is one.
    Another,
    /// Nobody: it is released.
    Nobody,
}

impl For {
    /// All that there is to draw from.
    pub const ALL: [For; 4] = [For::Itself, For::ItselfAndNobody, For::Another, For::Nobody];
}

/// Whom a station of this number may be on record as that writes a device: for itself, or as one of those for whom the
/// device is reserved.
pub(super) fn writers_of(device: ShelfSlot, station: u32) -> Vec<[u8; 16]> {
    let addr = Addr::Sim(station);
    let lists = [For::Itself, For::ItselfAndNobody].map(|whom| list(whom, station));
    let mut all = vec![station_writer(device, addr)];
    all.extend(lists.iter().map(|list| reserved_writer(device, list)));
    all
}

fn list(whom: For, station: u32) -> Vec<[u8; 6]> {
    let mac = mac_of(Addr::Sim(station));
    let mut list = match whom {
        For::Itself | For::Another => vec![mac],
        For::ItselfAndNobody => vec![NOWHERE, mac],
        For::Nobody => Vec::new(),
    };
    list.sort_unstable();
    list
}

impl DialectUser {
    /// A person at its station has a device reserved, or released. `another`: the station of another that writes it.
    pub(super) fn reserve(
        &mut self,
        (whom, is_forced): (For, bool),
        (server, another): (u32, Option<u32>),
        coverage: &mut Coverage,
    ) {
        let (Some(device), true) = (self.device(), self.is_running() && !self.read_only) else {
            return;
        };
        let station = match whom {
            For::Another => another,
            _ => Some(self.machine.stations[0]),
        };
        let Some(station) = station else { return };
        let command = if is_forced { ReserveCommand::ForceSet } else { ReserveCommand::Set };
        let out = self.machine.batches()[0].push(Addr::Sim(server));
        let tag = self.rng.bits() as u32;
        Header::request(device, AoeCommand::Reserve, tag).put(&mut out.head);
        Reservation::new(command, &list(whom, station)).put(&mut out.head);
        self.machine.send_own();
        coverage.aoe_reserves += 1;
    }
}

/// Of each device what is set.
pub(super) struct KeptBook {
    devices: BTreeMap<ShelfSlot, KeptPage>,
    dice: Rng,
}

impl Default for KeptBook {
    fn default() -> Self {
        KeptBook { devices: BTreeMap::new(), dice: Rng::new(0) }
    }
}

#[derive(Default)]
struct KeptPage {
    now: AoeKept,
    /// What is there if the process dies before that is durable.
    before: AoeKept,
    /// How often it is looked at before it is.
    looks: u64,
}

impl KeptBook {
    /// What a process finds that begins now.
    pub fn found(&mut self, device: ShelfSlot, seed: u64) -> AoeKept {
        self.dice = Rng::new(seed ^ 0x006b_6570_7421);
        let page = self.devices.entry(device).or_default();
        if std::mem::take(&mut page.looks) > 0 && self.dice.chance(STALE) {
            page.now.clone_from(&page.before);
        }
        page.now.clone()
    }
}

/// Keeps it.
pub(super) struct BookKeeper(pub Rc<RefCell<KeptBook>>);

impl AoeKeeper for BookKeeper {
    fn keep(&mut self, device: ShelfSlot, kept: &AoeKept) {
        let book = &mut *self.0.borrow_mut();
        let page = book.devices.entry(device).or_default();
        let replaced = std::mem::replace(&mut page.now, kept.clone());
        if page.looks == 0 {
            page.before = replaced;
        }
        page.looks = book.dice.between(1, 20);
    }

    fn is_kept(&self, device: ShelfSlot) -> bool {
        let book = &mut *self.0.borrow_mut();
        let page = book.devices.entry(device).or_default();
        page.looks = page.looks.saturating_sub(1);
        page.looks == 0
    }
}
