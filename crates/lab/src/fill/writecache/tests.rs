//! Caches read as they were planned: by the format's checker, and by the target.

use cairn_block::SectorCount;
use cairn_format::Severity;
use cairn_format::bcache::crc64;
use cairn_format::writecache::check::{Limits, check};
use cairn_sim::Image;

use super::*;
use crate::fill::ImageSink;
use crate::fill::served::{Served, status};

const PATTERNS: [Pattern; 3] = [Pattern::Uniform, Pattern::Clustered, Pattern::OutOfOrder];

/// 32 MiB of cache before 128 MiB.
fn plan(pattern: Pattern) -> Plan {
    Plan {
        cache_sectors: 32 << 11,
        cache_block_bytes: 4096,
        origin_sectors: 128 << 11,
        dirty_percent: 80.0,
        block_sectors: 8,
        pattern,
        seed: 42,
    }
}

fn make(plan: &Plan) -> (Layout, Image) {
    let layout = plan.lay_out().expect("it fits");
    let mut image = Image::new(SectorCount(plan.cache_sectors));
    layout.write(ImageSink(&mut image)).expect("memory");
    (layout, image)
}

#[test]
fn cache_of_each_pattern_is_sound_and_all_its_entries_are_committed() {
    for (pattern, block_sectors) in PATTERNS.into_iter().flat_map(|it| [(it, 8), (it, 128)]) {
        let plan = Plan { block_sectors, ..plan(pattern) };
        let (layout, image) = make(&plan);
        let bytes = image.to_vec();
        let found: Vec<Entry> = layout.geometry.entries_in(0, &bytes).map(|(_, it)| it).collect();
        let dirty = layout.dirty_blocks();
        assert!(found.iter().copied().take(dirty as usize).eq(layout.entries()), "{pattern}");
        let limits = Limits {
            area_bytes: Some(bytes.len() as u64),
            origin_sectors: Some(plan.origin_sectors),
            target_sectors: Some(plan.origin_sectors),
        };
        let report = check(&bytes, found, limits);
        assert_eq!((report.severity, report.findings), (Severity::Sound, vec![]), "{pattern}");
        let counts = report.counts;
        assert_eq!((counts.committed, counts.superseded), (dirty, 0), "{pattern}");
        assert_eq!((counts.uncommitted, counts.free), (0, layout.slots() - dirty), "{pattern}");
        let blocks = layout.slots() * 8 / 10;
        let per_write = block_sectors / 8;
        assert_eq!(dirty, blocks / per_write * per_write, "{pattern}");
    }
}

#[test]
fn target_opens_each_pattern_with_its_dirty_data_and_drains_it() {
    for pattern in PATTERNS {
        let plan = plan(pattern);
        let (layout, image) = make(&plan);
        let origin = Image::new(SectorCount(plan.origin_sectors));
        let drives = [("origin", origin), ("cache", image)];
        let served = Served::new(drives.map(|(name, image)| (name.to_owned(), image)));
        let options = "4 high_watermark 100 low_watermark 100";
        let table = format!("0 {} writecache s origin cache 4096 {options}", plan.origin_sectors);
        let volume = served.load("volume", &table);
        let expected = [layout.slots(), layout.slots() - layout.dirty_blocks()];
        assert_eq!(["blocks", "free_blocks"].map(|it| status(&volume, it)), expected, "{pattern}");
        served.drain(&volume);
        assert_eq!(status(&volume, "free_blocks"), layout.slots(), "{pattern}");
        served.end([volume]);
    }
}

#[test]
fn commit_numbers_rise_with_the_slots_and_stay_below_the_superblock() {
    let plan = Plan {
        cache_sectors: 80 << 11,
        cache_block_bytes: 512,
        block_sectors: 1,
        ..plan(Pattern::Uniform)
    };
    let (layout, image) = make(&plan);
    let entries: Vec<Entry> = layout.entries().collect();
    assert!(entries.len() > 2 * COMMIT_BLOCKS as usize - 10_000, "{}", entries.len());
    assert!(entries.is_sorted_by_key(|entry| entry.seq));
    let report = check(&image.to_vec(), entries.iter().copied(), Limits::default());
    let superblock = report.superblock.expect("sound");
    assert_eq!(superblock.seq(), Seq(entries[entries.len() - 1].seq.0 + 1));
    assert_eq!(entries[COMMIT_BLOCKS as usize].seq, Seq(1));
}

#[test]
fn same_plan_makes_the_same_bytes() {
    let sums = PATTERNS.map(|pattern| crc64(&make(&plan(pattern)).1.to_vec()));
    // They depend on neither the machine nor the build.
    assert_eq!(sums, [6165927648027825917, 1491983885818365620, 6024127291255549634]);
}

#[test]
fn values_that_no_cache_has_are_refused() {
    let good = plan(Pattern::Uniform);
    let refused = |plan: Plan| plan.lay_out().map(|_| ()).expect_err("a wrong value").to_string();
    for pattern in [Pattern::Fragmented { one_in: 16 }, Pattern::Aged] {
        let text = refused(Plan { pattern, ..good });
        assert!(text.starts_with(&format!("pattern: found {pattern}, expected")), "{text}");
    }
    for block_sectors in [0, 4, 12] {
        let text = refused(Plan { block_sectors, ..good });
        assert!(text.starts_with("block_sectors: found"), "{text}");
    }
    let text = refused(Plan { origin_sectors: 8000, ..good });
    assert!(text.starts_with("device 0: found 6"), "{text}");
    assert!(refused(Plan { dirty_percent: 101.0, ..good }).starts_with("dirty_percent"));
    assert!(refused(Plan { cache_block_bytes: 8192, ..good }).contains("8192"));
    assert!(refused(Plan { cache_sectors: 1, ..good }).contains("512"));
}
