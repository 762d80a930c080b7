//! Images that grow, while a target serves them or between two lives of it, and what is checked of that:
//! nobody is told of a size that a power failure could take back, and everybody is told in the end.

use thinwire_link::rng::Rng;

use crate::export::{Export, Store};
use crate::medium::MediumHandle;
use crate::model::Violation;
use crate::run::is_attached;
use crate::tree::{TreeLeaf, TreeStore};
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
        self.has_grown(bytes);
    }

    fn has_grown(&mut self, bytes: u64) {
        self.bytes = bytes;
        // A tree has no content before it is opened for the first time.
        if let (Some(content), Some(model)) = (self.contents.last_mut(), self.models.last_mut()) {
            content.bytes_grown = bytes;
            model.grow(bytes);
        }
    }

    /// How many bytes it has now, and how many a power failure would leave.
    fn sizes(&self) -> Option<(u64, u64)> {
        self.medium().map(MediumHandle::sizes).or(self.tree().map(TreeStore::sizes))
    }

    /// A power failure may have taken back what it had grown by.
    pub(crate) fn follow_medium(&mut self) {
        if let Some((bytes, _)) = self.sizes() {
            self.bytes = bytes;
        }
    }

    /// Whether a client may have been told that a content has so many bytes: if the target loses its
    /// power now, it must still have them.
    pub fn check_size(&self, content: usize, bytes: u64) -> Result<(), Violation> {
        let Some((_, durable)) = self.sizes().filter(|_| !self.is_gone(content)) else {
            return Ok(());
        };
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
    /// The last leaf of a tree becomes so large, wherever it is, and the tree with it. Memory does not
    /// grow; nor do the other leaves: a tree that begins anew over one that has grown is another volume.
    pub fn grow_tree(&mut self, tree: usize, leaf_bytes: u64) {
        match self.exports[tree].tree().and_then(|tree| tree.leaves.last()) {
            Some(TreeLeaf::File(medium)) => medium.grow(leaf_bytes),
            Some(&TreeLeaf::Remote { export, .. }) => self.exports[export].grow(leaf_bytes),
            Some(TreeLeaf::Memory { .. }) | None => return,
        }
        let (bytes, _) = self.exports[tree].sizes().expect("it is one");
        self.exports[tree].has_grown(bytes);
    }

    /// The image of an export, or the last leaf of a tree, grows a little, if it may become any larger.
    pub fn grow_export(&mut self, export: usize, dice: &mut Rng) {
        let e = &mut self.exports[export];
        let last = e.tree().and_then(|tree| tree.leaves.last());
        let medium = last.map_or(e.medium(), TreeLeaf::medium);
        let Some(medium) = medium.cloned() else { return };
        let (bytes, _) = medium.sizes();
        // One that was cut is most dangerous when it is as large again as somebody remembers.
        let before = e.contents.iter().rev().nth(1).filter(|_| last.is_none());
        let before = before.map_or(0, |content| content.bytes_grown);
        let bytes = match before > bytes && dice.chance(0.7) {
            true => before + dice.below(2) * 4096,
            false => bytes + dice.between(1, STEP_BYTES_MAX / 4096) * 4096,
        };
        // Before a process has it open that could.
        let is_down = self.servers.get(e.server).is_some_and(|s| !s.runs()) || e.dies();
        if bytes > BYTES_MAX || (is_down && medium.is_cut_in_secret()) {
            return;
        }
        if last.is_some() {
            self.grow_tree(export, bytes);
            self.coverage.leaves_grown += 1;
        } else {
            e.grow(bytes);
            self.coverage.images_grown += 1;
        }
        self.trace.note(self.now, &self.exports[export].name.clone(), "grows to", bytes);
    }

    /// When images grow in a run of so many ns, and which. Where there is a tree, its last leaf alone.
    pub fn plan_growth(&self, within_ns: u64, dice: &mut Rng) -> Vec<(u64, usize)> {
        let mut all = Vec::new();
        for (export, e) in self.exports.iter().enumerate().filter(|(_, e)| !e.is_leaf) {
            let share = match e.store {
                Store::Memory | Store::Pool(_) => continue,
                Store::File(_) | Store::Writeback(..) => 0.3,
                Store::Tree(_) => 0.6,
            };
            if dice.chance(share) {
                let times = dice.between(1, 4);
                all.extend((0..times).map(|_| (self.now + dice.between(1, within_ns), export)));
            }
        }
        all
    }

    /// As [`Export::offers_all`], of what a tree of `server` grows by: it is synced where it lies, and
    /// what fails there may fail for all of the machine.
    fn last_leaf_offers_all(&self, server: usize, tree: &TreeStore) -> bool {
        let server = match tree.leaves.last() {
            Some(&TreeLeaf::Remote { export, .. }) => self.exports[export].server,
            _ => server,
        };
        let there = self.exports.iter().filter(|e| e.server == server);
        there.flat_map(Export::own_media).all(|medium| {
            let c = medium.config();
            [c.flush_failure, c.writeback_failure, c.record_failure] == [0.0; 3]
        })
    }

    /// All is well, and has been for more than a second: everybody knows how large its volume is.
    pub fn check_growth(&self) -> Result<(), Violation> {
        for client in self.clients.iter().filter(|client| is_attached(client)) {
            let export = &self.exports[client.export];
            let offers_all = match export.tree() {
                Some(tree) => self.last_leaf_offers_all(export.server, tree),
                None => export.offers_all(),
            };
            let Some((bytes, _)) = export.sizes().filter(|_| offers_all) else { continue };
            let told = client.initiator.as_ref().expect("it is attached").known_bytes();
            if told != bytes {
                let text = format!("{} knows of {told} bytes of {bytes}", client.name);
                return Err(Violation(format!("export {}: {text}", export.name)));
            }
        }
        Ok(())
    }
}
