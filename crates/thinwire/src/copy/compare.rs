//! `--verify`: reads both volumes again and compares.

use thinwire_buffer::SegList;
use thinwire_volume::{Completion, Io, Op};

use super::pair::{CopyPair, SLOTS, Taken, Watch, side};
use crate::error::{Failure, Outcome};

/// One piece in work: what has come so far of each side.
#[derive(Default)]
struct ComparedPiece {
    offset: u64,
    len: u64,
    source: Option<SegList>,
    destination: Option<SegList>,
}

/// Compares the whole source with the beginning of the destination. Fails at the first byte that
/// differs.
pub fn compare(pair: &mut CopyPair<'_>, watch: &mut Watch<'_>) -> Outcome {
    let (from, _, piece) = pair.fit()?;
    let mut slots: Vec<ComparedPiece> = (0..SLOTS).map(|_| ComparedPiece::default()).collect();
    let mut free: Vec<usize> = (0..SLOTS).rev().collect();
    let mut taken = Taken::default();
    let (mut next, mut done_bytes) = (0, 0);
    while done_bytes < from.bytes {
        while next < from.bytes
            && let Some(token) = free.pop()
        {
            let len = piece.min(from.bytes - next);
            slots[token] = ComparedPiece { offset: next, len, source: None, destination: None };
            pair.source.volume().submit(Io::new(token as u64, Op::Read, next, len));
            pair.destination.volume().submit(Io::new(token as u64, Op::Read, next, len));
            next += len;
        }
        pair.take(&mut taken)?;
        let sources = taken.source.drain(..).map(|c| (true, c));
        for (is_source, completion) in
            sources.chain(taken.destination.drain(..).map(|c| (false, c)))
        {
            let token = completion.token as usize;
            let slot = &mut slots[token];
            if let Err(error) = completion.result {
                return Err(pair.io_failure(is_source, error));
            }
            let data = payload(completion, slot, side(is_source))?;
            match is_source {
                true => slot.source = Some(data),
                false => slot.destination = Some(data),
            }
            if let (Some(source), Some(destination)) = (&slot.source, &slot.destination) {
                if let Some(at) = first_difference(source, destination) {
                    return Err(Failure::failed(format!(
                        "the copy differs from the source at byte {}",
                        slot.offset + at as u64
                    )));
                }
                done_bytes += slot.len;
                *slot = ComparedPiece::default();
                free.push(token);
            }
        }
        watch.glance(done_bytes)?;
    }
    (watch.progress)(done_bytes);
    Ok(())
}

fn payload(completion: Completion, slot: &ComparedPiece, side: &str) -> Outcome<SegList> {
    match completion.data.bytes() as u64 == slot.len {
        true => Ok(completion.data),
        false => Err(Failure::failed(format!(
            "{side}: the read of {} bytes at {} gave {} bytes",
            slot.len,
            slot.offset,
            completion.data.bytes()
        ))),
    }
}

/// Where two payloads of one length differ first, however each is cut.
fn first_difference(a: &SegList, b: &SegList) -> Option<usize> {
    let (mut a_iter, mut b_iter) = (a.iter(), b.iter());
    let (mut a_rest, mut b_rest): (&[u8], &[u8]) = (&[], &[]);
    let mut at = 0;
    loop {
        if a_rest.is_empty() {
            a_rest = a_iter.next()?;
        }
        if b_rest.is_empty() {
            b_rest = b_iter.next()?;
        }
        let len = a_rest.len().min(b_rest.len());
        if a_rest[..len] != b_rest[..len] {
            let same = a_rest.iter().zip(b_rest).take_while(|(a, b)| a == b).count();
            return Some(at + same);
        }
        at += len;
        (a_rest, b_rest) = (&a_rest[len..], &b_rest[len..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thinwire_buffer::Pool;

    #[test]
    fn differences_are_found_across_cuts() {
        let pool = Pool::new(1 << 20);
        let list = |bytes: &[u8], cut: usize| {
            let mut list = SegList::new();
            bytes.chunks(cut).for_each(|part| list.push(pool.copy_of(part).freeze()));
            list
        };
        let bytes: Vec<u8> = (0..100).collect();
        for (cut_a, cut_b) in [(100, 100), (7, 100), (13, 8), (1, 3)] {
            assert_eq!(first_difference(&list(&bytes, cut_a), &list(&bytes, cut_b)), None);
            for at in [0, 7, 50, 99] {
                let mut other = bytes.clone();
                other[at] ^= 0x80;
                let found = first_difference(&list(&bytes, cut_a), &list(&other, cut_b));
                assert_eq!(found, Some(at));
            }
        }
    }
}
