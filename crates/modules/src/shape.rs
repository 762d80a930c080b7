//! What volumes have in common, and the name of several.

use thinwire_volume::{Features, Geometry, Identity};

use crate::{Child, ModuleError};

/// What all of `children` can do, but for the size, which is the module's to set (it is 0): the largest block, the shortest of the
/// longest I/Os, the features that all have. Read-only if one of them is.
///
/// # Errors
/// There are none, or one takes less in an I/O than what would be one block.
pub fn common_geometry(module: &'static str, children: &[Child]) -> Result<Geometry, ModuleError> {
    let shapes: Vec<Geometry> = children.iter().map(|child| child.geometry()).collect();
    let all = |able: fn(&Features) -> bool| shapes.iter().all(|shape| able(&shape.features));
    let Some(block_bytes) = shapes.iter().map(|shape| shape.block_bytes).max() else {
        return Err(ModuleError::new(module, "has no volume to begin with: name at least one"));
    };
    let io_bytes_max = shapes.iter().map(|shape| shape.io_bytes_max).min().unwrap_or_default();
    if let Some(child) = shapes.iter().position(|shape| shape.io_bytes_max < block_bytes) {
        let longest = shapes[child].io_bytes_max;
        let why = format!(
            "takes at most {longest} bytes in one I/O, and the largest block of all is {block_bytes} \
             bytes: leave it out, or those with larger blocks"
        );
        return Err(ModuleError::of_child(module, child, why));
    }
    Ok(Geometry {
        bytes: 0,
        block_bytes,
        preferred_bytes: shapes.iter().map(|shape| shape.preferred_bytes).max().unwrap_or_default(),
        io_bytes_max: io_bytes_max - io_bytes_max % block_bytes,
        features: Features {
            read_only: !all(|features| !features.read_only),
            discard: all(|features| features.discard),
            write_zeroes: all(|features| features.write_zeroes),
            block_status: all(|features| features.block_status),
        },
    })
}

/// What a volume made of volumes is known by. FNV-1a of 128 bits: the same in every process, on every
/// machine.
pub struct IdentityHash(u128);

/// The hash of nothing.
const EMPTY: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;

impl IdentityHash {
    /// Of a module, which is another volume than another module over the same.
    pub fn new(module: &str) -> Self {
        let mut hash = IdentityHash(EMPTY);
        hash.add(module.as_bytes());
        hash.add(&[0]);
        hash
    }

    /// Whatever else makes it another volume. Of fixed length, or told apart from what follows.
    pub fn add(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u128::from(byte)).wrapping_mul(0x0100_0000_0000_0000_0000_013b);
        }
    }

    /// The next volume below, and which life of it.
    pub fn add_volume(&mut self, Identity { identity, incarnation }: Identity) {
        self.add(&identity);
        self.add(&incarnation.to_be_bytes());
    }

    /// The incarnation is the same hash, folded.
    pub fn identity(&self) -> Identity {
        let incarnation = (self.0 >> 64) as u64 ^ self.0 as u64;
        Identity { identity: self.0.to_be_bytes(), incarnation }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_that_of_the_book() {
        for (bytes, hash) in [
            (&b""[..], 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d),
            (b"a", 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964),
            (b"foobar", 0x343e_1662_793c_64bf_6f0d_3597_ba44_6f18),
        ] {
            let mut fnv = IdentityHash(EMPTY);
            fnv.add(bytes);
            assert_eq!(fnv.0, hash, "{bytes:?}");
        }
        let named = ["ab", "a", ""].map(|name| IdentityHash::new(name).identity());
        assert!(named[0] != named[1] && named[1] != named[2]);
    }
}
