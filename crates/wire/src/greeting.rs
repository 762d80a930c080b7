//! Opening a session: HELLO, RETRY, WELCOME, REFUSE, and the answer to a frame of none
//! (`docs/protocol.md`, "Handshake").

use core::fmt;

use alloc::vec::Vec;

use crate::field::{Field, Out, Reader, message, only, value};
use crate::{BASE_FRAME_BYTES_MIN, FrameError, UNIT_BYTES, VERSION};

/// Most sessions of one run that stand side by side: its members.
pub const MEMBERS_MAX: u8 = 16;
/// Most addresses in a WELCOME.
pub const WELCOME_ADDRESSES_MAX: usize = 16;

/// A link address on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// Ethernet.
    Mac([u8; 6]),
    /// UDP over IPv4: address and port.
    V4([u8; 4], u16),
    /// UDP over IPv6.
    V6([u8; 16], u16),
    /// A station of a simulated wire.
    Sim(u32),
}

impl Address {
    fn put(self, out: &mut impl Out) {
        match self {
            Address::Mac(mac) => {
                out.add(&[1]);
                mac.put(out);
            }
            Address::V4(ip, port) => {
                out.add(&[2]);
                ip.put(out);
                port.put(out);
            }
            Address::V6(ip, port) => {
                out.add(&[3]);
                ip.put(out);
                port.put(out);
            }
            Address::Sim(n) => {
                out.add(&[4]);
                n.put(out);
            }
        }
    }

    fn get(r: &mut Reader<'_>) -> Result<Self, FrameError> {
        Ok(match r.get::<u8>()? {
            1 => Address::Mac(r.get()?),
            2 => Address::V4(r.get()?, r.get()?),
            3 => Address::V6(r.get()?, r.get()?),
            4 => Address::Sim(r.get()?),
            _ => return Err(FrameError::MessageValue),
        })
    }
}

/// Addresses: a list to send, or the bytes of a received one, so that a message stays small enough to
/// be handed around by value.
#[derive(Clone, Copy)]
pub struct Addresses<'a>(Source<'a>);

#[derive(Clone, Copy)]
enum Source<'a> {
    List(&'a [Address]),
    Wire { count: u8, bytes: &'a [u8] },
}

impl<'a> Addresses<'a> {
    /// To send: at most [`WELCOME_ADDRESSES_MAX`], the others are left out.
    pub fn new(list: &'a [Address]) -> Self {
        Addresses(Source::List(&list[..list.len().min(WELCOME_ADDRESSES_MAX)]))
    }

    /// All addresses, in the order of the message.
    pub fn iter(self) -> impl Iterator<Item = Address> + use<'a> {
        let (list, count, bytes) = match self.0 {
            Source::List(list) => (list, 0, &[][..]),
            Source::Wire { count, bytes } => (&[][..], count, bytes),
        };
        let mut r = Reader(bytes);
        let parsed = (0..count).map_while(move |_| Address::get(&mut r).ok());
        list.iter().copied().chain(parsed)
    }
}

impl PartialEq for Addresses<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Addresses<'_> {}

impl fmt::Debug for Addresses<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<'a> Field<'a> for Addresses<'a> {
    const BYTES: Option<usize> = None;

    fn get(r: &mut Reader<'a>) -> Result<Self, FrameError> {
        let count = r.get::<u8>()?;
        value(usize::from(count) <= WELCOME_ADDRESSES_MAX)?;
        let bytes = r.0;
        for _ in 0..count {
            Address::get(r)?;
        }
        Ok(Addresses(Source::Wire { count, bytes: &bytes[..bytes.len() - r.0.len()] }))
    }

    fn put(self, out: &mut impl Out) {
        (self.iter().count() as u8).put(out);
        for address in self.iter() {
            address.put(out);
        }
    }
}

/// Bit 0 of `security`: it agrees to run without keys.
const WITHOUT_KEYS: u8 = 1 << 0;

message! {
    /// Initiator to target: open a session.
    Hello<'a> = 0x20 {
        /// Echoed in the answer; new for every attempt.
        nonce: u64,
        /// The id that the initiator wants on frames it receives; also on the answer to this.
        session: u64,
        /// Which initiator this is; stable over its restarts.
        initiator: [u8; 16],
        /// Which run of it.
        instance: u64,
        /// Largest frame its link carries.
        frame_bytes_max: u16,
        /// Bit 0: it agrees to run without keys.
        security: u8,
        /// Which of the sessions of this run that stand side by side; 0 for the first, or the only one.
        member: u8,
        /// Frames it can take in on this path.
        room_frames: u32,
        /// Bytes it can take in on this path.
        room_bytes: u32,
        /// What the target gave to this address (RETRY, OFFER), unchanged; 0 for nothing.
        cookie: u64,
        /// The node it means, or empty for any: an answer from another node would be a mistake.
        node: &'a str as Name,
        /// The export it is going to attach: chooses the shard.
        export: &'a str as Name,
        /// What a person calls the initiator: shown to others that want the export.
        name: &'a str as Name,
    } check |h| h.check()
}

impl Hello<'_> {
    fn check(&self) -> Result<(), FrameError> {
        only(WITHOUT_KEYS, self.security)?;
        value(self.session != 0 && self.member < MEMBERS_MAX)?;
        value(usize::from(self.frame_bytes_max) >= BASE_FRAME_BYTES_MIN)
    }
}

message! {
    /// Initiator to target: a HELLO or a DISCOVER, sealed with a key.
    KeyedHello<'a> = 0x25 {
        /// As in HELLO.
        nonce: u64,
        /// As in HELLO.
        session: u64,
        /// Which key: its id, which tells nothing of the key.
        key: [u8; 8],
        /// As in HELLO.
        cookie: u64,
        /// Suites that the initiator agrees to: bit *n* - 1 for suite *n*.
        suites: u8 => zero 3,
        /// As in HELLO.
        node: &'a str as Name,
        /// The first message of the handshake, with a HELLO or a DISCOVER in it.
        secret: &'a [u8] as Secret,
    } check |h| value(h.suites != 0)
}

impl KeyedHello<'_> {
    /// What both sides must have seen alike for the secret to be opened: everything but that.
    pub fn prologue(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(128);
        out.extend_from_slice(b"thinwire");
        out.push(VERSION);
        KeyedHello { secret: &[], ..*self }.emit(&mut out);
        out
    }
}

message! {
    /// Target to initiator: the answer to a KEYED_HELLO.
    KeyedAnswer<'a> = 0x26 {
        /// From the KEYED_HELLO.
        nonce: u64,
        /// The second message of the handshake, with the suite and a WELCOME, REFUSE or OFFER in it.
        secret: &'a [u8] as Secret,
    }
}

/// What is sealed in a KEYED_ANSWER: the suite of the session in four bytes (the number, and zeroes), then
/// a message.
pub const SECRET_ANSWER_AT: usize = 4;

message! {
    /// Target to initiator: the HELLO again, please, with this cookie: it shows that its sender
    /// receives.
    Retry = 0x24 {
        /// From the HELLO.
        nonce: u64,
        /// To be given back unchanged; not 0.
        cookie: u64,
    } check |r| value(r.cookie != 0)
}

message! {
    /// Target to initiator: the session is open.
    Welcome<'a> = 0x21 {
        /// From the HELLO.
        nonce: u64,
        /// The id that the target wants on frames it receives.
        session: u64,
        /// Which process of the target: tells two targets of one name apart.
        instance: u64,
        /// Epoch of the session.
        epoch: u32,
        /// How many slots there are.
        slots: u16,
        /// Largest frame the target's link carries.
        frame_bytes_max: u16,
        /// The longest request in bytes.
        request_bytes_max: u32,
        /// Frames the target can take in on this path.
        room_frames: u32,
        /// Bytes the target can take in on this path.
        room_bytes: u32,
        /// First credit: bytes of requests.
        credit_bytes: u64,
        /// All addresses of the target, for further paths.
        addresses: Addresses<'a>,
    } check |w| value(
        w.session != 0
            && w.slots != 0
            && usize::from(w.frame_bytes_max) >= BASE_FRAME_BYTES_MIN
            && w.request_bytes_max as usize >= UNIT_BYTES
    )
}

message! {
    /// Target to initiator: no session.
    Refuse<'a> = 0x22 {
        /// From the HELLO.
        nonce: u64,
        /// A [`crate::Status`].
        status: u16,
        /// A sentence for a person.
        text: &'a str as Text,
    }
}

message! {
    /// The session id in your frame means nothing here.
    UnknownSession = 0x23 {
        /// The id.
        session: u64,
    }
}
