//! Exports as they are offered in several protocols, and where they lie: what the experiment about EBD and AoE compares.

use serde::Serialize;

/// How an export is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// `tw://`.
    Native,
    /// `ebd://`, the implemented form, blocks as large as a frame of the link carries.
    Ebd,
    /// The same in the idealised form.
    EbdIdeal,
    /// The implemented form with blocks of 1024 bytes, as on a link with frames of 1500.
    Ebd1024,
    /// The implemented form, of whose frames the client's link loses some, each way.
    EbdLossy(Loss),
    /// `aoe://`, through our client, from our server.
    Aoe,
}

/// How many frames are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "the names say it")]
pub enum Loss {
    OnePerMille,
    OnePercent,
    TwoPercent,
}

impl Loss {
    /// All.
    pub const ALL: [Loss; 3] = [Loss::OnePerMille, Loss::OnePercent, Loss::TwoPercent];

    /// In percent, as `--fault` takes it.
    pub fn percent(self) -> f64 {
        match self {
            Loss::OnePerMille => 0.1,
            Loss::OnePercent => 1.0,
            Loss::TwoPercent => 2.0,
        }
    }
}

/// Whose disk an ext2 file system lies on, while both sides have little memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Ext2Disk {
    /// An attachment over the native protocol.
    Native,
    /// One over EBD, the implemented form.
    Ebd,
    /// nbdkit's file plugin over TCP, through nbdfuse.
    Nbd,
    /// An image on this machine.
    Here,
}

impl Ext2Disk {
    /// In names.
    pub fn word(self) -> &'static str {
        match self {
            Ext2Disk::Native => "native",
            Ext2Disk::Ebd => "ebd",
            Ext2Disk::Nbd => "nbd",
            Ext2Disk::Here => "here",
        }
    }

    /// For people.
    pub fn title(self) -> &'static str {
        match self {
            Ext2Disk::Native => "native",
            Ext2Disk::Ebd => "EBD, implemented",
            Ext2Disk::Nbd => "nbdkit, TCP, nbdfuse",
            Ext2Disk::Here => "the image here",
        }
    }
}

impl Protocol {
    /// In names.
    pub fn word(self) -> &'static str {
        match self {
            Protocol::Native => "native",
            Protocol::Ebd => "ebd",
            Protocol::EbdIdeal => "ebd-ideal",
            Protocol::Ebd1024 => "ebd-1024",
            Protocol::EbdLossy(Loss::OnePerMille) => "ebd-lossy-0.1",
            Protocol::EbdLossy(Loss::OnePercent) => "ebd-lossy-1",
            Protocol::EbdLossy(Loss::TwoPercent) => "ebd-lossy-2",
            Protocol::Aoe => "aoe",
        }
    }

    /// For people.
    pub fn title(self) -> &'static str {
        match self {
            Protocol::Native => "native",
            Protocol::Ebd => "EBD, implemented",
            Protocol::EbdIdeal => "EBD, idealised",
            Protocol::Ebd1024 => "EBD, blocks of 1024",
            Protocol::EbdLossy(Loss::OnePerMille) => "EBD, 0.1 % lost",
            Protocol::EbdLossy(Loss::OnePercent) => "EBD, 1 % lost",
            Protocol::EbdLossy(Loss::TwoPercent) => "EBD, 2 % lost",
            Protocol::Aoe => "AoE",
        }
    }
}

/// Where the bytes of an export lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Medium {
    /// In the server's memory.
    Memory,
    /// In an image on a disk, directly.
    Image,
    /// In an image that the server's kernel keeps in memory, of which the server has so much in a control group that
    /// it fits.
    Fits,
    /// The same with two thirds of the image's size, as the document has 768 MB of data and 512 MB of memory.
    Exceeds,
}

impl Medium {
    /// In names.
    pub fn word(self) -> &'static str {
        match self {
            Medium::Memory => "memory",
            Medium::Image => "image",
            Medium::Fits => "fits",
            Medium::Exceeds => "exceeds",
        }
    }

    /// For people.
    pub fn title(self) -> &'static str {
        match self {
            Medium::Memory => "memory",
            Medium::Image => "image on a disk, direct",
            Medium::Fits => "image that fits the server's memory",
            Medium::Exceeds => "image of 1.5 times the server's memory",
        }
    }
}
