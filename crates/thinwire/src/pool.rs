//! Pools (`docs/format.md`, "The pool"): opened over their two parts, once for all of their volumes that are used, or to be changed themselves.

mod desk;
mod request;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;

use thinwire_buffer::Time;
use thinwire_modules::meta::{Finding, LabelError, SeenPart};
use thinwire_modules::thin::{
    POOL_LABEL_TOKEN, PoolConfig, PoolEvent, PoolPart, ThinPool, ThinVolume, VolumeWay,
};
use thinwire_modules::{Module, Options};
use thinwire_volume::{
    CacheReport, Completion, ErrorKind, Features, Geometry, Identity, Io, MirrorReport, Scrub,
    Volume, VolumeEvent, Work,
};

use crate::error::{Failure, Outcome};
use crate::growth::PoolWhole;
use crate::host::Host;
use crate::labelled::{Opening, assemble_whole, read_all, wait};
use crate::uri::VolumeSpec;

pub use desk::{PoolAsk, PoolDesk, PoolName};
pub use request::{PoolRequest, PoolStatus, PoolVolumeStatus, PoolWriterStatus, describe};

/// A pool, and who tells people of it.
type ToldPool = (ThinPool, Rc<PoolTeller>);

/// Where the opening of a pool puts it, for whoever changes it, or opens volumes of it.
#[derive(Clone, Default)]
pub struct PoolPlace {
    pool: Rc<RefCell<Option<ToldPool>>>,
    repairs: bool,
    grows: bool,
}

impl PoolPlace {
    /// For a pool that may be opened to be [repaired](PoolConfig::repairs).
    pub fn new(repairs: bool) -> Self {
        PoolPlace { repairs, ..PoolPlace::default() }
    }

    /// For a pool that grows by what its parts have grown by when it is opened.
    pub fn growing() -> Self {
        PoolPlace { grows: true, ..PoolPlace::default() }
    }

    /// The pool, once it is open.
    pub fn take(&self) -> Option<ThinPool> {
        self.take_told().map(|(pool, _)| pool)
    }

    /// And who tells people of it.
    pub(crate) fn take_told(&self) -> Option<ToldPool> {
        self.pool.borrow_mut().take()
    }

    fn put(&self, pool: &ThinPool, teller: &Rc<PoolTeller>) {
        *self.pool.borrow_mut() = Some((pool.clone(), teller.clone()));
    }
}

impl fmt::Debug for PoolPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PoolPlace")
    }
}

/// The pool whose parts these are, in any order, which `specs` call by name: open to be changed, and for volumes of it to be opened.
///
/// # Errors
/// They make no pool, or another one than is described; or it could not be read.
pub fn open_pool(
    host: &Host,
    (module, options): (&'static Module, &Options),
    specs: &[VolumeSpec],
    mut children: Vec<Box<dyn Volume>>,
    by: &Opening<'_>,
) -> Outcome<(Box<dyn Volume>, PoolWhole, Vec<usize>)> {
    let Some(place) = by.pool else {
        return Err(Failure::usage(
            "it is a pool: name a volume in it, with @ and its name behind that of the pool (`thinwire volume show` lists them)",
        ));
    };
    let described = (module, options, None);
    // Of one below something that grows the parts do, and not itself.
    let own = Opening { growth: by.growth.filter(|_| place.grows), ..*by };
    let (whole, ..) = assemble_whole(host, described, specs, &mut children, &own)?;
    // Behind the opening, whose labels these are to follow.
    let (readers, seen) = read_all(host, &mut children, POOL_LABEL_TOKEN, by, None)?;
    let mut places: Vec<_> = children.into_iter().zip(readers).zip(seen).map(Some).collect();
    let mut parts = Vec::new();
    for (role, part) in whole.parts.iter().enumerate() {
        let Some(((volume, labels), SeenPart { found, .. })) = places[part.place].take() else {
            unreachable!("each is one part")
        };
        match found {
            Ok(Finding::Label(found)) if usize::from(found.label.role) == role => {
                parts.push(PoolPart { volume, labels, label: found.label });
            }
            found => {
                let error = found.err().unwrap_or(LabelError::Unknown);
                return Err(Failure::failed(format!("{} {error}", specs[part.place])));
            }
        }
    }
    let (Some(metadata), Some(data)) = (parts.pop(), parts.pop()) else {
        unreachable!("a pool has two parts")
    };
    let read_only = by.read_only;
    let config = PoolConfig { read_only, repairs: place.repairs, ..PoolConfig::new(&host.pool()) };
    let pool =
        ThinPool::open(data, metadata, config).map_err(|e| Failure::failed(e.to_string()))?;
    while !pool.is_ready() {
        pool.turn(host.shard().now());
        pool.poll();
        if let Some(why) = pool.stopped() {
            return Err(Failure::failed(format!("the pool cannot be read: {why}")));
        }
        if !pool.is_ready() {
            wait(host, &mut [], (by, by.until), "read")?;
        }
    }
    let in_places = whole.places();
    let name = whole.name;
    let desk = PoolWhole { pool: pool.downgrade(), name: name.clone() };
    let teller = Rc::new(PoolTeller { name, has_told_end: Cell::new(false) });
    teller.tell(&pool);
    place.put(&pool, &teller);
    Ok((Box::new(PoolAlone { pool, teller, refused: Vec::new() }), desk, in_places))
}

/// The volume of that name of a pool that is open.
///
/// # Errors
/// There is no such, or it is in use here.
pub fn open_volume_of_pool(
    (pool, teller): (&ThinPool, &Rc<PoolTeller>),
    name: &str,
    by: &Opening<'_>,
) -> Outcome<Box<dyn Volume>> {
    let report = pool.report();
    let Some(volume) = report.volumes.iter().find(|volume| volume.name == name) else {
        if let Some(why) = &report.damaged {
            return Err(Failure::failed(format!(
                "not all volumes of the pool can be read, and `{name}` is not among the others: {why}"
            )));
        }
        let names: Vec<_> = report.volumes.iter().map(|volume| &*volume.name).collect();
        return Err(Failure::absent(match names.is_empty() {
            true => format!(
                "the pool has no volume `{name}`, nor any other: `thinwire volume create POOL@{name} --size SIZE` makes one"
            ),
            false => format!("the pool has no volume `{name}` (there are: {})", names.join(", ")),
        }));
    };
    if volume.is_open {
        return Err(Failure::failed(format!(
            "the volume `{name}` of the pool is open here already"
        )));
    }
    let way = if by.read_only { VolumeWay::Read } else { VolumeWay::Write };
    let volume = pool.open_volume_to(volume.volume, way);
    let volume = volume.map_err(|e| Failure::failed(e.to_string()))?;
    Ok(Box::new(PoolUser { volume, pool: pool.clone(), teller: teller.clone() }))
}

/// Tells people what happens to a pool, each thing once, whoever uses that.
pub struct PoolTeller {
    /// That of the pool, by its labels.
    name: String,
    has_told_end: Cell<bool>,
}

impl PoolTeller {
    /// What has happened since the last call.
    fn tell(&self, pool: &ThinPool) {
        let name = &self.name;
        if let (Some(why), false) = (pool.stopped(), self.has_told_end.get()) {
            self.has_told_end.set(true);
            tracing::error!(
                "pool {name:?}: nothing is written any more, and what was not flushed may be lost: {why}; it goes on when it was opened again"
            );
        }
        let mut events = Vec::new();
        pool.poll_events(&mut events);
        // One that is opened when it is full says so once.
        let (mut data, mut metadata) = (0, 0);
        for event in events {
            match event {
                PoolEvent::DataFull { percent } => data = percent.max(data),
                PoolEvent::MetadataFull { percent } => metadata = percent.max(metadata),
                PoolEvent::TimeFull { percent } => tracing::warn!(
                    "pool {name:?}: {percent} % of the snapshots, clones and rollbacks that it can ever have were made ({} are left): before the end of them \
                     make another pool, and copy volumes to that",
                    pool.report().snapshots_left
                ),
                PoolEvent::Unreaped => {
                    let why = pool.report().unreaped.unwrap_or_default();
                    tracing::warn!(
                        "pool {name:?}: some of the room of deleted volumes does not come back: {why}; what may pass is tried again, less and less often; \
                         `thinwire volume check --repair` gives up what cannot be read, and gives back the rest"
                    );
                }
            }
        }
        for (what, percent) in [("data", data), ("metadata", metadata)] {
            if percent > 0 {
                tracing::warn!(
                    "pool {name:?}: {percent} % of its {what} is in use: writes fail when it is full; delete snapshots or volumes, or \
                     discard what is not needed"
                );
            }
        }
    }
}

/// A volume of a pool, whose user hears how full that is.
struct PoolUser {
    volume: ThinVolume,
    pool: ThinPool,
    teller: Rc<PoolTeller>,
}

impl Volume for PoolUser {
    fn geometry(&self) -> Geometry {
        self.volume.geometry()
    }

    fn identity(&self) -> Identity {
        self.volume.identity()
    }

    #[inline]
    fn submit(&mut self, io: Io) {
        self.volume.submit(io);
    }

    #[inline]
    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.volume.poll(done);
    }

    fn outstanding(&self) -> usize {
        self.volume.outstanding()
    }

    fn is_at_rest(&self) -> bool {
        self.volume.is_at_rest()
    }

    fn copied_bytes(&self) -> u64 {
        self.volume.copied_bytes()
    }

    fn events(&self) -> u64 {
        self.volume.events()
    }

    fn poll_events(&mut self, events: &mut Vec<VolumeEvent>) {
        self.volume.poll_events(events);
    }

    fn refresh(&mut self) -> bool {
        self.volume.refresh()
    }

    fn wind_up(&mut self) {
        self.volume.wind_up();
    }

    fn is_wound_up(&self) -> bool {
        self.volume.is_wound_up()
    }

    fn mirrors(&self, found: &mut Vec<MirrorReport>) {
        self.volume.mirrors(found);
    }

    fn caches(&self, found: &mut Vec<CacheReport>) {
        self.volume.caches(found);
    }

    fn scrubs(&mut self, visit: &mut dyn FnMut(&mut dyn Scrub)) {
        self.volume.scrubs(visit);
    }

    fn works(&mut self, visit: &mut dyn FnMut(&mut dyn Work)) {
        self.volume.works(visit);
    }

    fn is_timed(&self) -> bool {
        true
    }

    fn turn(&mut self, now: Time) -> Time {
        let next = self.volume.turn(now);
        self.teller.tell(&self.pool);
        next
    }
}

/// A pool that is open to be changed: no volume that anybody reads or writes.
struct PoolAlone {
    pool: ThinPool,
    teller: Rc<PoolTeller>,
    refused: Vec<Completion>,
}

impl Volume for PoolAlone {
    fn geometry(&self) -> Geometry {
        let features =
            Features { read_only: true, discard: false, write_zeroes: false, block_status: false };
        Geometry {
            bytes: 4096,
            block_bytes: 4096,
            preferred_bytes: 4096,
            io_bytes_max: 4096,
            features,
        }
    }

    fn identity(&self) -> Identity {
        Identity::default()
    }

    fn submit(&mut self, io: Io) {
        let error = io.error(ErrorKind::Unsupported, "thin");
        self.refused.push(Completion::new(io.token, Err(error)));
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.pool.poll();
        done.append(&mut self.refused);
    }

    fn outstanding(&self) -> usize {
        self.refused.len()
    }

    fn is_at_rest(&self) -> bool {
        self.pool.is_idle()
    }

    fn wind_up(&mut self) {
        self.pool.wind_up();
    }

    fn is_wound_up(&self) -> bool {
        self.pool.is_wound_up()
    }

    fn is_timed(&self) -> bool {
        true
    }

    fn turn(&mut self, now: Time) -> Time {
        let next = self.pool.turn(now);
        self.teller.tell(&self.pool);
        next
    }
}
