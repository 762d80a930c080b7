//! Whole systems in one process: targets, initiators, wires and disks under virtual time, with
//! everything going wrong that can, and a checker that knows every acknowledged and every flushed
//! write.
//!
//! What runs here are the shipped state machines, the simulated link, the fault wrapper and the
//! stores. A seed decides everything: [`run_seed`] repeats exactly.
//!
//! * `medium/`: a disk that forgets, tears, fails and outlives its process
//! * `stamp.rs`, `model/`: what the clients write, and what may be read
//! * `told.rs`: which verifiers they were told
//! * `client/`: an initiator with a workload, checked
//! * `hand.rs`: an initiator by hand, that does what the shipped one never does; `keyed_hand.rs`: with a key
//! * `keys.rs`: the keys of a world, who has them and who takes them
//! * `sealed.rs`: whether a number is ever sealed twice
//! * `forger.rs`: somebody on the way of all frames who has no key
//! * `juggler/`: one that has several exports in a session, checked
//! * `stranger.rs`: a station that sends valid nonsense
//! * `dialect/`: users of other protocols, checked
//! * `coverage.rs`, `transitions.rs`: what runs have met, and which changes of an initiator's states
//! * `composed/`: volumes that hosts compose of disks, with all modules
//! * `export.rs`: what a target exports, and what the checker knows of it
//! * `server.rs`: a target on its machine, with its threads
//! * `spread.rs`, `mail.rs`: exports that are on all shards of a target, and what these say to one another
//! * `gateway.rs`: what a server stands on that serves other servers' exports
//! * `tree.rs`: a volume made of several
//! * `local/`: users of disks of their own machine, with no target between
//! * `leaves.rs`: what a gateway remembers of its leaves, and who writes one while it is down
//! * `notes.rs`: what it writes down of grants that it has not used
//! * `image.rs`: what happens to images while no target serves them
//! * `aim.rs`: crashes that come with a change of an initiator's state
//! * `damage.rs`: memory and links that alter data behind the checks of frames
//! * `narrow.rs`: links that do not take all that they are given
//! * `lending.rs`: links that receive into memory of their own
//! * `ways.rs`: what becomes of frames between two machines
//! * `world.rs`: time, and all of them together; scripted tests begin here
//! * `trace.rs`: what happened
//! * `swarm.rs`: what a seed draws
//! * `chaos.rs`: what happens to whom, and when
//! * `run.rs`: the course of a run, and its verdict
#![forbid(unsafe_code)]

pub mod aim;
pub mod chaos;
pub mod client;
pub mod coming;
pub mod composed;
pub mod coverage;
pub mod damage;
pub mod dialect;
pub mod export;
pub mod forger;
pub mod gateway;
pub mod growth;
pub mod hand;
pub mod image;
pub mod juggler;
pub mod keyed_hand;
pub mod keys;
pub mod leaves;
pub mod lending;
pub mod local;
pub mod machine;
pub mod mail;
pub mod medium;
pub mod model;
pub mod narrow;
pub mod notes;
pub mod run;
pub mod sealed;
pub mod server;
pub mod spread;
pub mod stamp;
pub mod stranger;
pub mod swarm;
pub mod told;
pub mod trace;
pub mod transitions;
pub mod tree;
pub mod ways;
pub mod world;

pub use composed::{Enumerated, enumerate};
pub use coverage::Coverage;
pub use run::{Canary, RunReport, run_seed, run_story};
pub use swarm::{
    Story, has_absences, has_cache, has_damage, has_keys, has_lending_links, has_narrow_links,
    has_spread, has_tree, has_wrapped_links,
};
