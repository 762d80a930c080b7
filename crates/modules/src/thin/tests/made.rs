//! Pools that are made, opened and checked.

use thinwire_buffer::Pool as Memory;
use thinwire_volume::Volume;

use std::rc::Rc;

use super::super::*;
use super::disk::{Content, Disk, SECTOR};
use crate::Options;
use crate::meta::{
    Assembly, Finding, LABEL_AREA_BYTES, LABEL_OFFSETS, LabelError, LabelFeatures, LabelOutcome,
    LabelPart, SeenPart, WholeOpening, assemble,
};

pub const BLOCK: u64 = 4096;
pub const METADATA: u64 = 4 << 20;

/// The labels of a new pool.
pub fn labels(blocks: u64, metadata_bytes: u64) -> [Label; 2] {
    labels_of(blocks, BLOCK as u32, metadata_bytes)
}

pub fn labels_of(blocks: u64, block_bytes: u32, metadata_bytes: u64) -> [Label; 2] {
    let new = NewPool { block_bytes, data_bytes: blocks * u64::from(block_bytes), metadata_bytes };
    let parts = vec![
        LabelPart { uuid: [1; 16], bytes: new.data_bytes },
        LabelPart { uuid: [2; 16], bytes: metadata_bytes },
    ];
    let [data, metadata] = new.states().unwrap();
    let label = |role, state| Label {
        generation: 1,
        features: LabelFeatures::default(),
        module: &THIN_MODULE,
        options: Options::default(),
        whole: [9; 16],
        name: "pool".into(),
        whole_bytes: new.data_bytes,
        parts: parts.clone(),
        role,
        data_start: LABEL_AREA_BYTES,
        opening: [0; 16],
        next_opening: [0; 16],
        cut: 0,
        cut_begun: 0,
        made_bytes: None,
        work: None,
        openings: 0,
        content: Default::default(),
        writer: None,
        state,
    };
    [label(0, data), label(1, metadata)]
}

fn read_labels(part: &mut dyn Volume) -> (Labels, Finding) {
    try_read_labels(part).unwrap()
}

fn try_read_labels(part: &mut dyn Volume) -> Result<(Labels, Finding), LabelError> {
    let mut labels = Labels::new(POOL_LABEL_TOKEN, &Memory::new(0));
    labels.read(part)?;
    loop {
        if let Some(outcome) = labels.turn(part) {
            let LabelOutcome::Read(found) = outcome else { panic!("{outcome:?}") };
            return found.map(|found| (labels, found));
        }
    }
}

/// The label of a part.
pub fn label_of(part: &mut dyn Volume) -> Label {
    match read_labels(part).1 {
        Finding::Label(found) => found.label,
        found => panic!("{found:?}"),
    }
}

/// Writes the labels of a new pool to its metadata.
pub fn make(metadata: &mut dyn Volume, label: &Label) {
    let (mut labels, found) = read_labels(metadata);
    assert_eq!(found, Finding::Blank);
    for _ in 0..2 {
        labels.write(label, metadata).unwrap();
        while labels.turn(metadata).is_none() {}
    }
}

/// Says in both labels of the metadata that the parts have so many bytes of data.
pub fn grow_labels(metadata: &mut dyn Volume, bytes: [u64; 2]) {
    let (mut labels, found) = read_labels(metadata);
    let Finding::Label(found) = found else { panic!("no label") };
    let mut label = found.label;
    (label.parts[0].bytes, label.parts[1].bytes, label.whole_bytes) =
        (bytes[0], bytes[1], bytes[0]);
    for _ in 0..2 {
        labels.write(&label, metadata).unwrap();
        while labels.turn(metadata).is_none() {}
    }
}

/// Opens a pool over what was made.
pub fn open(
    data: Box<dyn Volume>,
    mut metadata: Box<dyn Volume>,
    data_label: Label,
    config: PoolConfig,
) -> Result<ThinPool, PoolOpenError> {
    let (labels, found) = read_labels(&mut *metadata);
    let Finding::Label(found) = found else { panic!("no label") };
    let data = PoolPart {
        volume: data,
        labels: Labels::new(POOL_LABEL_TOKEN, &Memory::new(0)),
        label: data_label,
    };
    ThinPool::open(data, PoolPart { volume: metadata, labels, label: found.label }, config)
}

/// What lies on a data part that was made with this label.
pub fn labelled(label: &Label) -> Content {
    let mut content = Content::new();
    for generation in [2, 3] {
        let image = Label { generation, ..label.clone() }.encode().unwrap();
        let first = LABEL_OFFSETS[generation as usize % 2] / SECTOR;
        for (at, sector) in (first..).zip(image.chunks(SECTOR as usize)) {
            content.insert(at, Rc::new(sector.try_into().unwrap()));
        }
    }
    content
}

/// What the labels of both parts, data and metadata, make.
pub fn assembled(parts: [&Disk; 2]) -> Result<Assembly, String> {
    let seen = parts.map(|part| {
        let label = try_read_labels(&mut part.clone()).map(|(_, found)| found);
        let content = match &label {
            Ok(Finding::Label(found)) => found.label.content,
            _ => Default::default(),
        };
        SeenPart { found: label, content }
    });
    assemble(&seen).map_err(|error| format!("no whole: {error:?}"))
}

/// Opens a pool by what stands on both of its parts, data and metadata: to be written, by another opening, as whoever opens volumes does.
pub fn open_labelled(parts: [&Disk; 2], config: PoolConfig) -> Result<ThinPool, String> {
    let whole = assembled(parts)?;
    let read = |part: &Disk| match read_labels(&mut part.clone()) {
        (labels, Finding::Label(found)) => (labels, found.label),
        (_, found) => panic!("{found:?}"),
    };
    if !config.read_only {
        let mut volumes = parts.map(Disk::clone);
        let id = [whole.openings as u8 + 100; 16];
        let mut opening = WholeOpening::new(&whole, id, parts.into_iter().map(read).collect());
        opening.begin(&mut volumes);
        loop {
            match opening.turn(&mut volumes) {
                None => {}
                Some(Ok(())) => break,
                Some(Err(error)) => return Err(error.to_string()),
            }
        }
    }
    let [data, metadata] = parts.map(|part| {
        let (labels, label) = read(part);
        PoolPart { volume: Box::new(part.clone()), labels, label }
    });
    ThinPool::open(data, metadata, config).map_err(|error| error.to_string())
}

pub fn check(pool: &ThinPool) -> Vec<PoolFinding> {
    let mut check = PoolCheck::new(pool, 500);
    let mut found = Vec::new();
    for _ in 0..1_000_000 {
        if check.is_done() {
            return found;
        }
        let (finding, came_on) = check.step(pool);
        found.extend(finding);
        if !came_on {
            pool.poll();
        }
    }
    panic!("the check does not end");
}
