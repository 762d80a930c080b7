//! What pages say that stands in tables: kinds, options, and what the way through a module costs.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use thinwire_modules::{Cache, ManualPage, Module, ModuleOption, Options};

use crate::crypted::takes_key;
use crate::size::show_size;

/// What `scripts/instructions` holds the way of a read and a write to: by `read through NAME`.
const INSTRUCTIONS: &str = include_str!("../../../../tests/instructions.json");
/// Ways through a module that are counted for themselves.
const VARIANTS: [(&str, &str, &str); 1] = [("cache", "write-back", "with `write_back`")];

/// What can be said to the modules of a page.
pub fn options(page: &ManualPage) -> String {
    let modules: Vec<_> = page.modules().collect();
    if let [module] = modules[..] {
        return match module.options {
            [] => "None.".into(),
            options => list(options),
        };
    }
    let each = modules.iter().map(|module| {
        let list = if module.options.is_empty() { "None.".into() } else { list(module.options) };
        format!("### {}\n\n{list}", module.name)
    });
    each.collect::<Vec<_>>().join("\n")
}

/// All kinds, with what can be said to them.
pub fn kinds() -> String {
    let mut text = String::new();
    for module in Module::all() {
        let _ = writeln!(text, "### {}\n\n{}. {}", module.name, module.help, children(module));
        let page = ManualPage::of(module).map_or(module.name, |page| page.name);
        let _ = writeln!(text, "{} See thinwire-{page}(7).\n", labels(module));
        text.push_str(&list(module.options));
        text.push('\n');
    }
    text
}

fn children(module: &Module) -> String {
    match (*module.children.start(), *module.children.end()) {
        (1, 1) => "One child.".into(),
        (least, usize::MAX) => format!("{least} or more children."),
        (least, most) if least == most => format!("{least} children."),
        (least, most) => format!("{least} to {most} children."),
    }
}

fn labels(module: &Module) -> &'static str {
    match module.keeps {
        _ if takes_key(module) => "Always with labels, and a `key`.",
        Some(_) => "Always with labels.",
        None if Cache::bytes_of(module, &Options::default()).is_some() => "Never with labels.",
        None => "With labels or without.",
    }
}

/// A line for each.
fn list(options: &[ModuleOption]) -> String {
    let line = |option: &ModuleOption| {
        let ModuleOption { name, help, .. } = option;
        format!("- `{name}`: {help}; {}.\n", values(option))
    };
    options.iter().map(line).collect()
}

/// What it counts, and what it can be.
fn values(option: &ModuleOption) -> String {
    let show = |value: u64| match option.unit.is_size() {
        true => show_size(value),
        false => value.to_string(),
    };
    let (least, most) = (*option.bounds.start(), *option.bounds.end());
    let bounds = match most {
        u64::MAX => format!("{} or more", show(least)),
        most => format!("{} to {}", show(least), show(most)),
    };
    let multiple = match option.multiple_of {
        1 => String::new(),
        of => format!(", a multiple of {}", show(of)),
    };
    format!("counts {}, {bounds}{multiple}", option.unit.name())
}

/// What the way through the modules of a page takes.
pub fn costs(page: &ManualPage) -> String {
    let counted: BTreeMap<String, u64> =
        serde_json::from_str(INSTRUCTIONS).expect("the file is what scripts/instructions writes");
    let mut said = Vec::new();
    for module in page.modules() {
        said.extend(cost(&counted, module.name, ""));
        let variants = VARIANTS.iter().filter(|(of, ..)| *of == module.name);
        said.extend(variants.filter_map(|(_, name, how)| cost(&counted, name, how)));
    }
    format!(
        "In instructions, for 4 KiB with 32 outstanding, over memory, which itself takes {} a read and {} a write: {}. Each is 1 % above what was \
         counted, and held to it by a test.",
        counted["read through memory"],
        counted["write through memory"],
        said.join("; ")
    )
}

fn cost(counted: &BTreeMap<String, u64>, name: &str, how: &str) -> Option<String> {
    let of = |op: &str| {
        let alone = counted[&format!("{op} through memory")];
        let through = counted.get(&format!("{op} through {name}"))?;
        Some(format!("{} more a {op}", through.saturating_sub(alone)))
    };
    let each: Vec<_> = [of("read"), of("write")].into_iter().flatten().collect();
    let how = if how.is_empty() { String::new() } else { format!("{how} ") };
    (!each.is_empty()).then(|| format!("{how}{}", each.join(", ")))
}
