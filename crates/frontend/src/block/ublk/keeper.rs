//! The thread that shows, syncs and hides a ublk device, because each of these waits for I/O that the shard serves. It never
//! logs, which might have to wait for the disk: orders and answers go through channels, and the shard looks for answers by a
//! timer.
//!
//! It needs no table of descriptors of its own, unlike that of a loop device: when the process dies, the driver fails what is
//! outstanding as soon as the shard's thread is gone, and with that all waiting ends.

use std::fs::{self, File};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::time::Instant;

use super::super::error::BlockError;
use super::super::usage::{claim, claim_to_close, usage, who_claims};
use super::control::Control;

/// What the keeper is told.
enum Order {
    /// Who uses the device? The number comes back in the answer.
    Usage(u64),
    /// Take over a new size, in sectors.
    Resize(u64),
    /// Write back, flush, and hide it, unless it is in use.
    Close,
    /// Hide it, whoever uses it.
    Force,
    /// Take away what is left of it.
    Delete,
}

/// What the keeper says.
pub enum Answer {
    /// The device is there, or why not. Always the first.
    Ready(Result<(), BlockError>),
    /// Who uses it, in answer to the question of this number.
    Usage(u64, Option<String>),
    /// The new size was taken over, or not.
    Resized(Result<(), BlockError>),
    /// It is hidden, or why it stays.
    Stopped(Result<(), BlockError>),
    /// It is hidden, and gone as soon as nobody uses it: the user that it waits for, if there is one.
    Forced(Option<String>),
    /// It is gone, as soon as nobody uses it. The last.
    Deleted(Result<(), BlockError>),
}

/// The shard's end of the keeper. Dropping it makes the keeper hide the device and take it away.
pub struct Keeper {
    orders: Sender<Order>,
    answers: Receiver<Answer>,
}

impl Keeper {
    /// Starts the thread, which begins by showing the device: its queue has to be served meanwhile.
    pub fn start(control: Control, device: UblkDevice) -> std::io::Result<Keeper> {
        let (orders, inbox) = channel();
        let (outbox, answers) = channel();
        std::thread::Builder::new()
            .name("ublk keeper".to_owned())
            .spawn(move || keep(control, &device, &inbox, &outbox))?;
        Ok(Keeper { orders, answers })
    }

    /// An answer, if there is one.
    pub fn answer(&self) -> Result<Option<Answer>, TryRecvError> {
        match self.answers.try_recv() {
            Ok(answer) => Ok(Some(answer)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Waits for an answer, at most until `deadline`. The caller serves nothing meanwhile.
    pub fn answer_until(&self, deadline: Instant) -> Result<Answer, RecvTimeoutError> {
        self.answers.recv_timeout(deadline.saturating_duration_since(Instant::now()))
    }

    /// Asks for the users; [`Answer::Usage`] follows, without I/O to the device.
    pub fn ask_usage(&self, number: u64) {
        self.order(Order::Usage(number));
    }

    /// Tells of a new size; [`Answer::Resized`] follows.
    pub fn resize(&self, sectors: u64) {
        self.order(Order::Resize(sectors));
    }

    /// Begins an orderly close; [`Answer::Stopped`] follows.
    pub fn close(&self) {
        self.order(Order::Close);
    }

    /// Begins a forced close, whose queue is not served any more; [`Answer::Forced`] follows.
    pub fn force(&self) {
        self.order(Order::Force);
    }

    /// Ends: the queue is closed. [`Answer::Deleted`] follows.
    pub fn delete(&self) {
        self.order(Order::Delete);
    }

    fn order(&self, order: Order) {
        // If it has ended, the missing answer will tell.
        let _ = self.orders.send(order);
    }
}

/// A device that is made, by its number.
#[derive(Clone, Copy, Debug)]
pub struct UblkDevice {
    /// `/dev/ublkbN`.
    pub number: u32,
    /// Its machine depends on it.
    pub is_carrying: bool,
}

impl UblkDevice {
    /// Its node.
    pub fn node(self) -> String {
        format!("/dev/ublkb{}", self.number)
    }

    /// Its device number, as mountinfo writes it.
    fn dev(self) -> String {
        let dev = fs::read_to_string(format!("/sys/block/ublkb{}/dev", self.number));
        dev.unwrap_or_default().trim().to_owned()
    }

    /// Writes back what the kernel caches of it, flushes the volume, and hides it.
    fn close(self, control: &mut Control) -> Result<(), BlockError> {
        let node = self.node();
        // Held to the end, so that nobody mounts it meanwhile.
        let _claim = claim_to_close(&node, &self.dev())?;
        let what = format!("cannot write back what is cached of {node}");
        File::open(&node).and_then(|file| file.sync_all()).map_err(BlockError::system(what))?;
        self.stop(control)
    }

    fn stop(self, control: &mut Control) -> Result<(), BlockError> {
        control
            .stop(self.number)
            .map_err(BlockError::system(format!("cannot stop {}", self.node())))
    }

    /// As soon as nobody uses it.
    fn delete(self, control: &mut Control) -> Result<(), BlockError> {
        control
            .delete(self.number)
            .map_err(BlockError::system(format!("cannot take {} away", self.node())))
    }
}

/// The thread's main function.
fn keep(
    mut control: Control,
    device: &UblkDevice,
    inbox: &Receiver<Order>,
    outbox: &Sender<Answer>,
) {
    let control = &mut control;
    let what = format!("cannot show {}", device.node());
    let shown = control.start(device.number).map_err(BlockError::system(what));
    if device.is_carrying {
        // Writes are held back in favour of reads otherwise (writeback throttling): whoever writes to get memory would wait
        // there. Refused by a kernel that does not do that.
        let _ = fs::write(format!("/sys/block/ublkb{}/queue/wbt_lat_usec", device.number), "0");
    }
    let _ = outbox.send(Answer::Ready(shown));
    while let Ok(order) = inbox.recv() {
        let answer = match order {
            Order::Usage(number) => Answer::Usage(number, usage(&device.node(), &device.dev())),
            Order::Resize(sectors) => Answer::Resized(
                control
                    .update_size(device.number, sectors)
                    .map_err(BlockError::system("the driver takes no new size (Linux 6.16 does)")),
            ),
            Order::Close => Answer::Stopped(device.close(control)),
            Order::Force => {
                // Who uses it is not to be seen afterwards.
                let user = claim(&device.node())
                    .err()
                    .filter(|e| e.raw_os_error() == Some(libc::EBUSY))
                    .map(|_| who_claims(&device.node(), &device.dev()));
                let _ = device.stop(control);
                let _ = device.delete(control);
                let _ = outbox.send(Answer::Forced(user));
                return;
            }
            Order::Delete => {
                let _ = outbox.send(Answer::Deleted(device.delete(control)));
                return;
            }
        };
        if outbox.send(answer).is_err() {
            break;
        }
    }
    // The shard's end is gone, and the queue with it.
    let _ = device.stop(control);
    let _ = device.delete(control);
}
