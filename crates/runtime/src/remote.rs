//! An attachment with real links: something to submit to and poll.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use thinwire_buffer::Pool;
use thinwire_initiator::{Initiator, InitiatorConfig, InitiatorReport};
use thinwire_link::Link;
use thinwire_node::{Lane, PartId};
use thinwire_proto::Time;
use thinwire_volume::Volume;

use crate::clock::{entropy, entropy_bytes};
use crate::shard::Shard;
use crate::wait::{Spin, WaitToken};

/// Begins to attach an export over these links of a shard, by number: [`Initiator::is_open`] tells when
/// that is done, [`Initiator::first_error`] if it failed.
pub fn begin_attach(
    shard: &mut Shard,
    mut config: InitiatorConfig,
    links: Vec<usize>,
) -> PartId<Initiator> {
    if config.instance == 0 {
        config.instance = entropy();
    }
    if config.initiator == [0; 16] {
        // Zeroes name nobody: an attachment without a name of its own is somebody new.
        config.initiator[..8].copy_from_slice(&entropy().to_be_bytes());
        config.initiator[8..].copy_from_slice(&entropy().to_be_bytes());
    }
    if config.lane == 0 {
        config.lane = crate::steering::Lanes::draw().give();
    }
    if let Some(key) = &mut config.key {
        key.entropy = entropy_bytes();
    }
    let lane = Lane { sessions: config.lane..=config.lane, outside: true };
    let (infos, pool, now) = (shard.infos(&links), shard.pool().clone(), shard.now());
    let mut initiator = Initiator::new(now, config, infos, pool, entropy());
    initiator.set_observer(shard.links().clocks().clone());
    shard.add(initiator, links, &lane)
}

/// A remote volume and its links, driven by the thread that owns it.
///
/// Submit I/Os to [`Remote::volume`], call [`Remote::turn`], take completions from
/// `volume().poll(..)`, and when there is nothing to do call [`Remote::wait`]. Nothing blocks but
/// `wait`.
pub struct Remote {
    shard: Shard,
    initiator: PartId<Initiator>,
}

impl Remote {
    /// Begins to attach. [`Initiator::is_open`] tells when that is done,
    /// [`Initiator::first_error`] if it failed. `pool` is where received frames and the data of
    /// reads live; buffers for writes may come from it too.
    pub fn new(config: InitiatorConfig, links: Vec<Box<dyn Link>>, pool: Pool) -> io::Result<Self> {
        let all = (0..links.len()).collect();
        let mut shard = Shard::new(links, pool)?;
        let initiator = begin_attach(&mut shard, config, all);
        Ok(Remote { shard, initiator })
    }

    /// The volume: submit and poll. Its geometry is known once it is open.
    pub fn volume(&mut self) -> &mut dyn Volume {
        self.shard.node().volume(self.initiator)
    }

    /// Does something with the attachment: see [`Initiator::close`], [`Initiator::abort`].
    pub fn with_initiator<R>(&mut self, act: impl FnOnce(&mut Initiator) -> R) -> R {
        act(self.shard.get_mut(self.initiator))
    }

    /// The volume, to look at.
    pub fn initiator(&self) -> &Initiator {
        self.shard.get(self.initiator)
    }

    /// The links, for their names and counters.
    pub fn shard(&self) -> &Shard {
        &self.shard
    }

    /// Where buffers come from.
    pub fn pool(&self) -> &Pool {
        self.shard.pool()
    }

    /// The time on this volume's clock.
    pub fn now(&self) -> Time {
        self.shard.now()
    }

    /// Figures for status.
    pub fn report(&self) -> InitiatorReport {
        self.initiator().report(self.now())
    }

    /// When waiting spins. Default: [`Spin::On`].
    pub fn set_spin(&mut self, spin: Spin) {
        self.shard.set_spin(spin);
    }

    /// Wakes [`Remote::wait`] while `fd` is readable. `token` is below 2^30.
    pub fn watch(&mut self, fd: BorrowedFd<'_>, token: WaitToken) -> io::Result<()> {
        self.shard.watch(fd, token)
    }

    /// Sends what there is to send and takes in what is there, without waiting. Returns true if
    /// something happened.
    pub fn turn(&mut self) -> io::Result<bool> {
        let got = self.shard.turn(Some(Duration::ZERO))?;
        Ok(got || self.initiator().has_completions())
    }

    /// The same, but waits for a frame, a watched descriptor, a timer of the volume, or `timeout` at
    /// most. Spins for a while if that has lately paid. Does not wait if completions do.
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.shard.turn(timeout)?;
        Ok(())
    }

    /// The watched descriptors that the last wait found readable.
    pub fn ready(&self) -> impl Iterator<Item = WaitToken> + '_ {
        self.shard.ready()
    }
}
