//! A volume of which somebody relies on flushes alone: what it loses, a flush tells.

use crate::{
    Completion, ErrorKind, Geometry, Identity, Io, IoError, Op, Token, Volume, VolumeEvent,
};

/// The name under which its errors appear.
const MODULE: &str = "loss";

/// So many flushes are outstanding together before its list must grow.
const FLUSHES_USUAL: usize = 64;

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

/// A flush that is with the volume below.
#[derive(Clone, Copy, Debug)]
struct Flush {
    token: Token,
    /// A loss was heard of meanwhile: it cannot have covered what is gone.
    is_doomed: bool,
}

/// A store, and what it owes: a loss ([`VolumeEvent::Lost`]) that nobody above writes again has to be told
/// by a flush, or one would be acknowledged although what it should cover is gone (rule 4). So each
/// flush fails that was outstanding when a loss was heard of, or else the next one that would succeed.
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
    flushes: Vec<Flush>,
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
            flushes: Vec::with_capacity(FLUSHES_USUAL),
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
        self.flushes.iter_mut().for_each(|flush| flush.is_doomed |= are_doomed);
    }

    /// The flushes among completions are answered.
    fn answer_flushes(&mut self, done: &mut [Completion]) {
        for one in done {
            let at = self.flushes.iter().position(|flush| flush.token == one.token);
            let Some(at) = at else { continue };
            let is_doomed = self.flushes.swap_remove(at).is_doomed;
            if one.result.is_err() {
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
        self.has_written |= io.op.is_write() && !io.flags.fua;
        if io.op == Op::Flush && !self.is_heard {
            self.flushes.push(Flush { token: io.token, is_doomed: false });
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
        if !self.flushes.is_empty() {
            self.answer_flushes(&mut done[first..]);
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
