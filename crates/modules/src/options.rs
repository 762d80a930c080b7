//! [`Options`]: what a module is told besides its volumes.

use std::ops::RangeInclusive;

/// What the number counts that an option is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionUnit {
    /// Bytes.
    Bytes,
    /// Bytes in a second.
    BytesPerSecond,
    /// I/Os in a second.
    IosPerSecond,
    /// Milliseconds.
    Milliseconds,
    /// I/Os.
    Ios,
    /// Nothing: it is one.
    Number,
}

impl OptionUnit {
    /// Users say it as a size (`64K`, in powers of 1024), and not as a plain number.
    pub fn is_size(self) -> bool {
        matches!(self, OptionUnit::Bytes | OptionUnit::BytesPerSecond)
    }

    /// What stands behind a number of them.
    pub fn name(self) -> &'static str {
        match self {
            OptionUnit::Bytes => "bytes",
            OptionUnit::BytesPerSecond => "bytes a second",
            OptionUnit::IosPerSecond => "I/Os a second",
            OptionUnit::Milliseconds => "ms",
            OptionUnit::Ios => "I/Os",
            OptionUnit::Number => "any kind",
        }
    }
}

/// Something that a module can be told: a number.
pub struct ModuleOption {
    /// What users call it, in a list (`stripe:[...]?chunk=128K`) and in TOML alike: lower-case letters and underscores.
    pub name: &'static str,
    /// What `--help` says of it: one short line.
    pub help: &'static str,
    /// Its smallest and largest value.
    pub bounds: RangeInclusive<u64>,
    /// Its value is a multiple of this.
    pub multiple_of: u64,
    /// What it counts.
    pub unit: OptionUnit,
}

impl ModuleOption {
    /// Whether it can have this value.
    ///
    /// # Errors
    /// It cannot: what it takes, a sentence whose subject is the option.
    pub fn check(&self, value: u64) -> Result<(), String> {
        let (least, most) = (self.bounds.start(), self.bounds.end());
        let (multiple, unit) = (self.multiple_of, self.unit.name());
        if !self.bounds.contains(&value) {
            let bounds = match *most {
                u64::MAX => format!("{least} or more"),
                most => format!("{least} to {most}"),
            };
            return Err(format!("is {bounds} {unit}, not {value}"));
        }
        if !value.is_multiple_of(multiple) {
            return Err(format!("is a multiple of {multiple} {unit}, which {value} is not"));
        }
        Ok(())
    }
}

/// What a module has been told: of each of its options at most one value, which has passed
/// [`ModuleOption::check`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options(Vec<(&'static str, u64)>);

impl Options {
    /// Adds what is said of one. False if that was said already.
    pub fn set(&mut self, option: &ModuleOption, value: u64) -> bool {
        // In the order of names: those that say the same are the same.
        match self.0.binary_search_by_key(&option.name, |(name, _)| name) {
            Ok(_) => false,
            Err(place) => {
                self.0.insert(place, (option.name, value));
                true
            }
        }
    }

    /// What was said of one, if anything.
    pub fn get(&self, option: &ModuleOption) -> Option<u64> {
        self.iter().find(|(name, _)| *name == option.name).map(|(_, value)| value)
    }

    /// All but what was said of one.
    pub fn without(&self, option: &ModuleOption) -> Self {
        Options(self.0.iter().copied().filter(|(name, _)| *name != option.name).collect())
    }

    /// All that was said, in the order of names.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.0.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: ModuleOption = ModuleOption {
        name: "chunk",
        help: "",
        bounds: 4096..=65536,
        multiple_of: 4096,
        unit: OptionUnit::Bytes,
    };

    #[test]
    fn what_an_option_takes_is_said() {
        assert_eq!(CHUNK.check(8192), Ok(()));
        assert_eq!(CHUNK.check(0), Err("is 4096 to 65536 bytes, not 0".into()));
        assert_eq!(CHUNK.check(5000), Err("is a multiple of 4096 bytes, which 5000 is not".into()));
        let open = ModuleOption { bounds: 1..=u64::MAX, ..CHUNK };
        assert_eq!(open.check(0), Err("is 1 or more bytes, not 0".into()));
        let rate = ModuleOption { unit: OptionUnit::IosPerSecond, ..open };
        assert_eq!(rate.check(0), Err("is 1 or more I/Os a second, not 0".into()));
    }

    #[test]
    fn nothing_is_said_twice() {
        let mut options = Options::default();
        assert_eq!(options.get(&CHUNK), None);
        assert!(options.set(&CHUNK, 4096) && !options.set(&CHUNK, 8192));
        assert_eq!(options.get(&CHUNK), Some(4096));
        let other = ModuleOption { name: "a", ..CHUNK };
        assert_eq!(options.without(&other), options);
        assert_eq!(options.without(&CHUNK), Options::default());
    }

    #[test]
    fn who_is_told_the_same_in_another_order_is_told_the_same() {
        let other = ModuleOption { name: "a", ..CHUNK };
        let all = [[&CHUNK, &other], [&other, &CHUNK]].map(|order| {
            let mut options = Options::default();
            assert!(order.iter().all(|option| options.set(option, 4096)));
            options
        });
        assert_eq!(all[0], all[1]);
        assert!(all[0].iter().eq([("a", 4096), ("chunk", 4096)]));
    }
}
