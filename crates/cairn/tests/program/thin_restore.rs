//! restore: what it does to the device that it writes to when all does not go well.

use std::process::{Child, Stdio};

use rustix::process::Signal;

use super::place::{Place, signalled, until};

/// A restore to a new file out of a pipe in which nothing comes. It has made the file.
fn waiting(place: &Place) -> Child {
    let mut command = place.command(&["restore", "-", "--output", "new"]);
    let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    until(|| place.exists("new").then_some(()));
    child.unwrap()
}

#[test]
fn the_output_of_a_restore_is_unchanged_until_the_first_write() {
    let place = Place::new();
    place.golden("thin", "basic.meta");
    place.golden("thin", "big.thin_dump.xml");
    let (before, xml) = (place.read("basic.meta"), place.read("big.thin_dump.xml"));
    place.write("empty.xml", "");
    place.write("cut.xml", &xml[..xml.len() - 20]);
    for text in ["empty.xml", "cut.xml"] {
        let args = ["restore", text, "--output", "basic.meta", "--yes"];
        place.cairn(&args).refused(1);
        assert!(place.read("basic.meta") == before, "{text}");
    }
    place.cairn(&["restore", "big.thin_dump.xml", "--output", "basic.meta", "--yes"]).ok();
    assert!(place.cairn(&["dump", "basic.meta"]).ok().into_bytes() == xml);
}

#[test]
fn the_xml_itself_is_not_restored_over() {
    let place = Place::new();
    place.golden("thin", "big.thin_dump.xml");
    let xml = place.read("big.thin_dump.xml");
    std::os::unix::fs::symlink("big.thin_dump.xml", place.path("other")).unwrap();
    for output in ["big.thin_dump.xml", "other"] {
        let args = ["restore", "big.thin_dump.xml", "--output", output, "--yes"];
        let line = place.cairn(&args).refused(1);
        assert!(line.contains("--output: found the XML itself, expected another file"), "{line}");
        assert!(place.read("big.thin_dump.xml") == xml);
    }
}

#[test]
fn a_restore_stops_though_nothing_comes_and_takes_its_file_away() {
    let place = Place::new();
    let mut child = waiting(&place);
    assert_eq!(signalled(&mut child, &[Signal::INT]).code(), Some(1));
    assert!(!place.exists("new"));
}

#[test]
fn a_second_signal_takes_the_file_away_too() {
    let place = Place::new();
    let mut child = waiting(&place);
    assert!(!signalled(&mut child, &[Signal::INT, Signal::TERM]).success());
    assert!(!place.exists("new"));
}

#[test]
fn an_error_names_what_is_to_be_mended() {
    let place = Place::new();
    for name in ["snaps.meta", "big.meta", "big.thin_dump.xml"] {
        place.golden("thin", name);
    }
    place.sparse("empty", 0);
    place.sparse("tiny", 8 * 4096);
    for output in ["empty", "tiny"] {
        let expected = format!("cairn: {output}: metadata device: found ");
        let line = place.cairn(&["restore", "big.thin_dump.xml", "--output", output]).refused(1);
        assert!(line.starts_with(&expected), "{line}");
        let line = place.cairn(&["repair", "big.meta", "--output", output]).refused(1);
        assert!(line.starts_with(&expected), "{line}");
    }
    place.write("held.xml", place.cairn(&["dump", "snaps.meta", "--metadata-snapshot"]).ok());
    let line = place.cairn(&["restore", "held.xml", "--output", "none"]).refused(1);
    assert!(line.contains("data blocks below 0; --data-blocks says how many there are"), "{line}");
    let args = ["restore", "held.xml", "--output", "new", "--data-blocks", "32"];
    place.cairn(&args).ok();
}
