//! Volumes described in TOML files: `[[volume]]` beside the exports of a target, and `FILE.toml#NAME`, by
//! which one of them can be named wherever a volume is.

use std::cell::RefCell;
use std::fmt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use serde::{Deserialize, Serialize};
use thinwire_modules::{Cache, Module, Options, Qos};

use crate::config_file::{ConfigFile, FileVolume};
use crate::crypted::takes_key;
use crate::error::{Failure, Outcome, ParseError};
use crate::size::check_name;
use crate::uri::{DEPTH_MAX, VolumeSpec, parse_volume, set_option};

/// The end of a file's name that makes what follows `#` the name of a volume in it.
const FILE_END: &str = ".toml";

/// By what name a volume of a file can be used elsewhere: `FILE.toml#NAME`. Of what no file describes yet the name alone: its file has no name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
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

impl NodeName {
    /// The same volume, by whatever path its file is named. Looks at files.
    pub fn is_same(&self, other: &NodeName) -> bool {
        self.is(&other.file, &other.name)
    }

    /// All that an attachment or an export of this name is made of, whether files describe it or not.
    pub fn of_opened(name: &str) -> NodeName {
        NodeName { file: PathBuf::new(), name: name.to_owned() }
    }

    /// It is all that the attachment or the export of this name is made of.
    pub fn is_all_of(&self, opened: &str) -> bool {
        self.file.as_os_str().is_empty() && self.name == opened
    }

    /// It is all of the export of this name, or of an attachment, or something that this volume of it is made of.
    pub fn is_in(&self, opened: &str, volume: &VolumeSpec) -> bool {
        // A store may be known by what it was made of before a reload.
        (self.is_all_of(opened) && !volume.is_store())
            || NodeName::all_in(volume).iter().any(|node| node.is_same(self))
    }

    /// The same, by a path that holds wherever a process goes.
    pub fn absolute(&self) -> NodeName {
        let file = std::path::absolute(&self.file).unwrap_or_else(|_| self.file.clone());
        NodeName { file, name: self.name.clone() }
    }

    /// Of all that files describe of a volume, its pools among them, by absolute paths.
    pub fn all_in(volume: &VolumeSpec) -> Vec<NodeName> {
        let mut nodes = Vec::new();
        volume.nodes(&mut nodes);
        let mut found: Vec<NodeName> = Vec::new();
        for node in nodes {
            let of_pool = split_inner(&node.name);
            let names = [Some(&*node.name), of_pool.1.map(|_| of_pool.0)];
            for name in names.into_iter().flatten() {
                let node = NodeName { file: node.file.clone(), name: name.to_owned() }.absolute();
                if !found.contains(&node) {
                    found.push(node);
                }
            }
        }
        found
    }

    /// The same volume of the same file, or both are volumes of one pool, or that pool itself.
    pub fn is_beside(&self, other: &NodeName) -> bool {
        self.is_of(&other.file, split_inner(&other.name).0)
    }

    /// That volume, or one of its own.
    fn is_of(&self, file: &Path, name: &str) -> bool {
        let base = split_inner(&self.name).0.to_owned();
        NodeName { file: self.file.clone(), name: base }.is(file, name)
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.file.as_os_str().is_empty() {
            true => f.write_str(&self.name),
            false => write!(f, "{}#{}", self.file.display(), self.name),
        }
    }
}

/// The volumes that a file, and `conf.d` beside it, describe.
#[derive(Debug, Default)]
pub(crate) struct Trees {
    file: PathBuf,
    described: Vec<Described>,
    /// Where `uuid:` looks for parts; anywhere if there are none.
    places: Vec<PathBuf>,
    /// What files that are named in it describe.
    library: Library,
}

/// Files whose volumes have been named, by the path that was given: each is read once, however many of its
/// volumes are, so that all of them are of one state of it.
type Library = Rc<RefCell<Vec<Rc<Trees>>>>;

/// One of them, of which only the name, the kind and its options have been looked at.
#[derive(Debug)]
struct Described {
    name: String,
    module: &'static Module,
    options: Options,
    labels: bool,
    /// Names the key file of one that takes a key.
    key: Option<String>,
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

    /// Where parts are looked for by their labels; anywhere if there are none.
    pub fn places(&self) -> &'a [PathBuf] {
        self.trees.map_or(&[], |trees| &trees.places)
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
            if let Some(volume) = trees.described(split_inner(text).0) {
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

/// A name in a file, and that of a volume in the pool of that name.
fn split_inner(text: &str) -> (&str, Option<&str>) {
    text.split_once('@').map_or((text, None), |(pool, name)| (pool, Some(name)))
}

/// The volume of that name in a file.
fn load(file: &Path, name: &str, walk: &RefCell<Walk>) -> Result<VolumeSpec, String> {
    check_name("volume name", split_inner(name).0).map_err(|e| e.to_string())?;
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
    /// A name is in use already or none, a kind does not exist, or is told what it does not take.
    pub fn of(file: &Path, files: &[ConfigFile]) -> Outcome<Self> {
        let mut trees = Trees { file: file.to_owned(), ..Trees::default() };
        for file in files {
            let named = file.keys.places.iter();
            trees.places.extend(named.map(|place| file.folder().join(place)));
            for volume in &file.keys.volume {
                trees.add(file, volume)?;
            }
        }
        Ok(trees)
    }

    fn add(&mut self, file: &ConfigFile, volume: &toml::Spanned<FileVolume>) -> Outcome {
        let FileVolume { name, kind, children, .. } = volume.get_ref();
        check_name("volume name", name.get_ref()).map_err(|e| file.wrong(name.span(), e))?;
        if let Some(first) = self.described(name.get_ref()) {
            let (name, first, place) = (name.get_ref(), &first.places[0], name.span());
            let why = format!("the volume name `{name}` is in use already ({first})");
            return Err(file.wrong(place, format!("{why}; names must differ")));
        }
        let Some(module) = Module::find(kind.get_ref()) else {
            let known: Vec<_> = Module::all().map(|module| module.name).collect();
            let why =
                format!("`{}`: unknown kind; there are: {}", kind.get_ref(), known.join(", "));
            return Err(file.wrong(kind.span(), why));
        };
        let mut options = Options::default();
        for (name, value) in volume.get_ref().options() {
            let Some(value) = value else { continue };
            let wrong = |why: String| file.wrong(value.span(), why);
            let option = module.option(name).map_err(|e| wrong(e.to_string()))?;
            let words = value.get_ref().to_string();
            let set = set_option(&mut options, option, &words);
            set.map_err(|why| wrong(format!("`{name} = {words}`: {why}")))?;
        }
        self.check_share(module, &options, name.get_ref())
            .map_err(|why| file.wrong(kind.span(), why))?;
        let labels = volume.get_ref().labels.unwrap_or(module.keeps.is_some());
        if labels && Cache::bytes_of(module, &options).is_some() {
            let why = "a cache keeps nothing on its part, and is told other sizes later: leave `labels` away, or give them to what it stands on";
            return Err(file.wrong(kind.span(), why));
        }
        let key = key_of(file, volume, module)?;
        let placed =
            |child: &toml::Spanned<String>| (child.get_ref().clone(), file.place(child.span()));
        self.described.push(Described {
            name: name.get_ref().clone(),
            module,
            options,
            labels,
            key,
            children: children.get_ref().iter().map(placed).collect(),
            places: [volume.span(), children.span()].map(|span| file.place(span)),
            folder: file.folder().to_owned(),
        });
        Ok(())
    }

    /// Those that share a budget have the same limits.
    fn check_share(&self, module: &Module, options: &Options, name: &str) -> Result<(), String> {
        let Some((limits, Some(share))) = Qos::limits_of(module, options) else { return Ok(()) };
        let differs = |of: &&Described| {
            let theirs = Qos::limits_of(of.module, &of.options);
            matches!(theirs, Some((theirs, Some(other))) if other == share && theirs != limits)
        };
        match self.described.iter().find(differs) {
            None => Ok(()),
            Some(other) => Err(format!(
                "`{name}` and `{}` ({}) have share = {share}, and other limits: say the same of all of one share, or other numbers",
                other.name, other.places[0]
            )),
        }
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
        let (base, inner) = split_inner(name);
        let Some(volume) = self.described(base) else { return Err(self.unknown(base)) };
        match inner {
            Some("") => return Err(format!("`{name}`: the name of a volume follows the @")),
            Some(_) if !volume.module.has_volumes() && !volume.labels => {
                return Err(format!("{base} is a {}, and has no volumes", volume.module.name));
            }
            _ => {}
        }
        let node = NodeName { file: self.file.clone(), name: base.to_owned() };
        walk.borrow_mut().enter(&node)?;
        let scope = Scope { folder: &volume.folder, trees: Some(self), walk };
        let children = volume
            .children
            .iter()
            .map(|(text, place)| parse_volume(text, &scope).map_err(|e| format!("{place}: {e}")));
        let mut children: Vec<VolumeSpec> = children.collect::<Result<_, _>>()?;
        walk.borrow_mut().leave();
        if let Some(cut) = inner.filter(|_| !volume.module.has_volumes()) {
            let of = children.iter().map(|child| child.in_cut(cut));
            children = of.collect::<Result<_, _>>().map_err(|why| format!("{name}: {why}"))?;
        }
        let (module, options) = (volume.module, volume.options.clone());
        let count = module.check_count(children.len());
        count.map_err(|e| format!("{}: {e}", volume.places[1]))?;
        let places = volume.children.iter().map(|(_, place)| place.clone()).collect();
        let (labels, inner) = (volume.labels, inner.map(str::to_owned));
        let (key, node) = (volume.key.clone(), Some(NodeName { name: name.to_owned(), ..node }));
        let place = Some(volume.places[0].clone());
        Ok(VolumeSpec::Over { node, module, options, children, places, place, labels, key, inner })
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
            |volume: &&Described| used.iter().any(|node| node.is_of(&self.file, &volume.name));
        let unused = self.described.iter().filter(|volume| !is_used(volume));
        unused
            .map(|volume| {
                format!("{}: no export uses the volume `{}`", volume.places[0], volume.name)
            })
            .collect()
    }
}

/// The key that a volume is described with: a path in the file's folder, or a name. One that takes a key must have one.
fn key_of(
    file: &ConfigFile,
    volume: &toml::Spanned<FileVolume>,
    module: &Module,
) -> Outcome<Option<String>> {
    let FileVolume { name, kind, key, .. } = volume.get_ref();
    let Some(key) = key else {
        return match takes_key(module) {
            true => Err(file.wrong(
                volume.span(),
                format!(
                    "the {} volume `{}` needs a key: say key = \"PATH\", a file that `thinwire key new NAME` makes",
                    module.name,
                    name.get_ref()
                ),
            )),
            false => Ok(None),
        };
    };
    if !takes_key(module) {
        return Err(file.wrong(key.span(), format!("a {} volume takes no key", kind.get_ref())));
    }
    let given = key.get_ref();
    Ok(Some(match given.contains('/') {
        true => file.folder().join(given).display().to_string(),
        false => given.clone(),
    }))
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
mod tests;
