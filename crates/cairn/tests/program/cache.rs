//! `cairn cache`: caches of served volumes are listed, tuned, flushed, attached and detached.

use super::place::{Place, Ran, json};

const CACHED: &str = "disk=0 2048 writecache s slow fast 4096 2 autocommit_time 3600000";
const BARE: &str = "0 2048 linear slow 0";
const SET: &str = "set=0 N bcache wb_stop.backing wb_stop.cache 0";
/// A client writes 64 KiB.
const WRITE: &str = "qemu-io -f raw -c 'write -P 7 0 64k' -c flush \"$uri\" >/dev/null";
/// Prints 0 if the volume has what the client wrote.
const READ: &str = "qemu-io -r -f raw -c 'read -P 7 0 64k' \"$uri\" | grep -c failed";

fn place() -> Place {
    let place = Place::new();
    place.sparse("slow", 1 << 20);
    place.sparse("fast", 256 << 10);
    place
}

fn with_set() -> Place {
    let place = place();
    place.golden("bcache", "wb_stop.cache");
    place.golden("bcache", "wb_stop.backing");
    place
}

/// Serves these tables, with a state file, while a script runs.
fn run(place: &Place, tables: &[&str], script: &str) -> Ran {
    let mut args = vec!["--state", "state"];
    args.extend(tables.iter().flat_map(|table| ["--table", table]));
    if tables.iter().any(|table| table.starts_with("disk=")) {
        args.extend(["--export", "disk"]);
    }
    place.serve_run(&args, script)
}

/// A writecache whose origin takes an hour for a write, or until it is suspended.
const LATE: [&str; 2] = [
    "late=0 2048 delay slow 0 0 other 0 3600000 other 0 0",
    "disk=0 2048 writecache s @late fast 4096 0",
];

fn run_late(script: &str) -> Ran {
    let place = place();
    place.sparse("other", 1 << 20);
    run(&place, &LATE, &format!("{WRITE}; {script}"))
}

const LATE_TABLE: &str = "0 2048 writecache s @late fast 4096 0";

/// The table of `disk`, with devices as the test names them.
const TABLE: &str = "cairn table disk | sed \"s|$PWD/||\"";
/// Until no other verb is under way on the volume.
const REST: &str = "until cairn clear disk 2>/dev/null; do sleep 0.05; done";
/// Until the detach is under way.
const DETACHES: &str = "until cairn cache list disk | grep -q detaching; do sleep 0.05; done";

#[test]
fn caches_of_all_volumes_are_listed_with_their_dirty_data() {
    let place = with_set();
    let script = format!("{WRITE}; cairn cache list --json; cairn cache list disk");
    let ran = run(&place, &[CACHED, SET, "bare=0 8 zero"], &script);
    let (list, text) = ran.out.split_once("\n]\n").unwrap_or_else(|| panic!("{ran:?}"));
    let caches = json(&format!("{list}\n]"));
    assert_eq!(caches.as_array().unwrap().len(), 2, "{caches}");
    let (disk, set) = (&caches[0], &caches[1]);
    for (info, field, expected) in [
        (disk, "name", "disk"),
        (disk, "target", "writecache"),
        (disk, "cache", "fast"),
        (disk, "origin", "slow"),
        (disk, "mode", "writeback"),
        (disk, "state", "dirty"),
        (set, "name", "set"),
        (set, "target", "bcache"),
        (set, "origin", "wb_stop.backing"),
        (set, "mode", "writeback"),
        (set, "state", "dirty"),
    ] {
        assert_eq!(info[field], expected, "{caches}");
    }
    assert_eq!((&disk["dirty_bytes"], &disk["used_percent"]), (&65536.into(), &25.into()));
    assert!(set["dirty_bytes"].as_u64().unwrap() > 0, "{caches}");
    let expected = "NAME  TARGET      CACHE  ORIGIN  MODE       STATE  DIRTY  USED\n\
                    disk  writecache  fast   slow    writeback  dirty    64K   25%\n";
    assert_eq!(text, expected, "{ran:?}");
}

#[test]
fn flush_writes_back_while_the_cache_stays() {
    let place = with_set();
    let script = format!(
        "{WRITE}; for v in disk set; do cairn cache flush $v; echo $?; done; \
         cairn cache list --json | grep -c 'dirty_bytes\": 0'; cairn table disk; \
         cairn cache flush bare; echo $?; \
         for v in disk set; do cairn suspend $v; cairn cache flush $v; echo $?; done"
    );
    let ran = run(&place, &[CACHED, SET, "bare=0 8 zero"], &script);
    let table = &CACHED["disk=".len()..];
    assert_eq!(ran.out, format!("0\n0\n2\n{table}\n1\n4\n4\n"), "{ran:?}");
    assert!(ran.err.contains("cairn: 128 sectors (64.00 KiB) to write back\n"), "{ran:?}");
    assert!(ran.err.contains("cairn: 0 sectors (0 B) left"), "{ran:?}");
    let line = "cairn: bare: table: found no cache, expected a line of writecache or bcache\n";
    assert!(ran.err.contains(line), "{ran:?}");
    assert!(place.read("slow")[..64 << 10].iter().all(|byte| *byte == 7));
}

#[test]
fn flush_goes_on_when_its_caller_is_gone() {
    let script = "timeout -s INT 1 cairn cache flush disk; echo $?; \
                  cairn status disk | cut -d ' ' -f 7; cairn cache list disk | grep -c dirty";
    // All 16 blocks are on their way to the origin.
    assert_eq!(run_late(script).out, "124\n16\n1\n");
}

#[test]
fn attributes_of_a_set_are_shown_and_set() {
    let place = with_set();
    let script = "cairn cache get set | grep -E '^(cache_mode|sequential_cutoff)='; \
                  cairn cache set set sequential_cutoff=65536 cache_mode=writethrough; echo $?; \
                  cairn cache get set sequential_cutoff; cairn cache get set Cache_Mode --json; \
                  cairn cache get set frob; echo $?; cairn cache set set frob=1; echo $?; \
                  cairn cache set set cache_mode; echo $?; \
                  cairn cache set set sequential_cutoff=x; echo $?; \
                  cairn cache get bare; echo $?";
    let ran = run(&place, &[SET, "bare=0 8 zero"], script);
    let json = "{\n  \"cache_mode\": \"writethrough\"\n}";
    let expected = format!(
        "cache_mode=writeback\nsequential_cutoff=4194304\n0\n65536\n{json}\n1\n1\n1\n1\n1\n"
    );
    assert_eq!(ran.out, expected, "{ran:?}");
    for line in [
        "cairn: set: attribute: found 'frob', expected one of active_journal_entries, ",
        "cairn: set: message: found 'set frob', expected set and one of cache_mode, ",
        "cairn: set: cache set: found 'cache_mode', expected NAME=VALUE\n",
        "cairn: set: sequential_cutoff: found 'x', expected a number of bytes from 0 to ",
        "cairn: bare: table: found no cache, expected a line of writecache or bcache\n",
    ] {
        assert!(ran.err.contains(line), "{line}: {ran:?}");
    }
}

#[test]
fn texts_of_sysfs_are_shown_as_the_target_answers_them() {
    let place = with_set();
    let script = "cairn cache get set writeback_rate_debug | cut -f 1; \
                  cairn cache get set Priority_Stats | cut -f 1 | head -2; \
                  cairn cache get set priority_stats --json | head -2 | cut -d : -f 1; \
                  cairn cache get disk writeback_rate_debug; echo $?";
    let ran = run(&place, &[SET, CACHED], script);
    let expected = "rate:\ndirty:\ntarget:\nproportional:\nintegral:\nchange:\nnext io:\n\
                    Unused:\nClean:\n{\n  \"priority_stats\"\n1\n";
    assert_eq!(ran.out, expected, "{ran:?}");
    let line = "cairn: disk: attribute: found 'writeback_rate_debug', expected one of ";
    assert!(ran.err.contains(line), "{ran:?}");
}

#[test]
fn set_that_cannot_be_written_is_listed_as_failed() {
    let place = with_set();
    let fail = "cairn replace c --table \"$(cairn table c | cut -d ' ' -f 1,2) error\"";
    let list = "cairn cache list set --json | grep '\"state\"'";
    let limit = "cairn cache set set cache/io_error_limit=1";
    let script =
        format!("{list}; {limit}; {fail}; {WRITE}; {list}; cairn cache get set io_disable");
    let cache = "c=0 N linear wb_stop.cache 0";
    let set = "set=0 N bcache wb_stop.backing @c 0";
    let args = ["--state", "state", "--export", "set", "--table", cache, "--table", set];
    let ran = place.serve_run(&args, &script);
    let expected = "    \"state\": \"dirty\",\n    \"state\": \"failed\",\n1\n";
    assert_eq!(ran.out, expected, "{ran:?}");
}

#[test]
fn options_of_a_writecache_are_set_without_a_loss_and_recorded() {
    let place = place();
    let script = format!(
        "{WRITE}; cairn cache set disk high_watermark=70 low_watermark=60; echo $?; \
         cairn cache get disk high_watermark; cairn table disk; {READ}; \
         cairn cache list --json | grep -c 'dirty_bytes\": 65536'; \
         cairn cache set disk low_watermark=80; echo $?; \
         cairn cache set disk block_size=512; echo $?; cairn table disk"
    );
    let ran = run(&place, &[CACHED], &script);
    let table = "0 2048 writecache s slow fast 4096 6 high_watermark 70 low_watermark 60 \
                 autocommit_time 3600000";
    assert_eq!(ran.out, format!("0\n70\n{table}\n0\n1\n1\n1\n{table}\n"), "{ran:?}");
    let line = "writecache: high_watermark: found 70 with low_watermark 80, expected at least";
    assert!(ran.err.contains(line), "{ran:?}");
    assert_eq!(run(&place, &[CACHED], "cairn table disk").ok(), format!("{table}\n"));
}

#[test]
fn detach_serves_the_device_alone_with_all_data() {
    let place = with_set();
    let sum = "nbdcopy \"nbd+unix:///set?socket=$unixsocket\" - | sha256sum";
    let script = format!(
        "{WRITE}; {sum}; for v in disk set; do cairn cache detach $v; echo $?; cairn table $v; \
         cairn cache detach $v; echo $?; done; {READ}; {sum}; cairn cache list"
    );
    let ran = run(&place, &[CACHED, SET], &script);
    let lines: Vec<&str> = ran.out.lines().collect();
    let set = "0 16368 linear wb_stop.backing 16";
    let expected = ["0", BARE, "1", "0", set, "1", "0", lines[0], "No caches found"];
    assert_eq!(lines[1..], expected, "{ran:?}");
    let line = "cairn: disk: table: found no cache, expected a line of writecache or bcache\n";
    assert!(ran.err.contains(line), "{ran:?}");
    assert!(ran.err.contains("cairn: set: wb_stop.backing: detached from set "), "{ran:?}");
    assert!(place.read("slow")[..64 << 10].iter().all(|byte| *byte == 7));
    let again = run(&place, &[CACHED, SET], "cairn table");
    assert_eq!(again.out, format!("disk: {BARE}\nset: {set}\n"), "{again:?}");
}

#[test]
fn detach_that_takes_too_long_gives_up_with_the_table_unchanged() {
    let script = format!(
        "cairn cache detach disk --timeout 0.3; echo $?; {REST}; cairn table disk; {READ}; \
         cairn cache list disk | grep -c dirty"
    );
    let ran = run_late(&script);
    assert_eq!(ran.out, format!("124\n{LATE_TABLE}\n0\n1\n"), "{ran:?}");
    let line = "cairn: disk: not detached: the time passed; the cache stays in its place\n";
    assert!(ran.err.contains(line), "{ran:?}");
}

#[test]
fn detach_goes_on_without_its_caller_and_a_second_one_is_refused() {
    for begin in ["cairn cache detach disk --no-wait", "timeout -s INT 1 cairn cache detach disk"] {
        let script = format!(
            "{begin}; echo $?; {DETACHES}; cairn cache detach disk; echo $?; \
             cairn cache detach disk --no-wait; echo $?; cairn cache set disk max_age=1; echo $?; \
             cairn resume disk; echo $?; {REST}; cairn table disk; {READ}"
        );
        let ran = run_late(&script);
        let code = if begin.starts_with("cairn") { 0 } else { 124 };
        let expected = format!("{code}\n4\n4\n4\n0\n{LATE_TABLE}\n0\n");
        assert_eq!(ran.out, expected, "{begin}: {ran:?}");
        let line = "cairn: disk: a cache detach is under way; wait for it, or `cairn resume disk` \
                    calls it off\n";
        assert_eq!(ran.err.matches(line).count(), 3, "{begin}: {ran:?}");
    }
}

#[test]
fn detach_that_no_client_waits_for_ends_in_the_server() {
    let place = place();
    let late = LATE[0].replace("other", "slow").replace("3600000", "500");
    let script = format!(
        "{WRITE}; cairn cache detach disk --no-wait; echo $?; \
         until cairn table disk | grep linear; do sleep 0.05; done; {READ}"
    );
    let ran = run(&place, &[&late, LATE[1]], &script);
    assert_eq!(ran.out, "0\n0 2048 linear @late 0\n0\n", "{ran:?}");
    assert!(ran.err.contains("cairn: disk: the detach goes on in the server\n"), "{ran:?}");
    assert!(place.read("slow")[..64 << 10].iter().all(|byte| *byte == 7));
}

#[test]
fn attach_puts_a_cache_in_front_of_a_served_device() {
    let place = place();
    let disk = format!("disk={BARE}");
    let table = "0 2048 writecache s slow fast 4096 0";
    let script = format!(
        "cairn cache attach disk fast; echo $?; {TABLE}; {WRITE}; \
         cairn cache list --json | grep -c 'dirty_bytes\": 65536'; {READ}; \
         cairn cache attach disk fast; echo $?"
    );
    let ran = run(&place, &[&disk], &script);
    assert_eq!(ran.out, format!("0\n{table}\n1\n0\n1\n"), "{ran:?}");
    let line = "cairn: disk: table: found a cache, expected none (cairn cache detach disk)\n";
    assert!(ran.err.contains(line), "{ran:?}");
    // The same cache again, once it is clean.
    let script = format!(
        "{READ}; cairn cache detach disk && cairn table disk && cairn cache attach disk fast && \
         {TABLE}; {READ}"
    );
    let ran = run(&place, &[&disk], &script);
    assert_eq!(ran.out, format!("0\n{BARE}\n{table}\n0\n"), "{ran:?}");
}

#[test]
fn attach_refuses_devices_in_use_and_with_other_content() {
    let place = with_set();
    place.sparse("used", 256 << 10);
    place.write("text", [b'x'; 65536]);
    place.sparse("origin", 1 << 20);
    place.sparse("dirty", 256 << 10);
    let other = "0 2048 writecache s origin dirty 4096 0";
    let ran = place.serve_run(&["--table", other], WRITE);
    assert_eq!(ran.code, 0, "{ran:?}");
    let _held = place.serve(&["--table", "held=0 8 linear fast 0", "--listen", "unix:s"]);
    let script = "for cache in used slow text dirty fast wb_stop.cache missing; do \
                  cairn cache attach disk $cache; echo $?; cairn table disk; done; \
                  cairn cache attach other origin; echo $?";
    let tables = [&format!("disk={BARE}"), "user=0 8 linear used 0", "other=0 8 zero"];
    let ran = run(&place, &tables, script);
    let codes: Vec<&str> = ran.out.lines().filter(|line| line.len() == 1).collect();
    assert_eq!(codes, ["4", "4", "1", "1", "4", "1", "1", "1"], "{ran:?}");
    assert_eq!(ran.out.matches(BARE).count(), 7, "{ran:?}");
    for part in [
        "used: cache: found a device that volume 'user' uses, expected one of its own",
        "slow: cache: found a device that volume 'disk' uses, expected one of its own",
        "text: not blank: ",
        "dirty: cache: found 64 KiB of dirty data, which are not disk's",
        "fast: in use: another process holds a lock",
        "disk: table: found slow without a superblock of bcache, expected a formatted backing",
        "missing: ",
        "cairn: other: table: found '0 8 zero', expected one line, linear DEVICE 0",
    ] {
        assert!(ran.err.lines().any(|line| line.contains(part)), "{part}: {ran:?}");
    }
    assert!(place.read("text").iter().all(|byte| *byte == b'x'));
}

#[test]
fn attach_does_not_raise_the_block_size_of_a_client() {
    let place = place();
    let script = format!(
        "stdbuf -oL qemu-io -f raw -c 'write 0 4k' -c 'sleep 60000' \"$uri\" >acks & client=$!; \
         until grep -q wrote acks; do sleep 0.1; done; \
         cairn cache attach disk fast --block-size 4096; echo $?; \
         cairn cache attach disk fast; echo $?; {TABLE}; kill $client"
    );
    let ran = run(&place, &[&format!("disk={BARE}")], &script);
    assert_eq!(ran.out, "4\n0\n0 2048 writecache s slow fast 512 0\n", "{ran:?}");
}

#[test]
fn caches_beneath_snapshots_are_attached_and_detached() {
    let place = place();
    let script = format!(
        "{WRITE}; cairn snap create disk@s; cairn cache attach disk fast; echo $?; \
         cairn table disk@real | sed \"s|$PWD/||\"; \
         qemu-io -f raw -c 'write -P 9 0 64k' -c flush \"$uri\" >/dev/null; \
         cairn cache list | tail -1 | cut -d ' ' -f 1; cairn cache flush disk; echo $?; \
         cairn cache detach disk; echo $?; cairn table disk@real; \
         uri=\"nbd+unix:///disk@s?socket=$unixsocket\"; {READ}"
    );
    let ran = run(&place, &[&format!("disk={BARE}")], &script);
    let table = "0 2048 writecache s slow fast 512 0";
    assert_eq!(ran.out, format!("0\n{table}\ndisk\n0\n0\n{BARE}\n0\n"), "{ran:?}");
}

#[test]
fn resume_of_a_volume_with_snapshots_calls_off_the_detach_beneath_them() {
    let script = format!(
        "cairn snap create disk@s; cairn cache detach disk --no-wait; {DETACHES}; \
         cairn cache detach disk; echo $?; cairn resume disk; echo $?; \
         until cairn cache list disk | grep -q dirty; do sleep 0.05; done; \
         cairn table disk@real; {READ}"
    );
    let ran = run_late(&script);
    assert_eq!(ran.out, format!("4\n0\n{LATE_TABLE}\n0\n"), "{ran:?}");
}

#[test]
fn detach_that_a_stop_or_a_kill_ends_leaves_the_cache_with_its_dirty_data() {
    for is_killed in [false, true] {
        let place = place();
        let late = LATE[0].replace("other", "slow");
        let tables = ["--table", &late, "--table", LATE[1], "--export", "disk"];
        let args = [&["--state", "state", "--control", "c", "--listen", "unix:s"], &tables[..]];
        let server = place.serve(&args.concat());
        let write = WRITE.replace("$uri", &server.uri);
        let script = format!("{write} && cairn cache detach disk --no-wait");
        assert_eq!(place.shell(&script).code, 0);
        if is_killed {
            drop(server);
        } else {
            let ran = server.interrupt();
            assert!(ran.err.contains("disk: fast keeps 64 KiB that @late lacks"), "{ran:?}");
        }
        let ran = run(&place, &[&late, LATE[1]], &format!("cairn table disk; {READ}"));
        assert_eq!(ran.out, format!("{LATE_TABLE}\n0\n"), "{is_killed}: {ran:?}");
        assert_eq!(place.cairn(&["probe", "fast"]).code, 5, "{is_killed}");
        // The origin alone lacks what the cache has.
        let args = ["--state", "state", "--table", &late];
        let ran = place.serve_run(&args, "cairn table");
        assert!(ran.code == 1 && ran.err.contains("late: dirty data: found 64 KiB"), "{ran:?}");
    }
}

#[test]
fn set_in_error_is_neither_flushed_nor_detached_and_serves_on() {
    let place = with_set();
    let sectors = place.read("wb_stop.cache").len() / 512;
    let fast = format!("fast=0 {sectors} linear wb_stop.cache 0");
    let set = "disk=0 N bcache wb_stop.backing @fast 0";
    let script = format!(
        "cairn replace fast --table '0 {sectors} error'; \
         qemu-io -f raw -c 'write 0 64k' -c flush \"$uri\" >/dev/null 2>&1; \
         for verb in flush detach; do cairn cache $verb disk; echo $?; done; \
         cairn cache set disk cache_mode=writethrough; echo $?; cairn cache list disk | wc -l; \
         cairn info disk | grep -c ACTIVE; cairn table disk"
    );
    let ran = run(&place, &[&fast, set], &script);
    let table = "0 16368 bcache wb_stop.backing @fast 0";
    assert_eq!(ran.out, format!("1\n1\n0\n2\n1\n{table}\n"), "{ran:?}");
    let lines = ran.err.lines().filter(|line| line.starts_with("cairn: disk: flush: "));
    assert_eq!(lines.count(), 2, "{ran:?}");
}
