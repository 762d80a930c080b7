//! The laboratory: measures Thinwire as the document "Reducing CPU and network overhead for small I/O
//! requests in network storage protocols over raw Ethernet" (P. González-Férez, A. Bilas) measured
//! Tyche, beside peers and beside the limits of the links, and shows the results.
//!
//! It drives an executable as `thinwire target` and `thinwire bench` in network namespaces of its own
//! making, and is no part of it: it depends on nothing that it measures but the links, for the echo.
//! `main.rs` only calls [`run`].
//!
//! | module | what is in it |
//! |---|---|
//! | [`args`], [`times`], [`commands`] | the command line, and what each subcommand does |
//! | [`point`], [`offered`] | what is measured: a subject under a load on a wire |
//! | [`experiments`] | what each table and figure measures and shows |
//! | [`plan`], [`runner`] | in which order, how long; doing it |
//! | [`stand`], [`contender`] | namespaces and processes; who is measured, and how |
//! | [`busy`] | whom spinning hurts: beside busy processes |
//! | [`fair`] | what sessions of one target cost each other |
//! | [`flood`] | what a flood of forged frames costs somebody honest |
//! | [`echo`] | the limit: an empty protocol |
//! | [`store`], [`figures`], [`stats`], [`view`] | what was measured: kept, summed up, looked at |
//! | [`document`] | the document's numbers |
//! | [`draw`], [`report`], [`remarks`] | charts, the page, and what people say on it |

pub mod args;
pub mod busy;
pub mod commands;
pub mod composed;
pub mod contender;
pub mod document;
pub mod draw;
pub mod echo;
pub mod error;
pub mod experiments;
pub mod fair;
pub mod figures;
pub mod flood;
pub mod identity;
pub mod load;
pub mod offered;
pub mod plan;
pub mod point;
pub mod remarks;
pub mod report;
pub mod runner;
pub mod stand;
pub mod stats;
pub mod store;
pub mod stream;
pub mod times;
pub mod view;

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Parser;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use args::{LabArgs, LabCommand};
use error::{LabError, Outcome, failed};

/// Parses the command line, does what it says, and returns the exit code.
pub fn run() -> u8 {
    let args = match LabArgs::try_parse() {
        Ok(args) => args,
        Err(error) => {
            // Help and version go to stdout with code 0, mistakes to stderr with code 2.
            let _ = error.print();
            return error.exit_code() as u8;
        }
    };
    match dispatch(&args) {
        Ok(()) => 0,
        Err(error) => {
            let _ = writeln!(std::io::stderr().lock(), "thinwire-lab: {error}");
            if matches!(error, LabError::Usage(_)) { 2 } else { 1 }
        }
    }
}

fn dispatch(args: &LabArgs) -> Outcome {
    let interrupted = Arc::new(AtomicBool::new(false));
    // The echo ends as any other program: it has nothing to clean up.
    if !args.is_echo() {
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, interrupted.clone())
                .map_err(failed("cannot take over signals"))?;
        }
    }
    commands::run(args, &measured(args)?, &|| interrupted.load(Ordering::Relaxed))
}

/// The executable that is measured.
fn measured(args: &LabArgs) -> Outcome<PathBuf> {
    let path = match &args.thinwire {
        Some(path) => path.clone(),
        None => own_executable()?.with_file_name("thinwire"),
    };
    // Lists and the echo need none.
    match path.is_file()
        || matches!(
            args.command,
            LabCommand::List(_)
                | LabCommand::Echo(_)
                | LabCommand::Stream(_)
                | LabCommand::Forge(_)
        ) {
        true => Ok(path),
        false => Err(LabError::Failed(format!(
            "there is no {} to measure; `make build` makes one, and --thinwire PATH names another",
            path.display()
        ))),
    }
}

/// This executable, which is also the echo.
fn own_executable() -> Outcome<PathBuf> {
    std::env::current_exe().map_err(failed("cannot tell which executable this is"))
}
