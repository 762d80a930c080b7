//! `thinwire volume dump`: what stands on parts. It changes nothing.

use std::fmt::Write as _;

use serde::Serialize;
use thinwire_modules::meta::tree::{NODE_BYTES, TreeSpace, TreeState};
use thinwire_modules::meta::{Finding, Label, LabelWork, SeenPart};
use thinwire_modules::mirror::{
    BITMAP_BYTES, BITMAP_OFFSET, LegState, MirrorState, NO_GENERATION, SeenBitmap, bitmap_bytes,
    look_at_bitmap,
};
use thinwire_modules::thin::{PoolHead, SeenWriters, look_at_writers};
use thinwire_modules::{
    Integrity, IntegrityState, SUM_BITMAP_OFFSETS, SeenSums, SumLayout, look_at_sums,
    sum_bitmap_bytes,
};
use thinwire_volume::KeptWriter;

use super::hex;
use super::look::look_further;
use super::parts::{ReadBlocks, read_blocks, read_from};
use crate::cli::VolumeCommon;
use crate::crypted::said_of;
use crate::error::{Failure, Outcome};
use crate::open::OpenVolume;
use crate::output;
use crate::rundir::SCHEMA;
use crate::signals::Signals;
use crate::uri::VolumeSpec;

/// `volume dump --json`.
#[derive(Serialize)]
struct Dumped {
    schema: u32,
    parts: Vec<JsonPart>,
}

#[derive(Serialize)]
struct JsonPart {
    volume: String,
    /// `blank`, `label`, or `error`.
    found: &'static str,
    /// Why there is no label to go by, or why the other copy of one is none.
    why: Option<String>,
    label: Option<JsonLabel>,
}

/// The writer record of an exported whole.
#[derive(Serialize)]
struct JsonWriter {
    generation: u64,
    /// Under so many generations before that one nobody has written, at least; of one that nobody holds that one among them.
    idle: u32,
    /// What it is called; null if nobody is on record.
    name: Option<String>,
    /// Under which generations leaves were held, those that were, each with what its content is known by.
    leaves: Vec<(String, u64)>,
}

fn json_writer(kept: &KeptWriter) -> JsonWriter {
    let leaves = kept.leaves.iter().flatten().filter(|leaf| leaf.generation != 0);
    JsonWriter {
        generation: kept.record.generation,
        idle: kept.record.idle,
        name: kept.record.is_held().then(|| kept.record.name.as_str().to_owned()),
        leaves: leaves.map(|leaf| (hex(&leaf.leaf), leaf.generation)).collect(),
    }
}

#[derive(Serialize)]
struct JsonLabel {
    name: String,
    whole: String,
    part: String,
    kind: &'static str,
    role: u16,
    generation: u64,
    data_start: u64,
    data_bytes: u64,
    whole_bytes: u64,
    opening: String,
    /// How many there were.
    openings: u64,
    /// That which is half drawn.
    next_opening: Option<String>,
    /// Of all parts, in order.
    parts: Vec<String>,
    options: Vec<(&'static str, u64)>,
    features: [u64; 3],
    is_content: bool,
    /// The id of the key that an encrypted one needs, and its blocks.
    key: Option<String>,
    /// Where the data begins that has sums, and how much is on record together.
    sums: Option<String>,
    /// And the bitmap before it.
    sum_bitmap: Option<JsonSums>,
    /// By its id, the cut of the whole that was made last, of the first part; null if there was none.
    cut: Option<String>,
    /// The one that may be there in some parts only; null if there is none.
    cut_begun: Option<String>,
    /// Bytes of data with which the part was made; null if it has not grown since.
    made_bytes: Option<u64>,
    /// What the whole does beside its users; null where that is as usual.
    work: Option<JsonWork>,
    /// What it says of a mirror.
    mirror: Option<JsonState>,
    /// Who may write the whole as an export.
    writer: Option<JsonWriter>,
    /// And the bitmap behind it.
    bitmap: Option<JsonBitmap>,
    /// What it says of a pool.
    pool: Option<JsonPool>,
}

/// What a whole keeps of what it does beside its users.
#[derive(Serialize)]
struct JsonWork {
    paused: bool,
    /// Of what users get.
    percent: u8,
    /// A scrub goes on, which has read all before this, in bytes; null if none does.
    scrubbed_to: Option<u64>,
}

impl From<LabelWork> for JsonWork {
    fn from(LabelWork { pace, scrubbed_to }: LabelWork) -> Self {
        JsonWork { paused: pace.is_paused, percent: pace.percent, scrubbed_to }
    }
}

impl JsonWork {
    fn line(&self) -> String {
        let paused = if self.paused { "paused, " } else { "" };
        let scrub = self
            .scrubbed_to
            .map(|to| format!("; a scrub goes on, which has read {to} bytes"))
            .unwrap_or_default();
        format!("{paused}at {} % of what users get{scrub}", self.percent)
    }
}

/// What the bitmap of a part with sums says.
#[derive(Serialize)]
pub(super) struct JsonSums {
    regions: u64,
    /// How many of these were being written, or may have been.
    open: u64,
    /// Blocks of it of which no copy is whole.
    bad_blocks: u64,
    /// Copies of blocks that are torn, and of which the other one stands.
    torn_copies: u64,
}

impl From<SeenSums> for JsonSums {
    fn from(seen: SeenSums) -> Self {
        let SeenSums { regions, open, bad_blocks, torn_copies } = seen;
        JsonSums { regions, open, bad_blocks, torn_copies }
    }
}

impl JsonSums {
    /// What is no damage, and worth to be told.
    pub fn note(&self) -> Option<String> {
        let Self { regions, open, torn_copies, .. } = self;
        let mut notes = Vec::new();
        if *open > 0 {
            notes.push(format!(
                "open, and unverified where sums do not fit: {open} of {regions} regions"
            ));
        }
        // Copies are written by turns: the next one goes where the torn one is.
        if *torn_copies > 0 {
            notes.push(format!(
                "copies of blocks of its bitmap that are torn: {torn_copies}; the other copy of each stands, and the next write there writes them anew"
            ));
        }
        (!notes.is_empty()).then(|| notes.join("; "))
    }
}

/// What the bitmap on a leg says.
#[derive(Serialize)]
struct JsonBitmap {
    regions: u64,
    /// Of each leg, how many of these it may lack something of.
    lacking: Vec<u64>,
    /// Blocks that are torn, or somebody else's: of their regions each leg may lack something.
    bad_blocks: u64,
}

/// What the label of a metadata part says of its pool.
#[derive(Serialize)]
struct JsonPool {
    /// Of the last commit.
    generation: u64,
    block_bytes: u64,
    /// Nodes of trees: how many there are, and are used; then blocks of data.
    nodes: [u64; 2],
    blocks: [u64; 2],
    /// Counts snapshots, clones and rollbacks.
    time: u64,
    /// It has ended in order.
    is_ended: bool,
    /// The nodes at the roots of its trees, each with its generation: the maps of nodes and of blocks, what is being given back, the volumes, their names, and their writers.
    roots: [(u64, u64); 6],
    /// Who may write volumes as exports, by the numbers of these; null of what is there and cannot be read.
    writers: Vec<(u64, Option<JsonWriter>)>,
    /// So many nodes with such cannot be read.
    bad_writer_nodes: u64,
    /// There are more than these.
    has_more_writers: bool,
}

/// What stands behind a label.
#[derive(Default)]
struct Further {
    bitmap: Option<SeenBitmap>,
    sums: Option<SeenSums>,
    writers: Option<SeenWriters>,
}

fn json_pool(label: &Label, writers: Option<&SeenWriters>) -> Option<JsonPool> {
    (label.module.has_volumes() && !label.state.is_empty()).then_some(())?;
    let (state, head) = TreeState::decode(&label.state).ok()?;
    let head = PoolHead::decode(head).ok()?;
    let space = |space: &TreeSpace| [space.total, space.used];
    let [volumes, names, of_writers, _] = state.roots;
    let trees = [state.nodes.map, state.blocks.map, state.doomed, volumes, names, of_writers];
    let of = |(volume, kept): &(u64, Option<KeptWriter>)| (*volume, kept.as_ref().map(json_writer));
    let all = writers.map(|seen| seen.writers.iter().map(of).collect());
    Some(JsonPool {
        generation: state.generation,
        block_bytes: 1 << head.block_shift,
        nodes: space(&state.nodes),
        blocks: space(&state.blocks),
        time: head.time,
        is_ended: head.ended != 0,
        roots: trees.map(|root| (root.node, root.generation)),
        writers: all.unwrap_or_default(),
        bad_writer_nodes: writers.map_or(0, |seen| seen.bad_nodes),
        has_more_writers: writers.is_some_and(|seen| seen.has_more),
    })
}

/// What stands behind the label of a leg, and which blocks of that cannot be read.
pub(super) fn read_bitmap(
    part: &mut [Box<dyn OpenVolume>],
    seen: &SeenPart,
    signals: &Signals,
) -> Outcome<Option<(SeenBitmap, ReadBlocks)>> {
    let Ok(Finding::Label(found)) = &seen.found else { return Ok(None) };
    let label = &found.label;
    let state = label.module.is_mirror().then(|| MirrorState::decode(&label.state));
    let Some(Ok(state)) = state else { return Ok(None) };
    // No more of it is there, if the label lies.
    let room = part[0].volume().geometry().bytes.saturating_sub(BITMAP_OFFSET);
    let bytes = bitmap_bytes(label, &state).min(BITMAP_BYTES).min(room);
    let read = read_blocks(part, 0, BITMAP_OFFSET, bytes, signals)?;
    Ok(Some((look_at_bitmap(label, &state, &read.bytes), read)))
}

/// The same of a part with sums, whose bitmap is there twice.
pub(super) fn read_sums(
    part: &mut [Box<dyn OpenVolume>],
    seen: &SeenPart,
    signals: &Signals,
) -> Outcome<Option<(SeenSums, [ReadBlocks; 2])>> {
    let Ok(Finding::Label(found)) = &seen.found else { return Ok(None) };
    let label = &found.label;
    let state = (label.module.name == Integrity::NAME)
        .then(|| IntegrityState::decode(&label.state, label.whole_bytes));
    let Some(Ok(state)) = state else { return Ok(None) };
    let mut copies = [ReadBlocks::default(), ReadBlocks::default()];
    for (copy, offset) in copies.iter_mut().zip(SUM_BITMAP_OFFSETS) {
        let from = label.data_start + offset;
        // No more of it is there, if the label lies.
        let room = part[0].volume().geometry().bytes.saturating_sub(from);
        let bytes = sum_bitmap_bytes(label, &state).min(room);
        *copy = read_blocks(part, 0, from, bytes, signals)?;
    }
    let [first, second] = &copies;
    let unread = [&first.unread[..], &second.unread].concat();
    let seen = look_at_sums(label, &state, [&first.bytes, &second.bytes], &unread);
    Ok(Some((seen, copies)))
}

/// The same of any part.
fn read_further(
    part: &mut [Box<dyn OpenVolume>],
    seen: &SeenPart,
    signals: &Signals,
) -> Outcome<Further> {
    let bitmap = read_bitmap(part, seen, signals)?.map(|(seen, _)| seen);
    let sums = read_sums(part, seen, signals)?.map(|(seen, _)| seen);
    let writers = match &seen.found {
        Ok(Finding::Label(found)) => {
            let mut read = |offset| read_from(part, 0, offset, NODE_BYTES as u64, signals);
            look_at_writers(&found.label, &mut read)?
        }
        _ => None,
    };
    Ok(Further { bitmap, sums, writers })
}

/// What the label of a leg says of its mirror.
#[derive(Serialize)]
struct JsonState {
    /// Names what the data is.
    generation: String,
    /// When that was drawn, in seconds since 1970; 0 if unknown.
    drawn_at: u64,
    /// The one that is half drawn.
    next: Option<String>,
    incarnation: String,
    /// The generations before, the newest first.
    history: Vec<String>,
    region_bytes: u64,
    /// Of each leg: `in sync`, `resyncing`, `behind`, `failed` or `removed`, and the generation at which it was left.
    legs: Vec<(&'static str, Option<String>)>,
}

fn json_state(label: &Label) -> Option<JsonState> {
    label.module.is_mirror().then_some(())?;
    let state = MirrorState::decode(&label.state).ok()?;
    let leg = |leg: &LegState| match leg {
        LegState::InSync => ("in sync", None),
        LegState::Resyncing { at } => ("resyncing", Some(hex(&at.last))),
        LegState::Behind { at } => ("behind", Some(hex(&at.last))),
        LegState::Failed { at } => ("failed", Some(hex(&at.last))),
        LegState::Removed { at } => ("removed", Some(hex(&at.last))),
    };
    Some(JsonState {
        generation: hex(&state.generation),
        drawn_at: state.drawn_at,
        next: (state.next != NO_GENERATION).then(|| hex(&state.next)),
        incarnation: hex(&state.incarnation),
        history: state.history.iter().map(hex).collect(),
        region_bytes: 1 << state.region_shift,
        legs: state.legs.iter().map(leg).collect(),
    })
}

/// How the sums of its blocks stand there, of a label that says so.
fn sums_of(label: &Label) -> Option<String> {
    let state = (label.module.name == Integrity::NAME)
        .then(|| IntegrityState::decode(&label.state, label.whole_bytes))?;
    Some(match state {
        Ok(state) => format!(
            "of blocks of 4096 bytes, which begin at {}; regions of {} bytes",
            label.data_start + SumLayout::of(label.part().bytes).data_offset,
            state.region_bytes()
        ),
        Err(fault) => format!("it {fault}"),
    })
}

fn json_label(label: &Label, seen: &SeenPart, further: &Further) -> JsonLabel {
    let features = label.features;
    JsonLabel {
        name: label.name.clone(),
        whole: hex(&label.whole),
        part: hex(&label.part().uuid),
        kind: label.module.name,
        role: label.role,
        generation: label.generation,
        data_start: label.data_start,
        data_bytes: label.part().bytes,
        whole_bytes: label.whole_bytes,
        opening: hex(&label.opening),
        openings: label.openings,
        next_opening: (label.next_opening != [0; 16]).then(|| hex(&label.next_opening)),
        parts: label.parts.iter().map(|part| hex(&part.uuid)).collect(),
        options: label.options.iter().collect(),
        features: [features.compatible, features.read_only_compatible, features.incompatible],
        is_content: label.content == seen.content,
        mirror: json_state(label),
        writer: label.writer.as_ref().map(json_writer),
        bitmap: further.bitmap.as_ref().map(|seen| JsonBitmap {
            regions: seen.regions,
            lacking: seen.lacking.clone(),
            bad_blocks: seen.bad_blocks,
        }),
        pool: json_pool(label, further.writers.as_ref()),
        key: said_of(label),
        sums: sums_of(label),
        sum_bitmap: further.sums.map(JsonSums::from),
        cut: cut_id(label.cut),
        cut_begun: cut_id(label.cut_begun),
        made_bytes: label.made_bytes,
        work: label.work.map(JsonWork::from),
    }
}

/// A cut, as its snapshots are told apart; none if there is none.
fn cut_id(id: u64) -> Option<String> {
    (id != 0).then(|| format!("{id:016x}"))
}

/// Shows what each label says.
pub fn dump(parts: &[VolumeSpec], common: &VolumeCommon) -> Outcome {
    let seen = look_further(parts, common, read_further)?;
    let json = |(spec, seen): (&VolumeSpec, &Outcome<(SeenPart, Further)>)| {
        let seen = seen.as_ref().map(|(seen, further)| (seen, &seen.found, further));
        let (found, why, label) = match seen {
            Err(why) => ("error", Some(format!("cannot be opened: {why}")), None),
            Ok((_, Ok(Finding::Blank), _)) => ("blank", None, None),
            Ok((seen, Ok(Finding::Label(found)), further)) => {
                let why = found.passed_over.as_ref().map(|fault| format!("the other copy {fault}"));
                ("label", why, Some(json_label(&found.label, seen, further)))
            }
            Ok((_, Err(error), _)) => ("error", Some(error.to_string()), None),
        };
        JsonPart { volume: spec.to_string(), found, why, label }
    };
    let all: Vec<_> = parts.iter().zip(&seen).map(json).collect();
    let without = all.iter().filter(|part| part.label.is_none()).count();
    if common.json {
        output::say_json(&Dumped { schema: SCHEMA, parts: all })?;
    } else {
        let texts: Vec<_> = all.iter().map(text_of).collect();
        output::say(&texts.join("\n\n"))?;
    }
    match without {
        0 => Ok(()),
        count => Err(Failure::failed(format!("{count} of {} have no label", parts.len()))),
    }
}

fn bitmap_text(bitmap: &JsonBitmap) -> String {
    let mut text = format!("of {} regions", bitmap.regions);
    for (leg, count) in bitmap.lacking.iter().enumerate().filter(|(_, count)| **count > 0) {
        let _ = write!(text, "; leg {leg} may lack something of {count}");
    }
    if bitmap.bad_blocks > 0 {
        let _ = write!(text, "; {} of its blocks are torn, and say nothing", bitmap.bad_blocks);
    }
    text
}

fn sum_bitmap_text(bitmap: &JsonSums) -> String {
    let JsonSums { regions, bad_blocks, .. } = bitmap;
    let mut text = format!("of {regions} regions");
    if let Some(note) = bitmap.note() {
        let _ = write!(text, "; {note}");
    }
    if *bad_blocks > 0 {
        let _ = write!(text, "; no copy of {bad_blocks} of its blocks is whole");
    }
    text
}

fn pool_rows(pool: &JsonPool) -> Vec<(&'static str, String)> {
    let JsonPool { generation, block_bytes, nodes, blocks, time, is_ended, roots, .. } = pool;
    let ended = if *is_ended { "ended in order" } else { "not ended in order" };
    let names = ["nodes", "blocks", "given back", "volumes", "names", "writers"];
    let tree = |(name, (node, at)): (&str, &(u64, u64))| match node {
        0 => format!("{name} has none"),
        _ => format!("{name} at {node}, of {at}"),
    };
    let trees: Vec<_> = names.into_iter().zip(roots).map(tree).collect();
    let mut writers: Vec<_> = pool.writers.iter().map(writer_of_volume).collect();
    if pool.bad_writer_nodes > 0 {
        writers.push(format!("{} nodes of them cannot be read", pool.bad_writer_nodes));
    }
    if pool.has_more_writers {
        writers.push("there are more".into());
    }
    let mut rows = vec![
        ("commit", format!("{generation}, time {time}, {ended}")),
        ("nodes", format!("{} of {} used", nodes[1], nodes[0])),
        ("blocks", format!("{} of {} used, of {block_bytes} bytes", blocks[1], blocks[0])),
        ("roots", trees.join("; ")),
    ];
    if !writers.is_empty() {
        rows.push(("writers", writers.join("; ")));
    }
    rows
}

fn writer_of_volume((volume, writer): &(u64, Option<JsonWriter>)) -> String {
    match writer {
        None => format!("of volume {volume} what is there cannot be read"),
        Some(JsonWriter { generation, name, .. }) => {
            let who = name.as_deref().unwrap_or("nobody");
            format!("of volume {volume} {who}, generation {generation}")
        }
    }
}

fn text_of(part: &JsonPart) -> String {
    let JsonPart { volume, found, why, label } = part;
    let mut text = match (label, why) {
        (None, None) => format!("{volume} is {found}: it has no label"),
        (None, Some(why)) => format!("{volume} {why}"),
        (Some(label), _) => {
            format!("{volume} is part {} (counted from 0) of {:?}", label.role, label.name)
        }
    };
    let Some(label) = label else { return output::printable(&text) };
    if let Some(why) = why {
        let _ = write!(text, "\n  {why}");
    }
    if !label.is_content {
        text += "\n  it holds another content than when it got this label: it is not used";
    }
    let options = label.options.iter().map(|(name, value)| format!("{name} = {value}"));
    let mut opening = match label.openings {
        0 => "none yet".to_owned(),
        count => format!("{}, number {count}", label.opening),
    };
    if let Some(next) = &label.next_opening {
        let _ = write!(opening, "; {next} was cut off");
    }
    let mut rows = vec![
        ("whole", format!("{}, {} bytes", label.whole, label.whole_bytes)),
        (
            "kind",
            std::iter::once(label.kind.to_owned()).chain(options).collect::<Vec<_>>().join(", "),
        ),
        ("part", label.part.clone()),
        ("data", format!("{} bytes from {} on", label.data_bytes, label.data_start)),
        ("generation", label.generation.to_string()),
    ];
    match &label.mirror {
        None => rows.push(("opening", opening)),
        Some(state) => {
            let next =
                state.next.as_ref().map_or(String::new(), |next| format!("; {next} was cut off"));
            rows.push(("data is", format!("{}{next}", state.generation)));
            rows.push(("it was", state.history.join(" ")));
            let leg = |(nth, (standing, at)): (usize, &(&str, Option<String>))| match at {
                Some(at) => format!("leg {nth} {standing}, at {at}"),
                None => format!("leg {nth} {standing}"),
            };
            let legs: Vec<_> = state.legs.iter().enumerate().map(leg).collect();
            rows.push(("legs", legs.join("; ")));
        }
    }
    rows.extend(label.made_bytes.map(|made| ("made with", format!("{made} bytes of data"))));
    rows.extend(label.work.as_ref().map(|work| ("work", work.line())));
    let begun = |id: &String| format!("{id}, which may be there in some parts only");
    rows.extend(label.cut.clone().map(|cut| ("cut", cut)));
    rows.extend(label.cut_begun.as_ref().map(|cut| ("cut begun", begun(cut))));
    if let Some(bitmap) = &label.bitmap {
        rows.push(("bitmap", bitmap_text(bitmap)));
    }
    rows.extend(label.sum_bitmap.as_ref().map(|bitmap| ("bitmap", sum_bitmap_text(bitmap))));
    if let Some(pool) = &label.pool {
        rows.extend(pool_rows(pool));
    }
    rows.push(("parts", label.parts.join(" ")));
    for (what, value) in rows {
        let _ = write!(text, "\n  {what:<12}{value}");
    }
    if let Some(JsonWriter { generation, name, .. }) = &label.writer {
        let who = name.as_deref().unwrap_or("nobody");
        let _ = write!(text, "\n  {:<12}{who}, generation {generation}", "writer");
    }
    if let Some(key) = &label.key {
        let _ = write!(text, "\n  {:<12}{key}", "key");
    }
    if let Some(sums) = &label.sums {
        let _ = write!(text, "\n  {:<12}{sums}", "sums");
    }
    output::printable(&text)
}

#[cfg(test)]
mod tests;
