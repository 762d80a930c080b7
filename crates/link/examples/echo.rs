//! A bare echo over any link: what the wire and the kernel allow when the protocol is empty.
//!
//!     echo server --link udp:10.0.0.2
//!     echo client --link udp:10.0.0.1 --to 10.0.0.2:34997 --size 64 --reply 4288 --depth 32
//!
//! The server answers every request with as many frames of such a size as the client wants:
//! `--reply 8384 --replies 16` is how a large read travels, `--size 8384 --frames 16 --reply 64` how
//! a large write does. The client keeps `--depth` requests outstanding for `--seconds` and prints
//! one JSON object. Without `--to` it asks the group, and takes who answers first. Both spin unless
//! `--sleep` is given. What travels is taken from random places of `--memory` MiB, as the blocks of
//! a disk are: a frame's worth of memory that is always the same would never leave the cache.

use std::error::Error;
use std::io::Write;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::{ClockId, Timespec, clock_gettime};
use thinwire_buffer::{Addr, Pool, RxBatch, Segment, TxBatch, TxFrame};
use thinwire_link::{HEAD_BYTES, Link, LinkSpec, udp};

/// Sequence number (8), size of an answer's frames (4), how many they are (2), how many frames of
/// this request are still to come (2).
const HEADER_BYTES: usize = 16;
const FRAMES_PER_CALL: usize = 64;
/// What did not come back after this long is lost.
const PATIENCE: Duration = Duration::from_millis(200);

const USAGE: &str = "\
usage: echo server --link LINK [--seconds N] [--sleep]
       echo client --link LINK [--to ADDRESS] [--size BYTES] [--frames N] [--reply BYTES]
                   [--replies N] [--depth N] [--seconds N] [--sleep]
both:  [--memory MIB]";

struct Options {
    is_server: bool,
    link: LinkSpec,
    to: Option<Addr>,
    size: usize,
    frames: u16,
    reply: Option<usize>,
    replies: u16,
    depth: usize,
    memory_mib: usize,
    seconds: Option<f64>,
    sleeps: bool,
}

fn options() -> Result<Options, Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let is_server = match args.next().as_deref() {
        Some("server") => true,
        Some("client") => false,
        _ => return Err(USAGE.into()),
    };
    let (mut link, mut to, mut reply, mut seconds) = (None, None, None, None);
    let (mut size, mut depth, mut sleeps) = (64, 1, false);
    let (mut frames, mut replies, mut memory_mib) = (1, 1, 1);
    while let Some(flag) = args.next() {
        if flag == "--sleep" {
            sleeps = true;
            continue;
        }
        let value = args.next().ok_or_else(|| format!("{flag} needs a value\n{USAGE}"))?;
        match &flag[..] {
            "--link" => link = Some(value.parse::<LinkSpec>()?),
            "--to" => to = Some(address(&value).ok_or_else(|| format!("no address: {value}"))?),
            "--size" => size = value.parse()?,
            "--reply" => reply = Some(value.parse()?),
            "--frames" => frames = value.parse()?,
            "--replies" => replies = value.parse()?,
            "--memory" => memory_mib = value.parse()?,
            "--depth" => depth = value.parse()?,
            "--seconds" => seconds = Some(value.parse()?),
            _ => return Err(format!("unknown flag {flag}\n{USAGE}").into()),
        }
    }
    let link = link.ok_or(USAGE)?;
    if depth == 0 || size < HEADER_BYTES || reply.is_some_and(|reply| reply < HEADER_BYTES) {
        return Err(format!("depth must be 1 or more, sizes {HEADER_BYTES} or more").into());
    }
    if frames == 0 || replies == 0 || memory_mib == 0 {
        return Err("--frames, --replies and --memory must be 1 or more".into());
    }
    Ok(Options {
        is_server,
        link,
        to,
        size,
        frames,
        reply,
        replies,
        depth,
        memory_mib,
        seconds,
        sleeps,
    })
}

/// `02-00-00-00-00-02`, with dashes or colons, or `10.0.0.2:34997`.
fn address(text: &str) -> Option<Addr> {
    let parts: Vec<&str> = text.split(['-', ':']).collect();
    let bytes: Option<Vec<u8>> =
        parts.iter().map(|part| u8::from_str_radix(part, 16).ok()).collect();
    if let Some(mac) = bytes.and_then(|bytes| <[u8; 6]>::try_from(bytes).ok()) {
        return Some(Addr::Mac(mac));
    }
    text.parse().ok().map(Addr::Udp)
}

/// Sleeps until frames wait, if that is wanted.
fn idle(link: &dyn Link, sleeps: bool) {
    match link.fd() {
        Some(fd) if sleeps => {
            let limit = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
            let _ = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit));
        }
        _ => std::hint::spin_loop(),
    }
}

/// Where the content of frames comes from, by reference.
struct Filler {
    /// Pieces of a MiB.
    memory: Vec<Segment>,
    state: u64,
}

impl Filler {
    const BLOCK_BYTES: usize = 4096;

    fn new(options: &Options, pool: &Pool) -> Self {
        let memory = (0..options.memory_mib).map(|_| pool.get_zeroed(1 << 20).freeze());
        Filler { memory: memory.collect(), state: 1 }
    }

    fn below(&mut self, bound: usize) -> usize {
        self.state = self.state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.state >> 33) as usize % bound
    }

    /// Puts a frame of `bytes`, at most 64 KiB, together: the header, then some blocks.
    fn fill(&mut self, frame: &mut TxFrame, header: &[u8; HEADER_BYTES], bytes: usize) {
        frame.head.extend_from_slice(header);
        // The kernel copies slowly what changes its place in a cache line: as in Thinwire's frames.
        frame.head.resize(bytes.min(HEAD_BYTES), 0);
        let bytes = bytes - frame.head.len();
        let piece = self.below(self.memory.len());
        let blocks = ((1 << 20) - bytes) / Self::BLOCK_BYTES;
        let at = self.below(blocks) * Self::BLOCK_BYTES;
        frame.data.push(self.memory[piece].slice(at, bytes));
    }
}

fn header(number: u64, reply: usize, replies: u16, more: u16) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(&number.to_be_bytes());
    header[8..12].copy_from_slice(&(reply as u32).to_be_bytes());
    header[12..14].copy_from_slice(&replies.to_be_bytes());
    header[14..].copy_from_slice(&more.to_be_bytes());
    header
}

fn server(options: &Options) -> Result<(), Box<dyn Error>> {
    let mut link = options.link.open(udp::PORT_DEFAULT)?;
    let pool = Pool::new(64 << 20);
    let mut filler = Filler::new(options, &pool);
    let (mut rx, mut tx) = (RxBatch::new(), TxBatch::new());
    println!("ready {}", link.local());
    std::io::stdout().flush()?;
    let start = Instant::now();
    loop {
        if link.recv(&pool, FRAMES_PER_CALL, &mut rx)? == 0 {
            if options.seconds.is_some_and(|limit| start.elapsed().as_secs_f64() > limit) {
                eprintln!("{:?}", link.stats());
                return Ok(());
            }
            idle(&link, options.sleeps);
            continue;
        }
        for frame in rx.drain(..) {
            let Some(header) = frame.bytes.get(..HEADER_BYTES) else { continue };
            let header: &[u8; HEADER_BYTES] = header.try_into()?;
            let [b0, b1, b2, b3, r0, r1, 0, 0] = header[8..] else { continue };
            let wanted = u32::from_be_bytes([b0, b1, b2, b3]) as usize;
            let bytes = wanted.clamp(HEADER_BYTES, link.frame_bytes_max());
            for _ in 0..u16::from_be_bytes([r0, r1]) {
                filler.fill(tx.push(frame.from), header, bytes);
            }
        }
        link.send(&mut tx)?;
    }
}

/// Round trips in ns, in buckets about 3 % wide.
struct Histogram {
    counts: Vec<u64>,
    total: u64,
    sum_ns: u64,
    max_ns: u64,
}

impl Histogram {
    const STEPS: u64 = 32;

    fn new() -> Self {
        Histogram { counts: vec![0; 64 * Self::STEPS as usize], total: 0, sum_ns: 0, max_ns: 0 }
    }

    fn add(&mut self, ns: u64) {
        let exponent = (ns / Self::STEPS).checked_ilog2().map_or(0, |log| log + 1);
        let bucket =
            u64::from(exponent) * Self::STEPS + (ns >> exponent.saturating_sub(1)) % Self::STEPS;
        self.counts[bucket as usize] += 1;
        self.total += 1;
        self.sum_ns += ns;
        self.max_ns = self.max_ns.max(ns);
    }

    fn quantile_us(&self, quantile: f64) -> f64 {
        let mut left = (self.total as f64 * quantile).ceil() as u64;
        for (bucket, &count) in self.counts.iter().enumerate() {
            if count >= left {
                let (exponent, step) = (bucket as u64 / Self::STEPS, bucket as u64 % Self::STEPS);
                let ns = match exponent {
                    0 => step,
                    _ => (Self::STEPS + step) << (exponent - 1),
                };
                return ns as f64 / 1e3;
            }
            left -= count;
        }
        self.max_ns as f64 / 1e3
    }

    fn mean_us(&self) -> f64 {
        self.sum_ns as f64 / self.total.max(1) as f64 / 1e3
    }
}

/// Asks the group until somebody answers.
fn find(link: &mut dyn Link, pool: &Pool) -> Result<Addr, Box<dyn Error>> {
    let (mut rx, mut tx) = (RxBatch::new(), TxBatch::new());
    for _ in 0..50 {
        tx.push(Addr::Group).head.extend_from_slice(&header(0, HEADER_BYTES, 1, 0));
        link.send(&mut tx)?;
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(100) {
            if link.recv(pool, 1, &mut rx)? > 0 {
                return Ok(rx[0].from);
            }
        }
    }
    Err("nobody answers to the group; say --to ADDRESS".into())
}

fn cpu_ns() -> u64 {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    used.tv_sec as u64 * 1_000_000_000 + used.tv_nsec as u64
}

fn client(options: &Options) -> Result<(), Box<dyn Error>> {
    let mut link = options.link.open(0)?;
    let pool = Pool::new(64 << 20);
    let (size, depth) = (options.size, options.depth);
    let reply = options.reply.unwrap_or(size);
    if size.max(reply) > link.frame_bytes_max() {
        return Err(format!("{} takes frames up to {}", link.name(), link.frame_bytes_max()).into());
    }
    let to = match options.to {
        Some(to) => to,
        None => find(&mut link, &pool)?,
    };
    let mut filler = Filler::new(options, &pool);
    let (mut rx, mut tx) = (RxBatch::new(), TxBatch::new());
    // When a request was sent, and how many frames of its answer are still to come.
    let mut sent = vec![(Instant::now(), 0u16); depth];
    let mut histogram = Histogram::new();
    let mut lost = 0u64;
    let mut next = 0u64;
    let mut outstanding = 0usize;
    // Older sequence numbers were given up.
    let mut oldest = 0u64;
    let limit = Duration::from_secs_f64(options.seconds.unwrap_or(2.0));
    let before = link.stats();
    let cpu_before = cpu_ns();
    let start = Instant::now();
    let mut last = start;
    loop {
        let now = Instant::now();
        if now - start > limit {
            break;
        }
        while outstanding < depth {
            for more in (0..options.frames).rev() {
                filler.fill(tx.push(to), &header(next, reply, options.replies, more), size);
            }
            sent[next as usize % depth] = (now, options.replies);
            next += 1;
            outstanding += 1;
        }
        if !tx.is_empty() {
            link.send(&mut tx)?;
        }
        if link.recv(&pool, FRAMES_PER_CALL, &mut rx)? == 0 {
            if now - last > PATIENCE {
                lost += outstanding as u64;
                outstanding = 0;
                oldest = next;
                last = now;
            }
            idle(&link, options.sleeps);
            continue;
        }
        let now = Instant::now();
        last = now;
        for frame in rx.drain(..) {
            let Some(header) = frame.bytes.get(..8) else { continue };
            let number = u64::from_be_bytes(header.try_into()?);
            let (at, left) = &mut sent[number as usize % depth];
            if (oldest..next).contains(&number) && outstanding > 0 && *left > 0 {
                *left -= 1;
                if *left == 0 {
                    outstanding -= 1;
                    histogram.add(now.saturating_duration_since(*at).as_nanos() as u64);
                }
            }
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let cpu_us = (cpu_ns() - cpu_before) as f64 / 1e3;
    let stats = link.stats();
    let requests = histogram.total as f64;
    let request_bytes =
        (size * usize::from(options.frames)).max(reply * usize::from(options.replies));
    let h = &histogram;
    println!(
        "{{\"schema\":1,\"link\":\"{}\",\"size\":{size},\"reply\":{reply},\"depth\":{depth},\
         \"seconds\":{seconds:.3},\"requests_per_s\":{:.0},\"mib_per_s\":{:.1},\
         \"latency_us\":{{\"mean\":{:.1},\"p50\":{:.1},\"p99\":{:.1},\"p999\":{:.1},\"max\":{:.1}}},\
         \"cpu_us_per_request\":{:.2},\"lost\":{lost},\"tx_frames_per_call\":{:.1},\
         \"rx_frames_per_call\":{:.1}}}",
        link.name(),
        requests / seconds,
        requests * request_bytes as f64 / seconds / f64::from(1 << 20),
        h.mean_us(),
        h.quantile_us(0.5),
        h.quantile_us(0.99),
        h.quantile_us(0.999),
        h.max_ns as f64 / 1e3,
        cpu_us / requests.max(1.0),
        (stats.tx_frames - before.tx_frames) as f64
            / (stats.tx_calls - before.tx_calls).max(1) as f64,
        (stats.rx_frames - before.rx_frames) as f64
            / (stats.rx_calls - before.rx_calls).max(1) as f64,
    );
    if histogram.total == 0 {
        return Err(format!("{to} does not answer").into());
    }
    Ok(())
}

fn main() {
    let result = options().and_then(|options| match options.is_server {
        true => server(&options),
        false => client(&options),
    });
    if let Err(e) = result {
        eprintln!("{e}");
        std::process::exit(1);
    }
}
