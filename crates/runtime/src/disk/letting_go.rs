//! Which disks are being let go of and have not answered yet: for who has to say what holds a process up.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Few, and for a moment, unless a disk hangs.
static WAITED_FOR: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn waited_for_now() -> MutexGuard<'static, Vec<PathBuf>> {
    WAITED_FOR.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Files and devices of this process whose last I/O is waited for, since they are being dropped: those that
/// hang, if that takes long. May be called by any thread.
pub fn waited_for() -> Vec<PathBuf> {
    waited_for_now().clone()
}

/// One of them, as long as this lives.
pub(super) struct LettingGo<'a>(&'a Path);

impl<'a> LettingGo<'a> {
    pub fn of(path: &'a Path) -> Self {
        waited_for_now().push(path.to_owned());
        LettingGo(path)
    }
}

impl Drop for LettingGo<'_> {
    fn drop(&mut self) {
        let mut all = waited_for_now();
        if let Some(at) = all.iter().position(|path| path == self.0) {
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
        drop(first);
        assert_eq!((count("letting-go/a"), count("letting-go/b")), (1, 1));
        drop((second, other));
        assert_eq!((count("letting-go/a"), count("letting-go/b")), (0, 0));
    }
}
