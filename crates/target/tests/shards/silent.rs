//! Exports of which somebody else has been granted what they are made of: nothing is said of them.

use thinwire_target::ExportOpening;
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
    assert_eq!(fenced.opening.name, "two");
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
    assert!(target.offered().eq(["one"]));
    close(&mut target);
    assert!(target.serves_nobody());
    assert!(target.offered().next().is_none() && target.silent().eq(["one"]));
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
            shard.begin_exchange(&[]);
            shard.set_all_exports(&all);
            assert_eq!(shard.silent().collect::<Vec<_>>(), ["two"]);
        }
        for (index, shard) in [&mut first, &mut second].into_iter().enumerate() {
            shard.begin_exchange(&added);
            if is_back && index == 0 {
                let volume = Box::new(NullStore::new(1 << 20, 512));
                shard.add_export(ExportConfig { name: "two".into(), volume, read_only: false });
            }
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

/// What may happen while a reload puts another volume in the place of `two`, on shard 1, of which shard 0 is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// This shard takes the exchange.
    Exchange(usize),
    /// The second hears that somebody has what the former `two` is made of, or the one that has come.
    Fenced(usize),
    /// Its turn ends.
    Close,
    /// The first hears the next of what the second has told.
    Hear,
}

/// The two shards, and what is on its way from the second to the first.
struct Exchanged {
    shards: [Target; 2],
    /// The former `two`, and the one that comes.
    puppets: [Puppet; 2],
    letters: std::collections::VecDeque<Parcel>,
    /// How the volumes of them were given out.
    given_out: Vec<(ExportOpening, bool)>,
}

impl Exchanged {
    fn after(steps: &[Step]) -> Self {
        let puppets = [1, 2].map(|number| Puppet::new(number, Puppet::GEOMETRY));
        let shards = [shard(0), shard_of(1, &puppets[0])];
        let (letters, given_out) = Default::default();
        let mut all = Exchanged { shards, puppets, letters, given_out };
        steps.iter().for_each(|step| all.take(*step));
        all
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Exchange(at) => {
                if at == 1 {
                    self.let_go();
                }
                let shard = &mut self.shards[at];
                shard.begin_exchange(&["two".to_owned()]);
                if at == 1 {
                    // Of one that was fenced nothing is left.
                    if shard.has_export("two") {
                        shard.remove_export("two");
                    }
                    let volume = Box::new(self.puppets[1].clone());
                    shard.add_export(ExportConfig { name: "two".into(), volume, read_only: false });
                }
                shard.set_all_exports(&[("one".into(), 0), ("two".into(), 1), ("all".into(), 1)]);
            }
            Step::Fenced(which) => {
                self.puppets[which].tell(VolumeEvent::Fenced { of: Some("home/b".into()) });
                self.shards[1].on_event(NOW, PartEvent::Below);
                self.shards[1].settle(NOW);
            }
            Step::Close => {
                let (_, parcels, _) = close(&mut self.shards[1]);
                self.letters.extend(parcels.into_iter().filter(|parcel| parcel.shard == 0));
                self.let_go();
            }
            Step::Hear => {
                let letter = self.letters.pop_front().expect("one is on its way");
                self.shards[0].on_event(NOW, PartEvent::Parcel(letter.content));
            }
        }
    }

    fn let_go(&mut self) {
        while let Some(fenced) = self.shards[1].take_fenced() {
            self.given_out.push((fenced.opening, fenced.was_leaving));
        }
    }

    /// All that is on its way comes.
    fn end(&mut self) {
        self.take(Step::Close);
        while !self.letters.is_empty() {
            self.take(Step::Hear);
        }
    }
}

/// Goes on in every order that is left; how many there were.
fn in_every_order(before: &[Step], fenced: &[usize], check: &mut dyn FnMut(&[Step])) -> usize {
    let has = |step: Step| before.contains(&step);
    let mut next = vec![Step::Exchange(0), Step::Exchange(1)];
    next.extend(fenced.iter().map(|which| Step::Fenced(*which)));
    next.retain(|step| !has(*step) && (*step != Step::Fenced(1) || has(Step::Exchange(1))));
    if next.is_empty() {
        check(before);
        return 1;
    }
    if !matches!(before.last(), None | Some(Step::Close | Step::Hear)) {
        next.push(Step::Close);
    }
    if !Exchanged::after(before).letters.is_empty() {
        next.push(Step::Hear);
    }
    let go_on = |step| in_every_order(&[before, &[step]].concat(), fenced, check);
    next.into_iter().map(go_on).sum()
}

/// One is silent of what was fenced, and not of what has come under its name: however late it hears of that, or however early.
#[test]
fn what_was_fenced_amid_an_exchange_is_no_other_export_of_its_name() {
    for fenced in [&[][..], &[0], &[1], &[0, 1]] {
        let count = in_every_order(&[], fenced, &mut |steps| {
            let mut all = Exchanged::after(steps);
            all.end();
            let is_silent = fenced.contains(&1);
            let [first, second] = &mut all.shards;
            let all_said = [&*first, &*second].map(|shard| shard.silent().next().is_some());
            assert_eq!(all_said, [is_silent; 2], "{steps:?}");
            let frames = discovered(first);
            let is_offered = found(&frames, |message| match message {
                Message::Offer(offer) => Some(offer.exports.iter().any(|name| name == "two")),
                _ => None,
            });
            assert_eq!(is_offered, Some(!is_silent), "{steps:?}");
            // Who greets is handed on to where it is.
            let cookie = cookie(first, "one");
            first.on_frame(NOW, 0, &mut hello("two", cookie));
            let handed = first.next_forward().map(|letter| letter.shard);
            assert_eq!(handed, (!is_silent).then_some(1), "{steps:?}");
            // Each volume is given out as what it is of.
            let at = |step| steps.iter().position(|at| *at == step);
            let was_leaving = at(Step::Exchange(1)) < at(Step::Fenced(0));
            let of = |which: &usize| match which {
                0 => (ExportOpening { name: "two".into(), exchange: 0 }, was_leaving),
                _ => (ExportOpening { name: "two".into(), exchange: 1 }, false),
            };
            let mut wants: Vec<_> = fenced.iter().map(of).collect();
            wants.sort_by_key(|(opening, _)| opening.exchange);
            all.given_out.sort_by_key(|(opening, _)| opening.exchange);
            assert_eq!(all.given_out, wants, "{steps:?}");
        });
        assert!(count >= 2 + 10 * fenced.len(), "{count} orders of {fenced:?}");
    }
}

/// Who hears of an export that is yet to come, before the exchange that others come by, too, does not end for having nothing left.
#[test]
fn what_is_fenced_before_it_is_known_leaves_what_comes_with_it() {
    let puppet = Puppet::new(1, Puppet::GEOMETRY);
    let (mut first, mut second) = (shard(0), shard(1));
    first.set_all_exports(&[("two".into(), 1)]);
    second.begin_exchange(&["two".to_owned(), "three".to_owned()]);
    second.remove_export("two");
    let volume = Box::new(puppet.clone());
    second.add_export(ExportConfig { name: "two".into(), volume, read_only: false });
    puppet.tell(VolumeEvent::Fenced { of: None });
    second.on_event(NOW, PartEvent::Below);
    for parcel in close(&mut second).1 {
        first.on_event(NOW, PartEvent::Parcel(parcel.content));
    }
    assert_eq!(first.silent().collect::<Vec<_>>(), ["two"]);
    assert!(!first.serves_nobody());
    first.begin_exchange(&["two".to_owned(), "three".to_owned()]);
    first.set_all_exports(&[("two".into(), 1), ("three".into(), 1)]);
    assert!(!first.serves_nobody());
    first.begin_exchange(&[]);
    first.set_all_exports(&[("two".into(), 1)]);
    assert!(first.serves_nobody(), "nothing else is left");
}

/// What is left of an export that a reload has taken out says nothing of the next one of its name.
#[test]
fn what_is_fenced_while_it_leaves_silences_nobody() {
    let puppet = Puppet::new(1, Puppet::GEOMETRY);
    let mut second = shard_of(1, &puppet);
    second.begin_exchange(&["two".to_owned()]);
    second.remove_export("two");
    let volume = Box::new(NullStore::new(1 << 20, 512));
    second.add_export(ExportConfig { name: "two".into(), volume, read_only: false });
    puppet.tell(VolumeEvent::Fenced { of: Some("home/b".into()) });
    second.on_event(NOW, PartEvent::Below);
    let (_, parcels, notes) = close(&mut second);
    assert!(parcels.is_empty() && notes.iter().any(|note| note.contains("taken away")));
    assert!(second.has_silent() && second.silent().next().is_none());
    let fenced = second.take_fenced().expect("its volume is given out");
    assert!(fenced.was_leaving && fenced.opening.name == "two" && second.has_export("two"));
    assert!(!second.has_silent() && second.take_gone().is_none());
    assert!(puppet.take().is_empty(), "it is synced all the same");
}
