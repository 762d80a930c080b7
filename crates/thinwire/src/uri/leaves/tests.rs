//! Descriptions of trees, and what is refused of them.

use super::*;
use crate::testing::TempDir;

fn spec(text: &str) -> VolumeSpec {
    text.parse().unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn what_is_only_read_is_known_leaf_by_leaf() {
    let spec = spec("linear:[/a,readonly:[stripe:[/b,/c]],slice:[/d]]");
    assert_eq!(spec.leaves_that_are_read(), [false, true, true, false]);
}

#[test]
fn what_others_may_write_is_not_cached_for_ever() {
    let refused = |text: &str, read_only| spec(text).refuse_stale_caches(read_only).err();
    for (text, read_only) in [
        ("cache:[tw://n/x?link=eth1]", false),
        ("cache:[tw://n/x?link=eth1]?max_age_ms=1000", true),
        ("cache:[/a]", true),
        ("readonly:[tw://n/x?link=eth1]", true),
        ("cache:[ebd://02-00-00-00-00-02/3.1?link=eth1]?max_age_ms=1", false),
    ] {
        assert_eq!(refused(text, read_only), None, "{text}");
    }
    for (text, read_only, why) in [
        ("cache:[tw://n/x?link=eth1]", true, "only read here"),
        ("linear:[/a,cache:[slice:[tw://n/x?link=eth1]]]", true, "tw://n/x?link=eth1 is only read"),
        ("cache:[linear:[/a,readonly:[tw://n/x?link=eth1]]]", false, "max_age_ms=1000"),
        ("readonly:[cache:[tw://n/x?link=eth1]]", false, "only read here"),
        ("cache:[ebd://02-00-00-00-00-02/3.1?link=eth1]", false, "nobody's alone"),
        ("cache:[aoe://7.1?link=eth1]", false, "nobody's alone"),
    ] {
        let error = refused(text, read_only).unwrap_or_else(|| panic!("{text}"));
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn memory_of_all_caches_is_counted() {
    assert_eq!(spec("linear:[/a,/b]").cache_bytes(), 0);
    assert_eq!(
        spec("linear:[cache:[/a]?size=8M,cache:[slice:[cache:[/b]]]]").cache_bytes(),
        136 << 20
    );
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
        (format!("stripe:[slice:[{a}]?size=512,slice:[{a}]?offset=512]"), Some([&a, &a])),
    ] {
        let twins = twins.map(|twins| twins.map(|twin| format!("file:{twin}")));
        let found = spec(&list).twins().map(|twins| twins.map(VolumeSpec::to_string));
        assert_eq!(found, twins, "{list}");
    }
    let slices = spec(&format!("linear:[slice:[{a}]?size=512,slice:[{a}]?offset=512]"));
    assert_eq!(
        slices.refuse_twins(),
        Err(format!(
            "file:{a} and file:{a} are the same file: each can be a part only once, also by way of \
             slices of it"
        ))
    );
    let [x, again, other, udp] =
        ["tw://n/x?link=eth1", "tw://n/x?link=eth2&mtu=1500", "tw://m/x?link=eth1", "tw+udp://n/x"];
    let found = spec(&format!("linear:[{x},{other},{udp},{again}]"));
    assert_eq!(found.twins().unwrap().map(VolumeSpec::to_string), [x, again]);
    assert_eq!(spec(&format!("linear:[{x},{other},{udp}]")).twins(), None);
    assert_eq!(spec("linear:[memory:512,memory:512,null:512,null:512]").twins(), None);
    let shared = |one: &str, two: &str| {
        let (one, two) = (spec(one), spec(two));
        one.shared_with(&two).map(|twins| twins.map(VolumeSpec::to_string))
    };
    assert_eq!(
        shared(&format!("linear:[{b},{a}]"), &b),
        Some([&b, &b].map(|b| format!("file:{b}")))
    );
    assert_eq!(shared(&a, &b), None);
    assert_eq!(shared(x, &format!("linear:[{a},{again}]")), Some([x, again].map(str::to_owned)));
}
