//! [`LoggedTrace`]: a volume of kind `trace`, whose I/Os go to the log: a module of the core writes nowhere, and hands them to whoever builds it.

use thinwire_modules::{Child, ModuleError, TraceLog, Traced};
use thinwire_volume::{Completion, Io, IoFlags, Layer, Op, Volume};

use crate::opened::TreePlace;

/// By which logs are asked for nothing else: `RUST_LOG=io=debug`.
const LOG_TARGET: &str = "io";

/// Tells at debug level what it was asked for, and passes it on.
pub struct LoggedTrace {
    below: Traced,
    seen: TraceLog,
    place: TreePlace,
}

impl LoggedTrace {
    /// Over the only one of `children`, where that is in its tree.
    ///
    /// # Errors
    /// As [`Traced::new`].
    pub fn new(children: Vec<Child>, place: TreePlace) -> Result<Self, ModuleError> {
        let (below, seen) = Traced::new(children)?;
        Ok(LoggedTrace { below, seen, place })
    }
}

impl Layer for LoggedTrace {
    type Below = Traced;

    fn below(&self) -> &Traced {
        &self.below
    }

    fn below_mut(&mut self) -> &mut Traced {
        &mut self.below
    }

    fn take(&mut self, io: Io) {
        self.below.submit(io);
        for asked in self.seen.borrow_mut().drain(..) {
            tracing::debug!(target: LOG_TARGET, "{}: {}", self.place, describe(asked));
        }
    }

    fn bring(&mut self, done: &mut Vec<Completion>) {
        self.below.poll(done);
    }

    fn taken(&self) -> usize {
        self.below.outstanding()
    }
}

/// What was asked for, as errors have it, and how it was to be done.
fn describe((op, flags, offset, len): (Op, IoFlags, u64, u64)) -> String {
    let fua = if flags.fua { ", durable" } else { "" };
    match op {
        Op::Flush => "flush".into(),
        op => format!("{op} of {len} bytes at {offset}{fua}"),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::testing::MemoryVolume;

    /// What a log has.
    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn log_of(level: tracing::Level, use_it: impl FnOnce(&mut LoggedTrace)) -> String {
        let kept = Kept::default();
        let writer = kept.clone();
        let log = tracing_subscriber::fmt().with_max_level(level).without_time().with_ansi(false);
        let log = log.with_writer(move || writer.clone()).finish();
        let volume = Box::new(MemoryVolume::new(1 << 20, 512));
        let place = TreePlace::new("linear part 0, trace".into());
        let mut volume = LoggedTrace::new(Child::all(vec![volume]), place.clone()).unwrap();
        // Known better once all is open.
        place.set("linear part 1, trace".into());
        tracing::subscriber::with_default(log, || use_it(&mut volume));
        let kept = kept.0.lock().unwrap();
        String::from_utf8(kept.clone()).unwrap()
    }

    #[test]
    fn what_goes_through_stands_in_the_log() {
        let ask = |volume: &mut LoggedTrace| {
            volume.submit(Io::new(1, Op::Read, 4096, 512));
            let mut durable = Io::new(2, Op::WriteZeroes, 0, 1024);
            durable.flags.fua = true;
            volume.submit(durable);
            volume.submit(Io::new(3, Op::Flush, 0, 0));
            let mut done = Vec::new();
            while volume.outstanding() > 0 {
                volume.poll(&mut done);
            }
            assert_eq!(done.len(), 3);
            assert!(volume.seen.borrow().is_empty());
        };
        let told = log_of(tracing::Level::DEBUG, ask);
        let told: Vec<_> = told.lines().map(str::trim).collect();
        let expected =
            ["read of 512 bytes at 4096", "write zeroes of 1024 bytes at 0, durable", "flush"];
        assert_eq!(told, expected.map(|asked| format!("DEBUG io: linear part 1, trace: {asked}")));
        assert_eq!(log_of(tracing::Level::INFO, ask), "");
    }
}
