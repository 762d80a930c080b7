//! Images of what stands on parts, kept in `tests/golden` as rows of hex. `THINWIRE_BLESS=1` writes them anew.

use std::path::Path;

/// Rows of 16 bytes, but those that are all zero.
fn to_hex(image: &[u8]) -> String {
    let mut out = String::new();
    for (row, line) in image.chunks(16).enumerate() {
        if line.iter().any(|&byte| byte != 0) {
            out += &format!("{:04x} ", row * 16);
            line.iter().for_each(|byte| out += &format!(" {byte:02x}"));
            out.push('\n');
        }
    }
    out
}

/// The bytes of an image, `len` of them.
fn from_hex(text: &str, len: usize) -> Vec<u8> {
    let mut image = vec![0; len];
    for line in text.lines() {
        let (at, bytes) = line.split_once(' ').expect("a row begins with its offset");
        let at = usize::from_str_radix(at, 16).expect("it is in hex");
        for (byte, place) in bytes.split_whitespace().zip(&mut image[at..]) {
            *place = u8::from_str_radix(byte, 16).expect("so is each byte");
        }
    }
    image
}

/// Compares images with those that are kept in this folder of `tests/golden`, where no others are.
///
/// # Panics
/// One differs, or is not there; or there are more.
pub(crate) fn are_kept(folder: &str, images: &[(&str, Vec<u8>)]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(folder);
    let is_to_be_written = std::env::var_os("THINWIRE_BLESS").is_some();
    if is_to_be_written {
        std::fs::create_dir_all(&folder).unwrap();
    }
    for (name, image) in images {
        let file = folder.join(format!("{name}.hex"));
        if is_to_be_written {
            std::fs::write(&file, to_hex(image)).unwrap();
        }
        let kept = std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(to_hex(image), kept, "{name}: the format has changed");
        assert_eq!(from_hex(&kept, image.len()), *image, "{name}");
    }
    assert_eq!(std::fs::read_dir(folder).unwrap().count(), images.len());
}
