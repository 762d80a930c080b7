//! [`Linear`]: volumes one behind the other. What lies within one of them goes down with another offset,
//! neither copied nor split; what crosses a border is cut there.

#[cfg(test)]
mod tests;

use std::ops::Range;

use thinwire_volume::{Geometry, Io, Volume};

use crate::{
    Below, Child, Composite, IdentityHash, Layout, Module, ModuleError, Stretch, common_geometry,
};

pub(super) const MODULE: Module = Module {
    name: Linear::NAME,
    help: "volumes one behind the other",
    children: 1..=usize::MAX,
    options: &[],
    ios_each_max: 1,
    keeps: None,
    build: |children, _| Ok(Box::new(Linear::over(children)?)),
};

/// The first byte of each volume is behind the last of the one before.
pub struct Linear {
    /// Where each lies. May be empty.
    places: Vec<Range<u64>>,
}

impl Linear {
    /// Puts `children` one behind the other, in this order.
    ///
    /// # Errors
    /// If they have no blocks in common, or one is not a multiple of these.
    pub fn new(children: Vec<Box<dyn Volume>>) -> Result<Composite<Self>, ModuleError> {
        Self::over(Child::all(children))
    }

    fn over(children: Vec<Child>) -> Result<Composite<Self>, ModuleError> {
        let wrong = |child, why| Err(ModuleError::of_child(Self::NAME, child, why));
        let mut geometry = common_geometry(Self::NAME, &children)?;
        let block = u64::from(geometry.block_bytes);
        let mut identity = IdentityHash::new(Self::NAME);
        let mut places = Vec::with_capacity(children.len());
        for (index, child) in children.iter().enumerate() {
            let bytes = child.geometry().bytes;
            // What comes behind it would not begin at a block.
            if !bytes.is_multiple_of(block) {
                let smaller = bytes / block * block;
                return wrong(
                    index,
                    format!(
                        "has {bytes} bytes, and the largest block of all is {block} bytes: make its \
                         size a multiple of that (nearest sizes: {smaller} and {})",
                        u128::from(smaller) + u128::from(block)
                    ),
                );
            }
            let start = geometry.bytes;
            let Some(end) = start.checked_add(bytes) else {
                let why = format!(
                    "does not fit: together there would be more than {} bytes, which no offset can \
                     reach: leave it out, and those behind it",
                    u64::MAX
                );
                return wrong(index, why);
            };
            geometry.bytes = end;
            // A volume that has grown moves those behind it: other content, under the same names.
            identity.add(&start.to_be_bytes());
            places.push(start..end);
        }
        Ok(Composite::new(Linear { places }, geometry, identity, children))
    }
}

impl Layout for Linear {
    const NAME: &'static str = "linear";

    #[inline]
    fn submit(&mut self, io: Io, below: &mut Below) {
        let first = self.places.partition_point(|place| place.end <= io.offset);
        let Range { start, end } = self.places[first];
        if io.offset + io.len <= end {
            let offset = io.offset - start;
            return below.pass_on(first, offset, io);
        }
        let (from, to) = (io.offset, io.offset + io.len);
        let touched = self.places[first..].iter().take_while(|place| place.start < to);
        let stretches = touched.zip(first..).map(|(place, child)| {
            let start = from.max(place.start);
            Stretch { child, offset: start - place.start, len: place.end.min(to) - start }
        });
        below.cut(&io, stretches);
    }

    /// The whole grows with the last, by whole blocks: behind the others lies one of them.
    fn grow(&mut self, child: usize, bytes: u64, whole: &Geometry) -> Option<u64> {
        let block = u64::from(whole.block_bytes);
        let [last] = self.places.get_mut(child..)? else { return None };
        // No offset reaches beyond 64 bits.
        let end = last.start.checked_add(bytes / block * block)?;
        last.end = last.end.max(end);
        Some(last.end)
    }
}
