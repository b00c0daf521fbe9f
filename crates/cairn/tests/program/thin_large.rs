//! The tools on the metadata of a pool with a million mappings: in bounded memory, and as it comes.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::FileExt as _;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, prlimit};

use super::place::Place;

const MAPPINGS: u64 = 1_000_000;
/// What a program may write to in its memory, stacks of threads and all.
const MEMORY_BYTES: u64 = 64 << 20;

/// Runs the program with so much memory, its output in a file.
fn bounded(place: &Place, args: &[&str]) {
    let mut command = place.command(args);
    let mut child = command.stdout(File::create(place.path("out")).unwrap()).spawn().unwrap();
    let limit = Rlimit { current: Some(MEMORY_BYTES), maximum: Some(MEMORY_BYTES) };
    prlimit(Some(Pid::from_child(&child)), Resource::Data, limit).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{args:?}");
}

#[test]
fn a_million_mappings_take_bounded_memory() {
    let place = Place::new();
    place.pool_xml("xml", MAPPINGS);
    let tools: [&[&str]; 7] = [
        &["restore", "xml", "--output", "meta"],
        &["check", "meta"],
        &["dump", "meta"],
        &["dump", "meta", "--json"],
        &["rmap", "meta"],
        &["rmap", "meta", "--json"],
        &["repair", "meta", "--output", "mended"],
    ];
    tools.into_iter().for_each(|args| bounded(&place, args));
}

#[test]
fn a_dump_is_printed_before_the_rest_is_read() {
    let place = Place::new();
    place.pool_xml("xml", MAPPINGS);
    place.cairn(&["restore", "xml", "--output", "meta"]).ok();
    let mut command = place.command(&["dump", "meta"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    // Leaves that are far away from what a full pipe lets it read ahead.
    let file = File::options().write(true).open(place.path("meta")).unwrap();
    file.write_all_at(&vec![0xEE; 1000 * 4096], 2500 * 4096).unwrap();
    let output = child.wait_with_output().unwrap();
    let line = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{line}");
    assert!(output.stdout.ends_with(b"/>\n") && output.stdout.len() > 1 << 20, "{line}");
}

#[test]
fn a_long_dump_prints_its_progress() {
    let place = Place::new();
    place.pool_xml("xml", 200_000);
    place.cairn(&["restore", "xml", "--output", "meta"]).ok();
    assert_eq!(place.cairn(&["check", "meta"]).err, "");
    let mut command = place.command(&["dump", "meta"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut xml = child.stdout.take().unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap());
    // A slow reader: the dump has not ended when it says how far it is.
    let reader = std::thread::spawn(move || {
        let mut piece = [0; 4 << 10];
        while xml.read(&mut piece).unwrap() > 0 {
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    reader.join().unwrap();
    let mut words = line.strip_prefix("cairn: dump: ").unwrap().split_whitespace();
    let (done, of, total) = (words.next().unwrap(), words.next(), words.next().unwrap());
    let number = |word: &str| word.parse::<u64>().unwrap();
    assert!(0 < number(done) && number(done) < number(total), "{line}");
    assert!(of == Some("of") && words.next() == Some("blocks,"), "{line}");
}
