//! Drains of sets of every shape: the content is the same before, during and after it, also after a
//! crash; nothing that the backing device lacks is called clean.
//!
//! The campaign cuts the power, or kills the process, at a seeded write of a drain, several times
//! in a row; drives lose, reorder and tear, and fail. Sometimes another user reads the volume and
//! flushes the drives at the same time, and does not report a failure.
//! `CAIRN_CUTS=10000 cargo test -p cairn-targets --release --test bcache_drain` is the long run;
//! `CAIRN_CUT=n` runs one life. With `--features canary` known ordering bugs are planted: each must
//! be caught.

#[path = "bcache_lab/mod.rs"]
mod bcache_lab;
#[path = "bcache_drain/open_entries.rs"]
mod open_entries;
#[path = "bcache_drain/stale_keys.rs"]
mod stale_keys;
#[path = "bcache_drain/uncopied.rs"]
mod uncopied;

use std::ops::Range;
use std::time::Duration;

use bcache_lab::make::{Made, SHAPE, Shape, make};
use bcache_lab::{Cache, Lab, superblock_of};
use cairn_block::{Io, Sector, SectorCount, SectorRange};
use cairn_format::bcache::priorities::{METADATA, PrioritySet};
use cairn_format::bcache::{BackingState, Key, SECTOR_BYTES, Superblock};
use cairn_sim::campaign::plant_failures;
use cairn_sim::{Cut, CutWhen, Effect, Fault, Image, OpSet};

const SHAPES: &[Shape] = &[
    SHAPE,
    // Hardly a free bucket: clean data has to go.
    Shape { sectors: 6144, free: 1, clean: 12, journaled: 20, ..SHAPE },
    // Nothing free and nothing clean at first.
    Shape { sectors: 6144, free: 0, clean: 0, journaled: 0, longest: 2, ..SHAPE },
    Shape { free: 2, clean: 0, journaled: 60, longest: 2, ..SHAPE },
    // Leaves of one block, which are always replaced.
    Shape { block_sectors: 8, sectors: 6144, longest: 2, per_entry: 200, journaled: 60, ..SHAPE },
    // Sets of several blocks, in large nodes.
    Shape { bucket_sectors: 128, longest: 1, journaled: 400, per_entry: 60, ..SHAPE },
    // Nodes of 4 KiB in a tree of three levels.
    Shape {
        bucket_sectors: 8,
        sectors: 9500,
        cached: 16,
        longest: 1,
        journaled: 30,
        free: 400,
        per_entry: 8,
        ..SHAPE
    },
    Shape { bucket_sectors: 8, longest: 2, journaled: 30, per_entry: 4, free: 60, ..SHAPE },
    FULL,
    Shape { free: 0, ..FULL },
    // Entries as large as a bucket of the ring, and nodes of one block.
    Shape { bucket_sectors: 8, block_sectors: 8, longest: 1, free: 16, spare: None, ..FULL },
    // Nodes of 4 KiB.
    Shape { bucket_sectors: 8, sectors: 4000, longest: 1, per_entry: 8, free: 1, ..FULL },
];

/// A ring that is full but for a few entries without keys, and hardly a free bucket.
const FULL: Shape = Shape {
    sectors: 6144,
    clean: 12,
    longest: 2,
    journaled: 9999,
    free: 1,
    spare: Some(4),
    ..SHAPE
};

/// What the backing device amounts to with the dirty extents over it: what is left when everything
/// clean was dropped.
fn without_clean(cache: &Cache, cache_bytes: &[u8], backing: &[u8]) -> Vec<u8> {
    let first = 16;
    let mut content = backing[first as usize * SECTOR_BYTES..].to_vec();
    for key in cache.extents.iter().filter(|key| key.inode() == 0 && key.is_dirty()) {
        let from = key.cached_at().expect("it leads somewhere").sector() as usize * SECTOR_BYTES;
        let to = (key.start() - first) as usize * SECTOR_BYTES;
        let bytes = key.sectors() as usize * SECTOR_BYTES;
        content[to..to + bytes].copy_from_slice(&cache_bytes[from..from + bytes]);
    }
    content
}

/// Where contents differ.
fn difference(found: &[u8], expected: &[u8]) -> Option<String> {
    let sectors = found.chunks(SECTOR_BYTES).zip(expected.chunks(SECTOR_BYTES));
    let mut different = sectors.enumerate().filter(|(_, (found, expected))| found != expected);
    let (first, _) = different.next()?;
    Some(format!("sector {first} and {} others differ", different.count()))
}

/// Checks what a crash or a drain left.
fn check(
    made: &Made,
    [cache_bytes, backing]: &[Vec<u8>; 2],
    is_drained: bool,
) -> Result<(), String> {
    let cache = Cache::try_read(cache_bytes)?;
    if let Some(what) = difference(&without_clean(&cache, cache_bytes, backing), &made.content) {
        return Err(format!("without what is clean: {what}"));
    }
    let lab = Lab::new(3, Some(cache_bytes.clone()), Some(backing.clone()));
    for (line, content) in [(&made.line, &made.content), (&made.flash_line, &made.flash_content)] {
        let volume = lab.try_open(line, true).map_err(|error| error.to_string())?;
        if let Some(what) = difference(&lab.read_all(&volume), content) {
            return Err(format!("{line}: {what}"));
        }
        lab.close(&volume);
    }
    let Superblock::Backing(superblock) = superblock_of(backing) else {
        return Err("the superblock of the backing device is gone".to_owned());
    };
    let dirty = cache.extents.iter().filter(|key| key.inode() == 0 && key.is_dirty()).count();
    let is_clean = superblock.state() == BackingState::Clean;
    if is_clean && dirty > 0 {
        return Err(format!("the backing device is called clean, {dirty} keys are dirty"));
    }
    if is_drained && (!is_clean || !cache.loaded.journal.is_empty()) {
        return Err("it was drained, and is not called clean".to_owned());
    }
    Ok(())
}

fn images_of(lab: &Lab, rng: &mut fastrand::Rng) -> [Image; 2] {
    let images = lab.world.images_after_power_cut(rng);
    let of = |name: &str| images.iter().find(|(own, _)| own == name).expect(name).1.clone();
    ["cache", "backing"].map(of)
}

/// How often a whole drain of the set writes.
fn writes_of(made: &Made) -> Result<u64, String> {
    let lab = Lab::new(1, Some(made.cache.clone()), Some(made.backing.clone()));
    lab.open_and_drain(&made.line).expect("no power cut")?;
    check(made, &lab.images(), true)?;
    Ok(lab.world.writes())
}

/// True if the device went on without its cache: that failed when nothing was dirty.
fn has_gone_on_alone(backing: &[u8]) -> bool {
    matches!(superblock_of(backing), Superblock::Backing(it) if it.set_uuid().is_zero())
}

/// Drains a set over several crashes.
fn live(seed: u64) -> Result<(), String> {
    // All leaves stay in memory, none for long, or about half of them.
    #[cfg(feature = "canary")]
    cairn_targets::bcache::canary::keep_in_memory([None, Some(0), Some(4096)][seed as usize % 3]);
    let rng = &mut fastrand::Rng::with_seed(seed);
    let shape = SHAPES[rng.usize(..SHAPES.len())];
    let made = make(rng, shape);
    let writes = writes_of(&made).map_err(|error| format!("{shape:?}: {error}"))?;
    let mut lab = Lab::new(rng.u64(..), Some(made.cache.clone()), Some(made.backing.clone()));
    for generation in 0..rng.u32(1..4) {
        let context = |what: String| format!("{shape:?}, crash {generation}: {what}");
        let when = [CutWhen::Submitted, CutWhen::Completed][rng.usize(..2)];
        // Most writes are of data: the beginning and the end of a drain have more than their share.
        let index = match rng.u8(..3) {
            0 => rng.u64(..24).min(writes),
            1 => writes - rng.u64(..24).min(writes),
            _ => rng.u64(..writes + 1),
        };
        lab.world.cut_at(Cut { index, when });
        let mut fails = rng.u8(..3) == 0;
        if fails {
            plant_failures(&lab.drives(), [5, 50][rng.usize(..2)], Some(2), rng);
        }
        if rng.u8(..3) == 0 {
            uncopied::spoil(&lab, &uncopied::draw(&lab, rng).map_err(context)?);
            fails = true;
        }
        let content = rng.bool().then_some(&made.content[..]);
        let is_drained = match lab.open_and_drain_beside(&made.line, content, rng.usize(1..3)) {
            Ok(Err(error)) if !fails => return Err(context(error)),
            ended => matches!(ended, Ok(Ok(()))),
        };
        let dead = lab;
        let images = images_of(&dead, rng);
        let bytes = images.each_ref().map(Image::to_vec);
        if fails && has_gone_on_alone(&bytes[1]) {
            return check_detached(&made, &bytes).map(drop).map_err(context);
        }
        check(&made, &bytes, is_drained).map_err(context)?;
        // A failed flush dropped what a kill would keep.
        lab = match rng.bool() && !fails {
            true => Lab::of_survivors(rng.u64(..), &dead),
            false => Lab::of_images(rng.u64(..), images),
        };
    }
    if rng.u8(..3) == 0 {
        uncopied::drain_some(&lab, &made, rng).map_err(|what| format!("{shape:?}: {what}"))?;
    }
    lab.open_and_drain(&made.line).expect("no power cut")?;
    check(&made, &lab.images(), true)
}

/// A life drains a set several times: one of so many that are asked for is enough.
const PART: u64 = 3;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect(name))
}

#[test]
fn a_drain_that_ends_at_any_write_leaves_every_sector_as_it_was() {
    let lives = match number("CAIRN_CUT") {
        Some(life) => life..life + 1,
        None => 0..number("CAIRN_CUTS").map_or(100, |lives| lives.div_ceil(PART)),
    };
    for life in lives {
        if let Err(what) = live(life) {
            panic!("life {life} (CAIRN_CUT={life} repeats it): {what}");
        }
    }
}

/// Checks what a power cut in or after a detach left. Answers whether the device is detached.
fn check_detached(made: &Made, [cache_bytes, backing]: &[Vec<u8>; 2]) -> Result<bool, String> {
    let cache = Cache::try_read(cache_bytes)?;
    if let Some(what) = difference(&without_clean(&cache, cache_bytes, backing), &made.content) {
        return Err(format!("without what is clean: {what}"));
    }
    let Superblock::Backing(superblock) = superblock_of(backing) else {
        return Err("the superblock of the backing device is gone".to_owned());
    };
    let is_detached = superblock.set_uuid().is_zero();
    let lab = Lab::new(3, Some(cache_bytes.clone()), Some(backing.clone()));
    let opened = lab.try_open(&made.line, true);
    match (is_detached, superblock.state(), opened) {
        (true, BackingState::None, Err(_)) => {}
        (false, BackingState::Clean | BackingState::Dirty, Ok(volume)) => {
            if !cache.volume(0).is_live() {
                return Err("the set forgot a volume that is attached".to_owned());
            }
            lab.close(&volume);
        }
        (_, state, opened) => {
            return Err(format!("detached: {is_detached}, state {state:?}: {:?}", opened.err()));
        }
    }
    let volume = lab.try_open(&made.flash_line, true).map_err(|error| error.to_string())?;
    let other = difference(&lab.read_all(&volume), &made.flash_content);
    lab.close(&volume);
    other.map_or(Ok(is_detached), |what| Err(format!("the other volume: {what}")))
}

/// Detaches the device of a set, and cuts the power at each write of that.
fn live_and_detach(seed: u64) -> Result<(), String> {
    let rng = &mut fastrand::Rng::with_seed(seed);
    let shape = SHAPES[seed as usize % SHAPES.len()];
    let made = make(rng, shape);
    let start = lab_of(&made);
    start.open_and_drain(&made.line).expect("no power cut")?;
    let drained = images_of(&start, rng);
    let whole = Lab::of_images(2, drained.clone());
    whole.open_and_detach(&made.line).expect("no power cut")?;
    let writes = whole.world.writes();
    let after = images_of(&whole, rng).each_ref().map(Image::to_vec);
    if !check_detached(&made, &after)? {
        return Err(format!("{shape:?}: a power cut at the end leaves it attached"));
    }
    // A set that has a free bucket forgets the volume.
    let cache = Cache::try_read(&after[0])?;
    assert!(!cache.volume(0).is_live() || shape.free < 4, "{shape:?}");
    for index in 0..writes {
        let when = [CutWhen::Submitted, CutWhen::Completed][rng.usize(..2)];
        let context = |what: String| format!("{shape:?}, write {index} {when:?}: {what}");
        let lab = Lab::of_images(rng.u64(..), drained.clone());
        lab.world.cut_at(Cut { index, when });
        let ended = lab.open_and_detach(&made.line);
        let left = images_of(&lab, rng).each_ref().map(Image::to_vec);
        let is_detached = check_detached(&made, &left).map_err(context)?;
        if matches!(ended, Ok(Ok(()))) && !is_detached {
            return Err(context("it ended well, and the device is attached".to_owned()));
        }
    }
    Ok(())
}

#[test]
fn a_detach_that_ends_at_any_write_leaves_a_device_that_is_attached_or_detached() {
    for seed in 0..SHAPES.len() as u64 {
        live_and_detach(seed).unwrap_or_else(|what| panic!("{seed}: {what}"));
    }
}

#[test]
fn a_failed_superblock_of_a_detach_is_an_error() {
    let rng = &mut fastrand::Rng::with_seed(7);
    let made = make(rng, SHAPE);
    let lab = Lab::new(1, Some(made.cache.clone()), Some(made.backing.clone()));
    lab.open_and_drain(&made.line).expect("no power cut").expect("it is drained");
    let [_, backing] = lab.drives();
    backing.faults().add(Fault::error(OpSet::DURABLE_WRITES));
    let ended = lab.open_and_detach(&made.line).expect("no power cut");
    let line = ended.expect_err("a write failed");
    assert!(line.contains("detach: ") && line.contains("superblock: could not be"), "{line}");
    let left = images_of(&lab, rng).each_ref().map(Image::to_vec);
    assert_eq!(check_detached(&made, &left), Ok(false));
}

#[cfg(feature = "canary")]
mod canaries {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use cairn_targets::bcache::canary::{Bug, plant};

    fn is_caught(bug: Bug) {
        is_caught_in(bug, super::live);
    }

    fn is_caught_in(bug: Bug, live: impl Fn(u64) -> Result<(), String>) {
        plant(Some(bug));
        let caught = (0..400).find(|life| {
            catch_unwind(AssertUnwindSafe(|| live(*life))).map_or(true, |end| end.is_err())
        });
        plant(None);
        let life = caught.unwrap_or_else(|| panic!("{bug:?} was not found"));
        eprintln!("{bug:?}: caught by life {life}");
    }

    #[test]
    fn keys_that_are_clean_before_the_flush_are_caught() {
        is_caught(Bug::CleanBeforeFlush);
    }

    #[test]
    fn sets_in_pieces_are_caught() {
        is_caught(Bug::HeadBeforeTail);
    }

    #[test]
    fn parents_before_their_children_are_caught() {
        is_caught(Bug::ParentBeforeChild);
    }

    #[test]
    fn a_journal_that_forgets_early_is_caught() {
        is_caught(Bug::JournalBeforeLeaves);
    }

    #[test]
    fn buckets_that_are_reused_early_are_caught() {
        // A window of a few writes, in sets of one shape.
        is_caught_in(Bug::ReuseBeforeDurable, |life| {
            let made = super::make(&mut fastrand::Rng::with_seed(life), super::EMPTIED);
            super::cut_at_each(&made, 0..80, 8)
        });
    }

    #[test]
    fn priorities_that_are_named_early_are_caught() {
        is_caught(Bug::EntryBeforePriorities);
    }

    #[test]
    fn a_state_that_is_clean_early_is_caught() {
        is_caught(Bug::CleanStateFirst);
    }

    #[test]
    fn an_array_that_forgets_an_attached_volume_is_caught() {
        is_caught_in(Bug::ArrayBeforeSuperblock, super::live_and_detach);
    }

    #[test]
    fn a_ring_that_is_freed_of_a_part_early_is_caught() {
        is_caught(Bug::PartBeforeLeaves);
    }
}

#[test]
fn a_full_set_of_dirty_data_alone_is_drained() {
    let rng = &mut fastrand::Rng::with_seed(5);
    let shape = Shape { sectors: 6144, free: 0, clean: 0, journaled: 0, longest: 1, ..SHAPE };
    let made = make(rng, shape);
    let sectors = |cache: &[u8]| -> u64 {
        let cached = Cache::read(cache).extents;
        cached.iter().map(Key::sectors).sum()
    };
    let lab = Lab::new(1, Some(made.cache.clone()), Some(made.backing.clone()));
    lab.open_and_drain(&made.line).expect("no power cut").expect("it is drained");
    let images = lab.images();
    check(&made, &images, true).expect("it is sound");
    let (before, after) = (sectors(&made.cache), sectors(&images[0]));
    assert!(after < before, "buckets were emptied: {before} sectors, then {after}");
}

#[test]
fn a_journal_that_is_full_but_for_one_bucket_is_replayed_into_leaves_that_split() {
    let rng = &mut fastrand::Rng::with_seed(6);
    // A ring of two buckets; entries of one key fill one of them.
    let shape = Shape { journaled: 31, per_entry: 1, cached: 16, clean: 0, longest: 1, ..SHAPE };
    let made = make(rng, shape);
    let before = Cache::read(&made.cache);
    assert_eq!(before.superblock.journal_buckets().count(), 2);
    assert_eq!(before.loaded.ring.entries.len(), 32);
    let nodes = before.loaded.newest.root_level;
    writes_of(&made).expect("it is drained");
    assert_eq!(nodes, 1);
}

#[test]
fn a_full_ring_over_a_full_set_is_drained() {
    for (seed, spare, clean, free) in
        [(1, 2, 12, 4), (2, 4, 12, 0), (3, 4, 12, 1), (4, 8, 8, 0), (5, 3, 14, 2)]
    {
        for shape in [
            Shape { spare: Some(spare), clean, free, ..FULL },
            Shape { bucket_sectors: 128, spare: Some(spare), clean, free, ..FULL },
            Shape {
                bucket_sectors: 8,
                sectors: 4000,
                longest: 1,
                per_entry: 8,
                spare: Some(spare),
                clean,
                free,
                ..FULL
            },
        ] {
            let made = make(&mut fastrand::Rng::with_seed(seed), shape);
            let before = Cache::read(&made.cache);
            let entries = &before.loaded.ring.entries;
            let buckets = before.superblock.journal_buckets().count();
            let has = |index| entries.iter().any(|entry| entry.index == index);
            assert!((0..buckets).all(has), "each bucket of the ring has entries that count");
            writes_of(&made).unwrap_or_else(|error| panic!("{shape:?}: {error}"));
        }
    }
}

#[test]
fn a_drain_names_more_fresh_roots_than_its_ring_has_entries() {
    let rng = &mut fastrand::Rng::with_seed(9);
    // Each node, and each bucket of the ring, has room for one block.
    let shape = Shape {
        block_sectors: 8,
        bucket_sectors: 8,
        sectors: 10_880,
        cached: 2,
        clean: 0,
        longest: 1,
        journaled: 0,
        free: 6,
        ..SHAPE
    };
    let made = make(rng, shape);
    let before = Cache::read(&made.cache);
    let lab = Lab::new(1, Some(made.cache.clone()), Some(made.backing.clone()));
    lab.world.set_patience(Duration::from_secs(3600));
    // So slow that a batch is sealed by its time, with the reads that began at once.
    let seconds = Effect::Delay(Duration::from_secs(3));
    let [cache, _] = lab.drives();
    cache.faults().add(Fault { effect: seconds, ..Fault::error(OpSet::READS) });
    lab.open_and_drain(&made.line).expect("no power cut").expect("it is drained");
    let images = lab.images();
    check(&made, &images, true).expect("it is sound");
    let after = Cache::read(&images[0]);
    let ring = before.superblock.journal_buckets().count() as u64;
    let written = after.loaded.newest.seq - before.loaded.newest.seq;
    assert!(ring == 2 && written > 2 * ring, "{written} entries went round a ring of {ring}");
}

#[test]
fn a_drain_that_waited_for_one_that_could_not_write_the_set_is_refused() {
    let made = make(&mut fastrand::Rng::with_seed(3), Shape { journaled: 20, ..SHAPE });
    let nodes = Cache::read(&made.cache).nodes;
    let mut refused = 0;
    for node in &nodes {
        let lab = lab_of(&made);
        let start = Sector(node.cached_at().expect("it lies there").sector());
        let range = SectorRange::new(start, SectorCount(node.sectors()));
        // The second drain meets no failure.
        lab.drives()[0].faults().add(Fault::error(OpSet::WRITES).on(range).shots(1));
        let ended = lab.open_and_drain_beside(&made.line, None, 2).expect("no power cut");
        check(&made, &lab.images(), ended.is_ok())
            .unwrap_or_else(|what| panic!("{node:?}: {what}"));
        if let Err(line) = ended {
            assert!(line.contains("the cache cannot be written since"), "{node:?}: {line}");
            refused += 1;
        }
        lab.drives()[0].faults().clear();
        lab.open_and_drain(&made.line).expect("no power cut").expect("it opens again");
        check(&made, &lab.images(), true).unwrap_or_else(|what| panic!("{node:?}: {what}"));
    }
    assert!(refused > nodes.len() / 2, "{refused} of {}", nodes.len());
}

fn lab_of(made: &Made) -> Lab {
    Lab::new(1, Some(made.cache.clone()), Some(made.backing.clone()))
}

fn state_of(backing: &[u8]) -> BackingState {
    let Superblock::Backing(superblock) = superblock_of(backing) else {
        panic!("it is a backing device")
    };
    superblock.state()
}

/// A set that is drained in a few writes, with a leaf and a node above it that get new places.
const SMALL: Shape = Shape {
    bucket_sectors: 8,
    sectors: 300,
    cached: 12,
    clean: 4,
    longest: 2,
    journaled: 12,
    per_entry: 4,
    free: 1,
    ..SHAPE
};

#[test]
fn a_flush_that_another_user_loses_is_told_to_a_drain_at_each_moment() {
    for (name, shape) in [("backing", SHAPE), ("cache", SMALL), ("backing", SMALL)] {
        let made = make(&mut fastrand::Rng::with_seed(10), shape);
        let (mut told, mut step) = (0, 0);
        loop {
            let lab = lab_of(&made);
            let volume = lab.open(&made.line, false);
            let (drained, came) = lab.drain_until(&volume, step, || lab.lose_by_another(name));
            if !came {
                break;
            }
            let sound = check(&made, &lab.images(), drained.is_ok());
            sound.unwrap_or_else(|what| panic!("{name}, step {step}, {drained:?}: {what}"));
            told += u64::from(drained.is_err());
            step += 1 + step / 64;
        }
        assert!(told > 0, "{name}: some moments are before a flush of the drain");
    }
}

#[test]
fn a_drain_that_is_interrupted_at_any_moment_answers_what_the_superblock_says() {
    let made = make(&mut fastrand::Rng::with_seed(11), SMALL);
    let (mut clean, mut busy) = (0, 0);
    for step in 0.. {
        let lab = lab_of(&made);
        let volume = lab.open(&made.line, false);
        let meddle = || lab.start_suspend(&volume);
        let (drained, came) = lab.drain_until(&volume, step, meddle);
        let images = lab.images();
        let dirty = volume.dirty().first().map_or(0, |dirty| dirty.sectors.0);
        let is_clean = state_of(&images[1]) == BackingState::Clean;
        assert_eq!((drained.is_ok(), dirty == 0), (is_clean, is_clean), "{step}: {drained:?}");
        check(&made, &images, is_clean).unwrap_or_else(|what| panic!("{step}: {what}"));
        (clean, busy) = (clean + u64::from(is_clean), busy + u64::from(!is_clean));
        if !came {
            break;
        }
    }
    assert!(clean > 1 && busy > 0, "{clean} were drained, {busy} were not");
}

#[test]
fn what_a_killed_process_wrote_is_durable_before_the_state_is_clean() {
    let made = make(&mut fastrand::Rng::with_seed(12), SHAPE);
    let lab = lab_of(&made);
    lab.open_and_drain(&made.line).expect("no power cut").expect("it is drained");
    let [cache, drained] = lab.images();
    // A process that is gone wrote the same to a backing device that has not flushed it.
    let lab = Lab::new(2, Some(cache), Some(made.backing.clone()));
    let disk: std::sync::Arc<dyn cairn_block::Disk> = lab.world.drive("backing");
    let data = drained[16 * SECTOR_BYTES..].to_vec();
    lab.world.block_on(1, |env| async move {
        let count = SectorCount::of_bytes(data.len() as u64);
        let segs = env.segs(count);
        segs.copy_in(0, &data);
        let range = SectorRange::new(Sector(16), count);
        env.io(&disk, Io::write(range, segs)).await.expect("the drive is well");
    });
    assert_ne!(lab.images()[1], drained, "a power cut would lose it");
    let volume = lab.open(&made.line, false);
    lab.drain(&volume).expect("nothing is dirty");
    check(&made, &lab.images(), true).expect("it is sound");
}

/// Buckets are emptied at the beginning, with holes in several leaves of two blocks. With buckets
/// of two entries the ring is too small for some such sets, whose drain says so.
const EMPTIED: Shape = Shape {
    block_sectors: 8,
    bucket_sectors: 16,
    sectors: 7200,
    cached: 16,
    clean: 12,
    longest: 1,
    journaled: 16,
    per_entry: 4,
    free: 0,
    spare: Some(4),
};

#[test]
fn a_read_in_flight_gets_what_its_bucket_had_before_it_was_emptied() {
    let made = make(&mut fastrand::Rng::with_seed(15), EMPTIED);
    let lab = lab_of(&made);
    lab.world.set_patience(Duration::from_secs(3600));
    let volume = lab.open(&made.line, false);
    let before = Cache::read(&made.cache).extents;
    let clean: Vec<Key> =
        before.iter().filter(|key| key.inode() == 0 && !key.is_dirty()).copied().collect();
    let [cache, _] = lab.drives();
    for key in &clean {
        let at = Sector(key.cached_at().expect("it leads somewhere").sector());
        let range = SectorRange::new(at, SectorCount(key.sectors()));
        let minute = Effect::Delay(Duration::from_secs(60));
        cache.faults().add(Fault { effect: minute, ..Fault::error(OpSet::READS) }.on(range));
    }
    let reads: Vec<_> =
        clean.iter().map(|key| lab.start_read(&volume, key.start() - 16, key.sectors())).collect();
    lab.drain(&volume).expect("the drives are well");
    lab.world.run_for(Duration::from_secs(120));
    for (key, read) in clean.iter().zip(reads) {
        let (from, bytes) =
            ((key.start() - 16) as usize * SECTOR_BYTES, key.sectors() as usize * SECTOR_BYTES);
        let read = read.borrow_mut().take().expect("a minute is over").expect("it reads");
        assert!(read == made.content[from..from + bytes], "{key:?} read wrong");
    }
    let after = lab.cache().extents;
    let has_left =
        |key: &&Key| !after.iter().any(|own| own.begin() <= key.begin() && key.end() <= own.end());
    assert!(clean.iter().filter(has_left).count() > 0, "buckets were emptied");
    lab.close(&volume);
}

/// Cuts the power at each of these writes of a drain. What is left then is sound, whatever of the
/// volatile writes it is.
fn cut_at_each(made: &Made, writes: Range<u64>, images: u64) -> Result<(), String> {
    for index in writes {
        let lab = lab_of(made);
        lab.world.cut_at(Cut { index, when: CutWhen::Submitted });
        let _ = lab.open_and_drain(&made.line);
        for seed in 0..images {
            let images = images_of(&lab, &mut fastrand::Rng::with_seed(seed));
            let sound = check(made, &images.each_ref().map(Image::to_vec), false);
            sound.map_err(|what| format!("write {index}, {seed}: {what}"))?;
        }
    }
    Ok(())
}

#[test]
fn each_write_of_a_drain_with_few_buckets_may_be_the_last() {
    let made = make(&mut fastrand::Rng::with_seed(14), Shape { sectors: 700, ..SMALL });
    let writes = writes_of(&made).expect("it is drained");
    cut_at_each(&made, 0..writes, 6).expect("it is sound");
}

#[test]
fn each_write_while_buckets_are_emptied_may_be_the_last() {
    let made = make(&mut fastrand::Rng::with_seed(15), EMPTIED);
    let writes = writes_of(&made).expect("it is drained");
    cut_at_each(&made, 0..writes.min(50), 2).expect("it is sound");
}

#[test]
fn a_device_that_fails_leaves_a_set_that_the_next_drain_goes_on_with() {
    let rng = &mut fastrand::Rng::with_seed(7);
    let made = make(rng, SHAPE);
    for (name, ops) in [
        ("backing", OpSet::WRITES),
        ("backing", OpSet::FLUSHES),
        ("cache", OpSet::READS),
        ("cache", OpSet::WRITES),
        ("cache", OpSet::DURABLE_WRITES),
    ] {
        let lab = Lab::new(1, Some(made.cache.clone()), Some(made.backing.clone()));
        let volume = lab.open(&made.line, false);
        lab.world.drive(name).faults().add(Fault::error(ops));
        let refused = lab.drain(&volume).expect_err("a device fails");
        assert!(refused.starts_with("flush: backing with cache: "), "{refused}");
        assert_eq!(refused.lines().count(), 1);
        lab.world.drive(name).faults().clear();
        lab.close(&volume);
        lab.open_and_drain(&made.line).expect("no power cut").expect("the devices are well");
        check(&made, &lab.images(), true).expect(name);
    }
}

#[test]
fn a_drain_leaves_priorities_with_the_generations_of_its_nodes() {
    let rng = &mut fastrand::Rng::with_seed(8);
    // Nodes of 4 KiB, which are soon full.
    let made = make(rng, Shape { bucket_sectors: 8, longest: 2, journaled: 30, ..SHAPE });
    let before = Cache::read(&made.cache);
    let lab = Lab::new(1, Some(made.cache.clone()), Some(made.backing.clone()));
    lab.open_and_drain(&made.line).expect("no power cut").expect("it is drained");
    let [image, _] = lab.images();
    let after = Cache::read(&image);
    let (geometry, newest) = (after.superblock.geometry(), &after.loaded.newest);
    assert_ne!(before.nodes, after.nodes, "nodes were replaced");
    assert_ne!(before.loaded.newest.priorities, newest.priorities);
    let at = geometry.sector_of(newest.priorities) as usize * SECTOR_BYTES;
    let magic = after.superblock.set_uuid().set_magic();
    let set = PrioritySet::read(&image[at..at + geometry.meta_bytes()], magic).expect("sound");
    let records: Vec<_> = set.records().collect();
    for pointer in after.nodes.iter().filter_map(Key::cached_at) {
        let own = records[geometry.bucket_of(pointer.sector()) as usize];
        assert_eq!((own.priority, own.generation), (METADATA, pointer.generation()), "{pointer:?}");
    }
    assert_eq!(records[newest.priorities as usize].priority, METADATA);
}
