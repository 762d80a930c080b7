//! Legs of mirrors at other targets that come back while their mirror is in use (rule 22): what was attached is given up as a
//! whole, and attached anew, under a new writer generation; the mirror gets it when its labels have been read under that. All of it
//! is done between turns of the host, a step at a time.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use thinwire_modules::meta::{Finding, Label, LabelError, LabelOutcome, Labels};
use thinwire_modules::mirror::{LEG_LABEL_TOKEN, LegKeeper, MirrorError, MirrorLeg};
use thinwire_volume::{Identity, Volume};

use super::grants::Notes;
use super::outline::{Meters, Outline};
use super::tree::{Leaf, Root};
use crate::cli::WireArgs;
use crate::error::{Failure, Outcome};
use crate::host::Host;
use crate::keys::Security;
use crate::open::VolumeOptions;
use crate::remote::RemoteLeaf;
use crate::uri::{RemoteSpec, VolumeSpec};

/// What was refused, or could not be begun, is tried again after so long.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// Between a mirror and what brings back its legs. Those are numbered, as they stand in [`Returning`].
#[derive(Default)]
struct Passage {
    /// The mirror has been opened, and takes legs back.
    is_open: bool,
    /// By the place in which the mirror's description names it, and by leg: which one brings it. None for what is not brought back.
    by_place: Vec<Option<usize>>,
    by_leg: Vec<Option<usize>>,
    /// What was attached and was no leg, as far as was seen then.
    unused: Vec<usize>,
    /// What the mirror has given up.
    given: Vec<(usize, Box<dyn Volume>)>,
    /// What it has removed, and does not have back.
    over: Vec<(usize, Box<dyn Volume>)>,
    /// What is brought, and as which leg; the one that is being taken.
    back: Vec<(usize, usize, MirrorLeg)>,
    taking: Option<usize>,
    /// How those were taken.
    taken: Vec<(usize, Result<(), MirrorError>)>,
    /// Any may still come.
    is_awaited: bool,
}

/// The mirror's end of that.
pub struct LegReturn(Rc<RefCell<Passage>>);

impl LegReturn {
    /// The mirror is open: for each leg, in which place of its description it was found.
    pub fn open(self, places: &[Option<usize>]) -> Box<dyn LegKeeper> {
        let mut passage = self.0.borrow_mut();
        passage.is_open = true;
        passage.by_leg =
            places.iter().map(|place| place.and_then(|place| passage.by_place[place])).collect();
        let by_place = passage.by_place.iter().flatten();
        let unused = by_place.filter(|number| !passage.by_leg.contains(&Some(**number)));
        passage.unused = unused.copied().collect();
        drop(passage);
        Box::new(self)
    }
}

impl LegKeeper for LegReturn {
    fn keeps(&self, leg: usize) -> bool {
        self.0.borrow().by_leg[leg].is_some()
    }

    fn give_up(&mut self, leg: usize, volume: Box<dyn Volume>) {
        let passage = &mut *self.0.borrow_mut();
        if let Some(number) = passage.by_leg[leg].take() {
            passage.given.push((number, volume));
            passage.is_awaited = true;
        }
    }

    fn let_go(&mut self, leg: usize, volume: Box<dyn Volume>) {
        let passage = &mut *self.0.borrow_mut();
        if let Some(number) = passage.by_leg[leg].take() {
            passage.over.push((number, volume));
        }
    }

    fn awaits(&self) -> bool {
        self.0.borrow().is_awaited
    }

    fn take(&mut self) -> Option<(usize, MirrorLeg)> {
        let passage = &mut *self.0.borrow_mut();
        let (number, leg, back) = passage.back.pop()?;
        passage.taking = Some(number);
        Some((leg, back))
    }

    fn taken(&mut self, leg: usize, result: Result<(), MirrorError>) {
        let passage = &mut *self.0.borrow_mut();
        let Some(number) = passage.taking.take() else { return };
        if result.is_ok() {
            passage.by_leg[leg] = Some(number);
        }
        passage.taken.push((number, result));
    }
}

/// How far one is.
enum Way {
    /// The mirror has it.
    Used,
    /// It is being let go of; what comes then.
    Ending(Option<Instant>),
    /// It is not there, and is attached then.
    Waiting(Instant),
    /// It is being attached.
    Attaching,
    /// Its labels are being read.
    Reading(Box<dyn Volume>, Labels),
    /// The mirror is to take it.
    Brought,
    /// It does not come back.
    Out,
}

/// A leaf that is a leg.
struct Comer {
    spec: RemoteSpec,
    /// Its place among the leaves of the tree.
    leaf: usize,
    /// What goes to it is counted where it was.
    meters: Option<Meters>,
    passage: Rc<RefCell<Passage>>,
    way: Way,
    /// Its target has been told of no end of what was attached before.
    is_unheard: bool,
    /// What the user has been told last of why it is not back.
    told: String,
}

/// What has changed for whoever drives the volume.
#[derive(Default)]
pub(super) struct Returned {
    /// Ports that are in the volume from now on, by number.
    pub ports: Vec<usize>,
    /// Other attachments are below it than before.
    pub has_changed: bool,
}

/// All legs of a tree that come back by themselves.
pub(super) struct Returning {
    host: Host,
    options: VolumeOptions,
    /// Where it is written down what is granted.
    grants: Option<Notes>,
    comers: Vec<Comer>,
}

impl Returning {
    /// Of a tree that is opened in this way. `grants` for one that is served.
    pub fn new(host: &Host, options: &VolumeOptions, grants: Option<Notes>) -> Self {
        let mut options = options.clone();
        // It waits for whoever writes there by now, and fences nobody.
        (options.patience, options.take_over) = (None, false);
        Returning { host: host.clone(), options, grants, comers: Vec::new() }
    }

    /// Nothing comes back.
    pub fn none(host: &Host) -> Self {
        let options = VolumeOptions::new(Security::default(), &WireArgs::default(), PathBuf::new());
        Returning { host: host.clone(), options, grants: None, comers: Vec::new() }
    }

    /// The legs of a mirror, whose leaves begin with this one; some may be absent. None if nothing of it is brought back: what is
    /// only read is not copied to, and local disks, volumes of several and those of other protocols come with the next opening.
    pub fn add(
        &mut self,
        specs: &[VolumeSpec],
        leaves: &[Leaf],
        first: usize,
        outline: &Outline,
    ) -> Option<LegReturn> {
        // Who gives up a leg for good does not want it back.
        if self.options.read_only || self.options.wish.change.is_some() {
            return None;
        }
        let passage = Rc::new(RefCell::new(Passage::default()));
        let mut leaf = first;
        let mut by_place = Vec::new();
        for spec in specs {
            by_place.push(match spec {
                VolumeSpec::Remote(spec) => {
                    let way = match &leaves[leaf] {
                        Leaf::Absent(_) => Way::Waiting(Instant::now()),
                        _ => Way::Used,
                    };
                    let passage = passage.clone();
                    let (spec, told, is_unheard) = (spec.clone(), String::new(), false);
                    let meters = outline.meters_of_leaf(leaf);
                    self.comers.push(Comer { spec, leaf, meters, passage, way, is_unheard, told });
                    Some(self.comers.len() - 1)
                }
                _ => None,
            });
            leaf += spec.leaves().len();
        }
        let is_any = by_place.iter().any(Option::is_some);
        passage.borrow_mut().by_place = by_place;
        is_any.then_some(LegReturn(passage))
    }

    /// Nothing does.
    pub fn is_empty(&self) -> bool {
        self.comers.is_empty()
    }

    /// The leaf is not in its mirror now.
    pub fn is_coming(&self, leaf: usize) -> bool {
        let comer = self.comers.iter().find(|comer| comer.leaf == leaf);
        comer.is_some_and(|comer| !matches!(comer.way, Way::Used))
    }

    /// Goes on with all of them, after each turn of the host.
    #[inline]
    pub fn tend(&mut self, leaves: &mut [Leaf]) -> Returned {
        match self.comers.is_empty() {
            true => Returned::default(),
            false => self.tend_all(leaves),
        }
    }

    fn tend_all(&mut self, leaves: &mut [Leaf]) -> Returned {
        let mut tended = Returned::default();
        for number in 0..self.comers.len() {
            let passage = self.comers[number].passage.clone();
            if !passage.borrow().is_open {
                continue;
            }
            self.hear(number, leaves);
            while self.step(number, leaves, &mut tended) {}
            let is_its = |comer: &&Comer| Rc::ptr_eq(&comer.passage, &passage);
            let may_come = |comer: &Comer| !matches!(comer.way, Way::Used | Way::Out);
            let is_awaited = self.comers.iter().filter(is_its).any(may_come);
            let mut passage = passage.borrow_mut();
            passage.is_awaited = is_awaited || !passage.given.is_empty();
        }
        tended
    }

    /// What the mirror has done with it.
    fn hear(&mut self, number: usize, leaves: &mut [Leaf]) {
        let comer = &mut self.comers[number];
        let mut passage = comer.passage.borrow_mut();
        if let Some(at) = passage.unused.iter().position(|unused| *unused == number) {
            passage.unused.swap_remove(at);
            if let Leaf::Remote(leaf) = &mut leaves[comer.leaf] {
                leaf.begin_close(leaf.is_away());
                comer.way = Way::Ending(Some(Instant::now()));
            }
        }
        if let Some(at) = passage.given.iter().position(|(given, _)| *given == number) {
            let (_, volume) = passage.given.swap_remove(at);
            // With its port goes what was outstanding.
            drop(volume);
            if let Leaf::Remote(leaf) = &mut leaves[comer.leaf] {
                tracing::info!("{}: given up, to be attached again", leaf.uri());
                comer.is_unheard = leaf.is_away();
                leaf.begin_close(true);
            }
            comer.way = Way::Ending(Some(Instant::now()));
        }
        if let Some(at) = passage.over.iter().position(|(over, _)| *over == number) {
            drop(passage.over.swap_remove(at));
            if let Leaf::Remote(leaf) = &mut leaves[comer.leaf] {
                tracing::info!("{}: it is no leg any more, and let go of", leaf.uri());
                // Its target is told, so that others may have it, unless it is not there.
                comer.is_unheard = leaf.is_away();
                leaf.begin_close(leaf.is_away());
            }
            comer.way = Way::Ending(None);
        }
        if let Some(at) = passage.taken.iter().position(|(taken, _)| *taken == number) {
            let (_, result) = passage.taken.swap_remove(at);
            match result {
                Ok(()) => {
                    tracing::info!("{}: is back, and gets what it lacks", comer.spec);
                    (comer.way, comer.told) = (Way::Used, String::new());
                }
                Err(error) => {
                    tracing::warn!("{} is not taken back: {error}", comer.spec);
                    if let Leaf::Remote(leaf) = &mut leaves[comer.leaf] {
                        leaf.begin_close(false);
                    }
                    comer.way = Way::Ending(None);
                }
            }
        }
    }

    /// Takes the next step, if it can be taken now.
    fn step(&mut self, number: usize, leaves: &mut [Leaf], tended: &mut Returned) -> bool {
        let comer = &mut self.comers[number];
        let place = &mut leaves[comer.leaf];
        match &mut comer.way {
            Way::Used | Way::Brought | Way::Out => false,
            Way::Ending(then) => {
                let then = *then;
                if let Leaf::Remote(leaf) = place {
                    if leaf.closed().is_none() {
                        return false;
                    }
                    leaf.take_off();
                    tended.has_changed = true;
                }
                // Who it is comes free with it.
                *place = Leaf::Absent(Failure::absent("it was dropped"));
                comer.way = then.map_or(Way::Out, Way::Waiting);
                true
            }
            Way::Waiting(until) if Instant::now() < *until => false,
            Way::Waiting(_) => {
                match RemoteLeaf::begin(&self.host, &comer.spec, &self.options) {
                    Ok(leaf) => {
                        *place = Leaf::Remote(Box::new(leaf));
                        comer.way = Way::Attaching;
                        tended.has_changed = true;
                    }
                    Err(failure) => {
                        comer.tell(&failure.message);
                        comer.way = Way::Waiting(Instant::now() + RETRY_AFTER);
                    }
                }
                true
            }
            Way::Attaching => {
                let Leaf::Remote(leaf) = place else { unreachable!("it was begun") };
                match leaf.look_open(&self.options) {
                    Ok(false) => false,
                    Ok(true) => match self.begin_read(number, leaves, &mut tended.ports) {
                        Ok(()) => true,
                        Err(why) => self.try_later(number, leaves, &why),
                    },
                    Err(failure) => self.try_later(number, leaves, &failure.message),
                }
            }
            Way::Reading(volume, labels) => match labels.turn(&mut **volume) {
                Some(LabelOutcome::Read(read)) => {
                    let content = volume.identity();
                    let Way::Reading(volume, labels) =
                        std::mem::replace(&mut comer.way, Way::Brought)
                    else {
                        unreachable!("it is being read")
                    };
                    match label_of(read, content) {
                        Ok(label) => {
                            let leg = usize::from(label.role);
                            let back = MirrorLeg { volume, labels, label };
                            comer.passage.borrow_mut().back.push((number, leg, back));
                            true
                        }
                        Err((why, may_change)) => {
                            drop(volume);
                            self.try_later(number, leaves, &why);
                            if !may_change {
                                self.comers[number].way = Way::Ending(None);
                            }
                            true
                        }
                    }
                }
                _ => false,
            },
        }
    }

    /// It is attached: its labels are read, under that grant.
    fn begin_read(
        &mut self,
        number: usize,
        leaves: &mut [Leaf],
        ports: &mut Vec<usize>,
    ) -> Result<(), String> {
        let comer = &mut self.comers[number];
        let Leaf::Remote(leaf) = &leaves[comer.leaf] else { unreachable!("it is attached") };
        comer.is_unheard = false;
        if let (Some(place), (identity, generation @ 1..)) = (&self.grants, leaf.granted()) {
            // Who opens all of this next finds that nobody else has been granted it.
            let _ = place.granted(&identity.identity, &comer.spec.to_string(), generation);
        }
        let of_leaf: Outcome<Root> = super::build::of_network(&**leaf, ports);
        let mut volume = of_leaf.map(Root::boxed).map_err(|failure| failure.message)?;
        if let Some(meters) = &comer.meters {
            volume = meters.over(&self.host, volume);
        }
        let mut labels = Labels::new(LEG_LABEL_TOKEN, &self.host.pool());
        labels.read(&mut *volume).map_err(|error| error.to_string())?;
        comer.way = Way::Reading(volume, labels);
        Ok(())
    }

    /// It is let go of, and tried again. True: there is a next step.
    fn try_later(&mut self, number: usize, leaves: &mut [Leaf], why: &str) -> bool {
        let comer = &mut self.comers[number];
        comer.tell(why);
        if let Leaf::Remote(leaf) = &mut leaves[comer.leaf] {
            let is_granted = leaf.is_granted();
            leaf.begin_close(!is_granted);
        }
        comer.way = Way::Ending(Some(Instant::now() + RETRY_AFTER));
        true
    }

    /// Ends all of that: the targets that are away, and were not told that what was attached has ended.
    pub fn into_unheard(self) -> Vec<String> {
        let unheard = self.comers.iter().filter(|comer| comer.is_unheard);
        unheard.map(|comer| comer.spec.to_string()).collect()
    }
}

impl Comer {
    /// Why it is not back: once, until it is something else.
    fn tell(&mut self, why: &str) {
        if self.told != why {
            tracing::warn!("{} is not back: {why}", self.spec);
            why.clone_into(&mut self.told);
        }
    }
}

/// What its labels say, if it holds what they were written on (rule 16); or why it is no leg, and whether that may change.
fn label_of(read: Result<Finding, LabelError>, content: Identity) -> Result<Label, (String, bool)> {
    match read {
        Ok(Finding::Label(found)) if found.label.content == content => Ok(found.label),
        Ok(Finding::Label(_)) => {
            Err(("it holds another content than when it got its label".into(), false))
        }
        Ok(Finding::Blank) => Err(("it has no label".into(), false)),
        Err(error) => Err((error.to_string(), matches!(error, LabelError::Unread(_)))),
    }
}
