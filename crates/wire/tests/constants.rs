//! Numbers in the prose of `docs/protocol.md` against the constants of the crates that implement it.
//! Those crates lie above this one, so their source is read as text. Whoever changes a constant
//! changes the sentence, and this table.

use std::path::Path;

fn read(path: &str) -> String {
    let full = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    std::fs::read_to_string(&full).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// Text with all white space as single spaces.
fn flat(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// File below `crates`, what stands in it, what stands in the document.
const TABLE: &[(&str, &str, &str)] = &[
    ("proto/src/received.rs", "WINDOW: u64 = 4096;", "replay window is 4096 numbers"),
    ("proto/src/received.rs", "AHEAD_MAX: u64 = 1 << 32;", "one more than 2^32 above the largest"),
    ("proto/src/ack.rs", "FRAMES_MAX: u32 = 16;", "after 16 eliciting frames"),
    (
        "proto/src/rtt.rs",
        "ACK_DELAY_MAX: Duration = Duration::from_micros(400);",
        "at most 400 us after",
    ),
    ("proto/src/rtt.rs", "ACK_DELAY_MAX: Duration = Duration::from_micros(400);", "plus 400 us"),
    (
        "proto/src/rtt.rs",
        "GRANULARITY: Duration = Duration::from_micros(300);",
        "(at least 300 us)",
    ),
    (
        "proto/src/rtt.rs",
        "INITIAL: Duration = Duration::from_millis(20);",
        "first sample 20 ms and 10 ms",
    ),
    ("proto/src/recovery.rs", "PACKET_THRESHOLD: u64 = 3;", "three or more numbers later"),
    (
        "proto/src/congestion.rs",
        "QUEUE_TARGET_NS: u64 = 1_000_000;",
        "more than 1 ms above the empty delay",
    ),
    (
        "proto/src/congestion.rs",
        "LOSS_SHARE: f64 = 0.15;",
        "more than 15 % of the round's frames lost",
    ),
    ("proto/src/congestion.rs", "DECREASE_MAX: f64 = 0.5;", "at most to half"),
    ("proto/src/congestion.rs", "BASE_AGE_NS: u64 = 10_000_000_000;", "of the last 10 to 20 s"),
    ("proto/src/session/mod.rs", "PATHS_MAX: usize = 16;", "up to 16 paths"),
    ("proto/src/congestion.rs", "DELAY_FRAMES_MIN: f64 = 8.0;", "not below 8 frames"),
    ("proto/src/session/intake.rs", "BLACK_HOLE_LOSSES: u32 = 4;", "were lost four times in a row"),
    (
        "proto/src/session/intake.rs",
        "BLACK_HOLE_TIME: Duration = Duration::from_millis(30);",
        "and over at least 30 ms",
    ),
    (
        "proto/src/probe.rs",
        "= [60_000, 32_768, 16_384, 8_972, 8_384, 4_288, 1_500, 1_472];",
        "60000, 32768, 16384, 8972, 8384, 4288, 1500 and 1472 bytes",
    ),
    ("proto/src/probe.rs", "TRIES: u32 = 3;", "unanswered three times"),
    ("proto/src/probe.rs", "RETRY_SIZE: Duration = Duration::from_secs(10);", "again after 10 s"),
    ("proto/src/probe.rs", "KEEP_ALIVE: Duration = Duration::from_secs(2);", "silent for 2 s"),
    ("proto/src/units.rs", "UNITS_MAX: usize = 2048;", "(1 MiB in this implementation)"),
    ("target/src/greet.rs", "SESSIONS_MAX: usize = 1024;", "has at most 1024 sessions"),
    (
        "target/src/limits.rs",
        "\"half-open-per-address\", \"sessions without an attachment\", 128,",
        "of which 128 at most may be without",
    ),
    (
        "target/src/room.rs",
        "FRESH: Duration = Duration::from_millis(500);",
        "opened at least 500 ms ago",
    ),
    ("target/src/cookie.rs", "PERIOD: Duration = Duration::from_secs(4);", "in periods of 4 s"),
    ("proto/src/path.rs", "AMPLIFICATION_MAX: u64 = 3;", "at most three times the bytes"),
    (
        "proto/src/probe.rs",
        "JUST_FIRST: Duration = Duration::from_millis(500);",
        "a candidate that it has not asked for 500 ms",
    ),
    ("initiator/src/attempt.rs", "RETRIES_MAX: u8 = 2;", "after the second RETRY"),
    (
        "initiator/src/association.rs",
        "DOUBT: Duration = Duration::from_millis(100);",
        "once in 100 ms at most",
    ),
    ("target/src/greet.rs", "OFFERS_MAX: usize = 256;", "(256 at most do)"),
    (
        "target/src/greet.rs",
        "UNCONFIRMED: Duration = Duration::from_secs(5);",
        "forgotten after 5 s",
    ),
    (
        "target/src/greet.rs",
        "UNKNOWN_EVERY: Duration = Duration::from_millis(2);",
        "once every 2 ms after a burst of 32",
    ),
    ("target/src/requests.rs", "EXTENTS_MAX: usize = 64;", "16 bytes each, at most 64"),
    ("target/src/config.rs", "lease: Duration::from_secs(30),", "and 30 s longer"),
    ("target/src/config.rs", "session_timeout: Duration::from_secs(120),", "silent for 120 s"),
    (
        "initiator/src/attempt.rs",
        "RETRY: Duration = Duration::from_millis(100);",
        "after 100 ms, doubling to 200 ms",
    ),
    (
        "initiator/src/attempt.rs",
        "RETRY_MAX: Duration = Duration::from_millis(200);",
        "doubling to 200 ms,",
    ),
    (
        "initiator/src/attempt.rs",
        "RETRY_MAX_LATER: Duration = Duration::from_millis(500);",
        "or to 500 ms once the attempt is a minute old",
    ),
    (
        "initiator/src/attempt.rs",
        "GATHER: Duration = Duration::from_millis(150);",
        "gathers OFFERs for 150 ms",
    ),
    (
        "initiator/src/association.rs",
        "DEAD_FOR: Duration = Duration::from_secs(3);",
        "all been silent for 3 s",
    ),
    (
        "initiator/src/attachment.rs",
        "ASK_AGAIN: Duration = Duration::from_millis(500);",
        "asks again every 500 ms",
    ),
    ("initiator/src/discovery.rs", "ASK_TIMES: u32 = 3;", "`thinwire discover` asks three times"),
    ("initiator/src/config.rs", "retained_bytes_max: 32 << 20,", "default 32 MiB"),
    ("link/src/packet.rs", "ETHERTYPE_DEFAULT: u16 = 0x88b5;", "EtherType 0x88B5"),
    ("link/src/packet.rs", "[0x03, 0x54, 0x57, 0x00, 0x00, 0x01];", "03:54:57:00:00:01"),
    ("link/src/udp/mod.rs", "PORT_DEFAULT: u16 = 34997;", "port 34997 at the target"),
    ("link/src/udp/mod.rs", "Ipv4Addr::new(239, 84, 87, 1);", "239.84.87.1"),
    ("link/src/udp/mod.rs", "Ipv6Addr::new(0xff12, 0, 0, 0, 0, 0, 0x5457, 1);", "ff12::5457:1"),
    (
        "link/src/udp/mod.rs",
        "FRAME_BYTES_BASE: usize = 1280 - 48;",
        "port 34997 | the interface's MTU less the IP and UDP headers | 1232 |",
    ),
    ("link/src/lib.rs", "HEAD_BYTES: usize = 192;", "192 bytes before a page border"),
    ("link/src/lib.rs", "FRAME_BYTES_MIN: usize = 1280;", "MTU below 1280 is not used"),
];

#[test]
fn numbers_in_the_prose_are_those_of_the_code() {
    let document = flat(&read("docs/protocol.md"));
    let mut faults = Vec::new();
    for (file, code, prose) in TABLE {
        if !read(&format!("crates/{file}")).contains(code) {
            faults.push(format!("crates/{file} does not say {code:?} any more"));
        }
        if !document.contains(prose) {
            faults.push(format!("docs/protocol.md does not say {prose:?} any more"));
        }
    }
    assert!(faults.is_empty(), "the document and the code go apart: {faults:#?}");
}

#[test]
fn the_reasons_of_the_state_machines_are_documented() {
    let code = read("crates/proto/src/drops.rs");
    let names = code.lines().filter_map(|line| {
        let rest = line.trim().strip_prefix("(DropReason::")?;
        rest.split('"').nth(1)
    });
    let names: Vec<&str> = names.collect();
    assert!(names.len() > 10, "found in the source: {names:?}");
    let document = read("docs/protocol.md");
    let section = document.split("\n## ").find(|s| s.starts_with("Refused frames")).unwrap();
    let table = section.rsplit("| reason |").next().unwrap();
    let documented: Vec<&str> =
        table.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    assert_eq!(documented, names);
}

/// The value of a constant, or of a setting's default, in a source file: a number or a shifted one.
fn constant(file: &str, name: &str) -> Option<u64> {
    let number = |text: &str| text.trim().replace('_', "").parse::<u64>().ok();
    let source = read(&format!("crates/{file}"));
    source.match_indices(name).find_map(|(at, _)| {
        let is_whole = source[..at].ends_with([' ', '(']);
        let rest = &source[at + name.len()..];
        let end = rest.find([';', '\n', ','])?;
        let value = match rest[..end].split_once('=').filter(|_| is_whole) {
            Some((_, value)) => value,
            None => rest[..end].strip_prefix(':').filter(|_| is_whole)?,
        };
        match value.split_once("<<") {
            Some((a, b)) => Some(number(a)? << number(b)?),
            None => number(value),
        }
    })
}

/// Each bound that the document gives is the one that the code has, where it says.
#[test]
fn the_bounds_are_those_of_the_code() {
    let document = read("docs/protocol.md");
    let section = document.split("\n## ").find(|s| s.starts_with("Bounds")).unwrap();
    let (mut checked, mut faults) = (0, Vec::new());
    for row in section.lines().filter(|line| line.starts_with("| ")) {
        let columns: Vec<&str> = row.trim_matches('|').split(" | ").collect();
        let [what, bound, _, place] = columns[..] else { panic!("not four columns: {row}") };
        for place in place.split(';').filter(|place| place.contains('`')) {
            let mut words = place.split('`').skip(1).step_by(2);
            let file = words.next().unwrap();
            assert!(!read(&format!("crates/{file}")).is_empty());
            let Some(name) = words.next() else { continue };
            let Some(value) = constant(file, name) else {
                faults.push(format!("{what}: crates/{file} has no {name}"));
                continue;
            };
            let mib = format!("{} MiB", value >> 20);
            let told = bound.contains(&mib) && value >= 1 << 20;
            let mut numbers = bound.split(|c: char| !c.is_ascii_digit());
            if !told && !numbers.any(|number| number == value.to_string()) {
                faults.push(format!("{what}: {name} is {value}, the document says {bound:?}"));
            }
            checked += 1;
        }
    }
    assert!(faults.is_empty(), "the document and the code go apart: {faults:#?}");
    assert!(checked > 25, "{checked} bounds found");
}
