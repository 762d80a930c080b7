//! `thinwire volume create POOL@NAME`, `snapshot`, `clone`, `rollback`, `delete`, `grow` and `show`: volumes of pools, while nobody uses the pool.

use std::time::{Duration, Instant};

use serde::Serialize;
use thinwire_modules::thin::{PoolDone, PoolOp, PoolReport, ThinPool, VolumeReport};
use thinwire_runtime::clock::entropy;

use super::options_of;
use crate::cli::VolumeCommon;
use crate::error::{Failure, Outcome};
use crate::guard::refuse_in_use;
use crate::last_resort::catch_signals;
use crate::mirrored::seconds_now;
use crate::open::{Ending, OpenVolume, Wait, let_go, let_go_failed, open_volume};
use crate::output;
use crate::pool::PoolPlace;
use crate::rundir::SCHEMA;
use crate::signals::Signals;
use crate::size::show_size;
use crate::uri::VolumeSpec;

/// How often is looked how far it is.
const GLANCE: Duration = Duration::from_millis(20);
/// How often that is said.
const SAY_EVERY: Duration = Duration::from_secs(2);

/// What is done to a pool.
pub enum PoolAction<'a> {
    /// A new volume of so many bytes.
    Create { bytes: u64 },
    /// What it is now, read-only, under this name.
    Snapshot { name: &'a str },
    /// What it is now, to be written.
    Clone { name: &'a str },
    /// It is again what that snapshot is.
    RollBack { to: &'a str },
    /// It is no more.
    Delete,
    /// It has so many bytes.
    Grow { bytes: u64 },
}

/// A pool that is open to be changed, and what drives it.
struct OpenPool<'a> {
    open: Box<dyn OpenVolume>,
    pool: ThinPool,
    signals: &'a Signals,
}

impl OpenPool<'_> {
    fn turn(&mut self) -> Outcome {
        self.open.turn(Wait::Until(Instant::now() + GLANCE))?;
        self.pool.poll();
        Ok(())
    }

    /// Does one thing, durably.
    fn act(&mut self, op: PoolOp) -> Outcome<PoolDone> {
        let number = self.pool.begin(op);
        let mut ended = Vec::new();
        loop {
            self.pool.poll_ops(&mut ended);
            if let Some((_, result)) = ended.drain(..).find(|(ended, _)| *ended == number) {
                return result.map_err(|e| Failure::failed(e.to_string()));
            }
            if self.signals.take().is_some() {
                return Err(Failure::failed(
                    "interrupted: it was done, or it was not; `thinwire volume show` says",
                ));
            }
            self.turn()?;
        }
    }

    /// Until what was deleted has been given back; that can be left to whoever uses the pool next.
    fn reap(&mut self, is_json: bool) -> Outcome {
        let mut said_at = Instant::now();
        while self.pool.report().is_reaping && self.pool.stopped().is_none() {
            if self.signals.take().is_some() {
                output::complain("interrupted: its blocks come back when the pool is used");
                return Ok(());
            }
            if said_at.elapsed() >= SAY_EVERY && !is_json {
                said_at = Instant::now();
                let used = self.pool.report().data_used_bytes;
                output::complain(&format!("{} of data are in use", show_size(used)));
            }
            self.turn()?;
        }
        Ok(())
    }
}

/// The pool of a volume, and the name of that.
fn pool_of(spec: &VolumeSpec) -> Outcome<(VolumeSpec, Option<&str>)> {
    match spec {
        VolumeSpec::Over { module, labels: true, inner, .. } if module.has_volumes() => {
            let name = inner.as_deref();
            let mut pool = spec.clone();
            if let VolumeSpec::Over { inner, node, .. } = &mut pool {
                *inner = None;
                if let (Some(node), Some(name)) = (node, name) {
                    let base = node.name.len() - name.len() - 1;
                    node.name.truncate(base);
                }
            }
            Ok((pool, name))
        }
        _ => Err(Failure::usage(format!(
            "{spec} is no pool, nor a volume of one: describe one with kind = \"thin\", and name a volume of it as FILE.toml#POOL@VOLUME"
        ))),
    }
}

/// Does that to a volume of a pool.
pub fn act(
    spec: &VolumeSpec,
    action: &PoolAction<'_>,
    take_over: bool,
    common: &VolumeCommon,
) -> Outcome {
    let (pool, name) = pool_of(spec)?;
    let Some(name) = name else {
        return Err(Failure::usage(format!(
            "{spec} is a pool: name a volume of it, as {spec}@VOLUME"
        )));
    };
    refuse_in_use(&pool, "changing it")?;
    let done = with_pool(&pool, false, take_over, common, |open| {
        let done = apply(open, name, action)?;
        if matches!(action, PoolAction::Delete) {
            open.reap(common.json)?;
        }
        Ok((done, open.pool.report()))
    });
    let (said, report) = done?;
    if common.json {
        return output::say_json(&json_of(&report, &[]));
    }
    output::say(&said)
}

/// What was done, in a sentence.
fn apply(open: &mut OpenPool<'_>, name: &str, action: &PoolAction<'_>) -> Outcome<String> {
    let report = open.pool.report();
    let number = |name: &str| match report.volumes.iter().find(|volume| volume.name == name) {
        Some(volume) => Ok(volume.volume),
        None => Err(Failure::failed(format!(
            "the pool has no volume `{name}`: `thinwire volume show` lists them"
        ))),
    };
    let (at, incarnation) = (seconds_now(), entropy());
    let (op, said) = match *action {
        PoolAction::Create { bytes } => (
            PoolOp::Create { name: name.to_owned(), bytes, incarnation, at },
            format!("made {name}: {bytes} bytes"),
        ),
        PoolAction::Snapshot { name: other } => (
            PoolOp::Snapshot { volume: number(name)?, name: other.to_owned(), incarnation, at },
            format!("made {other}: a snapshot of {name}"),
        ),
        PoolAction::Clone { name: other } => (
            PoolOp::Clone { volume: number(name)?, name: other.to_owned(), incarnation, at },
            format!("made {other}: a clone of {name}"),
        ),
        PoolAction::RollBack { to } => (
            PoolOp::RollBack { volume: number(name)?, to: number(to)?, incarnation },
            format!("{name} is what {to} is"),
        ),
        PoolAction::Delete => (PoolOp::Delete { volume: number(name)? }, format!("deleted {name}")),
        PoolAction::Grow { bytes } => {
            (PoolOp::Resize { volume: number(name)?, bytes }, format!("{name} has {bytes} bytes"))
        }
    };
    open.act(op).map(|_| said)
}

/// Opens a pool, has something done, and lets go of it.
fn with_pool<T>(
    pool: &VolumeSpec,
    read_only: bool,
    take_over: bool,
    common: &VolumeCommon,
    act: impl FnOnce(&mut OpenPool<'_>) -> Outcome<T>,
) -> Outcome<T> {
    let (signals, last_words) = catch_signals(2, &[pool])?;
    let mut options = options_of(common, &signals)?;
    let place = PoolPlace::default();
    (options.read_only, options.take_over) = (read_only, take_over);
    options.pool = Some(place.clone());
    let mut open = open_volume(pool, &options, Some(&signals))
        .inspect_err(|failure| last_words.set(failure))?;
    open.watch(signals.fd())?;
    let Some(pool) = place.take() else {
        return Err(Failure::failed("the pool was opened for one of its volumes"));
    };
    let mut open = OpenPool { open, pool, signals: &signals };
    let done = act(&mut open);
    let OpenPool { mut open, pool, .. } = open;
    drop(pool);
    match done {
        Ok(done) => let_go(&mut *open, Ending::Orderly).map(|()| done),
        Err(failure) => {
            let_go_failed(&mut *open, !read_only);
            Err(failure)
        }
    }
}

/// `volume show --json`.
#[derive(Serialize)]
struct JsonPool {
    schema: u32,
    block_bytes: u64,
    data_bytes: u64,
    data_used_bytes: u64,
    metadata_bytes: u64,
    metadata_used_bytes: u64,
    volumes: Vec<JsonVolume>,
}

#[derive(Serialize)]
struct JsonVolume {
    name: String,
    bytes: u64,
    /// Of blocks that it refers to, others' among them.
    mapped_bytes: u64,
    /// Of those the ones that nobody else has; null if that was not asked for.
    own_bytes: Option<u64>,
    /// What it is a snapshot or a clone of, while that is there.
    origin: Option<String>,
    is_snapshot: bool,
    /// In seconds since 1970; 0 if that is not known.
    created_at: u64,
}

fn json_of(report: &PoolReport, own: &[u64]) -> JsonPool {
    let name = |number| report.volumes.iter().find(|v| v.volume == number).map(|v| v.name.clone());
    let volume = |(nth, volume): (usize, &VolumeReport)| JsonVolume {
        name: volume.name.clone(),
        bytes: volume.bytes,
        mapped_bytes: volume.mapped_bytes,
        own_bytes: own.get(nth).copied(),
        origin: volume.origin.and_then(name),
        is_snapshot: volume.is_read_only,
        created_at: volume.created_at,
    };
    JsonPool {
        schema: SCHEMA,
        block_bytes: report.block_bytes,
        data_bytes: report.data_bytes,
        data_used_bytes: report.data_used_bytes,
        metadata_bytes: report.metadata_bytes,
        metadata_used_bytes: report.metadata_used_bytes,
        volumes: report.volumes.iter().enumerate().map(volume).collect(),
    }
}

/// Shows how full a pool is, and its volumes.
pub fn show(spec: &VolumeSpec, space: bool, common: &VolumeCommon) -> Outcome {
    let (pool, _) = pool_of(spec)?;
    let (report, own) = with_pool(&pool, true, false, common, |open| {
        let report = open.pool.report();
        let mut own = Vec::new();
        for volume in report.volumes.iter().filter(|_| space) {
            match open.act(PoolOp::Measure { volume: volume.volume })? {
                PoolDone::Measured { own_bytes, .. } => own.push(own_bytes),
                other => unreachable!("{other:?} of a measurement"),
            }
        }
        Ok((report, own))
    })?;
    let json = json_of(&report, &own);
    if common.json {
        return output::say_json(&json);
    }
    let of = |used, all| format!("{} of {}", show_size(used), show_size(all));
    let mut text = format!(
        "data: {} in use, in blocks of {}; metadata: {}",
        of(json.data_used_bytes, json.data_bytes),
        show_size(json.block_bytes),
        of(json.metadata_used_bytes, json.metadata_bytes)
    );
    let row = |volume: &JsonVolume| {
        let kind = match (volume.is_snapshot, &volume.origin) {
            (true, Some(origin)) => format!("snapshot of {origin}"),
            (true, None) => "snapshot".into(),
            (false, Some(origin)) => format!("clone of {origin}"),
            (false, None) => "-".into(),
        };
        let own = volume.own_bytes.map_or("-".into(), show_size);
        vec![
            volume.name.clone(),
            show_size(volume.bytes),
            show_size(volume.mapped_bytes),
            own,
            kind,
        ]
    };
    let rows: Vec<_> = json.volumes.iter().map(row).collect();
    if !rows.is_empty() {
        text += "\n\n";
        text += &output::table(&["NAME", "SIZE", "MAPPED", "OWN", "WHAT"], &rows);
    }
    output::say(&output::printable(&text))
}
