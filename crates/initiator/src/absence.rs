//! The time without a target: since when, and when I/O fails for it (`docs/protocol.md`, "Restart and
//! replay").

use thinwire_proto::Time;

use crate::WhenAway;

/// Where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The target is there, and has granted the attachment.
    Present,
    /// It is not; I/O waits.
    Away { since: Time },
    /// It has been away for too long: I/O fails until it is back.
    GivenUp { since: Time },
}

/// What it waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timer {
    /// To fail all I/O.
    GiveUp,
}

/// Whether the target is there. Its states, and what becomes of them:
///
#[doc = include_str!("absence.md")]
#[derive(Debug)]
pub(crate) struct Absence {
    state: State,
    policy: WhenAway,
}

impl Absence {
    /// Nobody has been found yet.
    pub fn new(now: Time, policy: WhenAway) -> Self {
        Absence { state: State::Away { since: now }, policy }
    }

    /// Changes when I/O fails.
    pub fn set_policy(&mut self, policy: WhenAway) {
        self.policy = policy;
    }

    pub fn policy(&self) -> WhenAway {
        self.policy
    }

    /// Since when the target is away, if it is.
    #[inline]
    pub fn since(&self) -> Option<Time> {
        match self.state {
            State::Present => None,
            State::Away { since } | State::GivenUp { since } => Some(since),
        }
    }

    /// Its name in the table.
    pub fn state(&self) -> &'static str {
        match self.state {
            State::Present => "Present",
            State::Away { .. } => "Away",
            State::GivenUp { .. } => "GivenUp",
        }
    }

    /// I/O fails at once.
    pub fn has_given_up(&self) -> bool {
        matches!(self.state, State::GivenUp { .. })
    }

    /// It is there. True if it had been away.
    #[inline]
    pub fn end(&mut self) -> bool {
        std::mem::replace(&mut self.state, State::Present) != State::Present
    }

    /// It is not there.
    pub fn begin(&mut self, now: Time) {
        if self.state == State::Present {
            self.state = State::Away { since: now };
        }
    }

    /// What it waits for, and until when. Before the first attach nothing is given up: `is_open`.
    #[inline]
    pub fn armed(&self, is_open: bool) -> Option<(Timer, Time)> {
        match (self.state, self.policy) {
            (State::Away { since }, WhenAway::FailAfter(limit)) if is_open => {
                Some((Timer::GiveUp, since + limit))
            }
            _ => None,
        }
    }

    /// Fires the timer that is due.
    #[inline]
    pub fn on_time(&mut self, now: Time, is_open: bool) -> Option<Timer> {
        let (timer, _) = self.armed(is_open).filter(|(_, at)| *at <= now)?;
        if let State::Away { since } = self.state {
            self.state = State::GivenUp { since };
        }
        Some(timer)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::snapshot::{Make, check};

    const LIMIT: Duration = Duration::from_secs(1);
    const STATES: [Make<Absence>; 3] = [
        ("Present", || {
            let mut absence = Absence::new(Time(0), WhenAway::FailAfter(LIMIT));
            absence.end();
            absence
        }),
        ("Away", || Absence::new(Time(0), WhenAway::FailAfter(LIMIT))),
        ("GivenUp", || {
            let mut absence = Absence::new(Time(0), WhenAway::FailAfter(LIMIT));
            absence.on_time(Time(0) + LIMIT, true);
            absence
        }),
    ];

    #[test]
    fn it_is_as_documented() {
        check(
            include_str!("absence.md"),
            &STATES,
            &[
                (
                    "the target is there",
                    |a| {
                        if a.end() { "it is back".into() } else { String::new() }
                    },
                ),
                ("it is not there", |a| {
                    a.begin(Time(7));
                    String::new()
                }),
                ("time, before the limit", |a| told(a.on_time(Time(5), true))),
                ("time, `fail-after` over", |a| told(a.on_time(Time(0) + LIMIT, true))),
                ("the same, never attached", |a| told(a.on_time(Time(0) + LIMIT, false))),
                ("the same, with `wait`", |a| {
                    a.set_policy(WhenAway::Wait);
                    told(a.on_time(Time(0) + LIMIT, true))
                }),
            ],
            Absence::state,
        );
    }

    fn told(timer: Option<Timer>) -> String {
        timer.map_or(String::new(), |timer| format!("{timer:?}"))
    }
}
