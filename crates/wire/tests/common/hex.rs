//! Bytes kept as text in `tests/golden`, one file each. `THINWIRE_BLESS=1` writes them anew.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

pub fn to_hex(bytes: &[u8]) -> String {
    let mut out = String::new();
    for (row, line) in bytes.chunks(16).enumerate() {
        out += &format!("{:04x} ", row * 16);
        for byte in line {
            out += &format!(" {byte:02x}");
        }
        out.push('\n');
    }
    out
}

pub fn from_hex(text: &str) -> Vec<u8> {
    text.lines()
        .flat_map(|line| line.split_whitespace().skip(1))
        .map(|byte| u8::from_str_radix(byte, 16).expect("two hex digits"))
        .collect()
}

/// What is kept in a folder below `tests/golden`, by the names of its files, after it was written anew if somebody wants
/// that. Fails unless the files are those of `vectors`, with these bytes.
pub fn kept(folder: &str, vectors: &[(String, Vec<u8>)]) -> BTreeMap<String, Vec<u8>> {
    let folder: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(folder);
    if std::env::var_os("THINWIRE_BLESS").is_some() {
        std::fs::create_dir_all(&folder).unwrap();
        for (name, bytes) in vectors {
            std::fs::write(folder.join(name), to_hex(bytes)).unwrap();
        }
    }
    let files = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap());
    let files = files.filter(|entry| entry.file_type().unwrap().is_file());
    let found: BTreeSet<String> =
        files.map(|entry| entry.file_name().into_string().unwrap()).collect();
    let known: BTreeSet<String> = vectors.iter().map(|(name, _)| name.clone()).collect();
    assert_eq!(found, known, "files in {}", folder.display());
    let read = |(name, bytes): &(String, Vec<u8>)| {
        let text = std::fs::read_to_string(folder.join(name)).unwrap();
        assert_eq!(to_hex(bytes), text, "{name}: the format has changed");
        (name.clone(), from_hex(&text))
    };
    vectors.iter().map(read).collect()
}
