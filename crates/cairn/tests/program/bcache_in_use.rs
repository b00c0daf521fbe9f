//! Devices of bcache that are in use: each verb that would use them twice is refused with one line.

use super::place::Place;

/// A formatted backing device of 64 MiB alone.
const N: u32 = 131_056;

/// Checks what a script printed: its exit codes, and parts of the lines on standard error, which
/// has one line for each refusal.
fn check(ran: &super::place::Ran, codes: &[&str], lines: &[&str]) {
    assert_eq!(ran.out.lines().collect::<Vec<_>>(), codes, "{ran:?}");
    let said: Vec<&str> = ran.err.lines().filter(|line| line.starts_with("cairn: ")).collect();
    assert_eq!(said.len(), lines.len(), "{ran:?}");
    for (said, part) in said.iter().zip(lines) {
        assert!(said.contains(part), "{part}: {said}");
    }
}

fn formatted(devices: &[(&str, &str)]) -> Place {
    let place = Place::new();
    for (option, name) in devices {
        place.sparse(name, 64 << 20);
        place.cairn(&["format", "bcache", option, name]).ok();
    }
    place
}

#[test]
fn backing_device_of_a_volume_is_used_by_no_other_table() {
    let place = formatted(&[("--backing", "one"), ("--cache", "fast")]);
    let tables = [
        format!("0 {N} bcache one fast 1 attach"),
        format!("0 {N} bcache one - 0"),
        "0 8 linear one 16".to_owned(),
    ];
    let create = |table: &String| format!("cairn create w --table '{table}'; echo $?; ");
    let serve = |table: &String| format!("cairn serve --table '{table}' --run true; echo $?; ");
    let all = tables.iter().map(create).chain(tables.iter().map(serve)).collect::<String>();
    // Alone, behind its cache, and detached: as a part of a file it may have several users then.
    let detached = tables[..2].iter().map(create).collect::<String>();
    let script = format!(
        "{all} cairn cache attach v fast >said; echo $?; {all} \
         cairn cache detach v 2>said; echo $?; {detached} cairn ls | grep -c w"
    );
    let table = format!("v=0 {N} bcache one - 0");
    let ran = place.serve_run(&["--state", "state", "--table", &table], &script);
    let refused = ["4"; 6];
    let codes = [&refused[..], &["0"], &refused, &["0"], &refused[..2], &["0"]].concat();
    let [here, there] = ["w: one: in use as ", "default: one: in use: another process holds"];
    let lines = [[here; 3], [there; 3]].concat().repeat(2);
    let lines = [&lines[..], &["w: one: volume 'v' writes to it (sectors 16..131072)"; 2]].concat();
    check(&ran, &codes, &lines);
}

#[test]
fn cache_device_that_another_table_or_process_uses_is_not_attached() {
    let place = formatted(&[
        ("--backing", "one"),
        ("--backing", "two"),
        ("--cache", "fast"),
        ("--cache", "held"),
        ("--cache", "used"),
    ]);
    let _other = place.serve(&["--table", "h=0 8 linear held 0", "--listen", "unix:s"]);
    let attach = |name: &str, cache: &str| format!("cairn cache attach {name} {cache}; echo $?; ");
    let table = |name: &str| format!("cairn table {name} | sed \"s|$PWD/||\"; ");
    let script = [
        attach("v", "held"),
        attach("v", "used"),
        table("v"),
        attach("v", "fast"),
        attach("v", "fast"),
        "cairn create w --table '0 8 linear fast 0'; echo $?; ".to_owned(),
        "cairn serve --table '0 8 linear fast 0' --run true; echo $?; ".to_owned(),
        // A set has several volumes.
        attach("x", "fast"),
        table("x"),
    ]
    .concat();
    let tables = [
        format!("v=0 {N} bcache one - 0"),
        format!("x=0 {N} linear two 16"),
        "u=0 8 linear used 0".to_owned(),
    ];
    let mut args = vec!["--state", "state", "--export", "v"];
    args.extend(tables.iter().flat_map(|table| ["--table", table]));
    let ran = place.serve_run(&args, &script);
    let (alone, cached) = (&tables[0][2..], format!("0 {N} bcache two fast 0"));
    let codes = ["4", "4", alone, "0", "1", "4", "4", "0", &cached];
    let lines = [
        "held: in use: another process holds a lock",
        "used: volume 'u' writes to it (sectors 0..8); name '@u' instead, or remove 'u' first",
        "v: table: found a cache, expected none (cairn cache detach v)",
        "fast: in use as the cache device of bcache of volume 'v'",
        "default: fast: in use: another process holds a lock",
    ];
    check(&ran, &codes, &lines);
}

#[test]
fn second_detach_finds_no_cache() {
    let place = formatted(&[("--backing", "one"), ("--cache", "fast")]);
    let script = "cairn cache attach v fast; cairn cache detach v 2>said; echo $?; \
                  cairn cache detach v; echo $?; cairn cache detach v --no-wait; echo $?; \
                  cairn table v";
    let table = format!("v=0 {N} bcache one - 0");
    let ran = place.serve_run(&["--state", "state", "--table", &table], script);
    let alone = format!("0 {N} linear one 16");
    let line = "v: table: found no cache, expected a line of writecache or bcache";
    check(&ran, &["0", "1", "1", &alone], &[line; 2]);
}
