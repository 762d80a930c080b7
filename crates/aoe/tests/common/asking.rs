//! Stations that send one frame, and what they are told.

use std::time::Duration;

use thinwire_buffer::Addr;
use thinwire_wire::aoe::{
    AoeCommand, AtaCommand, Body, DATA_OFFSET, Directive, DirectiveCommand, MaskCommand, MaskList,
    Reservation, ReserveCommand,
};

use super::{SERVER, Seen, World, stamp};

/// How a frame was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// Done, with this data behind the registers.
    Done(Vec<u8>),
    /// The drive refuses, with this error register.
    Drive(u8),
    /// The server refuses, for this reason.
    Server(u8),
    /// Not at all.
    Nothing,
}

/// Stations in a list.
pub type Macs = Vec<[u8; 6]>;

pub const RESERVED: Told = Told::Server(6);

impl Told {
    pub fn of(answers: &[Seen]) -> Told {
        let [answer] = answers else {
            assert!(answers.is_empty(), "{answers:?}");
            return Told::Nothing;
        };
        if answer.header.is_error {
            return Told::Server(answer.header.error);
        }
        let registers = answer.registers.expect("an ATA command");
        match registers.is_done() {
            true => Told::Done(answer.bytes[DATA_OFFSET..].to_vec()),
            false => Told::Drive(registers.error_feature),
        }
    }

    pub fn is_done(&self) -> bool {
        matches!(self, Told::Done(_))
    }
}

impl World {
    pub fn told(&mut self, from: Addr, bytes: &[u8]) -> Told {
        Told::of(&self.ask(from, bytes))
    }

    /// A station writes 8 sectors.
    pub fn raw_write(&mut self, from: Addr, sector: u64, version: u8) -> Told {
        let frame = self.ata(AtaCommand::WriteSectorsExt, sector, 8, &stamp(sector, 8, version));
        self.told(from, &frame)
    }

    /// A station reads 8 sectors.
    pub fn raw_read(&mut self, from: Addr, sector: u64) -> Told {
        let frame = self.ata(AtaCommand::ReadSectorsExt, sector, 8, &[]);
        self.told(from, &frame)
    }

    pub fn raw_flush(&mut self, from: Addr) -> Told {
        let frame = self.ata(AtaCommand::FlushCacheExt, 0, 0, &[]);
        self.told(from, &frame)
    }

    /// Reserve/Release: the list as it is now, or why not; `None` if nothing was said.
    pub fn reserve(
        &mut self,
        from: Addr,
        command: ReserveCommand,
        macs: &[[u8; 6]],
    ) -> Option<Result<Macs, u8>> {
        let body = Body::Reserve(Reservation::new(command, macs));
        let frame = self.request(AoeCommand::Reserve, &body);
        self.ask(from, &frame).pop().map(|answer| match answer.body() {
            Body::Reserve(told) => Ok(told.macs.to_vec()),
            _ => Err(answer.header.error),
        })
    }

    /// MAC Mask List: the list as it is now, or the error and how many were executed before.
    pub fn mask(
        &mut self,
        from: Addr,
        command: MaskCommand,
        directives: &[[u8; 8]],
    ) -> Option<Result<Macs, (u8, u8)>> {
        let body = Body::Mask(MaskList::new(command, directives));
        let frame = self.request(AoeCommand::MaskList, &body);
        self.ask(from, &frame).pop().map(|answer| match answer.body() {
            Body::Mask(told) if told.error == 0 => {
                Ok(told.iter().map(|directive| directive.mac).collect())
            }
            Body::Mask(told) => Err((told.error, told.executed)),
            _ => Err((answer.header.error, u8::MAX)),
        })
    }

    /// What the server has said to a station since then, in so much time.
    pub fn said_to(&mut self, to: Addr, time: Duration) -> Vec<Seen> {
        let before = self.seen.len();
        self.pass(time);
        let seen = self.seen[before..].iter();
        seen.filter(|seen| seen.from == SERVER && seen.to == to).cloned().collect()
    }
}

pub fn add(mac: [u8; 6]) -> [u8; 8] {
    Directive::new(DirectiveCommand::Add, mac).to_bytes()
}

pub fn delete(mac: [u8; 6]) -> [u8; 8] {
    Directive::new(DirectiveCommand::Delete, mac).to_bytes()
}
