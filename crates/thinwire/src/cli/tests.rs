//! What is understood on the command line, and what is refused.

use super::*;
use clap::CommandFactory;

fn parse(words: &[&str]) -> Result<Command, clap::Error> {
    Cli::try_parse_from(["thinwire"].iter().chain(words)).map(|cli| cli.command)
}

#[test]
fn the_definition_is_sound_and_every_command_has_an_example() {
    Cli::command().debug_assert();
    let cli = Cli::command();
    // What nobody types is not shown.
    for command in cli.get_subcommands().filter(|command| !command.is_hide_set()) {
        let help = command.get_after_help().map(|h| h.to_string()).unwrap_or_default();
        assert!(help.contains(&format!("thinwire {}", command.get_name())), "{help}");
    }
}

#[test]
fn help_tells_every_module() {
    let help = Cli::command().render_long_help().to_string();
    for module in MODULES {
        let line = help.lines().find(|line| line.contains(&format!("  {}:[", module.name)));
        assert!(line.is_some_and(|line| line.ends_with(module.help)), "{module:?}: {help}");
        // Each option below it, before the next module.
        let below = help.split(module.help).nth(1).and_then(|below| below.split(":[").next());
        for option in module.options {
            let name = format!("    {}={} ", option.name, value_word(option));
            let mut lines = below.unwrap_or_default().lines();
            let line = lines.find(|line| line.starts_with(&name));
            assert!(line.is_some_and(|line| line.ends_with(option.help)), "{name}: {help}");
        }
    }
}

#[test]
fn the_design_s_examples_parse() {
    for line in [
        "target --name node1 --link eth1 --export disk0=/srv/disk0.img --export scratch=memory:4G",
        "target --config /etc/thinwire/target.toml",
        "target --config x --check",
        "discover --link eth1",
        "attach tw://node1/disk0?link=eth1 --nbd unix:/run/disk0.sock",
        "attach tw://node1/disk0?link=eth1 --block",
        "attach tw+udp://10.0.0.2/disk0 --file /mnt/disk0",
        "attach tw+udp://10.0.0.2/disk0 --nbd tcp:127.0.0.1:10809 --as x --foreground --when-away fail-after=30 --take-over --insecure --wait",
        "attach memory:1M --nbd unix:/s --socket-mode 0660",
        "attach memory:1M --nbd tcp:10.0.0.1:10809 --tls=off",
        "attach memory:1M --nbd tcp:10809 --tls require --tls-psk /k --tls-certificates /c --tls-verify-peer",
        "detach disk0 --force --json",
        "status --json --run-dir /tmp/x",
        "bench memory:1G --rw randrw --bs 4k --iodepth 32 --jobs 2 --runtime 10s --verify --json --fault loss=1%,dup=1%,reorder=1%,seed=7 --pcap f --shards 2",
        "bench null:1M --rw rw --mix 70",
        "bench null:1M --batch static:8 --data-batch off",
        "target --batch tyche --data-batch on --receive split --completion workqueue --spin off",
        "bench null:1M --breakdown",
        "bench null:1M --breakdown --rw randread --bs 4k --json",
        "target --spin always",
        "attach tw://n/d?link=eth1 --nbd unix:/s --spin always",
        "bench null:1M --receive split --submission queue --spin off",
        "copy a tw+udp://10.0.0.2/disk0 --verify",
        "completions zsh",
        "-vv man",
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        parse(&words).unwrap_or_else(|e| panic!("{line}: {e}"));
    }
}

#[test]
fn bad_usage_has_exit_code_2_and_names_the_part() {
    for (line, named) in [
        ("attach tw+udp://h/disk0", "--nbd"),
        ("attach tw+udp://h/disk0 --block --file /x", "cannot be used with"),
        ("attach tw+udp://h/disk0 --nbd udp:x", "`udp:x`"),
        ("attach tw+udp://h/disk0?foo=1 --block", "`foo`"),
        ("attach tw+udp://h/disk0 --block --when-away fail", "`fail`"),
        ("attach tw+udp://h/disk0 --block --when-away fail-after=soon", "`soon`"),
        ("attach tw+udp://h/disk0 --block --as a/b", "`a/b`"),
        ("attach tw+udp://h/disk0 --block --read-only --take-over", "--take-over"),
        ("attach memory:1M --nbd unix:/s --socket-mode 0888", "`0888`: give permissions in octal"),
        (
            "attach memory:1M --nbd unix:/s --socket-mode 1777",
            "`1777`: permissions are at most 0777",
        ),
        ("attach memory:1M --nbd unix:/s --socket-mode +7", "`+7`"),
        ("attach memory:1M --block --socket-mode 0660", "--socket-mode"),
        ("attach memory:1M --file /f --tls off", "--tls"),
        ("attach memory:1M --nbd tcp:0 --tls maybe", "maybe"),
        ("discover", "--link"),
        ("discover --link eth1 a/b", "`a/b`: not a valid node name"),
        ("attach tw+udp://h/.. --block", "`..`"),
        ("attach tw+udp://h/disk0 --block --as ..", "`..`: not a valid attachment name"),
        ("attach tw+udp://h/disk0 --block --as a\u{202e}b", "not a valid attachment name"),
        ("attach tw+udp://h/a%2fb --block", "export name"),
        ("target --export a/b=memory:1M", "`a/b`: not a valid export name"),
        ("status ../x", "`../x`"),
        ("detach a\u{1b}b", "not a valid attachment name"),
        ("discover --link eth1 --insecure", "--insecure"),
        ("bench memory:1G --rw trim", "trim"),
        ("bench memory:1G --iodepth 0", "0"),
        ("bench memory:1G --rw randrw --mix 101", "101"),
        ("target --shards 0", "0"),
        ("bench null:1M --breakdown --verify", "--verify"),
        ("bench null:1M --start-at NaN", "NaN"),
        ("target --submission queue", "--submission"),
        ("bench null:1M --completion workqueue", "--completion"),
        ("target --batch often", "often: not a batching policy"),
        ("bench null:1M --batch static:65", "1 to 64"),
        ("frobnicate", "frobnicate"),
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        let error = parse(&words).expect_err(line);
        assert_eq!(error.exit_code(), 2, "{line}");
        assert!(error.to_string().contains(named), "{line}: {error}");
    }
}

#[test]
fn faces() {
    let face = |words: &[&str]| match parse(words).unwrap() {
        Command::Attach(args) => args.face(),
        _ => unreachable!(),
    };
    assert_eq!(face(&["attach", "null:1M", "--block"]), FaceSpec::Block(None));
    let way = FaceSpec::Block(Some(BlockBackend::Loop));
    assert_eq!(face(&["attach", "--block=loop", "null:1M"]), way);
    assert_eq!(face(&["attach", "null:1M", "--file", "/f"]), FaceSpec::File("/f".into()));
    assert_eq!(
        face(&["attach", "null:1M", "--nbd", "unix:/s"]),
        FaceSpec::Nbd(NbdAddress::Unix("/s".into()))
    );
}
