//! What is measured: a subject under a load on a wire.

use std::fmt;

use serde::Serialize;

use crate::composed::ComposedSubject;
pub use crate::load::{JOINING, Load, Pattern};
use crate::offered::{Ext2Disk, Medium, Protocol};

/// The network between the sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Wire {
    /// Rate of each link both ways, in Mb/s, shaped at the switch; `None`: as fast as it goes.
    pub mbit: Option<u32>,
    /// Bytes of an IP packet.
    pub mtu: u32,
    /// Links between each initiator and the target, each with a switch of its own.
    pub links: u32,
    /// Machines that use the target.
    pub initiators: u32,
    /// Whether a switch stands between the sides, or one virtual cable.
    pub switch: bool,
}

impl Wire {
    /// One link through a switch, jumbo frames, not shaped.
    pub const FREE: Wire = Wire { mbit: None, mtu: 9000, links: 1, initiators: 1, switch: true };
    /// The document's: 10 Gb/s.
    pub const TEN_GIGABIT: Wire = Wire { mbit: Some(10_000), ..Wire::FREE };

    /// Bytes a second that the line carries, if it has a rate.
    pub fn bytes_per_s(&self) -> Option<f64> {
        self.mbit.map(|mbit| f64::from(mbit) * 1e6 / 8.0 * f64::from(self.links))
    }
}

impl fmt::Display for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.mbit {
            None => write!(f, "free")?,
            Some(mbit) if mbit % 1000 == 0 => write!(f, "{}g", mbit / 1000)?,
            Some(mbit) => write!(f, "{}g", f64::from(mbit) / 1000.0)?,
        }
        write!(f, "-m{}", self.mtu)?;
        if self.links > 1 {
            write!(f, "-{}links", self.links)?;
        }
        if self.initiators > 1 {
            write!(f, "-{}initiators", self.initiators)?;
        }
        if !self.switch {
            write!(f, "-cable")?;
        }
        Ok(())
    }
}

/// How frames move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Carrier {
    /// AF_PACKET.
    Packet,
    /// AF_XDP.
    Xdp,
    /// UDP with segmentation offload.
    Udp,
}

impl Carrier {
    /// As a link's text begins.
    pub fn word(self) -> &'static str {
        match self {
            Carrier::Packet => "packet",
            Carrier::Xdp => "xdp",
            Carrier::Udp => "udp",
        }
    }
}

/// Through which door of `thinwire attach` a volume is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FaceKind {
    /// `--nbd`, on a unix socket.
    Nbd,
    /// `--block`.
    Block,
    /// `--file`.
    File,
}

impl FaceKind {
    /// Its flag, without dashes.
    pub fn word(self) -> &'static str {
        match self {
            FaceKind::Nbd => "nbd",
            FaceKind::Block => "block",
            FaceKind::File => "file",
        }
    }
}

/// Where the bytes of an image lie, and how it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ImageStore {
    /// A file on a disk, directly: the default.
    Direct,
    /// The same through the page cache of the target's kernel.
    Buffered,
    /// The same with a cache of the target's own, larger than the image.
    Cache,
    /// A loop device over a file, directly, limited by the kernel to 20 k I/Os and 200 MiB a second.
    Limited,
}

impl ImageStore {
    /// In names.
    pub fn word(self) -> &'static str {
        match self {
            ImageStore::Direct => "direct",
            ImageStore::Buffered => "buffered",
            ImageStore::Cache => "cache",
            ImageStore::Limited => "limited",
        }
    }
}

/// How frames are protected, if they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Protection {
    /// `--key` on both sides.
    Encrypted,
    /// `--authenticate-only`, too.
    Authenticated,
}

impl Protection {
    /// In names.
    pub fn word(self) -> &'static str {
        match self {
            Protection::Encrypted => "encrypted",
            Protection::Authenticated => "authenticated",
        }
    }
}

/// A server of NBD that nobody here wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum NbdServer {
    /// nbdkit's memory plugin.
    Nbdkit,
    /// qemu-nbd with an image in memory.
    QemuNbd,
}

impl NbdServer {
    /// Its program.
    pub fn word(self) -> &'static str {
        match self {
            NbdServer::Nbdkit => "nbdkit",
            NbdServer::QemuNbd => "qemu-nbd",
        }
    }
}

/// How Thinwire is to work, where it is not to work by its defaults. Each field is a flag of
/// `thinwire target`, of `thinwire bench`, or of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Settings {
    /// `--receive`.
    pub receive: Option<&'static str>,
    /// `--completion`.
    pub completion: Option<&'static str>,
    /// `--submission`.
    pub submission: Option<&'static str>,
    /// `--batch`.
    pub batch: Option<&'static str>,
    /// `--data-batch`.
    pub data_batch: Option<&'static str>,
    /// `--spin`.
    pub spin: Option<&'static str>,
    /// `--shards` of the target; 0: not said.
    pub shards: u32,
    /// A key on both sides; none: `--insecure`.
    pub protection: Option<Protection>,
}

impl Settings {
    /// Everything by its defaults.
    pub const DEFAULT: Settings = Settings {
        receive: None,
        completion: None,
        submission: None,
        batch: None,
        data_batch: None,
        spin: None,
        shards: 0,
        protection: None,
    };
    /// Flags with their values, in the order of the fields; shards and keys aside.
    pub fn flags(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        [
            ("--receive", self.receive),
            ("--completion", self.completion),
            ("--submission", self.submission),
            ("--batch", self.batch),
            ("--data-batch", self.data_batch),
            ("--spin", self.spin),
        ]
        .into_iter()
        .filter_map(|(flag, value)| value.map(|value| (flag, value)))
    }
}

/// Who is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Subject {
    /// `thinwire target` and `thinwire bench`.
    Thinwire {
        /// Its links.
        carrier: Carrier,
        /// What differs from the defaults.
        settings: Settings,
    },
    /// `thinwire target`, and a program on the initiator's machine that uses the volume through a face.
    Face {
        /// The door.
        face: FaceKind,
        /// Its link.
        carrier: Carrier,
    },
    /// The NBD face of a volume in the memory of its own process: no network.
    FaceAlone,
    /// `thinwire target` with an image on a disk, and `thinwire bench`.
    Disk {
        /// How the image is used.
        store: ImageStore,
        /// The link; none: `thinwire bench` of the image, on the machine where it is.
        carrier: Option<Carrier>,
    },
    /// The limit: frames of the same sizes with nothing in them.
    Echo {
        /// Its link.
        carrier: Carrier,
        /// Whether both sides sleep when nothing arrives.
        sleeps: bool,
        /// Bytes of blocks in a frame.
        frame: u32,
    },
    /// The limit of the limit: the same bytes copied within memory, by one thread.
    MemoryCopy,
    /// `thinwire bench null:SIZE`: no network, no data. Its `switch` form has a thread do nothing,
    /// too.
    Null {
        /// Whether a context switch is forced before the completion.
        switch: bool,
    },
    /// nbdkit's memory plugin over TCP, driven by fio's nbd engine.
    Nbdkit,
    /// The same on a unix socket: no network.
    NbdkitAlone,
    /// nbdkit's file plugin over TCP with an image on a disk, through the page cache of its machine.
    NbdkitFile,
    /// qemu-nbd over TCP with an image in memory, driven by fio's nbd engine.
    QemuNbd,
    /// A server over TCP, from or to which nbdcopy copies all there is: requests of the block's size, `jobs`
    /// connections with `depth` of them outstanding on each. Unlike fio it can do TLS.
    Copied {
        /// The server.
        server: NbdServer,
        /// With TLS, and a key that both sides have (TLS-PSK).
        tls: bool,
    },
    /// tgt over TCP with an image in memory, driven by iscsi-perf.
    Tgt,
    /// `thinwire target`, which offers an export of its own in a protocol, and `thinwire bench`, which uses it so.
    Offered {
        /// The protocol.
        protocol: Protocol,
        /// Where the bytes lie.
        medium: Medium,
    },
    /// vblade with an image in memory, used through Thinwire's client of AoE.
    Vblade,
    /// nbdkit's file plugin as [`Subject::NbdkitFile`], in a control group that has this much memory.
    NbdkitHeld(Medium),
    /// Volumes made of others, and who stands beside them.
    Composed(ComposedSubject),
    /// A file in an ext2 file system, whose reader has little memory for it, and its server little for the image.
    Ext2 {
        /// What the file system lies on.
        below: Ext2Disk,
        /// MiB of the file.
        mib: u32,
    },
}

impl Subject {
    /// Thinwire by its defaults.
    pub const fn thinwire(carrier: Carrier) -> Self {
        Self::with(carrier, Settings::DEFAULT)
    }

    /// Thinwire, told how.
    pub const fn with(carrier: Carrier, settings: Settings) -> Self {
        Subject::Thinwire { carrier, settings }
    }

    /// The echo with frames of 8 KiB, as Thinwire's are over any carrier: two blocks of 4 KiB, or an
    /// eighth of 64. An MTU of 1500 would not carry them at all: there, no echo.
    pub const fn echo(carrier: Carrier, sleeps: bool) -> Self {
        Subject::Echo { carrier, sleeps, frame: 8192 }
    }

    /// Whether it uses the wire at all.
    pub fn is_remote(&self) -> bool {
        !matches!(self, Subject::Composed(composed) if !composed.is_remote())
            && !matches!(
                self,
                Subject::MemoryCopy
                    | Subject::Null { .. }
                    | Subject::FaceAlone
                    | Subject::NbdkitAlone
                    | Subject::Disk { carrier: None, .. }
            )
    }

    /// The name people read in legends.
    pub fn title(&self) -> String {
        match self {
            Subject::Thinwire { carrier, settings } => {
                let mut title = format!("Thinwire {}", carrier.word());
                for (flag, value) in settings.flags() {
                    title += &match flag {
                        "--batch" | "--receive" => format!(", {value}"),
                        flag => {
                            format!(", {} {value}", flag.trim_start_matches('-').replace('-', " "))
                        }
                    };
                }
                if settings.shards > 0 {
                    title += &format!(", {} shards", settings.shards);
                }
                if let Some(protection) = settings.protection {
                    title += &format!(", {}", protection.word());
                }
                title
            }
            Subject::Face { face, carrier } => {
                format!("Thinwire {}, --{}", carrier.word(), face.word())
            }
            Subject::FaceAlone => "NBD face alone, unix socket".into(),
            Subject::Disk { store, carrier: Some(carrier) } => {
                format!("Thinwire {}, {}", carrier.word(), store.word())
            }
            Subject::Disk { store, carrier: None } => format!("local bench, {}", store.word()),
            Subject::Echo { carrier, sleeps: false, .. } => format!("echo {}", carrier.word()),
            Subject::Echo { carrier, .. } => format!("echo {}, sleeping", carrier.word()),
            Subject::MemoryCopy => "memory copy".into(),
            Subject::Null { switch: false } => "null device (BD-NCS)".into(),
            Subject::Null { switch: true } => "null device, context switch (BD-WCS)".into(),
            Subject::Nbdkit => "nbdkit, TCP".into(),
            Subject::NbdkitAlone => "nbdkit, unix socket".into(),
            Subject::NbdkitFile => "nbdkit file, TCP".into(),
            Subject::QemuNbd => "qemu-nbd, TCP".into(),
            Subject::Copied { server, tls } => {
                let how = if *tls { "TLS-PSK" } else { "TCP" };
                format!("{}, {how}, by nbdcopy", server.word())
            }
            Subject::Tgt => "tgt iSCSI, TCP".into(),
            Subject::Offered { protocol, medium } => {
                format!("{}, {}", protocol.title(), medium.title())
            }
            Subject::Vblade => "vblade, memory, through our AoE client".into(),
            Subject::NbdkitHeld(medium) => format!("nbdkit file, TCP, {}", medium.title()),
            Subject::Ext2 { below, mib } => format!("ext2, {mib} MiB, on {}", below.title()),
            Subject::Composed(composed) => composed.title(),
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::Thinwire { carrier, settings } => {
                f.write_str(carrier.word())?;
                for (flag, value) in settings.flags() {
                    write!(f, "+{}={value}", flag.trim_start_matches('-'))?;
                }
                if settings.shards > 0 {
                    write!(f, "+shards={}", settings.shards)?;
                }
                match settings.protection {
                    Some(protection) => write!(f, "+{}", protection.word()),
                    None => Ok(()),
                }
            }
            Subject::Face { face, carrier } => write!(f, "{}-{}", face.word(), carrier.word()),
            Subject::FaceAlone => f.write_str("nbd-alone"),
            Subject::Disk { store, carrier } => {
                write!(f, "{}-{}", store.word(), carrier.map_or("here", Carrier::word))
            }
            Subject::Echo { carrier, sleeps, frame } => {
                let sleep = if *sleeps { "-sleep" } else { "" };
                write!(f, "echo-{}{sleep}-{}k", carrier.word(), frame / 1024)
            }
            Subject::MemoryCopy => f.write_str("memory-copy"),
            Subject::Null { switch: false } => f.write_str("null"),
            Subject::Null { switch: true } => f.write_str("null-switch"),
            Subject::Nbdkit => f.write_str("nbdkit"),
            Subject::NbdkitAlone => f.write_str("nbdkit-alone"),
            Subject::NbdkitFile => f.write_str("nbdkit-file"),
            Subject::QemuNbd => f.write_str("qemu-nbd"),
            Subject::Copied { server, tls } => {
                write!(f, "{}-{}-copied", server.word(), if *tls { "tls" } else { "tcp" })
            }
            Subject::Tgt => f.write_str("tgt"),
            Subject::Offered { protocol, medium } => {
                write!(f, "{}-{}", protocol.word(), medium.word())
            }
            Subject::Vblade => f.write_str("vblade"),
            Subject::NbdkitHeld(medium) => write!(f, "nbdkit-{}", medium.word()),
            Subject::Ext2 { below, mib } => write!(f, "ext2-{}-{mib}m", below.word()),
            Subject::Composed(composed) => composed.fmt(f),
        }
    }
}

/// One thing to measure. Its text is its name: what is measured is stored under it, and whoever
/// asks for the same, in another experiment too, gets the same figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Point {
    /// The network it is measured on.
    pub wire: Wire,
    /// What is asked.
    pub load: Load,
    /// Of whom.
    pub subject: Subject,
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.subject.is_remote() {
            true => write!(f, "{}/{}/{}", self.wire, self.load, self.subject),
            false => write!(f, "local/{}/{}", self.load, self.subject),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_points_apart() {
        let load = Load::new(Pattern::RandRead, 4096, 4).jobs(32);
        let tyche = Settings { batch: Some("tyche"), data_batch: Some("on"), ..Settings::DEFAULT };
        let point =
            Point { wire: Wire::TEN_GIGABIT, load, subject: Subject::with(Carrier::Packet, tyche) };
        assert_eq!(
            point.to_string(),
            "10g-m9000/randread-4k-32x4/packet+batch=tyche+data-batch=on"
        );
        assert_eq!(point.subject.title(), "Thinwire packet, tyche, data batch on");
        let slow = Wire { mbit: Some(2500), mtu: 1500, links: 2, initiators: 4, switch: false };
        assert_eq!(slow.to_string(), "2.5g-m1500-2links-4initiators-cable");
        assert_eq!(Wire::FREE.to_string(), "free-m9000");
        let local = Point { subject: Subject::Null { switch: true }, ..point };
        assert_eq!(local.to_string(), "local/randread-4k-32x4/null-switch");
        let named = |subject| Point { subject, ..point }.to_string();
        let face = Subject::Face { face: FaceKind::Block, carrier: Carrier::Udp };
        assert_eq!(named(face), "10g-m9000/randread-4k-32x4/block-udp");
        let disk = |carrier| Subject::Disk { store: ImageStore::Limited, carrier };
        assert_eq!(named(disk(None)), "local/randread-4k-32x4/limited-here");
        assert_eq!(named(disk(Some(Carrier::Udp))), "10g-m9000/randread-4k-32x4/limited-udp");
        assert_eq!(named(Subject::FaceAlone), "local/randread-4k-32x4/nbd-alone");
        let copied = Subject::Copied { server: NbdServer::QemuNbd, tls: true };
        assert_eq!(named(copied), "10g-m9000/randread-4k-32x4/qemu-nbd-tls-copied");
        let settings = Settings { protection: Some(Protection::Encrypted), ..Settings::DEFAULT };
        let encrypted = Subject::with(Carrier::Udp, settings);
        assert_eq!(named(encrypted), "10g-m9000/randread-4k-32x4/udp+encrypted");
        assert_eq!(encrypted.title(), "Thinwire udp, encrypted");
        assert_eq!(Load::HANDSHAKES.to_string(), "handshakes");
        assert_eq!(load.outstanding(), 128);
        assert_eq!(Load::stages(Pattern::RandWrite).to_string(), "randwrite-stages");
    }

    #[test]
    fn a_line_carries_its_rate() {
        assert_eq!(Wire::TEN_GIGABIT.bytes_per_s(), Some(1.25e9));
        assert_eq!(Wire::FREE.bytes_per_s(), None);
        assert_eq!(Wire { links: 2, ..Wire::TEN_GIGABIT }.bytes_per_s(), Some(2.5e9));
    }
}
