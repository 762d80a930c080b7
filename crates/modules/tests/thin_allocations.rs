//! Reads and writes of blocks that a thin volume has allocate nothing once warm.

mod counting;

use counting::allocations;
use thinwire_buffer::{Pool, SegList};
use thinwire_modules::Options;
use thinwire_modules::meta::{
    LABEL_AREA_BYTES, Label, LabelFeatures, LabelOutcome, LabelPart, Labels,
};
use thinwire_modules::thin::{
    NewPool, POOL_LABEL_TOKEN, PoolConfig, PoolOp, PoolPart, THIN_MODULE, ThinPool, ThinVolume,
};
use thinwire_volume::stores::MemoryStore;
use thinwire_volume::{Completion, Identity, Io, IoFlags, Op, Volume};

const DATA: u64 = 32 << 20;
const METADATA: u64 = 4 << 20;
const VOLUME: u64 = 16 << 20;
const DEPTH: u64 = 16;

fn label(role: u16, state: Vec<u8>) -> Label {
    Label {
        generation: 1,
        features: LabelFeatures::default(),
        module: &THIN_MODULE,
        options: Options::default(),
        whole: [9; 16],
        name: "pool".into(),
        whole_bytes: DATA,
        parts: vec![
            LabelPart { uuid: [1; 16], bytes: DATA },
            LabelPart { uuid: [2; 16], bytes: METADATA },
        ],
        role,
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
        state,
    }
}

fn pool(memory: &Pool) -> ThinPool {
    let store = |bytes| -> Box<dyn Volume> {
        Box::new(MemoryStore::new(LABEL_AREA_BYTES + bytes, 512, Identity::default(), memory))
    };
    let new = NewPool { block_bytes: 65536, data_bytes: DATA, metadata_bytes: METADATA };
    let [data_label, metadata_label] = new.states().unwrap();
    let (data_label, metadata_label) = (label(0, data_label), label(1, metadata_label));
    let mut metadata = store(METADATA);
    let mut labels = Labels::new(POOL_LABEL_TOKEN, memory);
    labels.read(&mut *metadata).unwrap();
    while labels.turn(&mut *metadata).is_none() {}
    labels.write(&metadata_label, &mut *metadata).unwrap();
    let written = std::iter::repeat_with(|| labels.turn(&mut *metadata)).flatten().next();
    assert!(matches!(written, Some(LabelOutcome::Written(Ok(1)))));
    let data = PoolPart {
        volume: store(DATA),
        labels: Labels::new(POOL_LABEL_TOKEN, memory),
        label: data_label,
    };
    let metadata = PoolPart { volume: metadata, labels, label: metadata_label };
    ThinPool::open(data, metadata, PoolConfig::new(memory)).unwrap()
}

/// Round after round of I/Os, some of them of several blocks.
fn rounds(volume: &mut ThinVolume, payload: &SegList, count: u64, done: &mut Vec<Completion>) {
    for round in 0..count {
        for at in 0..DEPTH {
            let offset = (round * 7 + at * 13) * 61440 % (VOLUME - (1 << 18)) / 4096 * 4096;
            let op = if (round + at) % 2 == 0 { Op::Read } else { Op::Write };
            let len = payload.bytes() as u64;
            let mut io = Io::new(at, op, offset, len);
            if op == Op::Write {
                io.data = payload.clone();
            }
            volume.submit(io);
        }
        let mut ended = 0;
        while ended < DEPTH {
            volume.poll(done);
            for completion in done.drain(..) {
                completion.result.unwrap();
                ended += 1;
            }
        }
    }
}

#[test]
fn io_of_mapped_blocks_allocates_nothing() {
    let memory = Pool::new(64 << 20);
    let pool = pool(&memory);
    let create = PoolOp::Create { name: "a".into(), bytes: VOLUME, incarnation: 1, at: 0 };
    let mut ended = Vec::new();
    pool.poll();
    pool.begin(create);
    while ended.is_empty() {
        pool.poll();
        pool.poll_ops(&mut ended);
    }
    let mut volume = pool.open_volume(1).unwrap();
    let flags = IoFlags { no_hole: true, ..IoFlags::default() };
    volume.submit(Io { flags, ..Io::new(1, Op::WriteZeroes, 0, VOLUME) });
    let mut done = Vec::new();
    while done.is_empty() {
        volume.poll(&mut done);
    }
    done.remove(0).result.unwrap();
    while !pool.is_idle() {
        pool.commit();
        pool.poll();
    }
    for len in [4096, 131_072] {
        let payload = SegList::of(memory.get_zeroed(len).freeze());
        SegList::warm(64, 64);
        rounds(&mut volume, &payload, 300, &mut done);
        let before = allocations();
        rounds(&mut volume, &payload, 300, &mut done);
        assert_eq!(allocations(), before, "I/Os of {len} bytes");
    }
}
