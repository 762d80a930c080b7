//! The asking side, which measures.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use thinwire_buffer::{Pool, RxBatch, RxFrame, TxBatch};
use thinwire_link::{HEAD_BYTES, Link};

use super::format::{Cut, EchoKind, Entry, Packer, Parsed};
use super::{ClientArgs, Direction, FRAMES_PER_CALL, LOOK, Library, MIB, PATIENCE, broken, idle};
use crate::error::LabError;

/// What is printed: the fields of `thinwire bench --json` that an echo has, under the same names.
#[derive(Debug, Serialize)]
struct Report {
    schema: u32,
    link: String,
    rw: &'static str,
    bs: u32,
    iodepth: u32,
    runtime_s: f64,
    ios: u64,
    iops: f64,
    mib_per_s: f64,
    latency_us: Latency,
    cpu_us_per_io: f64,
    lost: u64,
    tx_frames_per_call: f64,
}

#[derive(Debug, Serialize)]
struct Latency {
    mean: f64,
    p50: f64,
    p99: f64,
    p999: f64,
    max: f64,
}

/// Measures for as long as was asked and prints one JSON object.
pub fn run(args: &ClientArgs) -> Result<(), LabError> {
    let broken = broken(&args.link);
    let mut link = args.link.open(0).map_err(|e| broken(e.to_string()))?;
    let cut = Cut::new(args.bs, args.frame).ok_or_else(|| {
        LabError::Usage(format!("--bs {} is no multiple of --frame {}", args.bs, args.frame))
    })?;
    let room = link.info().frame_bytes.max;
    if HEAD_BYTES + args.frame as usize > room {
        return Err(LabError::Usage(format!(
            "--frame {}: {} takes frames of up to {room} bytes, {HEAD_BYTES} of them headers; \
             give a smaller one or raise the MTU",
            args.frame,
            link.name()
        )));
    }
    let mut turn = Turns::new(args, cut);
    let before = link.stats();
    let cpu_before = cpu_ns();
    let start = Instant::now();
    turn.until(&mut *link, Duration::from_secs_f64(args.runtime)).map_err(broken)?;
    let seconds = start.elapsed().as_secs_f64();
    let cpu_us = (cpu_ns() - cpu_before) as f64 / 1e3;
    let stats = link.stats();
    let h = &turn.latency_ns;
    let ios = h.len();
    if ios == 0 {
        return Err(LabError::Failed(format!(
            "{} does not answer on {}; is `thinwire-lab echo server` running there?",
            args.to,
            link.name()
        )));
    }
    let us = |quantile: f64| h.value_at_quantile(quantile) as f64 / 1e3;
    let (tx_frames, tx_calls) =
        (stats.tx_frames - before.tx_frames, stats.tx_calls - before.tx_calls);
    let iops = ios as f64 / seconds;
    let report = Report {
        schema: 1,
        link: link.name().to_owned(),
        rw: match args.rw {
            Direction::Read => "randread",
            Direction::Write => "randwrite",
        },
        bs: args.bs,
        iodepth: args.iodepth,
        runtime_s: seconds,
        ios,
        iops,
        mib_per_s: iops * f64::from(args.bs) / MIB as f64,
        latency_us: Latency {
            mean: h.mean() / 1e3,
            p50: us(0.5),
            p99: us(0.99),
            p999: us(0.999),
            max: h.max() as f64 / 1e3,
        },
        cpu_us_per_io: cpu_us / ios as f64,
        lost: turn.lost,
        tx_frames_per_call: tx_frames as f64 / tx_calls.max(1) as f64,
    };
    println!("{}", serde_json::to_string(&report).expect("own types are valid JSON"));
    Ok(())
}

fn cpu_ns() -> u64 {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    used.tv_sec as u64 * 1_000_000_000 + used.tv_nsec as u64
}

/// One of the outstanding requests.
#[derive(Clone)]
struct Outstanding {
    number: u32,
    sent: Instant,
    /// Frames or completions that are still to come; 0 in a free slot.
    left: u32,
    /// Where a read's block is copied to.
    buffer: Vec<u8>,
}

struct Turns<'a> {
    args: &'a ClientArgs,
    cut: Cut,
    pool: Pool,
    library: Library,
    slots: Vec<Outstanding>,
    /// Slots that are free.
    free: Vec<u32>,
    /// How often a slot was used is in the upper bits of a request's number.
    uses: Vec<u32>,
    latency_ns: Histogram<u64>,
    lost: u64,
}

/// Lower bits of a request's number: its slot.
const SLOT_BITS: u32 = 12;

impl<'a> Turns<'a> {
    fn new(args: &'a ClientArgs, cut: Cut) -> Self {
        let pool = Pool::new(64 * MIB);
        // What is never sent need not be there.
        let mib = if args.rw == Direction::Write { args.memory } else { 1 };
        let slot = Outstanding {
            number: 0,
            sent: Instant::now(),
            left: 0,
            buffer: vec![1; args.bs as usize],
        };
        Turns {
            args,
            cut,
            library: Library::new(mib, &pool),
            pool,
            slots: vec![slot; args.iodepth as usize],
            free: (0..args.iodepth).rev().collect(),
            uses: vec![0; args.iodepth as usize],
            latency_ns: Histogram::new(3).expect("three digits are allowed"),
            lost: 0,
        }
    }

    /// Keeps all slots busy until the time is over.
    fn until(&mut self, link: &mut dyn Link, limit: Duration) -> Result<(), String> {
        let (mut rx, mut tx, mut unsent) = (RxBatch::new(), TxBatch::new(), 0);
        let start = Instant::now();
        let mut last = start;
        let mut next_look = start + LOOK;
        loop {
            let now = Instant::now();
            if now - start > limit {
                return Ok(());
            }
            if now >= next_look {
                next_look = now + LOOK;
                self.give_up(now);
            }
            self.ask(now, &mut tx);
            if !tx.is_empty() || unsent > 0 {
                unsent = link.send(&mut tx).map_err(|e| e.to_string())?.unsent;
            }
            if link.recv(&self.pool, FRAMES_PER_CALL, &mut rx).map_err(|e| e.to_string())? == 0 {
                if tx.is_empty() && unsent == 0 {
                    idle(link, self.args.sleep, last);
                }
                continue;
            }
            last = Instant::now();
            for frame in rx.drain(..) {
                self.take(&frame, last);
            }
        }
    }

    /// Uses all free slots.
    fn ask(&mut self, now: Instant, tx: &mut TxBatch) {
        if self.free.is_empty() {
            return;
        }
        let writes = self.args.rw == Direction::Write;
        let kind = if writes { EchoKind::Write } else { EchoKind::Read };
        let mut packer = Packer::new(kind, self.cut, self.args.to);
        while let Some(at) = self.free.pop() {
            let uses = &mut self.uses[at as usize];
            *uses = uses.wrapping_add(1);
            let number = *uses << SLOT_BITS | at;
            let slot = &mut self.slots[at as usize];
            (slot.number, slot.sent) = (number, now);
            if !writes {
                slot.left = self.cut.pieces();
                packer.add(tx, Entry { number, piece: 0 }, None);
                continue;
            }
            slot.left = 1;
            let block = self.library.block(self.cut.block as usize);
            for piece in 0..self.cut.pieces() {
                let bytes = self.cut.piece() as usize;
                let part = block.slice(piece as usize * bytes, bytes);
                packer.add(tx, Entry { number, piece }, Some(part));
            }
        }
    }

    fn take(&mut self, frame: &RxFrame, now: Instant) {
        let Some(parsed) = Parsed::new(frame) else { return };
        if !matches!(parsed.kind, EchoKind::Data | EchoKind::Done) || parsed.cut != self.cut {
            return;
        }
        for (entry, payload) in parsed.entries() {
            let at = entry.number & ((1 << SLOT_BITS) - 1);
            let Some(slot) = self.slots.get_mut(at as usize) else { continue };
            if slot.number != entry.number || slot.left == 0 || entry.piece >= self.cut.pieces() {
                continue; // given up before
            }
            if parsed.kind == EchoKind::Data {
                let bytes = self.cut.piece() as usize;
                let offset = entry.piece as usize * bytes;
                parsed.copy(payload, &mut slot.buffer[offset..offset + bytes]);
            }
            slot.left -= 1;
            if slot.left == 0 {
                let ns = now.saturating_duration_since(slot.sent).as_nanos() as u64;
                self.latency_ns.record(ns.max(1)).expect("it grows as it must");
                self.free.push(at);
            }
        }
    }

    /// What has been outstanding for long is lost: its slots are free for others.
    fn give_up(&mut self, now: Instant) {
        for (at, slot) in self.slots.iter_mut().enumerate() {
            if slot.left > 0 && now.saturating_duration_since(slot.sent) > PATIENCE {
                slot.left = 0;
                self.lost += 1;
                self.free.push(at as u32);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_request_frees_its_slot_though_others_go_on() {
        let args = ClientArgs {
            link: "udp:127.0.0.1".parse().unwrap(),
            to: super::super::address("127.0.0.1:34997").unwrap(),
            rw: Direction::Read,
            bs: 4096,
            frame: 8192,
            iodepth: 2,
            runtime: 1.0,
            memory: 1,
            sleep: false,
        };
        let mut turns = Turns::new(&args, Cut::new(args.bs, args.frame).unwrap());
        let (start, mut tx) = (Instant::now(), TxBatch::new());
        turns.ask(start, &mut tx);
        assert!(turns.free.is_empty());
        turns.slots[0].sent = start + PATIENCE;
        turns.give_up(start + PATIENCE);
        assert_eq!(turns.lost, 0, "not late yet");
        turns.give_up(start + PATIENCE + Duration::from_millis(1));
        assert_eq!((turns.lost, &turns.free[..]), (1, &[1][..]));
        let before = turns.slots[1].number;
        turns.ask(start, &mut tx);
        assert_ne!(turns.slots[1].number, before, "what comes late is not taken for the new one");
    }
}
