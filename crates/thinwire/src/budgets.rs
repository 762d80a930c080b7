//! Budgets of volumes of kind `qos` that are open on a host: those of one number share one, and each that a file describes can be told other limits.

use std::cell::RefCell;

use serde::{Deserialize, Serialize};
use thinwire_modules::{
    Child, Module, ModuleError, ModuleOption, Options, Qos, QosBudget, QosLimits, Traced,
};
use thinwire_volume::Volume;

use crate::error::{Failure, Outcome};
use crate::io_log::LoggedTrace;
use crate::opened::TreePlace;
use crate::size::show_size;
use crate::uri::{VolumeSpec, set_option};

/// No limit, in words.
const NONE: &str = "none";

/// The budget of a volume, as it was described.
#[derive(Clone, Debug)]
pub struct NodeBudget {
    /// What it draws on.
    pub budget: QosBudget,
    /// Its number, if others may share it.
    pub share: Option<u64>,
    described: QosLimits,
}

/// One that others may share.
struct Shared {
    budget: NodeBudget,
    /// The first volume that draws on it, as users name it.
    name: String,
}

/// Those that are open on a host.
#[derive(Default)]
pub struct OpenBudgets(RefCell<Vec<Shared>>);

impl OpenBudgets {
    /// What a volume of this description draws on; none if it is of another kind, or has no limits and cannot be told any.
    ///
    /// # Errors
    /// It is to share the budget of others, with other limits.
    pub fn of(&self, spec: &VolumeSpec) -> Outcome<Option<NodeBudget>> {
        let VolumeSpec::Over { module, options, node, .. } = spec else { return Ok(None) };
        let Some((described, share)) = Qos::limits_of(module, options) else { return Ok(None) };
        if node.is_none() && share.is_none() && described.is_unlimited() {
            return Ok(None);
        }
        let new = || NodeBudget { budget: QosBudget::new(described), share, described };
        if share.is_none() {
            return Ok(Some(new()));
        }
        let shared = &mut *self.0.borrow_mut();
        shared.retain(|of| of.budget.budget.is_used());
        let found = shared.iter().find(|of| of.budget.share == share);
        match found {
            Some(of) if of.budget.described == described => Ok(Some(of.budget.clone())),
            Some(of) => Err(refuse(
                share.unwrap_or(0),
                (spec, &described),
                (&of.name, &of.budget.described),
            )),
            None => {
                let budget = new();
                shared.push(Shared { budget: budget.clone(), name: spec.to_string() });
                Ok(Some(budget))
            }
        }
    }
}

fn refuse(
    share: u64,
    (spec, own): (&VolumeSpec, &QosLimits),
    (other, theirs): (&str, &QosLimits),
) -> Failure {
    Failure::usage(format!(
        "{spec} and {other} have share = {share}, and other limits: {} and {}. Say the same of all of one share, or other numbers",
        LimitsStatus::of(own).line(),
        LimitsStatus::of(theirs).line()
    ))
}

/// The module over these, which draws on that budget if it is to; where it is in its tree, if it tells of that.
///
/// # Errors
/// It does not fit over them.
pub fn open_over(
    module: &Module,
    parts: Vec<Child>,
    options: &Options,
    budget: Option<&NodeBudget>,
    place: TreePlace,
) -> Result<Box<dyn Volume>, ModuleError> {
    match budget {
        Some(of) => Ok(Box::new(Qos::over(parts, &of.budget)?)),
        None if module.name == Traced::NAME => Ok(Box::new(LoggedTrace::new(parts, place)?)),
        None => module.open_over(parts, options),
    }
}

/// What holds of a volume of kind `qos`: `limits` in `volume status --json`. Null is no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitsStatus {
    /// I/Os in a second.
    pub iops: Option<u64>,
    /// Those that read.
    pub read_iops: Option<u64>,
    /// Those that write.
    pub write_iops: Option<u64>,
    /// Bytes in a second.
    pub bandwidth: Option<u64>,
    /// Those that are read.
    pub read_bandwidth: Option<u64>,
    /// Those that are written.
    pub write_bandwidth: Option<u64>,
    /// What is saved up at most, in ms of a limit.
    pub burst_ms: u64,
    /// The number by which others share all of these; null if none can.
    pub share: Option<u64>,
    /// How many volumes share them here, itself included.
    pub volumes: usize,
    /// I/Os that wait, of all of them.
    pub waiting: usize,
    /// They are others than described: until it is opened again.
    pub changed: bool,
}

impl LimitsStatus {
    fn of(limits: &QosLimits) -> Self {
        let some = |limit: u64| (limit > 0).then_some(limit);
        LimitsStatus {
            iops: some(limits.all.iops),
            read_iops: some(limits.reads.iops),
            write_iops: some(limits.writes.iops),
            bandwidth: some(limits.all.bandwidth),
            read_bandwidth: some(limits.reads.bandwidth),
            write_bandwidth: some(limits.writes.bandwidth),
            burst_ms: u64::try_from(limits.burst.as_millis()).unwrap_or(u64::MAX),
            ..LimitsStatus::default()
        }
    }

    /// Of a volume that draws on that.
    pub fn of_node(node: &NodeBudget) -> Self {
        let limits = node.budget.limits();
        LimitsStatus {
            share: node.share,
            volumes: node.budget.volumes(),
            waiting: node.budget.waiting(),
            changed: limits != node.described,
            ..LimitsStatus::of(&limits)
        }
    }

    /// The limits as they are described.
    pub fn line(&self) -> String {
        let ios = |limit: Option<u64>| limit.map(|limit| limit.to_string());
        let bytes = |limit: Option<u64>| limit.map(show_size);
        let all = [
            ("iops", ios(self.iops)),
            ("read_iops", ios(self.read_iops)),
            ("write_iops", ios(self.write_iops)),
            ("bandwidth", bytes(self.bandwidth)),
            ("read_bandwidth", bytes(self.read_bandwidth)),
            ("write_bandwidth", bytes(self.write_bandwidth)),
        ];
        let said = all.into_iter().filter_map(|(name, limit)| Some(format!("{name} {}", limit?)));
        let said: Vec<_> = said.collect();
        match said.is_empty() {
            true => "no limit".into(),
            false => said.join(", "),
        }
    }

    /// For people, with who else draws on them.
    pub fn describe(&self, said: &mut Vec<String>) {
        said.push(self.line());
        if let Some(share) = self.share {
            said.push(format!("share {share} of {}", self.volumes));
        }
        if self.changed {
            said.push("until it is opened again".into());
        }
    }
}

/// One limit that is to hold: its name, and none for no limit (of `burst_ms`: what it is unless it is said).
pub type NewLimit = (String, Option<u64>);

/// `NAME=VALUE` of the command line.
///
/// # Errors
/// What it is not: a sentence.
pub fn parse_limit(text: &str) -> Result<NewLimit, String> {
    let Some((name, value)) = text.split_once('=') else {
        return Err(
            "say NAME=VALUE, as iops=2000 or write_bandwidth=64M; NAME=none is no limit".into()
        );
    };
    let option = option(name)?;
    if value == NONE {
        return Ok((name.to_owned(), None));
    }
    let mut options = Options::default();
    set_option(&mut options, option, value)?;
    Ok((name.to_owned(), options.get(option)))
}

fn option(name: &str) -> Result<&'static ModuleOption, String> {
    let module = Module::find(Qos::NAME).expect("there is one");
    match module.option(name).map_err(|error| error.to_string())? {
        option if Qos::is_limit(option) => Ok(option),
        option => Err(format!("{} holds as long as it is open", option.name)),
    }
}

/// Has these hold of a volume, and of all that share its budget, from now on; all or none of them.
///
/// # Errors
/// One of them cannot be: a sentence.
pub fn change(node: &NodeBudget, new: &[NewLimit]) -> Result<(), String> {
    let mut limits = node.budget.limits();
    for (name, value) in new {
        let option = option(name)?;
        if let Some(value) = value {
            option.check(*value).map_err(|why| format!("{name} {why}"))?;
        }
        limits.set(option, *value);
    }
    node.budget.set_limits(limits);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(text: &str) -> VolumeSpec {
        text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
    }

    fn of(open: &OpenBudgets, text: &str) -> Option<NodeBudget> {
        open.of(&spec(text)).unwrap_or_else(|e| panic!("{text}: {e}"))
    }

    #[test]
    fn those_of_one_number_share_a_budget_of_one_kind() {
        let open = OpenBudgets::default();
        assert!(of(&open, "linear:[memory:1M]").is_none());
        assert!(of(&open, "qos:[memory:1M]").is_none(), "nothing is in between");
        let [one, two] = [(); 2].map(|()| of(&open, "qos:[memory:1M]?iops=7").unwrap());
        assert!(one.budget != two.budget);
        let one = of(&open, "qos:[memory:1M]?bandwidth=1M&share=3").unwrap();
        let two = of(&open, "qos:[memory:2M]?bandwidth=1M&share=3").unwrap();
        let other = of(&open, "qos:[memory:1M]?bandwidth=1M&share=4").unwrap();
        assert!(one.budget == two.budget && one.budget != other.budget);
        let why = open.of(&spec("qos:[memory:4M]?bandwidth=2M&share=3")).unwrap_err().to_string();
        for says in
            ["memory:1048576", "memory:4194304", "share = 3", "bandwidth 1 MiB", "bandwidth 2 MiB"]
        {
            assert!(why.contains(says), "{why}");
        }
        // What was changed while it is in use is no other description.
        change(&one, &[("iops".into(), Some(9))]).unwrap();
        let three = of(&open, "qos:[memory:8M]?bandwidth=1M&share=3").unwrap();
        assert!(LimitsStatus::of_node(&three).changed);
        // Nobody has it any more.
        drop((one, two, three));
        assert!(of(&open, "qos:[memory:1M]?bandwidth=2M&share=3").is_some());
    }

    #[test]
    fn limits_are_told_and_refused_as_when_it_is_opened() {
        let node = of(&OpenBudgets::default(), "qos:[memory:1M]?iops=7").unwrap();
        let tell = |text: &str| change(&node, &[parse_limit(text)?]);
        assert_eq!(LimitsStatus::of_node(&node).line(), "iops 7");
        assert!(!LimitsStatus::of_node(&node).changed);
        assert_eq!(tell("write_bandwidth=64M"), Ok(()));
        assert_eq!(tell("iops=none"), Ok(()));
        let now = LimitsStatus::of_node(&node);
        assert_eq!((now.line().as_str(), now.changed), ("write_bandwidth 64 MiB", true));
        for bad in [
            "iops=0",
            "bandwidth=0",
            "bandwidth=100",
            "iops",
            "iops=fast",
            "chunk=4K",
            "share=2",
            "burst_ms=0",
        ] {
            assert!(tell(bad).is_err(), "{bad}");
        }
        // All or none.
        let both = [("iops".to_owned(), Some(5)), ("bandwidth".to_owned(), Some(1))];
        assert!(change(&node, &both).unwrap_err().contains("512"));
        assert_eq!(LimitsStatus::of_node(&node), now);
        assert_eq!(tell("burst_ms=5"), Ok(()));
        assert_eq!(LimitsStatus::of_node(&node).burst_ms, 5);
        assert_eq!(tell("burst_ms=none"), Ok(()));
        assert_eq!(LimitsStatus::of_node(&node).burst_ms, 100);
    }
}
