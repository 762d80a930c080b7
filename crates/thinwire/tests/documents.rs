//! The documents do not drift: every command they show is one that `thinwire` understands, the
//! configuration they show is valid, every file they name is there, every function or test they
//! name exists, and what `status --json` prints is what they say.

use std::path::{Path, PathBuf};

use clap::Parser;
use thinwire::cli::{Cli, Command};
use thinwire::config::TargetSettings;
use thinwire::control::{
    AttachmentStatus, BatchStatus, CacheStatus, ControlCounters, ExportStatus, IntegrityStatus,
    IoStatus, KeyStatus, LeafStatus, LimitStatus, LinkStatus, MeasureStatus, MirrorLegStatus,
    MirrorStatus, OfferStatus, PathStatus, PrivilegesStatus, SessionKeyStatus, SessionStatus,
    State, TargetCounters, TargetState, WriterStatus,
};
use thinwire::rundir::SCHEMA;
use thinwire::work::{LimitsStatus, NodeStatus, WorkStatus};
use thinwire_target::Limit;

const DOCUMENTS: [&str; 16] = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "docs/aoe.md",
    "docs/design.md",
    "docs/dialects.md",
    "docs/ebd.md",
    "docs/format.md",
    "docs/laboratory.md",
    "docs/performance.md",
    "docs/security.md",
    "docs/status.md",
    "docs/swap-and-root.md",
    "docs/testing.md",
    "docs/wireshark.md",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn read(document: &str) -> String {
    std::fs::read_to_string(root().join(document)).unwrap_or_else(|e| panic!("{document}: {e}"))
}

/// The words of a command line as a shell sees them; single quotes only, a comment ends it.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quoted = false;
    for c in line.chars() {
        match c {
            '\'' => quoted = !quoted,
            ' ' if !quoted => words.push(String::new()),
            '#' if !quoted && words.last().is_some_and(String::is_empty) => break,
            c => words.last_mut().expect("never empty").push(c),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Lines of code that begin with `thinwire` and one blank.
fn commands(text: &str) -> Vec<String> {
    // One that goes on in the next line is one.
    let text = text.replace("\\\n", " ");
    let shown = text.lines().filter_map(|line| line.strip_prefix("    "));
    let is_one = |line: &&str| line.starts_with("thinwire ") && !line.starts_with("thinwire  ");
    shown.filter(is_one).map(str::to_owned).collect()
}

/// The configuration that the README shows, in a file of this test's own, which is removed again.
fn with_configuration<T>(test: &str, work: impl FnOnce(&str, &str) -> T) -> T {
    let readme = read("README.md");
    let start = readme.find("    node = ").expect("the README shows a configuration");
    let shown = readme[start..].lines().take_while(|l| l.is_empty() || l.starts_with("    "));
    let toml: String = shown.map(|line| line.trim_start().to_owned() + "\n").collect();
    let name = format!("thinwire-documents-{test}-{}.toml", std::process::id());
    let path = std::env::temp_dir().join(name);
    std::fs::write(&path, &toml).unwrap();
    let done = work(path.to_str().unwrap(), &toml);
    std::fs::remove_file(&path).unwrap();
    done
}

#[test]
fn every_command_shown_is_understood() {
    with_configuration("commands", |path, _| every_command_is_understood(path));
}

fn every_command_is_understood(configuration: &str) {
    let mut shown = 0;
    for document in DOCUMENTS {
        for line in commands(&read(document)) {
            shown += 1;
            // A volume of a file is looked up there.
            let words =
                words(&line.replace("/etc/thinwire/target.toml#", &format!("{configuration}#")));
            Cli::try_parse_from(words).unwrap_or_else(|e| panic!("{document}: {line}\n{e}"));
        }
    }
    assert!(shown >= 15, "only {shown} commands found: does this test still find them?");
}

#[test]
fn the_configuration_shown_is_valid() {
    with_configuration("valid", |path, toml| {
        // Its keys are made, and lie beside it.
        let keys =
            std::env::temp_dir().join(format!("thinwire-documents-keys-{}", std::process::id()));
        thinwire::keys::make("alice", &keys, false).unwrap();
        let placed = format!("key = [\"{}/alice\"]", keys.display());
        assert!(toml.contains("key = [\"alice\"]"), "it names a key");
        std::fs::write(path, toml.replace("key = [\"alice\"]", &placed)).unwrap();
        let cli = Cli::parse_from(["thinwire", "target", "--config", path]);
        let Command::Target(args) = cli.command else { unreachable!("asked for the target") };
        let config = TargetSettings::assemble(&args).unwrap_or_else(|e| panic!("{e}\n{toml}"));
        assert_eq!(config.exports.len(), toml.matches("[[export]]").count());
        assert!(config.unused.is_empty(), "{:?}", config.unused);
        assert_eq!(config.keys.len(), 1);
        std::fs::remove_dir_all(keys).unwrap();
    });
}

/// Everything in the tree but what was built, relative to the root.
fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap_or_default();
        match path.is_dir() {
            true if matches!(name, "target" | ".git" | "__pycache__") && folder == root() => {}
            true => files(&path, found),
            false => found.push(path.strip_prefix(root()).unwrap().to_owned()),
        }
    }
}

/// What stands between backticks, outside of code blocks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|l| !l.starts_with("    ")).flat_map(|l| l.split('`').skip(1).step_by(2))
}

#[test]
fn every_file_and_function_named_is_there() {
    let mut all = Vec::new();
    files(&root(), &mut all);
    let code: String = all
        .iter()
        .filter(|path| path.extension().is_some_and(|e| e == "rs" || e == "py" || e == "sh"))
        .filter(|path| !path.ends_with("tests/documents.rs"))
        .filter_map(|path| {
            let text = std::fs::read_to_string(root().join(path)).ok()?;
            Some(format!("{}\n{text}", path.display()))
        })
        .collect();
    // `on_frame`, and with dots the names of end-to-end tests: of a file's, and of a function there.
    let is_name = |word: &str| {
        word.contains('_')
            && word.chars().all(|c| c == '_' || c == '.' || c.is_ascii_alphanumeric())
    };
    let (mut named, mut missing) = (0, Vec::new());
    for document in DOCUMENTS {
        let text = read(document);
        for word in quoted(&text) {
            if document == "docs/wireshark.md" && !word.starts_with("tools/") {
                continue; // names of Wireshark's own
            }
            let is_file = [".rs", ".py", ".sh", ".md", ".lua"].iter().any(|e| word.ends_with(e));
            let there = if is_file && !word.contains([' ', '*']) {
                all.iter().any(|path| path.ends_with(word))
            } else if is_name(word) {
                word.split('.').all(|part| code.contains(part))
            } else {
                continue;
            };
            named += 1;
            if !there {
                missing.push(format!("{document}: {word}"));
            }
        }
    }
    assert!(missing.is_empty(), "named, but not there: {missing:#?}");
    assert!(named >= 60, "only {named} names found: does this test still find them?");
}

fn is_part_of_a_name(c: char) -> bool {
    c == '_' || c.is_ascii_alphanumeric()
}

/// Whether a text has this name, and not only as a piece of a longer one.
fn has_name(text: &str, name: &str) -> bool {
    text.match_indices(name).any(|(at, _)| {
        let behind = &text[at + name.len()..];
        !text[..at].ends_with(is_part_of_a_name) && !behind.starts_with(is_part_of_a_name)
    })
}

/// Each rule of volumes has a row with tests that are there, and with faults that some test plants.
#[test]
fn each_rule_of_volumes_names_its_tests_and_faults() {
    let mut all = Vec::new();
    files(&root(), &mut all);
    let is_source = |path: &&PathBuf| {
        path.extension().is_some_and(|e| e == "rs" || e == "py")
            && !path.ends_with("tests/documents.rs")
    };
    let source = |path: &PathBuf| {
        let text = std::fs::read_to_string(root().join(path)).ok()?;
        Some((path.to_str()?.to_owned(), text))
    };
    let sources: Vec<(String, String)> = all.iter().filter(is_source).filter_map(source).collect();
    let is_test = |name: &str| {
        // With a dot it is the name of an end-to-end test.
        let (file, head) = match name.split_once('.') {
            Some((suite, name)) => (format!("tests/e2e/test_{suite}.py"), format!("def {name}")),
            None => (".rs".to_owned(), format!("fn {name}")),
        };
        sources.iter().any(|(path, text)| path.ends_with(&file) && has_name(text, &head))
    };
    let is_fault = |fault: &str| {
        let (kind, variant) = fault.split_once("::").unwrap_or_else(|| panic!("{fault}"));
        let (head, line) = (format!("enum {kind} {{\n"), format!("    {variant},"));
        let declares = |text: &str| {
            let rest = text.split_once(head.as_str()).map_or("", |(_, rest)| rest);
            rest.lines().take_while(|it| *it != "}").any(|it| it == line)
        };
        sources.iter().any(|(_, text)| declares(text))
            && sources.iter().any(|(path, text)| path.contains("tests") && has_name(text, fault))
    };
    let text = read("docs/testing.md");
    let section = text.split_once("\n### Those of volumes\n").expect("a section").1;
    let section = section.lines().take_while(|line| !line.starts_with('#'));
    // The first is the head of the table.
    let rows = section.filter(|line| line.starts_with("| ")).skip(1);
    let mut count: u32 = 0;
    for row in rows {
        count += 1;
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [number, _, tests, faults] = cells[..] else { panic!("{row}") };
        assert_eq!(number, count.to_string(), "{row}");
        assert!(quoted(tests).next().is_some(), "rule {number} is shown by nothing");
        for test in quoted(tests) {
            assert!(is_test(test), "rule {number}: there is no test {test}");
        }
        assert_eq!(quoted(faults).next().is_none(), faults == "none", "{row}");
        for fault in quoted(faults) {
            assert!(is_fault(fault), "rule {number}: no test plants {fault}");
        }
    }
    assert_eq!(count, 26, "a rule without a row");
}

/// All text in files of that kind in `crates`, but this one.
fn code_files() -> Vec<(PathBuf, String)> {
    let mut all = Vec::new();
    files(&root(), &mut all);
    let is_code = |path: &PathBuf| {
        path.starts_with("crates")
            && path.extension().is_some_and(|e| e == "rs")
            && !path.ends_with("tests/documents.rs")
    };
    all.retain(is_code);
    all.into_iter().map(|path| (path.clone(), read(path.to_str().unwrap()))).collect()
}

/// The names in the first cells of the table with that head.
fn rows<'a>(text: &'a str, head: &str) -> Vec<&'a str> {
    let (_, table) = text.split_once(head).unwrap_or_else(|| panic!("no {head}"));
    let cells = table.lines().skip(1).take_while(|line| line.starts_with('|'));
    cells.flat_map(|row| quoted(row.split('|').nth(1).unwrap_or_default())).collect()
}

#[test]
fn every_fuzz_target_has_a_row() {
    let mut there = Vec::new();
    for (_, text) in code_files() {
        // Where it is documented, it is none.
        let text = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        for line in text {
            if let Some((_, name)) = line.split_once("fuzz!(\"") {
                there.push(name.split('"').next().unwrap().to_owned());
            }
        }
    }
    let testing = read("docs/testing.md");
    let mut told = rows(&testing, "| target | operations | what must hold |\n");
    told.sort_unstable();
    there.sort_unstable();
    assert!(there.len() >= 18, "only {}: are they still found?", there.len());
    assert_eq!(there, told);
    // How long each has run is said as well.
    let (_, longest) = testing.split_once("Longest runs so far").expect("it says that");
    let longest = longest.split("\n\n").next().unwrap();
    let untold: Vec<_> =
        told.iter().filter(|name| !quoted(longest).any(|one| one == **name)).collect();
    assert!(untold.is_empty(), "no longest run of {untold:?}");
}

/// Images of what stands on parts, each folder of them, are told where that is told.
#[test]
fn every_folder_of_images_is_told() {
    let format = read("docs/format.md");
    let (head, _) = format.split_once("\n## ").expect("sections");
    let folders = std::fs::read_dir(root().join("crates/modules/tests/golden")).unwrap();
    let mut there: Vec<_> =
        folders.map(|folder| folder.unwrap().file_name().into_string().unwrap()).collect();
    there.sort_unstable();
    let mut told: Vec<_> = quoted(head).filter(|name| !name.contains('/')).collect();
    told.sort_unstable();
    assert_eq!(there, told);
}

#[test]
fn every_kind_of_volume_has_a_row() {
    let volumes = read("docs/volumes.md");
    let mut told =
        rows(&volumes, "| kind | what it is | bytes | options | when one part is away |\n");
    let all = thinwire_modules::MODULES.iter().chain(thinwire_modules::KEEPING_MODULES);
    let mut there: Vec<_> = all.map(|module| module.name).collect();
    told.retain(|name| there.contains(name));
    told.sort_unstable();
    there.sort_unstable();
    assert_eq!(there, told);
}

/// What man pages of volumes show and quote: commands that are understood, and messages that something says.
#[test]
fn the_manual_of_volumes_shows_what_there_is() {
    let code: Vec<String> = code_files().into_iter().map(|(_, text)| text).collect();
    let (mut shown, mut quoted) = (0, 0);
    for page in thinwire_modules::MANUAL {
        for line in commands(page.text) {
            shown += 1;
            // What stands in a file is not there to be read.
            let words = words(&line).into_iter().map(|word| match word.contains(".toml#") {
                true => "memory:1M".to_owned(),
                false => word,
            });
            Cli::try_parse_from(words).unwrap_or_else(|e| panic!("{}: {line}\n{e}", page.name));
        }
        let failures = page.text.split_once("\n## Failures\n").expect("a section").1;
        for message in failures.split('*').skip(1).step_by(2) {
            quoted += 1;
            assert!(
                code.iter().any(|text| text.contains(message)),
                "{}: who says `{message}`?",
                page.name
            );
        }
    }
    assert!(
        shown >= 15 && quoted >= 8,
        "{shown} commands, {quoted} messages: are they still found?"
    );
}

/// The first cells of the table below a heading.
fn fields<'a>(text: &'a str, heading: &str) -> Vec<&'a str> {
    let start = text.find(&format!("\n{heading}\n")).unwrap_or_else(|| panic!("no {heading}"));
    let section = text[start..].lines().skip(2).take_while(|line| !line.starts_with('#'));
    let mut names: Vec<_> = section
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`').map(|(name, _)| name))
        .collect();
    names.sort_unstable();
    names
}

fn keys(value: &impl serde::Serialize) -> Vec<String> {
    let value = serde_json::to_value(value).unwrap();
    let mut keys: Vec<_> = value.as_object().expect("an object").keys().cloned().collect();
    keys.sort_unstable();
    keys
}

/// Programs read them: a field that goes or is called otherwise raises the schema.
#[test]
fn the_json_of_status_is_what_its_document_says() {
    let text = read("docs/status.md");
    let path = PathStatus {
        link: String::new(),
        remote: String::new(),
        state: String::new(),
        frame_bytes: 0,
        frame_bytes_limit: 0,
        full_size_retry_s: None,
        rtt_us: None,
        lost: 0,
    };
    let batch = BatchStatus { policy: String::new(), level: 0, requests: 0, frames: 0 };
    let leaf = LeafStatus {
        uri: String::new(),
        member: None,
        state: State::Away,
        paths: Vec::new(),
        timer: None,
        seconds_left: None,
        batch: None,
        integrity: None,
        detail: None,
    };
    let attachment = AttachmentStatus {
        name: String::new(),
        uri: String::new(),
        frontend: String::new(),
        path: None,
        state: State::Attached,
        insecure: true,
        key: None,
        suite: None,
        paths: Vec::new(),
        leaves: Vec::new(),
        timer: None,
        seconds_left: None,
        read_only: false,
        bytes: 1 << 30,
        outstanding: 0,
        pid: 0,
        batch: None,
        integrity: None,
        cache: None,
        mirrors: Vec::new(),
        nodes: Vec::new(),
        spin: None,
        control: None,
        detail: None,
    };
    let writer = WriterStatus {
        name: String::new(),
        attached: true,
        held_s: None,
        silent_s: None,
        lease_s: None,
    };
    let export = ExportStatus {
        name: String::new(),
        volume: String::new(),
        bytes: 0,
        block_bytes: 512,
        read_only: false,
        io: None,
        shard: 0,
        shards: vec![0],
        writer: None,
        generation: 0,
        record: String::new(),
        losses: 0,
        fault: None,
        copied_bytes: 0,
        cache: None,
        mirrors: Vec::new(),
        leaves: Vec::new(),
        nodes: Vec::new(),
    };
    let cache = CacheStatus { bytes: 0, used: 0, dirty: 0, hits: 0, misses: 0, ahead: 0 };
    let session = SessionStatus {
        initiator: String::new(),
        exports: Vec::new(),
        key: None,
        paths: Vec::new(),
        idle_s: 0.0,
        shard: 0,
    };
    let measure = MeasureStatus { taken: true, why: None };
    let privileges = PrivilegesStatus {
        user: String::new(),
        uid: 0,
        gid: 0,
        capabilities: Vec::new(),
        kept_for: None,
        no_new_privs: measure.clone(),
        not_dumpable: measure.clone(),
        seccomp: measure.clone(),
        io_uring: measure.clone(),
        refused_calls: Default::default(),
    };
    let offer = OfferStatus {
        offer: String::new(),
        export: String::new(),
        protocol: String::new(),
        insecure: true,
        not_promised: Vec::new(),
    };
    let key = KeyStatus { name: String::new(), ids: Vec::new() };
    let (name, id, suite) = (String::new(), String::new(), String::new());
    let session_key = SessionKeyStatus { name, id, suite, rekeys: 0 };
    let target = thinwire::health::empty_status("node", TargetState::Serving, true, 1);
    let mirror_leg =
        MirrorLegStatus { standing: String::new(), lacks: 0, retry_s: None, why: None };
    let node = NodeStatus { io: None, ..NodeStatus::default() };
    let all: [(&str, Vec<String>); 25] = [
        ("### A volume in a tree", keys(&node)),
        ("### The I/Os of a volume", keys(&IoStatus::default())),
        ("### The limits of a volume", keys(&LimitsStatus::default())),
        ("### The work of a volume", keys(&WorkStatus::default())),
        ("### An attachment", keys(&attachment)),
        ("### A path", keys(&path)),
        ("### A leaf", keys(&leaf)),
        ("### The integrity", keys(&IntegrityStatus::default())),
        ("### A mirror", keys(&MirrorStatus { legs: Vec::new() })),
        ("### A leg", keys(&mirror_leg)),
        ("### The batching", keys(&batch)),
        ("### A target", keys(&target)),
        ("### The privileges", keys(&privileges)),
        ("### A measure", keys(&measure)),
        ("### A link", keys(&LinkStatus::default())),
        ("### An export", keys(&export)),
        ("### A cache", keys(&cache)),
        ("### A writer", keys(&writer)),
        ("### An offer", keys(&offer)),
        ("### A limit", keys(&LimitStatus::default())),
        ("### A key", keys(&key)),
        ("### A session", keys(&session)),
        ("### The key of a session", keys(&session_key)),
        ("### The control socket", keys(&ControlCounters::default())),
        ("### The counters", keys(&TargetCounters::default())),
    ];
    for (heading, keys) in &all {
        assert_eq!(&fields(&text, heading), keys, "{heading}");
    }
    let headings = text.lines().filter(|line| line.starts_with("### "));
    assert_eq!(headings.count(), all.len(), "a section that nothing is compared with");
    assert_eq!(fields(&text, "## The JSON"), ["attachments", "schema", "targets"]);
    assert!(text.contains(&format!("| `schema` | {SCHEMA} |")), "the schema is {SCHEMA}");
}

/// The limits that the document has are those of the code, with their units and defaults.
#[test]
fn the_limits_are_those_of_the_document() {
    let text = read("docs/security.md");
    let start = text.find("## Limits").expect("a section");
    let table = text[start..].lines().skip_while(|line| !line.starts_with("|---"));
    let rows = table.skip(1).take_while(|line| line.starts_with('|'));
    let cells = |line: &str| {
        let cells = line.trim_matches('|').split('|').map(|cell| cell.trim().replace('`', ""));
        cells.take(3).collect::<Vec<_>>()
    };
    let shown: Vec<_> = rows.map(cells).collect();
    assert_eq!(shown.len(), Limit::ALL.len());
    for (limit, row) in Limit::ALL.iter().zip(&shown) {
        assert_eq!((row[0].as_str(), row[1].as_str()), (limit.name(), limit.unit()));
        // That of memory depends on the machine.
        let known = *limit == Limit::Memory || row[2] == limit.default_value().to_string();
        assert!(known, "{row:?}");
    }
}

/// The list of an architecture with old names and new ones.
#[cfg(target_arch = "x86_64")]
#[test]
fn the_system_calls_of_a_target_are_those_that_its_document_lists() {
    use thinwire_runtime::confine::GROUPS;
    let text = read("docs/security.md");
    let row = |group: &thinwire_runtime::confine::CallGroup| {
        let names = group.calls.iter().map(|call| format!("`{}`", call.name));
        format!("| {} | {} |", group.why, names.collect::<Vec<_>>().join(", "))
    };
    let rows: Vec<String> = GROUPS.iter().map(row).collect();
    let heading = "| for | calls |\n|---|---|\n";
    let table = text.split_once(heading).expect("there is a table of calls").1;
    let shown: Vec<&str> = table.lines().take_while(|line| line.starts_with('|')).collect();
    assert_eq!(shown, rows, "\n{}\n", rows.join("\n"));
}
