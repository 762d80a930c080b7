//! The answering side.

use std::io::Write;
use std::time::Instant;

use thinwire_buffer::{Addr, Pool, RxBatch, TxBatch};
use thinwire_link::{HEAD_BYTES, Link, udp};

use super::format::{Cut, EchoKind, Entry, Packer, Parsed};
use super::{Dice, FRAMES_PER_CALL, Library, MIB, ServerArgs, broken, idle};
use crate::error::LabError;

/// Writes that may be under way at once: more than a client keeps outstanding.
const WRITES_MAX: usize = 8192;

/// Answers until the process is ended. Prints `ready ADDRESS` when it listens.
pub fn run(args: &ServerArgs) -> Result<(), LabError> {
    let broken = broken(&args.link);
    let mut link = args.link.open(udp::PORT_DEFAULT).map_err(|e| broken(e.to_string()))?;
    let pool = Pool::new(64 * MIB);
    let mut library = Library::new(args.memory, &pool);
    let mut disk = Disk::new(args.memory);
    let (mut rx, mut tx) = (RxBatch::new(), TxBatch::new());
    println!("ready {}", link.info().addr);
    let _ = std::io::stdout().flush();
    let mut last = Instant::now();
    let mut unsent = 0;
    loop {
        let found =
            link.recv(&pool, FRAMES_PER_CALL, &mut rx).map_err(|e| broken(e.to_string()))?;
        if found == 0 && tx.is_empty() && unsent == 0 {
            idle(&link, args.sleep, last);
            continue;
        }
        last = Instant::now();
        // All of a turn's answers to one client share frames.
        let mut answer: Option<(EchoKind, Addr, Cut, Packer)> = None;
        for frame in rx.drain(..) {
            let Some(parsed) = Parsed::new(&frame) else { continue };
            let (kind, cut) = match parsed.kind {
                EchoKind::Read => (EchoKind::Data, parsed.cut),
                EchoKind::Write => (EchoKind::Done, parsed.cut),
                EchoKind::Data | EchoKind::Done => continue,
            };
            if HEAD_BYTES + cut.frame as usize > link.info().frame_bytes.max {
                continue;
            }
            if !matches!(&answer, Some(a) if (a.0, a.1, a.2) == (kind, frame.from, cut)) {
                answer = Some((kind, frame.from, cut, Packer::new(kind, cut, frame.from)));
            }
            let packer = &mut answer.as_mut().expect("just set").3;
            for (entry, payload) in parsed.entries() {
                if kind == EchoKind::Data {
                    let block = library.block(cut.block as usize);
                    let bytes = cut.piece() as usize;
                    for piece in 0..cut.pieces() {
                        let part = block.slice(piece as usize * bytes, bytes);
                        packer.add(&mut tx, Entry { number: entry.number, piece }, Some(part));
                    }
                } else if disk.write(entry, cut, |place| parsed.copy(payload, place)) {
                    packer.add(&mut tx, Entry { number: entry.number, piece: 0 }, None);
                }
            }
        }
        unsent = link.send(&mut tx).map_err(|e| broken(e.to_string()))?.unsent;
    }
}

/// Where written blocks are copied to.
struct Disk {
    memory: Vec<u8>,
    dice: Dice,
    /// By number: which request it is, and how many of its pieces are here.
    writes: Vec<(u32, u32)>,
}

impl Disk {
    fn new(mib: u32) -> Self {
        let memory = vec![1; mib as usize * MIB];
        Disk { memory, dice: Dice(2), writes: vec![(u32::MAX, 0); WRITES_MAX] }
    }

    /// Has a piece copied to a random place. True when it was the last of its block.
    fn write(&mut self, entry: Entry, cut: Cut, copy: impl FnOnce(&mut [u8])) -> bool {
        let bytes = cut.piece() as usize;
        let at = self.dice.below((self.memory.len() - bytes) / 4096 + 1) * 4096;
        copy(&mut self.memory[at..at + bytes]);
        let (number, got) = &mut self.writes[entry.number as usize % WRITES_MAX];
        if *number != entry.number {
            (*number, *got) = (entry.number, 0);
        }
        *got += 1;
        *got == cut.pieces()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_is_done_with_its_last_piece() {
        let mut disk = Disk::new(1);
        let cut = Cut::new(16384, 8192).unwrap();
        let write = |disk: &mut Disk, number, piece| {
            disk.write(Entry { number, piece }, cut, |place| place.fill(7))
        };
        assert!(!write(&mut disk, 5, 0));
        assert!(!write(&mut disk, 6, 0));
        assert!(write(&mut disk, 5, 1));
        assert!(write(&mut disk, 6, 1));
        assert!(!write(&mut disk, 5 + WRITES_MAX as u32, 0), "the place is used again");
        assert!(disk.memory.contains(&7));
    }
}
