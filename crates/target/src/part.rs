//! A target as a part of a node.

use thinwire_buffer::{Room, RxFrame, Time};
use thinwire_exports::DoorLetter;
use thinwire_volume::{Closing, Effect, Expects, Gravity, Parcel, Part, PartEvent};

use crate::target::Target;

impl Part for Target {
    #[inline]
    fn on_frame(&mut self, now: Time, link: usize, frame: &mut RxFrame) {
        Target::on_frame(self, now, link, frame);
    }

    fn on_foreign_frame(&mut self, now: Time, link: usize, frame: &mut RxFrame) {
        self.on_guests_frame(now, link, frame);
    }

    fn on_event(&mut self, now: Time, event: PartEvent<'_>) {
        match event {
            PartEvent::Readable | PartEvent::Below => self.disk_ready(),
            PartEvent::Letter { link, frame } => self.on_forward(now, link, frame),
            PartEvent::Parcel(content) => {
                if let Err(content) = self.on_silence(content) {
                    let letter =
                        content.downcast().expect("targets send one another letters of the door");
                    self.on_door_letter(now, *letter);
                }
            }
        }
    }

    fn on_room(&mut self, link: usize, room: Room) {
        self.set_room(link, room);
    }

    /// Volumes that complete at once have their answers in this turn's frames.
    fn settle(&mut self, now: Time) {
        self.poll(now);
    }

    fn close(&mut self, turn: &mut Closing<'_>) -> Time {
        self.end_turn(turn.now, turn.out);
        if self.has_effects() {
            let letters = std::iter::from_fn(|| self.next_forward()).map(Effect::Letter);
            turn.effects.extend(letters);
            let parcel = |letter: DoorLetter| {
                Effect::Parcel(Parcel { shard: letter.to, content: Box::new(letter) })
            };
            let parcels = std::iter::from_fn(|| self.next_door_letter()).map(parcel);
            turn.effects.extend(parcels);
            turn.effects.extend(std::iter::from_fn(|| self.take_silence()));
            let note = |text| Effect::Note(Gravity::Warning, text);
            let notes = std::iter::from_fn(|| self.take_note()).map(note);
            turn.effects.extend(notes);
        }
        self.deadline(turn.now)
    }

    fn expects(&self) -> Expects {
        if self.is_at_work() {
            return Expects::Work;
        }
        self.network_time().map_or(Expects::Nothing, Expects::Answer)
    }
}
