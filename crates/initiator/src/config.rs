//! Settings of an attachment.

use std::time::Duration;

use thinwire_buffer::Addr;
use thinwire_proto::{Batching, SessionCanary, SumCanary};

use crate::InitiatorKey;
use crate::retained::ENTRIES_MAX;

/// What happens to I/O while the target is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenAway {
    /// It waits, like a slow disk.
    Wait,
    /// It fails once the target has been away for this long, until it is back.
    FailAfter(Duration),
}

/// How the target is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetName {
    /// By asking all links for this node name.
    Node(String),
    /// At this address.
    Address(Addr),
}

/// A fault planted in an initiator, which the simulator must find (`docs/design.md`). No flag sets
/// one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum InitiatorCanary {
    /// None: the initiator as it is.
    #[default]
    None,
    /// Unflushed writes that the target has lost are forgotten.
    NoReplay,
    /// A flush is believed whatever the verifier says.
    AnyFlush,
    /// Blocks are patched as they were read, whatever the target has lost.
    PatchedAsRead,
    /// Who has a key believes a refusal that anybody could have sent.
    BelievesRefusals,
    /// What is sent gets sums of what lies in memory then.
    SumsAnew,
    /// Reads are completed whatever their sums say.
    ReadsUnchecked,
}

/// Settings of an attachment. The defaults are right for most.
#[derive(Clone, Debug)]
pub struct InitiatorConfig {
    /// Which initiator this is: the same over restarts of this attachment, different for others.
    /// Whoever presents it again takes the volume over from its former self at once.
    /// Zeroes, the default, name nobody: the runtime then draws a new name.
    pub initiator: [u8; 16],
    /// Which run of it: new for every start.
    pub instance: u64,
    /// Which member of the attachment this is, below [`MEMBERS_MAX`](crate::MEMBERS_MAX): members have
    /// `initiator` and `instance` in common, and a session, slots and retained writes of their own.
    /// Default: 0, the first or the only one. Another joins: it takes nothing over, and is patient with
    /// whatever may pass.
    pub member: u8,
    /// Of a member but the first that writes: the writer generation that the first was granted
    /// ([`InitiatorReport::writer_generation`](crate::InitiatorReport::writer_generation)). Default: 0.
    pub member_generation: u64,
    /// The upper half of the ids of all its sessions, so that its sockets can refuse the frames of
    /// others on the same interface (`docs/protocol.md`, "Frame header"). Its top bit should be set.
    /// 0, the default, for one that is drawn: then no socket may filter by it.
    pub lane: u32,
    /// What a person calls it; shown to others who want the export.
    pub name: String,
    /// What this side's person calls it: what happens to it is told under this. Default: none, and
    /// nothing is told.
    pub label: String,
    /// Where the target is.
    pub target: TargetName,
    /// The export's name.
    pub export: String,
    /// Read only; shared with others. Default: false.
    pub read_only: bool,
    /// Take the volume over from its present writer. Default: false.
    pub take_over: bool,
    /// Retry a refused first attach. Default: false.
    pub wait: bool,
    /// The key to show, and to demand of the target. Default: none.
    pub key: Option<InitiatorKey>,
    /// Agree to a session without keys. Default: false; without it and without a key there is none.
    pub insecure: bool,
    /// See [`WhenAway`]. Default: wait.
    pub when_away: WhenAway,
    /// Whoever stands on it looks at [`Volume::events`](thinwire_volume::Volume::events) and sends again
    /// what was lost, as a target has its initiators do: then no flush has to fail for it. Default: false,
    /// the next flush tells.
    pub losses_are_heard: bool,
    /// Bytes of completed but unflushed writes that are kept for replay; half of it starts a flush,
    /// all of it makes writes wait for that. Default: 32 MiB. This is memory.
    pub retained_bytes_max: usize,
    /// Bytes of received frames, at their true size, that all users of this pool may keep alive: beyond
    /// that reads are completed with copies, so that who is slow to let go of them does not take a
    /// link's memory. Default: 16 MiB.
    pub lent_bytes_max: usize,
    /// Largest frame to use, in bytes; smaller than the link's own limit if a switch is known to
    /// carry less. Default: none.
    pub frame_bytes_max: Option<usize>,
    /// Have data checked from where this side takes it to the target's store, and back, by a sum for each 4 KiB:
    /// memory and links between cannot alter it unseen. A target that cannot do it is not attached. Costs two
    /// passes over the data on each side. Default: false.
    pub integrity: bool,
    /// When requests are sent, and whether blocks share a frame. Default: at once, and they do.
    pub batching: Batching,
    /// Completed but unflushed effects that are kept, bytes aside: discards have none. Acts as
    /// `retained_bytes_max` does. Default and most: 16,384.
    pub retained_entries_max: usize,
    /// Tests only: see [`InitiatorCanary`].
    pub canary: InitiatorCanary,
    /// Tests only: the same, in its sessions.
    pub session: SessionCanary,
    /// Tests only: how the sums of data are made. Both sides must agree on it.
    pub sums: SumCanary,
    /// Tests only: slot sequences and packet numbers begin just below a border. Both sides must agree
    /// on it.
    pub counters_high: bool,
}

impl InitiatorConfig {
    /// Defaults for an attachment of `export` at `target`.
    pub fn new(target: TargetName, export: impl Into<String>) -> Self {
        InitiatorConfig {
            initiator: [0; 16],
            instance: 0,
            member: 0,
            member_generation: 0,
            lane: 0,
            name: String::new(),
            label: String::new(),
            target,
            export: export.into(),
            read_only: false,
            take_over: false,
            wait: false,
            key: None,
            insecure: false,
            when_away: WhenAway::Wait,
            losses_are_heard: false,
            retained_bytes_max: 32 << 20,
            lent_bytes_max: 16 << 20,
            frame_bytes_max: None,
            integrity: false,
            batching: Batching::default(),
            retained_entries_max: ENTRIES_MAX,
            canary: InitiatorCanary::None,
            session: SessionCanary::None,
            sums: SumCanary::None,
            counters_high: false,
        }
    }
}
