//! What people type, and what stands in configurations: volumes, exports, links, addresses, sizes, names, limits,
//! whole command lines: right ones, with pieces of others behind them, and anything else. It is refused, or within
//! the bounds that are documented and the same when it is shown and read again.

use std::fmt::{Debug, Display};
use std::str::FromStr;
use std::time::Duration;

use clap::Parser;
use thinwire::cli::Cli;
use thinwire::export::ExportSpec;
use thinwire::face::NbdAddress;
use thinwire::size::{
    NAME_BYTES_MAX, check_name, parse_duration, parse_mac, parse_size, show_size,
};
use thinwire::uri::VolumeSpec;
use thinwire_frontend::nbd::Listen;
use thinwire_fuzz::{Choices, Reached, fuzz};
use thinwire_link::LinkSpec;
use thinwire_link::fault::FaultConfig;
use thinwire_proto::BatchPolicy;
use thinwire_runtime::wait::Spin;
use thinwire_target::{Limit, Limits};

/// Pieces of what has a meaning.
const WORDS: &[&str] = &[
    "tw://",
    "tw+udp://",
    "file:",
    "memory:",
    "null:",
    "linear:[",
    "slice:[",
    "stripe:[",
    "?chunk=",
    "?offset=",
    "&size=",
    "64K",
    "packet:",
    "xdp:",
    "udp:",
    "unix:",
    "tcp:",
    "static:",
    "?link=",
    "&link=",
    "&mtu=",
    "&members=",
    "&key=",
    "/",
    "//",
    ":",
    ",",
    ",,",
    "]",
    "[",
    "=",
    "+",
    "%",
    "#",
    ".toml#",
    "&",
    "?",
    "@",
    " ",
    "-",
    ".",
    "..",
    "node1",
    "disk0",
    "eth1",
    "10.0.0.1",
    "[::1]",
    "fe80::1%eth1",
    "02-00-00-00-00-02",
    "4G",
    "512",
    "4096",
    "1500",
    "0",
    "1",
    "ro",
    "keys=",
    "read-keys=",
    "block=",
    "cache=",
    "buffered",
    "spread",
    "weight=",
    "writeback",
    ",switch",
    "vlan=",
    "ethertype=0x",
    "loss=",
    "dup=",
    "delay=",
    "seed=",
    "us",
    "ms",
    "1%",
    "%2f",
    "%00",
    "%ff",
    "ib",
    "e",
    "a",
    "é",
    "\0",
    "none",
    "tyche",
    "backlog",
    "on",
    "always",
    "sessions=",
    "memory=",
    "--link",
    "--export",
    "--name",
    "--nbd",
    "--insecure",
    "--key",
    "--limit",
    "--shards",
    "--fault",
    "--help",
    "target",
    "attach",
    "bench",
    "copy",
    "status",
    "detach",
    "discover",
    "link",
];

/// Of each kind something that is right, to begin with.
const RIGHT: [&[&str]; 16] = [
    &[
        "tw://node1/disk0?link=eth1&mtu=1500",
        "linear:[memory:4096,null:512]",
        "stripe:[slice:[null:512]?offset=0&size=512]?chunk=64K",
    ],
    &["tw+udp://10.0.0.1:7/disk0", "file:/a", "a.toml#disk0"],
    &["disk0=memory:4G,cache=512,ro", "a=memory:4096,block=4096"],
    &["disk0=memory:4G,keys=a+b,read-keys=c"],
    &["unix:/a", "tcp:10.0.0.1:7", "tcp:[::1]:7"],
    &["unix:/a", "tcp:10.0.0.1:7"],
    &["eth1", "packet:eth1,vlan=7", "udp:10.0.0.1:7", "xdp:eth1"],
    &["loss=1%,seed=1", "delay=1ms", "loss=0.1,dup=0.1"],
    &["none", "static:8", "tyche", "backlog"],
    &["always", "on", "never"],
    &["4G", "512", "4096"],
    &["1ms", "500us", "1s"],
    &["node1", "disk0"],
    &["02-00-00-00-00-02", "02:00:00:00:00:02"],
    &["sessions=64", "memory=4G"],
    &["status", "discover --link eth1 --insecure", "detach disk0"],
];

fn text(choices: &mut Choices<'_>, kind: usize, most: usize) -> String {
    let mut text = String::new();
    if choices.flag() {
        text.push_str(choices.of::<&str>(RIGHT[kind]));
        if choices.flag() {
            return text;
        }
    }
    while !choices.is_empty() && text.len() < most {
        match choices.below(8) {
            0..=4 => text.push_str(choices.of::<&str>(WORDS)),
            5 => text.push(char::from(0x20 + choices.byte() % 0x5f)),
            6 => text.push_str(&choices.text(12)),
            // What is there already, once more; or its end away.
            _ => {
                let at = choices.below(text.len() + 1);
                let at = (at..=text.len())
                    .find(|&at| text.is_char_boundary(at))
                    .expect("the end is one");
                match choices.flag() {
                    true => {
                        let end = text[at..].to_owned();
                        text.push_str(&end);
                    }
                    false => text.truncate(at),
                }
            }
        }
    }
    text
}

/// Says the same when it is shown and read again.
fn means_the_same<T: FromStr<Err: Debug + PartialEq> + Display + Debug + PartialEq>(
    text: &str,
) -> bool {
    let Ok(read) = text.parse::<T>() else { return false };
    let shown = read.to_string();
    assert_eq!(shown.parse::<T>(), Ok(read), "`{text}` is shown as `{shown}`");
    true
}

static REACHED: Reached = Reached::new();

fn play(choices: &mut Choices<'_>) {
    let kind = choices.below(16);
    let text = text(choices, kind, 600);
    let (what, taken) = match kind {
        0 | 1 => ("volume", {
            let error = text.parse::<VolumeSpec>().err();
            // One within it may be what is wrong.
            let names = |error: &thinwire::error::ParseError| !error.why.is_empty();
            assert!(error.is_none_or(|error| names(&error)), "{text}");
            means_the_same::<VolumeSpec>(&text)
        }),
        2 | 3 => ("export", means_the_same::<ExportSpec>(&text)),
        4 => ("nbd", means_the_same::<NbdAddress>(&text)),
        5 => ("listen", means_the_same::<Listen>(&text)),
        6 => ("link", means_the_same::<LinkSpec>(&text)),
        7 => (
            "fault",
            text.parse::<FaultConfig>().is_ok_and(|fault| {
                let rates =
                    [fault.rates.loss, fault.rates.dup, fault.rates.reorder, fault.rates.corrupt];
                assert!(rates.iter().all(|rate| (0.0..=1.0).contains(rate)), "{text}: {fault:?}");
                assert!(fault.delay_ns_min <= fault.delay_ns_max, "{text}: {fault:?}");
                true
            }),
        ),
        8 => ("batch", means_the_same::<BatchPolicy>(&text)),
        9 => ("spin", means_the_same::<Spin>(&text)),
        10 => (
            "size",
            parse_size(&text).is_ok_and(|bytes| {
                assert_eq!(parse_size(&bytes.to_string()), Ok(bytes), "{text}");
                let _ = show_size(bytes);
                true
            }),
        ),
        11 => (
            "duration",
            parse_duration(&text).is_ok_and(|time| {
                assert!(
                    time > Duration::ZERO && time <= Duration::from_secs(366 * 86_400),
                    "{text}: {time:?}"
                );
                true
            }),
        ),
        12 => (
            "name",
            check_name("name", &text).is_ok_and(|()| {
                assert!(
                    (1..=NAME_BYTES_MAX).contains(&text.len()) && !text.starts_with('.'),
                    "{text}"
                );
                assert!(!text.contains(['/', '\0', ' ']), "{text}");
                true
            }),
        ),
        13 => (
            "mac",
            parse_mac(&text).is_some_and(|mac| {
                let shown: Vec<_> = mac.iter().map(|byte| format!("{byte:02x}")).collect();
                assert_eq!(shown.join("-"), text.to_ascii_lowercase());
                true
            }),
        ),
        14 => (
            "limit",
            thinwire::limits::parse(&text).is_ok_and(|(name, value)| {
                let mut limits = Limits::default();
                let limit =
                    thinwire::limits::set(&mut limits, &name, &value).expect("it was checked");
                let (least, most) = Limit::bounds(limit);
                assert!((least..=most).contains(&limits.get(limit)), "{text}");
                true
            }),
        ),
        _ => ("command", {
            let words = ["thinwire"].into_iter().chain(text.split(' '));
            match Cli::try_parse_from(words) {
                Ok(_) => true,
                Err(error) => {
                    // Its text is made when it is shown.
                    let _ = error.to_string();
                    false
                }
            }
        }),
    };
    if taken {
        REACHED.count(what);
    }
}

#[test]
fn fuzz_typed() {
    fuzz!("typed", 20_000, 120, play);
    REACHED.expect(&[
        "volume", "export", "nbd", "listen", "link", "fault", "batch", "spin", "size", "duration",
        "name", "mac", "limit", "command",
    ]);
}
