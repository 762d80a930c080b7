//! Rule 23 of volumes: what a writer holds and has not flushed is not sent again to a volume that was rolled back while its target was away.

use thinwire_modules::thin::{PoolCanary, PoolDone, PoolOp, PoolReport};
use thinwire_sim::client::End;
use thinwire_sim::composed::{PoolStore, VolumeShape};
use thinwire_sim::export::Store;
use thinwire_sim::medium::{MediumConfig, MediumHandle};
use thinwire_sim::server::Crash;
use thinwire_sim::stamp::SECTOR_BYTES;
use thinwire_volume::{ErrorKind, Op};

use crate::scene::{Scene, at, ms};

const VOLUME: u64 = 1 << 20;
const MIB: u64 = 1 << 20;

/// A scene whose disk is the volume of a pool, with a snapshot of it while it was empty.
fn scene() -> Scene {
    let medium = |number: u8, bytes| {
        let config = MediumConfig { bytes, ..MediumConfig::default() };
        MediumHandle::new(number.into(), [number; 16], config)
    };
    let media = [medium(1, MIB + 4 * VOLUME), medium(2, 5 * MIB)];
    let record = medium(3, MIB);
    let shape = VolumeShape::thin(4096, VolumeShape::Disk(0), VolumeShape::Disk(1), VOLUME);
    let mut pool = PoolStore::make(shape, media, record.clone(), 5);
    let snapshot = |report: &PoolReport| {
        let volume = report.volumes[0].volume;
        PoolOp::Snapshot { volume, name: "empty".into(), incarnation: 77, at: 0 }
    };
    let taken = pool.change(PoolCanary::None, snapshot);
    assert!(matches!(taken, Ok(PoolDone::Created { .. })), "{taken:?}");
    Scene::on(1, Store::Pool(Box::new(pool)), record, |_| {})
}

/// What stands in the volume, sector by sector, when it was written, flushed, written again, and rolled back while the target was away; and how the writer
/// has ended, if it has.
fn rolled_back(planted: PoolCanary) -> (Vec<bool>, Option<End>) {
    let mut s = scene().with_client();
    s.write(at(0, 8));
    assert_eq!(s.flush(), Ok(()));
    s.write(at(4, 8));
    s.run(Op::WriteZeroes, at(2, 2)).unwrap();
    s.world.crash_server(0, Crash::Kill);
    s.pass(ms(200));
    let export = &mut s.world.exports[0];
    let rolled_back = export.change_pool(planted, |report| {
        let number = |name: &str| report.volumes.iter().find(|of| of.name == name).unwrap().volume;
        PoolOp::RollBack { volume: number("home"), to: number("empty"), incarnation: 1234 }
    });
    assert_eq!(rolled_back, Ok(PoolDone::Done));
    s.world.start_server(0);
    s.pass(ms(5000));
    let end = s.world.ended.pop().map(|(_, end)| end);
    s.world.crash_server(0, Crash::Kill);
    s.pass(ms(200));
    let Store::Pool(pool) = &s.world.exports[0].store else { panic!("it is one") };
    let image = pool.image().unwrap_or_else(|v| panic!("{}", v.0));
    let stands = |sector: &[u8]| sector.iter().any(|byte| *byte != 0);
    (image.chunks(SECTOR_BYTES).map(stands).collect(), end)
}

#[test]
fn rule_23_of_volumes_nothing_is_sent_again_over_a_rollback() {
    let (stands, end) = rolled_back(PoolCanary::None);
    assert_eq!(end, Some(End::Failed(ErrorKind::ContentChanged)));
    assert_eq!(stands.iter().position(|stands| *stands), None, "a write was sent again");
}

/// As it would be if a rollback changed no incarnation.
#[test]
fn rule_23_of_volumes_a_replay_over_a_rollback_is_found() {
    let (stands, end) = rolled_back(PoolCanary::KeepsIncarnation);
    assert_eq!(end, None);
    let first = stands.iter().position(|stands| *stands);
    assert_eq!(first, Some(4), "what was flushed is gone, and what was not is there");
}
