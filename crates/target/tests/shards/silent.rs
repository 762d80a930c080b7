//! Exports of which somebody else has been granted what they are made of: nothing is said of them.

use thinwire_volume::testing::Puppet;
use thinwire_volume::{
    Closing, Completion, Effect, ErrorKind, Parcel, Part, PartEvent, VolumeEvent, WriterRecord,
};

use super::*;

/// A turn as in a node: frames, and what it has for other shards and for people.
fn close(target: &mut Target) -> (Vec<RxFrame>, Vec<Parcel>, Vec<String>) {
    let (mut out, mut effects) = ([TxBatch::new()], Vec::new());
    target.settle(NOW);
    Part::close(target, &mut Closing { now: NOW, out: &mut out, effects: &mut effects });
    let (mut parcels, mut notes) = (Vec::new(), Vec::new());
    for effect in effects {
        match effect {
            Effect::Parcel(parcel) => parcels.push(parcel),
            Effect::Note(_, text) => notes.push(text),
            Effect::Letter(_) => {}
        }
    }
    (out[0].frames().iter().map(received).collect(), parcels, notes)
}

/// A shard whose own export is this, which has no writer.
fn shard_of(index: u8, puppet: &Puppet) -> Target {
    let mut target = shard_with(index, Box::new(puppet.clone()));
    let mut io = puppet.take_one();
    let data = WriterRecord::default().to_data(&Pool::new(0));
    puppet.complete(Completion { data, ..Completion::new(io.token, Ok(())) });
    io.token = 0;
    close(&mut target);
    target
}

/// Whoever has it open finds no session any more, with nothing said before; who asks for it is not heard, on whatever shard it
/// was; and the others are served as before.
#[test]
fn of_what_was_fenced_nothing_is_said() {
    let puppet = Puppet::new(1, Puppet::GEOMETRY);
    let (mut first, mut second) = (shard(0), shard_of(1, &puppet));
    asks_in(&mut second, "two", "two");
    let mut told = Vec::new();
    for _ in 0..4 {
        told.extend(close(&mut second).0);
        puppet.take().iter().for_each(|io| puppet.succeed(io));
    }
    let attached = |frames: &[RxFrame]| {
        found(frames, |message| matches!(message, Message::Attached(_)).then_some(()))
    };
    assert!(attached(&told).is_some());
    assert_eq!(second.session_count(), 1);

    puppet.tell(VolumeEvent::Fenced { of: Some("home/b".into()) });
    second.on_event(NOW, PartEvent::Below);
    let (frames, parcels, notes) = close(&mut second);
    assert!(frames.is_empty(), "it is told something");
    assert!(notes.iter().any(|note| note.contains("two") && note.contains("home/b")), "{notes:?}");
    assert_eq!((second.session_count(), second.has_export("two")), (0, false));
    let fenced = second.take_fenced().expect("its volume is given out");
    assert_eq!(fenced.name, "two");
    assert!(puppet.take().is_empty(), "not even synced");
    drop(fenced);

    for parcel in parcels {
        assert_eq!(parcel.shard, 0);
        first.on_event(NOW, PartEvent::Parcel(parcel.content));
    }
    assert_eq!(first.silent().collect::<Vec<_>>(), ["two"]);
    let offered = |frames: &[RxFrame]| {
        let names = |message: Message<'_>| match message {
            Message::Offer(offer) => Some(offer.exports.iter().map(str::to_owned).collect()),
            _ => None,
        };
        found(frames, names).unwrap_or_else(Vec::new)
    };
    assert_eq!(offered(&discovered(&mut first)), ["one", "all"]);
    for shard in [&mut first, &mut second] {
        let before = shard.stats().drops.iter().map(|(_, count)| count).sum::<u64>();
        shard.on_frame(NOW, 0, &mut hello("two", 0));
        shard.on_forward(NOW, 0, &mut hello("two", 0));
        assert!(turn(shard, NOW).is_empty() && shard.next_forward().is_none());
        assert_eq!(shard.stats().drops.iter().map(|(_, count)| count).sum::<u64>(), before + 2);
        // Others are.
        let cookie = cookie(shard, "all");
        assert_ne!(cookie, 0);
    }
    // Not even to who was greeted before, and asks now.
    asks_in(&mut first, "one", "two");
    assert!(
        found(&turn(&mut first, NOW), |message| matches!(
            message,
            Message::Attached(_) | Message::AttachRefused(_)
        )
        .then_some(()))
        .is_none()
    );
    // A reload does not bring it back to light.
    first.set_all_exports(&[("one".into(), 0), ("two".into(), 1), ("all".into(), 1)]);
    assert_eq!(offered(&discovered(&mut first)), ["one", "all"]);
    assert!(!first.serves_nobody());
}

/// A node of which nothing is left is not there at all: else who looks for its name found two.
#[test]
fn a_node_of_which_nothing_is_left_is_not_found() {
    let puppet = Puppet::new(1, Puppet::GEOMETRY);
    let link = LinkInfo {
        addr: Addr::Sim(1),
        frame_bytes: FrameSizes { base: 1400, max: 1400 },
        room: ROOM,
    };
    let config = TargetConfig { node: "node".into(), insecure: true, ..TargetConfig::default() };
    let mut target = Target::new(config, vec![link], 0, Pool::new(1 << 20), 7);
    let volume = Box::new(puppet.clone());
    target.add_export(ExportConfig { name: "one".into(), volume, read_only: false });
    assert!(!discovered(&mut target).is_empty() && !target.serves_nobody());
    // The record cannot be read, since somebody else has it.
    let io = puppet.take_one();
    puppet.complete(Completion::new(io.token, Err(io.error(ErrorKind::Fenced, "puppet"))));
    close(&mut target);
    assert!(target.serves_nobody());
    for export in ["one", "another"] {
        target.on_frame(NOW, 0, &mut hello(export, 0));
        assert!(turn(&mut target, NOW).is_empty(), "{export}");
    }
    assert!(discovered(&mut target).is_empty());
}

/// A shard that has told and another that was told, and what is offered there.
fn fenced_two() -> [Target; 2] {
    let puppet = Puppet::new(1, Puppet::GEOMETRY);
    let (mut first, mut second) = (shard(0), shard_of(1, &puppet));
    puppet.tell(VolumeEvent::Fenced { of: Some("home/b".into()) });
    second.on_event(NOW, PartEvent::Below);
    for parcel in close(&mut second).1 {
        first.on_event(NOW, PartEvent::Parcel(parcel.content));
    }
    drop(second.take_fenced().expect("its volume is given out"));
    [first, second]
}

/// Taken out by a reload, and added by the next one as another file on the other shard: the shard that had it says of it what
/// it says of any other.
#[test]
fn a_name_that_comes_again_is_told_of_by_all_shards() {
    for added in [vec![], vec!["two".to_owned()]] {
        let [mut first, mut second] = fenced_two();
        let (all, is_back) = ([("one".into(), 0), ("all".into(), 1)], !added.is_empty());
        for shard in [&mut first, &mut second] {
            shard.end_silence(&[]);
            shard.set_all_exports(&all);
            assert_eq!(shard.silent().collect::<Vec<_>>(), ["two"]);
        }
        if is_back {
            let volume = Box::new(NullStore::new(1 << 20, 512));
            first.add_export(ExportConfig { name: "two".into(), volume, read_only: false });
        }
        for shard in [&mut first, &mut second] {
            shard.end_silence(&added);
            shard.set_all_exports(&[("one".into(), 0), ("two".into(), 0), ("all".into(), 1)]);
            assert_eq!(shard.silent().next().is_none(), is_back);
        }
        // Greeted where it was, it is handed on to where it is.
        let cookie = cookie(&mut first, "one");
        second.on_forward(NOW, 0, &mut hello("two", cookie));
        let handed = second.next_forward().map(|letter| letter.shard);
        assert_eq!(handed, is_back.then_some(0));
    }
}

/// What is left of an export that a reload has taken out says nothing of the next one of its name.
#[test]
fn what_is_fenced_while_it_leaves_silences_nobody() {
    let puppet = Puppet::new(1, Puppet::GEOMETRY);
    let mut second = shard_of(1, &puppet);
    second.remove_export("two");
    let volume = Box::new(NullStore::new(1 << 20, 512));
    second.add_export(ExportConfig { name: "two".into(), volume, read_only: false });
    puppet.tell(VolumeEvent::Fenced { of: Some("home/b".into()) });
    second.on_event(NOW, PartEvent::Below);
    let (_, parcels, notes) = close(&mut second);
    assert!(parcels.is_empty() && notes.iter().any(|note| note.contains("taken away")));
    assert!(second.has_silent() && second.silent().next().is_none());
    let fenced = second.take_fenced().expect("its volume is given out");
    assert!(fenced.was_leaving && fenced.name == "two" && second.has_export("two"));
    assert!(!second.has_silent() && second.take_gone().is_none());
    assert!(puppet.take().is_empty(), "it is synced all the same");
}
