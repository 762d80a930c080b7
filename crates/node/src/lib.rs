//! The host of everything that needs driving: parts, the edges between them, the links that they
//! share, and the turn that drives all of them (`docs/design.md`, "One node for everything that needs
//! driving").
//!
//! A [`Node`] belongs to one thread and knows no clock, socket or disk: a driver (the runtime's loop,
//! or the simulator) hands it frames, events and the time, and takes frames, effects and a deadline.
//! It knows no concrete part, either.
//!
//! A turn, in this order:
//!
//! 1. the driver hands over what has come: [`Node::on_frame`], [`Node::post`];
//! 2. [`Node::settle`]: I/Os go down, completions come up, parts act on them, a bounded number of
//!    rounds;
//! 3. whoever stands outside of all parts (a benchmark, a face) takes its completions from its
//!    [`Port`](thinwire_volume::Port) and submits more;
//! 4. [`Node::close`]: each part that was touched fires its timers and leaves its frames;
//! 5. the driver sends them ([`Node::out`]), does what [`Node::take_effect`] says, and sleeps until
//!    something comes, [`Node::deadline`] at the latest.
#![forbid(unsafe_code)]

mod flights;
mod lanes;
mod node;
mod parts;
mod timers;

pub use lanes::{Lane, SESSION_OFFSET};
pub use node::{Node, NodeCanary, PartId};
