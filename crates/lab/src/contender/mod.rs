//! Those who are measured: each kind of subject knows how to be set up and how to be run once.

mod abilities;
mod composed;
mod copied;
mod disk;
mod echo;
mod ext2;
mod face;
mod fio;
mod handshake;
mod iscsi;
mod local;
mod nbd;
mod offered;
mod thinwire;
mod vblade;

use std::time::Duration;

use crate::error::Outcome;
use crate::figures::Figures;
use crate::point::{Load, Point, Subject};
use crate::stand::{Laboratory, Process, machine_busy};
pub use abilities::Abilities;
pub use composed::layer_names;
pub use ext2::{CLIENT_MIB, SERVER_MIB};
pub use thinwire::{
    BARE, bench_flags, fill, guard, monotonic, one as bench_report, serve, start_after, uri,
};

/// A subject set up, with all that it needs to be measured again and again.
pub trait Contender {
    /// Runs a load once, for so many seconds.
    fn measure(&mut self, load: &Load, seconds: f64) -> Outcome<Figures>;
}

/// Sets a subject up for loads like this point's. Fails with the reason when it cannot be: a program
/// that is not installed, a flag that this build does not have.
pub fn set_up<'l>(
    lab: &'l Laboratory<'l>,
    abilities: &'l Abilities,
    point: &Point,
) -> Outcome<Box<dyn Contender + 'l>> {
    let wire = point.wire;
    Ok(match point.subject {
        Subject::Thinwire { carrier, settings } => {
            Box::new(thinwire::ThinwirePair::set_up(lab, abilities, point, carrier, settings)?)
        }
        Subject::Echo { carrier, sleeps, frame } => {
            Box::new(echo::Echo::set_up(lab, wire, carrier, sleeps, frame)?)
        }
        Subject::Face { face, carrier } => {
            Box::new(face::FaceUser::set_up(lab, wire, face, carrier)?)
        }
        Subject::FaceAlone => Box::new(face::FaceUser::alone(lab, wire)?),
        Subject::Disk { store, carrier } => {
            Box::new(disk::DiskUser::set_up(lab, abilities, wire, store, carrier)?)
        }
        Subject::MemoryCopy => Box::new(local::MemoryCopy::new()),
        Subject::Null { switch } => Box::new(local::Null::new(lab, switch)),
        Subject::Nbdkit => Box::new(nbd::Nbd::nbdkit(lab, wire)?),
        Subject::NbdkitAlone => Box::new(nbd::Nbd::nbdkit_alone(lab, wire)?),
        Subject::NbdkitFile => Box::new(nbd::Nbd::nbdkit_file(lab, wire)?),
        Subject::QemuNbd => Box::new(nbd::Nbd::qemu(lab, wire)?),
        Subject::Copied { server, tls } => {
            Box::new(copied::CopiedDisk::set_up(lab, wire, server, tls)?)
        }
        Subject::Tgt => Box::new(iscsi::Tgt::set_up(lab, wire)?),
        Subject::Offered { protocol, medium } => {
            Box::new(offered::OfferedExport::set_up(lab, wire, protocol, medium)?)
        }
        Subject::Vblade => Box::new(vblade::Vblade::set_up(lab, wire)?),
        Subject::Composed(composed) => composed::set_up(lab, point, composed)?,
        Subject::Ext2 { below, mib } => Box::new(ext2::Ext2::set_up(lab, wire, below, mib)?),
        Subject::NbdkitHeld(medium) => Box::new(nbd::Nbd::nbdkit_held(lab, wire, medium)?),
    })
}

/// What points share a set-up: everything but the load, unless it needs more than others do.
pub fn set_up_key(point: &Point) -> String {
    let joined = match point.load {
        Load { stages: true, .. } => "stages",
        Load { joined_every_s: 1.., .. } => "joined",
        Load { program: Some(program), .. } => program.kind(),
        _ => "",
    };
    match point.subject.is_remote() {
        true => format!("{}/{}/{joined}", point.wire, point.subject),
        false => format!("{}/{joined}", point.subject),
    }
}

/// CPU time before and after a run: of servers, and of the whole machine.
struct Meter<'p> {
    servers: Vec<&'p Process>,
    servers_before: Duration,
    machine_before: Duration,
}

impl<'p> Meter<'p> {
    fn start(servers: impl IntoIterator<Item = &'p Process>) -> Self {
        let servers: Vec<&Process> = servers.into_iter().collect();
        let servers_before = servers.iter().map(|server| server.cpu()).sum();
        Meter { servers, servers_before, machine_before: machine_busy() }
    }

    /// Microseconds for each of so many I/Os: of all servers, of the machine.
    fn stop(self, ios: f64) -> (f64, f64) {
        let servers: Duration = self.servers.iter().map(|server| server.cpu()).sum();
        let each = |used: Duration| used.as_secs_f64() * 1e6 / ios.max(1.0);
        (
            each(servers.saturating_sub(self.servers_before)),
            each(machine_busy().saturating_sub(self.machine_before)),
        )
    }
}

/// How long a program may take beyond its measuring time.
const PATIENCE: Duration = Duration::from_secs(30);

fn patience(seconds: f64) -> Duration {
    PATIENCE + Duration::from_secs_f64(seconds)
}

/// Command lines are mostly literals: `words!["--bs", block]`.
macro_rules! words {
    ($($word:expr),* $(,)?) => { vec![$($word.to_string()),*] };
}
pub(crate) use words;

/// As those take them who start processes.
pub(crate) fn strs(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}
