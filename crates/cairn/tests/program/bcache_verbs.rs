//! What verbs of `cairn cache`, and `flush --detach`, refuse of the devices of bcache sets.

use super::place::Place;

#[test]
fn backing_device_that_belongs_to_no_set_is_not_detached_again() {
    let place = Place::new();
    place.golden("bcache", "wb_stop.cache");
    place.golden("bcache", "wb_stop.backing");
    let (with, alone) =
        ("0 N bcache wb_stop.backing wb_stop.cache 0", "0 N bcache wb_stop.backing - 0");
    place.cairn(&["flush", "--detach", "--table", with]).ok();
    let before = place.read("wb_stop.backing");
    for _ in 0..2 {
        let line = place.cairn(&["flush", "--detach", "--table", alone]).refused(1);
        let expected = "detach: wb_stop.backing: belongs to no set, so there is none to leave";
        assert!(line.contains(expected), "{line}");
    }
    let line = place.cairn(&["flush", "--detach", "--table", with]).refused(1);
    assert!(line.contains("wb_stop.backing: set_uuid: found none, expected "), "{line}");
    assert!(place.read("wb_stop.backing") == before, "a refusal writes nothing");
}

#[test]
fn attach_of_what_is_no_cache_device_of_bcache_says_so() {
    let place = Place::new();
    for name in ["one", "two", "cache"] {
        place.sparse(name, 64 << 20);
    }
    place.sparse("blank", 64 << 20);
    for (option, name) in [("--backing", "one"), ("--backing", "two"), ("--cache", "cache")] {
        place.cairn(&["format", "bcache", option, name]).ok();
    }
    let table = "v=0 131056 bcache one - 0";
    let args = ["--state", "state", "--table", table, "--table", "used=0 8 linear cache 0"];
    let script = "for device in two one blank cache; do cairn cache attach v $device; echo $?; \
                  done; cairn table v";
    let ran = place.serve_run(&args, script);
    assert_eq!(ran.out, format!("1\n1\n1\n4\n{}\n", &table["v=".len()..]), "{ran:?}");
    let of_backing = "superblock: found that of a backing device of bcache, expected that of a \
                      cache device (cairn format bcache --cache)\n";
    for device in ["two", "one"] {
        assert!(ran.err.contains(&format!("/{device}: {of_backing}")), "{ran:?}");
    }
    let of_blank = "/blank: superblock: found none, expected that of a \
                    cache device (cairn format bcache --cache)\n";
    assert!(ran.err.contains(of_blank), "{ran:?}");
    assert!(ran.err.lines().any(|line| line.contains("cache") && line.contains("used")), "{ran:?}");
}

/// A cache device that a client makes fail, and a volume with it.
const TABLES: [&str; 4] =
    ["--table", "c=0 N linear wb_stop.cache 0", "--table", "set=0 N bcache wb_stop.backing @c 0"];
/// The table of the volume without its cache.
const UNCACHED: &str = "0 16368 bcache wb_stop.backing - 0";

/// Drains the volume, makes its cache fail, and writes 64 KiB of sevens to it.
fn lose_cache() -> String {
    let sectors = "$(cairn table c | cut -d ' ' -f 1,2)";
    format!(
        "cairn cache flush set && cairn cache set set cache/io_error_limit=1 && \
         cairn replace c --table \"{sectors} error\" && \
         qemu-io -f raw -c 'read 0 1M' -c 'write -P 7 0 64k' -c flush $uri >/dev/null; \
         cairn table set"
    )
}

#[test]
fn volume_that_went_on_without_its_cache_starts_again_without_it() {
    let read = "qemu-io -r -f raw -c 'read -P 7 0 64k' $uri | grep -c failed";
    let args = [&["--state", "state", "--export", "set"][..], &TABLES].concat();
    for is_killed in [false, true] {
        let place = Place::new();
        place.golden("bcache", "wb_stop.cache");
        place.golden("bcache", "wb_stop.backing");
        let sockets = ["--control", "c", "--listen", "unix:s"];
        let server = place.serve(&[&args[..], &sockets].concat());
        let script = lose_cache().replace("$uri", &server.uri);
        assert_eq!(place.shell(&script).ok(), format!("{UNCACHED}\n"));
        if is_killed {
            let shown = "until cairn state show set | grep -q -e '- 0'; do sleep 0.05; done";
            place.shell(shown).ok();
            drop(server);
        } else {
            let ended = server.interrupt();
            assert_eq!(ended.code, 0, "{ended:?}");
        }
        // The cache is well again, and counts no more.
        place.cairn(&["state", "forget", "c", "--state", "state"]).ok();
        let ran = place.serve_run(&args, &format!("cairn table set; {read}"));
        assert_eq!(ran.out, format!("{UNCACHED}\n0\n"), "{is_killed}: {ran:?}");
    }
}

#[test]
fn volume_that_went_on_without_its_cache_gets_another_one_while_it_is_served() {
    let place = Place::new();
    place.golden("bcache", "wb_stop.cache");
    place.golden("bcache", "wb_stop.backing");
    place.sparse("new", 64 << 20);
    place.cairn(&["format", "bcache", "--cache", "new"]).ok();
    let args = [&["--state", "state", "--export", "set"][..], &TABLES].concat();
    let table = "cairn table set | sed \"s|$PWD/||\"";
    let read = "qemu-io -r -f raw -c 'read -P 7 0 64k' $uri | grep -c failed";
    let script = format!("{}; cairn cache attach set new; echo $?; {table}; {read}", lose_cache());
    let ran = place.serve_run(&args, &script);
    let with = "0 16368 bcache wb_stop.backing new 0";
    assert_eq!(ran.out, format!("{UNCACHED}\n0\n{with}\n0\n"), "{ran:?}");
    let ran = place.serve_run(&args, &format!("{table}; {read}"));
    assert_eq!(ran.out, format!("{with}\n0\n"), "{ran:?}");
}
