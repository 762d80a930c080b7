//! Labels out of choices: right ones of each module that are then edited, most with a checksum that fits, and any bytes.

use thinwire_fuzz::{Choices, Reached, fuzz};

use super::*;

static LABELS: Reached = Reached::new();

fn edit(image: &mut LabelImage, choices: &mut Choices<'_>) {
    let fields = [
        MAGIC,
        CHECKSUM,
        VERSION,
        USED,
        INCOMPATIBLE,
        READ_ONLY_COMPATIBLE,
        COMPATIBLE,
        NAME,
        PART,
        WHOLE,
        ROLE,
        PARTS,
        OPTIONS,
        HAS_WRITER,
        WRITER_NAME_LENGTH,
        WRITER_NAME,
        DATA_START,
        DATA_BYTES,
        WHOLE_BYTES,
        super::super::MODULE,
        GENERATION,
        OPENING,
        OPENINGS,
        WRITER_LEAVES,
        RESERVED,
        WRITER_IDLE,
        STATE_LENGTH,
    ];
    match choices.below(5) {
        3 => image[choices.of(&fields).range(0)].fill(0),
        // A number as programs get them wrong.
        0 => {
            let field = choices.of(&fields);
            let number = choices.number().to_le_bytes();
            let len = field.len.min(number.len());
            put(image, 0, *field, &number[..len]);
        }
        1 => image[choices.below(LABEL_BYTES)] = choices.byte(),
        // Something of a row.
        2 => image[row(choices.below(6)) + choices.below(ROW_BYTES)] = choices.byte(),
        _ => {
            let (from, to) = (choices.below(LABEL_BYTES - 64), choices.below(LABEL_BYTES - 64));
            image.copy_within(from..from + choices.below(64), to);
        }
    }
}

fn play(choices: &mut Choices<'_>) {
    let mut label = sample(MODULES[choices.below(MODULES.len())].name, 1);
    if label.module.children.contains(&4) {
        let (module, options) = (label.module, label.options);
        label = Label { options, ..sample(module.name, 1 + choices.below(4) as u8) };
    }
    for option in label.module.options {
        if choices.flag() {
            label.options.set(option, *option.bounds.start());
        }
    }
    if choices.flag() {
        let record = WriterRecord::new(choices.long(), [3; 16], &choices.text(70));
        let mut leaf = |_| LeafGeneration { leaf: [9; 16], generation: choices.long() };
        let leaves: Vec<_> = (0..3).map(&mut leaf).collect();
        let leaves = choices.flag().then(|| leaves[..choices.below(4)].to_vec());
        label.writer = Some(KeptWriter { record, leaves });
    }
    label.state = vec![choices.byte(); choices.below(3) * 500];
    let mut image = *label.encode().expect("it is right");
    for _ in 0..choices.below(4) {
        edit(&mut image, choices);
    }
    if choices.below(8) != 0 {
        seal(&mut image);
    }
    match Label::decode(&image) {
        Ok(read) => {
            let again = *read.encode().expect("what was read can be written");
            if read.features == LabelFeatures::default() {
                assert_eq!(again, image, "there is one way to write it");
                LABELS.count("accepted");
            } else {
                let features = LabelFeatures::default();
                assert_eq!(Label::decode(&again), Ok(Label { features, ..read }));
                LABELS.count("with features");
            }
        }
        Err(fault) => {
            assert!(!fault.to_string().is_empty());
            LABELS.count(match fault {
                LabelFault::Zero => "zero",
                LabelFault::Foreign { .. } => "foreign",
                LabelFault::Checksum { .. } => "checksum",
                LabelFault::Version { .. } => "version",
                LabelFault::Features { .. } => "features",
                LabelFault::Module { .. } => "module",
                LabelFault::Malformed { field, .. } => field,
            });
        }
    }
}

#[test]
fn fuzz_labels() {
    fuzz!("labels", 30_000, 100, play);
    LABELS.expect(&[
        "accepted",
        "with features",
        "foreign",
        "checksum",
        "version",
        "features",
        "module",
        "generation",
        "parts",
        "length",
        "role",
        "name",
        "option",
        "part",
        "whole",
        "data bytes",
        "whole bytes",
        "data start",
        "has writer",
        "writer name length",
        "writer leaves",
        "state length",
        "openings",
        "reserved",
    ]);
}
