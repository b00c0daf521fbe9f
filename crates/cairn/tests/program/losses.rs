//! Lost writes over a whole server: exit codes, and who is told after a restart.

use std::process::Command;

use super::place::Place;

const CACHE: &str = "0 2048 writecache s slow @fast 4096 2 autocommit_time 3600000";
const FAILING: &str = "0 512 flakey cache 0 0 1 1 error_writes";

fn qemu_io(uri: &str, commands: &[&str]) -> (bool, String) {
    let mut qemu = Command::new("qemu-io");
    qemu.args(["-f", "raw"]);
    for command in commands {
        qemu.args(["-c", command]);
    }
    let ran = qemu.arg(uri).output().expect("qemu-io is installed");
    let said = [ran.stdout, ran.stderr].concat();
    (ran.status.success(), String::from_utf8_lossy(&said).into_owned())
}

#[test]
fn a_server_whose_last_commit_failed_exits_1_and_the_next_one_tells_once() {
    let place = Place::new();
    place.sparse("slow", 1 << 20);
    place.sparse("cache", 256 << 10);
    let args = ["--state", "state", "--table", "fast=0 512 linear cache 0", "--table", CACHE];
    let sockets = ["--export", "default", "--listen", "unix:nbd.sock", "--control", "ctl.sock"];
    let args = [&args[..], &sockets].concat();
    let server = place.serve(&args);
    let control = place.path("ctl.sock").to_str().unwrap().to_owned();
    let (ok, said) = qemu_io(&server.uri, &["write -P 7 0 4k", "flush"]);
    assert!(ok, "{said}");
    // Not flushed, as qemu-io would do at its end.
    place.write("data", [9; 4096]);
    place.shell(&format!("nbdcopy data '{}'", server.uri)).ok();
    for verb in [&["load", "fast", "--table", FAILING][..], &["resume", "fast"]] {
        place.cairn(&[verb, &["--control", &control]].concat()).ok();
    }
    let ended = server.interrupt();
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(ended.err.contains("writes since the last flush may be lost"), "{ended:?}");

    let back = ["--state", "state", "--table", "fast=0 512 linear cache 0", "--table", CACHE];
    place.cairn(&["state", "forget", "fast", "--state", "state"]).ok();
    let server = place.serve(&[&back[..], &sockets].concat());
    // qemu sends a flush only after a write.
    let (ok, said) = qemu_io(&server.uri, &["write -P 5 8k 4k", "flush"]);
    assert!(!ok && said.contains("wrote 4096/4096"), "{said}");
    let (ok, said) = qemu_io(&server.uri, &["write -P 5 8k 4k", "flush"]);
    let ended = server.interrupt();
    assert!(ok && !said.contains("rror"), "{said} {ended:?}");
    assert_eq!(ended.code, 0);
}

#[test]
fn the_end_of_a_snapshot_that_nothing_takes_is_written_at_the_stop_or_the_server_fails() {
    let serve = "cairn serve --table 'vm=0 2048 linear mem:1M 0' --state vm.state --run";
    // The server can write to no file, and an origin in memory goes on.
    let end = "prlimit --pid $PPID --fsize=0: && qemu-io -f raw -c \"write 0 64k\" $uri && \
               cairn snap list";
    let ended = |place: &Place, after: &str| {
        place.shell(&format!("{serve} 'cairn snap create vm@mon --size 256K'")).ok();
        place.shell(&format!("{serve} '{end}{after}'"))
    };
    let place = Place::new();
    let ran = ended(&place, "");
    assert!(ran.code == 1 && ran.out.contains("vm@mon  invalid"), "{ran:?}");
    let line = ran.err.lines().find(|line| line.starts_with("cairn: vm@mon: ")).unwrap_or_default();
    assert!(line.contains("must not be trusted, though it looks valid"), "{ran:?}");
    let told = ran.err.matches("its end is in neither its store nor the state file").count();
    assert!(told > 0, "{ran:?}");

    let place = Place::new();
    let ran = ended(&place, " && prlimit --pid $PPID --fsize=unlimited:");
    assert!(ran.code == 0 && ran.out.contains("vm@mon  invalid"), "{ran:?}");
    let out = place.shell(&format!("{serve} 'cairn snap list'")).ok();
    assert!(out.contains("vm@mon  invalid"), "{out}");
}
