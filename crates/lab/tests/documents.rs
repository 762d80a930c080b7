//! Every command of the laboratory that the documents show is one that it understands.

use std::path::Path;

use clap::Parser;
use thinwire_lab::args::LabArgs;

#[test]
fn every_command_shown_is_understood() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut shown = 0;
    for document in ["README.md", "docs/laboratory.md", "docs/performance.md"] {
        let text = std::fs::read_to_string(root.join(document)).unwrap();
        for line in text.lines().filter_map(|line| line.strip_prefix("    thinwire-lab ")) {
            shown += 1;
            let words = std::iter::once("thinwire-lab").chain(line.split_whitespace());
            LabArgs::try_parse_from(words).unwrap_or_else(|e| panic!("{document}: {line}\n{e}"));
        }
    }
    assert!(shown >= 5, "only {shown} commands found: does this test still find them?");
}
