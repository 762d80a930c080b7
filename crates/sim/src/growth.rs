//! Images that grow, while a target serves them or between two lives of it, and what is checked of that:
//! nobody is told of a size that a power failure could take back, and everybody is told in the end.

use thinwire_link::rng::Rng;

use crate::export::Export;
use crate::model::Violation;
use crate::run::is_attached;
use crate::world::World;

/// An image becomes larger by so much at a time, at most.
const STEP_BYTES_MAX: u64 = 256 << 10;
/// And no larger than this in all, so that runs stay short.
const BYTES_MAX: u64 = 4 << 20;

impl Export {
    /// Somebody makes its image larger. Memory does not grow.
    pub fn grow(&mut self, bytes: u64) {
        let Some(medium) = self.medium() else { return };
        medium.grow(bytes);
        self.bytes = bytes;
        let content = self.contents.last_mut().expect("it has one");
        content.bytes_grown = bytes;
        self.models.last_mut().expect("as many as contents").grow(bytes);
    }

    /// A power failure may have taken back what it had grown by.
    pub(crate) fn follow_medium(&mut self) {
        if let Some((bytes, _)) = self.medium().map(|medium| medium.sizes()) {
            self.bytes = bytes;
        }
    }

    /// Whether a client may have been told that a content has so many bytes: if the target loses its
    /// power now, it must still have them.
    pub fn check_size(&self, content: usize, bytes: u64) -> Result<(), Violation> {
        let Some(medium) = self.medium().filter(|_| !self.is_gone(content)) else { return Ok(()) };
        let (_, durable) = medium.sizes();
        if bytes <= durable {
            return Ok(());
        }
        let text = format!("a client was told of {bytes} bytes, of which {durable} are durable");
        Err(Violation(format!("export {}: {text}", self.name)))
    }

    /// Its syncs never fail, so that whatever it grows by is offered.
    fn offers_all(&self) -> bool {
        self.medium().is_some_and(|medium| {
            let config = medium.config();
            config.flush_failure == 0.0 && config.writeback_failure == 0.0 && !self.may_fail
        })
    }
}

impl World {
    /// The image of an export grows a little, if it may become any larger.
    pub fn grow_export(&mut self, export: usize, dice: &mut Rng) {
        let e = &mut self.exports[export];
        let Some((bytes, _)) = e.medium().map(|medium| medium.sizes()) else { return };
        // One that was cut is most dangerous when it is as large again as somebody remembers.
        let before = e.contents.iter().rev().nth(1).map_or(0, |content| content.bytes_grown);
        let bytes = match before > bytes && dice.chance(0.7) {
            true => before + dice.below(2) * 4096,
            false => bytes + dice.between(1, STEP_BYTES_MAX / 4096) * 4096,
        };
        if bytes <= BYTES_MAX {
            e.grow(bytes);
            self.coverage.images_grown += 1;
            self.trace.note(self.now, &self.exports[export].name.clone(), "grows to", bytes);
        }
    }

    /// When images grow in a run of so many ns, and which. None where there are trees: one that begins
    /// anew over a leaf that has grown is another volume.
    pub fn plan_growth(&self, within_ns: u64, dice: &mut Rng) -> Vec<(u64, usize)> {
        let mut all = Vec::new();
        if self.exports.iter().any(|e| e.tree().is_some()) {
            return all;
        }
        for (export, e) in self.exports.iter().enumerate() {
            if e.medium().is_some() && dice.chance(0.3) {
                let times = dice.between(1, 4);
                all.extend((0..times).map(|_| (self.now + dice.between(1, within_ns), export)));
            }
        }
        all
    }

    /// All is well, and has been for more than a second: everybody knows how large its volume is.
    pub fn check_growth(&self) -> Result<(), Violation> {
        for client in self.clients.iter().filter(|client| is_attached(client)) {
            let export = &self.exports[client.export];
            let Some(medium) = export.medium().filter(|_| export.offers_all()) else { continue };
            let told = client.initiator.as_ref().expect("it is attached").known_bytes();
            let (bytes, _) = medium.sizes();
            if told != bytes {
                let text = format!("{} knows of {told} bytes of {bytes}", client.name);
                return Err(Violation(format!("export {}: {text}", export.name)));
            }
        }
        Ok(())
    }
}
