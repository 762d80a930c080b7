//! A table of what is outstanding, whose indices serve as tokens below.

/// Allocates when it holds more than ever before, and else never.
pub struct Slab<T> {
    entries: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab::new()
    }
}

impl<T> Slab<T> {
    /// An empty one.
    pub fn new() -> Self {
        Slab { entries: Vec::new(), free: Vec::new() }
    }

    /// The index under which it can be found until it is removed.
    #[inline]
    pub fn insert(&mut self, entry: T) -> u32 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            self.entries.len() as u32 - 1
        });
        self.entries[index as usize] = Some(entry);
        index
    }

    /// `None` if nothing has that index.
    #[inline]
    pub fn remove(&mut self, index: u64) -> Option<T> {
        let entry = self.entries.get_mut(usize::try_from(index).ok()?)?.take()?;
        self.free.push(index as u32);
        Some(entry)
    }

    /// All entries, with their indices.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        (0..).zip(&mut self.entries).filter_map(|(index, entry)| Some((index, entry.as_mut()?)))
    }

    /// `None` if nothing has that index.
    #[inline]
    pub fn find_mut(&mut self, index: u32) -> Option<&mut T> {
        self.entries.get_mut(index as usize)?.as_mut()
    }

    /// # Panics
    /// If nothing has that index.
    #[inline]
    pub fn get_mut(&mut self, index: u32) -> &mut T {
        self.entries[index as usize].as_mut().expect("it was inserted")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_removed_makes_room() {
        let mut slab = Slab::new();
        let [a, b] = ["a", "b"].map(|entry| slab.insert(entry));
        assert_eq!((slab.remove(a.into()), slab.remove(a.into())), (Some("a"), None));
        assert_eq!(
            (slab.remove(2), slab.remove(1 << 32), slab.remove(u64::MAX)),
            (None, None, None)
        );
        assert_eq!((slab.insert("c"), *slab.get_mut(b)), (a, "b"));
        assert_eq!(slab.entries.len(), 2);
        slab.remove(a.into());
        assert_eq!([a, b, 9].map(|at| slab.find_mut(at).copied()), [None, Some("b"), None]);
        assert_eq!(slab.iter_mut().collect::<Vec<_>>(), [(b, &mut "b")]);
    }
}
