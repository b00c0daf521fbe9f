//! Tests: a target's own metadata goes down as such ([`cairn_block::Flags::META`]), its clients'
//! data does not. A write cache with `metadata_only` beneath it tells them apart. In the same way
//! copies go down as [`cairn_block::Flags::BACKGROUND`].

use cairn_block::{Io, Op, Sector};

use crate::rig::{Rig, image, write_io};

fn rig() -> Rig {
    let rig =
        Rig::new(["slow", "fast", "a", "b"].map(|name| (name.to_owned(), image(8192, |_| 0))));
    rig.load("cached", "0 8192 writecache s slow fast 4096 1 metadata_only");
    rig
}

/// How many blocks of the cache were taken for writes, and how many writes went around it.
fn allocated_and_around(rig: &Rig) -> (u64, u64) {
    let report = rig.target("cached").report();
    let number = |name: &str| report.number(name).expect("a field of writecache");
    (number("writes_allocated"), number("writes_around"))
}

#[test]
fn a_pools_metadata_is_cached_as_such() {
    let rig = rig();
    rig.load("pool", "0 8192 thin-pool @cached a 128 0");
    let pool = rig.volume("pool");
    let created = rig.sim.block_on(0, |env| async move {
        pool.message(&env, Sector(0), &["create_thin", "0"]).await
    });
    created.unwrap();
    rig.load("thin", "0 4096 thin @pool 0");
    rig.io("thin", |env| write_io(env, 0, 8, 7)).unwrap();
    rig.io("thin", |_| Io::flush()).unwrap();
    let (allocated, around) = allocated_and_around(&rig);
    assert!(allocated > 0 && around == 0, "{allocated} {around}");
}

#[test]
fn the_records_of_a_store_are_cached_as_such_and_its_chunks_are_not() {
    let rig = rig();
    rig.load("snap", "0 8192 snapshot a @cached P 16");
    rig.io("snap", |env| write_io(env, 0, 16, 7)).unwrap();
    rig.io("snap", |_| Io::flush()).unwrap();
    let (allocated, around) = allocated_and_around(&rig);
    assert!(allocated > 0, "header, area and records");
    assert_eq!(around, 2, "the chunk of data: two blocks of the cache");
}

/// What a drive has seen of these operations, and whether it was marked as background.
fn marks(rig: &Rig, drive: &str, ops: &[Op]) -> Vec<(Op, bool)> {
    rig.hints(drive).into_iter().filter(|(op, _)| ops.contains(op)).collect()
}

#[test]
fn writeback_is_background_and_the_write_before_it_is_not() {
    let rig = Rig::new(["slow", "fast"].map(|name| (name.to_owned(), image(8192, |_| 0))));
    rig.load("cached", "0 8192 writecache s slow fast 4096 0");
    rig.forget();
    rig.io("cached", |env| write_io(env, 0, 8, 7)).unwrap();
    rig.io("cached", |_| Io::flush()).unwrap();
    assert!(marks(&rig, "fast", &[Op::Write]).iter().all(|(_, background)| !background));
    let volume = rig.volume("cached");
    let flushed =
        rig.sim.block_on(0, |env| async move { volume.message(&env, Sector(0), &["flush"]).await });
    flushed.unwrap();
    assert_eq!(marks(&rig, "fast", &[Op::Read]), [(Op::Read, true)]);
    assert_eq!(marks(&rig, "slow", &[Op::Write]), [(Op::Write, true)]);
}

#[test]
fn copy_on_write_and_merge_are_background_and_the_clients_write_is_not() {
    let rig = Rig::new(["o", "c"].map(|name| (name.to_owned(), image(1024, |at| at as u8))));
    rig.load("base", "0 1024 snapshot-origin o");
    rig.load("snap", "0 1024 snapshot o c N 16");
    rig.forget();
    rig.io("base", |env| write_io(env, 0, 16, 7)).unwrap();
    assert_eq!(marks(&rig, "c", &[Op::Write]), [(Op::Write, true)]);
    assert_eq!(marks(&rig, "o", &[Op::Read, Op::Write]), [(Op::Read, true), (Op::Write, false)]);
}
