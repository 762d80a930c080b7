//! Doors of several shards before one store, which do what dice say: in any order, with letters as late as may be.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use thinwire_buffer::{Pool, SegList, Time};
use thinwire_exports::{
    DoorCanary, DoorLetter, ExportConfig, Exports, ExportsConfig, InitiatorRun, IoTicket, NoEntry,
    Pass, SpreadConfig, User, WriteClaim,
};
use thinwire_volume::{Completion, ErrorKind, Io, Op, WriterRecord};

const SHARDS: u8 = 3;
const INITIATORS_MAX: usize = 5;
const FIRST_VERIFIER: u64 = 1;

use crate::rings::{BLOCKS, File, Flight, Ring, RingVolume};
use crate::told::Told;

/// What a test may vary.
#[derive(Clone, Copy, Default)]
pub struct Plan {
    pub seed: u64,
    pub canary: DoorCanary,
}

struct Dice(u64);

impl Dice {
    /// A number below `end`.
    fn below(&mut self, end: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % end
    }

    fn falls(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}

/// What an initiator was answered and relies on.
#[derive(Default)]
struct Client {
    session: u64,
    shard: usize,
    reads: Option<Pass>,
    writes: Option<(Pass, u64)>,
    is_claiming: bool,
    /// Whose member it is, and which: else it is the first and only one of its own.
    joins: Option<(usize, u8)>,
    /// Under which generation the first may have others join it.
    generation: Option<u64>,
    /// Writes that were answered: block, version, verifier.
    answered: Vec<(u64, u64, u64)>,
}

/// An I/O that somebody waits for.
struct Asked {
    who: u8,
    session: u64,
    fua: bool,
    block: u64,
    version: u64,
    /// What had been answered when it was asked: a flush covers that.
    covered: Vec<(u64, u64, u64)>,
    /// The newest verifier that anybody had been told by then.
    newest: usize,
}

pub struct World {
    dice: Dice,
    file: Rc<RefCell<File>>,
    rings: Vec<Rc<RefCell<Ring>>>,
    /// The generation and version of the write that is being submitted.
    entering: Rc<RefCell<(u64, u64)>>,
    doors: Vec<Exports>,
    told: Vec<Told>,
    /// From one shard to another.
    mail: BTreeMap<(u8, u8), VecDeque<DoorLetter>>,
    clients: Vec<Client>,
    asked: BTreeMap<u64, Asked>,
    number: u64,
    now: Time,
    /// Verifiers that anybody was told, in the order in which each was first.
    verifiers: Vec<u64>,
    newest: usize,
    granted_generation: u64,
    /// Generations under which something was written.
    written: BTreeSet<u64>,
    /// Syncs fail; and whether other volumes hear of it than the one that is told.
    fails: bool,
    hears: bool,
    pub figures: Figures,
    pool: Pool,
}

/// What has come about: worlds in which nothing does prove nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    pub grants: u64,
    pub fenced: u64,
    pub syncs: u64,
    pub losses: u64,
    pub answers: u64,
    pub letters: u64,
    pub refused: u64,
    pub joined: u64,
    pub idle: u64,
}

impl World {
    pub fn new(plan: Plan) -> Self {
        let mut dice = Dice(plan.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5bd1);
        let pool = Pool::new(0);
        let file = Rc::new(RefCell::new(File {
            cached: [0; BLOCKS as usize],
            durable: [0; BLOCKS as usize],
            has_failed: false,
            busy: BTreeSet::new(),
            record: WriterRecord::default().to_data(&pool),
            losses: 0,
        }));
        let entering = Rc::new(RefCell::new((0, 0)));
        let owner = dice.below(usize::from(SHARDS)) as u8;
        let (mut rings, mut doors, mut told) = (Vec::new(), Vec::new(), Vec::new());
        for shard in 0..SHARDS {
            let ring = Rc::new(RefCell::new(Ring::default()));
            let config = ExportsConfig { canary: plan.canary, ..ExportsConfig::default() };
            let mut door = Exports::new(config, 1000 + u64::from(shard), &pool);
            let volume = RingVolume(file.clone(), ring.clone(), entering.clone());
            let spread =
                SpreadConfig { number: 7, shard, shards: SHARDS, owner, verifier: FIRST_VERIFIER };
            let config =
                ExportConfig { name: "disk".into(), volume: Box::new(volume), read_only: false };
            door.add_spread(config, spread);
            rings.push(ring);
            doors.push(door);
            told.push(Told::default());
        }
        let (fails, hears) = (dice.falls(70), dice.falls(50));
        let initiators = 2 + dice.below(INITIATORS_MAX - 1);
        let mut clients: Vec<_> = (0..initiators).map(|_| Client::default()).collect();
        // Drawn apart, so that the other worlds are as they would be without.
        let mut apart = Dice(plan.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x6d65);
        if apart.falls(40) {
            clients.truncate(2);
            for member in 1..=1 + apart.below(2) {
                let joins = Some((0, member as u8));
                clients.push(Client { joins, ..Client::default() });
            }
        }
        World {
            dice,
            file,
            rings,
            entering,
            doors,
            told,
            mail: BTreeMap::new(),
            clients,
            asked: BTreeMap::new(),
            number: 0,
            now: Time(1_000_000_000),
            verifiers: vec![FIRST_VERIFIER],
            newest: 0,
            granted_generation: 0,
            written: BTreeSet::new(),
            fails,
            hears,
            figures: Figures::default(),
            pool,
        }
    }

    /// Something happens.
    ///
    /// # Errors
    /// It must not.
    pub fn step(&mut self) -> Result<(), String> {
        self.now = self.now + Duration::from_millis(1);
        match self.dice.below(20) {
            0..=6 => self.act()?,
            7..=9 => self.land()?,
            10..=13 => {
                let shard = self.dice.below(usize::from(SHARDS));
                self.turn(shard)?;
            }
            14..=18 => self.deliver()?,
            _ if self.fails && self.dice.falls(4) => self.lose(),
            _ => {}
        }
        Ok(())
    }

    /// Everything goes to its end, and nobody acts any more.
    ///
    /// # Errors
    /// Somebody waits for ever.
    pub fn come_to_rest(&mut self) -> Result<(), String> {
        self.fails = false;
        for _ in 0..200 {
            self.now = self.now + Duration::from_millis(100);
            while self.rings.iter().any(|ring| !ring.borrow().flying.is_empty()) {
                self.land()?;
            }
            (0..usize::from(SHARDS)).try_for_each(|shard| self.turn(shard))?;
            while self.mail.values().any(|letters| !letters.is_empty()) {
                self.deliver()?;
            }
        }
        let waits = |client: &&Client| {
            let door = &self.doors[client.shard];
            let entry = client.writes.map(|(pass, _)| door.admit(client.session, pass));
            matches!(entry, Some(Err(NoEntry::Waits)))
        };
        if let Some(client) = self.clients.iter().find(waits) {
            return Err(format!("the writes of session {} wait for ever", client.session));
        }
        let writes = |client: &Client| {
            let door = &self.doors[client.shard];
            client.writes.is_some_and(|(pass, _)| door.admit(client.session, pass).is_ok())
        };
        let attached = self.doors.iter().flat_map(Exports::reports).find_map(|report| {
            let is_owners = report.branch_of.is_none();
            is_owners.then(|| report.writer.is_some_and(|writer| writer.attached))
        });
        if attached != Some(self.clients.iter().any(writes)) {
            return Err(format!("the owner tells of a writer that it is attached: {attached:?}"));
        }
        let claiming = self.clients.iter().filter(|client| client.is_claiming).count();
        let at_work = self.doors.iter().filter(|door| door.is_at_work()).count();
        match (self.asked.len(), claiming, at_work) {
            (0, 0, 0) => Ok(()),
            left => Err(format!("I/Os, claims, doors that wait for ever: {left:?}")),
        }
    }

    /// An initiator does something.
    fn act(&mut self) -> Result<(), String> {
        // Who may write has most to do.
        let writer = self.clients.iter().position(|client| client.writes.is_some());
        let of_several = self.clients.iter().position(|c| c.joins.is_some() && c.writes.is_some());
        let writer = of_several.filter(|_| self.dice.falls(50)).or(writer);
        let may_join = |c: &Client| {
            let first = c.joins.map(|(first, _)| &self.clients[first]);
            let is_there = first.is_some_and(|first| first.writes.is_some());
            is_there && c.reads.is_some() && c.writes.is_none() && !c.is_claiming
        };
        let joins_now = self.clients.iter().position(may_join).filter(|_| self.dice.falls(20));
        let who = match writer.filter(|_| joins_now.is_none() && self.dice.falls(50)) {
            Some(writer) => writer,
            None => joins_now.unwrap_or_else(|| self.dice.below(self.clients.len())),
        };
        let at = self.clients[who].shard;
        let client = &mut self.clients[who];
        if client.session == 0 || self.dice.falls(1) {
            // A new session, wherever its greeting was dealt to.
            if client.session != 0 {
                self.doors[at].end_session(client.session, self.now);
                self.told[at].sessions.remove(&client.session);
            }
            self.number += 1;
            let shard = self.dice.below(usize::from(SHARDS));
            let answered = std::mem::take(&mut client.answered);
            let (session, joins, generation) = (self.number, client.joins, client.generation);
            *client = Client { session, shard, answered, joins, generation, ..Client::default() };
            self.told[shard].sessions.insert(self.number);
            if let Some(granted) = self.doors[shard].attach_read(self.number, 1, 0) {
                client.reads = Some(granted.pass);
                return self.hear_present(granted.verifier);
            }
            return Ok(());
        }
        if client.reads.is_none() {
            return Ok(());
        }
        let (session, writes, joins) = (client.session, client.writes, client.joins);
        let joined = joins.map(|(first, _)| self.clients[first].generation);
        let eager = match writer {
            _ if joins_now.is_some() => 100,
            None => 60,
            Some(_) => 8,
        };
        let what = if joins_now.is_some() { 0 } else { self.dice.below(10) };
        let client = &mut self.clients[who];
        match what {
            0 if joined == Some(None) => {}
            0 if !client.is_claiming && self.dice.falls(eager) => {
                client.is_claiming = true;
                let resumes =
                    writes.filter(|_| self.dice.falls(30)).map(|(_, generation)| generation);
                let resumes = joined.unwrap_or(resumes);
                let (first, member) = joins.unwrap_or((who, 0));
                let run = InitiatorRun { initiator: [first as u8 + 1; 16], instance: 1 };
                let user = User {
                    session,
                    number: session,
                    run,
                    member,
                    is_leased: true,
                    name: format!("client {who}"),
                };
                let takes_over = resumes.is_none() && self.dice.falls(80);
                let transaction = session as u32;
                let claim = WriteClaim { user: &user, transaction, export: 0, resumes, takes_over };
                let is_denied = self.doors[at].claim(self.now, claim).is_err();
                self.clients[who].is_claiming = !is_denied;
            }
            1 if self.dice.falls(10) => {
                if let Some((pass, _)) = client.writes.take() {
                    self.doors[at].close(session, pass, 9);
                }
            }
            2 => self.doors[at].heard(session, self.now),
            3 => self.submit(who, Op::Flush)?,
            4..=6 if Some(who) != writer => self.submit(who, Op::Read)?,
            _ => self.submit(who, Op::Write)?,
        }
        Ok(())
    }

    fn submit(&mut self, who: usize, op: Op) -> Result<(), String> {
        let Client { session, shard, reads, writes, .. } = self.clients[who];
        let pass = match (op, writes) {
            (Op::Write, None) => return Ok(()),
            (_, Some((pass, _))) => pass,
            (_, None) => reads.expect("each session has one"),
        };
        let permit = match self.doors[shard].admit(session, pass) {
            Ok(permit) => permit,
            Err(NoEntry::Waits) => return Ok(()),
            Err(NoEntry::Fenced) => {
                let client = &mut self.clients[who];
                let under = client.writes.take().map_or(0, |(_, generation)| generation);
                let record = WriterRecord::from_data(&self.file.borrow().record);
                if !client.is_claiming && record.is_none_or(|r| r.generation <= under) {
                    return Err(format!("client {who} is fenced, and by nobody"));
                }
                return Ok(());
            }
            Err(NoEntry::NoPass) => return Err(format!("a pass of client {who} is none")),
        };
        let block = self.dice.below(BLOCKS as usize) as u64;
        let len = if op == Op::Flush { 0 } else { 512 };
        let mut io = Io::new(0, op, if op == Op::Flush { 0 } else { block * 512 }, len);
        self.number += 1;
        if op == Op::Write {
            if !self.file.borrow_mut().busy.insert(block) {
                return Ok(());
            }
            io.data = SegList::of(self.pool.get(512).freeze());
            io.flags.fua = self.dice.falls(8);
            *self.entering.borrow_mut() = (writes.expect("it writes").1, self.number);
        }
        let asked = Asked {
            who: who as u8,
            session,
            fua: io.flags.fua,
            block,
            version: self.number,
            covered: self.clients[who].answered.clone(),
            newest: self.newest,
        };
        self.asked.insert(self.number, asked);
        let ticket = IoTicket { session, place: 0, number: self.number };
        let submitted = self.doors[shard].submit(permit, io, ticket, |_| {});
        if let (Op::Write, Some((_, generation))) = (op, writes) {
            self.written.insert(generation);
        }
        submitted.map_err(|kind| format!("{op} refused: {kind:?}"))
    }

    /// Somebody is told under how many generations before this one nobody has written.
    fn hear_idle(&mut self, generation: u64, idle: u32) -> Result<(), String> {
        let since = generation - u64::from(idle);
        if let Some(written) = self.written.range(since..generation).next() {
            return Err(format!(
                "{generation} is granted as idle since {since}, and {written} was written under"
            ));
        }
        let last = self.written.range(..generation).next_back().copied().unwrap_or(0);
        // Who comes back knows already what it had.
        if generation > self.granted_generation && since > last + 1 {
            return Err(format!(
                "{generation} is granted as idle since {since}, and is since {}",
                last + 1
            ));
        }
        self.figures.idle += u64::from(idle > 0);
        Ok(())
    }

    /// An I/O has its effect, in any order.
    fn land(&mut self) -> Result<(), String> {
        let shard = self.dice.below(usize::from(SHARDS));
        let count = self.rings[shard].borrow().flying.len();
        if count == 0 {
            return Ok(());
        }
        let at = self.dice.below(count);
        let Flight { io, generation, version } = self.rings[shard].borrow_mut().flying.remove(at);
        let mut completion = Completion::new(io.token, Ok(()));
        let mut file = self.file.borrow_mut();
        let block = (io.offset / 512) as usize;
        match io.op {
            Op::Write => {
                if generation < self.granted_generation {
                    return Err(format!(
                        "a write under generation {generation} landed behind the grant of {}",
                        self.granted_generation
                    ));
                }
                file.busy.remove(&(block as u64));
                file.cached[block] = version;
            }
            Op::Flush => {
                self.figures.syncs += 1;
                if self.fails && self.dice.falls(20) {
                    // What was to be saved is gone, and one of those that sync is told.
                    file.cached = file.durable;
                    file.has_failed = true;
                    self.figures.losses += 1;
                    // Of two that run the other may end first.
                    let others = |ring: &Rc<RefCell<Ring>>| {
                        ring.borrow().flying.iter().any(|flight| flight.io.op == Op::Flush)
                    };
                    if self.rings.iter().any(others) && self.dice.falls(50) {
                        drop(file);
                        self.rings[shard].borrow_mut().flying.push(Flight {
                            io,
                            generation,
                            version,
                        });
                        return Ok(());
                    }
                }
                if std::mem::take(&mut file.has_failed) {
                    file.losses += u64::from(self.hears);
                    completion.result = Err(io.error(ErrorKind::Io, "file"));
                } else {
                    file.durable = file.cached;
                }
            }
            Op::LoadWriter => completion.data = file.record.clone(),
            Op::StoreWriter if self.fails && self.dice.falls(10) => {
                // What is on record then is not known.
                if self.dice.falls(50) {
                    file.record = io.data.clone();
                }
                completion.result = Err(io.error(ErrorKind::Io, "file"));
            }
            Op::StoreWriter => file.record = io.data.clone(),
            _ => completion.data = SegList::of(self.pool.get(512).freeze()),
        }
        drop(file);
        self.rings[shard].borrow_mut().ready.push(completion);
        Ok(())
    }

    /// A sync of something else on the same device fails.
    fn lose(&mut self) {
        let mut file = self.file.borrow_mut();
        file.cached = file.durable;
        file.losses += 1;
        drop(file);
        self.figures.losses += 1;
        self.doors.iter_mut().for_each(Exports::disk_ready);
    }

    fn deliver(&mut self) -> Result<(), String> {
        let waiting: Vec<_> = self
            .mail
            .iter()
            .filter(|(_, letters)| !letters.is_empty())
            .map(|(way, _)| *way)
            .collect();
        if waiting.is_empty() {
            return Ok(());
        }
        let way = waiting[self.dice.below(waiting.len())];
        let letter = self.mail.get_mut(&way).and_then(VecDeque::pop_front).expect("it waits");
        let to = usize::from(letter.to);
        self.figures.letters += 1;
        self.doors[to].on_letter(self.now, letter, &mut self.told[to]);
        match self.dice.falls(70) {
            true => self.turn(to),
            false => Ok(()),
        }
    }

    /// A turn of one shard, as its target takes it.
    fn turn(&mut self, shard: usize) -> Result<(), String> {
        for round in 0..8 {
            let mut ended = Vec::new();
            self.doors[shard].poll(|ticket, op, verifier, completion| {
                ended.push((ticket, op, verifier, completion.result.is_ok()));
            });
            for (ticket, op, verifier, is_ok) in ended {
                self.hear(ticket, op, verifier, is_ok)?;
            }
            let is_over = round > 0 && !self.doors[shard].take_started();
            if is_over {
                break;
            }
            self.doors[shard].settle(self.now, &mut self.told[shard]);
            self.hear_users(shard)?;
        }
        self.doors[shard].take_release();
        while let Some(letter) = self.doors[shard].next_letter() {
            assert_eq!(usize::from(letter.from), shard);
            self.mail.entry((letter.from, letter.to)).or_default().push_back(letter);
        }
        Ok(())
    }

    /// An answer.
    fn hear(&mut self, ticket: IoTicket, op: Op, verifier: u64, is_ok: bool) -> Result<(), String> {
        let asked = self.asked.remove(&ticket.number).expect("asked once");
        self.figures.answers += 1;
        self.figures.refused += u64::from(!is_ok);
        let client = &mut self.clients[usize::from(asked.who)];
        if client.session != asked.session {
            return Ok(());
        }
        if !is_ok && !self.verifiers[1..].contains(&verifier) && self.figures.losses == 0 {
            return Err(format!("{op} failed, and nothing has"));
        }
        let durable = self.file.borrow().durable;
        let has = |block: u64, version| durable[block as usize] >= version;
        if op == Op::Write {
            if is_ok {
                client.answered.push((asked.block, asked.version, verifier));
            }
            if is_ok && asked.fua && !has(asked.block, asked.version) {
                return Err("a durable write is not".into());
            }
            let place = self.verifiers.iter().position(|v| *v == verifier);
            if place.is_some_and(|place| place < asked.newest) {
                return Err("a write begun behind a verifier is answered under one before".into());
            }
            return Ok(());
        }
        if op == Op::Flush && is_ok {
            for (block, version, under) in asked.covered {
                if under == verifier && !has(block, version) {
                    return Err(format!("a flush vouched for version {version}, which is lost"));
                }
            }
        }
        self.hear_present(verifier)
    }

    /// Somebody is told the verifier in force.
    fn hear_present(&mut self, verifier: u64) -> Result<(), String> {
        let place = self.verifiers.iter().position(|v| *v == verifier).unwrap_or_else(|| {
            self.verifiers.push(verifier);
            self.verifiers.len() - 1
        });
        if place < self.newest {
            return Err(format!("verifier {place} was told behind verifier {}", self.newest));
        }
        self.newest = place;
        Ok(())
    }

    fn hear_users(&mut self, shard: usize) -> Result<(), String> {
        let told = &mut self.told[shard];
        let (granted, denied) =
            (std::mem::take(&mut told.granted), std::mem::take(&mut told.denied));
        self.figures.fenced += told.fenced.drain(..).count() as u64;
        for session in denied {
            for client in self.clients.iter_mut().filter(|client| client.session == session) {
                client.is_claiming = false;
            }
        }
        for (session, granted) in granted {
            if granted.geometry.features.read_only {
                for client in self.clients.iter_mut().filter(|client| client.session == session) {
                    client.reads = Some(granted.pass);
                }
                self.hear_present(granted.verifier)?;
                continue;
            }
            self.figures.grants += 1;
            self.hear_idle(granted.writer_generation, granted.idle_generations)?;
            self.granted_generation = self.granted_generation.max(granted.writer_generation);
            for client in self.clients.iter_mut().filter(|client| client.session == session) {
                client.is_claiming = false;
                client.writes = Some((granted.pass, granted.writer_generation));
                client.generation = Some(granted.writer_generation);
                self.figures.joined += u64::from(client.joins.is_some());
            }
            self.hear_present(granted.verifier)?;
        }
        Ok(())
    }
}
