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
