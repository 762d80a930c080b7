//! Who can stand on what together.

use super::*;
use crate::testing::TempDir;

fn spec(text: &str) -> VolumeSpec {
    text.parse().unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn the_same_file_or_export_is_recognised_under_another_name() {
    let dir = TempDir::new("twins");
    let path = |name: &str| dir.path().join(name);
    std::fs::write(path("a"), [0; 512]).unwrap();
    std::fs::write(path("b"), [0; 512]).unwrap();
    std::os::unix::fs::symlink("a", path("link")).unwrap();
    std::fs::hard_link(path("a"), path("hard")).unwrap();
    let [a, b, link, hard, none] =
        ["a", "b", "link", "hard", "none"].map(|name| path(name).display().to_string());
    for (list, twins) in [
        (format!("linear:[{a},{b},{none},{none}]"), None),
        (format!("linear:[{a},{b},{link}]"), Some([&a, &link])),
        (format!("linear:[{b},linear:[{hard},{a}]]"), Some([&hard, &a])),
        (format!("stripe:[slice:[{a}]?size=512,slice:[{a}]?offset=512]"), None),
        (format!("stripe:[slice:[{a}]?size=1K,slice:[{a}]?offset=512]"), Some([&a, &a])),
    ] {
        let twins = twins.map(|twins| twins.map(|twin| format!("file:{twin}")));
        let found = spec(&list).twins().map(|clash| clash.leaves().map(VolumeSpec::to_string));
        assert_eq!(found, twins, "{list}");
    }
    let [x, again, other, udp] =
        ["tw://n/x?link=eth1", "tw://n/x?link=eth2&mtu=1500", "tw://m/x?link=eth1", "tw+udp://n/x"];
    let found = spec(&format!("linear:[{x},{other},{udp},{again}]"));
    assert_eq!(found.twins().unwrap().leaves().map(VolumeSpec::to_string), [x, again]);
    assert!(spec(&format!("linear:[{x},{other},{udp}]")).twins().is_none());
    assert!(spec("linear:[memory:512,memory:512,null:512,null:512]").twins().is_none());
    let shared = |one: &str, two: &str| {
        let (one, two) = (spec(one), spec(two));
        one.shared_with(&two).map(|clash| clash.leaves().map(VolumeSpec::to_string))
    };
    assert_eq!(
        shared(&format!("linear:[{b},{a}]"), &b),
        Some([&b, &b].map(|b| format!("file:{b}")))
    );
    assert_eq!(shared(&a, &b), None);
    assert_eq!(shared(x, &format!("linear:[{a},{again}]")), Some([x, again].map(str::to_owned)));
}

/// A folder with a file of that name and one that is the same.
fn disk(name: &str) -> (TempDir, String, String) {
    let dir = TempDir::new(name);
    let path = |name: &str| dir.path().join(name);
    std::fs::write(path("a"), [0; 512]).unwrap();
    std::os::unix::fs::symlink("a", path("link")).unwrap();
    let [a, link] = ["a", "link"].map(|name| path(name).display().to_string());
    (dir, a, link)
}

#[test]
fn slices_that_lie_apart_share_a_disk_of_this_machine() {
    let (_dir, a, link) = disk("slices");
    let refused = |list: &str| spec(list).refuse_twins().err();
    for (one, other, overlap) in [
        ("size=1M", "offset=1M", None),
        ("offset=1M", "size=1M", None),
        ("offset=1M&size=1M", "offset=2M&size=1M", None),
        // By one block, from either side.
        ("size=1025K", "offset=1M", Some(["bytes 0 to 1049599", "bytes 1048576 to the end"])),
        (
            "offset=1M&size=512",
            "size=1048577K",
            Some(["bytes 1048576 to 1049087", "bytes 0 to 1073742847"]),
        ),
        ("", "offset=1M", Some(["bytes 0 to the end", "bytes 1048576 to the end"])),
        ("size=1M", "size=1M", Some(["bytes 0 to 1048575"; 2])),
    ] {
        let slices = [(&a, one), (&link, other)].map(|(disk, options)| match options {
            "" => format!("slice:[{disk}]"),
            options => format!("slice:[{disk}]?{options}"),
        });
        let said = refused(&format!("linear:[{}]", slices.join(",")));
        match overlap {
            None => assert_eq!(said, None, "{slices:?}"),
            Some([own, theirs]) => {
                let said = said.unwrap_or_else(|| panic!("{slices:?}"));
                for words in [own, theirs, "overlap", &format!("file:{a}"), "must lie apart"] {
                    assert!(said.contains(words), "{words}: {said}");
                }
            }
        }
    }
    // Slices of slices have what is left of both; what is between them has it for itself.
    let of = |inner: &str, outer: &str| format!("slice:[slice:[{a}]?{inner}]?{outer}");
    let [low, high] =
        ["size=512", "offset=512&size=512"].map(|outer| of("offset=1K&size=1K", outer));
    assert_eq!(refused(&format!("linear:[{low},{high},slice:[{a}]?size=1K]")), None);
    assert!(refused(&format!("linear:[{low},{},{high}]", of("size=4K", "offset=1536"))).is_some());
    // All of the inner one, and not what the outer one is said to have.
    assert_eq!(
        refused(&format!("linear:[{},slice:[{a}]?offset=2K]", of("size=2K", "offset=1K"))),
        None
    );
    for (list, why) in [
        (
            format!("linear:[linear:[slice:[{a}]?size=512,memory:512],{a}]"),
            "each can be a part only once",
        ),
        (
            format!("linear:[slice:[linear:[{a}]]?size=512,slice:[{a}]?offset=512]"),
            "unless all that stands on it are slices",
        ),
        (
            "linear:[slice:[tw://n/x?link=eth1]?size=512,slice:[tw://n/x?link=eth1]?offset=512]"
                .into(),
            "have its target export slices",
        ),
    ] {
        let said = refused(&list).unwrap_or_else(|| panic!("{list}"));
        assert!(said.contains(why), "{said}");
    }
    let copied = |one: &str, other: &str| spec(one).shared_with(&spec(other)).is_some();
    assert!(!copied(&format!("slice:[{a}]?size=512"), &format!("slice:[{link}]?offset=512")));
    assert!(copied(&format!("slice:[{a}]?size=1K"), &format!("slice:[{link}]?offset=512")));
    assert!(copied(&format!("slice:[{a}]?size=1K"), &link));
}

#[test]
fn slices_with_labels_have_all_of_their_part() {
    let (dir, a, _) = disk("labelled-slices");
    let file = dir.path().join("d.toml");
    let slice = |name: &str, more: &str| {
        format!("[[volume]]\nname = \"{name}\"\nkind = \"slice\"\nchildren = [\"{a}\"]\n{more}\n")
    };
    let text =
        slice("bare", "offset = \"2M\"") + &slice("labelled", "size = \"1M\"\nlabels = true");
    std::fs::write(&file, text).unwrap();
    let [bare, labelled] =
        ["bare", "labelled"].map(|name| spec(&format!("{}#{name}", file.display())));
    let clash = bare.shared_with(&labelled).unwrap();
    assert!(clash.advice().contains("slices without labels"), "{}", clash.advice());
    assert_eq!(labelled.common_uses().len(), 0);
    assert_eq!(bare.common_uses().len(), 1);
}

#[test]
fn who_stands_on_the_same_as_one_before_is_found() {
    let (_dir, a, link) = disk("ground");
    let slice = |disk: &str, options: &str| spec(&format!("slice:[{disk}]?{options}"));
    let all = [
        (slice(&a, "size=1K"), false, None),
        (slice(&link, "offset=1K&size=1K"), true, None),
        (spec("memory:1M"), false, None),
        // With one of two, and the first of them.
        (slice(&a, "offset=1536&size=1K"), false, Some(1)),
        (slice(&a, "size=4K"), false, Some(0)),
        // Both only read.
        (slice(&a, "offset=1K&size=512"), true, Some(4)),
        (slice(&a, "offset=8K&size=512"), true, None),
        (slice(&a, "offset=8K"), true, None),
        (spec(&a), true, Some(0)),
        (spec(&link), false, Some(0)),
    ];
    let mut ground = Ground::default();
    for (number, (volume, read_only, against)) in all.iter().enumerate() {
        let found = ground.add(number, volume, *read_only);
        assert_eq!(found.map(|(other, _)| other), *against, "{number}: {volume}");
    }
    let mut ground = Ground::default();
    assert!(ground.add(0, &all[9].0, false).is_none());
    let (_, clash) = ground.add(1, &all[0].0, false).unwrap();
    assert_eq!(clash.to_string(), format!("file:{link} and file:{a} are the same file"));
    assert!(clash.has_slices());
}

#[test]
fn what_slices_are_of_is_opened_once() {
    let (_dir, a, link) = disk("commons");
    let both = spec(&format!(
        "linear:[readonly:[slice:[{a}]?size=512],{a}x,slice:[slice:[{link}]?offset=512]?size=512,slice:[memory:1M]]"
    ));
    let uses: Vec<_> =
        both.merged_uses().iter().map(|of| (of.volume.to_string(), of.is_read)).collect();
    assert_eq!(uses, [(format!("file:{a}"), false)]);
    let over = both.over_commons();
    assert_eq!(over.to_string(), both.to_string());
    let own: Vec<_> = over.leaves().iter().map(|leaf| leaf.to_string()).collect();
    assert_eq!(own, [format!("file:{a}x"), "memory:1048576".into()]);
    for flags in [over.leaves_that_are_read(), over.leaves_that_may_lack()] {
        assert_eq!(flags, [false; 2]);
    }
    assert_eq!(over.leaf_places().len(), 2);
    assert!(spec(&format!("readonly:[slice:[{a}]]")).merged_uses()[0].is_read);
    assert!(both.shares_common_with(&spec(&format!("slice:[{link}]?offset=4K"))));
    assert!(!both.shares_common_with(&spec(&format!("linear:[{a}]"))));
}

/// What one pool stands on is opened as its first volume says, whatever the others say.
#[test]
fn what_a_pool_stands_on_is_shared_beside_its_volumes() {
    let (dir, a, _) = disk("pools");
    let file = dir.path().join("d.toml");
    let pool = |name: &str, at: u64| {
        let parts =
            [0, 1].map(|part| format!("\"slice:[{a}]?offset={}&size=512\"", at + part * 512));
        format!(
            "[[volume]]\nname = \"{name}\"\nkind = \"thin\"\nchildren = [{}]\n",
            parts.join(", ")
        )
    };
    std::fs::write(&file, pool("p", 0) + &pool("q", 1024)).unwrap();
    let of = |name: &str| spec(&format!("{}#{name}", file.display()));
    let [one, other, of_next] = ["p@one", "p@other", "q@one"].map(of);
    assert!(one.shares_common_with(&other) && !one.shares_disk_with(&other));
    assert!(one.shares_disk_with(&of_next));
    let beside = spec(&format!("slice:[{a}]?offset=2K"));
    assert!(one.shares_disk_with(&beside) && beside.shares_disk_with(&one));
    assert!(!one.shares_disk_with(&spec("slice:[memory:1M]")));
    let both = spec(&format!("linear:[{other},slice:[{a}]?offset=2K]"));
    assert!(one.shares_disk_with(&both) && both.shares_disk_with(&one));
    assert_ne!(one.structure(), other.structure());
}
