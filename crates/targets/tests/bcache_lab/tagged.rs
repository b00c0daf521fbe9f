//! Contents whose sectors say what they are: a tag and the number of the sector, as the golden
//! images of power losses have them.

use std::ops::Range;

use super::Lab;
use cairn_testkit::image;

/// Sectors of a volume in a row whose text has one tag.
pub type Run = (String, Range<u64>);

pub fn run(tag: &str, range: Range<u64>) -> Run {
    (tag.to_owned(), range)
}

/// The runs of a content, each sector of which is its text: a tag and its own number.
pub fn runs(content: &[u8]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (number, sector) in (0..).zip(content.chunks(512)) {
        let tag = String::from_utf8_lossy(&sector[..4]).into_owned();
        let text = format!("{tag} {number:010x}\n").repeat(32);
        assert!(sector == text.as_bytes(), "sector {number}: {tag}");
        match runs.last_mut() {
            Some((last, range)) if *last == tag => range.end += 1,
            _ => runs.push((tag, number..number + 1)),
        }
    }
    runs
}

/// What sectors of the volume read as that were written with this tag.
pub fn text(tag: &str, range: Range<u64>) -> Vec<u8> {
    range.flat_map(|number| format!("{tag} {number:010x}\n").repeat(32).into_bytes()).collect()
}

/// A pair of golden images.
pub fn pair(cache: &str, backing: &str) -> Lab {
    Lab::new(9, Some(image("bcache", cache)), Some(image("bcache", backing)))
}

/// What a volume of 16368 sectors reads as.
pub fn read(lab: &Lab, words: &str) -> Vec<Run> {
    let volume = lab.open(&format!("0 16368 bcache {words}"), true);
    let content = lab.read_all(&volume);
    lab.close(&volume);
    runs(&content)
}
