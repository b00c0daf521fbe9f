//! Reads from a slow origin while the cache drains to it: how long they take, in virtual time.
//!
//! The origin is a simulated spindle of 64 GiB, the cache a solid-state drive with 4000 dirty
//! blocks that lie anywhere on it. One reader misses the cache again and again, alone first and
//! then while a `flush` message drains everything.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use cairn_block::{
    Disk, Io, Registry, Sector, SectorCount, SectorRange, Table, TableContext, TableLine,
    TargetTypes,
};
use cairn_sim::{DriveModel, DriveOptions, Image, SimWorld, Spindle};

const ORIGIN: SectorCount = SectorCount(64 << 21);
const BLOCKS: u64 = 4000;
const READS: usize = 600;

struct Lab {
    world: SimWorld,
    volume: Arc<dyn Disk>,
}

fn lab() -> Lab {
    let world = SimWorld::new(11, 1);
    let flush = Duration::from_micros(100);
    let spindle = DriveOptions {
        spindle: Some(Spindle::NEARLINE),
        volatile_cache: false,
        model: DriveModel { flush, ..DriveModel::SLOW },
        ..DriveOptions::named("origin")
    };
    world.add_drive(spindle, Image::new(ORIGIN));
    let cache = Image::new(SectorCount::of_bytes(20 << 20));
    world.add_drive(DriveOptions::named("cache"), cache);
    let registry = Arc::new(Registry::new(Box::new(world.opener())));
    let device = registry.create_volume("volume").expect("a name");
    let table = format!("0 {ORIGIN} writecache s origin cache 4096 2 high_watermark 100");
    let lines = TableLine::parse_all(&table).expect("a table");
    let volume = device.clone();
    world.block_on(0, |env| async move {
        let types = TargetTypes::new(cairn_targets::types());
        let context = TableContext { types: &types, registry: &registry, read_only: false };
        let table = Table::build(&env, &device, &lines, context).await.expect("it fits");
        device.load(table).await;
        device.resume(&env).await.expect("the drives are well").whole().expect("nothing is lost");
    });
    Lab { world, volume }
}

impl Lab {
    /// A block anywhere, even ones to write and odd ones to read.
    fn place(rng: &mut fastrand::Rng, odd: u64) -> SectorRange {
        let block = rng.u64(..ORIGIN.0 / 16) * 2 + odd;
        SectorRange::new(Sector(block * 8), SectorCount(8))
    }

    fn fill(&self) {
        let disk = self.volume.clone();
        self.world.block_on(0, |env| async move {
            let mut rng = fastrand::Rng::with_seed(1);
            for _ in 0..BLOCKS {
                let range = Lab::place(&mut rng, 0);
                let write = Io::write(range, env.segs(range.count));
                env.io(&disk, write).await.expect("the drives are well");
            }
        });
    }

    /// Reads one after the other; answers the percentiles 50 and 99 of their time.
    fn reads(&self) -> [Duration; 2] {
        let disk = self.volume.clone();
        let mut times = self.world.block_on(0, |env| async move {
            let mut rng = fastrand::Rng::with_seed(2);
            let mut times = Vec::new();
            for _ in 0..READS {
                let (range, began) = (Lab::place(&mut rng, 1), env.now());
                let read = Io::read(range, env.segs(range.count));
                env.io(&disk, read).await.expect("the drives are well");
                times.push(env.now().since(began));
            }
            times
        });
        times.sort_unstable();
        [times[READS / 2], times[READS * 99 / 100]]
    }

    fn start_flush_message(&self) -> Rc<RefCell<bool>> {
        let ended = Rc::new(RefCell::new(false));
        let device = self.volume.mapped().expect("a volume");
        let target = device.live_table().expect("a table").lines()[0].target.clone();
        let (env, place) = (self.world.env(0).clone(), ended.clone());
        self.world.env(0).spawn(async move {
            target.message(&env, &["flush"]).await.expect("everything comes home");
            *place.borrow_mut() = true;
        });
        ended
    }

    fn dirty(&self) -> u64 {
        let device = self.volume.mapped().expect("a volume");
        let status = device.live_table().expect("a table").lines()[0].target.status();
        let number = |field: &str| field.parse().expect("a number");
        let fields: Vec<u64> = status.split(' ').map(number).collect();
        fields[1] - fields[2]
    }
}

#[test]
fn reads_wait_for_one_copy_at_most_and_the_drain_goes_on() {
    let lab = lab();
    lab.fill();
    let [half, most] = lab.reads();
    let ended = lab.start_flush_message();
    let began = lab.world.now();
    let before = lab.dirty();
    let [drain_half, drain_most] = lab.reads();
    let (meanwhile, copied) = (lab.world.now().since(began), before - lab.dirty());
    println!(
        "reads alone: p50 {half:?} p99 {most:?}; while draining: p50 {drain_half:?} p99 \
         {drain_most:?}; {copied} blocks went home in {meanwhile:?}"
    );
    // A copy of scattered blocks is a request like the reads themselves.
    assert!(drain_half < half * 2 + half / 4, "{drain_half:?} beside {half:?}");
    assert!(drain_most < most * 9 / 4, "{drain_most:?} beside {most:?}");
    assert!(!*ended.borrow() && copied > 0, "{copied} of {before}");
    // With the reads gone the rest goes home several times as fast.
    let (began, rest) = (lab.world.now(), lab.dirty());
    lab.world.run_until(|| *ended.borrow());
    let alone = lab.world.now().since(began).as_secs_f64() / rest as f64;
    let beside = meanwhile.as_secs_f64() / copied as f64;
    println!("a block takes {:.1} ms then, and {:.1} ms before", alone * 1e3, beside * 1e3);
    assert!(alone * 2.0 < beside);
    let volume = lab.volume.clone();
    lab.world.block_on(0, |env| async move {
        volume.mapped().expect("a volume").remove(&env).await.unwrap();
    });
}
