//! A target of several shards on threads of its own, for whoever opens its links and volumes.
#![allow(dead_code)]

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use thinwire_link::{Link, LinkOptions, LinkSpec, ShardSteering};
use thinwire_runtime::inquiry::Inquiry;
use thinwire_runtime::shards::{Offered, Provider, Service, serve};
use thinwire_runtime::wait::Spin;
use thinwire_target::TargetConfig;

/// For what comes, unless something is broken.
pub const PATIENCE: Duration = Duration::from_secs(30);

pub fn link(spec: &str, shard: Option<ShardSteering>) -> io::Result<Box<dyn Link>> {
    let options = LinkOptions { shard, ..LinkOptions::default() };
    spec.parse::<LinkSpec>().unwrap().open_with(&options).map_err(io::Error::other)
}

/// Of this machine, for a socket.
pub fn free_address() -> SocketAddr {
    // Below those that the kernel gives to whoever asks for any: such a one would be free for a
    // moment only, while other tests run. Counted, so that each is given once.
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = std::process::id() as u16 % 10_000;
    let port = || 20_000 + (first + NEXT.fetch_add(1, Ordering::Relaxed)) % 12_000;
    let address = || SocketAddr::from(([127, 0, 0, 1], port()));
    let is_free = |address: &SocketAddr| UdpSocket::bind(address).is_ok();
    std::iter::repeat_with(address).take(1000).find(is_free).expect("a free port")
}

/// It ends by itself, or when it is [told](Running::end).
pub struct Running {
    stop: OwnedFd,
    thread: JoinHandle<io::Result<()>>,
    ready: mpsc::Receiver<()>,
    pub inquiry: Arc<Inquiry>,
}

impl Running {
    /// As node `node`, in the namespace of the caller.
    pub fn start(
        shards: u8,
        exports: impl IntoIterator<Item = Offered>,
        provider: impl Provider<Error = io::Error> + Send + 'static,
    ) -> Self {
        let (stop_read, stop) = rustix::pipe::pipe().unwrap();
        let inquiry = Arc::new(Inquiry::new(shards).unwrap());
        let (tell, ready) = mpsc::channel();
        let (asked, exports) = (inquiry.clone(), Vec::from_iter(exports));
        let thread = std::thread::spawn(move || {
            let service = Service {
                config: TargetConfig { node: "node".into(), insecure: true, ..Default::default() },
                shards,
                exports: &exports,
                pool_free_bytes_max: 8 << 20,
                spin: Spin::On,
                hurry: None,
                may_grow: false,
                inquiry: Some(&asked),
            };
            serve(&service, &provider, stop_read.as_fd(), &mut || {
                tell.send(()).unwrap();
                Ok(())
            })
        });
        Running { stop, thread, ready, inquiry }
    }

    /// Waits until it serves.
    pub fn wait_ready(&self) {
        self.ready.recv_timeout(PATIENCE).expect("ready");
    }

    /// Waits until it has ended by itself; how, and whether it had served.
    pub fn ended(self) -> (io::Result<()>, bool) {
        let how = self.thread.join().unwrap();
        drop(self.stop);
        (how, self.ready.try_recv().is_ok())
    }

    /// Ends it in order.
    pub fn end(self) {
        // The other end becomes readable when this one is closed.
        drop(self.stop);
        self.thread.join().unwrap().unwrap();
    }
}
