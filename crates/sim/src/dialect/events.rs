//! What happens to users of EBD.

use crate::chaos::Later;
use crate::world::{SimHost, World};

/// What happens to a user of EBD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EbdEvent {
    /// It is killed, and begins anew after so long.
    Crash(u64),
    /// It ends in order.
    Close,
    /// It ends at once, by itself.
    Abort,
    /// It does not run for so long.
    Freeze(u64),
    /// It begins anew, and takes over.
    TakeOver,
    /// Its link is down for so long.
    LinkDown(u64),
    /// It and its server do not reach each other for so long: both ways, or one.
    Cut(u64, u8),
}

impl World {
    /// This happens to a user; what ends it, and when.
    pub(crate) fn touch_ebd(&mut self, user: usize, event: EbdEvent) -> Vec<(u64, Later)> {
        let (host, now) = (SimHost::Ebd(user), self.now);
        let mut ends = Vec::new();
        match event {
            EbdEvent::Crash(ns) => {
                self.crash_ebd(user);
                ends.push((now + ns, Later::StartEbd(user, false)));
            }
            EbdEvent::Close => self.ebd_users[user].close(),
            EbdEvent::Abort => self.ebd_users[user].abort(),
            EbdEvent::Freeze(ns) => self.freeze(host, now + ns),
            EbdEvent::TakeOver => {
                self.crash_ebd(user);
                self.ebd_users[user].config.take_over = !self.ebd_users[user].config.read_only;
                self.start_ebd(user);
            }
            EbdEvent::LinkDown(ns) => {
                let station = self.ebd_users[user].machine.stations[0];
                self.net.set_up(station, false);
                ends.push((now + ns, Later::LinkUp(station)));
            }
            EbdEvent::Cut(ns, which) => {
                let server = SimHost::Server(self.ebd_users[user].server);
                for (nth, (from, to)) in [(server, host), (host, server)].into_iter().enumerate() {
                    if which != nth as u8 {
                        self.set_way(from, to, false);
                        ends.push((now + ns, Later::OpenWay(from, to)));
                    }
                }
            }
        }
        ends
    }
}
