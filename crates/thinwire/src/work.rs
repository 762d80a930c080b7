//! What is asked of a volume that an attachment or a target has open, about what it does for itself: scrubs, copies to legs of mirrors, checks behind a
//! crash. And how all that it is made of stands.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thinwire_volume::{MirrorReport, ScrubReport, Work, WorkPace};

pub use crate::budgets::LimitsStatus;
use crate::budgets::{self, NewLimit};
use crate::control::{self, IoStatus, Response};
use crate::opened::{OutlineNode, last_failure};
use crate::output;
use crate::rekeying::StateChange;
use crate::size::show_size;
use crate::trees::NodeName;

/// So much of why a leg is not back stands in a table.
const WHY_CHARS: usize = 60;

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum WorkAction {
    /// Nothing: how it stands is told.
    Status,
    /// Everything is read from there on, in bytes.
    Scrub {
        /// From where on.
        from: u64,
    },
    /// A scrub that goes on ends.
    Stop,
    /// What could not be copied, and waits to be tried again, is tried at once.
    Resync,
    /// Nothing more is begun.
    Pause,
    /// It goes on.
    Resume,
    /// It is of kind `qos`, and these limits hold from now on.
    Limits {
        /// Of each the name, and none for no limit.
        limits: Vec<NewLimit>,
    },
    /// It becomes as large as what it is made of has become, and first all that that is.
    Grow,
    /// It is a mirror, and has this leg no more.
    Remove {
        /// Counted from 0, in the order of its labels.
        leg: usize,
    },
    /// It is a mirror, and has one leg more, which has nothing yet: what its part is to say is told then.
    Add {
        /// This one, which is on record already.
        leg: Option<usize>,
        /// Nothing is changed.
        only_look: bool,
    },
    /// It is a mirror, and has this leg no more once that one has all data, which was added for it.
    Replace {
        /// The one that goes, counted from 0, in the order of its labels.
        leg: usize,
        /// The one that stays.
        by: usize,
    },
    /// The part of such a leg has got its label: it is attached, or opened, and copied to.
    Bring {
        /// Counted from 0, in the order of its labels.
        leg: usize,
        /// What it is, as it is named wherever the process is.
        part: String,
    },
    /// It is encrypted, and another key opens it from then on.
    Rekey {
        /// What its label keeps then; none: what it says now is told, and nothing is changed.
        change: Option<StateChange>,
    },
}

impl WorkAction {
    /// It is done in several turns, and ends later.
    pub fn ends_later(&self) -> bool {
        matches!(self, WorkAction::Grow | WorkAction::Rekey { .. }) || self.changes_legs()
    }

    /// A mirror has others afterwards.
    pub fn changes_legs(&self) -> bool {
        matches!(
            self,
            WorkAction::Remove { .. }
                | WorkAction::Add { .. }
                | WorkAction::Replace { .. }
                | WorkAction::Bring { .. }
        )
    }
}

/// The same, and how fast it goes from then on: in percent of what users get, as it was where that is not said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkRequest {
    /// What.
    pub action: WorkAction,
    /// How fast.
    #[serde(default)]
    pub percent: Option<u8>,
}

/// What is asked of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkAsk {
    /// The volume, as a file describes it; or, to be told how it stands, [all](NodeName::of_opened) that an attachment or an export is made of.
    pub volume: NodeName,
    /// What is to be done to it, and to all that it is made of.
    pub request: WorkRequest,
}

/// What a target says of a volume that none of its exports is made of.
pub fn no_export(volume: &str) -> String {
    format!("no export is made of {volume}")
}

impl WorkAsk {
    /// Where that volume stands in what an attachment or an export of this name is made of.
    pub fn place_in(&self, opened: &str, outline: &[OutlineNode]) -> Option<usize> {
        if self.volume.is_all_of(opened) && self.request.action == WorkAction::Status {
            return (!outline.is_empty()).then_some(0);
        }
        let is_it = |node: &NodeName| node.is_same(&self.volume);
        outline.iter().position(|of| of.node.as_ref().is_some_and(is_it))
    }
}

/// How a volume stands, of a tree that is open: an element of `nodes` in `volume status --json` (`docs/status.md`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// How deep below the one that was asked for, which is at 0; behind each come those that it is made of.
    pub depth: usize,
    /// As it is named.
    pub name: String,
    /// Its kind.
    pub kind: String,
    /// Its size, of a pool that of its data; 0 if it was not there.
    pub bytes: u64,
    /// Which leg of the mirror above it is, counted from 0; null if of none.
    pub leg: Option<usize>,
    /// As such a leg: `in sync`, `resyncing`, `behind` or `failed`.
    pub standing: Option<String>,
    /// As such a leg: how much it lacks at most, in bytes.
    pub lacks: u64,
    /// As such a leg: the number of the one that goes as soon as this one has all data; null if none does.
    #[serde(default)]
    pub replaces: Option<usize>,
    /// As such a leg that is not back: in how many seconds that is tried again; null if not, or if it is being tried.
    #[serde(default)]
    pub retry_s: Option<u64>,
    /// As such a leg: why it is not back, as that was told last; null if there is nothing to tell.
    #[serde(default)]
    pub why: Option<String>,
    /// Of one that is reached over links: `attached` or `away`; `absent` of what was not there when it was opened.
    pub state: Option<String>,
    /// What has gone to it, and how fast that goes; null from a process of an earlier version.
    #[serde(default)]
    pub io: Option<IoStatus>,
    /// The last I/O of it that failed, and where that is in the tree, as the log has it; null if none did, and from a process of an earlier version.
    #[serde(default)]
    pub failure: Option<String>,
    /// What it does for itself; null if it is nothing that does.
    pub work: Option<WorkStatus>,
    /// What of it is taken in a second; null of other kinds than `qos`.
    #[serde(default)]
    pub limits: Option<LimitsStatus>,
}

/// What a volume does for itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkStatus {
    /// Nothing more is begun, until it is resumed.
    pub paused: bool,
    /// So much of what users get, in percent.
    pub percent: u8,
    /// Bytes that are left to be copied or checked at most, those of the scrub not among them.
    pub left: u64,
    /// Bytes that were copied to legs since it was opened, all together; 0 of what is no mirror, and from a process of an earlier version.
    #[serde(default)]
    pub copied: u64,
    /// It is growing: so many bytes of what it grows by are zeroed, of a mirror on all legs; null if it is not, and from a process of an earlier version.
    #[serde(default)]
    pub grown: Option<u64>,
    /// By so many bytes it is growing; 0 if it is not.
    #[serde(default)]
    pub grows_by: u64,
    /// What is left cannot be copied for now: it is tried again.
    pub held_up: bool,
    /// It has stopped for good.
    pub stopped: bool,
    /// A copy or a check goes on, or waits.
    pub busy: bool,
    /// Its scrub, or its last one.
    pub scrub: ScrubStatus,
}

/// See [`ScrubReport`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubStatus {
    /// What does it.
    pub kind: String,
    /// It goes on.
    pub running: bool,
    /// It has ended before everything was read.
    pub failed: bool,
    /// Bytes of what is read.
    pub bytes: u64,
    /// Which scrub since it was opened, counted from 1; 0 if there was none.
    pub number: u64,
    /// From where on that reads.
    pub from: u64,
    /// Legs, counted from 0, of which not all was read.
    pub unread_legs: Vec<u8>,
    /// Where another one goes on; all of it if it was not interrupted; 0 if there was none.
    pub position: u64,
    /// Bytes that were read, of each leg.
    pub checked_bytes: u64,
    /// Blocks that were mended.
    pub repaired: u64,
    /// Those that are not verified since a crash.
    pub unverified: u64,
    /// Those that are bad, without a good copy.
    pub bad: u64,
    /// Those that differ, and nobody knows which is right.
    pub differing: u64,
    /// Where the first of those begin that were not mended.
    pub places: Vec<u64>,
}

impl From<&ScrubReport> for ScrubStatus {
    fn from(report: &ScrubReport) -> Self {
        ScrubStatus {
            kind: report.module.to_owned(),
            running: report.is_running,
            failed: report.has_failed,
            bytes: report.bytes,
            number: report.number,
            from: report.from,
            unread_legs: (0..8).filter(|leg| report.unread_legs >> leg & 1 == 1).collect(),
            position: report.position,
            checked_bytes: report.checked_bytes,
            repaired: report.repaired,
            unverified: report.unverified,
            bad: report.bad,
            differing: report.differing,
            places: report.places.clone(),
        }
    }
}

impl ScrubStatus {
    /// Blocks that are not known to be what was written.
    pub fn doubtful(&self) -> u64 {
        self.bad + self.differing + self.unverified
    }

    /// Those legs, in words; none if all were read.
    pub fn unread(&self) -> Option<String> {
        let legs: Vec<_> = self.unread_legs.iter().map(u8::to_string).collect();
        (!legs.is_empty()).then(|| format!("not all was read of leg {}", legs.join(" and leg ")))
    }

    /// What was found, in a line.
    pub fn line(&self) -> String {
        let ScrubStatus { kind, checked_bytes, repaired, unverified, bad, differing, .. } = self;
        let mut found = Vec::new();
        let counts = [
            (*repaired, "mended"),
            (*unverified, "not verified since a crash"),
            (*bad, "bad, without a good copy"),
            (*differing, "different on legs that have no sums, or fit them all"),
        ];
        for (count, what) in counts.into_iter().filter(|(count, _)| *count > 0) {
            found.push(format!("{count} {what}"));
        }
        let found = match (found.is_empty(), self.unread()) {
            (true, None) => "all as it was written".into(),
            (true, Some(unread)) => format!("as it was written, but {unread}"),
            (false, None) => format!("blocks: {}", found.join(", ")),
            (false, Some(unread)) => format!("blocks: {}; {unread}", found.join(", ")),
        };
        let places: Vec<_> = self.places.iter().map(u64::to_string).collect();
        let at = match places.is_empty() {
            true => String::new(),
            false => format!("; those that were not mended begin at {}", places.join(", ")),
        };
        format!("{kind}: {checked_bytes} bytes were read, {found}{at}")
    }
}

/// What a shard says of what an export is made of.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct ToldTree {
    /// How all of that stands; null if there was too much to tell.
    pub nodes: Option<Vec<NodeStatus>>,
}

impl ToldTree {
    /// In the words between a shard and who asks it.
    pub fn to_words(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// What such words say.
    pub fn of_words(words: &str) -> Self {
        serde_json::from_str(words).unwrap_or_default()
    }
}

/// What was found of a work, by the UUID of its whole.
type Works = BTreeMap<[u8; 16], (WorkStatus, Option<MirrorReport>)>;

/// Shows all works of the volume that this is about, and others perhaps.
pub type ShowWorks<'a> = &'a mut dyn FnMut(&mut dyn FnMut(&mut dyn Work));

/// Does what is asked to a volume of this outline, of an attachment or an export of that name.
pub fn perform(
    ask: &WorkAsk,
    (opened, outline): (&str, &[OutlineNode]),
    show: ShowWorks<'_>,
) -> Response {
    let refused = |why: String| Response::Refused { why };
    let Some(at) = ask.place_in(opened, outline) else {
        return refused(format!("it has no volume {} open", ask.volume.name));
    };
    let top = outline[at].depth;
    let below = outline[at + 1..].iter().take_while(|node| node.depth > top).count();
    let tree = &outline[at..=at + below];
    let WorkRequest { action, percent } = &ask.request;
    let wanted = match action {
        WorkAction::Scrub { .. } => not_below_mirrors(tree),
        _ => tree.iter().filter_map(|node| node.whole).collect(),
    };
    if let WorkAction::Limits { limits } = action {
        let Some(budget) = &outline[at].budget else {
            let kind = outline[at].kind;
            return refused(format!(
                "{} is of kind {kind}, and only volumes of kind qos have limits",
                ask.volume.name
            ));
        };
        if let Err(why) = budgets::change(budget, limits) {
            return refused(why);
        }
        return Response::Volume { nodes: draw(tree, show) };
    }
    if wanted.is_empty() && *action != WorkAction::Status {
        return refused(
            "there is neither a mirror nor a volume of kind integrity in it: it does nothing for itself".into(),
        );
    }
    show(&mut |work| {
        if wanted.contains(&work.whole()) {
            act(work, action, *percent);
        }
    });
    Response::Volume { nodes: draw(tree, show) }
}

/// How all of a tree stands; none if it is no tree.
pub fn draw(tree: &[OutlineNode], show: ShowWorks<'_>) -> Vec<NodeStatus> {
    if tree.is_empty() {
        return Vec::new();
    }
    let mut works = Works::new();
    show(&mut |work| _ = works.insert(work.whole(), status_of(work)));
    statuses(tree, &works)
}

/// A mirror reads all of its legs: what those are made of has no need of another scrub, but for mirrors, which give each block from one
/// of their legs.
fn not_below_mirrors(tree: &[OutlineNode]) -> Vec<[u8; 16]> {
    let (mut wanted, mut mirror) = (Vec::new(), None);
    for node in tree {
        let is_mirror = node.kind == "mirror";
        let is_below = mirror.is_some_and(|depth| node.depth > depth);
        if !is_below {
            mirror = is_mirror.then_some(node.depth);
        }
        if is_mirror || !is_below {
            wanted.extend(node.whole);
        }
    }
    wanted
}

fn act(work: &mut dyn Work, action: &WorkAction, percent: Option<u8>) {
    let before = work.pace();
    let mut pace = WorkPace { percent: percent.unwrap_or(before.percent), ..before };
    match action {
        WorkAction::Pause => pace.is_paused = true,
        WorkAction::Resume => pace.is_paused = false,
        _ => {}
    }
    if pace != before {
        work.set_pace(pace);
    }
    match action {
        WorkAction::Scrub { from } => work.begin_scrub(*from),
        WorkAction::Stop => work.end_scrub(),
        WorkAction::Resync | WorkAction::Resume => work.try_now(),
        WorkAction::Status | WorkAction::Pause | WorkAction::Limits { .. } => {}
        // Not here.
        WorkAction::Grow
        | WorkAction::Remove { .. }
        | WorkAction::Add { .. }
        | WorkAction::Replace { .. }
        | WorkAction::Bring { .. }
        | WorkAction::Rekey { .. } => {}
    }
}

fn status_of(work: &dyn Work) -> (WorkStatus, Option<MirrorReport>) {
    let (pace, mirror, left) = (work.pace(), work.mirror(), work.left());
    let grows = work.grows().or(mirror.as_ref().and_then(|mirror| mirror.grows));
    let status = WorkStatus {
        paused: pace.is_paused,
        percent: pace.percent,
        left,
        copied: mirror.as_ref().map_or(0, |mirror| mirror.copied),
        grown: grows.map(|(zeroed, _)| zeroed),
        grows_by: grows.map_or(0, |(_, all)| all),
        held_up: mirror.as_ref().is_some_and(|mirror| mirror.is_held_up),
        stopped: mirror.as_ref().is_some_and(|mirror| mirror.has_stopped),
        busy: left > 0 || mirror.as_ref().is_some_and(|mirror| !mirror.is_settled()),
        scrub: ScrubStatus::from(&work.scrub_report()),
    };
    (status, mirror)
}

fn statuses(tree: &[OutlineNode], works: &Works) -> Vec<NodeStatus> {
    let top = tree[0].depth;
    // Of each depth the mirror that was met last.
    let mut mirrors: Vec<Option<&MirrorReport>> = Vec::new();
    let mut found = Vec::new();
    for (at, node) in tree.iter().enumerate() {
        let depth = node.depth - top;
        let work = node.whole.and_then(|whole| works.get(&whole));
        mirrors.truncate(depth);
        let above = mirrors.last().copied().flatten();
        mirrors.push(work.and_then(|(_, mirror)| mirror.as_ref()));
        let leg = node.leg.filter(|_| depth > 0);
        let stands = leg.zip(above).and_then(|(leg, mirror)| mirror.legs.get(leg));
        found.push(NodeStatus {
            depth,
            name: node.name.clone(),
            kind: node.kind.to_owned(),
            bytes: node.bytes,
            leg,
            standing: stands.map(|leg| leg.standing.name().to_owned()),
            lacks: stands.map_or(0, |leg| leg.lacks),
            replaces: stands.and_then(|leg| leg.replaces),
            retry_s: stands.and_then(|leg| control::retry_s(&leg.absence)),
            why: stands.and_then(|leg| control::why(&leg.absence)),
            state: node.state.map(str::to_owned),
            io: node.meter.as_ref().map(|meter| {
                let io = IoStatus::of(&meter.report());
                // What nobody drives does not hear that time goes on.
                if matches!(node.state, None | Some("attached")) { io } else { io.at_rest() }
            }),
            failure: last_failure(tree, at).map(|failed| failed.to_string()),
            work: work.map(|(status, _)| status.clone()),
            limits: node.budget.as_ref().map(LimitsStatus::of_node),
        });
    }
    found
}

/// The tree, for people: a line for each volume, below what it is a part of; and what has failed where, the last of each that did not fail by another.
pub fn drawn(nodes: &[NodeStatus]) -> String {
    let row = |node: &NodeStatus| {
        let [read, written, latency] = node.io.map_or_else(Default::default, |io| io.rates());
        vec![
            format!("{}{}", "  ".repeat(node.depth), node.name),
            node.kind.clone(),
            if node.bytes == 0 { "-".into() } else { show_size(node.bytes) },
            node.describe(),
            read,
            written,
            latency,
        ]
    };
    let rows: Vec<_> = nodes.iter().map(row).collect();
    let header = ["VOLUME", "KIND", "SIZE", "STATE", "READ", "WRITTEN", "LATENCY"];
    let mut text = output::table(&header, &rows);
    for (at, node) in nodes.iter().enumerate() {
        let mut below = nodes[at + 1..].iter().take_while(|below| below.depth > node.depth);
        if let Some(failure) = &node.failure
            && below.all(|below| below.failure.is_none())
        {
            text += &format!("\nfailed last: {failure}");
        }
    }
    text
}

impl NodeStatus {
    /// How it stands, for people.
    pub fn describe(&self) -> String {
        let mut said = Vec::new();
        if let (Some(leg), Some(standing)) = (self.leg, &self.standing) {
            said.push(format!("leg {leg}, {standing}"));
        }
        if let Some(leg) = self.replaces {
            said.push(format!("in the place of leg {leg}"));
        }
        if self.lacks > 0 {
            said.push(format!("{} to copy at most", show_size(self.lacks)));
        }
        said.extend(self.state.clone().filter(|state| state != "attached"));
        if let Some(left) = self.retry_s {
            said.push(format!("tried again in {left} s"));
        }
        // The rest of it is in the log.
        said.extend(self.why.as_ref().map(|why| first_words(why)));
        if let Some(limits) = &self.limits {
            limits.describe(&mut said);
        }
        if let Some(work) = &self.work {
            work.describe(&self.kind, &mut said);
        }
        said.join(", ")
    }
}

/// As much of it as there is room for in a table.
fn first_words(text: &str) -> String {
    match text.char_indices().nth(WHY_CHARS) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

impl WorkStatus {
    fn describe(&self, kind: &str, said: &mut Vec<String>) {
        if self.stopped {
            return said.push("stopped: another has one of its legs, or none could go on".into());
        }
        if self.left > 0 {
            let what = if kind == "mirror" { "copy" } else { "check" };
            said.push(format!("{} left to {what} at most", show_size(self.left)));
        }
        if self.copied > 0 {
            said.push(format!("{} copied", show_size(self.copied)));
        }
        if let Some(zeroed) = self.grown {
            said.push(format!(
                "growing: {} of {} are zeroed",
                show_size(zeroed),
                show_size(self.grows_by)
            ));
        }
        if self.held_up {
            said.push("held up, and tried again".into());
        }
        let ScrubStatus { running, failed, position, bytes, from, .. } = self.scrub;
        match (running, failed) {
            (true, _) => said.push(format!(
                "scrub: {} of {} were read",
                show_size(position.saturating_sub(from)),
                show_size(bytes.saturating_sub(from))
            )),
            (_, true) => said.push("scrub: it has ended before everything was read".into()),
            _ if position > 0 => said.push(format!("scrub: {}", self.scrub.line())),
            _ => {}
        }
        if self.paused {
            said.push("paused".into());
        }
        if self.percent != WorkPace::default().percent {
            said.push(format!("at {} % of what users get", self.percent));
        }
    }
}

#[cfg(test)]
#[path = "work_tests.rs"]
mod tests;
