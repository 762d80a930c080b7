//! Everything that needs the network: remote volumes, discovery, serving. The only file that
//! knows the protocol's runtime.

use std::time::Duration;

use crate::config::TargetConfig;
use crate::error::{Failure, Outcome};
use crate::linkspec::LinkSpec;
use crate::open::{OpenOptions, OpenVolume};
use crate::signals::Signals;
use crate::uri::RemoteSpec;

/// A target that answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its node name.
    pub name: String,
    /// Its address, as in a URI.
    pub address: String,
    /// Its exports' names.
    pub exports: Vec<String>,
}

/// Attaches an export. See [`crate::open::open_volume`] for the contract.
pub fn open(
    spec: &RemoteSpec,
    options: &OpenOptions,
    signals: Option<&Signals>,
) -> Outcome<Box<dyn OpenVolume>> {
    let _ = (options, signals);
    Err(Failure::failed(format!("{spec}: remote volumes are not part of this build yet")))
}

/// Asks all links for targets (of one name, or any) and gathers answers until `timeout`.
pub fn discover(links: &[LinkSpec], name: Option<&str>, timeout: Duration) -> Outcome<Vec<Found>> {
    let _ = (links, name, timeout);
    Err(Failure::failed("discovery is not part of this build yet"))
}

/// Serves until a signal comes. `ready` is called once, when the exports can be attached.
pub fn serve(
    config: &TargetConfig,
    signals: &Signals,
    ready: &mut dyn FnMut() -> Outcome,
) -> Outcome {
    let _ = (config, signals, ready);
    Err(Failure::failed("serving is not part of this build yet"))
}
