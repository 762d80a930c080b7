//! `thinwire target`.

use serde::Serialize;

use crate::cli::TargetArgs;
use crate::config::TargetSettings;
use crate::error::{Failure, Outcome};
use crate::open::require_insecure;
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
    require_insecure(config.insecure, "serving")?;
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
    serve::serve(&config, &signals, &mut || {
        announce();
        match args.json {
            true => output::say_json(&Ready { schema: SCHEMA, ready: &config.node }),
            false => output::say(&format!("ready {}", config.node)),
        }
    })
}

fn check(config: &TargetSettings, json: bool) -> Outcome {
    let mut problems = config.check_volumes();
    if let Err(refusal) = require_insecure(config.insecure, "serving") {
        problems.push(refusal.message);
    }
    let exports: Vec<_> = config.exports.iter().map(|export| export.name.as_str()).collect();
    if json {
        let (node, ok) = (config.node.as_str(), problems.is_empty());
        output::say_json(&Checked { schema: SCHEMA, node, ok, exports, problems: &problems })?;
    } else if problems.is_empty() {
        output::say(&format!("ok: node {}, exports {}", config.node, exports.join(", ")))?;
    }
    match problems.is_empty() {
        true => Ok(()),
        false => Err(Failure::failed(problems.join("\nthinwire: "))),
    }
}

/// Tells systemd, if it asked, that the service is up (sd_notify: one datagram).
fn announce() {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let address = match path.as_encoded_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        _ => SocketAddr::from_pathname(&path),
    };
    let sent = address.and_then(|to| UnixDatagram::unbound()?.send_to_addr(b"READY=1", &to));
    if let Err(e) = sent {
        tracing::warn!("cannot notify {path:?}: {e}");
    }
}
