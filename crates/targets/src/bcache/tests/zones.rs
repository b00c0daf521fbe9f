//! Tests of the map of dirty zones: what waits for it, and what goes on without it.

use cairn_block::{Receipt, ZoneMaps};
use cairn_format::bcache::ZoneMap;

use super::*;
use crate::fixture::write_io;

/// Sectors of a zone.
const ZONE: u64 = 64;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Does {
    Keeps,
    Fails,
    Waits,
}

struct State {
    does: Does,
    kept: Option<ZoneMap>,
    waiting: Vec<(ZoneMap, Receipt)>,
    calls: u32,
}

/// Maps of a server that keeps them, or does not.
struct Maps(Mutex<State>);

impl Maps {
    fn set(&self, does: Does) {
        self.0.lock().does = does;
    }

    fn calls(&self) -> u32 {
        std::mem::take(&mut self.0.lock().calls)
    }

    fn kept(&self) -> ZoneMap {
        self.0.lock().kept.clone().expect("a map is kept")
    }

    /// Keeps what waits.
    fn go_on(&self) {
        let mut state = self.0.lock();
        state.does = Does::Keeps;
        for (map, receipt) in std::mem::take(&mut state.waiting) {
            state.kept = Some(map);
            receipt.give();
        }
    }

    /// The marked zones.
    fn marked(&self) -> Vec<u64> {
        let map = self.kept();
        (0..map.zones()).filter(|zone| map.is_marked(*zone)).collect()
    }
}

impl ZoneMaps for Maps {
    fn all(&self) -> Vec<(String, Vec<u8>)> {
        let state = self.0.lock();
        state.kept.iter().map(|map| ("v".to_owned(), map.encode_slot(1))).collect()
    }

    fn zone_sectors(&self) -> u64 {
        ZONE
    }

    fn keep(&self, name: &str, map: Vec<u8>, receipt: Receipt) {
        assert_eq!(name, "v");
        let (_, map) = ZoneMap::decode_slot(&map).expect("a sound map");
        let mut state = self.0.lock();
        state.calls += 1;
        match state.does {
            Does::Fails => {}
            Does::Waits => state.waiting.push((map, receipt)),
            Does::Keeps => {
                state.kept = Some(map);
                receipt.give();
            }
        }
    }

    fn forget(&self, _name: &str) {
        self.0.lock().kept = None;
    }
}

fn with_maps(test: &Fixture, does: Does) -> Arc<Maps> {
    let state = State { does, kept: None, waiting: Vec::new(), calls: 0 };
    let maps = Arc::new(Maps(Mutex::new(state)));
    test.registry.set_zone_maps(maps.clone());
    test.load("v", LINE);
    maps
}

/// A drained set, in mode writeback.
fn clean(does: Does) -> (Fixture, Arc<Maps>) {
    let test = stopped();
    test.load("v", LINE);
    drain(&test).expect("the drives are well");
    test.remove("v");
    let maps = with_maps(&test, does);
    test.message("v", &["set", "cache_mode", "writeback"]).expect("a mode");
    (test, maps)
}

fn dirty(test: &Fixture) -> u64 {
    test.with_target("v", Bcache::dirty_sectors)
}

/// What the backing device has of a volume.
fn on_backing(test: &Fixture, start: u64, count: u64) -> Vec<u8> {
    test.contents("b")[(16 + start) as usize * SECTOR..][..count as usize * SECTOR].to_vec()
}

/// The zones that the map calls lost for the durable superblock; none if it does not count.
fn lost(test: &Fixture, maps: &Maps) -> Option<Vec<u64>> {
    let (superblock, map) = (durable_superblock(test), maps.kept());
    let ranges = map.lost(&superblock, test.drive("b").durable().sectors().0).ok()?;
    Some(ranges.into_iter().flat_map(|it| it.start / ZONE..it.end.div_ceil(ZONE)).collect())
}

#[test]
fn first_write_of_a_zone_waits_for_the_map_and_later_ones_do_not() {
    let (test, maps) = clean(Does::Waits);
    test.forget();
    test.start("v", "first", |env| write_io(env, 6000, 8, 7));
    test.run(Duration::from_millis(50));
    assert!(test.labels().is_empty());
    assert_eq!(durable_superblock(&test).state(), BackingState::Dirty, "that comes before");
    let data = |it: &(Op, u64, u64)| it.0 == Op::Write && it.2 == 8 && it.1 > 1024;
    assert!(!test.ops("c").iter().any(data), "no data reached the cache");
    assert_eq!(dirty(&test), 0);
    maps.go_on();
    test.run(Duration::from_millis(50));
    assert_eq!(test.labels(), ["first"]);
    assert_eq!((dirty(&test), maps.calls()), (8, 1));
    assert_eq!(lost(&test, &maps), Some(vec![(6000 + 16) / ZONE]));
    test.write("v", 6020, 8, 7).expect("the drives are well");
    assert_eq!(maps.calls(), 0, "the zone has its mark");
    // Over the end of the zone.
    test.write("v", 6070, 20, 7).expect("the drives are well");
    assert_eq!((maps.calls(), maps.marked()), (1, vec![94, 95]));
}

#[test]
fn writes_that_come_while_a_map_is_written_share_the_next_one() {
    let (test, maps) = clean(Does::Waits);
    for (label, at) in [("a", 6000), ("b", 7000), ("c", 8000)] {
        test.start("v", label, move |env| write_io(env, at, 8, 7));
        test.run(Duration::from_millis(20));
    }
    assert_eq!(maps.calls(), 1);
    maps.go_on();
    test.run(Duration::from_millis(20));
    assert_eq!((test.labels().len(), maps.calls()), (3, 1));
    assert_eq!(maps.marked(), [6016, 7016, 8016].map(|sector| sector / ZONE));
}

#[test]
fn writes_to_zones_that_no_map_can_name_go_around_the_cache_until_one_can() {
    let (test, maps) = clean(Does::Fails);
    test.write("v", 6000, 8, 7).expect("the backing device takes it");
    assert_eq!((dirty(&test), maps.calls()), (0, 1));
    assert!(on_backing(&test, 6000, 8).iter().all(|byte| *byte == 7));
    test.write("v", 7000, 8, 8).expect("the backing device takes it");
    assert_eq!(maps.calls(), 0, "not at each write");
    test.flush("v").expect("the drives are well");
    maps.set(Does::Keeps);
    test.run(Duration::from_secs(6));
    test.write("v", 7000, 8, 9).expect("the drives are well");
    assert_eq!((dirty(&test), maps.calls()), (8, 1));
    assert!(test.bytes("v", 7000, 8).iter().all(|byte| *byte == 9));
}

#[test]
fn dirty_data_that_no_map_can_name_is_written_back_before_it_is_overwritten() {
    let test = stopped();
    let maps = with_maps(&test, Does::Fails);
    let before = dirty(&test);
    test.write("v", 0, 8, 7).expect("the backing device takes it");
    assert!(maps.calls() > 0);
    assert!(dirty(&test) < before, "what was there is clean, or gone");
    assert!(on_backing(&test, 0, 8).iter().all(|byte| *byte == 7));
    assert!(test.bytes("v", 0, 8).iter().all(|byte| *byte == 7));
    test.flush("v").expect("the drives are well");
}

#[test]
fn write_that_neither_device_may_take_fails_and_what_is_dirty_stays() {
    let test = stopped();
    let before = {
        test.load("v", LINE);
        let before = test.read("v", 0, 64).expect("the drives are well");
        test.remove("v");
        before
    };
    let maps = with_maps(&test, Does::Fails);
    test.write("v", 9000, 8, 7).expect("it begins a session");
    let fault = test.drive("b").faults().add(Fault::error(OpSet::WRITES));
    assert_eq!(test.write("v", 0, 8, 7), Err(IoError::IO));
    test.drive("b").faults().remove(fault);
    assert_eq!(test.read("v", 0, 64), Ok(before));
    maps.set(Does::Keeps);
    test.run(Duration::from_secs(6));
    test.write("v", 0, 8, 7).expect("the drives are well");
    let _ = test.flush("v");
}

#[test]
fn session_that_makes_nothing_dirty_keeps_the_list_of_what_is() {
    let test = stopped();
    let maps = with_maps(&test, Does::Keeps);
    let all = dirty(&test);
    assert!(maps.0.lock().kept.is_none(), "nothing is written before a session");
    // A miss enters the cache.
    test.read("v", 9000, 8).expect("the drives are well");
    test.run(Duration::from_millis(100));
    let zones = lost(&test, &maps).expect("it is of this session");
    // 0-64k, 1m-1280k, 2m-2060k and 4112k-4120k, behind the superblock.
    assert_eq!((all, zones), (680, vec![0, 1, 2, 32, 33, 34, 35, 36, 37, 38, 39, 40, 64, 128]));
}

/// A kernel uses the set behind a session whose map names the zone of sector 6000: it makes one
/// more zone dirty, and leaves no trace on the backing device. Then the volume is loaded again.
fn used_by_a_kernel(does: Does) -> (Fixture, Arc<Maps>) {
    let (test, maps) = clean(Does::Keeps);
    test.write("v", 6000, 8, 7).expect("the drives are well");
    test.remove("v");
    let superblock = durable_superblock(&test).encode();
    let drives = |test: &Fixture| ["c", "b"].map(|name| (name, test.drive(name).durable()));
    let other = Fixture::new(drives(&test));
    other.load("v", LINE);
    other.write("v", 7000, 8, 7).expect("the drives are well");
    other.remove("v");
    let [cache, mut backing] = drives(&other);
    backing.1.write(cairn_block::Sector(SUPERBLOCK_SECTOR), &superblock);
    let test = Fixture::new([cache, backing]);
    assert_eq!(lost(&test, &maps), Some(vec![6016 / ZONE]), "it counts, and names too little");
    maps.set(does);
    maps.calls();
    test.registry.set_zone_maps(maps.clone());
    test.load("v", LINE);
    (test, maps)
}

#[test]
fn start_replaces_a_map_that_lacks_what_a_kernel_made_dirty() {
    let (test, maps) = used_by_a_kernel(Does::Keeps);
    assert_eq!(maps.calls(), 1);
    assert_eq!(lost(&test, &maps), Some([6016, 7016].map(|sector| sector / ZONE).into()));
    test.suspend("v", SuspendMode::Flush);
    maps.calls();
    test.resume("v").expect("the drives are well");
    assert_eq!(maps.calls(), 0, "it is not written again");
}

#[test]
fn map_that_lacks_dirty_data_and_cannot_be_replaced_is_dropped() {
    let (test, maps) = used_by_a_kernel(Does::Fails);
    assert_eq!(maps.calls(), 1);
    assert!(maps.0.lock().kept.is_none(), "every zone is suspect");
    maps.set(Does::Keeps);
    test.write("v", 8000, 8, 7).expect("the drives are well");
    assert_eq!(lost(&test, &maps), Some([6016, 7016, 8016].map(|sector| sector / ZONE).into()));
}

#[test]
fn marks_end_when_nothing_is_dirty() {
    let (test, maps) = clean(Does::Keeps);
    test.write("v", 6000, 8, 7).expect("the drives are well");
    drain(&test).expect("the drives are well");
    assert_eq!(lost(&test, &maps), Some(Vec::new()), "the state is clean");
    maps.calls();
    test.write("v", 7000, 8, 7).expect("the drives are well");
    assert_eq!((maps.calls(), maps.marked()), (1, vec![7016 / ZONE]));
    test.write("v", 6000, 8, 7).expect("the drives are well");
    assert_eq!((maps.calls(), maps.marked().len()), (1, 2));
}

#[test]
fn volume_at_rest_names_what_is_dirty_and_no_more() {
    let (test, maps) = clean(Does::Keeps);
    test.write("v", 6000, 8, 7).expect("the drives are well");
    test.write("v", 7000, 8, 7).expect("the drives are well");
    test.discard("v", 6000, 8).expect("the drives are well");
    test.suspend("v", SuspendMode::Flush);
    assert!(maps.kept().is_closed);
    assert_eq!((maps.marked(), lost(&test, &maps)), (vec![109], Some(vec![109])));
    test.resume("v").expect("the drives are well");
    maps.calls();
    test.write("v", 7000, 8, 8).expect("the drives are well");
    assert_eq!((maps.calls(), maps.kept().is_closed), (1, false), "of the new session");
    assert_eq!(lost(&test, &maps), Some(vec![109]));
}

#[test]
fn detached_device_has_no_map() {
    let (test, maps) = clean(Does::Keeps);
    test.write("v", 6000, 8, 7).expect("the drives are well");
    drain(&test).expect("the drives are well");
    let target = test.target("v");
    let detached = test.sim.block_on(0, |env| async move { target.detach(&env, None).await });
    detached.expect("it is clean");
    assert!(maps.0.lock().kept.is_none());
}
