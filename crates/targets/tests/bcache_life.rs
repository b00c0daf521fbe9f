//! The life of a backing device across power cuts: it is attached, detached, forced to run and
//! attached again. At each write of an attach and of a forced run the power is cut, of each device
//! independently; what is left is a device that belongs to no set, or to the set with nothing
//! cached, with all of its content.
//!
//! `CAIRN_CUTS=1000 cargo test -p cairn-targets --release --test bcache_life` is the long run. With
//! `--features canary` known ordering bugs are planted: each must be caught.

mod bcache_lab;

use bcache_lab::make::{FIRST, Made, SHAPE, Shape, make};
use bcache_lab::{Cache, Lab, superblock_of};
use cairn_format::bcache::{
    BackingState, BackingSuperblock, SECTOR_BYTES, SUPERBLOCK_SECTOR, Superblock, Uuid,
};
use cairn_sim::{Cut, CutWhen, Image};

const SHAPES: &[Shape] = &[
    SHAPE,
    Shape { bucket_sectors: 8, longest: 2, journaled: 30, per_entry: 4, free: 60, ..SHAPE },
    Shape { block_sectors: 8, sectors: 6144, longest: 2, per_entry: 200, journaled: 60, ..SHAPE },
    Shape { bucket_sectors: 128, longest: 1, journaled: 400, per_entry: 60, ..SHAPE },
];

/// The set of [`make`].
const SET: Uuid = Uuid([2; 16]);

/// What a device is before it is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    /// It was drained, and left its set.
    Detached,
    /// It was forced to run without its set, which has dirty data of it.
    Forced,
}

fn images_of(lab: &Lab, rng: &mut fastrand::Rng) -> [Image; 2] {
    let images = lab.world.images_after_power_cut(rng);
    let of = |name: &str| images.iter().find(|(own, _)| own == name).expect(name).1.clone();
    ["cache", "backing"].map(of)
}

fn bytes_of(images: &[Image; 2]) -> [Vec<u8>; 2] {
    images.each_ref().map(Image::to_vec)
}

fn superblock(backing: &[u8]) -> Result<BackingSuperblock, String> {
    match superblock_of(backing) {
        Superblock::Backing(superblock) => Ok(superblock),
        Superblock::Cache(_) => Err("the superblock of the backing device is gone".to_owned()),
    }
}

fn data_of(backing: &[u8]) -> &[u8] {
    &backing[FIRST as usize * SECTOR_BYTES..]
}

fn with_option(line: &str, option: &str) -> String {
    let line = line.strip_suffix(" 0").expect("a line without options");
    format!("{line} {} {option}", option.split(' ').count())
}

/// A set and a device that is to be attached to it.
fn prepared(made: &Made, before: Before, rng: &mut fastrand::Rng) -> Result<[Image; 2], String> {
    let lab = Lab::new(rng.u64(..), Some(made.cache.clone()), Some(made.backing.clone()));
    if before == Before::Detached {
        lab.open_and_detach(&made.line).expect("no power cut")?;
        return Ok(images_of(&lab, rng));
    }
    let [cache, mut backing] = lab.images();
    let mut superblock = superblock(&backing)?;
    superblock.set_state(BackingState::Stale);
    let at = SUPERBLOCK_SECTOR as usize * SECTOR_BYTES;
    let bytes = superblock.encode();
    backing[at..at + bytes.len()].copy_from_slice(&bytes);
    Ok([cache, backing].map(|bytes| Image::of_bytes(&bytes)))
}

/// Checks what a power cut in or after an attach left. Answers whether the device is attached.
fn check_attached(
    made: &Made,
    content: &[u8],
    [cache_bytes, backing]: &[Vec<u8>; 2],
) -> Result<bool, String> {
    let cache = Cache::try_read(cache_bytes)?;
    let superblock = superblock(backing)?;
    if data_of(backing) != content {
        return Err("the content of the device has changed".to_owned());
    }
    let is_attached = superblock.state() == BackingState::Clean;
    let volumes = cache.loaded.volumes.iter().enumerate();
    let own: Vec<usize> =
        volumes.filter(|(_, it)| it.uuid == superblock.uuid()).map(|(inode, _)| inode).collect();
    match own[..] {
        [] if is_attached => return Err("the set does not know its device".to_owned()),
        [inode] if is_attached => {
            if superblock.set_uuid() != SET {
                return Err("it names another set".to_owned());
            }
            if cache.extents.iter().any(|key| key.inode() == inode as u32) {
                return Err(format!("inode {inode} was used before"));
            }
        }
        [] | [_] => {}
        _ => return Err("the set has the device twice".to_owned()),
    }
    let lab = Lab::new(3, Some(cache_bytes.clone()), Some(backing.clone()));
    let attach = with_option(&made.line, "attach");
    let line = if is_attached { &made.line } else { &attach };
    let volume = lab.try_open(line, false).map_err(|error| format!("{line}: {error}"))?;
    if lab.read_all(&volume) != content {
        return Err("it reads wrong".to_owned());
    }
    lab.close(&volume);
    let volume = lab.try_open(&made.flash_line, true).map_err(|error| error.to_string())?;
    let is_right = lab.read_all(&volume) == made.flash_content;
    lab.close(&volume);
    let is_right = is_right.then_some(is_attached);
    is_right.ok_or_else(|| "the other volume reads wrong".to_owned())
}

/// Attaches a device, and cuts the power at each write of that.
fn live_and_attach(seed: u64) -> Result<(), String> {
    let rng = &mut fastrand::Rng::with_seed(seed);
    let shape = SHAPES[seed as usize % SHAPES.len()];
    let made = make(rng, shape);
    let before = [Before::Detached, Before::Forced][seed as usize / SHAPES.len() % 2];
    let images = prepared(&made, before, rng)?;
    let content = data_of(&images[1].to_vec()).to_vec();
    let line = with_option(&made.line, "attach");
    let whole = Lab::of_images(2, images.clone());
    whole.open_and_close(&line).expect("no power cut")?;
    let writes = whole.world.writes();
    if !check_attached(&made, &content, &bytes_of(&images_of(&whole, rng)))? {
        return Err(format!("{shape:?}, {before:?}: a power cut at the end leaves it alone"));
    }
    for index in 0..writes {
        let when = [CutWhen::Submitted, CutWhen::Completed][rng.usize(..2)];
        let context = |what: String| format!("{shape:?}, {before:?}, {index} {when:?}: {what}");
        let lab = Lab::of_images(rng.u64(..), images.clone());
        lab.world.cut_at(Cut { index, when });
        let ended = lab.open_and_close(&line);
        let left = bytes_of(&images_of(&lab, rng));
        let is_attached = check_attached(&made, &content, &left).map_err(context)?;
        if matches!(ended, Ok(Ok(()))) && !is_attached {
            return Err(context("it ended well, and the device is not attached".to_owned()));
        }
    }
    Ok(())
}

/// What a client writes to a device that is forced to run.
const NEW: [u8; 8 * SECTOR_BYTES] = [0xee; 8 * SECTOR_BYTES];

/// Forces a device to run, writes to it, and cuts the power at each write of that.
fn live_and_force(seed: u64) -> Result<(), String> {
    let rng = &mut fastrand::Rng::with_seed(seed);
    let made = make(rng, SHAPES[seed as usize % SHAPES.len()]);
    let line = made.line.replace(" cache 0", &format!(" - 2 force {SET}"));
    let old = data_of(&made.backing)[..NEW.len()].to_vec();
    for index in 0..8 {
        let when = [CutWhen::Submitted, CutWhen::Completed][rng.usize(..2)];
        let images = [&made.cache, &made.backing].map(|bytes| Image::of_bytes(bytes));
        let lab = Lab::of_images(rng.u64(..), images);
        lab.world.cut_at(Cut { index, when });
        let ended = lab.open_and_write(&line, &NEW);
        let left = bytes_of(&images_of(&lab, rng));
        let context = |what: &str| format!("write {index} {when:?}: {what}");
        let data = &data_of(&left[1])[..NEW.len()];
        let superblock = superblock(&left[1])?;
        match superblock.state() {
            BackingState::Stale => {}
            BackingState::Dirty if data != old => {
                return Err(context("a set counts for a device that was written without it"));
            }
            BackingState::Dirty if matches!(ended, Ok(Ok(()))) => {
                return Err(context("a forced run that ended well has left no state"));
            }
            BackingState::Dirty => {}
            state => return Err(context(&format!("found state {state:?}"))),
        }
        if left[0] != made.cache {
            return Err(context("the cache was written"));
        }
    }
    Ok(())
}

/// How many lives a test has, unless `CAIRN_CUTS` says so.
fn lives() -> u64 {
    let asked = std::env::var("CAIRN_CUTS").ok().and_then(|cuts| cuts.parse::<u64>().ok());
    asked.map_or(8, |cuts| (cuts / 25).max(8))
}

#[test]
fn attach_that_ends_at_any_write_leaves_a_device_that_is_attached_or_not() {
    for seed in 0..lives() {
        live_and_attach(seed).unwrap_or_else(|what| panic!("{seed}: {what}"));
    }
}

#[test]
fn forced_run_that_ends_at_any_write_leaves_no_set_that_counts_for_new_data() {
    for seed in 0..lives() {
        live_and_force(seed).unwrap_or_else(|what| panic!("{seed}: {what}"));
    }
}

#[cfg(feature = "canary")]
mod canaries {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use cairn_targets::bcache::canary::{Bug, plant};

    fn is_caught(bug: Bug, live: impl Fn(u64) -> Result<(), String>) {
        plant(Some(bug));
        let is_bad = |seed: &u64| {
            let ended = catch_unwind(AssertUnwindSafe(|| live(*seed)));
            !matches!(ended, Ok(Ok(())))
        };
        let caught = (0..100).find(is_bad);
        plant(None);
        assert!(caught.is_some(), "{bug:?} was not caught");
    }

    #[test]
    fn superblock_that_names_a_set_which_does_not_know_the_device_is_caught() {
        is_caught(Bug::SuperblockBeforeArray, super::live_and_attach);
    }

    #[test]
    fn forced_run_whose_state_is_not_durable_is_caught() {
        is_caught(Bug::ForcedBeforeStale, super::live_and_force);
    }
}
