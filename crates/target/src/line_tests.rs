//! Sessions that share a line: equal shares, weights, and whoever comes while others wait.

use super::*;

const SLOTS: u16 = 256;
const PAGE: u32 = 8192;

fn of(cost: u32) -> Cost {
    Cost { session: cost, store: cost }
}

/// A line, and sessions that have requests of one cost each, always so many.
struct Queue {
    line: Line,
    links: Vec<Vec<Link>>,
    costs: Vec<u32>,
    served: Vec<u64>,
}

impl Queue {
    fn new(costs: &[u32]) -> Self {
        let links = vec![vec![Link::NONE; usize::from(SLOTS)]; costs.len()];
        Queue { line: Line::new(), links, costs: costs.to_vec(), served: vec![0; costs.len()] }
    }

    fn push(&mut self, place: u16, slot: u16) {
        let cost = of(self.costs[usize::from(place)]);
        self.line.push(3, place, slot, cost, &mut self.links);
        assert!(self.links[usize::from(place)][usize::from(slot)].waits());
    }

    fn fill(&mut self, place: u16, slots: u16) {
        (0..slots).for_each(|slot| self.push(place, slot));
    }

    fn front(&mut self) -> Option<(u16, u16)> {
        loop {
            match self.line.front(false, &self.links) {
                Front::Request(place, slot, cost) => {
                    assert_eq!(cost, of(self.costs[usize::from(place)]));
                    return Some((place, slot));
                }
                Front::Over => {}
                Front::Nobody => return None,
            }
        }
    }

    /// The next request.
    fn take(&mut self) -> Option<(u16, u16)> {
        let (place, slot) = self.front()?;
        self.line.take(place, &mut self.links);
        self.served[usize::from(place)] += u64::from(self.costs[usize::from(place)]);
        Some((place, slot))
    }

    fn skip(&mut self) {
        self.take().expect("somebody waits");
    }

    /// All of those that wait, and who they are of.
    fn rest(&mut self) -> Vec<(u16, u16)> {
        std::iter::from_fn(|| self.take()).collect()
    }
}

#[test]
fn a_session_is_served_in_order() {
    let mut queue = Queue::new(&[PAGE]);
    [5, 2, 9].into_iter().for_each(|slot| queue.push(0, slot));
    assert_eq!(queue.rest(), [(0, 5), (0, 2), (0, 9)]);
    assert!(!queue.line.is_waited_in() && queue.line.listed() == 0);
}

/// Whatever their requests are like, and however many of them wait.
#[test]
fn sessions_have_equal_shares_of_bytes_and_requests() {
    let costs = [PAGE, 68 << 10, 4096 + 512, (1 << 20) + 4096, PAGE];
    let depths = [128, 16, 200, 8, 3];
    let mut queue = Queue::new(&costs);
    (0..5).for_each(|place| queue.fill(place, depths[usize::from(place)]));
    for _ in 0..200_000 {
        let (place, slot) = queue.take().expect("they always want more");
        queue.push(place, slot);
    }
    let (least, most) = (queue.served.iter().min().unwrap(), queue.served.iter().max().unwrap());
    // A request of a MiB cannot be shared out more finely.
    assert!(most - least <= 2 * u64::from(costs[3]) + QUANTUM as u64, "{:?}", queue.served);
    assert!(*least > 100 << 20);
}

/// One that wants less than its share has it before those who want all: one request at a time, and it comes again
/// when two others were served.
#[test]
fn who_wants_little_does_not_wait() {
    let mut queue = Queue::new(&[PAGE; 4]);
    (0..3).for_each(|place| queue.fill(place, 128));
    (0..50).for_each(|_| queue.skip());
    let (mut waited, mut polite) = (0, 0);
    for step in 0..10_000 {
        if step % 8 == 0 {
            queue.push(3, 0);
            waited = 0;
        }
        let (place, slot) = queue.take().expect("there is always somebody");
        if place == 3 {
            polite += 1;
            assert_eq!(waited, 0, "step {step}");
        } else {
            waited += 1;
            queue.push(place, slot);
        }
    }
    assert_eq!(polite, 1250);
}

/// And who comes one at a time, but at once again, has its share and no more.
#[test]
fn who_comes_at_once_again_has_no_more_than_its_share() {
    for cost in [PAGE, (1 << 20) + 4096] {
        let mut queue = Queue::new(&[PAGE, cost]);
        queue.fill(0, 128);
        queue.push(1, 0);
        for _ in 0..20_000 {
            let (place, slot) = queue.take().expect("there is always somebody");
            queue.push(place, slot);
        }
        let [greedy, single] = queue.served[..] else { unreachable!() };
        let slack = u64::from(cost) + 2 * QUANTUM as u64;
        assert!(single.abs_diff(greedy) <= slack, "{:?}", queue.served);
    }
}

#[test]
fn debts_are_forgotten_once_nobody_waits() {
    let mut queue = Queue::new(&[PAGE, (1 << 20) + 4096]);
    queue.push(1, 0);
    queue.push(0, 0);
    assert_eq!(queue.rest(), [(1, 0), (0, 0)]);
    // It would be a hundred quanta behind.
    queue.push(1, 1);
    queue.fill(0, 100);
    assert_eq!(queue.take(), Some((1, 1)));
}

#[test]
fn what_is_given_up_leaves_no_gap() {
    for gone in [[0, 1], [1, 2], [3, 0], [2, 3]] {
        let mut queue = Queue::new(&[PAGE, PAGE]);
        queue.fill(0, 4);
        queue.push(1, 7);
        for slot in gone {
            queue.line.remove(0, slot, &mut queue.links);
            assert!(!queue.links[0][usize::from(slot)].waits());
        }
        // Behind the others now.
        queue.push(0, gone[0]);
        let mut expected: Vec<u16> = (0..4).filter(|slot| !gone.contains(slot)).collect();
        expected.push(gone[0]);
        let served = queue.rest();
        let own: Vec<u16> = served.iter().filter(|(place, _)| *place == 0).map(|s| s.1).collect();
        assert_eq!(own, expected);
        assert!(served.contains(&(1, 7)));
    }
    let mut queue = Queue::new(&[PAGE, PAGE]);
    queue.push(0, 0);
    queue.line.remove(0, 0, &mut queue.links);
    assert_eq!(queue.front(), None);
    queue.fill(0, 2);
    assert_eq!(queue.rest(), [(0, 0), (0, 1)]);
}

#[test]
fn who_ends_waits_for_nothing() {
    let mut queue = Queue::new(&[PAGE, PAGE, PAGE]);
    (0..3).for_each(|place| queue.fill(place, 20));
    (0..5).for_each(|_| queue.skip());
    let Queue { line, links, .. } = &mut queue;
    let left = links[1].iter().filter(|link| link.waits()).count();
    assert_eq!(line.forget(1, &mut links[1]), left);
    assert_eq!(line.forget(1, &mut links[1]), 0);
    assert!(links[1].iter().all(|link| !link.waits()));
    // Another session has its place.
    queue.push(1, 4);
    let served = queue.rest();
    assert_eq!(served.iter().filter(|(place, _)| *place == 1).count(), 1);
    assert_eq!(served.len() + 5, 2 * 20 + (20 - left) + 1);
}

/// Only those who are fresh, as long as there are any.
#[test]
fn the_fresh_can_be_asked_for_alone() {
    let mut queue = Queue::new(&[PAGE, PAGE]);
    queue.fill(0, 128);
    (0..9).for_each(|_| queue.skip());
    assert_eq!(queue.line.front(true, &queue.links), Front::Nobody);
    queue.push(1, 0);
    assert!(matches!(queue.line.front(true, &queue.links), Front::Request(1, 0, _)));
}
