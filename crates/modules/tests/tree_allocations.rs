//! Lookups in trees whose nodes are in memory allocate nothing.

mod counting;

use counting::allocations;
use thinwire_buffer::Pool;
use thinwire_modules::meta::tree::{
    NODE_BYTES, TREE_ROOTS, TreeKind, TreePointer, TreeRoot, TreeState, Trees, TreesConfig,
};
use thinwire_modules::meta::{
    LABEL_AREA_BYTES, Label, LabelFeatures, LabelOutcome, LabelPart, Labels,
};
use thinwire_modules::{Module, Options};
use thinwire_volume::stores::MemoryStore;
use thinwire_volume::{Identity, Volume};

static KINDS: [TreeKind; 1] = [TreeKind::of::<u64>(16, "numbers")];
const NODES: u64 = 2_000;
const KEYS: u64 = 20_000;

fn label() -> Label {
    let part = LabelPart { uuid: [1; 16], bytes: NODES * NODE_BYTES as u64 };
    Label {
        generation: 1,
        features: LabelFeatures::default(),
        module: Module::find("linear").unwrap(),
        options: Options::default(),
        whole: [2; 16],
        name: "trees".into(),
        whole_bytes: part.bytes,
        parts: vec![part],
        role: 0,
        data_start: LABEL_AREA_BYTES,
        opening: [0; 16],
        next_opening: [0; 16],
        cut: 0,
        cut_begun: 0,
        made_bytes: None,
        work: None,
        openings: 0,
        content: Identity::default(),
        writer: None,
        state: TreeState::new(NODES, 0).encode(&[]),
    }
}

/// Both volumes, where the data takes nothing but flushes.
fn turn(trees: &mut Trees, part: &mut dyn Volume, data: &mut dyn Volume) -> Option<u64> {
    let mut done = Vec::new();
    part.poll(&mut done);
    done.drain(..).for_each(|completion| trees.on_completion(completion, part));
    data.poll(&mut done);
    done.into_iter().for_each(|completion| trees.on_data_completion(completion));
    let news = trees.turn(part, data);
    news.committed.map(|committed| committed.unwrap())
}

#[test]
fn lookups_of_nodes_in_memory_allocate_nothing() {
    let store = |bytes| MemoryStore::new(bytes, 512, Identity::default(), &Pool::new(1 << 20));
    let mut part = store(LABEL_AREA_BYTES + NODES * NODE_BYTES as u64);
    let mut data = store(1 << 20);
    let mut labels = Labels::new(1 << 32, &Pool::new(1 << 20));
    labels.read(&mut part).unwrap();
    while labels.turn(&mut part).is_none() {}
    labels.write(&label(), &mut part).unwrap();
    let written = std::iter::repeat_with(|| labels.turn(&mut part)).flatten().next();
    assert!(matches!(written, Some(LabelOutcome::Written(Ok(1)))));
    let config = TreesConfig::new(&KINDS, 0, &Pool::new(1 << 20));
    let (mut trees, _) = Trees::open(labels, label(), config).unwrap();

    let mut tree = TreeRoot::<u64>::empty(&KINDS[0]);
    for key in 0..KEYS {
        let mut change = trees.change().unwrap();
        let (next, before) = change.insert(tree, key * 7 % KEYS, &key).unwrap();
        assert_eq!(before, None);
        change.apply().unwrap();
        tree = next;
    }
    let mut roots = [TreePointer::NONE; TREE_ROOTS];
    roots[0] = tree.at;
    trees.commit(roots, &[]).unwrap();
    while turn(&mut trees, &mut part, &mut data).is_none() {}

    let before = allocations();
    for key in 0..KEYS {
        assert_eq!(trees.lookup(tree, key * 7 % KEYS), Ok(Some(key)));
    }
    assert_eq!(trees.lookup(tree, KEYS), Ok(None));
    assert_eq!(allocations(), before);
}
