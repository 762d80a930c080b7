//! What stands behind the label of a part: bitmaps, and what its module has written into the label.

use serde::Serialize;
use thinwire_modules::meta::tree::TreeState;
use thinwire_modules::meta::{Finding, Label, SeenPart};
use thinwire_modules::mirror::{LegState, MirrorState, SeenBitmap};
use thinwire_modules::thin::PoolHead;
use thinwire_modules::{Crypt, CryptState, Integrity, IntegrityState, SeenSums, SumLayout};

use super::super::dump::{JsonSums, read_bitmap, read_sums};
use super::super::parts::ReadBlocks;
use crate::error::Outcome;
use crate::labelled::LOST_WITH_LABEL;
use crate::open::OpenVolume;
use crate::signals::Signals;

/// The same of the label of a leg.
const LOST_DROP: &str = "by its bitmap the mirror was being written, so that may have said that another leg was dropped, which would then pass for being in sync without what was written last";
/// Of that of another part.
const LOST_OPENING: &str = "the volume was being opened for writing, so that may have said that this came, and what the volume has grown by or was given then";

/// What was found there.
#[derive(Default)]
pub(super) struct Behind {
    pub is_held: bool,
    bitmap: Option<SeenBitmap>,
    sums: Option<SeenSums>,
    /// It cannot be opened with what can be read of it.
    pub is_unusable: bool,
    /// Each a sentence whose subject is not the part.
    pub wrong: Vec<String>,
}

/// The bitmap of a leg.
#[derive(Serialize)]
pub(super) struct JsonBitmap {
    regions: u64,
    /// Of each leg, how many of these it may lack something of.
    lacking: Vec<u64>,
    bad_blocks: u64,
}

impl JsonBitmap {
    /// What is no damage, and worth to be told.
    pub fn note(&self) -> Option<String> {
        let lacking = self.lacking.iter().enumerate().filter(|(_, count)| **count > 0);
        let legs: Vec<_> = lacking.map(|(leg, count)| format!("leg {leg} of {count}")).collect();
        let all = self.regions;
        (!legs.is_empty()).then(|| {
            format!("by its bitmap something may be lacking, of {all} regions: {}", legs.join(", "))
        })
    }
}

impl Behind {
    /// An opening for writing writes it anew; a copy of which the other one stands is, when something of its regions is written.
    pub fn is_torn(&self) -> bool {
        let is_bad = self.bitmap.as_ref().is_some_and(|seen| seen.bad_blocks > 0)
            || self.sums.is_some_and(|seen| seen.bad_blocks > 0);
        is_bad && !self.is_unusable
    }

    /// What may be lost where the label that was passed over was newer than this one; none if that said nothing more than this and the other parts do.
    pub fn doubt(&self, label: &Label) -> Option<&'static str> {
        let is_pool = label.module.has_volumes() && label.role == 1;
        if is_pool && PoolHead::is_at_rest(label) != Some(true) {
            return Some(LOST_WITH_LABEL);
        }
        if !label.module.is_mirror() {
            return (label.next_opening != [0; 16]).then_some(LOST_OPENING);
        }
        let state = MirrorState::decode(&label.state).ok();
        let others = |state: MirrorState| {
            let others = state.legs.iter().enumerate();
            others
                .filter(|(leg, how)| *leg != usize::from(label.role) && **how == LegState::InSync)
                .count()
        };
        let may_be_dropped = state.is_none_or(|state| others(state) > 0);
        // What is written behind a drop sets bits of the leg here that stay.
        let is_alike = self.bitmap.as_ref().is_some_and(|seen| {
            seen.bad_blocks == 0 && seen.lacking.iter().all(|lacking| *lacking == 0)
        });
        (may_be_dropped && !is_alike).then_some(LOST_DROP)
    }

    pub fn bitmap(&self) -> Option<JsonBitmap> {
        let SeenBitmap { regions, lacking, bad_blocks } = self.bitmap.clone()?;
        Some(JsonBitmap { regions, lacking, bad_blocks })
    }

    pub fn sums(&self) -> Option<JsonSums> {
        self.sums.map(JsonSums::from)
    }
}

/// Reads it; of a part without a label there is nothing.
pub(super) fn look_behind(
    part: &mut [Box<dyn OpenVolume>],
    seen: &SeenPart,
    signals: &Signals,
) -> Outcome<Behind> {
    let is_held = part[0].is_held();
    let Ok(Finding::Label(found)) = &seen.found else {
        return Ok(Behind { is_held, ..Behind::default() });
    };
    let label = &found.label;
    let mut behind = Behind { is_held, wrong: wrong_state(label), ..Behind::default() };
    let (bitmap, read) = read_bitmap(part, seen, signals)?.unzip();
    behind.bitmap = bitmap;
    let read = read.unwrap_or_default();
    behind.wrong.extend(wrong_read(
        &read,
        "blocks of its bitmap",
        "all of them are written anew when the mirror is opened for writing",
    ));
    let torn = behind.bitmap.as_ref().map_or(0, |seen| seen.bad_blocks);
    let torn = torn.saturating_sub(read.unread.len() as u64);
    if torn > 0 {
        behind.wrong.push(format!(
            "blocks of its bitmap that are torn: {torn}; of their regions each leg counts as lacking something, and gets it, when the mirror is opened for \
             writing"
        ));
    }
    if let Some((mut sums, copies)) = read_sums(part, seen, signals)? {
        for (copy, read) in copies.iter().enumerate() {
            let what = format!("blocks of copy {copy} of its bitmap");
            behind.wrong.extend(wrong_read(read, &what, "their regions count as open"));
        }
        let [first, second] = copies;
        let neither = first.unread.iter().filter(|block| second.unread.contains(block)).count();
        if neither > 0 {
            behind.is_unusable = true;
            behind.wrong.push(format!(
                "blocks of its bitmap of which neither copy can be read: {neither}; it cannot be opened while that is so"
            ));
        }
        // Of those it was said.
        let unread = (first.unread.len() + second.unread.len() - 2 * neither) as u64;
        sums.torn_copies = sums.torn_copies.saturating_sub(unread);
        sums.bad_blocks = sums.bad_blocks.saturating_sub(neither as u64);
        behind.sums = Some(sums);
        if sums.bad_blocks > 0 {
            behind.wrong.push(format!(
                "blocks of its bitmap of which no copy is whole: {}; what does not fit its sum in their regions passes for unverified until it is written",
                sums.bad_blocks
            ));
        }
    }
    Ok(behind)
}

/// What cannot be read, and what that means; none if all can.
fn wrong_read(read: &ReadBlocks, what: &str, means: &str) -> Option<String> {
    let why = read.why?;
    Some(format!("{what} that cannot be read: {}, {why}; {means}", read.unread.len()))
}

/// What its module has written into a label, and what cannot be.
fn wrong_state(label: &Label) -> Vec<String> {
    let module = label.module;
    let (state, name) = (&label.state, module.name);
    let mut wrong = Vec::new();
    let mut say = |what: &str, fault: String| {
        wrong.push(format!("what its label says of {what} cannot be used: it {fault}"))
    };
    if module.is_mirror() {
        if let Err(fault) = MirrorState::decode(state) {
            say("the mirror", fault.to_string());
        }
    } else if name == Crypt::NAME {
        if let Err(fault) = CryptState::decode(state) {
            say("the key", fault.to_string());
        }
    } else if name == Integrity::NAME {
        if let Err(fault) = IntegrityState::decode(state, label.whole_bytes) {
            say("the sums", fault.to_string());
        }
        if let Some(missing) = SumLayout::missing(label) {
            say(
                "the sums",
                format!("has {missing} bytes more than a part of its size has room for"),
            );
        }
    } else if module.has_volumes() && !state.is_empty() {
        let head = TreeState::decode(state).map_err(|fault| fault.to_string());
        let head =
            head.and_then(|(_, head)| PoolHead::decode(head).map_err(|fault| fault.to_string()));
        if let Err(fault) = head {
            say("the pool", fault);
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use thinwire_modules::meta::{NewPart, NewWhole, label_parts};
    use thinwire_modules::mirror::{LeftAt, NO_GENERATION};
    use thinwire_modules::{Module, Options};
    use thinwire_volume::Identity;

    use super::*;
    use crate::mirrored::Entropy;

    fn label(kind: &str) -> Label {
        let (module, options) = (Module::find(kind).unwrap(), &Options::default());
        let bytes = 64 << 20;
        let part = |nth| NewPart { uuid: [nth; 16], content: Identity::default(), bytes };
        let parts: Vec<_> = (1..=*module.children.start() as u8).map(part).collect();
        let bytes = match kind {
            Integrity::NAME => SumLayout::of(parts[0].data_bytes(module)).bytes,
            _ => parts[0].data_bytes(module),
        };
        let whole = NewWhole { name: "it", uuid: [9; 16], module, options, bytes };
        label_parts(&whole, &parts).unwrap().remove(0)
    }

    #[test]
    fn what_a_module_has_written_and_cannot_be_is_named() {
        for kind in ["mirror", Crypt::NAME, Integrity::NAME] {
            // What it has to say is not there.
            let wrong = wrong_state(&label(kind));
            assert!(
                wrong.len() == 1 && wrong[0].contains("cannot be used: it "),
                "{kind}: {wrong:?}"
            );
        }
        assert!(wrong_state(&label("linear")).is_empty());
        let mut sums = label(Integrity::NAME);
        sums.state = IntegrityState::new(sums.whole_bytes).encode();
        assert!(wrong_state(&sums).is_empty());
        sums.whole_bytes += 4096;
        let wrong = wrong_state(&sums);
        assert!(wrong.iter().any(|wrong| wrong.contains("has 4096 bytes more")), "{wrong:?}");
        let mut pool = label("thin");
        pool.state = vec![1; 8];
        assert_eq!(wrong_state(&pool).len(), 1);
    }

    #[test]
    fn a_label_that_was_passed_over_is_in_doubt_where_it_may_have_said_more() {
        let nothing = Behind::default();
        let mut linear = label("linear");
        assert_eq!(nothing.doubt(&linear), None);
        linear.next_opening = [1; 16];
        assert_eq!(nothing.doubt(&linear), Some(LOST_OPENING));

        let bitmap = |lacking: &[u64]| {
            let seen = SeenBitmap { regions: 9, lacking: lacking.to_vec(), bad_blocks: 0 };
            Behind { bitmap: Some(seen), ..Behind::default() }
        };
        let mut leg = label("mirror");
        let states = MirrorState::of_new(2, (leg.whole_bytes, 4096), 0, &mut Entropy);
        let mut state = states[0].clone();
        state.legs[1] = LegState::InSync;
        leg.state = state.encode();
        assert_eq!(bitmap(&[0, 0]).doubt(&leg), None, "nothing was written since both were alike");
        assert_eq!(bitmap(&[0, 1]).doubt(&leg), Some(LOST_DROP));
        assert_eq!(nothing.doubt(&leg), Some(LOST_DROP), "nobody knows");
        state.legs[1] = LegState::Behind { at: LeftAt { last: [1; 16], or: NO_GENERATION } };
        leg.state = state.encode();
        assert_eq!(bitmap(&[0, 1]).doubt(&leg), None, "it was dropped before");

        let mut pool = label("thin");
        assert_eq!(nothing.doubt(&pool), None, "that of the data");
        pool.role = 1;
        assert_eq!(nothing.doubt(&pool), Some(LOST_WITH_LABEL));
    }

    #[test]
    fn what_is_open_is_told_and_is_no_damage() {
        let bitmap = |lacking: &[u64]| {
            let seen = SeenBitmap { regions: 9, lacking: lacking.to_vec(), bad_blocks: 0 };
            Behind { bitmap: Some(seen), ..Behind::default() }
        };
        let (clean, behind) = (bitmap(&[0, 0]), bitmap(&[0, 4]));
        assert_eq!(clean.bitmap().unwrap().note(), None);
        assert!(behind.bitmap().unwrap().note().unwrap().ends_with("of 9 regions: leg 1 of 4"));
        assert!(!behind.is_torn());
        let sums = SeenSums { regions: 9, open: 3, bad_blocks: 1, torn_copies: 1 };
        let torn = Behind { sums: Some(sums), ..Behind::default() };
        let note = torn.sums().unwrap().note().unwrap();
        assert!(torn.is_torn() && note.contains("3 of 9 regions") && note.contains("are torn: 1;"));
        let sums = SeenSums { regions: 9, open: 0, bad_blocks: 0, torn_copies: 1 };
        let half = Behind { sums: Some(sums), ..Behind::default() };
        assert!(!half.is_torn() && half.wrong.is_empty() && half.sums().unwrap().note().is_some());
    }
}
