//! What goes through the door of a part, and what does not once that is fenced.

use thinwire_volume::Op;
use thinwire_volume::testing::Puppet;

use super::*;

fn polled(volume: &mut dyn Volume) -> Vec<(Token, Option<ErrorKind>)> {
    let mut done = Vec::new();
    volume.poll(&mut done);
    let kind = |completion: &Completion| completion.result.err().map(|error| error.kind);
    done.iter().map(|completion| (completion.token, kind(completion))).collect()
}

/// Two parts of a whole, over volumes that do as they are told, each with its door.
fn parts(canary: FenceCanary) -> ([Puppet; 2], [(LabelledPart, PartDoor); 2]) {
    let puppets = [1, 2].map(|number| Puppet::new(number, Puppet::GEOMETRY));
    let fence = PartFence { canary, ..PartFence::default() };
    let part = |puppet: &Puppet| LabelledPart::new(Box::new(puppet.clone()), fence.clone());
    let parts = [part(&puppets[0]), part(&puppets[1])];
    (puppets, parts)
}

/// How much goes down to a part, and by its door, when another one of its whole has said that it is fenced: by an event, or by an answer.
fn sent_behind_a_fence(canary: FenceCanary, by_answer: bool) -> usize {
    let (puppets, [(mut one, _), (mut other, mut door)]) = parts(canary);
    match by_answer {
        true => {
            one.submit(Io::new(1, Op::Read, 0, 4096));
            let first = puppets[0].take_one();
            let error = first.error(ErrorKind::Fenced, "puppet");
            puppets[0].complete(Completion::new(first.token, Err(error)));
        }
        false => puppets[0].tell(VolumeEvent::Fenced { of: None }),
    }
    one.poll_events(&mut Vec::new());
    polled(&mut one);
    door.submit(Io::new(BESIDE_TOKEN, Op::Flush, 0, 0));
    other.submit(Io::new(2, Op::Read, 0, 4096));
    polled(&mut other);
    puppets[1].take().len()
}

/// Rule 18.
#[test]
fn parts_that_go_on_behind_a_fence_are_found() {
    for by_answer in [false, true] {
        assert_eq!(sent_behind_a_fence(FenceCanary::None, by_answer), 0);
        for canary in [FenceCanary::IgnoresFence, FenceCanary::OnePartOnly] {
            assert_eq!(sent_behind_a_fence(canary, by_answer), 2, "{canary:?}");
        }
    }
}

/// Rule 18, though nothing was under way at that part.
#[test]
fn who_hears_that_it_is_fenced_writes_no_label_either() {
    let (puppets, [(mut one, _), (mut other, mut door)]) = parts(FenceCanary::None);
    puppets[0].tell(VolumeEvent::Fenced { of: None });
    let mut news = Vec::new();
    one.poll_events(&mut news);
    assert_eq!(news, [VolumeEvent::Fenced { of: None }]);
    door.submit(Io::new(BESIDE_TOKEN, Op::Flush, 0, 0));
    other.submit(Io::new(1, Op::Read, 0, 4096));
    assert_eq!(polled(&mut other), [(1, Some(ErrorKind::Fenced))]);
    assert_eq!(polled(&mut door), [(BESIDE_TOKEN, Some(ErrorKind::Fenced))]);
    assert!(puppets.iter().all(|puppet| puppet.take().is_empty()), "nothing goes down");
}

/// Rule 18: fenced at one part, all stop, at once, without a last write, be it of a label.
#[test]
fn who_was_fenced_at_one_part_writes_none() {
    let (puppets, [(mut one, _), (mut other, mut door)]) = parts(FenceCanary::None);
    let read = |token| Io::new(token, Op::Read, 0, 4096);
    one.submit(read(1));
    other.submit(read(2));
    let (first, beside) = (puppets[0].take_one(), puppets[1].take_one());
    let error = first.error(ErrorKind::Fenced, "puppet");
    puppets[0].complete(Completion::new(first.token, Err(error)));
    door.submit(Io::new(BESIDE_TOKEN, Op::Flush, 0, 0));
    assert_eq!(polled(&mut one), [(1, Some(ErrorKind::Fenced))]);
    one.submit(read(3));
    other.submit(read(4));
    assert_eq!((other.outstanding(), other.is_at_rest()), (2, false));
    // What is under way there ends as it ends.
    puppets[1].succeed(&beside);
    assert_eq!(polled(&mut other), [(2, None), (4, Some(ErrorKind::Fenced))]);
    assert_eq!(polled(&mut door), [(BESIDE_TOKEN, Some(ErrorKind::Fenced))]);
    assert_eq!(polled(&mut one), [(3, Some(ErrorKind::Fenced))]);
    assert!(puppets.iter().all(|puppet| puppet.take().is_empty()), "nothing goes down");
    assert_eq!((one.outstanding(), other.outstanding(), door.outstanding()), (0, 0, 0));
}
