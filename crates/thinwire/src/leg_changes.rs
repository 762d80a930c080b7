//! Legs that are removed from mirrors in use, and added to them, between turns of whatever drives them.

use std::sync::mpsc::{self, Receiver, TryRecvError};

use serde::{Deserialize, Serialize};
use thinwire_modules::mirror::{LegNeeds, MirrorAsk, MirrorDesk, MirrorDone, NewLeg};
use thinwire_runtime::clock::entropy_bytes;

use crate::config_file;
use crate::control::Response;
use crate::growth::{MirrorWhole, WholeDesk};
use crate::label_words::{label_in_words, label_of_words};
use crate::opened::LegDoor;
use crate::trees::NodeName;
use crate::uri::VolumeSpec;
use crate::work::{WorkAction, WorkAsk};

/// What becomes a leg of a mirror in use, for who gives a part its label.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LegOffer {
    /// The label, in hexadecimal digits.
    label: String,
    /// As of [`LegNeeds`].
    block_bytes: u32,
    io_bytes_max: u32,
    write_zeroes: bool,
    block_status: bool,
}

impl LegOffer {
    /// Of what a mirror says; none if that is no label, which cannot be.
    fn of(leg: &NewLeg) -> Option<Self> {
        let label = label_in_words(&leg.label)?;
        let LegNeeds { block_bytes, io_bytes_max, write_zeroes, block_status } = leg.needs;
        Some(LegOffer { label, block_bytes, io_bytes_max, write_zeroes, block_status })
    }

    /// What it says.
    ///
    /// # Errors
    /// It is of another version: a sentence.
    pub fn leg(&self) -> Result<NewLeg, String> {
        let label = label_of_words(&self.label)
            .ok_or("it says of a label what is none here: use the program that it is of")?;
        let &LegOffer { block_bytes, io_bytes_max, write_zeroes, block_status, .. } = self;
        let needs = LegNeeds { block_bytes, io_bytes_max, write_zeroes, block_status };
        Ok(NewLeg { label, needs })
    }
}

/// What is waited for.
enum Change {
    /// It is put on record.
    Recorded(MirrorDesk, u64),
    /// It is found out what a leg is called.
    Named(LegDoor, usize, Naming),
    /// A leg is being attached, or opened.
    Brought(LegDoor, usize),
}

/// A volume is found by how it is called, in a thread of its own: that looks at files and, for `uuid:`, at disks, and one that hangs is nobody's
/// matter who serves others.
struct Naming(Receiver<Result<VolumeSpec, String>>);

impl Naming {
    fn begin(
        find: impl FnOnce() -> Result<VolumeSpec, String> + Send + 'static,
    ) -> Result<Self, String> {
        let (sender, receiver) = mpsc::channel();
        let thread = std::thread::Builder::new().name("naming".into());
        // Whoever asked may have gone meanwhile.
        let found = thread.spawn(move || drop(sender.send(find())));
        found.map_err(|e| format!("cannot start a thread, which looks for it: {e}"))?;
        Ok(Naming(receiver))
    }

    /// What was found, once that is known.
    fn take(&self) -> Option<Result<VolumeSpec, String>> {
        match self.0.try_recv() {
            Ok(found) => Some(found),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => {
                Some(Err("the thread that looked for it has ended".into()))
            }
        }
    }
}

/// Has legs removed and added.
#[derive(Default)]
pub struct LegsDesk {
    /// Under which number each ends.
    under_way: Vec<(u64, Change)>,
}

impl LegsDesk {
    /// Nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Begins to change the legs of a mirror among these; that ends under this number.
    ///
    /// # Errors
    /// It is no mirror that is open for writing, or cannot be now: a sentence.
    pub fn begin(
        &mut self,
        number: u64,
        ask: &WorkAsk,
        open: &[(NodeName, WholeDesk)],
    ) -> Result<(), String> {
        let name = &ask.volume.name;
        let mirror = match open.iter().find(|(of, _)| of.is_same(&ask.volume)) {
            Some((_, WholeDesk::Mirror(mirror))) => mirror,
            _ => return Err(format!("{name} is no mirror, or is only read")),
        };
        let change = match &ask.request.action {
            WorkAction::Bring { leg, part } => {
                let door = door_of(mirror, name)?;
                let part = part.clone();
                let naming = Naming::begin(move || {
                    // A file of this machine that is a pipe is not waited for.
                    config_file::read_again();
                    part.parse::<VolumeSpec>().map_err(|e| e.to_string())
                })?;
                Change::Named(door.clone(), *leg, naming)
            }
            action => {
                let asked = match *action {
                    WorkAction::Remove { leg } => MirrorAsk::Remove(leg),
                    WorkAction::Add { leg, only_look } => {
                        door_of(mirror, name)?;
                        let uuid = *entropy_bytes().first_chunk().expect("there are 32");
                        MirrorAsk::Add { uuid, leg, only_look }
                    }
                    WorkAction::Replace { leg, by } => MirrorAsk::Replace { leg, by },
                    _ => return Err("it changes no leg".into()),
                };
                if mirror.desk.is_growing() {
                    return Err(format!(
                        "{name} is growing, and legs are removed or added behind that: `thinwire volume status` says how far it is, and whether it is paused; \
                         do it then"
                    ));
                }
                Change::Recorded(mirror.desk.clone(), mirror.desk.ask(asked))
            }
        };
        self.under_way.push((number, change));
        Ok(())
    }

    /// Appends what has ended since the last call, and how.
    pub fn finish(&mut self, ended: &mut Vec<(u64, Response)>) {
        self.under_way.retain_mut(|(number, change)| {
            if let Change::Named(door, leg, naming) = change {
                let Some(found) = naming.take() else { return true };
                if let Err(why) = found.and_then(|part| door.bring(*leg, part)) {
                    ended.push((*number, Response::Refused { why }));
                    return false;
                }
                *change = Change::Brought(door.clone(), *leg);
            }
            let answer = match change {
                Change::Named(..) => None,
                Change::Recorded(desk, asked) => desk
                    .take_ended(*asked)
                    .map(|answer| answer.map(done).map_err(|error| error.to_string())),
                Change::Brought(door, leg) => {
                    door.take_begun(*leg).map(|begun| begun.map(|()| nothing()))
                }
            };
            let Some(answer) = answer else { return true };
            ended.push((*number, answer.unwrap_or_else(|why| Response::Refused { why })));
            false
        });
    }
}

fn door_of<'a>(mirror: &'a MirrorWhole, name: &str) -> Result<&'a LegDoor, String> {
    let none = || format!("{name} was opened for a change of its legs: a leg is added then");
    mirror.door.as_ref().ok_or_else(none)
}

fn nothing() -> Response {
    Response::Volume { nodes: Vec::new() }
}

fn done(done: MirrorDone) -> Response {
    match done.leg.as_deref().map(LegOffer::of) {
        None => nothing(),
        Some(Some(leg)) => Response::Leg { leg: Box::new(leg) },
        Some(None) => Response::Refused { why: "its label has no room for one more leg".into() },
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use thinwire_modules::meta::{NewPart, NewWhole, label_parts};
    use thinwire_modules::mirror::MirrorState;
    use thinwire_modules::{Module, Options};
    use thinwire_volume::Identity;

    use super::*;
    use crate::mirrored::Entropy;

    #[test]
    fn an_offer_is_read_as_it_was_made_and_nothing_else_is() {
        let (module, options) = (Module::find("mirror").unwrap(), &Options::default());
        let part =
            |nth: u8| NewPart { uuid: [nth; 16], content: Identity::default(), bytes: 8 << 20 };
        let parts = [part(1), part(2)];
        let bytes = parts[0].data_bytes(module);
        let whole = NewWhole { name: "home", uuid: [9; 16], module, options, bytes };
        let mut label = label_parts(&whole, &parts).unwrap().remove(1);
        let states = MirrorState::of_new(2, (bytes, 512), 0, &mut Entropy);
        // Of none that was written.
        (label.state, label.generation) = (states[1].encode(), 1);
        let needs = LegNeeds {
            block_bytes: 512,
            io_bytes_max: 1 << 20,
            write_zeroes: true,
            block_status: false,
        };
        let leg = NewLeg { label, needs };
        let offer = LegOffer::of(&leg).unwrap();
        let words = serde_json::to_string(&offer).unwrap();
        let read: LegOffer = serde_json::from_str(&words).unwrap();
        assert_eq!(read.leg(), Ok(leg));
        let digits = offer.label.len();
        for label in [
            String::new(),
            offer.label[2..].to_owned(),
            offer.label.clone() + "00",
            offer.label.replace('0', "x"),
            "é".repeat(digits / 2),
            "00".repeat(digits / 2),
        ] {
            let offer = LegOffer { label, ..offer.clone() };
            assert!(offer.leg().unwrap_err().contains("none here"));
        }
    }

    /// Who serves others asks for it between turns: a disk that hangs while a part is looked for holds up nobody.
    #[test]
    fn nobody_waits_for_who_looks_for_a_volume() {
        let (answer, hangs) = mpsc::channel::<()>();
        let naming = Naming::begin(move || {
            hangs.recv().unwrap();
            "/srv/a.img".parse::<VolumeSpec>().map_err(|e| e.to_string())
        });
        let naming = naming.unwrap();
        assert_eq!(naming.take(), None);
        answer.send(()).unwrap();
        let began = Instant::now();
        let found = loop {
            match naming.take() {
                Some(found) => break found,
                None => assert!(began.elapsed() < Duration::from_secs(20)),
            }
        };
        assert_eq!(found, Ok(VolumeSpec::Path("/srv/a.img".into())));
    }

    #[test]
    fn a_search_that_dies_is_told_of() {
        let naming = Naming::begin(|| panic!("on purpose")).unwrap();
        let began = Instant::now();
        while naming.take().is_none() {
            assert!(began.elapsed() < Duration::from_secs(20));
        }
        assert!(naming.take().unwrap().unwrap_err().contains("has ended"));
    }
}
