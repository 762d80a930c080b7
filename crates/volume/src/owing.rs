//! A volume of which somebody relies on flushes alone: what it loses, a flush tells.

use crate::{
    Completion, ErrorKind, Geometry, Identity, Io, IoError, Op, Token, Volume, VolumeEvent,
};

/// The name under which its errors appear.
const MODULE: &str = "loss";

/// So many flushes and writes are outstanding together before its list must grow.
const WATCHED_USUAL: usize = 256;

/// A fault planted in it, which its test must find. No flag sets one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum OwingCanary {
    /// None: as it is.
    #[default]
    None,
    /// What was lost is forgotten.
    DebtForgotten,
    /// A flush that failed by itself counts as having told everybody.
    PaidByFailure,
    /// Of flushes that run while a loss is heard of, only the first is told.
    OneOfMany,
}

/// A flush, or a write that is durable with one only, that is with the volume below.
#[derive(Clone, Copy, Debug)]
struct Watched {
    token: Token,
    is_write: bool,
    /// A loss was heard of meanwhile: a flush cannot have covered what is gone, and a write may be gone that
    /// is acknowledged when the loss has been told.
    is_doomed: bool,
}

/// A store, and what it owes: a loss ([`VolumeEvent::Lost`]) that nobody above writes again has to be told
/// by a flush, or one would be acknowledged although what it should cover is gone (rule 4). So each
/// flush fails that was outstanding when a loss was heard of, or else the next one that would succeed; and
/// one more if a write that was outstanding then is acknowledged behind that.
///
/// A flush that fails by itself tells whoever asked for it, and pays nothing: who else has written was
/// not told. FUA writes vouch for themselves only, and pay nothing either. Who has written nothing that
/// is not durable, or hears of losses otherwise ([`Owing::new`]), is owed nothing.
///
/// Events go up as they come, a loss before the completions behind it.
pub struct Owing<V> {
    below: V,
    /// Whoever needs to know of losses takes them from the events, and writes again what is lost.
    is_heard: bool,
    /// Something was to be written that is durable with a flush only.
    has_written: bool,
    /// A loss that no flush has told of.
    owes: bool,
    /// Searched for each completion: as short as what is outstanding.
    watched: Vec<Watched>,
    /// What the volume below counted when its events were last taken.
    seen: u64,
    /// Taken from it, and not yet told.
    news: Vec<VolumeEvent>,
    canary: OwingCanary,
}

impl<V: Volume> Owing<V> {
    /// Over a volume that has no other user. `is_heard`: who uses it looks at its events for losses, and
    /// writes again what is lost; its flushes are left alone.
    pub fn new(below: V, is_heard: bool) -> Self {
        Owing {
            seen: below.events(),
            below,
            is_heard,
            has_written: false,
            owes: false,
            watched: Vec::with_capacity(WATCHED_USUAL),
            news: Vec::new(),
            canary: OwingCanary::None,
        }
    }

    /// With a planted fault, for the test of its test.
    pub fn with_canary(self, canary: OwingCanary) -> Self {
        Owing { canary, ..self }
    }

    /// The volume below.
    pub fn below_mut(&mut self) -> &mut V {
        &mut self.below
    }

    /// Hears of what has happened below.
    #[cold]
    fn take_news(&mut self) {
        let mut news = Vec::new();
        self.below.poll_events(&mut news);
        let has_lost = news.contains(&VolumeEvent::Lost);
        news.into_iter().for_each(|event| event.remember(&mut self.news));
        if !has_lost || !self.has_written {
            return;
        }
        self.owes = self.canary != OwingCanary::DebtForgotten;
        let are_doomed =
            !matches!(self.canary, OwingCanary::DebtForgotten | OwingCanary::OneOfMany);
        self.watched.iter_mut().for_each(|one| one.is_doomed |= are_doomed);
    }

    /// The flushes among completions are answered.
    fn answer(&mut self, done: &mut [Completion]) {
        for one in done {
            let at = self.watched.iter().position(|watched| watched.token == one.token);
            let Some(at) = at else { continue };
            let Watched { is_write, is_doomed, .. } = self.watched.swap_remove(at);
            if is_write {
                self.owes |= is_doomed && one.result.is_ok();
            } else if one.result.is_err() {
                self.owes &= self.canary != OwingCanary::PaidByFailure;
            } else if std::mem::take(&mut self.owes) | is_doomed {
                let (kind, op) = (ErrorKind::Io, Op::Flush);
                one.result = Err(IoError { kind, op, offset: 0, len: 0, module: MODULE });
            }
        }
    }
}

impl<V: Volume> Volume for Owing<V> {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn identity(&self) -> Identity {
        self.below.identity()
    }

    fn submit(&mut self, io: Io) {
        let is_write = io.op.is_write() && !io.flags.fua;
        self.has_written |= is_write;
        if (is_write || io.op == Op::Flush) && !self.is_heard {
            self.watched.push(Watched { token: io.token, is_write, is_doomed: false });
        }
        self.below.submit(io);
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        if self.is_heard {
            return self.below.poll(done);
        }
        let first = done.len();
        self.below.poll(done);
        // A loss is in front of what came with it.
        let events = self.below.events();
        if std::mem::replace(&mut self.seen, events) != events {
            self.take_news();
        }
        if !self.watched.is_empty() {
            self.answer(&mut done[first..]);
        }
    }

    fn outstanding(&self) -> usize {
        self.below.outstanding()
    }

    fn copied_bytes(&self) -> u64 {
        self.below.copied_bytes()
    }

    fn events(&self) -> u64 {
        self.below.events()
    }

    fn poll_events(&mut self, events: &mut Vec<VolumeEvent>) {
        if self.is_heard {
            return self.below.poll_events(events);
        }
        self.seen = self.below.events();
        self.take_news();
        events.append(&mut self.news);
    }

    fn refresh(&mut self) -> bool {
        self.below.refresh()
    }
}

#[cfg(test)]
mod tests;
