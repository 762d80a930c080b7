//! Who writes a content: runs that are granted it, one after the other, and how each ends.

use super::{Check, Entry, Model, ModelEffect, Range, State};

impl Model {
    /// Under which generation it is written at present.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The run that writes at present, 0 if none does.
    pub fn run(&self) -> u32 {
        self.run
    }

    /// A writer has been granted the export under this generation: whoever was it before is not
    /// any more. False if a later one has been granted it already.
    pub fn run_started(&mut self, run: u32, generation: u64) -> bool {
        if generation <= self.generation {
            return false;
        }
        self.drop_run();
        self.run = run;
        self.generation = generation;
        true
    }

    /// As [`Model::run_started`], where a grant is one station's and outlives its runs: this one may have the grant that
    /// the run before it had.
    pub fn run_follows(&mut self, run: u32, generation: u64) -> bool {
        if generation < self.generation {
            return false;
        }
        self.drop_run();
        (self.run, self.generation) = (run, generation);
        true
    }

    /// As [`Model::run_follows`], of a run that has asked for these writes before it was granted the export, if it was not its
    /// writer already: they come now, in this order. `late` are such as former runs of it have asked for, which may come, or not.
    pub fn run_adopts(
        &mut self,
        run: u32,
        generation: u64,
        late: impl Iterator<Item = (u32, Range, u64)>,
        asked: impl Iterator<Item = (Range, u64)>,
    ) {
        if run == self.run {
            self.generation = self.generation.max(generation);
            return;
        }
        if !self.run_follows(run, generation) {
            return;
        }
        let late = late.map(|(of, range, stamp)| (of, range, stamp, State::Unknown));
        let asked = asked.map(|(range, stamp)| (run, range, stamp, State::Open));
        for (run, range, stamp, state) in late.chain(asked) {
            self.last_version += 1;
            let (version, effect) = (self.last_version, ModelEffect::Data);
            for at in range.iter() {
                self.sectors[at].history.push(Entry { version, stamp, effect, state, run });
            }
        }
    }

    /// What a run was told of, and nothing has made durable, may be lost, and it is not told: also of when it was the writer
    /// before, if it is not at present and becomes it again.
    pub fn forget_unflushed(&mut self, run: u32) {
        if run == self.run {
            self.lose_unflushed();
        }
        for sector in &mut self.sectors {
            let durable = sector.durable;
            let may_be_lost =
                |e: &&mut Entry| e.run == run && e.state == State::Done && e.version > durable;
            sector.history.iter_mut().filter(may_be_lost).for_each(|e| e.state = State::Unknown);
        }
    }

    /// Somebody writes it where it lies, under no generation of its own: whoever was the writer must not be
    /// any more.
    pub fn outsider_came(&mut self, run: u32) {
        self.drop_run();
        self.run = run;
    }

    /// A writer has crashed, was fenced or has failed.
    pub fn run_ended(&mut self, run: u32) {
        if self.run == run {
            self.drop_run();
            self.run = 0;
        }
    }

    pub(super) fn drop_run(&mut self) {
        // What a flush that is on its way was to cover is another's by now.
        self.unflushed_base += self.unflushed.len() as u64;
        self.unflushed.clear();
        self.owed = None;
        for sector in &mut self.sectors {
            sector.observed = None;
            for entry in &mut sector.history {
                if matches!(entry.state, State::Open | State::Doubtful) {
                    entry.state = State::Unknown;
                }
            }
        }
    }

    /// A writer has detached in order: everything it was told is durable.
    pub fn run_detached(&mut self, run: u32) -> Check {
        if self.run == run {
            if self.owed.is_some() {
                return self.fail("it was detached in order though a replay had failed");
            }
            let all = std::mem::take(&mut self.unflushed);
            self.unflushed_base += all.len() as u64;
            for (range, version) in all {
                self.raise_durable(range, version);
            }
            self.run = 0;
        }
        Ok(())
    }
}
