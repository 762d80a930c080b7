//! What systemd is told of a service, if it asked (sd_notify: one datagram each).

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::OnceLock;

use rustix::time::{ClockId, clock_gettime};

/// It is up, or has done with reading its configuration again.
pub fn ready() {
    say("READY=1");
}

/// It reads its configuration again, from now until it is [`ready`]: `Type=notify-reload` waits for both.
pub fn reloading() {
    let now = clock_gettime(ClockId::Monotonic);
    let micros = i128::from(now.tv_sec) * 1_000_000 + i128::from(now.tv_nsec / 1000);
    say(&format!("RELOADING=1\nMONOTONIC_USEC={micros}"));
}

/// Where it is told, and by what.
struct Line {
    socket: UnixDatagram,
    to: SocketAddr,
}

static LINE: OnceLock<Option<Line>> = OnceLock::new();

/// Whoever gives up the right to make sockets calls this before: nothing is said to who was not asked about here.
pub fn prepare() {
    LINE.get_or_init(line);
}

/// `None` if nobody wants to know.
fn line() -> Option<Line> {
    let path = std::env::var_os("NOTIFY_SOCKET")?;
    let address = match path.as_encoded_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        _ => SocketAddr::from_pathname(&path),
    };
    let made = address.and_then(|to| Ok(Line { socket: UnixDatagram::unbound()?, to }));
    made.inspect_err(|e| tracing::warn!("cannot notify {path:?}: {e}")).ok()
}

fn say(what: &str) {
    let Some(Line { socket, to }) = LINE.get().and_then(Option::as_ref) else { return };
    if let Err(e) = socket.send_to_addr(what.as_bytes(), to) {
        tracing::warn!("cannot notify {to:?}: {e}");
    }
}
