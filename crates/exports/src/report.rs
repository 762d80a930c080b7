//! What the exports tell of themselves, for status: above all who writes them.

use thinwire_buffer::Time;
use thinwire_volume::{CacheReport, Geometry, MirrorReport, Work};

use crate::exports::{Export, Exports, Presence};
use crate::record::RecordState;

/// What an export is, for status.
#[derive(Clone, Debug)]
pub struct ExportReport {
    /// Its name.
    pub name: String,
    /// Shape and abilities.
    pub geometry: Geometry,
    /// Offered for reading only.
    pub read_only: bool,
    /// The writer's generation.
    pub generation: u64,
    /// Who holds it for writing, if anybody does.
    pub writer: Option<WriterReport>,
    /// Whether it is known, and durable, who that is.
    pub record: RecordReport,
    /// How often writes that no flush had covered may have been lost.
    pub losses: u64,
    /// What it lies on has become shorter while it was open: I/O there fails.
    pub has_shrunk: bool,
    /// I/Os that its volume has not ended.
    pub outstanding: usize,
    /// Bytes that the volume had to copy in user space.
    pub copied_bytes: u64,
    /// How its cache does, if it has one.
    pub cache: Option<CacheReport>,
    /// The mirrors in it.
    pub mirrors: Vec<MirrorReport>,
    /// The shard that owns it, if this one has a branch of it, which does not know who writes, nor of the record.
    pub branch_of: Option<u8>,
}

/// Who holds an export for writing, for status.
#[derive(Clone, Debug)]
pub struct WriterReport {
    /// What it calls itself; empty if it says nothing.
    pub name: String,
    /// It is attached now.
    pub attached: bool,
    /// When it was granted the export, however often it has come back under that grant; `None` if that was
    /// before this target started.
    pub since: Option<Time>,
    /// When it was last heard, as far as the door was told; `None` if it attached before this target started, and has not come back.
    pub last_heard: Option<Time>,
    /// When another may have the export, should it stay silent; `None` if only once it has come back, or
    /// is taken over.
    pub lease_end: Option<Time>,
}

/// How the record of who may write an export is, for status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordReport {
    /// It is stored durably.
    Settled,
    /// It is being read: who wants to write waits.
    Reading,
    /// It is being stored who writes next, or that the writer has ended: what was stored before is in force
    /// until then.
    Changing,
    /// It cannot be read: nobody may attach to write.
    Unread,
    /// It could be neither changed nor put back: nobody writes until that succeeds.
    Unsettled,
}

impl Exports {
    /// What the exports are, in the order in which they were added; those that leave are not among them.
    pub fn reports(&self) -> Vec<ExportReport> {
        let report = |(at, e): (usize, &Export)| ExportReport {
            name: e.name.clone(),
            geometry: e.volume.geometry(),
            read_only: e.read_only,
            generation: e.writer.generation,
            writer: self.writer(at),
            record: match e.record {
                RecordState::Settled | RecordState::Held => RecordReport::Settled,
                RecordState::Changing(_) | RecordState::Releasing => RecordReport::Changing,
                RecordState::Reading => RecordReport::Reading,
                RecordState::Unread(_) => RecordReport::Unread,
                RecordState::Unresolved(_) | RecordState::Settling => RecordReport::Unsettled,
            },
            losses: e.losses,
            has_shrunk: e.has_shrunk,
            outstanding: e.volume.outstanding(),
            copied_bytes: e.volume.copied_bytes(),
            cache: e.volume.cache(),
            mirrors: e.volume.all_mirrors(),
            branch_of: e.role.branch_of(),
        };
        let all = self.exports.iter().enumerate();
        all.filter(|(_, e)| e.presence == Presence::There).map(report).collect()
    }

    /// Shows everything in the volume of an export that works for itself; false if there is no such export. It is polled, and told the time,
    /// before that has an effect: by the next turn.
    pub fn works(&mut self, name: &str, visit: &mut dyn FnMut(&mut dyn Work)) -> bool {
        let is_it = |e: &Export| e.name == name && e.presence == Presence::There;
        let Some(at) = self.exports.iter().position(is_it) else { return false };
        self.exports[at].volume.works(visit);
        self.to_poll.insert(at);
        true
    }

    fn writer(&self, export: usize) -> Option<WriterReport> {
        let e = &self.exports[export];
        let name = e.writer_name()?.to_string();
        let Some(holder) = &e.holder else {
            return Some(WriterReport {
                name,
                attached: false,
                since: None,
                last_heard: None,
                lease_end: None,
            });
        };
        let writes = |at| {
            let pass = &self.passes[at];
            let is_its = holder.members.iter().any(|member| member.session == pass.session);
            is_its && !pass.fenced && !pass.read_only
        };
        Some(WriterReport {
            name,
            attached: self.passes.of_export(export).any(writes)
                || holder.members.iter().any(|member| member.is_elsewhere),
            since: holder.since,
            last_heard: Some(holder.last_heard()),
            lease_end: holder.is_leased.then(|| holder.last_heard() + self.config.lease),
        })
    }
}
