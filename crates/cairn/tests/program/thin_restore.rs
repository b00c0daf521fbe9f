//! restore: what it does to the device that it writes to when all does not go well.

use super::place::Place;

#[test]
fn what_is_restored_over_stays_until_there_is_something_to_write() {
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
