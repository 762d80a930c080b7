//! Volumes as users name them: a path, `file:PATH`, `memory:SIZE`, `null:SIZE`, an export of a target
//! (`tw://`, `tw+udp://`), a device of an EBD or AoE server (`ebd://`, `aoe://`), a module over a list of these
//! (`linear:[VOLUME,...]`), with its options behind that, a part by its label (`uuid:UUID`), or one that a file
//! describes (`FILE.toml#NAME`).

mod aoe;
mod commons;
mod ebd;
mod ground;
mod leaves;
mod options;
mod part_uuid;
mod remote;

use std::cell::RefCell;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use thinwire_modules::{MODULES, Module, Options};
use thinwire_volume::ByteClaim;

use crate::error::ParseError;
use crate::size::parse_size;
pub use crate::trees::NodeName;
use crate::trees::Scope;
pub use aoe::AoeSpec;
pub(crate) use aoe::parse_shelf_slot;
pub use commons::CommonUse;
pub use ebd::EbdSpec;
pub(crate) use ebd::{parse_device, parse_ethertype, parse_plain_interface, plain_link};
pub use ground::{Clash, Ground};
pub(crate) use options::set_option;
pub(crate) use part_uuid::{InFolders, forget as forget_parts, in_folders};
pub use remote::{NodeAddress, RemoteSpec};

/// How deep volumes can be in each other, lists and those that files describe alike.
pub(crate) const DEPTH_MAX: usize = 32;

/// A volume, as named on the command line or in a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeSpec {
    /// A file or a block device.
    Path(PathBuf),
    /// Memory of this many bytes, lost with the process.
    Memory(u64),
    /// Reads zeroes, forgets writes; this many bytes.
    Null(u64),
    /// The same, completed by another thread: to measure what that costs.
    Switched(u64),
    /// An export of a target.
    Remote(RemoteSpec),
    /// A device of an EBD server.
    Ebd(EbdSpec),
    /// A device of an AoE server.
    Aoe(AoeSpec),
    /// A module over volumes, as many as it takes.
    Over {
        /// The name by which a file describes it; of a volume of a pool that of the pool, `@` and its own.
        node: Option<NodeName>,
        /// The module.
        module: &'static Module,
        /// What it is told besides.
        options: Options,
        /// In the order in which they were named.
        children: Vec<VolumeSpec>,
        /// Where a file names each of them (`FILE:LINE`); none if a list does.
        places: Vec<String>,
        /// Where a file describes it (`FILE:LINE`), if one does.
        place: Option<String>,
        /// They have labels, which say in which order they are.
        labels: bool,
        /// Of a pool the volume that is meant; none if it is the pool itself.
        inner: Option<String>,
        /// Names the key file of one that has a key: a path with a slash in it, or a name.
        key: Option<String>,
    },
    /// What is open already, for several who stand on it: only in what [`VolumeSpec::over_commons`] gives, and never named so.
    Share {
        /// A file or device.
        of: Box<VolumeSpec>,
        /// What of it is meant.
        claim: ByteClaim,
    },
}

impl VolumeSpec {
    /// What an attachment is called unless the user says otherwise: after the export of a remote volume;
    /// else after the last part of the path, or the kind of volume.
    pub fn short_name(&self) -> String {
        match self {
            VolumeSpec::Path(path) => {
                path.file_name().map_or("disk".into(), |name| name.to_string_lossy().into_owned())
            }
            VolumeSpec::Memory(_) => "memory".into(),
            VolumeSpec::Null(_) | VolumeSpec::Switched(_) => "null".into(),
            VolumeSpec::Remote(remote) => remote.export.clone(),
            VolumeSpec::Ebd(device) => format!("ebd{}.{}", device.major, device.minor),
            VolumeSpec::Aoe(spec) => format!("aoe{}", spec.device),
            VolumeSpec::Share { of, .. } => of.short_name(),
            VolumeSpec::Over { node: Some(node), .. } => node.name.clone(),
            VolumeSpec::Over { module, .. } => module.name.into(),
        }
    }

    /// As it stands in a list, where a comma within a name is written twice.
    pub(crate) fn in_list(&self) -> String {
        match self {
            VolumeSpec::Over { node: None, .. } => self.to_string(),
            leaf => leaf.to_string().replace(',', ",,"),
        }
    }
}

impl FromStr for VolumeSpec {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        parse_volume(text, &Scope::typed(&RefCell::default()))
    }
}

/// A volume, as `scope` understands its names.
pub(crate) fn parse_volume(text: &str, scope: &Scope<'_>) -> Result<VolumeSpec, ParseError> {
    let bad = |why: &str| Err(ParseError::new(text, why));
    if text.is_empty() {
        return bad(&format!("give a volume: a path, {}", kinds()));
    }
    let path = |text: &str| VolumeSpec::Path(scope.folder.join(text));
    // A colon after a slash belongs to a path.
    let (scheme, rest) = match text.split_once(':') {
        Some((scheme, rest)) if !scheme.contains('/') => (scheme, rest),
        _ => return Ok(scope.find(text)?.unwrap_or_else(|| path(text))),
    };
    match scheme {
        "file" if rest.is_empty() => bad("the path is missing"),
        "file" => Ok(path(rest)),
        "uuid" => match part_uuid::find(rest, scope.places()) {
            Ok(path) => Ok(VolumeSpec::Path(path)),
            Err(why) => bad(&why),
        },
        "memory" => Ok(VolumeSpec::Memory(store_size(text, rest)?)),
        "null" => Ok(match rest.strip_suffix(",switch") {
            Some(size) => VolumeSpec::Switched(store_size(text, size)?),
            None => VolumeSpec::Null(store_size(text, rest)?),
        }),
        "tw" | "tw+udp" => {
            let Some(rest) = rest.strip_prefix("//") else {
                return bad("`//` must follow the scheme, as in tw://node1/disk0?link=eth1");
            };
            let spec = remote::parse_remote(text, rest, scheme == "tw+udp");
            Ok(VolumeSpec::Remote(spec.map_err(|e| ParseError::new(text, e))?))
        }
        "ebd" => {
            let Some(rest) = rest.strip_prefix("//") else {
                return bad(
                    "`//` must follow the scheme, as in ebd://02-00-00-00-00-02/3.1?link=eth1",
                );
            };
            let spec = ebd::parse_ebd(text, rest);
            Ok(VolumeSpec::Ebd(spec.map_err(|e| ParseError::new(text, e))?))
        }
        "aoe" => {
            let Some(rest) = rest.strip_prefix("//") else {
                return bad("`//` must follow the scheme, as in aoe://7.1?link=eth1");
            };
            let spec = aoe::parse_aoe(text, rest);
            Ok(VolumeSpec::Aoe(spec.map_err(|e| ParseError::new(text, e))?))
        }
        name => match Module::find(name) {
            Some(module) => parse_over(text, module, rest, scope),
            None => bad(&format!(
                "unknown kind of volume `{name}:`; there are {} (a path with a colon: \
                     file:{text})",
                kinds()
            )),
        },
    }
}

/// A module over the volumes in a list.
fn parse_over(
    text: &str,
    module: &'static Module,
    list: &str,
    scope: &Scope<'_>,
) -> Result<VolumeSpec, ParseError> {
    let bad = |why: String| Err(ParseError::new(text, why));
    let Some(inner) = list.strip_prefix('[') else {
        let name = module.name;
        return bad(format!("volumes follow in brackets, as in {name}:[/srv/a.img,/srv/b.img]"));
    };
    // No option has a bracket.
    let (list, options) = match inner.rsplit_once(']') {
        Some((list, "")) => (list, Options::default()),
        Some((list, behind)) if has_as_many(list) => match behind.strip_prefix('?') {
            Some(options) => {
                let options = options::parse(module, options);
                (list, options.map_err(|why| ParseError::new(text, why))?)
            }
            None => return bad(options::misplaced(module, behind)),
        },
        _ => return bad("the ] at its end is missing".to_owned()),
    };
    let texts = split_commas(list);
    let plain = texts.iter().filter(|child| begins_list(child).is_none());
    for child in plain.filter(|child| child.contains(['[', ']'])) {
        // An address may have them, in pairs: so the list still ends where it seems to.
        let why = match is_remote(child) {
            true if has_pairs(child) => continue,
            true => "its brackets do not match (one that is part of a name is %5B or %5D)",
            false => {
                "no bracket can stand in the name of one of them, but in [[volume]] of a TOML file"
            }
        };
        return bad(format!("`{child}`: {why}"));
    }
    scope.descend().map_err(|why| ParseError::new(beginning(text), why))?;
    let children = texts.iter().map(|child| parse_volume(child, scope));
    let children: Vec<VolumeSpec> = children.collect::<Result<_, _>>()?;
    scope.ascend();
    module.check_count(children.len()).map_err(|e| ParseError::new(text, e.to_string()))?;
    let (node, place, key, inner) = (None, None, None, None);
    let (places, labels) = (Vec::new(), false);
    Ok(VolumeSpec::Over { node, module, options, children, places, place, labels, key, inner })
}

/// All kinds of volumes but paths, for those who named another.
fn kinds() -> String {
    let lists: Vec<_> =
        MODULES.iter().map(|module| format!("{}:[VOLUME,...]", module.name)).collect();
    let lists = lists.join(", ");
    format!(
        "file:PATH, uuid:PART, FILE.toml#NAME, memory:SIZE, null:SIZE, tw://NODE/EXPORT, \
         tw+udp://HOST/EXPORT, ebd://MAC/MAJOR.MINOR, aoe://SHELF.SLOT, {lists}"
    )
}

/// What follows `NAME:` of a module, if a text begins so.
fn begins_list(text: &str) -> Option<&str> {
    let (name, rest) = text.split_once(':')?;
    Module::find(name).map(|_| rest)
}

fn is_remote(text: &str) -> bool {
    matches!(text.split_once(':'), Some(("tw" | "tw+udp" | "ebd" | "aoe", _)))
}

/// As many brackets are closed as are opened.
fn has_as_many(text: &str) -> bool {
    text.matches('[').count() == text.matches(']').count()
}

/// Each bracket is closed before the next one opens.
fn has_pairs(text: &str) -> bool {
    let brackets = text.chars().filter(|c| matches!(c, '[' | ']'));
    let brackets: String = brackets.collect();
    brackets.replace("[]", "").is_empty()
}

/// Enough of a text that may be very long to know it by.
fn beginning(text: &str) -> String {
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// Splits at single commas outside of lists of volumes; a doubled one stands for itself, and inside of a
/// list is left to whoever reads that. At least one part.
pub(crate) fn split_commas(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut depth = 0usize;
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        // Brackets mean nothing in the names of files.
        let list = parts.last().and_then(|part| begins_list(part));
        match c {
            '[' if list.is_some() => depth += 1,
            ']' if list.is_some() => depth = depth.saturating_sub(1),
            _ => {}
        }
        if c == ',' && depth == 0 && chars.next_if_eq(&',').is_none() {
            parts.push(String::new());
        } else {
            parts.last_mut().expect("never empty").push(c);
        }
    }
    parts
}

fn store_size(whole: &str, size: &str) -> Result<u64, ParseError> {
    let bytes = parse_size(size).map_err(|e| ParseError::new(whole, e.to_string()))?;
    if bytes == 0 {
        return Err(ParseError::new(whole, "the size is zero"));
    }
    if bytes % 512 != 0 {
        return Err(ParseError::new(
            whole,
            format!("{bytes} bytes is not a multiple of the block of 512 bytes"),
        ));
    }
    Ok(bytes)
}

impl fmt::Display for VolumeSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            VolumeSpec::Path(path) => write!(f, "file:{}", path.display()),
            VolumeSpec::Memory(bytes) => write!(f, "memory:{bytes}"),
            VolumeSpec::Null(bytes) => write!(f, "null:{bytes}"),
            VolumeSpec::Switched(bytes) => write!(f, "null:{bytes},switch"),
            VolumeSpec::Remote(remote) => remote.fmt(f),
            VolumeSpec::Ebd(device) => device.fmt(f),
            VolumeSpec::Aoe(device) => device.fmt(f),
            VolumeSpec::Share { of, .. } => of.fmt(f),
            VolumeSpec::Over { node: Some(node), .. } => node.fmt(f),
            VolumeSpec::Over { module, options, children, .. } => {
                let children: Vec<_> = children.iter().map(VolumeSpec::in_list).collect();
                write!(f, "{}:[{}]{}", module.name, children.join(","), options::Shown(options))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_volumes() {
        let path = |p: &str| Ok(VolumeSpec::Path(p.into()));
        assert_eq!("/srv/disk0.img".parse(), path("/srv/disk0.img"));
        assert_eq!("disk0.img".parse(), path("disk0.img"));
        assert_eq!("./a:b".parse(), path("./a:b"));
        assert_eq!("file:a:b".parse(), path("a:b"));
        assert_eq!("file:/srv/50%.img".parse(), path("/srv/50%.img"));
        assert_eq!("memory:4G".parse(), Ok(VolumeSpec::Memory(4 << 30)));
        assert_eq!("null:512".parse(), Ok(VolumeSpec::Null(512)));
        assert_eq!("null:512,switch".parse(), Ok(VolumeSpec::Switched(512)));
        assert!("null:512,slow".parse::<VolumeSpec>().is_err());
    }

    #[test]
    fn shown_as_they_can_be_typed_again() {
        for text in [
            "tw://node1/disk0?link=eth1&link=udp:10.0.0.1:7&mtu=9000",
            "tw://node1/disk0?members=2&link=eth1",
            "tw://02-00-00-00-00-0a/disk0?link=packet:eth1",
            "tw+udp://10.0.0.2/disk0",
            "tw+udp://[fe80::1]:7/disk0?link=udp:fe80::2",
            "tw+udp://host.example:7/disk0",
            "file:/srv/disk0.img",
            "memory:4096",
            "null:512",
            "linear:[memory:512,linear:[file:/a,,b],tw://node1/a?link=packet:eth1,,vlan=7]",
            "stripe:[memory:4096,slice:[file:/a,,b]?offset=512&size=8192]?chunk=131072",
            "linear:[slice:[tw+udp://[::1]/a]?size=512,stripe:[memory:65536],slice:[file:/a?b]]",
            "linear:[tw+udp://[fe80::1]:7/a?link=udp:[fe80::2],linear:[tw+udp://[::1]/a,file:/b],memory:512]",
        ] {
            assert_eq!(text.parse::<VolumeSpec>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn options_stand_behind_a_list() {
        let options = |text: &str| match text.parse() {
            Ok(VolumeSpec::Over { options, children, .. }) => {
                (options.iter().collect::<Vec<_>>(), children.len())
            }
            other => panic!("{text}: {other:?}"),
        };
        assert_eq!(options("stripe:[/a,/b]?chunk=128K"), (vec![("chunk", 128 << 10)], 2));
        let both = vec![("offset", 1 << 20), ("size", 4 << 30)];
        assert_eq!(options("slice:[/a]?offset=1M&size=4G"), (both.clone(), 1));
        assert_eq!(options("slice:[/a]?size=4GiB&offset=1048576"), (both, 1));
        // Those of one inside are its own.
        assert_eq!(options("stripe:[slice:[/a]?offset=1M,/b]"), (vec![], 2));
        let error = "stripe:[slice:[/a]?chunk=4K]?chunk=4K".parse::<VolumeSpec>().unwrap_err();
        assert!(error.to_string().contains("`slice:[/a]?chunk=4K`: slice has no"), "{error}");
        let parts = ["stripe:[slice:[/a]?size=1M,/b]?chunk=4K", "ro"];
        assert_eq!(split_commas(&parts.join(",")), parts);
    }

    #[test]
    fn lists_in_lists_have_a_bound() {
        let nested =
            |depth: usize| format!("{}memory:512{}", "linear:[".repeat(depth), "]".repeat(depth));
        assert!(nested(DEPTH_MAX).parse::<VolumeSpec>().is_ok());
        // One after the other is not one in the other.
        let wide = vec![nested(DEPTH_MAX - 1); 3].join(",");
        assert!(format!("linear:[{wide}]").parse::<VolumeSpec>().is_ok());
        for depth in [DEPTH_MAX + 1, 14_000] {
            let error = nested(depth).parse::<VolumeSpec>().unwrap_err().to_string();
            assert!(error.contains("32 at most"), "{error}");
            assert!(error.len() < 300, "{error}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, named) in [
            ("", "give a volume"),
            ("file:", "path is missing"),
            ("memory:", "not a size"),
            ("memory:0", "zero"),
            ("memory:100", "multiple"),
            ("null:4Q", "`4Q`"),
            ("nbd://host/x", "`nbd:`"),
            ("linaer:[memory:512]", "linear:[VOLUME,...]"),
            ("linear:memory:512", "as in linear:[/srv/a.img"),
            ("linear:[/x,/a[1]]", "no bracket"),
            ("linear:[/x,/y", "the ] at its end is missing"),
            ("linear:[/x,tw+udp://[::1]/a", "the ] at its end is missing"),
            ("slice:[/x]offset=1M", "`offset=1M`: only options can follow"),
            ("stripe:[/x,/y]/z", "as in stripe:[...]?chunk=64K"),
            ("linear:[/x,/y],", "`,`: nothing can follow"),
            ("linear:[/x,/y]?chunk=64K", "linear has no `chunk`: it has no options"),
            ("slice:[/y]?chunk=64K", "slice has no `chunk`; it has offset, size"),
            ("linear:[/x,slice:[/y]?size=1M", "the ] at its end is missing"),
            ("linear:[/x,/y]?", "no option follows the `?`"),
            ("stripe:[/x,/y]?chunk", "`chunk`: its value is missing, as in chunk=64K"),
            ("stripe:[/x,/y]?chunk=", "`chunk=`: not a size"),
            ("stripe:[/x,/y]?chunk=many", "`chunk=many`: not a size"),
            ("stripe:[/x,/y]?chunk=64K&chunk=64K", "`chunk=64K`: chunk is given twice"),
            ("stripe:[/x,/y]?chunk=64K&&", "no option follows the `&`"),
            ("stripe:[/x,/y]?chunk=2K", "`chunk=2K`: chunk is 4096 to 67108864 bytes, not 2048"),
            ("stripe:[/x,/y]?chunk=1G", "chunk is 4096 to 67108864 bytes, not 1073741824"),
            ("stripe:[/x,/y]?chunk=5000", "chunk is a multiple of 4096 bytes, which 5000 is not"),
            ("slice:[/x]?size=0", "size is 512 or more bytes, not 0"),
            ("slice:[/x]?offset=100", "offset is a multiple of 512 bytes"),
            ("slice:[/x,/y]?offset=1M", "slice takes 1 volume, not 2"),
            ("linear:[/x,tw+udp://[::1/a]", "`tw+udp://[::1/a`: its brackets do not match"),
            ("linear:[/x,tw://n/a?link=eth]1[]", "%5D"),
            ("tw:node1/disk0", "`//`"),
            ("tw://", "node is missing"),
            ("tw://node1", "export is missing"),
            ("tw://node1/?link=eth1", "export is missing"),
            ("tw://node1/disk0", "no link"),
            ("tw://node1/a/b?link=eth1", "`a/b`"),
            ("tw://node1/disk0?link=", "interface is missing"),
            ("tw://node1/disk0?link=tcp:eth1", "tcp"),
            ("tw://node1/disk0?link=eth1&link=eth1", "twice"),
            ("tw://node1/disk0?link=eth1&link=packet:eth1", "twice"),
            ("tw://node1/disk0?link=eth1&mtu=100", "`mtu=100`"),
            ("tw://node1/disk0?link=eth1&mtu=1500&mtu=9000", "twice"),
            ("tw://node1/disk0?link=eth1&members=0", "from 1 to 16"),
            ("tw://node1/disk0?link=eth1&members=17", "`members=17`"),
            ("tw://node1/disk0?link=eth1&members=2&members=2", "twice"),
            ("tw://node1/disk0?link=eth1&integrity=yes", "on or off"),
            ("tw://node1/disk0?link=eth1&integrity=on&integrity=on", "twice"),
            (
                "tw://node1/disk0?link=eth1&jumbo=1",
                "`jumbo`; known are `link`, `key`, `mtu`, `members` and `integrity`",
            ),
            ("tw://node1/disk0?%zz=1", "%zz"),
            ("tw://node1/disk0%?link=eth1", "hexadecimal"),
            ("tw://node1/disk0%0a?link=eth1", "control"),
            ("tw://node1/disk0%ff?link=eth1", "UTF-8"),
            ("tw://node1/disk0?link=eth1#x", "`#x`"),
            ("tw://node1:80/disk0?link=eth1", "tw+udp://"),
            ("tw://03-00-00-00-00-02/disk0?link=eth1", "multicast"),
            ("tw+udp:///disk0", "host is missing"),
            ("tw+udp://::1/disk0", "brackets"),
            ("tw+udp://[::1/disk0", "`]`"),
            ("tw+udp://[::x]/disk0", "`::x`"),
            ("tw+udp://[::1]7/disk0", "`7`"),
            ("tw+udp://h:0/disk0", "`0`"),
            ("tw+udp://h:99999/disk0", "`99999`"),
            ("tw+udp://u@h/disk0", "'@'"),
            ("tw+udp://h/disk0?link=eth1", "`link=eth1`"),
        ] {
            let error = text.parse::<VolumeSpec>().unwrap_err().to_string();
            assert!(error.contains(named), "{text}: {error}");
            assert!(error.contains(text), "{text}: {error}");
        }
    }
}
