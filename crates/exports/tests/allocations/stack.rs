//! Requests through stacks of targets over disks in memory, on one thread.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use cairn_backends::MemoryDisk;
use cairn_block::{
    Client, ConfigError, ConfigKind, Disk, Env, FailureCount, Identity, Io, IoResult, Opener,
    ReactorId, Registry, Request, Sector, SectorCount, SectorRange, Segs, Table, TableContext,
    TableLine, TargetTypes, Time,
};
use cairn_reactor::{Core, CoreParts, PostOffice};

use crate::counting::allocations;

const SECTORS: SectorCount = SectorCount(1 << 15);

/// Opens a disk in memory for any name.
struct Shelf;

impl Opener for Shelf {
    fn identify(&self, argument: &str) -> Result<Identity, ConfigError> {
        Ok(Identity::Volume(format!("memory of {argument}")))
    }

    fn open(
        &self,
        argument: &str,
        _read_only: bool,
        _failures: Arc<FailureCount>,
    ) -> Result<Arc<dyn Disk>, ConfigError> {
        match argument {
            "origin" | "cache" => Ok(Arc::new(MemoryDisk::new(SECTORS)?.named(argument))),
            _ => Err(ConfigError::new(ConfigKind::Argument, argument, "not on this shelf")),
        }
    }
}

#[derive(Default)]
struct Ended(Cell<u64>);

impl Client for Ended {
    fn complete(&self, _env: &Env, _cookie: u64, _request: &mut Request, result: IoResult) {
        result.unwrap();
        self.0.set(self.0.get() + 1);
    }
}

struct Bench {
    core: Core,
    registry: Rc<Registry>,
    ended: Rc<Ended>,
    sent: Cell<u64>,
}

impl Bench {
    fn new() -> Bench {
        let post = PostOffice::new(1);
        let (reactor, reactor_waker) = (ReactorId(0), post.reactor_waker(ReactorId(0)));
        let core =
            Core::new(CoreParts { reactor, seed: 1, post, reactor_waker, mechanism: Rc::new(()) });
        let registry = Rc::new(Registry::new(Box::new(Shelf)));
        Bench { core, registry, ended: Rc::default(), sent: Cell::new(0) }
    }

    fn run(&self) {
        while self.core.turn(Time(0), Vec::new()) {}
    }

    fn volume(&self, name: &str, table: &str) -> Arc<dyn Disk> {
        let device = self.registry.create_volume(name).unwrap();
        let lines = TableLine::parse_all(table).unwrap();
        let (env, registry, made) =
            (self.core.env().clone(), self.registry.clone(), device.clone());
        let ready = Rc::new(Cell::new(false));
        let done = ready.clone();
        self.core.env().spawn(async move {
            let types = TargetTypes::new(cairn_targets::types());
            let context = TableContext { types: &types, registry: &registry, read_only: false };
            made.load(Table::build(&env, &made, &lines, context).await.unwrap()).await;
            made.resume(&env).await.unwrap().whole().unwrap();
            done.set(true);
        });
        self.run();
        assert!(ready.get());
        device
    }

    fn message(&self, name: &str, words: &'static [&'static str]) {
        let device = self.registry.volume(name).unwrap();
        let (env, done) = (self.core.env().clone(), Rc::new(Cell::new(false)));
        let told = done.clone();
        self.core.env().spawn(async move {
            let table = device.live_table().unwrap();
            table.lines()[0].target.message(&env, words).await.unwrap();
            told.set(true);
        });
        self.run();
        assert!(done.get());
    }

    /// Sends `count` writes or reads of 4 KiB to the first `blocks` blocks in turn, from block
    /// `first`, and waits for them.
    fn send(&self, disk: &Arc<dyn Disk>, write: bool, first: u64, blocks: u64, count: u64) {
        let (env, length) = (self.core.env(), SectorCount(8));
        let buf = env.buf(4096);
        for number in 0..count {
            let range = SectorRange::new(Sector((first + number % blocks) * length.0), length);
            let segs = Segs::of(&buf, 0, 4096);
            let io = if write { Io::write(range, segs) } else { Io::read(range, segs) };
            env.start(disk, io, self.ended.clone(), number);
            self.run();
        }
        self.sent.set(self.sent.get() + count);
        assert_eq!(self.ended.0.get(), self.sent.get());
    }
}

#[test]
fn requests_through_three_linear_layers_take_no_memory() {
    let bench = Bench::new();
    bench.volume("a", "0 32768 linear origin 0");
    bench.volume("b", "0 32760 linear @a 8");
    let top = bench.volume("c", "0 32752 linear @b 8");
    for write in [true, false] {
        bench.send(&top, write, 0, 1000, 2000);
        let taken = allocations(|| bench.send(&top, write, 0, 1000, 10_000));
        assert_eq!(taken, 0, "write: {write}");
    }
}

#[test]
fn requests_that_are_split_take_no_memory() {
    let bench = Bench::new();
    bench.volume("a", "0 4 linear origin 0\n4 32764 linear cache 4");
    let top = bench.volume("b", "0 32760 linear @a 0");
    bench.send(&top, true, 0, 1, 100);
    assert_eq!(allocations(|| bench.send(&top, true, 0, 1, 1000)), 0);
}

#[test]
fn hits_in_a_writecache_take_no_memory() {
    let bench = Bench::new();
    let top = bench.volume("w", "0 32768 writecache s origin cache 4096 0");
    bench.send(&top, true, 0, 1000, 3000);
    let overwrites = allocations(|| bench.send(&top, true, 0, 1000, 1000));
    let reads = allocations(|| bench.send(&top, false, 0, 1000, 1000));
    assert_eq!((overwrites, reads), (0, 0), "of 1000 overwrites and of 1000 reads");
}

/// The index grows into memory that the background task added before. That the task allocates is
/// not seen here.
#[test]
fn inserts_into_a_writecache_take_no_memory() {
    let bench = Bench::new();
    let options = "4 high_watermark 100 low_watermark 100";
    let top = bench.volume("w", &format!("0 32768 writecache s origin cache 4096 {options}"));
    bench.send(&top, true, 0, 500, 500);
    let in_order = allocations(|| bench.send(&top, true, 500, 1000, 1000));
    let scattered = allocations(|| {
        (0..1000).for_each(|number| bench.send(&top, true, 1500 + number * 379 % 1000, 1, 1));
    });
    assert_eq!((in_order, scattered), (0, 0), "of 1000 inserts each");
}

#[test]
fn mapped_blocks_and_holes_of_a_thin_volume_take_no_memory() {
    for options in ["0", "2 detect_zeroes unmap"] {
        let bench = Bench::new();
        bench.volume("pool", &format!("0 32768 thin-pool cache origin 128 0 {options}"));
        bench.message("pool", &["create_thin", "0"]);
        let top = bench.volume("thin", "0 32768 thin @pool 0");
        bench.send(&top, true, 0, 1000, 2000);
        let overwrites = allocations(|| bench.send(&top, true, 0, 1000, 1000));
        let reads = allocations(|| bench.send(&top, false, 0, 1000, 1000));
        let holes = allocations(|| bench.send(&top, false, 3000, 1000, 1000));
        assert_eq!((overwrites, reads, holes), (0, 0, 0), "{options}: of 1000 each");
    }
}
