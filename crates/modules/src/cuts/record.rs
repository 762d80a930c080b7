//! [`Recorder`]: the first part of a whole, through which its label is written while the whole is in use.

use std::cell::RefCell;
use std::rc::Rc;

use thinwire_volume::{Completion, Io, Layer, Token, Volume};

use crate::meta::{Label, LabelError, LabelOutcome, Labels};

/// That of the labels' I/Os on the part: no other I/O there has it.
pub const CUT_LABEL_TOKEN: Token = Token::MAX;

/// A part that writes its own label when it is asked to, and is the part itself in everything else.
pub struct Recorder {
    below: Box<dyn Volume>,
    record: CutRecord,
}

/// The label of that part, for whoever has it written.
#[derive(Clone)]
pub struct CutRecord(Rc<RefCell<Inner>>);

struct Inner {
    labels: Labels,
    /// As it was written last.
    label: Label,
    /// What is to be written; that is under way once the labels are at work.
    wish: Option<Label>,
    ended: Option<Result<(), LabelError>>,
}

impl Recorder {
    /// Of a part whose label was read, under [`CUT_LABEL_TOKEN`].
    pub fn new(part: Box<dyn Volume>, labels: Labels, label: Label) -> (Self, CutRecord) {
        let inner = Inner { labels, label, wish: None, ended: None };
        let record = CutRecord(Rc::new(RefCell::new(inner)));
        (Recorder { below: part, record: record.clone() }, record)
    }
}

impl CutRecord {
    /// The cut that was made last, and the one that was begun.
    pub(super) fn says(&self) -> (u64, u64) {
        let inner = self.0.borrow();
        (inner.label.cut, inner.label.cut_begun)
    }

    /// Has a label written at the next poll of the part.
    pub(super) fn write(&self, (cut, cut_begun): (u64, u64)) {
        let inner = &mut *self.0.borrow_mut();
        assert!(inner.wish.is_none() && inner.ended.is_none(), "one at a time");
        inner.wish = Some(Label { cut, cut_begun, ..inner.label.clone() });
    }

    /// How that has ended, once it has.
    pub(super) fn take_ended(&self) -> Option<Result<(), LabelError>> {
        self.0.borrow_mut().ended.take()
    }
}

impl Inner {
    fn begin(&mut self, part: &mut dyn Volume) {
        let Some(label) = &self.wish else { return };
        if self.labels.is_idle()
            && let Err(error) = self.labels.write(label, part)
        {
            self.wish = None;
            self.ended = Some(Err(error));
        }
    }

    fn hear(&mut self, completion: Completion, part: &mut dyn Volume) {
        if let Some(LabelOutcome::Written(result)) = self.labels.on_completion(completion, part) {
            let label = self.wish.take().expect("one is under way");
            if let Ok(generation) = result {
                self.label = Label { generation, ..label };
            }
            self.ended = Some(result.map(|_| ()));
        }
    }
}

impl Layer for Recorder {
    type Below = dyn Volume;

    fn below(&self) -> &Self::Below {
        &*self.below
    }

    fn below_mut(&mut self) -> &mut Self::Below {
        &mut *self.below
    }

    #[inline]
    fn take(&mut self, io: Io) {
        debug_assert_ne!(io.token, CUT_LABEL_TOKEN);
        self.below.submit(io);
    }

    fn bring(&mut self, done: &mut Vec<Completion>) {
        let start = done.len();
        self.below.poll(done);
        let inner = &mut *self.record.0.borrow_mut();
        if inner.wish.is_none() {
            return;
        }
        let own = done[start..].iter().position(|completion| inner.labels.is_mine(completion));
        if let Some(at) = own {
            let completion = done.remove(start + at);
            inner.hear(completion, &mut *self.below);
        }
        inner.begin(&mut *self.below);
    }

    fn taken(&self) -> usize {
        self.below.outstanding() - usize::from(!self.record.0.borrow().labels.is_idle())
    }
}
