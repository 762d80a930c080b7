//! `thinwire bench` and `thinwire copy` on local volumes, as users and scripts see them.

mod common;

use common::thinwire;
use serde_json::Value;

#[test]
fn bench_prints_one_json_object_with_the_fixed_fields() {
    for rw in ["randread", "randwrite", "read", "write", "randrw"] {
        let words = [
            "bench",
            "memory:16M",
            "--rw",
            rw,
            "--bs",
            "4k",
            "--iodepth",
            "8",
            "--jobs",
            "2",
            "--runtime",
            "0.2",
            "--verify",
            "--json",
        ];
        let ran = thinwire(&words);
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{rw}");
        let json: Value = serde_json::from_str(&ran.out).unwrap();
        for field in ["schema", "iops", "mib_per_s", "cpu_us_per_io", "runtime_s"] {
            assert!(json[field].as_f64().unwrap() > 0.0, "{field}");
        }
        for field in ["mean", "p50", "p99", "p999", "max"] {
            assert!(json["latency_us"][field].as_f64().unwrap() > 0.0, "{field}");
        }
        assert_eq!((&json["errors"], &json["rw"]), (&0.into(), &rw.into()));
        let writes = json["writes"].as_u64().unwrap();
        assert_eq!(writes > 0, rw.contains("write") || rw == "randrw");
        assert_eq!(json["verified"].as_u64().unwrap() > 0, writes > 0);
    }
    let ran = thinwire(&["bench", "null:1G", "--runtime", "100ms"]);
    assert!(ran.code == 0 && ran.out.contains("IOPS"), "{}", ran.out);
}

#[test]
fn bench_finds_a_volume_that_forgets() {
    let ran = thinwire(&[
        "bench",
        "null:16M",
        "--rw",
        "randrw",
        "--verify",
        "--runtime",
        "0.2",
        "--json",
    ]);
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("expected generation 1 of this run, found zeroes"), "{}", ran.err);
    let json: Value = serde_json::from_str(&ran.out).unwrap();
    assert!(json["errors"].as_u64().unwrap() > 0);
}

#[test]
fn bench_refuses_what_does_not_fit() {
    for (words, named) in [
        (&["--bs", "1000"][..], "multiple"),
        (&["--bs", "2M"], "at most"),
        (&["--size", "1G"], "only"),
        (&["--rw", "write", "--shards", "2", "--jobs", "2"], "--shards 1"),
    ] {
        let ran = thinwire(&[&["bench", "memory:16M", "--runtime", "0.1"], words].concat());
        assert!(ran.code != 0 && ran.err.contains(named), "{words:?}: {}", ran.err);
    }
}

#[test]
fn shards_share_the_jobs_of_a_read() {
    let words = ["bench", "null:1G", "--jobs", "3", "--shards", "2", "--runtime", "0.2", "--json"];
    let ran = thinwire(&words);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let json: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(json["jobs"], 3);
}

#[test]
fn copy_refuses_a_smaller_destination_and_says_both_sizes() {
    let ran = thinwire(&["copy", "memory:2M", "memory:1M"]);
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("1048576") && ran.err.contains("2097152"), "{}", ran.err);
}

#[test]
fn copy_reports_what_it_did() {
    let ran = thinwire(&["copy", "memory:2M", "memory:4M", "--verify", "--json"]);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    let json: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((&json["bytes"], &json["data_bytes"]), (&(2 << 20).into(), &0.into()));
    assert_eq!((&json["schema"], &json["verified"]), (&1.into(), &true.into()));
}
