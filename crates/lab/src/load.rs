//! What is asked of a subject.

use std::fmt;

use serde::Serialize;

use crate::composed::Program;

/// Which way, and in which order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    /// Random reads.
    RandRead,
    /// Random writes.
    RandWrite,
    /// Reads in order.
    Read,
    /// Writes in order.
    Write,
    /// In order, 70 of 100 read.
    Mixed,
    /// Random, 70 of 100 read.
    RandMixed,
}

/// How many of 100 I/Os of a mixed pattern read.
pub const MIX: u32 = 70;

impl Pattern {
    /// As `thinwire bench` and fio write it.
    pub fn word(self) -> &'static str {
        match self {
            Pattern::RandRead => "randread",
            Pattern::RandWrite => "randwrite",
            Pattern::Read => "read",
            Pattern::Write => "write",
            Pattern::Mixed => "rw",
            Pattern::RandMixed => "randrw",
        }
    }

    /// Whether all data comes to the initiator.
    pub fn reads(self) -> bool {
        matches!(self, Pattern::RandRead | Pattern::Read)
    }

    /// Whether it has reads and writes.
    pub fn is_mixed(self) -> bool {
        matches!(self, Pattern::Mixed | Pattern::RandMixed)
    }
}

/// What is asked of a subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Load {
    /// Direction and order.
    pub pattern: Pattern,
    /// Bytes an I/O.
    pub block: u32,
    /// I/Os each job keeps outstanding.
    pub depth: u32,
    /// Threads of the document: independent streams of I/Os. On each initiator.
    pub jobs: u32,
    /// If set: not the load itself, but where its time goes, by the stage clocks of both sides: one
    /// request outstanding, of each of the document's sizes in turn (`block` aside).
    pub stages: bool,
    /// If set: nothing but attaching by address and letting go, again and again; a latency is that of a
    /// handshake, from the first greeting to the answer that opens a session.
    pub handshakes: bool,
    /// If not 0: every so many seconds a further stream joins, five in all, each of 128 KiB I/Os,
    /// one outstanding (Figure 8).
    pub joined_every_s: u32,
    /// If set: not I/Os of this size, but a program on a file system that lies on the subject.
    pub program: Option<Program>,
}

/// How many streams join, and so how many intervals there are besides the first.
pub const JOINING: u32 = 5;

impl Load {
    /// One job.
    pub const fn new(pattern: Pattern, block: u32, depth: u32) -> Self {
        let (jobs, stages, handshakes, joined_every_s, program) = (1, false, false, 0, None);
        Load { pattern, block, depth, jobs, stages, handshakes, joined_every_s, program }
    }

    /// A program on a file system.
    pub const fn program(program: Program) -> Self {
        Load { program: Some(program), ..Load::new(Pattern::RandMixed, 4096, 1) }
    }

    /// So many jobs.
    pub const fn jobs(self, jobs: u32) -> Self {
        Load { jobs, ..self }
    }

    /// Where the time of one request goes.
    pub const fn stages(pattern: Pattern) -> Self {
        Load { stages: true, ..Load::new(pattern, 4096, 1) }
    }

    /// Handshakes.
    pub const HANDSHAKES: Load = Load { handshakes: true, ..Load::new(Pattern::RandRead, 4096, 1) };

    /// I/Os outstanding at an initiator.
    pub fn outstanding(&self) -> u32 {
        self.depth * self.jobs
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.stages {
            return write!(f, "{}-stages", self.pattern.word());
        }
        if self.handshakes {
            return f.write_str("handshakes");
        }
        if let Some(program) = self.program {
            return program.fmt(f);
        }
        f.write_str(self.pattern.word())?;
        if self.pattern.is_mixed() {
            write!(f, "{MIX}")?;
        }
        match self.block {
            bytes if bytes % 1024 == 0 => write!(f, "-{}k", bytes / 1024)?,
            bytes => write!(f, "-{bytes}b")?,
        }
        write!(f, "-{}x{}", self.jobs, self.depth)?;
        match self.joined_every_s {
            0 => Ok(()),
            seconds => write!(f, "-join{seconds}s"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_loads_apart() {
        let of = |pattern, block| Load::new(pattern, block, 16).to_string();
        assert_eq!(of(Pattern::Mixed, 4096), "rw70-4k-1x16");
        assert_eq!(of(Pattern::RandMixed, 512), "randrw70-512b-1x16");
        assert_eq!(of(Pattern::Read, 131_072), "read-128k-1x16");
        let postmark = Program::Postmark { files: 5000, transactions: 10_000 };
        assert_eq!(Load::program(postmark).to_string(), "postmark-5000-10000");
        assert!(!Pattern::Mixed.reads() && Pattern::RandMixed.is_mixed());
    }
}
