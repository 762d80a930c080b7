//! `attach --block --carries swap|root`: a disk that its own machine depends on. The kernel writes pages there to get
//! memory, or reads its programs from there: so serving it must wait for no memory, and for nobody who waits for it.
//! What was tried, and what such a disk cannot promise, is in `docs/swap-and-root.md`.

use std::ffi::OsString;

use clap::ValueEnum;
use thinwire_frontend::block::{mount_apart, outrank_others, prepare_process};
use thinwire_runtime::wait::Spin;

use crate::cli::{AttachArgs, Receive, Submission};
use crate::error::{Failure, Outcome};

const RESERVE: &str = "/proc/sys/vm/min_free_kbytes";
/// With the default of a small machine, 1 to 2 MiB, swap stands still; with this it went on with 192 MB of memory.
const RESERVE_KIB_MIN: u64 = 16384;

/// So little is retained of what a machine writes to a disk that it depends on: as much as there are buffers for that have
/// been touched (`attachment/faces.rs`), if it comes in single pages, as swap does.
pub const RETAINED_BYTES_CARRIED: usize = 4 << 20;

/// What on a disk its machine depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Carries {
    /// Pages that do not fit into memory.
    Swap,
    /// The root file system, and perhaps swap.
    Root,
}

impl Carries {
    /// Refuses flags that do not go with it.
    ///
    /// # Errors
    /// Bad usage, with the flag.
    pub fn check(self, args: &AttachArgs) -> Outcome {
        if args.block.is_none() {
            return Err(Failure::usage(format!(
                "--carries {self} is for a disk that has a device node: say --block"
            )));
        }
        if args.wire.spin.is_some_and(|spin| spin != Spin::Off) {
            return Err(Failure::usage(format!(
                "--carries {self} takes real-time priority, and whoever has that must not spin: leave --spin away"
            )));
        }
        if args.wire.receive == Some(Receive::Split) || args.submission == Submission::Queue {
            return Err(Failure::usage(format!(
                "--carries {self} has memory ready for one thread: leave --receive split and --submission queue away"
            )));
        }
        if self == Carries::Root && args.foreground {
            return Err(Failure::usage(
                "--carries root runs under a name that begins with @, which a process in the foreground cannot give \
                 itself: leave --foreground away",
            ));
        }
        Ok(())
    }

    /// Takes what it needs from the machine, for the process that is to serve the disk. To be called once, before
    /// other threads and links are made.
    ///
    /// # Errors
    /// The first that was refused, with what to do.
    pub fn prepare(self) -> Outcome {
        let refused = prepare_process().into_iter().next();
        let apart = || if self == Carries::Root { mount_apart() } else { Ok(()) };
        refused.map_or_else(outrank_others, Err).and_then(|()| apart()).map_err(|refusal| {
            Failure::failed(format!("cannot carry {self}: {refusal}, or attach without --carries"))
        })?;
        self.demand_reserve()?;
        thinwire_link::take_small_pieces();
        Ok(())
    }

    /// The kernel's reserve, from which our process and the frames that it receives are served when nothing else is
    /// left.
    fn demand_reserve(self) -> Outcome {
        let there: Option<u64> =
            std::fs::read_to_string(RESERVE).ok().and_then(|text| text.trim().parse().ok());
        match there {
            None => Err(Failure::failed(format!(
                "cannot carry {self}: {RESERVE} cannot be read, which says how much memory the kernel keeps in reserve"
            ))),
            Some(kib) if kib < RESERVE_KIB_MIN => Err(Failure::failed(format!(
                "cannot carry {self}: the kernel keeps {kib} KiB of memory in reserve, and {RESERVE_KIB_MIN} are needed; \
                 say `sysctl vm.min_free_kbytes={RESERVE_KIB_MIN}`, or attach without --carries"
            ))),
            _ => Ok(()),
        }
    }

    /// What the process is called that serves the disk, if its user calls it so. systemd, which ends everybody at
    /// shutdown, spares whose name begins with @.
    #[must_use]
    pub fn process_name(self, name: OsString) -> OsString {
        match self {
            Carries::Root => {
                let mut spared = OsString::from("@");
                spared.push(name);
                spared
            }
            Carries::Swap => name,
        }
    }
}

impl std::fmt::Display for Carries {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Carries::Swap => "swap",
            Carries::Root => "root",
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    fn attach(flags: &str) -> AttachArgs {
        let line = format!("thinwire attach --insecure memory:1M {flags}");
        match Cli::try_parse_from(line.split_whitespace()).unwrap().command {
            Command::Attach(args) => args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_does_not_go_with_it_is_named() {
        for (flags, says) in [
            ("--block --carries swap", None),
            ("--block --carries swap --spin off --foreground", None),
            ("--block --carries root", None),
            ("--block --carries swap --spin on", Some("--spin")),
            ("--block --carries swap --receive split", Some("--receive")),
            ("--block --carries root --submission queue", Some("--submission")),
            ("--block --carries root --spin always", Some("--spin")),
            ("--block --carries root --foreground", Some("--foreground")),
            ("--nbd unix:/a --carries swap", Some("--block")),
        ] {
            let args = attach(flags);
            let refused = args.carries.unwrap().check(&args).err().map(|e| e.message);
            assert_eq!(refused.is_some(), says.is_some(), "{flags}: {refused:?}");
            assert!(refused.unwrap_or_default().contains(says.unwrap_or_default()), "{flags}");
        }
    }

    #[test]
    fn the_process_of_a_root_is_spared_at_shutdown() {
        assert_eq!(Carries::Root.process_name("thinwire".into()), "@thinwire");
        assert_eq!(Carries::Swap.process_name("thinwire".into()), "thinwire");
    }
}
