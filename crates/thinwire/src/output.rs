//! Printing, such that a reader who goes away (`thinwire status | head -1`) is no error.

use std::io::{self, Write};

use serde::Serialize;

use crate::error::{Failure, Outcome};

/// Prints text and a line end on stdout.
pub fn say(text: &str) -> Outcome {
    let mut out = io::stdout().lock();
    let result = out.write_all(text.as_bytes()).and_then(|()| out.write_all(b"\n"));
    match result.and_then(|()| out.flush()) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::failed(format!("cannot write to stdout: {e}")))
        }
        _ => Ok(()),
    }
}

/// Prints one JSON object and a line end on stdout.
pub fn say_json(value: &impl Serialize) -> Outcome {
    say(&serde_json::to_string(value).expect("own types are valid JSON"))
}

/// Prints `thinwire: TEXT` on stderr.
pub fn complain(text: &str) {
    let _ = writeln!(io::stderr().lock(), "thinwire: {text}");
}

/// A table for people: columns as wide as their widest cell, two blanks between.
pub fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = header.iter().map(|cell| cell.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let padded: Vec<_> =
            cells.zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        padded.join("  ").trim_end().to_owned()
    };
    let mut lines = vec![line(&mut header.iter().copied())];
    lines.extend(rows.iter().map(|row| line(&mut row.iter().map(String::as_str))));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    #[test]
    fn tables_align() {
        let rows = [vec!["a".into(), "x".into()], vec!["long".into(), "".into()]];
        assert_eq!(super::table(&["N", "STATE"], &rows), "N     STATE\na     x\nlong");
    }
}
