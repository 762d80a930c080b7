//! What a person wants to read of an attachment as it happens.

use thinwire_proto::Notice;
use thinwire_volume::{Effect, Gravity};

use crate::{Initiator, Phase};

impl Initiator {
    /// Leaves what there is to say, once it has been attached for the first time. Only if it has a label:
    /// others take their notices themselves.
    pub(crate) fn tell(&mut self, effects: &mut Vec<Effect>) {
        if self.label().is_empty() || !self.is_open() {
            return;
        }
        while let Some(notice) = self.take_notice() {
            let (gravity, text) = match notice {
                Notice::PathUp(path) => (Gravity::News, format!("path {path} is up")),
                Notice::PathDown(path) => {
                    (Gravity::Warning, format!("path {path} does not answer"))
                }
                Notice::FrameSize { path, used, limit } => {
                    let text = format!(
                        "path {path} carries frames of {used} bytes only, although both ends allow \
                         {limit}: a switch port or a cable in between has a smaller MTU. I/O goes on, \
                         slower"
                    );
                    (Gravity::Warning, text)
                }
            };
            effects.push(Effect::Note(gravity, format!("{}: {text}", self.label())));
        }
        if let Some((gravity, text)) = self.news_of_phase() {
            effects.push(Effect::Note(gravity, format!("{}: {text}", self.label())));
        }
    }

    /// The target goes away, comes back, or is lost for good.
    fn news_of_phase(&mut self) -> Option<(Gravity, &'static str)> {
        let phase = self.phase();
        if !self.is_news(phase) {
            return None;
        }
        Some(match (phase, self.failure()) {
            (Phase::Failed, Some(kind)) => (Gravity::Failure, kind.describe()),
            (Phase::Failed, None) => (Gravity::Failure, "lost for good"),
            (Phase::Away, _) => (Gravity::Warning, "the target does not answer; I/O waits"),
            (Phase::Replaying, _) => (Gravity::Warning, "writing again what the target lost"),
            (Phase::Attached, _) => (Gravity::Warning, "attached again"),
            (Phase::Connecting | Phase::Detaching | Phase::Closed, _) => return None,
        })
    }
}
