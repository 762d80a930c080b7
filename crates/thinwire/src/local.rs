//! Local volumes, opened without any network: memory, null, files and block devices.

use std::cell::RefCell;
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use thinwire_buffer::Time;
use thinwire_runtime::disk::{self, LettingGo, UnusedGrant};
use thinwire_runtime::switched::Switched;
use thinwire_volume::stores::{MemoryStore, NullStore};
use thinwire_volume::{
    Completion, Geometry, Identity, Io, LeafGrant, MirrorReport, Op, Owing, Scrub, Volume,
    VolumeEvent, Work,
};

use crate::error::{Failure, FailureKind, Outcome};
use crate::export::BLOCK_BYTES_DEFAULT;
use crate::grant::LocalGrant;
use crate::host::Host;
use crate::network::is_readable;
use crate::open::{OnRecord, VolumeOptions, Wait};
use crate::signals::Signals;
use crate::uri::VolumeSpec;

/// An end that is in a hurry waits so long for a disk.
const HURRY_PATIENCE: Duration = Duration::from_secs(1);
/// How often an end looks whether it is.
const HURRY_LOOK: Duration = Duration::from_millis(100);
/// Who is let go of without a last flush has so long to answer before it is told of as one that hangs.
const ANSWER_PATIENCE: Duration = Duration::from_millis(300);

/// An open local volume, and the right to write it. A path that is to be written gets this process as
/// its writer on record; the others die with the process, and have no record.
pub struct LocalLeaf {
    store: Rc<RefCell<Granted>>,
    fd: Option<RawFd>,
    direct: Option<bool>,
}

/// The volume of a leaf, for whoever stands on it.
struct LeafVolume(Rc<RefCell<Granted>>);

/// A store, and the right to write it.
struct Granted {
    /// Let go of before the store, and its lock.
    grant: Option<LocalGrant>,
    store: Owing<Box<dyn Volume>>,
    /// Something was to be written: labels, too, of an opening that came to nothing.
    written: bool,
    /// Somebody is to be served, who may write.
    kept: bool,
    /// A sync has failed, of this volume or of what shares its device.
    has_lost: bool,
    /// Nobody minds how it ends: it is of a leg that its mirror goes without.
    is_spare: bool,
    /// What a gateway has written down of the grant: see [`LocalLeaf::set_unused`].
    unused: Vec<UnusedGrant>,
    /// Of a file or device.
    path: Option<PathBuf>,
    /// How far its end in order is, once that was begun.
    ending: Option<End>,
    /// It is let go of while something is outstanding. Let go of after the store.
    awaited: Option<LettingGo>,
}

/// An end in order.
#[derive(Debug)]
enum End {
    /// What was outstanding is waited for, or, once it was asked for, the last flush too.
    Waiting {
        is_flushing: bool,
        done: Vec<Completion>,
    },
    Over(Outcome),
}

impl LocalLeaf {
    /// Opens a path, `memory:` or `null:` volume with blocks of 512 bytes; a path as `disk_options` say
    /// besides.
    pub fn open(
        host: &Host,
        spec: &VolumeSpec,
        options: &VolumeOptions,
        disk_options: disk::DiskOptions,
        signals: Option<&Signals>,
    ) -> Outcome<Self> {
        let pool = host.pool();
        let stop = disk_options.stop.clone();
        let block = BLOCK_BYTES_DEFAULT;
        let mut direct = None;
        let (mut store, fd): (Box<dyn Volume>, _) = match spec {
            VolumeSpec::Memory(bytes) => {
                (Box::new(MemoryStore::new(*bytes, block, random_identity(), &pool)), None)
            }
            VolumeSpec::Null(bytes) => (Box::new(NullStore::new(*bytes, block)), None),
            VolumeSpec::Switched(bytes) => {
                let volume = Switched::new(NullStore::new(*bytes, block))
                    .map_err(|e| Failure::failed(format!("cannot start a thread: {e}")))?;
                let fd = volume.fd();
                (Box::new(volume), Some(fd))
            }
            VolumeSpec::Path(path) => {
                let disk_options = disk::DiskOptions {
                    read_only: options.read_only,
                    block_bytes: block,
                    ..disk_options
                };
                let mut notify = |note: &str| tracing::info!("{note}");
                let opened = disk::open_store(path, &disk_options, &pool, &mut notify)
                    .map_err(|e| unopened(&e, options.read_only))?;
                direct = Some(opened.direct);
                (opened.volume, Some(opened.fd))
            }
            other => unreachable!("{other} is no store"),
        };
        let grant = match spec {
            VolumeSpec::Path(path) if !options.read_only => {
                Some(LocalGrant::take(&mut *store, path, options, signals, stop.as_deref())?)
            }
            _ => None,
        };
        let store = Owing::new(store, options.losses_are_heard);
        let store = Rc::new(RefCell::new(Granted {
            grant,
            store,
            written: false,
            kept: false,
            has_lost: false,
            is_spare: false,
            unused: Vec::new(),
            path: match spec {
                VolumeSpec::Path(path) => Some(path.clone()),
                _ => None,
            },
            ending: None,
            awaited: None,
        }));
        Ok(LocalLeaf { store, fd, direct })
    }

    /// Its path, if it has one, whenever something of it is outstanding. Keeps nothing of it.
    pub fn awaited(&self) -> impl Fn() -> Option<PathBuf> + use<> {
        let leaf = Rc::downgrade(&self.store);
        move || {
            let leaf = leaf.upgrade()?;
            let leaf = leaf.try_borrow().ok()?;
            leaf.path.clone().filter(|_| leaf.store.outstanding() > 0)
        }
    }

    /// Readable when there are completions, if anything tells of them.
    pub fn fd(&self) -> Option<RawFd> {
        self.fd
    }

    /// Whether I/O on its file or device is direct; `None` of what has none.
    pub fn direct(&self) -> Option<bool> {
        self.direct
    }

    /// The volume, for whoever stands on it.
    pub fn volume(&self) -> impl Volume + use<> {
        LeafVolume(self.store.clone())
    }

    /// Which content it is, and what it was granted of that; generation 0 if it only reads, or has no
    /// record.
    pub fn granted(&self) -> (Identity, LeafGrant) {
        let store = self.store.borrow();
        (store.store.identity(), store.grant.as_ref().map(LocalGrant::granted).unwrap_or_default())
    }

    /// A gateway has written down that it has not used the grant: it cannot be taken back without that.
    pub fn set_unused(&self, unused: Vec<UnusedGrant>) {
        self.store.borrow_mut().unused = unused;
    }

    /// Its generation will be remembered as one under which it was held, once somebody is served: however
    /// that ends, it is not granted again.
    pub fn keep_grant(&self) {
        self.store.borrow_mut().kept = true;
    }

    /// Nobody was served in the end: dropped now, it lets go of the right to write as if it had never had it, unless something was
    /// written under it.
    pub fn unkeep_grant(&self) {
        self.store.borrow_mut().kept = false;
    }

    /// Something was written to it.
    pub fn was_written(&self) -> bool {
        self.store.borrow().written
    }

    /// Whether this process would stay on record as its writer, were it dropped now.
    pub fn on_record(&self) -> OnRecord {
        let store = self.store.borrow();
        match &store.grant {
            Some(grant) if store.is_used() && grant.is_known() => OnRecord::Known,
            Some(_) if store.is_used() => OnRecord::Stranger,
            _ => OnRecord::No,
        }
    }

    /// Something was written to it, or somebody was to be served.
    pub fn has_written(&self) -> bool {
        self.store.borrow().is_used()
    }

    /// Writes that were not durable may be gone, whatever a later flush says.
    pub fn has_lost(&self) -> bool {
        let leaf = &mut *self.store.borrow_mut();
        leaf.take_events(&mut Vec::new());
        leaf.has_lost
    }

    /// Its store is behind another volume from now on.
    #[cfg(test)]
    pub fn wrap(&self, wrapper: impl FnOnce(Box<dyn Volume>) -> Box<dyn Volume>) {
        let nothing: Box<dyn Volume> = Box::new(NullStore::new(512, 512));
        let leaf = &mut *self.store.borrow_mut();
        let store = leaf.store.below_mut();
        let sound = std::mem::replace(store, nothing);
        *store = wrapper(sound);
    }

    /// Orderly ends of these, all at the same time: each makes all durable, then lets go of the right to write. A loss
    /// that no flush has told of is one that this flush has to tell: then who has written stays on record. So it does
    /// if its disk does not answer within [`HURRY_PATIENCE`] once `hurry` is readable. The first failure, after all
    /// have been tried.
    pub fn end_all(host: &Host, leaves: &[&LocalLeaf], hurry: Option<&OwnedFd>) -> Outcome {
        leaves.iter().for_each(|leaf| leaf.store.borrow_mut().begin_end());
        let mut given_up = None;
        loop {
            let open: Vec<_> =
                leaves.iter().filter(|leaf| !leaf.store.borrow_mut().go_on_ending()).collect();
            let now = Instant::now();
            // Who is left that anybody minds. For the rest alone nobody waits long.
            let awaited: Vec<_> =
                open.iter().filter(|leaf| !leaf.store.borrow().is_spare).collect();
            if given_up.is_none() && (awaited.is_empty() || hurry.is_some_and(is_readable)) {
                given_up = Some(now + HURRY_PATIENCE);
            }
            if open.is_empty() {
                break;
            }
            if given_up.is_some_and(|at| at <= now) {
                let named = if awaited.is_empty() { open.iter().collect() } else { awaited };
                let names: Vec<_> = named.iter().map(|leaf| leaf.store.borrow().name()).collect();
                let why = format!(
                    "given up without an answer from {}: writes since the last flush may be lost",
                    names.join(", ")
                );
                named[0].store.borrow_mut().ending = Some(End::Over(Err(Failure::failed(why))));
                break;
            }
            host.turn(Wait::Until(now + HURRY_LOOK))?;
        }
        leaves.iter().try_for_each(|leaf| leaf.store.borrow_mut().ended())
    }

    /// Its mirror goes without it, or is about to have that on record: whether it ends in order is no matter of the volume's.
    pub fn go_without(&self) {
        self.store.borrow_mut().is_spare = true;
    }

    /// Begins the same of this one by itself, while others are used: nobody stands on it any more. [`LocalLeaf::is_closed`] goes on with it.
    pub fn begin_close(&self) {
        self.store.borrow_mut().begin_end();
    }

    /// What was begun is over, or nothing was: how it went.
    pub fn is_closed(&self) -> Option<Outcome> {
        let store = &mut *self.store.borrow_mut();
        store.go_on_ending().then(|| store.ended())
    }

    /// Before these are dropped, each of which waits for its last I/O: those that do not answer soon are told of
    /// together ([`disk::waited_for`]), not only the first that keeps its thread.
    pub fn await_all(host: &Host, leaves: &[&LocalLeaf]) {
        let end = Instant::now() + ANSWER_PATIENCE;
        // Each of them is asked.
        while leaves.iter().filter(|leaf| leaf.store.borrow_mut().is_awaited()).count() > 0 {
            let now = Instant::now();
            if end <= now || host.turn(Wait::Until(end.min(now + HURRY_LOOK))).is_err() {
                break;
            }
        }
    }
}

/// Why a path could not be opened. Nobody makes an image in order to read it.
fn unopened(error: &disk::DiskOpenError, read_only: bool) -> Failure {
    let message = match error {
        disk::DiskOpenError::Missing { path } if read_only => {
            format!("{}: no such file or device", path.display())
        }
        disk::DiskOpenError::Empty { path } if read_only => format!("{}: is empty", path.display()),
        error => error.to_string(),
    };
    let kind = match error {
        error if error.is_absent() => FailureKind::Absent,
        disk::DiskOpenError::Busy { .. } => FailureKind::Busy,
        _ => FailureKind::Failed,
    };
    Failure { kind, message }
}

/// The content is new each time, and so is its name.
fn random_identity() -> Identity {
    let mut bytes = [0; 24];
    // Without entropy the identity is merely not unique, and nobody compares it.
    let _ = std::fs::File::open("/dev/urandom")
        .and_then(|mut f| io::Read::read_exact(&mut f, &mut bytes));
    let (identity, incarnation) = bytes.split_at(16);
    Identity {
        identity: identity.try_into().expect("16 bytes"),
        incarnation: u64::from_ne_bytes(incarnation.try_into().expect("8 bytes")),
    }
}

impl Granted {
    fn is_used(&self) -> bool {
        self.written || self.kept
    }

    fn take_events(&mut self, events: &mut Vec<VolumeEvent>) {
        let seen = events.len();
        self.store.poll_events(events);
        self.has_lost |= events[seen..].contains(&VolumeEvent::Lost);
    }

    fn name(&self) -> String {
        self.path.as_ref().map_or("this machine".into(), |path| path.display().to_string())
    }

    /// Something is outstanding, which nobody else will hear of: whoever used it has gone.
    fn is_awaited(&mut self) -> bool {
        self.take_in(&mut Vec::new())
    }

    /// As [`Granted::is_awaited`]; takes in what has come.
    fn take_in(&mut self, done: &mut Vec<Completion>) -> bool {
        self.store.poll(done);
        let is_awaited = self.store.outstanding() > 0;
        match (is_awaited, &self.awaited, &self.path) {
            (true, None, Some(path)) => self.awaited = Some(LettingGo::of(path)),
            (false, ..) => self.awaited = None,
            _ => {}
        }
        is_awaited
    }

    /// Nothing is to be ended where there is no right to write.
    fn begin_end(&mut self) {
        self.ending = Some(match self.grant {
            Some(_) => End::Waiting { is_flushing: false, done: Vec::new() },
            None => End::Over(Ok(())),
        });
    }

    /// True once it is over.
    fn go_on_ending(&mut self) -> bool {
        match self.ending.take() {
            Some(End::Waiting { mut is_flushing, mut done }) => {
                let mut is_awaited = self.take_in(&mut done);
                if !is_awaited && !is_flushing {
                    self.store.submit(Io::new(0, Op::Flush, 0, 0));
                    is_flushing = true;
                    is_awaited = self.take_in(&mut done);
                }
                self.ending = Some(match is_awaited {
                    true => End::Waiting { is_flushing, done },
                    false => End::Over(self.finish_end(done)),
                });
                !is_awaited
            }
            over => {
                self.ending = over;
                true
            }
        }
    }

    /// After the last flush. A sync that fails says so once.
    fn finish_end(&mut self, done: Vec<Completion>) -> Outcome {
        for one in done {
            one.result.map_err(|e| {
                Failure::failed(format!("writes since the last flush may be lost: {e}"))
            })?;
        }
        match self.grant.take() {
            Some(grant) => grant.release(&mut self.store),
            None => Ok(()),
        }
    }

    /// How its end went, if it is over.
    fn ended(&mut self) -> Outcome {
        match self.ending.take() {
            Some(End::Over(Err(failure))) if self.is_spare => {
                let name = self.name();
                tracing::warn!(
                    "{name}, which its mirror goes without, has not ended in order: {failure}"
                );
                Ok(())
            }
            Some(End::Over(outcome)) => outcome,
            _ => Ok(()),
        }
    }
}

impl Drop for Granted {
    /// Not ended in order. Who has written stays on record, as after a crash.
    fn drop(&mut self) {
        let taken_back = match self.is_used() {
            true => Ok(()),
            false => self.unused.drain(..).try_for_each(|unused| unused.take_back()),
        };
        if let Some(grant) = self.grant.take()
            && !self.is_used()
            && taken_back.is_ok()
        {
            grant.undo(&mut self.store);
        }
    }
}

impl Volume for LeafVolume {
    fn geometry(&self) -> Geometry {
        self.0.borrow().store.geometry()
    }

    fn identity(&self) -> Identity {
        self.0.borrow().store.identity()
    }

    fn submit(&mut self, io: Io) {
        let leaf = &mut *self.0.borrow_mut();
        leaf.written |= io.op.is_write();
        leaf.store.submit(io);
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.0.borrow_mut().store.poll(done);
    }

    fn outstanding(&self) -> usize {
        self.0.borrow().store.outstanding()
    }

    fn copied_bytes(&self) -> u64 {
        self.0.borrow().store.copied_bytes()
    }

    fn events(&self) -> u64 {
        self.0.borrow().store.events()
    }

    fn poll_events(&mut self, events: &mut Vec<VolumeEvent>) {
        self.0.borrow_mut().take_events(events);
    }

    fn wind_up(&mut self) {
        self.0.borrow_mut().store.wind_up();
    }

    fn is_wound_up(&self) -> bool {
        self.0.borrow().store.is_wound_up()
    }

    fn mirrors(&self, found: &mut Vec<MirrorReport>) {
        self.0.borrow().store.mirrors(found);
    }

    fn scrubs(&mut self, visit: &mut dyn FnMut(&mut dyn Scrub)) {
        self.0.borrow_mut().store.scrubs(visit);
    }

    fn works(&mut self, visit: &mut dyn FnMut(&mut dyn Work)) {
        self.0.borrow_mut().store.works(visit);
    }

    fn is_timed(&self) -> bool {
        self.0.borrow().store.is_timed()
    }

    fn turn(&mut self, now: Time) -> Time {
        self.0.borrow_mut().store.turn(now)
    }

    fn refresh(&mut self) -> bool {
        self.0.borrow_mut().store.refresh()
    }
}

#[cfg(test)]
#[path = "local_tests.rs"]
mod tests;
