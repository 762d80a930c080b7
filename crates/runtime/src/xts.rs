//! AES-256-XTS (IEEE 1619) of AWS-LC, for encrypted volumes: [`Aes256Xts`].
//!
//! `aws-lc-rs` has no XTS, so its library is called here, and nowhere else, as it is.

#[cfg(test)]
mod tests;

use std::ffi::c_int;
use std::ptr::{NonNull, null, null_mut};

use aws_lc_sys::{
    EVP_CIPHER_CTX, EVP_CIPHER_CTX_free, EVP_CIPHER_CTX_new, EVP_CipherInit_ex, EVP_CipherUpdate,
    EVP_aes_256_xts,
};
use thinwire_modules::XtsCipher;

/// Bytes of a key: of the data, then of the tweaks.
pub const XTS_KEY_BYTES: usize = 64;

/// The cipher of one volume, with its key. The library overwrites what it made of the key when this is dropped.
pub struct Aes256Xts {
    encrypts: Context,
    decrypts: Context,
}

impl Aes256Xts {
    /// With this key, which whoever calls overwrites. `None` if its halves are the same, which XTS does not allow, or there is no memory.
    pub fn new(key: &[u8; XTS_KEY_BYTES]) -> Option<Self> {
        Some(Aes256Xts { encrypts: Context::new(key, true)?, decrypts: Context::new(key, false)? })
    }
}

impl XtsCipher for Aes256Xts {
    fn encrypt(&mut self, block_bytes: usize, first: u64, bytes: &mut [u8]) {
        self.encrypts.all(block_bytes, first, bytes);
    }

    fn decrypt(&mut self, block_bytes: usize, first: u64, bytes: &mut [u8]) {
        self.decrypts.all(block_bytes, first, bytes);
    }
}

/// One direction, which has the key and takes a tweak for each block. Not `Send`: it belongs to one shard.
struct Context(NonNull<EVP_CIPHER_CTX>);

impl Context {
    fn new(key: &[u8; XTS_KEY_BYTES], encrypts: bool) -> Option<Self> {
        // SAFETY: takes nothing, and gives memory that is ours, or null.
        let context = Context(NonNull::new(unsafe { EVP_CIPHER_CTX_new() })?);
        // SAFETY: the context is live; this cipher takes a key of 64 bytes, which is, and copies what it needs of it.
        let is_set = unsafe {
            let at = context.0.as_ptr();
            EVP_CipherInit_ex(
                at,
                EVP_aes_256_xts(),
                null_mut(),
                key.as_ptr(),
                null(),
                c_int::from(encrypts),
            )
        };
        (is_set == 1).then_some(context)
    }

    fn all(&mut self, block_bytes: usize, first: u64, bytes: &mut [u8]) {
        assert!(
            bytes.len().is_multiple_of(block_bytes),
            "{} bytes are no whole blocks",
            bytes.len()
        );
        for (nth, block) in bytes.chunks_exact_mut(block_bytes).enumerate() {
            self.one(first + nth as u64, block);
        }
    }

    /// One block, where it stands.
    fn one(&mut self, number: u64, block: &mut [u8]) {
        // XTS is defined from one block of AES on, and to 2^20 of them; with whole ones nothing is stolen.
        assert!((16..=1 << 20).contains(&block.len()) && block.len().is_multiple_of(16));
        let mut tweak = [0; 16];
        tweak[..8].copy_from_slice(&number.to_le_bytes());
        let (at, mut len) = (block.as_mut_ptr(), 0);
        // SAFETY: the context is live and ours, and has the cipher and its key, which a call with neither leaves (a direction of -1, too); the
        // tweak is of 16 bytes, as this cipher takes, and copied. Input and output are the same live memory, which the library allows, of
        // `block.len()` bytes, all of which this cipher writes in this call: it holds back none.
        let is_done = unsafe {
            let context = self.0.as_ptr();
            EVP_CipherInit_ex(context, null(), null_mut(), null(), tweak.as_ptr(), -1) == 1
                && EVP_CipherUpdate(context, at, &raw mut len, at, block.len() as c_int) == 1
        };
        assert!(
            is_done && len as usize == block.len(),
            "a block of {} bytes was not taken",
            block.len()
        );
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: it is ours, and nobody has it any more.
        unsafe { EVP_CIPHER_CTX_free(self.0.as_ptr()) }
    }
}
