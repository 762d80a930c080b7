//! The end of a mirror that was asked for: all is flushed, and the bits are cleared at once, so that it opens without a resync.

use thinwire_volume::{ErrorKind, Io, IoError, Op};

use super::opening::Phase;
use super::{Mirror, MirrorCanary, NAME, Task};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Closing {
    /// It is in use.
    #[default]
    No,
    /// What users have asked for, and what the mirror does by itself, ends; what is dirty is written.
    Asked,
    /// All legs are being flushed.
    Flushing,
    /// Bits are being cleared.
    Clearing,
    /// That cannot be done, for this reason: what is under way ends.
    Ending(IoError),
    /// Nothing is under way, nor will be; what went wrong, if bits are left for that.
    Done(Option<IoError>),
}

impl Mirror {
    /// It takes no more I/Os: it is about to end, or has.
    #[inline]
    pub(super) fn is_ending(&self) -> bool {
        !matches!(self.closing, Closing::No)
    }

    /// Ends it in order, once what was submitted has ended: all that was written is flushed, and no region is open any more,
    /// so that the next opening copies nothing that was not lacking before. To be polled, and told the time, until
    /// [`Mirror::closed`] says how that went; what is submitted from now on fails
    /// with [`ShuttingDown`](thinwire_volume::ErrorKind::ShuttingDown). Without it, or if it is not waited for, a mirror ends as by a crash.
    pub fn close(&mut self) {
        if !self.is_ending() {
            self.closing = Closing::Asked;
            self.keep_reads(u8::MAX);
            self.settle();
        }
    }

    /// How closing has ended: `Err` if regions are left open, which the next opening resyncs. None as long as it goes on. Of one
    /// that has stopped it is not asked.
    pub fn closed(&self) -> Option<Result<(), IoError>> {
        match self.closing {
            Closing::Done(None) => Some(Ok(())),
            Closing::Done(Some(error)) => Some(Err(error)),
            _ => None,
        }
    }

    /// Goes on with that, when nothing else can.
    pub(super) fn step_closing(&mut self) -> bool {
        if matches!(self.closing, Closing::No | Closing::Flushing | Closing::Done(_)) {
            return false;
        }
        // Users' I/Os are jobs, too, and what is still to be told of them waits for the record.
        let has_jobs = self.jobs.iter_mut().next().is_some();
        let is_quiet = !has_jobs && self.queue.is_empty() && !self.record.is_changing();
        // What is noted last is there, too.
        let is_quiet = is_quiet && !self.record.is_writing() && self.writer.is_idle();
        let is_free = is_quiet && self.phase == Phase::Serving;
        if self.record.is_given_up(self.now) {
            self.fail_closing(Io::new(0, Op::Flush, 0, 0).error(ErrorKind::Io, NAME));
        }
        match self.closing {
            Closing::Asked if is_free && self.regions.open_count() > 0 => {
                let ended = self.regions.ended();
                if self.canary == MirrorCanary::CloseWithoutFlush {
                    self.closing = Closing::Clearing;
                    self.regions.close_now(ended);
                    return true;
                }
                self.closing = Closing::Flushing;
                let id = self.new_job(Task::Close { ended }, Io::new(0, Op::Flush, 0, 0));
                self.send_flush(id);
                true
            }
            Closing::Asked | Closing::Clearing if is_free && !self.regions.is_dirty() => {
                self.end_closing(None);
                true
            }
            Closing::Ending(error) if !has_jobs && !self.record.is_writing() => {
                self.end_closing(Some(error));
                true
            }
            _ => false,
        }
    }

    /// It is over, and legs that keep something for themselves bring that in order.
    fn end_closing(&mut self, error: Option<IoError>) {
        self.closing = Closing::Done(error);
        // Nothing is done from now on.
        self.fail_waiting_ios(error.map_or(ErrorKind::ShuttingDown, |error| error.kind));
        self.legs.iter_mut().flatten().for_each(|leg| leg.volume.wind_up());
        self.has_sent = true;
    }

    /// What closing needs has failed.
    pub(super) fn fail_closing(&mut self, error: IoError) {
        if matches!(self.closing, Closing::Asked | Closing::Clearing) {
            self.closing = Closing::Ending(error);
        }
    }

    /// It is over.
    pub(super) fn is_closed(&self) -> bool {
        matches!(self.closing, Closing::Done(_))
    }

    /// The flush before it has ended. True if it was that.
    pub(super) fn finish_closing(&mut self, ended: u64, result: Result<(), IoError>) -> bool {
        if self.closing != Closing::Flushing {
            return false;
        }
        self.closing = match result {
            Ok(()) => {
                self.regions.close_now(ended);
                Closing::Clearing
            }
            Err(error) => Closing::Ending(error),
        };
        true
    }
}
