//! `thinwire volume status`, `pause` and `resume`, and `scrub` and `resync` of a volume that is in use: done by the attachment or the target that
//! has it open.

use std::time::{Duration, Instant};

use serde::Serialize;
use thinwire_modules::meta::Label;
use thinwire_modules::mirror::NewLeg;

use super::scrub::{refuse_doubtful, say_all};
use crate::budgets::NewLimit;
use crate::cli::{VolumeCommon, VolumeLive};
use crate::control::{ControlClient, ControlError, ControlRequest, Response};
use crate::error::{Failure, Outcome};
use crate::growth::Grown;
use crate::label_words::label_of_words;
use crate::output;
use crate::pool::PoolName;
use crate::rekeying::StateChange;
use crate::rundir::{RunDir, SCHEMA};
use crate::signals::Signals;
use crate::size::show_size;
use crate::uri::{NodeName, VolumeSpec};
use crate::work::{NodeStatus, ScrubStatus, WorkAction, WorkRequest, WorkStatus, drawn};

/// So long whoever has it may take to answer.
const ANSWER_PATIENCE: Duration = Duration::from_secs(10);
/// What a mirror grows by is zeroed first, beside its users.
const GROWTH_PATIENCE: Duration = Duration::from_secs(24 * 3600);
/// So long a leg that was added may take until it is attached, or says why it is not.
const BRING_PATIENCE: Duration = Duration::from_secs(15);
/// The same once it has said why: that may have been the end of who labelled it, and is tried again before.
const REFUSED_PATIENCE: Duration = Duration::from_secs(7);
/// How often is asked how far it is.
const GLANCE: Duration = Duration::from_millis(100);
/// How often that is said.
const SAY_EVERY: Duration = Duration::from_secs(2);
/// What cannot be copied for so long, in which it is tried again twice, is given up.
const HELD_UP_MAX: Duration = Duration::from_secs(12);

/// `volume status --json`.
#[derive(Serialize)]
struct JsonTree<'a> {
    schema: u32,
    /// `attachment` or `target`, and its name.
    by: &'a str,
    nodes: &'a [NodeStatus],
}

/// Who has a volume open.
pub struct OpenElsewhere {
    dir: RunDir,
    /// In the run directory.
    name: String,
    /// For people.
    who: String,
    /// The volume, as it calls it.
    volume: NodeName,
}

/// The leg of a mirror in use that is called so. What was let go of, and added again, is shown twice: once as what it was, and as no leg, or as a removed one.
fn leg_called(nodes: &[NodeStatus], wanted: &VolumeSpec) -> Option<usize> {
    let is_it = |node: &&NodeStatus| {
        let name = node.name.parse::<VolumeSpec>();
        node.depth == 1 && node.leg.is_some() && name.is_ok_and(|name| name.is_same(wanted))
    };
    let is_removed = |node: &&NodeStatus| node.standing.as_deref() == Some("removed");
    nodes.iter().filter(is_it).min_by_key(is_removed).and_then(|node| node.leg)
}

/// What is asked of a volume that nobody has open.
pub fn nobody(spec: &VolumeSpec) -> Failure {
    Failure::failed(format!(
        "no attachment or target that `thinwire status` shows has {spec} open, under this name of this file: while nobody uses it, it does nothing; \
         `thinwire volume check` says what stands on its parts"
    ))
}

impl OpenElsewhere {
    /// That of this volume; none if nobody of this run directory has it open, or it is described by no file.
    pub fn of(spec: &VolumeSpec, common: &VolumeCommon) -> Outcome<Option<Self>> {
        let VolumeSpec::Over { node: Some(wanted), .. } = spec else { return Ok(None) };
        let Some(dir) = RunDir::open(&common.run_dir.run_dir)? else { return Ok(None) };
        // A pool is open with its volumes.
        let is_pool = matches!(spec.pool(), Some((_, None)));
        let of_pools = |pools: Vec<PoolName>| {
            let node = |PoolName { file, name }| NodeName { file, name };
            pools.into_iter().filter(|_| is_pool).map(node)
        };
        let find = |volumes: Vec<NodeName>, pools: Vec<PoolName>| {
            volumes.into_iter().chain(of_pools(pools)).find(|node| node.is_same(wanted))
        };
        for name in dir.names()? {
            let found = dir.record(&name).and_then(|record| find(record.volumes, record.pools));
            if let (Some(volume), true) = (found, dir.is_alive(&name)) {
                let who = format!("attachment {name}");
                return Ok(Some(OpenElsewhere { dir, name, who, volume }));
            }
        }
        for name in dir.targets()? {
            let Some(record) = dir.target_record(&name) else { continue };
            if let (Some(volume), true) = (find(record.volumes, record.pools), dir.is_alive(&name))
            {
                let who = format!("target {}", record.node);
                return Ok(Some(OpenElsewhere { dir, name, who, volume }));
            }
        }
        Ok(None)
    }

    /// The same.
    ///
    /// # Errors
    /// There is none.
    pub fn must_be(spec: &VolumeSpec, common: &VolumeCommon) -> Outcome<Self> {
        Self::of(spec, common)?.ok_or_else(|| nobody(spec))
    }

    /// Why something is not done that takes a volume which nobody uses.
    pub fn refuse(&self, why: &str) -> Failure {
        Failure::failed(format!(
            "{} has {} open, and {why}: detach it, or end it, first",
            self.who, self.volume
        ))
    }

    fn ask(&self, action: WorkAction, percent: Option<u8>) -> Outcome<Vec<NodeStatus>> {
        match self.answer(action, percent, ANSWER_PATIENCE)? {
            Response::Volume { nodes } => Ok(nodes),
            other => Err(self.failed(&format!("it says {other:?}"))),
        }
    }

    fn failed(&self, why: &dyn std::fmt::Display) -> Failure {
        Failure::failed(format!("{} has the volume: {why}", self.who))
    }

    /// What it says, unless it refuses.
    fn answer(
        &self,
        action: WorkAction,
        percent: Option<u8>,
        patience: Duration,
    ) -> Outcome<Response> {
        let request = WorkRequest { action, percent };
        let asked = ControlRequest::Volume { volume: self.volume.clone(), request };
        let client = ControlClient::ask(&self.dir, &self.name, asked);
        let mut client = client.map_err(|e: ControlError| self.failed(&e))?;
        match client.answer(patience).map_err(|e| self.failed(&e))? {
            Response::Refused { why } => Err(self.failed(&why)),
            other => Ok(other),
        }
    }

    /// Has a mirror do without that leg, named by its number or as it is described: until that is on record. Which one that was.
    pub fn remove(&self, which: &str) -> Outcome<usize> {
        let nodes = self.ask(WorkAction::Status, None)?;
        let called = || leg_called(&nodes, &which.parse().ok()?);
        let leg = which.parse::<usize>().ok().or_else(called).ok_or_else(|| {
            Failure::usage(format!(
                "{which} is none of the legs of {}: name one by its number, which `thinwire volume status` shows",
                self.volume
            ))
        })?;
        self.ask(WorkAction::Remove { leg }, None)?;
        Ok(leg)
    }

    /// Has a mirror put one leg more on record, or looks what that would be, which is this one if it is there already: what its part is to say.
    pub fn add(&self, leg: Option<usize>, only_look: bool) -> Outcome<NewLeg> {
        match self.answer(WorkAction::Add { leg, only_look }, None, ANSWER_PATIENCE)? {
            Response::Leg { leg } => leg.leg().map_err(|why| self.failed(&why)),
            other => Err(self.failed(&format!("it says {other:?}"))),
        }
    }

    /// Has it attach, or open, what is that leg, on record already and labelled. It is called as processes elsewhere find it.
    pub fn bring(&self, leg: usize, part: &str) -> Outcome {
        let part = part.to_owned();
        self.ask(WorkAction::Bring { leg, part }, None).map(|_| ())
    }

    /// Has a leg go as soon as another one has all data.
    pub fn replace(&self, leg: usize, by: usize) -> Outcome {
        self.ask(WorkAction::Replace { leg, by }, None).map(|_| ())
    }

    /// Waits until this leg is in sync, and where it comes in the place of another until that is off the record, and shows how all stand then.
    ///
    /// # Errors
    /// It does not get so far, as it seems: it is not there, and why.
    pub fn await_leg(&self, leg: usize, old: Option<usize>, common: &VolumeCommon) -> Outcome {
        let left = match old {
            None => "the leg is added, and gets what it lacks: `thinwire volume status` says how far it is".into(),
            Some(old) => format!(
                "leg {leg} gets what it lacks, and leg {old} goes then: `thinwire volume status` says how far it is, and `thinwire volume remove` of leg {leg} takes it \
                 back"
            ),
        };
        let mut absent_since: Option<Instant> = None;
        let nodes = self.wait(common.json, &left, |nodes| {
            let find = |leg| nodes.iter().find(|node| node.depth == 1 && node.leg == Some(leg));
            let is_one = |node: &&NodeStatus| node.standing.as_deref() != Some("removed");
            let Some(node) = find(leg).filter(is_one) else {
                return Err(Failure::failed(format!("it has no leg {leg} any more")));
            };
            match (node.standing.as_deref(), old) {
                (Some("in sync"), None) => return Ok(None),
                (Some("in sync"), Some(_)) if node.replaces.is_some() => absent_since = None,
                (Some("in sync"), Some(old)) if find(old).filter(is_one).is_none() => {
                    return Ok(None);
                }
                (Some("in sync"), Some(old)) => {
                    return Err(Failure::failed(format!(
                        "leg {leg} is in sync, and leg {old} was not removed, since others were meanwhile: the same again removes it, or says why it cannot be"
                    )));
                }
                (Some("resyncing"), _) => absent_since = None,
                _ => {
                    let since = *absent_since.get_or_insert_with(Instant::now);
                    let patience = match node.why.is_some() {
                        true => REFUSED_PATIENCE,
                        false => BRING_PATIENCE,
                    };
                    if since.elapsed() > patience {
                        let why = node.why.clone().unwrap_or_else(|| node.describe());
                        return Err(Failure::failed(format!(
                            "leg {leg} ({}) is on record, and not there: {why}. An export is tried again as long as the mirror is in use; the same again, \
                             for anything else, and `thinwire volume remove` gives it up",
                            node.name
                        )));
                    }
                }
            }
            Ok(Some(format!("{} are left to copy at most", show_size(node.lacks))))
        })?;
        self.say(&nodes, common.json)
    }

    /// How it stands.
    pub fn nodes(&self) -> Outcome<Vec<NodeStatus>> {
        self.ask(WorkAction::Status, None)
    }

    /// Has it grow, and all that it is made of: what has become of those, the one that was named last.
    pub fn grow(&self) -> Outcome<Vec<Grown>> {
        if works(&self.nodes()?).any(|work| work.paused) {
            return Err(Failure::failed(format!(
                "{} has paused what goes on beside users of {}, so it would not grow: `thinwire volume resume` has it go on",
                self.who, self.volume
            )));
        }
        match self.answer(WorkAction::Grow, None, GROWTH_PATIENCE)? {
            Response::Grown { volumes } => Ok(volumes),
            other => Err(self.failed(&format!("it says {other:?}"))),
        }
    }

    /// What the label of an encrypted volume says.
    pub fn encrypted_label(&self) -> Outcome<Label> {
        match self.answer(WorkAction::Rekey { change: None }, None, ANSWER_PATIENCE)? {
            Response::Label { label } => label_of_words(&label).ok_or_else(|| {
                self.failed(&"it says of a label what is none here: use the program that it is of")
            }),
            other => Err(self.failed(&format!("it says {other:?}"))),
        }
    }

    /// Has that label keep something else.
    pub fn rekey(&self, change: StateChange) -> Outcome {
        self.ask(WorkAction::Rekey { change: Some(change) }, None).map(|_| ())
    }

    /// Has it do that, and shows how it stands then.
    pub fn tell(&self, action: WorkAction, percent: Option<u8>, common: &VolumeCommon) -> Outcome {
        self.say(&self.ask(action, percent)?, common.json)
    }

    /// Has these limits hold, and shows which do.
    pub fn limit(&self, limits: &[NewLimit], common: &VolumeCommon) -> Outcome {
        let nodes = self.ask(WorkAction::Limits { limits: limits.to_vec() }, None)?;
        let node = nodes.first().and_then(|node| node.limits.as_ref());
        if let Some(now) = node.filter(|now| now.changed && !common.json) {
            let all = match now.volumes {
                0 | 1 => String::new(),
                volumes => format!(" for all {volumes} volumes that share them,"),
            };
            output::complain(&format!(
                "{} holds{all} until it is opened again: describe it so to keep that",
                now.line()
            ));
        }
        self.say(&nodes, common.json)
    }

    /// Begins a scrub, and waits for it if that is asked for.
    pub fn scrub(&self, from: u64, live: VolumeLive, common: &VolumeCommon) -> Outcome {
        let before = self.ask(WorkAction::Status, None)?;
        let began = self.ask(WorkAction::Scrub { from }, live.pace)?;
        refuse_not_begun(&before, &began)?;
        if !live.wait {
            if !common.json {
                output::complain(
                    "the scrub has begun: `thinwire volume status` says how far it is",
                );
            }
            return self.say(&began, common.json);
        }
        let left = "the scrub goes on: `thinwire volume status` says how far it is";
        let is_running = |node: &NodeStatus| node.work.as_ref().is_some_and(|w| w.scrub.running);
        // Others may have had one before, and others may begin one.
        let begun: Vec<_> = began.iter().map(is_running).collect();
        let numbers = |scrubs: &[ScrubStatus]| scrubs.iter().map(|s| s.number).collect::<Vec<_>>();
        let scrubs_of = |nodes: &[NodeStatus]| -> Vec<ScrubStatus> {
            let begun = nodes.iter().zip(&begun).filter(|(_, begun)| **begun);
            begun.filter_map(|(node, _)| Some(node.work.as_ref()?.scrub.clone())).collect()
        };
        let own = numbers(&scrubs_of(&began));
        let nodes = self.wait(common.json, left, |nodes| {
            let scrubs = scrubs_of(nodes);
            if numbers(&scrubs) != own {
                return Err(Failure::failed(
                    "somebody has begun another scrub of it, which has ended this one: `thinwire volume status` says how far that is",
                ));
            }
            if let Some(failed) = scrubs.iter().find(|scrub| scrub.failed) {
                return Err(Failure::failed(format!(
                    "the {} has stopped before everything was read",
                    failed.kind
                )));
            }
            let running: Vec<_> = scrubs.iter().filter(|scrub| scrub.running).collect();
            let far = running.iter().map(|scrub| {
                let [far, all] = [scrub.position, scrub.bytes].map(|at| show_size(at - scrub.from.min(at)));
                format!("{}: {far} of {all} were read", scrub.kind)
            });
            Ok((!running.is_empty()).then(|| far.collect::<Vec<_>>().join(", ")))
        })?;
        let scrubs = scrubs_of(&nodes);
        say_all(&scrubs, common.json)?;
        if let Some(ended) = scrubs.iter().find(|scrub| scrub.position < scrub.bytes) {
            let position = ended.position;
            return Err(Failure::failed(format!(
                "somebody has ended it: --from {position} goes on from there"
            )));
        }
        refuse_doubtful(&self.volume, &scrubs)
    }

    /// Has it try again what could not be copied, and waits for the end if that is asked for.
    pub fn resync(&self, live: VolumeLive, common: &VolumeCommon) -> Outcome {
        let nodes = self.ask(WorkAction::Resync, live.pace)?;
        if works(&nodes).any(|work| work.stopped) {
            return Err(Failure::failed(STOPPED));
        }
        if !live.wait {
            return self.say(&nodes, common.json);
        }
        let left = "it goes on: `thinwire volume status` says how far it is";
        // What lacks stays the same since then, although it was tried again.
        let (mut lacked, mut held_up) = (0, None);
        let mut legs = Used::default();
        let nodes = self.wait(common.json, left, |nodes| {
            legs.see(nodes);
            // What is in doubt behind a crash is no copy: it may stay so until somebody writes it.
            let mirrors = nodes.iter().filter(|node| node.kind == "mirror");
            let mirrors = mirrors.filter_map(|node| node.work.as_ref());
            let busy: Vec<_> = mirrors.filter(|work| work.busy && !work.stopped).collect();
            if works(nodes).any(|work| work.stopped) {
                return Err(Failure::failed(STOPPED));
            }
            let left: u64 = busy.iter().map(|work| work.left).sum();
            if left != lacked || !busy.iter().any(|work| work.held_up) {
                // Between two tries it is not held up.
                held_up = held_up.filter(|_| left == lacked);
            } else if held_up.get_or_insert_with(Instant::now).elapsed() >= HELD_UP_MAX {
                return Err(Failure::failed(format!(
                    "{} could not be copied: its log may say why; that is tried again as long as it is in use",
                    show_size(left)
                )));
            }
            lacked = left;
            Ok((!busy.is_empty()).then(|| format!("{} are left to copy at most", show_size(left))))
        })?;
        self.say(&nodes, common.json)?;
        legs.refuse_lost(&nodes)
    }

    /// Asks how it stands until `far` has nothing to say any more of how far it is.
    fn wait(
        &self,
        is_json: bool,
        left: &str,
        mut far: impl FnMut(&[NodeStatus]) -> Outcome<Option<String>>,
    ) -> Outcome<Vec<NodeStatus>> {
        let signals = Signals::catch()
            .map_err(|e| Failure::failed(format!("cannot take over signals: {e}")))?;
        let mut said_at = Instant::now();
        loop {
            let nodes = self.ask(WorkAction::Status, None)?;
            let Some(far) = far(&nodes)? else { return Ok(nodes) };
            if works(&nodes).any(|work| work.paused && (work.busy || work.scrub.running)) {
                return Err(Failure::failed(format!(
                    "{} has paused it ({far}): `thinwire volume resume` has it go on",
                    self.who
                )));
            }
            if signals.take().is_some() {
                return Err(Failure::failed(format!("interrupted, and {left}")));
            }
            if said_at.elapsed() >= SAY_EVERY && !is_json {
                said_at = Instant::now();
                output::complain(&far);
            }
            std::thread::sleep(GLANCE);
        }
    }

    fn say(&self, nodes: &[NodeStatus], is_json: bool) -> Outcome {
        say_tree(&self.who, nodes, is_json)
    }
}

/// What a volume is made of that this attachment or target has open.
pub fn say_tree(by: &str, nodes: &[NodeStatus], is_json: bool) -> Outcome {
    if is_json {
        return output::say_json(&JsonTree { schema: SCHEMA, by, nodes });
    }
    output::say(&output::printable(&format!("{by}\n{}", drawn(nodes))))
}

/// Legs that were there, by their places in the tree.
#[derive(Default)]
struct Used(Vec<bool>);

impl Used {
    fn see(&mut self, nodes: &[NodeStatus]) {
        self.0.resize(nodes.len(), false);
        for (used, node) in self.0.iter_mut().zip(nodes) {
            let standing = node.standing.as_deref();
            *used |= matches!(standing, Some("in sync" | "resyncing"));
        }
    }

    /// Fails if one of them is not in sync any more.
    fn refuse_lost(&self, nodes: &[NodeStatus]) -> Outcome {
        let used = self.0.iter().zip(nodes).filter(|(used, _)| **used);
        let lost = used.map(|(_, node)| node);
        let lost: Vec<_> =
            lost.filter(|node| node.standing.as_deref() != Some("in sync")).collect();
        if lost.is_empty() {
            return Ok(());
        }
        let each = lost.iter().map(|node| format!("{} ({})", node.name, node.describe()));
        Err(Failure::failed(format!(
            "not all has all data: {}. It was there and failed meanwhile, as the log of who has it open may say; a leg at another target comes back by \
             itself when it answers",
            each.collect::<Vec<_>>().join(", ")
        )))
    }
}

/// Why a resync does not go on.
const STOPPED: &str = "it has stopped: another has one of its legs, or none could go on";

/// A scrub of something that has stopped ends as it begins.
fn refuse_not_begun(before: &[NodeStatus], began: &[NodeStatus]) -> Outcome {
    let scrub = |node: &'_ NodeStatus| node.work.as_ref().map(|work| work.scrub.clone());
    let number = |at: usize| before.get(at).and_then(scrub).map_or(0, |scrub| scrub.number);
    let scrubs = began.iter().enumerate().filter_map(|(at, node)| Some((at, scrub(node)?)));
    for (at, scrub) in scrubs {
        if scrub.failed && !scrub.running && scrub.number != number(at) {
            return Err(Failure::failed(format!(
                "the {} has stopped, and nothing of it can be read: another has it, or a part of it has failed; `thinwire volume status` says which",
                scrub.kind
            )));
        }
    }
    Ok(())
}

fn works(nodes: &[NodeStatus]) -> impl Iterator<Item = &WorkStatus> {
    nodes.iter().filter_map(|node| node.work.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_let_go_of_and_added_again_is_named_by_what_it_is_now() {
        let node = |name: &str, leg, standing: Option<&str>| NodeStatus {
            depth: 1,
            name: name.into(),
            leg,
            standing: standing.map(str::to_owned),
            ..NodeStatus::default()
        };
        let top = NodeStatus { name: "/srv/c.img".into(), leg: Some(7), ..NodeStatus::default() };
        let a = node("/srv/a.img", Some(0), Some("in sync"));
        let again = node("/srv/c.img", Some(2), Some("in sync"));
        let wanted = "/srv/c.img".parse().unwrap();
        // Another came in its place, or none has.
        for before in [(None, None), (Some(1), Some("removed"))] {
            let before = node("/srv/c.img", before.0, before.1);
            let called = before.leg;
            let nodes = [top.clone(), a.clone(), before.clone(), again.clone()];
            assert_eq!(leg_called(&nodes, &wanted), Some(2));
            assert_eq!(leg_called(&nodes[..3], &wanted), called);
        }
        assert_eq!(leg_called(&[top, a], &wanted), None);
    }
}
