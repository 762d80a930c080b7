//! Completions that wait for each other: those of requests that came in one frame go back together
//! (Gonzalez-Ferez and Bilas, section VI-A), under policies that ask for it.

use thinwire_proto::Item;

/// A completion, and before it the data of a read.
type Answer = [Option<Item>; 2];

/// The requests of one frame.
#[derive(Debug, Default)]
struct Group {
    /// Requests that are not completed, and one for the frame while it is being read.
    open: usize,
    answers: Vec<Answer>,
}

/// Which group a request belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GroupId(usize);

/// The groups of a session. Never more than slots and one; allocates nothing once warm.
#[derive(Debug, Default)]
pub(crate) struct Together {
    groups: Vec<Group>,
    free: Vec<GroupId>,
    /// The group of the frame that is being read.
    reading: Option<GroupId>,
}

impl Together {
    /// A frame begins.
    pub fn begin_frame(&mut self) {
        let id = self.free.pop().unwrap_or_else(|| {
            self.groups.push(Group::default());
            GroupId(self.groups.len() - 1)
        });
        self.groups[id.0].open = 1;
        self.reading = Some(id);
    }

    /// The frame has been read: calls `send` with the answers if all of them are there already.
    pub fn end_frame(&mut self, send: impl FnMut(Answer)) {
        if let Some(id) = self.reading.take() {
            self.leave(id, None, send);
        }
    }

    /// A request of the frame that is being read was taken in; its group, if there is a frame.
    pub fn join(&mut self) -> Option<GroupId> {
        let id = self.reading?;
        self.groups[id.0].open += 1;
        Some(id)
    }

    /// A request was completed with this answer, or given up. Calls `send` with the answers of the
    /// whole group if it was the last.
    pub fn leave(&mut self, id: GroupId, answer: Option<Answer>, send: impl FnMut(Answer)) {
        let group = &mut self.groups[id.0];
        group.answers.extend(answer);
        group.open -= 1;
        if group.open == 0 {
            group.answers.drain(..).for_each(send);
            self.free.push(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(sequence: u32) -> Answer {
        [None, Some(Item::Complete { slot: 0, sequence })]
    }

    #[test]
    fn answers_go_with_the_last_of_their_frame() {
        let mut together = Together::default();
        let mut sent = Vec::new();
        together.begin_frame();
        let [a, b] = [1, 2].map(|_| together.join().unwrap());
        // One is answered while the frame is still being read.
        together.leave(a, Some(answer(1)), |items| sent.push(items));
        together.end_frame(|items| sent.push(items));
        together.begin_frame();
        let c = together.join().unwrap();
        together.end_frame(|items| sent.push(items));
        assert!(sent.is_empty());
        together.leave(c, Some(answer(3)), |items| sent.push(items));
        assert_eq!(sent, [answer(3)]);
        together.leave(b, Some(answer(2)), |items| sent.push(items));
        assert_eq!(sent, [answer(3), answer(1), answer(2)]);
    }

    #[test]
    fn one_that_is_given_up_keeps_nobody_waiting() {
        let mut together = Together::default();
        let mut sent = Vec::new();
        together.begin_frame();
        let [a, b] = [1, 2].map(|_| together.join().unwrap());
        together.end_frame(|items| sent.push(items));
        together.leave(a, Some(answer(1)), |items| sent.push(items));
        together.leave(b, None, |items| sent.push(items));
        assert_eq!(sent, [answer(1)]);
        // Its place is used again.
        together.begin_frame();
        together.end_frame(|items| sent.push(items));
        assert_eq!((together.groups.len(), together.free.len()), (1, 1));
    }
}
