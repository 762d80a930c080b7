//! `thinwire completions` and `thinwire man`: completions and pages of commands are made from the definition of the command line, pages of volumes
//! from their texts.

use std::path::Path;

use clap::CommandFactory;

use crate::cli::Cli;
use crate::error::{Failure, Outcome};
use crate::manual::{self, Page};
use crate::output;

/// Prints the completion script for a shell.
pub fn completions(shell: clap_complete::Shell) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "thinwire", &mut script);
    output::say(String::from_utf8_lossy(&script).trim_end())
}

/// Prints the page that is named, `thinwire.8` if none is; or writes all of them into a folder.
///
/// # Errors
/// There is neither such a page nor such a folder, or it cannot be written.
pub fn man(what: Option<&str>) -> Outcome {
    let named = what.unwrap_or("thinwire");
    if let Some(page) = manual::find(named) {
        return output::say(page.roff.trim_end());
    }
    let folder = Path::new(named);
    if !named.contains('/') && !folder.is_dir() {
        let pages = manual::pages();
        let names: Vec<_> = pages.iter().map(Page::file_name).collect();
        return Err(Failure::usage(format!(
            "there is no page `{named}`, and no folder of that name (one that is to be made is ./{named}); pages are {}",
            names.join(", ")
        )));
    }
    for page in manual::pages() {
        let section = folder.join(format!("man{}", page.section));
        let path = section.join(page.file_name());
        std::fs::create_dir_all(&section)
            .and_then(|()| std::fs::write(&path, &page.roff))
            .map_err(|e| Failure::failed(format!("cannot write {}: {e}", path.display())))?;
    }
    Ok(())
}
