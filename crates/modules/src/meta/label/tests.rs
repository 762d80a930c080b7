//! What a label says is what stands there, and what stands there is a label or a named fault.

mod fuzz;
mod golden;
mod refusals;

use proptest::prelude::*;
use thinwire_volume::{Identity, KeptWriter, LeafGeneration, WriterRecord};

use super::*;
use crate::MODULES;

const MIB: u64 = 1 << 20;

/// A label of that module: `parts` of them, each of 8 MiB, this one the last.
pub(in crate::meta) fn sample(module: &str, parts: u8) -> Label {
    let module = Module::find(module).unwrap();
    let part = |number| LabelPart { uuid: [0x10 + number; 16], bytes: 8 * MIB };
    Label {
        generation: 7,
        features: LabelFeatures::default(),
        module,
        options: Options::default(),
        whole: *b"UUID of a whole!",
        name: "home".into(),
        whole_bytes: 8 * MIB * u64::from(parts),
        parts: (0..parts).map(part).collect(),
        role: u16::from(parts) - 1,
        data_start: LABEL_AREA_BYTES,
        opening: [0xa5; 16],
        next_opening: [0; 16],
        cut: 0,
        cut_begun: 0,
        made_bytes: None,
        work: None,
        openings: 3,
        content: Identity { identity: [0xc0; 16], incarnation: 0x0102_0304_0506_0708 },
        writer: None,
        state: Vec::new(),
    }
}

/// With these bytes in a field of the head, and a checksum that fits.
pub(in crate::meta) fn with(image: &LabelImage, at: usize, bytes: &[u8]) -> LabelImage {
    let mut image = *image;
    image[at..at + bytes.len()].copy_from_slice(bytes);
    seal(&mut image);
    image
}

fn any_label() -> impl Strategy<Value = Label> {
    let names = "[a-zäß€ -]{1,16}";
    let module = (0..MODULES.len(), 1..=150_u16, any::<[u8; 8]>());
    let sizes = (1..1_u64 << 40, 1..=u64::MAX >> 12, 256..1_u64 << 40);
    let writer = prop::option::of((any::<u64>(), any::<[u8; 16]>(), "[a-zä]{0,32}"));
    let ids = (any::<[u8; 16]>(), any::<u64>(), any::<[u8; 16]>());
    let state = prop::collection::vec(any::<u8>(), 0..=LABEL_STATE_BYTES_MAX);
    let chosen = any::<(u16, u64)>();
    (names, module, sizes, writer, (ids, state), chosen).prop_map(
        |(
            name,
            (module, parts, seed),
            (size, whole, start),
            writer,
            (ids, mut state),
            (role, chosen),
        )| {
            let module = &MODULES[module];
            let count = parts
                .clamp(*module.children.start() as u16, (*module.children.end()).min(150) as u16);
            let part = |index: u16| {
                let mut uuid = [1; 16];
                uuid[..8].copy_from_slice(&seed);
                uuid[14..].copy_from_slice(&index.to_le_bytes());
                LabelPart { uuid, bytes: size * 512 }
            };
            let mut options = Options::default();
            for (index, option) in module.options.iter().enumerate() {
                let (least, most) = (*option.bounds.start(), *option.bounds.end());
                let value = (least + chosen % (most - least)) / option.multiple_of;
                let value = value * option.multiple_of;
                if chosen >> index & 1 == 1 && option.check(value).is_ok() {
                    options.set(option, value);
                }
            }
            let rows = usize::from(count) + options.iter().count();
            state.truncate(LABEL_BYTES - row(rows));
            let room = (LABEL_BYTES - row(rows) - state.len()) / ROW_BYTES;
            let leaf =
                |leaf: u16| LeafGeneration { leaf: [leaf as u8; 16], generation: chosen >> leaf };
            let leaves = (chosen % 7 != 0).then(|| (0..role % 64).map(leaf).take(room).collect());
            Label {
                generation: chosen.max(1),
                features: LabelFeatures::default(),
                module,
                options,
                whole: [2; 16],
                name,
                whole_bytes: (whole % (size * u64::from(count)) + 1) * 512,
                parts: (0..count).map(part).collect(),
                role: role % count,
                data_start: start * 4096,
                opening: ids.0,
                next_opening: [chosen as u8; 16],
                cut: chosen,
                cut_begun: ids.1,
                made_bytes: (size > 1 && chosen % 3 == 0)
                    .then_some((chosen % (size - 1) + 1) * 512),
                work: (chosen % 5 == 0).then(|| LabelWork {
                    pace: WorkPace { is_paused: whole % 2 == 0, percent: (whole % 100) as u8 + 1 },
                    scrubbed_to: (whole % 3 == 0).then_some(ids.1),
                }),
                openings: if ids.0 == [0; 16] { 0 } else { whole },
                content: Identity { identity: ids.2, incarnation: ids.1 },
                writer: writer.map(|(generation, holder, name)| KeptWriter {
                    record: WriterRecord::new(generation, holder, &name),
                    leaves,
                }),
                state,
            }
        },
    )
}

proptest! {
    #[test]
    fn what_is_written_is_read_as_it_was(label in any_label()) {
        let image = label.encode().unwrap();
        prop_assert_eq!(Label::decode(&image), Ok(label.clone()));
        prop_assert_eq!(label.part(), label.parts[usize::from(label.role)]);
        prop_assert_eq!(label.data_end(), label.data_start + label.part().bytes);
        prop_assert!(label.may_write());
    }
}

#[test]
fn a_label_of_which_any_bit_has_changed_is_none() {
    let mut image = sample("stripe", 3).encode().unwrap();
    for bit in 0..LABEL_BYTES * 8 {
        image[bit / 8] ^= 1 << (bit % 8);
        let fault = Label::decode(&image).unwrap_err();
        let is_magic = bit / 8 < MAGIC.len;
        assert_eq!(matches!(fault, LabelFault::Foreign { .. }), is_magic, "bit {bit}: {fault}");
        assert_eq!(matches!(fault, LabelFault::Checksum { .. }), !is_magic, "bit {bit}: {fault}");
        image[bit / 8] ^= 1 << (bit % 8);
    }
    assert!(Label::decode(&image).is_ok());
}

/// The largest that there is room for, and one more.
#[test]
fn a_label_is_as_full_as_it_can_be() {
    let mut label = sample("stripe", LABEL_ROWS_MAX as u8 - 1);
    label.options.set(label.module.option("chunk").unwrap(), 4096);
    let image = label.encode().unwrap();
    assert_eq!(Label::decode(&image), Ok(label.clone()));
    assert_ne!(image[LABEL_BYTES - 8..], [0; 8], "the last row is the option");
    label.parts.push(LabelPart { uuid: [1; 16], bytes: 512 });
    let fault = label.encode().unwrap_err().to_string();
    assert!(fault.contains("makes 155 rows with the options, and a label has 154"), "{fault}");
}

/// Whatever belongs to a feature that is not known is not looked at, and goes with the next label.
#[test]
fn unknown_features_do_what_their_kind_says() {
    let label = sample("linear", 2);
    let image = label.encode().unwrap();
    for (field, may_write) in [(COMPATIBLE, true), (READ_ONLY_COMPATIBLE, false)] {
        let newer = with(&with(&image, field.at + 1, &[4]), WORK.at, b"what it needs");
        let read = Label::decode(&newer).unwrap();
        assert_eq!(read.may_write(), may_write);
        let LabelFeatures { compatible, read_only_compatible, .. } = read.features;
        assert_eq!(compatible + read_only_compatible, 4 << 8);
        assert_eq!(read.encode().unwrap(), image, "what was written has none of it");
        assert_eq!(Label { features: LabelFeatures::default(), ..read }, label);
    }
    // One that is known stays, whatever stands beside it.
    let grown = Label { made_bytes: Some(4 * MIB), ..label };
    let image = grown.encode().unwrap();
    let newer = with(&image, READ_ONLY_COMPATIBLE.at, &[3]);
    let read = Label::decode(&newer).unwrap();
    assert_eq!((read.features.read_only_compatible, read.made_bytes), (2, Some(4 * MIB)));
    assert!(!read.may_write() && Label::decode(&image).unwrap().may_write());
    let work = LabelWork { scrubbed_to: Some(1 << 40), ..LabelWork::default() };
    let works = Label { work: Some(work), ..sample("mirror", 2) };
    let newer = with(&works.encode().unwrap(), COMPATIBLE.at, &[9]);
    let read = Label::decode(&newer).unwrap();
    assert_eq!((read.features.compatible, read.work), (8, Some(work)));
    let newer = with(&image, INCOMPATIBLE.at + 7, &[0x80]);
    assert_eq!(Label::decode(&newer), Err(LabelFault::Features { unknown: 1 << 63 }));
}

#[test]
fn every_module_and_option_has_a_name_that_fits() {
    let options = MODULES.iter().flat_map(|module| module.options);
    for name in MODULES.iter().map(|module| module.name).chain(options.map(|option| option.name)) {
        assert!(name.is_ascii() && (1..=16).contains(&name.len()), "{name}");
    }
    assert_eq!((super::MODULE.len, OPTION_NAME.len), (16, 16));
}
