//! Fields of fixed width in network byte order, and the macro that makes messages of them.

use alloc::vec::Vec;

/// Longest node or export name in bytes.
pub const NAME_BYTES_MAX: usize = 64;
/// Longest explanation in bytes.
pub const TEXT_BYTES_MAX: usize = 200;

/// A value of fixed width on the wire.
pub(crate) trait Field: Copy {
    const BYTES: usize;
    /// From exactly `BYTES` bytes; `None` if they are reserved and not zero.
    fn get(bytes: &[u8]) -> Option<Self>;
    fn put(self, out: &mut Vec<u8>);
}

macro_rules! integer_field {
    ($($t:ty),*) => {$(
        impl Field for $t {
            const BYTES: usize = size_of::<$t>();
            fn get(bytes: &[u8]) -> Option<Self> {
                Some(<$t>::from_be_bytes(bytes.try_into().ok()?))
            }
            fn put(self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_be_bytes());
            }
        }
    )*};
}
integer_field!(u8, u16, u32, u64);

impl<const N: usize> Field for [u8; N] {
    const BYTES: usize = N;
    fn get(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok()
    }
    fn put(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self);
    }
}

/// Bytes that must be zero: reserved for later versions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Zero<const N: usize>;

impl<const N: usize> Field for Zero<N> {
    const BYTES: usize = N;
    fn get(bytes: &[u8]) -> Option<Self> {
        bytes.iter().all(|&b| b == 0).then_some(Zero)
    }
    fn put(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[0; N]);
    }
}

/// Declares a message of fixed size: the struct, its type number and length, `emit` and `parse`.
/// Fields appear in wire order after the four bytes every message starts with (type, message
/// flags, length).
macro_rules! fixed_message {
    (
        $(#[$meta:meta])*
        $name:ident = $number:expr, $len:expr, {
            $( $(#[$fmeta:meta])* $field:ident : $ty:ty ),* $(,)?
        } reserved $reserved:expr
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name {
            $( $(#[$fmeta])* pub $field: $ty, )*
        }

        impl $name {
            /// The message type number.
            pub const TYPE: u8 = $number;
            /// Length on the wire, with the four bytes every message starts with.
            pub const BYTES: usize = $len;

            /// Appends the message.
            pub fn emit(&self, out: &mut ::alloc::vec::Vec<u8>) {
                out.extend_from_slice(&[Self::TYPE, 0]);
                out.extend_from_slice(&(Self::BYTES as u16).to_be_bytes());
                $( $crate::field::Field::put(self.$field, out); )*
                out.extend_from_slice(&[0; $reserved]);
            }

            /// From a body of exactly the right length, without the first four bytes.
            pub(crate) fn parse(body: &[u8]) -> Result<Self, $crate::FrameError> {
                if body.len() != Self::BYTES - 4 {
                    return Err($crate::FrameError::MessageLength);
                }
                #[allow(unused_mut, reason = "a message may have no fields")]
                let mut rest = body;
                $(
                    let (bytes, tail) = rest.split_at(<$ty as $crate::field::Field>::BYTES);
                    let $field = <$ty as $crate::field::Field>::get(bytes)
                        .ok_or($crate::FrameError::Reserved)?;
                    rest = tail;
                )*
                if rest.iter().any(|&b| b != 0) {
                    return Err($crate::FrameError::Reserved);
                }
                Ok($name { $($field),* })
            }
        }

        const _: () = assert!(
            $name::BYTES == 4 + $reserved $( + <$ty as $crate::field::Field>::BYTES )*
            && $name::BYTES % 4 == 0
        );
    };
}
pub(crate) use fixed_message;

/// Reads fields one after the other out of a message of variable length.
pub(crate) struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn get<F: Field>(&mut self) -> Result<F, crate::FrameError> {
        F::get(self.take(F::BYTES)?).ok_or(crate::FrameError::Reserved)
    }

    pub fn take(&mut self, len: usize) -> Result<&'a [u8], crate::FrameError> {
        let (head, tail) = self.0.split_at_checked(len).ok_or(crate::FrameError::MessageLength)?;
        self.0 = tail;
        Ok(head)
    }

    /// A text: one byte of length, then that many bytes of UTF-8 without control characters.
    pub fn text(&mut self, max: usize) -> Result<&'a str, crate::FrameError> {
        let len = self.get::<u8>()? as usize;
        let bytes = self.take(len)?;
        let text = core::str::from_utf8(bytes).map_err(|_| crate::FrameError::MessageValue)?;
        if len > max || text.chars().any(char::is_control) {
            return Err(crate::FrameError::MessageValue);
        }
        Ok(text)
    }

    /// Nothing may follow but up to three zero bytes of padding.
    pub fn end(self) -> Result<(), crate::FrameError> {
        if self.0.len() > 3 {
            return Err(crate::FrameError::MessageLength);
        }
        if self.0.iter().any(|&b| b != 0) {
            return Err(crate::FrameError::Reserved);
        }
        Ok(())
    }
}

/// Appends a text as [`Reader::text`] reads it, cut at `max` bytes on a character border.
pub(crate) fn put_text(text: &str, max: usize, out: &mut Vec<u8>) {
    let mut end = text.len().min(max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    out.push(end as u8);
    // A control character would make the peer refuse the frame: it becomes a space.
    for c in text[..end].chars() {
        let mut utf8 = [0; 4];
        let shown = if c.is_control() { ' ' } else { c };
        let bytes = shown.encode_utf8(&mut utf8).as_bytes();
        out.extend_from_slice(bytes);
        // C1 controls take two bytes; keep the announced length.
        out.extend(core::iter::repeat_n(b' ', c.len_utf8() - bytes.len()));
    }
}

/// Appends a message of variable length: `body` writes it, then it is padded to four bytes and its
/// length filled in.
pub(crate) fn put_variable(number: u8, out: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[number, 0, 0, 0]);
    body(out);
    while !(out.len() - start).is_multiple_of(4) {
        out.push(0);
    }
    let len = (out.len() - start) as u16;
    out[start + 2..start + 4].copy_from_slice(&len.to_be_bytes());
}
