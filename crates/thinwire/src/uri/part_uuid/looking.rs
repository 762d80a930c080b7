//! Looking at files, devices and folders in threads of their own: a disk that hangs keeps the thread that reads it, and nobody else.

use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{Look, Met};

/// So many are looked at side by side.
const THREADS_MAX: usize = 16;

/// What was given up, and still has its thread: nobody begins another.
static GIVEN_UP: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// What waits for a thread, with where its answer goes; the last one first.
type Queue = Arc<Mutex<Vec<(usize, PathBuf)>>>;

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What lies at each of these, in this order. What has not answered at `end`, which is so long from the beginning, is an error
/// that says so; it is not looked at again before it has.
pub(super) fn at_all(
    paths: Vec<PathBuf>,
    (end, patience): (Instant, Duration),
    look: Look,
) -> Vec<(PathBuf, io::Result<Met>)> {
    let mut met: Vec<Option<io::Result<Met>>> = Vec::new();
    {
        let given_up = lock(&GIVEN_UP);
        let hangs = |path| given_up.contains(path).then(|| Err(unanswered(patience)));
        met.extend(paths.iter().map(hangs));
    }
    let numbered = paths.iter().cloned().enumerate();
    let mut waiting: Vec<_> = numbered.filter(|(number, _)| met[*number].is_none()).collect();
    waiting.reverse();
    let threads = waiting.len().min(THREADS_MAX);
    let queue: Queue = Arc::new(Mutex::new(waiting));
    let (sender, receiver) = mpsc::channel();
    let mut refused = None;
    for _ in 0..threads {
        let (queue, sender) = (queue.clone(), sender.clone());
        let thread = std::thread::Builder::new().name("looking".into());
        refused = thread.spawn(move || work(&queue, &sender, look)).err().or(refused);
    }
    drop(sender);
    while met.iter().any(Option::is_none) {
        // Those that could be started do the work of the others.
        let left = end.saturating_duration_since(Instant::now());
        let Ok((number, one)) = receiver.recv_timeout(left) else { break };
        met[number] = Some(one);
    }
    // No more is begun, and nobody ends unheard between this look and what is written down.
    let unbegun = std::mem::take(&mut *lock(&queue));
    let mut given_up = lock(&GIVEN_UP);
    for (number, one) in receiver.try_iter() {
        met[number] = Some(one);
    }
    for (number, _) in unbegun {
        let why = refused.as_ref().map_or_else(unreached, |e| e.kind().into());
        met[number] = Some(Err(why));
    }
    let ended = paths.into_iter().zip(met).map(|(path, one)| match one {
        Some(one) => (path, one),
        None => {
            given_up.push(path.clone());
            (path, Err(unanswered(patience)))
        }
    });
    ended.collect()
}

/// Looks at what waits, until nothing does.
fn work(queue: &Queue, sender: &Sender<(usize, io::Result<Met>)>, look: Look) {
    loop {
        let Some((number, path)) = lock(queue).pop() else { return };
        let met = look(&path);
        let mut given_up = lock(&GIVEN_UP);
        given_up.retain(|other| *other != path);
        // Whoever asked may have gone.
        let _ = sender.send((number, met));
    }
}

fn unanswered(patience: Duration) -> io::Error {
    let why = format!("does not answer, and {} s are over", patience.as_secs_f32());
    io::Error::new(io::ErrorKind::TimedOut, why)
}

fn unreached() -> io::Error {
    io::Error::new(
        io::ErrorKind::TimedOut,
        "was not looked at, since too many others do not answer",
    )
}
