//! One node after the other is damaged: what that costs is said, the rest is served, and nothing else is.

use thinwire_volume::{Io, Op, Volume};

use super::super::*;
use super::disk::{Clock, Content, Disk, NOBODYS, SECTOR};
use super::made::{BLOCK, METADATA};
use super::world::*;
use crate::meta::LABEL_AREA_BYTES;

const SIZE: u64 = 400 * BLOCK;

fn made() -> (World, Vec<u64>) {
    let mut world = World::new(Setup { blocks: 1200, ..Setup::default() });
    let a = world.create(SIZE);
    world.open_volume(a);
    for first in (0..400 * 8).step_by(200) {
        world.write(a, first, 200);
        world.wait();
    }
    let b = world.snapshot(a);
    world.write(a, 0, 8);
    world.wait();
    let c = world.create(SIZE);
    world.open_volume(c);
    world.write(c, 30, 10);
    world.wait();
    world.rest();
    (world, vec![a, b, c])
}

fn come_up(world: &World, metadata: Content) -> World {
    let clock = Clock::default();
    let setup = Setup { read_only: true, ..world.setup.clone() };
    let bytes = LABEL_AREA_BYTES + setup.blocks * BLOCK;
    let data = Disk::new(bytes, world.data.content(), NOBODYS, &clock, 1);
    let metadata = Disk::new(LABEL_AREA_BYTES + METADATA, metadata, 0, &clock, 1);
    World::over(setup, data, metadata, clock)
}

/// What is read of a block: its first stamp, or that it cannot be read.
fn read(handle: &mut ThinVolume, block: u64) -> Result<u64, ()> {
    handle.submit(Io::new(1, Op::Read, block * BLOCK, BLOCK));
    let mut done = Vec::new();
    for _ in 0..100 {
        handle.poll(&mut done);
        if let Some(completion) = done.pop() {
            completion.result.map_err(|error| assert_eq!(error.offset, block * BLOCK))?;
            let bytes = completion.data.to_vec();
            return Ok(u64::from_le_bytes(bytes[..8].try_into().unwrap()));
        }
    }
    panic!("a read hangs");
}

#[test]
fn a_damaged_node_costs_what_is_said() {
    let (world, volumes) = made();
    let right = world.metadata.content();
    let mut whole = come_up(&world, right.clone());
    assert_eq!(whole.check(), []);
    let blocks: Vec<u64> = (0..400).step_by(7).collect();
    let all = |found: &World, volume| -> Vec<Result<u64, ()>> {
        match found.pool.open_volume(volume) {
            Ok(mut handle) => blocks.iter().map(|&block| read(&mut handle, block)).collect(),
            Err(_) => vec![Err(()); blocks.len()],
        }
    };
    let wants: Vec<_> = volumes.iter().map(|&volume| all(&whole, volume)).collect();
    assert!(wants.iter().flatten().all(Result::is_ok));
    let (mut told, mut lost, mut unlisted) = (0, 0, 0);
    let first = LABEL_AREA_BYTES / SECTOR;
    let nodes: Vec<u64> =
        right.iter().filter(|(at, _)| *at >= first).map(|(at, _)| (at - first) / 8).collect();
    let mut nodes = nodes;
    nodes.dedup();
    for node in nodes {
        let mut metadata = right.clone();
        let at = first + node * 8;
        let mut sector = *metadata[&at];
        sector[100] ^= 4;
        metadata.insert(at, std::rc::Rc::new(sector));
        let mut found = come_up(&world, metadata);
        let findings = found.check();
        let mut has_lost = vec![vec![false; blocks.len()]; volumes.len()];
        for finding in &findings {
            assert!(!finding.to_string().is_empty());
            if let PoolFinding::Lost { volume, bytes, .. } = finding {
                told += 1;
                let which = volumes.iter().position(|of| of == volume).unwrap();
                for (block, lost) in blocks.iter().zip(&mut has_lost[which]) {
                    *lost |= bytes.contains(&(block * BLOCK));
                }
            }
        }
        let listed = found.pool.report().volumes.len();
        unlisted += usize::from(listed < volumes.len());
        for (which, &volume) in volumes.iter().enumerate() {
            let says = all(&found, volume);
            for (at, (says, wants)) in says.iter().zip(&wants[which]).enumerate() {
                assert!(says.is_err() || says == wants, "volume {volume} serves something else");
                lost += usize::from(says.is_err());
                if says.is_err() && listed == volumes.len() {
                    // A node that two volumes share is told of once.
                    let is_told = has_lost.iter().any(|of| of[at]);
                    assert!(
                        is_told,
                        "node {node}: the loss of a block of volume {volume} is not told"
                    );
                }
            }
        }
        let is_hurt = listed < volumes.len() || lost > 0;
        if is_hurt {
            assert!(!findings.is_empty() || told > 0, "node {node}");
        }
    }
    assert!(told > 2 && lost > 100 && unlisted > 0, "{told}, {lost}, {unlisted}");
}

/// What parts are that make no pool.
#[test]
fn parts_that_do_not_fit_are_refused() {
    use super::made::{labels, open};
    let (world, _) = made();
    let config = || PoolConfig::new(&thinwire_buffer::Pool::new(0));
    let [label, _] = labels(1200, METADATA);
    let refused = |data: Disk, label: Label, metadata: Disk| {
        let opened = open(Box::new(data), Box::new(metadata), label, config());
        opened.err().expect("it is refused").to_string()
    };
    let World { data, metadata, .. } = &world;
    let mut other = label.clone();
    other.whole = [7; 16];
    assert!(refused(data.clone(), other, metadata.clone()).contains("another pool"));
    let mut other = label.clone();
    other.role = 1;
    assert!(refused(data.clone(), other, metadata.clone()).contains("part 1"));
    let mut other = label.clone();
    other.parts[0].bytes = 100 * BLOCK;
    assert!(refused(data.clone(), other, metadata.clone()).contains("room for 100 blocks"));
    let mut other = label.clone();
    other.module = crate::Module::find("linear").unwrap();
    assert!(refused(data.clone(), other, metadata.clone()).contains("a linear"));
    let short = Disk::new(LABEL_AREA_BYTES, Content::new(), 0, &Clock::default(), 1);
    assert!(refused(short, label, metadata.clone()).contains("its data ends"));
}
