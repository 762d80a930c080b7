//! The `thinwire` command: everything around the protocol that a user sees. `main.rs` only calls
//! [`run`].
//!
//! | module | what is in it |
//! |---|---|
//! | [`cli`] | commands, flags, help |
//! | [`uri`], [`export`], [`face`], [`size`] | what users type, checked |
//! | [`config`], `config_file`, `trees` | TOML files and flags become one target configuration; volumes described in TOML |
//! | [`open`], [`local`], [`grant`], [`remote`] | from a volume's name to a volume that can be used |
//! | [`attachment`], [`rundir`], [`record`], [`control`], [`leftover`], [`identity`], [`process`] | attachments: how they are found, asked, ended, cleaned up after |
//! | [`growth`], [`rekeying`], [`work`] | what volumes that are in use, or open, do beside their users |
//! | [`serve`], [`steward`], [`health`], [`reload`], [`notify`] | a target: its shards, the thread beside them, what `status` shows, what is read again while it serves, what systemd is told |
//! | [`carries`] | what an attachment demands of its machine that carries swap or a root |
//! | [`privileges`], [`caretaker`] | what a target gives up once it serves, and who cleans up after it then |
//! | [`folder`], [`lock`], [`names`] | what other users of the machine can neither change nor hold: folders, locks, the node names of targets |
//! | [`bench`], [`copy`] | measuring and copying any volume |
//! | [`signals`], [`last_resort`] | what asks a command to end, and what ends one that a disk holds up |
//! | [`commands`] | one file for each command |

mod admitted;
mod adoption;
pub mod aoe;
pub mod attachment;
pub mod bench;
mod budgets;
pub mod caretaker;
pub mod carries;
pub mod cli;
pub mod commands;
pub mod config;
mod config_file;
pub mod control;
pub mod copy;
mod crypted;
mod cuts;
pub mod ebd;
pub mod error;
pub mod export;
pub mod face;
pub mod folder;
pub mod grant;
pub mod growth;
pub mod guard;
mod guests;
pub mod health;
pub mod host;
pub mod identity;
mod io_log;
mod kept;
pub mod keys;
pub mod known_keys;
mod label_words;
mod labelled;
mod last_resort;
pub mod leftover;
mod leg_changes;
pub mod limits;
pub mod links;
pub mod local;
pub mod lock;
pub mod log;
mod manual;
pub mod memory;
mod mirrored;
pub mod names;
pub mod network;
pub mod notify;
pub mod offer;
pub mod open;
pub mod opened;
pub mod output;
mod paces;
pub mod pool;
pub mod privileges;
mod process;
pub mod record;
pub mod rekeying;
pub mod reload;
pub mod remote;
pub mod rundir;
pub mod serve;
pub mod signals;
pub mod size;
pub mod state_dir;
pub mod steward;
#[cfg(test)]
mod testing;
mod trees;
pub mod uri;
pub mod work;

use clap::Parser;

use crate::cli::{Cli, Command};
use crate::error::Outcome;

/// Parses the command line, does what it says, and returns the exit code.
pub fn run() -> u8 {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version go to stdout with code 0, mistakes to stderr with code 2.
            let _ = error.print();
            return error.exit_code() as u8;
        }
    };
    log::start(cli.verbose);
    match dispatch(cli) {
        Ok(()) => 0,
        Err(failure) => {
            output::complain(&failure.to_string());
            failure.exit_code()
        }
    }
}

fn dispatch(cli: Cli) -> Outcome {
    match cli.command {
        Command::Target(args) => commands::target::run(&args),
        Command::Discover(args) => commands::discover::run(&args),
        Command::Attach(args) => commands::attach::run(&args),
        Command::Detach(args) => commands::detach::run(&args),
        Command::Key(args) => commands::key::run(&args),
        Command::Reload(args) => commands::reload::run(&args),
        Command::Link(args) => commands::link::run(&args),
        Command::Status(args) => commands::status::run(&args),
        Command::Bench(args) => commands::bench::run(&args),
        Command::Copy(args) => commands::copy::run(&args),
        Command::Volume(args) => commands::volume::run(&args),
        Command::Caretaker(args) => caretaker::run(&args),
        Command::Completions { shell } => commands::papers::completions(shell),
        Command::Man { what } => commands::papers::man(what.as_deref()),
    }
}
