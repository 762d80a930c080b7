//! The tables in the dissector's source, for a test that compares them with those of the code.

use std::collections::BTreeMap;

/// The dissector.
pub fn source() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tools/wireshark/thinwire.lua");
    std::fs::read_to_string(path).expect("the dissector is there")
}

/// What stands between the braces of a table of that name, nested ones included.
fn table<'a>(source: &'a str, name: &str) -> &'a str {
    let start = format!("local {name} = {{");
    let at = source.find(&start).unwrap_or_else(|| panic!("a table {name}")) + start.len();
    let mut depth = 1;
    let end = source[at..].find(|c| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        depth == 0
    });
    &source[at..at + end.expect("it ends")]
}

/// A table such as `[1] = "READ", [2] = "WRITE"`.
pub fn names(source: &str, table_name: &str) -> BTreeMap<u64, String> {
    let entries = table(source, table_name).split('[').skip(1);
    let entry = |text: &str| {
        let (number, rest) = text.split_once(']').expect("a number in brackets");
        let name = rest.split('"').nth(1).expect("a name in quotes");
        (number.parse().expect("a number"), name.to_string())
    };
    entries.map(entry).collect()
}

/// A table such as `{ "fua", 0x01 }, { "no_hole", 0x02 }`, with its names in capitals.
pub fn bits(source: &str, table_name: &str) -> BTreeMap<u64, String> {
    let entries = table(source, table_name).split('{').skip(1);
    let entry = |text: &str| {
        let name = text.split('"').nth(1).expect("a name in quotes").to_uppercase();
        let digits = text.split("0x").nth(1).expect("a number in hex");
        let digits: String = digits.chars().take_while(char::is_ascii_hexdigit).collect();
        (u64::from_str_radix(&digits, 16).expect("hex"), name)
    };
    entries.map(entry).collect()
}

/// Number, name, kind of frame and size (or nothing) of each message, as they stand in the source.
pub fn messages(source: &str) -> Vec<(u8, String, String, String)> {
    let rows = source.lines().filter_map(|line| line.strip_prefix("message(0x"));
    let row = |text: &str| {
        let mut cells = text.split(',').map(str::trim);
        let mut next = || cells.next().expect("four cells");
        let number = u8::from_str_radix(next(), 16).expect("hex");
        let name = next().trim_matches('"').to_string();
        (number, name, next().to_string(), next().to_string())
    };
    rows.map(row).collect()
}
