//! Bars in groups, each a stack of parts: where the time of an I/O goes, ours beside the document's.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Serialize;

use super::style::{
    BOTTOM, COLOURS, LEFT, LEGEND, LEGEND_ROW, RIGHT, escape, number, open, round_up, y_axis, y_of,
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
    /// Whose it is: written along it.
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
}

impl Bars {
    /// As SVG.
    pub fn svg(&self, alone: bool) -> String {
        let bars = || self.groups.iter().flat_map(|group| &group.bars);
        let max = round_up(
            bars()
                .map(|bar| bar.spread.map_or(bar.total(), |(_, high)| high.max(bar.total())))
                .fold(0.0, f64::max),
        );
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
        let rows = names.len().div_ceil(4);
        let mut svg = open(&self.title, LEGEND + 20.0 + rows as f64 * LEGEND_ROW, alone);
        y_axis(&mut svg, &self.y_name, max);
        let slots = bars().count() + self.groups.len();
        let width = ((RIGHT - LEFT) / slots.max(1) as f64).min(90.0);
        let mut x = LEFT + width / 2.0;
        for group in &self.groups {
            let start = x;
            for bar in &group.bars {
                draw_bar(&mut svg, bar, x, width * 0.86, max, &colours);
                x += width;
            }
            let _ = writeln!(
                svg,
                "<text class=\"m\" x=\"{:.1}\" y=\"{}\">{}</text>",
                (start + x) / 2.0,
                BOTTOM + 40.0,
                escape(&group.name)
            );
            x += width;
        }
        for (n, name) in names.iter().enumerate() {
            let quarter = (RIGHT - LEFT) / 4.0;
            let (x, y) =
                (LEFT + (n % 4) as f64 * quarter, LEGEND + 12.0 + (n / 4) as f64 * LEGEND_ROW);
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
    let mut below = 0.0;
    for (name, value) in &bar.parts {
        let value = value.max(0.0);
        let (top, bottom) = (y_of(below + value, max), y_of(below, max));
        let n = colours[&name[..]];
        let _ = writeln!(
            svg,
            "<rect class=\"f{}{}\" x=\"{x:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{:.1}\">\
             <title>{}, {}: {}</title></rect>",
            n % COLOURS,
            faded(n),
            bottom - top,
            escape(&bar.name),
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
    let _ = writeln!(
        svg,
        "<text class=\"m s\" x=\"{middle:.1}\" y=\"{:.1}\">{}</text>\
         <text class=\"m s\" x=\"{middle:.1}\" y=\"{}\">{}</text>",
        y_of(bar.spread.map_or(below, |(_, high)| high.max(below)), max) - 4.0,
        // Whole numbers are narrow enough to stand side by side over narrow bars.
        if width < 30.0 { format!("{below:.0}") } else { number(below) },
        BOTTOM + 16.0,
        escape(&bar.name)
    );
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn nothing_is_drawn_too() {
        let svg = Bars { groups: vec![], ..chart() }.svg(false);
        assert!(!svg.contains("NaN") && svg.ends_with("</svg>\n"));
    }
}
