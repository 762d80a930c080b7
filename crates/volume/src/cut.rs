//! [`CutOrder`]: what is said to a volume of a snapshot that is one of several (`docs/protocol.md`, "Cuts").

use thinwire_buffer::{Pool, SegList};

use crate::{Io, Op, Token};

/// Bytes of an order, whatever block a volume has.
pub const CUT_BYTES: usize = 512;
/// Bytes of the longest name of a cut.
pub const CUT_NAME_BYTES_MAX: usize = 62;

const ACT: usize = 0;
const NAME_LENGTH: usize = 1;
const ID: usize = 8;
const AT: usize = 16;
const NAME: usize = 24;

/// What is to be done. Each may be said twice: who has done it says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CutAct {
    /// Make a snapshot of what is there now, which nobody may use before it is kept. Done when no later write is in it; durable later.
    Take,
    /// Done when the snapshot is durable. Fails if there is none.
    Ensure,
    /// The snapshot is there for good, and may be used, durably. Fails if there is none.
    Keep,
    /// There is no such snapshot any more, durably.
    Drop,
    /// Tell of the next cut that is kept, by the order of names as bytes: the completion's `data` is an order to keep it, with its
    /// name and time; empty if there is no more.
    Next,
}

/// The payload of an [`Op::Cut`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CutOrder {
    /// What is to be done.
    pub act: CutAct,
    /// Which cut: random, not 0, the same for all volumes that are cut as one; 0 of the next one.
    pub id: u64,
    /// Of one that is taken, or told of: then, in seconds since 1970, for people; 0 if that is not known.
    pub at: u64,
    /// Of one that is taken, or told of, what people call it: 1 to [`CUT_NAME_BYTES_MAX`] bytes without control characters. Of the next one
    /// the name behind which it is; empty for the first. Else empty.
    pub name: String,
}

impl CutOrder {
    /// To do that to a cut that is there, or may be.
    pub fn of_known(act: CutAct, id: u64) -> Self {
        CutOrder { act, id, at: 0, name: String::new() }
    }

    /// As an I/O.
    pub fn io(&self, token: Token, pool: &Pool) -> Io {
        let data = SegList::of(pool.copy_of(&self.encode()).freeze());
        Io { data, ..Io::new(token, Op::Cut, 0, CUT_BYTES as u64) }
    }

    /// That of an I/O; none if it is no order.
    pub fn of(io: &Io) -> Option<Self> {
        if io.op != Op::Cut
            || (io.offset, io.len) != (0, CUT_BYTES as u64)
            || io.data.bytes() != CUT_BYTES
        {
            return None;
        }
        let mut bytes = [0; CUT_BYTES];
        io.data.copy_to(&mut bytes);
        Self::decode(&bytes)
    }

    /// It as bytes.
    ///
    /// # Panics
    /// If the name is too long.
    pub fn encode(&self) -> [u8; CUT_BYTES] {
        assert!(self.name.len() <= CUT_NAME_BYTES_MAX, "a name was not checked");
        let mut out = [0; CUT_BYTES];
        out[ACT] = match self.act {
            CutAct::Take => 1,
            CutAct::Ensure => 2,
            CutAct::Keep => 3,
            CutAct::Drop => 4,
            CutAct::Next => 5,
        };
        out[NAME_LENGTH] = self.name.len() as u8;
        out[ID..ID + 8].copy_from_slice(&self.id.to_be_bytes());
        out[AT..AT + 8].copy_from_slice(&self.at.to_be_bytes());
        out[NAME..NAME + self.name.len()].copy_from_slice(self.name.as_bytes());
        out
    }

    /// What these bytes say; none if there is no such order.
    pub fn decode(bytes: &[u8; CUT_BYTES]) -> Option<Self> {
        let act = match bytes[ACT] {
            1 => CutAct::Take,
            2 => CutAct::Ensure,
            3 => CutAct::Keep,
            4 => CutAct::Drop,
            5 => CutAct::Next,
            _ => return None,
        };
        let number = |at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let len = usize::from(bytes[NAME_LENGTH]);
        let name = std::str::from_utf8(bytes.get(NAME..NAME + len)?).ok()?;
        let order = CutOrder { act, id: number(ID), at: number(AT), name: name.to_owned() };
        let fits = match act {
            CutAct::Take => order.id != 0 && len > 0,
            CutAct::Keep => order.id != 0 && (len > 0 || order.at == 0),
            CutAct::Ensure | CutAct::Drop => order.id != 0 && (len as u64, order.at) == (0, 0),
            CutAct::Next => (order.id, order.at) == (0, 0),
        };
        let is_right = fits
            && len <= CUT_NAME_BYTES_MAX
            && !name.chars().any(char::is_control)
            // There is one way to say it.
            && order.encode() == *bytes;
        is_right.then_some(order)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn orders() -> [CutOrder; 6] {
        let take = CutOrder { act: CutAct::Take, id: 7 << 40, at: 9, name: "monday é".into() };
        let known = |act| CutOrder::of_known(act, u64::MAX);
        let next = CutOrder { act: CutAct::Next, id: 0, at: 0, name: "m".into() };
        let told = CutOrder { act: CutAct::Keep, ..take.clone() };
        [take, known(CutAct::Ensure), known(CutAct::Keep), known(CutAct::Drop), next, told]
    }

    #[test]
    fn an_order_comes_back_as_it_was_said() {
        for order in orders() {
            let io = order.io(5, &Pool::new(0));
            assert_eq!((CutOrder::of(&io), io.token), (Some(order), 5));
        }
    }

    #[test]
    fn there_is_one_way_to_say_it() {
        for order in orders() {
            let bytes = order.encode();
            for at in 0..CUT_BYTES {
                for bit in 0..8 {
                    let mut other = bytes;
                    other[at] ^= 1 << bit;
                    if let Some(read) = CutOrder::decode(&other) {
                        assert_ne!(read, order, "byte {at}, bit {bit}");
                        assert_eq!(read.encode(), other);
                    }
                }
            }
        }
        let mut io = orders()[1].io(1, &Pool::new(0));
        io.offset = 512;
        assert_eq!(CutOrder::of(&io), None);
        let mut zero = orders()[1].encode();
        zero[ID..ID + 8].fill(0);
        assert_eq!(CutOrder::decode(&zero), None, "0 is no cut");
    }
}
