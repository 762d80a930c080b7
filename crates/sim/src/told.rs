//! Which verifiers of an export initiators were told, and when: once anybody has been told a newer one, nobody who
//! asks from then on is told an older one.
//!
//! Which of two is newer nobody says. But what is told to one who asked when the newest known was told already is that
//! one, or newer still.

/// The verifiers of an export, as far as initiators by hand have heard of them.
#[derive(Debug, Default)]
pub struct ToldVerifiers {
    /// Each later one newer, and when somebody was told it first, in ns.
    known: Vec<(u64, u64)>,
}

impl ToldVerifiers {
    /// The answer to what was asked at `asked_at` tells this one, `now`.
    ///
    /// # Errors
    /// How long before it was asked somebody had been told a newer one, in ns.
    pub fn hear(&mut self, verifier: u64, asked_at: u64, now: u64) -> Result<(), u64> {
        let at = self.known.iter().rposition(|&(known, _)| known == verifier);
        let newer = at.and_then(|at| self.known.get(at + 1));
        if let Some(&(_, told_at)) = newer.filter(|(_, told_at)| *told_at < asked_at) {
            return Err(asked_at - told_at);
        }
        let newest = self.known.last().is_none_or(|&(_, told_at)| told_at < asked_at);
        if at.is_none() && newest {
            self.known.push((verifier, now));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_behind_a_newer_verifier_is_told_no_older_one() {
        let mut told = ToldVerifiers::default();
        assert_eq!(told.hear(7, 0, 10), Ok(()));
        assert_eq!(told.hear(3, 20, 30), Ok(()), "a newer one");
        assert_eq!(told.hear(7, 25, 40), Ok(()), "the answer was under way");
        assert_eq!(told.hear(3, 50, 60), Ok(()));
        assert_eq!(told.hear(7, 50, 60), Err(20));
    }

    #[test]
    fn of_one_that_was_asked_for_before_nothing_is_known() {
        let mut told = ToldVerifiers::default();
        assert_eq!(told.hear(3, 20, 30), Ok(()));
        // It may be older: that it is told later proves nothing.
        assert_eq!(told.hear(7, 25, 40), Ok(()));
        assert_eq!(told.hear(3, 50, 60), Ok(()));
    }
}
