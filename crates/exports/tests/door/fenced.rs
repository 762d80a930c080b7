//! Exports whose volume says that somebody else has been granted what it is made of.

use super::*;

fn fenced(io: &Io) -> Completion {
    Completion::new(io.token, Err(io.error(ErrorKind::Fenced, "puppet")))
}

/// What the door says of I/Os that nobody is to hear of.
fn take_fenced(exports: &mut Exports) -> (Vec<u64>, Box<dyn thinwire_volume::Volume>) {
    let mut ended = Vec::new();
    let volume = exports.take_fenced(|ticket, _, _, completion| {
        assert_eq!(completion.result.unwrap_err().kind, ErrorKind::Fenced);
        ended.push(ticket.number);
    });
    ended.sort_unstable();
    (ended, volume)
}

/// However that is heard of: nothing more is given to the volume, which is not even polled; what is under way ends, untold,
/// and all else goes on.
#[test]
fn what_was_fenced_is_given_nothing_more() {
    for by_event in [false, true] {
        let (mut exports, puppets) = puppets(2);
        let mut users = Dialect::default();
        let writer = grant(&mut exports, &mut users, 1, false);
        let reader = exports.open_read(2, 0);
        let other = exports.open_read(3, 1);
        let io = |op| Io::new(0, op, 0, 512);
        let flush = || Io::new(0, Op::Flush, 0, 0);
        submit(&mut exports, 1, writer.pass, write(&Pool::new(0), 1)).unwrap();
        submit(&mut exports, 2, reader.pass, io(Op::Read)).unwrap();
        submit(&mut exports, 2, reader.pass, flush()).unwrap();
        submit(&mut exports, 2, reader.pass, flush()).unwrap();
        let [of_write, of_read, of_flush] = puppets[0].take().try_into().unwrap();
        // One that is answered before is answered.
        puppets[0].succeed(&of_read);
        assert_eq!(poll(&mut exports)[0].2.result, Ok(()));
        match by_event {
            true => {
                puppets[0].tell(VolumeEvent::Fenced { of: Some("home/b".into()) });
                puppets[0].succeed(&of_write);
            }
            false => puppets[0].complete(fenced(&of_write)),
        }
        // Nor is anything said of what ends well with it, or behind it.
        puppets[0].succeed(&of_flush);
        let ended = poll(&mut exports);
        assert_eq!(ended.len(), 2);
        for (_, _, end) in &ended {
            assert_eq!(end.result.unwrap_err().kind, ErrorKind::Fenced, "by event: {by_event}");
        }
        assert!(exports.has_fenced() && exports.take_started());
        assert_eq!((exports.find("p0"), exports.reports().len()), (None, 1));

        submit(&mut exports, 1, writer.pass, write(&Pool::new(0), 2)).unwrap();
        claim(&mut exports, 4, true).unwrap();
        let polls = puppets[0].polls();
        exports.disk_ready();
        settle(&mut exports, &mut users);
        exports.refresh(Time::NEVER);
        exports.tell_time(AT);
        settle(&mut exports, &mut users);
        assert_eq!((puppets[0].take().len(), puppets[0].polls()), (0, polls));

        assert_eq!(exports.next_fenced(), Some((0, "p0")));
        exports.end_session(2, AT);
        let (ended, volume) = take_fenced(&mut exports);
        assert_eq!(ended, [1, 2], "the write, and the flush that waited");
        drop(volume);
        assert!(!exports.has_fenced() && exports.next_fenced().is_none() && !exports.is_at_work());
        assert_eq!(exports.admit(1, writer.pass).unwrap_err(), NoEntry::NoPass);
        assert!(!exports.is_waiting(4, 1) && exports.leaving().next().is_none());
        settle(&mut exports, &mut users);
        let note = exports.take_note().expect("it is told");
        let where_it_is = if by_event { "home/b" } else { "reported by puppet" };
        assert!(note.contains("p0") && note.contains(where_it_is), "{note}");
        assert!(exports.take_note().is_none(), "once");
        assert_eq!((users.granted.len(), users.denied.len(), users.fenced.len()), (1, 0, 0));

        submit(&mut exports, 3, other.pass, io(Op::Read)).unwrap();
        puppets[1].succeed(&puppets[1].take_one());
        assert_eq!(poll(&mut exports).len(), 1);
        // The place is the next one's, in which nothing of it is left.
        add_puppet(&mut exports, 0, &Puppet::new(9, Puppet::GEOMETRY));
        assert_eq!(exports.find("p0"), Some(0));
        grant(&mut exports, &mut users, 4, false);
    }
}

/// It may be the record that cannot be read, or changed: nobody is told no, and nothing is put back.
#[test]
fn a_record_that_is_fenced_ends_the_export() {
    for step in [Op::LoadWriter, Op::StoreWriter] {
        let (mut exports, pool) =
            (Exports::new(ExportsConfig::default(), 7, &Pool::new(0)), Pool::new(0));
        let puppet = Puppet::new(1, Puppet::GEOMETRY);
        let volume = Box::new(puppet.clone());
        exports.add(ExportConfig { name: "p".into(), volume, read_only: false });
        let mut users = Dialect::default();
        claim(&mut exports, 1, false).unwrap();
        let mut io = puppet.take_one();
        assert_eq!(io.op, Op::LoadWriter);
        if step == Op::StoreWriter {
            let data = WriterRecord::default().to_data(&pool);
            puppet.complete(Completion { data, ..Completion::new(io.token, Ok(())) });
            settle(&mut exports, &mut users);
            io = puppet.take_one();
        }
        assert_eq!(io.op, step);
        puppet.complete(fenced(&io));
        settle(&mut exports, &mut users);
        assert_eq!(exports.next_fenced(), Some((0, "p")), "{step}");
        users.gone.push(1);
        exports.end_session(1, AT);
        let (ended, _) = take_fenced(&mut exports);
        settle(&mut exports, &mut users);
        assert!(ended.is_empty() && puppet.take().is_empty(), "{step}");
        assert_eq!((users.granted.len(), users.denied.len()), (0, 0), "{step}");
        exports.take_started();
        exports.take_release();
        exports.refresh(AT);
        assert_eq!(exports.deadline(AT), Time::NEVER, "{step}");
    }
}

/// One that is planted: what the user is told then.
#[test]
fn a_door_that_tells_of_fences_tells_of_errors() {
    let canary = DoorCanary::FencedTold;
    let (mut exports, puppets) =
        puppets_behind(ExportsConfig { canary, ..ExportsConfig::default() }, 1);
    let reader = exports.open_read(1, 0);
    submit(&mut exports, 1, reader.pass, Io::new(0, Op::Read, 0, 512)).unwrap();
    puppets[0].complete(fenced(&puppets[0].take_one()));
    let ended = poll(&mut exports);
    assert_eq!(ended[0].2.result.unwrap_err().kind, ErrorKind::Io);
    assert!(!exports.has_fenced());
}

/// Wherever its way out is: what it would still write for itself is not its to write any more.
#[test]
fn what_was_fenced_while_it_left_is_not_brought_in_order() {
    for (synced, by_event) in [(false, true), (false, false), (true, true)] {
        let (mut exports, puppets) = puppets(2);
        let mut users = Dialect::default();
        let writer = grant(&mut exports, &mut users, 1, false);
        submit(&mut exports, 1, writer.pass, write(&Pool::new(0), 1)).unwrap();
        let written = puppets[0].take_one();
        exports.end_session(1, AT);
        exports.leave(0);
        if synced {
            puppets[0].succeed(&written);
            assert_eq!(poll(&mut exports).len(), 1);
            settle(&mut exports, &mut users);
            let sync = puppets[0].take_one();
            assert_eq!(sync.op, Op::Flush);
            puppets[0].complete(fenced(&sync));
        } else if by_event {
            puppets[0].tell(VolumeEvent::Fenced { of: Some("home/b".into()) });
        } else {
            puppets[0].complete(fenced(&written));
        }
        exports.disk_ready();
        let ended = poll(&mut exports).len();
        settle(&mut exports, &mut users);
        assert!(puppets[0].take().is_empty(), "it is synced all the same");
        assert!(!exports.has_gone() && exports.take_gone().is_none(), "that would be in order");
        assert!(exports.leaving().next().is_none());
        let notes: Vec<_> = std::iter::from_fn(|| exports.take_note()).collect();
        assert!(notes.iter().any(|note| note.contains("taken away")), "{notes:?}");

        assert_eq!(exports.next_fenced(), Some((0, "p0")));
        assert!(exports.is_ousted(0));
        let (given_up, _) = take_fenced(&mut exports);
        assert_eq!(ended + given_up.len(), usize::from(!synced));
        assert!(!exports.has_fenced());
        // The place is the next one's.
        let next = Puppet::new(9, Puppet::GEOMETRY);
        add_puppet(&mut exports, 0, &next);
        settle(&mut exports, &mut users);
        assert_eq!(exports.find("p0"), Some(0));
        grant(&mut exports, &mut users, 4, false);
    }
}
