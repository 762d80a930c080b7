//! Exports that another target serves by now: this one says nothing of them any more (`docs/design.md`, "The record of a
//! tree").
//!
//! Who used them keeps what was not answered, finds no session, greets again and is not heard here; so it comes to whoever
//! has taken the place. Neither an error nor a goodbye is said: an error would be believed, and for a goodbye a session would
//! have to be kept that may answer nothing.

use std::any::Any;

use thinwire_exports::ExportOpening;
use thinwire_volume::{Effect, Parcel, Volume};

use crate::fair::Mark;
use crate::house::House;
use crate::target::Target;

/// An export of which nothing is said any more, and its volume.
pub struct FencedExport {
    /// Which one of its name.
    pub opening: ExportOpening,
    /// Not to be used any more, nor brought in order: somebody else writes what it is made of. With it go its files and
    /// ports.
    pub volume: Box<dyn Volume>,
    /// It was being taken away: another of its name may be there, and more that are being taken away.
    pub was_leaving: bool,
}

/// What one shard of a target tells another: it says nothing of that export any more. It may come late, behind an exchange by which another of its
/// name has come; or early, before the one by which it came itself.
struct Silence(ExportOpening);

impl Target {
    /// Ends the sessions of whoever has fenced exports open, before another frame goes out.
    #[cold]
    pub(crate) fn fall_silent(&mut self) {
        while let Some((export, _)) = self.house.exports.next_fenced() {
            let opening = self.house.exports.opening_of(export);
            let was_leaving = self.house.exports.is_ousted(export);
            if !was_leaving {
                self.end_sessions_of(export, &opening.name);
            }
            let House { exports, in_store, now, fair, .. } = &mut self.house;
            let volume = exports.take_fenced(|ticket, _, _, _| {
                let mark = Mark(ticket.place);
                in_store[mark.place()] -= 1;
                fair.end(*now, mark, true);
            });
            if was_leaving {
                self.fenced.push_back(FencedExport { opening, volume, was_leaving });
                continue;
            }
            self.house.spread.retain(|(other, _)| *other != opening.name);
            self.say_nothing_of(&opening);
            let others = self.house.elsewhere.iter().map(|(_, shard)| *shard).chain([0]);
            let mut others: Vec<u8> = others.filter(|&shard| shard != self.shard).collect();
            others.sort_unstable();
            others.dedup();
            self.silences.extend(others.into_iter().map(|shard| (shard, opening.clone())));
            self.fenced.push_back(FencedExport { opening, volume, was_leaving });
        }
    }

    fn say_nothing_of(&mut self, opening: &ExportOpening) {
        let ExportOpening { name, exchange } = opening;
        if self.house.came.iter().any(|of| of.name == *name && of.exchange > *exchange) {
            return;
        }
        match self.house.silent.iter_mut().find(|of| of.name == *name) {
            Some(of) => of.exchange = of.exchange.max(*exchange),
            None => self.house.silent.push(opening.clone()),
        }
        if *exchange > self.house.exports.exchange() {
            // What is offered by then is told here with the exchange that it came by, and others may come by that.
            return;
        }
        self.offered_names.retain(|offered| offered != name);
        self.house.elsewhere.retain(|(other, _)| other != name);
    }

    /// Nothing is said of the export of this name, or there is none left of which anything is said.
    pub(crate) fn is_silent_of(&self, export: &str) -> bool {
        self.house.is_fenced(export) || self.is_silent()
    }

    /// All exports were fenced.
    pub(crate) fn is_silent(&self) -> bool {
        !self.house.silent.is_empty() && self.offered_names.is_empty()
    }

    /// The next export of this shard that another target serves by now. What it stands on is to be let go of at once, without
    /// a last write; to those who look for it, it is not there.
    pub fn take_fenced(&mut self) -> Option<FencedExport> {
        // What was heard since the last turn ended has been said to nobody, and is to be no exchange's.
        if self.house.exports.has_fenced() {
            self.fall_silent();
        }
        self.fenced.pop_front()
    }

    /// Names of the exports of all shards of which nothing is said any more.
    pub fn silent(&self) -> impl Iterator<Item = &str> {
        self.house.silent.iter().map(|of| of.name.as_str())
    }

    /// Names of the exports of all shards of which something is said, as far as this one has heard.
    pub fn offered(&self) -> impl Iterator<Item = &str> {
        self.offered_names.iter().map(String::as_str)
    }

    /// There is something for [`Target::take_fenced`].
    pub fn has_fenced(&self) -> bool {
        !self.fenced.is_empty() || self.house.exports.has_fenced()
    }

    /// Something was fenced, here or on another shard.
    #[inline]
    pub fn has_silent(&self) -> bool {
        !self.house.silent.is_empty() || !self.fenced.is_empty()
    }

    /// Exports come and go, those of these names come, on whatever shard: earlier ones of these names are not meant any more when nothing is said of
    /// one. To be told to all shards, of each exchange and in the same order, before any export of it goes or comes here, and
    /// before [`Target::set_all_exports`]; once [`Target::take_fenced`] has no more, since what was fenced is not there to go.
    pub fn begin_exchange(&mut self, added: &[String]) {
        let House { exports, silent, came, .. } = &mut self.house;
        let exchange = exports.begin_exchange();
        // What comes by it may be fenced already where it is, and what comes after it.
        silent.retain(|of| of.exchange >= exchange || !added.contains(&of.name));
        came.retain(|of| !added.contains(&of.name));
        came.extend(added.iter().map(|name| ExportOpening { name: name.clone(), exchange }));
    }

    /// All of them were fenced, on all shards: nobody is served any more.
    pub fn serves_nobody(&self) -> bool {
        self.is_silent() && self.shard == 0
    }

    pub(crate) fn take_silence(&mut self) -> Option<Effect> {
        let (shard, opening) = self.silences.pop_front()?;
        Some(Effect::Parcel(Parcel { shard, content: Box::new(Silence(opening)) }))
    }

    /// If that is what another shard has sent: it says nothing of an export any more. Else it is given back.
    pub(crate) fn on_silence(
        &mut self,
        parcel: Box<dyn Any + Send>,
    ) -> Result<(), Box<dyn Any + Send>> {
        let Silence(opening) = *parcel.downcast()?;
        self.say_nothing_of(&opening);
        Ok(())
    }
}

impl House {
    /// Nothing is said of exports of that name.
    pub fn is_fenced(&self, export: &str) -> bool {
        self.silent.iter().any(|of| of.name == export)
    }
}
