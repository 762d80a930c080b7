//! The end of an attachment: in order, at once, or for a reason that nothing mends
//! (`docs/protocol.md`, "Attachments", "Shutdown").

use std::time::Duration;

use thinwire_proto::Time;
use thinwire_volume::ErrorKind;

/// A detach that has nothing left to do is ended after this long without a target to be told of it.
/// Until then one that is just being restarted may come back, and learn that its export is free.
const PATIENCE: Duration = Duration::from_secs(5);

/// Where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// In use.
    Open,
    /// New I/O is refused; what is outstanding completes, and is flushed.
    Draining,
    /// Nothing is left to be done but to tell the target.
    Clean { since: Time },
    /// It has been told, in this session.
    Told { since: Time },
    /// Over.
    Closed,
}

/// What it waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timer {
    /// The target, to be told.
    Patience,
}

/// What is to be done for the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing, for now.
    None,
    /// To tell the target.
    Detach,
    /// To say goodbye: nobody is there to be told.
    Finish,
}

/// How it ends. Its states, and what becomes of them:
///
#[doc = include_str!("closing.md")]
///
/// Beside that it may have failed, which is for good.
#[derive(Debug)]
pub(crate) struct Closing {
    state: State,
    /// It ends behind others: until they have ended the target is neither told nor given up.
    is_held: bool,
    failure: Option<ErrorKind>,
    error: Option<ErrorKind>,
    is_unheard: bool,
}

impl Closing {
    pub fn new() -> Self {
        let (state, is_held) = (State::Open, false);
        Closing { state, is_held, failure: None, error: None, is_unheard: false }
    }

    /// Its name in the table.
    pub fn state(&self) -> &'static str {
        match self.state {
            State::Open => "Open",
            State::Draining => "Draining",
            State::Clean { .. } => "Clean",
            State::Told { .. } => "Told",
            State::Closed => "Closed",
        }
    }

    /// It neither has failed nor is it over.
    #[inline]
    pub fn lives(&self) -> bool {
        self.failure.is_none() && !self.is_closed()
    }

    pub fn is_closed(&self) -> bool {
        self.state == State::Closed
    }

    /// An orderly end is under way.
    #[inline]
    pub fn is_under_way(&self) -> bool {
        matches!(self.state, State::Draining | State::Clean { .. } | State::Told { .. })
    }

    /// The target has been told in this session.
    pub fn is_told(&self) -> bool {
        matches!(self.state, State::Told { .. })
    }

    /// Why it has failed for good, if it has.
    pub fn failure(&self) -> Option<ErrorKind> {
        self.failure
    }

    /// What went wrong with an orderly end.
    pub fn error(&self) -> Option<ErrorKind> {
        self.error
    }

    /// It ended in order, but nobody was there to be told.
    pub fn is_unheard(&self) -> bool {
        self.is_unheard
    }

    /// Why new I/O is refused, if it is.
    pub fn refusal(&self) -> Option<ErrorKind> {
        self.failure.or((self.state != State::Open).then_some(ErrorKind::ShuttingDown))
    }

    /// Begins an orderly end; of what never was in use, or has failed, at once.
    pub fn begin(&mut self, is_open: bool) {
        self.is_held = false;
        self.drain(is_open);
    }

    /// The same, but for the last step: the target is told once [`Closing::begin`] is called.
    pub fn begin_held(&mut self, is_open: bool) {
        self.is_held |= self.state == State::Open;
        self.drain(is_open);
    }

    fn drain(&mut self, is_open: bool) {
        if self.state == State::Open {
            self.state = State::Draining;
        }
        if !is_open || self.failure.is_some() {
            self.state = State::Closed;
        }
    }

    /// What to do next, when no I/O is outstanding and nothing waits to be flushed.
    pub fn on_clean(&mut self, now: Time, is_away: bool, is_attached: bool) -> Step {
        let since = match self.state {
            State::Open | State::Closed => return Step::None,
            State::Draining => {
                self.state = State::Clean { since: now };
                now
            }
            State::Clean { since } | State::Told { since } => since,
        };
        if self.is_held {
            return Step::None;
        }
        if is_away && now >= since + PATIENCE {
            self.is_unheard = true;
            return Step::Finish;
        }
        if self.is_told() || !is_attached {
            return Step::None;
        }
        self.state = State::Told { since };
        Step::Detach
    }

    /// In another session the target has to be told again.
    pub fn on_session(&mut self) {
        if let State::Told { since } = self.state {
            self.state = State::Clean { since };
        }
    }

    /// It is over.
    pub fn finish(&mut self) {
        self.state = State::Closed;
    }

    /// It has failed for good; the first reason stays. An end that was under way is over.
    pub fn fail(&mut self, kind: ErrorKind) {
        self.failure.get_or_insert(kind);
        if self.is_under_way() {
            self.state = State::Closed;
        }
    }

    /// Something that was acknowledged could not be made durable.
    pub fn tell(&mut self, kind: ErrorKind) {
        self.error = Some(kind);
    }

    /// What it waits for, and until when.
    #[inline]
    pub fn armed(&self, is_away: bool) -> Option<(Timer, Time)> {
        match self.state {
            State::Clean { since } | State::Told { since } if is_away && !self.is_held => {
                Some((Timer::Patience, since + PATIENCE))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::{Make, check, variant};

    const STATES: [Make<Closing>; 5] = [
        ("Open", Closing::new),
        ("Draining", draining),
        ("Clean", || {
            let mut closing = draining();
            closing.on_clean(Time(0), false, false);
            closing
        }),
        ("Told", || {
            let mut closing = draining();
            closing.on_clean(Time(0), false, true);
            closing
        }),
        ("Closed", || {
            let mut closing = Closing::new();
            closing.finish();
            closing
        }),
    ];

    fn draining() -> Closing {
        let mut closing = Closing::new();
        closing.begin(true);
        closing
    }

    fn step(step: Step) -> String {
        if step == Step::None { String::new() } else { variant(&step) }
    }

    #[test]
    fn it_is_as_documented() {
        check(
            include_str!("closing.md"),
            &STATES,
            &[
                ("end in order", |c| {
                    c.begin(true);
                    String::new()
                }),
                ("the same, never attached", |c| {
                    c.begin(false);
                    String::new()
                }),
                ("the same, failed", |c| {
                    c.fail(ErrorKind::Fenced);
                    c.begin(true);
                    String::new()
                }),
                ("end behind others", |c| {
                    c.begin_held(true);
                    String::new()
                }),
                ("fails for good", |c| {
                    c.fail(ErrorKind::Fenced);
                    String::new()
                }),
                ("clean, attached", |c| step(c.on_clean(Time(1), false, true))),
                ("clean, away", |c| step(c.on_clean(Time(1), true, false))),
                ("clean, away, patience over", |c| {
                    step(c.on_clean(Time(0) + PATIENCE, true, false))
                }),
                ("another session", |c| {
                    c.on_session();
                    String::new()
                }),
                ("told, or aborted", |c| {
                    c.finish();
                    String::new()
                }),
            ],
            Closing::state,
        );
    }

    #[test]
    fn who_ends_behind_others_has_waited_with_them() {
        let over = Time(0) + PATIENCE;
        for (is_away, then) in [(true, Step::Finish), (false, Step::Detach)] {
            let mut closing = Closing::new();
            closing.begin_held(true);
            for now in [Time(0), over] {
                assert_eq!(closing.on_clean(now, is_away, !is_away), Step::None);
                assert_eq!(closing.armed(is_away), None, "nothing is due that could be done");
            }
            closing.begin(true);
            // Whoever ends already is not held back.
            closing.begin_held(true);
            assert_eq!(closing.armed(true), Some((Timer::Patience, over)));
            assert_eq!(closing.on_clean(over, is_away, !is_away), then);
        }
    }

    #[test]
    fn the_first_reason_to_fail_stays() {
        let mut closing = Closing::new();
        assert_eq!(closing.refusal(), None);
        closing.fail(ErrorKind::Fenced);
        closing.fail(ErrorKind::ContentChanged);
        closing.begin(true);
        assert_eq!(closing.refusal(), Some(ErrorKind::Fenced));
        assert!(closing.is_closed() && !closing.lives());
    }
}
