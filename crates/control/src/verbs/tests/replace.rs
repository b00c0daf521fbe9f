//! One table in another's place: what a cache has that its origin lacks, and volumes in use.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cairn_outcome::failure::Outcome;

use super::{HangsUp, begin, end, line_of, now};
use crate::control::server::Caller;
use crate::state::{Record, StateFile};
use crate::verbs::snap::tests::{Content, Patient, SECTORS, TestServer, all_of, folders};
use crate::verbs::steps::Step;
use crate::verbs::verb::Verb;
use crate::verbs::volume::{VolumeMessage, VolumeReplace, VolumeResume};

const CACHED: &str = "0 1024 writecache s disk cache 4096 0";
/// The origin alone.
const BARE: &str = "0 1024 linear disk 0";
const FOUND: &str = "c: dirty data: found 32 KiB on cache that disk lacks, expected none \
                     (--flush writes it back first, --discard-dirty loses it)";

/// The volume `c`, of which its cache alone has the first sectors.
fn dirty(work: &Path) -> TestServer {
    let server = TestServer::fresh(work, &format!("c={CACHED}"));
    server.write("c", 0, 64, 7);
    server.flush("c");
    server
}

fn new() -> Content {
    vec![(64, 7), (SECTORS - 64, 1)]
}

fn replacing(table: &str) -> VolumeReplace {
    let (name, table) = ("c".to_owned(), table.to_owned());
    VolumeReplace { name, table, ..VolumeReplace::default() }
}

fn replace(server: &TestServer, params: &VolumeReplace) -> Outcome<Vec<String>> {
    server.verbs.replace(params, &Patient)
}

fn say(server: &TestServer, word: &str) {
    let (name, words) = ("c".to_owned(), vec![word.to_owned()]);
    VolumeMessage { name, sector: 0, words }.run(&server.verbs, &Patient).unwrap();
}

/// The volume serves what the cache has, under its own table, and that is what is recorded.
fn is_as_it_was(server: &TestServer, waiting: Option<&str>) {
    let volume = server.world.volume("c").unwrap();
    assert!(!volume.is_suspended());
    assert_eq!(volume.live_table().unwrap().lines()[0].name, "writecache");
    assert_eq!(volume.inactive_table().is_some(), waiting.is_some());
    let expected = Record::as_configured("c", Some(CACHED));
    let inactive = waiting.map(str::to_owned);
    assert_eq!(server.verbs.told()["c"], Record { inactive, ..expected });
    assert_eq!(server.bytes("c"), new());
}

#[test]
fn a_resume_that_would_orphan_dirty_data_is_refused_and_clients_are_served() {
    for suspended in [false, true] {
        let (_all, work, _) = folders();
        let server = dirty(&work);
        server.verbs.load("c", BARE).unwrap();
        if suspended {
            server.verbs.suspend("c", false, &Patient).unwrap();
        }
        assert_eq!(server.resume("c").unwrap_err().to_string(), FOUND);
        is_as_it_was(&server, Some(BARE));
        // The same resume with a word that allows it.
        let flush = VolumeResume { name: "c".to_owned(), flush: true, ..VolumeResume::default() };
        server.verbs.resume(&flush, &Patient).unwrap();
        drop(server);
        let disk = fs::read(work.join("disk")).unwrap();
        assert!(disk[..64 * 512].iter().all(|byte| *byte == 7));
    }
}

#[test]
fn a_replace_that_would_orphan_dirty_data_changes_nothing() {
    let (_all, work, _) = folders();
    let server = dirty(&work);
    server.verbs.create("o", "0 8 zero").unwrap();
    let half = "0 512 linear disk 0\n512 512 zero";
    let another = "0 1024 writecache s disk fresh 4096 0";
    fs::write(work.join("fresh"), vec![0; 1 << 20]).unwrap();
    for table in [BARE, half, another, "0 8 linear disk 1016"] {
        assert_eq!(replace(&server, &replacing(table)).unwrap_err().to_string(), FOUND, "{table}");
        is_as_it_was(&server, None);
    }
    // A table that cannot be live.
    fs::write(work.join("meta"), vec![0; 4 << 20]).unwrap();
    replace(&server, &replacing(super::TOO_LARGE)).unwrap_err();
    is_as_it_was(&server, None);
    server.verbs.suspend("c", false, &Patient).unwrap();
    let line = replace(&server, &replacing(BARE)).unwrap_err().to_string();
    assert_eq!(line, "c: state: found suspended, expected a live volume");
    server.resume("c").unwrap();
    is_as_it_was(&server, None);
}

#[test]
fn every_kind_of_table_that_uses_the_origin_without_the_cache_is_refused() {
    let (_all, work, _) = folders();
    let server = dirty(&work);
    server.verbs.pool_create(&crate::verbs::pool::tests::params("p"), &Patient).unwrap();
    fs::write(work.join("store"), vec![0; 1 << 20]).unwrap();
    for table in [
        "0 1024 thin @p 1 disk",
        "0 1024 snapshot disk store N 8",
        "0 1024 snapshot-merge disk store P 8",
        "0 1024 snapshot-origin disk",
        "0 1024 striped 1 8 disk 0",
        "0 1024 delay store 0 0 disk 0 1",
        "0 1024 flakey disk 0 60 0",
        "0 512 error\n512 256 zero\n768 256 linear disk 768",
    ] {
        assert_eq!(replace(&server, &replacing(table)).unwrap_err().to_string(), FOUND, "{table}");
        is_as_it_was(&server, None);
    }
}

#[test]
fn a_cache_that_moves_into_a_volume_beneath_passes() {
    let (_all, work, _) = folders();
    let server = dirty(&work);
    server.verbs.create("below", "0 1024 error").unwrap();
    server.verbs.load("below", CACHED).unwrap();
    let notes = replace(&server, &replacing("0 1024 linear @below 0")).unwrap();
    assert_eq!(notes, ["cache keeps 32 KiB that disk lacks"]);
    server.resume("below").unwrap();
    assert_eq!(server.bytes("c"), new());
    // From there, nothing that leads to the origin past it passes.
    let told = |line: String| line.replacen("below: ", "c: ", 1);
    server.verbs.load("below", BARE).unwrap();
    assert_eq!(told(server.resume("below").unwrap_err().to_string()), FOUND);
    assert_eq!(server.bytes("c"), new());
}

#[test]
fn an_origin_is_known_again_by_any_name() {
    let (_all, work, _) = folders();
    let server = TestServer::fresh(&work, "d=0 1024 linear disk 0");
    server.verbs.create("c", "0 1024 writecache s @d cache 4096 0").unwrap();
    server.write("c", 0, 64, 7);
    for table in ["0 1024 linear @d 0", BARE] {
        let line = replace(&server, &replacing(table)).unwrap_err().to_string();
        assert!(line.contains("found 32 KiB on cache that @d lacks"), "{table}: {line}");
    }
    // The cache is known again, too.
    replace(&server, &replacing(CACHED)).unwrap_err();
    server.verbs.create("f", "0 2048 linear cache 0").unwrap_err();
    assert_eq!(server.bytes("c"), new());
}

#[test]
fn tables_that_lose_nothing_pass_and_say_what_stays_dirty() {
    let keeps = "cache keeps 32 KiB that disk lacks";
    let cases: [(&str, &[&str]); 4] = [
        ("0 1024 error", &[keeps]),
        ("0 1024 zero", &[keeps]),
        ("0 1024 linear other 0", &[keeps]),
        ("0 1024 writecache s disk cache 4096 2 high_watermark 60", &[]),
    ];
    for (table, notes) in cases {
        let (_all, work, _) = folders();
        let server = dirty(&work);
        fs::write(work.join("other"), vec![3; SECTORS as usize * 512]).unwrap();
        assert_eq!(replace(&server, &replacing(table)).unwrap(), notes, "{table}");
        // The cache goes on where it was.
        assert_eq!(replace(&server, &replacing(CACHED)).unwrap(), [""; 0], "{table}");
        assert_eq!(server.bytes("c"), new(), "{table}");
    }
}

#[test]
fn data_that_a_suspend_drains_is_not_lost_by_the_next_table() {
    for word in ["flush_on_suspend", "cleaner"] {
        let (_all, work, _) = folders();
        let server = dirty(&work);
        say(&server, word);
        server.verbs.load("c", BARE).unwrap();
        server.resume("c").unwrap();
        assert_eq!(server.bytes("c"), new(), "{word}");
    }
}

#[test]
fn a_replace_that_flushes_leaves_nothing_dirty() {
    let (_all, work, _) = folders();
    let server = dirty(&work);
    let params = VolumeReplace { flush: true, ..replacing(BARE) };
    assert_eq!(replace(&server, &params).unwrap(), [""; 0]);
    assert_eq!(server.bytes("c"), new());
    assert_eq!(server.verbs.told()["c"].table.as_deref(), Some(BARE));
    drop(server);
    assert_eq!(TestServer::start(&work, &format!("c={CACHED}")).unwrap().bytes("c"), new());
}

#[test]
fn a_replace_beside_a_loaded_table_is_refused_before_anything_is_written_back() {
    let (_all, work, _) = folders();
    let server = dirty(&work);
    server.verbs.load("c", "0 1024 error").unwrap();
    let params = VolumeReplace { flush: true, ..replacing(BARE) };
    let line = replace(&server, &params).unwrap_err().to_string();
    assert!(line.starts_with("c: state: found a loaded table, expected none"), "{line}");
    let dirty: u64 = server.world.volume("c").unwrap().dirty().iter().map(|it| it.sectors.0).sum();
    assert_eq!(dirty, 64);
    is_as_it_was(&server, Some("0 1024 error"));
}

#[test]
fn dirty_data_is_left_behind_if_that_is_allowed() {
    let (_all, work, _) = folders();
    let server = dirty(&work);
    let params = VolumeReplace { discard_dirty: true, ..replacing(BARE) };
    let notes = replace(&server, &params).unwrap();
    assert!(notes[0].starts_with("32 KiB on cache that disk lacks are given up; "), "{notes:?}");
    assert_eq!(server.bytes("c"), all_of(1));
}

/// Who hung up.
struct Gone;

impl Caller for Gone {
    fn is_gone(&self) -> bool {
        true
    }
}

#[test]
fn a_flush_whose_caller_is_gone_ends_and_leaves_the_old_table() {
    let (_all, work, _) = folders();
    fs::write(work.join("other"), vec![1; SECTORS as usize * 512]).unwrap();
    // Writes take an hour, or until the volume is suspended.
    let server = TestServer::fresh(&work, "d=0 1024 delay disk 0 0 other 0 3600000 other 0 0");
    server.verbs.create("c", "0 1024 writecache s @d cache 4096 0").unwrap();
    server.write("c", 0, 64, 7);
    let params = VolumeReplace { flush: true, ..replacing("0 1024 linear @d 0") };
    let line = server.verbs.replace(&params, &Gone).unwrap_err().to_string();
    assert_eq!(line, "c: flush: interrupted by its caller");
    let volume = server.world.volume("c").unwrap();
    assert!(!volume.is_suspended() && volume.inactive_table().is_none());
    assert!(server.world.under_way().is_empty());
    assert_eq!(server.bytes("c"), new());
    server.verbs.suspend("d", false, &Patient).unwrap();
    server.resume("d").unwrap();
}

#[test]
fn a_volume_in_use_gets_no_shorter_table_unless_that_is_allowed() {
    let (_all, work, _) = folders();
    let server = TestServer::fresh(&work, "c=0 1024 linear disk 0");
    let shorter = replacing("0 512 linear disk 0");
    server.verbs.create("on", "0 1024 linear @c 0").unwrap();
    let line = replace(&server, &shorter).unwrap_err().to_string();
    let expected = "c: size: found 512 sectors with volume 'on' on it, expected at least 1024 \
                    (--shrink makes it shorter)";
    assert_eq!(line, expected);
    server.verbs.load("c", &shorter.table).unwrap();
    assert_eq!(server.resume("c").unwrap_err().to_string(), expected);
    let volume = server.world.volume("c").unwrap();
    assert!(!volume.is_suspended() && volume.inactive_table().is_some());
    server.verbs.clear("c", &Patient).unwrap();
    let allowed = VolumeReplace { shrink: true, ..replacing("0 512 linear disk 0") };
    replace(&server, &allowed).unwrap();
    assert_eq!(volume.live_table().unwrap().sectors().0, 512);
    server.verbs.remove("on").unwrap();
    replace(&server, &replacing("0 256 linear disk 0")).unwrap();
}

#[test]
fn a_volume_that_is_removed_says_what_its_cache_keeps() {
    let (_all, work, _) = folders();
    let server = dirty(&work);
    assert_eq!(server.verbs.remove("c").unwrap(), ["cache keeps 32 KiB that disk lacks"]);
    server.verbs.create("c", CACHED).unwrap();
    say(&server, "flush_on_suspend");
    assert_eq!(server.verbs.remove("c").unwrap(), [""; 0]);
}

#[test]
fn replace_of_a_merge_by_its_origin_is_refused_until_all_is_merged() {
    let (_all, work, _) = folders();
    let server = TestServer::fresh(&work, "d=0 512 linear disk 0\n512 512 error");
    fs::write(work.join("cow"), vec![0; 1 << 20]).unwrap();
    server.verbs.create("c", "0 1024 snapshot-origin @d").unwrap();
    server.verbs.create("s", "0 1024 snapshot @d cow P 8").unwrap();
    server.write("s", 600, 8, 7);
    server.write("s", 0, 16, 7);
    server.verbs.suspend("s", false, &Patient).unwrap();
    replace(&server, &replacing("0 1024 snapshot-merge @d cow P 8")).unwrap();
    while server.verbs.report_of("c").unwrap().state() != Some("Merge failed") {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let origin = || replacing("0 1024 snapshot-origin @d");
    for flush in [false, true] {
        let refused =
            replace(&server, &VolumeReplace { flush, ..origin() }).unwrap_err().to_string();
        let (found, rest) = refused.split_once(" on cow").unwrap();
        assert!(["c: dirty data: found 4 KiB", "c: dirty data: found 12 KiB"].contains(&found));
        let expected = "none (a merge brings it home; --discard-dirty loses it)";
        assert_eq!(rest, format!(" that @d lacks, expected {expected}"));
    }
    let discard = VolumeReplace { discard_dirty: true, ..origin() };
    let notes = replace(&server, &discard).unwrap();
    assert!(notes[0].ends_with(" KiB on cow that @d lacks are given up"), "{notes:?}");
}

/// The volume `c`, a file of byte 1, beside a file of byte 5.
fn plain(work: &Path) -> TestServer {
    fs::write(work.join("other"), vec![5; SECTORS as usize * 512]).unwrap();
    TestServer::fresh(work, &format!("c={BARE}"))
}

const OTHER: &str = "0 1024 linear other 0";

#[test]
fn a_kill_during_a_replace_leaves_the_old_table_or_the_new_one_with_all_writes() {
    let (_all, work, copies) = folders();
    let server = plain(&work);
    let moments = server.moments(&copies, |server| {
        server.replace("c", OTHER, false).unwrap();
        server.write("c", 0, 8, 9);
    });
    let new = [(None, vec![(8, 9), (SECTORS - 8, 5)])];
    let served = [
        (Some(Step::Suspended), all_of(1)),
        (Some(Step::Recorded), all_of(5)),
        (Some(Step::Started), all_of(5)),
        (Some(Step::Resumed), all_of(5)),
    ];
    for (moment, (step, content)) in moments.iter().zip(served.iter().chain(&new)) {
        assert_eq!(moment.step, *step);
        let again = TestServer::start(&moment.folder, &format!("c={BARE}")).unwrap();
        assert_eq!(again.bytes("c"), *content, "{step:?}");
        // Whichever it is, it is recorded alone.
        let records = StateFile::open(&moment.folder.join("state")).unwrap().records();
        assert!(records.iter().all(|record| record.former.is_none()), "{step:?}: {records:?}");
    }
    assert_eq!(moments.len(), 5);
}

#[test]
fn a_start_goes_back_to_the_old_table_only_if_the_new_one_served_no_request() {
    let (_all, work, copies) = folders();
    let server = plain(&work);
    let moments = server.moments(&copies, |server| server.replace("c", OTHER, false).unwrap());
    for moment in moments {
        fs::remove_file(moment.folder.join("other")).unwrap();
        let served_nothing = [Step::Suspended, Step::Recorded, Step::Started].map(Some);
        let again = TestServer::start(&moment.folder, &format!("c={BARE}"));
        if served_nothing.contains(&moment.step) {
            assert_eq!(again.unwrap().bytes("c"), all_of(1), "{:?}", moment.step);
            let again = TestServer::start(&moment.folder, &format!("c={BARE}")).unwrap();
            assert_eq!(again.verbs.told()["c"], Record::as_configured("c", Some(BARE)));
        } else {
            assert!(again.is_err(), "{:?}", moment.step);
        }
    }
}

#[test]
fn a_table_serves_no_request_before_it_is_recorded_without_the_former_one() {
    let (_all, work, _) = folders();
    let server = plain(&work);
    let (world, seen) = (server.world.clone(), Arc::new(AtomicBool::new(false)));
    let looked = seen.clone();
    *server.verbs.at_step.lock() = Box::new(move |step| {
        if step == Step::Started {
            assert!(world.volume("c").unwrap().is_suspended());
            looked.store(true, Ordering::Relaxed);
        }
    });
    server.replace("c", OTHER, false).unwrap();
    assert!(seen.load(Ordering::Relaxed));
}

#[test]
fn a_record_that_cannot_be_written_during_a_swap_is_written_with_the_next_change() {
    // The new table starts, or cannot: the old one is live again.
    for (table, served) in [(OTHER, all_of(5)), (super::TOO_LARGE, all_of(1))] {
        for at_end in [false, true] {
            let (_all, work, _) = folders();
            let server = plain(&work);
            fs::write(work.join("meta"), vec![0; 4 << 20]).unwrap();
            let obstacle = work.join("state.new");
            let folder = obstacle.clone();
            *server.verbs.at_step.lock() = Box::new(move |step| {
                if step == Step::Recorded {
                    fs::create_dir(&folder).unwrap();
                }
            });
            let replaced = replace(&server, &replacing(table));
            *server.verbs.at_step.lock() = Box::new(|_| ());
            if let Ok(notes) = &replaced {
                assert!(notes[0].starts_with("the new table serves; the next change"), "{notes:?}");
            }
            assert_eq!(replaced.is_ok(), table == OTHER);
            assert_eq!(server.bytes("c"), served);
            let records = || StateFile::open(&work.join("state")).unwrap().records();
            assert_eq!(records()[0].former.as_deref(), Some(BARE));
            fs::remove_dir(&obstacle).unwrap();
            match at_end {
                true => assert!(server.verbs.close()),
                false => server.verbs.create("e", "0 8 zero").unwrap(),
            }
            assert!(records().iter().all(|record| record.former.is_none()), "{:?}", records());
            drop(server);
            assert_eq!(TestServer::start(&work, &format!("c={BARE}")).unwrap().bytes("c"), served);
        }
    }
}

#[test]
fn verbs_are_answered_while_a_replace_flushes_and_after_its_caller_has_gone() {
    let (_all, work, _) = folders();
    fs::write(work.join("other"), vec![1; SECTORS as usize * 512]).unwrap();
    // Writes take an hour, or until the volume is suspended.
    let server = TestServer::fresh(&work, "d=0 1024 delay disk 0 0 other 0 3600000 other 0 0");
    server.verbs.create("c", "0 1024 writecache s @d cache 4096 0").unwrap();
    server.verbs.create("e", "0 8 zero").unwrap();
    server.write("c", 0, 64, 7);
    let (server, gone) = (Arc::new(server), Arc::new(AtomicBool::new(false)));
    let hangs_up = gone.clone();
    let replaced = begin(&server, move |server| {
        let params = VolumeReplace { flush: true, ..replacing("0 1024 linear @d 0") };
        server.verbs.replace(&params, &HangsUp(hangs_up))
    });
    while server.world.under_way().is_empty() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let busy = "c: a replace is under way; wait for it, or interrupt that replace";
    assert_eq!(line_of(now(&server, |server| server.verbs.suspend("c", false, &Patient))), busy);
    assert_eq!(line_of(now(&server, |server| server.verbs.suspend("c", true, &Patient))), busy);
    assert_eq!(line_of(now(&server, |server| server.verbs.clear("c", &Patient))), busy);
    assert_eq!(line_of(now(&server, |server| server.verbs.load("c", "0 8 zero"))), busy);
    assert_eq!(line_of(now(&server, |server| server.verbs.remove("c"))), busy);
    assert_eq!(line_of(now(&server, |server| server.resume("c"))), busy);
    assert_eq!(line_of(now(&server, |server| server.replace("c", "0 8 zero", false))), busy);
    assert_eq!(line_of(now(&server, |server| server.create("c@mon"))), busy);
    let beneath = "d: state: found volume 'c' on it, whose table is being replaced, expected none";
    assert_eq!(line_of(now(&server, |server| server.verbs.suspend("d", false, &Patient))), beneath);
    assert_eq!(line_of(now(&server, |server| server.replace("d", BARE, false))), beneath);
    now(&server, |server| server.verbs.load("d", BARE)).unwrap();
    assert_eq!(line_of(now(&server, |server| server.resume("d"))), beneath);
    now(&server, |server| server.verbs.clear("d", &Patient)).unwrap();
    let on = now(&server, |server| server.verbs.create("on", "0 8 linear @c 0"));
    assert_eq!(line_of(on), "on: state: found @c suspended, expected a live volume");
    now(&server, |server| server.verbs.remove("e")).unwrap();
    gone.store(true, Ordering::Relaxed);
    let line = line_of(end(&replaced));
    assert_eq!(line, "c: flush: interrupted by its caller");
    now(&server, |server| server.verbs.clear("c", &Patient)).unwrap();
    let volume = server.world.volume("c").unwrap();
    assert!(!volume.is_suspended() && volume.inactive_table().is_none());
}

#[test]
fn a_caller_who_is_gone_by_the_time_of_the_suspend_leaves_the_old_table() {
    let (_all, work, _) = folders();
    let server = dirty(&work);
    let gone = Arc::new(AtomicBool::new(false));
    let hangs_up = gone.clone();
    *server.verbs.at_step.lock() = Box::new(move |step| {
        hangs_up.store(step == Step::Suspended, Ordering::Relaxed);
    });
    let params = VolumeReplace { flush: true, ..replacing(BARE) };
    let line = server.verbs.replace(&params, &HangsUp(gone)).unwrap_err().to_string();
    assert_eq!(line, "c: replace: interrupted by its caller");
    is_as_it_was(&server, None);
}

#[test]
fn a_replace_whose_suspend_loses_writes_leaves_the_old_table() {
    let (_all, work, _) = folders();
    fs::write(work.join("bare"), vec![1; SECTORS as usize * 512]).unwrap();
    let server = TestServer::fresh(&work, "f=0 2048 linear cache 0");
    let cached = "0 1024 writecache s disk @f 4096 0";
    server.verbs.create("c", cached).unwrap();
    server.write("c", 0, 64, 7);
    // The commit at the suspend fails, and so does reading the cache again.
    server.replace("f", "0 2048 error", false).unwrap();
    let line = replace(&server, &replacing("0 1024 linear bare 0")).unwrap_err().to_string();
    assert!(line.contains("suspend went on, writes since the last flush may be lost"), "{line}");
    assert!(line.contains("it stays suspended, as its table is refused too"), "{line}");
    let volume = server.world.volume("c").unwrap();
    assert!(volume.is_suspended() && volume.inactive_table().is_none());
    assert_eq!(server.verbs.told()["c"].table.as_deref(), Some(cached));
    server.replace("f", "0 2048 linear cache 0", false).unwrap();
    server.resume("c").unwrap();
    assert_eq!(volume.live_table().unwrap().lines()[0].name, "writecache");
}

#[test]
fn a_delay_that_reads_and_writes_one_device_uses_it_once() {
    let (_all, work, _) = folders();
    let server = TestServer::fresh(&work, "d=0 1024 delay disk 0 0 disk 0 1");
    server.verbs.create("c", "0 1024 writecache s @d cache 4096 0").unwrap();
    assert_eq!(server.bytes("c"), all_of(1));
}
