//! Mirrors (`docs/format.md`, "The mirror"), opened over those of their legs that are there.

mod apart;

use std::cell::Cell;
use std::fmt::Write as _;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use thinwire_modules::meta::{Finding, Label, Labels, SeenPart};
use thinwire_modules::mirror::{
    DrawGeneration, FoundMirror, Generation, LEG_LABEL_TOKEN, Mirror, MirrorAsk, MirrorConfig,
    MirrorDesk, MirrorError, MirrorLeg, OpeningRefusal, OpeningWish, find_mirror,
};
use thinwire_modules::{Module, Options, mirror};
use thinwire_runtime::clock::entropy_bytes;
use thinwire_volume::{Volume, WorkPace};

use self::apart::written_apart;
use crate::adoption::adopt;
use crate::error::{Failure, FailureKind, Outcome};
use crate::growth::{Grown, MirrorWhole, WholeDesk};
use crate::host::Host;
use crate::labelled::{Opening, check_leaves, read_all, wait};
use crate::opened::LegReturn;
use crate::uri::VolumeSpec;

/// A leg that has not answered for so long is dropped while another is in sync, unless its mirror is described with another time.
const LEG_TIMEOUT: Duration = Duration::from_secs(5);

/// The same, of a mirror with these options.
fn leg_timeout(options: &Options) -> Duration {
    options.get(&mirror::LEG_TIMEOUT).map_or(LEG_TIMEOUT, Duration::from_millis)
}

/// The longest that a mirror in it waits for a leg; zero if there is none.
pub fn longest_leg_timeout(spec: &VolumeSpec) -> Duration {
    let VolumeSpec::Over { module, options, children, .. } = spec else { return Duration::ZERO };
    let own = if module.is_mirror() { leg_timeout(options) } else { Duration::ZERO };
    children.iter().map(longest_leg_timeout).fold(own, Duration::max)
}

/// Random numbers of this machine.
pub struct Entropy;

impl DrawGeneration for Entropy {
    fn draw(&mut self) -> Generation {
        *entropy_bytes().first_chunk().expect("there are 32")
    }
}

/// Seconds since 1970, by the clock of this machine; 0 if that is not set.
pub fn seconds_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// A mirror, which leg of it stands in which place of its description, and by what it is had to grow.
pub type OpenedMirror = (Box<dyn Volume>, Vec<(usize, usize)>, WholeDesk);

/// The mirror whose legs these are, in any order, which `specs` call by name; an error stands for one that could not be opened. What
/// is submitted waits until it has read what its legs lack, and, to be written, has that on record. What was away comes `back`. With it comes which leg
/// stands in which place of `specs`.
///
/// # Errors
/// No mirror can be made of those that are there, or it may not be served without those that are missing.
pub fn open_mirror(
    host: &Host,
    options: &Options,
    specs: &[VolumeSpec],
    children: Vec<Outcome<Box<dyn Volume>>>,
    by: &Opening<'_>,
    back: Option<LegReturn>,
) -> Outcome<OpenedMirror> {
    check_leaves(specs, !by.read_only)?;
    let (mut volumes, mut of_place) = (Vec::new(), Vec::new());
    let mut absent: Vec<String> = Vec::new();
    for (place, child) in children.into_iter().enumerate() {
        match child {
            Ok(volume) => {
                volumes.push(volume);
                of_place.push(place);
            }
            Err(failure) if failure.kind == FailureKind::Absent => absent.push(failure.message),
            // It is there, and others may be using it: who goes on without it makes a second truth.
            Err(failure) => return Err(failure.context(&specs[place])),
        }
    }
    if volumes.is_empty() {
        return Err(Failure::absent(format!("none of its legs is there: {}", absent.join("; "))));
    }
    let (readers, found) =
        read_all(host, &mut volumes, LEG_LABEL_TOKEN, by, Some(leg_timeout(options)))?;
    let mut seen: Vec<Option<SeenPart>> = vec![None; specs.len()];
    for (&place, part) in of_place.iter().zip(found) {
        seen[place] = Some(part);
    }
    let adopted = match by.read_only {
        true => Vec::new(),
        // A decision on this mirror is none on what its legs are.
        false => adopt(&mut seen, specs, (by.adopt, OpeningWish::default())),
    };
    let mut whole = find_mirror(&seen)
        .map_err(|error| Failure::failed(error.describe(&|place| specs[place].to_string())))?;
    whole.distrust(&adopted);
    absent.extend(whole.passed_over.iter().map(|(place, why)| format!("{} {why}", specs[*place])));
    let plan = whole.plan(by.wish);
    if let Err(OpeningRefusal::SplitBrain { legs, .. }) = &plan {
        let of = |leg: usize| {
            let place = whole.places[leg]?;
            let at = of_place.iter().position(|of| *of == place)?;
            Some((leg, at, seen[place].as_ref()?))
        };
        if let [Some(one), Some(other)] = legs.map(of) {
            absent.extend(written_apart(host, &mut volumes, [one, other], by));
        }
    }
    let missing = absent.join("; ");
    let plan = plan
        .map_err(|refusal| (is_undecided(&refusal), refused(&refusal, &whole, specs, &missing)));
    // Before somebody has decided that, nobody knows how many legs there are.
    let plan = match plan {
        Err((true, failure)) => return Err(failure),
        plan => plan.map_err(|(_, failure)| failure),
    };
    check_description(&whole, options, specs, by)?;
    let plan = plan?;
    let mut places: Vec<Option<(Box<dyn Volume>, Labels)>> = specs.iter().map(|_| None).collect();
    for ((&place, volume), labels) in of_place.iter().zip(volumes).zip(readers) {
        places[place] = Some((volume, labels));
    }
    let legs = whole.places.iter().map(|place| {
        let place = (*place)?;
        let (volume, labels) = places[place].take()?;
        let label = label_of(seen[place].take()?)?;
        Some((volume, labels, label))
    });
    let legs = legs.enumerate().map(|(leg, at)| {
        let (volume, labels, label) = at?;
        Some(MirrorLeg { volume, labels, label: whole.label(leg, label) })
    });
    let door = back.as_ref().map(LegReturn::door);
    let config = MirrorConfig {
        generations: Box::new(Entropy),
        pool: host.pool(),
        wish: by.wish,
        read_only: by.read_only,
        opened_at: seconds_now(),
        leg_timeout: leg_timeout(options),
        keeper: back.map(|back| {
            let is_used = |leg: &usize| {
                plan.current >> leg & 1 == 1 || plan.resync.iter().any(|(copied, _)| copied == leg)
            };
            let places = whole.places.iter().enumerate();
            let places = places.map(|(leg, place)| place.filter(|_| is_used(&leg)));
            let legs = whole.described_for(by.wish.from);
            let described = places_of(&whole, &legs, specs.len());
            back.open(&whole, &places.collect::<Vec<_>>(), &described)
        }),
    };
    let mirror = Mirror::open(legs.collect(), config).map_err(|error| match error {
        MirrorError::Refused(refusal) => refused(&refusal, &whole, specs, &missing),
        MirrorError::Unfit(e) => Failure::failed(match e.child {
            Some(leg) => format!("leg {leg} ({}) {}", called(&whole, leg, specs), e.why),
            None => e.to_string(),
        }),
        error @ MirrorError::Count { .. } => Failure::failed(error.to_string()),
    })?;
    let is_whole = plan.current.count_ones() as usize == whole.places.len();
    if !is_whole && by.wish.change.is_none() {
        let missing = if missing.is_empty() { missing } else { format!("; {missing}") };
        tracing::warn!("mirror {:?}: {}{missing}", whole.name, standings(&whole, specs));
    }
    let (desk, mut mirror) = (mirror.desk(), [Box::new(mirror) as Box<dyn Volume>]);
    if let Some(notes) = by.growth.filter(|_| !by.read_only) {
        notes.add(grow(host, &whole.name, &desk, &mut mirror, by)?);
    }
    let [mirror] = mirror;
    let bytes = Rc::new(Cell::new(mirror.geometry().bytes));
    let name = whole.name.clone();
    let desk = WholeDesk::Mirror(MirrorWhole { desk, door, name, bytes });
    let legs = whole.described_for(by.wish.from);
    Ok((mirror, places_of(&whole, &legs, specs.len()), desk))
}

/// Who waits for what a volume does beside its users, and has it open for that alone, has it go on if somebody has paused it.
pub fn go_on(volume: &mut dyn Volume) {
    volume.works(&mut |work| {
        let pace = work.pace();
        if pace.is_paused {
            work.set_pace(WorkPace { is_paused: false, ..pace });
        }
    });
}

/// Has it grow before anybody uses it, and waits for that.
fn grow(
    host: &Host,
    name: &str,
    desk: &MirrorDesk,
    mirror: &mut [Box<dyn Volume>; 1],
    by: &Opening<'_>,
) -> Outcome<Grown> {
    let kind = Module::find("mirror").map_or("", |module| module.name);
    let before = mirror[0].geometry().bytes;
    go_on(&mut *mirror[0]);
    let (asked, mut done) = (desk.ask(MirrorAsk::Grow), Vec::new());
    loop {
        match desk.take_ended(asked) {
            Some(Ok(done)) => return Ok(Grown::of(name, kind, before, done.bytes)),
            Some(Err(error)) => {
                return Ok(Grown::refused(name, kind, before, error.to_string()));
            }
            // As long as it takes to zero what it grows by.
            None => wait(host, mirror, (by, None), "written")?,
        }
        mirror[0].poll(&mut done);
    }
}

fn label_of(part: SeenPart) -> Option<Label> {
    match part.found {
        Ok(Finding::Label(found)) => Some(found.label),
        _ => None,
    }
}

/// It is described as it was made.
fn check_description(
    whole: &FoundMirror,
    options: &Options,
    specs: &[VolumeSpec],
    by: &Opening<'_>,
) -> Outcome {
    let legs = whole.described_for(by.wish.from);
    if legs.len() != specs.len() {
        return Err(Failure::failed(format!(
            "it is described with {} legs, and has {} by their labels: name all of them, also those that are missing, and none that was removed",
            specs.len(),
            legs.len()
        )));
    }
    if whole.options != kept(options) {
        return Err(Failure::failed(
            "it is described with other options than the labels of its legs say: describe it as it was made",
        ));
    }
    let is_elsewhere =
        |(nth, leg): (usize, &usize)| whole.places[*leg].is_some_and(|place| place != nth);
    if by.in_order && legs.iter().enumerate().any(is_elsewhere) {
        let places = places_of(whole, &legs, specs.len());
        let legs: Vec<_> = places.iter().map(|(_, place)| specs[*place].to_string()).collect();
        return Err(Failure::failed(format!(
            "who is served remembers its legs by their order, and that is another than in their labels: describe it as children = \
             [{}]",
            legs.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ")
        )));
    }
    Ok(())
}

/// In which place each leg is described that was not removed. Those that were found nowhere keep the order in which they are.
pub fn places_of_all(whole: &FoundMirror, count: usize) -> Vec<(usize, usize)> {
    places_of(whole, &whole.described(), count)
}

/// The same, of these legs.
fn places_of(whole: &FoundMirror, legs: &[usize], count: usize) -> Vec<(usize, usize)> {
    let mut others = (0..count).filter(|place| !whole.places.contains(&Some(*place)));
    let legs = legs.iter();
    legs.filter_map(|&leg| Some((leg, whole.places[leg].or_else(|| others.next())?))).collect()
}

/// Which of the legs that are there are the truth somebody has to say.
fn is_undecided(refusal: &OpeningRefusal) -> bool {
    matches!(
        refusal,
        OpeningRefusal::SplitBrain { .. } | OpeningRefusal::NoneInSync | OpeningRefusal::Old { .. }
    )
}

/// What its labels say of these.
fn kept(options: &Options) -> Options {
    Module::find("mirror").map_or_else(|| options.clone(), |module| module.kept_options(options))
}

/// As users call a leg.
fn called(whole: &FoundMirror, leg: usize, specs: &[VolumeSpec]) -> String {
    whole.places[leg].map_or("missing".into(), |place| specs[place].to_string())
}

/// How all legs stand.
pub fn standings(whole: &FoundMirror, specs: &[VolumeSpec]) -> String {
    let mut text = String::new();
    for (leg, place) in whole.places.iter().enumerate() {
        let comma = if leg == 0 { "" } else { ", " };
        let _ = write!(text, "{comma}leg {leg}");
        if let Some(place) = place {
            let _ = write!(text, " ({})", specs[*place]);
        }
        let _ = write!(text, " is {}", whole.standing(leg));
    }
    text
}

/// What is wrong, who is who, and what to do.
pub fn refused(
    refusal: &OpeningRefusal,
    whole: &FoundMirror,
    specs: &[VolumeSpec],
    missing: &str,
) -> Failure {
    let mut text = format!("{refusal} ({}", standings(whole, specs));
    if !missing.is_empty() {
        let _ = write!(text, "; {missing}");
    }
    text += ")";
    match refusal {
        OpeningRefusal::Missing { .. } => {
            text += ": `thinwire volume resync --degraded` goes on without them";
            return Failure::absent(text);
        }
        refusal if is_undecided(refusal) => {
            text += ": `thinwire volume resync --from LEG` takes one for the truth";
        }
        _ => {}
    }
    Failure::failed(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempDir;

    #[test]
    fn a_mirror_waits_as_long_as_it_is_described_and_its_labels_know_nothing_of_that() {
        let dir = TempDir::new("leg-timeout");
        let file = dir.path().join("m.toml");
        let mirror = |name: &str, said: &str| {
            format!(
                "[[volume]]\nname = \"{name}\"\nkind = \"mirror\"\n{said}\nchildren = [\"/{name}1\", \"/{name}2\"]\n"
            )
        };
        let both = "[[volume]]\nname = \"both\"\nkind = \"linear\"\nchildren = [\"quick\", \"slow\", \"plain\"]\n";
        let text = mirror("quick", "leg_timeout_ms = 200")
            + &mirror("slow", "leg_timeout_ms = 20000")
            + &mirror("plain", "")
            + both;
        std::fs::write(&file, text).unwrap();
        let spec =
            |name: &str| -> VolumeSpec { format!("{}#{name}", file.display()).parse().unwrap() };
        let timeout = |name: &str| match spec(name) {
            VolumeSpec::Over { options, .. } => {
                assert_eq!(kept(&options), Options::default());
                leg_timeout(&options).as_millis()
            }
            other => panic!("{other}"),
        };
        assert_eq!([timeout("quick"), timeout("slow"), timeout("plain")], [200, 20_000, 5000]);
        assert_eq!(longest_leg_timeout(&spec("both")).as_secs(), 20);
        assert_eq!(longest_leg_timeout(&spec("quick")).as_millis(), 200);
        for (nth, wrong) in ["99", "60001", "\"soon\""].iter().enumerate() {
            // What was read once is not read again.
            let file = dir.path().join(format!("wrong{nth}.toml"));
            std::fs::write(&file, mirror("quick", &format!("leg_timeout_ms = {wrong}"))).unwrap();
            let refused = format!("{}#quick", file.display()).parse::<VolumeSpec>().unwrap_err();
            assert!(refused.to_string().contains("leg_timeout_ms"), "{refused}");
        }
    }
}
