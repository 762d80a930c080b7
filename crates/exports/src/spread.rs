//! One export on several shards: what its owner and its branches say to one another
//! (`docs/design.md`, "One export, several shards").

use thinwire_buffer::Time;
use thinwire_volume::IoError;

use crate::exports::{ExportConfig, Exports};
use crate::users::{Denied, InitiatorRun, User, Users};

/// How an export is spread over the shards of a target. All shards agree on all of it but `shard`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spread {
    /// Names the export in letters: unique among the exports of the target.
    pub number: u32,
    /// This shard.
    pub shard: u8,
    /// How many shards there are: they are numbered from 0.
    pub shards: u8,
    /// The shard that owns it; the others have branches.
    pub owner: u8,
    /// Its first verifier: differs from that of every other start and export, as far as chance goes.
    pub verifier: u64,
}

impl Spread {
    /// The shard on which sessions of this initiator are to be: the same for all its life, as long as there
    /// are so many.
    pub fn dealt(initiator: &[u8; 16], shards: u8) -> u8 {
        // FNV-1a, of which the upper half is mixed best.
        let hash = initiator.iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
        ((hash >> 32) % u64::from(shards.max(1))) as u8
    }
}

/// What the door of one shard says to that of another about an export. Letters from one shard to another
/// arrive in their order, each once: what they decide rests on it. The driver carries them and looks at
/// nothing but where they go.
///
/// Of one export there are on the way, at most: one for each pass, claim and syncing I/O of a branch's
/// sessions, one for each writer in a second, and for each branch a few for each claim that is granted, and
/// for each loss.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DoorLetter {
    /// The shard that it is for.
    pub to: u8,
    /// The shard that it is from.
    pub from: u8,
    /// See [`Spread::number`].
    pub export: u32,
    pub(crate) word: Word,
}

/// What a letter says. A branch's owner is told the upper ones, a branch the lower ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    /// A session of the branch wants to write.
    Claim { user: User, transaction: u32, resumes: Option<u64>, takes_over: bool },
    /// Its writer closes its pass in order, which it had under this generation.
    Close { session: u64, transaction: u32, generation: u64 },
    /// A session with a claim or a writer's pass is over.
    Ended { session: u64 },
    /// A session that holds the export was heard.
    Heard { session: u64 },
    /// A session of this run has answered that question.
    Alive { run: InitiatorRun, question: u64 },
    /// No writer's I/O of this branch is in its volume or will be, as long as that hold lasts.
    Drained { hold: u64 },
    /// What its sessions have written so far is to be synced, for the I/O of this number.
    Sync { io: u64 },
    /// Its volume has lost something while this was the latest edition of the verifier it had heard of.
    Lost { edition: u64 },
    /// It tells nobody an older one any more.
    Seen { edition: u64 },

    /// A claim is granted under a generation.
    Granted { session: u64, transaction: u32, generation: u64 },
    /// A claim is denied.
    Denied { session: u64, transaction: u32, denied: Denied },
    /// That the writer has ended is on record, or cannot be put there.
    Closed { session: u64, transaction: u32 },
    /// Somebody was granted it: whoever wrote before is fenced.
    Fenced { by: InitiatorRun, generation: u64 },
    /// Which generation is on record.
    Record { generation: u64 },
    /// Sessions of this run are to be asked whether they live.
    Ask { run: InitiatorRun, question: u64 },
    /// Writers' new I/Os wait from now on.
    Hold { hold: u64 },
    /// They wait no more.
    Release { hold: u64 },
    /// How a sync has ended.
    Synced { io: u64, result: Result<(), IoError> },
    /// A later edition of the verifier: nobody is answered any more before all have heard of it.
    Verifier { edition: u64, verifier: u64 },
    /// All have.
    Heeded { edition: u64 },
    /// It has grown.
    Grown,
}

impl Exports {
    /// Offers a volume of an export that all shards of the target have: each a volume of its own on the same
    /// content. That of the owner is used for everything; those of the others are never asked to sync, nor for
    /// the writer record, and look for growth only when the owner's has found some. Whatever puts unsynced
    /// writes of one in doubt puts those of all there.
    ///
    /// # Panics
    /// If the name is taken: the caller has checked.
    pub fn add_spread(&mut self, config: ExportConfig, spread: Spread) {
        let _ = spread;
        self.add(config);
    }

    /// The door of another shard has something to say.
    pub fn on_letter(&mut self, now: Time, letter: DoorLetter, users: &mut dyn Users) {
        let _ = (now, letter, users);
    }

    /// The next letter to another shard.
    pub fn next_letter(&mut self) -> Option<DoorLetter> {
        self.letters.pop_front()
    }

    /// There is one.
    #[inline]
    pub fn has_letters(&self) -> bool {
        !self.letters.is_empty()
    }
}
