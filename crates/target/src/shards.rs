//! What one shard of a target knows of the others: which exports they have. A greeting for one of
//! those is handed on; everything else of a session reaches its shard by the session id (rule 10).
//! An export that is spread all of them have: its greetings are dealt to them by who greets, and their
//! doors write letters to one another.

use thinwire_buffer::Addr;
use thinwire_exports::{DoorLetter, ExportConfig, ExportOpening, SpreadConfig};
use thinwire_proto::{DropReason, Time};
use thinwire_volume::Letter;

use crate::attach::Sessions;
use crate::house::House;
use crate::target::Target;

/// Greetings that wait to be handed on, at most.
const FORWARDS_MAX: usize = 64;

impl Target {
    /// Tells this shard of all exports of all shards, in the order in which discovery tells them,
    /// each with the shard that has it. Without this there are no others. Before the first frame, and when exports have
    /// come or gone ([`Target::begin_exchange`]).
    pub fn set_all_exports(&mut self, all: &[(String, u8)]) {
        self.house.came.retain(|of| all.iter().any(|(name, _)| *name == of.name));
        let all: Vec<_> = all.iter().filter(|(name, _)| !self.house.is_fenced(name)).collect();
        self.offered_names = all.iter().map(|(name, _)| name.clone()).collect();
        let others = all.into_iter().filter(|(_, shard)| *shard != self.shard);
        self.house.elsewhere = others.cloned().collect();
    }

    /// Makes the number that tells this process from others the same on all its shards. Before the
    /// first frame.
    pub fn set_instance(&mut self, instance: u64) {
        self.house.instance = instance;
    }

    /// The next frame to hand to another shard: to [`Target::on_forward`] of it, as coming from the link of
    /// the same index.
    pub fn next_forward(&mut self) -> Option<Letter> {
        self.forwards.pop_front()
    }

    /// Offers a volume of an export that all shards have, each with a volume of its own on the same
    /// content. Names are unique: the caller has checked. What it returns names it among those of its name. Discovery tells it as
    /// [`Target::set_all_exports`] does.
    pub fn add_spread_export(
        &mut self,
        config: ExportConfig,
        spread: SpreadConfig,
    ) -> ExportOpening {
        debug_assert_eq!(spread.shard, self.shard, "one of another shard");
        self.offered_names.push(config.name.clone());
        self.house.spread.push((config.name.clone(), spread.shards));
        let export = self.house.exports.add_spread(config, spread);
        self.house.fair.add_line(export);
        self.house.exports.opening_of(export)
    }

    /// What the door of another shard has to say.
    pub fn on_door_letter(&mut self, now: Time, letter: DoorLetter) {
        self.house.now = now;
        let House { room_changed, guests, exports, .. } = &mut self.house;
        let mut sessions = Sessions { peers: &mut self.peers, room_changed, guests };
        exports.on_letter(now, letter, &mut sessions);
    }

    /// The next letter of the door, for [`Target::on_door_letter`] of the shard that it is to. To be
    /// carried in order, and none lost.
    pub fn next_door_letter(&mut self) -> Option<DoorLetter> {
        self.house.exports.next_letter()
    }

    pub(crate) fn forward(
        &mut self,
        shard: u8,
        link: usize,
        from: Addr,
        frame: &[u8],
    ) -> Result<(), DropReason> {
        if self.forwards.len() >= FORWARDS_MAX {
            return Err(DropReason::Overload);
        }
        self.forwards.push_back(Letter { shard, link, from, frame: frame.to_vec() });
        Ok(())
    }
}

impl House {
    /// The shard on which a session of this initiator's member is to be that begins with this export.
    pub fn shard_for(&self, export: &str, initiator: &[u8; 16], member: u8) -> Option<u8> {
        let spread = self.spread.iter().find(|(name, _)| name == export);
        let dealt = spread.map(|&(_, shards)| SpreadConfig::dealt(initiator, member, shards));
        dealt.or_else(|| self.other_shard(export))
    }

    /// The shard that has this export, if it is not this one.
    pub fn other_shard(&self, export: &str) -> Option<u8> {
        self.elsewhere.iter().find(|(name, _)| name == export).map(|&(_, shard)| shard)
    }
}
