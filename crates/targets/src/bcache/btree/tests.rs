//! Inserting into a tree on the device gives what inserting sector by sector gives, also with few
//! free buckets. A contradictory tree is an error.

use cairn_format::bcache::{Generation, Key, Pointer, SECTOR_BYTES};
use proptest::prelude::*;

use super::reference::{Model, Sectors, lay_over};
use super::split::split;
use super::{Fill, Found, NoBucket, Span};

/// The bucket that all extents of these tests lie in.
const DATA: u64 = 200;

/// A cache with the smallest nodes, 4 KiB, and a bucket for data.
fn model() -> Model {
    let mut model = Model::new(900, 8);
    model.take([DATA]);
    model
}

fn extent(inode: u32, start: u64, sectors: u64, dirty: bool) -> Key {
    let pointer = Pointer::new(DATA * 8 + start % 8, Generation(0));
    Key::new(inode, start + sectors, sectors).at(pointer).with_dirty(dirty)
}

/// Every other sector of a volume, `count` of them.
fn scattered(inode: u32, count: u64, dirty: bool) -> Vec<Key> {
    (0..count).map(|at| extent(inode, at * 2, 1, dirty)).collect()
}

fn insert(model: &mut Model, sectors: &mut Sectors, keys: Vec<Key>) {
    lay_over(sectors, &keys);
    model.insert(keys).expect("there are buckets");
}

/// Keys in order without overlaps, of three volumes.
fn batch() -> impl Strategy<Value = Vec<Key>> {
    let one = (0..3_u32, 0..30_u64, 1..9_u64, 0..4_u8);
    proptest::collection::vec(one, 1..150).prop_map(|mut ones| {
        ones.sort_unstable();
        let (mut keys, mut last) = (Vec::new(), (0, 0));
        for (inode, gap, sectors, kind) in ones {
            let start = if last.0 == inode { last.1 + gap } else { gap };
            let room = 8 - start % 8;
            let sectors = sectors.min(room);
            last = (inode, start + sectors);
            keys.push(match kind {
                0 => Key::new(inode, start + sectors, sectors),
                kind => extent(inode, start, sectors, kind == 1),
            });
        }
        keys
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Each sector lies where the latest key says, in memory and on the device, however often nodes
    /// fill up.
    #[test]
    fn the_latest_key_counts_on_each_sector(batches in proptest::collection::vec(batch(), 1..12)) {
        let (mut model, mut sectors) = (model(), Sectors::new());
        for keys in batches {
            insert(&mut model, &mut sectors, keys);
        }
        model.check(&sectors);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// The tree in memory may be ahead of the leaves by any number of changes, and these may be
    /// written in any order.
    #[test]
    fn leaves_get_the_latest_extents_in_whichever_order_they_are_written(
        batches in proptest::collection::vec((batch(), any::<u32>()), 1..12),
    ) {
        let (mut model, mut sectors) = (model(), Sectors::new());
        let mut behind = Vec::new();
        for (keys, turn) in batches {
            lay_over(&mut sectors, &keys);
            behind.push((turn, model.apply(&keys)));
        }
        behind.sort_by_key(|(turn, _)| *turn);
        for (_, mut unwritten) in behind {
            model.write_all(&mut unwritten).expect("there are buckets");
        }
        model.check(&sectors);
    }
}

#[test]
fn one_insertion_may_split_a_leaf_into_many_and_grow_levels() {
    let (mut model, mut sectors) = (model(), Sectors::new());
    insert(&mut model, &mut sectors, scattered(0, 40_000, true));
    assert_eq!(model.tree.root().1, 2, "40 000 keys, 100 in a leaf, 100 leaves beneath a node");
    model.check(&sectors);
}

#[test]
fn keys_become_clean_again_and_again_with_the_buckets_of_a_few_nodes() {
    let (mut model, mut sectors) = (model(), Sectors::new());
    insert(&mut model, &mut sectors, scattered(0, 3000, true));
    let nodes = model.tree.nodes().count();
    // From here on there are eight free buckets.
    model.buckets.refill();
    while model.buckets.free() > 8 {
        model.buckets.take_for_metadata();
    }
    for dirty in [false, true, false, true] {
        insert(&mut model, &mut sectors, scattered(0, 3000, dirty));
    }
    model.check(&sectors);
    assert!(model.tree.nodes().count() < nodes * 2);
}

/// Leaves so many buckets free.
fn keep_free(model: &mut Model, count: usize) {
    model.buckets.refill();
    while model.buckets.free() > count {
        model.buckets.take_for_metadata();
    }
}

#[test]
fn keys_become_clean_with_one_bucket_for_each_level() {
    let (mut model, mut sectors) = (model(), Sectors::new());
    insert(&mut model, &mut sectors, scattered(0, 16_000, true));
    let levels = usize::from(model.tree.root().1) + 1;
    assert_eq!(levels, 3);
    keep_free(&mut model, levels);
    let nodes = model.tree.nodes().count();
    for dirty in [false, true, false] {
        insert(&mut model, &mut sectors, scattered(0, 16_000, dirty));
    }
    model.check(&sectors);
    assert_eq!(model.tree.nodes().count(), nodes);
    model.buckets.refill();
    assert_eq!(model.buckets.free(), levels);
}

/// Takes all free buckets.
fn take_all(model: &mut Model) -> Vec<u64> {
    model.buckets.refill();
    let taken = std::iter::from_fn(|| model.buckets.take_for_metadata());
    taken.map(|pointer| pointer.sector() / 8).collect()
}

/// Inserts keys into a tree without a free bucket: each plan gets `spare` ones, one at a time,
/// until it is made. Answers how many each took; it asked for as many.
fn buckets_taken(model: &mut Model, spare: &mut Vec<u64>, keys: Vec<Key>) -> Vec<usize> {
    let (mut unwritten, mut taken) = (model.apply(&keys), Vec::new());
    while !unwritten.is_empty() {
        let (mut given, mut asked) = (0, 0);
        let plan = loop {
            match model.plan(&mut unwritten, Fill::Tight) {
                Ok(plan) => break plan,
                Err(NoBucket { needed }) => assert!(given == 0 || asked == needed),
            }
            let planned = model.plan(&mut unwritten, Fill::Tight);
            asked = planned.err().expect("nothing has changed").needed;
            model.buckets.structure_replaced(&[spare.remove(0)]);
            model.buckets.refill();
            given += 1;
        };
        assert_eq!((model.buckets.free(), asked), (0, given));
        model.write(&plan);
        spare.extend(take_all(model));
        taken.push(given);
    }
    taken
}

#[test]
fn a_tight_plan_asks_for_the_buckets_that_it_takes() {
    let (mut model, mut sectors) = (model(), Sectors::new());
    insert(&mut model, &mut sectors, scattered(0, 16_000, true));
    let (mut spare, mut seen) = (take_all(&mut model), [0; 8]);
    for round in 0..600_u64 {
        // It makes three extents of one at times, so that leaves split.
        let start = round * 37 % 150 * 200;
        let wide = |at: u64| extent(0, start + at * 8, 1 + round % 3 / 2 * 4, round % 5 == 0);
        let keys: Vec<Key> = (0..20).map(wide).collect();
        lay_over(&mut sectors, &keys);
        let taken = buckets_taken(&mut model, &mut spare, keys);
        taken.into_iter().for_each(|count| seen[count] += 1);
    }
    model.check(&sectors);
    let deepest: usize = seen[3..].iter().sum();
    assert!(seen[..3].iter().all(|count| *count > 0) && deepest > 0, "{seen:?}");
}

#[test]
fn a_node_that_is_larger_than_this_version_makes_is_replaced_by_several() {
    let (mut model, mut sectors) = (model(), Sectors::new());
    insert(&mut model, &mut sectors, scattered(0, 40_000, true));
    // One node of 32 KiB, which is full, above 400 leaves.
    let root = model.tree.levels[2][0].key();
    let wide = Key::new(root.inode(), root.end(), 64).at(root.cached_at().expect("it lies there"));
    model.tree.levels.truncate(1);
    model.tree.levels.push(vec![super::Node::new(wide, 9, 64 * SECTOR_BYTES)]);
    // A leaf, five nodes above it, and a root.
    let full = model.tree.levels[0].iter_mut().next().expect("many leaves");
    while full.append(&[], model.superblock.set_uuid().set_magic(), SECTOR_BYTES).is_some() {}
    let kept = take_all(&mut model);
    model.buckets.structure_replaced(&kept[..6]);
    model.buckets.refill();
    let keys = scattered(0, 40, false);
    let mut unwritten = model.apply(&keys);
    let refused = model.plan(&mut unwritten, Fill::Roomy).err();
    assert!(refused.is_some_and(|short| short.needed > 6), "{refused:?}");
    lay_over(&mut sectors, &keys);
    take_all(&mut model);
    let taken = buckets_taken(&mut model, &mut kept.clone(), keys);
    assert_eq!(taken, [1 + model.tree.levels[1].len() + 1]);
    model.check(&sectors);
}

#[test]
fn a_leaf_without_room_needs_a_bucket_and_says_so() {
    let (mut model, mut sectors) = (model(), Sectors::new());
    insert(&mut model, &mut sectors, scattered(0, 100, true));
    model.buckets.refill();
    while model.buckets.take_for_metadata().is_some() {}
    let mut before = sectors.clone();
    let refused = loop {
        let keys = scattered(0, 40, false);
        let taken = model.insert(keys.clone());
        if taken.is_err() {
            break taken;
        }
        lay_over(&mut before, &keys);
    };
    assert_eq!(refused, Err(NoBucket { needed: 1 }));
    model.check(&before);
}

#[test]
fn what_is_found_ends_with_its_extent_or_before_the_next() {
    let (mut model, mut sectors) = (model(), Sectors::new());
    let keys = vec![extent(1, 8, 4, true), extent(1, 32, 8, false), extent(2, 0, 8, false)];
    insert(&mut model, &mut sectors, keys.clone());
    let find = |inode, sector| model.tree.find(inode, sector);
    assert_eq!(find(1, 0), Found::Hole { end: 8 });
    assert_eq!(find(1, 8), Found::Extent(keys[0]));
    let tail = keys[0].part(10, 12).expect("within it");
    assert_eq!(find(1, 10), Found::Extent(tail));
    assert_eq!(find(1, 12), Found::Hole { end: 32 });
    assert!(matches!(find(1, 40), Found::Hole { end } if end > 1 << 40));
    assert!(matches!(find(0, 0), Found::Hole { end } if end > 1 << 40));
    let count = |start, end| model.tree.extents_in(&Span { inode: 1, start, end }).count();
    assert_eq!([count(10, 33), count(10, 32), count(12, 33), count(12, 32)], [2, 1, 1, 0]);
}

#[test]
fn each_sector_is_found_in_a_tree_of_many_leaves() {
    let (mut model, mut sectors) = (model(), Sectors::new());
    insert(&mut model, &mut sectors, scattered(0, 2000, true));
    insert(&mut model, &mut sectors, scattered(7, 2000, true));
    for sector in 0..4000 {
        for inode in [0, 7] {
            let found = model.tree.find(inode, sector);
            let expected = sectors.contains_key(&(inode, sector));
            assert_eq!(matches!(found, Found::Extent(_)), expected, "{inode} {sector}");
            match found {
                Found::Hole { end } => assert!(end > sector),
                Found::Absent => panic!("a leaf is absent"),
                Found::Extent(key) => assert_eq!((key.start(), key.end()), (sector, sector + 1)),
            }
        }
    }
}

#[test]
fn parts_of_a_split_leave_room_for_more_sets() {
    let keys = scattered(0, 1000, true);
    let node = 8 * SECTOR_BYTES;
    assert_eq!(split(&keys[..135], node, Fill::Roomy).len(), 1, "four fifths");
    let parts = split(&keys[..140], node, Fill::Roomy);
    assert_eq!(parts.iter().map(|part| part.len()).collect::<Vec<_>>(), [101, 39]);
    assert_eq!(split(&keys, node, Fill::Roomy).concat(), keys);
}

#[test]
fn nodes_that_are_no_tree_are_an_error() {
    let (mut model, mut sectors) = (model(), Sectors::new());
    insert(&mut model, &mut sectors, scattered(0, 400, true));
    let sound = model.tree.levels[0].len();
    model.tree.keep_live(&mut model.buckets).expect("it is a tree");
    // A second leaf at the position of the first.
    let twin = model.tree.levels[0][0].key();
    model.tree.levels[0].insert(1, super::Node::new(twin, 5, 0));
    let refused = model.tree.keep_live(&mut model.buckets).expect_err("B1");
    assert!(refused.starts_with("node 0:") && refused.contains("expected it behind"), "{refused}");
    model.tree.levels[0].remove(1);
    model.tree.levels[0].truncate(sound - 1);
    let refused = model.tree.keep_live(&mut model.buckets).expect_err("B1");
    assert!(refused.starts_with("level 0: found its end at"), "{refused}");
}

#[test]
#[should_panic(expected = "no key lies behind it")]
fn a_key_behind_the_last_leaf_does_not_go_round_for_ever() {
    let words = [extent(0xf_ffff, 0, 8, true).words().next().unwrap_or(0), u64::MAX, 0];
    let key = Key::decode(&words.map(Into::into)).expect("any words are a key").0;
    let mut model = model();
    model.tree.apply(&[key], &mut model.buckets);
}
