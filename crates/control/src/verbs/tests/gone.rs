//! A verb whose caller hangs up while the verb waits for its turn: it leaves, and nothing has
//! changed.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::yield_now;

use cairn_exports::unix_socket::SocketRights;
use serde_json::{Value, json};

use super::half_way::full_house;
use super::{HangsUp, begin, end};
use crate::control::server::{Answer, ControlServer};
use crate::reach::Named;
use crate::verbs::snap::tests::{Patient, TestServer, folders};

fn until_waiting(server: &TestServer, count: usize) {
    while server.verbs.turns.waiting() != count {
        yield_now();
    }
}

/// Every verb that takes a turn, with good parameters, and how its error names it.
fn verbs() -> Vec<(&'static str, Value, &'static str)> {
    let pool = json!({"name": "q", "data": "q.data", "metadata": "q.meta"});
    vec![
        ("export_add", json!({"volume": "v", "name": "again"}), "v: export add"),
        ("export_remove", json!({"name": "v"}), "v: export remove"),
        ("state_forget", json!({"name": "v", "yes": true}), "v: state forget"),
        ("volume_suspend", json!({"name": "v"}), "v: suspend"),
        ("volume_resume", json!({"name": "v"}), "v: resume"),
        ("volume_replace", json!({"name": "e", "table": "0 512 linear other 0"}), "e: replace"),
        ("volume_resize", json!({"name": "e", "size_bytes": 512}), "e: resize"),
        ("volume_load", json!({"name": "e", "table": "0 512 linear other 0"}), "e: load"),
        ("volume_clear", json!({"name": "e"}), "e: clear"),
        ("volume_create", json!({"name": "f", "table": "0 8 linear @v 0"}), "f: create"),
        ("volume_remove", json!({"name": "e"}), "e: remove"),
        ("snap_create", json!({"name": "v@tue"}), "v: snap create"),
        ("snap_list", json!({"name": "v"}), "v: snap list"),
        ("snap_diff", json!({"name": "v@mon"}), "v: snap diff"),
        ("snap_rollback", json!({"name": "v@mon"}), "v: snap rollback"),
        ("snap_merge", json!({"name": "v@mon"}), "v: snap merge"),
        ("snap_remove", json!({"name": "v@mon"}), "v: snap remove"),
        ("snap_grow", json!({"name": "v@mon", "size_bytes": 2 << 20}), "v: snap grow"),
        ("pool_create", pool, "q: pool create"),
        ("pool_grow", json!({"name": "p", "data_bytes": 8 << 20}), "p: pool grow"),
        ("thin_create", json!({"name": "p/u", "size_bytes": 512}), "u: thin create"),
        ("thin_snapshot", json!({"name": "t@tue"}), "t@tue: thin snapshot"),
        ("thin_rollback", json!({"name": "t@mon"}), "t: thin rollback"),
        ("thin_remove", json!({"name": "t@mon"}), "t@mon: thin remove"),
        ("thin_remove", json!({"name": "p/thin-9"}), "p: thin remove"),
        ("thin_rename", json!({"name": "t", "to": "w"}), "t: thin rename"),
        ("thin_rename", json!({"name": "p/thin-9", "to": "w"}), "w: thin rename"),
    ]
}

#[test]
fn a_verb_whose_caller_goes_before_its_turn_comes_does_nothing() {
    let (_all, work, _) = folders();
    let server = Arc::new(full_house(&work));
    let (files, state) = (server.files(), fs::read(work.join("state")).unwrap());
    let tables = || {
        let volumes = server.world.volumes();
        let line = |name: &str| (name.to_owned(), server.world.printed(name).unwrap());
        volumes.iter().map(|volume| line(volume.volume())).collect::<Vec<_>>()
    };
    let before = tables();
    let all = Named::volume("v").and("e").and("f").and("p").and("q").with_export_names();
    let turn = server.verbs.change(&all, "test", &Patient).unwrap();
    for (method, params, what) in verbs() {
        let gone = Arc::new(AtomicBool::new(false));
        let hangs_up = HangsUp(gone.clone());
        let answered = begin(&server, move |server| server.verbs.answer(method, params, &hangs_up));
        until_waiting(&server, 1);
        gone.store(true, Ordering::Relaxed);
        let line = end(&answered).unwrap_err().message;
        assert_eq!(line, format!("{what}: interrupted by its caller"));
    }
    assert_eq!(server.verbs.turns.waiting(), 0);
    drop(turn);
    assert!(before == tables() && !server.is_suspended("v"));
    assert!(files == server.files() && state == fs::read(work.join("state")).unwrap());
}

#[test]
fn callers_that_hang_up_while_their_verbs_wait_leave_the_control_socket_to_others() {
    /// The most connections there may be.
    const MOST: usize = 64;
    let (_all, work, _) = folders();
    let server = TestServer::fresh(&work, "v=0 1024 linear disk 0");
    server.verbs.create("e", "0 8 zero").unwrap();
    let path = work.join("control");
    let _control = ControlServer::start(&path, SocketRights::OWNER, server.verbs.clone()).unwrap();
    let ask = |method: &str| {
        let mut stream = UnixStream::connect(&path).unwrap();
        let line = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": {"name": "e"}});
        drop(writeln!(stream, "{line}"));
        stream
    };
    let turn = server.verbs.change(&Named::volume("e"), "test", &Patient).unwrap();
    let callers: Vec<UnixStream> = (0..MOST).map(|_| ask("volume_remove")).collect();
    until_waiting(&server, MOST);
    drop(callers);
    until_waiting(&server, 0);
    let mut answer = String::new();
    while !answer.contains("result") {
        answer.clear();
        // Refused until the connections have ended, too.
        drop(BufReader::new(ask("volume_info")).read_line(&mut answer));
    }
    drop(turn);
    assert!(server.has("e"));
}
