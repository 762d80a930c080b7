//! One session of a target.

use thinwire_buffer::{Addr, RxFrame};
use thinwire_proto::{DropReason, Item, SMALL_BYTES, Session, StageSums, Time, Unsealed};
use thinwire_wire::{Bye, Clocks, Detached, Message, OpCode, Request, Status};

use crate::checked::Checked;
use crate::house::House;
use crate::keyed::Keyed;
use crate::slots::{Intake, Slots};
use crate::together::Together;

/// The other end of a session, as the target sees it.
pub(crate) struct Peer {
    pub session: Session,
    pub slots: Slots,
    /// There if completions wait for those of the other requests of their frame.
    pub together: Option<Together>,
    pub initiator: [u8; 16],
    pub instance: u64,
    /// Which of the sessions of that run that stand side by side.
    pub member: u8,
    pub nonce: u64,
    /// There if a key opened it.
    pub keyed: Option<Keyed>,
    /// The link and the address that its HELLO came from.
    pub place: (usize, Addr),
    /// How many sessions this target had opened before.
    pub number: u64,
    pub name: String,
    pub created: Time,
    /// A frame of the session has arrived: its initiator has the id.
    pub confirmed: bool,
    /// It has been granted an export: until then nothing that it sends is kept.
    pub was_attached: bool,
    /// It has taken the place of one in which something was attached.
    pub comes_back: bool,
    /// What of it has data checked.
    pub checked: Checked,
    /// Set when the session is over.
    pub ended: bool,
}

impl Peer {
    /// Acts on the messages of an accepted frame.
    pub fn on_messages(
        &mut self,
        now: Time,
        index: usize,
        frame: &Unsealed<'_>,
        house: &mut House,
    ) {
        if let Some(together) = &mut self.together {
            together.begin_frame();
        }
        for message in frame.messages() {
            if self.ended {
                return;
            }
            if let Err(reason) = self.on_message(now, index, &message, frame.rx(), house) {
                house.stats.drops.count(reason);
            }
        }
        if let Some(together) = &mut self.together {
            together.end_frame(|items| self.session.send_batched(now, items, 0));
        }
    }

    fn on_message(
        &mut self,
        now: Time,
        index: usize,
        message: &Message<'_>,
        rx: &RxFrame,
        house: &mut House,
    ) -> Result<(), DropReason> {
        if self.session.on_message(now, message, &mut self.slots) {
            return Ok(());
        }
        match message {
            Message::Request(request) => {
                let (slot, sequence) = (request.slot, request.sequence);
                match self.slots.on_request(request)? {
                    Intake::Taken => {
                        let together = self.together.as_mut().filter(|_| is_batched(request));
                        let group = together.and_then(Together::join);
                        self.slots.get(slot).group = group;
                        house.try_execute(self, index, slot);
                    }
                    Intake::Repeated => {
                        house.stats.repeated += 1;
                        return self.answer(Item::Complete { slot, sequence });
                    }
                }
            }
            Message::Data(data) => {
                if !self.was_attached {
                    return Err(DropReason::Attachment);
                }
                let before = self.slots.copied_bytes;
                let taken = self.slots.on_data(data, rx, &house.pool);
                house.stats.copied_bytes += self.slots.copied_bytes - before;
                taken?;
                house.try_execute(self, index, data.slot);
            }
            Message::Sums(sums) => {
                if !self.checked.any() {
                    return Err(DropReason::Attachment);
                }
                self.slots.on_sums(sums, &house.pool)?;
                house.try_execute(self, index, sums.slot);
            }
            Message::Reset(reset) => {
                if self.slots.on_reset(reset)? {
                    let (slot, sequence) = (reset.slot, reset.sequence);
                    house.fair.remove(index, slot);
                    let group = self.slots.get(slot).group.take();
                    if let (Some(together), Some(group)) = (&mut self.together, group) {
                        let session = &mut self.session;
                        together.leave(group, None, |items| session.send_batched(now, items, 0));
                    }
                    return self.answer(Item::ResetDone { slot, sequence });
                }
            }
            Message::Attach(attach) => {
                house.on_attach(now, self, attach);
                return self.check_overrun();
            }
            Message::Detach(detach) => {
                if house.detach(self, detach) {
                    let transaction = detach.transaction;
                    return self.answer(Item::said(Message::Detached(Detached { transaction })));
                }
            }
            Message::AskClocks(ask) => {
                let observer = house.observer.as_ref().ok_or(DropReason::Direction)?;
                self.slots.clocks = Some(clocks(ask.transaction, observer.ask(ask.kind)));
                return self.answer(Item::Clocks(ask.transaction));
            }
            Message::Bye(Bye { .. }) => self.ended = true,
            _ => return Err(DropReason::Direction),
        }
        Ok(())
    }

    /// Queues the answer to what may be asked as often as the peer likes.
    fn answer(&mut self, item: Item) -> Result<(), DropReason> {
        self.session.send(item);
        self.check_overrun()
    }

    /// A peer that takes no answers in must not make us keep them. What it asks for has been
    /// acknowledged, so that nothing of it may be left out in a session that goes on: this one ends.
    fn check_overrun(&mut self) -> Result<(), DropReason> {
        if self.session.is_overrun() || self.slots.answers.is_overrun() {
            self.ended = true;
            return Err(DropReason::Overrun);
        }
        Ok(())
    }

    /// Says goodbye; the session is over once that is sent.
    pub fn say_bye(&mut self, status: Status) {
        let bye = Bye { status: status as u16 };
        self.session.send(Item::said(Message::Bye(bye)));
    }
}

/// Only reads and writes are batched, and small ones: others of their frame, which may take long,
/// must not hold up their answers.
fn is_batched(request: &Request) -> bool {
    let op = OpCode::from_number(request.op);
    matches!(op, Some(OpCode::Read | OpCode::Write)) && u64::from(request.length) <= SMALL_BYTES
}

fn clocks(transaction: u32, sums: StageSums) -> Clocks {
    let StageSums { clock, requests, arrived, received, taken, .. } = sums;
    let StageSums { first: submitted, second: stored, sent, handed_over, .. } = sums;
    Clocks {
        transaction,
        clock,
        requests,
        arrived,
        received,
        taken,
        submitted,
        stored,
        sent,
        handed_over,
    }
}
