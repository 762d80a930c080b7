//! What a module is told besides its volumes: behind its list, as in `stripe:[...]?chunk=64K`, or in TOML.

use std::fmt;

use thinwire_modules::{Module, ModuleOption, Options};

use crate::size::parse_size;

/// All that stands behind the `?`.
pub(super) fn parse(module: &Module, text: &str) -> Result<Options, String> {
    let mut options = Options::default();
    for (nth, pair) in text.split('&').enumerate() {
        if pair.is_empty() {
            let before = if nth == 0 { '?' } else { '&' };
            return Err(format!("no option follows the `{before}`"));
        }
        let (name, value) = match pair.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (pair, None),
        };
        let option = module.option(name).map_err(|e| e.to_string())?;
        let Some(value) = value else {
            return Err(format!("`{pair}`: its value is missing, as in {}", example(option)));
        };
        set_option(&mut options, option, value).map_err(|why| format!("`{pair}`: {why}"))?;
    }
    Ok(options)
}

/// Adds one that is said in words: a size or a number, as it takes it, and not said before.
pub(crate) fn set_option(
    options: &mut Options,
    option: &ModuleOption,
    words: &str,
) -> Result<(), String> {
    let value = match option.unit.is_size() {
        true => parse_size(words).map_err(|e| e.why)?,
        false => words.parse().map_err(|_| {
            format!("not a number of {}, as in {}", option.unit.name(), example(option))
        })?,
    };
    option.check(value).map_err(|why| format!("{} {why}", option.name))?;
    match options.set(option, value) {
        true => Ok(()),
        false => Err(format!("{} is given twice", option.name)),
    }
}

/// Why nothing else can stand behind the list of a module.
pub(super) fn misplaced(module: &Module, behind: &str) -> String {
    match module.options.first() {
        Some(option) => format!(
            "`{behind}`: only options can follow the list, as in {}:[...]?{}",
            module.name,
            example(option)
        ),
        None => format!("`{behind}`: nothing can follow the list"),
    }
}

fn example(option: &ModuleOption) -> String {
    format!("{}={}", option.name, if option.unit.is_size() { "64K" } else { "1000" })
}

/// As they stand behind a list.
pub(super) struct Shown<'a>(pub &'a Options);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut before = '?';
        self.0.iter().try_for_each(|(name, value)| {
            write!(f, "{before}{name}={value}")?;
            before = '&';
            Ok(())
        })
    }
}
