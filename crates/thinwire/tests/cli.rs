//! The command as users and scripts see it: exit codes, messages, what goes to stdout.

mod common;

use std::process::Command;

use common::{Folder, thinwire};

#[test]
fn help_and_version_are_on_stdout() {
    let ran = thinwire(&["--help"]);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    assert!(ran.out.contains("tw+udp://HOST[:PORT]/EXPORT"));
    for command in ["target", "discover", "attach", "detach", "status", "bench", "copy"] {
        let ran = thinwire(&[command, "--help"]);
        assert_eq!(ran.code, 0);
        assert!(ran.out.contains("Example") && ran.out.contains("--json"), "{}", ran.out);
    }
    assert!(thinwire(&["--version"]).out.starts_with("thinwire "));
}

#[test]
fn bad_usage_exits_with_2_and_names_the_part() {
    for (words, named) in [
        (&["frobnicate"][..], "frobnicate"),
        (&[], "Usage"),
        (&["bench"], "<VOLUME>"),
        (&["bench", "nbd://host/x"], "nbd:"),
        (
            &["bench", "tw://n/d?link=eth1&jumbo=1&x=2"],
            "`jumbo`; known are `link`, `key`, `mtu`, `members` and `integrity`",
        ),
        (&["bench", "tw://n/d"], "no link"),
        (&["bench", "memory:1Q"], "1Q"),
        (&["bench", "memory:1M", "--rw", "trim"], "trim"),
        (&["bench", "memory:1M", "--fault", "loss=1%,flood=2%"], "flood=2%"),
        (
            &["bench", "tw+udp://h/d", "--breakdown", "--runtime", "961"],
            "960 s at most for 8 pairs",
        ),
        (&["attach", "tw+udp://h/d"], "--nbd"),
        (&["attach", "tw+udp://h/d", "--block", "--when-away", "panic"], "panic"),
        (&["attach", "memory:1M", "--nbd", "tcp:0", "--socket-mode", "0660"], "unix:PATH"),
        (&["detach", "a/b"], "a/b"),
        (&["discover", "--link", "tcp:eth1"], "tcp"),
        (&["target", "--export", "a"], "NAME=VOLUME"),
        (&["target", "--export", "a=memory:1M,rw"], "`rw`"),
        (&["target", "--export", "a=memory:1M"], "no link"),
        (&["target", "--link", "eth1"], "nothing to export"),
        (&["target", "--config", "/no/such.toml"], "/no/such.toml"),
        (&["copy", "memory:1M"], "<DST>"),
    ] {
        let ran = thinwire(words);
        assert_eq!(ran.code, 2, "{words:?}: {}", ran.err);
        assert!(ran.err.contains(named), "{words:?}: {}", ran.err);
        assert_eq!(ran.out, "", "{words:?}");
    }
}

#[test]
fn without_insecure_both_sides_refuse_and_say_why() {
    for words in [
        &["target", "--name", "n", "--link", "eth1", "--export", "a=memory:1M"][..],
        &["bench", "tw+udp://127.0.0.1/a"],
        &[
            "attach",
            "tw+udp://127.0.0.1/a",
            "--nbd",
            "unix:/tmp/never.sock",
            "--run-dir",
            "/tmp/never",
        ],
        &["copy", "tw+udp://127.0.0.1/a", "memory:1M"],
    ] {
        let ran = thinwire(words);
        assert_eq!(ran.code, 1, "{words:?}: {}", ran.err);
        let named = ran.err.contains("--insecure") && ran.err.contains("neither");
        assert!(named && ran.err.contains("thinwire key new"), "{words:?}: {}", ran.err);
    }
    assert_eq!(thinwire(&["discover", "--link", "eth1", "--insecure"]).code, 2);
}

#[test]
fn a_configuration_s_mistakes_are_named_with_line_and_key() {
    let folder = Folder::new("config");
    let config = folder.file("target.toml", "node = \"n\"\ninsecure = true\nlnik = [\"eth1\"]\n");
    let ran = thinwire(&["target", "--config", &config]);
    assert_eq!(ran.code, 2, "{}", ran.err);
    assert!(ran.err.contains("target.toml:3: unknown key `lnik`"), "{}", ran.err);

    folder.file("target.toml", "insecure = true\nlink = [\"eth1\"]\n");
    folder.file("conf.d/10.toml", "[[export]]\nname = \"a\"\nvolume = \"a.img\"\nsize = 1\n");
    let ran = thinwire(&["target", "--config", &config]);
    assert_eq!(ran.code, 2, "{}", ran.err);
    assert!(ran.err.contains("conf.d/10.toml:4: unknown key `size`"), "{}", ran.err);
}

#[test]
fn check_looks_at_everything_and_serves_nothing() {
    let folder = Folder::new("check");
    let good = folder.file("good.img", vec![0; 8192]);
    let odd = folder.file("odd.img", vec![0; 1000]);
    let text = "node = \"node1\"\ninsecure = true\nlink = [\"no-such-link\"]\n\
                [[export]]\nname = \"good\"\nvolume = \"good.img\"\n";
    let config = folder.file("target.toml", text);
    let ran = thinwire(&["target", "--config", &config, "--check"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let said = ran.out.lines().next().unwrap_or_default();
    assert_eq!(said, "ok: node node1, exports good");
    assert!(ran.out.contains("memory: at most") && ran.out.contains("limit memory"), "{}", ran.out);

    let more = format!(
        "{text}[[export]]\nname = \"odd\"\nvolume = \"{odd}\"\n\
         [[export]]\nname = \"gone\"\nvolume = \"gone.img\"\nread_only = true\n\
         [[export]]\nname = \"again\"\nvolume = \"{good}\"\n"
    );
    let config = folder.file("target.toml", more);
    let ran = thinwire(&["target", "--config", &config, "--check", "--json"]);
    assert_eq!(ran.code, 1);
    let json: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((json["ok"].as_bool(), json["schema"].as_u64()), (Some(false), Some(2)));
    assert_eq!(json["problems"].as_array().unwrap().len(), 3);
    for named in ["1000 bytes", "block of 512", "gone.img", "`good` and `again`"] {
        assert!(ran.err.contains(named), "{named}: {}", ran.err);
    }
}

#[test]
fn attachments_that_are_not_there() {
    let folder = Folder::new("none");
    let run_dir = folder.at("run");
    let ran = thinwire(&["status", "--run-dir", &run_dir]);
    let said = format!(
        "no attachments and no targets in {run_dir}; root's are in /run/thinwire (--run-dir /run/thinwire)\n"
    );
    assert_eq!((ran.code, ran.out), (0, said));
    let ran = thinwire(&["status", "--json", "--run-dir", &run_dir]);
    assert_eq!(
        (ran.code, ran.out.as_str()),
        (0, "{\"schema\":2,\"attachments\":[],\"targets\":[]}\n")
    );
    for words in [&["status", "disk0"][..], &["detach", "disk0"], &["detach", "disk0", "--force"]] {
        let ran = thinwire(&[words, &["--run-dir", &run_dir]].concat());
        assert_eq!(ran.code, 1);
        assert!(ran.err.contains("`disk0`"), "{}", ran.err);
    }
    assert!(!folder.path().join("run").exists(), "asking must not make the folder");
}

#[test]
fn a_target_never_waits_for_itself() {
    let folder = Folder::new("shared");
    let image = folder.file("b.img", [0; 4096]);
    let (b, c) = (format!("b={image}"), format!("c={image}"));
    let words = ["target", "--insecure", "--name", "shared", "--link", "udp:127.0.0.1:0"];
    let run_dir = folder.at("run");
    let more = ["--export", &b, "--export", &c, "--run-dir", &run_dir];
    let ran = thinwire(&[&words[..], &more].concat());
    assert!(ran.code == 1 && ran.err.contains("exports `b` and `c`"), "{}", ran.err);
    assert!(ran.err.contains("are the same file"), "{}", ran.err);
}

#[test]
fn papers_are_printed() {
    for shell in ["bash", "zsh", "fish"] {
        let ran = thinwire(&["completions", shell]);
        assert!(ran.code == 0 && ran.out.contains("discover"), "{shell}");
    }
    assert!(thinwire(&["man"]).out.contains(".TH thinwire 8"));
    for (named, title) in [
        ("attach", "thinwire-attach 8"),
        ("volume-create", "thinwire-volume-create 8"),
        ("volumes", "thinwire-volumes 5"),
        ("mirror", "thinwire-mirror 7"),
        ("thinwire-mirror.7", "thinwire-mirror 7"),
        ("lie", "thinwire-trial 7"),
    ] {
        let ran = thinwire(&["man", named]);
        assert!(
            ran.code == 0 && ran.out.contains(&format!(".TH {title} ")),
            "{named}: {}",
            ran.out
        );
    }
    let folder = Folder::new("man");
    assert_eq!(thinwire(&["man", &folder.at("pages")]).code, 0);
    for page in [
        "man8/thinwire.8",
        "man8/thinwire-target.8",
        "man8/thinwire-volume-create.8",
        "man5/thinwire-volumes.5",
        "man7/thinwire-stripe.7",
    ] {
        let text = std::fs::read_to_string(folder.path().join("pages").join(page)).unwrap();
        assert!(text.contains(".TH"), "{page}");
    }
    let ran = thinwire(&["man", "mirrror"]);
    assert!(ran.code == 2 && ran.err.contains("no page `mirrror`"), "{}", ran.err);
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let script = format!("{} --help | head -1", env!("CARGO_BIN_EXE_thinwire"));
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}
