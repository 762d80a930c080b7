//! Which mounts a process sees (`/proc/PID/mountinfo`), without touching any of them: a stat of a
//! dead mount, or of one that this very thread serves, would hang.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// One line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// Device number of the file system, as `MAJOR:MINOR`.
    pub dev: String,
    /// Where it is mounted.
    pub point: PathBuf,
    /// Its type (`ext4`, `fuse.thinwire`).
    pub fstype: String,
    /// The device or name it was mounted from.
    pub source: PathBuf,
}

/// The mounts that process `pid` (or `self`) sees, in the order of mounting.
pub fn mounts_of(pid: &str) -> io::Result<Vec<MountEntry>> {
    let text = std::fs::read(format!("/proc/{pid}/mountinfo"))?;
    Ok(text.split(|&b| b == b'\n').filter_map(parse).collect())
}

/// `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw`: the fields before the dash
/// vary in number.
fn parse(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|&b| b == b' ');
    let dev = fields.nth(2)?;
    let point = fields.nth(1)?;
    let mut rest = fields.skip_while(|field| field != b"-").skip(1);
    let fstype = rest.next()?;
    let source = rest.next()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Some(MountEntry {
        dev: text(dev),
        point: unescape(point),
        fstype: text(fstype),
        source: unescape(source),
    })
}

/// Blanks and the like are written as `\040`.
fn unescape(field: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, tail)) = rest.split_first() {
        let octal = (byte == b'\\' && tail.len() >= 3)
            .then(|| std::str::from_utf8(&tail[..3]).ok())
            .flatten()
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match octal {
            Some(value) => {
                out.push(value);
                rest = &tail[3..];
            }
            None => {
                out.push(byte);
                rest = tail;
            }
        }
    }
    PathBuf::from(OsString::from_vec(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read() {
        let line =
            br"36 35 98:0 / /mnt/my\040disk rw,noatime master:1 shared:2 - ext4 /dev/loop3 rw";
        let entry = parse(line).unwrap();
        assert_eq!(entry.dev, "98:0");
        assert_eq!(entry.point, PathBuf::from("/mnt/my disk"));
        assert_eq!(entry.fstype, "ext4");
        assert_eq!(entry.source, PathBuf::from("/dev/loop3"));
    }

    #[test]
    fn broken_lines_are_skipped() {
        for line in [&b""[..], b"1 2 3", b"1 2 3:4 / /mnt rw", b"1 2 3:4 / /mnt rw -"] {
            assert_eq!(parse(line), None);
        }
    }

    #[test]
    fn our_own_mounts_contain_proc() {
        let mounts = mounts_of("self").unwrap();
        assert!(mounts.iter().any(|m| m.point.as_os_str() == "/proc" && m.fstype == "proc"));
    }
}
