//! The histories of the golden power losses, with cairn in the place of the kernel.
//!
//! `formats/golden` has two pairs of devices on which a power cut took data that a kernel had
//! answered an fsync for:
//! - [`WrittenBack`] (`undirty_noflush`): AAAA is fsynced, and written back. The kernel calls its
//!   key clean without a flush of the backing device, which loses AAAA.
//! - [`Bypassed`] (`bypass_over_dirty`): AAAA is fsynced as dirty data. A stream of BBBB over it
//!   bypasses the cache, behind a durable hole, and the backing device loses BBBB.
//!
//! Both histories run on cairn's target. The power is cut at each write of them, and where the
//! golden pairs were taken: at the end, and each device keeps or loses what is volatile there on
//! its own. Then [`judge`] looks at both devices, sector by sector. It finds the losses of the
//! golden pairs, and those of cairn with the kernel's order planted (`--features canary`).

mod bcache_lab;

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bcache_lab::judge::{Devices, inode_of, superblock_of_backing};
use bcache_lab::tagged::{Run, pair, read, run, runs, text};
use bcache_lab::{Cache, Lab};
use cairn_block::{Disk, Env, Io, MappedDevice, Sector, SectorCount, SectorRange};
use cairn_format::bcache::{BackingState, Key};
use cairn_sim::{Cut, CutWhen, Image, Stopped};
use cairn_testkit::image;

const LINE: &str = "0 16368 bcache backing cache 0";
const SECTORS: u64 = 16368;
/// Where AAAA is written.
const FIRST: Range<u64> = 2048..2176;
/// Where BBBB is written.
const SECOND: Range<u64> = 1024..2560;

/// How far a history came, as its client knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Came {
    Begun,
    /// AAAA is written, and a flush after it was answered.
    Durable,
    /// BBBB may have been sent.
    Overwritten,
    /// It is over, and what a journal writes late was written.
    Ended,
}

/// A history of one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum History {
    WrittenBack,
    Bypassed,
}
use History::{Bypassed, WrittenBack};

impl History {
    /// The tags that a sector of the volume may have.
    fn allowed(self, came: Came, sector: u64) -> Vec<&'static str> {
        let is_second = self == Bypassed && came >= Came::Overwritten && SECOND.contains(&sector);
        let first = match FIRST.contains(&sector) {
            false => &["INIT"][..],
            true if came == Came::Begun => &["INIT", "AAAA"],
            true => &["AAAA"],
        };
        first.iter().copied().chain(is_second.then_some("BBBB")).collect()
    }

    async fn live(
        self,
        env: Env,
        volume: Arc<MappedDevice>,
        came: Rc<Cell<Came>>,
    ) -> Result<(), String> {
        let disk: Arc<dyn Disk> = volume.clone();
        // As the kernel's was told: AAAA stays dirty until the history goes on.
        set(&env, &volume, "writeback_running", "0").await?;
        write(&env, &disk, "AAAA", FIRST).await?;
        env.io(&disk, Io::flush()).await.map_err(|error| error.to_string())?;
        came.set(Came::Durable);
        // A checkpoint comes: the key is in a leaf. Flushes no longer come often.
        env.sleep(Duration::from_secs(40)).await;
        match self {
            WrittenBack => {
                volume.drain_caches(&env).await.map_err(|error| error.to_string())?;
            }
            Bypassed => {
                set(&env, &volume, "sequential_cutoff", "65536").await?;
                came.set(Came::Overwritten);
                for start in SECOND.step_by(64) {
                    write(&env, &disk, "BBBB", start..start + 64).await?;
                }
            }
        }
        env.sleep(Duration::from_secs(2)).await;
        came.set(Came::Ended);
        Ok(())
    }
}

async fn set(env: &Env, volume: &MappedDevice, name: &str, value: &str) -> Result<(), String> {
    let sent = volume.message(env, Sector(0), &["set", name, value]).await;
    sent.map(drop).map_err(|error| error.to_string())
}

async fn write(
    env: &Env,
    disk: &Arc<dyn Disk>,
    tag: &str,
    sectors: Range<u64>,
) -> Result<(), String> {
    let range = SectorRange::new(Sector(sectors.start), SectorCount(sectors.end - sectors.start));
    let segs = env.segs(range.count);
    segs.copy_in(0, &text(tag, sectors));
    env.io(disk, Io::write(range, segs)).await.map_err(|error| error.to_string())
}

/// Judges what a power cut left of a history that came so far: the metadata is sound, and clean
/// data is what the backing device has; each sector of the volume has a tag that it may have; and
/// so has the backing device alone where nothing is dirty.
///
/// # Errors
/// The first that does not hold.
fn judge(history: History, came: Came, [cache, backing]: &[Vec<u8>; 2]) -> Result<(), String> {
    let backings = std::slice::from_ref(backing);
    let devices = Devices { cache, backings };
    devices.judge()?;
    let read = Cache::try_read(cache)?;
    let inode = inode_of(&read, backing).ok_or("the set does not know its device")?;
    let first = superblock_of_backing(backing).data_offset();
    let is_dirty = |sector: u64| {
        let covers = |key: &&Key| {
            key.inode() == inode && (key.start()..key.end()).contains(&(first + sector))
        };
        read.extents.iter().find(covers).is_some_and(|key| key.is_dirty())
    };
    let together = devices.content_of(inode, Some(backing), SECTORS);
    let alone = &backing[first as usize * 512..][..SECTORS as usize * 512];
    for (what, content) in [("together", &together[..]), ("the backing device alone", alone)] {
        for (tag, sectors) in runs(content) {
            let is_judged = |sector: &u64| what == "together" || !is_dirty(*sector);
            let is_wrong = |sector: &u64| !history.allowed(came, *sector).contains(&&*tag);
            if let Some(sector) = sectors.filter(is_judged).find(is_wrong) {
                let expected = history.allowed(came, sector);
                return Err(format!("{what}: sector {sector}: found {tag}, expected {expected:?}"));
            }
        }
    }
    Ok(())
}

/// What cairn reads, and what is left after a drain and a detach, is what the devices were judged
/// by.
fn judge_served(images: &[Image; 2]) -> Result<(), String> {
    let [cache, backing] = images.each_ref().map(Image::to_vec);
    let backings = std::slice::from_ref(&backing);
    let devices = Devices { cache: &cache, backings };
    let inode = inode_of(&Cache::read(&cache), &backing).expect("it was judged");
    let expected = runs(&devices.content_of(inode, Some(&backing), SECTORS));
    let lab = Lab::of_images(10, images.clone());
    let found = read(&lab, "backing cache 0");
    if found != expected {
        return Err(format!("served: found {found:?}, expected {expected:?}"));
    }
    let lab = Lab::of_images(11, images.clone());
    lab.open_and_detach(LINE).expect("no power cut")?;
    let alone = lab.images()[1][16 * 512..].to_vec();
    match runs(&alone) == expected {
        true => Ok(()),
        false => Err(format!("detached: found {:?}, expected {expected:?}", runs(&alone))),
    }
}

/// Devices on which nothing is cached: what is left of the cache of a golden pair is a hole.
fn fresh(seed: u64) -> Lab {
    let images = ["bypass_over_dirty.cache", "bypass_over_dirty.backing-lost"];
    let images = images.map(|name| Image::of_bytes(&image("bcache", name)));
    Lab::of_images(seed, images)
}

/// Runs a history until it ends or the power is cut. Answers how far it came.
fn live(lab: &Lab, history: History) -> Came {
    let came = Rc::new(Cell::new(Came::Begun));
    let own = came.clone();
    let user = async move |env, volume| history.live(env, volume, own).await;
    match lab.open_and_use(LINE, user) {
        Ok(ended) => ended.expect("the drives are well"),
        Err(why) => assert!(matches!(why, Stopped::PowerCut), "{why:?}"),
    }
    came.get()
}

/// What the power cut may leave of both devices: each loses or keeps all that is volatile; the
/// golden pairs are of the first two kinds. And a mixture.
fn left(lab: &Lab, rng: &mut fastrand::Rng) -> Vec<(&'static str, [Image; 2])> {
    let [cache, backing] = lab.drives();
    vec![
        ("backing-lost", [cache.durable(), backing.durable()]),
        ("backing-kept", [cache.durable(), backing.visible()]),
        ("cache kept, backing lost", [cache.visible(), backing.durable()]),
        ("a mixture", [cache.power_cut(rng), backing.power_cut(rng)]),
    ]
}

/// Runs a history with a power cut at its end, and at each of its writes.
fn judge_all(history: History) -> Result<(), String> {
    let rng = &mut fastrand::Rng::with_seed(5);
    let whole = fresh(3);
    assert_eq!(live(&whole, history), Came::Ended);
    let writes = whole.world.writes();
    for (what, images) in left(&whole, rng) {
        let context = |wrong: String| format!("at the end, {what}: {wrong}");
        judge(history, Came::Ended, &images.each_ref().map(Image::to_vec)).map_err(context)?;
        judge_served(&images).map_err(context)?;
    }
    let mut seen = Vec::new();
    for index in 0..writes {
        let when = [CutWhen::Submitted, CutWhen::Completed][rng.usize(..2)];
        let lab = fresh(3);
        lab.world.cut_at(Cut { index, when });
        let came = live(&lab, history);
        seen.push(came);
        for (what, images) in left(&lab, rng) {
            let context =
                |wrong: String| format!("write {index} {when:?}, {came:?}, {what}: {wrong}");
            judge(history, came, &images.each_ref().map(Image::to_vec)).map_err(context)?;
        }
    }
    let lasts = [Came::Begun, Came::Durable, Came::Overwritten];
    let expected = if history == Bypassed { &lasts[..] } else { &lasts[..2] };
    seen.dedup();
    assert_eq!(seen, expected, "the power was cut in each part");
    Ok(())
}

fn golden(cache: &str, backing: &str) -> [Vec<u8>; 2] {
    [cache, backing].map(|name| image("bcache", name))
}

/// The devices as they are when a history has ended, each without what is volatile.
fn at_end(history: History) -> Lab {
    let lab = fresh(3);
    assert_eq!(live(&lab, history), Came::Ended);
    let [cache, backing] = lab.images();
    Lab::new(4, Some(cache), Some(backing))
}

#[test]
fn losses_of_the_golden_pairs_are_found() {
    let lost = golden("undirty_noflush.cache", "undirty_noflush.backing-lost");
    let wrong = judge(WrittenBack, Came::Ended, &lost).expect_err("AAAA is clean data alone");
    assert!(wrong.contains("clean extent"), "{wrong}");
    let lost = golden("bypass_over_dirty.cache", "bypass_over_dirty.backing-lost");
    let wrong = judge(Bypassed, Came::Ended, &lost).expect_err("both are lost");
    assert_eq!(wrong, r#"together: sector 2048: found INIT, expected ["AAAA", "BBBB"]"#);
    let kept = golden("bypass_over_dirty.cache", "bypass_over_dirty.backing-kept");
    assert_eq!(judge(Bypassed, Came::Ended, &kept), Ok(()));
}

#[test]
fn data_that_cairn_called_clean_survives_a_power_cut_anywhere() {
    judge_all(WrittenBack).unwrap_or_else(|wrong| panic!("{wrong}"));
    // The history is that of the golden pair: what was fsynced is clean, and no entry has it.
    let (lab, kernel) =
        (at_end(WrittenBack), pair("undirty_noflush.cache", "undirty_noflush.backing-lost"));
    for cache in [lab.cache(), kernel.cache()] {
        let covers = |key: &&Key| key.start() < 16 + FIRST.end && key.end() > 16 + FIRST.start;
        let cached: Vec<_> = cache.extents.iter().filter(covers).collect();
        assert!(!cached.is_empty() && cached.iter().all(|key| !key.is_dirty()), "{cached:?}");
        assert!(!cache.loaded.journal.iter().any(|key| covers(&key)), "an entry has it");
    }
    let state = superblock_of_backing(&lab.images()[1]).state();
    assert_eq!(state, BackingState::Clean);
    let [before, after] = [0..2048, 2176..SECTORS];
    let expected = [run("INIT", before), run("AAAA", FIRST), run("INIT", after)];
    assert_eq!(runs(&lab.images()[1][16 * 512..]), expected, "the backing device alone");
}

#[test]
fn bypass_over_dirty_data_leaves_nothing_older_than_both_at_a_power_cut_anywhere() {
    judge_all(Bypassed).unwrap_or_else(|wrong| panic!("{wrong}"));
    // The history is that of the golden pair: most of BBBB went around the cache, and no flush
    // covers it.
    let lab = fresh(3);
    assert_eq!(live(&lab, Bypassed), Came::Ended);
    let [_, backing] = lab.drives();
    let [shown, lost] = [backing.visible(), backing.durable()].map(|it| it.to_vec());
    let count = |bytes: &[u8]| -> u64 {
        let found = runs(&bytes[16 * 512..]).into_iter().filter(|run: &Run| run.0 == "BBBB");
        found.map(|(_, range)| range.end - range.start).sum()
    };
    assert!(count(&shown) > 1024, "{} sectors", count(&shown));
    assert_eq!(count(&lost), 0);
}

#[cfg(feature = "canary")]
mod canaries {
    use cairn_targets::bcache::canary::{Bug, plant};

    use super::*;

    /// With the kernel's order planted, the devices that the history leaves are judged, as the
    /// golden pair was taken: nothing that is volatile is kept.
    fn with_planted(bug: Bug, history: History) -> (Result<(), String>, Vec<Run>) {
        plant(Some(bug));
        let lab = at_end(history);
        plant(None);
        let images = lab.images();
        let judged = judge(history, Came::Ended, &images);
        let detached = lab.open_and_detach(LINE).expect("no power cut");
        detached.expect("it is detached");
        (judged, runs(&lab.images()[1][16 * 512..]))
    }

    #[test]
    fn keys_that_are_clean_before_a_flush_lose_what_the_kernel_lost() {
        let (judged, detached) = with_planted(Bug::CleanBeforeFlush, WrittenBack);
        let wrong = judged.expect_err("AAAA is clean data alone");
        assert!(wrong.contains("clean extent"), "{wrong}");
        assert_eq!(detached, [run("INIT", 0..SECTORS)]);
    }

    #[test]
    fn holes_over_dirty_data_lose_what_the_kernel_lost() {
        let (judged, detached) = with_planted(Bug::HoleOverDirty, Bypassed);
        let wrong = judged.expect_err("both are lost");
        assert!(wrong.contains("found INIT, expected [\"AAAA\", \"BBBB\"]"), "{wrong}");
        let lost = detached.iter().find(|run| run.1.contains(&2100)).expect("it is there");
        assert_eq!(lost.0, "INIT");
    }
}
