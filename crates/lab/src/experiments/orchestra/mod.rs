//! Volumes made of volumes: what they cost, and what the document about iSCSI measured (D. Xinidis, "Performance analysis and
//! scaling of networked, shared, block-level storage", chapter 2).

pub mod disk;
pub mod layers;
pub mod modules;
pub mod network;
pub mod nodes;
pub mod postmark;
pub mod served;
pub mod stated;
pub mod stripes;
pub mod tpch;

use super::bars::{self, Bar};
use super::{NONE, Table};
use crate::figures::Figures;
use crate::point::{Pattern, Point};
use crate::stats::Spread;
use crate::view::View;

/// All bars about volumes made of volumes, in the order in which they were set.
pub fn bars(view: &View) -> Vec<Bar> {
    let mut all = Vec::new();
    modules::bars(view, &mut all);
    stripes::bars(view, &mut all);
    disk::bars(view, &mut all);
    nodes::bars(view, &mut all);
    postmark::bars(view, &mut all);
    tpch::bars(view, &mut all);
    all
}

/// A table of some of them.
fn bars_table(title: &str, of: impl FnOnce(&mut Vec<Bar>)) -> Table {
    let mut own = Vec::new();
    of(&mut own);
    bars::table(title, own)
}

/// Bytes a second in the document's unit, 10^6.
fn mb_per_s(figures: &Figures) -> f64 {
    figures.bytes_per_s() / 1e6
}

/// CPU of the client's process, in percent of one processor.
fn client_cpu(figures: &Figures) -> f64 {
    figures.cpu_client_us * figures.iops / 1e4
}

/// A cell.
fn cell(spread: Option<Spread>, digits: usize) -> String {
    spread.map_or(NONE.into(), |spread| spread.show(digits))
}

/// The point of these with the highest median of a figure, and that.
fn most<'p>(
    view: &View,
    points: impl IntoIterator<Item = &'p Point>,
    of: fn(&Figures) -> f64,
) -> Option<(&'p Point, Spread)> {
    let found = points.into_iter().filter_map(|point| Some((point, view.spread(point, of)?)));
    found.max_by(|a, b| a.1.median.total_cmp(&b.1.median))
}

/// For people: `reads in order`.
fn pattern_title(pattern: Pattern) -> &'static str {
    match pattern {
        Pattern::Read => "reads in order",
        Pattern::Write => "writes in order",
        Pattern::Mixed => "70 % reads in order",
        Pattern::RandRead => "random reads",
        Pattern::RandWrite => "random writes",
        Pattern::RandMixed => "70 % random reads",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_the_documents() {
        let figures =
            Figures { iops: 1000.0, mib_per_s: 100.0, cpu_client_us: 250.0, ..Figures::default() };
        assert_eq!(mb_per_s(&figures), 104.8576);
        assert_eq!(client_cpu(&figures), 25.0, "a quarter of a processor");
    }
}
