//! How much memory a process may have: what the machine has, or less where a control group limits it.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use crate::size::show_size;

/// What there is, for all that a process does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// In bytes.
    pub bytes: u64,
    /// The file that says so, if it is a limit of less than the machine has.
    pub limit: Option<PathBuf>,
}

impl MemoryLimit {
    /// Of this process. Control path: reads files.
    pub fn of_process() -> MemoryLimit {
        let info = rustix::system::sysinfo();
        let bytes = info.totalram.saturating_mul(u64::from(info.mem_unit));
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        MemoryLimit::limited(bytes, &groups, Path::new("/sys/fs/cgroup"))
    }

    /// Whether caches of so many bytes together leave a quarter of it: frames and requests need some, and so does the
    /// machine, or whatever else is in the control group.
    ///
    /// # Errors
    /// What they may have, and what to say.
    pub fn check_caches(&self, wanted: u64) -> Result<(), String> {
        let most = self.bytes - self.bytes / 4;
        match wanted <= most {
            true => Ok(()),
            false => Err(format!(
                "caches may take {} together, and {self}, of which they may have three quarters, {}: make them smaller \
                 (cache=SIZE of an export, size=SIZE of a volume)",
                show_size(wanted),
                show_size(most)
            )),
        }
    }

    /// Of a process in these groups, as `/proc/PID/cgroup` has them, whose files are below `root`. The smallest limit
    /// of a group and of those above it counts; what cannot be read is none.
    fn limited(bytes: u64, groups: &str, root: &Path) -> MemoryLimit {
        let mut least = MemoryLimit { bytes, limit: None };
        for line in groups.lines() {
            let mut fields = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(group)) = (fields.next(), fields.next()) else { continue };
            // Version 2 has no names, and is mounted beside version 1 where both are there.
            let (mounts, file): (&[_], _) = match controllers {
                "" => (&["", "unified"], "memory.max"),
                _ if controllers.split(',').any(|name| name == "memory") => {
                    (&["memory"], "memory.limit_in_bytes")
                }
                _ => continue,
            };
            let group = Path::new(group.trim_start_matches('/'));
            for place in mounts.iter().flat_map(|mount| group.ancestors().map(move |g| (mount, g)))
            {
                let path = root.join(place.0).join(place.1).join(file);
                let limit = fs::read_to_string(&path).ok();
                if let Some(limit) = limit.and_then(|text| text.trim().parse().ok())
                    && limit < least.bytes
                {
                    least = MemoryLimit { bytes: limit, limit: Some(path) };
                }
            }
        }
        least
    }
}

impl fmt::Display for MemoryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = show_size(self.bytes);
        match &self.limit {
            None => write!(f, "this machine has {size} of memory"),
            Some(limit) => write!(f, "{} allows this process {size} of memory", limit.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempDir;

    #[test]
    fn the_smallest_limit_counts() {
        let dir = TempDir::new("memory");
        let root = dir.path();
        let write = |name: &str, text: &str| {
            let path = root.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, text).unwrap();
            path
        };
        let groups = "4:memory:/a/b\n3:cpu,cpuacct:/a\n0::/x/y\n";
        let found = |bytes| MemoryLimit::limited(bytes, groups, root);
        let free = MemoryLimit { bytes: 1 << 40, limit: None };
        assert_eq!(found(1 << 40), free, "no file, no limit");
        assert_eq!(MemoryLimit::limited(1 << 40, "garbage\n:\n0::\n", root), free);
        write("x/y/memory.max", "max\n");
        write("cpu/a/memory.limit_in_bytes", "1\n");
        assert_eq!(found(1 << 40), free);
        // Of a group, of one above it, of both versions.
        let mut bytes = 1 << 30;
        for name in [
            "x/y/memory.max",
            "x/memory.max",
            "memory.max",
            "unified/x/memory.max",
            "memory/a/b/memory.limit_in_bytes",
            "memory/memory.limit_in_bytes",
        ] {
            bytes -= 4096;
            let path = write(name, &format!("{bytes}\n"));
            assert_eq!(found(1 << 40), MemoryLimit { bytes, limit: Some(path) });
        }
        // One of more than there is limits nothing.
        assert_eq!(found(1 << 20), MemoryLimit { bytes: 1 << 20, limit: None });
        assert!(MemoryLimit::of_process().bytes > 0);
    }

    #[test]
    fn it_says_where_it_comes_from() {
        let machine = MemoryLimit { bytes: 1 << 30, limit: None };
        assert_eq!(machine.to_string(), "this machine has 1 GiB of memory");
        let group = MemoryLimit { bytes: 1 << 30, limit: Some("/x/memory.max".into()) };
        assert_eq!(group.to_string(), "/x/memory.max allows this process 1 GiB of memory");
    }
}
