//! What a volume loses each client is told by a flush, and the last flush of the face if some was not.

mod nbd_common;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use nbd_common::client::{info_data, option_bytes, request_bytes};
use nbd_common::config;
use thinwire_buffer::{Pool, Time};
use thinwire_frontend::nbd::NbdFace;
use thinwire_frontend::nbd::proto::option;
use thinwire_frontend::{Face, FacePart};
use thinwire_volume::testing::Puppet;
use thinwire_volume::{Part, PartEvent, Volume, VolumeEvent};

const WRITE: u16 = 1;
const FLUSH: u16 = 3;
const EIO: u32 = 5;

/// A face as a part, over a volume of which all succeeds but what it is told to lose.
struct Scene {
    part: FacePart,
    puppet: Puppet,
    path: String,
}

impl Scene {
    fn new() -> Self {
        let puppet = Puppet::new(1, Puppet::GEOMETRY);
        let face = NbdFace::bind(config(), Pool::new(1 << 20)).unwrap();
        let (path, volume) = (face.path(), Box::new(puppet.clone()) as Box<dyn Volume>);
        Scene { part: FacePart::new(Box::new(face), volume), puppet, path }
    }

    /// Until nothing is left to be done.
    fn rest(&mut self) {
        for _ in 0..4 {
            // Its clients have said something, perhaps.
            self.part.on_event(Time(1), PartEvent::Readable);
            self.part.settle(Time(1));
            self.puppet.take().iter().for_each(|io| self.puppet.succeed(io));
        }
    }

    fn connect(&mut self) -> UnixStream {
        let mut client = UnixStream::connect(&self.path).unwrap();
        client.set_nonblocking(true).unwrap();
        let flags = 3u32.to_be_bytes();
        client.write_all(&flags).unwrap();
        client.write_all(&option_bytes(option::GO, &info_data("", &[]))).unwrap();
        self.rest();
        let mut greeting = [0; 18 + 32 + 20];
        client.read_exact(&mut greeting).unwrap();
        client
    }

    /// With which errno it ends.
    fn ask(&mut self, mut client: &UnixStream, request: &[u8]) -> u32 {
        client.write_all(request).unwrap();
        self.rest();
        let mut reply = [0; 16];
        client.read_exact(&mut reply).unwrap();
        u32::from_be_bytes(reply[4..8].try_into().unwrap())
    }

    fn write(&mut self, client: &UnixStream) {
        let request = [&request_bytes(0, WRITE, 1, 0, 512)[..], &[7; 512]].concat();
        assert_eq!(self.ask(client, &request), 0);
    }

    fn flush(&mut self, client: &UnixStream) -> u32 {
        self.ask(client, &request_bytes(0, FLUSH, 2, 0, 0))
    }

    fn lose(&mut self) {
        self.puppet.tell(VolumeEvent::Lost);
        self.rest();
    }

    /// Whether the last flush succeeds, once the clients have gone.
    fn end(mut self) -> bool {
        self.rest();
        FacePart::close(&mut self.part, true).unwrap();
        self.part.flush();
        self.rest();
        self.part.flushed().expect("it has ended").is_ok()
    }
}

#[test]
fn each_client_is_told_once() {
    let mut scene = Scene::new();
    let [a, b, reader] = [(); 3].map(|()| scene.connect());
    assert_eq!([&b, &reader].map(|client| scene.flush(client)), [0; 2]);
    scene.write(&a);
    scene.lose();
    assert!(scene.part.owes());
    assert_eq!([&b, &b, &a, &a].map(|client| scene.flush(client)), [EIO, 0, EIO, 0]);
    let late = scene.connect();
    assert_eq!(scene.flush(&late), 0, "who has written knows");
    drop((a, b, reader, late));
    assert!(scene.end());
}

#[test]
fn a_client_that_has_asked_for_nothing_is_told() {
    let mut scene = Scene::new();
    let [idle, writer] = [(); 2].map(|()| scene.connect());
    scene.write(&writer);
    scene.lose();
    assert_eq!(scene.flush(&writer), EIO);
    assert_eq!([&idle, &idle].map(|client| scene.flush(client)), [EIO, 0]);
    drop((idle, writer));
    assert!(scene.end());
}

#[test]
fn a_client_that_comes_back_is_told() {
    let mut scene = Scene::new();
    let [a, b] = [(); 2].map(|()| scene.connect());
    scene.write(&a);
    scene.write(&b);
    drop(a);
    scene.rest();
    scene.lose();
    assert_eq!(scene.flush(&b), EIO);
    // Either may be who has gone, as long as nobody was told in its place.
    let [a, c] = [(); 2].map(|()| scene.connect());
    assert_eq!([&a, &a, &b].map(|client| scene.flush(client)), [EIO, 0, 0]);
    let late = scene.connect();
    assert_eq!([&late, &c, &c].map(|client| scene.flush(client)), [0, EIO, 0]);
    drop((a, b, c, late));
    assert!(scene.end());
}

#[test]
fn what_nobody_was_told_the_end_tells() {
    for tells_one in [false, true] {
        let mut scene = Scene::new();
        let [a, b] = [(); 2].map(|()| scene.connect());
        scene.write(&a);
        scene.write(&b);
        scene.lose();
        if tells_one {
            assert_eq!(scene.flush(&a), EIO);
        }
        drop((a, b));
        assert!(!scene.end(), "{tells_one}");
    }
}

#[test]
fn who_comes_behind_a_client_that_had_flushed_is_told_nothing() {
    let mut scene = Scene::new();
    let a = scene.connect();
    scene.write(&a);
    assert_eq!(scene.flush(&a), 0);
    drop(a);
    scene.rest();
    scene.lose();
    let b = scene.connect();
    assert_eq!(scene.flush(&b), 0);
    drop(b);
    assert!(scene.end());
}
