//! A link whose work is done by threads of its own, over udp on loopback, and over xdp, whose frames
//! lie in memory of the link.

mod common;

use std::time::{Duration, Instant};

use common::{drain, is_woken, pattern, receive, send, warm_up, with_cable};
use thinwire_buffer::{Addr, Pool, RxBatch, TxBatch};
use thinwire_link::handoff::Pipeline;
use thinwire_link::{HEAD_BYTES, Link, LinkOptions, LinkSpec, SteeringFilter};

const MOMENT: Duration = Duration::from_millis(200);
const ALL: [Pipeline; 3] = [
    Pipeline { receive_thread: true, send_thread: false },
    Pipeline { receive_thread: false, send_thread: true },
    Pipeline { receive_thread: true, send_thread: true },
];

fn open(pipeline: Pipeline) -> Box<dyn Link> {
    let spec: LinkSpec = "udp:127.0.0.1:0".parse().unwrap();
    spec.open_with(&LinkOptions { pipeline, ..LinkOptions::default() }).unwrap()
}

fn load(batch: &mut TxBatch, to: Addr, pool: &Pool, seed: usize, len: usize) {
    let frame = batch.push(to);
    let bytes = pattern(seed, len);
    frame.head.extend_from_slice(&bytes[..HEAD_BYTES]);
    frame.data.push(pool.copy_of(&bytes[HEAD_BYTES..]).freeze());
}

/// Behind a flood at the door nobody rings: whoever waits has to look by the clock, the threads, too.
#[test]
fn what_is_left_of_a_flood_is_received_by_who_only_waits() {
    with_cable(1500, |cable| {
        for pipeline in [Pipeline::default()].into_iter().chain(ALL) {
            let spec = |text: &str| text.parse::<LinkSpec>().unwrap();
            cable.enter(0);
            let mut a = spec("packet:left").open_with(&LinkOptions::default()).unwrap();
            cable.enter(1);
            let shared = SteeringFilter::byte(8, 0..=0).shared();
            let steering = vec![SteeringFilter::byte(8, 1..=1), shared];
            let options = LinkOptions { pipeline, steering, ..LinkOptions::default() };
            let mut b = spec("packet:right").open_with(&options).unwrap();
            for _ in 0..300 {
                send(&mut *a, b.info().addr, &[0; 100]);
            }
            let pool = Pool::new(1 << 20);
            let (mut got, begin) = (RxBatch::new(), Instant::now());
            while got.len() < 300 {
                let due = b.due_in();
                if is_woken(&*b, due.unwrap_or(MOMENT)) || due.is_some() {
                    b.recv(&pool, 64, &mut got).unwrap();
                }
                assert!(begin.elapsed() < 50 * MOMENT, "{pipeline:?}: {} of 300", got.len());
            }
        }
    });
}

#[test]
fn frames_arrive_whole_and_in_order_whoever_carries_them() {
    for pipeline in ALL {
        let (mut a, mut b) = (open(pipeline), open(pipeline));
        let pool = Pool::new(8 << 20);
        let mut batch = TxBatch::new();
        for round in 0..40 {
            // Trains of equal frames, and a shorter one behind: GRO puts them into one buffer.
            let sizes = [4288, 4288, 4288, 300 + round];
            for (i, &size) in sizes.iter().enumerate() {
                load(&mut batch, b.info().addr, &pool, round * 4 + i, size);
            }
            batch.add_last_pieces(usize::from(round >= 20));
            a.send(&mut batch).unwrap();
            assert!(batch.is_empty());
            assert!(is_woken(&*b, MOMENT), "{pipeline:?}");
            let frames = receive(&mut *b, &pool, 4);
            assert_eq!(frames.len(), 4, "{pipeline:?}, round {round}");
            // Only the time of what somebody waits for is counted.
            let handed_over_ns = a.send(&mut batch).unwrap().handed_over_ns;
            assert_eq!(handed_over_ns > 0, pipeline.send_thread && round >= 20);
            for (i, frame) in frames.iter().enumerate() {
                assert_eq!(frame.from, a.info().addr);
                assert_eq!(frame.bytes[..], pattern(round * 4 + i, sizes[i]), "{pipeline:?}");
                assert_eq!(frame.queued > Duration::ZERO, pipeline.receive_thread);
                // Congestion control takes all of it off the network's time.
                assert!(frame.waited >= frame.queued);
            }
        }
        assert!(drain(&mut *b, &pool).is_empty());
        assert!(!is_woken(&*b, MOMENT), "{pipeline:?}: the bell is silent when nothing waits");
        let stats = a.stats();
        assert_eq!(stats.handoffs, if pipeline.send_thread { 40 } else { 0 });
        assert_eq!((stats.tx_frames, stats.tx_dropped, b.stats().rx_frames), (160, 0, 160));
    }
}

#[test]
fn memory_goes_to_and_fro_and_is_not_made_anew() {
    for pipeline in ALL {
        let (mut a, mut b) = (open(pipeline), open(pipeline));
        let pool = Pool::new(8 << 20);
        let mut batch = TxBatch::new();
        let mut made = 0;
        for round in 0..100 {
            load(&mut batch, b.info().addr, &pool, round, 4288);
            a.send(&mut batch).unwrap();
            let frames = receive(&mut *b, &pool, 1);
            assert_eq!(frames[0].bytes[..], pattern(round, 4288));
            if round == 50 {
                made = pool.stats().allocations;
            }
        }
        // One or two more, if the sending thread was slow to give something back.
        let more = pool.stats().allocations - made;
        assert!(more <= 2, "{pipeline:?}: {more} in 50 frames");
        drop((a, b));
        assert_eq!(pool.stats().live_bytes, 0, "{pipeline:?}");
    }
}

#[test]
fn jumbo_frames_in_memory_of_the_link_are_taken_home() {
    for pipeline in ALL {
        with_cable(9000, move |cable| {
            let options = LinkOptions { pipeline, ..LinkOptions::default() };
            let open = |text: &str| text.parse::<LinkSpec>().unwrap().open_with(&options).unwrap();
            let mut a = open("xdp:left");
            cable.enter(1);
            let mut b = open("xdp:right");
            let pool = Pool::new(8 << 20);
            let to = b.info().addr;
            warm_up(&mut *a, to, &mut *b, &pool);
            let before = (a.stats(), b.stats());
            let mut batch = TxBatch::new();
            let mut held = Vec::new();
            let (mut bytes, mut payload) = (0, 0);
            for round in 0..100 {
                let sizes = [9000, 8384, 4000, 300 + round];
                for (i, &size) in sizes.iter().enumerate() {
                    load(&mut batch, to, &pool, round * 4 + i, size);
                    bytes += size as u64;
                    payload += (size - HEAD_BYTES) as u64;
                }
                a.send(&mut batch).unwrap();
                let frames = receive(&mut *b, &pool, 4);
                assert_eq!(frames.len(), 4, "{pipeline:?}, round {round}: {:?}", b.stats());
                for (i, frame) in frames.iter().enumerate() {
                    assert!(!frame.bytes.is_lent() && frame.rest.is_empty());
                    assert_eq!(frame.bytes[..], pattern(round * 4 + i, sizes[i]), "{pipeline:?}");
                    assert_eq!(frame.bytes[HEAD_BYTES..].as_ptr() as usize % 4096, 0);
                }
                // Some outlive the link and its memory.
                held.extend(frames.into_iter().take(1).map(|frame| (round * 4, frame)));
            }
            // Each byte once, out of memory of the link; and the payload into it, to be sent.
            assert_eq!(b.stats().copied_bytes - before.1.copied_bytes, bytes);
            assert_eq!(a.stats().copied_bytes - before.0.copied_bytes, payload);
            assert_eq!((a.stats().tx_dropped, b.stats().rx_dropped), (0, 0));
            drop((a, b));
            for (seed, frame) in held {
                assert_eq!(frame.bytes[..], pattern(seed, 9000));
            }
        });
    }
}

#[test]
fn what_was_handed_over_is_sent_before_the_link_goes() {
    let pool = Pool::new(8 << 20);
    let mut b = open(Pipeline::default());
    let mut a = open(ALL[2]);
    let to = b.info().addr;
    for i in 0..20 {
        send(&mut *a, to, &pattern(i, 100));
    }
    drop(a);
    assert_eq!(receive(&mut *b, &pool, 20).len(), 20);
}

#[test]
fn frames_may_outlive_their_link() {
    let pool = Pool::new(8 << 20);
    let (mut a, mut b) = (open(ALL[2]), open(ALL[2]));
    send(&mut *a, b.info().addr, &pattern(1, 500));
    let frames = receive(&mut *b, &pool, 1);
    let start = Instant::now();
    drop((a, b));
    assert!(start.elapsed() < Duration::from_secs(5), "threads end when they are told to");
    assert_eq!(frames[0].bytes[..], pattern(1, 500));
}
