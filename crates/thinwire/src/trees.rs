//! Volumes described in TOML files: `[[volume]]` beside the exports of a target, and `FILE.toml#NAME`, by
//! which one of them can be named wherever a volume is.

use std::cell::RefCell;
use std::fmt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use thinwire_modules::{MODULES, Module};

use crate::config_file::{ConfigFile, FileVolume};
use crate::error::{Failure, Outcome, ParseError};
use crate::size::check_name;
use crate::uri::{DEPTH_MAX, VolumeSpec, parse_volume};

/// The end of a file's name that makes what follows `#` the name of a volume in it.
const FILE_END: &str = ".toml";

/// By what name a volume of a file can be used elsewhere: `FILE.toml#NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeName {
    /// The file that was named first; the volume may stand in `conf.d` beside it.
    pub file: PathBuf,
    /// Its name there.
    pub name: String,
}

impl NodeName {
    /// The volume of that name in that file, by whatever path.
    fn is(&self, file: &Path, name: &str) -> bool {
        if self.name != name {
            return false;
        }
        let same = || (self.file.canonicalize(), file.canonicalize());
        self.file == file || matches!(same(), (Ok(one), Ok(other)) if one == other)
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.file.display(), self.name)
    }
}

/// The volumes that a file, and `conf.d` beside it, describe.
#[derive(Debug, Default)]
pub(crate) struct Trees {
    file: PathBuf,
    described: Vec<Described>,
    /// What files that are named in it describe.
    library: Library,
}

/// Files whose volumes have been named, by the path that was given: each is read once, however many of its
/// volumes are, so that all of them are of one state of it.
type Library = Rc<RefCell<Vec<Rc<Trees>>>>;

/// One of them, of which only the name and the kind have been looked at.
#[derive(Debug)]
struct Described {
    name: String,
    module: &'static Module,
    /// Each as written, and where.
    children: Vec<(String, String)>,
    /// Where it begins, and where its list of children does.
    places: [String; 2],
    folder: PathBuf,
}

impl Described {
    /// Its name, as a word in a file of that folder, could mean a file as well: what it meant before the
    /// volume was described, or before the file came.
    fn refuse_file(&self, folder: &Path) -> Result<(), String> {
        let name = &self.name;
        let path = folder.join(name);
        match path.metadata() {
            // No folder is a volume.
            Ok(meta) if !meta.is_dir() => Err(format!(
                "the volume name `{name}` is that of a file, too ({} and {}): say file:{name} for the file, \
                 or rename the volume",
                self.places[0],
                path.display()
            )),
            _ => Ok(()),
        }
    }
}

/// What the names in a volume's text mean.
#[derive(Clone, Copy)]
pub(crate) struct Scope<'a> {
    /// Where relative paths begin.
    pub folder: &'a Path,
    trees: Option<&'a Trees>,
    walk: &'a RefCell<Walk>,
}

/// The way through the volumes of one tree.
#[derive(Default)]
pub(crate) struct Walk {
    /// Those in which the present one is.
    above: Vec<NodeName>,
    /// All that have been met.
    seen: Vec<NodeName>,
    /// How many volumes the present one is in, those of lists among them.
    depth: usize,
    library: Library,
}

impl<'a> Scope<'a> {
    /// That of the command line.
    pub fn typed(walk: &'a RefCell<Walk>) -> Self {
        Scope { folder: Path::new(""), trees: None, walk }
    }

    /// Goes into a volume that is made of others.
    ///
    /// # Errors
    /// It is in too many already.
    pub fn descend(&self) -> Result<(), String> {
        self.walk.borrow_mut().descend()
    }

    /// Comes out of it again, once all that it is made of is known.
    pub fn ascend(&self) {
        self.walk.borrow_mut().depth -= 1;
    }

    /// The volume that a text without a scheme names, unless it is a path.
    pub fn find(&self, text: &str) -> Result<Option<VolumeSpec>, ParseError> {
        let bad = |why: String| ParseError::new(text, why);
        if let Some(trees) = self.trees {
            if let Some(volume) = trees.described(text) {
                volume.refuse_file(self.folder).map_err(bad)?;
                return trees.resolve(text, self.walk).map(Some).map_err(bad);
            }
            trees.refuse_unknown(text, self.folder).map_err(bad)?;
        }
        let Some((file, name)) = text.rsplit_once('#') else { return Ok(None) };
        // Not in the midst of a path.
        if !file.ends_with(FILE_END) || name.contains('/') {
            return Ok(None);
        }
        load(&self.folder.join(file), name, self.walk).map(Some).map_err(|why| {
            bad(match self.folder.join(text).exists() {
                true => format!("{why} (the file of that very name is file:{text})"),
                false => why,
            })
        })
    }
}

/// The volume of that name in a file.
fn load(file: &Path, name: &str, walk: &RefCell<Walk>) -> Result<VolumeSpec, String> {
    check_name("volume name", name).map_err(|e| e.to_string())?;
    let library = walk.borrow().library.clone();
    let known = library.borrow().iter().find(|trees| trees.file == file).cloned();
    let trees = match known {
        Some(trees) => trees,
        None => {
            let files = ConfigFile::read_all(file).map_err(|e| e.message)?;
            let trees = Rc::new(Trees::of(file, &files).map_err(|e| e.message)?);
            library.borrow_mut().push(trees.clone());
            trees
        }
    };
    trees.resolve(name, walk)
}

impl Trees {
    /// What `file` and those that add to it describe.
    ///
    /// # Errors
    /// A name is in use already or none, or a kind does not exist.
    pub fn of(file: &Path, files: &[ConfigFile]) -> Outcome<Self> {
        let mut trees = Trees { file: file.to_owned(), ..Trees::default() };
        for file in files {
            for volume in &file.keys.volume {
                trees.add(file, volume)?;
            }
        }
        Ok(trees)
    }

    fn add(&mut self, file: &ConfigFile, volume: &toml::Spanned<FileVolume>) -> Outcome {
        let FileVolume { name, kind, children } = volume.get_ref();
        check_name("volume name", name.get_ref()).map_err(|e| file.wrong(name.span(), e))?;
        if let Some(first) = self.described(name.get_ref()) {
            let (name, first, place) = (name.get_ref(), &first.places[0], name.span());
            let why = format!("the volume name `{name}` is in use already ({first})");
            return Err(file.wrong(place, format!("{why}; names must differ")));
        }
        let Some(module) = Module::find(kind.get_ref()) else {
            let known: Vec<_> = MODULES.iter().map(|module| module.name).collect();
            let why =
                format!("`{}`: unknown kind; there are: {}", kind.get_ref(), known.join(", "));
            return Err(file.wrong(kind.span(), why));
        };
        let placed =
            |child: &toml::Spanned<String>| (child.get_ref().clone(), file.place(child.span()));
        self.described.push(Described {
            name: name.get_ref().clone(),
            module,
            children: children.get_ref().iter().map(placed).collect(),
            places: [volume.span(), children.span()].map(|span| file.place(span)),
            folder: file.folder().to_owned(),
        });
        Ok(())
    }

    fn described(&self, name: &str) -> Option<&Described> {
        self.described.iter().find(|volume| volume.name == name)
    }

    /// Finds out whether each of them can be made, as far as texts tell.
    pub fn check(&self) -> Outcome {
        self.described.iter().try_for_each(|volume| {
            let made = self.resolve(&volume.name, &self.walk());
            made.map(|_| ()).map_err(Failure::usage)
        })
    }

    /// A volume named in a file in `folder`: one of these, or as on the command line.
    pub fn parse(&self, text: &str, folder: &Path) -> Result<VolumeSpec, ParseError> {
        let walk = self.walk();
        parse_volume(text, &Scope { folder, trees: Some(self), walk: &walk })
    }

    /// A new way through these, which reads no file again.
    fn walk(&self) -> RefCell<Walk> {
        RefCell::new(Walk { library: self.library.clone(), ..Walk::default() })
    }

    /// One of these, with all that it is made of.
    fn resolve(&self, name: &str, walk: &RefCell<Walk>) -> Result<VolumeSpec, String> {
        let Some(volume) = self.described(name) else { return Err(self.unknown(name)) };
        let node = NodeName { file: self.file.clone(), name: name.to_owned() };
        walk.borrow_mut().enter(&node)?;
        let scope = Scope { folder: &volume.folder, trees: Some(self), walk };
        let children = volume
            .children
            .iter()
            .map(|(text, place)| parse_volume(text, &scope).map_err(|e| format!("{place}: {e}")));
        let children: Vec<VolumeSpec> = children.collect::<Result<_, _>>()?;
        walk.borrow_mut().leave();
        let module = volume.module;
        let count = module.check_count(children.len());
        count.map_err(|e| format!("{}: {e}", volume.places[1]))?;
        let places = volume.children.iter().map(|(_, place)| place.clone()).collect();
        Ok(VolumeSpec::Over { module, children, places, node: Some(node) })
    }

    /// A word that looks like a name is one, unless it is that of a file.
    fn refuse_unknown(&self, text: &str, folder: &Path) -> Result<(), String> {
        let is_word = !text.contains('.') && check_name("volume name", text).is_ok();
        if self.described.is_empty() || !is_word || folder.join(text).exists() {
            return Ok(());
        }
        let place = match folder.as_os_str().is_empty() {
            true => "beside it".to_owned(),
            false => format!("in {}", folder.display()),
        };
        Err(format!("{}, and no file {place}", self.unknown(text)))
    }

    fn unknown(&self, name: &str) -> String {
        let names: Vec<_> = self.described.iter().map(|volume| &*volume.name).collect();
        let file = self.file.display();
        match names.is_empty() {
            true => format!("{file} describes no volumes: it has no [[volume]]"),
            false => format!("{file} has no volume `{name}` (there are: {})", names.join(", ")),
        }
    }

    /// Refuses a volume of the command line if a file in it is missing that is called like one of these: there
    /// words are paths.
    ///
    /// # Errors
    /// What to write there.
    pub fn refuse_misnamed(&self, spec: &VolumeSpec) -> Result<(), String> {
        let missing = spec.leaves().into_iter().find_map(|leaf| match leaf {
            VolumeSpec::Path(path) if !path.exists() => self.described(path.to_str()?),
            _ => None,
        });
        let Some(Described { name, .. }) = missing else { return Ok(()) };
        let file = self.file.display();
        Err(format!("there is no file `{name}` here; the volume of that name is {file}#{name}"))
    }

    /// Which of them are no part of any of `specs`.
    pub fn unused<'a>(&self, specs: impl Iterator<Item = &'a VolumeSpec>) -> Vec<String> {
        let mut used = Vec::new();
        specs.for_each(|spec| spec.nodes(&mut used));
        let is_used =
            |volume: &&Described| used.iter().any(|node| node.is(&self.file, &volume.name));
        let unused = self.described.iter().filter(|volume| !is_used(volume));
        unused
            .map(|volume| {
                format!("{}: no export uses the volume `{}`", volume.places[0], volume.name)
            })
            .collect()
    }
}

impl Walk {
    /// Goes into a volume. Each is one, and so can be a part of something only once.
    fn enter(&mut self, node: &NodeName) -> Result<(), String> {
        let is_it = |other: &NodeName| other.is(&node.file, &node.name);
        if self.above.iter().any(is_it) {
            let names: Vec<_> = self.above.iter().chain([node]).map(|node| &*node.name).collect();
            return Err(format!("a volume cannot be a part of itself ({})", names.join(", ")));
        }
        if self.seen.iter().any(is_it) {
            return Err("it is named twice: each can be a part only once".into());
        }
        self.descend()?;
        self.above.push(node.clone());
        self.seen.push(node.clone());
        Ok(())
    }

    fn leave(&mut self) {
        self.above.pop();
        self.depth -= 1;
    }

    /// Whoever reads, opens, shows or drops a tree calls itself for each level.
    fn descend(&mut self) -> Result<(), String> {
        if self.depth == DEPTH_MAX {
            let most = format!("{DEPTH_MAX} at most can be one in the other");
            return Err(format!("too many volumes made of volumes: {most}"));
        }
        self.depth += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempDir;

    /// A folder with these files.
    fn folder(files: &[(&str, &str)]) -> TempDir {
        let dir = TempDir::new("trees");
        for (name, text) in files {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        dir
    }

    fn typed(dir: &TempDir, text: &str) -> Result<VolumeSpec, String> {
        let text = text.replace("DIR", dir.path().to_str().unwrap());
        text.parse().map_err(|e: ParseError| e.to_string())
    }

    fn volume(name: &str, children: &str) -> String {
        format!("[[volume]]\nname = \"{name}\"\nkind = \"linear\"\nchildren = [{children}]\n")
    }

    #[test]
    fn a_volume_of_a_file_is_named_like_any_other() {
        let main = "node = \"n\"\nlink = [\"eth1\"]\n".to_owned()
            + &volume("big", r#""tw+udp://[::1]/a", "x,[y].img", "linear:[rest,file:/z]""#)
            + &volume("alone", r#""memory:1M""#);
        let rest = volume("rest", r#""../other.toml#far", "null:512", "there""#);
        let far = volume("far", r#""sub/f.img""#);
        let dir = folder(&[
            ("a.toml", &main),
            ("conf.d/1.toml", &rest),
            ("conf.d/there", ""),
            ("other.toml", &far),
            ("real.toml#big", ""),
        ]);
        let spec = typed(&dir, "DIR/a.toml#big").unwrap();
        let leaves: Vec<_> = spec.leaves().into_iter().map(VolumeSpec::to_string).collect();
        let at = |name: &str| format!("file:{}/{name}", dir.path().display());
        let (far, there) = (at("conf.d/../sub/f.img"), at("conf.d/there"));
        let expected = ["tw+udp://[::1]/a", &at("x,[y].img"), &far, "null:512", &there, "file:/z"];
        assert_eq!(leaves, expected, "each relative to the file in which it stands");
        assert_eq!(spec.short_name(), "big");
        let shown = spec.to_string();
        assert_eq!(shown, format!("{}/a.toml#big", dir.path().display()));
        assert_eq!(shown.parse(), Ok(spec));
        // In a list, as a name of any other kind.
        let list = typed(&dir, "linear:[DIR/a.toml#alone,memory:512]").unwrap();
        assert_eq!(list.to_string().parse(), Ok(list));
        // Paths stay paths.
        for text in
            ["file:DIR/real.toml#big", "DIR/a.toml#big/x.img", "DIR/a.img#big", "a.tomlx#big"]
        {
            assert!(matches!(typed(&dir, text), Ok(VolumeSpec::Path(_))), "{text}");
        }
    }

    #[test]
    fn volumes_in_volumes_have_a_bound() {
        let chain = |count: usize| {
            let one = |at: usize| volume(&format!("v{at}"), &format!("\"v{}\"", at + 1));
            (0..count - 1).map(one).collect::<String>()
                + &volume(&format!("v{}", count - 1), "\"memory:512\"")
        };
        let dir = folder(&[("a.toml", &chain(32)), ("b.toml", &chain(3000))]);
        assert!(typed(&dir, "DIR/a.toml#v0").is_ok());
        // Lists count with them.
        for text in ["linear:[DIR/a.toml#v0]", "DIR/b.toml#v0"] {
            let error = typed(&dir, text).unwrap_err();
            assert!(error.contains("32 at most"), "{error}");
        }
    }

    #[test]
    fn each_file_is_read_once() {
        let main = volume("big", r#""b.toml#x", "linear:[b.toml#y]", "sub/c.toml#w", "b.toml#z""#)
            + &volume("other", r#""b.toml#x", "a.toml#big2""#)
            + &volume("big2", r#""b.toml#y""#);
        let more = ["x", "y", "z"].map(|name| volume(name, "\"memory:512\"")).concat();
        let dir = folder(&[
            ("a.toml", &main),
            ("b.toml", &more),
            ("sub/c.toml", &volume("w", "\"memory:512\"")),
        ]);
        let reads = || crate::config_file::READS.get();
        let before = reads();
        typed(&dir, "DIR/a.toml#big").unwrap();
        assert_eq!(reads() - before, 3);
        // A target looks at all of them, and then at each of its exports.
        let file = dir.path().join("a.toml");
        crate::config_file::forget();
        let before = reads();
        let files = ConfigFile::read_all(&file).unwrap();
        let trees = Trees::of(&file, &files).unwrap();
        trees.check().unwrap();
        trees.parse("other", dir.path()).unwrap();
        trees.parse("linear:[big,memory:512]", dir.path()).unwrap();
        assert_eq!(
            reads() - before,
            3,
            "its own is known by the name that a child has for it, too"
        );
    }

    /// Each is parsed by itself: of a file that changes meanwhile, two volumes that share a part would be made,
    /// which no state of the file describes.
    #[test]
    fn a_file_that_changes_gives_one_picture() {
        let text = |size| volume("x", &format!("\"memory:{size}\"")) + &volume("y", "\"null:512\"");
        let dir = folder(&[("a.toml", &text(512)), ("conf.d/1.toml", "")]);
        let first = typed(&dir, "DIR/a.toml#x").unwrap();
        std::fs::write(dir.path().join("a.toml"), text(1024)).unwrap();
        std::fs::write(dir.path().join("conf.d/2.toml"), volume("z", "\"null:512\"")).unwrap();
        for same in ["DIR/a.toml#x", "DIR/conf.d/../a.toml#x"] {
            assert_eq!(typed(&dir, same).unwrap().leaves(), first.leaves(), "{same}");
        }
        let error = typed(&dir, "DIR/a.toml#z").unwrap_err();
        assert!(error.contains("there are: x, y"), "{error}");
        // The next process sees what is there then.
        crate::config_file::forget();
        assert_ne!(typed(&dir, "DIR/a.toml#x").unwrap(), first);
        assert!(typed(&dir, "DIR/a.toml#z").is_ok());
    }

    #[test]
    fn a_name_that_is_also_a_file_means_neither() {
        let both = "the volume name `disk.img` is that of a file, too";
        let main = volume("big", r#""disk.img""#) + &volume("fine", r#""file:disk.img", "folder""#);
        let more = volume("disk.img", r#""memory:512""#) + &volume("folder", r#""memory:512""#);
        let dir = folder(&[
            ("a.toml", &main),
            ("conf.d/1.toml", &more),
            ("disk.img", ""),
            ("folder/x", ""),
            ("b.toml", &volume("plain", r#""a.toml#disk.img""#)),
        ]);
        let error = typed(&dir, "DIR/a.toml#big").unwrap_err();
        for named in ["a.toml:4: `disk.img`", both, "conf.d/1.toml:1", "file:disk.img", "rename"] {
            assert!(error.contains(named), "{named}: {error}");
        }
        // One that says what it means is understood, and a folder is no volume.
        for text in ["DIR/a.toml#fine", "DIR/a.toml#disk.img", "DIR/b.toml#plain"] {
            assert!(typed(&dir, text).is_ok(), "{text}: {:?}", typed(&dir, text));
        }
        let file = dir.path().join("a.toml");
        let trees = Trees::of(&file, &ConfigFile::read_all(&file).unwrap()).unwrap();
        let error = trees.parse("disk.img", dir.path()).unwrap_err().to_string();
        assert!(error.contains(both), "{error}");
    }

    #[test]
    fn an_attachment_that_leaves_its_folder_knows_where_its_files_are() {
        let dir = folder(&[("a.toml", &volume("big", "\"x.img\""))]);
        let mut spec = typed(&dir, "DIR/a.toml#big").unwrap();
        spec.try_map_paths(&|path| {
            Ok::<_, ()>(Path::new("/elsewhere").join(path.file_name().unwrap()))
        })
        .unwrap();
        assert_eq!(spec.to_string(), "/elsewhere/a.toml#big");
        assert_eq!(spec.leaves()[0].to_string(), "file:/elsewhere/x.img");
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        let two = |children: &str, more: &str| volume("big", children) + &volume("other", more);
        for (main, named) in [
            (two("\"foo:x\"", "\"memory:512\""), &["a.toml:4: `foo:x`", "there are file:PATH"][..]),
            (
                two("\"othr\"", "\"memory:512\""),
                &["a.toml:4: `othr`", "(there are: big, other)", "no file in"],
            ),
            (
                two("\"other\"", "\"other\""),
                &["a.toml:8: `other`", "part of itself (big, other, other)"],
            ),
            (two("\"other\"", "\"big\""), &["a.toml:8: `big`", "part of itself (big, other, big)"]),
            (two("\"big\"", "\"big\""), &["a.toml:4: `big`", "part of itself (big, big)"]),
            (
                two("\"other\",\n\"b.toml#x\"", "\"memory:512\""),
                &["a.toml:5: `b.toml#x`", "part of itself (big, x, big)"],
            ),
            (two("\"other\",\n\"other\"", "\"memory:512\""), &["a.toml:5: `other`", "named twice"]),
            (
                two("\"other\",\"linear:[./c.img,other]\"", "\"memory:512\""),
                &["`other`: it is named twice"],
            ),
            (
                two("\"c.toml#x\"", "\"memory:512\""),
                &["a.toml:4: `c.toml#x`", "c.toml: cannot be read: No such file"],
            ),
            (two("\"b.toml#y\"", "\"memory:512\""), &["b.toml has no volume `y` (there are: x)"]),
            (two("\"none.toml#y\"", "\"memory:512\""), &["none.toml describes no volumes"]),
            (two("\"b.toml#\"", "\"memory:512\""), &["not a valid volume name: it is empty"]),
            (two("", "\"memory:512\""), &["a.toml:4: linear takes 1 or more volumes, not 0"]),
            (
                volume("big", "\"memory:512\"").replace("linear", "liner"),
                &["a.toml:3: `liner`: unknown kind; there are: linear"],
            ),
            (volume("big", "\"memory:512\"") + &volume("b/g", ""), &["a.toml:6: `b/g`"]),
            (
                volume("big", "\"memory:512\"") + &volume("big", ""),
                &["a.toml:6: the volume name `big` is in use already", "a.toml:1)"],
            ),
            (volume("big", "\"memory:512\"") + "size = 3", &["a.toml:5: unknown key `size`"]),
            (volume("big", "7"), &["a.toml:4: invalid type: integer"]),
        ] {
            let other = volume("x", "\"a.toml#big\"");
            let dir = folder(&[("a.toml", &main), ("b.toml", &other), ("none.toml", "")]);
            let error = typed(&dir, "DIR/a.toml#big").unwrap_err();
            for named in named {
                assert!(error.contains(named), "{named}: {error}");
            }
        }
        let dir = folder(&[("a.toml#big", "")]);
        let error = typed(&dir, "DIR/a.toml#big").unwrap_err();
        assert!(error.contains("cannot be read") && error.contains("is file:"), "{error}");
    }
}
