//! Exports that another target serves by now: this one says nothing of them any more (`docs/design.md`, "The record of a
//! tree").
//!
//! Who used them keeps what was not answered, finds no session, greets again and is not heard here; so it comes to whoever
//! has taken the place. Neither an error nor a goodbye is said: an error would be believed, and for a goodbye a session would
//! have to be kept that may answer nothing.

use std::any::Any;

use thinwire_volume::{Effect, Parcel, Volume};

use crate::fair::Mark;
use crate::house::House;
use crate::target::Target;

/// An export of which nothing is said any more, and its volume.
pub struct FencedExport {
    /// Its name.
    pub name: String,
    /// Not to be used any more, nor brought in order: somebody else writes what it is made of. With it go its files and
    /// ports.
    pub volume: Box<dyn Volume>,
    /// It was being taken away: another of its name may be there.
    pub was_leaving: bool,
}

/// What one shard of a target tells another: it says nothing of that export any more.
struct Silence(String);

impl Target {
    /// Ends the sessions of whoever has fenced exports open, before another frame goes out.
    #[cold]
    pub(crate) fn fall_silent(&mut self) {
        while let Some((export, name)) = self.house.exports.next_fenced() {
            let name = name.to_owned();
            let was_leaving = self.house.exports.is_ousted(export);
            if !was_leaving {
                self.end_sessions_of(export, &name);
            }
            let House { exports, in_store, now, fair, .. } = &mut self.house;
            let volume = exports.take_fenced(|ticket, _, _, _| {
                let mark = Mark(ticket.place);
                in_store[mark.place()] -= 1;
                fair.end(*now, mark, true);
            });
            if was_leaving {
                self.fenced.push_back(FencedExport { name, volume, was_leaving });
                continue;
            }
            self.house.spread.retain(|(other, _)| *other != name);
            self.say_nothing_of(&name);
            let others = self.house.elsewhere.iter().map(|(_, shard)| *shard).chain([0]);
            let mut others: Vec<u8> = others.filter(|&shard| shard != self.shard).collect();
            others.sort_unstable();
            others.dedup();
            self.silences.extend(others.into_iter().map(|shard| (shard, name.clone())));
            self.fenced.push_back(FencedExport { name, volume, was_leaving });
        }
    }

    fn say_nothing_of(&mut self, name: &str) {
        self.offered_names.retain(|offered| offered != name);
        self.house.elsewhere.retain(|(other, _)| other != name);
        if !self.house.silent.iter().any(|silent| silent == name) {
            self.house.silent.push(name.to_owned());
        }
    }

    /// Nothing is said of the export of this name, or there is none left of which anything is said.
    pub(crate) fn is_silent_of(&self, export: &str) -> bool {
        self.house.silent.iter().any(|name| name == export) || self.is_silent()
    }

    /// All exports were fenced.
    pub(crate) fn is_silent(&self) -> bool {
        !self.house.silent.is_empty() && self.offered_names.is_empty()
    }

    /// The next export of this shard that another target serves by now. What it stands on is to be let go of at once, without
    /// a last write; to those who look for it, it is not there.
    pub fn take_fenced(&mut self) -> Option<FencedExport> {
        self.fenced.pop_front()
    }

    /// Names of the exports of all shards of which nothing is said any more.
    pub fn silent(&self) -> impl Iterator<Item = &str> {
        self.house.silent.iter().map(String::as_str)
    }

    /// There is something for [`Target::take_fenced`].
    pub fn has_fenced(&self) -> bool {
        !self.fenced.is_empty()
    }

    /// Something was fenced, here or on another shard.
    #[inline]
    pub fn has_silent(&self) -> bool {
        !self.house.silent.is_empty() || !self.fenced.is_empty()
    }

    /// Exports of these names come, on whatever shard: those of before are not meant by that any more of which nothing is said. To be
    /// told to all shards, before [`Target::set_all_exports`].
    pub fn end_silence(&mut self, added: &[String]) {
        self.house.silent.retain(|name| !added.contains(name));
    }

    /// All of them were fenced, on all shards: nobody is served any more.
    pub fn serves_nobody(&self) -> bool {
        self.is_silent() && self.shard == 0
    }

    pub(crate) fn take_silence(&mut self) -> Option<Effect> {
        let (shard, name) = self.silences.pop_front()?;
        Some(Effect::Parcel(Parcel { shard, content: Box::new(Silence(name)) }))
    }

    /// If that is what another shard has sent: it says nothing of an export any more. Else it is given back.
    pub(crate) fn on_silence(
        &mut self,
        parcel: Box<dyn Any + Send>,
    ) -> Result<(), Box<dyn Any + Send>> {
        let Silence(name) = *parcel.downcast()?;
        self.say_nothing_of(&name);
        Ok(())
    }
}
