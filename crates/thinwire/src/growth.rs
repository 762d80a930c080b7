//! What becomes of volumes with labels that are to grow by what their parts have grown by, those below first.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use thinwire_modules::Module;
use thinwire_modules::meta::{Assembly, GrowthError, Label, WholeGrowth, WholeSizes};
use thinwire_modules::mirror::{MirrorAsk, MirrorDesk};
use thinwire_modules::thin::{PoolGrowthError, PoolRoom, PoolSizes, ThinPoolRef};
use thinwire_runtime::clock::entropy_bytes;

use crate::control::Response;
use crate::leg_changes::LegsDesk;
use crate::opened::{LegDoor, OutlineNode};
use crate::trees::NodeName;
use crate::work::WorkAsk;

/// Whoever drives volumes looks once a second whether their disks have grown, and that is made durable before it is offered.
const LOOK_FIRST: Duration = Duration::from_millis(1500);
/// What stands on one that has grown hears of that in a turn or two.
const HEAR: Duration = Duration::from_millis(50);

/// A volume that was to grow: an element of `volumes` in `volume grow --json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grown {
    /// What its labels call it.
    pub name: String,
    /// Its kind.
    pub kind: String,
    /// How many bytes it had.
    pub before: u64,
    /// How many it has.
    pub bytes: u64,
    /// Of a pool: how many bytes of metadata it had, and has; null of what is none, and from a process of an earlier version.
    #[serde(default)]
    pub metadata: Option<[u64; 2]>,
    /// Why it is no larger; null if it has grown.
    pub why: Option<String>,
}

impl Grown {
    /// It could not, or had nothing to.
    pub fn refused(name: &str, kind: &str, bytes: u64, why: String) -> Self {
        let (name, kind) = (name.to_owned(), kind.to_owned());
        Grown { name, kind, before: bytes, bytes, metadata: None, why: Some(why) }
    }

    /// It has.
    pub fn of(name: &str, kind: &str, before: u64, bytes: u64) -> Self {
        let (name, kind) = (name.to_owned(), kind.to_owned());
        Grown { name, kind, before, bytes, metadata: None, why: None }
    }

    /// A pool has these sizes by now, and had those.
    pub fn pool(name: &str, before: PoolSizes, behind: PoolSizes) -> Self {
        let metadata = Some([before.metadata_bytes, behind.metadata_bytes]);
        Grown { metadata, ..Grown::of(name, POOL, before.data_bytes, behind.data_bytes) }
    }

    /// A pool that is opened, whose metadata has this label, over volumes of so many bytes, in blocks of so many: what becomes of it, and what its labels say
    /// first; none if they stay, as they do behind a growth that was cut off.
    pub fn opened_pool(
        whole: &Assembly,
        metadata: &Label,
        volumes: &[(u64, u32)],
    ) -> (Self, Option<WholeSizes>) {
        let why = match PoolRoom::find(whole, metadata, volumes) {
            Ok(PoolRoom { before, behind, sizes }) => {
                return (Grown::pool(&whole.name, before, behind), sizes);
            }
            Err(PoolGrowthError::NoRoom) => why_not(whole, volumes),
            Err(error) => format!("it {error}"),
        };
        (Grown::refused(&whole.name, POOL, whole.bytes, why), None)
    }

    /// A whole that is no pool, and has these sizes by now; none if it has no larger ones, with volumes of so many bytes, in blocks of so many.
    pub fn whole(whole: &Assembly, sizes: Option<&WholeSizes>, volumes: &[(u64, u32)]) -> Self {
        let (name, kind) = (&whole.name, whole.module.name);
        match sizes {
            Some(sizes) => Grown::of(name, kind, whole.bytes, sizes.whole_bytes),
            None => Grown::refused(name, kind, whole.bytes, why_not(whole, volumes)),
        }
    }

    /// In a sentence.
    pub fn line(&self) -> String {
        let Grown { name, kind, before, bytes, metadata, why } = self;
        match (why, metadata) {
            (None, Some([was, is])) => format!(
                "{name} ({kind}) has {bytes} bytes of data and {is} of metadata, and had {before} and {was}"
            ),
            (None, None) => format!("{name} ({kind}) has {bytes} bytes, and had {before}"),
            (Some(why), _) => format!("{name} ({kind}) has {bytes} bytes as before: {why}"),
        }
    }
}

/// The kind of pools.
const POOL: &str = "thin";

/// A whole stays as it is.
fn why_not(whole: &Assembly, volumes: &[(u64, u32)]) -> String {
    let has_more = |role: &usize| {
        let part = &whole.parts[*role];
        volumes[*role].0.saturating_sub(part.data_start) >= part.data_bytes + MORE_BYTES
    };
    let larger: Vec<_> = (0..whole.parts.len()).filter(has_more).collect();
    let parts = match &larger[..] {
        [] => return "none of its parts has room for more: make those larger first".into(),
        [one] => format!("part {one} (counted from 0) has"),
        all => format!(
            "parts {} (counted from 0) have",
            all.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
        ),
    };
    format!("{parts} room for more, and {}", cannot(whole.module))
}

/// What is less than that makes no whole larger.
const MORE_BYTES: u64 = 4096;

/// Why a module does not use what some of its parts have grown by, and what to do.
fn cannot(module: &Module) -> &'static str {
    match module.name {
        "linear" => "only what the last one grows by has a place: behind the others lies data",
        "stripe" => "it is as large as the smallest makes it: make all of them larger",
        "slice" => "it was made with a size: nothing behind that is its own",
        _ => "that is less than a block of it",
    }
}

/// What has become of those of a tree, in the order in which they were opened.
#[derive(Clone, Debug, Default)]
pub struct GrowthNotes(Arc<Mutex<Vec<Grown>>>);

impl GrowthNotes {
    fn all(&self) -> MutexGuard<'_, Vec<Grown>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more.
    pub fn add(&self, grown: Grown) {
        self.all().push(grown);
    }

    /// Those.
    pub fn take(&self) -> Vec<Grown> {
        std::mem::take(&mut *self.all())
    }
}

/// A mirror that is open for writing. A handle.
#[derive(Clone)]
pub struct MirrorWhole {
    /// By which it is asked for something.
    pub desk: MirrorDesk,
    /// By which legs are brought that are new; none where nothing is.
    pub door: Option<LegDoor>,
    /// What its labels call it.
    pub name: String,
    /// How many bytes it has.
    pub bytes: Rc<Cell<u64>>,
}

/// A pool that is open for writing. A handle, which does not keep it.
#[derive(Clone)]
pub struct PoolWhole {
    /// The pool.
    pub pool: ThinPoolRef,
    /// What its labels call it.
    pub name: String,
}

impl PoolWhole {
    fn sizes(&self) -> PoolSizes {
        let none = PoolSizes { data_bytes: 0, metadata_bytes: 0 };
        self.pool.pool().and_then(|pool| pool.sizes()).unwrap_or(none)
    }

    /// Begins; or how that has ended at once, none if it is to be tried again.
    fn begin(&self) -> Result<u64, Option<Grown>> {
        let id = *entropy_bytes().first_chunk().expect("there are 32");
        let refused = |why: String| {
            let bytes = self.sizes().data_bytes;
            Grown::refused(&self.name, POOL, bytes, why)
        };
        match self.pool.pool().map(|pool| pool.begin_growth(id)) {
            Some(Ok(())) => Ok(0),
            Some(Err(PoolGrowthError::Busy)) => Err(None),
            Some(Err(error)) => Err(Some(refused(format!("it {error}")))),
            None => Err(Some(refused("it has ended meanwhile".into()))),
        }
    }
}

/// By which a volume with labels that is open for writing is had to grow. A handle.
#[derive(Clone)]
pub enum WholeDesk {
    /// A pool, which grows only where that is asked of it itself.
    Pool(PoolWhole),
    /// A mirror.
    Mirror(MirrorWhole),
    /// Any other.
    Whole(Rc<RefCell<WholeGrowth>>),
}

impl WholeDesk {
    fn is_over(&self) -> bool {
        match self {
            WholeDesk::Pool(pool) => pool.pool.is_over(),
            WholeDesk::Mirror(mirror) => mirror.desk.is_closed(),
            WholeDesk::Whole(growth) => growth.borrow().is_over(),
        }
    }

    /// Begins, under a number; or how that has ended at once, none if it is to be tried again.
    fn begin(&self) -> Result<u64, Option<Grown>> {
        let growth = match self {
            WholeDesk::Pool(pool) => return pool.begin(),
            WholeDesk::Mirror(mirror) => return Ok(mirror.desk.ask(MirrorAsk::Grow)),
            WholeDesk::Whole(growth) => &mut *growth.borrow_mut(),
        };
        let id = *entropy_bytes().first_chunk().expect("there are 32");
        let whole = |growth: &WholeGrowth| growth.whole().clone();
        match growth.begin(id) {
            Ok(()) => Ok(0),
            Err(GrowthError::Busy) => Err(None),
            Err(GrowthError::NoRoom) => {
                Err(Some(Grown::whole(growth.whole(), None, &growth.volumes())))
            }
            Err(error) => {
                let whole = whole(growth);
                let (kind, why) = (whole.module.name, error.to_string());
                Err(Some(Grown::refused(&whole.name, kind, whole.bytes, why)))
            }
        }
    }

    /// How what was begun under that number has ended, once it has; `before` is how many bytes it had, of data and of metadata.
    fn poll(&self, asked: u64, [before, metadata]: [u64; 2]) -> Option<Grown> {
        let (name, kind, ended) = match self {
            WholeDesk::Pool(whole) => {
                let ended = match whole.pool.pool() {
                    Some(pool) => pool.poll_growth()?.map_err(|error| format!("it {error}")),
                    None => Err("it has ended meanwhile".into()),
                };
                let before = PoolSizes { data_bytes: before, metadata_bytes: metadata };
                return Some(match ended {
                    Ok(behind) => Grown::pool(&whole.name, before, behind),
                    Err(why) => Grown::refused(&whole.name, POOL, before.data_bytes, why),
                });
            }
            WholeDesk::Mirror(mirror) => {
                let ended = mirror.desk.take_ended(asked)?;
                let ended = ended.map(|done| done.bytes).map_err(|error| error.to_string());
                (mirror.name.clone(), "mirror", ended)
            }
            WholeDesk::Whole(growth) => {
                let growth = &mut *growth.borrow_mut();
                let ended = match growth.turn_growth() {
                    Some(ended) => ended.map_err(|error| error.to_string()),
                    None if growth.is_over() => Err("it has ended meanwhile".into()),
                    None => return None,
                };
                let whole = growth.whole();
                (whole.name.clone(), whole.module.name, ended)
            }
        };
        Some(match ended {
            Ok(bytes) => {
                if let WholeDesk::Mirror(mirror) = self {
                    mirror.bytes.set(bytes);
                }
                Grown::of(&name, kind, before, bytes)
            }
            Err(why) => Grown::refused(&name, kind, before, why),
        })
    }

    /// Bytes that it has; of a pool those of its metadata, too.
    fn bytes(&self) -> [u64; 2] {
        match self {
            WholeDesk::Pool(pool) => {
                let sizes = pool.sizes();
                [sizes.data_bytes, sizes.metadata_bytes]
            }
            WholeDesk::Mirror(mirror) => [mirror.bytes.get(), 0],
            WholeDesk::Whole(growth) => [growth.borrow().whole().bytes, 0],
        }
    }
}

/// Those that are open on a host, by what files call them.
#[derive(Default)]
pub struct OpenWholes(RefCell<Vec<(NodeName, WholeDesk)>>);

impl OpenWholes {
    /// One was opened.
    pub fn add(&self, name: NodeName, desk: WholeDesk) {
        let mut open = self.0.borrow_mut();
        // Those of legs that have come and gone.
        open.retain(|(_, desk)| !desk.is_over());
        open.push((name, desk));
    }

    /// All that are open.
    pub fn all(&self) -> Vec<(NodeName, WholeDesk)> {
        let mut open = self.0.borrow_mut();
        open.retain(|(_, desk)| !desk.is_over());
        open.clone()
    }
}

/// A tree of which all that can is growing.
struct UnderWay {
    number: u64,
    /// Those that are still to come, the one on top last.
    todo: VecDeque<WholeDesk>,
    /// The one that is growing, under which number of its own, and how many bytes it had.
    current: Option<(WholeDesk, u64, [u64; 2])>,
    /// Nothing is begun before.
    wait: Instant,
    done: Vec<Grown>,
}

/// Has volumes that are in use grow, those below first, and mirrors have a leg less or more, between turns of whatever drives them.
#[derive(Default)]
pub struct GrowthDesk {
    under_way: Vec<UnderWay>,
    legs: LegsDesk,
}

impl GrowthDesk {
    /// Nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.under_way.is_empty() && self.legs.is_idle()
    }

    /// What changes the legs of mirrors.
    pub fn legs(&mut self) -> &mut LegsDesk {
        &mut self.legs
    }

    /// Begins with a volume of this outline, of which `open` are open; it ends under that number.
    ///
    /// # Errors
    /// There is nothing that could grow: a sentence.
    pub fn begin(
        &mut self,
        number: u64,
        ask: &WorkAsk,
        outline: &[OutlineNode],
        open: &[(NodeName, WholeDesk)],
    ) -> Result<(), String> {
        let name = &ask.volume.name;
        let desk_of = |node: &OutlineNode| {
            let named = node.node.as_ref()?;
            open.iter().find(|(of, _)| of.is_same(named)).map(|(_, desk)| desk.clone())
        };
        let is_it =
            |of: &OutlineNode| of.node.as_ref().is_some_and(|node| node.is_same(&ask.volume));
        let at = outline
            .iter()
            .position(is_it)
            .ok_or_else(|| format!("it has no volume {name} open"))?;
        if desk_of(&outline[at]).is_none() {
            return Err(format!(
                "{name} has no labels, or is only read: it stays as large as it is"
            ));
        }
        let top = outline[at].depth;
        let below = outline[at + 1..].iter().take_while(|node| node.depth > top).count();
        // A pool below takes nothing of what its parts grow by: its volumes do not.
        let is_asked = |node: &&OutlineNode| {
            node.depth == top || !matches!(desk_of(node), Some(WholeDesk::Pool(_)))
        };
        let tree = outline[at..=at + below].iter().rev();
        let todo = tree.filter(is_asked).filter_map(desk_of).collect();
        let (current, wait) = (None, Instant::now() + LOOK_FIRST);
        self.under_way.push(UnderWay { number, todo, current, wait, done: Vec::new() });
        Ok(())
    }

    /// Goes on, and appends what has ended since the last call, and how.
    pub fn finish(&mut self, ended: &mut Vec<(u64, Response)>) {
        self.legs.finish(ended);
        self.under_way.retain_mut(|one| match one.go_on() {
            false => true,
            true => {
                let volumes = std::mem::take(&mut one.done);
                ended.push((one.number, Response::Grown { volumes }));
                false
            }
        });
    }
}

impl UnderWay {
    /// True once all have ended.
    fn go_on(&mut self) -> bool {
        if let Some((desk, asked, before)) = &self.current {
            let Some(grown) = desk.poll(*asked, *before) else { return false };
            self.done.push(grown);
            self.current = None;
            self.wait = Instant::now() + HEAR;
        }
        while Instant::now() >= self.wait {
            let Some(desk) = self.todo.pop_front() else { return true };
            let before = desk.bytes();
            match desk.begin() {
                Ok(asked) => {
                    self.current = Some((desk, asked, before));
                    return false;
                }
                Err(Some(grown)) => self.done.push(grown),
                Err(None) => {
                    self.todo.push_front(desk);
                    self.wait = Instant::now() + HEAR;
                }
            }
        }
        false
    }
}
