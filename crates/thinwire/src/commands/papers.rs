//! `thinwire completions` and `thinwire man`, made from the definition of the command line.

use std::path::Path;

use clap::CommandFactory;

use crate::cli::Cli;
use crate::error::{Failure, Outcome};
use crate::output;

/// Prints the completion script for a shell.
pub fn completions(shell: clap_complete::Shell) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "thinwire", &mut script);
    output::say(String::from_utf8_lossy(&script).trim_end())
}

/// Prints `thinwire.1`, or writes the pages of all commands into `folder`.
pub fn man(folder: Option<&Path>) -> Outcome {
    let Some(folder) = folder else {
        let mut page = Vec::new();
        let rendered = clap_mangen::Man::new(Cli::command()).render(&mut page);
        rendered.map_err(|e| Failure::failed(format!("cannot make the man page: {e}")))?;
        return output::say(String::from_utf8_lossy(&page).trim_end());
    };
    std::fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(Cli::command(), folder))
        .map_err(|e| Failure::failed(format!("cannot write to {}: {e}", folder.display())))
}
