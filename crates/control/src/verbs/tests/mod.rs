//! Verbs that wait for requests which only another verb lets go on.

mod attached;
mod caches;
mod claimed;
mod content;
mod deferred;
mod failing;
mod gone;
mod half_way;
mod limits;
mod read_only;
mod rename;
mod replace;
mod turns;

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use cairn_block::{Disk, ErrorKind, Io, IoError, IoResult, Sector, SectorCount, SectorRange};
use cairn_outcome::failure::Outcome;

use super::Verbs;
use crate::control::server::Caller;
use crate::reach::Named;
use crate::state::{Record, StateFile};
use crate::under_way::{Doing, UnderWay};
use crate::verbs::pool::tests::{OTHER, params};
use crate::verbs::pool::{PoolCreate, PoolGrow};
use crate::verbs::server::{ServerInfo, ServerMetrics};
use crate::verbs::snap::tests::{Patient, SECTORS, TestServer, all_of, copy, folders};
use crate::verbs::snap::{Afterwards, SnapCreate};
use crate::verbs::steps::Step;
use crate::verbs::thin::ThinCreate;
use crate::verbs::verb::Verb;
use crate::verbs::volume::{
    VolumeCreate, VolumeLoad, VolumeMessage, VolumeRemove, VolumeResume, VolumeWait,
};

/// Who hangs up when told to.
struct HangsUp(Arc<AtomicBool>);

impl Caller for HangsUp {
    fn is_gone(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Nothing here takes as long: what does hangs.
const FOREVER: Duration = Duration::from_secs(60);

impl Verbs {
    pub(crate) fn remove(&self, name: &str) -> Outcome<Vec<String>> {
        let (name, force) = (name.to_owned(), true);
        self.remove_volume(&VolumeRemove { name, force, deferred: false }, &Patient)
    }

    pub(crate) fn thin_remove(&self, name: &str) -> Outcome<()> {
        self.remove_thin(name, true, &Patient)
    }

    pub(crate) fn snap_remove(&self, name: &str) -> Outcome<()> {
        self.remove_live_snapshot(name, true, &Patient)
    }

    pub(crate) fn snap_merge(&self, name: &str, keep: bool, store: Option<&str>) -> Outcome<()> {
        let afterwards = match keep {
            true => Afterwards::Kept { store },
            false => Afterwards::Gone { force: true },
        };
        self.merge_snapshot(name, afterwards, &Patient)
    }

    pub(crate) fn create(&self, name: &str, table: &str) -> Outcome<()> {
        let (name, table) = (name.to_owned(), table.to_owned());
        self.create_volume(&VolumeCreate { name, table, ..VolumeCreate::default() }, &Patient)
            .map(drop)
    }

    pub(crate) fn load(&self, name: &str, table: &str) -> Outcome<()> {
        let (name, table) = (name.to_owned(), table.to_owned());
        self.load_table(&VolumeLoad { name, table, ..VolumeLoad::default() }, &Patient)
    }
}

/// Does something that may wait.
fn begin<T: Send + 'static>(
    server: &Arc<TestServer>,
    act: impl FnOnce(&TestServer) -> T + Send + 'static,
) -> Receiver<T> {
    let ((send, receive), server) = (channel(), server.clone());
    std::thread::spawn(move || send.send(act(&server)));
    receive
}

fn end<T>(begun: &Receiver<T>) -> T {
    begun.recv_timeout(FOREVER).expect("it hangs")
}

fn now<T: Send + 'static>(
    server: &Arc<TestServer>,
    act: impl FnOnce(&TestServer) -> T + Send + 'static,
) -> T {
    end(&begin(server, act))
}

/// Starts a write, and comes back when it waits somewhere.
fn begin_write(server: &TestServer, name: &str, start: u64) -> Receiver<IoResult> {
    let disk: Arc<dyn Disk> = server.world.volume(name).unwrap();
    let (send, receive) = channel();
    server.world.reactors().spawn(server.world.home(name), move |env| async move {
        let range = SectorRange::new(Sector(start), SectorCount(8));
        let segs = env.segs(range.count);
        segs.copy_in(0, &[7; 8 * 512]);
        let written = env.io(&disk, Io::write(range, segs)).await;
        send.send(written).unwrap();
    });
    // The same reactor, after it.
    server.world.on_home(name, |env| async move { env.sleep(Duration::from_millis(1)).await });
    receive
}

/// The pool `p` with the volume `vm`.
fn with_pool(features: &[&str]) -> (tempfile::TempDir, Arc<TestServer>) {
    let (all, work, _) = folders();
    let server = Arc::new(TestServer::start(&work, OTHER).unwrap());
    let features = features.iter().map(|&word| word.to_owned()).collect();
    // One block.
    let (data_bytes, features) = (Some(64 << 10), Some(features));
    let pool = PoolCreate { data_bytes, features, ..params("p") };
    server.verbs.pool_create(&pool, &Patient).unwrap();
    let (name, size_bytes) = ("p/vm".to_owned(), 1 << 20);
    server
        .verbs
        .thin_create(&ThinCreate { name, size_bytes, ..Default::default() }, &Patient)
        .unwrap();
    (all, server)
}

fn line_of<T: std::fmt::Debug>(refused: Outcome<T>) -> String {
    refused.unwrap_err().to_string()
}

#[test]
fn a_verb_that_would_wait_for_a_suspended_volume_is_refused() {
    let (_all, work, _) = folders();
    fs::write(work.join("big"), vec![0; 8 << 20]).unwrap();
    fs::write(work.join("small"), vec![0; 4 << 20]).unwrap();
    let server = Arc::new(TestServer::start(&work, "d=0 16384 linear big 0").unwrap());
    now(&server, |server| {
        server.verbs.create("m", "0 8192 linear small 0").unwrap();
        server.verbs.create("on", "0 8 linear @d 0").unwrap();
        server.verbs.suspend("d", false, &Patient).unwrap();
    });
    let pool = |data: &str, metadata: &str| {
        let (data, metadata) = (data.to_owned(), metadata.to_owned());
        PoolCreate { data, metadata, data_bytes: None, ..params("p") }
    };
    let (over, beneath) = (pool("@on", "@m"), pool("@m", "@d"));
    let table = "0 8192 thin-pool @d @m 128 0";
    let suspended = "state: found @d suspended, expected a live volume";
    for line in [
        line_of(now(&server, move |server| server.verbs.pool_create(&over, &Patient))),
        line_of(now(&server, move |server| server.verbs.pool_create(&beneath, &Patient))),
        line_of(now(&server, move |server| server.verbs.create("p", table))),
        line_of(now(&server, move |server| server.verbs.load("m", "0 8 linear @on 0"))),
        line_of(now(&server, |server| server.verbs.remove("on"))),
    ] {
        assert!(line.ends_with(suspended), "{line}");
    }
    assert!(!server.has("p"));
    now(&server, |server| server.resume("d").and_then(|()| server.verbs.remove("on"))).unwrap();
    now(&server, move |server| server.verbs.pool_create(&pool("@d", "@m"), &Patient)).unwrap();
}

#[test]
fn a_length_that_is_left_open_is_recorded_and_printed_as_a_number() {
    let (_all, work, _) = folders();
    fs::write(work.join("big"), vec![0; 8 << 20]).unwrap();
    let configured = "d=0 N linear big 8";
    let server = TestServer::start(&work, configured).unwrap();
    server.verbs.create("on", "0 8 zero\n8 whole linear @d 8").unwrap();
    server.verbs.load("on", "0 N linear big 16").unwrap();
    let len_of = |server: &TestServer, name: &str| {
        let table = server.world.volume(name).unwrap().live_table().unwrap();
        table.lines().last().unwrap().len.0
    };
    assert_eq!((len_of(&server, "d"), len_of(&server, "on")), (16376, 16368));
    let waiting = server.world.volume("on").unwrap().inactive_table();
    assert_eq!(waiting.unwrap().lines()[0].len.0, 16368);
    server
        .verbs
        .resume(&VolumeResume { name: "on".into(), ..Default::default() }, &Patient)
        .unwrap();
    let record = || server.verbs.changes.record_of("on");
    assert_eq!(record().table.as_deref(), Some("0 16368 linear big 16"));
    let refused = line_of(server.verbs.create("z", "0 N zero"));
    assert!(refused.contains("the line has no device to take its length from"), "{refused}");
    drop(server);
    // What is recorded stays; what is configured is looked up at each start.
    fs::File::options().write(true).open(work.join("big")).unwrap().set_len(16 << 20).unwrap();
    let server = TestServer::start(&work, configured).unwrap();
    assert_eq!((len_of(&server, "d"), len_of(&server, "on")), (32760, 16368));
    drop(server);
    fs::remove_file(work.join("big")).unwrap();
    let refused = line_of(TestServer::start(&work, configured).map(drop));
    let found = "big: there is no file or block device of this name";
    assert!(refused.starts_with("d: ") && refused.contains(found), "{refused}");
}

#[test]
fn a_message_that_changes_the_table_outlives_a_suspend_and_a_restart() {
    let (_all, server) = with_pool(&[]);
    let message = |words: &str| {
        let words = words.split(' ').map(str::to_owned).collect();
        VolumeMessage { name: "p".into(), sector: 0, words }.run(&server.verbs, &Patient)
    };
    let recorded = || server.verbs.changes.record_of("p").table.unwrap();
    let mode =
        |server: &TestServer| server.verbs.pool_status(None).unwrap()[0].detect_zeroes.clone();
    let as_created = recorded();
    message("detect_zeroes on").unwrap_err();
    message("frob").unwrap_err();
    message("reserve_metadata_snap").unwrap();
    assert_eq!((recorded(), mode(&server)), (as_created.clone(), "unmap".to_owned()));
    message("detect_zeroes off").unwrap();
    assert_eq!(server.world.printed("p").unwrap(), Some(recorded()));
    assert_eq!(recorded(), as_created.replace("detect_zeroes unmap", "detect_zeroes off"));
    server.verbs.suspend("p", false, &Patient).unwrap();
    server.resume("p").unwrap();
    assert_eq!(mode(&server), "off");
    let folder = server.folder.clone();
    drop(server);
    let again = TestServer::start(&folder, OTHER).unwrap();
    assert_eq!(mode(&again), "off");
    assert!(again.world.printed("p").unwrap().unwrap().ends_with(" detect_zeroes off"));
}

#[test]
fn a_suspend_that_waits_for_requests_holds_up_no_other_verb() {
    let (_all, server) = with_pool(&[]);
    now(&server, |server| server.verbs.suspend("p", false, &Patient)).unwrap();
    let written = begin_write(&server, "vm", 0);
    let suspended = begin(&server, |server| server.verbs.suspend("vm", false, &Patient));
    while server.world.under_way().is_empty() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let waits = "vm: a suspend is under way; `cairn resume vm` ends it";
    let on = now(&server, |server| server.verbs.create("on", "0 8 linear @vm 0"));
    assert_eq!(line_of(on), "on: state: found @vm suspended, expected a live volume");
    for line in [
        line_of(now(&server, |server| server.verbs.suspend("vm", false, &Patient))),
        line_of(now(&server, |server| server.verbs.load("vm", "0 8 zero"))),
    ] {
        assert!(line == waits || line.starts_with("vm: load: "), "{line}");
    }
    now(&server, |server| server.resume("p")).unwrap();
    end(&suspended).unwrap();
    end(&written).unwrap();
    now(&server, |server| server.resume("vm")).unwrap();
}

/// A volume of a full pool, with a write that waits for space.
fn with_write_for_space() -> (tempfile::TempDir, Arc<TestServer>, Receiver<IoResult>) {
    let (all, server) = with_pool(&["no_space_timeout", "0"]);
    server.write("vm", 0, 128, 1);
    let written = begin_write(&server, "vm", 128);
    (all, server, written)
}

/// Once a suspend was called off: requests pass, and what waits for space goes on when it comes.
fn serves_on(server: &Arc<TestServer>, written: &Receiver<IoResult>) {
    assert!(!server.world.volume("vm").unwrap().is_suspended());
    now(server, |server| server.write("vm", 0, 8, 2));
    assert!(written.try_recv().is_err(), "there is no space yet");
    now(server, |server| {
        let (name, data_bytes) = ("p".to_owned(), Some(1 << 20));
        server
            .verbs
            .pool_grow(&PoolGrow { name, data_bytes, ..Default::default() }, &Patient)
            .unwrap();
    });
    end(written).unwrap();
    assert!(!server.world.volume("vm").unwrap().is_suspended());
}

fn until_under_way(server: &TestServer) {
    while server.world.under_way().is_empty() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_resume_calls_off_a_suspend_that_waits_for_requests() {
    for noflush in [false, true] {
        let (_all, server, written) = with_write_for_space();
        // A linear volume hands nothing back.
        let on = if noflush { "on" } else { "vm" };
        now(&server, |server| server.verbs.create("on", "0 2048 linear @vm 0")).unwrap();
        let late = begin_write(&server, on, 256);
        let suspended = begin(&server, move |server| server.verbs.suspend(on, noflush, &Patient));
        until_under_way(&server);
        now(&server, move |server| server.resume(on)).unwrap();
        assert_eq!(line_of(end(&suspended)), format!("{on}: suspend: called off by a resume"));
        assert!(!server.world.volume(on).unwrap().is_suspended());
        serves_on(&server, &written);
        end(&late).unwrap();
    }
}

#[test]
fn a_suspend_whose_caller_goes_lets_requests_go_on() {
    for noflush in [false, true] {
        let (_all, server, written) = with_write_for_space();
        now(&server, |server| server.verbs.create("on", "0 2048 linear @vm 0")).unwrap();
        let (late, gone) = (begin_write(&server, "on", 256), Arc::new(AtomicBool::new(false)));
        let hangs_up = HangsUp(gone.clone());
        let suspended =
            begin(&server, move |server| server.verbs.suspend("on", noflush, &hangs_up));
        until_under_way(&server);
        gone.store(true, Ordering::Relaxed);
        assert_eq!(line_of(end(&suspended)), "on: suspend: interrupted by its caller");
        assert!(!server.world.volume("on").unwrap().is_suspended());
        serves_on(&server, &written);
        end(&late).unwrap();
    }
}

#[test]
fn a_suspend_whose_caller_goes_before_its_end_is_undone_unless_another_one_was_before() {
    let (_all, work, _) = folders();
    let server = TestServer::fresh(&work, "d=0 1024 writecache s disk cache 4096 0");
    let gone = HangsUp(Arc::new(AtomicBool::new(true)));
    let line = line_of(server.verbs.suspend("d", false, &gone));
    assert_eq!(line, "d: suspend: interrupted by its caller");
    assert!(!server.is_suspended("d") && server.verbs.stuck().is_empty());
    server.verbs.suspend("d", false, &Patient).unwrap();
    server.verbs.suspend("d", false, &gone).unwrap();
    assert!(server.is_suspended("d") && server.verbs.stuck().is_empty());
}

#[test]
fn a_table_whose_caller_goes_while_requests_are_waited_for_leaves_the_old_one() {
    let (_all, server, written) = with_write_for_space();
    now(&server, |server| server.verbs.load("vm", "0 2048 thin @p 0")).unwrap();
    let gone = Arc::new(AtomicBool::new(false));
    let hangs_up = HangsUp(gone.clone());
    let resumed = begin(&server, move |server| {
        let name = "vm".to_owned();
        server.verbs.resume(&VolumeResume { name, ..Default::default() }, &hangs_up)
    });
    until_under_way(&server);
    gone.store(true, Ordering::Relaxed);
    assert_eq!(line_of(end(&resumed)), "vm: resume: interrupted by its caller");
    serves_on(&server, &written);
    assert!(server.world.volume("vm").unwrap().inactive_table().is_some());
}

#[test]
fn a_table_that_waits_for_requests_of_the_old_one_holds_up_no_other_verb() {
    let (_all, server) = with_pool(&["no_space_timeout", "0"]);
    server.write("vm", 0, 128, 1);
    let written = begin_write(&server, "vm", 128);
    now(&server, |server| server.verbs.load("vm", "0 2048 thin @p 0")).unwrap();
    let resumed = begin(&server, |server| server.resume("vm"));
    while server.world.under_way().is_empty() {
        std::thread::sleep(Duration::from_millis(1));
    }
    now(&server, |server| {
        let (name, data_bytes) = ("p".to_owned(), Some(1 << 20));
        server
            .verbs
            .pool_grow(&PoolGrow { name, data_bytes, ..Default::default() }, &Patient)
            .unwrap();
    });
    end(&written).unwrap();
    end(&resumed).unwrap();
    assert!(!server.world.volume("vm").unwrap().is_suspended());
    assert!(server.world.volume("vm").unwrap().inactive_table().is_none());
}

#[test]
fn a_table_that_cannot_be_recorded_leaves_the_volume_live() {
    let (_all, work, _) = folders();
    let table = "0 1024 linear disk 0";
    let server = Arc::new(TestServer::fresh(&work, &format!("d={table}")));
    now(&server, move |server| server.verbs.load("d", table)).unwrap();
    // The state file can't be replaced.
    fs::create_dir(work.join("state.new")).unwrap();
    now(&server, |server| server.resume("d")).unwrap_err();
    assert!(!server.world.volume("d").unwrap().is_suspended());
    fs::remove_dir(work.join("state.new")).unwrap();
    now(&server, |server| server.resume("d")).unwrap();
    assert!(server.world.volume("d").unwrap().inactive_table().is_none());
}

/// A table that is one, and cannot be live: the metadata has no room for so much data.
const TOO_LARGE: &str = "0 4294967296 thin-pool meta null:2T 128 0";

#[test]
fn a_table_that_cannot_start_is_replaced_by_the_former_one_also_in_the_record() {
    let (_all, work, _) = folders();
    fs::write(work.join("meta"), vec![0; 4 << 20]).unwrap();
    let server = Arc::new(TestServer::fresh(&work, "d=0 1024 linear disk 0"));
    // Live, and suspended before, as scripts for the kernel do it.
    for suspended in [false, true] {
        let refused = now(&server, move |server| {
            server.verbs.load("d", TOO_LARGE).unwrap();
            if suspended {
                server.verbs.suspend("d", false, &Patient).unwrap();
            }
            server.resume("d")
        });
        assert!(refused.is_err());
        let volume = server.world.volume("d").unwrap();
        assert!(!volume.is_suspended() && volume.inactive_table().is_none());
        assert_eq!(server.bytes("d"), all_of(1));
        now(&server, |server| server.resume("d")).unwrap();
        let record = server.verbs.told()["d"].clone();
        assert_eq!(record, Record::as_configured("d", Some("0 1024 linear disk 0")));
    }
    drop(server);
    assert_eq!(TestServer::start(&work, "d=0 1024 linear disk 0").unwrap().bytes("d"), all_of(1));
}

#[test]
fn a_volume_that_cannot_be_made_or_taken_away_is_recorded_as_it_is() {
    let (_all, work, _) = folders();
    fs::write(work.join("meta"), vec![0; 4 << 20]).unwrap();
    let server = Arc::new(TestServer::fresh(&work, "d=0 1024 linear disk 0"));
    now(&server, |server| server.verbs.create("p", TOO_LARGE)).unwrap_err();
    assert!(!server.has("p") && server.verbs.told()["p"].table.is_none());
    now(&server, |server| server.verbs.create("e", "0 8 zero")).unwrap();
    fs::create_dir(work.join("state.new")).unwrap();
    now(&server, |server| server.verbs.create("f", "0 8 zero")).unwrap_err();
    now(&server, |server| server.verbs.remove("e")).unwrap_err();
    fs::remove_dir(work.join("state.new")).unwrap();
    assert!(!server.has("f") && server.has("e"));
    drop(server);
    let server = Arc::new(TestServer::start(&work, "d=0 1024 linear disk 0").unwrap());
    assert!(server.has("e") && !server.has("f") && !server.has("p"));
    now(&server, |server| server.verbs.remove("e")).unwrap();
}

#[test]
fn a_refused_snapshot_leaves_its_volume_live_though_the_state_file_cannot_be_written() {
    let (_all, work, _) = folders();
    let server = TestServer::fresh(&work, "v=0 1024 linear disk 0");
    server.verbs.create("u", "0 1024 linear @v 0").unwrap();
    let (blocked, store) = (work.join("state.new"), work.join("u@mon.cow"));
    let block = blocked.clone();
    *server.verbs.at_step.lock() = Box::new(move |step| {
        if step == Step::Recorded {
            fs::create_dir_all(&block).unwrap();
            // It is no store any more, so the snapshot cannot start.
            fs::write(&store, vec![1; 1 << 20]).unwrap();
        }
    });
    let line = line_of(server.create("u@mon"));
    assert!(line.contains("u@mon.cow: header"), "{line}");
    assert!(!server.is_suspended("u") && !server.has("u@mon") && server.verbs.stuck().is_empty());
    server.write("u", 0, 8, 3);
    *server.verbs.at_step.lock() = Box::new(|_| ());
    fs::remove_dir(&blocked).unwrap();
    // The next change writes what is owed.
    server.verbs.create("w", "0 8 zero").unwrap();
    let records = StateFile::open(&work.join("state")).unwrap().records();
    assert!(records.iter().all(|record| record.name != "u@mon" || record.table.is_none()));
    server.create("u@mon").unwrap();
    assert_eq!(server.bytes("u@mon"), vec![(8, 3), (SECTORS - 8, 1)]);
}

#[test]
fn a_verb_under_way_holds_up_no_verb_that_reads() {
    let (_all, server) = with_pool(&[]);
    let turn = server.verbs.change(&Named::volume("vm").and("p"), "test", &Patient).unwrap();
    let infos = now(&server, |server| server.verbs.thin_list(None)).unwrap();
    assert_eq!(infos.len(), 1);
    assert_eq!(infos[0].name, "vm");
    assert!(
        now(&server, |server| ServerInfo {}.run(&server.verbs, &Patient)).unwrap().state.is_some()
    );
    let wait = VolumeWait { name: "vm".to_owned(), event_nr: None };
    let waited = begin(&server, |server| wait.run(&server.verbs, &Patient));
    // Longer than a step.
    std::thread::sleep(Duration::from_millis(500));
    server.world.volume("vm").unwrap().raise_event();
    end(&waited).unwrap();
    drop(turn);
}

#[test]
fn a_write_that_finds_no_room_in_a_store_that_may_grow_calls_the_owner_of_the_snapshot() {
    let (_all, work, _) = folders();
    let server = Arc::new(TestServer::fresh(&work, "v=0 1024 linear disk 0"));
    let params = SnapCreate {
        name: "v@mon".to_owned(),
        chunk_sectors: Some(8),
        size_bytes: Some(18 << 10),
        fill_percent: Some(100),
        grow_bytes: Some(64 << 10),
        ..SnapCreate::default()
    };
    server.verbs.snap_create(&params, &Patient).unwrap();
    let (send, called) = channel();
    let mon = server.world.volume("v@mon").unwrap();
    let seen = mon.event_nr();
    mon.events().set_owner(Arc::new(move || {
        // Only the first call is waited for.
        let _ = send.send(());
    }));
    // The store has room for its records, two chunks and half of another one: it is never as full
    // as its mark says.
    let written: Vec<_> = (0..4).map(|n| begin_write(&server, "v", n * 8)).collect();
    called.recv_timeout(FOREVER).expect("it waits for room, and nobody is told");
    assert_eq!(mon.event_nr(), seen);
    now(&server, |server| server.verbs.snap_grow("v@mon", 1 << 20, &Patient)).unwrap();
    written.iter().for_each(|written| end(written).unwrap());
}

#[test]
fn a_server_ends_although_requests_wait_for_a_verb() {
    let error = Err(IoError::new(ErrorKind::Shutdown));
    // At the gate of the suspended pool, without or with a suspend that waits for it.
    for waits in [false, true] {
        let (_all, server) = with_pool(&[]);
        now(&server, |server| server.verbs.suspend("p", false, &Patient)).unwrap();
        let written = begin_write(&server, "vm", 0);
        let suspended =
            waits.then(|| begin(&server, |server| server.verbs.suspend("vm", false, &Patient)));
        while waits && server.world.under_way().is_empty() {
            std::thread::sleep(Duration::from_millis(1));
        }
        now(&server, |server| server.verbs.close());
        now(&server, |server| server.world.suspend_all());
        assert_eq!(end(&written), error);
        suspended.into_iter().for_each(|suspended| end(&suspended).unwrap());
    }
    // For space.
    let (_all, server) = with_pool(&["no_space_timeout", "0"]);
    server.write("vm", 0, 128, 1);
    let written = begin_write(&server, "vm", 128);
    now(&server, |server| server.verbs.close());
    now(&server, |server| server.world.suspend_all());
    assert_eq!(end(&written), error);
    // What a cache sends to a volume of the pool: at the gate, or for space.
    for suspended in [true, false] {
        let (_all, server) = with_pool(&["no_space_timeout", "0"]);
        now(&server, |server| {
            fs::write(server.folder.join("disk"), vec![0; 1 << 20]).unwrap();
            server.verbs.create("cached", "0 2048 writecache s disk @vm 4096 0").unwrap();
        });
        if suspended {
            now(&server, |server| server.verbs.suspend("p", false, &Patient)).unwrap();
        }
        let written: Vec<_> = (0..64).map(|n| begin_write(&server, "cached", n * 8)).collect();
        now(&server, |server| server.verbs.close());
        now(&server, |server| server.world.suspend_all());
        assert!(written.iter().any(|written| end(written).is_err()));
    }
    // At the gate of a suspended volume.
    let (_all, work, _) = folders();
    let server = Arc::new(TestServer::fresh(&work, "d=0 1024 linear disk 0"));
    now(&server, |server| {
        server.verbs.create("on", "0 8 linear @d 0").unwrap();
        server.verbs.suspend("d", false, &Patient).unwrap();
    });
    let written = begin_write(&server, "on", 0);
    now(&server, |server| server.verbs.close());
    now(&server, |server| server.world.suspend_all());
    assert_eq!(end(&written), error);
}

#[test]
fn a_snapshot_whose_copy_the_end_of_the_server_cuts_short_stays_valid() {
    let (_all, work, copies) = folders();
    let table = "v=0 1024 linear disk 0";
    let server = Arc::new(TestServer::fresh(&work, table));
    server.create("v@mon").unwrap();
    now(&server, |server| server.verbs.suspend("v@real", false, &Patient)).unwrap();
    let written = begin_write(&server, "v", 0);
    now(&server, |server| server.verbs.close());
    // The copy cannot be made, and the origin must not change without it: the write fails.
    let ended = now(&server, |server| server.world.suspend_all());
    assert!(ended.lost.is_empty());
    end(&written).unwrap_err();
    copy(&work, &copies.join("after"));
    let again = TestServer::start(&copies.join("after"), table).unwrap();
    for name in ["v", "v@mon"] {
        assert_eq!(again.bytes(name), all_of(1), "{name}");
    }
}

#[test]
fn a_suspend_that_panics_is_not_waited_for() {
    let all = UnderWay::default();
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _under_way = all.begin("v", Doing::Suspend);
        assert!(all.is_empty(), "a panic in the middle");
    }));
    assert!(ended.is_err() && all.is_empty());
}

#[test]
fn a_volume_without_a_table_gets_one_by_load_and_resume() {
    let (_all, work, _) = folders();
    let server = TestServer::fresh(&work, "v=0 1024 linear disk 0");
    let create = |name: &str, table: &str| {
        let (name, table) = (name.to_owned(), table.to_owned());
        let create = VolumeCreate { name, table, notable: true, ..VolumeCreate::default() };
        server.verbs.create_volume(&create, &Patient).map(drop)
    };
    create("x", "").unwrap();
    assert!(line_of(create("y", "0 8 zero")).contains("none with --notable"));
    assert!(line_of(create("x", "")).contains("a volume of this name"));
    assert!(line_of(server.resume("x")).contains("no table is loaded"));
    assert!(server.verbs.exports.served_as("x").is_none());
    server.verbs.load("x", "0 1024 linear @v 0").unwrap();
    server.resume("x").unwrap();
    assert!(server.verbs.exports.served_as("x").is_some());
    create("z", "").unwrap();
    server.verbs.remove("z").unwrap();
    drop(server);
    let server = TestServer::start(&work, "v=0 1024 linear disk 0").unwrap();
    assert!(server.has("x") && !server.has("z"));
}

#[test]
fn metrics_tell_of_volumes_pools_targets_and_exports() {
    let (_all, server) = with_pool(&[]);
    server.write("vm", 0, 8, 3);
    server.flush("vm");
    let text = ServerMetrics::default().run(&server.verbs, &Patient).unwrap().text;
    for line in [
        "# TYPE cairn_io_operations_total counter",
        "cairn_io_operations_total{device=\"vm\",op=\"write\"} 1",
        "cairn_io_bytes_total{device=\"vm\",op=\"write\"} 4096",
        "cairn_io_errors_total{device=\"vm\",op=\"write\"} 0",
        "cairn_io_duration_seconds_count{device=\"vm\",op=\"write\"} 1",
        "cairn_target_bytes_total{device=\"vm\",start=\"0\",target=\"thin\",op=\"write\"} 4096",
        "cairn_device_size_bytes{device=\"vm\"} 1048576",
        "cairn_device_state_info{device=\"vm\",state=\"active\"} 1",
        "cairn_device_losses_total{device=\"vm\"} 0",
        "cairn_thin_data_used_bytes{device=\"p\"} 65536",
        "cairn_thin_data_size_bytes{device=\"p\"} 65536",
        "cairn_thin_pool_needs_check{device=\"p\"} 0",
        "cairn_thin_mapped_sectors{device=\"vm\",start=\"0\"} 128",
        "cairn_export_connections{export=\"vm\",device=\"vm\"} 0",
    ] {
        assert!(text.lines().any(|told| told == line), "lacks {line}:\n{text}");
    }
    let verb = |format: &str| ServerMetrics { format: Some(format.to_owned()) };
    assert!(line_of(verb("xml").run(&server.verbs, &Patient)).contains("found 'xml'"));
    assert!(verb("openmetrics").run(&server.verbs, &Patient).unwrap().text.ends_with("\n# EOF\n"));
}
