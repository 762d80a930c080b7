//! What happens to a volume of volumes, out of what happens to each.

use thinwire_volume::{Geometry, VolumeEvent};

use crate::below::Below;
use crate::child::Child;
use crate::composite::Layout;

/// What has become of the volumes below a module since it was made.
pub(super) struct Growth {
    /// Their sizes, as far as they have a place.
    sizes: Vec<u64>,
    /// By how much they have outgrown it: themselves, and what they say of themselves.
    beyond: Vec<[u64; 2]>,
}

impl Growth {
    pub fn of(children: &[Child]) -> Self {
        let sizes: Vec<u64> = children.iter().map(|child| child.geometry().bytes).collect();
        Growth { beyond: vec![[0; 2]; sizes.len()], sizes }
    }

    /// Takes what has happened below, and tells it as of the whole: of each kind once, a loss first; of legs and bad blocks all.
    pub fn take_events<L: Layout>(
        &mut self,
        layout: &mut L,
        below: &mut Below,
        geometry: &mut Geometry,
        events: &mut Vec<VolumeEvent>,
    ) {
        let start = events.len();
        let (mut has_lost, mut has_grown, mut has_unreachable) = (false, false, false);
        let (mut has_shrunk, mut is_stale, mut legs) = (false, false, Vec::new());
        for (child, of) in below.children().iter_mut().enumerate() {
            of.volume.poll_events(events);
            if let Some(bytes) = of.take_growth()
                && let Some(whole) = layout.grow(child, bytes, geometry)
            {
                has_grown |= whole > geometry.bytes;
                geometry.bytes = whole.max(geometry.bytes);
            }
            for event in events.drain(start..) {
                match event {
                    VolumeEvent::Lost => has_lost = true,
                    // What it grows by was never the module's.
                    VolumeEvent::Resized { .. } if !of.grows() => {}
                    VolumeEvent::Resized { bytes } => match layout.grow(child, bytes, geometry) {
                        Some(whole) => {
                            has_grown |= whole > geometry.bytes;
                            geometry.bytes = whole.max(geometry.bytes);
                        }
                        None => {
                            self.beyond[child][0] = bytes.saturating_sub(self.sizes[child]);
                            has_unreachable = true;
                        }
                    },
                    VolumeEvent::Shrunk => has_shrunk = true,
                    VolumeEvent::Stale => is_stale = true,
                    VolumeEvent::Leg { .. }
                    | VolumeEvent::Fenced { .. }
                    | VolumeEvent::BadBlock { .. }
                    | VolumeEvent::Unverified { .. } => legs.push(event),
                    VolumeEvent::Unreachable { bytes } => {
                        self.beyond[child][1] = bytes;
                        has_unreachable = true;
                    }
                }
            }
        }
        if has_lost {
            events.push(VolumeEvent::Lost);
        }
        if has_grown {
            events.push(VolumeEvent::Resized { bytes: geometry.bytes });
        }
        if has_unreachable {
            let bytes = self.beyond.iter().flatten().sum();
            events.push(VolumeEvent::Unreachable { bytes });
        }
        if has_shrunk {
            events.push(VolumeEvent::Shrunk);
        }
        if is_stale {
            events.push(VolumeEvent::Stale);
        }
        events.append(&mut legs);
    }
}
