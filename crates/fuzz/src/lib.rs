//! What all fuzz targets share: bytes as choices, a target, and what it must have reached (`docs/testing.md`,
//! "Fuzzing").
//!
//! A fuzz target is a test called `fuzz_NAME` that hands a function to [`fuzz!`]. That function takes its
//! decisions from [`Choices`] and panics if something is wrong. It stands beside the code that it is about.
//!
//! `cargo test` plays what is kept in `__fuzz__/NAME` beside the file of the target, `crashes` (what has gone
//! wrong once) before `corpus`, and then a number of random inputs. `make fuzz` goes on for longer.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;

pub use bolero;
use bolero::{Driver, ValueGenerator};

/// Runs a fuzz target: `fuzz!("name", runs, bytes_max, play)`. `play` is a `fn(&mut Choices<'_>)`, `runs` how many
/// random inputs of at most `bytes_max` bytes `cargo test` plays.
///
/// # Panics
/// If `play` does; the shortest input for which it does, as far as that was looked for, is shown. If nothing is kept
/// for this name.
#[macro_export]
macro_rules! fuzz {
    ($name:literal, $runs:expr, $bytes_max:expr, $play:expr) => {{
        $crate::expect_corpus(env!("CARGO_MANIFEST_DIR"), file!(), $name);
        let play: fn(&mut $crate::Choices<'_>) = $play;
        $crate::bolero::check!(name = $name)
            .with_iterations($runs)
            .with_generator($crate::Input { bytes_max: $bytes_max })
            .for_each(|bytes: &Vec<u8>| play(&mut $crate::Choices::new(bytes)))
    }};
}

/// Any bytes, at most so many. What is kept in files are these bytes and nothing else, so that it means the same to
/// every version of the engine.
#[derive(Clone, Copy, Debug)]
pub struct Input {
    /// The most that are drawn at random; kept ones may be longer.
    pub bytes_max: usize,
}

impl ValueGenerator for Input {
    type Output = Vec<u8>;

    fn generate<D: Driver>(&self, driver: &mut D) -> Option<Vec<u8>> {
        driver.gen_from_bytes(
            || (0, Some(self.bytes_max)),
            |bytes| Some((bytes.len(), bytes.to_vec())),
        )
    }
}

/// A target whose corpus is not found would go without one, unseen.
#[doc(hidden)]
pub fn expect_corpus(manifest_dir: &str, file: &str, name: &str) {
    let found = Path::new(manifest_dir).ancestors().any(|folder| {
        let corpus = folder.join(file).with_file_name("__fuzz__").join(name).join("corpus");
        corpus.read_dir().is_ok_and(|mut files| files.next().is_some())
    });
    assert!(
        found,
        "nothing is kept for fuzz target {name} in __fuzz__/{name}/corpus beside {file}"
    );
}

/// Bytes that somebody chose, read as choices. When they are used up, every choice is the first.
#[derive(Clone, Debug)]
pub struct Choices<'a> {
    left: &'a [u8],
}

impl<'a> Choices<'a> {
    /// Choices out of these bytes, from the first on.
    pub fn new(bytes: &'a [u8]) -> Self {
        Choices { left: bytes }
    }

    /// None is left.
    pub fn is_empty(&self) -> bool {
        self.left.is_empty()
    }

    /// All that are left, as bytes.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.left)
    }

    /// At most so many bytes; fewer if no more are left.
    pub fn bytes(&mut self, most: usize) -> &'a [u8] {
        let (taken, left) = self.left.split_at(most.min(self.left.len()));
        self.left = left;
        taken
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        let taken = self.bytes(N);
        bytes[..taken.len()].copy_from_slice(taken);
        bytes
    }

    /// Any byte.
    pub fn byte(&mut self) -> u8 {
        u8::from_le_bytes(self.array())
    }

    /// Any 16 bits.
    pub fn short(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    /// Any 32 bits.
    pub fn word(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    /// Any 64 bits.
    pub fn long(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// One way or the other.
    pub fn flag(&mut self) -> bool {
        self.byte() & 1 != 0
    }

    /// Below `n`, which is not zero, with as many bytes as that takes.
    pub fn below(&mut self, n: usize) -> usize {
        let drawn = match n {
            0..=0x100 => usize::from(self.byte()),
            0x101..=0x1_0000 => usize::from(self.short()),
            _ => self.word() as usize,
        };
        drawn % n
    }

    /// One of these.
    pub fn of<'b, T>(&mut self, list: &'b [T]) -> &'b T {
        &list[self.below(list.len())]
    }

    /// A number as programs get them wrong: a small one, one near a power of two, or any.
    pub fn number(&mut self) -> u64 {
        let (kind, near) = (self.byte(), self.byte());
        let near = u64::from(near);
        match kind % 8 {
            0..=2 => near,
            3 => 512 * near,
            4 => (1u64 << (kind >> 3) << (near >> 6)).wrapping_add(near & 3).wrapping_sub(1),
            5 => u64::MAX - near,
            6 => u64::from(u32::MAX) - near,
            _ => self.long(),
        }
    }

    /// Text of at most so many bytes.
    pub fn text(&mut self, most: usize) -> String {
        let length = self.below(most + 1);
        String::from_utf8_lossy(self.bytes(length)).into_owned()
    }
}

/// What inputs of a target have reached: a target that gets nowhere proves nothing.
#[derive(Debug, Default)]
pub struct Reached(Mutex<BTreeMap<&'static str, u64>>);

impl Reached {
    /// Nothing yet.
    pub const fn new() -> Self {
        Reached(Mutex::new(BTreeMap::new()))
    }

    /// This was reached.
    pub fn count(&self, what: &'static str) {
        *self.0.lock().expect("nobody panics with it").entry(what).or_default() += 1;
    }

    /// # Panics
    /// If one of these never was.
    pub fn expect(&self, all: &[&str]) {
        let reached = self.0.lock().expect("nobody panics with it");
        let missing: Vec<_> = all.iter().filter(|what| !reached.contains_key(**what)).collect();
        assert!(missing.is_empty(), "never reached: {missing:?}; reached: {reached:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_end_with_the_first_of_each() {
        let mut choices = Choices::new(&[7, 1, 2, 3]);
        assert_eq!((choices.below(4), choices.short(), choices.is_empty()), (3, 0x201, false));
        assert_eq!((choices.word(), choices.is_empty()), (3, true));
        assert_eq!((choices.long(), choices.below(9), choices.text(5)), (0, 0, String::new()));
        assert_eq!((*choices.of(&["a", "b"]), choices.flag(), choices.number()), ("a", false, 0));
        assert_eq!(Choices::new(b"\x03abcd").text(10), "abc");
        let numbers = (0..=u8::MAX).map(|kind| Choices::new(&[kind, 1]).number());
        assert!(
            numbers.clone().any(|n| n == 1 << 31) && numbers.clone().any(|n| n == u64::MAX - 1)
        );
    }

    #[test]
    #[should_panic(expected = "nothing is kept for fuzz target nobody")]
    fn a_target_without_a_corpus_is_told() {
        expect_corpus(env!("CARGO_MANIFEST_DIR"), file!(), "nobody");
    }

    #[test]
    #[should_panic(expected = "never reached: [\"b\"]")]
    fn what_was_never_reached_is_told() {
        let reached = Reached::new();
        reached.count("a");
        reached.expect(&["a", "b"]);
    }
}
