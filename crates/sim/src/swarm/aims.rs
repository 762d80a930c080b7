//! Worlds in which crashes come with changes of state. Drawn apart, so that all else is as it would be without, until
//! one strikes.

use thinwire_link::rng::Rng;

use super::pick;
use crate::aim::{AimedCrash, Victim};
use crate::client::Client;
use crate::server::Crash;
use crate::transitions::Change;
use crate::world::World;

/// Which share of the worlds is like that.
const SHARE: f64 = 0.4;
/// Kept as tests of what was mended once: they would tell another story.
const SPARED: [u64; 1] = [9_602_480];
/// How many wait for the changes of a client, at most: while things go wrong, and when everybody detaches.
const AIMS_MAX: u64 = 8;
const LAST_AIMS_MAX: u64 = 3;

/// The part whose changes come when everybody detaches.
const LAST: &str = "closing";

/// Changes that happen so seldom that a crash waits for each of them in every second client of such a world.
const RARE: [&str; 23] = [
    "association: Associated > Seeking",
    "association: Associated > Rejoining",
    "association: Doubted > Seeking",
    "association: Rejoining > Seeking",
    "attachment: Asked > Apart",
    "attachment: Refused > Apart",
    "attachment: Apart, open > Asked, open",
    "attachment: Refused, open > Apart, open",
    "durability: Clean > Replaying",
    "durability: Replaying > Clean",
    "durability: Clean, owing > Clean",
    "durability: Clean, owing > Retaining, owing",
    "durability: Clean, owing > Replaying, owing",
    "durability: Retaining, owing > Clean",
    "durability: Retaining, owing > Retaining",
    "durability: Retaining, owing > Clean, owing",
    "durability: Retaining, owing > Replaying, owing",
    "durability: Replaying, owing > Clean, owing",
    "durability: Replaying, owing > Retaining, owing",
    "absence: Away > GivenUp",
    "absence: GivenUp > Present",
    "closing: Draining > Clean",
    "closing: Draining > Closed",
];

/// What clients have to fear while things go wrong.
pub(crate) fn aim(seed: u64, world: &mut World) {
    let all: Vec<_> = Change::all().collect();
    let is_rare = |change: &Change| RARE.contains(&change.name().as_str());
    let rare: Vec<_> = all.iter().copied().filter(is_rare).collect();
    for_each_client(seed, 0x0000_6169_6d65_6400, world, |dice, client, victims| {
        for _ in 0..dice.below(AIMS_MAX + 1) {
            client.aims.add(drawn(dice, &all, victims));
        }
        for change in &rare {
            if dice.chance(0.5) {
                let aim = drawn(dice, std::slice::from_ref(change), victims);
                client.aims.add(AimedCrash { spared: 0, ..aim });
            }
        }
    });
}

/// What they have to fear when they detach.
pub(crate) fn aim_at_the_end(seed: u64, world: &mut World) {
    let last: Vec<_> = Change::all().filter(|change| change.part() == LAST).collect();
    for_each_client(seed, 0x0000_6c61_7374_0000, world, |dice, client, victims| {
        for _ in 0..dice.below(LAST_AIMS_MAX + 1) {
            client.aims.add(drawn(dice, &last, victims));
        }
    });
}

/// Of a world like that, with whom a crash may hit.
fn for_each_client(
    seed: u64,
    salt: u64,
    world: &mut World,
    mut act: impl FnMut(&mut Rng, &mut Client, &[Victim]),
) {
    let mut dice = Rng::new(seed ^ salt);
    if SPARED.contains(&seed) || !dice.chance(SHARE) {
        return;
    }
    let servers = world.servers.len();
    for client in world.clients.iter_mut().filter(|client| !client.is_guest) {
        let victims = [
            Victim::Initiator,
            Victim::Initiator,
            Victim::Target(Crash::Kill),
            Victim::Target(Crash::Power),
        ];
        // One that no server serves stands on several itself.
        let has_server = world.exports[client.export].server < servers;
        act(&mut dice, client, &victims[..if has_server { 4 } else { 2 }]);
    }
}

/// Each change is as likely as any other, however seldom it happens.
fn drawn(dice: &mut Rng, changes: &[Change], victims: &[Victim]) -> AimedCrash {
    let (change, victim) = (pick(dice, changes), pick(dice, victims));
    AimedCrash { change, spared: pick(dice, &[0, 0, 0, 1, 4]), victim }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_rare_exists() {
        for rare in RARE {
            assert!(Change::all().any(|change| change.name() == rare), "{rare}");
        }
    }
}
