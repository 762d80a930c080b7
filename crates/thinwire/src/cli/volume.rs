//! `thinwire volume`: volumes whose parts have labels.

use clap::builder::RangedI64ValueParser;
use clap::{Args, Subcommand};
use thinwire_volume::WORK_PERCENT_MAX;

use super::{RunDirArg, SecurityArgs};
use crate::budgets::{NewLimit, parse_limit};
use crate::size::parse_size;
use crate::uri::VolumeSpec;

/// `thinwire volume`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  thinwire volume create --key alice pool.toml#wide
  thinwire volume dump /srv/a.img
  thinwire volume check /srv/*.img
  thinwire volume assemble /srv > pool.toml
  thinwire volume resync pool.toml#home

Of volumes that a file describes with `labels = true`: each part gives its first MiB to a label, which says what it is
a part of. docs/format.md says what stands there.")]
pub struct VolumeArgs {
    /// What to do.
    #[command(subcommand)]
    pub action: VolumeAction,
}

/// What can be done with volumes of volumes.
#[derive(Debug, Subcommand)]
pub enum VolumeAction {
    /// Write labels to the parts of a volume that a file describes with `labels = true`
    #[command(after_help = "\
Examples:
  thinwire volume create --key alice pool.toml#wide
  thinwire volume create --key alice pool.toml#wide --force
  thinwire volume create pool.toml#pool@home --size 100G

where pool.toml has
  [[volume]]
  name = \"wide\"
  kind = \"stripe\"
  labels = true
  children = [\"tw://node1/disk0?link=eth1\", \"tw://node2/disk1?link=eth1\"]

Each part loses its first MiB to its label, which says what it is a part of, and where in it. From then on the
volume is attached or exported as pool.toml#wide; its parts may be named in any order, and anywhere: one that
is missing, a copy, an old copy put back in its place, or another's is refused. Parts that are described with labels themselves
are made first, unless they are there. A part whose first MiB is not all zero, or whose last MiB has the mark of a RAID or a
partition table, is refused, with what is there; --force overwrites it.")]
    Create {
        /// The volume, FILE.toml#NAME
        volume: VolumeSpec,
        /// How large a volume of a pool is to be; its room is taken as it is written
        #[arg(long, value_parser = parse_size)]
        size: Option<u64>,
        /// Make parts of what holds something already, which is lost
        #[arg(long)]
        force: bool,
        /// Take parts away from the writer that holds them or is on record, fencing that one for good, also if they turn out
        /// to hold something
        #[arg(long)]
        take_over: bool,
        #[command(flatten)]
        #[allow(missing_docs)]
        common: VolumeCommon,
    },
    /// Say what stands in the labels of parts
    #[command(after_help = "\
Examples:
  thinwire volume dump /srv/a.img /srv/b.img
  thinwire volume dump --key alice --json 'tw://node1/disk0?link=eth1'

Changes nothing. Fails if one of them has no label that can be gone by, after all were shown.")]
    Dump {
        /// The parts
        #[arg(required = true, value_name = "VOLUME")]
        parts: Vec<VolumeSpec>,
        #[command(flatten)]
        #[allow(missing_docs)]
        common: VolumeCommon,
    },
    /// Check labels and what stands behind them, and whether parts make volumes; or all that a pool keeps
    #[command(after_help = "\
Examples:
  thinwire volume check pool.toml#home
  thinwire volume check --repair pool.toml#home
  thinwire volume check pool.toml#pool
  thinwire volume check /srv/*.img
  thinwire volume check --key alice --json 'tw://node1/disk0?link=eth1' 'tw://node2/disk1?link=eth1'

Changes nothing. Says of each part whether both copies of its label are sound, and what the bitmap of a leg or of a part with sums says, and of
each volume whether it can be used; where not, what is damaged, what still serves and what to do. Of a
volume, FILE.toml#NAME, all parts are looked at, down to those that it stands on at last, and of pools among these
every node and every reference count in their metadata, and what each volume has lost. Data is not read: `thinwire volume scrub` does
that. A volume that an attachment or a target of this machine has open is refused; what is in use otherwise, as a pool below, is said to be, and is not checked. One torn copy of a block of the bitmap of a part with sums, of which the other one stands, is told and is no failure: the next write there writes it anew.

Exit codes: 0 all that was looked at is sound, and what was not is in use, and named in the last line (`not_checked` with --json); 1 something is wrong, or the check was
refused; 2 bad usage. A volume of which more is missing than is in use is wrong.

--repair opens a volume for writing, as any user of it, if a copy of a label or a block of a bitmap is torn and what is left says all: these are
written anew, and the volume is let go of, and checked once more. Where a copy of a label is torn that may have said more than what is left, as that of a pool which
has not ended in order, or a pool below is not sound, nothing is written; for the first, --force does. Of a pool it puts counts right, so that what nobody has is free again, and what somebody has is
not given to another; what is lost stays so.")]
    Check {
        /// Volumes or parts, or one pool
        #[arg(required = true, value_name = "VOLUME")]
        parts: Vec<VolumeSpec>,
        /// Write anew what is torn of labels and bitmaps, or put right what is counted wrongly in a pool
        #[arg(long)]
        repair: bool,
        /// With --repair: also where a label that is torn may have been the newest, and have said more than what is left
        #[arg(long, requires = "repair")]
        force: bool,
        /// With --repair: take parts away from the writer that holds them or is on record, fencing that one for good
        #[arg(long, requires = "repair")]
        take_over: bool,
        #[command(flatten)]
        #[allow(missing_docs)]
        common: VolumeCommon,
    },
    /// Copy to legs of mirrors what they lack, or decide which leg is the truth
    #[command(after_help = "\
Examples:
  thinwire volume resync --key alice pool.toml#home
  thinwire volume resync --key alice --degraded pool.toml#home
  thinwire volume resync --key alice --from 1 pool.toml#home
  thinwire volume resync --wait pool.toml#home

A mirror resyncs by itself while it is in use. One that nobody uses is opened for nothing else, until all legs that are there are in
sync. Of one that an attachment or a target of this machine has open (with the same --run-dir) it is told how it stands, and what could not be
copied is tried again at once; --wait waits for the end. Legs that may have the newest data and are missing are refused: --degraded goes on without them, and puts that on record,
so that what they had is given up where it differs. Legs that were served apart are refused: --from takes one for the truth,
and copies it to all others. Interrupted, it goes on from there when the mirror is opened again.")]
    Resync {
        /// The volume, FILE.toml#NAME
        volume: VolumeSpec,
        /// Go on without legs that are missing and may have newer data
        #[arg(long)]
        degraded: bool,
        /// Take this leg, counted from 0 in the order of their labels, for the truth
        #[arg(long, value_name = "LEG")]
        from: Option<usize>,
        #[command(flatten)]
        #[allow(missing_docs)]
        live: VolumeLive,
        /// Take legs away from the writer that holds them or is on record, fencing that one for good
        #[arg(long)]
        take_over: bool,
        #[command(flatten)]
        #[allow(missing_docs)]
        common: VolumeCommon,
    },
    /// Read everything, and mend what is not as it was written where that can be known
    #[command(after_help = "\
Examples:
  thinwire volume scrub pool.toml#home
  thinwire volume scrub --json --from 64M pool.toml#home
  thinwire volume scrub --wait --pace 10 pool.toml#home

Of each mirror all legs are read, of each volume of kind integrity all blocks, at a pace that leaves users twice as much. What does not fit its sum, or
cannot be read, is written again from another leg of a mirror. Where legs without sums differ nobody knows which is right:
that is told, and nothing is written. Fails if anything was found that could not be mended. Interrupted, it says where --from goes on.

A volume that an attachment or a target of this machine has open (with the same --run-dir) is scrubbed by that: this begins it, and ends; --wait waits
for it. `volume status` says how far it is, and what it has found; --stop ends it.")]
    Scrub {
        /// The volume, FILE.toml#NAME
        volume: VolumeSpec,
        /// Go on from there, in bytes of what is scrubbed
        #[arg(long, value_parser = parse_size, default_value = "0", value_name = "BYTES")]
        from: u64,
        /// End the scrub of a volume that is in use
        #[arg(long, conflicts_with_all = ["from", "wait", "pace"])]
        stop: bool,
        #[command(flatten)]
        #[allow(missing_docs)]
        live: VolumeLive,
        /// Take parts away from the writer that holds them or is on record, fencing that one for good
        #[arg(long)]
        take_over: bool,
        #[command(flatten)]
        #[allow(missing_docs)]
        common: VolumeCommon,
    },
    /// Let a volume that is in use do nothing for itself for a while
    #[command(after_help = "\
Examples:
  thinwire volume pause pool.toml#home
  thinwire volume resume pool.toml#home

Of a volume that an attachment or a target of this machine has open (with the same --run-dir), and of all that it is made of: copies to legs of mirrors, checks behind
a crash, and scrubs stand still until they are resumed. What is written goes to all legs as ever. A mirror keeps that on its legs, and a volume of kind
integrity by itself on its part, also over a restart.")]
    Pause {
        /// The volume, FILE.toml#NAME
        volume: VolumeSpec,
        #[command(flatten)]
        #[allow(missing_docs)]
        common: VolumeCommon,
    },
    /// Let it go on, or say how fast it goes
    #[command(after_help = "\
Examples:
  thinwire volume resume pool.toml#home
  thinwire volume resume --pace 100 pool.toml#home

What was paused goes on, and what could not be copied is tried again at once. A mirror keeps its --pace on its legs, and a volume of
kind integrity by itself on its part, also over a restart.")]
    Resume {
        /// The volume, FILE.toml#NAME
        volume: VolumeSpec,
        /// So much of what users get, in percent of bytes, while there are any: 50 unless it is said. Of what nobody uses it takes all
        #[arg(long, value_name = "PERCENT", value_parser = percent())]
        pace: Option<u8>,
        #[command(flatten)]
        #[allow(missing_docs)]
        common: VolumeCommon,
    },
    /// Show what a volume that is in use is made of, and how all of that stands
    #[command(after_help = "\
Examples:
  thinwire volume status pool.toml#home
  thinwire volume status --json pool.toml#home
  thinwire volume status disk0

Of a volume that an attachment or a target of this machine has open (with the same --run-dir): each volume that it is made of, with its size, how legs of mirrors stand and what they lack, where something is away, how far copies and scrubs are, and what goes to each of them in a second, with how long
that takes, if anybody uses it. What no file describes, as stripe:[/srv/a.img,/srv/b.img], is named by the attachment or the export that it is. Of a volume that is not
in use `volume check` says what stands on its parts. Changes nothing.")]
    Status {
        /// The volume, FILE.toml#NAME, or the name of an attachment or an export
        volume: VolumeSpec,
        #[command(flatten)]
        #[allow(missing_docs)]
        common: VolumeCommon,
    },
    /// Keep what a volume of a pool, or of several, is now, under a name: to be read
    #[command(after_help = "\
Examples:
  thinwire volume snapshot pool.toml#pool@home before-update
  thinwire attach --read-only pool.toml#pool@before-update --block
  thinwire volume snapshot wide.toml#wide before-update
  thinwire attach --read-only wide.toml#wide@before-update --block

Takes no room but for what is written later. Whoever has the pool open, an attachment or a target, does it while it is in use: the snapshot is one
moment, as after a power failure. So is that of a volume with labels whose parts are volumes of pools, or exports of such: each part has
a snapshot then, called VOLUME.NAME in its pool, or none has.")]
    Snapshot {
        /// The volume: FILE.toml#POOL@VOLUME, also one that is a snapshot itself, or FILE.toml#NAME of one over several pools
        volume: VolumeSpec,
        /// What the snapshot is called
        name: String,
        #[command(flatten)]
        #[allow(missing_docs)]
        common: VolumeCommon,
    },
    /// Make a volume of a pool that holds what another one holds now: to be written
    #[command(after_help = "\
Examples:
  thinwire volume clone pool.toml#pool@golden guest1

Takes no room but for what is written later, to either. While a volume of the pool is attached, that attachment does it.")]
    Clone {
        /// The volume or snapshot, FILE.toml#POOL@VOLUME
        volume: VolumeSpec,
        /// What the clone is called in the pool
        name: String,
        #[command(flatten)]
        #[allow(missing_docs)]
        common: VolumeCommon,
    },
    /// Let a volume of a pool be again what a snapshot of it is
    #[command(after_help = "\
Examples:
  thinwire volume rollback pool.toml#pool@home before-update

What the volume holds now is lost, unless a snapshot has it; its size stays. Initiators that hold writes to it, which were not
flushed, find out, and lose them. A volume that is attached is not rolled back.")]
    Rollback {
        /// The volume, FILE.toml#POOL@VOLUME
        volume: VolumeSpec,
        /// The snapshot
        to: String,
        #[command(flatten)]
        #[allow(missing_docs)]
        common: VolumeCommon,
    },
    /// Delete a volume or snapshot of a pool
    #[command(after_help = "\
Examples:
  thinwire volume delete pool.toml#pool@before-update
  thinwire volume delete wide.toml#wide@before-update

What nobody else has is given back to the pool, step by step: interrupted, that goes on when the pool is used. A volume that is attached
is not deleted.")]
    Delete {
        /// The volume or snapshot, FILE.toml#POOL@VOLUME; or FILE.toml#NAME@SNAPSHOT of one over several pools
        volume: VolumeSpec,
        #[command(flatten)]
        #[allow(missing_docs)]
        common: VolumeCommon,
    },
    /// Make a volume of a pool larger, or one with labels, or a pool, as large as what it is made of
    #[command(after_help = "\
Examples:
  thinwire volume grow pool.toml#pool@home 200G
  truncate -s 20G /srv/one.img /srv/two.img; thinwire volume grow mirror.toml#home
  truncate -s 500G /srv/data.img; thinwire volume grow pool.toml#pool

While a volume of a pool is attached, its face grows, too.

A volume with labels is as large as those say, also where its parts have become larger: it grows by that when it is told to, and first all that it is made of,
durably. It stays the same volume to whatever stands on it. Interrupted, it has grown or it has not. A linear one grows by what its last part has grown by, a
stripe as far as all of its parts have, a mirror as far as all of its legs have, which must be there and in sync; for it, and for one of kind integrity, what comes is zeroed first. A slice
that was made with a size does not grow. A pool has what both of its parts have grown by, each by itself, and its volumes keep their sizes; it grows only when it is named itself.")]
    Grow {
        /// The volume: FILE.toml#POOL@VOLUME, FILE.toml#POOL, or FILE.toml#NAME of one with labels
        volume: VolumeSpec,
        /// Its size from then on, of a volume of a pool
        #[arg(value_parser = parse_size)]
        size: Option<u64>,
        /// Take parts away from the writer that holds them or is on record, fencing that one for good
        #[arg(long)]
        take_over: bool,
        #[command(flatten)]
        #[allow(missing_docs)]
        common: VolumeCommon,
    },
    /// Take parts that hold another content than when they got their labels for what their labels say
    #[command(after_help = "\
Examples:
  thinwire volume adopt pool.toml#wide
  thinwire volume adopt --key alice --json pool.toml#secret

A label says which volume got it: a disk by its serial number, a file by an attribute, an export by its identity, which changes with its content. A part that
is not that any more is refused, since it may be something older that was put in its place. Of a part that is what it was all the same (a disk that is known by another name, or has
been made larger and has no serial number; a file that was restored without its attributes; a volume of a pool that was rolled back) this puts on record what it
is now, and says so. What else is wrong with parts, as that one is an old copy, or that two are one, is refused as always. Nobody may be using the volume.

What stands on a mirror of which is decided that it goes on without a leg (`volume resync --degraded` or `--from`, named by the volume on top) is adopted with that.")]
    Adopt {
        /// The volume, FILE.toml#NAME
        volume: VolumeSpec,
        /// Take parts away from the writer that holds them or is on record, fencing that one for good
        #[arg(long)]
        take_over: bool,
        #[command(flatten)]
        #[allow(missing_docs)]
        common: VolumeCommon,
    },
    /// Have another key open an encrypted volume, and the one before no more
    #[command(after_help = "\
Examples:
  thinwire key new vault --add; thinwire volume rekey vault.toml#vault
  thinwire volume rekey vault.toml#vault --new-key /etc/thinwire/keys/vault2
  thinwire volume rekey vault.toml#vault --to vault2 --json

No block is written anew: the label holds the key of the blocks, wrapped by the key of a file of yours, and is written with that wrapped by another. The old key is
checked before anything is written, and opens nothing any more when this ends; but a copy of the disk from before, or of its first MiB, it opens for ever, and
who has read the key of the blocks by way of it has that for good: copy the data to a new volume if that is to be feared. Snapshots from before are such copies, where it stands on
volumes of pools: keep the old key as long as you keep them, since it opens them, and the volume once that is rolled back to one. Without --to and --new-key the newest key of the file
that is described is taken. Interrupted, the one or the other key opens it: keep both, and do it again.

An attachment or a target of this machine that has it open (with the same --run-dir) has its labels written while it is used. That goes by the key file that it was told when it
began: until it ends, a leg of a mirror that comes back to it needs the new key in that one, as `thinwire key new --add` puts it there.")]
    Rekey {
        /// The volume, FILE.toml#NAME, of kind crypt
        volume: VolumeSpec,
        /// The key from then on, a path or a name in /etc/thinwire/keys: the newest of that file
        #[arg(long, value_name = "KEY", conflicts_with = "new_key")]
        to: Option<String>,
        /// Make that key, in a file that is not there yet, of mode 0600
        #[arg(long, value_name = "KEY")]
        new_key: Option<String>,
        /// The key that opens it now, if the file describes another
        #[arg(long, value_name = "KEY")]
        old_key: Option<String>,
        /// Take the part away from the writer that holds it or is on record, fencing that one for good
        #[arg(long)]
        take_over: bool,
        #[command(flatten)]
        #[allow(missing_docs)]
        common: VolumeCommon,
    },
    /// Show how full a pool is, and its volumes; of a volume over several pools its snapshots; of any other what `volume status` does
    #[command(after_help = "\
Examples:
  thinwire volume show pool.toml#pool
  thinwire volume show --space --json pool.toml#pool
  thinwire volume show wide.toml#wide

A volume that is neither a pool nor over some is shown if an attachment or a target of this machine has it open (with the same --run-dir). Changes nothing.")]
    Show {
        /// The pool, FILE.toml#POOL; or FILE.toml#NAME of any other volume
        pool: VolumeSpec,
        /// How much of each volume nobody else has, too: what comes back if it is deleted; and how much of it others have as well
        #[arg(long)]
        space: bool,
        #[command(flatten)]
        #[allow(missing_docs)]
        common: VolumeCommon,
    },
    /// Change what of a volume is taken in a second, while it is in use
    #[command(after_help = "\
Examples:
  thinwire volume limits pool.toml#slow iops=2000 write_bandwidth=64M
  thinwire volume limits pool.toml#slow iops=none
  thinwire volume limits pool.toml#slow

The volume is of kind qos, and an attachment or a target of this machine has it open (with the same --run-dir), alone or as a part of another one. What waits goes by the new limits at once: nothing is
lost or overtaken, what is owed stays owed, and nothing is saved up. Volumes that share their limits (`share`) have the new ones together. That holds until the volume is opened again: to keep
it, describe it. Without a limit, shows those that hold.")]
    Limits {
        /// The volume, FILE.toml#NAME
        volume: VolumeSpec,
        /// What is to hold, as it is described: iops, read_iops, write_iops, bandwidth, read_bandwidth, write_bandwidth, burst_ms; none is no limit
        #[arg(value_name = "NAME=VALUE", value_parser = parse_limit)]
        limits: Vec<NewLimit>,
        #[command(flatten)]
        #[allow(missing_docs)]
        common: VolumeCommon,
    },
    /// Put another disk in the place of a leg of a mirror
    #[command(after_help = "\
Examples:
  thinwire volume replace --key alice pool.toml#home 1 /srv/new.img
  thinwire volume replace --key alice pool.toml#home 1

An attachment or a target of this machine that has the mirror open (with the same --run-dir) goes on with it: the new part is added as by `thinwire volume add`, and gets all
data while the old leg stays one as far as it is there; only when the new one is in sync the old one is removed. So it takes a number of its own, of which there are 8.
`thinwire volume remove` of the new one takes that back.

Where nobody has it open, it goes on record that the leg is given up, whether it is there or not; the new part gets a label, and all data, in its place. A leg that may have the
newest data is given up with --degraded only.

Without a new part, what the leg is described as is another disk by now. Interrupted, or if whoever has the mirror open ends before that, the same again goes on.")]
    Replace {
        /// The mirror, FILE.toml#NAME
        volume: VolumeSpec,
        /// Which leg, counted from 0 in the order of their labels: `thinwire volume check` shows it, and `volume status` while it is in use
        leg: usize,
        /// What comes in its place
        new: Option<VolumeSpec>,
        /// Give up a leg that may have newer data than those that are there
        #[arg(long)]
        degraded: bool,
        /// Overwrite what is on the new part
        #[arg(long)]
        force: bool,
        /// Take parts away from the writer that holds them or is on record, fencing that one for good
        #[arg(long)]
        take_over: bool,
        #[command(flatten)]
        #[allow(missing_docs)]
        common: VolumeCommon,
    },
    /// Add a leg to a mirror
    #[command(after_help = "\
Examples:
  thinwire volume add --key alice pool.toml#home /srv/three.img
  thinwire volume add pool.toml#home 'tw://node3/disk?link=eth1'

An attachment or a target of this machine that has the mirror open (with the same --run-dir) goes on with it: it puts one more leg on record, which has nothing yet, and
attaches or opens the new part, which gets a label before; so it needs the links and keys for that. Into a mirror in use comes a file, a device or an export, or one of these below
modules of one part each. The part gets all data, and counts when it has all. It is named in the description from then on, as is said. Interrupted, the same again goes on
from there; once the part has its label, the copy goes on when the mirror is opened. If whoever has the mirror open ends before that, do the same again while nobody has it.
Legs that were away meanwhile fit in when they are back.")]
    Add {
        /// The mirror, FILE.toml#NAME
        volume: VolumeSpec,
        /// What becomes a leg
        new: VolumeSpec,
        /// Overwrite what is on it
        #[arg(long)]
        force: bool,
        /// Take parts away from the writer that holds them or is on record, fencing that one for good
        #[arg(long)]
        take_over: bool,
        #[command(flatten)]
        #[allow(missing_docs)]
        common: VolumeCommon,
    },
    /// Remove a leg from a mirror of three or more
    #[command(after_help = "\
Examples:
  thinwire volume remove pool.toml#home 1
  thinwire volume remove --key alice pool.toml#home /srv/three.img

An attachment or a target of this machine that has the mirror open (with the same --run-dir) goes on without it. It goes on record that the leg is none any more, whether it is there or not; nothing is written to it, and what it has counts as an old
copy from then on. The others keep their numbers, and the description names it no more. Of one in use a disk of this machine is let go of when the mirror is. A leg that may have the newest data is removed with --degraded only, and the
last one that has all data not at all.")]
    Remove {
        /// The mirror, FILE.toml#NAME
        volume: VolumeSpec,
        /// Which leg: its number, counted from 0 in the order of their labels, which `thinwire volume check` shows; or the part, as it is described
        #[arg(value_name = "LEG")]
        leg: String,
        /// Give up a leg that may have newer data than those that are there
        #[arg(long)]
        degraded: bool,
        /// Take parts away from the writer that holds them or is on record, fencing that one for good
        #[arg(long)]
        take_over: bool,
        #[command(flatten)]
        #[allow(missing_docs)]
        common: VolumeCommon,
    },
    /// Look which volumes some parts make, and those in turn, and print how to describe them
    #[command(after_help = "\
Examples:
  thinwire volume assemble /srv > pool.toml
  thinwire volume assemble /dev/disk/by-id /srv/*.img --volume-key vault > pool.toml
  thinwire volume assemble --key alice --json 'tw://node1/disk0?link=eth1' 'tw://node2/disk1?link=eth1'

Changes nothing. Prints a [[volume]] for each volume that all parts were found of, in the order that their labels say,
whatever the parts are called now; on stderr what is in the way of the others. Fails if there was any, or nothing.
For a leg of a mirror that was not found, and is on record as having less than the others, something stands that is
nowhere (/not-found/NAME-leg-1), and stderr says so: put in where it is.

Of a folder all files and block devices in it are looked at, for 10 s at most, and those without a label of ours are passed
over. What was found is opened to be read, and is a part itself if it has a label: so all of a tree is printed, the lowest
first, and each volume is called by its name there. Of a pool these are its volumes, but for snapshots and clones. What
cannot be opened is described all the same, and stderr says why nobody looked at what stands on it: it is in use by somebody
else, or encrypted, and no --volume-key was its key.")]
    Assemble {
        /// Where parts may be: volumes, and folders of files and block devices
        #[arg(required = true, value_name = "VOLUME")]
        parts: Vec<VolumeSpec>,
        /// Key of encrypted volumes, to look at what stands on them: the name of a file in /etc/thinwire/keys, or a path with a slash in it; several
        /// are tried in turn
        #[arg(long = "volume-key", value_name = "KEY")]
        volume_keys: Vec<String>,
        #[command(flatten)]
        #[allow(missing_docs)]
        common: VolumeCommon,
    },
}

/// What is said of copies and scrubs of a volume that is in use.
#[derive(Args, Clone, Copy, Debug)]
pub struct VolumeLive {
    /// Wait for the end, and say how far it is
    #[arg(long)]
    pub wait: bool,
    /// While somebody uses the volume, take so much of what those get, in percent of bytes: 50 unless it is said
    #[arg(long, value_name = "PERCENT", value_parser = percent())]
    pub pace: Option<u8>,
}

/// Of what users get.
fn percent() -> RangedI64ValueParser<u8> {
    clap::value_parser!(u8).range(1..=i64::from(WORK_PERCENT_MAX))
}

/// What is said of all of them.
#[derive(Args, Clone, Debug)]
pub struct VolumeCommon {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub security: SecurityArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub run_dir: RunDirArg,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}
