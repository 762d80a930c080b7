//! Opening a session: HELLO, RETRY, WELCOME, REFUSE (`docs/protocol.md`, "Handshake").

use alloc::vec::Vec;
use core::fmt;

use crate::field::{Field, Reader, fixed_message, put_text, put_variable};
use crate::{BASE_FRAME_BYTES_MIN, FrameError, NAME_BYTES_MAX, TEXT_BYTES_MAX};

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
    fn put(self, out: &mut Vec<u8>) {
        match self {
            Address::Mac(mac) => {
                out.push(1);
                mac.put(out);
            }
            Address::V4(ip, port) => {
                out.push(2);
                ip.put(out);
                port.put(out);
            }
            Address::V6(ip, port) => {
                out.push(3);
                ip.put(out);
                port.put(out);
            }
            Address::Sim(n) => {
                out.push(4);
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

    fn get(r: &mut Reader<'a>) -> Result<Self, FrameError> {
        let count = r.get::<u8>()?;
        if usize::from(count) > WELCOME_ADDRESSES_MAX {
            return Err(FrameError::MessageValue);
        }
        let bytes = r.0;
        for _ in 0..count {
            Address::get(r)?;
        }
        Ok(Addresses(Source::Wire { count, bytes: &bytes[..bytes.len() - r.0.len()] }))
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

/// Initiator to target: open a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello<'a> {
    /// Echoed in the answer; new for every attempt.
    pub nonce: u64,
    /// The id that the initiator wants on frames it receives.
    pub session: u64,
    /// Which initiator this is; stable over its restarts.
    pub initiator: [u8; 16],
    /// Which run of it.
    pub instance: u64,
    /// Largest frame its link carries.
    pub frame_bytes_max: u16,
    /// Bit 0: it agrees to run without keys.
    pub security: u8,
    /// Frames it can take in on this path.
    pub room_frames: u32,
    /// Bytes it can take in on this path.
    pub room_bytes: u32,
    /// What the target gave to this address (RETRY, OFFER), unchanged; 0 for nothing.
    pub cookie: u64,
    /// The node it means, or empty for any: an answer from another node would be a mistake.
    pub node: &'a str,
    /// The export it is going to attach: chooses the shard.
    pub export: &'a str,
    /// What a person calls the initiator: shown to others that want the export.
    pub name: &'a str,
}

impl<'a> Hello<'a> {
    /// The message type number.
    pub const TYPE: u8 = 0x20;

    /// Appends the message.
    pub fn emit(&self, out: &mut Vec<u8>) {
        put_variable(Self::TYPE, out, |out| {
            self.nonce.put(out);
            self.session.put(out);
            self.initiator.put(out);
            self.instance.put(out);
            self.frame_bytes_max.put(out);
            self.security.put(out);
            0u8.put(out);
            self.room_frames.put(out);
            self.room_bytes.put(out);
            self.cookie.put(out);
            put_text(self.node, NAME_BYTES_MAX, out);
            put_text(self.export, NAME_BYTES_MAX, out);
            put_text(self.name, NAME_BYTES_MAX, out);
        });
    }

    pub(crate) fn parse(body: &'a [u8]) -> Result<Self, FrameError> {
        let mut r = Reader(body);
        let nonce = r.get()?;
        let session = r.get()?;
        let initiator = r.get()?;
        let instance = r.get()?;
        let frame_bytes_max = r.get()?;
        let security: u8 = r.get()?;
        if r.get::<u8>()? != 0 || security > 1 {
            return Err(FrameError::Reserved);
        }
        let room_frames = r.get()?;
        let room_bytes = r.get()?;
        let cookie = r.get()?;
        let node = r.text(NAME_BYTES_MAX)?;
        let export = r.text(NAME_BYTES_MAX)?;
        let name = r.text(NAME_BYTES_MAX)?;
        r.end()?;
        if session == 0 || usize::from(frame_bytes_max) < BASE_FRAME_BYTES_MIN {
            return Err(FrameError::MessageValue);
        }
        Ok(Hello {
            nonce,
            session,
            initiator,
            instance,
            frame_bytes_max,
            security,
            room_frames,
            room_bytes,
            cookie,
            node,
            export,
            name,
        })
    }
}

fixed_message! {
    /// Target to initiator: the HELLO again, please, with this cookie: it shows that its sender
    /// receives.
    Retry = 0x24, 20, {
        /// From the HELLO.
        nonce: u64,
        /// To be given back unchanged; not 0.
        cookie: u64,
    } reserved 0
}

impl Retry {
    pub(crate) fn check(&self) -> Result<(), FrameError> {
        if self.cookie == 0 { Err(FrameError::MessageValue) } else { Ok(()) }
    }
}

/// Target to initiator: the session is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome<'a> {
    /// From the HELLO.
    pub nonce: u64,
    /// The id that the target wants on frames it receives.
    pub session: u64,
    /// Changes whenever the target may have lost unflushed writes.
    pub verifier: u64,
    /// Which process of the target: tells two targets of one name apart.
    pub instance: u64,
    /// Epoch of the session.
    pub epoch: u32,
    /// How many slots there are.
    pub slots: u16,
    /// Largest frame the target's link carries.
    pub frame_bytes_max: u16,
    /// The longest request in bytes.
    pub request_bytes_max: u32,
    /// Frames the target can take in on this path.
    pub room_frames: u32,
    /// Bytes the target can take in on this path.
    pub room_bytes: u32,
    /// First credit: bytes of requests.
    pub credit_bytes: u64,
    /// The target's node name.
    pub node: &'a str,
    /// All addresses of the target, for further paths.
    pub addresses: Addresses<'a>,
}

impl<'a> Welcome<'a> {
    /// The message type number.
    pub const TYPE: u8 = 0x21;

    /// Appends the message.
    pub fn emit(&self, out: &mut Vec<u8>) {
        put_variable(Self::TYPE, out, |out| {
            self.nonce.put(out);
            self.session.put(out);
            self.verifier.put(out);
            self.instance.put(out);
            self.epoch.put(out);
            self.slots.put(out);
            self.frame_bytes_max.put(out);
            self.request_bytes_max.put(out);
            self.room_frames.put(out);
            self.room_bytes.put(out);
            self.credit_bytes.put(out);
            put_text(self.node, NAME_BYTES_MAX, out);
            (self.addresses.iter().count() as u8).put(out);
            for address in self.addresses.iter() {
                address.put(out);
            }
        });
    }

    pub(crate) fn parse(body: &'a [u8]) -> Result<Self, FrameError> {
        let mut r = Reader(body);
        let welcome = Welcome {
            nonce: r.get()?,
            session: r.get()?,
            verifier: r.get()?,
            instance: r.get()?,
            epoch: r.get()?,
            slots: r.get()?,
            frame_bytes_max: r.get()?,
            request_bytes_max: r.get()?,
            room_frames: r.get()?,
            room_bytes: r.get()?,
            credit_bytes: r.get()?,
            node: r.text(NAME_BYTES_MAX)?,
            addresses: Addresses::get(&mut r)?,
        };
        if welcome.session == 0
            || welcome.slots == 0
            || usize::from(welcome.frame_bytes_max) < BASE_FRAME_BYTES_MIN
            || (welcome.request_bytes_max as usize) < crate::UNIT_BYTES
        {
            return Err(FrameError::MessageValue);
        }
        r.end()?;
        Ok(welcome)
    }
}

/// Target to initiator: no session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refuse<'a> {
    /// From the HELLO.
    pub nonce: u64,
    /// A [`crate::Status`].
    pub status: u16,
    /// A sentence for a person.
    pub text: &'a str,
}

impl<'a> Refuse<'a> {
    /// The message type number.
    pub const TYPE: u8 = 0x22;

    /// Appends the message.
    pub fn emit(&self, out: &mut Vec<u8>) {
        put_variable(Self::TYPE, out, |out| {
            self.nonce.put(out);
            self.status.put(out);
            put_text(self.text, TEXT_BYTES_MAX, out);
        });
    }

    pub(crate) fn parse(body: &'a [u8]) -> Result<Self, FrameError> {
        let mut r = Reader(body);
        let refuse = Refuse { nonce: r.get()?, status: r.get()?, text: r.text(TEXT_BYTES_MAX)? };
        r.end()?;
        Ok(refuse)
    }
}
