//! The limits of a target as they are given, and whether this machine has the memory that they allow.

use thinwire_target::{Limit, Limits, TargetConfig};

use crate::error::ParseError;
use crate::memory::MemoryLimit;
use crate::size::{parse_size, show_size};

/// Sets a limit from `NAME=VALUE`; a value may be a size, as in `memory=4G`.
pub fn set(limits: &mut Limits, name: &str, value: &str) -> Result<Limit, ParseError> {
    let number = parse_size(value)?;
    let given = format!("{name}={value}");
    limits.set(name, number).map_err(|why| ParseError::new(given, why))
}

/// `NAME=VALUE`, checked.
pub fn parse(text: &str) -> Result<(String, String), ParseError> {
    let (name, value) = text
        .split_once('=')
        .ok_or_else(|| ParseError::new(text, "give NAME=VALUE, as in sessions-per-key=64"))?;
    set(&mut Limits::default(), name, value)?;
    Ok((name.to_owned(), value.to_owned()))
}

/// What a target may take of memory, by what bounds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemorySum {
    /// All sessions: the limit `memory`, of all shards.
    pub sessions: u64,
    /// What each shard keeps for all of its sessions.
    pub shared: u64,
    /// Caches of exports.
    pub caches: u64,
    /// The content of exports in memory.
    pub content: u64,
}

impl MemorySum {
    /// Of a target of so many shards, each of which keeps `pool_bytes` for reuse.
    pub fn of(
        config: &TargetConfig,
        shards: u64,
        pool_bytes: u64,
        caches: u64,
        content: u64,
    ) -> Self {
        // What is kept for reuse takes up to twice its size: memory has its alignment beside it.
        let shared = 2 * (TargetConfig::SHARED_BYTES_MAX as u64 + pool_bytes);
        MemorySum {
            sessions: shards.saturating_mul(config.limits.get(Limit::Memory)),
            shared: shards * shared,
            caches,
            content,
        }
    }

    /// All of it.
    pub fn all(&self) -> u64 {
        let MemorySum { sessions, shared, caches, content } = *self;
        [shared, caches, content].into_iter().fold(sessions, u64::saturating_add)
    }
}

/// The limit `memory` of a shard unless it is said: half of what the machine has besides caches and the content of
/// exports in memory, shared by all shards. Enough for one session at least.
pub fn default_memory(
    config: &TargetConfig,
    shards: u64,
    machine: &MemoryLimit,
    taken: u64,
) -> u64 {
    let (least, most) = Limit::Memory.bounds();
    let least = least.max(config.session_bytes_max() as u64);
    (machine.bytes.saturating_sub(taken) / 2 / shards.max(1)).clamp(least, most)
}

impl std::fmt::Display for MemorySum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let MemorySum { sessions, shared, caches, content } = *self;
        write!(
            f,
            "{}: {} of sessions (limit memory), {} shared by those of a shard, {} of caches, {} of exports in \
             memory",
            show_size(self.all()),
            show_size(sessions),
            show_size(shared),
            show_size(caches),
            show_size(content)
        )
    }
}

/// Whether the machine has it.
///
/// # Errors
/// It has less; in words.
pub fn check_memory(sum: &MemorySum, machine: &MemoryLimit) -> Result<(), String> {
    match sum.all() <= machine.bytes {
        true => Ok(()),
        false => Err(format!(
            "the target may take {sum}; but {machine}: make a limit, a cache or an export smaller (--limit \
             memory=SIZE)"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_set_by_name() {
        let mut limits = Limits::default();
        assert_eq!(set(&mut limits, "memory", "4G"), Ok(Limit::Memory));
        assert_eq!(limits.get(Limit::Memory), 4 << 30);
        assert_eq!(parse("sessions-per-key=64").unwrap(), ("sessions-per-key".into(), "64".into()));
        for (bad, named) in [
            ("sessions", "NAME=VALUE"),
            ("sessions=", "not a size"),
            ("sessions=0", "from 1 to 1024"),
            ("sesions=1", "is no limit"),
            ("memory=1M", "from"),
        ] {
            let why = parse(bad).unwrap_err().to_string();
            assert!(why.contains(named), "{bad}: {why}");
        }
    }

    #[test]
    fn what_is_taken_is_a_sum_and_the_machine_must_have_it() {
        let machine = MemoryLimit { bytes: 8 << 30, limit: None };
        let mut config = TargetConfig::default();
        let taken = 2 << 30;
        let memory = default_memory(&config, 2, &machine, taken);
        assert_eq!(memory, (6 << 30) / 4);
        config.limits.set("memory", memory).unwrap();
        let sum = MemorySum::of(&config, 2, 16 << 20, 1 << 30, 1 << 30);
        assert_eq!(sum.sessions, 3 << 30);
        assert_eq!(sum.all(), (5 << 30) + sum.shared);
        check_memory(&sum, &machine).unwrap();
        let why = check_memory(&MemorySum { caches: 4 << 30, ..sum }, &machine).unwrap_err();
        assert!(why.contains("--limit") && why.contains("4 GiB of caches"), "{why}");
        // A small machine has room for one session all the same, or says that it has not.
        let small = MemoryLimit { bytes: 64 << 20, limit: None };
        let least = default_memory(&config, 1, &small, 0);
        assert!(least >= config.session_bytes_max() as u64);
    }
}
