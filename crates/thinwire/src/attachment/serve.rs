//! The loop of an attachment: it drives the host that the face, a part, and the volume are on, looks at
//! the part between turns, and hears the control socket and signals; and the way out.
//!
//! An orderly detach closes the face (which refuses while it is in use), lets everything
//! outstanding end, flushes, and closes the volume. Force drops all of that. A signal is an orderly
//! detach, refused while the face is in use; the second evicts the users, but flushes; the third
//! is force.
//!
//! Whatever the face takes a while for (who uses it, going by force) is begun, and looked at after each
//! turn: all else on the host is served meanwhile.

use std::io;
use std::task::Poll;
use std::time::{Duration, Instant};

use thinwire_frontend::{FORCED_CLOSE_MAX, Face, FacePart};
use thinwire_runtime::wait::Spin;
use thinwire_volume::{ErrorKind, IoError, Op, Work};

use super::Reporter;
use super::shown::Shown;
use super::writing_down::{self, WritingDown};
use crate::control::{
    AttachmentStatus, CacheStatus, ControlServer, Controlled, DetachProgress, MirrorStatus,
    PoolProgress, Response, State,
};
use crate::error::{Failure, Outcome};
use crate::open::{Ending, OpenVolume, Unheard, Wait};
use crate::pool::{PoolAsk, PoolDesk};
use crate::rundir::{Claim, Record};
use crate::signals::{Signals, signal_name};
use crate::work::{NodeStatus, WorkAsk, draw, perform};

/// A detach that has nothing to write back waits for so long for a target that is away: one that is
/// just being restarted learns that its export is free.
const FLUSH_PATIENCE: Duration = Duration::from_secs(5);
/// How often it looks meanwhile.
const FLUSH_LOOK: Duration = Duration::from_millis(500);
/// How often is looked whether a change of the pool has ended.
const CHANGE_LOOK: Duration = Duration::from_millis(5);

/// What the log says of a forced end.
const FORCED: &str = "detached by force: what was outstanding has failed, and nothing was flushed";

/// What an [`AttachmentServer`] is made of.
pub struct Parts<'a> {
    /// Takes any byte range.
    pub open: Box<dyn OpenVolume>,
    /// Not turned yet.
    pub face: Box<dyn Face>,
    /// Listening.
    pub control: ControlServer,
    /// Ending signals.
    pub signals: &'a Signals,
    /// The attachment's name.
    pub claim: &'a Claim<'a>,
    /// Without the path, which is written when the face is ready.
    pub record: Record,
    /// When its thread spins, to tell.
    pub spin: Spin,
}

/// How far the way out is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Not begun.
    Serving,
    /// Somebody wants it to end; the face finds out whether it is in use.
    Asking,
    /// The face closes; `evict`: whether it is in use or not.
    ClosingFace { evict: bool },
    /// The face is gone; what it left outstanding must end.
    Draining,
    /// The last flush is outstanding.
    Flushing,
}

/// A face and its volume, with the control socket and signals, on one thread.
pub struct AttachmentServer<'a> {
    open: Box<dyn OpenVolume>,
    shown: Shown,
    control: ControlServer,
    signals: &'a Signals,
    claim: &'a Claim<'a>,
    record: Record,
    spin: Spin,
    phase: Phase,
    announced: bool,
    forced: bool,
    /// The last flush waits only for targets that are away, to which nothing has to be written.
    bars_away: bool,
    signals_taken: u32,
    /// In [`Phase::Flushing`].
    writing_down: WritingDown,
    /// Writes depend on the last flush.
    may_lose: bool,
    /// When a face that closes by force is not waited for any longer, once that has begun.
    face_ends: Option<Instant>,
    /// It was given up so, and is still going.
    face_lingers: bool,
    /// The last flush has failed.
    loss: Option<Failure>,
    /// Why it ends although nobody asked for it.
    trouble: Option<String>,
    /// What is being done to pools that are open with the volume.
    desk: PoolDesk,
}

/// What the control socket sees of an [`AttachmentServer`].
struct View<'b> {
    open: &'b dyn OpenVolume,
    shown: &'b Shown,
    record: &'b Record,
    spin: Spin,
    phase: &'b mut Phase,
    forced: &'b mut bool,
    announced: bool,
    desk: &'b mut PoolDesk,
}

impl<'a> AttachmentServer<'a> {
    /// Ready to run.
    pub fn new(parts: Parts<'a>) -> Outcome<Self> {
        let Parts { mut open, face, control, signals, claim, record, spin } = parts;
        open.watch(control.fd())?;
        open.watch(signals.fd())?;
        let shown = open.show(face)?;
        Ok(AttachmentServer {
            open,
            shown,
            control,
            signals,
            claim,
            record,
            spin,
            phase: Phase::Serving,
            announced: false,
            forced: false,
            bars_away: false,
            signals_taken: 0,
            writing_down: WritingDown::begin(0, Instant::now()),
            may_lose: true,
            face_ends: None,
            face_lingers: false,
            loss: None,
            trouble: None,
            desk: PoolDesk::default(),
        })
    }

    /// Serves until detached. On return the face is gone, the volume closed, and those who asked
    /// for the detach know how it went.
    pub fn run(mut self, reporter: &mut dyn Reporter) -> Outcome {
        let result = self.serve(reporter);
        let ending = match (self.forced || result.is_err(), &self.loss) {
            (true, _) => Ending::Force,
            (false, Some(_)) => Ending::AfterLoss,
            (false, None) if self.bars_away => Ending::BarAway,
            (false, None) => Ending::Orderly,
        };
        let result = result.and(self.loss.take().map_or(Ok(()), Err));
        self.phase = Phase::ClosingFace { evict: true };
        let face = self.end_face();
        let still_used = self.shown.with(FacePart::last_word);
        self.shown.remove();
        let volume = self.open.close(ending);
        let result = match face {
            Err(e) => {
                result.and(Err(Failure::failed(format!("the face did not go in order: {e}"))))
            }
            Ok(()) => result,
        };
        let unheard = volume.as_ref().ok().and_then(Unheard::describe);
        if let (Err(_), Err(failure)) = (&result, &volume) {
            // Only the first is told to those who asked.
            tracing::error!("{failure}");
        }
        let result = result.and(volume.map(drop));
        let result = match (result, self.trouble) {
            (Ok(()), Some(trouble)) => Err(Failure::failed(trouble)),
            (result, _) => result,
        };
        let forced = self.forced.then_some(FORCED);
        for note in [forced, still_used.as_deref(), unheard.as_deref()].into_iter().flatten() {
            reporter.note(note);
        }
        self.control.finish(&match &result {
            Ok(()) => Response::Detached { unheard, still_used },
            Err(failure) => Response::Failed { why: failure.message.clone() },
        });
        result
    }

    fn serve(&mut self, reporter: &mut dyn Reporter) -> Outcome {
        loop {
            if !matches!(self.phase, Phase::Draining | Phase::Flushing) {
                self.look_at_face(reporter)?;
            }
            self.listen();
            if self.forced {
                return Ok(());
            }
            let wait = match (self.leave()?, self.phase) {
                (Leaving::Gone, _) => return Ok(()),
                (Leaving::Again, _) => Wait::No,
                (Leaving::Waiting, Phase::Flushing) => Wait::Until(Instant::now() + FLUSH_LOOK),
                (Leaving::Waiting, Phase::ClosingFace { evict: true }) => self.wait_for_face(),
                (Leaving::Waiting, _) => Wait::Forever,
            };
            // A change of the pool ends in a turn of the volume, of which nobody tells here.
            let mut wait = wait;
            if !self.desk.is_idle() {
                wait = wait.at_most(CHANGE_LOOK);
                // What was asked of the volume it does in a turn of its own.
                self.shown.with(|_| ());
            }
            self.shown.turn(wait)?;
            self.open.tend();
            self.finish_changes();
        }
    }

    /// Tells who has asked for changes of pools how those have ended.
    fn finish_changes(&mut self) {
        if self.desk.is_idle() {
            return;
        }
        let mut ended = Vec::new();
        self.desk.finish(&mut ended);
        ended.into_iter().for_each(|(number, how)| self.control.finish_change(number, how));
    }

    /// Whether it has become usable, or has died.
    fn look_at_face(&mut self, reporter: &mut dyn Reporter) -> Outcome {
        self.trouble = self.shown.look(|part| part.trouble().map(str::to_owned));
        if self.trouble.is_some() {
            self.phase = Phase::ClosingFace { evict: true };
        } else if !self.announced && matches!(self.phase, Phase::Serving | Phase::Asking) {
            self.announce(reporter)?;
        }
        Ok(())
    }

    /// Says that the attachment is usable, as soon as the face is.
    fn announce(&mut self, reporter: &mut dyn Reporter) -> Outcome {
        let path = match self.shown.with(FacePart::ready) {
            None => return Ok(()),
            Some(Ok(path)) => path,
            Some(Err(e)) => return Err(Failure::failed(e.to_string())),
        };
        self.announced = true;
        self.record.path = Some(path.clone());
        self.claim.write(&self.record)?;
        reporter.ready(&path)
    }

    /// Hears those who have called.
    fn listen(&mut self) {
        if self.shown.is_called() {
            self.turn_control();
            if let Some(signal) = self.signals.take() {
                self.on_signal(signal);
            }
        }
    }

    fn turn_control(&mut self) {
        let mut view = View {
            open: &*self.open,
            shown: &self.shown,
            record: &self.record,
            spin: self.spin,
            phase: &mut self.phase,
            forced: &mut self.forced,
            announced: self.announced,
            desk: &mut self.desk,
        };
        self.control.turn(&mut view);
    }

    fn on_signal(&mut self, signal: i32) {
        let signal = signal_name(signal);
        tracing::info!("{signal}");
        self.signals_taken += 1;
        match (self.phase, self.signals_taken) {
            (Phase::Serving, 1) => self.phase = Phase::Asking,
            (Phase::Serving | Phase::Asking | Phase::ClosingFace { evict: false }, 2..) => {
                self.phase = Phase::ClosingFace { evict: true };
            }
            (_, 1) => {}
            _ => self.forced = true,
        }
    }

    /// One step of the way out.
    fn leave(&mut self) -> Outcome<Leaving> {
        self.see_face_off();
        match self.phase {
            Phase::Serving => Ok(Leaving::Waiting),
            Phase::Asking => Ok(self.ask_face()),
            Phase::ClosingFace { evict } => Ok(self.close_face(evict)),
            Phase::Draining => {
                let outstanding = self.shown.look(FacePart::outstanding);
                if outstanding > 0 {
                    return Ok(Leaving::Waiting);
                }
                if self.shown.look(FacePart::geometry).features.read_only {
                    return Ok(Leaving::Gone);
                }
                let dirty = self.dirty();
                self.may_lose = self.open.health().may_lose || dirty > 0;
                self.shown.with(FacePart::flush);
                self.writing_down = WritingDown::begin(dirty, Instant::now());
                self.phase = Phase::Flushing;
                Ok(Leaving::Again)
            }
            Phase::Flushing => match self.shown.look(|part| part.flushed().copied()) {
                None => Ok(self.wait_for_flush()),
                Some(Ok(())) => Ok(Leaving::Gone),
                Some(Err(e)) => {
                    // That of one leaf, perhaps: the others are let go of in order.
                    let place = self.open.failed_at(&e).place;
                    self.loss = Some(last_flush_failed(&e, &place, self.may_lose));
                    Ok(Leaving::Gone)
                }
            },
        }
    }

    /// What its caches hold, and the volume does not have, in bytes.
    fn dirty(&self) -> u64 {
        self.shown.look(FacePart::cache).map_or(0, |cache| cache.dirty)
    }

    /// Gives up a flush that nothing depends on, and one of which a cache could write nothing down for too long. What the
    /// volume does behind it has its time, too.
    fn wait_for_flush(&mut self) -> Leaving {
        let health = self.open.health();
        let dirty = self.dirty();
        let stood_still = self.writing_down.stood_still(dirty, Instant::now());
        let patience = self.open.wind_up_patience();
        let last = self.shown.look(|part| part.last_flush().copied());
        let is_away = health.state == State::Away && !health.unflushed;
        if last.is_none() && dirty == 0 {
            if !is_away || stood_still < FLUSH_PATIENCE {
                return Leaving::Waiting;
            }
            // Nothing depends on this flush, and those targets are not there to hear of the end. The others are.
            tracing::info!("a target is away and nothing has to reach it");
            if self.shown.look(FacePart::owes) {
                self.loss = Some(last_flush_failed(&UNTOLD, "", true));
            }
        } else if stood_still < patience || !is_away && last.is_none() {
            return Leaving::Waiting;
        } else {
            let error = last.and_then(Result::err);
            self.loss = match (dirty, error) {
                (1.., _) => Some(writing_down::failed(dirty, patience, error.as_ref())),
                (0, Some(error)) => {
                    let place = self.open.failed_at(&error).place;
                    Some(last_flush_failed(&error, &place, self.may_lose))
                }
                (0, None) => {
                    tracing::warn!(
                        "not all of it has ended in order: its mirrors resync when they are opened"
                    );
                    None
                }
            };
        }
        self.bars_away = true;
        Leaving::Gone
    }

    /// Looks whether the face knows by now who uses it.
    fn ask_face(&mut self) -> Leaving {
        match self.shown.with(FacePart::busy) {
            Poll::Pending => Leaving::Waiting,
            Poll::Ready(None) => {
                self.phase = Phase::ClosingFace { evict: false };
                Leaving::Again
            }
            Poll::Ready(Some(why)) => {
                self.refuse(why);
                Leaving::Waiting
            }
        }
    }

    /// It stays, and those who wanted it to end are told why.
    fn refuse(&mut self, why: String) {
        self.phase = Phase::Serving;
        tracing::warn!("{}", stays(&why, self.signals_taken));
        self.control.refuse(why);
    }

    fn close_face(&mut self, evict: bool) -> Leaving {
        let closed = match evict {
            true => self.force_face(),
            // It has to serve the very I/O that closing needs.
            false => ended(self.shown.with(|part| part.close(false))),
        };
        match closed {
            Poll::Pending => return Leaving::Waiting,
            Poll::Ready(Err(e)) if !evict => {
                self.refuse(match e.kind() {
                    io::ErrorKind::ResourceBusy => e.to_string(),
                    _ => format!("closing failed: {e}"),
                });
                return Leaving::Waiting;
            }
            Poll::Ready(Err(e)) => tracing::warn!("closing the face: {e}"),
            Poll::Ready(Ok(())) => {}
        }
        self.phase = Phase::Draining;
        Leaving::Again
    }

    /// Takes the face away whoever uses it, or looks whether that is done. What takes too long is given
    /// up: it ends while other things do, or in the face's own end.
    fn force_face(&mut self) -> Poll<io::Result<()>> {
        let ends = *self.face_ends.get_or_insert_with(|| Instant::now() + FORCED_CLOSE_MAX);
        let closed = ended(self.shown.with(|part| part.close(true)));
        self.face_lingers = closed.is_pending() && Instant::now() >= ends;
        match self.face_lingers {
            true => Poll::Ready(Ok(())),
            false => closed,
        }
    }

    /// Looks after a face that was given up. Its descriptor stays readable until somebody does.
    fn see_face_off(&mut self) {
        if !self.face_lingers {
            return;
        }
        if let Poll::Ready(Err(e)) = self.force_face() {
            tracing::warn!("closing the face: {e}");
        }
    }

    /// Until a face that closes by force has something to do, or is given up.
    fn wait_for_face(&self) -> Wait {
        self.face_ends.map_or(Wait::Forever, Wait::Until)
    }

    /// Takes the face away whoever uses it, and turns the host until it is gone.
    fn end_face(&mut self) -> io::Result<()> {
        loop {
            if let Poll::Ready(closed) = self.force_face() {
                return closed;
            }
            if let Err(failure) = self.shown.turn(self.wait_for_face()) {
                // Nothing on this host can be turned any more.
                tracing::warn!("closing the face: {failure}");
                return Ok(());
            }
            self.listen();
        }
    }
}

/// That a signal, or a detach that had begun, does not end it; after a signal, that the next one does.
fn stays(why: &str, signals_taken: u32) -> String {
    let else_how = if signals_taken > 0 { "; a second signal detaches all the same" } else { "" };
    format!("stays attached: {why}{else_how}")
}

/// Whether a call that began to close a face has ended that.
fn ended(closed: io::Result<()>) -> Poll<io::Result<()>> {
    match closed {
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
        closed => Poll::Ready(closed),
    }
}

/// A loss that no flush has told of.
const UNTOLD: IoError =
    IoError { kind: ErrorKind::Io, op: Op::Flush, offset: 0, len: 0, module: "loss" };

/// What the user is told of it, and where that was, if the volume is made of others.
fn last_flush_failed(error: &IoError, place: &str, may_lose: bool) -> Failure {
    let why = match (error.kind, error.module) {
        (ErrorKind::Io, "remote") => "the target's medium reported an error",
        (kind, _) => kind.describe(),
    };
    let failure = Failure::failed(match may_lose {
        true => format!("{why}: writes since the last flush may be lost"),
        false => format!("{why} at the last flush; no acknowledged write depended on it"),
    });
    if place.is_empty() { failure } else { failure.context(place) }
}

/// What [`AttachmentServer::leave`] found.
enum Leaving {
    /// All is done.
    Gone,
    /// The next step can be taken at once.
    Again,
    /// Something else must happen first.
    Waiting,
}

impl View<'_> {
    /// All that the volume is made of; nothing of one that is made of nothing.
    fn nodes(&self) -> Vec<NodeStatus> {
        let outline = self.open.outline();
        if outline.len() < 2 {
            return Vec::new();
        }
        let shown = self.shown;
        draw(&outline, &mut |visit| shown.with(|part| part.works(visit)))
    }
}

impl Controlled for View<'_> {
    fn status(&self) -> Response {
        let health = self.open.health();
        let state = match (*self.phase, self.announced) {
            (Phase::Serving | Phase::Asking, true) => health.state,
            (Phase::Serving | Phase::Asking, false) => State::Connecting,
            _ => State::Detaching,
        };
        let record = self.record;
        let (outstanding, geometry) = self.shown.look(|part| (part.outstanding(), part.geometry()));
        let (timer, seconds_left) = health.timer.unzip();
        Response::Status(Box::new(AttachmentStatus {
            name: record.name.clone(),
            uri: record.uri.clone(),
            frontend: record.frontend.clone(),
            path: record.path.clone(),
            state,
            insecure: record.insecure,
            key: record.key.clone(),
            suite: health.suite,
            paths: health.paths,
            leaves: health.leaves,
            timer,
            seconds_left,
            read_only: geometry.features.read_only,
            bytes: geometry.bytes,
            outstanding: outstanding as u64,
            pid: record.pid,
            batch: health.batch,
            integrity: health.integrity,
            mirrors: MirrorStatus::of(&self.shown.look(FacePart::mirrors)),
            cache: CacheStatus::of(self.shown.look(FacePart::cache)),
            nodes: self.nodes(),
            spin: Some(self.spin.to_string()),
            control: None,
            detail: health.detail,
        }))
    }

    fn change_pool(&mut self, ask: &PoolAsk) -> PoolProgress {
        if !matches!(self.phase, Phase::Serving | Phase::Asking) {
            let why = "it is being detached".into();
            return PoolProgress::Ended(Response::Refused { why });
        }
        self.desk.begin(ask, &self.open.pools(), &self.open.cuts())
    }

    fn work(&mut self, ask: &WorkAsk) -> PoolProgress {
        if ask.request.action.ends_later() {
            return self.desk.grow(
                ask,
                &self.open.outline(),
                (&self.open.wholes(), &self.open.known_keys()),
            );
        }
        let shown = self.shown;
        let mut show = |visit: &mut dyn FnMut(&mut dyn Work)| shown.with(|part| part.works(visit));
        let outline = self.open.outline();
        let response = perform(ask, (&self.record.name, &outline), &mut show);
        self.desk.keep((ask, response), &outline, &self.open.wholes())
    }

    fn detach(&mut self, force: bool) -> Result<DetachProgress, String> {
        if force {
            *self.forced = true;
        } else if *self.phase == Phase::Serving {
            *self.phase = match self.shown.with(FacePart::busy) {
                Poll::Ready(Some(why)) => return Err(why),
                Poll::Ready(None) => Phase::ClosingFace { evict: false },
                // Those who asked are told later.
                Poll::Pending => Phase::Asking,
            };
        }
        Ok(DetachProgress::Started)
    }
}

#[cfg(test)]
#[path = "serve_tests.rs"]
mod tests;
