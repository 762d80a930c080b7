//! [`Child`]: what a module stands on, each a volume or a stretch of one.

#[cfg(test)]
mod tests;

use thinwire_volume::{Geometry, Identity, Volume};

use crate::Slice;
use crate::meta::PartDoor;

/// A volume that a module stands on, as far as it is the module's: all of it, or what a part has for data behind its labels. That
/// costs an addition for each I/O, and is to everybody what a [`Slice`] of that start and size is, or of the size with which it was made: it has its
/// identity, too, and stays as it is when the volume grows.
pub struct Child {
    pub(super) volume: Box<dyn Volume>,
    /// Where it begins, in bytes.
    pub(super) start: u64,
    /// Bytes, if it is not all of the volume, also what that grows by.
    bytes: Option<u64>,
    /// With how many it is known, if that is another number: those with which it was made.
    made_bytes: Option<u64>,
    /// By which it hears that it has grown, of a part whose whole is in use meanwhile.
    door: Option<PartDoor>,
}

impl Child {
    /// All of these.
    pub fn all(volumes: Vec<Box<dyn Volume>>) -> Vec<Self> {
        let whole = |volume| Child { volume, start: 0, bytes: None, made_bytes: None, door: None };
        volumes.into_iter().map(whole).collect()
    }

    /// So many bytes from that one on.
    ///
    /// # Errors
    /// It does not reach so far, or has blocks that this would cut: a sentence whose subject is the volume.
    pub fn within(volume: Box<dyn Volume>, start: u64, bytes: u64) -> Result<Self, String> {
        let Geometry { bytes: has, block_bytes, .. } = volume.geometry();
        let block = u64::from(block_bytes);
        if let Some(odd) = [start, bytes].into_iter().find(|edge| !edge.is_multiple_of(block)) {
            return Err(format!("has blocks of {block} bytes, and {odd} is no multiple of that"));
        }
        let end = u128::from(start) + u128::from(bytes);
        if end > u128::from(has) {
            return Err(format!("has {has} bytes, and its data would end at {end}"));
        }
        Ok(Child { volume, start, bytes: Some(bytes), made_bytes: None, door: None })
    }

    /// It was made with so many bytes, and has grown since: it is what it was then.
    pub fn made_with(self, bytes: u64) -> Self {
        Child { made_bytes: Some(bytes), ..self }
    }

    /// It grows when this door says so.
    pub fn beside(self, door: PartDoor) -> Self {
        Child { door: Some(door), ..self }
    }

    /// What has happened to it.
    pub(super) fn events(&self) -> u64 {
        let own = self.door.as_ref().map_or(0, PartDoor::count);
        self.volume.events().wrapping_add(own)
    }

    /// How many bytes of it are the module's by now, if that was not told.
    pub(super) fn take_growth(&mut self) -> Option<u64> {
        let bytes = self.door.as_ref()?.take_growth()?;
        self.bytes = Some(bytes);
        Some(bytes)
    }

    /// Of the module's bytes.
    pub fn geometry(&self) -> Geometry {
        let geometry = self.volume.geometry();
        Geometry { bytes: self.bytes.unwrap_or(geometry.bytes), ..geometry }
    }

    /// By what it is known, and which life of it.
    pub fn identity(&self) -> Identity {
        let below = self.volume.identity();
        match self.bytes {
            Some(bytes) => {
                let made = self.made_bytes.unwrap_or(bytes);
                Slice::identity_over(self.start, Some(made), below)
            }
            None => below,
        }
    }

    /// By which it hears that it has grown, if it can while it is in use.
    pub(super) fn door(&self) -> Option<PartDoor> {
        self.door.clone()
    }

    /// It grows with the volume.
    pub(super) fn grows(&self) -> bool {
        self.bytes.is_none()
    }
}
