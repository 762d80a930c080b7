//! `thinwire reload`, as it is typed.

use clap::Args;

use super::{RunDirArg, node_name};

/// `thinwire reload`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  thinwire reload
  thinwire reload node1

The target reads its configuration again (the files and flags that it was started with, and the key files that
these name) and applies what has changed in keys (`key`, `keys`, `read_keys`, the files' content), `announce`, `limits`
and exports that are one file, device or memory of this machine (added, removed, another volume, `weight`): as a whole,
or not at all, and then it says why. Sessions whose key was removed, or which have an export open that was removed or
for which their rights have changed, end at once; no other session notices. A limit that is lower than what is in use
ends nothing: who comes new is refused. What only a restart can change is named: then nothing is applied. Prints what has changed, and exits with 1 if nothing was applied because of an error.

SIGHUP to the target's process does the same, and tells it in the target's log. As a systemd service:
Type=notify-reload.")]
pub struct ReloadArgs {
    /// The target of this node (NODE or target-NODE); may be left out if there is one
    #[arg(value_name = "NODE", value_parser = node_name)]
    pub node: Option<String>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub run_dir: RunDirArg,
    /// Print JSON instead of text
    #[arg(long)]
    pub json: bool,
}
