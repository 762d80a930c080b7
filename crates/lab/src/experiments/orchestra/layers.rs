//! Figures 2.16 and 2.17: the kernel's time for a program by layer. Of the runs that the other figures about it show.

use super::{cell, postmark, stated, tpch};
use crate::composed::Nodes;
use crate::contender::layer_names;
use crate::experiments::{Experiment, NONE, Section, Table};
use crate::figures::LayerFigures;
use crate::plan::Group;
use crate::point::{Point, Wire};
use crate::view::View;

/// Those of the document, with and without a cache, as it has them.
const NODES: [Nodes; 5] =
    [Nodes::Direct, Nodes::OneCached, Nodes::One, Nodes::ThreeCached, Nodes::Three];

pub fn plan(experiment: Experiment) -> Vec<Group> {
    match experiment {
        Experiment::Orchestra216 => postmark::plan(),
        _ => tpch::plan(),
    }
}

/// A point with what it is called.
type Named = (String, Point);

fn points(experiment: Experiment, wire: Wire, nodes: Nodes) -> Vec<Named> {
    match experiment {
        Experiment::Orchestra216 => postmark::points(wire, nodes),
        _ => tpch::points(wire, nodes),
    }
}

pub fn section(experiment: Experiment, view: &View) -> Section {
    let item = if experiment == Experiment::Orchestra216 { "2.16" } else { "2.17" };
    let mut section = Section::new(
        &format!("Figure {item}: {}", stated::shows(item)),
        &[
            "Samples of perf in the kernel (997 a second, with their callers), of the program, and behind a plus of the process of its \
             attachment, both in percent of the program's: a sample belongs to the layer of the innermost function that is known to \
             be of one (Figure 2.5). What threads of the kernel do for the device and for the network is in neither. Below the block \
             layer there is no SCSI here and no TCP: the attachment takes I/Os through FUSE, and sends frames. Where perf is not \
             allowed nothing is shown.",
        ],
    );
    for wire in [postmark::GIGABIT_JUMBO, postmark::GIGABIT] {
        section.tables.push(table(view, experiment, wire));
    }
    section.tables.push(stated::table(item, &ours(view, experiment)));
    section
}

/// Of a layer in a point: in the program, and in the attachment.
fn share(view: &View, point: &Point, layer: &str, of: fn(&LayerFigures) -> f64) -> Option<f64> {
    let found = view.spread_of_some(point, |f| {
        f.program.as_ref()?.layers.iter().find(|own| own.layer == layer).map(of)
    });
    found.map(|s| s.median)
}

fn table(view: &View, experiment: Experiment, wire: Wire) -> Table {
    let title = format!(
        "The kernel's time by layer, % of the program's: links of 1 Gb/s, MTU {}",
        wire.mtu
    );
    let mut table = Table::new(title, &["", "nodes", "system time, s"]);
    table.header.extend(layer_names().map(str::to_owned));
    for nodes in NODES {
        for (name, point) in points(experiment, wire, nodes) {
            let system = view.spread_of_some(&point, |f| f.program.as_ref().map(|p| p.system_s));
            let mut row = vec![name, nodes.title().into(), cell(system, 2)];
            row.extend(layer_names().map(|layer| {
                let of = |of| share(view, &point, layer, of);
                match (of(|l| l.program), of(|l| l.attachment)) {
                    (Some(program), Some(attachment)) => format!("{program:.0} + {attachment:.0}"),
                    _ => NONE.into(),
                }
            }));
            table.rows.push(row);
        }
    }
    table
}

/// The least and the most of a layer in the program, over all that was measured.
fn range(view: &View, experiment: Experiment, layer: &str, of: fn(&LayerFigures) -> f64) -> String {
    let wires = [postmark::GIGABIT_JUMBO, postmark::GIGABIT];
    let points = NODES
        .into_iter()
        .flat_map(|nodes| wires.map(|wire| points(experiment, wire, nodes)))
        .flatten();
    let all: Vec<f64> = points.filter_map(|(_, point)| share(view, &point, layer, of)).collect();
    match (all.iter().copied().reduce(f64::min), all.iter().copied().reduce(f64::max)) {
        (Some(least), Some(most)) => format!("{least:.0} to {most:.0} %"),
        _ => NONE.into(),
    }
}

fn ours(view: &View, experiment: Experiment) -> Vec<(&'static str, String)> {
    let program = |layer| range(view, experiment, layer, |l| l.program);
    match experiment {
        Experiment::Orchestra216 => vec![("2.16.fs", program("file system"))],
        _ => vec![
            ("2.17.cache", program("buffer cache")),
            ("2.17.cache.most", program("buffer cache")),
            (
                "2.17.tcp",
                format!(
                    "frames, in the attachment: {}",
                    range(view, experiment, "network", |l| l.attachment)
                ),
            ),
            ("2.17.nic", "interrupts are in nobody's account here".into()),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::{Figures, ProgramFigures};
    use crate::plan::Form;
    use crate::store::{Run, SampleStore, tests::folder};

    #[test]
    fn layers_are_shown_of_program_and_attachment() {
        let folder = folder("orchestra-layers");
        let mut store = SampleStore::open(&folder, "b", "m").unwrap();
        let experiment = Experiment::Orchestra217;
        let (_, point) = points(experiment, postmark::GIGABIT_JUMBO, Nodes::One).remove(0);
        let layer = |layer: &str, program, attachment| LayerFigures {
            layer: layer.into(),
            program,
            attachment,
        };
        let layers = vec![layer("buffer cache", 41.0, 0.0), layer("network", 0.0, 12.0)];
        let program = ProgramFigures { seconds: 1.0, layers, ..ProgramFigures::default() };
        let figures = Figures { program: Some(program), ..Figures::default() };
        store.put(&point, Run { round: 0, visit: 1, seconds: 1.0 }, Ok(figures)).unwrap();
        let view = View::new(&store, &plan(experiment), Form::Full);
        let said = ours(&view, experiment);
        assert_eq!(said[0].1, "41 to 41 %");
        assert_eq!(said[2].1, "frames, in the attachment: 12 to 12 %");
        assert_eq!(ours(&view, Experiment::Orchestra216)[0].1, NONE);
        let table = table(&view, experiment, postmark::GIGABIT_JUMBO);
        assert!(table.rows.iter().any(|row| row.contains(&"0 + 12".to_owned())));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
