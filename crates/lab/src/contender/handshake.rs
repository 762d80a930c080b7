//! How long a handshake takes: short benches are recorded (`--pcap`), from the first greeting of each to the
//! first frame of the session that it opens, which the initiator sends once it has all keys.

use std::time::{Duration, Instant};

use super::{patience, strs, words};
use crate::error::{LabError, Outcome, failed};
use crate::figures::Figures;
use crate::stand::{Laboratory, Network, Side};

/// Attaches again and again for so many seconds. A rate is that of attaching and letting go, each by a process
/// of its own; a latency is that of a handshake; CPU of the server is the caller's to add.
pub fn measure(
    lab: &Laboratory,
    network: &Network,
    guard: &[String],
    volume: &str,
    seconds: f64,
) -> Outcome<Figures> {
    let begun = Instant::now();
    let (mut taken, mut cpu) = (Vec::new(), Duration::ZERO);
    while begun.elapsed().as_secs_f64() < seconds {
        let (capture, run_dir) = (lab.fresh_path("pcap"), lab.fresh_path("run"));
        let mut argv = words![lab.executable(), "bench", volume, "--runtime", "0.001"];
        argv.extend(words!["--pcap", capture.display(), "--run-dir", run_dir.display()]);
        argv.extend(guard.iter().cloned());
        let process = network.start(Side::Initiator(1), &strs(&argv))?;
        cpu += process.finish(lab, patience(seconds))?.1;
        let frames = std::fs::read(&capture).map_err(failed("cannot read a capture"))?;
        let _ = std::fs::remove_file(&capture);
        let found = handshake_ns(&frames);
        taken.push(found.ok_or_else(|| LabError::Failed("no handshake was captured".into()))?);
    }
    let elapsed = begun.elapsed().as_secs_f64();
    taken.sort_unstable();
    let count = taken.len() as f64;
    let at = |share: f64| {
        let place = (count * share) as usize;
        taken.get(place.min(taken.len() - 1)).map(|&ns| ns as f64 / 1e3)
    };
    Ok(Figures {
        iops: count / elapsed,
        mean_us: taken.iter().sum::<u64>() as f64 / count / 1e3,
        p50_us: at(0.5),
        p99_us: at(0.99),
        cpu_client_us: cpu.as_secs_f64() * 1e6 / count,
        ..Figures::default()
    })
}

/// Kinds of frames: `docs/protocol.md`, "Frame kinds".
const SESSION: u8 = 1;
const PROBE: u8 = 7;
const GREETINGS: [u8; 2] = [2, 11];

/// Of a capture: from the first greeting to the first frame of a session.
fn handshake_ns(capture: &[u8]) -> Option<u64> {
    const FILE_HEADER: usize = 24;
    let number = |at: usize| {
        let bytes = capture.get(at..at + 4)?;
        Some(u32::from_ne_bytes(bytes.try_into().expect("four bytes")))
    };
    let (mut at, mut begun) = (FILE_HEADER, None);
    loop {
        let (second, ns, bytes) = (number(at)?, number(at + 4)?, number(at + 8)? as usize);
        let time = u64::from(second) * 1_000_000_000 + u64::from(ns);
        let kind = kind(capture.get(at + 16..at + 16 + bytes)?)?;
        match begun {
            None if GREETINGS.contains(&kind) => begun = Some(time),
            Some(begun) if [SESSION, PROBE].contains(&kind) => return Some(time - begun),
            _ => {}
        }
        at += 16 + bytes;
    }
}

/// Of a captured Ethernet frame: with an IPv4 header and one of UDP, or none.
fn kind(frame: &[u8]) -> Option<u8> {
    let headers = match frame.get(12..14)? {
        [0x08, 0x00] => 14 + 20 + 8,
        _ => 14,
    };
    frame.get(headers + 1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handshake_lasts_from_its_first_greeting_to_the_session() {
        let capture = |frames: &[(u32, u8)], udp: bool| {
            let mut all = vec![0; 24];
            for &(ns, kind) in frames {
                let mut frame = vec![0; if udp { 42 } else { 14 }];
                frame[12..14].copy_from_slice(if udp { &[8, 0] } else { &[0x88, 0xb5] });
                frame.extend([2, kind, 0, 0]);
                for word in [7, ns, frame.len() as u32, frame.len() as u32] {
                    all.extend(word.to_ne_bytes());
                }
                all.extend(frame);
            }
            all
        };
        // DISCOVER, KEYED_HELLO, RETRY, KEYED_HELLO, KEYED_ANSWER, SESSION.
        let frames = [(1, 5), (100, 11), (300, 10), (350, 11), (700, 12), (900, 1), (950, 1)];
        for udp in [false, true] {
            assert_eq!(handshake_ns(&capture(&frames, udp)), Some(800));
            assert_eq!(handshake_ns(&capture(&frames[..5], udp)), None, "no session came of it");
        }
        assert_eq!(handshake_ns(&capture(&[(100, 2), (500, 3), (600, 7)], false)), Some(500));
        assert_eq!(handshake_ns(&[]), None);
    }
}
