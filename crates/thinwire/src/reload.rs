//! Reading a target's configuration again while it serves: what has changed in it since, and whether that can be
//! applied without a restart. Keys, who may open what, `announce`, limits, and exports that are one store of this
//! machine, or volumes of a pool, or slices of a disk, of which another export stays, can; all else is refused by name. It is applied as a whole or not at all.

use std::fmt::Display;

use serde::{Deserialize, Serialize};

use crate::config::TargetSettings;
use crate::export::ExportSpec;
use crate::keys::KeyFile;
use crate::privileges::PrivilegeSettings;
use crate::uri::CommonUse;

/// What a reload has changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reloaded {
    /// One sentence for each change; none if everything is as it was.
    pub changes: Vec<String>,
    /// Sessions that were ended: their keys, or their rights to what they had open, are gone.
    pub ended: u64,
    /// Shards that were busy all the time. They take the change before anything else.
    pub late: Vec<u8>,
    /// Exports that are gone for all, and whose files stay open until what was begun there has ended.
    pub leaving: Vec<String>,
}

impl Reloaded {
    /// Sentences for the user.
    pub fn describe(&self) -> Vec<String> {
        let mut all = self.changes.clone();
        if all.is_empty() {
            all.push("nothing has changed".into());
        }
        match self.ended {
            0 => {}
            1 => all.push("1 session was ended".into()),
            count => all.push(format!("{count} sessions were ended")),
        }
        for export in &self.leaving {
            all.push(format!("export `{export}` is closed once what it has begun has ended"));
        }
        for shard in &self.late {
            all.push(format!("shard {shard} is busy, and takes that as soon as it is not"));
        }
        all
    }
}

/// Exports that come and go.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ExportPlan {
    /// Names of those that go.
    pub removed: Vec<String>,
    /// Those that come; some may have the name of one that goes.
    pub added: Vec<ExportSpec>,
    /// Other weights of those that stay, by name.
    pub weights: Vec<(String, u16)>,
}

impl ExportPlan {
    /// From what a target serves now to what it is to serve next, between which [`changes`] has found nothing that
    /// needs a restart.
    pub fn of(now: &[ExportSpec], next: &[ExportSpec]) -> Self {
        let mut plan = ExportPlan::default();
        for export in next {
            match find(now, &export.name) {
                Some(before) if before.volume.is_same(&export.volume) => {
                    if before.weight != export.weight {
                        plan.weights.push((export.name.clone(), export.weight));
                    }
                }
                before => {
                    plan.removed.extend(before.map(|before| before.name.clone()));
                    plan.added.push(export.clone());
                }
            }
        }
        let gone = now.iter().filter(|export| find(next, &export.name).is_none());
        plan.removed.extend(gone.map(|export| export.name.clone()));
        plan
    }

    /// No export comes, and none goes.
    pub fn is_empty(&self) -> bool {
        self.removed.is_empty() && self.added.is_empty()
    }

    /// One sentence for each change.
    fn describe(&self, now: &[ExportSpec]) -> Vec<String> {
        let mut all = Vec::new();
        for export in &self.added {
            let what = match self.removed.contains(&export.name) {
                true => "is another volume now",
                false => "is added",
            };
            all.push(format!("export `{}` {what}: {}", export.name, export.volume));
        }
        let is_replaced = |name: &String| self.added.iter().any(|export| export.name == *name);
        let gone = self.removed.iter().filter(|name| !is_replaced(name));
        all.extend(gone.map(|name| format!("export `{name}` is removed")));
        for (name, weight) in &self.weights {
            let was = find(now, name).map_or(1, |before| before.weight);
            all.push(format!("export `{name}` has weight {weight}; it was {was}"));
        }
        all
    }
}

fn find<'a>(all: &'a [ExportSpec], name: &str) -> Option<&'a ExportSpec> {
    all.iter().find(|export| export.name == name)
}

/// What `next` changes in a target that serves `now`: one sentence for each.
///
/// # Errors
/// It would change what only a restart can: all of that, by name.
pub(crate) fn changes(now: &TargetSettings, next: &TargetSettings) -> Result<Vec<String>, String> {
    let mut fixed = fixed(now, next);
    fixed.extend(exports(&now.exports, &next.exports));
    if !fixed.is_empty() {
        return Err(format!("only a restart can change {}", fixed.join(", ")));
    }
    let mut all = Vec::new();
    let of = |files: &[KeyFile], file: &KeyFile, id| {
        files.iter().any(|other| other.name == file.name && other.ids().any(|other| other == id))
    };
    for (from, to, what) in [(next, now, "added"), (now, next, "removed")] {
        for file in &from.keys {
            let ids = file.ids().filter(|id| !of(&to.keys, file, *id));
            all.extend(ids.map(|id| format!("key {} of `{}` is {what}", id, file.name)));
        }
    }
    all.extend(ExportPlan::of(&now.exports, &next.exports).describe(&now.exports));
    for export in &next.exports {
        let Some(before) = find(&now.exports, &export.name) else { continue };
        if (&before.keys, &before.read_keys) != (&export.keys, &export.read_keys) {
            let (was, is) = (rights(before), rights(export));
            all.push(format!("export `{}` is for {is}; it was for {was}", export.name));
        }
    }
    // Without keys everybody is told them anyway.
    if now.announces != next.announces && !next.keys.is_empty() {
        let who = if next.announces { "everybody" } else { "those with a key only" };
        all.push(format!("names of exports are told to {who}"));
    }
    for ((limit, was), (_, is)) in now.limits.iter().zip(next.limits.iter()) {
        if was != is {
            all.push(format!("limit {} is {is} {}; it was {was}", limit.name(), limit.unit()));
        }
    }
    Ok(all)
}

/// Whose an export is, as it was written.
fn rights(export: &ExportSpec) -> String {
    let writers = match &export.keys {
        Some(names) if names.is_empty() => "no keys".to_owned(),
        Some(names) => format!("keys={}", names.join("+")),
        None => "all keys of the target".to_owned(),
    };
    match export.read_keys.is_empty() {
        true => writers,
        false => format!("{writers}, read-keys={}", export.read_keys.join("+")),
    }
}

/// What else than exports differs, and is as it is for as long as the target lives.
fn fixed(now: &TargetSettings, next: &TargetSettings) -> Vec<String> {
    // All are named, so that none is forgotten which is added.
    let TargetSettings {
        node,
        insecure,
        keys,
        access: _,
        authenticate_only,
        announces: _,
        limits: _,
        links,
        offers,
        exports: _,
        shards,
        batching,
        pipeline,
        spin,
        fault,
        pcap,
        run_dir,
        state_dir,
        lease,
        privileges,
        is_from_file: _,
        unused: _,
    } = next;
    let mut all = Vec::new();
    let mut differs = |what: &str, was: &dyn Display, is: &dyn Display| {
        let (was, is) = (was.to_string(), is.to_string());
        if was != is {
            all.push(format!("{what} ({was}, now {is})"));
        }
    };
    let listed = |links: &[thinwire_link::LinkSpec]| {
        links.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    };
    differs("the node name", &now.node, node);
    differs("insecure", &now.insecure, insecure);
    differs("authenticate_only", &now.authenticate_only, authenticate_only);
    differs("links", &listed(&now.links), &listed(links));
    let named = |offers: &[crate::offer::OfferSpec]| {
        offers.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    };
    differs("offers", &named(&now.offers), &named(offers));
    differs("shards", &now.shards, shards);
    differs("batch", &now.batching.policy, &batching.policy);
    differs("data_batch", &now.batching.data, &batching.data);
    differs("spin", &now.spin, spin);
    // Whom it has become, and what it has given up, stays: there is no way back.
    differs("user", &user(&now.privileges), &user(privileges));
    differs("confine", &now.privileges.confine, &privileges.confine);
    if now.pipeline != *pipeline {
        all.push("receive or completion".into());
    }
    // Flags stay those of the start.
    if (&now.fault, &now.pcap) != (fault, pcap)
        || (&now.run_dir, &now.state_dir, &now.lease) != (run_dir, state_dir, lease)
    {
        all.push("flags".into());
    }
    if now.insecure == *insecure && now.keys.is_empty() != keys.is_empty() {
        let what = if keys.is_empty() { "the last key is gone" } else { "there were none" };
        all.push(format!("whether there are keys ({what})"));
    }
    all
}

/// Whom a target becomes, as it was written.
fn user(privileges: &PrivilegeSettings) -> &str {
    privileges.user.as_deref().unwrap_or("who started it")
}

/// Exports that cannot come, go or change while the target serves.
fn exports(now: &[ExportSpec], next: &[ExportSpec]) -> Vec<String> {
    let mut all = Vec::new();
    let stays = |export: &&ExportSpec| {
        find(next, &export.name).is_some_and(|after| after.volume.is_same(&export.volume))
    };
    let staying: Vec<_> = now.iter().filter(stays).collect();
    let bound = |export: &ExportSpec| bound(export, &staying);
    for export in next {
        match find(now, &export.name) {
            None => all.extend(
                bound(export).map(|why| format!("export `{}` (it is new, and {why})", export.name)),
            ),
            Some(before) if !before.volume.is_same(&export.volume) => {
                let why = bound(before).or_else(|| bound(export));
                let name = &export.name;
                all.extend(why.map(|why| format!("export `{name}` (another volume, and {why})")));
            }
            Some(before) => {
                let options = options(before, export);
                if !options.is_empty() {
                    let (name, options) = (&export.name, options.join(", "));
                    all.push(format!(
                        "export `{name}` (its {options}; or remove it by one reload and add it by the next)"
                    ));
                }
            }
        }
    }
    let gone = now.iter().filter(|export| find(next, &export.name).is_none());
    let gone = gone.filter_map(|export| Some((export, bound(export)?)));
    all.extend(
        gone.map(|(export, why)| format!("export `{}` (it is gone, and {why})", export.name)),
    );
    all
}

/// Why an export stays as long as its target, if it does. Those of `staying` have their pools and disks open, whatever comes and goes.
fn bound(export: &ExportSpec, staying: &[&ExportSpec]) -> Option<&'static str> {
    match (export.volume.is_store(), export.spread) {
        (false, _) if is_of_open_common(export, staying) => None,
        (false, _) => Some("made of other volumes, or another target's"),
        (true, true) => Some("spread over shards"),
        (true, false) => None,
    }
}

/// It is a volume of a pool, or a slice of a disk, of which another export has one as well, and of nothing else.
pub(crate) fn is_of_open_common(export: &ExportSpec, staying: &[&ExportSpec]) -> bool {
    let uses = export.volume.common_uses();
    let is_open = |of: &CommonUse<'_>| {
        let others = staying.iter().filter(|other| other.name != export.name);
        others.into_iter().any(|other| other.volume.has_common(of.volume))
    };
    // A budget that others share is on their shard, which may be another than that of the rest.
    let is_alone = export.volume.shares().is_empty();
    is_alone
        && !uses.is_empty()
        && export.volume.over_commons().leaves().is_empty()
        && uses.iter().all(is_open)
}

/// What differs in how the same volume is opened.
fn options(was: &ExportSpec, is: &ExportSpec) -> Vec<&'static str> {
    // All are named, so that none is forgotten which is added.
    let ExportSpec {
        name: _,
        volume: _,
        read_only,
        keys: _,
        read_keys: _,
        block_bytes,
        buffered,
        cache,
        spread,
        weight: _,
        writeback,
    } = is;
    let all = [
        ("read_only", was.read_only != *read_only),
        ("block", was.block_bytes != *block_bytes),
        ("buffered", was.buffered != *buffered),
        ("cache", was.cache != *cache),
        ("spread", was.spread != *spread),
        ("writeback", was.writeback != *writeback),
    ];
    all.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::make;
    use crate::testing::TempDir;

    /// The settings of a file with these lines and of flags.
    fn read(dir: &TempDir, text: &str, flags: &[&str]) -> TargetSettings {
        crate::config_file::forget();
        let path = dir.path().join("target.toml");
        std::fs::write(&path, text).unwrap();
        let mut words = vec!["thinwire", "target", "--config", path.to_str().unwrap()];
        words.extend(flags);
        let cli = <crate::cli::Cli as clap::Parser>::try_parse_from(words).unwrap();
        let crate::cli::Command::Target(args) = cli.command else { unreachable!() };
        TargetSettings::assemble(&args).unwrap()
    }

    /// A file for keys of these names in the folder.
    fn file(dir: &TempDir, keys: &[&str], exports: &str) -> String {
        let paths = keys.iter().map(|name| format!("\"{}\"", dir.path().join(name).display()));
        let paths = paths.collect::<Vec<_>>().join(", ");
        format!("node = \"n\"\nlink = [\"eth1\"]\nkey = [{paths}]\n{exports}")
    }

    const EXPORTS: &str = "[[export]]\nname = \"a\"\nvolume = \"memory:1M\"\n\
                           [[export]]\nname = \"b\"\nvolume = \"memory:1M\"\n";

    #[test]
    fn keys_rights_and_announcing_change() {
        let dir = TempDir::new("reload");
        let ids: Vec<_> = ["alice", "bob"]
            .map(|name| make(name, dir.path(), false).unwrap().newest().id().to_string())
            .into();
        let now = read(&dir, &file(&dir, &["alice", "bob"], EXPORTS), &[]);
        assert_eq!(changes(&now, &now), Ok(vec![]));
        let next = read(&dir, &file(&dir, &["alice"], EXPORTS), &["--announce"]);
        let told = "names of exports are told to everybody".to_owned();
        assert_eq!(
            changes(&now, &next),
            Ok(vec![format!("key {} of `bob` is removed", ids[1]), told])
        );
        assert_eq!(changes(&next, &now).unwrap().len(), 2);
        let newer = make("alice", dir.path(), true).unwrap();
        let text = file(&dir, &["alice", "bob"], EXPORTS);
        let next = read(&dir, &(text + "read_keys = [\"bob\"]\n"), &[]);
        assert_eq!(
            changes(&now, &next),
            Ok(vec![
                format!("key {} of `alice` is added", newer.newest().id()),
                "export `b` is for all keys of the target, read-keys=bob; it was for all keys of the \
                 target"
                    .to_owned(),
            ])
        );
    }

    #[test]
    fn limits_change_from_files_and_flags() {
        let dir = TempDir::new("reload-limits");
        make("alice", dir.path(), false).unwrap();
        let with = |more: &str, flags: &[&str]| {
            read(&dir, &(file(&dir, &["alice"], EXPORTS) + more), flags)
        };
        let now = with("[limits]\nsessions = 8\n", &[]);
        let next = with("[limits]\nsessions = 2\nmemory = \"1G\"\n", &["--limit", "greetings=9"]);
        let memory = now.limits.get(thinwire_target::Limit::Memory);
        let told = [
            "limit sessions is 2 sessions; it was 8".to_owned(),
            "limit greetings is 9 greetings a second; it was 1000".to_owned(),
            format!("limit memory is 1073741824 bytes; it was {memory}"),
        ];
        assert_eq!(changes(&now, &next), Ok(told.to_vec()));
        assert_eq!(changes(&next, &now).unwrap().len(), 3);
    }

    #[test]
    fn exports_come_and_go() {
        let dir = TempDir::new("reload-exports");
        make("alice", dir.path(), false).unwrap();
        let with = |exports: &str| read(&dir, &file(&dir, &["alice"], exports), &[]);
        let memory = |name: &str, size: &str| {
            format!("[[export]]\nname = \"{name}\"\nvolume = \"memory:{size}\"\n")
        };
        let now = with(EXPORTS);
        let next = with(&(memory("c", "3M") + &memory("a", "2M")));
        // What is left of the machine's memory for the rest is another limit, too.
        assert_eq!(
            changes(&now, &next).unwrap()[..3],
            [
                "export `c` is added: memory:3145728",
                "export `a` is another volume now: memory:2097152",
                "export `b` is removed",
            ]
        );
        let plan = ExportPlan::of(&now.exports, &next.exports);
        assert_eq!(plan.removed, ["a", "b"]);
        assert_eq!(plan.added, next.exports);
        assert!(!plan.is_empty() && plan.weights.is_empty());
        let heavy = with(&(EXPORTS.to_owned() + "weight = 3\n"));
        assert_eq!(changes(&now, &heavy), Ok(vec!["export `b` has weight 3; it was 1".to_owned()]));
        let plan = ExportPlan::of(&now.exports, &heavy.exports);
        assert!(plan.is_empty() && plan.weights == [("b".to_owned(), 3)]);
    }

    #[test]
    fn volumes_of_a_pool_come_and_go_while_one_stays() {
        let dir = TempDir::new("reload-pools");
        make("alice", dir.path(), false).unwrap();
        let pools = ["p", "q"].map(|name| {
            format!(
                "[[volume]]\nname = \"{name}\"\nkind = \"thin\"\nchildren = [\"/{name}1\", \"/{name}2\"]\n"
            )
        });
        let with = |volumes: &[&str]| {
            let export = |(nth, volume): (usize, &&str)| {
                format!("[[export]]\nname = \"e{nth}\"\nvolume = \"{volume}\"\n")
            };
            let exports: String = volumes.iter().enumerate().map(export).collect();
            read(&dir, &file(&dir, &["alice"], &(exports + &pools.concat())), &[])
        };
        let now = with(&["p@a", "memory:1M"]);
        let told = |next: &[&str]| changes(&now, &with(next));
        let added = told(&["p@a", "memory:1M", "p@b", "slice:[p@c]?size=4096"]).unwrap();
        assert_eq!(added.len(), 2, "{added:?}");
        assert!(added[0].starts_with("export `e2` is added: ") && added[0].ends_with("#p@b"));
        for (next, named) in [
            // Of another pool, also beside one; and what needs something that is not open.
            (&["p@a", "memory:1M", "q@a"][..], "export `e2` (it is new, and made of"),
            (&["p@a", "memory:1M", "q@a", "q@b"], "export `e3` (it is new, and made of"),
            (&["p@a", "memory:1M", "linear:[p@b,memory:1M]"], "export `e2` (it is new"),
            (&["p@a", "memory:1M", "linear:[p@b,q@b]"], "export `e2` (it is new"),
            // The last one of its pool.
            (&["memory:1M"], "export `e0` (another volume, and made of"),
            (&["p@b", "memory:1M"], "export `e0` (another volume, and made of"),
        ] {
            let why = told(next).unwrap_err();
            assert!(why.contains(named), "{named}: {why}");
        }
        let more = with(&["p@a", "p@b"]);
        assert_eq!(changes(&more, &with(&["p@a"])), Ok(vec!["export `e1` is removed".to_owned()]));
        assert_eq!(changes(&more, &with(&["p@a", "p@c"])).unwrap().len(), 1);
        assert!(changes(&more, &with(&["p@c", "p@d"])).is_err());
    }

    #[test]
    fn slices_of_a_disk_come_and_go_while_one_stays() {
        let dir = TempDir::new("reload-slices");
        make("alice", dir.path(), false).unwrap();
        let with = |volumes: &[&str]| {
            let export = |(nth, volume): (usize, &&str)| {
                format!("[[export]]\nname = \"e{nth}\"\nvolume = \"{volume}\"\n")
            };
            let exports: String = volumes.iter().enumerate().map(export).collect();
            read(&dir, &file(&dir, &["alice"], &exports), &[])
        };
        let [low, next, wide, high] = [
            "slice:[/big]?size=1M",
            "slice:[/big]?offset=1M&size=1M",
            "slice:[/big]?offset=1M&size=2M",
            "slice:[/big]?offset=3M",
        ];
        let one = with(&[low]);
        assert_eq!(changes(&one, &with(&[low, next, high])).unwrap().len(), 2);
        for (now, then, named) in [
            // The only one of its disk; one of another; and what needs something that is not open.
            (&[low][..], &[next][..], "export `e0` (another volume, and made of"),
            (&[low, "memory:1M"], &["memory:1M"], "export `e0` (another volume, and made of"),
            (&[low], &[low, "slice:[/other]?size=1M"], "export `e1` (it is new, and made of"),
            (&[low], &[low, "linear:[slice:[/big]?offset=1M,memory:1M]"], "export `e1` (it is new"),
            // All of it is no slice.
            (&["linear:[/big]"], &["linear:[/big]", next], "export `e1` (it is new"),
        ] {
            let why = changes(&with(now), &with(then)).unwrap_err();
            assert!(why.contains(named), "{named}: {why}");
        }
        let two = with(&[low, next]);
        assert_eq!(changes(&two, &one), Ok(vec!["export `e1` is removed".to_owned()]));
        let grown = format!(
            "export `e1` is another volume now: {}",
            "slice:[file:/big]?offset=1048576&size=2097152"
        );
        assert_eq!(changes(&two, &with(&[low, wide])), Ok(vec![grown]));
    }

    #[test]
    fn what_needs_a_restart_is_named() {
        let dir = TempDir::new("reload-fixed");
        make("alice", dir.path(), false).unwrap();
        let now = read(&dir, &file(&dir, &["alice"], EXPORTS), &[]);
        let with_keys =
            |more: &str, exports: &str| file(&dir, &["alice"], &(more.to_owned() + exports));
        let memory =
            |name: &str| format!("[[export]]\nname = \"{name}\"\nvolume = \"memory:1M\"\n");
        let gateway = memory("c").replace("memory:1M", "linear:[memory:1M,memory:2M]");
        let keyless = format!("node = \"n\"\nlink = [\"eth1\"]\n{EXPORTS}");
        for (text, flags, named) in [
            (with_keys("", EXPORTS), &["--name", "other"][..], "the node name (n, now other)"),
            (with_keys("", EXPORTS), &["--link", "eth2"], "links (eth1, now eth1 eth2)"),
            (with_keys("shards = 2\n", EXPORTS), &[], "shards (1, now 2)"),
            (with_keys("batch = \"tyche\"\n", EXPORTS), &[], "batch ("),
            (with_keys("data_batch = false\n", EXPORTS), &[], "data_batch (true, now false)"),
            (with_keys("spin = false\n", EXPORTS), &[], "spin (on, now off)"),
            (with_keys("receive = \"split\"\n", EXPORTS), &[], "receive or completion"),
            (
                with_keys("authenticate_only = true\n", EXPORTS),
                &[],
                "authenticate_only (false, now true)",
            ),
            (with_keys("user = \"other\"\n", EXPORTS), &[], "user (who started it, now other)"),
            (with_keys("", EXPORTS), &["--no-confine"], "confine (true, now false)"),
            (with_keys("", EXPORTS), &["--state-dir", "/elsewhere"], "flags"),
            (keyless.clone(), &[], "whether there are keys (the last key is gone)"),
            (format!("insecure = true\n{keyless}"), &[], "insecure (false, now true)"),
            (
                with_keys("", &(EXPORTS.to_owned() + "read_only = true\n")),
                &[],
                "export `b` (its read_only;",
            ),
            (
                with_keys("", &(EXPORTS.to_owned() + "block = 4096\n")),
                &[],
                "export `b` (its block;",
            ),
            (
                with_keys("", &(EXPORTS.to_owned() + &memory("c") + "spread = true\n")),
                &[],
                "export `c` (it is",
            ),
            (with_keys("", &(EXPORTS.to_owned() + &gateway)), &[], "export `c` (it is"),
        ] {
            let next = read(&dir, &text, flags);
            let why = changes(&now, &next).unwrap_err();
            assert!(why.contains(named), "{named}: {why}");
            // Both ways, and never beside a change that is applied.
            changes(&next, &now).unwrap_err();
        }
        // All of it is named.
        let more = EXPORTS.to_owned() + &gateway;
        let next = read(&dir, &with_keys("shards = 2\n", &more), &["--announce"]);
        let why = changes(&now, &next).unwrap_err();
        assert!(why.contains("shards") && why.contains("export `c`"), "{why}");
        // Where exports stand is of no account.
        let other_order = memory("b") + &memory("a");
        assert_eq!(changes(&now, &read(&dir, &with_keys("", &other_order), &[])), Ok(vec![]));
    }
}
