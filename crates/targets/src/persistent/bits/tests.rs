//! Commits of a bitset, judged by the checker of the format.

use std::sync::Arc;

use cairn_block::{Disk, SectorCount};
use cairn_format::clone::{Bitset, RegionSize, read};
use cairn_format::thin::blocks::MemoryBlocks;
use cairn_sim::{Fault, Image, OpSet, SimWorld};

use super::BitStore;
use crate::persistent::tests::fixture::world;

fn checked(bytes: &[u8]) -> Bitset {
    let Ok(read) = read(&mut MemoryBlocks::new(bytes));
    read.unwrap_or_else(|fault| panic!("{fault}"))
}

fn formatted(seed: u64, blocks: u64, sectors: u64) -> SimWorld {
    let sim = world(seed, Image::new(SectorCount(blocks * 8)));
    let disk: Arc<dyn Disk> = sim.drive("meta");
    let size = RegionSize::new(8).unwrap();
    let format = |env| async move { BitStore::format_fresh(&env, &disk, size, sectors).await };
    sim.block_on(0, format).unwrap();
    sim
}

fn open(sim: &SimWorld) -> (BitStore, Vec<u64>) {
    let disk: Arc<dyn Disk> = sim.drive("meta");
    sim.block_on(0, |env| async move { BitStore::open(&env, &disk, false).await }).unwrap()
}

fn commit(sim: &SimWorld, store: BitStore, words: &[u64], changed: &[usize]) -> (BitStore, bool) {
    let (words, changed, mut store) = (words.to_vec(), changed.to_vec(), store);
    sim.block_on(0, |env| async move {
        let done = store.commit(&env, &words, &changed, None::<fn(u64)>).await;
        (store, done.is_ok())
    })
}

#[test]
fn a_fresh_bitset_is_empty_and_commits_are_read_back() {
    let sim = formatted(1, 64, 2_400_004);
    let bitset = checked(&sim.drive("meta").visible().to_vec());
    assert_eq!((bitset.hydrated(), bitset.used), (0, 15), "as the kernel's");
    let (mut store, mut words) = open(&sim);
    for round in 0..200usize {
        let word = round * 7919 % words.len();
        words[word] |= 1 << (round % 64);
        let (next, done) = commit(&sim, store, &words, &[word / 509]);
        assert!(done, "{round}");
        store = next;
        if round % 20 == 0 {
            let bitset = checked(&sim.drive("meta").durable().to_vec());
            assert_eq!((&bitset.words, bitset.used), (&words, 15));
            assert_eq!(store.blocks(), (15, 64));
        }
    }
    assert_eq!(open(&sim).1, words);
}

#[test]
fn a_commit_that_fails_leaves_one_of_both_states_and_goes_on() {
    for op in [OpSet::WRITES, OpSet::FLUSHES] {
        for seed in 0..20 {
            let sim = formatted(seed, 16, 8192);
            let (store, mut words) = open(&sim);
            words[3] = 7;
            sim.drive("meta").faults().add(Fault::error(op).per_mille(400).shots(1));
            let (mut store, done) = commit(&sim, store, &words, &[0]);
            assert_eq!(store.is_broken(), !done);
            let bitset = checked(&sim.drive("meta").durable().to_vec());
            assert!(bitset.words == words || bitset.hydrated() == 0);
            if done {
                continue;
            }
            sim.drive("meta").faults().clear();
            store = sim.block_on(0, |env| async move {
                store.reopen(&env).await.unwrap();
                store
            });
            words[4] = 1;
            let (_store, done) = commit(&sim, store, &words, &[0]);
            assert!(done);
            assert_eq!(checked(&sim.drive("meta").durable().to_vec()).words, words);
        }
    }
}

#[test]
fn a_device_without_room_is_refused_and_stays_blank() {
    let sim = world(1, Image::new(SectorCount(13 * 8)));
    let disk: Arc<dyn Disk> = sim.drive("meta");
    let size = RegionSize::new(8).unwrap();
    let format = |env| async move { BitStore::format_fresh(&env, &disk, size, 8192).await };
    let said = sim.block_on(0, format).unwrap_err().to_string();
    assert_eq!(said, "metadata: no free block is left");
    assert!(sim.drive("meta").visible().to_vec().iter().all(|byte| *byte == 0));
}

#[test]
fn the_smallest_device_has_room_for_a_commit_of_everything() {
    for arrays in [1u64, 2, 63, 64, 252, 253, 700] {
        let regions = arrays * 64 * 509;
        let sim = formatted(1, BitStore::least_blocks(arrays), regions * 8);
        let (mut store, mut words) = open(&sim);
        let all: Vec<usize> = (0..arrays as usize).collect();
        for round in 1..4 {
            words.fill(round);
            let (next, done) = commit(&sim, store, &words, &all);
            assert!(done, "{arrays} arrays, round {round}");
            store = next;
        }
        assert_eq!(open(&sim).1, words);
    }
}

#[test]
fn what_the_kernel_wrote_is_opened_and_changed() {
    for name in ["fresh.meta", "partly.meta", "full.meta", "large.meta"] {
        let image = cairn_testkit::image("clone", name);
        let sim = world(1, Image::of_bytes(&image));
        let (store, mut words) = open(&sim);
        assert_eq!(words, checked(&image).words, "{name}");
        words[0] |= 3;
        let (_store, done) = commit(&sim, store, &words, &[0]);
        assert!(done, "{name}");
        assert_eq!(checked(&sim.drive("meta").durable().to_vec()).words, words, "{name}");
    }
}
