//! Every verb that changes tables, while one file fails: from each of its steps on, the file's
//! writes and flushes fail, and a failed flush drops what was written since the last good one, as a
//! drive may. Whatever becomes of the verb, it ends, no volume is left suspended, no request hangs,
//! each client whose flush succeeds has what it wrote, and the next start serves every volume.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cairn_backends::DeviceOpener;
use cairn_block::{
    ConfigError, ConfigKind, Disk, Env, FailureCount, FailureCursor, Flags, Flow, Identity, Io,
    IoError, IoResult, Op, Opener, Request, Sector, SectorCount, SectorRange,
};
use cairn_outcome::failure::Outcome;
use parking_lot::Mutex;

use super::half_way::{TABLE, VERBS, Verb, full_house};
use super::{end, now};
use crate::verbs::pool::tests::{OTHER, params};
use crate::verbs::snap::tests::{Content, Patient, SECTORS, TestServer, all_of, copy, folders};
use crate::verbs::steps::Step;
use crate::verbs::thin::{ThinCreate, ThinSnapshot};

/// Which file fails, which were written or flushed, and how often they were flushed.
#[derive(Default)]
struct Faults {
    failing: Option<PathBuf>,
    touched: BTreeSet<PathBuf>,
    flushes: BTreeMap<PathBuf, u64>,
}

type Shared = Arc<Mutex<Faults>>;

/// Opens files as [`FailingFile`]s.
struct FailingOpener {
    faults: Shared,
    opener: DeviceOpener,
}

impl Opener for FailingOpener {
    fn identify(&self, argument: &str) -> Outcome<Identity> {
        self.opener.identify(argument)
    }

    fn open(
        &self,
        argument: &str,
        read_only: bool,
        failures: Arc<FailureCount>,
    ) -> Outcome<Arc<dyn Disk>> {
        let path = PathBuf::from(argument);
        let Ok(file) = OpenOptions::new().read(true).write(true).open(&path) else {
            return self.opener.open(argument, read_only, failures);
        };
        let disk = FailingFile {
            path,
            file,
            sectors: AtomicU64::new(0),
            failures,
            volatile: Mutex::default(),
            faults: self.faults.clone(),
        };
        disk.refresh()?;
        Ok(Arc::new(disk))
    }
}

/// A file whose writes are volatile until a flush, and which fails when it is told to.
struct FailingFile {
    path: PathBuf,
    file: File,
    sectors: AtomicU64,
    failures: Arc<FailureCount>,
    /// What was where something was written since the last flush, in order.
    volatile: Mutex<Vec<(u64, Vec<u8>)>>,
    faults: Shared,
}

impl FailingFile {
    fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let (mut bytes, mut done) = (vec![0; len], 0);
        while done < len {
            match self.file.read_at(&mut bytes[done..], at + done as u64).unwrap() {
                0 => break,
                count => done += count,
            }
        }
        bytes
    }

    fn write(&self, at: u64, bytes: &[u8], flags: Flags) {
        let mut volatile = self.volatile.lock();
        volatile.push((at, self.read(at, bytes.len())));
        self.file.write_all_at(bytes, at).unwrap();
        if flags.contains(Flags::FUA) {
            volatile.clear();
        }
    }

    /// A failed flush: everything volatile is gone.
    fn lose(&self) {
        for (at, bytes) in self.volatile.lock().drain(..).rev() {
            self.file.write_all_at(&bytes, at).unwrap();
        }
        self.failures.raise();
    }

    fn fails_to_flush(&self) -> bool {
        *self.faults.lock().flushes.entry(self.path.clone()).or_default() += 1;
        self.fails()
    }

    fn fails(&self) -> bool {
        let mut faults = self.faults.lock();
        faults.touched.insert(self.path.clone());
        faults.failing.as_ref() == Some(&self.path)
    }
}

impl Disk for FailingFile {
    fn name(&self) -> String {
        self.path.to_string_lossy().into_owned()
    }

    fn sectors(&self) -> SectorCount {
        SectorCount(self.sectors.load(Ordering::Relaxed))
    }

    fn submit(&self, _env: &Env, request: &mut Request) -> Flow {
        let (at, len) = (request.range.start.0 * 512, request.range.to_bytes() as usize);
        match request.op {
            Op::Read => request.segs.copy_in(0, &self.read(at, len)),
            Op::Discard => {}
            Op::Flush if self.fails_to_flush() => {
                self.lose();
                return Flow::Failed(IoError::IO);
            }
            Op::Flush => self.volatile.lock().clear(),
            Op::Write | Op::WriteZeroes if self.fails() => return Flow::Failed(IoError::IO),
            Op::Write => self.write(at, &request.segs.to_vec(), request.flags),
            Op::WriteZeroes => self.write(at, &vec![0; len], request.flags),
        }
        Flow::Done
    }

    fn refresh(&self) -> Result<(), ConfigError> {
        let known = self.file.metadata().map_err(|error| {
            ConfigError::new(ConfigKind::System, self.name(), "size").with_source(error)
        })?;
        self.sectors.store(known.len() / 512, Ordering::Relaxed);
        Ok(())
    }

    fn failures(&self) -> u64 {
        self.failures.count()
    }

    fn failures_told(&self) -> u64 {
        self.failures.told()
    }

    fn acknowledge_failures(&self, count: u64) {
        self.failures.acknowledge(count);
    }
}

fn start(folder: &Path) -> (Arc<TestServer>, Shared) {
    let faults = Shared::default();
    let opener = FailingOpener { faults: faults.clone(), opener: DeviceOpener::default() };
    (Arc::new(TestServer::start_over(folder, TABLE, Box::new(opener)).unwrap()), faults)
}

/// The server is killed.
pub(super) fn let_go(server: Arc<TestServer>) {
    // Who was told last may still be about to let go.
    while Arc::strong_count(&server) > 1 {
        std::thread::yield_now();
    }
    drop(server);
}

/// A volume with a client: it wrote 8 sectors of a byte at a place, and did not flush them.
struct Client {
    volume: &'static str,
    disk: Arc<dyn Disk>,
    cursor: FailureCursor,
}

/// Volume, what is written to it, and its content before and after.
fn clients() -> [(&'static str, (u64, u8), [Content; 2]); 4] {
    let rest = |lead: u64, first: u8, then: u8| vec![(lead, first), (SECTORS - lead, then)];
    [
        ("v", (96, 2), [rest(96, 2, 1), rest(104, 2, 1)]),
        ("e", (0, 8), [all_of(5), rest(8, 8, 5)]),
        ("c", (64, 7), [rest(64, 7, 6), rest(72, 7, 6)]),
        ("t", (128, 4), [rest(128, 4, 3), rest(136, 4, 3)]),
    ]
}

fn connect(server: &TestServer) -> Vec<Client> {
    let connected = clients().map(|(volume, wrote, _)| {
        server.flush(volume);
        server.write(volume, wrote.0, 8, wrote.1);
        let disk: Arc<dyn Disk> = server.world.volume(volume).unwrap();
        let cursor = FailureCursor::new(&disk);
        Client { volume, disk, cursor }
    });
    connected.into()
}

/// A request as a client sends it, answered however it be.
fn answered(server: &Arc<TestServer>, volume: &'static str, io: fn(&Env) -> Io) -> IoResult {
    now(server, move |server| {
        let disk: Arc<dyn Disk> = server.world.volume(volume).unwrap();
        server.world.on_home(volume, move |env| async move { env.io(&disk, io(&env)).await })
    })
}

fn suspended(server: &TestServer) -> Vec<String> {
    let volumes = server.world.volumes();
    let suspended = volumes.iter().filter(|volume| volume.is_suspended());
    suspended.map(|volume| volume.volume().to_owned()).collect()
}

/// A step that a verb comes to, and the files that it writes or flushes from there on.
type Moments = Vec<(Option<Step>, BTreeSet<PathBuf>)>;

/// The steps of a verb that meets no failure. The first is its beginning.
fn moments(template: &Path, work: &Path, verb: Verb) -> Moments {
    copy(template, work);
    let (server, faults) = start(work);
    drop(connect(&server));
    faults.lock().touched.clear();
    let seen: Arc<Mutex<Moments>> = Arc::new(Mutex::new(vec![(None, BTreeSet::new())]));
    let (log, touched) = (seen.clone(), faults.clone());
    let next = move |step| {
        let new = std::mem::take(&mut touched.lock().touched);
        let mut log = log.lock();
        log.iter_mut().for_each(|(_, files)| files.extend(new.iter().cloned()));
        log.push((step, BTreeSet::new()));
    };
    let at_step = next.clone();
    *server.verbs.at_step.lock() = Box::new(move |step| at_step(Some(step)));
    drop(now(&server, move |server| verb.1(server)));
    *server.verbs.at_step.lock() = Box::new(|_| ());
    next(None);
    let mut moments = seen.lock().clone();
    moments.pop();
    moments
}

/// The verb, with a file that fails from its `nth` step on.
fn run(
    verb: Verb,
    nth: usize,
    file: &Path,
    server: &Arc<TestServer>,
    faults: &Shared,
) -> Outcome<()> {
    let fail = move |faults: &Shared, file: &Path| faults.lock().failing = Some(file.to_owned());
    let mut step = 0;
    if nth == 0 {
        fail(faults, file);
    }
    let (failing, file) = (faults.clone(), file.to_owned());
    *server.verbs.at_step.lock() = Box::new(move |_| {
        step += 1;
        if step == nth {
            fail(&failing, &file);
        }
    });
    let done = end(&super::begin(server, move |server| verb.1(server)));
    *server.verbs.at_step.lock() = Box::new(|_| ());
    done
}

/// True if a verb gives a volume another content.
fn changes_content(verb: &str, volume: &str) -> bool {
    match volume {
        "v" => verb.starts_with("snap rollback") || verb.starts_with("snap merge"),
        "t" => verb.starts_with("thin rollback"),
        "c" => verb.contains("flushes"),
        "e" => verb.starts_with("replace") || verb.starts_with("load"),
        _ => false,
    }
}

fn check_client(
    server: &Arc<TestServer>,
    client: &mut Client,
    verb: &str,
    what: &str,
) -> Option<Content> {
    let Client { volume, disk, cursor, .. } = client;
    if !server.has(volume) {
        return None;
    }
    let flushed = answered(server, volume, |_| Io::flush());
    let told = cursor.end_of_flush(disk, flushed);
    cursor.was_told(disk);
    let again = answered(server, volume, |_| Io::flush());
    let again = cursor.end_of_flush(disk, again);
    assert!(told.is_err() || again.is_ok(), "{what}: {volume}: told late");
    let (_, _, [_, new]) = clients().into_iter().find(|(name, ..)| name == volume).unwrap();
    (told.is_ok() && !changes_content(verb, volume)).then_some(new)
}

fn fail_at(verb: Verb, nth: usize, file: &str, work: &Path, what: &str) {
    let (server, faults) = start(work);
    let mut connected = connect(&server);
    let done = run(verb, nth, &work.join(file), &server, &faults);
    for &Client { volume, .. } in &connected {
        if server.has(volume) && suspended(&server).is_empty() {
            // However it ends.
            let _ = answered(&server, volume, |env| {
                let range = SectorRange::new(Sector(0), SectorCount(8));
                Io::read(range, env.segs(range.count))
            });
        }
    }
    assert!(done.is_err() || suspended(&server).is_empty(), "{what}: {:?}", suspended(&server));
    faults.lock().failing = None;
    for volume in server.verbs.stuck() {
        server.verbs.bring_back(&volume).unwrap_or_else(|error| panic!("{what}: {error}"));
    }
    assert!(suspended(&server).is_empty(), "{what}: {:?}: {done:?}", suspended(&server));
    let mut kept = Vec::new();
    for client in &mut connected {
        let volume = client.volume;
        kept.extend(check_client(&server, client, verb.0, what).map(|content| (volume, content)));
    }
    drop(connected);
    let_go(server);
    let server = TestServer::start(work, TABLE).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(suspended(&server).is_empty(), "{what}: {:?}", suspended(&server));
    assert!(server.has("v"), "{what}");
    assert!(server.has("t") || server.has("w"), "{what}");
    for (volume, content) in kept {
        assert_eq!(server.bytes(volume), content, "{what}: {volume}");
    }
}

fn fail_everywhere(verbs: &[Verb]) {
    let (_all, template, copies) = folders();
    drop(full_house(&template));
    for &verb in verbs {
        let dry = copies.join("dry");
        let moments = moments(&template, &dry, verb);
        for (nth, (step, files)) in moments.into_iter().enumerate() {
            for file in files {
                let file = file.strip_prefix(&dry).unwrap().to_str().unwrap().to_owned();
                let work = copies.join("work");
                copy(&template, &work);
                let what = format!("{} while {file} fails from {nth}. {step:?}", verb.0);
                fail_at(verb, nth, &file, &work, &what);
                std::fs::remove_dir_all(&work).unwrap();
            }
        }
        std::fs::remove_dir_all(&dry).unwrap();
    }
}

#[test]
fn a_file_that_fails_from_any_step_of_a_verb_leaves_every_volume_served() {
    fail_everywhere(&VERBS[..VERBS.len() / 2]);
}

#[test]
fn a_file_that_fails_from_any_step_of_a_later_verb_leaves_every_volume_served() {
    fail_everywhere(&VERBS[VERBS.len() / 2..]);
}

/// A volume with a snapshot of it over a store that fails from now on, and something in it.
fn over_a_dead_store(work: &Path) -> (Arc<TestServer>, Shared) {
    std::fs::write(work.join("disk"), vec![1; SECTORS as usize * 512]).unwrap();
    let (server, faults) = start(work);
    server.create("v@mon").unwrap();
    server.write("v", 0, 96, 2);
    server.flush("v");
    faults.lock().failing = Some(work.join("v@mon.cow"));
    (server, faults)
}

#[test]
fn a_snapshot_whose_store_fails_can_be_removed_and_its_volume_is_served() {
    let (_all, work, _) = folders();
    let (server, _) = over_a_dead_store(&work);
    now(&server, |server| server.verbs.snap_remove("v@mon")).unwrap();
    assert!(!server.has("v@mon") && !server.has("v@real") && suspended(&server).is_empty());
    assert_eq!(server.bytes("v"), vec![(96, 2), (SECTORS - 96, 1)]);
    let_go(server);
    assert!(!TestServer::start(&work, TABLE).unwrap().has("v@mon"));
}

#[test]
fn a_snapshot_that_cannot_be_brought_up_again_can_be_removed_or_comes_back_with_its_store() {
    for heals in [false, true] {
        let (_all, work, _) = folders();
        let (server, faults) = over_a_dead_store(&work);
        // The merge has the store opened anew, and so has what undoes it.
        *faults.lock() = Faults::default();
        let (failing, store) = (faults.clone(), work.join("v@mon.cow"));
        *server.verbs.at_step.lock() = Box::new(move |step| {
            if step == Step::Suspended {
                failing.lock().failing = Some(store.clone());
            }
        });
        now(&server, |server| server.verbs.snap_merge("v@mon", false, None)).unwrap_err();
        *server.verbs.at_step.lock() = Box::new(|_| ());
        assert!(server.is_suspended("v"));
        server.verbs.bring_back("v").unwrap_err();
        if heals {
            faults.lock().failing = None;
            server.verbs.bring_back("v").unwrap();
            assert_eq!(server.bytes("v@mon"), all_of(1));
        } else {
            now(&server, |server| server.verbs.snap_remove("v@mon")).unwrap();
            assert!(!server.has("v@mon") && !server.has("v@real"));
        }
        assert!(suspended(&server).is_empty() && server.verbs.stuck().is_empty());
        assert_eq!(server.bytes("v"), vec![(96, 2), (SECTORS - 96, 1)]);
    }
}

#[test]
fn a_volume_that_its_user_suspended_is_not_brought_back() {
    let (_all, work, _) = folders();
    let (server, faults) = over_a_dead_store(&work);
    server.verbs.suspend("v@mon", false, &Patient).unwrap();
    assert!(server.verbs.stuck().is_empty() && server.is_suspended("v@mon"));
    faults.lock().failing = None;
    server.verbs.snap_grow("v@mon", 2 << 20, &Patient).unwrap();
    assert!(server.is_suspended("v@mon"));
    server.resume("v@mon").unwrap();
}

#[test]
fn a_growth_whose_store_fails_leaves_the_snapshot_live_and_fails() {
    let (_all, work, _) = folders();
    let (server, faults) = over_a_dead_store(&work);
    let dead = std::mem::take(&mut faults.lock().failing);
    server.write("v@mon", 0, 8, 3);
    faults.lock().failing = dead;
    let error =
        now(&server, |server| server.verbs.snap_grow("v@mon", 2 << 20, &Patient)).unwrap_err();
    assert_eq!(error.kind, ConfigKind::Lost, "{error}");
    assert!(suspended(&server).is_empty());
}

/// A server with the written volume `e`, whose file may be made to fail.
fn over_a_file(work: &Path) -> (TestServer, Shared, PathBuf) {
    let (faults, opener) = (Shared::default(), DeviceOpener::default());
    let opener = FailingOpener { faults: faults.clone(), opener };
    let server = TestServer::start_over(work, OTHER, Box::new(opener)).unwrap();
    let file = work.join("file");
    std::fs::write(&file, vec![0; SECTORS as usize * 512]).unwrap();
    server.verbs.create("e", &format!("0 {SECTORS} linear {} 0", file.display())).unwrap();
    server.write("e", 0, 8, 3);
    (server, faults, file)
}

#[test]
fn deferred_removal_that_loses_writes_is_done() {
    let (_all, work, _) = folders();
    let (server, faults, file) = over_a_file(&work);
    server.world.defer_removal("e");
    faults.lock().failing = Some(file);
    // No retry: the volume is gone. The loss is in the log.
    server.verbs.remove_deferred("e").unwrap();
    assert!(!server.has("e"));
    assert_eq!(server.world.untold_losses(), ["e"], "it has lost writes");
}

#[test]
fn rename_that_loses_writes_is_undone_and_says_so() {
    let (_all, work, _) = folders();
    let (server, faults, file) = over_a_file(&work);
    faults.lock().failing = Some(file);
    let error = server.verbs.rename_volume("e", "f", &Patient).unwrap_err();
    faults.lock().failing = None;
    assert_eq!(error.kind, ConfigKind::System, "it was not done: {error}");
    let expected = "e: rename undone; acknowledged writes may be lost, clients of e are told";
    assert!(error.to_string().starts_with(expected), "{error}");
    assert!(server.has("e") && !server.has("f"));
    assert_eq!(server.world.untold_losses(), ["e"]);
}

#[test]
fn thin_snapshot_costs_two_data_flushes() {
    let (_all, work, _) = folders();
    let (faults, opener) = (Shared::default(), DeviceOpener::default());
    let opener = FailingOpener { faults: faults.clone(), opener };
    let server = TestServer::start_over(&work, OTHER, Box::new(opener)).unwrap();
    server.verbs.pool_create(&params("p"), &Patient).unwrap();
    let (name, size_bytes) = ("p/v".to_owned(), SECTORS * 512);
    let thin = ThinCreate { name, size_bytes, ..ThinCreate::default() };
    server.verbs.thin_create(&thin, &Patient).unwrap();
    let flushes = || faults.lock().flushes[&work.join("p.data")];
    for (name, byte) in [("v@a", 1), ("v@b", 2)] {
        server.write("v", 0, SECTORS, byte);
        server.flush("v");
        let (before, name) = (flushes(), name.to_owned());
        let snapshot = ThinSnapshot { name, ..ThinSnapshot::default() };
        server.verbs.thin_snapshot(&snapshot, &Patient).unwrap();
        assert_eq!(flushes() - before, 2);
    }
}
