//! What is said of keys: `--key` and its like, and `thinwire key`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::error::Outcome;
use crate::keys::{KEY_DIR, KeyFile, Security};

/// How an initiator protects its frames.
#[derive(Args, Clone, Debug, Default)]
pub struct SecurityArgs {
    /// The key that the target must have, too: a path, or a name in /etc/thinwire/keys. Of several in the file
    /// the last is shown
    #[arg(long, value_name = "KEY")]
    pub key: Option<String>,
    /// Authenticate frames and do not encrypt them, for networks on which everybody may read. The target must
    /// say so, too
    #[arg(long)]
    pub authenticate_only: bool,
    /// Go without a key, although frames are then neither authenticated nor encrypted
    #[arg(long, conflicts_with_all = ["key", "authenticate_only"])]
    pub insecure: bool,
}

impl SecurityArgs {
    /// With the key read.
    pub fn read(&self) -> Outcome<Security> {
        let key = self.key.as_deref().map(KeyFile::read).transpose()?;
        let SecurityArgs { authenticate_only, insecure, .. } = *self;
        Ok(Security { key, authenticate_only, insecure })
    }
}

/// `thinwire key`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  thinwire key new alice
  thinwire key new alice --add
  thinwire key id /etc/thinwire/keys/alice

A key file is text with one key a line. The same file lies on a target, whose --key names it, and on those
that use its disks; its name is what the target calls them. To change a key: add one (--add) on the target and
have it read again, copy the file to the others and attach anew, then remove the old line everywhere.
docs/security.md says what keys promise.")]
pub struct KeyArgs {
    /// What to do.
    #[command(subcommand)]
    pub action: KeyAction,
}

/// What can be done with keys.
#[derive(Debug, Subcommand)]
pub enum KeyAction {
    /// Make a key, and print the path of its file
    New {
        /// Who will use it: the name of the file
        name: String,
        /// Folder of the file; made if it is missing
        #[arg(long, value_name = "FOLDER", default_value = KEY_DIR)]
        dir: PathBuf,
        /// Put it behind the keys that the file has, as the one that is shown from then on
        #[arg(long)]
        add: bool,
        /// Print JSON instead of the bare path
        #[arg(long)]
        json: bool,
    },
    /// Print the ids of the keys in a file, by which `status` calls them
    Id {
        /// A path, or a name in /etc/thinwire/keys
        key: String,
        /// Print JSON instead of a line for each
        #[arg(long)]
        json: bool,
    },
}
