//! [`LastWords`]: how it has ended, of what each shard knows at its end. What one hears as all end, no turn tells to the others any more.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use thinwire_target::Target;

/// What shards had heard when they ended. For any thread; nobody waits long.
#[derive(Default)]
pub(super) struct LastWords(Mutex<Heard>);

#[derive(Default)]
struct Heard {
    /// Names of exports in whose place another target is.
    fenced: BTreeSet<String>,
    /// Names of all that is offered, as far as some shard knows.
    offered: BTreeSet<String>,
}

impl LastWords {
    /// A shard has ended, and has let go of what was fenced.
    pub fn add(&self, target: &Target) {
        self.hear(target.silent(), target.offered());
    }

    fn hear<'a>(
        &self,
        fenced: impl Iterator<Item = &'a str>,
        offered: impl Iterator<Item = &'a str>,
    ) {
        let mut heard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        heard.fenced.extend(fenced.map(str::to_owned));
        heard.offered.extend(offered.map(str::to_owned));
    }

    /// Another target is in the place of all exports.
    pub fn is_fenced(&self) -> bool {
        let heard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        !heard.fenced.is_empty() && heard.offered.is_subset(&heard.fenced)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_fenced(shards: &[(&[&str], &[&str])]) -> bool {
        let words = LastWords::default();
        for (fenced, offered) in shards {
            words.hear(fenced.iter().copied(), offered.iter().copied());
        }
        words.is_fenced()
    }

    /// What the first shard has not been told any more counts all the same.
    #[test]
    fn what_shards_hear_last_is_put_together() {
        assert!(!is_fenced(&[(&[], &[])]));
        assert!(!is_fenced(&[(&[], &["a", "b"]), (&["b"], &["a"])]));
        assert!(is_fenced(&[(&["a"], &["b"]), (&["b"], &["a"])]));
        assert!(is_fenced(&[(&[], &["a"]), (&["a"], &[])]));
        assert!(!is_fenced(&[(&["a"], &["b"]), (&["a"], &["b"])]));
    }
}
