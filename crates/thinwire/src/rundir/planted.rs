//! What is in the run directory and is not what it should be by its name: a symbolic link, somebody else's
//! file, the record of another name. Nobody but its owner and root can have put it there, and none of it is
//! followed, read or believed; but whoever wants the name is told why it cannot be had, and `status` tells
//! all of it.

use rustix::fs::FileType;
use serde::Deserialize;

use super::{IDENTITIES, NODES, RunDir, node_of};
use crate::error::{Failure, Outcome};
use crate::lock::GUARD;

/// What an attachment or a target has under its name; `NAME.disk` is looked at by the face that makes it.
const SUFFIXES: [&str; 5] = ["lock", "json", "new", "sock", "log"];

/// Whose a record says it is.
#[derive(Deserialize)]
struct Named {
    /// Of an attachment.
    name: Option<String>,
    /// Of a target.
    node: Option<String>,
}

impl RunDir {
    /// All that is not what it should be, a line each: what, why, and what to do. Best effort.
    pub fn planted(&self) -> Vec<String> {
        let mut files = self.folder.names().unwrap_or_default();
        files.sort();
        let line = |file: String| {
            let odd = self.folder.oddity(&file, should_be(&file)?);
            let why = odd.or_else(|| self.misnamed(&file))?;
            Some(format!("{}: {why}", self.path().join(file).display()))
        };
        files.into_iter().filter_map(line).collect()
    }

    /// Refuses a name that has such a file.
    ///
    /// # Errors
    /// Which, why, and what to do.
    pub fn refuse_planted(&self, name: &str) -> Outcome {
        let files = SUFFIXES.iter().map(|suffix| format!("{name}.{suffix}"));
        for file in files.chain([GUARD.to_owned()]) {
            let odd = should_be(&file).and_then(|kind| self.folder.oddity(&file, kind));
            if let Some(why) = odd.or_else(|| self.misnamed(&file)) {
                let place = self.path().join(file);
                return Err(Failure::failed(format!(
                    "cannot use the name `{name}`: {}: {why}",
                    place.display()
                )));
            }
        }
        Ok(())
    }

    /// What is wrong with a record that says it is another's.
    fn misnamed(&self, file: &str) -> Option<String> {
        let name = file.strip_suffix(".json")?;
        let named: Named = serde_json::from_str(&self.folder.read(file).ok()?).ok()?;
        let is_its_own = match (&named.name, &named.node) {
            (Some(other), _) => other == name,
            (None, Some(node)) => node_of(name) == Some(node),
            (None, None) => true,
        };
        (!is_its_own).then(|| "it is the record of another name; remove it".to_owned())
    }
}

/// What a file in the run directory is by its name; `None` if it is none of ours.
fn should_be(file: &str) -> Option<FileType> {
    if file == IDENTITIES || file == NODES {
        return Some(FileType::Directory);
    }
    match file.rsplit_once('.')?.1 {
        "sock" => Some(FileType::Socket),
        "lock" | "json" | "new" | "log" | "disk" => Some(FileType::RegularFile),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::record::Record;
    use crate::testing::TempDir;

    #[test]
    fn what_is_planted_is_named_and_nothing_is_done_with_it() {
        let temp = TempDir::new("planted");
        let dir = RunDir::create(&temp.path().join("run")).unwrap();
        let at = |file: &str| temp.path().join("run").join(file);
        let claim = dir.claim("sound").unwrap().unwrap();
        claim.write(&Record::of_this_process("sound", "null:512".into(), "nbd", false)).unwrap();
        let _listener = dir.listen("sound").unwrap();
        dir.open_log("sound").unwrap();
        dir.sub(IDENTITIES).unwrap();
        assert_eq!(dir.planted(), Vec::<String>::new());
        dir.refuse_planted("sound").unwrap();

        let precious = temp.path().join("precious");
        std::fs::write(&precious, "{}").unwrap();
        for suffix in SUFFIXES {
            let file = format!("a.{suffix}");
            symlink(&precious, at(&file)).unwrap();
            let line = format!("{}: it is a symbolic link", at(&file).display());
            assert!(dir.planted().iter().any(|said| said.starts_with(&line)), "{file}");
            for refused in [dir.refuse_planted("a"), dir.claim("a").map(drop)] {
                let why = refused.unwrap_err().message;
                assert!(why.contains("`a`") && why.contains(&line), "{file}: {why}");
            }
            assert!(
                dir.names()
                    .unwrap()
                    .iter()
                    .all(|name| dir.record(name).is_none() || name == "sound")
            );
            std::fs::remove_file(at(&file)).unwrap();
        }
        assert_eq!(std::fs::read_to_string(&precious).unwrap(), "{}");
        // What others have there is theirs.
        symlink(&precious, at("notes.txt")).unwrap();
        assert_eq!(dir.planted(), Vec::<String>::new());
    }

    #[test]
    fn a_record_of_another_name_is_none() {
        let temp = TempDir::new("planted-record");
        let dir = RunDir::create(temp.path()).unwrap();
        let record = Record::of_this_process("a", "null:512".into(), "nbd", false);
        let text = serde_json::to_string(&record).unwrap();
        for (file, is_it) in [("a", true), ("b", false), ("target-a", false)] {
            let path = temp.path().join(format!("{file}.json"));
            std::fs::write(&path, &text).unwrap();
            assert_eq!(dir.record(file).is_some(), is_it, "{file}");
            let said = dir.planted().concat();
            assert_eq!(said.contains("record of another name"), !is_it, "{file}: {said}");
            assert_eq!(dir.refuse_planted(file).is_ok(), is_it, "{file}");
            std::fs::remove_file(&path).unwrap();
        }
        let target = crate::record::TargetRecord::of_this_process("n", true);
        let text = serde_json::to_string(&target).unwrap();
        for (file, is_it) in [("target-n", true), ("target-n@7", true), ("target-m", false)] {
            let path = temp.path().join(format!("{file}.json"));
            std::fs::write(&path, &text).unwrap();
            assert_eq!(dir.target_record(file).is_some(), is_it, "{file}");
            assert_eq!(dir.planted().is_empty(), is_it, "{file}");
            std::fs::remove_file(&path).unwrap();
        }
    }
}
