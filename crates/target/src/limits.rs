//! What a target allows its initiators: caps by key, by address and in all (`docs/security.md`, "Limits").
//!
//! Each shard counts for itself. Each refusal by one is counted, and names it.

use std::fmt;

use thinwire_proto::Time;

use crate::greet::SESSIONS_MAX;

/// Declares the limits: each with its name, its unit, its default and its bounds.
macro_rules! limits {
    ($( $(#[$meta:meta])* $limit:ident: $name:literal, $unit:literal, $default:expr, $min:expr, $max:expr; )*) => {
        /// One of the limits.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Limit {
            $( $(#[$meta])* $limit, )*
        }

        impl Limit {
            /// All of them, in the order of the documents.
            pub const ALL: &'static [Limit] = &[$(Limit::$limit),*];

            /// Its name, in configurations, answers and counters.
            pub fn name(self) -> &'static str {
                match self { $( Limit::$limit => $name, )* }
            }

            /// What it counts.
            pub fn unit(self) -> &'static str {
                match self { $( Limit::$limit => $unit, )* }
            }

            /// Unless it is said.
            pub fn default_value(self) -> u64 {
                match self { $( Limit::$limit => $default, )* }
            }

            /// The least and the most that it can be.
            pub fn bounds(self) -> (u64, u64) {
                match self { $( Limit::$limit => ($min, $max), )* }
            }
        }
    };
}

limits! {
    /// All sessions.
    Sessions: "sessions", "sessions", SESSIONS_MAX as u64, 1, SESSIONS_MAX as u64;
    /// Those of one principal.
    SessionsPerKey: "sessions-per-key", "sessions", 512, 1, SESSIONS_MAX as u64;
    /// Those from one address, whatever its ports.
    SessionsPerAddress: "sessions-per-address", "sessions", 512, 1, SESSIONS_MAX as u64;
    /// Sessions without an attachment, of one principal.
    HalfOpenPerKey: "half-open-per-key", "sessions without an attachment", 256, 1, SESSIONS_MAX as u64;
    /// Sessions without an attachment, from one address.
    HalfOpenPerAddress: "half-open-per-address", "sessions without an attachment", 128, 1, SESSIONS_MAX as u64;
    /// Attachments of one principal.
    AttachmentsPerKey: "attachments-per-key", "attachments", 4096, 1, 65_536;
    /// Attachments from one address.
    AttachmentsPerAddress: "attachments-per-address", "attachments", 4096, 1, 65_536;
    /// Slots of all sessions of one principal.
    SlotsPerKey: "slots-per-key", "slots", 65_536, 1, 1 << 20;
    /// Credit of all sessions of one principal.
    BytesPerKey: "bytes-per-key", "bytes", 4 << 30, 2 << 20, 1 << 40;
    /// Greetings whose sender has shown that it receives: each with a key costs a Diffie-Hellman.
    Greetings: "greetings", "greetings a second", 1000, 1, 1_000_000;
    /// Greetings of one principal.
    GreetingsPerKey: "greetings-per-key", "greetings a second", 400, 1, 1_000_000;
    /// Greetings from one address and port, which has shown that it receives.
    GreetingsPerAddress: "greetings-per-address", "greetings a second", 100, 1, 1_000_000;
    /// Memory of all sessions: what is kept about each, and what each with an attachment may hold of payloads
    /// ([`TargetConfig::session_bytes_max`](crate::TargetConfig::session_bytes_max)).
    Memory: "memory", "bytes", 1 << 40, 64 << 20, 1 << 50;
}

const COUNT: usize = Limit::ALL.len();

/// The values of all limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits([u64; COUNT]);

impl Default for Limits {
    fn default() -> Self {
        let mut values = [0; COUNT];
        for (value, limit) in values.iter_mut().zip(Limit::ALL) {
            *value = limit.default_value();
        }
        Limits(values)
    }
}

impl Limits {
    /// The value of one.
    pub fn get(&self, limit: Limit) -> u64 {
        self.0[limit as usize]
    }

    /// Sets one by its name.
    ///
    /// # Errors
    /// There is none of that name, or the value is out of its bounds; in words.
    pub fn set(&mut self, name: &str, value: u64) -> Result<Limit, String> {
        let Some(&limit) = Limit::ALL.iter().find(|limit| limit.name() == name) else {
            let known: Vec<_> = Limit::ALL.iter().map(|limit| limit.name()).collect();
            return Err(format!("`{name}` is no limit; known are {}", known.join(", ")));
        };
        let (least, most) = limit.bounds();
        if !(least..=most).contains(&value) {
            return Err(format!(
                "`{name}`: {value} is not from {least} to {most} ({})",
                limit.unit()
            ));
        }
        self.0[limit as usize] = value;
        Ok(limit)
    }

    /// All, with their values.
    pub fn iter(&self) -> impl Iterator<Item = (Limit, u64)> + '_ {
        Limit::ALL.iter().copied().zip(self.0)
    }
}

/// How often something was refused, or had to give way, for each limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitCounts([u64; COUNT]);

impl LimitCounts {
    pub(crate) fn count(&mut self, limit: Limit) {
        self.0[limit as usize] += 1;
    }

    /// Of one.
    pub fn get(&self, limit: Limit) -> u64 {
        self.0[limit as usize]
    }

    /// Those that have counted anything.
    pub fn iter(&self) -> impl Iterator<Item = (Limit, u64)> + '_ {
        Limit::ALL.iter().copied().zip(self.0).filter(|&(_, count)| count > 0)
    }
}

/// Something was refused for this limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OverLimit {
    pub limit: Limit,
    pub value: u64,
}

impl fmt::Display for OverLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OverLimit { limit, value } = self;
        write!(
            f,
            "this target allows no more: its limit {} is {value} {}",
            limit.name(),
            limit.unit()
        )
    }
}

/// Greetings are let through at a rate, and a second's worth at once. Of how many places something is kept
/// is fixed: places whose hashes meet share a rate.
#[derive(Debug)]
pub(crate) struct Greetings {
    /// When the rate of each has caught up with what was let through.
    busy_until: Vec<Time>,
}

/// Places whose greetings are counted apart.
const PLACES: usize = 1024;

impl Greetings {
    pub fn new() -> Self {
        Greetings { busy_until: vec![Time::ZERO; 2 * PLACES + 1] }
    }

    /// Whether one more may pass now, at a rate a second; `hash` cannot be chosen by who greets. Tells whether it
    /// is the first from there for a second.
    pub fn pass(&mut self, now: Time, limit: Limit, hash: u64, per_second: u64) -> Option<bool> {
        let (table, places) = match limit {
            Limit::GreetingsPerAddress => (0, PLACES as u64),
            Limit::GreetingsPerKey => (1, PLACES as u64),
            _ => (2, 1),
        };
        let busy_until = &mut self.busy_until[table * PLACES + (hash % places) as usize];
        // Counted from a second before the clock began, so that the first second has its burst, too.
        let (now, each) = (now.0 + 1_000_000_000, 1_000_000_000 / per_second.max(1));
        let from = busy_until.0.max(now - (1_000_000_000 - each));
        if from > now {
            return None;
        }
        let is_first = busy_until.0 <= from;
        busy_until.0 = from + each;
        Some(is_first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_have_names_and_bounds() {
        let mut limits = Limits::default();
        for &limit in Limit::ALL {
            let (least, most) = limit.bounds();
            assert!((least..=most).contains(&limit.default_value()), "{}", limit.name());
            assert_eq!(limits.get(limit), limit.default_value());
            assert_eq!(limits.set(limit.name(), least), Ok(limit));
            assert_eq!(limits.get(limit), least);
            assert!(limits.set(limit.name(), most + 1).unwrap_err().contains(limit.unit()));
            assert!(limits.set(limit.name(), 0).is_err());
        }
        assert!(limits.set("sesions", 1).unwrap_err().contains("sessions-per-key"));
    }

    #[test]
    fn a_second_of_greetings_may_come_at_once_and_then_the_rate_holds() {
        let mut greetings = Greetings::new();
        let at = |ms: u64| Time(ms * 1_000_000);
        let mut passed = |now, hash, count: usize| {
            let limit = Limit::GreetingsPerAddress;
            (0..count).filter(|_| greetings.pass(now, limit, hash, 10).is_some()).count()
        };
        assert_eq!(passed(at(0), 7, 50), 10);
        assert_eq!(passed(at(0), 8, 50), 10, "another place");
        assert_eq!(passed(at(99), 7, 50), 0);
        assert_eq!(passed(at(100), 7, 50), 1);
        assert_eq!(passed(at(600), 7, 50), 5);
        assert_eq!(passed(at(90_000), 7, 50), 10, "no more than a second's");
    }
}
