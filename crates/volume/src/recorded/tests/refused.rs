//! Volumes that keep a record themselves, and not all of it, or not any more.

use super::*;

/// A snapshot, or a volume that is only read, of a pool that is open for writing, whose leaves are granted to all of its volumes.
#[test]
fn what_is_only_read_has_its_record_read_though_its_leaves_are_held() {
    let record = WriterRecord::new(3, CLIENT, "node2");
    let written = KeptWriter { record, leaves: Some(leaves(&[4])) };
    for (kept, told) in [(KeptWriter::default(), WriterRecord::default()), (written, record)] {
        let (kept, file) = (Rc::new(RefCell::new(kept)), Rc::default());
        let mut volume = over(Keeper { is_read: true, ..keeper(&kept) }, &file, &[6]);
        let leaves = HeldLeaves::default();
        volume.follow(leaves.clone());
        assert_eq!(load_writer(&mut volume), Ok(told));
        // Nor is it tried when they change.
        leaves.set(granted(&[6, 1]));
        volume.poll(&mut Vec::new());
        assert_eq!((load_writer(&mut volume), volume.outstanding()), (Ok(told), 0));
        let file = file.borrow();
        assert!(file.stored.is_empty() && file.told.is_empty() && file.on_leaves.is_empty());
    }
}

/// A pool of an earlier version, of which nothing is free: whoever would make room from above is let in.
#[test]
fn what_a_full_volume_does_not_keep_is_in_the_file() {
    let (kept, file) = (Rc::default(), held(3, &[4]));
    let full = || Keeper { is_full: true, ..keeper(&kept) };
    let mut volume = over(full(), &file, &[5]);
    assert_eq!(load_writer(&mut volume).unwrap().generation, 3);
    assert_eq!((file.borrow().record.generation, &file.borrow().leaves), (3, &leaves(&[5])));
    store_writer(&mut volume, WriterRecord::new(4, CLIENT, "node2")).unwrap();
    assert_eq!(file.borrow().record.generation, 4);
    assert!(kept.borrow().is_none());
    // Once there is room the next one is there.
    assert_eq!(load_writer(&mut gateway(&kept, &file, &[6])).unwrap().generation, 4);
    assert_eq!((kept.borrow().record.generation, file.borrow().record.generation), (4, 0));
    // Nor does a first one go there: of that who takes this one's place would know nothing.
    let (none, empty) = (Rc::default(), Rc::<RefCell<File>>::default());
    let mut volume = over(Keeper { is_full: true, ..keeper(&none) }, &empty, &[5]);
    assert_eq!(load_writer(&mut volume).unwrap_err().kind, ErrorKind::NoSpace);
    assert!(none.borrow().is_none() && empty.borrow().stored.is_empty());
    // One that is kept is not given up for that.
    store_writer(&mut over(full(), &file, &[6]), WriterRecord::new(5, CLIENT, "node2")).unwrap();
    assert_eq!((kept.borrow().record.generation, file.borrow().record.generation), (5, 0));
}

/// What is stored, be it that nobody was told, fences nobody when it is found again, also by what keeps no idle generations.
#[test]
fn what_is_tried_again_is_known_without_its_idle_generations() {
    let record = WriterRecord { idle: 2, ..WriterRecord::new(3, CLIENT, "node2") };
    let kept = Rc::new(RefCell::new(KeptWriter { record, leaves: Some(leaves(&[4])) }));
    let file = Rc::new(RefCell::new(File::default()));
    let mut volume = over(Keeper { drops_idle: true, ..keeper(&kept) }, &file, &[5]);
    file.borrow_mut().fails = 1;
    assert!(load_writer(&mut volume).is_err());
    // It is there, and the one in the place may be, too.
    assert_eq!(load_writer(&mut volume).unwrap().generation, 3);
}
