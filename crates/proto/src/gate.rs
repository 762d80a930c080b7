//! A received frame on its way to the gate: its checksum, and its headers in one piece.

use thinwire_buffer::{Pool, RxFrame};
use thinwire_wire::{Frame, FrameError, messages_end};

use crate::checksum::verify;

/// Checks a received frame whole and parses it. Returns it with the frame to take payloads from:
/// `rx` itself, or, if its messages do not end in its first piece, a copy in one piece that is put
/// into `joined` and counted in `copied_bytes`.
#[inline]
pub fn open_frame<'a>(
    rx: &'a RxFrame,
    pool: &Pool,
    joined: &'a mut Option<RxFrame>,
    copied_bytes: &mut u64,
) -> Result<(&'a RxFrame, Frame<'a>), FrameError> {
    verify(&rx.bytes, &rx.rest)?;
    let is_split = !rx.rest.is_empty()
        && messages_end(&rx.bytes).is_some_and(|end| end > rx.bytes.len() && end <= rx.len());
    let rx = if is_split {
        *copied_bytes += rx.len() as u64;
        joined.insert(rx.joined(pool))
    } else {
        rx
    };
    let frame = Frame::parse_head(&rx.bytes, rx.len())?;
    Ok((rx, frame))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::seal;
    use thinwire_buffer::{Addr, SegList, TxFrame};
    use thinwire_wire::{HEADER_BYTES, Header, Kind, Message, Ping};

    /// A frame of so many pings and so many bytes of payload behind them, cut into pieces.
    fn frame_in_pieces(pool: &Pool, pings: usize, cuts: &[usize]) -> RxFrame {
        let mut head = Vec::new();
        Header::reserve(&mut head);
        (0..pings).for_each(|_| Ping {}.emit(&mut head));
        let end = head.len() as u16;
        let mut header = Header::new(Kind::Session);
        (header.length, header.data_offset, header.messages_end) = (end, end, end);
        header.write(&mut head);
        let mut frame = TxFrame { to: Addr::Group, head, data: SegList::new() };
        seal(&mut frame);
        let mut pieces = SegList::new();
        let mut at = 0;
        for &cut in cuts.iter().chain([&frame.head.len()]) {
            pieces.push(pool.copy_of(&frame.head[at..cut]).freeze());
            at = cut;
        }
        let bytes = pieces.as_slice()[0].clone();
        let mut rest = SegList::new();
        pieces.as_slice()[1..].iter().for_each(|piece| rest.push(piece.clone()));
        RxFrame { from: Addr::Group, bytes, rest, waited: Duration::ZERO, queued: Duration::ZERO }
    }

    #[test]
    fn a_frame_whose_messages_are_cut_is_joined_and_no_other() {
        let pool = Pool::new(1 << 20);
        for (cuts, is_joined) in [(&[][..], false), (&[100], true), (&[HEADER_BYTES, 150], true)] {
            let rx = frame_in_pieces(&pool, 40, cuts);
            let (mut joined, mut copied) = (None, 0);
            let (whole, frame) = open_frame(&rx, &pool, &mut joined, &mut copied).unwrap();
            assert!(frame.messages().all(|m| matches!(m, Message::Ping(_))));
            assert_eq!((frame.messages().count(), whole.rest.is_empty()), (40, true));
            assert_eq!(copied, if is_joined { rx.len() as u64 } else { 0 });
        }
    }

    #[test]
    fn damage_in_any_piece_is_seen() {
        let pool = Pool::new(1 << 20);
        let rx = frame_in_pieces(&pool, 40, &[100, 200]);
        for at in [0, 99, 100, 199, 200, rx.len() - 1] {
            let mut bytes = vec![0; rx.len()];
            rx.copy_to(0, &mut bytes);
            bytes[at] ^= 1;
            let piece = |from: usize, to: usize| pool.copy_of(&bytes[from..to]).freeze();
            let mut rest = SegList::of(piece(100, 200));
            rest.push(piece(200, bytes.len()));
            let bad = RxFrame { bytes: piece(0, 100), rest, ..rx.clone() };
            assert!(open_frame(&bad, &pool, &mut None, &mut 0).is_err(), "byte {at}");
        }
    }
}
