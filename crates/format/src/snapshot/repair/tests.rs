//! Damaged stores, repaired in both ways on bytes in memory.

use proptest::prelude::{any, prop_assert, prop_assert_eq, prop_assume, proptest};

use super::{Plan, Refusal, Repair, Step, packed_chunk};
use crate::snapshot::check::{Limits, Severity, check};
use crate::snapshot::{
    ChunkSize, CowChunk, Header, Layout, OriginChunk, RECORD_BYTES, Record, records,
};

const CHUNKS: u64 = 120;

fn layout() -> Layout {
    Layout::new(ChunkSize::new(1).unwrap(), CHUNKS).unwrap()
}

fn limits() -> Limits {
    Limits { device_sectors: CHUNKS, origin_sectors: Some(64) }
}

fn put(device: &mut [u8], layout: &Layout, index: u64, record: Record) {
    let offset = layout.record_offset(index) as usize;
    device[offset..offset + RECORD_BYTES].copy_from_slice(&record.encode());
}

fn get(device: &[u8], layout: &Layout, index: u64) -> Record {
    let offset = layout.record_offset(index) as usize;
    Record::decode(device[offset..].first_chunk().unwrap())
}

/// A store with these slots; each data chunk is filled with its own number.
fn device(slots: &[(u64, u64)]) -> Vec<u8> {
    let layout = layout();
    let mut device: Vec<u8> = (0..CHUNKS as u8).flat_map(|chunk| [chunk; 512]).collect();
    device[..512].fill(0);
    device[..16].copy_from_slice(&Header::fresh(layout.chunk_size()).encode());
    for area in 0..layout.area_count() {
        let range = layout.area_bytes(area);
        device[range.start as usize..range.end as usize].fill(0);
    }
    for (index, (old, new)) in (0..).zip(slots) {
        let record = Record { old: OriginChunk(*old), new: CowChunk(*new) };
        put(&mut device, &layout, index, record);
    }
    device
}

fn planned(device: &[u8], salvage: bool, bytes_max: u64) -> (Plan, Vec<Step>) {
    let mut repair = Repair::new(device, limits(), salvage).unwrap();
    let mut steps = Vec::new();
    while let Some(range) = repair.wants(bytes_max) {
        steps.extend(repair.feed(&device[range.start as usize..range.end as usize]));
    }
    (repair.finish(), steps)
}

fn kept(steps: &[Step]) -> Vec<Record> {
    let kept = steps.iter().filter_map(|step| match step {
        Step::Keep { record, .. } => Some(*record),
        Step::Drop { .. } => None,
    });
    kept.collect()
}

/// The kept origin chunks of a store, each with its content.
fn content(device: &[u8], layout: &Layout) -> Vec<(u64, u8)> {
    let mut content = Vec::new();
    for area in 0..layout.area_count() {
        let range = layout.area_bytes(area);
        let listed: Vec<_> = records(&device[range.start as usize..range.end as usize]).collect();
        let full = listed.len() as u64 == layout.records_per_area();
        for record in listed {
            let byte = device[layout.chunk_sector(record.new) as usize * 512];
            content.push((record.old.0, byte));
        }
        if !full {
            break;
        }
    }
    content.sort_unstable();
    content
}

/// What the kept records promise, in the form of [`content`].
fn promised(kept: &[Record]) -> Vec<(u64, u8)> {
    let mut promised: Vec<_> = kept.iter().map(|r| (r.old.0, r.new.0 as u8)).collect();
    promised.sort_unstable();
    promised
}

fn packed(device: &[u8], plan: &Plan, kept: &[Record]) -> Vec<u8> {
    let size = ChunkSize::new(1).unwrap();
    let layout = Layout::new(size, plan.needed_sectors()).unwrap();
    let mut packed = vec![0; plan.needed_sectors() as usize * 512];
    packed[..16].copy_from_slice(&device[..16]);
    for (index, record) in (0..).zip(kept) {
        let new = packed_chunk(size, index);
        put(&mut packed, &layout, index, Record { new, ..*record });
        let (from, to) = (record.new.0 as usize * 512, new.0 as usize * 512);
        packed[to..to + 512].copy_from_slice(&device[from..from + 512]);
    }
    packed
}

#[test]
fn bad_records_go_with_their_reason_and_the_rest_stays() {
    let slots = [(3, 7), (4, 7), (3, 9), (5, 200), (6, 34), (70, 8), (3, 7), (1, 2)];
    let device = device(&slots);
    let (plan, steps) = planned(&device, false, 512);
    let told: Vec<String> = steps.iter().map(Step::to_string).collect();
    assert_eq!(
        told,
        [
            "record 0 keeps chunk 3 as 7",
            "record 1 new_chunk: found 7 for chunk 4, where record 0 keeps 3",
            "record 2 old_chunk: found 3 kept as 9, which record 0 keeps as 7",
            "record 3 new_chunk: found 200, expected a chunk below the device's 120",
            "record 4 new_chunk: found 34, a metadata chunk, expected a data chunk",
            "record 5 old_chunk: found 70, expected a chunk below the origin's 64",
            "record 6 found chunk 3 kept as 7, which record 0 says already",
            "record 7 keeps chunk 1 as 2",
        ]
    );
    assert_eq!(plan.kept(), 2);
    assert_eq!(plan.moves().collect::<Vec<_>>(), [(7, 1)]);
    assert_eq!(plan.clear(), 2..8);
    assert_eq!(steps.iter().map(Step::severity).max(), Some(Severity::Damaged));
}

#[test]
fn a_sound_store_needs_no_change() {
    let slots: Vec<_> = (0..40).map(|i| (i, 2 + i + i / 32)).collect();
    let device = device(&slots);
    let (plan, steps) = planned(&device, false, 64);
    assert_eq!((plan.kept(), plan.moves().count(), plan.clear()), (40, 0, 40..40));
    assert!(steps.iter().all(|step| step.severity() == Severity::Sound));
    assert!(
        packed(&device, &plan, &kept(&steps)) == device[..plan.needed_sectors() as usize * 512]
    );
}

#[test]
fn records_after_the_end_are_kept_only_with_salvage() {
    let mut slots: Vec<_> = (0..40).map(|i| (i, 2 + i + i / 32)).collect();
    slots[5] = (0, 0);
    let device = device(&slots);
    let (plan, steps) = planned(&device, false, 512);
    assert_eq!((plan.kept(), plan.clear()), (5, 5..40));
    assert_eq!(
        steps[5].to_string(),
        "record 6 (chunk 6 kept as 8): found after the end of the list"
    );
    let (plan, _) = planned(&device, true, 512);
    assert_eq!((plan.kept(), plan.clear()), (39, 39..40));
    assert_eq!(plan.moves().collect::<Vec<_>>(), [(39, 5)]);
}

#[test]
fn invalidated_store_and_store_without_header_are_refused() {
    let mut device = device(&[(3, 7)]);
    device[4] = 0;
    assert_eq!(Repair::new(&device, limits(), true).unwrap_err(), Refusal::Invalidated);
    device[0] = 0;
    let refused = Repair::new(&device, limits(), true).unwrap_err();
    assert!(matches!(refused, Refusal::Header(_)));
}

#[test]
fn a_full_last_area_is_repaired_only_into_a_larger_device() {
    let size = ChunkSize::new(1).unwrap();
    let full: Vec<_> = (0..32).map(|i| (i, 2 + i)).collect();
    let device = &device(&full)[..34 * 512];
    let limits = Limits { device_sectors: 34, origin_sectors: None };
    let mut repair = Repair::new(device, limits, false).unwrap();
    while let Some(range) = repair.wants(512) {
        repair.feed(&device[range.start as usize..range.end as usize]);
    }
    let plan = repair.finish();
    assert!(!plan.fits_in_place());
    assert_eq!((plan.needed_sectors(), packed_chunk(size, 32)), (35, CowChunk(35)));
}

proptest! {
    #[test]
    fn both_repairs_leave_a_sound_store_with_the_kept_records(
        slots in proptest::collection::vec((0u64..70, 0u64..130), 0..90),
        salvage in any::<bool>(),
        bytes_max in any::<u16>(),
    ) {
        let mut device = device(&slots);
        let (plan, steps) = planned(&device, salvage, u64::from(bytes_max));
        let kept = kept(&steps);
        prop_assert_eq!(plan.kept(), kept.len() as u64);

        let packed = packed(&device, &plan, &kept);
        let size = packed.len() as u64 / 512;
        let packed_limits = Limits { device_sectors: size, ..limits() };
        prop_assert_eq!(check(&packed, packed_limits).severity, Severity::Sound);
        let packed_layout = Layout::new(layout().chunk_size(), size).unwrap();
        prop_assert_eq!(content(&packed, &packed_layout), promised(&kept));

        prop_assume!(plan.fits_in_place());
        for (from, to) in plan.moves() {
            prop_assert!(to < plan.kept() && plan.kept() <= from);
            let record = get(&device, &layout(), from);
            put(&mut device, &layout(), to, record);
        }
        for index in plan.clear() {
            put(&mut device, &layout(), index, Record::END);
        }
        prop_assert_eq!(check(&device, limits()).severity, Severity::Sound);
        prop_assert_eq!(content(&device, &layout()), promised(&kept));
    }
}
