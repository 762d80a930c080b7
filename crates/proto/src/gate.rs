//! The gate: what a received frame goes through, in this order, before anybody acts on it.
//!
//! 1. [`Sealed::look`] checks the public part of its header, and knows nothing else of it.
//! 2. Its owner finds the session that the header names. Nothing changes by that.
//! 3. [`Session::open`](crate::Session::open) opens it with the key of its session, or [`Sealed::unseal`]
//!    checks the tag of one without a key. Only what they give has messages, and only that is taken by
//!    [`Session`](crate::Session).
//! 4. There the sealed part of the header and all messages are checked, so that whoever acts on them meets
//!    no error in the middle.
//!
//! So code that acts on what was not unsealed does not compile:
//!
//! ```compile_fail
//! # use {thinwire_buffer::RxFrame, thinwire_proto::Sealed};
//! fn messages_of(rx: &mut RxFrame) -> usize {
//!     Sealed::look(rx).unwrap().messages().count()
//! }
//! ```
//!
//! ```
//! # use {thinwire_buffer::{Pool, RxFrame}, thinwire_proto::Sealed};
//! fn messages_of(rx: &mut RxFrame) -> usize {
//!     let sealed = Sealed::look(rx).unwrap();
//!     sealed.unseal(&Pool::new(0), &mut 0).unwrap().messages().count()
//! }
//! ```

use thinwire_buffer::{Addr, Pool, RxFrame};
use thinwire_seal::WhichPhase;
use thinwire_wire::{Feedback, Frame, FrameError, Header, MessageIter, SUITE_CRC32C};

use crate::{SessionKeys, checksum};

/// A received frame of which nothing but the public part of its header may be known.
#[derive(Debug)]
pub struct Sealed<'a> {
    header: Header,
    rx: &'a mut RxFrame,
}

impl<'a> Sealed<'a> {
    /// The first stage. The frame is lent to be changed: unsealing may.
    #[inline]
    pub fn look(rx: &'a mut RxFrame) -> Result<Self, FrameError> {
        let header = Header::parse(&rx.bytes, rx.len())?;
        Ok(Sealed { header, rx })
    }

    /// The public part of the header. Whoever sent the frame may have lied.
    #[inline]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Where it came from, or says so.
    #[inline]
    pub fn from(&self) -> Addr {
        self.rx.from
    }

    /// The third stage, and the fourth, of a frame of suite 0; others are refused. The bytes of the frame may be changed where they lie. If its
    /// messages do not end in its first piece, it is put into one, of `pool`: that is the one copy, and is
    /// counted in `copied_bytes`.
    #[inline]
    pub fn unseal(self, pool: &Pool, copied_bytes: &mut u64) -> Result<Unsealed<'a>, FrameError> {
        let Sealed { header, rx } = self;
        if header.suite != SUITE_CRC32C {
            return Err(FrameError::Suite);
        }
        checksum::check(&header, rx)?;
        Self::opened(header, rx, pool, copied_bytes)
    }

    /// The same with the keys of the session, whatever it has done with the number of the frame. Tells the
    /// phase, too. Received frames that must be copied go to buffers of `pool`.
    #[inline]
    pub fn unseal_with(
        self,
        keys: &SessionKeys,
        pool: &Pool,
        copied_bytes: &mut u64,
    ) -> Result<(Unsealed<'a>, WhichPhase), FrameError> {
        let Sealed { header, rx } = self;
        let which = keys.open(&header, rx, pool, copied_bytes)?;
        Ok((Self::opened(header, rx, pool, copied_bytes)?, which))
    }

    #[inline]
    fn opened(
        header: Header,
        rx: &'a mut RxFrame,
        pool: &Pool,
        copied_bytes: &mut u64,
    ) -> Result<Unsealed<'a>, FrameError> {
        if usize::from(header.messages_end) > rx.bytes.len() {
            *copied_bytes += rx.len() as u64;
            *rx = rx.joined(pool);
        }
        let rx: &RxFrame = rx;
        let frame = Frame::open(header, &rx.bytes)?;
        Ok(Unsealed { frame, rx })
    }
}

/// A frame that went through the gate: what may be acted on.
#[derive(Clone, Copy, Debug)]
pub struct Unsealed<'a> {
    frame: Frame<'a>,
    rx: &'a RxFrame,
}

impl<'a> Unsealed<'a> {
    /// The public part of the header.
    #[inline]
    pub fn header(&self) -> &Header {
        self.frame.header()
    }

    /// The sealed part of the header.
    #[inline]
    pub fn feedback(&self) -> &Feedback {
        self.frame.feedback()
    }

    /// The messages, in order.
    #[inline]
    pub fn messages(&self) -> MessageIter<'a> {
        self.frame.messages()
    }

    /// What was received: its payloads are to be taken from there.
    #[inline]
    pub fn rx(&self) -> &'a RxFrame {
        self.rx
    }

    /// Where it came from.
    #[inline]
    pub fn from(&self) -> Addr {
        self.rx.from
    }

    /// See [`Frame::has_ack_ranges`].
    #[inline]
    pub(crate) fn has_ack_ranges(&self) -> bool {
        self.frame.has_ack_ranges()
    }

    /// See [`Frame::is_eliciting`].
    #[inline]
    pub(crate) fn is_eliciting(&self) -> bool {
        self.frame.is_eliciting()
    }
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
        let mut frame = TxFrame::new(Addr::Group, head);
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
            let (mut rx, mut copied) = (frame_in_pieces(&pool, 40, cuts), 0);
            let bytes = rx.len() as u64;
            let frame = Sealed::look(&mut rx).unwrap().unseal(&pool, &mut copied).unwrap();
            assert!(frame.messages().all(|m| matches!(m, Message::Ping(_))));
            assert_eq!((frame.messages().count(), frame.rx().rest.is_empty()), (40, true));
            assert_eq!(copied, if is_joined { bytes } else { 0 });
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
            let mut bad = RxFrame { bytes: piece(0, 100), rest, ..rx.clone() };
            let opened = Sealed::look(&mut bad).and_then(|sealed| sealed.unseal(&pool, &mut 0));
            assert!(opened.is_err(), "byte {at}");
        }
    }
}
