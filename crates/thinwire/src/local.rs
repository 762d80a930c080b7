//! Local volumes, opened without any network: memory, null, files and block devices.

use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::time::{Duration, Instant};

use thinwire_buffer::Pool;
use thinwire_runtime::disk;
use thinwire_runtime::switched::Switched;
use thinwire_runtime::wait::{WaitToken, Waiter};
use thinwire_volume::stores::{MemoryStore, NullStore};
use thinwire_volume::{
    Completion, Geometry, Identity, Io, IoError, Op, Unaligned, Volume, WriterRecord,
};

use crate::error::{Failure, Outcome};
use crate::export::BLOCK_BYTES_DEFAULT;
use crate::grant::LocalGrant;
use crate::open::{OnRecord, OpenVolume, VolumeHealth, VolumeOptions, Wait};
use crate::signals::Signals;
use crate::uri::VolumeSpec;

/// Memory that a local volume's pool keeps for reuse, in bytes.
const POOL_FREE_BYTES_MAX: usize = 256 << 20;

/// The token of all descriptors: any ends the sleep.
const ANY: WaitToken = 0;

/// How long to wait for a file that somebody else has locked: a killed predecessor's last I/O.
const LOCK_PATIENCE: Duration = Duration::from_secs(3);

/// Opens a path, `memory:` or `null:` volume with blocks of 512 bytes. A path that is to be written
/// gets this process as its writer on record; the others die with the process, and have no record.
pub fn open(
    spec: &VolumeSpec,
    options: &VolumeOptions,
    signals: Option<&Signals>,
) -> Outcome<Box<dyn OpenVolume>> {
    open_with(spec, options, disk::DiskOptions::default(), signals)
}

/// The same, a path as `disk_options` say besides.
fn open_with(
    spec: &VolumeSpec,
    options: &VolumeOptions,
    disk_options: disk::DiskOptions,
    signals: Option<&Signals>,
) -> Outcome<Box<dyn OpenVolume>> {
    let pool = Pool::new(POOL_FREE_BYTES_MAX);
    let block = BLOCK_BYTES_DEFAULT;
    let (mut volume, fd): (Box<dyn Volume>, _) = match spec {
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
                wait_lock: LOCK_PATIENCE,
                ..disk_options
            };
            let mut notify = |note: &str| tracing::info!("{note}");
            disk::open_store(path, &disk_options, &pool, &mut notify)
                .map_err(|e| Failure::failed(unopened(&e, options.read_only)))?
        }
        VolumeSpec::Remote(remote) => unreachable!("{remote} is opened by open_volume"),
    };
    let waiter = waiter_for(fd)?;
    let block_bytes = volume.geometry().block_bytes;
    let grant = match spec {
        VolumeSpec::Path(path) if !options.read_only => {
            Some(LocalGrant::take(&mut *volume, path, options, signals)?)
        }
        _ => None,
    };
    let volume = Buffered {
        grant,
        inner: volume,
        fd,
        ready: Vec::new(),
        read_only: options.read_only,
        written: false,
    };
    Ok(match options.any_byte {
        true => {
            let volume = Unaligned::new(volume, pool.clone());
            Box::new(Local { volume, below: Unaligned::inner_mut, waiter, pool, block_bytes })
        }
        false => Box::new(Local { volume, below: |volume| volume, waiter, pool, block_bytes }),
    })
}

/// Why a path could not be opened. Nobody makes an image in order to read it.
fn unopened(error: &disk::DiskOpenError, read_only: bool) -> String {
    match error {
        disk::DiskOpenError::Missing { path } if read_only => {
            format!("{}: no such file or device", path.display())
        }
        disk::DiskOpenError::Empty { path } if read_only => format!("{}: is empty", path.display()),
        error => error.to_string(),
    }
}

/// A waiter that hears of a volume's completions.
fn waiter_for(fd: Option<RawFd>) -> Outcome<Waiter> {
    let unusable = |e| Failure::failed(format!("cannot use epoll: {e}"));
    let mut waiter = Waiter::new().map_err(unusable)?;
    if let Some(fd) = fd {
        waiter.add_disk(fd, ANY).map_err(unusable)?;
    }
    Ok(waiter)
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

/// Keeps completions that were taken in to find out whether there are any, and the right to write.
struct Buffered {
    /// Let go of before the volume, and its lock.
    grant: Option<LocalGrant>,
    inner: Box<dyn Volume>,
    /// Readable when there may be completions.
    fd: Option<RawFd>,
    ready: Vec<Completion>,
    read_only: bool,
    /// Something was to be written.
    written: bool,
}

impl Buffered {
    /// An orderly end: makes all durable, then lets go of the right to write.
    fn end(&mut self) -> Outcome {
        if self.grant.is_none() {
            return Ok(());
        }
        // Not the usual waiter: what is watched there is not heard any more, and would keep it awake.
        let mut waiter = waiter_for(self.fd)?;
        self.drain(&mut waiter)?;
        self.inner.submit(Io::new(0, Op::Flush, 0, 0));
        for flushed in self.drain(&mut waiter)? {
            flushed.result.map_err(|e| {
                Failure::failed(format!("writes since the last flush may be lost: {e}"))
            })?;
        }
        match self.grant.take() {
            Some(grant) => grant.release(&mut *self.inner),
            None => Ok(()),
        }
    }

    /// Waits for all that is outstanding.
    fn drain(&mut self, waiter: &mut Waiter) -> Outcome<Vec<Completion>> {
        let mut done = Vec::new();
        loop {
            self.inner.poll(&mut done);
            if self.inner.outstanding() == 0 {
                return Ok(done);
            }
            waiter.wait(None).map_err(|e| Failure::failed(format!("cannot wait: {e}")))?;
        }
    }
}

impl Drop for Buffered {
    /// Not ended in order. Who has written stays on record, as after a crash.
    fn drop(&mut self) {
        if let Some(grant) = self.grant.take()
            && !self.written
        {
            grant.undo(&mut *self.inner);
        }
    }
}

impl Volume for Buffered {
    fn geometry(&self) -> Geometry {
        let mut geometry = self.inner.geometry();
        geometry.features.read_only |= self.read_only;
        geometry
    }

    fn identity(&self) -> Identity {
        self.inner.identity()
    }

    fn submit(&mut self, io: Io) {
        self.written |= io.op.is_write();
        self.inner.submit(io);
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        done.append(&mut self.ready);
        self.inner.poll(done);
    }

    fn outstanding(&self) -> usize {
        self.inner.outstanding() + self.ready.len()
    }

    fn losses(&self) -> u64 {
        self.inner.losses()
    }

    fn load_writer(&mut self) -> Result<WriterRecord, IoError> {
        self.inner.load_writer()
    }

    fn store_writer(&mut self, record: WriterRecord) -> Result<(), IoError> {
        self.inner.store_writer(record)
    }
}

/// A local volume; `V` is [`Buffered`], or a module over it that `below` looks through.
struct Local<V> {
    volume: V,
    below: fn(&mut V) -> &mut Buffered,
    waiter: Waiter,
    pool: Pool,
    block_bytes: u32,
}

impl<V: Volume> Local<V> {
    fn gather(&mut self) -> bool {
        let buffered = (self.below)(&mut self.volume);
        buffered.inner.poll(&mut buffered.ready);
        !buffered.ready.is_empty()
    }
}

impl<V: Volume> OpenVolume for Local<V> {
    fn volume(&mut self) -> &mut dyn Volume {
        &mut self.volume
    }

    fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    fn pool(&self) -> &Pool {
        &self.pool
    }

    fn turn(&mut self, wait: Wait) -> Outcome<bool> {
        if self.gather() {
            return Ok(true);
        }
        let failed = |e| Failure::failed(format!("cannot wait: {e}"));
        match wait {
            Wait::No => return Ok(false),
            Wait::Forever => self.waiter.wait(None).map_err(failed)?,
            Wait::Until(end) => {
                let left = end.saturating_duration_since(Instant::now());
                self.waiter.wait(Some(left)).map_err(failed)?
            }
        };
        Ok(self.gather())
    }

    fn watch(&mut self, fd: BorrowedFd<'_>) -> Outcome {
        self.waiter.add(fd, ANY).map_err(|e| Failure::failed(format!("cannot watch: {e}")))
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.waiter.fd())
    }

    fn deadline(&self) -> Option<Instant> {
        None
    }

    fn health(&self) -> VolumeHealth {
        VolumeHealth::local()
    }

    fn on_record(&mut self) -> OnRecord {
        let buffered = (self.below)(&mut self.volume);
        match &buffered.grant {
            Some(grant) if buffered.written && grant.is_known() => OnRecord::Known,
            Some(_) if buffered.written => OnRecord::Stranger,
            _ => OnRecord::No,
        }
    }

    fn close(&mut self, force: bool) -> Outcome {
        if force { Ok(()) } else { (self.below)(&mut self.volume).end() }
    }
}

#[cfg(test)]
#[path = "local_tests.rs"]
mod tests;
