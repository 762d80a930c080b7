//! [`find_mirror`]: which mirror the labels of volumes make, and which of its legs are there. Pure: whoever calls has read them.

use crate::Options;
use crate::meta::{AssemblyError, Finding, Label, SeenPart, check_one_whole};

use super::decide::{OpeningPlan, OpeningRefusal, OpeningWish, decide};
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
                    .push((place, "holds another content than when it got its label".into()));
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
    let mut places = vec![None; one.parts.len()];
    let mut states = vec![None; one.parts.len()];
    for &(place, label) in &labels {
        match MirrorState::decode(&label.state) {
            Ok(state) => {
                places[usize::from(label.role)] = Some(place);
                states[usize::from(label.role)] = Some(state);
            }
            Err(fault) => passed_over.push((place, format!("says of the mirror {fault}"))),
        }
    }
    Ok(FoundMirror {
        options: one.options.clone(),
        name: one.name.clone(),
        uuid: one.whole,
        bytes: one.whole_bytes,
        places,
        states,
        passed_over,
    })
}

impl FoundMirror {
    /// As what it can be opened.
    ///
    /// # Errors
    /// See [`decide()`].
    pub fn plan(&self, wish: OpeningWish) -> Result<OpeningPlan, OpeningRefusal> {
        decide(&self.states, wish)
    }

    /// How a leg stands, in a word, by what the newest label that is there says.
    pub fn standing(&self, leg: usize) -> &'static str {
        let plan = self.plan(OpeningWish { degraded: true, from: None, without: None });
        let is_there = self.places[leg].is_some();
        match plan {
            Err(_) if is_there => "there",
            Err(_) => "missing",
            Ok(plan) if plan.current >> leg & 1 == 1 => "in sync",
            Ok(plan) => match (plan.recorded.legs.get(leg), is_there) {
                (Some(LegState::Failed { .. }), _) => "failed",
                (Some(LegState::InSync), false) => "missing",
                (_, false) => "behind, missing",
                (_, true) => "behind",
            },
        }
    }
}
