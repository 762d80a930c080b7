//! The loop that drives one face over one volume, and obeys commands that come in lines:
//! `ready`, `close`, `force`, `busy`, `alive`, `counts`, `stuck`, `hold`, `release`, `lent`, `grow BYTES`. Each gets one line.
//! `watch busy` and `watch force` call again only when the face says that there is something to see.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::task::Poll;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use thinwire_frontend::Face;
use thinwire_volume::Volume;

use super::volume::MemoryVolume;

/// Turns `face` over any volume until the input ends; no commands.
#[allow(dead_code)]
pub fn drive_any(face: &mut dyn Face, volume: &mut dyn Volume) -> io::Result<()> {
    let stdin = io::stdin();
    loop {
        let mut fds = [
            PollFd::from_borrowed_fd(stdin.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(face.fd(), PollFlags::IN),
        ];
        poll(&mut fds, None)?;
        if !fds[0].revents().is_empty() {
            return Ok(());
        }
        while face.turn(volume)? {}
    }
}

/// Serves until the input ends.
pub fn drive(face: &mut dyn Face, volume: &mut MemoryVolume) -> io::Result<()> {
    let stdin = io::stdin();
    let mut input = Vec::new();
    let mut dead: Option<io::Error> = None;
    loop {
        let mut fds = [
            PollFd::from_borrowed_fd(stdin.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(face.fd(), PollFlags::IN),
        ];
        // A face that died is only asked.
        let watched = if dead.is_none() { &mut fds[..] } else { &mut fds[..1] };
        match poll(watched, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        if !fds[0].revents().is_empty() {
            let mut chunk = [0; 256];
            match rustix::io::read(&stdin, &mut chunk)? {
                0 => return Ok(()),
                n => input.extend_from_slice(&chunk[..n]),
            }
        }
        while let Some(end) = input.iter().position(|&b| b == b'\n') {
            let line: Vec<u8> = input.drain(..=end).collect();
            let answer = obey(String::from_utf8_lossy(&line).trim(), face, volume, &dead);
            let mut out = io::stdout().lock();
            writeln!(out, "= {answer}")?;
            out.flush()?;
        }
        while dead.is_none() {
            match face.turn(volume) {
                Ok(true) => {}
                Ok(false) => break,
                Err(e) => dead = Some(e),
            }
        }
    }
}

fn obey(
    command: &str,
    face: &mut dyn Face,
    volume: &mut MemoryVolume,
    dead: &Option<io::Error>,
) -> String {
    let (verb, argument) = command.split_once(' ').unwrap_or((command, ""));
    match verb {
        "ready" => match face.ready() {
            None => "wait".into(),
            Some(Ok(path)) => format!("ok {path}"),
            Some(Err(e)) => failure(&e),
        },
        "close" | "force" => match face.close(verb == "force") {
            Ok(()) => "ok".into(),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => "wait".into(),
            Err(e) => failure(&e),
        },
        "busy" => match face.busy() {
            Poll::Pending => "wait".into(),
            Poll::Ready(usage) => usage.unwrap_or("no".into()),
        },
        "watch" => loop {
            let answer = obey(argument, face, volume, dead);
            if answer != "wait" {
                break answer;
            }
            if !wakes(face) {
                break "error asleep".into();
            }
        },
        "alive" => dead.as_ref().map_or("yes".into(), |e| e.to_string()),
        "counts" => {
            let c = volume.counts();
            let mut line = String::new();
            for n in [
                c.reads,
                c.writes,
                c.fua_writes,
                c.flushes,
                c.zeroes,
                c.zeroes_no_hole,
                c.zeroed_bytes,
                c.data_grains,
                c.outstanding,
            ] {
                write!(line, "{n} ").unwrap();
            }
            line
        }
        "stuck" => {
            volume.stuck = true;
            "ok".into()
        }
        "hold" => {
            volume.held = true;
            "ok".into()
        }
        "release" => {
            volume.release();
            "ok".into()
        }
        "lent" => volume.lent_bytes().to_string(),
        "grow" => match argument.parse() {
            Ok(bytes) => {
                volume.grow(bytes);
                "ok".into()
            }
            Err(e) => format!("error {e}"),
        },
        other => format!("error no such command: {other}"),
    }
}

/// Whether the face has something to see within 5 s.
fn wakes(face: &dyn Face) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(face.fd(), PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 5, tv_nsec: 0 })).is_ok_and(|count| count > 0)
}

/// `error KIND TEXT`
fn failure(e: &io::Error) -> String {
    format!("error {:?} {e}", e.kind()).replace('\n', " ")
}
