//! Bars in groups, each a stack of parts: where the time of an I/O goes, ours beside the document's.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Serialize;

use super::style::{
    BOTTOM, COLOURS, LEFT, LEGEND, LEGEND_ROW, RIGHT, columns, escape, number, open, round_up,
    y_axis, y_of,
};

/// A chart of bars.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Bars {
    /// What it shows.
    pub title: String,
    /// Name and unit of y.
    pub y_name: String,
    /// From left to right.
    pub groups: Vec<BarGroup>,
}

/// Bars that stand together.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BarGroup {
    /// Below them.
    pub name: String,
    /// From left to right.
    pub bars: Vec<Bar>,
}

/// A bar.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Bar {
    /// Whose it is: written below it. Empty where there is no room and its parts' names tell.
    pub name: String,
    /// From the bottom up; a single part for a bar that is not divided.
    pub parts: Vec<(String, f64)>,
    /// Lowest and highest total over the rounds, if there were several.
    pub spread: Option<(f64, f64)>,
}

impl Bar {
    fn total(&self) -> f64 {
        self.parts.iter().map(|(_, value)| value.max(0.0)).sum()
    }

    fn highest(&self) -> f64 {
        self.spread.map_or(self.total(), |(_, high)| high.max(self.total()))
    }
}

impl Bars {
    /// As SVG.
    pub fn svg(&self, alone: bool) -> String {
        let bars = || self.groups.iter().flat_map(|group| &group.bars);
        let slot = self.slot();
        let width = slot * 0.86;
        let highest = bars().map(Bar::highest).fold(0.0, f64::max);
        // A number that stands upright needs room above the highest bar.
        let max = round_up(if is_narrow(width) { highest * 1.1 } else { highest });
        // Colours by part, in the order in which they first appear.
        let mut colours: BTreeMap<&str, usize> = BTreeMap::new();
        let mut names: Vec<&str> = Vec::new();
        for (name, _) in bars().flat_map(|bar| &bar.parts) {
            let next = colours.len();
            colours.entry(name).or_insert_with(|| {
                names.push(name);
                next
            });
        }
        let columns = columns(names.iter().copied(), 18.0, 4);
        let rows = names.len().div_ceil(columns);
        let mut svg = open(&self.title, LEGEND + 20.0 + rows as f64 * LEGEND_ROW, alone);
        y_axis(&mut svg, &self.y_name, max);
        let mut x = LEFT + slot / 2.0;
        for group in &self.groups {
            let start = x;
            for bar in &group.bars {
                draw_bar(&mut svg, bar, x, width, max, &colours);
                x += slot;
            }
            let _ = writeln!(
                svg,
                "<text class=\"m\" x=\"{:.1}\" y=\"{}\">{}</text>",
                (start + x) / 2.0,
                BOTTOM + 40.0,
                escape(&group.name)
            );
            x += slot;
        }
        for (n, name) in names.iter().enumerate() {
            let (column, row) = ((n % columns) as f64, (n / columns) as f64);
            let x = LEFT + column * ((RIGHT - LEFT) / columns as f64).floor();
            let y = LEGEND + 12.0 + row * LEGEND_ROW;
            let _ = writeln!(
                svg,
                "<g class=\"s\"><rect class=\"f{}{}\" x=\"{x}\" y=\"{}\" width=\"12\" height=\"12\"/>\
                 <text x=\"{}\" y=\"{}\">{}</text></g>",
                n % COLOURS,
                faded(n),
                y - 10.0,
                x + 18.0,
                y,
                escape(name)
            );
        }
        svg + "</svg>\n"
    }

    /// From the beginning of a bar to that of the next; as much is left free behind each group.
    fn slot(&self) -> f64 {
        let slots = self.groups.iter().map(|group| group.bars.len() + 1).sum::<usize>();
        ((RIGHT - LEFT) / slots.max(1) as f64).min(90.0)
    }

    /// Whether the names below the bars stand beside each other.
    #[cfg(test)]
    pub fn names_fit(&self) -> bool {
        let mut bars = self.groups.iter().flat_map(|group| &group.bars);
        bars.all(|bar| bar.name.chars().count() as f64 * super::style::LETTER <= self.slot())
    }
}

/// Whether the numbers over bars of this width would run into each other.
fn is_narrow(width: f64) -> bool {
    width < 30.0
}

/// The second turn of the colours is paler.
fn faded(n: usize) -> &'static str {
    if n / COLOURS % 2 == 1 { " h" } else { "" }
}

fn draw_bar(
    svg: &mut String,
    bar: &Bar,
    x: f64,
    width: f64,
    max: f64,
    colours: &BTreeMap<&str, usize>,
) {
    if bar.parts.iter().any(|(name, _)| !faded(colours[&name[..]]).is_empty()) {
        // The grid would shine through.
        let top = y_of(bar.total(), max);
        let _ = writeln!(
            svg,
            "<rect class=\"p\" x=\"{x:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{:.1}\"/>",
            BOTTOM - top
        );
    }
    let whose = if bar.name.is_empty() { String::new() } else { escape(&bar.name) + ", " };
    let mut below = 0.0;
    for (name, value) in &bar.parts {
        let value = value.max(0.0);
        let (top, bottom) = (y_of(below + value, max), y_of(below, max));
        let n = colours[&name[..]];
        let _ = writeln!(
            svg,
            "<rect class=\"f{}{}\" x=\"{x:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{:.1}\">\
             <title>{whose}{}: {}</title></rect>",
            n % COLOURS,
            faded(n),
            bottom - top,
            escape(name),
            number(value)
        );
        below += value;
    }
    let middle = x + width / 2.0;
    if let Some((low, high)) = bar.spread {
        let _ = writeln!(
            svg,
            "<path class=\"a\" d=\"M{middle:.1} {:.1}V{:.1}\"/>",
            y_of(low, max),
            y_of(high, max)
        );
    }
    let y = y_of(bar.highest(), max) - 4.0;
    let _ = match is_narrow(width) {
        false => write!(
            svg,
            "<text class=\"m s\" x=\"{middle:.1}\" y=\"{y:.1}\">{}</text>",
            number(below)
        ),
        true => write!(
            svg,
            "<text class=\"s\" transform=\"translate({:.1} {y:.1}) rotate(-90)\">{}</text>",
            middle + 4.0,
            number(below)
        ),
    };
    let _ = writeln!(
        svg,
        "<text class=\"m s\" x=\"{middle:.1}\" y=\"{}\">{}</text>",
        BOTTOM + 16.0,
        escape(&bar.name)
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draw::style::TOP;

    fn chart() -> Bars {
        let bar = |name: &str, a: f64, b: f64| Bar {
            name: name.into(),
            parts: vec![("send".into(), a), ("receive".into(), b)],
            spread: Some((a + b - 5.0, a + b + 5.0)),
        };
        let group = BarGroup {
            name: "4 KiB".into(),
            bars: vec![bar("ours", 20.0, 30.0), bar("document", 40.0, 55.0)],
        };
        Bars { title: "Where it goes".into(), y_name: "us".into(), groups: vec![group] }
    }

    #[test]
    fn parts_stand_on_each_other() {
        let svg = chart().svg(true);
        let rects: Vec<(f64, f64)> = svg
            .split("<rect class=\"f")
            .skip(1)
            .take(4)
            .map(|s| {
                let after = |name: &str| {
                    s.split(name).nth(1).unwrap().split('"').next().unwrap().parse().unwrap()
                };
                (after("y=\""), after("height=\""))
            })
            .collect();
        assert!((rects[0].0 + rects[0].1 - BOTTOM).abs() < 0.11, "the first stands on the ground");
        assert!((rects[1].0 + rects[1].1 - rects[0].0).abs() < 0.11, "the second on the first");
        assert!((rects[1].1 / rects[0].1 - 1.5).abs() < 0.01, "30 is half as much again as 20");
        assert_eq!(svg.matches("class=\"f0\"").count(), 3, "two bars and the legend");
    }

    #[test]
    fn totals_of_narrow_bars_stand_upright_below_the_top() {
        let upright = "<text class=\"s\" transform=";
        assert!(!chart().svg(true).contains(upright), "there is room for them side by side");
        let mut narrow = chart();
        narrow.groups = vec![narrow.groups[0].clone(); 12];
        // The tallest, without a spread, ends on a line of the grid.
        narrow.groups[0].bars[1] =
            Bar { name: "most".into(), parts: vec![("send".into(), 100.0)], spread: None };
        let svg = narrow.svg(true);
        assert_eq!(svg.matches(upright).count(), 24, "one over each bar");
        let top = svg.split("<title>most, send: 100</title>").next().unwrap();
        let top = top.rsplit(" y=\"").next().unwrap().split('"').next().unwrap();
        assert!(top.parse::<f64>().unwrap() > TOP + 20.0, "room for three digits: {top}");
    }

    #[test]
    fn long_names_get_wider_columns() {
        let columns = |name: &str| {
            let bar = |n: usize| Bar {
                name: String::new(),
                parts: vec![(format!("{name} {n}"), 1.0)],
                spread: None,
            };
            let group = BarGroup { name: "4 KiB".into(), bars: (0..8).map(bar).collect() };
            let svg = Bars { groups: vec![group], ..chart() }.svg(true);
            let legend: Vec<&str> = svg.split("<g class=\"s\"><rect").skip(1).collect();
            assert_eq!(legend.len(), 8);
            assert!(!svg.contains("<title>, "), "a bar without a name");
            let y = |entry: &str| {
                entry.split(" y=\"").nth(1).unwrap().split('"').next().unwrap().to_owned()
            };
            legend.iter().filter(|entry| y(entry) == y(legend[0])).count()
        };
        assert_eq!(columns("echo"), 4);
        assert_eq!(columns("single, inline, submission queue"), 2);
        assert_eq!(columns(&"long ".repeat(40)), 1);
    }

    #[test]
    fn the_grid_does_not_shine_through_pale_parts() {
        let mut chart = chart();
        assert!(!chart.svg(false).contains("class=\"p\""));
        chart.groups[0].bars[0].parts = (0..9).map(|n| (n.to_string(), 1.0)).collect();
        let svg = chart.svg(false);
        let (paper, pale) = (svg.find("class=\"p\"").unwrap(), svg.find("class=\"f0 h\"").unwrap());
        assert!(paper < pale, "paper below it");
    }

    #[test]
    fn nothing_is_drawn_too() {
        let svg = Bars { groups: vec![], ..chart() }.svg(false);
        assert!(!svg.contains("NaN") && svg.ends_with("</svg>\n"));
    }
}
