//! [`MirrorConfig`]: how a mirror is opened, and what it is handed.

use std::time::Duration;

use thinwire_buffer::Pool;

use super::{Generation, LegKeeper, OpeningWish};

/// Draws generations: random, never zero, and never the same twice. Whoever opens a mirror has the entropy.
pub trait DrawGeneration {
    /// The next one.
    fn draw(&mut self) -> Generation;
}

/// How a mirror is opened.
pub struct MirrorConfig {
    /// Names what the data is from now on.
    pub generations: Box<dyn DrawGeneration>,
    /// Memory for bitmaps.
    pub pool: Pool,
    /// What whoever asks has been told, and wants all the same.
    pub wish: OpeningWish,
    /// Nothing is written to any leg, neither data nor what tells of it: legs that lack something are left alone, and
    /// what was open at a crash is read from one leg, which the same legs always have in common. Default: no.
    pub read_only: bool,
    /// Now, in seconds since 1970, for people to read; 0 if there is no clock.
    pub opened_at: u64,
    /// A leg that has answered nothing for so long, of which a turn counts for a second at most, is dropped, while another is
    /// in sync; so is one whose labels take longer than that, those of one change together. What it answers of reads says nothing of the rest,
    /// and the other way round. One that answers others of the same kind has [`LATE_TIMES`](super::LATE_TIMES) as long. Legs that are dead by then are dropped with it:
    /// so users wait no more than half a second longer than that behind the last that has died. 5 seconds by custom.
    pub leg_timeout: Duration,
    /// Brings legs back while it is in use. Without one they come with the next opening, or by [`Mirror::return_leg`](super::Mirror::return_leg).
    pub keeper: Option<Box<dyn LegKeeper>>,
}
