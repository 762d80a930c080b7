//! Fields of messages in network byte order, and the macro that makes messages of them.

use alloc::vec::Vec;

use crate::FrameError;

/// Longest node or export name in bytes.
pub const NAME_BYTES_MAX: usize = 64;
/// Longest explanation in bytes.
pub const TEXT_BYTES_MAX: usize = 200;
/// Most bytes of what is sealed within a message.
pub const SECRET_BYTES_MAX: usize = 1024;

/// Where fields are written.
pub(crate) trait Out {
    fn add(&mut self, bytes: &[u8]);
}

impl Out for Vec<u8> {
    #[inline]
    fn add(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// The place of a message of fixed length: its fields need not ask for room one by one.
pub(crate) struct Place<'a>(pub &'a mut [u8]);

impl Out for Place<'_> {
    #[inline(always)]
    fn add(&mut self, bytes: &[u8]) {
        let (here, rest) = core::mem::take(&mut self.0).split_at_mut(bytes.len());
        here.copy_from_slice(bytes);
        self.0 = rest;
    }
}

/// A value on the wire.
pub(crate) trait Field<'a>: Copy {
    /// Its width, where that is always the same.
    const BYTES: Option<usize>;
    fn get(r: &mut Reader<'a>) -> Result<Self, FrameError>;
    fn put(self, out: &mut impl Out);
}

macro_rules! integer_field {
    ($($t:ty),*) => {$(
        impl Field<'_> for $t {
            const BYTES: Option<usize> = Some(size_of::<$t>());
            #[inline(always)]
            fn get(r: &mut Reader<'_>) -> Result<Self, FrameError> {
                Ok(<$t>::from_be_bytes(r.array()?))
            }
            #[inline(always)]
            fn put(self, out: &mut impl Out) {
                out.add(&self.to_be_bytes());
            }
        }
    )*};
}
integer_field!(u8, u16, u32, u64);

impl<const N: usize> Field<'_> for [u8; N] {
    const BYTES: Option<usize> = Some(N);
    fn get(r: &mut Reader<'_>) -> Result<Self, FrameError> {
        r.array()
    }
    fn put(self, out: &mut impl Out) {
        out.add(&self);
    }
}

/// How a field is written. Most say it by their type; texts differ in how long they may be.
pub(crate) trait Codec<'a, T> {
    const BYTES: Option<usize>;
    fn get(r: &mut Reader<'a>) -> Result<T, FrameError>;
    fn put(value: T, out: &mut impl Out);
}

/// As its type says.
pub(crate) struct Plain;
/// A text of at most [`NAME_BYTES_MAX`] bytes.
pub(crate) struct Name;
/// A text of at most [`TEXT_BYTES_MAX`] bytes.
pub(crate) struct Text;
/// At most [`SECRET_BYTES_MAX`] bytes that mean nothing here.
pub(crate) struct Secret;

impl<'a, T: Field<'a>> Codec<'a, T> for Plain {
    const BYTES: Option<usize> = T::BYTES;
    #[inline(always)]
    fn get(r: &mut Reader<'a>) -> Result<T, FrameError> {
        T::get(r)
    }
    #[inline(always)]
    fn put(value: T, out: &mut impl Out) {
        value.put(out);
    }
}

macro_rules! text_codec {
    ($($codec:ident: $max:expr),*) => {$(
        impl<'a> Codec<'a, &'a str> for $codec {
            const BYTES: Option<usize> = None;
            fn get(r: &mut Reader<'a>) -> Result<&'a str, FrameError> {
                r.text($max)
            }
            fn put(value: &'a str, out: &mut impl Out) {
                put_text(value, $max, out);
            }
        }
    )*};
}
text_codec!(Name: NAME_BYTES_MAX, Text: TEXT_BYTES_MAX);

impl<'a> Codec<'a, &'a [u8]> for Secret {
    const BYTES: Option<usize> = None;
    fn get(r: &mut Reader<'a>) -> Result<&'a [u8], FrameError> {
        let len = usize::from(r.get::<u16>()?);
        if len > SECRET_BYTES_MAX {
            return Err(FrameError::MessageValue);
        }
        r.take(len)
    }
    fn put(value: &'a [u8], out: &mut impl Out) {
        debug_assert!(value.len() <= SECRET_BYTES_MAX);
        out.add(&(value.len() as u16).to_be_bytes());
        out.add(value);
    }
}

/// What a message can do besides being a struct. See [`message`].
pub(crate) trait Body<'a>: Sized {
    /// From what stands behind the four bytes that every message starts with. Where the message has
    /// payload, that begins at `payload_at` in the frame.
    fn read(body: &'a [u8], payload_at: usize) -> Result<Self, FrameError>;
    /// Bytes of payload that belong to it.
    #[inline]
    fn payload_bytes(&self) -> u32 {
        0
    }
    /// Appends the message, these four bytes included.
    fn write(&self, out: &mut Vec<u8>);
    /// The name and the bytes of each field in the order of the wire, also of reserved ones.
    fn each_field(&self, see: &mut dyn FnMut(&'static str, &[u8]));
}

/// Declares a message: the struct, its type number, `emit`, and how it is read.
///
/// Fields stand in the order of the wire, behind the four bytes that every message starts with (type,
/// message flags, length). `as` names the [`Codec`] of a text, `=> zero N` are bytes behind a field that
/// must be zero: reserved for later versions. `check` looks at what was read, as a `Result<(), FrameError>`.
macro_rules! message {
    (
        $(#[$meta:meta])*
        $name:ident $(<$life:lifetime>)? = $number:literal {
            $(
                $(#[$fmeta:meta])*
                $field:ident : $ty:ty $(as $codec:ident)? $(=> zero $zero:literal)?
            ),* $(,)?
        } $(check |$checked:ident| $check:expr)?
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name $(<$life>)? {
            $( $(#[$fmeta])* pub $field: $ty, )*
        }

        impl $(<$life>)? $name $(<$life>)? {
            /// The message type number.
            pub const TYPE: u8 = $number;

            /// Length on the wire, with the four bytes every message starts with; for a message of
            /// variable length 0.
            pub const BYTES: usize = {
                #[allow(unused_mut, reason = "a message may have no fields")]
                let (mut bytes, mut is_fixed) = (4, true);
                $(
                    match $crate::field::codec!($ty $(, $codec)?; BYTES) {
                        Some(width) => bytes += width,
                        None => is_fixed = false,
                    }
                    $( bytes += $zero; )?
                )*
                assert!(!is_fixed || bytes % 4 == 0);
                if is_fixed { bytes } else { 0 }
            };

            /// Appends the message.
            #[inline]
            pub fn emit(&self, out: &mut ::alloc::vec::Vec<u8>) {
                let start = out.len();
                if Self::BYTES == 0 {
                    self.put(out);
                    $crate::field::close_variable(start, out);
                } else {
                    out.resize(start + Self::BYTES, 0);
                    self.put(&mut $crate::field::Place(&mut out[start..start + Self::BYTES]));
                }
            }

            #[inline(always)]
            fn put(&self, out: &mut impl $crate::field::Out) {
                out.add(&[Self::TYPE, 0]);
                out.add(&(Self::BYTES as u16).to_be_bytes());
                $(
                    $crate::field::codec!($ty $(, $codec)?; put)(self.$field, out);
                    $( out.add(&[0; $zero]); )?
                )*
            }
        }
        $crate::field::body!([$($life)?] $name $(<$life>)?; [
            $( $field $ty [$($codec)?] [$($zero)?] )*
        ] $(check |$checked| $check)?);
    };
}
pub(crate) use message;

/// The codec of a field of that type.
macro_rules! codec {
    ($ty:ty; $item:ident) => {
        <$crate::field::Plain as $crate::field::Codec<'_, $ty>>::$item
    };
    ($ty:ty, $codec:ident; $item:ident) => {
        <$crate::field::$codec as $crate::field::Codec<'_, $ty>>::$item
    };
}
pub(crate) use codec;

/// The half of [`message`] that is a trait's.
macro_rules! body {
    ([] $($rest:tt)*) => { $crate::field::body!(@ '_, $($rest)*); };
    ([$life:lifetime] $($rest:tt)*) => { $crate::field::body!(@ $life, $($rest)*); };
    (@ $life:lifetime, $name:ident $(<$own:lifetime>)?; [
        $( $field:ident $ty:ty [$($codec:ident)?] [$($zero:literal)?] )*
    ] $(check |$checked:ident| $check:expr)?) => {
        impl $(<$own>)? $crate::field::Body<$life> for $name $(<$own>)? {
            #[inline]
            fn read(body: &$life [u8], _: usize) -> Result<Self, $crate::FrameError> {
                // One comparison, so that none is needed for each field.
                if Self::BYTES != 0 && body.len() != Self::BYTES - 4 {
                    return Err($crate::FrameError::MessageLength);
                }
                #[allow(unused_mut, reason = "a message may have no fields")]
                let mut r = $crate::field::Reader(body);
                $(
                    let $field = $crate::field::codec!($ty $(, $codec)?; get)(&mut r)?;
                    $( r.zero($zero)?; )?
                )*
                r.end()?;
                let message = $name { $($field),* };
                $(
                    let $checked = &message;
                    $check?;
                )?
                Ok(message)
            }

            fn write(&self, out: &mut ::alloc::vec::Vec<u8>) {
                self.emit(out);
            }

            fn each_field(&self, see: &mut dyn FnMut(&'static str, &[u8])) {
                let bytes = &mut ::alloc::vec::Vec::<u8>::new();
                $(
                    bytes.clear();
                    $crate::field::codec!($ty $(, $codec)?; put)(self.$field, bytes);
                    see(stringify!($field), bytes);
                    $( see("reserved", &[0; $zero]); )?
                )*
                let _ = (bytes, see);
            }
        }
    };
}
pub(crate) use body;

/// Refuses bits that this version does not know: they are reserved.
#[inline]
pub(crate) fn only(known: u8, bits: u8) -> Result<(), FrameError> {
    if bits & !known == 0 { Ok(()) } else { Err(FrameError::Reserved) }
}

/// Refuses values outside their bounds.
#[inline]
pub(crate) fn value(is_within: bool) -> Result<(), FrameError> {
    if is_within { Ok(()) } else { Err(FrameError::MessageValue) }
}

/// Reads fields one after the other out of a message.
pub(crate) struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    #[inline(always)]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], FrameError> {
        let (head, tail) = self.0.split_first_chunk().ok_or(FrameError::MessageLength)?;
        self.0 = tail;
        Ok(*head)
    }

    #[inline(always)]
    pub fn get<F: Field<'a>>(&mut self) -> Result<F, FrameError> {
        F::get(self)
    }

    pub fn take(&mut self, len: usize) -> Result<&'a [u8], FrameError> {
        let (head, tail) = self.0.split_at_checked(len).ok_or(FrameError::MessageLength)?;
        self.0 = tail;
        Ok(head)
    }

    /// So many bytes that must be zero.
    #[inline(always)]
    pub fn zero(&mut self, len: usize) -> Result<(), FrameError> {
        let (head, tail) = self.0.split_at_checked(len).ok_or(FrameError::MessageLength)?;
        self.0 = tail;
        if head.iter().all(|&b| b == 0) { Ok(()) } else { Err(FrameError::Reserved) }
    }

    /// A text: one byte of length, then that many bytes of UTF-8 without control characters.
    pub fn text(&mut self, max: usize) -> Result<&'a str, FrameError> {
        let len = self.get::<u8>()? as usize;
        let bytes = self.take(len)?;
        let text = core::str::from_utf8(bytes).map_err(|_| FrameError::MessageValue)?;
        if len > max || text.chars().any(char::is_control) {
            return Err(FrameError::MessageValue);
        }
        Ok(text)
    }

    /// Nothing may follow but up to three zero bytes of padding.
    #[inline(always)]
    pub fn end(mut self) -> Result<(), FrameError> {
        if self.0.len() > 3 {
            return Err(FrameError::MessageLength);
        }
        self.zero(self.0.len())
    }
}

/// Appends a text as [`Reader::text`] reads it, cut at `max` bytes on a character border.
pub(crate) fn put_text(text: &str, max: usize, out: &mut impl Out) {
    let mut end = text.len().min(max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    out.add(&[end as u8]);
    // A control character would make the peer refuse the frame: it becomes a space.
    for c in text[..end].chars() {
        let mut utf8 = [0; 4];
        let shown = if c.is_control() { ' ' } else { c };
        let bytes = shown.encode_utf8(&mut utf8).as_bytes();
        out.add(bytes);
        // C1 controls take two bytes; keep the announced length.
        out.add(&[b' '; 4][..c.len_utf8() - bytes.len()]);
    }
}

/// Pads a message of variable length that begins at `start` to four bytes, and fills in its length.
pub(crate) fn close_variable(start: usize, out: &mut Vec<u8>) {
    let padded = (out.len() - start).next_multiple_of(4);
    out.resize(start + padded, 0);
    out[start + 2..start + 4].copy_from_slice(&(padded as u16).to_be_bytes());
}
