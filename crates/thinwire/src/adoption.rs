//! Parts that hold another content than when they got their labels (rule 16), and are used all the same, since their owner says so.

use std::cell::RefCell;
use std::rc::Rc;

use serde::Serialize;
use thinwire_modules::meta::{Finding, SeenPart};
use thinwire_modules::mirror::OpeningWish;

use crate::uri::VolumeSpec;

/// A part that was taken all the same: an element of `parts` in `volume adopt --json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Adopted {
    /// The part, as users call it.
    pub part: String,
    /// What it is a part of, by its label.
    pub whole: String,
    /// The kind of that.
    pub kind: &'static str,
    /// Which of its parts, counted from 0.
    pub role: u16,
    /// It is known by another name; else it has that, and its content has been changed.
    pub is_renamed: bool,
}

impl Adopted {
    /// In a sentence.
    pub fn line(&self) -> String {
        let Adopted { part, whole, kind, role, is_renamed } = self;
        let why = match is_renamed {
            true => "is known by another identity than when it got its label",
            false => "has had its content changed since it got its label",
        };
        format!("{part} {why}, and is taken for part {role} (counted from 0) of {whole:?} ({kind})")
    }
}

/// Where those are noted that were taken. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Adoptions(Rc<RefCell<Vec<Adopted>>>);

impl Adoptions {
    /// All so far.
    pub fn take(&self) -> Vec<Adopted> {
        self.0.take()
    }
}

/// Of those parts, whose labels will be written, takes those that may be taken; their labels say from then on what they are now. Returns
/// the places of those, counted from 0.
///
/// Whoever decides that a mirror goes on without what a leg had changes the content of all that stands on it, which keeps its name: with that
/// decision, and only with it, parts above it are taken without being asked for. What has another name is a copy, and nobody decided on that.
pub fn adopt(
    seen: &mut [Option<SeenPart>],
    specs: &[VolumeSpec],
    (all, wish): (Option<&Adoptions>, OpeningWish),
) -> Vec<usize> {
    let mut taken = Vec::new();
    let is_decided = wish.degraded || wish.from.is_some();
    for (place, (part, spec)) in seen.iter_mut().zip(specs).enumerate() {
        let Some(SeenPart { found: Ok(Finding::Label(found)), content }) = part else { continue };
        let (label, content) = (&mut found.label, *content);
        if label.content == content {
            continue;
        }
        let is_renamed = label.content.identity != content.identity;
        let mut below = Vec::new();
        spec.mirrors(&mut below);
        if all.is_none() && (!is_decided || below.is_empty() || is_renamed) {
            continue;
        }
        let adopted = Adopted {
            part: spec.to_string(),
            whole: label.name.clone(),
            kind: label.module.name,
            role: label.role,
            is_renamed,
        };
        tracing::warn!("{}", adopted.line());
        if let Some(Adoptions(all)) = all {
            all.borrow_mut().push(adopted);
        }
        label.content = content;
        taken.push(place);
    }
    taken
}
