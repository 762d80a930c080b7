//! A TOML file as written: its keys, and where in it they stand. `conf.d/*.toml` beside it adds to it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::thread::LocalKey;

use serde::Deserialize;
use thinwire_runtime::wait::Spin;
use toml::Spanned;

use crate::cli::{CompletionPath, Receive};
use crate::error::{Failure, Outcome, ParseError, why_unreadable};
use crate::offer::OfferSpec;

/// What has been read, by its whole path.
type Known<T> = RefCell<BTreeMap<PathBuf, T>>;

// A volume of a file may be named in several places of a command line and of files, each of which is parsed by
// itself: all see the file as it was when it was read first. One thread parses.
thread_local! {
    static TEXTS: Known<String> = const { RefCell::new(BTreeMap::new()) };
    /// Names of the files in each `conf.d`.
    static FOLDERS: Known<Vec<OsString>> = const { RefCell::new(BTreeMap::new()) };
    /// It is not for the first time.
    static IS_AGAIN: Cell<bool> = const { Cell::new(false) };
}

/// What lies at `path`: as it is known, or else by `read`.
fn once<T: Clone>(
    known: &'static LocalKey<Known<T>>,
    path: &Path,
    read: impl FnOnce(&Path) -> std::io::Result<T>,
) -> std::io::Result<T> {
    let whole = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    if let Some(found) = known.with_borrow(|known| known.get(&whole).cloned()) {
        return Ok(found);
    }
    let found = read(path)?;
    known.with_borrow_mut(|known| known.insert(whole, found.clone()));
    Ok(found)
}

#[cfg(test)]
thread_local! {
    /// How many files this thread has read.
    pub(crate) static READS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// What this thread reads from now on is read anew. Plain files only: a pipe, as of a shell's `<(...)`, could be
/// waited for in vain.
pub(crate) fn read_again() {
    IS_AGAIN.set(true);
    forget();
}

/// Forgets what this thread has read.
pub(crate) fn forget() {
    TEXTS.with_borrow_mut(BTreeMap::clear);
    FOLDERS.with_borrow_mut(BTreeMap::clear);
    crate::uri::forget_parts();
}

/// All keys that a file may have, none of them checked but for its type.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileKeys {
    pub node: Option<Spanned<String>>,
    pub insecure: Option<bool>,
    #[serde(default)]
    pub key: Vec<Spanned<String>>,
    pub authenticate_only: Option<bool>,
    pub announce: Option<bool>,
    #[serde(default)]
    pub limits: BTreeMap<String, Spanned<FileValue>>,
    #[serde(default)]
    pub link: Vec<Spanned<String>>,
    pub shards: Option<Spanned<u32>>,
    pub batch: Option<Spanned<String>>,
    pub data_batch: Option<bool>,
    pub receive: Option<Receive>,
    pub completion: Option<CompletionPath>,
    pub spin: Option<Spanned<FileSpin>>,
    pub user: Option<String>,
    pub confine: Option<bool>,
    /// Where `uuid:` looks for parts.
    #[serde(default)]
    pub places: Vec<PathBuf>,
    #[serde(default)]
    pub export: Vec<Spanned<FileExport>>,
    #[serde(default)]
    pub volume: Vec<Spanned<FileVolume>>,
    #[serde(default)]
    pub offer: Vec<Spanned<FileOffer>>,
}

/// A number, or a size in words.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "what goes here is a number or a size, as in 64 or \"4G\"")]
pub(crate) enum FileValue {
    Number(u64),
    Words(String),
}

impl std::fmt::Display for FileValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            FileValue::Number(number) => number.fmt(f),
            FileValue::Words(words) => words.fmt(f),
        }
    }
}

/// `spin`.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "spin is true, false or \"always\"")]
pub(crate) enum FileSpin {
    Switch(bool),
    Word(String),
}

impl FileSpin {
    /// What it says, as `--spin` takes it.
    pub fn when(&self) -> Result<Spin, String> {
        match self {
            FileSpin::Switch(true) => Ok(Spin::On),
            FileSpin::Switch(false) => Ok(Spin::Off),
            FileSpin::Word(word) => word.parse(),
        }
    }
}

/// `[[export]]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileExport {
    pub name: Spanned<String>,
    pub volume: Spanned<String>,
    #[serde(default)]
    pub read_only: bool,
    pub keys: Option<Spanned<Vec<String>>>,
    #[serde(default)]
    pub read_keys: Option<Spanned<Vec<String>>>,
    pub block: Option<Spanned<u64>>,
    pub buffered: Option<Spanned<bool>>,
    pub cache: Option<Spanned<String>>,
    pub spread: Option<Spanned<bool>>,
    pub weight: Option<Spanned<u64>>,
    #[serde(default)]
    pub writeback: bool,
}

/// `[[offer]]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileOffer {
    pub protocol: String,
    pub interface: String,
    pub device: String,
    pub export: String,
    pub form: Option<String>,
    pub ethertype: Option<String>,
    #[serde(default)]
    pub cached: bool,
    #[serde(default)]
    pub initiator: Vec<String>,
    #[serde(default)]
    pub insecure: bool,
}

impl FileOffer {
    /// The same, as it is typed.
    pub fn spec(&self) -> Result<OfferSpec, ParseError> {
        let FileOffer { protocol, interface, device, export, .. } = self;
        let mut text = format!("{protocol}:{interface}/{device}={export}");
        for (name, value) in [("form", &self.form), ("ethertype", &self.ethertype)] {
            text.extend(value.iter().map(|value| format!(",{name}={value}")));
        }
        if self.cached {
            text.push_str(",cached");
        }
        text.extend(self.initiator.iter().map(|mac| format!(",initiator={mac}")));
        if self.insecure {
            text.push_str(",insecure");
        }
        text.parse()
    }
}

/// `[[volume]]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileVolume {
    pub name: Spanned<String>,
    pub kind: Spanned<String>,
    pub children: Spanned<Vec<Spanned<String>>>,
    pub labels: Option<bool>,
    pub key: Option<Spanned<String>>,
    pub block: Option<Spanned<FileValue>>,
    pub chunk: Option<Spanned<FileValue>>,
    pub offset: Option<Spanned<FileValue>>,
    pub size: Option<Spanned<FileValue>>,
    pub iops: Option<Spanned<FileValue>>,
    pub read_iops: Option<Spanned<FileValue>>,
    pub write_iops: Option<Spanned<FileValue>>,
    pub bandwidth: Option<Spanned<FileValue>>,
    pub read_bandwidth: Option<Spanned<FileValue>>,
    pub write_bandwidth: Option<Spanned<FileValue>>,
    pub burst_ms: Option<Spanned<FileValue>>,
    pub share: Option<Spanned<FileValue>>,
    pub write_back: Option<Spanned<FileValue>>,
    pub max_age_ms: Option<Spanned<FileValue>>,
    pub leg_timeout_ms: Option<Spanned<FileValue>>,
    // Of modules for tests.
    pub read_ms: Option<Spanned<FileValue>>,
    pub write_ms: Option<Spanned<FileValue>>,
    pub reads: Option<Spanned<FileValue>>,
    pub writes: Option<Spanned<FileValue>>,
    pub flushes: Option<Spanned<FileValue>>,
    pub lost: Option<Spanned<FileValue>>,
    pub misdirected: Option<Spanned<FileValue>>,
    pub flipped: Option<Spanned<FileValue>>,
    pub from: Option<Spanned<FileValue>>,
    pub to: Option<Spanned<FileValue>>,
    pub seed: Option<Spanned<FileValue>>,
}

impl FileVolume {
    /// The options of modules, of all kinds, and what is said of each.
    pub fn options(&self) -> [(&'static str, Option<&Spanned<FileValue>>); 26] {
        let FileVolume { name: _, kind: _, children: _, labels: _, key: _, block, .. } = self;
        let FileVolume { chunk, offset, size, .. } = self;
        let FileVolume { iops, read_iops, write_iops, .. } = self;
        let FileVolume { bandwidth, read_bandwidth, write_bandwidth, burst_ms, share, .. } = self;
        let FileVolume { write_back, max_age_ms, leg_timeout_ms, .. } = self;
        let FileVolume { read_ms, write_ms, reads, writes, flushes, .. } = self;
        let FileVolume { lost, misdirected, flipped, from, to, seed, .. } = self;
        [
            ("block", block),
            ("chunk", chunk),
            ("offset", offset),
            ("size", size),
            ("iops", iops),
            ("read_iops", read_iops),
            ("write_iops", write_iops),
            ("bandwidth", bandwidth),
            ("read_bandwidth", read_bandwidth),
            ("write_bandwidth", write_bandwidth),
            ("burst_ms", burst_ms),
            ("share", share),
            ("write_back", write_back),
            ("max_age_ms", max_age_ms),
            ("leg_timeout_ms", leg_timeout_ms),
            ("read_ms", read_ms),
            ("write_ms", write_ms),
            ("reads", reads),
            ("writes", writes),
            ("flushes", flushes),
            ("lost", lost),
            ("misdirected", misdirected),
            ("flipped", flipped),
            ("from", from),
            ("to", to),
            ("seed", seed),
        ]
        .map(|(name, value)| (name, value.as_ref()))
    }
}

/// A file that was read.
#[derive(Debug)]
pub(crate) struct ConfigFile {
    path: PathBuf,
    text: String,
    pub keys: FileKeys,
}

impl ConfigFile {
    /// The file and then, sorted by name, what stands beside it in `conf.d`.
    pub fn read_all(path: &Path) -> Outcome<Vec<ConfigFile>> {
        let mut all = vec![ConfigFile::read(path)?];
        for drop_in in drop_ins(path)? {
            all.push(ConfigFile::read(&drop_in)?);
        }
        Ok(all)
    }

    fn read(path: &Path) -> Outcome<ConfigFile> {
        let text = once(&TEXTS, path, |path| {
            #[cfg(test)]
            READS.set(READS.get() + 1);
            if IS_AGAIN.get() && !path.metadata()?.is_file() {
                return Err(std::io::Error::other("only a plain file can be read again"));
            }
            std::fs::read_to_string(path)
        });
        let text = text.map_err(|e| {
            let why = why_unreadable(&e);
            Failure::usage(format!("{}: cannot be read: {why}", path.display()))
        })?;
        let keys = toml::from_str(&text).map_err(|e| {
            let message = e.message().replace("unknown field", "unknown key");
            let message = message.replace("missing field", "missing key");
            let place = place(path, &text, e.span());
            let hint = single_brackets(&text).unwrap_or_default();
            Failure::usage(format!("{place}: {}{hint}", message.trim_end()))
        })?;
        Ok(ConfigFile { path: path.to_owned(), text, keys })
    }

    /// Where relative paths in it begin.
    pub fn folder(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new(""))
    }

    /// `FILE:LINE`.
    pub fn place(&self, span: Range<usize>) -> String {
        place(&self.path, &self.text, Some(span))
    }

    /// That something at this place is wrong.
    pub fn wrong(&self, span: Range<usize>, why: impl fmt::Display) -> Failure {
        Failure::usage(format!("{}: {why}", self.place(span)))
    }
}

/// What to write for a table that there may be several of, if it stands in the text as one that is alone.
fn single_brackets(text: &str) -> Option<String> {
    let heads = ["export", "volume", "offer"];
    let head = heads.into_iter().find(|head| {
        let single = format!("[{head}]");
        text.lines().any(|line| line.trim_start().starts_with(&single))
    })?;
    Some(format!("; write [[{head}]] for [{head}]"))
}

/// `conf.d/*.toml` beside the file, sorted by name. No folder means none.
fn drop_ins(path: &Path) -> Outcome<Vec<PathBuf>> {
    let folder = path.parent().unwrap_or(Path::new("")).join("conf.d");
    let names = once(&FOLDERS, &folder, |folder| {
        let entries = match std::fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(e),
        };
        entries.map(|entry| Ok(entry?.file_name())).collect()
    });
    let names = names
        .map_err(|e| Failure::usage(format!("{}: {}", folder.display(), why_unreadable(&e))))?;
    let paths = names.iter().map(|name| folder.join(name));
    let is_toml = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "toml");
    let mut found: Vec<PathBuf> = paths.filter(is_toml).collect();
    found.sort();
    Ok(found)
}

/// `FILE:LINE`, or the file alone if there is no place in it.
fn place(path: &Path, text: &str, span: Option<Range<usize>>) -> String {
    match span {
        Some(span) => {
            let before = &text.as_bytes()[..span.start.min(text.len())];
            let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
            format!("{}:{line}", path.display())
        }
        None => path.display().to_string(),
    }
}
