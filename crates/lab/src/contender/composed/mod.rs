//! Volumes made of others, and who stands beside them.

mod file_system;
mod layers;
mod made;
mod nodes;
mod postmark;
mod qcow2;
mod served;
mod stream;
mod tpch;

pub use layers::names as layer_names;

use super::thinwire::{BARE, bench_flags, one};
use super::{Contender, Meter, patience, strs, words};
use crate::composed::{ComposedSubject, Program};
use crate::error::Outcome;
use crate::figures::Figures;
use crate::point::{Load, Point};
use crate::stand::{Laboratory, Network, Process, Side};

/// Sets one up for loads like this point's.
pub fn set_up<'l>(
    lab: &'l Laboratory<'l>,
    point: &Point,
    composed: ComposedSubject,
) -> Outcome<Box<dyn Contender + 'l>> {
    let wire = point.wire;
    Ok(match composed {
        ComposedSubject::Export(made) => Box::new(made::MadeExport::exported(lab, wire, made)?),
        ComposedSubject::Here(made) => Box::new(made::MadeExport::here(lab, made)?),
        ComposedSubject::ThinSnapshot => Box::new(made::ThinSnapshot::set_up(lab, wire)?),
        ComposedSubject::Stripe { targets } => {
            Box::new(nodes::NodeUser::stripe(lab, wire, targets)?)
        }
        ComposedSubject::Nodes { nodes, speed } if point.load.program.is_some() => {
            let stand = (nodes, speed);
            match point.load.program.expect("just looked at") {
                Program::Query(_) => Box::new(tpch::Tpch::set_up(lab, wire, stand)?),
                Program::Served(_) => Box::new(served::Served::set_up(lab, wire, stand)?),
                program => Box::new(postmark::Postmark::set_up(lab, wire, stand, program)?),
            }
        }
        ComposedSubject::Nodes { nodes, speed } => {
            Box::new(nodes::NodeUser::set_up(lab, wire, nodes, speed)?)
        }
        ComposedSubject::OneDisk => Box::new(nodes::NodeUser::one_disk(lab)?),
        ComposedSubject::Qcow2 { snapshot } => Box::new(qcow2::Qcow2::set_up(lab, wire, snapshot)?),
        ComposedSubject::TcpStream => Box::new(stream::TcpStream::set_up(lab, wire)?),
    })
}

/// Runs `thinwire bench` of a volume, on the initiator's side of a network or in the laboratory's own.
fn bench(
    lab: &Laboratory,
    network: Option<&Network>,
    servers: &[Process],
    volume: &str,
    flags: &[String],
    load: &Load,
    seconds: f64,
) -> Outcome<Figures> {
    let run_dir = lab.fresh_path("run");
    let mut argv = words![lab.executable(), "bench", volume, BARE, "--run-dir", run_dir.display()];
    argv.extend(bench_flags(load, seconds));
    argv.extend(flags.iter().cloned());
    let meter = Meter::start(servers);
    let process = match network {
        Some(network) => network.start(Side::Initiator(1), &strs(&argv))?,
        None => Process::start(lab, None, &strs(&argv))?,
    };
    let (mut figures, ios) = one(&process.finish(lab, patience(seconds))?.0)?;
    (figures.cpu_server_us, figures.cpu_machine_us) = meter.stop(ios);
    Ok(figures)
}
