//! The experiments: for each, what it measures and what it shows. One file for each family.

mod bars;
mod batching;
mod disks;
mod ebd;
mod faces;
mod keys;
mod limits;
mod links;
mod mixed;
mod null;
mod orchestra;
mod peers;
mod pipelines;
mod scaling;
mod utilisation;

use serde::Serialize;

use crate::document::document;
use crate::draw::{Drawing, Mark};
use crate::figures::Figures;
use crate::plan::{Group, merged};
use crate::point::{Point, Subject, Wire};
use crate::view::View;
pub use bars::{Bar, Judged};

/// A table or figure of the document, or one of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the titles say it")]
pub enum Experiment {
    Bars,
    Table2,
    Table3,
    Table4,
    Table5,
    Table6,
    Fig1,
    Fig5,
    Fig6,
    Fig7,
    Fig8,
    Limits,
    Peers,
    Faces,
    Disks,
    Ebd,
    Keys,
    Links,
    Scaling,
    OrchestraModules,
    OrchestraStripes,
    Orchestra26,
    Orchestra27,
    Orchestra28,
    Orchestra29,
    Orchestra210,
    OrchestraTable21,
    Orchestra211,
    Orchestra212,
    OrchestraTable22,
    Orchestra213,
    Orchestra214,
    Orchestra215,
    Orchestra216,
    Orchestra217,
}

impl Experiment {
    /// All of them, in the report's order.
    pub const ALL: [Experiment; 35] = [
        Experiment::Bars,
        Experiment::Table2,
        Experiment::Table3,
        Experiment::Table4,
        Experiment::Table5,
        Experiment::Table6,
        Experiment::Fig1,
        Experiment::Fig5,
        Experiment::Fig6,
        Experiment::Fig7,
        Experiment::Fig8,
        Experiment::Limits,
        Experiment::Peers,
        Experiment::Faces,
        Experiment::Disks,
        Experiment::Ebd,
        Experiment::Keys,
        Experiment::Links,
        Experiment::Scaling,
        Experiment::OrchestraModules,
        Experiment::OrchestraStripes,
        Experiment::Orchestra26,
        Experiment::Orchestra27,
        Experiment::Orchestra28,
        Experiment::Orchestra29,
        Experiment::Orchestra210,
        Experiment::OrchestraTable21,
        Experiment::Orchestra211,
        Experiment::Orchestra212,
        Experiment::OrchestraTable22,
        Experiment::Orchestra213,
        Experiment::Orchestra214,
        Experiment::Orchestra215,
        Experiment::Orchestra216,
        Experiment::Orchestra217,
    ];

    /// Its subcommand, and the name of its files.
    pub fn name(self) -> &'static str {
        match self {
            Experiment::Bars => "bars",
            Experiment::Table2 => "table2",
            Experiment::Table3 => "table3",
            Experiment::Table4 => "table4",
            Experiment::Table5 => "table5",
            Experiment::Table6 => "table6",
            Experiment::Fig1 => "fig1",
            Experiment::Fig5 => "fig5",
            Experiment::Fig6 => "fig6",
            Experiment::Fig7 => "fig7",
            Experiment::Fig8 => "fig8",
            Experiment::Limits => "limits",
            Experiment::Peers => "peers",
            Experiment::Faces => "faces",
            Experiment::Disks => "disks",
            Experiment::Ebd => "ebd",
            Experiment::Keys => "keys",
            Experiment::Links => "links",
            Experiment::Scaling => "scaling",
            Experiment::OrchestraModules => "orchestra-modules",
            Experiment::OrchestraStripes => "orchestra-stripes",
            Experiment::Orchestra26 => "orchestra-2.6",
            Experiment::Orchestra27 => "orchestra-2.7",
            Experiment::Orchestra28 => "orchestra-2.8",
            Experiment::Orchestra29 => "orchestra-2.9",
            Experiment::Orchestra210 => "orchestra-2.10",
            Experiment::OrchestraTable21 => "orchestra-table2.1",
            Experiment::Orchestra211 => "orchestra-2.11",
            Experiment::Orchestra212 => "orchestra-2.12",
            Experiment::OrchestraTable22 => "orchestra-table2.2",
            Experiment::Orchestra213 => "orchestra-2.13",
            Experiment::Orchestra214 => "orchestra-2.14",
            Experiment::Orchestra215 => "orchestra-2.15",
            Experiment::Orchestra216 => "orchestra-2.16",
            Experiment::Orchestra217 => "orchestra-2.17",
        }
    }

    /// Whether the quick form leaves all of it out.
    pub fn is_full_only(self) -> bool {
        self == Experiment::Ebd
    }

    /// Where it belongs.
    pub fn suite(self) -> ExperimentSuite {
        match self.name().starts_with("orchestra") {
            true => ExperimentSuite::Orchestra,
            false => ExperimentSuite::Tyche,
        }
    }

    /// What it measures.
    pub fn plan(self) -> Vec<Group> {
        merged(self.asks())
    }

    /// As it is written down: a load may be asked for in several places.
    fn asks(self) -> Vec<Group> {
        match self {
            Experiment::Bars => bars::plan(),
            Experiment::Table2 | Experiment::Table3 | Experiment::Table5 | Experiment::Table6 => {
                pipelines::plan()
            }
            Experiment::Table4 => null::plan(),
            Experiment::Fig1 => utilisation::plan(),
            Experiment::Fig5 | Experiment::Fig6 | Experiment::Fig7 => batching::plan(self),
            Experiment::Fig8 => mixed::plan(),
            Experiment::Limits => limits::plan(),
            Experiment::Peers => peers::plan(),
            Experiment::Faces => faces::plan(),
            Experiment::Disks => disks::plan(),
            Experiment::Ebd => ebd::plan(),
            Experiment::Keys => keys::plan(),
            Experiment::Links => links::plan(),
            Experiment::Scaling => scaling::plan(),
            Experiment::OrchestraModules => orchestra::modules::plan(),
            Experiment::OrchestraStripes => orchestra::stripes::plan(),
            Experiment::Orchestra26 => orchestra::network::plan(),
            Experiment::Orchestra27 => orchestra::disk::plan(),
            Experiment::Orchestra28 | Experiment::Orchestra29 | Experiment::Orchestra210 => {
                orchestra::nodes::plan()
            }
            Experiment::OrchestraTable21 | Experiment::Orchestra211 | Experiment::Orchestra212 => {
                orchestra::postmark::plan()
            }
            Experiment::OrchestraTable22 | Experiment::Orchestra213 | Experiment::Orchestra214 => {
                orchestra::tpch::plan()
            }
            Experiment::Orchestra215 => orchestra::served::plan(),
            Experiment::Orchestra216 | Experiment::Orchestra217 => orchestra::layers::plan(self),
        }
    }

    /// What it shows of what was measured.
    pub fn section(self, view: &View) -> Section {
        let mut section = match self {
            Experiment::Bars => bars::section(view),
            Experiment::Table2 | Experiment::Table3 | Experiment::Table5 | Experiment::Table6 => {
                pipelines::section(self, view)
            }
            Experiment::Table4 => null::section(view),
            Experiment::Fig1 => utilisation::section(view),
            Experiment::Fig5 | Experiment::Fig6 | Experiment::Fig7 => batching::section(self, view),
            Experiment::Fig8 => mixed::section(view),
            Experiment::Limits => limits::section(view),
            Experiment::Peers => peers::section(view),
            Experiment::Faces => faces::section(view),
            Experiment::Disks => disks::section(view),
            Experiment::Ebd => ebd::section(view),
            Experiment::Keys => keys::section(view),
            Experiment::Links => links::section(view),
            Experiment::Scaling => scaling::section(view),
            Experiment::OrchestraModules => orchestra::modules::section(view),
            Experiment::OrchestraStripes => orchestra::stripes::section(view),
            Experiment::Orchestra26 => orchestra::network::section(view),
            Experiment::Orchestra27 => orchestra::disk::section(view),
            Experiment::Orchestra28 | Experiment::Orchestra29 | Experiment::Orchestra210 => {
                orchestra::nodes::section(self, view)
            }
            Experiment::OrchestraTable21 | Experiment::Orchestra211 | Experiment::Orchestra212 => {
                orchestra::postmark::section(self, view)
            }
            Experiment::OrchestraTable22 | Experiment::Orchestra213 | Experiment::Orchestra214 => {
                orchestra::tpch::section(self, view)
            }
            Experiment::Orchestra215 => orchestra::served::section(view),
            Experiment::Orchestra216 | Experiment::Orchestra217 => {
                orchestra::layers::section(self, view)
            }
        };
        section.missing = view.missing(&self.plan());
        section
    }
}

/// Experiments that are measured, and shown on one page, together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExperimentSuite {
    /// What the documents about Tyche and EBD measured, faces, disks, keys, links: the report.
    Tyche,
    /// Volumes made of volumes, and what the document about iSCSI measured.
    Orchestra,
}

impl ExperimentSuite {
    /// Its experiments, in the order of its page.
    pub fn experiments(self) -> impl Iterator<Item = Experiment> {
        Experiment::ALL.into_iter().filter(move |experiment| experiment.suite() == self)
    }

    /// The groups of all its experiments, in the order in which they are measured.
    pub fn plan(self) -> Vec<Group> {
        merged(self.experiments().flat_map(Experiment::asks))
    }

    /// Its bars.
    pub fn bars(self, view: &View) -> Vec<Bar> {
        match self {
            ExperimentSuite::Tyche => bars::bars(view),
            ExperimentSuite::Orchestra => orchestra::bars(view),
        }
    }

    /// The document whose numbers stand beside ours on its page: who wrote it, and its title.
    pub fn document(self) -> (String, &'static str) {
        match self {
            ExperimentSuite::Tyche => (document().authors.join(", "), &document().title),
            ExperimentSuite::Orchestra => {
                let document = orchestra::stated::document();
                (document.authors.join(", "), &document.title)
            }
        }
    }

    /// What of that document nothing here repeats: sentences.
    pub fn not_repeated(self) -> Vec<String> {
        match self {
            ExperimentSuite::Tyche => Vec::new(),
            ExperimentSuite::Orchestra => {
                let names: Vec<&str> = self.experiments().map(Experiment::name).collect();
                orchestra::stated::not_repeated(&names)
            }
        }
    }
}

/// What the report measures.
#[cfg(test)]
fn plan_of_all() -> Vec<Group> {
    ExperimentSuite::Tyche.plan()
}

/// What an experiment shows.
#[derive(Clone, Debug, Serialize)]
pub struct Section {
    /// Heading.
    pub title: String,
    /// What was done and how to read it, a paragraph each.
    pub text: Vec<String>,
    /// Charts, each with the word that its file's name ends with (empty for the first).
    pub drawings: Vec<(String, Drawing)>,
    /// Tables.
    pub tables: Vec<Table>,
    /// What is not there, and why.
    pub missing: Vec<String>,
}

impl Section {
    fn new(title: &str, text: &[&str]) -> Self {
        Section {
            title: title.into(),
            text: text.iter().map(|&t| t.to_owned()).collect(),
            drawings: Vec::new(),
            tables: Vec::new(),
            missing: Vec::new(),
        }
    }
}

/// A table of text.
#[derive(Clone, Debug, Serialize)]
pub struct Table {
    /// What it shows.
    pub title: String,
    /// Heads of the columns.
    pub header: Vec<String>,
    /// Cells.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(title: impl Into<String>, header: &[&str]) -> Self {
        let header = header.iter().map(|&h| h.to_owned()).collect();
        Table { title: title.into(), header, rows: Vec::new() }
    }

    /// Numbers that the document states, by their names, beside ours.
    fn statements(ours: &[(&str, Option<f64>)]) -> Self {
        let header = ["what the document states", "where", "document", "ours"];
        let mut table = Table::new("Stated in the text", &header);
        for (id, ours) in ours {
            let stated = document().statement(id);
            let (theirs, unit) = match &stated.unit[..] {
                unit @ "% of 1.2 GiB/s" => {
                    let scaled = their_utilisation(stated.value);
                    (format!("{} {unit}: {scaled:.1} %", stated.value), "%")
                }
                unit => (format!("{} {unit}", stated.value), unit),
            };
            table.rows.push(vec![
                stated.text.clone(),
                stated.r#where.clone(),
                theirs,
                ours.map_or(NONE.into(), |value| format!("{value:.1} {unit}")),
            ]);
        }
        table
    }

    /// For a terminal: columns as wide as their widest cell, two blanks between.
    pub fn text(&self) -> String {
        let mut widths: Vec<usize> = self.header.iter().map(|cell| cell.chars().count()).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let line = |cells: &[String]| {
            let padded: Vec<String> =
                cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
            padded.join("  ").trim_end().to_owned()
        };
        let rows = std::iter::once(line(&self.header)).chain(self.rows.iter().map(|row| line(row)));
        format!("{}\n{}\n", self.title, rows.collect::<Vec<_>>().join("\n"))
    }
}

/// Percent of a shaped wire's rate that is payload.
fn utilisation(wire: &Wire, figures: &Figures) -> Option<f64> {
    wire.bytes_per_s().map(|line| figures.bytes_per_s() / line * 100.0)
}

/// What the document takes for 100 % of its link: what it carries in theory, 1.2 GiB/s.
const THEIR_LINE: f64 = 1.2 * (1 << 30) as f64;

/// The document's utilisation by our measure, of [`Wire::TEN_GIGABIT`]'s line rate.
fn their_utilisation(percent: f64) -> f64 {
    let line = Wire::TEN_GIGABIT.bytes_per_s().expect("it has a rate");
    percent * THEIR_LINE / line
}

/// A utilisation that the document states, for a chart of ours: where it belongs, and the number as
/// it is printed.
fn utilisation_mark(id: &str, what: &str, x: Option<f64>) -> Mark {
    let stated = document().statement(id);
    let y = their_utilisation(stated.value);
    let name =
        format!("{what} {y:.1} % (printed: {} {}, {})", stated.value, stated.unit, stated.r#where);
    Mark { name, y, x }
}

/// A point's rate as percent of the limit: of the bare echo over the same carrier, under the same load
/// on the same wire, measured in turns with it. A cell; empty for subjects without an echo.
fn of_echo(view: &View, point: &Point) -> String {
    let share = match point.subject {
        Subject::Thinwire { carrier, .. }
        | Subject::Face { carrier, .. }
        | Subject::Disk { carrier: Some(carrier), .. } => {
            let echo = Point { subject: Subject::echo(carrier, false), ..*point };
            view.ratio(point, &echo, |f| f.iops)
        }
        _ => None,
    };
    share.map_or(NONE.into(), |s| s.times(100.0).show(1))
}

/// The largest of what there is.
fn largest(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    values.into_iter().reduce(f64::max)
}

/// `4 KiB`.
fn size(bytes: u32) -> String {
    match bytes % 1024 {
        0 => format!("{} KiB", bytes / 1024),
        _ => format!("{bytes} bytes"),
    }
}

/// A cell without figures.
const NONE: &str = "–";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Form;
    use crate::store::{Run, SampleStore, tests::folder};

    #[test]
    fn every_section_can_be_drawn_of_nothing_and_of_everything() {
        let folder = folder("sections");
        let mut store = SampleStore::open(&folder, "b", "m").unwrap();
        let draw = |store: &SampleStore| {
            for experiment in Experiment::ALL {
                let view = View::new(store, &experiment.suite().plan(), Form::Full);
                let section = experiment.section(&view);
                for (name, drawing) in &section.drawings {
                    let svg = drawing.svg(true);
                    assert!(
                        !svg.contains("NaN") && !svg.contains("inf\""),
                        "{experiment:?} {name}"
                    );
                    if let Drawing::Bars(bars) = drawing {
                        assert!(bars.names_fit(), "{experiment:?} {name}");
                    }
                }
                for table in &section.tables {
                    assert!(
                        table.rows.iter().all(|row| row.len() == table.header.len()),
                        "{table:?}"
                    );
                }
                let names: std::collections::BTreeSet<_> =
                    section.drawings.iter().map(|d| &d.0).collect();
                assert_eq!(names.len(), section.drawings.len(), "{experiment:?}");
                assert_eq!(
                    section.missing.is_empty(),
                    store.span().is_some(),
                    "{:?}",
                    section.missing
                );
            }
        };
        draw(&store);
        let stage = |row: &str| crate::figures::StageFigures {
            row: row.into(),
            physical_us: 2.0,
            virtual_us: None,
        };
        let stages = |bs| crate::figures::Stages {
            bs,
            mib_per_s: 1.0,
            virtual_clock_us: Some(0.4),
            rows: vec![stage("Ty-IS"), stage("store"), stage("total"), stage("clocks")],
        };
        // Each suite has visits of its own to what both ask for.
        let suites = [(ExperimentSuite::Tyche, 1), (ExperimentSuite::Orchestra, 1001)];
        let groups = |(suite, first): (ExperimentSuite, u64)| {
            suite.plan().into_iter().map(move |group| (group, first))
        };
        for (group, first) in suites.into_iter().flat_map(groups) {
            for (point, entry) in group.points() {
                for round in 0..entry.full {
                    let figures = Figures {
                        iops: 1000.0,
                        mib_per_s: 100.0,
                        mean_us: 50.0,
                        cpu_client_us: 3.0,
                        cpu_server_us: 4.0,
                        batch: Some(crate::figures::BatchFigures {
                            level_mean: 3.0,
                            requests_per_frame: 2.5,
                            ..Default::default()
                        }),
                        breakdown: crate::document::document().sizes.map(stages).into(),
                        timeline: vec![crate::figures::Moment {
                            t: 1.0,
                            iops: 1.0,
                            mib_per_s: 2.0,
                            level: Some(4.0),
                        }],
                        ..Figures::default()
                    };
                    let visit = u64::from(round) + first;
                    let run = Run { round, visit, seconds: entry.seconds };
                    store.put(&point, run, Ok(figures)).unwrap();
                }
            }
        }
        draw(&store);
        crate::document::tests::ASKED.with_borrow(|asked| {
            for stated in &document().statements {
                assert!(asked.contains(&stated.id), "{} is shown nowhere", stated.id);
            }
        });
        for experiment in Experiment::ALL {
            let section =
                experiment.section(&View::new(&store, &experiment.suite().plan(), Form::Full));
            assert!(!section.drawings.is_empty() || !section.tables.is_empty(), "{experiment:?}");
            assert!(section.drawings.iter().all(|(_, d)| !d.is_empty()), "{experiment:?}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn the_documents_utilisation_is_shown_by_our_measure() {
        // 1.2 GiB/s are 1.288e9 bytes a second, 10 Gb/s are 1.25e9.
        assert!((their_utilisation(88.0) - 90.71).abs() < 0.01);
        let mark = utilisation_mark("fig7.reads.max", "at most", None);
        assert_eq!(mark.name, "at most 90.7 % (printed: 88 % of 1.2 GiB/s, Figure 7)");
        assert_eq!(mark.y, their_utilisation(88.0));
        let table = Table::statements(&[("fig1.4k.max", Some(60.0)), ("fig5.reads.gain", None)]);
        assert_eq!(table.rows[0][2..], ["56 % of 1.2 GiB/s: 57.7 %", "60.0 %"]);
        assert_eq!(table.rows[1][2], "44.2 %", "a ratio needs no scaling");
        // Every share of the link says of what.
        for stated in &document().statements {
            let is_share = [".max", ".mean"].iter().any(|end| stated.id.ends_with(end))
                && stated.id.starts_with("fig");
            assert_eq!(stated.unit == "% of 1.2 GiB/s", is_share, "{}", stated.id);
        }
    }

    #[test]
    fn names_are_the_subcommands() {
        let mut names: Vec<_> = Experiment::ALL.iter().map(|e| e.name()).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), Experiment::ALL.len());
    }
}
