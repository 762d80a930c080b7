//! Messages of variable size: handshake, discovery, attaching, long acknowledgements
//! (`docs/protocol.md`, "Handshake", "Discovery", "Attachments").

use alloc::vec::Vec;

use crate::field::{Field, Reader, put_text, put_variable};
use crate::message::{attach_flags, feature};
use crate::{BASE_FRAME_BYTES_MIN, FrameError};

/// Longest node or export name in bytes.
pub const NAME_BYTES_MAX: usize = 64;
/// Longest explanation in bytes.
pub const TEXT_BYTES_MAX: usize = 200;
/// Most addresses in a WELCOME.
pub const WELCOME_ADDRESSES_MAX: usize = 16;
/// Most ranges in an ACK.
pub const ACK_RANGES_MAX: usize = 32;

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

/// Further acknowledged ranges of a path, largest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckRanges {
    /// Which path.
    pub path: u8,
    /// Units of 4 us between the arrival of the largest and this message.
    pub delay: u16,
    /// How many of `ranges` count.
    pub count: u8,
    /// First and last packet number of each range, inclusive.
    pub ranges: [(u64, u64); ACK_RANGES_MAX],
}

impl AckRanges {
    /// The message type number.
    pub const TYPE: u8 = 0x04;

    /// Length on the wire for `count` ranges.
    pub const fn bytes(count: usize) -> usize {
        8 + 16 * count
    }

    /// The ranges that count.
    pub fn ranges(&self) -> &[(u64, u64)] {
        &self.ranges[..self.count as usize]
    }

    /// Appends the message.
    pub fn emit(&self, out: &mut Vec<u8>) {
        put_variable(Self::TYPE, out, |out| {
            self.path.put(out);
            self.count.put(out);
            self.delay.put(out);
            for &(first, last) in self.ranges() {
                first.put(out);
                last.put(out);
            }
        });
    }

    pub(crate) fn parse(body: &[u8]) -> Result<Self, FrameError> {
        let mut r = Reader(body);
        let (path, count, delay) = (r.get()?, r.get::<u8>()?, r.get()?);
        if count == 0 || count as usize > ACK_RANGES_MAX {
            return Err(FrameError::MessageValue);
        }
        let mut ranges = [(0, 0); ACK_RANGES_MAX];
        let mut below = u64::MAX;
        for range in &mut ranges[..count as usize] {
            let (first, last): (u64, u64) = (r.get()?, r.get()?);
            if first > last || last >= below {
                return Err(FrameError::MessageValue);
            }
            below = first;
            *range = (first, last);
        }
        r.end()?;
        Ok(AckRanges { path, delay, count, ranges })
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
            node,
            export,
            name,
        })
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
    /// How many of `addresses` count.
    pub address_count: u8,
    /// All addresses of the target, for further paths.
    pub addresses: [Address; WELCOME_ADDRESSES_MAX],
}

impl<'a> Welcome<'a> {
    /// The message type number.
    pub const TYPE: u8 = 0x21;

    /// The addresses that count.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses[..self.address_count as usize]
    }

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
            self.address_count.put(out);
            for address in self.addresses() {
                address.put(out);
            }
        });
    }

    pub(crate) fn parse(body: &'a [u8]) -> Result<Self, FrameError> {
        let mut r = Reader(body);
        let mut welcome = Welcome {
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
            address_count: r.get()?,
            addresses: [Address::Sim(0); WELCOME_ADDRESSES_MAX],
        };
        if welcome.address_count as usize > WELCOME_ADDRESSES_MAX
            || welcome.session == 0
            || welcome.slots == 0
            || usize::from(welcome.frame_bytes_max) < BASE_FRAME_BYTES_MIN
            || (welcome.request_bytes_max as usize) < crate::UNIT_BYTES
        {
            return Err(FrameError::MessageValue);
        }
        for address in &mut welcome.addresses[..welcome.address_count as usize] {
            *address = Address::get(&mut r)?;
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

/// To the group: who is there?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Discover<'a> {
    /// Echoed in the answer.
    pub nonce: u64,
    /// Index of the first export wanted, for targets whose list does not fit one frame.
    pub first: u16,
    /// Longest random delay before the answer, in milliseconds.
    pub spread_ms: u16,
    /// Only the node of this name, or everybody if empty.
    pub node: &'a str,
}

impl<'a> Discover<'a> {
    /// The message type number.
    pub const TYPE: u8 = 0x28;

    /// Appends the message.
    pub fn emit(&self, out: &mut Vec<u8>) {
        put_variable(Self::TYPE, out, |out| {
            self.nonce.put(out);
            self.first.put(out);
            self.spread_ms.put(out);
            put_text(self.node, NAME_BYTES_MAX, out);
        });
    }

    pub(crate) fn parse(body: &'a [u8]) -> Result<Self, FrameError> {
        let mut r = Reader(body);
        let discover = Discover {
            nonce: r.get()?,
            first: r.get()?,
            spread_ms: r.get()?,
            node: r.text(NAME_BYTES_MAX)?,
        };
        r.end()?;
        Ok(discover)
    }
}

/// The names in an OFFER. Checked when the offer was parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfferedExports<'a> {
    count: u16,
    bytes: &'a [u8],
}

impl<'a> OfferedExports<'a> {
    /// The names, in order.
    pub fn iter(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let mut r = Reader(self.bytes);
        (0..self.count).map_while(move |_| r.text(NAME_BYTES_MAX).ok())
    }
}

/// A target's answer to a DISCOVER.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer<'a> {
    /// From the DISCOVER.
    pub nonce: u64,
    /// Which process of the target.
    pub instance: u64,
    /// How many exports there are in all.
    pub total: u16,
    /// Index of the first one named here.
    pub first: u16,
    /// Bit 0: it runs without keys.
    pub security: u8,
    /// The target's node name.
    pub node: &'a str,
    /// Names of exports, from `first` on.
    pub exports: OfferedExports<'a>,
}

impl<'a> Offer<'a> {
    /// The message type number.
    pub const TYPE: u8 = 0x29;

    /// Appends an offer with as many of `exports` (counted from `first`) as fit `bytes_max`.
    #[expect(clippy::too_many_arguments, reason = "one for each field of the message")]
    pub fn emit<'n>(
        nonce: u64,
        instance: u64,
        node: &str,
        first: u16,
        total: u16,
        exports: impl Iterator<Item = &'n str>,
        bytes_max: usize,
        out: &mut Vec<u8>,
    ) {
        let start = out.len();
        put_variable(Self::TYPE, out, |out| {
            nonce.put(out);
            instance.put(out);
            total.put(out);
            first.put(out);
            1u8.put(out);
            put_text(node, NAME_BYTES_MAX, out);
            let count_at = out.len();
            0u16.put(out);
            let mut count = 0u16;
            for name in exports {
                if out.len() - start + 1 + name.len() + 4 > bytes_max {
                    break;
                }
                put_text(name, NAME_BYTES_MAX, out);
                count += 1;
            }
            out[count_at..count_at + 2].copy_from_slice(&count.to_be_bytes());
        });
    }

    pub(crate) fn parse(body: &'a [u8]) -> Result<Self, FrameError> {
        let mut r = Reader(body);
        let nonce = r.get()?;
        let instance = r.get()?;
        let total = r.get()?;
        let first = r.get()?;
        let security = r.get()?;
        if security > 1 {
            return Err(FrameError::Reserved);
        }
        let node = r.text(NAME_BYTES_MAX)?;
        let count = r.get()?;
        let bytes = r.0;
        for _ in 0..count {
            r.text(NAME_BYTES_MAX)?;
        }
        r.end()?;
        Ok(Offer {
            nonce,
            instance,
            total,
            first,
            security,
            node,
            exports: OfferedExports { count, bytes },
        })
    }
}

/// Initiator to target: open an export in this session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attach<'a> {
    /// Chosen by the initiator, echoed.
    pub transaction: u32,
    /// See [`attach_flags`].
    pub flags: u8,
    /// With RESUME: the generation under which the initiator was writing.
    pub writer_generation: u64,
    /// The export's name.
    pub export: &'a str,
}

impl<'a> Attach<'a> {
    /// The message type number.
    pub const TYPE: u8 = 0x0a;

    /// Appends the message.
    pub fn emit(&self, out: &mut Vec<u8>) {
        put_variable(Self::TYPE, out, |out| {
            self.transaction.put(out);
            self.flags.put(out);
            [0u8; 3].put(out);
            self.writer_generation.put(out);
            put_text(self.export, NAME_BYTES_MAX, out);
        });
    }

    pub(crate) fn parse(body: &'a [u8]) -> Result<Self, FrameError> {
        let mut r = Reader(body);
        let transaction = r.get()?;
        let flags: u8 = r.get()?;
        if r.get::<[u8; 3]>()? != [0; 3] || flags & !attach_flags::KNOWN != 0 {
            return Err(FrameError::Reserved);
        }
        let attach = Attach {
            transaction,
            flags,
            writer_generation: r.get()?,
            export: r.text(NAME_BYTES_MAX)?,
        };
        r.end()?;
        Ok(attach)
    }
}

/// Target to initiator: attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attached {
    /// From the ATTACH.
    pub transaction: u32,
    /// Handle for requests.
    pub attachment: u32,
    /// Generation of the handle.
    pub generation: u32,
    /// Logical block in bytes.
    pub block_bytes: u32,
    /// Preferred granularity in bytes.
    pub preferred_bytes: u32,
    /// Longest read or write in bytes.
    pub io_bytes_max: u32,
    /// Size in bytes.
    pub bytes: u64,
    /// Names the volume.
    pub identity: [u8; 16],
    /// Which life of the content.
    pub incarnation: u64,
    /// The generation under which this attachment writes.
    pub writer_generation: u64,
    /// The target's verifier now.
    pub verifier: u64,
    /// See [`feature`].
    pub features: u8,
}

impl Attached {
    /// The message type number.
    pub const TYPE: u8 = 0x0b;

    /// Appends the message.
    pub fn emit(&self, out: &mut Vec<u8>) {
        put_variable(Self::TYPE, out, |out| {
            self.transaction.put(out);
            self.attachment.put(out);
            self.generation.put(out);
            self.block_bytes.put(out);
            self.preferred_bytes.put(out);
            self.io_bytes_max.put(out);
            self.bytes.put(out);
            self.identity.put(out);
            self.incarnation.put(out);
            self.writer_generation.put(out);
            self.verifier.put(out);
            self.features.put(out);
        });
    }

    pub(crate) fn parse(body: &[u8]) -> Result<Self, FrameError> {
        let mut r = Reader(body);
        let attached = Attached {
            transaction: r.get()?,
            attachment: r.get()?,
            generation: r.get()?,
            block_bytes: r.get()?,
            preferred_bytes: r.get()?,
            io_bytes_max: r.get()?,
            bytes: r.get()?,
            identity: r.get()?,
            incarnation: r.get()?,
            writer_generation: r.get()?,
            verifier: r.get()?,
            features: r.get()?,
        };
        r.end()?;
        if attached.features & !feature::KNOWN != 0 {
            return Err(FrameError::Reserved);
        }
        let block_ok = matches!(attached.block_bytes, 512 | 4096);
        if !block_ok
            || !attached.bytes.is_multiple_of(u64::from(attached.block_bytes))
            || attached.io_bytes_max < attached.block_bytes
            || !attached.io_bytes_max.is_multiple_of(attached.block_bytes)
        {
            return Err(FrameError::MessageValue);
        }
        Ok(attached)
    }
}

/// Target to initiator: not attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttachRefused<'a> {
    /// From the ATTACH.
    pub transaction: u32,
    /// A [`crate::Status`].
    pub status: u16,
    /// With Busy: after how many seconds the present holder is given up; `u32::MAX` if never.
    pub seconds_left: u32,
    /// A sentence for a person: with Busy, who holds it.
    pub text: &'a str,
}

impl<'a> AttachRefused<'a> {
    /// The message type number.
    pub const TYPE: u8 = 0x0c;

    /// Appends the message.
    pub fn emit(&self, out: &mut Vec<u8>) {
        put_variable(Self::TYPE, out, |out| {
            self.transaction.put(out);
            self.status.put(out);
            0u16.put(out);
            self.seconds_left.put(out);
            put_text(self.text, TEXT_BYTES_MAX, out);
        });
    }

    pub(crate) fn parse(body: &'a [u8]) -> Result<Self, FrameError> {
        let mut r = Reader(body);
        let (transaction, status) = (r.get()?, r.get()?);
        if r.get::<u16>()? != 0 {
            return Err(FrameError::Reserved);
        }
        let refused = AttachRefused {
            transaction,
            status,
            seconds_left: r.get()?,
            text: r.text(TEXT_BYTES_MAX)?,
        };
        r.end()?;
        Ok(refused)
    }
}
