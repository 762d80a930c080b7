//! The leaves of a gateway's export: under which writer generations the gateway holds them, and whether
//! somebody else has been granted one since it held them last (`docs/design.md`, "Who may write"; rule 3).
//! Each grant of a leaf raises its generation by one, so a gap is somebody else's.

/// The right to write a leaf, as a process has been granted it that starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeafGrant {
    /// From this generation on nobody has written under any, up to the one before it: whoever keeps the leaf says so, or all were granted to
    /// processes like this one. Behind `generation` if others may have written under that, too.
    pub since: u64,
    /// Under which it may write; 0 if it only reads, or nobody counts there.
    pub generation: u64,
}

impl LeafGrant {
    /// One of which nothing is known but that it was given.
    pub fn alone(generation: u64) -> Self {
        LeafGrant { since: generation, generation }
    }

    /// This grant, behind the last one of which is known besides that it was not used.
    pub fn behind(self, unused: Option<LeafGrant>) -> Self {
        let is_next = |unused: &LeafGrant| {
            let next = unused.generation.checked_add(1);
            unused.generation < self.generation && next.is_some_and(|next| self.since <= next)
        };
        let since =
            unused.filter(is_next).map_or(self.since, |unused| unused.since.min(self.since));
        LeafGrant { since, ..self }
    }

    /// What is left of it if it was as if it had never been given.
    pub fn taken_back(self) -> Option<Self> {
        let is_first = self.since == self.generation;
        (!is_first).then(|| LeafGrant { generation: self.generation - 1, ..self })
    }
}

/// A leaf of a volume, as a process holds it that starts to serve the volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldGrant {
    /// By which the leaf is known, wherever it stands in the volume: the identity of its content; zero if nothing was granted of it.
    pub leaf: [u8; 16],
    /// What was granted.
    pub grant: LeafGrant,
}

/// What is remembered of a leaf beside the writer record of what it is a leaf of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeafGeneration {
    /// As [`HeldGrant::leaf`]. Zero: of a leaf of which nothing was granted yet; with a generation, which only earlier versions have
    /// written, of the leaf in this place.
    pub leaf: [u8; 16],
    /// Under which it was held last; 0 for one that never was.
    pub generation: u64,
}

impl LeafGeneration {
    /// Bytes of one, wherever they are kept: leaf, generation.
    pub const BYTES: usize = 24;

    fn is_known(&self) -> bool {
        self.leaf != [0; 16]
    }
}

/// The numbers of the leaves, among `held`, that others may have been granted since they were held as is `remembered`. If nothing is remembered, nothing is known
/// of any. A leaf of which nothing is remembered may be one of those that were there and never held; any other may have been granted to anybody.
pub fn granted_to_others(remembered: &[LeafGeneration], held: &[HeldGrant]) -> Vec<usize> {
    if remembered.is_empty() {
        return Vec::new();
    }
    let fits = |before: u64, grant: &LeafGrant| {
        before == 0 || (before < grant.generation && grant.since <= before + 1)
    };
    let is_granted = |(_, held): &(usize, &HeldGrant)| held.grant.generation != 0;
    let granted = held.iter().enumerate().filter(is_granted);
    if remembered.iter().any(|one| !one.is_known() && one.generation != 0) {
        let is_other = |(place, one): &(usize, &HeldGrant)| {
            remembered.len() != held.len() || !fits(remembered[*place].generation, &one.grant)
        };
        return granted.filter(is_other).map(|(place, _)| place).collect();
    }
    let mut rest = remembered.to_vec();
    let (mut others, mut unknown) = (Vec::new(), Vec::new());
    for (place, one) in granted {
        match rest.iter().position(|before| before.is_known() && before.leaf == one.leaf) {
            None => unknown.push(place),
            Some(at) => {
                if !fits(rest.swap_remove(at).generation, &one.grant) {
                    others.push(place);
                }
            }
        }
    }
    // What is not held now was held before, or else never was.
    let known = rest.iter().filter(|before| before.is_known()).count();
    let not_held = held.iter().filter(|one| one.grant.generation == 0).count();
    if unknown.len() + not_held.saturating_sub(known) > rest.len() - known {
        others.append(&mut unknown);
    }
    others.sort_unstable();
    others
}

/// What is to be remembered from now on, of so many leaves as there are: of those that are not held, what was before, as far as there is
/// room for it.
pub fn to_remember(remembered: &[LeafGeneration], held: &[HeldGrant]) -> Vec<LeafGeneration> {
    let now = |one: &HeldGrant| LeafGeneration { leaf: one.leaf, generation: one.grant.generation };
    let mut all: Vec<_> = held.iter().map(now).filter(|now| now.generation != 0).collect();
    for before in remembered.iter().filter(|before| before.is_known()) {
        if all.len() < held.len() && all.iter().all(|now| now.leaf != before.leaf) {
            all.push(*before);
        }
    }
    all.resize(held.len(), LeafGeneration::default());
    all
}

/// Both say the same, in whatever order it is kept.
pub fn are_same(one: &[LeafGeneration], other: &[LeafGeneration]) -> bool {
    let sorted = |all: &[LeafGeneration]| {
        let mut all = all.to_vec();
        all.sort_unstable_by_key(|one| (one.leaf, one.generation));
        all
    };
    sorted(one) == sorted(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alone(generation: u64) -> LeafGrant {
        LeafGrant::alone(generation)
    }

    /// Of leaves 1, 2 and so on: what was granted of each, if anything.
    fn held(grants: &[LeafGrant]) -> Vec<HeldGrant> {
        let of = |(leaf, grant): (u8, &LeafGrant)| match grant.generation {
            0 => HeldGrant::default(),
            _ => HeldGrant { leaf: [leaf; 16], grant: *grant },
        };
        (1..).zip(grants).map(of).collect()
    }

    fn known(leaves: &[(u8, u64)]) -> Vec<LeafGeneration> {
        let of = |&(leaf, generation)| LeafGeneration { leaf: [leaf; 16], generation };
        leaves.iter().map(of).collect()
    }

    fn others(remembered: &[(u8, u64)], grants: &[LeafGrant]) -> Vec<usize> {
        granted_to_others(&known(remembered), &held(grants))
    }

    #[test]
    fn the_next_generation_is_ones_own_and_any_other_is_not() {
        // As it is written, and as an earlier version wrote it, by place.
        for [a, b] in [[1, 2], [0, 0]] {
            assert_eq!(others(&[(a, 4), (b, 7)], &[alone(5), alone(8)]), []);
            assert_eq!(others(&[(a, 4), (b, 7)], &[alone(6), alone(8)]), [0]);
            assert_eq!(others(&[(a, 4), (b, 7)], &[alone(6), alone(9)]), [0, 1]);
            // A record that was lost tells nothing, nor does one that was put back.
            assert_eq!(others(&[(a, 4), (b, 7)], &[alone(5), alone(7)]), [1]);
            assert_eq!(others(&[(a, 4), (b, 7)], &[alone(1), alone(8)]), [0]);
            assert_eq!(others(&[(a, u64::MAX)], &[alone(u64::MAX)]), [0]);
            // Only read now, or never held.
            assert_eq!(others(&[(a, 4), (0, 0)], &[LeafGrant::default(), alone(9)]), [0; 0]);
        }
        // A record of an earlier version, and one of other leaves.
        assert_eq!(others(&[], &[alone(9), alone(9)]), []);
        assert_eq!(others(&[(0, 8)], &[alone(9), alone(9), LeafGrant::default()]), [0, 1]);
    }

    #[test]
    fn leaves_are_known_wherever_they_stand_and_none_that_is_not_remembered() {
        assert_eq!(others(&[(2, 7), (1, 4)], &[alone(5), alone(8)]), []);
        // One less: it was removed.
        assert_eq!(others(&[(2, 7), (1, 4)], &[alone(5)]), []);
        // One more: whoever had it added may have been somebody else.
        assert_eq!(others(&[(1, 4)], &[alone(5), alone(1)]), [1]);
        assert_eq!(others(&[(3, 4), (1, 4)], &[alone(5), alone(8)]), [1]);
        // It was there, and absent.
        assert_eq!(others(&[(1, 4), (0, 0)], &[alone(5), alone(8)]), []);
        assert_eq!(others(&[(1, 4), (0, 0)], &[alone(5), alone(8), alone(9)]), [1, 2]);
        // What has no record is still there, and is not the one that is new.
        assert_eq!(others(&[(1, 4), (0, 0)], &[alone(5), LeafGrant::default(), alone(9)]), [2]);
        // Two copies of one image.
        let twins = [alone(5), alone(8)].map(|grant| HeldGrant { leaf: [1; 16], grant });
        assert_eq!(granted_to_others(&known(&[(1, 4), (1, 7)]), &twins), []);
    }

    #[test]
    fn what_is_remembered_is_so_in_any_order() {
        let all = known(&[(2, 7), (0, 0), (1, 4)]);
        assert!(are_same(&all, &known(&[(1, 4), (2, 7), (0, 0)])));
        for other in [&[(1, 4), (2, 7)][..], &[(1, 4), (2, 8), (0, 0)], &[(1, 7), (2, 4), (0, 0)]] {
            assert!(!are_same(&all, &known(other)), "{other:?}");
        }
    }

    #[test]
    fn grants_that_were_not_used_are_no_gap() {
        let first = alone(5);
        let third = alone(7).behind(Some(alone(6).behind(Some(first))));
        assert_eq!(third, LeafGrant { since: 5, generation: 7 });
        assert_eq!(others(&[(1, 4)], &[third]), []);
        assert_eq!(others(&[(1, 5)], &[third]), []);
        assert_eq!(others(&[(1, 3)], &[third]), [0]);
        // Somebody else had 8.
        let later = alone(9).behind(Some(third));
        assert_eq!((later.since, others(&[(1, 4)], &[later])), (9, vec![0]));
        assert_eq!(third.taken_back(), Some(LeafGrant { since: 5, generation: 6 }));
        assert_eq!(first.taken_back(), None);
    }

    /// The target of the leaf knows that nobody has written under what it granted before, whoever had it.
    #[test]
    fn grants_under_which_nobody_wrote_are_no_gap() {
        let ninth = LeafGrant { since: 7, generation: 9 };
        assert_eq!(ninth.behind(None), ninth);
        assert_eq!(others(&[(1, 6)], &[ninth]), []);
        assert_eq!(others(&[(1, 5)], &[ninth]), [0]);
        // What is known here goes on from what is known there, if nothing is between them.
        for (unused, since) in [((5, 6), 5), ((5, 7), 5), ((8, 8), 7), ((4, 5), 7), ((4, 9), 7)] {
            let unused = LeafGrant { since: unused.0, generation: unused.1 };
            assert_eq!(
                ninth.behind(Some(unused)),
                LeafGrant { since, generation: 9 },
                "{unused:?}"
            );
        }
    }

    #[test]
    fn what_is_not_held_is_remembered_as_it_was() {
        let now = |remembered: &[(u8, u64)], grants: &[LeafGrant]| {
            let all = to_remember(&known(remembered), &held(grants));
            assert_eq!(to_remember(&all, &held(grants)), all, "it stays");
            all
        };
        let grants = [alone(5), LeafGrant::default(), alone(9)];
        assert_eq!(now(&[(1, 4), (2, 7), (0, 0)], &grants), known(&[(1, 5), (3, 9), (2, 7)]));
        assert_eq!(now(&[], &grants), known(&[(1, 5), (3, 9), (0, 0)]));
        // There is room for as many as there are: of what was put in place of another nothing is left.
        assert_eq!(now(&[(7, 4), (1, 7)], &[alone(5), alone(1)]), known(&[(1, 5), (2, 1)]));
        assert_eq!(now(&[(0, 4), (0, 7)], &[alone(5), alone(8)]), known(&[(1, 5), (2, 8)]));
    }
}
