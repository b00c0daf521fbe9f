//! Tests of the target as a whole, over sets that a kernel made. Its crash campaign is
//! `tests/bcache_drain.rs`.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use cairn_block::{Io, IoError, Op, SuspendMode, Value};
use cairn_format::bcache::{BackingState, SUPERBLOCK_SECTOR, Superblock};
use cairn_sim::Image;
use cairn_testkit::image;

use crate::fixture::{Fixture, SECTOR};

const LINE: &str = "0 16368 bcache b c 0";

fn fixture(cache: Vec<u8>, backing: Vec<u8>) -> Fixture {
    let other = ("o", Image::of_bytes(&image("bcache", "made_v3.cache")));
    let of = |name, bytes: Vec<u8>| (name, Image::of_bytes(&bytes));
    Fixture::new([of("b", backing), of("c", cache), other])
}

/// 340 KiB dirty, in a leaf.
fn stopped() -> Fixture {
    fixture(image("bcache", "wb_stop.cache"), image("bcache", "wb_stop.backing"))
}

fn backing_in(state: BackingState) -> Vec<u8> {
    let mut bytes = image("bcache", "wb_stop.backing");
    let at = SUPERBLOCK_SECTOR as usize * SECTOR;
    let Ok(Superblock::Backing(mut superblock)) = Superblock::decode(&bytes[at..]) else {
        panic!("it is a backing device")
    };
    superblock.set_state(state);
    bytes[at..at + 4096].copy_from_slice(&superblock.encode());
    bytes
}

fn drain(test: &Fixture) -> Result<(), String> {
    let volume = test.volume("v");
    test.sim.block_on(0, |env| async move {
        volume.drain_caches(&env).await.map_err(|error| error.to_string())
    })
}

fn state_of(test: &Fixture) -> Value {
    test.target("v").report().value("state").expect("a field").clone()
}

#[test]
fn extents_that_touch_are_one_write_and_a_batch_is_one_flush() {
    let test = stopped();
    test.load("v", LINE);
    assert_eq!(state_of(&test), Value::State("dirty"));
    test.forget();
    drain(&test).expect("the drives are well");
    let (superblock, data): (Vec<_>, Vec<_>) =
        test.ops("b").into_iter().filter(|(op, ..)| *op != Op::Read).partition(|it| it.1 == 8);
    // 0-64k, 1m-1280k, 2m-2060k and 4112k-4120k, behind the superblock.
    let expected = [(16, 128), (2064, 512), (4112, 24), (8240, 16)];
    let writes: Vec<_> = data.iter().filter(|(op, ..)| *op == Op::Write).collect();
    assert_eq!(writes.iter().map(|it| (it.1, it.2)).collect::<Vec<_>>(), expected);
    assert_eq!(data.iter().filter(|(op, ..)| *op == Op::Flush).count(), 1);
    assert_eq!(superblock, [(Op::Write, 8, 8)]);
    assert_eq!(state_of(&test), Value::State("clean"));
    test.forget();
    drain(&test).expect("nothing is dirty");
    assert!(test.drive("b").faults().injected() == 0 && test.recording("b").only_read());
    assert!(test.recording("c").only_read(), "a session begins once");
}

#[test]
fn a_suspend_ends_a_drain_and_the_next_one_goes_on() {
    let test = stopped();
    test.load("v", LINE);
    let dirty = || test.volume("v").dirty().first().map_or(0, |dirty| dirty.sectors.0);
    let before = dirty();
    let answer = Rc::new(RefCell::new(None));
    let (env, volume, place) = (test.sim.env(0).clone(), test.volume("v"), answer.clone());
    test.sim.env(0).spawn(async move {
        let drained = volume.drain_caches(&env).await;
        *place.borrow_mut() = Some(drained.map_err(|error| error.to_string()));
    });
    test.run(Duration::from_micros(60));
    test.suspend("v", SuspendMode::Flush);
    let drained = answer.take().expect("a suspend waits for it").expect_err("it was ended");
    assert!(drained.contains("a suspend came meanwhile"), "{drained}");
    assert!(dirty() > 0 && dirty() <= before);
    test.resume("v").expect("the drives are well");
    assert_eq!(state_of(&test), Value::State("dirty"));
    drain(&test).expect("the drives are well");
    assert_eq!((dirty(), state_of(&test)), (0, Value::State("clean")));
}

#[test]
fn devices_that_do_not_belong_together_are_refused_and_nothing_is_written() {
    let test = stopped();
    for (line, part) in [
        ("0 16368 bcache c b 0", "b: superblock version: found that of a backing device"),
        ("0 16368 bcache b b 0", "b: cache: found the backing device, expected another device"),
        ("0 16368 bcache b o 0", "b: set_uuid: found "),
        ("0 16369 bcache b c 0", "b: device size: found 16384 sectors, expected at least 16385"),
        ("0 16368 bcache b c 2 set 00000000000000000000000000000001", "c: set_uuid: found "),
    ] {
        let refused = test.refusal("v", line);
        assert!(refused.starts_with(part), "{line}: {refused}");
    }
    // What the set says is known at the resume, which flushes before it reads.
    let flash = "0 8 bcache - c 2 flash 00000000000000000000000000000001";
    let refused = test.try_load("v", flash).expect_err("there is none").to_string();
    assert!(refused.starts_with("c: uuids: found no flash-only volume 00000000-"), "{refused}");
    let test = fixture(image("bcache", "detached.cache"), image("bcache", "detached.backing"));
    assert!(test.refusal("v", LINE).starts_with("b: set_uuid: found none, expected "));
    let test = fixture(image("bcache", "wb_stop.cache"), backing_in(BackingState::Stale));
    assert!(test.refusal("v", LINE).starts_with("b: state: found inconsistent"));
}

#[test]
fn a_damaged_node_is_refused_with_its_place() {
    let mut cache = image("bcache", "wb_stop.cache");
    let test = stopped();
    test.load("v", LINE);
    let root = test.with_target("v", |volume: &super::Bcache| {
        let set = volume.set.lock();
        set.as_ref().expect("it is open").tree.root().0
    });
    let sector = root.cached_at().expect("it lies there").sector();
    // The sequence of the first set; the keys of an empty one are not covered.
    cache[sector as usize * SECTOR + 16] ^= 1;
    let test = fixture(cache, image("bcache", "wb_stop.backing"));
    let refused = test.try_load("v", LINE).expect_err("it is damaged").to_string();
    let place = format!("c: node of level 0 at sector {sector}: set of keys at byte 0: checksum: ");
    assert!(refused.starts_with(&place), "{refused}");
    assert!(refused.ends_with("; see: cairn check c"), "{refused}");
}

#[test]
fn without_its_cache_a_backing_device_is_read_where_it_is_sound_or_on_demand() {
    let test = fixture(image("bcache", "wb_stop.cache"), backing_in(BackingState::Dirty));
    test.load("v", "0 16368 bcache b - 0");
    assert_eq!(test.read("v", 0, 8), Err(IoError::IO));
    test.load("v", "0 16368 bcache b - 1 stale_ok");
    let stale = test.read("v", 0, 8).expect("it is read as it is");
    assert!(stale == image("bcache", "wb_stop.backing")[16 * SECTOR..24 * SECTOR]);
    assert!(!test.target("v").drains());
    let test = fixture(image("bcache", "wb_stop.cache"), backing_in(BackingState::Clean));
    test.load("v", "0 16368 bcache b - 0");
    assert!(test.read("v", 0, 8).is_ok());
}

#[test]
fn a_volume_is_read_only_and_says_what_it_is() {
    let test = stopped();
    test.load("v", LINE);
    let write = |env: &cairn_block::Env| crate::fixture::write_io(env, 0, 8, 1);
    assert_eq!(test.io("v", write), Err(IoError::READ_ONLY));
    assert_eq!(test.io("v", |_| Io::flush()), Ok(()));
    let attributes = test.target("v").attributes();
    let value = |name| attributes.iter().find(|it| it.name == name).expect(name).value.clone();
    assert_eq!(value("state"), Value::State("dirty"));
    assert_eq!(value("cache_mode"), Value::State("writeback"));
    assert_eq!(value("dirty_data"), Value::Gauge(680));
    assert_eq!((value("bucket_size"), value("block_size")), (Value::Gauge(128), Value::Gauge(1)));
    assert_eq!((value("tree_depth"), value("btree_nodes")), (Value::Gauge(0), Value::Gauge(1)));
    assert_eq!(value("set"), Value::Absent);
    test.read("v", 0, 8).expect("dirty");
    test.read("v", 9000, 8).expect("not cached");
    assert_eq!(test.target("v").report().number("cache_hits"), Some(1));
    assert_eq!(test.target("v").report().number("cache_misses"), Some(1));
}
