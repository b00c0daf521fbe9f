//! What the metadata of a thin pool costs, above a disk in memory: nanoseconds of CPU per mapping
//! that is applied and committed, in order and at random, with and without a snapshot; the cost of
//! a leaf that is read; and of opening.
//!
//! `cargo run --release -p cairn-targets --example thin_metadata [MILLIONS]` (default 10 million
//! mappings).

use std::sync::Arc;

use cairn_backends::MemoryDisk;
use cairn_block::{Disk, Env, ReactorId, SectorCount};
use cairn_format::thin::{DataBlockSize, DeviceId, Mapping};
use cairn_reactor::{Options, Reactors, RingKind};
use cairn_targets::persistent::{self, Store, Working};

/// Mappings that a commit applies.
const BATCH: u64 = 20_000;

/// Nanoseconds that this thread has run: on a busy machine the clock tells of the others.
fn ran_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux tells");
    text.split(' ').next().and_then(|word| word.parse().ok()).expect("a number")
}

fn device(number: u64) -> DeviceId {
    DeviceId::new(number).expect("a small number")
}

/// Applies and commits batches of these virtual blocks; prints what each mapping took.
async fn batches(
    env: &Env,
    working: &mut Working,
    name: &str,
    count: u64,
    mut key: impl FnMut(u64) -> u64,
) {
    let (mut apply, mut commit, mut written) = (0, 0, 0);
    for first in (0..count).step_by(BATCH as usize) {
        let runs = working.store().data().take(BATCH.min(count - first));
        let time = working.time();
        let blocks = runs.iter().flat_map(|run| run.blocks());
        let mut changes: Vec<(u64, Option<Mapping>)> = (first..)
            .zip(blocks)
            .map(|(number, block)| (key(number), Some(Mapping { block, time })))
            .collect();
        changes.sort_unstable_by_key(|(key, _)| *key);
        changes.dedup_by_key(|(key, _)| *key);
        let begin = ran_ns();
        working.apply(env, device(0), &changes).await.expect("there is room");
        let applied = ran_ns();
        let freed = working.commit(env).await.expect("there is room");
        (apply, commit) = (apply + applied - begin, commit + ran_ns() - applied);
        written += working.blocks_written();
        freed.into_iter().for_each(|run| working.store().data().release(run));
    }
    let each = |ns: u64| ns as f64 / count as f64;
    println!(
        "{name:<34} apply {:6.1} ns, commit {:6.1} ns, {:.3} metadata blocks per mapping",
        each(apply),
        each(commit),
        written as f64 / count as f64
    );
}

async fn read_all(env: &Env, store: &Store, ahead: usize, name: &str) {
    let (mut key, mut leaves, mut mappings) = (0, 0, 0);
    let begin = ran_ns();
    while key < u64::MAX {
        for leaf in store.read_leaves(env, device(0), key, ahead).await.expect("it is sound") {
            (key, leaves) = (leaf.keys.end, leaves + 1);
            mappings += leaf.mappings.len();
        }
    }
    let each = (ran_ns() - begin) as f64 / f64::from(leaves);
    println!("{name:<34} {leaves} leaves, {mappings} mappings, {each:.0} ns per leaf");
}

async fn run(env: Env, count: u64) {
    let blocks = count * 2 + count / 4;
    let metadata = SectorCount((count / 84 * 4 + 4096) * 8);
    let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new(metadata).expect("there is memory"));
    let size = DataBlockSize::new(128).expect("64 KiB are a legal size");
    Store::format_fresh(&env, &disk, size).await.expect("it is blank");
    let options = persistent::Options { cache_bytes: 64 << 20, ..persistent::Options::default() };
    let (store, mut working) = Store::open(&env, &disk, options).await.expect("it is sound");
    working.grow_data(blocks).expect("it grows");
    working.create_device(&env, device(0)).expect("there is room");
    working.commit(&env).await.expect("there is room");
    let mut rng = fastrand::Rng::with_seed(1);
    batches(&env, &mut working, "new, in order", count, |number| number).await;
    batches(&env, &mut working, "again, in order", count / 4, |number| number).await;
    batches(&env, &mut working, "again, at random", count / 10, |_| rng.u64(..count)).await;
    working.create_snapshot(device(0), device(1)).expect("both are well");
    batches(&env, &mut working, "breaking sharing, in order", count / 10, |number| number).await;
    batches(&env, &mut working, "new, at random", count / 10, |_| rng.u64(..count * 8)).await;
    read_all(&env, &store, 0, "read, leaf by leaf").await;
    read_all(&env, &store, 32, "read, 32 leaves ahead").await;
    drop((store, working));
    let begin = ran_ns();
    let (store, _working) = Store::open(&env, &disk, options).await.expect("it is sound");
    let took = (ran_ns() - begin) as f64 / 1e6;
    println!("open: {took:.1} ms of CPU, {:?}", store.metadata_use());
}

fn main() {
    let millions = std::env::args().nth(1).map_or(10, |word| word.parse().expect("millions"));
    let reactors = Reactors::start(Options { count: 1, ring: RingKind::Auto }).expect("a reactor");
    reactors.block_on(ReactorId(0), move |env| run(env, millions * 1_000_000));
}
