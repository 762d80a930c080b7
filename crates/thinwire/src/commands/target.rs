//! `thinwire target`.

use serde::Serialize;

use crate::cli::TargetArgs;
use crate::config::TargetSettings;
use crate::error::{Failure, Outcome};
use crate::export::ExportSpec;
use crate::keys;
use crate::notify;
use crate::open::check_keys_of_parts;
use crate::output;
use crate::rundir::SCHEMA;
use crate::serve;
use crate::signals::Signals;

/// `target --check --json`.
#[derive(Serialize)]
struct Checked<'a> {
    schema: u32,
    node: &'a str,
    ok: bool,
    exports: Vec<&'a str>,
    /// What it may take of memory, at most.
    memory_bytes: u64,
    problems: &'a [String],
}

/// `target --json` when it serves.
#[derive(Serialize)]
struct Ready<'a> {
    schema: u32,
    ready: &'a str,
}

/// Checks the configuration, and serves it.
pub fn run(args: &TargetArgs) -> Outcome {
    let config = TargetSettings::assemble(args)?;
    config.unused.iter().for_each(|unused| tracing::warn!("{unused}"));
    if args.check {
        return check(&config, args.json);
    }
    require_keys(&config)?;
    if config.insecure {
        tracing::warn!(
            "serving without keys: whoever is on these networks can read and change the data"
        );
    }
    let problems = keys_of_parts(&config);
    if !problems.is_empty() {
        return Err(Failure::failed(problems.join("\nthinwire: ")));
    }
    config.refuse_shared()?;
    let is_spread = config.exports.iter().any(|export| export.spread);
    if !is_spread && config.shards as usize > config.exports.len() {
        tracing::warn!(
            "an export lives on one shard, so {} of the {} shards would have nothing to do and are \
             left out",
            config.shards as usize - config.exports.len(),
            config.shards
        );
    }
    // Before any other thread exists, so that all inherit it.
    let signals =
        Signals::catch().map_err(|e| Failure::failed(format!("cannot take over signals: {e}")))?;
    notify::prepare();
    let read = || TargetSettings::assemble(args);
    serve::serve(&config, &read, &signals, &mut || {
        notify::ready();
        match args.json {
            true => output::say_json(&Ready { schema: SCHEMA, ready: &config.node }),
            false => output::say(&format!("ready {}", config.node)),
        }
    })
}

fn require_keys(config: &TargetSettings) -> Outcome {
    keys::require(!config.keys.is_empty() || config.insecure, "serving")
}

/// A sentence for each export that this target could not reach all parts of.
fn keys_of_parts(config: &TargetSettings) -> Vec<String> {
    let wrong = |export: &ExportSpec| {
        let why = check_keys_of_parts(&export.volume, config.insecure).err()?;
        Some(format!("export `{}`: {why}", export.name))
    };
    config.exports.iter().filter_map(wrong).collect()
}

fn check(config: &TargetSettings, json: bool) -> Outcome {
    let mut problems = config.check_volumes();
    problems.extend(keys_of_parts(config));
    if let Err(refusal) = require_keys(config) {
        problems.push(refusal.message);
    }
    let exports: Vec<_> = config.exports.iter().map(|export| export.name.as_str()).collect();
    let memory = config.memory();
    if json {
        let (node, ok) = (config.node.as_str(), problems.is_empty());
        output::say_json(&Checked {
            schema: SCHEMA,
            node,
            ok,
            exports,
            memory_bytes: memory.all(),
            problems: &problems,
        })?;
    } else if problems.is_empty() {
        output::say(&format!("ok: node {}, exports {}", config.node, exports.join(", ")))?;
        output::say(&format!("memory: at most {memory}"))?;
    }
    match problems.is_empty() {
        true => Ok(()),
        false => Err(Failure::failed(problems.join("\nthinwire: "))),
    }
}
