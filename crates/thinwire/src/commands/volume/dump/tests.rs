//! What labels say is shown, and nothing of what they do not say.

use thinwire_modules::meta::{NewPart, NewWhole, label_parts};
use thinwire_modules::{Module, Options};
use thinwire_volume::{Identity, WorkPace};

use super::*;

fn label(kind: &str, parts: u8) -> Label {
    let (module, options) = (Module::find(kind).unwrap(), &Options::default());
    let part = |nth| NewPart { uuid: [nth; 16], content: Identity::default(), bytes: 64 << 20 };
    let parts: Vec<_> = (1..=parts).map(part).collect();
    let bytes = parts[0].data_bytes(module);
    let whole = NewWhole { name: "it", uuid: [9; 16], module, options, bytes };
    label_parts(&whole, &parts).unwrap().remove(0)
}

/// As a program gets it, and as people do.
fn shown(label: &Label, further: &Further) -> (serde_json::Value, String) {
    let seen = SeenPart { found: Ok(Finding::Blank), content: label.content };
    let part = JsonPart {
        volume: "file:/srv/a.img".into(),
        found: "label",
        why: None,
        label: Some(json_label(label, &seen, further)),
    };
    (serde_json::to_value(part.label.as_ref()).unwrap(), text_of(&part))
}

#[test]
fn cuts_growth_and_work_are_shown_where_there_are_any() {
    let plain = label("stripe", 2);
    let (json, text) = shown(&plain, &Further::default());
    for field in ["cut", "cut_begun", "made_bytes", "work", "sum_bitmap"] {
        assert_eq!(json.get(field), Some(&serde_json::Value::Null), "{field}");
    }
    for row in ["cut", "made with", "work", "bitmap"] {
        assert!(!text.contains(&format!("\n  {row} ")), "{row}: {text}");
    }
    let pace = WorkPace { is_paused: true, percent: 20 };
    let work = Some(LabelWork { pace, scrubbed_to: Some(4096) });
    let full = Label { cut: 0xab, cut_begun: 0xcd, made_bytes: Some(1 << 20), work, ..plain };
    let (json, text) = shown(&full, &Further::default());
    assert_eq!(
        (&json["cut"], &json["cut_begun"]),
        (&"00000000000000ab".into(), &"00000000000000cd".into())
    );
    assert_eq!(json["made_bytes"], 1 << 20);
    assert_eq!(
        json["work"],
        serde_json::json!({ "paused": true, "percent": 20, "scrubbed_to": 4096 })
    );
    for line in [
        "cut         00000000000000ab\n",
        "cut begun   00000000000000cd, which may be there in some parts only\n",
        "made with   1048576 bytes of data\n",
        "work        paused, at 20 % of what users get; a scrub goes on, which has read 4096 bytes\n",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let slow = JsonWork { paused: false, percent: 7, scrubbed_to: None };
    assert_eq!(slow.line(), "at 7 % of what users get");
}

#[test]
fn the_bitmap_of_a_part_with_sums_is_shown() {
    let sums = SeenSums { regions: 9, open: 3, bad_blocks: 1, torn_copies: 2 };
    let further = Further { sums: Some(sums), ..Further::default() };
    let (json, text) = shown(&label("integrity", 1), &further);
    let expected =
        serde_json::json!({ "regions": 9, "open": 3, "bad_blocks": 1, "torn_copies": 2 });
    assert_eq!(json["sum_bitmap"], expected);
    for words in
        ["bitmap      of 9 regions; open", "3 of 9 regions", "are torn: 2", "no copy of 1 of"]
    {
        assert!(text.contains(words), "{words}: {text}");
    }
    let clean = SeenSums { regions: 9, open: 0, bad_blocks: 0, torn_copies: 0 };
    assert_eq!(sum_bitmap_text(&JsonSums::from(clean)), "of 9 regions");
}
