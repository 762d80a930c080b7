//! The question who uses the device: put to the keeper, answered on a later turn.

use std::task::Poll;
use std::time::{Duration, Instant};

/// How long the keeper may take. Who cannot be told of by then counts as somebody.
const PATIENCE: Duration = Duration::from_secs(2);

/// One at a time. Each has a number, so that a late answer is not taken for one to the next.
#[derive(Debug, Default)]
pub struct Question {
    number: u64,
    put_at: Option<Instant>,
    told: Option<Option<String>>,
}

impl Question {
    /// The answer to the question that was put, or else puts one, with its number.
    pub fn ask(&mut self, now: Instant, node: &str, put: impl FnOnce(u64)) -> Poll<Option<String>> {
        let Some(put_at) = self.put_at else {
            self.number += 1;
            self.put_at = Some(now);
            put(self.number);
            return Poll::Pending;
        };
        let answer = match self.told.take() {
            Some(usage) => usage,
            None if now.duration_since(put_at) < PATIENCE => return Poll::Pending,
            None => Some(format!("{node} is in use, or slow to tell")),
        };
        self.forget();
        Poll::Ready(answer)
    }

    /// Takes in an answer.
    pub fn tell(&mut self, number: u64, usage: Option<String>) {
        if self.put_at.is_some() && number == self.number {
            self.told = Some(usage);
        }
    }

    /// Nobody wants to know any more.
    pub fn forget(&mut self) {
        (self.put_at, self.told) = (None, None);
    }

    /// It was put, and there is no answer yet.
    pub fn is_open(&self) -> bool {
        self.put_at.is_some() && self.told.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: &str = "/dev/loop0";

    #[test]
    fn it_is_put_once_and_answered_once() {
        let (mut question, now, mut put) = (Question::default(), Instant::now(), Vec::new());
        for _ in 0..3 {
            assert_eq!(question.ask(now, NODE, |number| put.push(number)), Poll::Pending);
        }
        assert!(question.is_open());
        question.tell(1, Some("mounted".into()));
        assert!(!question.is_open());
        let answer = question.ask(now, NODE, |number| put.push(number));
        assert_eq!(answer, Poll::Ready(Some("mounted".into())));
        assert_eq!(put, [1]);
        assert_eq!(question.ask(now, NODE, |number| put.push(number)), Poll::Pending);
        assert_eq!(put, [1, 2], "found out anew");
    }

    #[test]
    fn a_late_answer_is_not_taken_for_one_to_the_next() {
        let (mut question, now) = (Question::default(), Instant::now());
        assert_eq!(question.ask(now, NODE, |_| {}), Poll::Pending);
        let late = now + PATIENCE;
        let slow = Poll::Ready(Some("/dev/loop0 is in use, or slow to tell".to_owned()));
        assert_eq!(question.ask(late, NODE, |_| {}), slow);
        question.tell(1, None);
        assert_eq!(question.ask(late, NODE, |_| {}), Poll::Pending);
        question.tell(1, None);
        assert_eq!(question.ask(late, NODE, |_| {}), Poll::Pending);
        question.tell(2, None);
        assert_eq!(question.ask(late, NODE, |_| {}), Poll::Ready(None));
    }
}
