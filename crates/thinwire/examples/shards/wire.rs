//! Links in one process: queues in memory between threads.

use std::io;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use thinwire_buffer::{
    Addr, FrameSizes, LinkInfo, PAGE_BYTES, Pool, Room, RxBatch, RxFrame, SegList, TxBatch,
};
use thinwire_link::{HEAD_BYTES, Link, LinkStats, Outgoing, Sources};
use thinwire_volume::{Letter, Parcel};

use super::{NAP, SESSION_OFFSET};

/// One end of all wires: what has come for a thread.
#[derive(Default)]
pub struct Inbox {
    pub come: Mutex<Come>,
    pub bell: Condvar,
}

#[derive(Default)]
pub struct Come {
    pub frames: Vec<(u32, Vec<u8>)>,
    pub letters: Vec<Letter>,
    pub parcels: Vec<Parcel>,
    /// Memory of frames that were taken.
    pub spare: Vec<Vec<u8>>,
}

impl Come {
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty() && self.letters.is_empty() && self.parcels.is_empty()
    }
}

impl Inbox {
    pub fn add(&self, add: impl FnOnce(&mut Come)) {
        add(&mut self.come.lock().expect("nobody panics"));
        self.bell.notify_one();
    }

    pub fn is_empty(&self) -> bool {
        self.come.lock().expect("nobody panics").is_empty()
    }

    pub fn nap(&self) {
        let come = self.come.lock().expect("nobody panics");
        drop(self.bell.wait_timeout_while(come, NAP, |come| come.is_empty()));
    }
}

/// A link. A frame is copied twice, as two kernels would, on the thread that sends and on the one that receives.
pub struct Wire {
    pub local: u32,
    /// By station; those of one target are one, and told apart by session.
    pub out: Vec<Vec<Arc<Inbox>>>,
    pub into: Arc<Inbox>,
    pub pool: Pool,
    pub taken: Vec<(u32, Vec<u8>)>,
}

impl Link for Wire {
    fn name(&self) -> &str {
        "wire"
    }

    fn info(&self) -> LinkInfo {
        let frame_bytes = FrameSizes { base: 1500, max: 9000 };
        let room = Room { frames: 512, bytes: 512 * 9000 };
        LinkInfo { addr: Addr::Sim(self.local), frame_bytes, room }
    }

    fn send(&mut self, batch: &mut TxBatch) -> io::Result<Outgoing> {
        let mut frames = batch.frames().iter().peekable();
        while let Some(first) = frames.peek() {
            let Addr::Sim(to) = first.to else { panic!("{:?}", first.to) };
            let inboxes = &self.out[to as usize];
            let place = |head: &[u8]| inboxes.len().min(1 + usize::from(head[SESSION_OFFSET])) - 1;
            let (at, to) = (place(&first.head), first.to);
            inboxes[at].add(|come| {
                while let Some(frame) =
                    frames.next_if(|frame| frame.to == to && place(&frame.head) == at)
                {
                    let mut bytes = come.spare.pop().unwrap_or_default();
                    bytes.extend_from_slice(&frame.head);
                    frame.data.iter().for_each(|piece| bytes.extend_from_slice(piece));
                    come.frames.push((self.local, bytes));
                }
            });
        }
        batch.clear();
        Ok(Outgoing::default())
    }

    fn recv(&mut self, _: &Pool, max: usize, out: &mut RxBatch) -> io::Result<usize> {
        let Wire { into, taken, pool, .. } = self;
        {
            let mut come = into.come.lock().expect("nobody panics");
            let count = come.frames.len().min(max);
            taken.extend(come.frames.drain(..count));
        }
        let start = PAGE_BYTES - HEAD_BYTES;
        for (from, bytes) in taken.iter_mut() {
            let mut buf = pool.get(start + bytes.len());
            buf[start..].copy_from_slice(bytes);
            let (len, from) = (bytes.len(), Addr::Sim(*from));
            bytes.clear();
            out.push_back(RxFrame {
                from,
                bytes: buf.freeze().slice(start, len),
                rest: SegList::new(),
                waited: Duration::ZERO,
                queued: Duration::ZERO,
            });
        }
        let count = taken.len();
        let mut come = into.come.lock().expect("nobody panics");
        come.spare.extend(taken.drain(..).map(|(_, bytes)| bytes));
        Ok(count)
    }

    fn sources(&self) -> Sources<'_> {
        [None; 3]
    }

    fn due_in(&mut self) -> Option<Duration> {
        None
    }

    fn stats(&self) -> LinkStats {
        LinkStats::default()
    }
}
