//! A device of ublk, the kernel's driver for block devices in user space (Linux 6.5 and later).
//!
//! * `abi.rs`: what is said to the driver; `control.rs`: devices are made and taken away; `queue.rs`: requests
//! * `server.rs`: what requests mean for the volume
//! * `keeper.rs`: the thread that shows and hides the device, because both wait for I/O that the shard serves
//! * `stale.rs`: what a killed attachment leaves
//!
//! Between the kernel's block layer and the shard's thread nobody stands who would have to get memory, or a processor: a request
//! is a command of io_uring that ends, and its data is copied once, between the pages of whoever asked and the pool.
//! The library `libublk` has its own loop on a thread of its own, and needs libclang to be built; this needs neither.

mod abi;
mod control;
mod keeper;
mod queue;
mod server;
mod stale;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::RecvTimeoutError;
use std::task::Poll;
use std::time::{Duration, Instant};

use thinwire_buffer::Pool;
use thinwire_volume::{Geometry, Volume};

use super::BlockConfig;
use super::error::BlockError;
use super::question::Question;
use super::ticker::Ticker;
use crate::{FORCED_CLOSE_MAX, Face};
use abi::{Basic, Discard, Parameters, attribute, feature, parameter};
use control::Control;
use keeper::{Answer, Keeper, Order, UblkDevice};
use queue::Queue;
use server::UblkServer;
pub use stale::clean_stale;

/// Requests that are outstanding together, and the longest: together what a face may have of memory.
const DEPTH: u16 = 128;
const IO_BYTES_MAX: u32 = 512 << 10;
/// Of a device that its machine depends on: so little that its process has touched memory for all of it before.
const CARRIED_DEPTH: u16 = 16;
const CARRIED_IO_BYTES_MAX: u32 = 16 << 10;
/// How long what is left of a device may be in use once it is hidden.
const DELETE_WAIT: Duration = Duration::from_secs(5);
/// How often requests are refused while nobody turns the face.
const REFUSE_EVERY: Duration = Duration::from_millis(5);
const _: () = assert!(IO_BYTES_MAX as usize <= abi::IO_BYTES_MAX);

/// Whether this kernel has a driver that will do, and it is for us.
///
/// # Errors
/// What is missing, with the remedy.
pub fn check() -> Result<(), BlockError> {
    open().map(|_| ())
}

fn open() -> Result<Control, BlockError> {
    let mut control = match Control::open() {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(BlockError::NoUblk),
        control => control.map_err(BlockError::ublk(format!("cannot open {}", control::PATH)))?,
    };
    match control.features() {
        Ok(features) if features & feature::USER_COPY != 0 => Ok(control),
        Err(e) if matches!(e.kind(), io::ErrorKind::PermissionDenied) => {
            Err(BlockError::ublk("cannot ask what the driver can do")(e))
        }
        // A driver that cannot tell what it can do is older than what is needed.
        _ => Err(BlockError::OldUblk),
    }
}

#[derive(Debug)]
enum State {
    /// The keeper shows the device.
    Starting,
    /// The device can be used.
    Serving,
    /// The keeper writes back and hides it.
    Closing,
    /// There is none any more; the keeper takes away what is left of it, if nobody has it open.
    Deleting { since: Instant },
    /// There is no device and will be none.
    Failed { kind: io::ErrorKind, why: String },
    /// Everything is gone.
    Closed,
}

/// A volume as a block device. Lives on the shard's thread; a second thread shows and hides the device,
/// off the I/O path. Dropping it takes the device away by force, and waits for that thread, for
/// [`FORCED_CLOSE_MAX`] at most: nobody turns the face any more.
pub struct UblkFace {
    server: UblkServer,
    /// `None` once the device is hidden. Kept as long as that takes: the driver waits for answers.
    queue: Option<Queue>,
    device: UblkDevice,
    keeper: Keeper,
    state: State,
    /// It has been shown.
    is_shown: bool,
    ticker: Ticker,
    bytes: u64,
    resizing: bool,
    /// Why the last orderly close failed.
    refusal: Option<BlockError>,
    question: Question,
    /// Since when it is being closed by force.
    forced: Option<Instant>,
    /// Who used the device when it was let go of by force, until that is told.
    last_word: Option<String>,
}

impl UblkFace {
    /// Makes the device, and begins to show it. The calling thread turns the face.
    ///
    /// # Errors
    /// See [`BlockError`]; nothing is left behind then.
    pub fn attach(config: BlockConfig, pool: Pool) -> Result<Self, BlockError> {
        let BlockConfig { run_dir, name, geometry, block_bytes, is_carrying, read_only, .. } =
            config;
        let read_only = read_only || geometry.features.read_only;
        let (depth, io_bytes_max) = match is_carrying {
            true => (CARRIED_DEPTH, CARRIED_IO_BYTES_MAX.max(rustix::param::page_size() as u32)),
            false => (DEPTH, IO_BYTES_MAX.min(1 << geometry.io_bytes_max.ilog2())),
        };
        let mut control = open()?;
        let what = format!("cannot look at {}", run_dir.display());
        let mark = stale::mark_of(&run_dir, &name).map_err(BlockError::system(what))?;
        let made = control.add(depth, io_bytes_max, mark);
        let info = made.map_err(BlockError::ublk("cannot make a device"))?;
        let device = UblkDevice { number: info.device, is_carrying };
        let parameters = parameters(&geometry, block_bytes, io_bytes_max, read_only);
        let prepared = control
            .set_parameters(device.number, parameters)
            .map_err(BlockError::ublk(format!("cannot say what {} is like", device.node())))
            .and_then(|()| {
                let what = format!("cannot open the queue of {}", device.node());
                Queue::open(device.number, depth).map_err(BlockError::ublk(what))
            })
            .and_then(|queue| {
                let ticker = Ticker::over(queue.as_fd());
                Ok((queue, ticker.map_err(BlockError::system("cannot make a poll set"))?))
            });
        let (queue, ticker) = match prepared {
            Ok(prepared) => prepared,
            Err(e) => {
                let _ = control.delete(device.number);
                return Err(e);
            }
        };
        let keeper = match keeper::start(control, device) {
            Ok(keeper) => keeper,
            Err(e) => {
                drop(queue);
                if let Ok(mut control) = Control::open() {
                    let _ = control.delete(device.number);
                }
                return Err(BlockError::system("cannot start a thread")(e));
            }
        };
        let mut face = UblkFace {
            server: UblkServer::new(depth, read_only, pool),
            queue: Some(queue),
            device,
            keeper,
            state: State::Starting,
            is_shown: false,
            ticker,
            bytes: geometry.bytes,
            resizing: false,
            refusal: None,
            question: Question::default(),
            forced: None,
            last_word: None,
        };
        face.set_timer().map_err(BlockError::system("cannot start a timer"))?;
        Ok(face)
    }

    /// Takes in what the keeper said.
    fn hear(&mut self) {
        loop {
            match self.keeper.answer() {
                Ok(Some(answer)) => self.take_in(answer),
                Ok(None) => return,
                Err(_) => return self.keeper_gone(),
            }
        }
    }

    fn take_in(&mut self, answer: Answer) {
        let is_last = matches!(answer, Answer::Forced(_) | Answer::Deleted(_));
        if self.forced.is_some() && !is_last {
            // What was asked before changes nothing any more.
            return;
        }
        match answer {
            Answer::Ready(Ok(())) => (self.state, self.is_shown) = (State::Serving, true),
            Answer::Ready(Err(e)) => self.fail(e),
            Answer::Resized(outcome) => {
                self.resizing = false;
                if let Err(e) = outcome {
                    let node = self.device.node();
                    tracing::warn!(
                        "the volume has grown, {node} will when it is attached anew: {e}"
                    );
                }
            }
            Answer::Stopped(Ok(())) => {
                self.drop_queue();
                self.keeper.order(Order::Delete);
                self.state = State::Deleting { since: Instant::now() };
            }
            Answer::Stopped(Err(e)) => {
                self.refusal = Some(e);
                self.state = State::Serving;
            }
            Answer::Usage(to, usage) => self.question.tell(to, usage),
            Answer::Forced(user) => {
                let word = |user| {
                    format!("{user}; I/O fails there, and the device goes with its last user")
                };
                self.last_word = user.map(word);
                self.drop_queue();
                self.state = State::Closed;
            }
            Answer::Deleted(outcome) => {
                if let Err(e) = outcome {
                    tracing::warn!("{e}");
                }
                self.state = State::Closed;
            }
        }
    }

    fn fail(&mut self, e: BlockError) {
        let e = io::Error::from(e);
        self.state = State::Failed { kind: e.kind(), why: e.to_string() };
    }

    /// The keeper ends by itself only after its last answer.
    fn keeper_gone(&mut self) {
        match self.state {
            State::Starting | State::Serving | State::Closing if self.forced.is_none() => {
                self.fail(BlockError::KeeperGone(self.device.node()));
            }
            State::Failed { .. } if self.forced.is_none() => {}
            _ => {
                self.drop_queue();
                self.state = State::Closed;
            }
        }
    }

    /// The driver has nobody to ask any more.
    fn drop_queue(&mut self) {
        if let Some(queue) = self.queue.take() {
            self.ticker.leave(queue.as_fd());
        }
    }

    /// The timer runs while an answer is awaited.
    fn set_timer(&mut self) -> io::Result<()> {
        let waits = matches!(self.state, State::Starting | State::Closing | State::Deleting { .. });
        let is_over = matches!(self.state, State::Closed);
        self.ticker.set(!is_over && (waits || self.resizing || self.question.is_open()))
    }

    /// One step of an orderly close.
    fn close_step(&mut self) -> io::Result<()> {
        match &self.state {
            State::Closed => Ok(()),
            State::Deleting { since } if since.elapsed() >= DELETE_WAIT => {
                // Everything is written; whoever still looks at the device has lost nothing.
                tracing::warn!("{} is still open somewhere; leaving anyway", self.device.node());
                self.state = State::Closed;
                Ok(())
            }
            State::Starting | State::Closing | State::Deleting { .. } => {
                Err(io::ErrorKind::WouldBlock.into())
            }
            State::Serving => {
                self.question.forget();
                if let Some(refusal) = self.refusal.take() {
                    return Err(refusal.into());
                }
                self.keeper.order(Order::Close);
                self.state = State::Closing;
                Err(io::ErrorKind::WouldBlock.into())
            }
            State::Failed { .. } => self.force_step(),
        }
    }

    /// One step of a forced close: nobody waits for the volume any longer, then the device is taken away.
    fn force_step(&mut self) -> io::Result<()> {
        if matches!(self.state, State::Closed) {
            return Ok(());
        }
        if self.forced.is_none() {
            self.question.forget();
            self.keeper.order(Order::Force);
            (self.forced, self.state) = (Some(Instant::now()), State::Closing);
        }
        // The face is not turned any more: the next call is when the timer says, or a request comes.
        self.ticker.take();
        if let Some(queue) = &mut self.queue {
            // The driver waits for each of them, and closing the queue would not do before Linux 6.15.
            self.server.refuse_all(queue);
        }
        self.hear();
        self.set_timer()?;
        match self.state {
            State::Closed => Ok(()),
            _ => Err(io::ErrorKind::WouldBlock.into()),
        }
    }
}

impl Face for UblkFace {
    fn path(&self) -> String {
        self.device.node()
    }

    fn ready(&mut self) -> Option<io::Result<String>> {
        self.hear();
        match &self.state {
            State::Starting => None,
            State::Failed { kind, why } => Some(Err(io::Error::new(*kind, why.clone()))),
            _ => Some(Ok(self.path())),
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.ticker.as_fd()
    }

    fn turn(&mut self, volume: &mut dyn Volume) -> io::Result<bool> {
        let mut progress = match &mut self.queue {
            Some(queue) => self.server.turn(volume, queue),
            None => false,
        };
        if self.ticker.take() {
            // Who waits for readiness or for the end looks again after a turn that did something.
            progress = true;
            self.hear();
        }
        let is_serving = matches!(self.state, State::Serving);
        let bytes = volume.geometry().bytes;
        if bytes != self.bytes && is_serving && !self.resizing {
            self.bytes = bytes;
            self.resizing = true;
            self.keeper.order(Order::Resize(bytes / 512));
        }
        self.set_timer()?;
        let stopped = self.queue.as_ref().and_then(Queue::stopped);
        match (&self.state, stopped) {
            (State::Starting, Some(e)) => {
                self.fail(BlockError::ublk(format!("cannot serve {}", self.path()))(e));
                progress = true;
            }
            (State::Serving, Some(_)) => {
                return Err(io::Error::new(
                    io::ErrorKind::NotConnected,
                    format!("{} was taken away by somebody else", self.path()),
                ));
            }
            _ => {}
        }
        Ok(progress)
    }

    fn busy(&mut self) -> Poll<Option<String>> {
        self.hear();
        if !matches!(self.state, State::Serving) {
            self.question.forget();
            return Poll::Ready(match &self.state {
                // Nobody can tell any more who uses it.
                State::Failed { why, .. } if self.is_shown => Some(why.clone()),
                _ => None,
            });
        }
        let (node, keeper) = (self.device.node(), &self.keeper);
        let answer =
            self.question.ask(Instant::now(), &node, |number| keeper.order(Order::Usage(number)));
        match self.set_timer() {
            Ok(()) => answer,
            Err(e) => Poll::Ready(Some(format!("cannot find out who uses {node}: {e}"))),
        }
    }

    fn close(&mut self, force: bool) -> io::Result<()> {
        if force || self.forced.is_some() {
            return self.force_step();
        }
        self.hear();
        let outcome = self.close_step();
        self.set_timer()?;
        outcome
    }

    fn last_word(&mut self) -> Option<String> {
        self.last_word.take()
    }
}

impl Drop for UblkFace {
    fn drop(&mut self) {
        let mut outcome = self.force_step();
        while let Some(since) = self.forced
            && !matches!(self.state, State::Closed)
        {
            let end = since + FORCED_CLOSE_MAX;
            match self.keeper.answer_until(end.min(Instant::now() + REFUSE_EVERY)) {
                Ok(answer) => self.take_in(answer),
                Err(RecvTimeoutError::Disconnected) => self.keeper_gone(),
                Err(RecvTimeoutError::Timeout) if Instant::now() < end => {}
                Err(RecvTimeoutError::Timeout) => {
                    tracing::warn!("{} takes its time to go", self.device.node());
                    return;
                }
            }
            outcome = self.force_step();
        }
        // Nobody has asked for it.
        if let Some(word) = self.last_word.take() {
            tracing::warn!("{word}");
        }
        if let Err(e) = outcome {
            tracing::warn!("cannot take {} away: {e}", self.device.node());
        }
    }
}

/// What the device is like.
fn parameters(
    geometry: &Geometry,
    block_bytes: u32,
    io_bytes_max: u32,
    read_only: bool,
) -> Parameters {
    let has_zeroes = geometry.features.write_zeroes;
    // Whole blocks, and a number of sectors that fits.
    let longest = u32::MAX / block_bytes * (block_bytes / 512);
    let of = |has: bool| if has && !read_only { longest } else { 0 };
    let writes = if read_only { attribute::READ_ONLY } else { 0 };
    Parameters {
        bytes: Parameters::BYTES as u32,
        kinds: parameter::BASIC | parameter::DISCARD,
        basic: Basic {
            attributes: writes | attribute::VOLATILE_CACHE | attribute::FUA,
            logical_shift: block_bytes.ilog2() as u8,
            physical_shift: 12,
            io_opt_shift: geometry.preferred_bytes.max(4096).ilog2() as u8,
            io_min_shift: 12,
            sectors_max: io_bytes_max / 512,
            chunk_sectors: 0,
            sectors: geometry.bytes / 512,
            virt_boundary_mask: 0,
        },
        discard: Discard {
            alignment: 0,
            granularity: geometry.preferred_bytes.max(4096),
            sectors_max: of(geometry.features.discard),
            zeroes_sectors_max: of(has_zeroes),
            segments_max: 1,
            reserved: 0,
        },
        pad: 0,
    }
}
