//! Who floods: hears the frames of somebody honest, and sends others made after them as fast as one processor can.

use std::time::{Duration, Instant};

use thinwire_link::raw::RawSocket;

use crate::error::{LabError, Outcome, failed};

/// `thinwire-lab forge`.
#[derive(clap::Args, Clone, Debug)]
pub struct ForgeArgs {
    /// The interface.
    #[arg(long, value_name = "IFACE")]
    pub dev: String,
    /// Frames to forge, in hex, as they were heard; without any it listens, and prints those of the next session
    #[arg(long, value_name = "HEX")]
    pub like: Vec<String>,
    /// Send them to an EtherType and a port that nobody uses.
    #[arg(long)]
    pub astray: bool,
    /// For how long.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    pub seconds: f64,
}

/// Frames that are made beforehand and sent in turn: more than a target keeps in its tables of greetings.
const DISTINCT: usize = 4096;
/// Frames in a system call.
const BATCH: usize = 64;

/// Places in a frame: `docs/protocol.md`, "Frame header", "Messages", "0x25 KEYED_HELLO".
const KIND: usize = 1;
const LENGTH: usize = 4;
const SESSION: usize = 8;
const NUMBER: usize = 16;
const TAG: std::ops::Range<usize> = 32..48;
const NONCE: usize = 84;
const SESSION_FRAME: u8 = 1;
const GREETINGS: [u8; 2] = [2, 11];

const ETHERTYPE: [u8; 2] = [0x88, 0xb5];
const ETHERTYPE_UNUSED: [u8; 2] = [0x88, 0xb6];
const PORT: u16 = 34997;
const PORT_UNUSED: u16 = 34998;
/// Of Ethernet, IPv4 without options, UDP.
const MAC_BYTES: usize = 14;
const IP_BYTES: usize = 20;
const UDP_BYTES: usize = 8;

/// Does one of the two.
pub fn run(args: &ForgeArgs) -> Outcome {
    let socket = RawSocket::open(&args.dev, args.like.is_empty())
        .map_err(failed(format!("cannot open {}", args.dev)))?;
    match args.like.is_empty() {
        true => listen(&socket),
        false => pour(&socket, args),
    }
}

/// Prints `greeting HEX` of the first greeting, then `session HEX` of the first frame in a session.
fn listen(socket: &RawSocket) -> Outcome {
    let mut place = vec![0; 1 << 16];
    println!("listening");
    let mut greeted = false;
    loop {
        let bytes = socket.recv(&mut place).map_err(failed("cannot listen"))?;
        let frame = &place[..bytes];
        let Some(at) = start(frame) else { continue };
        let hex = || frame.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        match frame.get(at + KIND) {
            Some(kind) if GREETINGS.contains(kind) && !greeted => {
                greeted = true;
                println!("greeting {}", hex());
            }
            Some(&SESSION_FRAME) if greeted => {
                println!("session {}", hex());
                return Ok(());
            }
            _ => {}
        }
    }
}

/// Sends until the time is over, and prints how many frames that were.
fn pour(socket: &RawSocket, args: &ForgeArgs) -> Outcome {
    let mut frames = Vec::new();
    for (n, text) in args.like.iter().enumerate() {
        let heard = bytes(text).filter(|frame| start(frame).is_some());
        let heard = heard.ok_or_else(|| {
            LabError::Usage(format!("--like, number {}: no frame of Thinwire in hex", n + 1))
        })?;
        frames
            .push((0..DISTINCT).map(|n| forged(&heard, n as u32, args.astray)).collect::<Vec<_>>());
    }
    // One after the other of each kind.
    let mixed: Vec<Vec<u8>> =
        (0..DISTINCT).flat_map(|n| frames.iter().map(move |of| of[n].clone())).collect();
    let end = Instant::now() + Duration::from_secs_f64(args.seconds);
    let (mut sent, mut begun) = (0_u64, None);
    'all: loop {
        for batch in mixed.chunks(BATCH) {
            if Instant::now() >= end {
                break 'all;
            }
            begun.get_or_insert_with(Instant::now);
            // What the interface does not take is lost, as on a wire.
            sent += socket.send(batch).unwrap_or(0) as u64;
        }
    }
    let seconds = begun.map_or(0.0, |begun| begun.elapsed().as_secs_f64());
    println!("sent {sent} in {seconds:.3} s");
    Ok(())
}

/// Where Thinwire's part of a whole frame begins, if it is one that goes to a target.
fn start(frame: &[u8]) -> Option<usize> {
    let at = match frame.get(12..14)? {
        found if found == ETHERTYPE => MAC_BYTES,
        [0x08, 0x00] => {
            let port = frame.get(MAC_BYTES + IP_BYTES + 2..MAC_BYTES + IP_BYTES + 4)?;
            if frame.get(MAC_BYTES..MAC_BYTES + 1)? != [0x45] || port != PORT.to_be_bytes() {
                return None;
            }
            MAC_BYTES + IP_BYTES + UDP_BYTES
        }
        _ => return None,
    };
    (frame.len() >= at + NONCE + 8).then_some(at)
}

/// A frame like the one that was heard, with a checksum that fits if it has one.
///
/// A greeting has another nonce, so that it is a new one; every second comes from an address where nobody is,
/// the others from that of whoever was heard, with the cookie that belongs to it. A frame of a session comes
/// from that address, too, has a number that was not used, and a tag that fits nothing; every fourth names a
/// session that there is not.
fn forged(heard: &[u8], n: u32, astray: bool) -> Vec<u8> {
    let mut frame = heard.to_owned();
    let at = start(heard).expect("looked at before");
    let noise = |salt: u64| {
        // Steele, Lea, Flood: SplitMix64.
        let mut x = (u64::from(n) << 8 | salt).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ x >> 31).to_be_bytes()
    };
    if frame[at + KIND] == SESSION_FRAME {
        let number = &mut frame[at + NUMBER..at + NUMBER + 8];
        let heard = u64::from_be_bytes(number.try_into().expect("eight bytes"));
        number.copy_from_slice(&(heard + (1 << 32) + u64::from(n)).to_be_bytes());
        frame[at + TAG.start..at + TAG.start + 8].copy_from_slice(&noise(1));
        frame[at + TAG.start + 8..at + TAG.end].copy_from_slice(&noise(2));
        if n % 4 == 3 {
            // The upper half steers it to the target.
            frame[at + SESSION + 4..at + SESSION + 8].copy_from_slice(&noise(3)[..4]);
        }
    } else {
        frame[at + NONCE..at + NONCE + 8].copy_from_slice(&noise(4));
        if n % 2 == 0 {
            let from = noise(5);
            frame[6..8].copy_from_slice(&[0x02, 0x09]);
            frame[8..12].copy_from_slice(&from[..4]);
            if at > MAC_BYTES {
                frame[MAC_BYTES + 12 + 3] = 128 | from[4] & 63;
                frame[MAC_BYTES + IP_BYTES..MAC_BYTES + IP_BYTES + 2].copy_from_slice(&from[..2]);
            }
        }
        let length = usize::from(u16::from_be_bytes([frame[at + LENGTH], frame[at + LENGTH + 1]]));
        let end = (at + length).min(frame.len());
        frame[at + TAG.start..at + TAG.end].fill(0);
        let sum = crc32c::crc32c(&frame[at..end]);
        frame[at + TAG.start..at + TAG.start + 4].copy_from_slice(&sum.to_be_bytes());
    }
    match (at > MAC_BYTES, astray) {
        (false, true) => frame[12..14].copy_from_slice(&ETHERTYPE_UNUSED),
        (true, _) => {
            let port = if astray { PORT_UNUSED } else { PORT };
            let udp = MAC_BYTES + IP_BYTES;
            frame[udp + 2..udp + 4].copy_from_slice(&port.to_be_bytes());
            // None is as good as a right one.
            frame[udp + 6..udp + 8].fill(0);
            frame[MAC_BYTES + 10..MAC_BYTES + 12].fill(0);
            let sum = internet_sum(&frame[MAC_BYTES..udp]);
            frame[MAC_BYTES + 10..MAC_BYTES + 12].copy_from_slice(&sum.to_be_bytes());
        }
        (false, false) => {}
    }
    frame
}

/// RFC 1071, of a header whose own sum is zero.
fn internet_sum(header: &[u8]) -> u16 {
    let words = header.chunks_exact(2).map(|two| u32::from(u16::from_be_bytes([two[0], two[1]])));
    let mut sum: u32 = words.sum();
    while sum >> 16 > 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Of hex digits.
fn bytes(text: &str) -> Option<Vec<u8>> {
    let two = |at: usize| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
    (0..text.len()).step_by(2).map(two).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame of a kind, over Ethernet or over UDP.
    fn heard(kind: u8, over_udp: bool) -> Vec<u8> {
        let mut frame = vec![0x11; 12];
        match over_udp {
            false => frame.extend(ETHERTYPE),
            true => {
                frame.extend([0x08, 0x00, 0x45]);
                frame.resize(MAC_BYTES + IP_BYTES + UDP_BYTES, 0);
                frame[MAC_BYTES + IP_BYTES + 2..][..2].copy_from_slice(&PORT.to_be_bytes());
            }
        }
        let mut own = vec![0; 120];
        (own[KIND], own[LENGTH + 1]) = (kind, 120);
        frame.extend(own);
        frame
    }

    #[test]
    fn greetings_are_new_and_well_formed() {
        for over_udp in [false, true] {
            let heard = heard(11, over_udp);
            let at = start(&heard).unwrap();
            let made: Vec<Vec<u8>> = (0..4).map(|n| forged(&heard, n, false)).collect();
            for (n, frame) in made.iter().enumerate() {
                let mut own = frame[at..].to_owned();
                let sum = u32::from_be_bytes(own[TAG.start..TAG.start + 4].try_into().unwrap());
                own[TAG].fill(0);
                assert_eq!(crc32c::crc32c(&own), sum, "{n}");
                assert_eq!(frame[6..12] == heard[6..12], n % 2 == 1, "whose address");
                assert_eq!(start(frame), Some(at));
            }
            assert!(made[1][at..] != made[3][at..], "each has a nonce of its own");
        }
    }

    #[test]
    fn frames_of_the_session_differ_in_number_and_tag() {
        let heard = heard(SESSION_FRAME, false);
        let at = MAC_BYTES;
        let [one, other, stranger] = [0, 1, 3].map(|n| forged(&heard, n, false));
        assert_eq!(one[..at + NUMBER], heard[..at + NUMBER]);
        assert_ne!(one[at + NUMBER..at + NUMBER + 8], other[at + NUMBER..at + NUMBER + 8]);
        assert_ne!(one[at + TAG.start..at + TAG.end], heard[at + TAG.start..at + TAG.end]);
        assert_ne!(stranger[at + SESSION..at + NUMBER], heard[at + SESSION..at + NUMBER]);
    }

    #[test]
    fn what_goes_astray_reaches_no_target() {
        for over_udp in [false, true] {
            let frame = forged(&heard(SESSION_FRAME, over_udp), 0, true);
            assert_eq!(start(&frame), None);
            if over_udp {
                assert_eq!(internet_sum(&frame[MAC_BYTES..MAC_BYTES + IP_BYTES]), 0, "a right sum");
            }
        }
        assert_eq!(bytes("00ff1"), None);
        assert_eq!(bytes("00ff10"), Some(vec![0, 255, 16]));
    }
}
