//! Two sessions over a wire that does what it is told, under a virtual clock.

mod batching;
mod bounds;
mod congestion;
mod events;
mod fuzz;
mod keys;
mod loss;
mod paths;
mod stage;
