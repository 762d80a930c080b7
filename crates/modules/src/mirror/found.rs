//! [`find_mirror`]: which mirror the labels of volumes make, and which of its legs are there. Pure: whoever calls has read them.

use crate::Options;
use crate::meta::{AssemblyError, Finding, Label, LabelPart, SeenPart, check_one_whole};

use super::decide::{DISTRUSTED, OpeningPlan, OpeningRefusal, OpeningWish, decide, knows_as_older};
use super::state::{LegState, MirrorState};

/// A mirror of which legs were found.
#[derive(Clone, Debug)]
pub struct FoundMirror {
    /// What it was told when it was made.
    pub options: Options,
    /// What people call it.
    pub name: String,
    /// What programs do.
    pub uuid: [u8; 16],
    /// Its bytes.
    pub bytes: u64,
    /// What the labels say of its parts, in the order of the legs. Of each only its own label says its size.
    pub parts: Vec<LabelPart>,
    /// For each leg, in which of the places that were looked at it is, counted from 0; `None` if it is in none.
    pub places: Vec<Option<usize>>,
    /// What each of those says of the mirror.
    pub states: Vec<Option<MirrorState>>,
    /// Places that are no legs, and why.
    pub passed_over: Vec<(usize, String)>,
}

/// Looks at what was found in places, none where nothing could be looked at. A place without a label, or with one that cannot be gone by,
/// and one that holds another content than when it got its label (rule 16), is no leg: it is as missing.
///
/// # Errors
/// No place is a leg, or some are of different wholes, or twins (rule 17).
pub fn find_mirror(seen: &[Option<SeenPart>]) -> Result<FoundMirror, AssemblyError> {
    let (mut labels, mut passed_over) = (Vec::<(usize, &Label)>::new(), Vec::new());
    let mut refused = None;
    for (place, part) in seen.iter().enumerate() {
        let Some(part) = part else { continue };
        match &part.found {
            Ok(Finding::Label(found)) if found.label.content == part.content => {
                labels.push((place, &found.label));
            }
            Ok(Finding::Label(_)) => {
                let error = AssemblyError::OtherContent { place };
                passed_over
                    .push((place, "holds another content than when it got its label (`thinwire volume adopt`, if it is the leg all the same)".into()));
                refused = refused.or(Some(error));
            }
            Ok(Finding::Blank) => {
                passed_over.push((place, "has no label".into()));
                refused = refused.or(Some(AssemblyError::Blank { place, labelled: None }));
            }
            Err(error) => {
                passed_over.push((place, error.to_string()));
                let error = AssemblyError::Label { place, error: error.clone() };
                refused = refused.or(Some(error));
            }
        }
    }
    check_one_whole(&labels)?;
    let Some(&(_, one)) = labels.first() else {
        return Err(refused.unwrap_or(AssemblyError::Nothing));
    };
    check_lists(&labels)?;
    let mut found = Vec::new();
    for &(place, label) in &labels {
        match MirrorState::decode(&label.state) {
            Ok(state) if state.legs.len() == label.parts.len() => found.push((place, label, state)),
            Ok(_) => {
                passed_over.push((place, "says of another number of legs than of parts".into()))
            }
            Err(fault) => passed_over.push((place, format!("says of the mirror {fault}"))),
        }
    }
    let count = count_of(&found).unwrap_or(one.parts.len());
    let of_all = |(_, label): &&(usize, &Label)| label.parts.len() >= count;
    let parts =
        labels.iter().find(of_all).map_or(&one.parts[..], |(_, label)| &label.parts[..count]);
    let (mut places, mut states) = (vec![None; parts.len()], vec![None; parts.len()]);
    for (place, label, state) in found {
        let role = usize::from(label.role);
        if role >= parts.len() {
            let why = "was added as a leg, and the newest label knows nothing of that";
            passed_over.push((place, why.into()));
            continue;
        }
        (places[role], states[role]) = (Some(place), Some(state.of_legs(parts.len())));
    }
    let mut found = FoundMirror {
        options: one.options.clone(),
        name: one.name.clone(),
        uuid: one.whole,
        bytes: one.whole_bytes,
        parts: parts.to_vec(),
        places,
        states,
        passed_over,
    };
    found.bytes = found.newest_bytes(&labels);
    Ok(found)
}

/// Where some know of more legs than others, those are the first of what the others know.
fn check_lists(labels: &[(usize, &Label)]) -> Result<(), AssemblyError> {
    let Some(&(longest, all)) = labels.iter().max_by_key(|(_, label)| label.parts.len()) else {
        return Ok(());
    };
    let is_other = |(_, label): &&(usize, &Label)| {
        label.parts.iter().zip(&all.parts).any(|(one, other)| one.uuid != other.uuid)
    };
    match labels.iter().find(is_other) {
        None => Ok(()),
        Some(&(place, _)) => {
            let places = [place.min(longest), place.max(longest)];
            Err(AssemblyError::Differ { places, field: "the list of parts" })
        }
    }
}

/// How many legs there are by the newest of these; most of what any says where that is not known.
fn count_of(found: &[(usize, &Label, MirrorState)]) -> Option<usize> {
    let role = |label: &Label| usize::from(label.role);
    let in_sync =
        || found.iter().filter(|(_, label, state)| state.legs[role(label)] == LegState::InSync);
    let is_older = |label: &Label, state: &MirrorState| {
        in_sync().any(|(_, _, other)| {
            // What knows nothing of that leg can know its generation all the same.
            let other = other.clone().of_legs(other.legs.len().max(role(label) + 1));
            knows_as_older(&other, role(label), state.generation)
        })
    };
    let newest = in_sync().filter(|(_, label, state)| !is_older(label, state));
    let mut counts = newest.map(|(_, _, state)| state.legs.len());
    let first = counts.next();
    match first {
        Some(count) if counts.all(|other| other == count) => Some(count),
        _ => found.iter().map(|(_, _, state)| state.legs.len()).max(),
    }
}

impl FoundMirror {
    /// How many bytes it has by the newest of these; others may not know yet that it has grown.
    fn newest_bytes(&self, labels: &[(usize, &Label)]) -> u64 {
        let wish = OpeningWish { degraded: true, ..OpeningWish::default() };
        let generation = self.plan(wish).ok().map(|plan| plan.recorded.generation);
        let is_newest = |(place, _): &&(usize, &Label)| {
            let leg = self.places.iter().position(|at| *at == Some(*place));
            let says = leg.and_then(|leg| self.states[leg].as_ref());
            says.is_some_and(|says| Some(says.generation) == generation)
        };
        let most = || labels.iter().map(|(_, label)| label.whole_bytes).max();
        let newest = labels.iter().find(is_newest).map(|(_, label)| label.whole_bytes);
        newest.or_else(most).unwrap_or(0)
    }

    /// Legs in these places are taken for what their labels say, though their content is another: as each is the leg that it was, and may be as it was
    /// at any time (rules 16 and 25). Where another says that it has all data, it gets all of that, also if it is on record as behind: what it has lost
    /// stands in no bitmap.
    pub fn distrust(&mut self, places: &[usize]) {
        let is_in_sync = |of: &Self, leg: usize| {
            of.states[leg].as_ref().is_some_and(|state| state.legs[leg] == LegState::InSync)
        };
        let is_adopted = |place: &Option<usize>| place.is_some_and(|place| places.contains(&place));
        let (adopted, others): (Vec<usize>, Vec<usize>) =
            (0..self.places.len()).partition(|leg| is_adopted(&self.places[*leg]));
        let knows_better = others.iter().any(|leg| is_in_sync(self, *leg));
        for leg in adopted {
            // If nobody is left who could know better, those that say they have all do.
            if !knows_better && is_in_sync(self, leg) {
                continue;
            }
            if let Some(state) = &mut self.states[leg] {
                state.legs[leg] = DISTRUSTED;
            }
        }
    }

    /// The label of a leg that is there, as the newest one has the list of all legs.
    pub fn label(&self, leg: usize, mut label: Label) -> Label {
        let own = label.part();
        label.parts.clone_from(&self.parts);
        label.parts[leg].bytes = own.bytes;
        if let Some(state) = &self.states[leg] {
            label.state = state.encode();
        }
        label
    }

    /// Legs that were not removed, which are those that are described.
    pub fn described(&self) -> Vec<usize> {
        self.described_for(None)
    }

    /// The same, where this leg is to be the truth: as that one knows it. Where nobody knows which label is right, a leg was removed if
    /// each of those says so that may be.
    pub fn described_for(&self, from: Option<usize>) -> Vec<usize> {
        let wish = OpeningWish { degraded: true, from, change: None };
        let recorded = match self.plan(wish) {
            Ok(plan) => vec![plan.recorded],
            Err(_) => self.newest(),
        };
        let says = |state: &MirrorState, leg: usize| {
            matches!(state.legs.get(leg), Some(LegState::Removed { .. }))
        };
        let is_removed =
            |leg: usize| !recorded.is_empty() && recorded.iter().all(|state| says(state, leg));
        (0..self.places.len()).filter(|leg| !is_removed(*leg)).collect()
    }

    /// What those legs say that have all data by their own labels, and that none of them knows as older; all that are there where none has.
    fn newest(&self) -> Vec<MirrorState> {
        let there = || (0..).zip(&self.states).filter_map(|(leg, own)| Some((leg, own.as_ref()?)));
        let whole: Vec<(usize, &MirrorState)> =
            there().filter(|(leg, own)| own.legs[*leg] == LegState::InSync).collect();
        let is_older = |(leg, own): &(usize, &MirrorState)| {
            whole.iter().any(|(_, other)| knows_as_older(other, *leg, own.generation))
        };
        let newest: Vec<_> = whole.iter().filter(|leg| !is_older(leg)).copied().collect();
        let newest = if newest.is_empty() { there().collect() } else { newest };
        newest.into_iter().map(|(_, own)| own.clone()).collect()
    }

    /// As what it can be opened.
    ///
    /// # Errors
    /// See [`decide()`].
    pub fn plan(&self, wish: OpeningWish) -> Result<OpeningPlan, OpeningRefusal> {
        decide(&self.states, wish)
    }

    /// How a leg stands, in a word, by what the newest label that is there says.
    pub fn standing(&self, leg: usize) -> &'static str {
        let plan = self.plan(OpeningWish { degraded: true, ..OpeningWish::default() });
        let is_there = self.places[leg].is_some();
        match plan {
            Err(_) if is_there => "there",
            Err(_) => "missing",
            Ok(plan) if plan.current >> leg & 1 == 1 => "in sync",
            Ok(plan) => match (plan.recorded.legs.get(leg), is_there) {
                (Some(LegState::Failed { .. }), _) => "failed",
                (Some(LegState::Removed { .. }), _) => "removed",
                (Some(LegState::InSync), false) => "missing",
                (_, false) => "behind, missing",
                (_, true) => "behind",
            },
        }
    }
}
