//! I/Os that are with a part: which edge each came by, and under which token of its submitter.

use thinwire_volume::{Op, Token};

/// An I/O that is with a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flight {
    /// The edge that it came by; [`NO_EDGE`] if that is gone.
    pub edge: u32,
    /// What it does. All else that it says is the part's.
    pub op: Op,
    /// What its submitter calls it.
    pub token: Token,
}

/// The number of no edge.
const NO_EDGE: u32 = u32::MAX;

/// Those of one part. Never more places than were outstanding at once; allocates nothing once warm.
#[derive(Debug, Default)]
pub(crate) struct Flights {
    /// Each with the number of its uses, so that the token of an earlier one is told from the present.
    places: Vec<(u32, Option<Flight>)>,
    free: Vec<u32>,
}

impl Flights {
    /// The token under which the part gets it.
    #[inline]
    pub fn begin(&mut self, flight: Flight) -> Token {
        let at = match self.free.pop() {
            Some(at) => at,
            None => {
                self.places.push((0, None));
                (self.places.len() - 1) as u32
            }
        };
        let (uses, place) = &mut self.places[at as usize];
        *uses = uses.wrapping_add(1);
        *place = Some(flight);
        u64::from(*uses) << 32 | u64::from(at)
    }

    /// The part has completed it. `None` if it has no such I/O: it has completed one twice.
    #[inline]
    pub fn end(&mut self, token: Token) -> Option<Flight> {
        let (uses, place) = self.places.get_mut(token as u32 as usize)?;
        if *uses != (token >> 32) as u32 {
            return None;
        }
        let flight = place.take()?;
        self.free.push(token as u32);
        Some(flight)
    }

    /// What came by an edge is nobody's any more.
    pub fn forget_edge(&mut self, edge: u32) {
        let flights = self.places.iter_mut().filter_map(|(_, flight)| flight.as_mut());
        flights.filter(|flight| flight.edge == edge).for_each(|flight| flight.edge = NO_EDGE);
    }

    /// How many are with the part.
    pub fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Takes all of them out: the part is gone.
    pub fn drain(&mut self) -> impl Iterator<Item = Flight> + '_ {
        self.free.clear();
        self.places.drain(..).filter_map(|(_, flight)| flight)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_io_lands_once_under_the_token_of_its_submitter() {
        let mut flights = Flights::default();
        let flight = |edge, token| Flight { edge, op: Op::Read, token };
        let [a, b] = [flight(1, 7), flight(2, 7)].map(|f| flights.begin(f));
        assert_eq!(flights.len(), 2);
        assert_eq!(flights.end(b), Some(flight(2, 7)));
        assert_eq!(flights.end(b), None, "twice");
        let c = flights.begin(flight(3, 9));
        assert_eq!(flights.end(b), None, "its place is used again");
        assert_eq!((flights.end(a), flights.end(c)), (Some(flight(1, 7)), Some(flight(3, 9))));
        assert_eq!((flights.len(), flights.places.len()), (0, 2));
        assert_eq!(flights.end(u64::MAX), None);
        flights.begin(flight(4, 1));
        flights.begin(flight(5, 1));
        flights.forget_edge(4);
        assert_eq!(flights.drain().collect::<Vec<_>>(), [flight(5, 1), flight(NO_EDGE, 1)]);
        assert_eq!(flights.len(), 0);
    }
}
