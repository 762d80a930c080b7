//! `thinwire discover`.

use serde::Serialize;

use crate::cli::DiscoverArgs;
use crate::error::{Failure, Outcome};
use crate::keys::{KeyFile, Security};
use crate::output;
use crate::remote;
use crate::rundir::SCHEMA;

/// `discover --json`.
#[derive(Serialize)]
struct Json {
    schema: u32,
    targets: Vec<JsonTarget>,
}

#[derive(Serialize)]
struct JsonTarget {
    name: String,
    address: String,
    exports: Vec<String>,
    /// With `--key`: whether it has that key, too; null without.
    has_key: Option<bool>,
}

/// Asks, prints who answered; fails if nobody did.
pub fn run(args: &DiscoverArgs) -> Outcome {
    let security = Security {
        key: args.key.as_deref().map(KeyFile::read).transpose()?,
        insecure: args.key.is_none(),
        // Questions and answers are sealed, whatever the sessions of a target are.
        ..Security::default()
    };
    let mut found = remote::discover(&args.link, args.name.as_deref(), args.timeout, &security)?;
    found.sort_by(|a, b| (&a.name, &a.address).cmp(&(&b.name, &b.address)));
    let nobody = found.is_empty();
    if args.json {
        let target = |t: remote::ListedTarget| JsonTarget {
            name: t.name,
            address: t.address,
            exports: t.exports,
            has_key: args.key.is_some().then_some(t.is_proved),
        };
        output::say_json(&Json {
            schema: SCHEMA,
            targets: found.into_iter().map(target).collect(),
        })?;
    } else if !nobody {
        let exports = |t: &remote::ListedTarget| match (t.is_proved, t.exports.is_empty()) {
            (false, _) => "(does not have this key)".to_owned(),
            (true, true) if args.key.is_none() => "(told only with --key)".to_owned(),
            (true, true) => "(none for this key)".to_owned(),
            (true, false) => t.exports.join(" "),
        };
        let row = |t: &remote::ListedTarget| {
            let cells = [&t.name, &t.address, &exports(t)];
            cells.map(|cell| output::printable(cell)).to_vec()
        };
        let rows: Vec<_> = found.iter().map(row).collect();
        output::say(&output::table(&["NODE", "ADDRESS", "EXPORTS"], &rows))?;
    }
    if !nobody {
        return Ok(());
    }
    let links: Vec<_> = args.link.iter().map(ToString::to_string).collect();
    let who =
        args.name.as_ref().map_or("no target".to_owned(), |name| format!("no target `{name}`"));
    Err(Failure::failed(format!(
        "{who} answered on {} within {} s; is it running, on the same network, and the link up?",
        links.join(", "),
        args.timeout.as_secs_f64()
    )))
}
