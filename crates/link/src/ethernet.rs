//! What stands before a raw frame: the Ethernet header, and what the kernel is told of the frame.

use std::sync::atomic::{AtomicBool, Ordering};

pub(crate) const ETHERTYPE_VLAN: u16 = 0x8100;
/// Frames up to this size go into one piece of kernel memory, which with the kernel's own parts is
/// then no more than 16 KiB: allocating that is always tried hard enough to succeed.
const ONE_PIECE_MAX: usize = 15 << 10;
/// What the kernel may be asked to take in one piece by a process that takes small ones: no more than a page, with
/// the kernel's own parts.
const SMALL_PIECE_MAX: usize = 3 << 10;
/// The longest Ethernet header: two addresses, a tag, the EtherType.
const ETHERNET_BYTES_MAX: usize = 6 + 6 + 4 + 2;

static TAKES_SMALL_PIECES: AtomicBool = AtomicBool::new(false);

/// From now on links that this process opens have the kernel take in long frames to send page by page behind their header,
/// not in a piece of several pages side by side: a machine short of memory may have none, and a disk that it wants to
/// free memory with must not wait for them.
pub fn take_small_pieces() {
    TAKES_SMALL_PIECES.store(true, Ordering::Relaxed);
}

/// How long a frame with its header may be to be taken in as one piece, in bytes. To be asked when a link is opened.
pub(crate) fn one_piece_max() -> usize {
    match TAKES_SMALL_PIECES.load(Ordering::Relaxed) {
        true => SMALL_PIECE_MAX,
        false => ONE_PIECE_MAX,
    }
}

/// The Ethernet header of a frame, and how many bytes of it count.
pub(crate) fn ethernet_header(
    to: [u8; 6],
    from: [u8; 6],
    vlan: Option<u16>,
    ethertype: u16,
) -> ([u8; ETHERNET_BYTES_MAX], usize) {
    let (mut header, mut len) = ([0; ETHERNET_BYTES_MAX], 0);
    let tag = vlan.map(|vlan| [ETHERTYPE_VLAN.to_be_bytes(), vlan.to_be_bytes()]);
    let tag = tag.as_ref().map_or(&[][..], |tag| tag.as_flattened());
    for field in [&to[..], &from, tag, &ethertype.to_be_bytes()] {
        header[len..][..field.len()].copy_from_slice(field);
        len += field.len();
    }
    (header, len)
}

/// What stands before each frame that is sent: how the kernel shall take it in, and the Ethernet
/// header.
///
/// Left alone, the kernel gathers a frame larger than a page in pages of its own, one by one, which
/// for a jumbo frame costs a sixth more time than one piece does. A `virtio_net_hdr` tells it how
/// much to put into one piece; all its other fields are zero.
#[derive(Clone, Copy)]
pub(crate) struct Envelope {
    bytes: [u8; Envelope::BYTES_MAX],
    len: usize,
}

impl Envelope {
    /// `virtio_net_hdr`: flags, kind of segmentation, then the length of the first piece and three
    /// other fields of two bytes each, in the machine's byte order.
    const VIRTIO_BYTES: usize = 10;
    const BYTES_MAX: usize = Self::VIRTIO_BYTES + ETHERNET_BYTES_MAX;

    pub(crate) fn new(
        to: [u8; 6],
        from: [u8; 6],
        vlan: Option<u16>,
        ethertype: u16,
        frame: usize,
        one_piece_max: usize,
    ) -> Self {
        let (header, len) = ethernet_header(to, from, vlan, ethertype);
        let mut envelope = Envelope { bytes: [0; Self::BYTES_MAX], len: Self::VIRTIO_BYTES + len };
        envelope.bytes[Self::VIRTIO_BYTES..].copy_from_slice(&header);
        let all = len + frame;
        // Behind the first piece come pages.
        let first = if all <= one_piece_max { all } else { len };
        if let Ok(first) = u16::try_from(first) {
            envelope.bytes[2..4].copy_from_slice(&first.to_ne_bytes());
        }
        envelope
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}
