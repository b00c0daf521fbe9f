//! Exception stores that a real kernel wrote, decoded: records, status, content and exact bytes.

use cairn_format::snapshot::check::{Limits, Report, Severity, check};
use cairn_format::snapshot::repair::{Repair, Step};
use cairn_format::snapshot::{ChunkSize, Header, Layout, Record, SECTOR_BYTES, records};
use cairn_testkit::{image, manifest};
use sha2::{Digest, Sha256};

/// The manifest's entry for one store.
struct Golden {
    name: String,
    cow: Vec<u8>,
    origin: Vec<u8>,
    chunk_sectors: u64,
    exceptions: u64,
    status: String,
    sha256: Option<String>,
}

/// Every image of the manifest.
fn goldens() -> Vec<Golden> {
    manifest("snapshot").iter().map(golden).collect()
}

fn golden(record: &serde_json::Value) -> Golden {
    let text = |key: &str| record[key].as_str().map(str::to_owned);
    let number = |key: &str| record[key].as_u64().expect("the manifest has the number");
    let name = text("cow").expect("the manifest names the store");
    Golden {
        cow: image("snapshot", &name),
        origin: image("snapshot", &text("origin").expect("the manifest names the origin")),
        chunk_sectors: number("chunk"),
        exceptions: number("exceptions"),
        status: text("status").expect("the manifest has the status"),
        sha256: text("sha256"),
        name,
    }
}

impl Golden {
    fn limits(&self) -> Limits {
        Limits {
            device_sectors: self.cow.len() as u64 / SECTOR_BYTES,
            origin_sectors: Some(self.origin.len() as u64 / SECTOR_BYTES),
        }
    }

    fn layout(&self) -> Layout {
        let header = Header::parse(&self.cow).expect("the golden stores open");
        Layout::new(header.chunk_size(), self.limits().device_sectors).expect("they fit")
    }

    fn check(&self) -> Report {
        check(&self.cow, self.limits())
    }
}

fn area(cow: &[u8], layout: &Layout, area: u64) -> Vec<u8> {
    let range = layout.area_bytes(area);
    cow[range.start as usize..range.end as usize].to_vec()
}

/// The list, read as a target reads it.
fn listed(cow: &[u8], layout: &Layout) -> Vec<Record> {
    let mut list = Vec::new();
    for index in 0..layout.area_count() {
        list.extend(records(&area(cow, layout, index)));
        if list.len() as u64 != (index + 1) * layout.records_per_area() {
            break;
        }
    }
    list
}

/// The origin, overwritten with every kept chunk.
fn content(cow: &[u8], layout: &Layout, mut origin: Vec<u8>) -> Vec<u8> {
    let chunk_bytes = layout.chunk_size().bytes() as usize;
    for record in listed(cow, layout) {
        let sector = layout.chunk_size().origin_sector(record.old).expect("it is on the origin");
        let (to, from) = (sector as usize * 512, layout.chunk_sector(record.new) as usize * 512);
        let len = chunk_bytes.min(origin.len() - to);
        origin[to..to + len].copy_from_slice(&cow[from..from + len]);
    }
    origin
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn every_store_reads_as_the_kernel_read_it() {
    for golden in goldens() {
        let layout = golden.layout();
        assert_eq!(u64::from(layout.chunk_size().sectors()), golden.chunk_sectors);
        let list = listed(&golden.cow, &layout);
        assert_eq!(list.len() as u64, golden.exceptions, "{}", golden.name);
        let Some(expected) = &golden.sha256 else { continue };
        let content = content(&golden.cow, &layout, golden.origin.clone());
        assert_eq!(&sha256(&content), expected, "{}", golden.name);
    }
}

#[test]
fn the_checker_counts_what_the_kernel_said_in_its_status() {
    for golden in goldens() {
        let report = golden.check();
        assert_eq!(report.counts.records, golden.exceptions, "{}", golden.name);
        let status = match report.header.as_ref().is_some_and(Header::is_valid) {
            false => "Invalid".to_owned(),
            true => {
                let (allocated, total, metadata) = report.usage().expect("there is a layout");
                format!("{allocated}/{total} {metadata}")
            }
        };
        assert_eq!(status, golden.status, "{}", golden.name);
    }
}

#[test]
fn kernel_stores_are_sound_unless_the_kernel_invalidated_them() {
    for golden in goldens() {
        let report = golden.check();
        let expected = match golden.name.as_str() {
            "invalid-p-34.cow" => Severity::Damaged,
            _ => Severity::Sound,
        };
        assert_eq!(report.severity, expected, "{}: {:?}", golden.name, report.findings);
        let layout = golden.layout();
        assert!(report.counts.records <= layout.usable_data_chunks(), "{}", golden.name);
    }
}

#[test]
fn formatting_gives_the_header_and_the_empty_area_that_the_kernel_wrote() {
    for (name, sectors) in [("fresh.cow", 8), ("default32.cow", 32)] {
        let cow = image("snapshot", name);
        let size = ChunkSize::new(sectors).unwrap();
        let chunk_bytes = size.bytes() as usize;
        let mut expected = vec![0; 2 * chunk_bytes];
        expected[..16].copy_from_slice(&Header::fresh(size).encode());
        assert!(cow[..2 * chunk_bytes] == expected, "{name}");
    }
}

#[test]
fn the_kernel_invalidates_a_store_by_one_field() {
    let cow = image("snapshot", "invalid-p-34.cow");
    let header = Header::fresh(ChunkSize::new(1).unwrap()).invalidated();
    assert_eq!(cow[..16], header.encode());
}

#[test]
fn the_kernel_allocates_where_the_layout_says() {
    let before = listed(&image("snapshot", "crafted.cow"), &goldens()[13].layout());
    let after = listed(&image("snapshot", "crafted-after.cow"), &goldens()[14].layout());
    let layout = goldens()[13].layout();
    let highest = before.iter().map(|record| record.new).max();
    assert_eq!(after[..before.len()], before);
    assert_eq!(after[before.len()].new, layout.next_free(highest));
}

#[test]
fn decoding_and_encoding_a_store_gives_back_its_areas() {
    for golden in goldens() {
        let layout = golden.layout();
        let used = layout.place(golden.exceptions).0 + 1;
        for index in 0..used {
            let original = area(&golden.cow, &layout, index);
            let mut encoded = vec![0; original.len()];
            for (slot, record) in records(&original).enumerate() {
                record.write_at(&mut encoded, slot);
            }
            assert!(encoded == original, "{}", golden.name);
        }
    }
}

#[test]
fn repair_keeps_every_record_that_the_kernel_wrote() {
    for golden in goldens().iter().filter(|golden| golden.sha256.is_some()) {
        let mut repair = Repair::new(&golden.cow, golden.limits(), false).unwrap();
        while let Some(range) = repair.wants(100) {
            let steps = repair.feed(&golden.cow[range.start as usize..range.end as usize]);
            assert!(steps.iter().all(|step| matches!(step, Step::Keep { .. })), "{}", golden.name);
        }
        let plan = repair.finish();
        assert_eq!((plan.kept(), plan.moves().count()), (golden.exceptions, 0));
        assert!(plan.clear().is_empty() && plan.fits_in_place());
    }
}
