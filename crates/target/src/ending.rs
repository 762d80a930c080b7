//! The orderly end of a target.

use thinwire_buffer::Time;
use thinwire_wire::Status;

use crate::target::Target;

impl Target {
    /// Begins an orderly end: every session is told, nothing new is accepted. The driver keeps
    /// turning until [`Target::is_idle`], for a bounded time.
    pub fn shut_down(&mut self) {
        self.stopping = true;
        for peer in self.peers.iter_mut().flatten() {
            peer.say_bye(Status::ShuttingDown);
        }
        self.house.guests.iter_mut().for_each(|guest| guest.shut_down());
    }

    /// Has exports end in order that keep something for themselves, once this is no part of a node any more: nobody is served then.
    /// To be called until it says that all have.
    pub fn wind_up(&mut self, now: Time) -> bool {
        self.house.exports.wind_up(now)
    }

    /// Nothing is on its way to a store, and everything there was to say to those who can be reached
    /// has been sent. Whether it arrived is not waited for: an initiator that misses the goodbye
    /// finds out by itself.
    pub fn is_idle(&self) -> bool {
        !self.house.exports.is_at_work()
            && !self.house.fair.is_waited_in()
            && !self.house.exports.has_letters()
            && self.house.guests.iter().all(|guest| guest.is_idle())
            && self.peers.iter().flatten().all(|p| {
                let unreachable = !p.session.is_connected();
                p.session.queued() == 0 || unreachable
            })
    }
}
