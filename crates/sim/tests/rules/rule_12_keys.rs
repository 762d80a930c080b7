//! Rule 12: keys come later; what they will need holds already: within an epoch a path's packet
//! number is never used twice, nor a path's number for another path.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use thinwire_link::sim::{FaultRates, Verdict};
use thinwire_sim::server::Crash;
use thinwire_wire::{Frame, Kind};

use crate::scene::{Scene, at, ms};

#[derive(Default)]
struct Seen {
    numbers: BTreeSet<(u64, u32, u8, u64)>,
    ways: BTreeMap<(u64, u32, u8), (u32, u32)>,
}

#[test]
fn rule_12_numbers_are_never_reused() {
    let mut s = Scene::with(2, |_| {});
    let seen: Rc<RefCell<Seen>> = Rc::default();
    let record = seen.clone();
    s.world.set_judge(move |from, to, bytes| {
        let Ok(frame) = Frame::parse(bytes) else { panic!("a frame that its receiver refuses") };
        let h = frame.header();
        if h.kind == Kind::Session {
            let mut seen = record.borrow_mut();
            let news = seen.numbers.insert((h.session, h.epoch, h.path, h.packet_number));
            assert!(news, "packet {} of path {} again", h.packet_number, h.path);
            let way = *seen.ways.entry((h.session, h.epoch, h.path)).or_insert((from, to));
            assert_eq!(way, (from, to), "path {} is another one", h.path);
        }
        Verdict::Pass
    });
    let client = s.client();
    s.attach(client);
    s.world.net.set_faults(FaultRates { loss: 0.05, dup: 0.05, reorder: 0.1, corrupt: 0.01 });
    for round in 0..10 {
        for n in 0..10 {
            s.write(at(n * 50, 50));
            s.read(at(n * 50, 50));
        }
        match round % 4 {
            0 => s.restart(Crash::Kill),
            1 => {
                s.set_reach(0, false);
                s.pass(ms(1200));
                s.set_reach(0, true);
            }
            2 => {
                s.world.crash_client(0);
                s.attach(0);
            }
            _ => s.pass(ms(2500)),
        }
    }
    assert!(seen.borrow().numbers.len() > 2000 && seen.borrow().ways.len() > 6);
    s.end();
}
