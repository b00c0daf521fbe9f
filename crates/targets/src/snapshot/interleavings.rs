//! The readers' counters, the exception table and the store's queue under shuttle: see
//! `interleaved`.

use std::sync::Arc;

use cairn_block::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use cairn_block::{Disk, Env, Flow, ReactorId, Request, SectorCount};
use cairn_format::snapshot::{ChunkSize, CowChunk, OriginChunk, Record};
use shuttle::thread;

use super::store::Store;
use super::table::{Bell, Claim, Exceptions, Locks, Until, Waiter};
use crate::args::Device;
use crate::epochs::Epochs;
use crate::interleaved::{block_on, rounds};

/// Where a chunk is found, and what the origin holds there.
#[derive(Default)]
struct Place {
    is_moved: AtomicBool,
    overwritten: AtomicU64,
}

fn read(readers: &Epochs<1>, reactor: u16, place: &Place) {
    let epoch = readers.announce(ReactorId(reactor), 0);
    if !place.is_moved.load(Ordering::Relaxed) {
        for _ in 0..2 {
            assert_eq!(place.overwritten.load(Ordering::Relaxed), 0, "I4");
            thread::yield_now();
        }
    }
    readers.leave(ReactorId(reactor), epoch);
}

#[test]
fn the_origin_changes_only_when_its_readers_have_left() {
    let life = || {
        let (readers, place) = (Epochs::new(2), Arc::new(Place::default()));
        let threads: Vec<_> = (0..2)
            .map(|reactor| {
                let (readers, place) = (readers.clone(), place.clone());
                thread::spawn(move || (0..3).for_each(|_| read(&readers, reactor, &place)))
            })
            .collect();
        place.is_moved.store(true, Ordering::Relaxed);
        block_on(readers.quiesce(0));
        place.overwritten.store(1, Ordering::Relaxed);
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    };
    shuttle::check_random(life, rounds());
}

#[test]
fn two_waits_on_one_stripe_both_end_and_both_are_right() {
    let life = || {
        let readers = Epochs::new(1);
        let places = Arc::new([Place::default(), Place::default()]);
        let copiers: Vec<_> = (0..2)
            .map(|at| {
                let (readers, places) = (readers.clone(), places.clone());
                thread::spawn(move || {
                    places[at].is_moved.store(true, Ordering::Relaxed);
                    block_on(readers.quiesce(0));
                    places[at].overwritten.store(1, Ordering::Relaxed);
                })
            })
            .collect();
        for at in [0, 1, 1, 0] {
            read(&readers, 0, &places[at]);
        }
        copiers.into_iter().for_each(|thread| thread.join().expect("no panic"));
    };
    shuttle::check_random(life, rounds());
}

#[test]
fn one_copier_claims_a_chunk_and_the_others_are_woken_at_its_end() {
    let life = || {
        let table = Arc::new(Exceptions::new(Locks::default(), 64));
        let copies = Arc::new(AtomicU64::new(0));
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let (table, copies) = (table.clone(), copies.clone());
                thread::spawn(move || {
                    let bell = Arc::new(Bell::default());
                    let waiter = || Some(Waiter::Bell(bell.clone()));
                    match table.claim(7, Until::Settled, waiter) {
                        Claim::Mine => {
                            copies.fetch_add(1, Ordering::Relaxed);
                            copy(&table);
                        }
                        Claim::Busy => block_on(bell.wait()),
                        Claim::Done => (),
                    }
                    assert_eq!(table.find(7, 1).cow, Some(2), "it is there for everybody");
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        assert_eq!(copies.load(Ordering::Relaxed), 1, "T1");
        assert_eq!(table.pending(), 0);
    };
    shuttle::check_random(life, rounds());
}

fn copy(table: &Exceptions) {
    thread::yield_now();
    let record = Record { old: OriginChunk(7), new: CowChunk(2) };
    let waiters = table.publish(&[record]).into_iter().chain(table.settle([7]));
    for waiter in waiters {
        if let Waiter::Bell(bell) = waiter {
            bell.ring();
        }
    }
}

/// A COW device of which only the size matters.
struct Room;

impl Disk for Room {
    fn name(&self) -> String {
        String::new()
    }

    fn sectors(&self) -> SectorCount {
        SectorCount(1024)
    }

    fn submit(&self, _env: &Env, _request: &mut Request) -> Flow {
        unreachable!("nothing is written in this test")
    }
}

/// Commits as [`super::core::Core::commit`] does, without writing; `committed` is what the last
/// record was.
fn commit_done(store: &Store, committed: &AtomicU64) {
    let metadata = store.metadata.0.try_lock().expect("one leads at a time");
    let batches = store.take_done();
    for batch in &batches {
        let new = batch.records[0].new.0;
        assert_eq!(committed.swap(new, Ordering::Relaxed) + 1, new, "S1");
    }
    thread::yield_now();
    drop(metadata);
    store.stop_leading(false);
    batches.iter().for_each(|batch| batch.end(Ok(())));
}

#[test]
fn every_done_batch_is_committed_in_its_turn_by_somebody() {
    let life = || {
        let cow = Device { argument: String::new(), disk: Arc::new(Room) };
        let chunk = ChunkSize::new(8).expect("as the kernel's");
        let store = Arc::new(Store::new(cow, chunk, true));
        let committed = Arc::new(AtomicU64::new(1));
        let threads: Vec<_> = (0..3)
            .map(|thread| {
                let (store, committed) = (store.clone(), committed.clone());
                thread::spawn(move || {
                    for round in 0..2 {
                        let batch = store
                            .allocate(&[thread * 2 + round], Until::Settled)
                            .expect("there is room");
                        thread::yield_now();
                        batch.set_done();
                        while store.lead() {
                            commit_done(&store, &committed);
                        }
                        block_on(batch.wait_news());
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        assert_eq!(committed.load(Ordering::Relaxed), 7, "nothing is left behind");
    };
    shuttle::check_random(life, rounds());
}
