//! What the shards of a target say to one another, on its way from thread to thread: in order between any
//! two, never lost, and late.

use std::any::Any;
use std::collections::{BTreeMap, VecDeque};

use thinwire_link::rng::Rng;
use thinwire_target::DoorLetter;
use thinwire_volume::Parcel;

/// What a parcel has in it.
type Content = Box<dyn Any + Send>;

/// The parcels between the shards of one process.
#[derive(Debug, Default)]
pub struct Mail {
    /// How long one is under way at most, in ns; now and then ten times that.
    pub late_ns_max: u64,
    /// What would be a fault of the mail: two that say different things change places, now and then.
    pub swaps: bool,
    /// By sender and receiver.
    ways: BTreeMap<(usize, usize), Way>,
    dice: Option<Rng>,
}

/// The way from one shard to another.
#[derive(Debug, Default)]
struct Way {
    /// How long a parcel takes at most, in ns.
    late_ns_max: u64,
    /// Oldest first, with when each arrives.
    parcels: VecDeque<(u64, Content)>,
}

impl Mail {
    /// A process begins. Nothing is under way.
    pub fn restart(&mut self, dice: Rng) {
        self.ways.clear();
        self.dice = Some(dice);
    }

    /// A shard sends something at `now`.
    pub fn send(&mut self, now: u64, from: usize, parcel: Parcel) {
        let dice = self.dice.as_mut().expect("a process has begun");
        let most = self.late_ns_max;
        let way = self.ways.entry((from, usize::from(parcel.shard))).or_insert_with(|| {
            // Some are quick beside others.
            let late_ns_max = if dice.chance(0.3) { most / 100 } else { most };
            Way { late_ns_max, parcels: VecDeque::new() }
        });
        let most = if dice.chance(0.03) { 10 } else { 1 } * way.late_ns_max;
        let way = &mut way.parcels;
        let before = way.back().map_or(0, |(at, _)| *at);
        let at = before.max(now + dice.between(0, most));
        way.push_back((at, parcel.content));
        let last = way.len() - 1;
        if self.swaps
            && last > 0
            && kind(&way[last - 1].1) != kind(&way[last].1)
            && dice.chance(0.3)
        {
            way.swap(last - 1, last);
            way[last - 1].0 = before;
            way[last].0 = at;
        }
    }

    /// When the next arrives at a shard.
    pub fn due(&self, to: usize) -> Option<u64> {
        let to_it = self.ways.iter().filter(|((_, receiver), _)| *receiver == to);
        to_it.filter_map(|(_, way)| way.parcels.front().map(|(at, _)| *at)).min()
    }

    /// The next that has arrived at a shard by `now`.
    pub fn take(&mut self, to: usize, now: u64) -> Option<Content> {
        let mut to_it = self.ways.iter_mut().filter(|((_, receiver), _)| *receiver == to);
        let has_one = |way: &Way| way.parcels.front().is_some_and(|(at, _)| *at <= now);
        let (_, way) = to_it.find(|(_, way)| has_one(way))?;
        way.parcels.pop_front().map(|(_, content)| content)
    }
}

/// The word in which a letter's sentence begins: as it prints itself.
fn kind(content: &Content) -> Option<String> {
    let letter = format!("{:?}", content.downcast_ref::<DoorLetter>()?);
    let word = letter.split("word: ").nth(1)?;
    Some(word.chars().take_while(|c| c.is_alphanumeric()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parcel(shard: u8, number: u32) -> Parcel {
        Parcel { shard, content: Box::new(number) }
    }

    #[test]
    fn parcels_arrive_late_in_order_and_none_is_lost() {
        let mut mail = Mail { late_ns_max: 1000, ..Mail::default() };
        mail.restart(Rng::new(5));
        let (mut now, mut got, mut was_late) = (0, Vec::new(), false);
        for number in 0..200 {
            mail.send(now, 0, parcel(2, number));
            mail.send(now, 2, parcel(0, number));
            was_late |= mail.due(2) > Some(now);
            now += 100;
            while let Some(content) = mail.take(2, now) {
                got.push(*content.downcast::<u32>().expect("it is a number"));
            }
        }
        while let Some(content) = mail.take(2, now + 20_000) {
            got.push(*content.downcast::<u32>().expect("it is a number"));
        }
        assert_eq!(got, (0..200).collect::<Vec<_>>());
        assert!(was_late && mail.due(1).is_none() && mail.due(0).is_some());
        mail.restart(Rng::new(6));
        assert!(mail.due(0).is_none());
    }
}
