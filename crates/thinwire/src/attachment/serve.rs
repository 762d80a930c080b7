//! The loop of an attachment: the face and the volume on one thread, with one sleep for both, the
//! control socket and signals; and the way out.
//!
//! An orderly detach closes the face (which refuses while it is in use), lets everything
//! outstanding end, flushes, and closes the volume. Force drops all of that. A signal is an orderly
//! detach, refused while the face is in use; the second evicts the users, but flushes; the third
//! is force.

use std::io;
use std::time::{Duration, Instant};

use thinwire_frontend::Face;
use thinwire_volume::{Completion, Geometry, Io, Op, VolumeEvent};

use super::Reporter;
use crate::control::{
    AttachmentStatus, ControlServer, Controlled, DetachProgress, Response, State,
};
use crate::error::{Failure, Outcome};
use crate::open::{Ending, OpenVolume, Unheard, Wait};
use crate::rundir::{Claim, Record};
use crate::signals::{Signals, signal_name};

/// A detach that has nothing to write back waits for so long for a target that is away: one that is
/// just being restarted learns that its export is free.
const FLUSH_PATIENCE: Duration = Duration::from_secs(5);
/// How often it looks meanwhile.
const FLUSH_LOOK: Duration = Duration::from_millis(500);
/// How often a local volume looks whether what it lies on has grown.
const REFRESH: Duration = Duration::from_secs(1);

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
}

/// How far the way out is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Not begun.
    Serving,
    /// The face closes; `evict`: whether it is in use or not.
    ClosingFace { evict: bool },
    /// The face is gone; what it left outstanding must end.
    Draining,
    /// The last flush is outstanding.
    Flushing,
}

/// A face and its volume, with the control socket and signals, on one thread.
pub struct AttachmentServer<'a> {
    parts: Parts<'a>,
    phase: Phase,
    announced: bool,
    forced: bool,
    /// The last flush waits only for targets that are away, to which nothing has to be written.
    bars_away: bool,
    signals_taken: u32,
    /// In [`Phase::Flushing`].
    flushing_since: Instant,
    done: Vec<Completion>,
    /// When the volume looks again whether it has grown; never if it is told.
    refresh_at: Option<Instant>,
    /// What the volume counted when its events were last taken.
    events: u64,
    /// Why it ends although nobody asked for it.
    trouble: Option<String>,
}

/// What the control socket sees of an [`AttachmentServer`].
struct View<'b> {
    open: &'b dyn OpenVolume,
    face: &'b dyn Face,
    record: &'b Record,
    phase: &'b mut Phase,
    forced: &'b mut bool,
    announced: bool,
    outstanding: usize,
    geometry: Geometry,
}

impl<'a> AttachmentServer<'a> {
    /// Ready to run.
    pub fn new(mut parts: Parts<'a>) -> Outcome<Self> {
        parts.open.watch(parts.face.fd())?;
        parts.open.watch(parts.control.fd())?;
        parts.open.watch(parts.signals.fd())?;
        Ok(AttachmentServer {
            parts,
            phase: Phase::Serving,
            announced: false,
            forced: false,
            bars_away: false,
            signals_taken: 0,
            flushing_since: Instant::now(),
            done: Vec::new(),
            refresh_at: Some(Instant::now()),
            events: 0,
            trouble: None,
        })
    }

    /// Serves until detached. On return the face is gone, the volume closed, and those who asked
    /// for the detach know how it went.
    pub fn run(mut self, reporter: &mut dyn Reporter) -> Outcome {
        let result = self.serve(reporter);
        let ending = match (self.forced || result.is_err(), self.bars_away) {
            (true, _) => Ending::Force,
            (false, true) => Ending::BarAway,
            (false, false) => Ending::Orderly,
        };
        let face = self.parts.face.close(true);
        let volume = self.parts.open.close(ending);
        let result = match face {
            Err(e) => {
                result.and(Err(Failure::failed(format!("the face did not go in order: {e}"))))
            }
            Ok(()) => result,
        };
        let unheard = volume.as_ref().ok().and_then(Unheard::describe);
        let result = result.and(volume.map(drop));
        let result = match (result, self.trouble) {
            (Ok(()), Some(trouble)) => Err(Failure::failed(trouble)),
            (result, _) => result,
        };
        if let Some(unheard) = &unheard {
            reporter.note(unheard);
        }
        let told = result.as_ref().map(|()| unheard).map_err(|failure| failure.message.clone());
        self.parts.control.finish(told);
        result
    }

    fn serve(&mut self, reporter: &mut dyn Reporter) -> Outcome {
        loop {
            let mut progress = self.turn_face();
            progress |= self.turn_volume();
            if !self.announced && self.phase == Phase::Serving {
                self.announce(reporter)?;
            }
            progress |= self.turn_control();
            if let Some(signal) = self.parts.signals.take() {
                self.on_signal(signal);
            }
            if self.forced {
                return Ok(());
            }
            match self.leave()? {
                Leaving::Gone => return Ok(()),
                Leaving::Again => progress = true,
                Leaving::Waiting => {}
            }
            let wait = match self.phase {
                _ if progress => Wait::No,
                Phase::Flushing => Wait::Until(Instant::now() + FLUSH_LOOK),
                _ => self.refresh_at.map_or(Wait::Forever, Wait::Until),
            };
            self.parts.open.turn(wait)?;
        }
    }

    /// Lets the face work; once it is gone, takes what it had outstanding.
    fn turn_face(&mut self) -> bool {
        let volume = self.parts.open.volume();
        if matches!(self.phase, Phase::Draining | Phase::Flushing) {
            volume.poll(&mut self.done);
            return !self.done.is_empty();
        }
        self.parts.face.turn(volume).unwrap_or_else(|e| {
            tracing::error!("the face died: {e}");
            self.trouble = Some(format!("the face died: {e}"));
            self.phase = Phase::ClosingFace { evict: true };
            true
        })
    }

    /// Has the volume look whether it has grown, if it is due, and takes in what has happened to it. True
    /// if the face must look at it again.
    fn turn_volume(&mut self) -> bool {
        let volume = self.parts.open.volume();
        if self.refresh_at.is_some_and(|at| at <= Instant::now()) {
            self.refresh_at = volume.refresh().then(|| Instant::now() + REFRESH);
        }
        let events = volume.events();
        if events == self.events {
            return false;
        }
        self.events = events;
        let mut news = Vec::new();
        volume.poll_events(&mut news);
        for event in news {
            match event {
                VolumeEvent::Resized { bytes } => {
                    tracing::info!("the volume has grown to {bytes} bytes");
                }
                VolumeEvent::Unreachable { bytes } => tracing::warn!(
                    "a volume that others lie behind has grown: {bytes} bytes of it cannot be reached"
                ),
                // Whoever flushes is told.
                VolumeEvent::Lost => {}
            }
        }
        true
    }

    /// Says that the attachment is usable, as soon as the face is.
    fn announce(&mut self, reporter: &mut dyn Reporter) -> Outcome {
        let path = match self.parts.face.ready() {
            None => return Ok(()),
            Some(Ok(path)) => path,
            Some(Err(e)) => return Err(Failure::failed(e.to_string())),
        };
        self.announced = true;
        self.parts.record.path = Some(path.clone());
        self.parts.claim.write(&self.parts.record)?;
        reporter.ready(&path)
    }

    fn turn_control(&mut self) -> bool {
        let parts = &mut self.parts;
        let volume = parts.open.volume();
        let (outstanding, geometry) = (volume.outstanding(), volume.geometry());
        let mut view = View {
            open: &*parts.open,
            face: &*parts.face,
            record: &parts.record,
            phase: &mut self.phase,
            forced: &mut self.forced,
            announced: self.announced,
            outstanding,
            geometry,
        };
        parts.control.turn(&mut view)
    }

    fn on_signal(&mut self, signal: i32) {
        let signal = signal_name(signal);
        tracing::info!("{signal}");
        self.signals_taken += 1;
        match (self.phase, self.signals_taken) {
            (Phase::Serving, 1) => match self.parts.face.busy() {
                Some(why) => self.stay(&why),
                None => self.phase = Phase::ClosingFace { evict: false },
            },
            (Phase::Serving | Phase::ClosingFace { evict: false }, 2..) => {
                self.phase = Phase::ClosingFace { evict: true };
            }
            (_, 1) => {}
            _ => self.forced = true,
        }
    }

    /// Says that a signal, or a detach that had begun, does not end it.
    fn stay(&mut self, why: &str) {
        tracing::warn!("stays attached: {why}; a second signal detaches all the same");
    }

    /// One step of the way out.
    fn leave(&mut self) -> Outcome<Leaving> {
        match self.phase {
            Phase::Serving => Ok(Leaving::Waiting),
            Phase::ClosingFace { evict } => Ok(self.close_face(evict)),
            Phase::Draining => {
                self.done.clear();
                let volume = self.parts.open.volume();
                if volume.outstanding() > 0 {
                    return Ok(Leaving::Waiting);
                }
                if volume.geometry().features.read_only {
                    return Ok(Leaving::Gone);
                }
                volume.submit(Io::new(0, Op::Flush, 0, 0));
                self.flushing_since = Instant::now();
                self.phase = Phase::Flushing;
                Ok(Leaving::Again)
            }
            Phase::Flushing => match self.done.pop() {
                None => {
                    let health = self.parts.open.health();
                    let waited = self.flushing_since.elapsed() >= FLUSH_PATIENCE;
                    if waited && health.state == State::Away && !health.unflushed {
                        // Nothing depends on this flush, and those targets are not there to hear
                        // of the end. The others are.
                        tracing::info!("a target is away and nothing has to reach it");
                        self.bars_away = true;
                        return Ok(Leaving::Gone);
                    }
                    Ok(Leaving::Waiting)
                }
                Some(Completion { result: Ok(()), .. }) => Ok(Leaving::Gone),
                Some(Completion { result: Err(e), .. }) => {
                    Err(Failure::failed(format!("writes since the last flush may be lost: {e}")))
                }
            },
        }
    }

    fn close_face(&mut self, evict: bool) -> Leaving {
        match self.parts.face.close(evict) {
            Ok(()) => {
                self.phase = Phase::Draining;
                Leaving::Again
            }
            // It has to serve the very I/O that closing needs.
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Leaving::Waiting,
            Err(e) if !evict => {
                let why = match e.kind() {
                    io::ErrorKind::ResourceBusy => e.to_string(),
                    _ => format!("closing failed: {e}"),
                };
                self.phase = Phase::Serving;
                self.stay(&why);
                self.parts.control.refuse(why);
                Leaving::Waiting
            }
            Err(e) => {
                tracing::warn!("closing the face: {e}");
                self.phase = Phase::Draining;
                Leaving::Again
            }
        }
    }
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

impl Controlled for View<'_> {
    fn status(&self) -> Response {
        let health = self.open.health();
        let state = match (*self.phase, self.announced) {
            (Phase::Serving, true) => health.state,
            (Phase::Serving, false) => State::Connecting,
            _ => State::Detaching,
        };
        let record = self.record;
        let (timer, seconds_left) = health.timer.unzip();
        Response::Status(Box::new(AttachmentStatus {
            name: record.name.clone(),
            uri: record.uri.clone(),
            frontend: record.frontend.clone(),
            path: record.path.clone(),
            state,
            insecure: record.insecure,
            paths: health.paths,
            leaves: health.leaves,
            timer,
            seconds_left,
            read_only: self.geometry.features.read_only,
            bytes: self.geometry.bytes,
            outstanding: self.outstanding as u64,
            pid: record.pid,
            batch: health.batch,
            detail: health.detail,
        }))
    }

    fn detach(&mut self, force: bool) -> Result<DetachProgress, String> {
        if force {
            *self.forced = true;
        } else if *self.phase == Phase::Serving {
            if let Some(why) = self.face.busy() {
                return Err(why);
            }
            *self.phase = Phase::ClosingFace { evict: false };
        }
        Ok(DetachProgress::Started)
    }
}

#[cfg(test)]
#[path = "serve_tests.rs"]
mod tests;
