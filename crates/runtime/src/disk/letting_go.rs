//! Which disks are being let go of, or synced before they are used, and have not answered yet: for who has to say
//! what holds a process up.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Few, and for a moment, unless a disk hangs.
static WAITED_FOR: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn waited_for_now() -> MutexGuard<'static, Vec<PathBuf>> {
    WAITED_FOR.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Files and devices of this process whose first or last I/O is waited for, each once: they are being opened or
/// dropped, or are to be dropped ([`LettingGo`]). Those that hang, if that takes long. May be called by any thread.
pub fn waited_for() -> Vec<PathBuf> {
    let mut once: Vec<PathBuf> = Vec::new();
    for path in &*waited_for_now() {
        if !once.contains(path) {
            once.push(path.clone());
        }
    }
    once
}

/// One of them, as long as this lives. A disk has one of its own while it is synced at first, and while it is dropped;
/// who lets go of several, of which the first may keep it for ever, has one for each.
#[derive(Debug)]
pub struct LettingGo(PathBuf);

impl LettingGo {
    /// What is behind this path is waited for.
    pub fn of(path: &Path) -> Self {
        waited_for_now().push(path.to_owned());
        LettingGo(path.to_owned())
    }
}

impl Drop for LettingGo {
    fn drop(&mut self) {
        let mut all = waited_for_now();
        if let Some(at) = all.iter().position(|path| *path == self.0) {
            all.swap_remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_disk_is_told_of_while_it_is_let_go_of() {
        let count = |name: &str| waited_for().iter().filter(|path| path.ends_with(name)).count();
        let (a, b) = (Path::new("/letting-go/a"), Path::new("/letting-go/b"));
        let first = LettingGo::of(a);
        let (second, other) = (LettingGo::of(a), LettingGo::of(b));
        assert_eq!((count("letting-go/a"), count("letting-go/b")), (1, 1));
        drop(first);
        assert_eq!((count("letting-go/a"), count("letting-go/b")), (1, 1));
        drop((second, other));
        assert_eq!((count("letting-go/a"), count("letting-go/b")), (0, 0));
    }
}
