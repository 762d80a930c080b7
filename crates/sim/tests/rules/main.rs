//! The thirteen rules that keep data (`docs/design.md`), each with the sequence that breaks without
//! it, and the sequences in which the simulator has caught us.

mod cookies;
mod endings;
mod exhaustion;
mod floods;
mod forged;
mod grove;
mod growth;
mod hardening;
mod reflection;
mod requests;
mod rule_01_late_data;
mod rule_02_dead_processes;
mod rule_03_leaves;
mod rule_03_records;
mod rule_03_twins;
mod rule_03_writers;
mod rule_04_replay;
mod rule_04_syncs;
mod rule_05_overlap;
mod rule_06_acknowledgement;
mod rule_07_attachment;
mod rule_07_two_exports;
mod rule_08_breaks;
mod rule_09_credits;
mod rule_10_steering;
mod rule_11_black_holes;
mod rule_12_keys;
mod rule_13_turns;
mod scene;
mod trees;
mod unsealed;
