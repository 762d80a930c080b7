//! What arrives: frames outside of sessions, messages within.

use thinwire_buffer::RxFrame;
use thinwire_proto::{DropReason, Sealed, Stage, Time, Unsealed};
use thinwire_volume::ErrorKind;
use thinwire_wire::{Attached, Kind, Message, event_code};

use super::Initiator;
use crate::association::{Answer, Asked};
use crate::attachment::{Granted, Refusal};
use crate::report::AttachError;
use crate::slots::{Outgoing, Owner};

impl Initiator {
    /// The stages of the gate: header, session, unsealing, messages. Nothing changes before a frame is
    /// unsealed.
    pub(super) fn take_frame(
        &mut self,
        now: Time,
        link: usize,
        rx: &mut RxFrame,
    ) -> Result<(), DropReason> {
        let sealed = Sealed::look(rx).map_err(DropReason::Frame)?;
        let kind = sealed.header().kind;
        let mut keyed = None;
        if kind.is_numbered() {
            let session = self.association.session_of(sealed.header().session)?;
            keyed = session.has_keys().then_some(session);
        }
        let copied = &mut self.requests.slots().copied_bytes;
        let frame = if let Some(session) = keyed {
            session.open(now, link, sealed, &self.pool.for_received(), copied)?
        } else {
            match sealed.unseal(&self.pool.for_received(), copied) {
                Ok(frame) => frame,
                Err(error) => return Err(DropReason::Frame(error)),
            }
        };
        if !kind.is_numbered() {
            return self.greeted(now, link, &frame);
        }
        let session = self.association.session_mut().expect("just found");
        if kind != Kind::Session {
            return match frame.messages().next() {
                Some(Message::Probe(probe)) => {
                    let sizes = self.association.frame_bytes(&self.config, link);
                    let session = self.association.session_mut().expect("just found");
                    session.on_probe(now, link, &frame, &probe, sizes)
                }
                Some(Message::ProbeReply(reply)) => {
                    session.on_probe_reply(now, link, &frame, &reply)
                }
                _ => Err(DropReason::Direction),
            };
        }
        let slots = self.requests.slots();
        let mut content = Outgoing { slots, attachment: &self.attachment };
        session.accept(now, link, &frame, &mut content)?;
        for message in frame.messages() {
            if let Err(reason) = self.on_message(now, &message, frame.rx()) {
                self.drops.count(reason);
            }
        }
        Ok(())
    }

    /// A frame of no session: nothing is known of who sent it but what it says.
    fn greeted(&mut self, now: Time, link: usize, frame: &Unsealed<'_>) -> Result<(), DropReason> {
        let (config, association) = (&self.config, &mut self.association);
        let (is_open, is_granted) = (self.attachment.is_open(), self.attachment.is_granted());
        let from = Asked { link, from: frame.from(), id: frame.header().session };
        match frame.messages().next() {
            Some(Message::Offer(offer)) => association.on_offer(now, config, from, &offer, is_open),
            Some(Message::Retry(retry)) => association.on_retry(now, config, from, &retry),
            Some(Message::Welcome(welcome)) => {
                let answer = association.on_welcome(now, config, from, &welcome, is_granted)?;
                self.on_answer(now, answer);
                Ok(())
            }
            Some(Message::Refuse(refuse)) => {
                let answer = association.on_refuse(config, from, &refuse)?;
                self.on_answer(now, answer);
                Ok(())
            }
            Some(Message::KeyedAnswer(answer)) => {
                let pool = &self.pool;
                let answer =
                    association.on_keyed_answer(now, config, from, &answer, is_granted, pool)?;
                self.on_answer(now, answer);
                Ok(())
            }
            Some(Message::UnknownSession(unknown)) => {
                association.on_unknown_session(now, unknown.session)
            }
            _ => Err(DropReason::Direction),
        }
    }

    pub(super) fn on_message(
        &mut self,
        now: Time,
        message: &Message<'_>,
        frame: &RxFrame,
    ) -> Result<(), DropReason> {
        // A message before this one may have ended the session.
        let session = self.association.session_mut().ok_or(DropReason::UnknownSession)?;
        let slots = self.requests.slots();
        if session.on_message(now, message, &mut Outgoing { slots, attachment: &self.attachment }) {
            return Ok(());
        }
        match message {
            Message::Data(data) => {
                let is_spare = self.pool.stats().received_bytes <= self.config.lent_bytes_max;
                let slots = self.requests.slots();
                if slots.on_data(data, frame, is_spare, &self.pool)? {
                    self.finish(data.slot);
                }
            }
            Message::Complete(complete) => {
                if self.requests.slots().on_complete(complete)? {
                    self.finish(complete.slot);
                }
            }
            Message::Sums(sums) => {
                if self.requests.slots().on_sums(sums, &self.pool)? {
                    self.finish(sums.slot);
                }
            }
            Message::ResetDone(done) => {
                self.requests.slots().on_reset_done(done.slot, done.sequence)?;
            }
            Message::Attached(attached) => self.on_attached(now, attached)?,
            Message::AttachRefused(refused) => match self.attachment.on_refused(now, refused)? {
                Refusal::ForNow => self.association.set_hint(Some(refused.text.to_owned())),
                Refusal::Failed => self.association.rest(),
                Refusal::Lost(kind) => self.die(kind),
                Refusal::Elsewhere => self.leave_session(now),
            },
            Message::Event(event) => {
                let ours = (event.attachment, event.generation) == self.attachment.handle();
                match event.code {
                    event_code::FENCED if ours => self.die(ErrorKind::Fenced),
                    event_code::RESIZE => {
                        let handle = (event.attachment, event.generation);
                        self.attachment.on_resize(handle, event.value);
                    }
                    _ => {}
                }
            }
            Message::Detached(_) if self.closing.is_told() => self.finish_closing(),
            Message::Bye(_) => self.on_bye(now),
            Message::Clocks(clocks) if self.clocks_asked == Some(clocks.transaction) => {
                self.clocks = Some(*clocks);
            }
            Message::Clocks(_) => return Err(DropReason::Unasked),
            _ => return Err(DropReason::Direction),
        }
        Ok(())
    }

    /// The request in this slot is finished.
    fn finish(&mut self, slot: u16) {
        let Some(finished) = self.requests.slots().take_finished(slot) else { return };
        let (user, op) = (matches!(finished.io.owner, Owner::User(_)), finished.io.op);
        self.on_finished(finished);
        if user {
            self.cross(Stage::Finished, op);
        }
    }

    fn on_attached(&mut self, now: Time, attached: &Attached) -> Result<(), DropReason> {
        let writer = self.attachment.content().map(|content| content.writer_generation);
        match self.attachment.on_attached(attached)? {
            Granted::First(verifier) => self.durability.begin(verifier),
            Granted::Again(verifier) => {
                // Beside who only reads others write, and nobody tells which of them has; a writer resumes what it had.
                let is_other = writer != Some(attached.writer_generation);
                self.strangers += u64::from(self.config.read_only || is_other);
                self.durability.on_verifier(verifier);
            }
            Granted::OtherContent => {
                self.die(ErrorKind::ContentChanged);
                return Ok(());
            }
            Granted::Unchecked if self.attachment.is_open() => {
                self.leave_session(now);
                return Ok(());
            }
            Granted::Unchecked => {
                self.say_bye();
                self.association.rest();
                return Ok(());
            }
        }
        self.association.set_hint(None);
        self.watch_connection(now);
        Ok(())
    }

    /// What a greeting came to. That no session is opened means for one that has been open to ask again.
    fn on_answer(&mut self, now: Time, answer: Answer) {
        match answer {
            Answer::Entered(slots) => self.enter_session(slots),
            Answer::Waits => {}
            Answer::Ambiguous(addresses) => {
                self.attachment.fail(AttachError::Ambiguous(addresses));
            }
            Answer::Refused(_, text) if self.attachment.is_open() => {
                self.association.set_hint(Some(text));
            }
            Answer::Refused(status, text) => {
                let refusal = self.attachment.on_refused_at_first(now, status, &text, u32::MAX);
                if refusal == Refusal::Failed {
                    self.association.rest();
                }
            }
        }
    }
}
