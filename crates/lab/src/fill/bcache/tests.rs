//! Sets read as they were planned: by the format's reader and its checker, and by the target.

use std::ops::ControlFlow;

use cairn_block::SectorCount;
use cairn_format::Severity;
use cairn_format::bcache::check::{Backing, Report, check};
use cairn_format::bcache::load::{Fault, Visitor, load_now, now};
use cairn_format::bcache::{SECTOR_BYTES, Superblock, crc64};
use cairn_sim::Image;

use super::*;
use crate::fill::ImageSink;
use crate::fill::served::{Served, status};

const PATTERNS: [Pattern; 5] = [
    Pattern::Uniform,
    Pattern::Clustered,
    Pattern::OutOfOrder,
    Pattern::Fragmented { one_in: 16 },
    Pattern::Aged,
];

/// 64 MiB of cache in buckets of 64 KiB, before two devices.
fn plan(pattern: Pattern) -> Plan {
    let backing = |mib: u64, weight| BackingSpec { device_sectors: mib << 11, weight };
    // Fragmented data needs many buckets.
    let is_sparse = matches!(pattern, Pattern::Fragmented { .. });
    Plan {
        cache: CacheSpec { device_sectors: 64 << 11, bucket_sectors: 128 },
        backings: vec![backing(100, 3), backing(160, 1)],
        dirty_percent: if is_sparse { 4.0 } else { 40.0 },
        clean_percent: 15.0,
        block_sectors: 8,
        pattern,
        seed: 42,
    }
}

/// The cache and the backing devices of a plan.
struct Made {
    layout: Layout,
    cache: Image,
    backings: Vec<Image>,
}

fn make(plan: &Plan) -> Made {
    let layout = plan.lay_out().expect("it fits");
    let mut cache = Image::new(SectorCount(plan.cache.device_sectors));
    let sizes = plan.backings.iter().map(|it| SectorCount(it.device_sectors));
    let mut backings: Vec<Image> = sizes.map(Image::new).collect();
    let mut sinks: Vec<ImageSink<'_>> = backings.iter_mut().map(ImageSink).collect();
    layout.write(ImageSink(&mut cache), &mut sinks).expect("memory");
    Made { layout, cache, backings }
}

#[derive(Default)]
struct Strict(Vec<Key>);

impl Visitor for Strict {
    fn fault(&mut self, fault: &Fault) -> ControlFlow<()> {
        panic!("{fault}");
    }

    fn extent(&mut self, key: Key) {
        self.0.push(key);
    }
}

fn superblock_at(image: &Image) -> Superblock {
    let bytes = image.to_vec();
    let at = SUPERBLOCK_SECTOR as usize * SECTOR_BYTES;
    Superblock::decode(&bytes[at..at + 4096]).expect("sound")
}

fn extents(made: &Made) -> Vec<Key> {
    let Superblock::Cache(superblock) = superblock_at(&made.cache) else { panic!("a cache") };
    let mut strict = Strict::default();
    let loaded = load_now(&made.cache.to_vec()[..], &superblock, &mut strict).expect("sound");
    loaded.extents(superblock.geometry(), strict.0)
}

fn checked(made: &Made) -> Report {
    let backing = |image: &Image| {
        let Superblock::Backing(superblock) = superblock_at(image) else { panic!("a backing") };
        Backing { superblock: Ok(superblock), device_sectors: image.sectors().0 }
    };
    let backings: Vec<Backing> = made.backings.iter().map(backing).collect();
    let (bytes, sectors) = (made.cache.to_vec(), made.cache.sectors().0);
    now(check(&mut &bytes[..], sectors, &backings)).expect("memory")
}

#[test]
fn set_of_each_pattern_is_sound_and_has_what_was_asked_for() {
    for (pattern, block_sectors) in PATTERNS.into_iter().flat_map(|it| [(it, 8), (it, 128)]) {
        let plan = Plan { block_sectors, ..plan(pattern) };
        let made = make(&plan);
        let filled = made.layout.filled();
        let found = extents(&made);
        assert!(found.iter().copied().eq(made.layout.keys()), "{pattern}");

        let report = checked(&made);
        assert_eq!((report.severity, report.findings), (Severity::Sound, vec![]), "{pattern}");
        let of = |index: usize| {
            let volume = &report.volumes[index];
            (volume.dirty_sectors, volume.sectors - volume.dirty_sectors)
        };
        let expected = |index: usize| (filled.dirty_sectors[index], filled.clean_sectors[index]);
        assert_eq!([of(0), of(1)], [expected(0), expected(1)], "{pattern}");
        assert_eq!(report.totals.extents, filled.extents, "{pattern}");
        let metadata =
            report.totals.metadata_buckets - made.layout.superblock.geometry().usable().start;
        let journal = u64::from(made.layout.superblock.geometry().journal_buckets());
        assert_eq!(metadata - journal, filled.metadata_buckets, "{pattern}");
        let with = |is_it: fn(&Key) -> bool| {
            let sector = |key: &Key| key.cached_at().expect("a place").sector();
            let buckets = found.iter().filter(|key| is_it(key)).map(|key| sector(key) / 128);
            buckets.collect::<std::collections::BTreeSet<_>>().len() as u64
        };
        assert_eq!(with(Key::is_dirty), filled.dirty_buckets, "{pattern}");
        assert!(with(|_| true) <= filled.data_buckets, "{pattern}");

        // As the percentages and weights say, to a block.
        let blocks = (64_u64 << 11) / block_sectors;
        let share = |percent: f64, of: u64| (blocks as f64 * percent / 100.0) as u64 * of / 4;
        assert_eq!(filled.dirty_sectors[0] / block_sectors, share(plan.dirty_percent, 3));
        let dirty: u64 = filled.dirty_sectors.iter().sum();
        assert_eq!(dirty / block_sectors, share(plan.dirty_percent, 4), "{pattern}");
    }
}

#[test]
fn target_opens_each_pattern_with_its_dirty_data_and_drains_it() {
    for pattern in PATTERNS {
        let plan = plan(pattern);
        let made = make(&plan);
        let names = ["backing0", "backing1"].map(str::to_owned);
        let drives = names.into_iter().zip(made.backings.iter().cloned());
        let served = Served::new(drives.chain([("cache".to_owned(), made.cache.clone())]));
        let filled = made.layout.filled();
        let volumes = [0, 1].map(|index: usize| {
            let sectors = plan.backings[index].device_sectors - DATA_OFFSET;
            let table = format!("0 {sectors} bcache backing{index} cache 0");
            served.load(&format!("volume{index}"), &table)
        });
        for (volume, dirty) in volumes.iter().zip(&filled.dirty_sectors) {
            assert_eq!(status(volume, "dirty_data"), *dirty, "{pattern}");
        }
        let buckets = made.layout.superblock.geometry().buckets();
        let journal = made.layout.kept.start;
        let in_use = filled.dirty_buckets + filled.metadata_buckets + journal;
        let available = status(&volumes[0], "cache_available_percent");
        assert_eq!(available, 100 - in_use * 100 / buckets, "{pattern}");
        volumes.iter().for_each(|volume| served.drain(volume));
        assert_eq!(volumes.each_ref().map(|it| status(it, "dirty_data")), [0, 0], "{pattern}");
        served.end(volumes);
    }
}

#[test]
fn clean_data_counts_in_the_target() {
    let plan = plan(Pattern::Uniform);
    let made = make(&plan);
    let clean = made.layout.keys().find(|key| !key.is_dirty()).expect("some is clean");
    assert_eq!(clean.inode(), 0);
    let drives = [("backing", made.backings[0].clone()), ("cache", made.cache.clone())];
    let served = Served::new(drives.map(|(name, image)| (name.to_owned(), image)));
    let sectors = plan.backings[0].device_sectors - DATA_OFFSET;
    let volume = served.load("volume", &format!("0 {sectors} bcache backing cache 0"));
    served.read(&volume, clean.start() - DATA_OFFSET, clean.sectors());
    let counts = ["cache_hits", "cache_misses"].map(|field| status(&volume, field));
    assert_eq!(counts, [1, 0]);
    served.end([volume]);
}

#[test]
fn same_plan_makes_the_same_bytes() {
    let sum = |plan: &Plan| {
        let made = make(plan);
        let all = made.backings.iter().chain([&made.cache]);
        crc64(&all.flat_map(Image::to_vec).collect::<Vec<u8>>())
    };
    let sums = PATTERNS.map(|pattern| sum(&plan(pattern)));
    // They depend on neither the machine nor the build.
    assert_eq!(
        sums,
        [
            13271081638161031960,
            4813606417185064624,
            12509437400686396727,
            2205383524639621047,
            9914153095681980853
        ]
    );
    assert_ne!(sum(&Plan { seed: 43, ..plan(Pattern::Uniform) }), sums[0]);
}

#[test]
fn target_drains_a_set_with_no_free_bucket_but_the_spare_ones() {
    let sectors = 64 << 11;
    let nearly = |dirty_percent| Plan {
        cache: CacheSpec { device_sectors: 32 << 11, bucket_sectors: 128 },
        backings: vec![BackingSpec { device_sectors: sectors, weight: 1 }],
        dirty_percent,
        clean_percent: 0.0,
        ..plan(Pattern::Uniform)
    };
    // Of 512 buckets 1 has the superblock, 4 the journal, 7 other metadata, and 8 are spare.
    let made = make(&nearly(96.0));
    let filled = made.layout.filled();
    assert_eq!((filled.data_buckets, filled.metadata_buckets), (492, 7));
    let refused = nearly(96.3).lay_out().map(|layout| layout.filled().clone());
    assert_eq!(refused, Err(FillError::Buckets { found: 507, expected: 508 }));

    let drives = [("backing", made.backings[0].clone()), ("cache", made.cache.clone())];
    let served = Served::new(drives.map(|(name, image)| (name.to_owned(), image)));
    let table = format!("0 {} bcache backing cache 0", sectors - DATA_OFFSET);
    let volume = served.load("volume", &table);
    assert_eq!(status(&volume, "dirty_data"), filled.dirty_sectors[0]);
    served.drain(&volume);
    assert_eq!(status(&volume, "dirty_data"), 0);
    served.end([volume]);
}

#[test]
fn values_that_no_set_has_are_refused() {
    let good = plan(Pattern::Uniform);
    let refused = |plan: Plan| plan.lay_out().map(|_| ()).expect_err("a wrong value").to_string();
    for block_sectors in [0, 4, 12, 256, 4096] {
        let text = refused(Plan { block_sectors, ..good.clone() });
        assert!(text.starts_with("block_sectors: found"), "{text}");
    }
    for percent in [-1.0, 100.5, f64::NAN] {
        let text = refused(Plan { dirty_percent: percent, ..good.clone() });
        assert!(text.starts_with("dirty_percent: found"), "{text}");
        let text = refused(Plan { clean_percent: percent, ..good.clone() });
        assert!(text.starts_with("clean_percent: found"), "{text}");
    }
    let fragmented = Plan { pattern: Pattern::Fragmented { one_in: 0 }, ..good.clone() };
    assert!(refused(fragmented).starts_with("pattern: found fragmented-0"));
    let none = Plan { backings: Vec::new(), ..good.clone() };
    assert!(refused(none).starts_with("devices: found 0"));
    let small = BackingSpec { device_sectors: 1 << 11, weight: 1 };
    let text = refused(Plan { backings: vec![small], ..good.clone() });
    assert_eq!(text, "device 0: found 9010 blocks, expected at most 254");
    let bucket_sectors = 100;
    let cache = CacheSpec { bucket_sectors, ..good.cache };
    assert!(refused(Plan { cache, ..good }).contains("bucket_size"));
}
