//! Volumes made of others, and who stands beside them: what the experiments `orchestra-...` compare.

use std::fmt;

use serde::Serialize;

/// A program on a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Program {
    /// Postmark: so many files, then so many transactions on them.
    Postmark {
        /// Files made first.
        files: u32,
        /// Transactions.
        transactions: u32,
    },
    /// A query of TPC-H, by its number.
    Query(u8),
    /// So many operations a second that a client asks of the machine with the volume, over the link of its storage,
    /// whether or not the last ones are done.
    Served(u32),
}

impl Program {
    /// What shares a file system with others of its kind.
    pub fn kind(self) -> &'static str {
        match self {
            Program::Postmark { .. } if self.is_whole() => "postmark",
            Program::Postmark { .. } => "postmark-tenth",
            Program::Query(_) => "tpch",
            Program::Served(_) => "served",
        }
    }

    /// Whether its input is as large as the document's, so that its machines' memory is right for it.
    pub fn is_whole(self) -> bool {
        matches!(self, Program::Postmark { files: 50_000.., .. })
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Program::Postmark { files, transactions } => {
                write!(f, "postmark-{files}-{transactions}")
            }
            Program::Query(number) => write!(f, "tpch-q{number}"),
            Program::Served(per_s) => write!(f, "served-{per_s}"),
        }
    }
}

/// What an export is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Made {
    /// Memory, of nothing else.
    Memory,
    /// A file in memory, of nothing else.
    File,
    /// Two parts one behind the other.
    Linear,
    /// All of a part behind its first MiB.
    Slice,
    /// Chunks of four parts.
    Stripe,
    /// One part, without limits.
    Qos,
    /// Two legs, in sync.
    Mirror,
    /// A volume of a pool, all of it written.
    Thin,
    /// A part with sums.
    Integrity,
    /// A part that is encrypted.
    Crypt,
    /// A cache at the initiator over an export of memory: what is asked of it fits.
    Cache,
}

impl Made {
    /// In names.
    pub fn word(self) -> &'static str {
        match self {
            Made::Memory => "memory",
            Made::File => "file",
            Made::Linear => "linear",
            Made::Slice => "slice",
            Made::Stripe => "stripe",
            Made::Qos => "qos",
            Made::Mirror => "mirror",
            Made::Thin => "thin",
            Made::Integrity => "integrity",
            Made::Crypt => "crypt",
            Made::Cache => "cache",
        }
    }

    /// Whether it keeps something on its parts, which are files then: memory is gone with its process.
    pub fn is_kept(self) -> bool {
        matches!(self, Made::File | Made::Mirror | Made::Thin | Made::Integrity | Made::Crypt)
    }

    /// The bare export that it is compared with: over the same kind of part.
    pub fn bare(self) -> Made {
        if self.is_kept() { Made::File } else { Made::Memory }
    }
}

/// How many storage nodes there are, and what of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Nodes {
    /// None: five disks where the program is.
    Direct,
    /// One target with five disks.
    One,
    /// A stripe, in the initiator, of three targets with five disks each.
    Three,
    /// The same, the targets with a cache each.
    ThreeCached,
    /// One target with five disks, and a cache.
    OneCached,
}

impl Nodes {
    /// In names: those of the document, `x1` and `x3`, are with a cache in each target.
    pub fn word(self) -> &'static str {
        match self {
            Nodes::Direct => "direct",
            Nodes::One => "x1-nocache",
            Nodes::OneCached => "x1",
            Nodes::Three => "x3-nocache",
            Nodes::ThreeCached => "x3",
        }
    }

    /// For people.
    pub fn title(self) -> &'static str {
        match self {
            Nodes::Direct => "direct",
            Nodes::One => "one node, no cache",
            Nodes::OneCached => "one node",
            Nodes::Three => "three nodes, no cache",
            Nodes::ThreeCached => "three nodes",
        }
    }

    /// How many targets.
    pub fn count(self) -> u32 {
        match self {
            Nodes::Direct => 0,
            Nodes::One | Nodes::OneCached => 1,
            Nodes::Three | Nodes::ThreeCached => 3,
        }
    }

    /// Whether each target has a cache.
    pub fn is_cached(self) -> bool {
        matches!(self, Nodes::OneCached | Nodes::ThreeCached)
    }
}

/// How fast disks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Speed {
    /// The document's: 45 MB/s read and 20 MB/s written each, 120 MB/s for the five of a node.
    Document,
    /// As fast as memory is.
    Unlimited,
}

impl Speed {
    /// In names.
    pub fn word(self) -> &'static str {
        match self {
            Speed::Document => "document",
            Speed::Unlimited => "unlimited",
        }
    }
}

/// Who is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ComposedSubject {
    /// An export made of others, on `packet`.
    Export(Made),
    /// The same where its parts are, without a target.
    Here(Made),
    /// A stripe, in the initiator, of exports of so many targets, each on a link of its own.
    Stripe {
        /// Targets.
        targets: u32,
    },
    /// The document's storage nodes: volumes over their disks, used by `bench` or by a program.
    Nodes {
        /// How many.
        nodes: Nodes,
        /// Of their disks.
        speed: Speed,
    },
    /// One disk of the document's speed, where it is used.
    OneDisk,
    /// A volume of a pool of which a snapshot was just taken.
    ThinSnapshot,
    /// qcow2 behind qemu-nbd, all of it written.
    Qcow2 {
        /// A snapshot was just taken.
        snapshot: bool,
    },
    /// Bytes over a TCP connection: nothing but the network.
    TcpStream,
}

impl ComposedSubject {
    /// Whether it uses the wire.
    pub fn is_remote(&self) -> bool {
        !matches!(
            self,
            ComposedSubject::Here(_)
                | ComposedSubject::OneDisk
                | ComposedSubject::Nodes { nodes: Nodes::Direct, .. }
        )
    }

    /// The name people read in tables.
    pub fn title(&self) -> String {
        match self {
            ComposedSubject::Export(Made::Memory) => "bare export, memory".into(),
            ComposedSubject::Export(Made::File) => "bare export, file in memory".into(),
            ComposedSubject::Export(Made::Cache) => "cache at the initiator".into(),
            ComposedSubject::Export(made) => made.word().into(),
            ComposedSubject::Here(made) => format!("{}, local", made.word()),
            ComposedSubject::Stripe { targets: 1 } => "one target".into(),
            ComposedSubject::Stripe { targets } => format!("stripe over {targets} targets"),
            ComposedSubject::Nodes { nodes, speed: Speed::Document } => nodes.title().into(),
            ComposedSubject::Nodes { nodes, speed: Speed::Unlimited } => {
                format!("{}, disks without limits", nodes.title())
            }
            ComposedSubject::OneDisk => "one disk".into(),
            ComposedSubject::ThinSnapshot => "thin, after a snapshot".into(),
            ComposedSubject::Qcow2 { snapshot: false } => "qcow2, qemu-nbd".into(),
            ComposedSubject::Qcow2 { snapshot: true } => "qcow2, qemu-nbd, after a snapshot".into(),
            ComposedSubject::TcpStream => "TCP".into(),
        }
    }
}

impl fmt::Display for ComposedSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ComposedSubject::Export(made) => write!(f, "export-{}", made.word()),
            ComposedSubject::Here(made) => write!(f, "here-{}", made.word()),
            ComposedSubject::Stripe { targets } => write!(f, "stripe-{targets}"),
            ComposedSubject::Nodes { nodes, speed } => {
                write!(f, "{}-{}", nodes.word(), speed.word())
            }
            ComposedSubject::OneDisk => f.write_str("one-disk"),
            ComposedSubject::ThinSnapshot => f.write_str("export-thin-snapshot"),
            ComposedSubject::Qcow2 { snapshot: false } => f.write_str("qcow2"),
            ComposedSubject::Qcow2 { snapshot: true } => f.write_str("qcow2-snapshot"),
            ComposedSubject::TcpStream => f.write_str("tcp"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const MADE: [Made; 11] = [
        Made::Memory,
        Made::File,
        Made::Linear,
        Made::Slice,
        Made::Stripe,
        Made::Qos,
        Made::Mirror,
        Made::Thin,
        Made::Integrity,
        Made::Crypt,
        Made::Cache,
    ];

    #[test]
    fn names_tell_subjects_apart() {
        let mut all: Vec<ComposedSubject> = MADE
            .into_iter()
            .flat_map(|made| [ComposedSubject::Export(made), ComposedSubject::Here(made)])
            .collect();
        let nodes = [Nodes::Direct, Nodes::One, Nodes::OneCached, Nodes::Three, Nodes::ThreeCached];
        for nodes in nodes {
            let speeds = [Speed::Document, Speed::Unlimited];
            all.extend(speeds.map(|speed| ComposedSubject::Nodes { nodes, speed }));
        }
        all.extend((1..=3).map(|targets| ComposedSubject::Stripe { targets }));
        all.extend([false, true].map(|snapshot| ComposedSubject::Qcow2 { snapshot }));
        all.extend([
            ComposedSubject::OneDisk,
            ComposedSubject::ThinSnapshot,
            ComposedSubject::TcpStream,
        ]);
        let names: BTreeSet<String> = all.iter().map(ComposedSubject::to_string).collect();
        let titles: BTreeSet<String> = all.iter().map(ComposedSubject::title).collect();
        assert_eq!((names.len(), titles.len()), (all.len(), all.len()));
    }

    #[test]
    fn what_is_kept_is_compared_over_files() {
        for made in MADE {
            assert_eq!(made.bare().is_kept(), made.is_kept(), "{made:?}");
            assert_eq!(made.bare().bare(), made.bare());
        }
    }
}
