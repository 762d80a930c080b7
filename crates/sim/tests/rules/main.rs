//! The thirteen rules that keep data (`docs/design.md`), each with the sequence that breaks without
//! it, and the sequences in which the simulator has caught us.

mod rule_03_writers;
mod rule_04_replay;
mod rule_09_credits;
mod rule_13_turns;
mod scene;
