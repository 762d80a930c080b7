//! What a target tells of itself, for status: its exports, and its sessions.

use thinwire_exports::ExportReport;
use thinwire_proto::{PathReport, SessionKeys, Time};
use thinwire_seal::{KeyId, Suite};
use thinwire_volume::Work;

use crate::peer::Peer;
use crate::target::Target;

/// What a session is, for status.
#[derive(Clone, Debug)]
pub struct SessionReport {
    /// What the initiator calls itself.
    pub initiator: String,
    /// The key that opened it, if one did.
    pub key: Option<KeyReport>,
    /// Its paths.
    pub paths: Vec<PathReport>,
    /// Names of the exports it has open.
    pub exports: Vec<String>,
    /// When it was last heard.
    pub last_heard: Time,
}

/// Which key a session uses, for status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyReport {
    /// Whose it is.
    pub principal: String,
    /// Which of its keys.
    pub key: KeyId,
    /// The suite that was agreed.
    pub suite: Suite,
    /// How often this end has gone to another key of the session.
    pub rekeys: u64,
}

impl Target {
    /// What the exports are.
    pub fn exports(&self) -> Vec<ExportReport> {
        self.house.exports.reports()
    }

    /// Shows everything in the volume of an export that works for itself; false if there is no such export.
    pub fn works(&mut self, export: &str, visit: &mut dyn FnMut(&mut dyn Work)) -> bool {
        self.house.exports.works(export, visit)
    }

    /// How many sessions were opened lately that nobody has used yet.
    pub fn promised(&self) -> usize {
        self.promises.iter().flatten().count()
    }

    /// What the sessions in use are.
    pub fn sessions(&self) -> Vec<SessionReport> {
        self.first_sessions(usize::MAX)
    }

    /// The first of them, at most so many: there may be many, and each takes time and memory.
    pub fn first_sessions(&self, at_most: usize) -> Vec<SessionReport> {
        let report = |p: &Peer| SessionReport {
            initiator: p.name.clone(),
            key: p.keyed.as_ref().map(|keyed| KeyReport {
                principal: keyed.principal.to_string(),
                key: keyed.key,
                suite: keyed.suite,
                rekeys: p.session.keys().map_or(0, SessionKeys::advances),
            }),
            paths: p.session.path_reports().collect(),
            exports: self
                .house
                .exports
                .names_of(p.session.local_id())
                .map(str::to_string)
                .collect(),
            last_heard: p.session.last_heard(),
        };
        self.peers.iter().flatten().take(at_most).map(|p| report(p)).collect()
    }

    /// How many sessions are in use.
    pub fn session_count(&self) -> usize {
        self.peers.iter().flatten().count()
    }
}
