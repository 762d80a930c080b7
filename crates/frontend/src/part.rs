//! A face and the volume that it serves, as a part of a node: it is turned when its descriptor is
//! readable or something has come up from its volume, and costs nothing else.
//!
//! Whoever attached it looks at it between turns: is it usable, is it dead, how far is the way out.
//! Whatever changes about that, the part asks for another turn at once, so that nobody sleeps over it.

use std::io;
use std::os::fd::BorrowedFd;
use std::task::Poll;
use std::time::Duration;

use thinwire_buffer::Time;
use thinwire_volume::{
    CacheReport, Closing, Completion, Effect, Expects, Geometry, Gravity, Io, IoError, LegStanding,
    MirrorReport, Op, Owing, Part, PartEvent, Volume, VolumeEvent, Work,
};

use crate::Face;

/// How often a volume looks whether what it lies on has grown, if it is not told.
const REFRESH: Duration = Duration::from_secs(1);

/// What has become of the face.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It takes requests.
    Serving,
    /// It cannot go on, and must be closed.
    Dead,
    /// It is closed. What it had outstanding ends.
    Gone,
}

/// See the [module](self). Owns both; the volume takes any byte range.
pub struct FacePart {
    /// Let go of before the volume.
    face: Box<dyn Face>,
    /// Each user of the face is told by a flush what it loses.
    volume: Owing<Box<dyn Volume>>,
    state: State,
    trouble: Option<String>,
    /// When the volume looks again whether it has grown; never if it is told.
    refresh_at: Time,
    /// It has to be told the time.
    is_timed: bool,
    /// What the volume counted when its events were last taken.
    events: u64,
    is_flushing: bool,
    last_flush: Option<Result<(), IoError>>,
    /// The same, once the volume has wound up.
    flushed: Option<Result<(), IoError>>,
    /// A descriptor was found readable, the face's perhaps.
    is_readable: bool,
    /// Something has happened: there may be more to do, or to be looked at.
    again: bool,
    notes: Vec<(Gravity, String)>,
    /// Recycled.
    done: Vec<Completion>,
}

impl FacePart {
    /// A face that was not turned yet, over a volume that takes any byte range and has no other user. What is lost is
    /// told here: nothing below has to owe it (its users *hear* of losses).
    pub fn new(face: Box<dyn Face>, volume: Box<dyn Volume>) -> Self {
        let is_timed = volume.is_timed();
        FacePart {
            face,
            volume: Owing::new(volume, false),
            is_timed,
            state: State::Serving,
            trouble: None,
            refresh_at: Time::ZERO,
            events: 0,
            is_flushing: false,
            last_flush: None,
            flushed: None,
            is_readable: true,
            again: false,
            notes: Vec::new(),
            done: Vec::new(),
        }
    }

    /// Its own descriptor, of which it wants to be told.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.face.fd()
    }

    /// As [`Face::ready`].
    pub fn ready(&mut self) -> Option<io::Result<String>> {
        self.face.ready()
    }

    /// As [`Face::busy`].
    pub fn busy(&mut self) -> Poll<Option<String>> {
        self.face.busy()
    }

    /// Why the face died, if it has. It has to be closed by force then.
    pub fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// As [`Face::close`]. Once it has succeeded, or was called with `force`, the face is not turned any
    /// more, and what it had outstanding ends.
    pub fn close(&mut self, force: bool) -> io::Result<()> {
        let closed = self.face.close(force);
        if force || closed.is_ok() {
            self.state = State::Gone;
        }
        closed
    }

    /// As [`Face::last_word`].
    pub fn last_word(&mut self) -> Option<String> {
        self.face.last_word()
    }

    /// The last flush, when the face is closed and nothing is outstanding.
    pub fn flush(&mut self) {
        debug_assert!(self.state == State::Gone && self.volume.outstanding() == 0);
        self.is_flushing = true;
        self.volume.submit(Io::new(0, Op::Flush, 0, 0));
    }

    /// How that ended, once it has; what the volume keeps for itself is brought in order then, which may not end.
    pub fn last_flush(&self) -> Option<&Result<(), IoError>> {
        self.last_flush.as_ref()
    }

    /// The same, once that has ended, too.
    pub fn flushed(&self) -> Option<&Result<(), IoError>> {
        self.flushed.as_ref()
    }

    /// A loss is still to be told to somebody whose writes may be part of it.
    pub fn owes(&self) -> bool {
        self.volume.owes()
    }

    /// I/Os that are with the volume.
    pub fn outstanding(&self) -> usize {
        self.volume.outstanding()
    }

    /// The mirrors in it.
    pub fn mirrors(&self) -> Vec<MirrorReport> {
        self.volume.all_mirrors()
    }

    /// How the caches in it do, together.
    pub fn cache(&self) -> Option<CacheReport> {
        self.volume.cache()
    }

    /// Shows everything in it that works for itself.
    pub fn works(&mut self, visit: &mut dyn FnMut(&mut dyn Work)) {
        self.volume.works(visit);
        self.again = true;
    }

    /// The volume's shape.
    pub fn geometry(&self) -> Geometry {
        self.volume.geometry()
    }

    /// Takes in what has happened to the volume. True if the face must look at it again.
    fn take_news(&mut self) -> bool {
        let events = self.volume.events();
        if events == self.events {
            return false;
        }
        self.events = events;
        let mut news = Vec::new();
        self.volume.poll_events(&mut news);
        self.notes.extend(news.into_iter().filter_map(|event| match event {
            VolumeEvent::Resized { bytes } => {
                Some((Gravity::News, format!("the volume has grown to {bytes} bytes")))
            }
            VolumeEvent::Unreachable { bytes } => Some((
                Gravity::Warning,
                format!(
                    "a volume that others lie behind has grown: {bytes} bytes of it cannot be reached"
                ),
            )),
            // Users are told by flushes that fail.
            VolumeEvent::Lost => Some((
                Gravity::Warning,
                "acknowledged writes that no flush has covered may be lost: the next flush of each client says so".into(),
            )),
            VolumeEvent::Leg { standing, .. } => {
                let gravity = match standing {
                    LegStanding::InSync | LegStanding::Resyncing => Gravity::News,
                    LegStanding::Behind | LegStanding::Failed | LegStanding::Removed => {
                        Gravity::Warning
                    }
                };
                event.news_of_legs().map(|news| (gravity, news))
            }
            VolumeEvent::BadBlock { .. } | VolumeEvent::Unverified { .. } => {
                event.news_of_sums().map(|news| (Gravity::Warning, news))
            }
            // The disk tells of itself, and the attachment.
            VolumeEvent::Shrunk | VolumeEvent::Stale | VolumeEvent::Fenced { .. } => None,
        }));
        true
    }

    fn turn_face(&mut self) -> io::Result<bool> {
        let volume = &mut self.volume;
        match std::mem::take(&mut self.is_readable) {
            true => self.face.turn(volume),
            false => self.face.go_on(volume),
        }
    }

    /// True if anything happened.
    fn turn(&mut self) -> bool {
        match self.state {
            State::Serving => self.turn_face().unwrap_or_else(|e| {
                let trouble = format!("the face died: {e}");
                self.notes.push((Gravity::Failure, trouble.clone()));
                self.trouble = Some(trouble);
                self.state = State::Dead;
                true
            }),
            State::Dead => false,
            State::Gone => {
                self.volume.poll(&mut self.done);
                let any = !self.done.is_empty();
                // Nothing else was outstanding when it began.
                if let (true, Some(flush)) = (self.is_flushing, self.done.last()) {
                    self.last_flush = Some(flush.result);
                    self.volume.wind_up();
                }
                self.done.clear();
                let is_over = self.last_flush.is_some() && self.volume.is_wound_up();
                let was_over = self.flushed.is_some();
                self.flushed = self.last_flush.filter(|_| is_over || was_over);
                any || self.flushed.is_some() && !was_over
            }
        }
    }
}

impl Part for FacePart {
    fn on_event(&mut self, _: Time, event: PartEvent<'_>) {
        self.is_readable |= matches!(event, PartEvent::Readable);
    }

    fn settle(&mut self, now: Time) {
        if self.refresh_at <= now {
            self.refresh_at = if self.volume.refresh() { now + REFRESH } else { Time::NEVER };
        }
        if self.is_timed {
            self.volume.turn(now);
        }
        // Several times in a turn, perhaps.
        self.again |= self.turn();
        self.again |= self.take_news();
    }

    fn close(&mut self, turn: &mut Closing<'_>) -> Time {
        turn.effects.extend(self.notes.drain(..).map(|(how, text)| Effect::Note(how, text)));
        let due = match self.state {
            State::Serving => self.face.end_turn(turn.now),
            State::Dead | State::Gone => Time::NEVER,
        };
        // Nobody polls the volume of a dead one.
        let wished = match self.is_timed && self.state != State::Dead {
            true => self.volume.turn(turn.now),
            false => Time::NEVER,
        };
        match std::mem::take(&mut self.again) {
            true => turn.now,
            false => self.refresh_at.min(due).min(wished),
        }
    }

    fn expects(&self) -> Expects {
        let is_asked = self.state == State::Serving && self.volume.outstanding() == 0;
        if is_asked { Expects::Request } else { Expects::Nothing }
    }
}

#[cfg(test)]
#[path = "part_tests.rs"]
mod tests;
