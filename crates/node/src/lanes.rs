//! Whose a frame is, where several parts share a link.

use std::ops::RangeInclusive;

use thinwire_buffer::RxFrame;

/// Where the receiver's session id stands in a frame, in bytes (`docs/protocol.md`, "Frame header").
/// Its upper half tells the receivers of a machine apart; frames that name nobody have zeroes there.
pub const SESSION_OFFSET: usize = 8;

/// Which frames of a link are for a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lane {
    /// Upper halves of the ids of its sessions, which also the answers carry that it gets before it has one.
    pub sessions: RangeInclusive<u32>,
    /// Frames that name nobody, too: questions to whoever is there, and what is said of sessions that are
    /// not. Each part that wants them gets them, and sees by what they say whether they are for it.
    pub outside: bool,
}

impl Lane {
    /// All frames of a link.
    pub const ALL: Lane = Lane { sessions: 0..=u32::MAX, outside: true };
}

/// Who gets a frame: a part, and its number of the link.
pub(crate) type Receiver = (usize, usize);

/// The lanes of a link, so that a frame finds its own among a thousand without asking them all.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    /// In the order of their first session.
    stretches: Vec<Stretch>,
    /// Those that want frames that name nobody, the first that came at the end.
    outside: Vec<Receiver>,
}

#[derive(Debug)]
struct Stretch {
    first: u32,
    last: u32,
    /// The largest `last` up to here: lanes may overlap.
    reach: u32,
    receiver: Receiver,
}

impl Lanes {
    pub fn add(&mut self, lane: &Lane, receiver: Receiver) {
        let (&first, &last) = (lane.sessions.start(), lane.sessions.end());
        let at = self.stretches.partition_point(|stretch| stretch.first <= first);
        self.stretches.insert(at, Stretch { first, last, reach: last, receiver });
        self.measure();
        if lane.outside {
            self.outside.insert(0, receiver);
        }
    }

    pub fn remove(&mut self, part: usize) {
        self.stretches.retain(|stretch| stretch.receiver.0 != part);
        self.outside.retain(|receiver| receiver.0 != part);
        self.measure();
    }

    fn measure(&mut self) {
        let mut reach = 0;
        for stretch in &mut self.stretches {
            reach = stretch.last.max(reach);
            stretch.reach = reach;
        }
    }

    /// Who gets the frames of this lane, if anybody behind the `nth` before does: a number to go on with,
    /// and who it is. Begin with [`Lanes::end`].
    pub fn next(&self, lane: u32, mut nth: usize) -> Option<(usize, Receiver)> {
        if lane == 0 {
            nth = nth.checked_sub(1)?;
            return Some((nth, self.outside[nth]));
        }
        while let Some(stretch) = self.stretches[..nth].last().filter(|s| s.reach >= lane) {
            nth -= 1;
            if stretch.last >= lane {
                return Some((nth, stretch.receiver));
            }
        }
        None
    }

    /// Behind all that may get the frames of this lane.
    pub fn end(&self, lane: u32) -> usize {
        match lane {
            0 => self.outside.len(),
            _ => self.stretches.partition_point(|stretch| stretch.first <= lane),
        }
    }
}

/// The upper half of the session id of a frame; 0 also of one that is too short to have any.
#[inline]
pub(crate) fn lane_of(frame: &RxFrame) -> u32 {
    match frame.bytes.get(SESSION_OFFSET..SESSION_OFFSET + 4) {
        Some(bytes) => u32::from_be_bytes(bytes.try_into().expect("four bytes")),
        None => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receivers(lanes: &Lanes, lane: u32) -> Vec<usize> {
        let (mut at, mut parts) = (lanes.end(lane), Vec::new());
        while let Some((next, (part, _))) = lanes.next(lane, at) {
            (at, parts) = (next, [parts, vec![part]].concat());
        }
        parts.sort_unstable();
        parts
    }

    #[test]
    fn whoever_wants_a_lane_is_found_though_others_overlap() {
        let mut lanes = Lanes::default();
        let all =
            [(7..=7, false), (3..=9, true), (8..=8, true), (1..=2, false), (0..=u32::MAX, true)];
        for (part, (sessions, outside)) in all.iter().cloned().enumerate() {
            lanes.add(&Lane { sessions, outside }, (part, 0));
        }
        let check = |lanes: &Lanes, gone: Option<usize>| {
            for lane in (1..12).chain([u32::MAX]) {
                let has = |part: &usize| all[*part].0.contains(&lane) && gone != Some(*part);
                let wanted: Vec<usize> = (0..all.len()).filter(has).collect();
                assert_eq!(receivers(lanes, lane), wanted, "lane {lane}");
            }
        };
        check(&lanes, None);
        assert_eq!(receivers(&lanes, 0), [1, 2, 4], "who wants what names nobody");
        lanes.remove(4);
        check(&lanes, Some(4));
        assert_eq!(receivers(&lanes, 0), [1, 2]);
    }
}
