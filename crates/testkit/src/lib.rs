//! Test data and helpers for several crates: the golden images and the fuzzers' seeds, skipping of
//! tests, files that fail as drives do, an NBD client, and a driver of vhost-user. A missing or
//! damaged file fails the test that asks for it. A program that the machine lacks skips the test,
//! by the rule of `scripts/test`.

mod failing_files;
#[cfg(feature = "mutations")]
mod mutations;
#[cfg(feature = "nbd")]
pub mod nbd;

#[expect(missing_docs, reason = "most names are the protocol's")]
pub mod vhost;

pub use failing_files::{FailingFiles, Faults};
#[cfg(feature = "mutations")]
pub use mutations::{Mutation, mutate, mutations};

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A golden image of a format, unpacked, by its name without `.gz`: `image("thin", "snaps.meta")`.
pub fn image(format: &str, name: &str) -> Vec<u8> {
    let path = packed(format, name);
    let file = fs::File::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(file).read_to_end(&mut bytes).expect(name);
    bytes
}

/// True if this golden image exists.
pub fn has_image(format: &str, name: &str) -> bool {
    packed(format, name).exists()
}

/// The manifest of a format: an object for each of its images.
pub fn manifest(format: &str) -> Vec<serde_json::Value> {
    let text = fs::read_to_string(golden(format).join("manifest.json")).expect(format);
    let records: Vec<serde_json::Value> = serde_json::from_str(&text).expect(format);
    assert!(!records.is_empty(), "{format}");
    records
}

/// The seeds of a fuzzer, sorted by name.
pub fn seeds(fuzzer: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(fuzzer);
    let files = fs::read_dir(folder).expect(fuzzer);
    let mut paths: Vec<PathBuf> = files.map(|file| file.expect(fuzzer).path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "{fuzzer}");
    paths.into_iter().map(|path| fs::read(path).expect(fuzzer)).collect()
}

/// Waits for an event that must come; the limit only ends a test that has failed.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(60), "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Reports that a test is skipped because a program is missing; with `CAIRN_TEST_NO_SKIP=1` that is
/// a failure.
pub fn skip(reason: &str) {
    let strict = std::env::var("CAIRN_TEST_NO_SKIP").is_ok_and(|value| value == "1");
    assert!(!strict, "SKIP: {reason}, and CAIRN_TEST_NO_SKIP=1");
    eprintln!("SKIP: {reason}");
}

fn packed(format: &str, name: &str) -> PathBuf {
    golden(format).join(format!("{name}.gz"))
}

fn golden(format: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../format/tests/golden").join(format)
}
