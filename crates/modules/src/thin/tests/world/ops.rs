//! Operations on the pool of a [`World`], and what they make of the model.

use super::super::super::*;
use super::super::disk::SECTOR;
use super::super::model::{Known, Life, When};
use super::World;

impl World {
    /// Begins an operation, when none is under way.
    pub fn begin(&mut self, op: PoolOp) {
        assert!(self.op.is_none());
        *self.begun.entry(kind_of(&op)).or_default() += 1;
        let now = self.tick();
        let (number, cut) = match &op {
            PoolOp::Snapshot { volume, .. } | PoolOp::Clone { volume, .. } => {
                // What is submitted from now on is not in it.
                let number = self.pool.begin(op.clone());
                let cut = self.model.get_mut(volume).map(|known| known.life().clone());
                (number, cut)
            }
            // It may come to light before it is told.
            PoolOp::RollBack { volume, to, incarnation } => {
                let life = self.model.get_mut(to).map(|known| known.life().cut(now));
                if let (Some(mut life), Some(known)) = (life, self.model.get_mut(volume)) {
                    life.grow(known.bytes.max(life.sectors.len() as u64 * SECTOR));
                    known.lives.insert(*incarnation, (When { begun: now, ended: None }, life));
                }
                (self.pool.begin(op.clone()), None)
            }
            PoolOp::Delete { volume } => {
                if let Some(known) = self.model.get_mut(volume) {
                    known.deleted = Some(When { begun: now, ended: None });
                }
                (self.pool.begin(op.clone()), None)
            }
            _ => (self.pool.begin(op.clone()), None),
        };
        self.op = Some((number, op, now, cut));
        self.note_volumes();
        self.take_ops();
    }

    /// Puts volumes into the model that are there, whether that is durable or not.
    pub(super) fn note_volumes(&mut self) {
        let Some((_, op, begun, cut)) = &self.op else { return };
        let (incarnation, bytes, origin, is_read_only) = match op {
            PoolOp::Create { incarnation, bytes, .. } => (*incarnation, *bytes, 0, false),
            PoolOp::Snapshot { incarnation, volume, .. } => (*incarnation, 0, *volume, true),
            PoolOp::Clone { incarnation, volume, .. } => (*incarnation, 0, *volume, false),
            _ => return,
        };
        let report = self.pool.report();
        let Some(new) = report.volumes.iter().find(|volume| volume.incarnation == incarnation)
        else {
            return;
        };
        if self.model.contains_key(&new.volume) {
            return;
        }
        let mut life = match cut {
            Some(_) => self.model[&origin].lives[&self.model[&origin].now].1.cut(*begun),
            None => Life::new(bytes),
        };
        life.grow(new.bytes);
        let known = Known {
            lives: [(incarnation, (When { begun: *begun, ended: None }, life))].into(),
            now: incarnation,
            deleted: None,
            origin,
            is_read_only,
            bytes: new.bytes,
        };
        self.model.insert(new.volume, known);
    }

    pub(super) fn take_ops(&mut self) {
        self.note_volumes();
        let mut ended = Vec::new();
        self.pool.poll_ops(&mut ended);
        for (number, result) in ended {
            let now = self.tick();
            let (of, op, _, _) = self.op.take().expect("one was begun");
            assert_eq!(of, number);
            match &result {
                Ok(done) => self.op_results.push(*done),
                Err(error) => {
                    assert!(!error.to_string().is_empty());
                    self.op_errors.push(error.clone());
                }
            }
            match (op, result) {
                (_, Ok(PoolDone::Created { volume })) => {
                    let known = self.model.get_mut(&volume).expect("it was noted");
                    known.lives.get_mut(&known.now).unwrap().0.ended = Some(now);
                }
                (PoolOp::Delete { volume }, result) => {
                    let Some(known) = self.model.get_mut(&volume) else { continue };
                    match (&result, &mut known.deleted) {
                        (Ok(_), Some(when)) => when.ended = Some(now),
                        (Err(PoolError::Stopped { .. }), _) => {}
                        _ => known.deleted = None,
                    }
                }
                (PoolOp::RollBack { volume, incarnation, .. }, Ok(_)) => {
                    let known = self.model.get_mut(&volume).expect("it is known");
                    known.now = incarnation;
                    known.lives.get_mut(&incarnation).unwrap().0.ended = Some(now);
                }
                // As if it had not been asked for.
                (
                    PoolOp::Create { incarnation, .. }
                    | PoolOp::Snapshot { incarnation, .. }
                    | PoolOp::Clone { incarnation, .. },
                    Err(PoolError::Stopped { .. }),
                ) => {
                    let its = |known: &&mut Known| known.now == incarnation;
                    if let Some(known) = self.model.values_mut().find(its) {
                        known.deleted = Some(When { begun: now, ended: Some(now) });
                    }
                }
                // It was done, and may be lost.
                (PoolOp::RollBack { volume, incarnation, .. }, Err(PoolError::Stopped { .. })) => {
                    let report = self.pool.report();
                    let is_done = report.volumes.iter().any(|of| of.incarnation == incarnation);
                    let known = self.model.get_mut(&volume).filter(|_| is_done);
                    known.into_iter().for_each(|known| known.now = incarnation);
                }
                (PoolOp::Resize { volume, bytes }, Ok(_)) => {
                    let known = self.model.get_mut(&volume).expect("it is known");
                    known.bytes = bytes;
                    known.lives.values_mut().for_each(|(_, life)| life.grow(bytes));
                }
                _ => {}
            }
        }
    }

    /// Does an operation, and waits for its end.
    pub fn run(&mut self, op: PoolOp) -> Option<PoolDone> {
        let before = self.op_results.len();
        self.begin(op);
        for at in 0..200_000 {
            if self.op.is_none() {
                return self.op_results.get(before).copied();
            }
            self.turn();
            if at % 64 == 63 {
                self.pass(100);
            }
        }
        panic!("seed {}: the operation does not end", self.setup.seed);
    }
}

fn kind_of(op: &PoolOp) -> &'static str {
    match op {
        PoolOp::Create { .. } => "create",
        PoolOp::Snapshot { .. } => "snapshot",
        PoolOp::Clone { .. } => "clone",
        PoolOp::RollBack { .. } => "roll back",
        PoolOp::Delete { .. } => "delete",
        PoolOp::Resize { .. } => "resize",
        PoolOp::Rename { .. } => "rename",
        PoolOp::Measure { .. } => "measure",
        PoolOp::Cut { .. } => "cut",
        PoolOp::StoreWriter { .. } => "store a writer",
    }
}
