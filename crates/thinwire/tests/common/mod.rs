//! What the command's tests share.
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::process::Command;

/// How a command ended.
pub struct Ran {
    pub code: i32,
    pub out: String,
    pub err: String,
}

/// Runs `thinwire` with these words.
pub fn thinwire(words: &[&str]) -> Ran {
    let output = Command::new(env!("CARGO_BIN_EXE_thinwire")).args(words).output().expect("runs");
    Ran {
        code: output.status.code().expect("not killed"),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// A folder of its own for each test.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("thinwire-cli-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a file, with the folders it needs.
    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.0.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    }

    pub fn at(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
