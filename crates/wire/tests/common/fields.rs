//! Messages taken apart by name, for tests that compare them with what others make of them.

use super::samples;
use thinwire_wire::*;

/// Takes a message apart, all of it, into the names of its fields and their bytes.
macro_rules! fields {
    ($message:expr, $type:ident { $($field:ident),* } $($reserved:ident),*) => {{
        let $type { $($field,)* $($reserved: _,)* } = $message;
        vec![$((stringify!($field), Wire::bytes($field))),*]
    }};
}

/// A value as it stands on the wire; `None` where that is more than its bytes.
trait Wire {
    fn bytes(&self) -> Option<Vec<u8>>;
}

macro_rules! integers {
    ($($t:ty),*) => {$(
        impl Wire for $t {
            fn bytes(&self) -> Option<Vec<u8>> {
                Some(self.to_be_bytes().to_vec())
            }
        }
    )*};
}
integers!(u8, u16, u32, u64);

impl Wire for [u8; 16] {
    fn bytes(&self) -> Option<Vec<u8>> {
        Some(self.to_vec())
    }
}

impl Wire for &str {
    fn bytes(&self) -> Option<Vec<u8>> {
        None
    }
}

impl Wire for Addresses<'_> {
    fn bytes(&self) -> Option<Vec<u8>> {
        None
    }
}

impl Wire for OfferedExports<'_> {
    fn bytes(&self) -> Option<Vec<u8>> {
        None
    }
}

/// Names of the fields of a message in the order of the wire, and their bytes if fixed.
pub fn of(message: &Message<'_>) -> Vec<(&'static str, Option<Vec<u8>>)> {
    match message {
        Message::Request(m) => fields!(
            m,
            Request { slot, op, op_flags, sequence, attachment, generation, address, length }
        ),
        Message::Data(m) => fields!(m, Data { slot, sequence, offset, length } payload_at),
        Message::Complete(m) => {
            fields!(m, Complete { slot, status, sequence, verifier, length })
        }
        Message::AckRanges(m) => {
            let mut all = fields!(m, AckRanges { path, delay } ranges);
            all.insert(1, ("count", (m.ranges.len() as u8).bytes()));
            let (first, last) = m.ranges.iter().next().expect("never empty");
            all.push(("first", first.bytes()));
            all.push(("last", last.bytes()));
            all.push(("further ranges", None));
            all
        }
        Message::Credit(m) => fields!(m, Credit { path, frames, bytes } reserved_a),
        Message::Reset(m) => fields!(m, Reset { slot, sequence, length } reserved),
        Message::ResetDone(m) => fields!(m, ResetDone { slot, sequence } reserved),
        Message::Event(m) => fields!(m, Event { code, attachment, generation, value } reserved),
        Message::Ping(Ping {}) => vec![],
        Message::Attach(m) => {
            fields!(m, Attach { transaction, flags, writer_generation, export })
        }
        Message::Attached(m) => fields!(
            m,
            Attached {
                transaction,
                attachment,
                generation,
                block_bytes,
                preferred_bytes,
                io_bytes_max,
                bytes,
                identity,
                incarnation,
                writer_generation,
                verifier,
                features
            }
        ),
        Message::AttachRefused(m) => {
            fields!(m, AttachRefused { transaction, status, seconds_left, text })
        }
        Message::Detach(m) => fields!(m, Detach { transaction, attachment, generation }),
        Message::Detached(m) => fields!(m, Detached { transaction }),
        Message::Bye(m) => fields!(m, Bye { status } reserved),
        Message::AskClocks(m) => fields!(m, AskClocks { transaction, kind } reserved),
        Message::Clocks(m) => fields!(
            m,
            Clocks {
                transaction,
                clock,
                requests,
                arrived,
                received,
                taken,
                submitted,
                stored,
                sent,
                handed_over
            }
        ),
        Message::Hello(m) => fields!(
            m,
            Hello {
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
                name
            }
        ),
        Message::Retry(m) => fields!(m, Retry { nonce, cookie }),
        Message::Welcome(m) => {
            let mut all = fields!(
                m,
                Welcome {
                    nonce,
                    session,
                    verifier,
                    instance,
                    epoch,
                    slots,
                    frame_bytes_max,
                    request_bytes_max,
                    room_frames,
                    room_bytes,
                    credit_bytes,
                    node,
                    addresses
                }
            );
            let count = m.addresses.iter().count() as u8;
            all.insert(all.len() - 1, ("address_count", count.bytes()));
            all
        }
        Message::Refuse(m) => fields!(m, Refuse { nonce, status, text }),
        Message::UnknownSession(m) => fields!(m, UnknownSession { session }),
        Message::Discover(m) => fields!(m, Discover { nonce, first, spread_ms, cookie, node }),
        Message::Offer(m) => {
            let mut all = fields!(
                m,
                Offer { nonce, instance, total, first, cookie, security, node, exports }
            );
            // The list carries its length.
            all.insert(all.len() - 1, ("count", None));
            all
        }
        Message::Probe(m) => fields!(m, Probe { token, size, room_frames, room_bytes } reserved),
        Message::ProbeReply(m) => {
            fields!(m, ProbeReply { token, size, room_frames, room_bytes } reserved)
        }
    }
}

/// The sample messages with their names in the document.
pub fn with_each_message(mut see: impl FnMut(&str, &Message<'_>, &[u8])) {
    let offer = super::frame(Header::new(Kind::Offer), &samples::offer(), &[]);
    let offer = Frame::parse(&offer).unwrap().messages().next().unwrap();
    let all = samples::messages();
    for (name, message) in all.iter().map(|(n, m)| (*n, m)).chain([("offer", &offer)]) {
        let name = name.replace('-', "_").to_uppercase();
        let mut bytes = Vec::new();
        super::emit(message, &mut bytes);
        see(&name, message, &bytes);
    }
}
