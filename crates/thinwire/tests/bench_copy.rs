//! `thinwire bench` and `thinwire copy` on local volumes, as users and scripts see them.

mod common;

use std::process::Command;

use common::{Folder, thinwire};
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
fn what_only_reads_verifies_nothing_and_makes_no_image() {
    let ran = thinwire(&["bench", "memory:1M", "--verify", "--runtime", "0.1"]);
    assert!(ran.code == 0 && ran.out.contains("nothing was verified"), "{}", ran.out);
    let folder = Folder::new("missing");
    let (missing, away) = (folder.at("missing.img"), folder.at("away.img"));
    for words in [&["bench", &missing][..], &["copy", &missing, &away]] {
        let ran = thinwire(&[words, &["--run-dir", &folder.at("run")]].concat());
        assert!(ran.code == 1 && ran.err.contains("no such file"), "{}", ran.err);
        assert!(!ran.err.contains("truncate"), "{}", ran.err);
    }
    let ran = thinwire(&["bench", "memory:1M", "--breakdown"]);
    assert!(ran.code == 2 && ran.err.contains("needs a remote volume"), "{}", ran.err);
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
        (&["--rw", "write", "--shards", "2"], "--shards 1"),
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
fn copy_makes_a_sparse_file_and_verifies() {
    use std::os::unix::fs::MetadataExt;
    let folder = Folder::new("copy");
    let mut bytes = vec![0; 4 << 20];
    for at in [0, 5000, (1 << 20) + 777, (4 << 20) - 1] {
        bytes[at] = 0xa5;
    }
    let source = folder.file("source.img", &bytes);
    let copy = folder.at("copy.img");
    let ran = thinwire(&["copy", &source, &copy, "--verify", "--json"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let json: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(json["data_bytes"], 3 * (128 << 10));
    assert!(std::fs::read(&copy).unwrap() == bytes);
    // One more block than the data has: attributes that say which volume it is, and whose.
    assert!(std::fs::metadata(&copy).unwrap().blocks() * 512 <= 3 * (128 << 10) + 4096);

    // The other way, onto something that is there and holds other bytes.
    let back = folder.file("back.img", vec![0xee; 5 << 20]);
    let ran = thinwire(&["copy", &copy, &back]);
    assert!(ran.code == 0 && ran.out.contains("copied 4 MiB"), "{}{}", ran.out, ran.err);
    let back = std::fs::read(&back).unwrap();
    assert!(back[..4 << 20] == bytes && back[4 << 20..] == vec![0xee; 1 << 20]);
}

#[test]
fn copy_leaves_nothing_half_made() {
    let folder = Folder::new("copy-bad");
    let source = folder.file("source.img", vec![1; 1 << 20]);
    let small = folder.file("small.img", vec![2; 4096]);
    let ran = thinwire(&["copy", &source, &small]);
    assert!(ran.code == 1 && ran.err.contains("too small"), "{}", ran.err);
    assert!(std::fs::read(&small).unwrap() == [2; 4096]);
    let ran = thinwire(&["copy", &source, &source]);
    assert!(ran.code == 1 && ran.err.contains("same file"), "{}", ran.err);
    let odd = folder.file("odd.img", vec![1; 1000]);
    let ran = thinwire(&["copy", &odd, &folder.at("new.img")]);
    assert!(ran.code == 1 && ran.err.contains("1000"), "{}", ran.err);
    let ran = thinwire(&["copy", &folder.at("missing.img"), &folder.at("new.img")]);
    assert!(ran.code == 1 && ran.err.contains("missing.img"), "{}", ran.err);
    assert!(!folder.path().join("new.img").exists());
}

#[test]
fn copy_says_what_became_of_a_file_that_did_not_fit() {
    let folder = Folder::new("copy-full");
    let source = folder.file("source.img", vec![1; 4 << 20]);
    let nowhere = folder.at("none/copy.img");
    let ran = thinwire(&["copy", &source, &nowhere]);
    assert!(ran.code == 1 && ran.err.contains("mkdir -p"), "{}", ran.err);
    let full = folder.at("full");
    std::fs::create_dir(&full).unwrap();
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", "size=1m", "none", &full]);
    if !mount.status().is_ok_and(|status| status.success()) {
        return;
    }
    let copy = format!("{full}/copy.img");
    let ran = thinwire(&["copy", &source, &copy]);
    let is_left = std::path::Path::new(&copy).exists();
    assert!(Command::new("umount").arg(&full).status().unwrap().success());
    assert!(ran.code == 1 && !is_left, "{}", ran.err);
    for word in ["no space left", &copy, "is removed again"] {
        assert!(ran.err.contains(word), "{word}: {}", ran.err);
    }
}

#[test]
fn bench_verifies_a_file() {
    let folder = Folder::new("bench-file");
    let image = folder.at("disk.img");
    std::fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
    let words = [
        "bench",
        &image,
        "--rw",
        "randrw",
        "--iodepth",
        "8",
        "--runtime",
        "0.5",
        "--verify",
        "--json",
    ];
    for _ in 0..2 {
        let ran = thinwire(&words);
        assert_eq!((ran.code, ran.err.as_str()), (0, ""));
        let json: Value = serde_json::from_str(&ran.out).unwrap();
        assert!(json["verified"].as_u64().unwrap() > 0);
    }
    let ran = thinwire(&["bench", &folder.at("missing.img")]);
    assert!(ran.code == 1 && ran.err.contains("missing.img"), "{}", ran.err);
}

#[test]
fn copy_reports_what_it_did() {
    let ran = thinwire(&["copy", "memory:2M", "memory:4M", "--verify", "--json"]);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    let json: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((&json["bytes"], &json["data_bytes"]), (&(2 << 20).into(), &0.into()));
    assert_eq!((&json["schema"], &json["verified"]), (&2.into(), &true.into()));
}
