//! What the runs have exercised, so that a check that checks nothing is found out.

#[cfg(test)]
mod tests;

use thinwire_proto::Drops;

use crate::transitions::Transitions;

/// Defines the counters, their names and their sum.
macro_rules! coverage {
    ($($(#[$doc:meta])+ $field:ident,)+) => {
        /// Counters of one run, or of many.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Coverage {
            $($(#[$doc])+ pub $field: u64,)+
            /// Why targets and initiators dropped what arrived.
            pub drops: Drops,
            /// How the states of initiators changed.
            pub transitions: Transitions,
        }

        impl Coverage {
            /// Adds another run's.
            pub fn add(&mut self, other: &Coverage) {
                $(self.$field += other.$field;)+
                self.drops.add(&other.drops);
                self.transitions.add(&other.transitions);
            }

            /// All counters of its own with their names.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$((stringify!($field), self.$field),)+].into_iter()
            }
        }
    };
}

coverage! {
    /// I/Os that clients submitted.
    requests,
    /// Reads whose content was checked.
    reads_checked,
    /// Bytes of reads that clients were given as copies: their share of received memory was used up.
    read_bytes_copied,
    /// Writes acknowledged.
    writes,
    /// Writes with FUA acknowledged.
    fua_writes,
    /// Flushes acknowledged.
    flushes,
    /// Discards acknowledged.
    discards,
    /// Write-zeroes acknowledged.
    zeroes,
    /// Block status answers checked.
    statuses,
    /// I/Os submitted while an overlapping one was outstanding.
    overlaps,
    /// Sectors read in which the order of writes that were under way together was judged.
    orders_judged,
    /// Those in which it was not, since a disk had lost something and told nobody yet.
    orders_in_doubt,
    /// Volumes that a host has composed of disks.
    composed,
    /// Hosts that were killed, or lost their power.
    host_crashes,
    /// Hosts whose disks another has taken.
    hosts_fenced,
    /// Hosts that were killed at a moment that was waited for.
    ambushes,
    /// Legs that were put back as they were long ago.
    legs_put_back,
    /// Legs of mirrors that were dropped or not there.
    legs_behind,
    /// Legs that were being copied to.
    legs_resyncing,
    /// Legs that had all data, at an opening or again.
    legs_in_sync,
    /// Legs that their mirror gave up, to be attached anew.
    legs_given_up,
    /// Legs that came back while their mirror was in use.
    legs_back,
    /// Disks that became legs of a mirror in use.
    legs_added,
    /// Legs that were removed from one.
    legs_removed,
    /// Legs of one in whose place another came.
    legs_replaced,
    /// Mirrors in use that grew.
    mirrors_grown,
    /// What was wished of the legs of one, and not done.
    changes_refused,
    /// Times that a volume told of a loss that nobody else would have heard of.
    composed_losses,
    /// Snapshots that were taken of a volume in use.
    cuts_taken,
    /// Snapshots that were deleted again.
    cuts_deleted,
    /// Snapshots whose content was checked.
    cuts_checked,
    /// Volumes that were rolled back to a snapshot, and read.
    rolled_back,
    /// Scrubs of mirrors that ended.
    scrubs_ended,
    /// Blocks of legs that had rotted, and were repaired or told.
    rot_found,
    /// Snapshots that were taken of several volumes as one.
    whole_cuts_taken,
    /// Those that came to nothing because somebody answered too late.
    whole_cuts_late,
    /// Those whose content was checked.
    whole_cuts_checked,
    /// Writes and write-zeroes of parts of blocks, which are read, patched and written.
    edges_patched,
    /// Runs whose attachment had several members, all of them open.
    members_open,
    /// Frames that were lost to one of several members alone.
    members_cut,
    /// I/Os that failed with an error that was due.
    errors,
    /// I/Os that failed because the target was away too long.
    away_errors,
    /// Reads that a target answered from its cache.
    cache_hits,
    /// Reads that it could not.
    cache_misses,
    /// Bytes that it read ahead of who reads on.
    cache_ahead,
    /// Users of EBD that were let in.
    ebd_attached,
    /// Handshakes of such as were in already.
    ebd_came_back,
    /// I/Os that they submitted.
    ebd_requests,
    /// Reads of theirs whose content was checked.
    ebd_reads,
    /// Writes of theirs that were acknowledged.
    ebd_writes,
    /// Flushes of theirs that were.
    ebd_flushes,
    /// I/Os of theirs that failed with an error that was due.
    ebd_errors,
    /// Frames of theirs that said something again.
    ebd_repeated,
    /// Answers that none of them waited for.
    ebd_late,
    /// Users that were not let in.
    ebd_refused,
    /// Users that failed for good.
    ebd_failed,
    /// Users that ended in order, with all that they wrote on the medium.
    ebd_ended,
    /// Users of AoE that were told what their drive is.
    aoe_attached,
    /// Grants of exports to them.
    aoe_granted,
    /// I/Os that they submitted.
    aoe_requests,
    /// Reads of theirs whose content was checked.
    aoe_reads,
    /// Writes of theirs that were acknowledged.
    aoe_writes,
    /// Flushes of theirs that were, and told something.
    aoe_flushes,
    /// I/Os of theirs that failed with an error that was due.
    aoe_errors,
    /// Frames of theirs that said something again.
    aoe_repeated,
    /// Answers that none of them waited for.
    aoe_late,
    /// Answers by which servers refused them.
    aoe_refused,
    /// Requests to reserve a device, or to release it.
    aoe_reserves,
    /// Users that ended in order.
    aoe_ended,
    /// Power failures of targets.
    power_failures,
    /// Targets killed.
    kills,
    /// Those between two calls of a turn, or between two links' frames.
    kills_in_turns,
    /// Orderly shutdowns of targets.
    shutdowns,
    /// Starts of targets that have several shards.
    sharded,
    /// Exports on all shards of a target, by starts of that.
    spread,
    /// Letters between the doors of its shards.
    door_letters,
    /// Turns of a shard in the middle of another's.
    turns_between,
    /// Shards that stood still for a while, the others not.
    shards_frozen,
    /// Greetings that one shard handed over to another.
    handed_over,
    /// Starts of gateways that had all they stand on.
    gateways,
    /// Crashes of gateways.
    gateway_crashes,
    /// Crashes of servers that gateways, or trees of clients, stand on.
    leaf_crashes,
    /// Unflushed writes that gateways sent again after a server below had lost them.
    leaf_replayed,
    /// Of those, the ones that failed: the gateway's clients sent theirs again.
    leaf_replay_failures,
    /// Trees that a client stood on itself.
    tree_clients,
    /// Leaves that somebody took away from a gateway.
    leaves_fenced,
    /// Exports of gateways that another had the leaves of, and of which nothing was said any more.
    fell_silent,
    /// Leaves that somebody wrote while their gateway was down.
    leaves_written,
    /// Times a gateway fenced whoever was the writer, since somebody else had been granted a leaf.
    fenced_for_leaves,
    /// Of those, the ones for nothing: of a grant that nobody had used that was not written down.
    fenced_in_vain,
    /// Notes of unused grants that could not be stored or removed.
    note_failures,
    /// Gateways that died while they stored or removed one.
    note_crashes,
    /// Changes of such notes that a power failure took back.
    notes_lost,
    /// Grants of leaves that gateways took back, since they could not begin.
    grants_taken_back,
    /// Starts that had to wait for the lock.
    lock_waits,
    /// Operations of dead targets that landed after their death.
    landed_late,
    /// Writes torn by a power failure.
    torn_writes,
    /// Sectors lost by power failures and failed flushes.
    sectors_lost,
    /// Flushes that failed in a store.
    flush_failures,
    /// Writes that failed in a store.
    write_failures,
    /// Writer records that could not be stored.
    record_failures,
    /// Targets that died while they stored a writer record.
    record_crashes,
    /// Openings of an image that could not have it remember its size.
    opening_failures,
    /// Failed syncs that took the cache of a device along, and all that lies on it.
    device_failures,
    /// Writes that were lost in the background.
    writeback_failures,
    /// Images that were replaced between two lives of a target.
    images_replaced,
    /// Images that shrank meanwhile.
    images_shrunk,
    /// Times an image grew, served or not.
    images_grown,
    /// Times the last leaf of a tree grew, wherever it was.
    leaves_grown,
    /// Images that were written locally meanwhile, under a writer generation.
    images_written,
    /// Crashes of initiators.
    client_crashes,
    /// Processes of either side frozen for a while.
    freezes,
    /// Take-overs asked for.
    take_overs,
    /// Take-overs of a writer that was cut off, with requests in a slow store.
    contests,
    /// Runs that ended fenced.
    fenced,
    /// Runs that ended since the content was another.
    content_changed,
    /// Attaches refused since another holds the export.
    refused_busy,
    /// Attaches that arrived long after they had been sent.
    late_attaches,
    /// Probes and answers to probes that arrived once more long after they had been sent.
    probes_played_back,
    /// Attachments granted.
    attached,
    /// Orderly detaches.
    detached,
    /// Attachments aborted.
    aborted,
    /// Reads through read-only attachments.
    reader_reads,
    /// Writes refused to read-only attachments.
    reader_writes_refused,
    /// Sessions in which several exports were open at once.
    several_exports,
    /// I/Os acknowledged in them while another export was open, too.
    several_io,
    /// Reads in them whose content was checked.
    several_reads,
    /// Runs in them that ended since the verifier of their export had changed.
    several_lost,
    /// I/Os acknowledged in a session that had been fenced on another of its exports.
    fenced_in_part,
    /// Exports detached and attached again within a session.
    attached_again,
    /// Sessions opened by initiators.
    sessions,
    /// Unflushed writes sent again after a target had lost them.
    replayed,
    /// Turns of clients whose retained effects were as many as they may be, in bytes or entries.
    retained_full,
    /// Sessions in which all counters began just below a border.
    counters_high,
    /// Replays that failed.
    replay_failures,
    /// Frames of which a bit of the payload was flipped behind their checks.
    altered_bits,
    /// Frames of which two pieces of payload changed places.
    altered_swaps,
    /// Requests that went to another address than they were sent to.
    altered_places,
    /// Sums of which a bit was flipped.
    altered_sums,
    /// Buffers of writes that went bad while somebody referred to them.
    altered_buffers,
    /// Writes that a target refused since their data did not fit its sums.
    altered_writes,
    /// Of these, the ones that their initiator found altered in its own memory.
    altered_here,
    /// Reads whose data did not fit its sums.
    altered_reads,
    /// I/Os that failed for that.
    altered_failed,
    /// Exports that were taken away from targets that served.
    exports_taken_away,
    /// Sessions that ended for that.
    sessions_taken_away,
    /// Exports that were brought back while their target went on.
    exports_back,
    /// Requests that arrived again after they had been completed.
    repeated,
    /// Late duplicates that were dropped.
    late_duplicates,
    /// I/Os of users of local disks.
    local_ios,
    /// Writes of theirs that were acknowledged.
    local_writes,
    /// Times a process with local disks ended at once.
    local_ends,
    /// Losses that a local store has heard of.
    local_losses,
    /// Flushes that failed since something was lost that they need not have covered themselves.
    local_told,
    /// Frames that arrived twice.
    duplicate_frames,
    /// Frames refused at the gate.
    damaged_frames,
    /// Frames of sessions that are not known (any more).
    unknown_sessions,
    /// Worlds with keys.
    keyed_worlds,
    /// Directions of sessions that AES-128-GCM sealed.
    sealed_aes128,
    /// Likewise AES-256-GCM.
    sealed_aes256,
    /// Likewise ChaCha20-Poly1305.
    sealed_chacha,
    /// Likewise AES-128-GMAC, which hides nothing.
    sealed_gmac,
    /// Times a direction of a session went to its next key.
    rekeys,
    /// Times a sealed frame was tried to send that a link had not taken.
    seals_retried,
    /// Sealed frames that came again from where they had come from.
    seals_replayed,
    /// Greetings with a key, and answers to them, that were repeated bit by bit.
    greetings_repeated,
    /// Keys that servers were told not to accept any more.
    keys_taken,
    /// Sessions that ended by that, or since a right was another.
    sessions_taken,
    /// Rights to exports that were taken away.
    rights_taken,
    /// Machines that began to use another key.
    keys_switched,
    /// Frames that were not what the peer had sealed.
    forged_frames,
    /// Frames of another suite than their session's.
    other_suites,
    /// Greetings with a key that a target does not know (any more).
    unknown_keys,
    /// Greetings and answers without a key, where one is demanded.
    insecure,
    /// Frames that somebody on the way sent once more.
    forged_again,
    /// Such that it had kept.
    forged_old,
    /// Those to others, or in the name of others.
    forged_elsewhere,
    /// Those back to who had sent them.
    forged_reflections,
    /// Those with flipped bits.
    forged_bits,
    /// Those that were cut.
    forged_cuts,
    /// Those with another number, path, key phase, epoch or suite.
    forged_headers,
    /// Frames without a key in sessions that have one.
    forged_plain,
    /// Words of no key that a session is not known.
    forged_unknown,
    /// Greetings and answers that somebody on the way played back, changed or made up.
    forged_greetings,
    /// Frames of strangers that were well formed and meant nothing.
    nonsense,
    /// Frames sent.
    frames_sent,
    /// Frames lost at random.
    frames_lost,
    /// Calls of which a link took a part of the frames.
    sends_partial,
    /// Calls of which a link took nothing.
    sends_refused,
    /// Frames that were given up since a link did not take them.
    frames_given_up,
    /// Frames that arrived in memory of their link, which was lent.
    frames_lent,
    /// Frames that had to be a pool's, since all such memory was lent.
    frames_lent_short,
    /// Reads whose data somebody has held for a while, and looked at again.
    reads_held,
    /// Frames that met a cut.
    frames_cut,
    /// Frames too long for the switch.
    frames_too_long,
    /// Frames overtaken by later ones.
    frames_reordered,
    /// Frames dropped for lack of room.
    frames_no_room,
    /// Links taken down.
    link_cuts,
    /// Partitions, one-way ones counted too.
    partitions,
    /// One-way partitions.
    one_way_partitions,
    /// Paths that stopped answering.
    paths_down,
    /// Paths that carried frames (again).
    paths_up,
    /// Paths that fell back to, or settled on, smaller frames than their links allow.
    frame_size_fallbacks,
}

/// What only worlds with composed volumes exercise, all of it in each few hundred of them.
const OF_VOLUMES: [&str; 26] = [
    "composed",
    "host_crashes",
    "hosts_fenced",
    "ambushes",
    "legs_put_back",
    "legs_behind",
    "legs_resyncing",
    "legs_in_sync",
    "legs_given_up",
    "legs_back",
    "legs_added",
    "legs_removed",
    "legs_replaced",
    "changes_refused",
    "composed_losses",
    "cuts_taken",
    "cuts_deleted",
    "cuts_checked",
    "rolled_back",
    "scrubs_ended",
    "rot_found",
    "whole_cuts_taken",
    "whole_cuts_checked",
    "orders_judged",
    // Of others, too.
    "reads_checked",
    "partitions",
];
/// So many of them no other world has.
const ONLY_OF_VOLUMES: usize = 24;
/// Few of them have these, and no other world.
const SELDOM_OF_VOLUMES: [&str; 3] = ["whole_cuts_late", "mirrors_grown", "orders_in_doubt"];
/// After so many worlds with composed volumes.
const SEEDS_FOR_VOLUMES: u64 = 300;

/// What no run exercises, and what shows it instead.
const ELSEWHERE: [(&str, &str); 9] = [
    ("drop overrun", "no seed asks for more than an honest peer can: `target/tests/bounds.rs`"),
    (
        "association: Idle > Seeking",
        "it seeks from the moment that it is made: `association/tests.rs`",
    ),
    // Nor have two of them one name.
    (
        "association: Seeking > Idle",
        "no target refuses a client a session for good: `association/tests.rs`",
    ),
    (
        "attachment: Apart > Failed",
        "no target refuses a client a session for good: `attachment/tests.rs`",
    ),
    (
        "attachment: Refused > Failed",
        "nor that, nor answers one question twice: `attachment/tests.rs`",
    ),
    (
        "attachment: Refused > Granted",
        "no target answers one question twice: `attachment/tests.rs`",
    ),
    (
        "attachment: Refused, open > Granted",
        "no target answers one question twice: `attachment/tests.rs`",
    ),
    ("requests: GivenUp > Done", "clients take what is done before the next look: `requests.rs`"),
    (
        "durability: Replaying, owing > Replaying",
        "who replays is not asked what it owes: `durability/tests.rs`",
    ),
];

/// What few runs exercise: one to five of the first 2,000 each.
const SELDOM: [&str; 5] = [
    "notes_lost",
    "association: Doubted > Seeking",
    "association: Rejoining > Seeking",
    "durability: Clean, owing > Replaying, owing",
    "durability: Replaying, owing > Clean, owing",
];

/// Changes that happen often enough, while a crash comes with less than ten of each in 2,000 runs: by chance with none,
/// if what is drawn is another.
const SELDOM_HIT: [&str; 13] = [
    "association: Doubted > Associated",
    "attachment: Refused > Apart",
    "attachment: Asked, open > Refused, open",
    "attachment: Refused, open > Apart, open",
    "attachment: Refused, open > Asked, open",
    "requests: Waiting > Done",
    "durability: Clean, owing > Clean",
    "durability: Clean, owing > Retaining, owing",
    "durability: Retaining, owing > Clean",
    "durability: Retaining, owing > Retaining",
    "durability: Retaining, owing > Clean, owing",
    "absence: GivenUp > Present",
    "closing: Draining > Closed",
];

/// Tells crashes that come with a change from the change.
const CRASH: &str = "crash at ";

/// After so many seeds each of the counters has to count.
const SEEDS_FOR_COUNTERS: u64 = 1_000;
/// After so many each reason to drop something, each change of state, and each crash that comes with one.
const SEEDS_FOR_CHANGES: u64 = 1_700;
/// After so many what is seldom.
const SEEDS_FOR_SELDOM: u64 = 20_000;

impl Coverage {
    /// What so many runs should have exercised and have not.
    pub fn missing(&self, runs: u64) -> Vec<String> {
        let own = self.iter().map(|(name, count)| (name.to_owned(), count, SEEDS_FOR_COUNTERS));
        let drops = self.drops.all().map(|(name, count)| (format!("drop {name}"), count));
        let crashes = self.transitions.crashes();
        let crashes = crashes.map(|(name, count)| (format!("{CRASH}{name}"), count));
        let changes = drops.chain(self.transitions.iter()).chain(crashes);
        let all = own.chain(changes.map(|(name, count)| (name, count, SEEDS_FOR_CHANGES)));
        let is_due = |name: &str, after| {
            let change = name.strip_prefix(CRASH).unwrap_or(name);
            let is_seldom =
                SELDOM.contains(&change) || SELDOM_HIT.contains(&change) && change != name;
            let after = if is_seldom { SEEDS_FOR_SELDOM } else { after };
            let is_elsewhere =
                OF_VOLUMES[..ONLY_OF_VOLUMES].contains(&name) || SELDOM_OF_VOLUMES.contains(&name);
            runs >= after
                && !is_elsewhere
                && !ELSEWHERE.iter().any(|&(elsewhere, _)| elsewhere == change)
        };
        let zero = all.filter(|(name, count, after)| *count == 0 && is_due(name, *after));
        zero.map(|(name, ..)| name).collect()
    }

    /// What so many runs with composed volumes should have exercised and have not.
    pub fn missing_of_volumes(&self, runs: u64) -> Vec<String> {
        let of_them = self.iter().filter(|(name, _)| OF_VOLUMES.contains(name));
        let zero = of_them.filter(|(_, count)| *count == 0 && runs >= SEEDS_FOR_VOLUMES);
        zero.map(|(name, _)| name.to_owned()).collect()
    }

    /// What so many runs have exercised, though [`ELSEWHERE`] says that none does.
    pub fn excused_in_vain(&self, runs: u64) -> Vec<String> {
        let drops = self.drops.iter().map(|(name, count)| (format!("drop {name}"), count));
        let met = drops.chain(self.transitions.iter()).filter(|&(_, count)| count > 0);
        let is_due = runs >= SEEDS_FOR_CHANGES;
        let excused =
            |name: &String| is_due && ELSEWHERE.iter().any(|(elsewhere, _)| elsewhere == name);
        met.map(|(name, _)| name).filter(excused).collect()
    }
}
