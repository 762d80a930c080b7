//! What happens to users of other protocols.

use crate::chaos::Later;
use crate::world::{SimHost, World};

/// What happens to a user of another protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DialectEvent {
    /// It is killed, and begins anew after so long.
    Crash(u64),
    /// It ends in order.
    Close,
    /// It ends at once, by itself.
    Abort,
    /// It does not run for so long.
    Freeze(u64),
    /// It begins anew, and takes over, if its protocol has that.
    TakeOver,
    /// Its link is down for so long.
    LinkDown(u64),
    /// It and its server do not reach each other for so long: both ways, or one.
    Cut(u64, u8),
}

impl World {
    /// This happens to a user; what ends it, and when.
    pub(crate) fn touch_dialect(&mut self, user: usize, event: DialectEvent) -> Vec<(u64, Later)> {
        let (host, now) = (SimHost::Dialect(user), self.now);
        let mut ends = Vec::new();
        match event {
            DialectEvent::Crash(ns) => {
                self.crash_dialect(user);
                ends.push((now + ns, Later::StartDialect(user, false)));
            }
            DialectEvent::Close => self.dialect_users[user].close(),
            DialectEvent::Abort => self.dialect_users[user].abort(),
            DialectEvent::Freeze(ns) => self.freeze(host, now + ns),
            DialectEvent::TakeOver => {
                self.crash_dialect(user);
                let u = &mut self.dialect_users[user];
                u.take_over = !u.read_only;
                self.start_dialect(user);
            }
            DialectEvent::LinkDown(ns) => {
                let station = self.dialect_users[user].machine.stations[0];
                self.net.set_up(station, false);
                ends.push((now + ns, Later::LinkUp(station)));
            }
            DialectEvent::Cut(ns, which) => {
                let server = SimHost::Server(self.dialect_users[user].server);
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
