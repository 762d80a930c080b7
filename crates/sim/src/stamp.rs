//! What the simulated clients write: every sector says where it belongs, who wrote it and when, in
//! all of its bytes, so that a wrong, old or torn one is seen.

/// The unit of atomicity of a disk.
pub const SECTOR_BYTES: usize = 512;

const WORDS: usize = SECTOR_BYTES / 8;

/// What a sector holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Zeroes.
    Zero,
    /// A whole stamp.
    Stamp {
        /// The sector it belongs to.
        address: u64,
        /// Which run of an initiator wrote it.
        run: u32,
        /// Which write of the export.
        version: u64,
    },
    /// Neither: torn, damaged, or of another place.
    Garbage,
}

fn mix(address: u64, run: u32, version: u64) -> u64 {
    let mut z = address.wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ version.wrapping_mul(0xbf58_476d_1ce4_e5b9)
        ^ u64::from(run).wrapping_mul(0x94d0_49bb_1331_11eb);
    z = (z ^ (z >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z ^ (z >> 29)
}

/// Stamps one sector. `version` is not zero.
pub fn stamp(sector: &mut [u8], address: u64, run: u32, version: u64) {
    assert!(sector.len() == SECTOR_BYTES && version != 0);
    let mut word = mix(address, run, version);
    for (nth, out) in sector.chunks_exact_mut(8).enumerate() {
        let value = match nth {
            0 => address,
            1 => version,
            2 => u64::from(run),
            _ => {
                word = word.rotate_left(7).wrapping_add(version);
                word
            }
        };
        out.copy_from_slice(&value.to_le_bytes());
    }
}

/// Reads a sector.
pub fn look(sector: &[u8]) -> Seen {
    debug_assert_eq!(sector.len(), SECTOR_BYTES);
    let word_at = |nth: usize| {
        u64::from_le_bytes(sector[nth * 8..nth * 8 + 8].try_into().expect("eight bytes"))
    };
    let (address, version, run) = (word_at(0), word_at(1), word_at(2));
    if version == 0 {
        let zero = sector.iter().all(|&b| b == 0);
        return if zero { Seen::Zero } else { Seen::Garbage };
    }
    let Ok(run) = u32::try_from(run) else { return Seen::Garbage };
    let mut word = mix(address, run, version);
    for nth in 3..WORDS {
        word = word.rotate_left(7).wrapping_add(version);
        if word_at(nth) != word {
            return Seen::Garbage;
        }
    }
    Seen::Stamp { address, run, version }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_counts() {
        let mut sector = [0; SECTOR_BYTES];
        assert_eq!(look(&sector), Seen::Zero);
        stamp(&mut sector, 5, 2, 77);
        assert_eq!(look(&sector), Seen::Stamp { address: 5, run: 2, version: 77 });
        for at in 0..SECTOR_BYTES {
            let mut torn = sector;
            torn[at] ^= 0x40;
            assert_eq!(look(&torn), Seen::Garbage, "byte {at}");
        }
        let mut other = [0; SECTOR_BYTES];
        stamp(&mut other, 5, 2, 78);
        other[..256].copy_from_slice(&sector[..256]);
        assert_eq!(look(&other), Seen::Garbage);
    }
}
