//! The state file and what a start does with it: volumes that cannot be brought up, records that
//! are shown and forgotten, exports that verbs changed, restarts.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use super::place::{Place, Ran, json};

const ZERO: [&str; 2] = ["--table", "b=0 8 zero"];

/// A script against a server in the background, with the state file `s`; what both said.
pub fn beside(place: &Place, args: &[&str], script: &str) -> (Ran, Ran) {
    let args = [&["--state", "s", "--control", "c"], args].concat();
    let server = place.serve(&args);
    assert!(server.uri.starts_with("nbd"), "{:?}", server.interrupt());
    let output = place.shell(script);
    (output, server.interrupt())
}

#[test]
fn a_volume_that_cannot_be_brought_up_does_not_keep_the_others_down() {
    let place = Place::new();
    let tables = ["--table", "top=0 8 linear @a 0", "--table", "a=0 8 linear missing 0"];
    let args = [&tables[..], &ZERO[..]].concat();
    let (ran, server) =
        beside(&place, &args, "cairn ls; cairn exports | awk 'NR > 1 { print $1 }'");
    assert_eq!(ran.ok(), "b\nb\n");
    assert_eq!(server.code, 0, "{server:?}");
    for line in ["a is not served: a: missing: ", "top is not served: @a is not served"] {
        assert!(server.err.contains(line), "{line}: {server:?}");
    }
    let one = [&tables[2..], &ZERO[..]].concat();
    for more in [&["--strict"][..], &["--export", "a"], &["--run", "true"]] {
        let line = place.cairn(&[&["serve"], &one[..], more].concat()).refused(1);
        assert!(line.starts_with("cairn: a: missing: "), "{line}");
    }
    place.cairn(&[&["serve"], &tables[2..]].concat()).refused(1);
    // What stands on it shares a line.
    let more = ["--table", "more=0 8 linear @a 0", "--strict"];
    let ran = place.cairn(&[&["serve"], &args[..], &more[..]].concat());
    assert!(ran.err.contains("top, more are not served: @a is not served"), "{ran:?}");
    // Each of several is told.
    let ran = place.cairn(&[&["serve", "--strict"], &args[..]].concat());
    assert!(ran.code == 1 && ran.err.contains("top is not served: @a is not served"), "{ran:?}");
}

#[test]
fn an_origin_is_not_served_without_its_snapshots_until_they_are_forgotten() {
    let place = Place::new();
    place.write("disk", [7; 4096]);
    let args = [&["--table", "v=0 8 linear disk 0"][..], &ZERO[..]].concat();
    let script = "cairn snap create v@mon && cairn snap create v@tue";
    beside(&place, &args, script).0.ok();
    let store = place.read("v@mon.cow");
    std::fs::remove_file(place.path("v@mon.cow")).unwrap();
    let script = "cairn ls; cairn create v --table '0 8 zero'; echo $?; cairn snap list; \
                  cairn state show v@mon; cairn state forget v; echo $?";
    let (ran, server) = beside(&place, &args, script);
    let line = "v@mon, v, v@tue are not served: v@mon: v@mon.cow: ";
    assert!(server.err.contains(line), "{server:?}");
    assert!(ran.out.starts_with("b\n4\nNAME "), "{ran:?}");
    assert!(ran.out.contains("\nv@mon  not-served     -     -    16K  v@mon.cow\n"), "{ran:?}");
    assert!(ran.out.contains("\nv@mon: not served: v@mon: v@mon.cow: "), "{ran:?}");
    assert!(ran.err.contains("v: forget: found 2 snapshots or merges"), "{ran:?}");
    let alone = place.cairn(&["serve", "--state", "s", "--table", "v=0 8 linear disk 0"]);
    assert!(alone.refused(1).starts_with(&format!("cairn: {line}")));
    // With its store again all is as before.
    place.write("v@mon.cow", store);
    assert_eq!(beside(&place, &args, "cairn ls").0.ok(), "b\nv\nv@mon\nv@real\nv@tue\n");
    std::fs::remove_file(place.path("v@mon.cow")).unwrap();
    let script = "cairn status v; echo $?; cairn snap remove v@mon";
    let (ran, _) = beside(&place, &args, script);
    assert!(ran.err.contains("cairn: v: not served: v@mon: v@mon.cow: "), "{ran:?}");
    let line = "v@mon: gone; v is served from the next start on, if nothing else is missing\n";
    assert!(ran.err.ends_with(line), "{ran:?}");
    assert_eq!(ran.out, "1\n", "{ran:?}");
    assert_eq!(beside(&place, &args, "cairn ls").0.ok(), "b\nv\nv@real\nv@tue\n");
}

#[test]
fn records_are_shown_and_forgotten_without_a_server_too() {
    let place = Place::new();
    let script = "cairn load b --table '0 16 zero' && cairn resume b && \
                  cairn create e --table '0 24 zero' && cairn load e --table '0 8 error' && \
                  cairn state show && cairn state show --state s && cairn state forget e; echo $?; \
                  cairn state forget e --state s; echo $?";
    let (ran, _) = beside(&place, &ZERO, script);
    let shown = "b: 0 16 zero\nb: configured: 0 8 zero\ne: 0 24 zero\n\
                 e: waits for a resume: 0 8 error\n";
    assert_eq!(ran.out, format!("{shown}{shown}4\n4\n"), "{ran:?}");
    assert!(ran.err.contains("s: a server holds it and may change it"), "{ran:?}");
    assert!(ran.err.contains("e: forget: found a volume that is served"), "{ran:?}");
    assert!(ran.err.contains("s: lock: found a server that holds it"), "{ran:?}");
    let value = json(&place.cairn(&["state", "show", "--state", "s", "--json"]).ok());
    assert_eq!(value["volumes"][1]["record"]["inactive"], "0 8 error");
    let told = place.cairn(&["state", "forget", "b", "--state", "s"]).ok();
    assert_eq!(told, "b: forgotten: its table was '0 16 zero'\n");
    assert_eq!(beside(&place, &ZERO, "cairn table b").0.ok(), "0 8 zero \n");
    place.cairn(&["state", "show", "--state", "elsewhere"]).refused(1);
    place.cairn(&["state", "forget", "b", "--state", "s"]).refused(1);
}

#[test]
fn overridden_configuration_is_logged_until_it_equals_the_record() {
    let place = Place::new();
    let changes = "cairn load b --table '0 16 zero' && cairn resume b";
    beside(&place, &ZERO, changes).0.ok();
    let (ran, server) = beside(&place, &ZERO, "cairn table b");
    assert_eq!(ran.ok(), "0 16 zero \n");
    assert!(server.err.contains("b: s says '0 16 zero' instead of the configured '0 8 zero'"));
    // Both, and one that is neither: the other volume is served.
    let other = ["--table", "b=0 24 zero", "--table", "x=0 8 zero"];
    let (ran, server) = beside(&place, &other, "cairn ls");
    assert_eq!(ran.ok(), "x\n");
    assert!(server.err.contains("b is not served: b: state: found another table"), "{server:?}");
    let (ran, server) = beside(&place, &["--table", "b=0  16 zero"], "cairn state show");
    assert_eq!(ran.ok(), "No records found\n");
    assert!(server.err.ends_with(" INFO b: configured as it is recorded\n"), "{server:?}");
    let removed = "cairn remove b && cairn create x --table '0 8 zero'";
    beside(&place, &ZERO, removed).0.ok();
    let (ran, server) = beside(&place, &ZERO, "cairn ls");
    assert_eq!(ran.ok(), "x\n");
    assert!(server.err.contains("b: s says that it was removed, though '0 8 zero' is configured"));
}

#[test]
fn exports_come_and_go_and_survive_the_server() {
    let place = Place::new();
    let names = "cairn exports | awk 'NR > 1 { print $1, $2 }'";
    let script = format!(
        "cairn export add b --as x --read-only && cairn export add b --as x; echo $?; {names}; \
         cairn export remove b; {names}; cairn export remove b; echo $?; \
         cairn export add nothing; echo $?"
    );
    let (ran, _) = beside(&place, &ZERO, &script);
    assert_eq!(ran.out, "4\nb b\nx b\nx b\n1\n1\n", "{ran:?}");
    let script = format!(
        "{names}; cairn exports | grep -c read-only; cairn export remove x; \
         cairn export add b; {names}; cairn state show"
    );
    let out = beside(&place, &ZERO, &script).0.ok();
    assert_eq!(out, "x b\n1\nb b\nNo records found\n");
}

#[test]
fn an_export_of_what_another_volume_owns_is_refused() {
    let place = Place::new();
    place.sparse("slow", 1 << 20);
    place.sparse("fast", 256 << 10);
    let tables = ["--table", "f=0 512 linear fast 0", "--table"];
    let args = [&tables[..], &["w=0 2048 writecache s slow @f 4096 0"]].concat();
    let (ran, _) = beside(&place, &args, "cairn export add f --as x; echo $?; true");
    assert!(ran.out.starts_with("4\n"), "{ran:?}");
    assert!(ran.err.contains("f: export: found that it is the cache device of w"), "{ran:?}");
}

#[test]
fn a_state_file_behind_a_link_is_replaced_and_locked_itself() {
    let place = Place::new();
    std::os::unix::fs::symlink("s", place.path("link")).unwrap();
    let run = |state: &str, script: &str| {
        place.serve_run(&["--state", state, "--table", "a=0 8 zero", "--export", "a"], script)
    };
    run("s", "cairn create x --table '0 8 zero'").ok();
    run("link", "cairn create y --table '0 8 zero'").ok();
    assert!(place.path("link").is_symlink());
    assert_eq!(run("s", "cairn ls").ok(), "a\nx\ny\n");
    let second = "cairn serve --state link --table 'b=0 8 zero' --run true; echo $?";
    assert_eq!(run("s", second).ok(), "4\n");
}

/// A client that has chosen an export and asks nothing of it.
fn client(place: &Place, export: &str) -> UnixStream {
    let mut stream = UnixStream::connect(place.path("n")).unwrap();
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting).unwrap();
    // Fixed newstyle, no zeroes; the option EXPORT_NAME.
    let mut hello = 3u32.to_be_bytes().to_vec();
    hello.extend_from_slice(b"IHAVEOPT");
    hello.extend(1u32.to_be_bytes());
    hello.extend((export.len() as u32).to_be_bytes());
    hello.extend_from_slice(export.as_bytes());
    stream.write_all(&hello).unwrap();
    let mut size_and_flags = [0; 10];
    stream.read_exact(&mut size_and_flags).unwrap();
    stream
}

#[test]
fn an_export_with_a_client_is_removed_only_by_force() {
    let place = Place::new();
    let args = [&["--state", "s", "--control", "c", "--listen", "unix:n"], &ZERO[..]].concat();
    let _server = place.serve(&args);
    let mut client = client(&place, "b");
    let line = place.shell("cairn export remove b").refused(4);
    assert!(line.contains("export 'b': users: found clients that are connected"), "{line}");
    assert_eq!(place.shell("cairn exports | grep -c nbd").ok(), "1\n");
    place.shell("cairn export remove b --force").ok();
    assert_eq!(client.read(&mut [0]).unwrap(), 0, "disconnected");
    assert_eq!(place.shell("cairn exports").ok(), "");
}

#[test]
fn an_export_of_a_volume_that_nobody_knows_is_refused() {
    let place = Place::new();
    let toml = "[[volume]]\nname = 'a'\ntable = '0 8 zero'\n[[export]]\nname = 'x'\nvolume = 'b'";
    place.write("vm.toml", toml);
    let line = place.cairn(&["serve", "vm.toml", "--run", "true"]).refused(1);
    assert!(line.contains("export 'x': volume: found 'b', expected a volume with a"), "{line}");
    // Verbs that changed something else make it known no more than that.
    let known = toml.replace("'b'", "'a'");
    place.write("vm.toml", &known);
    place.serve_run(&["vm.toml"], "cairn create other --table '0 8 zero'").ok();
    place.write("vm.toml", toml);
    place.cairn(&["serve", "vm.toml", "--run", "true"]).refused(1);
    // The export of a volume that verbs made is no mistake, though they remove it.
    place.write("vm.toml", &known);
    place.serve_run(&["vm.toml"], "cairn create b --table '0 8 zero'").ok();
    place.write("vm.toml", toml);
    place.serve_run(&["vm.toml"], "cairn exports && cairn remove b").ok();
    let ran = place.serve_run(&["vm.toml"], "cairn exports").ok();
    assert_eq!(ran, "");
    let ran = place.serve_run(&["vm.toml"], "cairn create b --table '0 16 zero'; cairn exports");
    assert!(ran.err.contains("it is not served until there is one"), "{ran:?}");
    assert!(ran.out.contains("\nx     b         8K  writable"), "{ran:?}");
}

#[test]
fn an_export_of_a_configured_volume_that_was_removed_is_told_and_keeps_nothing_down() {
    let place = Place::new();
    let volume = |name: &str| format!("[[volume]]\nname = '{name}'\ntable = '0 8 zero'\n");
    let export = |name: &str| format!("[[export]]\nname = '{name}'\nvolume = '{name}'\n");
    let toml = [volume("a"), volume("b"), export("a"), export("b")].concat();
    place.write("vm.toml", toml);
    place.serve_run(&["vm.toml"], "cairn remove b").ok();
    let ran = place.serve_run(&["vm.toml"], "cairn exports | awk 'NR > 1 { print $1 }'");
    assert_eq!(ran.out, "a\n", "{ran:?}");
    let line = "export 'b': volume: found 'b', expected a volume with a table: it is not served";
    assert!(ran.err.contains(line), "{ran:?}");
}

#[test]
fn a_server_starts_right_after_another_was_killed() {
    let place = Place::new();
    let serve = |listen: &str| {
        let server =
            place.serve(&["--listen", listen, "--control", "c", "--state", "s", ZERO[0], ZERO[1]]);
        let uri = server.uri.clone();
        // Killed, and waited for, when it is dropped.
        assert!(uri.starts_with("nbd"), "{listen}: {:?}", server.interrupt());
        uri
    };
    let port = serve("tcp:0").split(['/', ':']).nth(4).unwrap().to_owned();
    for _ in 0..10 {
        serve("unix:n");
        serve(&format!("tcp:{port}"));
    }
}
