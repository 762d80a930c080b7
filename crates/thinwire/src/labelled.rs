//! Volumes whose parts have labels (`docs/format.md`): what those say, read when such a volume is opened.

#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use thinwire_modules::cuts::{CutVolume, Recorder};
use thinwire_modules::meta::{
    Assembly, AssemblyError, BESIDE_TOKEN, Finding, Label, LabelError, LabelOutcome, LabelledPart,
    Labels, OpeningError, PartFence, RecordedWhole, SeenPart, WholeGrowth, WholeOpening,
    WholeSizes, assemble,
};
use thinwire_modules::mirror::OpeningWish;
use thinwire_modules::thin::PoolHead;
use thinwire_modules::{
    Child, Crypt, Integrity, IntegrityConfig, IntegrityState, Module, ModuleError, Options,
    SumGrowing, SumLayout,
};
use thinwire_runtime::clock::entropy_bytes;
use thinwire_volume::{ErrorKind, Io, Op, Token, Volume, Work};

use crate::adoption::{Adoptions, adopt};
use crate::budgets::{NodeBudget, open_over};
use crate::crypted::{Unlocked, takes_key, unlock};
use crate::error::{Failure, Outcome};
use crate::growth::{Grown, GrowthNotes};
use crate::host::Host;
use crate::known_keys::KnownKeys;
use crate::network::Interrupt;
use crate::open::Wait;
use crate::opened::TreePlace;
use crate::pool::{PoolName, PoolPlace};
use crate::rekeying::Rekeying;
use crate::uri::VolumeSpec;

/// How often disks are asked whether they have answered: their descriptors are not watched yet.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// For whom a volume is opened.
pub struct Opening<'a> {
    /// What ends that before it is through.
    pub interrupt: Interrupt<'a>,
    /// It is given up then.
    pub until: Option<Instant>,
    /// Parts have to be described in the order of their labels.
    pub in_order: bool,
    /// Nothing is to be written: no opening is drawn.
    pub read_only: bool,
    /// Of mirrors.
    pub wish: OpeningWish,
    /// Where a pool is put that is to be changed itself.
    pub pool: Option<&'a PoolPlace>,
    /// What has labels grows by what its parts have grown by: where that is noted.
    pub growth: Option<&'a GrowthNotes>,
    /// Parts are taken that hold another content than when they got their labels: where that is noted.
    pub adopt: Option<&'a Adoptions>,
    /// An encrypted volume that gets another key.
    pub rekey: Option<&'a Rekeying>,
}

/// By what a volume is known of which snapshots can be taken as one, and whether something above buffers writes: then none are.
pub type ToCut = (PoolName, bool);

/// What the label of the only part says of how its data stands there.
pub enum OnPart {
    /// Encrypted, by a key that was unlocked.
    Crypt(Unlocked),
    /// With sums.
    Sums(IntegrityState),
}

/// What is described as having labels: its module, with what options, and what names the key of one that has a key.
pub type Described<'a> = (&'static Module, &'a Options, Option<&'a str>);

/// The module over the data of its parts, put in the order that their labels say, whatever that of `children` is, which
/// `specs` call by name; `key` names that of one that has a key. With `cuts` snapshots of it can be taken, unless something above buffers writes.
/// Opened for writing, it has a new opening on all parts before this returns, and what has it grow comes with it; and so does which of `specs` each part is.
///
/// # Errors
/// They make no whole, or another one than is described, or need another key; or its opening could not be written.
pub fn open_whole(
    host: &Host,
    described: Described<'_>,
    specs: &[VolumeSpec],
    (mut children, cuts, budget): (Vec<Box<dyn Volume>>, Option<ToCut>, Option<NodeBudget>),
    by: &Opening<'_>,
) -> Outcome<PlacedWhole> {
    let cuts = cuts.filter(|_| is_written(&children, by.read_only));
    let whole = assemble_whole(host, described, specs, &mut children, by)?;
    let places = whole.0.places();
    let (opened, growth) =
        build(host, described, specs, (children, cuts, budget), (whole, by.read_only))?;
    Ok((opened, growth, places))
}

/// The module, what has it grow, and which of the described volumes each of its parts is.
pub type PlacedWhole = (Box<dyn Volume>, Option<WholeGrowth>, Vec<usize>);

/// Nothing stands in the way of writing all of these.
fn is_written(children: &[Box<dyn Volume>], read_only: bool) -> bool {
    !read_only && children.iter().all(|child| !child.geometry().features.read_only)
}

/// The last step of [`open_whole`], which waits for nothing: the module over parts that were examined, and have their opening if they are written.
///
/// # Errors
/// The module does not fit over them.
pub fn build(
    host: &Host,
    (module, options, _): Described<'_>,
    specs: &[VolumeSpec],
    (children, cuts, budget): (Vec<Box<dyn Volume>>, Option<ToCut>, Option<NodeBudget>),
    ((whole, on_part, written), read_only): (OpenedWhole, bool),
) -> Outcome<(Box<dyn Volume>, Option<WholeGrowth>)> {
    let mut places: Vec<_> = children.into_iter().map(Some).collect();
    let mut labels: Vec<_> = written.into_iter().map(Some).collect();
    let work = labels.iter().flatten().find_map(|(_, label)| label.work);
    let (mut doors, mut kept, mut record) = (Vec::new(), Vec::new(), None);
    let (mut parts, fence) = (Vec::new(), PartFence::default());
    for (role, part) in whole.parts.iter().enumerate() {
        let mut child = places[part.place].take().expect("each is one part");
        if let Some((labels, label)) = labels.get_mut(part.place).and_then(Option::take) {
            let (labelled, door) = LabelledPart::new(child, fence.clone());
            child = Box::new(labelled);
            doors.push(door);
            match role == 0 {
                true => {
                    let (recorder, recorded) = Recorder::new(child, labels, label);
                    child = Box::new(recorder);
                    record = Some(recorded);
                }
                false => kept.push((labels, label)),
            }
        }
        let data = Child::within(child, part.data_start, part.data_bytes);
        let data = data.map_err(|why| Failure::failed(format!("{} {why}", specs[part.place])))?;
        let data = data.made_with(part.made_bytes);
        parts.push(match doors.get(role) {
            Some(door) => data.beside(door.clone()),
            None => data,
        });
    }
    let opened: Result<Box<dyn Volume>, _> = match on_part {
        Some(OnPart::Crypt((state, cipher, key))) => {
            host.known_keys().learn(&whole.uuid, &state, &key);
            let part = parts.remove(0);
            let crypt = Crypt::open(part, Box::new(cipher), &state, whole.uuid, &host.pool());
            crypt.map(|crypt| Box::new(crypt) as Box<dyn Volume>)
        }
        Some(OnPart::Sums(state)) => {
            let part = parts.remove(0);
            let config = IntegrityConfig::new(&host.pool());
            let config = IntegrityConfig { read_only, ..config };
            let sums = Integrity::open(part, state, whole.uuid, config);
            sums.map(|mut sums| {
                // As it was told before.
                sums.set_pace(work.unwrap_or_default().pace);
                Box::new(sums) as Box<dyn Volume>
            })
        }
        None => {
            let place = TreePlace::new(format!("{} {:?}", module.name, whole.name));
            open_over(module, parts, options, budget.as_ref(), place)
        }
    };
    let opened = opened.map_err(|e| unfit(&whole, specs, e))?;
    let kept_writer = whole.writer.clone();
    let growth = match doors.is_empty() {
        true => None,
        false => Some(WholeGrowth::new(whole, doors, kept, record.clone())),
    };
    let Some(record) = record else {
        return Ok((Box::new(RecordedWhole::of_reader(opened, kept_writer)), growth));
    };
    let Some((name, is_buffered)) = cuts else {
        return Ok((Box::new(RecordedWhole::new(opened, record)), growth));
    };
    let (mut volume, cuts) = CutVolume::new(opened, record.clone(), &host.pool());
    if is_buffered {
        volume.set_buffered();
    }
    host.cuts().add(name, cuts);
    Ok((Box::new(RecordedWhole::new(Box::new(volume), record)), growth))
}

/// A whole, how its data stands on the only part of it, and what its opening has written to its parts, in the order in which they were given; nothing if
/// it is only read.
pub type OpenedWhole = (Assembly, Option<OnPart>, Vec<(Labels, Label)>);

/// What it means that a copy of the label of a pool has rotted that was not at rest.
pub const LOST_WITH_LABEL: &str = "the pool has not ended in order, so that may have been the newest state of its volumes: what was flushed last may be missing, and \
     what was deleted or discarded last may be back. Check the file systems on them";

/// The whole that these parts make, as it is described; opened for writing, it has a new opening on all of them.
///
/// # Errors
/// As [`open_whole`].
pub fn assemble_whole(
    host: &Host,
    described: Described<'_>,
    specs: &[VolumeSpec],
    children: &mut [Box<dyn Volume>],
    by: &Opening<'_>,
) -> Outcome<OpenedWhole> {
    let is_written = is_written(children, by.read_only);
    check_leaves(specs, is_written)?;
    let (mut readers, mut seen) = read_all(host, children, BESIDE_TOKEN, by, None)?;
    if !is_written && matches!(assemble(&seen), Err(AssemblyError::Stale { .. })) {
        // Somebody else opens it for writing, perhaps: some labels were read before that, and some behind.
        (readers, seen) = read_all(host, children, BESIDE_TOKEN, by, None)?;
    }
    if is_written {
        let mut parts: Vec<_> = seen.into_iter().map(Some).collect();
        adopt(&mut parts, specs, (by.adopt, by.wish));
        seen = parts.into_iter().flatten().collect();
    }
    let rekey = by.rekey.filter(|rekey| is_written && rekey.is_of(specs));
    let mut described = described;
    if let (Some(rekey), (_, _, Some(key))) = (rekey, &mut described)
        && let Some(Ok(Finding::Label(found))) = seen.first().map(|part| &part.found)
    {
        *key = rekey.opener(&found.label, key);
    }
    let (mut whole, mut on_part) = examine(described, specs, children, &seen, (by.in_order, None))?;
    let mut written = Vec::new();
    if is_written {
        let older = readers[0].older_state().map(<[u8]>::to_vec);
        let parts = labels_of(readers, seen);
        let volumes: Vec<_> =
            whole.parts.iter().map(|part| shape_of(&*children[part.place])).collect();
        let metadata = parts.iter().map(|(_, label)| label).find(|label| label.role == 1);
        let metadata = metadata.filter(|_| by.growth.is_some() && whole.module.has_volumes());
        let (of_pool, mut sizes) = match metadata {
            Some(label) => {
                let (grown, sizes) = Grown::opened_pool(&whole, label, &volumes);
                (Some(grown), sizes)
            }
            None => (None, by.growth.and_then(|_| whole.with_room(&volumes))),
        };
        let (mut states, mut why) = (None, None);
        if let Some(OnPart::Sums(state)) = &mut on_part
            && let Some(room) = sizes.take()
        {
            match state.grow(whole.parts[0].data_bytes, room.part_bytes[0]) {
                Ok(grown) => {
                    sizes = Some(zero_for_sums(host, (&whole, state), grown, specs, children, by)?);
                    states = Some(vec![grown.0.encode()]);
                    *state = grown.0;
                }
                Err(error) => why = Some(format!("it {error}")),
            }
        }
        let rewrapped = match (rekey, described.2, parts.first()) {
            (Some(rekey), Some(key), Some((_, label))) => {
                Some(rekey.rewrap(label, older.as_deref(), key)?)
            }
            _ => None,
        };
        let states = rewrapped.map(|rewrapped| vec![rewrapped.state.encode()]).or(states);
        let anew = (sizes.as_ref(), states);
        written = draw_opening(host, (&mut whole, anew), parts, specs, children, by)?;
        if let Some(rekey) = rekey {
            rekey.finish();
        }
        if let Some(notes) = by.growth {
            let grown = of_pool.unwrap_or_else(|| Grown::whole(&whole, sizes.as_ref(), &volumes));
            notes.add(Grown { why: why.or(grown.why), ..grown });
        }
        if let Some(sizes) = &sizes {
            whole.set_sizes(sizes);
        }
    }
    Ok((whole, on_part, written))
}

/// Nothing that anybody has written is in what the part of a volume with sums grows by: what sizes it has then.
fn zero_for_sums(
    host: &Host,
    (whole, state): (&Assembly, &IntegrityState),
    (_, part_bytes): (IntegrityState, u64),
    specs: &[VolumeSpec],
    children: &mut [Box<dyn Volume>],
    by: &Opening<'_>,
) -> Outcome<WholeSizes> {
    let part = &whole.parts[0];
    let (before, pool) = (part.data_bytes, host.pool());
    let mut growing = SumGrowing::new(
        (BESIDE_TOKEN, &pool),
        (whole.uuid, *state),
        part.data_start,
        (before, part_bytes),
    );
    loop {
        match growing.turn(&mut *children[part.place]) {
            Some(Ok(())) => break,
            Some(Err(error)) => {
                let child = &specs[part.place];
                return Err(Failure::failed(format!(
                    "what {child} has grown by cannot be zeroed: {error}; it is as large as before"
                )));
            }
            // As long as that takes.
            None => wait(host, children, (by, None), "written")?,
        }
    }
    let bytes = SumLayout::of(part_bytes).bytes;
    Ok(WholeSizes { whole_bytes: bytes, part_bytes: vec![part_bytes] })
}

/// Each of a whole has a label.
fn labels_of(readers: Vec<Labels>, seen: Vec<SeenPart>) -> Vec<(Labels, Label)> {
    let label = |(labels, part): (Labels, SeenPart)| match part.found {
        Ok(Finding::Label(found)) => Some((labels, found.label)),
        _ => None,
    };
    readers.into_iter().zip(seen).filter_map(label).collect()
}

/// The first step of [`open_whole`], which waits for nothing: what the labels of these parts say, once they were read. Nothing was written. What comes back while it is
/// used is opened by what is `known`, too.
///
/// # Errors
/// They make no whole, or another one than is described, or need another key.
pub fn examine(
    (module, options, key): Described<'_>,
    specs: &[VolumeSpec],
    children: &[Box<dyn Volume>],
    seen: &[SeenPart],
    (in_order, known): (bool, Option<&KnownKeys>),
) -> Outcome<(Assembly, Option<OnPart>)> {
    for (place, part) in seen.iter().enumerate() {
        let Ok(Finding::Label(found)) = &part.found else { continue };
        if let Some(fault) = &found.passed_over {
            tracing::warn!("{}: one copy of its label {fault}; the other is used", specs[place]);
            if PoolHead::is_at_rest(&found.label) == Some(false) {
                tracing::warn!("{}: {LOST_WITH_LABEL}", specs[place]);
            }
        }
        let is_written = !children[place].geometry().features.read_only;
        if is_written && !found.label.may_write() {
            let unknown = found.label.features.read_only_compatible;
            let error = LabelError::ReadOnly { unknown };
            return Err(Failure::failed(format!("{} {error}", specs[place])));
        }
    }
    let whole = assemble(seen)
        .map_err(|error| Failure::failed(error.describe(&|place| specs[place].to_string())))?;
    let is_kept = || module.kept_options(&whole.options) == module.kept_options(options);
    if whole.module != module || !is_kept() {
        let said = |module: &Module, options: &Options| {
            let options = options.iter().map(|(name, value)| format!(", {name} = {value}"));
            format!("kind = \"{}\"{}", module.name, options.collect::<String>())
        };
        return Err(Failure::failed(format!(
            "it is described by {}, and the labels of its parts say {}: describe it as it was made",
            said(module, options),
            said(whole.module, &whole.options)
        )));
    }
    let is_in_order = whole.parts.iter().enumerate().all(|(role, part)| part.place == role);
    if in_order && !is_in_order {
        let order: Vec<_> = whole.parts.iter().map(|part| specs[part.place].to_string()).collect();
        return Err(Failure::failed(format!(
            "who is served remembers its parts by their order, and that is another than in their labels: describe it as children = \
             [{}]",
            order.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ")
        )));
    }
    check_size(&whole, specs, children)?;
    // A wrong key is found out before anything is written.
    let label = seen.iter().find_map(|part| match &part.found {
        Ok(Finding::Label(found)) => Some(&found.label),
        _ => None,
    });
    let on_part = match (key, label) {
        (Some(key), Some(label)) => {
            let unlocked = match unlock(label, key, &specs[0].to_string()) {
                Err(failure) => known.and_then(|known| known.unlock(label)).ok_or(failure)?,
                Ok(unlocked) => unlocked,
            };
            Some(OnPart::Crypt(unlocked))
        }
        (None, Some(label)) if module.name == Integrity::NAME => {
            let state = IntegrityState::decode(&label.state, label.whole_bytes);
            let said = state.map_err(|fault| Failure::failed(format!("{} {fault}", specs[0])));
            Some(OnPart::Sums(said?))
        }
        _ => None,
    };
    Ok((whole, on_part))
}

/// As users call the part that does not fit.
fn unfit(whole: &Assembly, specs: &[VolumeSpec], e: ModuleError) -> Failure {
    Failure::failed(match e.child {
        Some(role) => format!("{} {}", specs[whole.parts[role].place], e.why),
        None => e.to_string(),
    })
}

/// Labels are read under the right to write them, and AoE gives that with the first write only: what was read before could be
/// another's of long ago by then, and be written over newer ones.
pub fn check_leaves(specs: &[VolumeSpec], is_written: bool) -> Outcome {
    let mut leaves = specs.iter().flat_map(VolumeSpec::leaves);
    match leaves.find(|leaf| is_written && matches!(leaf, VolumeSpec::Aoe(_))) {
        Some(leaf) => Err(Failure::failed(format!(
            "{leaf} cannot be written as a part with a label: by AoE nobody is granted that before the first write; use the \
             export by tw:// or ebd://, or only read (--read-only)"
        ))),
        None => Ok(()),
    }
}

/// The module makes of the parts what their labels say.
fn check_size(whole: &Assembly, specs: &[VolumeSpec], children: &[Box<dyn Volume>]) -> Outcome {
    for part in &whole.parts {
        let block_bytes = children[part.place].geometry().block_bytes;
        if !part.data_bytes.is_multiple_of(block_bytes.into()) {
            let (spec, bytes) = (&specs[part.place], part.data_bytes);
            return Err(Failure::failed(format!(
                "{spec} has blocks of {block_bytes} bytes, and {bytes} bytes of data by its label: it was made by another program"
            )));
        }
    }
    let parts = whole.parts.iter().map(|part| {
        let block_bytes = children[part.place].geometry().block_bytes;
        (part.data_bytes, block_bytes)
    });
    let bytes = whole.module.bytes_of(&whole.options, &parts.collect::<Vec<_>>());
    let bytes = bytes.map_err(|e| unfit(whole, specs, e))?;
    if bytes != whole.bytes {
        let says = whole.bytes;
        return Err(Failure::failed(format!(
            "its parts make {bytes} bytes, and their labels say {says}: they were made by another program"
        )));
    }
    Ok(())
}

/// How many bytes a volume has, and in blocks of how many.
fn shape_of(volume: &dyn Volume) -> (u64, u32) {
    let geometry = volume.geometry();
    (geometry.bytes, geometry.block_bytes)
}

/// The labels of all, what they say, and what they are. From then on the token of their I/Os is `token`. With `patience`, those
/// that have not answered for so long cannot be read, and their volumes have something outstanding.
pub fn read_all(
    host: &Host,
    children: &mut [Box<dyn Volume>],
    token: Token,
    by: &Opening<'_>,
    patience: Option<Duration>,
) -> Outcome<(Vec<Labels>, Vec<SeenPart>)> {
    let until = patience.map(|patience| Instant::now() + patience);
    let pool = host.pool();
    let mut found: Vec<_> = children.iter().map(|_| None).collect();
    let mut readers = Vec::new();
    for (child, found) in children.iter_mut().zip(&mut found) {
        let mut labels = Labels::new(token, &pool);
        *found = labels.read(&mut **child).err().map(Err);
        readers.push(labels);
    }
    while found.iter().any(Option::is_none) {
        let end = until.or(by.until);
        let waited = wait(host, children, (by, end), "read");
        if until.is_some_and(|until| until <= Instant::now()) {
            let error = Io::new(token, Op::Read, 0, 0).error(ErrorKind::Away, "label");
            let late = found.iter_mut().filter(|found| found.is_none());
            late.for_each(|found| *found = Some(Err(LabelError::Unread(error))));
            break;
        }
        waited?;
        for ((child, labels), found) in children.iter_mut().zip(&mut readers).zip(&mut found) {
            // Also where they were read already: such a volume may be at work for itself.
            if let Some(LabelOutcome::Read(read)) = labels.turn(&mut **child) {
                *found = Some(read);
            }
        }
    }
    let seen = |(child, found): (&mut Box<dyn Volume>, Option<_>)| SeenPart {
        found: found.expect("all were found"),
        content: child.identity(),
    };
    Ok((readers, children.iter_mut().zip(found).map(seen).collect()))
}

/// Whether the key that `key` names is that of a part, as far as its label can be read.
///
/// # Errors
/// It is not, or cannot be read.
pub fn check_key(
    host: &Host,
    key: &str,
    spec: &VolumeSpec,
    part: &mut [Box<dyn Volume>; 1],
    by: &Opening<'_>,
) -> Outcome {
    let (readers, mut seen) = read_all(host, part, BESIDE_TOKEN, by, None)?;
    let rekey = by.rekey.filter(|rekey| rekey.is_of(std::slice::from_ref(spec)));
    match (seen.pop().map(|seen| seen.found), rekey) {
        (Some(Ok(Finding::Label(found))), _) if !takes_key(found.label.module) => Ok(()),
        (Some(Ok(Finding::Label(found))), Some(rekey)) => {
            rekey.check(&found.label, readers[0].older_state(), key)
        }
        (Some(Ok(Finding::Label(found))), None) => {
            unlock(&found.label, key, &spec.to_string()).map(|_| ())
        }
        _ => Ok(()),
    }
}

/// Waits until nothing of it is on its way any more.
pub fn come_to_rest(host: &Host, volume: &mut [Box<dyn Volume>; 1], by: &Opening<'_>) -> Outcome {
    loop {
        volume[0].poll(&mut Vec::new());
        if volume[0].is_at_rest() {
            return Ok(());
        }
        wait(host, volume, (by, by.until), "read")?;
    }
}

/// From now on no part that is put back from an earlier copy is taken for one of the whole, which has these sizes then, and keeps this, if they are others. What was written.
fn draw_opening(
    host: &Host,
    (whole, anew): (&mut Assembly, Anew<'_>),
    parts: Vec<(Labels, Label)>,
    specs: &[VolumeSpec],
    children: &mut [Box<dyn Volume>],
    by: &Opening<'_>,
) -> Outcome<Vec<(Labels, Label)>> {
    let mut opening = begin_opening(whole, anew, parts, children);
    loop {
        match opening.turn(children) {
            Some(Ok(())) => {
                (whole.opening, whole.openings) = opening.drawn();
                return Ok(opening.into_labels());
            }
            Some(Err(OpeningError { part, error })) => {
                return Err(Failure::failed(format!("{} {error}", specs[part])));
            }
            None => wait(host, children, (by, by.until), "written")?,
        }
    }
}

/// What comes with an opening: the sizes of what grows, and what modules keep from then on.
pub type Anew<'a> = (Option<&'a WholeSizes>, Option<Vec<Vec<u8>>>);

/// The second step of [`open_whole`], of what is written: goes on by [`WholeOpening::turn`], and never waits.
pub fn begin_opening(
    whole: &Assembly,
    (sizes, states): Anew<'_>,
    parts: Vec<(Labels, Label)>,
    children: &mut [Box<dyn Volume>],
) -> WholeOpening {
    let id = *entropy_bytes().first_chunk().expect("there are 32");
    let mut opening = WholeOpening::new(whole, id, parts);
    if let Some(sizes) = sizes {
        opening.grow(sizes.clone());
    }
    if let Some(states) = states {
        opening.restate(states);
    }
    opening.begin(children);
    opening
}

/// A little, for disks and targets to answer. Those of `children` that are timed are told the time.
pub fn wait(
    host: &Host,
    children: &mut [Box<dyn Volume>],
    (by, until): (&Opening<'_>, Option<Instant>),
    to_be: &str,
) -> Outcome {
    if until.is_some_and(|end| Instant::now() >= end) {
        return Err(Failure::failed(format!(
            "the labels of its parts could not be {to_be} in time"
        )));
    }
    if by.interrupt.has_come() {
        return Err(Failure::failed(format!(
            "interrupted before the labels of its parts were {to_be}"
        )));
    }
    let now = host.shard().now();
    children.iter_mut().filter(|child| child.is_timed()).for_each(|child| _ = child.turn(now));
    host.turn(Wait::Until(Instant::now() + LOOK_EVERY)).map(|_| ())
}
