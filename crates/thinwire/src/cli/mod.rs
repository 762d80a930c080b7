//! The command line: every command, flag and example. Help, completions and man pages come from
//! here.

mod bench;
mod keys;
mod nbd;
mod privileges;
mod reload;
mod volume;
mod wire;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use thinwire_frontend::block::BlockBackend;
use thinwire_link::LinkSpec;
use thinwire_modules::{MODULES, Module, ModuleOption};

use crate::carries::Carries;
use crate::error::ParseError;
use crate::export::ExportSpec;
use crate::face::{FaceSpec, NbdAddress};
use crate::offer::OfferSpec;
use crate::size::{check_name, parse_duration};
use crate::uri::VolumeSpec;
pub use bench::{BenchArgs, BenchPattern, MIX_DEFAULT};
pub use keys::{KeyAction, KeyArgs, SecurityArgs};
pub use nbd::{NbdDoorArgs, Tls};
pub use privileges::{CaretakerArgs, PrivilegeArgs};
pub use reload::ReloadArgs;
pub use volume::{VolumeAction, VolumeArgs, VolumeCommon, VolumeLive};
pub use wire::{CompletionPath, OnOff, Receive, Submission, WireArgs};

const ABOUT: &str = "A disk across the switch, straight over Ethernet frames, in user space";

const STORES_HELP: &str = "\
Volumes:
  PATH, file:PATH                     a file or a block device
  FILE.toml#NAME                      a [[volume]] of that file (see `thinwire target --help`); a
                                      file whose own name looks so is file:PATH
  uuid:PART                           the file or device with that part of a volume with labels, whatever
                                      it is called (see `places` in `thinwire target --help`)
  memory:SIZE                         memory, lost with the process
  null:SIZE                           reads zeroes, forgets writes; with ,switch behind it another
                                      thread completes (bench only)
  tw://NODE/EXPORT?link=LINK          an export of a target; NODE is its name or its Ethernet
                                      address with dashes (02-00-00-00-00-02)
  tw+udp://HOST[:PORT]/EXPORT         the same over UDP (port 34997)
  ebd://MAC/MAJOR.MINOR?link=IFACE    a device of an EBD server; then &form=ideal, &block=BYTES and
                                      &ethertype=0xNNNN. EBD has no keys: say --insecure
  aoe://SHELF.SLOT?link=IFACE         a device of an AoE server, likewise
  Parameters of tw: link=LINK (several: all are used at once), key=KEY (instead of --key), mtu=BYTES,
  members=N (sessions side by side, one for each of the target's threads that serve the export; needs
  `spread` there), integrity=on|off (data is checked from here to the target's store and back, by a sum
  for each 4 KiB; off)

Volumes of volumes, which may be of any kind (a comma in the name of one of them is written twice);
options stand behind the list, as in slice:[/srv/a.img]?offset=1M&size=4G:
";

const LINKS_HELP: &str = "
Links:
  packet:IFACE, xdp:IFACE             an Ethernet interface; then ,vlan=ID and ,ethertype=0xNNNN
  IFACE                               the faster of the two there; `thinwire link IFACE` tells which
  udp:ADDRESS[:PORT]                  a UDP socket bound to a local address

Exit codes: 0 done, 1 failed, 2 bad usage (malformed flag, URI or configuration)";

/// What stands for the value of an option.
fn value_word(option: &ModuleOption) -> &'static str {
    if option.unit.is_size() { "SIZE" } else { "NUMBER" }
}

/// What `--help` says of names. Each module has a line of its own.
fn volumes_help() -> String {
    let line = |module: &Module| {
        let list = if *module.children.end() == 1 { "VOLUME" } else { "VOLUME,VOLUME,..." };
        let name = format!("{}:[{list}]", module.name);
        let options = module.options.iter();
        let options = options.map(|option| {
            let name = format!("{}={}", option.name, value_word(option));
            format!("    {name:<34}{}\n", option.help)
        });
        format!("  {name:<36}{}\n{}", module.help, options.collect::<String>())
    };
    let modules: String = MODULES.iter().map(line).collect();
    format!("{STORES_HELP}{modules}{LINKS_HELP}")
}

/// The whole command line.
#[derive(Debug, Parser)]
#[command(name = "thinwire", version, about = ABOUT, after_help = volumes_help())]
pub struct Cli {
    /// Say more on stderr; twice for even more (RUST_LOG overrides)
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    pub verbose: u8,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve volumes to initiators; stays in the foreground
    Target(TargetArgs),
    /// List the targets that answer on a link, and what they export
    Discover(DiscoverArgs),
    /// Make a volume a local disk: an NBD socket, a file, or a block device node
    Attach(AttachArgs),
    /// Take an attachment away
    Detach(DetachArgs),
    /// Show this machine's attachments and targets
    Status(StatusArgs),
    /// Have a target read its keys and rights again
    Reload(ReloadArgs),
    /// Make keys, and tell their ids
    Key(KeyArgs),
    /// Say which link an interface name stands for, and why
    Link(LinkArgs),
    /// Measure a volume, remote or local
    Bench(BenchArgs),
    /// Copy one volume to another
    Copy(CopyArgs),
    /// Make volumes of volumes whose parts know what they belong to
    Volume(VolumeArgs),
    /// Takes away what a target leaves in its run directory that may not do that itself; a target starts it
    #[command(hide = true)]
    Caretaker(CaretakerArgs),
    /// Print a completion script for a shell
    #[command(
        after_help = "Example:\n  thinwire completions bash > /etc/bash_completion.d/thinwire"
    )]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print a man page, or write all of them into a folder
    #[command(after_help = "\
Examples:
  thinwire man | man -l -
  thinwire man mirror | man -l -
  thinwire man /usr/local/share/man

Pages of commands are in section 8, `thinwire-volumes` in section 5 says how volumes are described, and each kind of volume has a page
in section 7. A folder gets man5, man7 and man8.")]
    Man {
        /// Which page: a command (`attach`, `volume-create`), `volumes`, a kind of volume (`mirror`); or the folder, which is made if its
        /// name has a `/` [default: the page of all commands]
        #[arg(value_name = "PAGE|FOLDER")]
        what: Option<String>,
    },
}

/// Where attachments and targets keep their state.
#[derive(Args, Clone, Debug)]
pub struct RunDirArg {
    /// Folder of attachments' and targets' state and control sockets, and in `ids/` of the locks by which
    /// this machine is known to targets (without root, in the user's own runtime folder). Nobody else may
    /// be able to write in it
    #[arg(long, value_name = "FOLDER", default_value_os_t = crate::rundir::default_path())]
    pub run_dir: PathBuf,
}

/// `thinwire target`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  thinwire target --key alice --name node1 --link eth1 --export disk0=/srv/disk0.img
  thinwire target --key alice --key bob --link eth1 --export disk0=/srv/disk0.img,keys=alice,read-keys=bob
  thinwire target --insecure --link eth1 --link udp:10.0.0.1 --export scratch=memory:4G,block=4096
  thinwire target --config /etc/thinwire/target.toml
  thinwire target --config /etc/thinwire/target.toml --check

Configuration (conf.d/*.toml beside the file adds to it; relative paths begin at the file they are in):
  node = \"node1\"
  key = [\"alice\", \"backup\"]
  link = [\"eth1\"]
  [[export]]
  name = \"disk0\"
  volume = \"/srv/disk0.img\"
  read_only = false
  keys = [\"alice\"]
  read_keys = [\"backup\"]
  block = 512
  buffered = false
  cache = \"256M\"
  spread = false
  weight = 1
  [[volume]]
  name = \"big\"
  kind = \"linear\"
  children = [\"/srv/disk1.img\", \"tw://node2/disk1?link=eth1&key=alice\"]
  [[export]]
  name = \"big\"
  volume = \"big\"

[[volume]] is a volume made of others (`thinwire --help` shows the kinds, and what options each has: they are keys
here, as in chunk = \"128K\"). Its children are volumes as on the command line, or others that are described so;
each can be a part of one only once. Slices of one file or device may be several, in one of them and in several exports, where
they lie apart. Other commands name it target.toml#big.

places = [\"/srv\", \"/dev/disk/by-id\"] are the files, devices and folders among which uuid:PART finds a part by
what its label says (`thinwire volume dump` shows it); all block devices but ublk, nbd and loop if there are none. They are read when the
file is.

Keys that few need: insecure = true, authenticate_only = true, announce = true, limits = { memory = \"4G\" },
shards = 2, batch = \"backlog\", data_batch = true,
receive = \"single\", completion = \"inline\", spin = true (or false, or \"always\"; see the flags),
user = \"thinwire\", confine = true

Prints `ready NODE` on stdout when it serves.

What stays behind: which volume a file is and who may write it, in its extended attributes
user.thinwire.id and user.thinwire.writer; for block devices, where there are no such attributes, and
for exports that are made of other volumes without labels or are another target's, in --state-dir (/var/lib/thinwire/
by default); of those with labels it is in these. In --state-dir is what clients of AoE have set of devices, too. Who this target is to other targets is locked in ids/ of --run-dir. The claim in nodes/
goes with the target, and so do target-NODE.json, .lock and .sock, by which `thinwire status` finds it;
the files of one that was killed go when the next one starts, the latter also with `thinwire status`.

SIGHUP or `thinwire reload` has it read keys, rights, limits and exports again. SIGTERM or SIGINT ends it in order: a gateway waits for what has to reach the targets behind it, for at
most 13 s, or longer with several exports, and says for what; a second one ends it at once.

A gateway whose place another one has taken, as after it stood still, says nothing more of that export, so that initiators
find the other one, and names it under `fenced` of `thinwire status --json`. When that is so of all exports it exits with 1:
started again (Restart=on-failure of systemd) it is refused what they are made of until the other one has ended, and is
ready to take its place.")]
pub struct TargetArgs {
    /// Node name that initiators look for [default: the host's name]
    #[arg(long, value_name = "NODE")]
    pub name: Option<String>,
    /// Where to listen: IFACE, packet:IFACE, xdp:IFACE or udp:ADDRESS[:PORT]; repeatable
    #[arg(long, value_name = "LINK")]
    pub link: Vec<LinkSpec>,
    /// NAME=VOLUME[,ro][,keys=NAME+NAME][,read-keys=NAME+NAME][,block=512|4096][,cache=SIZE][,buffered][,spread]
    /// [,weight=N][,writeback]; repeatable. keys: who may write it, read-keys: who may only read it; cache: memory
    /// of the target for what is read; buffered: through the page cache of this machine's kernel, not directly
    /// to the file or device; spread: all --shards serve a file, device or memory:SIZE together, each initiator by
    /// one of them; weight: each of its sessions may have so many times what those of other exports have, while
    /// all of a shard want something
    #[arg(long, value_name = "EXPORT")]
    pub export: Vec<ExportSpec>,
    /// ebd:IFACE/MAJOR.MINOR=EXPORT[,form=ideal|implemented][,ethertype=0xNNNN][,initiator=MAC],insecure: offer an export
    /// to clients of the Ethernet Block Device, too, which knows no keys;
    /// aoe:IFACE/SHELF.SLOT=EXPORT[,durable|cached][,initiator=MAC],insecure: to clients of ATA over Ethernet, as Linux and
    /// iPXE have them, with durable writes unless it says cached; repeatable
    #[arg(long, value_name = "OFFER")]
    pub offer: Vec<OfferSpec>,
    /// Read node, links and exports from a TOML file and from conf.d/*.toml beside it
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Send completions from the thread that does everything else, or from a thread of its own, to
    /// measure what that costs [default: inline]
    #[arg(long, value_name = "inline|workqueue")]
    pub completion: Option<CompletionPath>,
    /// Check the configuration and the volumes, say what is wrong, serve nothing
    #[arg(long)]
    pub check: bool,
    /// Keys of those who may come, each a path or a name in /etc/thinwire/keys; repeatable. Every export takes
    /// all of them unless it says otherwise
    #[arg(long, value_name = "KEY")]
    pub key: Vec<String>,
    /// Authenticate frames and do not encrypt them, for networks on which everybody may read. Initiators must
    /// say so, too
    #[arg(long)]
    pub authenticate_only: bool,
    /// With keys, tell the names of exports also to those without one
    #[arg(long)]
    pub announce: bool,
    /// A limit, NAME=VALUE, of what initiators may have; repeatable. `docs/security.md` has their names, and
    /// --check prints what memory they allow
    #[arg(long, value_name = "LIMIT", value_parser = crate::limits::parse)]
    pub limit: Vec<(String, String)>,
    /// Serve without keys, although frames are then neither authenticated nor encrypted
    #[arg(long, conflicts_with_all = ["key", "authenticate_only", "announce"])]
    pub insecure: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub wire: WireArgs,
    /// Folder where `thinwire status` finds the target, and where its node name is claimed on each Ethernet
    /// interface, in `nodes/`, so that no other target of this machine takes it
    #[arg(long, value_name = "FOLDER", default_value_os_t = crate::rundir::default_path())]
    pub run_dir: PathBuf,
    /// Folder for the records of who may write exports that have no place for one beside their content:
    /// block devices, volumes that are made of others or are another target's. Where nothing can be written
    /// these have readers only, and --check says so. What clients of AoE have set of a device is there, too
    #[arg(long, value_name = "FOLDER", default_value = "/var/lib/thinwire")]
    pub state_dir: PathBuf,
    /// So many seconds of silence cost a writer its export, 6 at least: who lives is heard every other second
    #[arg(long, value_name = "SECONDS", hide = true, default_value = "30", value_parser = clap::value_parser!(u32).range(6..=3600))]
    pub lease: u32,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub privileges: PrivilegeArgs,
    /// Print JSON instead of text
    #[arg(long)]
    pub json: bool,
}

/// `thinwire discover`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  thinwire discover --link eth1
  thinwire discover --link eth1 --key alice
  thinwire discover --link eth1 node1 --json

Exits with 1 if no target answers.")]
pub struct DiscoverArgs {
    /// Ask for this node only
    #[arg(value_name = "NODE", value_parser = node_name)]
    pub name: Option<String>,
    /// Where to ask: IFACE, packet:IFACE, xdp:IFACE or udp:ADDRESS[:PORT]; repeatable
    #[arg(long, value_name = "LINK", required = true)]
    pub link: Vec<LinkSpec>,
    /// How long to wait for answers, in seconds
    #[arg(long, value_name = "TIME", default_value = "1", value_parser = parse_duration)]
    pub timeout: Duration,
    /// Ask with this key, a path or a name in /etc/thinwire/keys: targets with keys tell only those who have
    /// one what they export
    #[arg(long, value_name = "KEY")]
    pub key: Option<String>,
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
}

/// `thinwire attach`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  thinwire attach --key alice 'tw://node1/disk0?link=eth1' --block
  thinwire attach --key alice 'tw://node1/disk0?link=eth1&link=eth2' --nbd unix:/run/disk0.sock
  thinwire attach --insecure tw+udp://10.0.0.2/disk0 --file /mnt/disk0 --read-only
  thinwire attach /srv/disk0.img --nbd unix:/run/disk0.sock --take-over
  thinwire attach --key alice /etc/thinwire/target.toml#big --nbd unix:/run/big.sock

Prints the socket, file or device node alone on stdout when it is usable, and leaves a process
behind; `thinwire status` shows it, `thinwire detach NAME` ends it.

While it lives the run directory holds NAME.json, NAME.lock, NAME.sock, NAME.log, with --block
NAME.disk, and a lock in ids/. All go with it, but for NAME.log if it did not end in order. What one
that was killed leaves, the socket or file among it, goes with the next attach of that name, detach or
status. A file attached locally keeps the extended attributes user.thinwire.id and
user.thinwire.writer.")]
#[group(id = "face", required = true, multiple = false, args = ["nbd", "file", "block"])]
pub struct AttachArgs {
    /// What to attach, usually a tw:// or tw+udp:// URI
    pub volume: VolumeSpec,
    /// Serve NBD on unix:PATH, or on tcp:PORT of this machine's loopback, which all its users reach; tcp:HOST:PORT
    /// for another address
    #[arg(long, value_name = "ADDRESS")]
    pub nbd: Option<NbdAddress>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub door: NbdDoorArgs,
    /// Show the volume as a file, through FUSE
    #[arg(long, value_name = "PATH")]
    pub file: Option<PathBuf>,
    /// Make a block device node: by ublk where the kernel has it (6.5 and later), else a loop device over FUSE;
    /// `--block=ublk` or `--block=loop` has it one way, `--block=best` is as `--block`
    #[arg(long, value_name = "ublk|loop|best", num_args = 0..=1, require_equals = true, default_missing_value = "best")]
    pub block: Option<BlockWay>,
    /// The machine depends on this disk: `swap` on it, or its `root` file system. Demands what that takes (locked
    /// memory, real-time priority, an OOM score of -1000, PR_SET_IO_FLUSHER, and vm.min_free_kbytes of at least
    /// 16384), and fails where one is refused; never spins. The process
    /// of a root has a name that begins with @, so that it is left alone at shutdown
    #[arg(long, value_name = "swap|root")]
    pub carries: Option<Carries>,
    /// What to call the attachment, also as an NBD export, where the default answers, too [default: the
    /// export's name; of FILE.toml#NAME that one; of a list the first one's, with `-linear` behind it]
    #[arg(long = "as", value_name = "NAME", value_parser = attachment_name)]
    pub name: Option<String>,
    /// Stay in the foreground, log to stderr
    #[arg(long)]
    pub foreground: bool,
    /// While the target is away: `wait`, or `fail-after=SECONDS`
    #[arg(long, value_name = "POLICY", default_value = "wait")]
    pub when_away: WhenAwayArg,
    /// Keep trying if the target does not answer within 10 s
    #[arg(long)]
    pub wait: bool,
    /// Attach without the right to write; many may
    #[arg(long)]
    pub read_only: bool,
    /// Send requests from the thread that does everything else, or from a thread of its own
    #[arg(long, value_name = "inline|queue", default_value = "inline", hide_default_value = true)]
    pub submission: Submission,
    /// Take the volume away from the writer that holds it or is on record, fencing that one for good
    #[arg(long, conflicts_with = "read_only")]
    pub take_over: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub security: SecurityArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub wire: WireArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub run_dir: RunDirArg,
    /// Print JSON instead of the bare path
    #[arg(long)]
    pub json: bool,
}

impl AttachArgs {
    /// The face asked for; exactly one by construction of the arguments.
    pub fn face(&self) -> FaceSpec {
        match (&self.nbd, &self.file) {
            (Some(address), _) => FaceSpec::Nbd(address.clone()),
            (None, Some(path)) => FaceSpec::File(path.clone()),
            (None, None) => FaceSpec::Block(self.block.and_then(|way| way.0)),
        }
    }
}

/// How a block device node is made: said, or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockWay(pub Option<BlockBackend>);

impl std::str::FromStr for BlockWay {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        match text {
            "best" => Ok(BlockWay(None)),
            "ublk" => Ok(BlockWay(Some(BlockBackend::Ublk))),
            "loop" => Ok(BlockWay(Some(BlockBackend::Loop))),
            _ => Err(ParseError::new(text, "it is `ublk`, `loop` or `best`")),
        }
    }
}

/// What requests get while the target is away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenAwayArg {
    /// They wait, as on a slow disk.
    #[default]
    Wait,
    /// They fail once the target has been away for this long.
    FailAfter(Duration),
}

impl std::str::FromStr for WhenAwayArg {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        match text.split_once('=') {
            None if text == "wait" => Ok(WhenAwayArg::Wait),
            Some(("fail-after", time)) => Ok(WhenAwayArg::FailAfter(parse_duration(time)?)),
            _ => Err(ParseError::new(text, "give `wait` or `fail-after=SECONDS`")),
        }
    }
}

impl std::fmt::Display for WhenAwayArg {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            WhenAwayArg::Wait => f.write_str("wait"),
            WhenAwayArg::FailAfter(time) => write!(f, "fail-after={}", time.as_secs_f64()),
        }
    }
}

/// `thinwire detach`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  thinwire detach disk0
  thinwire detach disk0 --force

Refuses while the disk is in use. --force fails what is outstanding and is done within 2 s, even if
the target or the attachment itself no longer answers. What did not end in order leaves NAME.log in
the run directory.")]
pub struct DetachArgs {
    /// The attachment's name, as `thinwire status` shows it
    #[arg(value_parser = attachment_name)]
    pub name: String,
    /// Detach although the disk is in use; outstanding I/O fails
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub run_dir: RunDirArg,
    /// Print JSON instead of text
    #[arg(long)]
    pub json: bool,
}

/// `thinwire status`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  thinwire status
  thinwire status disk0 --json
  thinwire status target-node1

Of a target it shows links, exports, who writes them, what they stand on at other targets, sessions and
what was dropped. docs/status.md says what each field of the JSON means.
On each path it shows the largest frame that passes, and if that is less than both ends' links carry
(`frame_bytes_limit` in JSON), in how many seconds the full size is tried again (`full_size_retry_s`):
10 s after large frames stopped passing, else every 60 s.
Of an attachment or target of another user it tells only that its process lives (state `alive`).
Cleans up what attachments and targets left whose process was killed, but for NAME.log in the run
directory.")]
pub struct StatusArgs {
    /// Only this attachment, or the target of this node (NODE or target-NODE); exits with 1 if there is
    /// none, or if NAME is both
    #[arg(value_parser = attachment_name)]
    pub name: Option<String>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub run_dir: RunDirArg,
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
}

/// `thinwire link`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  thinwire link eth1
  thinwire link eth1 eth2 --json
  thinwire link eth1 --try

A plain name stands for xdp where the driver hands frames over without a copy, else for packet.
Without root xdp needs CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF and CAP_IPC_LOCK (or LimitMEMLOCK= in a
unit: 12 MiB, and 2 MiB more for each queue beyond the first).
Exits with 1 if an interface carries neither.")]
pub struct LinkArgs {
    /// The interface; several may be given
    #[arg(value_name = "IFACE", required = true)]
    pub interface: Vec<String>,
    /// Open an xdp link for a moment to see how it works (needs root; on some adapters traffic
    /// pauses)
    #[arg(long = "try")]
    pub try_it: bool,
    /// Print JSON instead of text
    #[arg(long)]
    pub json: bool,
}

/// `thinwire copy`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  thinwire copy --key alice disk.img 'tw://node1/disk0?link=eth1'
  thinwire copy --key alice tw+udp://10.0.0.2/disk0 backup.img --verify
  thinwire copy backup.img /srv/disk0.img --verify --take-over

Holes and zeroes stay sparse. A destination file that does not exist is made with the source's size and
keeps the extended attributes user.thinwire.id and user.thinwire.writer. It is removed again if the copy
fails or is interrupted; only a copy that was killed leaves it. One that existed stays as far as it was
written. A copy that was killed, or that failed or was interrupted on a file or device that existed,
stays on record as its writer: the same command begins it anew, another machine needs --take-over.
A destination that is smaller than the source is refused, and one that has another writer on record,
which may come back with unflushed writes.")]
pub struct CopyArgs {
    /// The volume to read
    #[arg(value_name = "SRC")]
    pub source: VolumeSpec,
    /// The volume to overwrite
    #[arg(value_name = "DST")]
    pub destination: VolumeSpec,
    /// Read both again afterwards and compare
    #[arg(long)]
    pub verify: bool,
    /// Take the destination away from the writer that holds it or is on record, fencing that one for
    /// good
    #[arg(long)]
    pub take_over: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub security: SecurityArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub run_dir: RunDirArg,
    /// Print one JSON object on stdout when done
    #[arg(long)]
    pub json: bool,
}

fn attachment_name(text: &str) -> Result<String, ParseError> {
    check_name("attachment name", text)?;
    Ok(text.to_owned())
}

fn node_name(text: &str) -> Result<String, ParseError> {
    check_name("node name", text)?;
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests;
