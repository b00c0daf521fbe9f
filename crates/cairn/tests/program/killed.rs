//! A server is killed: what it had acknowledged is in its crash log. The next server replays it,
//! and every other verb that opens the device knows of it.

use std::fs::{DirEntry, OpenOptions};
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;

use super::place::Place;

/// Nothing is committed before a flush.
const TABLE: &str = "vm=0 N writecache s slow fast 4096 \
                     4 autocommit_blocks 1000000 autocommit_time 3600000";

/// What a client does that stays connected, and sends no flush, until the server is killed after
/// so many writes.
fn write_and_kill(writes: &[&str]) -> String {
    let count = writes.len();
    let commands: String = writes.iter().map(|write| format!("-c '{write}' ")).collect();
    format!(
        "stdbuf -oL qemu-io -t writeback -d unmap -f raw {commands} \
         -c 'sleep 600000' \"$uri\" > said 2>&1 &
         until [ \"$(grep -c wrote said)\" = {count} ]; do sleep 0.02; done
         kill -9 $PPID $!"
    )
}

/// A server wrote blocks of the bytes 1 and 2 and was killed before a flush.
fn killed() -> Place {
    let place = Place::new();
    place.sparse("slow", 8 << 20);
    place.sparse("fast", 1 << 20);
    let script = write_and_kill(&["write -P 1 0 64k", "write -P 2 1M 4k", "write -P 3 4k 4k"]);
    let status = place.command(&["serve", "--table", TABLE, "--run", &script]).output().unwrap();
    assert_eq!(status.status.signal(), Some(9), "{status:?}");
    place
}

/// A client's first flush tells of a loss, and the next one is as usual.
const IS_TOLD: &str = "! qemu-io -f raw -c flush \"$uri\" && qemu-io -f raw -c flush \"$uri\"";

const READS: &str = "qemu-io -r -f raw -c 'read -P 1 0 4k' -c 'read -P 3 4k 4k' \
                     -c 'read -P 1 8k 56k' -c 'read -P 2 1M 4k' \"$uri\"";

/// Stores words in the crash logs, or failure counts, whose names begin like this.
fn store(place: &Place, prefix: &str, words: &[(u64, u64)]) {
    let files = std::fs::read_dir(place.crash_logs.path()).unwrap().map(|file| file.unwrap());
    let is_one = |file: &DirEntry| file.file_name().to_string_lossy().starts_with(prefix);
    let found: Vec<DirEntry> = files.filter(is_one).collect();
    assert!(!found.is_empty(), "{prefix}");
    for file in found {
        let file = OpenOptions::new().write(true).open(file.path()).unwrap();
        for (word, value) in words {
            file.write_all_at(&value.to_ne_bytes(), 8 * word).unwrap();
        }
    }
}

/// Every device had failed once. A client was told, and what is in the log was not lost.
fn killed_after_a_failure() -> Place {
    let place = killed();
    store(&place, "failures-", &[COUNT, TOLD]);
    store(&place, "writecache-", &[SURVIVED]);
    place
}

const COUNT: (u64, u64) = (1, 1);
const TOLD: (u64, u64) = (2, 1);
const SURVIVED: (u64, u64) = (5, 1);

#[test]
fn next_server_has_every_write_that_a_killed_one_acknowledged() {
    let place = killed();
    let ran = place.serve_run(&["--table", TABLE], READS);
    assert!(ran.err.contains("vm: fast: a server was killed: 2 records"), "{ran:?}");
    assert_eq!(ran.code, 0, "{ran:?}");
    let again = place.serve_run(&["--table", TABLE], READS);
    assert!(again.code == 0 && !again.err.contains("was killed"), "{again:?}");
    assert_eq!(std::fs::read_dir(place.crash_logs.path()).unwrap().count(), 0, "nothing is left");
}

#[test]
fn drain_after_a_kill_writes_back_what_was_acknowledged() {
    let place = killed();
    place.cairn(&["flush", "--table", TABLE.strip_prefix("vm=").unwrap()]).ok();
    let slow = place.read("slow");
    assert_eq!([0, 4096, 8192, 1 << 20].map(|at| slow[at]), [1, 3, 1, 2]);
}

#[test]
fn read_only_server_shows_it_and_leaves_it_to_the_next() {
    let place = killed();
    let before = place.read("fast");
    for _ in 0..2 {
        let ran = place.serve_run(&["--table", TABLE, "--read-only"], READS);
        assert_eq!(ran.code, 0, "{ran:?}");
    }
    assert_eq!(place.read("fast"), before);
    assert_eq!(place.serve_run(&["--table", TABLE], READS).code, 0);
}

#[test]
fn read_only_server_shows_what_was_written_after_a_failure() {
    let place = killed_after_a_failure();
    for read_only in [&["--read-only"][..], &[]] {
        let ran = place.serve_run(&[&["--table", TABLE], read_only].concat(), READS);
        assert_eq!(ran.code, 0, "{ran:?}");
    }
}

#[test]
fn read_only_server_says_that_a_failure_may_have_lost_what_was_written() {
    let place = killed();
    store(&place, "failures-", &[COUNT, TOLD]);
    let serve = ["--table", TABLE, "--read-only"];
    for _ in 0..2 {
        let ran = place.serve_run(&serve, "qemu-io -r -f raw -c 'read -P 0 0 4k' \"$uri\"");
        assert!(ran.err.contains("vm: fast: a server was killed after a failure"), "{ran:?}");
        assert_eq!(ran.code, 0, "{ran:?}");
    }
}

#[test]
fn start_that_is_refused_leaves_the_failure_counts_to_the_next() {
    let place = killed_after_a_failure();
    let ran = place.serve_run(&["--table", &TABLE.replace("slow", "@slow")], "true");
    assert_ne!(ran.code, 0, "{ran:?}");
    place.sparse("other", 8 << 20);
    let ran = place.serve_run(&["--table", &TABLE.replace("slow", "other")], "true");
    assert!(ran.code != 0 && ran.err.contains("for another origin"), "{ran:?}");
    assert_eq!(place.serve_run(&["--table", TABLE], READS).code, 0);
}

#[test]
fn check_tells_of_it_and_format_refuses_to_lose_it() {
    let place = killed();
    let ran = place.cairn(&["check", "fast"]);
    assert!(ran.out.contains("crash log: 2 records of writes"), "{ran:?}");
    let format = ["format", "writecache", "fast", "--yes"];
    let ran = place.cairn(&format);
    assert!(ran.err.contains("fast: crash log: found 2 records"), "{ran:?}");
    assert_ne!(ran.code, 0);
    place.cairn(&[&format[..], &["--discard-dirty"]].concat()).ok();
    let ran =
        place.serve_run(&["--table", TABLE], "qemu-io -r -f raw -c 'read -P 0 0 8M' \"$uri\"");
    assert_eq!(ran.code, 0, "{ran:?}");
}

#[test]
fn verb_that_is_refused_gives_no_log_up() {
    let place = killed();
    place.sparse("zeros", 8 << 20);
    place.sparse("disk", 8 << 20);
    place.sparse("set", 64 << 20);
    let format = "format bcache --cache set --backing disk --cache-mode writeback";
    place.cairn(&format.split(' ').collect::<Vec<_>>()).ok();
    let write = "qemu-io -f raw -c 'write -P 1 0 64k' -c flush \"$uri\" > /dev/null";
    place.serve_run(&["--table", "vm=0 N bcache disk set 0"], write).ok();
    for (verb, refusal) in [
        ("repair fast --in-place --yes --discard-dirty", "fast: dm-writecache, not a"),
        (
            "repair zeros --output fast --data-block-size 128 --data-blocks 9 --yes \
             --discard-dirty",
            "zeros: found no trees",
        ),
        (
            "format bcache --backing fast --backing disk --yes \
             --discard-dirty=00000000-0000-0000-0000-000000000001",
            "disk: --discard-dirty: found",
        ),
    ] {
        let ran = place.cairn(&verb.split_whitespace().collect::<Vec<_>>());
        assert!(ran.code != 0 && ran.err.contains(refusal), "{verb}: {ran:?}");
        let ran = place.cairn(&["check", "fast"]);
        assert!(ran.out.contains("crash log: 2 records of writes"), "{verb}: {ran:?}");
    }
    assert_eq!(place.serve_run(&["--table", TABLE], READS).code, 0);
}

#[test]
fn device_that_was_used_in_between_is_refused_until_the_log_is_given_up() {
    let place = killed();
    let fast = place.read("fast");
    // As a kernel would that knows of no log.
    let elsewhere =
        |args: &[&str]| place.command(args).env("CAIRN_CRASH_LOGS", "/nowhere").output();
    let write = "qemu-io -f raw -c 'write -P 9 2M 4k' -c flush \"$uri\" >/dev/null";
    let served = elsewhere(&["serve", "--table", TABLE, "--run", write]).unwrap();
    let said = String::from_utf8_lossy(&served.stderr);
    assert!(served.status.success() && said.contains("no crash logs"), "{said}");
    assert_ne!(place.read("fast"), fast);
    let ran = place.serve_run(&["--table", TABLE], "true");
    let detail =
        "fast: crash log: found acknowledged writes of a killed server on top of seq_count";
    assert!(ran.code != 0 && ran.err.contains(detail), "{ran:?}");
    let read = "qemu-io -r -f raw -c 'read -P 9 2M 4k' -c 'read -P 0 0 4k' \"$uri\"";
    let ran = place.serve_run(&["--table", TABLE, "--discard-crash-log"], IS_TOLD);
    assert!(ran.code == 0 && ran.err.contains("given up: 2 records"), "{ran:?}");
    let again = place.serve_run(&["--table", TABLE], read);
    assert!(again.code == 0 && !again.err.contains("lost"), "{again:?}");
}

#[test]
fn table_with_another_origin_is_refused() {
    let place = killed();
    place.sparse("other", 8 << 20);
    let ran = place.serve_run(&["--table", &TABLE.replace("slow", "other")], "true");
    assert!(ran.code != 0 && ran.err.contains("for another origin"), "{ran:?}");
    assert_eq!(place.serve_run(&["--table", TABLE], READS).code, 0);
}

#[test]
fn cache_on_a_volume_keeps_a_log_too() {
    let place = Place::new();
    place.sparse("slow", 8 << 20);
    place.sparse("fast", 1 << 20);
    let lower = "low=0 2048 linear fast 0";
    let upper = TABLE.replace("slow fast", "slow @low");
    let serve = ["serve", "--table", lower, "--table", &upper, "--export", "vm"];
    let write = write_and_kill(&["write -P 1 0 64k"]);
    place.command(&[&serve[..], &["--run", &write]].concat()).output().unwrap();
    // The volume beneath has another name now.
    let renamed = upper.replace("@low", "@below");
    let serve = ["--table", "below=0 2048 linear fast 0", "--table", &renamed, "--export", "vm"];
    let ran = place.serve_run(&serve, "qemu-io -r -f raw -c 'read -P 1 0 64k' \"$uri\"");
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.err.contains("a server was killed"), "{ran:?}");
}

const SET: &str = "vm=0 N bcache slow fast 0";
const SET_READS: &str = "qemu-io -r -f raw -c 'read -P 1 0 4k' -c 'read -P 3 4k 4k' \
                         -c 'read -P 1 8k 56k' -c 'read -P 2 1M 4k' -c 'read -P 0 2M 1M' \"$uri\"";

/// A server of a set wrote into its cache, wrote no entry of the journal, and was killed.
fn killed_set() -> Place {
    let place = Place::new();
    place.sparse("slow", 8 << 20);
    place.sparse("fast", 64 << 20);
    let format = "format bcache --cache fast --backing slow --cache-mode writeback";
    place.cairn(&format.split(' ').collect::<Vec<_>>()).ok();
    let writes = ["write -P 1 0 64k", "write -P 2 1M 4k", "write -P 3 4k 4k"];
    let script = format!("cairn cache set vm journal_delay_ms=60000\n{}", write_and_kill(&writes));
    let status = place.command(&["serve", "--table", SET, "--run", &script]).output().unwrap();
    assert_eq!(status.status.signal(), Some(9), "{status:?}");
    place
}

#[test]
fn next_server_has_every_write_that_a_killed_bcache_acknowledged() {
    let place = killed_set();
    let before = [place.read("slow"), place.read("fast")];
    let ran = place.serve_run(&["--table", SET, "--read-only"], SET_READS);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(before == [place.read("slow"), place.read("fast")]);
    let ran = place.cairn(&["check", "fast"]);
    assert!(ran.out.contains("crash log: 3 records of writes"), "{ran:?}");
    let ran = place.serve_run(&["--table", SET], SET_READS);
    assert!(ran.err.contains("fast: a server was killed: 3 acknowledged writes"), "{ran:?}");
    assert_eq!(ran.code, 0, "{ran:?}");
    let again = place.serve_run(&["--table", SET], SET_READS);
    assert!(again.code == 0 && !again.err.contains("was killed"), "{again:?}");
    assert_eq!(std::fs::read_dir(place.crash_logs.path()).unwrap().count(), 0, "nothing is left");
}

#[test]
fn set_that_was_used_in_between_is_refused_until_the_log_is_given_up() {
    let place = killed_set();
    let write = "qemu-io -f raw -c 'write -P 9 2M 4k' -c flush \"$uri\" >/dev/null";
    let mut elsewhere = place.command(&["serve", "--table", SET, "--run", write]);
    let served = elsewhere.env("CAIRN_CRASH_LOGS", "/nowhere").output().unwrap();
    assert!(served.status.success(), "{served:?}");
    let ran = place.serve_run(&["--table", SET], "true");
    let detail = "fast: crash log: found acknowledged writes of a killed server on top of journal";
    assert!(ran.code != 0 && ran.err.contains(detail), "{ran:?}");
    let read = "qemu-io -r -f raw -c 'read -P 9 2M 4k' -c 'read -P 0 0 4k' \"$uri\"";
    let ran = place.serve_run(&["--table", SET, "--discard-crash-log"], IS_TOLD);
    assert!(ran.code == 0 && ran.err.contains("given up: 3 records"), "{ran:?}");
    let again = place.serve_run(&["--table", SET], read);
    assert!(again.code == 0 && !again.err.contains("lost"), "{again:?}");
}

#[test]
fn drain_after_a_kill_writes_back_what_a_bcache_acknowledged() {
    let place = killed_set();
    place.cairn(&["flush", "--table", SET.strip_prefix("vm=").unwrap()]).ok();
    let slow = &place.read("slow")[16 * 512..];
    assert_eq!([0, 4096, 8192, 1 << 20].map(|at| slow[at]), [1, 3, 1, 2]);
}

#[test]
fn snapshot_in_memory_is_there_again_after_a_kill_and_not_after_a_stop() {
    let place = Place::new();
    place.sparse("disk", 8 << 20);
    place.sparse("scratch", 8 << 20);
    let snapshot = "old=0 N snapshot disk scratch N 64";
    let tables = ["--table", snapshot, "--table", "vm=0 N snapshot-origin disk"];
    let write = write_and_kill(&["write -P 1 0 64k", "write -P 2 1M 4k"]);
    let serve = [&["serve"], &tables[..], &["--export", "vm", "--run", &write]].concat();
    place.command(&serve).output().unwrap();
    let read = |export: &str, read: &str| {
        let run = format!("qemu-io -r -f raw -c '{read}' \"$uri\"");
        place.serve_run(&[&tables[..], &["--export", export]].concat(), &run)
    };
    let disk = place.read("disk");
    assert_eq!([0, 1 << 20].map(|at| disk[at]), [1, 2]);
    let failed = [&tables[..], &["--export", "none"]].concat();
    assert_ne!(place.serve_run(&failed, "true").code, 0, "a start that fails loses nothing");
    let ran = read("old", "read -P 0 0 8M");
    assert!(ran.code == 0 && ran.err.contains("its 3 exceptions are back"), "{ran:?}");
    let ran = read("old", "read -P 1 0 64k");
    assert!(ran.code == 0 && !ran.err.contains("was killed"), "{ran:?}");
    assert_eq!(std::fs::read_dir(place.crash_logs.path()).unwrap().count(), 0, "nothing is left");
}

#[test]
fn power_cut_takes_the_log_and_what_was_not_flushed() {
    let place = killed();
    place.cut_power();
    let read = "qemu-io -r -f raw -c 'read -P 0 0 8M' \"$uri\"";
    let ran = place.serve_run(&["--table", TABLE], read);
    assert!(ran.code == 0 && !ran.err.contains("crash log"), "{ran:?}");
}

#[test]
fn thin_volume_has_every_write_that_a_killed_server_acknowledged() {
    let pool = ["--table", "p=0 16384 thin-pool meta data 128 0"];
    let volume = [&pool[..], &["--table", "vm=0 16384 thin @p 0", "--export", "vm"]].concat();
    let place = Place::new();
    place.sparse("meta", 4 << 20);
    place.sparse("data", 8 << 20);
    place.serve_run(&[&pool[..], &["--message", "p 0 create_thin 0"]].concat(), "true").ok();
    let flushed = "qemu-io -f raw -c 'write -P 9 3M 64k' -c flush \"$uri\" > /dev/null";
    place.serve_run(&volume, flushed).ok();
    // A block, a part of one, an overwrite, and a hole in place of what is durable: within a second
    // nothing is committed.
    let writes = ["write -P 1 0 64k", "write -P 2 1M 4k", "write -P 3 4k 4k", "write -z -u 3M 64k"];
    let script = write_and_kill(&writes);
    let serve = [&["serve"], &volume[..], &["--run", &script]].concat();
    let status = place.command(&serve).output().unwrap();
    assert_eq!(status.status.signal(), Some(9), "{status:?}");
    let reads = "qemu-io -r -f raw -c 'read -P 1 0 4k' -c 'read -P 3 4k 4k' \
                 -c 'read -P 1 8k 56k' -c 'read -P 2 1M 4k' -c 'read -P 0 1028k 60k' \
                 -c 'read -P 0 3M 64k' \"$uri\"";
    // Data that goes with its process has no log, but the one of other data stays.
    let elsewhere = ["--table", "p=0 16384 thin-pool meta mem:8M 128 0"];
    let ran = place.serve_run(&elsewhere, "true");
    assert!(ran.code != 0 && ran.err.contains("with another data device"), "{ran:?}");
    // The second server replays nothing.
    for _ in 0..2 {
        let ran = place.serve_run(&volume, reads);
        assert_eq!(ran.code, 0, "{ran:?}");
    }
    place.serve_run(&elsewhere, "true").ok();
    place.cairn(&["check", "meta"]).ok();
    assert_eq!(std::fs::read_dir(place.crash_logs.path()).unwrap().count(), 0, "nothing is left");
}
