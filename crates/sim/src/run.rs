//! The course of a run: build, let things go wrong, heal, and see whether every promise was kept.

use thinwire_initiator::{Phase, WhenAway};
use thinwire_link::rng::Rng;
use thinwire_proto::SumCanary;
use thinwire_target::DoorCanary;
use thinwire_volume::Op;

use crate::chaos::Chaos;
use crate::client::{Client, Top};
use crate::composed::run_volumes;
use crate::coverage::Coverage;
use crate::dialect::DialectUser;
use crate::export::Store;
use crate::forger::Forger;
use crate::gateway::LeavesState;
use crate::model::{Range, Violation};
use crate::server::{Crash, Server};
use crate::stamp::SECTOR_BYTES;
use crate::swarm::{self, Story};
use crate::world::{MS, SECOND, World};

/// A fault built into the system under test, which the checker must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Canary {
    /// None: the system as it is.
    #[default]
    None,
    /// One of all targets.
    Target(thinwire_target::TargetCanary),
    /// Behind the door of all targets.
    Door(thinwire_target::DoorCanary),
    /// In what waits for narrow links.
    Outlet(crate::narrow::OutletCanary),
    /// Memory that links of clients, or of servers, have lent receives the next frame while somebody refers to it.
    LentReused(SimSide),
    /// Who holds what it has read never lets go of it.
    LentKept,
    /// Below users of local disks.
    Local(crate::local::LocalCanary),
    /// One of all initiators.
    Initiator(thinwire_initiator::InitiatorCanary),
    /// In all sessions, at both ends.
    Session(thinwire_proto::SessionCanary),
    /// In mirrors of composed volumes.
    Mirror(thinwire_modules::mirror::MirrorCanary),
    /// In their pools.
    Pool(thinwire_modules::thin::PoolCanary),
    /// In what keeps writes in memory above their disks.
    WriteBack(thinwire_modules::WriteBackCanary),
    /// Below a leg of a mirror that has sums something rots whenever all is scrubbed.
    SumsRot,
    /// Whoever opens a mirror says that legs which may have more may be missing.
    GoesAlone,
    /// One of those who take snapshots of several volumes as one.
    Cut(thinwire_modules::cuts::CutCanary),
    /// In clients of EBD, and in their servers.
    Ebd(thinwire_ebd::EbdCanary),
    /// In clients of AoE, and in their servers.
    Aoe(thinwire_aoe::AoeCanary),
    /// In the nodes of clients.
    Node(thinwire_node::NodeCanary),
    /// The sums of data do not cover where it belongs, at both ends.
    SumsPlaceless,
    /// A starting target does not wait for the lock of its files.
    LockIgnored,
    /// Blocks whose edges are patched are not locked meanwhile.
    EdgesUnlocked,
    /// A module drops the flushes to one of its volumes.
    FlushDropped,
    /// In the caches of exports.
    Cache(thinwire_modules::CacheCanary),
    /// That an image was cut is not remembered.
    CutsForgotten,
    /// What shards say to one another does not always arrive in order.
    LettersSwapped,
    /// Where several shards have a file, a crash ends the I/O of one of them only.
    RingsForgotten,
    /// A flush that failed once fails for ever.
    FailureKept,
    /// A gateway does not ask who has written its leaves while it was gone.
    LeafWritersUnasked,
    /// A gateway does not write down which grants of leaves it has not used.
    GrantsUnnoted,
    /// It takes for durable that such a note is not there, which somebody may have removed without a sync.
    NotesUnsynced,
}

/// Machines of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimSide {
    /// Those of clients.
    Clients,
    /// Those of targets, gateways among them.
    Servers,
}

/// What a run that kept all promises looked like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunReport {
    /// What it exercised.
    pub coverage: Coverage,
    /// A number that differs if anything went differently.
    pub trace_hash: u64,
}

/// All I/O is answered and everybody is attached this long after all is well again.
const RECOVERY_NS: u64 = 60 * SECOND;
/// Who has something answered in each such time may need so many of them.
const RECOVERIES_MAX: u64 = 4;
/// How long the quiet system is watched.
const QUIET_NS: u64 = 4 * SECOND;
/// Tells the dice of growth from others.
const GROWTH: u64 = 0x6772_6f77_7468;
/// Turns of a loop in that time without any I/O.
const QUIET_TURNS_MAX: u64 = 400;

/// Runs a seed. `prints` writes what happens to stderr.
pub fn run_seed(seed: u64, canary: Canary, prints: bool) -> Result<RunReport, Violation> {
    run_story(seed, Story::Swarm, canary, prints)
}

/// Runs a seed, in a world that is about something.
pub fn run_story(
    seed: u64,
    story: Story,
    canary: Canary,
    prints: bool,
) -> Result<RunReport, Violation> {
    if story == Story::Volumes {
        return run_volumes(seed, canary, prints);
    }
    let mut rng = Rng::new(seed);
    let (mut world, plan) = swarm::build(seed, story, &mut rng, prints);
    for server in &mut world.servers {
        match canary {
            Canary::Target(planted) => server.config.canary = planted,
            Canary::Door(planted) => server.config.door = planted,
            Canary::Session(planted) => server.config.session = planted,
            Canary::LockIgnored => server.ignores_lock = true,
            Canary::LettersSwapped => server.mail.swaps = true,
            _ => {}
        }
    }
    if let Canary::Ebd(planted) = canary {
        world.dialect_users.iter_mut().for_each(|user| user.settings.plant_ebd(planted));
        let lanes = world.servers.iter_mut().filter_map(|server| server.ebd.as_mut());
        lanes.for_each(|lane| lane.canary = planted);
    }
    if let Canary::Aoe(planted) = canary {
        world.dialect_users.iter_mut().for_each(|user| user.settings.plant_aoe(planted));
        for server in world.servers.iter_mut() {
            let Some(lane) = &mut server.aoe else { continue };
            lane.canary = planted;
            if planted == thinwire_aoe::AoeCanary::ExportsSkipped {
                // A pass to read lets it write.
                server.config.door = DoorCanary::DoorSkipped;
            }
        }
    }
    if canary == Canary::EdgesUnlocked {
        let faces = world.clients.iter_mut().filter(|client| client.top == Top::AnyRange);
        faces.for_each(|client| client.top = Top::AnyRangeUnlocked);
    }
    if let Canary::Node(planted) = canary {
        world.clients.iter_mut().for_each(|client| client.node_canary = planted);
        world.servers.iter_mut().for_each(|server| server.node_canary = planted);
    }
    if let Canary::Initiator(planted) = canary {
        world.clients.iter_mut().for_each(|client| client.config.canary = planted);
        let servers = world.servers.iter_mut();
        servers.for_each(|server| server.leaf_settings.config.canary = planted);
    }
    if canary == Canary::SumsPlaceless {
        world.clients.iter_mut().for_each(|client| client.config.sums = SumCanary::Placeless);
        for server in &mut world.servers {
            server.config.sums = SumCanary::Placeless;
            server.leaf_settings.config.sums = SumCanary::Placeless;
        }
    }
    if let Canary::Session(planted) = canary {
        world.clients.iter_mut().for_each(|client| client.config.session = planted);
        world.jugglers.iter_mut().for_each(|juggler| juggler.hand.canary = planted);
        let servers = world.servers.iter_mut();
        servers.for_each(|server| server.leaf_settings.config.session = planted);
    }
    if let Canary::Outlet(planted) = canary {
        world.machines_mut().filter_map(|m| m.narrow.as_mut()).for_each(|n| n.canary = planted);
    }
    if let Canary::LentReused(side) = canary {
        let clients = world.clients.iter_mut().map(|client| &mut client.machine);
        let shards = world.servers.iter_mut().flat_map(|server| &mut server.shards);
        let machines: Vec<_> = match side {
            SimSide::Clients => clients.collect(),
            SimSide::Servers => shards.map(|shard| &mut shard.machine).collect(),
        };
        let lending = machines.into_iter().filter_map(|machine| machine.lending.as_mut());
        lending.for_each(|lending| lending.reuses_early = true);
    }
    if canary == Canary::LentKept {
        let holding = world.clients.iter_mut().filter_map(|client| client.holding.as_mut());
        holding.for_each(|holding| holding.is_greedy = true);
    }
    if let Canary::Cache(planted) = canary {
        world.exports.iter_mut().for_each(|export| export.cache_canary = planted);
    }
    for export in &mut world.exports {
        let Store::Tree(tree) = &mut export.store else { continue };
        match canary {
            Canary::LeafWritersUnasked => tree.unasked = true,
            Canary::GrantsUnnoted => tree.memory.borrow_mut().notes.forgotten = true,
            Canary::NotesUnsynced => tree.memory.borrow_mut().notes.unsynced = true,
            Canary::FlushDropped => tree.unflushed = Some(seed as usize % tree.leaves.len()),
            _ => {}
        }
    }
    let media = || world.exports.iter().filter_map(|export| export.medium());
    if canary == Canary::CutsForgotten {
        media().for_each(|medium| medium.configure(|config| config.forgets_cuts = true));
    }
    if canary == Canary::RingsForgotten {
        media().for_each(|medium| medium.configure(|config| config.forgets_rings = true));
    }
    if canary == Canary::FailureKept {
        media().for_each(|medium| medium.configure(|config| config.goes_on_failing = true));
    }
    if prints {
        world.describe_settings();
        eprintln!("{plan:?}");
    }
    for server in 0..world.servers.len() {
        world.start_server(server);
    }
    for client in 0..world.clients.len() {
        if !world.clients[client].is_guest {
            world.start_client(client);
        }
    }
    for juggler in 0..world.jugglers.len() {
        world.start_juggler(juggler);
    }
    for user in 0..world.dialect_users.len() {
        world.start_dialect(user);
    }
    let dice = Rng::new(rng.bits());
    // Dice of their own: growth changes nothing else of a seed.
    let mut growth = Rng::new(seed ^ GROWTH);
    let planned = world.plan_growth(plan.duration_ns, &mut growth);
    let freezes = swarm::plan_freezes(seed, &world, plan.duration_ns);
    let plan_ns = plan.duration_ns;
    let of_dialects = swarm::plan_dialects(seed, &world, &plan);
    let mut chaos = Chaos::new(dice, plan, Rng::new(rng.bits()));
    chaos.plan_growth(planned, growth);
    chaos.plan_freezes(freezes);
    chaos.plan_dialects(of_dialects);
    chaos.plan_absences(swarm::plan_absences(seed, &world, plan_ns));
    chaos.plan_keys(swarm::plan_keys(seed, &world, plan_ns));
    chaos.run(&mut world)?;
    world.trace.note(world.now, "world", "heals", 0);
    chaos.heal(&mut world);
    recover(&mut world)?;
    world.with_forger(Forger::rest);
    stay_quiet(&mut world)?;
    swarm::aim_at_the_end(seed, &mut world);
    end(&mut world)?;
    let (mut coverage, mut trace_hash) = (world.figures(), world.trace_hash());
    let planted = match canary {
        Canary::Local(planted) => Some(planted),
        _ => None,
    };
    if let Some(locals) = swarm::run_local_disks(seed, planted, prints)? {
        coverage.add(&locals.coverage);
        trace_hash ^= locals.trace_hash;
    }
    Ok(RunReport { coverage, trace_hash })
}

/// Nothing is stuck: everybody who may gets in, and finishes what it has begun and more.
pub fn recover(world: &mut World) -> Result<(), Violation> {
    for client in world.clients.iter_mut().filter(|client| !client.is_guest) {
        client.config.take_over = false;
        client.add_budget(12);
    }
    // Who was a guest when a server below died may be on record there for ever.
    for server in 0..world.servers.len() {
        world.servers[server].leaf_settings.take_over = true;
        if world.servers[server].look_at_leaves() == LeavesState::Incomplete {
            world.crash_server(server, Crash::Kill);
        }
    }
    world.jugglers.iter_mut().for_each(|juggler| juggler.add_budget(24));
    for user in &mut world.dialect_users {
        user.take_over = false;
        user.add_budget(12);
    }
    until_recovered(world)?;
    // What I/O failed for want of a target has proved nothing. Now it is there for everybody.
    // Of a flush that went to several members what failed behind its answer is told by the next.
    for client in 0..world.clients.len() {
        let is_owed = world.clients[client].members > 1 && is_attached(&world.clients[client]);
        if is_owed {
            world.submit(client, Op::Flush, Range { first: 0, count: 0 }, false);
        }
    }
    until_recovered(world)?;
    let away_errors = world.coverage.away_errors;
    for client in &mut world.clients {
        if matches!(client.config.when_away, WhenAway::FailAfter(_)) {
            client.add_budget(12);
        }
    }
    until_recovered(world)?;
    if world.coverage.away_errors > away_errors {
        return Err(Violation("an I/O failed for want of a target that had come back".into()));
    }
    // What was lost is told by flushes. Behind these nothing fails any more.
    for told in 1.. {
        flush_all(world)?;
        for export in &mut world.exports {
            export.is_well |= told >= export.flushes_that_tell();
        }
        if world.exports.iter().all(|export| export.is_well) {
            break;
        }
    }
    world.clients.iter_mut().filter(|client| !client.is_guest).for_each(|c| c.add_budget(6));
    world.jugglers.iter_mut().for_each(|juggler| juggler.add_budget(12));
    world.dialect_users.iter_mut().for_each(|user| user.add_budget(6));
    until_recovered(world)?;
    flush_all(world)
}

/// Everybody who is in flushes once.
fn flush_all(world: &mut World) -> Result<(), Violation> {
    let nothing = Range { first: 0, count: 0 };
    for client in 0..world.clients.len() {
        if is_attached(&world.clients[client]) {
            world.submit(client, Op::Flush, nothing, false);
        }
    }
    world.jugglers.iter_mut().for_each(|juggler| juggler.flush_all());
    world.dialect_users.iter_mut().filter(|user| user.is_attached()).for_each(DialectUser::flush);
    until_recovered(world)
}

fn until_recovered(world: &mut World) -> Result<(), Violation> {
    let begun = world.now;
    let mut limit = begun + RECOVERY_NS;
    let mut retry_at = begun + SECOND;
    while !has_recovered(world) {
        if world.now >= limit {
            let goes_on = least_recent_answer(world).unwrap_or(0) + RECOVERY_NS;
            limit = goes_on.min(begun + RECOVERIES_MAX * RECOVERY_NS);
        }
        if world.now >= limit {
            return Err(world.not_within("recovery", world.now - begun));
        }
        world.step(limit.min(retry_at).max(world.now + 1))?;
        for server in 0..world.servers.len() {
            world.start_server(server);
        }
        // Whoever is told that its content or its right to write is gone starts anew, and whoever
        // is refused asks again.
        if world.now >= retry_at {
            retry_at = world.now + SECOND;
            world.ended.clear();
            world.put_down.clear();
            world.dialect_ended.clear();
            world.mend_gateways();
            for client in 0..world.clients.len() {
                if !world.clients[client].is_guest {
                    world.start_client(client);
                }
            }
            (0..world.jugglers.len()).for_each(|juggler| world.start_juggler(juggler));
            (0..world.dialect_users.len()).for_each(|user| world.start_dialect(user));
        }
    }
    Ok(())
}

/// If nothing is left but I/O of clients that are attached: when one of them was answered last, or began. A crowd on a
/// target with room for a few frames has one each on its way, and is done when it is done.
fn least_recent_answer(world: &World) -> Option<u64> {
    let at_work = world.clients.iter().filter(|c| is_attached(c) && !has_done_all(c));
    let answered = at_work.map(|c| c.answered_at().max(c.oldest().unwrap_or(0)));
    let users = world.dialect_users.iter();
    let at_work = users.filter(|user| user.is_attached() && user.outstanding() > 0);
    let answered = answered.chain(at_work.map(DialectUser::answered_at));
    is_well(world, |_| true, DialectUser::is_attached).then(|| answered.min())?
}

fn has_done_all(client: &Client) -> bool {
    client.is_finished() && client.outstanding() == 0
}

fn has_recovered(world: &World) -> bool {
    is_well(world, has_done_all, |_| false)
}

/// The target is there, and what it had lost has been sent again. Under `fail-after` a client that
/// is still away has nothing outstanding either, and may have used its budget up.
pub(crate) fn is_attached(client: &Client) -> bool {
    let phase = client.initiator.as_ref().map(|initiator| initiator.phase());
    client.is_open && phase == Some(Phase::Attached)
}

/// Everybody who may is attached, and has done `enough`; users of other protocols are settled, or `is_at_work` with them.
fn is_well(
    w: &World,
    enough: impl Fn(&Client) -> bool,
    is_at_work: impl Fn(&DialectUser) -> bool,
) -> bool {
    let served = |export: usize| {
        let mut writers = w.clients.iter().filter(|c| c.export == export && !c.config.read_only);
        writers.any(is_attached)
            || w.jugglers.iter().any(|j| j.serves(export))
            || w.dialect_users.iter().any(|user| user.serves(export, &w.exports[export]))
    };
    let has_leaves = |s: &Server| s.leaves().all(|leaf| leaf.initiator.failure().is_none());
    let settled = w.servers.iter().all(has_leaves);
    let settled = settled
        && w.clients.iter().all(|c| match c.initiator {
            _ if c.is_guest => c.initiator.is_none(),
            Some(_) if c.is_open => is_attached(c) && enough(c),
            // It waits for its turn, or has been refused.
            _ => !c.config.read_only && served(c.export),
        });
    let settled = settled && w.jugglers.iter().all(|j| j.is_settled(served));
    let is_settled = |user: &DialectUser| user.is_settled(served) || is_at_work(user);
    let settled = settled && w.dialect_users.iter().all(is_settled);
    settled && (0..w.exports.len()).all(|at| w.exports[at].is_leaf || served(at))
}

/// A pair without I/O costs next to nothing.
pub fn stay_quiet(world: &mut World) -> Result<(), Violation> {
    // Whoever gets its turn only now has nothing to do.
    world.clients.iter_mut().for_each(|client| client.add_budget(0));
    world.jugglers.iter_mut().for_each(|juggler| juggler.add_budget(0));
    world.dialect_users.iter_mut().for_each(|user| user.add_budget(0));
    // And the last late frame has arrived.
    world.run_for(SECOND + 2 * world.net.wire().reorder_ns_max + world.late_for())?;
    let turns = |w: &World| {
        let servers = w.servers.iter().map(Server::turns);
        let clients = w.clients.iter().map(|c| c.machine.turns);
        let jugglers = w.jugglers.iter().map(|j| j.hand.machine.turns);
        let of_dialects = w.dialect_users.iter().map(|user| user.machine.turns);
        servers.chain(clients).chain(jugglers).chain(of_dialects).collect::<Vec<_>>()
    };
    // A server turns for each of its sessions. Those that were left behind are there until they
    // time out, and whoever left them hears of it when the room is shared anew.
    let sessions = |w: &World, name: Option<&str>| {
        let targets = w.servers.iter().flat_map(Server::targets);
        let all = targets.flat_map(|target| target.sessions());
        all.filter(|s| name.is_none_or(|name| s.initiator == name)).count() as u64
    };
    // Who waits for its turn in AoE asks for it again and again. If it gets it meanwhile, that is I/O: the next stretch counts.
    let asking = |user: &DialectUser| user.outstanding() as u64;
    let all_asking = |w: &World| w.dialect_users.iter().map(asking).sum::<u64>();
    let (before, left_behind) = loop {
        let (before, all) = (turns(world), all_asking(world));
        let left_behind: Vec<_> = (world.servers.iter().map(|_| sessions(world, None) + all))
            .chain(world.clients.iter().map(|c| sessions(world, Some(&c.name))))
            .chain(world.jugglers.iter().map(|j| sessions(world, Some(&j.name))))
            .chain(world.dialect_users.iter().map(asking))
            .collect();
        world.run_for(QUIET_NS)?;
        if all_asking(world) == all {
            break (before, left_behind);
        }
    };
    for (nth, (after, before)) in turns(world).into_iter().zip(before).enumerate() {
        let initiators = world.clients.len() + world.jugglers.len() + world.dialect_users.len();
        let leaves = |at: usize| world.servers[at].leaves().count();
        let is_server = nth < world.servers.len();
        let sessions = if is_server { (initiators + leaves(nth)) as u64 } else { 1 };
        let sessions = sessions.max(left_behind[nth]);
        if after - before > QUIET_TURNS_MAX * sessions {
            return Err(Violation(format!(
                "machine {nth} turned {} times in {} ms without I/O",
                after - before,
                QUIET_NS / MS
            )));
        }
    }
    world.check_growth()
}

/// Everybody detaches in order, and the images hold what was promised.
fn end(world: &mut World) -> Result<(), Violation> {
    for client in &mut world.clients {
        client.close();
    }
    world.jugglers.iter_mut().for_each(|juggler| juggler.close());
    world.dialect_users.iter_mut().for_each(DialectUser::close);
    let mut limit = world.now + RECOVERY_NS;
    let is_left = |w: &World| {
        let clients = w.clients.iter().any(|c| c.initiator.is_some());
        let servers = w.servers.iter().any(|server| !server.runs());
        let of_dialects = w.dialect_users.iter().any(DialectUser::is_running);
        clients || servers || of_dialects || w.jugglers.iter().any(|j| j.is_running())
    };
    while is_left(world) {
        if world.now >= limit {
            return Err(world.not_within("detaching", RECOVERY_NS));
        }
        world.step(limit)?;
        // Who detaches waits for a server that dies meanwhile.
        while let Some(server) = world.died.pop() {
            world.start_server(server);
            limit = world.now + RECOVERY_NS;
        }
    }
    // Who stands on others goes first.
    for stands in [true, false] {
        let ending: Vec<usize> = (0..world.servers.len())
            .filter(|&at| stands == world.servers[at].leaves().next().is_some())
            .collect();
        for &server in &ending {
            world.shut_down_server(server, SECOND);
        }
        let has_ended = |w: &World| !ending.iter().any(|&at| w.servers[at].runs());
        world.run_until("shutdown", 12 * SECOND, has_ended)?;
    }
    for server in 0..world.servers.len() {
        world.crash_server(server, Crash::Power);
    }
    if let Some(lent) = world.machines_mut().map(|m| m.lent()).find(|&lent| lent > 0) {
        let text = format!("a link has not got back {lent} of its chunks, though nothing runs");
        return Err(Violation(text));
    }
    for export in &world.exports {
        match &export.store {
            Store::Memory | Store::Pool(_) => {}
            Store::File(_) | Store::Writeback(..) if export.is_leaf => {}
            Store::File(medium) | Store::Writeback(medium, _) => {
                let model = export.models.last().expect("it has a content");
                model.check_image(&medium.durable())?;
            }
            Store::Tree(tree) => {
                let model = export.models.last().expect("it was open once");
                tree.check_rest()?;
                let last = tree.leaves.len() - 1;
                for place in tree.places() {
                    let Some(medium) = tree.leaves[place.leaf].medium() else { continue };
                    let image = medium.durable();
                    if place.leaf == last {
                        model.check_tail(place.first, &image)?;
                        continue;
                    }
                    let part = place.from * SECTOR_BYTES..(place.from + place.count) * SECTOR_BYTES;
                    model.check_part(place.first, &image[part])?;
                }
            }
        }
    }
    Ok(())
}
