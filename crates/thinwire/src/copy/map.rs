//! Which parts of the source hold data: asked piece by piece where the source can tell, all of it
//! where it cannot.

use std::collections::VecDeque;

use thinwire_volume::{Completion, Io, Op, Token};

/// Asked for at once, in bytes. Far apart enough to be rare, small enough for any answer.
const WINDOW_BYTES: u64 = 256 << 20;

/// Zeroes are passed on in pieces of at most this many bytes.
const ZEROES_BYTES_MAX: u64 = 32 << 20;

/// The token of the map's own requests.
pub const MAP_TOKEN: Token = Token::MAX;

/// What to do with a part of the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapPart {
    /// Read it.
    Data {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// It is known to read as zeroes.
    Zeroes {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
}

/// Hands out a source in parts, from its beginning to its end.
pub struct Map {
    bytes: u64,
    piece: u64,
    align: u64,
    askable: bool,
    /// Where the next part starts.
    at: u64,
    /// Known runs from `at` on: length, and whether they are zero.
    known: VecDeque<(u64, bool)>,
    known_end: u64,
    asking: bool,
}

impl Map {
    /// For a source of `bytes`, cut into pieces of at most `piece` bytes at multiples of `align`.
    /// `askable`: the source answers [`Op::BlockStatus`].
    pub fn new(bytes: u64, piece: u64, align: u64, askable: bool) -> Self {
        Map {
            bytes,
            piece,
            align,
            askable,
            at: 0,
            known: VecDeque::new(),
            known_end: 0,
            asking: false,
        }
    }

    /// True when all parts were handed out.
    pub fn is_done(&self) -> bool {
        self.at == self.bytes
    }

    /// A request to submit to the source, if the map must know more before it can go on.
    pub fn ask(&mut self) -> Option<Io> {
        if self.asking || !self.askable || self.known_end > self.at || self.is_done() {
            return None;
        }
        self.asking = true;
        let len = (self.bytes - self.at).min(WINDOW_BYTES);
        Some(Io::new(MAP_TOKEN, Op::BlockStatus, self.at, len))
    }

    /// Takes the answer of [`Map::ask`]'s request. An error means: then read everything.
    pub fn answer(&mut self, completion: &Completion) {
        self.asking = false;
        let useful = completion.result.is_ok() && completion.extents.iter().any(|e| e.len > 0);
        if !useful {
            self.askable = false;
            return;
        }
        self.known_end = self.at;
        for extent in &completion.extents {
            let len = extent.len.min(self.bytes - self.known_end);
            self.known.push_back((len, extent.zero));
            self.known_end += len;
        }
    }

    /// The next part; `None` while nothing is known or all is done.
    pub fn next(&mut self) -> Option<MapPart> {
        if self.is_done() {
            return None;
        }
        let offset = self.at;
        if self.known_end <= self.at {
            if self.askable {
                return None;
            }
            let len = self.piece.min(self.bytes - offset);
            self.at += len;
            return Some(MapPart::Data { offset, len });
        }
        let (run, zero) = self.aligned_run();
        let most = if zero { ZEROES_BYTES_MAX.max(self.align) } else { self.piece };
        let len = run.min(most);
        self.consume(len);
        Some(if zero { MapPart::Zeroes { offset, len } } else { MapPart::Data { offset, len } })
    }

    /// The run at the front, cut to `align`. A run too short for that is read together with what
    /// follows, as data.
    fn aligned_run(&self) -> (u64, bool) {
        let (mut run, zero) = self.known[0];
        for (len, other) in self.known.iter().skip(1) {
            if *other != zero {
                break;
            }
            run += len;
        }
        let whole = run - run % self.align;
        if self.at + run == self.bytes {
            (run, zero)
        } else if whole > 0 {
            (whole, zero)
        } else {
            (self.align.min(self.bytes - self.at), false)
        }
    }

    fn consume(&mut self, mut len: u64) {
        self.at += len;
        // A cut beyond what is known leaves nothing known.
        self.known_end = self.known_end.max(self.at);
        while len > 0 {
            let Some((run, _)) = self.known.front_mut() else { return };
            let take = len.min(*run);
            *run -= take;
            len -= take;
            if *run == 0 {
                self.known.pop_front();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thinwire_volume::Extent;

    fn parts(map: &mut Map, runs: &[(u64, bool)]) -> Vec<MapPart> {
        let mut parts = Vec::new();
        let mut asked = 0;
        while !map.is_done() {
            if let Some(io) = map.ask() {
                asked += 1;
                let mut completion = Completion::new(MAP_TOKEN, Ok(()));
                // From the request on, at most three extents an answer.
                let mut start = 0;
                for (len, zero) in runs {
                    let end = start + len;
                    if end > io.offset && completion.extents.len() < 3 {
                        let len = end - start.max(io.offset);
                        completion.extents.push(Extent { len, hole: *zero, zero: *zero });
                    }
                    start = end;
                }
                map.answer(&completion);
            }
            parts.push(map.next().expect("known by now"));
            assert!(asked < 100);
        }
        assert_eq!(map.next(), None);
        parts
    }

    /// Parts must cover everything once, in order, and zero parts must be zero.
    fn check(bytes: u64, align: u64, runs: &[(u64, bool)]) -> Vec<MapPart> {
        let parts = parts(&mut Map::new(bytes, 8192, align, true), runs);
        let mut at = 0;
        for part in &parts {
            let (MapPart::Data { offset, len } | MapPart::Zeroes { offset, len }) = *part;
            assert_eq!(offset, at);
            assert!(len > 0 && offset % align == 0);
            at += len;
            if let MapPart::Zeroes { .. } = part {
                let mut start = 0;
                for (len_run, zero) in runs {
                    let end = start + len_run;
                    assert!(*zero || end <= offset || start >= offset + len, "{part:?}");
                    start = end;
                }
            }
        }
        assert_eq!(at, bytes);
        parts
    }

    #[test]
    fn parts_cover_the_source_exactly() {
        let parts =
            check(1 << 20, 512, &[(4096, false), (1 << 19, true), ((1 << 19) - 4096, false)]);
        assert_eq!(parts[0], MapPart::Data { offset: 0, len: 4096 });
        assert_eq!(parts[1], MapPart::Zeroes { offset: 4096, len: 1 << 19 });
        check(1 << 20, 512, &[(1 << 20, true)]);
        check(1 << 20, 512, &[(1 << 20, false)]);
        let many: Vec<_> = (0..256).map(|n| (4096, n % 2 == 0)).collect();
        check(1 << 20, 512, &many);
    }

    #[test]
    fn runs_shorter_than_the_destination_s_block_are_read() {
        let parts = check(16384, 4096, &[(512, false), (8192, true), (7680, false)]);
        assert_eq!(parts[0], MapPart::Data { offset: 0, len: 4096 });
        assert_eq!(parts[1], MapPart::Zeroes { offset: 4096, len: 4096 });
        let fine: Vec<_> = (0..32).map(|n| (512, n % 2 == 0)).collect();
        check(16384, 4096, &fine);
    }

    #[test]
    fn a_source_that_cannot_tell_is_read_whole() {
        let mut map = Map::new(20480, 8192, 512, false);
        assert!(map.ask().is_none());
        let lens: Vec<_> = std::iter::from_fn(|| map.next()).collect();
        assert_eq!(lens.len(), 3);
        let mut map = Map::new(8192, 8192, 512, true);
        assert!(map.ask().is_some() && map.ask().is_none() && map.next().is_none());
        map.answer(&Completion::new(MAP_TOKEN, Ok(())));
        assert_eq!(map.next(), Some(MapPart::Data { offset: 0, len: 8192 }));
    }
}
