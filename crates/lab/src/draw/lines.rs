//! Lines over an axis: one for each series, with the spread of each point's rounds, and the
//! document's numbers as dashed lines.

use std::fmt::Write;

use serde::Serialize;

use super::style::{
    BOTTOM, COLOURS, LEFT, LEGEND, LEGEND_ROW, RIGHT, columns, escape, number, open, round_up,
    y_axis, y_of,
};
use crate::stats::Spread;

/// How x grows along the axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Scale {
    /// By doubling.
    Log2,
    /// Evenly.
    Linear,
}

/// A chart of lines.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Lines {
    /// What it shows.
    pub title: String,
    /// Name and unit of x.
    pub x_name: String,
    /// Name and unit of y.
    pub y_name: String,
    /// How x grows.
    pub scale: Scale,
    /// What was measured.
    pub lines: Vec<Line>,
    /// What the document says.
    pub marks: Vec<Mark>,
}

/// A series.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Line {
    /// For the legend.
    pub name: String,
    /// In the order of x.
    pub spots: Vec<Spot>,
}

/// A point of a series.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spot {
    /// Its place.
    pub x: f64,
    /// Its rounds.
    pub y: Spread,
}

/// A number of the document.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Mark {
    /// What it is, and where it stands.
    pub name: String,
    /// The number, in the unit of y.
    pub y: f64,
    /// At which x it was said; over all of them if not.
    pub x: Option<f64>,
}

impl Lines {
    /// As SVG.
    pub fn svg(&self, alone: bool) -> String {
        let xs: Vec<f64> = self.lines.iter().flat_map(|l| l.spots.iter().map(|s| s.x)).collect();
        let (mut from, mut to) =
            xs.iter().fold((f64::MAX, f64::MIN), |(a, b), &x| (a.min(x), b.max(x)));
        if self.scale == Scale::Linear {
            from = from.min(0.0);
        }
        if from >= to {
            (from, to) = (from.min(1e9) * 0.5, from.min(1e9) * 2.0 + 1.0);
        }
        let x_of = |x: f64| {
            let share = match self.scale {
                Scale::Log2 => (x / from).log2() / (to / from).log2(),
                Scale::Linear => (x - from) / (to - from),
            };
            LEFT + 10.0 + share * (RIGHT - LEFT - 20.0)
        };
        let highest = self.lines.iter().flat_map(|l| l.spots.iter().map(|s| s.y.max));
        let max = round_up(highest.chain(self.marks.iter().map(|m| m.y)).fold(0.0, f64::max));
        let rows = self.lines.len().div_ceil(self.columns()) + self.marks.len();
        let mut svg = open(&self.title, LEGEND + rows as f64 * LEGEND_ROW, alone);
        y_axis(&mut svg, &self.y_name, max);
        self.x_axis(&mut svg, &xs, from, to, &x_of);
        for (n, line) in self.lines.iter().enumerate() {
            draw_line(&mut svg, n, line, max, &x_of);
        }
        for (n, mark) in self.marks.iter().enumerate() {
            let (y, colour) = (y_of(mark.y, max), (n + 6) % COLOURS);
            match mark.x {
                None => {
                    let _ = writeln!(
                        svg,
                        "<path class=\"d k{colour}\" d=\"M{LEFT} {y:.1}H{RIGHT}\"/>\
                         <text class=\"e s\" x=\"{RIGHT}\" y=\"{:.1}\">{}</text>",
                        y - 4.0,
                        number(mark.y)
                    );
                }
                Some(x) => said(&mut svg, colour, x_of(x.clamp(from, to)), y),
            }
        }
        self.legend(&mut svg);
        svg + "</svg>\n"
    }

    fn x_axis(&self, svg: &mut String, xs: &[f64], from: f64, to: f64, x_of: &dyn Fn(f64) -> f64) {
        let mut ticks: Vec<f64> = match self.scale {
            // Where something was measured.
            Scale::Log2 => xs.to_vec(),
            Scale::Linear => {
                let step = round_up((to - from) / 8.0);
                (0..=((to - from) / step) as usize).map(|n| from + n as f64 * step).collect()
            }
        };
        ticks.sort_by(f64::total_cmp);
        ticks.dedup();
        for tick in ticks {
            let x = x_of(tick);
            let _ = writeln!(
                svg,
                "<path class=\"g\" d=\"M{x:.1} {BOTTOM}v4\"/><text class=\"m\" x=\"{x:.1}\" y=\"{}\">{}</text>",
                BOTTOM + 18.0,
                number(tick)
            );
        }
        let (middle, y) = ((LEFT + RIGHT) / 2.0, BOTTOM + 36.0);
        let _ = writeln!(
            svg,
            "<text class=\"m\" x=\"{middle}\" y=\"{y}\">{}</text>",
            escape(&self.x_name)
        );
    }

    fn columns(&self) -> usize {
        columns(self.lines.iter().map(|line| &line.name[..]), 30.0, 2)
    }

    fn legend(&self, svg: &mut String) {
        let columns = self.columns();
        let width = (RIGHT - LEFT) / columns as f64;
        for (n, line) in self.lines.iter().enumerate() {
            let x = LEFT + (n % columns) as f64 * width;
            let y = LEGEND + (n / columns) as f64 * LEGEND_ROW;
            let (colour, faded) = (n % COLOURS, if line.spots.is_empty() { " h" } else { "" });
            let _ = write!(
                svg,
                "<g class=\"s{faded}\"><path class=\"l k{colour}\" d=\"M{x} {y}h22\"/>"
            );
            symbol(svg, "o", colour, n, x + 11.0, y, 4.0);
            let none = if line.spots.is_empty() { " (no figures)" } else { "" };
            let _ = writeln!(
                svg,
                "<text x=\"{}\" y=\"{}\">{}{none}</text></g>",
                x + 30.0,
                y + 4.0,
                escape(&line.name)
            );
        }
        let from = LEGEND + self.lines.len().div_ceil(columns) as f64 * LEGEND_ROW;
        for (n, mark) in self.marks.iter().enumerate() {
            let (y, colour) = (from + n as f64 * LEGEND_ROW, (n + 6) % COLOURS);
            match mark.x {
                None => {
                    let _ = write!(svg, "<path class=\"d k{colour}\" d=\"M{LEFT} {y}h22\"/>");
                }
                Some(_) => said(svg, colour, LEFT + 11.0, y),
            }
            let _ = writeln!(
                svg,
                "<text class=\"s\" x=\"{}\" y=\"{}\">document: {}</text>",
                LEFT + 30.0,
                y + 4.0,
                escape(&mark.name)
            );
        }
    }
}

fn draw_line(svg: &mut String, n: usize, line: &Line, max: f64, x_of: &dyn Fn(f64) -> f64) {
    let colour = n % COLOURS;
    let mut path = String::new();
    for (i, spot) in line.spots.iter().enumerate() {
        let _ = write!(
            path,
            "{}{:.1} {:.1}",
            if i == 0 { 'M' } else { 'L' },
            x_of(spot.x),
            y_of(spot.y.median, max)
        );
    }
    if line.spots.len() > 1 {
        let _ = writeln!(svg, "<path class=\"l k{colour}\" d=\"{path}\"/>");
    }
    for spot in &line.spots {
        let (x, y) = (x_of(spot.x), y_of(spot.y.median, max));
        if spot.y.rounds > 1 {
            let (low, high) = (y_of(spot.y.min, max), y_of(spot.y.max, max));
            let _ = writeln!(
                svg,
                "<path class=\"r k{colour}\" d=\"M{x:.1} {low:.1}V{high:.1}m-3 0h6M{:.1} {low:.1}h6\"/>",
                x - 3.0
            );
        }
        symbol(svg, "o", colour, n, x, y, 4.0);
    }
}

/// What the document says of one x: full, since what was measured is hollow.
fn said(svg: &mut String, colour: usize, x: f64, y: f64) {
    symbol(svg, &format!("o f{colour}"), colour, 3, x, y, 6.0);
}

/// Shapes tell series apart where colours do not.
fn symbol(svg: &mut String, class: &str, colour: usize, shape: usize, x: f64, y: f64, r: f64) {
    let _ = match shape % 4 {
        0 => writeln!(
            svg,
            "<circle class=\"{class} k{colour}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{r}\"/>"
        ),
        1 => writeln!(
            svg,
            "<rect class=\"{class} k{colour}\" x=\"{:.1}\" y=\"{:.1}\" width=\"{}\" height=\"{}\"/>",
            x - r,
            y - r,
            2.0 * r,
            2.0 * r
        ),
        2 => writeln!(
            svg,
            "<path class=\"{class} k{colour}\" d=\"M{x:.1} {:.1}l{r} {}h-{}z\"/>",
            y - r,
            2.0 * r,
            2.0 * r
        ),
        _ => writeln!(
            svg,
            "<path class=\"{class} k{colour}\" d=\"M{x:.1} {:.1}l{r} {r}l-{r} {r}l-{r} -{r}z\"/>",
            y - r
        ),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart() -> Lines {
        let spot = |x: f64, y: f64| Spot { x, y: Spread::of([y * 0.9, y, y * 1.1]).unwrap() };
        Lines {
            title: "Reads < 4 KiB".into(),
            x_name: "outstanding".into(),
            y_name: "%".into(),
            scale: Scale::Log2,
            lines: vec![
                Line {
                    name: "ours".into(),
                    spots: vec![spot(1.0, 10.0), spot(4.0, 40.0), spot(16.0, 80.0)],
                },
                Line { name: "absent".into(), spots: vec![] },
            ],
            marks: vec![Mark { name: "at most 56 % (Figure 1)".into(), y: 56.0, x: None }],
        }
    }

    fn numbers_after<'a>(svg: &'a str, before: &'a str) -> Vec<f64> {
        svg.match_indices(before)
            .map(|(at, _)| {
                let rest = &svg[at + before.len()..];
                rest[..rest.find('"').unwrap()].parse().unwrap()
            })
            .collect()
    }

    #[test]
    fn doublings_are_equally_far_apart_and_more_is_higher() {
        let svg = chart().svg(true);
        let xs = &numbers_after(&svg, "class=\"o k0\" cx=\"")[..3];
        let ys: Vec<f64> = svg
            .split("class=\"o k0\" cx=\"")
            .skip(1)
            .take(3)
            .map(|s| s.split("cy=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap())
            .collect();
        assert!(((xs[1] - xs[0]) - (xs[2] - xs[1])).abs() < 0.2, "{xs:?}");
        assert!(ys[0] > ys[1] && ys[1] > ys[2], "{ys:?}");
        // 88 is the highest, so the axis ends at 100: 40 is at 40 % of its height.
        assert!((ys[1] - y_of(40.0, 100.0)).abs() < 0.1);
    }

    #[test]
    fn everything_is_inside_named_and_escaped() {
        let svg = chart().svg(true);
        assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"));
        assert!(svg.contains("Reads &lt; 4 KiB") && !svg.contains("Reads < "));
        assert!(svg.contains("document: at most 56 % (Figure 1)"));
        assert!(svg.contains("absent (no figures)"));
        assert!(svg.contains("class=\"d k6\""), "the document's number is a dashed line");
        assert!(svg.contains("prefers-color-scheme:dark"));
        assert!(
            !svg.contains("NaN") && !svg.contains("inf") && !svg.contains("http://www.w3.org/1999")
        );
        assert!(!chart().svg(false).contains("<style>"), "in the report the style stands once");
    }

    #[test]
    fn what_the_document_says_of_one_x_is_a_full_diamond_in_the_plot_and_in_the_legend() {
        let mut chart = chart();
        let mark = |x| Mark { name: "90 % at 4".into(), y: 90.0, x };
        chart.marks = vec![mark(Some(4.0))];
        let svg = chart.svg(true);
        assert_eq!(svg.matches("class=\"o f6 k6\"").count(), 2);
        assert!(!svg.contains("class=\"d "), "dashes would leave nothing of so small a shape");
        chart.marks = vec![mark(None)];
        assert!(!chart.svg(true).contains("f6 k6"));
    }

    #[test]
    fn nothing_and_a_single_point_are_drawn_too() {
        let mut chart = chart();
        chart.lines[0].spots.truncate(1);
        for _ in 0..2 {
            for scale in [Scale::Log2, Scale::Linear] {
                chart.scale = scale;
                let svg = chart.svg(true);
                assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
            }
            chart.lines.clear();
            chart.marks.clear();
        }
    }
}
