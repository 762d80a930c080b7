//! [`Labels`]: the two copies of a part's label, read and written so that a crash at any moment leaves the label of before or
//! the new one (`docs/format.md`, "The two copies").

#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use thinwire_buffer::{Pool, SegList};
use thinwire_volume::{Completion, Io, IoError, Op, Token, Volume};

use super::finding::{is_too_small, judge};
use super::{Finding, LABEL_BYTES, Label, LabelError, LabelImage};

/// Where the two copies begin, in bytes: label `g` is written to the one of index `g % 2`.
pub const LABEL_OFFSETS: [u64; 2] = [24 << 10, (512 + 24) << 10];

/// The copy that a generation is written to.
pub(super) fn copy_of(generation: u64) -> usize {
    (generation % 2) as usize
}

/// Reads and writes the labels of one part. A state machine: each call that begins something submits an I/O to the volume
/// that it is given, always that of the part, and whoever polls the volume hands the completions that are
/// [its own](Labels::is_mine) to [`Labels::on_completion`], until that says how it has ended. Who has the volume alone
/// calls [`Labels::turn`] instead. One I/O of its is outstanding at most, under one token; one thing at a time is under way.
///
/// First [`Labels::read`]. Then, unless what was found forbids it, [`Labels::write`] as often as wanted; or
/// [`Labels::erase`], after which the part is blank.
///
/// *What a failure leaves.* After a write that has failed, the new label or the one before may be found: the next one goes
/// to the same copy, under the same generation, because the other copy is the only one that is sure. So nothing has to be
/// read again, and the newer of two copies is always the one that was written later.
///
/// *What was read* may be in some cache only: its writer was told that this has failed, and went. So before the first write
/// the copy that is to stand meanwhile is written again, as it is.
pub struct Labels {
    token: Token,
    pool: Pool,
    known: Known,
    /// What the older of two labels that were read has as its state.
    older: Option<Vec<u8>>,
    task: Option<Task>,
    canary: LabelsCanary,
}

/// What is known of the copies.
enum Known {
    /// Nothing.
    Nothing,
    /// Why nothing may be written but zeroes over both, and which of them is erased last.
    Forbidden { error: LabelError, last: usize },
    Ready {
        /// The generation that is written next. The other copy than its own stands meanwhile.
        next: u64,
        /// What that holds, if it is only known from having been read.
        unsettled: Option<SegList>,
    },
}

/// What is under way.
enum Task {
    /// With the first copy, once it was read.
    Read(Option<Box<LabelImage>>),
    Write {
        generation: u64,
        steps: Steps,
    },
    Erase(Steps),
}

/// One after the other, the one that is under way first.
type Steps = VecDeque<Step>;

enum Step {
    Flush,
    /// Of a whole copy, durably.
    Write {
        copy: usize,
        data: SegList,
    },
}

/// How what was begun has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LabelOutcome {
    /// What the part's labels say.
    Read(Result<Finding, LabelError>),
    /// The label is durable, and what it refers to was before it: its generation.
    Written(Result<u64, LabelError>),
    /// Both copies are zero, durably.
    Erased(Result<(), LabelError>),
}

/// A fault planted in it, which its tests must find.
#[cfg_attr(not(test), allow(dead_code, reason = "tests plant them"))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum LabelsCanary {
    #[default]
    None,
    /// No flush between two labels: both copies are written between two flushes, and labels before what they refer to.
    NoFlush,
    /// All labels go to one copy.
    SameCopy,
    /// After a failure the next label goes to the other copy.
    OtherAfterFailure,
    /// What was read is taken for durable.
    ReadIsDurable,
    /// The newest label is erased before the other.
    NewestErasedFirst,
}

impl Labels {
    /// Of a part that nothing is known of yet. `token` is that of all its I/Os, and of nobody else's on that volume; memory
    /// for them is from `pool`.
    pub fn new(token: Token, pool: &Pool) -> Self {
        let canary = LabelsCanary::default();
        let known = Known::Nothing;
        Labels { token, pool: pool.clone(), known, older: None, task: None, canary }
    }

    /// The state of the older label, if two were read: what is found there if the newest rots before another one is written.
    pub fn older_state(&self) -> Option<&[u8]> {
        self.older.as_deref()
    }

    /// Nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.task.is_none()
    }

    /// Whether [`Labels::on_completion`] is to be told of that.
    pub fn is_mine(&self, completion: &Completion) -> bool {
        !self.is_idle() && completion.token == self.token
    }

    /// Begins to read both copies; ends with [`LabelOutcome::Read`].
    ///
    /// # Errors
    /// [`LabelError::Unfit`]: nothing has begun.
    ///
    /// # Panics
    /// If something is under way.
    pub fn read(&mut self, volume: &mut dyn Volume) -> Result<(), LabelError> {
        assert!(self.is_idle(), "one thing at a time");
        check_fit(volume, false)?;
        self.known = Known::Nothing;
        self.submit_read(0, volume);
        self.task = Some(Task::Read(None));
        Ok(())
    }

    /// Begins to write a label, with the next generation, whatever it says; ends with [`LabelOutcome::Written`]. First all
    /// that has completed on the volume is made durable, since the label may refer to it.
    ///
    /// # Errors
    /// Nothing has begun: it may not be written, by what was found or what it says.
    ///
    /// # Panics
    /// If something is under way.
    pub fn write(&mut self, label: &Label, volume: &mut dyn Volume) -> Result<(), LabelError> {
        assert!(self.is_idle(), "one thing at a time");
        check_fit(volume, true)?;
        let (generation, unsettled) = match &self.known {
            Known::Nothing => return Err(LabelError::Unknown),
            Known::Forbidden { error, .. } => return Err(error.clone()),
            Known::Ready { next, unsettled } => (*next, unsettled.clone()),
        };
        let label = Label { generation, ..label.clone() };
        let image = label.encode().map_err(LabelError::Refused)?;
        let (needs, has) = (label.data_end(), volume.geometry().bytes);
        if needs > has {
            return Err(LabelError::Short { needs, has });
        }
        let (copy, data) = (copy_of(generation), self.data(&image));
        let mut steps = Steps::new();
        if let Some(data) = unsettled
            && self.canary != LabelsCanary::ReadIsDurable
        {
            steps.push_back(Step::Write { copy: 1 - copy, data });
        }
        if self.canary != LabelsCanary::NoFlush {
            steps.push_back(Step::Flush);
        }
        steps.push_back(Step::Write { copy, data });
        self.submit_step(&steps, volume);
        self.task = Some(Task::Write { generation, steps });
        Ok(())
    }

    /// Begins to zero both copies, whatever they hold, flushed one by one, the newest label last, so that no older one comes to light in
    /// between; ends with [`LabelOutcome::Erased`]. Who calls it has told somebody what was found.
    ///
    /// # Errors
    /// Nothing has begun: the volume is unfit, or nothing was read yet.
    ///
    /// # Panics
    /// If something is under way.
    pub fn erase(&mut self, volume: &mut dyn Volume) -> Result<(), LabelError> {
        assert!(self.is_idle(), "one thing at a time");
        check_fit(volume, true)?;
        let last = match &self.known {
            Known::Nothing => return Err(LabelError::Unknown),
            Known::Forbidden { last, .. } => *last,
            Known::Ready { next, .. } => copy_of(next - 1),
        };
        let last = if self.canary == LabelsCanary::NewestErasedFirst { 1 - last } else { last };
        let zero = |copy| Step::Write { copy, data: self.data(&[0; LABEL_BYTES]) };
        let steps = Steps::from([Step::Flush, zero(1 - last), Step::Flush, zero(last)]);
        self.known = Known::Nothing;
        self.submit_step(&steps, volume);
        self.task = Some(Task::Erase(steps));
        Ok(())
    }

    /// Polls a volume that nobody else uses, and goes on; never waits. Says how what was begun has ended, once it has.
    pub fn turn(&mut self, volume: &mut dyn Volume) -> Option<LabelOutcome> {
        let mut done = Vec::new();
        volume.poll(&mut done);
        let mut done = done.into_iter().filter(|completion| completion.token == self.token);
        // There is one at most.
        done.next().and_then(|completion| self.on_completion(completion, volume))
    }

    /// Takes a completion that [is its own](Labels::is_mine), and goes on. Says how what was begun has ended, once it has.
    ///
    /// # Panics
    /// If it is not.
    pub fn on_completion(
        &mut self,
        completion: Completion,
        volume: &mut dyn Volume,
    ) -> Option<LabelOutcome> {
        assert!(self.is_mine(&completion), "a completion that nobody waits for");
        match self.task.take()? {
            Task::Read(first) => {
                let read = self.on_read(first, completion, volume)?;
                Some(LabelOutcome::Read(read))
            }
            Task::Write { generation, mut steps } => {
                let step = steps.pop_front()?;
                if let Err(error) = completion.result {
                    let error = self.on_unwritten(generation, &step, error);
                    return Some(LabelOutcome::Written(Err(error)));
                }
                self.on_written(generation, &step);
                if steps.is_empty() {
                    return Some(LabelOutcome::Written(Ok(generation)));
                }
                self.submit_step(&steps, volume);
                self.task = Some(Task::Write { generation, steps });
                None
            }
            Task::Erase(mut steps) => {
                steps.pop_front();
                if let Err(error) = completion.result {
                    return Some(LabelOutcome::Erased(Err(LabelError::Unerased(error))));
                }
                if steps.is_empty() {
                    self.known = Known::Ready { next: 1, unsettled: None };
                    return Some(LabelOutcome::Erased(Ok(())));
                }
                self.submit_step(&steps, volume);
                self.task = Some(Task::Erase(steps));
                None
            }
        }
    }

    /// A copy was read: what both say, if it was the second.
    fn on_read(
        &mut self,
        first: Option<Box<LabelImage>>,
        completion: Completion,
        volume: &mut dyn Volume,
    ) -> Option<Result<Finding, LabelError>> {
        if let Err(error) = completion.result {
            return Some(Err(LabelError::Unread(error)));
        }
        let mut image = Box::new([0; LABEL_BYTES]);
        completion.data.copy_to(&mut *image);
        let Some(first) = first else {
            self.submit_read(1, volume);
            self.task = Some(Task::Read(Some(image)));
            return None;
        };
        let images = [first, image];
        let copies = [0, 1].map(|copy| Label::decode(&images[copy]));
        let [a, b] = [0, 1].map(|copy| copies[copy].as_ref().ok().map(|label| label.generation));
        let newest = usize::from(a <= b);
        self.older = match &copies {
            [Ok(a), Ok(b)] => Some([a, b][1 - newest].state.clone()),
            _ => None,
        };
        let judged = judge(copies, volume.geometry().bytes);
        self.known = match &judged {
            // The first label goes to copy 1.
            Ok(Finding::Blank) => Known::Ready { next: 1, unsettled: Some(self.data(&images[0])) },
            Ok(Finding::Label(found)) if !found.label.may_write() => {
                let unknown = found.label.features.read_only_compatible;
                Known::Forbidden { error: LabelError::ReadOnly { unknown }, last: newest }
            }
            Ok(Finding::Label(found)) => match found.label.generation.checked_add(1) {
                Some(next) => Known::Ready { next, unsettled: Some(self.data(&images[newest])) },
                None => Known::Forbidden { error: LabelError::Exhausted, last: newest },
            },
            Err(error) => {
                let last = error.decided_by().unwrap_or(newest);
                Known::Forbidden { error: error.clone(), last }
            }
        };
        Some(judged)
    }

    /// A step of a write has succeeded.
    fn on_written(&mut self, generation: u64, step: &Step) {
        let Step::Write { copy, .. } = *step else { return };
        // Of the other copy: it is settled.
        let mut next = Some(generation);
        if copy == copy_of(generation) {
            let by = if self.canary == LabelsCanary::SameCopy { 2 } else { 1 };
            next = generation.checked_add(by);
        }
        self.known = ready(next);
    }

    /// A step of a write has failed.
    fn on_unwritten(&mut self, generation: u64, step: &Step, error: IoError) -> LabelError {
        match *step {
            Step::Flush => LabelError::Unflushed(error),
            Step::Write { copy, .. } if copy != copy_of(generation) => LabelError::Unsettled(error),
            Step::Write { .. } => {
                // What is known stays: the other copy, and where the next label goes.
                if self.canary == LabelsCanary::OtherAfterFailure {
                    self.known = ready(generation.checked_add(1));
                }
                LabelError::Unwritten { generation, error }
            }
        }
    }

    fn data(&self, image: &LabelImage) -> SegList {
        SegList::of(self.pool.copy_of(image).freeze())
    }

    fn submit_read(&self, copy: usize, volume: &mut dyn Volume) {
        let mut io = Io::new(self.token, Op::Read, LABEL_OFFSETS[copy], LABEL_BYTES as u64);
        // Another may have written it since it was read here.
        io.flags.uncached = true;
        volume.submit(io);
    }

    fn submit_step(&self, steps: &Steps, volume: &mut dyn Volume) {
        let io = match steps.front() {
            Some(Step::Write { copy, data }) => {
                let len = LABEL_BYTES as u64;
                let mut io = Io::new(self.token, Op::Write, LABEL_OFFSETS[*copy], len);
                (io.data, io.flags.fua, io.flags.meta) = (data.clone(), true, true);
                io
            }
            Some(Step::Flush) | None => Io::new(self.token, Op::Flush, 0, 0),
        };
        volume.submit(io);
    }
}

fn ready(next: Option<u64>) -> Known {
    match next {
        Some(next) => Known::Ready { next, unsettled: None },
        // Which is odd, as that of the copy that it is in.
        None => Known::Forbidden { error: LabelError::Exhausted, last: 1 },
    }
}

/// Whether the volume can have labels, or have them written.
fn check_fit(volume: &dyn Volume, to_write: bool) -> Result<(), LabelError> {
    let geometry = volume.geometry();
    if let Some(error) = is_too_small(geometry.bytes) {
        return Err(error);
    }
    let longest = u64::from(geometry.io_bytes_max);
    let why = if longest < LABEL_BYTES as u64 {
        format!(
            "takes at most {longest} bytes in one I/O, and a label has {LABEL_BYTES}: use another one"
        )
    } else if !(LABEL_BYTES as u64).is_multiple_of(geometry.block_bytes.into()) {
        format!(
            "has blocks of {} bytes, and a label has {LABEL_BYTES}: use another one",
            geometry.block_bytes
        )
    } else if to_write && geometry.features.read_only {
        "is read-only: open it for writing".into()
    } else {
        return Ok(());
    };
    Err(LabelError::Unfit { why })
}
