//! `thinwire attach`.

use serde::Serialize;

use crate::attachment::{self, Reporter, Wanted, background};
use crate::cli::AttachArgs;
use crate::error::Outcome;
use crate::open::require_security;
use crate::output;
use crate::rundir::SCHEMA;

/// `attach --json`.
#[derive(Serialize)]
struct Json<'a> {
    schema: u32,
    name: &'a str,
    path: &'a str,
}

/// Attaches in the background, or serves in the foreground until detached.
pub fn run(args: &AttachArgs) -> Outcome {
    let wanted = Wanted::new(args)?;
    require_security(&wanted.volume, &wanted.options.security)?;
    if args.foreground {
        attachment::run(&wanted, &mut Foreground { name: &wanted.name, json: args.json })
    } else if background::is_child() {
        background::run_child(&wanted)
    } else {
        let path = background::launch(&wanted)?;
        print(&wanted.name, &path, args.json)
    }
}

/// The attachment alone on stdout, so that scripts can use it.
fn print(name: &str, path: &str, json: bool) -> Outcome {
    match json {
        true => output::say_json(&Json { schema: SCHEMA, name, path }),
        false => output::say(path),
    }
}

struct Foreground<'a> {
    name: &'a str,
    json: bool,
}

impl Reporter for Foreground<'_> {
    fn note(&mut self, text: &str) {
        output::complain(text);
    }

    fn ready(&mut self, path: &str) -> Outcome {
        print(self.name, path, self.json)
    }
}
