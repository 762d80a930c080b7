//! A file in an ext2 file system of 4096-byte blocks on a remote disk, with little memory on both sides: what section 5.1 of
//! the document about EBD measures on.

use std::path::PathBuf;
use std::time::Duration;

use super::fio;
use super::offered::{device, offer};
use super::thinwire::{BARE, serve_in};
use super::{Contender, Meter, strs, words};
use crate::error::{LabError, Outcome, failed};
use crate::figures::Figures;
use crate::offered::{Ext2Disk, Medium, Protocol};
use crate::point::{Carrier, Load, Pattern, Wire};
use crate::stand::{HeldMemory, Image, Laboratory, Loop, Network, Process, Side, is_installed};

/// MiB that the server has for itself and for what its kernel keeps of the image: half of the document's 512.
pub const SERVER_MIB: u32 = 256;
/// MiB that the program has which uses the file, and what the kernel keeps of it: half of the document's 256.
pub const CLIENT_MIB: u32 = 128;

/// How long a disk may take to be there, and to go.
const PATIENCE: Duration = Duration::from_secs(20);
const PORT: &str = "10809";

/// A mounted file system, and all that it lies on. Fields go in this order.
pub struct Ext2<'l> {
    lab: &'l Laboratory<'l>,
    mib: u32,
    mount: MountedFolder,
    client: HeldMemory,
    _loop: Option<Loop>,
    disk: Option<AttachedDisk>,
    server: Option<Process>,
    network: Network<'l>,
    _server_memory: HeldMemory,
    _image: Image,
}

/// What shows a device, or a file that a loop device takes, on the client's side. Ends in order.
pub struct AttachedDisk(pub Process);

impl Drop for AttachedDisk {
    fn drop(&mut self) {
        self.0.end(PATIENCE);
    }
}

/// Where it is mounted. Taken down when it is dropped.
pub struct MountedFolder(pub PathBuf);

impl Drop for MountedFolder {
    fn drop(&mut self) {
        let flags = rustix::mount::UnmountFlags::empty();
        if rustix::mount::unmount(&self.0, flags).is_err() {
            let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
        }
    }
}

impl<'l> Ext2<'l> {
    pub fn set_up(lab: &'l Laboratory<'l>, wire: Wire, below: Ext2Disk, mib: u32) -> Outcome<Self> {
        for program in ["fio", "mkfs.ext2", "nbdkit", "nbdfuse"] {
            if !is_installed(program) {
                return Err(LabError::Failed(format!("{program} is not installed")));
            }
        }
        let image = Image::sparse(lab, mib * 5 / 4 + 64)?;
        let server_memory = HeldMemory::new(lab, SERVER_MIB)?;
        let network = Network::new(lab, wire)?;
        let (server, disk, shown) = match below {
            Ext2Disk::Native => remote(lab, &network, &image, &server_memory, Protocol::Native)?,
            Ext2Disk::Ebd => remote(lab, &network, &image, &server_memory, Protocol::Ebd)?,
            Ext2Disk::Nbd => nbd(lab, &network, &image, &server_memory)?,
            Ext2Disk::Here => (None, None, image.path().to_owned()),
        };
        let over = match below {
            Ext2Disk::Native | Ext2Disk::Ebd => None,
            Ext2Disk::Nbd | Ext2Disk::Here => Some(Loop::over(lab, &shown)?),
        };
        let device = over.as_ref().map_or(&shown[..], Loop::device);
        lab.run(None, &["mkfs.ext2", "-q", "-F", "-b", "4096", device], "")?;
        let mount = MountedFolder(lab.fresh_path("ext2"));
        std::fs::create_dir(&mount.0).map_err(failed("cannot make a mount point"))?;
        let at = mount.0.to_str().expect("our own path");
        lab.run(None, &["mount", "-t", "ext2", device, at], "")?;
        let ext2 = Ext2 {
            lab,
            mib,
            mount,
            client: HeldMemory::new(lab, CLIENT_MIB)?,
            _loop: over,
            disk,
            server,
            network,
            _server_memory: server_memory,
            _image: image,
        };
        // The first time its blocks are given out; what is measured is written over them.
        ext2.run(&Load::new(Pattern::Write, 1 << 20, 1), 1.0)?;
        Ok(ext2)
    }

    fn run(&self, load: &Load, seconds: f64) -> Outcome<(Figures, f64)> {
        let file = self.mount.0.join("file");
        let words = [file.to_str().expect("our own path"), &self.mib.to_string()];
        let prefix = self.client.prefix();
        fio::run_in_file(self.lab, &self.network, &prefix, words, load, seconds)
    }
}

/// Who serves, who shows, and what is shown.
type Served = (Option<Process>, Option<AttachedDisk>, String);

/// A target and an attachment.
fn remote(
    lab: &Laboratory,
    network: &Network,
    image: &Image,
    held: &HeldMemory,
    protocol: Protocol,
) -> Outcome<Served> {
    let (run_dir, state) = (lab.fresh_path("run"), lab.fresh_path("state"));
    let mut flags = words!["--export", format!("disk0={},buffered", image.path())];
    flags.extend(words!["--state-dir", state.display()]);
    if let Some(offer) = offer(protocol, Medium::Fits) {
        flags.extend(words!["--offer", offer]);
    }
    let bare = words![BARE];
    let (carrier, prefix) = (Carrier::Packet, held.prefix());
    let target = serve_in(lab, network, carrier, &bare, &flags, &prefix, &run_dir)?;
    let volume = device(network, protocol);
    let run_dir = lab.fresh_path("run");
    let argv = words![lab.executable(), "attach", BARE, "--foreground", volume, "--block=loop"];
    let argv = [argv, words!["--run-dir", run_dir.display()]].concat();
    let mut attachment = network.start(Side::Initiator(1), &strs(&argv))?;
    let shown = lab.until("the attachment", PATIENCE, || {
        attachment.must_run()?;
        Ok(attachment.stdout().split_once('\n').map(|(shown, _)| shown.to_owned()))
    })?;
    Ok((Some(target), Some(AttachedDisk(attachment)), shown))
}

/// nbdkit, and a file that shows what it serves: a kernel's own client is not everywhere.
fn nbd(lab: &Laboratory, network: &Network, image: &Image, held: &HeldMemory) -> Outcome<Served> {
    let argv = words!["nbdkit", "-f", "-p", PORT, "file", image.path()];
    let argv = [held.prefix().to_vec(), argv].concat();
    let server = network.start(Side::Target, &strs(&argv))?;
    let uri = format!("nbd://{}:{PORT}/", network.address(Side::Target, 1));
    lab.until("nbdkit", PATIENCE, || {
        Ok(network.run(Side::Initiator(1), &["nbdinfo", "--size", &uri], "").ok())
    })?;
    let folder = lab.fresh_path("nbdfuse");
    std::fs::create_dir(&folder).map_err(failed("cannot make a mount point"))?;
    let shown = folder.join("nbd");
    let shown_text = shown.to_str().expect("our own path");
    let mut shows = network.start(Side::Initiator(1), &["nbdfuse", shown_text, &uri])?;
    lab.until("nbdfuse", PATIENCE, || {
        shows.must_run()?;
        Ok(shown.exists().then_some(()))
    })?;
    Ok((Some(server), Some(AttachedDisk(shows)), shown_text.to_owned()))
}

impl Contender for Ext2<'_> {
    fn measure(&mut self, load: &Load, seconds: f64) -> Outcome<Figures> {
        let server = Meter::start(self.server.as_ref());
        let shows = Meter::start(self.disk.as_ref().map(|disk| &disk.0));
        let (mut figures, ios) = self.run(load, seconds)?;
        figures.cpu_face_us = self.disk.is_some().then(|| shows.stop(ios).0);
        (figures.cpu_server_us, figures.cpu_machine_us) = server.stop(ios);
        Ok(figures)
    }
}
