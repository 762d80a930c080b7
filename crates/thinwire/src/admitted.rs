//! Who may come to a target, and open what: the keys that it is given, and those that its exports name.

use thinwire_target::Access;

use crate::error::{Failure, Outcome};
use crate::export::ExportSpec;
use crate::keys::KeyFile;

/// Who may come, and open what.
pub(crate) struct Admitted {
    /// Each name once, each key once.
    pub keys: Vec<KeyFile>,
    /// Of every export, if there are keys.
    pub access: Vec<(String, Access)>,
}

impl Admitted {
    /// Reads the keys that are `given` to the target, which every export takes unless it says otherwise, and
    /// those that only an export names; each with the place where it was said.
    pub fn by(
        given: &[(String, String)],
        exports: &[(ExportSpec, String)],
        insecure: bool,
    ) -> Outcome<Self> {
        let mut keys = Vec::<KeyFile>::new();
        for (given, origin) in given {
            let file = KeyFile::read(given).map_err(|e| e.context(origin))?;
            if let Some(other) = keys.iter().find(|other| other.name == file.name) {
                return Err(Failure::usage(format!(
                    "{origin}: two keys have the name `{}`: {} and {}; names must differ",
                    file.name,
                    other.path.display(),
                    file.path.display()
                )));
            }
            keys.push(file);
        }
        let for_all: Vec<String> = keys.iter().map(|key| key.name.clone()).collect();
        let mut access = Vec::new();
        for (export, origin) in exports {
            let named = export.keys.iter().flatten().chain(&export.read_keys);
            for name in named {
                if !keys.iter().any(|key| key.name == *name) {
                    let read = KeyFile::read(name);
                    keys.push(read.map_err(|e| {
                        e.context(format_args!("{origin}: export `{}`", export.name))
                    })?);
                }
            }
            let is_writer = |name: &&String| !export.read_keys.contains(name);
            let writers = match &export.keys {
                Some(keys) => keys.clone(),
                None => for_all.iter().filter(is_writer).cloned().collect(),
            };
            let readers = export.read_keys.clone();
            if !keys.is_empty() && writers.is_empty() && readers.is_empty() {
                return Err(Failure::usage(format!(
                    "{origin}: nobody may open export `{}`: name keys for it, as in keys=alice, or for all \
                     exports with --key",
                    export.name
                )));
            }
            access.push((export.name.clone(), Access { writers: Some(writers), readers }));
        }
        if let Some((one, two)) = same_key(&keys) {
            return Err(Failure::usage(format!(
                "{} and {} have a key in common: whose is it? Make each its own with `thinwire key new`",
                one.path.display(),
                two.path.display()
            )));
        }
        if insecure && !keys.is_empty() {
            return Err(Failure::usage(
                "keys are given, and insecure, too: a target with keys never talks to anybody without one, so \
                 leave one of the two away",
            ));
        }
        if keys.is_empty() {
            access.clear();
        }
        Ok(Admitted { keys, access })
    }
}

/// Two files that have a key in common.
fn same_key(keys: &[KeyFile]) -> Option<(&KeyFile, &KeyFile)> {
    let mut known = Vec::new();
    for file in keys {
        for id in file.ids() {
            if let Some((_, other)) = known.iter().find(|(other, _)| *other == id) {
                return Some((*other, file));
            }
            known.push((id, file));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::make;
    use crate::testing::TempDir;

    fn export(text: &str) -> (ExportSpec, String) {
        (text.parse().unwrap(), "--export".to_owned())
    }

    /// The keys of these names in a folder, as they are given.
    fn given(dir: &TempDir, names: &[&str]) -> Vec<(String, String)> {
        let made = |name: &&str| {
            let file = make(name, dir.path(), false).unwrap();
            (file.path.display().to_string(), "--key".to_owned())
        };
        names.iter().map(made).collect()
    }

    fn access(admitted: &Admitted, export: &str) -> (Vec<String>, Vec<String>) {
        let (_, access) = admitted.access.iter().find(|(name, _)| name == export).unwrap();
        (access.writers.clone().unwrap(), access.readers.clone())
    }

    #[test]
    fn an_export_takes_all_keys_unless_it_says_otherwise() {
        let dir = TempDir::new("admitted");
        let keys = given(&dir, &["alice", "bob", "backup"]);
        let exports = [
            export("all=memory:1M"),
            export("one=memory:1M,keys=alice"),
            export("two=memory:1M,read-keys=backup"),
            export("ro=memory:1M,keys=bob,read-keys=backup"),
        ];
        let admitted = Admitted::by(&keys, &exports, false).unwrap();
        assert_eq!(admitted.keys.len(), 3);
        let owned = |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<Vec<_>>();
        assert_eq!(access(&admitted, "all"), (owned(&["alice", "bob", "backup"]), vec![]));
        assert_eq!(access(&admitted, "one"), (owned(&["alice"]), vec![]));
        assert_eq!(access(&admitted, "two"), (owned(&["alice", "bob"]), owned(&["backup"])));
        assert_eq!(access(&admitted, "ro"), (owned(&["bob"]), owned(&["backup"])));
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        let dir = TempDir::new("admitted-bad");
        let keys = given(&dir, &["alice"]);
        let refused = |keys: &[(String, String)], exports: &[(ExportSpec, String)], insecure| {
            Admitted::by(keys, exports, insecure).err().expect("it is refused").message
        };
        let plain = [export("d=memory:1M")];
        assert!(refused(&keys, &plain, true).contains("insecure, too"));
        let unknown = [export("d=memory:1M,keys=thinwire-test-nobody")];
        let why = refused(&keys, &unknown, false);
        assert!(why.contains("export `d`") && why.contains("thinwire-test-nobody"), "{why}");
        // The same file under another name, and another under the same.
        std::fs::copy(dir.path().join("alice"), dir.path().join("bob")).unwrap();
        let bob = (dir.path().join("bob").display().to_string(), "--key".to_owned());
        assert!(refused(&[keys[0].clone(), bob], &plain, false).contains("in common"));
        let other = TempDir::new("admitted-other");
        let twice = [keys, given(&other, &["alice"])].concat();
        assert!(refused(&twice, &plain, false).contains("names must differ"));
        // Without keys nobody is named, and whether that is accepted is another's question.
        let none = Admitted::by(&[], &plain, true).unwrap();
        assert!(none.keys.is_empty() && none.access.is_empty());
    }
}
