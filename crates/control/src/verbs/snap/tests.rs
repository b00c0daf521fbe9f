//! What a crash between two steps leaves: at each step the files are copied as a killed process
//! would leave them, and every copy is started again.
//! A merge that runs is suspended meanwhile, so that a copy is of one moment.

use std::collections::HashSet;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cairn_backends::DeviceOpener;
use cairn_block::{Disk, Io, Opener, Sector, SectorCount, SectorRange, SuspendMode};
use cairn_exports::nbd::{Contexts, NbdOptions};
use cairn_outcome::failure::Outcome;
use cairn_reactor::RingKind;
use parking_lot::Mutex;

use super::diff::Extent;
use super::rollback::Merge;
use crate::contexts::SnapContexts;
use crate::control::server::Caller;
use crate::exports::Exports;
use crate::plan::{BroughtUp, Plan};
use crate::state::{ExportChanges, StateFile};
use crate::verbs::Verbs;
use crate::verbs::snap::list::SnapState;
use crate::verbs::snap::{SnapCreate, SnapDiff};
use crate::verbs::steps::Step;
use crate::verbs::volume::{VolumeReplace, VolumeResume};
use crate::world::{World, WorldOptions};

mod half_done;

pub(crate) const SECTORS: u64 = 1024;
const LINEAR: &str = "v=0 1024 linear disk 0";

/// A server without sockets, over the files of one folder.
pub(crate) struct TestServer {
    pub folder: PathBuf,
    pub world: Arc<World>,
    pub verbs: Arc<Verbs>,
}

/// Who waits however long it takes.
pub(crate) struct Patient;

impl Caller for Patient {
    fn is_gone(&self) -> bool {
        false
    }
}

/// What a volume holds: runs of sectors, each with its byte.
pub(crate) type Content = Vec<(u64, u8)>;

/// What the files were at one step.
pub(crate) struct Moment {
    pub step: Option<Step>,
    pub folder: PathBuf,
}

impl TestServer {
    pub fn start(folder: &Path, table: &str) -> Outcome<TestServer> {
        TestServer::start_over(folder, table, Box::new(DeviceOpener::default()))
    }

    /// The same, over devices that `opener` opens.
    pub fn start_over(folder: &Path, table: &str, opener: Box<dyn Opener>) -> Outcome<TestServer> {
        let state = StateFile::open(&folder.join("state"))?;
        let (name, lines) = table.split_once('=').expect("it names its volume");
        let mut plan = Plan::default();
        plan.add_table(name, lines)?;
        plan.restore(&state);
        let options = WorldOptions {
            handles: Default::default(),
            reactors: Some(2),
            ring: RingKind::Threads,
            base: Some(folder.to_owned()),
            read_only: false,
            guest_sets: false,
            take_overs: Vec::new(),
        };
        let world = Arc::new(World::start_over(options, opener)?);
        let BroughtUp { changed, failed } = plan.bring_up(&world)?;
        state.record(changed)?;
        if let Some(failure) = failed.first() {
            return Err(failure.error());
        }
        let (changes, options) = (ExportChanges::default(), NbdOptions::default());
        let exports = Arc::new(Exports::new(&world, Vec::new(), Vec::new(), changes, options));
        for name in plan.names() {
            exports.add_volume(&world, name)?;
        }
        let records = plan.records().to_vec();
        let verbs = Arc::new(Verbs::new(world.clone(), exports, Some(state), records));
        Ok(TestServer { folder: folder.to_owned(), world, verbs })
    }

    /// Starts over a fresh disk of byte 1.
    pub fn fresh(folder: &Path, table: &str) -> TestServer {
        fs::write(folder.join("disk"), vec![1; SECTORS as usize * 512]).unwrap();
        fs::write(folder.join("cache"), vec![0; 1 << 20]).unwrap();
        TestServer::start(folder, table).unwrap()
    }

    /// The same, with the snapshot `v@mon`, from which 100 sectors differ.
    fn with_snapshot(folder: &Path) -> TestServer {
        let server = TestServer::fresh(folder, LINEAR);
        server.create("v@mon").unwrap();
        server.write("v", 0, 100, 2);
        server
    }

    pub fn write(&self, name: &str, start: u64, count: u64, byte: u8) {
        let disk: Arc<dyn Disk> = self.world.volume(name).unwrap();
        let range = SectorRange::new(Sector(start), SectorCount(count));
        let written = self.world.on_home(name, move |env| async move {
            let segs = env.segs(range.count);
            segs.copy_in(0, &vec![byte; range.to_bytes() as usize]);
            env.io(&disk, Io::write(range, segs)).await
        });
        written.unwrap();
    }

    pub fn flush(&self, name: &str) {
        let disk: Arc<dyn Disk> = self.world.volume(name).unwrap();
        self.world.on_home(name, |env| async move { env.io(&disk, Io::flush()).await }).unwrap();
    }

    /// Runs of sectors with the byte they are filled with.
    pub fn bytes(&self, name: &str) -> Content {
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

    pub fn resume(&self, name: &str) -> Outcome<()> {
        let params = VolumeResume { name: name.to_owned(), ..VolumeResume::default() };
        self.verbs.resume(&params, &Patient).map(drop)
    }

    pub fn replace(&self, name: &str, table: &str, flush: bool) -> Outcome<()> {
        let (name, table) = (name.to_owned(), table.to_owned());
        let params = VolumeReplace { name, table, flush, ..VolumeReplace::default() };
        self.verbs.replace(&params, &Patient).map(drop)
    }

    pub fn has(&self, name: &str) -> bool {
        self.world.volume(name).is_ok()
    }

    pub fn create(&self, name: &str) -> Outcome<()> {
        let (name, chunk_sectors) = (name.to_owned(), Some(8));
        let params = SnapCreate { name, chunk_sectors, ..SnapCreate::default() };
        self.verbs.snap_create(&params, &Patient)
    }

    /// What differs between a snapshot and its volume, or another snapshot, as the verb tells it.
    fn diff(&self, name: &str, other: Option<&str>) -> Vec<(u64, u64)> {
        let (name, other) = (name.to_owned(), other.map(str::to_owned));
        let params = SnapDiff { name, other, from: None };
        let told = self.verbs.snap_diff(&params, &Patient).unwrap();
        assert_eq!(told.next, None);
        told.extents.iter().map(|extent| (extent.offset / 512, extent.length / 512)).collect()
    }

    fn changed(&self, name: &str) -> Vec<(u64, u64)> {
        self.diff(name, None)
    }

    /// Waits for a merge of `v`, if there is one, and tries to end it.
    pub fn try_to_end_merge(&self) -> Outcome<bool> {
        while self.has("v@merge") && matches!(self.verbs.merge_of("v")?, Merge::Left { .. }) {
            std::thread::sleep(Duration::from_millis(2));
        }
        self.verbs.end_merge("v")
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

    /// What the NBD context of a snapshot says on the export of `volume`.
    fn told(&self, volume: &str, context: &str) -> Vec<(u64, u64)> {
        let contexts = SnapContexts::new(self.world.names(), volume);
        let whole = SectorRange::new(Sector(0), SectorCount(SECTORS));
        let (mut at, mut changed) = (0, Vec::new());
        let context = context.to_owned();
        let runs = self.world.on_home(volume, move |env| async move {
            contexts.describe(&env, &context, whole).await
        });
        for run in runs.unwrap() {
            if run.state == 1 {
                changed.push((at, run.count.0));
            }
            at += run.count.0;
        }
        changed
    }

    /// Overwrites a byte of a store when the next verb has come to a step.
    fn poke_when(&self, step: Step, store: &Path, offset: u64, byte: u8) {
        let store = store.to_owned();
        *self.verbs.at_step.lock() = Box::new(move |now| {
            if now == step {
                poke(&store, offset, byte);
            }
        });
    }

    /// Later verbs are left alone.
    fn whenever(&self) {
        *self.verbs.at_step.lock() = Box::new(|_| ());
    }

    pub fn is_suspended(&self, name: &str) -> bool {
        self.world.volume(name).unwrap().is_suspended()
    }

    pub fn files(&self) -> Vec<String> {
        let names = fs::read_dir(&self.folder).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Runs `verb` and copies the files at each of its steps, and at the end.
    pub fn moments(&self, copies: &Path, verb: impl FnOnce(&TestServer)) -> Vec<Moment> {
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

pub(crate) fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let (len, to) = (entry.metadata().unwrap().len(), to.join(entry.file_name()));
        if len <= 1 << 30 {
            fs::copy(entry.path(), to).unwrap();
            continue;
        }
        // Longer than anything that a test writes: the rest is a hole.
        let mut copy = fs::File::create(to).unwrap();
        let begin = fs::File::open(entry.path()).unwrap();
        std::io::copy(&mut begin.take(64 << 20), &mut copy).unwrap();
        copy.set_len(len).unwrap();
    }
}

/// Overwrites a byte of a file.
fn poke(path: &Path, offset: u64, byte: u8) {
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[byte], offset).unwrap();
}

fn line_of<T>(outcome: Outcome<T>) -> String {
    outcome.err().expect("refused").to_string()
}

/// Where the version is in the header of a store.
const VERSION_AT: u64 = 8;

pub(crate) fn folders() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let all = tempfile::tempdir().unwrap();
    let (work, copies) = (all.path().join("work"), all.path().join("copies"));
    fs::create_dir(&work).unwrap();
    (all, work, copies)
}

pub(crate) fn all_of(byte: u8) -> Content {
    vec![(SECTORS, byte)]
}

#[test]
fn a_crash_while_a_snapshot_is_made_leaves_none_or_a_true_one() {
    let (_all, work, copies) = folders();
    let server = TestServer::fresh(&work, LINEAR);
    let moments = server.moments(&copies, |server| {
        server.create("v@mon").unwrap();
        server.write("v", 100, 50, 2);
    });
    assert_eq!(server.changed("v@mon"), [(96, 56)]);
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
        let again = TestServer::start(&moment.folder, LINEAR).unwrap();
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
        let server = TestServer::fresh(&work, LINEAR);
        server.create("v@mon").unwrap();
        if others {
            server.create("v@tue").unwrap();
        }
        server.write("v", 0, SECTORS, 2);
        let moments = server.moments(&copies, |server| {
            server.verbs.snap_remove("v@mon").unwrap();
            server.write("v", 0, SECTORS, 3);
        });
        for Moment { step, folder } in moments {
            let again = TestServer::start(&folder, LINEAR).unwrap();
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
        assert!(others || server.files() == own, "{:?}", server.files());
    }
}

#[test]
fn a_crash_during_a_rollback_or_merge_ends_it_after_the_next_start() {
    for keep in [true, false] {
        let (_all, work, copies) = folders();
        let server = TestServer::fresh(&work, LINEAR);
        server.create("v@mon").unwrap();
        server.create("v@tue").unwrap();
        server.write("v", 0, 500, 2);
        server.create("v@wed").unwrap();
        server.write("v", 0, 100, 3);
        let (now, wed) = (server.bytes("v"), server.bytes("v@wed"));
        let moments = server.moments(&copies, |server| {
            server.verbs.snap_merge("v@mon", keep, None).unwrap();
            server.end_merge();
        });
        for Moment { step, folder } in moments {
            let again = TestServer::start(&folder, LINEAR).unwrap();
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
    let server = TestServer::fresh(&work, LINEAR);
    server.create("v@mon").unwrap();
    server.write("v", 0, SECTORS, 2);
    server.verbs.snap_merge("v@mon", true, None).unwrap();
    server.write("v", 10, 10, 5);
    let now = vec![(10, 1), (10, 5), (1004, 1)];
    assert_eq!((server.bytes("v"), server.bytes("v@mon")), (now.clone(), all_of(1)));
    let line = server.create("v@tue").unwrap_err().to_string();
    assert!(line.starts_with("v: a merge is under way"), "{line}");
    let events = || server.world.volume("v").unwrap().event_nr();
    let before = events();
    server.end_merge();
    assert_eq!(events(), before + 1, "the end of a merge is an event of the volume");
    assert_eq!((server.bytes("v"), server.bytes("v@mon")), (now, all_of(1)));
    assert_eq!(server.changed("v@mon"), [(8, 16)]);
    server.verbs.snap_remove("v@mon").unwrap();
    assert_eq!(server.files(), ["cache", "disk", "state"]);
}

#[test]
fn a_failed_verb_leaves_everything_as_it_was() {
    let (_all, work, _) = folders();
    let server = TestServer::with_snapshot(&work);
    let (before, state) = (server.files(), fs::read(work.join("state")).unwrap());
    // The state file can't be replaced.
    fs::create_dir(work.join("state.new")).unwrap();
    server.create("v@tue").unwrap_err();
    server.verbs.snap_remove("v@mon").unwrap_err();
    server.verbs.snap_merge("v@mon", true, None).unwrap_err();
    server.verbs.snap_merge("v@mon", false, None).unwrap_err();
    fs::remove_dir(work.join("state.new")).unwrap();
    assert_eq!((server.files(), fs::read(work.join("state")).unwrap()), (before, state));
    server.write("v", 100, 100, 3);
    assert_eq!(server.bytes("v@mon"), all_of(1));
    assert_eq!(server.changed("v@mon"), [(0, 200)]);
    server.verbs.snap_remove("v@mon").unwrap();
    assert_eq!(server.bytes("v"), [(100, 2), (100, 3), (824, 1)]);
}

#[test]
fn a_merge_that_cannot_begin_leaves_volume_and_snapshot_alive() {
    for keep in [true, false] {
        let (_all, work, _) = folders();
        let server = TestServer::with_snapshot(&work);
        let (before, state) = (server.files(), fs::read(work.join("state")).unwrap());
        let store = work.join("v@mon.cow");
        let header = |version: u8| poke(&store, VERSION_AT, version);
        header(9);
        let line = server.verbs.snap_merge("v@mon", keep, None).unwrap_err().to_string();
        assert!(line.contains("header version: found 9"), "{line}");
        header(1);
        assert_eq!((server.files(), fs::read(work.join("state")).unwrap()), (before, state));
        server.write("v", 100, 100, 3);
        assert_eq!((server.bytes("v@mon"), server.changed("v@mon")), (all_of(1), vec![(0, 200)]));
        server.verbs.snap_merge("v@mon", keep, None).unwrap();
        server.end_merge();
        assert_eq!(server.bytes("v"), all_of(1));
    }
}

#[test]
fn a_volume_is_not_served_without_its_snapshots() {
    let (_all, work, _) = folders();
    let server = TestServer::fresh(&work, LINEAR);
    server.create("v@mon").unwrap();
    drop(server);
    fs::rename(work.join("v@mon.cow"), work.join("elsewhere")).unwrap();
    let line = TestServer::start(&work, LINEAR).err().expect("refused").to_string();
    assert!(line.starts_with("v@mon: ") && line.contains("v@mon.cow"), "{line}");
    fs::rename(work.join("elsewhere"), work.join("v@mon.cow")).unwrap();
    let line =
        TestServer::start(&work, "v=0 512 linear disk 0").err().expect("refused").to_string();
    assert!(line.contains("found another table configured"), "{line}");
    assert_eq!(TestServer::start(&work, LINEAR).unwrap().bytes("v@mon"), all_of(1));
}

#[test]
fn a_volume_with_a_cache_is_snapshotted_and_gets_its_table_back() {
    let (_all, work, copies) = folders();
    let table = "v=0 1024 writecache s disk cache 4096 0";
    let server = TestServer::fresh(&work, table);
    server.write("v", 0, 512, 2);
    server.flush("v");
    let content = server.bytes("v");
    let moments = server.moments(&copies, |server| {
        server.create("v@mon").unwrap();
        server.write("v", 0, 256, 3);
    });
    assert_eq!(server.bytes("v@mon"), content);
    server.verbs.snap_merge("v@mon", false, None).unwrap();
    server.end_merge();
    assert_eq!(server.bytes("v"), content);
    assert!(!server.has("v@real"));
    for Moment { folder, .. } in moments {
        let again = TestServer::start(&folder, table).unwrap();
        if again.has("v@mon") {
            assert_eq!(again.bytes("v@mon"), content);
        }
    }
}

#[test]
fn a_store_that_may_grow_does_so_in_time_and_raises_an_event() {
    let (_all, work, _) = folders();
    let server = TestServer::fresh(&work, LINEAR);
    server.verbs.watch_over().unwrap();
    let params = SnapCreate {
        name: "v@mon".to_owned(),
        chunk_sectors: Some(8),
        size_bytes: Some(64 << 10),
        fill_percent: Some(50),
        grow_bytes: Some(64 << 10),
        ..SnapCreate::default()
    };
    server.verbs.snap_create(&params, &Patient).unwrap();
    let mon = server.world.volume("v@mon").unwrap();
    let seen = mon.event_nr();
    for start in (0..SECTORS).step_by(32) {
        server.write("v", start, 32, 2);
        let has_room = || {
            let report = server.verbs.report_of("v@mon").unwrap();
            report.share("allocated/total").is_some_and(|(used, total)| used * 2 < total)
        };
        while !has_room() {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    assert!(mon.event_nr() > seen);
    assert_eq!(server.bytes("v@mon"), all_of(1));
    let infos = server.verbs.snap_list(Some("v"), &Patient).unwrap();
    assert_eq!((infos[0].state, infos[0].grow_bytes), (SnapState::Valid, Some(64 << 10)));
    server.verbs.snap_grow("v@mon", 8 << 20, &Patient).unwrap();
    server.verbs.snap_grow("v@mon", 1 << 19, &Patient).unwrap_err();
    assert_eq!(server.verbs.snap_list(None, &Patient).unwrap()[0].size_bytes, Some(8 << 20));
}

#[test]
fn a_write_to_the_volume_waits_while_a_store_grows() {
    let (_all, work, _) = folders();
    let server = TestServer::fresh(&work, LINEAR);
    server.verbs.watch_over().unwrap();
    let params = SnapCreate {
        name: "v@mon".to_owned(),
        chunk_sectors: Some(8),
        size_bytes: Some(16 << 10),
        fill_percent: Some(100),
        grow_bytes: Some(64 << 10),
        ..SnapCreate::default()
    };
    server.verbs.snap_create(&params, &Patient).unwrap();
    server.write("v", 0, SECTORS, 2);
    assert_eq!(server.bytes("v@mon"), all_of(1));
    let infos = server.verbs.snap_list(Some("v"), &Patient).unwrap();
    assert_eq!(infos[0].state, SnapState::Valid);
    assert!(infos[0].size_bytes > Some(SECTORS * 512));
}

#[test]
fn a_store_that_is_full_overflows_until_it_grows() {
    let (_all, work, _) = folders();
    let server = TestServer::fresh(&work, LINEAR);
    let params = SnapCreate {
        name: "v@mon".to_owned(),
        chunk_sectors: Some(8),
        size_bytes: Some(16 << 10),
        ..SnapCreate::default()
    };
    server.verbs.snap_create(&params, &Patient).unwrap();
    server.write("v@mon", 0, 16, 7);
    let state = || server.verbs.snap_list(None, &Patient).unwrap()[0].state;
    let disk: Arc<dyn Disk> = server.world.volume("v@mon").unwrap();
    let refused = server.world.on_home("v@mon", move |env| async move {
        let range = SectorRange::new(Sector(512), SectorCount(8));
        env.io(&disk, Io::write(range, env.segs(range.count))).await
    });
    refused.unwrap_err();
    assert_eq!(state(), SnapState::Overflow);
    server.verbs.snap_grow("v@mon", 64 << 10, &Patient).unwrap();
    assert_eq!(state(), SnapState::Valid);
    server.write("v@mon", 512, 8, 8);
    server.write("v", 0, SECTORS, 2);
    assert_eq!(state(), SnapState::Invalid, "the origin's writes need more than there is");
    let line = server.verbs.snap_merge("v@mon", false, None).unwrap_err().to_string();
    assert!(line.contains("the content of this one is lost"), "{line}");
    server.verbs.snap_remove("v@mon").unwrap();
}

#[test]
fn unmerged_chunks_differ_between_the_volume_and_its_other_snapshots() {
    let (_all, work, _) = folders();
    let server = TestServer::fresh(&work, LINEAR);
    server.create("v@mon").unwrap();
    server.write("v", 0, 8, 2);
    server.write("v", 512, 8, 2);
    server.create("v@tue").unwrap();
    server.create("v@wed").unwrap();
    let world = server.world.clone();
    let real = move |table: &str| {
        world.load("v@real", table).unwrap();
        world.resume("v@real").unwrap();
    };
    // Once the volume is suspended, with what its disk was given flushed.
    let fails = real.clone();
    *server.verbs.at_step.lock() = Box::new(move |step| {
        if step == Step::Suspended {
            fails("0 1024 flakey disk 0 0 1000000 1 error_writes");
        }
    });
    server.verbs.snap_merge("v@mon", true, None).unwrap();
    server.whenever();
    while server.verbs.merge_of("v").unwrap() != Merge::Failed {
        std::thread::sleep(Duration::from_millis(2));
    }
    let events = || server.world.volume("v").unwrap().event_nr();
    let (before, mut announced) = (events(), HashSet::new());
    for _ in 0..2 {
        _ = server.verbs.look_at_merge("v@merge", &mut announced).unwrap();
    }
    assert_eq!(events(), before + 1, "a failed merge is one event of the volume");
    let both = [(0, 8), (512, 8)];
    assert_eq!((server.bytes("v"), server.bytes("v@mon")), (all_of(1), all_of(1)));
    assert_eq!(server.bytes("v@tue"), [(8, 2), (504, 1), (8, 2), (504, 1)]);
    assert_eq!(server.changed("v@tue"), both);
    assert_eq!(server.told("v", "cairn:changed:tue"), both);
    assert_eq!(
        (server.diff("v@mon", Some("@tue")), server.diff("v@tue", Some("@mon"))),
        (both.into(), both.into())
    );
    assert_eq!(server.told("v@tue", "cairn:changed:mon"), both);
    assert_eq!((server.changed("v@mon"), server.told("v", "cairn:changed:mon")), (vec![], vec![]));
    let kept = server.diff("v@tue", Some("@wed"));
    assert_eq!(kept, [(512, 8)], "the step that failed had them keep what it would overwrite");
    real("0 1024 linear disk 0");
    server.verbs.snap_merge("v@mon", true, None).unwrap();
    server.end_merge();
    assert_eq!((server.bytes("v"), server.changed("v@tue")), (all_of(1), both.into()));
}

#[test]
fn a_volume_that_is_the_source_of_another_one_is_not_rolled_back() {
    let (_all, work, _) = folders();
    let server = TestServer::with_snapshot(&work);
    server.verbs.create("c", "0 1024 clone mem:1M mem:512K @v 8 1 no_hydration").unwrap();
    let before = (server.bytes("v"), server.files());
    for refused in [
        server.verbs.snap_merge("v@mon", true, None),
        server.verbs.snap_merge("v@mon", false, None),
    ] {
        let line = line_of(refused);
        assert!(line.contains("found volume 'c', for which it is the source of a clone"), "{line}");
    }
    assert_eq!((server.bytes("v"), server.files()), before);
    server.world.remove("c").unwrap();
    server.verbs.snap_merge("v@mon", true, None).unwrap();
    server.end_merge();
    assert_eq!(server.bytes("v"), all_of(1));
}

#[test]
fn differences_are_listed_from_a_given_byte() {
    let (_all, work, _) = folders();
    let server = TestServer::with_snapshot(&work);
    server.write("v", 512, 8, 2);
    let from = |from| {
        let (name, from) = ("v@mon".to_owned(), Some(from));
        server.verbs.snap_diff(&SnapDiff { name, other: None, from }, &Patient).unwrap().extents
    };
    let extent = |offset: u64, length: u64| Extent { offset: offset * 512, length: length * 512 };
    assert_eq!(from(0), [extent(0, 104), extent(512, 8)]);
    assert_eq!(from(100 * 512), [extent(100, 4), extent(512, 8)]);
    assert_eq!(from(u64::MAX), []);
}

#[test]
fn snapshots_are_not_told_of_by_a_server_that_is_going_away() {
    let (_all, work, _) = folders();
    let server = TestServer::with_snapshot(&work);
    server.verbs.close();
    let params = SnapDiff { name: "v@mon".to_owned(), other: None, from: None };
    for line in [
        line_of(server.verbs.snap_list(None, &Patient)),
        line_of(server.verbs.snap_diff(&params, &Patient)),
    ] {
        assert!(line.contains("a server that is going away"), "{line}");
    }
}
