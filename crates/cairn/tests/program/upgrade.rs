//! Another program goes on with the volumes and the clients of a server.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::{Child, Stdio};

use cairn_testkit::nbd::{Client, Wishes};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use super::place::{Place, Ran, until};

/// Nothing is committed before a flush.
const CACHE: &str = "vm=0 N writecache s slow fast 4096 \
                     4 autocommit_blocks 1000000 autocommit_time 3600000";

const WHERE: [&str; 4] = ["--listen", "unix:s", "--control", "c"];

/// What a program says that can start.
pub const HELLO: &str = "printf '{\"hello\":{\"protocol\":1,\"version\":\"x\"}}' >&0";

/// A server that may be replaced by others; the last one is ended when this is dropped.
pub struct Serving<'a> {
    place: &'a Place,
    first: Child,
}

impl<'a> Serving<'a> {
    pub fn start(place: &'a Place, args: &[&str]) -> Serving<'a> {
        let all = [&["serve"], &WHERE[..], args].concat();
        let log = fs::File::create(place.path("log")).unwrap();
        let mut command = place.command(&all);
        command.stdout(fs::File::create(place.path("out")).unwrap()).stderr(log);
        let first = command.spawn().unwrap();
        let serving = Serving { place, first };
        until(|| {
            (fs::read_to_string(place.path("out")).unwrap().contains("control")).then_some(())
        });
        serving
    }

    pub fn ask(&self, args: &[&str]) -> Ran {
        self.place.cairn(&[&["--control", "c"], args].concat())
    }

    pub fn upgrade(&self, args: &[&str]) -> Ran {
        self.ask(&[&["upgrade"], args].concat())
    }

    /// The process that serves.
    pub fn pid(&self) -> Option<i32> {
        self.place.pid_at("c")
    }

    fn client(&self, export: &str) -> Client {
        Client::open(&self.place.path("s"), export, Wishes::default())
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.place.path("log")).unwrap()
    }
}

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        let pid = self.pid().and_then(Pid::from_raw);
        if let Some(pid) = pid {
            let _ = kill_process(pid, Signal::TERM);
            // A process of another parent.
            until(|| {
                drop(self.first.try_wait());
                test_kill_process(pid).is_err().then_some(())
            });
        }
        drop(self.first.kill());
        drop(self.first.wait());
    }
}

fn place() -> Place {
    let place = Place::new();
    place.sparse("slow", 8 << 20);
    place.sparse("fast", 1 << 20);
    place
}

/// A program of a few lines.
pub fn script(place: &Place, lines: &str) {
    place.write("other", format!("#!/bin/sh\n{lines}\n"));
    fs::set_permissions(place.path("other"), fs::Permissions::from_mode(0o755)).unwrap();
}

/// A write as bytes, and its cookie.
fn write(client: &mut Client, offset: u64, data: &[u8], cut: usize) -> (Vec<u8>, u64) {
    use cairn_exports::nbd::wire::{REQUEST_MAGIC, command};
    let cookie = 1 << 40 | offset;
    let mut bytes = REQUEST_MAGIC.to_be_bytes().to_vec();
    bytes.extend([0; 2]);
    bytes.extend(command::WRITE.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    client.stream.write_all(&bytes[..cut]).unwrap();
    (bytes.split_off(cut), cookie)
}

#[test]
fn clients_go_on_within_a_request() {
    let place = place();
    let serving = Serving::start(&place, &["--table", CACHE, "--state", "state"]);
    let mut client = serving.client("vm");
    let mut pids = vec![serving.pid().unwrap()];
    let cuts = [1, 27, 28, 29, 28 + 4096, 28 + 20_000, 28 + 65_535, 28 + 65_536];
    for (round, cut) in cuts.into_iter().enumerate() {
        let (offset, data) = ((round as u64) << 16, vec![round as u8 + 1; 1 << 16]);
        let (rest, cookie) = write(&mut client, offset, &data, cut);
        serving.upgrade(&[]).ok();
        client.stream.write_all(&rest).unwrap();
        let reply = client.reply(0);
        assert_eq!((reply.cookie, reply.error), (cookie, 0), "cut at {cut}");
        pids.push(serving.pid().unwrap());
        for before in 0..=round {
            let at = (before as u64) << 16;
            assert_eq!(client.read(at, 1 << 16), vec![before as u8 + 1; 1 << 16]);
        }
    }
    pids.sort_unstable();
    pids.dedup();
    assert_eq!(pids.len(), 1 + cuts.len(), "each is another process");
    assert_eq!(serving.client("vm").read(0, 512), [1; 512], "new clients come, too");
    let second = place.cairn(&["check", "slow"]);
    assert!(second.refused(4).contains("in use"), "the devices are locked");
    let second = place.cairn(&["serve", "--state", "state", "--run", "true"]);
    assert!(second.refused(4).contains("another server"), "the state file is locked");
}

#[test]
fn program_that_cannot_go_on_changes_nothing() {
    let place = place();
    let serving = Serving::start(&place, &["--table", CACHE]);
    let (mut client, pid) = (serving.client("vm"), serving.pid());
    let refused = |lines: &str, why: &str| {
        script(&place, lines);
        let said = serving.upgrade(&["--program", "./other"]);
        assert!(said.err.contains(why), "{said:?}");
        assert_ne!(said.code, 0);
        assert_eq!(serving.pid(), pid);
    };
    refused("exit 1", "it ended before it could say whether it can start");
    refused("printf '{\"refused\":{\"reason\":\"no room\"}}' >&0; exit 1", "refused: no room");
    refused(
        "printf '{\"hello\":{\"protocol\":2,\"version\":\"9.9\"}}' >&0; exec sleep 1000",
        "9.9",
    );
    refused("printf nonsense >&0; exec sleep 1000", "nonsense");
    fs::remove_file(place.path("other")).unwrap();
    serving.upgrade(&["--program", "./other"]).refused(1);
    assert_eq!(client.write(0, 0, &[1; 512]), 0);
    serving.upgrade(&[]).ok();
    assert_eq!(client.read(0, 512), [1; 512]);
}

#[test]
fn server_starts_itself_again_if_the_other_program_ends_with_everything() {
    let place = place();
    let serving = Serving::start(&place, &["--table", CACHE, "--state", "state"]);
    let mut client = serving.client("vm");
    let pid = serving.pid();
    // The last one is the program itself, which fails when its volumes are up.
    let fails = format!("exec {} \"$@\" --export none", env!("CARGO_BIN_EXE_cairn"));
    let ends = ["sleep 0.2; exit 1", "kill -9 $$", "exec sleep 1000"];
    let ends = ends.map(|end| format!("{HELLO}; {end}"));
    for (round, lines) in ends.iter().chain([&fails]).enumerate() {
        script(&place, lines);
        let data = vec![round as u8 + 1; 4096];
        let (rest, _) = write(&mut client, 4096 * round as u64, &data, 2000);
        let said = serving.upgrade(&["--program", "./other"]);
        assert!(said.err.contains("the program of before starts again"), "{said:?}");
        client.stream.write_all(&rest).unwrap();
        assert_eq!(client.reply(0).error, 0);
        until(|| serving.pid().filter(|now| Some(*now) == pid));
        assert_eq!(client.read(4096 * round as u64, 4096), data);
    }
    serving.upgrade(&[]).ok();
    assert_ne!(serving.pid(), pid);
    assert_eq!(client.read(0, 512), [1; 512]);
}

#[test]
fn configuration_that_no_start_would_take_is_refused_before_anything_changes() {
    let place = place();
    let good = "[[volume]]\nname = \"vm\"\ntable = \"0 N linear slow 0\"\n";
    place.write("a.toml", good);
    let serving = Serving::start(&place, &["a.toml"]);
    let (mut client, pid) = (serving.client("vm"), serving.pid());
    for (bad, why) in [
        ("volume = 1", "line 1"),
        ("[[volume]]\nname = \"vm\"\ntable = \"0 N lineal slow 0\"\n", "lineal"),
        ("[[volume]]\nname = \"vm\"\ntable = \"0 N linear slow\"\n", "offset"),
        // The options name the other addresses.
        (&format!("metrics = \"udp:9\"\n{good}"), "found 'udp:9'"),
    ] {
        place.write("a.toml", bad);
        let said = serving.upgrade(&[]);
        assert!(said.err.contains(why), "{said:?}");
        said.refused(1);
        assert_eq!(serving.pid(), pid);
        assert_eq!(client.write(0, 0, &[1; 512]), 0);
    }
    place.write("a.toml", format!("state = \"other\"\n{good}"));
    assert!(serving.upgrade(&[]).refused(1).contains("state file: found"));
    place.write("a.toml", good);
    serving.upgrade(&[]).ok();
    assert_eq!(client.read(0, 512), [1; 512]);
}

#[test]
fn content_that_would_be_lost_is_refused() {
    let place = place();
    let table = "vm=0 2048 linear mem:1M 0";
    let serving = Serving::start(&place, &["--table", table]);
    let said = serving.upgrade(&[]);
    assert!(said.err.contains("mem:1M: upgrade: found memory"), "{said:?}");
    said.refused(1);
    let ran = place.serve_run(&["--table", CACHE], "cairn --control \"$CAIRN_CONTROL\" upgrade");
    assert!(ran.err.contains("started for one command"), "{ran:?}");
    assert_eq!(ran.code, 1);
}

#[test]
fn every_kind_of_volume_goes_on() {
    let place = place();
    for (name, mib) in [("data", 16), ("meta", 2), ("backing", 16), ("set", 40)] {
        place.sparse(name, mib << 20);
    }
    let format = ["format", "bcache", "--cache", "set", "--backing", "backing", "--yes"];
    place
        .cairn(&[&format[..], &["--bucket-size", "64K", "--cache-mode", "writeback"]].concat())
        .ok();
    let tables = [
        CACHE,
        "pool=0 32768 thin-pool meta data 128 0 0",
        "thin=0 16384 thin @pool 0",
        "disk=0 N bcache backing set 0",
    ];
    let mut args: Vec<&str> = Vec::new();
    for table in &tables {
        if table.starts_with("thin=") {
            args.extend(["--message", "pool 0 create_thin 0"]);
        }
        args.extend(["--table", table]);
    }
    let serving = Serving::start(&place, &args);
    let mut clients = ["vm", "thin", "disk"].map(|name| serving.client(name));
    for round in 1..=3 {
        for client in &mut clients {
            assert_eq!(client.write(0, u64::from(round) << 16, &[round; 8192]), 0);
        }
        serving.upgrade(&[]).ok();
        for client in &mut clients {
            for before in 1..=round {
                assert_eq!(client.read(u64::from(before) << 16, 8192), [before; 8192]);
            }
        }
    }
    assert!(serving.log().contains("message left out: pool: device 0"), "{}", serving.log());
}

#[test]
fn snapshot_that_lives_as_long_as_the_server_goes_on() {
    let place = place();
    place.sparse("cow", 1 << 20);
    let args = ["--table", "vm=0 N snapshot slow cow N 8"];
    let serving = Serving::start(&place, &args);
    let mut client = serving.client("vm");
    for round in 1..=3 {
        assert_eq!(client.write(0, u64::from(round) << 16, &[round; 8192]), 0);
        serving.upgrade(&[]).ok();
        for before in 1..=round {
            assert_eq!(client.read(u64::from(before) << 16, 8192), [before; 8192]);
        }
    }
}

#[test]
fn what_verbs_have_made_goes_on() {
    let place = place();
    let args = ["--state", "st", "--table", "vm=0 N linear slow 0"];
    let serving = Serving::start(&place, &args);
    serving.ask(&["snap", "create", "vm@now"]).ok();
    let pool = ["pool", "create", "p", "--data", "d", "--metadata", "m", "--data-size", "16M"];
    serving.ask(&[&pool[..], &["--metadata-size", "4M"]].concat()).ok();
    serving.ask(&["thin", "create", "p/t", "8M"]).ok();
    serving.ask(&["thin", "snapshot", "t@now"]).ok();
    let mut clients = ["vm", "t"].map(|name| serving.client(name));
    let mut snapshots = ["vm@now", "t@now"].map(|name| serving.client(name));
    for round in 1..=3 {
        for client in &mut clients {
            assert_eq!(client.write(0, u64::from(round) << 16, &[round; 8192]), 0);
        }
        serving.upgrade(&[]).ok();
        for before in 1..=round {
            let at = u64::from(before) << 16;
            for client in &mut clients {
                assert_eq!(client.read(at, 8192), [before; 8192]);
            }
            for snapshot in &mut snapshots {
                assert_eq!(snapshot.read(at, 8192), [0; 8192]);
            }
        }
    }
}

#[test]
fn verbs_of_a_server_that_has_left_change_nothing() {
    let place = place();
    let serving = Serving::start(&place, &["--table", CACHE]);
    let mut open = UnixStream::connect(place.path("c")).unwrap();
    serving.upgrade(&[]).ok();
    let ask = r#"{"jsonrpc":"2.0","id":1,"method":"volume_list"}"#;
    let mut said = String::new();
    drop(writeln!(open, "{ask}").and_then(|()| BufReader::new(open).read_line(&mut said)));
    assert!(said.is_empty() || said.contains("being upgraded"), "{said}");
    assert_eq!(serving.ask(&["ls"]).ok(), "vm\n");
}

#[test]
fn signal_that_comes_during_an_upgrade_ends_the_server_that_comes_of_it() {
    let program = env!("CARGO_BIN_EXE_cairn");
    let fails = format!("{HELLO}; touch begun; sleep 0.5; exit 1");
    let goes_on = format!("touch begun; sleep 0.5; exec {program} \"$@\"");
    for lines in [&fails, &goes_on] {
        let place = place();
        let mut serving = Serving::start(&place, &["--table", CACHE]);
        let mut client = serving.client("vm");
        assert_eq!(client.write(0, 0, &[1; 4096]), 0);
        script(&place, lines);
        let upgrade = ["--control", "c", "upgrade", "--program", "./other"];
        let mut asks = place.command(&upgrade);
        let mut asks = asks.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        until(|| place.exists("begun").then_some(()));
        kill_process(Pid::from_child(&serving.first), Signal::TERM).unwrap();
        assert_eq!(until(|| serving.first.try_wait().unwrap()).code(), Some(0));
        drop(asks.wait());
        until(|| serving.pid().is_none().then_some(()));
        let read = "qemu-io -r -f raw -c 'read -P 1 0 4k' \"$uri\"";
        let ran = place.serve_run(&["--table", CACHE], read);
        assert!(ran.code == 0 && !ran.out.contains("failed"), "{ran:?}");
    }
}

#[test]
fn stores_grow_by_themselves_after_an_upgrade_that_was_called_off() {
    let place = place();
    let serving = Serving::start(&place, &["--table", "vm=0 N linear slow 0", "--state", "state"]);
    serving.ask(&["snap", "create", "vm@a", "--size", "1M", "--grow", "1M"]).ok();
    script(&place, &format!("{HELLO}; exec sleep 1000"));
    // A client whose request does not end.
    let mut client = serving.client("vm");
    serving.ask(&["suspend", "vm"]).ok();
    let (_, cookie) = write(&mut client, 0, &[1; 4096], 28 + 4096);
    let said = serving.upgrade(&["--program", "./other"]);
    assert!(said.err.contains("requests that do not end"), "{said:?}");
    serving.ask(&["resume", "vm"]).ok();
    assert_eq!((client.reply(0).cookie, serving.ask(&["ls"]).code), (cookie, 0));
    let size = || fs::metadata(place.path("vm@a.cow")).unwrap().len();
    let before = size();
    for at in 1..64 {
        assert_eq!(client.write(0, at << 16, &[2; 1 << 16]), 0);
    }
    until(|| (size() > before).then_some(()));
}

#[test]
fn addresses_that_no_start_would_take_are_refused_before_anything_changes() {
    let place = place();
    let volume = "[[volume]]\nname = \"vm\"\ntable = \"0 N linear slow 0\"\n";
    let good = format!("listen = \"unix:s\"\ncontrol = \"c\"\n{volume}");
    place.write("a.toml", &good);
    let mut server = place.command(&["serve", "a.toml"]).stdout(Stdio::null()).spawn().unwrap();
    until(|| place.exists("c").then_some(()));
    let mut client = Client::open(&place.path("s"), "vm", Wishes::default());
    for (bad, why) in [
        ("listen = \"unix:s,mode=0888\"\ncontrol = \"c\"", "mode: found '0888'"),
        ("listen = \"unix:s\"\ncontrol = \"c,group=there-is-none\"", "there-is-none"),
    ] {
        place.write("a.toml", format!("{bad}\n{volume}"));
        let said = place.cairn(&["--control", "c", "upgrade"]);
        assert!(said.err.contains(why), "{said:?}");
        said.refused(1);
        assert_eq!(client.write(0, 0, &[1; 512]), 0);
    }
    let pid = i32::try_from(server.id()).unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::TERM).unwrap();
    assert!(server.wait().unwrap().success());
}
