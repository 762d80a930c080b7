//! Legs of mirrors at other targets that come back while their mirror is in use (rule 22): what was attached is given up as a
//! whole, and attached anew, under a new writer generation; what it is made of is made anew over that ([`Climb`]), and the mirror gets it when
//! its labels have been read. All of it is done between turns of the host, a step at a time.
//!
//! What comes back and goes again without having been in sync is waited for, each time for longer ([`Backoff`]). What comes back as something
//! else is told to the mirror, and left alone (rule 16).

mod newcomers;

use std::cell::RefCell;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use thinwire_modules::mirror::{MirrorError, MirrorLeg};

use thinwire_runtime::disk::DiskOptions;

use super::climbing::{Chain, Climb, ClimbError, Climbed, Risen};
use super::grants::Notes;
use super::outline::Outline;
use super::passage::{LegReturn, Passage};
use super::tree::{Leaf, Root};
use crate::cli::WireArgs;
use crate::error::{Failure, Outcome};
use crate::host::Host;
use crate::keys::Security;
use crate::open::VolumeOptions;
use crate::remote::RemoteLeaf;
use crate::uri::VolumeSpec;

/// What was refused, or could not be begun, is tried again after so long.
const RETRY_AFTER: Duration = Duration::from_secs(5);
/// What was attached in vain is attached again after so long, after twice that if that was in vain, too, and so on; and the most.
const BACKOFF_FIRST: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(300);

/// How long is waited before something is tried again that came to nothing.
#[derive(Debug, Default)]
struct Backoff {
    in_vain: u32,
}

impl Backoff {
    /// Once more.
    fn next(&mut self) -> Duration {
        let wait = BACKOFF_FIRST.saturating_mul(1 << self.in_vain.min(16)).min(BACKOFF_MAX);
        self.in_vain += 1;
        wait
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
    /// What it is made of is being made, and its labels read.
    Climbing(Box<Climb>),
    /// The mirror is to take it.
    Brought,
    /// It does not come back.
    Out,
}

/// A leg, over one leaf.
struct Comer {
    chain: Chain,
    /// The place of that among the leaves of the tree.
    leaf: usize,
    passage: Rc<RefCell<Passage>>,
    way: Way,
    /// The mirror has taken it back, and it has not been in sync since.
    is_on_trial: bool,
    backoff: Backoff,
    /// Until it is attached for the first time: it is taken over, as the rest was when the volume was opened.
    takes_over: bool,
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
    /// Other attachments are below it than before, or a mirror has taken one of them.
    pub has_changed: bool,
    /// Volumes of its outline that are there again.
    pub risen: Vec<Risen>,
    /// Readable, from now on, when something local of it has completions.
    pub fds: Vec<RawFd>,
}

/// All legs of a tree that come back by themselves.
pub(super) struct Returning {
    host: Host,
    options: VolumeOptions,
    /// The volume was taken over from its writer, for which its absent leaves have not heard of that.
    takes_over: bool,
    /// Where it is written down what is granted.
    grants: Option<Notes>,
    /// How disks of this machine are opened.
    disk_options: DiskOptions,
    comers: Vec<Comer>,
    /// Of each mirror, also of those of which nothing is brought back.
    passages: Vec<Rc<RefCell<Passage>>>,
    /// A mirror has taken one since that was told.
    has_joined: bool,
}

impl Returning {
    /// Of a tree that is opened in this way. `grants` for one that is served.
    pub fn new(
        host: &Host,
        options: &VolumeOptions,
        disk_options: &DiskOptions,
        grants: Option<Notes>,
    ) -> Self {
        let (mut options, mut disk_options) = (options.clone(), disk_options.clone());
        // Who writes there by now is told of, and not fenced; nor does it keep others waiting.
        let takes_over = std::mem::take(&mut options.take_over);
        options.patience = Some(RETRY_AFTER);
        disk_options.wait_lock = Duration::ZERO;
        let (host, comers, passages) = (host.clone(), Vec::new(), Vec::new());
        let has_joined = false;
        Returning { host, options, takes_over, grants, disk_options, comers, passages, has_joined }
    }

    /// Nothing comes back.
    pub fn none(host: &Host) -> Self {
        let options = VolumeOptions::new(Security::default(), &WireArgs::default(), PathBuf::new());
        Returning::new(host, &options, &DiskOptions::default(), None)
    }

    /// The legs of a mirror, which stands there in the outline and whose leaves begin with this one; some may be absent. None if none of them is
    /// reached over links, and none can be added. `is_copied_to`: what was away comes back, and what is new comes. What is only read is not copied to; and
    /// local disks, volumes of several and those of other protocols come back with the next opening.
    pub fn add(
        &mut self,
        (specs, is_buffered): (&[VolumeSpec], bool),
        (leaves, first): (&[Leaf], usize),
        (outline, at): (&Outline, usize),
        is_copied_to: bool,
    ) -> Option<LegReturn> {
        // Who gives up a leg for good does not want it back.
        let has_some = is_copied_to || specs.iter().any(VolumeSpec::has_remote);
        if self.options.wish.change.is_some() || !has_some {
            return None;
        }
        let (number, mut leaf) = (self.comers.len(), first);
        let (mut by_place, mut ranges, mut chains) = (Vec::new(), Vec::new(), Vec::new());
        for spec in specs {
            let chain = Chain::of(spec, leaf, outline, is_buffered)
                .filter(|chain| is_copied_to && chain.remote().is_some());
            by_place.push(chain.as_ref().map(|_| number + chains.len()));
            chains.extend(chain.map(|chain| (chain, leaf)));
            let next = leaf + spec.leaves().len();
            ranges.push(leaf..next);
            leaf = next;
        }
        let mut passage = Passage::new((outline.path(at), outline.name(at)), by_place, ranges);
        (passage.node, passage.is_buffered) = (at, is_buffered);
        let passage = Rc::new(RefCell::new(passage));
        for (chain, leaf) in chains {
            let way = match &leaves[leaf] {
                Leaf::Absent(_) => Way::Waiting(Instant::now()),
                _ => Way::Used,
            };
            let (passage, told, is_unheard) = (passage.clone(), String::new(), false);
            let (backoff, is_on_trial) = (Backoff::default(), false);
            let takes_over = self.takes_over && matches!(way, Way::Waiting(_));
            #[rustfmt::skip]
            let comer = Comer { chain, leaf, passage, way, is_on_trial, backoff, takes_over, is_unheard, told };
            self.comers.push(comer);
        }
        self.passages.push(passage.clone());
        Some(LegReturn(passage))
    }

    /// Nothing does, nor may anything come.
    pub fn is_empty(&self) -> bool {
        self.passages.is_empty()
    }

    /// The leaf is not in its mirror now.
    pub fn is_coming(&self, leaf: usize) -> bool {
        let comer = self.comers.iter().find(|comer| comer.leaf == leaf);
        comer.is_some_and(|comer| !matches!(comer.way, Way::Used))
    }

    /// A mirror goes without the leaf now: nobody waits for that.
    pub fn is_without(&self, leaf: usize) -> bool {
        self.is_coming(leaf) || self.passages.iter().any(|of| of.borrow().goes_without(leaf))
    }

    /// The leaf was added to a mirror in use, and removed again.
    pub fn has_removed(&self, leaf: usize) -> bool {
        self.passages.iter().any(|of| of.borrow().has_removed(leaf))
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
            if passage.borrow().has_stopped {
                self.hear(number, leaves);
                self.keep_away(number, leaves);
                while self.step(number, leaves, &mut tended) {}
                continue;
            }
            // It takes none back before that.
            if passage.borrow().stand.is_none() {
                continue;
            }
            self.hear(number, leaves);
            while self.step(number, leaves, &mut tended) {}
            self.comers[number].tell_absence(number);
            let is_its = |comer: &&Comer| Rc::ptr_eq(&comer.passage, &passage);
            let may_come = |comer: &Comer| !matches!(comer.way, Way::Used | Way::Out);
            let is_awaited = self.comers.iter().filter(is_its).any(may_come);
            let mut passage = passage.borrow_mut();
            let is_told = passage.given.is_empty() && passage.failed.is_empty();
            passage.is_awaited = is_awaited || !is_told;
        }
        tended.has_changed |= std::mem::take(&mut self.has_joined);
        tended
    }

    /// The mirror has stopped: nothing is written to what was about to come, and others may have it (rule 18).
    fn keep_away(&mut self, number: usize, leaves: &mut [Leaf]) {
        let comer = &mut self.comers[number];
        let is_coming =
            matches!(comer.way, Way::Waiting(_) | Way::Attaching | Way::Climbing(_) | Way::Brought);
        if is_coming {
            comer.let_go(leaves, None);
        } else if let Way::Ending(then @ Some(_)) = &mut comer.way {
            *then = None;
        }
    }

    /// What the mirror has done with it.
    fn hear(&mut self, number: usize, leaves: &mut [Leaf]) {
        let comer = &mut self.comers[number];
        let passage = comer.passage.clone();
        let passage = &mut *passage.borrow_mut();
        if let Some(at) = passage.unused.iter().position(|unused| *unused == number) {
            passage.unused.swap_remove(at);
            if let Leaf::Remote(leaf) = &mut leaves[comer.leaf] {
                leaf.begin_close(leaf.is_away());
                comer.way = Way::Ending(Some(Instant::now()));
            }
        }
        // Before what may have become of it since.
        if let Some(at) = passage.taken.iter().position(|(taken, _)| *taken == number) {
            let (_, result) = passage.taken.swap_remove(at);
            match result {
                Ok(()) => {
                    tracing::info!("{}: is back, and gets what it lacks", comer.chain.leaf);
                    (comer.way, comer.told, comer.is_on_trial) = (Way::Used, String::new(), true);
                    self.has_joined = true;
                    if let Leaf::Local(leaf) = &leaves[comer.leaf] {
                        comer.is_on_trial = false;
                        passage.stays(number);
                        if self.grants.is_some() {
                            leaf.keep_grant();
                        }
                    }
                }
                Err(error) => {
                    let (why, may_change) = misfit(passage, number, &error);
                    let then = may_change.then(|| Instant::now() + comer.backoff.next());
                    comer.tell(&why);
                    if let Leaf::Remote(leaf) = &mut leaves[comer.leaf] {
                        leaf.begin_close(false);
                    }
                    comer.way = Way::Ending(then);
                }
            }
        }
        if comer.is_on_trial && passage.take_in_sync(number) {
            (comer.is_on_trial, comer.backoff) = (false, Backoff::default());
        }
        if let Some(at) = passage.given.iter().position(|(given, _)| *given == number) {
            let (_, volume) = passage.given.swap_remove(at);
            // With its port goes what was outstanding.
            drop(volume);
            // What came back, and went again before it was in sync, does that once more, perhaps.
            let wait = match comer.is_on_trial {
                true => comer.backoff.next(),
                false => Duration::ZERO,
            };
            if comer.is_on_trial {
                comer.tell("it was dropped again before it was in sync: can it be written?");
            }
            if let Leaf::Remote(leaf) = &mut leaves[comer.leaf] {
                tracing::info!(
                    "{}: given up, to be attached again in {} s",
                    leaf.uri(),
                    wait.as_secs()
                );
                comer.is_unheard = leaf.is_away();
                leaf.begin_close(true);
            }
            comer.is_on_trial = false;
            comer.way = Way::Ending(Some(Instant::now() + wait));
        }
        if let Some(at) = passage.over.iter().position(|(over, _)| *over == number) {
            drop(passage.over.swap_remove(at));
            tracing::info!("{}: it is no leg any more, and let go of", comer.chain.leaf);
            match &mut leaves[comer.leaf] {
                Leaf::Remote(leaf) => {
                    // Its target is told, so that others may have it, unless it is not there.
                    comer.is_unheard = leaf.is_away();
                    leaf.begin_close(leaf.is_away());
                }
                Leaf::Local(leaf) => leaf.begin_close(),
                Leaf::Absent(_) => {}
            }
            comer.way = Way::Ending(None);
        }
        // Removed, or failed, while it was away.
        let is_coming = matches!(comer.way, Way::Waiting(_) | Way::Attaching | Way::Climbing(_));
        if passage.is_out(number) && (is_coming || matches!(comer.way, Way::Ending(Some(_)))) {
            comer.told = String::new();
            match is_coming {
                true => comer.let_go(leaves, None),
                false => comer.way = Way::Ending(None),
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
                } else if let Leaf::Local(leaf) = place {
                    let Some(ended) = leaf.is_closed() else { return false };
                    if let Err(failure) = ended {
                        tracing::warn!("{}: {}", comer.chain.leaf, failure.message);
                    }
                    tended.has_changed = true;
                }
                // Who it is comes free with it.
                *place = Leaf::Absent(Failure::absent("it was dropped"));
                // A disk of this machine is waited for by nobody.
                let then = then.filter(|_| comer.chain.remote().is_some());
                if then.is_none() {
                    comer.passage.borrow_mut().ends(number);
                    tended.has_changed = true;
                }
                comer.way = then.map_or(Way::Out, Way::Waiting);
                true
            }
            Way::Waiting(until) if Instant::now() < *until => false,
            Way::Waiting(_) => {
                let read_only = comer.chain.only_reads();
                let take_over = comer.takes_over;
                let options = VolumeOptions { read_only, take_over, ..self.options.clone() };
                let Some(remote) = comer.chain.remote() else { unreachable!("it waits for it") };
                match RemoteLeaf::begin_again(&self.host, remote, &options) {
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
                    Ok(true) => match self.begin_climb(number, leaves, &mut tended.ports) {
                        Ok(()) => true,
                        Err(error) => self.come_down(number, leaves, error),
                    },
                    Err(failure) => {
                        self.try_later(number, leaves, &failure.message, Some(RETRY_AFTER))
                    }
                }
            }
            Way::Climbing(climb) => match climb.turn(&self.host, &mut comer.chain) {
                None => false,
                Some(Ok(climbed)) => self.bring(number, leaves, climbed, tended),
                Some(Err(error)) => self.come_down(number, leaves, error),
            },
        }
    }

    /// It is attached: what stands on it is made anew, and its labels are read, under that grant.
    fn begin_climb(
        &mut self,
        number: usize,
        leaves: &mut [Leaf],
        ports: &mut Vec<usize>,
    ) -> Result<(), ClimbError> {
        let comer = &mut self.comers[number];
        let Leaf::Remote(leaf) = &leaves[comer.leaf] else { unreachable!("it is attached") };
        (comer.is_unheard, comer.takes_over) = (false, false);
        let (identity, grant) = leaf.granted();
        if let (Some(place), 1..) = (&self.grants, grant.generation) {
            // Who opens all of this next finds that nobody else has been granted it.
            let _ = place.granted(&identity.identity, &comer.chain.leaf.to_string(), grant);
        }
        let of_leaf: Outcome<Root> = super::build::of_network(&**leaf, ports);
        let leaf = of_leaf.map_err(|failure| ClimbError::Failed(failure.message))?;
        let climb = Climb::begin(&self.host, &comer.chain, leaf.boxed())?;
        comer.way = Way::Climbing(Box::new(climb));
        Ok(())
    }

    /// The mirror is to have it, if it is the leg that it was.
    fn bring(
        &mut self,
        number: usize,
        leaves: &mut [Leaf],
        climbed: Climbed,
        tended: &mut Returned,
    ) -> bool {
        let comer = &mut self.comers[number];
        let Climbed { volume, labels, label, risen } = climbed;
        let by_label = comer.passage.borrow().leg_by(number, &label);
        match by_label {
            Ok(leg) => {
                let back = (number, leg, MirrorLeg { volume, labels, label });
                comer.passage.borrow_mut().back.push(back);
                tended.risen.extend(risen);
                comer.way = Way::Brought;
                true
            }
            Err(what) => {
                drop((volume, labels));
                self.come_down(number, leaves, ClimbError::Other(what))
            }
        }
    }

    /// It is no leg, as it is. True: there is a next step.
    fn come_down(&mut self, number: usize, leaves: &mut [Leaf], error: ClimbError) -> bool {
        let comer = &mut self.comers[number];
        let (why, wait) = match error {
            ClimbError::Failed(why) | ClimbError::Unfit(why) => (why, Some(comer.backoff.next())),
            ClimbError::Other(what) => {
                let passage = &mut *comer.passage.borrow_mut();
                (other_content(passage, number, &what), None)
            }
        };
        self.try_later(number, leaves, &why, wait)
    }

    /// It is let go of, and tried again after that time, or never. True: there is a next step.
    fn try_later(
        &mut self,
        number: usize,
        leaves: &mut [Leaf],
        why: &str,
        wait: Option<Duration>,
    ) -> bool {
        let comer = &mut self.comers[number];
        comer.tell(why);
        comer.let_go(leaves, wait.map(|wait| Instant::now() + wait));
        true
    }

    /// Ends all of that: the targets that are away, and were not told that what was attached has ended.
    pub fn into_unheard(self) -> Vec<String> {
        let unheard = self.comers.iter().filter(|comer| comer.is_unheard);
        unheard.map(|comer| comer.chain.leaf.to_string()).collect()
    }
}

impl Comer {
    /// What is being attached, or made of what was, is let go of: at once where its target could not confirm that, so that nobody waits for
    /// it, be it the end of the volume.
    fn let_go(&mut self, leaves: &mut [Leaf], then: Option<Instant>) {
        if let Leaf::Remote(leaf) = &mut leaves[self.leaf] {
            let is_heard = leaf.is_granted() && !leaf.is_away();
            self.is_unheard |= leaf.is_granted() && !is_heard;
            leaf.begin_close(!is_heard);
        }
        // What was being made of it goes with that.
        self.way = Way::Ending(then);
    }

    /// Why it is not back: once, until it is something else.
    fn tell(&mut self, why: &str) {
        if self.told != why {
            tracing::warn!("{} is not back: {why}", self.chain.leaf);
            why.clone_into(&mut self.told);
        }
    }

    /// For status.
    fn tell_absence(&self, number: usize) {
        let until = match self.way {
            Way::Waiting(until) | Way::Ending(Some(until)) => Some(until),
            _ => None,
        };
        // What is through at once is not waited for.
        let until = until.filter(|until| *until > Instant::now());
        self.passage.borrow_mut().set_absence(number, until, &self.told);
    }
}

/// Why the mirror has not taken what that one has brought, and whether that may change.
fn misfit(passage: &Passage, number: usize, error: &MirrorError) -> (String, bool) {
    let mirror = &passage.mirror;
    let leg = passage.leg_of(number).map_or("a leg".to_owned(), |leg| format!("leg {leg}"));
    match error {
        MirrorError::Unfit(error) => {
            (format!("as {leg} of mirror {mirror} it {}", error.why), true)
        }
        MirrorError::Refused(refusal) => (
            format!(
                "it cannot be {leg} of mirror {mirror} as that is in use: {refusal}. It is left alone until the mirror is opened again"
            ),
            false,
        ),
        error @ MirrorError::Count { .. } => (error.to_string(), false),
    }
}

/// There is something else than the leg was: what to tell of that. The mirror is told which leg that is, if it is known for sure.
fn other_content(passage: &mut Passage, number: usize, what: &str) -> String {
    let (mirror, name) = (&passage.mirror, &passage.name);
    match passage.leg_of(number) {
        Some(leg) => {
            let why = format!(
                "leg {leg} of mirror {mirror} has other content than it had: what is there {what}. It is not used, nor written over, and stays failed whatever \
                 is there later: have another volume, or this one, in its place by `thinwire volume replace {name} {leg}`"
            );
            passage.failed.push(leg);
            why
        }
        None => format!(
            "it is no leg of mirror {mirror}: what is there {what}. It is not used, nor written over: open the mirror again once there is what \
             belongs there, or use `thinwire volume replace`"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_vain_is_tried_less_and_less_often_and_never_not_at_all() {
        let mut backoff = Backoff::default();
        let waits: Vec<_> = (0..12).map(|_| backoff.next().as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]);
        (0..100).for_each(|_| assert!(backoff.next() <= BACKOFF_MAX));
    }
}
