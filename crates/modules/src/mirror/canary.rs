//! [`MirrorCanary`]: what tests must find.

use super::Mirror;

/// A fault planted in it, which its tests must find. No flag sets one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MirrorCanary {
    /// None: as it is.
    #[default]
    None,
    /// A write is completed when the first leg has it.
    OneLegCompletes,
    /// Data goes to the legs beside the bits that tell of it.
    IntentAfterData,
    /// Data goes to legs that have its bits, before it is on record that another has not taken those.
    SendsBeforeRecord,
    /// The same, if it has taken them by now, or is another attachment.
    SendsBesideRecord,
    /// Bits are cleared without a flush.
    EarlyClear,
    /// Beside a write any leg is read.
    ReadsBesideWrites,
    /// Nor is anything flushed when it is closed.
    CloseWithoutFlush,
    /// A write takes for set what is being cleared.
    ClearOvertakesSet,
    /// A leg is in sync as soon as all is copied.
    InSyncBeforeFlush,
    /// What a dropped leg lacks is completed before that is on record.
    CompletionBeforeRecord,
    /// What is copied is not locked.
    NoRangeLock,
    /// What was open at a crash is read from all legs.
    TwoTruths,
    /// An opening draws no generation.
    QuietOpening,
    /// What the next generation is, is not announced.
    SinglePhase,
    /// A leg that is copied to keeps the generation that its label had.
    MarkWithoutName,
    /// Where legs differ a scrub copies what the first has.
    RepairsByGuess,
    /// What its own flushes fail to cover is told to nobody.
    QuietLoss,
    /// A snapshot is made of those legs that are in sync, whatever the others miss.
    CutsWhatIsThere,
    /// A leg that was added is copied to as its bits say, and nobody has set those.
    NewLegByBits,
    /// What a mirror grows by is left as it is.
    GrowsUnzeroed,
    /// A leg that was dropped while the mirror grows, and is back, has what was zeroed there before.
    TrustsZeroed,
    /// The new size stands in labels that announce the generation with which it comes.
    GrowsWhenAnnounced,
    /// Who asked for a leg more is told before that is on record.
    AdditionToldEarly,
    /// Who asked for a leg less is.
    RemovalToldEarly,
    /// A leg goes as soon as another one is copied to.
    ReplacesEarly,
    /// What is to go for another is known by its number, also when that is another's by then.
    ReplacesWhoeverIsThere,
    /// A leg that is back with other content is behind, as any other.
    FailsNobody,
    /// Reads take whatever a leg has, and what fits no sum is copied.
    UnverifiedSource,
    /// What is scrubbed, or mended, is not locked.
    NoLookLock,
    /// Behind a crash what one leg has fills in for another, also where users have read that other one since.
    ForgetsWhatWasRead,
    /// A leg that has nothing to do is not asked whether it is there when another one is silent.
    OneByOne,
    /// Who had something to do when the others were looked at is not asked later, either, though it has answered.
    ForgetsWhoAnswers,
    /// What a leg answers of one kind counts for the other.
    AnyAnswerCounts,
    /// A flush that has nothing to do counts as an answer, too.
    AnyFlushTells,
    /// Each label of a change has as long as the first.
    EachLabelAnew,
    /// Also while nobody can wait for it yet, a label as a whole has as long as one I/O.
    OpensInAHurry,
    /// Behind reads alone nothing is looked at any more, however long that goes on.
    SteadyForever,
    /// Who does one thing after the other is gone in between, if each takes long.
    IdleBetween,
    /// What was copied counts only when much was.
    SettlesLate,
    /// What is done beside users stands in no label.
    ForgetsWork,
    /// A scrub is on record as being where it reads.
    NotesAhead,
    /// What follows a block that does not fit is looked at block by block.
    BlockByBlock,
    /// A leg that has no room for what it has already is dropped for that.
    CopiesWhatIsAlike,
    /// Who may write the whole is stored on one leg.
    RecordOnOneLeg,
    /// That it is stored is told before it is.
    RecordToldEarly,
    /// It is taken from any leg, be it one that was dropped.
    RecordOfAnyLeg,
    /// Whoever is fenced at one leg goes on with the others.
    GoesOnFenced,
}

impl Mirror {
    /// Plants a fault, which tests must find.
    pub fn set_canary(&mut self, canary: MirrorCanary) {
        self.canary = canary;
    }
}
