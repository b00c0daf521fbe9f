//! Bad input: one line that names the device, the field, what was found and what was expected;
//! the documented exit code; and no byte written.

use super::place::Place;

const LINE: &str = "0 2048 writecache s origin cache 4096 0";

/// An origin of 1 MiB and an empty cache with 63 blocks.
fn place() -> Place {
    let place = Place::new();
    place.sparse("origin", 1 << 20);
    place.sparse("cache", 256 << 10);
    place.cairn(&["format", "writecache", "cache"]).ok();
    place
}

/// Serves `table` and expects a refusal that leaves both images as they were.
fn refused(place: &Place, table: &str) -> String {
    let before = (place.read("origin"), place.read("cache"));
    let line = place.serve_run(&["--table", table], "true").refused(1);
    assert!((place.read("origin"), place.read("cache")) == before, "bytes changed: {line}");
    let says = ["found ", "expected "].iter().all(|word| line.contains(word));
    assert!(says || line.contains("; `cairn ls` lists them"), "{line}");
    line
}

#[test]
fn a_wrong_superblock_is_refused_with_the_field() {
    let cases: [(usize, &[u8], &str); 5] = [
        (0, b"ABCD", "c: superblock magic: found 0x44434241, expected 0x23489321"),
        (4, &[2], "superblock version: found 2, expected 1"),
        (8, &[0, 8], "superblock block size: found 2048 bytes, expected 4096"),
        (8, &[1, 1], "superblock block size: found 257 bytes, expected 4096"),
        (16, &[0], "superblock n_blocks: found 0, expected at least 1"),
    ];
    for (offset, bytes, expected) in cases {
        let place = place();
        place.patch("cache", offset, bytes);
        let line = refused(&place, LINE);
        assert!(line.contains(expected.trim_start_matches("c: ")), "{line}");
        assert!(line.contains("cache: "), "{line}");
    }
}

#[test]
fn more_blocks_than_fit_are_damage() {
    let place = place();
    place.patch("cache", 16, &[0xff, 0xff]);
    let before = place.read("cache");
    let ran = place.serve_run(&["--table", LINE], "true");
    assert!(ran.refused(1).contains("n_blocks 65535 needs 269484032 bytes"));
    assert!(place.read("cache") == before);
}

#[test]
fn an_entry_beyond_the_origin_is_damage() {
    let place = place();
    place.patch("cache", 24, &[5]);
    place.patch("cache", 64, &[0, 0x10, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    let line = refused(&place, LINE);
    assert!(line.contains("entry 0 original_sector: found 4096"), "{line}");
    let ran = place.cairn(&["check", "cache", "--origin", "origin"]);
    assert_eq!(ran.code, 2);
    assert!(ran.out.contains("expected a block within the origin's 2048 sectors"), "{ran:?}");
}

#[test]
fn devices_too_small_for_their_tables_are_refused() {
    let place = place();
    place.patch("cache", 0, &[0x21]);
    std::fs::OpenOptions::new()
        .write(true)
        .open(place.path("cache"))
        .and_then(|file| file.set_len(4096))
        .unwrap();
    let line = place.serve_run(&["--table", LINE], "true").refused(1);
    assert!(line.contains("the device has 4096"), "{line}");
    let place = self::place();
    place.sparse("origin", 512 << 10);
    let line = refused(&place, LINE);
    assert!(line.contains("origin: size: found 1024 sectors, expected at least"), "{line}");
}

#[test]
fn wrong_table_lines_are_refused_with_the_word() {
    let cases = [
        ("0 2048 writecache s origin cache 4096", "#options: found nothing"),
        ("0 2048 writecache s origin cache 4096 1", "#options: found 1"),
        ("0 2048 writecache s origin cache 4096 1 frob", "option: found 'frob'"),
        ("0 2048 writecache x origin cache 4096 0", "found 'x'"),
        ("0 2048 linear origin", "offset: found nothing"),
        ("0 2048 linear origin 1", "origin: linear offset: found 1"),
        ("0 2048 linear origin 0 frob", "found 'frob'"),
        ("0 2048 frob", "target: found 'frob'"),
        ("x 2048 zero", "start: found x"),
        ("8 8 zero", "start: found 8, expected 0"),
        ("0 0 zero", "length: found 0"),
        ("0 8 linear /tmp 0", "path: found a directory"),
        ("0 8 linear @nope 0", "nope: there is no volume"),
        ("0 8 linear mem:1Q 0", "size: found '1Q'"),
        ("a/b=0 8 zero", "name: found 'a/b'"),
        ("a@b=0 8 zero", "name: found 'a@b', expected a name without '@'"),
        ("self=0 8 linear @self 0", "self: table: found a loop through '@self', expected other"),
        ("", "lines: found none"),
    ];
    let place = place();
    for (table, expected) in cases {
        let line = refused(&place, table);
        assert!(line.contains(expected), "{table}: {line}");
    }
}

#[test]
fn a_missing_file_is_named_with_what_was_expected() {
    let line = Place::new().serve_run(&["--table", "0 8 linear nofile 0"], "true").refused(1);
    let expected = "nofile: there is no file or block device of this name";
    assert!(line.contains(expected), "{line}");
    let line = Place::new().cairn(&["serve", "nofile.toml"]).refused(1);
    assert!(line.contains("nofile.toml: read: there is no such file or folder"), "{line}");
}

#[test]
fn a_failed_message_stops_the_start() {
    let place = place();
    let args = ["--table", LINE, "--message", "default 0 frob"];
    let line = place.serve_run(&args, "touch ran").refused(1);
    assert!(line.contains("found 'frob'"), "{line}");
    assert!(!place.exists("ran"));
    let line = place.serve_run(&["--table", LINE, "--message", "nope 0 x"], "true").refused(1);
    assert!(line.contains("nope: there is no volume"), "{line}");
}

#[test]
fn a_device_that_another_process_holds_is_busy() {
    let place = place();
    let script = "cairn serve --table '0 8 linear origin 0' --listen unix:second.sock --run true;
                  echo $?; cairn probe cache >&2; echo $?; cairn format writecache cache --yes;
                  echo $?; cairn serve --table '0 8 zero' --listen unix:first.sock --run true;
                  echo $?; cairn serve --table '0 8 zero' --control control.sock --run true;
                  echo $?";
    let args = ["--table", LINE, "--listen", "unix:first.sock", "--control", "control.sock"];
    let ran = place.serve_run(&args, script);
    assert_eq!(ran.out, "4\n4\n4\n4\n4\n", "{ran:?}");
    let lines: Vec<_> = ran.err.lines().collect();
    assert_eq!(lines.len(), 5, "five refusals: {ran:?}");
    assert!(lines[0].contains("origin: in use: another process holds a lock; end"), "{ran:?}");
    assert!(lines[3].contains("first.sock: found a server listening"), "{ran:?}");
    assert!(lines[4].contains("control.sock: found a server listening"), "{ran:?}");
}

#[test]
fn wrong_usage_is_one_line_and_code_1() {
    let place = Place::new();
    let cases: [&[&str]; 8] = [
        &[],
        &["frob"],
        &["serve"],
        &["serve", "--listen", "x", "--table", "0 8 zero"],
        &["serve", "--export", "nope", "--table", "0 8 zero"],
        &["serve", "nofile.toml"],
        &["probe"],
        &["status"],
    ];
    for args in cases {
        place.cairn(args).refused(1);
    }
}
