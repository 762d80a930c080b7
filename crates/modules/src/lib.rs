//! Volumes made of volumes: the table of all modules, the rules they keep, and what they share.
//!
//! A module is one file here, and a row in [`MODULES`]; users then name it `NAME:[VOLUME,...]`, or as `kind`
//! of a `[[volume]]` in TOML.
//! [`Composite`] keeps these rules for it, so that its file holds a [`Layout`] (which volume does what)
//! and the size of the whole. [`Linear`] is the one to learn from. Every row is held to the rules by
//! the tests of this room, which take them from the table; which volume does what is for the module's
//! own tests, over volumes that do as they are told (`testing::Puppet`).
//!
//! What stands over one volume, and has its content, identity and writer record, is a [`Layer`](thinwire_volume::Layer), which passes on all
//! that it does not do itself. [`Cache`] is one: an option of an export puts it right over a store. As a row it stands over a volume that has
//! an identity of its own, as every module has. Of these rules a layer keeps those on order, flushes, losses and polls.
//! A module stands on [`Child`]ren: volumes, or what labels leave of them; it knows no difference, and counts from its own first byte.
//! A [mirror] stands in [`KEEPING_MODULES`]: it is opened with labels only ([`Mirror::open`](mirror::Mirror::open)), and keeps these rules
//! but for order, errors and identity.
//! A [pool](thin) of thin volumes is no row: it is opened by [`ThinPool::open`](thin::ThinPool::open), and makes many volumes of two.
//! [`Crypt`] and [`Integrity`] are opened with labels only, too, and keep the rules: that one but for payload, block status and write-zeroes,
//! this one but for order, amplification, block status and discards.
//! Those for tests stand in [`TEST_MODULES`].
//! [`Dealt`] is no row either: what it stands on are ends of one volume, which nobody can name.
//!
//! * **Ranges** are checked once, above ([`Geometry::check`](thinwire_volume::Geometry::check)): a module asserts,
//!   and hands down only what the geometry of the volume below allows.
//! * **Geometry**: blocks that all volumes have, I/Os no longer than all take, features that all have
//!   ([`common_geometry`]). The size is the module's own. What does not fit together is refused when it
//!   is opened, with the volume in question and what to do ([`ModuleError`]).
//! * **Tokens** are the submitter's, and unique only there: below they are the module's own. Each I/O is
//!   completed once, and from `poll` only.
//! * **Order**: I/Os that are outstanding together may take effect in any order, here as below, so
//!   nothing is held back or sorted, but by [`Qos`], which is asked to. (Each volume takes them in an order of its own: a module that keeps
//!   copies has to hold back what overlaps a write, or they differ for good.) An I/O of several parts completes when all have, also when one has
//!   failed: the others may still have an effect.
//! * **Errors**: the first part that failed is told, with its range in the module's bytes, or with that of the whole I/O
//!   where its own bytes lie apart, and the name of who reported it.
//! * **Flush** goes to every volume that was changed, or may have been, since one succeeded there. One that fails it fails the whole at once, and before whatever else
//!   the same poll brings, since that may have seen the loss. If another fails it later, then the next
//!   flush that would succeed tells that.
//! * **Rest** is when nothing is outstanding, and all volumes are at rest ([`Volume::is_at_rest`](thinwire_volume::Volume::is_at_rest)).
//! * **Losses** are the sum of those below, and so rise before any completion that has seen one.
//! * **Amplification** is stated in the table ([`Module::ios_each_max`]): what is outstanding below is bounded by
//!   that and by what is submitted, since nothing is kept for later than the next poll.
//! * **Poll** polls all volumes every time: a descriptor of one may have become readable.
//! * **Time** is told to all volumes if one is timed, every time, and the earliest that one wants to be told it again is when the whole does.
//! * **Block status** is joined in order, up to the first answer that is shorter than what was asked. With
//!   `one_extent` only the first volume is asked. It may be asked for less than was submitted.
//! * **Payload** goes by reference: nothing is copied. Once warm nothing is allocated, but for the answer to
//!   a block status that was cut. A counting allocator shows that of all [`MODULES`] (`disk_alloc.rs` of `runtime`), and of all modules and all operations
//!   over memory (`tests/allocations.rs`); what a pool allocates for blocks that it gives out and takes back is bounded there.
//! * **Identity** is a hash of the module's name, of the identities of its volumes in their order, and of
//!   what else makes its content another ([`IdentityHash`]), as options do.
//! * **Options** are numbers, listed in the table with what each counts and takes ([`ModuleOption`]): one that is said has been
//!   checked for that, and for nothing else. Without any a module can be put over whatever is large enough.
//! * **Writer record**: that of the only volume below of one that is all of that ([`Layout::HAS_RECORD_BELOW`]), else none: it is kept in a label of the
//!   whole ([`RecordedWhole`](meta::RecordedWhole)), or whoever serves the whole keeps it elsewhere, under that identity.

#![forbid(unsafe_code)]

mod below;
mod cache;
mod child;
mod composite;
mod crypt;
pub mod cuts;
mod dealt;
mod effects;
mod events;
mod integrity;
mod linear;
mod manual;
pub mod meta;
mod metered;
pub mod mirror;
#[cfg(test)]
mod observed;
mod options;
mod pace;
mod pieces;
mod qos;
mod readonly;
#[cfg(test)]
mod rules;
mod shape;
mod slice;
mod stripe;
#[cfg(test)]
mod tests {
    pub(crate) mod golden;
}
pub mod thin;
mod trial;
mod write_back;
mod write_intent;

use std::fmt;
use std::ops::{Range, RangeInclusive};

pub use below::{Below, Stretch};
pub use cache::{Cache, CacheCanary};
pub use child::Child;
pub use composite::{Composite, Layout};
pub use crypt::{CRYPT_SEALED_BYTES, Crypt, CryptFault, CryptState, XtsCipher};
pub use dealt::Dealt;
pub use integrity::{
    Integrity, IntegrityConfig, IntegrityFault, IntegrityState, SUM_BITMAP_OFFSETS,
    SUM_GROWTHS_MAX, SeenSums, SumGrowing, SumGrowthError, SumLayout, SumMaking, look_at_sums,
    sum_bitmap_bytes,
};
pub use linear::Linear;
pub use manual::{MANUAL, ManualPage};
pub use metered::{METER_WINDOW, Meter, MeterRates, MeterReport, Metered, NodeStage, StageClock};
pub use options::{ModuleOption, OptionUnit, Options};
pub use qos::{Qos, QosBudget, QosCanary, QosLimit, QosLimits};
pub use readonly::Readonly;
pub use shape::{IdentityHash, common_geometry};
pub use slice::Slice;
pub use stripe::Stripe;
pub use trial::{Delay, Failing, Lie, PatternVolume, TEST_MODULES, TraceLog, Traced};
pub use write_back::{WriteBack, WriteBackCanary};

use thinwire_volume::Volume;
use thinwire_volume::stores::NullStore;

use self::meta::LABEL_AREA_BYTES;

/// Modules that can be put over any volumes, in the order in which they are shown.
pub static MODULES: &[Module] =
    &[cache::MODULE, linear::MODULE, qos::MODULE, readonly::MODULE, slice::MODULE, stripe::MODULE];

/// Those that are opened with labels only, since they keep something there ([`Module::keeps`]).
pub static KEEPING_MODULES: &[Module] =
    &[mirror::MODULE, thin::MODULE, crypt::MODULE, integrity::MODULE];

/// A module over its volumes, or why it cannot be put there.
pub type Built = Result<Box<dyn Volume>, ModuleError>;

/// A kind of volume made of volumes.
pub struct Module {
    /// What users call it: lower-case letters, digits and dashes.
    pub name: &'static str,
    /// What `--help` says of it: one short line.
    pub help: &'static str,
    /// How many volumes it takes.
    pub children: RangeInclusive<usize>,
    /// What it can be told.
    pub options: &'static [ModuleOption],
    /// What one I/O becomes: so many for each of its volumes, at most. Roots bound what they submit; a tree
    /// multiplies that by these, level by level, and holds nothing else.
    pub ios_each_max: usize,
    /// What it keeps on its parts beside labels; `None` if nothing.
    pub keeps: Option<KeptOnParts>,
    /// Puts it over its volumes, as many as it takes, in the order in which they were named.
    pub build: fn(Vec<Child>, &Options) -> Built,
}

impl Module {
    /// The module of that name.
    pub fn find(name: &str) -> Option<&'static Module> {
        Module::all().find(|module| module.name == name)
    }

    /// All modules, in the order in which they are shown.
    pub fn all() -> impl Iterator<Item = &'static Module> {
        MODULES.iter().chain(KEEPING_MODULES).chain(TEST_MODULES)
    }

    /// It keeps the same on all of its parts, and goes on without one.
    pub fn is_mirror(&self) -> bool {
        *self == mirror::MODULE
    }

    /// It is no volume, but has some, each with a name.
    pub fn has_volumes(&self) -> bool {
        *self == thin::MODULE
    }

    /// What of these options stands in labels, and so is the same as long as the whole is there; the rest is about how it is used.
    pub fn kept_options(&self, options: &Options) -> Options {
        match *self == qos::MODULE {
            // Limits may be others each time.
            true => Options::default(),
            false => options.without(&mirror::LEG_TIMEOUT),
        }
    }

    /// Where data starts on its parts, in bytes.
    pub fn data_start(&self) -> u64 {
        self.keeps.as_ref().map_or(LABEL_AREA_BYTES, |kept| kept.data_start)
    }

    /// It may be opened while some of its parts are missing.
    pub fn may_lack_parts(&self) -> bool {
        self.keeps.as_ref().is_some_and(|kept| kept.may_lack)
    }

    /// Whether it takes that many volumes.
    ///
    /// # Errors
    /// It does not: how many it takes.
    pub fn check_count(&self, count: usize) -> Result<(), ModuleError> {
        if self.children.contains(&count) {
            return Ok(());
        }
        let takes = match (*self.children.start(), *self.children.end()) {
            (least, usize::MAX) => format!("{least} or more"),
            (least, most) if least == most => least.to_string(),
            (least, most) => format!("{least} to {most}"),
        };
        let volumes = if takes == "1" { "volume" } else { "volumes" };
        let why = format!("takes {takes} {volumes}, not {count}");
        Err(ModuleError::new(self.name, why))
    }

    /// What it can be told under that name.
    ///
    /// # Errors
    /// Nothing: what it can be told.
    pub fn option(&self, name: &str) -> Result<&'static ModuleOption, ModuleError> {
        self.options.iter().find(|option| option.name == name).ok_or_else(|| {
            let known: Vec<_> = self.options.iter().map(|option| option.name).collect();
            let why = match known.is_empty() {
                true => format!("has no `{name}`: it has no options"),
                false => format!("has no `{name}`; it has {}", known.join(", ")),
            };
            ModuleError::new(self.name, why)
        })
    }

    /// How many bytes it makes of parts with so many bytes of data each, in blocks of so many: found out over volumes that hold nothing.
    ///
    /// # Errors
    /// It makes nothing of them.
    pub fn bytes_of(&self, options: &Options, parts: &[(u64, u32)]) -> Result<u64, ModuleError> {
        if let Some(kept) = &self.keeps {
            return Ok((kept.bytes)(parts));
        }
        let stand_in = |&(bytes, block): &(u64, u32)| {
            Box::new(NullStore::new(bytes, block)) as Box<dyn Volume>
        };
        Ok(self.open(parts.iter().map(stand_in).collect(), options)?.geometry().bytes)
    }

    /// Which of so many parts may grow once there is data: nothing lies behind it that would move.
    pub fn growing_parts(&self, parts: usize) -> Range<usize> {
        match self.name {
            name if name == linear::MODULE.name => parts - 1..parts,
            _ => 0..parts,
        }
    }

    /// Puts it over its volumes.
    ///
    /// # Errors
    /// Their number or their geometry does not fit.
    pub fn open(&self, children: Vec<Box<dyn Volume>>, options: &Options) -> Built {
        self.open_over(Child::all(children), options)
    }

    /// As [`Module::open`], where some are stretches of volumes.
    ///
    /// # Errors
    /// As there.
    pub fn open_over(&self, children: Vec<Child>, options: &Options) -> Built {
        self.check_count(children.len())?;
        (self.build)(children, options)
    }
}

/// What a module keeps on its parts, which is why it is not opened without labels.
pub struct KeptOnParts {
    /// Where data starts, in bytes.
    pub data_start: u64,
    /// How many bytes it makes of parts with so many bytes of data, in blocks of so many.
    pub bytes: fn(&[(u64, u32)]) -> u64,
    /// It may be opened while some parts are missing.
    pub may_lack: bool,
}

impl PartialEq for Module {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Module {}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Why a module cannot be put over volumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleError {
    /// Its name.
    pub module: &'static str,
    /// The volume in question, if it is one, counted from 0.
    pub child: Option<usize>,
    /// What is wrong and what to do: a sentence whose subject is the volume, or else the module.
    pub why: String,
}

impl ModuleError {
    /// Of the module as a whole.
    pub fn new(module: &'static str, why: impl Into<String>) -> Self {
        ModuleError { module, child: None, why: why.into() }
    }

    /// Of one of its volumes, counted from 0.
    pub fn of_child(module: &'static str, child: usize, why: impl Into<String>) -> Self {
        ModuleError { module, child: Some(child), why: why.into() }
    }
}

impl fmt::Display for ModuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.child {
            Some(child) => {
                write!(f, "{}: volume {child}, counted from 0, {}", self.module, self.why)
            }
            None => write!(f, "{} {}", self.module, self.why),
        }
    }
}

impl std::error::Error for ModuleError {}
