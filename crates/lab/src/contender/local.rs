//! What needs no network: the null devices of Table IV, and a copy within memory.

use std::time::{Duration, Instant};

use super::{Contender, Meter, patience, strs, words};
use crate::error::{LabError, Outcome};
use crate::figures::Figures;
use crate::point::Load;
use crate::stand::{Laboratory, Process, VOLUME_MIB};

/// `thinwire bench null:SIZE`.
pub struct Null<'l> {
    lab: &'l Laboratory<'l>,
    volume: &'static str,
}

impl<'l> Null<'l> {
    pub fn new(lab: &'l Laboratory<'l>, switch: bool) -> Self {
        Null { lab, volume: if switch { "null:1G,switch" } else { "null:1G" } }
    }
}

impl Contender for Null<'_> {
    fn measure(&mut self, load: &Load, seconds: f64) -> Outcome<Figures> {
        let mut argv = words![self.lab.executable(), "bench", self.volume];
        argv.extend(super::thinwire::bench_flags(load, seconds));
        let meter = Meter::start(None);
        let process = Process::start(self.lab, None, &strs(&argv))?;
        let text = process.finish(self.lab, patience(seconds))?.0;
        let (mut figures, ios) = super::thinwire::one(&text)?;
        figures.cpu_machine_us = meter.stop(ios).1;
        Ok(figures)
    }
}

/// Blocks copied from random places to random places by this thread.
pub struct MemoryCopy {
    from: Vec<u8>,
    to: Vec<u8>,
}

impl MemoryCopy {
    pub fn new() -> Self {
        // Written, so that the pages are there.
        let memory = || vec![1_u8; (VOLUME_MIB as usize) << 20];
        MemoryCopy { from: memory(), to: memory() }
    }
}

impl Contender for MemoryCopy {
    fn measure(&mut self, load: &Load, seconds: f64) -> Outcome<Figures> {
        let block = load.block as usize;
        let blocks = self.from.len() / block;
        if blocks == 0 {
            return Err(LabError::Failed(format!("blocks of {block} bytes are too large")));
        }
        let mut state = 1_u64;
        let mut random = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as usize % blocks * block
        };
        let meter = Meter::start(None);
        let start = Instant::now();
        let limit = Duration::from_secs_f64(seconds);
        let mut ios = 0.0;
        while start.elapsed() < limit {
            for _ in 0..64 {
                let (from, to) = (random(), random());
                self.to[to..to + block].copy_from_slice(&self.from[from..from + block]);
            }
            ios += 64.0;
        }
        let elapsed = start.elapsed().as_secs_f64();
        let each_us = elapsed * 1e6 / ios;
        let (_, cpu_machine_us) = meter.stop(ios);
        Ok(Figures {
            iops: ios / elapsed,
            mib_per_s: ios * block as f64 / elapsed / f64::from(1 << 20),
            mean_us: each_us,
            cpu_client_us: each_us,
            cpu_machine_us,
            ..Figures::default()
        })
    }
}
