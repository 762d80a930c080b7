//! What people found out about the figures, for the report: a text file with a heading for each
//! experiment. Why a bar is missed is not something that a program can tell.

use std::collections::BTreeMap;
use std::path::Path;

use crate::error::{LabError, Outcome, failed};
use crate::experiments::Experiment;

/// Paragraphs by experiment, and for which figures they were written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Remarks {
    paragraphs: BTreeMap<Experiment, Vec<String>>,
    written_for: Option<String>,
}

/// Begins the line that says for which figures remarks were written.
const WRITTEN_FOR: &str = "Written for: ";

impl Remarks {
    /// Reads a file. A heading that names no experiment is an error that lists those there are.
    pub fn read(path: &Path) -> Outcome<Self> {
        let text = std::fs::read_to_string(path)
            .map_err(failed(format!("cannot read the remarks in {}", path.display())))?;
        Self::parse(&text).map_err(|why| LabError::Usage(format!("{}: {why}", path.display())))
    }

    /// Lines `## NAME` begin the remarks on an experiment; blank lines separate paragraphs. What
    /// stands before the first such line is nobody's, but for a line `Written for: LABEL, FORM form`.
    fn parse(text: &str) -> Result<Self, String> {
        let mut written_for = None;
        let mut remarks = BTreeMap::new();
        let mut current: Option<&mut Vec<String>> = None;
        let mut is_new = true;
        for line in text.lines() {
            if let Some(name) = line.strip_prefix("## ") {
                let found = Experiment::ALL.into_iter().find(|e| e.name() == name.trim());
                let experiment = found.ok_or_else(|| {
                    let names = Experiment::ALL.map(Experiment::name).join(", ");
                    format!("`{line}`: no such experiment; there are {names}")
                })?;
                current = Some(remarks.entry(experiment).or_default());
                is_new = true;
            } else if line.trim().is_empty() {
                is_new = true;
            } else if let Some(paragraphs) = &mut current {
                match paragraphs.last_mut() {
                    Some(last) if !is_new => *last = format!("{last} {}", line.trim()),
                    _ => paragraphs.push(line.trim().to_owned()),
                }
                is_new = false;
            } else if let Some(figures) = line.strip_prefix(WRITTEN_FOR) {
                written_for = Some(figures.trim().to_owned());
            }
        }
        Ok(Remarks { paragraphs: remarks, written_for })
    }

    /// For which figures they were written, if that is not said to be those of a label and a form.
    pub fn of_others(&self, label: &str, form: &str) -> Option<&str> {
        let shown = format!("{label}, {form} form");
        self.written_for.as_deref().filter(|written_for| *written_for != shown)
    }

    /// What there is to say about an experiment.
    pub fn on(&self, experiment: Experiment) -> &[String] {
        self.paragraphs.get(&experiment).map_or(&[], |paragraphs| paragraphs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paragraphs_go_to_their_experiments() {
        let text = "# Remarks\n\nFor nobody.\n\n## fig5\nOne\nparagraph.\n\nAnother.\n\n## bars\nMissed.\n";
        let remarks = Remarks::parse(text).unwrap();
        assert_eq!(remarks.on(Experiment::Fig5), ["One paragraph.", "Another."]);
        assert_eq!(remarks.on(Experiment::Bars), ["Missed."]);
        assert!(remarks.on(Experiment::Fig1).is_empty());
        assert_eq!(remarks.of_others("commit a", "full"), None, "it is not said");
        let error = Remarks::parse("## fig9\n").unwrap_err();
        assert!(error.contains("fig9") && error.contains("fig8"), "{error}");
    }

    #[test]
    fn remarks_on_other_figures_are_told_apart() {
        let text =
            "# Remarks\n\nWritten for: commit abc, full form\n\n## fig5\nWritten for: nobody.\n";
        let remarks = Remarks::parse(text).unwrap();
        assert_eq!(remarks.of_others("commit abc", "full"), None);
        let of = Some("commit abc, full form");
        assert_eq!(remarks.of_others("commit abc", "quick"), of);
        assert_eq!(remarks.of_others("commit abc with changes", "full"), of);
        assert_eq!(remarks.on(Experiment::Fig5), ["Written for: nobody."]);
    }
}
