//! Tests of the copy, on memory volumes.

use thinwire_volume::Volume;

use super::*;
use crate::bench::SplitMix;
use crate::copy::compare;
use crate::testing::{MemoryVolume, Mischief};

/// A source of 4 MiB with data here and there, written zeroes, and holes.
fn source(block_bytes: u32) -> MemoryVolume {
    let mut volume = MemoryVolume::new(4 << 20, block_bytes);
    let mut random = SplitMix::new(1);
    for at in [0, 300 << 10, (1 << 20) + 4096, (4 << 20) - 8192] {
        let bytes: Vec<u8> = (0..8192).map(|_| random.bits() as u8 | 1).collect();
        volume.scribble(at, &bytes);
    }
    volume.scribble(2 << 20, &[0; 512 << 10]);
    volume
}

fn run(from: &mut MemoryVolume, to: &mut MemoryVolume, blank: bool) -> Outcome<Copied> {
    let mut seen = 0;
    let mut progress = |bytes| {
        assert!(bytes >= seen);
        seen = bytes;
    };
    let mut watch = Watch::new(None, &mut progress);
    let bytes = from.content().len() as u64;
    let mut pair = CopyPair { source: from, destination: to, bytes, has_written: false };
    let copied = copy(&mut pair, blank, &mut watch)?;
    compare(&mut pair, &mut Watch::new(None, &mut |_| {}))?;
    assert_eq!(seen, bytes);
    Ok(copied)
}

#[test]
fn what_a_source_grows_by_is_not_copied() {
    let (mut from, mut to) = (source(512), MemoryVolume::new(4 << 20, 512));
    from.mischief = Mischief::Grow;
    run(&mut from, &mut to, true).unwrap();
    assert!(from.geometry().bytes > 4 << 20 && to.content() == from.content());
}

#[test]
fn the_copy_is_the_same_and_stays_sparse() {
    for (from_block, to_block) in [(512, 512), (512, 4096), (4096, 512)] {
        for (status, zeroes) in [(true, true), (false, true), (true, false), (false, false)] {
            for blank in [true, false] {
                let (mut from, mut to) = (source(from_block), MemoryVolume::new(5 << 20, to_block));
                from.features_mut().block_status = status;
                to.features_mut().write_zeroes = zeroes;
                if !blank {
                    to.scribble(0, &vec![0xee; 5 << 20]);
                }
                let copied = run(&mut from, &mut to, blank).unwrap();
                assert!(to.content()[..4 << 20] == *from.content());
                assert_eq!(to.flushes(), 1);
                assert!(copied.data_bytes <= if status { 128 << 10 } else { 1 << 20 });
                let written = to.written_blocks() as u64 * u64::from(to_block);
                if blank {
                    assert_eq!(written, copied.data_bytes);
                } else {
                    // Nothing beyond the source was touched.
                    assert!(to.content()[4 << 20..].iter().all(|b| *b == 0xee));
                }
            }
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let error = run(&mut source(512), &mut MemoryVolume::new(2 << 20, 512), true).unwrap_err();
    assert!(error.message.contains("too small") && error.message.contains("4194304"), "{error}");
    let mut odd = MemoryVolume::new(4096 + 512, 512);
    let error = run(&mut odd, &mut MemoryVolume::new(1 << 20, 4096), true).unwrap_err();
    assert!(error.message.contains("block"), "{error}");
}

#[test]
fn failures_name_the_side() {
    let (mut from, mut to) = (source(512), MemoryVolume::new(4 << 20, 512));
    from.mischief = Mischief::FailAll;
    assert!(run(&mut from, &mut to, true).unwrap_err().message.starts_with("source: read"));
    let (mut from, mut to) = (source(512), MemoryVolume::new(4 << 20, 512));
    to.mischief = Mischief::FailAll;
    assert!(run(&mut from, &mut to, true).unwrap_err().message.starts_with("destination: write"));
}

#[test]
fn a_lying_destination_is_found_by_comparing() {
    let (mut from, mut to) = (source(512), MemoryVolume::new(4 << 20, 512));
    from.features_mut().block_status = false;
    to.scribble(0, &vec![0xee; 4 << 20]);
    to.mischief = Mischief::FlipBits;
    let error = run(&mut from, &mut to, false).unwrap_err();
    assert!(error.message.contains("differs from the source at byte"), "{error}");
}
