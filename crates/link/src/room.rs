//! What a receive buffer holds: the kernel counts memory ("true size"), we count frames.

use thinwire_buffer::Room;

/// Memory that the kernel charges a waiting frame of `bytes` bytes with, at most.
///
/// On veth it is less (`room_is_what_really_fits` in `tests/packet.rs` measures it). Adapters differ:
/// many give every frame whole pages, jumbo frames up to 16 KiB. So: whole pages, one more if there
/// are several, and the bookkeeping.
fn true_bytes(bytes: usize) -> usize {
    const PAGE: usize = 4096;
    const BOOKKEEPING: usize = 1024;
    let pages = bytes.next_multiple_of(PAGE);
    pages + if pages > PAGE { PAGE } else { 0 } + BOOKKEEPING
}

/// The receive path before the socket (`net.core.netdev_max_backlog`, 1000 frames by default) is
/// shared with everybody and overflows silently: never count on more than half of it.
const FRAMES_MAX: usize = 512;

/// Room of a packet socket that was granted `granted` bytes, in the kernel's count.
pub(crate) fn packet(granted: u32, frame_bytes_max: usize) -> Room {
    let frames = (granted as usize / true_bytes(frame_bytes_max)).clamp(1, FRAMES_MAX);
    Room { frames: frames as u32, bytes: (frames * frame_bytes_max) as u32 }
}

/// Room of a UDP socket that was granted `granted` bytes. Trains arrive as one buffer with little
/// overhead, but whether frames arrive as trains is the network's choice.
pub(crate) fn udp(granted: u32, frame_bytes_max: usize) -> Room {
    packet(granted, frame_bytes_max)
}

/// Less than this many large frames make a link stop and go: a sentence for the user.
const FRAMES_WANTED: usize = 64;

/// What would help a socket that asked for `asked` bytes and was granted `granted`.
pub(crate) fn advice(name: &str, asked: u32, granted: u32, room: Room) -> Option<String> {
    // The kernel counts double: see `sys::set_buffer`.
    let is_short = u64::from(granted) < 2 * u64::from(asked);
    (is_short && (room.frames as usize) < FRAMES_WANTED).then(|| {
        format!(
            "{name}: the receive buffer holds {} frames only; allow more with: \
             sysctl -w net.core.rmem_max={asked}",
            room.frames
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_default_holds_about_thirteen_jumbo_frames() {
        let room = packet(212_992, 9000);
        assert!((11..=14).contains(&room.frames), "{room:?}");
        assert_eq!(room.bytes, room.frames * 9000);
    }

    #[test]
    fn there_is_always_room_for_one_and_never_for_the_whole_backlog() {
        assert_eq!(packet(1, 65535).frames, 1);
        assert_eq!(packet(u32::MAX, 1500).frames, 512);
    }

    #[test]
    fn advice_is_given_when_a_limit_hurts() {
        let small = packet(425_984, 9000);
        let text = advice("udp:x", 4 << 20, 425_984, small).unwrap();
        assert!(text.contains("udp:x") && text.contains("rmem_max=4194304"), "{text}");
        // Granted as asked, or enough anyway: nothing to say.
        assert_eq!(advice("udp:x", 212_992, 425_984, small), None);
        assert_eq!(advice("udp:x", 4 << 20, 4 << 20, packet(4 << 20, 9000)), None);
    }
}
