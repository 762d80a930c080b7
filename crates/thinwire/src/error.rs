//! How a command ends badly: a sentence for the user and an exit code.

use std::fmt;
use std::io;

/// Which exit code a [`Failure`] has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// Exit code 1: the command was understood, and what it asked for did not succeed.
    Failed,
    /// Exit code 1, too: as far as is known, what it needs is not there. A mirror goes without such a leg.
    Absent,
    /// Exit code 1, too: somebody else uses it, and may not tomorrow.
    Busy,
    /// Exit code 2: a malformed flag, URI or configuration.
    Usage,
}

/// Why a command did not do what it was asked: what was tried, what happened, what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Decides the exit code.
    pub kind: FailureKind,
    /// The sentence printed after `thinwire: `.
    pub message: String,
}

/// The result of everything a command does.
pub type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    /// Something understood did not succeed (exit code 1).
    pub fn failed(message: impl Into<String>) -> Self {
        Failure { kind: FailureKind::Failed, message: message.into() }
    }

    /// What it needs is not there (exit code 1).
    pub fn absent(message: impl Into<String>) -> Self {
        Failure { kind: FailureKind::Absent, message: message.into() }
    }

    /// Something given was malformed (exit code 2).
    pub fn usage(message: impl Into<String>) -> Self {
        Failure { kind: FailureKind::Usage, message: message.into() }
    }

    /// The process exit code.
    pub fn exit_code(&self) -> u8 {
        match self.kind {
            FailureKind::Failed | FailureKind::Absent | FailureKind::Busy => 1,
            FailureKind::Usage => 2,
        }
    }

    /// The same failure with what was tried put before it.
    pub fn context(mut self, tried: impl fmt::Display) -> Self {
        self.message = format!("{tried}: {}", self.message);
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// Why a file cannot be read; with who may not, if that is why: it may be another than who started the command.
pub fn why_unreadable(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            let user = rustix::process::geteuid().as_raw();
            format!("{error}: the user of this process, {user}, may not read it")
        }
        _ => error.to_string(),
    }
}

/// A word the user typed that could not be understood. Becomes exit code 2 wherever it came from.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{given}`: {why}")]
pub struct ParseError {
    /// The offending part, as it was typed.
    pub given: String,
    /// What is wrong with it and what would be right.
    pub why: String,
}

impl ParseError {
    /// `given` is shown as typed, `why` says what would be right.
    pub fn new(given: impl Into<String>, why: impl Into<String>) -> Self {
        ParseError { given: given.into(), why: why.into() }
    }
}

impl From<ParseError> for Failure {
    fn from(error: ParseError) -> Self {
        Failure::usage(error.to_string())
    }
}
