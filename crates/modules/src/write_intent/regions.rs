//! [`Regions`]: what each region of the data lacks on which leg, as far as it is known in memory, and which of that is to be
//! written down. Pure: whoever has it writes it. What has no legs is as one of one leg, which lacks what is in doubt.

#[cfg(test)]
mod tests;

use std::ops::RangeInclusive;
use std::time::Duration;

use thinwire_buffer::Time;

use super::bitmap::{BLOCKS_MAX, BlockImage, REGIONS_EACH, regions_mut};

/// A region is closed when nothing was written there for so long.
pub(crate) const CLOSE_AFTER: Duration = Duration::from_secs(2);

/// How a read stands to writes that are outstanding in its regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Beside {
    /// There are none.
    Nobody,
    /// This leg is asked, or it might see old bytes when another read has seen new ones.
    Leg(u8),
    /// It has to wait for those that overlap it.
    Wait,
}

/// A region whose bits are set, or about to be, because it is or was being written.
struct Open {
    region: u32,
    /// Writes that have begun there and not ended.
    outstanding: u32,
    /// When the last one ended, and how many had ended by then, anywhere.
    last: Time,
    nth: u64,
    /// The leg that is read meanwhile; none once that cannot be asked any more.
    reader: Option<u8>,
    /// The bits are in what is being written down.
    is_asked: bool,
    /// They are durable, on every leg that is written.
    is_durable: bool,
}

/// A byte for each region, whose bits are legs.
pub(crate) struct Regions {
    shift: u8,
    bytes: u64,
    /// All legs that there are.
    all: u8,
    /// These lack something of it.
    stale: Vec<u8>,
    /// These have got it since, and have not flushed it.
    copied: Vec<u8>,
    /// How many regions each leg lacks something of.
    stale_counts: [u32; 8],
    /// Where in `open` each region is, from 1 on; 0 if it is not.
    places: Vec<u32>,
    open: Vec<Open>,
    /// Blocks that are to be written.
    dirty: [bool; BLOCKS_MAX],
    dirty_count: usize,
    ended: u64,
    /// No region can be closed before.
    next_close: Time,
    /// The region that is being copied, to which legs, and whether what was read of it does not count any more.
    watched: Option<u32>,
    watchers: u8,
    is_spoiled: bool,
    /// Below this no leg lacks what it has not got, but for what was passed over.
    first_uncopied: u32,
}

impl Regions {
    pub fn new(bytes: u64, shift: u8, legs: usize) -> Self {
        let count = bytes.div_ceil(1 << shift) as usize;
        Regions {
            shift,
            bytes,
            all: (u16::MAX >> (16 - legs)) as u8,
            stale: vec![0; count],
            copied: vec![0; count],
            stale_counts: [0; 8],
            places: vec![0; count],
            open: Vec::new(),
            dirty: [false; BLOCKS_MAX],
            dirty_count: 0,
            ended: 0,
            next_close: Time::NEVER,
            watched: None,
            watchers: 0,
            is_spoiled: false,
            first_uncopied: 0,
        }
    }

    /// There are so many legs, 1 to 8: of more than before nothing is known.
    pub fn set_legs(&mut self, legs: usize) {
        self.all = (u16::MAX >> (16 - legs)) as u8;
    }

    /// There is more data, and so there may be more regions: nobody lacks anything of those.
    pub fn grow(&mut self, bytes: u64) {
        let blocks = self.blocks();
        self.bytes = bytes;
        let count = bytes.div_ceil(1 << self.shift) as usize;
        self.stale.resize(count, 0);
        self.copied.resize(count, 0);
        self.places.resize(count, 0);
        // Whatever stands there is none of ours.
        (blocks..self.blocks()).for_each(|block| self.soil(block));
    }

    pub fn count(&self) -> u32 {
        self.stale.len() as u32
    }

    pub fn blocks(&self) -> u32 {
        self.count().div_ceil(REGIONS_EACH as u32)
    }

    /// All legs that there are, as bits.
    pub fn all(&self) -> u8 {
        self.all
    }

    /// Those that a range of bytes touches, which is not empty.
    #[inline]
    pub fn of(&self, offset: u64, len: u64) -> RangeInclusive<u32> {
        (offset >> self.shift) as u32..=((offset + len - 1) >> self.shift) as u32
    }

    /// Where a region lies, in bytes of data.
    pub fn place(&self, region: u32) -> (u64, u64) {
        let start = u64::from(region) << self.shift;
        (start, self.bytes.min(start + (1 << self.shift)))
    }

    /// Who is read in these regions, if somebody writes there: one leg of these for each region, as long as that can be asked. Or
    /// nobody can be, beside a write.
    #[inline]
    pub fn reader(&self, regions: RangeInclusive<u32>, among: u8) -> Beside {
        let mut beside = Beside::Nobody;
        for region in regions {
            let open = match self.places[region as usize] {
                0 => continue,
                place => &self.open[place as usize - 1],
            };
            if open.outstanding == 0 {
                continue;
            }
            beside = match (open.reader, beside) {
                (Some(leg), Beside::Nobody) if among >> leg & 1 == 1 => Beside::Leg(leg),
                (Some(leg), Beside::Leg(other)) if leg == other => beside,
                _ => return Beside::Wait,
            };
        }
        beside
    }

    /// A leg is not read any more: beside the writes that are outstanding nobody is, since it may have shown some of them.
    pub fn forget_reader(&mut self, leg: usize) {
        for open in self.open.iter_mut().filter(|open| open.reader == Some(leg as u8)) {
            open.reader = None;
        }
    }

    /// Nobody writes there.
    #[inline]
    pub fn is_quiet(&self, region: u32) -> bool {
        match self.places[region as usize] {
            0 => true,
            place => self.open[place as usize - 1].outstanding == 0,
        }
    }

    /// A write there begins; beside it one of these legs is read, if there is one. False if its bits have to be made durable first: their block is to be written, or is just being.
    #[inline]
    pub fn begin_write(&mut self, region: u32, readers: u8) -> bool {
        let place = &mut self.places[region as usize];
        if *place == 0 {
            let (last, nth) = (Time::ZERO, 0);
            let (is_asked, is_durable) = (false, false);
            let (outstanding, reader) = (0, None);
            self.open.push(Open { region, outstanding, last, nth, reader, is_asked, is_durable });
            *place = self.open.len() as u32;
        }
        let open = &mut self.open[*place as usize - 1];
        if open.outstanding == 0 {
            // Spread by region.
            let nth = region % readers.count_ones().max(1);
            open.reader = bits(readers).nth(nth as usize).map(|leg| leg as u8);
        }
        open.outstanding += 1;
        let is_durable = open.is_durable;
        if !is_durable && !open.is_asked {
            self.soil(region / REGIONS_EACH as u32);
        }
        is_durable
    }

    #[inline]
    pub fn is_durable(&self, region: u32) -> bool {
        match self.places[region as usize] {
            0 => false,
            place => self.open[place as usize - 1].is_durable,
        }
    }

    /// A write there has ended, however.
    #[inline]
    pub fn end_write(&mut self, region: u32, now: Time) {
        self.ended += 1;
        let nth = self.ended;
        if let Some(open) = self.open_mut(region) {
            open.outstanding -= 1;
            (open.last, open.nth) = (now, nth);
        }
        self.next_close = self.next_close.min(now + CLOSE_AFTER);
    }

    fn open_mut(&mut self, region: u32) -> Option<&mut Open> {
        match self.places[region as usize] {
            0 => None,
            place => Some(&mut self.open[place as usize - 1]),
        }
    }

    /// How many writes have ended, for [`Regions::close`].
    pub fn ended(&self) -> u64 {
        self.ended
    }

    /// When the first region may be closed; never if none is open that is not being written. Not earlier than it was
    /// said before, so that all of them are looked at seldom.
    pub fn next_close(&mut self, now: Time) -> Time {
        if self.next_close <= now {
            let idle = self.open.iter().filter(|open| open.outstanding == 0);
            let next = idle.map(|open| open.last + CLOSE_AFTER).min();
            self.next_close = next.unwrap_or(Time::NEVER);
        }
        self.next_close
    }

    /// Nothing is closed before as long again has passed.
    pub fn put_off(&mut self, now: Time) {
        self.open.iter_mut().for_each(|open| open.last = now);
        self.next_close = now + CLOSE_AFTER;
    }

    /// Closes what was not written since `ended` writes had ended, a flush of all legs having succeeded that began behind
    /// those. Their blocks are to be written.
    pub fn close(&mut self, ended: u64, now: Time) {
        self.close_before(ended, |last| last + CLOSE_AFTER <= now);
    }

    /// As [`Regions::close`], also what was just written.
    pub fn close_now(&mut self, ended: u64) {
        self.close_before(ended, |_| true);
    }

    fn close_before(&mut self, ended: u64, is_long_ago: impl Fn(Time) -> bool) {
        let mut at = 0;
        while let Some(open) = self.open.get(at) {
            let may_close = open.outstanding == 0 && open.nth <= ended;
            if !may_close || !is_long_ago(open.last) {
                at += 1;
                continue;
            }
            let Open { region, .. } = self.open.swap_remove(at);
            self.places[region as usize] = 0;
            if let Some(moved) = self.open.get(at) {
                self.places[moved.region as usize] = at as u32 + 1;
            }
            self.soil(region / REGIONS_EACH as u32);
        }
    }

    /// These legs lack something of a region: whatever they have got of it before does not count.
    pub fn add_stale(&mut self, region: u32, legs: u8) {
        let stale = &mut self.stale[region as usize];
        let copied = &mut self.copied[region as usize];
        let new = legs & !*stale;
        if new | legs & *copied != 0 {
            self.first_uncopied = self.first_uncopied.min(region);
        }
        *stale |= legs;
        *copied &= !legs;
        // A leg that is away lacks more by each write, and nobody copies to it.
        self.is_spoiled |= self.watched == Some(region) && self.watchers & legs != 0;
        if new != 0 {
            bits(new).for_each(|leg| self.stale_counts[leg] += 1);
            // If it is open its bits are set already.
            if !self.is_durable(region) {
                self.soil(region / REGIONS_EACH as u32);
            }
        }
    }

    /// These legs lack something of every region that is open.
    pub fn add_stale_where_open(&mut self, legs: u8) {
        for at in 0..self.open.len() {
            self.add_stale(self.open[at].region, legs);
        }
    }

    pub fn remove_stale(&mut self, region: u32, legs: u8) {
        let stale = &mut self.stale[region as usize];
        let gone = *stale & legs;
        *stale &= !legs;
        self.copied[region as usize] &= !legs;
        if gone != 0 {
            bits(gone).for_each(|leg| self.stale_counts[leg] -= 1);
            self.soil(region / REGIONS_EACH as u32);
        }
    }

    /// What was found of a region when it was opened: who lacks something of it, and what stands in the bitmaps.
    pub fn load(&mut self, region: u32, stale: u8, found: u8) {
        self.add_stale(region, stale);
        if found != stale {
            self.soil(region / REGIONS_EACH as u32);
        }
    }

    /// Legs that lack something of a region.
    pub fn stale(&self, region: u32) -> u8 {
        self.stale[region as usize]
    }

    /// How many regions a leg lacks something of.
    pub fn stale_count(&self, leg: usize) -> u32 {
        self.stale_counts[leg]
    }

    /// These legs have got a region that they lacked, and have not flushed it.
    pub fn set_copied(&mut self, region: u32, legs: u8) {
        self.copied[region as usize] |= legs & self.stale[region as usize];
    }

    pub fn copied(&self, region: u32) -> u8 {
        self.copied[region as usize]
    }

    /// The first region that one of these legs lacks and has not got, to be watched from now on.
    pub fn next_uncopied(&mut self, legs: u8) -> Option<u32> {
        let lacks = |region: &u32| {
            self.stale[*region as usize] & !self.copied[*region as usize] & legs != 0
        };
        let next = (self.first_uncopied..self.count()).find(lacks);
        (self.watched, self.is_spoiled) = (next, false);
        self.watchers = next.map_or(0, |region| self.stale[region as usize] & legs);
        self.first_uncopied = next.unwrap_or(self.count());
        next
    }

    /// Some region is to be watched from now on.
    pub fn watch(&mut self, region: u32) {
        (self.watched, self.is_spoiled) = (Some(region), false);
        // Whatever becomes stale there meanwhile, also where nothing was.
        self.watchers = self.all();
    }

    /// What lies behind the region that was watched comes first.
    pub fn pass_over(&mut self, region: u32) {
        if self.first_uncopied == region {
            self.first_uncopied += 1;
        }
    }

    /// Looks at all of them again: other legs count, or what was passed over.
    pub fn look_again(&mut self) {
        self.first_uncopied = 0;
    }

    /// A leg that it is copied to began to lack something of the region that is watched.
    pub fn is_spoiled(&self) -> bool {
        self.is_spoiled
    }

    fn soil(&mut self, block: u32) {
        let dirty = &mut self.dirty[block as usize];
        self.dirty_count += usize::from(!*dirty);
        *dirty = true;
    }

    /// All blocks are to be written.
    pub fn soil_all(&mut self) {
        (0..self.blocks()).for_each(|block| self.soil(block));
    }

    pub fn is_dirty(&self) -> bool {
        self.dirty_count > 0
    }

    /// A block that is to be written, and is not any more.
    pub fn take_dirty(&mut self) -> Option<u32> {
        if self.dirty_count == 0 {
            return None;
        }
        let block = self.dirty.iter().position(|dirty| *dirty)?;
        self.dirty[block] = false;
        self.dirty_count -= 1;
        Some(block as u32)
    }

    /// Puts what a block has to say into its image.
    pub fn fill(&mut self, block: u32, image: &mut BlockImage) {
        let first = block as usize * REGIONS_EACH;
        let regions = regions_mut(image);
        regions.fill(0);
        for (byte, stale) in regions.iter_mut().zip(&self.stale[first..]) {
            *byte = *stale;
        }
        for open in &mut self.open {
            if open.region / REGIONS_EACH as u32 == block {
                open.is_asked = true;
                regions[open.region as usize % REGIONS_EACH] = self.all;
            }
        }
    }

    /// What was filled in since the last call is durable, or it is not known what is.
    pub fn on_written(&mut self, is_durable: bool) {
        for open in &mut self.open {
            open.is_durable |= std::mem::take(&mut open.is_asked) & is_durable;
        }
    }

    /// How many are open.
    pub fn open_count(&self) -> usize {
        self.open.len()
    }
}

/// Legs of a set of them.
pub(crate) fn bits(legs: u8) -> impl Iterator<Item = usize> {
    (0..8).filter(move |leg| legs >> leg & 1 == 1)
}
