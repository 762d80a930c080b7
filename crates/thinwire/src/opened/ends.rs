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
    let forced: Vec<bool> = leaves.iter().map(|leaf| force(&**leaf)).collect();
    close_all(host, leaves, &forced, hurry)?;
    Ok(unheard(leaves.iter().map(|leaf| &**leaf)))
}

/// Of these, which have ended and were not heard.
fn unheard<'a>(leaves: impl Iterator<Item = &'a (dyn NetworkLeaf + 'static)>) -> Unheard {
    let uris = leaves.filter(|leaf| leaf.is_unheard()).map(|leaf| leaf.uri().to_owned());
    let mut unheard = Unheard::default();
    unheard.0.extend(uris);
    unheard
}

/// As [`end_remotes`]; which of them by force is known of each.
fn close_all(
    host: &Host,
    leaves: &mut [&mut (dyn NetworkLeaf + 'static)],
    forced: &[bool],
    hurry: Option<&OwnedFd>,
) -> Outcome {
    if leaves.is_empty() {
        return Ok(());
    }
    for (leaf, &force) in leaves.iter_mut().zip(forced) {
        leaf.begin_close(force);
    }
    if let Some(hurry) = hurry {
        host.watch(hurry.as_fd())?;
    }
    // What was queued is sent, also of those that are not waited for.
    let mut ended = host.turn(Wait::No);
    let in_order = leaves.iter().zip(forced).filter(|(_, force)| !**force);
    ended = ended.and(await_closed(host, in_order.map(|(leaf, _)| &**leaf).collect(), hurry));
    // The last goodbyes were queued by what has just been received.
    ended = ended.and(host.turn(Wait::No));
    if let Some(hurry) = hurry {
        host.unwatch(hurry.as_fd())?;
    }
    ended
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

/// Leaves that are let go of, and how.
pub(super) type Going<'a> = (&'a mut [Leaf], Ending);

/// Ends leaves, all at the same time and each for itself: what can end in order does, whatever becomes of the others; the rest is
/// given up when `hurry` is readable. The first failure, after all have been tried. One by one they would wait for each other: nobody is told of
/// a sync before all that began earlier on the same file system have been heard of.
pub(super) fn end(
    host: &Host,
    going: &mut [Going<'_>],
    hurry: Option<&OwnedFd>,
) -> Outcome<Unheard> {
    let (mut far, mut forced, mut tell) = (Vec::new(), Vec::new(), Vec::new());
    for (leaves, ending) in &mut *going {
        for leaf in remotes(leaves) {
            // A leg that was about to come back has nothing to be let go of.
            let at_once = !leaf.is_granted() || is_forced(*ending, leaf.is_away(), leaf.has_lost());
            forced.push(at_once);
            tell.push(tells_unheard(*ending));
            far.push(leaf);
        }
    }
    let closed = close_all(host, &mut far, &forced, hurry);
    let told = far.iter().zip(tell).filter(|(_, tell)| *tell).map(|(leaf, _)| &**leaf);
    let ended = closed.map(|()| unheard(told));
    let mut locals: Vec<&LocalLeaf> = Vec::new();
    let mut to_end = Vec::new();
    for (leaves, ending) in &*going {
        for leaf in leaves.iter().filter_map(Leaf::local) {
            locals.push(leaf);
            // Those that are not ended go with the tree: who has written stays on record, else whoever was there before is so
            // again.
            let in_order = match ending {
                Ending::Orderly | Ending::BarAway => true,
                // Whoever flushed has been told, and the next flush would not fail again.
                Ending::AfterLoss => !leaf.has_lost(),
                // Labels were, by its opening: whoever was on record before knows nothing of them.
                Ending::Unused => leaf.was_written(),
                Ending::Unfinished | Ending::Force => false,
            };
            to_end.extend(in_order.then_some(leaf));
        }
    }
    let left = LocalLeaf::end_all(host, &to_end, hurry);
    for (leaves, ending) in &*going {
        if matches!(ending, Ending::Unused) {
            leaves.iter().filter_map(Leaf::local).for_each(|leaf| leaf.unkeep_grant());
        }
    }
    LocalLeaf::await_all(host, &locals);
    ended.and_then(|unheard| left.map(|()| unheard))
}

/// Otherwise of nothing can be said that it is durable.
fn tells_unheard(ending: Ending) -> bool {
    !matches!(ending, Ending::Force | Ending::AfterLoss | Ending::Unfinished)
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
