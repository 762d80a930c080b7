//! What legs that were served apart may have got without one another, for whoever has to say which is the truth (rule 7).

use std::time::{Duration, Instant};

use thinwire_modules::meta::{Finding, Label, SeenPart};
use thinwire_modules::mirror::{
    BITMAP_BYTES, BITMAP_OFFSET, MirrorState, NO_GENERATION, bitmap_bytes, look_at_bitmap,
};
use thinwire_volume::{Io, Op, Token, Volume};

use crate::host::Host;
use crate::labelled::{Opening, wait};

/// The longest that their bitmaps are waited for: what is refused is refused without them, too.
const PATIENCE: Duration = Duration::from_secs(2);

/// Of what is read for that: not that of labels, which may be under way.
const TOKEN: Token = 1;

/// Says of two legs how many bytes may have been written to each without the other, by the bitmap of each; nothing if they cannot be read. Each leg
/// is a number, its place among `volumes`, and what was found there.
pub fn written_apart(
    host: &Host,
    volumes: &mut [Box<dyn Volume>],
    legs: [(usize, usize, &SeenPart); 2],
    by: &Opening<'_>,
) -> Option<String> {
    let until = Instant::now() + PATIENCE;
    let mut without = |[(_, at, seen), (other, ..)]: [(usize, usize, &SeenPart); 2]| {
        let Ok(Finding::Label(found)) = &seen.found else { return None };
        let state = MirrorState::decode(&found.label.state).ok()?;
        let bitmap = read_bitmap(host, volumes, (at, &found.label, &state), by, until)?;
        // What was never kept, or is about to be, is in no bitmap.
        if state.legs[other].left_at() == Some(NO_GENERATION.into()) {
            return Some(found.label.whole_bytes);
        }
        let regions = *look_at_bitmap(&found.label, &state, &bitmap).lacking.get(other)?;
        let bytes = regions.saturating_mul(1 << state.region_shift);
        Some(bytes.min(found.label.whole_bytes))
    };
    let [one, other] = legs;
    let (of_one, of_other) = (without([one, other])?, without([other, one])?);
    let (one, other) = (one.0, other.0);
    Some(format!(
        "by their bitmaps at most {of_one} bytes were written to leg {one} without leg {other}, and {of_other} to leg {other} without leg {one}"
    ))
}

fn read_bitmap(
    host: &Host,
    volumes: &mut [Box<dyn Volume>],
    (at, label, state): (usize, &Label, &MirrorState),
    by: &Opening<'_>,
    until: Instant,
) -> Option<Vec<u8>> {
    let shape = volumes[at].geometry();
    // No more of it is there, if the label lies.
    let room = shape.bytes.saturating_sub(BITMAP_OFFSET);
    let bytes = bitmap_bytes(label, state).min(BITMAP_BYTES).min(room);
    let mut read = Vec::new();
    while (read.len() as u64) < bytes {
        let begin = read.len();
        let len = (bytes - begin as u64).min(shape.io_bytes_max.into());
        volumes[at].submit(Io::new(TOKEN, Op::Read, BITMAP_OFFSET + begin as u64, len));
        let mut done = Vec::new();
        let own = loop {
            volumes[at].poll(&mut done);
            if let Some(own) = done.iter().find(|completion| completion.token == TOKEN) {
                break own;
            }
            wait(host, volumes, (by, Some(until)), "read").ok()?;
        };
        own.result.ok()?;
        read.resize(begin + len as usize, 0);
        own.data.copy_to(&mut read[begin..]);
    }
    Some(read)
}
