//! The attachment: what is asked of the target once there is a session, and what it grants
//! (`docs/protocol.md`, "Attachments").

#[cfg(test)]
pub(crate) mod tests;

use std::time::Duration;

use thinwire_proto::{DropReason, Time};
use thinwire_volume::{ErrorKind, Features, Geometry, Identity};
use thinwire_wire::{Attach, AttachRefused, Attached, Status, attach_flags, feature};

use crate::InitiatorConfig;
use crate::report::AttachError;

/// A refused attach is asked again after this.
const ASK_AGAIN: Duration = Duration::from_millis(500);

/// What the volume is, once attached.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttachedVolume {
    pub geometry: Geometry,
    pub identity: Identity,
    pub writer_generation: u64,
    pub idle_generations: u32,
    /// It only reads, and somebody else might write when this was granted.
    pub is_held: bool,
}

/// Where it stands.
#[derive(Clone, Debug)]
enum State {
    /// There is no session to ask in.
    Apart,
    /// Asked; no answer yet.
    Asked,
    /// Refused for now.
    Refused { again_at: Time },
    /// This session has it.
    Granted,
    /// The first attach came to nothing.
    Failed(AttachError),
}

/// What a grant means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Granted {
    /// The volume is known now, and its verifier.
    First(u64),
    /// It is the same volume as before, under this verifier.
    Again(u64),
    /// It is another one: nothing that is retained may be written there.
    OtherContent,
    /// Without the integrity that was asked for: nothing is sent there.
    Unchecked,
}

/// What a refusal means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It is asked again by and by.
    ForNow,
    /// The first attach came to nothing.
    Failed,
    /// A volume that was attached is lost for good.
    Lost(ErrorKind),
    /// This session never has it, another one may: it begins with a greeting anew.
    Elsewhere,
}

/// What it waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timer {
    /// To ask again.
    AskAgain,
}

/// What is asked of the target, and what it has granted. Its states, and what becomes of them:
///
#[doc = include_str!("attachment.md")]
///
/// "Open" is one whose volume has been known since an earlier grant.
#[derive(Debug)]
pub(crate) struct Attachment {
    state: State,
    export: String,
    read_only: bool,
    take_over: bool,
    wait: bool,
    /// Under which the first member writes, if this is another.
    joins: Option<u64>,
    /// Data is to have sums.
    integrity: bool,
    /// Of the attach that was asked for last.
    transaction: u32,
    /// It has been asked for since the last answer: it may have been granted.
    is_unanswered: bool,
    content: Option<AttachedVolume>,
    handle: u32,
    generation: u32,
    growth: Growth,
}

/// How the volume has grown.
#[derive(Clone, Copy, Debug, Default)]
struct Growth {
    /// How often.
    count: u64,
    /// How often somebody has been told.
    told: u64,
    /// A size that came before the answer to the attach that it is about, with that one's handle.
    early: Option<((u32, u32), u64)>,
}

impl Attachment {
    pub fn new(config: &InitiatorConfig) -> Self {
        let state = match config.insecure || config.key.is_some() {
            true => State::Apart,
            false => State::Failed(AttachError::Insecure),
        };
        Attachment {
            state,
            export: config.export.clone(),
            read_only: config.read_only,
            take_over: config.take_over,
            wait: config.wait,
            joins: (config.member > 0).then_some(config.member_generation),
            integrity: config.integrity,
            transaction: 0,
            is_unanswered: false,
            content: None,
            handle: 0,
            generation: 0,
            growth: Growth::default(),
        }
    }

    /// What the volume is; `None` before the first grant.
    pub fn content(&self) -> Option<&AttachedVolume> {
        self.content.as_ref()
    }

    /// It has been granted once.
    pub fn is_open(&self) -> bool {
        self.content.is_some()
    }

    /// It is not known to have been granted to write, and may have been: the answer is still to come.
    pub fn may_be_granted(&self) -> bool {
        let may_write = self.is_unanswered && !self.read_only;
        may_write && !self.is_open() && self.first_error().is_none()
    }

    /// This session has it.
    #[inline]
    pub fn is_granted(&self) -> bool {
        matches!(self.state, State::Granted)
    }

    /// Why the first attach failed, if it did.
    pub fn first_error(&self) -> Option<&AttachError> {
        match &self.state {
            State::Failed(error) => Some(error),
            _ => None,
        }
    }

    /// Its name in the table.
    pub fn state(&self) -> &'static str {
        match (&self.state, self.is_open()) {
            (State::Apart, false) => "Apart",
            (State::Asked, false) => "Asked",
            (State::Refused { .. }, false) => "Refused",
            (State::Failed(_), _) => "Failed",
            (State::Granted, _) => "Granted",
            (State::Apart, true) => "Apart, open",
            (State::Asked, true) => "Asked, open",
            (State::Refused { .. }, true) => "Refused, open",
        }
    }

    /// Handle and generation that requests name it by.
    #[inline]
    pub fn handle(&self) -> (u32, u32) {
        (self.handle, self.generation)
    }

    /// Asks in the present session; returns the transaction number to send.
    pub fn ask(&mut self) -> u32 {
        debug_assert!(self.first_error().is_none(), "nobody looks for a target any more");
        self.state = State::Asked;
        self.is_unanswered = true;
        self.growth.early = None;
        self.transaction = self.transaction.wrapping_add(1).max(1);
        self.transaction
    }

    /// Who asks once more only to learn whether it was granted must not fence anybody by that.
    pub fn take_over_no_more(&mut self) {
        self.take_over = false;
    }

    /// The message of [`Attachment::ask`]; false if that was not the last, or is answered.
    pub fn emit(&self, transaction: u32, out: &mut Vec<u8>) -> bool {
        if transaction != self.transaction || self.is_granted() {
            return false;
        }
        let known = self.content.map(|c| c.writer_generation).or(self.joins);
        let resume = known.filter(|_| !self.read_only);
        let mut flags = 0;
        if self.read_only {
            flags |= attach_flags::READ_ONLY;
        }
        if self.take_over && resume.is_none() {
            flags |= attach_flags::TAKE_OVER;
        }
        if resume.is_some() {
            flags |= attach_flags::RESUME;
        }
        if self.integrity {
            flags |= attach_flags::INTEGRITY;
        }
        let writer_generation = resume.unwrap_or(0);
        Attach { transaction, flags, writer_generation, export: &self.export }.emit(out);
        true
    }

    /// There is no session any more.
    pub fn part(&mut self) {
        if !matches!(self.state, State::Failed(_)) {
            self.state = State::Apart;
        }
    }

    /// The first attach came to nothing.
    pub fn fail(&mut self, error: AttachError) {
        self.state = State::Failed(error);
    }

    fn expects(&self, transaction: u32) -> bool {
        let asked = matches!(self.state, State::Asked | State::Refused { .. });
        asked && transaction == self.transaction
    }

    /// ATTACHED.
    pub fn on_attached(&mut self, a: &Attached) -> Result<Granted, DropReason> {
        if !self.expects(a.transaction) {
            return Err(DropReason::Unasked);
        }
        self.is_unanswered = false;
        if self.integrity && a.features & feature::INTEGRITY == 0 {
            if !self.is_open() {
                self.state = State::Failed(AttachError::Unchecked);
            }
            return Ok(Granted::Unchecked);
        }
        let identity = Identity { identity: a.identity, incarnation: a.incarnation };
        let known = self.content;
        if let Some(known) = known {
            let other = known.identity != identity
                || known.geometry.block_bytes != a.block_bytes
                || known.geometry.bytes > a.bytes;
            if other {
                self.state = State::Apart;
                return Ok(Granted::OtherContent);
            }
        }
        let geometry = match known {
            // A face has been told a size and abilities: they stay, but that it may grow.
            Some(known) => known.geometry,
            None => Geometry {
                bytes: a.bytes,
                block_bytes: a.block_bytes,
                preferred_bytes: a.preferred_bytes.clamp(a.block_bytes, 1 << 20),
                io_bytes_max: a.io_bytes_max.min(1 << 20),
                features: features(a.features, self.read_only),
            },
        };
        self.content = Some(AttachedVolume {
            geometry,
            identity,
            writer_generation: a.writer_generation,
            idle_generations: a.idle_generations,
            is_held: a.features & feature::HELD != 0,
        });
        (self.handle, self.generation) = (a.attachment, a.generation);
        self.state = State::Granted;
        self.grow(a.bytes);
        if let Some((handle, bytes)) = self.growth.early.take()
            && handle == self.handle()
        {
            self.grow(bytes);
        }
        Ok(if known.is_none() { Granted::First(a.verifier) } else { Granted::Again(a.verifier) })
    }

    /// EVENT with RESIZE: what has this handle is so large now. Events may come again and out of order,
    /// also before the ATTACHED that tells the handle.
    pub fn on_resize(&mut self, handle: (u32, u32), bytes: u64) {
        match self.state {
            State::Granted if handle == self.handle() => self.grow(bytes),
            State::Asked | State::Refused { .. } => {
                let before = self.growth.early.filter(|(other, _)| *other == handle);
                let bytes = before.map_or(bytes, |(_, before)| bytes.max(before));
                self.growth.early = Some((handle, bytes));
            }
            _ => {}
        }
    }

    /// It never shrinks: a volume that did would be other content.
    fn grow(&mut self, bytes: u64) {
        let Some(content) = &mut self.content else { return };
        let geometry = &mut content.geometry;
        if bytes > geometry.bytes && bytes.is_multiple_of(u64::from(geometry.block_bytes)) {
            geometry.bytes = bytes;
            self.growth.count += 1;
        }
    }

    /// How often the volume has grown since the first grant.
    #[inline]
    pub fn growths(&self) -> u64 {
        self.growth.count
    }

    /// Its size, if it has grown since this was called last.
    pub fn take_growth(&mut self) -> Option<u64> {
        let content = self.content.filter(|_| self.growth.told != self.growth.count)?;
        self.growth.told = self.growth.count;
        Some(content.geometry.bytes)
    }

    /// ATTACH_REFUSED.
    pub fn on_refused(
        &mut self,
        now: Time,
        refused: &AttachRefused<'_>,
    ) -> Result<Refusal, DropReason> {
        if !self.expects(refused.transaction) {
            return Err(DropReason::Unasked);
        }
        self.is_unanswered = false;
        let status = Status::from_number(refused.status);
        match status {
            // The export was not to be known of when the session was greeted for, or not yet there. Asked in
            // this session again, it would be refused for ever.
            Status::WrongShard if self.first_error().is_none() => return Ok(Refusal::Elsewhere),
            _ if !self.is_open() => {
                return Ok(self.on_refused_at_first(
                    now,
                    status,
                    refused.text,
                    refused.seconds_left,
                ));
            }
            Status::Fenced => return Ok(Refusal::Lost(ErrorKind::Fenced)),
            Status::OtherContent => return Ok(Refusal::Lost(ErrorKind::ContentChanged)),
            _ => self.state = State::Refused { again_at: now + ASK_AGAIN },
        }
        Ok(Refusal::ForNow)
    }

    /// The target refuses the first attach, or the session for it. Only what may change by itself is
    /// worth asking again, by who is patient.
    pub fn on_refused_at_first(
        &mut self,
        now: Time,
        status: Status,
        text: &str,
        seconds_left: u32,
    ) -> Refusal {
        if self.first_error().is_some() {
            return Refusal::Failed;
        }
        let temporary = matches!(
            status,
            Status::Busy | Status::NotFound | Status::TooMany | Status::ShuttingDown
        );
        if self.wait && temporary {
            // Without a session the attempt to open one goes on by itself.
            if !matches!(self.state, State::Apart) {
                self.state = State::Refused { again_at: now + ASK_AGAIN };
            }
            return Refusal::ForNow;
        }
        self.state = State::Failed(AttachError::Refused {
            status,
            text: text.to_string(),
            seconds_left: (seconds_left != u32::MAX).then_some(seconds_left),
        });
        Refusal::Failed
    }

    /// What it waits for, and until when.
    #[inline]
    pub fn armed(&self) -> Option<(Timer, Time)> {
        match self.state {
            State::Refused { again_at } => Some((Timer::AskAgain, again_at)),
            _ => None,
        }
    }

    /// The timer that is due.
    pub fn due(&self, now: Time) -> Option<Timer> {
        self.armed().and_then(|(timer, at)| (at <= now).then_some(timer))
    }
}

/// Abilities from the wire's bits.
fn features(bits: u8, read_only: bool) -> Features {
    Features {
        read_only: read_only || bits & feature::READ_ONLY != 0,
        discard: bits & feature::DISCARD != 0,
        write_zeroes: bits & feature::WRITE_ZEROES != 0,
        block_status: bits & feature::BLOCK_STATUS != 0,
    }
}
