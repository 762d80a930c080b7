//! What parts make a whole, and each reason why others do not.

use super::*;
use crate::meta::FoundLabel;

fn content(nth: u8) -> Identity {
    Identity { identity: [nth + 1; 16], incarnation: nth.into() }
}

/// Labels of `count` parts of 3 MiB and a bit each.
fn labels(name: &str, whole: u8, count: u8) -> Vec<Label> {
    let part = |nth: u8| {
        let uuid = [whole.wrapping_mul(16) + nth; 16];
        NewPart { uuid, content: content(nth), bytes: (3 << 20) + 5000 }
    };
    let parts: Vec<_> = (1..=count).map(part).collect();
    let module = Module::find("stripe").unwrap();
    let mut options = Options::default();
    options.set(module.option("chunk").unwrap(), 8192);
    let bytes = parts.iter().map(|part| part.data_bytes(module)).sum();
    let whole = NewWhole { name, uuid: [whole; 16], module, options: &options, bytes };
    label_parts(&whole, &parts).unwrap()
}

fn seen(label: &Label) -> SeenPart {
    let found = FoundLabel { label: label.clone(), passed_over: None };
    SeenPart { found: Ok(Finding::Label(Box::new(found))), content: label.content }
}

fn blank() -> SeenPart {
    SeenPart { found: Ok(Finding::Blank), content: content(9) }
}

#[test]
fn parts_are_put_in_order_whatever_their_places_are_called() {
    let labels = labels("home", 1, 3);
    let parts: Vec<_> = [2, 0, 1].map(|nth: usize| seen(&labels[nth])).to_vec();
    let whole = assemble(&parts).unwrap();
    assert_eq!(whole.parts.iter().map(|part| part.place).collect::<Vec<_>>(), [1, 2, 0]);
    let part = whole.parts[0];
    assert_eq!((part.data_start, part.data_bytes), (1 << 20, (2 << 20) + 4096));
    assert_eq!(
        (whole.name.as_str(), whole.uuid, whole.bytes),
        ("home", [1; 16], 3 * part.data_bytes)
    );
    assert_eq!(whole.options.iter().collect::<Vec<_>>(), [("chunk", 8192)]);
}

#[test]
fn what_makes_no_whole_is_named_with_its_reason() {
    let (home, other) = (labels("home", 1, 3), labels("other", 2, 2));
    let whole = |nth: usize| seen(&home[nth]);
    let changed = |nth: usize, change: &dyn Fn(&mut Label)| {
        let mut label = home[nth].clone();
        change(&mut label);
        seen(&label)
    };
    let moved = SeenPart { content: content(7), ..whole(2) };
    let cannot = SeenPart { found: Err(LabelError::Exhausted), ..whole(2) };
    for (parts, says) in [
        (vec![], "no part to look at"),
        (vec![blank()], "<0> has no label"),
        (vec![whole(0), blank(), whole(2)], "<1> has no label, while <0> is a part of \"home\""),
        (vec![whole(0), whole(1), cannot], "<2> has had the last generation"),
        (vec![whole(0), seen(&other[1])], "<0> is a part of \"home\", and <1> of \"other\""),
        (vec![whole(0), whole(1), whole(0)], "<0> and <2> both say that they are part 11111111"),
        (vec![whole(1), whole(0), moved], "<2> has the label of a part, and is another volume"),
        (vec![whole(0), whole(2)], "\"home\" has 3 parts, and part 1 (counted from 0)"),
        (vec![whole(1)], "and parts 0, 2 (counted"),
        (
            vec![whole(0), changed(1, &|label| label.opening = [1; 16])],
            "<0> and <1> are parts of one volume, and differ in the last opening",
        ),
        (vec![whole(0), changed(1, &|label| label.whole_bytes -= 512)], "differ in the size"),
        (vec![whole(0), changed(1, &|label| label.parts[2].bytes -= 512)], "differ in the sizes"),
        (vec![whole(0), changed(1, &|label| label.name = "homes".into())], "differ in the name"),
        (
            vec![whole(0), changed(1, &|label| label.module = Module::find("linear").unwrap())],
            "differ in the module",
        ),
        (
            vec![whole(0), changed(1, &|label| label.options = Options::default())],
            "differ in the options",
        ),
    ] {
        let error = assemble(&parts).unwrap_err();
        let text = error.describe(&|place| format!("<{place}>"));
        assert!(text.contains(says), "{text}, not {says}");
    }
}

/// Rule 17, where nothing else is wrong: neither is used, whichever is looked at first.
#[test]
fn of_twins_neither_is_used() {
    twins(AssemblyCanary::None);
}

#[test]
#[should_panic(expected = "one of two twins is used")]
fn a_twin_that_is_used_is_found() {
    twins(AssemblyCanary::TakesFirstTwin);
}

fn twins(canary: AssemblyCanary) {
    let home = labels("home", 1, 3);
    for order in [[0, 1, 2, 1], [1, 0, 1, 2], [2, 0, 1, 0]] {
        let parts: Vec<_> = order.iter().map(|&nth: &usize| seen(&home[nth])).collect();
        let error = assemble_with(&parts, canary).expect_err("one of two twins is used");
        let first = order.iter().position(|nth| order.iter().filter(|n| *n == nth).count() > 1);
        let last = order.iter().rposition(|nth| Some(nth) == first.map(|at| &order[at]));
        let (Some(first), Some(last)) = (first, last) else { panic!("there are two") };
        let uuid = home[order[first]].part().uuid;
        assert_eq!(error, AssemblyError::Twins { places: [first, last], uuid });
    }
}

#[test]
fn what_cannot_be_labelled_is_refused() {
    let module = Module::find("linear").unwrap();
    let part = NewPart { uuid: [1; 16], content: content(0), bytes: 2 << 20 };
    let whole =
        NewWhole { name: "home", uuid: [9; 16], module, options: &Options::default(), bytes: 512 };
    assert!(label_parts(&whole, &[part]).is_ok());
    for (whole, parts) in [
        (whole, vec![]),
        (whole, vec![NewPart { bytes: 1 << 20, ..part }]),
        (whole, vec![part, part]),
        (whole, vec![NewPart { uuid: [0; 16], ..part }]),
        (NewWhole { name: "", ..whole }, vec![part]),
        (NewWhole { bytes: 2 << 20, ..whole }, vec![part]),
    ] {
        label_parts(&whole, &parts).unwrap_err();
    }
}
