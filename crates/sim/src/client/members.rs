//! An attachment of several members: sessions of one run side by side, and the volume to which I/O is dealt.
//! The first is there before the others are made, and ends behind them.

use thinwire_initiator::{Initiator, InitiatorConfig};
use thinwire_link::rng::Rng;
use thinwire_modules::Dealt;
use thinwire_node::{Lane, SESSION_OFFSET};
use thinwire_proto::Time;
use thinwire_volume::Volume;

use super::process::ClientProcess;
use crate::gateway::LANES;

/// Of the dice that deal lanes.
const LANES_OF: u64 = 0x6d65_6d62_6572;

/// No frame comes to a member for a while, and the others go on.
#[derive(Clone, Copy, Debug)]
pub struct MemberCut {
    /// From when, and until when, in ns.
    pub within: (u64, u64),
    /// Of which.
    pub member: u8,
}

/// What a process knows of the members that it makes.
pub(super) struct Members {
    wanted: usize,
    config: InitiatorConfig,
    dice: Rng,
    is_closing: bool,
    /// They are not one volume: it was replaced between two attaches.
    are_different: bool,
}

impl Members {
    pub fn new(wanted: u8, config: &InitiatorConfig, seed: u64) -> Self {
        let wanted = usize::from(wanted);
        let dice = Rng::new(seed ^ LANES_OF);
        Members { wanted, config: config.clone(), dice, is_closing: false, are_different: false }
    }
}

/// Whether a frame is for a member, by the lane that it was given.
pub(super) fn is_for(frame: &[u8], member: u8) -> bool {
    let lane = frame.get(SESSION_OFFSET..SESSION_OFFSET + 4);
    let lane = lane.and_then(|lane| lane.try_into().ok()).map(u32::from_be_bytes);
    lane.is_some_and(|lane| LANES.contains(&lane) && lane as u8 == member)
}

impl ClientProcess {
    /// All members that are wanted have been made.
    pub(super) fn is_complete(&self) -> bool {
        let members = self.members.as_ref();
        members.is_none_or(|members| self.initiators.len() == members.wanted)
    }

    /// One of several members, or to be.
    pub(super) fn has_members(&self) -> bool {
        self.members.is_some()
    }

    /// Its members are not of one volume, and nothing stands on them.
    pub(super) fn is_undone(&self) -> bool {
        self.members.as_ref().is_some_and(|members| members.are_different)
    }

    pub(super) fn add_member(&mut self, now: u64, generation: u64) {
        let member = self.initiators.len() as u8;
        let members = self.members.as_mut().expect("it has some");
        let mut config = members.config.clone();
        (config.member, config.member_generation) = (member, generation);
        config.lane =
            LANES.start() | (members.dice.bits() as u32 & 0xffff << 8) | u32::from(member);
        let seed = members.dice.bits();
        let lane = Lane { sessions: config.lane..=config.lane, outside: true };
        self.attach(now, config, &lane, seed);
    }

    /// Makes the others once the first is there, and ends it once they have ended.
    pub(super) fn follow_members(&mut self, now: u64) {
        let Some(members) = &self.members else { return };
        let first: &Initiator = self;
        let is_there = first.is_open() && first.failure().is_none() && !first.is_closed();
        if members.is_closing {
            if self.each().skip(1).all(Initiator::is_closed) {
                self.close_first();
            }
        } else if is_there && !self.is_complete() {
            let is_read_only = members.config.read_only;
            let generation = first.report(Time(now)).writer_generation;
            while !self.is_complete() {
                self.add_member(now, if is_read_only { 0 } else { generation });
            }
        }
    }

    pub(super) fn close_members(&mut self) {
        let members = self.members.as_mut().expect("it has some");
        members.is_closing = true;
        let mut is_first = true;
        self.for_each(|initiator| match std::mem::replace(&mut is_first, false) {
            true => initiator.begin_close(),
            false => initiator.close(),
        });
        if self.initiators.len() == 1 {
            self.close_first();
        }
    }

    fn close_first(&mut self) {
        let mut is_first = true;
        self.for_each(|initiator| {
            if std::mem::replace(&mut is_first, false) {
                initiator.close();
            }
        });
    }

    /// What I/O is dealt to, once all are open.
    pub(super) fn deal(&mut self) -> Option<Box<dyn Volume>> {
        let ClientProcess { node, initiators, members, .. } = self;
        let ports = initiators.iter().map(|&at| Box::new(node.port(at)) as Box<dyn Volume>);
        let dealt = Dealt::new(ports.collect()).ok();
        members.as_mut().expect("it has some").are_different = dealt.is_none();
        dealt.map(|dealt| Box::new(dealt) as Box<dyn Volume>)
    }
}
