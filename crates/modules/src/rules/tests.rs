//! All modules keep the rules; and one that breaks a rule is found out.

use thinwire_buffer::{Pool, SegList, Time};

use thinwire_volume::{Completion, Geometry, Identity, Io, Op, VolumeEvent, WriterRecord};

use super::obey;
use crate::*;

#[test]
fn all_modules_keep_the_rules() {
    MODULES.iter().for_each(obey);
    // One that is all pattern has other bytes than what it stands on.
    TEST_MODULES.iter().filter(|module| module.name != "pattern").for_each(obey);
}

#[test]
fn names_can_be_typed_and_told_apart() {
    let all: Vec<_> = MODULES.iter().chain(TEST_MODULES).collect();
    for (at, module) in all.iter().enumerate() {
        let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        assert!(!module.name.is_empty() && module.name.chars().all(is_plain), "{module:?}");
        // Behind 38 columns of a line of 100.
        assert!((1..=62).contains(&module.help.len()), "{module:?}");
        assert!(!module.help.contains('\n'), "{module:?}");
        assert!(!["file", "memory", "null", "tw"].contains(&module.name), "{module:?}");
        assert_eq!(Module::find(module.name), Some(*module));
        assert!(!all[..at].contains(module), "{module:?} is there twice");
        for (nth, option) in module.options.iter().enumerate() {
            let name = option.name;
            let is_plain = |c: char| c.is_ascii_lowercase() || c == '_';
            assert!(!name.is_empty() && name.chars().all(is_plain), "{module:?}: {name}");
            // The keys of every `[[volume]]`.
            assert!(!["name", "kind", "children"].contains(&name), "{module:?}: {name}");
            assert!((1..=50).contains(&option.help.len()) && !option.help.contains('\n'), "{name}");
            assert!(option.check(*option.bounds.start()).is_ok(), "{module:?}: the least {name}");
            assert_eq!(module.option(name).unwrap().name, name);
            let before = &module.options[..nth];
            assert!(before.iter().all(|other| other.name != name), "{name} is there twice");
        }
    }
    assert_eq!(Module::find("nonesuch"), None);
}

#[test]
fn how_many_volumes_it_takes_is_said() {
    let takes = |children, count| {
        Module { children, ..linear::MODULE }.check_count(count).map_err(|e| e.to_string())
    };
    assert_eq!(takes(2..=2, 2), Ok(()));
    assert_eq!(takes(1..=1, 2), Err("linear takes 1 volume, not 2".into()));
    assert_eq!(takes(2..=2, 3), Err("linear takes 2 volumes, not 3".into()));
    assert_eq!(takes(1..=usize::MAX, 0), Err("linear takes 1 or more volumes, not 0".into()));
    assert_eq!(takes(2..=4, 5), Err("linear takes 2 to 4 volumes, not 5".into()));
}

#[test]
fn what_options_a_module_has_is_said() {
    let has = |module: Module, name| module.option(name).err().map(|e| e.to_string());
    assert_eq!(has(stripe::MODULE, "chunk"), None);
    assert_eq!(
        has(slice::MODULE, "chunk"),
        Some("slice has no `chunk`; it has offset, size".into())
    );
    assert_eq!(has(linear::MODULE, "x"), Some("linear has no `x`: it has no options".into()));
}

/// What a broken module does otherwise than [`Linear`].
#[derive(Clone, Copy, PartialEq)]
enum Broken {
    /// The last volume is not flushed.
    DropsFlush,
    /// What a volume fails is told with the flush that all have answered.
    LateFlush,
    /// A failed flush is told in the order in which the volumes are polled.
    LossFirst,
    Losses,
    Copies,
    /// Only asked for completions while something is outstanding.
    IdlePolls,
    WrongRange,
    Features,
    Identity,
    Record,
    WrongBlock,
    NoSize,
    Timeless,
    Untimed,
}

/// A volume that passes all on, but for how it is broken.
struct Planted {
    inner: Box<dyn Volume>,
    broken: Broken,
    ready: Vec<Completion>,
}

impl Volume for Planted {
    fn geometry(&self) -> Geometry {
        let mut geometry = self.inner.geometry();
        match self.broken {
            Broken::Features => geometry.features.discard = true,
            Broken::NoSize => geometry.bytes = 0,
            _ => {}
        }
        geometry
    }

    fn identity(&self) -> Identity {
        match self.broken {
            Broken::Identity => Identity::default(),
            _ => self.inner.identity(),
        }
    }

    fn submit(&mut self, mut io: Io) {
        match (self.broken, io.op) {
            (Broken::DropsFlush, Op::Flush) => {
                return self.ready.push(Completion::new(io.token, Ok(())));
            }
            (Broken::Copies, Op::Write) => {
                let copy = Pool::new(0).copy_of(&io.data.to_vec());
                io.data = SegList::of(copy.freeze());
            }
            (Broken::Record, op) if op.is_record() => {
                let data = WriterRecord::default().to_data(&Pool::new(0));
                let completion = Completion::new(io.token, Ok(()));
                return self.ready.push(Completion { data, ..completion });
            }
            (Broken::WrongBlock, Op::Read) if io.offset > 0 => io.offset -= 512,
            _ => {}
        }
        self.inner.submit(io);
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        if self.broken == Broken::IdlePolls && self.inner.outstanding() == 0 {
            return;
        }
        let start = done.len();
        done.append(&mut self.ready);
        self.inner.poll(done);
        let told = &mut done[start..];
        match self.broken {
            Broken::LossFirst => told.reverse(),
            Broken::LateFlush => {
                // Told by a later poll.
                let is_flush = |one: &Completion| matches!(one.result, Err(e) if e.op == Op::Flush);
                let (late, now) = done.drain(start..).partition(is_flush);
                self.ready = late;
                done.extend::<Vec<_>>(now);
            }
            Broken::WrongRange => told.iter_mut().for_each(|one| {
                if let Err(error) = &mut one.result
                    && error.op == Op::Write
                {
                    error.offset = error.offset.wrapping_sub(512);
                }
            }),
            _ => {}
        }
    }

    fn outstanding(&self) -> usize {
        self.inner.outstanding() + self.ready.len()
    }

    fn copied_bytes(&self) -> u64 {
        self.inner.copied_bytes()
    }

    fn events(&self) -> u64 {
        match self.broken {
            Broken::Losses => 0,
            _ => self.inner.events(),
        }
    }

    fn poll_events(&mut self, events: &mut Vec<VolumeEvent>) {
        self.inner.poll_events(events);
    }

    fn is_at_rest(&self) -> bool {
        self.inner.is_at_rest()
    }

    fn is_timed(&self) -> bool {
        self.broken != Broken::Untimed && self.inner.is_timed()
    }

    fn turn(&mut self, now: Time) -> Time {
        match self.broken {
            Broken::Timeless => Time::NEVER,
            _ => self.inner.turn(now),
        }
    }

    fn refresh(&mut self) -> bool {
        self.inner.refresh()
    }
}

/// Over volumes of which the last is broken.
fn below(mut children: Vec<Child>, broken: Broken) -> Built {
    let inner = children.pop().expect("it takes one at least").volume;
    let planted: Box<dyn Volume> = Box::new(Planted { inner, broken, ready: Vec::new() });
    children.extend(Child::all(vec![planted]));
    (linear::MODULE.build)(children, &Options::default())
}

/// Broken as a whole.
fn above(children: Vec<Child>, broken: Broken) -> Built {
    let inner = (linear::MODULE.build)(children, &Options::default())?;
    Ok(Box::new(Planted { inner, broken, ready: Vec::new() }))
}

macro_rules! canary {
    ($name:ident: $broken:ident $place:ident, $expected:literal) => {
        #[test]
        #[should_panic(expected = $expected)]
        fn $name() {
            let build = |children, _: &Options| $place(children, Broken::$broken);
            obey(&Module { build, ..linear::MODULE });
        }
    };
}

canary!(a_dropped_flush_is_found: DropsFlush below, "a flush goes to every volume that was written");
canary!(a_failed_flush_told_late_is_found: LateFlush above, "told at once");
canary!(a_loss_told_first_is_found: LossFirst above, "told at once, before");
canary!(forgotten_losses_are_found: Losses below, "losses of all");
canary!(a_copy_is_found: Copies above, "payload was copied");
canary!(a_volume_not_polled_is_found: IdlePolls above, "polled every time");
canary!(an_error_of_another_range_is_found: WrongRange above, "not in its bytes");
canary!(a_feature_that_one_lacks_is_found: Features above, "features that all have");
canary!(a_forgotten_size_is_found: NoSize above, "it has a size");
canary!(an_identity_of_its_own_is_found: Identity below, "not by who is below");
canary!(a_record_is_found: Record above, "have no record");
canary!(a_volume_without_time_is_found: Timeless below, "the earliest of all");
canary!(a_volume_that_hides_that_it_is_timed_is_found: Untimed above, "since one of them is");
canary!(a_read_of_another_block_is_found: WrongBlock above, "block");

#[test]
#[should_panic(expected = "Read became 1 for a volume where 0 are stated")]
fn more_below_than_stated_is_found() {
    obey(&Module { ios_each_max: 0, ..linear::MODULE });
}
