//! Who has the file open. Each open is a user of the volume ([`Io::user`](thinwire_volume::Io::user)): a program that
//! asks for a sync hears by itself of what was lost, whoever heard before, as of a file of the kernel's.

/// User 0 is the face itself; it is nobody's.
const USERS: usize = u8::MAX as usize + 1;

/// The opens, by user. More than 255 share their numbers.
pub struct Opens {
    counts: [usize; USERS],
    /// Has written since its last flush began, or that one failed.
    unflushed: [bool; USERS],
}

impl Opens {
    /// None.
    pub fn new() -> Self {
        Opens { counts: [0; USERS], unflushed: [false; USERS] }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.counts.iter().sum()
    }

    /// One more: the handle that its requests carry.
    pub fn add(&mut self) -> u64 {
        let user = (1..USERS).min_by_key(|&user| self.counts[user]).expect("there are some");
        self.counts[user] += 1;
        user as u64
    }

    /// One of this handle has ended. The user that has ended with it, if no other open is the same.
    pub fn remove(&mut self, handle: u64) -> Option<u8> {
        let user = self.user(handle);
        let count = &mut self.counts[usize::from(user)];
        *count = count.checked_sub(1)?;
        if *count > 0 {
            return None;
        }
        self.unflushed[usize::from(user)] = false;
        Some(user)
    }

    /// Whose request this is, by its handle.
    pub fn user(&self, handle: u64) -> u8 {
        u8::try_from(handle).unwrap_or(0)
    }

    /// It has written something that no flush of its own covers.
    pub fn is_unflushed(&self, user: u8) -> bool {
        self.unflushed[usize::from(user)]
    }

    /// It has written, or its flush has begun or failed.
    pub fn set_unflushed(&mut self, user: u8, unflushed: bool) {
        self.unflushed[usize::from(user)] = unflushed;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_open_is_a_user_as_long_as_there_are_some() {
        let mut opens = Opens::new();
        let handles: Vec<_> = (0..255).map(|_| opens.add()).collect();
        assert_eq!(handles, (1..=255).collect::<Vec<_>>());
        assert_eq!((opens.add(), opens.count()), (1, 256));
        opens.set_unflushed(1, true);
        assert_eq!(opens.remove(1), None, "the other is there");
        assert_eq!((opens.remove(7), opens.add()), (Some(7), 7));
        assert!(opens.is_unflushed(1) && !opens.is_unflushed(7));
        assert_eq!(opens.remove(1), Some(1));
        assert!(!opens.is_unflushed(1));
        // What nobody has open.
        assert_eq!((opens.remove(1), opens.remove(1 << 40), opens.user(1 << 40)), (None, None, 0));
        assert_eq!(opens.count(), 254);
    }
}
