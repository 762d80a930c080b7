//! What one shard of a target knows of the others: which exports they have. A greeting for one of
//! those is handed on; everything else of a session reaches its shard by the session id (rule 10).

use thinwire_buffer::Addr;
use thinwire_proto::DropReason;
use thinwire_volume::Letter;

use crate::house::House;
use crate::target::Target;

/// Greetings that wait to be handed on, at most.
const FORWARDS_MAX: usize = 64;

impl Target {
    /// Tells this shard of all exports of all shards, in the order in which discovery tells them,
    /// each with the shard that has it. Without this there are no others. Before the first frame.
    pub fn set_all_exports(&mut self, all: &[(String, u8)]) {
        self.offered_names = all.iter().map(|(name, _)| name.clone()).collect();
        let others = all.iter().filter(|(_, shard)| *shard != self.shard);
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
    /// The shard that has this export, if it is not this one.
    pub fn other_shard(&self, export: &str) -> Option<u8> {
        self.elsewhere.iter().find(|(name, _)| name == export).map(|&(_, shard)| shard)
    }
}
