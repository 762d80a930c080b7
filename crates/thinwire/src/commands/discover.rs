//! `thinwire discover`.

use serde::Serialize;

use crate::cli::DiscoverArgs;
use crate::error::{Failure, Outcome};
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
}

/// Asks, prints who answered; fails if nobody did.
pub fn run(args: &DiscoverArgs) -> Outcome {
    let mut found = remote::discover(&args.link, args.name.as_deref(), args.timeout)?;
    found.sort_by(|a, b| (&a.name, &a.address).cmp(&(&b.name, &b.address)));
    let nobody = found.is_empty();
    if args.json {
        let target = |t: remote::ListedTarget| JsonTarget {
            name: t.name,
            address: t.address,
            exports: t.exports,
        };
        output::say_json(&Json {
            schema: SCHEMA,
            targets: found.into_iter().map(target).collect(),
        })?;
    } else if !nobody {
        let row =
            |t: &remote::ListedTarget| vec![t.name.clone(), t.address.clone(), t.exports.join(" ")];
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
