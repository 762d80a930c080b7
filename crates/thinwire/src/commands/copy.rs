//! `thinwire copy`.

use std::fs::OpenOptions;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::cli::{CopyArgs, WireArgs};
use crate::copy::{Copied, CopyPair, Watch, compare, copy};
use crate::error::{Failure, Outcome};
use crate::guard::{missing_folder, refuse_in_use};
use crate::host::Host;
use crate::last_resort::catch_signals;
use crate::open::{Ending, OnRecord, VolumeOptions, let_go, let_go_failed, open_on};
use crate::output;
use crate::rundir::SCHEMA;
use crate::signals::Signals;
use crate::uri::VolumeSpec;

/// `copy --json`.
#[derive(Serialize)]
struct Json {
    schema: u32,
    source: String,
    destination: String,
    bytes: u64,
    data_bytes: u64,
    seconds: f64,
    mib_per_s: f64,
    verified: bool,
}

/// Copies, compares if asked, prints how much and how fast. A destination file that this made is
/// removed again if the copy did not succeed.
pub fn run(args: &CopyArgs) -> Outcome {
    refuse_same(&args.source, &args.destination)?;
    refuse_in_use(&args.destination, "copying onto it")?;
    let (signals, last_words) = catch_signals(2, &[&args.source, &args.destination])?;
    let mut options = VolumeOptions::new(
        args.security.read()?,
        &WireArgs::default(),
        args.run_dir.run_dir.clone(),
    );
    options.read_only = true;
    options.hurry = signals.hurry();
    let host = Host::new()?;
    // Of one pool both may be volumes, and of one disk slices.
    host.commons().want(&args.source, &options);
    let written = VolumeOptions { read_only: false, take_over: args.take_over, ..options.clone() };
    host.commons().want(&args.destination, &written);
    let mut source = open_on(&host, &args.source, &options, Some(&signals))
        .map_err(|e| e.context(format_args!("source {}", args.source)))?;
    let bytes = source.volume().geometry().bytes;
    let opened = MadeFile::make(&args.destination, bytes).and_then(|made| {
        let destination = open_on(&host, &args.destination, &written, Some(&signals));
        let named = |e: Failure| e.context(format_args!("destination {}", args.destination));
        destination.map(|destination| (made, destination)).map_err(named)
    });
    let (made, mut destination) = match opened {
        Ok(opened) => opened,
        Err(failure) => {
            // It may be of a pool that was opened to be written.
            let_go_failed(&mut *source, false);
            return Err(failure);
        }
    };

    let start = Instant::now();
    let (source, destination) = (&mut *source, &mut *destination);
    let mut pair = CopyPair { source, destination, bytes, has_written: false };
    let mut stage = "half written";
    let done = all(&mut pair, made.is_some(), args.verify, bytes, &signals, &mut stage);
    let seconds = start.elapsed().as_secs_f64();
    let CopyPair { source, destination, has_written, .. } = pair;
    let done = match done {
        Ok(copied) => {
            let closed =
                [&mut *source, &mut *destination].map(|open| let_go(open, Ending::Orderly));
            closed.into_iter().collect::<Outcome>().map(|()| copied)
        }
        Err(failure) => {
            let_go_failed(source, false);
            let_go_failed(destination, has_written);
            Err(failure)
        }
    };
    let copied = match done {
        Ok(copied) => copied,
        Err(failure) => {
            let failure = match made {
                Some(made) => {
                    // Closed or not: no file that this made stays behind, though its disk may not be let go of.
                    drop(made);
                    removed(failure, &args.destination)
                }
                None => left(failure, &args.destination, stage, destination.on_record()),
            };
            last_words.set(&failure);
            return Err(failure);
        }
    };
    if let Some(made) = made {
        made.keep();
    }
    report(args, copied, seconds)
}

/// The failure, and what becomes of a destination that this has made.
fn removed(mut failure: Failure, destination: &VolumeSpec) -> Failure {
    failure.message += &format!(". {destination}, which this copy had made, is removed again");
    failure
}

/// The failure, and what it leaves on record of a destination that was there before.
fn left(
    mut failure: Failure,
    destination: &VolumeSpec,
    stage: &str,
    on_record: OnRecord,
) -> Failure {
    let again = match on_record {
        OnRecord::No => return failure,
        OnRecord::Known => "run the same copy again, or say --take-over where it is used next",
        // Without a run directory the same copy is a stranger, too.
        OnRecord::Stranger => "say --take-over where it is used next",
    };
    failure.message += &format!(". {destination} is {stage} and stays on record: {again}");
    failure
}

fn all(
    pair: &mut CopyPair<'_>,
    blank: bool,
    verify: bool,
    bytes: u64,
    signals: &Signals,
    stage: &mut &'static str,
) -> Outcome<Copied> {
    let bar = progress_bar("copying", bytes);
    let mut show = |done| bar.set_position(done);
    let copied = copy(pair, blank, &mut Watch::new(Some(signals), &mut show))?;
    bar.finish_and_clear();
    *stage = "written";
    if verify {
        *stage = "written but not verified";
        let bar = progress_bar("comparing", bytes);
        let mut show = |done| bar.set_position(done);
        compare(pair, &mut Watch::new(Some(signals), &mut show))?;
        bar.finish_and_clear();
    }
    Ok(copied)
}

fn report(args: &CopyArgs, copied: Copied, seconds: f64) -> Outcome {
    let mib_per_s = copied.bytes as f64 / f64::from(1 << 20) / seconds.max(1e-9);
    let verified = args.verify;
    if args.json {
        return output::say_json(&Json {
            schema: SCHEMA,
            source: args.source.to_string(),
            destination: args.destination.to_string(),
            bytes: copied.bytes,
            data_bytes: copied.data_bytes,
            seconds,
            mib_per_s,
            verified,
        });
    }
    let size = crate::size::show_size;
    output::say(&format!(
        "copied {} ({} of data) in {seconds:.1} s, {mib_per_s:.0} MiB/s{}",
        size(copied.bytes),
        size(copied.data_bytes),
        if verified { ", verified" } else { "" }
    ))
}

/// A bar on the terminal; nothing elsewhere.
fn progress_bar(what: &'static str, bytes: u64) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let template =
        "{msg} {wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}";
    let style = ProgressStyle::with_template(template).expect("valid template");
    ProgressBar::new(bytes).with_style(style).with_message(what)
}

/// Nothing can be copied onto itself, under whatever name.
fn refuse_same(source: &VolumeSpec, destination: &VolumeSpec) -> Outcome {
    match source.shared_with(destination) {
        Some(clash) => Err(Failure::failed(format!("cannot copy: {clash}"))),
        None => Ok(()),
    }
}

/// A destination file that did not exist before. Removed when dropped, unless kept.
struct MadeFile {
    path: PathBuf,
}

impl MadeFile {
    /// Makes an empty, sparse file of `bytes` if `spec` is a path where nothing is.
    fn make(spec: &VolumeSpec, bytes: u64) -> Outcome<Option<Self>> {
        let VolumeSpec::Path(path) = spec else { return Ok(None) };
        let wrong = |e: std::io::Error| {
            let why = missing_folder(path).unwrap_or_else(|| e.to_string());
            Failure::failed(format!("cannot make {}: {why}", path.display()))
        };
        match OpenOptions::new().write(true).create_new(true).open(path) {
            Ok(file) => {
                let made = MadeFile { path: Path::new(path).to_owned() };
                file.set_len(bytes).map_err(wrong)?;
                Ok(Some(made))
            }
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => Ok(None),
            Err(e) => Err(wrong(e)),
        }
    }

    fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for MadeFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}
