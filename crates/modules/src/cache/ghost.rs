//! Which pages were let go of lately, after they had been read once: whoever reads one of them again wants it
//! kept for longer.

/// As many page numbers as there are pages, or a few more; two that fall on one place push each other out.
pub(super) struct Ghost {
    /// A part of the hash of the page in the upper half, below it when it came here.
    places: Box<[u64]>,
    /// How many have come here, modulo 2^32.
    count: u32,
    /// How many that came later push one out.
    pages: u32,
}

impl Ghost {
    pub fn new(pages: u32) -> Self {
        let places = vec![0; (pages as usize).next_power_of_two()].into();
        Ghost { places, count: 0, pages }
    }

    fn place(&self, hash: u64) -> usize {
        (hash >> 32) as usize & (self.places.len() - 1)
    }

    /// The page of this hash was let go of.
    pub fn insert(&mut self, hash: u64) {
        self.count = self.count.wrapping_add(1);
        let at = self.place(hash);
        self.places[at] = hash << 32 | u64::from(self.count);
    }

    /// Whether it was, lately. Asked once.
    pub fn remove(&mut self, hash: u64) -> bool {
        let at = self.place(hash);
        let known = self.places[at];
        let is_it = known != 0 && known >> 32 == hash & u64::from(u32::MAX);
        let is_late = self.count.wrapping_sub(known as u32) < self.pages;
        if is_it {
            self.places[at] = 0;
        }
        is_it && is_late
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_let_go_of_is_known_once_and_for_a_while() {
        let hash = |page: u64| page.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut ghost = Ghost::new(64);
        assert!(!ghost.remove(hash(1)));
        ghost.insert(hash(1));
        assert!(!ghost.remove(hash(2)));
        assert!(ghost.remove(hash(1)) && !ghost.remove(hash(1)));
        let found = |ghost: &mut Ghost, later: u64| {
            ghost.insert(hash(3));
            // Whoever falls on its place pushes it out before.
            let place = ghost.place(hash(3));
            let others = (100..).filter(|&page| ghost.place(hash(page)) != place);
            others.take(later as usize).collect::<Vec<_>>().into_iter().for_each(|page| {
                ghost.insert(hash(page));
            });
            ghost.remove(hash(3))
        };
        assert!(found(&mut ghost, 63));
        assert!(!found(&mut ghost, 64));
    }
}
