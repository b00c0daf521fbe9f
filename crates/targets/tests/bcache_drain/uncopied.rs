//! Drains of sets with extents that the cache device cannot read or the backing device cannot
//! write: exactly these stay dirty.

use cairn_block::{Sector, SectorCount, SectorRange};
use cairn_format::bcache::{BackingState, Key};
use cairn_sim::{Fault, OpSet};

use super::bcache_lab::make::{Made, SHAPE, Shape, make};
use super::bcache_lab::{Cache, Lab};
use super::{FULL, SMALL, check, lab_of, state_of};

/// The device whose sectors of an extent fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The cache device cannot read its data.
    Cache,
    /// The backing device cannot write its sectors.
    Backing,
}

/// The dirty extents of the cached volume, in order.
fn dirty_of(cache: &Cache) -> Vec<Key> {
    let own = cache.extents.iter().filter(|key| key.inode() == 0 && key.is_dirty());
    own.copied().collect()
}

/// The fault that keeps an extent from being copied.
fn fault_of(key: &Key, side: Side) -> Fault {
    let (start, ops) = match side {
        Side::Cache => (key.cached_at().expect("it leads somewhere").sector(), OpSet::READS),
        Side::Backing => (key.start(), OpSet::WRITES),
    };
    Fault::error(ops).on(SectorRange::new(Sector(start), SectorCount(key.sectors())))
}

/// Plants the faults of these extents.
pub fn spoil(lab: &Lab, bad: &[(Key, Side)]) {
    let [cache, backing] = lab.drives();
    for (key, side) in bad {
        let drive = if *side == Side::Cache { &cache } else { &backing };
        drive.faults().add(fault_of(key, *side));
    }
}

/// True if a fault keeps an extent from being copied.
fn is_spoiled(key: &Key, bad: &[(Key, Side)]) -> bool {
    bad.iter().any(|(other, side)| {
        let overlap = |a: u64, b: u64| a < b + other.sectors() && b < a + key.sectors();
        let at = |key: &Key| key.cached_at().expect("it leads somewhere").sector();
        match side {
            Side::Cache => overlap(at(key), at(other)),
            Side::Backing => overlap(key.start(), other.start()),
        }
    })
}

/// Where each dirty sector of the volume lies in the cache: leaves may cut extents.
fn sectors_of<'k>(keys: impl IntoIterator<Item = &'k Key>) -> Vec<(u64, u64)> {
    let each = |key: &Key| {
        let at = key.cached_at().expect("it leads somewhere").sector();
        let start = key.start();
        (0..key.sectors()).map(move |sector| (start + sector, at + sector))
    };
    keys.into_iter().flat_map(each).collect()
}

/// Checks that a drain left exactly the extents dirty that are spoiled, and said so.
///
/// # Errors
/// It did not.
fn check_left(
    before: &[Key],
    bad: &[(Key, Side)],
    [cache, backing]: &[Vec<u8>; 2],
    drained: &Result<(), String>,
) -> Result<(), String> {
    let left = dirty_of(&Cache::try_read(cache)?);
    let expected = sectors_of(before.iter().filter(|key| is_spoiled(key, bad)));
    if sectors_of(&left) != expected {
        let sectors = expected.len();
        return Err(format!("left {} extents dirty, expected {sectors} sectors", left.len()));
    }
    let Some(first) = left.first() else {
        let is_clean = state_of(backing) == BackingState::Clean && drained.is_ok();
        return if is_clean { Ok(()) } else { Err(format!("{drained:?}")) };
    };
    if state_of(backing) != BackingState::Dirty {
        return Err(format!("state {:?}", state_of(backing)));
    }
    let (sum, inode, start, end) = (expected.len(), first.inode(), first.start(), first.end());
    let parts = [
        "flush: backing with cache: ".to_owned(),
        format!(": could not copy {} extent", left.len()),
        format!(" ({sum} sectors), which stay dirty"),
        format!(": inode {inode} sectors {start}..{end} ({} sectors), ", first.sectors()),
    ];
    match drained {
        Err(line) if parts.iter().all(|part| line.contains(part)) && !line.contains('\n') => Ok(()),
        other => Err(format!("{other:?}, expected it to contain {parts:?}")),
    }
}

/// Drains a set with some extents that cannot be copied.
///
/// # Errors
/// Other extents are dirty after the drain, or the content is another one.
pub fn drain_some(lab: &Lab, made: &Made, rng: &mut fastrand::Rng) -> Result<(), String> {
    // What a killed process left volatile becomes durable.
    lab.close(&lab.open(&made.line, false));
    let before = dirty_of(&Cache::try_read(&lab.images()[0])?);
    let bad = draw(lab, rng)?;
    drain_without(lab, made, &before, &bad).map_err(|what| format!("{bad:?}: {what}"))
}

/// Drains a set of which `bad` of the extents `before` cannot be copied. No fault is left.
fn drain_without(
    lab: &Lab,
    made: &Made,
    before: &[Key],
    bad: &[(Key, Side)],
) -> Result<(), String> {
    spoil(lab, bad);
    let drained = lab.open_and_drain(&made.line).expect("no power cut");
    let images = lab.images();
    lab.drives().iter().for_each(|drive| drive.faults().clear());
    check_left(before, bad, &images, &drained)?;
    check(made, &images, drained.is_ok())
}

/// Some dirty extents that cannot be copied; perhaps none.
pub fn draw(lab: &Lab, rng: &mut fastrand::Rng) -> Result<Vec<(Key, Side)>, String> {
    let dirty = dirty_of(&Cache::try_read(&lab.images()[0])?);
    let count = if dirty.is_empty() { 0 } else { rng.usize(..6) };
    let side = |rng: &mut fastrand::Rng| [Side::Cache, Side::Backing][rng.usize(..2)];
    Ok((0..count).map(|_| (dirty[rng.usize(..dirty.len())], side(rng))).collect())
}

/// The dirty extents of a set.
fn dirty_in(made: &Made) -> Vec<Key> {
    dirty_of(&Cache::read(&made.cache))
}

#[test]
fn extents_that_cannot_be_copied_stay_dirty_and_all_others_become_clean() {
    for (seed, shape) in [SHAPE, SMALL, FULL, Shape { longest: 1, ..SHAPE }].iter().enumerate() {
        let rng = &mut fastrand::Rng::with_seed(seed as u64);
        let made = make(rng, *shape);
        let before = dirty_in(&made);
        let last = before.len() - 1;
        for bad in [
            vec![(before[0], Side::Cache)],
            vec![(before[last], Side::Backing)],
            vec![(before[1], Side::Cache), (before[2], Side::Backing), (before[9], Side::Cache)],
            before.iter().step_by(3).map(|key| (*key, Side::Backing)).collect(),
            before.iter().take(900).map(|key| (*key, Side::Cache)).collect(),
        ] {
            let lab = lab_of(&made);
            let ended = drain_without(&lab, &made, &before, &bad);
            ended.unwrap_or_else(|what| panic!("{what}"));
            // A second drain tries them again.
            lab.open_and_drain(&made.line).expect("no power cut").expect("the drives are well");
            check(&made, &lab.images(), true).expect("it is sound");
        }
    }
}

#[test]
fn a_failed_flush_beside_failed_copies_has_the_batch_written_again() {
    let made = make(&mut fastrand::Rng::with_seed(20), SHAPE);
    let before = dirty_in(&made);
    for side in [Side::Cache, Side::Backing] {
        for (flush, shots) in [
            (Fault::losing_flushes(), 1),
            (Fault::losing_flushes(), 2),
            (Fault::error(OpSet::FLUSHES), 1),
        ] {
            let bad = [(before[3], side), (before[7], side)];
            let lab = lab_of(&made);
            let volume = lab.open(&made.line, false);
            spoil(&lab, &bad);
            // One more extent fails at the second attempt, so that there is a third.
            let once = |key: &Key| fault_of(key, side).shots(1);
            let [cache, backing] = lab.drives();
            let drive = if side == Side::Cache { &cache } else { &backing };
            drive.faults().add(once(&before[5]));
            backing.faults().add(flush.shots(shots));
            let drained = lab.drain(&volume);
            let images = lab.images();
            let sound = check(&made, &images, false);
            sound.unwrap_or_else(|what| panic!("{side:?}, {shots}: {what}"));
            match shots {
                1 => check_left(&before, &bad, &images, &drained).expect("the others are clean"),
                // No extent fails at the second attempt: the flush failed for another reason.
                _ => assert!(
                    drained.unwrap_err().contains("the flush of the backing device failed: "),
                    "{side:?}"
                ),
            }
        }
    }
}

/// A set of many extents, no two of which are one write.
const APART: Shape =
    Shape { sectors: 24_000, cached: 8, clean: 0, longest: 1, journaled: 0, free: 60, ..SHAPE };

#[test]
fn a_drain_gives_up_on_a_dead_device_after_a_thousand_extents_and_a_sample() {
    let made = make(&mut fastrand::Rng::with_seed(21), APART);
    let before = dirty_in(&made);
    assert!(before.len() > 9000, "{}", before.len());
    for (name, ops, verb) in
        [("cache", OpSet::READS, "reading cache"), ("backing", OpSet::WRITES, "writing backing")]
    {
        let lab = lab_of(&made);
        let volume = lab.open(&made.line, false);
        let drive = lab.world.drive(name);
        drive.faults().add(Fault::error(ops));
        let line = lab.drain(&volume).expect_err("the device is dead");
        let tried = drive.faults().injected();
        assert!((1000..4000).contains(&tried), "{name}: {tried} requests");
        assert!(
            line.contains(
                "and so did a sample of the others, the rest was not tried: inode 0 sectors "
            ),
            "{line}"
        );
        assert!(line.contains(verb) && line.lines().count() == 1, "{line}");
        assert_eq!(dirty_of(&lab.cache()), before);
        assert_eq!(state_of(&lab.images()[1]), BackingState::Dirty);
        drive.faults().clear();
        lab.drain(&volume).expect("the device is well again");
        check(&made, &lab.images(), true).expect("it is sound");
    }
}

#[test]
fn a_drain_goes_on_behind_a_region_of_thousands_of_extents_that_fail() {
    let made = make(&mut fastrand::Rng::with_seed(22), APART);
    let before = dirty_in(&made);
    for side in [Side::Cache, Side::Backing] {
        let bad: Vec<(Key, Side)> = before[500..3500].iter().map(|key| (*key, side)).collect();
        let ended = drain_without(&lab_of(&made), &made, &before, &bad);
        ended.unwrap_or_else(|what| panic!("{side:?}: {what}"));
    }
}

#[test]
fn a_suspend_while_extents_fail_leaves_the_rest_for_the_next_drain() {
    let made = make(&mut fastrand::Rng::with_seed(23), SMALL);
    let before = dirty_in(&made);
    let bad = [(before[1], Side::Cache), (before[4], Side::Backing)];
    let mut is_busy = false;
    for step in 0.. {
        let lab = lab_of(&made);
        let volume = lab.open(&made.line, false);
        spoil(&lab, &bad);
        let meddle = || lab.start_suspend(&volume);
        let (drained, came) = lab.drain_until(&volume, step, meddle);
        assert!(drained.is_err(), "step {step}");
        is_busy |= drained.is_err_and(|line| line.contains("a suspend ended the drain"));
        let images = lab.images();
        assert_eq!(state_of(&images[1]), BackingState::Dirty, "step {step}");
        check(&made, &images, false).unwrap_or_else(|what| panic!("{step}: {what}"));
        if !came {
            break;
        }
    }
    assert!(is_busy);
}
