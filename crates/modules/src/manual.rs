//! The manual of modules: a page for each, and one of what descriptions may say. The text stands in `man/`; what tables say is left out there,
//! and filled in by whoever shows it, where a line is `{options}`, `{cost}` or `{kinds}`.

use crate::{Module, TEST_MODULES};

/// A page of the manual, in a plain kind of Markdown.
pub struct ManualPage {
    /// As in `thinwire-NAME`.
    pub name: &'static str,
    /// 5 for what files hold, 7 for a module.
    pub section: u8,
    /// Its text.
    pub text: &'static str,
}

macro_rules! page {
    ($name:literal, $section:literal) => {
        ManualPage {
            name: $name,
            section: $section,
            text: include_str!(concat!("../man/", $name, ".", stringify!($section), ".md")),
        }
    };
}

/// All pages.
pub static MANUAL: &[ManualPage] = &[
    page!("volumes", 5),
    page!("cache", 7),
    page!("clone", 7),
    page!("crypt", 7),
    page!("integrity", 7),
    page!("linear", 7),
    page!("mirror", 7),
    page!("qos", 7),
    page!("readonly", 7),
    page!("slice", 7),
    page!("snapshot", 7),
    page!("stripe", 7),
    page!("thin", 7),
    page!("trial", 7),
];

impl ManualPage {
    /// That of a module: those for tests share one.
    pub fn of(module: &Module) -> Option<&'static ManualPage> {
        let name = if TEST_MODULES.contains(module) { "trial" } else { module.name };
        MANUAL.iter().find(|page| page.section == 7 && page.name == name)
    }

    /// The modules that it is about; none if it is about something else.
    pub fn modules(&self) -> impl Iterator<Item = &'static Module> {
        Module::all().filter(|module| Self::of(module).is_some_and(|page| page.name == self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has_line(page: &ManualPage, wanted: &str) -> bool {
        page.text.lines().any(|line| line == wanted)
    }

    #[test]
    fn each_module_has_a_page() {
        for module in Module::all() {
            assert!(ManualPage::of(module).is_some(), "there is no page of {}", module.name);
        }
    }

    #[test]
    fn each_page_of_a_module_says_all_that_there_is_to_say() {
        for page in MANUAL.iter().filter(|page| page.section == 7) {
            let heads: Vec<_> = page.text.lines().filter(|line| line.starts_with("## ")).collect();
            let wanted = ["## What", "## When", "## Options", "## Cost", "## Failures"];
            assert_eq!(heads, wanted, "{}", page.name);
            let count = page.modules().count();
            assert_eq!(has_line(page, "{options}"), count > 0, "{}: its options", page.name);
            assert_eq!(has_line(page, "{cost}"), count == 1, "{}: its cost", page.name);
        }
        let volumes = MANUAL.iter().find(|page| page.section == 5).expect("a page of section 5");
        assert!(has_line(volumes, "{kinds}"));
    }

    #[test]
    fn each_text_in_the_folder_is_a_page_and_bears_its_name() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/man");
        let there = std::fs::read_dir(folder).unwrap();
        let mut there: Vec<_> =
            there.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        there.sort();
        let mut known: Vec<_> =
            MANUAL.iter().map(|page| format!("{}.{}.md", page.name, page.section)).collect();
        known.sort();
        assert_eq!(there, known);
        for page in MANUAL {
            let title = format!("# thinwire-{}({}): ", page.name, page.section);
            assert!(page.text.starts_with(&title), "{title}");
        }
    }
}
