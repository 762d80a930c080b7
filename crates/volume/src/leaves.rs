//! The leaves of a gateway's export: under which writer generations the gateway holds them, and whether
//! somebody else has been granted one since it held them last (`docs/design.md`, "Who may write"; rule 3).
//! Each grant of a leaf raises its generation by one, so a gap is somebody else's.

/// The right to write a leaf, as a process has been granted it that starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeafGrant {
    /// From this generation on all were granted to processes like this one, none of which has written
    /// under them.
    pub since: u64,
    /// Under which it may write; 0 if it only reads, or nobody counts there.
    pub generation: u64,
}

impl LeafGrant {
    /// A grant, behind the last one that is known not to have been used.
    pub fn behind(unused: Option<LeafGrant>, generation: u64) -> Self {
        let is_next = |unused: &LeafGrant| unused.generation.checked_add(1) == Some(generation);
        let since = unused.filter(is_next).map_or(generation, |unused| unused.since);
        LeafGrant { since, generation }
    }

    /// What is left of it if it was as if it had never been given.
    pub fn taken_back(self) -> Option<Self> {
        let is_first = self.since == self.generation;
        (!is_first).then(|| LeafGrant { generation: self.generation - 1, ..self })
    }
}

/// The numbers of the leaves that others may have been granted since they were held under the generations
/// `remembered`. Nothing remembered is known of a leaf that has 0 there, nor if there is none at all; other
/// leaves than those of now may all have been.
pub fn granted_to_others(remembered: &[u64], grants: &[LeafGrant]) -> Vec<usize> {
    let is_other = |(leaf, grant): (usize, &LeafGrant)| {
        let before = match remembered.len() == grants.len() {
            true => remembered[leaf],
            false => u64::MAX,
        };
        let fits = before < grant.generation && grant.since <= before + 1;
        (grant.generation != 0 && before != 0 && !fits).then_some(leaf)
    };
    match remembered.is_empty() {
        true => Vec::new(),
        false => grants.iter().enumerate().filter_map(is_other).collect(),
    }
}

/// What is to be remembered from now on: of a leaf that is only read, what was before.
pub fn to_remember(remembered: &[u64], grants: &[LeafGrant]) -> Vec<u64> {
    let before = |leaf: usize| match remembered.len() == grants.len() {
        true => remembered[leaf],
        false => 0,
    };
    let now = |(leaf, grant): (usize, &LeafGrant)| match grant.generation {
        0 => before(leaf),
        generation => generation,
    };
    grants.iter().enumerate().map(now).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alone(generation: u64) -> LeafGrant {
        LeafGrant::behind(None, generation)
    }

    #[test]
    fn the_next_generation_is_ones_own_and_any_other_is_not() {
        let others =
            |remembered: &[u64], grants: &[LeafGrant]| granted_to_others(remembered, grants);
        assert_eq!(others(&[4, 7], &[alone(5), alone(8)]), []);
        assert_eq!(others(&[4, 7], &[alone(6), alone(8)]), [0]);
        assert_eq!(others(&[4, 7], &[alone(6), alone(9)]), [0, 1]);
        // A record that was lost tells nothing, nor does one that was put back.
        assert_eq!(others(&[4, 7], &[alone(5), alone(7)]), [1]);
        assert_eq!(others(&[4, 7], &[alone(1), alone(8)]), [0]);
        assert_eq!(others(&[u64::MAX], &[alone(u64::MAX)]), [0]);
        // Only read now, or never held.
        assert_eq!(others(&[4, 0], &[LeafGrant::default(), alone(9)]), []);
        // A record of an earlier version, and one of other leaves.
        assert_eq!(others(&[], &[alone(9), alone(9)]), []);
        assert_eq!(others(&[8], &[alone(9), alone(9), LeafGrant::default()]), [0, 1]);
    }

    #[test]
    fn grants_that_were_not_used_are_no_gap() {
        let first = LeafGrant::behind(None, 5);
        let third = LeafGrant::behind(Some(LeafGrant::behind(Some(first), 6)), 7);
        assert_eq!(third, LeafGrant { since: 5, generation: 7 });
        assert_eq!(granted_to_others(&[4], &[third]), []);
        assert_eq!(granted_to_others(&[5], &[third]), []);
        assert_eq!(granted_to_others(&[3], &[third]), [0]);
        // Somebody else had 8.
        let later = LeafGrant::behind(Some(third), 9);
        assert_eq!((later.since, granted_to_others(&[4], &[later])), (9, vec![0]));
        assert_eq!(third.taken_back(), Some(LeafGrant { since: 5, generation: 6 }));
        assert_eq!(first.taken_back(), None);
    }

    #[test]
    fn what_is_only_read_is_remembered_as_it_was() {
        let grants = [alone(5), LeafGrant::default(), alone(9)];
        assert_eq!(to_remember(&[4, 7, 0], &grants), [5, 7, 9]);
        assert_eq!(to_remember(&[], &grants), [5, 0, 9]);
    }
}
