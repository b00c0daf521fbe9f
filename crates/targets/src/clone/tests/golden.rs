//! Clones that a real kernel made.

use std::time::Duration;

use cairn_sim::Image;
use cairn_testkit::{image, manifest};
use sha2::{Digest, Sha256};

use super::fixture::{CloneFixture, SECTORS};
use crate::fixture::{Fixture, OneVolume};

fn opened(name: &str, destination: &[u8], table: &str) -> CloneFixture {
    let drives = [
        ("meta", image("clone", name)),
        ("dest", destination.to_vec()),
        ("src", image("clone", "partly.src")),
    ];
    let drives = drives.map(|(name, bytes)| (name, Image::of_bytes(&bytes)));
    let test = CloneFixture(OneVolume::of(Fixture::new(drives)));
    test.load(table);
    test
}

#[test]
fn content_and_status_are_the_kernels() {
    let mut seen = 0;
    for record in manifest("clone") {
        let (Some(sha256), Some(name)) = (record["sha256"].as_str(), record["meta"].as_str())
        else {
            continue;
        };
        let destination = image("clone", record["destination"].as_str().unwrap());
        let paused = "0 1003 clone meta dest src 8 1 no_hydration";
        let test = opened(name, &destination, paused);
        let sum = Sha256::digest(test.all());
        let sum: String = sum.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(sum, sha256);
        let status = test.target().status();
        assert!(status.starts_with(record["status"].as_str().unwrap()), "{status}");
        seen += 1;
    }
    assert!(seen > 0);
}

#[test]
fn what_the_kernel_began_is_hydrated_to_the_end() {
    let destination = image("clone", "partly.dest");
    let test = opened("partly.meta", &destination, "0 1003 clone meta dest src 8");
    let before = test.all();
    test.run(Duration::from_secs(5));
    assert_eq!((test.hydrated(), test.durable_bits().hydrated()), (126, 126));
    assert_eq!((test.contents("dest"), test.all()), (before.clone(), before));
    assert_eq!(SECTORS, 1003);
}
