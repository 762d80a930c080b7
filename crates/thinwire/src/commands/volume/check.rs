//! `thinwire volume check`: whether labels are sound, and what stands behind them, and what they make. With `--repair` a volume is opened for writing,
//! which writes anew what one intact copy is left of.

mod behind;

use serde::Serialize;
use thinwire_modules::cuts::cut_of;
use thinwire_modules::meta::{Finding, SeenPart};

use self::behind::{Behind, JsonBitmap, look_behind};
use super::dump::JsonSums;
use super::live::OpenElsewhere;
use super::look::{NotMade, look_further, whole_of, wholes_of};
use super::pool_check::{self, JsonPoolCheck};
use super::{hex, options_of};
use crate::cli::VolumeCommon;
use crate::error::{Failure, FailureKind, Outcome};
use crate::guard::refuse_in_use;
use crate::last_resort::catch_signals;
use crate::open::{Ending, let_go, open_volume};
use crate::output;
use crate::rundir::SCHEMA;
use crate::uri::VolumeSpec;

/// `volume check --json`.
#[derive(Serialize)]
struct Checked {
    schema: u32,
    parts: Vec<JsonChecked>,
    volumes: Vec<JsonCheckedWhole>,
    /// What pools below keep of their volumes.
    pools: Vec<JsonPoolCheck>,
    /// Parts and pools that were not looked at, since somebody else uses them.
    not_checked: Vec<String>,
}

#[derive(Serialize)]
struct JsonChecked {
    volume: String,
    /// `sound`; `serves`, with something to put right; `unusable`; or `in use`, by somebody else, and not checked.
    state: &'static str,
    /// What is wrong, and what to do.
    why: Option<String>,
    /// The volume that it is a part of.
    name: Option<String>,
    role: Option<u16>,
    generation: Option<u64>,
    openings: Option<u64>,
    /// Somebody else may be writing it: what was read may be of several moments.
    held: bool,
    /// What the bitmap of a leg says, and that of a part with sums.
    bitmap: Option<JsonBitmap>,
    sums: Option<JsonSums>,
    /// What was torn, and is written anew.
    #[serde(skip_serializing_if = "Option::is_none")]
    repaired: Option<String>,
    /// The next opening for writing writes anew what is wrong.
    #[serde(skip)]
    is_torn: bool,
    /// A copy of its label that is torn may have said what no other one does.
    #[serde(skip)]
    is_in_doubt: bool,
}

#[derive(Serialize)]
struct JsonCheckedWhole {
    name: String,
    uuid: String,
    can_be_used: bool,
    /// All that it lacks is in use, and was not checked.
    in_use: bool,
    /// Why not, and what to do.
    why: Option<String>,
    /// How its legs stand, if that is not well.
    note: Option<String>,
    /// Those of its parts that were given.
    parts: Vec<String>,
}

/// The state of a part that somebody else has.
const IN_USE: &str = "in use";

/// What is looked at.
#[derive(Default)]
struct Wanted {
    parts: Vec<VolumeSpec>,
    pools: Vec<VolumeSpec>,
    /// What volumes are described as being made of.
    lists: Vec<Vec<VolumeSpec>>,
    /// Parts, or what stands for them in a snapshot of a volume over several.
    of_cuts: Vec<VolumeSpec>,
}

impl Wanted {
    /// All parts with labels that a volume is made of, each behind what it stands on itself; a volume that has none is a part.
    fn of(specs: &[VolumeSpec]) -> Self {
        let mut wanted = Wanted::default();
        for spec in specs {
            let before = wanted.parts.len();
            wanted.go_down(spec, false);
            if wanted.parts.len() == before {
                wanted.add(spec);
            }
        }
        wanted
    }

    fn go_down(&mut self, spec: &VolumeSpec, is_cut: bool) {
        let VolumeSpec::Over { children, labels, .. } = spec else { return };
        let is_cut = is_cut || spec.cut().is_some();
        children.iter().for_each(|child| self.go_down(child, is_cut));
        if *labels {
            children.iter().for_each(|child| self.add(child));
            self.lists.push(children.clone());
            if is_cut {
                self.of_cuts.extend_from_slice(children);
            }
        }
        if let Some((pool, _)) = spec.pool()
            && !self.pools.contains(&pool)
        {
            self.pools.push(pool);
        }
    }

    /// Each once, however it is written: one that is in use is one.
    fn add(&mut self, part: &VolumeSpec) {
        if !is_among(&self.parts, part) {
            self.parts.push(part.clone());
        }
    }
}

/// Both are the same, or are files or devices that are.
fn is_one_part(one: &VolumeSpec, other: &VolumeSpec) -> bool {
    one.is_same(other) || one.is_same_disk(other)
}

fn is_among(list: &[VolumeSpec], part: &VolumeSpec) -> bool {
    list.iter().any(|of| is_one_part(of, part))
}

impl Wanted {
    /// What was seen of snapshots of one cut stands for what they were cut of.
    fn take_cuts(&self, looked: &mut Looked) {
        let mut cuts: Vec<([u8; 16], u64)> = Vec::new();
        for (spec, looked) in self.parts.iter().zip(looked) {
            let Ok((seen, _)) = looked else { continue };
            let Ok(Finding::Label(found)) = &seen.found else { continue };
            let cut = cut_of(&found.label, seen.content);
            let Some(id) = cut.filter(|_| is_among(&self.of_cuts, spec)) else { continue };
            let first = cuts.iter().find(|(whole, _)| *whole == found.label.whole);
            match first.map(|(_, id)| *id) {
                // Of another one.
                Some(other) if other != id => continue,
                Some(_) => {}
                None => cuts.push((found.label.whole, id)),
            }
            seen.content = found.label.content;
        }
    }

    /// Takes so many of the parts that are in use, by their places, for those that a whole lacks of which these are there. None if there are not as many as
    /// may be of it, as it is described: then something is missing, whatever is in use.
    fn take_busy(&self, busy: &mut Vec<usize>, (of, lacks): (&[usize], usize)) -> Option<()> {
        let lists_of =
            |at: usize| self.lists.iter().filter(move |list| is_among(list, &self.parts[at]));
        let may_be_its = |&at: &usize| {
            let is_with =
                of.iter().any(|&place| lists_of(place).any(|list| is_among(list, &self.parts[at])));
            // Of one that was named by itself nobody says what it is a part of.
            let is_alone = |at: usize| lists_of(at).next().is_none();
            is_with || is_alone(at) && of.iter().all(|&place| is_alone(place))
        };
        let found: Vec<_> = busy.iter().copied().filter(may_be_its).take(lacks).collect();
        if lacks == 0 || found.len() < lacks {
            return None;
        }
        busy.retain(|at| !found.contains(at));
        Some(())
    }
}

/// Nobody has it open that is known here.
fn refuse_open(specs: &[VolumeSpec], common: &VolumeCommon) -> Outcome {
    specs.iter().try_for_each(|spec| match OpenElsewhere::of(spec, common)? {
        Some(user) => Err(user.refuse(
            "what stands on its parts changes meanwhile (`thinwire volume status` says how it is)",
        )),
        None => Ok(()),
    })
}

/// Says of each part, and of what they make, what is wrong and what to do.
pub fn check(specs: &[VolumeSpec], common: &VolumeCommon) -> Outcome {
    refuse_open(specs, common)?;
    // Snapshots of one volume have parts of one name.
    if let Some(cut) = specs.iter().find(|spec| specs.len() > 1 && spec.cut().is_some()) {
        return Err(Failure::usage(format!("{cut} is a snapshot: check it by itself")));
    }
    let found = find(specs, common)?;
    say(&found, common.json)
}

/// The same, behind an opening for writing if that puts something right: each label is written over the older of its two copies, which is the one that
/// is torn, and a bitmap is written from what is known of its regions.
///
/// Where what is torn may have said more than what is left, nothing is written, unless it is forced.
pub fn repair(
    specs: &[VolumeSpec],
    (force, take_over): (bool, bool),
    common: &VolumeCommon,
) -> Outcome {
    let whole = |spec: &VolumeSpec| spec.writes_labels();
    if let Some(part) = specs.iter().find(|spec| !whole(spec)) {
        return Err(Failure::usage(format!(
            "{part} is repaired with the volume that it is a part of: name that, as FILE.toml#NAME"
        )));
    }
    if let Some(read) = specs.iter().find(|spec| is_only_read(spec)) {
        return Err(Failure::usage(format!(
            "{read} is only read, and what is repaired is written: name the volume that it stands on, as FILE.toml#NAME"
        )));
    }
    refuse_open(specs, common)?;
    specs.iter().try_for_each(|spec| refuse_in_use(spec, "repairing it"))?;
    let mut torn: Vec<JsonChecked> = Vec::new();
    for spec in specs {
        let found = find(std::slice::from_ref(spec), common)?;
        if !found.parts.iter().any(|part| part.is_torn) {
            continue;
        }
        if let Some(pool) = found.pools.iter().find(|pool| !pool.sound) {
            return Err(Failure::failed(format!(
                "{spec} is not repaired: what is written goes through {pool}, which is not known to be sound; see to that one first: thinwire volume check --repair {pool}",
                pool = pool.pool
            )));
        }
        refuse_doubt(spec, &found.parts, force)?;
        torn.extend(found.parts.into_iter().filter(|part| part.is_torn));
        let (signals, last_words) = catch_signals(2, &[spec])?;
        let mut options = options_of(common, &signals)?;
        options.take_over = take_over;
        let opened = open_volume(spec, &options, Some(&signals));
        let mut open = opened
            .map_err(|e| e.context(format_args!("cannot repair {spec}")))
            .inspect_err(|failure| last_words.set(failure))?;
        let_go(&mut *open, Ending::Orderly)?;
    }
    refuse_open(specs, common)?;
    let mut found = find(specs, common)?;
    for part in found.parts.iter_mut().filter(|part| !part.is_torn) {
        let before = torn.iter().find(|before| before.volume == part.volume);
        part.repaired = before.and_then(|before| before.why.clone());
    }
    say(&found, common.json)
}

/// Nobody who opens it writes to what it stands on.
fn is_only_read(spec: &VolumeSpec) -> bool {
    let VolumeSpec::Over { children, .. } = spec else { return false };
    spec.only_reads() || children.iter().any(is_only_read)
}

/// What may be lost by it is nobody's to give up but the user's.
fn refuse_doubt(spec: &VolumeSpec, parts: &[JsonChecked], force: bool) -> Outcome {
    match parts.iter().find(|part| part.is_in_doubt && !force) {
        None => Ok(()),
        Some(JsonChecked { volume, why, .. }) => Err(Failure::failed(format!(
            "{spec} is not repaired: of {volume}, {}. What may be left of that copy would be written over: keep a copy of that part, then say --force",
            why.as_deref().unwrap_or_default()
        ))),
    }
}

/// What is wrong with labels of a pool, or below it, that may have said more than what is left; refused if it is to be repaired, and not by force.
pub(super) fn doubts_of_pool(
    pool: &VolumeSpec,
    refuses: bool,
    common: &VolumeCommon,
) -> Outcome<Vec<String>> {
    let parts = find_parts(&Wanted::of(std::slice::from_ref(pool)), common)?.1;
    refuse_doubt(pool, &parts, !refuses)?;
    Ok(parts.iter().filter(|part| part.is_in_doubt).map(label_line).collect())
}

type Looked = Vec<Outcome<(SeenPart, Behind)>>;

fn find_parts(wanted: &Wanted, common: &VolumeCommon) -> Outcome<(Looked, Vec<JsonChecked>)> {
    let mut looked = look_further(&wanted.parts, common, look_behind)?;
    wanted.take_cuts(&mut looked);
    let parts = wanted.parts.iter().zip(&looked).map(checked).collect();
    Ok((looked, parts))
}

fn find(specs: &[VolumeSpec], common: &VolumeCommon) -> Outcome<Checked> {
    let wanted = Wanted::of(specs);
    let (looked, parts) = find_parts(&wanted, common)?;
    let Wanted { parts: specs, pools, .. } = &wanted;
    let seen: Vec<_> = looked.into_iter().map(|seen| seen.map(|(seen, _)| seen)).collect();
    let mut volumes = Vec::new();
    let mut busy: Vec<_> = (0..parts.len()).filter(|&at| parts[at].state == IN_USE).collect();
    let not_checked = busy.iter().map(|&at| parts[at].volume.clone());
    let mut not_checked: Vec<_> = not_checked.collect();
    for (uuid, places) in wholes_of(&seen) {
        let of: Vec<_> = places.iter().filter_map(|&place| seen[place].clone().ok()).collect();
        let (note, why, lacks) = match whole_of(&of, &places, specs) {
            Ok(made) => (made.note, None, 0),
            Err(NotMade { why, lacks }) => (None, Some(why), lacks),
        };
        volumes.push(JsonCheckedWhole {
            name: places.iter().find_map(|&place| parts[place].name.clone()).unwrap_or_default(),
            uuid: hex(&uuid),
            can_be_used: why.is_none(),
            in_use: wanted.take_busy(&mut busy, (&places, lacks)).is_some(),
            why,
            note,
            parts: places.iter().map(|&place| specs[place].to_string()).collect(),
        });
    }
    let pools = pools.iter().map(|pool| pool_check::look_at(pool, common));
    let pools: Vec<_> = pools.collect();
    let busy_pools = pools.iter().filter(|pool| pool.in_use).map(|pool| pool.pool.clone());
    not_checked.extend(busy_pools);
    Ok(Checked { schema: SCHEMA, parts, volumes, pools, not_checked })
}

fn say(found: &Checked, is_json: bool) -> Outcome {
    let Checked { parts, volumes, pools, not_checked, .. } = found;
    let unsound = parts.iter().filter(|part| !["sound", IN_USE].contains(&part.state)).count();
    let unusable = volumes.iter().filter(|volume| !volume.can_be_used && !volume.in_use).count();
    let damaged = pools.iter().filter(|pool| !pool.sound && !pool.in_use).count();
    if is_json {
        output::say_json(found)?;
    } else {
        let lines = parts.iter().map(part_line).chain(volumes.iter().map(whole_line));
        let lines = lines.chain(pools.iter().flat_map(JsonPoolCheck::lines));
        let rest = (!not_checked.is_empty())
            .then(|| format!("not checked, as somebody uses it: {}", not_checked.join(", ")));
        let lines = lines.chain(rest);
        output::say(&output::printable(&lines.collect::<Vec<_>>().join("\n")))?;
    }
    if (unsound, unusable, damaged) == (0, 0, 0) {
        return Ok(());
    }
    let mut why = format!(
        "parts that are not sound: {unsound} of {}; volumes that cannot be used: {unusable} of {}",
        parts.len(),
        volumes.len()
    );
    if damaged > 0 {
        why += &format!("; pools that are not sound: {damaged} of {}", pools.len());
    }
    Err(Failure::failed(why))
}

fn checked((spec, seen): (&VolumeSpec, &Outcome<(SeenPart, Behind)>)) -> JsonChecked {
    let volume = spec.to_string();
    let unusable = |why: String| JsonChecked {
        volume: volume.clone(),
        state: "unusable",
        why: Some(why),
        name: None,
        role: None,
        generation: None,
        openings: None,
        held: matches!(seen, Ok((_, Behind { is_held: true, .. }))),
        bitmap: None,
        sums: None,
        repaired: None,
        is_torn: false,
        is_in_doubt: false,
    };
    let ((label, passed_over, is_content), behind) = match seen
        .as_ref()
        .map(|(seen, behind)| (seen, &seen.found, behind))
    {
        Err(why) if why.kind == FailureKind::Busy => {
            let why = format!("is in use, and was not checked: {why}");
            return JsonChecked { state: IN_USE, held: true, ..unusable(why) };
        }
        Err(why) => return unusable(format!("cannot be opened: {why}")),
        Ok((_, Ok(Finding::Blank), _)) => {
            return unusable("has no label: it is no part, or was not made one to the end".into());
        }
        Ok((_, Err(error), _)) => return unusable(error.to_string()),
        Ok((seen, Ok(Finding::Label(found)), behind)) => {
            ((&found.label, &found.passed_over, found.label.content == seen.content), behind)
        }
    };
    let mut wrong = Vec::new();
    if let Some(fault) = passed_over {
        wrong.push(format!(
            "the other copy of its label {fault}; the part serves, and the next opening for writing writes that copy anew"
        ));
    }
    let doubt = passed_over.as_ref().and_then(|_| behind.doubt(label));
    wrong.extend(doubt.map(str::to_owned));
    if !label.may_write() {
        wrong.push(
            "its label has features that allow only reading to this program: to write, use the thinwire that wrote it, or a newer one"
                .into(),
        );
    }
    if !is_content {
        wrong.push("it holds another content than when it got its label: put the part back".into());
    }
    wrong.extend(behind.wrong.iter().cloned());
    if behind.is_held && !wrong.is_empty() {
        wrong.push("somebody else may be writing it, and this be of two moments: check again when nobody does".into());
    }
    JsonChecked {
        volume: spec.to_string(),
        state: match (wrong.is_empty(), is_content && !behind.is_unusable) {
            (_, false) => "unusable",
            (true, _) => "sound",
            (false, _) => "serves",
        },
        why: (!wrong.is_empty()).then(|| wrong.join("; ")),
        name: Some(label.name.clone()),
        role: Some(label.role),
        generation: Some(label.generation),
        openings: Some(label.openings),
        held: behind.is_held,
        bitmap: behind.bitmap(),
        sums: behind.sums(),
        repaired: None,
        is_torn: is_content && (passed_over.is_some() || behind.is_torn()),
        is_in_doubt: doubt.is_some(),
    }
}

fn part_line(part: &JsonChecked) -> String {
    let notes = part.bitmap.iter().filter_map(JsonBitmap::note);
    let notes: Vec<_> = notes.chain(part.sums.iter().filter_map(JsonSums::note)).collect();
    let repaired = part.repaired.iter().map(|what| format!("repaired: {what}")).collect();
    let line = label_line(part);
    [vec![line], notes, repaired].concat().join("; ")
}

fn label_line(part: &JsonChecked) -> String {
    let JsonChecked { volume, state, why, .. } = part;
    match (&part.name, part.role, why) {
        (Some(name), Some(role), None) => {
            format!("{volume} is part {role} (counted from 0) of {name:?}: {state}")
        }
        (Some(name), Some(role), Some(why)) => {
            format!("{volume} is part {role} (counted from 0) of {name:?}: {why}")
        }
        (_, _, why) => format!("{volume} {}", why.as_deref().unwrap_or(state)),
    }
}

fn whole_line(whole: &JsonCheckedWhole) -> String {
    let JsonCheckedWhole { name, why, note, parts, .. } = whole;
    match why {
        None => {
            let note = note.as_ref().map_or(String::new(), |note| format!("; {note}"));
            format!("{name:?} can be used: of {}{note}", parts.join(", "))
        }
        Some(why) if whole.in_use => {
            format!("{name:?} was not checked, as what it lacks here is in use: {why}")
        }
        Some(why) => format!("{name:?} cannot be used: {why}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempDir;

    #[test]
    fn all_parts_of_a_tree_are_looked_at_each_behind_what_it_stands_on() {
        let dir = TempDir::new("check-wanted");
        let file = dir.path().join("a.toml");
        let volume = |name: &str, kind: &str, more: &str, children: &str| {
            format!(
                "[[volume]]\nname = \"{name}\"\nkind = \"{kind}\"\n{more}children = [{children}]\n"
            )
        };
        let text = [
            volume("pool", "thin", "", "\"./d.img\", \"./m.img\""),
            volume("left", "mirror", "", "\"./a.img\", \"pool@x\""),
            volume("both", "stripe", "labels = true\n", "\"left\", \"./b.img\""),
            volume("top", "qos", "iops = 1000\n", "\"both\""),
        ];
        std::fs::write(&file, text.concat()).unwrap();
        let spec = |name: &str| format!("{}#{name}", file.display()).parse::<VolumeSpec>().unwrap();
        let Wanted { parts, pools, .. } = Wanted::of(&[spec("top"), spec("left")]);
        let names: Vec<_> = parts.iter().map(VolumeSpec::to_string).collect();
        let ends = ["d.img", "m.img", "a.img", "#pool@x", "#left", "b.img"];
        assert_eq!(names.len(), ends.len(), "each once: {names:?}");
        assert!(names.iter().zip(ends).all(|(name, end)| name.ends_with(end)), "{names:?}");
        assert_eq!(pools, [spec("pool")]);
        // What is made of nothing is a part itself.
        let leaf: VolumeSpec = "/srv/a.img".parse().unwrap();
        let Wanted { parts, pools, .. } = Wanted::of(std::slice::from_ref(&leaf));
        assert_eq!((parts, pools.len()), (vec![leaf], 0));
    }

    /// What is in use stands for as many of those that a volume lacks, and for no others: each once, and where it may be one.
    #[test]
    fn what_is_in_use_excuses_no_more_than_it_may_be() {
        let spec = |name: &str| name.parse::<VolumeSpec>().unwrap();
        let [a, b, c, x, y] = ["/a", "/b", "/c", "/x", "/y"].map(spec);
        let parts = vec![a.clone(), b.clone(), c.clone(), x, y];
        let alone = Wanted { parts: parts.clone(), ..Wanted::default() };
        let listed = Wanted { lists: vec![vec![a, b, c]], parts, ..Wanted::default() };
        let left = |wanted: &Wanted, busy: &[usize], wholes: &[(&[usize], usize)]| {
            let mut busy = busy.to_vec();
            let taken: Vec<_> =
                wholes.iter().map(|of| wanted.take_busy(&mut busy, *of).is_some()).collect();
            (taken, busy)
        };
        // Nothing is known of what they are parts of: each may be one that is missing, and is one of one volume.
        assert_eq!(left(&alone, &[1], &[(&[0], 1)]), (vec![true], vec![]));
        assert_eq!(left(&alone, &[1], &[(&[0], 2)]), (vec![false], vec![1]));
        assert_eq!(left(&alone, &[1], &[(&[0], 1), (&[2], 1)]), (vec![true, false], vec![]));
        assert_eq!(left(&alone, &[1, 3], &[(&[0], 1), (&[2], 1)]), (vec![true, true], vec![]));
        // Something else is wrong with what is there.
        assert_eq!(left(&alone, &[1], &[(&[0], 0)]), (vec![false], vec![1]));
        // What is described as one of others is none of these, nor what is named beside them.
        assert_eq!(left(&listed, &[1], &[(&[0, 2], 1)]), (vec![true], vec![]));
        assert_eq!(left(&listed, &[1], &[(&[3], 1)]), (vec![false], vec![1]));
        assert_eq!(left(&listed, &[3], &[(&[0, 1], 1)]), (vec![false], vec![3]));
        assert_eq!(left(&listed, &[3], &[(&[4], 1)]), (vec![true], vec![]));
        // Two of one list, of which the other is of something else.
        assert_eq!(left(&listed, &[1], &[(&[0], 2), (&[2], 2)]), (vec![false, false], vec![1]));
    }

    /// A part that is named twice, in two ways, is one: it may be missing once.
    #[test]
    fn a_part_in_two_spellings_is_one() {
        let dir = TempDir::new("check-twice");
        let path = dir.path().display().to_string();
        std::fs::write(dir.path().join("c.img"), [0; 512]).unwrap();
        let spec = |name: &str| format!("{path}/{name}").parse::<VolumeSpec>().unwrap();
        let folder = dir.path().file_name().unwrap().to_str().unwrap();
        let named = [spec("c.img"), spec(&format!("../{folder}/c.img")), spec("d.img")];
        assert_ne!(named[0], named[1]);
        let Wanted { parts, .. } = Wanted::of(&named);
        assert_eq!(parts, [named[0].clone(), named[2].clone()]);
        // What it is called in a list is known there, too.
        let listed = Wanted { lists: vec![named[1..].to_vec()], parts, ..Wanted::default() };
        let mut busy = vec![0];
        assert_eq!(listed.take_busy(&mut busy, (&[1], 1)), Some(()));
    }
}
