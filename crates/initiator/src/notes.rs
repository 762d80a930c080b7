//! What a person wants to read of an attachment as it happens.

use thinwire_proto::{Notice, Time};
use thinwire_volume::{Effect, Gravity};

use crate::{AlteredStats, Initiator, Phase, Timer};

impl Initiator {
    /// Leaves what there is to say, once it has been attached for the first time. Only if it has a label:
    /// others take their notices themselves.
    pub(crate) fn tell(&mut self, now: Time, effects: &mut Vec<Effect>) {
        if self.label().is_empty() || !self.is_open() {
            return;
        }
        while let Some(notice) = self.take_notice() {
            let path = self.path_name(&notice);
            let (gravity, text) = match notice {
                Notice::PathUp(_) => (Gravity::News, format!("{path} is up")),
                Notice::PathDown(_) => (Gravity::Warning, format!("{path} does not answer")),
                Notice::FrameSize { used, limit, .. } => {
                    let text = format!(
                        "{path} carries frames of {used} bytes only, although both ends allow \
                         {limit}: a switch port or a cable in between has a smaller MTU. I/O goes on, \
                         slower"
                    );
                    (Gravity::Warning, text)
                }
            };
            effects.push(Effect::Note(gravity, format!("{}: {text}", self.label())));
        }
        if let Some(altered) = self.altered_news(now) {
            let AlteredStats { writes, here, reads, failed } = altered;
            let text = format!(
                "data was altered in memory or on a link, behind the checks of that: {writes} writes ({here} of them on this \
                 machine) and {reads} reads so far, found by their sums; {failed} I/Os failed for it, the others were made \
                 once more. Suspect memory first, then network adapters"
            );
            effects.push(Effect::Note(Gravity::Warning, format!("{}: {text}", self.label())));
        }
        if let Some((gravity, text)) = self.news_of_phase(now) {
            effects.push(Effect::Note(gravity, format!("{}: {text}", self.label())));
        }
    }

    /// By the address at its other end, as status shows it; by its number once it is gone.
    fn path_name(&self, notice: &Notice) -> String {
        let (Notice::PathUp(path) | Notice::PathDown(path) | Notice::FrameSize { path, .. }) =
            *notice;
        match self.path_addr(path) {
            Some(addr) => format!("the path to {addr}"),
            None => format!("path {path}"),
        }
    }

    /// The target goes away, comes back, or is lost for good.
    fn news_of_phase(&mut self, now: Time) -> Option<(Gravity, String)> {
        let phase = self.phase();
        if !self.is_news(phase) {
            return None;
        }
        if let (Phase::Away, Some(Timer::FailAfter(left))) = (phase, self.timer(now)) {
            let left = left.as_secs_f64();
            let text = format!("the target does not answer; I/O fails in {left:.0} s");
            return Some((Gravity::Warning, text));
        }
        let (gravity, text) = match (phase, self.failure()) {
            (Phase::Failed, Some(kind)) => (Gravity::Failure, kind.describe()),
            (Phase::Failed, None) => (Gravity::Failure, "lost for good"),
            (Phase::Away, _) => (Gravity::Warning, "the target does not answer; I/O waits"),
            (Phase::Replaying, _) => (Gravity::Warning, "writing again what the target lost"),
            (Phase::Attached, _) => (Gravity::Warning, "attached again"),
            (Phase::Connecting | Phase::Detaching | Phase::Closed, _) => return None,
        };
        Some((gravity, text.to_owned()))
    }
}
