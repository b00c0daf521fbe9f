//! The allocator and the cache under shuttle, which tries interleavings:
//! `RUSTFLAGS="--cfg shuttle" cargo test -p cairn-targets --lib interleavings`.

use std::collections::BTreeSet;
use std::sync::Arc;

use cairn_block::sync::Mutex;
use cairn_block::sync::atomic::{AtomicU64, Ordering};
use cairn_format::thin::{BLOCK_BYTES, MetadataBlock};
use shuttle::thread;

use super::allocator::{DataAllocator, DataRun};
use super::cache::Cache;
use crate::interleaved::rounds;

/// Blocks in somebody's hands.
#[derive(Default)]
struct Hands(Mutex<BTreeSet<u64>>);

impl Hands {
    fn take(&self, runs: &[DataRun]) {
        let mut hands = self.0.lock();
        for block in runs.iter().flat_map(|run| run.blocks()) {
            assert!(hands.insert(block.0), "A1: block {block} was given twice");
        }
    }

    fn give_back(&self, run: DataRun) {
        let mut hands = self.0.lock();
        run.blocks().for_each(|block| assert!(hands.remove(&block.0)));
    }
}

#[test]
fn no_block_is_handed_out_twice() {
    let life = || {
        let (allocator, hands) = (Arc::new(DataAllocator::empty()), Arc::new(Hands::default()));
        allocator.extend(5000);
        allocator.put_back(DataRun::new(4000, 300));
        let threads: Vec<_> = (1..4)
            .map(|count| {
                let (allocator, hands) = (allocator.clone(), hands.clone());
                thread::spawn(move || {
                    for _ in 0..2 {
                        let runs = allocator.take(count * 60);
                        hands.take(&runs);
                        if let Some(&run) = runs.first() {
                            hands.give_back(run);
                            allocator.release(run);
                        }
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        let left = 300 - hands.0.lock().len() as u64;
        assert_eq!(allocator.free(), left);
        let rest: u64 = allocator.take(1000).iter().map(|run| run.count).sum();
        assert_eq!(rest, left, "nothing is lost");
    };
    shuttle::check_random(life, rounds());
}

#[test]
fn a_slow_reader_puts_nothing_old_into_the_cache() {
    let life = || {
        let cache = Arc::new(Cache::new(1 << 20));
        let (generation, at) = (Arc::new(AtomicU64::new(0)), MetadataBlock(7));
        // The drive: the block changes with the second commit, having been free in the first.
        let drive = Arc::new(AtomicU64::new(1));
        let reader = {
            let (cache, generation, drive) = (cache.clone(), generation.clone(), drive.clone());
            thread::spawn(move || {
                let own = generation.load(Ordering::Acquire);
                if own == 1 {
                    return; // nothing leads to the block in this state
                }
                let bytes = Arc::new([drive.load(Ordering::Acquire) as u8; BLOCK_BYTES]);
                cache.put_if(at, bytes, || generation.load(Ordering::Acquire) == own);
            })
        };
        generation.store(1, Ordering::Release);
        drive.store(2, Ordering::Release);
        cache.put(at, Arc::new([2; BLOCK_BYTES]));
        generation.store(2, Ordering::Release);
        reader.join().expect("no panic");
        assert_eq!(cache.get(at).expect("it is there")[0], 2);
    };
    shuttle::check_random(life, rounds());
}
