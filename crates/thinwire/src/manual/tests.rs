//! Pages are what `man` takes, and say all that tables say.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::process::{Command, Stdio};

use thinwire_modules::{MANUAL, Module};

use super::*;
use crate::config_file::FileVolume;

fn page(name: &str, section: u8) -> Page {
    let is_it = |page: &Page| page.name == format!("thinwire-{name}") && page.section == section;
    pages().into_iter().find(is_it).unwrap_or_else(|| panic!("no {name}({section})"))
}

/// As a page has it: a term of a list.
fn term(name: &str) -> String {
    format!(".TP\n\\fB{name}\\fR\n")
}

#[test]
fn each_option_stands_in_the_page_of_its_kind_and_in_that_of_descriptions() {
    let volumes = page("volumes", 5).roff;
    for module in Module::all() {
        let kind =
            volumes.split(".SS ").find(|text| text.starts_with(&format!("\"{}\"", module.name)));
        let kind = kind.unwrap_or_else(|| panic!("no {} in section 5", module.name));
        let own = find(module.name).unwrap_or_else(|| panic!("no page of {}", module.name)).roff;
        let own = match own.contains(&format!(".SS \"{}\"", module.name)) {
            true => own
                .split(".SS ")
                .find(|text| text.starts_with(&format!("\"{}\"", module.name)))
                .unwrap(),
            false => &own,
        };
        for option in module.options {
            let wanted = term(option.name);
            assert!(kind.contains(&wanted), "{} of {} in section 5", option.name, module.name);
            assert!(own.contains(&wanted), "{} of {} in its page", option.name, module.name);
        }
        assert!(kind.matches(".TP").count() == module.options.len(), "{}: {kind}", module.name);
    }
}

/// What is derived says what is taken; what is written beside it speaks of each.
#[test]
fn each_option_is_spoken_of_where_its_kind_has_a_page_of_its_own() {
    for text in MANUAL.iter().filter(|text| text.section == 7 && text.modules().count() == 1) {
        for option in text.modules().flat_map(|module| module.options) {
            let named = text.text.contains(&format!("`{}`", option.name));
            let is_only = text.modules().all(|module| module.options.len() == 1);
            assert!(named || is_only, "{} is not explained in {}", option.name, text.name);
        }
    }
}

#[test]
fn each_key_of_a_description_stands_in_section_5() {
    let text = "name = \"a\"\nkind = \"linear\"\nchildren = []\n";
    let volume: FileVolume = toml::from_str(text).unwrap();
    let volumes = page("volumes", 5).roff;
    let own = ["name", "kind", "children", "labels", "key"];
    for key in volume.options().iter().map(|(name, _)| *name).chain(own) {
        assert!(volumes.contains(&term(key)), "{key}");
    }
    let unknown = toml::from_str::<FileVolume>(&format!("{text}colour = 1\n")).unwrap_err();
    let known: BTreeSet<_> = unknown.message().split('`').skip(3).step_by(2).collect();
    assert!(known.len() > own.len(), "{unknown}");
    for key in known {
        assert!(volumes.contains(&term(key)), "{key} is a key, and not in section 5");
    }
}

#[test]
fn bounds_and_units_are_those_of_the_tables() {
    let stripe = page("stripe", 7).roff;
    assert!(
        stripe.contains("(64K); counts bytes, 4 KiB to 64 MiB, a multiple of 4 KiB."),
        "{stripe}"
    );
    let slice = page("slice", 7).roff;
    assert!(slice.contains("counts bytes, 512 B or more, a multiple of 512 B."), "{slice}");
    let mirror = page("mirror", 7).roff;
    assert!(mirror.contains("(5000); counts ms, 100 to 60000."), "{mirror}");
}

#[test]
fn what_a_module_costs_is_what_is_counted() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/instructions.json");
    let counted: std::collections::BTreeMap<String, u64> =
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    for (name, module) in [("linear", "linear"), ("cache", "write-back"), ("readonly", "readonly")]
    {
        let more = counted[&format!("read through {module}")] - counted["read through memory"];
        let shown = page(name, 7).roff;
        assert!(shown.contains(&format!("{more} more a read")), "{name}: {more}\n{shown}");
    }
    assert!(!page("readonly", 7).roff.contains("more a write"));
}

/// What is wrong with a page, as `man` would take it.
fn faults(page: &Page) -> Vec<String> {
    // Requests and macros, and how many arguments they take at least.
    const KNOWN: [(&str, usize); 14] = [
        ("TH", 5),
        ("SH", 1),
        ("SS", 1),
        ("PP", 0),
        ("TP", 0),
        ("IP", 0),
        ("RS", 0),
        ("RE", 0),
        ("EX", 0),
        ("EE", 0),
        ("br", 0),
        ("ie", 1),
        ("el", 1),
        ("sp", 0),
    ];
    let mut found = Vec::new();
    let mut open: Vec<&str> = Vec::new();
    let mut is_tagged = false;
    for (number, line) in page.roff.lines().enumerate() {
        let mut wrong =
            |why: &str| found.push(format!("{}:{}: {why}: {line}", page.file_name(), number + 1));
        if line.contains('\t') || line.chars().any(|c| c.is_control()) {
            wrong("a control character");
        }
        let mut rest = line;
        while let Some(at) = rest.find('\\') {
            let known = [
                "\\fB", "\\fI", "\\fR", "\\-", "\\e", "\\&", "\\(aq", "\\(dq", "\\(ti", "\\(ha",
                "\\(bu", "\\*(Aq", "\\n(.g",
            ];
            match known.iter().find(|escape| rest[at..].starts_with(**escape)) {
                Some(escape) => rest = &rest[at + escape.len()..],
                None => {
                    wrong("an escape that is not known");
                    break;
                }
            }
        }
        let Some(request) = line.strip_prefix(['.', '\'']) else {
            is_tagged = false;
            continue;
        };
        let (name, arguments) = request.split_once(' ').unwrap_or((request, ""));
        let Some((_, least)) = KNOWN.iter().find(|(known, _)| *known == name) else {
            wrong("a macro that is not known");
            continue;
        };
        let count = arguments.split('"').enumerate().map(|(at, piece)| match at % 2 {
            1 => 1,
            _ => piece.split_whitespace().count(),
        });
        if count.sum::<usize>() < *least {
            wrong("too few arguments");
        }
        if is_tagged {
            wrong("a .TP without its term");
        }
        is_tagged = name == "TP";
        match name {
            "EX" | "RS" => open.push(name),
            "EE" | "RE" => {
                let wanted = if name == "EE" { "EX" } else { "RS" };
                if open.pop() != Some(wanted) {
                    wrong("nothing to end");
                }
            }
            "SH" | "SS" if !open.is_empty() => wrong("within something that does not end"),
            _ => {}
        }
    }
    if !open.is_empty() {
        found.push(format!("{}: something does not end", page.file_name()));
    }
    let heads: Vec<_> = page.roff.lines().filter_map(|line| line.strip_prefix(".SH ")).collect();
    if heads.first() != Some(&"NAME") || !page.roff.lines().any(|line| line.starts_with(".TH ")) {
        found.push(format!("{}: it does not begin as a page", page.file_name()));
    }
    found
}

#[test]
fn pages_are_what_man_takes() {
    let all = pages();
    let names: BTreeSet<_> = all.iter().map(Page::file_name).collect();
    assert_eq!(names.len(), all.len(), "two pages of one name");
    let sections =
        [5, 7, 8].map(|section| all.iter().filter(|page| page.section == section).count());
    assert!(
        sections[0] == 1 && sections[1] == MANUAL.len() - 1 && sections[2] > 20,
        "{sections:?}"
    );
    let found: Vec<_> = all.iter().flat_map(faults).collect();
    assert!(found.is_empty(), "{found:#?}");
    // Whatever it says on top of that, where it is.
    let mut asked = 0;
    for page in &all {
        let ran = Command::new("groff")
            // Long words do not break, and that is all right.
            .args(["-man", "-Tutf8", "-ww", "-Wbreak", "-z"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        let Ok(mut groff) = ran else { break };
        groff.stdin.take().unwrap().write_all(page.roff.as_bytes()).unwrap();
        let said = groff.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&said.stderr);
        assert!(said.is_empty(), "{}: {said}", page.file_name());
        asked += 1;
    }
    println!("groff was asked about {asked} of {} pages; all were parsed here", all.len());
}

#[test]
fn what_man_would_not_take_is_found() {
    let good = ".TH a 7 \"\" \"b\" \"c\"\n.SH NAME\na \\- b\n";
    let of = |more: &str| {
        faults(&Page { name: "a".into(), section: 7, roff: format!("{good}{more}") }).len()
    };
    assert_eq!(of(".PP\n\\fBa\\fR\n"), 0);
    for bad in [
        ".XX\n",
        "a \\q b\n",
        ".EX\na\n",
        ".EE\n",
        ".TP\n.TP\na\n",
        ".SH\n",
        "a\tb\n",
        ".EX\n.SH \"B\"\n.EE\n",
    ] {
        assert_ne!(of(bad), 0, "{bad:?}");
    }
    assert_ne!(faults(&Page { name: "a".into(), section: 7, roff: "a\n".into() }).len(), 0);
}

#[test]
fn markdown_becomes_what_it_means() {
    let text = "# thinwire-a(7): one `b`\n\n## What\n\nIt is *so*.\n.not a request\n\n    'c' \\d\n\n    e\n\n- `f`: g\n- h\n";
    let page = roff::from_markdown(text, 7);
    let rest = page.split_once('\n').unwrap().1;
    assert_eq!(
        rest,
        ".SH NAME\nthinwire\\-a \\- one \\fBb\\fR\n.SH \"DESCRIPTION\"\n.PP\nIt is \\fIso\\fR.\n\\&.not a request\n.PP\n.RS 4\n.EX\n\
         \\(aqc\\(aq \\ed\n\ne\n.EE\n.RE\n.TP\n\\fBf\\fR\ng\n.IP \\(bu 2\nh\n"
    );
}
