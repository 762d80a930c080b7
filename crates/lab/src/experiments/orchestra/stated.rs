//! What the document states that the experiments `orchestra-...` repeat: D. Xinidis, "Performance analysis and scaling of
//! networked, shared, block-level storage". Its curves are not in our copy, so a number here is one that the text or a table
//! states; what it says without a number has the unit "no number".

use std::sync::LazyLock;

use serde::Deserialize;

use crate::experiments::{NONE, Table};

/// The document, as far as it is shown.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Document {
    /// Its title.
    pub title: String,
    /// Who wrote it.
    pub authors: Vec<String>,
    /// What all of this is from.
    #[cfg_attr(not(test), expect(dead_code, reason = "for who reads the file"))]
    pub chapter: u32,
    /// Figures and tables.
    pub items: Vec<DocumentItem>,
    /// Table 2.1: Postmark on local disks.
    pub postmark: Vec<PostmarkRow>,
    /// Table 2.2: queries on local disks.
    pub queries: Vec<QueryRow>,
    /// Numbers in the text.
    pub statements: Vec<Statement>,
}

/// A figure or a table.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DocumentItem {
    /// `2.8`, or `table2.1`.
    pub item: String,
    /// `figure` or `table`.
    pub what: String,
    /// Where it is.
    pub section: String,
    /// What it shows.
    pub shows: String,
    /// Whether it shows a measurement: others are drawings.
    pub measured: bool,
}

/// A row of Table 2.1.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PostmarkRow {
    /// Files made at first.
    pub files: u32,
    /// Transactions on them.
    pub transactions: u32,
    /// Transactions a second.
    pub tx_per_s: f64,
    /// Of its reads.
    pub read_kb_per_s: f64,
    /// Of its writes.
    pub write_kb_per_s: f64,
}

/// A cell of Table 2.2.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueryRow {
    /// Its number.
    pub query: u8,
    /// How long it took.
    pub seconds: f64,
}

/// What the text states.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Statement {
    /// The item's name, and a word or two.
    pub id: String,
    /// What it is about.
    pub item: String,
    /// Where it stands.
    pub section: String,
    /// What it says.
    pub text: String,
    /// The number, or the lower one of two; none of "at most".
    #[serde(default)]
    pub from: Option<f64>,
    /// The upper one.
    #[serde(default)]
    pub to: Option<f64>,
    /// Of the numbers.
    pub unit: String,
}

impl Statement {
    /// `80 to 90 %`.
    fn shown(&self) -> String {
        let unit = &self.unit;
        match (self.from, self.to) {
            (Some(from), Some(to)) => format!("{from} to {to} {unit}"),
            (Some(value), None) | (None, Some(value)) => format!("{value} {unit}"),
            (None, None) => unit.clone(),
        }
    }
}

/// The document, read once.
pub fn document() -> &'static Document {
    static DOCUMENT: LazyLock<Document> = LazyLock::new(|| {
        serde_json::from_str(include_str!("../../../data/orchestra.json"))
            .expect("the data file is valid: a test reads it")
    });
    &DOCUMENT
}

/// What is stated about an item, with ours beside it, by the statement's name; what is not asked for there has none.
pub fn table(item: &str, ours: &[(&str, String)]) -> Table {
    let document = document();
    let title =
        format!("What is stated by {}, \"{}\"", document.authors.join(", "), document.title);
    let mut table = Table::new(title, &["what the document states", "section", "document", "ours"]);
    for stated in document.statements.iter().filter(|stated| stated.item == item) {
        let ours = ours.iter().find(|(id, _)| *id == stated.id).map(|(_, ours)| ours.clone());
        table.rows.push(vec![
            stated.text.clone(),
            stated.section.clone(),
            stated.shown(),
            ours.unwrap_or(NONE.into()),
        ]);
    }
    for (id, _) in ours {
        debug_assert!(document.statements.iter().any(|s| s.id == *id && s.item == item), "{id}");
    }
    table
}

/// What an item shows, for a title.
pub fn shows(item: &str) -> &'static str {
    let found = document().items.iter().find(|found| found.item == item);
    &found.expect("an item of the document").shows
}

/// `Figure 2.8`, or `Table 2.1`.
pub fn named(item: &DocumentItem) -> String {
    match item.what.as_str() {
        "table" => format!("Table {}", item.item.trim_start_matches("table")),
        _ => format!("Figure {}", item.item),
    }
}

/// Measured figures and tables that no experiment of a name repeats: sentences.
pub fn not_repeated(names: &[&str]) -> Vec<String> {
    let repeated = |item: &DocumentItem| {
        let own = format!("orchestra-{}", item.item);
        names.contains(&own.as_str())
    };
    let left = document().items.iter().filter(|item| item.measured && !repeated(item));
    let said = |item: &DocumentItem| {
        let DocumentItem { section, shows, .. } = item;
        format!("{} ({section}), {shows}: not repeated yet", named(item))
    };
    left.map(said).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Sections of chapter 2 that have figures, tables or numbers.
    const SECTIONS: [&str; 9] =
        ["2.2.2", "2.2.3", "2.4.1", "2.4.2", "2.4.3", "2.5.1", "2.5.2", "2.5.3", "2.5.4"];

    #[test]
    fn all_figures_and_tables_of_the_chapter_are_there_once() {
        let document = document();
        let found: Vec<&str> = document.items.iter().map(|item| &item.item[..]).collect();
        let mut wanted: Vec<String> = (1..=17).map(|n| format!("2.{n}")).collect();
        wanted.extend(["table2.1".into(), "table2.2".into()]);
        let (found, wanted): (BTreeSet<_>, BTreeSet<_>) =
            (found.iter().copied().collect(), wanted.iter().map(|w| &w[..]).collect());
        assert_eq!((found.len(), document.chapter), (document.items.len(), 2));
        assert_eq!(found, wanted);
        for item in &document.items {
            assert!(SECTIONS.contains(&&item.section[..]), "{}: {}", item.item, item.section);
            assert_eq!(item.what == "table", item.item.starts_with("table"), "{}", item.item);
            // Drawings end with 2.5, measurements begin with 2.6.
            let is_drawing = ["2.1", "2.2", "2.3", "2.4", "2.5"].contains(&&item.item[..]);
            assert_eq!(item.measured, !is_drawing, "{}", item.item);
        }
    }

    #[test]
    fn each_measured_figure_has_what_the_text_says_of_it() {
        let document = document();
        let ids: BTreeSet<&str> = document.statements.iter().map(|s| &s.id[..]).collect();
        assert_eq!(ids.len(), document.statements.len(), "each once");
        for stated in &document.statements {
            let of = format!("{}.", stated.item);
            assert!(stated.id.starts_with(&of), "{} is about {}", stated.id, stated.item);
            assert!(document.items.iter().any(|item| item.item == stated.item), "{}", stated.id);
            // 2.6 is what it says of others' work.
            let known = SECTIONS.contains(&&stated.section[..]) || stated.section == "2.6";
            assert!(known, "{}: {}", stated.id, stated.section);
            let has_number = stated.from.is_some() || stated.to.is_some();
            assert_eq!(has_number, stated.unit != "no number", "{}", stated.id);
            if let (Some(from), Some(to)) = (stated.from, stated.to) {
                assert!(from < to, "{}", stated.id);
            }
        }
        for item in document.items.iter().filter(|item| item.measured && item.what == "figure") {
            let has = document.statements.iter().any(|stated| stated.item == item.item);
            assert!(has, "nothing is said of {}", item.item);
        }
    }

    #[test]
    fn the_tables_are_whole() {
        let document = document();
        let inputs: Vec<_> = document
            .postmark
            .iter()
            .map(|row| (row.files / 1000, row.transactions / 1000))
            .collect();
        assert_eq!(inputs, [(50, 50), (50, 100), (100, 100), (100, 200)]);
        let sum = |of: fn(&PostmarkRow) -> f64| document.postmark.iter().map(of).sum::<f64>();
        assert_eq!(sum(|row| row.tx_per_s), 497.0);
        assert!((sum(|row| row.read_kb_per_s) - 791.26).abs() < 1e-6);
        assert!((sum(|row| row.write_kb_per_s) - 1989.32).abs() < 1e-6);
        let queries: Vec<u8> = document.queries.iter().map(|row| row.query).collect();
        // Query 2 is announced in section 2.2.3, and has no time.
        assert_eq!(queries, [1, 3, 5, 6, 7, 8, 11, 12, 14, 19]);
        let seconds: f64 = document.queries.iter().map(|row| row.seconds).sum();
        assert!((seconds - 480.93).abs() < 1e-6, "{seconds}");
    }

    #[test]
    fn numbers_that_follow_from_others_do() {
        let says = |id: &str| {
            let stated = document().statements.iter().find(|stated| stated.id == id).unwrap();
            stated.from.or(stated.to).unwrap()
        };
        let less = 100.0 * (1.0 - says("2.15.x1") / says("2.15.direct"));
        assert_eq!(less.round(), says("2.15.less"));
        // Both saturate at a load that was offered.
        for id in ["2.15.x1", "2.15.direct"] {
            assert_eq!((says(id) - says("2.15.first")) % says("2.15.step"), 0.0);
        }
        assert!(says("2.7.controller") < says("2.7.bus"));
        assert_eq!(says("2.8.direct.read"), says("2.7.controller"), "the bus bounds reads");
    }

    #[test]
    fn what_is_shown_of_a_statement() {
        let of =
            |id: &str| document().statements.iter().find(|stated| stated.id == id).unwrap().shown();
        assert_eq!(of("2.7.ram.cpu"), "80 to 90 %");
        assert_eq!(of("2.8.direct.read"), "120 MB/s");
        assert_eq!(of("2.9.x3"), "no number");
        let table = table("2.6", &[("2.6.rate", "930 Mbit/s".into())]);
        assert_eq!(table.rows.len(), 1);
        assert_eq!(table.rows[0][2..], ["800 Mbit/s", "930 Mbit/s"]);
        assert_eq!(self::table("2.9", &[]).rows[1][3], NONE);
    }

    #[test]
    fn what_no_experiment_repeats_is_named() {
        let left = not_repeated(&["orchestra-2.8", "orchestra-table2.1"]);
        assert_eq!(left.len(), 12);
        assert!(left.iter().all(|why| !why.contains("2.8") && !why.contains("Table 2.1")));
        assert!(left.iter().any(|why| why.starts_with("Table 2.2 (2.5.3), TPC-H, direct")));
    }
}
