//! Numbers with names: codes and bits (`docs/protocol.md`, "Numbers"). Each list is one table, from which
//! the tests of the document and of the dissector read it, too.

/// Declares an enum of codes: each number once, with what it means.
macro_rules! codes {
    (
        $(#[$meta:meta])*
        $name:ident: $repr:ident { $( $(#[$vmeta:meta])* $variant:ident = $number:literal, )* }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr($repr)]
        pub enum $name {
            $( $(#[$vmeta])* $variant = $number, )*
        }

        impl $name {
            /// All of them, in the order of their numbers.
            pub const ALL: &'static [$name] = &[$($name::$variant),*];

            /// The one with this number, if there is one.
            #[inline]
            pub fn known(number: $repr) -> Option<$name> {
                match number {
                    $( $number => Some($name::$variant), )*
                    _ => None,
                }
            }
        }
    };
}

/// Declares a module of bits, or of codes that are no type of their own.
macro_rules! constants {
    (
        $(#[$meta:meta])*
        mod $name:ident: $repr:ident { $( $(#[$vmeta:meta])* $constant:ident = $value:expr, )* }
    ) => {
        $(#[$meta])*
        pub mod $name {
            $( $(#[$vmeta])* pub const $constant: $repr = $value; )*
            /// All of them, with their names.
            pub const ALL: &[(&str, $repr)] = &[$((stringify!($constant), $constant)),*];
            /// What this version knows, as bits.
            pub const KNOWN: $repr = 0 $(| $constant)*;
        }
    };
}

codes! {
    /// What kind of frame this is.
    Kind: u8 {
        /// Messages of an established session.
        Session = 1,
        /// An initiator asks for a session.
        Hello = 2,
        /// A target grants one.
        Welcome = 3,
        /// A target declines.
        Refuse = 4,
        /// Who is there?
        Discover = 5,
        /// A target answers.
        Offer = 6,
        /// Does this path carry a frame of this size?
        Probe = 7,
        /// It does: the answer to a PROBE, not padded.
        ProbeReply = 8,
        /// The session id of your frame means nothing here.
        UnknownSession = 9,
        /// A target asks the sender of a HELLO to show that it receives.
        Retry = 10,
        /// An initiator asks for a session, or for names, with a key.
        KeyedHello = 11,
        /// A target answers that.
        KeyedAnswer = 12,
    }
}

impl Kind {
    /// Frames of this kind belong to a session: they have an epoch, a path and a packet number.
    #[inline]
    pub fn is_numbered(self) -> bool {
        matches!(self, Kind::Session | Kind::Probe | Kind::ProbeReply)
    }
}

codes! {
    /// What a request does.
    OpCode: u8 {
        /// Target sends data.
        Read = 1,
        /// Initiator sends data.
        Write = 2,
        /// Make completed writes durable.
        Flush = 3,
        /// The content is no longer needed.
        Discard = 4,
        /// Reads as zeroes from now on.
        WriteZeroes = 5,
        /// Which parts hold data: target sends a list of extents.
        BlockStatus = 6,
        /// Initiator sends an order about a snapshot that is one of several.
        Cut = 7,
    }
}

impl OpCode {
    /// The operation with this number.
    #[inline]
    pub fn from_number(number: u8) -> Option<OpCode> {
        Self::known(number)
    }
}

codes! {
    /// How a request, an attach or a handshake ended.
    Status: u16 {
        /// Done.
        Ok = 0,
        /// The medium failed.
        Io = 1,
        /// Out of range, unaligned, empty or too long.
        Invalid = 2,
        /// No space left.
        NoSpace = 3,
        /// Not for a read-only attachment or volume.
        ReadOnly = 4,
        /// No such operation here.
        Unsupported = 5,
        /// Another writer took over; final.
        Fenced = 6,
        /// No export of that name.
        NotFound = 7,
        /// Held by another writer.
        Busy = 8,
        /// The attachment handle means nothing (any more).
        NoAttachment = 9,
        /// The target is shutting down.
        ShuttingDown = 10,
        /// This side does not agree to run without keys.
        Insecure = 11,
        /// No common protocol version.
        Version = 12,
        /// No room for another session or attachment.
        TooMany = 13,
        /// The export is served by another shard: open a session of its own for it.
        WrongShard = 14,
        /// A re-attach found other content than the initiator was using; final.
        OtherContent = 15,
        /// The key is none that this side knows.
        UnknownKey = 16,
        /// The data does not fit its sums: it was altered on its way.
        Altered = 17,
    }
}

impl Status {
    /// The status with this number; numbers of later versions read as an I/O error.
    #[inline]
    pub fn from_number(number: u16) -> Status {
        Self::known(number).unwrap_or(Status::Io)
    }
}

constants! {
    /// Bits of [`Feedback::flags`](crate::Feedback::flags).
    mod flags: u8 {
        /// The acknowledgement fields are valid.
        ACK = 1 << 0,
        /// The credit fields are valid.
        CREDIT = 1 << 1,
    }
}

constants! {
    /// Bits of [`Request::op_flags`](crate::Request::op_flags).
    mod op_flags: u8 {
        /// Durable before completion.
        FUA = 1 << 0,
        /// Write-zeroes must not punch a hole.
        NO_HOLE = 1 << 1,
        /// Block status may stop after one extent.
        ONE_EXTENT = 1 << 2,
        /// Of a write: it is metadata of the initiator, for which room is kept.
        META = 1 << 3,
    }
}

constants! {
    /// Bits of [`Attach::flags`](crate::Attach::flags).
    mod attach_flags: u8 {
        /// No writes through this attachment.
        READ_ONLY = 1 << 0,
        /// Take the volume over from its present writer, who is fenced.
        TAKE_OVER = 1 << 1,
        /// This is a re-attach: grant only if the writer generation is the one presented.
        RESUME = 1 << 2,
        /// Data has sums, both ways.
        INTEGRITY = 1 << 3,
    }
}

constants! {
    /// Bits of [`Attached::features`](crate::Attached::features).
    mod feature: u8 {
        /// The volume cannot be written.
        READ_ONLY = 1 << 0,
        /// DISCARD works.
        DISCARD = 1 << 1,
        /// WRITE_ZEROES works.
        WRITE_ZEROES = 1 << 2,
        /// BLOCK_STATUS works.
        BLOCK_STATUS = 1 << 3,
        /// Data has sums, both ways, as was asked.
        INTEGRITY = 1 << 4,
        /// Of an attachment that only reads: somebody else is on record as the writer, and may be writing.
        HELD = 1 << 5,
    }
}

constants! {
    /// Values of [`Event::code`](crate::Event::code).
    mod event_code: u16 {
        /// The volume's size is now `value` bytes.
        RESIZE = 1,
        /// The target will go away in order; `value` is 0.
        SHUTDOWN = 2,
        /// The attachment was taken over; `value` is the new writer generation.
        FENCED = 3,
    }
}

constants! {
    /// Values of [`AskClocks::kind`](crate::AskClocks::kind).
    mod clock_kind: u8 {
        /// Stop the clocks.
        OFF = 0,
        /// All time.
        PHYSICAL = 1,
        /// The time in which the serving thread had a processor.
        VIRTUAL = 2,
    }
}
