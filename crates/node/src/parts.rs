//! The parts of a node, and what it knows of each.

use thinwire_buffer::TxBatch;
use thinwire_volume::{Closing, Effect, Part};

use crate::flights::Flights;

/// A part in its place.
pub(crate) struct Place {
    pub part: Box<dyn Part>,
    /// Tells it from those that had the place before.
    pub generation: u32,
    /// The node's numbers of its links, in its own order.
    pub links: Vec<usize>,
    /// They are the node's first ones, in the same order: it can be given their batches as they are.
    pub links_are_first: bool,
    /// Edges to it: others stand on it.
    pub edges: Vec<usize>,
    /// What the volume that it is had counted when its events were last told.
    pub events: u64,
    pub flights: Flights,
    /// What it had lost when it last completed something (canary).
    pub events_late: u64,
    /// It is to be settled.
    pub is_stirred: bool,
    /// It is to be closed.
    pub is_touched: bool,
}

impl Place {
    pub fn new(part: Box<dyn Part>, generation: u32, links: Vec<usize>) -> Self {
        let links_are_first = are_first(&links);
        Place {
            part,
            generation,
            links,
            links_are_first,
            edges: Vec::new(),
            events: 0,
            flights: Flights::default(),
            events_late: 0,
            is_stirred: false,
            is_touched: false,
        }
    }

    /// It has another link. Returns its own number of it.
    pub fn add_link(&mut self, link: usize) -> usize {
        self.links.push(link);
        self.links_are_first = are_first(&self.links);
        self.links.len() - 1
    }

    /// Closes it, with the batches of its links. `lent` is where those stand meanwhile that it counts
    /// otherwise than the node.
    #[inline]
    pub fn close(
        &mut self,
        now: thinwire_buffer::Time,
        out: &mut [TxBatch],
        lent: &mut Vec<TxBatch>,
        effects: &mut Vec<Effect>,
    ) -> thinwire_buffer::Time {
        if self.links_are_first {
            let out = &mut out[..self.links.len()];
            return self.part.close(&mut Closing { now, out, effects });
        }
        lent.resize_with(self.links.len(), TxBatch::new);
        let swap = |lent: &mut [TxBatch], out: &mut [TxBatch]| {
            for (batch, &link) in lent.iter_mut().zip(&self.links) {
                std::mem::swap(batch, &mut out[link]);
            }
        };
        swap(lent, out);
        let at = self.part.close(&mut Closing { now, out: lent, effects });
        swap(lent, out);
        at
    }
}

fn are_first(links: &[usize]) -> bool {
    links.iter().copied().eq(0..links.len())
}
