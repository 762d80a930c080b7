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

/// What others have said, for people: characters that are not printable are escaped, so that no name that comes
/// from the network turns a line around, hides a part of it, or moves the cursor. Line ends stay.
pub fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '"' | '\'' | '\\' => shown.push(c),
            c => shown.extend(c.escape_debug()),
        }
    }
    shown
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
    fn what_is_not_printable_is_escaped() {
        for (said, shown) in [
            ("disk0 \"x\" 'y' \\ ü 磁盘\nnode1", "disk0 \"x\" 'y' \\ ü 磁盘\nnode1"),
            ("a\u{202e}b", "a\\u{202e}b"),
            ("a\u{200b}\u{feff}", "a\\u{200b}\\u{feff}"),
            ("\x1b[2J\r\t", "\\u{1b}[2J\\r\\t"),
        ] {
            assert_eq!(super::printable(said), shown);
        }
    }

    #[test]
    fn tables_align() {
        let rows = [vec!["a".into(), "x".into()], vec!["long".into(), "".into()]];
        assert_eq!(super::table(&["N", "STATE"], &rows), "N     STATE\na     x\nlong");
    }
}
