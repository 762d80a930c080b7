//! An initiator, and a search, as parts of a node.

use thinwire_buffer::{Room, RxFrame, Time};
use thinwire_volume::{Closing, Expects, Part, Volume};

use crate::{Discovery, Initiator};

impl Part for Initiator {
    fn volume(&mut self) -> Option<&mut dyn Volume> {
        Some(self)
    }

    #[inline]
    fn on_frame(&mut self, now: Time, link: usize, frame: &mut RxFrame) {
        Initiator::on_frame(self, now, link, frame);
    }

    fn on_room(&mut self, link: usize, room: Room) {
        self.set_room(link, room);
    }

    fn close(&mut self, turn: &mut Closing<'_>) -> Time {
        self.turn(turn.now, turn.out);
        self.tell(turn.now, turn.effects);
        // What has just come to its end waits to be taken up.
        if self.has_completions() { turn.now } else { self.deadline(turn.now) }
    }

    fn expects(&self) -> Expects {
        if self.is_amid_answer() {
            return Expects::Rest;
        }
        self.network_time().map_or(Expects::Nothing, Expects::Answer)
    }
}

impl Part for Discovery {
    fn on_frame(&mut self, _: Time, link: usize, frame: &mut RxFrame) {
        Discovery::on_frame(self, link, frame);
    }

    fn close(&mut self, turn: &mut Closing<'_>) -> Time {
        self.turn(turn.now, turn.out);
        self.deadline()
    }
}
