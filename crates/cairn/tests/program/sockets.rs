//! Sockets: who may connect, and who opens them.

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use super::place::Place;

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
