//! Another key of a user's opens an encrypted volume (`docs/format.md`, "An encrypted volume"): the same key of its blocks, wrapped by that.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;

use serde::{Deserialize, Serialize};
use thinwire_modules::CryptState;
use thinwire_modules::meta::{GrowthError, Label, WholeGrowth};
use thinwire_runtime::clock::entropy_bytes;
use thinwire_seal::VOLUME_KEY_BYTES;
use zeroize::Zeroizing;

use crate::control::Response;
use crate::crypted::{sealed, takes_key, volume_key_of};
use crate::error::{Failure, Outcome};
use crate::growth::WholeDesk;
use crate::keys::{self, KeyFile, path_of};
use crate::known_keys::KnownKeys;
use crate::label_words::{bytes_of_words, label_in_words, words_of_bytes};
use crate::trees::NodeName;
use crate::uri::VolumeSpec;
use crate::work::{WorkAction, WorkAsk};

/// Which key is to open a volume from then on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextKey {
    /// The newest of a file that is there.
    There(String),
    /// One that is made, in a file that is not there yet.
    Made(String),
}

impl NextKey {
    /// Refuses what can be seen to be wrong whatever the volume is. Nothing is made yet.
    ///
    /// # Errors
    /// There is no such key file, or there is one where one is to be made.
    pub fn check(&self) -> Outcome {
        match self {
            NextKey::There(given) => KeyFile::read(given).map(|_| ()),
            NextKey::Made(given) if path_of(given).symlink_metadata().is_ok() => {
                Err(Failure::failed(format!(
                    "{} exists already, and who has that key would be locked out: `--to` takes the key that is there; nothing was changed",
                    path_of(given).display()
                )))
            }
            NextKey::Made(_) => Ok(()),
        }
    }

    fn there(&self) -> Outcome<Option<KeyFile>> {
        match self {
            NextKey::There(given) => KeyFile::read(given).map(Some),
            NextKey::Made(_) => Ok(None),
        }
    }

    /// Makes it, and it lies there whatever happens then.
    fn make(&self) -> Outcome<KeyFile> {
        let given = match self {
            NextKey::There(given) | NextKey::Made(given) => given,
        };
        if matches!(self, NextKey::There(_)) {
            let file = KeyFile::read(given)?;
            keys::settle(&file.path)?;
            return Ok(file);
        }
        self.check()?;
        let path = path_of(given);
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        keys::make(name, path.parent().unwrap_or(Path::new(".")), false)
    }
}

/// What has become of the key of a volume: `volume rekey --json` says so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Rekeyed {
    /// What its label calls it.
    pub name: String,
    /// The id of the key that opened it; null if that was changed before, and its last trace is removed now.
    pub before: Option<String>,
    /// The id of the one that opens it.
    pub key: String,
    /// The file of that.
    pub file: String,
    /// Volumes of pools that it stands on: snapshots of them that are older than this have the label of their day, and the key that opened it then opens them.
    pub snapshots_of: Vec<String>,
}

/// What a label is to say.
pub struct Rewrapped {
    /// That.
    pub state: CryptState,
    /// What has become of the key then.
    pub rekeyed: Rekeyed,
}

enum Plan {
    /// The newest label says so already, and an older copy of it does not.
    Settle(CryptState, KeyFile),
    /// The key of the blocks, and the state that holds it now.
    Wrap(CryptState, Zeroizing<[u8; VOLUME_KEY_BYTES]>),
}

/// An encrypted volume that gets another key. Clones are of one.
#[derive(Clone, Debug)]
pub struct Rekeying {
    part: VolumeSpec,
    next: NextKey,
    begun: Rc<RefCell<Option<Rekeyed>>>,
    is_done: Rc<Cell<bool>>,
}

impl Rekeying {
    /// Of the one over that part.
    pub fn new(part: &VolumeSpec, next: NextKey) -> Self {
        let (part, begun, is_done) = (part.clone(), Rc::default(), Rc::default());
        Rekeying { part, next, begun, is_done }
    }

    /// It is the volume over these, whose volumes of pools may be named without what the pools stand on.
    pub fn is_of(&self, specs: &[VolumeSpec]) -> bool {
        matches!(specs, [part] if part.over_commons() == self.part.over_commons())
    }

    /// What names the key that opens it now: `old`, unless the change was begun before.
    pub fn opener<'a>(&'a self, label: &Label, old: &'a str) -> &'a str {
        let has_it = |given: &str| {
            let state = CryptState::decode(&label.state).ok();
            let file = KeyFile::read(given).ok();
            state.zip(file).is_some_and(|(state, file)| file.newest().id().0 == state.key_id)
        };
        match &self.next {
            NextKey::There(given) if has_it(given) => given,
            _ => old,
        }
    }

    /// Refuses what is wrong by what the label says; `older` is what the older copy of that keeps, if it may be another. Nothing is made or written.
    ///
    /// # Errors
    /// The old key does not open it, or the next one does already, or is none.
    pub fn check(&self, label: &Label, older: Option<&[u8]>, old: &str) -> Outcome {
        self.plan(label, older, old).map(|_| ())
    }

    /// What the label is to say, behind all that can be wrong. The next key lies on its disk when this returns.
    ///
    /// # Errors
    /// As [`Rekeying::check`]; or it could not be made. Nothing was written but that.
    pub fn rewrap(&self, label: &Label, older: Option<&[u8]>, old: &str) -> Outcome<Rewrapped> {
        let name = label.name.clone();
        let (state, file, before) = match self.plan(label, older, old)? {
            Plan::Settle(state, file) => (state, file, None),
            Plan::Wrap(state, volume_key) => {
                let file = self.next.make()?;
                let next = sealed(file.newest(), state.block_bytes(), &label.whole, &volume_key);
                // Whatever is wrong with that must not be found out when the old one is gone.
                let written = Label { state: next.encode(), ..label.clone() };
                let (_, back) =
                    volume_key_of(&written, &file.path.to_string_lossy(), &self.part.to_string())?;
                assert!(*back == *volume_key, "the key of the blocks stays");
                (next, file, Some(id(&state)))
            }
        };
        let key = file.newest().id().to_string();
        let snapshots_of =
            self.part.pool_uses().iter().map(|used| used.volume.to_string()).collect();
        let file = file.path.display().to_string();
        let rekeyed = Rekeyed { name, before, key, file, snapshots_of };
        *self.begun.borrow_mut() = Some(rekeyed.clone());
        Ok(Rewrapped { state, rekeyed })
    }

    fn plan(&self, label: &Label, older: Option<&[u8]>, old: &str) -> Outcome<Plan> {
        let part = self.part.to_string();
        let there = self.next.there()?;
        let state = CryptState::decode(&label.state)
            .map_err(|fault| Failure::failed(format!("{part} {fault}")))?;
        let Some(file) = there.filter(|file| file.newest().id().0 == state.key_id) else {
            let (state, volume_key) = volume_key_of(label, old, &part)?;
            return Ok(Plan::Wrap(state, volume_key));
        };
        let (state, _) = volume_key_of(label, &file.path.to_string_lossy(), &part)?;
        if older.is_none_or(|older| older == label.state) {
            return Err(Failure::failed(format!(
                "{part} is encrypted with the key {} already, the newest of {}: nothing was written; `thinwire key new` makes another",
                id(&state),
                file.path.display()
            )));
        }
        Ok(Plan::Settle(state, file))
    }

    /// All labels say it, durably.
    pub fn finish(&self) {
        self.is_done.set(true);
    }

    /// What was begun, and whether it is done.
    pub fn ended(&self) -> Option<(Rekeyed, bool)> {
        self.begun.borrow().clone().map(|begun| (begun, self.is_done.get()))
    }
}

fn id(state: &CryptState) -> String {
    format!("{:016x}", u64::from_be_bytes(state.key_id))
}

/// What the label of an encrypted volume in use keeps, and what it is to keep from then on, in hexadecimal digits. The key in it is wrapped in both.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StateChange {
    from: String,
    to: String,
}

impl StateChange {
    /// From what was looked at.
    pub fn new(label: &Label, to: &CryptState) -> Self {
        StateChange { from: words_of_bytes(&label.state), to: words_of_bytes(&to.encode()) }
    }

    /// The same volume, to which another key fits: no more is changed by this.
    fn states(&self) -> Option<(Vec<u8>, Vec<u8>)> {
        let (from, to) = (bytes_of_words(&self.from)?, bytes_of_words(&self.to)?);
        let [before, behind] = [&from, &to].map(|state| CryptState::decode(state).ok());
        (before?.block_bytes() == behind?.block_bytes()).then_some((from, to))
    }
}

/// Changes what labels of encrypted volumes in use keep.
#[derive(Default)]
pub struct KeysDesk {
    /// Under which number each ends.
    under_way: Vec<(u64, Rc<RefCell<WholeGrowth>>)>,
    told: Vec<(u64, Response)>,
}

impl KeysDesk {
    /// Nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.under_way.is_empty() && self.told.is_empty()
    }

    /// Tells what the label of a volume among these says, or begins to change it; that ends under this number.
    ///
    /// # Errors
    /// It is no encrypted volume that is open for writing, or cannot be changed now: a sentence.
    pub fn begin(
        &mut self,
        number: u64,
        ask: &WorkAsk,
        (open, known): (&[(NodeName, WholeDesk)], &KnownKeys),
    ) -> Result<(), String> {
        let none = || format!("{} is not encrypted, or is only read", ask.volume.name);
        let whole = match open.iter().find(|(of, _)| of.is_same(&ask.volume)) {
            Some((_, WholeDesk::Whole(whole))) => whole,
            _ => return Err(none()),
        };
        if !takes_key(whole.borrow().whole().module) {
            return Err(none());
        }
        let WorkAction::Rekey { change } = &ask.request.action else {
            return Err("it changes no key".into());
        };
        let wrong = |error: GrowthError| error.to_string();
        let Some(change) = change else {
            let label = whole.borrow_mut().label().map_err(wrong)?;
            let label = label_in_words(&label).ok_or("its label is none")?;
            self.told.push((number, Response::Label { label }));
            return Ok(());
        };
        let (from, to) = change.states().ok_or("that is no key of its blocks that was wrapped")?;
        let id = *entropy_bytes().first_chunk().expect("there are 32");
        let uuid = whole.borrow().whole().uuid;
        whole.borrow_mut().begin_restate(id, &from, to.clone()).map_err(wrong)?;
        // Whatever becomes of that: a leg that comes back may have it.
        known.restates(&uuid, &to);
        self.under_way.push((number, whole.clone()));
        Ok(())
    }

    /// Appends what has ended since the last call, and how.
    pub fn finish(&mut self, ended: &mut Vec<(u64, Response)>) {
        ended.append(&mut self.told);
        self.under_way.retain(|(number, whole)| {
            let whole = &mut *whole.borrow_mut();
            let response = match whole.turn() {
                Some(Ok(_)) => Response::Volume { nodes: Vec::new() },
                Some(Err(error)) => Response::Refused { why: error.to_string() },
                None if whole.is_over() => Response::Refused {
                    why: "it has ended meanwhile: which key opens it is found out when it is opened the next time".into(),
                },
                None => return true,
            };
            ended.push((*number, response));
            false
        });
    }
}

#[cfg(test)]
mod tests;
