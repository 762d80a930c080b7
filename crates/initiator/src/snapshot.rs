//! Tables of states and events, as they stand in the documentation of each part.

/// A part in a state, made.
pub(crate) type Make<T> = (&'static str, fn() -> T);

/// An event, and what it answers (nothing: an empty text).
pub(crate) type Event<T> = (&'static str, fn(&mut T) -> String);

/// Has each event meet each state, and compares what becomes of it with the recorded table: a cell is
/// the state afterwards (a point if it stays as it is), and the answer.
#[track_caller]
pub(crate) fn check<T>(
    recorded: &str,
    states: &[Make<T>],
    events: &[Event<T>],
    state_of: fn(&T) -> &'static str,
) {
    let names: Vec<_> = states.iter().map(|(name, _)| format!(" {name} |")).collect();
    let mut table = format!("| |{}\n|---|{}\n", names.concat(), "---|".repeat(states.len()));
    for (event, happen) in events {
        table += &format!("| {event} |");
        for (name, make) in states {
            let mut part = make();
            assert_eq!(state_of(&part), *name, "as it is made");
            let answer = happen(&mut part);
            let after = state_of(&part);
            let after = if after == *name { "·" } else { after };
            let comma = if answer.is_empty() { "" } else { ": " };
            table += &format!(" {after}{comma}{answer} |");
        }
        table.push('\n');
    }
    assert!(table == recorded, "it is not as documented. What it does:\n{table}");
}

/// The names of variants, without what is in them.
pub(crate) fn variant(value: &impl std::fmt::Debug) -> String {
    let text = format!("{value:?}");
    text.split([' ', '(', '{']).next().unwrap_or_default().to_owned()
}
