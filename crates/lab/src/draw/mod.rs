//! Small SVG charts: lines over a logarithmic or linear axis with spreads, and stacked bars. Drawn to
//! stand alone and inside the report, in light and dark, without scripts. Why not by a plotting crate:
//! docs/laboratory.md, "Why it draws its charts itself".

mod bars;
mod lines;
mod style;

use serde::Serialize;

pub use bars::{Bar, BarGroup, Bars};
pub use lines::{Line, Lines, Mark, Scale, Spot};
pub use style::{escape, number, style};

/// A chart.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Drawing {
    /// Lines over an axis.
    Lines(Lines),
    /// Bars in groups.
    Bars(Bars),
}

impl Drawing {
    /// The chart as SVG; `alone`: with its style, to be a file of its own.
    pub fn svg(&self, alone: bool) -> String {
        match self {
            Drawing::Lines(lines) => lines.svg(alone),
            Drawing::Bars(bars) => bars.svg(alone),
        }
    }

    /// Whether there is nothing to see.
    pub fn is_empty(&self) -> bool {
        match self {
            Drawing::Lines(lines) => lines.lines.iter().all(|line| line.spots.is_empty()),
            Drawing::Bars(bars) => bars.groups.iter().all(|group| group.bars.is_empty()),
        }
    }

    /// What it shows.
    pub fn title(&self) -> &str {
        match self {
            Drawing::Lines(lines) => &lines.title,
            Drawing::Bars(bars) => &bars.title,
        }
    }
}
