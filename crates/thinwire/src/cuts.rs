//! Volumes of which snapshots are taken as one (`docs/format.md`, "Cuts"): those that are open on a host, what is asked of them, and cuts that are
//! put together to be read.

use std::cell::{Cell, RefCell};

use serde::{Deserialize, Serialize};
use thinwire_modules::cuts::{
    CutAsk, CutError, CutNumber, CutResult, Cutter, KnownCut, OfCut, cut_of,
};
use thinwire_modules::meta::Finding;
use thinwire_runtime::clock::entropy;
use thinwire_volume::{CUT_NAME_BYTES_MAX, Volume};

use crate::control::Response;
use crate::error::{Failure, Outcome};
use crate::host::Host;
use crate::labelled::{Opening, read_all};
use crate::mirrored::seconds_now;
use crate::pool::{PoolName, PoolRequest};
use crate::size::check_name;
use crate::uri::VolumeSpec;

/// Those that are open on a host, by what files call them.
#[derive(Default)]
pub struct OpenCuts(RefCell<Vec<(PoolName, Cutter)>>);

impl OpenCuts {
    /// One was opened.
    pub fn add(&self, name: PoolName, cuts: Cutter) {
        let mut open = self.0.borrow_mut();
        // Those of legs that have come and gone.
        open.retain(|(_, cuts)| !cuts.is_closed());
        open.push((name, cuts));
    }

    /// All that are open.
    pub fn all(&self) -> Vec<(PoolName, Cutter)> {
        let mut open = self.0.borrow_mut();
        open.retain(|(_, cuts)| !cuts.is_closed());
        open.clone()
    }
}

/// A cut, for programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CutStatus {
    /// What it is called.
    pub name: String,
    /// In seconds since 1970; 0 if that is not known.
    pub created_at: u64,
}

impl CutStatus {
    /// Of each of these.
    pub fn of(known: Vec<KnownCut>) -> Vec<Self> {
        known.into_iter().map(|cut| CutStatus { name: cut.name, created_at: cut.at }).collect()
    }
}

/// Something that is being done to one.
struct UnderWay {
    number: u64,
    cuts: Cutter,
    asked: CutNumber,
    /// The cut that is to go once it is found.
    drops: Option<String>,
    said: String,
}

/// Does what is asked of those that are open.
#[derive(Default)]
pub struct CutDesk {
    under_way: Vec<UnderWay>,
}

impl CutDesk {
    /// Nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Begins with what is asked, which ends under that number.
    ///
    /// # Errors
    /// It is nothing that can be done to one.
    pub fn begin(
        &mut self,
        number: u64,
        request: &PoolRequest,
        cuts: &Cutter,
    ) -> Result<(), String> {
        let (ask, drops, said) = match request {
            PoolRequest::Show { .. } => (CutAsk::List, None, String::new()),
            PoolRequest::Snapshot { name, .. } => {
                check_cut_name(name)?;
                let (id, at) = (entropy().max(1), seconds_now());
                let said = format!("made {name}: a snapshot of all parts as one");
                (CutAsk::Take { id, name: name.clone(), at }, None, said)
            }
            PoolRequest::Delete { volume } => {
                (CutAsk::List, Some(volume.clone()), format!("deleted {volume}"))
            }
            _ => return Err("it is no pool: snapshots of it are made, shown and deleted".into()),
        };
        let asked = cuts.ask(ask);
        self.under_way.push(UnderWay { number, cuts: cuts.clone(), asked, drops, said });
        Ok(())
    }

    /// Appends what has ended since the last call, and how.
    pub fn finish(&mut self, ended: &mut Vec<(u64, Response)>) {
        let mut told: Vec<(Cutter, CutNumber, CutResult)> = Vec::new();
        for one in &self.under_way {
            let mut of = Vec::new();
            one.cuts.poll_ended(&mut of);
            told.extend(of.into_iter().map(|(number, result)| (one.cuts.clone(), number, result)));
        }
        for (cuts, number, result) in told {
            let is_it = |one: &UnderWay| one.cuts.is(&cuts) && one.asked == number;
            let Some(at) = self.under_way.iter().position(is_it) else { continue };
            if let Some(response) = self.under_way[at].hear(result) {
                ended.push((self.under_way.swap_remove(at).number, response));
            }
        }
    }
}

impl UnderWay {
    /// The answer, if that was all.
    fn hear(&mut self, result: CutResult) -> Option<Response> {
        let said = std::mem::take(&mut self.said);
        match (result, self.drops.take()) {
            (Err(error), _) => Some(Response::Refused { why: error.to_string() }),
            (Ok(known), None) => Some(Response::Cuts { said, cuts: CutStatus::of(known) }),
            (Ok(known), Some(name)) => match known.iter().find(|cut| cut.name == name) {
                Some(cut) => {
                    (self.asked, self.said) = (self.cuts.ask(CutAsk::Drop { id: cut.id }), said);
                    None
                }
                None => {
                    let names: Vec<_> = known.iter().map(|cut| &*cut.name).collect();
                    let why = match names.is_empty() {
                        true => format!("it has no snapshot `{name}`, nor any other"),
                        false => {
                            format!("it has no snapshot `{name}` (there are: {})", names.join(", "))
                        }
                    };
                    Some(Response::Refused { why })
                }
            },
        }
    }
}

/// Whether a cut can be called that: exports of its parts are, too.
fn check_cut_name(name: &str) -> Result<(), String> {
    check_name("snapshot name", name).map_err(|e| e.to_string())?;
    match name.len() > CUT_NAME_BYTES_MAX {
        true => {
            Err(format!("`{name}`: a snapshot has a name of {CUT_NAME_BYTES_MAX} bytes at most"))
        }
        false => Ok(()),
    }
}

/// Has parts that are snapshots of one cut stand for what they were cut of, as their labels say. Which cut that is stands in `cut` then, or did: 0 if it
/// is not known yet.
///
/// # Errors
/// One is no snapshot of a cut, or of another one.
pub fn take_as_parts(
    host: &Host,
    specs: &[VolumeSpec],
    children: Vec<Box<dyn Volume>>,
    by: &Opening<'_>,
    cut: &Cell<u64>,
) -> Outcome<Vec<Box<dyn Volume>>> {
    let mut children = children;
    let (_, seen) = read_all(host, &mut children, 0, by, None)?;
    let mut parts: Vec<Box<dyn Volume>> = Vec::new();
    for ((child, spec), seen) in children.into_iter().zip(specs).zip(seen) {
        let Ok(Finding::Label(found)) = seen.found else {
            // Whoever puts them together says what is wrong with it.
            parts.push(child);
            continue;
        };
        match (cut_of(&found.label, seen.content), cut.get()) {
            (Some(id), known) if [0, id].contains(&known) => {
                cut.set(id);
                parts.push(Box::new(OfCut::part(child, &found.label)));
            }
            (Some(_), _) => {
                return Err(Failure::failed(format!(
                    "{spec} is of another snapshot than the others"
                )));
            }
            // What is put together of snapshots stands for it already.
            (None, _) if matches!(spec, VolumeSpec::Over { .. }) && spec.inner().is_none() => {
                parts.push(child);
            }
            (None, _) => {
                return Err(Failure::failed(format!(
                    "{spec} is no snapshot of a part that was taken with those of the others"
                )));
            }
        }
    }
    Ok(parts)
}

/// The same of the legs of a mirror, of which some may not be there.
///
/// # Errors
/// As [`take_as_parts`].
pub fn take_as_legs(
    host: &Host,
    specs: &[VolumeSpec],
    children: Vec<Outcome<Box<dyn Volume>>>,
    by: &Opening<'_>,
    cut: &Cell<u64>,
) -> Outcome<Vec<Outcome<Box<dyn Volume>>>> {
    let mut legs = Vec::new();
    for (child, spec) in children.into_iter().zip(specs) {
        legs.push(match child {
            Ok(child) => {
                let mut leg =
                    take_as_parts(host, std::slice::from_ref(spec), vec![child], by, cut)?;
                Ok(leg.remove(0))
            }
            absent => absent,
        });
    }
    Ok(legs)
}

/// As users are told of it.
impl From<CutError> for Failure {
    fn from(error: CutError) -> Self {
        Failure::failed(error.to_string())
    }
}
