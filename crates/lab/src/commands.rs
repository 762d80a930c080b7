//! What each subcommand does.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::args::{EchoSide, LabArgs, LabCommand, ListArgs, ReportArgs, RunArgs};
use crate::busy;
use crate::contender::Abilities;
use crate::echo;
use crate::error::{LabError, Outcome};
use crate::experiments::{Bar, Experiment, ExperimentSuite};
use crate::fair;
use crate::flood;
use crate::identity::Provenance;
use crate::plan::{Form, Group, estimate};
use crate::remarks::Remarks;
use crate::report::{self, ReportHead};
use crate::runner::{self, Choice};
use crate::stand::Laboratory;
use crate::store::SampleStore;
use crate::stream;
use crate::view::View;

/// Does what the command line says. `executable` is the thinwire that is measured; `interrupted`
/// turns true once a signal asked to end, and is asked several times a second. Blocks until all is
/// measured; everything that it made is removed when it returns.
pub fn run(args: &LabArgs, executable: &Path, interrupted: &dyn Fn() -> bool) -> Outcome {
    match &args.command {
        LabCommand::Echo(args) => match &args.side {
            EchoSide::Server(args) => echo::server(args),
            EchoSide::Client(args) => echo::client(args),
        },
        LabCommand::List(args) => list(args),
        LabCommand::Busy(args) => {
            // It measures no disk, and so needs no room for one.
            let (echo, disks) = (crate::own_executable()?, std::env::temp_dir());
            let lab = Laboratory::new(executable, &echo, &disks, interrupted)?;
            say(&busy::run(&lab, args)?.text())
        }
        LabCommand::Fair(args) => {
            let echo = crate::own_executable()?;
            let lab = Laboratory::new(executable, &echo, &args.out, interrupted)?;
            fair::run(&lab, args)?.iter().try_for_each(|table| say(&table.text()))
        }
        LabCommand::Forge(args) => flood::forge(args),
        LabCommand::Flood(args) => {
            // It measures no disk, and so needs no room for one.
            let (own, disks) = (crate::own_executable()?, std::env::temp_dir());
            let lab = Laboratory::new(executable, &own, &disks, interrupted)?;
            say(&flood::run(&lab, args)?.text())
        }
        LabCommand::Stream(args) => stream::run(args),
        LabCommand::Report(args) => report(ExperimentSuite::Tyche, args, executable, interrupted),
        LabCommand::Orchestra(args) => {
            report(ExperimentSuite::Orchestra, args, executable, interrupted)
        }
        command => {
            let (experiment, args) = command.experiment().expect("all others are experiments");
            one(experiment, args, executable, interrupted)
        }
    }
}

fn form(quick: bool) -> Form {
    if quick { Form::Quick } else { Form::Full }
}

/// Measures what is missing of a plan, and returns the store with the head of its files.
fn measured(
    args: &RunArgs,
    choice: &Choice,
    groups: &[Group],
    executable: &Path,
    interrupted: &dyn Fn() -> bool,
) -> Outcome<(SampleStore, ReportHead)> {
    let form = choice.form;
    let chosen = choice.of(groups);
    if chosen.is_empty() {
        return Err(nothing_chosen(choice, groups));
    }
    let deadline = args.minutes.map(|n| Instant::now() + Duration::from_secs_f64(n * 60.0));
    let echo = crate::own_executable()?;
    let lab = match args.draw {
        true => None,
        false => Some(Laboratory::new(executable, &echo, &args.out, interrupted)?),
    };
    let identity = match &lab {
        Some(lab) => Provenance::of(Path::new(lab.executable()), Path::new(lab.echo()))?,
        None => Provenance::of(executable, &echo)?,
    };
    let mut store = SampleStore::open(&args.out, &identity.build, &identity.place())?;
    if store.foreign() > 0 && store.span().is_none() {
        eprintln!(
            "lab: {} holds {} samples of other builds, machines or peers; they are kept and not used",
            args.out.display(),
            store.foreign()
        );
    }
    if let Some(lab) = &lab {
        let abilities = Abilities::ask(lab)?;
        runner::measure(lab, &abilities, &mut store, &chosen, form, deadline)?;
    }
    let head = ReportHead::new(identity, args.label.as_deref().unwrap_or_default(), form, &store);
    Ok((store, head))
}

/// Why a choice leaves nothing of a plan.
fn nothing_chosen(choice: &Choice, groups: &[Group]) -> LabError {
    let only = format!("--only {}", choice.only.join(" --only "));
    let full = Choice { form: Form::Full, ..choice.clone() };
    LabError::Usage(match full.of(groups).is_empty() {
        false if choice.only.is_empty() => {
            "none of its points is in the quick form; leave --quick out".to_owned()
        }
        true => format!("{only}: no point's name holds that; `thinwire-lab list` shows them"),
        false => format!("{only}: such points are not in the quick form; leave --quick out"),
    })
}

fn choice(args: &RunArgs) -> Choice {
    let only = args.only.clone();
    Choice { form: form(args.quick), only, rounds: args.rounds, seconds: args.seconds }
}

fn one(
    experiment: Experiment,
    args: &RunArgs,
    executable: &Path,
    interrupted: &dyn Fn() -> bool,
) -> Outcome {
    let (plan, choice) = (experiment.plan(), choice(args));
    let (store, head) = measured(args, &choice, &plan, executable, interrupted)?;
    let view = View::new(&store, &choice.told(&plan), choice.form);
    let (section, json) = report::write_experiment(&args.out, &head, experiment, &view)?;
    if args.json {
        return say(&json);
    }
    for table in &section.tables {
        say(&table.text())?;
    }
    for why in &section.missing {
        say(&format!("not there: {why}"))?;
    }
    let drawn: Vec<String> = section
        .drawings
        .iter()
        .map(|(name, _)| format!("{}-{name}.svg", experiment.name()))
        .chain([format!("{}.json", experiment.name())])
        .collect();
    say(&format!("wrote {} in {}", drawn.join(", "), args.out.display()))
}

fn report(
    suite: ExperimentSuite,
    args: &ReportArgs,
    executable: &Path,
    interrupted: &dyn Fn() -> bool,
) -> Outcome {
    let remarks = args.remarks.as_deref().map_or(Ok(Remarks::default()), Remarks::read)?;
    let args = &args.run;
    let (plan, choice) = (suite.plan(), choice(args));
    let (store, head) = measured(args, &choice, &plan, executable, interrupted)?;
    let view = View::new(&store, &choice.told(&plan), choice.form);
    let (path, [met, missed, open]) =
        report::write_report(&args.out, &head, suite, &view, &remarks)?;
    if args.json {
        let bars: Vec<_> = suite.bars(&view).into_iter().map(Bar::judged).collect();
        let value = serde_json::json!({
            "schema": head.schema, "report": path, "head": head, "met": met, "missed": missed,
            "open": open, "bars": bars,
        });
        return say(&value.to_string());
    }
    for bar in suite.bars(&view) {
        let sign = if bar.at_least { "at least" } else { "at most" };
        let found = bar.shown();
        say(&format!("{:>24}  {}: {sign} {}, {found}", bar.verdict(), bar.text, bar.wanted))?;
    }
    say(&format!("bars: {met} met, {missed} missed, {open} not or only partly measured"))?;
    say(&format!("wrote {}", path.display()))
}

fn list(args: &ListArgs) -> Outcome {
    let form = form(args.quick);
    let choice = Choice { form, only: args.only.clone(), rounds: None, seconds: None };
    let mut points = Vec::new();
    for experiment in Experiment::ALL {
        let groups = choice.of(&experiment.plan());
        if !args.json && !groups.is_empty() {
            let seconds = estimate(&groups, form);
            say(&format!("{}: about {seconds:.0} s", experiment.name()))?;
        }
        for (point, entry) in groups.iter().flat_map(Group::points) {
            let rounds = entry.rounds(form);
            match args.json {
                true => points.push(serde_json::json!({
                    "experiment": experiment.name(), "point": point.to_string(),
                    "rounds": rounds, "seconds": entry.seconds,
                })),
                false => say(&format!("  {point}  {rounds} rounds of {} s", entry.seconds))?,
            }
        }
    }
    let of = |suite: ExperimentSuite| estimate(&choice.of(&suite.plan()), form);
    let [report, orchestra] = [ExperimentSuite::Tyche, ExperimentSuite::Orchestra].map(of);
    match args.json {
        true => {
            let value = serde_json::json!({
                "schema": 1, "seconds": report, "orchestra_seconds": orchestra, "points": points,
            });
            say(&value.to_string())
        }
        false => say(&format!(
            "what is asked for twice once: `report` about {:.0} min, `orchestra` about {:.0} min",
            report / 60.0,
            orchestra / 60.0
        )),
    }
}

/// Prints on stdout. A reader that goes away is no error.
fn say(text: &str) -> Outcome {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{text}") {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(LabError::Failed(format!("cannot write to stdout: {e}")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::point::{Load, Pattern, Subject, Wire};

    #[test]
    fn nothing_is_told_from_nothing_in_the_quick_form() {
        let load = Load::new(Pattern::RandRead, 4096, 1);
        let groups = [Group::new(Wire::FREE, load).with(Subject::Tgt, 1.0, 3, 0)];
        let said = |word: &str| {
            let only = vec![word.to_owned()];
            let choice = Choice { form: Form::Quick, only, rounds: None, seconds: None };
            assert!(choice.of(&groups).is_empty());
            nothing_chosen(&choice, &groups).to_string()
        };
        assert!(said("tgt").contains("leave --quick out"));
        assert!(said("nbdkit").contains("no point's name holds that"));
        let all = Choice { form: Form::Quick, only: Vec::new(), rounds: None, seconds: None };
        let said = nothing_chosen(&all, &groups).to_string();
        assert!(said.contains("leave --quick out") && !said.contains("--only"), "{said}");
    }
}
