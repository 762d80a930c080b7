//! Labels, and what they keep, in hexadecimal digits: as they go from whoever has a volume open to who changes it, and back.

use thinwire_modules::meta::{LABEL_BYTES, Label};

/// In digits.
pub fn words_of_bytes(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The other way round; none if these are no digits of whole bytes.
pub fn bytes_of_words(words: &str) -> Option<Vec<u8>> {
    let digit = |digit: u8| char::from(digit).to_digit(16);
    let byte = |two: &[u8]| Some((digit(two[0])? << 4 | digit(*two.get(1)?)?) as u8);
    words.as_bytes().chunks(2).map(byte).collect()
}

/// A label; none if it cannot be written.
pub fn label_in_words(label: &Label) -> Option<String> {
    label.encode().ok().map(|image| words_of_bytes(&image[..]))
}

/// The other way round; none if it is of another version.
pub fn label_of_words(words: &str) -> Option<Label> {
    let image: Box<[u8; LABEL_BYTES]> = bytes_of_words(words)?.try_into().ok()?;
    Label::decode(&image).ok()
}
