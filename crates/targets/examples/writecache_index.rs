//! What the write cache itself costs, above disks that take no time: nanoseconds per block of
//! large fills and overwrites, memory per cached block, and the time of recovery.
//!
//! `cargo run --release -p cairn-targets --example writecache_index [MILLIONS]` (default 26
//! million entries for the large cases). The disks keep metadata only; data is dropped.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use cairn_block::{
    Disk, Env, Flow, Io, MappedDevice, Op, ReactorId, Registry, Request, Sector, SectorCount,
    SectorRange, Table, TableContext, TableLine, TargetTypes,
};
use cairn_format::writecache::{BlockSize, Entry, Geometry, SUPERBLOCK_BYTES, Seq, Superblock};
use cairn_reactor::{Clock, MonotonicClock, Options, Reactors, RingKind};
use cairn_sim::SimOpener;

/// How many writes of 512 KiB a round makes.
const WRITES: u64 = 800;

/// Counts the bytes in use.
struct Counting;

static IN_USE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        IN_USE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        IN_USE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A disk that takes no time: it keeps its first bytes and drops the rest.
struct Instantly {
    sectors: u64,
    kept: Mutex<Vec<u8>>,
    requests: AtomicUsize,
}

impl Instantly {
    fn new(sectors: u64, kept: Vec<u8>) -> Arc<Instantly> {
        Arc::new(Instantly { sectors, kept: Mutex::new(kept), requests: AtomicUsize::new(0) })
    }
}

impl Disk for Instantly {
    fn name(&self) -> String {
        "instantly".to_owned()
    }

    fn sectors(&self) -> SectorCount {
        SectorCount(self.sectors)
    }

    fn submit(&self, _env: &Env, request: &mut Request) -> Flow {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let from = request.range.start.to_bytes() as usize;
        let mut kept = self.kept.lock().expect("nobody panics with it");
        let len = (request.range.to_bytes() as usize).min(kept.len().saturating_sub(from));
        if len > 0 {
            match request.op {
                Op::Read => request.segs.copy_in(0, &kept[from..from + len]),
                Op::Write => request.segs.copy_out(0, &mut kept[from..from + len]),
                _ => (),
            }
        }
        Flow::Done
    }
}

async fn open(
    env: &Env,
    origin: &Arc<Instantly>,
    cache: &Arc<Instantly>,
    block: u32,
) -> (Arc<MappedDevice>, Arc<Registry>) {
    let opener = SimOpener::new().with("origin", origin.clone()).with("cache", cache.clone());
    let registry = Arc::new(Registry::new(Box::new(opener)));
    let volume = registry.create_volume("volume").expect("a new name");
    let text = format!(
        "0 {} writecache s origin cache {block} 6 high_watermark 100 low_watermark 100 \
         autocommit_time 3600000",
        origin.sectors
    );
    let lines = TableLine::parse_all(&text).expect("a table");
    let types = TargetTypes::new(cairn_targets::types());
    let context = TableContext { types: &types, registry: &registry, read_only: false };
    let table = Table::build(env, &volume, &lines, context).await.expect("it opens");
    volume.load(table).await;
    volume.resume(env).await.expect("it resumes").whole().expect("it resumes");
    (volume, registry)
}

/// Sectors of a cache device with this many slots.
fn device_sectors(slots: u64, block: u32) -> u64 {
    (64 + slots * (16 + u64::from(block))).div_ceil(4096) * 8 + 64
}

fn metadata_bytes(slots: u64) -> usize {
    (64 + slots * 16).next_multiple_of(4096) as usize + 4096
}

/// Nanoseconds that this thread has run: on a busy machine the clock tells of the others.
fn ran_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux tells");
    text.split(' ').next().and_then(|word| word.parse().ok()).expect("a number")
}

async fn write(env: &Env, disk: &Arc<dyn Disk>, sector: u64, sectors: u64) {
    let segs = env.segs(SectorCount(sectors));
    let range = SectorRange::new(Sector(sector), SectorCount(sectors));
    env.io(disk, Io::write(range, segs)).await.expect("it writes");
}

async fn read(env: &Env, disk: &Arc<dyn Disk>, sector: u64, sectors: u64) {
    let segs = env.segs(SectorCount(sectors));
    let range = SectorRange::new(Sector(sector), SectorCount(sectors));
    env.io(disk, Io::read(range, segs)).await.expect("it reads");
}

/// Fills 400 MiB in random order by 512 KiB, commits, overwrites, commits: nanoseconds per
/// block of both, and the cache device's requests for the overwrites.
async fn large_writes(env: Env, block: u32, seed: u64) -> (f64, f64, usize) {
    const WRITE_SECTORS: u64 = 1024;
    let blocks = WRITES * WRITE_SECTORS / u64::from(block / 512);
    let slots = blocks + 64;
    let origin = Instantly::new(WRITES * WRITE_SECTORS, Vec::new());
    let cache = Instantly::new(device_sectors(slots, block), vec![0; metadata_bytes(slots)]);
    let (volume, _registry) = open(&env, &origin, &cache, block).await;
    let disk: Arc<dyn Disk> = volume.clone();
    let mut order: Vec<u64> = (0..WRITES).collect();
    fastrand::Rng::with_seed(seed).shuffle(&mut order);
    let (mut times, mut requests) = ([0.0; 2], 0);
    for time in &mut times {
        let clock = MonotonicClock::begin();
        let before = (clock.now(), cache.requests.load(Ordering::Relaxed));
        for &index in &order {
            write(&env, &disk, index * WRITE_SECTORS, WRITE_SECTORS).await;
        }
        env.io(&disk, Io::flush()).await.expect("it flushes");
        *time = clock.now().since(before.0).as_nanos() as f64 / blocks as f64;
        requests = cache.requests.load(Ordering::Relaxed) - before.1;
    }
    volume.remove(&env).await.expect("the drives are well");
    (times[0], times[1], requests)
}

fn large_write_rounds(block: u32) {
    let rounds: Vec<_> =
        (0..9).map(|seed| in_a_world(move |env| large_writes(env, block, seed))).collect();
    let median = |time: fn(&(f64, f64, usize)) -> f64| {
        let mut times: Vec<f64> = rounds.iter().map(time).collect();
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    let (fill, over, requests) = (median(|round| round.0), median(|round| round.1), rounds[0].2);
    println!(
        "512 KiB writes, block {block:>4}: fill and commit {fill:6.2} ns/block, \
         overwrite and flush {over:6.2} ns/block ({requests} requests for {WRITES} overwrites)"
    );
}

/// The `index`th of `count` numbers below 2^`bits`, scattered and all different.
fn scattered(index: u64, bits: u32) -> u64 {
    let mask = (1 << bits) - 1;
    let mut x = index & mask;
    for _ in 0..2 {
        x = x.wrapping_mul(0x9e37_79b9_7f4a_7c15) & mask;
        x ^= x >> (bits / 2);
    }
    x
}

/// Fills a cache with random 4 KiB blocks, and reads some of them.
async fn random_blocks(env: Env, count: u64) {
    const BITS: u32 = 28;
    let origin = Instantly::new(8 << BITS, Vec::new());
    let cache =
        Instantly::new(device_sectors(count + 64, 4096), vec![0; metadata_bytes(count + 64)]);
    let (volume, _registry) = open(&env, &origin, &cache, 4096).await;
    let disk: Arc<dyn Disk> = volume.clone();
    let empty = IN_USE.load(Ordering::Relaxed);
    let (clock, mut slowest) = (MonotonicClock::begin(), 0);
    let begin = ran_ns();
    for index in 0..count {
        let before = clock.now();
        write(&env, &disk, scattered(index, BITS) * 8, 8).await;
        slowest = slowest.max(clock.now().since(before).as_micros());
    }
    env.io(&disk, Io::flush()).await.expect("it flushes");
    let insert = (ran_ns() - begin) as f64 / count as f64;
    let bytes = (IN_USE.load(Ordering::Relaxed) - empty) as f64 / count as f64;
    let fixed = empty as f64 / count as f64;
    let reads = 1_000_000;
    let mut times = [0.0; 2];
    for (time, shift) in times.iter_mut().zip([0, count]) {
        let begin = ran_ns();
        for index in 0..reads {
            let which = index * 7919 % count + shift;
            read(&env, &disk, scattered(which, BITS) * 8, 8).await;
        }
        *time = (ran_ns() - begin) as f64 / reads as f64;
    }
    println!(
        "random 4 KiB, {count:>9} blocks: insert {insert:5.0} ns (slowest {slowest} us), \
         hit {:4.0} ns, miss {:4.0} ns, memory {bytes:5.1} bytes/block + {fixed:.1} that an \
         empty cache has (disk and world included)",
        times[0], times[1]
    );
    volume.remove(&env).await.expect("the drives are well");
}

/// Recovers a cache of `count` random entries.
async fn recovery(env: Env, count: u64, mixed: bool) {
    const BITS: u32 = 28;
    let block = BlockSize::new(4096).expect("a legal size");
    let sectors = device_sectors(count, 4096);
    let geometry = Geometry::for_format(sectors * 512, block).expect("it fits");
    let superblock = Superblock::fresh(&geometry).with_seq(Seq(1 << 20));
    let mut kept = vec![0xff; geometry.metadata_bytes() as usize];
    kept[..SUPERBLOCK_BYTES].copy_from_slice(&superblock.encode());
    for slot in 0..count {
        let seq = if mixed { slot / 3 % 1000 } else { slot / 65_536 };
        let entry = Entry { original_sector: scattered(slot, BITS) * 8, seq: Seq(seq) };
        entry.write_at(&mut kept, slot);
    }
    let origin = Instantly::new(8 << BITS, Vec::new());
    let cache = Instantly::new(sectors, kept);
    let empty = IN_USE.load(Ordering::Relaxed);
    let begin = ran_ns();
    let (volume, _registry) = open(&env, &origin, &cache, 4096).await;
    let time = (ran_ns() - begin) as f64 / 1e9;
    let bytes = (IN_USE.load(Ordering::Relaxed) - empty) as f64 / count as f64;
    let seqs = if mixed { "85 seqs per granule" } else { "one seq per 65536" };
    println!("recovery of {count} entries, {seqs}: {time:.2} s, {bytes:.1} bytes/block");
    volume.remove(&env).await.expect("the drives are well");
}

fn main() {
    let millions = std::env::args().nth(1).map_or(26, |word| word.parse().expect("millions"));
    let count = millions * 1_000_000;
    [512, 1024, 2048, 4096].into_iter().for_each(large_write_rounds);
    for blocks in [100_000, 1_000_000, count] {
        in_a_world(move |env| random_blocks(env, blocks));
    }
    for mixed in [false, true] {
        in_a_world(move |env| recovery(env, count, mixed));
    }
}

/// Runs on a reactor of its own.
fn in_a_world<T: Send + 'static, F: Future<Output = T> + 'static>(
    make: impl FnOnce(Env) -> F + Send + 'static,
) -> T {
    let options = Options { count: 1, ring: RingKind::Auto };
    let reactors = Reactors::start(options).expect("a reactor");
    reactors.block_on(ReactorId(0), make)
}
