//! Sums of data, end to end, one for each piece (`docs/protocol.md`, "Integrity"): made where the bytes are taken,
//! compared where they are given away.
//!
//! They are kept as they stand on the wire, in pooled memory that is shared as data is: what is retained, sent
//! again or replayed has the sums that were made first.

use thinwire_buffer::{Pool, Segment};
use thinwire_wire::SUM_BYTES;

use crate::checksum::crc32c;

/// Pieces end at multiples of this many bytes of the volume.
pub const PIECE_BYTES: u64 = 4096;

/// How sums are made. There is one way; the others are planted for the simulator to find (`docs/design.md`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum SumCanary {
    /// None: sums as they are.
    #[default]
    None,
    /// They do not cover where the bytes belong.
    Placeless,
}

/// How many pieces so many bytes from `address` on have.
#[inline]
pub const fn pieces(address: u64, length: u64) -> usize {
    ((address % PIECE_BYTES + length).div_ceil(PIECE_BYTES)) as usize
}

/// Calls `tell` with the sum of each piece of `data`, none of whose segments is empty, and which belongs
/// at `address` of the volume.
#[inline]
fn each_sum<'a>(
    mut address: u64,
    mut data: impl Iterator<Item = &'a [u8]>,
    canary: SumCanary,
    mut tell: impl FnMut(u32),
) {
    let mut here: &[u8] = data.next().unwrap_or_default();
    while !here.is_empty() {
        let mut left = (PIECE_BYTES - address % PIECE_BYTES) as usize;
        let place = if canary == SumCanary::Placeless { 0 } else { address };
        address += left as u64;
        tell(crc32c(|digest| {
            digest.update(&place.to_be_bytes());
            while left > 0 && !here.is_empty() {
                let (now, later) = here.split_at(left.min(here.len()));
                digest.update(now);
                left -= now.len();
                here = if later.is_empty() { data.next().unwrap_or_default() } else { later };
            }
        }));
    }
}

/// The sums of `data`, which are `length` bytes and belong at `address` of the volume: [`SUM_BYTES`] for each
/// piece, in memory of `pool`.
pub fn sums_of<'a>(
    pool: &Pool,
    address: u64,
    length: u64,
    data: impl Iterator<Item = &'a [u8]>,
    canary: SumCanary,
) -> Segment {
    let mut sums = pool.get_small(SUM_BYTES * pieces(address, length));
    let mut places = sums.chunks_exact_mut(SUM_BYTES);
    each_sum(address, data, canary, |sum| {
        if let Some(place) = places.next() {
            place.copy_from_slice(&sum.to_be_bytes());
        }
    });
    // Of data that is shorter than was said: no sum of it may be what lay there.
    places.for_each(|place| place.fill(0));
    sums.freeze()
}

/// Whether these are the sums of `data`, which belongs at `address` of the volume.
pub fn sums_fit<'a>(
    sums: &[u8],
    address: u64,
    data: impl Iterator<Item = &'a [u8]>,
    canary: SumCanary,
) -> bool {
    let mut told = sums.chunks_exact(SUM_BYTES);
    let mut fit = true;
    each_sum(address, data, canary, |sum| fit &= told.next() == Some(&sum.to_be_bytes()[..]));
    fit && told.next().is_none()
}

/// The sums of the part `from..to` of a write of `length` bytes at `address`, whose bytes `read` copies from an address on: those
/// that were made of its pieces. A piece that is cut gets another, if it fits its own, and else one that does not fit.
pub fn sums_of_part(
    pool: &Pool,
    sums: &Segment,
    (address, length): (u64, u64),
    (from, to): (u64, u64),
    canary: SumCanary,
    mut read: impl FnMut(u64, &mut [u8]),
) -> Segment {
    let end = address + length;
    let first = (from / PIECE_BYTES - address / PIECE_BYTES) as usize;
    let mut part = pool.get_small(SUM_BYTES * pieces(from, to - from));
    let mut piece = [0; PIECE_BYTES as usize];
    let mut start = from;
    for (nth, place) in part.chunks_exact_mut(SUM_BYTES).enumerate() {
        let own = &sums[(first + nth) * SUM_BYTES..][..SUM_BYTES];
        let block = start - start % PIECE_BYTES;
        let whole = (block.max(address), (block + PIECE_BYTES).min(end));
        let cut = (start, (block + PIECE_BYTES).min(to));
        start = block + PIECE_BYTES;
        if cut == whole {
            place.copy_from_slice(own);
            continue;
        }
        let bytes = &mut piece[..(whole.1 - whole.0) as usize];
        read(whole.0, bytes);
        let is_good = sums_fit(own, whole.0, std::iter::once(&bytes[..]), canary);
        let bytes = &bytes[(cut.0 - whole.0) as usize..(cut.1 - whole.0) as usize];
        each_sum(cut.0, std::iter::once(bytes), canary, |sum| {
            let sum = if is_good { sum } else { !sum };
            place.copy_from_slice(&sum.to_be_bytes());
        });
    }
    part.freeze()
}

#[cfg(test)]
mod tests {
    use thinwire_buffer::SegList;

    use super::*;

    const NONE: SumCanary = SumCanary::None;

    fn list(pool: &Pool, bytes: &[u8], cuts: &[usize]) -> SegList {
        let mut all = SegList::new();
        let mut at = 0;
        for &cut in cuts.iter().chain([&bytes.len()]) {
            all.push(pool.copy_of(&bytes[at..cut]).freeze());
            at = cut;
        }
        all
    }

    fn slices(list: &SegList) -> impl Iterator<Item = &[u8]> {
        list.iter().map(|segment| &segment[..])
    }

    fn bytes(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at ^ (at >> 8)) as u8).collect()
    }

    #[test]
    fn pieces_are_those_of_the_volume() {
        for (address, length, count) in [
            (0, 512, 1),
            (0, 4096, 1),
            (3584, 512, 1),
            (3584, 1024, 2),
            (512, 4096, 2),
            (8192, 8192, 2),
            (512, 1 << 20, 257),
        ] {
            assert_eq!(pieces(address, length), count, "{length} at {address}");
        }
    }

    /// However the memory is cut; and a bit, a place or a piece that is another is seen.
    #[test]
    fn sums_tell_what_was_altered() {
        let pool = Pool::new(0);
        let content = bytes(9728);
        let address = 4096 * 7 + 512;
        let plain = list(&pool, &content, &[]);
        let sums = sums_of(&pool, address, 9728, slices(&plain), NONE);
        assert_eq!(sums.len(), 3 * SUM_BYTES);
        for cuts in [&[][..], &[3584], &[512, 1024, 9000], &[4096, 8192]] {
            let cut = list(&pool, &content, cuts);
            assert!(sums_fit(&sums, address, slices(&cut), NONE), "{cuts:?}");
        }
        for at in [0, 3583, 3584, 7679, 7680, 9727] {
            let mut altered = content.clone();
            altered[at] ^= 4;
            let altered = list(&pool, &altered, &[512]);
            assert!(!sums_fit(&sums, address, slices(&altered), NONE), "byte {at}");
        }
        assert!(!sums_fit(&sums, address + 4096, slices(&plain), NONE), "elsewhere");
        assert!(!sums_fit(&sums[4..], address, slices(&plain), NONE), "one too few");
        let shorter = list(&pool, &content[..7680], &[]);
        assert!(!sums_fit(&sums, address, slices(&shorter), NONE), "one too many");
        let placeless = sums_of(&pool, address, 9728, slices(&plain), SumCanary::Placeless);
        assert!(sums_fit(&placeless, address + 4096, slices(&plain), SumCanary::Placeless));
    }

    /// A cut piece is vouched for as long as all of it is as it was.
    #[test]
    fn the_sums_of_a_part_are_never_better_than_those_of_the_whole() {
        let pool = Pool::new(0);
        let (content, address) = (bytes(9728), 512u64);
        let sums = sums_of(&pool, address, 9728, std::iter::once(&content[..]), NONE);
        let parts =
            [(512, 10240), (512, 4096), (1024, 8192), (1024, 1536), (4096, 8192), (9216, 10240)];
        for damaged in [None, Some(0), Some(3583), Some(9727)] {
            let mut kept = content.clone();
            if let Some(at) = damaged {
                kept[at] ^= 1;
            }
            for (from, to) in parts {
                let read = |at: u64, out: &mut [u8]| {
                    out.copy_from_slice(&kept[(at - address) as usize..][..out.len()]);
                };
                let part = sums_of_part(&pool, &sums, (address, 9728), (from, to), NONE, read);
                let bytes = &kept[(from - address) as usize..(to - address) as usize];
                let fit = sums_fit(&part, from, std::iter::once(bytes), NONE);
                // Blocks that hold the damage and something of the part.
                let block = |at: u64| at / PIECE_BYTES;
                let touched = damaged.map(|at| block(at as u64 + address));
                let is_touched =
                    touched.is_some_and(|b| (block(from)..=block(to - 1)).contains(&b));
                assert_eq!(fit, !is_touched, "{from}..{to}, damaged at {damaged:?}");
            }
        }
    }
}
