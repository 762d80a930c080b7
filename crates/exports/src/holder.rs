//! Who holds an export for writing, by which sessions and which grants.

use thinwire_buffer::Time;

use crate::users::InitiatorRun;

/// Who holds an export for writing, as far as this process knows.
#[derive(Clone, Debug)]
pub(crate) struct Holder {
    pub run: InitiatorRun,
    /// Runs with its identity that asked while it was alive: they are others.
    pub twins: Vec<u64>,
    /// See [`User::is_leased`](crate::users::User::is_leased).
    pub is_leased: bool,
    pub name: String,
    /// Those of its members that have it, one at least.
    pub members: Vec<Member>,
    /// Under which it writes, and when it was granted that first: `None` if in a former life of this node.
    pub generation: u64,
    pub since: Option<Time>,
}

impl Holder {
    /// When any of its members was heard last: it lives as long as one does.
    pub fn last_heard(&self) -> Time {
        self.members.iter().fold(Time::ZERO, |last, member| last.max(member.last_heard))
    }

    /// Where the member is whose present grant is this one.
    pub fn granted(&mut self, grant: u64) -> Option<&mut Member> {
        self.members.iter_mut().find(|member| member.grant.number == grant)
    }
}

/// A member of a holder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member {
    pub grant: Grant,
    /// The session that has it, which may have ended, and its number.
    pub session: u64,
    pub session_number: u64,
    /// When that was heard last, as far as is known.
    pub last_heard: Time,
    /// It has its pass on another shard.
    pub is_elsewhere: bool,
}

/// What a writer's pass is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Grant {
    /// Whose of its run.
    pub member: u8,
    /// Which grant of the export, in this life of the node: what comes late of an earlier pass of the same
    /// session says an earlier one.
    pub number: u64,
}
