//! What a crash between two steps leaves: at each step the files are copied as a killed process
//! would leave them, and every copy is started again.
//! A merge that runs is suspended meanwhile, so that a copy is of one moment.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cairn_block::{Disk, Io, Sector, SectorCount, SectorRange, SuspendMode};
use cairn_reactor::RingKind;
use parking_lot::Mutex;

use super::Step;
use super::rollback::Merge;
use crate::control::rpc::{SnapCreateParams, SnapDiffParams};
use crate::failure::Outcome;
use crate::serve::args;
use crate::serve::config::Config;
use crate::serve::exports::Exports;
use crate::serve::plan::Plan;
use crate::state::StateFile;
use crate::verbs::Verbs;
use crate::world::{World, WorldOptions};

const SECTORS: u64 = 1024;
const LINEAR: &str = "v=0 1024 linear disk 0";

/// A server without sockets, over the files of one folder.
struct Bed {
    folder: PathBuf,
    world: Arc<World>,
    verbs: Arc<Verbs>,
}

/// What a volume holds: runs of sectors, each with its byte.
type Content = Vec<(u64, u8)>;

/// What the files were at one step.
struct Moment {
    step: Option<Step>,
    folder: PathBuf,
}

impl Bed {
    fn start(folder: &Path, table: &str) -> Outcome<Bed> {
        let state = StateFile::open(&folder.join("state"))?;
        let steps = [args::Step::Table(table.to_owned())];
        let mut plan = Plan::of(&Config::default(), &steps)?;
        plan.restore(&state)?;
        let world = Arc::new(World::start(WorldOptions {
            reactors: Some(2),
            ring: RingKind::Threads,
            base: Some(folder.to_owned()),
            read_only: false,
        })?);
        plan.bring_up(&world)?;
        let exports = Arc::new(Exports::new(&world, Vec::new()));
        for name in plan.names() {
            exports.add_volume(&world, name)?;
        }
        let records = plan.records().to_vec();
        let verbs = Arc::new(Verbs::new(world.clone(), exports, Some(state), records));
        Ok(Bed { folder: folder.to_owned(), world, verbs })
    }

    /// Starts over a fresh disk of byte 1.
    fn fresh(folder: &Path, table: &str) -> Bed {
        fs::write(folder.join("disk"), vec![1; SECTORS as usize * 512]).unwrap();
        fs::write(folder.join("cache"), vec![0; 1 << 20]).unwrap();
        Bed::start(folder, table).unwrap()
    }

    fn write(&self, name: &str, start: u64, count: u64, byte: u8) {
        let disk: Arc<dyn Disk> = self.world.volume(name).unwrap();
        let range = SectorRange::new(Sector(start), SectorCount(count));
        let written = self.world.on_home(name, move |env| async move {
            let segs = env.segs(range.count);
            segs.copy_in(0, &vec![byte; range.to_bytes() as usize]);
            env.io(&disk, Io::write(range, segs)).await
        });
        written.unwrap();
    }

    fn flush(&self, name: &str) {
        let disk: Arc<dyn Disk> = self.world.volume(name).unwrap();
        self.world.on_home(name, |env| async move { env.io(&disk, Io::flush()).await }).unwrap();
    }

    /// Runs of sectors with the byte they are filled with.
    fn bytes(&self, name: &str) -> Content {
        let disk: Arc<dyn Disk> = self.world.volume(name).unwrap();
        let range = SectorRange::new(Sector(0), SectorCount(SECTORS));
        let bytes = self.world.on_home(name, move |env| async move {
            let segs = env.segs(range.count);
            env.io(&disk, Io::read(range, segs.clone())).await.unwrap();
            segs.to_vec()
        });
        let mut runs: Content = Vec::new();
        for sector in bytes.chunks(512) {
            assert!(sector.iter().all(|byte| *byte == sector[0]), "a torn sector");
            match runs.last_mut().filter(|run| run.1 == sector[0]) {
                Some(run) => run.0 += 1,
                None => runs.push((1, sector[0])),
            }
        }
        runs
    }

    fn has(&self, name: &str) -> bool {
        self.world.volume(name).is_ok()
    }

    fn create(&self, name: &str) -> Outcome<()> {
        let (name, chunk_sectors) = (name.to_owned(), Some(8));
        let params = SnapCreateParams { name, chunk_sectors, ..SnapCreateParams::default() };
        self.verbs.snap_create(&params)
    }

    fn changed(&self, name: &str) -> Vec<(u64, u64)> {
        let params = SnapDiffParams { name: name.to_owned(), other: None };
        let extents = self.verbs.snap_diff(&params).unwrap();
        extents.iter().map(|extent| (extent.offset / 512, extent.length / 512)).collect()
    }

    /// Waits for a merge, and ends it.
    fn end_merge(&self) {
        if !self.has("v@merge") {
            return;
        }
        while self.verbs.merge_of("v").unwrap() != Merge::Done {
            std::thread::sleep(Duration::from_millis(2));
        }
        assert!(self.verbs.end_merge("v").unwrap());
    }

    fn files(&self) -> Vec<String> {
        let names = fs::read_dir(&self.folder).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Runs `verb` and copies the files at each of its steps, and at the end.
    fn moments(&self, copies: &Path, verb: impl FnOnce(&Bed)) -> Vec<Moment> {
        let moments: Arc<Mutex<Vec<Moment>>> = Arc::default();
        let (folder, copies, kept) = (self.folder.clone(), copies.to_owned(), moments.clone());
        let world = self.world.clone();
        let look = move |step| {
            let mut moments = kept.lock();
            let to = copies.join(moments.len().to_string());
            let merges = world.volume("v@merge").is_ok_and(|merge| !merge.is_suspended());
            if merges {
                world.suspend("v@merge", SuspendMode::Flush).unwrap();
            }
            copy(&folder, &to);
            if merges {
                world.resume("v@merge").unwrap();
            }
            moments.push(Moment { step, folder: to });
        };
        let look = Arc::new(look);
        let at_step = look.clone();
        *self.verbs.at_step.lock() = Box::new(move |step| at_step(Some(step)));
        verb(self);
        *self.verbs.at_step.lock() = Box::new(|_| ());
        look(None);
        drop(look);
        std::mem::take(&mut *moments.lock())
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

fn folders() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let all = tempfile::tempdir().unwrap();
    let (work, copies) = (all.path().join("work"), all.path().join("copies"));
    fs::create_dir(&work).unwrap();
    (all, work, copies)
}

fn all_of(byte: u8) -> Content {
    vec![(SECTORS, byte)]
}

#[test]
fn a_crash_while_a_snapshot_is_made_leaves_none_or_a_true_one() {
    let (_all, work, copies) = folders();
    let bed = Bed::fresh(&work, LINEAR);
    let moments = bed.moments(&copies, |bed| {
        bed.create("v@mon").unwrap();
        bed.write("v", 100, 50, 2);
    });
    assert_eq!(bed.changed("v@mon"), [(96, 56)]);
    let steps: Vec<_> = moments.iter().filter_map(|moment| moment.step).collect();
    let expected = [
        Step::StoreMade,
        Step::Recorded,
        Step::Suspended,
        Step::Arranged,
        Step::Resumed,
        Step::Done,
    ];
    assert_eq!(steps, expected);
    for moment in moments {
        let again = Bed::start(&moment.folder, LINEAR).unwrap();
        let recorded = moment.step != Some(Step::StoreMade);
        assert_eq!(again.has("v@mon"), recorded, "{:?}", moment.step);
        if recorded {
            assert_eq!(again.bytes("v@mon"), all_of(1), "{:?}", moment.step);
        }
        let now = if moment.step.is_some() { all_of(1) } else { vec![(100, 1), (50, 2), (874, 1)] };
        assert_eq!(again.bytes("v"), now, "{:?}", moment.step);
    }
}

#[test]
fn a_crash_while_a_snapshot_is_removed_leaves_a_true_one_or_none() {
    for others in [false, true] {
        let (_all, work, copies) = folders();
        let bed = Bed::fresh(&work, LINEAR);
        bed.create("v@mon").unwrap();
        if others {
            bed.create("v@tue").unwrap();
        }
        bed.write("v", 0, SECTORS, 2);
        let moments = bed.moments(&copies, |bed| {
            bed.verbs.snap_remove("v@mon").unwrap();
            bed.write("v", 0, SECTORS, 3);
        });
        for Moment { step, folder } in moments {
            let again = Bed::start(&folder, LINEAR).unwrap();
            if again.has("v@mon") {
                assert!([Some(Step::Suspended), Some(Step::Arranged)].contains(&step), "{step:?}");
                assert_eq!(again.bytes("v@mon"), all_of(1), "{step:?}");
            }
            assert_eq!(again.has("v@tue"), others);
            if others {
                assert_eq!(again.bytes("v@tue"), all_of(1), "{step:?}");
            }
            let now = if step.is_none() { 3 } else { 2 };
            assert_eq!(again.bytes("v"), all_of(now), "{step:?}");
        }
        let own = ["cache", "disk", "state"].map(str::to_owned);
        assert!(others || bed.files() == own, "{:?}", bed.files());
    }
}

#[test]
fn a_crash_during_a_rollback_or_merge_ends_it_after_the_next_start() {
    for keep in [true, false] {
        let (_all, work, copies) = folders();
        let bed = Bed::fresh(&work, LINEAR);
        bed.create("v@mon").unwrap();
        bed.create("v@tue").unwrap();
        bed.write("v", 0, 500, 2);
        bed.create("v@wed").unwrap();
        bed.write("v", 0, 100, 3);
        let (now, wed) = (bed.bytes("v"), bed.bytes("v@wed"));
        let moments = bed.moments(&copies, |bed| {
            bed.verbs.snap_merge("v@mon", keep, None).unwrap();
            bed.end_merge();
        });
        for Moment { step, folder } in moments {
            let again = Bed::start(&folder, LINEAR).unwrap();
            let begun = step != Some(Step::StoreMade);
            again.end_merge();
            let expected = if begun { all_of(1) } else { now.clone() };
            assert_eq!(again.bytes("v"), expected, "{step:?}");
            assert_eq!(again.bytes("v@tue"), all_of(1), "{step:?}");
            assert_eq!(again.bytes("v@wed"), wed, "{step:?}");
            assert_eq!(again.has("v@mon"), keep || !begun, "{step:?}");
            if again.has("v@mon") {
                assert_eq!(again.bytes("v@mon"), all_of(1), "{step:?}");
            }
            again.write("v", 0, SECTORS, 9);
            assert_eq!(again.bytes("v@tue"), all_of(1), "{step:?}: after more writes");
        }
    }
}

#[test]
fn a_rolled_back_snapshot_does_not_see_what_is_written_meanwhile() {
    let (_all, work, _) = folders();
    let bed = Bed::fresh(&work, LINEAR);
    bed.create("v@mon").unwrap();
    bed.write("v", 0, SECTORS, 2);
    bed.verbs.snap_merge("v@mon", true, None).unwrap();
    bed.write("v", 10, 10, 5);
    let now = vec![(10, 1), (10, 5), (1004, 1)];
    assert_eq!((bed.bytes("v"), bed.bytes("v@mon")), (now.clone(), all_of(1)));
    let line = bed.create("v@tue").unwrap_err().to_string();
    assert!(line.starts_with("v: state: found a merge under way"), "{line}");
    bed.end_merge();
    assert_eq!((bed.bytes("v"), bed.bytes("v@mon")), (now, all_of(1)));
    assert_eq!(bed.changed("v@mon"), [(8, 16)]);
    bed.verbs.snap_remove("v@mon").unwrap();
    assert_eq!(bed.files(), ["cache", "disk", "state"]);
}

#[test]
fn a_failed_verb_leaves_everything_as_it_was() {
    let (_all, work, _) = folders();
    let bed = Bed::fresh(&work, LINEAR);
    bed.create("v@mon").unwrap();
    bed.write("v", 0, 100, 2);
    let (before, state) = (bed.files(), fs::read(work.join("state")).unwrap());
    // The state file can't be replaced.
    fs::create_dir(work.join("state.new")).unwrap();
    bed.create("v@tue").unwrap_err();
    bed.verbs.snap_remove("v@mon").unwrap_err();
    bed.verbs.snap_merge("v@mon", true, None).unwrap_err();
    bed.verbs.snap_merge("v@mon", false, None).unwrap_err();
    fs::remove_dir(work.join("state.new")).unwrap();
    assert_eq!((bed.files(), fs::read(work.join("state")).unwrap()), (before, state));
    bed.write("v", 100, 100, 3);
    assert_eq!(bed.bytes("v@mon"), all_of(1));
    assert_eq!(bed.changed("v@mon"), [(0, 200)]);
    bed.verbs.snap_remove("v@mon").unwrap();
    assert_eq!(bed.bytes("v"), [(100, 2), (100, 3), (824, 1)]);
}

#[test]
fn a_merge_that_cannot_begin_leaves_volume_and_snapshot_alive() {
    for keep in [true, false] {
        let (_all, work, _) = folders();
        let bed = Bed::fresh(&work, LINEAR);
        bed.create("v@mon").unwrap();
        bed.write("v", 0, 100, 2);
        let (before, state) = (bed.files(), fs::read(work.join("state")).unwrap());
        let store = work.join("v@mon.cow");
        let header = |version: u8| {
            let file = fs::OpenOptions::new().write(true).open(&store).unwrap();
            std::os::unix::fs::FileExt::write_all_at(&file, &[version], 8).unwrap();
        };
        header(9);
        let line = bed.verbs.snap_merge("v@mon", keep, None).unwrap_err().to_string();
        assert!(line.contains("header version: found 9"), "{line}");
        header(1);
        assert_eq!((bed.files(), fs::read(work.join("state")).unwrap()), (before, state));
        bed.write("v", 100, 100, 3);
        assert_eq!((bed.bytes("v@mon"), bed.changed("v@mon")), (all_of(1), vec![(0, 200)]));
        bed.verbs.snap_merge("v@mon", keep, None).unwrap();
        bed.end_merge();
        assert_eq!(bed.bytes("v"), all_of(1));
    }
}

#[test]
fn a_volume_is_not_served_without_its_snapshots() {
    let (_all, work, _) = folders();
    let bed = Bed::fresh(&work, LINEAR);
    bed.create("v@mon").unwrap();
    drop(bed);
    fs::rename(work.join("v@mon.cow"), work.join("elsewhere")).unwrap();
    let line = Bed::start(&work, LINEAR).err().expect("refused").to_string();
    assert!(line.starts_with("v@mon: ") && line.contains("v@mon.cow"), "{line}");
    fs::rename(work.join("elsewhere"), work.join("v@mon.cow")).unwrap();
    let line = Bed::start(&work, "v=0 512 linear disk 0").err().expect("refused").to_string();
    assert!(line.contains("found another table configured"), "{line}");
    assert_eq!(Bed::start(&work, LINEAR).unwrap().bytes("v@mon"), all_of(1));
}

#[test]
fn a_volume_with_a_cache_is_snapshotted_and_gets_its_table_back() {
    let (_all, work, copies) = folders();
    let table = "v=0 1024 writecache s disk cache 4096 0";
    let bed = Bed::fresh(&work, table);
    bed.write("v", 0, 512, 2);
    bed.flush("v");
    let content = bed.bytes("v");
    let moments = bed.moments(&copies, |bed| {
        bed.create("v@mon").unwrap();
        bed.write("v", 0, 256, 3);
    });
    assert_eq!(bed.bytes("v@mon"), content);
    bed.verbs.snap_merge("v@mon", false, None).unwrap();
    bed.end_merge();
    assert_eq!(bed.bytes("v"), content);
    assert!(!bed.has("v@real"));
    for Moment { folder, .. } in moments {
        let again = Bed::start(&folder, table).unwrap();
        if again.has("v@mon") {
            assert_eq!(again.bytes("v@mon"), content);
        }
    }
}

#[test]
fn a_store_that_may_grow_does_so_in_time_and_raises_an_event() {
    let (_all, work, _) = folders();
    let bed = Bed::fresh(&work, LINEAR);
    bed.verbs.watch_over().unwrap();
    let params = SnapCreateParams {
        name: "v@mon".to_owned(),
        chunk_sectors: Some(8),
        size_bytes: Some(64 << 10),
        fill_percent: Some(50),
        grow_bytes: Some(64 << 10),
        ..SnapCreateParams::default()
    };
    bed.verbs.snap_create(&params).unwrap();
    let mon = bed.world.volume("v@mon").unwrap();
    let seen = mon.event_nr();
    for start in (0..SECTORS).step_by(32) {
        bed.write("v", start, 32, 2);
        let full = || bed.verbs.status_of("v@mon").unwrap();
        let room = |status: String| {
            let numbers: Vec<u64> = status.split(['/', ' ']).map(|n| n.parse().unwrap()).collect();
            numbers[0] * 2 < numbers[1]
        };
        while !room(full()) {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    assert!(mon.event_nr() > seen);
    assert_eq!(bed.bytes("v@mon"), all_of(1));
    let infos = bed.verbs.snap_list(Some("v")).unwrap();
    assert_eq!((infos[0].state.as_str(), infos[0].grow_bytes), ("valid", Some(64 << 10)));
    bed.verbs.snap_grow("v@mon", 8 << 20).unwrap();
    bed.verbs.snap_grow("v@mon", 1 << 19).unwrap_err();
    assert_eq!(bed.verbs.snap_list(None).unwrap()[0].size_bytes, Some(8 << 20));
}

#[test]
fn a_store_that_is_full_overflows_until_it_grows() {
    let (_all, work, _) = folders();
    let bed = Bed::fresh(&work, LINEAR);
    let params = SnapCreateParams {
        name: "v@mon".to_owned(),
        chunk_sectors: Some(8),
        size_bytes: Some(16 << 10),
        ..SnapCreateParams::default()
    };
    bed.verbs.snap_create(&params).unwrap();
    bed.write("v@mon", 0, 16, 7);
    let state = || bed.verbs.snap_list(None).unwrap()[0].state.clone();
    let disk: Arc<dyn Disk> = bed.world.volume("v@mon").unwrap();
    let refused = bed.world.on_home("v@mon", move |env| async move {
        let range = SectorRange::new(Sector(512), SectorCount(8));
        env.io(&disk, Io::write(range, env.segs(range.count))).await
    });
    refused.unwrap_err();
    assert_eq!(state(), "overflow");
    bed.verbs.snap_grow("v@mon", 64 << 10).unwrap();
    assert_eq!(state(), "valid");
    bed.write("v@mon", 512, 8, 8);
    bed.write("v", 0, SECTORS, 2);
    assert_eq!(state(), "invalid", "the origin's writes need more than there is");
    let line = bed.verbs.snap_merge("v@mon", false, None).unwrap_err().to_string();
    assert!(line.contains("the content of this one is lost"), "{line}");
    bed.verbs.snap_remove("v@mon").unwrap();
}
