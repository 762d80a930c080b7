//! `thinwire volume create`.

use std::time::{Duration, Instant};

use serde::Serialize;
use thinwire_modules::meta::tree::NODE_BYTES;
use thinwire_modules::meta::{
    LABEL_AREA_BYTES, Label, LabelError, Labels, MadePart, NewPart, NewWhole, SeenPart,
    WholeMaking, assemble, label_parts, marks_on, occupant,
};
use thinwire_modules::mirror::{MirrorState, find_mirror};
use thinwire_modules::thin::{NewPool, block_bytes};
use thinwire_modules::{Integrity, IntegrityState, Module, Options, SumLayout, SumMaking};
use thinwire_runtime::clock::entropy_bytes;

use super::parts::{read, read_end};
use super::{JsonWhole, hex, options_of, read_labels, wait_for};
use crate::cli::VolumeCommon;
use crate::crypted::new_state;
use crate::error::{Failure, Outcome};
use crate::guard::refuse_in_use;
use crate::host::Host;
use crate::labelled::check_leaves;
use crate::last_resort::catch_signals;
use crate::mirrored::{Entropy, seconds_now};
use crate::open::{
    Ending, OpenVolume, VolumeOptions, Wait, ending_of_failed, let_go_together, open_on,
};
use crate::output;
use crate::rundir::SCHEMA;
use crate::signals::Signals;
use crate::uri::VolumeSpec;

/// So long one part is waited for while others end, too.
const GLANCE: Duration = Duration::from_millis(2);

/// A volume that is described with labels: its name, and what it is.
struct Described<'a> {
    spec: &'a VolumeSpec,
    name: &'a str,
    module: &'static Module,
    options: &'a Options,
    key: Option<&'a str>,
    children: &'a [VolumeSpec],
}

/// Those in a volume that are, each behind what it is made of.
fn described<'a>(spec: &'a VolumeSpec, found: &mut Vec<Described<'a>>) {
    let VolumeSpec::Over { node, module, options, children, labels, key, .. } = spec else {
        return;
    };
    children.iter().for_each(|child| described(child, found));
    if let (true, Some(node)) = (labels, node) {
        let (module, name) = (*module, &*node.name);
        let key = key.as_deref();
        found.push(Described { spec, name, module, options, key, children });
    }
}

/// `volume create --json`.
#[derive(Serialize)]
struct Made {
    schema: u32,
    volumes: Vec<JsonWhole>,
}

/// Writes labels, bottom up.
pub fn create(spec: &VolumeSpec, force: bool, take_over: bool, common: &VolumeCommon) -> Outcome {
    let mut wanted = Vec::new();
    described(spec, &mut wanted);
    if let VolumeSpec::Over { inner: Some(_), .. } = spec {
        return Err(Failure::usage(format!(
            "{spec}: say how large the volume is to be, with --size"
        )));
    }
    if wanted.last().is_none_or(|last| last.spec != spec) {
        return Err(Failure::usage(format!(
            "{spec} has no labels: describe it in a file, with `labels = true`, and name it as FILE.toml#NAME"
        )));
    }
    spec.refuse_twins().map_err(|why| Failure::failed(format!("cannot make {spec}: {why}")))?;
    refuse_in_use(spec, "making it")?;
    let (signals, last_words) = catch_signals(2, &[spec])?;
    let mut options = options_of(common, &signals)?;
    options.take_over = take_over;
    let mut made = Vec::new();
    for volume in &wanted {
        let whole = create_one(volume, volume.spec == spec, force, &options, &signals);
        let whole = whole.map_err(|e| e.context(format_args!("cannot make {}", volume.spec)));
        let whole = whole.inspect_err(|failure| {
            let names: Vec<_> = made.iter().map(|whole: &JsonWhole| &*whole.name).collect();
            if !names.is_empty() {
                output::complain(&format!("made before: {}", names.join(", ")));
            }
            last_words.set(failure);
        });
        made.extend(whole?);
    }
    if common.json {
        return output::say_json(&Made { schema: SCHEMA, volumes: made });
    }
    for whole in &made {
        let JsonWhole { name, kind, bytes, parts, .. } = whole;
        output::say(&format!("made {name}: {kind} of {}, {bytes} bytes", parts.join(", ")))?;
    }
    match spec {
        VolumeSpec::Over { module, .. } if module.has_volumes() => output::say(&format!(
            "make volumes of it: thinwire volume create {spec}@NAME --size SIZE"
        )),
        _ => output::say(&format!("use it as {spec}")),
    }
}

/// For tests: makes it, and catches no signals.
#[cfg(test)]
pub(crate) fn create_quietly(spec: &VolumeSpec, options: &VolumeOptions) -> Outcome {
    let mut wanted = Vec::new();
    described(spec, &mut wanted);
    let mut all = wanted.iter();
    all.try_for_each(|of| {
        create_one(of, of.spec == spec, false, options, &Signals::none()).map(drop)
    })
}

/// Makes one whose parts are there. Nothing if it is there itself, and is not what was asked for.
fn create_one(
    volume: &Described<'_>,
    is_asked_for: bool,
    force: bool,
    options: &VolumeOptions,
    signals: &Signals,
) -> Outcome<Option<JsonWhole>> {
    let host = Host::new()?;
    let mut parts: Vec<Box<dyn OpenVolume>> = Vec::new();
    let mut has_written = false;
    let done = open_all(&host, volume.children, options, signals, &mut parts).and_then(|()| {
        let force = force && is_asked_for;
        label_all(volume, is_asked_for, force, &mut parts, signals, &mut has_written)
    });
    if done.is_ok() || !has_written {
        wind_up(&mut parts, signals);
    }
    match done {
        Ok(whole) => {
            let unheard = let_go_together(&host, &mut parts, |_| Ending::Orderly)?;
            unheard.describe().into_iter().for_each(|unheard| output::complain(&unheard));
            Ok(whole)
        }
        Err(mut failure) => {
            if has_written {
                failure.message +=
                    ". Its parts may be half made: make it again, with --force, before you use it";
            }
            let how = |part: &mut dyn OpenVolume| ending_of_failed(part, has_written);
            if let Err(other) = let_go_together(&host, &mut parts, how) {
                tracing::warn!("{other}");
            }
            Err(failure)
        }
    }
}

/// What parts keep for themselves, as mirrors do, is brought in order together: nobody is told of a sync before all that began earlier on
/// the same file system have been heard of, so who let go of one part while the others stand still would wait for ever. No longer than they may
/// take, and not behind a signal.
fn wind_up(parts: &mut [Box<dyn OpenVolume>], signals: &Signals) {
    if parts.iter_mut().any(|part| part.volume().outstanding() > 0) {
        return;
    }
    parts.iter_mut().for_each(|part| part.volume().wind_up());
    let patience = parts.iter().map(|part| part.wind_up_patience()).max();
    let (end, mut done) = (Instant::now() + patience.unwrap_or_default(), Vec::new());
    while !parts.iter_mut().all(|part| part.volume().is_wound_up()) {
        if Instant::now() >= end || signals.take().is_some() {
            return;
        }
        for part in &mut *parts {
            if part.turn(Wait::Until(Instant::now() + GLANCE)).is_err() {
                return;
            }
            part.volume().poll(&mut done);
        }
    }
}

fn open_all(
    host: &Host,
    specs: &[VolumeSpec],
    options: &VolumeOptions,
    signals: &Signals,
    parts: &mut Vec<Box<dyn OpenVolume>>,
) -> Outcome {
    for spec in specs {
        parts.push(open_on(host, spec, options, Some(signals))?);
    }
    Ok(())
}

fn label_all(
    volume: &Described<'_>,
    is_asked_for: bool,
    force: bool,
    parts: &mut [Box<dyn OpenVolume>],
    signals: &Signals,
    has_written: &mut bool,
) -> Outcome<Option<JsonWhole>> {
    check_leaves(volume.children, true)?;
    let (labels, seen) = read_labels(parts, signals)?;
    if !is_asked_for && is_made(&seen) {
        return Ok(None);
    }
    // All that can be wrong is found out before anything is written.
    let new = new_parts(volume, parts, &seen)?;
    let bytes = whole_bytes(volume, parts, &new)?;
    let Described { name, module, options, spec, .. } = *volume;
    let options = &module.kept_options(options);
    let whole = NewWhole { name, uuid: new_uuid(), module, options, bytes };
    let mut made = label_parts(&whole, &new).map_err(|e| Failure::failed(e.to_string()))?;
    if let Some(key) = volume.key {
        let state = new_state(&whole.uuid, options, key)?;
        made.iter_mut().for_each(|label| label.state = state.encode());
    }
    if module.has_volumes() {
        refuse_unfit_pool(volume, parts)?;
        let (data_bytes, metadata_bytes) = (made[0].part().bytes, made[1].part().bytes);
        let pool = NewPool { block_bytes: block_bytes(options), data_bytes, metadata_bytes };
        let states = pool.states();
        let states = states.map_err(|why| Failure::failed(format!("the pool {why}")))?;
        made.iter_mut().zip(states).for_each(|(label, state)| label.state = state);
    }
    if module.is_mirror() {
        let blocks = parts.iter_mut().map(|part| part.volume().geometry().block_bytes);
        let size = (bytes, blocks.max().unwrap_or(4096));
        let states = MirrorState::of_new(made.len(), size, seconds_now(), &mut Entropy);
        made.iter_mut().zip(states).for_each(|(label, state)| label.state = state.encode());
    }
    let has_sums = module.name == Integrity::NAME;
    if has_sums {
        made[0].state = IntegrityState::new(bytes).encode();
    }
    let mut occupied = Vec::new();
    for (at, (seen, child)) in seen.iter().zip(volume.children).enumerate() {
        let bytes = parts[at].volume().geometry().bytes;
        let begins = read(parts, at, LABEL_AREA_BYTES, signals).map_err(|e| e.context(child))?;
        let ends = read_end(parts, at, force, signals).map_err(|e| e.context(child))?;
        let marks = marks_on(&seen.found, bytes, &ends);
        let what = occupant(&seen.found, &begins, &marks);
        if let (Some(what), false) = (&what, force) {
            let say =
                if is_asked_for { "say --force" } else { "make that by itself, with --force," };
            return Err(Failure::failed(format!(
                "{child} {what}: it would be lost; name another volume, or {say} to overwrite that ({spec})"
            )));
        }
        occupied.push((what, marks));
    }
    for ((what, _), child) in occupied.iter().zip(volume.children) {
        if let Some(what) = what {
            output::complain(&format!("{child} {what}; that is overwritten"));
        }
    }
    let part = |((labels, label), (what, marks)): ((Labels, Label), (Option<String>, _))| {
        MadePart { labels, label, is_occupied: what.is_some(), marks }
    };
    // What lies behind the label is zeroed: its sums are those of zeroes.
    let (start, part_bytes) = (made[0].data_start, made[0].part().bytes);
    let mut sums =
        has_sums.then(|| SumMaking::new(0, parts[0].pool(), whole.uuid, start, part_bytes));
    let to_make = labels.into_iter().zip(made).zip(occupied).map(part).collect();
    let mut making = WholeMaking::new(0, parts[0].pool(), to_make);
    while let Some(at) = making.part() {
        *has_written = true;
        if making.is_cleared()
            && let Some(mut sums) = sums.take()
        {
            let zeroed = wait_for(parts, at, signals, |volume| sums.turn(volume))?;
            let child = &volume.children[at];
            zeroed.map_err(|e| Failure::failed(format!("{child} cannot be zeroed: {e}")))?;
        }
        let ended = wait_for(parts, at, signals, |volume| making.turn(volume))?;
        ended.map_err(|e| Failure::failed(format!("{} {e}", volume.children[at])))?;
    }
    Ok(Some(JsonWhole {
        name: name.to_owned(),
        uuid: hex(&whole.uuid),
        kind: module.name,
        bytes,
        parts: volume.children.iter().map(VolumeSpec::to_string).collect(),
    }))
}

/// A pool whose parts do not take its blocks, or nodes, could never be opened.
fn refuse_unfit_pool(volume: &Described<'_>, parts: &mut [Box<dyn OpenVolume>]) -> Outcome {
    let needs = [u64::from(block_bytes(volume.options)), NODE_BYTES as u64];
    for ((part, child), bytes) in parts.iter_mut().zip(volume.children).zip(needs) {
        let geometry = part.volume().geometry();
        let (longest, block) = (geometry.io_bytes_max, geometry.block_bytes);
        if u64::from(longest) < bytes || u64::from(block) > bytes {
            return Err(Failure::failed(format!(
                "{child} takes I/Os of {block} to {longest} bytes, and the pool makes some of {bytes}: use another block size, or another volume"
            )));
        }
    }
    Ok(())
}

/// They are the parts of a whole.
fn is_made(seen: &[SeenPart]) -> bool {
    if assemble(seen).is_ok() {
        return true;
    }
    let parts: Vec<_> = seen.iter().cloned().map(Some).collect();
    find_mirror(&parts).is_ok_and(|whole| whole.places.iter().all(Option::is_some))
}

/// The parts, if each can be one.
fn new_parts(
    volume: &Described<'_>,
    parts: &mut [Box<dyn OpenVolume>],
    seen: &[SeenPart],
) -> Outcome<Vec<NewPart>> {
    let mut new: Vec<NewPart> = Vec::new();
    for ((part, seen), child) in parts.iter_mut().zip(seen).zip(volume.children) {
        let refused = |why: String| Err(Failure::failed(format!("{child} {why}")));
        if matches!(child, VolumeSpec::Memory(_) | VolumeSpec::Null(_) | VolumeSpec::Switched(_)) {
            return refused("is gone with this command: it can be no part".to_owned());
        }
        if let Err(error @ (LabelError::Unfit { .. } | LabelError::Unread(_))) = &seen.found {
            return refused(error.to_string());
        }
        let geometry = part.volume().geometry();
        let part = NewPart { uuid: new_uuid(), content: seen.content, bytes: geometry.bytes };
        if geometry.features.read_only {
            return refused("cannot be written".to_owned());
        }
        if part.data_bytes(volume.module) == 0
            || volume.module.name == Integrity::NAME
                && SumLayout::of(part.data_bytes(volume.module)).bytes == 0
        {
            return refused(format!("has {} bytes, which leaves nothing for data", part.bytes));
        }
        if let Some(twin) = new.iter().position(|other| other.content == part.content) {
            return refused(format!("is the same volume as {}", volume.children[twin]));
        }
        new.push(part);
    }
    Ok(new)
}

/// What the module makes of parts of these sizes.
fn whole_bytes(
    volume: &Described<'_>,
    parts: &mut [Box<dyn OpenVolume>],
    new: &[NewPart],
) -> Outcome<u64> {
    let shapes = parts.iter_mut().zip(new).map(|(part, new)| {
        let block_bytes = part.volume().geometry().block_bytes;
        (new.data_bytes(volume.module), block_bytes)
    });
    let bytes = volume.module.bytes_of(volume.options, &shapes.collect::<Vec<_>>());
    bytes.map_err(|e| match e.child {
        Some(child) => Failure::failed(format!("the data of {} {}", volume.children[child], e.why)),
        None => Failure::failed(e.to_string()),
    })
}

/// Nobody has it, nor will.
pub(super) fn new_uuid() -> [u8; 16] {
    *entropy_bytes().first_chunk().expect("there are 32")
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::os::fd::BorrowedFd;
    use std::rc::Rc;

    use thinwire_buffer::Pool;
    use thinwire_frontend::Face;
    use thinwire_volume::{Completion, Geometry, Identity, Io, Op, Volume};

    use super::*;
    use crate::attachment::shown::Shown;
    use crate::open::{Unheard, VolumeHealth};
    use crate::testing::MemoryVolume;

    const PATIENCE: Duration = Duration::from_millis(300);

    /// Is in order once another has been turned behind it: what was synced is told of when the syncs of others have been heard of.
    struct Leaning {
        inner: MemoryVolume,
        turns: Rc<Cell<u32>>,
        others: Rc<Cell<u32>>,
        /// Turns of the other when it was asked.
        asked: Option<u32>,
    }

    impl Volume for Leaning {
        fn geometry(&self) -> Geometry {
            self.inner.geometry()
        }

        fn identity(&self) -> Identity {
            self.inner.identity()
        }

        fn submit(&mut self, io: Io) {
            self.inner.submit(io);
        }

        fn poll(&mut self, done: &mut Vec<Completion>) {
            self.inner.poll(done);
        }

        fn outstanding(&self) -> usize {
            self.inner.outstanding()
        }

        fn copied_bytes(&self) -> u64 {
            0
        }

        fn wind_up(&mut self) {
            self.asked.get_or_insert(self.others.get());
        }

        fn is_wound_up(&self) -> bool {
            self.asked.is_some_and(|turns| self.others.get() > turns)
        }
    }

    impl OpenVolume for Leaning {
        fn volume(&mut self) -> &mut dyn Volume {
            self
        }

        fn block_bytes(&self) -> u32 {
            self.inner.block_bytes()
        }

        fn pool(&self) -> &Pool {
            self.inner.pool()
        }

        fn turn(&mut self, _: Wait) -> Outcome<bool> {
            self.turns.set(self.turns.get() + 1);
            Ok(false)
        }

        fn show(&mut self, _: Box<dyn Face>) -> Outcome<Shown> {
            unreachable!("it is not shown here")
        }

        fn watch(&mut self, _: BorrowedFd<'_>) -> Outcome {
            Ok(())
        }

        fn health(&self) -> VolumeHealth {
            VolumeHealth::local()
        }

        fn wind_up_patience(&self) -> Duration {
            PATIENCE
        }

        fn close(&mut self, _: Ending) -> Outcome<Unheard> {
            Ok(Unheard::default())
        }
    }

    fn leaning(turns: &Rc<Cell<u32>>, others: &Rc<Cell<u32>>) -> Box<dyn OpenVolume> {
        let (turns, others) = (turns.clone(), others.clone());
        Box::new(Leaning { inner: MemoryVolume::new(4096, 512), turns, others, asked: None })
    }

    #[test]
    fn parts_that_wait_for_each_other_end_together() {
        let (one, two) = (Rc::default(), Rc::default());
        let mut parts = [leaning(&one, &two), leaning(&two, &one)];
        wind_up(&mut parts, &Signals::none());
        assert!(parts.iter_mut().all(|part| part.volume().is_wound_up()));
    }

    #[test]
    fn who_does_not_come_in_order_is_not_waited_for_longer_than_it_may_take() {
        let (one, nobody) = (Rc::default(), Rc::default());
        let mut parts = [leaning(&one, &nobody)];
        let begun = Instant::now();
        wind_up(&mut parts, &Signals::none());
        assert!(begun.elapsed() >= PATIENCE && !parts[0].volume().is_wound_up());
        // Whose I/O is under way is not asked at all.
        parts[0].volume().submit(Io::new(0, Op::Read, 0, 512));
        let turns = one.get();
        wind_up(&mut parts, &Signals::none());
        assert_eq!(one.get(), turns);
    }
}
