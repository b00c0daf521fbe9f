//! Who owns a device, as a script and a client see it: refusals with both names, exports that come
//! and go with claims, and clients in the way.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;

use super::place::Place;

const FOUR_MIB: u64 = 4 << 20;

/// Files `a` to `d`.
fn place() -> Place {
    let place = Place::new();
    ["a", "b", "c", "d"].iter().for_each(|name| place.sparse(name, FOUR_MIB));
    place
}

/// A client that is connected, as far as the server knows.
struct Client(UnixStream);

impl Client {
    fn connect(place: &Place, export: &str) -> Option<Client> {
        let mut stream = UnixStream::connect(place.path("cairn/nbd.sock")).unwrap();
        stream.read_exact(&mut [0; 18]).unwrap();
        let mut hello = vec![0, 0, 0, 3];
        hello.extend(b"IHAVEOPT\0\0\0\x01");
        hello.extend((export.len() as u32).to_be_bytes());
        hello.extend(export.as_bytes());
        stream.write_all(&hello).unwrap();
        stream.read_exact(&mut [0; 10]).ok()?;
        let mut client = Client(stream);
        client.flush().then_some(client)
    }

    /// True if a flush was answered with success.
    fn flush(&mut self) -> bool {
        let mut request = [0; 28];
        request[..4].copy_from_slice(&0x2560_9513_u32.to_be_bytes());
        request[7] = 3;
        let mut reply = [0; 16];
        let sent = self.0.write_all(&request);
        sent.and_then(|()| self.0.read_exact(&mut reply)).is_ok() && reply[4..8] == [0; 4]
    }
}

fn exports(place: &Place) -> String {
    let out = place.cairn(&["exports"]).ok();
    let mut names: Vec<&str> =
        out.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
    names.sort_unstable();
    names.join(" ")
}

#[test]
fn two_caches_on_one_device_are_refused_with_both_names() {
    let place = place();
    let one = "one=0 8192 writecache s a b 4096 0";
    let two = "two=0 8192 writecache s c b 4096 0";
    let line = place.serve_run(&["--table", one, "--table", two], "true").refused(4);
    assert_eq!(
        line,
        "cairn: two: b: in use as the cache device of volume 'one'; name another device, or \
         remove 'one' first\n"
    );
    place.serve_run(&["--table", one], "true").ok();
    let again = "two=0 8192 writecache s a b 4096 0";
    let look = ["--read-only", "--table", one, "--table", again];
    place.serve_run(&look, "true").ok(); // To look is free.
}

#[test]
fn two_pools_on_one_data_device_are_refused_with_both_names() {
    let place = place();
    let one = "one=0 8192 thin-pool a b 128 0";
    let two = "two=0 8192 thin-pool c b 128 0";
    let line = place.serve_run(&["--table", one, "--table", two], "true").refused(4);
    assert!(line.starts_with("cairn: two: b: in use as the data device of volume 'one'"), "{line}");
}

#[test]
fn a_stack_in_the_manner_of_dmsetup_needs_no_other_word() {
    let place = place();
    let tables = ["meta=0 2048 linear a 0", "data=0 8192 linear b 0"];
    let server = place.serve(&["--state", "state", "--table", tables[0], "--table", tables[1]]);
    assert_eq!(exports(&place), "data meta");
    let ran = place.cairn(&["create", "p", "--table", "0 8192 thin-pool @meta @data 128 0"]);
    let note = "cairn: p: export 'data' has ended: p uses its volume\n";
    assert!(ran.code == 0 && ran.err.contains(note), "{ran:?}");
    place.cairn(&["message", "p", "0", "create_thin", "0"]).ok();
    place.cairn(&["create", "t", "--table", "0 2048 thin @p 0"]).ok();
    assert_eq!(exports(&place), "t", "what the pool has is no longer exported");
    for table in ["0 8 linear @data 0", "0 8 linear b 0", "0 8 linear @p 0"] {
        let line = place.cairn(&["create", "x", "--table", table]).refused(4);
        assert!(line.contains("the data device of volume 'p'"), "{line}");
    }
    assert!(Client::connect(&place, "data").is_none());
    place.cairn(&["remove", "t"]).ok();
    place.cairn(&["remove", "p"]).ok();
    assert_eq!(exports(&place), "data meta", "they are free again");
    let ran = server.interrupt();
    assert!(ran.err.contains("data: no longer exported: 'p' uses it"), "{ran:?}");
    // The same stack from the start.
    let pool = "p=0 8192 thin-pool @meta @data 128 0";
    let args = ["--table", tables[0], "--table", tables[1], "--table", pool];
    let script = "cairn exports; cairn status p";
    assert!(place.serve_run(&args, script).ok().starts_with("0 8192 thin-pool "));
}

#[test]
fn a_volume_that_a_client_has_open_is_busy() {
    let place = place();
    let server = place.serve(&["--state", "state", "--table", "low=0 8192 linear a 0"]);
    let mut client = Client::connect(&place, "low").unwrap();
    let table = "0 8192 writecache s @low b 4096 0";
    let line = place.cairn(&["create", "c", "--table", table]).refused(4);
    assert!(line.starts_with("cairn: low: users: found clients that are connected"), "{line}");
    assert!(client.flush());
    assert_eq!(exports(&place), "low");
    drop(client);
    place.cairn(&["create", "c", "--table", table]).ok();
    assert_eq!(exports(&place), "c");
    server.interrupt();
}

#[test]
fn a_table_that_claims_a_used_device_is_refused_and_the_old_one_serves() {
    let place = place();
    let tables = ["one=0 8192 writecache s a b 4096 0", "v=0 8192 linear c 0"];
    let server = place.serve(&["--state", "state", "--table", tables[0], "--table", tables[1]]);
    let mut client = Client::connect(&place, "v").unwrap();
    place.cairn(&["load", "v", "--table", "0 8192 writecache s c b 4096 0"]).ok();
    let line = place.cairn(&["resume", "v"]).refused(4);
    assert!(line.starts_with("cairn: v: b: in use as the cache device of volume 'one'"), "{line}");
    assert!(client.flush(), "it waits for nothing");
    assert_eq!(place.cairn(&["table", "v"]).ok(), "0 8192 linear c 0\n");
    drop(client);
    server.interrupt();
    // What was refused is not what the next start brings up.
    let args = ["--state", "state", "--table", tables[0], "--table", tables[1]];
    assert_eq!(place.serve_run(&args, "cairn table v").ok(), "0 8192 linear c 0\n");
}

#[test]
fn a_volume_that_becomes_a_pool_is_no_longer_exported() {
    let place = place();
    let server = place.serve(&["--state", "state", "--table", "v=0 8192 linear c 0"]);
    let client = Client::connect(&place, "v").unwrap();
    place.cairn(&["load", "v", "--table", "0 8192 thin-pool a b 128 0"]).ok();
    place.cairn(&["resume", "v"]).refused(4);
    drop(client);
    place.cairn(&["resume", "v"]).ok();
    assert_eq!(exports(&place), "");
    place.cairn(&["load", "v", "--table", "0 8192 linear c 0"]).ok();
    place.cairn(&["resume", "v"]).ok();
    assert_eq!(exports(&place), "v");
    server.interrupt();
}

#[test]
fn an_external_origin_is_exported_to_be_read() {
    let place = place();
    let server = place.serve(&["--state", "state", "--table", "base=0 8192 linear c 0"]);
    place.cairn(&["pool", "create", "p", "--data", "b", "--metadata", "a"]).ok();
    let client = Client::connect(&place, "base").unwrap();
    place.cairn(&["thin", "create", "p/t", "4M", "--origin", "@base"]).refused(4);
    drop(client);
    place.cairn(&["thin", "create", "p/t", "4M", "--origin", "@base"]).ok();
    let read_only = || {
        let all: serde_json::Value =
            serde_json::from_str(&place.cairn(&["exports", "--json"]).ok()).unwrap();
        let all = all.as_array().unwrap();
        all.iter().find(|one| one["name"] == "base").unwrap()["read_only"].as_bool().unwrap()
    };
    assert!(read_only());
    let reader = Client::connect(&place, "base").unwrap();
    place.cairn(&["thin", "create", "p/u", "4M", "--origin", "@base"]).ok();
    drop(reader);
    place.cairn(&["thin", "remove", "u"]).ok();
    assert!(read_only());
    place.cairn(&["thin", "remove", "t"]).ok();
    assert!(!read_only());
    server.interrupt();
}

#[test]
fn what_a_line_only_reads_is_shared_by_readers_and_kept_from_writers() {
    let [first, second] = [place(), place()];
    let base = first.path("c").display().to_string();
    let clone = format!("v=0 8192 clone a b {base} 8 1 no_hydration");
    let args = ["--state", "state", "--table", &clone];
    let server = first.serve(&args);
    second.serve_run(&["--table", &clone], "true").ok();
    second.serve_run(&["--read-only", "--table", &format!("v=0 N linear {base} 0")], "true").ok();
    // A writer is refused, in another server and in this one.
    let linear = format!("w=0 N linear {base} 0");
    let line = second.serve_run(&["--table", &linear], "true").refused(4);
    assert!(line.contains("another process holds a read lock"), "{line}");
    let line = first.cairn(&["create", "w", "--table", "0 8 linear c 0"]).refused(4);
    assert_eq!(
        line,
        "cairn: w: c: in use by lines that only read it; name another device, or remove them \
         first\n"
    );
    server.interrupt();
    // What is being written is no source.
    let server = first.serve(&["--table", "w=0 N linear c 0"]);
    second.serve_run(&["--table", &clone], "true").refused(4);
    server.interrupt();
}

#[test]
fn removal_is_refused_while_clients_use_the_volume_unless_forced() {
    let place = place();
    let server = place.serve(&["--state", "state", "--table", "v=0 8192 linear c 0"]);
    place.cairn(&["pool", "create", "p", "--data", "b", "--metadata", "a"]).ok();
    place.cairn(&["thin", "create", "p/t", "4M"]).ok();
    place.cairn(&["snap", "create", "v@s"]).ok();
    place.cairn(&["snap", "create", "v@m"]).ok();
    place.cairn(&["create", "plain", "--table", "0 8 linear d 0"]).ok();
    for (verb, name) in [
        (&["snap", "remove"][..], "v@s"),
        (&["snap", "merge"], "v@m"),
        (&["thin", "remove"], "p/t"),
        (&["remove"], "plain"),
    ] {
        let export = name.trim_start_matches("p/");
        let mut client = Client::connect(&place, export).unwrap();
        let line = place.cairn(&[verb, &[name]].concat()).refused(4);
        assert!(line.contains("users: found clients that are connected"), "{line}");
        assert!(line.contains("--force disconnects them"), "{line}");
        assert!(client.flush());
        place.cairn(&[verb, &[name, "--force"]].concat()).ok();
        assert!(!client.flush(), "{name}: it was disconnected");
    }
    assert_eq!(exports(&place), "v");
    server.interrupt();
}
