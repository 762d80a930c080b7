//! What the experiments show, written down: JSON and SVG for each, and one HTML page for all, which
//! needs nothing but itself.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::draw::{escape, style};
use crate::error::{Outcome, failed};
use crate::experiments::{Bar, Experiment, ExperimentSuite, Judged, Section, Table};
use crate::identity::Provenance;
use crate::plan::Form;
use crate::remarks::Remarks;
use crate::store::SampleStore;
use crate::view::View;

/// Version of the JSON files' format.
const SCHEMA: u32 = 1;

/// What stands at the head of every file.
#[derive(Clone, Debug, Serialize)]
pub struct ReportHead {
    /// Version of the format.
    pub schema: u32,
    /// `quick` or `full`.
    pub form: &'static str,
    /// Build and machine.
    #[serde(flatten)]
    pub identity: Provenance,
    /// What the caller said about it, such as the commit.
    pub label: String,
    /// When the first and the last sample were taken, in UTC.
    pub measured: String,
}

impl ReportHead {
    /// Of what a store holds.
    pub fn new(identity: Provenance, label: &str, form: Form, store: &SampleStore) -> Self {
        let measured = match store.span() {
            Some((from, to)) => format!("{} to {} UTC", utc(from), utc(to)),
            None => "never".into(),
        };
        let form = if form == Form::Quick { "quick" } else { "full" };
        ReportHead { schema: SCHEMA, form, identity, label: label.into(), measured }
    }
}

/// A file's content: head and section.
#[derive(Serialize)]
struct File<'a> {
    #[serde(flatten)]
    head: &'a ReportHead,
    experiment: &'static str,
    #[serde(flatten)]
    section: &'a Section,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    bars: Vec<Judged>,
}

/// Writes an experiment's JSON and SVG files into a folder and returns the JSON.
pub fn write_experiment(
    folder: &Path,
    head: &ReportHead,
    experiment: Experiment,
    view: &View,
) -> Outcome<(Section, String)> {
    let section = experiment.section(view);
    let bars =
        if experiment == Experiment::Bars { ExperimentSuite::Tyche.bars(view) } else { Vec::new() };
    let bars = bars.into_iter().map(Bar::judged).collect();
    let file = File { head, experiment: experiment.name(), section: &section, bars };
    let json = serde_json::to_string(&file).expect("own types are valid JSON");
    put(&folder.join(format!("{}.json", experiment.name())), &json)?;
    for (name, drawing) in &section.drawings {
        put(&folder.join(format!("{}-{name}.svg", experiment.name())), &drawing.svg(true))?;
    }
    Ok((section, json))
}

/// Writes all files of a suite's experiments and its page; returns the page's path and whether each bar was met.
pub fn write_report(
    folder: &Path,
    head: &ReportHead,
    suite: ExperimentSuite,
    view: &View,
    remarks: &Remarks,
) -> Outcome<(PathBuf, [usize; 3])> {
    let mut body = String::new();
    let mut contents = String::new();
    let others = remarks.of_others(&head.label, head.form);
    for experiment in suite.experiments() {
        let (section, _) = write_experiment(folder, head, experiment, view)?;
        let _ = write!(
            contents,
            "<li><a href=\"#{}\">{}</a></li>",
            experiment.name(),
            escape(&section.title)
        );
        body += &html_section(experiment, &section, remarks.on(experiment), others);
    }
    let mut count = [0; 3];
    for bar in suite.bars(view) {
        count[match bar.met() {
            Some(true) => 0,
            Some(false) => 1,
            None => 2,
        }] += 1;
    }
    let path = folder.join(match suite {
        ExperimentSuite::Tyche => "report.html",
        ExperimentSuite::Orchestra => "orchestra.html",
    });
    put(&path, &page(head, suite, &contents, &body, count))?;
    Ok((path, count))
}

/// Whole or not at all.
fn put(path: &Path, text: &str) -> Outcome {
    let part = path.with_extension("part");
    std::fs::write(&part, text)
        .and_then(|()| std::fs::rename(&part, path))
        .map_err(failed(format!("cannot write {}", path.display())))
}

const PAGE_STYLE: &str = "\
:root{color-scheme:light dark;--bg:#fff;--fg:#222;--line:#ccc;--soft:#666;--good:#00714d;--bad:#b00020}
@media (prefers-color-scheme:dark){:root{--bg:#1b1b1b;--fg:#ddd;--line:#444;--soft:#999;--good:#4fd6a5;--bad:#ff8a80}}
body{background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.6rem}h2{margin-top:3rem;border-top:1px solid var(--line);padding-top:1rem}
table{border-collapse:collapse;font-size:13px;margin:.5rem 0 1.5rem}caption{text-align:left;font-weight:600;padding:.3rem 0}
td,th{border:1px solid var(--line);padding:.15rem .5rem;text-align:right}td:first-child,th:first-child{text-align:left}
.wide{overflow-x:auto}.soft{color:var(--soft)}.met{color:var(--good);font-weight:600}.missed{color:var(--bad);font-weight:600}
.remark{border-left:3px solid var(--line);padding-left:.8rem}
.marked{border:2px solid var(--bad);padding:.5rem 1rem}svg.tw{width:100%;height:auto;max-width:46rem;display:block;margin:.5rem 0}
a{color:inherit}";

fn page(
    head: &ReportHead,
    suite: ExperimentSuite,
    contents: &str,
    body: &str,
    [met, missed, open]: [usize; 3],
) -> String {
    let (authors, title) = suite.document();
    let (name, full) = match suite {
        ExperimentSuite::Tyche => ("laboratory report", "make lab-full"),
        ExperimentSuite::Orchestra => ("volumes made of volumes", "make lab-orchestra-full"),
    };
    let quick = match head.form {
        "quick" => format!(
            "<p class=\"marked\">This is the <b>quick</b> form: a subset of the points in fewer rounds. \
             Points that it leaves out are not drawn. The full form is <code>{full}</code>.</p>"
        ),
        _ => String::new(),
    };
    let mut left = String::new();
    for why in suite.not_repeated() {
        let _ = write!(left, "<li>{}</li>", escape(&why));
    }
    if !left.is_empty() {
        left = format!("<p class=\"soft\">Of that document:</p><ul class=\"soft\">{left}</ul>\n");
    }
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <title>Thinwire: {name}</title>\n<style>{PAGE_STYLE}\n{}</style></head>\n<body>\n\
         <h1>Thinwire: {name}</h1>\n{quick}\n\
         <p>Bars: <span class=\"met\">{met} met</span>, <span class=\"missed\">{missed} missed</span>, {open} not or \
         only partly measured.</p>\n\
         <p class=\"soft\">{} {}, measured {}. {}; {}.</p>\n\
         <p>All sides and the switch are network namespaces of one machine: compare figures of a section, \
         do not take them for those of two machines. Dashed lines, full diamonds and columns called “document” are the \
         numbers of {}, “{}”. Figures are medians over rounds in which all contenders took their turns; \
         bars and parentheses show the least and the most.</p>\n{left}<ol>{contents}</ol>\n{body}</body></html>\n",
        style(),
        escape(&head.identity.build),
        escape(&head.label),
        escape(&head.measured),
        escape(&head.identity.machine),
        escape(&head.identity.peers),
        escape(&authors),
        escape(title),
    )
}

/// `others`: for which figures the remarks were written, if not for these.
fn html_section(
    experiment: Experiment,
    section: &Section,
    remarks: &[String],
    others: Option<&str>,
) -> String {
    let mut html = format!("<h2 id=\"{}\">{}</h2>\n", experiment.name(), escape(&section.title));
    for paragraph in &section.text {
        let _ = writeln!(html, "<p>{}</p>", escape(paragraph));
    }
    if !section.missing.is_empty() {
        html += "<p class=\"soft\">Not there:</p><ul class=\"soft\">";
        for why in &section.missing {
            let _ = write!(html, "<li>{}</li>", escape(why));
        }
        html += "</ul>\n";
    }
    for (_, drawing) in &section.drawings {
        match drawing.is_empty() {
            true => {
                let _ = writeln!(
                    html,
                    "<p class=\"soft\">{}: no figures.</p>",
                    escape(drawing.title())
                );
            }
            false => html += &drawing.svg(false),
        }
    }
    for table in &section.tables {
        html += &html_table(table);
    }
    if let Some(others) = others.filter(|_| !remarks.is_empty()) {
        let _ = writeln!(
            html,
            "<p class=\"remark\"><b>These remarks were written for other figures: {}.</b></p>",
            escape(others)
        );
    }
    for remark in remarks {
        let _ = writeln!(html, "<p class=\"remark\">{}</p>", escape(remark));
    }
    html
}

fn html_table(table: &Table) -> String {
    let mut html =
        format!("<div class=\"wide\"><table><caption>{}</caption><tr>", escape(&table.title));
    for head in &table.header {
        let _ = write!(html, "<th>{}</th>", escape(head));
    }
    html += "</tr>\n";
    for row in &table.rows {
        html += "<tr>";
        for cell in row {
            let class = match &cell[..] {
                "met" => " class=\"met\"",
                "missed" => " class=\"missed\"",
                _ => "",
            };
            let _ = write!(html, "<td{class}>{}</td>", escape(cell));
        }
        html += "</tr>\n";
    }
    html + "</table></div>\n"
}

/// `2026-11-21 20:15` of seconds since 1970 (the civil calendar, after H. Hinnant's algorithm).
fn utc(seconds: u64) -> String {
    let (days, rest) = ((seconds / 86_400) as i64, seconds % 86_400);
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let day_of_era = z.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year}-{month:02}-{day:02} {:02}:{:02}", rest / 3600, rest % 3600 / 60)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::tests::folder;

    #[test]
    fn the_page_stands_alone() {
        let folder = folder("page");
        let store = SampleStore::open(&folder, "b", "m").unwrap();
        let identity = Provenance {
            build: "thinwire <1>".into(),
            machine: "m".into(),
            peers: "nbdkit 1.0".into(),
        };
        let head = ReportHead::new(identity, "commit abc", Form::Quick, &store);
        let remarks = folder.join("remarks.md");
        std::fs::write(&remarks, "Written for: commit abc, full form\n## fig5\nBecause a < b.\n")
            .unwrap();
        let remarks = Remarks::read(&remarks).unwrap();
        let view = View::new(&store, &ExperimentSuite::Tyche.plan(), Form::Quick);
        let (path, count) =
            write_report(&folder, &head, ExperimentSuite::Tyche, &view, &remarks).unwrap();
        let html = std::fs::read_to_string(path).unwrap();
        assert!(
            html.contains("thinwire &lt;1&gt; commit abc")
                && html.contains("m; nbdkit 1.0")
                && html.contains("quick")
        );
        assert!(html.contains("<p class=\"remark\">Because a &lt; b.</p>"));
        let marks = html.matches("written for other figures: commit abc, full form").count();
        assert_eq!(marks, 1, "this is the quick form, and one experiment has remarks");
        for reference in ["<script", "src=", "href=\"http", "@import", "url("] {
            assert!(!html.contains(reference), "{reference}");
        }
        for experiment in ExperimentSuite::Tyche.experiments() {
            assert!(html.contains(&format!("<h2 id=\"{}\">", experiment.name())));
            let json = std::fs::read(folder.join(format!("{}.json", experiment.name()))).unwrap();
            let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
            assert_eq!((json["schema"].as_u64(), json["form"].as_str()), (Some(1), Some("quick")));
        }
        let bars = std::fs::read(folder.join("bars.json")).unwrap();
        let bars: serde_json::Value = serde_json::from_slice(&bars).unwrap();
        assert_eq!(bars["bars"][0]["verdict"], "not measured");
        assert!(bars["bars"][0]["text"].is_string());
        assert_eq!((count[0], count[1]), (0, 0), "nothing was measured");
        assert!(count[2] > 30);
        let view = View::new(&store, &ExperimentSuite::Orchestra.plan(), Form::Quick);
        let (path, count) =
            write_report(&folder, &head, ExperimentSuite::Orchestra, &view, &remarks).unwrap();
        assert!(path.ends_with("orchestra.html") && count[0] + count[1] == 0 && count[2] > 10);
        let html = std::fs::read_to_string(path).unwrap();
        assert!(!html.contains("not repeated yet") && html.contains("make lab-orchestra-full"));
        assert!(html.contains("D. Xinidis") && !html.contains("id=\"fig5\""));
        for experiment in ExperimentSuite::Orchestra.experiments() {
            assert!(html.contains(&format!("<h2 id=\"{}\">", experiment.name())));
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn dates() {
        assert_eq!(utc(0), "1970-01-01 00:00");
        assert_eq!(utc(951_782_400), "2000-02-29 00:00");
        assert_eq!(utc(1_795_292_100), "2026-11-21 20:15");
    }
}
