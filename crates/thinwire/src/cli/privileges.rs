//! Flags about what a target keeps of the privileges that it was started with.

use std::path::PathBuf;

use clap::Args;

/// What a target gives up once it serves (`docs/security.md`, "Privileges").
#[derive(Args, Clone, Debug, Default)]
pub struct PrivilegeArgs {
    /// Once all is open become this user, with the groups of that; GROUP: another group in place of its first. Numbers
    /// do, too. Needs root. Files are opened before; docs/security.md says what the user must be able to write
    /// [default: stay who started it, without capabilities that are not needed]
    #[arg(long, value_name = "NAME[:GROUP]", conflicts_with = "no_confine")]
    pub user: Option<String>,
    /// Give up nothing: stay who started it with all capabilities, and let the process make any system call. For
    /// debuggers, and for machines where something is refused that should not be; `status` shows it
    #[arg(long)]
    pub no_confine: bool,
}

/// `thinwire caretaker`, which a target starts for itself.
#[derive(Args, Clone, Debug)]
pub struct CaretakerArgs {
    /// The run directory, absolute
    pub run_dir: PathBuf,
    /// What the target is called there
    pub name: String,
}
