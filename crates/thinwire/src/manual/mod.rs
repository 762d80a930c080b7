//! Man pages: section 8 of commands, from the definition of the command line; section 5 of descriptions of volumes and section 7 of modules, from the
//! texts of these, with what their tables say.

mod facts;
mod roff;
#[cfg(test)]
mod tests;

use clap::CommandFactory;
use thinwire_modules::{MANUAL, ManualPage, Module};

use crate::cli::Cli;

/// A page, ready to be shown.
pub struct Page {
    /// As in `thinwire-attach`.
    pub name: String,
    /// 5, 7 or 8.
    pub section: u8,
    /// What `man -l` takes.
    pub roff: String,
}

impl Page {
    /// As a file.
    pub fn file_name(&self) -> String {
        format!("{}.{}", self.name, self.section)
    }

    /// Whether it is what somebody has named: `mirror`, `thinwire-mirror` or `mirror.7`.
    fn is(&self, named: &str) -> bool {
        let (named, section) = match named.rsplit_once('.') {
            Some((name, section)) => (name, Some(section)),
            None => (named, None),
        };
        let is_section = section.is_none_or(|section| section == self.section.to_string());
        let short = self.name.strip_prefix("thinwire-").unwrap_or(&self.name);
        is_section && (named == self.name || named == short)
    }
}

/// All pages, by their names.
pub fn pages() -> Vec<Page> {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let mut pages = Vec::new();
    of_commands(&command, &mut pages);
    pages.extend(MANUAL.iter().map(of_module));
    pages.sort_by(|one, other| one.name.cmp(&other.name));
    pages
}

/// What somebody has named; of a module for tests the page of all of them.
pub fn find(named: &str) -> Option<Page> {
    let shared = Module::find(named).and_then(ManualPage::of).map(|page| page.name);
    let named = shared.unwrap_or(named);
    pages().into_iter().find(|page| page.is(named))
}

/// That of a command, and of all below it.
fn of_commands(command: &clap::Command, pages: &mut Vec<Page>) {
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        of_commands(below, pages);
    }
    let name = command.get_display_name().unwrap_or(command.get_name()).to_owned();
    let man = clap_mangen::Man::new(command.clone()).section("8");
    let mut roff = Vec::new();
    man.render(&mut roff).expect("memory takes all that is written");
    let roff = String::from_utf8_lossy(&roff);
    // Theirs has no place for a date that is not there.
    let line = |line: &str| match line.starts_with(".TH ") {
        true => roff::title(&name, 8),
        false => format!("{line}\n"),
    };
    let mut roff: String = roff.lines().map(line).collect();
    if name.starts_with("thinwire-volume") {
        roff.push_str(&roff::see_also(&[
            "thinwire-volumes(5)",
            "thinwire-thin(7)",
            "thinwire-mirror(7)",
        ]));
    }
    pages.push(Page { name, section: 8, roff });
}

fn of_module(page: &ManualPage) -> Page {
    let mut text = String::new();
    for line in page.text.lines() {
        match line {
            "{options}" => text.push_str(&facts::options(page)),
            "{cost}" => text.push_str(&facts::costs(page)),
            "{kinds}" => text.push_str(&facts::kinds()),
            line => text.push_str(line),
        }
        text.push('\n');
    }
    let mut roff = roff::from_markdown(&text, page.section);
    let all = ["thinwire(8)", "thinwire-volume(8)", "thinwire-volumes(5)"];
    let others = if page.section == 5 { &all[..2] } else { &all[..] };
    roff.push_str(&roff::see_also(others));
    Page { name: format!("thinwire-{}", page.name), section: page.section, roff }
}
