//! What stays, what goes, and what is dropped.

use super::*;

fn pages(count: u64) -> Pages {
    let pages = Pages::new(count * PAGE_COST_BYTES);
    assert_eq!(pages.most as u64, count - count.div_ceil(COPIES as u64));
    pages
}

/// Reads a page: keeps it if it is not here. Whether it was.
fn read(pages: &mut Pages, page: u64) -> bool {
    match pages.find(page) {
        Some(at) => {
            assert_eq!(pages.give(at)[..8], page.to_le_bytes());
            true
        }
        None => {
            pages.insert(page, false, |place| place[..8].copy_from_slice(&page.to_le_bytes()));
            false
        }
    }
}

#[test]
fn what_is_read_once_pushes_out_nothing_that_is_read_often() {
    let mut pages = pages(1000);
    let hot = 0..500;
    for _ in 0..4 {
        hot.clone().for_each(|page| _ = read(&mut pages, page));
    }
    (10_000..50_000).for_each(|page| _ = read(&mut pages, page));
    let kept = hot.clone().filter(|&page| read(&mut pages, page)).count();
    assert_eq!(kept, 500);
    assert!((40_000..50_000).filter(|&page| pages.find(page).is_some()).count() < 600);
}

#[test]
fn what_comes_again_soon_after_it_went_is_kept_for_longer() {
    let mut pages = pages(1000);
    (0..900).for_each(|page| _ = read(&mut pages, page));
    (10_000..10_200).for_each(|page| _ = read(&mut pages, page));
    assert!(!read(&mut pages, 0), "it went, as it was read once");
    (20_000..23_000).for_each(|page| _ = read(&mut pages, page));
    assert!(read(&mut pages, 0));
    assert!(!read(&mut pages, 10_000));
}

/// As it would be without reading ahead, but for what nobody asked for, which is not remembered.
#[test]
fn what_is_read_ahead_comes_when_it_is_asked_for() {
    let ahead = |pages: &mut Pages, range: Range<u64>| {
        range.for_each(|page| {
            pages.insert(page, true, |place| place[..8].copy_from_slice(&page.to_le_bytes()));
        });
    };
    let mut pages = pages(1000);
    let hot = 0..500;
    for _ in 0..4 {
        hot.clone().for_each(|page| _ = read(&mut pages, page));
    }
    // A stream of everything, of which half is read: once, and not to be kept for that.
    for first in (10_000..60_000).step_by(32) {
        ahead(&mut pages, first..first + 32);
        (first..first + 16).for_each(|page| assert!(read(&mut pages, page)));
    }
    let kept = hot.clone().filter(|&page| read(&mut pages, page)).count();
    assert_eq!((kept, pages.first_uses()), (500, 50_000 / 32 * 16 + 16));
    // What went lately comes back to stay, but only for who asks for it.
    let is_main = |pages: &Pages, page| pages.entries[pages.find(page).unwrap() as usize].is_main;
    let mut pages = super::tests::pages(1000);
    let fill =
        |pages: &mut Pages, from: u64| (from..from + 970).for_each(|page| _ = read(pages, page));
    fill(&mut pages, 0);
    assert!(pages.find(0).is_none() && pages.find(1).is_none());
    ahead(&mut pages, 0..2);
    assert!(!is_main(&pages, 0) && read(&mut pages, 0));
    fill(&mut pages, 1000);
    assert!(is_main(&pages, 0) && pages.find(1).is_none());
    // What nobody ever asked for never was read.
    ahead(&mut pages, 5000..5001);
    fill(&mut pages, 2000);
    assert!(pages.find(5000).is_none());
    read(&mut pages, 5000);
    assert!(!is_main(&pages, 5000));
}

#[test]
fn a_chance_is_not_taken_for_ever() {
    let mut pages = pages(1000);
    for _ in 0..10 {
        (0..2000).for_each(|page| _ = read(&mut pages, page % 900));
    }
    (1000..1000 + pages.most as u64 - 900).for_each(|page| _ = read(&mut pages, page));
    assert_eq!(pages.small.len + pages.main.len, pages.most);
    // Each that comes looks at a few of those that have chances.
    let looks = (0..100).position(|_| read(&mut pages, 5000)).unwrap();
    assert!((2..60).contains(&looks), "{looks}");
    for page in 6000..6200 {
        read(&mut pages, page);
        assert!(pages.small.len + pages.main.len <= pages.most);
    }
}

#[test]
fn what_is_dropped_is_not_here_and_its_memory_is_used_again() {
    let mut pages = pages(200);
    let all = || 0..150u64;
    let here = |pages: &Pages| all().filter(|&page| pages.find(page).is_some()).count();
    all().for_each(|page| _ = read(&mut pages, page));
    pages.drop_range(10..20);
    assert_eq!((here(&pages), pages.used_bytes()), (140, 140 * PAGE));
    assert!(pages.find(9).is_some() && pages.find(10).is_none());
    assert!(pages.find(19).is_none() && pages.find(20).is_some());
    pages.drop_all();
    assert_eq!((here(&pages), pages.used_bytes()), (0, 0));
    all().for_each(|page| assert!(!read(&mut pages, page)));
    assert_eq!((here(&pages), pages.used_bytes()), (150, 150 * PAGE));
    // What counts as gone goes first, though it is in the main queue and much is in the small one.
    let mut pages = super::tests::pages(200);
    for _ in 0..4 {
        all().for_each(|page| _ = read(&mut pages, page));
    }
    (1000..1100).for_each(|page| _ = read(&mut pages, page));
    assert!(pages.main.len > 100);
    pages.drop_all();
    (2000..2190).for_each(|page| _ = read(&mut pages, page));
    let kept = (2000..2190).filter(|&page| pages.find(page).is_some()).count();
    assert_eq!(kept, 190);
}

#[test]
fn a_range_of_any_size_is_dropped_exactly() {
    let regions = |count: u64| count * REGION_PAGES;
    let places = [0, 1, regions(1) - 1, regions(1), regions(2) + 5, regions(3), regions(5)];
    for (start, end) in [
        (1, regions(3)),
        (0, regions(1)),
        (regions(1) - 1, regions(2) + 5),
        (regions(1), regions(3) + 1),
        (1, regions(1)),
    ] {
        let mut pages = pages(100);
        places.iter().for_each(|&page| _ = read(&mut pages, page));
        pages.drop_range(start..end);
        for page in places {
            let is_in = (start..end).contains(&page);
            assert_eq!(pages.find(page).is_none(), is_in, "{page} of {start}..{end}");
        }
    }
    let mut pages = pages(100);
    places.iter().for_each(|&page| _ = read(&mut pages, page));
    pages.drop_range(0..1 << 50);
    assert_eq!(pages.used_bytes(), 0);
}

#[test]
fn few_pages_of_a_range_are_looked_for_one_by_one() {
    let places = [0, 1, REGION_PAGES - 1, REGION_PAGES, REGION_PAGES + 1, 10 * REGION_PAGES];
    for (start, len) in places.iter().flat_map(|&start| places.map(|len| (start, len))) {
        let [before, regions, behind] = parts(start..start + len);
        let one_by_one = before.clone().count() + behind.clone().count();
        assert!(one_by_one < 2 * REGION_PAGES as usize, "{start} {len}");
        let whole = regions.flat_map(|at| at * REGION_PAGES..(at + 1) * REGION_PAGES);
        assert!(before.chain(whole).chain(behind).eq(start..start + len));
    }
}

#[test]
fn what_all_were_dropped_before_stays_gone() {
    let mut pages = pages(100);
    let region = |page: u64| page..page + REGION_PAGES;
    for _ in 0..3 {
        read(&mut pages, 1);
        pages.drop_range(region(0));
        read(&mut pages, 2);
        pages.drop_all();
        assert_eq!((pages.find(1), pages.find(2), pages.used_bytes()), (None, None, 0));
        pages.drop_range(region(0));
        read(&mut pages, 1);
        assert_eq!((pages.find(2), pages.used_bytes()), (None, PAGE));
        pages.drop_range(region(REGION_PAGES));
        assert_eq!(pages.used_bytes(), PAGE);
    }
}

#[test]
fn few_pages_share_a_place_whoever_chooses_them() {
    let mut pages = pages(200);
    let place = pages.place(0);
    let alike: Vec<u64> = (0..).filter(|&page| pages.place(page) == place).take(100).collect();
    alike.iter().for_each(|&page| _ = read(&mut pages, page));
    assert_eq!(pages.used_bytes(), CHAIN_MAX as u64 * PAGE);
    // They can be let go of in any order.
    alike.iter().rev().step_by(3).for_each(|&page| pages.drop_range(page..page + 1));
    alike.iter().for_each(|&page| pages.drop_range(page..page + 1));
    assert_eq!((pages.used_bytes(), pages.chain_len(0)), (0, 0));
}

#[test]
fn a_page_that_somebody_reads_moves_when_it_is_changed() {
    let mut pages = pages(100);
    read(&mut pages, 7);
    let at = pages.find(7).unwrap();
    let reader = pages.give(at).clone();
    assert!(pages.change(7, |bytes| bytes[..8].fill(9)));
    assert_eq!(reader[..8], 7u64.to_le_bytes());
    let at = pages.find(7).unwrap();
    assert_eq!(pages.give(at)[..16], [[9; 8], [0; 8]].concat());
    assert!(!pages.change(8, |_| panic!("it is not here")));
    // Without memory for a copy it goes.
    let readers: Vec<_> = (100..200)
        .map(|page| {
            read(&mut pages, page);
            pages.find(page).map(|at| pages.give(at).clone())
        })
        .collect();
    let page = (100..200).rev().find(|&page| pages.find(page).is_some()).unwrap();
    assert!(!pages.change(page, |_| panic!("there is no memory")));
    assert_eq!(pages.find(page), None);
    drop(readers);
}
