//! An export of several shards of which one hears that somebody else has what it is made of.

use thinwire_exports::DoorCanary;
use thinwire_volume::VolumeEvent;

use super::pair::*;

/// All shards say nothing of it any more, whichever has heard, and what waited for another shard ends.
#[test]
fn what_one_shard_hears_of_a_fence_all_do() {
    for heard_by in [OWNER, BRANCH] {
        let mut pair = Pair::planted(DoorCanary::None);
        let writer = pair.grant(BRANCH, 1);
        pair.submit(BRANCH, 1, writer.pass, write(true));
        pair.end(BRANCH, true);
        // What it has written is being synced by the owner, for the branch.
        pair.deliver(BRANCH);
        pair.claim(BRANCH, 2, 1, true).unwrap();
        pair.puppets[heard_by].tell(VolumeEvent::Fenced { of: None });
        pair.doors[heard_by].disk_ready();
        pair.settle();
        for shard in [OWNER, BRANCH] {
            assert_eq!(
                pair.doors[shard].next_fenced(),
                Some((0, "disk")),
                "by {heard_by}: {shard}"
            );
            assert_eq!(pair.doors[shard].find("disk"), None);
            let mut ended = Vec::new();
            drop(pair.doors[shard].take_fenced(|ticket, _, _, _| ended.push(ticket.session)));
            let expected = if shard == BRANCH { vec![session(BRANCH, 1, 1)] } else { vec![] };
            assert_eq!(ended, expected, "by {heard_by}: {shard}");
        }
        let (told, answers) = (pair.told[BRANCH].granted.len(), pair.answers.len());
        // Letters that come late mean nothing.
        pair.settle();
        assert!(pair.doors.iter().all(|door| !door.has_fenced() && !door.is_at_work()));
        assert_eq!((pair.told[BRANCH].granted.len(), pair.answers.len()), (told, answers));
        assert!(pair.answers.is_empty() && pair.told.iter().all(|told| told.denied.is_empty()));
    }
}
