//! What a target offers: `NAME=VOLUME[,ro][,keys=NAMES][,read-keys=NAMES][,block=512|4096][,cache=SIZE][,buffered]
//! [,spread][,weight=N][,writeback]`, and the check that the volume behind it can be served.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::str::FromStr;

use thinwire_modules::Cache;

use crate::error::ParseError;
use crate::keys::parse_names;
use crate::size::{check_name, show_size};
use crate::uri::VolumeSpec;

/// The logical block when nothing else is said, in bytes.
pub const BLOCK_BYTES_DEFAULT: u32 = 512;

/// The highest weight, and what is said of others.
const WEIGHT_MAX: u64 = 100;
const WEIGHT: &str = "a weight is 1 to 100";

/// One export of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportSpec {
    /// What initiators call it.
    pub name: String,
    /// The volume behind it. One with parts, or of another target, makes this target a gateway.
    pub volume: VolumeSpec,
    /// Refuse all writes.
    pub read_only: bool,
    /// Names of the keys of those who may write it; all that the target takes if it is not said.
    pub keys: Option<Vec<String>>,
    /// Of those who may only read it.
    pub read_keys: Vec<String>,
    /// Logical block in bytes: 512 or 4096.
    pub block_bytes: u32,
    /// I/O on files and devices goes through the kernel's page cache.
    pub buffered: bool,
    /// Memory for what was read of it, in bytes.
    pub cache: Option<u64>,
    /// All shards serve it together, each by a ring of its own.
    pub spread: bool,
    /// How many times what the sessions of others have those of this one may have, while all want something.
    pub weight: u16,
    /// Test wrapper: acknowledge writes early and lose the unflushed ones with the process.
    pub writeback: bool,
}

impl ExportSpec {
    /// A writable export of blocks of 512 bytes, its name checked.
    pub fn new(name: &str, volume: VolumeSpec) -> Result<Self, ParseError> {
        check_name("export name", name)?;
        Ok(ExportSpec {
            name: name.to_owned(),
            volume,
            read_only: false,
            keys: None,
            read_keys: Vec::new(),
            block_bytes: BLOCK_BYTES_DEFAULT,
            buffered: false,
            cache: None,
            spread: false,
            weight: 1,
            writeback: false,
        })
    }

    /// Sets the logical block, which is 512 or 4096, and must divide a size given in the volume.
    pub fn set_block(&mut self, block_bytes: u64) -> Result<(), ParseError> {
        if block_bytes != 512 && block_bytes != 4096 {
            return Err(ParseError::new(block_bytes.to_string(), "a block has 512 or 4096 bytes"));
        }
        if !self.volume.is_store() {
            let why =
                "the blocks of a volume that is made of others, or is another target's, are theirs";
            return Err(ParseError::new(block_bytes.to_string(), why));
        }
        self.block_bytes = block_bytes as u32;
        if let VolumeSpec::Memory(bytes) | VolumeSpec::Null(bytes) = self.volume {
            check_size(bytes, self.block_bytes)
                .map_err(|why| ParseError::new(self.volume.to_string(), why))?;
        }
        Ok(())
    }

    /// Has I/O on its files and block devices go through the kernel's page cache; it has one at least.
    pub fn set_buffered(&mut self) -> Result<(), ParseError> {
        if self.paths().next().is_none() {
            let why =
                "it has no file and no block device of this machine, which alone have a page cache";
            return Err(ParseError::new(self.volume.to_string(), why));
        }
        self.buffered = true;
        Ok(())
    }

    /// Gives it so many bytes of memory for what is read of it.
    pub fn set_cache(&mut self, bytes: u64) -> Result<(), ParseError> {
        let wrong = |why: &str| Err(ParseError::new(format!("cache={}", show_size(bytes)), why));
        match self.volume {
            VolumeSpec::Path(_) if bytes < Cache::BYTES_MIN => wrong("a cache has 1 MiB at least"),
            VolumeSpec::Path(_) => {
                self.cache = Some(bytes);
                Ok(())
            }
            VolumeSpec::Memory(_) | VolumeSpec::Null(_) | VolumeSpec::Switched(_) => {
                wrong("there is nothing to gain: no disk is read for this volume")
            }
            VolumeSpec::Remote(_)
            | VolumeSpec::Ebd(_)
            | VolumeSpec::Aoe(_)
            | VolumeSpec::Share { .. }
            | VolumeSpec::Over { .. } => wrong(
                "of a volume that is made of others, or is another target's, say the volume \
                 cache:[VOLUME]?size=SIZE instead",
            ),
        }
    }

    /// Whether nobody is named twice, once to write it and once only to read it.
    pub fn check_keys(&self) -> Result<(), ParseError> {
        let writers = self.keys.as_deref().unwrap_or_default();
        match self.read_keys.iter().find(|name| writers.contains(name)) {
            None => Ok(()),
            Some(name) => {
                let why = "this key is named twice: to write it, and only to read it";
                Err(ParseError::new(name, why))
            }
        }
    }

    /// Has all shards of the target serve it together.
    pub fn set_spread(&mut self) -> Result<(), ParseError> {
        let wrong = |why: &str| Err(ParseError::new(self.volume.to_string(), why));
        match self.volume {
            VolumeSpec::Path(_) | VolumeSpec::Memory(_) | VolumeSpec::Null(_) => {
                self.spread = true;
                Ok(())
            }
            VolumeSpec::Switched(_)
            | VolumeSpec::Remote(_)
            | VolumeSpec::Ebd(_)
            | VolumeSpec::Aoe(_)
            | VolumeSpec::Share { .. }
            | VolumeSpec::Over { .. } => wrong(
                "a volume that is made of others, or is another target's, is attached by one shard, and cannot \
                 be spread over several",
            ),
        }
    }

    /// Sets how much its sessions may have, beside those of others: 1, or up to 100 times as much.
    pub fn set_weight(&mut self, weight: u64) -> Result<(), ParseError> {
        match weight {
            1..=WEIGHT_MAX => self.weight = weight as u16,
            _ => return Err(ParseError::new(format!("weight={weight}"), WEIGHT)),
        }
        Ok(())
    }

    /// Whether what is asked for goes together.
    pub fn check_spread(&self) -> Result<(), ParseError> {
        let beside = match self {
            Self { spread: true, cache: Some(_), .. } => "cache=SIZE",
            Self { spread: true, writeback: true, .. } => "writeback",
            _ => return Ok(()),
        };
        let why = format!(
            "not together with {beside}, which one thread has: it would not hear of what other shards write"
        );
        Err(ParseError::new("spread", why))
    }

    /// Whether nobody else writes behind its cache: a device that is opened for reading only may be mounted,
    /// and written, all the while.
    pub fn check_cache(&self, path: &Path) -> Result<(), String> {
        let is_device = || std::fs::metadata(path).is_ok_and(|m| m.file_type().is_block_device());
        match self.cache.is_some() && self.read_only && is_device() {
            false => Ok(()),
            true => Err(format!(
                "{}: `cache` with `ro` on a block device is refused: a mount may write it meanwhile, \
                 which no cache would see; leave one of the two away",
                path.display()
            )),
        }
    }

    fn paths(&self) -> impl Iterator<Item = &Path> {
        self.volume.leaves().into_iter().filter_map(|leaf| match leaf {
            VolumeSpec::Path(path) => Some(&**path),
            _ => None,
        })
    }

    /// Whether each file or block device of the volume is there once, is one, can be opened with the needed
    /// rights and has a size that can be served. Control path: opens and closes them.
    pub fn check_volume(&self) -> Result<(), String> {
        self.volume.refuse_twins()?;
        self.volume.refuse_stale_caches(self.read_only)?;
        for path in self.paths() {
            self.check_cache(path)?;
            let bytes = open_sized(path, self.read_only)?.1;
            check_size(bytes, self.block_bytes).map_err(|why| {
                format!("{}: {why}; resize the image or give another", path.display())
            })?;
        }
        Ok(())
    }
}

fn check_size(bytes: u64, block_bytes: u32) -> Result<(), String> {
    if bytes == 0 {
        return Err("its size is zero".into());
    }
    if !bytes.is_multiple_of(u64::from(block_bytes)) {
        return Err(format!(
            "its size of {bytes} bytes is not a multiple of the block of {block_bytes} bytes"
        ));
    }
    Ok(())
}

/// Opens a regular file or block device and finds out how large it is.
fn open_sized(path: &Path, read_only: bool) -> Result<(File, u64), String> {
    let shown = path.display();
    let meta = std::fs::metadata(path).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound if !read_only => {
            format!(
                "{shown}: no such file or device; create an image with: truncate -s 10G {shown}"
            )
        }
        _ => format!("{shown}: {e}"),
    })?;
    if !meta.is_file() && !meta.file_type().is_block_device() {
        return Err(format!("{shown}: neither a regular file nor a block device"));
    }
    let mut file = OpenOptions::new().read(true).write(!read_only).open(path).map_err(|e| {
        format!("{shown}: cannot be opened{}: {e}", if read_only { "" } else { " for writing" })
    })?;
    let bytes = file.seek(SeekFrom::End(0)).map_err(|e| format!("{shown}: {e}"))?;
    Ok((file, bytes))
}

impl FromStr for ExportSpec {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let (name, rest) = text.split_once('=').ok_or_else(|| {
            ParseError::new(
                text,
                "give NAME=VOLUME, as in disk0=/srv/disk0.img or scratch=memory:4G",
            )
        })?;
        let parts = crate::uri::split_commas(rest);
        let mut spec = ExportSpec::new(name, parts[0].parse()?)?;
        for option in &parts[1..] {
            match option.split_once('=').unwrap_or((option.as_str(), "")) {
                ("ro", "") => spec.read_only = true,
                ("buffered", "") => spec.set_buffered()?,
                ("spread", "") => spec.set_spread()?,
                ("writeback", "") => spec.writeback = true,
                ("keys", value) => spec.keys = Some(parse_names(value)?),
                ("read-keys", value) => spec.read_keys = parse_names(value)?,
                ("weight", value) => match value.parse() {
                    Ok(weight) => spec.set_weight(weight)?,
                    Err(_) => return Err(ParseError::new(option, WEIGHT)),
                },
                ("block", value) => spec.set_block(crate::size::parse_size(value)?)?,
                ("cache", value) => spec.set_cache(crate::size::parse_size(value)?)?,
                _ => {
                    return Err(ParseError::new(
                        option,
                        "unknown export option; known are ro, keys=NAME+NAME, read-keys=NAME+NAME, block=512, \
                         block=4096, cache=SIZE, buffered, spread, weight=N and writeback (write a comma in a \
                         path twice)",
                    ));
                }
            }
        }
        spec.check_keys()?;
        spec.check_spread()?;
        Ok(spec)
    }
}

impl fmt::Display for ExportSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, self.volume.in_list())?;
        if self.read_only {
            f.write_str(",ro")?;
        }
        if let Some(keys) = &self.keys {
            write!(f, ",keys={}", keys.join("+"))?;
        }
        if !self.read_keys.is_empty() {
            write!(f, ",read-keys={}", self.read_keys.join("+"))?;
        }
        if self.block_bytes != BLOCK_BYTES_DEFAULT {
            write!(f, ",block={}", self.block_bytes)?;
        }
        if self.buffered {
            f.write_str(",buffered")?;
        }
        if let Some(bytes) = self.cache {
            write!(f, ",cache={bytes}")?;
        }
        if self.spread {
            f.write_str(",spread")?;
        }
        if self.weight != 1 {
            write!(f, ",weight={}", self.weight)?;
        }
        if self.writeback {
            f.write_str(",writeback")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exports() {
        let spec: ExportSpec = "disk0=/srv/disk0.img".parse().unwrap();
        assert_eq!((spec.name.as_str(), spec.block_bytes), ("disk0", 512));
        assert!(!spec.read_only && !spec.buffered && !spec.writeback);
        let spec: ExportSpec = "s=memory:4G,ro,block=4096,writeback".parse().unwrap();
        assert!(spec.read_only && spec.writeback);
        assert_eq!((spec.volume, spec.block_bytes), (VolumeSpec::Memory(4 << 30), 4096));
        let text = "s=file:/a,keys=alice+bob,read-keys=backup";
        let spec: ExportSpec = text.parse().unwrap();
        assert_eq!(spec.keys.as_deref(), Some(&["alice".to_owned(), "bob".to_owned()][..]));
        assert_eq!((spec.read_keys.len(), spec.to_string().as_str()), (1, text));
        let spec: ExportSpec = "s=/a,cache=256M,ro".parse().unwrap();
        assert_eq!((spec.cache, spec.read_only), (Some(256 << 20), true));
        assert_eq!(spec.to_string(), "s=file:/a,ro,cache=268435456");
        assert_eq!(spec.to_string().parse(), Ok(spec));
        let spec: ExportSpec = "s=/a,,b=c,ro".parse().unwrap();
        assert_eq!(spec.volume, VolumeSpec::Path("/a,b=c".into()));
        assert_eq!(spec.to_string(), "s=file:/a,,b=c,ro");
        let text = "disk0=file:/srv/disk0.img,buffered,writeback";
        let spec: ExportSpec = text.parse().unwrap();
        assert!(spec.buffered && spec.to_string() == text);
        let text = "hot=file:/srv/hot.img,buffered,spread";
        let spec: ExportSpec = text.parse().unwrap();
        assert!(spec.spread && spec.to_string() == text);
        let text = "busy=file:/srv/busy.img,weight=4";
        let spec: ExportSpec = text.parse().unwrap();
        assert_eq!((spec.weight, spec.to_string()), (4, text.to_owned()));
        assert!("hot=memory:1G,spread".parse::<ExportSpec>().unwrap().spread);
        let text = "big=linear:[tw://n/d?link=eth1,file:/c],buffered";
        assert!(
            text.parse::<ExportSpec>().unwrap().buffered,
            "one of its volumes has a page cache"
        );
        let text = "big=linear:[file:/a,,b,tw://n/d?link=eth1,linear:[memory:512,file:/c,,d]],ro";
        let spec: ExportSpec = text.parse().unwrap();
        assert_eq!(spec.to_string(), text);
        assert!(spec.read_only && spec.volume.has_remote() && !spec.volume.is_store());
        let paths: Vec<_> = spec.paths().collect();
        assert_eq!(paths, [Path::new("/a,b"), Path::new("/c,d")]);
        // Brackets mean nothing in the name of a file.
        let spec: ExportSpec = "x=/srv/a[1,ro".parse().unwrap();
        assert_eq!((spec.volume, spec.read_only), (VolumeSpec::Path("/srv/a[1".into()), true));
        let spec: ExportSpec = "x=/srv/a[1,,2],ro".parse().unwrap();
        assert_eq!(spec.volume, VolumeSpec::Path("/srv/a[1,2]".into()));
        assert_eq!(spec.to_string(), "x=file:/srv/a[1,,2],ro");
    }

    #[test]
    fn bad_exports_are_named() {
        for (text, named) in [
            ("disk0", "NAME=VOLUME"),
            ("=x", "export name"),
            ("a/b=x", "`a/b`"),
            ("a=", "give a volume"),
            ("a=x,rw", "`rw`"),
            ("a=x,ro=1", "`ro=1`"),
            ("a=x,block=1k", "`1024`"),
            ("a=memory:512,block=4096", "not a multiple of the block of 4096"),
            ("a=x,keys=", "name of a key"),
            ("a=x,keys=a+a", "named twice"),
            ("a=x,keys=a,read-keys=b+a", "only to read it"),
            ("a=x,cache", "not a size"),
            ("a=x,cache=1000k", "1 MiB at least"),
            ("a=memory:1G,cache=1M", "nothing to gain"),
            ("a=null:1G,cache=1M", "nothing to gain"),
            ("a=linear:[/x,/y],cache=1M", "made of others"),
            ("a=tw://n/d?link=eth1,cache=1M", "another target's"),
            ("a=linear:/x", "in brackets"),
            ("a=linear:[]", "give a volume"),
            ("a=linear:[/x[1,/y]", "bracket"),
            ("a=linear:[file:/x],/y]", "`/y]`"),
            ("a=linear:[/x,foo:y]", "`foo:y`"),
            ("a=linear:[/x,/y],block=4096", "are theirs"),
            ("a=memory:1M,buffered", "no file"),
            ("a=linear:[tw://n/d?link=eth1,null:1M],buffered", "no file"),
            ("a=/x,buffered=1", "`buffered=1`"),
            ("a=memory:1M,spread,writeback", "writeback"),
            ("a=linear:[/x,/y],spread", "one shard"),
            ("a=/x,spread,cache=1M", "cache=SIZE"),
            ("a=/x,cache=1M,spread", "cache=SIZE"),
            ("a=/x,spread,writeback", "writeback"),
            ("a=/x,spread=2", "`spread=2`"),
            ("a=/x,weight=0", "1 to 100"),
            ("a=/x,weight=101", "`weight=101`"),
            ("a=/x,weight=4k", "`weight=4k`: a weight is"),
        ] {
            let error = text.parse::<ExportSpec>().unwrap_err().to_string();
            assert!(error.contains(named), "{text}: {error}");
        }
    }

    #[test]
    fn volumes_are_checked() {
        let dir = crate::testing::TempDir::new("export");
        let file = |name: &str, len: usize| {
            let path = dir.path().join(name);
            std::fs::write(&path, vec![0; len]).unwrap();
            ExportSpec::new("x", VolumeSpec::Path(path)).unwrap()
        };
        assert_eq!(file("good", 8192).check_volume(), Ok(()));
        let odd = file("odd", 1000).check_volume().unwrap_err();
        assert!(odd.contains("1000 bytes") && odd.contains("512 bytes"), "{odd}");
        let mut half = file("half", 4096 + 512);
        half.set_block(4096).unwrap();
        assert!(half.check_volume().unwrap_err().contains("4608"));
        assert!(file("empty", 0).check_volume().unwrap_err().contains("zero"));
        let of = |path: &str| ExportSpec::new("x", path.parse().unwrap()).unwrap();
        // A reader of a file has it locked against writers.
        let mut kept = file("kept", 8192);
        kept.set_cache(1 << 20).unwrap();
        assert_eq!(kept.check_volume(), Ok(()));
        kept.read_only = true;
        assert_eq!(kept.check_volume(), Ok(()));
        let missing = of("/no/such/file").check_volume().unwrap_err();
        assert!(
            missing.contains("/no/such/file: no such file or device; create an image"),
            "{missing}"
        );
        let folder = of("/").check_volume().unwrap_err();
        assert!(folder.contains("neither"), "{folder}");
    }
}
