//! What the document about EBD states, and what we have to set beside it.

use std::sync::LazyLock;

use serde::Deserialize;

use super::{DEEP, EBD, LARGE, ONE, SECTORS, ext2, frames, free, loads, octets_beside, offered};
use crate::experiments::{NONE, Table};
use crate::figures::Figures;
use crate::offered::{Ext2Disk, Loss, Medium, Protocol};
use crate::point::{Load, Subject};
use crate::stats::Spread;
use crate::view::View;

/// The document, as far as it is shown.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    title: String,
    authors: Vec<String>,
    statements: Vec<Statement>,
}

/// What its text states.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Statement {
    id: String,
    /// Section, or abstract.
    r#where: String,
    text: String,
    /// Its number, if it gives one.
    document: String,
}

fn document() -> &'static Document {
    static DOCUMENT: LazyLock<Document> = LazyLock::new(|| {
        serde_json::from_str(include_str!("../../../data/ebd.json"))
            .expect("the data file is valid: a test reads it")
    });
    &DOCUMENT
}

/// All of them.
pub fn table(view: &View) -> Table {
    let document = document();
    let title =
        format!("What is stated by {}, \"{}\"", document.authors.join(", "), document.title);
    let mut table = Table::new(title, &["", "where", "what it states", "document", "ours"]);
    for stated in &document.statements {
        let Statement { id, r#where, text, document } = stated;
        let cells = [id, r#where, text, document].map(String::clone);
        table.rows.push([Vec::from(cells), vec![ours(view, id)]].concat());
    }
    table
}

/// Ours beside a statement, or why there is none.
fn ours(view: &View, id: &str) -> String {
    match id {
        "b1" => ahead_of_nbd(view),
        "b2" => memory_of_the_server(view),
        "b3" => "not measured: PostMark is not part of this experiment".into(),
        "b4" => slowest(view),
        "b5" => writes_in_order(view),
        "b6" => rounds_ended(view),
        "b7" => "not shown: see docs/swap-and-root.md".into(),
        "b8" => "not here: shown in guests, fdisk included; mkswap is not".into(),
        "b10" => "not here: shown in a guest with a kernel of its own".into(),
        "b9" => "taken: a WRITE may be shorter than a block. Shown by tests with checksums, from 512 bytes on".into(),
        "b11" => octets(view),
        "b12" => memory_of_the_target(view),
        "b13" => mending(view),
        "b14" => by_sectors(view),
        "b15" => "not measured: our client has no queue in which it would cluster; what a turn has is sent in one call".into(),
        _ => unreachable!("a test looks at all of them"),
    }
}

fn shown(spread: Option<Spread>, digits: usize) -> String {
    spread.map_or(NONE.into(), |s| s.show(digits))
}

fn over(view: &View, load: Load, [a, b]: [Subject; 2], of: fn(&Figures) -> f64) -> String {
    shown(view.ratio(&free(load, a), &free(load, b), of), 2)
}

fn ahead_of_nbd(view: &View) -> String {
    let of = |load| over(view, load, [EBD, Subject::Nbdkit], |f| f.iops);
    let [reads, random_reads, random_writes] = [LARGE[0], DEEP[0], DEEP[1]].map(of);
    let [fits, _] = ext2::FILES_MIB;
    let file = |load| ext2::over(view, load, fits, Ext2Disk::Nbd, |f| f.mib_per_s);
    let [in_order, at_random, written] =
        [ext2::READS, ext2::RANDOM_READS, ext2::RANDOM_WRITES].map(file);
    format!(
        "of nbdkit's rate: {reads}, {random_reads}, {random_writes}; a file of {fits} MiB in ext2: {in_order}, {at_random}, \
         {written}"
    )
}

fn memory_of_the_server(view: &View) -> String {
    let of = |medium| {
        let pair = [offered(Protocol::Ebd, medium), Subject::NbdkitHeld(medium)];
        [LARGE[0], DEEP[0]].map(|load| over(view, load, pair, |f| f.iops))
    };
    let ([reads, random], [reads_beyond, random_beyond]) = (of(Medium::Fits), of(Medium::Exceeds));
    let own = |load| {
        let [a, b] = [Medium::Fits, Medium::Exceeds].map(|m| offered(Protocol::Ebd, m));
        over(view, load, [a, b], |f| f.iops)
    };
    let (own_reads, own_random) = (own(LARGE[0]), own(DEEP[0]));
    let [fits, exceeds] = ext2::FILES_MIB;
    let of_file = |below| {
        let [a, b] = [fits, exceeds].map(|mib| ext2::point(ext2::READS, below, mib));
        shown(view.ratio(&a, &b, |f| f.mib_per_s), 2)
    };
    let (file, file_of_nbd) = (of_file(Ext2Disk::Ebd), of_file(Ext2Disk::Nbd));
    format!(
        "of nbdkit's rate, 32 KiB reads in order and 4 KiB random ones: {reads} and {random} where it fits, \
         {reads_beyond} and {random_beyond} where it does not; of its own, where it fits over where it does not: {own_reads} \
         and {own_random}. Reading a file of {fits} MiB in ext2 over one of {exceeds}: {file}, nbdkit's {file_of_nbd}"
    )
}

fn slowest(view: &View) -> String {
    let max = |f: &Figures| f.max_us.unwrap_or(f64::NAN);
    let native = offered(Protocol::Native, Medium::Memory);
    let [to_nbd, to_native] =
        [Subject::Nbdkit, native].map(|other| over(view, LARGE[1], [EBD, other], max));
    let mean = over(view, LARGE[1], [EBD, Subject::Nbdkit], |f| f.mean_us);
    let [_, exceeds] = ext2::FILES_MIB;
    let file = ext2::over(view, ext2::WRITES, exceeds, Ext2Disk::Nbd, max);
    format!(
        "no NFS here. 32 KiB writes in order, slowest of a run: {to_nbd} of nbdkit's, {to_native} of the native protocol's; \
         mean {mean} of nbdkit's. Of a file of {exceeds} MiB in ext2 the slowest: {file} of nbdkit's"
    )
}

fn writes_in_order(view: &View) -> String {
    let [fits, exceeds] = ext2::FILES_MIB;
    let of = |mib| {
        [Ext2Disk::Nbd, Ext2Disk::Native, Ext2Disk::Here]
            .map(|other| ext2::over(view, ext2::WRITES, mib, other, |f| f.mib_per_s))
            .join(", ")
    };
    format!(
        "the kernel has no client of NFS here. A file in ext2, EBD's rate over those of nbdkit, of the native protocol, of the image \
         here: {} ({fits} MiB); {} ({exceeds} MiB)",
        of(fits),
        of(exceeds)
    )
}

/// What is lost makes the mean longer, by its share times the time in which it is mended.
fn mending(view: &View) -> String {
    let whole = free(ONE, EBD);
    let of = |loss: Loss| {
        let point = free(ONE, offered(Protocol::EbdLossy(loss), Medium::Memory));
        let lost = lost_of_requests(loss.percent() / 100.0);
        let mended = view.together([&point, &whole], |[a, b]| (a.mean_us - b.mean_us) / lost / 1e3);
        format!("{} %: {} ms", loss.percent(), shown(mended, 0))
    };
    format!(
        "one 4 KiB read outstanding, frames lost each way, mean time until a lost one is mended: {}. 50 ms is the shortest \
         timeout. Needless ones are not counted here",
        Loss::ALL.map(of).join("; ")
    )
}

/// Of requests of one frame and answers of one, how many lose one of them, a frame in so many being lost.
fn lost_of_requests(loss: f64) -> f64 {
    1.0 - (1.0 - loss) * (1.0 - loss)
}

fn rounds_ended(view: &View) -> String {
    let count = |subject| -> usize {
        let rounds = |load| view.spread(&free(load, subject), |f| f.iops).map_or(0, |s| s.rounds);
        loads().map(rounds).sum()
    };
    format!("{} runs of nbdkit and {} of EBD ended in time", count(Subject::Nbdkit), count(EBD))
}

fn octets(view: &View) -> String {
    let of = |protocol| {
        let each = |load: Load| {
            let point = free(load, offered(protocol, Medium::Memory));
            let of_mebibyte = f64::from(1 << 20) / f64::from(load.block);
            match (octets_beside(view, &point), frames(view, &point)) {
                (Some(octets), Some(frames)) => {
                    format!("{:.0} in {:.0}", octets * of_mebibyte, frames * of_mebibyte)
                }
                _ => NONE.into(),
            }
        };
        let [read, written] = LARGE.map(each);
        format!("{} {read} and {written}", protocol.word())
    };
    let all =
        [Protocol::EbdIdeal, Protocol::Ebd, Protocol::Ebd1024, Protocol::Aoe, Protocol::Native];
    format!(
        "28 idealised, 36 implemented (18 of header cannot be 34 in all). On the wire beside 1 MiB read and written, octets and \
         frames: {}",
        all.map(of).join("; ")
    )
}

fn memory_of_the_target(view: &View) -> String {
    let most = |subject| {
        let of = |load| view.spread_of_some(&free(load, subject), |f| f.server_mib);
        let all = loads().filter_map(of).map(|s| s.max);
        all.reduce(f64::max).map_or(NONE.into(), |mib| format!("{mib:.0}"))
    };
    let on_disk = |protocol| most(offered(protocol, Medium::Image));
    format!(
        "frames wait in a socket of bounded size, beyond which they are lost and asked again. Most memory of a target of an \
         image, MiB: {} over EBD, {} over AoE, {} native",
        on_disk(Protocol::Ebd),
        on_disk(Protocol::Aoe),
        on_disk(Protocol::Native)
    )
}

fn by_sectors(view: &View) -> String {
    let of = |load: Load| {
        let point = free(load, EBD);
        let rate = view.spread(&point, |f| f.mib_per_s);
        let p99 = view.spread_of_some(&point, |f| f.p99_us).map(|s| s.median);
        let p99 = p99.map_or(NONE.into(), |us| format!("{us:.0} us"));
        format!("{}: {} MiB/s, p99 {p99}", load.block / 512, shown(rate, 0))
    };
    let all = SECTORS.map(of).join("; ");
    format!("512 KiB outstanding, sectors of a read: {all}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Form;
    use crate::store::{SampleStore, tests::folder};

    #[test]
    fn all_statements_have_something_beside_them() {
        let folder = folder("ebd-statements");
        let store = SampleStore::open(&folder, "b", "m").unwrap();
        let table = table(&View::new(&store, &super::super::plan(), Form::Full));
        let ids: Vec<String> = (1..=15).map(|n| format!("b{n}")).collect();
        assert_eq!(table.rows.iter().map(|row| row[0].clone()).collect::<Vec<_>>(), ids);
        assert!(table.rows.iter().all(|row| row.iter().all(|cell| !cell.is_empty())));
        std::fs::remove_dir_all(&folder).unwrap();
        assert!((lost_of_requests(0.01) - 0.0199).abs() < 1e-9);
    }
}
