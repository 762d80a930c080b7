//! A TOML file as written: its keys, and where in it they stand. `conf.d/*.toml` beside it adds to it.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::Spanned;

use crate::cli::{CompletionPath, Receive};
use crate::error::{Failure, Outcome};

#[cfg(test)]
thread_local! {
    /// How many files this thread has read.
    pub(crate) static READS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// All keys that a file may have, none of them checked but for its type.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileKeys {
    pub node: Option<Spanned<String>>,
    pub insecure: Option<bool>,
    #[serde(default)]
    pub link: Vec<Spanned<String>>,
    pub shards: Option<Spanned<u32>>,
    pub batch: Option<Spanned<String>>,
    pub data_batch: Option<bool>,
    pub receive: Option<Receive>,
    pub completion: Option<CompletionPath>,
    pub spin: Option<bool>,
    #[serde(default)]
    pub export: Vec<Spanned<FileExport>>,
    #[serde(default)]
    pub volume: Vec<Spanned<FileVolume>>,
}

/// `[[export]]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileExport {
    pub name: Spanned<String>,
    pub volume: Spanned<String>,
    #[serde(default)]
    pub read_only: bool,
    pub block: Option<Spanned<u64>>,
    #[serde(default)]
    pub writeback: bool,
}

/// `[[volume]]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileVolume {
    pub name: Spanned<String>,
    pub kind: Spanned<String>,
    pub children: Spanned<Vec<Spanned<String>>>,
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
        #[cfg(test)]
        READS.set(READS.get() + 1);
        let text = std::fs::read_to_string(path)
            .map_err(|e| Failure::usage(format!("{}: cannot be read: {e}", path.display())))?;
        let keys = toml::from_str(&text).map_err(|e| {
            let message = e.message().replace("unknown field", "unknown key");
            let message = message.replace("missing field", "missing key");
            let place = place(path, &text, e.span());
            Failure::usage(format!("{place}: {}", message.trim_end()))
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

/// `conf.d/*.toml` beside the file, sorted by name. No folder means none.
fn drop_ins(path: &Path) -> Outcome<Vec<PathBuf>> {
    let folder = path.parent().unwrap_or(Path::new("")).join("conf.d");
    let entries = match std::fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(Failure::usage(format!("{}: {e}", folder.display()))),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|e| Failure::usage(format!("{}: {e}", folder.display())))?;
        let path = entry.path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            found.push(path);
        }
    }
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
