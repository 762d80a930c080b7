//! Machines with disks of their own beside a world: what users of faces over local stores see when disks fail.

use thinwire_link::rng::Rng;

use super::pick;
use crate::client::Workload;
use crate::local::{LocalCanary, LocalDisk, LocalMachine, LocalPlan};
use crate::medium::{Device, MediumConfig, MediumHandle};
use crate::model::Violation;
use crate::run::RunReport;
use crate::world::{MS, SECOND};

/// Which share of the seeds has one.
const SHARE: f64 = 0.3;

/// The dice of a seed that has a machine with disks of its own.
fn dice(seed: u64) -> Option<Rng> {
    let mut dice = Rng::new(seed ^ 0x6f77_6e64_6973_6b73);
    dice.chance(SHARE).then_some(dice)
}

/// Runs the machine with disks of its own that this seed has beside its world, if it has one.
///
/// # Errors
/// A promise was broken.
pub fn run_local_disks(
    seed: u64,
    canary: Option<LocalCanary>,
    prints: bool,
) -> Result<Option<RunReport>, Violation> {
    build(seed, canary, prints).map(LocalMachine::run).transpose()
}

fn build(seed: u64, canary: Option<LocalCanary>, prints: bool) -> Option<LocalMachine> {
    let mut dice = dice(seed)?;
    let duration_ns = dice.between(SECOND / 2, 4 * SECOND);
    let plan = LocalPlan {
        duration_ns,
        ends_ns: pick(&mut dice, &[0, 200 * MS, SECOND]),
        power: pick(&mut dice, &[0.0, 0.5, 1.0]),
        lag_ns: pick(&mut dice, &[1_000, 50_000, 1_000_000]),
    };
    // All on one device, or each on its own.
    let shared = dice.chance(0.6).then(Device::new);
    let disks = (0..pick(&mut dice, &[1, 2, 2, 3])).map(|nth: u8| {
        let disk = LocalDisk {
            config: medium(&mut dice),
            block_bytes: pick(&mut dice, &[512, 512, 4096]),
            workload: workload(&mut dice, duration_ns),
        };
        let device = shared.clone().unwrap_or_else(Device::new);
        (MediumHandle::on(device, dice.bits(), [0xd0 | nth; 16], disk.config), disk)
    });
    let disks = disks.collect();
    Some(LocalMachine::new(dice.bits(), plan, disks, canary, prints))
}

fn medium(dice: &mut Rng) -> MediumConfig {
    let latency_ns = pick(dice, &[(1_000, 5_000), (20_000, 200_000), (1_000_000, 8_000_000)]);
    let mut rate = |share: f64, most: f64| if dice.chance(share) { most } else { 0.0 };
    MediumConfig {
        bytes: 1 << 18,
        latency_ns,
        slow: rate(0.3, 0.01),
        tells_late_ns: if rate(0.3, 1.0) > 0.0 { 4 * latency_ns.1 } else { 0 },
        flush_failure: rate(0.8, 0.15),
        device_failure: rate(0.6, 0.7),
        writeback_failure: rate(0.3, 0.02),
        write_failure: rate(0.15, 0.02),
        no_space: rate(0.15, 0.02),
        failure_takes_ns: if rate(0.5, 1.0) > 0.0 { 3 * latency_ns.1 } else { 0 },
        punch_hole: rate(0.7, 1.0) > 0.0,
        zero_range: rate(0.7, 1.0) > 0.0,
        lands_late_ns: 20 * MS,
        ..MediumConfig::default()
    }
}

fn workload(dice: &mut Rng, duration_ns: u64) -> Workload {
    let budget = dice.between(100, 1500);
    let pauses = pick(dice, &[0.02, 0.1, 0.5]);
    Workload {
        depth: pick(dice, &[1, 2, 8, 32]),
        budget,
        reads: pick(dice, &[1, 4, 10]),
        writes: 10,
        flushes: pick(dice, &[1, 3, 8]),
        discards: pick(dice, &[0, 1]),
        zeroes: pick(dice, &[0, 2]),
        fua: pick(dice, &[0.0, 0.1, 0.5]),
        sectors_max: pick(dice, &[8, 64]),
        hot: 0.8,
        hot_sectors: pick(dice, &[16, 64, 256]),
        pauses,
        pause_ns_max: (2.0 * duration_ns as f64 / (budget as f64 * pauses)) as u64,
        ..Workload::NONE
    }
}
