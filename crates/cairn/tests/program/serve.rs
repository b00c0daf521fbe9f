//! `cairn serve`: tables, TOML, sockets, the end; with a client nobody here wrote.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use rustix::process::Signal;

use super::place::{Place, signalled, until};

#[test]
fn a_write_beyond_the_limit_of_a_files_size_fails_alone() {
    let place = Place::new();
    place.sparse("disk", 4 << 20);
    let script = "prlimit --pid $PPID --fsize=1048576: && \
                  qemu-io -f raw -c 'write -P 7 2M 64k' \"$uri\" >out; echo $?; \
                  qemu-io -f raw -c 'write -P 7 0 64k' -c flush \"$uri\" >>out; echo $?";
    let ran = place.serve_run(&["--table", "0 8192 linear disk 0"], script);
    assert_eq!((ran.code, ran.out.as_str()), (0, "1\n0\n"), "{ran:?}");
    assert!(place.read("disk")[..64 << 10].iter().all(|byte| *byte == 7));
}

#[test]
fn run_serves_while_its_command_runs_and_repeats_its_exit_status() {
    let place = Place::new();
    place.sparse("file", 1 << 20);
    let script = "nbdinfo --size \"$uri\"; test -S \"$unixsocket\"; cairn ls; exit 7";
    let ran = place.serve_run(&["--table", "0 2048 linear file 0"], script);
    assert_eq!((ran.code, ran.out.as_str()), (7, "1048576\ndefault\n"), "{ran:?}");
    let ran = place.serve_run(&["--table", "0 8 zero"], "kill -TERM $$");
    assert_eq!(ran.code, 128 + 15, "{ran:?}");
}

#[test]
fn client_writes_are_in_the_file() {
    let place = Place::new();
    place.sparse("file", 1 << 20);
    let data: Vec<u8> = (0..1u32 << 18).flat_map(|n| n.to_le_bytes()).collect();
    place.write("data", &data);
    let script = "nbdcopy --flush data \"$uri\" && nbdcopy \"$uri\" back";
    place.serve_run(&["--table", "0 2048 linear file 0"], script).ok();
    assert!(place.read("file") == data);
    assert!(place.read("back") == data);
}

#[test]
fn tables_grow_by_name_and_stand_on_each_other_in_any_order() {
    let place = Place::new();
    let args = ["--table", "top=0 16 linear @base 0", "--table", "base=0 8 zero", "--table"];
    let args = [&args[..], &["base=8 8 linear mem:4K 0", "--export", "top"]].concat();
    let ran = place.serve_run(&args, "nbdinfo --size \"$uri\"; cairn table");
    let expected = "8192\nbase: 0 8 zero \nbase: 8 8 linear mem:4K 0\ntop: 0 16 linear @base 0\n";
    assert_eq!(ran.ok(), expected);
}

#[test]
fn an_interrupt_commits_tells_what_is_dirty_and_exits_0() {
    let place = Place::new();
    place.write(
        "vm.toml",
        "listen = 'unix:nbd.sock'
         control = 'ctl.sock'
         [[image]]
         path = 'slow'
         size = '1M'
         [[image]]
         path = 'fast'
         size = '256K'
         [[volume]]
         name = 'disk'
         table = '0 2048 writecache s slow fast 4096 2 autocommit_time 3600000'",
    );
    place.write("data", [7; 8192]);
    let server = place.serve(&["vm.toml"]);
    assert!(server.uri.starts_with("nbd+unix:///?socket=/"), "{}", server.uri);
    assert!(server.uri.ends_with("/nbd.sock"), "{}", server.uri);
    let copied = std::process::Command::new("nbdcopy")
        .args([place.path("data").to_str().unwrap(), &server.uri])
        .status();
    assert!(copied.unwrap().success());
    let ran = server.interrupt();
    assert_eq!(ran.code, 0, "{ran:?}");
    for word in ["nbdcopy '", "qemu-system-x86_64 ", "nbd-client -unix '/", "control socket: /"] {
        assert!(ran.out.contains(word), "{word}: {ran:?}");
    }
    let said: Vec<&str> = ran.err.lines().collect();
    assert_eq!(said.len(), 3, "{ran:?}");
    assert!(said[0].contains(" INFO made ") && said[0].ends_with("/slow, 1M"), "{ran:?}");
    assert!(said[1].contains(" INFO made ") && said[1].ends_with("/fast, 256K"), "{ran:?}");
    assert_eq!(said[2], "cairn: disk: fast keeps 8 KiB that slow lacks");
    assert!(!place.exists("nbd.sock") && !place.exists("ctl.sock"));
    assert_eq!(place.cairn(&["probe", "fast"]).code, 5);
    let ran = place.serve_run(&["vm.toml"], "nbdcopy \"$uri\" - | head -c 8192 >back");
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(place.read("back"), [7; 8192]);
}

#[test]
fn the_quickstart_works_from_any_folder() {
    let place = Place::new();
    std::fs::create_dir(place.path("sub")).unwrap();
    let manifest = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let example = std::fs::read(manifest.join("../../examples/quickstart.toml")).unwrap();
    place.write("sub/quickstart.toml", example);
    let out = place.serve_run(&["sub/quickstart.toml"], "nbdinfo --size \"$uri\"; cairn ls").ok();
    assert_eq!(out, "1073741824\ndisk\n");
    assert!(place.exists("sub/slow.img") && place.exists("sub/fast.img"));
}

#[test]
fn read_only_writes_no_byte_to_a_dirty_cache() {
    let place = Place::new();
    place.sparse("origin", 1 << 20);
    place.sparse("cache", 256 << 10);
    place.write("data", [7; 8192]);
    let line = "0 2048 writecache s origin cache 4096 0";
    place.serve_run(&["--table", line], "nbdcopy --flush data \"$uri\"").ok();
    let before = (place.read("origin"), place.read("cache"));
    let script = "nbdinfo --is read-only \"$uri\" && nbdcopy \"$uri\" back; cairn info";
    let ran = place.serve_run(&["--read-only", "--table", line], script);
    assert!(ran.out.contains("(READ-ONLY)"), "{ran:?}");
    assert_eq!(place.read("back")[..8192], [7; 8192]);
    assert!((place.read("origin"), place.read("cache")) == before);
}

#[test]
fn exports_of_the_toml_file_are_the_only_ones() {
    let place = Place::new();
    place.write(
        "vm.toml",
        "default_export = 'ro'
         [[volume]]
         name = 'a'
         table = ['0 8 linear mem:8K 0', '8 8 zero']
         [[export]]
         name = 'rw'
         volume = 'a'
         [[export]]
         name = 'ro'
         volume = 'a'
         description = 'to look at'
         read_only = true",
    );
    let script = "nbdinfo --list --json \"$uri\" | grep -o '\"export-name\": \"[a-z]*\"'; \
                  nbdinfo --is read-only \"$uri\" && echo read-only";
    let out = place.serve_run(&["vm.toml"], script).ok();
    assert_eq!(out, "\"export-name\": \"rw\"\n\"export-name\": \"ro\"\nread-only\n");
}

#[test]
fn a_start_that_is_refused_names_the_key_or_the_folder() {
    let place = Place::new();
    place.write("vm.toml", "default_export = 'zz'\n[[volume]]\nname = 'a'\ntable = '0 8 zero'");
    let line = place.serve_run(&["vm.toml"], "true").refused(1);
    assert!(line.contains("default_export: found 'zz', expected one of a"), "{line}");
    let line = place.serve_run(&["--listen", "unix:no/s", "--table", "0 8 zero"], "true");
    let line = line.refused(1);
    assert!(line.contains("no/s: cannot listen: the folder of the socket does not"), "{line}");
}

#[test]
fn an_interrupt_ends_the_command_of_run_and_waits_for_it() {
    let script = "trap 'kill $!; echo ended; exit 3' TERM; echo ready; \
                  sleep 600 >/dev/null 2>&1 & wait";
    let server = Place::new().serve(&["--table", "0 8 zero", "--run", script]);
    assert_eq!(server.uri, "ready");
    let ran = server.interrupt();
    assert_eq!((ran.code, ran.out.as_str()), (3, "ended\n"), "{ran:?}");
}

#[test]
fn a_default_export_that_a_verb_took_away_is_waited_for() {
    let place = Place::new();
    let script = "cairn create vm --table '0 8 zero'; cairn create web --table '0 16 zero'";
    place.serve_run(&["--state", "s"], script).ok();
    let args = ["--state", "s", "--export", "vm"];
    let out = place.serve_run(&args, "nbdinfo --size \"$uri\"; cairn remove vm").ok();
    assert_eq!(out, "4096\n");
    let script = "cairn ls; nbdinfo --size \"$uri\" 2> no || echo none; \
                  cairn create vm --table '0 24 zero'; nbdinfo --size \"$uri\"";
    let ran = place.serve_run(&args, script);
    assert!(ran.err.contains("--export: found 'vm', expected one of web"), "{ran:?}");
    assert_eq!(ran.ok(), "web\nnone\n12288\n");
    // Nobody ever changed anything here: the name is wrong.
    place.serve_run(&["--state", "fresh", "--export", "vm"], "true").refused(1);
}

#[test]
fn the_empty_export_name_means_what_it_meant_at_the_start() {
    let place = Place::new();
    place.sparse("disk", 1 << 20);
    let script = "cairn snap create vm@a && nbdinfo --size \"$uri\" && cairn snap remove vm@a && \
                  cairn create web --table '0 24 zero' && nbdinfo --size \"$uri\"; \
                  cairn remove vm; nbdinfo --size \"$uri\" 2> no || echo none";
    let args = ["--state", "s", "--table", "vm=0 2048 linear disk 0"];
    assert_eq!(place.serve_run(&args, script).ok(), "1048576\n1048576\nnone\n");
    // Where nothing was, the first one that comes; of several, none.
    let script = "cairn create a --table '0 8 zero'; cairn create b --table '0 16 zero'; \
                  nbdinfo --size \"$uri\"";
    assert_eq!(place.serve_run(&["--state", "t"], script).ok(), "4096\n");
    let script = "cairn remove a; nbdinfo --size \"$uri\" 2> no || echo none";
    assert_eq!(place.serve_run(&["--state", "t"], script).ok(), "none\n");
}

#[test]
fn the_uri_by_name_is_told_beside_the_empty_one_if_volumes_may_come() {
    let place = Place::new();
    let uris = |args: &[&str]| {
        let ran = place.serve(args).interrupt();
        ran.out.lines().filter(|line| line.contains("by name: ")).count()
    };
    assert_eq!(uris(&["--state", "s", "--table", "vm=0 8 zero"]), 1);
    assert_eq!(uris(&["--table", "vm=0 8 zero"]), 0);
}

/// The end of a pipe that is full, and the other one, which nobody reads.
fn full_pipe() -> (std::io::PipeReader, std::io::PipeWriter) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let flags = rustix::fs::fcntl_getfl(&writer).unwrap();
    rustix::fs::fcntl_setfl(&writer, flags | rustix::fs::OFlags::NONBLOCK).unwrap();
    while std::io::Write::write(&mut writer, &[b'.'; 512]).is_ok() {}
    rustix::fs::fcntl_setfl(&writer, flags).unwrap();
    (reader, writer)
}

#[test]
fn a_server_goes_on_and_ends_although_its_log_cannot_be_written_or_nobody_reads_it() {
    let place = Place::new();
    let (_reader, writer) = full_pipe();
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    for log in [Stdio::from(full), Stdio::from(writer)] {
        let tables = ["--table", "e=0 8 error", "--table", "disk=0 2048 zero", "--export", "disk"];
        let sockets = ["--listen", "unix:n", "--control", "c", "--state", "s"];
        let mut command = place.command(&[&["serve"], &tables[..], &sockets].concat());
        let mut child = command.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut String::new()).unwrap();
        let failing = "nbd+unix:///e?socket=n";
        place.shell(&format!(
            "for n in 1 2 3 4; do qemu-io -f raw -c 'read 0 512' '{failing}'; done"
        ));
        place.shell("cairn create x --table '0 8 zero' && cairn remove x").ok();
        let status = signalled(&mut child, &[Signal::TERM]);
        assert_eq!(status.code(), Some(0));
    }
}

#[test]
fn a_signal_ends_a_start_that_waits_for_a_device() {
    let place = Place::new();
    place.sparse("slow", 1 << 20);
    place.sparse("cache", 256 << 10);
    // Reads of the cache take a day.
    let tables = ["fast=0 512 delay cache 0 86400000", "0 2048 writecache s slow @fast 4096 0"];
    let mut command = place.command(&["serve", "--table", tables[0], "--table", tables[1]]);
    command.args(["--run", "touch ran"]).env("TMPDIR", place.path("."));
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let tasks = format!("/proc/{}/task", child.id());
    // The volumes are being brought up.
    until(|| {
        let tasks = std::fs::read_dir(&tasks).unwrap();
        let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm"));
        let mut names = tasks.flatten().flat_map(name);
        names.any(|name| name == "start\n").then_some(())
    });
    let status = signalled(&mut child, &[Signal::TERM]);
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(status.code(), Some(1), "{said}");
    let line = "cairn: stopped: the start waits for a device: leaving without its volumes";
    assert!(said.lines().any(|own| own == line), "{said}");
    let mut left: Vec<_> = std::fs::read_dir(place.path(".")).unwrap().flatten().collect();
    left.retain(|entry| entry.file_name().as_encoded_bytes().starts_with(b"cairn-run-"));
    assert!(left.is_empty() && !place.path("ran").exists(), "{left:?}");
}
