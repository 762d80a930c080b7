//! What the shards of a target do to pools, for whoever has asked on the control socket.

use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Duration;

use serde::Serialize;
use thinwire_runtime::inquiry::Inquiry;

use super::View;
use crate::control::{ControlServer, PoolProgress, Response, TargetState};
use crate::export::ExportSpec;

/// How often is looked whether something has ended.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// What is under way, and who is told.
#[derive(Default)]
pub(super) struct Errands {
    last: u64,
    under_way: Vec<(u64, Receiver<String>)>,
}

pub(super) fn refused(why: String) -> PoolProgress {
    PoolProgress::Ended(Response::Refused { why })
}

/// The shard of the first export that is like this, if there is one; or why none can be asked.
pub(super) fn place_of(
    view: &View<'_>,
    is_like: impl Fn(&ExportSpec) -> bool,
) -> Result<Option<u8>, &'static str> {
    match view.state {
        TargetState::Serving => {}
        TargetState::Starting => {
            return Err("it is still starting: try again soon");
        }
        _ => return Err("it is ending"),
    }
    let export = view.config.exports.iter().find(|export| is_like(export));
    let place = |export: &ExportSpec| {
        view.places.iter().find(|(name, _)| *name == export.name).map(|&(_, shard)| shard)
    };
    Ok(export.and_then(place))
}

impl Errands {
    /// After how long is to be looked again.
    pub fn look(&self) -> Option<Duration> {
        (!self.under_way.is_empty()).then_some(LOOK_EVERY)
    }

    /// Has a shard begin with something.
    pub fn begin(&mut self, inquiry: &Inquiry, shard: u8, ask: &impl Serialize) -> PoolProgress {
        let words = match serde_json::to_string(ask) {
            Ok(words) => words,
            Err(e) => return refused(format!("cannot ask a shard: {e}")),
        };
        self.last += 1;
        self.under_way.push((self.last, inquiry.errand(shard, words)));
        PoolProgress::Started(self.last)
    }

    /// Tells what has ended to those who asked.
    pub fn finish(&mut self, control: &mut ControlServer) {
        self.under_way.retain(|(number, told)| {
            let response = match told.try_recv() {
                Err(TryRecvError::Empty) => return true,
                Ok(words) => serde_json::from_str(&words).unwrap_or_else(|e| {
                    let why = format!("its shard answers what cannot be understood: {e}");
                    Response::Refused { why }
                }),
                Err(TryRecvError::Disconnected) => {
                    let why = "the target has ended meanwhile: it was done, or it was not";
                    Response::Refused { why: why.into() }
                }
            };
            control.finish_change(*number, response);
            false
        });
    }
}
