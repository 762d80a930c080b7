//! How the leaves of a volume are let go of.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use super::tree::Leaf;
use crate::error::{Failure, Outcome};
use crate::host::Host;
use crate::local::LocalLeaf;
use crate::network::{NetworkLeaf, is_readable};
use crate::open::{Ending, Unheard, Wait};
use crate::remote::CLOSE_PATIENCE;

/// The attachments among leaves.
pub(super) fn remotes(leaves: &mut [Leaf]) -> Vec<&mut (dyn NetworkLeaf + 'static)> {
    let mut remotes = Vec::new();
    for leaf in leaves {
        if let Leaf::Remote(leaf) = leaf {
            remotes.push(&mut **leaf);
        }
    }
    remotes
}

/// Ends attachments, all at the same time; at once those that `force` says, and all that are left when
/// `hurry` is readable. Which targets have not heard of it; the first failure, after all have been tried.
pub(super) fn end_remotes(
    host: &Host,
    leaves: &mut [&mut (dyn NetworkLeaf + 'static)],
    force: impl Fn(&dyn NetworkLeaf) -> bool,
    hurry: Option<&OwnedFd>,
) -> Outcome<Unheard> {
    let mut unheard = Unheard::default();
    if leaves.is_empty() {
        return Ok(unheard);
    }
    let forced: Vec<bool> = leaves.iter().map(|leaf| force(&**leaf)).collect();
    for (leaf, &force) in leaves.iter_mut().zip(&forced) {
        leaf.begin_close(force);
    }
    if let Some(hurry) = hurry {
        host.watch(hurry.as_fd())?;
    }
    // What was queued is sent, also of those that are not waited for.
    let mut ended = host.turn(Wait::No);
    let in_order = leaves.iter().zip(forced).filter(|(_, force)| !force);
    ended = ended.and(await_closed(host, in_order.map(|(leaf, _)| &**leaf).collect(), hurry));
    // The last goodbyes were queued by what has just been received.
    ended = ended.and(host.turn(Wait::No));
    if let Some(hurry) = hurry {
        host.unwatch(hurry.as_fd())?;
    }
    let uris = leaves.iter().filter(|leaf| leaf.is_unheard()).map(|leaf| leaf.uri().to_owned());
    unheard.0.extend(uris);
    ended.map(|()| unheard)
}

/// Turns the host until all have let go, each of which goes on whatever holds up the others. The first failure.
fn await_closed(host: &Host, mut left: Vec<&dyn NetworkLeaf>, hurry: Option<&OwnedFd>) -> Outcome {
    let end = Instant::now() + CLOSE_PATIENCE;
    let mut failed = None;
    loop {
        left.retain(|leaf| {
            let closed = leaf.closed();
            let is_left = closed.is_none();
            failed = failed.take().or(closed.and_then(Result::err));
            is_left
        });
        let Some(slowest) = left.first() else { return failed.map_or(Ok(()), Err) };
        let why = if hurry.is_some_and(is_readable) {
            "given up before the target confirmed the detach".to_owned()
        } else if Instant::now() >= end {
            let seconds = CLOSE_PATIENCE.as_secs();
            format!("the target did not confirm the detach within {seconds} s")
        } else {
            host.turn(Wait::Until(end))?;
            continue;
        };
        return Err(failed.unwrap_or(Failure::failed(format!("{}: {why}", slowest.uri()))));
    }
}

/// Whether an attachment ends by force, so that its target keeps it on record as the writer.
fn is_forced(ending: Ending, is_away: bool, has_lost: bool) -> bool {
    match ending {
        Ending::Orderly | Ending::Unused => false,
        Ending::BarAway => is_away,
        // It knows nothing of that any more: the flush that failed has told.
        Ending::AfterLoss | Ending::Unfinished => is_away || has_lost,
        Ending::Force => true,
    }
}

/// Ends leaves, each for itself: what can end in order does, whatever becomes of the others; the rest is
/// given up when `hurry` is readable. The first failure, after all have been tried.
pub(super) fn end(
    host: &Host,
    leaves: &mut [Leaf],
    ending: Ending,
    hurry: Option<&OwnedFd>,
) -> Outcome<Unheard> {
    // A leg that was about to come back has nothing to be let go of.
    let at_once = |leaf: &dyn NetworkLeaf| {
        !leaf.is_granted() || is_forced(ending, leaf.is_away(), leaf.has_lost())
    };
    let mut ended = end_remotes(host, &mut remotes(leaves), at_once, hurry);
    let locals: Vec<&LocalLeaf> = leaves.iter().filter_map(Leaf::local).collect();
    // Those that are not ended go with the tree: who has written stays on record, else whoever was there before is so
    // again.
    let in_order = |leaf: &&&LocalLeaf| match ending {
        Ending::Orderly | Ending::BarAway => true,
        // Whoever flushed has been told, and the next flush would not fail again.
        Ending::AfterLoss => !leaf.has_lost(),
        // Labels were, by its opening: whoever was on record before knows nothing of them.
        Ending::Unused => leaf.was_written(),
        Ending::Unfinished | Ending::Force => false,
    };
    let to_end: Vec<&LocalLeaf> = locals.iter().filter(in_order).copied().collect();
    let left = LocalLeaf::end_all(host, &to_end, hurry);
    ended = ended.and_then(|unheard| left.map(|()| unheard));
    if matches!(ending, Ending::Unused) {
        locals.iter().for_each(|leaf| leaf.unkeep_grant());
    }
    LocalLeaf::await_all(host, &locals);
    match ending {
        // Of nothing can be said that it is durable.
        Ending::Force | Ending::AfterLoss | Ending::Unfinished => ended.map(|_| Unheard::default()),
        _ => ended,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_lost_something_is_not_released_after_a_flush_that_failed() {
        let forced = |ending| {
            [(false, false), (true, false), (false, true)]
                .map(|(is_away, has_lost)| is_forced(ending, is_away, has_lost))
        };
        assert_eq!(forced(Ending::AfterLoss), [false, true, true]);
        assert_eq!(forced(Ending::Unfinished), [false, true, true]);
        // Where the last flush succeeded, what was lost before was told by one that failed, and is written once
        // more or given up; what no flush has told of fails the end itself.
        assert_eq!(forced(Ending::Orderly), [false; 3]);
        assert_eq!(forced(Ending::BarAway), [false, true, false]);
        assert_eq!(forced(Ending::Unused), [false; 3]);
        assert_eq!(forced(Ending::Force), [true; 3]);
    }
}
