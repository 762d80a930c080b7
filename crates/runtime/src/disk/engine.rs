//! How system calls on a disk are made without waiting for them.

use std::os::fd::RawFd;
use std::time::Duration;

use super::slots::SystemCall;

/// Makes the system calls of up to [`SLOTS`] operations at once, in any order.
pub(super) trait Engine {
    /// Takes a call for a slot. It need not begin before [`Engine::enter`].
    ///
    /// # Safety
    /// The memory that `request` points to stays valid, is not written, and (for a read) not looked
    /// at, until [`Engine::reap`] has returned the slot. A slot has one call at a time.
    unsafe fn start(&mut self, slot: u32, request: SystemCall);

    /// Makes sure that what was started gets going, at the latest with this turn of the shard that drives it.
    fn enter(&mut self);

    /// Appends the slots whose calls have ended, each with its count or negative errno.
    fn reap(&mut self, ended: &mut Vec<(u32, i32)>);

    /// Waits until a call has ended. Only called while one runs.
    fn wait(&mut self);

    /// Readable when [`Engine::reap`] would return something.
    fn fd(&self) -> RawFd;
}

/// The slot of a pause ([`SystemCall::Pause`]), of which there is one at a time besides the others.
pub(super) const PAUSE: u32 = u32::MAX;
/// The slot of a bell ([`SystemCall::Bell`]), of which there is one at a time, too.
pub(super) const BELL: u32 = u32::MAX - 1;
/// The slot of a call of nothing ([`SystemCall::Nothing`]), of which there is one at a time, too: it has the
/// next turn come at once.
pub(super) const AGAIN: u32 = u32::MAX - 2;
/// Much shorter than a sync, and longer than going round once more costs.
pub(super) const PAUSE_TIME: Duration = Duration::from_micros(200);

/// Operations that one disk has in the kernel at once; more wait their turn. Enough for the deepest
/// device queues; a slot costs a few hundred bytes.
pub(super) const SLOTS: usize = 128;
