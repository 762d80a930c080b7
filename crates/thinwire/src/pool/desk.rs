//! [`PoolDesk`]: what is asked of pools that this process has open, done between turns of whatever drives them.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use thinwire_modules::cuts::Cutter;
use thinwire_modules::thin::{OpNumber, PoolDone, PoolError, PoolOp, ThinPool};

use super::{PoolRequest, PoolStatus, describe};
use crate::control::{PoolProgress, Response};
use crate::cuts::CutDesk;
use crate::growth::{GrowthDesk, WholeDesk};
use crate::known_keys::KnownKeys;
use crate::opened::OutlineNode;
use crate::paces::PacesDesk;
use crate::rekeying::KeysDesk;
use crate::trees::NodeName;
use crate::uri::VolumeSpec;
use crate::work::{WorkAction, WorkAsk};

/// A pool, as files describe it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolName {
    /// The file.
    pub file: PathBuf,
    /// Its name there.
    pub name: String,
}

impl PoolName {
    /// Of the pool of a volume of one, or of a pool.
    pub fn of(volume: &VolumeSpec) -> Option<Self> {
        match volume.pool()?.0 {
            VolumeSpec::Over { node: Some(NodeName { file, name }), .. } => {
                let file = std::path::absolute(&file).unwrap_or(file);
                Some(PoolName { file, name })
            }
            _ => None,
        }
    }

    /// The same pool, by whatever path its file is named. Looks at files.
    pub fn is(&self, other: &PoolName) -> bool {
        let same = || (self.file.canonicalize(), other.file.canonicalize());
        let is_file = self.file == other.file || matches!(same(), (Ok(one), Ok(two)) if one == two);
        self.name == other.name && is_file
    }

    /// Of a volume of which snapshots can be taken as one.
    pub fn of_cuts(volume: &VolumeSpec) -> Option<Self> {
        match volume {
            VolumeSpec::Over { node: Some(NodeName { file, name }), .. } if volume.can_be_cut() => {
                let file = std::path::absolute(file).unwrap_or_else(|_| file.clone());
                Some(PoolName { file, name: name.clone() })
            }
            _ => None,
        }
    }

    /// Of all pools in a volume, in order, and of what of it can be cut as one.
    pub fn all_in(volume: &VolumeSpec) -> Vec<Self> {
        let mut found = Vec::new();
        Self::gather(volume, &mut found);
        found
    }

    fn gather(volume: &VolumeSpec, found: &mut Vec<Self>) {
        found.extend(Self::of(volume));
        found.extend(Self::of_cuts(volume));
        if let VolumeSpec::Over { children, .. } = volume {
            children.iter().for_each(|child| Self::gather(child, found));
        }
    }
}

/// What is asked of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolAsk {
    /// The pool.
    pub pool: PoolName,
    /// What is to be done to it.
    pub request: PoolRequest,
}

/// Does what is asked of pools. Each request has a number, under which it ends.
#[derive(Default)]
pub struct PoolDesk {
    last: u64,
    under_way: Vec<UnderWay>,
    cuts: CutDesk,
    growth: GrowthDesk,
    keys: KeysDesk,
    paces: PacesDesk,
}

/// Something that has begun.
struct UnderWay {
    number: u64,
    pool: ThinPool,
    what: What,
}

enum What {
    /// One operation, and what is said when it was done.
    Change { op: OpNumber, said: String },
    /// How much each volume has for itself, as far as that is known; those that are still being measured.
    Measure { volumes: Vec<u64>, own: Vec<Option<u64>>, ops: Vec<(OpNumber, usize)> },
}

fn refused(why: String) -> PoolProgress {
    PoolProgress::Ended(Response::Refused { why })
}

impl PoolDesk {
    /// Nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.under_way.is_empty()
            && self.cuts.is_idle()
            && self.growth.is_idle()
            && self.keys.is_idle()
            && self.paces.is_idle()
    }

    /// Begins to have a volume of this outline grow, of which these are open, with a leg less or more, or with another key.
    pub fn grow(
        &mut self,
        ask: &WorkAsk,
        outline: &[OutlineNode],
        (open, known): (&[(NodeName, WholeDesk)], &KnownKeys),
    ) -> PoolProgress {
        self.last += 1;
        let begun = match &ask.request.action {
            action if action.changes_legs() => self.growth.legs().begin(self.last, ask, open),
            WorkAction::Rekey { .. } => self.keys.begin(self.last, ask, (open, known)),
            _ => self.growth.begin(self.last, ask, outline, open),
        };
        match begun {
            Ok(()) => PoolProgress::Started(self.last),
            Err(why) => refused(why),
        }
    }

    /// What was asked has been done, which this answers: told once labels say it, where they are to.
    pub fn keep(
        &mut self,
        done: (&WorkAsk, Response),
        outline: &[OutlineNode],
        open: &[(NodeName, WholeDesk)],
    ) -> PoolProgress {
        self.last += 1;
        match self.paces.begin(self.last, done, outline, open) {
            None => PoolProgress::Started(self.last),
            Some(response) => PoolProgress::Ended(response),
        }
    }

    /// Begins with what is asked, of one of the pools that are open on a host, or of what can be cut as one there.
    pub fn begin(
        &mut self,
        ask: &PoolAsk,
        pools: &[(VolumeSpec, ThinPool)],
        cuts: &[(PoolName, Cutter)],
    ) -> PoolProgress {
        if let Some((_, cuts)) = cuts.iter().find(|(name, _)| *name == ask.pool) {
            self.last += 1;
            return match self.cuts.begin(self.last, &ask.request, cuts) {
                Ok(()) => PoolProgress::Started(self.last),
                Err(why) => refused(why),
            };
        }
        let is_it = |(spec, _): &&(VolumeSpec, _)| PoolName::of(spec).as_ref() == Some(&ask.pool);
        let Some((_, pool)) = pools.iter().find(is_it) else {
            return refused(format!("it has no pool {} open", ask.pool.name));
        };
        let report = pool.report();
        let what = match (&ask.request, ask.request.op(&report)) {
            (_, Err(why)) => return refused(why),
            (PoolRequest::Show { space: true }, _) => {
                let volumes: Vec<u64> = report.volumes.iter().map(|v| v.volume).collect();
                let measure = |(at, &volume)| (pool.begin(PoolOp::Measure { volume }), at);
                let ops = volumes.iter().enumerate().map(measure).collect();
                What::Measure { own: vec![None; volumes.len()], volumes, ops }
            }
            (_, Ok(None)) => {
                let status = Box::new(PoolStatus::of(&report, &[]));
                return PoolProgress::Ended(Response::Pool { said: String::new(), status });
            }
            (_, Ok(Some((op, said)))) => What::Change { op: pool.begin(op), said },
        };
        self.last += 1;
        self.under_way.push(UnderWay { number: self.last, pool: pool.clone(), what });
        PoolProgress::Started(self.last)
    }

    /// Appends what has ended since the last call, and how.
    pub fn finish(&mut self, ended: &mut Vec<(u64, Response)>) {
        self.cuts.finish(ended);
        self.growth.finish(ended);
        self.keys.finish(ended);
        self.paces.finish(ended);
        let mut results = Vec::new();
        for nth in 0..self.under_way.len() {
            let pool = self.under_way[nth].pool.clone();
            let mut of_pool = Vec::new();
            pool.poll_ops(&mut of_pool);
            let is_of = |other: &UnderWay| other.pool.is(&pool);
            for (op, result) in of_pool {
                let asked = self.under_way.iter_mut().filter(|other| is_of(other));
                results.extend(asked.filter_map(|asked| asked.hear(op, &result)));
            }
        }
        for asked in &mut self.under_way {
            let is_answered = results.iter().any(|(number, _)| *number == asked.number);
            // Without volumes nothing is measured.
            results.extend(asked.measured().filter(|_| !is_answered));
        }
        self.under_way.retain(|asked| !results.iter().any(|(number, _)| *number == asked.number));
        ended.append(&mut results);
    }
}

impl UnderWay {
    /// An operation has ended: the answer, if it was the last of this.
    fn hear(
        &mut self,
        ended: OpNumber,
        result: &Result<PoolDone, PoolError>,
    ) -> Option<(u64, Response)> {
        match &mut self.what {
            What::Change { op, said } if *op == ended => {
                let response = match result {
                    Ok(_) => {
                        let status = Box::new(PoolStatus::of(&self.pool.report(), &[]));
                        Response::Pool { said: std::mem::take(said), status }
                    }
                    Err(error) => {
                        let why = describe(error, &self.pool.report());
                        Response::Refused { why }
                    }
                };
                Some((self.number, response))
            }
            What::Measure { own, ops, .. } => {
                let at = ops.iter().position(|(op, _)| *op == ended)?;
                let (_, volume) = ops.swap_remove(at);
                match result {
                    Ok(PoolDone::Measured { own_bytes, .. }) => own[volume] = Some(*own_bytes),
                    // It was deleted meanwhile.
                    Err(PoolError::NoVolume { .. }) | Ok(_) => {}
                    Err(error) => {
                        let why = error.to_string();
                        return Some((self.number, Response::Refused { why }));
                    }
                }
                None
            }
            What::Change { .. } => None,
        }
    }

    /// The answer of a measurement that is through.
    fn measured(&mut self) -> Option<(u64, Response)> {
        match &self.what {
            What::Measure { volumes, own, ops } if ops.is_empty() => {
                let report = self.pool.report();
                let of = |volume| {
                    let at = volumes.iter().position(|measured| *measured == volume)?;
                    own[at]
                };
                let own: Vec<_> = report.volumes.iter().map(|v| of(v.volume)).collect();
                let status = Box::new(PoolStatus::of(&report, &own));
                Some((self.number, Response::Pool { said: String::new(), status }))
            }
            _ => None,
        }
    }
}
