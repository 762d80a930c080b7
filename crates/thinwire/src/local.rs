//! Local volumes, opened without any network: memory, null, files and block devices.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use thinwire_buffer::Pool;
use thinwire_runtime::disk;
use thinwire_runtime::switched::Switched;
use thinwire_runtime::wait::{Token, Waiter};
use thinwire_volume::stores::{MemoryStore, NullStore};
use thinwire_volume::{
    Completion, Geometry, Identity, Io, IoError, Unaligned, Volume, WriterRecord,
};

use crate::error::{Failure, Outcome};
use crate::export::BLOCK_BYTES_DEFAULT;
use crate::open::{OpenOptions, OpenVolume, VolumeHealth, Wait};
use crate::uri::VolumeSpec;

/// Memory that a local volume's pool keeps for reuse, in bytes.
const POOL_FREE_BYTES_MAX: usize = 256 << 20;

/// The token of all descriptors: any ends the sleep.
const ANY: Token = 0;

/// How long to wait for a file that somebody else has locked: a killed predecessor's last I/O.
const LOCK_PATIENCE: Duration = Duration::from_secs(3);

/// Opens a path, `memory:` or `null:` volume with blocks of 512 bytes.
pub fn open(spec: &VolumeSpec, options: &OpenOptions) -> Outcome<Box<dyn OpenVolume>> {
    let pool = Pool::new(POOL_FREE_BYTES_MAX);
    let block = BLOCK_BYTES_DEFAULT;
    let (volume, fd): (Box<dyn Volume>, _) = match spec {
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
            let options = disk::OpenOptions {
                read_only: options.read_only,
                block_bytes: block,
                wait_lock: LOCK_PATIENCE,
                ..disk::OpenOptions::default()
            };
            let mut notify = |note: &str| tracing::info!("{note}");
            disk::open_store(path, &options, &pool, &mut notify)
                .map_err(|e| Failure::failed(e.to_string()))?
        }
        VolumeSpec::Remote(remote) => unreachable!("{remote} is opened by open_volume"),
    };
    let unusable = |e| Failure::failed(format!("cannot use epoll: {e}"));
    let mut waiter = Waiter::new().map_err(unusable)?;
    if let Some(fd) = fd {
        waiter.add_disk(fd, ANY).map_err(unusable)?;
    }
    let block_bytes = volume.geometry().block_bytes;
    let volume = Buffered { inner: volume, ready: Vec::new(), read_only: options.read_only };
    Ok(match options.any_byte {
        true => {
            let volume = Unaligned::new(volume, pool.clone());
            Box::new(Local { volume, below: Unaligned::inner_mut, waiter, pool, block_bytes })
        }
        false => Box::new(Local { volume, below: |volume| volume, waiter, pool, block_bytes }),
    })
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

/// Keeps completions that were taken in to find out whether there are any.
struct Buffered {
    inner: Box<dyn Volume>,
    ready: Vec<Completion>,
    read_only: bool,
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

    fn close(&mut self, _force: bool) -> Outcome {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::WireArgs;
    use std::os::fd::AsFd;
    use thinwire_buffer::SegList;
    use thinwire_volume::Op;

    fn options() -> OpenOptions {
        OpenOptions::new(false, &WireArgs::default(), "/nonexistent".into())
    }

    fn io(open: &mut dyn OpenVolume, io: Io) -> Completion {
        crate::bench::one_io(open, io, &mut Vec::new()).unwrap()
    }

    #[test]
    fn memory_remembers_and_null_forgets() {
        for (spec, kept) in [("memory:1M", true), ("null:1M", false)] {
            for any_byte in [false, true] {
                let options = OpenOptions { any_byte, ..options() };
                let mut open = open(&spec.parse().unwrap(), &options).unwrap();
                let geometry = open.volume().geometry();
                assert_eq!(geometry.block_bytes, if any_byte { 1 } else { 512 });
                let mut write = Io::new(1, Op::Write, 512, 512);
                write.data = SegList::of(open.pool().copy_of(&[7; 512]).freeze());
                assert!(io(&mut *open, write).result.is_ok());
                let read = io(&mut *open, Io::new(2, Op::Read, 512, 512));
                assert_eq!(read.data.to_vec()[0] == 7, kept);
                if any_byte {
                    assert_eq!(io(&mut *open, Io::new(3, Op::Read, 600, 3)).data.bytes(), 3);
                }
            }
        }
    }

    #[test]
    fn a_file_is_written_through_and_locked() {
        let dir = crate::testing::TempDir::new("local");
        let path = dir.path().join("disk.img");
        std::fs::File::create(&path).unwrap().set_len(1 << 20).unwrap();
        let spec = VolumeSpec::Path(path.clone());
        let mut first = open(&spec, &options()).unwrap();
        let mut write = Io::new(1, Op::Write, 4096, 4096);
        write.data = SegList::of(first.pool().copy_of(&[7; 4096]).freeze());
        assert!(io(&mut *first, write).result.is_ok());
        assert!(io(&mut *first, Io::new(2, Op::Flush, 0, 0)).result.is_ok());
        let bytes = std::fs::read(&path).unwrap();
        assert!(bytes[4096..8192] == [7; 4096] && bytes[..4096] == [0; 4096]);
        let error = open(&spec, &options()).err().expect("locked").to_string();
        assert!(error.contains("disk.img") && error.contains("in use"), "{error}");
        drop(first);
        assert!(open(&spec, &options()).is_ok());
    }

    #[test]
    fn a_sleep_ends_at_a_watched_descriptor_or_in_time() {
        let mut open = open(&"null:1M".parse().unwrap(), &options()).unwrap();
        assert!(!open.turn(Wait::Until(Instant::now() + Duration::from_millis(5))).unwrap());
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        open.watch(reader.as_fd()).unwrap();
        rustix::io::write(&writer, b"x").unwrap();
        assert!(!open.turn(Wait::Forever).unwrap());
    }

    #[test]
    fn read_only_is_in_the_geometry() {
        let options = OpenOptions { read_only: true, ..options() };
        let mut open = open(&"memory:1M".parse().unwrap(), &options).unwrap();
        assert!(open.volume().geometry().features.read_only);
    }
}
