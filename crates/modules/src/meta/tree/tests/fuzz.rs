//! Images out of choices: a right one that is then edited, with checksums that fit or not, opened, looked at, checked, and worked
//! on. Nothing panics, or goes on for ever; and what is served is what was there, unless somebody made a sum fit.

use thinwire_fuzz::{Choices, Reached, fuzz};

use super::damage::Image;
use super::world::{KINDS, Mapping, VolumeRow, World};
use super::*;
use crate::meta::tree::node::HEAD_BYTES;

static TREES: Reached = Reached::new();

thread_local! {
    static IMAGE: Image = Image::new();
}

/// Edits a node; whether the sum was made to fit.
fn edit(image: &mut Image, choices: &mut Choices<'_>) -> bool {
    let nodes = image.nodes();
    let address = *choices.of(&nodes);
    let mut bytes = *image.node(address).bytes();
    match choices.below(5) {
        0 => bytes[choices.below(NODE_BYTES)] = choices.byte(),
        1 => bytes[choices.below(HEAD_BYTES + 160)] ^= 1 << choices.below(8),
        2 => {
            let at = 12 + 4 * choices.below(80);
            bytes[at..at + 8].copy_from_slice(&choices.number().to_le_bytes());
        }
        // A node or the number of one, in the place of another.
        3 => {
            let other = *choices.of(&nodes);
            bytes = *image.node(other).bytes();
            bytes[32..40].copy_from_slice(&address.to_le_bytes());
        }
        _ => {
            let at = HEAD_BYTES + 8 + 24 * choices.below(4);
            let other = *choices.of(&nodes);
            bytes[at..at + 8].copy_from_slice(&other.to_le_bytes());
        }
    }
    image.put(address, bytes);
    let fits = choices.below(3) != 0;
    if fits {
        image.edit(address, |_| {});
    }
    fits
}

/// Edits a number of the state, or names another node in it; not how many blocks there are, which whoever opens trees
/// compares with the data.
fn edit_state(image: &mut Image, choices: &mut Choices<'_>) {
    let nodes = image.nodes();
    let (number, at) = match choices.flag() {
        true => (choices.number(), 8 * (1 + choices.below(4))),
        false => (*choices.of(&nodes), 64 + 16 * choices.below(7)),
    };
    let generation = choices.flag().then(|| choices.below(8) as u64);
    image.edit_state(|state| {
        state[at..at + 8].copy_from_slice(&number.to_le_bytes());
        if let (64.., Some(generation)) = (at, generation) {
            state[at + 8..at + 16].copy_from_slice(&generation.to_le_bytes());
        }
    });
}

/// Does something that changes trees, and commits; faults are no fault.
fn work(world: &mut World, choices: &mut Choices<'_>) {
    let ids: Vec<u64> = world.model.keys().copied().collect();
    for _ in 0..choices.below(6) {
        let (id, key) = (*choices.of(&ids), choices.below(150) as u64);
        let volumes = world.volumes;
        let row = world.look(|trees| trees.lookup(volumes, id));
        if !matches!(row, Ok(Some(_))) {
            TREES.count("no such volume");
            return;
        }
        let tree = |root| TreeRoot::<Mapping>::new(&KINDS[1], root);
        let act = choices.below(5);
        let done = world.run(true, |change, volumes| {
            let Some(row) = change.lookup(volumes, id)? else { return Ok(volumes) };
            let tree = match act {
                0 => change.remove(tree(row.root), key)?.0,
                1 => change.remove_range(tree(row.root), key..=key + 20)?.0,
                2 => {
                    let block = change.take_block()?;
                    let mapping = Mapping { block, time: 1 };
                    change.insert(tree(row.root), key, &mapping)?.0
                }
                3 => change.share(tree(row.root))?,
                _ => {
                    change.reap()?;
                    tree(row.root)
                }
            };
            let row = VolumeRow { root: tree.at, ..row };
            Ok(change.insert(volumes, id, &row)?.0)
        });
        match done {
            Ok(volumes) => world.volumes = volumes,
            Err(_) => TREES.count("a change is stopped"),
        }
    }
    match world.commit_now() {
        Ok(()) => TREES.count("a commit is made"),
        Err(_) => TREES.count("a commit is refused"),
    }
}

fn play(choices: &mut Choices<'_>) {
    let mut image = IMAGE.with(Image::clone);
    let mut fits = false;
    for _ in 0..choices.below(4) {
        fits |= edit(&mut image, choices);
    }
    if choices.below(4) == 3 {
        fits = true;
        edit_state(&mut image, choices);
        if image.try_open().is_err() {
            TREES.count("a state is refused");
            return;
        }
    }
    let mut world = image.open();
    match world.dump() {
        Ok(says) if says == world.model => TREES.count("all is there"),
        Ok(_) => {
            assert!(fits, "something else is there");
            TREES.count("something else is there");
        }
        Err(stop) => {
            assert!(!stop.to_string().is_empty());
            TREES.count("damaged");
        }
    }
    let found = world.check(1 + choices.below(2000));
    TREES.count(if found.is_empty() { "nothing is found" } else { "something is found" });
    // One volume after the other: what is served is right, though others are damaged.
    if !fits {
        for (id, row) in world.all_rows(world.volumes).unwrap_or_default() {
            let tree = TreeRoot::<Mapping>::new(&KINDS[1], row.root);
            for key in 0..130 {
                if let Ok(mapping) = world.look(|trees| trees.lookup(tree, key)) {
                    let has = world.model[&id].contains_key(&key);
                    assert_eq!(mapping.is_some(), has, "volume {id}, key {key}");
                }
            }
        }
    }
    work(&mut world, choices);
}

#[test]
fn fuzz_trees() {
    fuzz!("trees", 1_500, 120, play);
    TREES.expect(&[
        "a state is refused",
        "all is there",
        "something else is there",
        "damaged",
        "nothing is found",
        "something is found",
        "a change is stopped",
        "a commit is made",
        "a commit is refused",
    ]);
}
