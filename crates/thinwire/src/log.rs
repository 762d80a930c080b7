//! Logs go to stderr: warnings by default, more with `-v` and `-vv`, anything with RUST_LOG.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// Starts logging. Called once.
pub fn start(verbose: u8) {
    let default = match verbose {
        0 => "warn",
        1 => "info",
        2 => "debug",
        _ => "trace",
    };
    let filter = match std::env::var("RUST_LOG") {
        Ok(wanted) if !wanted.is_empty() => EnvFilter::new(wanted),
        _ => EnvFilter::new(default),
    };
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(verbose > 1)
        .try_init();
}
