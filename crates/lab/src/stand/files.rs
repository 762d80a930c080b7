//! A folder of files in memory, such as the parts of a volume, which goes with who uses it.

use std::path::{Path, PathBuf};

use super::Laboratory;
use crate::error::{Outcome, failed};

/// A folder in memory. Removed when it is dropped.
pub struct Files(PathBuf);

impl Files {
    /// An empty one.
    pub fn new(lab: &Laboratory) -> Outcome<Self> {
        let files = Files(lab.fresh_path("files"));
        std::fs::create_dir(&files.0)
            .map_err(failed(format!("cannot make the folder {}", files.0.display())))?;
        Ok(files)
    }

    /// The path of a file in it, there or not.
    pub fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("our own path").to_owned()
    }

    /// Writes a text file, and returns its path.
    pub fn text(&self, name: &str, text: &str) -> Outcome<String> {
        let path = self.path(name);
        std::fs::write(&path, text).map_err(failed(format!("cannot write {path}")))?;
        Ok(path)
    }

    /// Makes a file of so many bytes of which nothing is there yet, and returns its path.
    pub fn sparse(&self, name: &str, bytes: u64) -> Outcome<String> {
        let path = self.path(name);
        std::fs::File::create(&path)
            .and_then(|file| file.set_len(bytes))
            .map_err(failed(format!("cannot make {path}")))?;
        Ok(path)
    }

    /// Makes a file of the first bytes of another, and returns its path.
    pub fn copied(&self, name: &str, from: &Path, bytes: u64) -> Outcome<String> {
        let path = self.path(name);
        let copy = || -> std::io::Result<()> {
            let mut from = std::io::Read::take(std::fs::File::open(from)?, bytes);
            let mut file = std::fs::File::create(&path)?;
            std::io::copy(&mut from, &mut file)?;
            file.set_len(bytes)
        };
        copy().map_err(failed(format!("cannot make {path}")))?;
        Ok(path)
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
