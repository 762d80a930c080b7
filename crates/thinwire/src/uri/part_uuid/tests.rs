//! Parts are found by their labels, under whatever name.

use std::os::unix::fs::symlink;
use std::time::Instant;

use thinwire_modules::meta::{NewPart, NewWhole, label_parts};
use thinwire_modules::{Module, Options};
use thinwire_volume::Identity;

use super::*;
use crate::testing::TempDir;
use crate::uri::VolumeSpec;

/// A file with the label of part `role` of two, in the first of the places for it.
fn part(path: &Path, role: usize, generation: u64) {
    part_of([1, 2], path, role, generation);
}

/// The same, of two that are called so.
fn part_of(uuids: [u8; 2], path: &Path, role: usize, generation: u64) {
    let content = Identity { identity: [7; 16], incarnation: 1 };
    let parts = uuids.map(|nth| NewPart { uuid: [nth; 16], content, bytes: 4 << 20 });
    let module = Module::find("linear").unwrap();
    let bytes = parts.iter().map(|part| part.data_bytes(module)).sum();
    let options = &Options::default();
    let whole = NewWhole { name: "home", uuid: [9; 16], module, options, bytes };
    let mut label = label_parts(&whole, &parts).unwrap().swap_remove(role);
    label.generation = generation;
    let file = File::create(path).unwrap();
    file.set_len(4 << 20).unwrap();
    file.write_all_at(&label.encode().unwrap()[..], LABEL_OFFSETS[0]).unwrap();
}

fn uuid(nth: u8) -> String {
    hex(&[nth; 16])
}

#[test]
fn a_part_is_found_under_whatever_name() {
    let dir = TempDir::new("part-uuid");
    let at = |name: &str| dir.path().join(name);
    part(&at("x.img"), 0, 1);
    part(&at("y.img"), 1, 1);
    symlink(at("x.img"), at("also-x.img")).unwrap();
    std::fs::write(at("short"), b"no label").unwrap();
    std::fs::create_dir(at("folder")).unwrap();
    let places = [dir.path().to_owned()];
    // The first of its names, and not two of it.
    assert_eq!(find(&uuid(1), &places), Ok(at("also-x.img")));
    assert_eq!(find("02020202-0202-0202-0202-020202020202", &places), Ok(at("y.img")));
    assert_eq!(find(&uuid(2), &[at("y.img")]), Ok(at("y.img")));

    std::fs::rename(at("y.img"), at("z.img")).unwrap();
    forget();
    assert_eq!(find(&uuid(2), &places), Ok(at("z.img")));
}

#[test]
fn of_twins_neither_is_used_and_both_are_named() {
    let dir = TempDir::new("part-twins");
    let at = |name: &str| dir.path().join(name);
    part(&at("x.img"), 0, 1);
    part(&at("copy.img"), 0, 5);
    let why = find(&uuid(1), &[dir.path().to_owned()]).unwrap_err();
    assert!(why.contains("x.img") && why.contains("copy.img") && why.contains("neither"), "{why}");
}

#[test]
fn what_is_no_part_is_said_to_be_none() {
    let dir = TempDir::new("part-none");
    let at = |name: &str| dir.path().join(name);
    part(&at("x.img"), 0, 1);
    let places = [dir.path().to_owned(), at("missing")];
    let refused = |text: &str, says: &[&str]| {
        let why = find(text, &places).unwrap_err();
        assert!(says.iter().all(|word| why.contains(word)), "{why}");
    };
    refused("xyz", &["32 hex digits"]);
    refused(&uuid(1)[1..], &["32 hex digits"]);
    refused(&uuid(9), &["the linear `home` as a whole", &uuid(1), &uuid(2)]);
    refused(&uuid(2), &["none of 1 files", "1 could not be read", "missing"]);
}

/// To read a device that this very process serves would never end.
#[test]
fn devices_that_processes_stand_behind_are_left_alone() {
    for name in ["ublkb0", "nbd3", "loop7", "zram0", "ram1", "sr0", "nbd0p1", "loop0p2"] {
        assert!(!is_searched(name), "{name}");
    }
    for name in ["sda", "sdr1", "vdb2", "nvme0n1p3", "dm-0", "md127", "mmcblk0", "drbd0"] {
        assert!(is_searched(name), "{name}");
    }
}

/// Both copies are read, and the newer one counts, whichever it is.
#[test]
fn the_newer_copy_counts() {
    let dir = TempDir::new("part-copies");
    let (old, new) = (dir.path().join("old"), dir.path().join("new"));
    for (newer, older) in [(0, 1), (1, 0)] {
        part(&new, 0, 8);
        part(&old, 1, 7);
        let read = |path| read_copy(&File::open(path).unwrap(), LABEL_OFFSETS[0]).unwrap().unwrap();
        let (new_label, old_label) = (read(&new), read(&old));
        let file = OpenOptions::new().write(true).open(&new).unwrap();
        file.write_all_at(&new_label.encode().unwrap()[..], LABEL_OFFSETS[newer]).unwrap();
        file.write_all_at(&old_label.encode().unwrap()[..], LABEL_OFFSETS[older]).unwrap();
        let Said::Label(label) = said_by(&new).unwrap() else { panic!("it has one") };
        assert_eq!(label.role, 0);
    }
}

/// Who has given up its rights uses what it has found before it did, but nothing that is no more there.
#[test]
fn what_cannot_be_read_any_more_is_where_it_was() {
    let dir = TempDir::new("part-known");
    let path = dir.path().join("x.img");
    // Of this test alone: what was found is known to all threads.
    part_of([31, 32], &path, 0, 1);
    assert_eq!(find(&uuid(31), std::slice::from_ref(&path)), Ok(path.clone()));
    let label = Scan::of(std::slice::from_ref(&path), PATIENCE, look).parts.remove(0).1;
    let (denied, late) = (io::ErrorKind::PermissionDenied, io::ErrorKind::TimedOut);
    // The last: something else says that it is that part, twice.
    let cases = [
        (&*path, denied, 0, true),
        (Path::new("/other"), denied, 0, false),
        (&*path, late, 0, false),
        (&*path, denied, 2, false),
    ];
    for (nth, (at, kind, twins, is_known)) in cases.into_iter().enumerate() {
        let parts = (0..twins).map(|twin| (dir.path().join(format!("{twin}")), label.clone()));
        let unreadable = vec![(at.to_owned(), kind.into())];
        let scan = Scan { parts: parts.collect(), seen: 1, unreadable, ..Scan::default() };
        let places = vec![dir.path().join(format!("place-{nth}"))];
        SCANS.with_borrow_mut(|scans| scans.insert(places.clone(), Rc::new(scan)));
        assert_eq!(find(&uuid(31), &places).is_ok(), is_known, "case {nth}");
    }
}

/// Who reads it waits until somebody opens the other end.
fn look_or_hang(path: &Path) -> io::Result<Met> {
    if path.extension().is_some_and(|end| end == "hangs") {
        drop(File::open(path)?);
    }
    look(path)
}

/// A disk that hangs costs whoever looks for a part a while, once, and is named; the others are found, and it is, too, once it
/// answers.
#[test]
fn what_does_not_answer_is_named_and_the_rest_is_found() {
    let dir = TempDir::new("part-hangs");
    let (sound, hangs) = (dir.path().join("sound"), dir.path().join("slow.hangs"));
    part_of([41, 42], &sound, 0, 1);
    let made = std::process::Command::new("mkfifo").arg(&hangs).status().unwrap();
    assert!(made.success());
    let patience = Duration::from_secs(1);
    let scan_for = |patience, places: &[PathBuf]| {
        let began = Instant::now();
        (Scan::of(places, patience, look_or_hang), began.elapsed())
    };
    let scan = |places: &[PathBuf]| scan_for(patience, places);
    // What hangs beside a folder costs what is in there nothing.
    let folder = dir.path().join("folder");
    std::fs::create_dir(&folder).unwrap();
    let beside = dir.path().join("folder/slow.hangs");
    let made = std::process::Command::new("mkfifo").arg(&beside).status().unwrap();
    assert!(made.success());
    part_of([43, 44], &folder.join("inside"), 0, 1);
    let (found, _) = scan_for(5 * patience, &[beside.clone(), folder.clone()]);
    assert_eq!(found.find(&[43; 16]), Ok(folder.join("inside")));
    drop(OpenOptions::new().write(true).open(&beside).unwrap());
    for places in [vec![dir.path().to_owned()], vec![hangs.clone(), sound.clone()]] {
        let (found, took) = scan(&places);
        assert_eq!(found.find(&[41; 16]), Ok(sound.clone()));
        let why = found.find(&[42; 16]).unwrap_err();
        let named = format!("1 could not be read ({}: does not answer", hangs.display());
        assert!(why.contains(&named), "{why}");
        assert!(took < Duration::from_secs(20), "{took:?}");
    }
    // Nobody waits for it any more, nor has it a thread for each who asked.
    let waiting = |places: &[PathBuf]| scan(places).1 < patience;
    assert!(waiting(std::slice::from_ref(&hangs)));
    drop(OpenOptions::new().write(true).open(&hangs).unwrap());
    std::fs::remove_file(&hangs).unwrap();
    part_of([41, 42], &hangs, 1, 1);
    let began = Instant::now();
    while scan(std::slice::from_ref(&hangs)).0.find(&[42; 16]).is_err() {
        assert!(began.elapsed() < Duration::from_secs(20), "it is not looked at again");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// One disk has many names, and partitions: if it hangs, all of them do.
#[test]
fn what_hangs_under_many_names_keeps_no_thread_from_the_rest() {
    let dir = TempDir::new("part-names");
    let at = |name: String| dir.path().join(name);
    let hang: Vec<_> = (0..20).map(|nth| at(format!("a{nth}.hangs"))).collect();
    assert!(std::process::Command::new("mkfifo").args(&hang).status().unwrap().success());
    part_of([45, 46], &at("sound".into()), 0, 1);
    let places = [dir.path().to_owned()];
    let scan = Scan::of(&places, Duration::from_secs(3), look_or_hang);
    assert_eq!(scan.find(&[45; 16]), Ok(at("sound".into())));
    assert_eq!(scan.unreadable.len(), hang.len());
    hang.iter().for_each(|path| drop(OpenOptions::new().write(true).open(path).unwrap()));
}

fn look_or_panic(path: &Path) -> io::Result<Met> {
    assert!(!path.ends_with("panics"), "as it is to");
    look(path)
}

#[test]
fn what_could_not_be_looked_at_is_looked_at_again() {
    let dir = TempDir::new("part-panics");
    let path = dir.path().join("panics");
    part_of([47, 48], &path, 0, 1);
    let scan = |look| Scan::of(std::slice::from_ref(&path), PATIENCE, look).find(&[47; 16]);
    let why = scan(look_or_panic).unwrap_err();
    assert!(why.contains("whoever looked at it has failed"), "{why}");
    assert_eq!(scan(look), Ok(path.clone()));
}

#[test]
fn files_say_where_to_look() {
    let dir = TempDir::new("part-places");
    let disks = dir.path().join("disks");
    std::fs::create_dir(&disks).unwrap();
    part(&disks.join("x.img"), 0, 1);
    part(&disks.join("y.img"), 1, 1);
    let file = dir.path().join("a.toml");
    let children = format!("[\"uuid:{}\", \"uuid:{}\"]", uuid(1), uuid(2));
    let text = format!(
        "places = [\"disks\"]\n[[volume]]\nname = \"home\"\nkind = \"linear\"\nlabels = true\nchildren = {children}\n"
    );
    std::fs::write(&file, text).unwrap();
    let spec: VolumeSpec = format!("{}#home", file.display()).parse().unwrap();
    let VolumeSpec::Over { children, .. } = spec else { panic!("it is made of others") };
    let wanted = ["x.img", "y.img"].map(|name| VolumeSpec::Path(disks.join(name)));
    assert_eq!(children, wanted);
}

/// Of folders only what has a label of ours, or had one, is to be looked at; each once, and nothing that was named itself.
#[test]
fn in_folders_what_may_be_parts_is_found() {
    let dir = TempDir::new("part-folders");
    let at = |name: &str| dir.path().join(name);
    part_of([51, 52], &at("x.img"), 0, 1);
    part_of([51, 52], &at("y.img"), 1, 1);
    symlink(at("y.img"), at("also-y.img")).unwrap();
    part_of([51, 52], &at("torn.img"), 1, 1);
    let torn = OpenOptions::new().write(true).open(at("torn.img")).unwrap();
    torn.write_all_at(&[0xff; 16], LABEL_OFFSETS[0] + 100).unwrap();
    std::fs::write(at("short"), b"no label").unwrap();
    std::fs::write(at("blank.img"), vec![0; 1 << 20]).unwrap();
    std::fs::write(at("somebody's.img"), vec![7; 1 << 20]).unwrap();
    std::fs::create_dir(at("folder")).unwrap();
    let folders = [dir.path().to_owned(), at("none")];
    let found = in_folders(&folders, &[]);
    assert_eq!(found.parts, ["also-y.img", "torn.img", "x.img"].map(at));
    assert_eq!(found.seen, 6);
    assert!(found.unreadable.is_some_and(|why| why.contains("1 could not be read")));
    assert_eq!(in_folders(&folders[..1], &[&at("y.img")]).parts, ["torn.img", "x.img"].map(at));
}
