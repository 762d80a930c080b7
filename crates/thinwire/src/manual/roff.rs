//! From the Markdown of pages to what `man` takes. It knows titles, headings, paragraphs, lists, indented examples, `code` and *emphasis*: what
//! pages use, and nothing else.

use std::fmt::Write as _;

/// The title of a page is `# NAME(SECTION): WHAT`.
///
/// # Panics
/// It has none: pages are ours.
pub fn from_markdown(text: &str, section: u8) -> String {
    let (head, rest) = text.split_once('\n').expect("a page has a title");
    let (name, what) = head.split_once(": ").expect("a title says what it is");
    let name = name.trim_start_matches("# ").split('(').next().expect("never empty");
    let mut page = title(name, section);
    let _ = writeln!(page, ".SH NAME\n{} \\- {}", plain(name), inline(what));
    let mut state = State::Between;
    for line in rest.lines() {
        state = state.line(line, &mut page);
    }
    state.end(&mut page);
    page
}

/// The first line of a page.
pub fn title(name: &str, section: u8) -> String {
    let version = env!("CARGO_PKG_VERSION");
    format!(".TH {name} {section} \"\" \"thinwire {version}\" \"Thinwire\"\n")
}

/// The last section of a page.
pub fn see_also(others: &[&str]) -> String {
    let bold = |other: &&str| {
        let (name, section) = other.split_once('(').expect("a name with its section");
        format!("\\fB{}\\fR({section}", plain(name))
    };
    format!(".SH \"SEE ALSO\"\n{}\n", others.iter().map(bold).collect::<Vec<_>>().join(", "))
}

/// Within what the next line stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing that goes on.
    Between,
    Paragraph,
    List,
    Example,
}

impl State {
    fn line(self, line: &str, page: &mut String) -> State {
        if let Some(example) = line.strip_prefix("    ") {
            if self != State::Example {
                self.end(page);
                page.push_str(".PP\n.RS 4\n.EX\n");
            }
            let _ = writeln!(page, "{}", guarded(&plain(example)));
            return State::Example;
        }
        if line.is_empty() {
            // An example goes on behind it, perhaps.
            return match self {
                State::Example => {
                    page.push('\n');
                    self
                }
                _ => State::Between,
            };
        }
        if self == State::Example {
            self.end(page);
        }
        if let Some(head) = line.strip_prefix("## ") {
            let head = if head == "What" { "DESCRIPTION".into() } else { head.to_uppercase() };
            let _ = writeln!(page, ".SH \"{}\"", plain(&head));
            return State::Between;
        }
        if let Some(head) = line.strip_prefix("### ") {
            let _ = writeln!(page, ".SS \"{}\"", plain(head));
            return State::Between;
        }
        if let Some(item) = line.strip_prefix("- ") {
            // `NAME`: TEXT is a term and what it means.
            match item.strip_prefix('`').and_then(|item| item.split_once("`: ")) {
                Some((term, text)) => {
                    let _ = writeln!(page, ".TP\n\\fB{}\\fR\n{}", plain(term), text_line(text));
                }
                None => _ = writeln!(page, ".IP \\(bu 2\n{}", text_line(item)),
            }
            return State::List;
        }
        if self == State::Between {
            page.push_str(".PP\n");
        }
        let _ = writeln!(page, "{}", text_line(line));
        if self == State::List { self } else { State::Paragraph }
    }

    fn end(self, page: &mut String) {
        if self == State::Example {
            while page.ends_with("\n\n") {
                page.pop();
            }
            page.push_str(".EE\n.RE\n");
        }
    }
}

fn text_line(text: &str) -> String {
    guarded(&inline(text))
}

/// A line that begins as a request would is none.
fn guarded(line: &str) -> String {
    match line.starts_with(['.', '\'']) {
        true => format!("\\&{line}"),
        false => line.to_owned(),
    }
}

/// Text, with its code in bold and its emphasis in italics.
fn inline(text: &str) -> String {
    let mut shown = String::new();
    for (at, piece) in text.split('`').enumerate() {
        match at % 2 {
            1 => _ = write!(shown, "\\fB{}\\fR", plain(piece)),
            _ => {
                for (at, piece) in piece.split('*').enumerate() {
                    match at % 2 {
                        1 => _ = write!(shown, "\\fI{}\\fR", plain(piece)),
                        _ => shown.push_str(&plain(piece)),
                    }
                }
            }
        }
    }
    shown
}

/// Characters as they are: a dash that is one when it is copied, a quote, a backslash, a tilde and a caret.
fn plain(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => shown.push_str("\\e"),
            '-' => shown.push_str("\\-"),
            '\'' => shown.push_str("\\(aq"),
            '"' => shown.push_str("\\(dq"),
            '~' => shown.push_str("\\(ti"),
            '^' => shown.push_str("\\(ha"),
            c => shown.push(c),
        }
    }
    shown
}
