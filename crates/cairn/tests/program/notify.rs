//! The messages to a service manager, and the writeback before the end.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use cairn_testkit::nbd::{Client, Wishes};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use super::place::{Place, signalled, until};

const WHERE: [&str; 4] = ["--listen", "unix:s", "--control", "c"];

/// Nothing is written back by itself.
const CACHE: &str = "vm=0 N writecache s slow fast 4096 4 high_watermark 100 low_watermark 100";

/// A service manager with one unit.
struct Manager {
    socket: UnixDatagram,
    told: Vec<String>,
}

impl Manager {
    fn at(place: &Place) -> Manager {
        Manager::of(UnixDatagram::bind(place.path("notify")).unwrap())
    }

    fn of(socket: UnixDatagram) -> Manager {
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Manager { socket, told: Vec::new() }
    }

    /// Waits for a message with this line; answers the message.
    fn hears(&mut self, line: &str) -> String {
        loop {
            let message = self.next();
            self.told.push(message.clone());
            if message.lines().any(|told| told == line) {
                return message;
            }
        }
    }

    fn next(&self) -> String {
        let mut bytes = [0; 4096];
        let length = self.socket.recv(&mut bytes);
        let length = length.unwrap_or_else(|error| panic!("{error}, after {:?}", self.told));
        String::from_utf8(bytes[..length].to_vec()).unwrap()
    }

    /// What was told and not heard yet.
    fn rest(&mut self) -> String {
        self.socket.set_nonblocking(true).unwrap();
        let mut bytes = [0; 4096];
        let mut all = String::new();
        while let Ok(length) = self.socket.recv(&mut bytes) {
            all.push_str(&String::from_utf8_lossy(&bytes[..length]));
            all.push('\n');
        }
        all
    }
}

/// A server under a manager, with its log in the file `log`.
fn start(place: &Place, notify: &str, args: &[&str]) -> Child {
    let mut command = place.command(&[&["serve"], &WHERE[..], args].concat());
    command.env("NOTIFY_SOCKET", notify);
    spawn(place, command)
}

fn spawn(place: &Place, mut command: Command) -> Child {
    let log = fs::File::create(place.path("log")).unwrap();
    command.stdout(Stdio::null()).stderr(log).spawn().unwrap()
}

fn log(place: &Place) -> String {
    fs::read_to_string(place.path("log")).unwrap()
}

fn stop(server: &mut Child) -> ExitStatus {
    signalled(server, &[Signal::TERM])
}

fn client(place: &Place) -> Client {
    Client::open(&place.path("s"), "", Wishes::default())
}

#[test]
fn manager_is_told_of_readiness_of_dirty_data_and_of_the_stop() {
    let place = Place::new();
    let mut manager = Manager::at(&place);
    place.sparse("slow", 16 << 20);
    place.sparse("fast", 8 << 20);
    let notify = place.path("notify").display().to_string();
    let args = ["--table", CACHE, "--table", "other=0 8 zero"];
    let mut server = start(&place, &notify, &[&args[..], &["--export", "vm"]].concat());
    let ready = manager.hears("READY=1");
    assert!(ready.contains("STATUS=serving 2 volumes, 0 B dirty"), "{ready}");
    // The exports are open by then.
    let mut client = client(&place);
    client.write(0, 0, &[7; 1 << 20]);
    manager.hears("STATUS=serving 2 volumes, 1.00 MiB dirty");
    drop(client);
    assert!(stop(&mut server).success(), "{}", log(&place));
    manager.hears("STOPPING=1");
    assert!(place.cairn(&["probe", "fast"]).out.contains("dirty: 256 of"));
}

#[test]
fn manager_is_found_by_an_abstract_name_and_commands_do_not_speak_to_it() {
    let place = Place::new();
    let name = format!("cairn-{}", place.path("x").display());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let mut manager = Manager::of(UnixDatagram::bind_addr(&address).unwrap());
    let notify = format!("@{name}");
    let run = ["--table", "0 8 zero", "--run", "test -z \"${NOTIFY_SOCKET+x}\""];
    let mut server = start(&place, &notify, &run);
    assert!(server.wait().unwrap().success(), "{}", log(&place));
    manager.hears("READY=1");
}

#[test]
fn manager_that_is_gone_keeps_nothing_from_being_served() {
    let place = Place::new();
    let gone = place.path("gone").display().to_string();
    let mut server = start(&place, &gone, &["--table", "0 8 zero", "--run", "true"]);
    assert!(server.wait().unwrap().success(), "{}", log(&place));
}

#[test]
fn upgrade_makes_the_new_process_the_main_one() {
    let place = Place::new();
    let mut manager = Manager::at(&place);
    place.sparse("disk", 1 << 20);
    let notify = place.path("notify").display().to_string();
    let mut server = start(&place, &notify, &["--table", "0 2048 linear disk 0"]);
    manager.hears("READY=1");

    place.cairn(&["upgrade", "--control", "c", "--program", "/bin/false"]).refused(1);
    let reloading = manager.hears("RELOADING=1");
    assert!(reloading.contains("MONOTONIC_USEC="), "{reloading}");
    let ready = manager.hears("READY=1");
    assert!(!ready.contains("MAINPID"), "the upgrade was refused: {ready}");

    place.cairn(&["upgrade", "--control", "c"]).ok();
    manager.hears("RELOADING=1");
    let pid = place.pid_at("c").unwrap();
    let moved = manager.hears(&format!("MAINPID={pid}"));
    assert!(moved.contains("READY=1"), "{moved}");
    assert!(until(|| server.try_wait().unwrap()).success());

    let successor = Pid::from_raw(pid).unwrap();
    kill_process(successor, Signal::TERM).unwrap();
    manager.hears("STOPPING=1");
    until(|| test_kill_process(successor).is_err().then_some(()));
}

#[test]
fn stop_writes_back_if_it_is_asked_to() {
    for file in [false, true] {
        let place = Place::new();
        let mut manager = Manager::at(&place);
        place.sparse("slow", 16 << 20);
        place.sparse("fast", 8 << 20);
        // A cache on a volume that is a cache: the lower one is dirty only once the upper one is
        // written back. A suspended volume keeps what is dirty.
        place.sparse("faster", 8 << 20);
        place.sparse("own", 8 << 20);
        place.sparse("disk", 8 << 20);
        let upper = "top=0 N writecache s @vm faster 4096 4 high_watermark 100 low_watermark 100";
        let kept = "kept=0 N writecache s disk own 4096 4 high_watermark 100 low_watermark 100";
        let text = "drain_on_stop = true\n[[volume]]\nname = 'z'\ntable = '0 8 zero'\n";
        place.write("vm.toml", text);
        let how = if file { "vm.toml" } else { "--drain-on-stop" };
        let notify = place.path("notify").display().to_string();
        let mut server =
            start(&place, &notify, &[how, "--table", CACHE, "--table", upper, "--table", kept]);
        manager.hears("READY=1");
        let open = |export: &str| Client::open(&place.path("s"), export, Wishes::default());
        open("top").write(0, 0, &[7; 1 << 20]);
        open("kept").write(0, 0, &[7; 4096]);
        place.cairn(&["suspend", "kept", "--control", "c"]).ok();
        assert!(stop(&mut server).success(), "{}", log(&place));
        assert_eq!(place.read("slow")[..1 << 20], [7; 1 << 20], "{}", log(&place));
        for cache in ["fast", "faster"] {
            assert!(place.cairn(&["probe", cache]).out.contains("clean: 0 of"), "{cache}");
        }
        assert!(place.cairn(&["probe", "own"]).out.contains("dirty: 1 of"));
        assert!(log(&place).contains("kept: flush: the device is suspended"), "{}", log(&place));
        let told = manager.rest();
        assert!(told.contains("EXTEND_TIMEOUT_USEC="), "{told}");
        assert!(told.contains("STATUS=stopping, 1.00 MiB to write back"), "{told}");
    }
}

#[test]
fn second_signal_ends_the_writeback_and_commits_what_is_done() {
    let place = Place::new();
    place.sparse("disk", 16 << 20);
    place.sparse("fast", 8 << 20);
    let slow = "slow=0 32768 delay disk 0 0 disk 0 300";
    let cache = "vm=0 N writecache s @slow fast 4096 6 high_watermark 100 low_watermark 100 \
                 writeback_jobs 1";
    let args = ["serve", "--table", slow, "--table", cache, "--export", "vm", "--drain-on-stop"];
    let mut command = place.command(&[&args[..], &WHERE[..]].concat());
    let mut server = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(server.stderr.take().unwrap()).lines().map(Result::unwrap);
    until(|| place.pid_at("c"));
    let mut client = client(&place);
    for block in 0..256 {
        // Apart from each other, so that each is a request of its own.
        client.write(0, block * 65536, &[7; 4096]);
    }
    drop(client);
    let pid = Pid::from_child(&server);
    kill_process(pid, Signal::TERM).unwrap();
    assert!(lines.any(|line| line.ends_with("to write back")));
    // Two at once count as one.
    std::thread::sleep(Duration::from_millis(100));
    kill_process(pid, Signal::TERM).unwrap();
    assert!(lines.any(|line| line.ends_with("a signal: the rest is not written back")));
    let rest: Vec<_> = lines.collect();
    assert!(server.wait().unwrap().success(), "{rest:?}");
    let probed = place.cairn(&["probe", "fast"]).out;
    assert!(probed.contains("dirty: ") && probed.contains("sound"), "{probed}");
}
