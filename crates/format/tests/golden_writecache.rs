//! Caches that a real kernel wrote, decoded: content, counts, verdicts and exact bytes.

use cairn_format::writecache::check::{Finding, Limits, Report, Severity, check};
use cairn_format::writecache::{
    BlockSize, ENTRY_BYTES, Entry, EntryState, Geometry, Opening, SUPERBLOCK_BYTES, Superblock,
};
use cairn_testkit::{image, manifest};
use sha2::{Digest, Sha256};

/// The manifest's entry for one cache.
struct Golden {
    cache: String,
    origin: String,
    block_size: u32,
    start_sector: usize,
    sectors: u64,
    n_blocks: u64,
    free: u64,
    sha256: String,
}

/// Every image of the manifest.
fn goldens() -> Vec<Golden> {
    manifest("writecache").iter().map(golden).collect()
}

fn golden(record: &serde_json::Value) -> Golden {
    let text = |key: &str| record[key].as_str().expect("the manifest has the key").to_owned();
    let number = |key: &str| record[key].as_u64().expect("the manifest has the number");
    let opts = text("opts");
    let start_sector = opts
        .strip_prefix("2 start_sector ")
        .map_or(0, |n| n.parse().expect("a start sector is a number"));
    Golden {
        cache: text("cache"),
        origin: text("origin"),
        block_size: u32::try_from(number("block_size")).expect("a block size is small"),
        start_sector,
        sectors: number("sectors"),
        n_blocks: number("n_blocks"),
        free: number("free"),
        sha256: text("sha256"),
    }
}

/// A cache opened as a target opens it, without recovery.
struct Opened {
    area: Vec<u8>,
    superblock: Superblock,
    geometry: Geometry,
}

impl Opened {
    fn new(cache: &str, start_sector: usize, block_size: u32) -> Opened {
        let area = image("writecache", cache).split_off(start_sector * 512);
        let block_size = BlockSize::new(block_size).expect("the manifest has legal block sizes");
        let Opening::Existing(superblock) =
            Opening::decide(&area, block_size).expect("the golden caches open")
        else {
            panic!("{cache} is formatted");
        };
        let geometry =
            Geometry::of_superblock(&superblock, area.len() as u64).expect("the golden caches fit");
        Opened { area, superblock, geometry }
    }

    fn entries(&self) -> impl Iterator<Item = (u64, Entry)> + '_ {
        self.geometry.entries_in(0, &self.area)
    }

    fn slot(&self, slot: u64) -> &[u8] {
        let begin =
            usize::try_from(self.geometry.slot_offset(slot)).expect("the golden images are small");
        &self.area[begin..begin + self.geometry.block_size().bytes() as usize]
    }

    /// The origin, overwritten with the newest committed block of every sector.
    fn content(&self, mut origin: Vec<u8>) -> Vec<u8> {
        let mut committed: Vec<(u64, Entry)> = self
            .entries()
            .filter(|(_, entry)| entry.state(self.superblock.seq()) == EntryState::Committed)
            .collect();
        committed.sort_by_key(|(_, entry)| entry.seq);
        for (slot, entry) in committed {
            let begin =
                usize::try_from(entry.original_sector).expect("the golden images are small") * 512;
            let data = self.slot(slot);
            origin[begin..begin + data.len()].copy_from_slice(data);
        }
        origin
    }

    fn check(&self, sectors: u64) -> Report {
        let limits = Limits {
            area_bytes: Some(self.area.len() as u64),
            origin_sectors: Some(sectors),
            target_sectors: Some(sectors),
        };
        check(&self.area, self.entries().map(|(_, entry)| entry), limits)
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn every_cache_reads_as_the_kernel_read_it() {
    for golden in goldens() {
        let opened = Opened::new(&golden.cache, golden.start_sector, golden.block_size);
        assert_eq!(opened.geometry.n_blocks(), golden.n_blocks, "{}", golden.cache);
        assert_eq!(opened.entries().count() as u64, golden.n_blocks, "{}", golden.cache);
        let content = opened.content(image("writecache", &golden.origin));
        assert_eq!(content.len() as u64, golden.sectors * 512);
        assert_eq!(hex(&Sha256::digest(&content)), golden.sha256, "{}", golden.cache);
    }
}

#[test]
fn the_checker_counts_the_free_slots_the_kernel_counted() {
    for golden in goldens() {
        let opened = Opened::new(&golden.cache, golden.start_sector, golden.block_size);
        let report = opened.check(golden.sectors);
        assert_eq!(report.counts.free_after_recovery(), golden.free, "{}", golden.cache);
        let dirty = golden.n_blocks - golden.free;
        assert_eq!(report.counts.dirty(), dirty, "{}", golden.cache);
    }
}

#[test]
fn kernel_caches_are_sound_and_patched_faults_are_reported() {
    for golden in goldens() {
        let opened = Opened::new(&golden.cache, golden.start_sector, golden.block_size);
        let report = opened.check(golden.sectors);
        let expected = match golden.cache.as_str() {
            "uncommitted.cache" => Severity::SoundAfterRecovery,
            // One of its uncommitted entries is of commit 7, the superblock at 2.
            "dups.cache" => Severity::Damaged,
            _ => Severity::Sound,
        };
        assert_eq!(report.severity, expected, "{}: {:?}", golden.cache, report.findings);
    }
    let findings = Opened::new("dups.cache", 0, 4096).check(2048).findings;
    let lines: Vec<String> = findings.iter().map(Finding::to_string).collect();
    let expected = [
        "slot 0: sector 80 with seq_count 0 is superseded by slot 20 with 1, recovery frees it",
        "slot 21: sector 240 with seq_count 0 is superseded by slot 7 with 1, recovery frees it",
        "slot 40: sector 8 was never committed, recovery frees it",
        "slot 41 seq_count: found 7, expected at most the superblock's 2 (torn, or the \
         superblock went back)",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn formatting_gives_the_bytes_the_kernel_wrote() {
    let opened = Opened::new("fresh.cache", 0, 4096);
    let area_bytes = opened.area.len() as u64;
    let geometry = Geometry::for_format(area_bytes, BlockSize::new(4096).unwrap()).unwrap();
    let mut metadata = vec![0xAA; usize::try_from(geometry.metadata_bytes()).unwrap()];
    geometry.fill_fresh(&Superblock::fresh(&geometry).encode(), 0, &mut metadata);
    assert!(metadata == opened.area[..metadata.len()]);
}

#[test]
fn every_cache_has_the_slot_count_that_formatting_its_area_gives() {
    for golden in goldens() {
        let opened = Opened::new(&golden.cache, golden.start_sector, golden.block_size);
        let area_bytes = opened.area.len() as u64;
        let geometry = Geometry::for_format(area_bytes, opened.geometry.block_size());
        assert_eq!(geometry, Ok(opened.geometry), "{}", golden.cache);
    }
}

/// The bytes between slot table and slot 0 are not part of the format: the kernel leaves there what
/// its memory held.
#[test]
fn decoding_and_encoding_a_cache_gives_back_its_metadata() {
    for golden in goldens() {
        let opened = Opened::new(&golden.cache, golden.start_sector, golden.block_size);
        let table_end = SUPERBLOCK_BYTES + usize::try_from(golden.n_blocks).unwrap() * ENTRY_BYTES;
        let mut metadata = vec![0; table_end];
        metadata[..SUPERBLOCK_BYTES].copy_from_slice(&opened.superblock.encode());
        for (slot, entry) in opened.entries() {
            entry.write_at(&mut metadata, slot);
        }
        assert!(metadata == opened.area[..table_end], "{}", golden.cache);
    }
}
