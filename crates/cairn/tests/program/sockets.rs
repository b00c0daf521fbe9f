//! Sockets: who may connect, and who opens them.

use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command, Stdio};

use cairn_testkit::nbd::{Client, Wishes};
use rustix::process::Signal;

use super::place::{Place, signalled, until};

#[test]
fn sockets_have_the_mode_that_their_options_ask_for() {
    let place = Place::new();
    let nbd = format!("unix:{},mode=0666", place.path("n").display());
    let control = format!("{},mode=0640", place.path("c").display());
    let vhost = format!("vhost-user-blk:{},mode=0604", place.path("v").display());
    let args = ["--table", "0 8 zero", "--listen", &nbd, "--control", &control, "--export", &vhost];
    let server = place.serve(&args);
    let mode = |name| std::fs::metadata(place.path(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("n"), mode("c"), mode("v")), (0o666, 0o640, 0o604));
    assert_eq!(server.interrupt().code, 0);
    assert!(!place.exists("n") && !place.exists("c") && !place.exists("v"));
}

#[test]
fn group_of_the_toml_file_may_connect() {
    let place = Place::new();
    let group = std::fs::metadata(place.path("")).unwrap().gid();
    let text =
        format!("listen = 'unix:n,group={group}'\n[[volume]]\nname = 'v'\ntable = '0 8 zero'");
    place.write("vm.toml", text);
    let server = place.serve(&["vm.toml"]);
    let found = std::fs::metadata(place.path("n")).unwrap();
    assert_eq!((found.gid(), found.permissions().mode() & 0o777), (group, 0o660));
    assert_eq!(server.interrupt().code, 0);
}

#[test]
fn rights_that_make_no_sense_are_refused_before_anything_is_made() {
    let place = Place::new();
    let serve = |option: &str, text: &str| {
        place.cairn(&["serve", "--table", "0 8 zero", option, text]).refused(1)
    };
    let line = serve("--listen", "unix:n,mode=rw");
    assert_eq!(line, "cairn: n: mode: found 'rw', expected an octal number from 0 to 0777\n");
    let line = serve("--listen", "unix:n,group=no-such-group");
    assert!(
        line.starts_with("cairn: n: group: found 'no-such-group', expected the name"),
        "{line}"
    );
    assert!(serve("--control", "c,colour=red").contains("found 'colour=red', expected PATH[,mode"));
    assert!(!place.exists("n") && !place.exists("c"));
}

/// A server with its descriptors 3 and 4 as another program opened them; `variables` are set.
fn activated(place: &Place, fds: [OwnedFd; 2], variables: &str, words: &str) -> Child {
    let like = place.command(&[]);
    let mut shell = Command::new("sh");
    let script = format!("exec env LISTEN_PID=$$ {variables} cairn serve {words} 3<&0 4<&1");
    let [third, fourth] = fds;
    shell.args(["-c", &format!("{script} </dev/null >out 2>err")]);
    shell.current_dir(place.path("")).stdin(Stdio::from(third)).stdout(Stdio::from(fourth));
    shell.envs(like.get_envs().filter_map(|(key, value)| Some((key, value?))));
    shell.spawn().unwrap()
}

fn said(place: &Place, name: &str) -> String {
    String::from_utf8(place.read(name)).unwrap()
}

#[test]
fn sockets_that_another_program_opened_are_served_and_stay() {
    let place = Place::new();
    let (nbd, control) = (place.path("n"), place.path("c"));
    let fds = [&control, &nbd].map(|path| OwnedFd::from(UnixListener::bind(path).unwrap()));
    std::fs::set_permissions(&control, std::fs::Permissions::from_mode(0o600)).unwrap();
    let variables = "LISTEN_FDS=2 LISTEN_FDNAMES=control:disk";
    let mut server = activated(&place, fds, variables, "--table '0 2048 zero'");
    let mut client = Client::open(&nbd, "", Wishes::default());
    assert_eq!(client.read(0, 512), [0; 512]);
    let exports = place.cairn(&["--control", "c", "exports", "--json"]).ok();
    assert!(
        exports.contains(&format!("nbd+unix:///default?socket={}", nbd.display())),
        "{exports}"
    );
    drop(client);
    assert!(signalled(&mut server, &[Signal::TERM]).success(), "{}", said(&place, "err"));
    assert_eq!(said(&place, "out"), "", "stdout belongs to the program that opened the sockets");
    assert!(!place.exists("cairn/nbd.sock") && !place.exists("cairn/control.sock"));
    assert!(place.exists("n") && place.exists("c"), "their paths are not the server's");
}

#[test]
fn other_addresses_are_served_beside_the_sockets_that_were_opened() {
    let place = Place::new();
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = tcp.local_addr().unwrap().port();
    let unix = UnixListener::bind(place.path("n")).unwrap();
    let fds = [OwnedFd::from(tcp), OwnedFd::from(unix)];
    // The second is one that was opened, too.
    let words = "--table '0 8 zero' --listen unix:own --listen unix:n --run 'env; \
                 nbdinfo --size nbd+unix:///?socket=own; nbdinfo --size nbd+unix:///?socket=n; \
                 nbdinfo --size nbd://127.0.0.1:PORT; readlink /proc/self/fd/* | \
                 grep -c socket: || true'";
    let words = words.replace("unix:n", &format!("unix:{}", place.path("n").display()));
    let words = words.replace("PORT", &port.to_string());
    let mut server = activated(&place, fds, "LISTEN_FDS=2", &words);
    assert!(server.wait().unwrap().success(), "{}", said(&place, "err"));
    let out = said(&place, "out");
    assert!(out.ends_with("\n4096\n4096\n4096\n0\n"), "the command has no socket: {out}");
    assert!(!out.contains("LISTEN_"), "{out}");
    assert!(place.exists("n") && !place.exists("own"));
}

#[test]
fn descriptors_that_do_not_listen_are_refused_on_one_line() {
    let place = Place::new();
    let refused = |fd: OwnedFd, variables: &str| {
        let spare = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let mut server = activated(&place, [fd, spare], variables, "--table '0 8 zero'");
        assert_eq!(server.wait().unwrap().code(), Some(1));
        let err = said(&place, "err");
        assert_eq!(err.lines().count(), 1, "{err}");
        err
    };
    let file = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let line = refused(file(), "LISTEN_FDS=1");
    assert!(line.contains("descriptor 3: LISTEN_FDS: found a descriptor that is no socket"));
    let stream = OwnedFd::from(UnixStream::pair().unwrap().0);
    assert!(refused(stream, "LISTEN_FDS=1").contains("found a socket that does not listen"));
    let listener = |name: &str| OwnedFd::from(UnixListener::bind(place.path(name)).unwrap());
    assert!(refused(listener("a"), "LISTEN_FDS=700").contains("descriptor 4: LISTEN_FDS: found"));
    assert!(refused(listener("b"), "LISTEN_FDS=x").contains("LISTEN_FDS: sockets: found 'x'"));
    let open = listener("open");
    std::fs::set_permissions(place.path("open"), PermissionsExt::from_mode(0o666)).unwrap();
    let line = refused(open, "LISTEN_FDS=1 LISTEN_FDNAMES=control");
    assert!(line.contains("control mode: found 0666, expected 0600"), "{line}");
    let tcp = OwnedFd::from(TcpListener::bind("127.0.0.1:0").unwrap());
    let line = refused(tcp, "LISTEN_FDS=1 LISTEN_FDNAMES=control");
    assert!(line.contains("with the name 'control', expected one unix socket of this name"));
}

#[test]
fn sockets_for_another_process_are_not_touched() {
    let place = Place::new();
    let fd = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let variables = "LISTEN_FDS=1 LISTEN_PID=1";
    let mut server = activated(&place, [fd(), fd()], variables, "--table '0 8 zero' --run true");
    assert!(server.wait().unwrap().success(), "{}", said(&place, "err"));
}

#[test]
fn upgrade_hands_over_sockets_that_another_program_opened() {
    let place = Place::new();
    let (nbd, control) = (place.path("n"), place.path("c"));
    let fds = [&control, &nbd].map(|path| OwnedFd::from(UnixListener::bind(path).unwrap()));
    std::fs::set_permissions(&control, std::fs::Permissions::from_mode(0o600)).unwrap();
    place.sparse("disk", 1 << 20);
    let variables = "LISTEN_FDS=2 LISTEN_FDNAMES=control";
    let mut server = activated(&place, fds, variables, "--table '0 2048 linear disk 0'");
    let mut client = Client::open(&nbd, "", Wishes::default());
    assert_eq!(client.read(0, 512), [0; 512]);
    let ask = |args: &[&str]| place.cairn(&[&["--control", "c"], args].concat());
    for _ in 0..2 {
        ask(&["upgrade"]).ok();
        assert_eq!(client.read(0, 512), [0; 512]);
        drop(Client::open(&nbd, "", Wishes::default()));
    }
    assert!(!place.exists("cairn/nbd.sock") && !place.exists("cairn/control.sock"));
    until(|| server.try_wait().unwrap());
    let pid = place.pid_at("c").unwrap();
    drop(client);
    place.shell(&format!("kill {pid}")).ok();
    until(|| UnixStream::connect(&nbd).is_err().then_some(()));
    assert!(place.exists("n") && place.exists("c"), "their paths are not the server's");
}

#[test]
fn folder_of_a_service_has_the_default_sockets() {
    let place = Place::new();
    let folder = place.path("run");
    std::fs::create_dir(&folder).unwrap();
    let mode = |mode| std::fs::set_permissions(&folder, PermissionsExt::from_mode(mode)).unwrap();
    // The sockets have rights of their own.
    mode(0o755);
    let mut server = place.command(&["serve", "--table", "0 8 zero"]);
    server.env("RUNTIME_DIRECTORY", format!("{}:/elsewhere", folder.display()));
    let mut server = server.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    until(|| place.exists("run/control.sock").then_some(()));
    assert!(place.exists("run/nbd.sock") && !place.exists("cairn"));
    // A client may be part of another service.
    let mut ls = place.command(&["ls"]);
    let ls = ls.env("RUNTIME_DIRECTORY", &folder).env_remove("CAIRN_CONTROL").output().unwrap();
    assert!(!ls.status.success(), "{ls:?}");
    let mut ls = place.command(&["ls", "--control", "run/control.sock"]);
    assert_eq!(ls.output().unwrap().stdout, b"default\n");
    assert!(signalled(&mut server, &[Signal::TERM]).success());
    // Others could put sockets of their own there.
    mode(0o775);
    let mut server = place.command(&["serve", "--table", "0 8 zero"]);
    let refused = server.env("RUNTIME_DIRECTORY", &folder).output().unwrap();
    let line = String::from_utf8(refused.stderr).unwrap();
    let expected = "mode 775, expected a folder that only this user can write to";
    assert!(line.contains(expected), "{line}");
}
