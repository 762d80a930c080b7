//! What files and flags come to together, and what is refused of them.

use super::*;
use crate::testing::TempDir;
use crate::uri::VolumeSpec;

fn assemble(dir: &TempDir, files: &[(&str, &str)], flags: &[&str]) -> Outcome<TargetSettings> {
    crate::config_file::forget();
    for (name, text) in files {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let config = dir.path().join("target.toml");
    let mut words = vec!["thinwire", "target"];
    if !files.is_empty() {
        words.extend(["--config", config.to_str().unwrap()]);
    }
    words.extend(flags);
    match <crate::cli::Cli as clap::Parser>::try_parse_from(words).unwrap().command {
        crate::cli::Command::Target(args) => TargetSettings::assemble(&args),
        _ => unreachable!(),
    }
}

const MAIN: &str = r#"
node = "node1"
insecure = true
link = ["eth1", "udp:10.0.0.1"]

[[export]]
name = "disk0"
volume = "disk0.img"
read_only = true
block = 4096
buffered = true
cache = "256M"
weight = 4
"#;

#[test]
fn file_drop_ins_and_flags_add_up() {
    let dir = TempDir::new("config");
    let more = "node = \"other\"\nshards = 2\n[[export]]\nname = \"b\"\nvolume = \"memory:1M\"\nwriteback = true\n";
    let files = [("target.toml", MAIN), ("conf.d/20.toml", more), ("conf.d/ignored", "?")];
    let config = assemble(&dir, &files, &["--link", "eth2", "--export", "c=null:1M"]).unwrap();
    assert_eq!((config.node.as_str(), config.insecure, config.shards), ("other", true, 2));
    assert_eq!(config.links.len(), 3);
    let names: Vec<_> = config.exports.iter().map(|e| e.name.as_str()).collect();
    assert_eq!(names, ["disk0", "b", "c"]);
    assert_eq!(config.exports[0].volume, VolumeSpec::Path(dir.path().join("disk0.img")));
    assert!(config.exports[0].read_only && config.exports[0].block_bytes == 4096);
    assert_eq!(config.exports[0].cache, Some(256 << 20));
    assert_eq!((config.exports[0].weight, config.exports[1].weight), (4, 1));
    assert!(config.exports[1].writeback);
    assert!(config.exports[0].buffered && !config.exports[1].buffered);
    let config = assemble(&dir, &files, &["--name", "flag", "--shards", "4"]).unwrap();
    assert_eq!((config.node.as_str(), config.shards), ("flag", 4));
    let file = format!("batch = \"doorbell\"\ndata_batch = false\n{MAIN}");
    let batching = |flags: &[&str]| {
        let all = assemble(&dir, &[("target.toml", &file)], flags).unwrap().batching;
        (all.policy.to_string(), all.data)
    };
    assert_eq!(batching(&[]), ("doorbell".into(), false));
    assert_eq!(batching(&["--batch", "tyche"]), ("tyche".into(), false));
    assert_eq!(batching(&["--data-batch", "on"]), ("doorbell".into(), true));
    for (line, flags, spin) in [
        ("", &[][..], Spin::On),
        ("spin = true\n", &[], Spin::On),
        ("spin = false\n", &[], Spin::Off),
        ("spin = \"always\"\n", &[], Spin::Always),
        ("spin = \"always\"\n", &["--spin", "on"], Spin::On),
    ] {
        let file = format!("{line}{MAIN}");
        let all = assemble(&dir, &[("target.toml", &file)], flags).unwrap();
        assert_eq!(all.spin, spin, "{line}{flags:?}");
    }
    let file = format!("user = \"a:b\"\nconfine = true\n{MAIN}");
    let all = assemble(&dir, &[("target.toml", &file)], &[]).unwrap().privileges;
    assert_eq!((all.user.as_deref(), all.confine), (Some("a:b"), true));
    let file = format!("confine = false\n{MAIN}");
    let all = assemble(&dir, &[("target.toml", &file)], &[]).unwrap().privileges;
    assert_eq!((all.user, all.confine), (None, false));
}

#[test]
fn caches_are_no_larger_than_the_machine() {
    let exports = ["a=/x,cache=1G", "b=/y", "c=/z,cache=512M"].map(|e| e.parse().unwrap());
    let memory = |bytes| MemoryLimit { bytes, limit: Some("/g/memory.max".into()) };
    assert_eq!(fits(&exports, &memory(2 << 30)), Ok(()));
    let why = fits(&exports, &memory((2 << 30) - 4)).unwrap_err();
    assert!(why.contains("may take 1.5 GiB together"), "{why}");
    assert!(why.contains("/g/memory.max allows this process"), "{why}");
}

#[test]
fn mistakes_are_placed() {
    for (text, named) in [
        ("\nnode = \"n\"\nnodde = 1\n", "target.toml:3: unknown key `nodde`"),
        (
            "[[export]]\nname = \"a\"\nvolume = \"x\"\nblok = 512\n",
            "target.toml:4: unknown key `blok`",
        ),
        ("[[export]]\nname = \"a\"\n", "target.toml:1: missing key `volume`"),
        ("\nspin = \"never\"\n", "target.toml:2: `never`: give on, off or always"),
        ("\nspin = 3\n", "target.toml:2: spin is true, false or \"always\""),
        (
            "[[export]]\nname = \"a\"\nvolume = \"memory:1M\"\nbuffered = true\n",
            "target.toml:4: `memory:1048576`: it has no file",
        ),
        ("node = \n", "target.toml:1: "),
        (
            "[[export]]\nname = \"a\"\nvolume = \"memory:1M\"\nweight = 0\n",
            "target.toml:4: `weight=0`: a weight is 1 to 100",
        ),
        ("\nnode = \"a b\"\n", "target.toml:2: `a b`"),
        ("node = \"02-00-00-00-00-02\"\n", "Ethernet address"),
        ("link = [\"eth1\",\n \"tcp:x\"]\n", "target.toml:2: link \"tcp:x\""),
        ("link = [\"eth1\",\n \"eth1\"]\n", "target.toml:2: the link `eth1` is given twice"),
        ("insecure = \"yes\"\n", "target.toml:1: invalid type"),
        ("[export]\nname = \"a\"\nvolume = \"x\"\n", "write [[export]] for [export]"),
        ("[export]\nname = \"a\"\n[export]\nname = \"b\"\n", "write [[export]] for [export]"),
        ("shards = 0\n", "target.toml:1: `0`"),
        ("batch = \"static:0\"\n", "target.toml:1: static:0"),
        ("[[export]]\nname = \"a/b\"\nvolume = \"x\"\n", "target.toml:2: `a/b`"),
        ("[[export]]\nname = \"a\"\nvolume = \"foo:x\"\n", "target.toml:3: `foo:x`"),
        ("[[export]]\nname = \"a\"\nvolume = \"x\"\nblock = 100\n", "target.toml:4: `100`"),
        (
            "[[export]]\nname = \"a\"\nvolume = \"x\"\ncache = \"1k\"\n",
            "target.toml:4: `cache=1 KiB`",
        ),
        (
            "[[export]]\nname=\"a\"\nvolume=\"x\"\n[[export]]\nname=\"a\"\nvolume=\"y\"\n",
            "target.toml:4: the export name `a` is in use already",
        ),
        ("node = \"n\"\n", "no link"),
        ("link = [\"eth1\"]\n", "nothing to export"),
    ] {
        let dir = TempDir::new("config-bad");
        let error = assemble(&dir, &[("target.toml", text)], &[]).unwrap_err();
        assert!(error.message.contains(named), "{text}: {error}");
        assert_eq!(error.exit_code(), 2);
    }
}

#[test]
fn exports_of_described_volumes() {
    let dir = TempDir::new("config-volumes");
    let volume = |name: &str, child: &str| {
        format!("[[volume]]\nname = \"{name}\"\nkind = \"linear\"\nchildren = [\"{child}\"]\n")
    };
    let main = format!(
        "link = [\"eth1\"]\n[[export]]\nname = \"x\"\nvolume = \"big\"\n[[export]]\nname = \"y\"\n\
         volume = \"linear:[rest,memory:512]\"\n{}",
        volume("big", "low")
    );
    // Used by what is used; from the command line; by nobody.
    let more = ["low", "rest", "typed", "spare"].map(|name| volume(name, "memory:1M")).concat();
    let files = [("target.toml", &*main), ("conf.d/1.toml", &more)];
    let file = dir.path().join("target.toml");
    let flag = format!("z={}#typed", file.display());
    let config = assemble(&dir, &files, &["--export", &flag]).unwrap();
    let volumes: Vec<_> = config.exports.iter().map(|e| e.volume.to_string()).collect();
    let node = |name: &str| format!("{}#{name}", file.display());
    let list = format!("linear:[{},memory:512]", node("rest"));
    assert_eq!(volumes, [node("big"), list, node("typed")]);
    let place = dir.path().join("conf.d/1.toml:13");
    let unused = format!("{}: no export uses the volume `spare`", place.display());
    assert_eq!(config.unused, [unused]);

    // All of them are checked, used or not, and so is every word of an export.
    for (more, named) in [
        (volume("bad", "foo:x"), "target.toml:4: `foo:x`"),
        (volume("a", "b") + &volume("b", "a"), "a volume cannot be a part of itself (a, b, a)"),
        (
            volume("a", "memory:512") + "[[export]]\nname = \"x\"\nvolume = \"b\"\n",
            "target.toml:7: `b`: ",
        ),
        (
            volume("a", "memory:512") + "[[export]]\nname = \"x\"\nvolume = \"a\"\nblock = 4096\n",
            "target.toml:8: `4096`: the blocks of a volume that is made of others",
        ),
    ] {
        let dir = TempDir::new("config-volumes-bad");
        let error = assemble(&dir, &[("target.toml", &more)], &["--link", "eth1"]).unwrap_err();
        assert!(error.message.contains(named) && error.exit_code() == 2, "{named}: {error}");
    }
}

#[test]
fn a_name_of_a_file_on_the_command_line_says_how_it_is_written_there() {
    let dir = TempDir::new("config-named");
    let volume = "[[volume]]\nname = \"bigger\"\nkind = \"linear\"\nchildren = [\"memory:1M\"]\n";
    let files = [("target.toml", volume)];
    let file = dir.path().join("target.toml");
    for given in ["bigger", "file:bigger", "linear:[memory:512,bigger]"] {
        let export = format!("x={given}");
        let flags = ["--link", "eth1", "--export", &export];
        let error = assemble(&dir, &files, &flags).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        let right = format!("{}#bigger", file.display());
        for named in ["--export", "no file `bigger`", &right] {
            assert!(error.message.contains(named), "{given}: {error}");
        }
    }
    // Other files that are missing are left to whoever opens them.
    for given in ["other", "/no/such/bigger", &format!("{}#bigger", file.display())] {
        let export = format!("x={given}");
        assert!(assemble(&dir, &files, &["--link", "eth1", "--export", &export]).is_ok());
    }
}

#[test]
fn names_from_flags_and_files_must_differ() {
    let dir = TempDir::new("config-twice");
    let error =
        assemble(&dir, &[("target.toml", MAIN)], &["--export", "disk0=null:1M"]).unwrap_err();
    assert!(error.message.contains("--export: the export name `disk0`"), "{error}");
    assert!(error.message.contains("target.toml:6"), "{error}");
}

#[test]
fn check_finds_every_problem() {
    let dir = TempDir::new("config-check");
    let image = dir.path().join("i.img");
    std::fs::write(&image, [0; 1024]).unwrap();
    let image = image.display();
    let (a, b) = (format!("a={image}"), format!("b={image}"));
    let flags = ["--link", "eth1", "--export", &a, "--export", &b, "--export", "c=/no/such"];
    let problems = assemble(&dir, &[], &flags).unwrap().check_volumes();
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert!(problems[0].contains("`a` and `b`") && problems[1].contains("/no/such"));
    assert!(problems[1].contains("truncate -s"), "{problems:?}");
    let (a, b) = (format!("{a},ro"), format!("{b},ro"));
    let config = assemble(&dir, &[], &["--link", "eth1", "--export", &a, "--export", &b]);
    assert!(config.unwrap().check_volumes().is_empty());
    let both = |a: &str, b: &str| {
        let flags = ["--link", "eth1", "--export", a, "--export", b];
        assemble(&dir, &[], &flags).unwrap().check_volumes()
    };
    let problems = both(
        "a=linear:[tw://n/x?link=eth1,tw://n/y?link=eth1]",
        "b=linear:[memory:1M,tw://n/y?link=eth2]",
    );
    let shared = "tw://n/y?link=eth1 and tw://n/y?link=eth2 are the same export";
    assert!(problems.len() == 1 && problems[0].contains(shared), "{problems:?}");
    // Who only reads harms no other who does, but is harmed by who writes.
    let flags = [",ro", ",ro", "", ",ro"].map(|ro| format!("{image}{ro}"));
    let names = ["a", "b", "c", "d"];
    let exports: Vec<_> = names.iter().zip(flags).map(|(n, v)| format!("{n}={v}")).collect();
    let mut flags = vec!["--link", "eth1"];
    exports.iter().for_each(|export| flags.extend(["--export", export]));
    let problems = assemble(&dir, &[], &flags).unwrap().check_volumes();
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert!(problems[0].contains("`a` and `c`") && problems[1].contains("`c` and `d`"));
    let problems = both(&format!("a=linear:[{image},{image}]"), "b=memory:1M");
    assert!(problems.len() == 1 && problems[0].contains("can be a part only once"));
}
