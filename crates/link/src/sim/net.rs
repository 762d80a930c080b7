//! The switch, its stations and their links.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::io;
use std::rc::Rc;
use std::time::Duration;

use thinwire_buffer::{
    Addr, FrameSizes, LinkInfo, PAGE_BYTES, Pool, Room, RxBatch, RxFrame, SegList, TxBatch,
};

use super::{FaultRates, SimStats, Verdict, WireConfig};
use crate::rng::Rng;
use crate::{HEAD_BYTES, Link, LinkStats, Outgoing, Sources};

const ETHERNET_PAYLOAD_MIN: usize = 46;

/// What a station's link says about itself.
#[derive(Clone, Copy, Debug)]
pub struct StationConfig {
    /// Largest frame it sends; default 9000. It receives any size.
    pub frame_bytes_max: usize,
    /// Size it starts with; default 1500.
    pub frame_bytes_base: usize,
    /// Frames it holds until they are received; more are dropped. Default 256.
    pub room_frames: u32,
    /// Frames longer than this arrive in pieces of so many bytes, as on an xdp link; at least 80.
    /// Default: none do.
    pub piece_bytes_max: usize,
    /// Which protocol is spoken there: a station hears nothing of others, as sockets of an EtherType. Default 0,
    /// Thinwire's, whose frames are damaged as they are; those of others are not checked but by adapters, so
    /// damaged ones are lost. Nor do others tell a frame from its copy: that comes right behind it. How long theirs have
    /// waited here is told.
    pub protocol: u8,
}

impl Default for StationConfig {
    fn default() -> Self {
        StationConfig {
            frame_bytes_max: 9000,
            frame_bytes_base: 1500,
            room_frames: 256,
            piece_bytes_max: usize::MAX,
            protocol: 0,
        }
    }
}

struct Station {
    config: StationConfig,
    up: bool,
    /// Which link of this station is the present one; an older one is dead.
    generation: u32,
    /// What waits for each of the links that share it.
    waiting: Vec<VecDeque<Arrived>>,
    /// Which of them gets a frame.
    steer: Option<Steer>,
    /// When its port can send, and receive, the next frame.
    tx_free_ns: u64,
    rx_free_ns: u64,
    stats: LinkStats,
}

/// A frame that waits to be received.
#[derive(Clone, Debug)]
struct Arrived {
    from: u32,
    at_ns: u64,
    bytes: Vec<u8>,
}

struct Flight {
    from: u32,
    to: u32,
    bytes: Vec<u8>,
    /// Whoever sent it was not the station that it says.
    is_forged: bool,
}

type Judge = Box<dyn FnMut(u32, u32, &[u8]) -> Verdict>;

/// Which of the links that share a station gets a frame, by its bytes; none of them, and it is
/// dropped.
pub type Steer = Rc<dyn Fn(&[u8]) -> Option<usize>>;

struct Net {
    rng: Rng,
    wire: WireConfig,
    now_ns: u64,
    stations: Vec<Station>,
    /// Pairs (low, high) that do not reach each other.
    cuts: BTreeSet<(u32, u32)>,
    /// Order of arrival; the number tells frames of one time apart.
    due: BinaryHeap<Reverse<(u64, u64)>>,
    flights: BTreeMap<u64, Flight>,
    next: u64,
    last_arrival_ns: BTreeMap<(u32, u32), u64>,
    judge: Option<Judge>,
    stats: SimStats,
    spare: Vec<Vec<u8>>,
}

/// A simulated network. Clones are handles of the same one.
#[derive(Clone)]
pub struct SimNet {
    net: Rc<RefCell<Net>>,
}

impl SimNet {
    /// A network without stations, at time 0.
    pub fn new(seed: u64, wire: WireConfig) -> Self {
        SimNet {
            net: Rc::new(RefCell::new(Net {
                rng: Rng::new(seed),
                wire,
                now_ns: 0,
                stations: Vec::new(),
                cuts: BTreeSet::new(),
                due: BinaryHeap::new(),
                flights: BTreeMap::new(),
                next: 0,
                last_arrival_ns: BTreeMap::new(),
                judge: None,
                stats: SimStats::default(),
                spare: Vec::new(),
            })),
        }
    }

    /// A new station; they are numbered from 0.
    pub fn station(&self, config: StationConfig) -> SimLink {
        let mut net = self.net.borrow_mut();
        let number = net.stations.len() as u32;
        net.stations.push(Station {
            config,
            up: true,
            generation: 0,
            waiting: vec![VecDeque::new()],
            steer: None,
            tx_free_ns: 0,
            rx_free_ns: 0,
            stats: LinkStats::default(),
        });
        drop(net);
        self.link(number, 0)
    }

    /// A new link of an old station, after a crash: what waited there is gone, what is on the wire
    /// still arrives, and the old link (if it is still held) neither sends nor receives any more.
    pub fn reopen(&self, number: u32) -> SimLink {
        self.reopen_lanes(number, 1, None);
        self.link(number, 0)
    }

    /// As [`SimNet::reopen`], for several links that share the station's address, as sockets of
    /// shards share an interface: `steer` says which of them gets a frame. Each has the station's
    /// room for itself.
    pub fn reopen_shared(&self, number: u32, count: usize, steer: Steer) -> Vec<SimLink> {
        self.reopen_lanes(number, count, Some(steer));
        (0..count).map(|lane| self.link(number, lane)).collect()
    }

    fn reopen_lanes(&self, number: u32, count: usize, steer: Option<Steer>) {
        let mut net = self.net.borrow_mut();
        let station = &mut net.stations[number as usize];
        station.generation += 1;
        station.waiting = vec![VecDeque::new(); count];
        station.steer = steer;
        station.stats = LinkStats::default();
    }

    fn link(&self, number: u32, lane: usize) -> SimLink {
        let net = self.net.borrow();
        let station = &net.stations[number as usize];
        SimLink {
            net: self.net.clone(),
            number,
            lane,
            generation: station.generation,
            config: station.config,
            name: format!("sim:{number}"),
        }
    }

    /// Time goes on to `now_ns` (it never goes back); what is due arrives.
    pub fn advance(&self, now_ns: u64) {
        let net = &mut *self.net.borrow_mut();
        assert!(now_ns >= net.now_ns, "time goes forward");
        while let Some(&Reverse((at_ns, number))) = net.due.peek()
            && at_ns <= now_ns
        {
            net.due.pop();
            let flight = net.flights.remove(&number).expect("every due frame is in flight");
            net.arrive(at_ns, flight);
        }
        net.now_ns = now_ns;
    }

    /// When the next frame arrives, if any is on the wire.
    pub fn next_delivery(&self) -> Option<u64> {
        self.net.borrow().due.peek().map(|&Reverse((at_ns, _))| at_ns)
    }

    /// The time of the last `advance`.
    pub fn now_ns(&self) -> u64 {
        self.net.borrow().now_ns
    }

    /// How many frames wait for a link of a station: the first, and only one, unless several share it.
    pub fn waiting(&self, number: u32, lane: usize) -> usize {
        let net = self.net.borrow();
        net.stations[number as usize].waiting.get(lane).map_or(0, VecDeque::len)
    }

    /// How the wire behaves at present.
    pub fn wire(&self) -> WireConfig {
        self.net.borrow().wire
    }

    /// Changes how the wire behaves, for frames sent from now on.
    pub fn set_wire(&self, change: impl FnOnce(&mut WireConfig)) {
        change(&mut self.net.borrow_mut().wire);
    }

    /// Changes the random faults alone.
    pub fn set_faults(&self, faults: FaultRates) {
        self.set_wire(|wire| wire.faults = faults);
    }

    /// Cuts or mends the way between two stations; what is on it is lost when it arrives at a cut.
    pub fn set_cut(&self, a: u32, b: u32, is_cut: bool) {
        let pair = (a.min(b), a.max(b));
        let mut net = self.net.borrow_mut();
        if is_cut {
            net.cuts.insert(pair);
        } else {
            net.cuts.remove(&pair);
        }
    }

    /// Takes a station's link down or up. Down, it drops what it sends and what arrives.
    pub fn set_up(&self, number: u32, is_up: bool) {
        self.net.borrow_mut().stations[number as usize].up = is_up;
    }

    /// Lets a test decide about single frames: called with sender, receiver and bytes for every
    /// frame that enters the wire, before random faults. It must not use the network.
    pub fn set_judge(&self, judge: impl FnMut(u32, u32, &[u8]) -> Verdict + 'static) {
        self.net.borrow_mut().judge = Some(Box::new(judge));
    }

    /// Ends that.
    pub fn clear_judge(&self) {
        self.net.borrow_mut().judge = None;
    }

    /// A frame arrives somewhere, after the least latency, from a station that has not sent it and need not
    /// exist: somebody on the way has made it. No judge sees it, no fault happens to it, no cut stops it.
    pub fn forge(&self, from: u32, to: u32, bytes: &[u8]) {
        let net = &mut *self.net.borrow_mut();
        if net.stations.get(to as usize).is_none() {
            return;
        }
        net.stats.forged += 1;
        let at_ns = net.now_ns + net.wire.latency_ns_min;
        net.fly(from, to, at_ns, bytes, false);
        net.flights.last_entry().expect("just added").get_mut().is_forged = true;
    }

    /// Counters.
    pub fn stats(&self) -> SimStats {
        self.net.borrow().stats
    }
}

impl Net {
    fn is_cut(&self, a: u32, b: u32) -> bool {
        let up = |n: u32| self.stations.get(n as usize).is_some_and(|station| station.up);
        !up(a) || !up(b) || self.cuts.contains(&(a.min(b), a.max(b)))
    }

    /// Puts a frame, complete in `bytes`, on the wire.
    fn launch(&mut self, from: u32, to: Addr, bytes: &[u8]) {
        // The sender's port is busy once, however many the frame goes to.
        let ser_ns = self.wire.port_ns(bytes.len() as u64);
        let port = &mut self.stations[from as usize];
        port.tx_free_ns = port.tx_free_ns.max(self.now_ns) + ser_ns;
        let left_ns = port.tx_free_ns;
        match to {
            Addr::Sim(to) => self.carry(from, to, left_ns, ser_ns, bytes),
            Addr::Group => {
                for to in (0..self.stations.len() as u32).filter(|&to| to != from) {
                    self.carry(from, to, left_ns, ser_ns, bytes);
                }
            }
            Addr::Mac(_) | Addr::Udp(_) => {}
        }
    }

    fn carry(&mut self, from: u32, to: u32, left_ns: u64, ser_ns: u64, bytes: &[u8]) {
        let protocol =
            |station: u32| self.stations.get(station as usize).map(|s| s.config.protocol);
        if protocol(from) != protocol(to) {
            return;
        }
        self.stats.sent += 1;
        if self.is_cut(from, to) {
            self.stats.cut += 1;
            return;
        }
        if bytes.len() > self.wire.transit_bytes_max {
            self.stats.too_long += 1;
            return;
        }
        let verdict = self.judge.as_mut().map_or(Verdict::Pass, |judge| judge(from, to, bytes));
        let wire = self.wire;
        if verdict == Verdict::Drop || self.rng.chance(wire.faults.loss) {
            self.stats.lost += 1;
            return;
        }
        let latency_ns = self.rng.between(wire.latency_ns_min, wire.latency_ns_max);
        let at_port_ns = left_ns + latency_ns;
        let port = &mut self.stations[to as usize];
        let queue_ns = wire.port_ns(wire.port_queue_bytes);
        if wire.port_bytes_per_s > 0 && port.rx_free_ns > at_port_ns + queue_ns {
            self.stats.port_full += 1;
            return;
        }
        port.rx_free_ns = port.rx_free_ns.max(at_port_ns) + ser_ns;
        let last_ns = self.last_arrival_ns.entry((from, to)).or_insert(0);
        let mut at_ns = port.rx_free_ns.max(*last_ns);
        if self.rng.chance(wire.faults.reorder) {
            self.stats.reordered += 1;
            at_ns += self.rng.between(1, wire.reorder_ns_max.max(1));
        } else if let Verdict::Delay(more_ns) = verdict {
            at_ns += more_ns;
        } else {
            *last_ns = at_ns;
        }
        if let Verdict::Repeat(more_ns) = verdict {
            self.stats.duplicated += 1;
            self.fly(from, to, at_ns + more_ns, bytes, false);
        }
        if self.rng.chance(wire.faults.dup) {
            self.stats.duplicated += 1;
            let more_ns = self.rng.between(0, wire.reorder_ns_max);
            // Who cannot tell a copy from another frame survives none that makes a detour.
            let is_told_apart = self.stations[to as usize].config.protocol == 0;
            let more_ns = if is_told_apart { more_ns } else { 0 };
            let is_damaged = self.rng.chance(wire.faults.corrupt);
            self.fly(from, to, at_ns + more_ns, bytes, is_damaged);
        }
        let is_damaged = self.rng.chance(wire.faults.corrupt);
        self.fly(from, to, at_ns, bytes, is_damaged);
    }

    fn fly(&mut self, from: u32, to: u32, at_ns: u64, bytes: &[u8], is_damaged: bool) {
        if is_damaged && self.stations[to as usize].config.protocol != 0 {
            self.stats.corrupted += 1;
            return;
        }
        let mut copy = self.spare.pop().unwrap_or_default();
        copy.clear();
        copy.extend_from_slice(bytes);
        if self.wire.pads && copy.len() < ETHERNET_PAYLOAD_MIN {
            copy.resize(ETHERNET_PAYLOAD_MIN, 0);
        }
        if is_damaged {
            self.stats.corrupted += 1;
            self.rng.damage(&mut copy);
        }
        let number = self.next;
        self.next += 1;
        self.due.push(Reverse((at_ns, number)));
        self.flights.insert(number, Flight { from, to, bytes: copy, is_forged: false });
    }

    fn arrive(&mut self, at_ns: u64, flight: Flight) {
        let Flight { from, to, bytes, is_forged } = flight;
        let is_cut = match is_forged {
            true => self.is_cut(to, to),
            false => self.is_cut(from, to),
        };
        if is_cut {
            self.stats.cut += 1;
            self.spare.push(bytes);
            return;
        }
        let station = &mut self.stations[to as usize];
        let lane = station.steer.as_ref().map_or(Some(0), |steer| steer(&bytes));
        let Some(waiting) = lane.and_then(|lane| station.waiting.get_mut(lane)) else {
            self.stats.unwanted += 1;
            self.spare.push(bytes);
            return;
        };
        if waiting.len() >= station.config.room_frames as usize {
            station.stats.rx_dropped += 1;
            self.stats.no_room += 1;
            self.spare.push(bytes);
            return;
        }
        self.stats.delivered += 1;
        waiting.push_back(Arrived { from, at_ns, bytes });
    }
}

/// One station's link.
pub struct SimLink {
    net: Rc<RefCell<Net>>,
    number: u32,
    /// Which of the links that share the station.
    lane: usize,
    generation: u32,
    config: StationConfig,
    name: String,
}

impl SimLink {
    /// The station's number: its address is `Addr::Sim` of it.
    pub fn number(&self) -> u32 {
        self.number
    }
}

impl Link for SimLink {
    fn name(&self) -> &str {
        &self.name
    }

    fn info(&self) -> LinkInfo {
        let StationConfig { frame_bytes_base: base, frame_bytes_max: max, .. } = self.config;
        let frames = self.config.room_frames;
        let room = Room { frames, bytes: frames.saturating_mul(max as u32) };
        let frame_bytes = FrameSizes { base: base.min(max), max };
        LinkInfo { addr: Addr::Sim(self.number), frame_bytes, room }
    }

    fn send(&mut self, batch: &mut TxBatch) -> io::Result<Outgoing> {
        let net = &mut *self.net.borrow_mut();
        let mut whole = net.spare.pop().unwrap_or_default();
        for frame in batch.frames() {
            let station = &mut net.stations[self.number as usize];
            let bytes = frame.bytes();
            let is_dead = station.generation != self.generation || !station.up;
            if is_dead || bytes > self.config.frame_bytes_max || bytes == 0 {
                station.stats.tx_dropped += 1;
                continue;
            }
            station.stats.tx_frames += 1;
            station.stats.tx_bytes += bytes as u64;
            whole.clear();
            whole.extend_from_slice(&frame.head);
            for segment in frame.data.iter() {
                whole.extend_from_slice(segment);
            }
            net.launch(self.number, frame.to, &whole);
        }
        net.spare.push(whole);
        net.stations[self.number as usize].stats.tx_calls += u64::from(!batch.is_empty());
        batch.clear();
        Ok(Outgoing::default())
    }

    fn recv(&mut self, pool: &Pool, max: usize, out: &mut RxBatch) -> io::Result<usize> {
        const START: usize = PAGE_BYTES - HEAD_BYTES;
        let net = &mut *self.net.borrow_mut();
        let station = &mut net.stations[self.number as usize];
        if station.generation != self.generation {
            return Ok(0);
        }
        station.stats.rx_calls += 1;
        let mut count = 0;
        while count < max
            && let Some(Arrived { from, at_ns, bytes }) = station.waiting[self.lane].pop_front()
        {
            let mut buf = pool.get(START + bytes.len());
            buf[START..].copy_from_slice(&bytes);
            let whole = buf.freeze().slice(START, bytes.len());
            let piece_bytes = station.config.piece_bytes_max;
            let first = whole.slice(0, whole.len().min(piece_bytes));
            let mut rest = SegList::new();
            let mut at = first.len();
            while at < whole.len() {
                let len = piece_bytes.min(whole.len() - at);
                rest.push(whole.slice(at, len));
                at += len;
            }
            // Those of others are told, as by sockets.
            let is_told = station.config.protocol != 0;
            let waited_ns = if is_told { net.now_ns.saturating_sub(at_ns) } else { 0 };
            let (waited, queued) = (Duration::from_nanos(waited_ns), Duration::ZERO);
            out.push_back(RxFrame { from: Addr::Sim(from), bytes: first, rest, waited, queued });
            station.stats.rx_frames += 1;
            station.stats.rx_bytes += bytes.len() as u64;
            net.spare.push(bytes);
            count += 1;
        }
        Ok(count)
    }

    fn sources(&self) -> Sources<'_> {
        [None; 3]
    }

    fn due_in(&mut self) -> Option<Duration> {
        None
    }

    fn stats(&self) -> LinkStats {
        let net = self.net.borrow();
        let station = &net.stations[self.number as usize];
        if station.generation == self.generation { station.stats } else { LinkStats::default() }
    }
}
