//! How long a handshake takes, and how fast each suite seals and opens, on one core of this machine:
//!
//!     cargo run --release -p thinwire-seal --example speed

use std::hint::black_box;
use std::time::{Duration, Instant};

use thinwire_seal::{Greeting, Key, Random, Suite, greeted};

const FRAME: usize = 8192 + 144;

/// How long one of them takes, of as many as half a second has room for.
fn each(mut work: impl FnMut()) -> Duration {
    work();
    let (start, mut count) = (Instant::now(), 0);
    while start.elapsed() < Duration::from_millis(500) {
        work();
        count += 1;
    }
    start.elapsed() / count
}

fn main() {
    let (key, mut random) = (Key::from_bytes([7; 32]).expect("a key"), Random::new([1; 32]));
    let (hello, prologue) = ([0; 120], [0; 80]);
    let mut shake = |suite| {
        let mut greeting = Greeting::new(&key, &prologue, &hello, &mut random);
        let greeted =
            greeted(&key, &prologue, greeting.bytes(), &mut random).expect("the same key");
        let (answer, theirs) = greeted.answer(&hello, suite);
        let ours = greeting.answered(&answer).expect("the same key").seals(suite);
        (ours, theirs)
    };
    println!("handshake, both sides   {:?}", each(|| drop(black_box(shake(Suite::Aes128Gcm)))));
    for suite in Suite::ALL {
        let (ours, theirs) = shake(suite);
        let mut frame = vec![0x55; FRAME];
        let mut number = 0;
        let both = each(|| {
            number += 1;
            let tag = ours.sealer.seal(0, number, &[0; 32], &mut frame);
            let opened = theirs.opener.open_in_place(0, 0, number, &[0; 32], &tag, &mut frame);
            assert!(opened.is_ok());
        });
        let rate = FRAME as f64 / (both.as_secs_f64() / 2.0) / f64::from(1 << 30);
        println!(
            "{suite:<20} {FRAME} bytes sealed and opened in {both:?}, {rate:.1} GiB/s each way"
        );
    }
}
