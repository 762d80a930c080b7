//! A loop device over the FUSE file.
//!
//! * `keeper.rs`: the thread that sets up, syncs and lets go of the loop device, because each of
//!   these waits for I/O that the shard serves
//! * `device.rs`: the loop driver's ioctls
//! * `stale.rs`: what a killed attachment leaves
//!
//! Both layers do direct I/O: nothing of the volume is cached twice, and what the page cache holds
//! of the device is the same as over any disk. Discards and write-zeroes pass through both.

mod device;
mod keeper;
mod stale;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc::RecvTimeoutError;
use std::task::Poll;
use std::time::{Duration, Instant};

use thinwire_buffer::Pool;
use thinwire_volume::Volume;

pub use stale::clean_stale;

use super::ballast::{Ballast, Marks};
use super::error::BlockError;
use super::question::Question;
use super::ticker::Ticker;
use super::{BlockConfig, disk_file};
use crate::fuse::{FuseConfig, FuseFace};
use crate::{FORCED_CLOSE_MAX, Face};
use device::node_of;
use keeper::{Answer, Keeper, Order, Setup};

/// How long the file may stay open after the device let go of it.
const UNMOUNT_WAIT: Duration = Duration::from_secs(5);

#[derive(Debug)]
enum State {
    /// The keeper sets the device up.
    Starting,
    /// The device can be used.
    Serving,
    /// The keeper writes back and lets go.
    Closing,
    /// The device is gone; the file under it is about to be free.
    Unbound { since: Instant },
    /// There is no device and will be none.
    Failed { kind: io::ErrorKind, why: String },
    /// Everything is gone.
    Closed,
}

/// A forced close that has begun. What the keeper says of other orders meanwhile changes nothing about it.
#[derive(Debug)]
struct Forced {
    since: Instant,
    /// What became of the file under the device.
    unmounted: io::Result<()>,
    /// The keeper has let go, and has nothing more to say.
    let_go: bool,
}

/// A volume as a block device. Lives on the shard's thread; a second thread keeps the loop device,
/// off the I/O path. Dropping it takes the device away by force, and waits for that thread, for
/// [`FORCED_CLOSE_MAX`] at most: nobody turns the face any more.
pub struct LoopFace {
    fuse: FuseFace,
    keeper: Keeper,
    state: State,
    ticker: Ticker,
    number: Option<u32>,
    bytes: u64,
    resizing: bool,
    /// Why the last orderly close failed.
    refusal: Option<BlockError>,
    question: Question,
    forced: Option<Forced>,
    /// Who used the device when it was let go of by force, until that is told.
    last_word: Option<String>,
    /// Of one that carries.
    ballast: Option<Ballast>,
}

impl LoopFace {
    /// Whether an attachment of that name could have a device now: see [`FuseFace::check`].
    ///
    /// # Errors
    /// As [`LoopFace::attach`].
    pub fn check(run_dir: &Path, name: &str) -> Result<(), BlockError> {
        if !Path::new("/dev/loop-control").exists() {
            return Err(BlockError::NoLoopControl);
        }
        Ok(FuseFace::check(&disk_file(run_dir, name))?)
    }

    /// Mounts the file and begins to set up the device over it, which takes a few turns:
    /// [`Face::ready`] tells when it is done, or why it cannot be.
    ///
    /// # Errors
    /// See [`BlockError`]; nothing is left behind then.
    pub fn attach(config: BlockConfig, pool: Pool) -> Result<Self, BlockError> {
        let BlockConfig { run_dir, name, source, geometry, block_bytes, is_carrying, read_only } =
            config;
        let bytes = geometry.bytes;
        let read_only = read_only || geometry.features.read_only;
        let fuse = FuseFace::mount(
            FuseConfig {
                path: disk_file(&run_dir, &name),
                source,
                geometry,
                read_only,
                allow_other: false,
            },
            pool,
        )?;
        let ticker = Ticker::over(fuse.fd());
        let ticker = ticker.map_err(BlockError::system("cannot make a poll set"))?;
        let backing = PathBuf::from(fuse.path());
        let setup = Setup { backing, block_bytes, is_carrying, read_only };
        let ballast = is_carrying.then(|| Ballast::take(Marks::read()?)).transpose();
        let ballast = ballast.map_err(BlockError::system("cannot take memory to throw off"))?;
        let ballast = ballast.flatten();
        let keeper = keeper::start(setup).map_err(BlockError::system("cannot start a thread"))?;
        let mut face = LoopFace {
            fuse,
            keeper,
            state: State::Starting,
            ticker,
            number: None,
            bytes,
            resizing: false,
            refusal: None,
            question: Question::default(),
            forced: None,
            last_word: None,
            ballast,
        };
        face.set_timer().map_err(BlockError::system("cannot start a timer"))?;
        Ok(face)
    }

    fn node(&self) -> String {
        match self.number {
            Some(number) => node_of(number),
            None => "the loop device".to_owned(),
        }
    }

    /// Takes in what the keeper said. True if it said something.
    fn hear(&mut self) -> bool {
        let mut any = false;
        loop {
            match self.keeper.answer() {
                Ok(Some(answer)) => self.take_in(answer),
                Ok(None) => return any,
                Err(_) => return any | self.keeper_gone(),
            }
            any = true;
        }
    }

    fn take_in(&mut self, answer: Answer) {
        match answer {
            Answer::Ready(Ok(number)) => {
                self.number = Some(number);
                self.state = State::Serving;
            }
            Answer::Ready(Err(e)) => self.fail(e),
            Answer::Resized(outcome) => {
                self.resizing = false;
                if let Err(e) = outcome {
                    tracing::warn!("the volume has grown, {} has not: {e}", self.node());
                }
            }
            Answer::Closed(Ok(())) => {
                // Not before: while it served, writing it down might have had to wait for it.
                let thrown = self.ballast.as_ref().map_or(0, Ballast::thrown);
                if thrown > 0 {
                    tracing::info!(
                        "the machine stood still for want of memory: {thrown} MiB were thrown off, one at a time"
                    );
                }
                self.state = State::Unbound { since: Instant::now() };
            }
            Answer::Closed(Err(e)) => {
                self.refusal = Some(e);
                self.state = State::Serving;
            }
            Answer::Usage(to, usage) => self.question.tell(to, usage),
            Answer::Forced(user) => {
                let word = |user| {
                    format!("{user}; I/O fails there, and the device goes with its last user")
                };
                self.last_word = user.map(word);
                self.has_let_go();
            }
        }
    }

    fn fail(&mut self, e: BlockError) {
        let e = io::Error::from(e);
        self.state = State::Failed { kind: e.kind(), why: e.to_string() };
    }

    /// The keeper ends by itself only after its last answer. True if that is news.
    fn keeper_gone(&mut self) -> bool {
        self.has_let_go();
        let early = matches!(self.state, State::Starting | State::Serving | State::Closing);
        if early {
            self.fail(BlockError::KeeperGone(self.node()));
        }
        early
    }

    fn has_let_go(&mut self) {
        if let Some(forced) = &mut self.forced {
            forced.let_go = true;
        }
    }

    /// The timer runs while an answer is awaited.
    fn set_timer(&mut self) -> io::Result<()> {
        let waits = matches!(self.state, State::Starting | State::Closing | State::Unbound { .. });
        let wanted = !matches!(self.state, State::Closed)
            && (waits || self.resizing || self.question.is_open());
        self.ticker.set(wanted)
    }

    /// One step of an orderly close.
    fn close_step(&mut self) -> io::Result<()> {
        match &self.state {
            State::Closed => Ok(()),
            State::Starting | State::Closing => Err(io::ErrorKind::WouldBlock.into()),
            State::Serving => {
                self.question.forget();
                if let Some(refusal) = self.refusal.take() {
                    return Err(refusal.into());
                }
                self.keeper.order(Order::Close);
                self.state = State::Closing;
                Err(io::ErrorKind::WouldBlock.into())
            }
            State::Failed { .. } => {
                self.fuse.close(true)?;
                self.state = State::Closed;
                Ok(())
            }
            State::Unbound { since } => {
                let patient = since.elapsed() < UNMOUNT_WAIT;
                match self.fuse.close(false) {
                    // The loop driver closes its file a moment later.
                    Err(e) if e.kind() == io::ErrorKind::ResourceBusy && patient => {
                        Err(io::ErrorKind::WouldBlock.into())
                    }
                    // Everything is written; whoever still looks at the device has lost nothing.
                    Err(e) if e.kind() == io::ErrorKind::ResourceBusy => {
                        tracing::warn!("{} is still open somewhere; leaving anyway", self.node());
                        self.fuse.close(true)?;
                        self.state = State::Closed;
                        Ok(())
                    }
                    Err(e) => Err(e),
                    Ok(()) => {
                        self.state = State::Closed;
                        Ok(())
                    }
                }
            }
        }
    }

    /// One step of a forced close. First the connection is aborted, so that nobody waits for the volume
    /// any longer, the loop driver and the keeper included; then the device is let go of.
    fn force_step(&mut self) -> io::Result<()> {
        if matches!(self.state, State::Closed) {
            return Ok(());
        }
        if self.forced.is_none() {
            let unmounted = self.fuse.close(true);
            self.keeper.order(Order::Force);
            self.question.forget();
            self.forced = Some(Forced { since: Instant::now(), unmounted, let_go: false });
        }
        // The face is not turned any more: the next call is when the timer says.
        self.ticker.take();
        self.hear();
        let ended = self.forced.take_if(|forced| forced.let_go);
        self.state = match &ended {
            Some(_) => State::Closed,
            None => State::Closing,
        };
        self.set_timer()?;
        ended.map_or_else(|| Err(io::ErrorKind::WouldBlock.into()), |forced| forced.unmounted)
    }
}

impl Face for LoopFace {
    fn path(&self) -> String {
        match self.number {
            Some(number) => node_of(number),
            None => self.fuse.path(),
        }
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
        let mut progress = self.fuse.turn(volume)?;
        let is_tick = self.ticker.take();
        if let Some(ballast) = &self.ballast {
            // While a keeper that stands still, too, is waited for, a timer has this turn.
            ballast.turned(progress || !is_tick, volume.outstanding() > 0);
        }
        if is_tick {
            // Who waits for readiness or for the end looks again after a turn that did something.
            progress = true;
            self.hear();
        }
        let bytes = volume.geometry().bytes;
        if bytes != self.bytes && matches!(self.state, State::Serving) && !self.resizing {
            self.bytes = bytes;
            self.resizing = true;
            self.keeper.order(Order::Resize);
        }
        self.set_timer()?;
        Ok(progress)
    }

    fn busy(&mut self) -> Poll<Option<String>> {
        self.hear();
        if !matches!(self.state, State::Serving) {
            self.question.forget();
            return Poll::Ready(None);
        }
        let (node, keeper) = (self.node(), &self.keeper);
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

impl Drop for LoopFace {
    fn drop(&mut self) {
        let mut outcome = self.force_step();
        while let Some(since) = self.forced.as_ref().map(|forced| forced.since) {
            match self.keeper.answer_until(since + FORCED_CLOSE_MAX) {
                Ok(answer) => self.take_in(answer),
                Err(RecvTimeoutError::Disconnected) => self.has_let_go(),
                Err(RecvTimeoutError::Timeout) => {
                    tracing::warn!("{} takes its time to go", self.node());
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
            tracing::warn!("cannot take {} away: {e}", self.node());
        }
    }
}
