//! `thinwire volume snapshot`, `show` and `delete` of a volume over several pools: snapshots of all that it is made of, as one; done here while nobody uses the
//! volume, or by the attachment or target that does.

use serde::Serialize;

use super::options_of;
use super::pool::{Answered, GLANCE, ask_user};
use crate::cli::VolumeCommon;
use crate::control::{PoolProgress, Response};
use crate::cuts::CutStatus;
use crate::error::{Failure, Outcome};
use crate::guard::refuse_in_use;
use crate::last_resort::catch_signals;
use crate::open::{Ending, Wait, let_go, open_volume};
use crate::output;
use crate::pool::{PoolAsk, PoolDesk, PoolName, PoolRequest};
use crate::rundir::SCHEMA;
use crate::uri::VolumeSpec;

/// What a cut is one of, and its name there.
pub fn whole_of(cut: &VolumeSpec) -> Outcome<(VolumeSpec, String)> {
    let (VolumeSpec::Over { node: Some(node), .. }, Some(name)) = (cut, cut.cut()) else {
        return Err(Failure::usage(format!("{cut} is no snapshot of a volume over several pools")));
    };
    let base = &node.name[..node.name.len() - name.len() - 1];
    let whole = format!("{}#{base}", node.file.display()).parse();
    Ok((whole.map_err(|e| Failure::usage(format!("{e}")))?, name.to_owned()))
}

/// Does something to the snapshots of a volume, and says so.
pub fn act(whole: &VolumeSpec, request: &PoolRequest, common: &VolumeCommon) -> Outcome {
    let Some(wanted) = PoolName::of_cuts(whole) else {
        return Err(Failure::usage(format!(
            "{whole} cannot be cut as one: it needs `labels = true`, and each of its parts has to be a volume of a pool, FILE.toml#POOL@VOLUME, or an export of one, \
             also below volumes that have labels, too (`linear`, `stripe`, `slice`, `qos`, `crypt`, `integrity`, `mirror`); a `mirror` itself is cut as the only part of a \
             `linear` with labels"
        )));
    };
    let (said, cuts) = match ask_user((&wanted, "the volume"), request, common)? {
        Some(Answered::Cuts(said, cuts)) => (said, cuts),
        Some(Answered::Pool(..)) => return Err(Failure::failed(format!("{whole} is a pool"))),
        None => {
            refuse_in_use(whole, "changing it")?;
            act_here(whole, wanted, request, common)?
        }
    };
    match (common.json, request) {
        (true, _) => output::say_json(&JsonCuts { schema: SCHEMA, snapshots: &cuts }),
        (false, PoolRequest::Show { .. }) => show(&cuts),
        (false, _) => output::say(&said),
    }
}

/// `--json`.
#[derive(Serialize)]
struct JsonCuts<'a> {
    schema: u32,
    snapshots: &'a [CutStatus],
}

fn show(cuts: &[CutStatus]) -> Outcome {
    if cuts.is_empty() {
        return output::say("no snapshots");
    }
    let rows: Vec<_> = cuts.iter().map(|cut| vec![cut.name.clone()]).collect();
    output::say(&output::printable(&output::table(&["SNAPSHOT"], &rows)))
}

/// Opens the volume, and has it done.
fn act_here(
    whole: &VolumeSpec,
    wanted: PoolName,
    request: &PoolRequest,
    common: &VolumeCommon,
) -> Outcome<(String, Vec<CutStatus>)> {
    let (signals, last_words) = catch_signals(2, &[whole])?;
    let options = options_of(common, &signals)?;
    let mut open = open_volume(whole, &options, Some(&signals))
        .inspect_err(|failure| last_words.set(failure))?;
    open.watch(signals.fd())?;
    let mut desk = PoolDesk::default();
    let ask = PoolAsk { pool: wanted, request: request.clone() };
    let done = match desk.begin(&ask, &[], &open.cuts()) {
        PoolProgress::Ended(response) => Ok(response),
        PoolProgress::Started(_) => loop {
            if signals.take().is_some() {
                let why = "interrupted: it was done, or it was not; `thinwire volume show` says";
                break Err(Failure::failed(why));
            }
            open.turn(Wait::Until(std::time::Instant::now() + GLANCE))?;
            let mut ended = Vec::new();
            desk.finish(&mut ended);
            if let Some((_, response)) = ended.pop() {
                break Ok(response);
            }
        },
    };
    let let_go = let_go(&mut *open, Ending::Orderly);
    match done? {
        Response::Cuts { said, cuts } => let_go.map(|()| (said, cuts)),
        Response::Refused { why } => Err(Failure::failed(why)),
        other => Err(Failure::failed(format!("it says {other:?}"))),
    }
}
