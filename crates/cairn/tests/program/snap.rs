//! `cairn snap` as a script uses it.

use serde_json::Value;

use super::place::Place;

const ARGS: [&str; 4] = ["--table", "vm=0 2048 linear disk 0", "--state", "vm.state"];

fn place() -> Place {
    let place = Place::new();
    place.write("disk", vec![7; 1 << 20]);
    place
}

#[test]
fn a_snapshot_shows_in_every_listing_and_survives_the_server() {
    let place = place();
    let script = "cairn snap list; cairn snap create vm@mon --chunk 8 --size 128K --fill 50; \
                  cairn ls; cairn table; cairn status; cairn snap list; \
                  cairn exports --bytes | awk 'NR > 1 { print $1, $2, $3 }'; \
                  nbdinfo --size \"$uri\"";
    let expected = "No snapshots found\nvm\nvm@mon\nvm@real\n\
                    vm: 0 2048 snapshot-origin @vm@real\n\
                    vm@mon: 0 2048 snapshot @vm@real vm@mon.cow PO 8 2 fill_event 50\n\
                    vm@real: 0 2048 linear disk 0\n\
                    vm: 0 2048 snapshot-origin \nvm@mon: 0 2048 snapshot 16/256 16\n\
                    vm@real: 0 2048 linear \n\
                    NAME    STATE  USED  SIZE  CHUNK  STORE\n\
                    vm@mon  valid    8K  128K     4K  vm@mon.cow\n\
                    vm vm 1048576\nvm@mon vm@mon 1048576\n1048576\n";
    assert_eq!(place.serve_run(&ARGS, script).ok(), expected);
    let script = "cairn snap list --json; cairn table --kernel vm@mon | grep '^0'; \
                  cairn info vm | grep State; \
                  nbdinfo --size \"$uri\" && cairn snap remove vm@mon; cairn table; ls";
    let out = place.serve_run(&ARGS, script).ok();
    let (json, rest) = out.split_once("]\n").unwrap();
    let infos: Value = serde_json::from_str(&format!("{json}]")).unwrap();
    assert_eq!((&infos[0]["name"], &infos[0]["state"]), (&"vm@mon".into(), &"valid".into()));
    assert_eq!((&infos[0]["size_bytes"], &infos[0]["grow_bytes"]), (&131_072.into(), &Value::Null));
    let expected = "0 2048 linear $d0 0\n0 2048 snapshot /dev/mapper/vm@real $d1 PO 8\n\
                    State:             ACTIVE\n1048576\nvm: 0 2048 linear disk 0\n";
    assert!(rest.starts_with(expected), "{rest}");
    assert!(!place.exists("vm@mon.cow"));
    let state: Value = serde_json::from_slice(&place.read("vm.state")).unwrap();
    assert_eq!(state["volumes"], serde_json::json!([]), "as configured again");
}

#[test]
fn invalid_input_is_refused_on_one_line_and_changes_nothing() {
    let place = place();
    place.write("ours", vec![9; 1 << 16]);
    place.sparse("blank", 1 << 16);
    let cases = [
        ("create vm", "expected VOLUME@NAME"),
        ("create vm@a@b", "not of a snapshot"),
        ("create vm@real", "expected another name"),
        ("create nope@mon", "nope: there is no volume of this name; `cairn ls` lists them"),
        ("create vm@mon --chunk 24", "vm@mon: chunk size: found 24 sectors, expected"),
        ("create vm@mon --size 1K", "size: found 1024"),
        ("create vm@mon --size x", "--size: found 'x'"),
        ("create vm@mon --fill 0", "fill_percent: found 0"),
        ("create vm@mon --store ours", "header magic"),
        ("create vm@mon --store disk", "disk: "),
        ("create vm@mon --store mem:1M", "store: path: found 'mem:1M'"),
        ("create vm@mon --store blank --size 1M", "--size: found 1048576, expected none"),
        ("create vm@mon --store no/where", "no/where"),
        ("diff vm@mon", "vm@mon: there is no snapshot of this name"),
        ("diff vm", "expected VOLUME@NAME"),
        ("remove vm@mon", "vm@mon: there is no snapshot of this name"),
        ("rollback vm@mon", "vm@mon: there is no snapshot of this name"),
        ("merge vm@mon", "vm@mon: there is no snapshot of this name"),
        ("grow vm@mon --size 1M", "vm@mon: there is no snapshot of this name"),
        ("list nope", "nope: there is no volume of this name"),
    ];
    let script: String = cases.iter().map(|(verb, _)| format!("cairn snap {verb}; ")).collect();
    let ran = place.serve_run(&ARGS, &format!("{script} cairn ls; ls"));
    assert_eq!(ran.out, "vm\nblank\ndisk\nours\nvm.state.lock\n", "{ran:?}");
    let lines: Vec<_> = ran.err.lines().collect();
    assert_eq!(lines.len(), cases.len(), "{ran:?}");
    for (line, (verb, part)) in lines.iter().zip(cases) {
        assert!(line.starts_with("cairn: ") && line.contains(part), "{verb}: {line}");
    }
    assert_eq!(place.read("disk"), vec![7; 1 << 20]);
    assert_eq!(place.read("ours"), vec![9; 1 << 16]);
}

#[test]
fn without_a_state_file_no_snapshot_is_made() {
    let verbs = ["create", "rollback", "merge", "remove"];
    let script: String = verbs.iter().map(|verb| format!("cairn snap {verb} vm@a; ")).collect();
    let ran = place().serve_run(&ARGS[..2], &format!("{script} cairn snap list"));
    assert_eq!(ran.out, "No snapshots found\n");
    assert_eq!(ran.err.matches("state file: found none, expected a server").count(), 4, "{ran:?}");
}

#[test]
fn tables_are_not_changed_past_the_snapshots() {
    let script = "cairn snap create vm@mon; cairn snap create vm@mon; echo $?; \
                  cairn load vm --table '0 8 zero'; echo $?; cairn load vm@mon --table '0 8 zero'; \
                  cairn remove vm; cairn remove vm@mon; cairn remove vm@real; \
                  cairn create a@b --table '0 8 zero'; cairn message vm 0 frob; \
                  cairn suspend vm; cairn snap remove vm@mon; cairn resume vm; \
                  cairn create w --table '0 8 linear @vm@mon 0'; cairn snap remove vm@mon; \
                  cairn remove w; cairn snap remove vm@mon && cairn ls";
    let ran = place().serve_run(&ARGS, script);
    assert_eq!(ran.out, "4\n4\nvm\n", "{ran:?}");
    let expected = [
        "vm@mon: name: found a snapshot of this name",
        "vm: load: found snapshots of it, expected none (VOLUME@real takes",
        "vm@mon: load: found a snapshot",
        "vm: remove: found snapshots of it, expected none (cairn snap remove",
        "vm@mon: remove: found a snapshot",
        "vm@real: users: found volume 'vm",
        "volume: name: found 'a@b', expected a name without '@'",
        "vm@real: target takes no messages, found 'frob'",
        "vm: state: found suspended, expected a live volume",
        "vm@mon: users: found volume 'w' on it",
    ];
    let lines: Vec<_> = ran.err.lines().collect();
    assert_eq!(lines.len(), expected.len(), "{ran:?}");
    for (line, part) in lines.iter().zip(expected) {
        assert!(line.contains(part), "{line}: {part}");
    }
}

#[test]
fn differences_are_told_as_text_as_json_and_over_nbd() {
    let place = place();
    let script = "nbd() { cairn exports | grep \"^$1 \" | sed 's/.* nbd/nbd/'; }; \
                  cairn snap create vm@mon --chunk 8; \
                  head -c 4096 /dev/zero | nbdcopy - \"$(nbd vm)\" && cairn snap diff vm@mon; \
                  cairn snap create vm@tue --chunk 8; \
                  nbdinfo --map=cairn:changed:mon \"$(nbd vm@tue)\"; \
                  nbdinfo --map=cairn:changed:tue \"$(nbd vm)\"; \
                  nbdinfo --map=qemu:dirty-bitmap:mon \"$(nbd vm@tue)\"; \
                  cairn snap diff vm@mon @tue --json; cairn snap diff vm@tue";
    let ran = place.serve_run(&ARGS, script);
    let words: Vec<_> = ran.out.split_whitespace().collect();
    let expected = "0 4096 0 4096 1 4096 1044480 0 0 1048576 0 0 4096 1 dirty 4096 1044480 0 clean \
                    [ { \"length\": 4096, \"offset\": 0 } ]";
    assert_eq!(words.join(" "), expected, "{ran:?}");
}
