//! Modules for tests, of users and of ours: volumes that are slow, fail, lie, and say what they were asked.

mod delay;
mod error;
mod lie;
mod pattern;
mod trace;

use thinwire_volume::{Geometry, Io};

use crate::{
    Below, Child, Composite, IdentityHash, Layout, Module, ModuleError, ModuleOption, OptionUnit,
    common_geometry,
};

pub use delay::Delay;
pub use error::Failing;
pub use lie::Lie;
pub use pattern::PatternVolume;
pub use trace::{TraceLog, Traced};

/// Modules for tests. They keep the rules as all others do as long as they are not told otherwise, but for [`PatternVolume`].
pub static TEST_MODULES: &[Module] =
    &[delay::MODULE, error::MODULE, lie::MODULE, pattern::MODULE, trace::MODULE];

/// Of one in so many I/Os.
const fn one_in(name: &'static str, help: &'static str) -> ModuleOption {
    ModuleOption { name, help, bounds: 1..=1_000_000_000, multiple_of: 1, unit: OptionUnit::Ios }
}

/// What lies before that is left alone.
const FROM: ModuleOption = ModuleOption {
    name: "from",
    help: "what lies before is left alone, in bytes (0)",
    bounds: 0..=1 << 60,
    multiple_of: 512,
    unit: OptionUnit::Bytes,
};

/// What lies there or behind is.
const TO: ModuleOption = ModuleOption {
    name: "to",
    help: "what lies there or behind is left alone (all)",
    bounds: 0..=1 << 60,
    multiple_of: 512,
    unit: OptionUnit::Bytes,
};

/// Another one draws otherwise.
const SEED: ModuleOption = ModuleOption {
    name: "seed",
    help: "another one draws otherwise (0)",
    bounds: 0..=1 << 60,
    multiple_of: 1,
    unit: OptionUnit::Number,
};

/// Over the only volume of `children`, all of it.
fn over_one<L: Layout>(layout: L, children: Vec<Child>) -> Result<Composite<L>, ModuleError> {
    if children.len() != 1 {
        return Err(ModuleError::new(L::NAME, format!("takes 1 volume, not {}", children.len())));
    }
    let geometry = common_geometry(L::NAME, &children)?;
    let block = u64::from(geometry.block_bytes);
    let bytes = children[0].geometry().bytes / block * block;
    let identity = IdentityHash::new(L::NAME);
    Ok(Composite::new(layout, Geometry { bytes, ..geometry }, identity, children))
}

/// The layout of a module of that name over what it stands on, as that is.
macro_rules! plain {
    ($layout:ident, $name:literal) => {
        /// What it stands on, as it is.
        pub struct $layout(());

        impl crate::Layout for $layout {
            const NAME: &'static str = $name;
            const HAS_RECORD_BELOW: bool = true;

            #[inline]
            fn submit(&mut self, io: thinwire_volume::Io, below: &mut crate::Below) {
                super::pass_on(io, below);
            }

            fn grow(
                &mut self,
                _: usize,
                bytes: u64,
                whole: &thinwire_volume::Geometry,
            ) -> Option<u64> {
                let block = u64::from(whole.block_bytes);
                Some(bytes / block * block)
            }
        }
    };
}
use plain;

#[inline]
fn pass_on(io: Io, below: &mut Below) {
    below.pass_on(0, io.offset, io);
}

/// Draws numbers, the same for the same seed: SplitMix64.
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// One in so many times; never if that is 0.
    fn one_in(&mut self, many: u64) -> bool {
        many > 0 && self.next().is_multiple_of(many)
    }
}
