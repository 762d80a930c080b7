//! TOML configurations, with a second file in `conf.d`: pieces of valid ones, edited, and anything else. What is
//! taken is a target that can be described; what is not is refused with a sentence.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use clap::Parser;
use thinwire::cli::{Cli, Command};
use thinwire::config::{SHARDS_MAX, TargetSettings};
use thinwire_fuzz::{Choices, Reached, fuzz};

/// Pieces of files: lines, and parts of lines.
const PIECES: &[&str] = &[
    "node = \"n\"\n",
    "insecure = true\n",
    "authenticate_only = true\n",
    "announce = false\n",
    "link = [\"eth1\"]\n",
    "link = [\"udp:10.0.0.1:7\", \"packet:eth2,vlan=7\"]\n",
    "key = [\"KEY\"]\n",
    "shards = 4\n",
    "batch = \"static:8\"\n",
    "data_batch = true\n",
    "receive = \"split\"\n",
    "completion = \"workqueue\"\n",
    "spin = \"always\"\n",
    "spin = false\n",
    "user = \"nobody\"\n",
    "confine = true\n",
    "[limits]\n",
    "sessions = 64\n",
    "memory = \"4G\"\n",
    "sessions-per-key = \"2k\"\n",
    "[[export]]\n",
    "name = \"disk0\"\n",
    "name = \"disk1\"\n",
    "volume = \"memory:4M\"\n",
    "volume = \"big\"\n",
    "volume = \"linear:[big,memory:512]\"\n",
    "volume = \"null:1G\"\n",
    "read_only = true\n",
    "keys = [\"KEYNAME\"]\n",
    "read_keys = [\"KEYNAME\"]\n",
    "block = 4096\n",
    "buffered = true\n",
    "cache = \"64M\"\n",
    "spread = true\n",
    "weight = 3\n",
    "writeback = true\n",
    "[[volume]]\n",
    "name = \"big\"\n",
    "name = \"small\"\n",
    "kind = \"linear\"\n",
    "kind = \"slice\"\n",
    "kind = \"stripe\"\n",
    "chunk = \"128K\"\n",
    "offset = 512\n",
    "size = \"64K\"\n",
    "children = [\"small\", \"memory:1M\"]\n",
    "children = [\"memory:512\", \"linear:[memory:512,null:512]\"]\n",
    "children = [\"big\"]\n",
    "= ",
    "\"",
    "[",
    "]",
    "{",
    "}",
    "'''",
    "\n",
    "# ",
    "-1",
    "9223372036854775807",
    "1e3",
    "1979-05-27",
    "true",
];

struct Place {
    folder: PathBuf,
    key: String,
}

/// Of this process, which removes it in the end unless it fails.
static PLACE: LazyLock<Place> = LazyLock::new(|| {
    let folder = std::env::temp_dir().join(format!("thinwire-fuzz-config-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(folder.join("conf.d")).expect("a folder of its own");
    thinwire::keys::make("alice", &folder, false).expect("a key");
    let key = folder.join("alice").display().to_string();
    Place { folder, key }
});

fn text(choices: &mut Choices<'_>) -> String {
    let mut text = String::new();
    // A few more often than many: most of those are refused for the first.
    let most = *choices.of(&[1, 2, 4, 40]);
    for _ in 0..choices.below(most) {
        match choices.below(12) {
            0 => text.push_str(&choices.text(20)),
            1 => {
                let at = choices.below(text.len() + 1);
                let at = (at..=text.len())
                    .find(|&at| text.is_char_boundary(at))
                    .expect("the end is one");
                match choices.flag() {
                    true => text.truncate(at),
                    false => text.insert_str(at, choices.of::<&str>(PIECES)),
                }
            }
            _ => text.push_str(choices.of::<&str>(PIECES)),
        }
    }
    text.replace("KEYNAME", "alice").replace("KEY", &PLACE.key)
}

static REACHED: Reached = Reached::new();

fn play(choices: &mut Choices<'_>) {
    let file = PLACE.folder.join("target.toml");
    // A beginning that can become something, half of the time.
    let begins = match choices.below(4) {
        0 => String::new(),
        1 => "node = \"n\"\ninsecure = true\nlink = [\"eth1\"]\n".to_owned(),
        _ => "node = \"n\"\ninsecure = true\nlink = [\"eth1\"]\n\
              [[volume]]\nname = \"big\"\nkind = \"linear\"\nchildren = [\"memory:1M\"]\n\
              [[export]]\nname = \"disk0\"\nvolume = \"memory:4M\"\n"
            .to_owned(),
    };
    let main = begins + &text(choices);
    let beside = if choices.below(3) == 0 { text(choices) } else { String::new() };
    std::fs::write(&file, &main).expect("a file of its own");
    std::fs::write(PLACE.folder.join("conf.d/1.toml"), &beside).expect("a file of its own");
    // What a thread has read of files it does not read again.
    let judged = std::thread::scope(|scope| scope.spawn(|| judge(&file, &main, &beside)).join());
    judged.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

fn judge(file: &Path, main: &str, beside: &str) {
    let path = file.display().to_string();
    let Command::Target(args) = Cli::try_parse_from(["thinwire", "target", "--config", &path])
        .expect("it is right")
        .command
    else {
        unreachable!("the command is `target`");
    };
    match TargetSettings::assemble(&args) {
        Ok(settings) => {
            REACHED.count("taken");
            assert!((1..=SHARDS_MAX).contains(&settings.shards) && !settings.links.is_empty());
            assert!(settings.insecure == settings.keys.is_empty(), "{main}{beside}");
            let mut names: Vec<_> = settings.exports.iter().map(|export| &export.name).collect();
            names.sort();
            names.dedup();
            assert!(!names.is_empty() && names.len() == settings.exports.len(), "{main}{beside}");
            // What it may take of memory can be said, of whatever was set.
            assert!(settings.memory().all() > 0);
        }
        Err(failure) => {
            REACHED.count("refused");
            assert!(!failure.message.is_empty());
            assert_eq!(
                failure.exit_code(),
                if failure.message.contains("cannot use key") { 1 } else { 2 },
                "{failure}"
            );
        }
    }
}

#[test]
fn fuzz_configuration() {
    fuzz!("configuration", 3_000, 160, play);
    REACHED.expect(&["taken", "refused"]);
    let _ = std::fs::remove_dir_all(&PLACE.folder);
}
