//! `cairn cache detach` of a served bcache volume whose drain is slow: without its caller, out of
//! time, beside other verbs, and ended by a stop or a kill.
//!
//! The cache device is a volume that delays reads, so that the drain waits for the data to copy. A
//! delay of an hour holds the drain until a verb calls it off or the server ends.

use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;

use rustix::process::Signal;

use super::place::{Place, Ran, json, signalled, until};

const FAST: &str = "fast=0 N linear wb_stop.cache 0";
const DISK: &str = "disk=0 N bcache wb_stop.backing @fast 0";
const CACHED: &str = "0 16368 bcache wb_stop.backing @fast 0";
const BARE: &str = "0 16368 linear wb_stop.backing 16";
const HOUR_MS: u64 = 3_600_000;
/// The first delay of a drain that is to end. If it was over before a test saw the detach under
/// way, the test is run again with twice as much.
const FIRST_MS: u64 = 500;
const LAST_MS: u64 = 64 * FIRST_MS;

const SUM: &str = "nbdcopy \"$uri\" - | sha256sum";
/// Until the detach is under way.
const DETACHES: &str = "until cairn cache list disk | grep -q detaching; do sleep 0.05; done";
/// Until no other verb is under way on the volume.
const REST: &str = "until cairn clear disk 2>/dev/null; do sleep 0.05; done";

fn place() -> Place {
    let place = Place::new();
    place.golden("bcache", "wb_stop.cache");
    place.golden("bcache", "wb_stop.backing");
    place
}

/// A client writes, the sum of the content is printed, and reads of the cache device are delayed
/// from then on. Nothing is written back in the background.
fn begin(delay_ms: u64) -> String {
    let write = "qemu-io -f raw -c 'write -P 7 64k 64k' -c flush \"$uri\" >/dev/null";
    let slow = format!("0 N delay wb_stop.cache 0 {delay_ms} wb_stop.cache 0 0");
    format!(
        "cairn cache set disk writeback_running=0 && {write} && {SUM} && \
         cairn replace fast --table '{slow}'"
    )
}

const RELEASE: &str = "cairn replace fast --table '0 N linear wb_stop.cache 0'";

const ARGS: [&str; 8] = ["--state", "state", "--export", "disk", "--table", FAST, "--table", DISK];

/// Serves the volume while a script runs behind [`begin`]. Returns the sum of the content, and the
/// run without it.
fn run(place: &Place, delay_ms: u64, script: &str) -> (String, Ran) {
    let ran = place.serve_run(&ARGS, &format!("{}; {script}", begin(delay_ms)));
    let (sum, out) = ran.out.split_once('\n').unwrap_or_else(|| panic!("{ran:?}"));
    let (sum, out) = (sum.to_owned(), out.to_owned());
    (sum, Ran { out, ..ran })
}

fn check_detached(place: &Place) {
    let dump = json(&place.cairn(&["dump", "wb_stop.backing", "--json"]).ok());
    assert_eq!(dump["superblock"]["state"], "no cache", "{dump}");
    assert!(dump["superblock"]["set_uuid"].is_null(), "{dump}");
    place.cairn(&["check", "wb_stop.cache"]).ok();
}

#[test]
fn detach_that_returned_at_once_ends_in_the_server() {
    let script = format!(
        "cairn cache detach disk --no-wait; echo $?; \
         until cairn table disk | grep linear; do sleep 0.05; done; \
         cairn cache list; cairn status disk; {SUM}"
    );
    let mut delay_ms = FIRST_MS;
    let (place, sum, ran) = loop {
        let place = place();
        let (sum, ran) = run(&place, delay_ms, &script);
        if ran.err.contains("cairn: disk: the detach goes on in the server\n") {
            break (place, sum, ran);
        }
        assert!(delay_ms < LAST_MS, "{ran:?}");
        delay_ms *= 2;
    };
    let expected = format!("0\n{BARE}\nNo caches found\n0 16368 linear \n{sum}\n");
    assert_eq!(ran.out, expected, "{ran:?}");
    check_detached(&place);
}

#[test]
fn ctrl_c_ends_only_the_display_of_a_detach() {
    let args = [&ARGS[..], &["--control", "c", "--listen", "unix:s"]].concat();
    let mut delay_ms = FIRST_MS;
    loop {
        let place = place();
        let server = place.serve(&args);
        let uri = format!("uri='{}'; ", server.uri);
        let sum = place.shell(&format!("{uri}{}", begin(delay_ms))).ok();
        let mut detach = place.command(&["cache", "detach", "disk"]);
        let mut child = detach.env("CAIRN_CONTROL", "c").stderr(Stdio::null()).spawn().unwrap();
        let was_seen = until(|| {
            let list = place.shell("cairn cache list disk").ok();
            let is_over = child.try_wait().unwrap().is_some();
            let is_seen = list.contains("detaching");
            (is_seen || is_over).then_some(is_seen)
        });
        let status = signalled(&mut child, &[Signal::INT]);
        if !was_seen || status.signal().is_none() {
            assert!(delay_ms < LAST_MS, "{status:?}");
            delay_ms *= 2;
            continue;
        }
        assert_eq!(status.signal(), Some(Signal::INT.as_raw()));
        let script = format!("until cairn table disk | grep linear; do sleep 0.05; done; {SUM}");
        assert_eq!(place.shell(&format!("{uri}{script}")).ok(), format!("{BARE}\n{sum}"));
        assert_eq!(server.interrupt().code, 0);
        return check_detached(&place);
    }
}

#[test]
fn detach_out_of_time_changes_nothing_and_the_next_one_detaches() {
    let place = place();
    let script = format!(
        "cairn cache detach disk --timeout 0.3; echo $?; {REST}; cairn table disk; \
         cairn cache list disk | grep -c dirty; {RELEASE}; echo $?; {SUM}; \
         cairn cache detach disk; echo $?; cairn table disk; cairn cache list; {SUM}"
    );
    let (sum, ran) = run(&place, HOUR_MS, &script);
    let expected = format!("124\n{CACHED}\n1\n0\n{sum}\n0\n{BARE}\nNo caches found\n{sum}\n");
    assert_eq!(ran.out, expected, "{ran:?}");
    let line = "cairn: disk: not detached: the time passed; the cache stays in its place\n";
    assert_eq!(ran.err.matches(line).count(), 1, "{ran:?}");
    check_detached(&place);
}

#[test]
fn verbs_during_a_detach_are_refused_and_a_resume_calls_it_off() {
    let place = place();
    place.sparse("other", 64 << 20);
    place.cairn(&["format", "bcache", "--cache", "other"]).ok();
    let refused = [
        "cache detach disk",
        "cache detach disk --no-wait",
        "cache attach disk other",
        "replace disk --table '0 16368 bcache wb_stop.backing @fast 0'",
        "replace disk --flush --table '0 16368 linear wb_stop.backing 16'",
        "load disk --table '0 16368 zero'",
        "suspend disk",
        "clear disk",
        "remove disk",
        "snap create disk@s",
    ];
    let below =
        ["replace fast --table '0 N linear wb_stop.cache 0'", "suspend fast", "remove fast"];
    let each = refused.iter().chain(&below).map(|verb| format!("cairn {verb}; echo $?; "));
    let script = format!(
        "{{ cairn cache detach disk 2>watched; echo $? >ended; }} & detach=$!; {DETACHES}; {} \
         cairn resume disk; echo $?; wait $detach; cat ended; cairn table disk; {RELEASE}; \
         echo $?; {SUM}; cairn cache detach disk; echo $?; cairn table disk; {SUM}",
        each.collect::<String>()
    );
    let (sum, ran) = run(&place, HOUR_MS, &script);
    let codes = "4\n".repeat(refused.len() + below.len());
    let expected = format!("{codes}0\n4\n{CACHED}\n0\n{sum}\n0\n{BARE}\n{sum}\n");
    assert_eq!(ran.out, expected, "{ran:?}");
    let line = "cairn: disk: a cache detach is under way; wait for it, or `cairn resume disk` \
                calls it off\n";
    assert_eq!(ran.err.matches(line).count(), refused.len(), "{ran:?}");
    let watched = String::from_utf8(place.read("watched")).unwrap();
    assert!(watched.ends_with("cairn: disk: cache detach: called off by a resume\n"), "{watched}");
    check_detached(&place);
}

#[test]
fn stop_or_kill_during_a_detach_leaves_the_set_with_all_data() {
    for signal in [Signal::TERM, Signal::INT, Signal::KILL] {
        let place = place();
        let args = [&ARGS[..], &["--control", "c", "--listen", "unix:s"]].concat();
        let server = place.serve(&args);
        let uri = format!("uri='{}'; ", server.uri);
        let script =
            format!("{uri}{}; cairn cache detach disk --no-wait; cairn table disk", begin(HOUR_MS));
        let out = place.shell(&script).ok();
        let sum = out.lines().next().unwrap().to_owned();
        assert_eq!(out, format!("{sum}\n{CACHED}\n"));
        let (status, _, err) = server.end_by(signal);
        let expected = if signal == Signal::KILL { None } else { Some(0) };
        assert_eq!(status.code(), expected, "{signal:?}: {err}");
        let checked = place.cairn(&["check", "wb_stop.cache", "--backing", "wb_stop.backing"]);
        assert!([0, 5].contains(&checked.code), "{signal:?}: {checked:?}");
        assert_eq!(place.cairn(&["probe", "wb_stop.backing"]).code, 5, "{signal:?}");
        let recorded = place.read("state");
        let recorded = String::from_utf8(recorded).unwrap();
        place.write("state", recorded.replace("3600000", "0"));
        let script = format!(
            "cairn table disk; {SUM}; cairn cache detach disk; echo $?; cairn table disk; {SUM}"
        );
        let ran = place.serve_run(&ARGS, &script);
        let expected = format!("{CACHED}\n{sum}\n0\n{BARE}\n{sum}\n");
        assert_eq!(ran.out, expected, "{signal:?}: {ran:?}");
        check_detached(&place);
    }
}

#[test]
fn detach_that_ends_in_its_suspend_leaves_no_drain_to_the_next_one() {
    let place = place();
    // Goes around the cache as long as the slow read counts as congestion.
    let again = "qemu-io -f raw -c 'write -P 8 64k 64k' -c flush \"$uri\" >/dev/null";
    // The state alone may still be that of before the flush.
    let dirty = "cairn cache list disk --json | grep -c '\"dirty_bytes\": *[1-9]'";
    // The drain has nothing to do. The suspend waits for a client's read of the cache device.
    let script = format!(
        "qemu-io -r -f raw -c 'read -P 7 64k 64k' \"$uri\" >read & client=$!; \
         until cairn status fast | grep -q 'delay [1-9]'; do sleep 0.05; done; \
         cairn cache detach disk --timeout 1; echo $?; {REST}; {RELEASE}; wait $client; \
         grep -c failed read; \
         until {dirty} >/dev/null; do {again}; done; \
         cairn suspend disk; cairn resume disk; {dirty}"
    );
    let begin = begin(HOUR_MS).replace(SUM, "cairn cache flush disk");
    let ran = place.serve_run(&ARGS, &format!("{begin}; {script}"));
    assert_eq!(ran.out, "124\n0\n1\n", "{ran:?}");
}
