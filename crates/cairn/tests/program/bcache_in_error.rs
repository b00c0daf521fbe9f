//! A set in error: what each verb and each request answers, and that nothing is lost.

use rustix::process::Signal;

use super::place::{Place, Ran};

/// How a cache device fails that a set is served from.
struct Failure {
    /// The line that takes the place of the device.
    line: &'static str,
    /// The limit of errors.
    limit: u32,
    /// The request that the set does not survive.
    request: &'static str,
    /// What the log says.
    log: &'static str,
}

const FAILURES: [Failure; 2] = [
    // Reads go on. A hole needs an entry of the journal.
    Failure {
        line: "flakey c 0 0 3600 1 error_writes",
        limit: 8,
        request: "discard 7M 64k",
        log: "the set cannot be written any more: the cache device failed",
    },
    Failure {
        line: "error",
        limit: 1,
        request: "read 6M 64k",
        log: "1 requests of the cache device failed: cache/io_error_limit is reached",
    },
];
const BACKING: &str = "b";
const CACHED: &str = "disk=0 16368 bcache b @fast 0";
/// Durable in the cache before it fails.
const WRITE: &str =
    "qemu-io -f raw -c 'write -P 7 6M 64k' -c 'write -P 7 7M 64k' -c flush \"$uri\" >said";

fn place() -> Place {
    let place = Place::new();
    place.golden("bcache", "wb_stop.cache");
    place.golden("bcache", "wb_stop.backing");
    std::fs::rename(place.path("wb_stop.cache"), place.path("c")).unwrap();
    std::fs::rename(place.path("wb_stop.backing"), place.path(BACKING)).unwrap();
    place.sparse("one", 8 << 20);
    place.cairn(&["format", "bcache", "--backing", "one"]).ok();
    place
}

/// Serves a set whose cache device fails in this way after a write, and runs a script then.
fn fail_and_run(place: &Place, how: &Failure, script: &str) -> Ran {
    fail_after(place, how, "true", script)
}

/// The same with a script that runs between the write and the failure.
fn fail_after(place: &Place, how: &Failure, before: &str, script: &str) -> Ran {
    let Failure { line, limit, request, .. } = how;
    let sectors = place.read("c").len() / 512;
    let script = format!(
        "{WRITE} && cairn cache set disk cache/io_error_limit={limit} && {before} && \
         cairn replace fast --table '0 {sectors} {line}' && \
         ! qemu-io -f raw -c '{request}' -c flush \"$uri\" >said 2>&1; {script}"
    );
    let args = serve_args(place);
    place.serve_run(&args.iter().map(String::as_str).collect::<Vec<_>>(), &script)
}

/// The volumes of a server: the set, the device that its cache is on, and one without a set.
fn serve_args(place: &Place) -> Vec<String> {
    let sectors = place.read("c").len() / 512;
    let fast = format!("fast=0 {sectors} linear c 0");
    let tables = [&fast, CACHED, "alone=0 16368 bcache one - 0"];
    let mut args = ["--state", "state", "--export", "disk"].map(str::to_owned).to_vec();
    args.extend(tables.iter().flat_map(|table| ["--table".to_owned(), (*table).to_owned()]));
    args
}

/// The cache device works again: what was durable is there.
fn nothing_is_lost(place: &Place) {
    assert_eq!(place.cairn(&["check", "c", BACKING]).code, 5, "dirty, and sound");
    // What a failed discard was for may have any content.
    let sum = "qemu-io -f raw -c 'write -z 6M 64k' -c 'write -z 7M 64k' -c flush \"$uri\" >said; \
               nbdcopy \"$uri\" - | sha256sum";
    let script = format!("qemu-io -f raw -c 'read -P 7 6M 64k' \"$uri\" | grep -c failed; {sum}");
    let ran = place.serve_run(&["--table", "0 16368 bcache b c 0"], &script);
    // All else is what the kernel left.
    let left = Place::new();
    left.golden("bcache", "wb_stop.cache");
    left.golden("bcache", "wb_stop.backing");
    let table = "0 16368 bcache wb_stop.backing wb_stop.cache 0";
    let expected = left.serve_run(&["--table", table], sum).out;
    assert_eq!(ran.out, format!("0\n{expected}"), "{ran:?}");
}

#[test]
fn verbs_on_a_set_in_error_answer_and_those_that_need_it_are_refused_with_one_line() {
    let stopped = "disk: flush: b: the volume is stopped after failures";
    let made = "disk: flash_vol_create: the set is in error: see the log, then suspend and resume \
                its volumes";
    let verbs = [
        ("cairn cache list disk | grep -c failed", "1", ""),
        ("cairn cache get disk io_disable", "1", ""),
        ("cairn cache set disk writeback_percent=20; echo $?", "0", ""),
        ("cairn cache set disk cache_mode=writethrough; echo $?", "0", ""),
        ("cairn cache get disk cache_mode", "writethrough", ""),
        ("cairn cache flush disk; echo $?", "1", stopped),
        ("cairn cache detach disk; echo $?", "1", stopped),
        ("cairn cache detach disk --no-wait; echo $?", "1", stopped),
        // A detach that failed is over.
        ("cairn cache detach disk; echo $?", "1", stopped),
        ("cairn cache volume disk flash 1M; echo $?", "1", made),
        ("cairn message disk 0 flash_vol_create 1048576; echo $?", "1", made),
        ("cairn table disk", "0 16368 bcache b @fast 0", ""),
        ("cairn table alone", "0 16368 bcache one - 0", ""),
    ];
    for how in FAILURES {
        let (place, log) = (place(), how.log);
        let script = verbs.iter().map(|(verb, ..)| format!("{verb}; ")).collect::<String>();
        let ran = fail_and_run(&place, &how, &script);
        let expected: Vec<&str> = verbs.iter().map(|(_, out, _)| *out).collect();
        assert_eq!(ran.out.lines().collect::<Vec<_>>(), expected, "{}: {ran:?}", how.line);
        assert!(ran.err.contains(log), "{}: {ran:?}", how.line);
        let is_refusal = |line: &&str| line.starts_with("cairn: disk: ") && !line.contains("keeps");
        let said: Vec<&str> = ran.err.lines().filter(is_refusal).collect();
        let refusals = verbs.iter().map(|(.., line)| *line).filter(|line| !line.is_empty());
        let refusals: Vec<String> = refusals.map(|line| format!("cairn: {line}")).collect();
        assert_eq!(said, refusals, "{}: {ran:?}", how.line);
        assert!(ran.err.contains("cairn: disk: @fast keeps "), "{ran:?}");
        assert_eq!(ran.code, 0, "the stop ends well: {ran:?}");
        nothing_is_lost(&place);
    }
}

#[test]
fn another_device_is_not_attached_to_a_set_in_error() {
    let expected = [
        "cairn: alone: @fast: set: found that it could not be written while it serves disk, \
         expected these volumes to be suspended: then it is opened again",
        "cairn: @fast: sectors 8+8: could not be read or written: input/output error (injected)",
    ];
    for (how, line) in FAILURES.into_iter().zip(expected) {
        let place = place();
        let script = "cairn cache attach alone @fast; echo $?; cairn table alone";
        let ran = fail_and_run(&place, &how, script);
        let code = if how.line == "error" { 1 } else { 4 };
        assert_eq!(ran.out, format!("{code}\n0 16368 bcache one - 0\n"), "{}: {ran:?}", how.line);
        assert_eq!(
            ran.err.lines().filter(|said| *said == line).count(),
            1,
            "{}: {ran:?}",
            how.line
        );
        nothing_is_lost(&place);
    }
}

#[test]
fn requests_to_a_volume_with_dirty_data_fail_until_its_set_is_opened_again() {
    let requests = ["read 6M 64k", "write 4M 64k", "write -z 4M 64k", "discard 4M 64k"];
    for how in FAILURES {
        let place = place();
        let request = |it| format!("qemu-io -f raw -c '{it}' \"$uri\" 2>&1 | grep -c failed; ");
        let sectors = place.read("c").len() / 512;
        let script = format!(
            "{} cairn resume disk; echo $?; cairn suspend disk; echo $?; \
             cairn resume disk 2>refused; echo $?; cairn info disk | grep -c SUSPENDED; \
             cairn replace fast --table '0 {sectors} linear c 0'; cairn resume disk; echo $?; \
             qemu-io -f raw -c 'read -P 7 6M 64k' -c 'write -P 8 4M 64k' -c flush \"$uri\" \
             >said; echo $?; cairn cache list disk | grep -c dirty; \
             cairn cache flush disk; echo $?",
            requests.map(request).concat()
        );
        let ran = fail_and_run(&place, &how, &script);
        // A resume of a volume that is live does nothing; one that cannot read its set leaves it
        // suspended.
        let expected = "1\n1\n1\n1\n0\n0\n1\n1\n0\n0\n1\n0\n";
        assert_eq!(ran.out, expected, "{}: {ran:?}", how.line);
        assert_eq!(ran.code, 0, "{}: {ran:?}", how.line);
        let refused = String::from_utf8(place.read("refused")).unwrap();
        assert!(refused.lines().count() == 1 && refused.contains("disk: @fast: "), "{refused}");
        assert!(place.read(BACKING)[8192 + (6 << 20)..][..64 << 10].iter().all(|it| *it == 7));
    }
}

/// A write that no entry of the journal has, and that no flush follows.
const UNFLUSHED: &str = "cairn cache set disk journal_delay_ms=60000 && nbdcopy data \"$uri\"";
/// It is over dirty data, in place, and goes on behind that.
fn data() -> Vec<u8> {
    vec![9; 128 << 10]
}

const LOST: &str = "disk: @fast: the set is in error, what was last written may not be durable";

#[test]
fn a_suspend_a_remove_and_a_stop_of_a_set_in_error_exit_1_if_acknowledged_writes_are_lost() {
    for how in FAILURES {
        for (script, out, code) in [
            ("cairn suspend disk; echo $?", "1\n", 0),
            ("cairn remove disk; echo $?", "1\n", 0),
            ("true", "", 1),
        ] {
            let place = place();
            place.write("data", data());
            let ran = fail_after(&place, &how, UNFLUSHED, script);
            assert_eq!((&*ran.out, ran.code), (out, code), "{}: {script}: {ran:?}", how.line);
            assert!(ran.err.contains(LOST), "{}: {script}: {ran:?}", how.line);
        }
    }
}

#[test]
fn a_server_that_is_terminated_exits_1_if_its_set_in_error_lost_acknowledged_writes() {
    let place = place();
    place.write("data", data());
    let mut args = serve_args(&place);
    args.extend(["--listen", "unix:nbd.sock", "--control", "c.sock"].map(str::to_owned));
    let server = place.serve(&args.iter().map(String::as_str).collect::<Vec<_>>());
    let sectors = place.read("c").len() / 512;
    let script = format!(
        "export uri='{}' CAIRN_CONTROL=c.sock; {UNFLUSHED} && \
         cairn replace fast --table '0 {sectors} error'",
        server.uri
    );
    place.shell(&script).ok();
    // Its last commit meets the failure.
    let (status, _, err) = server.end_by(Signal::TERM);
    assert_eq!(status.code(), Some(1), "{err}");
    assert!(err.contains(LOST), "{err}");
}
