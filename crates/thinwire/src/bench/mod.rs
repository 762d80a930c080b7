//! `thinwire bench`: measuring any volume, remote or local, by the same code.

mod breakdown;
mod engine;
mod ledger;
mod nodes;
mod plan;
mod report;
mod stamp;

pub use breakdown::{Breakdown, BreakdownCell, BreakdownRun};
pub use engine::{Engine, Stop, Tally, failure, one_io};
pub use nodes::{NodeStages, NodesRun};
pub use plan::{BenchPlan, SplitMix};
pub use report::{BenchReport, Latency};
