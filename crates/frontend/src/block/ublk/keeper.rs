//! The thread that shows, syncs and hides a ublk device, because each of these waits for I/O that the shard serves. It never
//! logs, which might have to wait for the disk: orders and answers go through channels, and the shard looks for answers by a
//! timer.
//!
//! It needs no table of descriptors of its own, unlike that of a loop device: when the process dies, the driver fails what is
//! outstanding, and with that all waiting ends; before Linux 6.15 up to half a minute later, if all requests were with us.

use std::fs::{self, File};
use std::sync::mpsc::{Receiver, Sender};

use super::super::error::BlockError;
use super::super::post::Post;
use super::super::usage::{claim_to_close, usage};
use super::control::Control;

/// What the keeper is told.
pub enum Order {
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
    /// It is hidden, and will be gone as soon as nobody uses it: the user that it waits for, if there is one. The last.
    Forced(Option<String>),
    /// It is gone, as soon as nobody uses it. The last.
    Deleted(Result<(), BlockError>),
}

/// The shard's end. Dropping it makes the keeper hide the device and take it away.
pub type Keeper = Post<Order, Answer>;

/// Starts the thread, which begins by showing the device: its queue has to be served meanwhile.
pub fn start(control: Control, device: UblkDevice) -> std::io::Result<Keeper> {
    Post::start("ublk keeper", move |inbox, outbox| keep(control, &device, inbox, outbox))
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
                let user = usage(&device.node(), &device.dev());
                let _ = device.stop(control);
                // What follows may wait for that user.
                let _ = outbox.send(Answer::Forced(user));
                let _ = device.delete(control);
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
