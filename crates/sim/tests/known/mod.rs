//! At which seed each planted fault was found last. That one is asked first, so that a run need not pass through all before it;
//! where it does not show the fault any more, all are asked from the first on. It need not be the first of them: some are in the table
//! because they take less, with the fault and without it.
//!
//! `THINWIRE_BLESS=1 cargo test -p thinwire-sim --test seeds` asks all of that story, and writes the table anew: of a build with
//! assertions, by which some are found. The others, `--test ebd --test aoe --test volumes`, are to be asked with `--release`, as they run.

use std::fmt::Debug;
use std::ops::Range;
use std::sync::Mutex;

const TABLE: &str = include_str!("seeds.txt");

/// The first of these seeds that shows a fault, if none is known. `story` is the file of the test.
pub fn first(
    story: &str,
    canary: impl Debug,
    mut seeds: Range<u64>,
    shows: impl Fn(u64) -> bool,
) -> Option<u64> {
    let name = format!("{story} {canary:?} ");
    let is_blessed = std::env::var_os("THINWIRE_BLESS").is_some();
    let known = TABLE.lines().find_map(|line| line.strip_prefix(&name)?.parse().ok());
    if let Some(seed) = known.filter(|seed| !is_blessed && seeds.contains(seed)) {
        if shows(seed) {
            return Some(seed);
        }
        println!(
            "{name}is not found by seed {seed} any more: THINWIRE_BLESS=1 writes the table anew"
        );
    }
    let found = seeds.find(|&seed| shows(seed));
    if let Some(seed) = found.filter(|_| is_blessed) {
        write(&name, seed);
    }
    found
}

/// Tests of several threads do so at once; cargo runs one executable after the other.
fn write(name: &str, seed: u64) {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/known/seeds.txt");
    let text = std::fs::read_to_string(path).unwrap();
    let mut lines: Vec<&str> = text.lines().filter(|line| !line.starts_with(name)).collect();
    let line = format!("{name}{seed}");
    lines.push(&line);
    lines.sort_unstable();
    std::fs::write(path, lines.join("\n") + "\n").unwrap();
}
