//! Which attachments of a session have their data checked end to end, and the two places where that is done
//! (`docs/protocol.md`, "Integrity").

use thinwire_buffer::{Pool, SegList, Segment};
use thinwire_exports::Pass;
use thinwire_proto::{SumCanary, sums_fit, sums_of};
use thinwire_wire::Request;

use crate::attach::ATTACHMENTS_MAX;

/// The attachments of a session with integrity. Those that are over may stand in it for a while: nothing is executed
/// under them.
#[derive(Debug, Default)]
pub(crate) struct Checked {
    passes: Vec<Pass>,
    /// Transactions of attaches that asked for it and have no answer yet.
    asked: Vec<u32>,
}

impl Checked {
    /// An attach asks for it. `lives` tells whether a pass still means something: the others make room.
    pub fn ask(&mut self, transaction: u32, lives: impl Fn(Pass) -> bool) {
        if self.passes.len() >= ATTACHMENTS_MAX {
            self.passes.retain(|&pass| lives(pass));
        }
        self.asked.push(transaction);
    }

    /// The attach comes to nothing.
    pub fn on_denied(&mut self, transaction: u32) {
        self.asked.retain(|&asked| asked != transaction);
    }

    /// The attach is granted. True if it has integrity.
    pub fn on_granted(&mut self, transaction: u32, pass: Pass) -> bool {
        let before = self.asked.len();
        self.on_denied(transaction);
        let is_checked = self.asked.len() < before;
        if is_checked {
            self.passes.push(pass);
        }
        is_checked
    }

    /// It is detached.
    pub fn on_closed(&mut self, pass: Pass) {
        self.passes.retain(|&other| other != pass);
    }

    /// Whether there is any.
    #[inline]
    pub fn any(&self) -> bool {
        !self.passes.is_empty()
    }

    /// Whether the data of this request has sums.
    #[inline]
    pub fn has(&self, request: &Request) -> bool {
        self.any() && self.holds(request)
    }

    #[inline(never)]
    fn holds(&self, request: &Request) -> bool {
        let pass = Pass { number: request.attachment, generation: request.generation };
        self.passes.contains(&pass)
    }
}

/// Whether what has come of a write is what its initiator took in.
#[inline(never)]
pub(crate) fn is_as_sent(
    sums: &Segment,
    request: &Request,
    data: &SegList,
    canary: SumCanary,
) -> bool {
    sums_fit(sums, request.address, data.iter().map(|segment| &segment[..]), canary)
}

/// The sums of what a store has given for a read.
#[inline(never)]
pub(crate) fn sums_of_read(
    pool: &Pool,
    request: &Request,
    data: &SegList,
    canary: SumCanary,
) -> Segment {
    let bytes = data.iter().map(|segment| &segment[..]);
    sums_of(pool, request.address, u64::from(request.length), bytes, canary)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_granted_with_integrity_has_it_until_it_is_closed() {
        let mut checked = Checked::default();
        let pass = |number| Pass { number, generation: 7 };
        let request = |number| Request {
            slot: 0,
            op: 2,
            op_flags: 0,
            sequence: 1,
            attachment: number,
            generation: 7,
            address: 0,
            length: 512,
        };
        assert!(!checked.on_granted(1, pass(1)), "it did not ask");
        checked.ask(2, |_| true);
        checked.ask(3, |_| true);
        checked.on_denied(3);
        assert!(checked.on_granted(2, pass(2)) && !checked.on_granted(3, pass(3)));
        let has = |checked: &Checked| [1, 2, 3].map(|number| checked.has(&request(number)));
        assert_eq!(has(&checked), [false, true, false]);
        assert!(!checked.has(&Request { generation: 8, ..request(2) }));
        checked.on_closed(pass(2));
        assert_eq!(has(&checked), [false; 3]);
    }

    /// However often a session attaches and is fenced.
    #[test]
    fn those_that_are_over_make_room() {
        let mut checked = Checked::default();
        for number in 0..10 * ATTACHMENTS_MAX as u32 {
            checked.ask(number, |pass| pass.number % 64 == 0);
            checked.on_granted(number, Pass { number, generation: 1 });
        }
        assert!(checked.passes.len() <= ATTACHMENTS_MAX && checked.asked.is_empty());
        assert!(checked.passes.iter().any(|pass| pass.number == 64));
    }
}
