//! [`Content`]: the sectors of a disk. Of what its crashes leave most is alike, and all of them share that.

use std::collections::BTreeMap;
use std::ops::Index;
use std::rc::Rc;

use super::disk::Sector;

/// Of a node: what is written together is found together.
const PAGE: u64 = 8;

type Page = [Option<Sector>; PAGE as usize];

/// Sectors by their numbers. A copy costs nothing, its first change a copy of what refers to pages, each change the pages that it touches.
#[derive(Clone, Default, PartialEq)]
pub struct Content(Rc<BTreeMap<u64, Rc<Page>>>);

impl Content {
    pub fn new() -> Self {
        Content::default()
    }

    pub fn get(&self, at: &u64) -> Option<&Sector> {
        self.0.get(&(at / PAGE))?[(at % PAGE) as usize].as_ref()
    }

    pub fn insert(&mut self, at: u64, sector: Sector) {
        let page = Rc::make_mut(&mut self.0).entry(at / PAGE).or_default();
        Rc::make_mut(page)[(at % PAGE) as usize] = Some(sector);
    }

    /// What is there, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &Sector)> {
        self.0.iter().flat_map(|(page, sectors)| {
            (page * PAGE..).zip(&**sectors).filter_map(|(at, sector)| Some((at, sector.as_ref()?)))
        })
    }
}

impl Index<&u64> for Content {
    type Output = Sector;

    fn index(&self, at: &u64) -> &Sector {
        self.get(at).expect("it was written")
    }
}
