//! Sizes (`4G`, `512M`, `4k`), durations (`10`, `10s`, `250ms`) and names, as users type them.

use std::time::Duration;

use crate::error::ParseError;

/// The longest node, export or attachment name in bytes. Names become file names, and parts of
/// host names.
pub const NAME_BYTES_MAX: usize = 64;

/// Bytes from `4G`, `512M`, `4k`, `4KiB` or a plain number. Units are powers of 1024.
pub fn parse_size(text: &str) -> Result<u64, ParseError> {
    let bad = |why: &str| ParseError::new(text, format!("not a size: {why}"));
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    if digits == 0 {
        return Err(bad("it must start with a digit, as in 4G, 512M or 4k"));
    }
    let number: u64 = text[..digits].parse().map_err(|_| bad("too large"))?;
    let unit = text[digits..].to_ascii_lowercase();
    let shift = match unit.strip_suffix("ib").unwrap_or(&unit) {
        "" if unit.is_empty() => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        "p" => 50,
        _ => return Err(bad("the unit must be k, M, G, T or P (powers of 1024)")),
    };
    number.checked_mul(1 << shift).ok_or_else(|| bad("too large"))
}

/// `bytes` with the largest unit that keeps it short: `4 GiB`, `1.5 MiB`, `512 B`.
pub fn show_size(bytes: u64) -> String {
    let mut value = bytes as f64;
    let mut unit = "B";
    for next in ["KiB", "MiB", "GiB", "TiB", "PiB"] {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    if value.fract() == 0.0 { format!("{value} {unit}") } else { format!("{value:.1} {unit}") }
}

/// A duration: `10` or `10s` (seconds), `1.5`, `250ms`, `5m`, `1h`. More than zero, at most a year.
pub fn parse_duration(text: &str) -> Result<Duration, ParseError> {
    let bad = |why: &str| ParseError::new(text, format!("not a duration: {why}"));
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number: f64 = text[..end].parse().map_err(|_| bad("give seconds, as in 10, 10s or 0.5"))?;
    let scale = match &text[end..] {
        "" | "s" => 1.0,
        "ms" => 0.001,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(bad("the unit must be ms, s, m or h")),
    };
    let seconds = number * scale;
    if seconds <= 0.0 {
        return Err(bad("it must be more than zero"));
    }
    if seconds > 366.0 * 86400.0 {
        return Err(bad("more than a year"));
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// Checks a node, export or attachment name: 1 to 64 of `A-Z a-z 0-9 . _ -`, the first a letter
/// or digit. `what` is the noun for the message.
pub fn check_name(what: &str, name: &str) -> Result<(), ParseError> {
    let bad = |why: String| Err(ParseError::new(name, format!("not a valid {what}: {why}")));
    if name.is_empty() {
        return bad("it is empty".into());
    }
    if name.len() > NAME_BYTES_MAX {
        return bad(format!("longer than {NAME_BYTES_MAX} bytes"));
    }
    if let Some(c) = name.chars().find(|c| !(c.is_ascii_alphanumeric() || ".-_".contains(*c))) {
        return bad(format!("it contains {c:?}; allowed are letters, digits, `.`, `_` and `-`"));
    }
    if !name.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return bad("it must start with a letter or digit".into());
    }
    Ok(())
}

/// An Ethernet address with dashes, as in `02-00-00-00-00-02`.
pub fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let mut mac = [0; 6];
    let mut parts = text.split('-');
    for byte in &mut mac {
        let part = parts.next()?;
        if part.len() != 2 || !part.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    parts.next().is_none().then_some(mac)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("0", 0),
            ("512", 512),
            ("4k", 4096),
            ("4K", 4096),
            ("4KiB", 4096),
            ("512M", 512 << 20),
            ("4G", 4 << 30),
            ("2T", 2 << 40),
            ("1P", 1 << 50),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in
            ["", "G", "4Q", "4 G", "-4", "4.5G", "ib", "4ib", "99999999999999999999", "16384P"]
        {
            let error = parse_size(text).unwrap_err();
            assert!(error.to_string().contains(&format!("`{text}`")), "{error}");
        }
        assert_eq!(show_size(512), "512 B");
        assert_eq!(show_size(4 << 30), "4 GiB");
        assert_eq!(show_size(3 << 19), "1.5 MiB");
    }

    #[test]
    fn durations() {
        assert_eq!(parse_duration("10"), Ok(Duration::from_secs(10)));
        assert_eq!(parse_duration("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(parse_duration("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse_duration("2m"), Ok(Duration::from_secs(120)));
        for text in ["", "s", "0", "-1", "10x", "1.2.3", "1e99", "99999999h", ".", "inf", "nan"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn names_and_macs() {
        for name in ["disk0", "a", "node-1.lab_2", "0x"] {
            assert_eq!(check_name("export name", name), Ok(()), "{name}");
        }
        for name in ["", ".hidden", "-x", "a/b", "a b", "ü", "a\0", &"x".repeat(65)] {
            assert!(check_name("export name", name).is_err(), "{name:?}");
        }
        assert_eq!(parse_mac("02-00-00-00-00-0f"), Some([2, 0, 0, 0, 0, 15]));
        for text in [
            "02-00-00-00-00",
            "02-00-00-00-00-02-03",
            "2-0-0-0-0-2",
            "02:00:00:00:00:02",
            "0g-00-00-00-00-00",
            "+2-00-00-00-00-00",
        ] {
            assert_eq!(parse_mac(text), None, "{text}");
        }
    }
}
