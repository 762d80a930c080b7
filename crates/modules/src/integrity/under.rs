//! [`Under`]: the last step down, which alone knows of the spans in which sums and data stand on a part that has grown.

use thinwire_volume::{Geometry, Io};

use super::NAME;
use super::layout::{IntegrityState, Span, SumLayout};
use crate::{Below, Layout, Stretch};

/// The part, as it is.
pub(super) struct Under {
    /// None if it has not grown.
    spans: Vec<Span>,
    state: IntegrityState,
    /// Somebody keeps its label, and says when that has more.
    is_told: bool,
}

impl Under {
    /// Of so many bytes, whose label says that; `is_told` if somebody says when that has more.
    pub fn of(part_bytes: u64, state: IntegrityState, is_told: bool) -> Self {
        Under { spans: SumLayout::spans(part_bytes, &state), state, is_told }
    }

    /// What its label says by now.
    pub fn state(&self) -> IntegrityState {
        self.state
    }
}

impl Layout for Under {
    const NAME: &'static str = NAME;

    #[inline]
    fn submit(&mut self, io: Io, below: &mut Below) {
        if self.spans.is_empty() || io.len == 0 {
            return below.pass_on(0, io.offset, io);
        }
        let (from, to) = (io.offset, io.offset + io.len);
        let first = self.spans.partition_point(|span| span.upto <= from);
        let Span { from: start, upto, at } = self.spans[first];
        if to <= upto {
            return below.pass_on(0, at + (from - start), io);
        }
        let touched = self.spans[first..].iter().take_while(|span| span.from < to);
        let stretches = touched.map(|span| {
            let start = from.max(span.from);
            let offset = span.at + (start - span.from);
            Stretch { child: 0, offset, len: span.upto.min(to) - start }
        });
        below.cut(&io, stretches);
    }

    /// As its label says by now.
    fn grow(&mut self, _: usize, bytes: u64, whole: &Geometry) -> Option<u64> {
        if !self.is_told {
            return None;
        }
        let (state, bytes) = self.state.grow(whole.bytes, bytes).ok()?;
        (self.spans, self.state) = (SumLayout::spans(bytes, &state), state);
        Some(bytes)
    }
}
