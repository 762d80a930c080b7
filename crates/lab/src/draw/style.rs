//! What charts of both kinds share: the canvas, colours, axes, numbers.

use std::fmt::Write;

/// Width of a chart in its own units.
pub const WIDTH: f64 = 720.0;
/// Height of the part that is drawn in.
pub const PLOT_HEIGHT: f64 = 300.0;
/// Where the plot begins and ends, in x.
pub const LEFT: f64 = 64.0;
pub const RIGHT: f64 = WIDTH - 16.0;
/// Where it begins and ends, in y.
pub const TOP: f64 = 34.0;
pub const BOTTOM: f64 = TOP + PLOT_HEIGHT;
/// Where the legend begins.
pub const LEGEND: f64 = BOTTOM + 54.0;
/// Height of a row of the legend.
pub const LEGEND_ROW: f64 = 18.0;
/// Series that can be told apart by colour; with more, colours repeat and shapes differ.
pub const COLOURS: usize = 8;

/// Colours of one mode.
struct Mode {
    text: &'static str,
    grid: &'static str,
    axis: &'static str,
    paper: &'static str,
    /// That colour-blind people tell apart (after Okabe and Ito).
    series: [&'static str; COLOURS],
}

const LIGHT: Mode = Mode {
    text: "#222",
    grid: "#ddd",
    axis: "#666",
    paper: "#fff",
    series: [
        "#0072b2", "#d55e00", "#009e73", "#a0468b", "#b58a00", "#3a9bd8", "#5a5a5a", "#8a5a3c",
    ],
};

const DARK: Mode = Mode {
    text: "#ddd",
    grid: "#3a3a3a",
    axis: "#999",
    paper: "#1b1b1b",
    series: [
        "#56b4e9", "#ff8c42", "#2fd0a0", "#e08fc8", "#f0d040", "#8ecdf5", "#b0b0b0", "#d0a080",
    ],
};

/// Shapes and fonts.
const SHAPES: &str = "\
.tw{font:12px system-ui,sans-serif}.tw .g,.tw .a,.tw .l,.tw .d{fill:none}\
.tw .t{font-weight:600;font-size:13px}.tw .m{text-anchor:middle}.tw .e{text-anchor:end}\
.tw .l{stroke-width:1.8}.tw .r{stroke-width:1.2;opacity:.55}.tw .d{stroke-dasharray:6 4}\
.tw .s{font-size:11px}.tw .o{stroke-width:1.5}.tw .h{opacity:.5}\n";

/// The style of all charts, in light and dark. Colours are spelled out: not every program that shows
/// SVG knows variables.
pub fn style() -> String {
    let rules = |mode: &Mode| {
        let Mode { text, grid, axis, paper, series } = mode;
        let mut rules = format!(
            ".tw{{fill:{text}}}.tw .p{{fill:{paper}}}.tw .o{{fill:{paper}}}.tw .g{{stroke:{grid}}}\
             .tw .a{{stroke:{axis}}}"
        );
        for (n, colour) in series.iter().enumerate() {
            let _ = write!(rules, ".tw .k{n}{{stroke:{colour}}}.tw .f{n}{{fill:{colour}}}");
        }
        rules
    };
    format!("{SHAPES}{}\n@media (prefers-color-scheme:dark){{{}}}", rules(&LIGHT), rules(&DARK))
}

/// Opens a chart: the root element, its title and, for a file of its own, style and ground.
pub fn open(title: &str, height: f64, alone: bool) -> String {
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"tw\" viewBox=\"0 0 {WIDTH} {height:.0}\" \
         role=\"img\"><title>{}</title>\n",
        escape(title)
    );
    if alone {
        let _ = write!(
            svg,
            "<style>{}</style>\n<rect class=\"p\" width=\"100%\" height=\"100%\"/>\n",
            style()
        );
    }
    let _ = writeln!(svg, "<text class=\"t\" x=\"{LEFT}\" y=\"18\">{}</text>", escape(title));
    svg
}

/// The y axis with its grid and name; returns nothing, draws from 0 to `max`.
pub fn y_axis(svg: &mut String, name: &str, max: f64) {
    let step = step(max);
    let mut value = 0.0;
    while value <= max * 1.0001 {
        let y = y_of(value, max);
        let _ = writeln!(
            svg,
            "<path class=\"g\" d=\"M{LEFT} {y:.1}H{RIGHT}\"/><text class=\"e\" x=\"{}\" y=\"{:.1}\">{}</text>",
            LEFT - 6.0,
            y + 4.0,
            number(value)
        );
        value += step;
    }
    let middle = (TOP + BOTTOM) / 2.0;
    let _ = writeln!(
        svg,
        "<text class=\"m\" transform=\"translate(14 {middle}) rotate(-90)\">{}</text>\
         <path class=\"a\" d=\"M{LEFT} {TOP}V{BOTTOM}H{RIGHT}\"/>",
        escape(name)
    );
}

/// Width of a small letter. Nobody can know the reader's font: this is one of a wide one.
pub const LETTER: f64 = 5.6;

/// How many columns of a legend there is room for, at most `most`; `symbol` is the width of what stands
/// before a name.
pub fn columns<'a>(names: impl Iterator<Item = &'a str>, symbol: f64, most: usize) -> usize {
    let letters = names.map(|name| name.chars().count()).max().unwrap_or(0);
    let width = symbol + letters as f64 * LETTER + 10.0;
    (((RIGHT - LEFT) / width) as usize).clamp(1, most)
}

/// Where a value stands.
pub fn y_of(value: f64, max: f64) -> f64 {
    BOTTOM - value.clamp(0.0, max) / max * PLOT_HEIGHT
}

/// An axis that ends on a round number at or above a value.
pub fn round_up(value: f64) -> f64 {
    if !value.is_finite() || value <= 0.0 {
        return 1.0;
    }
    let step = step(value);
    (value / step - 1e-9).ceil() * step
}

/// The distance of grid lines: 1, 2 or 5 times a power of ten, at most six lines.
fn step(max: f64) -> f64 {
    let rough = max / 6.0;
    let power = 10_f64.powf(rough.log10().floor());
    [1.0, 2.0, 5.0, 10.0].iter().map(|m| m * power).find(|s| *s >= rough * 0.999).unwrap_or(power)
}

/// A number on an axis: `250 k` rather than 250000.
pub fn number(value: f64) -> String {
    let trim = |text: String| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    };
    match value.abs() {
        v if v >= 1e6 => trim(format!("{:.2}", value / 1e6)) + " M",
        v if v >= 1e4 => trim(format!("{:.1}", value / 1e3)) + " k",
        v if v >= 100.0 || v == 0.0 => format!("{value:.0}"),
        v if v >= 1.0 => trim(format!("{value:.2}")),
        _ => trim(format!("{value:.3}")),
    }
}

/// Text as XML and HTML hold it.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_end_on_round_numbers() {
        for (value, end) in [(97.0, 100.0), (100.0, 100.0), (101.0, 120.0), (0.0, 1.0), (3.2, 4.0)]
        {
            assert_eq!(round_up(value), end, "{value}");
        }
        assert_eq!(round_up(f64::NAN), 1.0);
        for max in [0.3, 1.0, 7.0, 88.0, 12345.0, 4e6] {
            let lines = (round_up(max) / step(round_up(max))).round();
            assert!((2.0..=6.0).contains(&lines), "{max}: {lines} lines");
        }
    }

    #[test]
    fn numbers_are_short() {
        let cases = [(0.0, "0"), (0.5, "0.5"), (12.5, "12.5"), (250.0, "250"), (9999.0, "9999")];
        for (value, text) in cases.into_iter().chain([(250_000.0, "250 k"), (1_500_000.0, "1.5 M")])
        {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn text_is_escaped() {
        assert_eq!(escape("a<b & \"c\">"), "a&lt;b &amp; &quot;c&quot;&gt;");
    }
}
