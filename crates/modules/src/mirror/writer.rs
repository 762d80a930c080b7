//! Who may write the mirror as an export, in the labels of all legs in sync. Nobody is told that it is there before each of them has it, or is on record as
//! behind: so whatever leg the mirror is opened from next has it, and none that was dropped before is asked.

use std::collections::VecDeque;

use thinwire_buffer::Pool;
use thinwire_volume::{Completion, ErrorKind, Io, KeptWriter};

use super::{Mirror, MirrorCanary, NAME, bits};
use crate::meta::LABEL_LEAVES_MAX;

#[derive(Default)]
pub(super) struct Writer {
    /// What labels say, or are about to: none has another when users are let in.
    pub kept: Option<KeptWriter>,
    /// Those that come, in the order in which they were asked for.
    waiting: VecDeque<(Io, KeptWriter)>,
    /// For whom it is being written, and which legs have it.
    storing: Option<Io>,
    has_it: u8,
}

impl Writer {
    /// Nothing of it is under way, nor about to be.
    pub fn is_idle(&self) -> bool {
        self.storing.is_none() && self.waiting.is_empty()
    }

    /// The label of a leg was written.
    pub fn on_written(&mut self, leg: usize) {
        self.has_it |= 1 << leg;
    }

    /// All that is asked for.
    pub fn take_all(&mut self) -> impl Iterator<Item = Io> {
        let waiting = std::mem::take(&mut self.waiting).into_iter().map(|(io, _)| io);
        self.storing.take().into_iter().chain(waiting)
    }

    /// What is asked for and not begun.
    pub fn take_waiting(&mut self) -> Vec<Io> {
        self.waiting.drain(..).map(|(io, _)| io).collect()
    }
}

impl Mirror {
    /// Takes what the labels say of legs that have all data: each that was told of is there on all of them.
    pub(super) fn take_writer(&mut self) {
        let says = |leg: usize| self.legs[leg].as_ref().map(|at| at.label.writer.clone());
        self.writer.kept = match self.canary {
            MirrorCanary::RecordOfAnyLeg => (0..self.legs.len()).rev().find_map(says),
            _ => bits(self.in_sync).find_map(says),
        }
        .flatten();
    }

    pub(super) fn load_writer(&mut self, io: &Io) {
        let data = self.writer.kept.clone().unwrap_or_default().to_data(&Pool::new(0));
        self.tell(io, Completion { data, ..Completion::new(io.token, Ok(())) });
    }

    pub(super) fn store_writer(&mut self, io: Io) {
        let refused = match KeptWriter::from_data(&io.data) {
            _ if self.config.read_only => ErrorKind::ReadOnly,
            None => ErrorKind::Invalid,
            Some(kept) if kept.leaves.as_ref().is_some_and(|all| all.len() > LABEL_LEAVES_MAX) => {
                ErrorKind::Unsupported
            }
            Some(kept) => return self.writer.waiting.push_back((io, kept)),
        };
        self.ready.push(Completion::new(io.token, Err(io.error(refused, NAME))));
    }

    /// Labels are to say the next one, if there is one. True if so.
    pub(super) fn begin_store(&mut self) -> bool {
        let Some((io, kept)) = self.writer.waiting.pop_front() else { return false };
        self.writer.kept = Some(kept);
        self.writer.has_it = 0;
        if self.canary == MirrorCanary::RecordToldEarly {
            self.put_ready(Completion::new(io.token, Ok(())));
            return true;
        }
        self.writer.storing = Some(io);
        true
    }

    /// All legs in sync have had their turn, and those that have failed it are dropped, if others are left: it is told when that is on record.
    pub(super) fn end_store(&mut self) {
        let Some(io) = self.writer.storing.take() else { return };
        let is_there = self.writer.has_it & self.in_sync != 0;
        let result = if is_there { Ok(()) } else { Err(io.error(ErrorKind::Io, NAME)) };
        self.tell(&io, Completion::new(io.token, result));
    }
}
