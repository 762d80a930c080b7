//! Exports that are volumes of pools: a pool is one shard's, and so are all exports that have something of it; as are all that have slices of one disk, or share a
//! budget. That shard does what is asked of the pool, between its turns.

use thinwire_runtime::inquiry::{Clerk, ServedVolumes};

use crate::control::{PoolProgress, Response};
use crate::export::ExportSpec;
use crate::host::Host;
use crate::opened::OutlineNode;
use crate::pool::{PoolAsk, PoolDesk};
use crate::uri::VolumeSpec;
use crate::work::WorkAsk;

/// By number of an export, the first of those that have to be on its shard, if that is another.
pub(super) fn beside(exports: &[ExportSpec]) -> Vec<Option<usize>> {
    beside_all(exports.iter().map(|export| &export.volume))
}

/// What is one shard's.
enum Common<'a> {
    /// The pool of this volume, or this file or device.
    Ground(&'a VolumeSpec),
    /// The budget of this number.
    Share(u64),
}

impl Common<'_> {
    fn is(&self, other: &Common<'_>) -> bool {
        match (self, other) {
            (Common::Ground(one), Common::Ground(other)) => one.is_common_with(other),
            (Common::Share(one), Common::Share(other)) => one == other,
            _ => false,
        }
    }
}

fn beside_all<'a>(specs: impl Iterator<Item = &'a VolumeSpec>) -> Vec<Option<usize>> {
    // What was met that is one shard's, and the first with something of that.
    let mut met: Vec<(Common<'_>, usize)> = Vec::new();
    let mut firsts: Vec<usize> = Vec::new();
    for (number, spec) in specs.enumerate() {
        firsts.push(number);
        let grounds = spec.all_commons().into_iter().map(Common::Ground);
        for volume in grounds.chain(spec.shares().into_iter().map(Common::Share)) {
            let known = met.iter().find(|(other, _)| volume.is(other));
            match known.map(|&(_, with)| (firsts[with], firsts[number])) {
                // One with volumes of several pools brings together all that have some of them.
                Some((one, other)) => {
                    let (least, most) = (one.min(other), one.max(other));
                    let joined = firsts.iter_mut().filter(|first| **first == most);
                    joined.for_each(|first| *first = least);
                }
                None => met.push((volume, number)),
            }
        }
    }
    firsts.iter().enumerate().map(|(at, first)| (at != *first).then_some(*first)).collect()
}

/// Does what is asked of the pools of a shard: a [`PoolAsk`] as JSON, which a [`Response`] answers.
pub(super) struct PoolClerk {
    host: Host,
    desk: PoolDesk,
    /// By what number the shard knows what the desk does.
    numbers: Vec<(u64, u64)>,
    ended: Vec<(u64, Response)>,
}

impl PoolClerk {
    /// Of the pools that are open there.
    pub fn of(host: &Host) -> Self {
        let (host, desk) = (host.clone(), PoolDesk::default());
        PoolClerk { host, desk, numbers: Vec::new(), ended: Vec::new() }
    }

    /// Begins to have volumes of this outline grow.
    pub fn grow(&mut self, number: u64, ask: &WorkAsk, outline: &[OutlineNode]) {
        let begun =
            self.desk.grow(ask, outline, (&self.host.wholes().all(), &self.host.known_keys()));
        self.on_begun(number, begun);
    }

    /// What was asked has been done to volumes of this outline, which that answers.
    pub fn keep(&mut self, number: u64, done: (&WorkAsk, Response), outline: &[OutlineNode]) {
        let begun = self.desk.keep(done, outline, &self.host.wholes().all());
        self.on_begun(number, begun);
    }

    /// Nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.desk.is_idle()
    }

    fn on_begun(&mut self, number: u64, begun: PoolProgress) {
        match begun {
            PoolProgress::Started(own) => self.numbers.push((own, number)),
            PoolProgress::Ended(response) => self.ended.push((number, response)),
        }
    }
}

impl Clerk for PoolClerk {
    fn begin(&mut self, number: u64, words: &str, _: &mut dyn ServedVolumes) {
        let begun = match serde_json::from_str::<PoolAsk>(words) {
            Ok(ask) => self.desk.begin(&ask, &self.host.commons().all(), &self.host.cuts().all()),
            Err(e) => PoolProgress::Ended(Response::Refused { why: e.to_string() }),
        };
        self.on_begun(number, begun);
    }

    fn tend(&mut self, ended: &mut Vec<(u64, String)>, _: &mut dyn ServedVolumes) {
        let mut own = Vec::new();
        self.desk.finish(&mut own);
        for (own, response) in own {
            let at = self.numbers.iter().position(|(begun, _)| *begun == own);
            let number = at.map(|at| self.numbers.swap_remove(at).1);
            self.ended.extend(number.map(|number| (number, response)));
        }
        ended.extend(self.ended.drain(..).map(|(number, response)| {
            (number, serde_json::to_string(&response).unwrap_or_default())
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempDir;

    #[test]
    fn what_has_volumes_of_a_pool_is_together() {
        let dir = TempDir::new("beside");
        let file = dir.path().join("p.toml");
        let pool = |name: &str| {
            format!(
                "[[volume]]\nname = \"{name}\"\nkind = \"thin\"\nchildren = [\"/{name}1\", \"/{name}2\"]\n"
            )
        };
        std::fs::write(&file, pool("p") + &pool("q")).unwrap();
        let of = |name: &str| format!("{}#{name}", file.display());
        let beside = |texts: &[String]| {
            let specs: Vec<VolumeSpec> = texts.iter().map(|text| text.parse().unwrap()).collect();
            beside_all(specs.iter())
        };
        let (pa, pb, qa, qb) = (of("p@a"), of("p@b"), of("q@a"), of("q@b"));
        let other = || "memory:1M".to_owned();
        assert_eq!(
            beside(&[other(), pa.clone(), qa.clone(), pb.clone()]),
            [None, None, None, Some(1)]
        );
        let both = format!("linear:[{pb},{qb}]");
        assert_eq!(
            beside(&[pa.clone(), qa.clone(), other(), both.clone()]),
            [None, Some(0), None, Some(0)]
        );
        assert_eq!(beside(&[both, qa, pa]), [None, Some(0), Some(0)]);
        assert_eq!(
            beside(&[other(), format!("slice:[{}]?size=4096", of("p@c")), of("p@d")]),
            [None, None, Some(1)]
        );
    }

    #[test]
    fn slices_of_one_disk_are_together() {
        let dir = TempDir::new("beside-slices");
        let path = |name: &str| dir.path().join(name);
        ["a", "b"].iter().for_each(|name| std::fs::write(path(name), [0; 4096]).unwrap());
        std::os::unix::fs::symlink("a", path("link")).unwrap();
        let pool = "[[volume]]\nname = \"p\"\nkind = \"thin\"\nchildren = [\"slice:[a]?size=512\", \"slice:[b]?size=512\"]\n";
        std::fs::write(path("p.toml"), pool).unwrap();
        let slice =
            |name: &str, at: u32| format!("slice:[{}]?offset={at}&size=512", path(name).display());
        let beside = |texts: &[String]| {
            let specs: Vec<VolumeSpec> = texts.iter().map(|text| text.parse().unwrap()).collect();
            beside_all(specs.iter())
        };
        let (a, b) = (slice("a", 512), slice("b", 512));
        assert_eq!(beside(&[a.clone(), b.clone(), slice("link", 1024)]), [None, None, Some(0)]);
        let deep = format!("linear:[slice:[{}]?size=512,memory:1M]", slice("a", 2048));
        assert_eq!(beside(&[b.clone(), a.clone(), deep]), [None, None, Some(1)]);
        // What a pool stands on, too.
        let of_pool = format!("{}@v", path("p.toml#p").display());
        assert_eq!(beside(&[a, b, of_pool]), [None, Some(0), Some(0)]);
    }

    #[test]
    fn what_shares_a_budget_is_together() {
        let beside = |texts: &[&str]| {
            let specs: Vec<VolumeSpec> = texts.iter().map(|text| text.parse().unwrap()).collect();
            beside_all(specs.iter())
        };
        let (one, two) = ("qos:[memory:1M]?iops=9&share=1", "qos:[memory:2M]?iops=9&share=2");
        let both = "linear:[qos:[memory:1M]?iops=9&share=1,qos:[memory:2M]?iops=9&share=2]";
        let alone = "qos:[memory:1M]?iops=9";
        assert_eq!(beside(&[alone, one, alone, two, one]), [None, None, None, None, Some(1)]);
        assert_eq!(beside(&[one, two, both]), [None, Some(0), Some(0)]);
    }
}
