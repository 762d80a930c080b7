//! Volumes with sums keep in their labels how fast they work for themselves, or that they are paused, as mirrors do by themselves: written between turns of whatever
//! drives them.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use thinwire_modules::meta::{GrowthError, LabelWork, WholeGrowth};
use thinwire_runtime::clock::entropy_bytes;
use thinwire_volume::WorkPace;

use crate::control::Response;
use crate::growth::WholeDesk;
use crate::opened::OutlineNode;
use crate::trees::NodeName;
use crate::work::{NodeStatus, WorkAction, WorkAsk};

/// A label, and what it is to say.
type Wanted = (Rc<RefCell<WholeGrowth>>, WorkPace);

/// Something that was done, and is told of once labels say so.
struct UnderWay {
    number: u64,
    response: Option<Response>,
    todo: VecDeque<Wanted>,
    /// The first of them is being written.
    is_begun: bool,
}

/// Has labels say how fast volumes work.
#[derive(Default)]
pub struct PacesDesk {
    under_way: Vec<UnderWay>,
}

impl PacesDesk {
    /// Nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.under_way.is_empty()
    }

    /// What was asked has been done to volumes of this outline, of which `open` are open, and this answers: back at once if no label has to say it, else it is
    /// told under that number.
    pub fn begin(
        &mut self,
        number: u64,
        (ask, response): (&WorkAsk, Response),
        outline: &[OutlineNode],
        open: &[(NodeName, WholeDesk)],
    ) -> Option<Response> {
        let is_told = matches!(ask.request.action, WorkAction::Pause | WorkAction::Resume);
        let (true, Response::Volume { nodes }) =
            (is_told || ask.request.percent.is_some(), &response)
        else {
            return Some(response);
        };
        let is_it =
            |of: &OutlineNode| of.node.as_ref().is_some_and(|node| node.is_same(&ask.volume));
        let at = outline.iter().position(is_it).unwrap_or(outline.len());
        let todo = unsaid(&outline[at..], nodes, open);
        if todo.is_empty() {
            return Some(response);
        }
        let (response, is_begun) = (Some(response), false);
        self.under_way.push(UnderWay { number, response, todo, is_begun });
        None
    }

    /// Goes on, and appends what has ended since the last call, and how.
    pub fn finish(&mut self, ended: &mut Vec<(u64, Response)>) {
        self.under_way.retain_mut(|one| match one.go_on() {
            None => true,
            Some(response) => {
                ended.push((one.number, response));
                false
            }
        });
    }
}

/// Those of a tree whose labels do not say yet how they stand. What is below a mirror is told with that, which keeps it.
fn unsaid(
    tree: &[OutlineNode],
    nodes: &[NodeStatus],
    open: &[(NodeName, WholeDesk)],
) -> VecDeque<Wanted> {
    let (mut found, mut mirror) = (VecDeque::new(), None);
    for (node, status) in tree.iter().zip(nodes) {
        let is_below = mirror.is_some_and(|depth| node.depth > depth);
        if !is_below {
            mirror = (node.kind == "mirror").then_some(node.depth);
        }
        let (Some(name), Some(work)) = (&node.node, &status.work) else { continue };
        let desk = open.iter().find(|(of, _)| of.is_same(name)).map(|(_, desk)| desk);
        let Some(WholeDesk::Whole(whole)) = desk else { continue };
        let pace = WorkPace { is_paused: work.paused, percent: work.percent };
        let said = whole.borrow_mut().label().ok().map(|label| label.work);
        // Below one it may have been told something while it was by itself.
        let has_own = !is_below || said.is_none_or(|work| work.is_some());
        if has_own && said.map(|work| work.unwrap_or_default().pace) != Some(pace) {
            found.push_back((whole.clone(), pace));
        }
    }
    found
}

impl UnderWay {
    /// The answer, once all labels say it.
    fn go_on(&mut self) -> Option<Response> {
        let refused = |error: &dyn std::fmt::Display| {
            Some(Response::Refused {
                why: format!(
                    "it is so until it is opened anew, and its label does not say it: {error}"
                ),
            })
        };
        while let Some((whole, pace)) = self.todo.front().cloned() {
            let whole = &mut *whole.borrow_mut();
            if !self.is_begun {
                let id = *entropy_bytes().first_chunk().expect("there are 32");
                let work = LabelWork { pace, scrubbed_to: None };
                match whole.begin_work(id, (work != LabelWork::default()).then_some(work)) {
                    Ok(()) => self.is_begun = true,
                    Err(GrowthError::Busy) => return None,
                    Err(error) => return refused(&error),
                }
            }
            match whole.turn() {
                Some(Ok(_)) => {}
                Some(Err(error)) => return refused(&error),
                None if whole.is_over() => return refused(&"it has ended meanwhile"),
                None => return None,
            }
            self.is_begun = false;
            self.todo.pop_front();
        }
        self.response.take()
    }
}
