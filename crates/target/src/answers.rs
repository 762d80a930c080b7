//! Answers to attaches, kept so that a repeated question is answered alike, and until they are taken in
//! (`docs/protocol.md`, "Attachments" and "Bounds").

use std::cmp::Ordering;
use std::collections::VecDeque;

use thinwire_proto::sequence_order;
use thinwire_wire::Attached;

/// Answers to attaches that are kept: those that the initiator has, of which the oldest go first,
/// and those that it has not taken in yet. Beyond that the session ends.
const ANSWERS_MAX: usize = 16;
const ANSWERS_UNHEARD_MAX: usize = 128;
/// The text of a refusal: a sentence with three names in it.
const TEXT_BYTES_MAX: usize = 512;

/// An answer to an attach.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    Granted(Attached),
    Refused { transaction: u32, status: u16, seconds_left: u32, text: String },
}

impl Answer {
    fn transaction(&self) -> u32 {
        match self {
            Answer::Granted(attached) => attached.transaction,
            Answer::Refused { transaction, .. } => *transaction,
        }
    }
}

/// The answers of a session, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    /// Each with whether the initiator has it.
    kept: VecDeque<(Answer, bool)>,
    /// The last transaction whose answer was let go of.
    forgotten: Option<u32>,
    /// An attach could not be answered for want of room.
    overrun: bool,
}

impl Answers {
    /// Memory that they hold at most, in bytes.
    pub const BYTES_MAX: usize = 2 * ANSWERS_UNHEARD_MAX * size_of::<(Answer, bool)>()
        + ANSWERS_UNHEARD_MAX * TEXT_BYTES_MAX;

    /// Remembers one.
    pub fn add(&mut self, answer: Answer) {
        self.kept.retain(|(a, _)| a.transaction() != answer.transaction());
        while self.kept.len() >= ANSWERS_MAX
            && let Some(heard) = self.kept.iter().position(|&(_, heard)| heard)
        {
            let gone = self.kept.remove(heard).map(|(answer, _)| answer.transaction());
            let is_later =
                |&gone: &u32| self.forgotten.is_none_or(|last| sequence_order(gone, last).is_gt());
            self.forgotten = gone.filter(is_later).or(self.forgotten);
        }
        // One that has not been taken in yet must not be lost: its question was acknowledged.
        self.overrun |= self.kept.len() >= ANSWERS_UNHEARD_MAX;
        if !self.overrun {
            self.kept.push_back((answer, false));
        }
    }

    /// The answer to an attach that was answered before.
    pub fn get(&self, transaction: u32) -> Option<&Answer> {
        self.kept.iter().map(|(a, _)| a).find(|a| a.transaction() == transaction)
    }

    /// An attach with this transaction may have been answered, and the answer let go of.
    pub fn is_forgotten(&self, transaction: u32) -> bool {
        let is_past = |last| sequence_order(transaction, last) != Ordering::Greater;
        self.get(transaction).is_none() && self.forgotten.is_some_and(is_past)
    }

    /// The initiator has taken it in.
    pub fn on_heard(&mut self, transaction: u32) {
        if let Some(kept) = self.kept.iter_mut().find(|(a, _)| a.transaction() == transaction) {
            kept.1 = true;
        }
    }

    /// An attach could not be answered, since too many answers are on their way: the session is to
    /// end.
    pub fn is_overrun(&self) -> bool {
        self.overrun
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An attach that was acknowledged is answered, however many others are on their way.
    #[test]
    fn answers_are_kept_until_they_are_taken_in() {
        let mut answers = Answers::default();
        let refused = |transaction| Answer::Refused {
            transaction,
            status: 0,
            seconds_left: 0,
            text: "no".into(),
        };
        for transaction in 0..128 {
            answers.add(refused(transaction));
            assert!(!answers.is_overrun());
        }
        assert!((0..128).all(|t| answers.get(t).is_some()));
        (0..128).for_each(|t| answers.on_heard(t));
        for transaction in 128..1000 {
            answers.add(refused(transaction));
            answers.on_heard(transaction);
        }
        assert!((984..1000).all(|t| answers.get(t).is_some() && !answers.is_forgotten(t)));
        assert!(answers.is_forgotten(983) && !answers.is_forgotten(1000));
        assert!(!answers.is_overrun() && answers.kept.len() == 16);
        (1000..1128).for_each(|t| answers.add(refused(t)));
        assert!(!answers.is_overrun());
        answers.add(refused(1128));
        assert!(answers.is_overrun(), "nobody asks so much without listening");
    }
}
