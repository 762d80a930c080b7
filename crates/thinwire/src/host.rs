//! Where a command opens volumes: one shard, its links, and what is told apart on them. All volumes of
//! a host are driven by one loop, and attachments over the same link share it, and its flush.

use std::cell::{Ref, RefCell, RefMut};
use std::io;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use thinwire_buffer::Pool;
use thinwire_initiator::TargetName;
use thinwire_link::LinkSpec;
use thinwire_runtime::shard::{Shard, SharedShard};
use thinwire_runtime::steering::Lanes;

use crate::budgets::OpenBudgets;
use crate::cuts::OpenCuts;
use crate::error::{Failure, Outcome};
use crate::growth::OpenWholes;
use crate::known_keys::KnownKeys;
use crate::links::{open_foreign_link, open_initiator_links};
use crate::open::{VolumeOptions, Wait};
use crate::opened::Commons;
use crate::uri::NodeAddress;

/// Memory that a host's pool keeps for reuse, in bytes: retained sets, what is outstanding, and
/// received frames.
const POOL_FREE_BYTES_MAX: usize = 128 << 20;
/// The caller's descriptors have no numbers of their own: any ends the sleep.
const WATCHED: u64 = 0;

/// See the [module](self). A handle: all of one host mean the same shard. Belongs to one thread.
#[derive(Clone)]
pub struct Host {
    shard: SharedShard,
    links: Rc<RefCell<HostLinks>>,
    commons: Rc<Commons>,
    cuts: Rc<OpenCuts>,
    wholes: Rc<OpenWholes>,
    budgets: Rc<OpenBudgets>,
    known_keys: Rc<KnownKeys>,
}

struct HostLinks {
    lanes: Lanes,
    /// The links that attachments may use, and their numbers.
    open: Vec<(LinkSpec, usize)>,
    /// Where targets were found that an address says of, and these links: once for each that was ever attached to.
    found: Vec<((NodeAddress, Vec<LinkSpec>), Whereabouts)>,
}

/// Where a target is, and over which links.
pub type Whereabouts = (TargetName, Vec<LinkSpec>);

impl Host {
    /// Keys of blocks of what was opened here.
    pub fn known_keys(&self) -> Rc<KnownKeys> {
        self.known_keys.clone()
    }

    /// A shard on which nothing is open.
    pub fn new() -> Outcome<Self> {
        let shard = Shard::new(Vec::new(), Pool::new(POOL_FREE_BYTES_MAX));
        let shard = shard.map_err(|e| Failure::failed(format!("cannot use epoll: {e}")))?;
        Ok(Host::on(Rc::new(RefCell::new(shard)), Lanes::draw(), Vec::new()))
    }

    /// A shard that has links already; those in `open`, with their numbers, let frames of `lanes` in.
    pub fn on(shard: SharedShard, lanes: Lanes, open: Vec<(LinkSpec, usize)>) -> Self {
        let links = Rc::new(RefCell::new(HostLinks { lanes, open, found: Vec::new() }));
        let (commons, cuts, wholes, budgets, known_keys) = Default::default();
        Host { shard, links, commons, cuts, wholes, budgets, known_keys }
    }

    /// The shard, to look at.
    pub fn shard(&self) -> Ref<'_, Shard> {
        self.shard.borrow()
    }

    /// The shard, to work with between two turns.
    pub fn shard_mut(&self) -> RefMut<'_, Shard> {
        self.shard.borrow_mut()
    }

    /// What is open here once for all who stand on it.
    pub fn commons(&self) -> &Commons {
        &self.commons
    }

    /// Volumes that are open here, and of which snapshots can be taken as one.
    pub fn cuts(&self) -> &OpenCuts {
        &self.cuts
    }

    /// Volumes with labels that are open here for writing, and can be had to grow.
    pub fn wholes(&self) -> &OpenWholes {
        &self.wholes
    }

    /// What volumes that are open here may take in a second.
    pub fn budgets(&self) -> &OpenBudgets {
        &self.budgets
    }

    /// Where buffers come from.
    pub fn pool(&self) -> Pool {
        self.shard().pool().clone()
    }

    /// A lane for another attachment.
    pub fn next_lane(&self) -> u32 {
        self.links.borrow_mut().lanes.give()
    }

    /// Where the target of that address was when it was looked for last.
    pub fn found(&self, node: &NodeAddress, links: &[LinkSpec]) -> Option<Whereabouts> {
        let is_it = |of: &(NodeAddress, Vec<LinkSpec>)| of.0 == *node && of.1 == links;
        self.links.borrow().found.iter().find(|(of, _)| is_it(of)).map(|(_, at)| at.clone())
    }

    /// It was found there.
    pub fn note_found(&self, (node, links): (&NodeAddress, &[LinkSpec]), at: &Whereabouts) {
        let found = &mut self.links.borrow_mut().found;
        found.retain(|((other, over), _)| other != node || over != links);
        found.push(((node.clone(), links.to_vec()), at.clone()));
    }

    /// The numbers of these links. Those that are not open are opened, as `options` say.
    pub fn links(&self, specs: &[LinkSpec], options: &VolumeOptions) -> Outcome<Vec<usize>> {
        let HostLinks { lanes, open, .. } = &mut *self.links.borrow_mut();
        let number = |open: &[(LinkSpec, usize)], spec: &LinkSpec| {
            open.iter().find(|(other, _)| other == spec).map(|&(_, number)| number)
        };
        let mut new: Vec<LinkSpec> = Vec::new();
        for spec in specs {
            if number(open, spec).is_none() && !new.contains(spec) {
                new.push(spec.clone());
            }
        }
        if !new.is_empty() {
            let wire = &options.wire;
            let pipeline = wire.initiator_pipeline(options.submission);
            let (fault, pcap) = (wire.fault.as_ref(), wire.pcap.as_deref());
            let opened = open_initiator_links(&new, fault, pcap, &lanes.filters(), pipeline)?;
            for (spec, link) in new.into_iter().zip(opened) {
                let number = self.shard_mut().add_link(link).map_err(link_failed)?;
                open.push((spec, number));
            }
        }
        Ok(specs.iter().map(|spec| number(open, spec).expect("it is open")).collect())
    }

    /// The number of a new link of another protocol, whose frames have heads of so many bytes.
    pub fn foreign_link(
        &self,
        spec: &LinkSpec,
        head_bytes: usize,
        options: &VolumeOptions,
    ) -> Outcome<usize> {
        let wire = &options.wire;
        let link = open_foreign_link(spec, head_bytes, wire.fault.as_ref(), wire.pcap.as_deref())?;
        self.shard_mut().add_link(link).map_err(link_failed)
    }

    /// Ends the wait of [`Host::turn`] while `fd` is readable.
    pub fn watch(&self, fd: BorrowedFd<'_>) -> Outcome {
        let watched = self.shard_mut().watch(fd, WATCHED);
        watched.map_err(|e| Failure::failed(format!("cannot watch: {e}")))
    }

    /// Ends that.
    pub fn unwatch(&self, fd: BorrowedFd<'_>) -> Outcome {
        let unwatched = self.shard_mut().unwatch(fd);
        unwatched.map_err(|e| Failure::failed(format!("cannot watch: {e}")))
    }

    /// The last turn found something readable that is watched.
    pub fn is_called(&self) -> bool {
        self.shard().ready().next().is_some()
    }

    /// One turn of everything on the shard, which waits as `wait` allows.
    pub fn turn(&self, wait: Wait) -> Outcome {
        let timeout = match wait {
            Wait::No => Some(Duration::ZERO),
            Wait::Forever => None,
            Wait::Until(end) => Some(end.saturating_duration_since(Instant::now())),
        };
        self.shard_mut().turn(timeout).map_err(link_failed)?;
        Ok(())
    }
}

/// What a command says if a link is gone.
pub fn link_failed(error: io::Error) -> Failure {
    Failure::failed(format!("a link failed: {error}"))
}
