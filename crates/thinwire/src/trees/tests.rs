//! Names of files mean volumes, and what is wrong in a file is told with its place.

use std::collections::BTreeSet;

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
    kind("linear", name, children)
}

fn kind(kind: &str, name: &str, children: &str) -> String {
    format!("[[volume]]\nname = \"{name}\"\nkind = \"{kind}\"\nchildren = [{children}]\n")
}

/// All options of modules are keys of a `[[volume]]`, and no others are.
#[test]
fn no_option_of_a_module_is_forgotten() {
    let of_modules: BTreeSet<_> =
        Module::all().flat_map(|module| module.options).map(|option| option.name).collect();
    let mut text = volume("x", "");
    for name in &of_modules {
        text += &format!("{name} = 4096\n");
    }
    let keys: FileVolume = toml::from_str(text.trim_start_matches("[[volume]]")).unwrap();
    let said: BTreeSet<_> = keys.options().map(|(name, _)| name).into();
    assert_eq!(said, of_modules);
    assert!(keys.options().iter().all(|(_, value)| value.is_some()), "of another name there");
}

#[test]
fn options_are_numbers_or_sizes() {
    let text = kind("stripe", "wide", "\"part\", \"/b\"")
        + "chunk = \"128K\"\n"
        + &kind("slice", "part", "\"/a\"")
        + "size = \"4G\"\noffset = 1048576\n";
    let dir = folder(&[("a.toml", &text)]);
    let VolumeSpec::Over { options, children, .. } = typed(&dir, "DIR/a.toml#wide").unwrap() else {
        panic!("it is made of others")
    };
    assert!(options.iter().eq([("chunk", 128 << 10)]));
    let VolumeSpec::Over { options, .. } = &children[0] else { panic!("it is made of another") };
    assert!(options.iter().eq([("offset", 1 << 20), ("size", 4 << 30)]));
    assert_eq!(children[0].to_string(), format!("{}/a.toml#part", dir.path().display()));
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
    for text in ["file:DIR/real.toml#big", "DIR/a.toml#big/x.img", "DIR/a.img#big", "a.tomlx#big"] {
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
    assert_eq!(reads() - before, 3, "its own is known by the name that a child has for it, too");
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
            &["a.toml:3: `liner`: unknown kind; there are: cache, linear"],
        ),
        (volume("big", "\"memory:512\"") + &volume("b/g", ""), &["a.toml:6: `b/g`"]),
        (
            volume("big", "\"memory:512\"") + &volume("big", ""),
            &["a.toml:6: the volume name `big` is in use already", "a.toml:1)"],
        ),
        (volume("big", "\"memory:512\"") + "sise = 3", &["a.toml:5: unknown key `sise`"]),
        (
            volume("big", "\"memory:512\"") + "size = 3",
            &["a.toml:5: linear has no `size`: it has no options"],
        ),
        (
            kind("slice", "big", "\"memory:1M\"") + "size = 512\nchunk = \"4K\"",
            &["a.toml:6: slice has no `chunk`; it has offset, size"],
        ),
        (
            kind("stripe", "big", "\"memory:1M\"") + "# A line.\nchunk = \"2K\"",
            &["a.toml:6: `chunk = 2K`: chunk is 4096 to 67108864 bytes, not 2048"],
        ),
        (
            kind("slice", "big", "\"memory:1M\"") + "offset = 100",
            &["a.toml:5: `offset = 100`: offset is a multiple of 512 bytes"],
        ),
        (
            kind("slice", "big", "\"memory:1M\"") + "size = \"much\"",
            &["a.toml:5: `size = much`: not a size"],
        ),
        (kind("slice", "big", "\"memory:1M\"") + "size = true", &["a.toml:5: ", "a size"]),
        (
            kind("slice", "big", "\"memory:1M\", \"memory:1M\""),
            &["a.toml:4: slice takes 1 volume, not 2"],
        ),
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

#[test]
fn those_of_one_share_have_the_same_limits() {
    let disk = |name: &str, rest: &str| kind("qos", name, "\"memory:1M\"") + rest;
    let one = disk("one", "bandwidth = \"120M\"\nshare = 1\n");
    for (rest, is_good) in [
        ("bandwidth = \"120M\"\nshare = 1\n", true),
        ("bandwidth = \"45M\"\nshare = 2\n", true),
        ("bandwidth = \"45M\"\n", true),
        ("bandwidth = \"45M\"\nshare = 1\n", false),
        ("share = 1\n", false),
    ] {
        let dir = folder(&[("a.toml", &(one.clone() + &disk("two", rest)))]);
        let found = typed(&dir, "DIR/a.toml#two");
        match (found, is_good) {
            (Ok(_), true) => {}
            (Err(why), false) => {
                let why = why.to_string();
                for says in ["`two`", "`one`", "share = 1", "a.toml:"] {
                    assert!(why.contains(says), "{why}");
                }
            }
            (found, _) => panic!("{rest}: {found:?}"),
        }
    }
}

#[test]
fn a_cache_has_no_labels() {
    let dir = folder(&[
        ("a.toml", &(kind("cache", "quick", "\"/a\"") + "size = \"8M\"\nmax_age_ms = 1000\n")),
        ("b.toml", &(kind("cache", "quick", "\"/a\"") + "labels = true\n")),
    ]);
    assert!(typed(&dir, "DIR/a.toml#quick").is_ok());
    let error = typed(&dir, "DIR/b.toml#quick").unwrap_err();
    assert!(error.contains("b.toml:3: a cache keeps nothing on its part"), "{error}");
}

/// A snapshot of a part is known for one of it by the label in it: what has none on the way could be cut, and never be read.
#[test]
fn what_is_cut_as_one_has_labels_all_the_way_down() {
    let pool = |name: &str| kind("thin", name, &format!("\"/{name}\", \"/{name}-metadata\""));
    let cuttable = |between: &str, top: &str| {
        let top = format!("{top}labels = true\n");
        let text = pool("east") + &pool("west") + &pool("north") + between + &top;
        let dir = folder(&[("a.toml", &text)]);
        typed(&dir, "DIR/a.toml#wide").unwrap().can_be_cut()
    };
    let wide = kind("stripe", "wide", r#""part", "west@half""#);
    let qos = kind("qos", "part", r#""east@half""#) + "iops = 100\n";
    let mirror = kind("mirror", "part", r#""east@half", "north@half""#);
    let sums = kind("integrity", "part", r#""east@half""#);
    assert!(!cuttable(&qos, &wide));
    assert!(cuttable(&(qos + "labels = true\n"), &wide));
    assert!(cuttable(&mirror, &wide) && cuttable(&sums, &wide));
    assert!(!cuttable(&kind("linear", "part", r#""/image""#), &wide));
    // Its label is its own to write.
    assert!(!cuttable("", &kind("mirror", "wide", r#""east@half", "west@half""#)));
    assert!(cuttable(&mirror, &kind("linear", "wide", r#""part""#)));
}

#[test]
fn a_cache_that_buffers_writes_is_known() {
    for (text, buffers) in [
        ("cache:[/a]?size=8M", false),
        ("cache:[/a]?size=8M&write_back=4M", true),
        ("linear:[/a]", false),
    ] {
        let spec: VolumeSpec = text.parse().unwrap();
        assert_eq!(spec.buffers_writes(), buffers, "{text}");
    }
}
