//! Descriptions of trees, and what is refused of them.

use super::*;

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
