//! Walking through a payload once, from its first byte to its last.

use thinwire_buffer::{SegList, Segment};

/// Where a walk has come to.
pub(crate) struct Cursor<'a> {
    segments: std::slice::Iter<'a, Segment>,
    /// What is left of the present one.
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub fn new(data: &'a SegList) -> Self {
        Cursor { segments: data.iter(), rest: &[] }
    }

    /// Copies the next bytes, as many as there is place for.
    pub fn copy_to(&mut self, mut place: &mut [u8]) {
        self.walk(place.len() as u64, |bytes| {
            let (now, later) = std::mem::take(&mut place).split_at_mut(bytes.len());
            now.copy_from_slice(bytes);
            place = later;
        });
    }

    pub fn skip(&mut self, len: u64) {
        self.walk(len, |_| {});
    }

    fn walk(&mut self, mut len: u64, mut each: impl FnMut(&[u8])) {
        while len > 0 {
            if self.rest.is_empty() {
                self.rest = self.segments.next().expect("it is as long as it says");
            }
            let (now, later) = self.rest.split_at(self.rest.len().min(len as usize));
            each(now);
            len -= now.len() as u64;
            self.rest = later;
        }
    }
}
