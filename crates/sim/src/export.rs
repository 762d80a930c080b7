//! What a target exports, where its content is, and everything the checker knows of it.

use thinwire_buffer::Pool;
use thinwire_modules::thin::{PoolCanary, PoolDone, PoolOp, PoolReport};
use thinwire_modules::{Cache, CacheCanary};
use thinwire_volume::stores::{FileStore, MemoryStore, Writeback};
use thinwire_volume::{Identity, Recorded, Volume, WriterRecord};

use crate::coming::Presence;
use crate::composed::PoolStore;
use crate::image::Change;
use crate::leaves::TreeRecord;
use crate::medium::MediumHandle;
use crate::model::{ContentLife, Model, Violation};
use crate::told::ToldVerifiers;
use crate::tree::{TreeLeaf, TreeStore};

/// Flushes by which a store tells all that it has lost, and whoever stands on it: the disk's, the first that
/// succeeds behind a replay which did not, and so once more where a gateway is between.
const FLUSHES_THAT_TELL: u32 = 3;

/// Where an export's content is.
#[derive(Clone)]
pub enum Store {
    /// In the target's memory: gone with the process.
    Memory,
    /// On a disk.
    File(MediumHandle),
    /// On a disk under a write-back cache of so many bytes.
    Writeback(MediumHandle, usize),
    /// In several places, on this machine and on others.
    Tree(Box<TreeStore>),
    /// In a pool on this machine.
    Pool(Box<PoolStore>),
}

/// An export and everything the checker knows of it.
pub struct Export {
    /// Its name.
    pub name: String,
    /// Which server has it.
    pub server: usize,
    /// Size in bytes.
    pub bytes: u64,
    /// Logical block.
    pub block_bytes: u32,
    /// Where its content is.
    pub store: Store,
    /// What its target keeps of it in memory, in bytes, if it does; never of a tree.
    pub cache: Option<u64>,
    /// A fault in that.
    pub cache_canary: CacheCanary,
    /// Offered for reading only.
    pub read_only: bool,
    /// It is on all shards of its server: a file that each has a ring of its own on.
    pub is_spread: bool,
    /// What may be read, one for each content, oldest first.
    pub models: Vec<Model>,
    /// What tells each content from the others, as `models`.
    pub contents: Vec<ExportContent>,
    /// Which verifiers initiators by hand were told.
    pub told: ToldVerifiers,
    /// What becomes of the image before its target is started again.
    pub change: Option<(Change, u64)>,
    /// How many clients write to it, one at a time.
    pub writers: usize,
    /// The store may fail operations.
    pub may_fail: bool,
    /// Not any more: it fails nothing, and everybody has heard of what it has failed.
    pub is_well: bool,
    /// It is a part of another export, which its only user serves: what it holds is checked there.
    pub is_leaf: bool,
    /// Until then somebody may be told that it has not the right to open it.
    pub barred_until: u64,
    /// Until then somebody may be told that it is not there.
    pub away_until: u64,
    /// Nobody replaces or cuts its image: users of AoE need not notice.
    pub keeps_content: bool,
    /// Its target offers it, while it runs.
    pub presence: Presence,
    /// Which shard of its target has it.
    pub(crate) home: usize,
    /// Moments at which the process lost something, besides those of the medium.
    pub(crate) upheavals: u64,
}

/// One content of an export: memory begins anew with each process, an image is replaced or shrinks.
#[derive(Clone)]
pub struct ExportContent {
    /// What a client is told of it.
    pub identity: Identity,
    /// Its size in bytes, at first.
    pub bytes: u64,
    /// The largest that it has grown to.
    pub bytes_grown: u64,
    /// Where it is, or was.
    pub medium: Option<MediumHandle>,
}

impl Export {
    /// An export of zeroes.
    pub fn new(name: String, server: usize, bytes: u64, block_bytes: u32, store: Store) -> Self {
        let mut export = Export {
            name,
            server,
            bytes,
            block_bytes,
            store,
            cache: None,
            cache_canary: CacheCanary::None,
            read_only: false,
            is_spread: false,
            models: Vec::new(),
            contents: Vec::new(),
            told: ToldVerifiers::default(),
            change: None,
            writers: 0,
            may_fail: false,
            is_well: false,
            is_leaf: false,
            barred_until: 0,
            away_until: 0,
            keeps_content: false,
            presence: Presence::There,
            home: 0,
            upheavals: 0,
        };
        if let Some(medium) = export.medium().cloned() {
            export.begin_content(medium.identity(), Some(medium), None);
        }
        if let Some(of) = export.pool() {
            let (identity, record) = (of.identity, of.record.clone());
            export.begin_content(identity, Some(record), None);
        }
        export
    }

    /// Changes the pool that it is a volume of, while no process has that.
    ///
    /// # Errors
    /// It cannot be done.
    ///
    /// # Panics
    /// If it is none of a pool.
    pub fn change_pool(
        &mut self,
        planted: PoolCanary,
        op: impl FnOnce(&PoolReport) -> PoolOp,
    ) -> Result<PoolDone, Violation> {
        let Store::Pool(of) = &mut self.store else { panic!("it is one of a pool") };
        let done = of.change(planted, op)?;
        let (identity, record) = (of.identity, of.record.clone());
        if self.contents.last().is_none_or(|content| content.identity != identity) {
            self.begin_content(identity, Some(record), None);
        }
        Ok(done)
    }

    /// An operation may fail now, or what failed before may be told now.
    pub fn error_is_due(&self) -> bool {
        self.may_fail && !self.is_well
    }

    /// Behind so many flushes of each of its users everybody has heard of all that was lost. A module owes what another
    /// volume failed behind the first to the next flush that would succeed, so each level of a tree may add one.
    pub fn flushes_that_tell(&self) -> u32 {
        FLUSHES_THAT_TELL + self.tree().map_or(0, |tree| tree.shape.levels())
    }

    /// From now on it holds this content; `model` if not zeroes.
    pub(crate) fn begin_content(
        &mut self,
        identity: Identity,
        medium: Option<MediumHandle>,
        model: Option<Model>,
    ) {
        let bytes_grown = self.bytes;
        self.models.push(model.unwrap_or_else(|| Model::new(&self.name, bytes_grown)));
        // A tree may have grown before it was opened, and who opened it heard of that since.
        let bytes = self.tree().map_or(bytes_grown, |tree| tree.bytes_drawn);
        self.contents.push(ExportContent { identity, bytes, bytes_grown, medium });
    }

    /// The content that a client was told of.
    pub fn content_of(&self, identity: Identity, bytes: u64) -> Option<usize> {
        let has = |c: &ExportContent| (c.bytes..=c.bytes_grown).contains(&bytes);
        self.contents.iter().rposition(|c| c.identity == identity && has(c))
    }

    /// It holds another content by now.
    pub fn is_gone(&self, content: usize) -> bool {
        content + 1 < self.contents.len()
    }

    /// The medium, if there is one, and one only.
    pub fn medium(&self) -> Option<&MediumHandle> {
        match &self.store {
            Store::Memory | Store::Tree(_) | Store::Pool(_) => None,
            Store::File(medium) | Store::Writeback(medium, _) => Some(medium),
        }
    }

    /// What it is made of, if it is made of several.
    pub fn tree(&self) -> Option<&TreeStore> {
        match &self.store {
            Store::Tree(tree) => Some(tree),
            _ => None,
        }
    }

    /// What it is a volume of, if it is one of a pool.
    pub fn pool(&self) -> Option<&PoolStore> {
        match &self.store {
            Store::Pool(of) => Some(of),
            _ => None,
        }
    }

    /// Disks of the machine that serves it.
    pub fn own_media(&self) -> impl Iterator<Item = &MediumHandle> {
        let own = self.tree().into_iter().flat_map(TreeStore::own_media);
        let of_pool = self.pool().into_iter().flat_map(PoolStore::own_media);
        self.medium().into_iter().chain(own).chain(of_pool)
    }

    /// Where its content is, on any machine.
    fn content_media(&self) -> impl Iterator<Item = &MediumHandle> {
        let of_tree = self.tree().into_iter().flat_map(TreeStore::content_media);
        let of_pool = self.pool().into_iter().flat_map(PoolStore::own_media);
        self.medium().into_iter().chain(of_tree).chain(of_pool)
    }

    /// Where its writer record is.
    pub fn record_medium(&self) -> Option<&MediumHandle> {
        let record = self.tree().map(|tree| &tree.record);
        self.medium().or(record).or(self.pool().map(|of| &of.record))
    }

    /// The process that serves it dies before it says another word.
    pub fn dies(&self) -> bool {
        let over_note = self.tree().is_some_and(|tree| tree.memory.borrow().notes.dies());
        over_note || self.own_media().any(MediumHandle::dies)
    }

    /// How somebody has broken a promise that is watched where the content is, if so.
    pub fn breach(&self) -> Option<String> {
        let of_leaves = self.tree().and_then(|tree| tree.memory.borrow().breach());
        of_leaves.or_else(|| self.own_media().find_map(MediumHandle::breach))
    }

    /// The process that serves it can poll something.
    pub fn is_ready(&self) -> bool {
        self.own_media().any(MediumHandle::is_ready)
    }

    /// A writer was granted this content under this generation, durably. What a target keeps in
    /// memory only cannot be seen.
    pub fn was_granted(&self, content: usize, generation: u64, holder: &[u8; 16]) -> bool {
        let Some(medium) = &self.contents[content].medium else { return true };
        medium.commits().iter().any(|c| c.generation == generation && c.holder == *holder)
    }

    /// Somebody was granted it after the writer of this content and generation, durably, heard or
    /// not. Of a writer whose content was replaced, another may have the generation, too.
    pub fn was_fenced(&self, content: usize, generation: u64, holder: &[u8; 16]) -> bool {
        let others = |c: &WriterRecord| c.holder != [0; 16] && c.holder != *holder;
        let Some(medium) = &self.contents[content].medium else { return self.writers > 1 };
        // By a gateway one of whose leaves somebody else has had.
        let commits = medium.commits();
        if self.tree().is_some_and(|t| t.memory.borrow().has_fenced(generation, &commits)) {
            return true;
        }
        if self.writers > 1 && commits.iter().any(|c| c.generation > generation) {
            return true;
        }
        // A sole writer is fenced only by somebody who writes its image locally.
        self.contents[content..].iter().filter_map(|c| c.medium.as_ref()).any(|m| {
            let least = generation + u64::from(m.is_same(medium));
            m.commits().iter().any(|c| c.generation >= least && others(c))
        })
    }

    /// As [`Export::was_fenced`], of somebody whose own grants do not fence it.
    pub fn was_taken_over(&self, content: usize, generation: u64, holder: &[u8; 16]) -> bool {
        self.was_taken_over_by_others(content, generation, std::slice::from_ref(holder))
    }

    /// The same, of somebody who may be on record as each of these.
    pub fn was_taken_over_by_others(
        &self,
        content: usize,
        generation: u64,
        holders: &[[u8; 16]],
    ) -> bool {
        let others = |c: &WriterRecord| {
            c.generation > generation && c.holder != [0; 16] && !holders.contains(&c.holder)
        };
        let Some(medium) = &self.contents[content].medium else { return self.writers > 1 };
        medium.commits().iter().any(others)
    }

    /// The answer to what was asked at `asked_at` tells somebody this verifier.
    pub(crate) fn hear_verifier(
        &mut self,
        verifier: u64,
        asked_at: u64,
        now: u64,
    ) -> Result<(), Violation> {
        self.told.hear(verifier, asked_at, now).map_err(|before| {
            let text = format!(
                "export {}: verifier {verifier:016x} was told to one who asked {before} ns after \
                 another had been told a newer one",
                self.name
            );
            Violation(text)
        })
    }

    /// What may have become of its content by now.
    pub fn life(&self) -> ContentLife {
        let mut life = ContentLife { upheavals: self.upheavals, losses: 0, in_doubt: false };
        for medium in self.content_media() {
            let (losses, in_doubt) = medium.losses();
            life.upheavals += medium.upheavals();
            life.losses += losses;
            life.in_doubt |= in_doubt;
        }
        life
    }

    /// Its volume, for a process that starts now. `index` is its own, in the world; `remote` gives what
    /// is attached for a leaf of a tree.
    pub(crate) fn open(
        &mut self,
        index: usize,
        ignores_lock: bool,
        pool: &Pool,
        remote: &mut dyn FnMut(usize) -> Box<dyn Volume>,
    ) -> Box<dyn Volume> {
        let volume = self.open_store(index, ignores_lock, pool, remote);
        let Some(bytes) = self.cache else { return volume };
        let mut cache = Cache::new(volume, bytes);
        cache.set_canary(self.cache_canary);
        Box::new(cache)
    }

    fn open_store(
        &mut self,
        index: usize,
        ignores_lock: bool,
        pool: &Pool,
        remote: &mut dyn FnMut(usize) -> Box<dyn Volume>,
    ) -> Box<dyn Volume> {
        match &self.store {
            Store::Tree(tree) => {
                let incarnation = self.contents.len() as u64 + 1;
                let volume = tree.open(index, incarnation, pool, remote);
                let tree = self.enter_tree(volume.identity());
                let grants = tree.begin_to_use();
                let place = TreeRecord::new(index, tree);
                Box::new(Recorded::new(volume, place, grants))
            }
            Store::Pool(of) => {
                let record = of.record.open();
                Box::new(Recorded::new(Box::new(of.open(pool)), record, Vec::new()))
            }
            Store::Memory => {
                let incarnation = self.models.len() as u64 + 1;
                let identity = Identity { identity: [index as u8 + 1; 16], incarnation };
                self.begin_content(identity, None, None);
                Box::new(MemoryStore::new(self.bytes, self.block_bytes, identity, pool))
            }
            Store::File(medium) => {
                let disk = if ignores_lock { medium.open_without_lock() } else { medium.open() };
                Box::new(FileStore::new(disk, self.block_bytes, pool).expect("it fits"))
            }
            Store::Writeback(medium, bytes_max) => {
                let disk = if ignores_lock { medium.open_without_lock() } else { medium.open() };
                let file = FileStore::new(disk, self.block_bytes, pool);
                Box::new(Writeback::new(file.expect("it fits"), *bytes_max, pool))
            }
        }
    }

    /// The tree is open, with this identity: if that is new, a leaf is, and so is the record.
    fn enter_tree(&mut self, identity: Identity) -> &TreeStore {
        let Store::Tree(tree) = &mut self.store else { unreachable!("it is one") };
        let is_same = self.contents.last().map(|content| content.identity == identity);
        if is_same == Some(false) {
            let seed = u64::from_be_bytes(identity.identity[..8].try_into().expect("8 bytes"));
            tree.record = tree.record.replaced(seed, identity.identity, RECORD_BYTES);
            tree.memory.borrow_mut().begin_anew();
        }
        if is_same != Some(true) {
            let places = tree.places().into_iter();
            let new = places.filter(|at| matches!(tree.leaves[at.leaf], TreeLeaf::Memory { .. }));
            let new = new.map(|place| place.first..place.first + place.count);
            let model = self.models.last().map(|model| model.renewed(new));
            let record = tree.record.clone();
            self.begin_content(identity, Some(record), model);
        }
        self.tree().expect("it is one")
    }
}

/// A disk that holds a record and nothing else.
pub const RECORD_BYTES: u64 = 4096;
