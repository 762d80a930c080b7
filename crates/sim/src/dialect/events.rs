//! What happens to users of other protocols.

use super::{DialectUser, For};
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
    /// A person at its station has its device reserved, or released: by force, or not. Only AoE has that.
    Reserve(For, bool),
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
            DialectEvent::Reserve(whom, is_forced) => self.reserve(user, whom, is_forced),
        }
        ends
    }

    fn reserve(&mut self, user: usize, whom: For, is_forced: bool) {
        let DialectUser { server, export, .. } = self.dialect_users[user];
        let Some(lane) = &self.servers[server].aoe else { return };
        let mut others = self.dialect_users.iter().enumerate().filter(|(other, known)| {
            *other != user && known.export == export && known.device().is_some() && !known.read_only
        });
        let another = others.next().map(|(_, other)| other.machine.stations[0]);
        let stations = (lane.station, another);
        self.trace.note(self.now, &self.dialect_users[user].name, "reserves", whom as u64);
        self.dialect_users[user].reserve((whom, is_forced), stations, &mut self.coverage);
    }
}
