//! Looking at files, devices and folders in threads of their own: a disk that hangs keeps the thread that reads it, and nobody else.

use std::io;
use std::panic::catch_unwind;
use std::path::PathBuf;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{Look, Met};

/// So many are looked at side by side, but for those that seem to hang.
const THREADS: usize = 16;
/// And with those.
const THREADS_MAX: usize = 64;
/// What has not answered for this part of all patience seems to hang: another thread does what its thread would have.
const STUCK_PART: u32 = 10;

/// What was given up, and still has its thread: nobody begins another.
static GIVEN_UP: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// What threads share.
#[derive(Default)]
struct Work {
    /// What waits for a thread, with where its answer goes; the last one first.
    waiting: Vec<(usize, PathBuf)>,
    /// What is looked at, by where its answer goes, and since when.
    begun: Vec<(usize, Instant)>,
}

type Queue = Arc<Mutex<Work>>;

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What lies at each of these, in this order. What has not answered by then is an error
/// that says so; it is not looked at again before it has.
pub(super) fn at_all(
    paths: Vec<PathBuf>,
    patience: Duration,
    look: Look,
) -> Vec<(PathBuf, io::Result<Met>)> {
    let end = Instant::now() + patience;
    let mut met: Vec<Option<io::Result<Met>>> = Vec::new();
    {
        let given_up = lock(&GIVEN_UP);
        let hangs = |path| given_up.contains(path).then(|| Err(unanswered(patience)));
        met.extend(paths.iter().map(hangs));
    }
    let numbered = paths.iter().cloned().enumerate();
    let mut waiting: Vec<_> = numbered.filter(|(number, _)| met[*number].is_none()).collect();
    waiting.reverse();
    let queue: Queue = Arc::new(Mutex::new(Work { waiting, begun: Vec::new() }));
    let (sender, receiver) = mpsc::channel();
    let (mut refused, mut threads, stuck) = (None, 0, patience / STUCK_PART);
    let mut start = |threads: &mut usize| {
        let now = Instant::now();
        let work = lock(&queue);
        let hang = work.begun.iter().filter(|(_, since)| now >= *since + stuck).count();
        let more = (THREADS + hang).min(THREADS_MAX).saturating_sub(*threads);
        let more = more.min(work.waiting.len());
        drop(work);
        for _ in 0..more {
            let (queue, sender) = (queue.clone(), sender.clone());
            let thread = std::thread::Builder::new().name("looking".into());
            // Those that could be started do the work of the others.
            match thread.spawn(move || work_off(&queue, &sender, look)) {
                Ok(_) => *threads += 1,
                Err(e) => refused = Some(e),
            }
        }
        *threads > 0
    };
    let mut is_begun = start(&mut threads);
    while is_begun && met.iter().any(Option::is_none) {
        let left = end.saturating_duration_since(Instant::now());
        match receiver.recv_timeout(left.min(stuck)) {
            Ok((number, one)) => met[number] = Some(one),
            Err(_) if left.is_zero() => break,
            Err(_) => {}
        }
        is_begun = start(&mut threads);
    }
    // No more is begun, and nobody ends unheard between this look and what is written down.
    let unbegun = std::mem::take(&mut lock(&queue).waiting);
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
fn work_off(queue: &Queue, sender: &Sender<(usize, io::Result<Met>)>, look: Look) {
    loop {
        let (number, path) = {
            let mut work = lock(queue);
            let Some((number, path)) = work.waiting.pop() else { return };
            work.begun.push((number, Instant::now()));
            (number, path)
        };
        // Whatever becomes of it, it is no more looked at.
        let met = catch_unwind(|| look(&path))
            .unwrap_or_else(|_| Err(io::Error::other("whoever looked at it has failed")));
        lock(queue).begun.retain(|(other, _)| *other != number);
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
