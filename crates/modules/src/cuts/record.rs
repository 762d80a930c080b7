//! [`Recorder`]: the first part of a whole, through which its label is written while the whole is in use: what it says of cuts, and who may write the whole.

use std::cell::RefCell;
use std::rc::Rc;

use thinwire_volume::{Completion, Io, KeptWriter, Layer, Token, Volume};

use crate::meta::{BESIDE_TOKEN, Label, LabelError, LabelOutcome, Labels};

/// That of the labels' I/Os on the part: no other I/O there has it.
pub const CUT_LABEL_TOKEN: Token = BESIDE_TOKEN;

/// A part that writes its own label when it is asked to, and is the part itself in everything else.
pub struct Recorder {
    below: Box<dyn Volume>,
    record: CutRecord,
}

/// The label of that part, for whoever has it written.
#[derive(Clone)]
pub struct CutRecord(Rc<RefCell<Inner>>);

struct Inner {
    /// None while they are lent.
    labels: Option<Labels>,
    /// As it was written last.
    label: Label,
    /// What is to be written of cuts.
    wish: Option<(u64, u64)>,
    /// Who is to be the writer.
    writer: Option<KeptWriter>,
    /// From the announcement of a cut to its end: what each part keeps of it has its label in it, and those are of one opening.
    is_cutting: bool,
    /// The label that is being written, and whether that is because of a writer.
    writing: Option<(Label, bool)>,
    ended: Option<Result<(), LabelError>>,
    writer_ended: Option<Result<(), LabelError>>,
}

impl Recorder {
    /// Of a part whose label was read, under [`CUT_LABEL_TOKEN`].
    pub fn new(part: Box<dyn Volume>, labels: Labels, label: Label) -> (Self, CutRecord) {
        let labels = Some(labels);
        let inner = Inner {
            labels,
            label,
            wish: None,
            writer: None,
            is_cutting: false,
            writing: None,
            ended: None,
            writer_ended: None,
        };
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
        inner.wish = Some((cut, cut_begun));
    }

    /// Who may write the whole, as the label says.
    pub(crate) fn writer(&self) -> Option<KeptWriter> {
        self.0.borrow().label.writer.clone()
    }

    /// Has the label say that at the next poll of the part, or when it is written next.
    pub(crate) fn write_writer(&self, writer: KeptWriter) {
        let inner = &mut *self.0.borrow_mut();
        assert!(inner.writer.is_none() && inner.writer_ended.is_none(), "one at a time");
        inner.writer = Some(writer);
    }

    /// How that has ended, once it has.
    pub(crate) fn take_writer_ended(&self) -> Option<Result<(), LabelError>> {
        self.0.borrow_mut().writer_ended.take()
    }

    /// A cut is being made from now on, or not any more.
    pub(super) fn set_cutting(&self, is_cutting: bool) {
        self.0.borrow_mut().is_cutting = is_cutting;
    }

    /// What it says, as it was written last.
    pub(crate) fn label(&self) -> Label {
        self.0.borrow().label.clone()
    }

    /// Lends the labels, and what they say, to somebody who writes them; nothing is written here meanwhile. None while something is being written, is
    /// lent, or a cut is being made.
    pub(crate) fn lend(&self) -> Option<(Labels, Label)> {
        let inner = &mut *self.0.borrow_mut();
        let is_free = inner.wish.is_none() && inner.writer.is_none() && !inner.is_cutting;
        let labels = inner.labels.take_if(|labels| labels.is_idle() && is_free)?;
        Some((labels, inner.label.clone()))
    }

    /// They are back.
    pub(crate) fn take_back(&self, labels: Labels, label: Label) {
        let inner = &mut *self.0.borrow_mut();
        (inner.labels, inner.label) = (Some(labels), label);
    }

    /// How that has ended, once it has.
    pub(super) fn take_ended(&self) -> Option<Result<(), LabelError>> {
        self.0.borrow_mut().ended.take()
    }
}

impl Inner {
    fn begin(&mut self, part: &mut dyn Volume) {
        let Some(labels) = self.labels.as_mut().filter(|labels| labels.is_idle()) else { return };
        let mut label = self.label.clone();
        let is_writer = match (self.wish, &self.writer) {
            (Some((cut, cut_begun)), _) => {
                (label.cut, label.cut_begun) = (cut, cut_begun);
                false
            }
            (None, writer @ Some(_)) => {
                label.writer.clone_from(writer);
                true
            }
            (None, None) => return,
        };
        match labels.write(&label, part) {
            Ok(()) => self.writing = Some((label, is_writer)),
            Err(error) => self.end(is_writer, Err(error)),
        }
    }

    fn end(&mut self, is_writer: bool, result: Result<(), LabelError>) {
        match is_writer {
            true => (self.writer, self.writer_ended) = (None, Some(result)),
            false => (self.wish, self.ended) = (None, Some(result)),
        }
    }

    fn hear(&mut self, completion: Completion, part: &mut dyn Volume) {
        let Some(labels) = &mut self.labels else { return };
        if let Some(LabelOutcome::Written(result)) = labels.on_completion(completion, part) {
            let (label, is_writer) = self.writing.take().expect("one is under way");
            if let Ok(generation) = result {
                self.label = Label { generation, ..label };
            }
            self.end(is_writer, result.map(|_| ()));
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
        if inner.wish.is_none() && inner.writer.is_none() {
            return;
        }
        let Some(labels) = &inner.labels else { return };
        let own = done[start..].iter().position(|completion| labels.is_mine(completion));
        if let Some(at) = own {
            let completion = done.remove(start + at);
            inner.hear(completion, &mut *self.below);
        }
        inner.begin(&mut *self.below);
    }

    fn taken(&self) -> usize {
        let inner = self.record.0.borrow();
        let is_busy = inner.labels.as_ref().is_some_and(|labels| !labels.is_idle());
        self.below.outstanding() - usize::from(is_busy)
    }
}
