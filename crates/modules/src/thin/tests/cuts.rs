//! Snapshots that are some of several, cut as one, in a pool that has no room for more.

use std::time::Duration;

use thinwire_volume::{CutAct, CutOrder};

use super::super::*;
use super::made::BLOCK;
use super::world::*;

/// What comes of an order.
fn told(world: &mut World, volume: u64, order: CutOrder) -> Result<PoolDone, PoolError> {
    let number = world.pool.begin(PoolOp::Cut { volume, order });
    let (mut now, mut ended) = (world.now, Vec::new());
    for _ in 0..10_000 {
        now = now + Duration::from_millis(10);
        world.pool.turn(now);
        world.pool.poll();
        world.pool.poll_ops(&mut ended);
        if let Some((of, result)) = ended.pop() {
            assert_eq!(of, number);
            world.now = now;
            return result;
        }
    }
    panic!("it does not end");
}

/// What is taken can be kept, however little room there is then: that there is such a cut stands elsewhere by that time.
#[test]
fn what_was_taken_can_be_kept_without_room() {
    let mut world = World::new(Setup { blocks: 4000, ..Setup::default() });
    let volume = world.create(600 * BLOCK);
    world.open_volume(volume);
    for id in 1..2000 {
        world.write(volume, id % 600 * 8, 8);
        world.wait();
        let take = CutOrder { act: CutAct::Take, id, at: 0, name: format!("{id}") };
        match told(&mut world, volume, take) {
            Ok(_) => {}
            Err(PoolError::NoRoom) => {
                assert!(id > 50, "{id}");
                return;
            }
            Err(error) => panic!("{error}"),
        }
        for act in [CutAct::Ensure, CutAct::Keep] {
            let done = told(&mut world, volume, CutOrder::of_known(act, id));
            assert_eq!(done, Ok(PoolDone::Done), "{act:?} of cut {id}");
        }
    }
    panic!("it is never full");
}
