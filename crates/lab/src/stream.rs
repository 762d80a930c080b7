//! `thinwire-lab stream`: bytes over one TCP connection, for Figure 2.6 of the document about iSCSI, which moves them with ttcp.
//!
//! The client says once how large a block is and whether each is answered: eight octets, both in the network's order.
//! Then come blocks. The server reads them, answers each with one octet if that is wanted, and, once the client has no
//! more, says how many bytes it has got: what is in a queue is not counted.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::error::{Outcome, failed};

/// Bytes of a block at most.
const BLOCK_MAX: u32 = 1 << 20;

/// `thinwire-lab stream`.
#[derive(clap::Args, Debug)]
pub struct StreamArgs {
    /// Which side.
    #[command(subcommand)]
    pub side: StreamSide,
}

/// A side of it.
#[derive(clap::Subcommand, Debug)]
pub enum StreamSide {
    /// Take blocks until ended; prints `ready ADDRESS`
    Server {
        /// Where to listen
        address: SocketAddr,
    },
    /// Send blocks, print one JSON object
    Client {
        /// The server's address
        address: SocketAddr,
        /// Bytes of a block
        #[arg(long, value_name = "BYTES", default_value = "4096", value_parser = clap::value_parser!(u32).range(1..=i64::from(BLOCK_MAX)))]
        bs: u32,
        /// How long, in seconds
        #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = crate::times::seconds)]
        runtime: f64,
        /// Send a block when the last one was answered
        #[arg(long)]
        answered: bool,
    },
}

/// What a client prints.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StreamReport {
    /// Whole blocks that the server got.
    pub blocks: u64,
    /// From the first one to the server's last word.
    pub seconds: f64,
}

/// Does what a side does.
pub fn run(args: &StreamArgs) -> Outcome {
    match &args.side {
        StreamSide::Server { address } => {
            let listener = TcpListener::bind(address)
                .map_err(failed(format!("cannot listen at {address}")))?;
            println!("ready {address}");
            loop {
                // A client that goes away is no reason to end.
                if let Ok((socket, _)) = listener.accept() {
                    let _ = take(socket);
                }
            }
        }
        StreamSide::Client { address, bs, runtime, answered } => {
            let runtime = Duration::from_secs_f64(*runtime);
            let sent = send(*address, *bs, runtime, *answered);
            let report = sent.map_err(failed(format!("stream to {address}")))?;
            println!("{}", serde_json::to_string(&report).expect("own types are valid JSON"));
            Ok(())
        }
    }
}

fn take(mut socket: TcpStream) -> std::io::Result<()> {
    socket.set_nodelay(true)?;
    let mut head = [0; 8];
    socket.read_exact(&mut head)?;
    let word = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().expect("four octets"));
    let (bs, answered) = (word(0).clamp(1, BLOCK_MAX), word(4) != 0);
    let mut block = vec![0; bs as usize];
    let mut bytes = 0_u64;
    if answered {
        while socket.read_exact(&mut block).is_ok() {
            bytes += u64::from(bs);
            socket.write_all(&[1])?;
        }
    } else {
        loop {
            match socket.read(&mut block)? {
                0 => break,
                got => bytes += got as u64,
            }
        }
    }
    socket.write_all(&bytes.to_be_bytes())
}

fn send(
    address: SocketAddr,
    bs: u32,
    runtime: Duration,
    answered: bool,
) -> std::io::Result<StreamReport> {
    let mut socket = TcpStream::connect(address)?;
    socket.set_nodelay(true)?;
    socket.write_all(&bs.to_be_bytes())?;
    socket.write_all(&u32::from(answered).to_be_bytes())?;
    let block = vec![0x5a; bs as usize];
    let start = Instant::now();
    while start.elapsed() < runtime {
        socket.write_all(&block)?;
        if answered {
            socket.read_exact(&mut [0])?;
        }
    }
    socket.shutdown(Shutdown::Write)?;
    let mut bytes = [0; 8];
    socket.read_exact(&mut bytes)?;
    let seconds = start.elapsed().as_secs_f64();
    Ok(StreamReport { blocks: u64::from_be_bytes(bytes) / u64::from(bs), seconds })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_sent_is_counted() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            for _ in 0..2 {
                take(listener.accept().unwrap().0).unwrap();
            }
        });
        for answered in [true, false] {
            let runtime = Duration::from_millis(20);
            let report = send(address, 64, runtime, answered).unwrap();
            assert!(report.blocks > 0 && report.seconds >= 0.02, "{report:?}");
        }
        server.join().unwrap();
    }
}
