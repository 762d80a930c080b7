//! Attaching: from the message to the door, and the door's answers back
//! (`docs/protocol.md`, "Attachments"; rules 3 and 7). Who may write is decided behind the door.

use thinwire_exports::{
    Denial, Denied, Granted, InitiatorRun, NoEntry, Pass, User, Users, WriteClaim,
};
use thinwire_proto::{Item, Time};
use thinwire_wire::{
    Attach, Attached, Detach, Detached, Event, Message, Status, attach_flags, event_code, feature,
};

use crate::access::Right;
use crate::answers::Answer;
use crate::greet::SESSION_NUMBER;
use crate::guests::{Guests, guest_of};
use crate::house::House;
use crate::peer::Peer;
use crate::slots::REQUEST_BYTES_MAX;

/// Exports that one session may have open.
pub(crate) const ATTACHMENTS_MAX: usize = 64;

impl House {
    pub fn on_attach(&mut self, now: Time, peer: &mut Peer, attach: &Attach<'_>) {
        let transaction = attach.transaction;
        if peer.slots.answers.get(transaction).is_some() {
            return peer.session.send(Item::AttachAnswer(transaction));
        }
        let session = peer.session.local_id();
        if self.exports.is_waiting(session, transaction) {
            return;
        }
        if peer.slots.answers.is_forgotten(transaction) {
            // It may have been granted and detached since: to grant it again would fence what the
            // session has now.
            let text = format!("attach {transaction} of this session comes too late: ask anew");
            return refuse(peer, transaction, Status::Busy, 1, text);
        }
        if let Err(over) = self.may_attach(peer) {
            return refuse(peer, transaction, Status::TooMany, 0, over.to_string());
        }
        if self.exports.open_count(session) >= ATTACHMENTS_MAX {
            let text = "this session has too many attachments".to_string();
            return refuse(peer, transaction, Status::TooMany, 0, text);
        }
        let right = match (&self.config.keys, &peer.keyed) {
            (Some(keys), Some(keyed)) => keys.right_of(&keyed.principal, attach.export),
            _ => Right::Write,
        };
        if right == Right::Nothing {
            // Not told from one that is not there: what it may not open, it may not know of.
            return no_such_export(peer, &self.config.node, attach);
        }
        let Some(export) = self.exports.find(attach.export) else {
            if let Some(shard) = self.other_shard(attach.export) {
                let text = format!(
                    "export {} is served by shard {shard} of node {}: a session for it begins with \
                     a greeting that names it",
                    attach.export, self.config.node
                );
                return refuse(peer, transaction, Status::WrongShard, 0, text);
            }
            if self.exports.open_count(session) == 0 && self.is_fenced(attach.export) {
                // Whoever serves it by now is looked for again; one that uses others here is told, and they go on.
                peer.ended = true;
                return;
            }
            return no_such_export(peer, &self.config.node, attach);
        };
        let has = |flag| attach.flags & flag != 0;
        if has(attach_flags::INTEGRITY) {
            let lives = |pass| {
                !matches!(self.exports.admit(session, pass), Err(NoEntry::NoPass | NoEntry::Fenced))
            };
            peer.checked.ask(transaction, lives);
        }
        if right == Right::Read && !has(attach_flags::READ_ONLY) {
            let text = format!("this key may only read export {}", attach.export);
            return refuse(peer, transaction, Status::ReadOnly, 0, text);
        }
        if has(attach_flags::READ_ONLY) {
            if let Some(granted) = self.exports.attach_read(session, transaction, export) {
                grant(peer, &mut self.room_changed, transaction, &granted);
            }
            return;
        }
        let user = peer.user();
        let resumes = has(attach_flags::RESUME).then_some(attach.writer_generation);
        let takes_over = has(attach_flags::TAKE_OVER);
        let claim = WriteClaim { user: &user, transaction, export, resumes, takes_over };
        if let Err(denied) = self.exports.claim(now, claim) {
            deny(peer, transaction, denied);
        }
    }

    /// An orderly end: the export is free for everybody. True if that is to be said at once; else it
    /// is when it is on record.
    pub fn detach(&mut self, peer: &mut Peer, detach: &Detach) -> bool {
        let pass = Pass { number: detach.attachment, generation: detach.generation };
        peer.checked.on_closed(pass);
        self.exports.close(peer.session.local_id(), pass, detach.transaction)
    }
}

/// The sessions of a target in front of the door.
pub(crate) struct Sessions<'a> {
    pub peers: &'a mut [Option<Box<Peer>>],
    /// See [`House::room_changed`].
    pub room_changed: &'a mut bool,
    /// Those of other protocols.
    pub guests: &'a mut Guests,
}

impl Sessions<'_> {
    fn get(&mut self, session: u64) -> Option<&mut Peer> {
        let index = ((session >> 32) as u32 & SESSION_NUMBER) as usize;
        let peer = self.peers.get_mut(index)?.as_deref_mut()?;
        (peer.session.local_id() == session).then_some(peer)
    }

    fn of(&mut self, run: InitiatorRun) -> impl Iterator<Item = &mut Box<Peer>> {
        self.peers.iter_mut().flatten().filter(move |peer| peer.run() == run)
    }
}

impl Users for Sessions<'_> {
    fn is_there(&mut self, session: u64) -> bool {
        self.get(session).is_some() || guest_of(self.guests, session).is_some()
    }

    fn ask(&mut self, now: Time, run: InitiatorRun) -> bool {
        let mut asked = false;
        for peer in self.of(run) {
            peer.session.ask(now);
            // Sent again until it is acknowledged, which is an answer, too.
            peer.session.send(Item::Ping);
            asked = true;
        }
        self.guests.iter_mut().for_each(|guest| asked |= guest.ask(now, run));
        asked
    }

    fn has_answered(&mut self, run: InitiatorRun, since: Time) -> bool {
        self.of(run).any(|peer| peer.session.answered_since(since))
            || self.guests.iter_mut().any(|guest| guest.has_answered(run, since))
    }

    fn on_granted(&mut self, session: u64, transaction: u32, granted: &Granted) {
        let mut room_changed = false;
        if let Some(peer) = self.get(session) {
            grant(peer, &mut room_changed, transaction, granted);
        } else if let Some(guest) = guest_of(self.guests, session) {
            guest.on_granted(session, transaction, granted);
        }
        *self.room_changed |= room_changed;
    }

    fn on_denied(&mut self, session: u64, transaction: u32, denied: Denied) {
        if let Some(peer) = self.get(session) {
            deny(peer, transaction, denied);
        } else if let Some(guest) = guest_of(self.guests, session) {
            guest.on_denied(session, transaction, denied);
        }
    }

    fn on_closed(&mut self, session: u64, transaction: u32) {
        if let Some(peer) = self.get(session) {
            peer.session.send(Item::said(Message::Detached(Detached { transaction })));
        } else if let Some(guest) = guest_of(self.guests, session) {
            guest.on_closed(session, transaction);
        }
    }

    /// Those of the same run know already.
    fn on_fenced(&mut self, session: u64, pass: Pass, by: InitiatorRun, writer_generation: u64) {
        if let Some(guest) = guest_of(self.guests, session) {
            return guest.on_fenced(session, pass, by, writer_generation);
        }
        if let Some(peer) = self.get(session).filter(|peer| peer.run() != by) {
            peer.session.send(Item::said(Message::Event(Event {
                code: event_code::FENCED,
                attachment: pass.number,
                generation: pass.generation,
                value: writer_generation,
            })));
        }
    }

    fn on_resized(&mut self, session: u64, pass: Pass, bytes: u64) {
        if let Some(guest) = guest_of(self.guests, session) {
            return guest.on_resized(session, pass, bytes);
        }
        if let Some(peer) = self.get(session) {
            peer.session.send(Item::said(Message::Event(Event {
                code: event_code::RESIZE,
                attachment: pass.number,
                generation: pass.generation,
                value: bytes,
            })));
        }
    }
}

impl Peer {
    fn run(&self) -> InitiatorRun {
        InitiatorRun { initiator: self.initiator, instance: self.instance }
    }

    fn user(&self) -> User {
        let session = self.session.local_id();
        let (run, member) = (self.run(), self.member);
        let (number, name) = (self.number, self.name.clone());
        User { session, number, run, member, is_leased: true, name }
    }
}

fn grant(peer: &mut Peer, room_changed: &mut bool, transaction: u32, granted: &Granted) {
    *room_changed |= !std::mem::replace(&mut peer.was_attached, true);
    let Granted { pass, geometry, identity, verifier, .. } = *granted;
    let Granted { writer_generation, idle_generations, is_held, .. } = *granted;
    let f = geometry.features;
    let bits = [
        (f.read_only, feature::READ_ONLY),
        (f.discard, feature::DISCARD),
        (f.write_zeroes, feature::WRITE_ZEROES),
        (f.block_status, feature::BLOCK_STATUS),
        (is_held, feature::HELD),
    ];
    let mut features = bits.iter().filter(|(has, _)| *has).fold(0, |all, (_, bit)| all | bit);
    if peer.checked.on_granted(transaction, pass) {
        features |= feature::INTEGRITY;
    }
    peer.slots.answers.add(Answer::Granted(Attached {
        transaction,
        attachment: pass.number,
        generation: pass.generation,
        block_bytes: geometry.block_bytes,
        preferred_bytes: geometry.preferred_bytes,
        io_bytes_max: geometry.io_bytes_max.min(REQUEST_BYTES_MAX as u32),
        bytes: geometry.bytes,
        identity: identity.identity,
        incarnation: identity.incarnation,
        writer_generation,
        idle_generations,
        verifier,
        features,
    }));
    peer.session.send(Item::AttachAnswer(transaction));
}

fn deny(peer: &mut Peer, transaction: u32, denied: Denied) {
    let status = match denied.why {
        Denial::Busy => Status::Busy,
        Denial::ReadOnly => Status::ReadOnly,
        Denial::Fenced => Status::Fenced,
        Denial::OtherContent => Status::OtherContent,
        Denial::Record => Status::Io,
    };
    refuse(peer, transaction, status, denied.seconds_left, denied.text);
}

fn no_such_export(peer: &mut Peer, node: &str, attach: &Attach<'_>) {
    let may_open = if peer.keyed.is_some() { " that this key may open" } else { "" };
    let text = format!("node {node} has no export {}{may_open}", attach.export);
    refuse(peer, attach.transaction, Status::NotFound, 0, text);
}

fn refuse(peer: &mut Peer, transaction: u32, status: Status, seconds_left: u32, text: String) {
    peer.checked.on_denied(transaction);
    peer.slots.answers.add(Answer::Refused {
        transaction,
        status: status as u16,
        seconds_left,
        text,
    });
    peer.session.send(Item::AttachAnswer(transaction));
}
